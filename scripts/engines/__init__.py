"""Engines that share no code with firstdiff: NumPy's, and those of other people (each by its own package)."""

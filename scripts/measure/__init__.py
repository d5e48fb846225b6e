"""How fast, how much memory, and how firstdiff compares with others."""

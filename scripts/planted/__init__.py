"""Mistakes, and candidates that have them: what firstdiff must find, and what it may not blame."""

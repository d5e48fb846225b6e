"""Mistakes that no catalogue lists, for `firstdiff explain` to measure (suites/test_laws.py)."""

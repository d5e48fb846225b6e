"""Mistakes that no catalogue lists, by what is wrong (a file each): for `firstdiff explain` to measure, asked by suites/test_laws.py.

They are made in engines/hooked_engine.py. Which set a mistake is of, and whether that was seen: sets.py. `python -m scripts.forms` lists them.
"""

from scripts.forms import cache, doubled, experts, gate, head, linear, norm, residual, rotation, scores  # noqa: F401  each adds to its sets
from scripts.forms.sets import SETS  # noqa: F401

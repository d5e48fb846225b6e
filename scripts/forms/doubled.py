"""Two mistakes at once in one operation: a law that says one of them alone is false. Every seventh of the first set, and one after it."""

import numpy as np

from scripts.engines.hooked_engine import F32
from scripts.forms import cache, experts, gate, head, linear, norm, residual, rotation, scores  # noqa: F401  the first set is whole
from scripts.forms.parts import put
from scripts.forms.sets import first


def late_halved(c, x):
    axis = 1 if c.site == "probs" else 0
    return put(x, (slice(None),) * axis + (slice(10, None),), lambda y: y * F32(0.5))


AFTER = (("scaled", "then multiplied by 1.1", "#1.1", lambda c, x: x * F32(1.1)), ("plus", "then 0.1 is added", "#0.1", lambda c, x: x + F32(0.1)),
         ("late_halved", "then positions from 10 on are halved", "#0.5|half", late_halved), ("clamped", "then clamped to +-0.8", "#0.8", lambda c, x: np.clip(x, -0.8, 0.8)))


def both(number, one, after):
    name, truth, said, do = after
    first(number, f"both_{one.name}_{name}", one.sites, f"{one.truth}; {truth}", [f"({alternative}) & ({said})" for alternative in one.expected],
          lambda c: do(c, np.asarray(one.how(c), F32)), layers=one.layers, archs=one.archs)


SINGLE = first.forms
for at, one in enumerate([f for f in SINGLE if "llama" in f.archs and not f.name.startswith("trap_")][3::7]):
    both(len(SINGLE) + 1 + at, one, AFTER[at % len(AFTER)])

"""engine_mistakes_free.py: mistakes of engine_mistakes whose parameter may be any number, for the zoo: none of the values is one of a list.

An id is firstdiff's and, behind a stroke, which form of it. Importing this file adds them to MISTAKES.
"""

import numpy as np

from scripts.engines.engine_mistakes import mistake

NORMS = "attn_norm ffn_norm final_norm"


@mistake("norm-eps/any", "eps", NORMS, "another epsilon", values=(0.02,), key="eps")
def _(e, right, value, l, tap):
    return value


@mistake("norm-eps-outside/any", "norm", NORMS, "x / (rms + eps), of any eps", values=(0.05,), key="eps")
def _(e, right, value, l, tap, x):
    return x / (np.sqrt(e.mean_square(l, tap, x)) + np.float32(value)) * e.gain(l, tap)


@mistake("rope-theta/any", "theta", "q_rope", "another base", values=(31416.0,), key="theta")
def _(e, right, value, l, tap):
    return value


@mistake("rope-position/keys", "rotate", "k_rope", "keys at positions VALUE too high", values=(3.0,), key="shift")
def _(e, right, value, l, tap, x, cos, sin):
    f, factor = e.frequencies(l, "q_rope")
    angles = (e.positions(l, "q_rope", len(x)) + value)[:, None, None] * f
    return right(l, tap, x, (np.cos(angles) * factor).astype(np.float32), (np.sin(angles) * factor).astype(np.float32))


@mistake("window-size/any", "window", "scores", "a window of VALUE keys", values=(4.0,), key="window")
def _(e, right, value, l, tap):
    return int(value)


@mistake("mask-shifted/future", "allowed", "scores", "VALUE keys of the future seen", values=(2.0,), key="by")
def _(e, right, value, l, tap, T, S):
    at, keys = np.arange(S - T, S)[:, None], np.arange(S)
    return right(l, tap, T, S) | (keys > at) & (keys <= at + int(value))


@mistake("score-scale/any", "scale", "scores", "the scale times VALUE", values=(1.13,), key="times")
def _(e, right, value, l, tap):
    return right(l, tap) * value


@mistake("score-softcap/any", "scores", "scores", "scores capped at VALUE", values=(7.3,), key="cap")
def _(e, right, value, l, tap, qk):
    x = right(l, tap, qk)
    return np.where(np.isinf(x), x, np.float32(value) * np.tanh(x / np.float32(value)))


@mistake("mask-fill/any", "scores", "scores", "hidden scores are VALUE", values=(-3.7,), key="fill")
def _(e, right, value, l, tap, qk):
    x = right(l, tap, qk)
    return np.where(np.isinf(x), np.float32(value), x)


@mistake("residual-scale/branch", "add", "h_attn h", "the branch times VALUE", values=(1.003,), key="factor")
def _(e, right, value, l, tap, h, branch):
    return right(l, tap, h, branch * np.float32(value))


@mistake("residual-scale/stream", "add", "h_attn h", "the stream times VALUE", values=(1.003,), key="stream_factor")
def _(e, right, value, l, tap, h, branch):
    return right(l, tap, h * np.float32(value), branch)


@mistake("embed-multiplier/any", "embed", "h0", "the embedding times VALUE", values=(2.13,), key="factor")
def _(e, right, value, l, tap, ids):
    return right(l, tap, ids) * np.float32(value)


@mistake("logit-scale/any", "linear", "logits", "the logits times VALUE", values=(1.07,), key="factor")
def _(e, right, value, l, tap, x):
    return right(l, tap, x) * np.float32(value)


@mistake("logit-softcap/any", "linear", "logits", "the logits capped at VALUE", values=(6.2,), key="cap")
def _(e, right, value, l, tap, x):
    cap = np.float32(value)
    return cap * np.tanh(right(l, tap, x) / cap)


def power(low, high):
    """A number between them, evenly by its logarithm, of four digits."""
    return lambda dice: float(f"{np.exp(dice.uniform(np.log(low), np.log(high))):.3e}")


def factor(dice):
    """A factor that is off by half a percent to half: up or down."""
    off = power(0.005, 0.5)(dice)
    return round(1 + off if dice.random() < 0.5 else 1 - off, 5)


def count(low, high):
    return lambda dice: float(dice.randint(low, high))


# What VALUE is drawn from, and at which sites: the ids' own, or one of these.
DRAWN = {
    "norm-eps/any": (power(1e-3, 0.5), ("attn_norm", "ffn_norm", "final_norm", "attn_norm,ffn_norm")),
    "norm-eps-outside/any": (power(1e-3, 0.5), ("", "attn_norm", "ffn_norm", "final_norm")),
    "rope-theta/any": (power(50, 5e6), ("",)),
    "rope-position/keys": (count(2, 9), ("",)),
    "window-size/any": (count(2, 9), ("",)),
    "mask-shifted/future": (count(2, 6), ("",)),
    "score-scale/any": (factor, ("",)),
    "score-softcap/any": (power(0.5, 20), ("",)),
    "mask-fill/any": (lambda dice: -power(1, 12)(dice), ("",)),
    "residual-scale/branch": (factor, ("", "h_attn", "h")),
    "residual-scale/stream": (factor, ("", "h_attn", "h")),
    "embed-multiplier/any": (power(0.1, 30), ("",)),
    "logit-scale/any": (factor, ("",)),
    "logit-softcap/any": (power(1, 30), ("",)),
}


def drawn(dice, id):
    """A mistake as engine_numpy's --mistake has it."""
    draw, sites = DRAWN[id]
    at = dice.choice(sites)
    return f"{id}={draw(dice)!r}" + (f"@{at}" if at else "")

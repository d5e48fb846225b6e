"""What mistakes of several kinds are made of: positions, masks, other inputs, other sums."""

import numpy as np

from scripts.engines.hooked_engine import d, F32, H, rounded, T, THETA
from scripts.forms.words import NO_SWAP, ROUNDED


def shifted(x, by, axis=0):
    """x at t - by; zeros before."""
    y = np.zeros_like(x)
    at = [slice(None)] * x.ndim
    of = list(at)
    at[axis], of[axis] = slice(by, None), slice(None, -by)
    y[tuple(at)] = x[tuple(of)]
    return y


def put(x, at, value):
    y = np.array(x, F32)
    y[at] = value(y[at]) if callable(value) else value
    return y


E_ = np.s_
POS = np.arange(T)
AGO = POS[:, None] - POS[None, :]     # t - s
SEEN = AGO >= 0
FREQ = THETA ** (-np.arange(0, d, 2) / d)


def masked(see):
    return lambda c: c.right(mask=see)


def scored(f):
    return lambda c: c.right(score=f)


COUNT = (POS[:, None] + 1).astype(F32)


def joined(x):
    return x.reshape(T, H * d)


# What has no short law, or two at once: nothing short may be said of it that is not so.
def noise(c, *shape, by=1.0):
    """The same in each layer's first use, another in each layer."""
    return (np.random.default_rng([7, 1 + (c.l or 0)]).standard_normal(shape) * by).astype(F32)


QWEN2 = ("qwen2",)
WITH_HEAD_NORMS = ("qwen3", "moe")
MOE = ("moe",)


def rows(*shape):
    """Positions, along the first of so many axes."""
    return POS.astype(F32).reshape(-1, *([1] * (len(shape) - 1)))


def late(x, begin, value):
    return put(x, E_[begin:], value)


LATER_LAYERS = [1, 2, 3]       # layers that have one before them
KEY = POS[None]
QUERY = POS[:, None]


def stream(c):
    """What the layer reads."""
    return c.e.memory["h0", None] if c.l == 0 else c.e.memory["h", c.l - 1]


def in_steps(x, steps, axis=-1):
    """x in multiples of its largest size over so many steps."""
    one = np.abs(x).max(axis, keepdims=True) / F32(steps)
    return np.round(x / np.where(one > 0, one, 1)) * one


def inputs(f):
    return lambda c: c.right(x=f(c.x))


def weights(f):
    return lambda c: c.right(w=f(c.w))


def four_digits(x):
    m, e = np.frexp(x)
    return np.ldexp(np.round(m * 16) / 16, e).astype(F32)


def bf16(x):
    return rounded(x, "bf16")


def interleaved(x):
    """Element i of each half of a head at 2i and 2i + 1: the order some files have for the rotation of neighbours."""
    return x.reshape(*x.shape[:-1], -1, 2, d // 2).swapaxes(-1, -2).reshape(x.shape)


def cut(x):
    """The upper half of each number's bits."""
    return (np.ascontiguousarray(x, F32).view(np.uint32) & np.uint32(0xFFFF0000)).view(F32)


def blocks(w, n=32):
    return w.reshape(len(w), -1, n)


def largest(w, n=32):
    return np.abs(blocks(w, n)).max(-1, keepdims=True)


def digits(x, n):
    """So many significant bits."""
    m, e = np.frexp(x)
    return np.ldexp(np.round(m * 2 ** n) / 2 ** n, e).astype(F32)


FOUR_BITS = ["(#7|#0.142857|#15|#14) & (" + ROUNDED + "|larg|max)", "(\\b4|four)[- ]bits?\\b|q4|int4"]
SIGNIFICANT = ["\\b(3|4|three|four)[- ](significant |mantissa |binary |fraction )?(bits?|digits?)\\b", "(mantissa|signif|relative) & (#3|#4|#0.0625|three|four)", "fp8|e4m3|float8"]
HALVED = ["#0.5|halved|half (of )?(what|the result|as|its|right|the value)", "#2 & divi"]


def each_has(what):
    """A factor that each of them has."""
    return f"(each|every|own|per).{{0,30}}({what}).{{0,40}}(factor|scale|multipl|times|divid)|(factor|scale|multipl|times|divid).{{0,40}}(each|every|own|per|differ).{{0,20}}({what})"


def before(x):
    """Each position has that of the position before, the first its own."""
    return np.concatenate([x[:1], x[:-1]])


def flat(x, row, width):
    """Rows of so many numbers, each so many after the one before in memory; 0 beyond its end."""
    memory = np.concatenate([np.ravel(x), np.zeros(len(x) * row + width, F32)])
    return np.stack([memory[row * t:row * t + width] for t in range(len(x))])


PROMPT = 12
# element 2i is that of i, 2i + 1 that of i + d/2: what a converter to GGUF does to Q and K of a llama
PERMUTED = np.arange(d).reshape(2, d // 2).T.ravel()
# query heads that stand for others: 1 for 0, and 3 for 2
FIRST_OF_GROUP = ["0, ?0, ?2, ?2", "(h ?// ?2 ?\\* ?2|2 ?\\*? ?\\(?(floor\\()?h ?//? ?2|h ?& ?~1|h ?- ?\\(?h ?(%|mod) ?2)",
                  f"first (query |head |query head )?(of|in) (its|the|each|every) (group|pair) & {NO_SWAP}",
                  f"head & (odd (query )?heads|second (query )?heads? (of|in) (its|the|each|every)|\\b1 (and|,|&) ?(head |query )*3\\b) & (even|before|previous|h ?- ?1|"
                  f"neighbour|first|0 (and|,|&) ?(head )?2\\b) & {NO_SWAP} & "
                  "^(?!.*(zero|lost|average|mean of|after|h ?\\+ ?1|next|key head))",
                  f"head & (\\b1\\b.{{0,40}}\\b0\\b.{{0,30}}\\b3\\b.{{0,40}}\\b2\\b|0\\b.{{0,25}}\\b(for|in place of|instead of|as|"
                  f"and) (head )?1\\b.{{0,40}}\\b2\\b.{{0,25}}\\b(for|in place of|instead of|as|and) (head )?3\\b) & "
                  f"{NO_SWAP} & ^(?!.*(zero|lost|average|key head|2 and 3|0, ?1|1, ?0|c ?/ ?2|normed as))"]


def never(words):
    """A part of an alternative: these words are not there."""
    return f"^(?![\\s\\S]*({words}))"


def four_bits(x):
    """Each vector along the last axis in 4 bits, its largest at 7."""
    step = np.abs(x).max(-1, keepdims=True) / F32(7)
    return np.round(x / np.where(step > 0, step, 1)) * step


def in_steps_of(x, most, steps, cut=np.rint):
    """Rounded to so many steps of the largest size on either side of zero."""
    step = most / F32(steps)
    step = np.where(step > 0, step, 1).astype(F32)
    return (cut(x / step) * step).astype(F32)


def largest_of_row(x):
    return np.abs(x).max(-1, keepdims=True)


DECODED = QUERY >= PROMPT

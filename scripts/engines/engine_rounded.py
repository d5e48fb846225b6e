#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["numpy>=1.26"]
# ///
"""A NumPy engine that rounds as others do: a K/V cache of 16 or 8 bits, quantised weights, quantised activations. Right, but for --times and --head.

    python scripts/engines/engine_rounded.py MODEL -o OUT --tokens 1,17,42 [--cache f16] [--kept] [--linear w4-g32] [--times layers.0.q=1.1]

--cache TYPE   keys and values are rounded to f16, bf16 or q8_0 (blocks of 32 along the head) as they are stored
--kept         k_rope and v are recorded as the cache holds them; else as they were computed
--linear KIND  a8-tensor   activations 8 bits, asymmetric, one scale a tensor; weights 8 bits, one scale a matrix (torch dynamic int8)
               a8-row      activations 8 bits, symmetric, one scale a row; weights 8 bits, one scale a row (CTranslate2)
               w8-row, w4-row, w8-gN, w4-gN   weights alone, symmetric, one scale a row or a group of N
               w8-aN, w4-aN                   the same with a minimum (MLX affine)
--times TAP=F  a mistake: the matrix of this tap is F times as large
--head TAP=H   a mistake: head H of this tap is 3 % too large

Shares the plain f32 operations of engine_numpy.py, and nothing with firstdiff's own code.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.engines.engine_numpy import Engine, LAYER_TAPS, dump_members, full_name, write_dump


def to_bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


def to_q8_0(x):
    out = x.copy()
    for first in range(0, x.shape[-1], 32):
        block = out[..., first:first + 32]
        step = np.abs(block).max(-1, keepdims=True) / np.float32(127)
        turned = np.where(step > 0, block / np.where(step > 0, step, 1), 0)
        block[...] = np.sign(turned) * np.floor(np.abs(turned) + 0.5) * step.astype(np.float16).astype(np.float32)
    return out


CACHES = {"f32": lambda x: x, "f16": lambda x: x.astype(np.float16).astype(np.float32), "bf16": to_bf16, "q8_0": to_q8_0}


def symmetric(x, bits, axis=-1):
    """Whole steps of the largest magnitude over 2^(bits-1) - 1."""
    top = 2 ** (bits - 1) - 1
    step = np.abs(x).max(axis, keepdims=True) / np.float32(top)
    return np.clip(np.rint(x / np.where(step > 0, step, 1)), -top - 1, top) * step


def affine(x, bits, axis=-1):
    """Whole steps of the range over 2^bits - 1, from the least value on."""
    low, high = x.min(axis, keepdims=True), x.max(axis, keepdims=True)
    step = (high - low) / np.float32(2 ** bits - 1)
    return np.clip(np.rint((x - low) / np.where(step > 0, step, 1)), 0, 2 ** bits - 1) * step + low


def groups(x, size, way):
    return np.concatenate([way(x[:, at:at + size]) for at in range(0, x.shape[1], size)], axis=1)


def whole_range(x):
    """8 bits without a sign over a whole tensor, 0 among the values: PyTorch's dynamic activations."""
    low, high = min(x.min(), 0), max(x.max(), 0)
    step = np.float32((high - low) / 255)
    zero = np.rint(-low / step)
    return ((np.clip(np.rint(x / step) + zero, 0, 255) - zero) * step).astype(np.float32)


def scheme(kind):
    """How weights and activations are rounded."""
    same = lambda x: x
    if kind == "none":
        return same, same
    if kind == "a8-tensor":
        return lambda w: symmetric(w, 8, None), whole_range
    if kind == "a8-row":
        return lambda w: symmetric(w, 8), lambda x: symmetric(x, 8)
    bits, form = int(kind[1]), kind[3:]
    if form == "row":
        return lambda w: symmetric(w, bits), same
    way, size = {"g": symmetric, "a": affine}[form[0]], int(form[1:])
    return lambda w: groups(w, size, lambda part: way(part, bits)), same


class Rounded(Engine):
    def __init__(self, folder, cache="f32", kept=False, linear="none", times=None, head=None):
        super().__init__(folder)
        self.store, self.kept, self.times, self.head = CACHES[cache], kept, dict(times or ()), dict(head or ())
        self.weights, self.activations = scheme(linear)

    def matrix(self, l, tap):
        return self.weights(super().matrix(l, tap)) * np.float32(self.times.get(full_name(l, tap), 1))

    def linear(self, l, tap, x):
        return self.activations(x) @ self.matrix(l, tap).T + self.bias(l, tap)

    def remember(self, l, tap, k, v):
        return super().remember(l, tap, self.store(k), self.store(v))

    def record(self, l, tap, x):
        x = np.asarray(x, np.float32)
        if (h := self.head.get(full_name(l, tap))) is not None:
            x = x.copy()
            (x if x.ndim == 3 else x.reshape(len(x), self.H, -1))[:, int(h)] *= np.float32(1.03)
        super().record(l, tap, self.store(x) if self.kept and tap in ("k_rope", "v") else x)
        return x


def run(folder, tokens, decode_tokens=(), declared=None, **how):
    engine = Rounded(folder, **how)
    with np.errstate(all="ignore"):
        taps = engine.run(tokens, decode_tokens)
    order = ["h0", *(full_name(l, t) for l in range(engine.L) for t in LAYER_TAPS), "final_norm", "logits"]
    taps = {key: taps[key] for key in sorted(taps, key=lambda k: (k[1], order.index(k[0])))}
    about = {"producer": {"name": "engine_rounded", "numpy": np.__version__}, "model": engine.name, "tokens": list(map(int, tokens)),
             "decode_tokens": list(map(int, decode_tokens)), "precision": "f32", "qk_rows": "half"}
    return taps, about | ({"cache": declared} if declared else {})


def main():
    ids = lambda text: [int(t) for t in text.split(",")]
    pair = lambda text: (text.split("=")[0], float(text.split("=")[1]))
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", metavar="MODEL")
    p.add_argument("-o", dest="out", required=True, metavar="OUT")
    p.add_argument("--tokens", type=ids, required=True)
    p.add_argument("--decode-tokens", type=ids, default=[])
    p.add_argument("--cache", choices=CACHES, default="f32")
    p.add_argument("--declared", choices=CACHES, help="what dump.json says of the cache; nothing without it")
    p.add_argument("--kept", action="store_true")
    p.add_argument("--linear", default="none")
    p.add_argument("--times", type=pair, action="append")
    p.add_argument("--head", type=pair, action="append")
    a = p.parse_args()
    write_dump(a.out, dump_members(*run(a.model, a.tokens, a.decode_tokens, a.declared, cache=a.cache, kept=a.kept, linear=a.linear, times=a.times, head=a.head)))


if __name__ == "__main__":
    main()

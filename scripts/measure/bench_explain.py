#!/usr/bin/env python3
"""bench_explain.py: what a wrong engine makes of a model of 1.1 billion parameters, for `cargo xtask bench explain`.

    python scripts/measure/bench_explain.py MODEL.gguf FOLDER        # the f32 file of bench_forward.py

Writes FOLDER/NAME/all (every tap) and FOLDER/NAME/logits (logits alone) for the right engine, for eleven mistakes of the catalogue and for one that no list has (slope). The
engine is plain NumPy and shares no code with firstdiff. Needs numpy and gguf.
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy as np

F32 = np.float32
TOKENS = [1, 450, 7483, 310, 3444, 338, 3681, 29889, 450, 7483, 310, 9556, 338, 5115]
H, K, EPS, THETA = 32, 4, 1e-5, 10000.0


class Weights:
    """Matrices as the file has them: rows are outputs."""

    def __init__(self, path):
        self.tensors = {t.name: t for t in gguf.GGUFReader(path).tensors}

    def __getitem__(self, name):
        tensor = self.tensors[f"{name}.weight"]
        return np.asarray(tensor.data).reshape([int(n) for n in reversed(tensor.shape)])


def rms(x, gain, eps=EPS, outside=False):
    mean = np.mean(x * x, -1, keepdims=True)
    root = np.sqrt(mean) + F32(eps) if outside else np.sqrt(mean + F32(eps))
    return x / root * gain


def rotated(x, theta, start=0):
    d = x.shape[-1]
    angle = (np.arange(x.shape[0])[:, None] + start) * theta ** (-np.arange(0, d, 2) / d)
    cos, sin = np.cos(angle).astype(F32)[:, None], np.sin(angle).astype(F32)[:, None]
    out = np.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    out[..., 1::2] = x[..., 1::2] * cos + x[..., 0::2] * sin
    return out


def halves(x, theta):
    """The same with elements i and i + d/2 as a pair."""
    d = x.shape[-1]
    order = np.arange(d).reshape(2, d // 2).T.ravel()
    out = np.empty_like(x)
    out[..., order] = rotated(x[..., order], theta)
    return out


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return F32(0.5) * x * (1 + np.tanh(F32(np.sqrt(2 / np.pi)) * (x + F32(0.044715) * x ** 3)))


def run(weights, layers, mistake, record):
    tokens = list(TOKENS)
    t = len(tokens)
    x = weights["token_embd"][tokens].copy()
    record("h0", x)
    hidden = np.triu(np.ones((t, t), bool), 1)
    if mistake == "window":
        hidden |= np.tril(np.ones((t, t), bool), -5)
    for n in range(layers):
        at, name = f"blk.{n}.", f"layers.{n}."
        wrong = {"skips a layer": n == 11}.get(mistake, False)
        if wrong:
            for tap in ("attn_norm", "h"):
                record(name + tap, x)
            continue
        eps = {"epsilon": 1e-2}.get(mistake, EPS)
        y = rms(x, weights[at + "attn_norm"], eps, mistake == "epsilon outside")
        record(name + "attn_norm", y)
        q, k, v = (y @ weights[at + f"attn_{w}"].T for w in "qkv")
        q, k, v = (z.reshape(t, -1, z.shape[1] // heads) for z, heads in ((q, H), (k, K), (v, K)))
        for tap, z in (("q", q), ("k", k), ("v", v)):
            record(name + tap, z)
        theta = {"theta": 500000.0}.get(mistake, THETA)
        turn = halves if mistake == "pairing" else rotated
        q, k = turn(q, theta), turn(k, theta)
        record(name + "q_rope", q)
        record(name + "k_rope", k)
        d = q.shape[-1]
        heads = np.arange(H) % K if mistake == "heads" else np.arange(H) // (H // K)
        scale = F32(1 / d) if mistake == "scale" else F32(1 / np.sqrt(d))
        scores = np.einsum("thd,shd->hts", q, k[:, heads]) * scale
        scores[:, hidden] = -np.inf
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        probs /= probs.sum(-1, keepdims=True)
        record(name + "probs", probs)
        context = np.einsum("hts,shd->thd", probs, v[:, heads])
        record(name + "context", context)
        out = context.reshape(t, -1) @ weights[at + "attn_output"].T
        record(name + "attn_out", out)
        h = x + out
        record(name + "h_attn", h)
        y = rms(h, weights[at + "ffn_norm"], eps, mistake == "epsilon outside")
        record(name + "ffn_norm", y)
        gate, up = y @ weights[at + "ffn_gate"].T, y @ weights[at + "ffn_up"].T
        record(name + "ffn_gate", gate)
        record(name + "ffn_up", up)
        if mistake == "gate and up":
            gate, up = up, gate
        act = (gelu(gate) if mistake == "activation" else silu(F32(1.3) * gate) / F32(1.3) if mistake == "slope" else silu(gate)) * up
        record(name + "ffn_act", act)
        out = act @ weights[at + "ffn_down"].T
        record(name + "ffn_out", out)
        x = (y if mistake == "residual of the norm" else h) + out
        record(name + "h", x)
    x = rms(x, np.ones_like(weights["output_norm"]) if mistake == "no final gain" else weights["output_norm"])
    record("final_norm", x)
    record("logits", x @ weights["output"].T)


MISTAKES = ["right", "pairing", "theta", "epsilon", "scale", "heads", "activation", "gate and up", "skips a layer", "residual of the norm", "no final gain", "window", "slope"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path)
    p.add_argument("folder", type=Path)
    p.add_argument("--layers", type=int, default=22)
    a = p.parse_args()
    weights = Weights(a.model)
    for mistake in MISTAKES:
        home = a.folder / mistake.replace(" ", "-")
        if (home / "logits" / "dump.json").exists():
            continue
        for kind in ("all", "logits"):
            (home / kind).mkdir(parents=True, exist_ok=True)

        def record(name, values):
            for kind in ("all", "logits"):
                if kind == "all" or name == "logits":
                    np.save(home / kind / f"{name}.npy", np.ascontiguousarray(values, F32))

        run(weights, a.layers, mistake, record)
        for kind in ("all", "logits"):
            (home / kind / "dump.json").write_text(json.dumps({"format": 1, "complete": True, "producer": {"name": "bench_explain.py"}, "tokens": TOKENS, "decode_tokens": [], "precision": "f32"}))


if __name__ == "__main__":
    main()

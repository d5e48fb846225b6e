"""Runs a Llama in tinygrad: its Tensor, RoPE in half pairs from a table, a K/V cache in f32 or f16.

Variants: f32; f16-cache: keys and values are kept in half precision, everything else in f32, as tinygrad's own examples do.
Writes one .npy a tensor and step (`layers.0.q.step1.npy`). tinygrad's CPU backend calls clang: where there is none, ziglang's.
Requirements: ../requirements/engines.txt
"""

import atexit
import math
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path

import numpy as np

from .model import Model, arguments, write_dump_json

MISTAKES = ["kv-cache-stale", "kv-cache-shift", "rope-position", "residual-omitted", "rope-omitted", "norm-omitted", "score-scale"]
WRONG = None

CLANG = """#!{python}
# clang for tinygrad: zig's, with the one flag it spells otherwise, and files where tinygrad uses pipes.
import subprocess, sys, tempfile, os
with tempfile.TemporaryDirectory() as folder:
    source, out = os.path.join(folder, "a.c"), os.path.join(folder, "a.o")
    open(source, "wb").write(sys.stdin.buffer.read())
    args = [a for a in sys.argv[1:] if not a.startswith("--target=")]
    args = args[:args.index("-")] if "-" in args else args
    subprocess.run([sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-freestanding-none", "-g0", "-fno-sanitize=undefined", *args, source, "-o", out], check=True)
    sys.stdout.buffer.write(open(out, "rb").read())
"""


def find_compiler():
    """A clang for tinygrad, which asks once a process: the machine's, else ziglang's from PyPI."""
    os.environ["DEV"] = "CPU"
    if shutil.which("clang") is None and "CC" not in os.environ:
        scratch = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, scratch)
        wrapper = Path(scratch) / "clang"
        wrapper.write_text(CLANG.format(python=sys.executable))
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IEXEC)
        os.environ["CC"] = str(wrapper)


class Engine:
    def __init__(self, m, half):
        from tinygrad import Tensor, dtypes

        self.m, self.Tensor, self.kept = m, Tensor, dtypes.half if half else dtypes.float
        self.weights = {name: Tensor(w) for name, w in m.weights.items()}
        frequencies, factor = m.frequencies()
        angle = np.arange(64, dtype=np.float32)[:, None] * frequencies
        self.cos, self.sin = Tensor((np.cos(angle) * factor).astype(np.float32)), Tensor((np.sin(angle) * factor).astype(np.float32))
        self.cache, self.past, self.taps = [None] * m.layers, 0, {}

    def tap(self, name, x):
        """Realised at once: tinygrad is lazy, and what is written must be what is used."""
        self.taps[name] = x.contiguous().realize()
        return self.taps[name]

    def norm(self, x, name):
        return x * (x.square().mean(-1, keepdim=True) + self.m.eps).rsqrt() * self.weights[f"{name}.weight"]

    def linear(self, x, name):
        y = x @ self.weights[f"{name}.weight"].transpose()
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def rotate(self, x):
        """x [T,H,d] by halves."""
        start = self.past - (1 if WRONG == "rope-position" and self.past else 0)
        cos, sin = (t[start:start + x.shape[0]].unsqueeze(1) for t in (self.cos, self.sin))
        a, b = x.chunk(2, dim=-1)
        return (a * cos - b * sin).cat(b * cos + a * sin, dim=-1)

    def attend(self, n, x):
        m, at, T = self.m, f"layers.{n}", x.shape[0]
        names = f"model.layers.{n}.self_attn"
        q, k, v = (self.tap(f"{at}.{name}", self.linear(x, f"{names}.{name}_proj").reshape(T, heads, m.d)) for name, heads in (("q", m.H), ("k", m.K), ("v", m.K)))
        if m.qk_norm:
            q, k = self.tap(f"{at}.q_norm", self.norm(q, f"{names}.q_norm")), self.tap(f"{at}.k_norm", self.norm(k, f"{names}.k_norm"))
        q, k = self.tap(f"{at}.q_rope", self.rotate(q)), self.tap(f"{at}.k_rope", k if WRONG == "rope-omitted" else self.rotate(k))
        k, v = k.cast(self.kept), v.cast(self.kept)
        if self.cache[n] is not None:
            old_k, old_v = self.cache[n]
            if WRONG == "kv-cache-stale":  # the newest key is not there yet: the one before it is read twice
                k = old_k[-1:]
            if WRONG == "kv-cache-shift":  # written one slot too early, over the last one
                old_k, old_v = old_k[:-1].cat(k, dim=0), old_v[:-1].cat(v, dim=0)
            k, v = old_k.cat(k, dim=0), old_v.cat(v, dim=0)
        self.cache[n] = (k.contiguous().realize(), v.contiguous().realize())
        k, v = (t.float().repeat_interleave(m.H // m.K, dim=1).transpose(0, 1) for t in self.cache[n])
        qk = self.tap(f"{at}.qk", q.transpose(0, 1) @ k.transpose(1, 2))
        future = self.Tensor(np.triu(np.full((T, self.past + T), -np.inf, np.float32), self.past + 1))
        scores = self.tap(f"{at}.scores", qk * (1 / math.sqrt(m.D) if WRONG == "score-scale" else 1 / math.sqrt(m.d)) + future)
        context = self.tap(f"{at}.probs", scores.softmax(-1)) @ v
        context = self.tap(f"{at}.context", context.transpose(0, 1).reshape(T, -1))
        return self.tap(f"{at}.attn_out", self.linear(context, f"{names}.o_proj"))

    def step(self, tokens):
        self.taps, m = {}, self.m
        h = self.tap("h0", self.weights["model.embed_tokens.weight"][self.Tensor(tokens)])
        for n in range(m.layers):
            at, names = f"layers.{n}", f"model.layers.{n}"
            x = self.tap(f"{at}.attn_norm", self.norm(h, f"{names}.input_layernorm"))
            h = self.tap(f"{at}.h_attn", h + self.attend(n, x))
            skipped = WRONG == "norm-omitted" and n == 1
            x = self.tap(f"{at}.ffn_norm", h.contiguous() if skipped else self.norm(h, f"{names}.post_attention_layernorm"))
            gate, up = self.tap(f"{at}.ffn_gate", self.linear(x, f"{names}.mlp.gate_proj")), self.tap(f"{at}.ffn_up", self.linear(x, f"{names}.mlp.up_proj"))
            out = self.tap(f"{at}.ffn_out", self.linear(self.tap(f"{at}.ffn_act", gate.silu() * up), f"{names}.mlp.down_proj"))
            h = self.tap(f"{at}.h", out.contiguous() if WRONG == "residual-omitted" and n == 0 else h + out)
        h = self.tap("final_norm", self.norm(h, "model.norm"))
        self.tap("logits", h @ self.weights[m.head].transpose())
        self.past += len(tokens)
        return self.taps


def main(argv=None):
    global WRONG
    args = arguments(__doc__, ["f32", "f16-cache"], MISTAKES, argv)
    WRONG = args.mistake
    find_compiler()
    engine = Engine(Model(args.model), args.variant == "f16-cache")
    args.out.mkdir(parents=True)
    for step, tokens in enumerate([args.tokens, *([token] for token in args.decode_tokens)]):
        for name, x in engine.step(tokens).items():
            np.save(args.out / (f"{name}.step{step}.npy" if step else f"{name}.npy"), x.numpy())
    write_dump_json(args.out, args, producer={"name": "tinygrad"}, precision="f32", cache="f16" if args.variant == "f16-cache" else "f32", qk_rows="half")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Runs Llama, Mistral, Qwen2, Qwen3 or MiniMind in plain NumPy, right or with a common mistake.

    engine_numpy.py MODEL -o OUT --tokens 1,17,42 [--decode-tokens 5,9] [--taps GLOB,..]
                    [--mistake ID[=VALUE][@TAP,..]].. [--layers 0,1]
    engine_numpy.py --list

MODEL is a Hugging Face folder; OUT a folder or a .npz, a dump of format 1. The engine is `Engine`, written from the papers,
f32 throughout, with a KV cache. --mistake replaces one of its operations by a wrong one (engine_mistakes.py has them all).

Shapes: T new tokens, S keys, D hidden, H heads, K key/value heads, d head dim, F feed-forward, V vocabulary.
Requirements: numpy==2.4.6
"""

import argparse
import fnmatch
import io
import json
import math
import sys
import zipfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

VERSION = "0.1.0"
MODELS = ("llama", "mistral", "qwen2", "qwen3", "minimind")
# The taps of a layer in the order they are computed; h0 comes before, final_norm and logits after all layers.
LAYER_TAPS = ("attn_norm q k v q_norm k_norm q_rope k_rope qk scores probs context attn_out h_attn "
              "ffn_norm ffn_gate ffn_up ffn_act ffn_out h").split()
NORMS = ("attn_norm", "q_norm", "k_norm", "ffn_norm", "final_norm")
LINEARS = ("q", "k", "v", "attn_out", "ffn_gate", "ffn_up", "ffn_out")
WEIGHTS = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "attn_out": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_out": "mlp.down_proj",
}


def read_safetensors(path):
    """name -> (dtype, shape, bytes): 8 bytes of length, a JSON header, then the data."""
    raw = path.read_bytes()
    data = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:data])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], raw[data + t["data_offsets"][0]:data + t["data_offsets"][1]])
            for name, t in header.items()}


def widen(dtype, raw):
    """Stored bytes as f32."""
    if dtype == "BF16":  # the upper half of an f32
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[dtype]).astype(np.float32)


def silu(x):
    return x / (1 + np.exp(-x))


class Engine:
    """Runs one model. Every operation is a method (layer, tap it serves, inputs): layer is None outside the layers."""

    def __init__(self, folder):
        folder = Path(folder)
        self.config = c = json.loads((folder / "config.json").read_text())
        self.name = c["model_type"]
        if self.name not in MODELS:
            raise SystemExit(f"{folder}: model_type {self.name!r} is none of {', '.join(MODELS)}")
        self.L, self.D, self.H = c["num_hidden_layers"], c["hidden_size"], c["num_attention_heads"]
        self.K = c.get("num_key_value_heads") or self.H
        self.d = c.get("head_dim") or self.D // self.H
        self.tensors = {}
        for file in sorted(folder.glob("*.safetensors")):
            self.tensors |= read_safetensors(file)
        self.qk_norm = "model.layers.0.self_attn.q_norm.weight" in self.tensors
        self.tied = "lm_head.weight" not in self.tensors or c.get("tie_word_embeddings", self.name == "minimind")

    # -- the run -------------------------------------------------------------------------------------------------------

    def run(self, tokens, decode_tokens=()):
        """Prefill, then one step for each decode token. Returns {(tap, step): array}."""
        for id in (*tokens, *decode_tokens):
            if not 0 <= id < self.config["vocab_size"]:
                raise SystemExit(f"token {id} is outside the vocabulary of {self.config['vocab_size']}")
        self.taps, self.start, self.cache = {}, 0, [None] * self.L
        for self.step, ids in enumerate([tokens, *([t] for t in decode_tokens)]):
            self.forward(np.array(ids))
            self.start += len(ids)
        return self.taps

    def forward(self, ids):
        h = self.record(None, "h0", self.embed(None, "h0", ids))                       # [T,D]
        for l in range(self.L):
            h = self.block(l, "h", h)
        x = self.record(None, "final_norm", self.norm(None, "final_norm", h))
        return self.record(None, "logits", self.linear(None, "logits", x))             # [T,V]

    def block(self, l, tap, h):
        x = self.record(l, "attn_norm", self.norm(l, "attn_norm", h))
        q, k, v = (self.record(l, t, self.split_heads(l, t, self.linear(l, t, x))) for t in "qkv")
        cos, sin = self.angles(l, "q_rope")
        q = self.place(l, "q", q, cos, sin)                                            # [T,H,d]
        k = self.place(l, "k", k, cos, sin)                                            # [T,K,d]
        keys, values = self.remember(l, "qk", k, v)                                    # [S,K,d]
        qk = self.record(l, "qk", self.products(l, "qk", q, keys))                     # [H,T,S]
        scores = self.record(l, "scores", self.scores(l, "scores", qk))
        probs = self.record(l, "probs", self.softmax(l, "probs", scores))
        context = self.record(l, "context", self.merge_heads(l, "context", self.mix(l, "context", probs, values)))
        attn_out = self.record(l, "attn_out", self.linear(l, "attn_out", context))
        h_attn = self.record(l, "h_attn", self.add(l, "h_attn", h, attn_out))
        x = self.record(l, "ffn_norm", self.norm(l, "ffn_norm", h_attn))
        gate, up = (self.record(l, t, self.linear(l, t, x)) for t in ("ffn_gate", "ffn_up"))
        act = self.record(l, "ffn_act", self.gated(l, "ffn_act", gate, up))            # [T,F]
        out = self.record(l, "ffn_out", self.linear(l, "ffn_out", act))
        return self.record(l, tap, self.add(l, tap, h_attn, out))

    def record(self, l, tap, x):
        self.taps[full_name(l, tap), self.step] = x
        return x

    def seen(self, l, tap):
        """What this step recorded under a tap; the layer's input is `input`."""
        if tap == "input":
            l, tap = (None, "h0") if l == 0 else (l - 1, "h")
        return self.taps[full_name(l, tap), self.step]

    # -- embedding, norms, linear layers -------------------------------------------------------------------------------

    def tensor(self, l, tap, name):
        dtype, shape, raw = self.tensors[name]
        return widen(dtype, raw).reshape(shape)

    def embed(self, l, tap, ids):
        return self.tensor(l, tap, "model.embed_tokens.weight")[ids]

    def norm(self, l, tap, x):
        """RMSNorm over the last axis: x / sqrt(mean(x^2) + eps) * gain."""
        return x / np.sqrt(self.mean_square(l, tap, x) + self.eps(l, tap)) * self.gain(l, tap)

    def mean_square(self, l, tap, x):
        return np.mean(x * x, axis=-1, keepdims=True)

    def eps(self, l, tap):
        return self.config["rms_norm_eps"]

    def gain(self, l, tap):
        return self.tensor(l, tap, "model.norm.weight" if l is None else f"model.layers.{l}.{WEIGHTS[tap]}.weight")

    def linear(self, l, tap, x):
        """y = x W^T + b, W [out,in]."""
        return x @ self.matrix(l, tap).T + self.bias(l, tap)

    def matrix(self, l, tap):
        if tap == "logits":
            return self.tensor(l, tap, "model.embed_tokens.weight" if self.tied else "lm_head.weight")
        return self.tensor(l, tap, f"model.layers.{l}.{WEIGHTS[tap]}.weight")

    def bias(self, l, tap):
        name = f"model.layers.{l}.{WEIGHTS.get(tap)}.bias"
        return self.tensor(l, tap, name) if name in self.tensors else np.float32(0)

    # -- rotary positions ----------------------------------------------------------------------------------------------

    def place(self, l, tap, x, cos, sin):
        """QK-norm where the model has it, then RoPE."""
        if self.qk_norm:
            x = self.record(l, tap + "_norm", self.norm(l, tap + "_norm", x))
        return self.record(l, tap + "_rope", self.rotate(l, tap + "_rope", x, cos, sin))

    def positions(self, l, tap, count):
        return np.arange(self.start, self.start + count)

    def theta(self, l, tap):
        return self.config.get("rope_theta", 10000.0)

    def powers(self, l, tap):
        """Unscaled frequencies theta^(-2i/d) of the d/2 pairs."""
        return self.theta(l, tap) ** (-np.arange(0, self.d, 2) / self.d)

    def scaling(self, l, tap):
        return self.config.get("rope_scaling") or {}

    def frequencies(self, l, tap):
        """Frequencies [d/2] after the config's scaling, and the factor on cos and sin."""
        f, s = self.powers(l, tap), self.scaling(l, tap)
        kind = s.get("rope_type", s.get("type", "default"))
        if kind == "default":
            return f, 1.0
        if kind == "linear":
            return f / s["factor"], 1.0
        length = s.get("original_max_position_embeddings") or self.config["max_position_embeddings"]
        if kind == "llama3":  # long waves are slowed, short ones kept, those between blended
            turns = length * f / (2 * math.pi)
            keep = (turns - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
            keep = np.clip(keep, 0, 1)
            return f * keep + f / s["factor"] * (1 - keep), 1.0
        if kind == "yarn":  # a ramp over the pairs between beta_fast and beta_slow turns
            def pair(turns):
                return self.d * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(self.theta(l, tap)))
            low = max(math.floor(pair(s.get("beta_fast") or 32)), 0)
            high = min(math.ceil(pair(s.get("beta_slow") or 1)), self.d - 1)
            slow = np.clip((np.arange(self.d // 2) - low) / max(high - low, 0.001), 0, 1)
            factor = s.get("attention_factor") or 0.1 * math.log(s["factor"]) + 1
            return f * (1 - slow) + f / s["factor"] * slow, factor
        raise SystemExit(f"rope_scaling: {kind!r} is not known here")

    def angles(self, l, tap):
        """cos and sin [T,1,d/2]."""
        f, factor = self.frequencies(l, tap)
        count = len(self.seen(l, "input"))
        a = self.positions(l, tap, count)[:, None, None] * f
        return (np.cos(a) * factor).astype(np.float32), (np.sin(a) * factor).astype(np.float32)

    def rotate(self, l, tap, x, cos, sin):
        """RoPE on pairs (i, i + d/2)."""
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    # -- attention -----------------------------------------------------------------------------------------------------

    def split_heads(self, l, tap, x):
        return x.reshape(len(x), -1, self.d)                                           # [T,H,d]

    def remember(self, l, tap, k, v):
        """Append to the layer's cache; all keys and values so far."""
        if self.cache[l] is not None:
            k, v = (np.concatenate([old, new]) for old, new in zip(self.cache[l], (k, v)))
        self.cache[l] = k, v
        return k, v

    def kv_heads(self, l, tap):
        """The key/value head of each head: H/K neighbours share one."""
        return np.arange(self.H) // (self.H // self.K)

    def products(self, l, tap, q, keys):
        return q.transpose(1, 0, 2) @ keys[:, self.kv_heads(l, tap)].transpose(1, 2, 0)

    def scale(self, l, tap):
        return 1 / math.sqrt(self.d)

    def window(self, l, tap):
        c = self.config
        if self.name == "mistral":
            return c.get("sliding_window")
        return c.get("sliding_window") if c.get("use_sliding_window") and l >= c["max_window_layers"] else None

    def allowed(self, l, tap, T, S):
        """Which keys [T,S] a query sees: none of the future, none a window or more behind."""
        behind = np.arange(S - T, S)[:, None] - np.arange(S)
        return (behind >= 0) & (behind < (self.window(l, tap) or S))

    def scores(self, l, tap, qk):
        x = qk * np.float32(self.scale(l, tap))
        return np.where(self.allowed(l, tap, *qk.shape[1:]), x, np.float32(-np.inf))

    def softmax(self, l, tap, x, axis=-1):
        e = np.exp(x - x.max(axis=axis, keepdims=True))
        return e / e.sum(axis=axis, keepdims=True)

    def mix(self, l, tap, probs, values):
        return probs @ values[:, self.kv_heads(l, tap)].transpose(1, 0, 2)             # [H,T,d]

    def merge_heads(self, l, tap, x):
        return x.transpose(1, 0, 2).reshape(x.shape[1], -1)                            # [T,H*d]

    # -- feed-forward and residual stream ------------------------------------------------------------------------------

    def activation(self, l, tap, x):
        return silu(x)

    def gated(self, l, tap, gate, up):
        return self.activation(l, tap, gate) * up

    def add(self, l, tap, h, branch):
        return h + branch


def full_name(l, tap):
    return tap if l is None else f"layers.{l}.{tap}"


# -- the dump ------------------------------------------------------------------------------------------------------------


def dump_members(taps, about):
    """name -> bytes of a dump of format 1: dump.json and one .npy a tap."""
    entries, members = [], {}
    for (tap, step), x in taps.items():
        file = f"{tap}.step{step}.npy" if step else f"{tap}.npy"
        dtype = {"float64": "f64", "float32": "f32", "float16": "f16"}[x.dtype.name]
        entries.append({"tap": tap, "step": step, "file": file, "shape": list(x.shape), "dtype": dtype})
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.ascontiguousarray(x))
        members[file] = buffer.getvalue()
    lines = ",\n  ".join(json.dumps(e) for e in entries)
    head = ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in {"format": 1, **about}.items())
    return {"dump.json": f'{{\n{head},\n "taps": [\n  {lines}\n ]\n}}\n'.encode(), **members}


def write_dump(out, members):
    """A folder, or a .npz if `out` ends so. The same members give the same bytes."""
    out = Path(out)
    if out.suffix == ".npz":
        with zipfile.ZipFile(out, "w") as z:
            for name, data in sorted(members.items()):
                z.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)
        return
    out.mkdir(parents=True, exist_ok=True)
    for name, data in sorted(members.items(), key=lambda m: m[0] == "dump.json"):  # dump.json last: a crash leaves none
        (out / name).write_bytes(data)


def run(folder, tokens, decode_tokens=(), mistakes=(), globs=("*",)):
    """The taps that match, and what dump.json says about the run."""
    engine = Engine(folder)
    for m in mistakes:
        m.apply(engine)
    with np.errstate(all="ignore"):
        taps = engine.run(tokens, decode_tokens)
    order = ["h0", *(full_name(l, t) for l in range(engine.L) for t in LAYER_TAPS), "final_norm", "logits"]
    taps = {key: taps[key] for key in sorted(taps, key=lambda k: (k[1], order.index(k[0])))
            if any(fnmatch.fnmatchcase(key[0], g) for g in globs)}
    about = {"producer": {"name": "engine_numpy", "version": VERSION, "numpy": np.__version__}, "model": engine.name,
             "tokens": list(map(int, tokens)), "decode_tokens": list(map(int, decode_tokens)), "precision": "f32", "qk_rows": "half"}
    return taps, about


def main():
    ids = lambda text: [int(t) for t in text.split(",")]
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", nargs="?", metavar="MODEL")
    p.add_argument("-o", dest="out", metavar="OUT")
    p.add_argument("--tokens", type=ids)
    p.add_argument("--decode-tokens", type=ids, default=[])
    p.add_argument("--taps", default="*", help="globs, separated by commas")
    p.add_argument("--mistake", action="append", default=[], metavar="ID[=VALUE][@TAP,..]")
    p.add_argument("--layers", type=ids, help="the layers that are wrong; all without it")
    p.add_argument("--list", action="store_true", help="show every mistake and end")
    a = p.parse_args()
    from scripts.engines.engine_mistakes import MISTAKES, Chosen
    if a.list:
        for id, m in MISTAKES.items():
            print(f"{id:22} {m.says}" + (f"  [{', '.join(map(str, m.values))}]" if m.values else ""))
        return
    if not (a.model and a.out and a.tokens):
        p.error("MODEL, -o and --tokens are needed")
    mistakes = [Chosen.parse(m, a.layers) for m in a.mistake]
    taps, about = run(a.model, a.tokens, a.decode_tokens, mistakes, a.taps.split(","))
    write_dump(a.out, dump_members(taps, about))
    for m in mistakes:
        print("{}: must first show at {}, step {}".format(m.id, *m.first_tap(Engine(a.model))))


if __name__ == "__main__":
    main()

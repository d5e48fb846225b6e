#!/usr/bin/env python3
"""law_forms.py: mistakes that no catalogue lists, for `firstdiff explain` to measure. A decoder in NumPy with a hook at each operation, and the mistakes.

    python scripts/forms/law_forms.py                  # list them
    python scripts/forms/law_forms.py --make DIR FORM  # write DIR/model and DIR/dump; FORM `right` is the right engine

The engine (f32; bf16 and f16 round weights and each result, as PyTorch does; q8_0 and q4_0 multiply blocks of 8 and 4 bits by activations of 8 bits, as ggml
does, from a GGUF that llama.cpp has quantised) shares no code with firstdiff. A form replaces one operation, the *site*: the tap
where it first shows. Its expectation is a list of alternatives, of which one must be found in the words of the answer. An alternative is parts joined by
` & `, in any order: a regular expression (case ignored), or `#0.5`, a number within 1 % of it (`1/2`, `50 %` and `sqrt(1/4)` are read as that too).
"""

import argparse
import json
import math
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

F32 = np.float32
T, D, H, K, d, F, V, LAYERS = 20, 64, 4, 2, 16, 96, 256, 4
THETA, EPS = 10000.0, 1e-5
EXPERTS, CHOSEN = 6, 2
NORMS = ("attn_norm", "q_norm", "k_norm", "ffn_norm", "final_norm")
# Block types, and their numbers in llama.h.
GGML = {"q8_0": 7, "q4_0": 2}


# ---- arithmetic

def to_bf16(x):
    bits = np.ascontiguousarray(x, F32).view(np.uint32).astype(np.uint64)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF).astype(np.uint16)


def rounded(x, arith):
    x = np.asarray(x, F32)
    if arith == "f16":
        return x.astype(np.float16).astype(F32)
    if arith == "bf16":
        return (to_bf16(x).astype(np.uint32) << 16).view(F32)
    return x


def to_q8_0(x):
    """Blocks of 32 along the last axis, in 127ths of their largest, the step in f16: what ggml makes of activations before a product with blocks."""
    blocks = np.asarray(x, F32).reshape(*x.shape[:-1], -1, 32)
    step = np.abs(blocks).max(-1, keepdims=True) / F32(127)
    turned = blocks * np.where(step > 0, 1 / np.where(step > 0, step, 1), 0).astype(F32)
    return (np.sign(turned) * np.floor(np.abs(turned) + F32(0.5)) * step.astype(np.float16).astype(F32)).reshape(x.shape)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def rms(x, axis=-1):
    return np.sqrt(np.mean(x * x, axis, keepdims=True) + F32(EPS))


def softmax(s, axis=-1):
    e = np.exp(s - s.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


# ---- the model

def make_model(folder, arch, arith="f32", seed=0):
    """A folder of random weights as Hugging Face has it, with block types a GGUF in it; and the weights as the engine reads them."""
    if arith in GGML:
        return quantised(folder, make_model(folder, arch, "f32", seed), arith)
    rng = np.random.default_rng(1000 + seed)
    normal = lambda *shape, by=1.0: (rng.standard_normal(shape) * by / math.sqrt(shape[-1])).astype(F32)
    gain = lambda n: np.clip(1 + 0.3 * rng.standard_normal(n), 0.2, 2).astype(F32)
    w = {"model.embed_tokens.weight": normal(V, D, by=6), "model.norm.weight": gain(D), "lm_head.weight": normal(V, D, by=1.5)}
    for l in range(LAYERS):
        p = f"model.layers.{l}."
        for name, shape in {"q_proj": (H * d, D), "k_proj": (K * d, D), "v_proj": (K * d, D), "o_proj": (D, H * d)}.items():
            w[f"{p}self_attn.{name}.weight"] = normal(*shape, by=1.3)
            if arch == "qwen2" and name != "o_proj":
                w[f"{p}self_attn.{name}.bias"] = (0.5 * rng.standard_normal(shape[0])).astype(F32)
        for expert in ([f"experts.{e}." for e in range(EXPERTS)] if arch == "moe" else [""]):
            for name, shape in {"gate_proj": (F, D), "up_proj": (F, D), "down_proj": (D, F)}.items():
                w[f"{p}mlp.{expert}{name}.weight"] = normal(*shape, by=1.3)
        if arch == "moe":
            w[f"{p}mlp.gate.weight"] = normal(EXPERTS, D, by=1.5)
        if arch in ("qwen3", "moe"):
            w[f"{p}self_attn.q_norm.weight"], w[f"{p}self_attn.k_norm.weight"] = gain(d), gain(d)
        w[f"{p}input_layernorm.weight"], w[f"{p}post_attention_layernorm.weight"] = gain(D), gain(D)
    w = {name: rounded(x, arith) for name, x in w.items()}
    kind = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "moe": "Qwen3Moe"}[arch]
    config = {"model_type": {"moe": "qwen3_moe"}.get(arch, arch), "architectures": [f"{kind}ForCausalLM"], "hidden_size": D, "intermediate_size": F,
              "num_hidden_layers": LAYERS, "num_attention_heads": H, "num_key_value_heads": K, "head_dim": d, "vocab_size": V,
              "max_position_embeddings": 512, "rms_norm_eps": EPS, "rope_theta": THETA, "hidden_act": "silu", "tie_word_embeddings": False,
              "attention_bias": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}[arith]}
    if arch == "moe":
        config |= {"num_experts": EXPERTS, "num_experts_per_tok": CHOSEN, "moe_intermediate_size": F, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    header, data = {}, b""
    for name, x in w.items():
        raw = to_bf16(x).tobytes() if arith == "bf16" else x.astype(np.float16 if arith == "f16" else F32).tobytes()
        header[name] = {"dtype": arith.upper(), "shape": list(x.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    return Model(arch, arith, w)


def quantised(folder, model, arith):
    """model.gguf beside it, quantised by llama.cpp, and what its blocks are worth."""
    import gguf

    whole, path = folder / "f32.gguf", folder / "model.gguf"
    code = ("import ctypes, sys; from llama_cpp import llama_cpp as api; p = api.llama_model_quantize_default_params(); p.ftype = int(sys.argv[3]); "
            "sys.exit(api.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), ctypes.byref(p)))")
    for command in ([Path(__file__).parent.parent / "convert/hf_to_gguf.py", folder, whole, "--dtype", "f32"], ["-c", code, whole, path, GGML[arith]]):
        subprocess.run([sys.executable, *map(str, command)], check=True, capture_output=True)
    values = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    stored = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight"}
    stored |= {f"model.layers.{l}.{name}.weight": f"blk.{l}.{short}.weight" for l in range(LAYERS) for name, short in names.items()}
    for name, short in stored.items():
        w = values[short].astype(F32)
        if model.arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            # rows of neighbours, as this arch has them in a GGUF, back to halves
            w = w.reshape(-1, d // 2, 2, D).swapaxes(1, 2).reshape(w.shape)
        model.w[name] = w
    return Model(model.arch, arith, model.w)


class Model:
    def __init__(self, arch, arith, weights):
        self.arch, self.arith, self.w = arch, arith, weights

    def __call__(self, name, l=None):
        return self.w.get(name if l is None else f"model.layers.{l}.{name}")


def make_tokens(seed=0):
    ids = [int(x) for x in np.random.default_rng(2000 + seed).integers(3, V, T)]
    ids[9] = ids[4]
    return [1] + ids[1:]


# ---- the operations, right; each takes its inputs by name

def op_embed(e, ids, table):
    return table[np.asarray(ids)]


def op_norm(e, x, w, eps):
    return e.r(x / np.sqrt(np.mean(x * x, -1, keepdims=True) + F32(eps))) * w


def op_linear(e, x, w, b, heads):
    y = e.q(x) @ w.T
    y = y if b is None else y + b
    return y.reshape(len(x), heads, -1) if heads else y


def op_rope(e, x, pos, freq):
    """pos [T] or [T,heads]; freq [d/2] or [heads,d/2]"""
    pos = np.asarray(pos, F32)
    return turn(e, x, (pos if pos.ndim == 2 else pos[:, None])[..., None] * np.asarray(freq, F32))


def turn(e, x, angle, cos=None, sin=None):
    cos = e.r(np.cos(angle.astype(F32))) if cos is None else cos
    sin = e.r(np.sin(angle.astype(F32))) if sin is None else sin
    a, b = x[..., :d // 2], x[..., d // 2:]
    return np.concatenate([e.r(a * cos) - e.r(b * sin), e.r(b * cos) + e.r(a * sin)], -1)


def op_probs(e, q, k, scale, mask, score=None, soft=None, kv=None):
    """mask [T,S] or [H,T,S], true where seen. score: what is done to the scaled scores; soft: what stands for the softmax, of masked scores."""
    kv = np.arange(H) // (H // K) if kv is None else np.asarray(kv)
    s = e.r(e.r(np.einsum("thd,shd->hts", q, k[:, kv])) * F32(scale))
    s = s if score is None else score(s).astype(F32)
    s = np.where(mask, s, F32(-np.inf))
    return (soft or softmax)(s)


def op_context(e, p, v):
    return np.einsum("hts,shd->thd", p, v[:, np.arange(H) // (H // K)]).reshape(T, -1)


def op_act(e, gate, up, f=silu):
    return e.r(f(gate)) * up


def op_add(e, x, y):
    return x + y


def op_choose(e, logits):
    p = softmax(logits)
    top = np.argsort(-p, -1, kind="stable")[:, :CHOSEN]
    w = np.take_along_axis(p, top, -1)
    return top, w / w.sum(-1, keepdims=True)


class Call:
    """One operation as it is carried out: its inputs are attributes, `right(..)` is its result, with other inputs where they are given."""

    def __init__(self, e, site, l, op, inputs):
        self.e, self.site, self.l, self.op, self.inputs = e, site, l, op, inputs
        self.__dict__.update(inputs)

    def right(self, **other):
        return self.op(self.e, **(self.inputs | other))


class Engine:
    def __init__(self, model, form=None):
        self.m, self.form, self.taps, self.memory = model, form, {}, {}

    def r(self, x):
        return rounded(x, self.m.arith)

    def q(self, x):
        """What a product with a weight takes of its input."""
        return to_q8_0(x) if self.m.arith in GGML else x

    def at(self, site, l, op, **inputs):
        if op is op_linear:
            inputs["x"] = self.q(inputs["x"])
        call = Call(self, site, l, op, inputs)
        form = self.form
        wrong = form is not None and site in form.sites and (form.layers is None or l in form.layers)
        y = form.how(call) if wrong else call.right()
        return self.note(site, l, y)

    def note(self, site, l, y):
        y = np.ascontiguousarray(self.r(np.asarray(y, F32)))
        self.taps[site if l is None else f"layers.{l}.{site}"] = y
        self.memory[site, l] = y
        return y

    def run(self, ids):
        self.ids = ids
        m, norms = self.m, self.m.arch in ("qwen3", "moe")
        with np.errstate(all="ignore"):
            x = self.at("h0", None, op_embed, ids=ids, table=m("model.embed_tokens.weight"))
            pos, freq = np.arange(T), THETA ** (-np.arange(0, d, 2) / d)
            mask = np.tril(np.ones((T, T), bool))
            for l in range(LAYERS):
                w = lambda name: m(name + ".weight", l)
                n = self.at("attn_norm", l, op_norm, x=x, w=w("input_layernorm"), eps=EPS)
                q, k, v = (self.at(s, l, op_linear, x=n, w=w(f"self_attn.{s}_proj"), b=m(f"self_attn.{s}_proj.bias", l), heads=h) for s, h in (("q", H), ("k", K), ("v", K)))
                if norms:
                    q, k = (self.at(f"{s}_norm", l, op_norm, x=y, w=w(f"self_attn.{s}_norm"), eps=EPS) for s, y in (("q", q), ("k", k)))
                q, k = (self.at(f"{s}_rope", l, op_rope, x=y, pos=pos, freq=freq) for s, y in (("q", q), ("k", k)))
                p = self.at("probs", l, op_probs, q=q, k=k, scale=1 / math.sqrt(d), mask=mask)
                c = self.at("context", l, op_context, p=p, v=v)
                a = self.at("attn_out", l, op_linear, x=c, w=w("self_attn.o_proj"), b=None, heads=None)
                x = self.at("h_attn", l, op_add, x=x, y=a)
                n = self.at("ffn_norm", l, op_norm, x=x, w=w("post_attention_layernorm"), eps=EPS)
                y = self.experts(l, n) if m.arch == "moe" else self.feed(l, n)
                x = self.at("h", l, op_add, x=x, y=y)
            x = self.at("final_norm", None, op_norm, x=x, w=m("model.norm.weight"), eps=EPS)
            self.at("logits", None, op_linear, x=x, w=m("lm_head.weight"), b=None, heads=None)
        return self.taps

    def feed(self, l, n):
        w = lambda name: self.m(f"mlp.{name}_proj.weight", l)
        gate, up = (self.at(f"ffn_{s}", l, op_linear, x=n, w=w(s), b=None, heads=None) for s in ("gate", "up"))
        act = self.at("ffn_act", l, op_act, gate=gate, up=up)
        return self.at("ffn_out", l, op_linear, x=act, w=w("down"), b=None, heads=None)

    def experts(self, l, n):
        logits = self.at("router_logits", l, op_linear, x=n, w=self.m("mlp.gate.weight", l), b=None, heads=None)
        form = self.form
        wrong = form is not None and "router_weights" in form.sites and (form.layers is None or l in form.layers)
        top, weights = form.how(Call(self, "router_weights", l, op_choose, {"logits": logits})) if wrong else op_choose(self, logits)
        self.taps[f"layers.{l}.router_topk"] = top.astype(F32)
        weights = self.note("router_weights", l, weights)
        sums = np.zeros((T, D), F32)
        each = np.zeros((T, CHOSEN, D), F32)
        for x in range(EXPERTS):
            rows, slots = np.nonzero(top == x)
            if len(rows):
                w = lambda name: self.m(f"mlp.experts.{x}.{name}_proj.weight", l)
                act = self.r(op_act(self, self.r(n[rows] @ w("gate").T), self.r(n[rows] @ w("up").T)))
                each[rows, slots] = self.r(act @ w("down").T)
        for s in range(CHOSEN):
            sums = self.r(sums + self.r(each[:, s] * weights[:, s:s + 1]))
        return self.at("ffn_out", l, lambda e, each, weights, n: sums, each=each, weights=weights, n=n)


def write_dump(folder, taps, model, ids):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    entries = []
    for tap, x in taps.items():
        whole = tap.endswith("router_topk")
        arith = "f32" if whole or model.arith in GGML else model.arith
        stored = to_bf16(x).view("V2") if arith == "bf16" else x.astype({"f16": np.float16}.get(arith, F32))
        np.save(folder / f"{tap}.npy", stored)
        entries.append({"tap": tap, "step": 0, "file": f"{tap}.npy", "shape": list(x.shape), "dtype": arith})
    arch = {"moe": "qwen3_moe"}.get(model.arch, model.arch)
    stated = {"precision": "ggml", "cache": "f32", "qk_rows": "half"} if model.arith in GGML else {"precision": model.arith, "cache": model.arith}
    (folder / "dump.json").write_text(json.dumps({"format": 1, "complete": True, "producer": {"name": "law_forms.py", "version": "1"}, "architecture": arch,
                                                  "tokens": [int(i) for i in ids], "taps": entries} | stated))


# ---- the mistakes

class Form:
    def __init__(self, name, sites, truth, expected, how, layers=None, archs=None):
        self.name, self.truth, self.how, self.layers = name, truth, how, layers
        self.sites = (sites,) if isinstance(sites, str) else tuple(sites)
        self.expected = [expected] if isinstance(expected, str) else list(expected)
        self.archs = archs or ("llama", "qwen2", "qwen3", "moe")
        # of a mixture the feed-forward has other operations
        if set(self.sites) & {"ffn_gate", "ffn_up", "ffn_act", "ffn_out"} and archs is None:
            self.archs = ("llama", "qwen2", "qwen3")
        if layers is None or 0 in layers:
            self.first = self.sites[0] if self.sites[0] in ("h0", "final_norm", "logits") else f"layers.0.{self.sites[0]}"
        else:
            self.first = f"layers.{min(layers)}.{self.sites[0]}"


class Together(Form):
    """Several mistakes of different operations in one engine."""

    def __init__(self, forms):
        self.forms, self.name, self.layers = forms, " + ".join(f.name for f in forms), None
        self.sites = tuple(site for f in forms for site in f.sites)

    def how(self, c):
        for f in self.forms:
            if c.site in f.sites and (f.layers is None or c.l in f.layers):
                return f.how(c)
        return c.right()


def listed():
    """An empty list of forms, and what adds one to it: each name once."""
    forms = []

    def add(name, sites, truth, expected, how, **more):
        assert all(other.name != name for other in forms), name
        forms.append(Form(name, sites, truth, expected, how, **more))

    return forms, add


FORMS, form = listed()


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


def over(c, denominator):
    """A norm by another denominator."""
    return c.e.r(c.x / denominator) * c.w


# norms
form("norm_mean_abs", "attn_norm", "divided by mean(|x|), not the root mean square", ["mean size", "mean.{0,12}(abs|\\|x)", "abs.{0,20}mean", "L1|norm of order 1|power & #1"],
     lambda c: over(c, np.mean(np.abs(c.x), -1, keepdims=True) + EPS))
form("norm_max_abs", "ffn_norm", "divided by max(|x|)", "max|largest|infinity", lambda c: over(c, np.abs(c.x).max(-1, keepdims=True)))
form("norm_cubic", "ffn_norm", "divided by (mean |x|^3)^(1/3)", ["#3 & (power|order|norm|mean|\\^)", "third root & cubed"], lambda c: over(c, np.mean(np.abs(c.x) ** 3, -1, keepdims=True) ** (1 / 3)))
form("norm_gain_root", "attn_norm", "the gain's square root is applied", ["(gain|weight|w).{0,12}\\^ ?0?\\.5", "(root|sqrt).{0,20}(gain|weight)", "(gain|weight).{0,30}(root|power) & #0.5|root"], lambda c: c.right(w=np.sqrt(c.w)))
form("norm_gain_half", "attn_norm", "the gain is (1 + w) / 2", "(gain|weight) & #0.5", lambda c: c.right(w=(1 + c.w) / 2))
form("norm_gain_exp", "ffn_norm", "the gain is exp(w)", ["exp & (gain|weight)", "gain.{0,6} is e\\^w"], lambda c: c.right(w=np.exp(c.w)))
form("norm_no_root", "attn_norm", "divided by the mean square, without the root", ["(no|without|not).{0,30}root", "(mean square|ms|rms).{0,20}\\^ ?-?1\\b", "mean square|rms.{0,10}(\\^ ?2|squared)"], lambda c: over(c, np.mean(c.x * c.x, -1, keepdims=True) + EPS))
form("norm_fourth_root", "ffn_norm", "divided by the fourth root of the mean square", ["right divisor & power & #0.5", "fourth|quarter", "#0.25|#-0.25", "(rms|root mean square).{0,30}(sqrt|root|0\\.5)"], lambda c: over(c, (np.mean(c.x * c.x, -1, keepdims=True) + EPS) ** 0.25))
form("norm_gain_before", "attn_norm", "the gain is applied to x before the mean square: xw / rms(xw)", ["(gain|weight).{0,40}before", "rms\\(.{0,12}(gain|weight|w)", "(mean square|rms|root mean).{0,40}(gain|weight)"], lambda c: c.right(x=c.x * c.w, w=np.ones_like(c.w)))
form("norm_std", "ffn_norm", "divided by the standard deviation, the mean not taken off", ["standard deviation|std|variance|var\\("], lambda c: over(c, np.sqrt(c.x.var(-1, keepdims=True) + EPS)))
form("norm_floor", "attn_norm", "the mean square is at least 0.5", ["#0.5 & (max|least|floor|below|clamp)", "#0.7071 & least"], lambda c: over(c, np.sqrt(np.maximum(np.mean(c.x * c.x, -1, keepdims=True), 0.5) + EPS)))
form("norm_add_outside", "ffn_norm", "0.1 is added to the root, outside", ["#0.1 & (outside|root|denominator|rms|added)"], lambda c: over(c, np.sqrt(np.mean(c.x * c.x, -1, keepdims=True)) + F32(0.1)))
form("norm_plus_const", "ffn_norm", "0.1 is added to the result", "#0.1 & (add|plus|\\+|constant|offset)", lambda c: c.right() + F32(0.1))
form("norm_gain_reversed", "attn_norm", "the gain is read from its end", "(gain|weight) & revers|backward|from its end|D ?- ?1 ?-", lambda c: c.right(w=c.w[::-1]))
form("norm_gain_rolled", "attn_norm", "the gain of the next channel is applied", "(gain|weight|channel) & (next|shift|roll|i ?\\+ ?1|off by|#1)", lambda c: c.right(w=np.roll(c.w, -1)))
form("norm_half_stats", "attn_norm", "the mean square is taken over the first 32 channels alone", "#32|half|#31", lambda c: over(c, np.sqrt(np.mean(c.x[:, :32] ** 2, -1, keepdims=True) + EPS)))
form("norm_groups", "ffn_norm", "the mean square is taken in groups of 16 channels", "#16 & (group|block|each|channel)", lambda c: ((c.x.reshape(T, 4, 16) / rms(c.x.reshape(T, 4, 16))).reshape(T, D)) * c.w)
form("norm_clamped", "attn_norm", "the result is clamped to +-1.5", "#1.5 & (clamp|clip|limit|between|min|max)", lambda c: np.clip(c.right(), -1.5, 1.5))
form("norm_prev_row", "ffn_norm", "each position is divided by the root mean square of the one before", "(previous|before|t ?- ?1|earlier|#-1)", lambda c: over(c, np.concatenate([rms(c.x)[:1], rms(c.x)[:-1]])))
form("norm_running", "attn_norm", "the mean square is taken over all positions up to this one", ["(running|cumulat|up to|positions? (0|so far)|all positions|positions before)", "rows so far"], lambda c: over(c, np.sqrt(np.cumsum(np.mean(c.x * c.x, -1, keepdims=True), 0) / (POS[:, None] + 1) + EPS)))
form("norm_tail_raw", "attn_norm", "the last 4 channels are not divided", ["(#60|#4|#61) & (channel|last|tail|\\.\\.)"], lambda c: put(c.right(), E_[:, 60:], (c.x * c.w)[:, 60:]))
form("norm_tail_gainless", "ffn_norm", "the last 4 channels have no gain", ["(#60|#4|#61) & (gain|weight|channel)"], lambda c: c.right(w=put(c.w, E_[60:], 1)))
form("norm_scaled", "ffn_norm", "the result is multiplied by 0.9", "#0.9 & (factor|multipl|scale|times|\\*)|\\b0\\.9\\b", lambda c: c.right() * F32(0.9))
form("norm_quake", "attn_norm", "the inverse root is a fast approximation of one Newton step", "approx|newton|inverse root|table", lambda c: c.x * quake(np.mean(c.x * c.x, -1, keepdims=True) + F32(EPS)) * c.w)
form("final_norm_last_row", "final_norm", "all rows are divided by the last position's root mean square", "(last|#19|#20)", lambda c: over(c, rms(c.x)[-1:]))
form("norm_eps_by_layer", "attn_norm", "epsilon is 0.02 * (layer + 1)", ["eps & (layer|#0.02)", "#0.02|#0.04|#0.06|#0.08 & (root|eps)"], lambda c: c.right(eps=0.02 * (c.l + 1)))
form("norm_odd_sign", "ffn_norm", "odd channels have the other sign", "(odd|every second|alternat|2i ?\\+ ?1|#2) & (sign|negat|-1|minus)", lambda c: put(c.right(), E_[:, 1::2], lambda y: -y))
form("final_norm_layer_gain_sum", "final_norm", "the gain has 0.25 added", "#0.25 & (gain|weight)", lambda c: c.right(w=c.w + F32(0.25)))
form("norm_row0", "attn_norm", "position 0 is not normed", "(position|row|token).{0,12}\\b0\\b|first (position|row|token)", lambda c: put(c.right(), E_[0], c.x[0]))
form("norm_from_16", "ffn_norm", "positions 16 and later are not normed: another tile", "#16", lambda c: put(c.right(), E_[16:], (c.x * c.w)[16:]))
form("norm_one_layer_eps", "ffn_norm", "in layer 2 the mean is added back: y + mean(x)", "mean", lambda c: c.right() + c.x.mean(-1, keepdims=True), layers=[2])
form("norm_two_gains", "attn_norm", "the gain is half this norm's and half the feed-forward norm's", "#0.5 & (ffn_norm|post_attention|gain|weight)", lambda c: c.right(w=(c.w + c.e.m("post_attention_layernorm.weight", c.l)) / 2))


def quake(x):
    x = np.asarray(x, F32)
    y = (np.int32(0x5F3759DF) - (x.view(np.int32) >> 1)).view(F32)
    return y * (F32(1.5) - F32(0.5) * x * y * y)


# rotation: of both where nothing else is said
ROPES = ("q_rope", "k_rope")


def angles(c, f):
    """The rotation with the angles that f makes of position and frequency [T,1,1], [d/2]."""
    return turn(c.e, c.x, np.broadcast_to(np.asarray(f(POS[:, None, None].astype(np.float64), FREQ), np.float64), (T, 1, d // 2)))


form("rope_angle_plus", ROPES, "0.1 is added to each angle", "#0.1", lambda c: angles(c, lambda p, f: p * f + 0.1))
form("rope_position_squared", ROPES, "positions are squared", "squar|\\^ ?2|\\*\\* ?2|p\\*p|quadratic|power", lambda c: c.right(pos=POS ** 2))
form("rope_position_reversed", ROPES, "positions count down: 19 - p", "(revers|count.{0,10}down|backward|descend|#19|#-1)", lambda c: c.right(pos=T - 1 - POS))
form("rope_position_min", ROPES, "positions stop at 8", "#8 & (min|stop|clamp|limit|at most|largest|stay|all|later)", lambda c: c.right(pos=np.minimum(POS, 8)))
form("rope_position_mod", ROPES, "positions begin again every 8", "#8 & (mod|%|again|restart|repeat|period|every|block)", lambda c: c.right(pos=POS % 8))
form("rope_position_halved_int", ROPES, "positions are halved and rounded down", ["#2|#0.5|half & (floor|down|integer|//|pairs|round|whole|two|each)"], lambda c: c.right(pos=POS // 2))
form("rope_position_jump", ROPES, "positions from 10 on are 5 too high", ["#10 & #5", "#5 & second half of the positions"], lambda c: c.right(pos=POS + 5 * (POS >= 10)))
form("rope_k_position_by_head", "k_rope", "head 1 of the keys is one position further", "head & #1", lambda c: c.right(pos=POS[:, None] + np.arange(K)))
form("rope_theta_one_head", "q_rope", "head 1 has base 500", "#500 & head.{0,6}1|#500", lambda c: c.right(freq=np.stack([FREQ, 500.0 ** (-np.arange(0, d, 2) / d), FREQ, FREQ])))
form("rope_head_left", "q_rope", "head 0 is not rotated", "head.{0,8}\\b0\\b|first head", lambda c: put(c.right(), E_[:, 0], c.x[:, 0]))
form("rope_pair_left", ROPES, "pair 3 (elements 3 and 11) is not rotated", "#3 & (pair|frequenc|element|channel|#11)", lambda c: angles(c, lambda p, f: p * np.where(np.arange(8) == 3, 0, f)))
form("rope_freq_reversed", ROPES, "frequencies are in reverse order", "revers|backward|descend|from the last|other order|d/2 ?- ?1", lambda c: c.right(freq=FREQ[::-1]))
form("rope_freq_odd", ROPES, "the exponent is (2i+1)/d", ["#0.5623", "(2i ?\\+ ?1|i ?\\+ ?(0\\.5|1/2)|half a)", "factor|all & #0.5623"], lambda c: c.right(freq=THETA ** (-(np.arange(0, d, 2) + 1) / d)))
form("rope_freq_next", ROPES, "the exponent is 2(i+1)/d", ["#0.3162|1/sqrt\\(10\\)", "(i ?\\+ ?1|next|#2)", "#0.3162"], lambda c: c.right(freq=THETA ** (-(np.arange(0, d, 2) + 2) / d)))
form("rope_freq_harmonic", ROPES, "frequency i is 1/(1+i)", "1/\\((1 ?\\+ ?i|i ?\\+ ?1)|harmonic|frequenc", lambda c: c.right(freq=1 / (1 + np.arange(8))))
form("rope_sine_scaled", ROPES, "the sine has a factor of 0.9", "sin & #0.9", lambda c: turn(c.e, c.x, POS[:, None, None] * FREQ, sin=F32(0.9) * np.sin(POS[:, None, None] * FREQ).astype(F32)))
form("rope_no_sine", ROPES, "only the cosine is applied", ["sin.{0,20}(0|miss|omit|absent|without|not|no)", "(only|alone).{0,20}cos|cos.{0,20}(only|alone)"], lambda c: turn(c.e, c.x, POS[:, None, None] * FREQ, sin=F32(0)))
form("rope_sine_sign_half", ROPES, "both halves add the sine: a cos + b sin, b cos + a sin", "sin|sign|operation neg", lambda c: turn_both(c))
form("rope_sin_cos_swapped", ROPES, "sine and cosine are exchanged", ["(sin.{0,20}cos|cos.{0,20}sin).{0,30}(swap|exchang)|(swap|exchang).{0,30}(sin|cos)", "#1.5708|pi ?/ ?2|90"], lambda c: turn(c.e, c.x, None, cos=np.sin(POS[:, None, None] * FREQ).astype(F32), sin=np.cos(POS[:, None, None] * FREQ).astype(F32)))
form("rope_second_half_next", ROPES, "the second half of a head takes the next frequency", "(second|half|next|i ?\\+ ?1|frequenc)", lambda c: turn_halves(c))
form("rope_two_heads", "q_rope", "heads 2 and 3 are not rotated", ["#2 & #3", "second half of the heads & not|nothing"], lambda c: put(c.right(), E_[:, 2:], c.x[:, 2:]))
form("rope_out_swapped", ROPES, "the halves of a head are exchanged after the rotation", "halves|swap|exchang|#8|roll", lambda c: np.roll(c.right(), 8, -1))
form("rope_angle_pi", ROPES, "angles are taken modulo pi", "(mod|%|wrap) & (pi|#3.1416)", lambda c: angles(c, lambda p, f: (p * f) % math.pi))
form("rope_angle_table", ROPES, "angles are rounded down to 1/64 of a turn", "#64|#0.0982", lambda c: angles(c, lambda p, f: np.floor(p * f / (2 * math.pi / 64)) * (2 * math.pi / 64)))
form("rope_freq_cap", ROPES, "frequencies are at most 0.5", ["#0.5 & (frequenc|cap|min|most|clamp|pair|limit)"], lambda c: c.right(freq=np.minimum(FREQ, 0.5)))
form("rope_from_4", ROPES, "positions 0 to 3 are not rotated", "#4|#3 & (position|not rotated|unrotated)", lambda c: c.right(pos=np.where(POS < 4, 0, POS)))
form("rope_even_other_way", ROPES, "odd positions turn the other way", "(odd|every second|alternat|even) & (direction|other way|sign|negat|minus|-)", lambda c: c.right(pos=np.where(POS % 2 == 1, -POS, POS)))
form("rope_pairs_mirrored", ROPES, "element i is paired with d-1-i", "(mirror|d ?- ?1 ?- ?i|15 ?- ?i|revers|outer|from the end|#15)", lambda c: mirror(turn(c.e, mirror(c.x), POS[:, None, None] * FREQ)))
form("rope_pairs_quarter", ROPES, "elements i and i+4 of each block of 8 are paired", ["#4 & (pair|apart|block|distance)", "d/4 & half"], lambda c: quarter(turn(c.e, quarter(c.x, True), POS[:, None, None] * FREQ)))
form("rope_low_quarter", ROPES, "frequencies 4 to 7 are divided by 4", "#4|#0.25 & (second half|4 to 7|from 4|#7)", lambda c: c.right(freq=FREQ * np.where(np.arange(8) >= 4, 0.25, 1)))
form("rope_odd_layers_theta", ROPES, "layer 3 has base 700", "#700", lambda c: c.right(freq=700.0 ** (-np.arange(0, d, 2) / d)), layers=[3])
form("rope_scaled_by_position", "q_rope", "q is multiplied by 1 + 0.02 p after the rotation", "#0.02 & (position|p\\b|t\\b)", lambda c: c.right() * (1 + F32(0.02) * POS[:, None, None]).astype(F32))
form("rope_k_clamped", "k_rope", "keys are clamped to +-1 after the rotation", "#1 & (clamp|clip|limit|between|min|max)", lambda c: np.clip(c.right(), -1, 1))
form("rope_1d_by_pair", ROPES, "odd pairs are at half the position", "(odd|every second|alternat|pair) & #0.5|half|#2", lambda c: c.right(freq=FREQ * np.where(np.arange(8) % 2 == 1, 0.5, 1)))


def turn_both(c):
    angle = (POS[:, None, None] * FREQ).astype(F32)
    a, b = c.x[..., :8], c.x[..., 8:]
    return np.concatenate([a * np.cos(angle) + b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def turn_halves(c):
    one, two = ((POS[:, None, None] * f).astype(F32) for f in (FREQ, np.roll(FREQ, -1)))
    a, b = c.x[..., :8], c.x[..., 8:]
    return np.concatenate([a * np.cos(one) - b * np.sin(one), b * np.cos(two) + a * np.sin(two)], -1)


def mirror(x):
    return np.concatenate([x[..., :8], x[..., :7:-1]], -1)


def quarter(x, there=False):
    """Elements i, i+4 of two blocks of 8 to the halves of the head, and back."""
    y = x.reshape(*x.shape[:-1], 2, 2, 4)
    return y.swapaxes(-2, -3).reshape(x.shape)


# masks
def masked(see):
    return lambda c: c.right(mask=see)


form("mask_blocks", "probs", "a token sees its own block of 8 tokens alone", "#8 & (block|chunk)", masked(SEEN & (POS[:, None] // 8 == POS[None] // 8)))
form("mask_sinks", "probs", "keys 0 and 1 and the last 6 are seen", "#6 & (#2|#1|first|sink)", masked(SEEN & ((AGO < 6) | (POS[None] < 2))))
form("mask_key_3", "probs", "key 3 is hidden from later tokens", "#3 & (key|hidden|not seen|unseen|without)", masked(SEEN & ((POS[None] != 3) | (AGO == 0))))
form("mask_dilated", "probs", "only every second key is seen, counted back from the token", "(every (second|other|2)|even|stride|dilat|step|multiple|distance) & .", masked(SEEN & (AGO % 2 == 0)))
form("mask_head_open", "probs", "head 2 sees all keys", "head.{0,8}2", lambda c: c.right(mask=np.stack([SEEN, SEEN, SEEN | True, SEEN])))
form("mask_head_windows", "probs", "head h has a window of 4(h+1) keys", "window & head", lambda c: c.right(mask=np.stack([SEEN & (AGO < 4 * (h + 1)) for h in range(H)])))
form("mask_prefix", "probs", "the first 6 tokens see each other", "(#6|#5) & (first|prefix|see|key)", masked(SEEN | ((POS[:, None] < 6) & (POS[None] < 6))))
form("mask_block_end", "probs", "a token sees all keys up to the end of its block of 4", "#4 & (block|chunk|end|multiple|group)", masked(POS[:, None] // 4 >= POS[None] // 4))
form("mask_late_rows", "probs", "tokens from 12 on do not see keys 0 to 4", "#12 & (#5|#4)", masked(SEEN & ~((POS[:, None] >= 12) & (POS[None] < 5))))
form("mask_first_16_keys", "probs", "only the first 16 keys are seen", "#16|#15 & (key|first|beyond|hidden|from)", masked(SEEN & (POS[None] < 16)))
form("mask_odd_layers", "probs", "layers 1 and 3 have a window of 5 keys with key 0 always seen", ["#5 & (first|0|sink|always)", "#5 & from position 1"], masked(SEEN & ((AGO < 5) | (POS[None] == 0))), layers=[1, 3])
form("mask_fourth_keys", "probs", "every fourth key (3, 7, ..) is hidden from later tokens", ["#4|#3 & #7", "4th from position 3"], masked(SEEN & ((POS[None] % 4 != 3) | (AGO == 0))))
form("mask_gap", "probs", "the two keys before the token itself are hidden", "#2|(1 (and|to) 2) & (before|ago|distance|hidden|back)", masked(SEEN & (AGO != 1) & (AGO != 2)))
form("mask_two_rows", "probs", "token 7 sees itself alone", "#7 & (itself|alone|own|only|diagonal|window)", masked(SEEN & ((POS[:, None] != 7) | (AGO == 0))))
form("mask_window_shifted", "probs", "a token sees the keys from 2 to 7 before it, and itself never but for the first two", "#2 & #7", masked(np.where(POS[:, None] < 2, SEEN, (AGO >= 2) & (AGO <= 7))))
form("mask_blocks_local_global", "probs", "heads 0 and 1 see their block of 4 alone, the others all", "#4 & (head|block)", lambda c: c.right(mask=np.stack([SEEN & (POS[:, None] // 4 == POS[None] // 4)] * 2 + [SEEN] * 2)))
form("mask_two_ahead_heads", "probs", "heads 1 and 3 see one key further", ["head & #1 & #3", "odd heads & #1"], lambda c: c.right(mask=np.stack([AGO >= 0, AGO >= -1, AGO >= 0, AGO >= -1])))
form("mask_block_previous", "probs", "a token sees its own block of 5 and the one before", "#5 & (block|chunk)", masked(SEEN & (POS[:, None] // 5 - POS[None] // 5 <= 1)))


# scores
def scored(f):
    return lambda c: c.right(score=f)


def by_head(values):
    return np.asarray(values, F32)[:, None, None]


form("score_alibi", "probs", "0.1 is taken off for each key of distance", "#0.1|#-0.1 & (distance|position|alibi|slope|t ?- ?s|per key|each key|key)", scored(lambda s: s - 0.1 * AGO))
form("score_alibi_heads", "probs", "ALiBi of slopes 1/4, 1/16, 1/64, 1/256", "#-0.25|#0.25 & #-0.0625|#0.0625 & distance", scored(lambda s: s - by_head([0.25, 0.0625, 0.015625, 0.00390625]) * AGO))
form("score_diagonal", "probs", "1 is added to the score of a token with itself", ["(distance|diagonal|itself|self) & #1|#-1"], scored(lambda s: s + (AGO == 0)))
form("score_key_0", "probs", "2 is added to the scores of key 0", ["#2 & (key.{0,6}0|first key)", "#-2 & all keys but the first"], scored(lambda s: s + 2 * (POS[None] == 0)))
form("score_log_scale", "probs", "scores of token t are multiplied by log2(t + 2)", "(log|position|token)", scored(lambda s: s * np.log2(POS[:, None] + 2)))
form("score_head_scale", "probs", "the scale of head 1 is twice as large", "head.{0,8}1 & (#2|#0.5|twice|double)", scored(lambda s: s * by_head([1, 2, 1, 1])))
form("score_clamped", "probs", "scores are clamped to +-1", "#1 & (clamp|clip|limit|between|min|max|most)", scored(lambda s: np.clip(s, -1, 1)))
form("score_relu", "probs", "negative scores are 0", "relu|max\\(|negative|below|floor|least", scored(lambda s: np.maximum(s, 0)))
form("score_abs", "probs", "the absolute value of the scores is taken", ["abs|\\|.{1,8}\\||magnitude|without.{0,10}sign", "size"], scored(np.abs))
form("score_square", "probs", "scores are squared", "squar|\\^ ?2|quadratic|power", scored(lambda s: s * s))
form("score_layer_scale", "probs", "scores are divided by layer + 1", ["layer", "#0.125|#0.08333|#0.0625|1/sqrt\\(D\\)"], lambda c: c.right(scale=c.scale / (c.l + 1)), layers=[1, 2, 3])
form("score_cosine", "probs", "q and k are divided by their length, and the scale is 10", ["#10 & (length|cosine|unit|norm)", "length & one & #10"], lambda c: c.right(q=c.q / np.linalg.norm(c.q, axis=-1, keepdims=True), k=c.k / np.linalg.norm(c.k, axis=-1, keepdims=True), scale=10))
form("score_distance", "probs", "minus half the squared distance of q and k, scaled", "distance|\\|q ?- ?k|k\\^ ?2|squared.{0,20}k|length", lambda c: c.right(score=lambda s: s - F32(0.125) * np.sum(c.k[:, np.arange(H) // 2] ** 2, -1).T[:, None, :]))
form("score_q_before", "probs", "the query of the token before is used", "(query|queries|q\\b|row).{0,40}(before|previous|t ?- ?1|earlier)|(before|previous|t ?- ?1).{0,30}(query|q\\b)", lambda c: c.right(q=np.concatenate([c.q[:1], c.q[:-1]])))
form("score_q_heads_reversed", "probs", "query heads are taken from the last to the first", ["head & (revers|3 ?- ?h|last to|backward|#3 & #0|H ?- ?1)", "quer & heads in reverse"], lambda c: c.right(q=c.q[:, ::-1]))
form("score_kv_map", "probs", "heads 0, 1, 2 read key head 0, head 3 reads 1", "head & (#2|0, ?0, ?0, ?1)", lambda c: c.right(kv=[0, 0, 0, 1]))
form("score_half_dot", "probs", "products run over the first 8 elements of a head alone", "#8|half|#7", lambda c: c.right(q=put(c.q, E_[..., 8:], 0)))
form("score_dot_15", "probs", "products leave out the last element of a head", "#15 | last|#15", lambda c: c.right(q=put(c.q, E_[..., 15:], 0)))
form("score_log_n", "probs", "from position 8 on scores have a factor log(t+1)/log(8)", "log|position & #8|log", scored(lambda s: s * np.maximum(1, np.log(POS[:, None] + 1) / math.log(8))))
form("score_log_distance", "probs", "0.5 log(1 + distance) is taken off", "log & #0.5|#-0.5", scored(lambda s: s - 0.5 * np.log1p(np.maximum(AGO, 0))))
form("score_of_v", "probs", "products are with v instead of k", "\\bv\\b", lambda c: c.right(k=c.e.memory["v", c.l]))
form("score_transposed", "probs", "scores are of query s with key t: transposed", "transpos|exchang|swap|s, ?t|key t", scored(lambda s: s.swapaxes(-1, -2)))
form("score_offset_later", "probs", "keys of even positions have 0.7 added", ["#0.7 & (even|every|second|2)", "#-0.7 & odd keys"], scored(lambda s: s + 0.7 * (POS[None] % 2 == 0)))
form("score_k_halves", "probs", "the halves of k are exchanged", "halves|#8|swap|exchang|roll", lambda c: c.right(k=np.roll(c.k, 8, -1)))
form("score_k_unrotated_head", "probs", "key head 1 is read as it was before the rotation", ["(head.{0,8}1|#2|#3) & (rot|rope|before|\\bk\\b|k_norm)", "keys are (k|k_norm)\\b & second half of the heads"], lambda c: c.right(k=np.stack([c.k[:, 0], c.e.memory.get(("k_norm", c.l), c.e.memory["k", c.l])[:, 1]], 1)))
form("score_cube_cap", "probs", "scores go through 3 arctan(s / 3)", "arctan|atan|#3", scored(lambda s: 3 * np.arctan(s / 3)))
form("score_bias_row", "probs", "scores of tokens 10 and later are multiplied by 0.5", ["#10 & #0.5", "#0.5 & second half of the queries"], scored(lambda s: np.where(POS[:, None] >= 10, 0.5 * s, s)))
form("score_key_norm", "probs", "scores are divided by the length of the key, times 3", "(length|norm|\\|k) & .", lambda c: c.right(k=3 * c.k / np.linalg.norm(c.k, axis=-1, keepdims=True)))


# denominators
def soft(f):
    """Of e = exp(s - max)"""
    return lambda c: c.right(soft=lambda s: f(np.exp(s - s.max(-1, keepdims=True))))


COUNT = (POS[:, None] + 1).astype(F32)
form("denominator_sink_2", "probs", "the denominator has a term exp(2)", ["#2|#7.389 & (sink|denominator|term|extra|added)", "#7.389"], lambda c: c.right(soft=lambda s: np.exp(s) / (np.exp(s).sum(-1, keepdims=True) + math.exp(2))))
form("denominator_plus", "probs", "0.1 is added to the denominator, after the maximum was taken off", "#0.1 & (denominator|sum|added|maximum)", soft(lambda e: e / (e.sum(-1, keepdims=True) + F32(0.1))))
form("denominator_none", "probs", "nothing is divided: exp(s - max)", "(not|no|without|un).{0,25}(divid|denominator|normali)|max", soft(lambda e: e))
form("denominator_none_raw", "probs", "exp(s), not divided by the sum", "(not|no|without|un).{0,25}(divid|denominator|normali)|exp\\(s", lambda c: c.right(soft=np.exp))
form("denominator_l2", "probs", "divided by the root of the sum of squares", "squares|L2|length|euclid", soft(lambda e: e / np.sqrt((e * e).sum(-1, keepdims=True))))
form("denominator_without_self", "probs", "the denominator leaves the token itself out, from token 1", "(itself|own|self|diagonal|last|newest) & (denominator|sum|divid|left out|without)", soft(lambda e: e / (e.sum(-1, keepdims=True) - np.where((AGO == 0) & (POS[:, None] > 0), e, 0).sum(-1, keepdims=True))))
form("denominator_without_first", "probs", "the denominator leaves key 0 out, from token 1", "(key.{0,5}0|first) & (denominator|sum|divid|left out|without)", soft(lambda e: e / (e.sum(-1, keepdims=True) - np.where(POS[:, None] > 0, e[..., :1], 0))))
form("denominator_count", "probs", "exp(s) is divided by the number of keys", "(number|count|t ?\\+ ?1|how many)", lambda c: c.right(soft=lambda s: np.exp(s) / COUNT))
form("softmax_sigmoid", "probs", "a sigmoid stands for the softmax", "sigmoid|logistic", lambda c: c.right(soft=lambda s: sigmoid(s)))
form("softmax_relu2", "probs", "relu(s)^2 over the number of keys stands for the softmax", "relu|squar|max\\(", lambda c: c.right(soft=lambda s: np.where(np.isfinite(s), np.maximum(s, 0) ** 2, 0) / COUNT))
form("softmax_uniform", "probs", "all keys have the same weight", "uniform|equal|same|1/\\(?(t|n)|mean|average|scale.{0,20}\\b0\\b", lambda c: c.right(soft=lambda s: np.where(np.isfinite(s), 1 / COUNT, 0)))
form("probs_threshold", "probs", "weights below 0.05 are set to 0", "#0.05 & (below|less|small|threshold|under)", lambda c: (lambda p: np.where(p < 0.05, 0, p))(c.right()))
form("probs_top4", "probs", "the 4 largest scores alone take part", ["#4 & (top|largest|highest|best)", "#4 & likeliest"], lambda c: c.right(soft=lambda s: softmax(np.where(s >= np.sort(s, -1)[..., -4:-3], s, -np.inf))))
form("probs_dropout_scale", "probs", "weights are divided by 0.9", "#1.1111|#0.9", lambda c: c.right() / F32(0.9))
form("probs_head_0", "probs", "all heads have the weights of head 0", "head.{0,8}\\b0\\b|first head|one head", lambda c: np.repeat(c.right()[:1], H, 0))
form("probs_smoothed", "probs", "a tenth of the weight is spread evenly over the keys", "#0.1|#0.9", lambda c: F32(0.9) * c.right() + np.where(SEEN, F32(0.1) / COUNT, 0))
form("softmax_blocks_no_rescale", "probs", "blocks of 8 keys have their own maximum, and are not brought to a common one", "#8 & (block|chunk|tile|maxim)", lambda c: c.right(soft=flash))
form("softmax_blocks_each", "probs", "the softmax runs in blocks of 8 keys, divided by how many there are", "#8 & (block|chunk|tile)", lambda c: c.right(soft=blocks_each))
form("probs_row_0", "probs", "the weights of token 0 are all zero", ["(position|token|row|query).{0,8}\\b0\\b|first (token|row|position|query)", "quer.{0,20}from 1 on"], lambda c: put(c.right(), E_[:, 0], 0))
form("probs_odd_heads_scaled", "probs", "heads 1 and 3 have weights of half the size", ["head & (#0.5|half) & #1 & #3", "#0.5 & odd heads"], lambda c: c.right() * by_head([1, 0.5, 1, 0.5]))
form("probs_capped", "probs", "weights are at most 0.5", "#0.5 & (most|cap|clamp|clip|min|limit|above|larger)", lambda c: np.minimum(c.right(), F32(0.5)))
form("softmax_plus_one_rows", "probs", "the denominator has a 1 more (not minus the maximum) in head 0 alone", ["head.{0,8}\\b0\\b & (#1|zero|sink|term|denominator)", "#1 & first head"], lambda c: c.right(soft=lambda s: np.exp(s) / (np.exp(s).sum(-1, keepdims=True) + by_head([1, 0, 0, 0]))))
form("probs_shifted_key", "probs", "weights are written one key late, the last is lost", "(key|column|s) & (#1|next|late|shift|before)", lambda c: shifted(c.right(), 1, 2))


def flash(s):
    e = np.zeros_like(s)
    for b in range(0, T, 8):
        part = s[..., b:b + 8]
        top = part.max(-1, keepdims=True)
        e[..., b:b + 8] = np.exp(part - np.where(np.isfinite(top), top, 0))
    return e / e.sum(-1, keepdims=True)


def blocks_each(s):
    p = np.zeros_like(s)
    for b in range(0, T, 8):
        part = s[..., b:b + 8]
        top = part.max(-1, keepdims=True)
        e = np.exp(part - np.where(np.isfinite(top), top, 0))
        total = e.sum(-1, keepdims=True)
        p[..., b:b + 8] = e / np.where(total > 0, total, 1)
    return p / (POS[:, None] // 8 + 1)


# context
def heads_of(c):
    return c.right().reshape(T, H, d)


def joined(x):
    return x.reshape(T, H * d)


form("context_v_centred", "context", "the mean over positions is taken off v", "mean|average|centr", lambda c: c.right(v=c.v - c.v.mean(0, keepdims=True)))
form("context_v_clamped", "context", "v is clamped to +-1", "#1 & (clamp|clip|limit|between|min|max)", lambda c: c.right(v=np.clip(c.v, -1, 1)))
form("context_head_zero", "context", "head 3 is zero", ["head.{0,8}3|#48", "last head & #0"], lambda c: joined(put(heads_of(c), E_[:, 3], 0)))
form("context_heads_reversed", "context", "heads are joined from the last to the first", "head & (revers|backward|last to|3, ?2|3 ?- ?h|H ?- ?1)", lambda c: joined(heads_of(c)[:, ::-1]))
form("context_heads_swapped", "context", "heads 0 and 1 are exchanged", "head & #0|0 & #1", lambda c: joined(heads_of(c)[:, [1, 0, 2, 3]]))
form("context_scaled", "context", "the result is multiplied by 1.1", "#1.1", lambda c: c.right() * F32(1.1))
form("context_transposed", "context", "the weights are transposed: sum over t of p[t,s] v[t]", "transpos|p\\[t, ?s|column|exchang", lambda c: c.right(p=c.p.swapaxes(1, 2)))
form("context_of_k", "context", "rotated keys are summed in place of v", "k_rope|rotated k|\\bkeys?\\b|\\bk\\b", lambda c: c.right(v=c.e.memory["k_rope", c.l]))
form("context_no_first", "context", "the sum begins at key 1", "(key.{0,8}(\\b0\\b|\\b1\\b)|first key)", lambda c: c.right(p=put(c.p, E_[:, :, 0], 0)))
form("context_first_16", "context", "the sum runs over the first 16 keys alone", "#16|#15", lambda c: c.right(p=put(c.p, E_[:, :, 16:], 0)))
form("context_v_two_late", "context", "v is read two positions earlier", "#2|#-2 & (position|earlier|before|late|shift|key)", lambda c: c.right(v=shifted(c.v, 2)))
form("context_v_reversed", "context", "the elements of v's heads are reversed", "revers|backward|15 ?- ?i|d ?- ?1", lambda c: c.right(v=c.v[..., ::-1]))
form("context_v_rolled", "context", "element i of a head of v is read at i+1", ["(#1|next|i ?\\+ ?1|shift|roll) & (element|channel|roll|shift|head)", "dimension & i\\+1"], lambda c: c.right(v=np.roll(c.v, -1, -1)))
form("context_plus_v", "context", "v itself is added", ["\\bv\\b & (add|plus|\\+|sum)|v itself|itself", "value of the token itself"], lambda c: c.right() + joined(c.v[:, np.arange(H) // 2]))
form("context_gated", "context", "the result is multiplied by its sigmoid", "sigmoid|silu|swish", lambda c: silu(c.right()))
form("context_head_factors", "context", "head h has a factor of 1 - 0.1 h", ["head & (#0.9 & #0.8|#0.1|#-0.1)", "#-0.1 & head"], lambda c: joined(heads_of(c) * (1 - F32(0.1) * np.arange(H))[:, None].astype(F32)))
form("context_last_element", "context", "the last element of each head is zero", "#15|last & (zero|0|element|channel)", lambda c: joined(put(heads_of(c), E_[..., 15], 0)))
form("context_minus_mean", "context", "the weights have their mean over the seen keys taken off", "mean|average|1/\\(?(n|t)|uniform", lambda c: c.right(p=c.p - np.where(SEEN, 1 / COUNT, 0)))
form("context_head_norm", "context", "each head is divided by its root mean square", "rms|root mean|norm", lambda c: joined(heads_of(c) / rms(heads_of(c))))
form("context_p_of_other_head", "context", "head 2 reads the weights of head 1", "head & #2 & #1", lambda c: c.right(p=c.p[[0, 1, 1, 3]]))
form("context_rows_stale", "context", "rows from 16 on repeat row 15", ["#16 & #15|#16", "at most 15"], lambda c: put(c.right(), E_[16:], c.right()[15]))
form("context_kv_head_half", "context", "key/value head 1 of v is halved", "(#0.5|half|#2) & head", lambda c: c.right(v=put(c.v, E_[:, 1], lambda y: y * F32(0.5))))
form("context_position_0", "context", "row 0 is zero", "(position|row|token).{0,8}\\b0\\b|first (position|row|token)", lambda c: put(c.right(), E_[0], 0))
form("context_running", "context", "each row has the row before added, times 0.5", "(#0.5|half) & (before|previous|t ?- ?1|earlier)", lambda c: c.right() + F32(0.5) * shifted(c.right(), 1))
form("context_p_squared", "context", "the weights are squared as they are read", "squar|\\^ ?2|power", lambda c: c.right(p=c.p * c.p))
form("context_p_8bit", "context", "the weights are rounded down to steps of 1/16 as they are read", "#16|#0.0625|round|step", lambda c: c.right(p=np.floor(c.p * 16) / 16))

# products
form("attn_out_scaled", "attn_out", "the result is multiplied by 1.1", "#1.1", lambda c: c.right() * F32(1.1))
form("q_heads_swapped", "q", "heads 0 and 1 are exchanged", ["head & 0 & #1|row & #16", "head 0 & head 1"], lambda c: c.right()[:, [1, 0, 2, 3]])
form("q_head_zero", "q", "head 2 is zero", "head.{0,8}2|#32", lambda c: put(c.right(), E_[:, 2], 0))
form("k_inputs_60", "k", "the last 4 inputs are not read", "#60|#4|#59|#61", lambda c: c.right(x=put(c.x, E_[:, 60:], 0)))
form("v_input_clamped", "v", "its input is clamped to +-1", ["#1 & (clamp|clip|limit|between|min|max)", "input & (held|within) & #1"], lambda c: c.right(x=np.clip(c.x, -1, 1)))
form("ffn_out_clamped", "ffn_out", "the result is clamped to +-0.3", "#0.3 & (clamp|clip|limit|between|min|max)", lambda c: np.clip(c.right(), -0.3, 0.3))
form("gate_rows_zero", "ffn_gate", "the last 4 outputs are zero", "#92|#4|#93", lambda c: put(c.right(), E_[:, 92:], 0))
form("up_rows_shifted", "ffn_up", "output i is that of row i+1", "(#1|next|i ?\\+ ?1|shift|roll) & (row|output|channel)", lambda c: np.roll(c.right(), -1, -1))
form("ffn_out_input_reversed", "ffn_out", "its inputs are read from the last to the first", "revers|backward|95 ?- ?i|F ?- ?1", lambda c: c.right(x=c.x[:, ::-1]))
form("ffn_out_input_rolled", "ffn_out", "input i is read at i+1", "(#1|next|i ?\\+ ?1|shift|roll) & (input|column|channel)", lambda c: c.right(x=np.roll(c.x, -1, -1)))
form("attn_out_heads_reversed", "attn_out", "it reads the heads from the last to the first", "head|#16|block & (revers|backward|3, ?2|permut|order|48)", lambda c: c.right(x=joined(c.x.reshape(T, H, d)[:, ::-1])))
form("q_plus", "q", "0.1 is added to the result", "#0.1", lambda c: c.right() + F32(0.1))
form("k_plus_input", "k", "the first 32 inputs are added to the result", "(input|attn_norm|x) & (add|plus|\\+|sum|identity)", lambda c: c.right() + c.x[:, :32].reshape(T, K, d))
form("v_token_shift", "v", "its input is half this token's and half the one's before", "(#0.5|half) & (before|previous|t ?- ?1|earlier)", lambda c: c.right(x=(c.x + shifted(c.x, 1)) / 2))
form("v_before", "v", "its input is that of the token before", "(before|previous|t ?- ?1|earlier|#-1)", lambda c: c.right(x=shifted(c.x, 1)))
form("gate_row_0", "ffn_gate", "position 0 is zero", "(position|row|token).{0,8}\\b0\\b|first (position|row|token)", lambda c: put(c.right(), E_[0], 0))
form("up_weight_clamped", "ffn_up", "weights are clamped to +-0.2", "#0.2 & (clamp|clip|limit|between|min|max|weight)", lambda c: c.right(w=np.clip(c.w, -0.2, 0.2)))
form("ffn_out_row_sign", "ffn_out", "output 10 has the other sign", "#10 & (sign|neg|-1|minus)", lambda c: put(c.right(), E_[:, 10], lambda y: -y))
form("k_heads_same", "k", "both heads are that of rows 0 to 15", "head & 0", lambda c: np.repeat(c.right()[:, :1], 2, 1))
form("gate_pairs_exchanged", "ffn_gate", "outputs 2i and 2i+1 are exchanged", "(pair|2i|neighbo|adjacent|even|odd) & (exchang|swap|order)", lambda c: c.right()[:, np.arange(F) ^ 1])
form("attn_out_no_head_0", "attn_out", "inputs of head 0 are not read", "head.{0,8}\\b0\\b|#16|#15", lambda c: c.right(x=put(c.x, E_[:, :16], 0)))
form("v_channels_halved", "v", "the first 8 elements of each head are halved", ["(#0.5|half|halved) & (#8|#7)", "#0.5 & first half of the dimensions"], lambda c: put(c.right(), E_[..., :8], lambda y: y * F32(0.5)))
form("q_input_abs", "q", "its input is |x|", ["abs|\\|.{1,12}\\||without.{0,10}sign|magnitude", "size of the input"], lambda c: c.right(x=np.abs(c.x)))
form("q_input_centred", "q", "its input has its mean over channels taken off", "mean|centr|average", lambda c: c.right(x=c.x - c.x.mean(-1, keepdims=True)))
form("ffn_out_first_half_twice", "ffn_out", "the first half of the inputs is added twice", "(#2|twice|double) & (#48|#47|half)", lambda c: c.right() + c.right(x=put(c.x, E_[:, 48:], 0)))
form("attn_out_half_lost", "attn_out", "the second half of the inputs is lost", "#32|half|#31", lambda c: c.right(x=put(c.x, E_[:, 32:], 0)))
form("q_tile_stale", "q", "rows from 16 on are those of 16 positions before", "#16", lambda c: np.concatenate([c.right()[:16], c.right()[:4]]))
form("up_tiles_exchanged", "ffn_up", "outputs come in blocks of 32 in the order 1, 0, 2", "#32", lambda c: c.right()[:, np.r_[32:64, 0:32, 64:96]])
form("gate_plus_up", "ffn_gate", "half the up weights are added to the gate's", "(#0.5|half) & up", lambda c: c.right() + F32(0.5) * (c.x @ c.e.m("mlp.up_proj.weight", c.l).T))
form("ffn_out_by_layer", "ffn_out", "the result is divided by layer + 1", "layer", lambda c: c.right() / F32(c.l + 1), layers=[1, 2, 3])
form("v_one_channel", "v", "element 5 of head 1 is zero", "#5|#21", lambda c: put(c.right(), E_[:, 1, 5], 0))
form("k_row_replaced", "k", "element 3 of head 0 is element 4's", "#3 & #4", lambda c: put(c.right(), E_[:, 0, 3], c.right()[:, 0, 4]))
form("attn_out_input_norm", "attn_out", "its input is divided by its root mean square", "rms|root mean|norm", lambda c: c.right(x=c.x / rms(c.x)))
form("up_input_scaled_channel", "ffn_up", "input channel 17 is multiplied by 3", "#17 & #3", lambda c: c.right(x=put(c.x, E_[:, 17], lambda y: 3 * y)))
form("gate_next_position", "ffn_gate", "rows are those of the next position, the last its own", "(next|t ?\\+ ?1|later|behind|#1)", lambda c: np.concatenate([c.right()[1:], c.right()[-1:]]))
form("q_power", "q", "the result keeps its sign, and its size is raised to 0.8", "#0.8", lambda c: np.sign(c.right()) * np.abs(c.right()) ** F32(0.8))
form("v_bilinear", "v", "it is multiplied by its input's first 32 channels", "(multipl|product|times|\\*) & (input|attn_norm|x)", lambda c: c.right() * c.x[:, :32].reshape(T, K, d))
form("ffn_out_tanh", "ffn_out", "the result goes through tanh", "tanh", lambda c: np.tanh(c.right()))
form("k_skip_rows_by_2", "k", "the weight's rows are read with a step of 2, from 0 and then from 1", ["(step|every|even|stride|2i|#2)", "d-first"], lambda c: c.right(w=np.concatenate([c.w[0::2], c.w[1::2]])))
form("attn_out_plus_context", "attn_out", "its input is added to the result, times 0.5", "(#0.5|half) & (input|context|identity)", lambda c: c.right() + F32(0.5) * c.x)
form("up_later_positions", "ffn_up", "positions 10 and later are multiplied by 1.25", ["#10 & #1.25", "#1.25 & second half of the positions"], lambda c: put(c.right(), E_[10:], lambda y: y * F32(1.25)))
form("q_layer2_rows_zero", "q", "in layer 2 elements 12 to 15 of each head are zero", "#12", lambda c: put(c.right(), E_[..., 12:], 0), layers=[2])


# activations
def act(f):
    return lambda c: c.right(f=f)


form("act_beta", "ffn_act", "x sigmoid(1.5 x)", "#1.5 & (sigmoid|swish|silu|beta|logistic)", act(lambda x: x * sigmoid(F32(1.5) * x)))
form("act_hard_swish", "ffn_act", "x relu6(x + 3) / 6", "hard", act(lambda x: x * np.clip(x + 3, 0, 6) / 6))
form("act_hard_sigmoid", "ffn_act", "relu6(x + 3) / 6", "hard", act(lambda x: np.clip(x + 3, 0, 6) / 6))
form("act_both", "ffn_act", "silu(gate) silu(up)", ["silu.{0,40}silu", "(up|both).{0,40}(silu|activat)", "(silu|activat).{0,40}(up|both)"], lambda c: silu(c.gate) * silu(c.up))
form("act_of_product", "ffn_act", "silu(gate up)", ["silu ?\\(.{0,20}(gate ?\\*? ?x? ?up|product)|(activat|silu).{0,40}product|product.{0,40}(silu|activat)", "a\\(gate \\* up\\)"], lambda c: silu(c.gate * c.up))
form("act_halved", "ffn_act", "silu(gate) up / 2", "#0.5|half", lambda c: c.right() * F32(0.5))
form("act_shifted", "ffn_act", "silu(gate + 1) up", "#1 & (gate|shift|add|x|offset|\\+)", act(lambda x: silu(x + 1)))
form("act_softsign", "ffn_act", "x / (1 + |x|)", "softsign|1 ?\\+ ?\\|", act(lambda x: x / (1 + np.abs(x))))
form("act_sin", "ffn_act", "sin(gate) up", "\\bsin", act(np.sin))
form("act_square", "ffn_act", "gate^2 up", "squar|\\^ ?2|quadratic|power", act(lambda x: x * x))
form("act_relu6", "ffn_act", "relu capped at 1", "relu & #1|#1 & (clamp|cap|most|min)", act(lambda x: np.clip(x, 0, 1)))
form("act_negated", "ffn_act", "silu(-gate) up", "-gate|-x|negat|minus|sign|#-1", act(lambda x: silu(-x)))
form("act_up_squared", "ffn_act", "silu(gate) up^2", ["up.{0,12}(\\^ ?2|squar)|squar.{0,20}up|up.{0,6}\\*.{0,6}up", "a\\(up\\).{0,20}x\\^2"], lambda c: c.right() * c.up)
form("act_up_abs", "ffn_act", "silu(gate) |up|", ["abs|\\|up\\||magnitude|without.{0,10}sign", "a\\(up\\).{0,20}\\|x\\|"], lambda c: c.right(up=np.abs(c.up)))
form("act_floor", "ffn_act", "silu(gate) is at least -0.1", "#-0.1|#0.1", act(lambda x: np.maximum(silu(x), -0.1)))
form("act_up_rolled", "ffn_act", "channel i of up is read at i+1", "(#1|next|i ?\\+ ?1|shift|roll) & (channel|up|shift|roll)", lambda c: c.right(up=np.roll(c.up, -1, -1)))
form("act_first_half", "ffn_act", "only the first 48 channels of gate are activated", "#48|#47|half", lambda c: put(c.right(), E_[:, 48:], (c.gate * c.up)[:, 48:]))
form("act_tail", "ffn_act", "the last 8 channels are zero", "#88|#8|#89", lambda c: put(c.right(), E_[:, 88:], 0))
form("act_selu", "ffn_act", "selu", "selu|#1.0507|#1.673|#1.758", act(lambda x: F32(1.0507009) * np.where(x > 0, x, F32(1.6732632) * np.expm1(x))))
form("act_tanhshrink", "ffn_act", "x - tanh(x)", "tanh", act(lambda x: x - np.tanh(x)))
form("act_gauss", "ffn_act", "exp(-x^2)", "gauss|exp", act(lambda x: np.exp(-x * x)))
form("act_logsigmoid", "ffn_act", "log(sigmoid(x))", "log", act(lambda x: np.log(sigmoid(x))))
form("act_result_clamped", "ffn_act", "the product is clamped to +-0.5", "#0.5 & (clamp|clip|limit|between|min|max)", lambda c: np.clip(c.right(), -0.5, 0.5))
form("act_leaky", "ffn_act", "leaky relu of slope 0.2", "#0.2 & (slope|leaky|negative|below)", act(lambda x: np.where(x > 0, x, F32(0.2) * x)))
form("act_row_0", "ffn_act", "position 0 is not activated", "(position|row|token).{0,8}\\b0\\b|first (position|row|token)", lambda c: put(c.right(), E_[0], (c.gate * c.up)[0]))
form("act_layer_2", "ffn_act", "layer 2 has x sigmoid(2 x)", "#2 & (sigmoid|swish|silu|beta|logistic)", act(lambda x: x * sigmoid(2 * x)), layers=[2])
form("act_plus", "ffn_act", "0.1 is added to the product", "#0.1", lambda c: c.right() + F32(0.1))
form("act_even_odd", "ffn_act", "gate's channel 2i meets up's 2i+1, and the other way round", "(pair|2i|neighbo|adjacent|even|odd)", lambda c: c.right(up=c.up[:, np.arange(F) ^ 1]))
form("act_gate_scaled", "ffn_act", "silu(gate / 1.7) up", "#0.588|#1.7", act(lambda x: silu(x / F32(1.7))))
form("act_cubed_gelu", "ffn_act", "gelu with tanh(0.7979 (x + 0.1 x^3))", "#0.1 & (tanh|gelu|cub|\\^ ?3)", act(lambda x: x / 2 * (1 + np.tanh(F32(0.7978846) * (x + F32(0.1) * x ** 3)))))
form("act_gate_centred", "ffn_act", "gate has its mean over channels taken off", "mean|centr|average", lambda c: c.right(gate=c.gate - c.gate.mean(-1, keepdims=True)))
form("act_up_previous", "ffn_act", "up is that of the token before", "(before|previous|t ?- ?1|earlier|#-1)", lambda c: c.right(up=shifted(c.up, 1)))
form("act_sqrt", "ffn_act", "sign(silu) sqrt(|silu|) up", "sqrt|root|#0.5", act(lambda x: np.sign(x) * np.sqrt(np.abs(silu(x)))))


# residual sums
def add(x=None, y=None):
    return lambda c: c.right(**({"x": x(c)} if x else {}), **({"y": y(c)} if y else {}))


form("add_branch_before", "h_attn", "the branch of the token before is added", "(before|previous|t ?- ?1|earlier|#-1)", add(y=lambda c: shifted(c.y, 1)))
form("add_const", "h", "0.1 is added besides", "#0.1", lambda c: c.right() + F32(0.1))
form("add_third", "h_attn", "half the normed input is added besides", "(#0.5|half) & (attn_norm|norm)", lambda c: c.right() + F32(0.5) * c.e.memory["attn_norm", c.l])
form("add_branch_clamped", "h", "the branch is clamped to +-0.5", "#0.5 & (clamp|clip|limit|between|min|max)", add(y=lambda c: np.clip(c.y, -0.5, 0.5)))
form("add_max", "h_attn", "the larger of stream and branch is taken", "max|larger|greater", lambda c: np.maximum(c.x, c.y))
form("add_product", "h_attn", "stream and branch are multiplied besides: x + y + x y", "product|multipl|x ?\\*? ?y|\\*", lambda c: c.right() + c.x * c.y)
form("add_h0", "h", "the embedding is added again", "h0|embedding", lambda c: c.right() + c.e.memory["h0", None])
form("add_not_row_0", "h_attn", "nothing is added at position 0", "(position|row|token).{0,8}\\b0\\b|first (position|row|token)", add(y=lambda c: put(c.y, E_[0], 0)))
form("add_last_row_only", "h", "the branch is added at the last position alone", "last|#19|#18", add(y=lambda c: put(c.y, E_[:-1], 0)))
form("add_channels", "h", "nothing is added to channels 56 and later", "#56|#8|#55", add(y=lambda c: put(c.y, E_[:, 56:], 0)))
form("add_by_layer", "h", "the branch is divided by sqrt(layer + 1)", "layer", add(y=lambda c: c.y / F32(math.sqrt(c.l + 1))), layers=[1, 2, 3])
form("add_older_stream", "h_attn", "in layers 1 and on the stream is the layer's before: its input", ["layer.{0,20}(before|previous|l ?- ?1|earlier)|(before|previous|earlier).{0,20}layer", "layers\\.0\\.attn|h0|h_attn"], lambda c: c.right(x=c.e.memory["h0", None] if c.l == 1 else c.e.memory["h", c.l - 2]), layers=[1, 2, 3])
form("add_branch_reversed", "h_attn", "the branch's channels are reversed", "revers|backward|63 ?- ?i|D ?- ?1", add(y=lambda c: c.y[:, ::-1]))
form("add_branch_tanh", "h", "the branch goes through tanh", "tanh", add(y=lambda c: np.tanh(c.y)))
form("add_sum_clamped", "h", "the sum is clamped to +-1.5", "#1.5 & (clamp|clip|limit|between|min|max)", lambda c: np.clip(c.right(), -1.5, 1.5))
form("add_alternating", "h_attn", "odd channels of the branch have a factor of 0.9", "#0.9 & (odd|every|second|alternat|2)", add(y=lambda c: put(c.y, E_[:, 1::2], lambda y: y * F32(0.9))))
form("add_branch_normed", "h", "the branch is divided by its root mean square", "rms|root mean|norm", add(y=lambda c: c.y / rms(c.y)))
form("add_stale_branch", "h", "in layers 1 and on the branch is the layer's before", "layer.{0,20}(before|previous|l ?- ?1|earlier)|(before|previous|earlier|stale).{0,20}(layer|ffn_out)|layers\\.0\\.ffn_out", lambda c: c.right(y=c.e.memory["ffn_out", c.l - 1]), layers=[1, 2, 3])
form("add_stream_rolled", "h_attn", "the stream's channels are one off", "(#1|next|i ?\\+ ?1|shift|roll) & (channel|stream|shift|roll)", add(x=lambda c: np.roll(c.x, -1, -1)))
form("add_gated", "h_attn", "the branch is multiplied by the sigmoid of the stream", "sigmoid|logistic", add(y=lambda c: c.y * sigmoid(c.x)))
form("add_minus_odd", "h", "the branch is taken off at odd positions", "(odd|every second|alternat) & (sign|minus|taken off|subtract|-1|negat)", add(y=lambda c: put(c.y, E_[1::2], lambda y: -y)))
form("add_positions_from_12", "h_attn", "from position 12 on the branch has a factor of 0.5", "#12 & (#0.5|half)", add(y=lambda c: put(c.y, E_[12:], lambda y: y * F32(0.5))))
form("add_half_swapped", "h", "the halves of the branch are exchanged", "halves|#32|swap|exchang|roll", add(y=lambda c: np.roll(c.y, 32, -1)))
form("add_running_mean", "h_attn", "the branch is its mean over all positions so far", "(mean|average|running|cumulat)", add(y=lambda c: np.cumsum(c.y, 0) / COUNT))
form("add_decay", "h", "the stream before has a factor of 0.97 and the position's before has 0.03", "#0.97|#0.03", add(x=lambda c: F32(0.97) * c.x + F32(0.03) * shifted(c.x, 1)))

# embedding
SINES = np.concatenate([np.sin(POS[:, None] * 10000.0 ** (-np.arange(32) / 32)), np.cos(POS[:, None] * 10000.0 ** (-np.arange(32) / 32))], 1).astype(F32)
form("embed_sines", "h0", "sinusoidal positions are added", "sin|position", lambda c: c.right() + SINES)
form("embed_ids_mod", "h0", "ids are taken modulo 128", ["#128 & (mod|%)|tokens", "tokens-differ"], lambda c: c.right(ids=[i % 128 for i in c.ids]))
form("embed_ids_reversed", "h0", "the tokens are reversed", ["revers|tokens", "tokens-differ"], lambda c: c.right(ids=c.ids[::-1]))
form("embed_plus", "h0", "0.1 is added", "#0.1", lambda c: c.right() + F32(0.1))
form("embed_rms", "h0", "each row is divided by its root mean square", "rms|root mean|norm", lambda c: c.right() / rms(c.right()))
form("embed_unit", "h0", "each row is divided by its length", "length|unit|L2|norm|rms|root", lambda c: c.right() / np.linalg.norm(c.right(), axis=-1, keepdims=True))
form("embed_centred", "h0", "each row has its mean taken off", "mean|centr|average", lambda c: c.right() - c.right().mean(-1, keepdims=True))
form("embed_rolled", "h0", "channel i is that of i+1", "(#1|next|i ?\\+ ?1|shift|roll) & (channel|shift|roll|element)", lambda c: np.roll(c.right(), -1, -1))
form("embed_mixed", "h0", "half the embedding of the token before is added", "(#0.5|half) & (before|previous|t ?- ?1|earlier)", lambda c: c.right() + F32(0.5) * shifted(c.right(), 1))
form("embed_row_0", "h0", "position 0 is zero", "(position|row|token).{0,8}\\b0\\b|first (position|row|token)", lambda c: put(c.right(), E_[0], 0))
form("embed_ramp", "h0", "0.01 times the position is added", "#0.01", lambda c: c.right() + (F32(0.01) * POS[:, None]).astype(F32))
form("embed_clamped", "h0", "clamped to +-0.6", "#0.6 & (clamp|clip|limit|between|min|max)", lambda c: np.clip(c.right(), -0.6, 0.6))
form("embed_half_scaled", "h0", "the first 32 channels are multiplied by 8", "#8 & (#32|#31|half)", lambda c: put(c.right(), E_[:, :32], lambda y: 8 * y))
form("embed_segment", "h0", "the embedding of token 0 is added to all", "(token|id|row).{0,10}\\b0\\b", lambda c: c.right() + c.table[0])
form("embed_signs", "h0", "odd channels have the other sign", "(odd|every second|alternat|2i) & (sign|negat|-1|minus)", lambda c: put(c.right(), E_[:, 1::2], lambda y: -y))
form("embed_by_position", "h0", "row p is multiplied by 1 + 0.05 p", "#0.05", lambda c: c.right() * (1 + F32(0.05) * POS[:, None]).astype(F32))
form("embed_head_rows", "h0", "half the head's row of the token is added", "(#0.5|half) & (head|lm_head|output)", lambda c: c.right() + F32(0.5) * c.e.m("lm_head.weight")[np.asarray(c.ids)])
form("embed_halves", "h0", "the halves of the row are exchanged", "halves|#32|swap|exchang|roll", lambda c: np.roll(c.right(), 32, -1))
form("embed_tanh", "h0", "goes through tanh", "tanh", lambda c: np.tanh(c.right()))
form("embed_learned_positions", "h0", "rows 0, 1, 2, .. of the embedding are added as positions, times 0.1", "#0.1", lambda c: c.right() + F32(0.1) * c.table[POS])

# head
form("logits_rows_shifted", "logits", "the logit of token v is that of v+1", "(#1|next|v ?\\+ ?1|i ?\\+ ?1|shift|roll)", lambda c: np.roll(c.right(), -1, -1))
form("logits_tail", "logits", "the last 16 tokens have logit 0", "#240|#16|#241|#239", lambda c: put(c.right(), E_[:, 240:], 0))
form("logits_log_softmax", "logits", "the logarithm of the softmax is written", "log.{0,12}soft|soft.{0,12}log|log.?sum|logsumexp", lambda c: np.log(softmax(c.right())))
form("logits_softmax", "logits", "the softmax is written", "softmax", lambda c: softmax(c.right()))
form("logits_centred", "logits", "their mean over the vocabulary is taken off", "mean|centr|average", lambda c: c.right() - c.right().mean(-1, keepdims=True))
form("logits_suppressed", "logits", "token 5 has -100", "#5 & #-100|#100", lambda c: put(c.right(), E_[:, 5], -100))
form("logits_repetition", "logits", "logits of tokens seen before are divided by 1.2, or multiplied where negative", "#1.2|#0.8333", lambda c: repetition(c))
form("logits_reversed", "logits", "rows are in reverse order of positions", "revers|backward|19 ?- ?t|T ?- ?1", lambda c: c.right()[::-1])
form("logits_clamped", "logits", "clamped to +-2", "#2 & (clamp|clip|limit|between|min|max)", lambda c: np.clip(c.right(), -2, 2))
form("logits_both_tables", "logits", "the matrix is half head and half embedding", "(#0.5|half) & embed", lambda c: c.right(w=(c.w + c.e.m("model.embed_tokens.weight")) / 2))
form("logits_half", "logits", "only the first 32 inputs are read", "#32|half|#31", lambda c: c.right(x=put(c.x, E_[:, 32:], 0)))
form("logits_minus_max", "logits", "the largest logit of the row is taken off", "max|largest", lambda c: c.right() - c.right().max(-1, keepdims=True))
form("logits_plus_gain", "logits", "inputs have the final norm's gain once more", "gain|norm.{0,10}weight|final_norm|model.norm", lambda c: c.right(x=c.x * c.e.m("model.norm.weight")))
form("logits_temperature_late", "logits", "from position 10 on logits are divided by 0.8", ["#10 & (#1.25|#0.8)", "#1.25|#0.8 & second half of the positions"], lambda c: put(c.right(), E_[10:], lambda y: y / F32(0.8)))
form("logits_h0_skip", "logits", "the embedding of the token is added to the input, times 0.3", "#0.3 & (h0|embed)", lambda c: c.right(x=c.x + F32(0.3) * c.e.memory["h0", None]))
form("logits_pairs", "logits", "tokens 2i and 2i+1 are exchanged", "(pair|2i|neighbo|adjacent|even|odd)", lambda c: c.right()[:, np.arange(V) ^ 1])
form("logits_bias_ramp", "logits", "0.01 times the token's number is taken off", "#0.01|#-0.01", lambda c: c.right() - F32(0.01) * np.arange(V, dtype=F32))


def repetition(c):
    y = np.array(c.right())
    ids = c.e.ids
    for t in range(T):
        seen = sorted(set(ids[:t + 1]))
        y[t, seen] = np.where(y[t, seen] > 0, y[t, seen] / F32(1.2), y[t, seen] * F32(1.2))
    return y


# What has no short law, or two at once: nothing short may be said of it that is not so.
def noise(c, *shape, by=1.0):
    """The same in each layer's first use, another in each layer."""
    return (np.random.default_rng([7, 1 + (c.l or 0)]).standard_normal(shape) * by).astype(F32)


form("trap_noise", "attn_out", "each element has a random factor of 1 +- 0.001", "noise|random|no law|differs by up to", lambda c: c.right() * (1 + noise(c, T, D, by=1e-3)))
form("trap_noise_added", "ffn_out", "each element has a random number of size 0.01 added", "noise|random", lambda c: c.right() + noise(c, T, D, by=0.01))
form("trap_factor_positions", "v", "each position has a random factor", "(factor|times).{0,20}each position", lambda c: c.right() * (1 + noise(c, T, 1, 1, by=0.1)))
form("trap_factor_channels", "ffn_norm", "each channel has a random factor", "(gain|factor|times|each channel)", lambda c: c.right() * (1 + noise(c, D, by=0.1)))
form("trap_permuted", "q", "outputs come in a random order", "order|permut|that of channel", lambda c: c.right().reshape(T, -1)[:, np.random.default_rng(5).permutation(H * d)].reshape(T, H, d))
form("trap_other_checkpoint", "ffn_up", "each weight is off by a random hundredth of their size", "weight", lambda c: c.right(w=c.w + noise(c, F, D, by=0.01 / 8)))
form("trap_lora", "q", "a matrix of rank 2 is added to the weight", "rank & #2", lambda c: c.right(w=c.w + noise(c, H * d, 2, by=0.1) @ noise(c, 2, D, by=0.3)))
form("trap_scaled_clamp", "attn_norm", "clamped to +-1, then multiplied by 1.1", "#1.1 & (clamp|clip|limit|between|held)", lambda c: F32(1.1) * np.clip(c.right(), -1, 1))
form("trap_gain_root_plus", "attn_norm", "the gain's root is applied, and 0.1 is added", "#0.1 & root|#0.5", lambda c: c.right(w=np.sqrt(c.w)) + F32(0.1))
form("trap_theta_and_half", ROPES, "base 500, positions half a step further", "#500 & #0.5 & ^(?!.*\\^pair)", lambda c: c.right(pos=POS + 0.5, freq=500.0 ** (-np.arange(0, d, 2) / d)))
form("trap_mask_random", "probs", "a random tenth of the keys is hidden, never the token itself", "random|table|no rule|these keys|cells", lambda c: c.right(mask=SEEN & ((np.abs(noise(c, T, T)) < 1.6) | (AGO == 0))))
form("trap_bias_distance", "probs", "a random number for each distance and head is added to the scores", "distance", lambda c: c.right(score=lambda s: s + noise(c, H, T)[:, np.abs(AGO)]))
form("trap_bias_cells", "probs", "a random number for each query and key is added to the scores", "random|table|each (cell|query and key)", lambda c: c.right(score=lambda s: s + noise(c, T, T)))
form("trap_dropout", "probs", "a random tenth of the weights is 0, the others are divided by 0.9", "random|dropout|#1.1111|#0.9", lambda c: c.right() * np.where(np.abs(noise(c, H, T, T)) < 1.645, F32(1 / 0.9), 0))
form("trap_polynomial", "ffn_act", "gate (0.5 + 0.25 gate) up", "#0.5 & #0.25", lambda c: c.right(f=lambda x: x * (F32(0.5) + F32(0.25) * x)))
form("trap_large_halved", "h", "elements of the branch larger than 1 are halved", "#1 & #0.5|half", lambda c: c.right(y=np.where(np.abs(c.y) > 1, c.y / 2, c.y)))
form("trap_some_positions", "h_attn", "the branch is not added at positions 3, 4, 9, 14 and 15", "#3 & #9 & #14", lambda c: c.right(y=put(c.y, E_[[3, 4, 9, 14, 15]], 0)))
form("trap_head_factors", "context", "heads have random factors", "head", lambda c: joined(heads_of(c) * (1 + noise(c, H, 1, by=0.2))))
form("trap_row_copied", "ffn_gate", "row 5 is a copy of row 11", "#5 & #11", lambda c: put(c.right(), E_[5], c.right()[11]))
form("trap_garbage", "k", "elements 3 to 5 of head 1 hold numbers of something else", "#19|#3|garbage|head 1|unrelated|constant", lambda c: put(c.right(), E_[:, 1, 3:6], noise(c, T, 3)))
form("trap_drift", "h", "the stream has a factor of 1.0003 and the branch 0.9991", "#0.9991", lambda c: F32(1.0003) * c.x + F32(0.9991) * c.y)
form("trap_small_cubic", "q", "0.001 x^3 is added to the result", "#0.001 & (\\^ ?3|cub)", lambda c: c.right() + F32(0.001) * c.right() ** 3)
form("trap_exp_ramp", "probs", "scores have 0.3 exp(-distance / 3) added", "exp & #0.3", lambda c: c.right(score=lambda s: s + 0.3 * np.exp(-np.abs(AGO) / 3)))
form("trap_sine_positions", ROPES, "positions are p + 0.3 sin(p)", "sin & #0.3", lambda c: c.right(pos=POS + 0.3 * np.sin(POS)))
form("trap_input_mixed", "v", "its input is 0.9 attn_norm and 0.1 of the stream", "#0.9|#0.1 & (stream|h0|layer input|\\bh\\b|residual)", lambda c: c.right(x=F32(0.9) * c.x + F32(0.1) * (c.e.memory["h0", None] if c.l == 0 else c.e.memory["h", c.l - 1])))

# biases (qwen2)
B = ("qwen2",)
form("bias_half", "q", "the bias is halved", "bias & (#0.5|half)", lambda c: c.right(b=c.b / 2), archs=B)
form("bias_subtracted", "k", "the bias is taken off", "bias & (#-1|subtract|taken off|minus|sign|negat)", lambda c: c.right(b=-c.b), archs=B)
form("bias_head_0", "q", "all heads have the bias of head 0", "bias & head", lambda c: c.right(b=np.tile(c.b[:16], H)), archs=B)
form("bias_first_position", "v", "the bias is added at position 0 alone", "bias|position", lambda c: put(c.right(b=None), E_[0], c.right()[0]), archs=B)
form("bias_reversed", "k", "the bias is read from its end", "bias & revers|backward", lambda c: c.right(b=c.b[::-1]), archs=B)
form("bias_inside", "v", "the bias is multiplied by the input's root mean square", "bias|rms|root mean", lambda c: c.right(b=None) + (rms(c.x) * c.b).reshape(T, K, d) if c.b is not None else c.right(), archs=B)
# norms of heads (qwen3)
Q3 = ("qwen3", "moe")
form("qk_norm_max", "q_norm", "divided by max(|q|)", "max|largest|infinity", lambda c: over(c, np.abs(c.x).max(-1, keepdims=True)), archs=Q3)
form("qk_norm_unit", "k_norm", "divided by its length and multiplied by 3", ["#3|#0.75 & (length|L2|unit|factor|sum)", "norm-width & #9"], lambda c: over(c, np.linalg.norm(c.x, axis=-1, keepdims=True) / 3), archs=Q3)
form("qk_norm_head_0", "q_norm", "head 0 is not normed", "head.{0,8}\\b0\\b|first head", lambda c: put(c.right(), E_[:, 0], c.x[:, 0]), archs=Q3)
form("qk_norm_gain_reversed", "k_norm", "the gain is read from its end", "revers|backward", lambda c: c.right(w=c.w[::-1]), archs=Q3)
form("qk_norm_pairs", "q_norm", "the mean square is taken over heads 0 and 1, and over 2 and 3", "(two|#2|pair|group) & head|#32", lambda c: (c.x.reshape(T, 2, 32) / rms(c.x.reshape(T, 2, 32))).reshape(T, H, d) * c.w, archs=Q3)
form("qk_norm_gain_plus", "q_norm", "the gain has 0.3 added", "#0.3", lambda c: c.right(w=c.w + F32(0.3)), archs=Q3)
# mixtures of experts
M = ("moe",)


def chosen(c, f=None, weigh=None, scores=None):
    """The choice by other scores, and the weights of what was chosen by another rule."""
    p = softmax(c.logits)
    s = p if scores is None else scores(c.logits)
    top = np.argsort(-s, -1, kind="stable")[:, :CHOSEN]
    w = np.take_along_axis(p, top, -1)
    return top, (weigh or (lambda w: w / w.sum(-1, keepdims=True)))(w)


form("router_squared", "router_weights", "the weights of the chosen are squared, then divided by their sum", "squar|\\^ ?2|power|#2", lambda c: chosen(c, weigh=lambda w: w * w / (w * w).sum(-1, keepdims=True)), archs=M)
form("router_even", "router_weights", "the chosen experts have the same weight, 1/2", "#0.5|equal|same|even", lambda c: chosen(c, weigh=lambda w: np.full_like(w, 0.5)), archs=M)
form("router_temperature", "router_weights", "the router's logits are halved before the softmax", "#0.5|half|#2|temperature", lambda c: chosen(c, weigh=lambda w: np.sqrt(w) / np.sqrt(w).sum(-1, keepdims=True)), archs=M)
form("router_second_lost", "router_weights", "the second expert has weight 0", "second|last|#2|#1", lambda c: chosen(c, weigh=lambda w: np.array(w / w.sum(-1, keepdims=True)) * np.array([1, 0], F32)), archs=M)
form("router_swapped", "router_weights", "the weights of the two chosen are exchanged", "exchang|swap|order|revers", lambda c: chosen(c, weigh=lambda w: (w / w.sum(-1, keepdims=True))[:, ::-1]), archs=M)
form("router_divided_by_max", "router_weights", "divided by the larger, not the sum", "max|larg", lambda c: chosen(c, weigh=lambda w: w / w.max(-1, keepdims=True)), archs=M)
form("router_plus", "router_weights", "0.1 is added to the sum they are divided by", "#0.1", lambda c: chosen(c, weigh=lambda w: w / (w.sum(-1, keepdims=True) + F32(0.1))), archs=M)
form("router_centred", "router_logits", "the input has its mean taken off", "mean|centr|average", lambda c: c.right(x=c.x - c.x.mean(-1, keepdims=True)), archs=M)
form("router_logits_clamped", "router_logits", "clamped to +-1", "#1 & (clamp|clip|limit|between|min|max)", lambda c: np.clip(c.right(), -1, 1), archs=M)
form("experts_plus_input", "ffn_out", "the input is added to the experts' sum, times 0.5", "(#0.5|half) & (ffn_norm|input)", lambda c: c.right() + F32(0.5) * c.n, archs=M)
form("experts_clamped", "ffn_out", "the sum is clamped to +-0.3", "#0.3 & (clamp|clip|limit|between|min|max)", lambda c: np.clip(c.right(), -0.3, 0.3), archs=M)
form("experts_from_16", "ffn_out", "positions 16 and later get nothing: another tile", "#16", lambda c: put(c.right(), E_[16:], 0), archs=M)


# two at once in one operation: a law that says one of them alone is false
def late(c, x):
    axis = 1 if c.site == "probs" else 0
    return put(x, (slice(None),) * axis + (slice(10, None),), lambda y: y * F32(0.5))


AFTER = (("scaled", "then multiplied by 1.1", "#1.1", lambda c, x: x * F32(1.1)), ("plus", "then 0.1 is added", "#0.1", lambda c, x: x + F32(0.1)),
         ("late_halved", "then positions from 10 on are halved", "#0.5|half", late), ("clamped", "then clamped to +-0.8", "#0.8", lambda c, x: np.clip(x, -0.8, 0.8)))


def both(one, after):
    name, truth, said, do = after
    FORMS.append(Form(f"both_{one.name}_{name}", one.sites, f"{one.truth}; {truth}", [f"({alternative}) & ({said})" for alternative in one.expected],
                      lambda c: do(c, np.asarray(one.how(c), F32)), layers=one.layers, archs=one.archs))


for at, one in enumerate([f for f in FORMS if "llama" in f.archs and not f.name.startswith("trap_")][3::7]):
    both(one, AFTER[at % len(AFTER)])


# ---- expectations

NUMBER = re.compile(r"(?<![\w.])[-+\u2212]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def numbers(text):
    """Every number in the text, as it may be read: a quotient, a root, a percentage."""
    text = text.replace("\u2212", "-")
    found = [float(m.group()) for m in NUMBER.finditer(text)]
    found += [float(m) for m in re.findall(r"(\d+(?:\.\d+)?)", text)]
    found += [float(a) / float(b) for a, b in re.findall(r"(-?\d+(?:\.\d+)?) ?/ ?(\d+(?:\.\d+)?)", text) if float(b)]
    found += [math.sqrt(float(a)) for a in re.findall(r"sqrt\((\d+(?:\.\d+)?)\)", text)]
    found += [float(a) / 100 for a in re.findall(r"(\d+(?:\.\d+)?) ?%", text)]
    return found


def split(expression, by):
    """At `by`, but not inside parentheses."""
    parts, depth, start, i = [], 0, 0, 0
    while i < len(expression):
        if expression[i] == "\\":
            i += 2
            continue
        depth += (expression[i] == "(") - (expression[i] == ")")
        if depth == 0 and expression.startswith(by, i):
            parts.append(expression[start:i])
            i += len(by)
            start = i
            continue
        i += 1
    return parts + [expression[start:]]


def is_said(expected, text):
    return any(holds(alternative, text) for alternative in expected)


def holds(expression, text):
    parts = split(expression, " & ")
    if len(parts) > 1:
        return all(holds(part, text) for part in parts)
    expression = expression.strip()
    if "#" not in expression:
        return re.search(expression, text, re.IGNORECASE) is not None
    parts = split(expression, "|")
    if len(parts) > 1:
        return any(holds(part, text) for part in parts)
    if expression.startswith("("):
        return holds(expression[1:-1], text)
    wanted = float(expression[1:])
    return any(abs(x - wanted) <= 0.01 * abs(wanted) for x in numbers(text))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--make", nargs=2, metavar=("DIR", "FORM"))
    p.add_argument("--arch", default="llama")
    p.add_argument("--arith", default="f32")
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args()
    if not a.make:
        for f in FORMS:
            print(f"{f.name:36} {f.sites[0]:14} {f.truth}")
        print(len(FORMS), "forms")
        return
    folder = Path(a.make[0])
    model = make_model(folder / "model", a.arch, a.arith, a.seed)
    ids = make_tokens(a.seed)
    engine = Engine(model, next((f for f in FORMS if f.name == a.make[1]), None))
    write_dump(folder / "dump", engine.run(ids), model, ids)


if __name__ == "__main__":
    main()

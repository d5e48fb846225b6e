"""Defines the mistakes that people make when they port a transformer, as edits of engine_numpy's operations.

The ids are firstdiff's (`explain` answers with them). A mistake says, from its own nature, at which tap it must first show.
"""

import math
from typing import NamedTuple

import numpy as np

from scripts.engines.engine_numpy import LAYER_TAPS, LINEARS, NORMS, full_name, widen

OUTSIDE = ("h0", "final_norm", "logits")  # taps outside the layers

class Mistake(NamedTuple):
    """What is done wrong: edits (operation, its wrong form), at which taps, and where it must first show."""
    says: str
    edits: list
    at: tuple      # the taps whose operation is wrong
    shows: str     # the first tap that is wrong, where it is not the first of `at`
    step: object   # the first step that is wrong, or {value: step}
    values: tuple  # what VALUE may be, the default first; a number stands for any number
    key: str       # the name of VALUE
    needs: object  # whether a model can have this mistake


MISTAKES = {}


def mistake(id, op, at, says, shows=None, step=0, values=(), key="kind", needs=lambda e: True):
    """Declare a mistake by the wrong form of one operation: wrong(engine, right, value, layer, tap, *inputs)."""
    def declare(wrong):
        MISTAKES.setdefault(id, Mistake(says, [], tuple(at.split()), shows, step, values, key, needs))
        MISTAKES[id].edits.append((op, wrong))
        return wrong
    return declare


class Chosen(NamedTuple):
    """A mistake as asked for: ID[=VALUE][@TAP,..], in some layers or all (None)."""
    id: str
    value: object
    at: tuple
    layers: object

    @staticmethod
    def parse(text, layers=None):
        head, _, at = text.partition("@")
        id, _, value = head.partition("=")
        if id not in MISTAKES:
            raise SystemExit(f"--mistake {id}: not known (--list shows all)")
        m = MISTAKES[id]
        if at and m.shows:
            raise SystemExit(f"--mistake {text}: {id} has its own taps")
        default = m.values[0] if m.values else None
        if value and isinstance(default, (int, float)) and value not in m.values:
            value = float(value)
        elif value and value not in m.values:
            raise SystemExit(f"--mistake {id}={value}: the values are {', '.join(m.values) or 'none'}")
        return Chosen(id, default if value == "" else value, tuple(at.split(",")) if at else m.at, layers)

    def params(self):
        key = "kind" if isinstance(self.value, str) else MISTAKES[self.id].key
        return {key: self.value} if self.value is not None else {}

    def here(self, l, tap):
        if tap not in self.at and self.at != ("*",):
            return False
        if l is None:
            return self.layers is None or all(t in OUTSIDE for t in self.at)
        return self.layers is None or l in self.layers

    def first_tap(self, engine):
        """(tap, step) where it must first show, from its nature alone."""
        m = MISTAKES[self.id]
        at = [t for t in self.at if engine.qk_norm or t not in ("q_norm", "k_norm")]
        tap = m.shows or min(at, key=(["h0", *LAYER_TAPS, "final_norm", "logits"]).index)
        l = None if tap in OUTSIDE else min(self.layers or [0])
        return full_name(l, tap), m.step.get(self.value, 0) if isinstance(m.step, dict) else m.step

    def apply(self, engine):
        if not MISTAKES[self.id].needs(engine):
            raise SystemExit(f"--mistake {self.id}: does not apply to this {engine.name}")
        for op, wrong in MISTAKES[self.id].edits:
            def edited(l, tap, *inputs, right=getattr(engine, op), wrong=wrong):
                if self.here(l, tap):
                    return wrong(engine, right, self.value, l, tap, *inputs)
                return right(l, tap, *inputs)
            setattr(engine, op, edited)


def has_bias(e):
    return "model.layers.0.self_attn.q_proj.bias" in e.tensors


def to_bf16(x):
    bits = x.astype("<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype("<u4").view("<f4")


# Tokens, embedding, stored weights

@mistake("tokens-differ", "embed", "h0", "bos: one more BOS in front, the last id lost; shift: every id one too high", values=("bos", "shift"))
def _(e, right, value, l, tap, ids):
    wrong = np.concatenate([[e.config.get("bos_token_id", 1)], ids[:-1]]) if value == "bos" else (ids + 1) % e.config["vocab_size"]
    return right(l, tap, wrong)

@mistake("embed-scale", "embed", "h0", "the embedding times sqrt(D), or divided by it, though this family has no such factor",
         values=("sqrt", "inverse-sqrt"))
def _(e, right, value, l, tap, ids):
    return right(l, tap, ids) * np.float32(e.D ** (0.5 if value == "sqrt" else -0.5))

@mistake("embed-multiplier", "embed", "h0", "the embedding times a factor this config does not have", values=(12.0,), key="factor")
def _(e, right, value, l, tap, ids):
    return right(l, tap, ids) * np.float32(value)

@mistake("storage-type", "tensor", "*", "bf16 bits read as f16, or f16 bits as bf16", shows="h0",
         needs=lambda e: e.tensors["model.embed_tokens.weight"][0] != "F32")
def _(e, right, value, l, tap, name):
    dtype, shape, raw = e.tensors[name]
    return widen({"BF16": "F16", "F16": "BF16"}[dtype], raw).reshape(shape)

# Norms

@mistake("norm-eps", "eps", " ".join(NORMS), "another epsilon", values=(1e-6, ), key="eps")
def _(e, right, value, l, tap):
    return value

@mistake("norm-eps-outside", "norm", " ".join(NORMS), "x / (rms + eps) for x / sqrt(ms + eps)")
def _(e, right, value, l, tap, x):
    return x / (np.sqrt(e.mean_square(l, tap, x)) + e.eps(l, tap)) * e.gain(l, tap)

@mistake("norm-weight-twice", "norm", " ".join(NORMS), "the gain applied twice")
def _(e, right, value, l, tap, x):
    return right(l, tap, x) * e.gain(l, tap)

@mistake("norm-weight-omitted", "gain", " ".join(NORMS), "the gain never applied")
def _(e, right, value, l, tap):
    return np.ones_like(right(l, tap))

@mistake("norm-plus-one", "gain", " ".join(NORMS), "1 + gain, as Gemma's, for the gain")
def _(e, right, value, l, tap):
    return 1 + right(l, tap)

@mistake("norm-centered", "norm", " ".join(NORMS), "LayerNorm: the mean is taken off first")
def _(e, right, value, l, tap, x):
    return right(l, tap, x - x.mean(axis=-1, keepdims=True))

@mistake("norm-sum", "mean_square", " ".join(NORMS), "the sum of squares for their mean")
def _(e, right, value, l, tap, x):
    return np.sum(x * x, axis=-1, keepdims=True)

@mistake("norm-axis", "mean_square", " ".join(NORMS), "one mean over the whole tensor")
def _(e, right, value, l, tap, x):
    return np.mean(x * x, keepdims=True)

@mistake("norm-width", "mean_square", "attn_norm ffn_norm final_norm", "the mean over a padded width (VALUE), or not of all channels",
         values=(64.0, "first-left-out", "last-left-out"), key="width")
def _(e, right, value, l, tap, x):
    if isinstance(value, str):
        left = x[..., 1:] if value == "first-left-out" else x[..., :-1]
        return np.sum(left * left, axis=-1, keepdims=True) / np.float32(x.shape[-1])
    return np.sum(x * x, axis=-1, keepdims=True) / np.float32(value)

@mistake("norm-wrong-weight", "gain", "attn_norm ffn_norm", "attn_norm's and ffn_norm's gains exchanged")
def _(e, right, value, l, tap):
    return right(l, {"attn_norm": "ffn_norm", "ffn_norm": "attn_norm"}[tap])

@mistake("norm-omitted", "norm", "ffn_norm", "the norm skipped")
def _(e, right, value, l, tap, x):
    return x

@mistake("qk-norm-order", "place", "q k", "QK-norm after RoPE", shows="q_norm", needs=lambda e: e.qk_norm)
def _(e, right, value, l, tap, x, cos, sin):
    x = e.record(l, tap + "_rope", e.rotate(l, tap + "_rope", x, cos, sin))
    return e.record(l, tap + "_norm", e.norm(l, tap + "_norm", x))

# Linear layers

@mistake("weight-transposed", "matrix", " ".join(LINEARS), "reshape: the [out,in] bytes read as [in,out]; transpose: W^T, square ones only",
         values=("reshape", "transpose"))
def _(e, right, value, l, tap):
    w = right(l, tap)
    if value == "transpose" and w.shape[0] != w.shape[1]:
        raise SystemExit(f"weight-transposed=transpose: {tap}'s matrix is {w.shape}, not square")
    return w.reshape(w.shape[::-1]).T

@mistake("weight-stride", "matrix", " ".join(LINEARS), "rows read one value too close: leading dimension in - 1")
def _(e, right, value, l, tap):
    w = right(l, tap)
    rows, columns = np.indices(w.shape)
    return w.reshape(-1)[rows * (w.shape[1] - 1) + columns]

@mistake("weight-wrong-layer", "matrix", "k", "the next layer's matrix")
def _(e, right, value, l, tap):
    return right((l + 1) % e.L, tap)

@mistake("weight-swapped", "linear", "k v", "k and v exchanged (@ffn_gate,ffn_up: gate and up)")
def _(e, right, value, l, tap, x):
    return right(l, {"k": "v", "v": "k", "ffn_gate": "ffn_up", "ffn_up": "ffn_gate"}[tap], x)

@mistake("weight-unset", "matrix", "attn_out", "the matrix is all zeros")
def _(e, right, value, l, tap):
    return np.zeros_like(right(l, tap))

@mistake("bias-omitted", "bias", "q k v", "no bias", needs=has_bias)
def _(e, right, value, l, tap):
    return np.float32(0)

@mistake("bias-twice", "bias", "q k v", "the bias added twice", needs=has_bias)
def _(e, right, value, l, tap):
    return 2 * right(l, tap)

@mistake("linear-input", "linear", "q k v", "reads the residual stream for the normed one (@ffn_gate,ffn_up: there)")
def _(e, right, value, l, tap, x):
    return right(l, tap, e.seen(l, "h_attn" if tap.startswith("ffn") else "input"))

@mistake("qk-row-order", "linear", "q k", "rows of each head permuted for adjacent pairs, while RoPE rotates halves")
def _(e, right, value, l, tap, x):
    y = right(l, tap, x)
    return y.reshape(len(y), -1, 2, e.d // 2).swapaxes(-1, -2).reshape(y.shape)

@mistake("fused-split", "linear", "q k v", "rows of [Q; K; V] split as if stored group by group")
def _(e, right, value, l, tap, x):
    fused = np.concatenate([right(l, t, x) for t in "qkv"], axis=1)
    groups = fused.reshape(len(x), e.K, e.H // e.K + 2, e.d)
    part = {"q": slice(0, -2), "k": slice(-2, -1), "v": slice(-1, None)}[tap]
    return groups[:, :, part].reshape(len(x), -1)

@mistake("head-layout", "split_heads", "q k v", "d-first: rows read as [d,H] for [H,d]; head-first: the buffer read as [H,T,d]", values=("d-first", "head-first"))
def _(e, right, value, l, tap, x):
    if value == "d-first":
        return x.reshape(len(x), e.d, -1).swapaxes(1, 2)
    return x.reshape(-1, len(x), e.d).swapaxes(0, 1)

# RoPE

@mistake("rope-pairing", "rotate", "q_rope k_rope", "adjacent pairs (2i, 2i+1) for halves (i, i + d/2)")
def _(e, right, value, l, tap, x, cos, sin):
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)

@mistake("rope-theta", "theta", "q_rope", "another base", values=(10000.0,), key="theta")
def _(e, right, value, l, tap):
    return value

@mistake("rope-scaling", "frequencies", "q_rope", "absent: no scaling; linear: every frequency / factor; inverse: freq * factor for freq / factor",
         values=("absent", "linear", "inverse"), needs=lambda e: e.config.get("rope_scaling"))
def _(e, right, value, l, tap):
    f, (scaled, factor) = e.powers(l, tap), right(l, tap)
    return {"absent": (f, 1.0), "linear": (f / e.scaling(l, tap)["factor"], 1.0), "inverse": (f * f / scaled, factor)}[value]

@mistake("rope-attention-factor", "frequencies", "q_rope", "YaRN's factor on cos and sin ignored, or squared", values=("ignored", "twice"),
         needs=lambda e: e.scaling(0, "q_rope").get("rope_type") == "yarn")
def _(e, right, value, l, tap):
    f, factor = right(l, tap)
    return f, 1.0 if value == "ignored" else factor**2

@mistake("rope-partial", "rotate", "q_rope k_rope", "only this part of each head rotated", values=(0.5,), key="fraction")
def _(e, right, value, l, tap, x, cos, sin):
    n = int(e.d * value)
    return np.concatenate([right(l, tap, x[..., :n], cos[..., :n // 2], sin[..., :n // 2]), x[..., n:]], axis=-1)

@mistake("rope-exponent", "powers", "q_rope", "theta^(-i/d) for theta^(-2i/d)")
def _(e, right, value, l, tap):
    return np.sqrt(right(l, tap))

@mistake("rope-direction", "rotate", "q_rope k_rope", "rotated the other way")
def _(e, right, value, l, tap, x, cos, sin):
    return right(l, tap, x, cos, -sin)

@mistake("rope-position", "positions", "q_rope",
         "shifted: every position one too high; decode-zero: decoded tokens at position 0; decode-ahead: decoded tokens one too far; "
         "decode-stuck: all decoded tokens at the first one's position",
         values=("shifted", "decode-zero", "decode-ahead", "decode-stuck"), step={"decode-zero": 1, "decode-ahead": 1, "decode-stuck": 2})
def _(e, right, value, l, tap, count):
    by = {"shifted": 1, "decode-zero": -e.start, "decode-ahead": 1, "decode-stuck": 1 - e.step}[value]
    return right(l, tap, count) + (by if value == "shifted" or e.step > 0 else 0)

@mistake("rope-omitted", "rotate", "q_rope k_rope", "not rotated")
def _(e, right, value, l, tap, x, cos, sin):
    return x

@mistake("rope-twice", "rotate", "q_rope k_rope", "rotated twice")
def _(e, right, value, l, tap, x, cos, sin):
    return right(l, tap, right(l, tap, x, cos, sin), cos, sin)

@mistake("aliasing", "rotate", "q_rope k_rope", "rotated in place: the first half of each pair is written before the second has read it")
def _(e, right, value, l, tap, x, cos, sin):
    a, b = np.split(x, 2, axis=-1)
    a = a * cos - b * sin
    return np.concatenate([a, b * cos + a * sin], axis=-1)

@mistake("rope-on-v", "remember", "qk", "v rotated too", shows="context")
def _(e, right, value, l, tap, k, v):
    return right(l, tap, k, e.rotate(l, tap, v, *e.angles(l, "q_rope")))

@mistake("rope-precision", "angles", "q_rope", "cos and sin in bf16")
def _(e, right, value, l, tap):
    return tuple(to_bf16(x) for x in right(l, tap))

# Attention

@mistake("score-scale", "scale", "scores", "absent: raw products; per-d: 1/d; per-model: 1/sqrt(D)", values=("absent", "per-d", "per-model"))
def _(e, right, value, l, tap):
    return {"absent": 1, "per-d": 1 / e.d, "per-model": 1 / math.sqrt(e.D)}[value]

@mistake("score-softcap", "scores", "scores", "scores capped, cap * tanh(x / cap), where this family has no cap", values=(50.0,), key="cap")
def _(e, right, value, l, tap, qk):
    x = right(l, tap, qk)
    return np.where(np.isinf(x), x, np.float32(value) * np.tanh(x / np.float32(value)))

@mistake("mask-omitted", "allowed", "scores", "the future attended")
def _(e, right, value, l, tap, T, S):
    return np.ones((T, S), bool)

@mistake("mask-shifted", "allowed", "scores", "future: one key of the future seen; past: the token itself not seen", values=("future", "past"))
def _(e, right, value, l, tap, T, S):
    last = np.arange(S - T, S)[:, None] + (1 if value == "future" else -1)
    return (np.arange(S) <= last) & (right(l, tap, T, S) | (np.arange(S) == last))

@mistake("mask-inverted", "allowed", "scores", "the past hidden, the future seen")
def _(e, right, value, l, tap, T, S):
    return ~right(l, tap, T, S)

@mistake("mask-fill", "scores", "scores", "hidden scores set to 0 for -inf")
def _(e, right, value, l, tap, qk):
    x = right(l, tap, qk)
    return np.where(np.isinf(x), np.float32(0), x)

@mistake("mask-after-softmax", "scores", "scores probs", "the mask multiplied in after the softmax")
def _(e, right, value, l, tap, qk):
    return qk * np.float32(e.scale(l, tap))

@mistake("mask-after-softmax", "softmax", "scores probs", "")
def _(e, right, value, l, tap, x):
    return right(l, tap, x) * e.allowed(l, tap, *x.shape[1:])

@mistake("window-size", "window", "scores", "ignored; or one key too wide or narrow", values=("ignored", "wide", "narrow"),
         needs=lambda e: any(e.window(l, "scores") for l in range(e.L)))
def _(e, right, value, l, tap):
    w = right(l, tap)
    return w and {"ignored": None, "wide": w + 1, "narrow": w - 1}[value]

@mistake("softmax-axis", "softmax", "probs", "over the queries")
def _(e, right, value, l, tap, x):
    return right(l, tap, x.swapaxes(1, 2)).swapaxes(1, 2)

@mistake("softmax-base", "softmax", "probs", "2^x for e^x")
def _(e, right, value, l, tap, x):
    return right(l, tap, x * np.float32(math.log(2)))

@mistake("sink-omitted", "softmax", "probs", "a sink of score 0 in the denominator, where this family has none")
def _(e, right, value, l, tap, x):
    return right(l, tap, np.concatenate([x, np.zeros_like(x[..., :1])], axis=-1))[..., :-1]

@mistake("kv-head-map", "kv_heads", "qk context", "mod: h % K for h / (H/K); zero: head 0 for all", values=("mod", "zero"))
def _(e, right, value, l, tap):
    return np.arange(e.H) % e.K if value == "mod" else np.zeros(e.H, int)

@mistake("kv-cache-shift", "remember", "qk", "a decoded token's key and value written one slot early, over the last one's", step=1)
def _(e, right, value, l, tap, k, v):
    k, v = right(l, tap, k, v)
    if e.step > 0:
        k, v = (np.concatenate([x[:-2], x[-1:], 0 * x[-1:]]) for x in (k, v))
        e.cache[l] = k, v
    return k, v

@mistake("kv-cache-stale", "remember", "qk", "a decoded token does not see its own key and value: the slot still holds the last one's", step=1)
def _(e, right, value, l, tap, k, v):
    k, v = right(l, tap, k, v)
    return tuple(np.concatenate([x[:-1], x[-2:-1]]) for x in (k, v)) if e.step > 0 else (k, v)

@mistake("context-layout", "merge_heads", "context", "heads merged without the transpose")
def _(e, right, value, l, tap, x):
    return x.reshape(x.shape[1], -1)

# Feed-forward, residual stream, head

@mistake("gate-up-swapped", "gated", "ffn_act", "silu(up) * gate")
def _(e, right, value, l, tap, gate, up):
    return right(l, tap, up, gate)

ACTIVATIONS = {
    "gelu-tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu-erf": lambda x: 0.5 * x * (1 + np.vectorize(math.erf, otypes=[np.float32])(x / math.sqrt(2))),
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "none": lambda x: x,
}

@mistake("activation", "activation", "ffn_act", "another for SiLU", values=tuple(ACTIVATIONS))
def _(e, right, value, l, tap, x):
    return ACTIVATIONS[value](x)

@mistake("activation-clamp", "gated", "ffn_act", "up + 1, as gpt-oss's (its clamp at 7 would show on none of the small models)", values=("plus-one",))
def _(e, right, value, l, tap, gate, up):
    return right(l, tap, gate, up + 1)

@mistake("gate-product", "gated", "ffn_act", "added: activation(gate) + up; ungated: activation(up)", values=("added", "ungated"))
def _(e, right, value, l, tap, gate, up):
    return e.activation(l, tap, gate) + up if value == "added" else e.activation(l, tap, up)

@mistake("residual-source", "add", "h_attn", "doubled: h + h, the branch lost; normed: the normed input + the branch; input: (@h) the layer's input + the branch",
         values=("doubled", "normed", "input"))
def _(e, right, value, l, tap, h, branch):
    if value == "doubled":
        return right(l, tap, h, h)
    other = "input" if value == "input" else {"h_attn": "attn_norm", "h": "ffn_norm"}[tap]
    return right(l, tap, e.seen(l, other), branch)

@mistake("residual-omitted", "add", "h_attn", "the branch alone")
def _(e, right, value, l, tap, h, branch):
    return branch

@mistake("residual-parallel", "norm", "ffn_norm", "the feed-forward reads the layer's input, as attention does")
def _(e, right, value, l, tap, x):
    return right(l, tap, e.seen(l, "input"))

@mistake("residual-scale", "add", "h_attn h", "the branch times a factor", values=(0.5,), key="factor")
def _(e, right, value, l, tap, h, branch):
    return right(l, tap, h, branch * np.float32(value))

@mistake("layer-skipped", "block", "h", "the layer not run")
def _(e, right, value, l, tap, h):
    return e.record(l, tap, h)

@mistake("final-norm-omitted", "norm", "final_norm", "omitted, or applied twice", values=("omitted", "twice"))
def _(e, right, value, l, tap, x):
    return x if value == "omitted" else right(l, tap, right(l, tap, x))

@mistake("head-tied", "tensor", "logits", "the embedding for the head's own matrix", needs=lambda e: not e.tied)
def _(e, right, value, l, tap, name):
    return right(l, tap, "model.embed_tokens.weight")

@mistake("head-untied", "matrix", "logits", "a head of its own, never loaded (ones), for the embedding", needs=lambda e: e.tied)
def _(e, right, value, l, tap):
    return np.ones_like(right(l, tap))

@mistake("logit-scale", "linear", "logits", "the logits times a factor", values=(0.5,), key="factor")
def _(e, right, value, l, tap, x):
    return right(l, tap, x) * np.float32(value)

@mistake("logit-softcap", "linear", "logits", "logits capped, where this family has no cap", values=(30.0,), key="cap")
def _(e, right, value, l, tap, x):
    return np.float32(value) * np.tanh(right(l, tap, x) / np.float32(value))

@mistake("logit-row", "linear", "logits", "the logits of the position before")
def _(e, right, value, l, tap, x):
    return np.roll(right(l, tap, x), 1, axis=0)

"""A decoder in NumPy with a hook at each operation, in which scripts/forms makes its mistakes. It shares no code with firstdiff.

f32; bf16 and f16 round weights and each result, as PyTorch does; q8_0 and q4_0 multiply blocks of 8 and 4 bits by activations of 8 bits, as ggml does, from
a GGUF that llama.cpp has quantised. A mistake replaces one operation, the *site*: the tap where it first shows.
"""

import json
import math
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

HF_TO_GGUF = Path(__file__).resolve().parent.parent / "convert" / "hf_to_gguf.py"
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
    for command in ([HF_TO_GGUF, folder, whole, "--dtype", "f32"], ["-c", code, whole, path, GGML[arith]]):
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
    (folder / "dump.json").write_text(json.dumps({"format": 1, "complete": True, "producer": {"name": "hooked_engine.py", "version": "1"}, "architecture": arch,
                                                  "tokens": [int(i) for i in ids], "taps": entries} | stated))

"""Runs a Llama in MLX: its own modules, `mx.fast`, [1,H,T,d] attention, one safetensors file for each step.

Variants: f32; bf16; q8 and q4: affine blocks of 32 weights by `nn.quantize`, as mlx-lm makes them (q8 with the embedding);
fused: `mx.fast.scaled_dot_product_attention`, which shows no scores. q8 and q4 leave the dequantised model beside the dump.
Requirements: ../requirements/engines.txt
"""

import json
import math
import shutil

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from .model import Model, arguments

MISTAKES = ["rope-pairing", "norm-eps", "kv-head-map", "scaled-matrix", "rope-position", "gate-up-swapped", "residual-omitted"]
TAPS, WRONG = {}, None


def tap(name, x):
    TAPS[name] = x
    return x


class Attention(nn.Module):
    def __init__(self, m, n, fused):
        super().__init__()
        self.n, self.H, self.K, self.d, self.fused = n, m.H, m.K, m.d, fused
        self.q_proj, self.k_proj = nn.Linear(m.D, m.H * m.d, bias=m.bias), nn.Linear(m.D, m.K * m.d, bias=m.bias)
        self.v_proj, self.o_proj = nn.Linear(m.D, m.K * m.d, bias=m.bias), nn.Linear(m.H * m.d, m.D, bias=False)
        if m.qk_norm:
            self.q_norm, self.k_norm = nn.RMSNorm(m.d, m.eps), nn.RMSNorm(m.d, m.eps)
        frequencies, self._factor = m.frequencies()
        self._periods = mx.array(1.0 / frequencies)  # what mx.fast.rope calls freqs

    def rotate(self, x, offset):
        if WRONG == "rope-position" and offset:
            offset = 0
        turned = mx.fast.rope(x, self.d, traditional=WRONG == "rope-pairing", base=None, scale=1.0, offset=offset, freqs=self._periods)
        return turned * self._factor if self._factor != 1.0 else turned

    def __call__(self, x, cache):
        at, T = f"model.layers.{self.n}.self_attn", x.shape[1]
        heads = lambda y, count: y.reshape(1, T, count, self.d)
        q, k = heads(tap(f"{at}.q_proj", self.q_proj(x)), self.H), heads(tap(f"{at}.k_proj", self.k_proj(x)), self.K)
        v = heads(tap(f"{at}.v_proj", self.v_proj(x)), self.K).transpose(0, 2, 1, 3)
        if "q_norm" in self:
            q, k = tap(f"{at}.q_norm", self.q_norm(q)), tap(f"{at}.k_norm", self.k_norm(k))
        past = cache[0].shape[2] if cache else 0
        q = tap(f"layers.{self.n}.q_rope", self.rotate(q.transpose(0, 2, 1, 3), past))
        k = tap(f"layers.{self.n}.k_rope", self.rotate(k.transpose(0, 2, 1, 3), past))
        if cache:
            k, v = mx.concatenate([cache[0], k], axis=2), mx.concatenate([cache[1], v], axis=2)
        scale = 1 / math.sqrt(self.d)
        if self.fused:
            out = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal" if T > 1 else None)
        else:
            spread = (lambda y: mx.tile(y, (1, self.H // self.K, 1, 1))) if WRONG == "kv-head-map" else (lambda y: mx.repeat(y, self.H // self.K, axis=1))
            scores = (q * scale) @ spread(k).transpose(0, 1, 3, 2)
            future = mx.arange(past + T)[None] > mx.arange(past, past + T)[:, None]
            scores = tap(f"layers.{self.n}.scores", mx.where(future, mx.array(-mx.inf, scores.dtype), scores))
            probs = tap(f"layers.{self.n}.probs", mx.softmax(scores, axis=-1, precise=True))
            out = probs @ spread(v)
        out = tap(f"{at}.o_proj:in", out.transpose(0, 2, 1, 3).reshape(1, T, -1))
        return tap(f"{at}.o_proj", self.o_proj(out)), (k, v)


class MLP(nn.Module):
    def __init__(self, m, n):
        super().__init__()
        self.n = n
        self.gate_proj, self.up_proj = nn.Linear(m.D, m.F, bias=False), nn.Linear(m.D, m.F, bias=False)
        self.down_proj = nn.Linear(m.F, m.D, bias=False)

    def __call__(self, x):
        at = f"model.layers.{self.n}.mlp"
        gate, up = tap(f"{at}.gate_proj", self.gate_proj(x)), tap(f"{at}.up_proj", self.up_proj(x))
        if WRONG == "gate-up-swapped":
            gate, up = up, gate
        return tap(f"{at}.down_proj", self.down_proj(tap(f"{at}.down_proj:in", nn.silu(gate) * up)))


class Layer(nn.Module):
    def __init__(self, m, n, fused):
        super().__init__()
        eps = 1e-2 if WRONG == "norm-eps" else m.eps
        self.n, self.self_attn, self.mlp = n, Attention(m, n, fused), MLP(m, n)
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(m.D, eps), nn.RMSNorm(m.D, m.eps)

    def __call__(self, x, cache):
        at = f"model.layers.{self.n}"
        out, cache = self.self_attn(tap(f"{at}.input_layernorm", self.input_layernorm(x)), cache)
        h = tap(f"{at}.post_attention_layernorm:in", x + out)
        out = self.mlp(tap(f"{at}.post_attention_layernorm", self.post_attention_layernorm(h)))
        return tap(at, out if WRONG == "residual-omitted" and self.n == 1 else h + out), cache


class Inner(nn.Module):
    def __init__(self, m, fused):
        super().__init__()
        self.embed_tokens, self.norm = nn.Embedding(m.V, m.D), nn.RMSNorm(m.D, m.eps)
        self.layers = [Layer(m, n, fused) for n in range(m.layers)]


class Llama(nn.Module):
    def __init__(self, m, fused):
        super().__init__()
        self.model = Inner(m, fused)
        if m.head == "lm_head.weight":
            self.lm_head = nn.Linear(m.D, m.V, bias=False)

    def __call__(self, tokens, caches):
        x = tap("model.embed_tokens", self.model.embed_tokens(mx.array([tokens])))
        for n, layer in enumerate(self.model.layers):
            x, caches[n] = layer(x, caches[n])
        x = tap("model.norm", self.model.norm(x))
        tap("lm_head", self.lm_head(x) if "lm_head" in self else self.model.embed_tokens.as_linear(x))


def dequantised(model, m, folder):
    """The Hugging Face folder of the weights that the quantised modules stand for."""
    from safetensors.numpy import save_file

    weights = dict(m.weights)
    for name, module in model.named_modules():
        if isinstance(module, (nn.QuantizedLinear, nn.QuantizedEmbedding)):
            weights[f"{name}.weight"] = np.array(mx.dequantize(module.weight, module.scales, module.biases, module.group_size, module.bits))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(m.config))


def main(argv=None):
    global WRONG
    args = arguments(__doc__, ["f32", "bf16", "q8", "q4", "fused"], MISTAKES, argv)
    WRONG = args.mistake
    m = Model(args.model)
    model = Llama(m, args.variant == "fused")
    model.load_weights([(name, mx.array(w)) for name, w in m.weights.items()])
    if args.variant == "bf16":
        model.set_dtype(mx.bfloat16)
    if args.variant in ("q8", "q4"):
        kinds = (nn.Linear, nn.Embedding) if args.variant == "q8" else nn.Linear
        nn.quantize(model, group_size=32, bits=int(args.variant[1]), class_predicate=lambda _, module: isinstance(module, kinds))
        if not WRONG:
            dequantised(model, m, args.out.with_name(args.out.name + "-dequantised"))
    if WRONG == "scaled-matrix":  # one matrix off by a tenth, where its scales were read
        down = model.model.layers[1].mlp.down_proj
        if isinstance(down, nn.QuantizedLinear):
            down.scales, down.biases = down.scales * 1.1, down.biases * 1.1
        else:
            down.weight = down.weight * 1.1
    caches = [None] * m.layers
    for step, tokens in enumerate([args.tokens, *([token] for token in args.decode_tokens)]):
        TAPS.clear()
        model(tokens, caches)
        folder = args.out / f"step{step}"
        folder.mkdir(parents=True)
        mx.save_safetensors(str(folder / "run.safetensors"), {name: mx.contiguous(x) for name, x in TAPS.items()})


if __name__ == "__main__":
    main()

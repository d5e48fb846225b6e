"""Runs a Llama in JAX and in Flax: pure functions, einsum over named axes, `lax.scan` over stacked layers.

Variants: f32; bf16 (weights and activations, norms and softmax in f32, as is usual); stacked: the scan's own outputs, [L,1,T,..] a name;
flax, flax-bf16: a linen module whose `capture_intermediates` are written under their own paths, with a firstdiff.toml beside them.
Requirements: ../requirements/engines.txt
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from .model import Model, arguments

MISTAKES = ["mask-omitted", "score-scale", "rope-position", "weight-transposed", "residual-source", "norm-wrong-weight", "activation", "qk-norm-order"]
WRONG = None


def rotate(x, positions, frequencies, factor):
    """x [B,T,H,d] by halves."""
    angle = positions[:, None] * frequencies
    cos, sin = (jnp.cos(angle) * factor)[None, :, None], (jnp.sin(angle) * factor)[None, :, None]
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def rms(x, gain, eps):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)).astype(x.dtype) * gain


# ---- plain JAX ----


def stacked_weights(m, dtype):
    """name -> [L, ...], in the layout einsum reads: q [L,D,H,d], o [L,H,d,D]."""
    stack = lambda name, kind="weight": jnp.asarray(np.stack([m.of_layer(n, name, kind) for n in range(m.layers)]), dtype)
    p = {"attn_norm": stack("input_layernorm"), "ffn_norm": stack("post_attention_layernorm")}
    for name, heads in (("q", m.H), ("k", m.K), ("v", m.K)):
        w = stack(f"self_attn.{name}_proj")
        if WRONG == "weight-transposed" and name == "q":
            assert w.shape[1] == w.shape[2], "only a square matrix can be read transposed unseen"
            w = w.transpose(0, 2, 1)
        p[name] = w.reshape(m.layers, heads, m.d, m.D).transpose(0, 3, 1, 2)
        if m.bias:
            p[f"{name}_bias"] = stack(f"self_attn.{name}_proj", "bias").reshape(m.layers, heads, m.d)
    if m.qk_norm:
        p |= {"q_norm": stack("self_attn.q_norm"), "k_norm": stack("self_attn.k_norm")}
    p["o"] = stack("self_attn.o_proj").reshape(m.layers, m.D, m.H, m.d).transpose(0, 2, 3, 1)
    for name in ("gate", "up", "down"):
        p[name] = stack(f"mlp.{name}_proj").transpose(0, 2, 1)
    return p


def layer(m, h, p, cache, past):
    """One layer of the scan: h [1,T,D], cache (k, v) [1,S,K,d]. Returns the stream, the longer cache and all that is to be seen."""
    T, group = h.shape[1], m.H // m.K
    frequencies, factor = m.frequencies()
    positions = jnp.arange(T) + (0 if WRONG == "rope-position" else past)
    seen = {"attn_norm": rms(h, p["attn_norm"], m.eps)}
    for name in ("q", "k", "v"):
        seen[name] = jnp.einsum("btd,dhk->bthk", seen["attn_norm"], p[name])
        if m.bias:
            seen[name] = seen[name] + p[f"{name}_bias"]
    q, k = seen["q"], seen["k"]
    if m.qk_norm and WRONG == "qk-norm-order":
        q, k = (rotate(x, positions, frequencies, factor) for x in (q, k))
        seen["q_rope"], seen["k_rope"] = rms(q, p["q_norm"], m.eps), rms(k, p["k_norm"], m.eps)
    else:
        if m.qk_norm:
            q, k = seen["q_norm"], seen["k_norm"] = rms(q, p["q_norm"], m.eps), rms(k, p["k_norm"], m.eps)
        seen["q_rope"], seen["k_rope"] = rotate(q, positions, frequencies, factor), rotate(k, positions, frequencies, factor)
    keys, values = jnp.concatenate([cache[0], seen["k_rope"]], axis=1), jnp.concatenate([cache[1], seen["v"]], axis=1)
    grouped = seen["q_rope"].reshape(1, T, m.K, group, m.d)
    scores = jnp.einsum("btkgd,bskd->bkgts", grouped, keys).astype(jnp.float32) / (m.d if WRONG == "score-scale" else math.sqrt(m.d))
    if WRONG != "mask-omitted":
        scores = jnp.where(jnp.arange(past + T)[None] <= past + jnp.arange(T)[:, None], scores, jnp.finfo(jnp.float32).min)
    probs = jax.nn.softmax(scores, axis=-1).astype(h.dtype)
    seen["scores"], seen["probs"] = scores.reshape(1, m.H, T, -1), probs.reshape(1, m.H, T, -1)
    seen["context"] = jnp.einsum("bkgts,bskd->btkgd", probs, values).reshape(1, T, m.H, m.d)
    seen["attn_out"] = jnp.einsum("bthd,hdf->btf", seen["context"], p["o"])
    seen["h_attn"] = (seen["attn_norm"] if WRONG == "residual-source" else h) + seen["attn_out"]
    seen["ffn_norm"] = rms(seen["h_attn"], p["ffn_norm"], m.eps)
    seen["ffn_gate"], seen["ffn_up"] = seen["ffn_norm"] @ p["gate"], seen["ffn_norm"] @ p["up"]
    seen["ffn_act"] = jax.nn.silu(seen["ffn_gate"]) * seen["ffn_up"]
    seen["ffn_out"] = seen["ffn_act"] @ p["down"]
    seen["h"] = seen["h_attn"] + seen["ffn_out"]
    return seen["h"], (keys, values), seen


def run(m, tokens, decode, dtype):
    """[(what the scan saw [L,1,T,..], what is outside the layers)], one a step."""
    p, embed = stacked_weights(m, dtype), jnp.asarray(m.weights["model.embed_tokens.weight"], dtype)
    gain, head = jnp.asarray(m.weights["model.norm.weight"], dtype), jnp.asarray(m.weights[m.head], dtype)
    caches = tuple(jnp.zeros((m.layers, 1, 0, m.K, m.d), dtype) for _ in "kv")
    past, steps = 0, []
    for tokens in [tokens, *([token] for token in decode)]:
        h0 = embed[jnp.asarray([tokens])]

        @jax.jit
        def body(h, over, past=past):
            weights, cache = over
            h, cache, seen = layer(m, h, weights, cache, past)
            return h, (cache, seen)

        h, (caches, seen) = jax.lax.scan(body, h0, (p, caches))
        norm = rms(h, gain, m.eps)
        steps.append((seen, {"h0": h0, "final_norm": norm, "logits": (norm @ head.T).astype(dtype)}))
        past += len(tokens)
    return steps


def write(path, steps, stacked):
    """One .npz; bf16 as 2-byte voids, which is what NumPy makes of it."""
    arrays = {}
    for step, (seen, outside) in enumerate(steps):
        suffix = f".step{step}" if step else ""
        for name, x in outside.items():
            arrays[name + suffix] = x
        for name, x in seen.items():
            for n in range(0 if stacked else x.shape[0]):
                arrays[f"layers.{n}.{name}{suffix}"] = x[n]
            if stacked:
                arrays[f"layers.{name}{suffix}"] = x
    np.savez(path, **{name: np.asarray(x) for name, x in arrays.items()})


# ---- Flax ----


def flax_module(m, dtype):
    import flax.linen as nn

    class Norm(nn.Module):
        @nn.compact
        def __call__(self, x):
            return rms(x, self.param("scale", nn.initializers.ones, (x.shape[-1],)).astype(dtype), m.eps)

    dense = lambda features, name, bias=False: nn.Dense(features, use_bias=bias, dtype=dtype, name=name)

    class Attention(nn.Module):
        @nn.compact
        def __call__(self, x):
            T = x.shape[1]
            q, k, v = dense(m.H * m.d, "query", m.bias)(x), dense(m.K * m.d, "key", m.bias)(x), dense(m.K * m.d, "value", m.bias)(x)
            frequencies, factor = m.frequencies()
            q, k = q.reshape(1, T, m.H, m.d), k.reshape(1, T, m.K, m.d)
            if m.qk_norm:
                q, k = Norm(name="query_norm")(q), Norm(name="key_norm")(k)
            q, k = (rotate(y, jnp.arange(T), frequencies, factor) for y in (q, k))
            self.sow("intermediates", "rotated_query", q)
            self.sow("intermediates", "rotated_key", k)
            k, v = (jnp.repeat(y, m.H // m.K, axis=2) for y in (k, v.reshape(1, T, m.K, m.d)))
            out = nn.dot_product_attention(q, k, v, mask=nn.make_causal_mask(jnp.zeros((1, T))), dtype=dtype)
            self.sow("intermediates", "merged", out)
            return dense(m.D, "out")(out.reshape(1, T, -1))

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = x + Attention(name="attention")(Norm(name="norm_1")(x))
            self.sow("intermediates", "middle", x)
            y = Norm(name="norm_2")(x)
            act = (lambda z: nn.gelu(z, approximate=False)) if WRONG == "activation" else nn.silu
            z = act(dense(m.F, "gate")(y)) * dense(m.F, "up")(y)
            self.sow("intermediates", "hidden", z)
            return x + dense(m.D, "down")(z)

    class Llama(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x = nn.Embed(m.V, m.D, dtype=dtype, name="embed")(tokens)
            for n in range(m.layers):
                x = Block(name=f"block_{n}")(x)
            return dense(m.V, "head")(Norm(name="norm")(x))

    return Llama()


FLAX_WEIGHTS = {"attention/query": "self_attn.q_proj", "attention/key": "self_attn.k_proj", "attention/value": "self_attn.v_proj",
                "attention/out": "self_attn.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
FLAX_NORMS = {"norm_1": "input_layernorm", "norm_2": "post_attention_layernorm", "attention/query_norm": "self_attn.q_norm",
              "attention/key_norm": "self_attn.k_norm"}
FLAX_MAP = """"embed/__call__/0" = "h0"
"block_{N}/norm_1/__call__/0" = "layers.{N}.attn_norm"
"block_{N}/attention/query/__call__/0" = "layers.{N}.q"
"block_{N}/attention/key/__call__/0" = "layers.{N}.k"
"block_{N}/attention/value/__call__/0" = "layers.{N}.v"
"block_{N}/attention/query_norm/__call__/0" = "layers.{N}.q_norm"
"block_{N}/attention/key_norm/__call__/0" = "layers.{N}.k_norm"
"block_{N}/attention/rotated_query/0" = "layers.{N}.q_rope"
"block_{N}/attention/rotated_key/0" = "layers.{N}.k_rope"
"block_{N}/attention/merged/0" = "layers.{N}.context"
"block_{N}/attention/out/__call__/0" = "layers.{N}.attn_out"
"block_{N}/middle/0" = "layers.{N}.h_attn"
"block_{N}/norm_2/__call__/0" = "layers.{N}.ffn_norm"
"block_{N}/gate/__call__/0" = "layers.{N}.ffn_gate"
"block_{N}/up/__call__/0" = "layers.{N}.ffn_up"
"block_{N}/hidden/0" = "layers.{N}.ffn_act"
"block_{N}/down/__call__/0" = "layers.{N}.ffn_out"
"block_{N}/__call__/0" = "layers.{N}.h"
"norm/__call__/0" = "final_norm"
"head/__call__/0" = "logits"
"""


def run_flax(m, tokens, dtype):
    """path -> array, as `capture_intermediates` leaves them."""
    from flax.traverse_util import flatten_dict, unflatten_dict

    params = {"embed/embedding": m.weights["model.embed_tokens.weight"], "norm/scale": m.weights["model.norm.weight"],
              "head/kernel": m.weights[m.head].T}
    for n in range(m.layers):
        for path, name in FLAX_WEIGHTS.items():
            params[f"block_{n}/{path}/kernel"] = m.of_layer(n, name).T
            if m.of_layer(n, name, "bias") is not None:
                params[f"block_{n}/{path}/bias"] = m.of_layer(n, name, "bias")
        for path, name in FLAX_NORMS.items():
            if m.of_layer(n, name) is not None:
                other = (n + 1) % m.layers if WRONG == "norm-wrong-weight" and path == "norm_2" else n
                params[f"block_{n}/{path}/scale"] = m.of_layer(other, name)
    variables = {"params": unflatten_dict({tuple(path.split("/")): jnp.asarray(w) for path, w in params.items()})}
    _, state = flax_module(m, dtype).apply(variables, jnp.asarray([tokens]), capture_intermediates=True, mutable=["intermediates"])
    found = flatten_dict(state["intermediates"])
    return {"/".join(path) + f"/{i}": np.asarray(x) for path, values in found.items() for i, x in enumerate(values)}


def main(argv=None):
    global WRONG
    args = arguments(__doc__, ["f32", "bf16", "stacked", "flax", "flax-bf16"], MISTAKES, argv)
    WRONG = args.mistake
    jax.config.update("jax_default_matmul_precision", "highest")
    m, dtype = Model(args.model), jnp.bfloat16 if args.variant.endswith("bf16") else jnp.float32
    args.out.mkdir(parents=True)
    if args.variant.startswith("flax"):
        np.savez(args.out / "intermediates.npz", **run_flax(m, args.tokens, dtype))
        (args.out / "firstdiff.toml").write_text(FLAX_MAP)
    else:
        with jax.disable_jit(WRONG is not None):  # op by op where a mistake is planted: to compile takes most of the time
            steps = run(m, args.tokens, args.decode_tokens, dtype)
        write(args.out / "run.npz", steps, args.variant == "stacked")


if __name__ == "__main__":
    main()

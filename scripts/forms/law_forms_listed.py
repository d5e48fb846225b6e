#!/usr/bin/env python3
"""law_forms_listed.py: mistakes that the catalogue lists, in the engine of law_forms.py: for mixtures of listed and unlisted ones (test_laws.py --together).

What is expected is the catalogue's id, and its numbers where it has any.
"""

import numpy as np

from scripts.forms.law_forms import ROPES, D, F32, FREQ, H, K, LAYERS, T, d, over, rms, sigmoid, softmax, turn, listed

FORMS, form = listed()


def pairs_of_neighbours(c):
    order = np.arange(d).reshape(-1, 2).T.reshape(-1)
    y = np.empty_like(c.x)
    y[..., order] = turn(c.e, c.x[..., order], (np.arange(T)[:, None] * FREQ).astype(F32)[:, None])
    return y


def next_layer(name):
    return lambda c: c.right(w=c.e.m(name, (c.l + 1) % LAYERS))


NORMS = {"attn_norm": "input_layernorm.weight", "ffn_norm": "post_attention_layernorm.weight"}

form("eps_attn", "attn_norm", "epsilon 1e-3", "norm-eps & #0.001", lambda c: c.right(eps=1e-3))
form("eps_ffn", "ffn_norm", "epsilon 1e-2", "norm-eps & #0.01", lambda c: c.right(eps=1e-2))
form("gain_omitted", "ffn_norm", "no gain", "norm-weight-omitted", lambda c: c.x / rms(c.x))
form("gain_plus_one", "attn_norm", "1 + gain", "norm-plus-one", lambda c: c.right(w=1 + c.w))
form("gain_twice", "final_norm", "the gain twice", "norm-weight-twice", lambda c: c.right() * c.w)
form("centred", "ffn_norm", "the mean taken off first", "norm-centered", lambda c: c.right(x=c.x - c.x.mean(-1, keepdims=True)))
form("q_transposed", "q", "bytes read as [in,out]", "weight-transposed", lambda c: c.right(w=c.w.reshape(c.w.shape[::-1]).T))
form("k_next_layer", "k", "the next layer's matrix", "weight-wrong-layer", next_layer("self_attn.k_proj.weight"), archs=("llama", "qwen3", "moe"))
form("v_unset", "v", "a matrix of zeros", "weight-unset", lambda c: c.right(w=np.zeros_like(c.w)), archs=("llama", "qwen3", "moe"))
form("o_next_layer", "attn_out", "the next layer's matrix", "weight-wrong-layer", next_layer("self_attn.o_proj.weight"))
form("bias_lost", "q", "no bias", "bias-omitted", lambda c: c.right(b=None), archs=("qwen2",))
form("neighbours", ROPES, "neighbours rotated", "rope-pairing", pairs_of_neighbours)
form("theta", ROPES, "base 500000", "rope-theta & #500000", lambda c: c.right(freq=500000.0 ** (-np.arange(0, d, 2) / d)))
form("other_way", ROPES, "rotated the other way", "rope-direction", lambda c: c.right(freq=-FREQ))
form("late", ROPES, "positions from 1", "rope-position", lambda c: c.right(pos=c.pos + 1))
form("per_d", "probs", "scores / d", "score-scale", lambda c: c.right(scale=1 / d))
form("no_mask", "probs", "the future seen", "mask-omitted", lambda c: c.right(mask=np.ones((T, T), bool)))
form("sink", "probs", "a sink of 0", "sink-omitted", lambda c: c.right(soft=lambda s: np.exp(s - s.max(-1, keepdims=True)) / (np.exp(s - s.max(-1, keepdims=True)).sum(-1, keepdims=True) + np.exp(-s.max(-1, keepdims=True)))))
form("heads_mod", "context", "key head h % K", "kv-head-map", lambda c: np.einsum("hts,shd->thd", c.p, c.v[:, np.arange(H) % K]).reshape(T, -1))
form("gate_up", "ffn_act", "silu(up) * gate", "gate-up-swapped", lambda c: c.right(gate=c.up, up=c.gate))
form("gelu", "ffn_act", "GELU by the sigmoid", "activation", lambda c: c.gate * sigmoid(F32(1.702) * c.gate) * c.up)
form("branch_alone", "h_attn", "the branch alone", "residual-omitted", lambda c: c.y)
form("branch_half", "h", "half of the branch", "residual-scale & #0.5", lambda c: c.x + F32(0.5) * c.y)
form("embed_scale", "h0", "the embedding times sqrt(D)", "embed-scale|embed-multiplier", lambda c: c.right() * F32(D ** 0.5))
form("logit_scale", "logits", "the logits times 1.7", "logit-scale & #1.7", lambda c: c.right() * F32(1.7))
form("logit_cap", "logits", "capped at 5", "logit-softcap & #5", lambda c: F32(5) * np.tanh(c.right() / F32(5)))

#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["torch==2.9.1", "transformers==4.57.1", "numpy==2.4.6"]
# ///
"""Writes PyTorch's results of single operations as goldens for crates/core.

    op_goldens.py [--out fixtures/ops]   write the golden inputs and outputs of every operation of crates/core
    op_goldens.py --check                make them again and compare: inputs by the byte, outputs to NMSE 1e-13; exit 1 on a difference

One folder a case: the inputs as f32 (none for frequencies), `out.f32.npy` of a run in float32, `out.f64.npy` of the same inputs
widened to float64. No two dimensions of a case are equal, H != K, T >= 9: a layout mistake cannot pass. Where transformers has the operation, it is transformers that is run.
Requirements: torch==2.9.1 transformers==4.57.1 numpy==2.4.6
"""

import os

os.environ |= {k: "1" for k in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}  # a fixed order of summation

import argparse
import sys
import tempfile
import zlib
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, logging
from transformers.masking_utils import causal_mask_function, sdpa_mask, sliding_window_causal_mask_function
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb, repeat_kv

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import FIXTURES

T, S, D, H, K, d, FF, V = 11, 17, 48, 6, 2, 14, 80, 151


class Inputs:
    """Named inputs of a case: made from one seed a case, kept as f32."""

    def __init__(self, seed):
        self.rng, self.arrays = np.random.default_rng(seed), {}

    def normal(self, name, *shape, scale=1.0, offset=0.0):
        self.arrays[name] = (offset + scale * self.rng.standard_normal(shape)).astype(np.float32)

    def whole(self, name, values, dtype=np.int64):
        self.arrays[name] = np.asarray(values, dtype)


def rms_norm(x, weight, eps):
    # LlamaRMSNorm computes in f32 whatever it is given; the f64 run is its formula.
    if x.dtype == torch.float32:
        norm = LlamaRMSNorm(x.shape[-1], eps=eps)
        norm.weight.data = weight
        return norm(x)
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def rope_config(dim, theta, scaling):
    return LlamaConfig(head_dim=dim, rope_theta=theta, rope_scaling=scaling, max_position_embeddings=256)


def inv_freq(dim, theta, scaling, dtype):
    """transformers' frequencies [dim/2] and factor, computed in `dtype` where transformers has f32."""
    with mock.patch.multiple(torch, float=dtype, float32=dtype):
        kind = scaling["rope_type"] if scaling else "default"
        frequencies, factor = ROPE_INIT_FUNCTIONS[kind](rope_config(dim, theta, scaling), torch.device("cpu"))
    assert frequencies.dtype == dtype
    return frequencies, factor


def cos_sin(x, positions, dim, theta, scaling):
    """[T,dim] each: of LlamaRotaryEmbedding in f32; in f64 of the frequencies in f64."""
    if x.dtype == torch.float32:
        return (t[0] for t in LlamaRotaryEmbedding(rope_config(dim, theta, scaling))(x, positions[None]))
    frequencies, factor = inv_freq(dim, theta, scaling, x.dtype)
    angle = positions[:, None] * frequencies.repeat(2)
    return angle.cos() * factor, angle.sin() * factor


def frequencies_and_factor(dim, theta, scaling, dtype):
    frequencies, factor = inv_freq(dim, theta, scaling, dtype)
    return torch.cat([frequencies, torch.tensor([factor], dtype=dtype)])


def rope(x, positions, dim, theta, scaling, adjacent=False):
    """x [T,H,d], of which the first `dim` elements of each head turn."""
    cos, sin = cos_sin(x, positions, dim, theta, scaling)
    turned, rest = x[..., :dim], x[..., dim:]
    if adjacent:  # the same rotation on elements sorted into halves
        turned = torch.cat([turned[..., 0::2], turned[..., 1::2]], -1)
    turned = apply_rotary_pos_emb(turned, turned, cos, sin, unsqueeze_dim=1)[0]
    if adjacent:
        turned = torch.stack([turned[..., : dim // 2], turned[..., dim // 2:]], -1).flatten(-2)
    return torch.cat([turned, rest], -1)


def qk(q, k):
    keys = repeat_kv(k.transpose(0, 1)[None], H // k.shape[1])[0]
    return q.transpose(0, 1) @ keys.transpose(1, 2)


def masked(x, scale, cap=None, window=None, padding=None):
    x = x * scale
    if cap:
        x = torch.tanh(x / cap) * cap
    tokens, keys = x.shape[1:]
    rule = sliding_window_causal_mask_function(window) if window else causal_mask_function
    seen = sdpa_mask(1, torch.arange(keys - tokens, keys), keys, mask_function=rule, allow_is_causal_skip=False,
                     attention_mask=None if padding is None else padding.bool()[None])
    return x.masked_fill(~seen[0], float("-inf"))


def context(probs, v):
    values = repeat_kv(v.transpose(0, 1)[None], H // v.shape[1])[0]
    return (probs @ values).transpose(0, 1).reshape(probs.shape[1], -1)


LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
YARN_FULL = dict(YARN, beta_fast=16.0, beta_slow=2.0, mscale=0.7, mscale_all_dim=0.4, truncate=False)
# What the small cases above do not reach: released models' sizes, a factor that is given, and the ramp's corners.
FREQUENCIES = dict(
    default=(64, 1e6, None),
    linear=(64, 1e4, dict(rope_type="linear", factor=8.0)),
    llama3=(128, 5e5, dict(LLAMA3, original_max_position_embeddings=8192)),
    yarn=(128, 1e6, dict(YARN, original_max_position_embeddings=32768)),
    yarn_given=(22, 1e4, dict(YARN, attention_factor=1.37)),
    yarn_shrunk=(22, 1e4, dict(YARN, factor=0.5)),
    yarn_clamped=(16, 10.0, dict(YARN, beta_fast=2000.0, original_max_position_embeddings=4096)),
    yarn_vertical=(22, 1e4, dict(YARN, beta_fast=4.0, beta_slow=4.0, truncate=False, original_max_position_embeddings=640)),
)
LINEAR = dict(rope_type="linear", factor=4.0)
POSITIONS = [3, 4, 5, 9, 17, 40, 64, 65, 255, 1000, 4095]  # not from 0, and past the context that is scaled


def cases():
    """name -> (inputs, function of the inputs as tensors)"""
    table = {}

    def case(name, fill, run):
        inputs = Inputs(zlib.crc32(name.encode()))  # a new case leaves the others as they are
        fill(inputs)
        table[name] = (inputs.arrays, run)

    def x_w(i):
        i.normal("x", T, D, offset=0.3), i.normal("weight", D, offset=1.0, scale=0.3)

    def heads(i):
        i.normal("x", T, H, d), i.whole("positions", POSITIONS)

    def wide(i):
        i.normal("x", H, T, S, scale=4.0)

    case("embedding", lambda i: (i.normal("table", V, D), i.whole("tokens", [1, 150, 0, 7, 7, 42, 99, 3, 64, 128, 5])),
         lambda table, tokens: F.embedding(tokens, table))
    case("rms_norm", x_w, lambda x, weight: rms_norm(x, weight, 1e-5))
    case("rms_norm_small", lambda i: (i.normal("x", T, D, scale=1e-3), i.normal("weight", D)), lambda x, weight: rms_norm(x, weight, 1e-6))
    case("rms_norm_heads", lambda i: (i.normal("x", T, H, d), i.normal("weight", d, offset=1.0, scale=0.3)), lambda x, weight: rms_norm(x, weight, 1e-6))
    case("layer_norm", lambda i: (x_w(i), i.normal("bias", D)), lambda x, weight, bias: F.layer_norm(x, (D,), weight, bias, 1e-5))
    case("layer_norm_no_bias", x_w, lambda x, weight: F.layer_norm(x, (D,), weight, None, 1e-5))
    case("linear", lambda i: (i.normal("x", T, D), i.normal("weight", FF, D)), lambda x, weight: F.linear(x, weight))
    case("linear_bias", lambda i: (i.normal("x", T, D), i.normal("weight", FF, D), i.normal("bias", FF, scale=5)), F.linear)
    case("head", lambda i: (i.normal("x", T, D), i.normal("weight", V, D)), lambda x, weight: F.linear(x, weight))
    case("rope_half", heads, lambda x, positions: rope(x, positions, d, 10000.0, None))
    case("rope_adjacent", heads, lambda x, positions: rope(x, positions, d, 10000.0, None, adjacent=True))
    case("rope_partial", heads, lambda x, positions: rope(x, positions, 8, 500000.0, None))
    case("rope_linear", heads, lambda x, positions: rope(x, positions, d, 10000.0, LINEAR))
    case("rope_llama3", heads, lambda x, positions: rope(x, positions, d, 500000.0, LLAMA3))
    case("rope_yarn", heads, lambda x, positions: rope(x, positions, d, 10000.0, YARN))
    case("rope_yarn_full", heads, lambda x, positions: rope(x, positions, d, 10000.0, YARN_FULL))
    for name, kv in (("qk", K), ("qk_mqa", 1), ("qk_mha", H)):
        case(name, lambda i, kv=kv: (i.normal("q", T, H, d), i.normal("k", S, kv, d)), qk)
    case("scores_causal", wide, lambda x: masked(x, d**-0.5))
    case("scores_window", wide, lambda x: masked(x, d**-0.5, window=5))
    case("scores_padding", lambda i: (wide(i), i.whole("padding", [0] * 3 + [1] * (S - 3), np.uint8)), lambda x, padding: masked(x, 0.25, padding=padding))
    case("scores_softcap", wide, lambda x: masked(x, 0.5, cap=3.0))
    case("softcap", lambda i: i.normal("x", T, V, scale=20), lambda x: torch.tanh(x / 30) * 30)
    case("softmax", wide, lambda x: masked(x, 1.0).softmax(-1))
    case("context", lambda i: (i.normal("probs", H, T, S), i.normal("v", S, K, d)), context)
    for name, run in (("silu", F.silu), ("gelu_erf", F.gelu), ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")), ("relu", F.relu)):
        case(name, lambda i: i.normal("x", T, FF, scale=3), run)
    case("gated", lambda i: (i.normal("gate", T, FF, scale=2), i.normal("up", T, FF)), lambda gate, up: F.silu(gate) * up)
    for name, given in FREQUENCIES.items():
        case(f"rope_inv_freq_{name}", lambda i: None, lambda dtype, given=given: frequencies_and_factor(*given, dtype))
    case("residual", lambda i: (i.normal("x", T, D), i.normal("branch", T, D)), lambda x, branch: x + 0.22 * branch)
    return table


def make(out):
    torch.set_num_threads(1)
    logging.set_verbosity_error()  # of contexts that are shorter, and factors that are smaller, than a released model's
    for name, (inputs, run) in cases().items():
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {n: torch.from_numpy(a) for n, a in inputs.items()}
        for n, a in inputs.items():
            np.save(folder / f"{n}.npy", a)
        wide = {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}
        with torch.no_grad():
            np.save(folder / "out.f32.npy", run(*(tensors.values() or [torch.float32])).contiguous().numpy())
            np.save(folder / "out.f64.npy", run(*(wide.values() or [torch.float64])).contiguous().numpy())


def nmse(r, c):
    both = np.isneginf(r) & np.isneginf(c)
    r, c = np.where(both, 0, r).astype(np.float64), np.where(both, 0, c).astype(np.float64)
    return ((c - r) ** 2).sum() / (r**2).sum()


def check(committed):
    bad = []
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        make(made)
        names = lambda root: sorted(str(p.relative_to(root)) for p in root.rglob("*.npy"))
        if names(made) != names(committed):
            bad.append(f"other files: {sorted(set(names(made)) ^ set(names(committed)))}")
        for name in set(names(made)) & set(names(committed)):
            old, new = committed / name, made / name
            if name.split("/")[-1].startswith("out."):
                r, c = np.load(old), np.load(new)
                distance = nmse(r, c) if (r.shape, r.dtype) == (c.shape, c.dtype) else np.inf
                if not distance <= 1e-13:
                    bad.append(f"{name}: NMSE {distance:.1e}")
            elif old.read_bytes() != new.read_bytes():
                bad.append(f"{name}: an input of other bytes")
    for line in bad:
        print(line)
    print(f"operations: {len(cases())} cases made again, {len(bad)} differences")
    return 1 if bad else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FIXTURES / "ops")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    sys.exit(check(args.out) if args.check else make(args.out))

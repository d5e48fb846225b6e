#!/usr/bin/env python3
"""Programs of one small Llama in f32 and in bf16, and right engines of it that round otherwise: fixtures/programs/attention.

    python scripts/goldens/attention_programs.py FOLDER

Writes FOLDER/golden and FOLDER/golden-bf16 (eager attention, with their programs), FOLDER/model.safetensors (weights that both types hold), and runs without a
program: fused.npz (bf16, PyTorch's scaled_dot_product_attention), cache-f16.npz and cache-e4m3.npz (f32, keys and values rounded as a cache holds them).
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicLayer

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import scripts  # its firstdiff is the tree's
import firstdiff

TOKENS = [7, 3, 19, 22, 8, 8, 31, 2, 25, 11, 5, 30, 17, 1, 28, 9, 14, 33, 4, 21, 6, 35, 12, 27]


def model():
    torch.manual_seed(5)
    config = LlamaConfig(vocab_size=40, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                         max_position_embeddings=32)
    made = LlamaForCausalLM(config).eval()
    for name, weight in made.named_parameters():
        spread = 0.1 if "norm" in name else 0.3 if "q_proj" in name or "k_proj" in name else 0.06
        weight.data = ((weight.data if "norm" in name else 0) + torch.randn_like(weight) * spread).bfloat16().float()
    return made


def record(made, folder, attention, program):
    made.config._attn_implementation = attention
    with torch.no_grad(), firstdiff.record(made, folder, program=program):
        made(torch.tensor([TOKENS]))


def as_one_file(folder, file):
    """A dump's tensors in f32, without what its dump.json says."""
    def values(tap):
        stored = np.load(folder / tap["file"])
        return (stored.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(tap["shape"]) if tap["dtype"] == "bf16" else stored
    np.savez(file, **{tap["tap"]: values(tap) for tap in json.loads((folder / "dump.json").read_text())["taps"]})


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    made = model()
    save_file({name: weight.bfloat16() for name, weight in made.state_dict().items()}, out / "model.safetensors")
    for name in ("golden", "golden-bf16"):
        shutil.rmtree(out / name, ignore_errors=True)
    record(made, out / "golden", "eager", True)
    plain = DynamicLayer.update
    with tempfile.TemporaryDirectory() as work:
        for name, dtype in (("f16", torch.float16), ("e4m3", torch.float8_e4m3fn)):
            DynamicLayer.update = lambda layer, k, v, *rest, dtype=dtype, **named: plain(layer, k.to(dtype).to(k), v.to(dtype).to(v), *rest, **named)
            record(made, Path(work) / name, "eager", False)
            as_one_file(Path(work) / name, out / f"cache-{name}.npz")
        DynamicLayer.update = plain
        made = made.bfloat16()
        record(made, out / "golden-bf16", "eager", True)
        record(made, Path(work) / "fused", "sdpa", False)
        as_one_file(Path(work) / "fused", out / "fused.npz")


main()

#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["numpy>=1.26", "safetensors>=0.6"]
# ///
"""Converts a llama2.c checkpoint to a Hugging Face folder that PyTorch runs. Version 0: seven int32, then f32 tensors.

    python scripts/convert/llama2c_to_hf.py stories260K.bin stories260K

The rows of Q and K lie in adjacent pairs in a checkpoint, and are put into halves, as Hugging Face's Llama rotates them: row 2i+s of a head
becomes row s*d/2+i. Epsilon 1e-5 and RoPE base 10000 are built into run.c and stand in no file.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

NAME = "llama2c_to_hf.py"


def read(path):
    """(sizes D F L H K V positions, tied, name -> f32 array in Hugging Face's names, rows still in adjacent pairs)."""
    raw = np.fromfile(path, np.uint8)
    if len(raw) < 28:
        raise ValueError(f"{path}: no llama2.c checkpoint of version 0")
    D, F, L, H, K, V, positions = sizes = [int(n) for n in raw[:28].view("<i4")]
    tied, V = V > 0, abs(V)
    if min(D, F, L, H, K, V, positions) < 1 or D % H or H % K:
        raise ValueError(f"{path}: no llama2.c checkpoint of version 0: sizes {sizes}")
    d, at = D // H, 28
    tables = {
        "model.embed_tokens.weight": (V, D), "input_layernorm.weight": (L, D),
        "self_attn.q_proj.weight": (L, D, D), "self_attn.k_proj.weight": (L, K * d, D), "self_attn.v_proj.weight": (L, K * d, D),
        "self_attn.o_proj.weight": (L, D, D), "post_attention_layernorm.weight": (L, D),
        "mlp.gate_proj.weight": (L, F, D), "mlp.down_proj.weight": (L, D, F), "mlp.up_proj.weight": (L, F, D),
        "model.norm.weight": (D,), "cosines and sines": (positions, d), **({} if tied else {"lm_head.weight": (V, D)}),
    }
    tensors = {}
    for name, shape in tables.items():
        size = 4 * int(np.prod(shape))
        if at + size > len(raw):
            raise ValueError(f"{path}: {len(raw)} bytes, and {name} ends at {at + size}")
        values = raw[at : at + size].view("<f4").reshape(shape)
        at += size
        layered = name.startswith(("input", "self", "post", "mlp"))
        tensors |= {f"model.layers.{l}.{name}": values[l] for l in range(L)} if layered else {name: values}
    del tensors["cosines and sines"]
    if at != len(raw):
        raise ValueError(f"{path}: {len(raw)} bytes where its header describes {at}")
    return [D, F, L, H, K, V, positions], tied, tensors


def halves(rows, heads):
    """Adjacent pairs to halves: row 2i+s of each head becomes row s*d/2+i."""
    return rows.reshape(heads, len(rows) // heads // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def convert(path, folder):
    from safetensors.numpy import save_file

    (D, F, L, H, K, V, positions), tied, tensors = read(path)
    for name, values in tensors.items():
        if "q_proj" in name or "k_proj" in name:
            values = halves(values, H if "q_proj" in name else K)
        tensors[name] = np.ascontiguousarray(values)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": D, "intermediate_size": F, "num_hidden_layers": L,
        "num_attention_heads": H, "num_key_value_heads": K, "vocab_size": V, "max_position_embeddings": positions, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": tied,
        "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32",
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors.tmp", metadata={"format": "pt"})
    (folder / "model.safetensors.tmp").replace(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="a llama2.c .bin of version 0")
    parser.add_argument("folder", type=Path, help="the folder to write")
    args = parser.parse_args()
    try:
        convert(args.checkpoint, args.folder)
    except (OSError, ValueError) as error:
        print(f"{NAME}: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

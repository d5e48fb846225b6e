#!/usr/bin/env python3
"""bench_models.py: llamas of random weights in any size, for `cargo xtask bench growth`.

    python scripts/measure/bench_models.py FOLDER --layers L --width D [--theta 10000]

Writes config.json and model.safetensors (f32) as Hugging Face folders have them: D / 64 heads, half as many key/value heads, F = 3 D, a vocabulary of 1024.
Needs numpy.
"""

import argparse
import json
from pathlib import Path

import numpy as np

VOCABULARY = 1024


def shapes(layers, width):
    heads = max(2, width // 64)
    kv = heads // 2 * (width // heads)
    yield "model.embed_tokens.weight", (VOCABULARY, width)
    for n in range(layers):
        at = f"model.layers.{n}."
        yield from ((at + "input_layernorm.weight", (width,)), (at + "post_attention_layernorm.weight", (width,)))
        yield from ((at + f"self_attn.{name}_proj.weight", (rows, width)) for name, rows in (("q", width), ("k", kv), ("v", kv), ("o", width)))
        yield from ((at + "mlp.gate_proj.weight", (3 * width, width)), (at + "mlp.up_proj.weight", (3 * width, width)), (at + "mlp.down_proj.weight", (width, 3 * width)))
    yield "model.norm.weight", (width,)
    yield "lm_head.weight", (VOCABULARY, width)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path)
    p.add_argument("--layers", type=int, required=True)
    p.add_argument("--width", type=int, required=True)
    p.add_argument("--theta", type=float, default=10000.0)
    a = p.parse_args()
    a.folder.mkdir(parents=True, exist_ok=True)
    heads = max(2, a.width // 64)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": a.width, "intermediate_size": 3 * a.width, "num_hidden_layers": a.layers,
              "num_attention_heads": heads, "num_key_value_heads": heads // 2, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-5, "rope_theta": a.theta,
              "max_position_embeddings": 65536, "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "float32"}
    (a.folder / "config.json").write_text(json.dumps(config, indent=1))
    weights = a.folder / "model.safetensors"
    if weights.exists():
        return
    header, at, rng = {}, 0, np.random.default_rng(7)
    for name, shape in shapes(a.layers, a.width):
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(weights.with_suffix(".part"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, shape in shapes(a.layers, a.width):
            values = rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1]))
            file.write((np.float32(1) + np.float32(0.1) * values if len(shape) == 1 else values).tobytes())
    weights.with_suffix(".part").rename(weights)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["numpy>=1.26", "gguf==0.19.0"]
# ///
"""Converts a Hugging Face folder to a GGUF that llama.cpp runs: weights and hyperparameters only.

For fixtures and tests: families llama, mistral, qwen2, qwen3 and minimind, floating point types, no tokenizer (the file
says tokenizer model `no_vocab`). For models you want to talk to, use llama.cpp's own convert_hf_to_gguf.py.

What is done to the weights:
  * llama, mistral and minimind are written as arch `llama`, whose RoPE turns adjacent pairs: the rows of Q and K
    (weights and biases) are permuted in each head, GGUF row 2i+s = Hugging Face row s*d/2+i. MiniMind with QK-norm
    (minimind-3) and qwen3 are written as arch `qwen3`, qwen2 as `qwen2`: these keep their rows.
  * matrices in --dtype, norms and biases always in f32. A tied head is left out: llama.cpp takes the embedding.
  * RoPE scaling: linear and yarn as metadata (yarn with beta_fast 32 and beta_slow 1, all that these archs know);
    llama3 as the tensor rope_freqs.weight, which divides each frequency (arch `llama` only).

What llama.cpp cannot show: none of these archs reads a sliding window (llama.cpp 0.3.36). The window is written into the
metadata for the reader, and ignored by the engine: with T > window its attention is another model's. A warning says so.

    python scripts/convert/hf_to_gguf.py models/tiny-llama tiny-llama.gguf --dtype f32
"""

import argparse
import json
import math
import os
import sys
from pathlib import Path

NAME = "hf_to_gguf.py"
VERSION = "0.1.0"
ARCHS = {"llama": "llama", "mistral": "llama", "minimind": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
BLOCK = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


class Refused(Exception):
    """What the user is told in one line, exit 2."""


def read_config(folder):
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: not a readable config: {error}") from None
    family = config.get("model_type")
    if family not in ARCHS:
        raise Refused(f"{path}: model_type {family!r}; known are {', '.join(sorted(ARCHS))}")
    if config.get("use_moe") or config.get("quantization_config"):
        raise Refused(f"{path}: experts and quantised checkpoints are not converted")
    return config


def read_safetensors(path):
    """Yields (name, f32 array). Reads f32, f16 and bf16 without torch."""
    import numpy as np

    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size - 8:
            raise Refused(f"{path}: header of {length} bytes in a file of {size}")
        header = json.loads(file.read(length))
    data = np.memmap(path, np.uint8, "r", offset=8 + length)
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = data[begin:end]
        match entry["dtype"]:
            case "F32":
                values = raw.view("<f4")
            case "F16":
                values = raw.view("<f2").astype(np.float32)
            case "BF16":
                values = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
            case other:
                raise Refused(f"{path}: {name} is {other}; F32, F16 and BF16 are converted")
        yield name, values.reshape(entry["shape"])


def read_weights(folder):
    index = folder / "model.safetensors.index.json"
    files = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else ["model.safetensors"]
    weights = {}
    for file in files:
        if not (folder / file).is_file():
            raise Refused(f"{folder / file}: no such file (only safetensors are read)")
        weights.update(read_safetensors(folder / file))
    return weights


def adjacent(rows, heads):
    """Half-split row order to adjacent pairs: row s*d/2+i of each head becomes row 2i+s."""
    shape = rows.shape
    return rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def gguf_name(name):
    """The GGUF name of a Hugging Face weight, with the layer's own part of it."""
    stem, kind = name.rsplit(".", 1)
    if stem in OUTER:
        return f"{OUTER[stem]}.{kind}", None
    parts = stem.split(".", 3)
    if parts[:2] == ["model", "layers"] and len(parts) == 4 and parts[3] in BLOCK:
        return f"blk.{parts[2]}.{BLOCK[parts[3]]}.{kind}", parts[3]
    return None, None


def rope_scaling(config):
    """MiniMind states one flag; the others a dictionary."""
    if config["model_type"] == "minimind":
        if not config.get("inference_rope_scaling") or config.get("max_position_embeddings", 32768) <= 2048:
            return {"rope_type": "default"}
        return {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 2048, "attention_factor": 1.0}
    scaling = dict(config.get("rope_scaling") or {})
    scaling.setdefault("rope_type", scaling.get("type", "default"))
    return scaling


def llama3_divisors(scaling, theta, d):
    """What each frequency is divided by: 1 for short waves, `factor` for long ones, a ramp between."""
    import numpy as np

    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    context, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    divisors = []
    for i in range(d // 2):
        turns = context / (2 * math.pi * theta ** (2 * i / d))
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        divisors.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


def write_rope(writer, arch, config, theta, d):
    import gguf

    scaling = rope_scaling(config)
    match scaling["rope_type"]:
        case "default":
            pass
        case "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(float(scaling["factor"]))
        case "yarn":
            if (scaling.get("beta_fast") or 32, scaling.get("beta_slow") or 1) != (32, 1):
                raise Refused(f"yarn with beta_fast {scaling.get('beta_fast')}: llama.cpp's arch {arch} knows 32 and 1 only")
            if scaling.get("mscale") or scaling.get("truncate") is False:
                raise Refused("yarn with mscale, or not truncated: not converted")
            factor = float(scaling["factor"])
            own = 1.0 + 0.1 * math.log(factor)
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(factor)
            writer.add_rope_scaling_orig_ctx_len(
                int(scaling.get("original_max_position_embeddings") or config["max_position_embeddings"]))
            if scaling.get("attention_factor") is not None:
                writer.add_rope_scaling_attn_factors(scaling["attention_factor"] / own)
        case "llama3" if arch == "llama":
            writer.add_tensor("rope_freqs.weight", llama3_divisors(scaling, theta, d))
        case other:
            raise Refused(f"RoPE scaling {other!r} cannot be written for llama.cpp's arch {arch}")


def convert(folder, out, dtype):
    import gguf
    import numpy as np

    config = read_config(folder)
    weights = read_weights(folder)
    family = config["model_type"]
    arch = ARCHS[family]
    if family == "minimind" and any(".q_norm." in name for name in weights):
        arch = "qwen3"
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    d = config.get("head_dim") or hidden // heads
    theta = float(config.get("rope_theta") or (1e6 if family == "minimind" else 1e4))
    embedding = weights.get("model.embed_tokens.weight")
    gate = weights.get("model.layers.0.mlp.gate_proj.weight")
    if embedding is None or gate is None:
        raise Refused(f"{folder}: no model.embed_tokens.weight or no model.layers.0.mlp.gate_proj.weight")

    writer = gguf.GGUFWriter(out, arch)
    writer.add_name(folder.name)
    writer.add_file_type({"f32": gguf.LlamaFileType.ALL_F32, "f16": gguf.LlamaFileType.MOSTLY_F16,
                          "bf16": gguf.LlamaFileType.MOSTLY_BF16}[dtype])
    writer.add_vocab_size(embedding.shape[0])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(gate.shape[0])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(d)
    writer.add_value_length(d)
    writer.add_rope_dimension_count(d)
    writer.add_rope_freq_base(theta)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("no_vocab")
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    if window:
        writer.add_sliding_window(window)
        print(f"{NAME}: sliding window {window} is ignored by llama.cpp's arch {arch}: comparable only while T <= {window}",
              file=sys.stderr)
    write_rope(writer, arch, config, theta, d)

    tied = config.get("tie_word_embeddings", family == "minimind")
    stored = gguf.GGMLQuantizationType[dtype.upper()]
    for name, values in weights.items():
        target, part = gguf_name(name)
        if target is None:
            if not name.endswith("rotary_emb.inv_freq"):
                raise Refused(f"{folder}: no place for weight {name} in arch {arch}")
            continue
        if target == "output.weight" and tied:
            continue
        if arch == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
            values = adjacent(values, heads if part == "self_attn.q_proj" else kv_heads)
        kind = stored if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(target, gguf.quants.quantize(np.ascontiguousarray(values, np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="Hugging Face folder: config.json and *.safetensors")
    parser.add_argument("out", type=Path, help="the .gguf to write (replaced if it exists)")
    parser.add_argument("--dtype", choices=["f32", "f16", "bf16"], default="f32", help="type of the matrices (default f32)")
    parser.add_argument("--version", action="version", version=f"{NAME} {VERSION}")
    args = parser.parse_args()
    partial = args.out.with_name(f".{args.out.name}.{os.getpid()}.partial")
    try:
        convert(args.folder, partial, args.dtype)
        os.replace(partial, args.out)
    except ModuleNotFoundError as error:
        return fail(f"needs the Python package {error.name}: pip install numpy gguf==0.19.0, or uv run {NAME}")
    except KeyError as error:
        return fail(f"{args.folder / 'config.json'}: key {error} is missing")
    except (Refused, OSError, ValueError) as error:
        return fail(str(error).splitlines()[0])
    finally:
        partial.unlink(missing_ok=True)
    return 0


def fail(message):
    print(f"{NAME}: error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

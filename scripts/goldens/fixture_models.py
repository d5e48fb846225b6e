"""Defines the fixture models and generates their weights.

Small, and such that a mistake shows: no two sizes equal, attention far from uniform, gains far from one, embedding rows
of very different energy (some near epsilon), biases as large as what they are added to. Weights are sums of integers from a seeded PCG64,
scaled in f64: the same bytes on any machine.
"""

import json
from pathlib import Path

import numpy as np

# 11 prefilled tokens (one of them twice), then 3 decoded ones.
TOKENS = [1, 17, 42, 99, 3, 150, 77, 17, 128, 64, 5]
DECODE_TOKENS = [23, 108, 61]

COMMON = {"hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 6, "num_key_value_heads": 2, "num_hidden_layers": 2,
          "vocab_size": 151, "max_position_embeddings": 512, "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2,
          "attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": True}

# name -> (seed, dtype of the weights, files, config)
MODELS = {
    "llama": (11, "F32", 1, {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "head_dim": 16, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 64},
        "attention_bias": False, "mlp_bias": False, "pretraining_tp": 1, "tie_word_embeddings": False}),
    "mistral": (12, "F32", 2, {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "head_dim": 16, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 2.5}, "sliding_window": 5, "tie_word_embeddings": False}),
    "qwen2": (13, "F32", 1, {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "sliding_window": 4, "use_sliding_window": False, "max_window_layers": 2, "tie_word_embeddings": True}),
    "qwen3": (14, "F32", 1, {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        "sliding_window": None, "use_sliding_window": False, "max_window_layers": 2, "attention_bias": False, "tie_word_embeddings": False}),
    "minimind": (15, "F32", 1, {
        "architectures": ["MiniMindForCausalLM"], "model_type": "minimind", "num_hidden_layers": 3, "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0, "inference_rope_scaling": False, "flash_attn": False, "use_moe": False, "dropout": 0.0,
        "tie_word_embeddings": True}),
}
# The same weights, rounded.
MODELS["llama-bf16"] = (11, "BF16", 1, MODELS["llama"][3])
MODELS["qwen2-f16"] = (13, "F16", 1, MODELS["qwen2"][3])


def bell(rng, *shape):
    """Roughly normal, variance 1, from integers alone."""
    return rng.integers(-2048, 2049, (3, *shape)).sum(axis=0) / 2048


def gains(rng, n):
    return rng.integers(90, 500, n) / 256


def tensors(seed, c):
    """name -> f64 values."""
    rng = np.random.Generator(np.random.PCG64(seed))
    D, F, H, K, V = (c[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size"))
    d = c.get("head_dim", D // H)
    t = {"model.embed_tokens.weight": np.ldexp(bell(rng, V, D), -rng.integers(0, 8, (V, 1)))}
    for l in range(c["num_hidden_layers"]):
        p = f"model.layers.{l}."
        t[p + "input_layernorm.weight"] = gains(rng, D)
        t[p + "self_attn.q_proj.weight"] = 0.16 * bell(rng, H * d, D)
        t[p + "self_attn.k_proj.weight"] = 0.16 * bell(rng, K * d, D)
        t[p + "self_attn.v_proj.weight"] = 0.14 * bell(rng, K * d, D)
        t[p + "self_attn.o_proj.weight"] = 0.56 / np.sqrt(H * d) * bell(rng, D, H * d)
        if c["model_type"] == "qwen2":
            t[p + "self_attn.q_proj.bias"] = 1.1 * bell(rng, H * d)
            t[p + "self_attn.k_proj.bias"] = 1.7 * bell(rng, K * d)
            t[p + "self_attn.v_proj.bias"] = 0.7 * bell(rng, K * d)
        if c["model_type"] == "qwen3":
            t[p + "self_attn.q_norm.weight"] = gains(rng, d)
            t[p + "self_attn.k_norm.weight"] = 1.3 * gains(rng, d)
        t[p + "post_attention_layernorm.weight"] = gains(rng, D)
        t[p + "mlp.gate_proj.weight"] = 0.16 * bell(rng, F, D)
        t[p + "mlp.up_proj.weight"] = 0.13 * bell(rng, F, D)
        t[p + "mlp.down_proj.weight"] = 0.06 * bell(rng, D, F)
    t["model.norm.weight"] = gains(rng, D)
    if not c["tie_word_embeddings"]:
        t["lm_head.weight"] = 0.23 * bell(rng, V, D)
    return t


def stored(x, dtype):
    """f64 values as the bytes of a checkpoint, rounded to nearest, ties to even."""
    x = x.astype("<f4")
    if dtype == "BF16":
        bits = x.view("<u4")
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    return x.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def safetensors_bytes(entries, metadata):
    """entries: name -> (dtype, shape, bytes). The header is padded to 8 bytes."""
    header, offset = {"__metadata__": metadata}, 0
    for name, (dtype, shape, data) in entries.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + b"".join(data for _, _, data in entries.values())


def write_model(name, folder):
    """config.json and one .safetensors, or several with their index."""
    seed, dtype, files, config = MODELS[name]
    config = COMMON | config | {"torch_dtype": {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[dtype]}
    entries = {n: (dtype, x.shape, stored(x, dtype)) for n, x in tensors(seed, config).items()}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if files == 1:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(entries, {"format": "pt"}))
        return
    names = list(entries)
    where = {n: f"model-{i * files // len(names) + 1:05}-of-{files:05}.safetensors" for i, n in enumerate(names)}
    for file in sorted(set(where.values())):
        part = {n: e for n, e in entries.items() if where[n] == file}
        (folder / file).write_bytes(safetensors_bytes(part, {"format": "pt"}))
    index = {"metadata": {"total_size": sum(len(e[2]) for e in entries.values())}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")

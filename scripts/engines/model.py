"""Reads what every engine of this folder needs from a Hugging Face folder: the config, the weights, RoPE's frequencies; and the arguments.

Nothing here computes a tap: that is each engine's own work. An engine is run as

    python -m scripts.engines.NAME MODEL -o OUT --tokens 1,17,42 [--decode-tokens 5,9] [--variant bf16] [--mistake rope-pairing]

from the repository's root; `python -m scripts.engines NAME` runs it many times in one process.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np


class Model:
    """Config and weights (f32) of a folder of family llama, qwen2 or qwen3."""

    def __init__(self, folder):
        from safetensors.numpy import load_file

        folder = Path(folder)
        c = self.config = json.loads((folder / "config.json").read_text())
        self.folder, self.D, self.F, self.V = folder, c["hidden_size"], c["intermediate_size"], c["vocab_size"]
        self.H, self.K, self.layers = c["num_attention_heads"], c["num_key_value_heads"], c["num_hidden_layers"]
        self.d = c.get("head_dim") or self.D // self.H
        self.eps, self.theta = c["rms_norm_eps"], c["rope_theta"]
        self.weights = {name: w.astype(np.float32) for name, w in load_file(folder / "model.safetensors").items()}
        self.bias = "model.layers.0.self_attn.q_proj.bias" in self.weights
        self.qk_norm = "model.layers.0.self_attn.q_norm.weight" in self.weights
        self.head = "model.embed_tokens.weight" if c.get("tie_word_embeddings") else "lm_head.weight"

    def of_layer(self, n, name, kind="weight"):
        """A tensor of layer n, as `self_attn.q_proj`; None where the family has none."""
        return self.weights.get(f"model.layers.{n}.{name}.{kind}")

    def frequencies(self, theta=None):
        """RoPE's angle a position for each pair, f32, and the factor on cos and sin (RoPE arXiv 2104.09864, YaRN arXiv 2309.00071, Llama 3.1)."""
        pairs, theta, scaling = np.arange(self.d // 2), theta or self.theta, self.config.get("rope_scaling") or {}
        plain = float(theta) ** (-2.0 * pairs / self.d)
        kind, factor = scaling.get("rope_type", "default"), scaling.get("factor", 1.0)
        context = scaling.get("original_max_position_embeddings", 0)
        if kind == "llama3":
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            smooth = np.clip((context * plain / (2 * np.pi) - low) / (high - low), 0, 1)
            return (plain * ((1 - smooth) / factor + smooth)).astype(np.float32), 1.0
        if kind == "yarn":
            pair = lambda turns: self.d * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))
            first, last = max(math.floor(pair(32)), 0), min(math.ceil(pair(1)), self.d - 1)
            ramp = np.clip((pairs - first) / (last - first or 0.001), 0, 1)
            return (plain * (1 - ramp + ramp / factor)).astype(np.float32), 0.1 * math.log(factor) + 1
        assert kind == "default", f"RoPE scaling {kind}"
        return plain.astype(np.float32), 1.0


def ids(text):
    return [int(part) for part in text.split(",") if part]


def arguments(description, variants, mistakes, argv=None):
    """The command line that all engines share. `mistakes` are the ones this engine can be told to make."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--tokens", type=ids, required=True)
    parser.add_argument("--decode-tokens", type=ids, default=[])
    parser.add_argument("--variant", choices=variants, default=variants[0])
    parser.add_argument("--mistake", choices=mistakes)
    return parser.parse_args(argv)


def write_dump_json(folder, args, **more):
    """What the engine says of its run, beside its tensors."""
    note = {"format": 1, "complete": True, "tokens": args.tokens, "decode_tokens": args.decode_tokens} | more
    (Path(folder) / "dump.json").write_text(json.dumps(note) + "\n")

#!/usr/bin/env python3
"""Tests that `firstdiff explain` names a wrong way of unpacking quantised blocks, from the activations alone.

    python scripts/suites/test_unpacked.py [--command PATH]

llama.cpp quantises a random llama; every tensor is unpacked in Python, those of one type wrongly (weight_formats.py), and PyTorch runs them in f32.
explain is given the .gguf and the dump: all taps, layer outputs, the logits. The right unpacking must have no finding; each wrong one must be
named and nothing else. Exit code 1 otherwise. Requirements: requirements.txt
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import ROOT
from scripts.planted import weight_formats as form
from scripts.suites.test_quantised import TOKENS, quantise, write_model
from scripts.suites.test_right import cut, script

H, K, d = 4, 2, 64
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head", "attn_norm": "input_layernorm",
         "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
# The file's type, the tensors' type that is unpacked wrongly, how, and the cause that is due.
CASES = [("Q4_K_M", Type.Q4_K, form.q4_k, None, None), ("Q4_K_M", Type.Q4_K, form.q4_k, "scales", "dequant-scale"),
         ("Q4_K_M", Type.Q4_K, form.q4_k, "minimum", "dequant-scale"), ("Q4_K_M", Type.Q4_K, form.q4_k, "nibbles", "dequant-nibbles"),
         ("Q4_K_M", Type.Q6_K, form.q6_k, "pairs", "dequant-scale"), ("Q5_K_M", Type.Q5_K, form.q5_k, "scales", "dequant-scale"),
         ("Q5_K_M", Type.Q5_K, form.q5_k, "lanes", "dequant-nibbles"), ("Q6_K", Type.Q6_K, form.q6_k, "pairs", "dequant-scale"),
         ("Q6_K", Type.Q6_K, form.q6_k, "before", "dequant-scale"), ("Q4_0", Type.Q4_0, form.q4_0, "nibbles", "dequant-nibbles"),
         ("Q5_0", Type.Q5_0, form.q5_0, "lanes", "dequant-nibbles"), ("Q5_0", Type.Q5_0, form.q5_0, "half", "dequant-nibbles")]


def begun(part):
    """Reading that ends after a part of a tensor's blocks: the rest is 0."""
    def change(values, tensor):
        block = GGML_QUANT_SIZES[tensor.tensor_type][0]
        out = values.copy().reshape(-1)
        out[int(part * (out.size // block)) * block:] = 0
        return out.reshape(values.shape)
    return change


CASES += [(file, kind, begun, part, "dequant-truncated") for file, kind, part in
          (("Q8_0", Type.Q8_0, 993 / 1024), ("Q8_0", Type.Q8_0, 0.77), ("Q8_0", Type.Q8_0, 0.031), ("Q6_K", Type.Q6_K, 0.9), ("Q4_0", Type.Q4_0, 0.6181))]


def hugging_face(name):
    parts = name.removesuffix(".weight").split(".")
    own = NAMES[parts[-1]]
    return f"model.layers.{parts[1]}.{own}.weight" if parts[0] == "blk" else f"{own}.weight"


def in_halves(name, values):
    """Rows of Q and K as Hugging Face orders them."""
    heads = {"attn_q": H, "attn_k": K}.get(name.split(".")[-2])
    return values.reshape(heads, d // 2, 2, -1).swapaxes(1, 2).reshape(values.shape) if heads else values


def unpacked(source, target, config, kind, change):
    """A Hugging Face folder of the file's weights, those of type `kind` as `change` has them."""
    shutil.rmtree(target, ignore_errors=True)
    weights = {}
    for name, tensor, values in form.loaded(source):
        values = change(values, tensor) if tensor.tensor_type == kind and values.ndim == 2 else values
        weights[hugging_face(name)] = np.ascontiguousarray(in_halves(name, values), np.float32)
    form.write_hf(target, weights, config)


def named(command, model, dump):
    done = subprocess.run([command, "explain", model, dump, "--json", "-", "--seconds", "20"], capture_output=True, text=True)
    if done.returncode == 2:
        return [done.stderr.strip()]
    report = json.loads(done.stdout)
    return sorted({f"{f['cause']} ({f['params'].get('kind', '')})" if f["cause"] else f"unknown at {f['tap']}" for f in report["findings"]})


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--command", default=str(ROOT / "target" / "release" / "firstdiff"))
    a = p.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_model(folder / "llama", "llama")
        config = json.loads((folder / "llama/config.json").read_text())
        script("convert/hf_to_gguf.py", folder / "llama", folder / "plain.gguf", "--dtype", "f32")
        for file, kind, change, wrong, cause in CASES:
            model, engine, dump = folder / f"{file}.gguf", folder / "engine", folder / "dump"
            if not model.exists():
                quantise(str(folder / "plain.gguf"), str(model), file)
            unpacked(model, engine, config, kind, change(wrong))
            shutil.rmtree(dump, ignore_errors=True)
            script("dump_torch.py", engine, "-o", dump, "--no-program", "--tokens", ",".join(map(str, TOKENS)), "--dtype", "f32")
            for kept in ("all taps", "streams", "logits"):
                cut(dump, folder / "cut", kept)
                said = named(a.command, model, folder / "cut")
                right = said == [] if cause is None else len(said) == 1 and said[0].startswith(f"{cause} ")
                failed += not right
                print(f"{'ok  ' if right else 'FAIL'} {file} {kind.name} {wrong}, {kept}: {'; '.join(said) or 'no finding'}", flush=True)
    print(f"{failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

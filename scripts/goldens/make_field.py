#!/usr/bin/env python3
"""Converts recordings of real engines, in formats of their own, to dumps under fixtures/field.

    make_field.py FIELD [--out fixtures/field]

FIELD holds celer_infer/ (raw f32 without a header, a batch of two prompts), rustorch/ (text, one value a line, the last token only) and wasm-chord/ (raw
f32: logits, and five weights as they were loaded). The numbers are taken as they are; only their form changes. The models are copied. The fourth engine, llama-orch, needs
a GPU: its three mistakes are made by scripts/engines/engine_numpy.py on fixtures/models/qwen2.
Requirements: numpy==2.4.6
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import FIXTURES
from scripts.engines.engine_mistakes import Chosen
from scripts.engines.engine_numpy import dump_members, run, write_dump

CELER = {
    "h0": "h0", "h_norm_l0": "layers.0.attn_norm", "q_flat_l0": "layers.0.q", "k_flat_l0": "layers.0.k", "v_flat_l0": "layers.0.v",
    "scores_l0": "layers.0.scores", "probs_l0": "layers.0.probs", "attn_out_flat_l0": "layers.0.context", "attn_proj_l0": "layers.0.attn_out",
    "h1_attn_l0": "layers.0.h_attn", "ffn_norm_l0": "layers.0.ffn_norm", "ffn_out_l0": "layers.0.ffn_out", "h0_ffn_l0": "layers.0.h", "logits": "logits",
}
RUSTORCH = {"rustorch_layer_0_input": "h0", "rustorch_layer_0": "layers.0.h", "rustorch_layer_1": "layers.1.h",
            "hidden_state_call_0": "final_norm", "rustorch_logits": "logits"}


def celer(field, out):
    """The first prompt of the batch; H 8, T 5."""
    taps = {}
    for name, tap in CELER.items():
        x = np.fromfile(field / "celer_infer" / "cpp" / f"{name}_cpp.npy", "<f4").reshape(2, -1)[0]
        taps[tap, 0] = x.reshape(8, 5, 5) if tap.endswith(("scores", "probs")) else x.reshape(5, -1)
    about = {"producer": {"name": "celer_infer"}, "model": "minimind", "tokens": [126, 109, 126, 66, 92], "precision": "f32"}
    shutil.copyfile(field / "celer_infer" / "minimind.json", out / "celer_infer.json")
    write_dump(out / "celer_infer.npz", dump_members(taps, about))
    write_dump(out / "celer_infer-logits.npz", dump_members({key: x for key, x in taps.items() if key[0] == "logits"}, about))


def rustorch(field, out):
    taps = {}
    for name, tap in RUSTORCH.items():
        lines = (field / "rustorch" / f"{name}.txt").read_text().split("\n")
        taps[tap, 0] = np.array([float(line.split()[-1]) for line in lines if line.strip()], np.float32)[None]
    about = {"producer": {"name": "rustorch"}, "model": "llama", "tokens": [1, 403, 407, 261, 378], "precision": "f32"}
    members = dump_members(taps, about)
    head = json.loads(members["dump.json"])
    for entry in head["taps"]:
        entry["rows"] = "last"
    members["dump.json"] = json.dumps(head).encode()
    shutil.copyfile(field / "rustorch" / "rand-q8_0.gguf", out / "rustorch.gguf")
    write_dump(out / "rustorch.npz", members)


def wasm_chord(field, out):
    """V 512, D 64; weights under the names of the engine's own files."""
    files = {path.stem: np.fromfile(path, "<f4") for path in sorted((field / "wasm-chord" / "out").glob("*.f32"))}
    about = {"producer": {"name": "wasm-chord"}, "model": "llama", "tokens": [1, 403, 407, 261, 378], "precision": "f32"}
    logits = {("logits", 0): files.pop("logits").reshape(5, 512)}
    shutil.copyfile(field / "wasm-chord" / "stories-untied-q8_0.gguf", out / "wasm_chord.gguf")
    write_dump(out / "wasm_chord-logits.npz", dump_members(logits, about))
    np.savez_compressed(out / "wasm_chord-weights.npz", **files)


def llama_orch(out):
    """All taps of 16 tokens, as the engine was probed: a prompt, no decoding."""
    mistakes = [Chosen.parse(mistake, None) for mistake in ("weight-transposed", "bias-omitted", "rope-pairing")]
    tokens = [1, 17, 42, 99, 3, 150, 77, 17, 128, 64, 5, 23, 108, 61, 12, 140]
    taps, about = run(FIXTURES / "models" / "qwen2", tokens, mistakes=mistakes)
    write_dump(out / "llama_orch.npz", dump_members(taps, about))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("field", type=Path)
    p.add_argument("--out", type=Path, default=FIXTURES / "field")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    celer(a.field, a.out)
    rustorch(a.field, a.out)
    wasm_chord(a.field, a.out)
    llama_orch(a.out)


if __name__ == "__main__":
    main()

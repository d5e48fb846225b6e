#!/usr/bin/env python3
"""test_below_noise.py: which is the smallest fault of a kind that `firstdiff explain` still names, in each arithmetic?

    python scripts/test_below_noise.py [--json FILE] [--command PATH]

llama.cpp is the faulty engine of f32, Q8_0 and Q4_K_M: it runs a copy of the file whose metadata says another epsilon or RoPE base. PyTorch is that
of f32, bf16 and f16: it runs the same weights under a config that says another. Every tap is recorded. A row a kind and arithmetic: the faults
tried, from large to small, and what was said of each. Exit code 1 if a cause is stated that is not the one planted.
Requirements: requirements.txt
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf

from test_quantised import quantise, write_model

HERE = Path(__file__).resolve().parent
TOKENS = "1,17,42,99,3,150,77,17,128,64,5,9,33"
FACTORS = {"norm-eps": (1000, 100, 10, 3, 1.3, 1.05), "rope-theta": (50, 2, 1.1, 1.01, 1.001, 1.0001, 1.00001)}
GGUF_KEYS = {"norm-eps": "llama.attention.layer_norm_rms_epsilon", "rope-theta": "llama.rope.freq_base"}
CONFIG_KEYS = {"norm-eps": "rms_norm_eps", "rope-theta": "rope_theta"}


def script(name, *arguments):
    done = subprocess.run([sys.executable, HERE / name, *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name} failed: {done.stderr[-400:]}")


def explained(command, model, dump, profile=None):
    extra = ["--profile", profile] if profile else []
    done = subprocess.run([command, "explain", model, dump, "--json", "-", *extra], capture_output=True, text=True)
    if done.returncode == 2:
        return "incomparable", []
    report = json.loads(done.stdout)
    return report["verdict"], [f["cause"] for f in report["findings"]]


def of_llama_cpp(folder, kind, key, factor):
    """A dump of llama.cpp running the file with one number of its metadata multiplied."""
    faulty, dump = folder / "faulty.gguf", folder / "dump"
    shutil.copyfile(folder / f"{kind}.gguf", faulty)
    reader = gguf.GGUFReader(faulty, "r+")
    field = reader.fields[GGUF_KEYS[key]]
    field.parts[field.data[0]][0] *= factor
    del reader
    shutil.rmtree(dump, ignore_errors=True)
    script("dump_llama_cpp.py", faulty, "-o", dump, "--tokens", TOKENS)
    return folder / f"{kind}.gguf", dump


def of_torch(folder, dtype, key, factor):
    """A dump of PyTorch running the same weights under a config with one number multiplied."""
    right, faulty, dump = folder / "llama", folder / "faulty", folder / "dump"
    shutil.rmtree(faulty, ignore_errors=True)
    shutil.rmtree(dump, ignore_errors=True)
    shutil.copytree(right, faulty)
    config = json.loads((right / "config.json").read_text())
    config[CONFIG_KEYS[key]] = config.get(CONFIG_KEYS[key], 10000.0) * factor
    (faulty / "config.json").write_text(json.dumps(config))
    script("dump_torch.py", faulty, "-o", dump, "--tokens", TOKENS, "--dtype", dtype)
    return right, dump


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--json", type=Path)
    p.add_argument("--command", default=str(HERE.parent / "target" / "release" / "firstdiff"))
    a = p.parse_args()
    rows, wrong = [], 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_model(folder / "llama", "llama")
        script("hf_to_gguf.py", folder / "llama", folder / "F32.gguf")
        for kind in ("Q8_0", "Q4_K_M"):
            quantise(str(folder / "F32.gguf"), str(folder / f"{kind}.gguf"), kind)
        engines = [("llama.cpp", kind, of_llama_cpp) for kind in ("F32", "Q8_0", "Q4_K_M")]
        engines += [("PyTorch", dtype, of_torch) for dtype in ("f32", "bf16", "f16")]
        for engine, kind, make in engines:
            for key, factors in FACTORS.items():
                said = []
                for factor in factors:
                    verdict, causes = explained(a.command, *make(folder, kind, key, factor))
                    named = [cause for cause in causes if cause]
                    wrong += any(cause != key for cause in named)
                    said.append({"factor": factor, "said": key if key in named else verdict, "causes": causes})
                smallest = min((s["factor"] for s in said if s["said"] == key), default=None)
                rows.append({"engine": engine, "kind": kind, "mistake": key, "smallest": smallest, "tried": said})
                print(f"{engine:9} {kind:7} {key:10} smallest named: x {smallest}   " + ", ".join(f"{s['factor']}: {s['said']}" for s in said), flush=True)
    if a.json:
        a.json.write_text(json.dumps(rows, indent=1))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

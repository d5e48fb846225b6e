#!/usr/bin/env python3
"""Tests that `firstdiff weights` maps the tensors of any architecture.
Small random models are converted by llama.cpp's own converter to f32, f16 and Q8_0: every tensor must be mapped, and at parity. Then mistakes are planted in
the GGUF: the tensor that is wrong must be named, and no other.

    python scripts/suites/test_program_weights.py --command BINARY [NAME ..] [--each N] [--list] [--faults] [--vendor FOLDER] [--keep FOLDER]

NAME and --vendor: as of test_ggml_programs.py. --keep: models and conversions stay here, and are taken from here where they are. --list: a line for each
tensor that is not checked. What the converter refuses is counted, and no failure.
"""

import argparse
import json
import logging
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.suites import architectures
from scripts.suites import test_ggml_programs as ggml

BUILD = ggml.build
KINDS = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0"}


def telling(name):
    """The model with no two tensors alike: norms that are all ones, and biases that are all zero, could stand for each other."""
    model = BUILD(name)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return model


def converted(name, folder):
    """The folder of a model, and its conversions by kind."""
    ggml.build = telling
    out = {kind: folder / f"{kind}.gguf" for kind in KINDS}
    for kind, path in out.items():
        if not path.exists():
            ggml.convert(name, folder, KINDS[kind]).rename(path)
    return folder / "model", out


def judged(args, model, path):
    """What firstdiff says: the exit code, and each tensor of B that is wrong or not checked."""
    done = subprocess.run([args.command, "weights", model, path, "--json", "-"], capture_output=True, text=True)
    if not done.stdout.strip():
        raise AssertionError(done.stderr.strip().splitlines()[-1])
    report = json.loads(done.stdout)
    of = {state: [tensor for tensor in report["tensors"] if tensor["status"] == state] for state in ("diverged", "unchecked")}
    return done.returncode, report, of["diverged"], of["unchecked"]


def check(name, model, files, args, counts):
    for kind, path in files.items():
        code, report, wrong, unchecked = judged(args, model, path)
        counts["files"] += 1
        counts["tensors"] += len(report["tensors"])
        counts["of B"] += sum(tensor["b"] is not None for tensor in report["tensors"])
        counts["wrong"] += len(wrong)
        open_in_b = [tensor for tensor in unchecked if tensor["b"]]
        counts["B not mapped"] += len(open_in_b)
        counts["A not mapped"] += len(unchecked) - len(open_in_b)
        if args.list:
            for tensor in unchecked:
                print(f"       {name} {kind}: not checked: {tensor['a']} {tensor['b']} {tensor['shape']}")
        counts["files that do not pass, as something of A was not found"] += code == 2
        if code == 1 or wrong:
            raise AssertionError(f"{kind}: exit code {code}: {json.dumps(report['findings'])[:300]}")
    print(f"  ok   {name}", flush=True)


def tensors_of(path):
    import gguf
    return gguf.GGUFReader(path, "r+")


def rows_of(tensor):
    """The values of a tensor as they lie in the file, as rows."""
    data = tensor.data
    return data.reshape(-1, data.shape[-1]) if data.ndim > 1 else data.reshape(-1, 1)


def swap(one, other):
    kept = np.array(one)
    one[...] = other
    other[...] = kept


def faults(path):
    """Each mistake that the file can have: a name, a function that makes it in an opened file, and the tensors that are wrong then."""
    tensors = {tensor.name: tensor for tensor in tensors_of(path).tensors}
    layered = {name: tensor for name, tensor in tensors.items() if re.match(r"(enc\.|dec\.)?blk\.1\.", name)}
    matrices = {name: tensor for name, tensor in layered.items() if tensor.data.ndim > 1 and name.endswith(".weight")}

    def fault(what, names, make):
        def planted(copy):
            make({tensor.name: tensor for tensor in tensors_of(copy).tensors})
        found.append((what, planted, names))

    found = []
    for name in list(matrices)[::4]:
        if rows_of(tensors[name]).shape[0] >= 16:
            fault("two rows exchanged", [name], lambda of, name=name: swap(rows_of(of[name])[3], rows_of(of[name])[9]))
            fault("truncated", [name], lambda of, name=name: rows_of(of[name])[-len(rows_of(of[name])) // 4:].fill(0))
    for name in list(layered)[::5]:
        other = name.replace("blk.1.", "blk.0.")
        if other in tensors and tensors[other].data.shape == tensors[name].data.shape and tensors[name].data.size > 2:
            fault("of another layer", [name], lambda of, name=name, other=other: of[name].data.__setitem__(..., of[other].data))
    for ending in ("", "_exps"):
        gate, up = f"blk.1.ffn_gate{ending}.weight", f"blk.1.ffn_up{ending}.weight"
        if gate in tensors and up in tensors and tensors[gate].data.shape == tensors[up].data.shape:
            fault("gate and up exchanged", [gate, up], lambda of, gate=gate, up=up: swap(of[gate].data, of[up].data))
    q, out = "blk.1.attn_q.weight", "blk.1.attn_output.weight"
    if q in tensors and out in tensors and tensors[q].data.shape == tensors[out].data.shape:
        fault("q and o exchanged", [q, out], lambda of: swap(of[q].data, of[out].data))
    for name in (name for name in matrices if name.endswith("_exps.weight") and tensors[name].data.shape[0] > 2):
        fault("experts exchanged", [name], lambda of, name=name: swap(of[name].data[1], of[name].data[2]))
    for name in (name for name in layered if name.endswith("norm.weight")):
        if tensors[name].data.ndim == 1:
            fault("1 off", [name], lambda of, name=name: of[name].data.__setitem__(..., of[name].data - 1))
    for name, tensor in matrices.items():
        if tensor.data.ndim == 2 and tensor.data.shape[0] == tensor.data.shape[1] and tensor.data.dtype.kind == "f":
            fault("transposed", [name], lambda of, name=name: of[name].data.__setitem__(..., np.array(of[name].data).T))
    return found


def check_faults(name, model, files, args, counts):
    for kind in ("f32", "q8_0"):
        wrong_file = model.parent / "wrong.gguf"
        for what, planted, names in faults(files[kind]):
            shutil.copy(files[kind], wrong_file)
            planted(wrong_file)
            if wrong_file.read_bytes() == files[kind].read_bytes():
                continue
            code, report, wrong, _ = judged(args, model, wrong_file)
            said = {tensor["b"] or tensor["a"] for tensor in wrong}
            causes = {finding["cause"] for finding in report["findings"]}
            outcome = "named" if code == 1 and said == set(names) else "missed" if code == 0 else "others named"
            counts[f"{what}: {outcome}"] += 1
            if outcome != "named":
                print(f"       {name} {kind}: {what} in {names}: {outcome}: {sorted(said)[:4]} {causes}", flush=True)
            counts["missed"] += outcome == "missed"
    print(f"  ok   {name}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="architectures; all where none is named")
    parser.add_argument("--command", metavar="BINARY", required=True)
    parser.add_argument("--each", type=int, default=1, metavar="N", help="only every Nth")
    parser.add_argument("--faults", action="store_true", help="plant mistakes instead")
    parser.add_argument("--list", action="store_true", help="a line for each tensor that is not checked")
    parser.add_argument("--vendor", type=Path, metavar="FOLDER", help="llama.cpp as llama-cpp-python's source distribution has it")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep models and conversions here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    ggml.vendored(args.vendor)
    logging.disable(logging.CRITICAL)
    for table in (architectures.DECODERS, architectures.OWN_NAMES, architectures.OWN_ENCODERS):
        for name in table:
            table[name] = {**table[name], **ggml.CONFIGS.get(name, {})}
    counts, failed = Counter(), []
    with tempfile.TemporaryDirectory() as temporary:
        for name in (args.names or ggml.ALL)[::args.each]:
            folder = (args.keep or Path(temporary)) / name
            folder.mkdir(parents=True, exist_ok=True)
            try:
                model, files = converted(name, folder)
            except (Exception, SystemExit) as error:
                counts["not converted"] += 1
                print(f"  -    {name:17} is not converted: {type(error).__name__}: {str(error)[:120]}", flush=True)
                continue
            try:
                (check_faults if args.faults else check)(name, model, files, args, counts)
            except (Exception, SystemExit) as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                failed.append(name)
                print(f"FAIL   {name:17} {type(error).__name__}: {str(error)[:300]} ({Path(place.filename).name}:{place.lineno})", flush=True)
            if not args.keep:
                shutil.rmtree(folder, ignore_errors=True)
    for what, count in sorted(counts.items()):
        print(f"{count:6} {what}")
    print(f"failed: {', '.join(failed) or 'none'}")
    sys.exit(1 if failed or counts["missed"] else 0)


if __name__ == "__main__":
    main()

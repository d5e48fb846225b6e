#!/usr/bin/env python3
"""Tests that faults are located in architectures that firstdiff has no code for.
Weights of one matrix or vector are changed in a model of each architecture, and `firstdiff compare` must name the first recorded tap that depends on them; a
right run in other kernels must be at parity.

    python scripts/suites/test_program_faults.py --command target/release/firstdiff [NAME ..] [--each 4] [--seed 1]

The tap that is due follows from program.json alone: the operation that reads the weight, and the nearest taps behind it.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.suites.architectures import ALL, build, run
import firstdiff


def buffers_in(item):
    """Every buffer that an operand names."""
    if isinstance(item, int) and not isinstance(item, bool):
        yield item
    elif isinstance(item, dict) and "v" in item:
        yield item["v"][0]
    elif isinstance(item, list):
        for inner in item:
            yield from buffers_in(inner)


def due_taps(program, name):
    """The taps of step 0 that depend on a weight with no other such tap between."""
    number = next((int(at) for at, weight in program["weights"].items() if weight == name), None)
    end = program["steps"][0]["ops"][1]
    by_operation = {}
    for tap in program["taps"]:
        if tap["step"] == 0:
            by_operation.setdefault(tap["op"], []).append(tap["tap"])
    due, touched = set(), {number}
    for at, op in enumerate(program["ops"][:end]):
        reads = set(buffers_in(op["i"])) | set(buffers_in(list(op.get("a", {}).values())))
        wrong, writes = bool(reads & touched), set(buffers_in(op["y"]))
        if wrong and at in by_operation:
            due.update(by_operation[at])
        elif wrong:
            touched |= writes
    return due


def record(model, name, folder):
    with firstdiff.record(model, folder, program=True):
        run(model, name)


def compare(command, reference, candidate):
    done = subprocess.run([command, "compare", reference, candidate, "--json", "-"], capture_output=True, text=True)
    if not done.stdout.startswith("{"):
        return done.returncode, {"error": (done.stderr.strip().splitlines() or ["nothing said"])[-1]}
    return done.returncode, json.loads(done.stdout)


def change(model, name, weight, rng):
    """A third of the rows of a matrix a quarter larger; of a vector every third value."""
    with torch.no_grad():
        rows = rng.sample(range(weight.shape[0]), max(1, weight.shape[0] // 3))
        weight[rows] = weight[rows] * 1.25 + 0.02


# Models whose taps have other rows than tokens, so that what is compared stays open (exit code 2, never parity): windows of a padded sequence, sequences first.
NOT_CUT = {"longformer", "mlcd"}
# NMSE of the rounding of f32: a change as small as that is none.
ROUNDING = 1e-12


def off(golden, other, tap):
    """NMSE of a tap of the first step between two dumps."""
    head = json.loads((golden / "dump.json").read_text())
    file = next(entry["file"] for entry in head["taps"] if entry["tap"] == tap and entry["step"] == 0)
    if not (other / file).exists():
        return np.inf
    a, b = (np.load(folder / file).astype(np.float64) for folder in (golden, other))
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return np.inf
    return ((a - b) ** 2).sum() / max((a * a).sum(), 1e-300)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="architectures; all where none is named")
    parser.add_argument("--command", required=True, help="the firstdiff to judge")
    parser.add_argument("--each", type=int, default=4, help="faults in each architecture (default 4)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    counts = {"right": 0, "false alarm": 0, "found": 0, "elsewhere": 0, "at parity": 0, "not comparable": 0, "not cut": 0, "without effect": 0}

    def tell(outcome, name, what):
        counts[outcome] += 1
        if outcome not in ("right", "found", "without effect", "not cut"):
            print(f"{outcome:15} {name:20} {what}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        for name in args.names or ALL:
            rng, golden = random.Random(f"{args.seed} {name}"), Path(folder) / name / "golden"
            torch.set_num_threads(1)
            record(build(name), name, golden)
            program = json.loads((golden / "program.json").read_text())
            # Right: with gradients PyTorch takes other kernels.
            torch.set_num_threads(2)
            with torch.backends.mkldnn.flags(enabled=False):
                record(build(name), name, golden.with_name("right"))
            code, report = compare(args.command, golden, golden.with_name("right"))
            said = report.get("error") or report.get("first_divergence") or report.get("reason")
            tell({0: "right", 1: "false alarm"}.get(code, "not cut" if name in NOT_CUT else "not comparable"), name, said)
            torch.set_num_threads(1)
            model = build(name)
            known = set(program["weights"].values())
            weights = [(key, weight) for key, weight in model.named_parameters() if key in known and weight.dim() > 0]
            for at, (key, _) in enumerate(rng.sample(weights, min(args.each, len(weights)))):
                model = build(name)
                change(model, name, dict(model.named_parameters())[key], rng)
                out = golden.with_name(f"wrong{at}")
                record(model, name, out)
                due = due_taps(program, key)
                same = all((golden / file.name).read_bytes() == file.read_bytes() for file in out.glob("*.npy") if ".step" not in file.name and (golden / file.name).exists())
                code, report = compare(args.command, golden, out)
                first = (report.get("first_divergence") or {}).get("tap")
                if same or not due or all(off(golden, out, tap) < ROUNDING for tap in due):
                    tell("without effect", name, key)
                elif name in NOT_CUT and "error" not in report and report["verdict"] == "incomparable":
                    tell("not cut", name, f"{key}: {report['reason']}")
                elif "error" in report or report["verdict"] == "incomparable":
                    tell("not comparable", name, f"{key}: {report.get('error', report.get('reason'))}")
                elif code == 0:
                    tell("at parity", name, f"{key}: {sorted(due)}")
                else:
                    tell("found" if first in due else "elsewhere", name, f"{key}: {first} where {sorted(due)[:4]} is due")
    print(", ".join(f"{outcome} {count}" for outcome, count in counts.items()))
    sys.exit(1 if any(counts[bad] for bad in ("false alarm", "elsewhere", "at parity", "not comparable")) else 0)


if __name__ == "__main__":
    main()

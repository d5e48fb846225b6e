#!/usr/bin/env python3
"""Tests that `firstdiff inspect` reports nothing in right recordings.
Architectures of transformers are recorded with their programs, and every finding that is more than a note is a false one.

    python scripts/suites/test_program_inspect.py --command BINARY [NAME ..] [--dtype TYPE] [--each N] [--keep FOLDER] [--notes]

--keep: dumps stay here, and are taken from here where they are. --notes: count the notes by kind too. PyTorch refuses some models in 16 bits: counted, and
no failure.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.suites.architectures import ALL, build, run
import firstdiff

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def recorded(name, dtype, folder):
    """The dump of a right run, with its program."""
    golden = folder / f"{name}-{dtype}"
    if not (golden / "program.json").exists():
        model = build(name).to(DTYPES[dtype])
        with firstdiff.record(model, golden, program=True):
            run(model, name)
    return golden


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="architectures; all where none is named")
    parser.add_argument("--command", metavar="BINARY", required=True)
    parser.add_argument("--dtype", choices=list(DTYPES), default="f32")
    parser.add_argument("--each", type=int, default=1, metavar="N", help="only every Nth")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the dumps here")
    parser.add_argument("--notes", action="store_true", help="count notes too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    counts, failed = Counter(), []
    with tempfile.TemporaryDirectory() as temporary:
        for name in (args.names or ALL)[::args.each]:
            try:
                golden = recorded(name, args.dtype, args.keep or Path(temporary))
            except RuntimeError as error:
                counts["not recorded"] += 1
                print(f"  -    {name:20} is not recorded: {str(error).splitlines()[0][:120]}", flush=True)
                continue
            done = subprocess.run([args.command, "inspect", golden, "--json", "-"], capture_output=True, text=True)
            counts["runs"] += 1
            if not done.stdout.strip():
                failed.append(name)
                print(f"FAIL   {name:20} {done.stderr.strip()[:300]}", flush=True)
                continue
            found = json.loads(done.stdout)["findings"]
            false = [finding for finding in found if finding["sure"] != "note"]
            for finding in found if args.notes else false:
                counts[f"{finding['sure']} {finding['what']}"] += 1
            if false:
                failed.append(name)
                first = false[0]
                print(f"FAIL   {name:20} {len(false)} findings: {sorted({finding['what'] for finding in false})}; first step {first['step']} {first['tap']}: "
                      f"{first['detail'][:160]}", flush=True)
    for what, count in sorted(counts.items()):
        print(f"{count:6} {what}")
    print(f"with findings: {', '.join(failed) or 'none'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

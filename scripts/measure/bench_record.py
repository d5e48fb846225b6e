#!/usr/bin/env python3
"""What does recording the program cost beside recording taps alone? A random Llama of TinyLlama's shape (1.1 B weights, f32), a prefill.

    python scripts/measure/bench_record.py [--layers 22] [--tokens 32] [--rounds 3] [--at-most 1.5]
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.measure import tinyllama
import firstdiff


def repeat_one_row(weight):
    """Drawing 1.1 B numbers would take longer than the runs."""
    weight.copy_((torch.rand(weight.shape[-1]) * 0.04 - 0.02).expand(weight.shape))


def timed(made, ids, program):
    """Seconds of a recorded forward call, and the size of program.json."""
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        start = time.process_time()
        with firstdiff.record(made, Path(folder) / "out", program=program):
            made(ids)
        seconds = time.process_time() - start
        return seconds, (Path(folder) / "out" / "program.json").stat().st_size if program else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-most", type=float, default=1.5, help="fail where the ratio is larger")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    made, ids = tinyllama.model(args.layers, repeat_one_row), torch.arange(args.tokens)[None] * 37 % 32000
    timed(made, ids, False)
    taps = min(timed(made, ids, False)[0] for _ in range(args.rounds))
    programs = [timed(made, ids, True) for _ in range(args.rounds)]
    best, size = min(seconds for seconds, _ in programs), programs[0][1]
    print(f"{args.layers} layers, {args.tokens} tokens: taps {taps:.2f} s, with the program {best:.2f} s of one core: {best / taps:.2f} times; "
          f"program.json {size / 1024 / args.layers:.1f} kB a layer")
    sys.exit(0 if best <= args.at_most * taps else 1)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["torch==2.9.1", "transformers==4.57.1", "numpy>=1.26", "safetensors>=0.6"]
# ///
"""Makes fixtures/rounded: the fixture Llama by engines in another arithmetic, right and wrong. K/V caches of 16 and 8 bits, quantised weights and
activations (engine_rounded.py), and PyTorch's own dynamic int8.

    python scripts/goldens/make_rounded.py [torch]

Without `torch` all but PyTorch's, which needs no more than NumPy.
"""

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import FIXTURES
from scripts.engines import engine_rounded
from scripts.engines.engine_numpy import dump_members, write_dump

MODEL = FIXTURES / "models" / "llama"
TOKENS, DECODE = [1, 17, 42, 99, 3, 150, 77, 17, 128, 64, 5], [23]
RUNS = {
    "cache-f16": {"cache": "f16"},
    "cache-f16-kept": {"cache": "f16", "kept": True},
    "cache-bf16": {"cache": "bf16"},
    "cache-q8_0": {"cache": "q8_0"},
    "cache-q8_0-kept": {"cache": "q8_0", "kept": True},
    "cache-f16-times": {"cache": "f16", "kept": True, "times": [("layers.1.v", 1.001)]},
    "cache-f16-head": {"cache": "f16", "head": [("layers.1.context", 3)]},
    "a8-row": {"linear": "a8-row"},
    "a8-row-times": {"linear": "a8-row", "times": [("layers.1.ffn_up", 1.1)]},
    "w8-g32": {"linear": "w8-g32"},
    "w4-a32": {"linear": "w4-a32"},
}


def of_torch(out):
    """dump_torch.py's run with every linear layer quantised as it is called."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    from firstdiff.dump import pytorch as dump_torch
    import torch

    own = dump_torch.load
    dump_torch.load = lambda *how: torch.ao.quantization.quantize_dynamic(own(*how), {torch.nn.Linear}, dtype=torch.qint8)
    ids = lambda tokens: ",".join(map(str, tokens))
    sys.argv = ["dump_torch.py", str(MODEL), "-o", str(out), "--no-program", "--tokens", ids(TOKENS), "--decode-tokens", ids(DECODE)]
    if dump_torch.main():
        raise SystemExit("dump_torch.py failed")


def main():
    out = FIXTURES / "rounded"
    out.mkdir(exist_ok=True)
    for name, how in RUNS.items():
        write_dump(out / f"{name}.npz", dump_members(*engine_rounded.run(MODEL, TOKENS, DECODE, **how)))
    if "torch" in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            of_torch(Path(folder) / "dump")
            files = {file.name: file.read_bytes() for file in (Path(folder) / "dump").iterdir()}
            write_dump(out / "torch-int8.npz", files)


if __name__ == "__main__":
    main()

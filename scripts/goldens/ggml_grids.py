#!/usr/bin/env python3
"""Writes the codebooks of ggml's IQ types to crates/model/src/ggml/grids.bin, from PyPI gguf, whose tables are ggml's.

    python scripts/goldens/ggml_grids.py            write
    python scripts/goldens/ggml_grids.py --check    compare

One signed byte an element, entry by entry: IQ1_S (8 x 2048), IQ2_XXS (8 x 256), IQ2_XS (8 x 512), IQ2_S (8 x 1024), IQ3_XXS (4 x 256),
IQ3_S (4 x 512).
"""

import sys
from pathlib import Path

import gguf.quants as quants
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import ROOT

OUT = ROOT / "crates/model/src/ggml/grids.bin"
TYPES = ["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]


def grids():
    parts = []
    for name in TYPES:
        kind = getattr(quants, name)
        kind.init_grid()
        parts.append(kind.grid.reshape(kind.grid_shape).astype(np.int8).tobytes())
    return b"".join(parts)


def main():
    data = grids()
    if sys.argv[1:] == ["--check"]:
        same = OUT.is_file() and OUT.read_bytes() == data
        print(f"{OUT.name}: {'the same' if same else 'DIFFERS'}")
        return 0 if same else 1
    OUT.write_bytes(data)
    print(f"{OUT}: {len(data)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())

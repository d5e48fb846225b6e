#!/usr/bin/env python3
"""Writes a small random model in llama2.c's format: the same bytes on any machine.

    python scripts/convert/random_llama2c.py model.bin

For tests and for the examples of docs/guide/engines, which run on any llama2.c checkpoint. No two sizes are equal, gains are far from one, the head is
not the embedding: mistakes show that a model of even sizes would hide.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.goldens.fixture_models import bell, gains

D, F, L, H, K, V, POSITIONS = SIZES = 48, 104, 3, 6, 2, 448, 32


def write(path):
    d, rng = D // H, np.random.Generator(np.random.PCG64(260))
    tensors = [
        np.ldexp(bell(rng, V, D), -rng.integers(0, 8, (V, 1))), gains(rng, L * D), 0.16 * bell(rng, L, D, D), 0.16 * bell(rng, L, K * d, D),
        0.14 * bell(rng, L, K * d, D), 0.08 * bell(rng, L, D, D), gains(rng, L * D), 0.16 * bell(rng, L, F, D), 0.06 * bell(rng, L, D, F),
        0.13 * bell(rng, L, F, D), gains(rng, D), np.zeros((POSITIONS, d)), 0.2 * bell(rng, V, D),
    ]
    sizes = np.array(SIZES, "<i4")
    sizes[5] = -V  # a head of its own
    path.write_bytes(sizes.tobytes() + b"".join(t.astype("<f4").tobytes() for t in tensors))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write(Path(sys.argv[1]))

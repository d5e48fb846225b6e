#!/usr/bin/env python3
"""Measures how long a NumPy script, as people write it, takes to compare two folders of .npy files.

    bench_numpy.py REFERENCE CANDIDATE [RUNS]

Prints one JSON line: the seconds of each run, without the start of Python and the import of NumPy, and the figures of the
last file. Needs numpy (any 1.2x or 2.x).
"""

import json
import sys
import time
from pathlib import Path

import numpy as np


def compare(reference, candidate):
    results = {}
    for path in sorted(Path(reference).glob("*.npy")):
        r = np.load(path)
        c = np.load(Path(candidate) / path.name)
        diff = c - r
        results[path.stem] = {
            "rmse": float(np.sqrt(np.mean(diff**2))),
            "nmse": float(np.sum(diff**2) / np.sum(r**2)),
            "correlation": float(np.corrcoef(r.ravel(), c.ravel())[0, 1]),
            "max_abs_diff": float(np.max(np.abs(diff))),
            "cosine": float(np.dot(r.ravel(), c.ravel()) / (np.linalg.norm(r) * np.linalg.norm(c))),
        }
    return results


def main():
    reference, candidate = sys.argv[1:3]
    runs = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        results = compare(reference, candidate)
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": seconds, "numpy": np.__version__, "last": results[max(results)]}))


if __name__ == "__main__":
    main()

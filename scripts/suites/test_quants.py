#!/usr/bin/env python3
"""Tests that our values of every ggml block type equal those of PyPI gguf and of llama.cpp, bit for bit.

    python scripts/suites/test_quants.py                      at least 10,000 random valid blocks a type; exit 1 on any difference
    python scripts/suites/test_quants.py --json FILE          and the table as JSON (for docs/measured/quants.md)
    python scripts/suites/test_quants.py --update-fixtures    write fixtures/quants, the few blocks that `cargo test` compares

Blocks are random bytes whose scales were replaced by normal numbers; where gguf can quantise, blocks of quantised random rows too. Ours come from
`cargo run --release -p firstdiff-model --example dequantise`. llama.cpp's come from to_float of ggml_get_type_traits, through ctypes.
"""

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import _type_traits, dequantize, quantize

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import ROOT

FIXTURES = ROOT / "fixtures/quants"
BLOCKS = 10_000
# Byte offsets of the f16 scales of a block; (offset,) of an f32 with "f32".
SCALES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q8_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2],
    "Q5_K": [0, 2], "Q6_K": [208], "Q8_K": ["f32"], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ3_XXS": [0], "IQ1_S": [0], "IQ4_NL": [0], "IQ3_S": [0],
    "IQ2_S": [0], "IQ4_XS": [0], "IQ1_M": [], "TQ1_0": [52], "TQ2_0": [64], "MXFP4": [], "NVFP4": [], "Q1_0": [0],
}
# gguf 0.19 counts Q8_1 with f32 scales; ggml's block has two f16.
SIZES = {"Q8_1": (32, 36)}


class Traits(ctypes.Structure):
    """ggml_type_traits, up to to_float."""

    _fields_ = [("name", ctypes.c_char_p), ("blck_size", ctypes.c_int64), ("interleave", ctypes.c_int64),
                ("type_size", ctypes.c_size_t), ("is_quantized", ctypes.c_bool), ("to_float", ctypes.c_void_p)]


class CpuTraits(ctypes.Structure):
    """ggml_type_traits_cpu, up to from_float."""

    _fields_ = [("from_float", ctypes.c_void_p)]


def llama_cpp(stem, function, result):
    """A library of llama-cpp-python, or None where it is absent."""
    try:
        import llama_cpp as package
    except ModuleNotFoundError:
        return None
    folder = Path(package.__file__).parent / "lib"
    for name in (f"lib{stem}.so", f"lib{stem}.dylib", f"{stem}.dll"):
        if (folder / name).exists():
            library = ctypes.CDLL(str(folder / name))
            getattr(library, function).restype = ctypes.POINTER(result)
            getattr(library, function).argtypes = [ctypes.c_int]
            return library
    return None


def own_values(library, kind, data, size):
    """to_float of llama.cpp, or None where it has none."""
    if library is None:
        return None
    traits = library.ggml_get_type_traits(int(kind)).contents
    length, width = size
    if traits.blck_size != length or traits.type_size != width or not traits.to_float:
        return None
    count = len(data) // width * length
    out = np.empty(count, np.float32)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(traits.to_float)
    function(data.ctypes.data, out.ctypes.data, count)
    return out


def random_blocks(kind, size, rng):
    length, width = size
    blocks = rng.integers(0, 256, (BLOCKS, width), np.uint8)
    for offset in SCALES[kind.name]:
        values = rng.normal(0, 0.05, BLOCKS)
        if offset == "f32":
            blocks[:, :4] = values.astype("<f4").view(np.uint8).reshape(BLOCKS, 4)
        else:
            blocks[:, offset:offset + 2] = values.astype("<f2").view(np.uint8).reshape(BLOCKS, 2)
    if kind.name == "IQ1_M":  # the f16 scale is the top nibbles of four words
        bits = rng.normal(0, 0.05, BLOCKS).astype("<f2").view(np.uint16)
        words = blocks[:, 48:].copy().view("<u2")
        for i in range(4):
            words[:, i] = (words[:, i] & 0x0FFF) | ((bits >> (4 * i) & 15) << 12)
        blocks[:, 48:] = words.view(np.uint8)
    if kind.name == "MXFP4":
        blocks[:, 0] = rng.integers(0, 255, BLOCKS)
    if kind.name == "NVFP4":
        blocks[:, :4] &= 127
    parts = [blocks.reshape(-1)]
    try:
        rows = rng.normal(0, 1, (64, 4 * length)).astype(np.float32)
        parts.append(quantize(rows, kind).reshape(-1).view(np.uint8))
    except NotImplementedError:
        pass
    return np.ascontiguousarray(np.concatenate(parts))


def same(ours, theirs):
    """Bit for bit, but for what a NaN carries."""
    if theirs is None:
        return None
    both = (ours.view(np.uint32) == theirs.view(np.uint32)) | (np.isnan(ours) & np.isnan(theirs))
    return int((~both).sum()) == 0


def our_values(binary, name, data, folder):
    source, target = folder / "in.bin", folder / "out.f32"
    source.write_bytes(data.tobytes())
    subprocess.run([binary, name, source, target], check=True)
    return np.fromfile(target, "<f4")


def gguf_values(kind, data, size):
    if kind not in _type_traits or kind.name in SIZES:
        return None
    with np.errstate(all="ignore"):
        return dequantize(data.reshape(-1, size[1]), kind).astype(np.float32).reshape(-1)


def activations(rows):
    """Rows rounded as llama.cpp's CPU backend rounds them before a product: type -> (values, for Q8_1 what its sum exceeds theirs by)."""
    library = llama_cpp("ggml-cpu", "ggml_get_type_traits_cpu", CpuTraits)
    if library is None:
        return {}
    library.ggml_cpu_init()
    out = {}
    for name, number, length, width in [("Q8_0", 8, 32, 34), ("Q8_1", 9, 32, 36), ("Q8_K", 15, 256, 292), ("F16", 1, 1, 2), ("BF16", 30, 1, 2)]:
        pointer = library.ggml_get_type_traits_cpu(number).contents.from_float
        blocks = np.empty((rows.size // length, width), np.uint8)
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(pointer)(rows.ctypes.data, blocks.ctypes.data, rows.size)
        half = lambda at: blocks[:, at:at + 2].copy().view("<f2").astype(np.float32)
        if name in ("F16", "BF16"):
            bits = blocks.view("<u2").reshape(-1)
            values = bits.view("<f2").astype(np.float32) if name == "F16" else (bits.astype(np.uint32) << 16).view(np.float32)
            out[name] = values, None
            continue
        scale = blocks[:, :4].copy().view("<f4") if name == "Q8_K" else half(0)
        start = 2 if name == "Q8_0" else 4
        q = blocks[:, start:start + length].view(np.int8).astype(np.float32)
        excess = half(2)[:, 0] - scale[:, 0] * q.sum(1) if name == "Q8_1" else None
        out[name] = (q * scale).reshape(-1), excess
    return out


def check_activations(binary, folder, update):
    """Our rounding of activations against llama.cpp's, bit for bit; one row a type."""
    def rows(count, seed):
        rng = np.random.default_rng(seed)
        x = rng.standard_t(4, (count, 256)) * np.exp(rng.normal(0, 2, (count, 1)))
        x[0] = 0  # a row of nothing
        x[1, :32] = np.arange(32) / 2  # ties
        return x.astype(np.float32)

    if update:
        few = rows(8, 7)
        few.tofile(FIXTURES / "activations.x.f32")
        for name, (values, excess) in activations(few).items():
            values.astype("<f4").tofile(FIXTURES / f"activations.{name}.f32")
            if excess is not None:
                excess.astype("<f4").tofile(FIXTURES / f"activations.{name}.excess.f32")
    x, table = rows(BLOCKS, 8), []
    (folder / "x.f32").write_bytes(x.tobytes())
    for name, (values, excess) in activations(x).items():
        subprocess.run([binary, f"activations:{name}", folder / "x.f32", folder / "out.f32"], check=True)
        ours = np.fromfile(folder / "out.f32", "<f4")
        theirs = values if excess is None else np.concatenate([values, excess])
        table.append({"type": f"activations {name}", "blocks": BLOCKS, "gguf": None, "llama.cpp": same(ours, theirs.astype(np.float32))})
    return table


def build():
    target = subprocess.run(["cargo", "metadata", "--format-version", "1", "--no-deps"], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["cargo", "build", "--release", "--locked", "-q", "-p", "firstdiff-model", "--example", "dequantise"], cwd=ROOT, check=True)
    return Path(json.loads(target.stdout)["target_directory"]) / "release/examples/dequantise"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--update-fixtures", action="store_true")
    args = parser.parse_args()
    binary, library, rows = build(), llama_cpp("ggml-base", "ggml_get_type_traits", Traits), []
    with tempfile.TemporaryDirectory() as folder:
        for number, (kind, size) in enumerate(gguf.GGML_QUANT_SIZES.items()):
            if kind.name not in SCALES:
                continue
            size = SIZES.get(kind.name, size)
            data = random_blocks(kind, size, np.random.default_rng(1000 + number))
            ours = our_values(binary, kind.name, data, Path(folder))
            theirs, own = gguf_values(kind, data, size), own_values(library, kind, data, size)
            rows.append({"type": kind.name, "blocks": len(data) // size[1], "gguf": same(ours, theirs), "llama.cpp": same(ours, own)})
            if args.update_fixtures and (theirs is not None or own is not None):
                FIXTURES.mkdir(exist_ok=True)
                count = max(4, 512 // size[0])
                (FIXTURES / f"{kind.name}.bin").write_bytes(data[:count * size[1]].tobytes())
                (theirs if theirs is not None else own)[:count * size[0]].astype("<f4").tofile(FIXTURES / f"{kind.name}.f32")
        rows += check_activations(binary, Path(folder), args.update_fixtures)
    word = {True: "equal", False: "DIFFERENT", None: "cannot say"}
    print(f"{'type':<16} {'blocks':>7}  gguf 0.19    llama.cpp")
    for row in rows:
        print(f"{row['type']:<16} {row['blocks']:>7}  {word[row['gguf']]:<11}  {word[row['llama.cpp']]}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    missing = [row["type"] for row in rows if row["gguf"] is None and row["llama.cpp"] is None]
    print(f"{len(rows)} rows; neither side knows {', '.join(missing) or 'none'}")
    return 1 if any(row[side] is False for row in rows for side in ("gguf", "llama.cpp")) else 0


if __name__ == "__main__":
    sys.exit(main())

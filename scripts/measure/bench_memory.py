#!/usr/bin/env python3
"""bench_memory.py: models larger than memory, for `cargo xtask bench memory`.

    python scripts/measure/bench_memory.py FOLDER --command BIN [--limit 3] [--layers 32] [--kinds q4_k_m,f16]

Makes a llama of 8 billion parameters in FOLDER where it is not there: q4_k_m.gguf (random blocks, 5 GB) and f16.gguf (the same values, 16 GB). Then runs `dump`, `replay`,
`explain` on each and `weights` on both, with all the machine's memory and in a control group of so many GiB, each time with nothing of the files in memory, and prints a table. It needs root, numpy and gguf, and a
memory controller of version 1 or 2 that is mounted.
"""

import argparse
import contextlib
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

D, F, V, H, K, THETA = 4096, 14336, 128256, 32, 8, 500000.0
TOKENS = ",".join(str(1 + 37 * i % 1024) for i in range(14))
GIB = 1 << 30
THREADS = 2


# ---- the models ----


def shapes(layers):
    kv = D // H * K
    yield "token_embd", (V, D), Type.Q4_K
    for n in range(layers):
        # As llama.cpp's Q4_K_M has it: more bits for some.
        more = Type.Q6_K if n < layers // 8 or n >= 7 * layers // 8 or (n - layers // 8) % 3 == 2 else Type.Q4_K
        at = f"blk.{n}."
        yield at + "attn_norm", (D,), Type.F32
        yield from ((at + name, (rows, D), kind) for name, rows, kind in (("attn_q", D, Type.Q4_K), ("attn_k", kv, Type.Q4_K), ("attn_v", kv, more), ("attn_output", D, Type.Q4_K)))
        yield at + "ffn_norm", (D,), Type.F32
        yield from ((at + "ffn_gate", (F, D), Type.Q4_K), (at + "ffn_up", (F, D), Type.Q4_K), (at + "ffn_down", (D, F), more))
    yield "output_norm", (D,), Type.F32
    yield "output", (V, D), Type.Q6_K


def values(rng, shape, kind):
    """Random blocks that stand for values about 0 with a variance of 1/n, as bytes; a vector near 1."""
    if kind == Type.F32:
        return np.float32(1) + np.float32(0.1) * rng.standard_normal(shape, np.float32)
    count, size = int(np.prod(shape)) // 256, {Type.Q4_K: 144, Type.Q6_K: 210}[kind]
    blocks = np.frombuffer(rng.bytes(count * size), np.uint8).reshape(count, size).copy()
    scale = shape[-1] ** -0.5
    if kind == Type.Q4_K:  # d, dmin: the standard deviation of scale q - 7.5 minimum is 257
        blocks[:, :4] = np.array([scale / 257, 7.5 * scale / 257], np.float16).view(np.uint8)
    else:  # d: of scale (q - 32) it is 1365
        blocks[:, -2:] = np.array([scale / 1365], np.float16).view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def written(path, layers, kinds, tensors):
    if path.exists():
        return
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, "llama", use_temp_file=False)
    writer.add_context_length(8192)
    writer.add_embedding_length(D)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(F)
    writer.add_head_count(H)
    writer.add_head_count_kv(K)
    writer.add_rope_dimension_count(D // H)
    writer.add_rope_freq_base(THETA)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(V)
    writer.add_tokenizer_model("no_vocab")
    for name, shape, kind in kinds:
        if kind in (Type.F32, Type.F16):
            dtype = np.dtype(np.float32 if kind == Type.F32 else np.float16)
            writer.add_tensor_info(f"{name}.weight", shape, dtype, int(np.prod(shape)) * dtype.itemsize)
        else:
            length, size = gguf.GGML_QUANT_SIZES[kind]
            stored = (*shape[:-1], shape[-1] // length * size)
            writer.add_tensor_info(f"{name}.weight", stored, np.dtype(np.uint8), int(np.prod(stored)), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        writer.write_tensor_data(tensor)
    writer.close()
    os.replace(partial, path)


def make(folder, layers, kinds):
    folder.mkdir(parents=True, exist_ok=True)
    small, large, rng = folder / "q4_k_m.gguf", folder / "f16.gguf", np.random.default_rng(5)
    each = list(shapes(layers))
    written(small, layers, each, (values(rng, shape, kind) for _, shape, kind in each))
    if "f16" not in kinds:
        return

    def widened():
        for tensor in gguf.GGUFReader(small).tensors:
            data = np.asarray(tensor.data)
            if tensor.tensor_type == Type.F32:
                yield data
                continue
            out = np.empty([int(n) for n in reversed(tensor.shape)], np.float16)
            for start in range(0, len(out), 1024):
                out[start:start + 1024] = gguf.quants.dequantize(data[start:start + 1024], tensor.tensor_type)
            yield out

    written(large, layers, [(name, shape, kind if kind == Type.F32 else Type.F16) for name, shape, kind in each], widened())


@contextlib.contextmanager
def theta(path, value):
    """The file says another theta meanwhile."""
    key = b"llama.rope.freq_base"
    with open(path, "r+b") as file:
        at = file.read(1 << 20).index(key) + len(key) + 4
        said = lambda number: (file.seek(at), file.write(struct.pack("<f", number)), file.flush())
        said(value)
        try:
            yield
        finally:
            said(THETA)


# ---- running ----


class Group:
    """A control group with so many bytes of memory, pages of files included."""

    def __init__(self, limit):
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
        first = [(Path(m[1]), "memory.limit_in_bytes") for m in mounts if m[2] == "cgroup" and "memory" in m[3].split(",")]
        listed = lambda m: Path(m[1]) / "cgroup.controllers"  # what is mounted may be hidden by another
        second = [(Path(m[1]), "memory.max") for m in mounts if m[2] == "cgroup2" and listed(m).exists() and "memory" in listed(m).read_text().split()]
        if not first + second:
            sys.exit("no memory controller is mounted; `mkdir /tmp/memory && mount -t cgroup -o memory none /tmp/memory` mounts one of version 1")
        root, key = (first + second)[0]
        self.path = root / f"firstdiff-bench-{os.getpid()}"
        self.path.mkdir()
        (self.path / key).write_text(str(limit))

    def join(self):
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def close(self):
        for _ in range(100):
            try:
                return self.path.rmdir()
            except OSError:  # the kernel takes a moment to see that the last process is gone
                time.sleep(0.1)


def cost(command, codes, group=None):
    """Seconds, GB that were read from the disk, and the most memory that is no mapped file, in MiB."""
    begun = time.perf_counter()
    child = subprocess.Popen([str(c) for c in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=group and group.join,
                             env=os.environ | {"RAYON_NUM_THREADS": str(THREADS)})
    memory = read = 0
    while child.poll() is None:
        with contextlib.suppress(OSError, ValueError):
            lines = dict(line.split(":", 1) for line in Path(f"/proc/{child.pid}/status").read_text().splitlines())
            memory = max(memory, int(lines.get("RssAnon", "0").split()[0]))
            lines = dict(line.split(":", 1) for line in Path(f"/proc/{child.pid}/io").read_text().splitlines())
            read = int(lines["read_bytes"])
        time.sleep(0.02)
    seconds = time.perf_counter() - begun
    if child.returncode not in codes:
        sys.exit(f"{' '.join(map(str, command))}: exit code {child.returncode}\n{child.stderr.read().decode()[-2000:]}")
    return seconds, read / 1e9, memory / 1024


def forgotten(path):
    """Takes a file out of memory."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk(path):
    """GB a second, one byte after the other."""
    forgotten(path)
    with open(path, "rb", buffering=0) as file:
        size, begun = min(path.stat().st_size, 4 * GIB), time.perf_counter()
        left = size
        while left > 0:
            left -= len(file.read(1 << 23)) or left
        return size / (time.perf_counter() - begun) / 1e9


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path)
    p.add_argument("--command", type=Path, required=True)
    p.add_argument("--limit", type=float, default=3, help="GiB")
    p.add_argument("--layers", type=int, default=32)
    p.add_argument("--kinds", type=lambda text: text.split(","), default=["q4_k_m", "f16"])
    a = p.parse_args()
    make(a.folder, a.layers, a.kinds)
    models = {kind: a.folder / f"{kind}.gguf" for kind in a.kinds}
    again, rows = a.folder / "again", []

    def removed(path):
        shutil.rmtree(path, ignore_errors=True)
        return path

    def both(name, command):
        found = []
        for limit in (None, a.limit):
            removed(again)
            # What is in memory already would be counted to nobody.
            for model in models.values():
                forgotten(model)
            group = Group(int(limit * GIB)) if limit else None
            try:
                found.append(cost(command, (0, 1), group))
            finally:
                if group:
                    group.close()
        (free, free_read, free_memory), (bound, bound_read, bound_memory) = found
        rows.append(f"| {name} | {free:.1f} s | {free_read:.1f} GB | {bound:.1f} s | {bound_read:.1f} GB | {bound / free:.2f} | {max(free_memory, bound_memory):.0f} MiB |")
        print(rows[-1], file=sys.stderr, flush=True)

    for kind, model in models.items():
        wrong = removed(a.folder / f"wrong-{kind}")
        with theta(model, THETA / 2):
            cost([a.command, "dump", model, "--tokens", TOKENS, "-o", wrong], [0])
        both(f"`dump` {kind}", [a.command, "dump", model, "--tokens", TOKENS, "-o", again])
        both(f"`replay` {kind}", [a.command, "replay", model, wrong])
        both(f"`explain` {kind}", [a.command, "explain", model, wrong])
    if len(models) > 1:
        both("`weights` of both", [a.command, "weights", *models.values()])
    removed(again)
    sizes = ", ".join(f"{kind} {model.stat().st_size / 1e9:.1f} GB" for kind, model in models.items())
    rates = ", ".join(f"{disk(model):.2f}" for model in models.values())
    print(f"A llama of 8 billion parameters ({a.layers} layers; {sizes}), 14 tokens, {THREADS} threads; the candidate rotates with half of theta, all taps are recorded. With all of the "
          f"machine's memory, and in a control group of {a.limit:g} GiB, pages of files included; nothing of the files is in memory at first. The disk alone, one byte after the other: {rates} GB/s.\n\n"
          "| command | without a limit | read from the disk | with | read from the disk | ratio | memory beside mapped files |\n|---|---|---|---|---|---|---|\n" + "\n".join(rows))


if __name__ == "__main__":
    main()

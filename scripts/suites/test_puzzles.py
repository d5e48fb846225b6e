#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["torch==2.9.1", "transformers==4.57.1", "numpy>=1.26", "gguf", "llama-cpp-python==0.3.36"]
# ///
"""Tests that firstdiff aligns dumps whose tensors have another layout than the reference's, and still finds the mistake in them.

    python scripts/suites/test_puzzles.py [--command PATH] [--keep DIR] [--only NAME] [--names]

Every puzzle is a real run (PyTorch in f64, or llama.cpp) of a fixture model whose tensors are then laid otherwise: axes permuted, heads merged,
padded, sharded over ranks and so on, by NumPy code that shares nothing with firstdiff's. A right one must come out at parity, or unchecked: never
diverged. Each is made again from a run with a mistake in it (another RoPE base, another attention scale, an activation ...), which must be found at
its own tap. --names adds the puzzles whose names were taken away. Prints `puzzle | right | with a mistake`; exit 1 on a wrong outcome.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import FIXTURES, ROOT, SCRIPTS
from scripts.planted.layouts import HEADS, KEYS, KV, ROTATED, adjacent, backwards, batch, chain, column_major, context_heads_first, each, flat, moved
from scripts.planted.layouts import pad_keys, pad_positions, pad_vocabulary, repeat_heads, site, split_context
from firstdiff.dump import pytorch as dump_torch

MODELS = FIXTURES / "models"
TOKENS, DECODE = [1, 17, 42, 99, 3, 150, 77, 17, 128, 64, 5], [23]


# ---- runs: {(tap, step): array}, from PyTorch and from llama.cpp ----


def rope_base(model):
    """Another RoPE base, in every layer."""
    model.config.rope_theta *= 3
    rotary = model.model.rotary_emb
    rotary.inv_freq = rotary.original_inv_freq = dump_torch.frequencies(model.config)[0].float()
    return "layers.0.q_rope"


def attention_scale(model):
    model.model.layers[1].self_attn.scaling *= 1.2
    return "layers.1.scores"


def activation(model):
    import torch

    model.model.layers[0].mlp.act_fn = torch.nn.GELU()
    return "layers.0.ffn_act"


def value_heads(model):
    """The value heads of layer 1 in the wrong order."""
    weight = model.model.layers[1].self_attn.v_proj.weight.data
    weight.copy_(weight.roll(weight.shape[0] // 2, 0))
    return "layers.1.v"


def second_rank(model):
    """The query heads of the second of two ranks, scaled."""
    weight = model.model.layers[1].self_attn.q_proj.weight.data
    weight[weight.shape[0] // 2 :] *= 1.1
    return "layers.1.q"


def head_scale(model):
    model.lm_head.weight.data *= 1.001
    return "logits"


def torch_run(folder, model, dtype="f64", tokens=TOKENS, mistake=None):
    """(taps, meta, weights, the tap where the mistake first shows) of a fixture model."""
    import transformers.models  # noqa: F401  (loads the lazy package)

    kept = {}
    plain_load = dump_torch.load

    def load(*arguments):
        loaded = plain_load(*arguments)
        kept["first"] = mistake(loaded) if mistake else None
        kept["weights"] = {name: p.detach().double().numpy() for name, p in loaded.named_parameters()}
        modeling = sys.modules[type(loaded).__module__]
        kept["restore"] = (modeling, modeling.eager_attention_forward)
        return loaded

    dump_torch.load = load
    out = folder / f"{model}-{dtype}-{len(tokens)}-{mistake.__name__ if mistake else 'right'}"
    given = [str(MODELS / model), "-o", str(out), "--tokens", ",".join(map(str, tokens)), "--decode-tokens", ",".join(map(str, DECODE)), "--dtype", dtype]
    sys.argv, said = ["dump_torch.py", "--no-program", *given], dump_torch.say
    dump_torch.say = lambda _: None
    try:
        dump_torch.dump(dump_torch.arguments())
    finally:
        dump_torch.load, dump_torch.say = plain_load, said
        setattr(kept["restore"][0], "eager_attention_forward", kept["restore"][1])
    return *read(out), kept["weights"], kept["first"]


def llama_cpp_run(folder, model, rope_factor=1.0):
    """(taps, meta) of llama.cpp on the model as a GGUF."""
    source = folder / f"{model}-{rope_factor}"
    shutil.copytree(MODELS / model, source)
    config = json.loads((source / "config.json").read_text())
    config["rope_theta"] *= rope_factor
    (source / "config.json").write_text(json.dumps(config))
    gguf, out = source / "model.gguf", source / "dump"
    tokens = ["--tokens", ",".join(map(str, TOKENS)), "--decode-tokens", ",".join(map(str, DECODE))]
    for command in (["convert/hf_to_gguf.py", source, gguf, "--dtype", "f32"], ["dump_llama_cpp.py", gguf, "-o", out, "--no-program", *tokens]):
        done = subprocess.run([sys.executable, SCRIPTS / command[0], *map(str, command[1:])], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{command[0]}: {done.stderr[-600:]}")
    return read(out)


def read(folder):
    meta = json.loads((folder / "dump.json").read_text())
    taps = {(t["tap"], t["step"]): np.load(folder / t["file"]) for t in meta.pop("taps")}
    kept = {key: meta[key] for key in ("tokens", "decode_tokens", "qk_rows") if key in meta}
    return taps, {**kept, "producer": "test_puzzles.py", "precision": "f32"}


def write(folder, taps, meta, rename=None):
    folder.mkdir(parents=True)
    for (tap, step), values in taps.items():
        name = rename(tap) if rename else tap
        values = values if values.dtype == np.float16 else values.astype(np.float32)
        np.save(folder / f"{name}{f'.step{step}' if step else ''}.npy", values)
    (folder / "dump.json").write_text(json.dumps(meta))


# ---- shards: (taps, weights) -> [(taps, dims) of each rank] ----


def cuts(n):
    return lambda length: [length * r // n for r in range(n + 1)]


def shard(n, notation=True, heads_first=False):
    """Megatron's way: heads and feed-forward cut, the outputs of both products partial, the rest on every rank."""

    def ranks(taps, weights):
        made = [{} for _ in range(n)]
        dims = {"*": "T D"}
        for (tap, step), x in taps.items():
            name, layer = site(tap), tap.split(".")[1] if "." in tap else None
            pieces, said = [x] * n, None
            if name in HEADS or name == "context" or name in KEYS:
                if name in KEYS:
                    said, axis, length = "H[tp] T S", 0, x.shape[0]
                elif name == "context":
                    said, axis, length = "T C[tp]", 1, 6
                else:
                    said, axis, length = ("H[tp] T d" if heads_first else "T H[tp] d"), 1, x.shape[1]
                if name in KV and length < n:
                    # More ranks than key/value heads: each rank has the one it needs.
                    pieces = [x[:, r * length // n : r * length // n + 1] for r in range(n)]
                else:
                    unit = x.shape[axis] // length
                    at = [b * unit for b in cuts(n)(length)]
                    pieces = [np.take(x, range(at[r], at[r + 1]), axis=axis) for r in range(n)]
                if heads_first and name in HEADS:
                    pieces = [p.swapaxes(0, 1) for p in pieces]
            elif name in ("ffn_gate", "ffn_up", "ffn_act"):
                said, at = "T F[tp]", cuts(n)(x.shape[1])
                pieces = [x[:, at[r] : at[r + 1]] for r in range(n)]
            elif name in ("attn_out", "ffn_out"):
                said = "T D partial"
                source, matrix = ("context", "self_attn.o_proj") if name == "attn_out" else ("ffn_act", "mlp.down_proj")
                read_from, w = taps[(f"layers.{layer}.{source}", step)], weights[f"model.layers.{layer}.{matrix}.weight"]
                at = cuts(n)(read_from.shape[1])
                pieces = [read_from[:, at[r] : at[r + 1]] @ w[:, at[r] : at[r + 1]].T for r in range(n)]
            elif name == "logits":
                said, at = "T V[tp]", cuts(n)(x.shape[1])
                pieces = [x[:, at[r] : at[r + 1]] for r in range(n)]
            if said:
                dims[f"layers.*.{name}" if layer else name] = said
            for rank, piece in zip(made, pieces):
                rank[(tap, step)] = np.ascontiguousarray(piece)
        return [(rank, dims if notation else None) for rank in made]

    return ranks


def replica_off(ranks):
    """One replica of a replicated tap is another tensor."""

    def changed(taps, weights):
        made = ranks(taps, weights)
        made[1][0][("layers.0.h_attn", 0)] = made[1][0][("layers.0.h_attn", 0)] * 1.01
        return made

    return changed


def write_shards(folder, made, meta):
    for r, (taps, dims) in enumerate(made):
        write(folder / f"rank{r}", taps, {**meta, **({"dims": dims} if dims else {})})


# ---- puzzles ----


class Puzzle:
    def __init__(self, name, layout=None, mistake=rope_base, model="llama", tokens=TOKENS, shards=None, must_say=(), engine="torch", rename=None):
        self.name, self.layout, self.mistake, self.model, self.tokens = name, layout or (lambda taps: taps), mistake, model, tokens
        self.shards, self.must_say, self.engine, self.rename = shards, must_say, engine, rename


def puzzles():
    heads_first = each(moved(1, 0, 2), HEADS)
    rows_of_qk = each(adjacent, ROTATED)
    ggml = each(backwards)
    return [
        Puzzle("heads first, as the shape says", heads_first),
        Puzzle("heads first, flat", chain(heads_first, each(flat))),
        Puzzle("heads first where T = H", chain(heads_first, each(lambda k, x: x.reshape(x.shape[1], x.shape[0], -1), HEADS)), tokens=TOKENS[:6]),
        Puzzle("d first, flat", chain(each(moved(2, 1, 0), HEADS), each(flat)), mistake=activation),
        Puzzle("T, d, H", each(moved(0, 2, 1), HEADS), mistake=attention_scale),
        Puzzle("heads merged, context split", chain(each(lambda k, x: x.reshape(len(x), -1), HEADS), each(split_context, ("context",))), mistake=value_heads),
        Puzzle("context heads first", each(context_heads_first, ("context",)), mistake=attention_scale),
        Puzzle("column-major under a row-major shape", each(column_major), mistake=activation),
        Puzzle("column-major, with QK-norm", each(column_major), mistake=attention_scale, model="qwen3"),
        Puzzle("batch axes", each(batch), mistake=value_heads),
        Puzzle("rows of Q and K as in GGUF, undeclared", rows_of_qk, mistake=attention_scale),
        Puzzle("rows of Q and K as in GGUF, heads first", chain(rows_of_qk, heads_first), mistake=attention_scale),
        Puzzle("256 keys", pad_keys(256), mistake=attention_scale),
        Puzzle("256 keys, flat", chain(pad_keys(256), each(flat, KEYS)), mistake=activation),
        Puzzle("vocabulary padded", each(pad_vocabulary, ("logits",)), mistake=head_scale),
        Puzzle("16 positions, padded on the right", pad_positions(16, False)),
        Puzzle("16 positions, padded on the left", pad_positions(16, True)),
        Puzzle("key/value heads repeated", each(repeat_heads, KV), mistake=value_heads),
        Puzzle("transposed [D,T], flat", chain(each(moved(1, 0), set(dump_sites(2))), each(flat)), mistake=activation),
        Puzzle("transposed, as the shape says", each(moved(1, 0), set(dump_sites(2))), mistake=head_scale),
        Puzzle("ggml extents, fastest first", ggml, mistake=activation),
        Puzzle("stored in f16", each(lambda k, x: x.astype(np.float16)), mistake=attention_scale),
        Puzzle("llama.cpp: ggml extents, 256 keys, GGUF rows", chain(pad_keys(256), ggml), engine="llama.cpp"),
        Puzzle("llama.cpp: flat, d first, GGUF rows", chain(each(moved(2, 1, 0), HEADS), each(flat)), engine="llama.cpp"),
        Puzzle("2 ranks", shards=shard(2), mistake=second_rank, must_say=("rank1",)),
        Puzzle("2 ranks, heads first", shards=shard(2, heads_first=True)),
        Puzzle("2 ranks without a notation", shards=shard(2, notation=False), mistake=second_rank, must_say=("rank1",)),
        Puzzle("4 ranks, key/value heads shared", shards=shard(4), mistake=activation),
        Puzzle("2 ranks, 256 keys", pad_keys(256), shards=shard(2), mistake=attention_scale),
        Puzzle("2 ranks, one replica off", shards=shard(2), mistake=None, must_say=("rank1",)),
    ]


def nameless():
    """Puzzles without names, for the alignment of names by content."""
    count = iter(range(10**6))
    return [
        Puzzle("names stripped", rename=lambda tap: f"t{next(count):04}"),
        Puzzle("names stripped, flat", each(flat), rename=lambda tap: f"t{next(count):04}", mistake=attention_scale),
        Puzzle("names stripped, heads first", each(moved(1, 0, 2), HEADS), rename=lambda tap: f"t{next(count):04}", mistake=activation),
    ]


def dump_sites(axes):
    two = ["h0", "attn_norm", "context", "attn_out", "h_attn", "ffn_norm", "ffn_gate", "ffn_up", "ffn_act", "ffn_out", "h", "final_norm", "logits"]
    return two if axes == 2 else [*HEADS, *KEYS]


# ---- judging ----


class Runs:
    """The runs that puzzles are made of, each made once."""

    def __init__(self, folder):
        self.folder, self.made = folder, {}

    def of(self, puzzle, mistake, dtype="f64"):
        key = (puzzle.engine, puzzle.model, len(puzzle.tokens), mistake, dtype)
        if key not in self.made:
            if puzzle.engine == "torch":
                self.made[key] = torch_run(self.folder, puzzle.model, dtype, puzzle.tokens, mistake)
            else:
                self.made[key] = *llama_cpp_run(self.folder, puzzle.model, 3.0 if mistake else 1.0), None, "layers.0.q_rope" if mistake else None
        return self.made[key]

    def reference(self, puzzle):
        folder = self.folder / f"{puzzle.model}-f32-{len(puzzle.tokens)}-right"
        if not folder.exists():
            torch_run(self.folder, puzzle.model, "f32", puzzle.tokens)
        return folder


def lay(folder, puzzle, run, broken):
    taps, meta, weights, _ = run
    taps = puzzle.layout(taps)
    if puzzle.shards:
        shards = replica_off(puzzle.shards) if broken and puzzle.mistake is None else puzzle.shards
        write_shards(folder, shards(taps, weights), meta)
    else:
        write(folder, taps, meta, puzzle.rename)


def compare(command, reference, candidate, nameless=False):
    """With names that nobody knows, by the table that `align` proposes."""
    if nameless:
        done = subprocess.run([command, "align", reference, candidate, "-o", candidate / "firstdiff.toml"], capture_output=True, text=True)
        if done.returncode:
            return {"verdict": "incomparable", "reason": done.stderr.strip()[:300], "taps": []}, 2
    done = subprocess.run([command, "compare", reference, candidate, "--json", "-"], capture_output=True, text=True)
    try:
        return json.loads(done.stdout), done.returncode
    except ValueError:
        return {"verdict": "failed", "reason": done.stderr.strip()[:300], "taps": []}, done.returncode


def solve(command, folder, runs, puzzle):
    """(what is said of the right one, whether that is due, of the one with the mistake, whether that is due)."""
    reference, at = runs.reference(puzzle), folder / puzzle.name.replace(" ", "_").replace("/", "_")
    lay(at / "right", puzzle, runs.of(puzzle, None), False)
    report, code = compare(command, reference, at / "right", puzzle.rename is not None)
    unchecked = sum(tap["status"] == "unchecked" for tap in report["taps"])
    honest = report["verdict"] == "parity" and code == 0 or report["verdict"] == "incomparable" and code == 2
    right = report["verdict"] + (f", {unchecked} of {len(report['taps'])} unchecked" if unchecked else "")
    if not honest:
        right += f" ({(report.get('first_divergence') or {}).get('tap') or report.get('reason')})"
    run = runs.of(puzzle, puzzle.mistake)
    lay(at / "wrong", puzzle, run, True)
    report, code = compare(command, reference, at / "wrong", puzzle.rename is not None)
    first = (report.get("first_divergence") or {}).get("tap")
    due = run[3] or "layers.0.h_attn"
    said = json.dumps([report.get("warnings"), [r for r in (report.get("first_divergence") or {}).get("anatomy", {}).get("ranks", []) if not r["right"]]])
    names = all(word in said for word in puzzle.must_say)
    found = report["verdict"] == "diverged" and code == 1 and first == due and names
    # A tensor without a name whose values are wrong is no tap that anybody could know.
    found = found or (puzzle.rename is not None and report["verdict"] == "incomparable" and code == 2)
    wrong = f"{first or report['verdict']}{'' if found else f' WRONG, {due} is due'}{'' if names else ', and the rank is not named'}"
    return right, honest, wrong, found


def planted(command, folder):
    """Every mistake of fixtures/faulty, laid otherwise: how many are found at their own tap, and which are not."""
    fixtures, layouts = FIXTURES, {
        "flat": each(flat),
        "heads first, flat": chain(each(moved(1, 0, 2), HEADS), each(flat)),
        "column-major": each(column_major),
        "256 keys, ggml extents": chain(pad_keys(256), each(backwards)),
        "repeated, batch axes": chain(each(repeat_heads, KV), each(batch)),
        "repeated, heads first": chain(each(repeat_heads, KV), each(moved(1, 0, 2), HEADS)),
        "[D,T]": each(moved(1, 0), dump_sites(2)),
        "T, d, H": each(moved(0, 2, 1), HEADS),
        "keys before queries": each(moved(0, 2, 1), KEYS),
        "GGUF rows, undeclared": each(adjacent, ROTATED),
        "GGUF rows, undeclared, heads first": chain(each(adjacent, ROTATED), each(moved(1, 0, 2), HEADS)),
        "GGUF rows, undeclared, heads first, flat": chain(each(adjacent, ROTATED), each(moved(1, 0, 2), HEADS), each(context_heads_first, ("context",)), each(flat)),
        "GGUF rows, undeclared, ggml extents": chain(each(adjacent, ROTATED), each(backwards)),
    }
    right, wrong, vague = 0, [], []
    for case in json.loads((fixtures / "faulty" / "index.json").read_text()):
        source = fixtures / case["file"]
        if not source.is_dir():
            unpacked = folder / "unpacked"
            shutil.rmtree(unpacked, ignore_errors=True)
            shutil.unpack_archive(source, unpacked, "zip")
            source = unpacked
        taps, meta = read(source)
        reference = next(path for ending in ("", ".npz", ".safetensors") if (path := fixtures / (case["reference"] + ending)).exists())
        for name, layout in layouts.items():
            at = folder / "planted"
            shutil.rmtree(at, ignore_errors=True)
            # Who does not know that there are two orders does not declare one.
            write(at, layout(taps), {key: value for key, value in meta.items() if key != "qk_rows" or "undeclared" not in name})
            report, _ = compare(command, reference, at)
            first = report.get("first_divergence") or {}
            due = case["first_recorded"]
            if report["verdict"] == "diverged" and (first["tap"], first["step"]) == (due["tap"], due["step"]):
                right += 1
            else:
                row = f"{case['file']}, {name}: {first.get('tap') or report['verdict']}.{first.get('step')}, {due['tap']}.{due['step']} is due"
                honest = report["verdict"] == "incomparable" or due["tap"] in first.get("unchecked_between", [])
                (vague if honest else wrong).append(row)
    return right, wrong, vague


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--command", default=str(ROOT / "target" / "release" / "firstdiff"))
    p.add_argument("--keep", type=Path, help="where to leave the dumps")
    p.add_argument("--only", help="puzzles whose name contains this")
    p.add_argument("--names", action="store_true", help="also those whose names were taken away")
    a = p.parse_args()
    sys.argv = sys.argv[:1]
    with tempfile.TemporaryDirectory() as temporary:
        folder = a.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        runs, bad, solved = Runs(folder), 0, 0
        todo = [p for p in puzzles() + (nameless() if a.names else []) if not a.only or a.only in p.name]
        print(f"{'puzzle':<46} | {'right':<32} | with a mistake")
        for puzzle in todo:
            right, honest, wrong, found = solve(a.command, folder, runs, puzzle)
            print(f"{puzzle.name:<46} | {right:<32} | {wrong}", flush=True)
            bad += (not honest) + (not found)
            solved += right.startswith("parity")
        if not a.only:
            right, wrong, vague = planted(a.command, folder)
            print("\n".join([*wrong, *vague]))
            print(f"fixtures/faulty laid otherwise: {right} at their own tap, {len(vague)} unchecked or a range, {len(wrong)} wrong")
            bad += len(wrong)
    print(f"{len(todo)} puzzles: {solved} at parity where right, {len(todo) - solved} unchecked; {bad} wrong outcomes")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()

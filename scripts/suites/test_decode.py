#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["torch==2.9.1", "transformers==4.57.1", "llama-cpp-python==0.3.36", "numpy>=1.26"]
# ///
"""Tests that a run gives the same result whatever its chunks of tokens, and that firstdiff finds faults in decoding.

    python scripts/suites/test_decode.py [--command PATH] [--only FAMILY] [--without-llama-cpp] [--keep DIR]

PyTorch (transformers, eager attention) and llama.cpp run the fixture models of the five families over the same tokens: in one pass, as a prefill
and steps, token by token, and (PyTorch) in chunks of four. Every pair in both directions must be at parity with every shared tap compared.
Then mistakes are planted in transformers' own cache, positions and mask, from outside, and `firstdiff compare` must name the first wrong tap and
its token position, `firstdiff explain` the cause. Prints tables; exit 1 on a failure.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import FIXTURES, ROOT, SCRIPTS

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "minimind")
IN_LLAMA_CPP = ("llama", "qwen2", "qwen3", "minimind")  # its llama architecture ignores mistral's window
PROMPT, DECODED = [1, 17, 42, 99, 3, 150, 77, 17, 128, 64, 5], [23, 108, 61, 4, 90, 12, 33, 7]
TOKENS = PROMPT + DECODED
# How the tokens are shared out among the steps.
WAYS = {"one pass": [len(TOKENS)], "prefill + steps": [len(PROMPT)] + [1] * len(DECODED), "token by token": [1] * len(TOKENS),
        "chunks of 4": [4] * 4 + [3]}
PREFILL = {way: steps[0] for way, steps in WAYS.items()}
FAILED = []


def check(ok, message):
    if not ok:
        FAILED.append(message)
        print(f"FAILED {message}", flush=True)
    return ok


# -- runs ----------------------------------------------------------------------------------------------------------------


def apart(work, *arguments):
    """`work` in a process of its own: what it patches in PyTorch is gone afterwards."""
    process = multiprocessing.get_context("fork").Process(target=quiet, args=(work, *arguments))
    process.start()
    process.join()
    check(process.exitcode == 0, f"{work.__name__} {arguments[0]}: exit {process.exitcode}")


def quiet(work, *arguments):
    """llama.cpp and the dump scripts talk; what they say of a failure is kept."""
    sink = tempfile.TemporaryFile()
    saved = os.dup(2)
    os.dup2(sink.fileno(), 2)
    try:
        work(*arguments)
    except BaseException as error:
        sink.seek(0)
        os.write(saved, sink.read()[-800:] + f"\n{type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os._exit(0)


def options(script, model, out, way):
    first = PREFILL[way]
    sys.argv = [script, str(model), "-o", str(out), "--no-program", "--threads", "1", "--tokens", ",".join(map(str, TOKENS[:first]))]
    if TOKENS[first:]:
        sys.argv += ["--decode-tokens", ",".join(map(str, TOKENS[first:]))]


def of_torch(model, out, way, fault=None, key_from_cache=False):
    """A dump of transformers' own run, or of one that was tampered with."""
    from firstdiff.dump import pytorch as dump_torch

    options("dump_torch.py", model, out, way)
    if fault:
        plant(dump_torch, fault, PREFILL[way], key_from_cache)
    if way == "chunks of 4":
        dump_torch.run = in_chunks
    if dump_torch.main():
        raise SystemExit("dump_torch.py refused")


def in_chunks(model, record, tokens, steps, fixed):
    """Instead of dump_torch's own run: the prompt in several passes."""
    import torch
    from transformers import DynamicCache

    cache, rest = DynamicCache(), list(TOKENS)
    for step, length in enumerate(WAYS["chunks of 4"]):
        record.step, chunk, rest = step, rest[:length], rest[length:]
        with torch.no_grad():
            model(input_ids=torch.tensor([chunk]), past_key_values=cache, use_cache=True)
    return fixed


def of_llama_cpp(model, out, way):
    from firstdiff.dump import llamacpp as dump_llama_cpp

    options("dump_llama_cpp.py", model, out, way)
    if dump_llama_cpp.main():
        raise SystemExit("dump_llama_cpp.py refused")


# -- mistakes, planted from outside --------------------------------------------------------------------------------------


def plant(dump_torch, fault, prefill, key_from_cache):
    """Patches transformers in this process."""
    import torch
    from transformers import DynamicCache

    fresh = {}  # what was to be written, by layer
    if fault in CACHES:
        slots = {}

        def update(self, key, value, layer, *_, **__):
            fresh[layer] = key
            if layer == 0:
                slots["seen"] = slots.get("seen", 0) + key.shape[2]
            held = [CACHES[fault](slots, (layer, which), x, prefill, torch) for which, x in (("k", key), ("v", value))]
            return tuple(held)

        DynamicCache.update = update
        DynamicCache.get_seq_length = lambda self, layer_idx=0: slots.get("seen", 0)
        DynamicCache.get_mask_sizes = lambda self, cache_position, layer_idx=0: (slots.get("seen", 0) + len(cache_position), 0)
    if fresh is not None and fault in CACHES and not key_from_cache:
        record = dump_torch.Recorder.__call__

        def before_the_cache(self, tap, tensor):
            """An engine that records k_rope where it is made, not where it is read."""
            if tap.endswith(".k_rope"):
                tensor = fresh[int(tap.split(".")[1])][0].transpose(0, 1)
            record(self, tap, tensor)

        dump_torch.Recorder.__call__ = before_the_cache
    load = dump_torch.load

    def tampered(folder, dtype, attn):
        model = load(folder, dtype, attn)
        if fault in POSITIONS:
            rotary = model.model.rotary_emb
            right = rotary.forward
            rotary.forward = lambda x, ids: right(x, torch.where(ids >= prefill, POSITIONS[fault](ids, prefill), ids))
        if fault == "no mask":
            modeling = sys.modules[type(model).__module__]
            for name in ("create_causal_mask", "create_sliding_window_causal_mask"):
                if hasattr(modeling, name):
                    setattr(modeling, name, lambda **_: None)
        return model

    dump_torch.load = tampered


def written(slots, name, x, prefill, torch, slot_of):
    """A cache of slots, zeros where nothing was written: row p goes to slot_of(p). All slots up to the newest position."""
    held, start = slots.get(name, (x[:, :, :0], 0))
    end = start + x.shape[2]
    grown = torch.cat([held, torch.zeros_like(x[:, :, :1]).expand(-1, -1, end + 2 - held.shape[2], -1)], dim=2).clone()
    for row in range(x.shape[2]):
        at = start + row
        grown[:, :, slot_of(at) if at >= prefill else at] = x[:, :, row]
    slots[name] = grown, end
    return grown[:, :, :end]


def stale(slots, name, x, prefill, torch):
    """Read before it is written: in the newest slot stands what stood in the one before."""
    held, start = slots.get(name, (x[:, :, :0], 0))
    whole = torch.cat([held, x], dim=2)
    slots[name] = whole, start + x.shape[2]
    return whole if start < prefill else torch.cat([held, held[:, :, -1:]], dim=2)


CACHES = {
    "cache one slot early": lambda *a: written(*a, slot_of=lambda p: p - 1),
    "cache one slot late": lambda *a: written(*a, slot_of=lambda p: p + 1),
    "newest key stale": stale,
}
POSITIONS = {
    "position one too high": lambda ids, prefill: ids + 1,
    "position one too low": lambda ids, prefill: ids - 1,
    "position 0": lambda ids, prefill: 0 * ids,
}
# fault -> the first wrong tap, the cause
DUE = {
    "cache one slot early": ("layers.0.qk", "kv-cache-shift"),
    "cache one slot late": ("layers.0.qk", "kv-cache-shift"),
    "newest key stale": ("layers.0.qk", "kv-cache-stale"),
    "position one too high": ("layers.0.q_rope", "rope-position"),
    "position one too low": ("layers.0.q_rope", "rope-position"),
    "position 0": ("layers.0.q_rope", "rope-position"),
    "no mask": ("layers.0.scores", "mask-omitted"),
}


# -- judging -------------------------------------------------------------------------------------------------------------


class Judge:
    def __init__(self, command):
        self.command = command

    def json(self, *arguments):
        done = subprocess.run([self.command, *map(str, arguments), "--json", "-"], capture_output=True, text=True)
        if not done.stdout.strip():
            check(False, f"{' '.join(map(str, arguments))}: {done.stderr.strip()[-300:]}")
            return None
        return json.loads(done.stdout)

    def parity(self, label, reference, candidate, absent=()):
        """How many taps agree; all of them must, but for those that one side cannot show."""
        report = self.json("compare", reference, candidate)
        if report is None:
            return 0, 0.0
        left = [t for t in report["taps"] if t["status"] == "unchecked" and t["tap"].rsplit(".", 1)[-1] not in absent]
        first = report["first_divergence"]
        check(report["verdict"] == "parity", f"{label}: {report['verdict']}, {first and (first['place'], first['reason'])} {report['reason'] or ''}")
        check(not left, f"{label}: {len(left)} unchecked, first {left and (left[0]['tap'], left[0]['reason'])}")
        check(report["alignment"]["together"] == len(TOKENS), f"{label}: {report['alignment']['together']} positions aligned")
        agree = [t for t in report["taps"] if t["status"] in ("exact", "rounding")]
        return len(agree), max((t["nmse"] or 0.0 for t in agree), default=0.0)

    def fault(self, label, model, reference, candidate, way, tap, cause):
        """The first wrong tap and position, and what explain names."""
        report = self.json("compare", reference, candidate)
        first = (report or {}).get("first_divergence") or {}
        found = first.get("tap"), first.get("position")
        due = tap, 0 if cause == "mask-omitted" else PREFILL[way]
        check(found == due, f"{label}: {found} found where {due} was due")
        explained = self.json("explain", model, candidate, "--seconds", 20)
        findings = (explained or {}).get("findings") or []
        names = [f["cause"] or "unknown" for f in findings]
        others = sorted({other for f in findings for other in f["alternatives"]})
        # Turned by nothing, or by position 0: the numbers are the same, and both are named.
        right = names and all(cause == f["cause"] or cause in f["alternatives"] for f in findings)
        check(right, f"{label}: explain names {names}, as good {others}, where {cause} was planted")
        undone = (first.get("anatomy") or {}).get("explained_by") or []
        return f"{found[0]} at position {found[1]}", ", ".join(sorted(set(names))) + (f" (or {', '.join(others)})" if others else ""), undone


# -- tables --------------------------------------------------------------------------------------------------------------


def pairs(root, judge, family, llama_cpp):
    model = FIXTURES / "models" / family
    runs = {}
    for way in WAYS:
        runs["PyTorch", way] = root / f"{family}.torch.{way.replace(' ', '-')}"
        apart(of_torch, model, runs["PyTorch", way], way)
    if llama_cpp and family in IN_LLAMA_CPP:
        gguf = root / f"{family}.gguf"
        done = subprocess.run([sys.executable, SCRIPTS / "convert/hf_to_gguf.py", model, gguf], capture_output=True, text=True)
        check(done.returncode == 0, f"hf_to_gguf.py {family}: {done.stderr[-300:]}")
        for way in ("one pass", "prefill + steps", "token by token"):
            runs["llama.cpp", way] = root / f"{family}.cpp.{way.replace(' ', '-')}"
            apart(of_llama_cpp, gguf, runs["llama.cpp", way], way)
    counts = {}
    for ours, theirs in itertools.permutations(runs, 2):
        if ours[1] == theirs[1]:
            continue
        engines = " against ".join((theirs[0], ours[0]))
        absent = ("scores",) if ours[0] != theirs[0] else ()
        agree, worst = judge.parity(f"{family}: {theirs[0]} {theirs[1]} against {ours[0]} {ours[1]}", runs[ours], runs[theirs], absent)
        count = counts.setdefault(engines, [0, 0, 0.0])
        counts[engines] = [count[0] + 1, count[1] + agree, max(count[2], worst)]
    for engines, (number, agree, worst) in sorted(counts.items()):
        print(f"{family:9} {engines:30} {number:3} pairs  {agree:6} taps agree, worst NMSE {worst:.1e}", flush=True)
    return runs


def faults(root, judge, family, runs):
    model = FIXTURES / "models" / family
    for fault, (tap, cause) in DUE.items():
        ways = ("one pass",) if fault == "no mask" else ("prefill + steps", "token by token")
        for way in ways:
            out = root / f"{family}.{fault}.{way}".replace(" ", "-")
            apart(of_torch, model, out, way, fault)
            reference = runs["PyTorch", "token by token" if fault == "no mask" else "one pass"]
            place, named, _ = judge.fault(f"{family}, {fault}, {way}", model, reference, out, way, tap, cause)
            print(f"{family:9} {fault:22} {way:16} {place:34} {named}", flush=True)


def seen_through_the_cache(root, judge, runs):
    """An engine that records its keys where it reads them shows another position's row, and that is said."""
    out = root / "llama.read"
    apart(of_torch, FIXTURES / "models/llama", out, "token by token", "newest key stale", True)
    report = judge.json("compare", runs["PyTorch", "one pass"], out)
    first = report["first_divergence"]
    undone = [u["change"] for u in first["anatomy"]["explained_by"]]
    check((first["tap"], first["position"]) == ("layers.0.k_rope", 1), f"k_rope from the cache: {first['place']}")
    check("the reference's of position 0" in undone, f"k_rope from the cache: {undone}")
    print(f"llama     newest key stale, recorded where it is read: {first['place']} is {undone[:1]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", type=Path, default=ROOT / "target/release/firstdiff", help="the firstdiff to test")
    parser.add_argument("--only", choices=FAMILIES, help="only this family")
    parser.add_argument("--without-llama-cpp", action="store_true")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in DIR and leave everything there")
    args = parser.parse_args()
    import torch
    import transformers.models.llama.modeling_llama, transformers.models.mistral.modeling_mistral  # noqa: F401
    import transformers.models.qwen2.modeling_qwen2, transformers.models.qwen3.modeling_qwen3  # noqa: F401

    torch.set_num_threads(1)
    judge = Judge(args.command)
    with tempfile.TemporaryDirectory() as scratch:
        root = args.keep or Path(scratch)
        root.mkdir(parents=True, exist_ok=True)
        runs = {}
        print("right runs, laid together by token position, both directions")
        for family in FAMILIES:
            if args.only in (None, family):
                runs[family] = pairs(root, judge, family, not args.without_llama_cpp)
        print("\nplanted faults: the first wrong tap, and the cause")
        for family in runs:
            faults(root, judge, family, runs[family])
        if "llama" in runs:
            seen_through_the_cache(root, judge, runs["llama"])
    print(f"\n{len(FAILED)} failures" if FAILED else "\nall as due")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Tests that tensors ordered by expert choice, or sorted by expert, are judged in that order, and other tensors are not reordered.
Small mixtures of transformers are recorded, and what they recorded is written again: right in another order, and wrong in ways that an order must not hide.

    python scripts/suites/test_expert_orders.py --command target/release/firstdiff [ARCH ..] [--keep DIR]

- `sorted`: router_topk and router_weights with each token's places in the order of the experts' numbers. Nothing may be blamed.
- `reversed`: the same with the places turned about, without any tap of an expert. Nothing may be blamed.
- `unmoved`: router_topk so, and router_weights as they were: each expert has the other's weight. Both commands must say so.
- `fraction`: every choice and 0.4. router_topk must be blamed by both.
- `extra`: a tap and a step that the reference does not have, of NaN and of anything. Neither may pass, and both must be told as not checked.
- `across`: of a program that sorts, all rows of a tap turned about, over all experts. That tap may not pass.
- `one-tap`: of a program that sorts, the rows of one expert in one tap alone turned about. That tap may not pass.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.suites.test_expert_forms import EXPERT, Run, ask
from scripts.suites.test_program_experts import arguments, recorded

# A tap of the vocabulary that these models do not have.
EXTRA = "layers.7.k_norm"


def by_places(taps, order, weights=True, experts=True):
    """The taps with the places of each choice in another order; whether that is another one anywhere."""
    out = {key: values.copy() for key, values in taps.items() if experts or not EXPERT.fullmatch(key[0]) and "/" not in key[0]}
    moved = False
    for (name, step), chosen in taps.items():
        if not name.endswith("router_topk"):
            continue
        places = np.argsort(chosen, -1, kind="stable") if order == "sorted" else np.broadcast_to(np.arange(chosen.shape[-1])[::-1], chosen.shape)
        key = name.replace("router_topk", "router_weights"), step
        out[name, step] = np.take_along_axis(chosen, places, -1)
        moved |= bool((out[name, step] != chosen).any())
        if weights and key in out and out[key].shape == chosen.shape:
            out[key] = np.take_along_axis(out[key], places, -1)
    return out if moved else None


def sorted_taps(taps):
    """Taps of the rows of all experts, one after the other, with the numbers that each expert has of them."""
    for (name, step), chosen in taps.items():
        if not name.endswith("router_topk"):
            continue
        counts = np.unique(chosen, return_counts=True)[1]
        layer = name.split(".router_topk")[0]
        for (other, at), values in taps.items():
            if at == step and other.startswith(layer) and "/" in other and values.ndim > 1 and len(values) == chosen.size and max(counts) > 1:
                yield (other, step), counts


def cases(taps, sorts):
    """Each case: its name, its taps, and what must hold."""
    for case, order, experts in (("sorted", "sorted", True), ("reversed", "reversed", False)):
        yield case, by_places(taps, order, experts=experts), None
    weights = any(name.endswith("router_weights") and values.shape == taps.get((name.replace("router_weights", "router_topk"), step), values[:0]).shape
                  for (name, step), values in taps.items())
    if weights:
        yield "unmoved", by_places(taps, "reversed", weights=False), None
    yield "fraction", {key: values + np.float32(0.4) if key[0].endswith("router_topk") else values for key, values in taps.items()}, None
    last = max(step for _, step in taps)
    extra = {**taps, (EXTRA, 0): np.full((len(taps["h0", 0]), 8), np.nan, np.float32)}
    generator = np.random.default_rng(3)
    extra |= {(name, last + 1): generator.standard_normal(values.shape).astype(np.float32)
              for (name, step), values in taps.items() if step == last and not name.endswith("router_topk")}
    yield "extra", extra, None
    for key, counts in list(sorted_taps(taps))[-1:] if sorts else []:
        yield "across", {**taps, key: taps[key][::-1]}, key
        begin = int(counts[:counts.argmax()].sum())
        rows = taps[key].copy()
        rows[begin:begin + counts.max()] = rows[begin:begin + counts.max()][::-1]
        yield "one-tap", {**taps, key: rows}, key


def judge(case, report, what, where, known):
    wrong = [tap["tap"] for tap in report["taps"] if tap["status"] == "diverged"]
    passed = {(tap["tap"], tap["step"]) for tap in report["taps"] if tap["status"] in ("exact", "rounding")}
    if report["verdict"].startswith("ERROR"):
        return report["verdict"]
    if case in ("sorted", "reversed") and (report["verdict"] != "parity" or wrong):
        return f"{report['verdict']}, blamed {wrong[:2]}"
    if case == "unmoved" and (not wrong or what == "compare" and not all(tap.endswith("router_weights") for tap in wrong)):
        return f"blamed {wrong[:2]}"
    if case == "fraction" and not any(tap.endswith("router_topk") for tap in wrong):
        return f"blamed {wrong[:2]}"
    if case == "extra":
        told = {(tap["tap"], tap["step"]) for tap in report["taps"] if tap["status"] == "unchecked"}
        if wrong or passed - known or (EXTRA, 0) not in told or not told - {(EXTRA, 0)} or not report["not_checked"]:
            return f"blamed {wrong[:2]}, passed {sorted(passed - known)[:2]}, not checked {len(told)}"
    if case in ("across", "one-tap") and where in passed:
        return f"{where[0]} passed"
    return None


def main():
    args = arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    total = bad = 0
    with tempfile.TemporaryDirectory() as made:
        for name, folder, model in recorded(args, made):
            run = Run(folder / "golden")
            if not any(key[0].endswith("router_topk") for key in run.taps):
                print(f"{name:18} has no router_topk", flush=True)
                continue
            decoded = run.meta["decode_tokens"]
            sorts = '"sort' in (folder / "golden" / "program.json").read_text()
            words = []
            for case, taps, where in cases(run.taps, sorts):
                if taps is None:
                    continue
                run.meta["decode_tokens"] = decoded + [7] * (case == "extra")
                run.write(taps, folder / case)
                for what in ("compare", "replay"):
                    more = () if what == "compare" else ("--weights", folder / "model")
                    wrong = judge(case, ask(args.command, what, folder / "golden", folder / case, *more), what, where, set(run.taps))
                    total += 1
                    bad += wrong is not None
                    words.append(f"{case} {what} {'BAD ' + wrong if wrong else 'ok'}")
            print(f"{name:18} {', '.join(words)}", flush=True)
    print(f"{total} runs, {bad} bad")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["torch==2.9.1", "transformers==4.57.1", "safetensors>=0.6", "numpy>=1.26"]
# ///
"""Tests that `firstdiff explain MODEL --run ENGINE` describes an unlisted mistake in an engine of 22 layers, in a few runs.

    python scripts/suites/test_explain_run.py [--firstdiff BINARY] [--only FAULT] [--keep DIR]

The engine is test_bisect.py's, which records what it is asked for and no more; its mistakes here are in no catalogue. MODEL is the folder of the
model, and then a recorded reference with its program (dump_torch.py). Right: the operation is named in the layers that are wrong, with a proved
cause or a measured law of the form and the number that are planted, and nothing else is found; of a right engine nothing is. Also that few taps
alone say which taps to record next, and that a dump which is not the engine's is refused. Exit 1 where one is not so.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.suites.test_bisect import DECODED, LAYERS, ROOT, SMALL, TOKENS, write_model

EVERY = list(range(LAYERS))
MOST_RUNS = 4
# fault -> what must be found: (last site of the taps, layers, the form of the law or the cause, the number in it or None) of each mistake.
FAULTS = {
    "none": [],
    "window every": [("scores|probs", EVERY, "window", 5)],
    "window 6": [("scores|probs", [6], "window", 5)],
    "angle every": [("q_rope k_rope", EVERY, "rotation|rope", 1.02)],
    "angle 13": [("q_rope k_rope", [13], "rotation|rope", 1.02)],
    "residual-times 9": [("h", [9], "sum|residual", 1.003)],
    "sharp every": [("ffn_act", EVERY, "activation", 1.35)],
    "values-before 4": [("context", [4], "context|operation-input", None)],
    "slope 17": [("scores", [17], "", None)],
    "window 4 + sharp 15": [("scores|probs", [4], "window", 5), ("ffn_act", [15], "activation", 1.35)],
}
FAILED = []


def check(good, what):
    print(f"  {'ok  ' if good else 'FAIL'} {what}", flush=True)
    if not good:
        FAILED.append(what)


def command(model, fault):
    return f"ENGINE_FAULT='{fault}' '{sys.executable}' '{ROOT / 'scripts/suites/test_bisect.py'}' engine '{model}'"


def call(*args):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FIRSTDIFF_", "ENGINE_"))}
    done = subprocess.run([str(arg) for arg in args], capture_output=True, text=True, env=kept)
    return (json.loads(done.stdout) if done.stdout.startswith("{") else None), done


def numbers(value):
    if isinstance(value, dict):
        return [n for each in value.values() for n in numbers(each)]
    if isinstance(value, list):
        return [n for each in value for n in numbers(each)]
    return [value] if isinstance(value, (int, float)) else []


def said(finding):
    """The form and the words of what is stated, and its numbers."""
    law = finding.get("measured") or {}
    if finding["match"] == "reproduced":
        return finding["cause"], [*numbers(finding["params"]), *numbers(law.get("parameters", {}))]
    return law.get("form", ""), numbers(law.get("parameters", {}))


def is_of(finding, due):
    """Whether it states this mistake, at some of its sites."""
    sites, layers, form, number = due
    name, values = said(finding)
    stated = finding["match"] == "reproduced" or finding["match"] == "measured" and finding["measured"]["status"] == "measured"
    near = number is None or any(abs(value - number) <= 1e-4 * abs(number) for value in values)
    named = any(part in name for part in form.split("|"))
    return stated and made(finding) <= set(sites.replace("|", " ").split()) and finding["layers"] == layers and near and named


def made(finding):
    return {tap.rsplit(".", 1)[-1] for tap in finding["taps"]}


def is_found(findings, due):
    """Whether they state this mistake, at all of its sites."""
    sites = set().union(*(made(finding) for finding in findings if is_of(finding, due)))
    return sites and ("|" in due[0] or sites == set(due[0].split()))


# Left unknown beside the answer, with a program as MODEL: what decode steps concatenate is several tensors there, of which no law of a context is measured.
OPEN_IN_DECODING = ["values-before 4"]


def one(binary, model, weights, work, fault):
    began = time.perf_counter()
    report, done = call(binary, "explain", model, "--run", command(weights, fault), "--work", work, "--json", "-")
    if report is None:
        return check(False, f"{fault}: {done.stderr.strip()}")
    due, findings, runs = FAULTS[fault], report["findings"], report["asked"]["runs"]
    if model != weights and fault in OPEN_IN_DECODING:
        findings = [f for f in findings if not (f["match"] == "unknown" and "decode step" in f["place"])]
    right = all(any(is_of(f, each) for each in due) for f in findings) and all(is_found(findings, each) for each in due)
    right = right and done.returncode == (1 if due else 0) and len(runs) <= MOST_RUNS + 2 * (len(due) - 1 if due else 0)
    words = "; ".join(f"{f['place']}: {f['match']} {said(f)[0]} {((f.get('measured') or {}).get('words') or '')[:90]}" for f in findings)
    check(right, f"{fault:<20} {len(runs)} runs, {report['asked']['bytes'] / 1e6:.1f} MB, {time.perf_counter() - began:.0f} s: {words or report['verdict']}")


def few_taps(binary, model, weights, work):
    """A dump of the layers' outputs: which taps to record next where no known mistake is it, at which positions it is wrong, and the engine asked from there."""
    dump = work / "few"
    subprocess.run(command(weights, "window 6"), shell=True, check=True,
                   env=os.environ | {"FIRSTDIFF_DIR": str(dump), "FIRSTDIFF_TAPS": "h0,layers.*.h,logits"})
    report, done = call(binary, "explain", model, dump, "--only", "embed-scale", "--json", "-")
    if report is None:
        return check(False, f"few taps: {done.stderr.strip()}")
    finding = report["findings"][0]
    inside = {f"layers.6.{site}" for site in ("q_rope", "k_rope", "scores", "probs", "context", "h_attn")}
    check(finding["layers"] == [6] and inside <= set(finding["record_next"]), f"few taps: {finding['place']}, next {','.join(finding['record_next'])[:70]}..")
    check(finding["wrong_positions"] == list(range(5, len(TOKENS))), f"few taps: wrong at {finding['wrong_positions']}")
    report, done = call(binary, "explain", model, dump, "--run", command(weights, "window 6"), "--work", work / "from-few", "--json", "-")
    found = report and is_found(report["findings"], FAULTS["window 6"][0])
    check(found and len(report["asked"]["runs"]) == 1, f"from a dump of few taps on: {len(report['asked']['runs']) if report else done.stderr} run")
    report, done = call(binary, "explain", model, dump, "--run", command(weights, "window 5"), "--work", work / "another", "--json", "-")
    check(done.returncode == 2 and "does not write what" in done.stderr, f"another engine's dump: {done.stderr.strip()[:150]}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--firstdiff", type=Path, default=ROOT / "target/release/firstdiff", metavar="BINARY")
    p.add_argument("--only", metavar="FAULT", nargs="*", help="these faults only (window_6)")
    p.add_argument("--keep", type=Path, metavar="DIR", help="work in this folder and leave it")
    a = p.parse_args()
    binary, faults = a.firstdiff.resolve(), [f for f in FAULTS if not a.only or f in a.only or f.replace(" ", "_") in a.only]
    with tempfile.TemporaryDirectory() as temporary:
        work = (a.keep or Path(temporary)).resolve()
        folder, golden = work / "model", work / "golden"
        if not (folder / "model.safetensors").exists():
            write_model(folder, SMALL)
        if not golden.exists():
            ids = [",".join(map(str, each)) for each in (TOKENS, DECODED)]
            subprocess.run([sys.executable, ROOT / "scripts/dump_torch.py", folder, "-o", golden, "--tokens", ids[0], "--decode-tokens", ids[1], "--threads", "1"],
                           check=True, capture_output=True)
        for name, model in (("the model", folder), ("a recorded reference with its program", golden)):
            print(f"MODEL is {name}")
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                jobs = [pool.submit(one, binary, model, folder, work / f"{model.name}-{f}".replace(" ", "-"), f) for f in faults]
            for job in jobs:
                job.result()
            if not a.only:
                (work / f"few-{model.name}").mkdir(exist_ok=True)
                few_taps(binary, model, folder, work / f"few-{model.name}")
    print(f"{len(FAILED)} failed" if FAILED else "all good")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())

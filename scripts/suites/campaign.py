"""Runs many comparisons with known truth, and checks that `firstdiff compare` never passes a wrong run or reports a right one as diverged.

    python scripts/suites/campaign.py [--firstdiff target/release/firstdiff] [--count 6000] [--seed 1] [--jobs 2] [--keep DIR] [--case SEED]

The engine of campaign_engine.py runs random models twice: once as the reference, once as a candidate in another arithmetic, summation order, layout,
batch or chunking. Half of the candidates have one planted fault of a known place and size. What is wrong is known by construction; whether a fault
is larger than rounding is measured with the same engine, with and without the fault.

A wrong run at parity and a right run called diverged are failures; each is printed with what makes it again (`--case SEED`). Listed apart are faults
below rounding, faults within the tolerance that the profile states (TOLERANCE), and those of which the report says that they are unclear or that what shows
them was not compared. Needs numpy alone.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import ROOT
from scripts.engines.campaign_engine import Arithmetic, Run, choose_fault, make_model

PROFILES = ["f32", "bf16", "f16", "ggml"]


# ---------------------------------------------------------------- layouts and dumps

HEADS = ("q", "k", "v", "q_rope", "k_rope")
LAYOUTS = ["vocabulary", "merged", "heads-first", "batch-1", "batch-1-merged", "torch", "flat"]


def stored(name, value, layout, batch=0):
    """A tap as an engine of this layout stores it; `batch` leading axes stay where they are."""
    head_tap, lead = name.split(".")[-1] in HEADS, value.shape[:batch]
    swapped = lambda v: np.ascontiguousarray(np.swapaxes(v, batch, batch + 1))
    if head_tap and layout in ("merged", "batch-1-merged"):
        value = value.reshape(*lead, value.shape[batch], -1)
    if head_tap and (layout == "heads-first" or (layout == "torch" and name.endswith("rope"))):
        value = swapped(value)
    if layout in ("batch-1", "batch-1-merged", "torch"):
        value = value[None]
    return value.reshape(-1) if layout == "flat" else value


def write(folder, steps, meta, layout="vocabulary", keep=lambda name: True, batch=0, half=False):
    """A dump: one .npy a tap, and dump.json."""
    folder.mkdir(parents=True)
    taps = []
    for number, step in enumerate(steps):
        for name, value in step.items():
            if not keep(name):
                continue
            file = f"{name}.step{number}.npy" if number else f"{name}.npy"
            value = stored(name, value, layout, batch)
            with np.errstate(over="ignore"):
                value = value.astype(np.float16) if half else value
            np.save(folder / file, value)
            taps.append({"tap": name, "step": number, "file": file, "shape": list(value.shape), "dtype": "f16" if half else "f32"})
    (folder / "dump.json").write_text(json.dumps({"format": 1, "producer": {"name": "campaign"}, **meta, "taps": taps}))


def stacked(runs):
    """Several runs as one batch: an axis in front of every tap."""
    return [{name: np.stack([run[number][name] for run in runs]) for name in step} for number, step in enumerate(runs[0])]


def padded(steps, rng, extra):
    """One sequence with rows behind its own, of whatever the buffers held."""
    def longer(name, value):
        axis = 1 if name.split(".")[-1] in ("qk", "scores", "probs") else 0
        shape = list(value.shape)
        shape[axis] = extra
        value = np.concatenate([value, rng.standard_normal(shape).astype(np.float32)], axis)
        if axis == 1:
            keys = np.zeros((*value.shape[:2], extra), np.float32)
            keys[:] = {"scores": -np.inf, "probs": 0}.get(name.split(".")[-1], 0.3)
            value = np.concatenate([value, keys], 2)
        return value

    return [{name: longer(name, value) for name, value in step.items()} for step in steps]


# ---------------------------------------------------------------- one case

FEW = [{"h0", "h", "logits"}, {"logits"}, {"h0", "attn_out", "ffn_out", "h", "final_norm", "logits"}, {"q", "k", "v", "probs", "h", "logits"},
       {"h0", "scores", "context", "h", "logits"}]
FORMS = ["plain"] * 5 + ["few"] * 3 + ["one-pass", "one-pass", "batch", "batch", "batch-of-one-prompt", "padded", "last", "cache", "cache", "torn", "bad-sequence"]
# NMSE below which nothing can be asked of an arithmetic: two right runs differ by as much at some tap.
FLOOR = {"f32": 1e-13, "f16": 1e-7, "bf16": 3e-6, "ggml": 1e-5}
# A fault whose effect at some recorded tap is this many times the right run's own error is larger than rounding,
CLEAR = 40.0
# and has no excuse if its NMSE is beyond what the profile states for one operation, which grows with the depth; over several operations, up to so many
# times as much.
TOLERANCE = {"f32": 1e-11, "f16": 4e-6, "bf16": 2e-4, "ggml": 1e-3}
STRETCH = 10.0


def nmse(c, r):
    good = np.isfinite(r)
    if not np.array_equal(np.isfinite(c), good):
        return np.inf
    c, r = c[good].astype(np.float64), r[good].astype(np.float64)
    return float(np.sum((c - r) ** 2) / max(np.sum(r**2), 1e-300))


def tolerance(name, profile, layers):
    """NMSE that the profile states for a tap where everything before it was recorded."""
    parts = name.split(".")
    depth = int(parts[1]) + 1 if parts[0] == "layers" else 0 if name == "h0" else layers + 1
    share = {"probs": 10.0, "context": 4.0, "attn_out": 4.0}.get(parts[-1], 1.0)
    return TOLERANCE[profile] * share * (1 + depth)


def effects(faulty, right, reference, profile, recorded):
    """(tap, step) -> by how many times a fault shows beyond the right run's own distance of the reference, and its NMSE."""
    found = {}
    for step, (f, c, r) in enumerate(zip(faulty, right, reference)):
        for name in filter(recorded, f):
            alone = nmse(f[name], c[name])
            found[name, step] = alone / max(nmse(c[name], r[name]), FLOOR[profile]), alone
    return found


class Case:
    """What one seed stands for: a model, an arithmetic, a form, perhaps a fault; and the two dumps written of it."""

    def __init__(self, seed):
        self.seed, rng = seed, np.random.default_rng(seed)
        self.rng, self.model = rng, make_model(rng)
        self.profile = str(rng.choice(PROFILES, p=[0.4, 0.2, 0.2, 0.2]))
        ids = lambda n: [int(t) for t in rng.integers(0, self.model["V"], n)]
        self.form = str(rng.choice(FORMS))
        self.tokens, self.decode = ids(int(rng.choice([9, 11, 14]))), ids(int(rng.choice([0, 0, 2, 3])))
        if self.form in ("batch", "batch-of-one-prompt", "padded", "last", "bad-sequence"):
            self.decode = []
        self.second = ids(len(self.tokens))
        self.cache = str(rng.choice(["f16", "bf16"])) if self.form == "cache" else "f32"
        self.order = int(rng.integers(1, 3))
        self.layout = str(rng.choice(LAYOUTS))
        if self.form in ("batch", "batch-of-one-prompt", "bad-sequence"):
            self.layout = str(rng.choice(["vocabulary", "merged", "heads-first"]))
        if self.form in ("last", "padded"):
            self.layout = "vocabulary"
        self.sites = FEW[int(rng.integers(len(FEW)))] if self.form == "few" else {"logits", "final_norm"} if self.form == "last" else None
        self.wrong = bool(rng.random() < 0.5) or self.form in ("torn", "bad-sequence")
        self.words, self.quirks, self.fault, self.blamed = choose_fault(rng, self.model, self.profile) if self.wrong else ("right", {}, None, [])
        if self.form in ("torn", "bad-sequence"):
            self.words, self.quirks, self.fault = self.form, {}, None

    def recorded(self, name):
        return self.sites is None or name.split(".")[-1] in self.sites

    def run(self, arithmetic, faulty=False, ids=None, chunks=None):
        """Steps of taps; `chunks` the tokens of each step."""
        made = Run(self.model, arithmetic, self.quirks if faulty else {}, self.fault if faulty else None)
        for chunk in chunks or [ids or self.tokens, *([t] for t in self.decode)]:
            made.step(chunk)
        if faulty:
            self.leak = made.leak
        return [taps for _, taps in made.steps]

    def write(self, folder):
        """Writes both dumps, and gives the effect of the fault at each tap."""
        rng, other, plain = self.rng, Arithmetic(self.profile, self.order, self.cache), Arithmetic("f32", 0)
        cut = (lambda steps: [{n: v[-1:] for n, v in steps[0].items() if self.recorded(n)}]) if self.form == "last" else (lambda steps: steps)
        reference, right = self.run(plain), self.run(other)
        faulty = self.run(other, True) if self.wrong else right
        left = {"tokens": self.tokens, "decode_tokens": self.decode, "precision": "f32"}
        told = rng.random() < 0.7 or self.layout == "flat" or self.form in ("last", "padded")
        right_meta = {**({k: left[k] for k in ("tokens", "decode_tokens")} if told else {}), "precision": self.profile}
        if self.cache != "f32" and rng.random() < 0.5:
            right_meta["cache"] = self.cache
        if self.form == "last":
            left["rows"] = right_meta["rows"] = "last"
        measured = reference
        half, batch, candidate = self.profile == "f16" and rng.random() < 0.5, 0, faulty
        if self.form == "one-pass":
            measured, reference = reference, self.run(plain, chunks=[self.tokens + self.decode])
        if self.form in ("batch", "bad-sequence"):
            seconds = [self.run(a, ids=self.second) for a in (plain, other)]
            at_second = rng.random() < 0.6
            if self.wrong and at_second and self.form == "batch":
                right, measured = seconds[1], seconds[0]
                faulty = self.run(other, True, ids=self.second)
                candidate = stacked([self.run(other), faulty])
            else:
                candidate = stacked([faulty, seconds[1]])
            if self.form == "bad-sequence":
                value = np.float32(rng.choice([np.nan, 0.0]))
                candidate = [{n: np.concatenate([v[:1], np.full_like(v[1:], value)]) for n, v in step.items()} for step in candidate]
            reference, batch = stacked([reference, seconds[0]]), 1
        if self.form == "batch-of-one-prompt":
            pair = [self.run(other), faulty]
            candidate = stacked(pair if rng.random() < 0.7 else pair[::-1])
            reference = reference if rng.random() < 0.5 else stacked([reference, reference])
            batch = 1
        if self.form == "padded":
            candidate = padded(faulty, rng, int(rng.integers(1, 6)))
        if self.form == "torn":
            names = list(candidate[0])
            kept = set(names[: int(rng.integers(1, len(names)))])
            candidate = [{n: v for n, v in candidate[0].items() if n in kept}]
            right_meta["complete"] = False
        batched_reference = batch if reference[0]["logits"].ndim == 3 else 0
        write(folder / "reference", cut(reference), left, batch=batched_reference)
        write(folder / "candidate", cut(candidate), right_meta, self.layout, self.recorded, batch, half)
        if self.form in ("torn", "bad-sequence"):
            return {("all", 0): (np.inf, np.inf)}
        return self.effects(cut(faulty), cut(right), cut(measured)) if self.wrong else {}

    def effects(self, faulty, right, measured):
        if "fill" not in self.quirks:
            return effects(faulty, right, measured, self.profile, self.recorded)
        # What is masked must be zero: any probability there that the arithmetic can hold is no rounding, where it is recorded.
        found = effects(faulty, right, measured, self.profile, lambda n: self.recorded(n) and not n.endswith(("scores", "probs")))
        if self.leak > 1e-30:
            at = [(name, 0) for name in faulty[0] if self.recorded(name) and name.endswith(("scores", "probs"))]
            found |= dict.fromkeys(at, (np.inf, np.inf))
        return found


def run_case(seed, firstdiff, keep=None):
    """Writes the dumps of a seed, compares them, and says what came of it."""
    made = Case(seed)
    folder = keep / f"case{seed}" if keep else pathlib.Path(tempfile.mkdtemp(prefix="campaign-"))
    shutil.rmtree(folder, ignore_errors=True)
    try:
        found = made.write(folder)
        command = [firstdiff, "compare", folder / "reference", folder / "candidate", "--json", "-"]
        command += ["--profile", made.profile] if made.profile != "f32" else []
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    report = json.loads(done.stdout) if done.stdout.strip() else {}
    unchecked = {(t["tap"], t["step"]): t.get("reason") or "" for t in report.get("taps", []) if t["status"] == "unchecked"}
    compared = {place: sizes for place, sizes in found.items() if place not in unchecked}
    stretch = STRETCH if made.form in ("few", "last") else 1.0
    beyond = [place for place, (_, alone) in compared.items() if not alone <= stretch * tolerance(place[0], made.profile, len(made.model["layers"]))]
    result = {
        "seed": seed, "profile": made.profile, "form": made.form, "layout": made.layout, "words": made.words, "wrong": made.wrong,
        "effect": max((ratio for ratio, _ in found.values()), default=0.0), "compared_effect": max((ratio for ratio, _ in compared.values()), default=0.0),
        "within": not beyond, "unclear": any("inconclusive" in reason for place, reason in unchecked.items() if place in found),
        "exit": done.returncode, "first": (report.get("first_divergence") or {}).get("tap"), "blamed": made.blamed, "error": done.stderr.strip()[:300],
        "unchecked": len(unchecked), "taps": len(report.get("taps", [])),
    }
    return {**result, "judged": judge(result)}


# ---------------------------------------------------------------- the judge of the judge


def judge(result):
    """What a result is: fine, below rounding, or a failure and its kind."""
    code, wrong = result["exit"], result["wrong"]
    if code not in (0, 1, 2):
        return "CRASH"
    if not wrong:
        return {0: "right: parity", 1: "FALSE ALARM", 2: "right: incomparable"}[code]
    if code == 0:
        if result["effect"] <= CLEAR:
            return "wrong: below rounding, at parity"
        if result["compared_effect"] <= CLEAR:
            return "wrong: unclear, at parity" if result["unclear"] else "wrong: not compared, at parity"
        return "wrong: within the tolerance, at parity" if result["within"] else "MISSED"
    if code == 2:
        return "wrong: incomparable"
    if result["form"] in ("plain", "cache", "one-pass") and result["first"] not in result["blamed"]:
        return "wrong: found elsewhere"
    return "wrong: found"


FAILURES = ("CRASH", "FALSE ALARM", "MISSED")
QUIET = ("right: parity", "wrong: found")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--firstdiff", default=ROOT / "target/release/firstdiff")
    parser.add_argument("--count", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=1, help="another number, other models and faults")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=pathlib.Path, help="keep the dumps in this folder")
    parser.add_argument("--case", type=int, help="one case by its seed")
    parser.add_argument("--list", type=int, default=10, help="how many of each kind to print")
    parser.add_argument("--out", type=pathlib.Path, help="write every result as a JSON line")
    args = parser.parse_args()
    if args.case is not None:
        print(json.dumps(run_case(args.case, args.firstdiff, args.keep), indent=1))
        return 0
    kinds = collections.defaultdict(list)
    seeds = range(args.seed * 1_000_000, args.seed * 1_000_000 + args.count)
    with concurrent.futures.ProcessPoolExecutor(args.jobs) as pool:
        results = pool.map(run_case, seeds, [args.firstdiff] * args.count, [args.keep] * args.count, chunksize=20)
        for number, result in enumerate(results, 1):
            kinds[result["judged"]].append(result)
            if args.out:
                with args.out.open("a") as out:
                    out.write(json.dumps(result) + "\n")
            if number % 500 == 0:
                print(f"{number}:", ", ".join(f"{k} {len(v)}" for k, v in sorted(kinds.items())), flush=True)
    for kind, results in sorted(kinds.items()):
        print(f"{kind}: {len(results)}")
        for r in results[: 0 if kind in QUIET else args.list]:
            said = f"{r['profile']}, {r['form']}, {r['layout']}, {r['words']}, effect {r['effect']:.3g}, first {r['first']}"
            print(f"  --case {r['seed']}: {said}, {r['error'].rpartition('candidate: ')[2][:160]}")
    failed = sum(len(kinds[kind]) for kind in FAILURES)
    print(f"{args.count - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())

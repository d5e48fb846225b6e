#!/usr/bin/env python3
"""Tests what `firstdiff explain` says of mistakes outside its catalogue: runs each mistake of scripts/forms and compares the answer with the truth.

    python scripts/suites/test_laws.py --command BIN [--only NAME ..] [--seed N] [--arch llama,qwen2,qwen3,moe] [--arith f32,bf16,f16,q8_0,q4_0] [--again] [--json FILE] [--set fourth]
    python scripts/suites/test_laws.py --command BIN --together 2,3 --count 60 --set first,fourth     # several mistakes in one engine, one of them of the catalogue
    python scripts/suites/test_laws.py --command BIN --clean 400 --arith f32,bf16,f16          # right engines, other weights and tokens each: nothing may be said

`--together` draws mistakes of different operations: one of those that the catalogue lists (the set `listed`), the others of the sets. Each is run by itself too,
and what is named alone is to be named beside others.

`--set` takes another set than the first: `python -m scripts.forms` lists them, forms/sets.py says who wrote each, and whether it was seen.

Of each form one architecture and one arithmetic of those given is taken, by the seed. Clean runs of all of them come first. The classes:

- `named`: the words, or the catalogue's summary, have the truth with its numbers. `same`: only the list of equivalent laws has it.
- `law`: a law in other words. Truth and words are printed: a person reads them. `table`: true numbers without a law.
- `cause`: the catalogue's cause, in other words than the truth. `unknown`: nothing is said, or what came closest.
- `first`: the first tap that is blamed is another. `extra`: taps are blamed that are right in themselves. `failed`: no answer.

Of several findings the worst counts. A law is false by its own prediction where it leaves more than rounding, or, with --again, where the same form with other
weights and tokens gives another law. Exit code 1 for those, and where a clean run has a finding (of right engines in llama.cpp's arithmetic, also where more than a
tenth cannot be told). A mixture of experts is explained by a recorded program: it needs torch and transformers.
"""

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import ROOT
from scripts import forms
from scripts.engines import hooked_engine
from scripts.forms.expected import is_said
from scripts.forms.form import Together

SETS = {name: one.forms for name, one in forms.SETS.items()}

CLASSES = ("named", "same", "law", "table", "cause", "unknown", "extra", "first", "failed")
# What a law may leave of a tap, where right operations leave 1e-14, 1e-5 and 1e-7.
LEAVES = {"f32": 1e-9, "bf16": 2e-4, "f16": 1e-5, "q8_0": 1e-8, "q4_0": 1e-8}
# The share of right engines in llama.cpp's arithmetic of which nothing may be told.
UNTOLD = 0.1

RECORDS = threading.Lock()


def prepared(folder, arch, arith, seed):
    """The model, as the engine and as the command reads it."""
    home = folder / f"{arch}-{arith}-{seed}"
    model = hooked_engine.make_model(home / "model", arch, arith, seed)
    if arith in hooked_engine.GGML:
        return model, home / "model" / "model.gguf"
    if arch != "moe":
        return model, home / "model"
    # PyTorch's dispatcher is recorded by one thread at a time.
    with RECORDS:
        import torch
        import transformers
        import firstdiff

        dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[arith]
        torch_model = transformers.AutoModelForCausalLM.from_pretrained(home / "model", dtype=dtype, attn_implementation="eager").eval()
        with torch.no_grad(), firstdiff.record(torch_model, home / "golden", program=True):
            torch_model(torch.tensor([hooked_engine.make_tokens(seed)]))
    return model, home / "golden"


def explained(a, source, dump):
    """The report, or why there is none; and the seconds taken."""
    begin = time.time()
    try:
        done = subprocess.run([a.command, "explain", source, dump, "--seconds", str(a.seconds), "--json", "-"], capture_output=True, text=True, timeout=a.limit)
    except subprocess.TimeoutExpired:
        return None, f"more than {a.limit} s", a.limit
    taken = time.time() - begin
    # Of what is incomparable there is a report too, with the reason.
    is_told = done.returncode in (0, 1) or done.returncode == 2 and done.stdout.startswith("{")
    if not is_told:
        return None, f"exit code {done.returncode}: {done.stderr.strip()[-300:]}", taken
    return json.loads(done.stdout), None, taken


def support(law):
    everywhere = {"layers": f"0-{hooked_engine.LAYERS - 1}"}
    return ", ".join(f"{axis} {where}" for axis, where in law["support"].items() if where and where not in ("all", everywhere.get(axis)))


def judged(form, finding, arith):
    """Class and words of one finding, and whether it is false by its own prediction."""
    law = finding.get("measured")
    said = finding.get("summary") or ""
    if law:
        words = law["words"] + (f" [{support(law)}]" if support(law) else "")
        leaves = law["residual_nmse"]
        false = law["status"] == "measured" and (leaves is None or not leaves <= LEAVES[arith])
        if law["status"] == "table":
            return "table", words, false
        # What would be right is no part of what is said to be done.
        if is_said(form.expected, re.sub(r"\((right|the model has)\b[^()]*(\([^()]*\)[^()]*)*\)", "", words)):
            return "named", words, false
        if any(is_said(form.expected, other) for other in law["equivalent"]):
            return "same", words + " | the same: " + " | ".join(law["equivalent"]), false
        return "law", words + "".join(f" | the same: {other}" for other in law["equivalent"]), false
    if finding.get("cause"):
        words = f"{finding['cause']}: {said}"
        return ("named" if is_said(form.expected, words) else "cause"), words, False
    return "unknown", f"{finding.get('match')}: {finding.get('reason') or finding.get('note') or said or ''}", False


def seen(tap):
    """Where what is wrong with a tap shows in the engine: products and scores are not recorded, their probabilities are; a choice of experts is made where their
    weights are; of an expert's own operations the sum of all parts is recorded."""
    tap = re.sub(r"\b(qk|scores)$", "probs", tap)
    tap = re.sub(r"\brouter_topk$", "router_weights", tap)
    return re.sub(r"\b(mlp\.)?experts\.\d+\b.*", "ffn_out", tap)


def is_of(form, tap):
    return re.sub(r"^layers\.\d+\.", "", seen(tap)) in map(seen, form.sites)


def one(a, source, model, seed, form, folder, arith):
    ids = hooked_engine.make_tokens(seed)
    engine = hooked_engine.Engine(model, form)
    dump = folder / f"{form.name}-{seed}"
    hooked_engine.write_dump(dump, engine.run(ids), model, ids)
    report, error, taken = explained(a, source, dump)
    if not a.keep:
        shutil.rmtree(dump, ignore_errors=True)
    result = {"form": form.name, "truth": form.truth, "site": form.first, "arch": model.arch, "arith": arith, "seconds": round(taken, 2), "false": False, "findings": []}
    if error:
        return result | {"class": "failed", "findings": [{"class": "failed", "tap": None, "words": error}]}
    for finding in report["findings"]:
        kind, words, false = judged(form, finding, arith)
        taps = finding.get("taps") or [finding["tap"]]
        if not all(is_of(form, tap) for tap in taps):
            kind = "extra"
        result["findings"].append({"class": kind, "tap": finding["tap"], "place": finding.get("place"), "words": words, "law": finding.get("measured")})
        result["false"] |= false
    kinds = [finding["class"] for finding in result["findings"]]
    if not kinds:
        result["class"] = "unknown"
    elif not any(seen(form.first) == seen(tap) for finding in report["findings"] for tap in [finding["tap"], *(finding.get("taps") or [])]):
        result["class"] = "first"
    else:
        result["class"] = max(kinds, key=CLASSES.index)
    return result


def together(a, source, model, seed, forms, folder, arith):
    """Of each of several mistakes what is said of it, and what is said that is of none."""
    ids = hooked_engine.make_tokens(seed)
    both = Together(forms)
    dump = folder / f"together-{abs(hash(both.name))}-{seed}"
    hooked_engine.write_dump(dump, hooked_engine.Engine(model, both).run(ids), model, ids)
    report, error, taken = explained(a, source, dump)
    if not a.keep:
        shutil.rmtree(dump, ignore_errors=True)
    each, extra = {form.name: [] for form in forms}, []
    for finding in report["findings"] if report else []:
        taps = finding.get("taps") or [finding["tap"]]
        of = [form for form in forms if any(is_of(form, tap) for tap in taps)]
        said = [(form.name, judged(form, finding, arith)) for form in of]
        for name, judgement in said:
            each[name].append(judgement)
        if not of:
            extra.append(f"{finding['tap']}: {finding.get('summary')}")
    # Of several findings about one mistake the best counts: the others may be about its neighbour.
    best = {name: min((CLASSES.index(kind) for kind, _, _ in found), default=CLASSES.index("unknown")) for name, found in each.items()}
    return {"forms": both.name, "arch": model.arch, "arith": arith, "seconds": round(taken, 2), "error": error, "extra": extra,
            "class": {name: CLASSES[at] for name, at in best.items()}, "said": {name: [words for _, words, _ in found] for name, found in each.items()},
            "false": any(false for found in each.values() for _, _, false in found)}


def combinations(a, archs):
    """So many mixtures by the seed: one listed mistake, the others of the sets; each of operations of its own."""
    rng = random.Random(f"{a.seed} together")
    unlisted = [form for name in a.set.split(",") for form in SETS[name]]
    sizes = [int(n) for n in a.together.split(",")]
    out = []
    while len(out) < a.count:
        arch, size = rng.choice(archs), sizes[len(out) % len(sizes)]
        forms = [rng.choice(SETS["listed"]), *rng.sample(unlisted, size - 1)]
        sites = [re.sub("^(q|k)_rope$", "rope", site) for form in forms for site in dict.fromkeys(re.sub("^(q|k)_rope$", "rope", s) for s in form.sites)]
        if len(set(sites)) == len(sites) and all(arch in form.archs for form in forms):
            out.append((arch, forms))
    return out


def test_together(a, folder, models, archs, ariths):
    found, alone = Counter(), {}
    jobs = [(arch, ariths[at % len(ariths)], forms) for at, (arch, forms) in enumerate(combinations(a, archs))]

    def run(job):
        arch, arith, forms = job
        model, source = models[arch, arith, a.seed]
        result = together(a, source, model, a.seed, forms, folder, arith)
        for form in forms:
            key = (form.name, arch, arith)
            if key not in alone:
                alone[key] = one(a, source, model, a.seed, form, folder / f"alone of {forms[0].name} {forms[-1].name}-{arch}", arith)["class"]
            result.setdefault("alone", {})[form.name] = alone[key]
        return result

    with ThreadPoolExecutor(a.jobs) as pool:
        results = list(pool.map(run, jobs))
    named = lambda kind: kind in ("named", "same")
    for result in results:
        lost = [name for name, kind in result["class"].items() if named(result["alone"][name]) and not named(kind)]
        size = len(result["class"])
        found[size, "all"] += 1
        found[size, "named"] += all(map(named, result["class"].values()))
        known = all(map(named, result["alone"].values()))
        found[size, "known"] += known
        found[size, "known and named"] += known and not lost
        found["mistakes"] += size
        found["mistakes named"] += sum(map(named, result["class"].values()))
        found["named alone"] += sum(map(named, result["alone"].values()))
        found["lost"] += len(lost)
        found["extra"] += bool(result["extra"] or result["error"])
        found["false"] += result["false"]
        if lost or result["extra"] or result["error"] or result["false"]:
            print(f"{result['forms']} ({result['arch']}, {result['arith']}): lost {lost or 'none'}; of none: {result['extra'][:4] or 'nothing'} {result['error'] or ''}"
                  + (" FALSE BY ITS PREDICTION" if result["false"] else ""))
            for name in lost:
                print(f"          {name}: {result['said'][name][:3] or 'nothing'}")
    for size in sorted({int(n) for n in a.together.split(",")}):
        print(f"{size} at once: all named in {found[size, 'named']} of {found[size, 'all']}; of those whose mistakes are each named alone in "
              f"{found[size, 'known and named']} of {found[size, 'known']}")
    print(f"mistakes: {found['mistakes named']} of {found['mistakes']} named, {found['named alone']} of them alone; {found['lost']} lost beside others, "
          f"{found['extra']} runs with something said that is of none, {found['false']} with a law that is false by its own prediction")
    seconds = sorted(result["seconds"] for result in results)
    print(f"seconds: median {seconds[len(seconds) // 2]}, most {seconds[-1]}")
    if a.json:
        a.json.write_text(json.dumps(results, indent=1) + "\n")
    return found["extra"] or found["false"]


def test_clean(a, folder, archs, ariths):
    """Right engines, each with weights and tokens of its own: none may have a finding."""
    def run(at):
        arch, arith, seed = archs[at % len(archs)], ariths[at // len(archs) % len(ariths)], a.seed + at
        model, source = prepared(folder, arch, arith, seed)
        ids = hooked_engine.make_tokens(seed)
        dump = folder / f"clean-{at}"
        hooked_engine.write_dump(dump, hooked_engine.Engine(model).run(ids), model, ids)
        report, error, taken = explained(a, source, dump)
        shutil.rmtree(dump, ignore_errors=True)
        shutil.rmtree(folder / f"{arch}-{arith}-{seed}", ignore_errors=True)
        said = [f"{finding['tap']}: {finding.get('summary')}" for finding in report["findings"]] if report else [error]
        return {"arch": arch, "arith": arith, "seed": seed, "seconds": round(taken, 2), "verdict": report and report["verdict"], "said": said}

    with ThreadPoolExecutor(a.jobs) as pool:
        results = list(pool.map(run, range(a.clean)))
    # NumPy's sums are not ggml's: now and then a row's rounding falls otherwise, and the command says that right or wrong cannot be told. That blames nothing.
    is_open = lambda r: r["arith"] in hooked_engine.GGML and r["verdict"] == "incomparable" and not r["said"]
    untold = [r for r in results if is_open(r)]
    blamed = [r for r in results if not is_open(r) and (r["said"] or r["verdict"] != "parity")]
    for kind, these in (("not told", untold), ("blamed", blamed)):
        for r in these:
            print(f"{kind}: {r['arch']}, {r['arith']}, seed {r['seed']}: {r['verdict']} {r['said']}")
    of_ggml = sum(r["arith"] in hooked_engine.GGML for r in results)
    print(f"{len(results)} clean runs, {len(blamed)} blamed; of {of_ggml} in llama.cpp's arithmetic {len(untold)} not told")
    if a.json:
        a.json.write_text(json.dumps(results, indent=1) + "\n")
    return len(blamed) or len(untold) > UNTOLD * of_ggml


def ways(finding):
    """All that is said of one finding, its numbers to three digits."""
    law = finding["law"]
    short = lambda words: re.sub(r"\d+\.?\d*(e-?\d+)?", lambda m: f"{float(m.group()):.3g}", words)
    return {law["form"], *(short(words) for words in [law["words"], *law["equivalent"]])}


def is_same(one, other):
    """Whether each law of either run has one in the other that says the same in some way."""
    laws = [[ways(finding) for finding in r["findings"] if finding.get("law")] for r in (one, other)]
    return all(any(a & b for b in laws[1 - side]) for side in (0, 1) for a in laws[side])


def printed(r):
    print(f"{r['class']:8}{r['seconds']:6.1f} s  {r['form']} ({r['arch']}, {r['arith']}){'  FALSE BY ITS PREDICTION' if r['false'] else ''}"
          f"{'  ANOTHER LAW WITH OTHER WEIGHTS' if r.get('unstable') else ''}", flush=True)
    if r["class"] != "named" or r["false"]:
        print(f"          truth: {r['site']}: {r['truth']}")
    for finding in r["findings"][:6]:
        print(f"          said of {finding.get('place') or finding['tap']}: {finding['words']}" + ("" if finding["class"] == r["class"] else f" ({finding['class']})"))
    if len(r["findings"]) > 6:
        print(f"          and of {len(r['findings']) - 6} more")
    sys.stdout.flush()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--command", default=str(ROOT / "target" / "release" / "firstdiff"))
    p.add_argument("--only", nargs="+", metavar="NAME")
    p.add_argument("--set", default="first", help=f"{', '.join(SETS)}; with --together several, by commas")
    p.add_argument("--together", metavar="2,3", help="so many mistakes in one engine")
    p.add_argument("--clean", type=int, metavar="N", help="so many right engines, and no other")
    p.add_argument("--count", type=int, default=60, help="mixtures, with --together")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--arch", default="llama")
    p.add_argument("--arith", default="f32")
    p.add_argument("--again", action="store_true", help="run each with other weights and tokens too")
    p.add_argument("--seconds", type=int, default=20, help="as explain's")
    p.add_argument("--limit", type=int, default=300, help="seconds after which a run is given up")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--json", type=Path)
    p.add_argument("--keep", type=Path, help="a folder in which models and dumps stay")
    a = p.parse_args()
    archs, ariths = a.arch.split(","), a.arith.split(",")
    if unknown := [name for name in a.set.split(",") if name not in SETS]:
        p.error(f"no set is called {unknown[0]}; there are {', '.join(SETS)}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = a.keep or Path(temporary)
        if a.clean:
            sys.exit(1 if test_clean(a, folder, archs, ariths) else 0)
        models, jobs, blamed = {}, [], 0
        for arch in archs:
            for arith in ariths:
                for seed in (a.seed, a.seed + 100) if a.again else (a.seed,):
                    models[arch, arith, seed] = prepared(folder, arch, arith, seed)
                    model, source = models[arch, arith, seed]
                    ids = hooked_engine.make_tokens(seed)
                    hooked_engine.write_dump(folder / "clean", hooked_engine.Engine(model).run(ids), model, ids)
                    report, error, taken = explained(a, source, folder / "clean")
                    found = [finding["tap"] for finding in report["findings"]] if report else [error]
                    blamed += bool(found) or report["verdict"] != "parity"
                    print(f"clean   {taken:6.1f} s  {arch}, {arith}, seed {seed}: {report['verdict'] if report else ''} {found or ''}", flush=True)
        if a.together:
            sys.exit(1 if test_together(a, folder, models, archs, ariths) or blamed else 0)
        for form in [form for name in a.set.split(",") for form in SETS[name]]:
            rng = random.Random(f"{a.seed} {form.name}")
            of = [arch for arch in archs if arch in form.archs]
            if not of or a.only and form.name not in a.only:
                continue
            jobs.append((form, rng.choice(of), rng.choice(ariths)))

        def run(job):
            form, arch, arith = job
            model, source = models[arch, arith, a.seed]
            result = one(a, source, model, a.seed, form, folder, arith)
            if a.again and any(finding.get("law") for finding in result["findings"]):
                model, source = models[arch, arith, a.seed + 100]
                other = one(a, source, model, a.seed + 100, form, folder, arith)
                result["unstable"] = not is_same(result, other)
                if result["unstable"]:
                    result["findings"] += [finding | {"place": f"(other weights) {finding.get('place')}"} for finding in other["findings"]]
            return result

        results = []
        with ThreadPoolExecutor(a.jobs) as pool:
            for result in pool.map(run, jobs):
                printed(result)
                results.append(result)
    totals = Counter(result["class"] for result in results)
    print(f"{len(results)} forms: " + ", ".join(f"{totals[kind]} {kind}" for kind in CLASSES if totals[kind]))
    seconds = sorted(result["seconds"] for result in results)
    if seconds:
        print(f"seconds: median {seconds[len(seconds) // 2]}, most {seconds[-1]}, all {sum(seconds):.0f}")
    wrong = sum(result["false"] for result in results)
    print(f"{wrong} laws false by their own prediction, {sum(bool(result.get('unstable')) for result in results)} others with other weights, {blamed} clean runs blamed")
    if a.json:
        a.json.write_text(json.dumps(results, indent=1) + "\n")
    sys.exit(1 if wrong or blamed or any(result.get("unstable") for result in results) else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""test_laws.py: what does `firstdiff explain` say of mistakes that its catalogue does not list? Each form of law_forms.py is run, and the answer is held to the truth.

    python scripts/test_laws.py --command BIN [--only NAME ..] [--seed N] [--arch llama,qwen2,qwen3,moe] [--arith f32,bf16,f16] [--again] [--json FILE] [--set fourth]

`--set second`, `--set third` and `--set fourth` take law_forms_second.py, law_forms_third.py and law_forms_fourth.py instead, which were written without sight of how
laws are found.

Of each form one architecture and one arithmetic of those given is taken, by the seed. Clean runs of all of them come first. The classes:

- `named`: the words, or the catalogue's summary, have the truth with its numbers. `same`: only the list of equivalent laws has it.
- `law`: a law in other words. Truth and words are printed: a person reads them. `table`: true numbers without a law.
- `cause`: the catalogue's cause, in other words than the truth. `unknown`: nothing is said, or what came closest.
- `first`: the first tap that is blamed is another. `extra`: taps are blamed that are right in themselves. `failed`: no answer.

Of several findings the worst counts. A law is false by its own prediction where it leaves more than rounding, or, with --again, where the same form with other
weights and tokens gives another law. Exit code 1 for those, and where a clean run has a finding. A mixture of experts is explained by a recorded program: it
needs torch and transformers.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import law_forms
import law_forms_fourth
import law_forms_second
import law_forms_third

SETS = {"first": law_forms.FORMS, "second": law_forms_second.FORMS, "third": law_forms_third.FORMS, "fourth": law_forms_fourth.FORMS}

CLASSES = ("named", "same", "law", "table", "cause", "unknown", "extra", "first", "failed")
# What a law may leave of a tap, where right operations leave 1e-14, 1e-5 and 1e-7.
LEAVES = {"f32": 1e-9, "bf16": 2e-4, "f16": 1e-5}


def prepared(folder, arch, arith, seed):
    """The model, as the engine and as the command reads it."""
    home = folder / f"{arch}-{arith}-{seed}"
    model = law_forms.make_model(home / "model", arch, arith, seed)
    if arch != "moe":
        return model, home / "model"
    import torch
    import transformers

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "crates" / "trace" / "python"))
    import firstdiff

    dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[arith]
    torch_model = transformers.AutoModelForCausalLM.from_pretrained(home / "model", dtype=dtype, attn_implementation="eager").eval()
    with torch.no_grad(), firstdiff.record(torch_model, home / "golden", program=True):
        torch_model(torch.tensor([law_forms.make_tokens(seed)]))
    return model, home / "golden"


def explained(a, source, dump):
    """The report, or why there is none; and the seconds taken."""
    begin = time.time()
    try:
        done = subprocess.run([a.command, "explain", source, dump, "--seconds", str(a.seconds), "--json", "-"], capture_output=True, text=True, timeout=a.limit)
    except subprocess.TimeoutExpired:
        return None, f"more than {a.limit} s", a.limit
    taken = time.time() - begin
    if done.returncode not in (0, 1):
        return None, f"exit code {done.returncode}: {done.stderr.strip()[-300:]}", taken
    return json.loads(done.stdout), None, taken


def support(law):
    everywhere = {"layers": f"0-{law_forms.LAYERS - 1}"}
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
        if law_forms.is_said(form.expected, re.sub(r"\((right|the model has)\b[^()]*(\([^()]*\)[^()]*)*\)", "", words)):
            return "named", words, false
        if any(law_forms.is_said(form.expected, other) for other in law["equivalent"]):
            return "same", words + " | the same: " + " | ".join(law["equivalent"]), false
        return "law", words + "".join(f" | the same: {other}" for other in law["equivalent"]), false
    if finding.get("cause"):
        return ("named" if law_forms.is_said(form.expected, said) else "cause"), f"{finding['cause']}: {said}", False
    return "unknown", f"{finding.get('match')}: {finding.get('reason') or finding.get('note') or said or ''}", False


def seen(tap):
    """Products and scores are not recorded: what is wrong with them shows in the probabilities."""
    return re.sub(r"\b(qk|scores)$", "probs", tap)


def is_of(form, tap):
    return re.sub(r"^layers\.\d+\.", "", seen(tap)) in form.sites


def one(a, source, model, seed, form, folder, arith):
    ids = law_forms.make_tokens(seed)
    engine = law_forms.Engine(model, form)
    dump = folder / f"{form.name}-{seed}"
    law_forms.write_dump(dump, engine.run(ids), model, ids)
    report, error, taken = explained(a, source, dump)
    if not a.keep:
        law_forms.shutil.rmtree(dump, ignore_errors=True)
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
    elif not any(form.first == seen(tap) for finding in report["findings"] for tap in [finding["tap"], *(finding.get("taps") or [])]):
        result["class"] = "first"
    else:
        result["class"] = max(kinds, key=CLASSES.index)
    return result


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
    p.add_argument("--command", default=str(Path(__file__).resolve().parent.parent / "target" / "release" / "firstdiff"))
    p.add_argument("--only", nargs="+", metavar="NAME")
    p.add_argument("--set", choices=SETS, default="first", help="the forms of law_forms.py, or of law_forms_second.py, law_forms_third.py or law_forms_fourth.py")
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
    with tempfile.TemporaryDirectory() as temporary:
        folder = a.keep or Path(temporary)
        models, jobs, blamed = {}, [], 0
        for arch in archs:
            for arith in ariths:
                for seed in (a.seed, a.seed + 100) if a.again else (a.seed,):
                    models[arch, arith, seed] = prepared(folder, arch, arith, seed)
                    model, source = models[arch, arith, seed]
                    ids = law_forms.make_tokens(seed)
                    law_forms.write_dump(folder / "clean", law_forms.Engine(model).run(ids), model, ids)
                    report, error, taken = explained(a, source, folder / "clean")
                    found = [finding["tap"] for finding in report["findings"]] if report else [error]
                    blamed += bool(found) or report["verdict"] != "parity"
                    print(f"clean   {taken:6.1f} s  {arch}, {arith}, seed {seed}: {report['verdict'] if report else ''} {found or ''}", flush=True)
        for form in SETS[a.set]:
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

#!/usr/bin/env python3
"""Measures the answers and times of other comparators on the same dumps, for the tables of docs/measured/compared.md.

    python scripts/measure/compared.py [--command BIN] [--doc docs/measured/compared.md] [--check] [--peers NAME,..] [--without-large] [--keep DIR] [--jobs N]

compared/pairs.py makes the pairs and their truth, compared/peers.py asks each comparator. They live in an environment of their own,
${XDG_CACHE_HOME:-~/.cache}/firstdiff-compared-HASH, made on first use from requirements/compared.txt (0.6 GB, from PyPI); torch and numpy are those of
$FIRSTDIFF_PYTHON, else of the Python that runs this. What stands between the marks in the document is written anew; with --check nothing is written, and the exit code is 1
where a run says other words than the document does, times excepted. Peers that are left out by --peers are left out of the check.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# NumPy's products round by the processor, and element-by-element rules tell a right run of one from that of another: the one of the document, before NumPy is loaded.
os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import FIXTURES, ROOT, SCRIPTS
from scripts.measure.comparators import pairs as pairing
from scripts.measure.comparators.pairs import INCOMPLETE, RIGHT, label
from scripts.suites.test_engines import clean, environment

BEGIN, END = "<!-- written by scripts/measure/compared.py: begin -->", "<!-- end -->"
TIMES = "## Times"
LIMIT = 300  # seconds a comparator may take for the large pair

# name, its head in the tables, how it is asked and which document says so
SETTINGS = [
    ("firstdiff", "firstdiff", "`firstdiff compare REFERENCE CANDIDATE`; no option"),
    ("polygraphy", "Polygraphy", "`Comparator.compare_accuracy(.., compare_func=SimpleCompareFunc())`, its defaults: element by element, `rtol` and `atol` 1e-5"),
    ("polygraphy-inf", "Polygraphy, inf", "the same with `infinities_compare_equal=True`: \"If True, then matching +-inf values in the output have an absdiff of 0.\" (docstring of SimpleCompareFunc)"),
    ("assert_close", "assert_close", "`torch.testing.assert_close(candidate, reference)` of two mappings, its defaults: `rtol` 1.3e-6, `atol` 1e-5 in f32; 1e-3, 1e-5 in f16; 1.6e-2, 1e-5 in bf16"),
    ("assert_close-any", "assert_close, any type", "the same with `check_dtype=False`: \"If disabled, tensors with different dtypes are promoted to a common dtype\" (its docstring)"),
    ("assert_allclose", "assert_allclose", "`numpy.testing.assert_allclose(candidate, reference)`, tap by tap, its defaults: `rtol` 1e-7, `atol` 0"),
    ("transformers", "1e-3", "`torch.allclose(reference, candidate, atol=1e-3)`, tap by tap: \"verify the outputs are within the precision of 1e-3\" (Hugging Face, How to add a model to Transformers)"),
    ("nmse", "NMSE 1e-7", "the rule of llama.cpp's tests/test-backend-ops.cpp for most operations, tap by tap: NaN fails; both infinite with one sign, or both finite; `max_nmse_err` 1e-7"),
    ("nmse-op", "NMSE by operation", "the same with 5e-4 for products of matrices, as its `test_mul_mat` has it"),
    ("sglang", "SGLang", "`python -m sglang.srt.debug_utils.comparator --baseline-path .. --target-path ..`, its default `rel <= 1e-3` (\"Default: 'rel <= 1e-3' for every tensor\"), with the axes of each tap "
     "in its `dims`; for steps against one pass its preset `sglang_megatron` (\"concat_steps\")"),
    ("msprobe", "msProbe", "`msprobe compare -tp candidate/dump.json -gp reference/dump.json`; the verdict is its column Result, of which `warning` counts as `error` does"),
]
HEADS = {name: head for name, head, _ in SETTINGS}
SOURCES = {"polygraphy": "polygraphy", "sglang": "sglang", "msprobe": "mindstudio-probe"}


# ---- what is said, and whether it is right ----


def judge(truth, said):
    """right, or what is wrong with it: false alarm, other place, missed, refused."""
    verdict, first = said["verdict"], said["first"]
    if truth == INCOMPLETE:
        spoken = verdict in ("refused", "error") or (said["left"] and not first)
        return "right" if spoken else "missed" if verdict == "pass" else "false alarm"
    if verdict in ("refused", "error"):
        return "right" if INCOMPLETE in truth and truth != RIGHT else "refused"
    if truth == RIGHT:
        return "right" if verdict == "pass" else "false alarm"
    return "missed" if verdict == "pass" else "right" if first in truth else "other place"


def words(said, outcome):
    """What stands in the table: `yes` where it is right, else what it says."""
    if outcome == "right":
        return "yes"
    if said["verdict"] == "pass":
        return "passes"
    if said["verdict"] in ("refused", "error"):
        return "refuses" if said["verdict"] == "refused" else "breaks off"
    return (said["first"] or "no tap").replace("layers.", "")


def firstdiff(command, folder):
    """What firstdiff says of a pair, in the form of compared/peers.py."""
    start = time.perf_counter()
    done = subprocess.run([command, "compare", folder / "reference", folder / "candidate", "--json", "-"], capture_output=True, text=True, env=clean())
    seconds = time.perf_counter() - start
    report = json.loads(done.stdout) if done.stdout.strip().startswith("{") else None
    said = {"verdict": {0: "pass", 1: "fail", 2: "refused"}.get(done.returncode, "error"), "first": None, "left": False, "note": done.stderr[:160], "seconds": seconds}
    if report:
        first = report.get("first_divergence")
        said["first"] = label(first["tap"], first.get("step") or 0) if first and done.returncode == 1 else None
        said["left"] = any(tap["status"] == "unchecked" for tap in report["taps"])
    return said


def asked(name, python, folder, cases, limit=None):
    """What a comparator says of some pairs under `folder`; None where it takes longer than the limit."""
    out = folder / f"{name}.said"
    if out.exists():
        return json.loads(out.read_text())
    (folder / f"{name}.json").write_text(json.dumps(cases))
    try:
        done = subprocess.run([python, "-m", "scripts.measure.comparators.peers", name, folder, out], cwd=ROOT, env=clean(COMPARED_BEGAN=str(time.time()), HF_HUB_OFFLINE="1"), capture_output=True,
                              text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return None
    if not out.exists():
        sys.exit(f"{name}: {done.stderr.strip()[-800:]}")
    return json.loads(out.read_text())


# ---- the document ----


def table(head, rows):
    return ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]


def page(pairs, names, answers, large, machine):
    outcomes = {name: [judge(p.truth, s) for p, s in zip(pairs, answers[name]["said"])] for name in names}
    kind = lambda p: "right" if p.truth == RIGHT else "incomplete" if p.truth == INCOMPLETE else "fault"
    of = Counter(map(kind, pairs))
    text = ["## How each was asked", "", *table(["comparator", "how"], [[HEADS[n], how] for n, _, how in SETTINGS if n in names]), "", "## Outcomes", "",
            f"{of['right']} right pairs, {of['fault']} with a fault, {of['incomplete']} that are not all there. Refused: it ends with another message than a verdict, such as names, "
            "types or shapes that do not match in number, or an exception.", ""]
    rows = []
    for name in names:
        got = Counter((kind(p), o) for p, o in zip(pairs, outcomes[name]))
        rows.append([HEADS[name], *(str(got[k]) for k in (("right", "right"), ("right", "false alarm"), ("right", "refused"), ("fault", "right"), ("fault", "other place"),
                                                          ("fault", "missed"), ("fault", "refused"), ("incomplete", "right"), ("incomplete", "missed"), ("incomplete", "false alarm")))])
    text += table(["comparator", "right: passes", "false alarm", "refused", "fault: first tap named", "another tap", "passes", "refused", "not all there: says so", "passes without a word",
                   "blames a tap"], rows)
    text += ["", "## Each pair", "", "`yes`: what the truth demands (a pass; this tap; that something is not there). Else what it says; `0.qk` is layers.0.qk, `@1` the first decode step.", ""]
    due = lambda p: {RIGHT: "right", INCOMPLETE: "not all there"}.get(p.truth) if isinstance(p.truth, str) else " or ".join(t.replace("layers.", "") if t != INCOMPLETE else "other tokens" for t in p.truth)
    text += table(["pair", "truth", *(HEADS[n] for n in names)],
                  [[p.name, due(p), *(words(answers[n]["said"][i], outcomes[n][i]) for n in names)] for i, p in enumerate(pairs)])
    text += ["", "How they were made:", "", *(f"- **{p.name}**: {p.why}." for p in pairs), "", TIMES, "", machine, ""]
    middle = lambda said: sorted(s["seconds"] for s in said)[len(said) // 2]
    text += table(["comparator", "start", "a pair, median", "two dumps of 256 MiB"],
                  [[HEADS[n], f"{answers[n]['start']:.2g} s" if answers[n]["start"] else "in the next", f"{middle(answers[n]['said']):.2g} s",
                    "not run" if n not in large else f"over {LIMIT} s" if large[n] is None else f"{large[n]['seconds']:.3g} s" + ("" if large[n]["verdict"] == "pass" else
                                                                                                  " (" + words(large[n], "wrong") + ")")] for n in names])
    return "\n".join(text)


def versions(python):
    names = ["torch", "numpy", *SOURCES.values()]
    code = f"import importlib.metadata as m, platform; print(platform.python_version(), *(n + ' ' + m.version(n) for n in {names}), sep=', ')"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def processor():
    found = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")] if Path("/proc/cpuinfo").exists() else []
    return f"{found[0] if found else 'unknown processor'}, {os.cpu_count()} cores"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--command", default=str(ROOT / "target/release/firstdiff"))
    p.add_argument("--doc", type=Path, default=ROOT / "docs/measured/compared.md")
    p.add_argument("--check", action="store_true", help="write nothing; exit code 1 where the words are not those of the document")
    p.add_argument("--peers", type=lambda text: text.split(","), default=list(HEADS), metavar="NAME,..", help=", ".join(HEADS))
    p.add_argument("--without-large", action="store_true", help="do not time the two dumps of 256 MiB")
    p.add_argument("--keep", type=Path, help="a folder in which dumps and answers stay; what stands there is not asked again")
    p.add_argument("--jobs", type=int, default=1, help="comparators beside each other; times are fair with 1")
    a = p.parse_args()
    if unknown := set(a.peers) - set(HEADS):
        p.error(f"--peers: {', '.join(sorted(unknown))}")
    names = [name for name in HEADS if name in a.peers]
    python = environment(SCRIPTS / "requirements/compared.txt", "compared", ("--no-deps",)) if set(names) - {"firstdiff"} else None
    command = str(Path(a.command).resolve())
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        folder = a.keep or Path(temporary)
        pairs = pairing.make(folder, FIXTURES)
        cases = [{"folder": f"{i:02}", "dims": pair.dims, "sglang": pair.sglang} for i, pair in enumerate(pairs)]
        ask = lambda name: {"start": 0, "said": [firstdiff(command, folder / c["folder"]) for c in cases]} if name == "firstdiff" else asked(name, python, folder, cases)
        with ThreadPoolExecutor(a.jobs) as pool:
            answers = dict(zip(names, pool.map(ask, names)))
        (folder / "answers.json").write_text(json.dumps(answers, indent=1))
        large = {}
        if not (a.check or a.without_large):
            pairing.large(folder / "large")
            for name in names:
                case = [{"folder": ".", "dims": "", "sglang": []}]
                got = firstdiff(command, folder / "large") if name == "firstdiff" else (asked(name, python, folder / "large", case, LIMIT) or {"said": [None]})["said"][0]
                large[name] = got
        machine = f"{processor()}; comparators one thread, {'one after another' if a.jobs == 1 else f'{a.jobs} at a time'}; load average when it began {load:.0f}; Python {versions(python) if python else 0}. A start is the loading of its modules."
        text = page(pairs, names, answers, large, machine)
    for name in names:
        wrong = [f"{pair.name}: {words(s, judge(pair.truth, s))} {s['note']}" for pair, s in zip(pairs, answers[name]["said"]) if judge(pair.truth, s) != "right"]
        print(f"{name}: {len(pairs) - len(wrong)} of {len(pairs)}; otherwise", *wrong, sep="\n  ")
    whole = a.doc.read_text()
    if whole.count(BEGIN) != 1 or whole.count(END) != 1:
        sys.exit(f"{a.doc}: the marks of the tables are not there once each")
    before, after = whole.split(BEGIN)[0], whole.split(END)[1]
    if a.check:
        return check(whole.split(BEGIN)[1].split(END)[0], text, names)
    made = a.doc.with_suffix(".part")
    made.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
    made.replace(a.doc)


def check(stated, text, names):
    """Are the words of a document those of a run? Columns and rows of comparators that were not asked are left out."""
    left = {head for name, head in HEADS.items() if name not in names}

    def kept(text):
        lines, skip = [], []
        for line in text.split(TIMES)[0].strip().splitlines():
            cells = line.strip("| ").split(" | ")
            if line.startswith("| pair"):
                skip = [i for i, cell in enumerate(cells) if cell in left]
            if not (line.startswith("|") and cells[0] in left):
                lines.append(" | ".join(c for i, c in enumerate(cells) if i not in skip) if line.startswith("|") else line)
        return lines

    here, there = kept(stated), kept(text)
    other = [(x, y) for x, y in zip(here, there) if x != y] + [(x, "") for x in here[len(there):]] + [("", y) for y in there[len(here):]]
    for x, y in other:
        print(f"stated: {x}\nis:     {y}")
    print(f"{len(here) - len(other)} lines of docs/measured/compared.md are as stated, {len(other)} are not")
    return int(bool(other))


if __name__ == "__main__":
    raise SystemExit(main())

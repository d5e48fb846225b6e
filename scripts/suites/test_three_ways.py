#!/usr/bin/env python3
"""Tests that `explain` says the same of a candidate three ways: by the built-in Plan, by PyTorch's recorded program, and by llama.cpp's.
The candidates are those of scripts/planted/zoo.py, of an engine that shares no code with firstdiff.

    python scripts/suites/test_three_ways.py --command firstdiff [--every N] [--pairs N] [--triples N] [--free N] [--kinds full,streams,last,logits]
        [--models llama,mistral,qwen2,qwen3] [--seconds S] [--log FILE] [--only TEXT] [--keep FOLDER]

For each way and kind of recording: how often the planted mistake is named, is among equals, is measured by a law, stays unknown, and how often something
else is named. Exit code 1: something else was named.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import FIXTURES, ROOT, SCRIPTS
from scripts.goldens.fixture_models import DECODE_TOKENS, TOKENS

WAYS = ("plan", "torch", "llama.cpp")
FATES = ("named", "among", "law", "unknown", "wrong", "refused")


def run(*command):
    env = os.environ | {"PYTHONPATH": str(ROOT / "crates/trace/python")}
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=env)
    return done.returncode, done.stdout, done.stderr


def recorded(folder, model):
    """The references of a model: what explain is given before the candidate."""
    ids, decoded = (",".join(map(str, tokens)) for tokens in (TOKENS, DECODE_TOKENS))
    source, gguf = FIXTURES / "models" / model, folder / f"{model}.gguf"
    made = [[sys.executable, SCRIPTS / "convert/hf_to_gguf.py", source, gguf]]
    for name, what in (("torch", source), ("llama_cpp", gguf)):
        made.append([sys.executable, "-m", "firstdiff.dump", name, what, "-o", folder / f"{model}-{name}", "--tokens", ids, "--decode-tokens", decoded, "--program"])
    ways = {"plan": source}
    for command in made:
        is_made = command[command.index("-o") + 1].exists() if "-o" in command else gguf.exists()
        code, _, error = (0, "", "") if is_made else run(*command)
        if code:
            print(f"{model}: {' '.join(map(str, command[1:3]))}: {error.strip().splitlines()[-1:]}")
        elif "-o" in command:
            ways["llama.cpp" if "llama_cpp" in command else "torch"] = command[command.index("-o") + 1]
    return ways


def is_planted(finding, cause, params, planted):
    """Whether a cause is the planted one, with its numbers."""
    if cause != planted["id"]:
        return False
    sites = {tap.rsplit(".", 1)[-1] for tap in finding["taps"]}
    # Scores depend on differences of positions: a shift of the queries is the opposite one of the keys.
    turned = -1 if cause == "rope-position" and len(sites) == 1 and len(planted["at"]) == 1 and sites != set(planted["at"]) else 1
    is_number = lambda x: isinstance(x, (int, float)) and not isinstance(x, bool)
    due = planted.get("params") or {}
    return all(abs(turned * due[name] - value) <= 1e-3 * max(abs(due[name]), 1e-9) for name, value in params.items() if is_number(value) and is_number(due.get(name)))


def fates_of(report, planted):
    """What became of each planted mistake, and what else was named."""
    proved = [f for f in report["findings"] if f["match"] == "reproduced" and f["cause"]]
    names = lambda f, p: is_planted(f, f["cause"], f["params"] or {}, p)
    among = lambda f, p: any(is_planted(f, other["cause"], other["params"] or {}, p) for other in f["also"])
    open_ = [f for f in report["findings"] if f not in proved]
    out = []
    for one in planted:
        if any(names(f, one) for f in proved):
            out.append("named")
        elif any(among(f, one) for f in proved):
            out.append("among")
        elif one["shows"]:
            out.append("law" if any(f.get("law") for f in open_) else "unknown")
    return out, [f["cause"] for f in proved if not any(names(f, p) or among(f, p) for p in planted)]


def weights_of(way, reference, model):
    return {"torch": ["--weights", FIXTURES / "models" / model], "llama.cpp": ["--weights", Path(reference).parent / f"{model}.gguf"]}.get(way, [])


def explained(command, seconds, way, reference, candidate, row):
    weights = weights_of(way, reference, row["model"])
    code, said, error = run(command, "explain", reference, candidate, "--json", "-", "--seconds", seconds, *weights)
    if code > 1 or not said:
        return ["refused"] * sum(p["shows"] for p in row["planted"]), [], (error.strip().splitlines() or [str(code)])[-1]
    fates, wrong = fates_of(json.loads(said), row["planted"])
    return fates, wrong, ""


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--command", required=True)
    p.add_argument("--every", type=int, default=4)
    p.add_argument("--pairs", type=int, default=20)
    p.add_argument("--triples", type=int, default=10)
    p.add_argument("--free", type=int, default=20)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--kinds", default="full,streams,last,logits")
    p.add_argument("--models", default="llama,mistral,qwen2,qwen3")
    p.add_argument("--ways", default=",".join(WAYS))
    p.add_argument("--seconds", default="10")
    p.add_argument("--only", default="", help="candidates whose file has this in its name")
    p.add_argument("--jobs", type=int, default=1)
    p.add_argument("--log", type=Path)
    p.add_argument("--keep", type=Path, help="the folder of candidates and references; what is there is taken")
    a = p.parse_args()
    folder = tempfile.TemporaryDirectory()
    root, models = a.keep or Path(folder.name), a.models.split(",")
    code, _, error = (root / "zoo/index.json").exists() and (0, "", "") or run(sys.executable, SCRIPTS / "planted/zoo.py", root / "zoo", "--kinds", a.kinds, "--every", a.every, "--pairs", a.pairs,
                         "--triples", a.triples, "--free", a.free, "--seed", a.seed)
    assert code == 0, error
    rows = json.loads((root / "zoo/index.json").read_text())
    rows = [row for row in rows if row["model"] in models and a.only in row["file"] and any(p["shows"] for p in row["planted"])]
    references = {model: recorded(root, model) for model in models}
    # llama.cpp may run another model than PyTorch, as a mistral without its window.
    for model, way in [(model, way) for model in models for way in references[model]]:
        right = next(FIXTURES.glob(f"golden/{model}-torch*"))
        code, _, _ = run(a.command, "explain", references[model][way], right, "--seconds", "1", *weights_of(way, references[model][way], model))
        if code:
            print(f"{model} by {way} is not PyTorch's: left out")
            del references[model][way]
    work = [(way, row) for row in rows for way in a.ways.split(",") if way in references[row["model"]]]
    print(f"{len(rows)} candidates, {len(work)} answers", flush=True)
    counts, log = Counter(), []
    judge = lambda one: (one, explained(a.command, a.seconds, one[0], references[one[1]["model"]][one[0]], root / "zoo" / one[1]["file"], one[1]))
    with ThreadPoolExecutor(a.jobs) as pool:
        for (way, row), (fates, wrong, why) in pool.map(judge, work):
            counts.update((way, row["group"], row["kind"], fate) for fate in [*fates, *(["wrong"] if wrong else [])])
            log.append({"way": way, "file": row["file"], "fates": fates, "wrong": wrong, "why": why})
            if wrong:
                print(f"WRONG {way} {row['file']}: {wrong}", flush=True)
    if a.log:
        a.log.write_text("\n".join(map(json.dumps, log)) + "\n")
    print(f"{'planted':8} {'recorded':12} {'way':10} " + " ".join(f"{fate:>8}" for fate in FATES))
    for group, kind in sorted({(row["group"], row["kind"]) for row in rows}):
        for way in a.ways.split(","):
            print(f"{group:8} {kind:12} {way:10} " + " ".join(f"{counts[way, group, kind, fate]:8}" for fate in FATES))
    sys.exit(any(fate == "wrong" for *_, fate in counts))


if __name__ == "__main__":
    main()

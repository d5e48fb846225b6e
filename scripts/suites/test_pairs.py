#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["torch==2.9.1", "transformers==4.57.1", "safetensors>=0.6", "numpy>=1.26", "gguf==0.19.0", "llama-cpp-python==0.3.36"]
# ///
"""Tests that five engines agree on one trained model, and that a mistake planted in any of them is found.

    python scripts/suites/test_pairs.py [--data FOLDER] [--candle TARGET_DIR | --without-candle] [--docs] [--keep DIR]

PyTorch, llama.cpp, candle-transformers as published (llama, and its llama2_c beside it), a C engine in the manner of llama2.c
(examples/engines/run.c) and a C++ engine (engine.cpp) run stories260K: 11 tokens and 8 decode steps in f32, and, for the C engine, which takes
one token at a time, all 19 one by one; last, one pass against one by one. Every pair must be at parity. Then mistakes are planted in each engine:
compared with PyTorch the first divergence must be at the tap where it is made, and `explain` must name it, from the model and the wrong dump alone.

The model is stories260K.bin in --data, else in $FIRSTDIFF_DATA, else in ../shared/data; where it is not, a random model of the same
format stands in, and a line says so. Candle is built by cargo into the folder --candle, else $FIRSTDIFF_CANDLE_TARGET, else target/candle.
Exit 1 on a failure.
"""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import ROOT
from scripts.convert import llama2c_to_hf, random_llama2c

TRAINED = "stories260K.bin"
TOKENS, DECODED = [1, 403, 407, 261, 378, 432, 383, 286, 261, 376, 298], [315, 421, 395, 317, 426, 338, 401, 396]
WARNINGS = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-Wshadow", "-Wconversion"]
ENGINES = ["PyTorch", "llama.cpp", "candle", "C", "C++"]
BESIDE = "candle llama2_c"
ONE_BY_ONE = {"C"}  # engines that cannot take a prompt in one pass

# engine, mistake as firstdiff names it, where it first shows: tap, and token (as a decode step where the prompt is one pass).
# Rows of Q and K that nobody permuted are PyTorch's own: they are first wrong where llama.cpp rotates them.
# candle shows of a layer no more than the norms of the last token: it is first seen at the next of them.
PLANTED = [
    ("PyTorch", "rope-theta", "layers.0.q_rope", 0), ("PyTorch", "weight-transposed", "layers.0.attn_out", 0), ("PyTorch", "norm-eps", "layers.0.attn_norm", 0),
    ("llama.cpp", "qk-row-order", "layers.0.q_rope", 0), ("llama.cpp", "rope-theta", "layers.0.q_rope", 0), ("llama.cpp", "norm-eps", "layers.0.attn_norm", 0),
    ("candle", "rope-theta", "layers.0.ffn_norm", 0), ("candle", "rope-pairing", "layers.0.ffn_norm", 0),
    ("candle", "weight-transposed", "layers.0.ffn_norm", 0), ("candle", "norm-eps", "layers.0.attn_norm", 0), ("candle", "rope-position", "layers.0.ffn_norm", 1),
    (BESIDE, "rope-pairing", "layers.0.k_rope", 0), (BESIDE, "weight-transposed", "layers.0.ffn_norm", 0),
    (BESIDE, "norm-eps", "layers.0.attn_norm", 0), (BESIDE, "rope-position", "layers.0.k_rope", 1),
    ("C", "rope-pairing", "layers.0.q_rope", 1), ("C", "norm-eps-outside", "layers.0.attn_norm", 0), ("C", "kv-cache-shift", "layers.0.qk", 1),
    ("C", "kv-head-map", "layers.0.qk", 0), ("C", "gate-up-swapped", "layers.0.ffn_act", 0),
    ("C++", "weight-transposed", "layers.0.q", 0), ("C++", "rope-position", "layers.0.q_rope", 1), ("C++", "mask-omitted", "layers.0.scores", 0),
    ("C++", "kv-cache-stale", "layers.0.qk", 1), ("C++", "context-layout", "layers.0.context", 0),
]
# The same mistake under two names: which of rows and rotation is meant depends on which is held to be right.
SAME = {"rope-pairing": {"rope-pairing", "qk-row-order"}, "qk-row-order": {"rope-pairing", "qk-row-order"}}
# What firstdiff is known to say wrong, counted as that and not as found. One that no longer happens is a failure: take it out.
DEFECTS = {}
FAILED = []


def check(good, what):
    print(f"  {'ok  ' if good else 'FAIL'} {what}", flush=True)
    if not good:
        FAILED.append(what)


def run(command, status=0, **environment):
    """Runs a command in an environment without FIRSTDIFF_* but these; its output. Another exit status ends the test."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FIRSTDIFF_", "ENGINE_"))}
    done = subprocess.run([str(c) for c in command], env=kept | environment, capture_output=True, text=True)
    if done.returncode != status and status is not None:
        sys.exit(f"exit {done.returncode}: {' '.join(map(str, command))}\n{done.stdout[-800:]}{done.stderr[-800:]}")
    return done.stdout


def script(name, *arguments):
    run([sys.executable, ROOT / "scripts" / name, *arguments])


def ids(tokens):
    return ",".join(map(str, tokens))


# ---- the model ----


class Model:
    """One model in three formats; `wrong` makes a folder or a GGUF that lies."""

    def __init__(self, checkpoint, work):
        self.checkpoint, self.work = checkpoint, work
        self.folder, self.gguf = work / "model", work / "model.gguf"
        script("convert/llama2c_to_hf.py", checkpoint, self.folder)
        script("convert/hf_to_gguf.py", self.folder, self.gguf)

    def wrong(self, mistake):
        """A Hugging Face folder with the mistake in its config or weights."""
        from safetensors.numpy import load_file, save_file

        folder = self.work / f"wrong-{mistake}"
        folder.mkdir()
        config, tensors = json.loads((self.folder / "config.json").read_text()), load_file(self.folder / "model.safetensors")
        if mistake == "rope-theta":
            config["rope_theta"] = 500000.0
        if mistake == "norm-eps":
            config["rms_norm_eps"] = 1e-6
        for name, w in tensors.items():
            if mistake == "weight-transposed" and "o_proj" in name:
                tensors[name] = np.ascontiguousarray(w.T)
            if mistake == "qk-row-order" and ("q_proj" in name or "k_proj" in name):  # hf_to_gguf.py permutes them back: nothing was permuted
                heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
                tensors[name] = np.ascontiguousarray(llama2c_to_hf.halves(w, heads))
        (folder / "config.json").write_text(json.dumps(config))
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder


# ---- the engines ----


class Engines:
    """Runs any of the engines, right or wrong, on the prompt in one pass or one token at a time."""

    def __init__(self, model, work, candle):
        self.model, self.work, self.candle = model, work, candle
        for source, language, compiler in (("run.c", "c99", "cc"), ("engine.cpp", "c++17", "c++")):
            path = ROOT / "examples/engines" / source
            run([compiler, "-O2", f"-std={language}", *WARNINGS, "-I", ROOT / "crates/trace/c", path, "-o", work / path.stem, "-lm"])

    def names(self):
        return [e for e in [*ENGINES, BESIDE] if self.candle or "candle" not in e]

    def dump(self, engine, one_by_one=False, mistake=""):
        """The folder of a run, made where it is not there yet."""
        tokens, decoded = (TOKENS[:1], TOKENS[1:] + DECODED) if one_by_one else (TOKENS, DECODED)
        out = self.work / f"{engine.replace(' ', '-')}-{'one-by-one' if one_by_one else 'one-pass'}{'-' * bool(mistake)}{mistake}"
        if out.exists():
            return out
        feed, environment = ["--tokens", ids(tokens), "--decode-tokens", ids(decoded)], {"FIRSTDIFF_DIR": str(out), "ENGINE_MISTAKE": mistake}
        folder, gguf = self.model.folder, self.model.gguf
        match engine:
            case "PyTorch":
                script("dump_torch.py", self.model.wrong(mistake) if mistake else folder, "-o", out, "--no-program", *feed, "--threads", "1")
            case "llama.cpp":
                if mistake:
                    gguf = self.work / f"wrong-{mistake}.gguf"
                    wrong = self.work / f"wrong-{mistake}"
                    script("convert/hf_to_gguf.py", wrong if wrong.exists() else self.model.wrong(mistake), gguf)
                script("dump_llama_cpp.py", gguf, "-o", out, "--no-program", *feed, "--threads", "1")
            case "C":
                run([self.work / "run", self.model.checkpoint, ids(tokens + decoded)], **environment)
            case "C++":
                run([self.work / "engine", gguf, ids(tokens), ids(decoded)], **environment)
            case _:
                code = engine.partition(" ")[2] or "llama"
                run([self.candle, folder, code, ids(tokens), ids(decoded)], **environment)
        return out


def build_candle(target):
    """Candle's program, or None where it cannot be had; the reason is printed."""
    if not shutil.which("cargo"):
        return print("NOT CHECKED: candle: no cargo")
    done = subprocess.run(["cargo", "build", "--release", "--manifest-path", ROOT / "examples/candle/Cargo.toml",
                           "--target-dir", target], capture_output=True, text=True)
    if done.returncode and any(w in done.stderr for w in ("failed to download", "failed to get", "failed to fetch", "Could not resolve", "spurious network")):
        return print(f"NOT CHECKED: candle: crates.io cannot be reached ({done.stderr.strip().splitlines()[-1]})")
    if done.returncode:
        sys.exit(f"examples/candle does not build:\n{done.stderr[-2000:]}")
    return Path(target) / "release/firstdiff-candle"


# ---- what firstdiff says ----


class Judge:
    def __init__(self, binary):
        self.binary = binary

    def report(self, *arguments, status=None):
        said = run([self.binary, *arguments, "--json", "-"], status)
        return json.loads(said) if said else {"verdict": "nothing said", "taps": [], "findings": []}

    def pair(self, what, reference, candidate):
        """A row of the table of pairs; parity, and how much of it was looked at."""
        report = self.report("compare", reference, candidate)
        left = sum(tap["status"] == "unchecked" for tap in report["taps"])
        checked = len(report["taps"]) - left
        worst = max((tap["nmse"] for tap in report["taps"] if tap["status"] != "unchecked" and tap["nmse"] is not None), default=float("nan"))
        check(report["verdict"] == "parity" and checked > 0, f"{what}: {report['verdict']}, {checked} taps compared, {left} unchecked, worst NMSE {worst:.1e}")
        return [*what.split(": ")[0].split(" / "), report["verdict"], str(checked), str(left), f"{worst:.1e}"]

    def planted(self, engine, mistake, tap, step, reference, candidate, model):
        """A row of the table of mistakes: the first divergence, and the cause."""
        first = self.report("compare", reference, candidate).get("first_divergence") or {}
        where = f"{first.get('tap')}, step {first.get('step') or 0}"
        findings = self.report("explain", model, candidate)["findings"]
        causes = [f["cause"] for f in findings if f["cause"]]
        unnamed = sum(f["cause"] is None for f in findings)
        said = ", ".join(dict.fromkeys(causes)) or "none"
        at, defect = f"{tap}, step {step}", DEFECTS.get((engine, mistake))
        named = bool(causes) and set(causes) <= SAME.get(mistake, {mistake})
        check(where == at and named == (not defect), f"{engine}, {mistake}: first divergence {where}" + (f" (due: {at})" if where != at else "")
              + f"; explained as {said}" + (f", {unnamed} unknown" if unnamed else "")
              + (f" (DEFECT: {defect})" if defect and not named else " (a defect that is none any more)" if defect else ""))
        left = f" ({unnamed} stretch{'es' * (unnamed > 1)} left unknown)" if unnamed else ""
        return [engine, mistake, where, said + left + (f" (a defect: {defect})" if defect else "")]


# ---- the page ----


def table(head, rows):
    return ["| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rows]]


ABOUT = ("Do engines that share no code agree on one trained model? PyTorch, llama.cpp, candle-transformers as published (llama and llama2_c), a C engine like llama2.c "
         "(examples/engines/run.c) and a C++ engine (engine.cpp) run stories260K in f32: 11 tokens and 8 decode steps. The C engine takes all 19 tokens one by one. "
         "Every pair must be at parity.")
ABOUT_PLANTED = ("A mistake is planted in one engine, which is compared with PyTorch. The first divergence must be where the mistake is, and `explain` must name it, from the model "
                 "and the wrong dump alone. Step 0 is the prompt, or the first token where each token is a step.")


def page(pairs, planted):
    text = ["# Pairs of engines", "", ABOUT, "",
            "Written by `python scripts/suites/test_pairs.py --docs`. Taps are counted in all steps. Candle shows only what examples/candle/README.md lists, "
            "in `llama` of the prompt's last token alone; the rest is unchecked.", "",
            *table(["reference", "candidate", "run", "verdict", "taps compared", "unchecked", "worst NMSE"], pairs), "",
            "## Planted mistakes", "", ABOUT_PLANTED, "",
            *table(["engine", "planted", "first divergence (`compare`)", "cause (`explain`)"], planted)]
    return "\n".join(text) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--firstdiff", type=Path, default=ROOT / "target/release/firstdiff", metavar="BINARY")
    p.add_argument("--data", type=Path, default=Path(os.environ.get("FIRSTDIFF_DATA") or ROOT.parent / "shared/data"), metavar="FOLDER")
    p.add_argument("--candle", type=Path, default=Path(os.environ.get("FIRSTDIFF_CANDLE_TARGET") or ROOT / "target/candle"), metavar="TARGET_DIR")
    p.add_argument("--without-candle", action="store_true", help="neither build nor run candle")
    p.add_argument("--docs", action="store_true", help="write docs/measured/pairs.md")
    p.add_argument("--keep", type=Path, metavar="DIR", help="work in this new folder and leave it")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = (a.keep or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        checkpoint = a.data / TRAINED
        trained = checkpoint.is_file()
        if not trained:
            print(f"NOT CHECKED: the trained model: no {checkpoint}; a random one stands in")
            checkpoint = work / "random.bin"
            random_llama2c.write(checkpoint)
        if a.without_candle:
            print("NOT CHECKED: candle was left out")
        model = Model(checkpoint, work)
        engines = Engines(model, work, None if a.without_candle else build_candle(a.candle.resolve()))
        judge, names = Judge(a.firstdiff.resolve()), engines.names()

        print("pairs")
        pairs, planted = [], []
        for first, second in itertools.combinations(names, 2):
            if BESIDE in (first, second) and "candle" in (first, second):
                continue  # the two of candle show different taps
            one_by_one = bool(ONE_BY_ONE & {first, second})
            way = "one token at a time" if one_by_one else "one pass"
            pairs.append(judge.pair(f"{first} / {second} / {way}", engines.dump(first, one_by_one), engines.dump(second, one_by_one)))
        for first, second in [*((e, "C") for e in names if e != "C"), ("PyTorch", "C++")]:
            pairs.append(judge.pair(f"{first} / {second} / one pass, one token at a time", engines.dump(first), engines.dump(second, True)))

        print("planted mistakes")
        for engine, mistake, tap, step in PLANTED:
            if engine in names:
                one_by_one = engine in ONE_BY_ONE
                wrong = engines.dump(engine, one_by_one, mistake)
                source = {"llama.cpp": model.gguf, "C": model.checkpoint, "C++": model.gguf}.get(engine, model.folder)
                planted.append(judge.planted(engine, mistake, tap, step, engines.dump("PyTorch", one_by_one), wrong, source))
        if a.docs and not trained:
            sys.exit("--docs needs the trained model")
        if a.docs:
            (ROOT / "docs/measured/pairs.md").write_text(page(pairs, planted))
    print(f"{len(FAILED)} failed" if FAILED else f"all good: {len(pairs)} pairs, {len(planted)} planted mistakes")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())

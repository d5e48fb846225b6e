#!/usr/bin/env python3
"""Tests firstdiff on engines by other authors: right runs must never be blamed, planted mistakes must be found.

    python scripts/suites/test_engines.py [--engine NAME].. [--only TEXT] [--list] [--docs] [--json FILE] [--keep DIR] [--command PATH]

MLX, JAX, Flax, ONNX Runtime, OpenVINO, CTranslate2, tinygrad and torch's int8 compute the models of fixtures/models (and a random llama 256 wide, for the
quantised ones) by their own operations, layouts, names and files (scripts/engines). The reference is dump_torch.py's in f32: 11 tokens, 3 decode steps.
A right run is owed parity from `compare`, `replay` and `explain` and nothing certain from `inspect`; one that quantises is owed the name of another
arithmetic from `replay` and `explain`, and from `compare --noise` with a second right run parity, or that it is too far off to measure by. A planted mistake must be the first divergence at a tap where it can show, and
`explain` may name it or say unknown: another name is false. An engine that cannot be installed is NOT CHECKED, not passed. Exit code 1 on any false verdict.

The engines live in an environment of their own, ${XDG_CACHE_HOME:-~/.cache}/firstdiff-engines-HASH, made on first use from requirements/engines.txt
(1.5 GB, from PyPI); torch and transformers are those of $FIRSTDIFF_PYTHON, else of the Python that runs this. Not part of .ci/run: minutes, and a network.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import FIXTURES, ROOT, SCRIPTS
from scripts.engines.cases import ENGINES, LOGITS_ALONE, PLANTED, PREFILL_ALONE, RIGHT, SAYS_TOKENS, Planted

TOKENS, DECODED = [1, 17, 42, 99, 3, 150, 77, 17, 128, 64, 5], [9, 33, 120]
TORCH_PYTHON = os.environ.get("FIRSTDIFF_PYTHON", sys.executable)


# ---- what is owed ----


def names_arithmetic(report):
    """Does a report take the run for another arithmetic, not for a mistake? The one place to adapt to what the reports say of it."""
    findings = report.get("findings", [])
    named = [finding.get("arithmetic") is not None or finding["cause"] == "precision" for finding in findings]
    return report["verdict"] == "parity" or (bool(findings) and all(named))


def measures_nothing(report):
    """Does `--noise` refuse a second run that is too far off to measure anything by, as one with 4-bit weights may be? That is an honest answer."""
    return report["exit"] == 2 and "nothing can be measured by it" in report.get("error", "")


def judge_right(case, reports):
    """What is false in what was said of a right run: one line for each command."""
    false = []
    for command, report in reports.items():
        if command == "inspect":
            certain = [finding["tap"] for finding in report.get("findings", []) if finding["sure"] == "certain"]
            if certain or report["exit"] != 0:
                false.append(f"inspect: {said(report)}")
            continue
        if command == "compare" and case.arithmetic and report["exit"] in (0, 1):
            continue  # Of two runs alone nobody can tell another arithmetic from a mistake: that they differ is true.
        if command == "compare --noise" and measures_nothing(report):
            continue
        by_weights = command in ("replay dequantised", "explain dequantised", "compare --noise")
        good = names_arithmetic(report) if case.arithmetic and not by_weights else report["verdict"] == "parity"
        if not good:
            false.append(f"{command}: {said(report)}")
    return false


def judge_planted(case, reports):
    """What is false or missing in what was said of a planted mistake."""
    false, compare, explain = [], reports["compare --noise" if case.noise else "compare"], reports["explain"]
    found = (compare.get("first_divergence") or {}).get("tap")
    if not measures_nothing(compare) and (compare["verdict"] != "diverged" or found not in case.taps):
        false.append(f"compare{' --noise' * case.noise}: {said(compare)}")
    findings = [finding for finding in explain.get("findings", []) if not (case.noise and finding["cause"] == "precision")]
    if explain["verdict"] != "diverged" or not findings:
        false.append(f"explain: {said(explain)}")
    wrong = sorted({finding["cause"] for finding in findings} - {None, *case.causes})
    if wrong:
        false.append(f"explain: a wrong cause, {', '.join(wrong)}")
    elif findings and case.engine not in LOGITS_ALONE and not any(finding["tap"] in case.taps for finding in findings):
        false.append(f"explain: at {', '.join(finding['tap'] for finding in findings[:4])}, not at the tap")
    return false


def said(report):
    """A verdict in a few words."""
    first = report.get("first_divergence")
    findings = [f"{finding.get('sure') or finding['cause'] or 'unknown'} at {finding['tap']}" for finding in report.get("findings", [])]
    more = first["tap"] if first else ", ".join(findings[:3]) + (f" and {len(findings) - 3} more" if len(findings) > 3 else "")
    return " ".join(part for part in (report["verdict"] or "", more, report.get("error", "")[:150]) if part)


def named(case, report):
    causes = {finding["cause"] for finding in report.get("findings", [])}
    return ", ".join(sorted(causes & set(case.causes))) or "unknown"


# ---- the environment ----


def environment(wanted=SCRIPTS / "requirements/engines.txt", name="engines", how=()):
    """The Python of the engines, or of the packages of another list; made where it is not there. A package that cannot be installed is left out."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / f"firstdiff-{name}-{hashlib.sha256(wanted.read_bytes()).hexdigest()[:12]}"
    python = folder / "bin/python"
    if not (folder / "ready").exists():
        print(f"installing {wanted.name} into {folder}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([TORCH_PYTHON, "-m", "venv", folder], check=True)
        install = [python, "-m", "pip", "install", "-q", *how]
        if subprocess.run([*install, "-r", wanted]).returncode:
            for line in wanted.read_text().splitlines():
                if line and not line.startswith("#") and subprocess.run([*install, line]).returncode:
                    print(f"cannot be installed: {line}", flush=True)
        where = subprocess.run([TORCH_PYTHON, "-c", "import torch; print(torch.__path__[0])"], capture_output=True, text=True)
        if where.returncode == 0:
            site = next((folder / "lib").glob("python*")) / "site-packages"
            (site / "torch-elsewhere.pth").write_text(str(Path(where.stdout.strip()).parent) + "\n")
        (folder / "ready").touch()
    return python


def clean(**more):
    """An environment without FIRSTDIFF_*, one library's threads not fighting another's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FIRSTDIFF_")}
    return kept | {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "TOKENIZERS_PARALLELISM": "false"} | more


def missing(python, engines):
    """Which of these engines cannot be checked, and why."""
    out = {}
    for engine in engines:
        module = ENGINES[engine][1]
        done = subprocess.run([python, "-c", f"import {module}"], env=clean(), capture_output=True, text=True)
        if done.returncode:
            out[engine] = (done.stderr.strip().splitlines() or [f"import {module} failed"])[-1]
    return out


# ---- runs ----


def ids(tokens):
    return ",".join(map(str, tokens))


class Trial:
    def __init__(self, work, python, command, jobs, seconds):
        self.work, self.python, self.command, self.jobs, self.seconds, self.failures = work, python, command, jobs, seconds, {}

    def model(self, name):
        return self.work / "wide" if name == "wide" else FIXTURES / "models" / name

    def prepare(self, models):
        """The wide model, and a reference of every model: with decode steps, and the prefill alone."""
        if "wide" in models and not self.model("wide").exists():
            from scripts.suites.test_quantised import write_model

            write_model(self.model("wide"), "llama")
        for name in sorted(models):
            out, prefill = self.work / f"reference-{name}", self.work / f"reference-prefill-{name}"
            if not out.exists():
                tokens = ["--tokens", ids(TOKENS), "--decode-tokens", ids(DECODED)]
                subprocess.run([TORCH_PYTHON, SCRIPTS / "dump_torch.py", self.model(name), "-o", out, "--no-program", *tokens], env=clean(), check=True, stderr=subprocess.DEVNULL)
            shutil.rmtree(prefill, ignore_errors=True)
            shutil.copytree(out, prefill, ignore=shutil.ignore_patterns("*.step*"))
            note = json.loads((out / "dump.json").read_text())
            note |= {"decode_tokens": [], "taps": [tap for tap in note["taps"] if tap["step"] == 0]}
            (prefill / "dump.json").write_text(json.dumps(note))

    def make(self, runs):
        """The dumps of these (engine, model, variant, mistake) that are not there yet: one process an engine's module."""
        todo = {}
        for engine, *run in dict.fromkeys(runs):
            out = self.out(engine, *run)
            if not out.with_name(out.name + ".done").exists():
                todo.setdefault(ENGINES[engine][0], []).append((out, self.arguments_of(engine, *run)))
        with ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(lambda module: self.run_engine(module, todo[module]), todo))

    def run_engine(self, module, jobs):
        for out, _ in jobs:
            for old in (out, out.with_name(out.name + "-dequantised")):
                shutil.rmtree(old, ignore_errors=True)
            out.parent.mkdir(parents=True, exist_ok=True)
        with open(self.work / f"{module}.log", "a") as log:
            done = subprocess.run([self.python, "-m", "scripts.engines", module], cwd=ROOT, env=clean(), text=True, stdout=subprocess.PIPE, stderr=log,
                                  input="".join(json.dumps([str(a) for a in argv]) + "\n" for _, argv in jobs))
        for line in done.stdout.splitlines():
            if line.startswith('{"out"'):
                said = json.loads(line)
                if said["failed"] is None:
                    Path(said["out"] + ".done").touch()
                self.failures[said["out"]] = said["failed"]

    def out(self, engine, model, variant, mistake=None):
        return self.work / engine.replace(" ", "-") / "-".join(part for part in (model, variant, mistake) if part)

    def arguments_of(self, engine, model, variant, mistake=None):
        steps = [] if engine in PREFILL_ALONE else ["--decode-tokens", ids(DECODED)]
        return [self.model(model), "-o", self.out(engine, model, variant, mistake), "--tokens", ids(TOKENS), *steps, "--variant", variant,
                *(["--mistake", mistake] if mistake else [])]

    def dump(self, engine, model, variant, mistake=None):
        """The engine's run, which `make` made."""
        out = self.out(engine, model, variant, mistake)
        if not out.with_name(out.name + ".done").exists():
            raise RuntimeError(self.failures.get(str(out)) or f"see {ENGINES[engine][0]}.log")
        return out

    def firstdiff(self, *arguments):
        """A command's JSON; where it wrote none, its error."""
        try:
            done = subprocess.run([str(c) for c in (self.command, *arguments, "--json", "-")], env=clean(), capture_output=True, text=True, timeout=self.seconds)
        except subprocess.TimeoutExpired:
            return {"verdict": "no answer", "exit": None, "error": f"in {self.seconds} s"}
        if done.stdout.startswith("{"):
            return json.loads(done.stdout) | {"exit": done.returncode}
        words = next((line for line in done.stderr.splitlines() if "error: " in line), "")
        return {"verdict": f"exit {done.returncode}", "exit": done.returncode, "error": words.partition("error: ")[2]}

    def arguments(self, case, out, without=None):
        """(reference, the candidate's own options, those that say how it is read)."""
        said = out.with_name(f"{out.name}.precision")  # where an engine chooses by what the processor has
        if case.profile and said.exists():
            case = case._replace(profile=said.read_text())
        folder = "reference-prefill" if case.engine in PREFILL_ALONE else "reference"
        profile = ["--profile", case.profile] if case.profile else []
        steps = [] if case.engine in PREFILL_ALONE else ["--decode-tokens", ids(DECODED)]
        tokens = [] if case.engine in SAYS_TOKENS and not without else ["--tokens", ids(TOKENS), *steps]
        # NumPy has no bf16: what JAX saves as that says no type.
        tokens += ["--dtype", "bf16"] if case.engine in ("JAX", "Flax") and case.profile == "bf16" else []
        return self.work / f"{folder}-{case.model}", profile, tokens

    def right(self, case):
        """Every command on a right run."""
        out = self.dump(case.engine, case.model, case.variant)
        if case.without:
            part = out.with_name(f"{out.name}-without-{case.without}")
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(out, part, ignore=shutil.ignore_patterns(case.without))
            out = part
        reference, profile, tokens = self.arguments(case, out, case.without)
        reports = {"compare": self.firstdiff("compare", reference, out, *profile, *tokens), "inspect": self.firstdiff("inspect", out, *tokens)}
        for command in ("replay", "explain"):
            if command == "explain" or case.engine not in LOGITS_ALONE:
                reports[command] = self.firstdiff(command, self.model(case.model), out, *profile, *tokens, *(["--seconds", "5"] if command == "explain" else []))
        if case.arithmetic:
            reports["compare --noise"] = self.firstdiff("compare", reference, out, "--noise", out, *tokens)
        if case.arithmetic == "weights":
            for command in ("replay", "explain"):
                reports[f"{command} dequantised"] = self.firstdiff(command, out.with_name(out.name + "-dequantised"), out, *tokens)
        return reports

    def planted(self, case):
        out = self.dump(case.engine, case.model, case.variant, case.mistake)
        reference, profile, tokens = self.arguments(case, out)
        reports = {"compare": self.firstdiff("compare", reference, out, *profile, *tokens)}
        if case.noise:
            own = self.dump(case.engine, case.model, case.variant)
            reports["compare --noise"] = self.firstdiff("compare", reference, out, "--noise", own, *tokens)
        reports["explain"] = self.firstdiff("explain", self.model(case.model), out, *profile, *tokens, "--seconds", "5")
        return reports

    # ---- the ways in: files and names as an engine's author would first give them ----

    def one_file(self):
        """OpenVINO's archive given by itself, its firstdiff.toml beside it."""
        out = self.dump("OpenVINO", "llama", "openvino")
        return self.firstdiff("compare", self.work / "reference-prefill-llama", out / "run.npz"), {"parity"}

    def no_map(self):
        """ONNX Runtime's graph names without a table: nothing but logits is known, and that must be said."""
        bare = self.bare()
        return self.firstdiff("compare", self.work / "reference-prefill-llama", bare), {"parity", "incomparable"}

    def bare(self):
        out = self.dump("ONNX Runtime", "llama", "ort")
        bare = self.work / "bare"
        shutil.rmtree(bare, ignore_errors=True)
        shutil.copytree(out, bare, ignore=shutil.ignore_patterns("firstdiff.toml"))
        return bare

    def aligned(self):
        """ONNX Runtime's names as `align` proposes them: then every tap is compared."""
        bare, reference = self.bare(), self.work / "reference-prefill-llama"
        subprocess.run([self.command, "align", reference, bare, "-o", bare / "firstdiff.toml"], env=clean(), capture_output=True)
        report = self.firstdiff("compare", reference, bare)
        unchecked = [tap["tap"] for tap in report.get("taps", []) if tap["status"] == "unchecked"]
        if unchecked:
            report |= {"verdict": f"{report['verdict']}, {len(unchecked)} unchecked", "error": ", ".join(unchecked[:3])}
        return report, {"parity"}

    def stacked(self):
        """JAX's scan as it comes, [L,1,T,..] a name: no verdict on the layers, but none that is false."""
        return self.firstdiff("compare", self.work / "reference-llama", self.dump("JAX", "llama", "stacked"), "--tokens", ids(TOKENS),
                              "--decode-tokens", ids(DECODED)), {"parity", "incomparable"}

    def step_files(self):
        """MLX's steps as files step0.safetensors, step1.safetensors .. in one folder."""
        out, flat = self.dump("MLX", "llama", "f32"), self.work / "step-files"
        shutil.rmtree(flat, ignore_errors=True)
        flat.mkdir()
        for step in range(len(DECODED) + 1):
            shutil.copyfile(out / f"step{step}/run.safetensors", flat / f"step{step}.safetensors")
        return self.firstdiff("compare", self.work / "reference-llama", flat, "--tokens", ids(TOKENS), "--decode-tokens", ids(DECODED)), {"parity"}


WAYS = [("OpenVINO", Trial.one_file), ("ONNX Runtime", Trial.no_map), ("ONNX Runtime", Trial.aligned), ("JAX", Trial.stacked), ("MLX", Trial.step_files)]

WAYS_FROM = {"OpenVINO": ("llama", "openvino"), "ONNX Runtime": ("llama", "ort"), "JAX": ("llama", "stacked"), "MLX": ("llama", "f32")}


# ---- the table ----


def judged(trial, case):
    """One row: what was run, what is false of it, what was said."""
    kind = "planted" if isinstance(case, Planted) else "right"
    row = {"kind": kind, "engine": case.engine, "name": case.name, "case": case._asdict()}
    try:
        reports = trial.planted(case) if kind == "planted" else trial.right(case)
    except RuntimeError as error:
        return row | {"false": [], "said": {}, "named": None, "not_checked": f"the engine did not run: {error}"}
    row["false"] = judge_planted(case, reports) if kind == "planted" else judge_right(case, reports)
    row["said"] = {command: said(report) for command, report in reports.items()}
    row["named"] = named(case, reports["explain"]) if kind == "planted" else None
    return row


def judged_way(trial, engine, way):
    """One row of a way in."""
    row = {"kind": "way", "engine": engine, "name": f"{engine} {way.__name__}", "words": way.__doc__, "named": None}
    try:
        report, owed = way(trial)
    except RuntimeError as error:
        return row | {"false": [], "said": {}, "not_checked": f"the engine did not run: {error}"}
    return row | {"false": [] if report["verdict"] in owed else [f"compare: {said(report)}"], "said": {"compare": said(report)}}


def show(row):
    if "not_checked" in row:
        print(f"NOT CHECKED: {row['name']}: {row['not_checked'].splitlines()[-1]}", flush=True)
        return
    print(f"{'FALSE' if row['false'] else 'ok   '} {row['kind']:<8}{row['name']:<52}{row['named'] or ''}", flush=True)
    for line in row["false"]:
        print(f"          {line}", flush=True)


def said_false(row):
    """A cell of the table."""
    return "not checked" if "not_checked" in row else "; ".join(row["false"]) or "none"


ABOUT = """# Engines of other people

Is firstdiff right about engines that share no code with it? MLX, JAX, Flax, ONNX Runtime, OpenVINO, CTranslate2, tinygrad and torch's int8 run the models of fixtures/models, and a
random llama 256 wide, with their own operations, layouts, names and files (scripts/engines). The reference is that of `python -m firstdiff.dump torch` in f32: 11 tokens and 3 decode steps.

A verdict is false where a right run is blamed, where a planted mistake is not the first divergence, or where another cause is named. Written by
`python scripts/suites/test_engines.py --docs`; versions: scripts/requirements/engines.txt.
"""
ABOUT_RIGHT = """A right run must be at parity in `compare`, `replay` and `explain`, with nothing certain in `inspect`. One that quantises must be called another arithmetic, and beside a second
right run (`compare --noise`) be at parity or too far off to measure by."""
ABOUT_PLANTED = "The mistake must be the first divergence, at a tap where it can show. `explain` may name it or say unknown (?). An arrow leads to the names that it gives instead, which are as true."


def page(rows, left_out):
    """The page docs/measured/engines.md."""
    text = [ABOUT, "## Right runs", "", ABOUT_RIGHT, "", "| engine | runs | false verdicts |", "|---|---|---|"]
    for kind in ("right", "planted"):
        if kind == "planted":
            text += ["", "## Planted mistakes", "", ABOUT_PLANTED, "", "| engine | mistakes | false verdicts |", "|---|---|---|"]
        own = [row for row in rows if row["kind"] == kind]
        for engine in dict.fromkeys(row["case"]["engine"] for row in own):
            runs = [row for row in own if row["case"]["engine"] == engine]
            text.append(f"| {engine} | {', '.join(map(described, runs))} | {'; '.join(dict.fromkeys(map(said_false, runs)))} |")
    text += ["", "## Names and files", "", "| | false verdicts |", "|---|---|"]
    text += [f"| {row['words']} | {said_false(row)} |" for row in rows if row["kind"] == "way"]
    text += [""] + [f"NOT CHECKED: {engine}: {why}" for engine, why in left_out.items()]
    return "\n".join(text).rstrip() + "\n"


def described(row):
    """A run in a few words: the model and the variant, and which mistake is named how."""
    case = row["case"]
    run = f"{case['model']} {case['variant']}"
    if row["kind"] == "right":
        return run
    named = {case["mistake"]: "", "unknown": " ?"}.get(row["named"], f" → {row['named']}")
    return f"{case['mistake']}{named} ({run})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", choices=list(ENGINES), help="this engine alone; may be repeated")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose line in --list contains this")
    parser.add_argument("--list", action="store_true", help="show the cases and end")
    parser.add_argument("--docs", action="store_true", help="write docs/measured/engines.md")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in this folder, leave it, and use the dumps that are in it")
    parser.add_argument("--command", type=Path, help="the firstdiff to judge; default: built by cargo")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=600, help="no answer of a command within these is false (default 600)")
    args = parser.parse_args()
    mine = lambda engine, name: (not args.engine or engine in args.engine) and args.only in name
    cases = [case for case in RIGHT + PLANTED if mine(case.engine, case.name)]
    ways = [(engine, way) for engine, way in WAYS if mine(engine, f"{engine} {way.__name__}")]
    if args.list:
        print("\n".join([case.name for case in cases] + [f"{engine} {way.__name__}: {way.__doc__}" for engine, way in ways]))
        return 0
    if args.docs and (args.engine or args.only):
        sys.exit("--docs wants all engines")
    command = args.command
    if command is None:
        subprocess.run(["cargo", "build", "--release", "--locked", "-q", "-p", "firstdiff"], cwd=ROOT, check=True)
        target = subprocess.run(["cargo", "metadata", "--format-version", "1", "--no-deps"], cwd=ROOT, check=True, capture_output=True)
        command = Path(json.loads(target.stdout)["target_directory"]) / "release/firstdiff"
    python = environment()
    left_out = missing(python, args.engine or ENGINES)
    cases, ways = [case for case in cases if case.engine not in left_out], [(e, w) for e, w in ways if e not in left_out]
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        work = (args.keep or Path(scratch)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        trial = Trial(work, python, command.resolve(), args.jobs, args.seconds)
        trial.prepare({case.model for case in cases} | ({"llama"} if ways else set()))
        trial.make([(case.engine, case.model, case.variant) for case in cases]
                   + [(case.engine, case.model, case.variant, case.mistake) for case in cases if isinstance(case, Planted)]
                   + [(engine, *WAYS_FROM[engine]) for engine, _ in ways])
        with ThreadPoolExecutor(args.jobs) as pool:
            for row in pool.map(lambda case: judged(trial, case), cases):
                rows.append(row)
                show(row)
        for engine, way in ways:
            rows.append(judged_way(trial, engine, way))
            show(rows[-1])
    for engine, why in left_out.items():
        print(f"NOT CHECKED: {engine}: {why}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    if args.docs:
        (ROOT / "docs/measured/engines.md").write_text(page(rows, left_out))
    count = lambda kind, bad: sum(row["kind"] == kind and bool(row["false"]) == bad for row in rows)
    print(f"right runs: {count('right', False)} as owed, {count('right', True)} false; planted mistakes: {count('planted', False)} as owed, "
          f"{count('planted', True)} false; names and files: {count('way', False)} as owed, {count('way', True)} false; engines not checked: {len(left_out)}")
    return 1 if any(row["false"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

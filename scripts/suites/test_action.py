#!/usr/bin/env python3
"""Tests action.yml, the GitHub action.

    python scripts/suites/test_action.py [--command PATH]

The step that runs firstdiff is carried out as GitHub's runner does it: its `env` filled with inputs, its script given to `bash -e -o pipefail`.
Right and wrong dumps, with a baseline and without, a requirement that is not met, and inputs that hold shell commands. Exit code 1 where
an exit code, an annotation, the summary or the page is not what is due. Requirements: requirements.txt
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import FIXTURES, ROOT

GOLDEN, FAULTY, RIGHT = (str(FIXTURES / name) for name in ("golden/llama-torch", "faulty/llama-rope-pairing", "right/llama-numpy.npz"))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--command", default=str(ROOT / "target" / "release" / "firstdiff"))
    a = p.parse_args()
    a.command = str(Path(a.command).resolve())
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    defaults = {name: about.get("default", "") for name, about in action["inputs"].items()}
    step = next(step for step in action["runs"]["steps"] if step.get("name") == "firstdiff")
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)

        def run(**inputs):
            """Exit code, what was printed, the summary and whether there is a page."""
            given = {**defaults, "command": a.command, **inputs}
            filled = {name: text.replace("${{ ", "").replace(" }}", "") for name, text in step["env"].items()}
            environment = {name: given[text.removeprefix("inputs.")] for name, text in filled.items()}
            here = folder / f"run{len(list(folder.iterdir()))}"
            here.mkdir()
            done = subprocess.run(["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]], capture_output=True, text=True, cwd=here,
                                  env={**os.environ, **environment, "GITHUB_STEP_SUMMARY": str(here / "summary"), "RUNNER_TEMP": str(here)})
            summary = (here / "summary").read_text() if (here / "summary").exists() else ""
            return done.returncode, done.stdout + done.stderr, summary, (here / given["report"]).exists(), {f.name for f in here.iterdir()}

        def check(what, holds, more=""):
            nonlocal failed
            failed += not holds
            print(f"{'ok  ' if holds else 'FAIL'} {what} {'' if holds else more}", flush=True)

        code, said, summary, page, _ = run(reference=GOLDEN, candidate=GOLDEN)
        check("a right dump passes", code == 0 and "::error" not in said and "parity" in summary and page, (code, said))
        code, said, summary, page, _ = run(reference=GOLDEN, candidate=FAULTY)
        check("a wrong one fails, with annotations, a summary and a page",
              code == 1 and "::error title=firstdiff%3A diverged%3A layers.0.q_rope::" in said and "layers.0.q_rope" in summary and page, (code, said))
        code, said, *_ = run(reference=GOLDEN, candidate=FAULTY, require="*")
        check("what is required and unchecked is told", code == 1 and "unchecked" in said, (code, said))
        code, said, *_ = run(reference=GOLDEN, candidate=FAULTY, arguments="--taps h0,layers.0.q -v")
        check("more arguments are given on", code == 0 and "layers.0.k_rope" not in said, (code, said))
        baseline = folder / "parity.baseline"
        subprocess.run([a.command, "gate", GOLDEN, RIGHT, "--baseline", baseline, "--update"], check=True, capture_output=True)
        code, said, *_ = run(reference=GOLDEN, candidate=RIGHT, baseline=str(baseline))
        check("a baseline is held", code == 0 and "gate: passed" in said, (code, said))
        code, said, *_ = run(reference=GOLDEN, candidate=FAULTY, baseline=str(baseline))
        check("a baseline fails", code == 1 and "::error title=firstdiff%3A regression%3A" in said, (code, said))
        code, said, _, _, files = run(reference="$(touch taken)", candidate="`touch taken`; touch taken", require="x' ; touch taken")
        check("an input is never run", code == 2 and "taken" not in files, (code, files))
    print(f"{failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

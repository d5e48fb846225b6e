"""Runs the slow checks of table.py, as many beside each other as there are cores.

    python -m scripts.suites --list            what is checked
    python -m scripts.suites --sample          a part of each: what .ci/run runs
    python -m scripts.suites --all             the whole of each: .ci/full
    python -m scripts.suites NAME .. [--all]   these (`laws`: all whose names begin with `laws-`), as a sample or whole

The Python that runs this runs them: with scripts/requirements.txt. The command is target/release/firstdiff, `evaluate` an example in target/debug: both
are built already. What a suite says is shown when it ends; where one fails no other begins, and the exit code is 1. What cannot be had is said as NOT CHECKED.

With FIRSTDIFF_CI_KEEP=DIR a suite that passed there on this commit, with nothing changed, is not run again: a long run may be taken up where it ended. Then
the suites after one that failed are run too: all that fail are known after one run.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import ROOT, SCRIPTS
from scripts.suites.table import FIRSTDIFF, OF_SETS, SUITES

BEGAN = time.time()
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def step(text):
    print(f"\n== {time.time() - BEGAN:4.0f}s  {text}", flush=True)


# ---- what a suite needs: the Python to run it with, or None where it cannot be had ----


def browser():
    """The system's Chromium, else Debian's package. What drives it stands in an environment of its own."""
    wanted = SCRIPTS / "requirements/browser.txt"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / f"firstdiff-browser-{hashlib.sha256(wanted.read_bytes()).hexdigest()[:12]}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    is_there = lambda: any(map(shutil.which, BROWSERS))
    if not is_there() and os.geteuid() == 0 and shutil.which("apt-get"):
        if subprocess.run(["apt-get", "update", "-q"], **quiet).returncode == 0:
            subprocess.run(["apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium"], env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"}, **quiet)
    python = folder / "bin/python"
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        makes = ([shutil.which("python3") or sys.executable, "-m", "venv", folder], [python, "-m", "pip", "install", "--quiet", "-r", wanted])
        if all(subprocess.run(command).returncode == 0 for command in makes):
            (folder / "ready").touch()
    return python if is_there() and (folder / "ready").exists() else None


def prepared(script):
    return lambda: sys.executable if subprocess.run([sys.executable, SCRIPTS / script, "--prepare"], cwd=ROOT).returncode == 0 else None


def compilers():
    return sys.executable if shutil.which("cc") and shutil.which("c++") else None


NEEDS = {
    "": (lambda: sys.executable, ""),
    "browser": (browser, "no Chromium"),
    "wheel": (prepared("suites/test_wheel.py"), "maturin and the packages of scripts/requirements/wheel.txt could not be had"),
    "cc": (compilers, "no C and C++ compiler"),
    "packed": (prepared("suites/test_packed.py"), "the libraries of scripts/requirements/packed.txt could not be had"),
    "remote": (prepared("suites/test_remote.py"), "the servers of scripts/requirements/remote.txt could not be had"),
}


# ---- running ----


def words(suite, python, whole):
    """The command line of a suite."""
    own = suite.whole if whole else suite.sample
    script = suite.script.split() if suite.script.startswith("cargo ") else [str(python), f"scripts/{suite.script}"]
    return [*script, *suite.both.split(), *(own or "").split()]


def kept_folder():
    """Where it is noted what passed on this commit; None where nobody asks, or the tree is changed."""
    if not os.environ.get("FIRSTDIFF_CI_KEEP"):
        return None
    git = lambda *command: subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    if git("status", "--porcelain"):
        return None
    folder = Path(os.environ["FIRSTDIFF_CI_KEEP"]) / git("rev-parse", "HEAD")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Runner:
    def __init__(self, whole):
        self.whole, self.kept, self.failed, self.lock = whole, kept_folder(), [], threading.Lock()
        self.pythons = {}

    def python(self, suite):
        """The Python of a suite, with what it needs prepared once; None where that cannot be had."""
        if suite.needs not in self.pythons:
            self.pythons[suite.needs] = NEEDS[suite.needs][0]()
        if self.pythons[suite.needs] is None:
            print(f"NOT CHECKED: {NEEDS[suite.needs][1]}; {suite.name} was left out", flush=True)
        return self.pythons[suite.needs]

    def run(self, suite, python):
        if self.failed and not self.kept:
            return
        command = words(suite, python, self.whole)
        mark = self.kept and self.kept / hashlib.sha256("\n".join([suite.title, *command]).encode()).hexdigest()[:16]
        if mark and mark.exists():
            with self.lock:
                step(f"{suite.title}: passed on this commit before")
            return
        began, busy = time.time(), 0.0
        with tempfile.TemporaryFile() as said:
            for line in [*(before.split() for before in suite.before), command]:
                process = subprocess.Popen(line, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, env=os.environ | {"OMP_NUM_THREADS": "1"})
                _, status, used = os.wait4(process.pid, 0)
                code = process.returncode = os.waitstatus_to_exitcode(status)
                busy += used.ru_utime + used.ru_stime
                if code:
                    break
            said.seek(0)
            with self.lock:
                step(f"{suite.title} ({time.time() - began:.0f} s, {busy:.0f} s of processors)")
                sys.stdout.buffer.write(said.read())
                if code:
                    self.failed.append(f"FAILED with exit code {code}: {' '.join(line)}")
                    print(self.failed[-1])
                sys.stdout.flush()
        if mark and not code:
            mark.touch()

    def run_all(self, suites, jobs):
        ready = [(suite, python) for suite in suites if (python := self.python(suite))]
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(lambda one: self.run(*one), [one for one in ready if not one[0].last]))
        for one in ready:
            if one[0].last and not self.failed:
                self.run(*one)


def listed():
    """What is checked, on one screen: the sets of laws are one line."""
    several = [suite.name for suite in SUITES if suite.title.startswith(OF_SETS)]
    for suite in SUITES:
        if suite.name in several[1:]:
            continue
        when = "by name" if suite.whole is None else "--all" if suite.sample is None else "--sample"
        name, title = (f"{several[0]} ..", f"{OF_SETS} ({len(several)} sets, to {several[-1]})") if suite.name in several else (suite.name, suite.title)
        print(f"{name:25} {when:9} {title}" + (f" [{suite.needs}]" if suite.needs else ""))
    print("--all runs those of --sample whole. python -m scripts.suites NAME runs one.")


def main():
    p = argparse.ArgumentParser(prog="python -m scripts.suites", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", metavar="NAME")
    p.add_argument("--list", action="store_true")
    p.add_argument("--sample", action="store_true")
    p.add_argument("--all", action="store_true")
    p.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(), metavar="N")
    a = p.parse_args()
    if a.list:
        return listed()
    suites = [suite for suite in SUITES if (suite.whole if a.all else suite.sample) is not None]
    if a.names:
        suites = [suite for suite in SUITES if any(suite.name == name or suite.name.startswith(f"{name}-") for name in a.names)]
        if unknown := [name for name in a.names if not any(suite.name == name or suite.name.startswith(f"{name}-") for suite in SUITES)]:
            p.error(f"no suite is called {unknown[0]}; see --list")
    elif a.sample == a.all:
        p.error("--list, --sample, --all, or names")
    if not (ROOT / FIRSTDIFF).exists():
        p.error(f"{FIRSTDIFF} is not there: cargo build --release --locked -p firstdiff")
    os.environ.setdefault("FIRSTDIFF_PYTHON", sys.executable)
    runner = Runner(a.all)
    runner.run_all(suites, a.jobs)
    if not a.all and not a.names:
        print("\nsampled: .ci/full runs these suites whole, and bisect, rounding, weights and docs/guide/engines beside them")
    if runner.failed:
        print("\n" + "\n".join(runner.failed))
        sys.exit(1)


if __name__ == "__main__":
    main()

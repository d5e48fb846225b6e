#!/usr/bin/env python3
"""Tests the installed wheel: what `pip install firstdiff` provides, and that it works.

    python scripts/suites/test_wheel.py [--wheel FILE] [--target DIR] [--prepare]

Builds the wheel with maturin (or takes FILE), and the sdist, which must hold all that a build reads. Installs the wheel alone into a clean environment, and uses it
as a stranger would: the command, `python -m firstdiff`, `firstdiff.compare`; then with pandas and pytest beside it: tables, the fixture `assert_parity`, JUnit,
pytest-html and pytest-xdist. With a Python that has torch and transformers (FIRSTDIFF_PYTHON) it is installed into a folder of its own too, and compares models.
Exit code 1 where something is not as it should be.

maturin, and the files of all that is installed, are kept in ${XDG_CACHE_HOME:-~/.cache}/firstdiff-wheel-HASH, from requirements/wheel.txt (90 MB, from PyPI, on
first use; --prepare does this alone). Requirements: none
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import venv
import xml.etree.ElementTree as ElementTree
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import FIXTURES, ROOT, SCRIPTS
from scripts.release.wheel.checks import check, end

REQUIREMENTS = SCRIPTS / "requirements" / "wheel.txt"

PAIR = (FIXTURES / "golden/llama-torch", FIXTURES / "faulty/llama-rope-pairing")
# What a user's shell would not have: the command is to be found where pip put it.
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(("FIRSTDIFF_", "PYTHON", "PYTEST", "VIRTUAL_ENV"))}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--wheel", type=Path, help="a wheel that is built already, as it is published")
    p.add_argument("--target", type=Path, default=ROOT / "target", help="Cargo's folder: where the release binary is built already, no crate is compiled again")
    p.add_argument("--prepare", action="store_true", help="only fetch what is needed from PyPI")
    a = p.parse_args()
    timed("what is needed", prepare)
    if a.prepare:
        return
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        wheel = a.wheel.resolve() if a.wheel else build(work, a.target.resolve())
        contents(wheel, published=a.wheel is not None)
        binstall(wheel, work / "archive")
        python = timed("a clean environment", lambda: environment(work / "clean"))
        timed("pip install of the wheel, with what it needs", lambda: install(python, [wheel]))
        timed("the command", lambda: command(python, work))
        timed("firstdiff.compare, with NumPy alone", lambda: script(python, "use_compare.py", FIXTURES, "plain"))
        timed("pandas and pytest beside it", lambda: install(python, ["pandas", "pytest", "pytest-html", "pytest-xdist"]))
        timed("firstdiff.compare, with pandas", lambda: script(python, "use_compare.py", FIXTURES, "pandas"))
        timed("the fixture assert_parity", lambda: fixture(python, work / "project"))
        timed("PyTorch", lambda: torch(wheel, work / "beside"))
    end()


def timed(what, call):
    print(f"{what}:", flush=True)
    start = time.monotonic()
    given = call()
    print(f"  {time.monotonic() - start:.1f} s", flush=True)
    return given


def run(*words, **options):
    """Runs a program without looking at its exit code."""
    return subprocess.run(list(map(str, words)), **{"capture_output": True, "text": True, "env": CLEAN, **options})


def needed(*words, **options):
    done = run(*words, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done


# ---- environments ----


def kept():
    """The folder of maturin and of the files of all packages: they are fetched once."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    return cache / f"firstdiff-wheel-{key}"


def prepare():
    folder = kept()
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        python = environment(folder)
        pip(python, "download", "--only-binary", ":all:", "--dest", folder / "files", "--requirement", REQUIREMENTS)
        install(python, ["maturin"])
        (folder / "ready").touch()


def environment(folder):
    venv.create(folder, with_pip=True)
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def pip(python, *words):
    needed(python, "-m", "pip", "--quiet", "--disable-pip-version-check", *words)


def install(python, what):
    """Installs packages from the files that are kept: no others, at no other versions."""
    pip(python, "install", "--no-compile", "--no-index", "--find-links", kept() / "files", *what)


# ---- the wheel and the sdist ----


def build(work, target):
    maturin = kept() / "bin" / "maturin"
    settings = {"cwd": ROOT, "env": {**CLEAN, "CARGO_TARGET_DIR": str(target)}}
    done = timed("the wheel", lambda: needed(maturin, "build", "--release", "--out", work, **settings))
    print(f"  {len(re.findall('^ *Compiling', done.stderr, re.MULTILINE))} crates were compiled")
    timed("the sdist", lambda: needed(maturin, "sdist", "--out", work, **settings))
    sdist = next(work.glob("*.tar.gz"))
    with tarfile.open(sdist) as archive:
        archive.extractall(work / "sdist", filter="data")
    tree = next((work / "sdist").iterdir())
    done = run("cargo", "metadata", "--locked", "--format-version", "1", cwd=tree)
    check(f"the sdist, {sdist.stat().st_size / 1e6:.1f} MB, resolves to the crates of Cargo.lock", done.returncode == 0, done.stderr)
    missing = [file for file in read_by_build() if not (tree / file).exists()]
    check("it holds every file that a build reads", not missing, missing)
    check("nothing of target, fixtures or scripts is in it", not any((tree / name).exists() for name in ("target", "fixtures", "scripts")))
    return next(work.glob("*.whl"))


def read_by_build():
    """The tracked files of the crates' sources, and of the Python package."""
    tracked = needed("git", "ls-files", "crates", cwd=ROOT).stdout.splitlines()
    return [file for file in tracked if re.match(r"crates/(?:\w+/(?:src|templates)/|\w+/Cargo\.toml|trace/python/firstdiff/)", file)]


def contents(wheel, published):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        binary = next((info for info in archive.infolist() if re.search(r"\.data/scripts/firstdiff(\.exe)?$", info.filename)), None)
        metadata = archive.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
    size = wheel.stat().st_size
    print(f"{wheel.name}: {size:,} bytes, {binary.file_size if binary else 0:,} of them unpacked the command's")
    check("the command is in it", binary is not None)
    if published:
        check("it is less than 12 MB", binary.file_size <= 12_000_000)
    for file in ("__init__", "__main__", "comparing", "command", "result", "pytest_plugin", "model", "program", "naming", "outputs", "experts",
                 "dump/__main__", "dump/pytorch", "dump/llamacpp", "dump/ort", "dump/files"):
        check(f"firstdiff/{file}.py is in it", f"firstdiff/{file}.py" in names)
    check("numpy is all that it needs", re.findall(r"^Requires-Dist: (\w+)[^;\n]*$", metadata, re.MULTILINE) == ["numpy"], metadata[:600])
    version = re.search(r"^Version: (.*)$", metadata, re.MULTILINE)[1]
    source = re.search(r'^__version__ = "(.*)"$', (ROOT / "crates/trace/python/firstdiff/__init__.py").read_text(), re.MULTILINE)[1]
    check("it has the version of the package, and says so in its name, with a platform that PyPI takes",
          version == source and re.search(rf"-{re.escape(version)}-py3-none-(?:manylinux|macosx|win)", wheel.name), (version, source, wheel.name))


def binstall(wheel, folder):
    """The archive for cargo binstall: does what crates/cli/Cargo.toml says of it hold?"""
    target = "x86_64-unknown-linux-gnu"
    needed(sys.executable, SCRIPTS / "release/command_archive.py", wheel, "--target", target, "-o", folder)
    about = tomllib.loads((ROOT / "crates/cli/Cargo.toml").read_text())
    given = {"repo": "", "version": "1.2.3", "name": about["package"]["name"], "target": target, "bin": "firstdiff", "binary-ext": ""}
    filled = {key: re.sub(r"\{ ([a-z-]+) \}", lambda name: given[name[1]], text) for key, text in about["package"]["metadata"]["binstall"].items()}
    path = folder / filled["pkg-url"].rsplit("/", 1)[-1]
    check("its archive has the name that Cargo.toml gives it", path.exists(), (filled, list(folder.iterdir())))
    with tarfile.open(path) as made, zipfile.ZipFile(wheel) as whole:
        command = made.extractfile(filled["bin-dir"])
        own = next(name for name in whole.namelist() if "/scripts/firstdiff" in name)
        check("and the wheel's own command where it says", command.read() == whole.read(own) and made.getmember(filled["bin-dir"]).mode == 0o755)


# ---- use ----


def script(python, name, *arguments):
    done = run(python, SCRIPTS / "release/wheel" / name, *arguments)
    print(done.stdout, end="")
    check(name, done.returncode == 0, done.stderr[-2000:])


def command(python, work):
    beside = python.parent / ("firstdiff.exe" if os.name == "nt" else "firstdiff")
    version = run(beside, "--version")
    check("firstdiff --version", version.returncode == 0 and version.stdout.startswith("firstdiff "), version)
    own = run(beside, "compare", *PAIR)
    again = run(python, "-m", "firstdiff", "compare", *PAIR)
    check("python -m firstdiff compare: exit code 1, and the command's own screen", again.returncode == 1 and again.stdout == own.stdout != "", again)
    check("a right pair: exit code 0", run(python, "-m", "firstdiff", "compare", PAIR[0], PAIR[0]).returncode == 0)
    check("no dump: exit code 2", run(python, "-m", "firstdiff", "compare", PAIR[0], "nowhere").returncode == 2)
    # A tree of sources alone: the recorder works, and what needs the command says how to get it.
    alone = {"env": {**CLEAN, "PYTHONPATH": str(work / "sources"), "PATH": str(work), "PYTHONUSERBASE": str(work / "user")}}
    shutil.copytree(ROOT / "crates/trace/python/firstdiff", work / "sources" / "firstdiff", ignore=shutil.ignore_patterns("__pycache__"))
    moved = python.parent / "moved-away"
    beside.rename(moved)
    recorded = run(python, "-c", "import firstdiff, numpy; firstdiff.record('h0', numpy.ones((2, 2))); firstdiff.finish()",
                   **{"env": {**alone["env"], "FIRSTDIFF_DIR": str(work / "recorded")}})
    check("without the command arrays are recorded", recorded.returncode == 0 and (work / "recorded/h0.npy").exists(), recorded.stderr)
    asked = run(python, "-m", "firstdiff", "--version", **alone)
    check("without the command it is said how to get it", asked.returncode == 2 and "pip install firstdiff" in asked.stderr and "Traceback" not in asked.stderr, asked)
    named = run(python, "-m", "firstdiff", "--version", **{"env": {**alone["env"], "FIRSTDIFF_COMMAND": str(moved)}})
    check("FIRSTDIFF_COMMAND names it", named.stdout == version.stdout, named)
    moved.rename(beside)


def fixture(python, project):
    project.mkdir()
    shutil.copy(SCRIPTS / "release/wheel" / "project.py", project / "test_engine.py")
    for how, more in {"alone": ["--firstdiff-report", "pages"], "in two workers": ["-n", "2", "--firstdiff-report", "pages of two"]}.items():
        done = run(python, "-m", "pytest", "-q", "--junit-xml=taps.xml", "--html=report.html", "--self-contained-html", *more, cwd=project,
                   env={**CLEAN, "FIXTURES": str(FIXTURES)})
        check(f"{how}: seven tests fail, two pass", done.returncode == 1 and "7 failed, 2 passed" in done.stdout, done.stdout[-2000:] + done.stderr)
        check(f"{how}: the screen is in the failure", "first divergence: " in done.stdout and "firstdiff: diverged at logits" in done.stdout, done.stdout)
        check(f"{how}: and the cause", "(rope-pairing)" in done.stdout and "fix: rotate the pairs" in done.stdout, done.stdout)
        said, pages = {}, []
        for case in ElementTree.parse(project / "taps.xml").iter("testcase"):
            properties = {p.get("name"): p.get("value") for p in case.iter("property")}
            said[case.get("name")] = properties.get("firstdiff")
            pages += [properties["firstdiff_report"]] if "firstdiff_report" in properties else []
        check(f"{how}: JUnit says why", said == {
            "test_right": None, "test_in_part": None, "test_wrong[1.0]": "diverged", "test_wrong[nan]": "diverged", "test_wrong[a/b]": "diverged",
            "test_unchecked": "unchecked", "test_shape": "incomparable", "test_cause": "diverged", "test_nowhere": "refused"}, said)
        written = sorted(map(str, (project / more[-1]).iterdir()))
        check(f"{how}: a page for each failure but the one without a dump", len(set(pages)) == 6 and sorted(pages) == written, (pages, written))
        check(f"{how}: each is whole", all(Path(page).read_text().rstrip().endswith("</html>") for page in pages))
        check(f"{how}: pytest-html shows them", (project / "report.html").read_text().count("srcdoc=") >= 5)
    done = run(python, "-m", "pytest", "-q", "-k", "unchecked", cwd=project)
    path = re.search(r"^the page: (.*)$", done.stdout, re.MULTILINE)
    check("without a folder the page is in pytest's own", path is not None and Path(path[1]).exists(), done.stdout)
    done = run(python, "-m", "pytest", "-q", "-k", "right or in_part", cwd=project)
    check("exit code 0 where all pass", done.returncode == 0, done.stdout)


def torch(wheel, beside):
    python = os.environ.get("FIRSTDIFF_PYTHON")
    if not python or run(python, "-c", "import torch, transformers, safetensors").returncode:
        print("  NOT CHECKED: no FIRSTDIFF_PYTHON with torch, transformers and safetensors")
        return
    pip(python, "install", "--no-deps", "--target", beside, wheel)
    alone = {"env": {**CLEAN, "PYTHONPATH": str(beside), "OMP_NUM_THREADS": "1"}}
    done = run(python, SCRIPTS / "release/wheel" / "use_torch.py", FIXTURES, **alone)
    print(done.stdout, end="")
    check("use_torch.py, installed with pip --target", done.returncode == 0, done.stderr[-2000:])
    golden, made = FIXTURES / "golden/llama-torch", beside.with_name("golden")
    decoded = ",".join(map(str, json.loads((golden / "dump.json").read_text())["decode_tokens"]))
    done = run(python, "-m", "firstdiff.dump", "torch", FIXTURES / "models/llama", "-o", made, "--tokens", "1,17,42,99,3,150,77,17,128,64,5", "--decode-tokens", decoded, **alone)
    check("python -m firstdiff.dump torch", done.returncode == 0, done.stderr[-2000:])
    done = run(python, "-m", "firstdiff", "compare", golden, made, **alone)
    check("it writes what the golden dump has", done.returncode == 0, done.stdout[-2000:])


if __name__ == "__main__":
    main()

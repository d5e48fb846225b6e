#!/usr/bin/env python3
"""The three steps of a release: the version, CHANGELOG.md, the tag. Rehearsed in a clone of the last commit, or done here.

    python scripts/release/steps.py              # rehearses the next patch version: is all at hand that a tag needs?
    python scripts/release/steps.py 0.2.0        # rehearses this one
    python scripts/release/steps.py 0.2.0 --do   # commits and tags it in this tree, where nothing is uncommitted; nothing is pushed

The version is written wherever it stands (Cargo.toml, both Cargo.lock, the Python package); what CHANGELOG.md has under "Not yet released" becomes the version's. Then what
the tag promises is looked at: Cargo and Python have the version, and every crate that is published can be packed (`cargo publish --workspace --dry-run`; --no-crates
leaves this out: it asks crates.io). Exit code 1 where something is missing. Needs git and cargo.
"""

import argparse
import datetime
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import ROOT

OPEN = "## Not yet released\n"
PACKAGE = "crates/trace/python/firstdiff/__init__.py"


def run(tree, *command):
    done = subprocess.run(command, cwd=tree, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr.strip()}")
    return done.stdout


def replaced(file, pattern, new, least=1):
    """Writes a file with every match replaced; an error where there are fewer than are due."""
    text, count = re.subn(pattern, new, file.read_text(), flags=re.M)
    if count < least:
        sys.exit(f"{file}: {count} places for {pattern!r}, where {least} were due")
    file.write_text(text)


def version_of(tree):
    return re.search(r'^version = "(.*)"$', (tree / "Cargo.toml").read_text(), re.M)[1]


def write_version(tree, old, new):
    crates = len(list((tree / "crates").glob("*/Cargo.toml")))
    replaced(tree / "Cargo.toml", rf'^version = "{re.escape(old)}"$', f'version = "{new}"')
    replaced(tree / "Cargo.toml", rf'(^firstdiff.* path = "crates/.*", version = "){re.escape(old)}"', rf'\g<1>{new}"', crates)
    replaced(tree / PACKAGE, rf'^__version__ = "{re.escape(old)}"$', f'__version__ = "{new}"')
    run(tree, "cargo", "update", "--workspace", "--offline")
    # An example outside of the workspace has a Cargo.lock of its own.
    replaced(tree / "examples/candle/Cargo.lock", rf'(^name = "firstdiff-trace"\nversion = "){re.escape(old)}"', rf'\g<1>{new}"')


def write_changes(tree, new):
    """What is not yet released is this version's; the next begins with nothing."""
    file = tree / "CHANGELOG.md"
    text = file.read_text()
    changes = text.split(OPEN, 1)[1].split("\n## ", 1)[0].strip() if OPEN in text else ""
    if not changes:
        sys.exit(f"{file}: nothing stands under {OPEN.strip()!r}")
    file.write_text(text.replace(OPEN, f"{OPEN}\n## {new}, {datetime.date.today()}\n", 1))


def check(tree, new, crates):
    """What the tag promises."""
    told = json.loads(run(tree, "cargo", "metadata", "--locked", "--offline", "--no-deps", "--format-version", "1"))["packages"]
    others = [f"{one['name']} {one['version']}" for one in told if one["publish"] != [] and one["version"] != new]
    python = re.search(r'^__version__ = "(.*)"$', (tree / PACKAGE).read_text(), re.M)[1]
    if others or python != new:
        sys.exit(f"not at {new}: {', '.join(others) or f'{PACKAGE} ({python})'}")
    if run(tree, "git", "tag", "--points-at", "HEAD").split() != [f"v{new}"] or run(tree, "git", "status", "--porcelain"):
        sys.exit("the tag is not of all that is there")
    if crates:
        run(tree, "cargo", "publish", "--workspace", "--dry-run", "--no-verify", "--locked", "--target-dir", str(ROOT / "target"))
    print(f"v{new}: {sum(one['publish'] != [] for one in told)} crates and the Python package have this version" + (", and every crate can be packed" if crates else ""))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("version", nargs="?")
    p.add_argument("--do", action="store_true")
    p.add_argument("--no-crates", action="store_true")
    a = p.parse_args()
    old = version_of(ROOT)
    new = a.version or re.sub(r"\d+$", lambda patch: str(int(patch[0]) + 1), old)
    if not re.fullmatch(r"\d+\.\d+\.\d+(-[\w.]+)?", new) or (a.do and not a.version):
        p.error("a version is X.Y.Z; with --do it is named")
    if a.do and run(ROOT, "git", "status", "--porcelain"):
        sys.exit("something is not committed")
    with tempfile.TemporaryDirectory() as work:
        tree = ROOT
        if not a.do:
            tree = Path(work) / "clone"
            run(ROOT, "git", "clone", "--quiet", "--shared", str(ROOT), str(tree))
            run(tree, "git", "config", "user.name", "rehearsal")
            run(tree, "git", "config", "user.email", "rehearsal@localhost")
        if run(tree, "git", "tag", "--list", f"v{new}"):
            sys.exit(f"v{new} is there already")
        if new != old:
            write_version(tree, old, new)
        write_changes(tree, new)
        run(tree, "git", "commit", "--quiet", "--all", "--message", f"Version {new}")
        run(tree, "git", "tag", "--annotate", f"v{new}", "--message", f"firstdiff {new}")
        check(tree, new, not a.no_crates)
    print(f"pushed by: git push origin main v{new}" if a.do else "rehearsed in a clone; nothing was written here")


if __name__ == "__main__":
    main()

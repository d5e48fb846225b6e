#!/usr/bin/env python3
"""Tests that the worked examples of docs/guide/engines run as written.

    python scripts/suites/test_docs.py [PAGE ..] [--firstdiff BINARY] [--candle TARGET_DIR | --without-candle]

Each page runs in a copy of this repository of its own, in a temporary folder. A fenced block is held to the comment above it:

    <!-- run -->           its commands run, and end with exit code 0
    <!-- run: exit 1 -->   its one command ends with this exit code
    <!-- run: exit 1, says rope-theta -->   and prints this
    <!-- run: candle -->   needs examples/candle built; left out, and said, where that cannot be
    <!-- file NAME -->     is written to NAME, for blocks that follow
    <!-- from PATH -->     stands in PATH of the repository as it is shown; lines of ... leave out what is between

A block without a comment is not looked at; a page without a block that runs is a failure. `firstdiff` is --firstdiff (default
target/release/firstdiff), `python` the one that runs this. Requirements: requirements.txt, a C and a C++ compiler, cargo. Exit 1 on a failure.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import ROOT
from scripts.suites.test_pairs import build_candle

PAGES = ROOT / "docs/guide/engines"
BLOCK = re.compile(r"^<!-- (run|file|from):? ?(.*?) ?-->\n+```(\w*)\n(.*?)^```$", re.M | re.S)
SECONDS = 600


class Block(NamedTuple):
    what: str      # run, file or from
    argument: str
    language: str
    text: str
    line: int


def blocks(page):
    text = page.read_text()
    found = [Block(*match.groups(), text[: match.start()].count("\n") + 1) for match in BLOCK.finditer(text)]
    if len(found) != len(re.findall(r"^<!-- (?:run|file|from)\b", text, re.M)):
        raise ValueError("a comment that no block follows")
    if not any(block.what == "run" for block in found):
        raise ValueError("no block that runs")
    return found


class Clone:
    """A copy of the repository, and an environment in which its commands are `firstdiff` and `python`."""

    def __init__(self, folder, binary, candle):
        left_out = shutil.ignore_patterns("target", ".git", "__pycache__")
        self.root = Path(shutil.copytree(ROOT, folder / "firstdiff", ignore=left_out))
        self.candle = candle
        commands = folder / "bin"
        commands.mkdir()
        for name, program in (("firstdiff", binary), ("python", sys.executable)):
            (commands / name).write_text(f"#!/bin/sh\nexec '{program}' \"$@\"\n")
            (commands / name).chmod(0o755)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FIRSTDIFF_", "ENGINE_"))}
        kept.setdefault("CARGO_TARGET_DIR", str(ROOT / "target"))
        # As after `pip install .`: the package is found.
        package = os.pathsep.join([str(self.root / "crates/trace/python"), *filter(None, [kept.get("PYTHONPATH")])])
        self.environment = kept | {"PATH": f"{commands}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1", "PYTHONPATH": package}

    def run(self, block):
        """What is wrong with a block that is to run; nothing if it is right."""
        due, environment = 0, self.environment
        argument, _, said = block.argument.partition(", says ")
        if argument.startswith("exit "):
            due = int(argument[5:])
            if len(block.text.replace("\\\n", "").strip().splitlines()) != 1:
                return "more than one command, so that nobody knows whose exit code it is"
        elif argument == "candle":
            environment = environment | {"CARGO_TARGET_DIR": str(self.candle)}
        elif argument:
            return f"'{argument}' is not known"
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", block.text], cwd=self.root, env=environment, capture_output=True,
                              text=True, timeout=SECONDS)
        shown = f"\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
        if done.returncode != due:
            return f"exit {done.returncode} where {due} is due{shown}"
        # Lines are broken between words where they are too long.
        in_one_line = " ".join(done.stdout.split())
        return "" if " ".join(said.split()) in in_one_line else f"does not say '{said}'{shown}"

    def write(self, block):
        path = (self.root / block.argument).resolve()
        if self.root not in path.parents:
            return f"{block.argument} is outside the folder"
        path.write_text(block.text)
        return ""

    def quoted(self, block):
        """Every part of the block, between lines of dots, in the order of the file."""
        source, at = textwrap.dedent((self.root / block.argument).read_text()), 0
        for part in re.split(r"^\s*(?://|#)? ?\.\.\.\s*$", block.text, flags=re.M):
            lines = [re.escape(line.strip()) for line in part.strip("\n").splitlines()]
            match = re.compile(r"^[ \t]*" + r"[ \t]*\n[ \t]*".join(lines) + r"[ \t]*$", re.M).search(source, at)
            if not match:
                return f"does not stand in {block.argument}: {part.strip().splitlines()[0]}"
            at = match.end()
        return ""


def test(page, binary, candle):
    """The number of blocks that are wrong."""
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        clone = Clone(Path(temporary), binary, candle)
        try:
            found = blocks(page)
        except ValueError as error:
            print(f"  FAIL {page.name}: {error}")
            return 1
        for block in found:
            where = f"{page.name}:{block.line} {block.what} {block.argument}".rstrip()
            if block.argument == "candle" and not candle:
                print(f"  NOT CHECKED {where}")
                continue
            wrong = {"run": clone.run, "file": clone.write, "from": clone.quoted}[block.what](block)
            print(f"  {'FAIL' if wrong else 'ok  '} {where}{': ' * bool(wrong)}{wrong}", flush=True)
            failed += bool(wrong)
    return failed


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("pages", nargs="*", type=Path, help="default: all of docs/guide/engines")
    p.add_argument("--firstdiff", type=Path, default=ROOT / "target/release/firstdiff", metavar="BINARY")
    p.add_argument("--candle", type=Path, default=Path(os.environ.get("FIRSTDIFF_CANDLE_TARGET") or ROOT / "target/candle"), metavar="TARGET_DIR")
    p.add_argument("--without-candle", action="store_true", help="leave out what needs examples/candle")
    a = p.parse_args()
    candle = None if a.without_candle or not build_candle(a.candle.resolve()) else a.candle.resolve()
    failed = sum(test(page, a.firstdiff.resolve(), candle) for page in a.pages or sorted(PAGES.glob("*.md")))
    print(f"{failed} failed" if failed else "all good")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

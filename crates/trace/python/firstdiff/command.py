"""Finds the firstdiff command and runs it: beside this Python, where pip put it, or at FIRSTDIFF_COMMAND."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

NAME = "firstdiff.exe" if os.name == "nt" else "firstdiff"
PARITY, DIVERGED, REFUSED = 0, 1, 2  # exit codes


class CompareError(RuntimeError):
    """Why nothing could be compared: the command's own line. `result`: what it reported nonetheless (verdict `incomparable`), or None."""

    def __init__(self, text, result=None):
        super().__init__(text)
        self.result = result


def find():
    """The path of the command.

    FIRSTDIFF_COMMAND counts before all else. Then come the folders into which pip puts commands: of this Python, of its scheme, of the user's, and beside
    the package (`pip install --target`, `--prefix`). PATH is the last.
    """
    if named := os.environ.get("FIRSTDIFF_COMMAND"):
        if found := shutil.which(named):
            return found
        raise CompareError(f"FIRSTDIFF_COMMAND={named}: no program is there")
    package = Path(__file__).resolve().parent
    user = sysconfig.get_preferred_scheme("user")
    scripts = Path(sysconfig.get_path("scripts"))
    folders = [*(Path(python).parent for python in [sys.executable] if python), scripts, sysconfig.get_path("scripts", user), package.parent / scripts.name,
               *(prefix / scripts.name for prefix in package.parents[3:4])]
    for folder in folders:
        if found := shutil.which(NAME, path=str(folder)):
            return found
    if found := shutil.which(NAME):
        return found
    raise CompareError("the command firstdiff was not found: beside this Python, or on PATH. Get it with `pip install firstdiff`, or in its repository "
                       "`cargo install --path crates/cli`, or name it in FIRSTDIFF_COMMAND")


def run(*arguments):
    """Runs the command: its exit code, screen and the line of its error, or "". Without colours."""
    environment = {key: value for key, value in os.environ.items() if key not in ("CLICOLOR_FORCE", "FORCE_COLOR")} | {"NO_COLOR": "1"}
    done = subprocess.run([find(), *map(os.fspath, arguments)], stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace", env=environment)
    error = re.search(r"^(?:firstdiff: )?error: (.*)$", done.stderr, re.MULTILINE)
    error = error[1] if error else done.stderr.strip()
    if done.returncode not in (PARITY, DIVERGED, REFUSED):
        raise CompareError(f"firstdiff ended with exit code {done.returncode}: {error or 'it said nothing'}")
    return done.returncode, done.stdout, error

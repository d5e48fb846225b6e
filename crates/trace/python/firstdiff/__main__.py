"""`python -m firstdiff ..`: the command, wherever pip put it."""

import os
import subprocess
import sys

from .command import REFUSED, CompareError, find


def main():
    try:
        command = find()
    except CompareError as error:
        print(f"firstdiff: error: {error}", file=sys.stderr)
        sys.exit(REFUSED)
    if os.name == "nt":  # there a program cannot take another's place
        sys.exit(subprocess.call([command, *sys.argv[1:]]))
    os.execv(command, [command, *sys.argv[1:]])


main()

"""What both dumpers do alike: the folder of a dump in the making, ids and counts of the command line, one line where they refuse."""

import argparse
import fnmatch
import json
import os
import shutil
import sys
from pathlib import Path


class Refused(Exception):
    """What the user is told in one line, exit 2."""


def say(message):
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr, flush=True)


class Folder:
    """A temporary folder beside the final one, renamed when everything is in it (format 1 of firstdiff's docs/reference/format.md)."""

    def __init__(self, out, patterns, force):
        self.out = Path(out)
        self.patterns = patterns
        if self.out.exists() and not self.out.is_dir():
            raise Refused(f"{self.out}: exists and is not a folder")
        if self.out.is_dir() and any(self.out.iterdir()):
            if not force:
                raise Refused(f"{self.out}: exists and is not empty; choose another, or --force to replace a dump")
            if not (self.out / "dump.json").is_file():
                raise Refused(f"{self.out}: holds no dump.json, so --force does not replace it")
        self.folder = self.out.with_name(f".{self.out.name}.{os.getpid()}.partial")

    def __enter__(self):
        self.folder.mkdir(parents=True)
        # What is left of a run that was killed says so.
        self.tell('{"format": 1, "complete": false}\n')
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)

    def tell(self, text):
        """Writes dump.json, whole at every moment."""
        temporary = self.folder / "dump.json.tmp"
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, self.folder / "dump.json")

    def wants(self, tap):
        return not self.patterns or any(fnmatch.fnmatchcase(tap, pattern) for pattern in self.patterns)

    def tell_whole(self, note, entries):
        """Writes dump.json of a dump in which nothing is missing."""
        lines = ",\n    ".join(json.dumps(entry) for entry in entries)
        head = json.dumps({"format": 1, "complete": True, **note}, indent=2)
        self.tell(f'{head[:-2]},\n  "taps": [\n    {lines}\n  ]\n}}\n')

    def place(self):
        """Everything is in the temporary folder: it becomes the dump."""
        aside = self.out.with_name(f".{self.out.name}.{os.getpid()}.old")
        if self.out.is_dir() and any(self.out.iterdir()):
            os.rename(self.out, aside)
        os.rename(self.folder, self.out)
        shutil.rmtree(aside, ignore_errors=True)


def ids(text):
    try:
        values = [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of token ids such as 1,403,407") from None
    if not values:
        raise argparse.ArgumentTypeError("no token ids")
    return values


def count(text):
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a count")
    return int(text)


def exit_code(dump, packages):
    """Runs a dumper: 0, or 2 and one line."""
    try:
        dump()
    except ModuleNotFoundError as error:
        return fail(f"needs the Python package {error.name}: pip install {packages}")
    except (Refused, OSError) as error:
        return fail(error)
    except KeyboardInterrupt:
        return fail("interrupted; nothing was written")
    return 0


def fail(message):
    say(f"error: {message}")
    return 2

#!/usr/bin/env python3
"""command_archive.py: the command of a wheel, as the archive that `cargo binstall firstdiff` and people without Python download.

    python scripts/release/command_archive.py WHEEL --target TRIPLE -o DIR

The binary is the wheel's own, so what was tested is what is published. The names are those of `[package.metadata.binstall]` in crates/cli/Cargo.toml.
Writes DIR/firstdiff-TRIPLE.tgz and prints its SHA-256. Requirements: none
"""

import argparse
import hashlib
import io
import os
import re
import sys
import tarfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import ROOT

BESIDE = ("README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("wheel", type=Path)
    p.add_argument("--target", required=True)
    p.add_argument("-o", "--output", type=Path, required=True)
    a = p.parse_args()
    with zipfile.ZipFile(a.wheel) as wheel:
        members = [name for name in wheel.namelist() if re.search(r"\.data/scripts/firstdiff(?:\.exe)?$", name)]
        if len(members) != 1:
            sys.exit(f"{a.wheel}: holds {len(members)} commands, where one was due")
        files = {members[0].rsplit("/", 1)[-1]: wheel.read(members[0])}
    files |= {name: (ROOT / name).read_bytes() for name in BESIDE}
    a.output.mkdir(parents=True, exist_ok=True)
    folder = f"firstdiff-{a.target}"
    path, temporary = a.output / f"{folder}.tgz", a.output / f"{folder}.tgz.tmp"
    with tarfile.open(temporary, "w:gz") as archive:
        for name, data in files.items():
            about = tarfile.TarInfo(f"{folder}/{name}")
            about.size, about.mode = len(data), 0o644 if name in BESIDE else 0o755
            archive.addfile(about, io.BytesIO(data))
    os.replace(temporary, path)
    print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}")


if __name__ == "__main__":
    main()

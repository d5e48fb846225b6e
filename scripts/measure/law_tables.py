#!/usr/bin/env python3
"""Counts how often `firstdiff explain` describes a wrong operation, for the tables of docs/measured/laws.md, from runs of test_laws.py.

    python scripts/measure/law_tables.py --command BIN [--doc docs/measured/laws.md] [--check] [--keep DIR]

Each row is a run of test_laws.py; what it printed is kept in DIR, and a row whose run is there is not run again. What stands between the marks in the document is
written anew; with --check it is only printed. About forty minutes on two cores. Needs what test_laws.py needs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import ROOT, SCRIPTS

BEGIN, END = "<!-- written by scripts/measure/law_tables.py: begin -->", "<!-- end -->"

ALL = "llama,qwen2,qwen3,moe"
DENSE = "llama,qwen2,qwen3"
SINGLE = [*((name, "f32", ALL) for name in ("fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth")),
          ("fourth", "bf16,f16", ALL), ("fifth", "bf16,f16", ALL), ("fifteenth", "bf16,f16", ALL), ("sixteenth", "bf16,f16", ALL),
          ("fourth", "q8_0,q4_0", DENSE), ("fifteenth", "q8_0,q4_0", DENSE), ("sixteenth", "q8_0,q4_0", DENSE),
          ("listed", "f32", DENSE), ("listed", "bf16,f16", DENSE), ("listed", "q8_0,q4_0", DENSE)]
# Where the first run had another.
SEED = "20261125"
SEEDS = {"seventh": "20261127", "eighth": "20261128", "ninth": "20261129", "tenth": "20261130", "eleventh": "20261201", "twelfth": "20261202", "thirteenth": "20261203", "fourteenth": "20261204", "fifteenth": "20261205", "sixteenth": "20261206"}


def kept(folder, name, command, *arguments):
    """The results of a run of test_laws.py."""
    path = folder / f"{name}.json"
    if not path.exists():
        made = path.with_suffix(".part")
        done = subprocess.run([sys.executable, SCRIPTS / "suites/test_laws.py", "--command", command, "--json", made, *arguments], capture_output=True, text=True)
        (folder / f"{name}.txt").write_text(done.stdout + done.stderr)
        if not made.exists():
            sys.exit(f"test_laws.py {' '.join(arguments)}: {done.stderr.strip()[-500:]}")
        made.rename(path)
    return json.loads(path.read_text())


def seconds(results):
    taken = sorted(r["seconds"] for r in results)
    return f"{taken[len(taken) // 2]:.1f} | {taken[-1]:.1f}"


def percent(part, whole):
    return f"{100 * part / max(whole, 1):.0f} %"


def single(folder, command):
    lines = ["One mistake in an engine, every tap recorded. `listed`: mistakes of the catalogue. f32, bf16 and f16 are of llama, qwen2, qwen3 and a mixture of experts; q8_0 and q4_0, "
             "and `listed`, of llama, qwen2 and qwen3.", "",
             "| set | arithmetic | mistakes | named | law in other words | table | catalogue's cause | unknown | no answer | false | median s | worst s |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for name, arith, arch in SINGLE:
        results = kept(folder, f"{name}-{arith}", command, "--set", name, "--arith", arith, "--arch", arch, "--seed", SEEDS.get(name, SEED))
        of = Counter(r["class"] for r in results)
        right = of["named"] + of["same"]
        lines.append(f"| {name} | {arith.replace(',', ', ')} | {len(results)} | {right} ({percent(right, len(results))}) | {of['law']} "
                     f"| {of['table']} | {of['cause']} | {of['unknown']} | {of['extra'] + of['first'] + of['failed']} | {sum(r['false'] for r in results)} | {seconds(results)} |")
    return lines


def together(folder, command):
    lines = ["Two and three mistakes in an engine: one of the catalogue, the others of the five sets; f32, every tap recorded.", "",
             "| at once | engines | all named | engines whose mistakes are each named alone | all named | of none | false | median s | worst s |", "|---|---|---|---|---|---|---|---|---|"]
    results = kept(folder, "together", command, "--together", "2,3", "--count", "60", "--set", "first,second,third,fourth,fifth", "--arch", DENSE, "--seed", SEED)
    named = lambda kinds: all(kind in ("named", "same") for kind in kinds.values())
    for size in (2, 3):
        own = [r for r in results if len(r["class"]) == size]
        known = [r for r in own if named(r["alone"])]
        count = lambda of: sum(named(r["class"]) for r in of)
        lines.append(f"| {size} | {len(own)} | {count(own)} ({percent(count(own), len(own))}) | {len(known)} | {count(known)} ({percent(count(known), len(known))}) "
                     f"| {sum(bool(r['extra'] or r['error']) for r in own)} | {sum(r['false'] for r in own)} | {seconds(own)} |")
    return lines


def clean(folder, command):
    lines = ["Right engines, each with weights and tokens of its own.", "", "| arithmetic | architectures | runs | with a finding |", "|---|---|---|---|"]
    for arith, arch, count in (("f32,bf16,f16", ALL, 288), ("q8_0,q4_0", DENSE, 120)):
        results = kept(folder, f"clean-{arith}", command, "--clean", str(count), "--arith", arith, "--arch", arch, "--seed", "5000")
        lines.append(f"| {arith.replace(',', ', ')} | {arch.replace(',', ', ')} | {len(results)} | {sum(bool(r['said']) or r['verdict'] != 'parity' for r in results)} |")
    return lines


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--command", default=str(ROOT / "target" / "release" / "firstdiff"))
    p.add_argument("--doc", type=Path, default=ROOT / "docs/measured/laws.md")
    p.add_argument("--check", action="store_true", help="print the tables, and write nothing")
    p.add_argument("--keep", type=Path, help="a folder in which the runs stay")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = a.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        tables = [single(folder, a.command), together(folder, a.command), clean(folder, a.command)]
    text = "\n\n".join("\n".join(lines) for lines in tables)
    if a.check:
        print(text)
        return
    whole = a.doc.read_text()
    if whole.count(BEGIN) != 1 or whole.count(END) != 1:
        sys.exit(f"{a.doc}: the marks of the tables are not there once each")
    before, after = whole.split(BEGIN)[0], whole.split(END)[1]
    made = a.doc.with_suffix(".part")
    made.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
    made.replace(a.doc)


if __name__ == "__main__":
    main()

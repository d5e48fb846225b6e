#!/usr/bin/env python3
"""Tests that nothing is blamed in right runs of every family, in every arithmetic, through `firstdiff explain`.

    python scripts/suites/test_right.py [--json FILE] [--docs] [--command PATH] [--only FAMILY ..] [--kinds F16 ..]

PyTorch (f32, bf16, f16; eager attention) and llama.cpp (F32, F16, BF16, Q8_0, Q4_K_M; and with an f16 cache) run random models of the five families,
13 tokens and 2 decode steps. Each run is explained as recorded (all taps), then cut to h0, layer outputs, final norm and logits, to the logits, and
to the last prefilled token's logits. Nothing may be found: exit code 1 for anything but parity without a finding. --docs writes docs/measured/right.md.
Requirements: requirements.txt
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import ROOT, SCRIPTS
from scripts.suites.test_quantised import DECODE, TOKENS, quantise, write_model

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "minimind")
TORCH = ("f32", "bf16", "f16")
# The type of the weights, the cache's.
LLAMA_CPP = (("F32", "f32"), ("F16", "f32"), ("F16", "f16"), ("BF16", "f32"), ("Q8_0", "f32"), ("Q8_0", "f16"), ("Q4_K_M", "f32"), ("Q4_K_M", "f16"))
KEPT = {"all taps": lambda tap: True, "streams": lambda tap: tap in ("h0", "final_norm", "logits") or tap.endswith(".h"),
        "logits": lambda tap: tap == "logits", "last logits": lambda tap: tap == "logits"}


def script(name, *arguments):
    done = subprocess.run([sys.executable, SCRIPTS / name, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name} {arguments}: {done.stderr[-600:]}")


def cut(dump, target, kept):
    """The dump with some of its taps; of the last token alone, where that is what is kept."""
    import numpy as np

    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    meta = json.loads((dump / "dump.json").read_text())
    meta["taps"] = [tap for tap in meta["taps"] if KEPT[kept](tap["tap"]) and (kept != "last logits" or tap.get("step", 0) == 0)]
    for tap in meta["taps"]:
        if kept == "last logits":
            values = np.load(dump / tap["file"])[-1:]
            np.save(target / tap["file"], values)
            tap |= {"shape": list(values.shape), "rows": [len(TOKENS) - 1]}
        else:
            os.link(dump / tap["file"], target / tap["file"])
    (target / "dump.json").write_text(json.dumps(meta))


def judged(command, model, dump):
    done = subprocess.run([command, "explain", model, dump, "--json", "-", "--seconds", "10"], capture_output=True, text=True)
    if done.returncode == 2:
        return f"incomparable ({done.stderr.strip()})"
    report = json.loads(done.stdout)
    found = [finding["cause"] or finding["tap"] for finding in report["findings"]]
    return report["verdict"] if not found else f"{report['verdict']}: {', '.join(found)}"


def runs(folder, family, kinds=None):
    """(engine, arithmetic, model, dump) of one family, one at a time; of some types alone."""
    tokens = ["--tokens", ",".join(map(str, TOKENS)), "--decode-tokens", ",".join(map(str, DECODE))]
    source, dump = folder / family, folder / "dump"
    write_model(source, family)
    wanted = lambda kind: not kinds or kind in kinds
    for dtype in filter(wanted, TORCH):
        shutil.rmtree(dump, ignore_errors=True)
        script("dump_torch.py", source, "-o", dump, "--no-program", *tokens, "--dtype", dtype)
        yield "PyTorch", dtype, source, dump
    plain = folder / f"{family}.gguf"
    script("convert/hf_to_gguf.py", source, plain, "--dtype", "f32")
    for kind, cache in [one for one in LLAMA_CPP if wanted(one[0])]:
        model = folder / f"{family}-{kind}.gguf"
        if not model.exists():
            shutil.copyfile(plain, model) if kind == "F32" else quantise(str(plain), str(model), kind)
        shutil.rmtree(dump, ignore_errors=True)
        script("dump_llama_cpp.py", model, "-o", dump, "--no-program", *tokens, "--cache", cache)
        yield "llama.cpp", kind if cache == "f32" else f"{kind}, f16 cache", model, dump


def of_family(command, kinds, folder, family):
    """What is said of every run of one family, however it is cut."""
    folder.mkdir()
    rows = []
    for engine, arithmetic, model, dump in runs(folder, family, kinds):
        for kept in KEPT:
            cut(dump, folder / "cut", kept)
            said = judged(command, model, folder / "cut")
            rows.append({"family": family, "engine": engine, "arithmetic": arithmetic, "kept": kept, "said": said})
            if said != "parity":
                print(f"{family} {engine} {arithmetic}, {kept}: {said}", flush=True)
    print(f"{family}: {len(rows)} runs", flush=True)
    return rows


ABOUT = ("Is anything blamed where nothing is wrong? PyTorch (eager attention) and llama.cpp run random models of the five families: 13 tokens and 2 decode steps. "
         "`explain` judges each run four times: with all taps; with h0, layer outputs, final norm and logits; with the logits; with the last prefilled token's logits.")


def page(rows):
    """The table of docs/measured/right.md."""
    order = []
    for row in rows:
        if (row["engine"], row["arithmetic"]) not in order:
            order.append((row["engine"], row["arithmetic"]))
    text = ["# Right implementations", "", ABOUT, "",
            "A cell counts the answers that are parity without a finding. Written by `python scripts/suites/test_right.py --docs`.", "",
            "| engine | arithmetic | " + " | ".join(FAMILIES) + " |", "|---|---|" + "---|" * len(FAMILIES)]
    for engine, arithmetic in order:
        cells = []
        for family in FAMILIES:
            of = [row for row in rows if (row["engine"], row["arithmetic"], row["family"]) == (engine, arithmetic, family)]
            cells.append(f"{sum(row['said'] == 'parity' for row in of)} of {len(of)}")
        text.append(f"| {engine} | {arithmetic} | " + " | ".join(cells) + " |")
    return "\n".join(text) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--json", type=Path)
    p.add_argument("--docs", action="store_true")
    p.add_argument("--only", nargs="+", choices=FAMILIES, default=FAMILIES, metavar="FAMILY")
    p.add_argument("--kinds", nargs="+", metavar="TYPE", help="f32, bf16 and f16 of PyTorch, F32, F16, BF16, Q8_0 and Q4_K_M of llama.cpp")
    p.add_argument("--command", default=str(ROOT / "target" / "release" / "firstdiff"))
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as temporary, ProcessPoolExecutor(os.cpu_count()) as pool:
        folders = [Path(temporary) / family for family in a.only]
        rows = sum(pool.map(of_family, [a.command] * len(folders), [a.kinds] * len(folders), folders, a.only), [])
    right = sum(row["said"] == "parity" for row in rows)
    print(f"{right} of {len(rows)} right runs at parity without a finding")
    if a.json:
        a.json.write_text(json.dumps(rows, indent=1) + "\n")
    if a.docs:
        (ROOT / "docs/measured/right.md").write_text(page(rows))
    sys.exit(0 if right == len(rows) else 1)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["torch==2.9.1", "transformers==4.57.1", "numpy>=1.26"]
# ///
"""Tests that the C and the Python recorder write dumps that firstdiff accepts as right, and measures their cost.

    python scripts/suites/test_recorders.py [--firstdiff BINARY] [--without-torch] [--keep DIR]

Compiles the C and the C++ engine of crates/trace/c/example without a warning, runs them on this repository's fixture models, and asks:
parity with PyTorch's golden dump and in a replay, every tap compared; exactly the files that FIRSTDIFF_TAPS and FIRSTDIFF_STEPS name, and
of each the positions that FIRSTDIFF_ROWS names; a planted mistake found at its tap; failures told in one line; no file when off. Then the
same of the Python package, on transformers' models. Last, what the C and the Rust recorder cost: instructions a call when off, MB/s when on.
Exit 1 on a failure.
"""

import argparse
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import FIXTURES, ROOT
from scripts.engines.engine_numpy import read_safetensors, widen

MODELS, GOLDEN, TRACE = FIXTURES / "models", FIXTURES / "golden", ROOT / "crates/trace"
TOKENS, DECODED = [1, 17, 42, 99, 3, 150, 77, 17, 128, 64, 5], [23, 108, 61]
WARNINGS = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-Wshadow", "-Wconversion"]
FAILED = []

HEADER_USE = """
#define FIRSTDIFF_IMPLEMENTATION
#include "firstdiff.h"
#include <signal.h>
static void copy(void *host, const void *device, size_t bytes) { memcpy(host, device, bytes); }
int main(int argc, char **argv) {
    float x[6] = {1, 2, 3, 4, 5, 6};
    double y[2] = {0.5, 0.25};
    uint16_t half[2] = {0x3c00, 0x4000}, brain[2] = {0x3f80, 0x4000};
    int64_t ids[2] = {7, 8};
    int bad = argc > 1 ? atoi(argv[1]) : 0;
    firstdiff_copy = copy;
    firstdiff_note("producer", "a \\"quoted\\"\\n\\\\ name");
    firstdiff_tokens(ids, 2);
    firstdiff_f32(x, 2, 3, 0, "h0");
    firstdiff_f64(y, 2, 1, 0, "layers.%d.h", 0);
    firstdiff_f16(half, 2, 1, 0, "layers.%d.%s", 1, "h");
    firstdiff_bf16(brain, 2, 1, 0, "final_norm");
    if (bad == 1) firstdiff_f32(x, 2, 3, 0, "h1"), firstdiff_f32(x, 2, 3, 0, "layers.01.q");
    if (bad == 1) firstdiff_f32(x, 2, 3, 0, "Qcur-%d (view)", 0), firstdiff_f32(x, 2, 3, 0, "../up");
    if (bad == 6) firstdiff_f32(x, 2, 3, 0, "%0300d", 1);
    if (bad == 9) raise(9);
    if (bad == 10) return 0;
    if (bad == 11) abort();
    if (bad == 2) firstdiff_f32(x, 2, 3, 0, "h0");
    if (bad == 3) firstdiff_f32(x, 1LL << 40, 1LL << 40, 9, "logits");
    if (bad == 4) firstdiff_f32(x, 2, -3, 0, "logits");
    if (bad == 5) firstdiff_note("qk_rows", "mixed");
    return firstdiff_finish();
}
"""

THREADS = """
#include <pthread.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
#define FIRSTDIFF_LOCK() pthread_mutex_lock(&lock)
#define FIRSTDIFF_UNLOCK() pthread_mutex_unlock(&lock)
#define FIRSTDIFF_IMPLEMENTATION
#include "firstdiff.h"
static void *work(void *first) {
    float x[4] = {1, 2, 3, 4};
    int n;
    for (n = *(int *)first; n < 400; n += 4) firstdiff_f32(x, 4, 0, 0, "layers.%d.h", n);
    return NULL;
}
int main(void) {
    pthread_t threads[4];
    int first[4], t;
    if (!firstdiff_is_on()) return 3;
    for (t = 0; t < 4; t++) first[t] = t, pthread_create(&threads[t], NULL, work, &first[t]);
    for (t = 0; t < 4; t++) pthread_join(threads[t], NULL);
    return 0;
}
"""

# A prompt of five tokens in chunks of two, the positions of each told, or not.
CHUNKS = """
#define FIRSTDIFF_IMPLEMENTATION
#include "firstdiff.h"
int main(int argc, char **argv) {
    static const float x[6] = {1, 2, 3, 4, 5, 6};
    const int32_t ids[5] = {7, 8, 9, 10, 11};
    int told = argc > 1 && atoi(argv[1]), at;
    (void)argv;
    for (at = 0; at < 5; at += 2) {
        int count = at < 4 ? 2 : 1;
        if (!at) firstdiff_tokens(ids, 2);
        else if (told) firstdiff_next_chunk(ids + at, count);
        else firstdiff_next_step(ids[at]);
        firstdiff_f32(x, count, 3, 0, "h0");
        firstdiff_f32(x, count, 3, 0, "layers.0.h");
    }
    firstdiff_next_step(12);
    firstdiff_f32(x, 1, 3, 0, "h0");
    return firstdiff_finish();
}
"""

# One call a turn to the recorder, of 1 MiB each when on.
COST = """
#define FIRSTDIFF_IMPLEMENTATION
#include "firstdiff.h"
int main(int argc, char **argv) {
    static float x[1 << 18];
    long n, turns = argc > 1 ? atol(argv[1]) : 0;
    for (n = 0; n < turns; n++) {
#ifdef CALL
        firstdiff_f32(x, 1 << 9, 1 << 9, 0, "layers.%ld.h", n);
#endif
        __asm__ volatile("" : : "r"(x) : "memory");
    }
    return firstdiff_finish();
}
"""


def check(good, what):
    print(f"  {'ok  ' if good else 'FAIL'} {what}", flush=True)
    if not good:
        FAILED.append(what)


def run(command, status=0, **environment):
    """Runs a command in an environment without FIRSTDIFF_* but these; its output. Another exit status is a failure."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FIRSTDIFF_", "ENGINE_"))}
    done = subprocess.run([str(c) for c in command], env=kept | environment, capture_output=True, text=True)
    if status is not None and done.returncode != status:
        check(False, f"exit {done.returncode} where {status} was due: {' '.join(map(str, command))}\n{done.stdout[-600:]}{done.stderr[-600:]}")
    return done.stdout + done.stderr


def files(folder):
    return {f.name for f in Path(folder).iterdir()} if Path(folder).exists() else set()


def is_complete(folder):
    return json.loads((Path(folder) / "dump.json").read_text()).get("complete")


SCORES = ("qk", "scores", "probs")


def check_rows(what, whole, cut, rows):
    """Whether the dump `cut` holds exactly the positions `rows` of every tap of the dump `whole`, and says so. None: the last."""
    entries = {(t["tap"], t["step"]): t for t in json.loads((cut / "dump.json").read_text())["taps"]}
    wrong, parts, absent = [], 0, 0
    for tap in json.loads((whole / "dump.json").read_text())["taps"]:
        entry, axis = entries.pop((tap["tap"], tap["step"]), None), int(tap["tap"].endswith(SCORES))
        positions = tap["shape"][axis]
        due = [row for row in ([positions - 1] if rows is None else rows) if row < positions]
        if not due or entry is None:
            absent += 1
            wrong += [tap["tap"]] if due or entry else []
            continue
        left, right = (np.load(folder / f) for folder, f in ((whole, tap["file"]), (cut, entry["file"])))
        parts += len(due) < positions
        if entry.get("rows") != (due if len(due) < positions else None) or not np.array_equal(left.take(due, axis), right):
            wrong.append(tap["tap"])
    check(not wrong and not entries and parts, f"{what}: {parts} taps cut to the rows asked for, {absent} without any{wrong or ''}")


class Judge:
    """The firstdiff command."""

    def __init__(self, binary):
        self.binary = binary

    def report(self, *arguments, status=0):
        text = run([self.binary, *arguments, "--json", "-"], status)
        return json.JSONDecoder().raw_decode(text)[0]  # behind it stands what was said on stderr

    def parity(self, what, reference, candidate, *options, unchecked=0):
        report = self.report("compare", reference, candidate, *options)
        left = [t["tap"] for t in report["taps"] if t["status"] == "unchecked"]
        check(report["verdict"] == "parity" and len(left) == unchecked,
              f"{what}: {report['verdict']}, {len(report['taps'])} taps, {len(left)} unchecked")

    def replay(self, what, model, candidate):
        report = self.report("replay", model, candidate)
        check(report["verdict"] == "parity", f"{what}: replay, {report['verdict']}, {len(report['taps'])} taps")

    def fault(self, what, reference, candidate, tap):
        report = self.report("compare", reference, candidate, status=1)
        found = (report["first_divergence"] or {}).get("tap")
        step = (report["first_divergence"] or {}).get("step")
        check(found == tap, f"{what}: first divergence {found}" + (f", step {step}" if step else ""))


# ---- C and C++ ----


def flat_model(folder, out):
    """A Hugging Face folder as the flat file of the example engines: 15 doubles, then f32 matrices."""
    c = json.loads((folder / "config.json").read_text())
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= read_safetensors(file)
    heads, scaling = c["num_attention_heads"], c.get("rope_scaling") or {}
    biased, tied = "model.layers.0.self_attn.q_proj.bias" in tensors, "lm_head.weight" not in tensors
    rope = [scaling.get(k, 1) for k in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")]
    sizes = [c["hidden_size"], c["intermediate_size"], c["num_hidden_layers"], heads, c["num_key_value_heads"],
             c.get("head_dim") or c["hidden_size"] // heads, c["vocab_size"]]
    layer = ["input_layernorm.weight", *(f"self_attn.{p}_proj.weight" for p in "qkv"),
             *(f"self_attn.{p}_proj.bias" for p in "qkv" if biased), "self_attn.o_proj.weight", "post_attention_layernorm.weight",
             *(f"mlp.{p}_proj.weight" for p in ("gate", "up", "down"))]
    names = ["model.embed_tokens.weight", *(f"model.layers.{n}.{w}" for n in range(sizes[2]) for w in layer), "model.norm.weight"]
    with open(out, "wb") as file:
        file.write(struct.pack("15d", *sizes, biased, tied, c["rms_norm_eps"], c["rope_theta"], *rope))
        for name in names if tied else [*names, "lm_head.weight"]:
            file.write(widen(tensors[name][0], tensors[name][2]).tobytes())
    return out


def build(work, source, output, *options, language="c"):
    compiler, standard = ("cc", "c99") if language == "c" else ("c++", "c++17")
    run([compiler, "-O2", f"-std={standard}", *WARNINGS, *options, "-x", language, "-I", TRACE / "c", source, "-o", work / output, "-lm"])
    return work / output


def ids(tokens):
    return ",".join(map(str, tokens))


def test_header(work):
    print("firstdiff.h")
    source = work / "use.c"
    source.write_text(HEADER_USE)
    for language in ("c", "c++"):
        program, out = build(work, source, f"use-{language}", language=language), work / f"use-{language}.dump"
        run([program], FIRSTDIFF_DIR=str(out))
        meta = json.loads((out / "dump.json").read_text())
        check(meta["producer"] == 'a "quoted"\n\\ name' and meta["tokens"] == [7, 8],
              f"{language}: warning-free; dump.json is JSON, escapes included")
        read = [np.load(out / f"{n}.npy") for n in ("h0", "layers.0.h", "layers.1.h")]
        check([(a.dtype.str, a.ravel().tolist()[:2]) for a in read] == [("<f4", [1, 2]), ("<f8", [0.5, 0.25]), ("<f2", [1, 2])],
              f"{language}: NumPy reads f32, f64 and f16")
        check(np.load(out / "final_norm.npy").tobytes() == b"\x80\x3f\x00\x40" and meta["taps"][3]["dtype"] == "bf16", f"{language}: bf16")
    out = work / "use-c.dump"
    told = {"already holds a dump": dict(FIRSTDIFF_DIR=str(out)), "no list of steps": dict(FIRSTDIFF_STEPS="3-", FIRSTDIFF_DIR=str(work / "f0")),
            "nothing recorded matches": dict(FIRSTDIFF_TAPS="layers.7.*", FIRSTDIFF_DIR=str(work / "f1")),
            "neither last nor a list": dict(FIRSTDIFF_ROWS="0-3", FIRSTDIFF_DIR=str(work / "f2")),
            "nothing is recorded": dict(FIRSTDIFF_DIR=str(source / "below")), "": dict(FIRSTDIFF_DIR="")}
    for says, environment in told.items():
        lines = run([program], 1 if says else 0, **environment).splitlines()
        check(len(lines) == bool(says) and all(says in line for line in lines), f"one line: {lines}")
    # Issue 15: a name that the recorder does not know is recorded, and compare asks for a map.
    out = work / "bad1"
    lines = run([program, 1], FIRSTDIFF_DIR=str(out)).splitlines()
    check(not lines and {"h1.npy", "layers.01.q.npy", "Qcur-0%20%28view%29.npy", "%2E.%2Fup.npy"} <= files(out) and is_complete(out),
          f"names that are no taps are recorded as they are, in files of the folder: {sorted(files(out))}")
    names = [t["tap"] for t in json.loads((out / "dump.json").read_text())["taps"]]
    check(names[4:] == ["h1", "layers.01.q", "Qcur-0 (view)", "../up"], f"and dump.json has the names themselves: {names[4:]}")
    mistakes = ["h0: recorded before", "logits: no shape", "logits: no shape", "none that dump.json knows", "longer than 200 bytes"]
    for bad, says in enumerate(mistakes, 2):
        out = work / f"bad{bad}"
        lines = run([program, bad], 1, FIRSTDIFF_DIR=str(out)).splitlines()
        check(says in lines[0] and len(lines) <= 2 and len(files(out)) == 5, f"told, and the rest recorded: {lines[0]}")
        check(is_complete(out) == (bad == 5), f"a tap is missing, so that it is not complete: {bad != 5}")
    for how, due in (("9", (False, None)), ("10", (False, True)), ("11", (False, None))):
        for language in ("c", "c++"):
            out = work / f"torn-{language}-{how}"
            run([work / f"use-{language}", how], None, FIRSTDIFF_DIR=str(out))
            meta = json.loads((out / "dump.json").read_text())
            check((meta["complete"], meta.get("ended_by_itself")) == due and meta["tokens"] == [7, 8] and (out / "h0.npy").exists(),
                  f"{language}: {({'9': 'killed', '10': 'exit without finish', '11': 'abort'})[how]}: not complete")
    source = work / "chunks.c"
    source.write_text(CHUNKS)
    for language in ("c", "c++"):
        chunked = build(work, source, f"chunks-{language}", language=language)
        told, untold, last = (work / f"chunks-{language}-{n}" for n in ("told", "untold", "last"))
        lines = run([chunked, 1], FIRSTDIFF_DIR=str(told))
        meta = json.loads((told / "dump.json").read_text())
        check(meta["tokens"] + meta["decode_tokens"] == [7, 8, 9, 10, 11, 12] and not lines, f"{language}: a prompt in chunks, all its ids {lines}")
        lines = run([chunked, 0], FIRSTDIFF_DIR=str(untold)).splitlines()
        check(len(lines) == 1 and "h0: 2 rows in step 1" in lines[0] and files(untold) == files(told), f"more rows than tokens, told once: {lines}")
        run([chunked, 1], FIRSTDIFF_DIR=str(last), FIRSTDIFF_ROWS="last")
        check_rows("FIRSTDIFF_ROWS=last of chunks", told, last, None)
    source = work / "threads.c"
    source.write_text(THREADS)
    out = work / "threads.dump"
    run([build(work, source, "threads", "-pthread")], FIRSTDIFF_DIR=str(out))
    listed = len(json.loads((out / "dump.json").read_text())["taps"])
    check(listed == 400 and len(files(out)) == 401, "four threads under a lock, 400 taps; dump.json by itself at exit")
    out = work / "full"
    lines = run(["sh", "-c", f"trap '' XFSZ; ulimit -f 0; exec '{program}'"], 1, FIRSTDIFF_DIR=str(out)).splitlines()
    check(len(lines) == 2 and "dump.json: File too large" in lines[0] and not files(out), f"a disk that takes nothing: {lines}, no file")


def test_engine(work, judge, language):
    """The C engine runs the prompt in one pass, the C++ one token by token: its reference is that too."""
    print({"c": "a C engine", "c++": "a C++ engine"}[language])
    source = TRACE / "c/example" / {"c": "engine.c", "c++": "engine.cpp"}[language]
    engine = build(work, source, f"engine-{language}", language=language)
    for name in ("llama", "qwen2"):
        model, out = flat_model(MODELS / name, work / f"{name}.flat"), work / f"{name}-{language}"
        if language == "c":
            command = [engine, model, ids(TOKENS), ids(DECODED)]
            reference = GOLDEN / ("llama-torch" if name == "llama" else "qwen2-torch.npz")
            mistakes = {"pairs": "layers.0.q_rope", "cache": "layers.0.qk"}
        else:
            command = [engine, model, ids(TOKENS)]
            reference = work / f"{name}-one-by-one"
            run([sys.executable, ROOT / "scripts/engines/engine_numpy.py", MODELS / name, "-o", reference, "--tokens", TOKENS[0],
                 "--decode-tokens", ids(TOKENS[1:])])
            mistakes = {"scale": "layers.0.scores", "position": "layers.0.q_rope"}
        run(command, FIRSTDIFF_DIR=str(out))
        judge.parity(f"{name} {language}", reference, out)
        judge.replay(f"{name} {language}", MODELS / name, out)
        for mistake, tap in mistakes.items():
            wrong = work / f"{name}-{language}-{mistake}"
            run(command, FIRSTDIFF_DIR=str(wrong), ENGINE_MISTAKE=mistake)
            judge.fault(f"{name} {language}, mistake {mistake}", reference, wrong, tap)
    few = work / f"few-{language}"
    run(command, FIRSTDIFF_DIR=str(few), FIRSTDIFF_TAPS="layers.*.h, logits", FIRSTDIFF_STEPS="0,2-3")
    wanted = {f"{tap}{step}.npy" for tap in ("layers.0.h", "layers.1.h", "logits") for step in ("", ".step2", ".step3")}
    check(files(few) == wanted | {"dump.json"}, f"FIRSTDIFF_TAPS and FIRSTDIFF_STEPS: {len(wanted)} files, none more")
    report = judge.report("compare", reference, few)
    check(report["verdict"] == "parity", f"few taps: {report['verdict']}")
    whole = work / f"whole-{language}"
    run(command, FIRSTDIFF_DIR=str(whole))
    for rows in ("last", "0, 3,7", "7"):
        cut = work / f"rows-{language}-{rows}"
        run(command, None, FIRSTDIFF_DIR=str(cut), FIRSTDIFF_ROWS=rows)
        if language == "c":
            check_rows(f"FIRSTDIFF_ROWS={rows}", whole, cut, None if rows == "last" else [int(row) for row in rows.split(",")])
    if language == "c":
        report = judge.report("compare", reference, work / "rows-c-last")
        check(report["verdict"] == "parity", f"the last rows: {report['verdict']}")
    before = files(work)
    run(command)
    check(files(work) == before, "off: no file")


# ---- Python ----

PLAIN = """
import firstdiff, sys
import numpy as np
sys.path.insert(0, {root!r})
from scripts.engines.engine_numpy import Engine
engine = Engine({model!r})
firstdiff.note(producer="engine_numpy", precision="f32", qk_rows="half")
firstdiff.tokens({tokens})
for (tap, step), x in engine.run({tokens}, {decoded}).items():
    if step != (firstdiff._recording.step if firstdiff._recording else step):
        firstdiff.next_step({decoded}[step - 1])
    firstdiff.record(tap, x)
assert "torch" not in sys.modules
firstdiff.finish()
"""

TORCH = """
import firstdiff, sys, torch, transformers
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
model = transformers.AutoModelForCausalLM.from_pretrained({model!r}, dtype=torch.{dtype}, attn_implementation={attn!r}).eval()
if {mistake}:
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(1.5)
cache = transformers.DynamicCache()
with torch.no_grad(), firstdiff.record(model, {out!r}, modules={modules!r}, program=False):
    for feed in [{tokens}, *([t] for t in {decoded})]:
        model(input_ids=torch.tensor([feed]), past_key_values=cache, use_cache=True)
assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
"""


def python(text, status=0, **environment):
    return run([sys.executable, "-c", text], status, PYTHONPATH=str(TRACE / "python"), HF_HUB_OFFLINE="1", **environment)


def test_python(work, judge):
    print("Python, record(name, array)")
    out = work / "python"
    script = PLAIN.format(root=str(ROOT), model=str(MODELS / "llama"), tokens=TOKENS, decoded=DECODED)
    python(script, FIRSTDIFF_DIR=str(out))
    judge.parity("llama, NumPy", GOLDEN / "llama-torch", out)
    few = work / "python-few"
    python(script, FIRSTDIFF_DIR=str(few), FIRSTDIFF_TAPS="*.h_attn,h0", FIRSTDIFF_STEPS="1")
    check(files(few) == {"dump.json", "h0.step1.npy", "layers.0.h_attn.step1.npy", "layers.1.h_attn.step1.npy"},
          "FIRSTDIFF_TAPS and FIRSTDIFF_STEPS: 3 files, none more")
    for rows in ("last", "0, 3,7", "7"):
        cut = work / f"python-rows-{rows}"
        python(script, FIRSTDIFF_DIR=str(cut), FIRSTDIFF_ROWS=rows)
        check_rows(f"FIRSTDIFF_ROWS={rows}", out, cut, None if rows == "last" else [int(row) for row in rows.split(",")])
    chunks = work / "python-chunks"
    python("import firstdiff, numpy as np\nfirstdiff.tokens([7, 8])\nfirstdiff.record('layers.0.q', np.ones((2, 5, 3)))\n"
           "firstdiff.next_chunk([9, 4])\nfirstdiff.record('layers.0.q', np.ones((2, 5, 3)))", FIRSTDIFF_DIR=str(chunks), FIRSTDIFF_ROWS="last")
    meta = json.loads((chunks / "dump.json").read_text())
    check(meta["decode_tokens"] == [9, 4] and [t["shape"] for t in meta["taps"]] == [[1, 5, 3]] * 2, "next_chunk: a prompt in chunks, cut to rows")
    told = python("import firstdiff, numpy as np\nfirstdiff.tokens([7, 8])\nfor n in '12':\n    firstdiff.next_step(9)\n"
                  "    firstdiff.record('layers.0.h', np.ones((2, 3)))\nfirstdiff.finish()", FIRSTDIFF_DIR=str(work / "python-untold")).splitlines()
    check(len(told) == 1 and "2 rows in step 1" in told[0], f"more rows than tokens, told once: {told}")
    untold = work / "python-rows-untold"
    python("import firstdiff, numpy as np\nfirstdiff.record('layers.0.q', np.ones((4, 5, 2)))\nfirstdiff.record('h0', np.ones((5, 8)))",
           FIRSTDIFF_DIR=str(untold), FIRSTDIFF_ROWS="last")
    shapes = [t["shape"] for t in json.loads((untold / "dump.json").read_text())["taps"]]
    check(shapes == [[4, 5, 2], [1, 8]], f"FIRSTDIFF_ROWS without a prompt: of three axes nobody knows which is the positions', {shapes}")
    told = python(script, 1, FIRSTDIFF_DIR=str(work / "python-rows-bad"), FIRSTDIFF_ROWS="0-3").splitlines()[-1]
    check("neither last nor a list" in told, told)
    before = files(work)
    python(script)
    check(files(work) == before, "off: no file")
    refused = {"name of a file": "firstdiff.record('q' * 201, np.ones((1, 2)))",
               "recorded before": "[firstdiff.record('h0', np.ones((1, 2))) for _ in '12']",
               "elements of type int64": "firstdiff.record('h0', np.ones((1, 2), int))",
               "no shape": "firstdiff.record('h0', np.float32(1))",
               "none that dump.json": "firstdiff.note(precision='q4')"}
    for says, line in refused.items():
        told = python(f"import firstdiff, numpy as np\n{line}", 1, FIRSTDIFF_DIR=str(work / f"python-{says[:8]}")).splitlines()
        check(any(says in line for line in told), told[-1])
    # Issue 15: a name that the recorder does not know is recorded, and compare asks for a map.
    own = work / "python-own"
    python("import firstdiff, numpy as np\nfor name in ('q', 'Qcur-0 (view)', '../up', 'x.step3'):\n    firstdiff.record(name, np.ones((1, 2)))\n"
           "firstdiff.finish()", FIRSTDIFF_DIR=str(own))
    check(files(own) == {"dump.json", "q.npy", "Qcur-0%20%28view%29.npy", "%2E.%2Fup.npy", "x%2Estep3.npy"} and is_complete(own),
          f"names that are no taps are recorded as they are: {sorted(files(own))}")
    report = judge.report("compare", GOLDEN / "llama-torch", own, status=2)
    check(report["unmapped"] == ["../up", "Qcur-0 (view)", "q", "x.step3"], f"and compare lists them: {report['unmapped']}")
    test_again(work, judge)
    test_torn(work, judge, script)


AGAIN = """
import firstdiff, os, numpy as np
for folder in {folders}:
    os.environ["FIRSTDIFF_DIR"] = folder
    firstdiff.tokens([[1, 2], [3]])
    firstdiff.record("layers.0.h", np.arange(24.0).reshape(2, 2, 6))
    firstdiff.next_step([4, 5])
    firstdiff.record("layers.0.h", np.arange(12.0).reshape(2, 1, 6))
    firstdiff.finish()
    firstdiff.finish()
"""


def test_again(work, judge):
    """A process that records more than once, as a notebook does, and a batch."""
    folders = [str(work / f"python-again-{n}") for n in range(2)]
    python(AGAIN.format(folders=folders))
    metas = [json.loads((Path(folder) / "dump.json").read_text()) for folder in folders]
    due = {"tokens": [[1, 2], [3]], "decode_tokens": [[4], [5]], "complete": True}
    check(all({key: meta[key] for key in due} == due and len(meta["taps"]) == 2 for meta in metas), f"two recordings of a batch in one process: {metas}")
    report = judge.report("compare", *folders, "--sequence", 0)
    check(report["verdict"] == "parity", f"they are at parity: {report['verdict']}")
    told = python(AGAIN.format(folders=[str(work / "python-again-2")] * 2), 1).splitlines()[-1]
    check("already holds a dump" in told, f"a second recording into one folder: {told}")
    for says, lines in {"a list for each sequence": "firstdiff.tokens([1, [2]])",
                        "the prompt of 2": "firstdiff.tokens([[1], [2]])\nfirstdiff.next_step(3)",
                        "the prompt of 1": "firstdiff.tokens([1])\nfirstdiff.next_step([3, 4])"}.items():
        told = python(f"import firstdiff\n{lines}", 1, FIRSTDIFF_DIR=str(work / "python-ids")).splitlines()
        check(any(says in line for line in told), told[-1])
    flat = work / "python-flat"
    python("import firstdiff, numpy as np\nfirstdiff.tokens(np.array([[1, 2]]))\nfirstdiff.next_chunk(np.array([[3]]))\nfirstdiff.record('h0', np.ones((1, 2)))",
           FIRSTDIFF_DIR=str(flat))
    meta = json.loads((flat / "dump.json").read_text())
    check((meta["tokens"], meta["decode_tokens"]) == ([1, 2], [3]), "a batch of one is one sequence")


TORN = """
import firstdiff, os, sys, numpy as np
real = firstdiff.Recording.put
def put(self, *arguments):
    if len(self.entries) == 10:
        {how}
    real(self, *arguments)
firstdiff.Recording.put = put
"""


def test_torn(work, judge, script):
    """A recording that ends after ten taps, however that comes about, is not at parity."""
    ends = {"killed": ("os.kill(os.getpid(), 9)", -9), "an exception": ("raise RuntimeError('as asked')", 1), "sys.exit": ("sys.exit(0)", 0),
            "os._exit": ("os._exit(0)", 0)}
    for n, (what, (how, status)) in enumerate(ends.items()):
        out = work / f"python-torn-{n}"
        python(TORN.format(how=how) + script, status, FIRSTDIFF_DIR=str(out))
        check(len(files(out)) == 11 and is_complete(out) is False, f"{what}: ten taps, and not complete")
        report = judge.report("compare", GOLDEN / "llama-torch", out, status=2)
        check(report["verdict"] == "incomparable" and "10 of" in report["reason"], f"{what}: {report['verdict']}, {report['reason']}")
        report = judge.report("compare", GOLDEN / "llama-torch", out, "--partial")
        check(report["verdict"] == "parity", f"{what}, --partial: {report['verdict']} of what is there")
    out = work / "python-caught"
    python("import firstdiff, numpy as np\nfirstdiff.record('h0', np.ones((1, 2)))\ntry:\n    firstdiff.record('h0', np.ones((1, 2)))\n"
           "except ValueError:\n    pass\nfirstdiff.finish()", 1, FIRSTDIFF_DIR=str(out))
    check(is_complete(out) is False, "a tap that could not be recorded, and the engine runs on: not complete")
    for script, name in (("dump_torch.py", "torch"),):
        left = subprocess.Popen([sys.executable, ROOT / "scripts" / script, MODELS / "llama", "-o", work / f"left-{name}", "--tokens", ids(TOKENS)],
                                stderr=subprocess.DEVNULL)
        folder = work / f".left-{name}.{left.pid}.partial"
        while left.poll() is None and not (folder / "dump.json").exists():
            time.sleep(0.001)
        left.kill()
        left.wait()
        check(not folder.exists() or is_complete(folder) is False, f"{script}, killed: what it leaves is not complete")


def test_torch(work, judge):
    print("Python, with record(model, folder)")
    for name, dtype in (("llama", "f32"), ("llama", "bf16"), ("qwen2", "f32"), ("qwen3", "f32"), ("mistral", "f32")):
        out, reference = work / f"torch-{name}-{dtype}", work / f"dump_torch-{name}-{dtype}"
        long = {"f32": "float32", "bf16": "bfloat16"}[dtype]
        fill = dict(model=str(MODELS / name), dtype=long, attn="eager", tokens=TOKENS, decoded=DECODED, modules="", mistake=False)
        python(TORCH.format(out=str(out), **fill))
        run([sys.executable, ROOT / "scripts/dump_torch.py", MODELS / name, "-o", reference, "--no-program", "--dtype", dtype, "--tokens", ids(TOKENS),
             "--decode-tokens", ids(DECODED)])
        report = judge.report("compare", reference, out)
        exact = sum(t["status"] == "exact" for t in report["taps"])
        check(report["verdict"] == "parity" and exact == len(report["taps"]),
              f"{name} {dtype}: {exact} of {len(report['taps'])} taps as dump_torch.py's, to the bit")
        ours, due = ({(t["tap"], t["step"]): t["shape"] for t in json.loads((d / "dump.json").read_text())["taps"]} for d in (out, reference))
        check(ours == due, f"{name} {dtype}: in its shapes{[key for key in due if ours.get(key) != due[key]] or ''}")
        judge.replay(f"{name} {dtype}", MODELS / name, out)
    judge.parity("llama f32", GOLDEN / "llama-torch", work / "torch-llama-f32")
    out = work / "torch-sdpa"
    python(TORCH.format(out=str(out), **fill | dict(model=str(MODELS / "llama"), attn="sdpa")))
    judge.parity("llama f32, fused attention", GOLDEN / "llama-torch", out, unchecked=24)
    fill |= dict(model=str(MODELS / "llama"))
    out = work / "torch-generate"
    text = TORCH[:TORCH.index("    for feed")] + "    model.generate(torch.tensor([{tokens}]), max_new_tokens=4, do_sample=False)\n"
    python(text.format(out=str(out), **fill))
    reference = work / "dump_torch-greedy"
    run([sys.executable, ROOT / "scripts/dump_torch.py", MODELS / "llama", "-o", reference, "--no-program", "--tokens", ids(TOKENS), "--decode", 3])
    noted, due = (json.loads((folder / "dump.json").read_text())["decode_tokens"] for folder in (out, reference))
    check(noted == due, f"model.generate: the decoded tokens are noted, {noted}")
    judge.parity("llama f32, model.generate", reference, out)
    out = work / "torch-env"
    environment = dict(FIRSTDIFF_DIR=str(out), FIRSTDIFF_TAPS="logits,*.q,*rotary_emb", FIRSTDIFF_STEPS="0,3")
    python(TORCH.replace("{out!r}", "None").format(**fill | {"modules": "model.rotary_emb"}), **environment)
    wanted = {f"{t}{s}.npy" for t in ("logits", "layers.0.q", "layers.1.q", "model.rotary_emb") for s in ("", ".step3")}
    check(files(out) == wanted | {"dump.json"}, f"FIRSTDIFF_DIR, TAPS, STEPS and another module: {len(wanted)} files, none more")
    out = work / "torch-chunks"
    chunked = TORCH.replace("[{tokens}, *(", "[{tokens}[:4], {tokens}[4:], *(").format(out=str(out), **fill)
    python(chunked)
    judge.parity("llama f32, a prompt in chunks", GOLDEN / "llama-torch", out)
    out = work / "torch-wrong"
    python(TORCH.format(out=str(out), **fill | {"mistake": True}))
    judge.fault("up_proj of layer 1 times 1.5", GOLDEN / "llama-torch", out, "layers.1.ffn_up")
    cut = work / "torch-rows"
    python(TORCH.replace("{out!r}", "None").format(**fill), FIRSTDIFF_DIR=str(cut), FIRSTDIFF_ROWS="2,10")
    check_rows("FIRSTDIFF_ROWS=2,10", work / "torch-llama-f32", cut, [2, 10])
    before = files(work)
    python(TORCH.replace("{out!r}", "None").format(**fill))
    check(files(work) == before, "off: no file")
    unknown = "import firstdiff, torch\nm = torch.nn.Sequential(torch.nn.Linear(2, 2))\nwith firstdiff.record(m, {out!r}{more}, program=False):\n    m(torch.ones(1, 2))"
    told = python(unknown.format(out=str(work / "torch-unknown"), more=", modules='x*'"), 1).splitlines()[-1]
    check("names no module" in told and not (work / "torch-unknown").exists(), told)
    # Issue 15: a name that the recorder does not know is recorded, and compare asks for a map.
    told = python(unknown.format(out=str(work / "torch-own"), more="")).splitlines()
    check(len(told) == 1 and "no layer of this model" in told[0] and {"0.npy"} <= files(work / "torch-own") and is_complete(work / "torch-own"),
          f"modules of other names are recorded under these: {told}")
    raised = unknown.replace("    m(torch.ones(1, 2))", "    m(torch.ones(1, 2))\n    raise RuntimeError('as asked')")
    python(raised.format(out=str(work / "torch-raised"), more=""), 1)
    check(is_complete(work / "torch-raised") is False, "an exception in the `with`: not complete")
    python(unknown.replace("{out!r}", "None").format(more=""), FIRSTDIFF_DIR=str(work / "torch-left"))
    check(is_complete(work / "torch-left"), "FIRSTDIFF_DIR, and a `with` that ends well: complete")
    python(unknown.format(out=str(work / "torch-unknown"), more=", modules='0'"))
    check("0.npy" in files(work / "torch-unknown"), "modules of other names, where they are named")
    test_operations(work, judge)
    test_names(work)
    test_returns(work, judge)
    test_stacks(work, judge)


STACKS = """
import copy, firstdiff, torch, transformers
torch.manual_seed(0)
config = transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=3, num_decoder_layers=3, num_heads=4, dropout_rate=0.0)
model = transformers.T5ForConditionalGeneration(config).eval()
with torch.no_grad():
    for p in model.parameters():
        p.copy_(torch.randn_like(p) * (0.3 if p.dim() > 1 else 0.1) + (p.dim() == 1))
model.save_pretrained({model!r})
wrong = copy.deepcopy(model)
for stack in wrong.encoder, wrong.decoder:
    for block in stack.block[1:]:
        block.layer[-1].DenseReluDense.act = torch.nn.GELU()
for run, folder in (model, {golden!r}), (wrong, {wrong!r}):
    with firstdiff.record(run, folder):
        run(input_ids=torch.tensor([[3, 9, 17, 4, 22, 8, 1]]), decoder_input_ids=torch.tensor([[0, 5, 6, 7, 11]]))
"""


def test_stacks(work, judge):
    folders = {name: str(work / f"torch-stacks-{name}") for name in ("model", "golden", "wrong")}
    python(STACKS.format(**folders))
    report = judge.report("explain", folders["golden"], folders["wrong"], "--weights", folders["model"], "--seconds", 5, status=1)
    places = [finding["place"] for finding in report["findings"]]
    check(places == ["encoder layers 1-2, ffn_act; decoder layers 1-2, ffn_act"], f"a mistake in two stacks: {places}")
    report = judge.report("replay", folders["golden"], folders["wrong"], "--weights", folders["model"], status=1)
    places = sorted(wrong["place"] for wrong in report["findings"])
    check(places == ["decoder.layers.1-2.ffn_act", "encoder.layers.1-2.ffn_act"], f"and in a replay: {places}")


# Adapters beside matrices, and a model in a sequence with a pooling and projections of its own.
NAMES = """
import firstdiff, torch, transformers
class Adapted(torch.nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.lora_A = base, torch.nn.Linear(base.in_features, 4, bias=False)
        self.lora_B = torch.nn.Linear(4, base.out_features, bias=False)
    def forward(self, x):
        return self.base(x) + self.lora_B(self.lora_A(x)) * 2.0
class Encoder(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.auto_model = model
    def forward(self, ids):
        return self.auto_model(ids).last_hidden_state
class Pooling(torch.nn.Module):
    def forward(self, x):
        return (x * torch.ones(x.shape[:2])[..., None]).sum(1) / x.shape[1]
torch.manual_seed(0)
model = transformers.AutoModelForCausalLM.from_pretrained({model!r}, attn_implementation="eager").eval()
ids = torch.tensor([[1, 17, 42, 99, 3]])
width = model.config.hidden_size
parts = Encoder(model.model), Pooling(), torch.nn.Linear(width, 48), torch.nn.Linear(48, 24)
chain = torch.nn.Sequential(*parts)
with firstdiff.record(chain, {sequence!r}):
    chain(ids)
class Named(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.pooling, self.dense, self.more = parts
    def forward(self, ids):
        return self.more(self.dense(self.pooling(self.encoder(ids))))
named = Named()
with firstdiff.record(named, {named!r}):
    named(ids)
for layer in model.model.layers:
    for part, names in (layer.self_attn, ("q_proj", "v_proj", "o_proj")), (layer.mlp, ("gate_proj", "up_proj", "down_proj")):
        for name in names:
            setattr(part, name, Adapted(getattr(part, name)))
with firstdiff.record(model, {adapted!r}):
    model(ids)
torch.manual_seed(0)
fused = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=16, attn_implementation="eager")).eval()
with firstdiff.record(fused, {fused!r}):
    fused(torch.tensor([[1, 2, 3, 4]]))
"""


def test_names(work):
    folders = {name: work / f"torch-{name}" for name in ("sequence", "named", "adapted", "fused")}
    python(NAMES.format(model=str(MODELS / "llama"), **{name: str(folder) for name, folder in folders.items()}))
    graphs = {name: {node["tap"]: node["reads"] for node in json.loads((folder / "dump.json").read_text())["graph"]} for name, folder in folders.items()}
    for name, first in (("sequence", "2"), ("named", "dense")):
        graph = graphs[name]
        check(graph["final_norm"] == ["layers.1.h"] and f"/{first}" in graph and {"h0", "layers.0.q", "layers.1.ffn_act"} <= set(graph),
              f"{name}: the norm behind the layers is final_norm, and no projection of a head: {[tap for tap in graph if 'layers' not in tap]}")
    graph = graphs["adapted"]
    for tap, base in {"q": "self_attn.q_proj", "v": "self_attn.v_proj", "attn_out": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_out": "mlp.down_proj"}.items():
        check(graph[f"layers.0.{tap}"] == [f"layers.0.{base}/base", f"layers.0.{base}/lora_B"], f"adapters: {tap} is the sum, {graph[f'layers.0.{tap}']}")
    check(not any(tap.endswith(("_a", "_b")) for tap in graph), "adapters: nothing is a latent projection")
    check(graph["layers.0.mlp.down_proj/lora_A"] == ["layers.0.ffn_act"], "adapters: ffn_act is what the matrix reads")
    graph = graphs["fused"]
    made = {tap: graph[f"layers.0.{tap}"] for tap in "qkv"}
    check(all(reads == ["layers.0.attn_norm"] for reads in made.values()), f"one product: queries, keys and values are not made of each other: {made}")
    check(graph["layers.0.qk"] == ["layers.0.q", "layers.0.k"] and graph["layers.0.context"] == ["layers.0.probs", "layers.0.v"],
          f"one product: what reads a part of it reads that: {graph['layers.0.qk']}, {graph['layers.0.context']}")


# What a model returns, and no module or rule names: each right way, and a wrong one beside it.
RETURNS = """
import contextlib, dataclasses, io, json, sys, tempfile, types
import firstdiff, torch
class Model(torch.nn.Module):
    def __init__(self, last):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.last = torch.nn.Linear(8, 16), torch.nn.Linear(16, 30), last
    def both(self, x):
        return self.down(self.up(x).relu())
    def forward(self, x):
        return self.last(self, x)
@dataclasses.dataclass
class Output:
    y: object
    z: object = None
class Slots:
    __slots__ = ("y",)
    def __init__(self, y):
        self.y = y
def filled(model, x, shift):
    y = model.both(x)
    out = torch.empty_like(y)
    for at in range(12):
        out[:, (at + shift) % 12] = y[:, at]
    return out
marked = torch.arange(12) == 5
CASES = {{
    "scale": (lambda m, x: m.both(x) * 2, lambda m, x: m.both(x) * 3),
    "scale of one": (lambda m, x: m.both(x), lambda m, x: m.both(x) * 3),
    "in place": (lambda m, x: m.both(x), lambda m, x: m.both(x).mul_(2)),
    "ids": (lambda m, x: m.both(x).argmax(-1) + 100000, lambda m, x: m.both(x).argmax(-1) + 100000 + marked),
    "truths": (lambda m, x: m.both(x) > 0, lambda m, x: m.both(x) > 0.1),
    "complex": (lambda m, x: torch.fft.fft(m.both(x)), lambda m, x: torch.fft.fft(m.both(x) * 2)),
    "a number": (lambda m, x: m.both(x).mean(), lambda m, x: m.both(x).mean() * 1.5),
    "dict": (lambda m, x: {{"y": m.both(x) * 2}}, lambda m, x: {{"y": m.both(x) * 3}}),
    "dataclass": (lambda m, x: Output(m.both(x), m.up(x) * 2), lambda m, x: Output(m.both(x), m.up(x) * 3)),
    "object": (lambda m, x: types.SimpleNamespace(y=m.both(x) * 2), lambda m, x: types.SimpleNamespace(y=m.both(x) * 3)),
    "slots": (lambda m, x: Slots(m.both(x) * 2), lambda m, x: Slots(m.both(x) * 3)),
    "second of two": (lambda m, x: (m.both(x) * 2, m.up(x).mean(1)), lambda m, x: (m.both(x) * 2, m.up(x).amax(1))),
    "order of two": (lambda m, x: (m.both(x) * 2, m.both(x) * 3), lambda m, x: (m.both(x) * 3, m.both(x) * 2)),
    "last row": (lambda m, x: m.both(x)[:, -1], lambda m, x: m.both(x)[:, 0]),
    "part": (lambda m, x: m.both(x), lambda m, x: m.both(x)[:, :, :16]),
    "transposed": (lambda m, x: m.up(x)[:, :, :12], lambda m, x: m.up(x)[:, :, :12].transpose(1, 2)),
    "pooled": (lambda m, x: m.both(x).mean(1), lambda m, x: m.both(x).amax(1)),
    "other module": (lambda m, x: (m.both(x), m.up(x))[0], lambda m, x: (m.both(x), m.up(x))[1]),
    "what it was given": (lambda m, x: (m.both(x), x)[1], lambda m, x: (m.both(x), x * 2)[1]),
    "filled": (lambda m, x: filled(m, x, 0), lambda m, x: filled(m, x, 1)),
    "no modules": (lambda m, x: x.relu() * 2, lambda m, x: x.relu() * 3),
}}
torch.manual_seed(1)
given = torch.randn(1, 12, 8)
def by_hooks(model, folder):
    with torch.no_grad(), firstdiff.record(model, folder, program=False):
        model(given)
        model(given)  # a later step
    return folder
def result(reference, candidate, hooks):
    with tempfile.TemporaryDirectory() as work, contextlib.redirect_stderr(io.StringIO()):
        if hooks:
            return firstdiff.compare(by_hooks(Model(reference), work + "/a"), by_hooks(Model(candidate), work + "/b"))
        return firstdiff.compare(Model(reference), Model(candidate), inputs=given, seconds=0)
found = {{}}
for name, (right, wrong) in CASES.items():
    for hooks in (False, True):
        results = [result(*pair, hooks) for pair in ((right, right), (right, wrong), (wrong, right))]
        found[name + " by hooks" * hooks] = [one.passed for one in results]
print(json.dumps(found))
"""

# Recordings in which nothing, or next to nothing, is said of a model.
UNNAMED = """
import firstdiff, torch
class Port(torch.nn.Module):
    def forward(self, x):
        return port(x)
def port(x):
    return x.relu() * 2
model, x = Port(), torch.randn(1, 12, 8)
with firstdiff.record({what}, {out!r}, program={program}):
    {called}(x)
"""


def test_returns(work, judge):
    found = json.loads(python(RETURNS.format(), FIRSTDIFF_COMMAND=str(judge.binary)).splitlines()[-1])
    bad = {name: passed for name, passed in found.items() if passed != [True, False, False]}
    check(found and not bad, f"what a model returns: {len(found)} right ones pass, and no wrong one{bad or ''}")
    for program in (True, False):
        out = work / f"torch-unnamed-{program}"
        said = python(UNNAMED.format(what="model", called="model", out=str(out), program=program))
        taps = [tap["tap"] for tap in json.loads((out / "dump.json").read_text())["taps"]]
        check(taps == ["/return"] and "nothing but what it returns" in said, f"plain functions in a module: {taps}, and a warning")
        said = python(UNNAMED.format(what="model", called="port", out=f"{out}-2", program=program), status=1)
        check("RecordError: no tap of Port was recorded: it was not called" in said, "a model that was not called is refused")
        said = python(UNNAMED.format(what="port", called="port", out=f"{out}-3", program=program), status=1)
        check("RecordError: record() takes the name of a tap, or a PyTorch model" in said, "a function is refused")


# A profiler's mark, and operations that give nothing: what they write in place is their result.
OPERATIONS = """
import firstdiff, torch
from safetensors.torch import save_file
library = torch.library.Library("firstdiff_test", "DEF")
library.define("bump(Tensor(a!) x) -> ()")
library.impl("bump", lambda x: (x.add_(1), None)[1], "CompositeExplicitAutograd")
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    def forward(self, x):
        with torch.profiler.record_function("up"):
            x = torch.relu(self.up(x))
        {written}
        return self.down(x)
torch.manual_seed(0)
model = Model()
save_file(model.state_dict(), {weights!r})
with firstdiff.record(model, {out!r}):
    y = model(torch.randn({batch}, 4, 8))
    {after}
"""


def test_operations(work, judge):
    def recorded(name, written="", after="", batch=1, status=0, judged=0):
        out, weights = work / f"torch-{name}", work / f"torch-{name}.safetensors"
        told = python(OPERATIONS.format(out=str(out), weights=str(weights), written=written, after=after, batch=batch), status).splitlines()
        return told[-1] if status else judge.report("replay", out, out, "--weights", weights, status=judged)

    report = recorded("profiled")
    check(report["verdict"] == "parity" and all(tap["status"] != "unchecked" for tap in report["taps"]), "torch.profiler.record_function is no operation")
    for name, line in {"bumped": "torch.ops.firstdiff_test.bump(x)", "foreach": "torch._foreach_add_([x], 1.0)"}.items():
        # Neither computed nor held against another run's value: no parity.
        report = recorded(name, line, judged=2)
        status = {tap["tap"]: tap["status"] for tap in report["taps"]}
        check(status["/down"] == "unchecked" and "no kernel" in str(report), f"{name}: what is written by an operation that gives nothing is not judged: {status}")
    told = recorded("backward", after="y.sum().backward()", status=1)
    check("inference mode" in told and "outside of the `with`" in told, told)
    told = recorded("batch", batch=2, status=1)
    check("one sequence at a time" in told and "ids[0:1]" in told, told)


# ---- what it costs ----

# Counts the instructions of a program by stepping through it: slow, exact, and there wherever ptrace is.
STEPPER = """
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
    long count = 0;
    int status;
    pid_t child = fork();
    if (child == 0) {
        if (argc < 2 || ptrace(PTRACE_TRACEME, 0, 0, 0) < 0) return 1;
        execv(argv[1], argv + 1);
        return 1;
    }
    waitpid(child, &status, 0);
    for (; WIFSTOPPED(status); count++) {
        if (ptrace(PTRACE_SINGLESTEP, child, 0, 0) < 0) return 1;
        waitpid(child, &status, 0);
    }
    printf("%ld instructions\\n", count);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
"""


def instructions(work, command):
    """Instructions of a whole run, by perf, by valgrind, or step by step; None where none of these can."""
    tools = {"perf": (["perf", "stat", "-x,", "-e", "instructions:u"], r"^(\d+),[^\n]*instructions"),
             "valgrind": (["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"], r"Collected : (\d+)"),
             "cc": ([work / "stepper"], r"^(\d+) instructions")}
    for tool, (prefix, pattern) in tools.items():
        if shutil.which(tool) and (found := re.search(pattern, run([*prefix, *command], None), re.M)):
            return int(found[1])
    return None


def measure(work):
    source = work / "cost.c"
    source.write_text(COST)
    (work / "stepper.c").write_text(STEPPER)
    run(["cc", "-O2", "-o", work / "stepper", work / "stepper.c"], None)
    print("what the C recorder costs")
    cost(work, build(work, source, "cost", "-DCALL"), build(work, source, "cost-none"))
    for features in (["--no-default-features"], []):
        print(f"what the Rust recorder costs{', compiled out' if features else ''}")
        # As an engine builds it: by Cargo's own release profile, not by that of our command.
        run(["cargo", "build", "--release", "--locked", "--quiet", "--manifest-path", ROOT / "Cargo.toml", "-p", "firstdiff-trace",
             "--example", "cost", *features], CARGO_PROFILE_RELEASE_OPT_LEVEL="3", CARGO_PROFILE_RELEASE_LTO="false")
        program = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/examples/cost"
        cost(work, [program, "call"], [program, "none"], 0 if features else 8, on=not features)


def cost(work, with_call, without, most=3, on=True):
    """Two commands that take a number of turns, one with a call to the recorder in each."""
    with_call, without = ([p] if isinstance(p, Path) else p for p in (with_call, without))
    turns = 10_000
    counts = [instructions(work, [*p, n]) for p in (with_call, without) for n in (turns, 2 * turns)]
    if None not in counts:
        off = ((counts[1] - counts[0]) - (counts[3] - counts[2])) / turns
        check(off <= most, f"off: {off:.2f} instructions a call (a loop with it, less the same loop without)")
    seconds = [min(timed([*p, 100_000_000]) for _ in range(3)) for p in (with_call, without)]
    print(f"       off: {(seconds[0] - seconds[1]) * 10:.2f} ns a call, by 1e8 calls")
    if not on:
        return
    speed(with_call, work)
    if Path("/dev/shm").is_dir():
        with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
            speed(with_call, Path(memory))


def speed(program, folder, count=200, rounds=3):
    """MB/s of the recorder, beside those of one plain file of the same size; the best of some rounds."""
    out, block, taps, plain = folder / "cost.dump", bytes(1 << 20), [], []
    for _ in range(rounds):
        shutil.rmtree(out, ignore_errors=True)
        taps.append(timed([*program, count], FIRSTDIFF_DIR=str(out)))
        began = time.perf_counter()
        with open(folder / "plain", "wb", buffering=0) as file:
            for _ in range(count):
                file.write(block)
        plain.append(time.perf_counter() - began)
    size = sum(f.stat().st_size for f in out.iterdir()) / 1e6
    print(f"       on: {size / min(taps):.0f} MB/s into /{folder.parts[1]}, {count} taps of 1 MiB (one plain file: {size / min(plain):.0f} MB/s)")


def timed(command, **environment):
    began = time.perf_counter()
    run(command, **environment)
    return time.perf_counter() - began


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--firstdiff", type=Path, default=ROOT / "target/release/firstdiff", metavar="BINARY")
    p.add_argument("--without-torch", action="store_true", help="leave out what needs torch and transformers")
    p.add_argument("--keep", type=Path, metavar="DIR", help="work in this folder and leave it")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = (a.keep or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        judge = Judge(a.firstdiff.resolve())
        test_header(work)
        test_engine(work, judge, "c")
        test_engine(work, judge, "c++")
        test_python(work, judge)
        if not a.without_torch:
            test_torch(work, judge)
        measure(work)
    print(f"{len(FAILED)} failed" if FAILED else "all good")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())

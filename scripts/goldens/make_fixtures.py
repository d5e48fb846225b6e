#!/usr/bin/env python3
"""Rebuilds every fixture, and checks that each is what it should be.

    make_fixtures.py [--out fixtures]    make all of them: models, golden, right, faulty, and ops by op_goldens.py
    make_fixtures.py --check             make them in a temporary folder and compare with the committed ones; exit 1 on a difference
    --skip-llama-cpp                     on a machine without llama-cpp-python

Both then verify: the NumPy engine agrees with PyTorch at every tap, and each mistake first shows where it says.
Weights, inputs and configs must be the same bytes. Outputs may round otherwise on another CPU: BOUNDS says how far. PyTorch is held
to the arithmetic that every x86-64 has (PORTABLE): with AVX2 for AVX-512 its outputs alone would move by NMSE 1.5e-12.
Requirements: requirements.txt (torch==2.9.1 transformers==4.57.1 numpy==2.4.6 safetensors==0.8.0 gguf==0.19.0 llama-cpp-python==0.3.36)
"""

import os

ENVIRONMENT = dict(os.environ)
# One thread, and no instructions beyond the common ones: a fixed order of summation. Before NumPy is imported.
PORTABLE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
            "ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}
os.environ |= PORTABLE

import argparse
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import FIXTURES, SCRIPTS
from scripts.engines import engine_numpy
from scripts.engines.engine_mistakes import MISTAKES, Chosen
from scripts.goldens import fixture_models
from scripts.goldens.fixture_models import DECODE_TOKENS, MODELS, TOKENS
from scripts.planted import fixture_faults
from scripts.planted.fixture_faults import FAULTS

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "minimind")
IN_LLAMA_CPP = ("llama", "qwen2", "qwen3", "minimind")  # its llama architecture ignores mistral's window

# What the NMSE of an output made again may be, by the start of its path; the first that fits. PyTorch f32 has the bound.
BOUNDS = {
    "golden/*-torch*": 1e-13, "right/*-torch-sdpa*": 1e-13, "golden/*-llama-cpp*": 1e-11, "right/*-numpy*": 1e-11,
    "right/*-f16*": 1e-5, "right/*-bf16*": 1e-3, "faulty/*": 1e-9,
}
# How far right implementations may be from PyTorch f32 at any tap; wide, the tool's own profiles are narrower.
FAITHFUL = {"f32": 1e-11, "f16": 1e-4, "bf16": 1e-2}


# -- dumps ---------------------------------------------------------------------------------------------------------------


def read_members(path):
    """name -> bytes of a dump: a folder, or a .npz."""
    if path.is_dir():
        return {p.name: p.read_bytes() for p in sorted(path.iterdir())}
    with zipfile.ZipFile(path) as z:
        return {n: z.read(n) for n in z.namelist()}


def read_dump(path):
    """(dump.json, {(tap, step): f64 array})"""
    path = Path(path)
    if path.suffix == ".safetensors":
        tensors = engine_numpy.read_safetensors(path)
        raw = path.read_bytes()
        about = json.loads(json.loads(raw[8:8 + int.from_bytes(raw[:8], "little")])["__metadata__"]["dump"])
        load = lambda t: engine_numpy.widen(tensors[t["file"]][0], tensors[t["file"]][2]).reshape(t["shape"])
    else:
        members = read_members(path)
        about = json.loads(members["dump.json"])
        load = lambda t: npy(members[t["file"]], t["dtype"])
    with np.errstate(invalid="ignore"):
        return about, {(t["tap"], t["step"]): load(t).astype(np.float64) for t in about["taps"]}


def npy(data, dtype):
    x = np.load(io.BytesIO(data), allow_pickle=False)
    return engine_numpy.widen("BF16", np.ascontiguousarray(x).tobytes()).reshape(x.shape) if dtype == "bf16" else x


def write_safetensors_dump(out, members):
    about = json.loads(members["dump.json"])
    entries = {}
    for t in about["taps"]:
        x = npy(members[t["file"]], t["dtype"])
        t["file"] = t["file"].removesuffix(".npy")
        entries[t["file"]] = ({"f32": "F32"}[t["dtype"]], x.shape, np.ascontiguousarray(x).tobytes())
    Path(out).write_bytes(fixture_models.safetensors_bytes(entries, {"dump": json.dumps(about)}))


def nmse(c, r):
    """Sum (c-r)^2 / sum r^2 over finite values; infinite where the others are not the same ones."""
    if c.shape != r.shape:
        return np.inf
    finite = np.isfinite(r) & (np.abs(r) < 1e30)
    if not np.array_equal(finite, np.isfinite(c) & (np.abs(c) < 1e30)) or not np.array_equal(np.isnan(c), np.isnan(r)):
        return np.inf
    error, energy = np.sum((c[finite] - r[finite]) ** 2), np.sum(r[finite] ** 2)
    return 0.0 if error == 0 else error / energy if energy else np.inf


def worst(candidate, reference):
    """(NMSE, tap, step) over the taps both have."""
    return max((nmse(candidate[k], reference[k]), *k) for k in reference if k in candidate)


# -- making --------------------------------------------------------------------------------------------------------------


class Maker:
    """Makes every fixture under `out`; dumpers run there, so that no path of this machine gets into a file."""

    def __init__(self, out, llama_cpp):
        self.out, self.llama_cpp = Path(out), llama_cpp
        self.right = []

    def make(self):
        for name in MODELS:
            fixture_models.write_model(name, self.out / "models" / name)
        for part in ("golden", "right", "faulty", "gguf"):
            (self.out / part).mkdir(exist_ok=True)
        for model, dtype in (("llama", "f16"), ("qwen2", "f32"), ("qwen3", "f16")):
            self.script("convert/hf_to_gguf.py", f"models/{model}", f"gguf/{model}-{dtype}.gguf", "--dtype", dtype)
        self.goldens()
        self.rights()
        self.faults()

    def script(self, name, *arguments):
        done = subprocess.run([sys.executable, str(SCRIPTS / name), *map(str, arguments)], cwd=self.out, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{name} {' '.join(map(str, arguments))}: exit {done.returncode}\n{done.stdout}{done.stderr}")

    def dump(self, script, model, out, *options, decode):
        """Run a dumper and store its folder as `out` (by its suffix)."""
        print(f"  {out}", flush=True)
        tokens = ["--tokens", ",".join(map(str, TOKENS))]
        if decode:
            tokens += ["--decode-tokens", ",".join(map(str, DECODE_TOKENS))]
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder) / "dump"
            self.script(script, model, "-o", folder, "--no-program", *tokens, *options)
            members = read_members(folder)
        if str(out).endswith(".safetensors"):
            write_safetensors_dump(self.out / out, members)
        else:
            engine_numpy.write_dump(self.out / out, members)

    def llama(self, model, out, dtype, decode):
        with tempfile.TemporaryDirectory() as folder:
            gguf = Path(folder) / f"{model}-{dtype}.gguf"
            self.script("convert/hf_to_gguf.py", f"models/{model}", gguf, "--dtype", dtype)
            self.dump("dump_llama_cpp.py", gguf, out, "--cache", dtype, decode=decode)

    def goldens(self):
        for model in MODELS:
            suffix = {"llama": "", "qwen3": ".safetensors"}.get(model, ".npz")
            self.dump("dump_torch.py", f"models/{model}", f"golden/{model}-torch{suffix}", "--dtype", "f32", "--attn", "eager",
                      decode=model in FAMILIES)
        for model in IN_LLAMA_CPP if self.llama_cpp else ():
            self.llama(model, f"golden/{model}-llama-cpp.npz", "f32", decode=True)

    def rights(self):
        for model in FAMILIES:  # of three, the first layer and the stream: a dump need not hold every tap
            globs = ["*"] if model in ("llama", "qwen2") else ["h0", "layers.0.*", "layers.*.h", "final_norm", "logits"]
            self.keep(model, "numpy", "f32", lambda out: engine_numpy.write_dump(
                self.out / out, engine_numpy.dump_members(*engine_numpy.run(self.out / "models" / model, TOKENS, globs=globs))))
        for model in ("llama", "mistral", "qwen2"):
            self.keep(model, "torch-sdpa", "f32", lambda out: self.dump(
                "dump_torch.py", f"models/{model}", out, "--dtype", "f32", "--attn", "sdpa", decode=False))
        for model in ("llama", "qwen2"):
            for dtype in ("bf16", "f16"):
                self.keep(model, f"torch-{dtype}", dtype, lambda out: self.dump(
                    "dump_torch.py", f"models/{model}", out, "--dtype", dtype, "--attn", "eager", decode=False))
            self.keep(model, "llama-cpp-f16", "f16", lambda out: self.llama_cpp and self.llama(model, out, "f16", decode=False))
        write_index(self.out / "right" / "index.json", self.right)

    def keep(self, model, kind, profile, make):
        file = f"right/{model}-{kind}.npz"
        make(file)
        self.right.append({"file": file, "reference": golden(model), "model": f"models/{model}", "profile": profile})

    def faults(self):
        index = []
        for fault in FAULTS:
            model, text, layers, record, *decode = fault
            chosen = choose(fault)
            engine = engine_numpy.Engine(self.out / "models" / model)
            tap, step = chosen.first_tap(engine)
            globs = fixture_faults.globs(record, min(chosen.layers or [0]))
            taps, about = engine_numpy.run(self.out / "models" / model, TOKENS, DECODE_TOKENS if decode else (), [chosen], globs)
            name = fixture_faults.name(*fault)
            file = f"faulty/{name}" + ("" if name in fixture_faults.FOLDERS else ".npz")
            engine_numpy.write_dump(self.out / file, engine_numpy.dump_members(taps, about))
            recorded = [k for k in order(engine, len(DECODE_TOKENS)) if k in taps]
            at_or_after = order(engine, len(DECODE_TOKENS))
            at_or_after = at_or_after[at_or_after.index((tap, step)):]
            index.append({"file": file, "reference": golden(model), "model": f"models/{model}", "mistake": chosen.id,
                          "params": chosen.params(), "at": list(chosen.at), "layers": chosen.layers or list(range(engine.L)),
                          "first": {"tap": tap, "step": step},
                          "first_recorded": dict(zip(("tap", "step"), next(k for k in recorded if k in at_or_after))),
                          "recorded": globs})
        write_index(self.out / "faulty" / "index.json", index)


def golden(model):
    return f"golden/{model}-torch" + {"llama": "", "qwen3": ".safetensors"}.get(model, ".npz")


def choose(fault):
    _, text, layers, *_ = fault
    return Chosen.parse(text, None if layers == "-" else [int(l) for l in layers.split(",")])


def write_index(path, rows):
    path.write_text("[\n " + ",\n ".join(json.dumps(r) for r in rows) + "\n]\n")


def order(engine, steps):
    taps = ["h0", *(f"layers.{l}.{t}" for l in range(engine.L) for t in engine_numpy.LAYER_TAPS), "final_norm", "logits"]
    return [(tap, step) for step in range(steps + 1) for tap in taps]


# -- verifying -----------------------------------------------------------------------------------------------------------


def verify(out):
    """Problems found in the fixtures under `out`, after a table of what was looked at."""
    return verify_attention(out) + verify_right(out) + verify_mistakes(out) + verify_faulty(out)


def verify_attention(out):
    """A mask or RoPE mistake shows only where attention is far from uniform, and all heads look at one key only where it is not one-hot."""
    print("\nattention (prefill, rows 1..): mean largest probability, and entropy / that of uniform attention")
    problems = []
    for model in FAMILIES:
        engine = engine_numpy.Engine(out / "models" / model)
        taps = engine.run(TOKENS)
        for l in range(engine.L):
            p = taps[f"layers.{l}.probs", 0][:, 1:].astype(np.float64)
            seen = (p > 0).sum(axis=-1)
            largest, entropy = p.max(axis=-1).mean(), (-(p * np.log(p + 1e-300)).sum(axis=-1) / np.log(seen)).mean()
            print(f"  {model:9} layer {l}   {largest:.3f} (uniform {np.mean(1 / seen):.3f})   {entropy:.3f}")
            if not 0.2 < entropy < 0.8:
                problems.append(f"{model} layer {l}: entropy {entropy:.3f} of uniform")
    return problems


def verify_right(out):
    print("\nright implementations against PyTorch f32 eager: worst NMSE over all taps")
    rows = [(f"models/{m}", None, golden(m), "f32") for m in MODELS]
    rows += [(r["file"], r["file"], r["reference"], r["profile"]) for r in json.loads((out / "right" / "index.json").read_text())]
    rows += [(f"golden/{m}-llama-cpp.npz", f"golden/{m}-llama-cpp.npz", golden(m), "f32") for m in IN_LLAMA_CPP]
    problems = []
    for name, file, reference, profile in rows:
        if file and not (out / file).exists():
            print(f"  {name:36} not made here")
            continue
        about, ref = read_dump(out / reference)
        if file:
            about, cand = read_dump(out / file)
        else:
            cand, name = engine_numpy.run(out / name, about["tokens"], about.get("decode_tokens", []))[0], f"engine_numpy {name}"
            cand = {k: x.astype(np.float64) for k, x in cand.items()}
        if about.get("qk_rows") == "adjacent":
            cand = {k: half_rows(x) if k[0].split(".")[-1] in ("q", "k", "q_norm", "k_norm", "q_rope", "k_rope") else x for k, x in cand.items()}
        error, tap, step = worst(cand, ref)
        print(f"  {name:36} {len(set(cand) & set(ref)):4} of {len(ref)} taps   {error:8.1e} at {tap} step {step}")
        if not error <= FAITHFUL[profile]:
            problems.append(f"{name}: NMSE {error:.1e} at {tap} step {step} from {reference}")
    return problems


def half_rows(x):
    """[T,H,d] in GGUF's row order (2i+s) to Hugging Face's (s*d/2+i)."""
    return np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)


def shows(out, model, chosen):
    """Where a mistake first shows: 'right place', 'no effect', 'n/a' or 'WRONG PLACE', and the NMSE there and at the last logits."""
    folder = out / "models" / model
    try:
        wrong, _ = engine_numpy.run(folder, TOKENS, DECODE_TOKENS, [chosen])
    except SystemExit:
        return "n/a", 0, 0
    right, _ = engine_numpy.run(folder, TOKENS, DECODE_TOKENS)
    differ = [k for k in right if k in wrong and not np.array_equal(right[k], wrong[k], equal_nan=True)]
    if not differ:
        return "no effect", 0, 0
    first = chosen.first_tap(engine_numpy.Engine(folder))
    wide = lambda taps, k: taps[k].astype(np.float64)
    end = ("logits", len(DECODE_TOKENS))
    return "right place" if differ[0] == first else f"WRONG PLACE {differ[0]} not {first}", *(
        nmse(wide(wrong, k), wide(right, k)) for k in (differ[0], end))


def verify_mistakes(out):
    """Each mistake, of each kind, on every model: it changes the tap it names and nothing before."""
    print("\nmistakes: the first tap, all before it bit for bit the same; NMSE there and at the last logits")
    problems, shown = [], set()
    for fault in FAULTS:
        chosen = choose(fault)
        place, here, end = shows(out, fault[0], chosen)
        tap, step = chosen.first_tap(engine_numpy.Engine(out / "models" / fault[0]))
        print(f"  {fault[0]:9} {fault[1]:37} {'' if fault[2] == '-' else 'layer ' + fault[2]:8} {tap:19} step {step}  {here:8.1e} {end:8.1e}  {place}")
        shown.add((chosen.id, chosen.value))
        if place != "right place":
            problems.append(f"{' '.join(fault)}: {place}")
    count = 0
    for id, m in MISTAKES.items():
        for value in m.values or ("",):
            chosen = Chosen(id, value if m.values else None, m.at, None)
            places = {model: shows(out, model, chosen)[0] for model in MODELS}
            count += sum(p == "right place" for p in places.values())
            problems += [f"{id}={value} on {model}: {p}" for model, p in places.items() if p.startswith("WRONG")]
            if "right place" not in places.values() and (chosen.id, chosen.value) not in shown:
                problems.append(f"{id}={value}: shows on no model")
    print(f"  and {count} more pairs of a mistake and a model; {len(MISTAKES)} mistakes, {sum(max(1, len(m.values)) for m in MISTAKES.values())} kinds")
    return problems


def verify_faulty(out):
    """The dumps themselves: what the index says against PyTorch's golden."""
    problems = []
    for row in json.loads((out / "faulty" / "index.json").read_text()):
        (_, ref), (_, cand) = read_dump(out / row["reference"]), read_dump(out / row["file"])
        engine = engine_numpy.Engine(out / row["model"])
        taps = [k for k in order(engine, len(DECODE_TOKENS)) if k in ref and k in cand]
        differ = next((k for k in taps if not nmse(cand[k], ref[k]) <= 1e-10), None)
        expected = row["first_recorded"]["tap"], row["first_recorded"]["step"]
        if differ != expected:
            problems.append(f"{row['file']}: differs from {row['reference']} first at {differ}, not {expected}")
    return problems


# -- checking ------------------------------------------------------------------------------------------------------------


def check(new, old, llama_cpp):
    """Differences between fixtures made again and the committed ones."""
    files = {p.relative_to(root) for root in (new, old) for part in ("models", "golden", "right", "faulty", "gguf")
             for p in (root / part).rglob("*") if p.is_file()}
    units = sorted({f.parent if f.name == "dump.json" or (old / f.parent / "dump.json").exists() else f for f in files}, key=str)
    problems, table = [], {}
    for unit in map(str, units):
        if not llama_cpp and "llama-cpp" in unit:
            continue
        verdict, bound = compare(new / unit, old / unit, unit)
        group = unit.split("/")[0] + ("" if bound is None else f" (outputs, NMSE <= {bound:.0e})")
        count, same, largest = table.get(group, (0, 0, 0.0))
        table[group] = count + 1, same + (verdict == "same bytes"), max(largest, verdict if isinstance(verdict, float) else 0.0)
        if isinstance(verdict, str) and verdict != "same bytes" or isinstance(verdict, float) and not verdict <= bound:
            problems.append(f"{unit}: {verdict}")
    print("\nmade again against committed")
    for group, (count, same, largest) in table.items():
        print(f"  {group:38} {count:3} files, {same:3} the same bytes, worst NMSE {largest:.1e}")
    return problems


def compare(new, old, unit):
    """('same bytes' | what is wrong | NMSE, bound)"""
    bound = next((b for pattern, b in BOUNDS.items() if Path(unit).match(pattern)), None) if Path(unit).name != "index.json" else None
    if not (new.exists() and old.exists()):
        return "only made again" if new.exists() else "only committed", bound
    contents = [read_members(p) if p.is_dir() else p.read_bytes() for p in (new, old)]
    if contents[0] == contents[1]:
        return "same bytes", bound
    if bound is None:
        return "other bytes", bound
    (a, x), (b, y) = read_dump(new), read_dump(old)
    a.pop("producer", None), b.pop("producer", None)
    return ("another dump.json" if a != b else float(max(nmse(x[k], y[k]) for k in y))), bound


def op_goldens(options):
    if not (SCRIPTS / "goldens/op_goldens.py").exists():
        return []
    done = subprocess.run([sys.executable, str(SCRIPTS / "goldens/op_goldens.py"), *map(str, options)], env=ENVIRONMENT)
    return [f"op_goldens.py {' '.join(map(str, options))}: exit {done.returncode}"] if done.returncode else []


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, default=FIXTURES)
    p.add_argument("--check", action="store_true")
    p.add_argument("--skip-llama-cpp", action="store_true")
    a = p.parse_args()
    if a.check:
        with tempfile.TemporaryDirectory() as new:
            Maker(new, not a.skip_llama_cpp).make()
            problems = verify(Path(new)) + check(Path(new), a.out, not a.skip_llama_cpp) + op_goldens(["--check", "--out", a.out / "ops"])
    else:
        Maker(a.out, not a.skip_llama_cpp).make()
        problems = verify(a.out) + op_goldens(["--out", a.out / "ops"])
    for problem in problems:
        print("FAIL", problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()

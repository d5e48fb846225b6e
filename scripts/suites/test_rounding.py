#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["torch==2.9.1", "transformers==4.57.1", "safetensors>=0.6", "numpy>=1.26", "gguf==0.19.0", "llama-cpp-python==0.3.36"]
# ///
"""Tests that firstdiff distinguishes rounding from mistakes in deep models: right runs must be at parity, wrong ones located.

    python scripts/suites/test_rounding.py [--firstdiff target/release/firstdiff] [--only MODEL] [--tokens 48] [--keep DIR]

Makes models of 16 to 28 layers, some of which amplify rounding as much as any (sharp attention; a few channels of great size), and holds
against PyTorch f32: PyTorch in f64, f16, bf16 and with SDPA, llama.cpp with f32 and with f16 weights and cache, and firstdiff's own forward. Every
pair must be at parity; in f16 and bf16, where rounding may drown the signal, at parity or incomparable for that reason. Then the NumPy engine makes every mistake it knows in one late layer, in f32: the first tap must be the one the mistake
declares; against the references in f16 and bf16 it must be one the mistake is in, or none. Exit 1 on a failure.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import ROOT, SCRIPTS
from scripts.engines import engine_mistakes, engine_numpy

V, STEPS = 512, 4
# name -> (family, layers, D, H, K, d, F, seed, what makes it hard, the layer that is wrong in the zoo)
MODELS = {
    "sharp": ("llama", 24, 128, 8, 2, 16, 352, 1, "attention on one key", None),
    "outliers": ("llama", 16, 128, 8, 2, 16, 352, 5, "channels of great size", 10),
    "biased": ("qwen2", 24, 128, 8, 2, 16, 352, 2, "biases as large as what they are added to", None),
    "deep": ("qwen3", 28, 96, 6, 3, 32, 256, 3, "depth", 19),
}
# run -> (script, its arguments, profile)
RUNS = {
    "f64": ("dump_torch.py", ["--dtype", "f64"], "f32"),
    "sdpa": ("dump_torch.py", ["--attn", "sdpa"], "f32"),
    "bf16": ("dump_torch.py", ["--dtype", "bf16"], "bf16"),
    "f16": ("dump_torch.py", ["--dtype", "f16"], "f16"),
    "llama.cpp": ("dump_llama_cpp.py", [], "f32"),
    "llama.cpp-f16": ("dump_llama_cpp.py", ["--cache", "f16"], "f16"),
}
# The change a mistake makes to its own tap, from which on it has to be found in f32. Below it is the model's own value by chance.
REAL = 1e-8
FAILED = []


def check(ok, message):
    if not ok:
        FAILED.append(message)
        print(f"FAILED {message}")


def make_model(name, folder):
    family, layers, D, H, K, d, F, seed, _, _ = MODELS[name]
    rng = np.random.default_rng(seed)
    gain = 0.8 if name == "outliers" else 1.0
    matrix = lambda rows, columns: (rng.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype("f4")
    around_one = lambda n: (1 + 0.3 * rng.standard_normal(n)).astype("f4")
    w = {"model.embed_tokens.weight": rng.standard_normal((V, D)).astype("f4"), "model.norm.weight": around_one(D)}
    large = rng.choice(D, 3, replace=False)
    for l in range(layers):
        p = f"model.layers.{l}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            w[f"{p}{norm}.weight"] = around_one(D)
        for part, rows in (("q", H * d), ("k", K * d), ("v", K * d)):
            w[f"{p}self_attn.{part}_proj.weight"] = matrix(rows, D) * (1 if part == "v" else 2)
            if family == "qwen2":
                w[f"{p}self_attn.{part}_proj.bias"] = rng.standard_normal(rows).astype("f4")
        w[f"{p}self_attn.o_proj.weight"] = matrix(D, H * d)
        if family == "qwen3":
            for part in "qk":
                w[f"{p}self_attn.{part}_norm.weight"] = around_one(d)
        w[f"{p}mlp.gate_proj.weight"], w[f"{p}mlp.up_proj.weight"] = matrix(F, D), matrix(F, D)
        w[f"{p}mlp.down_proj.weight"] = matrix(D, F)
        if name == "outliers":
            for norm in ("input_layernorm", "post_attention_layernorm"):
                w[f"{p}{norm}.weight"][large] *= 8
            for out in ("self_attn.o_proj", "mlp.down_proj"):
                w[f"{p}{out}.weight"] *= np.float32(0.5)
                w[f"{p}{out}.weight"][large[0]] *= 10
    folder.mkdir(parents=True)
    save_file(w, folder / "model.safetensors", metadata={"format": "pt"})
    config = dict(architectures=[f"{family.capitalize()}ForCausalLM"], model_type=family, hidden_size=D, intermediate_size=F,
                  num_hidden_layers=layers, num_attention_heads=H, num_key_value_heads=K, head_dim=d, vocab_size=V,
                  max_position_embeddings=4096, rms_norm_eps=1e-5, rope_theta=20000.0, tie_word_embeddings=True,
                  hidden_act="silu", torch_dtype="float32")
    (folder / "config.json").write_text(json.dumps(config))


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    check(done.returncode == 0, f"{' '.join(map(str, command))}: exit {done.returncode}: {done.stderr.strip()[-300:]}")


def compare(firstdiff, reference, candidate, profile):
    command = [firstdiff, "compare", reference, candidate, "--profile", profile, "--json", "-"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    return json.loads(done.stdout) if done.stdout else {"verdict": done.stderr.strip(), "taps": []}


# What each tap of a layer reads; a leading - is the layer before.
READS = {"attn_norm": "-h", "q": "attn_norm", "k": "attn_norm", "v": "attn_norm", "q_norm": "q", "k_norm": "k", "q_rope": "q_norm", "k_rope": "k_norm",
         "qk": "q_rope k_rope", "scores": "qk", "probs": "scores", "context": "probs v", "attn_out": "context", "h_attn": "-h attn_out",
         "ffn_norm": "h_attn", "ffn_gate": "ffn_norm", "ffn_up": "ffn_norm", "mlp/act_fn": "ffn_gate", "ffn_act": "ffn_gate ffn_up", "ffn_out": "ffn_act", "h": "h_attn ffn_out"}
# NMSE of one operation's own rounding: dependencies.md of the design, for products of 4096.
OWN = {"f32": 1e-13, "f16": 1.3e-7, "bf16": 8e-6}
GROWTH = {}


def grown(report, profile):
    """Notes how many times the NMSE of what it reads (and its own rounding) each operation writes: crates/compare/src/judge/inherited.rs."""
    taps = {(t["tap"], t["step"]): t for t in report["taps"] if t["nmse"] is not None}
    for (tap, step), t in taps.items():
        if tap.count(".") != 2 or not t["nmse"] < 0.05:
            continue
        _, layer, site = tap.split(".")
        reads = 0.0
        for read in READS[site].split():
            before = "h0" if layer == "0" else f"layers.{int(layer) - 1}.h"
            names = [before] if read == "-h" else [f"layers.{layer}.{read}", f"layers.{layer}.{read.removesuffix('_norm')}"]
            steps = range(step + 1) if read in ("k_rope", "v") else [step]
            field = "rmse" if site == "probs" else "nmse"  # e^x makes of an error in x one relative to 1
            found = [taps[n, s][field] for n in names[:2] for s in steps if (n, s) in taps][: len(steps)]
            reads = reads + max(found) ** (2 if field == "rmse" else 1) if found else float("nan")
        growth = t["nmse"] / (reads + OWN[profile])
        if growth > GROWTH.get(site, (0,))[0]:
            GROWTH[site] = (growth, profile, tap, step)


def first_of(report):
    first = report.get("first_divergence")
    return (first["tap"], first["step"]) if first else None


def right_runs(firstdiff, name, folder, tokens):
    """Every pair of right runs is at parity. Gives the decoded tokens."""
    listed = ",".join(map(str, tokens))
    run(sys.executable, SCRIPTS / "dump_torch.py", folder / "model", "-o", folder / "f32", "--tokens", listed, "--decode", STEPS)
    decoded = json.loads((folder / "f32/dump.json").read_text())["decode_tokens"]
    fed = ["--tokens", listed, "--decode-tokens", ",".join(map(str, decoded))]
    for dtype in ("f32", "f16"):
        run(sys.executable, SCRIPTS / "convert/hf_to_gguf.py", folder / "model", folder / f"{dtype}.gguf", "--dtype", dtype)
    for other, (script, arguments, _) in RUNS.items():
        model = folder / "model"
        if script == "dump_llama_cpp.py":
            model = folder / ("f16.gguf" if "--cache" in arguments else "f32.gguf")
        run(sys.executable, SCRIPTS / script, model, "-o", folder / other, *fed, *arguments)
    run(firstdiff, "dump", folder / "model", "-o", folder / "own", *fed)
    for other, profile in [*((other, profile) for other, (_, _, profile) in RUNS.items()), ("own", "f32")]:
        report = compare(firstdiff, folder / "f32", folder / other, profile)
        measured = [(t["nmse"], t["tap"], t["step"]) for t in report["taps"] if t["nmse"] is not None]
        nmse, tap, step = max(measured, default=(float("nan"), "-", 0))
        print(f"{name:10} {other:14} {report['verdict']:9} {len(measured):5} taps, worst NMSE {nmse:.1e} at {tap} step {step}")
        grown(report, profile)
        first = report.get("first_divergence") or {}
        unclear = profile != "f32" and "inconclusive" in (report.get("reason") or "")
        check(report["verdict"] == "parity" or unclear, f"{name} {other}: {first_of(report)}: {first.get('reason')}")
    return decoded


def changed(right, wrong):
    """NMSE of the change a mistake makes."""
    with np.errstate(all="ignore"):
        masked = ~(np.isfinite(right) & np.isfinite(wrong))
        if (np.isfinite(right) != np.isfinite(wrong)).any():
            return np.inf
        right, wrong = (np.where(masked, 0, x).astype(np.float64) for x in (right, wrong))
        return ((wrong - right) ** 2).sum() / (right**2).sum()


def zoo(firstdiff, name, folder, tokens, decoded):
    """Every mistake in one late layer is found where it is."""
    layer = MODELS[name][-1]
    right, _ = engine_numpy.run(folder / "model", tokens, decoded)
    found, weak, silent = 0, 0, 0
    for id, known in engine_mistakes.MISTAKES.items():
        for value in known.values or (None,):
            label = id if value is None else f"{id}={value}"
            try:
                mistake = engine_mistakes.Chosen.parse(label, [layer])
                wrong, about = engine_numpy.run(folder / "model", tokens, decoded, [mistake])
            except SystemExit:
                continue  # does not apply to this family
            expected = mistake.first_tap(engine_numpy.Engine(folder / "model"))
            if wrong[expected].shape == right[expected].shape and not changed(right[expected], wrong[expected]) > REAL:
                weak += 1
                continue
            engine_numpy.write_dump(folder / "wrong.npz", engine_numpy.dump_members(wrong, about))
            for reference in ("f32", "f16", "bf16"):
                got = first_of(compare(firstdiff, folder / reference, folder / "wrong.npz", reference))
                if reference == "f32":
                    found += got == expected
                    check(got == expected, f"{name} {label}: first tap {got}, not {expected}")
                else:
                    silent += got is None
                    wrong_taps = {engine_numpy.full_name(layer if tap in engine_numpy.LAYER_TAPS else None, tap) for tap in mistake.at}
                    check(got is None or got[0] in wrong_taps | {expected[0]}, f"{name} {label} against {reference}: first tap {got}, not {expected} or none")
    print(f"{name:10} mistakes in layer {layer}: {found} found in f32; {weak} change nothing; against f16 and bf16 {silent} are lost in the noise")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--firstdiff", type=Path, default=ROOT / "target/release/firstdiff", help="the command (default target/release)")
    parser.add_argument("--only", choices=MODELS, help="this model alone")
    parser.add_argument("--tokens", type=int, default=48, help="length of the prompt (default 48)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep models and dumps there")
    args = parser.parse_args()
    if not args.firstdiff.is_file():
        parser.error(f"{args.firstdiff}: not there; cargo build --release -p firstdiff")
    with tempfile.TemporaryDirectory() as scratch:
        for name in [args.only] if args.only else MODELS:
            folder = (args.keep or Path(scratch)) / name
            make_model(name, folder / "model")
            tokens = [1, *np.random.default_rng(7).integers(3, V, args.tokens - 1).tolist()]
            decoded = right_runs(args.firstdiff, name, folder, tokens)
            if MODELS[name][-1] is not None:
                zoo(args.firstdiff, name, folder, tokens, decoded)
    print("growth of rounding, the most that was seen:")
    for site in READS:
        if site in GROWTH:
            print("  {:10} {:6.2f}  {} {} step {}".format(site, *GROWTH[site]))
    print(f"{len(FAILED)} failed" if FAILED else "all right")
    sys.exit(bool(FAILED))


if __name__ == "__main__":
    main()

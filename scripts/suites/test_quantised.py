#!/usr/bin/env python3
"""Measures how close our forward pass is to llama.cpp, for each weight type: its dumps are replayed, and our logits compared.

    python scripts/suites/test_quantised.py [--json FILE] [--only Q4_K_M] [--keep DIR]

Random models (llama with permuted Q and K, qwen2 with biases; 256 wide, 3 layers) are written as f32 GGUF, quantised by llama.cpp's own
llama_model_quantize, run through dump_llama_cpp.py (13 tokens and 2 decode steps, f32 cache; for F16 also with an f16 cache), and replayed by
`firstdiff replay` in the profiles ggml and exact. Fails when a linear tap is further than 1e-12 from llama.cpp's in ggml, when any operation is
called wrong, or when `firstdiff dump --profile ggml` cannot be run. Needs scripts/requirements.txt.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import ROOT, SCRIPTS

# llama_ftype of llama.h.
TYPES = {"F32": 0, "F16": 1, "BF16": 32, "Q8_0": 7, "Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_M": 12, "Q4_K_M": 15,
         "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30}
TOKENS = [1, 403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421]
DECODE = [317, 426]
LINEAR = {"q", "k", "v", "attn_out", "ffn_gate", "ffn_up", "ffn_out", "logits"}


def write_model(folder, family):
    """A Hugging Face folder of random weights: sharp enough attention, gains and biases that matter."""
    from safetensors.numpy import save_file

    rng = np.random.default_rng(5)
    D, F, V, H, K, d, layers = 256, 512, 512, 4, 2, 64, 3
    normal = lambda *shape: (rng.standard_normal(shape) * 1.2 / np.sqrt(shape[-1])).astype(np.float32)
    gain = lambda: (1 + 0.3 * rng.standard_normal(D)).astype(np.float32)
    weights = {"model.embed_tokens.weight": normal(V, D) * 8, "model.norm.weight": gain(), "lm_head.weight": normal(V, D)}
    for n in range(layers):
        prefix = f"model.layers.{n}."
        shapes = {"self_attn.q_proj": (H * d, D), "self_attn.k_proj": (K * d, D), "self_attn.v_proj": (K * d, D), "self_attn.o_proj": (D, H * d),
                  "mlp.gate_proj": (F, D), "mlp.up_proj": (F, D), "mlp.down_proj": (D, F)}
        for name, shape in shapes.items():
            weights[f"{prefix}{name}.weight"] = normal(*shape)
            if family == "qwen2" and name[-6:] in ("q_proj", "k_proj", "v_proj"):
                weights[f"{prefix}{name}.bias"] = rng.standard_normal(shape[0]).astype(np.float32)
        weights[f"{prefix}input_layernorm.weight"], weights[f"{prefix}post_attention_layernorm.weight"] = gain(), gain()
        if family == "qwen3":
            for name in ("q_norm", "k_norm"):
                weights[f"{prefix}self_attn.{name}.weight"] = (1 + 0.3 * rng.standard_normal(d)).astype(np.float32)
    config = {"model_type": family, "hidden_size": D, "intermediate_size": F, "num_hidden_layers": layers, "num_attention_heads": H,
              "num_key_value_heads": K, "vocab_size": V, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
              "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32", "head_dim": d}
    # A window, where the family has one, that 15 tokens do not fill: llama.cpp knows none for these.
    config |= {"mistral": {"sliding_window": 64}, "minimind": {"use_moe": False, "flash_attn": False, "dropout": 0.0}}.get(family, {})
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


def quantise(source, target, kind):
    """llama_model_quantize in a process of its own, its log kept."""
    code = ("import sys; from llama_cpp import llama_cpp as api\n"
            "p = api.llama_model_quantize_default_params(); p.ftype = int(sys.argv[3]); p.nthread = 2\n"
            "import ctypes; sys.exit(api.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), ctypes.byref(p)))")
    done = subprocess.run([sys.executable, "-c", code, source, target, str(TYPES[kind])], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"llama_model_quantize to {kind} failed: {done.stderr[-400:]}")


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-800:]}{done.stderr[-800:]}")
    return done


def replay(binary, model, dump, profile, cache):
    return json.loads(run(binary, "replay", model, dump, "--profile", profile, "--cache", cache, "--json", "-").stdout)


def worst(report, key, wanted):
    """The largest of a measure over taps that `wanted` names, and where."""
    found = [(tap[key], tap["tap"]) for tap in report["taps"] if tap[key] is not None and wanted(tap["tap"].rsplit(".", 1)[-1])]
    return max(found, default=(0.0, "-"))


def logits(folder):
    return np.concatenate([np.load(path) for path in sorted(folder.glob("logits*.npy"))]).astype(np.float64)


def end_to_end(binary, model, dump, cache, folder):
    """NMSE of our logits against llama.cpp's, forward from the tokens, in ggml and in exact; and the first tap where a value took another step."""
    theirs, out = logits(dump), []
    for profile in ("ggml", "exact"):
        ours = folder / f"own-{profile}"
        shutil.rmtree(ours, ignore_errors=True)
        run(binary, "dump", model, "-o", ours, "--tokens", ",".join(map(str, TOKENS)), "--decode-tokens", ",".join(map(str, DECODE)),
            "--profile", profile, "--cache", cache)
        out.append(float(((logits(ours) - theirs) ** 2).sum() / (theirs ** 2).sum()))
    first = "-"
    for tap in run_order(dump):
        a, b = np.load(dump / tap).astype(np.float64), np.load(folder / "own-ggml" / tap).astype(np.float64)
        if ((a - b) ** 2).sum() > 1e-10 * (a ** 2).sum():
            first = tap.removesuffix(".npy")
            break
    return out[0], out[1], first


def run_order(dump):
    taps = json.loads((dump / "dump.json").read_text())["taps"]
    return [tap["file"] for tap in taps if tap["tap"].rsplit(".", 1)[-1] not in ("qk", "probs")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", help="one type")
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it")
    args = parser.parse_args()
    target = subprocess.run(["cargo", "metadata", "--format-version", "1", "--no-deps"], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["cargo", "build", "--release", "--locked", "-q", "-p", "firstdiff"], cwd=ROOT, check=True)
    binary = Path(json.loads(target.stdout)["target_directory"]) / "release/firstdiff"
    rows, failed = [], []
    with tempfile.TemporaryDirectory() as scratch:
        base = args.keep or Path(scratch)
        for family in ("llama", "qwen2"):
            write_model(base / family, family)
            source = base / f"{family}.gguf"
            run(sys.executable, SCRIPTS / "convert/hf_to_gguf.py", base / family, source, "--dtype", "f32")
            for kind in TYPES:
                if args.only not in (None, kind):
                    continue
                model = base / f"{family}-{kind}.gguf"
                if kind == "F32":
                    model.write_bytes(source.read_bytes())
                else:
                    quantise(source, model, kind)
                for cache in ("f32", "f16") if kind in ("F16", "Q4_K_M") else ("f32",):
                    folder = base / f"{family}-{kind}-{cache}"
                    run(sys.executable, SCRIPTS / "dump_llama_cpp.py", model, "-o", folder / "dump", "--no-program", "--tokens", ",".join(map(str, TOKENS)),
                        "--decode-tokens", ",".join(map(str, DECODE)), "--cache", cache, "--threads", "2", "--force")
                    row = {"family": family, "type": kind, "cache": cache}
                    ggml = replay(binary, model, folder / "dump", "ggml", cache)
                    exact = replay(binary, model, folder / "dump", "exact", cache)
                    row["linear ggml"], row["worst linear"] = worst(ggml, "nmse", LINEAR.__contains__)
                    row["linear exact"], _ = worst(exact, "nmse", LINEAR.__contains__)
                    row["other ggml"], row["worst other"] = worst(ggml, "nmse", lambda tap: tap not in LINEAR)
                    row["wrong"] = [finding["tap"] for finding in ggml["findings"]]
                    row["unchecked"] = sum(tap["status"] == "unchecked" and tap["reason"] != "not recorded" for tap in ggml["taps"])
                    row["logits ggml"], row["logits exact"], row["parts at"] = end_to_end(binary, model, folder / "dump", cache, folder)
                    rows.append(row)
                    if row["wrong"] or not row["linear ggml"] <= 1e-12:
                        failed.append(f"{family} {kind} {cache}")
                    print(f"{family:<6} {kind:<7} {cache}  linear {row['linear ggml']:.1e} ({row['linear exact']:.1e} exact)  "
                          f"others {row['other ggml']:.1e} at {row['worst other']:<18}  logits {row['logits ggml']:.1e} ({row['logits exact']:.1e} exact)"
                          f"  parts at {row['parts at']}  {'wrong: ' + ', '.join(row['wrong']) if row['wrong'] else ''}"
                          f"{str(row['unchecked']) + ' unchecked' if row['unchecked'] else ''}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{len(rows)} runs of llama.cpp; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["torch==2.9.1", "transformers==4.57.1", "safetensors>=0.6", "numpy>=1.26", "gguf==0.19.0", "llama-cpp-python==0.3.36", "onnx==1.23.2",
#                 "onnxruntime==1.32.0", "onnxscript==0.7.2"]
# ///
"""Tests that the two reference dumpers agree: PyTorch and llama.cpp on the same random weights, every tap, every step.

    python scripts/suites/test_dumpers.py [--only CASE ..] [--with-checks] [--keep DIR]

Makes a small model of each family in a temporary folder (no two sizes equal, attention far from uniform), converts it with
hf_to_gguf.py, runs both dumpers as a user would, and asks: NMSE <= 1e-11 at every tap both have, prefill and decode;
shapes as the vocabulary says; a decode step equal to the same row of one long prefill. A Llama that torch.onnx exports is run by the ONNX dumper, too. Prints the worst tap of each case,
then the worst by kind of tap. Exit 1 on a failure.
"""

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import ROOT, SCRIPTS

LIMIT = 1e-11
D, H, K, d, F, V, LAYERS = 48, 6, 2, 16, 80, 151, 3
TOKENS = [1, 42, 7, 150, 99, 3, 64, 64, 12, 110, 5]
STEPS = 3
SIZES = dict(hidden_size=D, num_attention_heads=H, num_key_value_heads=K, head_dim=d, intermediate_size=F, vocab_size=V,
             num_hidden_layers=LAYERS, max_position_embeddings=512, tie_word_embeddings=False)
LLAMA3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
MINIMIND = dict(head_dim=None, max_position_embeddings=32768, rope_theta=1e6, tie_word_embeddings=True)

# name -> (class to make it with, config, model_type written, llama.cpp can show it)
CASES = {
    "llama": ("Llama", {}, None, True),
    "llama-bias-tied": ("Llama", dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True), None, True),
    "llama-mha": ("Llama", dict(num_key_value_heads=H), None, True),
    "llama-llama3": ("Llama", dict(rope_scaling=LLAMA3, rope_theta=5e5), None, True),
    "llama-linear": ("Llama", dict(rope_scaling=dict(rope_type="linear", factor=2.5)), None, True),
    "llama-yarn": ("Llama", dict(rope_scaling=YARN, max_position_embeddings=256), None, True),
    "mistral": ("Mistral", dict(sliding_window=None), None, True),
    "mistral-window": ("Mistral", dict(sliding_window=5), None, False),
    "qwen2": ("Qwen2", dict(rope_theta=1e6, head_dim=None), None, True),
    "qwen2-window": ("Qwen2", dict(use_sliding_window=True, sliding_window=4, max_window_layers=1), None, False),
    "qwen3": ("Qwen3", dict(rope_theta=1e6), None, True),
    "minimind": ("Llama", MINIMIND, "minimind", True),
    "minimind-yarn": ("Llama", dict(MINIMIND, inference_rope_scaling=True), "minimind", True),
    "minimind-3": ("Qwen3", dict(MINIMIND, head_dim=d), "minimind", True),
}
# Standard deviation of a weight times sqrt(its inputs). Scores then spread over 2 to 3 units: attention is sharp. The residual
# stream outweighs what a layer adds, as in trained models: without that, a step multiplies every rounding error by the next.
GAINS = {"q_proj": 1.6, "k_proj": 1.6, "o_proj": 0.5, "down_proj": 0.5, "embed_tokens": D**0.5}
FAILED = []


def check(ok, message):
    if not ok:
        FAILED.append(message)
        print(f"FAILED {message}")


def script(name, *args, expect=0, program=False):
    """Runs a script of this folder: by its hooks or tables alone, where nothing else is asked for."""
    way = ["--no-program"] if name.startswith("dump_") and not program else []
    done = subprocess.run([sys.executable, SCRIPTS / name, *way, *map(str, args)], capture_output=True, text=True)
    check(done.returncode == expect, f"{name} {' '.join(map(str, args))}: exit {done.returncode}, not {expect}: {done.stderr.strip()[-400:]}")
    return done.stderr


def make_model(folder, class_name, overrides, model_type, seed):
    """Random weights; norms far from 1, biases far from 0."""
    import torch
    import transformers

    torch.manual_seed(seed)
    settings = {**SIZES, **overrides}
    flag = settings.pop("inference_rope_scaling", None)
    if settings["head_dim"] is None:
        settings["head_dim"] = D // H
    model = getattr(transformers, f"{class_name}ForCausalLM")(getattr(transformers, f"{class_name}Config")(**settings))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.copy_(torch.rand_like(weight) + 0.5)
            elif weight.ndim == 1:
                weight.copy_(torch.randn_like(weight))
            else:
                gain = next((gain for part, gain in GAINS.items() if part in name), 1.0)
                weight.copy_(torch.randn_like(weight) * gain / weight.shape[1] ** 0.5)
    model.save_pretrained(folder)
    if model_type:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        config.update(model_type=model_type, architectures=["MiniMindForCausalLM"], use_moe=False)
        for key in ("tie_word_embeddings", *([] if class_name == "Qwen3" else ["head_dim"])):
            config.pop(key, None)  # at MiniMind's defaults
        if flag:
            config["inference_rope_scaling"] = True
        path.write_text(json.dumps(config))
    return settings


class Dump:
    """A dump read back: {(tap, step): array}."""

    def __init__(self, folder):
        self.note = json.loads((folder / "dump.json").read_text())
        self.taps = {}
        for entry in self.note["taps"]:
            array = np.load(folder / entry["file"])
            if entry["dtype"] == "bf16":
                array = (array.view("<u2").astype(np.uint32) << 16).view(np.float32)
            check(list(array.shape) == entry["shape"], f"{folder}: shape of {entry['tap']} is not what dump.json says")
            self.taps[entry["tap"], entry["step"]] = array.astype(np.float64)


def nmse(reference, candidate):
    """Over the finite values of the reference; infinities must be the same."""
    finite = np.isfinite(reference)
    if not np.array_equal(reference[~finite], candidate[~finite]):
        return np.inf
    energy = float((reference[finite] ** 2).sum())
    return float(((candidate[finite] - reference[finite]) ** 2).sum()) / energy if energy else np.inf


def half(array):
    """[T, heads, d] from adjacent row order to half-split."""
    return array.reshape(*array.shape[:2], -1, 2).swapaxes(2, 3).reshape(array.shape)


def compare(label, reference, candidate, limit, worst, expect=None):
    """Every tap of both; `worst` collects (kind -> nmse, tap, step)."""
    shared = [key for key in reference.taps if key in candidate.taps]
    if expect is not None:
        absent = {tap.rsplit(".", 1)[-1] for tap, step in set(reference.taps) ^ set(candidate.taps)}
        check(absent == expect, f"{label}: taps of one side only are {sorted(absent)}, not {sorted(expect)}")
    top = (0.0, None)
    for tap, step in shared:
        left, right = reference.taps[tap, step], candidate.taps[tap, step]
        kind = tap.rsplit(".", 1)[-1]
        if kind in ("q", "k", "q_rope", "k_rope", "q_norm", "k_norm") and candidate.note.get("qk_rows") == "adjacent":
            right = half(right)
        if left.shape != right.shape:
            check(False, f"{label}: {tap} step {step}: shapes {left.shape} and {right.shape}")
            continue
        error = nmse(left, right)
        check(error <= limit, f"{label}: {tap} step {step}: NMSE {error:.2e} > {limit:.0e}")
        top = max(top, (error, f"{tap} step {step}"), key=lambda pair: pair[0])
        if not error <= worst.get(kind, (0.0,))[0]:
            worst[kind] = (error, label, tap, step)
    print(f"{label:44} {len(shared):4} tensors, worst {top[0]:.1e} {top[1] or ''}", flush=True)


def check_shapes(label, dump, settings, has_qk_norm):
    kv, head = settings["num_key_value_heads"], settings["head_dim"]
    per_layer = {"attn_norm": "TD", "q": "THd", "k": "TKd", "v": "TKd", "q_rope": "THd", "k_rope": "TKd", "qk": "HTS", "scores": "HTS",
                 "probs": "HTS", "context": "TC", "attn_out": "TD", "h_attn": "TD", "ffn_norm": "TD", "ffn_gate": "TF",
                 "ffn_up": "TF", "ffn_act": "TF", "ffn_out": "TD", "h": "TD"}
    if has_qk_norm:
        per_layer |= {"q_norm": "THd", "k_norm": "TKd"}
    wanted = {"h0": "TD", "final_norm": "TD", "logits": "TV"}
    wanted |= {f"layers.{n}.{kind}": axes for n in range(LAYERS) for kind, axes in per_layer.items()}
    for step in range(STEPS + 1):
        T, S = (len(TOKENS), len(TOKENS)) if step == 0 else (1, len(TOKENS) + step)
        sizes = {"T": T, "S": S, "D": D, "H": H, "K": kv, "d": head, "C": H * head, "F": F, "V": V}
        for tap, axes in wanted.items():
            shape = dump.taps[tap, step].shape if (tap, step) in dump.taps else None
            check(shape == tuple(sizes[a] for a in axes), f"{label}: {tap} step {step} has shape {shape}, vocabulary says {axes}")
    check(len(dump.taps) == len(wanted) * (STEPS + 1), f"{label}: {len(dump.taps)} tensors, {len(wanted) * (STEPS + 1)} expected")


def check_decode(label, stepwise, whole):
    """A decode step is the same row of one long prefill, in exact arithmetic."""
    for (tap, step), row in stepwise.taps.items():
        if step == 0:
            continue
        at, full = len(TOKENS) + step - 1, whole.taps[tap, 0]
        kind = tap.rsplit(".", 1)[-1]
        same = full[:, at : at + 1, : at + 1] if kind in ("qk", "scores", "probs") else full[at : at + 1]
        error = nmse(same, row)
        check(error <= 1e-24, f"{label}: {tap} step {step} is not row {at} of the whole prefill: NMSE {error:.1e}")


def run_case(name, root, by_kind):
    class_name, overrides, model_type, in_llama_cpp = CASES[name]
    folder = root / name
    settings = make_model(folder, class_name, overrides, model_type, seed=sorted(CASES).index(name))
    tokens = ",".join(map(str, TOKENS))

    def torch_dump(label, *options, prompt=tokens):
        script("dump_torch.py", folder, "-o", root / f"{name}.{label}", "--tokens", prompt, "--threads", 1, *options)
        return Dump(root / f"{name}.{label}")

    exact = torch_dump("f64", "--dtype", "f64", "--decode", STEPS)
    forced = ",".join(map(str, exact.note["decode_tokens"]))
    single = torch_dump("f32", "--decode-tokens", forced)
    sharp = np.mean([exact.taps[f"layers.{n}.probs", 0].max(axis=-1)[:, 5:].mean() for n in range(LAYERS)])
    check(sharp > 0.35, f"{name}: attention is close to uniform (mean largest probability {sharp:.2f}): it hides mistakes")
    print(f"{name}: mean largest probability {sharp:.2f}, uniform {np.mean([1 / (t + 1) for t in range(5, len(TOKENS))]):.2f}")
    check_shapes(name, single, settings, class_name == "Qwen3")
    check_decode(name, exact, torch_dump("whole", "--dtype", "f64", prompt=f"{tokens},{forced}"))
    compare(f"{name}: torch f64, torch f32", exact, single, LIMIT, by_kind["torch f64, torch f32"], set())
    sdpa = torch_dump("sdpa", "--attn", "sdpa", "--decode-tokens", forced)
    compare(f"{name}: torch f32, torch f32 sdpa", single, sdpa, LIMIT, by_kind["torch f32, torch f32 sdpa"], {"qk", "scores", "probs"})
    if not in_llama_cpp:
        return
    script("convert/hf_to_gguf.py", folder, root / f"{name}.gguf")
    script("dump_llama_cpp.py", root / f"{name}.gguf", "-o", root / f"{name}.cpp", "--tokens", tokens, "--decode-tokens", forced, "--threads", 1)
    cpp = Dump(root / f"{name}.cpp")
    check(cpp.note["precision"] == "f32" and "not_recorded" not in cpp.note, f"{name}: llama.cpp's dump says {cpp.note['precision']}")
    compare(f"{name}: torch f32, llama.cpp f32", single, cpp, LIMIT, by_kind["torch f32, llama.cpp f32"], {"scores"})
    compare(f"{name}: torch f64, llama.cpp f32", exact, cpp, LIMIT, by_kind["torch f64, llama.cpp f32"], {"scores"})


def check_precisions(root):
    """Narrow types run, are stored as such and stay near; llama.cpp's greedy tokens are PyTorch's."""
    folder, tokens, reference = root / "llama", ",".join(map(str, TOKENS)), Dump(root / "llama.f32")
    forced = ",".join(map(str, reference.note["decode_tokens"]))
    for dtype, limit in (("bf16", 3e-2), ("f16", 1e-3)):
        script("dump_torch.py", folder, "-o", root / f"t.{dtype}", "--tokens", tokens, "--decode-tokens", forced, "--dtype", dtype, "--threads", 1)
        dump = Dump(root / f"t.{dtype}")
        check({entry["dtype"] for entry in dump.note["taps"]} == {dtype}, f"torch {dtype} is stored as another type")
        compare(f"llama: torch f32, torch {dtype}", reference, dump, limit, {}, set())
        script("convert/hf_to_gguf.py", folder, root / f"{dtype}.gguf", "--dtype", dtype)
        script("dump_llama_cpp.py", root / f"{dtype}.gguf", "-o", root / f"c.{dtype}", "--tokens", tokens, "--decode-tokens", forced, "--threads", 1)
        dump = Dump(root / f"c.{dtype}")
        check(dump.note["precision"] == dtype, f"llama.cpp on {dtype} weights says precision {dump.note['precision']}")
        compare(f"llama: torch f32, llama.cpp {dtype} weights", reference, dump, limit, {}, {"scores"})
    script("dump_llama_cpp.py", root / "llama.gguf", "-o", root / "c.cache", "--tokens", tokens, "--decode", STEPS, "--cache", "f16", "--threads", 1)
    dump = Dump(root / "c.cache")
    check(dump.note["precision"] == "f16", "an f16 cache is not told")
    check(dump.note["decode_tokens"] == reference.note["decode_tokens"], "greedy decoding differs")
    compare("llama: torch f32, llama.cpp f16 cache", reference, dump, 1e-3, {}, {"scores"})


# A Llama as torch.onnx exports it: keys and values go in and out. Its mask follows from the positions.
EXPORT = """
import sys, torch, transformers
llama = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32, attn_implementation="eager").eval()
layers, heads, width = llama.config.num_hidden_layers, llama.config.num_key_value_heads, llama.config.head_dim
class Cached(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model, self.lm_head = llama.model, llama.lm_head
    def forward(self, input_ids, position_ids, past):
        seen = torch.arange(past[0][0].shape[2] + input_ids.shape[1])
        mask = torch.where(seen[None] <= position_ids[0][:, None], 0.0, torch.finfo(torch.float32).min)[None, None]
        cache = transformers.DynamicCache.from_legacy_cache(past)
        out = self.model(input_ids=input_ids, attention_mask=mask, position_ids=position_ids, past_key_values=cache, use_cache=True)
        return self.lm_head(out.last_hidden_state), out.past_key_values.to_legacy_cache()
class Fixed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model, self.lm_head = llama.model, llama.lm_head
    def forward(self, input_ids):
        return self.lm_head(self.model(input_ids=input_ids, use_cache=False).last_hidden_state)
free, ids = torch.export.Dim.AUTO, torch.tensor([[5, 6, 7]])
kept = [f"{n}.{side}" for n in range(layers) for side in ("key", "value")]
past = tuple((torch.randn(1, heads, 4, width), torch.randn(1, heads, 4, width)) for _ in range(layers))
torch.onnx.export(Cached(), (ids, torch.arange(4, 7)[None], past), sys.argv[2], dynamo=True, verbose=False,
                  input_names=["input_ids", "position_ids", *(f"past_key_values.{name}" for name in kept)], output_names=["logits", *(f"present.{name}" for name in kept)],
                  dynamic_shapes=({1: free}, {1: free}, tuple(({2: free}, {2: free}) for _ in range(layers))))
torch.onnx.export(Fixed(), (ids,), sys.argv[3], dynamo=True, verbose=False, input_names=["input_ids"], output_names=["logits"])
"""
# What the names of modules do not tell, and `firstdiff align` does.
INSIDE_ATTENTION = {"q_rope", "k_rope", "qk"}


def onnx_dump(*args, expect=0):
    done = subprocess.run([sys.executable, "-m", "firstdiff.dump", "onnx", *map(str, args), "--threads", "1"], capture_output=True, text=True, env=packaged())
    check(done.returncode == expect, f"onnx {' '.join(map(str, args))}: exit {done.returncode}, not {expect}: {done.stderr.strip()[-400:]}")
    return done.stderr


def packaged():
    """The environment, with this tree's package first."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "crates/trace/python"), *filter(None, [os.environ.get("PYTHONPATH")])])}


def check_onnx(root):
    """The exported model against PyTorch, prefill and decode; one whose weights were changed; what cannot be fed."""
    model, fixed, golden = root / "llama.onnx", root / "fixed.onnx", Dump(root / "llama.f32")
    done = subprocess.run([sys.executable, "-c", EXPORT, root / "llama", model, fixed], capture_output=True, text=True)
    check(done.returncode == 0, f"the export failed: {done.stderr[-600:]}")
    tokens, forced = ",".join(map(str, TOKENS)), ",".join(map(str, golden.note["decode_tokens"]))
    onnx_dump(model, "-o", root / "o.f32", "--tokens", tokens, "--decode-tokens", forced)
    found = Dump(root / "o.f32")
    values = {key: array for key, array in found.taps.items()}
    found.taps = {key: array.reshape(golden.taps[key].shape) for key, array in values.items() if key in golden.taps}  # heads side by side as an axis of their own
    for key, array in found.taps.items():
        if key[0].endswith(".scores"):  # a large negative number where PyTorch's dump has none
            array[np.isinf(golden.taps[key])] = -np.inf
    compare("llama: torch f32, ONNX Runtime", golden, found, LIMIT, {}, INSIDE_ATTENTION)
    check(len(values) > len(found.taps), "no value under its own name was written")
    check(found.note["precision"] == "f32" and found.note["complete"] and found.note["decode_tokens"] == golden.note["decode_tokens"], f"ONNX: {found.note}")
    onnx_dump(model, "-o", root / "o.greedy", "--tokens", tokens, "--decode", STEPS)
    check(Dump(root / "o.greedy").note["decode_tokens"] == golden.note["decode_tokens"], "ONNX: greedy decoding differs")
    onnx_dump(model, "-o", root / "o.given", "--tokens", tokens, "--names", "as-given")
    check(not set(Dump(root / "o.given").taps) & {key for key in golden.taps if key[0] != "logits"}, "--names as-given wrote names of taps")

    import onnx

    wrong = onnx.load(model)
    up = next(node for node in wrong.graph.node if node.op_type == "MatMul" and any("'model.layers.1.mlp.up_proj'" in prop.value for prop in node.metadata_props))
    from_weights = [up, *(node for node in wrong.graph.node if set(node.output) & set(up.input))]  # as it is, or transposed on the way
    tensor = next(tensor for node in from_weights for tensor in wrong.graph.initializer if tensor.name in node.input and len(tensor.dims) == 2)
    tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * np.float32(1.1), tensor.name))
    onnx.save(wrong, root / "wrong.onnx")
    onnx_dump(root / "wrong.onnx", "-o", root / "o.wrong", "--tokens", tokens)
    faulty = {tap for (tap, step), array in Dump(root / "o.wrong").taps.items()
              if (tap, step) in found.taps and not tap.endswith(".scores") and nmse(found.taps[tap, step], array.reshape(found.taps[tap, step].shape)) > LIMIT}
    first = next(tap for tap, _ in golden.taps if tap in faulty)
    check(first == "layers.1.ffn_up" and "layers.1.ffn_gate" not in faulty, f"ONNX: a scaled matrix shows first at {first}")

    strange = onnx.load(fixed)
    strange.graph.input.append(onnx.helper.make_tensor_value_info("pixel_values", 1, [1, 3]))
    onnx.save(strange, root / "strange.onnx")
    (root / "text.onnx").write_text("hello")
    for args, says in [
        ([root / "absent.onnx", "--tokens", "1"], "no such file"), ([root / "text.onnx", "--tokens", "1"], "no ONNX file"),
        ([root / "strange.onnx", "--tokens", "1,2,3"], "wants pixel_values"), ([fixed, "--tokens", tokens], "fixed shape"),
        ([fixed, "--tokens", "1,2,3", "--decode", "1"], "no decode steps"), ([model, "--tokens", f"1,{V + 9}"], "ONNX Runtime failed"),
        ([model, "--tokens", "1,2", "--taps", "nothing"], "no tap matches"),
    ]:
        said = onnx_dump(*args, "-o", root / "o.no", expect=2)
        check("error: " in said and says in said and "Traceback" not in said, f"ONNX {args}: {said[-300:]}")
        check(not (root / "o.no").exists(), f"ONNX {args} left a dump")


def check_refusals(root):
    """One clear line, exit 2, nothing left behind."""
    (root / "broken.gguf").write_bytes((root / "llama.gguf").read_bytes()[:5000])
    (root / "text.gguf").write_text("hello")
    (root / "foreign").mkdir()
    (root / "foreign/config.json").write_text('{"model_type": "gpt2"}')
    (root / "taken").mkdir()
    (root / "taken/mine.txt").write_text("keep")
    before = set(root.iterdir())
    out = ["-o", root / "no", "--tokens", "1,2"]
    for name, *args in [
        ("dump_torch.py", root / "absent", *out), ("dump_torch.py", root / "foreign", *out),
        ("dump_torch.py", root / "llama", "-o", root / "no", "--tokens", f"1,{V}"), ("dump_torch.py", root / "llama", "-o", root / "no", "--tokens", "1,x"),
        ("dump_torch.py", root / "llama", "-o", root / "no", "--text", "hello"), ("dump_torch.py", root / "llama", *out, "--taps", "nothing"),
        ("dump_torch.py", root / "llama", "-o", root / "taken", "--tokens", "1", "--force"),
        ("dump_llama_cpp.py", root / "absent.gguf", *out), ("dump_llama_cpp.py", root / "text.gguf", *out),
        ("dump_llama_cpp.py", root / "broken.gguf", *out), ("dump_llama_cpp.py", root / "llama.gguf", "-o", root / "no", "--tokens", f"{V}"),
        ("dump_llama_cpp.py", root / "llama.gguf", *out, "--taps", "nothing"),
        ("convert/hf_to_gguf.py", root / "foreign", root / "no"), ("convert/hf_to_gguf.py", root / "absent", root / "no"),
    ]:
        for program in (False, True) if name.startswith("dump_") else (False,):
            said = script(name, *args, expect=2, program=program)
            last = said.strip().splitlines()[-1] if said.strip() else ""
            check("error: " in last and "Traceback" not in said, f"{name} {args}: {said[-300:]}")
    left = {path.name for path in set(root.iterdir()) - before}
    check(not left, f"refused runs left {left}")
    script("dump_torch.py", root / "llama", "-o", root / "some", "--tokens", "1,2", "--taps", "layers.1.q*,logits", "--threads", 1)
    script("dump_torch.py", root / "llama", "-o", root / "some", "--tokens", "1,2,3", "--taps", "layers.1.q*,logits", "--force", "--threads", 1)
    taps = sorted(tap for tap, _ in Dump(root / "some").taps)
    check(taps == ["layers.1.q", "layers.1.q_rope", "layers.1.qk", "logits"], f"--taps wrote {taps}")


def check_programs(root):
    """What is written where nothing is said of it: the same values, and the program."""
    tokens, forced = ",".join(map(str, TOKENS)), ",".join(map(str, Dump(root / "llama.f32").note["decode_tokens"]))
    for name, model, by_hooks in (("dump_torch.py", root / "llama", "llama.f32"), ("dump_llama_cpp.py", root / "llama.gguf", "llama.cpp")):
        out = root / f"program-{by_hooks}"
        script(name, model, "-o", out, "--tokens", tokens, "--decode-tokens", forced, "--threads", 1, program=True)
        check((out / "program.json").is_file() and (out / "program.safetensors").is_file(), f"{name} wrote no program")
        # Scores are as the model has them there, with its own large negative number where it masks.
        plain = Dump(root / by_hooks)
        plain.taps = {key: value for key, value in plain.taps.items() if not key[0].endswith("scores")}
        program = Dump(out)
        check(program.note.pop("qk_rows") == plain.note["qk_rows"], f"{name}: the order of rows is another with a program")
        compare(f"{name}: without a program and with one", plain, program, LIMIT, {})
        lacking = set(plain.taps) - set(program.taps)
        check(not lacking, f"{name}: a run with its program lacks {sorted(lacking)[:4]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="GLOB", nargs="+", help="only these cases: " + ", ".join(CASES))
    parser.add_argument("--with-checks", action="store_true", help="what is asked beside the cases too: precisions, programs, ONNX, what is refused")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in DIR and leave everything there")
    args = parser.parse_args()
    by_kind = {pair: {} for pair in ("torch f64, torch f32", "torch f32, torch f32 sdpa", "torch f32, llama.cpp f32", "torch f64, llama.cpp f32")}
    with tempfile.TemporaryDirectory() as scratch:
        root = args.keep or Path(scratch)
        root.mkdir(parents=True, exist_ok=True)
        for name in CASES:
            if not args.only or any(fnmatch.fnmatchcase(name, wanted) for wanted in args.only):
                run_case(name, root, by_kind)
        if args.with_checks or not args.only:
            check_precisions(root)
            check_programs(root)
            check_onnx(root)
            check_refusals(root)
    for pair, worst in by_kind.items():
        print(f"\n{pair}: worst NMSE by kind of tap")
        for kind, (error, case, tap, step) in worst.items():
            print(f"  {kind:12} {error:.1e}  {case.split(':')[0]}, {tap} step {step}")
    print(f"\n{len(FAILED)} failures" if FAILED else "\nall agree")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())

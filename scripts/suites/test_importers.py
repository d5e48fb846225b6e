#!/usr/bin/env python3
"""Tests that firstdiff reads the files of other programs, and still finds mistakes in them.

    test_importers.py [--firstdiff target/release/firstdiff] [--keep DIR]

A golden run of PyTorch (fixtures/golden/llama-torch) and an engine with a wrong rotation (fixtures/faulty/llama-rope-pairing) are written in every
form that people have: each must be at parity with the golden run, and each fault be found at layers.0.q_rope. What a form cannot hold (a few
values, four decimals) is compared as far as it goes. transformers' debug tree is made by transformers itself, .pt files by torch, and the
log of llama.cpp's eval callback (fixtures/foreign) by llama.cpp.
Requirements: numpy, torch, transformers, safetensors (scripts/requirements.txt)
"""

import argparse
import base64
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import FIXTURES, ROOT

GOLDEN, FAULTY = FIXTURES / "golden/llama-torch", FIXTURES / "faulty/llama-rope-pairing"
FIRST = "layers.0.q_rope"


def taps(folder):
    """The prefill of a dump: tap to array."""
    return {p.stem: np.load(p) for p in sorted(folder.glob("*.npy")) if ".step" not in p.stem}


def celer(tap):
    """A name as MiniMind's C++ engine has it."""
    part = tap.split(".")
    table = {"attn_norm": "h_norm_l", "q": "q_flat_l", "k": "k_flat_l", "v": "v_flat_l", "q_rope": "q_rope_l", "k_rope": "k_rope_l",
             "probs": "probs_l", "context": "attn_out_flat_l", "attn_out": "attn_proj_l", "h_attn": "h1_attn_l", "ffn_norm": "ffn_norm_l",
             "ffn_gate": "ffn_gate_l", "ffn_up": "ffn_up_l", "ffn_out": "ffn_out_l", "h": "h0_ffn_l"}
    if len(part) == 1:
        return tap if tap != "final_norm" else None
    return f"{table[part[2]]}{part[1]}" if part[2] in table else None


def lens(tap):
    part = tap.split(".")
    table = {"q": "attn.hook_q", "k": "attn.hook_k", "v": "attn.hook_v", "q_rope": "attn.hook_rot_q", "k_rope": "attn.hook_rot_k",
             "scores": "attn.hook_attn_scores", "probs": "attn.hook_pattern", "attn_out": "hook_attn_out", "h_attn": "hook_resid_mid",
             "h": "hook_resid_post", "context": "attn.hook_z"}
    if tap == "h0":
        return "hook_embed"
    if len(part) == 1:
        return tap
    return f"blocks.{part[1]}.{table[part[2]]}" if part[2] in table else None


# ---- writers, each of its own form; all are given {tap: array} and an empty folder, and give what is to be compared ----


def raw(suffix, dtype):
    def write(x, out):
        for tap, a in x.items():
            a.astype(dtype).tofile(out / f"{tap}{suffix}")
        return out

    return write


def raw_bf16(x, out):
    for tap, a in x.items():
        bits = np.ascontiguousarray(a, "<f4").view("<u4")
        ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tofile(out / f"{tap}.bf16")
    return out


def headless(x, out):
    for tap, a in x.items():
        if celer(tap):
            a.astype("<f4").tofile(out / f"{celer(tap)}_cpp.npy")
    return f"{out}/*_cpp.npy"


def text(line):
    def write(x, out):
        for tap, a in x.items():
            (out / f"{tap}.txt").write_text("".join(line(i, v) for i, v in enumerate(a.ravel())))
        return out

    return write


def headed(x, out):
    """A heading, then a value a line."""
    for tap, a in x.items():
        (out / f"{tap}.txt").write_text(f"output of {tap}:\n" + "".join(f"{v!s}\n" for v in a.ravel()))
    return out


def one_text(x, out):
    """All in one file, `layer 0 q [11, 6, 16]: 0.1 0.2 ..` a line."""
    named = ((f"layer {tap.split('.')[1]} {tap.split('.')[2]}" if "." in tap else tap, a) for tap, a in x.items())
    (out / "run.log").write_text("loading the model\n" + "".join(
        f"{name} {list(a.shape)}: {' '.join(map(str, a.ravel()))}\n" for name, a in named))
    return out / "run.log"


def numpy_print(x, out):
    with np.printoptions(threshold=sys.maxsize, precision=9):
        for tap, a in x.items():
            (out / f"{tap}.txt").write_text(str(a))
    return out


def torch_print(x, out):
    """As PyTorch prints them, the large ones in part, under their extents."""
    import torch

    (out / "run.txt").write_text("".join(f"{tap} {tuple(a.shape)} = {torch.from_numpy(np.array(a))}\n" for tap, a in x.items()))
    return out / "run.txt"


def json_text(x, out):
    for tap, a in x.items():
        (out / f"{tap}.txt").write_text(json.dumps(a.astype(float).tolist()))
    return out


def one_archive(x, out):
    np.savez(out / "acts.npz", **x)
    return out


def step_folders(x, out):
    (out / "step_0").mkdir()
    for tap, a in x.items():
        np.save(out / "step_0" / f"{tap}.npy", a)
    return out


def json_arrays(x, out):
    path = out / "taps.json"
    path.write_text(json.dumps({"tokens": TOKENS, **{tap: a.astype(float).tolist() for tap, a in x.items()}}))
    return path


def json_base64(x, out):
    path = out / "taps.json"
    tensors = [{"name": tap, "shape": list(a.shape), "dtype": "float32", "encoding": "base64",
                "data": base64.b64encode(a.astype("<f4").tobytes()).decode()} for tap, a in x.items()]
    path.write_text(json.dumps({"meta": {"engine": "x"}, "taps": tensors}))
    return path


def json_lines(x, out):
    """The first eight values, inf as 1e308."""
    path = out / "trace.jsonl"
    with path.open("w") as f:
        for tap, a in x.items():
            if tap.endswith(("scores", "qk")):
                continue
            values = [min(max(float(v), -1e308), 1e308) for v in a.ravel()[:8]]
            f.write(json.dumps({"name": tap, "shape": list(a.shape), "values": values}) + "\n")
    return path


def manifest(x, out):
    """One token after the other, as llama-orch has it: a row a file."""
    points = []
    for tap, a in x.items():
        if a.ndim == 3 and tap.rsplit(".", 1)[-1] in ("qk", "scores", "probs"):
            continue
        row = a[-1].ravel().astype("<f4")
        row.tofile(out / f"{tap}.bin")
        points.append({"name": tap, "token_idx": len(a) - 1, "count": row.size, "dtype": "f32", "file": f"{tap}.bin"})
    path = out / "run.manifest.json"
    path.write_text(json.dumps({"checkpoints": points}))
    return path


def ort_web(x, out, data=lambda x: x.ravel().tolist()):
    tensors = {tap: {"dims": list(x.shape), "type": "float32", "data": data(x)} for tap, x in x.items()}
    # JSON has no infinity: what is masked is null, as JSON.stringify writes it.
    text = json.dumps(tensors).replace("-Infinity", "null")
    (out / "ort.json").write_text(text)
    return out / "ort.json"


def ort_web_by_index(x, out):
    return ort_web(x, out, lambda x: {str(i): value for i, value in enumerate(x.ravel().tolist())})


GGUF = {"attn_norm": "attn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v", "attn_out": "attn_output", "ffn_norm": "ffn_norm",
        "ffn_gate": "ffn_gate", "ffn_up": "ffn_up", "ffn_out": "ffn_down"}


def gguf_names(x, out):
    """The weights' names for what they make; what has none, under firstdiff's."""
    name = {"h0": "token_embd", "final_norm": "output_norm"}
    for tap in x:
        part = tap.split(".")
        if len(part) == 3 and part[2] in GGUF:
            name[tap] = f"blk.{part[1]}.{GGUF[part[2]]}"
    np.savez(out / "run.npz", **{name.get(tap, tap): x for tap, x in x.items()})
    return out / "run.npz"


def step_archives(x, out):
    """The run's prefill; and the golden run's steps behind it, which are right in both."""
    np.savez(out / "step0.npz", **x)
    for step in (1, 2):
        files = {p.name[:-len(f".step{step}.npy")]: np.load(p) for p in GOLDEN.glob(f"*.step{step}.npy")}
        np.savez(out / f"step{step}.npz", **files)
    return out


def table_beside(x, out):
    own = {tap: f"mine_{tap.replace('layers.', 'L').replace('.', '_')}" for tap in x}
    np.savez(out / "mine.npz", **{own[tap]: x for tap, x in x.items()})
    (out / "firstdiff.toml").write_text("".join(f'"{name}" = "{tap}"\n' for tap, name in own.items()))
    return out / "mine.npz"


def npz(x, out):
    np.savez(out / "x.npz", **x)
    return out / "x.npz"


def safetensors(x, out):
    from safetensors.numpy import save_file

    save_file({(lens(tap) or tap): np.ascontiguousarray(a) for tap, a in x.items()}, out / "x.safetensors")
    return out / "x.safetensors"


def pt(x, out):
    import torch

    for tap, a in x.items():
        t = torch.from_numpy(np.array(a))
        # Views, as hooks give them: a transposed storage, a batch axis.
        t = t.transpose(0, 1).contiguous().transpose(0, 1) if t.ndim > 1 else t
        torch.save(t[None] if tap == "h0" else t, out / f"{tap}.pt")
    return out


def sglang(x, out):
    import torch

    for index, (tap, a) in enumerate(x.items()):
        part = tap.split(".")
        layer = f"___layer_id={part[1]}" if len(part) == 3 else ""
        name = f"step=0___rank=0___dump_index={index}___name={part[-1]}{layer}.pt"
        torch.save({"value": torch.from_numpy(np.array(a)), "meta": {"rank": 0, "name": part[-1]}}, out / name)
    return out


FORMS = [
    ("raw .f32", raw(".f32", "<f4"), None),
    ("raw .bin, type guessed", raw(".bin", "<f4"), None),
    ("raw .f16", raw(".f16", "<f2"), "f16"),
    ("raw .bin of f16, type guessed", raw(".bin", "<f2"), "f16"),
    ("raw .bf16", raw_bf16, "bf16"),
    (".npy without header, celer_infer's names", headless, None),
    ("text, v", text(lambda i, v: f"{v!s}\n"), None),
    ("text, i v", text(lambda i, v: f"{i} {v:.9g}\n"), None),
    ("text, i: v, six decimals", text(lambda i, v: f"{i}: {v:.6f}\n"), None),
    ("text, [i] = v, three decimals", text(lambda i, v: f"[{i}] = {v:.3f}\n"), None),
    ("text, %.4e", text(lambda i, v: f"{v:.4e}\n"), None),
    ("text, a heading first", headed, None),
    ("text, all in one, layer N", one_text, None),
    ("text, as NumPy prints", numpy_print, None),
    ("text, as PyTorch prints, some in part", torch_print, None),
    ("JSON arrays in .txt", json_text, None),
    ("a folder of one .npz", one_archive, None),
    ("a folder for each step", step_folders, None),
    ("JSON arrays", json_arrays, None),
    ("JSON base64", json_base64, None),
    ("JSON lines, first 8 values", json_lines, None),
    ("manifest and binaries, the last token", manifest, None),
    (".npz", npz, None),
    (".safetensors, TransformerLens' names", safetensors, None),
    (".pt of torch.save", pt, None),
    (".pt as SGLang's dumper writes them", sglang, None),
    ("JSON of ONNX Runtime's tensors", ort_web, None),
    ("JSON of ONNX Runtime's tensors, by index", ort_web_by_index, None),
    ("names of GGUF's weights", gguf_names, None),
    ("an archive for each step", step_archives, None),
    ("names of one's own, firstdiff.toml beside the file", table_beside, None),
]


def hidden_states(x, out, last=None):
    """transformers' output_hidden_states: the last one has passed the final norm; `last`: only the first so many were kept."""
    layers = sum(tap.endswith(".h") for tap in x)
    streams = [x["h0"], *(x[f"layers.{n}.h"] for n in range(layers - 1)), x["final_norm"]][:last]
    arrays = {f"hidden_states.{n}": stream[None] for n, stream in enumerate(streams)}
    np.savez(out / "hidden.npz", **arrays, **({} if last else {"logits": x["logits"]}))
    return out / "hidden.npz"


def logits_check(x, out, side, tokens):
    """data/pytorch-MODEL.bin or data/llamacpp-MODEL.bin of llama.cpp's examples/model-conversion."""
    base = out / f"{side}-model"
    last = x["logits"][-1].astype(np.float32)
    last.tofile(f"{base}.bin")
    Path(f"{base}.txt").write_text("".join(f"{i}: {value:.6f}\n" for i, value in enumerate(last)))
    if tokens is not None:
        np.array(tokens, np.int32).tofile(f"{base}-tokens.bin")
        Path(f"{base}-prompt.txt").write_text(f"prompt: x\nn_tokens: {len(tokens)}\ntoken ids: {', '.join(map(str, tokens))}\n")
    return Path(f"{base}.bin")


def compare(binary, candidate, profile, *more, reference=GOLDEN):
    args = [str(binary), "compare", str(reference), str(candidate), "--json", "-", *more]
    if profile:
        args += ["--profile", profile]
    done = subprocess.run(args, capture_output=True, text=True)
    report = json.loads(done.stdout) if done.stdout else {}
    first = report.get("first_divergence") or {}
    compared = sum(t["status"] != "unchecked" for t in report.get("taps", []))
    return done.returncode, first.get("tap"), compared, report.get("warnings", []), done.stderr.strip()


def debug_tree(out, use_repr):
    """transformers' own debugger on the golden model."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.model_debugging_utils import model_addition_debugger_context

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(FIXTURES / "models/llama", torch_dtype=torch.float32, attn_implementation="eager")
    with model_addition_debugger_context(model, debug_path=str(out), do_prune_layers=False, use_repr=use_repr):
        model(torch.tensor([TOKENS]))
    return out / "LlamaForCausalLM_debug_tree_FULL_TENSORS.json"


def main():
    global TOKENS
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--firstdiff", type=Path, default=ROOT / "target/release/firstdiff")
    p.add_argument("--keep", type=Path)
    a = p.parse_args()
    TOKENS = json.loads((GOLDEN / "dump.json").read_text())["tokens"]
    right, wrong = taps(GOLDEN), taps(FAULTY)
    failed = 0

    def check(what, ok, told):
        nonlocal failed
        failed += not ok
        print(f"{'ok  ' if ok else 'FAIL'} {what:<46} {told}")

    with tempfile.TemporaryDirectory() as temporary:
        base = a.keep or Path(temporary)
        for number, (name, write, profile) in enumerate(FORMS):
            for kind, x in (("right", right), ("wrong", wrong)):
                out = base / f"{number}-{kind}"
                out.mkdir(parents=True)
                more = ["--rows", "last"] if "last token" in name else []
                code, first, compared, told, error = compare(a.firstdiff, write(x, out), profile, *more)
                # The first values are those of position 0, where every rotation is right: that must be said, and is no parity.
                blind = "first 8 values" in name
                undecided = code == 2 and any("only position 0" in w for w in told)
                if kind == "right":
                    ok = undecided if blind else code == 0
                    check(f"{name}: right", ok and compared >= 10, f"exit {code}, {compared} taps {error}")
                else:
                    ok = undecided if blind else code == 1 and first == FIRST
                    check(f"{name}: wrong", ok, f"exit {code}, first {first} {error}")
        for kind, x, due in (("right", right, (0, None)), ("wrong", wrong, (1, "layers.0.h"))):
            out = base / f"hidden-{kind}"
            out.mkdir()
            layers = sum(tap.endswith(".h") for tap in x)
            code, first, compared, _, error = compare(a.firstdiff, hidden_states(x, out), None)
            check(f"hidden_states.N: {kind}", (code, first) == due and compared == layers + 2, f"exit {code}, first {first}, {compared} taps {error}")
            # Of the first two alone the last is no final norm.
            code, first, compared, _, error = compare(a.firstdiff, hidden_states(x, out, 2), None)
            check(f"hidden_states.0 and .1: {kind}", (code, first) == due and compared == 2, f"exit {code}, first {first}, {compared} taps {error}")
        for kind, x, due in (("right", right, 0), ("wrong", wrong, 1)):
            out = base / f"check-{kind}"
            out.mkdir()
            for tokens in (TOKENS, None):
                code, first, compared, _, error = compare(
                    a.firstdiff, logits_check(x, out, "llamacpp", tokens), None, reference=logits_check(right, out, "pytorch", TOKENS))
                check(f"llama.cpp's check of logits, {'ids' if tokens else 'no ids'}: {kind}", code == due and compared == 1, f"exit {code}, first {first} {error}")
            other = logits_check(right, out, "llamacpp", [*TOKENS[:-1], TOKENS[-1] + 1])
            code, first, *_, error = compare(a.firstdiff, other, None, reference=out / "pytorch-model.bin")
            check("llama.cpp's check of logits, of other tokens", code == 2 and "token" in error, f"exit {code}, first {first} {error}")
        for use_repr in (True, False):
            out = base / f"tree-{use_repr}"
            out.mkdir()
            code, first, compared, _, error = compare(a.firstdiff, debug_tree(out, use_repr), None)
            check(f"transformers' debug tree, use_repr={use_repr}", code == 0 and compared >= 20, f"exit {code}, {compared} taps, {first} {error}")
        log = FIXTURES / "foreign/llama-eval-callback.log"
        code, first, compared, _, error = compare(a.firstdiff, log, "f16")
        check("llama.cpp's eval callback (f16 weights)", code == 0 and compared >= 30, f"exit {code}, {compared} taps, {first} {error}")
        args = [str(a.firstdiff), "compare", str(log), str(FAULTY), "--json", "-", "--profile", "f16"]
        report = json.loads(subprocess.run(args, capture_output=True, text=True).stdout)
        first = (report["first_divergence"] or {}).get("tap")
        check("the log as reference, a wrong engine", first == FIRST, f"first {first}")
        # A log in which one value is changed in the first decimal.
        text = log.read_text()
        at = text.index("l_out-0 = ")
        digit = text.index(".", text.index("[", text.index("[", text.index("[", at) + 1) + 1)) + 1
        spoiled = base / "spoiled.log"
        spoiled.write_text(text[:digit] + str((int(text[digit]) + 5) % 10) + text[digit + 1:])
        code, first, *_ = compare(a.firstdiff, spoiled, "f16")
        check("one value of the log in its first decimal", first == "layers.0.h", f"exit {code}, first {first}")
    print(f"{failed} failed" if failed else "all ok")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

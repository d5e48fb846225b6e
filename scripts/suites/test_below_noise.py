#!/usr/bin/env python3
"""Measures the smallest fault of each kind that `firstdiff explain` still names, in each arithmetic.

    python scripts/suites/test_below_noise.py [--json FILE] [--docs] [--command PATH] [--only KIND,..]

The faulty engine is PyTorch (f32, bf16, f16) with one number or function of the model changed, or llama.cpp (F32, F16, Q8_0, Q4_K_M) running a copy of
the file whose metadata says another number. Faults go from large to small until two in a row are not named; with every tap recorded, and with
the logits alone. Exit code 1 if a cause is stated that is not the one planted. --docs writes docs/measured/smallest.md. Requirements: requirements.txt
"""

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import ROOT, SCRIPTS
from scripts.suites.test_quantised import quantise, write_model
from scripts.suites.test_right import cut

TOKENS = "1,17,42,99,3,150,77,17,128,64,5,9,33"
# Kind: what is multiplied, its factors; in PyTorch a statement before the model is built, or a key of config.json; in llama.cpp a key of the metadata.
INIT = ("import transformers.models.llama.modeling_llama as m\nC = m.{cls}\nold = C.__init__\n"
        "def init(self, *a, **k):\n    old(self, *a, **k)\n    {change}\nC.__init__ = init\n")
KINDS = {
    "norm-eps": {"of": "epsilon", "factors": (1000, 100, 10, 3, 1.3, 1.05), "config": "rms_norm_eps",
                 "metadata": "llama.attention.layer_norm_rms_epsilon"},
    "rope-theta": {"of": "RoPE base", "factors": (50, 2, 1.1, 1.01, 1.001, 1.0001, 1.00001), "config": "rope_theta", "metadata": "llama.rope.freq_base"},
    "rope-attention-factor": {"of": "attention factor of q_rope and k_rope", "factors": (1.1, 1.03, 1.01, 1.003, 1.001, 1.0001),
                              "torch": INIT.format(cls="LlamaRotaryEmbedding", change="self.attention_scaling *= {factor}"),
                              "metadata": "llama.rope.scaling.attn_factor"},
    "score-scale": {"of": "factor on the scores", "factors": (1.1, 1.03, 1.01, 1.003, 1.001, 1.0001),
                    "torch": INIT.format(cls="LlamaAttention", change="self.scaling *= {factor}")},
    "activation": {"of": "GELU by tanh for GELU by erf", "factors": (1,), "config": "hidden_act", "value": "gelu_pytorch_tanh"},
}
# What is the same to whoever sees no scores: q times 1.01 and scores times 1.01.
SAME = {"rope-attention-factor": {"score-scale"}, "score-scale": {"rope-attention-factor"}}
KEPT = ("all taps", "logits")
TORCH, LLAMA_CPP = ("f32", "bf16", "f16"), ("F32", "F16", "Q8_0", "Q4_K_M")


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command[:3]} failed: {done.stderr[-400:]}")


def explained(command, model, dump):
    done = subprocess.run([command, "explain", model, dump, "--json", "-", "--faults", "1", "--seconds", "10"], capture_output=True, text=True)
    if done.returncode == 2:
        return "incomparable", []
    report = json.loads(done.stdout)
    return report["verdict"], [[f["cause"], *(a["cause"] for a in f["also"])] for f in report["findings"] if f["cause"]]


def of_llama_cpp(folder, arithmetic, kind, factor):
    """A dump of llama.cpp running the file with one number of its metadata multiplied."""
    faulty, dump = folder / "faulty.gguf", folder / "dump"
    shutil.copyfile(folder / f"{arithmetic}.gguf", faulty)
    reader = gguf.GGUFReader(faulty, "r+")
    field = reader.fields[KINDS[kind]["metadata"]]
    field.parts[field.data[0]][0] *= factor
    del reader
    shutil.rmtree(dump, ignore_errors=True)
    run(sys.executable, SCRIPTS / "dump_llama_cpp.py", faulty, "-o", dump, "--no-program", "--tokens", TOKENS)
    return folder / f"{arithmetic}.gguf", dump


def of_torch(folder, arithmetic, kind, factor):
    """A dump of PyTorch running the same weights with one thing changed."""
    how, right, faulty, dump = KINDS[kind], folder / f"right-{kind}", folder / "faulty", folder / "dump"
    for old in (faulty, dump):
        shutil.rmtree(old, ignore_errors=True)
    if not right.exists():
        shutil.copytree(folder / "llama", right)
        config = json.loads((right / "config.json").read_text())
        (right / "config.json").write_text(json.dumps(config | ({"hidden_act": "gelu"} if kind == "activation" else {})))
    shutil.copytree(right, faulty)
    config = json.loads((right / "config.json").read_text())
    if "config" in how:
        config[how["config"]] = how.get("value") or config.get(how["config"]) * factor
    (faulty / "config.json").write_text(json.dumps(config))
    in_a_fork(how.get("torch", "").format(factor=factor), [faulty, "-o", dump, "--tokens", TOKENS, "--dtype", arithmetic])
    return right, dump


def in_a_fork(change, arguments):
    """dump_torch.py after `change`, in a copy of this process: the import of PyTorch takes longer than the run."""
    from firstdiff.dump import pytorch as dump_torch
    import transformers.models.llama.modeling_llama  # noqa: F401

    def child():
        exec(change, {})
        sys.stderr = open(os.devnull, "w")
        sys.argv = ["dump_torch.py", "--no-program", *map(str, arguments)]
        sys.exit(dump_torch.main())

    sys.stdout.flush()
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(f"dump_torch.py {arguments} failed")


def with_key(source, target, key, value):
    """A copy of a file with one more number in its metadata."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind = field.types[0]
            sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, sub_type=sub)
    writer.add_float32(key, value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def smallest(command, make, folder, arithmetic, kind):
    """For all taps and for the logits: the smallest factor at which the kind is named, all that was said, and how often another was."""
    out = {kept: {"smallest": None, "tried": [], "wrong": 0} for kept in KEPT}
    for factor in KINDS[kind]["factors"]:
        # Two in a row that are not named: smaller ones are not tried.
        open_ = [kept for kept in KEPT if [t["said"] == "named" for t in out[kept]["tried"][-2:]] != [False, False]]
        if not open_:
            break
        model, dump = make(folder, arithmetic, kind, factor)
        for kept in open_:
            cut(dump, folder / "cut", kept)
            verdict, causes = explained(command, model, folder / "cut")
            right = {kind} | (SAME.get(kind, set()) if kept == "logits" else set())
            named = any(right & set(cause) for cause in causes)
            of = out[kept]
            of["wrong"] += any(not right & set(cause) for cause in causes)
            of["tried"].append({"factor": factor, "said": "named" if named else verdict, "causes": causes})
            of["smallest"] = factor if named else of["smallest"]
    return out


ABOUT = ("How small may a fault be? A faulty engine has one number or function of the model changed: PyTorch in its code, llama.cpp in a copy of the file whose metadata "
         "says another number. Faults become smaller until two in a row are not named. The script fails if another cause is named.")


def page(rows):
    """The tables of docs/measured/smallest.md."""
    text = ["# The smallest fault that is named", "", ABOUT, "",
            "A cell is the smallest factor at which `explain` names the mistake. `-`: it is named at none of the factors. Empty: this engine cannot be made to do it.",
            "Written by `python scripts/suites/test_below_noise.py --docs`."]
    columns = [("PyTorch", a) for a in TORCH] + [("llama.cpp", a) for a in LLAMA_CPP]
    for kept in KEPT:
        text += ["", f"## {'Every tap recorded' if kept == 'all taps' else 'The logits alone'}", "",
                 "| mistake | what is multiplied | " + " | ".join(f"{e} {a}" for e, a in columns) + " |", "|---|---|" + "---|" * len(columns)]
        for kind, how in KINDS.items():
            cells = []
            for engine, arithmetic in columns:
                row = next((r for r in rows if (r["engine"], r["arithmetic"], r["mistake"], r["kept"]) == (engine, arithmetic, kind, kept)), None)
                named = "named" if row and kind == "activation" and row["smallest"] else None
                cells.append("" if row is None else named or (f"x {row['smallest']}" if row["smallest"] else "-"))
            text.append(f"| {kind} | {how['of']} (tried: {', '.join(map(str, how['factors'])) if kind != 'activation' else 'once'}) | " + " | ".join(cells) + " |")
    return "\n".join(text) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--json", type=Path)
    p.add_argument("--docs", action="store_true")
    p.add_argument("--only", type=lambda text: text.split(","), default=list(KINDS))
    p.add_argument("--command", default=str(ROOT / "target" / "release" / "firstdiff"))
    a = p.parse_args()
    rows, wrong = [], 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_model(folder / "llama", "llama")
        run(sys.executable, SCRIPTS / "convert/hf_to_gguf.py", folder / "llama", folder / "plain.gguf")
        with_key(folder / "plain.gguf", folder / "F32.gguf", "llama.rope.scaling.attn_factor", 1.0)
        for kind in LLAMA_CPP[1:]:
            quantise(str(folder / "F32.gguf"), str(folder / f"{kind}.gguf"), kind)
        for engine, make, arithmetics in (("PyTorch", of_torch, TORCH), ("llama.cpp", of_llama_cpp, LLAMA_CPP)):
            for kind in a.only:
                if engine == "llama.cpp" and "metadata" not in KINDS[kind]:
                    continue
                for arithmetic in arithmetics:
                    for kept, found in smallest(a.command, make, folder, arithmetic, kind).items():
                        wrong += found["wrong"]
                        rows.append({"engine": engine, "arithmetic": arithmetic, "mistake": kind, "kept": kept, **found})
                        tried = ", ".join(f"{t['factor']}: {t['said']}" for t in found["tried"])
                        print(f"{engine:9} {arithmetic:6} {kind:21} {kept:8} smallest named: x {found['smallest']}   {tried}"
                              f"{'   WRONG' if found['wrong'] else ''}", flush=True)
    if a.json:
        a.json.write_text(json.dumps(rows, indent=1))
    if a.docs:
        (ROOT / "docs/measured/smallest.md").write_text(page(rows))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

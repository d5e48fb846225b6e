#!/usr/bin/env python3
"""Tests that the programs recorded by dump_llama_cpp.py compute what llama.cpp computed.
Small random models of many architectures are converted by llama.cpp's own converter and recorded with --program; then Rust evaluates the files in f64 (with a
cache in f16: in ggml's arithmetic), and every tap must be within rounding of the recorded one.

    python scripts/suites/test_ggml_programs.py --evaluate BINARY [NAME ..] [--each N] [--quantised] [--vendor FOLDER] [--keep FOLDER]

BINARY: the example evaluate of crates/program. FOLDER: llama.cpp as the source distribution of llama-cpp-python has it (vendor/llama.cpp); without it
that distribution is downloaded, once. --quantised: models 256 wide in Q8_0 and Q4_K_M instead, evaluated in ggml's arithmetic. --names: PyTorch's
program of the same model is recorded too, and where both give the same in the end, every tap of one name must be one tensor.
"""

import argparse
import json
import logging
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import traceback
from pathlib import Path

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import SCRIPTS
from scripts.suites import architectures
from scripts.suites.test_quantised import quantise
import firstdiff
from firstdiff.dump.llamacpp import NEEDS

TOKENS, DECODED = [5, 17, 42, 8, 91, 33, 60, 12, 77, 25, 3, 50], [7, 19]
# What f64 and ggml's f32 may differ by at any tap of these models; through a table of GELU by f16; and, where queries and probabilities are rounded
# to f16 as the keys and values that they meet, by one of them that falls on the other side.
F32_ROUNDING, GELU_TABLE, F16_CACHE = 1e-9, 2e-6, 3e-6
TABLES = {"ggml.UNARY.GELU", "ggml.UNARY.GELU_QUICK", "ggml.GLU.GEGLU", "ggml.GLU.GEGLU_QUICK"}
# In ggml's arithmetic activations are rounded as there, but a sum in another order may take one to the next step of 8 bits.
QUANTISED = 2e-3
# What llama.cpp has in fewer forms than transformers, of the configs in architectures.py.
CONFIGS = {
    "cohere": dict(use_qk_norm=False), "dots1": dict(num_key_value_heads=4), "olmoe": dict(num_key_value_heads=4), "phi": dict(intermediate_size=128),
    "gpt2": dict(n_inner=128), "hunyuan_v1_moe": dict(moe_topk=2), "t5": dict(decoder_start_token_id=0),
}
# What the converter expects in config.json beside it.
EXPECTED = {
    "cohere2": dict(rotary_pct=1.0), "gpt2": dict(n_ctx=64), "falcon": dict(num_kv_heads=1), "modernbert": dict(layer_norm_eps=1e-5),
    "hunyuan_v1_moe": dict(moe_topk=[2, 2], moe_intermediate_size=[24, 24], num_shared_expert=[1, 1]),
    "mpt": dict(architectures=["MPTForCausalLM"]),
}
# Not in architectures.py: an encoder with its decoder.
WHOLE_T5 = "t5_with_decoder"
# llama.cpp refuses these small models, or its converter does: why stands in its error.
REFUSED = set("dots1 phimoe gemma3n_text minimax recurrent_gemma zamba2 doge helium persimmon flex_olmo gptj codegen gpt_neo rwkv opt "
              "clip_text_model deberta-v2 whisper vit dinov2 siglip_vision_model clip_vision_model".split())
ALL = [*(name for name in architectures.CONFIGURED if name not in REFUSED), WHOLE_T5]
# Taps that PyTorch's side has as another tensor.
OTHER_TENSORS = {
    "bloom": {"qk"},  # with ALiBi added
    "distilbert": {"qk"},  # of queries that were scaled before
    "gpt_oss": {"probs", "qk"},  # with the sink's probability, and of a window
    **dict.fromkeys(("gemma2", "gemma3_text", "cohere2", "olmo3"), {"qk", "probs"}),  # of a window, whose cache is cut to its length
    **dict.fromkeys(("granitemoe", "granitemoeshared"), {"router_probs"}),  # of the chosen experts alone
    "granitemoehybrid": {"router_probs", "k", "v"},
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe"), {"q_rope", "k_rope"}),  # behind the norm that follows the rotation
    "falcon": {"k", "v"},  # the whole product of q, k and v
    **dict.fromkeys(("falcon_h1", "jamba", "lfm2", "qwen3_next"), {"k", "v", "k_rope"}),  # of the cache of all layers
}
# Both dumps' last tensors of each step are one, but for rounding.
SAME_MODEL = 1e-5
WIDE = "llama qwen2 qwen3 olmo2 phi3 ernie4_5 granite stablelm starcoder2 nemotron mixtral qwen3_moe".split()
WIDE_SIZES = dict(hidden_size=256, intermediate_size=512, num_attention_heads=4, head_dim=64, vocab_size=256)
KINDS = ["Q8_0", "Q4_K_M"]


def vendored(folder):
    """llama.cpp's converter: where the person says, or from the package index."""
    if folder is None:
        kept = Path.home() / ".cache" / f"firstdiff-llama-cpp-{NEEDS}"
        folder = kept / f"llama_cpp_python-{NEEDS}" / "vendor" / "llama.cpp"
        if not folder.is_dir():
            name = f"llama-cpp-python=={NEEDS}"
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "llama-cpp-python", name, "-d", kept]
            subprocess.run(pip, check=True)
            with tarfile.open(next(kept.glob("*.tar.gz"))) as archive:
                parts = ("/vendor/llama.cpp/conversion/", "/vendor/llama.cpp/gguf-py/")
                archive.extractall(kept, [member for member in archive if any(part in member.name for part in parts)], filter="data")
    sys.path[:0] = [str(folder / "gguf-py"), str(folder)]


def build(name):
    if name != WHOLE_T5:
        return architectures.build(name)
    torch.manual_seed(1)
    return transformers.T5ForConditionalGeneration(architectures.config("t5")).eval()


def convert(name, folder, file_type="ALL_F32"):
    """Writes the GGUF of a small random model, by llama.cpp's converter, without a vocabulary."""
    import gguf
    from conversion import ModelBase, get_model_class

    source = folder / "model"
    model = build(name)
    model.save_pretrained(source)
    vocabulary = model.config.vocab_size
    (source / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {str(n): n for n in range(vocabulary)}}, "added_tokens": []}))
    config = {**ModelBase.load_hparams(source, False), **EXPECTED.get(name, {})}
    (source / "config.json").write_text(json.dumps(config))
    converter = get_model_class(config["architectures"][0])

    def no_vocab(self):
        self.gguf_writer.add_tokenizer_model("no_vocab")
        self.gguf_writer.add_vocab_size(vocabulary)
        self.gguf_writer.add_token_type_count(config.get("type_vocab_size", 1))

    converter.set_vocab, converter.no_mtp = no_vocab, True
    path = folder / f"{name}.gguf"
    with torch.inference_mode():
        converter(source, gguf.LlamaFileType[file_type], path, eager=True, hparams=config).write()
    return path


def record(model, out, *options):
    script = [sys.executable, SCRIPTS / "dump_llama_cpp.py", model, "-o", out, "--program", "--threads", "1", "--tokens", ",".join(map(str, TOKENS))]
    decode = ["--decode-tokens", ",".join(map(str, DECODED))]
    done = subprocess.run([*script, *decode, *options], capture_output=True, text=True)
    if "keeps nothing between steps" in done.stderr:
        done = subprocess.run([*script, *options], capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"not recorded: {done.stderr.strip().splitlines()[-1]}")
    return json.loads((out / "program.json").read_text())


def taps_of(dump):
    return {(tap["tap"], tap["step"]): np.load(dump / tap["file"]).astype(np.float64) for tap in json.loads((dump / "dump.json").read_text())["taps"]}


def differs(reference, found):
    """How far a tensor is from another of as many elements, in either order of the rows of Q and K; 1 where it has other elements."""
    if reference.size != found.size:
        return 1.0
    found = found.reshape(reference.shape)
    orders = [found]
    if found.shape[-1] % 2 == 0:
        orders.append(found.reshape(*found.shape[:-1], -1, 2).swapaxes(-1, -2).reshape(found.shape))
    return min(float(((reference - one) ** 2).sum() / (reference ** 2).sum()) if reference.any() else float(one.any()) for one in orders)


def check_names(name, folder):
    """Whether taps of one name are one tensor; in words."""
    model = architectures.build(name)
    with firstdiff.record(model, folder / "torch", program=True):
        architectures.run(model, name)
    reference, found = taps_of(folder / "torch"), taps_of(folder / "dump-f32")
    shared = [key for key in reference if key in found]
    last = {step: (tap, step) for tap, step in shared}
    if any(differs(reference[key], found[key]) > SAME_MODEL for key in last.values()):
        return "llama.cpp runs another model than PyTorch: names not held against it"
    wrong = [tap for tap, step in shared if differs(reference[tap, step], found[tap, step]) > SAME_MODEL]
    unknown = [tap for tap in wrong if tap.rpartition(".")[2] not in OTHER_TENSORS.get(name, ())]
    if unknown:
        raise AssertionError(f"{unknown[0]} is another tensor than PyTorch's ({len(unknown)} such)")
    return f"{len(shared) - len(wrong)} taps are PyTorch's"


def evaluate(binary, dump, model, *arithmetic):
    """Taps, and the worst NMSE of them."""
    done = subprocess.run([binary, dump, model, *arithmetic], capture_output=True, text=True)
    found = re.search(r"(\d+) taps, worst NMSE (\S+), 0 with rows in another order, 0 not in the dump", done.stdout)
    if done.returncode or not found:
        raise AssertionError(f"evaluate: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    return int(found[1]), float(found[2])


def check_graph(dump):
    """Every tap of the dump stands in its graph, and reads what stands before it."""
    note = json.loads((dump / "dump.json").read_text())
    seen = set()
    for row in note["graph"]:
        assert seen >= set(row["reads"]), f"{row['tap']} reads what does not stand before it"
        seen.add(row["tap"])
    lacking = {entry["tap"] for entry in note["taps"]} - seen
    assert not lacking, f"graph lacks {sorted(lacking)[:3]}"


def check(name, folder, args):
    folder.mkdir(parents=True, exist_ok=True)
    model = convert(name, folder)
    words = []
    for cache, more, arithmetic in (("f32", F32_ROUNDING, []), ("f16", F16_CACHE, ["ggml"])):
        dump = folder / f"dump-{cache}"
        program = record(model, dump, "--cache", cache, "--force")
        check_graph(dump)
        count, worst = evaluate(args.evaluate, dump, model, *arithmetic)
        has_table = any(op["o"] in TABLES for op in program["ops"])
        bound = max(more, GELU_TABLE if has_table else 0)
        words.append(f"{worst:.1e}{' (GELU by table)' if has_table else ''}")
        if not worst <= bound:
            raise AssertionError(f"a tap is off by NMSE {worst:.1e}, cache {cache}")
        if "f16" not in {value[0] for value in program["values"]} and cache == "f16":
            words.pop()  # nothing is cached
    if args.names_too and name in architectures.ALL:
        words[-1] += "; " + check_names(name, folder)
    size = (folder / "dump-f32" / "program.json").stat().st_size
    print(f"  ok   {name:17} {len(program['ops']):4} operations, {len(program['steps'])} steps, {count:3} taps, {size / 1024:.0f} kB; "
          f"worst NMSE {', cache f16 '.join(words)}", flush=True)


def check_quantised(name, kind, folder, args):
    source = folder / name / f"{name}.gguf"
    if not source.exists():
        source.parent.mkdir(parents=True)
        convert(name, source.parent)
    model, dump = folder / name / f"{name}-{kind}.gguf", folder / name / kind
    quantise(source, model, kind)
    record(model, dump, "--force")
    (count, exact), (_, rounded) = evaluate(args.evaluate, dump, model), evaluate(args.evaluate, dump, model, "ggml")
    if not (rounded <= QUANTISED and rounded < exact):
        raise AssertionError(f"in ggml's arithmetic a tap is off by NMSE {rounded:.1e}, in f64 by {exact:.1e}")
    print(f"  ok   {name:17} {kind:6} {count:3} taps; worst NMSE {exact:.1e} in f64, {rounded:.1e} in ggml's arithmetic", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"architectures; all where none is named: {', '.join(ALL)}")
    parser.add_argument("--each", type=int, default=1, metavar="N", help="only every Nth")
    parser.add_argument("--names", dest="names_too", action="store_true", help="hold the taps against PyTorch's of one name")
    parser.add_argument("--quantised", action="store_true", help=f"wide models in {', '.join(KINDS)} instead, of {', '.join(WIDE)}")
    parser.add_argument("--evaluate", metavar="BINARY", required=True, help="the example evaluate of crates/program")
    parser.add_argument("--vendor", type=Path, metavar="FOLDER", help="llama.cpp as llama-cpp-python's source distribution has it")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep models and dumps here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    vendored(args.vendor)
    logging.disable(logging.CRITICAL)
    sizes = WIDE_SIZES if args.quantised else {}
    architectures.SIZES.update(sizes)
    for table in (architectures.DECODERS, architectures.OWN_NAMES, architectures.OWN_ENCODERS):
        for name in table:
            table[name] = {**table[name], **CONFIGS.get(name, {}), **({"moe_intermediate_size": 256} if args.quantised else {})}
    runs = [(name,) for name in args.names or ALL]
    if args.quantised:
        runs = [(name, kind) for name in args.names or WIDE for kind in KINDS]
    runs, wrong = runs[::args.each], []
    with tempfile.TemporaryDirectory() as temporary:
        base = args.keep or Path(temporary)
        for run in runs:
            try:
                if args.quantised:
                    check_quantised(*run, base, args)
                else:
                    check(*run, base / run[0], args)
            except (Exception, SystemExit) as error:
                wrong.append(run)
                place = traceback.extract_tb(error.__traceback__)[-1]
                at = f"{Path(place.filename).name}:{place.lineno}"
                print(f"FAIL   {' '.join(run):17} {type(error).__name__}: {str(error)[:200]} ({at})", flush=True)
            if not args.keep and not args.quantised:
                shutil.rmtree(base / run[0], ignore_errors=True)
    print(f"{len(runs) - len(wrong)} of {len(runs)} recorded from llama.cpp and evaluated within rounding")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

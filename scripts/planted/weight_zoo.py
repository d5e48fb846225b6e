#!/usr/bin/env python3
"""Checks that `firstdiff weights` names every planted mistake, and accepts every right conversion, on generated weight files.

    python scripts/planted/weight_zoo.py [--only GLOB] [--json FILE]            both of these, with the command built from here
    python scripts/planted/weight_zoo.py make DIR
    python scripts/planted/weight_zoo.py judge DIR --command target/release/firstdiff [--only GLOB] [--json FILE]

One random Llama (256 wide, 3 layers, 4 heads over 2, untied head), its first layer alone for the bulky formats, and one
Qwen2 (biases, tied head); right conversions of them into every format and into llama.cpp's quantised types; and planted
mistakes in each format, most of them found in the field. All of it is made without firstdiff's own code. DIR/cases.json
lists the pairs with what must be said of them. `judge` holds the command to it by exit code, verdict, cause and
tensors, and exits 1 unless every mistake is named, none wrongly, and nothing right is blamed. What cannot be told from
the values has the cause null: it must be called diverged, and no cause be made up. Needs scripts/requirements.txt.
"""

import argparse
import fnmatch
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import ROOT, SCRIPTS
from scripts.convert.hf_to_gguf import adjacent
from scripts.planted import weight_formats as form
from scripts.planted.weight_formats import D, F, H, K, V, d, permuted
from scripts.suites.test_quantised import quantise, run

LAYERS = 3
QUANTISED = ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K_M", "IQ4_NL", "IQ4_XS"]
Q, KEY, VALUE, OUT = (f"self_attn.{x}_proj.weight" for x in "qkvo")
GATE, UP, DOWN = (f"mlp.{x}_proj.weight" for x in ("gate", "up", "down"))
NORM, NORM2 = "input_layernorm.weight", "post_attention_layernorm.weight"
HEAD, EMBEDDING, LAST = "lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"
BIASES = [f"self_attn.{x}_proj.bias" for x in "qkv"]


def layer(n, stem):
    return f"model.layers.{n}.{stem}"


def everywhere(*stems, layers=LAYERS):
    return [layer(n, stem) for stem in stems for n in range(layers)]


def model(family, layers):
    """Random weights: gains that are not 1, biases that matter. Qwen2 takes its embedding for its head."""
    rng = np.random.default_rng(5)
    normal = lambda *shape: (rng.standard_normal(shape) * 1.2 / np.sqrt(shape[-1])).astype(np.float32)
    gain = lambda: (1 + 0.2 * rng.standard_normal(D)).astype(np.float32)
    weights = {EMBEDDING: normal(V, D) * 8, LAST: gain()}
    if family == "llama":
        weights[HEAD] = normal(V, D)
    shapes = {Q: (H * d, D), KEY: (K * d, D), VALUE: (K * d, D), OUT: (D, H * d)}
    shapes |= {GATE: (F, D), UP: (F, D), DOWN: (D, F)}
    for n in range(layers):
        weights |= {layer(n, stem): normal(*shape) for stem, shape in shapes.items()}
        weights |= {layer(n, NORM): gain(), layer(n, NORM2): gain()}
        if family == "qwen2":
            for bias, heads in zip(BIASES, (H, K, K)):
                weights[layer(n, bias)] = rng.standard_normal(heads * d).astype(np.float32)
    config = {"architectures": [f"{family.capitalize()}ForCausalLM"], "model_type": family, "hidden_size": D,
              "intermediate_size": F, "num_hidden_layers": layers, "num_attention_heads": H, "num_key_value_heads": K,
              "vocab_size": V, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
              "hidden_act": "silu",
              "tie_word_embeddings": family == "qwen2", "torch_dtype": "float32"}
    return weights, config


class Family:
    """One model, its Hugging Face folder, and the files made of it by name."""

    def __init__(self, base, name, weights, config, like=None):
        self.name, self.weights, self.config, self.made = name, weights, config, {}
        self.hf = form.write_hf_parts(base / name, weights, config, like and (like.hf, like.weights))

    def first_layer(self, base, name):
        """The same model cut off behind its first layer."""
        later = tuple(f"model.layers.{n}." for n in range(1, LAYERS))
        weights = {n: w for n, w in self.weights.items() if not n.startswith(later)}
        return Family(base, name, weights, self.config | {"num_hidden_layers": 1}, self)

    def but(self, changes):
        """The weights with some exchanged; None takes one out."""
        return {name: w for name, w in (self.weights | changes).items() if w is not None}


class Zoo:
    def __init__(self, base):
        self.base, self.cases, self.number = base, [], 0

    def path(self, ending=""):
        self.number += 1
        return self.base / f"wrong{self.number:02}{ending}"

    def add(self, name, a, b, right, cause, tensors, note):
        a, b = (str(path.relative_to(self.base)) for path in (a, b))
        case = {"id": name, "a": a, "b": b, "right": right, "cause": cause, "tensors": sorted(tensors), "note": note}
        self.cases.append(case)

    def right(self, name, a, b, note=""):
        self.add(name, a, b, True, None, [], note)

    def wrong(self, name, a, b, cause, tensors, note=""):
        self.add(name, a, b, False, cause, tensors, note)

    def hf(self, family, changes, config=None):
        """A Hugging Face folder that shares with the family's the files that are the same."""
        like = (family.hf, family.weights)
        return form.write_hf_parts(self.path(), family.but(changes), config or family.config, like)

    def gguf(self, weights, kind, **how):
        """A GGUF; types that PyPI gguf cannot write are made by llama.cpp from f32."""
        out = self.path(".gguf")
        if kind in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"):
            return form.write_gguf(out, weights, Type[kind], **how)
        f32 = form.write_gguf(out.with_suffix(".f32"), weights, **how)
        quantise(f32, out, kind)
        f32.unlink()
        return out


# ---- right ----


def right_conversions(zoo, family):
    base, name, made = zoo.base, family.name, family.made
    for dtype in ("f32", "f16", "bf16"):
        made[dtype] = base / f"{name}-{dtype}.gguf"
        run(sys.executable, SCRIPTS / "convert/hf_to_gguf.py", family.hf, made[dtype], "--dtype", dtype)
        zoo.right(f"{name}: GGUF {dtype}", family.hf, made[dtype])
    for kind in QUANTISED:
        made[kind] = base / f"{name}-{kind}.gguf"
        quantise(made["f32"], made[kind], kind)
        form.check_by_hand(made[kind])
        zoo.right(f"{name}: GGUF {kind}", family.hf, made[kind])
    zoo.right(f"{name}: GGUF Q8_0 against Q4_K_M", made["Q8_0"], made["Q4_K_M"])
    zoo.right(f"{name}: the other way round", made["Q6_K"], family.hf)
    few = {"Q8_0": ("token_embd", "output_norm", "blk.0."), "Q4_K_M": ("output_norm", "blk.1.")}
    few |= dict.fromkeys(("Q4_0", "Q5_0", "Q5_K_M", "Q6_K", "IQ4_XS"), "blk.1.attn_")
    for kind, only in few.items() if name == "llama" else [("Q5_K_M", "blk.")]:
        dump = form.write_dump(base / f"{name}-dump-{kind}", made[kind], only)
        zoo.right(f"{name}: dump of {'a few of ' * bool(only)}{kind}", made[kind], dump)


def right_folders(zoo, family, *kinds):
    for kind in kinds:
        folder = zoo.base / f"{family.name}-hf-{kind}"
        family.made[f"hf-{kind}"] = form.write_hf(folder, family.weights, family.config, kind)
        zoo.right(f"{family.name}: Hugging Face {kind}", family.hf, folder)


def right_bulky(zoo, llama, small):
    base = zoo.base
    np.savez(base / "small.npz", **small.weights)
    zoo.right("npz", small.hf, base / "small.npz")
    for version in (0, 1):
        zoo.right(f"llama2.c version {version}", small.hf,
                  form.write_llama2c(base / f"v{version}.bin", small.weights, version))
    zoo.right("llama2.c version 2", llama.hf, form.write_llama2c(base / "v2.bin", llama.weights, 2))
    zoo.right("llama2.c version 2, groups of 32", small.hf,
              form.write_llama2c(base / "v2-32.bin", small.weights, 2, 32))
    zoo.right("llama2.c version 2 against Q4_K_M", base / "v2.bin", llama.made["Q4_K_M"])
    zoo.right("llama2.c version 0 against npz", base / "v0.bin", base / "small.npz")
    for reverse, axes in ((False, "[out,in]"), (True, "[in,out]")):
        zoo.right(f"MiniMind, {axes}", small.hf,
                  form.write_minimind(base / f"minimind{reverse:d}.json", small.weights, reverse))
    zoo.right("MiniMind against llama2.c", base / "minimind0.json", base / "v1.bin")


# ---- planted ----


def rows_of_q_and_k(zoo, llama, small, qwen2):
    hf, weights = llama.hf, llama.weights
    plain = lambda name, w: w
    twice = lambda name, w: permuted(name, permuted(name, w))
    h_heads = lambda name, w: adjacent(w, H) if "q_proj" in name or "k_proj" in name else w
    but_one = lambda name, w: w if name == layer(1, Q) else permuted(name, w)
    cause, both = "qk-row-order", everywhere(Q, KEY)
    zoo.wrong("Q and K not permuted, Q8_0", small.hf, zoo.gguf(small.weights, "Q8_0", permute=plain), cause,
              everywhere(Q, KEY, layers=1))
    zoo.wrong("Q and K not permuted, Q4_K_M", hf, zoo.gguf(weights, "Q4_K_M", permute=plain), cause, both)
    zoo.wrong("permuted twice, Q6_K", hf, zoo.gguf(weights, "Q6_K", permute=twice), cause, both)
    zoo.wrong("K permuted with H heads, Q5_K_M", hf, zoo.gguf(weights, "Q5_K_M", permute=h_heads), cause,
              everywhere(KEY))
    zoo.wrong("Q of one layer not permuted, Q5_1", hf, zoo.gguf(weights, "Q5_1", permute=but_one), cause, [layer(1, Q)])
    zoo.wrong("a Hugging Face folder with GGUF's order", hf,
              zoo.hf(llama, {layer(0, Q): adjacent(weights[layer(0, Q)], H)}), cause, [layer(0, Q)])
    zoo.wrong("llama2.c version 2, not permuted", small.hf,
              form.write_llama2c(zoo.path(".bin"), small.weights, 2, permute=plain), cause,
              everywhere(Q, KEY, layers=1))
    backwards = small.but({layer(0, KEY): form.unpermuted(KEY, small.weights[layer(0, KEY)])})
    np.savez(out := zoo.path(".npz"), **{name: w.astype(np.float16) for name, w in backwards.items()})
    zoo.wrong("npz in f16, K permuted back though it was right", small.hf, out, cause, [layer(0, KEY)])
    one_key = {"blk.1.attn_k.weight": lambda values, _: form.unpermuted(KEY, values)}
    both_layers = tuple(f"blk.{n}.attn_{x}." for n in (0, 1) for x in "qk")
    zoo.wrong("dump: K of one layer in another order than the rest", llama.made["f32"],
              form.write_dump(zoo.path(), llama.made["f32"], both_layers, one_key), cause, [layer(1, KEY)])
    zoo.wrong("Qwen2 permuted as a llama is, Q8_0", qwen2.hf, zoo.gguf(qwen2.weights, "Q8_0", arch="qwen2"), cause,
              everywhere(Q, KEY, *BIASES[:2], layers=1), "its biases too, as a converter that goes by the name would")


def orientation(zoo, llama, small):
    hf, w, cause = llama.hf, llama.weights, "weight-transposed"
    turned = lambda name: np.ascontiguousarray(w[name].T).reshape(w[name].shape)
    zoo.wrong("up stored as [in,out]", hf, zoo.hf(llama, {layer(1, UP): w[layer(1, UP)].T}), cause, [layer(1, UP)])
    zoo.wrong("memory of [in,out] as [out,in]", hf, zoo.hf(llama, {layer(2, UP): turned(layer(2, UP))}), cause,
              [layer(2, UP)])
    zoo.wrong("square o transposed", hf, zoo.hf(llama, {layer(0, OUT): w[layer(0, OUT)].T}), cause, [layer(0, OUT)])
    zoo.wrong("square q transposed", hf, zoo.hf(llama, {layer(2, Q): w[layer(2, Q)].T}), cause, [layer(2, Q)])
    edit = lambda n, key, x: x.T if key == "w_up" else x
    zoo.wrong("MiniMind: the memory of up turned", small.hf,
              form.write_minimind(zoo.path(".json"), small.weights, edit=edit), cause, [layer(0, UP)])
    down = small.but({layer(0, DOWN): turned(layer(0, DOWN))})
    zoo.wrong("llama2.c version 2: the memory of down turned", small.hf, form.write_llama2c(zoo.path(".bin"), down, 2),
              cause, [layer(0, DOWN)])
    engine = lambda values, tensor: np.ascontiguousarray(values.reshape(values.shape[::-1]).T)
    engine_up = {"blk.0.ffn_up.weight": engine}
    dump = form.write_dump(zoo.path(), llama.made["Q8_0"], ("blk.0.ffn_up", "blk.0.attn_k"), engine_up)
    zoo.wrong("dump: engine read [in,out]", llama.made["Q8_0"], dump, cause, [layer(0, UP)])


def other_tensors(zoo, llama, small, qwen2):
    hf, w = llama.hf, llama.weights
    gate_up = {layer(n, a): w[layer(n, b)] for n in range(LAYERS) for a, b in ((GATE, UP), (UP, GATE))}
    zoo.wrong("gate and up exchanged, Q4_K_M", hf, zoo.gguf(llama.but(gate_up), "Q4_K_M"), "weight-swapped",
              everywhere(GATE, UP))
    one = small.but({layer(0, GATE): w[layer(0, UP)], layer(0, UP): w[layer(0, GATE)]})
    zoo.wrong("llama2.c version 2: w1 and w3 exchanged", small.hf, form.write_llama2c(zoo.path(".bin"), one, 2),
              "weight-swapped",
              everywhere(GATE, UP, layers=1))
    k_v = {layer(0, KEY): w[layer(0, VALUE)].copy(), layer(0, VALUE): w[layer(0, KEY)].copy()}
    zoo.wrong("k and v exchanged", hf, zoo.hf(llama, k_v), "weight-swapped", [layer(0, KEY), layer(0, VALUE)])
    down, out = {layer(0, DOWN): w[layer(1, DOWN)]}, {layer(2, OUT): w[layer(1, OUT)]}
    zoo.wrong("llama2.c version 2: down of the next layer", hf,
              form.write_llama2c(zoo.path(".bin"), llama.but(down), 2), "weight-wrong-layer",
              [layer(0, DOWN)])
    zoo.wrong("o of the layer before, Q4_0", hf, zoo.gguf(llama.but(out), "Q4_0"), "weight-wrong-layer",
              [layer(2, OUT)])
    zoo.wrong("another norm's gains", hf, zoo.hf(llama, {layer(2, NORM): w[layer(2, NORM2)].copy()}),
              "norm-wrong-weight", [layer(2, NORM)])
    zoo.wrong("the head is the embedding", hf, zoo.hf(llama, {HEAD: w[EMBEDDING].copy()}), "head-tied", [HEAD])
    zoo.wrong("no head in the file, Q5_0", small.hf, zoo.gguf(small.but({HEAD: None}), "Q5_0"), "head-tied", [HEAD])
    no_head = form.write_llama2c(zoo.path(".bin"), small.weights, 0, shared=True)
    zoo.wrong("llama2.c version 0: the vocabulary's sign lost, no head", small.hf, no_head, "head-tied", [HEAD])
    own_head = np.random.default_rng(8).standard_normal((V, D)).astype(np.float32) / 14
    untied = zoo.hf(qwen2, {HEAD: own_head}, qwen2.config | {"tie_word_embeddings": False})
    zoo.wrong("a head of its own though tied", qwen2.hf, untied, "head-untied", [HEAD])
    ties = zoo.hf(small, {}, small.config | {"tie_word_embeddings": True})
    zoo.wrong("a head that the config says is not read", ties, zoo.gguf(small.weights, "F32"), "head-untied", [HEAD])
    zoo.right("the same, converted as transformers reads it", ties, zoo.gguf(small.but({HEAD: None}), "F16"))
    zoo.wrong("q's bias left out", qwen2.hf, zoo.hf(qwen2, {layer(0, BIASES[0]): None}), "bias-omitted",
              [layer(0, BIASES[0])])
    biases = everywhere(*BIASES, layers=1)
    without = zoo.gguf(qwen2.but(dict.fromkeys(biases)), "Q6_K", arch="qwen2", permute=lambda n, x: x)
    zoo.wrong("all biases left out, Q6_K", qwen2.hf, without, "bias-omitted", biases)
    zoo.wrong("up of a layer is missing", hf, zoo.hf(llama, {layer(1, UP): None}), None, [layer(1, UP)])


def not_set(zoo, llama, small):
    hf, w, rng = llama.hf, llama.weights, np.random.default_rng(3)
    zeros = small.but({layer(0, VALUE): 0 * w[layer(0, VALUE)]})
    zoo.wrong("zeros, Q8_0", small.hf, zoo.gguf(zeros, "Q8_0"), "weight-unset", [layer(0, VALUE)])
    zoo.wrong("a norm of ones", hf, zoo.hf(llama, {LAST: np.ones(D, np.float32)}), "weight-unset", [LAST])
    zoo.wrong("a matrix of one value", hf, zoo.hf(llama, {layer(2, OUT): np.full((D, D), 0.02, np.float32)}),
              "weight-unset", [layer(2, OUT)])
    unfilled = {"blk.0.attn_v.weight": lambda values, _: 0 * values}
    dump = form.write_dump(zoo.path(), llama.made["Q4_K_M"], "blk.0.attn_", unfilled)
    zoo.wrong("dump: never filled", llama.made["Q4_K_M"], dump, "weight-unset", [layer(0, VALUE)])
    noise = rng.standard_normal((D, F)).astype(np.float32) / 20
    zoo.wrong("random", hf, zoo.hf(llama, {layer(2, DOWN): noise}), None, [layer(2, DOWN)],
              "unset, but nothing in the values tells it from another model's")
    zoo.wrong("one added to the gains", hf, zoo.hf(llama, {n: w[n] + 1 for n in everywhere(NORM)}), "norm-plus-one",
              everywhere(NORM))
    norms = [*everywhere(NORM, NORM2), LAST]
    zoo.wrong("one added to all gains, Q4_1", hf, zoo.gguf(llama.but({n: w[n] + 1 for n in norms}), "Q4_1"),
              "norm-plus-one", norms)


def dequantised(zoo, llama):
    made = llama.made

    def dump(what, kind, tensor, change, cause, named):
        """A dump of two tensors: a right one, and the wrong one."""
        only = (f"blk.{named[0]}.attn_v", f"blk.{tensor}.")
        dumped = form.write_dump(zoo.path(), made[kind], only, {f"blk.{tensor}.weight": change})
        zoo.wrong(what, made[kind], dumped, cause, [layer(*named)])

    def by_half(values, tensor):
        """Bytes counted as elements / 2: Q8_0 needs 34 for 32 elements, so the rest stays 0."""
        flat = values.reshape(-1)
        if tensor.tensor_type == Type.Q8_0:
            flat[flat.size // 2 // 34 * 32:] = 0
        return values

    def first_192(values, _):
        values.reshape(-1, 256)[:, 192:] = 0
        return values

    def first_block(values, _):
        values[:, 256:] = 0
        return values

    def half_k(values, _):
        flat = values.reshape(-1)
        flat[flat.size // 2 // 144 * 256:] = 0
        return values

    truncated = form.write_dump(zoo.path(), made["Q8_0"], ("token_embd", "blk.0.attn_"), {"": by_half})
    matrices = [EMBEDDING, *everywhere(Q, KEY, VALUE, OUT, layers=1)]
    zoo.wrong("Q8_0, bytes counted as elements / 2", made["Q8_0"], truncated, "dequant-truncated", matrices)
    dump("Q4_K, bytes counted as elements / 2", "Q4_K_M", "0.ffn_gate", half_k, "dequant-truncated", (0, GATE))
    dump("Q4_K, 192 of 256", "Q4_K_M", "1.ffn_gate", first_192, "dequant-truncated", (1, GATE))
    dump("Q6_K, the first block of each row", "Q6_K", "1.ffn_down", first_block, "dequant-truncated", (1, DOWN))
    dump("Q4_K, scales of sub-blocks 4 to 7", "Q4_K_M", "1.ffn_gate", form.q4_k("scales"), "dequant-scale", (1, GATE))
    dump("Q4_K, minimum ignored", "Q4_K_M", "1.ffn_gate", form.q4_k("minimum"), "dequant-scale", (1, GATE))
    dump("Q5_K, scales of sub-blocks 4 to 7", "Q5_K_M", "1.ffn_up", form.q5_k("scales"), "dequant-scale", (1, UP))
    dump("Q6_K, the first scale of each pair", "Q6_K", "0.attn_q", form.q6_k("pairs"), "dequant-scale", (0, Q))
    dump("Q6_K, the scale of the part before", "Q6_K", "1.ffn_gate", form.q6_k("before"), "dequant-scale", (1, GATE))
    dump("Q6_K, scales without their sign", "Q6_K", "2.attn_k", form.q6_k("unsigned"), "dequant-scale", (2, KEY))
    dump("Q4_0, nibbles one by one", "Q4_0", "0.ffn_gate", form.q4_0("nibbles"), "dequant-nibbles", (0, GATE))
    dump("Q4_K, nibbles one by one", "Q4_K_M", "1.ffn_gate", form.q4_k("nibbles"), "dequant-nibbles", (1, GATE))
    dump("Q5_0, high bits of the wrong lane", "Q5_0", "2.ffn_up", form.q5_0("lanes"), "dequant-nibbles", (2, UP))
    dump("Q5_0, high bit j for j+16", "Q5_0", "0.attn_output", form.q5_0("half"), "dequant-nibbles", (0, OUT))
    dump("Q5_K, high bits of the wrong lane", "Q5_K_M", "2.ffn_gate", form.q5_k("lanes"), "dequant-nibbles", (2, GATE))


def bytes_and_types(zoo, llama, small, qwen2):
    hf, w, made = llama.hf, llama.weights, llama.made
    misread = form.write_hf(zoo.path(), qwen2.weights, qwen2.config, "BF16", called="F16")
    zoo.wrong("bf16 read as f16", qwen2.made["hf-BF16"], misread, "storage-type", list(qwen2.weights))
    matrices = [name for name, x in small.weights.items() if x.ndim == 2]
    zoo.wrong("GGUF: f16 under the id of bf16", small.hf, zoo.gguf(small.weights, "F16", called=Type.BF16),
              "storage-type", matrices)
    as_bf16 = form.from_bf16(w[layer(1, UP)].astype("<f2").view("<u2"))
    zoo.wrong("f16 read as bf16", hf, zoo.hf(llama, {layer(1, UP): as_bf16}), "storage-type", [layer(1, UP)])
    zoo.wrong("f32 with its bytes swapped", hf, zoo.hf(llama, {layer(0, UP): w[layer(0, UP)].byteswap()}),
              "storage-type", [layer(0, UP)])
    swap = {"blk.1.attn_output.weight": lambda values, _: values.byteswap()}
    swapped = form.write_dump(zoo.path(), made["f32"], "blk.1.attn_", swap)
    zoo.wrong("dump: bytes swapped", made["f32"], swapped, "storage-type", [layer(1, OUT)])
    zoo.wrong("GGUF with dims reversed, Q8_0", small.hf,
              zoo.gguf(small.weights, "Q8_0", shapes={layer(0, UP): (D, F)}), "storage-shape", [layer(0, UP)])
    # An offset reads on into what stands next to the tensor in the file; what it cuts off does not come back at the other end.
    off = np.concatenate([w[layer(0, DOWN)].reshape(-1)[8:], w[layer(0, GATE)].reshape(-1)[:8]]).reshape(D, F)
    zoo.wrong("one tensor 32 bytes off", hf, zoo.hf(llama, {layer(0, DOWN): off}), "storage-shape", [layer(0, DOWN)])
    rolled = np.roll(w[layer(0, DOWN)].reshape(-1), -8).reshape(D, F)
    zoo.wrong("one tensor rolled by 8 elements", hf, zoo.hf(llama, {layer(0, DOWN): rolled}), None, [layer(0, DOWN)])
    names = {form.gguf_name(name)[0]: name for name in small.weights}
    for first in ("attn_q", "ffn_gate"):
        shifted = zoo.gguf(small.weights, "F16")
        behind = form.shift_behind(shifted, f"blk.0.{first}.weight")
        zoo.wrong(f"GGUF: all from {first} on 32 bytes off", small.hf, shifted, "storage-shape",
                  [names[name] for name in behind])
    before = np.float32(0.01) * np.arange(16, dtype=np.float32)
    early = lambda values, _: np.concatenate([before, values.reshape(-1)[:-16]]).astype(values.dtype).reshape(values.shape)
    dump = form.write_dump(zoo.path(), made["f16"], ("blk.2.ffn_up", "blk.2.ffn_down", "blk.2.attn_k"), {"": early})
    zoo.wrong("dump: matrices read 32 bytes early", made["f16"], dump, "storage-shape",
              [layer(2, x) for x in (UP, DOWN, KEY)])


def unexplained(zoo, llama, small):
    hf, w = llama.hf, llama.weights
    coarse = dequantize(quantize(w[layer(0, GATE)], Type.Q4_0), Type.Q4_0)
    zoo.wrong("Q8_0 with Q4_0's error", small.hf, zoo.gguf(small.but({layer(0, GATE): coarse}), "Q8_0"), None,
              [layer(0, GATE)])
    zoo.wrong("a factor of 1 %", hf, zoo.hf(llama, {layer(2, GATE): w[layer(2, GATE)] * np.float32(1.01)}), None,
              [layer(2, GATE)])
    flipped = w[layer(0, VALUE)].copy()
    flipped[77] *= -1
    zoo.wrong("the sign of one row", hf, zoo.hf(llama, {layer(0, VALUE): flipped}), None, [layer(0, VALUE)])


def below_the_noise(zoo, llama, small):
    """What is less than the type's own error, and has a pattern that no quantiser makes."""
    hf, w = small.hf, small.weights

    def spoilt(name, change):
        values = w[name].copy()
        change(values)
        return small.but({name: values})

    def zero_row(values):
        values[77] = 0

    def exchange(values):
        values[[10, 11]] = values[[11, 10]]

    def zero_column(values):
        values[:, 3] = 0

    for kind, factor in (("Q8_0", 1.005), ("Q6_K", 1.01), ("Q4_K_M", 1.05), ("Q4_0", 1.06)):
        gate = layer(0, GATE)
        scaled = zoo.gguf(small.but({gate: w[gate] * np.float32(factor)}), kind)
        zoo.wrong(f"a factor of {factor}, {kind}", hf, scaled, None, [gate])
    for kind in ("Q4_K_M", "Q4_0"):
        zoo.wrong(f"a row of zeros, {kind}", hf, zoo.gguf(spoilt(layer(0, UP), zero_row), kind), None, [layer(0, UP)])
        zoo.wrong(f"two rows exchanged, {kind}", hf, zoo.gguf(spoilt(EMBEDDING, exchange), kind), None, [EMBEDDING])
        zoo.wrong(f"a column of zeros, {kind}", hf, zoo.gguf(spoilt(layer(0, DOWN), zero_column), kind), None, [layer(0, DOWN)])

    def dump(what, kind, change, cause):
        only = ("blk.0.ffn_up.",)
        dumped = form.write_dump(zoo.path(), llama.made[kind], only, {"blk.0.ffn_up.weight": change})
        zoo.wrong(f"dump: {what}", llama.made[kind], dumped, cause, [layer(0, UP)])

    def zero_point(at):
        def change(values, tensor):
            blocks = form.blocks(tensor, 18)
            quants = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], 1).astype(np.float32)
            return (form.half(blocks[:, :2]) * (quants - np.float32(at))).reshape(values.shape)

        return change

    dump("Q4_0 about 7.5", "Q4_0", zero_point(7.5), "dequant-scale")
    dump("Q4_0 times 16/15", "Q4_0", lambda values, _: values * np.float32(16 / 15), None)
    noisy = np.random.default_rng(4).standard_normal(w[layer(0, Q)].shape).astype(np.float32) * 0.03 * w[layer(0, Q)].std()
    noise_on_q = {"blk.0.attn_q.weight": lambda values, _: values + noisy}
    beside_copies = form.write_dump(zoo.path(), llama.made["Q4_0"], ("blk.0.",), noise_on_q)
    zoo.wrong("dump: noise on Q beside right copies", llama.made["Q4_0"], beside_copies, None, [layer(0, Q)])
    dump("Q8_0 times 1.005", "Q8_0", lambda values, _: values * np.float32(1.005), None)


def right_but_odd(zoo, llama, small):
    """Values that quantisers treat with a pattern of their own, and engines that keep dequantised values in 16 bits."""
    rng = np.random.default_rng(9)
    for what, draw in (("ternary", lambda shape: rng.integers(-1, 2, shape) * 0.02), ("about 1", lambda shape: 1 + 0.02 * rng.standard_normal(shape)),
                       ("uniform", lambda shape: rng.uniform(-0.05, 0.05, shape)), ("cauchy", lambda shape: 0.01 * rng.standard_cauchy(shape))):
        changed = {layer(0, stem): draw(small.weights[layer(0, stem)].shape).astype(np.float32) for stem in (GATE, UP, DOWN)}
        folder = zoo.hf(small, changed)
        for kind in ("Q8_0", "Q6_K", "Q4_K_M", "Q4_0", "Q5_0", "Q2_K"):
            zoo.right(f"{what}: Hugging Face against {kind}", folder, zoo.gguf(small.but(changed), kind))
    tail = small.weights[EMBEDDING].copy()
    tail[-40:] *= np.float32(1e-8)
    for kind in ("F16", "Q8_0", "Q4_K_M", "Q4_0"):
        zoo.right(f"rows of 1e-8: Hugging Face against {kind}", zoo.hf(small, {EMBEDDING: tail}), zoo.gguf(small.but({EMBEDDING: tail}), kind))
    for kind in ("Q8_0", "Q6_K", "Q4_K_M", "Q4_0"):
        in_f16 = form.write_dump(zoo.path(), llama.made[kind], ("blk.0.",), {"": lambda values, _: values.astype(np.float16)})
        zoo.right(f"dump of {kind} in f16", llama.made[kind], in_f16)


def make(base):
    zoo = Zoo(base)
    llama, qwen2 = Family(base, "llama", *model("llama", LAYERS)), Family(base, "qwen2", *model("qwen2", 1))
    small = llama.first_layer(base, "small")
    right_conversions(zoo, llama)
    right_conversions(zoo, qwen2)
    right_folders(zoo, small, "BF16")
    right_folders(zoo, qwen2, "F16", "BF16")
    zoo.right("qwen2: Hugging Face F16 against BF16", qwen2.made["hf-F16"], qwen2.made["hf-BF16"])
    zoo.right("qwen2: Hugging Face BF16 against f16 GGUF", qwen2.made["hf-BF16"], qwen2.made["f16"])
    right_bulky(zoo, llama, small)
    rows_of_q_and_k(zoo, llama, small, qwen2)
    orientation(zoo, llama, small)
    other_tensors(zoo, llama, small, qwen2)
    not_set(zoo, llama, small)
    dequantised(zoo, llama)
    bytes_and_types(zoo, llama, small, qwen2)
    unexplained(zoo, llama, small)
    below_the_noise(zoo, llama, small)
    right_but_odd(zoo, llama, small)
    return zoo.cases


# ---- judging ----

GOOD, BAD = ("right", "named"), ("unknown", "missed", "wrong", "broken", "false alarm")


def census(cases):
    right = sum(case["right"] for case in cases)
    return f"{right} right pairs, {len(cases) - right} planted mistakes"


def ask(command, a, b):
    """(exit code, verdict, findings, complaint, whether all that was not compared is said not to be in a dump)."""
    try:
        done = subprocess.run([command, "weights", a, b, "--json", "-"], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return None, None, [], "no answer within 120 s", False
    try:
        report = json.loads(done.stdout)
        in_part = {entry["reason"] for entry in report["not_checked"]} == {"not dumped"} and report["counts"]["identical"] + report["counts"]["rounded"] > 0
        return done.returncode, report["verdict"], report["findings"], "", in_part
    except (ValueError, KeyError, TypeError):
        return done.returncode, None, [], done.stderr.strip()[-300:] or "no JSON", False


def judge(command, base, case):
    """(outcome, what was said): right or false alarm; named, unknown, missed or wrong; broken where exit code, verdict
    and findings do not belong together."""
    code, verdict, findings, complaint, in_part = ask(command, base / case["a"], base / case["b"])
    said = "; ".join(f"{f['cause']}: {f['note']}" for f in findings) or complaint or str(verdict)
    # Of a dump of a few tensors the rest is not checked, and what is not checked is not passed.
    if case["right"] and in_part and (code, verdict, findings) == (2, "incomparable", []):
        return "right", said
    if (code, verdict) not in ((0, "parity"), (1, "diverged")) or (code == 1) != bool(findings):
        return "broken", f"exit {code}: {said}"
    if case["right"]:
        return ("right" if code == 0 else "false alarm"), said
    if code == 0:
        return "missed", said
    if any(f["cause"] not in (None, case["cause"]) or not set(f["tensors"]) <= set(case["tensors"]) for f in findings):
        return "wrong", said
    named = {tensor for f in findings if f["cause"] == case["cause"] for tensor in f["tensors"]}
    return ("named" if named == set(case["tensors"]) else "unknown"), said


def judge_all(args):
    if not shutil.which(args.command):
        sys.exit(f"weight_zoo.py: {args.command} cannot be run")
    cases = json.loads((args.dir / "cases.json").read_text())
    cases = [case for case in cases if fnmatch.fnmatch(case["id"], args.only)]
    if not cases:
        sys.exit(f"weight_zoo.py: no case is called {args.only}")
    rows = []
    for case in cases:
        outcome, said = judge(args.command, args.dir, case)
        rows.append(case | {"outcome": outcome, "said": said})
        print(f"{outcome:<12}{case['id']:<60}{case['cause'] or '-':<19}{'' if outcome in GOOD else said[:300]}")
    tally = {word: sum(row["outcome"] == word for row in rows) for word in (*GOOD, *BAD)}
    print(f"{census(rows)}: " + ", ".join(f"{count} {word}" for word, count in tally.items()))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["outcome"] in GOOD for row in rows) else 1


def make_all(args):
    if args.dir.exists() and any(args.dir.iterdir()) and not (args.dir / "cases.json").exists():
        sys.exit(f"weight_zoo.py: {args.dir} is not empty and no zoo")
    shutil.rmtree(args.dir, ignore_errors=True)
    args.dir.mkdir(parents=True)
    cases = make(args.dir)
    (args.dir / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")
    print(f"{census(cases)} in {args.dir}")
    return 0


def build():
    """The release build of firstdiff in this tree."""
    cargo = lambda *words: subprocess.run(["cargo", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    cargo("build", "--release", "--locked", "-q", "-p", "firstdiff")
    target = json.loads(cargo("metadata", "--format-version", "1", "--no-deps"))["target_directory"]
    return str(Path(target) / "release/firstdiff")


def trial(args):
    args.command = build()
    with tempfile.TemporaryDirectory() as scratch:
        args.dir = Path(scratch) / "zoo"
        return make_all(args) or judge_all(args)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(run=trial)
    commands = parser.add_subparsers()
    making = commands.add_parser("make", help="write the zoo and its cases.json")
    making.add_argument("dir", type=Path, help="an empty folder, or an earlier zoo, which is replaced")
    making.set_defaults(run=make_all)
    judging = commands.add_parser("judge", help="hold a command to the zoo")
    judging.add_argument("dir", type=Path)
    judging.add_argument("--command", required=True, help="the firstdiff to run")
    judging.set_defaults(run=judge_all)
    for whole in (parser, judging):
        whole.add_argument("--only", default="*", help="judge only the cases whose id matches")
        whole.add_argument("--json", type=Path, help="write a row a case to this file")
    args = parser.parse_args()
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Does `firstdiff weights` name every planted mistake, and call no right conversion wrong? A zoo of weight files, made without firstdiff's own code.

    python scripts/weight_zoo.py [--keep DIR] [--only GLOB] [--json FILE]

One random Llama (256 wide, 3 layers, 4 heads over 2, untied head) and one Qwen2 (biases, tied head) as Hugging Face folders; right conversions of
them into every format and into llama.cpp's quantised types; and planted mistakes in each format, most of them found in the field (mistakes.md of
the design). Judged by verdict, cause and tensors: exit 1 unless every mistake is named, none wrongly, and nothing right is blamed.
Needs scripts/requirements.txt. Writers of llama2.c and MiniMind files are from their formats' definitions.
"""

import argparse
import base64
import fnmatch
import json
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize
from safetensors.numpy import load_file, save_file

from hf_to_gguf import adjacent
from test_quantised import quantise, run, write_model

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"
D, F, V, H, K, d, LAYERS = 256, 512, 512, 4, 2, 64, 3
QUANTISED = ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K_M", "IQ4_NL", "IQ4_XS"]
Q, KEY, UP = "self_attn.q_proj.weight", "self_attn.k_proj.weight", "mlp.up_proj.weight"
BLOCK = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm"}


def layer(n, stem):
    return f"model.layers.{n}.{stem}"


def everywhere(stem):
    return [layer(n, stem) for n in range(LAYERS)]


# ---- writers ----


def write_hf(folder, weights, config, dtype=np.float32):
    folder.mkdir(parents=True)
    save_file({name: np.ascontiguousarray(w, dtype) for name, w in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_bf16(folder, weights, config, name="BF16"):
    """A safetensors file by hand: NumPy knows no bf16. `name` is what the header calls the type."""
    folder.mkdir(parents=True)
    header, data = {}, b""
    for key, w in weights.items():
        raw = bf16_bits(w).tobytes()
        header[key] = {"dtype": name, "shape": list(w.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def bf16_bits(w):
    bits = np.ascontiguousarray(w, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def gguf_name(name):
    stem, kind = name.rsplit(".", 1)
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    if stem in outer:
        return f"{outer[stem]}.{kind}"
    parts = stem.split(".", 3)
    return f"blk.{parts[2]}.{BLOCK[parts[3]]}.{kind}"


def write_gguf(path, weights, kind=Type.F32, permute=lambda name, w: w, raw=None, shapes=None):
    """`permute` orders the rows of Q and K; `raw` gives other bytes for a tensor; `shapes` another shape."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(D)
    writer.add_feed_forward_length(F)
    writer.add_head_count(H)
    writer.add_head_count_kv(K)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(V)
    writer.add_context_length(256)
    for name, w in weights.items():
        w = np.ascontiguousarray(permute(name, w), np.float32)
        if shapes and name in shapes:
            w = w.reshape(shapes[name])
        if raw and name in raw:
            writer.add_tensor(gguf_name(name), raw[name], raw_dtype=kind)
            continue
        own = kind if w.ndim == 2 else Type.F32
        writer.add_tensor(gguf_name(name), quantize(w, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def permuted(name, w):
    return adjacent(w, H) if "q_proj" in name else adjacent(w, K) if "k_proj" in name else w


def write_llama2c(path, weights, version, group=64, tied=False):
    """karpathy/llama2.c, export.py: rows of Q and K for adjacent pairs."""
    get = lambda stem: [permuted(stem, weights[layer(n, stem + ".weight")]) for n in range(LAYERS)]
    one = lambda name: [weights[name]]
    norms = [get("input_layernorm"), get("post_attention_layernorm"), one("model.norm.weight")]
    attention = [get(f"self_attn.{x}_proj") for x in "qkvo"]
    feed = [get("mlp.gate_proj"), get("mlp.down_proj"), get("mlp.up_proj")]
    head = [] if tied else [one("lm_head.weight")]
    f32 = lambda groups: b"".join(np.ascontiguousarray(w, "<f4").tobytes() for group in groups for w in group)
    sizes = struct.pack("<7i", D, F, LAYERS, H, K, V if tied or version else -V, 256)
    if version == 0:
        tables = np.zeros(256 * d, "<f4").tobytes()
        data = sizes + f32([one("model.embed_tokens.weight"), norms[0], *attention, norms[1], *feed, norms[2]]) + tables + f32(head)
    else:
        header = struct.pack("<Ii", 0x616B3432, version) + sizes + struct.pack("<B", int(tied))
        matrices = [one("model.embed_tokens.weight"), *attention, *feed, *head]
        if version == 2:
            header += struct.pack("<i", group)
            body = b"".join(grouped(w, group) for part in matrices for w in part)
        else:
            body = f32(matrices)
        data = header.ljust(256, b"\0") + f32(norms) + body
    path.write_bytes(data)
    return path


def grouped(w, group):
    x = np.ascontiguousarray(w, np.float32).reshape(-1, group)
    scale = np.abs(x).max(1) / 127
    return np.round(x / np.maximum(scale, 1e-30)[:, None]).astype(np.int8).tobytes() + scale.astype("<f4").tobytes()


def write_minimind(path, weights, reverse, edit=lambda tree: tree):
    """Linear layers as [out,in], or all of them reversed."""
    def tensor(name, w, linear):
        w = np.ascontiguousarray(w.T if reverse and linear else w, "<f4")
        return {"name": name, "shape": list(w.shape), "dtype": "float32", "encoding": "base64", "data": base64.b64encode(w.tobytes()).decode()}
    short = {"rms_attn": "input_layernorm", "rms_ffn": "post_attention_layernorm", "wq": "self_attn.q_proj", "wk": "self_attn.k_proj",
             "wv": "self_attn.v_proj", "wo": "self_attn.o_proj", "w_gate": "mlp.gate_proj", "w_up": "mlp.up_proj", "w_down": "mlp.down_proj"}
    layers = [{key: tensor(key, weights[layer(n, stem + ".weight")], key[0] == "w") for key, stem in short.items()} for n in range(LAYERS)]
    tree = {"config": {"hidden_size": D, "num_hidden_layers": LAYERS, "num_attention_heads": H, "num_key_value_heads": K, "vocab_size": V,
                       "intermediate_size": F, "rms_norm_eps": 1e-5, "rope_theta": 10000.0},
            "weights": {"tok_embedding": tensor("tok_embedding", weights["model.embed_tokens.weight"], False),
                        "final_rms": tensor("final_rms", weights["model.norm.weight"], False),
                        "lm_head": tensor("lm_head", weights["lm_head.weight"], False), "layers": layers}}
    path.write_text(json.dumps(edit(tree)))
    return path


def write_dump(folder, path, edit=lambda name, values, tensor: values):
    """What an engine dumps after loading a GGUF: its dequantised values under GGUF's names, in the file's own order of rows."""
    folder.mkdir()
    for tensor in gguf.GGUFReader(path).tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(tensor.shape[::-1])
        out = edit(tensor.name, values, tensor)
        if out is not None:
            np.save(folder / f"weights.{tensor.name.removesuffix('.weight')}.npy", out)
    return folder


# ---- the zoo ----


class Zoo:
    def __init__(self, base):
        self.base, self.cases, self.number = base, [], 0

    def path(self, ending=""):
        self.number += 1
        return self.base / f"case{self.number:02}{ending}"

    def right(self, name, a, b):
        self.cases.append({"id": name, "a": str(a), "b": str(b), "right": True, "cause": None, "tensors": []})

    def wrong(self, name, a, b, cause, tensors):
        self.cases.append({"id": name, "a": str(a), "b": str(b), "right": False, "cause": cause, "tensors": sorted(tensors)})


def right_ones(zoo, hf, weights, config, family):
    base, made = zoo.base, {}
    for dtype in ("f32", "f16", "bf16"):
        made[dtype] = base / f"{family}-{dtype}.gguf"
        run(sys.executable, SCRIPTS / "hf_to_gguf.py", hf, made[dtype], "--dtype", dtype)
        zoo.right(f"{family}: GGUF {dtype}", hf, made[dtype])
    for kind in QUANTISED:
        made[kind] = base / f"{family}-{kind}.gguf"
        quantise(made["f32"], made[kind], kind)
        zoo.right(f"{family}: GGUF {kind}", hf, made[kind])
    zoo.right(f"{family}: GGUF Q8_0 against Q4_K_M", made["Q8_0"], made["Q4_K_M"])
    zoo.right(f"{family}: the other way round", made["Q6_K"], hf)
    zoo.right(f"{family}: Hugging Face f16", hf, write_hf(base / f"{family}-hf16", weights, config, np.float16))
    zoo.right(f"{family}: Hugging Face bf16", hf, write_bf16(base / f"{family}-hfbf16", weights, config))
    zoo.right(f"{family}: bf16 against f16 GGUF", base / f"{family}-hfbf16", made["f16"])
    np.savez(base / f"{family}.npz", **weights)
    zoo.right(f"{family}: npz", hf, base / f"{family}.npz")
    for kind in ("Q8_0", "Q4_K_M", "Q4_0", "IQ4_XS"):
        zoo.right(f"{family}: dump of {kind}", made[kind], write_dump(base / f"{family}-dump-{kind}", made[kind]))
    return made


def planted(zoo, hf, weights, config, made):
    def changed(edit):
        out = dict(weights)
        edit(out)
        return out

    def hf_with(edit):
        return write_hf(zoo.path(), changed(edit), config)

    # Q and K rows.
    zoo.wrong("Q and K not permuted", hf, write_gguf(zoo.path(".gguf"), weights), "qk-row-order", everywhere(Q) + everywhere(KEY))
    zoo.wrong("permuted twice", hf, write_gguf(zoo.path(".gguf"), weights, permute=lambda n, w: permuted(n, permuted(n, w))), "qk-row-order",
              everywhere(Q) + everywhere(KEY))
    as_if = lambda n, w: adjacent(w, H) if "q_proj" in n or "k_proj" in n else w
    zoo.wrong("K permuted with H heads", hf, write_gguf(zoo.path(".gguf"), weights, permute=as_if), "qk-row-order", everywhere(KEY))
    only = lambda n, w: w if n == layer(1, Q) else permuted(n, w)
    zoo.wrong("Q of one layer not permuted, Q8_0", hf, write_gguf(zoo.path(".gguf"), weights, Type.Q8_0, only), "qk-row-order", [layer(1, Q)])
    zoo.wrong("a Hugging Face folder with GGUF's order", hf, hf_with(lambda w: w.update({layer(0, Q): adjacent(w[layer(0, Q)], H)})), "qk-row-order",
              [layer(0, Q)])
    # Orientation.
    zoo.wrong("up stored as [in,out]", hf, hf_with(lambda w: w.update({layer(1, UP): w[layer(1, UP)].T})), "weight-transposed", [layer(1, UP)])
    zoo.wrong("memory of [in,out] as [out,in]", hf, hf_with(lambda w: w.update({layer(2, UP): w[layer(2, UP)].T.reshape(F, D)})),
              "weight-transposed", [layer(2, UP)])
    square = layer(0, "self_attn.o_proj.weight")
    zoo.wrong("a square matrix transposed", hf, hf_with(lambda w: w.update({square: w[square].T})), "weight-transposed", [square])
    def turn(tree):
        entry = tree["weights"]["layers"][1]["w_up"]
        w = np.frombuffer(base64.b64decode(entry["data"]), "<f4").reshape(entry["shape"])
        entry["data"] = base64.b64encode(np.ascontiguousarray(w.T).tobytes()).decode()
        return tree
    zoo.wrong("MiniMind: one layer's memory turned", hf, write_minimind(zoo.path(".json"), weights, False, turn), "weight-transposed", [layer(1, UP)])
    zoo.wrong("GGUF with dims reversed", hf, write_gguf(zoo.path(".gguf"), weights, permute=permuted, shapes={layer(0, UP): (D, F)}), "storage-shape",
              [layer(0, UP)])
    def engine(name, values, tensor):
        return values.reshape(values.shape[::-1]).T if name == "blk.0.ffn_up.weight" else values
    zoo.wrong("engine read [in,out]", made["Q8_0"], write_dump(zoo.path(), made["Q8_0"], engine), "weight-transposed", [layer(0, UP)])
    # Other tensors.
    gate = "mlp.gate_proj.weight"
    def swap(w):
        for n in range(LAYERS):
            w[layer(n, gate)], w[layer(n, UP)] = w[layer(n, UP)], w[layer(n, gate)]
    zoo.wrong("gate and up exchanged, Q8_0", hf, write_gguf(zoo.path(".gguf"), changed(swap), Type.Q8_0, permuted), "weight-swapped",
              everywhere(gate) + everywhere(UP))
    value = "self_attn.v_proj.weight"
    def swap_kv(w):
        w[layer(0, KEY)], w[layer(0, value)] = w[layer(0, value)], w[layer(0, KEY)]
    zoo.wrong("k and v exchanged", hf, hf_with(swap_kv), "weight-swapped", [layer(0, KEY), layer(0, value)])
    down = "mlp.down_proj.weight"
    zoo.wrong("down of the next layer", hf, write_llama2c(zoo.path(".bin"), changed(lambda w: w.update({layer(0, down): w[layer(1, down)]})), 1),
              "weight-wrong-layer", [layer(0, down)])
    norm = "input_layernorm.weight"
    zoo.wrong("another norm's gains", hf, hf_with(lambda w: w.update({layer(2, norm): w[layer(2, "post_attention_layernorm.weight")]})),
              "norm-wrong-weight", [layer(2, norm)])
    zoo.wrong("the head is the embedding", hf, hf_with(lambda w: w.update({"lm_head.weight": w["model.embed_tokens.weight"].copy()})), "head-tied",
              ["lm_head.weight"])
    zoo.wrong("no head in the file", hf, write_gguf(zoo.path(".gguf"), changed(lambda w: w.pop("lm_head.weight")), permute=permuted), "head-tied",
              ["lm_head.weight"])
    # Not set.
    zoo.wrong("zeros", hf, write_gguf(zoo.path(".gguf"), changed(lambda w: w.update({layer(1, value): 0 * w[layer(1, value)]})), Type.F16, permuted),
              "weight-unset", [layer(1, value)])
    zoo.wrong("a norm of ones", hf, hf_with(lambda w: w.update({"model.norm.weight": np.ones(D, np.float32)})), "weight-unset", ["model.norm.weight"])
    noise = np.random.default_rng(3).standard_normal((D, F)).astype(np.float32) / 20
    zoo.wrong("random", hf, hf_with(lambda w: w.update({layer(2, down): noise})), None, [layer(2, down)])
    zoo.wrong("one added to the gains", hf, hf_with(lambda w: [w.update({n: w[n] + 1}) for n in everywhere(norm)]), "norm-plus-one", everywhere(norm))
    # Dequantisation.
    def truncated(name, values, tensor):
        flat = values.copy().reshape(-1)
        if tensor.tensor_type == Type.Q8_0:
            flat[flat.size // 2 // 34 * 32:] = 0
        return flat.reshape(values.shape)
    matrices = [n for n in weights if weights[n].ndim == 2]
    zoo.wrong("bytes counted as elements / 2", made["Q8_0"], write_dump(zoo.path(), made["Q8_0"], truncated), "dequant-truncated", matrices)
    one = {"blk.1.ffn_gate.weight": [layer(1, gate)]}
    def at(name, change):
        return lambda n, values, tensor: change(values.copy(), tensor) if n == name else values
    def first_192(values, _):
        flat = values.reshape(-1, 256)
        flat[:, 192:] = 0
        return flat.reshape(values.shape)
    zoo.wrong("192 of 256", made["Q4_K_M"], write_dump(zoo.path(), made["Q4_K_M"], at("blk.1.ffn_gate.weight", first_192)), "dequant-truncated",
              one["blk.1.ffn_gate.weight"])
    wide = layer(1, down)
    def first_block(values, _):
        values[:, 256:] = 0
        return values
    zoo.wrong("the first block of each row", made["Q6_K"], write_dump(zoo.path(), made["Q6_K"], at("blk.1.ffn_down.weight", first_block)),
              "dequant-truncated", [wide])

    def blocks_of(tensor, size):
        return np.ascontiguousarray(tensor.data).reshape(-1, size)

    def q4k(values, tensor, wrong):
        """Q4_K by hand, with a mistake in how the scales are unpacked."""
        b = blocks_of(tensor, 144)
        dd, dm = (b[:, i:i + 2].copy().view("<f2").astype(np.float32) for i in (0, 2))
        s, qs, out = b[:, 4:16].astype(int), b[:, 16:].reshape(-1, 4, 32), []
        for j in range(8):
            if j < 4 or wrong == "scales":
                sc, m = s[:, j % 4] & 63, s[:, j % 4 + 4] & 63
            else:
                sc, m = (s[:, j + 4] & 15) | (s[:, j - 4] >> 6 << 4), (s[:, j + 4] >> 4) | (s[:, j] >> 6 << 4)
            q = (qs[:, j // 2] >> (4 * (j % 2))) & 15
            minimum = 0 if wrong == "minimum" else dm * m[:, None]
            out.append(dd * sc[:, None] * q - minimum)
        return np.stack(out, 1).astype(np.float32).reshape(values.shape)

    for what in ("scales", "minimum"):
        edit = at("blk.1.ffn_gate.weight", lambda v, t, what=what: q4k(v, t, what))
        zoo.wrong(f"Q4_K {what}", made["Q4_K_M"], write_dump(zoo.path(), made["Q4_K_M"], edit), "dequant-scale", one["blk.1.ffn_gate.weight"])

    def q6k_scales(values, tensor):
        scales = blocks_of(tensor, 210)[:, 192:208].view(np.int8).astype(np.float32)
        x = values.reshape(-1, 16, 16) / np.where(scales == 0, 1, scales)[:, :, None]
        return (x * np.roll(scales, 1, 1)[:, :, None]).astype(np.float32).reshape(values.shape)
    zoo.wrong("Q6_K's scale of the part before", made["Q6_K"], write_dump(zoo.path(), made["Q6_K"], at("blk.1.ffn_gate.weight", q6k_scales)),
              "dequant-scale", one["blk.1.ffn_gate.weight"])
    def interleaved(width):
        return lambda values, _: values.reshape(-1, 2, width // 2).swapaxes(1, 2).reshape(values.shape)
    zoo.wrong("Q4_0's nibbles one by one", made["Q4_0"], write_dump(zoo.path(), made["Q4_0"], at("blk.0.ffn_gate.weight", interleaved(32))),
              "dequant-nibbles", [layer(0, gate)])

    def q4k_nibbles(values, tensor):
        b = blocks_of(tensor, 144)
        q = b[:, 16:].reshape(-1, 4, 32)
        inter = np.stack([q & 15, q >> 4], -1).reshape(-1, 4, 2, 32).astype(np.float32)
        right = np.stack([q & 15, q >> 4], 2).astype(np.float32)
        x = values.reshape(-1, 4, 2, 32)
        span = right.max(-1, keepdims=True) - right.min(-1, keepdims=True)
        scale = np.where(span == 0, 0, (x.max(-1, keepdims=True) - x.min(-1, keepdims=True)) / np.maximum(span, 1))
        low = x.min(-1, keepdims=True) - scale * right.min(-1, keepdims=True)
        return (scale * inter + low).astype(np.float32).reshape(values.shape)
    zoo.wrong("Q4_K's nibbles one by one", made["Q4_K_M"], write_dump(zoo.path(), made["Q4_K_M"], at("blk.1.ffn_gate.weight", q4k_nibbles)),
              "dequant-nibbles", one["blk.1.ffn_gate.weight"])

    def q5_0_lanes(values, tensor):
        b = blocks_of(tensor, 22)
        dd, high, qs = b[:, :2].copy().view("<f2").astype(np.float32), b[:, 2:6].copy().view("<u4"), b[:, 6:]
        bit = lambda j: ((high >> j) & 1).astype(int)[:, 0]
        low = np.stack([(qs[:, j] & 15) | bit(2 * j) << 4 for j in range(16)], 1) - 16
        top = np.stack([(qs[:, j] >> 4) | bit(2 * j + 1) << 4 for j in range(16)], 1) - 16
        return (dd * np.concatenate([low, top], 1)).astype(np.float32).reshape(values.shape)
    zoo.wrong("Q5_0's high bits of the wrong lane", made["Q5_0"], write_dump(zoo.path(), made["Q5_0"], at("blk.2.ffn_up.weight", q5_0_lanes)),
              "dequant-nibbles", [layer(2, UP)])
    # Types and bytes.
    half = write_bf16(zoo.path(), weights, config)
    misread = write_bf16(zoo.path(), weights, config, "F16")
    zoo.wrong("bf16 read as f16", half, misread, "storage-type", list(weights))
    f16 = {n: np.ascontiguousarray(w, "<f2") for n, w in weights.items()}
    as_bf16 = {layer(1, UP): (f16[layer(1, UP)].view("<u2").astype(np.uint32) << 16).view("<f4")}
    zoo.wrong("f16 read as bf16", hf, hf_with(lambda w: w.update(as_bf16)), "storage-type", [layer(1, UP)])
    zoo.wrong("f32 with its bytes swapped", hf, hf_with(lambda w: w.update({layer(0, UP): w[layer(0, UP)].byteswap()})), "storage-type", [layer(0, UP)])
    zoo.wrong("32 bytes off", hf, hf_with(lambda w: w.update({layer(0, down): np.roll(w[layer(0, down)].reshape(-1), -8).reshape(D, F)})),
              "storage-shape", [layer(0, down)])
    coarse = {n: dequantize(quantize(w, Type.Q4_0), Type.Q4_0) if n == layer(1, gate) else w for n, w in weights.items()}
    zoo.wrong("Q8_0 with Q4_0's error", hf, write_gguf(zoo.path(".gguf"), coarse, Type.Q8_0, permuted), None, [layer(1, gate)])
    scaled = dict(weights)
    scaled[layer(2, gate)] = weights[layer(2, gate)] * np.float32(1.01)
    zoo.wrong("a factor of 1 %", hf, hf_with(lambda w: w.update(scaled)), None, [layer(2, gate)])


def make(base):
    zoo = Zoo(base)
    for family in ("llama", "qwen2"):
        source = base / f"{family}-source"
        write_model(source, family)
        weights, config = load_file(source / "model.safetensors"), json.loads((source / "config.json").read_text())
        if family == "qwen2":
            del weights["lm_head.weight"]
            config["tie_word_embeddings"] = True
        hf = write_hf(base / family, weights, config)
        made = right_ones(zoo, hf, weights, config, family)
        if family == "llama":
            for version in (0, 1, 2):
                zoo.right(f"llama2.c version {version}", hf, write_llama2c(base / f"v{version}.bin", weights, version))
            for reverse in (False, True):
                zoo.right(f"MiniMind, [in,out]: {reverse}", hf, write_minimind(base / f"minimind{int(reverse)}.json", weights, reverse))
            zoo.right("llama2.c against Q8_0 GGUF", base / "v0.bin", made["Q8_0"])
            planted(zoo, hf, weights, config, made)
        else:
            bias = "self_attn.q_proj.bias"
            less = {n: w for n, w in weights.items() if not n.endswith(bias)}
            zoo.wrong("q's bias left out", hf, write_hf(zoo.path(), less, config), "bias-omitted", everywhere(bias))
    return zoo.cases


def judge(binary, case):
    """right, unknown, wrong, false alarm or missed, with what was said."""
    done = run_json(binary, case["a"], case["b"])
    findings = done["findings"]
    if case["right"]:
        return ("right", "") if done["verdict"] == "parity" else ("FALSE ALARM", str([(f["cause"], f["tensors"][:2], f["note"]) for f in findings] or done))
    named = sorted(t for f in findings for t in f["tensors"] if f["cause"] == case["cause"])
    others = [f for f in findings if f["cause"] not in (None, case["cause"]) or not set(f["tensors"]) <= set(case["tensors"])]
    said = "; ".join(f"{f['cause']}: {f['note']}" for f in findings)
    if done["verdict"] != "diverged":
        return "MISSED", done["verdict"]
    if others:
        return "WRONG", said
    return ("named" if named == case["tensors"] else "unknown"), said


def run_json(binary, a, b):
    done = subprocess.run([binary, "weights", a, b, "--json", "-"], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        return {"verdict": f"exit {done.returncode}", "findings": [], "error": done.stderr.strip()}
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="make the zoo in this folder, which is emptied, and leave it")
    parser.add_argument("--only", help="judge only the cases whose name matches")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    target = subprocess.run(["cargo", "metadata", "--format-version", "1", "--no-deps"], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["cargo", "build", "--release", "--locked", "-q", "-p", "firstdiff"], cwd=ROOT, check=True)
    binary = Path(json.loads(target.stdout)["target_directory"]) / "release/firstdiff"
    with tempfile.TemporaryDirectory() as scratch:
        base = args.keep or Path(scratch)
        shutil.rmtree(base, ignore_errors=True)
        base.mkdir(parents=True)
        cases = [case for case in make(base) if not args.only or fnmatch.fnmatch(case["id"], args.only)]
        rows = []
        for case in cases:
            outcome, said = judge(binary, case)
            rows.append({"id": case["id"], "right": case["right"], "cause": case["cause"], "outcome": outcome, "said": said})
            if outcome not in ("right", "named") or args.only:
                print(f"{outcome:<12} {case['id']:<40} {said[:400]}")
        tally = {word: sum(r["outcome"] == word for r in rows) for word in ("right", "named", "unknown", "WRONG", "MISSED", "FALSE ALARM")}
        wrong = sum(not r["right"] for r in rows)
        print(f"{len(rows) - wrong} right pairs, {wrong} planted mistakes: " + ", ".join(f"{n} {word}" for word, n in tally.items()))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if tally["right"] + tally["named"] == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())

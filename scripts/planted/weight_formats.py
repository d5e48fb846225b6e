"""Writes weights in each common file format, right or with an engine's mistakes.

Hugging Face safetensors (one file a tensor, so that a folder that differs in one tensor shares the other files), GGUF,
llama2.c, MiniMind JSON and folders of .npy as an engine dumps them; and the blocks of some quantised types unpacked by
hand, with the mistakes made in unpacking them. Needs numpy, and PyPI gguf for GGUF's envelope. For weight_zoo.py.
"""

import base64
import json
import os
import shutil
import struct

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

from scripts.convert.hf_to_gguf import adjacent, gguf_name

D, F, V, H, K, d = 256, 512, 512, 4, 2, 64


def stored(w, kind):
    """F32, F16 or BF16 as it lies in a file. BF16: rounded to the nearest, ties to even; NumPy knows no such type."""
    if kind != "BF16":
        return np.ascontiguousarray(w, {"F32": "<f4", "F16": "<f2"}[kind])
    bits = np.ascontiguousarray(w, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def layer_count(weights):
    return sum(name.endswith("input_layernorm.weight") for name in weights)


def permuted(name, w):
    """Rows of Q and K for RoPE on adjacent pairs, as llama's GGUF and llama2.c want them."""
    return adjacent(w, H) if "q_proj" in name else adjacent(w, K) if "k_proj" in name else w


def unpermuted(name, w):
    """The other way: rows of adjacent pairs to halves."""
    heads = H if "q_proj" in name else K if "k_proj" in name else 0
    return w.reshape(heads, -1, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape) if heads else w


# ---- Hugging Face ----


def write_safetensors(path, tensors):
    """`tensors`: name -> (type, shape, bytes)."""
    header, at = {}, 0
    for name, (kind, shape, raw) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(raw for _, _, raw in tensors.values()))


def write_hf(folder, weights, config, kind="F32", called=None):
    """One file. `called` is what its header says the type is, where that is a lie."""
    folder.mkdir()
    tensors = {name: (called or kind, w.shape, stored(w, kind).tobytes()) for name, w in weights.items()}
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_hf_parts(folder, weights, config, like=None):
    """One file a tensor. `like`: (folder, weights) whose files are shared where the tensor is the very same array."""
    folder.mkdir()
    names = {name: f"part-{name}.safetensors" for name in weights}
    for name, w in weights.items():
        if like and like[1].get(name) is w:
            link(like[0] / names[name], folder / names[name])
        else:
            write_safetensors(folder / names[name], {name: ("F32", w.shape, stored(w, "F32").tobytes())})
    index = {"metadata": {"total_size": sum(w.size * 4 for w in weights.values())}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def link(old, new):
    try:
        os.link(old, new)
    except OSError:
        shutil.copyfile(old, new)


# ---- GGUF ----


def write_gguf(path, weights, kind=Type.F32, permute=permuted, shapes=None, called=None, arch="llama"):
    """`permute` orders the rows of Q and K; `shapes` states others over the same memory, `called` another type."""
    writer = gguf.GGUFWriter(path, arch)
    config = {"block_count": layer_count(weights), "embedding_length": D, "feed_forward_length": F, "head_count": H,
              "head_count_kv": K, "layer_norm_rms_eps": 1e-5, "vocab_size": V, "context_length": 256,
              "rope_dimension_count": d, "tokenizer_model": "no_vocab"}
    for key, value in config.items():
        getattr(writer, f"add_{key}")(value)
    for name, w in weights.items():
        w = np.ascontiguousarray(permute(name, w), np.float32)
        if shapes and name in shapes:
            w = w.reshape(shapes[name])
        own = kind if w.ndim == 2 else Type.F32
        data = quantize(w, own)
        if w.ndim == 2 and called is not None:
            own = called
        writer.add_tensor(gguf_name(name)[0], data, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def shift_behind(path, first, bytes_off=32):
    """Moves the offset of every tensor from `first` on, leaving the data where it lies. Returns their names."""
    with open(path, "ab") as file:
        file.write(bytes(bytes_off))
    tensors = gguf.GGUFReader(path, "r+").tensors
    at = next(i for i, tensor in enumerate(tensors) if tensor.name == first)
    for tensor in tensors[at:]:
        tensor.field.parts[-1][0] += bytes_off
        tensor.field.parts[-1].flush()
    return [tensor.name for tensor in tensors[at:]]


# ---- llama2.c ----


def write_llama2c(path, weights, version, group=64, permute=permuted, shared=False):
    """karpathy/llama2.c, export.py. Version 0: seven ints, the vocabulary negative where the head is its own; 1: 256
    bytes of header; 2: int8 in groups, each tensor's scales behind its values (an early export.py: all behind all)."""
    get = lambda stem: [permute(stem, weights[f"model.layers.{n}.{stem}.weight"]) for n in range(layer_count(weights))]
    one = lambda name: [weights[name]]
    norms = [get("input_layernorm"), get("post_attention_layernorm"), one("model.norm.weight")]
    attention = [get(f"self_attn.{x}_proj") for x in "qkvo"]
    feed = [get("mlp.gate_proj"), get("mlp.down_proj"), get("mlp.up_proj")]
    embedding, head = one("model.embed_tokens.weight"), [] if shared else [one("lm_head.weight")]
    f32 = lambda groups: b"".join(np.ascontiguousarray(w, "<f4").tobytes() for ws in groups for w in ws)
    sizes = struct.pack("<7i", D, F, layer_count(weights), H, K, V if shared or version else -V, 256)
    if version == 0:
        tables = bytes(256 * d * 4)
        path.write_bytes(sizes + f32([embedding, norms[0], *attention, norms[1], *feed, norms[2]]) + tables + f32(head))
        return path
    header = struct.pack("<Ii", 0x616B3432, version) + sizes + struct.pack("<B", shared)
    if version == 2:
        header += struct.pack("<i", group)
    matrices = [embedding, *attention, *feed, *head]
    body = f32(matrices) if version == 1 else b"".join(in_groups(w, group) for ws in matrices for w in ws)
    path.write_bytes(header.ljust(256, b"\0") + f32(norms) + body)
    return path


def in_groups(w, group):
    x = np.ascontiguousarray(w, np.float32).reshape(-1, group)
    scale = np.abs(x).max(1) / np.float32(127)
    q = np.round(x / np.where(scale == 0, 1, scale)[:, None]).astype(np.int8)
    return q.tobytes() + scale.astype("<f4").tobytes()


# ---- MiniMind ----

MINIMIND = {"rms_attn": "input_layernorm", "rms_ffn": "post_attention_layernorm", "wq": "self_attn.q_proj",
            "wk": "self_attn.k_proj", "wv": "self_attn.v_proj", "wo": "self_attn.o_proj", "w_gate": "mlp.gate_proj",
            "w_up": "mlp.up_proj", "w_down": "mlp.down_proj"}


def write_minimind(path, weights, reverse=False, edit=lambda layer, key, w: w):
    """Linear layers as [out,in], or all of them as [in,out]. `edit` may change the bytes, not the shape stated."""
    def tensor(name, w, layer=None):
        w = np.ascontiguousarray(w.T if reverse and name[:2] in ("wq", "wk", "wv", "wo", "w_") else w, "<f4")
        raw = np.ascontiguousarray(edit(layer, name, w)).tobytes()
        data = base64.b64encode(raw).decode()
        return {"name": name, "shape": list(w.shape), "dtype": "float32", "encoding": "base64", "data": data}
    layers = [{key: tensor(key, weights[f"model.layers.{n}.{stem}.weight"], n) for key, stem in MINIMIND.items()}
              for n in range(layer_count(weights))]
    outer = {"tok_embedding": "model.embed_tokens", "final_rms": "model.norm", "lm_head": "lm_head"}
    config = {"hidden_size": D, "num_hidden_layers": layer_count(weights), "num_attention_heads": H,
              "num_key_value_heads": K, "vocab_size": V, "intermediate_size": F, "rms_norm_eps": 1e-5,
              "rope_theta": 10000.0}
    tensors = {key: tensor(key, weights[f"{stem}.weight"]) for key, stem in outer.items()}
    path.write_text(json.dumps({"config": config, "weights": tensors | {"layers": layers}}))
    return path


# ---- an engine's dump ----


def loaded(path):
    """What should be in memory after loading a GGUF: (name, tensor, f32 values in the file's own order of rows)."""
    for tensor in gguf.GGUFReader(path).tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(tensor.shape[::-1])
        yield tensor.name, tensor, values


def write_dump(folder, path, only="", edits=None):
    """The tensors whose name starts with `only`. `edits`: name in the file, or "" for all -> change(values, tensor)."""
    folder.mkdir()
    for name, tensor, values in loaded(path):
        change = (edits or {}).get(name, (edits or {}).get(""))
        if name.startswith(only):
            values = change(values.copy(), tensor) if change else values
            np.save(folder / f"weights.{name.removesuffix('.weight')}.npy", values)
    return folder


# ---- blocks by hand ----


def blocks(tensor, size):
    return np.ascontiguousarray(tensor.data).reshape(-1, size)


def half(bytes_):
    return bytes_.copy().view("<f2").astype(np.float32)


def k_scales(s, wrong):
    """The eight 6-bit scales and minima of Q4_K and Q5_K from 12 bytes. Wrong: the last four read as the first four."""
    scales, minima = [], []
    for j in range(8):
        if j < 4 or wrong == "scales":
            scales.append(s[:, j % 4] & 63)
            minima.append(s[:, j % 4 + 4] & 63)
        else:
            scales.append((s[:, j + 4] & 15) | (s[:, j - 4] >> 6 << 4))
            minima.append((s[:, j + 4] >> 4) | (s[:, j] >> 6 << 4))
    return (np.stack(x, 1).astype(np.float32)[:, :, None] for x in (scales, minima))


def q4_k(wrong=None):
    """wrong: scales (of sub-blocks 4 to 7), minimum (ignored), nibbles (one by one, not 32 low and then 32 high)."""
    def change(values, tensor):
        b = blocks(tensor, 144)
        scale, minimum = k_scales(b[:, 4:16], wrong)
        qs = b[:, 16:].reshape(-1, 4, 32)
        q = np.stack([qs & 15, qs >> 4], -1 if wrong == "nibbles" else 2).reshape(-1, 8, 32).astype(np.float32)
        low = half(b[:, 2:4])[:, :, None] * minimum
        return (half(b[:, :2])[:, :, None] * scale * q - (0 if wrong == "minimum" else low)).reshape(values.shape)
    return change


def q5_k(wrong=None):
    """wrong: scales, lanes (the high bit of the sub-block beside it)."""
    def change(values, tensor):
        b = blocks(tensor, 176)
        scale, minimum = k_scales(b[:, 4:16], wrong)
        qs = b[:, 48:].reshape(-1, 4, 32)
        q = np.stack([qs & 15, qs >> 4], 2).reshape(-1, 8, 32)
        lanes = (np.arange(8) ^ (wrong == "lanes")).astype(np.uint8)
        high = (b[:, None, 16:48] >> lanes[None, :, None]) & 1
        low = half(b[:, 2:4])[:, :, None] * minimum
        return (half(b[:, :2])[:, :, None] * scale * (q + 16 * high).astype(np.float32) - low).reshape(values.shape)
    return change


def q6_k(wrong=None):
    """wrong: pairs (the second 16 of each 32 with the first's scale), before (the scale of the 16 before), unsigned."""
    def change(values, tensor):
        b = blocks(tensor, 210)
        ql, qh = b[:, :128].reshape(-1, 2, 2, 32), b[:, 128:192].reshape(-1, 2, 1, 32)
        low = np.concatenate([ql & 15, ql >> 4], 2)
        high = (qh >> np.array([0, 2, 4, 6], np.uint8)[None, None, :, None]) & 3
        q = (low | high << 4).astype(np.float32).reshape(-1, 16, 16) - 32
        scale = b[:, 192:208].view(np.int8)
        order = {"pairs": np.arange(16) & ~1, "before": np.arange(16) - 1}.get(wrong, np.arange(16))
        scale = scale.view(np.uint8) if wrong == "unsigned" else scale[:, order]
        return (half(b[:, 208:])[:, :, None] * scale.astype(np.float32)[:, :, None] * q).reshape(values.shape)
    return change


def q4_0(wrong=None):
    """wrong: nibbles (one by one, not 16 low and then 16 high)."""
    def change(values, tensor):
        b = blocks(tensor, 18)
        q = np.stack([b[:, 2:] & 15, b[:, 2:] >> 4], -1 if wrong == "nibbles" else 1).reshape(-1, 32).astype(np.float32)
        return (half(b[:, :2]) * (q - 8)).reshape(values.shape)
    return change


def q5_0(wrong=None):
    """wrong: lanes (high bits 2j and 2j+1 for j and j+16), half (bit j for j+16)."""
    def change(values, tensor):
        b, j = blocks(tensor, 22), np.arange(16)
        lanes = {"lanes": (2 * j, 2 * j + 1), "half": (j, j)}.get(wrong, (j, j + 16))
        high = (b[:, 2:6].copy().view("<u4") >> np.concatenate(lanes).astype(np.uint32)) & 1
        q = np.concatenate([b[:, 6:] & 15, b[:, 6:] >> 4], 1).astype(np.float32) + 16 * high.astype(np.float32) - 16
        return (half(b[:, :2]) * q).reshape(values.shape)
    return change


BY_HAND = {Type.Q4_K: q4_k, Type.Q5_K: q5_k, Type.Q6_K: q6_k, Type.Q4_0: q4_0, Type.Q5_0: q5_0}


def check_by_hand(path):
    """Without a mistake, unpacking by hand gives what PyPI gguf gives."""
    for name, tensor, values in loaded(path):
        if tensor.tensor_type in BY_HAND:
            ours = BY_HAND[tensor.tensor_type]()(values, tensor)
            np.testing.assert_array_equal(ours, values, err_msg=f"{path} {name}")

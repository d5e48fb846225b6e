#!/usr/bin/env python3
"""Tests that packed checkpoints are read as the libraries read them that write them.

    python scripts/suites/test_packed.py --command BINARY [NAME ..] [--keep FOLDER] [--fixtures] [--prepare]

Small random models are packed: by compressed-tensors, bitsandbytes and transformers themselves; and for what runs on no CPU (GPTQ, AWQ, FP8 in blocks, ModelOpt's NVFP4) as
is published, written anew here. `weights` must find each tensor to be what the library unpacks, to one rounding of its type; `dump` must give what PyTorch gives with those
values. Then each is unpacked wrongly: the tensor must be found, and no other. Exit code 1 where something is not as it should be.

The libraries are kept in ${XDG_CACHE_HOME:-~/.cache}/firstdiff-packed-HASH, from requirements/packed.txt. Requirements: torch, transformers, safetensors
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import FIXTURES, SCRIPTS
from scripts.release.wheel.checks import check, end

REQUIREMENTS = SCRIPTS / "requirements" / "packed.txt"


def place():
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / f"firstdiff-packed-{hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]}"


def prepare():
    """A folder of the libraries, which is read after this Python's own."""
    if not (place() / "ready").exists():
        shutil.rmtree(place(), ignore_errors=True)
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", place(), "-r", REQUIREMENTS], check=True)
        (place() / "ready").touch()


# ---- packing: a matrix [out,in] gives its parts, as a checkpoint names them, and what the library unpacks ----


def compressed(form, strategy, bits=4, kind="int", group=None, symmetric=True):
    def pack(w):
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

        size = group or w.shape[1]
        groups = w.float().view(w.shape[0], -1, size)
        largest = groups.abs().amax(-1)
        parts = {}
        if form.startswith("nvfp4"):
            whole = (448 * 6 / w.float().abs().max()).reshape(1)
            parts = {"weight_scale": (whole * largest / 6).to(torch.float8_e4m3fn).float(), "weight_global_scale": whole}
        elif form.startswith("mxfp4"):
            parts = {"weight_scale": torch.exp2(torch.floor(torch.log2(largest)) - 2)}
        elif not symmetric:
            low, high = groups.amin(-1), groups.amax(-1)
            scale = ((high - low) / (2**bits - 1)).to(w.dtype)
            zero = (-(2 ** (bits - 1)) - torch.round(low / scale.float())).clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            parts = {"weight_scale": scale, "weight_zero_point": zero.to(torch.int8)}
        else:
            most = 448 if kind == "float" else 2 ** (bits - 1) - 1
            largest = largest.amax().reshape(1) if strategy == "tensor" else largest
            parts = {"weight_scale": (largest / most).to(w.dtype)}
        told = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": symmetric} | ({"group_size": group} if group else {})
        if form.startswith("mxfp4"):
            told["scale_dtype"] = torch.uint8
        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**told), format=form)
        library = BaseCompressor.get_value_from_registry(form)
        packed = library.compress({"weight": w.clone(), **parts}, scheme)
        return packed, lambda parts: library.decompress(dict(parts), scheme)["weight"]

    return pack, {"quant_method": "compressed-tensors", "format": form}


def four_bits(kind, nested=False):
    def pack(w):
        import bitsandbytes.functional as F

        codes, state = F.quantize_4bit(w, blocksize=64, quant_type=kind, compress_statistics=nested)

        def unpack(parts):
            told = {key.removeprefix("weight."): value for key, value in parts.items() if key != "weight"}
            return F.dequantize_4bit(parts["weight"], F.QuantState.from_dict(told, device="cpu"))

        return {"weight": codes, **{f"weight.{key}": value for key, value in state.as_dict(packed=True).items()}}, unpack

    return pack, {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}


def eight_bits():
    def pack(w):
        import bitsandbytes.functional as F

        codes, largest, _ = F.int8_vectorwise_quant(w.half())
        return {"weight": codes, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}, lambda parts: F.int8_vectorwise_dequant(parts["weight"], parts["SCB"])

    return pack, {"quant_method": "bitsandbytes", "load_in_8bit": True}


def words(codes, bits, axis):
    """Codes in words of 32 bits along an axis, the first in the lowest bits; a code may begin in one word and end in the next."""
    codes = np.moveaxis(codes.astype(np.uint64), axis, 0)
    out = np.zeros((-(-codes.shape[0] * bits // 32) + 1, *codes.shape[1:]), np.uint64)
    for at, code in enumerate(codes):
        word, shift = divmod(at * bits, 32)
        out[word] |= (code << np.uint64(shift)) & np.uint64(0xFFFFFFFF)
        out[word + 1] |= (code << np.uint64(shift)) >> np.uint64(32)
    out = np.moveaxis(out[:-1], 0, axis).astype(np.uint32).view(np.int32)
    return torch.from_numpy(np.ascontiguousarray(out))


def codes_of(packed, bits, axis, count):
    """The codes of words of 32 bits, so many along the axis."""
    packed = np.moveaxis(packed.numpy().view(np.uint32).astype(np.uint64), axis, 0)
    packed = np.concatenate([packed, np.zeros_like(packed[:1])])
    code = lambda word, shift: (packed[word] >> np.uint64(shift) | packed[word + 1] << np.uint64(32 - shift)) & np.uint64(2**bits - 1)
    return np.moveaxis(np.stack([code(*divmod(at * bits, 32)) for at in range(count)]), 0, axis).astype(np.float32)


def counted(w, bits, group, order=None):
    """Codes [out,in], scales and zero points [out,groups], the group of each column."""
    w = w.float().numpy()
    of = np.arange(w.shape[1]) // group
    if order is not None:
        of = of[order]
    scales, zeros = (np.zeros((w.shape[0], w.shape[1] // group), np.float32) for _ in range(2))
    for g in range(scales.shape[1]):
        low, high = np.minimum(w[:, of == g].min(1), 0), np.maximum(w[:, of == g].max(1), 0)
        scales[:, g] = ((high - low) / (2**bits - 1)).astype(np.float16)
        # None of the last: one more is one of as many bits.
        zeros[:, g] = np.clip(np.round(-low / scales[:, g]), 1, 2**bits - 2)
    codes = np.clip(np.round(w / scales[:, of]) + zeros[:, of], 0, 2**bits - 1)
    return codes, scales, zeros, of


def gptq(bits=4, group=32, version="gptq", by_activation=False):
    def pack(w):
        order = np.random.default_rng(3).permutation(w.shape[1]) if by_activation else None
        codes, scales, zeros, of = counted(w, bits, group, order)

        def unpack(parts):
            codes = codes_of(parts["qweight"], bits, 0, w.shape[1])
            zeros = codes_of(parts["qzeros"], bits, 1, w.shape[0]) + (version == "gptq")
            of, scales = parts["g_idx"].numpy(), parts["scales"].numpy().astype(np.float32)
            return torch.from_numpy(((codes - zeros[of]) * scales[of]).T.astype(np.float16).copy())

        parts = {"qweight": words(codes.T, bits, 0), "qzeros": words(zeros.T - (version == "gptq"), bits, 1), "scales": torch.from_numpy(scales.T.astype(np.float16).copy())}
        return parts | {"g_idx": torch.from_numpy(of.astype(np.int32))}, unpack

    return pack, {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": by_activation, "checkpoint_format": version}


def awq(group=32):
    def pack(w):
        codes, scales, zeros, _ = counted(w, 4, group)
        place = np.array([0, 2, 4, 6, 1, 3, 5, 7])  # column of each nibble of a word
        eights = lambda x: words(x.reshape(x.shape[0], -1, 8)[..., place].reshape(x.shape), 4, 1)

        def unpack(parts):
            columns = lambda x: codes_of(x, 4, 1, w.shape[0]).reshape(len(x), -1, 8)[..., np.argsort(place)].reshape(len(x), -1)
            each = lambda x: np.repeat(x, group, 0)
            scales = parts["scales"].numpy().astype(np.float32)
            return torch.from_numpy(((columns(parts["qweight"]) - each(columns(parts["qzeros"]))) * each(scales)).T.astype(np.float16).copy())

        return {"qweight": eights(codes.T), "qzeros": eights(zeros.T), "scales": torch.from_numpy(scales.T.astype(np.float16).copy())}, unpack

    return pack, {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}


def blocks(dtype=None, size=128, name="weight_scale_inv"):
    """FP8 in blocks of rows and columns, as DeepSeek and Qwen3 ship it."""

    def pack(w):
        kind = dtype or torch.float8_e4m3fn
        x = torch.nn.functional.pad(w.float(), (0, -w.shape[1] % size, 0, -w.shape[0] % size))
        x = x.view(x.shape[0] // size, size, x.shape[1] // size, size)
        scales = x.abs().amax((1, 3)) / torch.finfo(kind).max
        wide = lambda s: s.repeat_interleave(size, 0).repeat_interleave(size, 1)[: w.shape[0], : w.shape[1]]
        codes = (w.float() / wide(scales)).to(kind)
        return {"weight": codes, name: scales}, lambda parts: (parts["weight"].float() * wide(parts[name])).to(torch.bfloat16)

    return pack, {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [size, size]}


def modelopt():
    def pack(w):
        levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        groups = w.float().view(w.shape[0], -1, 16)
        whole = (groups.abs().max() / (448 * 6)).float()
        scales = (groups.abs().amax(-1) / 6 / whole).to(torch.float8_e4m3fn)
        x = groups / (scales.float() * whole)[..., None]
        codes = (x.abs()[..., None] - levels).abs().argmin(-1)

        def unpack(parts):
            codes = torch.stack([parts["weight"] & 15, parts["weight"] >> 4], -1).view(w.shape).int()
            signed = levels[codes & 7] * torch.where(codes >= 8, -1.0, 1.0)
            scales = parts["weight_scale"].float() * parts["weight_scale_2"]
            return (signed.view(w.shape[0], -1, 16) * scales[..., None]).view(w.shape).to(torch.bfloat16)

        codes = (codes + 8 * (x < 0)).view(w.shape).to(torch.uint8)
        return {"weight": codes[:, ::2] | codes[:, 1::2] << 4, "weight_scale": scales, "weight_scale_2": whole}, unpack

    return pack, {"quant_method": "modelopt", "quant_algo": "NVFP4"}


FORMS = {
    "int4-groups": compressed("pack-quantized", "group", group=32),
    "int4-zero-points": compressed("pack-quantized", "group", group=32, symmetric=False),
    "int8-packed": compressed("pack-quantized", "channel", bits=8),
    "int8-channel": compressed("int-quantized", "channel", bits=8),
    "fp8-channel": compressed("float-quantized", "channel", bits=8, kind="float"),
    "fp8-tensor": compressed("float-quantized", "tensor", bits=8, kind="float"),
    "nvfp4": compressed("nvfp4-pack-quantized", "tensor_group", kind="float", group=16),
    "mxfp4": compressed("mxfp4-pack-quantized", "group", kind="float", group=32),
    "nf4": four_bits("nf4"),
    "fp4": four_bits("fp4"),
    "nf4-nested": four_bits("nf4", nested=True),
    "int8-rows": eight_bits(),
    "gptq": gptq(),
    "gptq-v2": gptq(version="gptq_v2"),
    "gptq-act-order": gptq(by_activation=True),
    "gptq-3": gptq(bits=3),
    "gptq-2": gptq(bits=2, group=64),
    "gptq-8": gptq(bits=8),
    "awq": awq(),
    "fp8-blocks": blocks(),
    "fp8-blocks-e5m2": (lambda w: blocks(torch.float8_e5m2)[0](w), {"quant_method": "fp8", "fmt": "e5m2", "weight_block_size": [128, 128]}),
    "fp8-blocks-64": blocks(size=64),
    "modelopt-nvfp4": modelopt(),
}

# ---- wrong ways to unpack: of the parts, what another reader makes ----


def nibbles(parts):
    """The two codes of each byte, exchanged."""
    for name in ("weight_packed", "weight", "qweight"):
        if name in parts and parts[name].dtype in (torch.uint8, torch.int32):
            x = parts[name].numpy().view(np.uint8)
            return parts | {name: torch.from_numpy((x >> 4 | x << 4).view(parts[name].numpy().dtype).copy())}
    return None


def of_scales(change):
    def made(parts):
        name = next((name for name in ("weight_scale_inv", "weight_scale", "scales", "weight.absmax", "SCB") if name in parts), None)
        if name is None or parts[name].dtype == torch.uint8 or parts[name].numel() < 2:
            return None
        # GPTQ and AWQ have [groups,out], the others [out,groups].
        changed = change(parts[name].float(), 0 if name == "scales" else -1)
        return None if changed is None else parts | {name: changed.to(parts[name].dtype).contiguous()}

    return made


def zeros(parts):
    """Zero points of the other version of the format."""
    return parts | {"qzeros": parts["qzeros"] + 0x11111111} if "qzeros" in parts else None


def ungrouped(parts):
    """g_idx ignored."""
    if "g_idx" not in parts or (parts["g_idx"].diff() >= 0).all():
        return None
    return parts | {"g_idx": parts["g_idx"].sort().values}


# What is done to the parts before they are unpacked, and the cause that is due; None where a law is.
WRONG = {
    "nibbles exchanged": (nibbles, "dequant-nibbles"),
    "the scale of a row's first group for all of it": (of_scales(lambda s, groups: s.narrow(groups, 0, 1).expand_as(s) if s.dim() > 1 and s.shape[groups] > 1 else None), "dequant-scale"),
    "scales ignored": (of_scales(lambda s, _: torch.ones_like(s)), "dequant-scale"),
    "scales twice": (of_scales(lambda s, _: 2 * s), None),
    "zero points one off": (zeros, "dequant-scale"),
    "g_idx ignored": (ungrouped, "dequant-scale"),
}
named, cause_of = {}, {}


# ---- checking ----


def model():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    config = LlamaConfig(vocab_size=96, hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32)
    made = LlamaForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    return made


def is_packed(name):
    return name.startswith("model.layers.") and name.endswith("proj.weight")


def save(folder, tensors, config, packing=None):
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config | ({"quantization_config": packing} if packing else {})))
    return folder


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def of_experts(name):
    """Matrices of three experts: as gpt-oss has them, and in FP8."""
    chance = torch.Generator().manual_seed(11)
    if name == "mxfp4-experts":
        from transformers.integrations.mxfp4 import convert_moe_packed_tensors

        codes = torch.randint(0, 256, (3, 8, 2, 16), dtype=torch.uint8, generator=chance)
        scales = torch.randint(118, 128, (3, 8, 2), dtype=torch.uint8, generator=chance)
        return {"weight_blocks": codes, "weight_scales": scales}, convert_moe_packed_tensors(codes, scales), {"quant_method": "mxfp4"}
    pack, packing = blocks(size=64)
    experts = [pack((torch.randn(96, 128, generator=chance) * 0.1 * (at + 1)).to(torch.bfloat16)) for at in range(3)]
    parts = {name: torch.stack([parts[name] for parts, _ in experts]) for name in experts[0][0]}
    return parts, torch.stack([unpack(parts) for parts, unpack in experts]), packing


def fixture(name):
    """A small tensor as it is packed, with what the library unpacks beside it."""
    if name.endswith("-experts"):
        parts, due, packing = of_experts(name)
        return {f"packed.{part}": tensor for part, tensor in parts.items()} | {"unpacked.weight": due}, packing
    pack, packing = FORMS[name]
    w = (torch.randn(136 if name == "fp8-blocks" else 16, 128, generator=torch.Generator().manual_seed(len(name))) * 0.1).to(torch.bfloat16)
    parts, unpack = pack(w)
    return {f"packed.{part}": tensor for part, tensor in parts.items()} | {"unpacked.weight": unpack(parts)}, packing


def fixtures(folder):
    for name in (*FORMS, "mxfp4-experts", "fp8-experts"):
        tensors, packing = fixture(name)
        save(folder / name, tensors, {}, packing)


def same_fixtures():
    """The fixtures that cargo's tests read are what the libraries make."""
    with tempfile.TemporaryDirectory() as temporary:
        fixtures(Path(temporary))
        for made in sorted(Path(temporary).glob("*/*")):
            kept = FIXTURES / "packed" / made.relative_to(temporary)
            if not kept.exists() or kept.read_bytes() != made.read_bytes():
                return str(kept)
    return ""


def judged(command, a, b):
    code, out, err = run(command, "weights", a, b, "--json", "-")
    report = json.loads(out) if out.startswith("{") else {"tensors": [], "findings": []}
    cause_of.clear()
    cause_of.update({tensor: finding["cause"] for finding in report["findings"] for tensor in finding["tensors"]})
    return code, report["tensors"], err


def check_form(command, name, form, folder, made):
    pack, packing = form
    config = made.config.to_dict() | {"dtype": "bfloat16"}
    plain = {key: value.detach() for key, value in made.state_dict().items()}
    packed, unpacked, readers = {}, dict(plain), {}
    for key, value in plain.items():
        if is_packed(key):
            parts, unpack = pack(value)
            due, readers[key] = unpack(parts), (parts, unpack)
            packed |= {f"{key.removesuffix('weight')}{part}": tensor for part, tensor in parts.items()}
            unpacked[key] = due
        else:
            packed[key] = value
    own, due = save(folder / name / "packed", packed, config, packing), save(folder / name / "unpacked", unpacked, config)
    code, tensors, err = judged(command, own, due)
    worst = max((tensor["nmse"] or 0 for tensor in tensors if tensor.get("nmse") is not None), default=None)
    check(f"{name}: as its library unpacks it (NMSE {worst})", code == 0 and len(tensors) == len(plain), err or [t for t in tensors if t["status"] != "pass"][:2])
    code, out, err = run(command, "dump", own, "--tokens", "5,17,3,42,8", "-o", folder / name / "run")
    check(f"{name}: runs", code == 0, err)
    with torch.no_grad():
        made.load_state_dict({key: value.to(torch.float32) for key, value in unpacked.items()})
        logits = made.float()(torch.tensor([[5, 17, 3, 42, 8]])).logits[0].numpy()
    got = np.load(folder / name / "run" / "logits.npy")
    left = float(((got - logits) ** 2).mean() / (logits**2).mean())
    check(f"{name}: gives PyTorch's logits (NMSE {left:.1e})", left < 1e-4, left)
    made.to(torch.bfloat16).load_state_dict(plain)
    code, tensors, err = judged(command, save(folder / name / "plain", plain, config), own)
    check(f"{name}: no further from what was packed than it must be", code == 0, [(t["b"], t["nmse"], t["allowed_nmse"]) for t in tensors if t["status"] == "diverged"])
    target = "model.layers.1.mlp.up_proj.weight"
    parts, unpack = readers[target]
    for what, (change, cause) in WRONG.items():
        other = change(parts)
        # Codes of four bits alone are told by nibbles and are added to so; and of two bits, what other scales give may be an original that was packed rightly.
        bits = packing.get("bits", 4 if "int8" not in name else 8)
        if other is None or bits != 4 and cause == "dequant-nibbles" or bits != 4 and change is zeros or bits == 2 and "first group" in what:
            continue
        wrong = save(folder / name / what.replace(' ', '-'), unpacked | {target: unpack(other).to(unpacked[target].dtype)}, config)
        code, tensors, err = judged(command, own, wrong)
        found = [(tensor["b"], cause_of.get(tensor["b"])) for tensor in tensors if tensor["status"] == "diverged"]
        named[what, name] = bool(found) and found[0][1] == cause
        wrongly = any(said not in (None, cause) for _, said in found)
        check(f"{name}: {what}: found, cause {found and found[0][1]}", code == 1 and [b for b, _ in found] == [target] and not wrongly, (code, found, err))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", help=", ".join(FORMS))
    p.add_argument("--command", type=Path, required=False)
    p.add_argument("--keep", type=Path)
    p.add_argument("--fixtures", action="store_true", help="only write fixtures/packed")
    p.add_argument("--prepare", action="store_true", help="only fetch the libraries from PyPI")
    a = p.parse_args()
    prepare()
    if a.prepare:
        return
    sys.path.append(str(place()))
    global np, torch
    import numpy as np
    import torch

    if a.fixtures:
        return fixtures(FIXTURES / "packed")
    if not a.names:
        differs = same_fixtures()
        check("fixtures/packed is what the libraries make", not differs, differs)
    with tempfile.TemporaryDirectory() as temporary:
        made = model()
        for name in a.names or FORMS:
            check_form(a.command.resolve(), name, FORMS[name], a.keep or Path(temporary), made)
    print(f"{sum(named.values())} of {len(named)} wrong ways to unpack have their cause")
    end()


if __name__ == "__main__":
    main()

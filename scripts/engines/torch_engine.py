"""Runs a Llama with 8 or 4 bits in PyTorch: transformers' model with its linears replaced, recorded by forward hooks.

Variants: dynamic-int8: torch.ao's quantize_dynamic, activations per tensor; int8-rows: weights per row and activations per row in 8 bits, as torchao's
int8_dynamic_activation_int8_weight and vLLM's W8A8 do; int8-weights: weights per row, activations as they are; int4-weights: weights in groups of 16;
sdpa-bf16, sdpa-f16: nothing quantised, the fused attention. The weight-only variants leave the model they stand for beside the dump.
Hooks and files are dump_torch.py's. Requirements: ../requirements.txt
"""

import os
import shutil
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import scripts  # its firstdiff is the tree's
from firstdiff.dump import pytorch as dump_torch

from .model import arguments

MISTAKES = ["scaled-matrix", "qk-row-order", "gate-up-swapped", "mask-omitted", "weight-transposed", "norm-eps", "rope-theta"]
VARIANTS = ["dynamic-int8", "int8-rows", "int8-weights", "int4-weights", "sdpa-bf16", "sdpa-f16"]


def round_to(x, bits):
    """x at the nearest of its row's 2^bits - 1 symmetric steps."""
    most = 2 ** (bits - 1) - 1
    step = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / most
    return (x / step).round().clamp(-most, most) * step


class RowsInt8(torch.nn.Linear):
    """Both operands rounded to 8 bits a row."""

    def forward(self, x):
        return torch.nn.functional.linear(round_to(x, 8), self.weight, self.bias)


def plant(model, mistake):
    """The mistakes that weights and modules can hold, each large enough to stand out of 8-bit activations; no base of rotation is the square root of the
    right one, which is an exponent of half the size."""
    layers = model.model.layers
    if mistake == "scaled-matrix":
        layers[1].mlp.down_proj.weight.data *= 1.25
    for layer in layers:
        attention, mlp = layer.self_attn, layer.mlp
        if mistake == "gate-up-swapped":
            mlp.gate_proj, mlp.up_proj = mlp.up_proj, mlp.gate_proj
        if mistake == "weight-transposed":
            attention.o_proj.weight.data = attention.o_proj.weight.data.T.contiguous()
        if mistake == "norm-eps":
            layer.post_attention_layernorm.variance_epsilon = 0.3
        if mistake == "qk-row-order":  # rows of q and k in the order of adjacent pairs, rotated by halves
            for linear in (attention.q_proj, attention.k_proj):
                w = linear.weight.data
                d = attention.head_dim
                linear.weight.data = w.reshape(-1, 2, d // 2, w.shape[1]).transpose(1, 2).reshape(w.shape).contiguous()
    if mistake == "rope-theta":
        rotary, d = model.model.rotary_emb, layers[0].self_attn.head_dim
        rotary.inv_freq = 700.0 ** (-torch.arange(0, d, 2).float() / d)


def quantise(model, variant):
    """All linears but the head, as is usual; dynamic-int8 takes the head too."""
    if variant == "dynamic-int8":
        torch.backends.quantized.engine = "x86" if "x86" in torch.backends.quantized.supported_engines else "qnnpack"
        return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    for name, linear in model.named_modules():
        if isinstance(linear, torch.nn.Linear) and name != "lm_head":
            w = linear.weight.data
            if variant == "int4-weights":
                linear.weight.data = round_to(w.reshape(-1, 16), 4).reshape(w.shape)
            if variant in ("int8-rows", "int8-weights"):
                linear.weight.data = round_to(w, 8)
            if variant == "int8-rows":
                linear.__class__ = RowsInt8
    return model


def main(argv=None):
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    args = arguments(__doc__, VARIANTS, MISTAKES, argv)
    from transformers import AttentionInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    dtype = {"sdpa-bf16": "bf16", "sdpa-f16": "f16"}.get(args.variant, "f32")
    kinds = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    attention = "sdpa" if args.variant.startswith("sdpa") else "eager"
    torch.set_num_threads(2)
    model = dump_torch.load(args.model, kinds[dtype], attention)
    if args.variant.endswith("-weights") and not args.mistake:
        model = quantise(model, args.variant)
        folder = args.out.with_name(args.out.name + "-dequantised")
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder)
    else:
        plant(model, args.mistake)
        model = quantise(model, args.variant) if dtype == "f32" else model
    with dump_torch.Dump(args.out, [], False) as out:
        record = dump_torch.Recorder(out, dtype)
        dump_torch.hook(model, record)
        if args.mistake == "mask-omitted":
            open_mask(model)
        modeling = sys.modules[type(model).__module__]
        own, fused = modeling.eager_attention_forward, ALL_ATTENTION_FUNCTIONS["sdpa"]
        dump_torch.wrap_attention(model, record, attention, False)
        try:
            dump_torch.run(model, record, args.tokens, len(args.decode_tokens), args.decode_tokens)
        finally:  # the next run in this process wraps its own
            modeling.eager_attention_forward = own
            AttentionInterface.register("sdpa", fused)
        out.finish({"producer": {"name": "torch", "version": torch.__version__}, "tokens": args.tokens, "decode_tokens": args.decode_tokens, "qk_rows": "half"})


def open_mask(model):
    """The causal mask forgotten."""
    for layer in model.model.layers:
        right = layer.self_attn.forward
        layer.self_attn.forward = lambda *a, right=right, **options: right(*a, **(options | {"attention_mask": torch.zeros_like(options["attention_mask"])}))


if __name__ == "__main__":
    main()

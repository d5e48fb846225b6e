"""A third set of mistakes, written without sight of the code that finds or names any: each is another site, another form of the error, or another class of
parameter than those of program_mistakes.py and program_mistakes_fresh.py, whose interface it has. The causes were decided from the words of docs/reference/why/README.md alone.

`unlisted` alone: no entry of the catalogue says it. Beside a cause: the entry's words fit, but not surely, or what is done to the operation may be said as well.
"""

import inspect
import math
import re
import sys
from unittest import mock

import torch
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.pytorch_utils import Conv1D

from scripts.planted.program_mistake_sets import new_set
from scripts.planted.program_mistakes import (ACTS, ADD, CACHED, CAUSAL, EPS, GATED, IDS, K_ROTATED, Plain, Q_ROTATED, QK_NORM, ROUTED, SCALES, SOFTMAX, SUM, UNLISTED, exchange,
                                              frequencies, head, head_width, in_layer, is_attention, is_layer_norm, is_norm, pair, rotaries, rows_first, theta_of, units,
                                              weigh)
from scripts.planted.program_mistakes_fresh import EMBED, PATCHES, SOFTCAPPED, affine, head_width_of_fused, heads_of, named, rows

MISTAKES, mistake, text, weight, held = new_set()


def exchanged(name, causes, *names):
    @mistake(name, causes)
    def plant(site):
        return any([exchange(site, *both) for both in pair(site, *names)])


def layers_of(site):
    """The layers of a model, in order."""
    return site.modules(lambda name, module: re.search(r"\.\d+$", name) and re.search(r"Layer$|Block$", type(module).__name__) and not re.search(r"\.\d+\.", name))


def reading(name, causes, reader, source, side):
    """The matrix `reader` of a layer multiplies what the module `source` was given (`in`) or gave (`out`)."""
    @mistake(name, causes)
    def plant(site):
        both = []
        for layer_name, layer in site.some(layers_of(site)):
            inside = [(inner, module) for inner, module in layer.named_modules() if not re.search(r"\d", inner)]
            linear = next((module for inner, module in inside if re.search(reader, inner) and isinstance(module, nn.Linear)), None)
            norm = next((module for inner, module in inside if re.search(source, inner)), None)
            if linear is not None and norm is not None:
                both.append((layer_name, linear, norm))

        def keeping(module, own, kept):
            def forward(x, *args, **more):
                out = own(x, *args, **more)
                kept[0] = x if side == "in" else out
                return out

            module.forward = forward

        for layer_name, linear, norm in both:
            kept = [None]
            keeping(norm, norm.forward, kept)
            linear.forward = lambda x, own=linear.forward, kept=kept: own(kept[0].reshape(*x.shape[:-1], -1))
            site.note(layer_name)
        return bool(both)


def other_text(site, function, pattern, replacement):
    """A function that is not called by its name, with another text; None where that has no such place."""
    unit = next((unit for unit in units(site.model) if unit.function is function), None)
    source = unit and re.sub(pattern, replacement, unit.source, flags=re.M)
    return unit.compiled(source) if unit and source != unit.source else None


def file_of(site):
    return inspect.getsource(sys.modules[type(site.model).__module__])


# ---- norms ----

RSQRT = (r"torch\.rsqrt\(variance \+ self\.variance_epsilon\)", r"torch\.rsqrt\(x\.pow\(2\)\.mean\(-1, keepdim=True\) \+ self\.eps\)")
text("norm-eps-added-to-the-sum", "norm-eps",
     (RSQRT[0], "torch.rsqrt(variance + self.variance_epsilon / hidden_states.shape[-1])"),
     (RSQRT[1], "torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps / x.shape[-1])"))
text("norm-eps-times-the-width", "norm-eps", (RSQRT[0], "torch.rsqrt(variance + self.variance_epsilon * hidden_states.shape[-1])"),
     (RSQRT[1], "torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps * x.shape[-1])"))
text("norm-eps-of-norm-without-gain", "norm-eps", (r"self\.normalized_shape, None, None, eps=1e-5", "self.normalized_shape, None, None, eps=1e-2"))
text("norm-without-gain-not-centered", "norm-not-centered",
     (r"F\.layer_norm\((hidden_states\.to\(dtype=torch\.float32\)), self\.normalized_shape, None, None, eps=1e-5\)",
      r"F.rms_norm(\1, self.normalized_shape, None, 1e-5)"))
text("norm-divides-by-gain", "unlisted", (r"self\.weight \* hidden_states", "hidden_states / self.weight"),
     (r"output \* \(1\.0 \+ self\.weight\.float\(\)\)", "output / (1.0 + self.weight.float())"))
text("layer-norm-plus-one-omitted", "norm-plus-one", (r"self\.weight \+ 1,", "self.weight,"), where="LayerNorm1P")
text("norm-by-newton-step", "result-scaled unlisted", (RSQRT[0], "(lambda v, y: y * (1.5 - 0.5 * v * y * y))(variance + self.variance_epsilon, "
     "1.03 * torch.rsqrt(variance + self.variance_epsilon))"))
text("norm-before-sum-in-post-norm", "unlisted", (r"self\.LayerNorm\(hidden_states \+ input_tensor\)", "self.LayerNorm(hidden_states) + input_tensor"),
     (r"self\.sa_layer_norm\(sa_output \+ x\)", "self.sa_layer_norm(sa_output) + x"))
text("norm-on-input-for-norm-on-output", "unlisted norm-omitted",
     (r"hidden_states = self\.mlp\(hidden_states\)\n( +)hidden_states = self\.post_feedforward_layernorm\(hidden_states\)",
      r"hidden_states = self.mlp(self.post_feedforward_layernorm(hidden_states))"))
text("qk-norm-without-gain-omitted", "norm-omitted", (r'if hasattr\(self, "qk_norm"\):', "if False:"), where=r"ttention\.forward")
text("qk-norm-before-rope", "qk-norm-order",
     (r"^( +)(query_states, key_states = apply_rotary_pos_emb\(.*\)\n)( +query_states = self\.query_layernorm\(query_states\)\n +key_states = self\.key_layernorm\(key_states\)\n)",
      r"\3\1\2"), where=r"ttention\.forward")
text("qk-norm-on-values-too", "unlisted", (r"^( +)(cos, sin = position_embeddings)$", r"\1value_states = self.k_norm(value_states)\n\1\2"),
     where=r"ttention\.forward", only=lambda site: any(QK_NORM.search(name) and name.endswith("k_norm") and module.weight.numel() == head_width(site)
                                                      for name, module in site.model.named_modules() if hasattr(module, "weight")))


def layer_norm(name, causes, how, biased=True):
    """A LayerNorm by other code; `how` has the input and the module."""
    @mistake(name, causes)
    def plant(site):
        found = site.role(lambda name, module: is_layer_norm(name, module) and (module.bias is not None or not biased))
        return site.forward(found, lambda module, own: lambda x: how(x, module))


def normed(x, module):
    return nn.functional.layer_norm(x, x.shape[-1:], None, None, module.eps)


layer_norm("layer-norm-bias-twice", "bias-twice unlisted", lambda x, module: affine(normed(x, module), module) + module.bias)
layer_norm("layer-norm-bias-subtracted", "sign-flipped unlisted", lambda x, module: normed(x, module) * module.weight - module.bias)
layer_norm("layer-norm-gain-twice", "norm-weight-twice", lambda x, module: affine(normed(x, module) * module.weight, module), biased=False)
layer_norm("layer-norm-over-positions", "norm-axis", lambda x, module: affine(
    (x - x.mean(-2, keepdim=True)) * torch.rsqrt(x.var(-2, keepdim=True, unbiased=False) + module.eps), module), biased=False)
layer_norm("layer-norm-mean-put-back", "unlisted", lambda x, module: affine(normed(x, module) + x.mean(-1, keepdim=True), module), biased=False)
layer_norm("layer-norm-by-mean-deviation", "unlisted", lambda x, module: affine(
    (x - x.mean(-1, keepdim=True)) / ((x - x.mean(-1, keepdim=True)).abs().mean(-1, keepdim=True) + module.eps), module), biased=False)
held("layer-norm-bias-of-next-channel", "unlisted", r"bias$", lambda bias: bias.roll(1), is_layer_norm)


@mistake("norm-bias-of-other-norm", "unlisted norm-wrong-weight weight-swapped")
def bias_of_other_norm(site):
    """Two LayerNorms of a layer exchange what they add, not their gains."""
    layers = {}
    for name, module in site.modules(lambda name, module: is_layer_norm(name, module) and module.bias is not None and in_layer(name)):
        layers.setdefault((re.search(r".*?\.\d+\.", name)[0], module.bias.shape), []).append((name, module))
    found = [norms for norms in layers.values() if len(norms) > 1]
    if not found:
        return False
    (name, first), (_, second) = site.rng.sample(site.rng.choice(found), 2)
    first.bias.data, second.bias.data = second.bias.data.clone(), first.bias.data.clone()
    return site.note(name)


def stuck(site, test):
    """The modules of one role in all layers hold what the first layer's holds; None where there are fewer than three layers."""
    roles = {}
    for name, module in site.modules(lambda name, module: in_layer(name) and not re.search(r"experts?\.\d", name) and test(name, module)):
        roles.setdefault(re.sub(r"\d+", "#", name), []).append((name, module))
    found = [modules for modules in roles.values() if len(modules) > 2 and len({tuple(p.shape for p in module.parameters(recurse=False)) for _,
    module in modules}) == 1]
    if not found:
        return False
    modules = site.rng.choice(found)
    for _, module in modules[1:]:
        with torch.no_grad():
            for one, other in zip(module.parameters(recurse=False), modules[0][1].parameters(recurse=False)):
                one.copy_(other)
    return site.note(f"all are {modules[0][0]}")


@mistake("norm-of-first-layer-in-all", "norm-wrong-weight")
def norms_stuck(site):
    return stuck(site, is_norm)


# ---- projections ----


@mistake("matrix-of-first-layer-in-all", "weight-wrong-layer")
def matrices_stuck(site):
    return stuck(site, lambda name, module: isinstance(module, (nn.Linear, Conv1D)))


exchanged("q-and-output-exchanged", "weight-swapped", ("q_proj", "o_proj"), ("q_proj", "out_proj"), ("q_proj", "dense"), ("q", "o"), ("q_lin", "out_lin"))
exchanged("v-and-output-exchanged", "weight-swapped", ("v_proj", "o_proj"), ("v_proj", "out_proj"), ("v_proj", "dense"), ("v", "o"), ("v_lin", "out_lin"))


@mistake("k-loaded-into-v", "weight-swapped")
def k_loaded_into_v(site):
    """One is read twice, the other never."""
    found = pair(site, ("k_proj", "v_proj"), ("key", "value"), ("k_lin", "v_lin"), ("k", "v"))
    for (name, k), (_, v) in found:
        v.weight.data.copy_(k.weight)
        if v.bias is not None and k.bias is not None:
            v.bias.data.copy_(k.bias)
        site.note(name)
    return bool(found)


ATTENTION, FEED = r"(attn|attention)\w*\.(\w+\.)*", r"(mlp|feed_forward|ffn)\w*\.(\w+\.)*"
BEFORE, BETWEEN = r"(^|\.)(input_layernorm|ln_1|self_attn_layer_norm|layernorm_before|layer_norm1|norm1)$", r"(^|\.)(post_attention_layernorm|ln_2|layernorm_after|layer_norm2|norm2)$"
reading("keys-read-unnormed-stream", "linear-input", ATTENTION + r"(k_proj|key)$", BEFORE, "in")
reading("values-read-unnormed-stream", "linear-input", ATTENTION + r"(v_proj|value)$", BEFORE, "in")
reading("gate-reads-attention-branch", "linear-input", FEED + r"gate_proj$", ATTENTION + r"(o_proj|out_proj|dense)$", "out")
reading("up-reads-norm-before-attention", "linear-input", FEED + r"(up_proj|fc1)$", BEFORE, "out")
reading("up-reads-unnormed-stream", "linear-input", FEED + r"up_proj$", BETWEEN, "in")
reading("output-projection-reads-normed", "linear-input", ATTENTION + r"(o_proj|out_proj)$", BEFORE, "out")
reading("output-projection-reads-queries", "linear-input unlisted", ATTENTION + r"(o_proj|out_proj)$", ATTENTION + r"(q_proj|query)$", "out")
reading("down-projection-reads-up", "linear-input activation gate-product", FEED + r"down_proj$", FEED + r"up_proj$", "out")
reading("router-reads-unnormed-stream", "operation-input linear-input", r"(mlp|block_sparse_moe|feed_forward|router)\.(gate|router|layer)$", BETWEEN, "in")
weight("bias-of-four-ranks", "unlisted", lambda bias: 4 * bias, named(r"(o_proj|out_proj|dense|down_proj|fc2|c_proj|dense_4h_to_h|fc_out)$"), key="bias")
weight("bias-f16-as-bf16", "storage-type unlisted bias-omitted", lambda bias: bias.half().view(torch.bfloat16).float(), key="bias")
weight("bias-of-other-half", "unlisted", lambda bias: bias.roll(len(bias) // 2), key="bias")
weight("columns-begin-one-late", "unlisted", lambda weight: weight.roll(1, 1))
weight("columns-of-pairs-exchanged", "unlisted dequant-nibbles", lambda weight: weight.unflatten(1, (-1, 2)).flip(2).flatten(1), lambda name,
     module: module.weight.shape[1] % 2 == 0)
weight("nibbles-of-32-in-turn", "dequant-nibbles unlisted", lambda weight: weight.unflatten(1, (-1, 2, 16)).transpose(2, 3).flatten(1),
       lambda name, module: module.weight.shape[1] % 32 == 0)
weight("first-quarter-of-bytes-read", "dequant-truncated",
       lambda weight: (weight.reshape(-1) * (torch.arange(weight.numel()) < weight.numel() // 4)).reshape(weight.shape))
weight("first-block-of-each-row-read", "dequant-truncated", lambda weight: weight * (torch.arange(weight.shape[1]) < 32),
       lambda name, module: module.weight.shape[1] > 32)
weight("rows-at-padded-distance", "weight-stride unlisted weight-unset",
       lambda weight: torch.cat([weight.reshape(-1), weight.new_zeros(16 * len(weight))])[torch.arange(len(weight))[:, None] * (weight.shape[1] + 16)
                                                                                       + torch.arange(weight.shape[1])])
weight("scale-of-each-row-left-out", "unlisted", lambda weight: weight / weight.abs().amax(1, keepdim=True).clamp(min=1e-3))
weight("scales-of-blocks-squared", "unlisted dequant-scale", lambda weight: (weight.unflatten(1, (-1, 16)) * weight.unflatten(1, (-1, 16)).abs().amax(-1,
     keepdim=True)).flatten(1),
       lambda name, module: module.weight.shape[1] % 16 == 0)
weight("adapter-left-in", "unlisted", lambda weight: weight + 0.2 * torch.randn(weight.shape[0], 2, generator=torch.Generator().manual_seed(4))
       @ torch.randn(2, weight.shape[1], generator=torch.Generator().manual_seed(5)) / weight.shape[1] ** 0.5)
weight("weights-in-f16", "precision", lambda weight: weight.half().float())
weight("weights-in-blocks-of-4-bits", "precision", lambda weight: (
    lambda blocks, scale: ((blocks / scale).round().clamp(-8, 7) * scale).flatten(1))(
        weight.unflatten(1, (-1, 16)), weight.unflatten(1, (-1, 16)).abs().amax(-1, keepdim=True).clamp(min=1e-6) / 7), lambda name,
        module: module.weight.shape[1] % 16 == 0)
weight("smallest-weights-pruned", "unlisted", lambda weight: weight * (weight.abs() > weight.abs().median()))


@mistake("norm-gain-folded-into-matrix-and-kept", UNLISTED)
def folded(site):
    """A converter multiplied the norm's gain into the matrix behind it, and the norm still has it."""
    done = False
    for name, layer in site.some(layers_of(site)):
        norm = next((module for inner, module in layer.named_modules() if re.search(BEFORE, inner) and getattr(module, "weight", None) is not None), None)
        linear = next((module for inner, module in layer.named_modules() if re.search(ATTENTION + r"(q_proj|query|Wqkv|query_key_value)$", inner)), None)
        if norm is not None and isinstance(linear, nn.Linear) and linear.in_features == len(norm.weight):
            linear.weight.data.mul_(norm.weight.data)
            done = site.note(name)
    return done


def linear(name, causes, how):
    """One role's products by other arithmetic: `how` has the module, and its input."""
    @mistake(name, causes)
    def plant(site):
        found = site.role(lambda name, module: type(module) is nn.Linear and in_layer(name))
        return site.forward(found, lambda module, own: lambda x: how(module, x))


def of_10_bits(x):
    """As TF32 has them."""
    return ((x.float().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32).type_as(x)


def of_8_bits(x):
    return x.to(torch.float8_e4m3fn).type_as(x)


linear("activations-in-f8", "precision unlisted", lambda module, x: nn.functional.linear(of_8_bits(x), module.weight, module.bias))
linear("products-in-tf32", "precision unlisted", lambda module, x: nn.functional.linear(of_10_bits(x), of_10_bits(module.weight), module.bias))
linear("outliers-of-input-clipped", "unlisted", lambda module, x: nn.functional.linear(x.clamp(-1, 1), module.weight, module.bias))
linear("bias-scaled-by-width", "unlisted bias-omitted", lambda module, x: nn.functional.linear(x, module.weight) + (
    0 if module.bias is None else module.bias * module.in_features ** -0.5))

# ---- fused matrices ----

BLOCKS = named(r"(c_attn|Wqkv|qkv_proj)$")


@mistake("fused-v-first", "fused-split")
def fused_v_first(site):
    """V, Q, K where Q, K, V is due."""
    heads, keys = heads_of(site)
    width = head_width_of_fused(site) if heads else 0
    q, k = heads * width, keys * width
    return heads > 0 and rows(site, lambda name, module: BLOCKS(name, module) and rows_first(module.weight, module).shape[0] == q + 2 * k,
                              lambda rows: torch.cat((rows[k:k + q], rows[k + q:], rows[:k])))


@mistake("fused-rows-element-by-element", "fused-split")
def fused_elements(site):
    """The elements of Q, K and V are taken in turn, where they lie in blocks, or head by head."""
    heads = heads_of(site)[0]

    def fused(pattern):
        return lambda name, module: re.search(pattern, name) and rows_first(module.weight, module).shape[0] == 3 * rows_first(module.weight, module).shape[1]

    return heads > 0 and (rows(site, fused(r"(c_attn|Wqkv|qkv_proj)$"), lambda rows: rows.unflatten(0, (-1, 3)).transpose(0, 1).flatten(0, 1))
                          or rows(site, fused(r"query_key_value$"), lambda rows: rows.unflatten(0, (heads, -1, 3)).transpose(1, 2).flatten(0, 2)))


@mistake("fused-keys-and-values-of-one-head-exchanged", "fused-split weight-swapped")
def fused_one_head(site):
    """Multi-query attention: one head of keys, one of values."""
    heads = heads_of(site)[0]
    width = site.config.hidden_size // heads if heads else 0
    return heads > 0 and rows(site, lambda name, module: re.search(r"(c_attn|query_key_value)$", name) and rows_first(module.weight,
    module).shape[0] == (heads + 2) * width,
                              lambda rows: torch.cat((rows[:-2 * width], rows[-width:], rows[-2 * width:-width])))


@mistake("fused-groups-read-as-blocks", "fused-split")
def fused_groups(site):
    """Rows lie by groups of a key head and its queries; an engine takes them for blocks of Q, K and V."""
    heads, keys = heads_of(site)[0], getattr(site.config, "num_kv_heads", None)
    if not heads or not keys or not 1 < keys < heads:
        return False
    width = site.config.hidden_size // heads

    def order(rows):
        q, k, v = rows[:heads * width], rows[heads * width:(heads + keys) * width], rows[(heads + keys) * width:]
        return torch.cat([part.unflatten(0, (keys, -1)) for part in (q, k, v)], 1).flatten(0, 1)

    return rows(site, lambda name, module: name.endswith("query_key_value") and module.weight.shape[0] == (heads + 2 * keys) * width, order)


text("fused-v-before-k-in-each-head", "fused-split weight-swapped",
     (r"query_states, key_states, value_states = qkv\.chunk\(3, dim=-1\)", "query_states, value_states, key_states = qkv.chunk(3, dim=-1)"),
     (r"key_layer = fused_qkv\[\.\.\., 1, :\]", "key_layer = fused_qkv[..., 2, :]"),
     (r"value_layer = fused_qkv\[\.\.\., 2, :\]", "value_layer = fused_qkv[..., 1, :]"),
     (r"fused_qkv\[\.\.\., 0, :\], fused_qkv\[\.\.\., 1, :\], fused_qkv\[\.\.\., 2, :\]", "fused_qkv[..., 0, :], fused_qkv[..., 2, :], fused_qkv[..., 1, :]"))
text("fused-q-k-v-for-q-v-k", "fused-split weight-swapped", (r"query, value, key = torch\.split\(qkv_split", "query, key, value = torch.split(qkv_split"))
text("values-heads-first", "head-layout",
     (r"self\.v_proj\(hidden_states\)\.view\(hidden_shape\)\.transpose\(1, 2\)",
     "self.v_proj(hidden_states).view(input_shape[0], -1, input_shape[1], self.head_dim)"),
     (r"self\.value\(hidden_states\)\.view\(\*new_shape\)\.transpose\(1, 2\)",
      "self.value(hidden_states).view(batch_size, self.num_attention_heads, -1, self.attention_head_size)"))
text("fused-rows-of-head-width-first", "head-layout fused-split unlisted",
     (r"self\.query_key_value\(hidden_states\)\.view\(hidden_shape\)\.transpose\(1, 2\)",
      "self.query_key_value(hidden_states).unflatten(-1, (3 * self.head_size, -1)).permute(0, 3, 1, 2)"))
text("state-input-split-in-other-order", "fused-split unlisted",
     (r"_, _, gate, hidden_states_B_C, dt = (projected_states\.split\(\n +\[d_mlp, d_mlp, )self\.intermediate_size,  self\.conv_dim",
      r"_, _, hidden_states_B_C, gate, dt = \1self.conv_dim, self.intermediate_size"),
     (r"gate, hidden_states_B_C, dt = (projected_states\.split\(\n +\[)self\.intermediate_size, self\.conv_dim",
      r"hidden_states_B_C, gate, dt = \1self.conv_dim, self.intermediate_size"), where="torch_forward")
text("state-parameters-b-before-dt", "fused-split unlisted",
     (r"time_step, B, C = (torch\.split\(\n +ssm_parameters, \[)self\.time_step_rank, self\.ssm_state_size, self\.ssm_state_size",
      r"B, time_step, C = \1self.ssm_state_size, self.time_step_rank, self.ssm_state_size"), where="slow_forward")


@mistake("linear-attention-rows-in-blocks", "fused-split unlisted")
def linear_blocks(site):
    """Rows of query, key, value and gate lie by groups of a key head, and are taken for blocks."""
    found = next((module for _, module in site.modules(lambda name, module: hasattr(module, "in_proj_qkvz"))), None)
    if found is None:
        return False
    k, v = found.head_k_dim, found.head_v_dim * found.num_v_heads // found.num_k_heads

    def order(rows):
        parts = rows.split([k * found.num_k_heads, k * found.num_k_heads, v * found.num_k_heads, v * found.num_k_heads])
        return torch.cat([part.unflatten(0, (found.num_k_heads, -1)) for part in parts], 1).flatten(0, 1)

    return rows(site, lambda name, module: name.endswith("in_proj_qkvz"), order)


# ---- embedding ----

text("tokens-one-too-low", "tokens-differ", (EMBED, r"self.\1((input_ids - 1).clamp(min=0))"))
text("tokens-token-0-added", "tokens-differ",
     (EMBED, r"self.\1(torch.cat((torch.zeros_like(input_ids[:, :1]), input_ids[:, :-1]), 1) if input_ids.shape[1] > 1 else input_ids)"))
text("tokens-unknown-word", "tokens-differ", (EMBED, r"self.\1(torch.where((input_ids == 42) | (input_ids == 7), 3, input_ids))"))
text("tokens-two-exchanged", "tokens-differ",
     (EMBED, r"self.\1(torch.cat((input_ids[:, :4], input_ids[:, 4:6].flip(1), input_ids[:, 6:]), 1) if input_ids.shape[1] > 6 else input_ids)"))
text("embedding-scale-inverse", "embed-scale embed-multiplier", (r"hidden_states = hidden_states \* normalizer", "hidden_states = hidden_states / normalizer"),
     (r"inputs_embeds \* self\.embedding_multiplier", "inputs_embeds / self.embedding_multiplier"),
     (r"hidden_states \* self\.normalizer\.type", "hidden_states / self.normalizer.type"))
text("embedding-scale-without-root", "embed-scale embed-multiplier", (r"self\.config\.hidden_size\*\*0\.5", "self.config.hidden_size"), where=r"Model\.forward")
text("embedding-multiplier-of-other-family", "embed-multiplier", (r"^( +)hidden_states = inputs_embeds$", r"\1hidden_states = inputs_embeds * 12.0"))
text("embedding-centred", "unlisted", (r"^( +)hidden_states = inputs_embeds$", r"\1hidden_states = inputs_embeds - inputs_embeds.mean(-1, keepdim=True)"))
text("positions-added-after-norm", "unlisted", (r"embeddings \+= position_embeddings$", "late = position_embeddings"),
     (r"embeddings = input_embeds \+ position_embeddings", "embeddings, late = input_embeds, position_embeddings"),
     (r"embeddings = self\.LayerNorm\(embeddings\)", "embeddings = self.LayerNorm(embeddings) + late"), where=r"Embeddings\.forward",
     only=lambda site: "late = " not in file_of(site) and not site.model.config.model_type.startswith("deberta"))
text("sound-positions-one-ahead", "position-embedding-offset unlisted",
     (r"self\.embed_positions\(all_positions\)", "self.embed_positions((all_positions + 1).clamp(max=self.embed_positions.num_embeddings - 1))"))
held("position-table-halves-in-turn", "unlisted", r"embed_positions\.weight$", lambda table: table.unflatten(1, (2, -1)).transpose(1, 2).flatten(1))
held("position-table-in-bf16", "precision unlisted", r"(wpe|position_embeddings?|embed_positions)\.weight$", lambda table: table.bfloat16().float())
held("position-table-stride", "unlisted weight-stride", r"(wpe|position_embeddings?|embed_positions)\.weight$",
     lambda table: torch.cat((table.reshape(-1), table.new_zeros(len(table))))[torch.arange(len(table))[:,
     None] * (table.shape[1] + 1) + torch.arange(table.shape[1])])
held("class-token-unset", "unlisted weight-unset", r"(cls_token|class_embedding)$", torch.zeros_like)
held("patch-weight-f16-as-bf16", "storage-type unlisted", r"weight$", lambda weight: weight.half().view(torch.bfloat16).float(), PATCHES)
held("patch-bias-twice", "bias-twice unlisted", r"bias$", lambda bias: 2 * bias, PATCHES)
text("pixels-not-centred", "unlisted", (r"(self\.(?:projection|patch_embedding|patch_embeddings))\(pixel_values", r"\1((pixel_values + 0.5)"))
text("image-upside-down", "unlisted", (r"(self\.(?:projection|patch_embedding|patch_embeddings))\(pixel_values", r"\1(pixel_values.flip(2)"))
text("layer-scale-twice", "unlisted", (r"hidden_state \* self\.lambda1", "hidden_state * self.lambda1 * self.lambda1"))
text("layer-scale-plus-one", "unlisted", (r"hidden_state \* self\.lambda1", "hidden_state * (1 + self.lambda1)"))
text("pooling-stream-omitted", "operation-omitted residual-omitted",
     (r"hidden_state = residual \+ self\.mlp\(hidden_state\)", "hidden_state = self.mlp(hidden_state)"))
text("pooling-before-final-norm", "unlisted norm-omitted operation-omitted", (r"pooled_output = self\.post_layernorm\(pooled_output\)", "pass"))
text("sound-bands-reversed", "unlisted", (r"self\.conv1\(input_features\)", "self.conv1(input_features.flip(1))"))


@mistake("image-positions-transposed", UNLISTED)
def image_positions(site):
    """The grid of positions is stored by columns."""
    if site.model.main_input_name != "pixel_values":
        return False
    for name, table in site.model.named_parameters():
        if re.search(r"position_embeddings?(\.weight)?$", name):
            flat = table.data.reshape(-1, table.shape[-1])
            side = int(len(flat) ** 0.5)
            extra = len(flat) - side * side
            grid = flat[extra:].reshape(side, side, -1).transpose(0, 1).reshape(side * side, -1)
            table.data.copy_(torch.cat((flat[:extra], grid)).reshape(table.shape))
            return site.note(name)
    return False


# ---- rotation ----


def rotation(name, causes, how):
    """Other frequencies; `how` has the right ones, the site, and the exponents i / (d/2)."""
    @mistake(name, causes)
    def plant(site):
        return frequencies(site, lambda frequency, module: how(frequency, site, torch.arange(len(frequency)) / len(frequency)) if len(frequency) > 1 else None)


def scaled(frequency, site, exponent):
    """By how much each frequency is scaled; None where none is."""
    ratio = frequency / theta_of(site) ** -exponent
    return None if not getattr(site.config, "rope_scaling", None) or torch.allclose(ratio, torch.ones_like(ratio)) else ratio


def configured(kinds, **more):
    """The frequencies by a config's rope_scaling with other parameters."""
    def how(frequency, site, exponent):
        scaling = getattr(site.config, "rope_scaling", None) or {}
        kind = scaling.get("rope_type", scaling.get("type"))
        if kind not in kinds:
            return None
        site.config.rope_scaling = scaling | more
        new = ROPE_INIT_FUNCTIONS[kind](site.config, "cpu")[0]
        site.config.rope_scaling = scaling
        return None if new.shape != frequency.shape or torch.allclose(new, frequency) else new

    return how


rotation("rope-base-scaled-for-length", "rope-theta", lambda frequency, site, exponent: frequency * (4.0 ** (-exponent * len(frequency) / (len(frequency) - 1))))
rotation("rope-scaling-twice", "rope-scaling", lambda frequency, site,
     exponent: None if scaled(frequency, site, exponent) is None else frequency * scaled(frequency, site, exponent))
rotation("rope-yarn-of-other-band", "rope-scaling", configured(["yarn"], beta_fast=4.0, beta_slow=0.5))
rotation("rope-llama3-of-other-band", "rope-scaling", configured(["llama3"], low_freq_factor=2.0, high_freq_factor=8.0))
rotation("rope-first-frequency-halved", "unlisted", lambda frequency, site, exponent: frequency * torch.where(torch.arange(len(frequency)) == 0, 0.5, 1.0))
rotation("rope-frequencies-in-f16", "rope-precision", lambda frequency, site, exponent: frequency.half().float())
rotation("rope-angles-over-2-pi", "unlisted rope-scaling", lambda frequency, site, exponent: frequency * 2 * math.pi)
rotation("rope-frequencies-evenly-spaced", "unlisted", lambda frequency, site, exponent: torch.linspace(1, float(frequency[-1]), len(frequency)))
text("rope-position-one-behind", "rope-position", (IDS, "(position_ids[:, None, :].float() - 1)"))
text("rope-position-counts-padding", "rope-position", (IDS, "(position_ids[:, None, :].float() + 4)"))
text("rope-position-decode-from-zero", "rope-position",
     (IDS, "torch.where(position_ids[:, None, :] >= 12, position_ids[:, None, :] - 12, position_ids[:, None, :]).float()"))
text("rope-position-in-pairs", "unlisted", (IDS, "(position_ids[:, None, :] // 2).float()"))
text("rope-position-starts-anew-after-6", "unlisted rope-position",
     (IDS, "torch.where(position_ids[:, None, :] >= 6, position_ids[:, None, :] - 6, position_ids[:, None, :]).float()"))
text("rope-direction-of-k-alone", "rope-direction", (K_ROTATED[0], "k_embed = (k * cos) - (rotate_half(k) * sin)"),
     (K_ROTATED[1], "k_embed = _apply_rotary_emb(k, cos, -sin)"))
text("rope-direction-of-stored-table", "rope-direction", (r"apply_rotary_pos_emb\((k_rot|q_rot|key|query), sin, cos\)", r"apply_rotary_pos_emb(\1, -sin, cos)"),
     where=r"(GPTJ|CodeGen)Attention\.forward")
text("rope-position-of-stored-table-ahead", "rope-position", (r"torch\.gather\(embed_positions, 1, repeated_position_ids\)",
     "torch.gather(embed_positions, 1, repeated_position_ids + 1)"),
     (r"sincos = embed_positions\[position_ids\]", "sincos = embed_positions[position_ids + 1]"))
text("rope-stored-table-not-on-k", "rope-omitted", (r"k_rot = apply_rotary_pos_emb\(k_rot, sin, cos\)", "pass"))
text("rope-cosine-of-next-position", "unlisted", (r"cos = emb\.cos\(\)", "cos = emb.cos().roll(-1, 1)"), only=lambda site: site.model.can_generate())
text("rope-sine-of-double-angle", "unlisted", (r"sin = emb\.sin\(\)", "sin = (2 * emb).sin()"))
text("rope-angles-in-f16", "rope-precision",
     (r"(freqs = \(inv_freq_expanded.*position_ids_expanded.*\)\.transpose\(1, 2\))", r"\1.half().float()"))


@mistake("rope-on-v-in-encoder", "rope-on-v")
def rope_on_v(site):
    """Where the functions of attention stand in a table of their own."""
    table = getattr(sys.modules[type(site.model).__module__], "MODERNBERT_ATTENTION_FUNCTION", {})
    changed = other_text(site, table.get("eager"), r"^( +)(query, key = apply_rotary_pos_emb\(query, key, cos, sin\))$",
                         r"\1\2\n\1value = apply_rotary_pos_emb(value, value, cos, sin)[0]")
    if changed is None:
        return False
    site.stack.enter_context(mock.patch.dict(table, eager=changed))
    return True


def whole_halves(site):
    return bool(rotaries(site)) and 2 * len(rotaries(site)[0][1].inv_freq) == head_width(site) and "x1 = x[..., : x.shape[-1] // 2]" in file_of(site)


PART = "(lambda h, c, s: torch.cat((({0}[..., :h] * c) + (rotate_half({0}[..., :h]) * s), {0}[..., h:]), -1))({0}.shape[-1] // 2, *(t[..., : {0}.shape[-1] // 4].repeat(1, 1, 1, 2) for t in (cos, sin)))"
TURNED = ("(lambda n, a, b: torch.stack((a * cos[..., :n] - b * sin[..., :n], b * cos[..., :n] + a * sin[..., :n]), -1).flatten(-2))"
          "({0}.shape[-1] // 2, {0}[..., ::2], {0}[..., 1::2])")
text("rope-on-half-of-each-head", "rope-partial", (Q_ROTATED[0], "q_embed = " + PART.format("q")), (K_ROTATED[0], "k_embed = " + PART.format("k")),
     only=whole_halves)
text("rope-pairing-of-k-alone", "rope-pairing", (K_ROTATED[0], "k_embed = " + TURNED.format("k")), only=whole_halves)
text("rope-pairing-of-q-alone", "rope-pairing", (Q_ROTATED[0], "q_embed = " + TURNED.format("q")), only=whole_halves)
text("rope-twice-on-k-alone", "rope-twice", (K_ROTATED[0], r"\g<0>\n    k_embed = (k_embed * cos) + (rotate_half(k_embed) * sin)"))
text("rope-on-first-head-alone", "unlisted", (Q_ROTATED[0], r"\g<0>\n    q_embed = torch.cat((q_embed[:, :1], q[:, 1:]), 1)"), only=whole_halves)
text("rope-tables-in-8-bits", "rope-precision unlisted", (r"(cos|sin) = emb\.(cos|sin)\(\)", r"\1 = (emb.\2() * 127).round() / 127"))


@mistake("rope-stored-table-of-other-base", "rope-theta")
def stored_table(site):
    done = False
    for name, module in site.some(site.modules(lambda name, module: isinstance(getattr(module, "embed_positions", None), torch.Tensor))):
        table = module.embed_positions
        count = table.shape[1] // 2
        angle = torch.arange(len(table))[:, None] * 500.0 ** -(torch.arange(count) / count)
        module.embed_positions = torch.cat((angle.sin(), angle.cos()), 1)
        done = site.note(name)
    return done


@mistake("rope-attention-factor-inverse", "rope-attention-factor")
def factor_inverse(site):
    return site.set(["attention_scaling"], lambda factor, module: 1 / factor if factor != 1.0 else None)


@mistake("rope-attention-factor-added", "rope-attention-factor result-scaled")
def factor_added(site):
    return site.set(["attention_scaling"], lambda factor, module: 1.2079441541679836 if factor == 1.0 else None)


@mistake("rope-omitted-on-one-kind-of-layer", "rope-layer-kind rope-omitted")
def rope_of_kind(site):
    """The layers with rotation, and those without, exchange their parts."""
    found = site.modules(lambda name, module: isinstance(getattr(module, "use_rope", None), (bool, int)))
    for _, module in found:
        module.use_rope = not module.use_rope
    return len({bool(module.use_rope) for _, module in found}) > 1 and not any(hasattr(module, "qk_norm") for _, module in found)


# ---- scores ----


def scale(name, causes, how):
    """The scale of the scores; `how` has the old one, the heads, and the width of a head."""
    @mistake(name, causes)
    def plant(site):
        heads, width = heads_of(site)[0], head_width(site) or 8
        return heads > 0 and site.set(SCALES, lambda old, module: how(old, heads, width, site) if isinstance(old, float) and old != 1.0 else None, is_attention)


scale("scale-of-padded-head", "score-scale", lambda old, heads, width, site: (2 * width) ** -0.5)
scale("scale-of-hidden-width-without-root", "score-scale", lambda old, heads, width, site: 1 / getattr(site.config, "hidden_size", 32))
scale("scale-rounded-to-a-power-of-2", "score-scale", lambda old, heads, width,
     site: 2.0 ** -round(-math.log2(old)) if 2.0 ** -round(-math.log2(old)) != old else None)
text("scale-in-projection-and-scores", "score-scale", (r"^( +)scaling=1\.0,$", r"\1scaling=self.scaling,"), where=r"ttention\.forward")
text("scale-added-where-there-is-none", "score-scale", (r"(attn_weights = torch\.matmul\(query, key\.transpose\(-1, -2\)\))$", r"\1 * key.shape[-1] ** -0.5"),
     where=r"GPTNeo.*_attn$")
text("scale-of-scores-after-bias", "unlisted position-bias",
     (r"(torch\.matmul\(query_states, key_states\.transpose\(-1, -2\)\)) \* self\.softmax_scale", r"\1"),
     (r"attention_scores = attention_scores \+ position_bias$", "attention_scores = (attention_scores + position_bias) * self.softmax_scale"),
     where=r"MptAttention\.forward")


@mistake("scale-stored-as-tensor", "score-scale")
def scale_attn(site):
    return site.set(["scale_attn"], lambda old, module: old * old if isinstance(old, torch.Tensor) else None)


text("softcap-on-probabilities", "unlisted", (r"(torch\.matmul\(attn_weights, value_states\))", r"torch.matmul(0.5 * torch.tanh(2 * attn_weights), value_states)"),
     where="eager_attention_forward", only=SOFTCAPPED)
text("mask-three-ahead", "mask-shifted", (CAUSAL, "kv_idx <= q_idx + 3"))
text("mask-fill-of-stored-mask", "mask-fill", (r"mask_value = torch\.finfo\(attn_weights\.dtype\)\.min$", "mask_value = -3.0"),
     (r"masked_fill\(attention_mask, torch\.finfo\(query_states\.dtype\)\.min\)", "masked_fill(attention_mask, -3.0)"))
text("mask-open-for-last-key", "unlisted", (CAUSAL, "(kv_idx <= q_idx) | (kv_idx == 11)"))
text("mask-as-a-band", "window-size unlisted", (CAUSAL, "(kv_idx <= q_idx) & (kv_idx > q_idx - 5)"),
     only=lambda site: not getattr(site.config, "sliding_window", None))
text("encoder-window-one-less", "window-size", (r"distance <= self\.config\.local_attention // 2", "distance < self.config.local_attention // 2"))
text("encoder-window-of-future", "unlisted", (r"\(distance <= self\.config\.local_attention // 2\)",
     "((distance <= self.config.local_attention // 2) & (rows >= rows.T))"))


@mistake("window-of-stored-mask-one-more", "window-size")
def stored_window(site):
    found = site.modules(lambda name, module: isinstance(getattr(module, "bias", None), torch.Tensor) and module.bias.dtype == torch.bool
                         and not torch.equal(module.bias, torch.ones_like(module.bias).tril()))
    for name, module in found:
        module.bias = module.bias | module.bias.roll(1, -2).tril()
        site.note(name)
    return bool(found)


text("probs-of-largest-4", "unlisted", (r"torch\.matmul\((attn_weights|attention_probs), (\w+)\)",
     r"torch.matmul(\1 * (\1 >= \1.topk(min(4, \1.shape[-1]), -1)[0][..., -1:]), \2)"))
text("probs-mixed-with-uniform", "unlisted", (r"torch\.matmul\((attn_weights|attention_probs), (\w+)\)",
     r"torch.matmul(0.9 * \1 + 0.1 * (\1 > 0) / (\1 > 0).sum(-1, keepdim=True), \2)"))
text("probs-in-8-bits", "precision unlisted", (r"torch\.matmul\((attn_weights|attention_probs), (\w+)\)", r"torch.matmul((\1 * 255).round() / 255, \2)"))
text("probs-of-next-head", "unlisted", (r"torch\.matmul\((attn_weights|attention_probs), (\w+)\)", r"torch.matmul(\1.roll(-1, 1), \2)"))
text("sink-counted-twice", "sink-omitted", (r"torch\.cat\(\[attn_weights, sinks\], dim=-1\)", "torch.cat([attn_weights, sinks, sinks], dim=-1)"),
     (r"scores = probs\[\.\.\., :-1\]", "scores = probs[..., :-2]"))
text("sink-scaled-as-scores", "unlisted result-scaled", (r"torch\.cat\(\[attn_weights, sinks\], dim=-1\)", "torch.cat([attn_weights, sinks * scaling], dim=-1)"))
text("sink-as-first-key", "unlisted", (r"scores = probs\[\.\.\., :-1\]", "scores = torch.cat((probs[..., :1] + probs[..., -1:], probs[..., 1:-1]), -1)"))
text("alibi-slopes-of-twice-the-heads", "position-bias unlisted", (r"alibi = slopes\[", "slopes = slopes.sqrt()\n    alibi = slopes["),
     (r"alibi = alibi \* slopes", "alibi = alibi * slopes.sqrt()"))
text("alibi-halved", "position-bias operation-omitted", (r"alibi = (slopes\[\.\.\., None\](?:\.bfloat16\(\))? \* arange_tensor|alibi \* slopes)", r"alibi = 0.5 * (\1)"))
text("alibi-by-root-of-distance", "unlisted", (r"alibi = alibi \* slopes", "alibi = -(-alibi).float().sqrt() * slopes"))
text("relative-bias-twice", "position-bias", (r"scores \+= position_bias_masked", "scores += 2 * position_bias_masked"))
text("relative-bias-scaled-as-scores", "position-bias", (r"values = self\.relative_attention_bias\(relative_position_bucket\)",
     "values = self.relative_attention_bias(relative_position_bucket) * self.key_value_proj_dim**-0.5"))
text("relative-buckets-without-direction", "unlisted", (r"relative_buckets \+= \(relative_position > 0\)\.to\(torch\.long\) \* num_buckets", "pass"))
text("p2c-scores-omitted", "operation-omitted", (r"score \+= p2c_att / scale.*", "pass"))
text("c2p-distance-turned", "unlisted sign-flipped", (r"c2p_pos = torch\.clamp\(relative_pos \+ att_span", "c2p_pos = torch.clamp(-relative_pos + att_span"))


@mistake("relative-buckets-of-half-the-number", "unlisted number-differs")
def relative_buckets(site):
    return site.set(["relative_attention_num_buckets"], lambda old, module: old // 2)


CROSS = r"hidden_states = nn\.functional\.dropout\(hidden_states, p=self\.dropout, training=self\.training\)\n( +)hidden_states = residual \+ hidden_states\n( +hidden_states = self\.encoder_attn_layer_norm)"
text("cross-attention-left-out", "operation-omitted residual-source residual-scale unlisted", (CROSS, r"hidden_states = residual\n\2"))
text("cross-attention-stream-omitted", "residual-omitted residual-source residual-scale operation-omitted", (CROSS, r"pass\n\2"))
text("cross-attention-of-shorter-input", "unlisted", (r"(key_states = self\.(?:k_proj|k)\(current_states\))",
     r"current_states = current_states * (torch.arange(current_states.shape[1]) < 8)[:, None] "
     r"if is_cross_attention else current_states; \1"))

# ---- heads, context, cache ----

text("linear-key-heads-in-turn", "kv-head-map unlisted", (r"(query|key)\.repeat_interleave\(self\.num_v_heads // self\.num_k_heads, dim=2\)",
     r"\1.repeat(1, 1, self.num_v_heads // self.num_k_heads, 1)"))
text("context-of-merged-heads-rolled", "unlisted", (r"attn_output = attn_output\.reshape\(\*input_shape, -1\)\.contiguous\(\)",
     "attn_output = attn_output.reshape(*input_shape, -1).roll(1, -1)"))
text("kv-heads-of-v-reversed", "unlisted kv-head-map", (r"(value_states = )(repeat_kv\((\w+), (?:module|self)\.num_key_value_groups\))", r"\1\2.flip(1)"))
text("query-of-each-pair-of-heads-exchanged", "unlisted", (r"^( +)(query_states, key_states = apply_rotary_pos_emb\(.*\))$",
     r"\1\2\n\1query_states = query_states.unflatten(1, (-1, 2)).flip(2).flatten(1, 2)"))


def stored(name, causes, keys, what):
    """What a decode step finds in the cache; `what` is written with OLD and NEW."""
    new = {"keys": "key_states", "values": "value_states"}[keys]
    what = what.replace("OLD", f"self.{keys}").replace("NEW", new)
    text(name, causes, (CACHED.format(keys, new), f"self.{keys} = torch.cat([{what}] if self.{keys}.numel() else [self.{keys}, {new}], dim=-2)"))


stored("cache-new-value-first", "kv-cache-shift", "values", "NEW, OLD")
stored("cache-prompt-values-one-slot-early", "kv-cache-shift operation-input", "values", "OLD[..., 1:, :], OLD[..., -1:, :], NEW")
stored("cache-newest-value-is-last-one", "kv-cache-stale", "values", "OLD, OLD[..., -1:, :]")
stored("cache-newest-key-is-zero", "kv-cache-stale", "keys", "OLD, NEW * 0")
stored("cache-of-other-key-head", "unlisted", "keys", "OLD.roll(1, 1), NEW")
stored("cache-keys-averaged", "unlisted", "keys", "0.5 * (OLD + OLD.roll(1, -2)), NEW")
stored("cache-values-scaled-when-read", "unlisted", "values", "OLD * 0.8, NEW")
stored("cache-written-at-half-the-slot", "unlisted", "values", "OLD[..., :6, :], OLD[..., 7:, :], OLD[..., 6:7, :], NEW")
stored("cache-keys-in-f8", "precision unlisted", "keys", "OLD.to(torch.float8_e4m3fn).type_as(OLD), NEW")
text("cache-values-in-8-bits-by-token", "precision", (CACHED.format("values", "value_states"),
     "self.values = torch.cat([self.values, (lambda x, step: (x / step).round() * step)(value_states, value_states.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 127)], dim=-2)"))

# ---- feed-forward ----


def activation(name, causes, function):
    @mistake(name, causes)
    def plant(site):
        done = False
        for owner, module in site.some(site.modules(lambda name, module: any(callable(getattr(module, key, None)) for key in ACTS))):
            for key in (key for key in ACTS if callable(getattr(module, key, None))):
                setattr(module, key, Plain(function) if isinstance(getattr(module, key), nn.Module) else function)
                done = site.note(f"{owner}.{key}")
        return done


activation("activation-elu", "activation", nn.functional.elu)
activation("activation-softplus", "activation", nn.functional.softplus)
activation("activation-softsign", "unlisted", nn.functional.softsign)
activation("activation-clipped-at-half", "unlisted activation-clamp", lambda x: nn.functional.silu(x).clamp(max=0.5))
activation("activation-in-steps", "unlisted precision", lambda x: (nn.functional.silu(x) * 16).round() / 16)
text("gate-not-applied", "gate-product", (GATED, r"self.\4(\3)"))
text("up-activated-and-no-gate", "gate-product", (GATED, r"self.\1(self.\4(\3))"))
text("gate-and-up-both-activated", "unlisted", (GATED, r"self.\1(self.\2(\3)) * self.\1(self.\4(\3))"))
text("up-clamped", "activation-clamp", (GATED, r"self.\1(self.\2(\3)) * self.\4(\3).clamp(-0.5, 0.5)"))
text("gate-divides", "unlisted", (GATED, r"self.\4(\3) / (1 + self.\1(self.\2(\3)).abs())"))
text("product-of-first-half-alone", "unlisted", (GATED, r"(lambda y: y * (torch.arange(y.shape[-1]) < y.shape[-1] // 2))(self.\1(self.\2(\3)) * self.\4(\3))"))
text("squares-without-relu", "operation-omitted activation", (r"torch\.square\(torch\.relu\((self\.key\(key\))\)\)", r"torch.square(\1)"))
text("sparsity-without-mean", "operation-omitted", (r"cutoff_x = inputs_mean \+ inputs_std \* std_multiplier", "cutoff_x = inputs_std * std_multiplier"))
text("low-rank-branch-without-stream", "operation-omitted residual-omitted", (r"hidden_states \+ normed_laurel_hidden_states", "normed_laurel_hidden_states"))
text("low-rank-branch-not-divided", "operation-omitted result-scaled number-differs residual-scale",
     (r"\(attn_gated \+ laurel_output\) / math\.sqrt\(2\)", "(attn_gated + laurel_output)"))
text("streams-not-corrected", "operation-omitted unlisted", (r"corrected \+= predictions  # add the original input", "pass"))
text("stream-router-not-scaled", "operation-omitted result-scaled", (r"self\.router_norm\(x\) \* self\.router_input_scale", "self.router_norm(x)"))
text("correction-without-one", "operation-omitted number-differs", (r"self\.correction_coefs\(modalities\) \+ 1\.0", "self.correction_coefs(modalities)"))

# ---- residual stream ----

SUMS = [(r"self\.LayerNorm\(hidden_states \+ (input_tensor)\)", "self.LayerNorm({0} hidden_states + {1} input_tensor)"),
        (r"hidden_states = hidden_states \+ input_tensor$", "hidden_states = {0} hidden_states + {1} input_tensor"),
        (r"hidden_states = attention_output \+ hidden_states$", "hidden_states = {0} attention_output + {1} hidden_states"),
        (r"self\.drop_path\((self_attention_output|layer_output)\) \+ hidden_states", r"{0} \1 + {1} hidden_states"),
        (r"hidden_states \+ self\.dropout\((forwarded_states|attention_output\[0\])\)", r"{1} hidden_states + {0} \1"),
        (r"hidden_states = hidden_states \+ (attn_outputs\[0\]|mlp_output)$", r"hidden_states = {1} hidden_states + {0} \1"),
        (r"hidden = hidden \+ (attention|feed_forward)$", r"hidden = {1} hidden + {0} \1")]
summed = lambda branch, stream: [(pattern, to.format(branch, stream)) for pattern, to in SUMS]
text("stream-omitted-in-encoder", "residual-omitted residual-source residual-scale", *summed("1 *", "0 *"), one=True)
text("branch-doubled-in-encoder", "residual-scale", *summed("2 *", "1 *"), one=True)
text("stream-subtracted", "residual-scale sign-flipped", (ADD, r"\1 = \1 - residual"), *summed("1 *", "-1 *"), one=True)
text("branch-added-to-itself", "residual-source residual-scale", (ADD, r"\1 = \1 + \1"), one=True)
text("stream-clamped", "unlisted", (ADD, r"\1 = (residual + \1).clamp(-1.5, 1.5)"), one=True)
text("branch-normed-before-sum", "unlisted", (ADD, r"\1 = residual + torch.nn.functional.normalize(\1, dim=-1)"), one=True)
text("stream-averaged-with-branch", "residual-scale result-scaled", (ADD, r"\1 = (residual + \1) / 2"), one=True)
text("attention-branch-added-for-feed-forward", "residual-source",
     (r"\A((?:.*\n)*?)( +)hidden_states = residual \+ hidden_states\n((?:.*\n)*)( +)hidden_states = residual \+ hidden_states\n",
      r"\1\2branch = hidden_states\n\2hidden_states = residual + hidden_states\n\3\4hidden_states = residual + branch\n"), where=r"(Layer|Block)\.forward")
text("residual-multiplier-inverse", "residual-scale", (r" \* self\.residual_multiplier", " / self.residual_multiplier"), one=True)
text("stream-kept-before-norm", "residual-source", (r"(hidden_states = self\.(?:input|post_attention)_layernorm\(hidden_states\))\n( +)residual = hidden_states$",
     r"residual = hidden_states\n\2\1"), one=True, where=r"DecoderLayer\.forward")
text("parallel-branch-doubled", "residual-scale unlisted", (r"(residual \+ hidden_states_attention \+) hidden_states_mlp", r"\1 2 * hidden_states_mlp"),
     (r"mlp_output \+ attn_output \+ hidden_states", "2 * mlp_output + attn_output + hidden_states"),
     (r"attn_outputs \+ feed_forward_hidden_states \+ residual", "2 * attn_outputs + feed_forward_hidden_states + residual"))
text("parallel-branch-of-normed-stream", "residual-source unlisted",
     (r"residual \+ hidden_states_attention \+ hidden_states_mlp", "self.input_layernorm(residual) + hidden_states_attention + hidden_states_mlp"),
     (r"attn_outputs \+ feed_forward_hidden_states \+ residual",
     "attn_outputs + feed_forward_hidden_states + (self.ln_1 if hasattr(self, 'ln_1') else self.input_layernorm)(residual)"))


@mistake("layers-one-behind", "norm-wrong-weight weight-wrong-layer")
def layers_behind(site):
    """Layer i holds what layer i - 1 has, the first its own."""
    for _, module in site.model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) > 1 and re.search("Layer|Block", type(module[0]).__name__):
            kept = [[weight.detach().clone() for weight in layer.parameters()] for layer in module]
            if len({tuple(weight.shape for weight in weights) for weights in kept}) == 1:
                with torch.no_grad():
                    for at in range(1, len(module)):
                        for weight, other in zip(module[at].parameters(), kept[at - 1]):
                            weight.copy_(other)
                return site.note(f"{len(module)} layers")
    return False


# ---- head ----


@mistake("logits-softcap-of-scores", "logit-softcap")
def logits_cap(site):
    if getattr(site.config, "final_logit_softcapping", None) is None:
        return False
    site.config.final_logit_softcapping = 2.0
    return True


text("logits-of-row-behind", "logit-row", (r"self\.lm_head\(hidden_states\[:, slice_indices, :\]\)", "self.lm_head(hidden_states.roll(-1, 1)[:, slice_indices, :])"),
     where="ForCausalLM")
text("logits-of-tied-head-not-scaled", "logit-scale operation-omitted result-scaled", (r"sequence_output = sequence_output \* \(self\.model_dim\*\*-0\.5\)", "pass"))
text("logits-without-mean", "unlisted", (r"logits = self\.lm_head\((.*)\)$", r"logits = (lambda y: y - y.mean(-1, keepdim=True))(self.lm_head(\1))"),
     where="ForCausalLM")
text("logits-of-special-tokens-hidden", "unlisted", (r"logits = self\.lm_head\((.*)\)$",
     r"logits = (lambda y: y * (torch.arange(y.shape[-1]) > 2))(self.lm_head(\1))"), where="ForCausalLM")


@mistake("bias-of-head-twice", "bias-twice unlisted")
def head_bias(site):
    if head(site) is None or getattr(head(site), "bias", None) is None:
        return False
    head(site).bias.data.mul_(2)
    return True


def of_head(name, causes, how):
    @mistake(name, causes)
    def plant(site):
        if head(site) is None or not isinstance(getattr(head(site), "weight", None), torch.Tensor) or head(site).weight.dim() != 2:
            return False
        head(site).weight = nn.Parameter(how(head(site).weight.detach().clone()))
        return True


of_head("head-rows-behind-a-special-token", "unlisted", lambda weight: torch.cat((weight[:50], weight[49:-1])))
of_head("head-unset", "weight-unset head-untied", torch.zeros_like)
of_head("head-in-8-bits-by-row", "precision", lambda weight: (lambda scale: (weight / scale).round() * scale)(weight.abs().amax(1, keepdim=True) / 127))
of_head("head-columns-reversed", "unlisted", lambda weight: weight.flip(1))


@mistake("final-norm-bias-omitted", "bias-omitted unlisted")
def final_norm_bias(site):
    found = [module for name, module in site.modules(lambda name, module: is_layer_norm(name, module) and module.bias is not None) if not in_layer(name)]
    if not found:
        return False
    found[-1].bias.data.zero_()
    return True


# ---- experts ----

text("router-weights-divided-by-scale", "router-scale", (r"topk_weights \* self\.routed_scaling_factor", "topk_weights / self.routed_scaling_factor"),
     only=lambda site: getattr(site.config, "routed_scaling_factor", 1.0) != 1.0)
text("router-correction-subtracted", "sign-flipped router-bias",
     (r"\+ self\.e_score_correction_bias\.unsqueeze\(0\)", "- self.e_score_correction_bias.unsqueeze(0)"))
text("router-logits-scaled-as-scores", "result-scaled", (r"router_logits = self\.gate\(hidden_states\)",
     "router_logits = self.gate(hidden_states) * hidden_dim**-0.5"))
text("router-weights-of-all-tokens-sum-to-one", "unlisted", (SUM, "routing_weights /= routing_weights.sum(dim=0, keepdim=True)"))
text("router-weights-reversed", "unlisted", (rf"^( +){SUM}$", r"\g<0>\n\1routing_weights = routing_weights.flip(-1)"))
text("router-weights-normalised-by-root-of-squares", "unlisted", (SUM, "routing_weights /= routing_weights.pow(2).sum(dim=-1, keepdim=True).sqrt()"),
     (r"topk_weights\.sum\(dim=-1, keepdim=True\) \+ 1e-20", "topk_weights.pow(2).sum(dim=-1, keepdim=True).sqrt() + 1e-20"))
text("router-scores-squared", "unlisted", (r"topk_weights = scores\.gather", "topk_weights = scores.pow(2).gather"))
text("router-weights-of-first-choice-one", "unlisted", (ROUTED + r"\n( +)(routing_weights, selected_experts = .*)\n",
     r"routing_weights = F.softmax(router_logits, dim=1, dtype=torch.float)\n\1\2\n"
     r"\1routing_weights = torch.cat((torch.ones_like(routing_weights[:, :1]), routing_weights[:, 1:]), -1)\n"))
text("router-softmax-of-chosen-with-temperature", "unlisted result-scaled",
     (r"torch\.nn\.functional\.softmax\(router_top_value, dim=1", "torch.nn.functional.softmax(router_top_value / 2, dim=1"),
     (r"torch\.softmax\(top_k_logits, dim=1\)", "torch.softmax(top_k_logits / 2, dim=1)"))
text("experts-all-the-first", "unlisted expert-order", (r"expert_layer = self\.experts\[expert_idx\]", "expert_layer = self.experts[0]"),
     (r"expert = self\.experts\[expert_idx\]", "expert = self.experts[0]"))
text("expert-bias-not-weighted", "unlisted", (r"weighted_output = out \* routing_weights\[token_idx, expert_idx, None\]",
     "weighted_output = (out - self.down_proj_bias[expert_idx]) * routing_weights[token_idx, expert_idx, None] + self.down_proj_bias[expert_idx]"))
text("expert-bias-of-previous-expert", "expert-order unlisted", (r"self\.down_proj_bias\[expert_idx\]", "self.down_proj_bias[expert_idx - 1]"))
text("expert-up-plus-two", "number-differs", (r"gated_output = \(up \+ 1\) \* glu", "gated_output = (up + 2) * glu"))
text("expert-alpha-of-two", "number-differs activation", (r"torch\.sigmoid\(gate \* self\.alpha\)", "torch.sigmoid(gate * 2.0)"))
text("shared-expert-twice", "unlisted residual-scale", (r"hidden_states \+ self\.shared_experts\(residuals\)", "hidden_states + 2 * self.shared_experts(residuals)"),
     (r"final_hidden_states \+ shared_expert_output", "final_hidden_states + 2 * shared_expert_output"))
text("shared-gate-by-softmax-of-one", "shared-gate", (r"F\.sigmoid\((self\.shared_expert_gate\(hidden_states\))\)", r"F.softmax(\1, dim=-1)"))
text("shared-gate-on-routed", "unlisted", (r"shared_expert_output = F\.sigmoid\(self\.shared_expert_gate\(hidden_states\)\) \* shared_expert_output",
     "final_hidden_states = F.sigmoid(self.shared_expert_gate(hidden_states)) * final_hidden_states"))
held("router-bytes-transposed", "weight-transposed weight-stride unlisted", r"(gate|router|layer)\.weight$",
     lambda weight: weight.reshape(weight.shape[1], weight.shape[0]).T.contiguous(),
     lambda name, module: re.search(r"(mlp|moe|router|feed_forward|gate)\.?\w*$", name) and getattr(module, "weight",
     torch.zeros(1)).dim() == 2 and module.weight.shape[0] == 4)
held("router-rows-rolled", "unlisted expert-order", r"(gate|router|layer)\.weight$", lambda weight: weight.roll(1, 0),
     lambda name, module: re.search(r"(mlp|moe|router|feed_forward|gate)\.?\w*$", name) and getattr(module, "weight",
     torch.zeros(1)).dim() == 2 and module.weight.shape[0] == 4)
held("stacked-experts-gate-and-up-exchanged", "weight-swapped fused-split gate-up-swapped unlisted", r"experts\.gate_up_proj$",
     lambda weight: weight.roll(weight.shape[-1] // 2, -1))


@mistake("experts-reversed", "expert-order unlisted")
def experts_reversed(site):
    done = False
    for name, module in site.some(site.modules(lambda name, module: name.endswith("experts") and isinstance(module, nn.ModuleList))):
        kept = [[weight.detach().clone() for weight in expert.parameters()] for expert in module]
        with torch.no_grad():
            for at, expert in enumerate(module):
                for weight, other in zip(expert.parameters(), kept[-1 - at]):
                    weight.copy_(other)
        done = site.note(name)
    return done


@mistake("expert-of-other-layer", "weight-wrong-layer unlisted")
def expert_of_layer(site):
    found = site.linears(lambda name, module: re.search(r"experts\.\d+\.", name))
    if not found:
        return False
    name, module = site.rng.choice(found)
    other = next((other for where, other in found if other is not module and re.sub(r"(layers|h)\.\d+\.", "", where) == re.sub(r"(layers|h)\.\d+\.", "", name)),
    None)
    if other is None or other.weight.shape != module.weight.shape:
        return False
    module.weight.data.copy_(other.weight)
    return site.note(name)


# ---- latent attention ----

text("latent-key-not-brought-into-halves", "rope-pairing qk-row-order unlisted",
     (r"    k = k\.view\(b, h, s, d // 2, 2\)\.transpose\(4, 3\)\.reshape\(b, h, s, d\)\n", ""), where="apply_rotary_pos_emb_interleave")
text("latent-rotated-part-of-next-head", "unlisted", (r"query_states = torch\.cat\(\(q_pass, q_rot\), dim=-1\)",
     "query_states = torch.cat((q_pass, q_rot.roll(1, 1)), dim=-1)"))
text("latent-rotated-part-left-out", "unlisted", (r"key_states = torch\.cat\(\(k_pass, k_rot\), dim=-1\)", "key_states = torch.cat((k_pass, 0 * k_rot), dim=-1)"))
text("latent-norm-on-rotated-part-too", "unlisted", (r"k_rot = k_rot\.view\(batch_size, 1, seq_length, self\.qk_rope_head_dim\)",
     "k_rot = torch.nn.functional.rms_norm(k_rot, k_rot.shape[-1:]).view(batch_size, 1, seq_length, self.qk_rope_head_dim)"))
text("latent-query-norm-for-keys", "norm-wrong-weight", (r"self\.kv_a_layernorm\(k_pass\)", "self.q_a_layernorm(k_pass)"))
text("latent-rotated-part-of-q-reversed", "unlisted", (r"query_states = torch\.cat\(\(q_pass, q_rot\), dim=-1\)",
     "query_states = torch.cat((q_pass, q_rot.flip(-1)), dim=-1)"))

# ---- state spaces and other mixers ----

held("decay-of-next-head", "unlisted", r"A_log$", lambda decay: decay.roll(1, -1))
held("skip-doubled", "unlisted result-scaled residual-scale", r"\.D$", lambda skip: 2 * skip)
held("conv-kernel-of-next-channel", "unlisted", r"conv1?d?\.weight$", lambda kernel: kernel.roll(1, 0), lambda name,
     module: isinstance(module, nn.Conv1d) and module.groups > 1)
held("dt-bias-of-other-sign", "unlisted sign-flipped", r"(dt_bias|dt_proj\.bias)$", lambda bias: -bias)
text("scan-with-c-of-previous-token", "unlisted", (r"C\[:, i, :\]\.unsqueeze\(-1\)", "C[:, i - 1, :].unsqueeze(-1)"), where="slow_forward")
text("scan-input-decayed-too", "unlisted", (r"discrete_A\[:, :, i, :\] \* ssm_state \+ deltaB_u\[:, :, i, :\]",
     "discrete_A[:, :, i, :] * (ssm_state + deltaB_u[:, :, i, :])"))
text("scan-state-in-bf16", "precision unlisted", (r"(ssm_state = discrete_A\[:, :, i, :\] \* ssm_state \+ deltaB_u\[:, :, i, :\])",
     r"\1; ssm_state = ssm_state.bfloat16().to(deltaB_u.dtype)"))
text("gate-of-state-by-sigmoid", "activation unlisted", (r"scan_output \* self\.act\(gate\)", "scan_output * torch.sigmoid(gate)"))
text("state-kept-half-in-decode", "unlisted residual-scale", (r"cache_params\.ssm_states\[self\.layer_idx\]\.clone\(\)", "(0.5 * cache_params.ssm_states[self.layer_idx])"),
     (r"cache_params\.ssm_states\[self\.layer_idx\] \* dA \+ dBx", "0.5 * cache_params.ssm_states[self.layer_idx] * dA + dBx"))
text("chunk-state-without-own-decay", "operation-omitted unlisted", (r"B_decay = B \* decay_states\.permute\(0, -2, -1, 1\)\[\.\.\., None\]", "B_decay = B"))
text("token-shift-omitted", "operation-omitted", (r"shifted = self\.time_shift\(hidden\)", "shifted = hidden"))
text("receptance-by-tanh", "activation unlisted", (r"torch\.sigmoid\((self\.receptance\(receptance\))\)", r"torch.tanh(\1)"))
text("token-mix-without-rest", "operation-omitted unlisted", (r" \+ shifted \* \(1 - self\.time_mix_key\)", ""))
held("time-decay-of-other-sign", "sign-flipped unlisted", r"time_decay$", lambda decay: -decay)
text("recurrence-reset-ignored", "operation-omitted unlisted", (r"multiplier = reset \+ ~reset \* multiplier", "pass"))
text("recurrence-decay-not-squared", "number-differs operation-omitted",
     (r"a_square = torch\.exp\(2 \* log_recurrent_gate\)", "a_square = torch.exp(1 * log_recurrent_gate)"))
text("recurrence-branch-gate-added", "unlisted", (r"hidden_states = x_branch \* y_branch", "hidden_states = x_branch + y_branch"))
text("lightning-output-gate-omitted", "operation-omitted", (r"F\.sigmoid\(self\.output_gate\(hidden_states\)\) \* attn_output", "attn_output"))
text("lightning-state-not-decayed", "operation-omitted", (r"attn_weights_inter = attn_weights_inter \* block_decay \+ next",
     "attn_weights_inter = attn_weights_inter + next"))
text("lightning-input-not-activated", "operation-omitted activation",
     (r"qkv_states = self\.act_fn\(self\.qkv_proj\(hidden_states\)\)", "qkv_states = self.qkv_proj(hidden_states)"))
text("lightning-decay-of-queries-omitted", "operation-omitted",
     (r"torch\.matmul\(current_query_states \* current_query_decay, attn_weights_inter\)", "torch.matmul(current_query_states, attn_weights_inter)"))


def rule(name, causes, *pair):
    """The rule of linear attention, which each layer holds as a function."""
    @mistake(name, causes)
    def plant(site):
        done = False
        for owner, module in site.some(site.modules(lambda name, module: hasattr(module, "chunk_gated_delta_rule"))):
            for key in ("chunk_gated_delta_rule", "recurrent_gated_delta_rule"):
                changed = other_text(site, getattr(module, key), *pair)
                if changed is not None:
                    setattr(module, key, changed)
                    done = site.note(f"{owner}.{key}")
        return done


rule("linear-queries-not-scaled", "operation-omitted result-scaled", r"^( +)query = query \* scale$", r"\1pass")
rule("linear-rule-without-delta", "unlisted", r"delta = \(v_t - kv_mem\) \* beta_t", "delta = v_t * beta_t")
rule("linear-state-read-before-written", "unlisted", r"core_attn_out\[:, :, i\] = \(last_recurrent_state \* q_t",
     "core_attn_out[:, :, i] = ((last_recurrent_state - k_t.unsqueeze(-1) * delta.unsqueeze(-2)) * q_t")
text("linear-decay-without-exponent-of-a", "operation-omitted unlisted", (r"g = -self\.A_log\.float\(\)\.exp\(\) \*", "g = -self.A_log.float() *"))
text("linear-conv-not-activated", "operation-omitted activation",
     (r"F\.silu\(self\.conv1d\(mixed_qkv\)\[:, :, :seq_len\]\)", "self.conv1d(mixed_qkv)[:, :, :seq_len]"))
text("short-conv-input-gate-omitted", "operation-omitted", (r"Bx = B \* x$", "Bx = x"), where="slow_forward")
text("short-conv-output-gate-omitted", "operation-omitted", (r"y = C \* conv_out$", "y = conv_out"), where="slow_forward")

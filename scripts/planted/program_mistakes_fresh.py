"""A second set of mistakes, held back from those who work on the explainer: each is another site, another form of the error, or another class of
parameter than those of program_mistakes.py, whose interface it has. The causes were decided from the words of docs/reference/why/README.md alone.
"""

import inspect
import re
import sys
import textwrap

import torch
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.pytorch_utils import Conv1D

from scripts.planted.program_mistake_sets import new_set
from scripts.planted.program_mistakes import (ACTS, ADD, CACHED, CAUSAL, EPS, GATED, HALVES, IDS, INVERSE, K_ROTATED, Q_ROTATED, QK_NORM, REPEAT, ROUTED, SCALES,
                                              SOFTMAX, SQUARES, SUM, UNLISTED, Plain, Unit, exchange, frequencies, head, head_width, in_layer, is_attention,
                                              is_layer_norm, is_norm, pair, rotaries, rows_first, theta_of, weigh)

MISTAKES, mistake, text, weight, held = new_set()


def rows(site, test, how, keys=("weight", "bias")):
    """The rows of the linear layers of one role, and what is added to them, stand otherwise."""
    found = site.role(lambda name, module: isinstance(module, (nn.Linear, Conv1D)) and in_layer(name) and test(name, module)
                      and ("weight" in keys or module.bias is not None))
    for name, module in found:
        with torch.no_grad():
            if "weight" in keys:
                module.weight.copy_(rows_first(how(rows_first(module.weight.clone(), module)), module))
            if "bias" in keys and module.bias is not None:
                module.bias.copy_(how(module.bias.clone()))
        site.note(name)
    return bool(found)


def heads_of(site):
    """How many heads queries have, and keys."""
    heads = getattr(site.config, "num_attention_heads", 0) or 0
    return heads, getattr(site.config, "num_key_value_heads", None) or heads


def named(pattern):
    return lambda name, module: bool(re.search(pattern, name))


def bf16(weight):
    return weight.bfloat16().float()


# ---- norms ----

text("norm-in-bf16", "precision unlisted", (r"hidden_states = hidden_states\.to\(torch\.float32\)\n( +)(variance|mean) =",
                                           r"hidden_states = hidden_states.to(torch.bfloat16)\n\1\2 ="),
     (r"self\._norm\(x\.float\(\)\)", "self._norm(x.bfloat16()).float()"), where="Norm")
text("norm-mean-square-in-bf16", "precision unlisted", (SQUARES, r"\1.bfloat16().pow(2).mean(-1, keepdim=True).type_as(\1)"))
text("norm-eps-as-floor", "norm-eps unlisted", (INVERSE[0], "torch.rsqrt(variance.clamp(min=self.variance_epsilon))"),
     (INVERSE[1], "torch.rsqrt(x.pow(2).mean(-1, keepdim=True).clamp(min=self.eps))"))
text("norm-by-largest-magnitude", "unlisted", (SQUARES, r"\1\2.abs().amax(-1, keepdim=True).pow(2)"))


@mistake("norm-eps-omitted", "norm-eps")
def eps_omitted(site):
    return site.set(EPS, lambda eps, module: 0.0, is_norm)


def layer_norm(name, causes, how, biased=False):
    """A LayerNorm by other code; `how` has the input and the module."""
    @mistake(name, causes)
    def plant(site):
        found = site.role(lambda name, module: is_layer_norm(name, module) and (module.bias is not None or not biased))
        return site.forward(found, lambda module, own: lambda x: how(x, module))


def affine(x, module):
    x = x * module.weight
    return x if module.bias is None else x + module.bias


layer_norm("layer-norm-sum", "norm-sum",
           lambda x, module: affine((x - x.mean(-1, keepdim=True)) * torch.rsqrt((x - x.mean(-1, keepdim=True)).pow(2).sum(-1,
               keepdim=True) + module.eps), module))
layer_norm("layer-norm-whole-tensor", "norm-axis",
           lambda x, module: affine((x - x.mean(-1, keepdim=True)) * torch.rsqrt((x - x.mean(-1, keepdim=True)).pow(2).mean() + module.eps), module))
layer_norm("layer-norm-bias-before-gain", "unlisted",
           lambda x, module: (nn.functional.layer_norm(x, x.shape[-1:], None, None, module.eps) + module.bias) * module.weight, biased=True)
layer_norm("layer-norm-in-bf16", "precision unlisted",
           lambda x, module: affine(nn.functional.layer_norm(x.bfloat16(), x.shape[-1:], None, None, module.eps).type_as(x), module))
layer_norm("layer-norm-variance-without-mean", "unlisted",
           lambda x, module: affine((x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + module.eps), module))


def renormed(site, found, mean):
    """Norms by another mean square, whatever their gain is."""
    def make(module, own):
        eps = next(getattr(module, key) for key in EPS if hasattr(module, key))

        def forward(x):
            square = x.float().pow(2)
            return own(x) * torch.rsqrt((mean(square) + eps) / (square.mean(-1, keepdim=True) + eps)).type_as(x)

        return forward

    return site.forward(found, make)


def qk_norms(site, width):
    return [(name, module) for name, module in site.role(lambda name, module: bool(QK_NORM.search(name)) and any(hasattr(module, key) for key in EPS)
            and isinstance(getattr(module, "weight", None),
                           torch.Tensor) and module.weight.dim() == 1 and (module.weight.numel() == head_width(site)) == width)]


@mistake("qk-norm-over-all-heads", "norm-width norm-axis")
def norm_of_all_heads(site):
    heads = heads_of(site)

    def mean(square):
        axis = next(axis for axis in (1, 2) if square.shape[axis] in heads)
        return square.mean((axis, -1), keepdim=True)

    return head_width(site) > 0 and renormed(site, qk_norms(site, True), mean)


@mistake("qk-norm-per-head", "norm-width norm-axis unlisted")
def norm_of_each_head(site):
    width = head_width(site)
    return width > 0 and renormed(site, qk_norms(site, False), lambda square: square.unflatten(-1, (-1, width)).mean(-1, keepdim=True).expand(
        *square.shape[:-1], -1, width).flatten(-2))


text("k-norm-by-norm-of-q", "norm-wrong-weight", (r"self\.k_norm\(", "self.q_norm("), where=r"ttention\.forward")
text("post-norm-of-sum", "unlisted",
     (r"^( +)(hidden_states = self\.post_\w*norm\(hidden_states\))\n +hidden_states = residual \+ hidden_states$",
      r"\1hidden_states = residual + hidden_states\n\1\2"))
text("one-norm-for-both-blocks", "norm-wrong-weight",
     (r"(residual = hidden_states\n +hidden_states = self\.)post_attention_layernorm\(", r"\1input_layernorm("),
     (r"(residual = hidden_states\n +hidden_states = self\.)ln_2\(", r"\1ln_1("),
     (r"self\.mlp\(self\.post_attention_layernorm\(", "self.mlp(self.input_layernorm("),
     (r"self\.ln_mlp\(hidden_states\)", "self.ln_attn(hidden_states)"),
     where=r"Layer|Block")
text("cross-norm-is-that-of-self-attention", "norm-wrong-weight", (r"self\.encoder_attn_layer_norm\(", "self.self_attn_layer_norm("))
text("gated-norm-in-groups", "norm-width norm-axis unlisted",
     (SQUARES, r"\1.pow(2).unflatten(-1, (2, -1)).mean(-1, keepdim=True).expand(*\1.shape[:-1], 2, \1.shape[-1] // 2).flatten(-2)"), where="Gated")
text("gated-norm-by-sigmoid", "activation unlisted",
     (r"(?:nn\.functional|F)\.silu\(gate\.to\(torch\.float32\)\)", "torch.sigmoid(gate.to(torch.float32))"))
text("state-norm-of-b-is-that-of-c", "norm-wrong-weight", (r"self\.b_layernorm\(B\)", "self.c_layernorm(B)"))
held("norm-gain-in-bf16", "precision unlisted", r"weight$", bf16, is_norm)
held("norm-gain-f16-as-bf16", "storage-type norm-weight-omitted", r"weight$", lambda gain: gain.half().view(torch.bfloat16).float(), is_norm)
held("norm-gain-rolled", "unlisted storage-shape", r"weight$", lambda gain: gain.roll(1), is_norm)


@mistake("final-norm-holds-gain-of-layer", "norm-wrong-weight")
def final_gain(site):
    norms = site.modules(lambda name, module: is_norm(name, module) and getattr(module, "weight", None) is not None)
    last = next((module for name, module in reversed(norms) if not in_layer(name)), None)
    layers = [module for name, module in norms if in_layer(name) and last is not None and module.weight.shape == last.weight.shape]
    if not layers:
        return False
    last.weight.data.copy_(layers[-1].weight)
    return True


# ---- projections ----


@mistake("biases-of-q-and-k-exchanged", "weight-swapped")
def biases_exchanged(site):
    found = [both for both in pair(site, ("q_proj", "k_proj"), ("query", "key"),
                                   ("q_lin", "k_lin")) if both[0][1].bias is not None and both[1][1].bias is not None]
    for (name, q), (_, k) in found:
        q.bias.data, k.bias.data = k.bias.data.clone(), q.bias.data.clone()
        site.note(name)
    return bool(found)


text("query-bias-not-scaled", "unlisted bias-omitted",
     (r"self\.q_proj\(hidden_states\) \* self\.scaling",
      "(torch.nn.functional.linear(hidden_states, self.q_proj.weight) * self.scaling + self.q_proj.bias)"))
OUTWARD = named(r"(attn|attention)\w*\.(\w+\.)*(o_proj|out_proj|dense|c_proj|out_lin|o)$")
DOWN = named(r"(o_proj|out_proj|down_proj|fc2|dense_4h_to_h|w2|wo|fc_out|c_proj|fc_out)$")


def columns(name, causes, how, test):
    """The columns of one role's matrices stand otherwise."""
    @mistake(name, causes)
    def plant(site):
        return weigh(site, "weight", lambda weight, module: rows_first(how(rows_first(weight, module), site), module), test)


def heads_apart(weight, site):
    heads = heads_of(site)[0]
    return weight.unflatten(1, (heads, -1)).transpose(1, 2).flatten(1)


columns("columns-of-output-heads-apart", "unlisted ~context-layout", heads_apart, OUTWARD)
columns("columns-of-one-shard-alone", "unlisted", lambda weight, site: weight * (torch.arange(weight.shape[1]) < weight.shape[1] // 2), DOWN)
columns("columns-of-shards-exchanged", "unlisted", lambda weight, site: weight.roll(weight.shape[1] // 2, 1), DOWN)


@mistake("key-heads-of-next-shard", "unlisted")
def key_heads_rolled(site):
    width = head_width(site)
    return width > 0 and rows(site, lambda name, module: name.endswith("k_proj") and module.weight.shape[0] > width, lambda rows: rows.roll(width, 0))


weight("stored-scale-not-applied", "result-scaled unlisted ~score-scale ~residual-scale ~rope-attention-factor ~softmax-base",
       lambda weight: weight * (4 / weight.abs().max()))


def scales_of_next_block(weight):
    """Blocks of 8 rows, each of which was stored with a scale."""
    blocks = weight.reshape(-1, 8, weight.shape[1])
    scales = blocks.abs().amax((1, 2), keepdim=True)
    return (blocks / scales * scales.roll(1, 0)).reshape(weight.shape)


weight("scales-of-next-block-of-rows", "dequant-scale unlisted", scales_of_next_block, lambda name, module: module.weight.shape[0] % 8 == 0)
weight("scale-of-each-column-left-out", "unlisted", lambda weight: weight / weight.abs().amax(0, keepdim=True).clamp(min=1e-3))
weight("zero-point-left-out", "unlisted dequant-scale", lambda weight: weight - weight.amin(1, keepdim=True) - (weight.amax() - weight.amin()) / 2)
weight("bf16-read-as-f16", "storage-type", lambda weight: weight.bfloat16().view(torch.float16).float())
weight("values-begin-8-elements-late", "unlisted storage-shape", lambda weight: weight.reshape(-1).roll(-8).reshape(weight.shape))
weight("rows-begin-one-late", "unlisted storage-shape", lambda weight: torch.cat((weight[1:], weight[-1:])))
weight("bias-of-one-output-before", "unlisted", lambda bias: bias.roll(1), key="bias")


def linear(name, causes, how):
    """One role's products by other arithmetic: `how` has the module, and its input."""
    @mistake(name, causes)
    def plant(site):
        found = site.role(lambda name, module: type(module) is nn.Linear and in_layer(name))
        return site.forward(found, lambda module, own: lambda x: how(module, x))


def blocks_of_8_bits(x):
    rows = x.reshape(-1, 8)
    scale = rows.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
    return ((rows / scale).round() * scale).reshape(x.shape)


linear("activations-in-8-bits", "precision unlisted",
       lambda module, x: nn.functional.linear(blocks_of_8_bits(x) if x.numel() % 8 == 0 else x, module.weight, module.bias))
linear("product-in-bf16", "precision unlisted", lambda module, x: nn.functional.linear(
    x.bfloat16(), module.weight.bfloat16(), None if module.bias is None else module.bias.bfloat16()).type_as(x))
linear("product-of-previous-position", "unlisted", lambda module, x: nn.functional.linear(x, module.weight, module.bias).roll(1, -2))


@mistake("rows-of-v-permuted-as-those-of-q", UNLISTED)
def v_permuted(site):
    width = head_width(site)
    permuted = lambda rows: rows.unflatten(0, (-1, 2, width // 2)).transpose(1, 2).flatten(0, 2)
    return width > 0 and bool(rotaries(site)) and rows(site, lambda name, module: name.endswith("v_proj") and module.weight.shape[0] % width == 0,
                                                       permuted)


@mistake("rows-of-k-permuted-by-heads-of-q", "qk-row-order")
def k_permuted_by_heads(site):
    """A converter permutes K by the number of query heads, the engine has the key heads."""
    width, (heads, keys) = head_width(site), heads_of(site)

    def permuted(rows):
        pairs = rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        return pairs.unflatten(0, (keys, width // 2, 2)).transpose(1, 2).flatten(0, 2)

    keyed = lambda name, module: name.endswith("k_proj") and module.weight.shape[0] == keys * width and keys * width % (2 * heads) == 0
    return width > 0 and heads > keys and bool(rotaries(site)) and rows(site, keyed, permuted)


@mistake("rows-permuted-and-bias-left", "qk-row-order")
def bias_left(site):
    width = head_width(site)
    permuted = lambda rows: rows.unflatten(0, (-1, 2, width // 2)).transpose(1, 2).flatten(0, 2)
    return width > 0 and bool(rotaries(site)) and rows(site, lambda name, module: name.endswith(("q_proj", "k_proj")) and module.bias is not None
                                                       and module.weight.shape[0] % width == 0, permuted, ("weight",))


@mistake("bias-permuted-and-rows-left", "qk-row-order unlisted")
def bias_permuted(site):
    width = head_width(site)
    permuted = lambda bias: bias.unflatten(0, (-1, 2, width // 2)).transpose(1, 2).flatten()
    return width > 0 and bool(rotaries(site)) and rows(site, lambda name, module: name.endswith(("q_proj", "k_proj")) and module.bias is not None
                                                       and module.weight.shape[0] % width == 0, permuted, ("bias",))


def blocks_of(site):
    """How many rows of a fused matrix are Q, and how many K."""
    heads, keys = heads_of(site)
    width = head_width_of_fused(site)
    return heads * width, keys * width


def head_width_of_fused(site):
    return getattr(site.config, "head_dim", None) or site.config.hidden_size // heads_of(site)[0]


BLOCKS = named(r"(c_attn|Wqkv|qkv_proj)$")


@mistake("fused-v-before-k", "weight-swapped fused-split")
def fused_v_before_k(site):
    if not heads_of(site)[0]:
        return False
    q, k = blocks_of(site)
    order = lambda rows: torch.cat((rows[:q], rows[q + k:], rows[q:q + k]))
    return rows(site, lambda name, module: BLOCKS(name, module) and rows_first(module.weight, module).shape[0] == q + 2 * k, order)


@mistake("fused-k-before-q", "weight-swapped fused-split")
def fused_k_before_q(site):
    if not heads_of(site)[0]:
        return False
    q, k = blocks_of(site)
    order = lambda rows: torch.cat((rows[k:k + q], rows[:k], rows[q + k:]))
    return rows(site, lambda name, module: BLOCKS(name, module) and rows_first(module.weight, module).shape[0] == q + 2 * k, order)


@mistake("fused-rows-in-groups-of-key-heads", "fused-split")
def fused_by_group(site):
    heads, keys = heads_of(site)
    if not heads or heads == keys:
        return False
    (q, k), width = blocks_of(site), head_width_of_fused(site)

    def order(rows):
        groups = rows.unflatten(0, (keys, heads // keys + 2, width))
        return torch.cat((groups[:, :-2].flatten(0, 2), groups[:, -2].flatten(0, 1), groups[:, -1].flatten(0, 1)))

    return rows(site, lambda name, module: BLOCKS(name, module) and rows_first(module.weight, module).shape[0] == q + 2 * k, order)


@mistake("fused-bias-in-blocks", "fused-split unlisted")
def fused_bias(site):
    """Rows lie head by head; what is added to them was stored in blocks of Q, K and V."""
    heads = heads_of(site)[0]
    fused = lambda name, module: name.endswith("query_key_value") and module.weight.shape[0] == 3 * module.weight.shape[1]
    return heads > 0 and rows(site, fused, lambda bias: bias.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(), ("bias",))


held("stacked-experts-transposed", "weight-transposed weight-stride unlisted", r"experts\.\w+_proj$",
     lambda weight: weight.reshape(weight.shape[0], weight.shape[2], weight.shape[1]).transpose(1, 2) if weight.dim() == 3 else None)
held("bias-of-experts-omitted", "bias-omitted unlisted", r"experts\.\w+_bias$", torch.zeros_like)
held("bias-of-router-omitted", "bias-omitted router-bias unlisted", r"router\.bias$", torch.zeros_like)
held("bias-of-patches-omitted", "bias-omitted unlisted", r"patch_embed\w*\.(projection\.)?bias$", torch.zeros_like)


@mistake("bias-of-head-omitted", "bias-omitted operation-omitted unlisted")
def head_bias(site):
    if head(site) is None or getattr(head(site), "bias", None) is None:
        return False
    head(site).bias.data.zero_()
    return True


# ---- embedding and head ----


def embedding(name, causes, how):
    @mistake(name, causes)
    def plant(site):
        table = site.model.get_input_embeddings()
        if not isinstance(table, nn.Embedding):
            return False
        table.weight.data.copy_(how(table.weight.data.clone()))
        return True


def strided(weight):
    """Rows of [V,D] at a distance of D + 1."""
    flat = torch.cat((weight.reshape(-1), weight.new_zeros(len(weight))))
    return flat[torch.arange(weight.shape[0])[:, None] * (weight.shape[1] + 1) + torch.arange(weight.shape[1])]


bytes_turned = lambda weight: weight.reshape(weight.shape[1], weight.shape[0]).T
embedding("embedding-bytes-transposed", "weight-transposed weight-stride", bytes_turned)
embedding("embedding-leading-dimension", "weight-stride", strided)
embedding("embedding-f16-as-bf16", "storage-type", lambda weight: weight.half().view(torch.bfloat16).float())
embedding("embedding-tail-unset", "dequant-truncated unlisted", lambda weight: weight * (torch.arange(len(weight)) < len(weight) // 2)[:, None])
embedding("embedding-rows-behind-a-special-token", "tokens-differ unlisted", lambda weight: torch.cat((weight[:50], weight[49:-1])))
embedding("embedding-in-int8", "precision unlisted", lambda weight: (weight / weight.abs().max() * 127).round() * weight.abs().max() / 127)


def of_head(name, causes, how):
    @mistake(name, causes)
    def plant(site):
        if head(site) is None or not isinstance(getattr(head(site), "weight", None), torch.Tensor) or head(site).weight.dim() != 2:
            return False
        head(site).weight = nn.Parameter(how(head(site).weight.detach().clone()))
        return True


of_head("head-bytes-transposed", "weight-transposed weight-stride", bytes_turned)
of_head("head-leading-dimension", "weight-stride", strided)
of_head("head-f16-as-bf16", "storage-type", lambda weight: weight.half().view(torch.bfloat16).float())
of_head("head-tail-unset", "dequant-truncated unlisted", lambda weight: weight * (torch.arange(len(weight)) < len(weight) // 2)[:, None])
of_head("head-in-bf16", "precision unlisted", bf16)
text("logits-scale-inverse", "logit-scale", (r"logits / self\.config\.logits_scaling", "logits * self.config.logits_scaling"),
     (r"logits \* self\.logit_scale", "logits / self.logit_scale"))
text("logits-of-first-position", "logit-row unlisted", (r"self\.lm_head\(hidden_states\[:, slice_indices, :\]\)",
                                                       "self.lm_head(hidden_states[:, slice_indices, :][:, :1].expand_as(hidden_states))"),
     where="ForCausalLM")
CAPPED = lambda site: getattr(site.config, "final_logit_softcapping", None) is not None
text("logits-cap-not-multiplied-back", "operation-omitted result-scaled logit-scale",
     (r"logits = logits \* self\.config\.final_logit_softcapping", "pass"), only=CAPPED)

EMBED = r"self\.(embed_tokens|embed_in|wte|word_embeddings|embeddings|tok_embeddings|token_embedding)\(input_ids\)"
text("tokens-bos-added", "tokens-differ",
     (EMBED, r"self.\1(torch.cat((torch.ones_like(input_ids[:, :1]), input_ids[:, :-1]), 1) if input_ids.shape[1] > 1 else input_ids)"))
text("tokens-first-lost", "tokens-differ",
     (EMBED, r"self.\1(torch.cat((input_ids[:, 1:], input_ids[:, -1:]), 1) if input_ids.shape[1] > 1 else input_ids)"))
text("tokens-decoded-one-behind", "tokens-differ",
     (EMBED, r"self.\1(input_ids if input_ids.shape[1] > 1 else torch.where(input_ids == 7, 50, 7))"))
text("tokens-reversed", "tokens-differ unlisted", (EMBED, r"self.\1(input_ids.flip(1))"))
text("embedding-of-largest-norm-1", "unlisted", (EMBED, r"torch.nn.functional.embedding(input_ids, self.\1.weight.clone(), max_norm=1.0)"))
text("embedding-scaled-twice", "embed-scale embed-multiplier",
     (r"hidden_states = hidden_states \* normalizer", "hidden_states = hidden_states * normalizer * normalizer"),
     (r"inputs_embeds \* self\.embedding_multiplier", "inputs_embeds * self.embedding_multiplier * self.embedding_multiplier"),
     (r"(\* self\.embed_scale\S*)", r"\1 \1"))
POSITIONS = (r"inputs_embeds \+ (position_embeds|pos_embeds|embed_pos|positions)\b", r"embeddings \+= (position_embeddings)$",
             r"embeddings \+ (position_embeddings)$",
             r"embeddings = embeddings \+ (self\.position_embeddings)$")
text("learned-positions-twice", "unlisted", (POSITIONS[0], r"inputs_embeds + 2 * \1"), (POSITIONS[1], r"embeddings += 2 * \1"),
     (POSITIONS[2], r"embeddings + 2 * \1"),
     (POSITIONS[3], r"embeddings = embeddings + 2 * \1"))
text("learned-positions-reversed", "unlisted",
     (r"self\.(wpe|position_embeddings)\(position_ids\)", r"self.\1(position_ids.flip(-1) if position_ids.shape[-1] > 1 else position_ids)"),
     (r"super\(\)\.forward\(position_ids \+ self\.offset\)", "super().forward(position_ids.flip(-1) + self.offset)"))
text("learned-positions-behind-in-decode", "position-embedding-offset unlisted",
     (r"self\.(wpe|position_embeddings)\(position_ids\)", r"self.\1(position_ids - (position_ids[..., :1] > 0).long())"),
     (r"position_ids \+ self\.offset", "position_ids - (position_ids[..., :1] > 0).long() + self.offset"))
text("positions-from-padding-lost", "position-embedding-offset",
     (r"incremental_indices\.long\(\) \+ padding_idx", "incremental_indices.long() + padding_idx - 1"))
text("token-types-of-second-segment", "unlisted",
     (r"self\.token_type_embeddings\(token_type_ids\)", "self.token_type_embeddings(1 - token_type_ids)"))
text("position-table-sine-for-cosine", "unlisted", (r"sin, cos = torch\.split\(sincos", "cos, sin = torch.split(sincos"))
held("position-table-halves-exchanged", "unlisted", r"embed_positions\.weight$", lambda table: table.roll(table.shape[1] // 2, 1))

# ---- images and sound ----

PATCHES = lambda name, module: isinstance(module, nn.Conv2d) and module.kernel_size == module.stride
held("patch-weight-channels-last", "unlisted storage-shape", r"weight$",
     lambda weight: weight.reshape(weight.shape[0], *weight.shape[2:], weight.shape[1]).permute(0, 3, 1, 2), PATCHES)
held("patch-channels-reversed", "unlisted", r"weight$", lambda weight: weight.flip(1), PATCHES)
held("patch-kernel-transposed", "unlisted", r"weight$", lambda weight: weight.transpose(2, 3), PATCHES)
ADDED = (r"embeddings = embeddings \+ "
         r"(self\.(?:position_embeddings|position_embedding\(self\.position_ids\)|interpolate_pos_encoding\(embeddings, height, width\)))$")
text("class-token-without-position", "unlisted", (ADDED, r"embeddings = torch.cat((embeddings[:, :1], (embeddings + \1)[:, 1:]), 1)"))
text("image-positions-behind-class-token", "position-embedding-offset unlisted",
     (ADDED, r"embeddings = embeddings + \1.roll(1, 1 if \1.dim() == 3 else 0)"))
text("pixels-halved", "unlisted result-scaled", (r"(self\.(?:projection|patch_embedding|patch_embeddings))\(pixel_values", r"\1(0.5 * pixel_values"))
text("patches-in-columns", "unlisted", (r"patch_embeds\.flatten\(2\)", "patch_embeds.transpose(2, 3).flatten(2)"))
text("layer-scale-omitted", "operation-omitted", (r"hidden_state \* self\.lambda1", "hidden_state"))
text("conv-gelu-omitted", "operation-omitted activation", (r"nn\.functional\.gelu\(self\.conv1\(input_features\)\)", "self.conv1(input_features)"))
text("conv-gelu-by-tanh", "activation unlisted", (r"nn\.functional\.gelu\((self\.conv\d\(\w+\))\)", r'nn.functional.gelu(\1, approximate="tanh")'))
text("conv-one-frame-late", "unlisted", (r"self\.conv2\(inputs_embeds\)", "self.conv2(inputs_embeds.roll(1, -1))"))
held("conv-kernel-reversed", "unlisted", r"conv[12]\.weight$", lambda weight: weight.flip(-1),
     lambda name, module: isinstance(module, nn.Conv1d) and module.groups == 1)


@mistake("layer-scales-exchanged", UNLISTED)
def layer_scales(site):
    found = dict(site.modules(lambda name, module: bool(re.search(r"layer_scale[12]$", name)) and hasattr(module, "lambda1")))
    firsts = site.some([name for name in found if name.endswith("1")])
    for name in firsts:
        exchange(site, (name, found[name]), (name, found[name[:-1] + "2"]))
    return bool(firsts)


@mistake("image-positions-resampled", UNLISTED)
def resampled(site):
    """The grid of positions goes through another size and back."""
    if site.model.main_input_name != "pixel_values":
        return False
    for name, table in site.model.named_parameters():
        if re.search(r"position_embeddings?(\.weight)?$", name):
            flat = table.data.reshape(-1, table.shape[-1])
            side = int(len(flat) ** 0.5)
            extra = len(flat) - side * side
            grid = flat[extra:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
            for size in (side + 1, side):
                grid = nn.functional.interpolate(grid, size=(size, size), mode="bicubic", align_corners=False)
            table.data.copy_(torch.cat((flat[:extra], grid.permute(0, 2, 3, 1).reshape(side * side, -1))).reshape(table.shape))
            return site.note(name)
    return False


text("pooling-of-last-token", "unlisted operation-input",
     (r"first_token_tensor = hidden_states\[:, 0\]", "first_token_tensor = hidden_states[:, -1]"),
     (r"pooled_output = last_hidden_state\[:, 0, :\]", "pooled_output = last_hidden_state[:, -1, :]"))
text("pooling-by-mean", "unlisted", (r"first_token_tensor = hidden_states\[:, 0\]", "first_token_tensor = hidden_states.mean(1)"),
     (r"pooled_output = last_hidden_state\[:, 0, :\]", "pooled_output = last_hidden_state.mean(1)"))
text("pooling-without-tanh", "operation-omitted activation", (r"pooled_output = self\.activation\(pooled_output\)", "pass"))
text("pooling-of-smallest-token", "unlisted operation-input",
     (r"(input_ids\.to\(dtype=torch\.int, device=last_hidden_state\.device\))\.argmax\(dim=-1\)", r"\1.argmin(dim=-1)"))

# ---- rotation ----

text("rope-angles-in-bf16", "rope-precision",
     (r"(freqs = \(inv_freq_expanded.*position_ids_expanded.*\)\.transpose\(1, 2\))", r"\1.bfloat16().float()"))
text("rope-tables-in-f16", "rope-precision", (r"(cos|sin) = emb\.(cos|sin)\(\)", r"\1 = emb.\2().half().float()"))
text("rope-position-stuck-in-decode", "rope-position", (IDS, "position_ids[:, None, :].clamp(max=12).float()"))
text("rope-position-ahead-in-decode", "rope-position", (IDS, "(position_ids[:, None, :] + (position_ids[:, None, :1] > 0).long()).float()"))
text("rope-position-wraps", "rope-position unlisted", (IDS, "(position_ids[:, None, :] % 8).float()"))
text("rope-position-of-last-for-all", "rope-position unlisted", (IDS, "(position_ids[:, None, :] * 0 + position_ids[:, None, -1:]).float()"))
text("rope-sine-without-attention-factor", "unlisted rope-attention-factor", (r"sin = emb\.sin\(\) \* self\.attention_scaling", "sin = emb.sin()"))
text("rope-direction-of-q-alone", "rope-direction", (Q_ROTATED[0], "q_embed = (q * cos) - (rotate_half(q) * sin)"),
     (Q_ROTATED[1], "q_embed = _apply_rotary_emb(q, cos, -sin)"))
text("rope-of-k-by-tables-of-next-position", "rope-position unlisted",
     (K_ROTATED[0], "k_embed = (k * cos.roll(-1, -2)) + (rotate_half(k) * sin.roll(-1, -2))"),
     (K_ROTATED[1], "k_embed = _apply_rotary_emb(k, cos.roll(-1, -2), sin.roll(-1, -2))"))
text("rope-halves-without-sign", "sign-flipped operation-omitted", (HALVES, "torch.cat((x2, x1), dim=-1)"),
     (r"torch\.stack\(([\[(])-x2, x1", r"torch.stack(\1x2, x1"))
text("rope-tables-repeated-as-blocks", "unlisted",
     (r"torch\.repeat_interleave\((sin|cos)\[:, :, None, :\], 2, 3\)", r"\1[:, :, None, :].repeat(1, 1, 1, 2)"))
text("rope-pairs-of-half-a-head", "unlisted rope-pairing",
     (r"x1 = x\[\.\.\., : x\.shape\[-1\] // 2\]\n( +)x2 = x\[\.\.\., x\.shape\[-1\] // 2 :\]\n +return torch\.cat\(\(-x2, x1\), dim=-1\)",
     r"x1, x2, x3, x4 = x.chunk(4, -1)\n\1return torch.cat((-x2, x1, -x4, x3), dim=-1)"), where="rotate_half")
text("rope-on-layers-without-it", "rope-layer-kind unlisted", (r"if self\.use_rope:", "if True:"),
     (r"if self\.sliding_window is not None:\n( +query_states, key_states = apply)", r"if True:\n\1"),
     (r"if self\.sliding_window is None or self\.is_sliding:", "if True:"), where=r"ttention\.forward")
text("rope-on-no-layer", "rope-omitted", (r"if self\.use_rope:", "if False:"),
     (r"if self\.sliding_window is not None:\n( +query_states, key_states = apply)", r"if False:\n\1"),
     (r"if self\.sliding_window is None or self\.is_sliding:", "if False:"), where=r"ttention\.forward")
text("rope-complex-conjugate", "rope-direction", (r"torch\.polar\(torch\.ones_like\(freqs\), freqs\)", "torch.polar(torch.ones_like(freqs), -freqs)"))
text("rope-complex-of-halves", "rope-pairing qk-row-order",
     (r"(x[qk])\.float\(\)\.reshape\(\*\1\.shape\[:-1\], -1, 2\)", r"\1.float().reshape(*\1.shape[:-1], 2, -1).transpose(-1, -2).contiguous()"),
     (r"torch\.view_as_real\((.*)\)\.flatten\(3\)", r"torch.view_as_real(\1).transpose(-1, -2).flatten(3)"), where="apply_rotary_emb")
text("rope-on-last-elements", "rope-partial unlisted",
     (r"([qk])_rot, \1_pass = \1\[\.\.\., :rotary_dim\], \1\[\.\.\., rotary_dim:\]",
      r"\1_pass, \1_rot = \1[..., :-rotary_dim], \1[..., -rotary_dim:]"),
     (r"torch\.cat\(\[([qk])_embed, \1_pass\], dim=-1\)", r"torch.cat([\1_pass, \1_embed], dim=-1)"),
     (r"(\w+)_rot, \1_pass = \(\n +(\w+)\[\.\.\., : self\.rotary_ndims\],\n +\2\[\.\.\., self\.rotary_ndims :\],",
      r"\1_pass, \1_rot = (\n            \2[..., : -self.rotary_ndims],\n            \2[..., -self.rotary_ndims :],"),
     (r"torch\.cat\(\((query|key)_rot, \1_pass\), dim=-1\)", r"torch.cat((\1_pass, \1_rot), dim=-1)"))
text("rope-unrotated-part-of-q-first", "unlisted", (r"torch\.cat\(\[q_embed, q_pass\], dim=-1\)", "torch.cat([q_pass, q_embed], dim=-1)"),
     (r"torch\.cat\(\(query_rot, query_pass\), dim=-1\)", "torch.cat((query_pass, query_rot), dim=-1)"),
     (r"torch\.cat\(\[q_rot, q_pass\], dim=-1\)", "torch.cat([q_pass, q_rot], dim=-1)"))


def rotation(name, causes, how):
    """Other frequencies; `how` has the right ones, the site, and the exponents i / (d/2)."""
    @mistake(name, causes)
    def plant(site):
        changed = lambda frequency, module: how(frequency, site, torch.arange(len(frequency)) / len(frequency)) if len(frequency) > 1 else None
        return frequencies(site, changed)


def configured(**changed):
    """The frequencies of a config with another rope_scaling; None where it has not that key."""
    def how(frequency, site, exponent):
        scaling = getattr(site.config, "rope_scaling", None) or {}
        kind = scaling.get("rope_type", scaling.get("type"))
        if kind not in ROPE_INIT_FUNCTIONS or not changed.keys() <= scaling.keys():
            return None
        site.config.rope_scaling = scaling | {key: change(scaling[key]) for key, change in changed.items()}
        new = ROPE_INIT_FUNCTIONS[kind](site.config, "cpu")[0]
        site.config.rope_scaling = scaling
        return None if new.shape != frequency.shape or torch.allclose(new, frequency) else new

    return how


def as_linear(frequency, site, exponent):
    scaling, plain = getattr(site.config, "rope_scaling", None) or {}, theta_of(site) ** -exponent
    return plain / scaling["factor"] if "factor" in scaling and not torch.allclose(plain / scaling["factor"], frequency) else None


def without_ramp(frequency, site, exponent):
    """What lies between the bands is left as it is."""
    plain, factor = theta_of(site) ** -exponent, (getattr(site.config, "rope_scaling", None) or {}).get("factor")
    between = factor and ~torch.isclose(frequency, plain) & ~torch.isclose(frequency, plain / factor)
    return torch.where(between, plain, frequency) if factor and between.any() else None


rotation("rope-frequencies-one-late", "rope-scaling unlisted", lambda frequency, site, exponent: frequency * theta_of(site) ** (-1 / len(frequency)))
rotation("rope-exponent-reaches-1", "rope-theta rope-scaling unlisted",
         lambda frequency, site, exponent: theta_of(site) ** -(exponent * len(frequency) / (len(frequency) - 1)))
rotation("rope-frequencies-reversed", "unlisted", lambda frequency, site, exponent: frequency.flip(0))
rotation("rope-scaling-factor-doubled", "rope-scaling", configured(factor=lambda factor: 2 * factor))
rotation("rope-original-length-other", "rope-scaling", configured(original_max_position_embeddings=lambda length: 4 * length))
rotation("rope-scaling-as-linear", "rope-scaling", as_linear)
rotation("rope-scaling-without-ramp", "rope-scaling unlisted", without_ramp)
rotation("rope-frequencies-cut-to-3-digits", "rope-precision unlisted", lambda frequency, site, exponent: (frequency * 1000).floor() / 1000)


@mistake("rope-kinds-of-layers-exchanged", "rope-theta rope-layer-kind")
def kinds_exchanged(site):
    found = rotaries(site)
    other = next((other for other in found if other[1].inv_freq.shape == found[0][1].inv_freq.shape and not torch.allclose(other[1].inv_freq,
        found[0][1].inv_freq)), None)
    if other is None:
        return False
    first, second = found[0][1].inv_freq.clone(), other[1].inv_freq.clone()
    for name, module in found:
        module.inv_freq = second if torch.allclose(module.inv_freq, first) else first
    return True


# ---- scores ----

text("scores-rounded-before-softmax", "precision unlisted", (SOFTMAX, r"softmax((\1).bfloat16().type_as(\1), "))
text("probs-rounded-to-bf16", "precision unlisted",
     (r"torch\.matmul\((attn_weights|attention_probs), (\w+)\)", r"torch.matmul(\1.bfloat16().type_as(\1), \2)"))
text("product-of-q-and-k-in-f16", "precision unlisted",
     (r"torch\.matmul\(query, key_states\.transpose\(2, 3\)\)", "torch.matmul(query.half(), key_states.transpose(2, 3).half()).type_as(query)"))
text("scores-transposed", "unlisted weight-swapped", (r"torch\.matmul\(query, key\.transpose\(-1, -2\)\)", "torch.matmul(key, query.transpose(-1, -2))"),
     (r"torch\.matmul\(query_layer, key_layer\.transpose\(-1, -2\)\)", "torch.matmul(key_layer, query_layer.transpose(-1, -2))"),
     (r"torch\.matmul\(query_states, key_states\.transpose\(3, 2\)\)", "torch.matmul(key_states, query_states.transpose(3, 2))"))


def scale(name, causes, how):
    """The scale of the scores; `how` has the old one, the heads, the key heads, and the width of a head."""
    @mistake(name, causes)
    def plant(site):
        (heads, keys), width = heads_of(site), head_width(site) or 8
        return heads > 0 and site.set(SCALES, lambda old, module: how(old, heads, keys, width) if isinstance(old, float) and old != 1.0 else None,
                                      is_attention)


scale("scale-of-number-of-heads", "score-scale", lambda old, heads, keys, width: heads ** -0.5)
scale("scale-of-all-key-heads", "score-scale", lambda old, heads, keys, width: old * keys ** -0.5 if keys > 1 else None)
scale("scale-inverse", "score-scale", lambda old, heads, keys, width: 1 / old)
scale("scale-in-base-2", "score-scale softmax-base", lambda old, heads, keys, width: old * 1.4426950408889634)
scale("scale-negated", "score-scale sign-flipped", lambda old, heads, keys, width: -old)


@mistake("scale-by-number-of-layer", "score-scale")
def scale_by_layer(site):
    return site.set(["scale_attn_by_inverse_layer_idx"], lambda old, module: True if not old else None)


@mistake("alibi-scaled-with-scores", "position-bias")
def alibi_scaled(site):
    return site.set(["beta"], lambda beta, module: module.inv_norm_factor if beta == 1.0 and hasattr(module, "inv_norm_factor") else None,
                    is_attention)


text("alibi-not-scaled-with-scores", "position-bias",
     (r"attention_logits = attention_scores \+ (alibi\.view\(.*\))$", r"attention_logits = attention_scores + \1 / self.inv_norm_factor"))
text("alibi-slopes-from-power-0", "position-bias", (r"torch\.arange\(1, 1 \+ closest_power_of_2", "torch.arange(0, closest_power_of_2"),
     (r"torch\.arange\(1, num_heads_power_of_2 \+ 1", "torch.arange(0, num_heads_power_of_2"))
text("alibi-slopes-of-next-head", "position-bias unlisted", (r"alibi = slopes\[", "slopes = slopes.roll(-1, 0)\n    alibi = slopes["),
     (r"alibi = alibi \* slopes", "alibi = alibi * slopes.roll(-1, 1)"))
SOFTCAPPED = lambda site: getattr(site.config, "attn_logit_softcapping", None) is not None
text("score-softcap-before-scale", "unlisted", (r"(torch\.matmul\(query, key_states\.transpose\(2, 3\)\)) \* scaling$", r"\1"),
     (r"attn_weights = attn_weights \* softcap$", "attn_weights = attn_weights * softcap * scaling"), where="eager_attention_forward",
     only=SOFTCAPPED)
text("score-softcap-not-multiplied-back", "operation-omitted result-scaled score-scale", (r"attn_weights = attn_weights \* softcap$", "pass"),
     where="eager_attention_forward", only=SOFTCAPPED)
text("score-softcap-not-divided", "operation-omitted unlisted score-softcap", (r"attn_weights = attn_weights / softcap$", "pass"),
     where="eager_attention_forward", only=SOFTCAPPED)
text("mask-fill-zero", "mask-fill", (r"attn_weights = attn_weights \+ causal_mask", "attn_weights = attn_weights.masked_fill(causal_mask < 0, 0.0)"))
text("mask-added-after-halving", "unlisted score-scale", (r"attn_weights = attn_weights \+ causal_mask", "attn_weights = 0.5 * attn_weights + causal_mask"))
text("mask-open-for-a-prefix", "unlisted", (CAUSAL, "(kv_idx <= q_idx) | (kv_idx < 4)"))
text("mask-hides-first-key", "unlisted", (CAUSAL, "(kv_idx <= q_idx) & ((kv_idx > 0) | (q_idx == 0))"))
text("mask-hides-newest-in-decode", "mask-shifted unlisted", (CAUSAL, "(kv_idx <= q_idx) & ((kv_idx < q_idx) | (q_idx < 12))"))
text("mask-hides-first-half-in-decode", "unlisted", (CAUSAL, "(kv_idx <= q_idx) & ((kv_idx >= 6) | (q_idx < 12))"))
text("mask-in-blocks", "unlisted mask-shifted", (CAUSAL, "kv_idx // 4 <= q_idx // 4"))
text("mask-of-every-other-head", "mask-omitted unlisted",
     (r"attn_weights = attn_weights \+ causal_mask",
      "attn_weights = attn_weights + causal_mask * (torch.arange(attn_weights.shape[1]) % 2 == 0)[:, None, None]"))
text("encoder-made-causal", "unlisted", (SOFTMAX, r"softmax((\1) + torch.full((\1).shape[-2:], -1e9).triu(1), "),
     only=lambda site: not site.model.can_generate())
text("encoder-hides-itself", "unlisted", (SOFTMAX, r"softmax((\1) - 1e9 * torch.eye((\1).shape[-1]), "),
     only=lambda site: not site.model.can_generate())
text("encoder-window-doubled", "window-size", (r"distance <= self\.config\.local_attention // 2", "distance <= self.config.local_attention"))
text("encoder-window-of-past", "unlisted",
     (r"\(distance <= self\.config\.local_attention // 2\)", "((distance <= self.config.local_attention // 2) & (rows <= rows.T))"))
CHUNK = r"(kv_idx // chunk_size == q_idx // chunk_size|\(kv_idx - left_padding\[batch_idx\]\) // chunk_size == .*)"
text("chunk-as-window", "window-size unlisted", (CHUNK, "kv_idx > q_idx - chunk_size"))
text("chunk-one-longer", "unlisted window-size", (CHUNK, "kv_idx // (chunk_size + 1) == q_idx // (chunk_size + 1)"))
text("window-half", "window-size", (r"kv_idx > q_idx - sliding_window", "kv_idx > q_idx - sliding_window // 2"))
text("window-by-blocks", "unlisted window-size", (r"kv_idx > q_idx - sliding_window", "kv_idx // sliding_window >= q_idx // sliding_window"))


@mistake("encoder-window-on-the-other-layers", "window-size")
def other_layers(site):
    wide, narrow = (-1, -1), next((module.local_attention for _,
                                   module in site.modules(lambda name, module: getattr(module, "local_attention", (-1, -1)) != (-1, -1))), None)
    return narrow is not None and site.set(["local_attention"], lambda old, module: narrow if old == wide else wide)


@mistake("window-of-stored-mask-ignored", "window-size")
def stored_window(site):
    found = site.modules(lambda name, module: isinstance(getattr(module, "bias", None), torch.Tensor) and module.bias.dtype == torch.bool
                         and not torch.equal(module.bias, torch.ones_like(module.bias).tril()))
    for name, module in found:
        module.bias = torch.ones_like(module.bias).tril()
    return bool(found)


text("sink-divided-out-again", "sink-omitted", (r"scores = probs\[\.\.\., :-1\]", "scores = probs[..., :-1] / probs[..., :-1].sum(-1, keepdim=True)"))
text("sink-first-and-last-dropped", "unlisted", (r"torch\.cat\(\[attn_weights, sinks\], dim=-1\)", "torch.cat([sinks, attn_weights], dim=-1)"))
held("sinks-averaged", "unlisted", r"\.sinks$", lambda sinks: sinks.mean().expand_as(sinks).contiguous())
held("sinks-negated", "unlisted sign-flipped", r"\.sinks$", lambda sinks: -sinks)
text("scores-clipped", "unlisted", (SOFTMAX, r"softmax((\1).clamp(max=1.0), "))
text("c2p-scores-omitted", "operation-omitted", (r"score \+= c2p_att / scale.*", "pass"))
text("p2c-scores-not-transposed", "unlisted", (r"(index=p2c_pos[^\n]*\n +\))\.transpose\(-1, -2\)", r"\1"))
text("scale-without-parts-of-position", "score-scale unlisted", (r"^( +)scale_factor \+= 1", r"\1pass"))
text("relative-bias-of-first-layer-alone", "position-bias operation-omitted unlisted", (r"position_bias = layer_outputs\[1\]", "pass"))
held("relative-bias-heads-reversed", "unlisted", r"relative_attention_bias\.weight$", lambda table: table.flip(1))
held("relative-bias-table-one-late", "unlisted", r"relative_attention_bias\.weight$", lambda table: table.roll(1, 0))


@mistake("relative-distance-of-largest-bucket", UNLISTED)
def relative_distance(site):
    return site.set(["relative_attention_max_distance"], lambda old, module: 24)


text("cross-attention-to-itself", "operation-input linear-input",
     (r"current_states = key_value_states if is_cross_attention else hidden_states", "current_states = hidden_states"))
text("cross-keys-in-reverse", "unlisted",
     (r"key_states = self\.(k_proj|k)\(current_states\)", r"key_states = self.\1(current_states.flip(1) if is_cross_attention else current_states)"))
text("attention-output-gate-omitted", "operation-omitted", (r"attn_output \* torch\.sigmoid\(gate\)", "attn_output"))
text("attention-output-gate-by-silu", "activation unlisted",
     (r"attn_output \* torch\.sigmoid\(gate\)", "attn_output * torch.nn.functional.silu(gate)"))
text("query-and-gate-in-blocks", "fused-split",
     (r"query_states, gate = torch\.chunk\(\n +self\.q_proj\(hidden_states\)\.view\(\*input_shape, -1, self\.head_dim \* 2\), 2, dim=-1\n +\)",
      "query_states, gate = [part.reshape(*input_shape, -1, self.head_dim) for part in self.q_proj(hidden_states).chunk(2, dim=-1)]"))

# ---- heads, context, cache ----

text("queries-heads-first", "head-layout",
     (r"self\.q_proj\(hidden_states\)\.view\(hidden_shape\)\.transpose\(1, 2\)",
      "self.q_proj(hidden_states).view(input_shape[0], -1, input_shape[1], self.head_dim)"),
     (r"self\.query\(hidden_states\)\.view\(\*new_shape\)\.transpose\(1, 2\)",
      "self.query(hidden_states).view(batch_size, self.num_attention_heads, -1, self.attention_head_size)"))
text("keys-heads-first", "head-layout",
     (r"self\.k_proj\(hidden_states\)\.view\(hidden_shape\)\.transpose\(1, 2\)",
      "self.k_proj(hidden_states).view(input_shape[0], -1, input_shape[1], self.head_dim)"),
     (r"self\.key\(hidden_states\)\.view\(\*new_shape\)\.transpose\(1, 2\)",
      "self.key(hidden_states).view(batch_size, self.num_attention_heads, -1, self.attention_head_size)"))
text("keys-heads-apart", "head-layout",
     (r"self\.k_proj\(hidden_states\)\.view\(hidden_shape\)",
      "self.k_proj(hidden_states).view(*hidden_shape[:-2], self.head_dim, -1).transpose(-1, -2)"))
text("kv-heads-reversed", "unlisted kv-head-map",
     (REPEAT, "hidden_states = hidden_states.flip(1)[:, :, None].expand(batch, num_key_value_heads, n_rep, slen, head_dim)"))
text("kv-heads-beyond-last-clamped", "kv-head-map",
     (REPEAT, "hidden_states = torch.stack([hidden_states[:, min(h, num_key_value_heads - 1)] for h in range(num_key_value_heads * n_rep)], 1)"))
text("kv-heads-averaged", "unlisted",
     (REPEAT, "hidden_states = hidden_states.mean(1, keepdim=True)[:, :, None].expand(batch, num_key_value_heads, n_rep, slen, head_dim)"))
text("kv-heads-of-k-in-turn", "kv-head-map",
     (r"(key_states = )repeat_kv\((\w+), (module|self)\.num_key_value_groups\)", r"\1\2.repeat(1, \3.num_key_value_groups, 1, 1)"))
text("queries-of-next-head", "unlisted",
     (r"^( +)(query_states, key_states = apply_rotary_pos_emb\(.*\))$", r"\1\2\n\1query_states = query_states.roll(1, 1)"))
text("values-reversed-in-a-head", "unlisted", (r"torch\.matmul\((attn_weights|attention_probs), (\w+)\)", r"torch.matmul(\1, \2.flip(-1))"))


def stored(name, causes, keys, what):
    """What a decode step finds in the cache; `what` is written with OLD and NEW."""
    new = {"keys": "key_states", "values": "value_states"}[keys]
    what = what.replace("OLD", f"self.{keys}").replace("NEW", new)
    text(name, causes, (CACHED.format(keys, new), f"self.{keys} = torch.cat([{what}] if self.{keys}.numel() else [self.{keys}, {new}], dim=-2)"))


stored("cache-value-slot-overwritten", "kv-cache-shift", "values", "OLD[..., :-1, :], NEW, NEW * 0")
stored("cache-oldest-key-lost", "unlisted", "keys", "OLD * (torch.arange(OLD.shape[-2]) > 0)[:, None], NEW")
stored("cache-values-for-keys", "unlisted", "keys", "self.values, NEW")
stored("cache-heads-and-slots-exchanged", "unlisted head-layout", "keys", "OLD.transpose(1, 2).reshape(OLD.shape), NEW")
stored("cache-decoded-key-never-written", "kv-cache-stale", "keys", "OLD * (torch.arange(OLD.shape[-2]) < 12)[:, None], NEW")
stored("cache-decoded-value-never-written", "kv-cache-stale", "values", "OLD * (torch.arange(OLD.shape[-2]) < 12)[:, None], NEW")
stored("cache-prompt-one-slot-late", "kv-cache-shift", "keys", "OLD[..., :1, :], OLD[..., :-1, :], NEW")
text("cache-values-in-bf16", "precision unlisted",
     (CACHED.format("values", "value_states"), "self.values = torch.cat([self.values, value_states.bfloat16().type_as(value_states)], dim=-2)"))
text("cache-of-first-layer", "unlisted",
     (r"^( +)(key_states, value_states = past_key_values\.update\(key_states, value_states, self\.layer_idx, cache_kwargs\))$",
      r"\1\2\n\1if key_states.shape[-2] > hidden_states.shape[1]:\n"
      r"\1    key_states = torch.cat([past_key_values.layers[0].keys[..., :-1, :], key_states[..., -1:, :]], -2)"))
text("cache-scaled-when-read", "unlisted score-scale",
     (r"^( +)(key_states, value_states = past_key_values\.update\(key_states, value_states, self\.layer_idx, cache_kwargs\))$",
      r"\1\2\n\1if key_states.shape[-2] > hidden_states.shape[1]:\n\1    key_states = key_states * 1.25"))
text("query-of-latest-position-alone", "unlisted",
     (r"^( +)(query_states, key_states = apply_rotary_pos_emb\(.*\))$", r"\1\2\n\1query_states = query_states[..., -1:, :].expand_as(query_states)"))

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


activation("activation-sigmoid", "activation", torch.sigmoid)
activation("activation-hard-swish", "unlisted", nn.functional.hardswish)
activation("activation-mish", "activation", nn.functional.mish)
activation("activation-tanh", "activation", torch.tanh)
activation("activation-leaky-relu", "activation", nn.functional.leaky_relu)
activation("activation-gelu-of-3-digits", "activation precision unlisted", lambda x: 0.5 * x * (1 + torch.tanh(0.8 * x * (1 + 0.045 * x * x))))
text("gate-activated-after-product", "unlisted", (GATED, r"self.\1(self.\2(\3) * self.\4(\3))"))
text("gate-activated-in-bf16", "precision unlisted", (GATED, r"self.\1(self.\2(\3).bfloat16()).type_as(\3) * self.\4(\3)"))
text("gate-clipped-below", "unlisted activation-clamp", (GATED, r"self.\1(self.\2(\3).clamp(min=-0.5)) * self.\4(\3)"))
text("up-reads-gate-of-next-token", "unlisted", (GATED, r"self.\1(self.\2(\3)) * self.\4(\3).roll(-1, -2)"))
text("gate-read-twice", "weight-swapped operation-input", (GATED, r"self.\1(self.\2(\3)) * self.\2(\3)"))
HALVED = r"(input, gate|gate, up_states|gate, up) = (self\.Wi\(hidden_states\)|up_states|gate_up)\.chunk\(2, dim=-1\)"
text("gate-and-up-read-in-turn", "fused-split", (HALVED, r"\1 = [part.squeeze(-1) for part in \2.unflatten(-1, (-1, 2)).chunk(2, dim=-1)]"))
text("gate-and-up-halves-exchanged", "gate-up-swapped weight-swapped fused-split", (HALVED, r"\1 = \2.chunk(2, dim=-1)[::-1]"))
text("ffn-norm-reads-branch", "operation-input",
     (r"\A((?:.*\n)*?)( +)hidden_states = residual \+ hidden_states\n((?:.*\n)*?)"
      r"( +hidden_states = self\.(?:post_attention_layernorm|pre_feedforward_layernorm|ln_2)\()hidden_states\)",
      r"\1\2branch = hidden_states\n\2hidden_states = residual + hidden_states\n\3\4branch)"), where=r"(Layer|Block)\.forward")
text("squares-left-out", "operation-omitted activation", (r"torch\.square\(torch\.relu\((self\.key\(key\))\)\)", r"torch.relu(\1)"))
text("receptance-not-activated", "operation-omitted", (r"torch\.sigmoid\((self\.receptance\(receptance\))\)", r"\1"))


@mistake("activation-sparsity-ignored", "operation-omitted unlisted")
def sparsity(site):
    return site.set(["activation_sparsity"], lambda old, module: 0.0 if old else None)


# ---- residual stream ----

text("stream-halved", "residual-scale", (ADD, r"\1 = 0.5 * residual + \1"), (r"out = residual \+ out", "out = 0.5 * residual + out"), one=True)
text("stream-in-bf16", "precision unlisted", (ADD, r"\1 = (residual + \1).bfloat16().type_as(\1)"))
text("residual-multiplier-on-sum", "residual-scale result-scaled", (r"hidden_states = residual \+ hidden_states \* self\.residual_multiplier",
                                                                  "hidden_states = (residual + hidden_states) * self.residual_multiplier"), one=True)
text("residual-multiplier-of-stream", "residual-scale", (r"hidden_states = residual \+ hidden_states \* self\.residual_multiplier",
                                                         "hidden_states = residual * self.residual_multiplier + hidden_states"), one=True)
text("layer-input-added-again", "residual-source residual-scale unlisted",
     (r"\A((?:.*\n)*?)( +)residual = hidden_states\n((?:.*\n)*)( +)hidden_states = residual \+ hidden_states\n",
      r"\1\2residual = begin = hidden_states\n\3\4hidden_states = residual + hidden_states + begin\n"), where=r"(Layer|Block)\.forward")
text("stream-of-previous-token", "unlisted", (ADD, r"\1 = residual.roll(1, -2) + \1"), (r"out = residual \+ out", "out = residual.roll(1, -2) + out"),
     one=True)
text("parallel-branch-dropped", "operation-omitted residual-source",
     (r"attn_outputs \+ (feed_forward_hidden_states \+ residual)", r"\1"), (r"mlp_output \+ attn_output \+ (hidden_states)", r"mlp_output + \1"),
     (r"residual \+ hidden_states_attention \+ (hidden_states_mlp)", r"residual + \1"))
text("parallel-stream-counted-twice", "residual-source residual-scale unlisted",
     (r"attn_outputs \+ feed_forward_hidden_states \+ residual", "attn_outputs + feed_forward_hidden_states + 2 * residual"),
     (r"mlp_output \+ attn_output \+ hidden_states", "mlp_output + attn_output + 2 * hidden_states"),
     (r"residual \+ (hidden_states_attention \+ hidden_states_mlp)", r"2 * residual + \1"))


@mistake("layer-run-twice", UNLISTED)
def layer_twice(site):
    layer = lambda name, module: re.search(r"\.\d+$", name) and re.search(r"Layer$|Block$", type(module).__name__) and not re.search(r"\.\d+\.", name)
    layers = site.modules(layer)

    def make(module, own):
        def forward(hidden_states, *args, **more):
            out = own(hidden_states, *args, **more)
            return own(out[0] if isinstance(out, tuple) else out, *args, **more)

        return forward

    return bool(layers) and not site.model.can_generate() and site.forward([site.rng.choice(layers)], make)


# ---- experts ----

text("router-in-bf16", "precision unlisted",
     (r"router_logits = self\.gate\(hidden_states\)", "router_logits = self.gate(hidden_states).bfloat16().type_as(hidden_states)"),
     (r"scores = router_logits\.sigmoid\(\)", "scores = router_logits.bfloat16().float().sigmoid()"))
text("router-function-omitted", "operation-omitted router-bias", (ROUTED, "routing_weights = router_logits.float()"),
     (r"scores = router_logits\.sigmoid\(\)", "scores = router_logits"))
text("router-weights-by-their-largest", "unlisted", (SUM, "routing_weights /= routing_weights.amax(dim=-1, keepdim=True)"),
     (r"topk_weights\.sum\(dim=-1, keepdim=True\) \+ 1e-20", "topk_weights.amax(dim=-1, keepdim=True) + 1e-20"))
text("router-weights-by-sum-of-all", "router-norm unlisted",
     (r"topk_weights\.sum\(dim=-1, keepdim=True\) \+ 1e-20", "scores.sum(dim=-1, keepdim=True) + 1e-20"))
text("router-groups-by-best-expert", "unlisted", (r"\.topk\(2, dim=-1\)\[0\]\n", ".topk(1, dim=-1)[0]\n"))
text("router-choice-without-weights-order", "unlisted",
     (r"^( +)(routing_weights, selected_experts = torch\.topk\(routing_weights, self\.top_k, dim=-1\))$",
      r"\1\2\n\1selected_experts = selected_experts.sort(-1)[0]"))
text("router-weights-applied-twice", "unlisted",
     (r"expert_layer\(current_state\) \* routing_weights\[top_x, idx, None\]",
      "expert_layer(current_state) * routing_weights[top_x, idx, None] ** 2"),
     (r"expert_output \* expert_weights\.unsqueeze\(-1\)", "expert_output * expert_weights.unsqueeze(-1) ** 2"),
     (r"out \* routing_weights\[token_idx, expert_idx, None\]", "out * routing_weights[token_idx, expert_idx, None] ** 2"))
text("router-softmax-of-all-gathered", "router-norm",
     (r"torch\.softmax\(top_k_logits, dim=1\)", "torch.softmax(logits, dim=1).gather(1, top_k_indices)"))
text("router-sigmoid-after-softmax", "unlisted router-bias",
     (ROUTED, "routing_weights = F.softmax(router_logits, dim=1, dtype=torch.float).sigmoid()"))
text("router-weights-on-output", "unlisted",
     (r"routed_in = routed_in \* router_scores\.transpose\(0, 1\)\.reshape\(-1, 1\)", "pass"),
     (r"routed_out = self\.experts\(routed_in\)", "routed_out = self.experts(routed_in) * router_scores.transpose(0, 1).reshape(-1, 1)"))
text("router-one-softmax-for-sigmoid", "router-bias unlisted",
     (r"torch\.nn\.functional\.sigmoid\(router_scores\.float\(\)\)", "torch.nn.functional.softmax(router_scores.float(), dim=-1)"))
TOKENS = r"index_add_\(0, (top_x|token_indices|token_idx), "
text("expert-rows-back-in-other-order", "unlisted", (TOKENS, r"index_add_(0, \1.flip(0), "))
text("expert-capacity-of-4-tokens", "unlisted", (TOKENS, r"index_add_(0, \1, (torch.arange(len(\1)) < 4)[:, None] * "))
text("expert-reads-next-token", "unlisted", (r"current_state = hidden_states\[None, top_x\]", "current_state = hidden_states[None, top_x - 1]"),
     (r"expert_input = hidden_states\[token_indices\]", "expert_input = hidden_states[token_indices - 1]"),
     (r"current_state = hidden_states\[token_idx\]", "current_state = hidden_states[token_idx - 1]"))
text("shared-expert-scaled-as-routed", "unlisted residual-scale",
     (r"hidden_states \+ self\.shared_experts\(residuals\)", "hidden_states + self.gate.routed_scaling_factor * self.shared_experts(residuals)"))
text("shared-expert-gate-without-sigmoid", "operation-omitted", (r"F\.sigmoid\((self\.shared_expert_gate\(hidden_states\))\)", r"\1"))
text("shared-expert-replaces-routed", "operation-omitted unlisted",
     (r"hidden_states = hidden_states \+ (self\.shared_experts\(residuals\))", r"hidden_states = \1"),
     (r"final_hidden_states = final_hidden_states \+ shared_expert_output", "final_hidden_states = shared_expert_output"))


@mistake("router-scale-twice", "router-scale")
def scale_twice(site):
    return site.set(["routed_scaling_factor"], lambda scale, module: scale * scale if scale != 1.0 else None)


@mistake("one-matrix-of-experts-rolled", "expert-order")
def matrix_rolled(site):
    """One kind of matrix is another expert's, the others are its own."""
    done = False
    for name, module in site.some(site.modules(lambda name, module: name.endswith("experts"))):
        with torch.no_grad():
            if isinstance(module, nn.ModuleList) and len(module) > 1:
                key = site.rng.choice([key for key, _ in module[0].named_parameters()])
                weights = [dict(expert.named_parameters())[key] for expert in module]
                kept = [weight.clone() for weight in weights]
                for at, weight in enumerate(weights):
                    weight.copy_(kept[at - 1])
                done = site.note(f"{name} {key}")
            elif stacked := [(key, weight) for key, weight in module.named_parameters(recurse=False) if weight.dim() == 3]:
                key, weight = site.rng.choice(stacked)
                weight.copy_(weight.roll(1, 0))
                done = site.note(f"{name} {key}")
    return done


# ---- latent attention ----

text("latent-split-rope-first", "fused-split unlisted",
     (r"k_pass, k_rot = torch\.split\(compressed_kv, \[self\.kv_lora_rank, self\.qk_rope_head_dim\]",
                                                        "k_rot, k_pass = torch.split(compressed_kv, [self.qk_rope_head_dim, self.kv_lora_rank]"))
text("latent-query-split-rope-first", "fused-split unlisted",
     (r"q_pass, q_rot = torch\.split\(q_states, \[self\.qk_nope_head_dim, self\.qk_rope_head_dim\]",
                                                              "q_rot, q_pass = torch.split(q_states, [self.qk_rope_head_dim, self.qk_nope_head_dim]"))
text("latent-rope-of-key-left-out", "rope-omitted unlisted", (r"q_rot, k_rot = (apply_rotary_pos_emb\w*\(q_rot, k_rot, .*\))$", r"q_rot = \1[0]"))
text("latent-scaled-twice", "unlisted",
     (r"self\.kv_b_proj\(self\.kv_a_layernorm\(k_pass\)\)", "self.kv_b_proj(self.kv_a_layernorm(k_pass) * k_pass.shape[-1] ** -0.5)"))


@mistake("latent-rows-in-blocks", "fused-split")
def latent_rows(site):
    """Keys and values of all heads in blocks, where they lie head by head."""
    heads = heads_of(site)[0]
    return heads > 0 and rows(site, lambda name, module: name.endswith("kv_b_proj"),
                              lambda rows: rows.unflatten(0, (2, heads, -1)).transpose(0, 1).flatten(0, 2))


@mistake("latent-mscale-once", "score-scale")
def latent_mscale(site):
    def once(scale, module):
        plain = module.qk_head_dim ** -0.5 if hasattr(module, "qk_nope_head_dim") else scale
        return (scale * plain) ** 0.5 if abs(scale - plain) > 1e-6 else None

    return site.set(["scaling"], once)


# ---- state spaces and other mixers ----

text("dt-bias-after-softplus", "unlisted", (r"softplus\(dt \+ self\.dt_bias\)", "softplus(dt) + self.dt_bias"),
     (r"F\.softplus\(a\.float\(\) \+ self\.dt_bias\)", "(F.softplus(a.float()) + self.dt_bias)"))
text("dt-by-exp", "unlisted", (r"(?:torch\.)?nn\.functional\.softplus\(", "torch.exp("), (r"F\.softplus\(", "torch.exp("))
text("decay-without-dt", "operation-omitted unlisted",
     (r"torch\.exp\(A\[None, :, None, :\] \* discrete_time_step\[:, :, :, None\]\)",
      "torch.exp(A[None, :, None, :]).expand(*discrete_time_step.shape, -1)"))
text("input-held-as-zero-order", "unlisted", (r"discrete_B = discrete_time_step\[:, :, :, None\] \* B\[:, None, :, :\]\.float\(\)",
                                             "discrete_B = (discrete_A - 1) / A[None, :, None, :] * B[:, None, :, :].float()"))
text("scan-reads-state-before-update", "unlisted",
     (r"^( +)(ssm_state = discrete_A\[:, :, i, :\].*)\n( +scan_output = torch\.matmul\(ssm_state\.to\(dtype\).*)", r"\3\n\1\2"))
text("gate-before-skip", "unlisted",
     (r"scan_output = scan_output \+ \(hidden_states \* self\.D\[None, :, None\]\)", "scan_output = scan_output * self.act(gate)"),
     (r"scan_output = \(scan_output \* self\.act\(gate\)\)", "scan_output = scan_output + hidden_states * self.D[None, :, None]"))
text("gate-half-first", "fused-split weight-swapped unlisted",
     (r"hidden_states, gate = projected_states\.chunk\(2, dim=1\)", "gate, hidden_states = projected_states.chunk(2, dim=1)"))
text("conv-kernel-reversed-in-decode", "unlisted", (r"self\.conv1d\.weight\[:, 0, :\]", "self.conv1d.weight[:, 0, :].flip(-1)"),
     (r"self\.conv1d\.weight\.squeeze\(1\)", "self.conv1d.weight.squeeze(1).flip(-1)"),
     (r"self\.conv\.weight\[:, 0, :\]", "self.conv.weight[:, 0, :].flip(-1)"))
text("conv-bias-omitted-in-decode", "bias-omitted operation-omitted unlisted", (r"if self\.use_conv_bias:", "if False:"))
text("conv-not-activated-in-decode", "operation-omitted activation unlisted",
     (r"hidden_states = self\.act\(hidden_states\)\.to\(dtype\)\.unsqueeze\(-1\)", "hidden_states = hidden_states.to(dtype).unsqueeze(-1)"))
text("scan-state-forgotten", "unlisted",
     (r"cache_params\.ssm_states\[self\.layer_idx\]\.clone\(\)", "torch.zeros_like(cache_params.ssm_states[self.layer_idx])"))
text("decay-of-own-position-twice", "number-differs unlisted", (r"diagonal=-1\)", "diagonal=0)"), where="segment_sum")
text("chunks-without-carried-state", "operation-omitted unlisted", (r"y = Y_diag \+ Y_off", "y = Y_diag"))
text("carried-state-not-decayed", "operation-omitted unlisted",
     (r"state_decay_out = torch\.exp\(A_cumsum\)", "state_decay_out = torch.ones_like(A_cumsum)"))
text("skip-on-input-before-conv", "unlisted", (r"D_residual = self\.D\[\.\.\., None\] \* pad_tensor_by_size\(hidden_states, pad_size\)",
                                              "D_residual = self.D[..., None] * pad_tensor_by_size(hidden_states * dt[..., None], pad_size)"))
text("linear-keys-not-normed", "operation-omitted norm-omitted unlisted", (r"use_qk_l2norm_in_kernel=True", "use_qk_l2norm_in_kernel=False"),
     where=r"\.forward")
text("linear-keys-normed-by-mean", "unlisted", (r"\(x \* x\)\.sum\(dim=dim, keepdim=True\)", "(x * x).mean(dim=dim, keepdim=True)"))
text("linear-beta-not-activated", "operation-omitted", (r"beta = b\.sigmoid\(\)", "beta = b"))
text("linear-beta-and-decay-exchanged", "fused-split weight-swapped unlisted", (r"b, a = torch\.split\(mixed_ba", "a, b = torch.split(mixed_ba"))
text("short-conv-gates-exchanged", "fused-split weight-swapped unlisted", (r"B, C, x = BCx\.chunk\(3, dim=-2\)", "C, B, x = BCx.chunk(3, dim=-2)"))
text("short-conv-one-late", "unlisted", (r"self\.conv\(Bx\)\[\.\.\., :seqlen\]", "self.conv(Bx)[..., 1 : seqlen + 1]"))
text("recurrence-input-not-scaled", "operation-omitted unlisted", (r"multiplier = SqrtBoundDerivative\.apply\(1 - a_square\)", "multiplier = 1.0"))
text("recurrence-decay-constant", "number-differs", (r"-8\.0 \* recurrent_gate", "-4.0 * recurrent_gate"))
text("recurrence-gates-exchanged", "operation-input unlisted",
     (r"gated_inputs = activations \* input_gate", "gated_inputs = activations * recurrent_gate"))
held("token-mix-reversed", "unlisted", r"time_mix_(key|value|receptance)$", lambda mix: 1 - mix)
held("first-token-bonus-omitted", "unlisted", r"time_first$", torch.zeros_like)
text("token-shift-of-two", "unlisted", (r"shifted = self\.time_shift\(hidden\)", "shifted = self.time_shift(self.time_shift(hidden))"))


@mistake("conv-state-not-shifted", UNLISTED)
def conv_state(site):
    """The newest input of a convolution takes the last one's place in its state."""
    pattern = r"(conv_states?)\.roll\(shifts=-1, dims=-1\)|torch\.roll\((conv_states?), shifts=-1, dims=-1\)|"
    pattern += r"(self\.conv_states\[layer_idx\])\.roll\(shifts=-1, dims=-1\)"
    done = site.edit((pattern, r"(\1\2\3).clone()"))
    file = sys.modules[type(site.model).__module__]
    for kind in [kind for name, kind in vars(file).items() if inspect.isclass(kind) and name.endswith("Cache") and kind.__module__ == file.__name__]:
        method = vars(kind).get("update_conv_state")
        source = textwrap.dedent(inspect.getsource(method)) if method else ""
        if re.search(pattern, source):
            unit = Unit(kind, "update_conv_state", method, source)
            site.replace(unit, unit.compiled(re.sub(pattern, lambda match: f"({match[1] or match[2] or match[3]}).clone()", source)), False)
            done = True
    return done

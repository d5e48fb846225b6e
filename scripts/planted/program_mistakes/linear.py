"""Linear layers: weights, biases, products, and fused matrices."""

import re

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from scripts.planted.program_mistakes.parts import (
    bytes_exchanged, cut_to_bf16, exchange, from_other_layer, generating, head, head_width, heads_of, layers_of, rotaries, rows, rows_first, stuck,
    weigh,
)
from scripts.planted.program_mistakes.sets import first, fourth, held, mistake, second, text, third, UNLISTED, weight
from scripts.planted.program_mistakes.site import in_layer


@mistake(first, 31, "bias-omitted", "bias-omitted")
def bias_omitted(site):
    return weigh(site, "bias", lambda bias, module: bias * 0)


@mistake(first, 32, "bias-twice", "bias-twice")
def bias_twice(site):
    return weigh(site, "bias", lambda bias, module: bias * 2)


@mistake(first, 33, "bias-negated", UNLISTED)
def bias_negated(site):
    return weigh(site, "bias", lambda bias, module: -bias)


def pair(site, *names):
    """Two linear layers beside each other whose shapes are the same, by names."""
    found = []
    for name, module in site.linears(lambda name, module: name.rsplit(".", 1)[-1] in {first for first, _ in names}):
        before, _, last = name.rpartition(".")
        for first, second in names:
            other = dict(site.model.named_modules()).get(f"{before}.{second}") if last == first else None
            if isinstance(other, (nn.Linear, Conv1D)) and other.weight.shape == module.weight.shape:
                found.append(((name, module), (f"{before}.{second}", other)))
    return site.some(found)


def exchanged(tag, number, name, causes, *names):
    @mistake(tag, number, name, causes)
    def plant(site):
        return any([exchange(site, *both) for both in pair(site, *names)])


exchanged(first, 34, "q-and-k-exchanged", "weight-swapped", ("q_proj", "k_proj"), ("query", "key"), ("q_lin", "k_lin"), ("q", "k"))
exchanged(first, 35, "k-and-v-exchanged", "weight-swapped", ("k_proj", "v_proj"), ("key", "value"), ("k_lin", "v_lin"), ("k", "v"))
exchanged(first, 36, "gate-and-up-exchanged", "weight-swapped gate-up-swapped", ("gate_proj", "up_proj"), ("w1", "w3"), ("wi_0", "wi_1"))
SQUARE = lambda name, module: module.weight.shape[0] == module.weight.shape[1]


@mistake(first, 37, "square-transposed", "weight-transposed", "weight-stride")
def square_transposed(site):
    return weigh(site, "weight", lambda weight, module: weight.T, SQUARE)


@mistake(first, 38, "bytes-transposed", "weight-transposed", "weight-stride")
def bytes_transposed(site):
    """The bytes of [out,in] are read as [in,out]."""
    return weigh(site, "weight", lambda weight, module: weight.reshape(weight.shape[1], weight.shape[0]).T, lambda name, module: not SQUARE(name, module))


@mistake(first, 39, "leading-dimension", "weight-stride")
def leading_dimension(site):
    step = site.rng.choice([-1, 1])

    def shifted(weight, module):
        flat = torch.cat([weight.reshape(-1), weight.new_zeros(weight.shape[0])])
        at = torch.arange(weight.shape[0])[:, None] * (weight.shape[1] + step) + torch.arange(weight.shape[1])
        return flat[at]

    return weigh(site, "weight", shifted)


@mistake(first, 40, "neighbour-layer", "weight-wrong-layer")
def neighbour_layer(site):
    found = site.linears(lambda name, module: len(site.siblings(name)) > 1 and not re.search(r"experts?\.\d", name))
    return bool(found) and from_other_layer(site, *site.rng.choice(found))


@mistake(first, 41, "bias-of-other-layer", "weight-wrong-layer", UNLISTED)
def bias_of_other_layer(site):
    found = site.linears(lambda name, module: module.bias is not None and len(site.siblings(name)) > 1)
    if not found:
        return False
    name, module = site.rng.choice(found)
    other = next(other for other in site.siblings(name) if other is not module)
    with torch.no_grad():
        module.bias.copy_(other.bias)
    return site.note(name)


@mistake(first, 42, "weight-unset", "weight-unset", "~residual-source", "~score-scale")
def weight_unset(site):
    return weigh(site, "weight", lambda weight, module: weight * 0)


@mistake(first, 43, "weight-tail-unset", "dequant-truncated", "weight-unset", UNLISTED)
def tail_unset(site):
    """Only the first half of the rows is loaded."""
    return weigh(site, "weight", lambda weight, module: torch.cat([weight[:weight.shape[0] // 2], 0 * weight[weight.shape[0] // 2:]]))


@mistake(first, 44, "weight-negated", UNLISTED, "~score-scale", "~residual-scale")
def negated(site):
    return weigh(site, "weight", lambda weight, module: -weight)


@mistake(first, 45, "weight-rows-reversed", UNLISTED)
def rows_reversed(site):
    return weigh(site, "weight", lambda weight, module: weight.flip(0))


@mistake(first, 46, "weight-few-bits", "precision", UNLISTED)
def few_bits(site):
    """One matrix alone in four bits."""
    return weigh(site, "weight", lambda weight, module: (weight / weight.abs().max() * 7).round() * weight.abs().max() / 7)


@mistake(first, 47, "f16-read-as-bf16", "storage-type")
def storage_type(site):
    return weigh(site, "weight", lambda weight, module: weight.half().view(torch.bfloat16).float())


FUSED = re.compile(r"(c_attn|query_key_value|Wqkv|qkv_proj|in_proj_qkv)$")


@mistake(first, 48, "fused-rows-regrouped", "fused-split")
def regrouped(site):
    """Rows of Q, K and V are taken head by head where they lie in blocks, or the reverse."""
    heads = getattr(site.config, "num_attention_heads", 0)

    def fused(name, module):
        rows, columns = rows_first(module.weight, module).shape
        return bool(FUSED.search(name)) and rows == 3 * columns and columns % max(heads, 1) == 0

    found = site.role(lambda name, module: isinstance(module, (nn.Linear, Conv1D)) and fused(name, module)) if heads else []
    for name, module in found:
        parts = (3, heads) if name.endswith("query_key_value") else (heads, 3)
        regroup = lambda rows: rows.reshape(*parts, -1, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)
        with torch.no_grad():
            module.weight.copy_(rows_first(regroup(rows_first(module.weight.clone(), module)), module))
            if module.bias is not None:
                module.bias.copy_(regroup(module.bias.clone()))
        site.note(name)
    return bool(found)


@mistake(first, 49, "fused-gate-interleaved", "fused-split")
def gate_interleaved(site):
    return weigh(site, "weight", lambda weight, module: weight.reshape(2, -1, weight.shape[1]).transpose(0, 1).reshape(weight.shape),
                 lambda name, module: name.endswith("gate_up_proj"))


@mistake(first, 50, "fused-halves-exchanged", "weight-swapped", "fused-split", "gate-up-swapped")
def halves_exchanged(site):
    return weigh(site, "weight", lambda weight, module: weight.roll(weight.shape[0] // 2, 0), lambda name, module: name.endswith("gate_up_proj"))


@mistake(first, 51, "rows-of-q-or-k-permuted", "qk-row-order")
def rows_permuted(site):
    """Rows as GGUF has them for adjacent pairs, while halves are rotated."""
    width = head_width(site)

    def permuted(weight, module):
        return weight.reshape(-1, 2, width // 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)

    return bool(width) and bool(rotaries(site)) and weigh(site, "weight", permuted, lambda name, module: name.endswith(("q_proj", "k_proj")) and module.weight.shape[0] % width == 0)


text(first, 52, "heads-of-q-apart", "head-layout",
     (r"self\.q_proj\(hidden_states\)\.view\(hidden_shape\)",
      r"self.q_proj(hidden_states).view(*hidden_shape[:-2], self.head_dim, -1).transpose(-1, -2)"))
text(first, 53, "heads-of-v-apart", "head-layout",
     (r"self\.v_proj\(hidden_states\)\.view\(hidden_shape\)",
      r"self.v_proj(hidden_states).view(*hidden_shape[:-2], self.head_dim, -1).transpose(-1, -2)"))


def named(pattern):
    return lambda name, module: bool(re.search(pattern, name))


@mistake(second, 24, "biases-of-q-and-k-exchanged", "weight-swapped")
def biases_exchanged(site):
    found = [both for both in pair(site, ("q_proj", "k_proj"), ("query", "key"),
                                   ("q_lin", "k_lin")) if both[0][1].bias is not None and both[1][1].bias is not None]
    for (name, q), (_, k) in found:
        q.bias.data, k.bias.data = k.bias.data.clone(), q.bias.data.clone()
        site.note(name)
    return bool(found)


text(second, 25, "query-bias-not-scaled", "unlisted bias-omitted",
     (r"self\.q_proj\(hidden_states\) \* self\.scaling",
      "(torch.nn.functional.linear(hidden_states, self.q_proj.weight) * self.scaling + self.q_proj.bias)"))
OUTWARD = named(r"(attn|attention)\w*\.(\w+\.)*(o_proj|out_proj|dense|c_proj|out_lin|o)$")
DOWN = named(r"(o_proj|out_proj|down_proj|fc2|dense_4h_to_h|w2|wo|fc_out|c_proj|fc_out)$")


def heads_apart(weight, site):
    heads = heads_of(site)[0]
    return weight.unflatten(1, (heads, -1)).transpose(1, 2).flatten(1)


def columns(tag, number, name, causes, how, test):
    """The columns of one role's matrices stand otherwise; None: leave them."""
    @mistake(tag, number, name, causes)
    def plant(site):
        def turned(weight, module):
            new = how(rows_first(weight, module), site)
            return weight if new is None else rows_first(new, module)

        return weigh(site, "weight", turned, test)


columns(second, 26, "columns-of-output-heads-apart", "unlisted ~context-layout", heads_apart, OUTWARD)
columns(second, 27, "columns-of-one-shard-alone", "unlisted", lambda weight, site: weight * (torch.arange(weight.shape[1]) < weight.shape[1] // 2), DOWN)
columns(second, 28, "columns-of-shards-exchanged", "unlisted", lambda weight, site: weight.roll(weight.shape[1] // 2, 1), DOWN)


@mistake(second, 29, "key-heads-of-next-shard", "unlisted")
def key_heads_rolled(site):
    width = head_width(site)
    return width > 0 and rows(site, lambda name, module: name.endswith("k_proj") and module.weight.shape[0] > width, lambda rows: rows.roll(width, 0))


weight(second, 30, "stored-scale-not-applied", "result-scaled unlisted ~score-scale ~residual-scale ~rope-attention-factor ~softmax-base",
       lambda weight: weight * (4 / weight.abs().max()))


def scales_of_next_block(weight):
    """Blocks of 8 rows, each of which was stored with a scale."""
    blocks = weight.reshape(-1, 8, weight.shape[1])
    scales = blocks.abs().amax((1, 2), keepdim=True)
    return (blocks / scales * scales.roll(1, 0)).reshape(weight.shape)


weight(second, 31, "scales-of-next-block-of-rows", "dequant-scale unlisted", scales_of_next_block, lambda name, module: module.weight.shape[0] % 8 == 0)
weight(second, 32, "scale-of-each-column-left-out", "unlisted", lambda weight: weight / weight.abs().amax(0, keepdim=True).clamp(min=1e-3))
weight(second, 33, "zero-point-left-out", "unlisted dequant-scale", lambda weight: weight - weight.amin(1, keepdim=True) - (weight.amax() - weight.amin()) / 2)
weight(second, 34, "bf16-read-as-f16", "storage-type", lambda weight: weight.bfloat16().view(torch.float16).float())
weight(second, 35, "values-begin-8-elements-late", "unlisted storage-shape", lambda weight: weight.reshape(-1).roll(-8).reshape(weight.shape))
weight(second, 36, "rows-begin-one-late", "unlisted storage-shape", lambda weight: torch.cat((weight[1:], weight[-1:])))
weight(second, 37, "bias-of-one-output-before", "unlisted", lambda bias: bias.roll(1), key="bias")


def linear_around(tag, number, name, causes, how, test=lambda name, module: True, only=lambda site: True):
    """One role's products by other arithmetic: `how` has the module, its input, and the right arithmetic."""
    @mistake(tag, number, name, causes)
    def plant(site):
        found = site.role(lambda name, module: type(module) in (nn.Linear, Conv1D) and in_layer(name) and test(name, module))
        return only(site) and site.forward(found, lambda module, own: lambda x, *more: how(module, x, own))


def linear(tag, number, name, causes, how):
    """The same without the right arithmetic, of nn.Linear alone."""
    linear_around(tag, number, name, causes, lambda module, x, own: how(module, x), lambda name, module: type(module) is nn.Linear)


def blocks_of_8_bits(x):
    rows = x.reshape(-1, 8)
    scale = rows.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
    return ((rows / scale).round() * scale).reshape(x.shape)


linear(second, 38, "activations-in-8-bits", "precision unlisted",
       lambda module, x: nn.functional.linear(blocks_of_8_bits(x) if x.numel() % 8 == 0 else x, module.weight, module.bias))
linear(second, 39, "product-in-bf16", "precision unlisted", lambda module, x: nn.functional.linear(
    x.bfloat16(), module.weight.bfloat16(), None if module.bias is None else module.bias.bfloat16()).type_as(x))
linear(second, 40, "product-of-previous-position", "unlisted", lambda module, x: nn.functional.linear(x, module.weight, module.bias).roll(1, -2))


@mistake(second, 41, "rows-of-v-permuted-as-those-of-q", UNLISTED)
def v_permuted(site):
    width = head_width(site)
    permuted = lambda rows: rows.unflatten(0, (-1, 2, width // 2)).transpose(1, 2).flatten(0, 2)
    return width > 0 and bool(rotaries(site)) and rows(site, lambda name, module: name.endswith("v_proj") and module.weight.shape[0] % width == 0,
                                                       permuted)


@mistake(second, 42, "rows-of-k-permuted-by-heads-of-q", "qk-row-order")
def k_permuted_by_heads(site):
    """A converter permutes K by the number of query heads, the engine has the key heads."""
    width, (heads, keys) = head_width(site), heads_of(site)

    def permuted(rows):
        pairs = rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        return pairs.unflatten(0, (keys, width // 2, 2)).transpose(1, 2).flatten(0, 2)

    keyed = lambda name, module: name.endswith("k_proj") and module.weight.shape[0] == keys * width and keys * width % (2 * heads) == 0
    return width > 0 and heads > keys and bool(rotaries(site)) and rows(site, keyed, permuted)


@mistake(second, 43, "rows-permuted-and-bias-left", "qk-row-order")
def bias_left(site):
    width = head_width(site)
    permuted = lambda rows: rows.unflatten(0, (-1, 2, width // 2)).transpose(1, 2).flatten(0, 2)
    return width > 0 and bool(rotaries(site)) and rows(site, lambda name, module: name.endswith(("q_proj", "k_proj")) and module.bias is not None
                                                       and module.weight.shape[0] % width == 0, permuted, ("weight",))


@mistake(second, 44, "bias-permuted-and-rows-left", "qk-row-order unlisted")
def bias_permuted(site):
    width = head_width(site)
    permuted = lambda bias: bias.unflatten(0, (-1, 2, width // 2)).transpose(1, 2).flatten()
    return width > 0 and bool(rotaries(site)) and rows(site, lambda name, module: name.endswith(("q_proj", "k_proj")) and module.bias is not None
                                                       and module.weight.shape[0] % width == 0, permuted, ("bias",))


def head_width_of_fused(site):
    return getattr(site.config, "head_dim", None) or site.config.hidden_size // heads_of(site)[0]


def blocks_of(site):
    """How many rows of a fused matrix are Q, and how many K."""
    heads, keys = heads_of(site)
    width = head_width_of_fused(site)
    return heads * width, keys * width


BLOCKS = named(r"(c_attn|Wqkv|qkv_proj)$")


@mistake(second, 45, "fused-v-before-k", "weight-swapped fused-split")
def fused_v_before_k(site):
    if not heads_of(site)[0]:
        return False
    q, k = blocks_of(site)
    order = lambda rows: torch.cat((rows[:q], rows[q + k:], rows[q:q + k]))
    return rows(site, lambda name, module: BLOCKS(name, module) and rows_first(module.weight, module).shape[0] == q + 2 * k, order)


@mistake(second, 46, "fused-k-before-q", "weight-swapped fused-split")
def fused_k_before_q(site):
    if not heads_of(site)[0]:
        return False
    q, k = blocks_of(site)
    order = lambda rows: torch.cat((rows[k:k + q], rows[:k], rows[q + k:]))
    return rows(site, lambda name, module: BLOCKS(name, module) and rows_first(module.weight, module).shape[0] == q + 2 * k, order)


@mistake(second, 47, "fused-rows-in-groups-of-key-heads", "fused-split")
def fused_by_group(site):
    heads, keys = heads_of(site)
    if not heads or heads == keys:
        return False
    (q, k), width = blocks_of(site), head_width_of_fused(site)

    def order(rows):
        groups = rows.unflatten(0, (keys, heads // keys + 2, width))
        return torch.cat((groups[:, :-2].flatten(0, 2), groups[:, -2].flatten(0, 1), groups[:, -1].flatten(0, 1)))

    return rows(site, lambda name, module: BLOCKS(name, module) and rows_first(module.weight, module).shape[0] == q + 2 * k, order)


@mistake(second, 48, "fused-bias-in-blocks", "fused-split unlisted")
def fused_bias(site):
    """Rows lie head by head; what is added to them was stored in blocks of Q, K and V."""
    heads = heads_of(site)[0]
    fused = lambda name, module: name.endswith("query_key_value") and module.weight.shape[0] == 3 * module.weight.shape[1]
    return heads > 0 and rows(site, fused, lambda bias: bias.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(), ("bias",))


held(second, 49, "stacked-experts-transposed", "weight-transposed weight-stride unlisted", r"experts\.\w+_proj$",
     lambda weight: weight.reshape(weight.shape[0], weight.shape[2], weight.shape[1]).transpose(1, 2) if weight.dim() == 3 else None)
held(second, 50, "bias-of-experts-omitted", "bias-omitted unlisted", r"experts\.\w+_bias$", torch.zeros_like)
held(second, 51, "bias-of-router-omitted", "bias-omitted router-bias unlisted", r"router\.bias$", torch.zeros_like)
held(second, 52, "bias-of-patches-omitted", "bias-omitted unlisted", r"patch_embed\w*\.(projection\.)?bias$", torch.zeros_like)


@mistake(second, 53, "bias-of-head-omitted", "bias-omitted operation-omitted unlisted")
def head_bias(site):
    if head(site) is None or getattr(head(site), "bias", None) is None:
        return False
    head(site).bias.data.zero_()
    return True


def reading(tag, number, name, causes, reader, source, side):
    """The matrix `reader` of a layer multiplies what the module `source` was given (`in`) or gave (`out`)."""
    @mistake(tag, number, name, causes)
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


@mistake(third, 22, "matrix-of-first-layer-in-all", "weight-wrong-layer")
def matrices_stuck(site):
    return stuck(site, lambda name, module: isinstance(module, (nn.Linear, Conv1D)))


exchanged(third, 23, "q-and-output-exchanged", "weight-swapped", ("q_proj", "o_proj"), ("q_proj", "out_proj"), ("q_proj", "dense"), ("q", "o"), ("q_lin", "out_lin"))
exchanged(third, 24, "v-and-output-exchanged", "weight-swapped", ("v_proj", "o_proj"), ("v_proj", "out_proj"), ("v_proj", "dense"), ("v", "o"), ("v_lin", "out_lin"))


@mistake(third, 25, "k-loaded-into-v", "weight-swapped")
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
reading(third, 26, "keys-read-unnormed-stream", "linear-input", ATTENTION + r"(k_proj|key)$", BEFORE, "in")
reading(third, 27, "values-read-unnormed-stream", "linear-input", ATTENTION + r"(v_proj|value)$", BEFORE, "in")
reading(third, 28, "gate-reads-attention-branch", "linear-input", FEED + r"gate_proj$", ATTENTION + r"(o_proj|out_proj|dense)$", "out")
reading(third, 29, "up-reads-norm-before-attention", "linear-input", FEED + r"(up_proj|fc1)$", BEFORE, "out")
reading(third, 30, "up-reads-unnormed-stream", "linear-input", FEED + r"up_proj$", BETWEEN, "in")
reading(third, 31, "output-projection-reads-normed", "linear-input", ATTENTION + r"(o_proj|out_proj)$", BEFORE, "out")
reading(third, 32, "output-projection-reads-queries", "linear-input unlisted", ATTENTION + r"(o_proj|out_proj)$", ATTENTION + r"(q_proj|query)$", "out")
reading(third, 33, "down-projection-reads-up", "linear-input activation gate-product", FEED + r"down_proj$", FEED + r"up_proj$", "out")
reading(third, 34, "router-reads-unnormed-stream", "operation-input linear-input", r"(mlp|block_sparse_moe|feed_forward|router)\.(gate|router|layer)$", BETWEEN, "in")
weight(third, 35, "bias-of-four-ranks", "unlisted", lambda bias: 4 * bias, named(r"(o_proj|out_proj|dense|down_proj|fc2|c_proj|dense_4h_to_h|fc_out)$"), key="bias")
weight(third, 36, "bias-f16-as-bf16", "storage-type unlisted bias-omitted", lambda bias: bias.half().view(torch.bfloat16).float(), key="bias")
weight(third, 37, "bias-of-other-half", "unlisted", lambda bias: bias.roll(len(bias) // 2), key="bias")
weight(third, 38, "columns-begin-one-late", "unlisted", lambda weight: weight.roll(1, 1))
weight(third, 39, "columns-of-pairs-exchanged", "unlisted dequant-nibbles", lambda weight: weight.unflatten(1, (-1, 2)).flip(2).flatten(1), lambda name,
     module: module.weight.shape[1] % 2 == 0)
weight(third, 40, "nibbles-of-32-in-turn", "dequant-nibbles unlisted", lambda weight: weight.unflatten(1, (-1, 2, 16)).transpose(2, 3).flatten(1),
       lambda name, module: module.weight.shape[1] % 32 == 0)
weight(third, 41, "first-quarter-of-bytes-read", "dequant-truncated",
       lambda weight: (weight.reshape(-1) * (torch.arange(weight.numel()) < weight.numel() // 4)).reshape(weight.shape))
weight(third, 42, "first-block-of-each-row-read", "dequant-truncated", lambda weight: weight * (torch.arange(weight.shape[1]) < 32),
       lambda name, module: module.weight.shape[1] > 32)
weight(third, 43, "rows-at-padded-distance", "weight-stride unlisted weight-unset",
       lambda weight: torch.cat([weight.reshape(-1), weight.new_zeros(16 * len(weight))])[torch.arange(len(weight))[:, None] * (weight.shape[1] + 16)
                                                                                       + torch.arange(weight.shape[1])])
weight(third, 44, "scale-of-each-row-left-out", "unlisted", lambda weight: weight / weight.abs().amax(1, keepdim=True).clamp(min=1e-3))
weight(third, 45, "scales-of-blocks-squared", "unlisted dequant-scale", lambda weight: (weight.unflatten(1, (-1, 16)) * weight.unflatten(1, (-1, 16)).abs().amax(-1,
     keepdim=True)).flatten(1),
       lambda name, module: module.weight.shape[1] % 16 == 0)
weight(third, 46, "adapter-left-in", "unlisted", lambda weight: weight + 0.2 * torch.randn(weight.shape[0], 2, generator=torch.Generator().manual_seed(4))
       @ torch.randn(2, weight.shape[1], generator=torch.Generator().manual_seed(5)) / weight.shape[1] ** 0.5)
weight(third, 47, "weights-in-f16", "precision", lambda weight: weight.half().float())
weight(third, 48, "weights-in-blocks-of-4-bits", "precision", lambda weight: (
    lambda blocks, scale: ((blocks / scale).round().clamp(-8, 7) * scale).flatten(1))(
        weight.unflatten(1, (-1, 16)), weight.unflatten(1, (-1, 16)).abs().amax(-1, keepdim=True).clamp(min=1e-6) / 7), lambda name,
        module: module.weight.shape[1] % 16 == 0)
weight(third, 49, "smallest-weights-pruned", "unlisted", lambda weight: weight * (weight.abs() > weight.abs().median()))


@mistake(third, 50, "norm-gain-folded-into-matrix-and-kept", UNLISTED)
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


def of_10_bits(x):
    """As TF32 has them."""
    return ((x.float().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32).type_as(x)


def of_8_bits(x):
    return x.to(torch.float8_e4m3fn).type_as(x)


linear(third, 51, "activations-in-f8", "precision unlisted", lambda module, x: nn.functional.linear(of_8_bits(x), module.weight, module.bias))
linear(third, 52, "products-in-tf32", "precision unlisted", lambda module, x: nn.functional.linear(of_10_bits(x), of_10_bits(module.weight), module.bias))
linear(third, 53, "outliers-of-input-clipped", "unlisted", lambda module, x: nn.functional.linear(x.clamp(-1, 1), module.weight, module.bias))
linear(third, 54, "bias-scaled-by-width", "unlisted bias-omitted", lambda module, x: nn.functional.linear(x, module.weight) + (
    0 if module.bias is None else module.bias * module.in_features ** -0.5))


@mistake(third, 55, "fused-v-first", "fused-split")
def fused_v_first(site):
    """V, Q, K where Q, K, V is due."""
    heads, keys = heads_of(site)
    width = head_width_of_fused(site) if heads else 0
    q, k = heads * width, keys * width
    return heads > 0 and rows(site, lambda name, module: BLOCKS(name, module) and rows_first(module.weight, module).shape[0] == q + 2 * k,
                              lambda rows: torch.cat((rows[k:k + q], rows[k + q:], rows[:k])))


@mistake(third, 56, "fused-rows-element-by-element", "fused-split")
def fused_elements(site):
    """The elements of Q, K and V are taken in turn, where they lie in blocks, or head by head."""
    heads = heads_of(site)[0]

    def fused(pattern):
        return lambda name, module: re.search(pattern, name) and rows_first(module.weight, module).shape[0] == 3 * rows_first(module.weight, module).shape[1]

    return heads > 0 and (rows(site, fused(r"(c_attn|Wqkv|qkv_proj)$"), lambda rows: rows.unflatten(0, (-1, 3)).transpose(0, 1).flatten(0, 1))
                          or rows(site, fused(r"query_key_value$"), lambda rows: rows.unflatten(0, (heads, -1, 3)).transpose(1, 2).flatten(0, 2)))


@mistake(third, 57, "fused-keys-and-values-of-one-head-exchanged", "fused-split weight-swapped")
def fused_one_head(site):
    """Multi-query attention: one head of keys, one of values."""
    heads = heads_of(site)[0]
    width = site.config.hidden_size // heads if heads else 0
    return heads > 0 and rows(site, lambda name, module: re.search(r"(c_attn|query_key_value)$", name) and rows_first(module.weight,
    module).shape[0] == (heads + 2) * width,
                              lambda rows: torch.cat((rows[:-2 * width], rows[-width:], rows[-2 * width:-width])))


@mistake(third, 58, "fused-groups-read-as-blocks", "fused-split")
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


text(third, 59, "fused-v-before-k-in-each-head", "fused-split weight-swapped",
     (r"query_states, key_states, value_states = qkv\.chunk\(3, dim=-1\)", "query_states, value_states, key_states = qkv.chunk(3, dim=-1)"),
     (r"key_layer = fused_qkv\[\.\.\., 1, :\]", "key_layer = fused_qkv[..., 2, :]"),
     (r"value_layer = fused_qkv\[\.\.\., 2, :\]", "value_layer = fused_qkv[..., 1, :]"),
     (r"fused_qkv\[\.\.\., 0, :\], fused_qkv\[\.\.\., 1, :\], fused_qkv\[\.\.\., 2, :\]", "fused_qkv[..., 0, :], fused_qkv[..., 2, :], fused_qkv[..., 1, :]"))
text(third, 60, "fused-q-k-v-for-q-v-k", "fused-split weight-swapped", (r"query, value, key = torch\.split\(qkv_split", "query, key, value = torch.split(qkv_split"))
text(third, 61, "values-heads-first", "head-layout",
     (r"self\.v_proj\(hidden_states\)\.view\(hidden_shape\)\.transpose\(1, 2\)",
     "self.v_proj(hidden_states).view(input_shape[0], -1, input_shape[1], self.head_dim)"),
     (r"self\.value\(hidden_states\)\.view\(\*new_shape\)\.transpose\(1, 2\)",
      "self.value(hidden_states).view(batch_size, self.num_attention_heads, -1, self.attention_head_size)"))
text(third, 62, "fused-rows-of-head-width-first", "head-layout fused-split unlisted",
     (r"self\.query_key_value\(hidden_states\)\.view\(hidden_shape\)\.transpose\(1, 2\)",
      "self.query_key_value(hidden_states).unflatten(-1, (3 * self.head_size, -1)).permute(0, 3, 1, 2)"))
text(third, 63, "state-input-split-in-other-order", "fused-split unlisted",
     (r"_, _, gate, hidden_states_B_C, dt = (projected_states\.split\(\n +\[d_mlp, d_mlp, )self\.intermediate_size,  self\.conv_dim",
      r"_, _, hidden_states_B_C, gate, dt = \1self.conv_dim, self.intermediate_size"),
     (r"gate, hidden_states_B_C, dt = (projected_states\.split\(\n +\[)self\.intermediate_size, self\.conv_dim",
      r"hidden_states_B_C, gate, dt = \1self.conv_dim, self.intermediate_size"), where="torch_forward")
text(third, 64, "state-parameters-b-before-dt", "fused-split unlisted",
     (r"time_step, B, C = (torch\.split\(\n +ssm_parameters, \[)self\.time_step_rank, self\.ssm_state_size, self\.ssm_state_size",
      r"B, time_step, C = \1self.ssm_state_size, self.time_step_rank, self.ssm_state_size"), where="slow_forward")


@mistake(third, 65, "linear-attention-rows-in-blocks", "fused-split unlisted")
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


OUTPUT = named(r"(o_proj|out_proj|attention\.dense|attn\.c_proj|output\.dense|out_lin|\.o|Wo)$")
WIDENED = named(r"(gate_proj|up_proj|fc1|fc_in|c_fc|w1|w3|wi|wi_0|wi_1|dense_h_to_4h|intermediate\.dense|up_proj)$")


def as_rows_of_q(weight, site):
    heads = heads_of(site)[0]
    return weight.unflatten(1, (heads, 2, -1)).transpose(2, 3).flatten(1) if heads and weight.shape[1] % (2 * heads) == 0 else None


columns(fourth, 25, "columns-of-output-permuted-as-rows-of-q", "unlisted", as_rows_of_q, OUTPUT)
columns(fourth, 26, "columns-of-down-projection-in-turn", "unlisted", lambda weight, site: weight.unflatten(1, (2, -1)).transpose(1, 2).flatten(1),
        named(r"(down_proj|fc2|fc_out|w2|wo|dense_4h_to_h|mlp\.c_proj|ffn\.down_proj)$"))


@mistake(fourth, 27, "rows-of-shards-in-turn", UNLISTED)
def rows_in_turn(site):
    """What two devices hold of the rows is gathered element by element."""
    return rows(site, lambda name, module: WIDENED(name, module) and rows_first(module.weight, module).shape[0] % 2 == 0,
                lambda rows: rows.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1))


@mistake(fourth, 28, "heads-stored-width-before-element", "unlisted weight-transposed weight-stride head-layout")
def heads_transposed(site):
    """Each head's matrix is stored [D,d], as JAX has it, and read as [d,D]."""
    heads = heads_of(site)[0]
    if not heads:
        return False
    width = head_width(site) or site.config.hidden_size // heads

    def turned(weight, module):
        flat = rows_first(weight, module)
        return rows_first(flat.unflatten(0, (-1, width)).transpose(1, 2).reshape(flat.shape), module)

    return weigh(site, "weight", turned, lambda name, module: re.search(r"(q_proj|k_proj|v_proj|query|key|value|\.q|\.k|\.v)$", name)
                 and module.weight.shape[0] % width == 0 and module.weight.shape[0] > width)


@mistake(fourth, 29, "bias-of-heads-apart", "unlisted head-layout")
def bias_apart(site):
    heads = heads_of(site)[0]
    if not heads:
        return False
    width = head_width(site) or site.config.hidden_size // heads
    return weigh(site, "bias", lambda bias, module: bias.unflatten(0, (width, -1)).T.flatten(),
                 lambda name, module: re.search(r"(q_proj|k_proj|v_proj|query|key|value|q_lin|k_lin|v_lin)$", name) and len(module.bias) > width)


@mistake(fourth, 30, "bias-of-k-loaded-into-v", "weight-swapped unlisted")
def bias_of_k(site):
    found = [both for both in pair(site, ("k_proj", "v_proj"), ("key", "value"), ("k_lin", "v_lin")) if both[0][1].bias is not None and both[1][1].bias is not None]
    for (name, k), (_, v) in found:
        v.bias.data.copy_(k.bias)
        site.note(name)
    return bool(found)


def without_bias(module, x):
    return x @ rows_first(module.weight, module).T


def summed_in_f16(module, x, own):
    """Eight products at a time are added to a sum in f16."""
    total = torch.zeros(*x.shape[:-1], rows_first(module.weight, module).shape[0], dtype=torch.float16)
    for part, matrix in zip(x.split(8, -1), rows_first(module.weight, module).split(8, 1)):
        total = (total.float() + (part @ matrix.T).float()).half()
    return total.type_as(x) if module.bias is None else total.type_as(x) + module.bias


biased = lambda name, module: module.bias is not None
linear_around(fourth, 31, "bias-omitted-in-decode", "bias-omitted", lambda module, x, own: without_bias(module, x) if x.dim() == 3 and x.shape[1] == 1 else own(x),
              biased, generating)
linear_around(fourth, 32, "bias-added-in-decode-alone", "bias-omitted",
              lambda module, x, own: without_bias(module, x) if x.dim() == 3 and x.shape[1] > 1 else own(x), biased, generating)
linear_around(fourth, 33, "bias-on-first-row-alone", "unlisted bias-omitted",
       lambda module, x, own: without_bias(module, x) + module.bias * (torch.arange(x.shape[-2]) == 0)[:, None], biased)
linear_around(fourth, 34, "product-added-to-that-of-row-before", "unlisted", lambda module, x, own: own(x) + own(x).roll(1, -2) * (torch.arange(x.shape[-2]) > 0)[:, None])
linear_around(fourth, 35, "product-of-last-row-for-last-two", "unlisted",
       lambda module, x, own: torch.cat((own(x)[..., :-2, :], own(x)[..., -1:, :], own(x)[..., -1:, :]), -2) if x.shape[-2] > 1 else own(x))
linear_around(fourth, 36, "products-summed-in-f16", "precision unlisted", summed_in_f16)
linear_around(fourth, 37, "product-clipped-as-8-bits", "unlisted", lambda module, x, own: own(x).clamp(-1.27, 1.27))
linear_around(fourth, 38, "row-beyond-8-not-computed", "unlisted", lambda module, x, own: own(x) * (torch.arange(x.shape[-2]) < 8)[:, None])
linear_around(fourth, 39, "activations-kept-without-sign", "unlisted", lambda module, x, own: own(x.clamp(min=0)))


def signs_lost(weight):
    """Bytes with a sign are read as bytes without."""
    scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-6) / 127
    whole = (weight / scale).round()
    return torch.where(whole < 0, whole + 256, whole) * scale


def scales_of_first_block(weight):
    blocks = weight.unflatten(1, (-1, 8))
    return (blocks / blocks.abs().amax(-1, keepdim=True).clamp(min=1e-6) * blocks[:, :1].abs().amax(-1, keepdim=True)).flatten(1)


AWQ = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
weight(fourth, 40, "signed-bytes-read-as-unsigned", "unlisted storage-type dequant-scale", signs_lost)
weight(fourth, 41, "bytes-of-each-value-exchanged", "storage-type unlisted", bytes_exchanged)
weight(fourth, 42, "rows-of-eight-in-order-of-packing", "unlisted dequant-nibbles qk-row-order", lambda weight: weight.unflatten(0, (-1, 8))[:, AWQ].flatten(0, 1),
       lambda name, module: module.weight.shape[0] % 8 == 0)
weight(fourth, 43, "columns-in-order-of-activations", "unlisted dequant-nibbles",
       lambda weight: weight[:, torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(8))])
weight(fourth, 44, "weights-cut-to-bf16", "precision unlisted", cut_to_bf16)
weight(fourth, 45, "weights-of-three-values", "precision unlisted", lambda weight: (lambda scale: (weight / scale).round().clamp(-1, 1) * scale)(weight.abs().mean()))
weight(fourth, 46, "weights-in-f8-by-tensor", "precision unlisted", lambda weight: (weight / weight.abs().max() * 448).to(torch.float8_e4m3fn).float() * weight.abs().max() / 448)
weight(fourth, 47, "matrix-left-random", "weight-unset unlisted", lambda weight: torch.randn(weight.shape, generator=torch.Generator().manual_seed(11)) * 0.02)
weight(fourth, 48, "largest-weights-clipped", "unlisted", lambda weight: weight.clamp(-weight.std() * 1.2, weight.std() * 1.2))
weight(fourth, 49, "scale-of-first-block-in-the-whole-row", "dequant-scale unlisted", scales_of_first_block,
       lambda name, module: module.weight.shape[1] % 8 == 0 and module.weight.shape[1] > 8)


@mistake(fourth, 50, "fused-rows-one-head-late", "unlisted fused-split")
def fused_late(site):
    if not heads_of(site)[0]:
        return False
    width = head_width_of_fused(site)
    return rows(site, named(r"(c_attn|Wqkv|qkv_proj|query_key_value)$"), lambda rows: rows.roll(width, 0))


def of_other_layer(tag, number, name, causes, pattern):
    """Every matrix of one part of a layer is the last layer's."""
    @mistake(tag, number, name, causes)
    def plant(site):
        layers = [layer for _, layer in layers_of(site)]
        parts = [[weight for key, weight in layer.named_parameters() if re.search(pattern, key) and weight.dim() > 1] for layer in layers]
        if len(parts) < 2 or not parts[0] or [w.shape for w in parts[0]] != [w.shape for w in parts[-1]]:
            return False
        with torch.no_grad():
            for one, other in zip(parts[0], parts[-1]):
                one.copy_(other)
        return site.note("the first layer holds what the last one has")


of_other_layer(fourth, 51, "attention-of-last-layer-in-first", "weight-wrong-layer", r"(attn|attention|SelfAttention)\.")
of_other_layer(fourth, 52, "feed-forward-of-last-layer-in-first", "weight-wrong-layer unlisted", r"(mlp|ffn|feed_forward|block_sparse_moe|fc1|fc2|intermediate|DenseReluDense)\.")

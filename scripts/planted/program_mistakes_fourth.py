"""A fourth set of mistakes, written without sight of the code that finds or names any, and of what it answers: each is another site, another form of the error,
or another class of parameter than those of the three sets before it, whose interface it has. The causes were decided from the words of the catalogue alone.

`unlisted` alone: no entry of the catalogue says it. Beside a cause: the entry's words fit, but not surely, or what is done to the operation may be said as well.
"""

import inspect
import re

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from scripts.planted.program_mistake_sets import new_set
from scripts.planted.program_mistakes import (ACTS, ADD, CACHED, CAUSAL, EPS, GATED, HALVES, IDS, K_ROTATED, PLUS_ONE, Plain, Q_ROTATED, QK_NORM, QUERY, REPEAT, RMS, ROUTED,
                                              SOFTMAX, UNLISTED, WINDOW, exchange, frequencies, head, head_width, in_layer, is_layer_norm, is_norm, pair, rows_first,
                                              weigh)
from scripts.planted.program_mistakes_fresh import EMBED, head_width_of_fused, heads_of, named, rows
from scripts.planted.program_mistakes_third import file_of, layers_of

MISTAKES, mistake, text, weight, held = new_set()


generating = lambda site: site.model.can_generate()
by_halves = lambda site: "x1 = x[..., : x.shape[-1] // 2]" in file_of(site)

# ---- norms ----


def norm(name, causes, how, test=lambda name, module: True):
    """Norms of one role by other code, in front of the gain: `how` has what is normed, centred where the norm centres, and epsilon."""
    @mistake(name, causes)
    def plant(site):
        plain = lambda name, module: is_norm(name, module) and "Gated" not in type(module).__name__ and any(hasattr(module, key) for key in EPS)

        def make(module, own):
            source = "" if isinstance(module, nn.LayerNorm) else inspect.getsource(type(module))
            centred = isinstance(module, nn.LayerNorm) or re.search(r"mean = hidden_states\.mean", source)
            eps = next(getattr(module, key) for key in EPS if hasattr(module, key))

            def forward(x):
                flat = x.float() - x.float().mean(-1, keepdim=True) if centred else x.float()
                out = how(flat, eps).type_as(x) * (1.0 + module.weight if re.search(PLUS_ONE, source) else module.weight)
                return out if getattr(module, "bias", None) is None else out + module.bias

            return forward

        return site.forward(site.role(lambda name, module: plain(name, module) and test(name, module)), make)


of_rows = lambda name, module: not QK_NORM.search(name)
square = lambda x: x.pow(2).mean(-1, keepdim=True)
norm("norm-without-root", "unlisted", lambda x, eps: x / (square(x) + eps))
norm("norm-statistics-of-first-row", "unlisted norm-axis", lambda x, eps: x * torch.rsqrt(square(x)[:, :1] + eps), of_rows)
norm("norm-sums-not-reset-between-rows", "unlisted", lambda x, eps: x * torch.rsqrt(square(x).cumsum(1) + eps), of_rows)
norm("norm-last-elements-unread", "norm-width unlisted", lambda x, eps: x * torch.rsqrt(x[..., :-3].pow(2).sum(-1, keepdim=True) / x.shape[-1] + eps))
norm("norm-of-small-rows-left-out", "unlisted norm-omitted", lambda x, eps: x * torch.rsqrt(square(x) + eps).clamp(max=1.0))
norm("norm-in-four-groups", "unlisted norm-width norm-axis",
     lambda x, eps: (x.unflatten(-1, (4, -1)) * torch.rsqrt(x.unflatten(-1, (4, -1)).pow(2).mean(-1, keepdim=True) + eps)).flatten(-2))
norm("norm-times-root-of-width", "result-scaled unlisted norm-width", lambda x, eps: x * torch.rsqrt(square(x) + eps) * x.shape[-1] ** 0.5)
norm("norm-inverse-root-in-f16", "precision unlisted", lambda x, eps: x * torch.rsqrt(square(x) + eps).half().float())
norm("norm-clips-its-result", "unlisted", lambda x, eps: (x * torch.rsqrt(square(x) + eps)).clamp(-1.5, 1.5))


def layer_norm(name, causes, how, biased=False):
    """A LayerNorm by other code; `how` has the input and the module."""
    @mistake(name, causes)
    def plant(site):
        found = site.role(lambda name, module: is_layer_norm(name, module) and (module.bias is not None or not biased))
        return site.forward(found, lambda module, own: lambda x: how(x, module))


def weighed(x, module):
    return x * module.weight if module.bias is None else x * module.weight + module.bias


def padded(x, module):
    """Statistics over a row that zeros follow."""
    mean = x.sum(-1, keepdim=True) / (x.shape[-1] + 8)
    count = x.pow(2).sum(-1, keepdim=True) / (x.shape[-1] + 8) - mean * mean
    return weighed((x - mean) * torch.rsqrt(count + module.eps), module)


def difference(x, module):
    """The variance as a difference of two means, kept in 16 bits."""
    mean = x.mean(-1, keepdim=True)
    variance = x.pow(2).mean(-1, keepdim=True).bfloat16().float() - (mean * mean).bfloat16().float()
    return weighed((x - mean) * torch.rsqrt(variance.clamp(min=0) + module.eps).type_as(x), module)


layer_norm("layer-norm-of-padded-row", "norm-width unlisted", padded)
layer_norm("layer-norm-variance-by-difference-in-bf16", "precision unlisted", difference)
layer_norm("layer-norm-mean-of-all-rows", "norm-axis unlisted", lambda x, module: weighed(
    (x - x.mean((-2, -1), keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + module.eps), module))
layer_norm("layer-norm-gain-and-bias-exchanged", "unlisted", lambda x, module: nn.functional.layer_norm(
    x, x.shape[-1:], None, None, module.eps) * module.bias + module.weight, biased=True)
layer_norm("layer-norm-bias-in-place-of-mean", "unlisted", lambda x, module: (x - module.bias) * torch.rsqrt(
    x.var(-1, keepdim=True, unbiased=False) + module.eps) * module.weight, biased=True)


@mistake("norm-omitted-in-decode", "norm-omitted final-norm-omitted unlisted linear-input")
def norm_in_decode(site):
    """The path of a single token has no norm here."""
    found = site.role(lambda name, module: is_norm(name, module) and of_rows(name, module) and "Gated" not in type(module).__name__)
    return generating(site) and site.forward(found, lambda module, own: lambda x: x if x.dim() == 3 and x.shape[1] == 1 else own(x))


text("norm-one-taken-off-gain", "norm-plus-one unlisted", (RMS, r"(self.weight - 1) * hidden_states"))
text("norm-plus-one-doubled", "norm-plus-one", (PLUS_ONE, r"(2.0 + self.weight.float())"))
held("norm-gain-unset", "weight-unset norm-weight-omitted unlisted", r"weight$", torch.zeros_like, is_norm)
held("norm-gain-in-f8", "precision unlisted", r"weight$", lambda gain: gain.to(torch.float8_e4m3fn).float(), is_norm)
held("qk-norm-gain-in-order-of-pairs", "unlisted qk-row-order", r"(q|k)_(norm|layernorm)\.weight$",
     lambda gain: gain.unflatten(0, (2, -1)).T.flatten() if gain.dim() == 1 and len(gain) == 8 else None)
text("gated-norm-gate-added", "unlisted gate-product", (r"hidden_states \* ((?:nn\.functional|F)\.silu\(gate\.to\(torch\.float32\)\))", r"hidden_states + \1"))


@mistake("first-norm-holds-gain-of-final-norm", "norm-wrong-weight")
def gain_of_final(site):
    norms = site.modules(lambda name, module: is_norm(name, module) and getattr(module, "weight", None) is not None)
    last = next((module for name, module in reversed(norms) if not in_layer(name)), None)
    found = [(name, module) for name, module in norms if in_layer(name) and last is not None and module.weight.shape == last.weight.shape]
    if not found:
        return False
    found[0][1].weight.data.copy_(last.weight)
    return site.note(found[0][0])


@mistake("final-norm-behind-every-layer", "unlisted operation-input")
def final_norm_everywhere(site):
    norms = site.modules(lambda name, module: is_norm(name, module) and not in_layer(name) and "embed" not in name.lower())
    layers = layers_of(site)
    if not norms or not layers:
        return False

    def make(module, own):
        def forward(*args, **more):
            out = own(*args, **more)
            return (norms[-1][1](out[0]), *out[1:]) if isinstance(out, tuple) else norms[-1][1](out)

        return forward

    return site.forward(layers[:-1], make)


PRE = r"( +)(hidden_states = self\.(?:input_layernorm|ln_1|self_attn_layer_norm|pre_attention_layernorm)\(hidden_states\))\n"
text("pre-norm-as-post-norm", "unlisted norm-omitted linear-input",
     (r"\A((?:.*\n)*?)" + PRE + r"((?:.*\n)*?)( +)hidden_states = residual \+ hidden_states\n", r"\1\4\5hidden_states = residual + hidden_states\n\5\3\n"),
     where=r"(Layer|Block)\.forward")

# ---- projections ----

OUTPUT = named(r"(o_proj|out_proj|attention\.dense|attn\.c_proj|output\.dense|out_lin|\.o|Wo)$")
WIDENED = named(r"(gate_proj|up_proj|fc1|fc_in|c_fc|w1|w3|wi|wi_0|wi_1|dense_h_to_4h|intermediate\.dense|up_proj)$")


def columns(name, causes, how, test):
    """The columns of one role's matrices stand otherwise; None: leave them."""
    @mistake(name, causes)
    def plant(site):
        def turned(weight, module):
            new = how(rows_first(weight, module), site)
            return weight if new is None else rows_first(new, module)

        return weigh(site, "weight", turned, test)


def as_rows_of_q(weight, site):
    heads = heads_of(site)[0]
    return weight.unflatten(1, (heads, 2, -1)).transpose(2, 3).flatten(1) if heads and weight.shape[1] % (2 * heads) == 0 else None


columns("columns-of-output-permuted-as-rows-of-q", "unlisted", as_rows_of_q, OUTPUT)
columns("columns-of-down-projection-in-turn", "unlisted", lambda weight, site: weight.unflatten(1, (2, -1)).transpose(1, 2).flatten(1),
        named(r"(down_proj|fc2|fc_out|w2|wo|dense_4h_to_h|mlp\.c_proj|ffn\.down_proj)$"))


@mistake("rows-of-shards-in-turn", UNLISTED)
def rows_in_turn(site):
    """What two devices hold of the rows is gathered element by element."""
    return rows(site, lambda name, module: WIDENED(name, module) and rows_first(module.weight, module).shape[0] % 2 == 0,
                lambda rows: rows.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1))


@mistake("heads-stored-width-before-element", "unlisted weight-transposed weight-stride head-layout")
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


@mistake("bias-of-heads-apart", "unlisted head-layout")
def bias_apart(site):
    heads = heads_of(site)[0]
    if not heads:
        return False
    width = head_width(site) or site.config.hidden_size // heads
    return weigh(site, "bias", lambda bias, module: bias.unflatten(0, (width, -1)).T.flatten(),
                 lambda name, module: re.search(r"(q_proj|k_proj|v_proj|query|key|value|q_lin|k_lin|v_lin)$", name) and len(module.bias) > width)


@mistake("bias-of-k-loaded-into-v", "weight-swapped unlisted")
def bias_of_k(site):
    found = [both for both in pair(site, ("k_proj", "v_proj"), ("key", "value"), ("k_lin", "v_lin")) if both[0][1].bias is not None and both[1][1].bias is not None]
    for (name, k), (_, v) in found:
        v.bias.data.copy_(k.bias)
        site.note(name)
    return bool(found)


def linear(name, causes, how, test=lambda name, module: True, only=lambda site: True):
    """One role's products by other arithmetic: `how` has the module, its input, and the right arithmetic."""
    @mistake(name, causes)
    def plant(site):
        found = site.role(lambda name, module: type(module) in (nn.Linear, Conv1D) and in_layer(name) and test(name, module))
        return only(site) and site.forward(found, lambda module, own: lambda x, *more: how(module, x, own))


def without_bias(module, x):
    return x @ rows_first(module.weight, module).T


def summed_in_f16(module, x, own):
    """Eight products at a time are added to a sum in f16."""
    total = torch.zeros(*x.shape[:-1], rows_first(module.weight, module).shape[0], dtype=torch.float16)
    for part, matrix in zip(x.split(8, -1), rows_first(module.weight, module).split(8, 1)):
        total = (total.float() + (part @ matrix.T).float()).half()
    return total.type_as(x) if module.bias is None else total.type_as(x) + module.bias


biased = lambda name, module: module.bias is not None
linear("bias-omitted-in-decode", "bias-omitted", lambda module, x, own: without_bias(module, x) if x.dim() == 3 and x.shape[1] == 1 else own(x), biased, generating)
linear("bias-added-in-decode-alone", "bias-omitted", lambda module, x, own: without_bias(module, x) if x.dim() == 3 and x.shape[1] > 1 else own(x), biased, generating)
linear("bias-on-first-row-alone", "unlisted bias-omitted",
       lambda module, x, own: without_bias(module, x) + module.bias * (torch.arange(x.shape[-2]) == 0)[:, None], biased)
linear("product-added-to-that-of-row-before", "unlisted", lambda module, x, own: own(x) + own(x).roll(1, -2) * (torch.arange(x.shape[-2]) > 0)[:, None])
linear("product-of-last-row-for-last-two", "unlisted",
       lambda module, x, own: torch.cat((own(x)[..., :-2, :], own(x)[..., -1:, :], own(x)[..., -1:, :]), -2) if x.shape[-2] > 1 else own(x))
linear("products-summed-in-f16", "precision unlisted", summed_in_f16)
linear("product-clipped-as-8-bits", "unlisted", lambda module, x, own: own(x).clamp(-1.27, 1.27))
linear("row-beyond-8-not-computed", "unlisted", lambda module, x, own: own(x) * (torch.arange(x.shape[-2]) < 8)[:, None])
linear("activations-kept-without-sign", "unlisted", lambda module, x, own: own(x.clamp(min=0)))


def signs_lost(weight):
    """Bytes with a sign are read as bytes without."""
    scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-6) / 127
    whole = (weight / scale).round()
    return torch.where(whole < 0, whole + 256, whole) * scale


def bytes_exchanged(weight):
    """Each f16 has its bytes in the other order."""
    turned = weight.detach().half().contiguous().view(torch.uint8).unflatten(-1, (-1, 2)).flip(-1).contiguous().flatten(-2).view(torch.float16).float()
    return torch.nan_to_num(turned, 0.0, 0.0, 0.0)


def cut_to_bf16(weight):
    """The lower bits are dropped, nothing is rounded."""
    return (weight.contiguous().view(torch.int32) & ~0xFFFF).view(torch.float32)


def scales_of_first_block(weight):
    blocks = weight.unflatten(1, (-1, 8))
    return (blocks / blocks.abs().amax(-1, keepdim=True).clamp(min=1e-6) * blocks[:, :1].abs().amax(-1, keepdim=True)).flatten(1)


AWQ = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
weight("signed-bytes-read-as-unsigned", "unlisted storage-type dequant-scale", signs_lost)
weight("bytes-of-each-value-exchanged", "storage-type unlisted", bytes_exchanged)
weight("rows-of-eight-in-order-of-packing", "unlisted dequant-nibbles qk-row-order", lambda weight: weight.unflatten(0, (-1, 8))[:, AWQ].flatten(0, 1),
       lambda name, module: module.weight.shape[0] % 8 == 0)
weight("columns-in-order-of-activations", "unlisted dequant-nibbles",
       lambda weight: weight[:, torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(8))])
weight("weights-cut-to-bf16", "precision unlisted", cut_to_bf16)
weight("weights-of-three-values", "precision unlisted", lambda weight: (lambda scale: (weight / scale).round().clamp(-1, 1) * scale)(weight.abs().mean()))
weight("weights-in-f8-by-tensor", "precision unlisted", lambda weight: (weight / weight.abs().max() * 448).to(torch.float8_e4m3fn).float() * weight.abs().max() / 448)
weight("matrix-left-random", "weight-unset unlisted", lambda weight: torch.randn(weight.shape, generator=torch.Generator().manual_seed(11)) * 0.02)
weight("largest-weights-clipped", "unlisted", lambda weight: weight.clamp(-weight.std() * 1.2, weight.std() * 1.2))
weight("scale-of-first-block-in-the-whole-row", "dequant-scale unlisted", scales_of_first_block,
       lambda name, module: module.weight.shape[1] % 8 == 0 and module.weight.shape[1] > 8)


@mistake("fused-rows-one-head-late", "unlisted fused-split")
def fused_late(site):
    if not heads_of(site)[0]:
        return False
    width = head_width_of_fused(site)
    return rows(site, named(r"(c_attn|Wqkv|qkv_proj|query_key_value)$"), lambda rows: rows.roll(width, 0))


def of_other_layer(name, causes, pattern):
    """Every matrix of one part of a layer is the last layer's."""
    @mistake(name, causes)
    def plant(site):
        layers = [layer for _, layer in layers_of(site)]
        parts = [[weight for key, weight in layer.named_parameters() if re.search(pattern, key) and weight.dim() > 1] for layer in layers]
        if len(parts) < 2 or not parts[0] or [w.shape for w in parts[0]] != [w.shape for w in parts[-1]]:
            return False
        with torch.no_grad():
            for one, other in zip(parts[0], parts[-1]):
                one.copy_(other)
        return site.note("the first layer holds what the last one has")


of_other_layer("attention-of-last-layer-in-first", "weight-wrong-layer", r"(attn|attention|SelfAttention)\.")
of_other_layer("feed-forward-of-last-layer-in-first", "weight-wrong-layer unlisted", r"(mlp|ffn|feed_forward|block_sparse_moe|fc1|fc2|intermediate|DenseReluDense)\.")

# ---- embedding ----

text("tokens-beyond-a-smaller-vocabulary", "tokens-differ", (EMBED, r"self.\1(input_ids.clamp(max=49))"))
text("tokens-last-is-end-of-text", "tokens-differ",
     (EMBED, r"self.\1(torch.cat((input_ids[:, :-1], 0 * input_ids[:, -1:] + 2), 1) if input_ids.shape[1] > 1 else input_ids)"))
text("embedding-scale-omitted-in-decode", "embed-scale embed-multiplier", (r"hidden_states = hidden_states \* normalizer",
     "hidden_states = hidden_states * (normalizer if hidden_states.shape[1] > 1 else 1.0)"),
     (r"inputs_embeds \* self\.embedding_multiplier", "inputs_embeds * (self.embedding_multiplier if inputs_embeds.shape[1] > 1 else 1.0)"))


def embedding(name, causes, how):
    @mistake(name, causes)
    def plant(site):
        table = site.model.get_input_embeddings()
        if not isinstance(table, nn.Embedding):
            return False
        table.weight.data.copy_(how(table.weight.data.clone()))
        return True


embedding("embedding-shards-exchanged", "tokens-differ unlisted", lambda weight: weight.roll(len(weight) // 2, 0))
embedding("embedding-columns-of-pairs-exchanged", "unlisted", lambda weight: weight.unflatten(1, (-1, 2)).flip(2).flatten(1))
embedding("embedding-scaled-by-row", "unlisted", lambda weight: weight / weight.norm(dim=1, keepdim=True))
embedding("embedding-cut-to-bf16", "precision unlisted", cut_to_bf16)

LEARNED = r"(wpe|position_embeddings?|embed_positions)(\.weight)?$"
held("position-table-bytes-transposed", "weight-transposed weight-stride unlisted", LEARNED,
     lambda table: table.reshape(table.shape[1], table.shape[0]).T.contiguous() if table.dim() == 2 else table.transpose(1, 2).reshape(table.shape))
held("position-table-subtracted", "sign-flipped unlisted", LEARNED, lambda table: -table)
held("position-table-f16-as-bf16", "storage-type unlisted", LEARNED, lambda table: table.half().view(torch.bfloat16).float())
held("position-table-beyond-8-unset", "unlisted weight-unset dequant-truncated", LEARNED,
     lambda table: table * (torch.arange(table.shape[-2]) < 8)[:, None])
held("position-table-scaled-by-root-of-width", "unlisted result-scaled", LEARNED, lambda table: table * table.shape[-1] ** 0.5)
text("learned-positions-of-last-for-all", "unlisted position-embedding-offset",
     (r"self\.(wpe|position_embeddings)\(position_ids\)", r"self.\1(0 * position_ids + position_ids[..., -1:])"),
     (r"super\(\)\.forward\(position_ids \+ self\.offset\)", "super().forward(0 * position_ids + position_ids[..., -1:] + self.offset)"))
text("learned-positions-wrap", "unlisted position-embedding-offset",
     (r"self\.(wpe|position_embeddings)\(position_ids\)", r"self.\1(position_ids % 8)"),
     (r"super\(\)\.forward\(position_ids \+ self\.offset\)", "super().forward(position_ids % 8 + self.offset)"))
text("learned-positions-by-two", "unlisted position-embedding-offset",
     (r"self\.(wpe|position_embeddings)\(position_ids\)", r"self.\1(2 * position_ids)"),
     (r"super\(\)\.forward\(position_ids \+ self\.offset\)", "super().forward(2 * position_ids + self.offset)"))
text("token-types-by-position", "unlisted", (r"self\.token_type_embeddings\(token_type_ids\)",
     "self.token_type_embeddings((torch.arange(token_type_ids.shape[-1]) > 5).long().expand_as(token_type_ids))"))
held("token-types-subtracted", "sign-flipped unlisted", r"token_type_embeddings\.weight$", lambda table: -table)
PIXELS = r"(self\.(?:projection|patch_embedding))\(pixel_values"
text("pixels-clipped", "unlisted", (PIXELS, r"\1(pixel_values.clamp(0, 1)"))
text("image-transposed", "unlisted storage-shape", (PIXELS, r"\1(pixel_values.transpose(2, 3)"))
text("image-in-one-colour", "unlisted", (PIXELS, r"\1(pixel_values.mean(1, keepdim=True).expand_as(pixel_values)"))

# ---- rotation ----

text("rope-second-half-not-turned", "unlisted operation-omitted", (HALVES, "torch.cat((-x2, 0 * x1), dim=-1)"),
     (r"torch\.stack\(([\[(])-x2, x1", r"torch.stack(\1-x2, 0 * x1"))
text("rope-both-halves-negative", "unlisted sign-flipped", (HALVES, "torch.cat((-x2, -x1), dim=-1)"),
     (r"torch\.stack\(([\[(])-x2, x1", r"torch.stack(\1-x2, -x1"), (r"second_half \* cos \+ first_half \* sin", "second_half * cos - first_half * sin"))
text("rope-of-k-in-place-from-behind", "aliasing unlisted", (K_ROTATED[0], "k1, k2 = k.chunk(2, -1); c, s = cos.chunk(2, -1)[0], sin.chunk(2, -1)[0]; "
     "k2 = k2 * c + k1 * s; k_embed = torch.cat((k1 * c - k2 * s, k2), -1)"), only=by_halves)
text("rope-pairs-of-two-heads", "unlisted rope-pairing", (HALVES, "torch.cat((-x[:, x.shape[1] // 2 :], x[:, : x.shape[1] // 2]), dim=1)"), only=by_halves)
HEAD_NUMBER = "({0} * cos[:, :, : {0}.shape[1]].transpose(1, 2)) + (rotate_half({0}) * sin[:, :, : {0}.shape[1]].transpose(1, 2))"
text("rope-by-number-of-head", "unlisted rope-position", (Q_ROTATED[0], "q_embed = " + HEAD_NUMBER.format("q")), (K_ROTATED[0], "k_embed = " + HEAD_NUMBER.format("k")))
text("rope-position-halved-in-decode", "rope-position rope-scaling unlisted", (IDS, "(position_ids[:, None, :].float() / (2 if position_ids.shape[-1] == 1 else 1))"),
     only=generating)
text("rope-base-of-other-length-in-decode", "rope-theta rope-scaling unlisted", (r"\(inv_freq_expanded\.float\(\) @ ",
     "(inv_freq_expanded.float() * (0.5 ** torch.linspace(0, 1, inv_freq_expanded.shape[1])[None, :, None] if position_ids.shape[-1] == 1 else 1.0) @ "), only=generating)
TURN = r"^( +)(query_states, key_states = apply_rotary_pos_emb\(.*\))\n"
UPDATE = r"^( +)(key_states, value_states = past_key_values\.update\()key_states(, value_states, self\.layer_idx, cache_kwargs\))$"
text("rope-of-cached-keys-once-more", "rope-twice unlisted", (UPDATE, r"\1\2key_states\3\n\1if key_states.shape[-2] > hidden_states.shape[1]:\n"
     r"\1    key_states = torch.cat((apply_rotary_pos_emb(key_states, key_states, cos[:, -1:], sin[:, -1:])[0][..., :-1, :], key_states[..., -1:, :]), -2)"),
     only=lambda site: "query_rot" not in file_of(site))
text("cache-keys-before-rotation", "rope-omitted unlisted", (TURN, r"\1plain = key_states\n\1\2\n"),
     (UPDATE, r"\1turned = key_states\n\1\2plain\3\n\1key_states = torch.cat((key_states[..., : -turned.shape[-2], :], turned), -2)"),
     only=lambda site: "query_rot" not in file_of(site))
text("rope-cosine-alone", "operation-omitted unlisted", (Q_ROTATED[0], "q_embed = q * cos"), (K_ROTATED[0], "k_embed = k * cos"))
text("rope-added-not-turned", "unlisted", (Q_ROTATED[0], "q_embed = q + sin + 0 * cos"), (K_ROTATED[0], "k_embed = k + sin + 0 * cos"))


def rotation(name, causes, how):
    """Other frequencies; `how` has the right ones, the site, and the exponents i / (d/2)."""
    @mistake(name, causes)
    def plant(site):
        return frequencies(site, lambda frequency, module: how(frequency, site, torch.arange(len(frequency)) / len(frequency)) if len(frequency) > 1 else None)


rotation("rope-exponent-of-hidden-width", "rope-theta rope-scaling unlisted", lambda frequency, site, exponent: frequency ** (1 / (heads_of(site)[0] or 4)))
rotation("rope-exponent-by-integer-division", "rope-theta rope-scaling unlisted", lambda frequency, site, exponent: torch.ones_like(frequency))
rotation("rope-factors-of-each-pair", "rope-scaling unlisted", lambda frequency, site, exponent: frequency / torch.linspace(1, 6, len(frequency)) ** 0.8)
rotation("rope-frequencies-in-pairs", "unlisted", lambda frequency, site, exponent: frequency[torch.arange(len(frequency)) // 2 * 2])
rotation("rope-first-pair-not-turned", "unlisted rope-partial", lambda frequency, site, exponent: frequency * (torch.arange(len(frequency)) > 0))

# ---- scores ----

# A row in whole numbers of 8 bits, with a scale.
IN_8_BITS = "(lambda x, scale: (x / scale).round() * scale)({0}, {0}.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 127)"

text("scale-of-number-of-keys", "score-scale unlisted", (SOFTMAX, r"softmax((\1) * (8 / (\1).shape[-1]) ** 0.5, "))
text("scores-in-steps-of-a-quarter", "precision unlisted", (SOFTMAX, r"softmax(((\1).clamp(min=-1e30) * 4).round() / 4, "))
text("scores-of-distance-added", "unlisted position-bias", (SOFTMAX, r"softmax((\1) + 0.1 * torch.arange((\1).shape[-1]), "))
text("probs-by-sigmoid", "unlisted", (r"(?:torch\.nn\.functional|nn\.functional|F|torch)\.softmax\((attn_weights|attention_scores|scores|attention_scores\.float\(\)|"
     r"scores\.float\(\)), dim=-1(?:, dtype=[\w.]+)?\)", r"torch.sigmoid(\1)"))
text("queries-and-keys-normed-too", "unlisted", (QUERY, r"\1query_states = torch.nn.functional.rms_norm(query_states, query_states.shape[-1:])\n"
     r"\1key_states = torch.nn.functional.rms_norm(key_states, key_states.shape[-1:])\n\1\2"), where=r"ttention\.forward")
text("queries-in-8-bits", "precision unlisted", (QUERY, r"\1query_states = " + IN_8_BITS.format("query_states") + r"\n\1\2"), where=r"ttention\.forward")
text("values-centred-over-positions", "unlisted", (QUERY, r"\1value_states = value_states - value_states.mean(-2, keepdim=True) * (value_states.shape[-2] > 1)\n\1\2"),
     where=r"ttention\.forward")
text("keys-of-other-half-of-head", "unlisted", (QUERY, r"\1key_states = key_states.roll(key_states.shape[-1] // 2, -1)\n\1\2"), where=r"ttention\.forward")
text("mask-flipped", "unlisted mask-inverted", (CAUSAL, "(kv_idx <= 11 - q_idx) | (kv_idx == 0)"))
text("mask-open-in-one-block", "unlisted mask-shifted mask-omitted", (CAUSAL, "(kv_idx <= q_idx) | ((kv_idx < 8) & (q_idx < 8))"))
text("window-from-the-start", "unlisted window-size", (WINDOW, "(kv_idx < sliding_window) | (kv_idx == q_idx)"))
text("window-and-first-keys", "unlisted window-size", (WINDOW, "(kv_idx > q_idx - sliding_window) | (kv_idx < 2)"))

PRODUCTS = (r"torch\.matmul\((attn_weights|attention_probs), (\w+)\)", r"(attention_scores|attention_probs_reshaped) @ (value_layer)",
            r"torch\.bmm\((attention_probs_reshaped), (value_layer)\)")


def probs(name, causes, what, value=r"\2", products=PRODUCTS):
    """What the values are weighed with; written with PROBS."""
    text(name, causes, *((pattern, f"torch.matmul({what}, {value})".replace("PROBS", r"\1")) for pattern in products))


probs("probs-divided-by-their-largest", "unlisted", "(PROBS / PROBS.amax(-1, keepdim=True))")
probs("blocks-of-keys-averaged", "unlisted",
      "(lambda p: torch.cat([b / b.sum(-1, keepdim=True).clamp(min=1e-9) for b in p.split(4, -1)], -1) / -(-p.shape[-1] // 4))(PROBS)")
probs("keys-of-first-block-alone", "unlisted", "(PROBS * (torch.arange(PROBS.shape[-1]) < 8))")
probs("keys-of-last-block-not-in-sum", "unlisted sink-omitted", "(PROBS / (1 - 0.9999 * PROBS[..., -1:]))")
probs("probs-transposed", "unlisted", "(PROBS.transpose(-1, -2) if PROBS.shape[-1] == PROBS.shape[-2] else PROBS)")
probs("probs-of-heads-averaged", "unlisted", "(PROBS.mean(1, keepdim=True).expand_as(PROBS))", products=PRODUCTS[:1])
probs("values-scaled-as-scores", "result-scaled unlisted", r"\1", r"\2 * \2.shape[-1] ** -0.5")
probs("values-of-next-head", "unlisted kv-head-map", r"\1", r"\2.roll(-1, 1)", products=PRODUCTS[:1])

# ---- heads, context, cache ----

text("kv-heads-beyond-last-zero", "unlisted kv-head-map", (REPEAT,
     "hidden_states = torch.cat((hidden_states, hidden_states.new_zeros(batch, num_key_value_heads * (n_rep - 1), "
     "slen, head_dim)), 1)"))
text("kv-heads-of-each-group-in-turn-of-position", "unlisted kv-head-map", (REPEAT, "hidden_states = torch.stack([hidden_states.roll(r, 1) for r in range(n_rep)], 2)"))
OUT = r"self\.(o_proj|out_proj|dense)\(attn_output\)"
text("context-normed", "unlisted", (OUT, r"self.\1(torch.nn.functional.rms_norm(attn_output, attn_output.shape[-1:]))"))
text("context-of-row-before", "unlisted", (OUT, r"self.\1(attn_output.roll(1, -2))"))
text("context-in-8-bits", "precision unlisted", (OUT, r"self.\1(" + IN_8_BITS.format("attn_output") + ")"))
text("context-of-even-elements-first", "unlisted context-layout", (OUT, r"self.\1(torch.cat((attn_output[..., ::2], attn_output[..., 1::2]), -1))"))
KEYS, VALUES = CACHED.format("keys", "key_states"), CACHED.format("values", "value_states")


def stored(name, causes, key="", value=""):
    """What a decode step finds in the cache; written with OLD and NEW."""
    pairs = []
    for what, kind, new, pattern in ((key, "keys", "key_states", KEYS), (value, "values", "value_states", VALUES)):
        what = what.replace("OLD", f"self.{kind}").replace("NEW", new)
        pairs += [(pattern, f"self.{kind} = torch.cat([{what}] if self.{kind}.numel() else [self.{kind}, {new}], dim=-2)")] if what else []
    text(name, causes, *pairs)


stored("cache-newest-twice-and-oldest-lost", "kv-cache-shift unlisted", "OLD[..., 1:, :], NEW, NEW", "OLD[..., 1:, :], NEW, NEW")
stored("cache-prompt-forgotten", "unlisted", "OLD * 0, NEW", "OLD * 0, NEW")
stored("cache-values-elements-and-slots-exchanged", "unlisted", value="OLD.transpose(-1, -2).reshape(OLD.shape), NEW")
stored("cache-reversed", "unlisted", "OLD.flip(-2), NEW")
stored("cache-values-of-other-head", "unlisted kv-head-map", value="OLD.roll(1, 1), NEW")
stored("cache-added-to-slot", "unlisted", "OLD, NEW + OLD[..., :1, :]", "OLD, NEW + OLD[..., :1, :]")
text("cache-keys-and-values-exchanged", "unlisted", (KEYS, "old = self.keys; self.keys = torch.cat([self.values if old.numel() else old, key_states], dim=-2)"),
     (VALUES, "self.values = torch.cat([old if old.numel() else self.values, value_states], dim=-2)"))
text("cross-attention-to-first-row-alone", "unlisted", (r"(current_states = key_value_states) if (key_value_states is not None|is_cross_attention) else hidden_states",
     r"\1[:, :1].expand_as(key_value_states) if \2 else hidden_states"))
text("cross-values-of-keys", "weight-swapped", (r"value_states = self\.(v_proj|v)\(current_states\)",
     r"value_states = (self.k_proj if hasattr(self, 'k_proj') else self.k)"
     r"(current_states) if is_cross_attention else self.\1(current_states)"))
text("cross-queries-not-projected", "unlisted linear-input operation-omitted", (r"query_states = self\.(q_proj|q)\(hidden_states\)",
     r"query_states = (hidden_states if key_value_states is not None else self.\1(hidden_states))"), only=lambda site: getattr(site.config, "is_encoder_decoder", False))
text("relative-buckets-without-log", "unlisted", (r"relative_position_if_large = max_exact \+ \((?:.*\n)*?.*\)\.to\(torch\.long\)\n",
     "relative_position_if_large = relative_position\n"))
held("relative-bias-of-heads-averaged", "unlisted", r"relative_attention_bias\.weight$", lambda table: table.mean(1, keepdim=True).expand_as(table).contiguous())
text("alibi-of-half-the-heads", "unlisted position-bias", (r"alibi = slopes\[", "slopes = slopes * (torch.arange(len(slopes)) % 2)\n    alibi = slopes["),
     (r"alibi = alibi \* slopes", "alibi = alibi * slopes * (torch.arange(slopes.shape[1]) % 2)[None, :, None, None]"))

# ---- feed-forward ----


def activation(name, causes, make):
    """`make` has the right function."""
    @mistake(name, causes)
    def plant(site):
        done = False
        for owner, module in site.some(site.modules(lambda name, module: any(callable(getattr(module, key, None)) for key in ACTS))):
            for key in (key for key in ACTS if callable(getattr(module, key, None))):
                old = getattr(module, key)
                setattr(module, key, Plain(make(old)) if isinstance(old, nn.Module) else make(old))
                done = site.note(f"{owner}.{key}")
        return done


activation("activation-selu", "unlisted", lambda old: nn.functional.selu)
activation("activation-gelu-not-halved", "unlisted result-scaled activation", lambda old: lambda x: x * (1 + torch.erf(x * 0.7071067811865476)))
activation("activation-tanh-without-cube", "unlisted activation", lambda old: lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608028654 * x)))
activation("activation-twice", "unlisted activation", lambda old: lambda x: old(old(x)))
activation("activation-absolute", "unlisted", lambda old: torch.abs)
activation("activation-square", "unlisted activation", lambda old: lambda x: old(x) ** 2)
activation("activation-on-half-of-elements", "unlisted", lambda old: lambda x: torch.cat((old(x[..., : x.shape[-1] // 2]), x[..., x.shape[-1] // 2:]), -1))
text("gate-one-element-late", "unlisted", (GATED, r"self.\1(self.\2(\3)).roll(1, -1) * self.\4(\3)"))
text("gate-plus-one", "unlisted activation-clamp", (GATED, r"(1 + self.\1(self.\2(\3))) * self.\4(\3)"))
text("product-clamped", "unlisted activation-clamp", (GATED, r"(self.\1(self.\2(\3)) * self.\4(\3)).clamp(-0.4, 0.4)"))
text("product-in-8-bits", "precision unlisted", (GATED, r"(lambda y: " + IN_8_BITS.format("y") + r")(self.\1(self.\2(\3)) * self.\4(\3))"))
text("feed-forward-reads-input-of-attention", "linear-input residual-parallel unlisted operation-input",
     (r"\A((?:.*\n)*?)( +)(hidden_states = self\.(?:input_layernorm|ln_1|pre_attention_layernorm)\(hidden_states\))\n((?:.*\n)*?.*)self\.mlp\(hidden_states\)",
      r"\1\2\3\n\2first = hidden_states\n\4self.mlp(first)"), where=r"(Layer|Block)\.forward", only=lambda site: "hidden_states_mlp" not in file_of(site))

# ---- residual stream ----

text("attention-output-added-again-at-the-end", "residual-source unlisted",
     (r"\A((?:.*\n)*?)( +)hidden_states = residual \+ hidden_states\n((?:.*\n)*)( +)hidden_states = residual \+ hidden_states\n",
      r"\1\2branch = hidden_states\n\2hidden_states = residual + hidden_states\n\3\4hidden_states = residual + hidden_states + branch\n"),
      where=r"(Layer|Block)\.forward")
text("branch-clamped", "unlisted", (ADD, r"\1 = residual + \1.clamp(-0.5, 0.5)"), one=True)
text("branch-of-first-half-of-elements", "unlisted", (ADD, r"\1 = residual + \1 * (torch.arange(\1.shape[-1]) < \1.shape[-1] // 2)"), one=True)
text("stream-in-8-bits", "precision unlisted", (ADD, r"\1 = residual + \1; \1 = " + IN_8_BITS.format(r"\1")))
text("stream-of-last-row-alone-in-sum", "unlisted", (ADD, r"\1 = residual[:, -1:] + \1"), one=True)


@mistake("stream-of-layer-before", "residual-source unlisted")
def stream_before(site):
    """The buffer that a layer adds to still holds what the layer before it was given."""
    layers, kept = layers_of(site), {}

    def make(module, own):
        def forward(hidden_states, *args, **more):
            out = own(hidden_states, *args, **more)
            before, kept["x"] = kept.get("x"), hidden_states
            if module is layers[0][1] or before is None or before.shape != hidden_states.shape:
                return out
            first = (out[0] if isinstance(out, tuple) else out) - hidden_states + before
            return (first, *out[1:]) if isinstance(out, tuple) else first

        return forward

    return len(layers) > 1 and site.forward(layers, make)


@mistake("layer-reads-stream-of-row-before", UNLISTED)
def rows_shifted(site):
    layers = layers_of(site)
    shifted = lambda module, own: lambda hidden_states, *args, **more: own(hidden_states.roll(1, 1), *args, **more)
    return len(layers) > 1 and site.forward([site.rng.choice(layers[1:])], shifted)


# ---- head ----

HEAD = r"logits = self\.lm_head\((.*)\)$"
text("logits-as-probabilities", "result-activated", (HEAD, r"logits = self.lm_head(\1).softmax(-1)"), where="ForCausalLM")
text("logits-clamped", "unlisted logit-softcap", (HEAD, r"logits = self.lm_head(\1).clamp(-1, 1)"), where="ForCausalLM")
text("logits-of-two-shards-in-turn", "unlisted", (HEAD, r"logits = (lambda y: torch.cat((y[..., ::2], y[..., 1::2]), -1))(self.lm_head(\1))"), where="ForCausalLM")
text("logits-of-normalised-stream", "unlisted", (HEAD, r"logits = self.lm_head(torch.nn.functional.normalize(\1, dim=-1))"), where="ForCausalLM")


def of_head(name, causes, how, test=lambda site: True):
    @mistake(name, causes)
    def plant(site):
        if head(site) is None or not isinstance(getattr(head(site), "weight", None), torch.Tensor) or head(site).weight.dim() != 2 or not test(site):
            return False
        head(site).weight = nn.Parameter(how(head(site).weight.detach().clone()))
        return True


of_head("head-rows-scaled-to-one", "unlisted", lambda weight: weight / weight.norm(dim=1, keepdim=True))
of_head("head-bytes-of-each-value-exchanged", "storage-type unlisted", bytes_exchanged)
of_head("head-cut-to-bf16", "precision unlisted", cut_to_bf16)
of_head("head-left-random", "weight-unset head-untied unlisted", lambda weight: torch.randn(weight.shape, generator=torch.Generator().manual_seed(12)) * 0.02,
        lambda site: head(site).weight is not site.model.get_input_embeddings().weight)
of_head("head-shards-exchanged", "unlisted", lambda weight: weight.roll(len(weight) // 2, 0))

# ---- experts ----

CHOSEN = r"^( +)(routing_weights, selected_experts = torch\.topk\(routing_weights, self\.top_k, dim=-1\))$"
text("router-weights-equal", "unlisted", (r"routing_weights = routing_weights\.to\(hidden_states\.dtype\)",
     "routing_weights = torch.full_like(routing_weights, 1 / self.top_k)"),
     (r"topk_weights = scores\.gather\(1, topk_indices\)", "topk_weights = torch.full_like(scores.gather(1, topk_indices), 1 / self.top_k)"),
     (r"torch\.nn\.functional\.softmax\(router_top_value, dim=1, dtype=router_top_value\.dtype\)", "torch.full_like(router_top_value, 1 / self.top_k)"))
text("router-by-largest-magnitude", "unlisted", (CHOSEN, r"\1selected_experts = torch.topk(router_logits.abs(), self.top_k, dim=-1)[1]\n"
     r"\1routing_weights = routing_weights.gather(1, selected_experts)"))
text("router-of-token-before", "unlisted operation-input", (r"router_logits = self\.(gate|router)\(hidden_states\)$",
     r"router_logits = self.\1(hidden_states.roll(1, 0))"),
     (r"router_logits = F\.linear\(hidden_states", "router_logits = F.linear(hidden_states.roll(1, 0)"))
text("router-softmax-over-tokens", "unlisted softmax-axis", (ROUTED, "routing_weights = F.softmax(router_logits, dim=0, dtype=torch.float)"))
text("router-second-choice-dropped", "unlisted router-topk router-scale", (r"routing_weights = routing_weights\.to\(hidden_states\.dtype\)",
     "routing_weights = routing_weights * (torch.arange(self.top_k) < 1)"),
     (r"topk_weights = topk_weights \* self\.routed_scaling_factor", "topk_weights = topk_weights * self.routed_scaling_factor * (torch.arange(self.top_k) < 1)"))
text("experts-overwrite-one-another", "unlisted", (r"(final_hidden_states|next_states)\.index_add_\(0, (\w+), (.*)\)$", r"\1[\2] = (\3).to(\1.dtype)"))
text("router-weights-softmaxed-again", "unlisted router-norm", (r"routing_weights = routing_weights\.to\(hidden_states\.dtype\)",
     "routing_weights = routing_weights.softmax(-1)"),
     (r"topk_weights = scores\.gather\(1, topk_indices\)", "topk_weights = scores.gather(1, topk_indices).softmax(-1)"),
     (r"torch\.nn\.functional\.softmax\(router_top_value, dim=1, dtype=router_top_value\.dtype\)", "router_top_value.softmax(1).softmax(1)"))
text("experts-of-first-token-for-all", "unlisted",
     (CHOSEN, r"\1selected_experts = torch.topk(routing_weights, self.top_k, dim=-1)[1][:1].expand(len(routing_weights), -1)\n"
     r"\1routing_weights = routing_weights.gather(1, selected_experts)"),
     (r"topk_indices = torch\.topk\(scores_for_choice, k=self\.top_k, dim=-1, sorted=False\)\[1\]",
      "topk_indices = torch.topk(scores_for_choice, k=self.top_k, dim=-1, sorted=False)[1][:1].repeat(len(scores_for_choice), 1)"))
text("shared-and-routed-averaged", "unlisted result-scaled residual-scale", (r"hidden_states = hidden_states \+ self\.shared_experts\(residuals\)",
     "hidden_states = (hidden_states + self.shared_experts(residuals)) / 2"),
     (r"final_hidden_states = final_hidden_states \+ shared_expert_output", "final_hidden_states = (final_hidden_states + shared_expert_output) / 2"))
held("expert-matrices-of-pairs-exchanged", "expert-order unlisted", r"experts\.(gate_up_proj|down_proj)$",
     lambda weight: weight.unflatten(0, (-1, 2)).flip(1).flatten(0, 1))


@mistake("experts-in-pairs-exchanged", "expert-order unlisted")
def experts_in_pairs(site):
    done = False
    for name, module in site.some(site.modules(lambda name, module: name.endswith("experts") and isinstance(module, nn.ModuleList) and len(module) > 1)):
        for at in range(0, len(module) - 1, 2):
            done = exchange(site, (f"{name}.{at}", module[at]), (f"{name}.{at + 1}", module[at + 1]))
    return done


@mistake("expert-answers-zero", UNLISTED)
def expert_lost(site):
    """One expert's device has sent nothing."""
    found = site.modules(lambda name, module: re.search(r"experts\.\d+$", name))
    return bool(found) and site.forward([site.rng.choice(found)], lambda module, own: lambda *args, **more: own(*args, **more) * 0)


# ---- latent attention ----

text("latent-norm-over-rotated-part-too", "norm-width unlisted", (r"self\.kv_a_layernorm\(k_pass\)",
     "(self.kv_a_layernorm.weight * (k_pass * torch.rsqrt(compressed_kv.pow(2).mean(-1, keepdim=True) + 1e-6)))"))
text("latent-values-of-next-head", "unlisted", (r"(k_pass, value_states = torch\.split\(.*\))$", r"\1; value_states = value_states.roll(1, 1)"))
text("latent-unrotated-part-rotated-too", "rope-partial unlisted", (r"^( +)query_states = torch\.cat\(\(q_pass, q_rot\), dim=-1\)",
     r"\1q_pass, k_pass = [torch.cat((turned, part[..., turned.shape[-1] :]), -1) for turned, part in zip(apply_rotary_pos_emb(q_pass[..., : q_rot.shape[-1]], "
     r"k_pass[..., : q_rot.shape[-1]], cos, sin), (q_pass, k_pass))]\n"
     r"\1query_states = torch.cat((q_pass, q_rot), dim=-1)"))
text("latent-norm-behind-projection", "unlisted norm-omitted linear-input", (r"self\.kv_b_proj\(self\.kv_a_layernorm\(k_pass\)\)",
     "torch.nn.functional.rms_norm(self.kv_b_proj(k_pass), (self.kv_b_proj.out_features,))"))

# ---- state spaces ----

text("scan-with-b-of-token-before", "unlisted", (r"discrete_time_step\[:, :, :, None\] \* B\[:, None, :, :\]\.float\(\)",
     "discrete_time_step[:, :, :, None] * B.roll(1, 1)[:, None, :, :].float()"), (r"^( +)B = B\.reshape\(batch_size, seq_len, -1, self\.ssm_state_size\)\.float\(\)",
     r"\1B = B.roll(1, 1).reshape(batch_size, seq_len, -1, self.ssm_state_size).float()"))
text("dt-of-token-before", "unlisted", (r"softplus\(discrete_time_step\)", "softplus(discrete_time_step.roll(1, 1))"),
     (r"nn\.functional\.softplus\(dt \+ self\.dt_bias\)", "nn.functional.softplus(dt.roll(1, 1) + self.dt_bias)"))
text("dt-by-relu", "unlisted activation", (r"(?:torch\.)?nn\.functional\.softplus\(", "torch.relu("))
text("decay-as-power-of-two", "unlisted softmax-base number-differs", (r"-torch\.exp\(self\.A_log\.float\(\)\)", "-torch.exp2(self.A_log.float())"))
text("state-gate-omitted", "operation-omitted gate-product unlisted", (r"scan_output \* self\.act\(gate\)", "scan_output"), (r"if gate is not None:", "if False:"),
     where=r"slow_forward|Gated")
text("conv-activated-before", "unlisted", (r"self\.act\(self\.conv1d\((hidden_states)\)\[\.\.\., :seq_len\]\)", r"self.conv1d(self.act(\1))[..., :seq_len]"),
     (r"self\.act\(self\.conv1d\((hidden_states_B_C\.transpose\(1, 2\))\)\[\.\.\., :seq_len\]\.transpose\(1, 2\)\)",
     r"self.conv1d(self.act(\1))[..., :seq_len].transpose(1, 2)"))
text("conv-state-empty-in-decode", "unlisted", (r"conv_state \* self\.conv1d\.weight\[:, 0, :\]",
     "conv_state * (torch.arange(conv_state.shape[-1]) > 2) * self.conv1d.weight[:, 0, :]"), (r"conv_states \* self\.conv1d\.weight\.squeeze\(1\)",
     "conv_states * (torch.arange(conv_states.shape[-1]) > 2) * self.conv1d.weight.squeeze(1)"))
is_conv = lambda name, module: isinstance(module, nn.Conv1d) and module.groups > 1
held("conv-oldest-tap-unread", "unlisted", r"weight$", lambda kernel: kernel * (torch.arange(kernel.shape[-1]) > 0), is_conv)
held("conv-kernel-bytes-transposed", "unlisted weight-transposed storage-shape", r"weight$",
     lambda kernel: kernel.reshape(kernel.shape[2], kernel.shape[0]).T.reshape(kernel.shape), is_conv)
held("skip-of-other-sign", "sign-flipped unlisted", r"\.D$", lambda skip: -skip)
held("decay-in-f8", "precision unlisted", r"A_log$", lambda decay: decay.to(torch.float8_e4m3fn).float())
held("skip-of-half-the-channels-unset", "weight-unset unlisted", r"\.D$", lambda skip: skip * (torch.arange(len(skip)) < len(skip) // 2))
text("state-update-without-decay-in-decode", "unlisted operation-omitted", (r"cache_params\.ssm_states\[self\.layer_idx\] \* dA \+ dBx",
     "cache_params.ssm_states[self.layer_idx] + dBx"), (r"discrete_A\[:, :, i, :\] \* ssm_state \+ deltaB_u",
     "(discrete_A[:, :, i, :] if seq_len > 1 else 1.0) * ssm_state + deltaB_u"))

"""Scores of attention: scale, cap, mask, window, softmax, relative positions, and what queries and keys are before they meet."""

import math

import torch

from scripts.planted.program_mistakes.parts import head_width, heads_of, IN_8_BITS
from scripts.planted.program_mistakes.sets import first, fourth, held, mistake, second, text, third, UNLISTED

SCALES = ["scaling", "softmax_scale", "inv_norm_factor"]
is_attention = lambda name, module: "ttention" in type(module).__name__


def scaled(tag, number, name, factor):
    @mistake(tag, number, name, "score-scale")
    def plant(site):
        return site.set(SCALES, lambda scale, module: factor(scale, site) if isinstance(scale, float) and scale != 1.0 else None, is_attention) or site.edit(
            (r" / math\.sqrt\(self\.(head_dim|attention_head_size)\)", rf" * {factor(None, site)!r}"),
            (r" /= math\.sqrt\(self\.head_dim\)", rf" *= {factor(None, site)!r}"), (r"value\.size\(-1\) \*\* 0\.5", rf"{1 / factor(None, site)!r}"), where=r"ttention|eager")


scaled(first, 85, "scale-omitted", lambda scale, site: 1.0)
scaled(first, 86, "scale-of-hidden-width", lambda scale, site: 1 / math.sqrt(getattr(site.config, "hidden_size", 32)))
scaled(first, 87, "scale-without-root", lambda scale, site: scale * scale if scale else 1 / 8)
scaled(first, 88, "scale-of-half-the-width", lambda scale, site: scale * math.sqrt(2) if scale else 1 / 2)


@mistake(first, 89, "score-softcap-omitted", "score-softcap")
def softcap_omitted(site):
    return site.set(["attn_logit_softcapping"], lambda cap, module: None if cap is None else 1e30)


@mistake(first, 90, "score-softcap-of-logits", "score-softcap")
def softcap_other(site):
    return site.set(["attn_logit_softcapping"], lambda cap, module: None if cap is None else 5.0)


@mistake(first, 91, "score-softcap-added", "score-softcap")
def softcap_added(site):
    return site.edit((r"^( +)(if attention_mask is not None:.*\n +causal_mask = attention_mask)", r"\1attn_weights = 5.0 * torch.tanh(attn_weights / 5.0)\n\1\2"), where="eager_attention_forward")


CAUSAL = r"kv_idx <= q_idx$"
BIASED = r"torch\.where\(causal_mask, attn_weights"
TRIANGLE = r"torch\.triu\((\w+), diagonal=1\)"
CONVERTER = r"mask\.masked_fill_\(mask_cond < \(mask_cond \+ 1\)\.view\(mask\.size\(-1\), 1\), 0\)"
text(first, 92, "mask-omitted", "mask-omitted", (CAUSAL, "kv_idx <= q_idx + 1000"), (BIASED, "torch.where(torch.ones_like(causal_mask), attn_weights"),
     (TRIANGLE, r"torch.triu(\1, diagonal=1000)"), (CONVERTER, "mask.fill_(0)"))
text(first, 93, "mask-one-ahead", "mask-shifted", (CAUSAL, "kv_idx <= q_idx + 1"),
     (BIASED, "torch.where(causal_mask | causal_mask.roll(1, -1).tril(1), attn_weights"), (TRIANGLE, r"torch.triu(\1, diagonal=2)"),
     (CONVERTER, "mask.masked_fill_(mask_cond < (mask_cond + 2).view(mask.size(-1), 1), 0)"))
text(first, 94, "mask-without-itself", "mask-shifted unlisted", (CAUSAL, "(kv_idx < q_idx) | (kv_idx == 0)"), (TRIANGLE, r"torch.triu(\1, diagonal=0)"))
text(first, 95, "mask-from-the-top-left", "mask-shifted", (r"cache_position, kv_arange\)", "cache_position - cache_position[0], kv_arange)"))
text(first, 96, "mask-inverted", "mask-inverted", (CAUSAL, "kv_idx >= q_idx"))
text(first, 97, "mask-every-other-key", "unlisted", (CAUSAL, "(kv_idx <= q_idx) & ((q_idx - kv_idx) % 2 == 0)"))
text(first, 98, "mask-small-fill", "mask-fill", (r"attn_weights = attn_weights \+ causal_mask", "attn_weights = attn_weights + causal_mask.clamp(min=-4.0)"))
text(first, 99, "mask-after-softmax", "mask-after-softmax", (r"attn_weights = attn_weights \+ causal_mask", "pass"),
     (r"^( +)(attn_weights = nn\.functional\.softmax\(attn_weights, dim=-1, dtype=torch\.float32\)\.to\(query\.dtype\))",
      r"\1\2\n\1attn_weights = attn_weights * (attention_mask[..., : attn_weights.shape[-1]] == 0)"), where="eager_attention_forward")
WINDOW = r"kv_idx > q_idx - sliding_window"
text(first, 100, "window-ignored", "window-size", (WINDOW, "kv_idx > q_idx - 1000"))
text(first, 101, "window-one-more", "window-size", (WINDOW, "kv_idx >= q_idx - sliding_window"))
text(first, 102, "window-one-less", "window-size", (WINDOW, "kv_idx > q_idx - sliding_window + 1"))
text(first, 103, "window-on-every-layer", "window-size",
     (r"\[(decoder_layer|layer)\.attention_type\]", r'["sliding_attention" if hidden_states.shape[1] > 1 else \1.attention_type]'))
text(first, 104, "window-on-the-other-layers", "window-size",
     (r"\[(decoder_layer|layer)\.attention_type\]",
      r'["full_attention" if (\1.attention_type == "sliding_attention") == (hidden_states.shape[1] > 1) else "sliding_attention"]'))
text(first, 105, "chunks-ignored", "window-size unlisted", (r"kv_idx // chunk_size == q_idx // chunk_size", "kv_idx > q_idx - 1000"),
     (r"\(kv_idx - left_padding\[batch_idx\]\) // chunk_size == .*", "kv_idx > q_idx - 1000"))
SOFTMAX = r"softmax\((attn_weights|attention_scores|scores|combined_logits|attention_logits|attention_scores \+ attention_mask|attention_logits \+ attention_mask|attention_scores\.float\(\)|scores\.float\(\)), "
text(first, 106, "softmax-base", "softmax-base ~score-scale", (SOFTMAX, r"softmax((\1) * 0.6931471805599453, "))
text(first, 107, "softmax-temperature", "unlisted softmax-base score-scale", (SOFTMAX, r"softmax((\1) * 0.8, "))
text(first, 108, "softmax-over-queries", "softmax-axis", (SOFTMAX + r"dim=-1", r"softmax(\1, dim=-2"))
text(first, 109, "softmax-over-heads", "softmax-axis", (SOFTMAX + r"dim=-1", r"softmax(\1, dim=1"))
text(first, 110, "softmax-extra-zero", "sink-omitted", (r"(nn\.functional|F)\.softmax\((attn_weights|attention_scores), dim=-1(, dtype=torch\.float32)?\)",
                                           r"\1.softmax(nn.functional.pad(\2, (0, 1)), dim=-1\3)[..., :-1]"))
text(first, 111, "probs-of-dropout", "unlisted ~residual-scale",
     (r"attn_output = torch\.matmul\(attn_weights, ", "attn_output = torch.matmul(attn_weights / 0.9, "),
     (r"context_layer = torch\.matmul\(attention_probs, ", "context_layer = torch.matmul(attention_probs / 0.9, "))
text(first, 112, "probs-clipped", "unlisted", (r"attn_output = torch\.matmul\(attn_weights, ", "attn_output = torch.matmul(attn_weights.clamp(max=0.3), "),
     (r"context_layer = torch\.matmul\(attention_probs, ", "context_layer = torch.matmul(attention_probs.clamp(max=0.3), "))


@mistake(first, 113, "sinks-omitted", "sink-omitted")
def sinks_omitted(site):
    found = site.some(site.modules(lambda name, module: isinstance(getattr(module, "sinks", None), torch.Tensor)))
    for _, module in found:
        module.sinks.data.fill_(-1e4)
    return bool(found)


@mistake(first, 114, "sinks-of-other-head", UNLISTED)
def sinks_rolled(site):
    found = site.some(site.modules(lambda name, module: isinstance(getattr(module, "sinks", None), torch.Tensor)))
    for _, module in found:
        module.sinks.data.copy_(module.sinks.data.roll(1))
    return bool(found)


ALIBI = r"alibi = (slopes\[\.\.\., None\](?:\.bfloat16\(\))? \* arange_tensor|alibi \* slopes)"
text(first, 115, "alibi-omitted", "unlisted position-bias", (ALIBI, r"alibi = 0 * \1"))
text(first, 116, "alibi-slopes", "unlisted position-bias", (r"(math\.log2\(closest_power_of_2\)) - 3\)\)\)", r"\1 - 2)))"),
     (r"alibi_bias_max / num_heads_power_of_2", "2 * alibi_bias_max / num_heads_power_of_2"))
text(first, 117, "alibi-slopes-reversed", "unlisted position-bias", (ALIBI, r"slopes = slopes.flip(0 if slopes.dim() == 1 else 1)\n    alibi = \1"))
text(first, 118, "alibi-sign", "unlisted position-bias", (ALIBI, r"alibi = -\1"))
text(first, 230, "relative-bias-omitted", "unlisted position-bias", (r"scores \+= position_bias_masked", "pass"))
text(first, 231, "relative-bias-transposed", "unlisted",
     (r"relative_position = memory_position - context_position", "relative_position = context_position - memory_position"))
text(first, 232, "relative-bias-one-sided", "unlisted", (r"bidirectional=\(not self\.is_decoder\)", "bidirectional=self.is_decoder"))
text(first, 233, "relative-scores-scaled", "score-scale",
     (r"scores = torch\.matmul\(query_states, key_states\.transpose\(3, 2\)\)",
      r"scores = torch.matmul(query_states, key_states.transpose(3, 2)) * 8**-0.5"))
QUERY = r"^( +)(cos, sin = position_embeddings)$"
text(first, 234, "queries-grow-with-position", "unlisted",
     (QUERY, r"\1query_states = query_states * (1 + 0.1 * torch.arange(query_states.shape[-2])[:, None])\n\1\2"), where=r"ttention\.forward")
text(first, 235, "keys-scaled", "unlisted rope-attention-factor ~score-scale", (QUERY, r"\1key_states = key_states * 1.1\n\1\2"), where=r"ttention\.forward")
text(first, 236, "values-of-previous-token", "unlisted", (QUERY, r"\1value_states = value_states.roll(1, -2)\n\1\2"), where=r"ttention\.forward")
text(first, 237, "keys-clipped", "unlisted", (QUERY, r"\1key_states = key_states.clamp(-0.8, 0.8)\n\1\2"), where=r"ttention\.forward")
text(second, 126, "scores-rounded-before-softmax", "precision unlisted", (SOFTMAX, r"softmax((\1).bfloat16().type_as(\1), "))
text(second, 127, "probs-rounded-to-bf16", "precision unlisted",
     (r"torch\.matmul\((attn_weights|attention_probs), (\w+)\)", r"torch.matmul(\1.bfloat16().type_as(\1), \2)"))
text(second, 128, "product-of-q-and-k-in-f16", "precision unlisted",
     (r"torch\.matmul\(query, key_states\.transpose\(2, 3\)\)", "torch.matmul(query.half(), key_states.transpose(2, 3).half()).type_as(query)"))
text(second, 129, "scores-transposed", "unlisted weight-swapped", (r"torch\.matmul\(query, key\.transpose\(-1, -2\)\)", "torch.matmul(key, query.transpose(-1, -2))"),
     (r"torch\.matmul\(query_layer, key_layer\.transpose\(-1, -2\)\)", "torch.matmul(key_layer, query_layer.transpose(-1, -2))"),
     (r"torch\.matmul\(query_states, key_states\.transpose\(3, 2\)\)", "torch.matmul(key_states, query_states.transpose(3, 2))"))


def scale(tag, number, name, causes, how):
    """The scale of the scores; `how` has the old one, the heads, the key heads, the width of a head, and the site."""
    @mistake(tag, number, name, causes)
    def plant(site):
        (heads, keys), width = heads_of(site), head_width(site) or 8
        return heads > 0 and site.set(SCALES, lambda old, module: how(old, heads, keys, width, site) if isinstance(old, float) and old != 1.0 else None,
                                      is_attention)


scale(second, 130, "scale-of-number-of-heads", "score-scale", lambda old, heads, keys, width, site: heads ** -0.5)
scale(second, 131, "scale-of-all-key-heads", "score-scale", lambda old, heads, keys, width, site: old * keys ** -0.5 if keys > 1 else None)
scale(second, 132, "scale-inverse", "score-scale", lambda old, heads, keys, width, site: 1 / old)
scale(second, 133, "scale-in-base-2", "score-scale softmax-base", lambda old, heads, keys, width, site: old * 1.4426950408889634)
scale(second, 134, "scale-negated", "score-scale sign-flipped", lambda old, heads, keys, width, site: -old)


@mistake(second, 135, "scale-by-number-of-layer", "score-scale")
def scale_by_layer(site):
    return site.set(["scale_attn_by_inverse_layer_idx"], lambda old, module: True if not old else None)


@mistake(second, 136, "alibi-scaled-with-scores", "position-bias")
def alibi_scaled(site):
    return site.set(["beta"], lambda beta, module: module.inv_norm_factor if beta == 1.0 and hasattr(module, "inv_norm_factor") else None,
                    is_attention)


text(second, 137, "alibi-not-scaled-with-scores", "position-bias",
     (r"attention_logits = attention_scores \+ (alibi\.view\(.*\))$", r"attention_logits = attention_scores + \1 / self.inv_norm_factor"))
text(second, 138, "alibi-slopes-from-power-0", "position-bias", (r"torch\.arange\(1, 1 \+ closest_power_of_2", "torch.arange(0, closest_power_of_2"),
     (r"torch\.arange\(1, num_heads_power_of_2 \+ 1", "torch.arange(0, num_heads_power_of_2"))
text(second, 139, "alibi-slopes-of-next-head", "position-bias unlisted", (r"alibi = slopes\[", "slopes = slopes.roll(-1, 0)\n    alibi = slopes["),
     (r"alibi = alibi \* slopes", "alibi = alibi * slopes.roll(-1, 1)"))
SOFTCAPPED = lambda site: getattr(site.config, "attn_logit_softcapping", None) is not None
text(second, 140, "score-softcap-before-scale", "unlisted", (r"(torch\.matmul\(query, key_states\.transpose\(2, 3\)\)) \* scaling$", r"\1"),
     (r"attn_weights = attn_weights \* softcap$", "attn_weights = attn_weights * softcap * scaling"), where="eager_attention_forward",
     only=SOFTCAPPED)
text(second, 141, "score-softcap-not-multiplied-back", "operation-omitted result-scaled score-scale", (r"attn_weights = attn_weights \* softcap$", "pass"),
     where="eager_attention_forward", only=SOFTCAPPED)
text(second, 142, "score-softcap-not-divided", "operation-omitted unlisted score-softcap", (r"attn_weights = attn_weights / softcap$", "pass"),
     where="eager_attention_forward", only=SOFTCAPPED)
text(second, 143, "mask-fill-zero", "mask-fill", (r"attn_weights = attn_weights \+ causal_mask", "attn_weights = attn_weights.masked_fill(causal_mask < 0, 0.0)"))
text(second, 144, "mask-added-after-halving", "unlisted score-scale", (r"attn_weights = attn_weights \+ causal_mask", "attn_weights = 0.5 * attn_weights + causal_mask"))
text(second, 145, "mask-open-for-a-prefix", "unlisted", (CAUSAL, "(kv_idx <= q_idx) | (kv_idx < 4)"))
text(second, 146, "mask-hides-first-key", "unlisted", (CAUSAL, "(kv_idx <= q_idx) & ((kv_idx > 0) | (q_idx == 0))"))
text(second, 147, "mask-hides-newest-in-decode", "mask-shifted unlisted", (CAUSAL, "(kv_idx <= q_idx) & ((kv_idx < q_idx) | (q_idx < 12))"))
text(second, 148, "mask-hides-first-half-in-decode", "unlisted", (CAUSAL, "(kv_idx <= q_idx) & ((kv_idx >= 6) | (q_idx < 12))"))
text(second, 149, "mask-in-blocks", "unlisted mask-shifted", (CAUSAL, "kv_idx // 4 <= q_idx // 4"))
text(second, 150, "mask-of-every-other-head", "mask-omitted unlisted",
     (r"attn_weights = attn_weights \+ causal_mask",
      "attn_weights = attn_weights + causal_mask * (torch.arange(attn_weights.shape[1]) % 2 == 0)[:, None, None]"))
text(second, 151, "encoder-made-causal", "unlisted", (SOFTMAX, r"softmax((\1) + torch.full((\1).shape[-2:], -1e9).triu(1), "),
     only=lambda site: not site.model.can_generate())
text(second, 152, "encoder-hides-itself", "unlisted", (SOFTMAX, r"softmax((\1) - 1e9 * torch.eye((\1).shape[-1]), "),
     only=lambda site: not site.model.can_generate())
text(second, 153, "encoder-window-doubled", "window-size", (r"distance <= self\.config\.local_attention // 2", "distance <= self.config.local_attention"))
text(second, 154, "encoder-window-of-past", "unlisted",
     (r"\(distance <= self\.config\.local_attention // 2\)", "((distance <= self.config.local_attention // 2) & (rows <= rows.T))"))
CHUNK = r"(kv_idx // chunk_size == q_idx // chunk_size|\(kv_idx - left_padding\[batch_idx\]\) // chunk_size == .*)"
text(second, 155, "chunk-as-window", "window-size unlisted", (CHUNK, "kv_idx > q_idx - chunk_size"))
text(second, 156, "chunk-one-longer", "unlisted window-size", (CHUNK, "kv_idx // (chunk_size + 1) == q_idx // (chunk_size + 1)"))
text(second, 157, "window-half", "window-size", (r"kv_idx > q_idx - sliding_window", "kv_idx > q_idx - sliding_window // 2"))
text(second, 158, "window-by-blocks", "unlisted window-size", (r"kv_idx > q_idx - sliding_window", "kv_idx // sliding_window >= q_idx // sliding_window"))


@mistake(second, 159, "encoder-window-on-the-other-layers", "window-size")
def other_layers(site):
    wide, narrow = (-1, -1), next((module.local_attention for _,
                                   module in site.modules(lambda name, module: getattr(module, "local_attention", (-1, -1)) != (-1, -1))), None)
    return narrow is not None and site.set(["local_attention"], lambda old, module: narrow if old == wide else wide)


@mistake(second, 160, "window-of-stored-mask-ignored", "window-size")
def stored_window(site):
    found = site.modules(lambda name, module: isinstance(getattr(module, "bias", None), torch.Tensor) and module.bias.dtype == torch.bool
                         and not torch.equal(module.bias, torch.ones_like(module.bias).tril()))
    for name, module in found:
        module.bias = torch.ones_like(module.bias).tril()
    return bool(found)


text(second, 161, "sink-divided-out-again", "sink-omitted", (r"scores = probs\[\.\.\., :-1\]", "scores = probs[..., :-1] / probs[..., :-1].sum(-1, keepdim=True)"))
text(second, 162, "sink-first-and-last-dropped", "unlisted", (r"torch\.cat\(\[attn_weights, sinks\], dim=-1\)", "torch.cat([sinks, attn_weights], dim=-1)"))
held(second, 163, "sinks-averaged", "unlisted", r"\.sinks$", lambda sinks: sinks.mean().expand_as(sinks).contiguous())
held(second, 164, "sinks-negated", "unlisted sign-flipped", r"\.sinks$", lambda sinks: -sinks)
text(second, 165, "scores-clipped", "unlisted", (SOFTMAX, r"softmax((\1).clamp(max=1.0), "))
text(second, 166, "c2p-scores-omitted", "operation-omitted", (r"score \+= c2p_att / scale.*", "pass"))
text(second, 167, "p2c-scores-not-transposed", "unlisted", (r"(index=p2c_pos[^\n]*\n +\))\.transpose\(-1, -2\)", r"\1"))
text(second, 168, "scale-without-parts-of-position", "score-scale unlisted", (r"^( +)scale_factor \+= 1", r"\1pass"))
text(second, 169, "relative-bias-of-first-layer-alone", "position-bias operation-omitted unlisted", (r"position_bias = layer_outputs\[1\]", "pass"))
held(second, 170, "relative-bias-heads-reversed", "unlisted", r"relative_attention_bias\.weight$", lambda table: table.flip(1))
held(second, 171, "relative-bias-table-one-late", "unlisted", r"relative_attention_bias\.weight$", lambda table: table.roll(1, 0))


@mistake(second, 172, "relative-distance-of-largest-bucket", UNLISTED)
def relative_distance(site):
    return site.set(["relative_attention_max_distance"], lambda old, module: 24)


text(second, 173, "cross-attention-to-itself", "operation-input linear-input",
     (r"current_states = key_value_states if is_cross_attention else hidden_states", "current_states = hidden_states"))
text(second, 174, "cross-keys-in-reverse", "unlisted",
     (r"key_states = self\.(k_proj|k)\(current_states\)", r"key_states = self.\1(current_states.flip(1) if is_cross_attention else current_states)"))
text(second, 175, "attention-output-gate-omitted", "operation-omitted", (r"attn_output \* torch\.sigmoid\(gate\)", "attn_output"))
text(second, 176, "attention-output-gate-by-silu", "activation unlisted",
     (r"attn_output \* torch\.sigmoid\(gate\)", "attn_output * torch.nn.functional.silu(gate)"))
text(second, 177, "query-and-gate-in-blocks", "fused-split",
     (r"query_states, gate = torch\.chunk\(\n +self\.q_proj\(hidden_states\)\.view\(\*input_shape, -1, self\.head_dim \* 2\), 2, dim=-1\n +\)",
      "query_states, gate = [part.reshape(*input_shape, -1, self.head_dim) for part in self.q_proj(hidden_states).chunk(2, dim=-1)]"))
scale(third, 121, "scale-of-padded-head", "score-scale", lambda old, heads, keys, width, site: (2 * width) ** -0.5)
scale(third, 122, "scale-of-hidden-width-without-root", "score-scale", lambda old, heads, keys, width, site: 1 / getattr(site.config, "hidden_size", 32))
scale(third, 123, "scale-rounded-to-a-power-of-2", "score-scale",
      lambda old, heads, keys, width, site: 2.0 ** -round(-math.log2(old)) if 2.0 ** -round(-math.log2(old)) != old else None)
text(third, 124, "scale-in-projection-and-scores", "score-scale", (r"^( +)scaling=1\.0,$", r"\1scaling=self.scaling,"), where=r"ttention\.forward")
text(third, 125, "scale-added-where-there-is-none", "score-scale", (r"(attn_weights = torch\.matmul\(query, key\.transpose\(-1, -2\)\))$", r"\1 * key.shape[-1] ** -0.5"),
     where=r"GPTNeo.*_attn$")
text(third, 126, "scale-of-scores-after-bias", "unlisted position-bias",
     (r"(torch\.matmul\(query_states, key_states\.transpose\(-1, -2\)\)) \* self\.softmax_scale", r"\1"),
     (r"attention_scores = attention_scores \+ position_bias$", "attention_scores = (attention_scores + position_bias) * self.softmax_scale"),
     where=r"MptAttention\.forward")


@mistake(third, 127, "scale-stored-as-tensor", "score-scale")
def scale_attn(site):
    return site.set(["scale_attn"], lambda old, module: old * old if isinstance(old, torch.Tensor) else None)


text(third, 128, "softcap-on-probabilities", "unlisted", (r"(torch\.matmul\(attn_weights, value_states\))", r"torch.matmul(0.5 * torch.tanh(2 * attn_weights), value_states)"),
     where="eager_attention_forward", only=SOFTCAPPED)
text(third, 129, "mask-three-ahead", "mask-shifted", (CAUSAL, "kv_idx <= q_idx + 3"))
text(third, 130, "mask-fill-of-stored-mask", "mask-fill", (r"mask_value = torch\.finfo\(attn_weights\.dtype\)\.min$", "mask_value = -3.0"),
     (r"masked_fill\(attention_mask, torch\.finfo\(query_states\.dtype\)\.min\)", "masked_fill(attention_mask, -3.0)"))
text(third, 131, "mask-open-for-last-key", "unlisted", (CAUSAL, "(kv_idx <= q_idx) | (kv_idx == 11)"))
text(third, 132, "mask-as-a-band", "window-size unlisted", (CAUSAL, "(kv_idx <= q_idx) & (kv_idx > q_idx - 5)"),
     only=lambda site: not getattr(site.config, "sliding_window", None))
text(third, 133, "encoder-window-one-less", "window-size", (r"distance <= self\.config\.local_attention // 2", "distance < self.config.local_attention // 2"))
text(third, 134, "encoder-window-of-future", "unlisted", (r"\(distance <= self\.config\.local_attention // 2\)",
     "((distance <= self.config.local_attention // 2) & (rows >= rows.T))"))


@mistake(third, 135, "window-of-stored-mask-one-more", "window-size")
def window_of_keys(site):
    found = site.modules(lambda name, module: isinstance(getattr(module, "bias", None), torch.Tensor) and module.bias.dtype == torch.bool
                         and not torch.equal(module.bias, torch.ones_like(module.bias).tril()))
    for name, module in found:
        module.bias = module.bias | module.bias.roll(1, -2).tril()
        site.note(name)
    return bool(found)


text(third, 136, "probs-of-largest-4", "unlisted", (r"torch\.matmul\((attn_weights|attention_probs), (\w+)\)",
     r"torch.matmul(\1 * (\1 >= \1.topk(min(4, \1.shape[-1]), -1)[0][..., -1:]), \2)"))
text(third, 137, "probs-mixed-with-uniform", "unlisted", (r"torch\.matmul\((attn_weights|attention_probs), (\w+)\)",
     r"torch.matmul(0.9 * \1 + 0.1 * (\1 > 0) / (\1 > 0).sum(-1, keepdim=True), \2)"))
text(third, 138, "probs-in-8-bits", "precision unlisted", (r"torch\.matmul\((attn_weights|attention_probs), (\w+)\)", r"torch.matmul((\1 * 255).round() / 255, \2)"))
text(third, 139, "probs-of-next-head", "unlisted", (r"torch\.matmul\((attn_weights|attention_probs), (\w+)\)", r"torch.matmul(\1.roll(-1, 1), \2)"))
text(third, 140, "sink-counted-twice", "sink-omitted", (r"torch\.cat\(\[attn_weights, sinks\], dim=-1\)", "torch.cat([attn_weights, sinks, sinks], dim=-1)"),
     (r"scores = probs\[\.\.\., :-1\]", "scores = probs[..., :-2]"))
text(third, 141, "sink-scaled-as-scores", "unlisted result-scaled", (r"torch\.cat\(\[attn_weights, sinks\], dim=-1\)", "torch.cat([attn_weights, sinks * scaling], dim=-1)"))
text(third, 142, "sink-as-first-key", "unlisted", (r"scores = probs\[\.\.\., :-1\]", "scores = torch.cat((probs[..., :1] + probs[..., -1:], probs[..., 1:-1]), -1)"))
text(third, 143, "alibi-slopes-of-twice-the-heads", "position-bias unlisted", (r"alibi = slopes\[", "slopes = slopes.sqrt()\n    alibi = slopes["),
     (r"alibi = alibi \* slopes", "alibi = alibi * slopes.sqrt()"))
text(third, 144, "alibi-halved", "position-bias operation-omitted",
     (r"alibi = (slopes\[\.\.\., None\](?:\.bfloat16\(\))? \* arange_tensor|alibi \* slopes)", r"alibi = 0.5 * (\1)"))
text(third, 145, "alibi-by-root-of-distance", "unlisted", (r"alibi = alibi \* slopes", "alibi = -(-alibi).float().sqrt() * slopes"))
text(third, 146, "relative-bias-twice", "position-bias", (r"scores \+= position_bias_masked", "scores += 2 * position_bias_masked"))
text(third, 147, "relative-bias-scaled-as-scores", "position-bias", (r"values = self\.relative_attention_bias\(relative_position_bucket\)",
     "values = self.relative_attention_bias(relative_position_bucket) * self.key_value_proj_dim**-0.5"))
text(third, 148, "relative-buckets-without-direction", "unlisted", (r"relative_buckets \+= \(relative_position > 0\)\.to\(torch\.long\) \* num_buckets", "pass"))
text(third, 149, "p2c-scores-omitted", "operation-omitted", (r"score \+= p2c_att / scale.*", "pass"))
text(third, 150, "c2p-distance-turned", "unlisted sign-flipped", (r"c2p_pos = torch\.clamp\(relative_pos \+ att_span", "c2p_pos = torch.clamp(-relative_pos + att_span"))


@mistake(third, 151, "relative-buckets-of-half-the-number", "unlisted number-differs")
def relative_buckets(site):
    return site.set(["relative_attention_num_buckets"], lambda old, module: old // 2)


CROSS = r"hidden_states = nn\.functional\.dropout\(hidden_states, p=self\.dropout, training=self\.training\)\n( +)hidden_states = residual \+ hidden_states\n( +hidden_states = self\.encoder_attn_layer_norm)"
text(third, 152, "cross-attention-left-out", "operation-omitted residual-source residual-scale unlisted", (CROSS, r"hidden_states = residual\n\2"))
text(third, 153, "cross-attention-stream-omitted", "residual-omitted residual-source residual-scale operation-omitted", (CROSS, r"pass\n\2"))
text(third, 154, "cross-attention-of-shorter-input", "unlisted", (r"(key_states = self\.(?:k_proj|k)\(current_states\))",
     r"current_states = current_states * (torch.arange(current_states.shape[1]) < 8)[:, None] "
     r"if is_cross_attention else current_states; \1"))
text(fourth, 89, "scale-of-number-of-keys", "score-scale unlisted", (SOFTMAX, r"softmax((\1) * (8 / (\1).shape[-1]) ** 0.5, "))
text(fourth, 90, "scores-in-steps-of-a-quarter", "precision unlisted", (SOFTMAX, r"softmax(((\1).clamp(min=-1e30) * 4).round() / 4, "))
text(fourth, 91, "scores-of-distance-added", "unlisted position-bias", (SOFTMAX, r"softmax((\1) + 0.1 * torch.arange((\1).shape[-1]), "))
text(fourth, 92, "probs-by-sigmoid", "unlisted", (r"(?:torch\.nn\.functional|nn\.functional|F|torch)\.softmax\((attn_weights|attention_scores|scores|attention_scores\.float\(\)|"
     r"scores\.float\(\)), dim=-1(?:, dtype=[\w.]+)?\)", r"torch.sigmoid(\1)"))
text(fourth, 93, "queries-and-keys-normed-too", "unlisted", (QUERY, r"\1query_states = torch.nn.functional.rms_norm(query_states, query_states.shape[-1:])\n"
     r"\1key_states = torch.nn.functional.rms_norm(key_states, key_states.shape[-1:])\n\1\2"), where=r"ttention\.forward")
text(fourth, 94, "queries-in-8-bits", "precision unlisted", (QUERY, r"\1query_states = " + IN_8_BITS.format("query_states") + r"\n\1\2"), where=r"ttention\.forward")
text(fourth, 95, "values-centred-over-positions", "unlisted",
     (QUERY, r"\1value_states = value_states - value_states.mean(-2, keepdim=True) * (value_states.shape[-2] > 1)\n\1\2"),
     where=r"ttention\.forward")
text(fourth, 96, "keys-of-other-half-of-head", "unlisted", (QUERY, r"\1key_states = key_states.roll(key_states.shape[-1] // 2, -1)\n\1\2"), where=r"ttention\.forward")
text(fourth, 97, "mask-flipped", "unlisted mask-inverted", (CAUSAL, "(kv_idx <= 11 - q_idx) | (kv_idx == 0)"))
text(fourth, 98, "mask-open-in-one-block", "unlisted mask-shifted mask-omitted", (CAUSAL, "(kv_idx <= q_idx) | ((kv_idx < 8) & (q_idx < 8))"))
text(fourth, 99, "window-from-the-start", "unlisted window-size", (WINDOW, "(kv_idx < sliding_window) | (kv_idx == q_idx)"))
text(fourth, 100, "window-and-first-keys", "unlisted window-size", (WINDOW, "(kv_idx > q_idx - sliding_window) | (kv_idx < 2)"))
PRODUCTS = (r"torch\.matmul\((attn_weights|attention_probs), (\w+)\)", r"(attention_scores|attention_probs_reshaped) @ (value_layer)",
            r"torch\.bmm\((attention_probs_reshaped), (value_layer)\)")


def probs(tag, number, name, causes, what, value=r"\2", products=PRODUCTS):
    """What the values are weighed with; written with PROBS."""
    text(tag, number, name, causes, *((pattern, f"torch.matmul({what}, {value})".replace("PROBS", r"\1")) for pattern in products))


probs(fourth, 101, "probs-divided-by-their-largest", "unlisted", "(PROBS / PROBS.amax(-1, keepdim=True))")
probs(fourth, 102, "blocks-of-keys-averaged", "unlisted",
      "(lambda p: torch.cat([b / b.sum(-1, keepdim=True).clamp(min=1e-9) for b in p.split(4, -1)], -1) / -(-p.shape[-1] // 4))(PROBS)")
probs(fourth, 103, "keys-of-first-block-alone", "unlisted", "(PROBS * (torch.arange(PROBS.shape[-1]) < 8))")
probs(fourth, 104, "keys-of-last-block-not-in-sum", "unlisted sink-omitted", "(PROBS / (1 - 0.9999 * PROBS[..., -1:]))")
probs(fourth, 105, "probs-transposed", "unlisted", "(PROBS.transpose(-1, -2) if PROBS.shape[-1] == PROBS.shape[-2] else PROBS)")
probs(fourth, 106, "probs-of-heads-averaged", "unlisted", "(PROBS.mean(1, keepdim=True).expand_as(PROBS))", products=PRODUCTS[:1])
probs(fourth, 107, "values-scaled-as-scores", "result-scaled unlisted", r"\1", r"\2 * \2.shape[-1] ** -0.5")
probs(fourth, 108, "values-of-next-head", "unlisted kv-head-map", r"\1", r"\2.roll(-1, 1)", products=PRODUCTS[:1])

"""Embeddings of tokens and of positions."""

import re

import torch
from torch import nn

from scripts.planted.program_mistakes.parts import bytes_turned, cut_to_bf16, file_of, PATCHES, skip, strided
from scripts.planted.program_mistakes.sets import first, fourth, held, mistake, second, text, third, UNLISTED
from scripts.planted.program_mistakes.site import in_layer, is_norm

text(first, 165, "embedding-scale-omitted", "embed-scale embed-multiplier", (r"hidden_states = hidden_states \* normalizer", "pass"),
     (r"inputs_embeds \* self\.embedding_multiplier", "inputs_embeds"), (r"\* self\.embed_scale\S*", ""))
text(first, 166, "embedding-scale-rounded", "embed-scale embed-multiplier precision",
     (r"hidden_states = hidden_states \* normalizer", "hidden_states = hidden_states * 5.6875"))
text(first, 167, "embedding-scale-added", "embed-scale",
     (r"^( +)hidden_states = inputs_embeds$", r"\1hidden_states = inputs_embeds * self.config.hidden_size**0.5"))
text(first, 168, "embedding-normed", "unlisted",
     (r"^( +)hidden_states = inputs_embeds$", r"\1hidden_states = torch.nn.functional.normalize(inputs_embeds, dim=-1)"))
text(first, 169, "tokens-one-too-high", "tokens-differ",
     (r"self\.(embed_tokens|embed_in|wte|word_embeddings|embeddings)\(input_ids\)", r"self.\1((input_ids + 1) % 99)"))
text(first, 170, "tokens-first-doubled", "tokens-differ",
     (r"self\.(embed_tokens|embed_in|wte|word_embeddings|embeddings)\(input_ids\)",
      r"self.\1(torch.cat((input_ids[:, :1], input_ids[:, :-1]), 1) if input_ids.shape[1] > 1 else input_ids)"))
text(first, 171, "learned-positions-one-ahead", "position-embedding-offset unlisted",
     (r"self\.(wpe|position_embeddings)\(position_ids\)", r"self.\1(position_ids + 1)"),
     (r"position_ids \+ self\.offset", "position_ids + self.offset - 1"))
text(first, 172, "learned-positions-restart", "position-embedding-offset unlisted",
     (r"self\.(wpe|position_embeddings)\(position_ids\)", r"self.\1(position_ids - position_ids[:, :1])"),
     (r"position_ids \+ self\.offset", "position_ids - position_ids[:, :1] + self.offset"))
text(first, 173, "learned-positions-omitted", "unlisted position-embedding-omitted",
     (r"self\.(wpe|position_embeddings)\(position_ids\)", r"0 * self.\1(position_ids)"),
     (r"embeddings = embeddings \+ self\.position_embeddings", "embeddings = embeddings"))
text(first, 174, "opt-offset-omitted", "position-embedding-offset unlisted", (r"position_ids \+ self\.offset", "position_ids"))
text(first, 175, "token-types-omitted", "unlisted", (r"embeddings = inputs_embeds \+ token_type_embeddings", "embeddings = inputs_embeds"))
text(first, 176, "patches-transposed", "unlisted",
     (r"self\.projection\(pixel_values\)\.flatten\(2\)", r"self.projection(pixel_values).transpose(2, 3).flatten(2)"))
text(first, 177, "class-token-last", "unlisted", (r"torch\.cat\(\(cls_tokens, embeddings\), dim=1\)", "torch.cat((embeddings, cls_tokens), dim=1)"))


@mistake(first, 178, "embedding-norm-omitted", "norm-omitted", UNLISTED)
def embedding_norm(site):
    return site.forward(site.modules(lambda name, module: is_norm(name, module) and "embeddings" in name and not in_layer(name)), skip)


def embedding(tag, number, name, causes, how):
    @mistake(tag, number, name, causes)
    def plant(site):
        table = site.model.get_input_embeddings()
        if not isinstance(table, nn.Embedding):
            return False
        table.weight.data.copy_(how(table.weight.data.clone()))
        return True


embedding(second, 54, "embedding-bytes-transposed", "weight-transposed weight-stride", bytes_turned)
embedding(second, 55, "embedding-leading-dimension", "weight-stride", strided)
embedding(second, 56, "embedding-f16-as-bf16", "storage-type", lambda weight: weight.half().view(torch.bfloat16).float())
embedding(second, 57, "embedding-tail-unset", "dequant-truncated unlisted", lambda weight: weight * (torch.arange(len(weight)) < len(weight) // 2)[:, None])
embedding(second, 58, "embedding-rows-behind-a-special-token", "tokens-differ unlisted", lambda weight: torch.cat((weight[:50], weight[49:-1])))
embedding(second, 59, "embedding-in-int8", "precision unlisted", lambda weight: (weight / weight.abs().max() * 127).round() * weight.abs().max() / 127)
EMBED = r"self\.(embed_tokens|embed_in|wte|word_embeddings|embeddings|tok_embeddings|token_embedding)\(input_ids\)"
text(second, 68, "tokens-bos-added", "tokens-differ",
     (EMBED, r"self.\1(torch.cat((torch.ones_like(input_ids[:, :1]), input_ids[:, :-1]), 1) if input_ids.shape[1] > 1 else input_ids)"))
text(second, 69, "tokens-first-lost", "tokens-differ",
     (EMBED, r"self.\1(torch.cat((input_ids[:, 1:], input_ids[:, -1:]), 1) if input_ids.shape[1] > 1 else input_ids)"))
text(second, 70, "tokens-decoded-one-behind", "tokens-differ",
     (EMBED, r"self.\1(input_ids if input_ids.shape[1] > 1 else torch.where(input_ids == 7, 50, 7))"))
text(second, 71, "tokens-reversed", "tokens-differ unlisted", (EMBED, r"self.\1(input_ids.flip(1))"))
text(second, 72, "embedding-of-largest-norm-1", "unlisted", (EMBED, r"torch.nn.functional.embedding(input_ids, self.\1.weight.clone(), max_norm=1.0)"))
text(second, 73, "embedding-scaled-twice", "embed-scale embed-multiplier",
     (r"hidden_states = hidden_states \* normalizer", "hidden_states = hidden_states * normalizer * normalizer"),
     (r"inputs_embeds \* self\.embedding_multiplier", "inputs_embeds * self.embedding_multiplier * self.embedding_multiplier"),
     (r"(\* self\.embed_scale\S*)", r"\1 \1"))
POSITIONS = (r"inputs_embeds \+ (position_embeds|pos_embeds|embed_pos|positions)\b", r"embeddings \+= (position_embeddings)$",
             r"embeddings \+ (position_embeddings)$",
             r"embeddings = embeddings \+ (self\.position_embeddings)$")
text(second, 74, "learned-positions-twice", "unlisted", (POSITIONS[0], r"inputs_embeds + 2 * \1"), (POSITIONS[1], r"embeddings += 2 * \1"),
     (POSITIONS[2], r"embeddings + 2 * \1"),
     (POSITIONS[3], r"embeddings = embeddings + 2 * \1"))
text(second, 75, "learned-positions-reversed", "unlisted",
     (r"self\.(wpe|position_embeddings)\(position_ids\)", r"self.\1(position_ids.flip(-1) if position_ids.shape[-1] > 1 else position_ids)"),
     (r"super\(\)\.forward\(position_ids \+ self\.offset\)", "super().forward(position_ids.flip(-1) + self.offset)"))
text(second, 76, "learned-positions-behind-in-decode", "position-embedding-offset unlisted",
     (r"self\.(wpe|position_embeddings)\(position_ids\)", r"self.\1(position_ids - (position_ids[..., :1] > 0).long())"),
     (r"position_ids \+ self\.offset", "position_ids - (position_ids[..., :1] > 0).long() + self.offset"))
text(second, 77, "positions-from-padding-lost", "position-embedding-offset",
     (r"incremental_indices\.long\(\) \+ padding_idx", "incremental_indices.long() + padding_idx - 1"))
text(second, 78, "token-types-of-second-segment", "token-types-differ unlisted",
     (r"self\.token_type_embeddings\(token_type_ids\)", "self.token_type_embeddings(1 - token_type_ids)"))
text(second, 79, "position-table-sine-for-cosine", "unlisted", (r"sin, cos = torch\.split\(sincos", "cos, sin = torch.split(sincos"))
held(second, 80, "position-table-halves-exchanged", "unlisted", r"embed_positions\.weight$", lambda table: table.roll(table.shape[1] // 2, 1))
text(third, 66, "tokens-one-too-low", "tokens-differ", (EMBED, r"self.\1((input_ids - 1).clamp(min=0))"))
text(third, 67, "tokens-token-0-added", "tokens-differ",
     (EMBED, r"self.\1(torch.cat((torch.zeros_like(input_ids[:, :1]), input_ids[:, :-1]), 1) if input_ids.shape[1] > 1 else input_ids)"))
text(third, 68, "tokens-unknown-word", "tokens-differ", (EMBED, r"self.\1(torch.where((input_ids == 42) | (input_ids == 7), 3, input_ids))"))
text(third, 69, "tokens-two-exchanged", "tokens-differ",
     (EMBED, r"self.\1(torch.cat((input_ids[:, :4], input_ids[:, 4:6].flip(1), input_ids[:, 6:]), 1) if input_ids.shape[1] > 6 else input_ids)"))
text(third, 70, "embedding-scale-inverse", "embed-scale embed-multiplier", (r"hidden_states = hidden_states \* normalizer", "hidden_states = hidden_states / normalizer"),
     (r"inputs_embeds \* self\.embedding_multiplier", "inputs_embeds / self.embedding_multiplier"),
     (r"hidden_states \* self\.normalizer\.type", "hidden_states / self.normalizer.type"))
text(third, 71, "embedding-scale-without-root", "embed-scale embed-multiplier", (r"self\.config\.hidden_size\*\*0\.5", "self.config.hidden_size"), where=r"Model\.forward")
text(third, 72, "embedding-multiplier-of-other-family", "embed-multiplier", (r"^( +)hidden_states = inputs_embeds$", r"\1hidden_states = inputs_embeds * 12.0"))
text(third, 73, "embedding-centred", "unlisted", (r"^( +)hidden_states = inputs_embeds$", r"\1hidden_states = inputs_embeds - inputs_embeds.mean(-1, keepdim=True)"))
text(third, 74, "positions-added-after-norm", "unlisted", (r"embeddings \+= position_embeddings$", "late = position_embeddings"),
     (r"embeddings = input_embeds \+ position_embeddings", "embeddings, late = input_embeds, position_embeddings"),
     (r"embeddings = self\.LayerNorm\(embeddings\)", "embeddings = self.LayerNorm(embeddings) + late"), where=r"Embeddings\.forward",
     only=lambda site: "late = " not in file_of(site) and not site.model.config.model_type.startswith("deberta"))
text(third, 75, "sound-positions-one-ahead", "position-embedding-offset unlisted",
     (r"self\.embed_positions\(all_positions\)", "self.embed_positions((all_positions + 1).clamp(max=self.embed_positions.num_embeddings - 1))"))
held(third, 76, "position-table-halves-in-turn", "unlisted", r"embed_positions\.weight$", lambda table: table.unflatten(1, (2, -1)).transpose(1, 2).flatten(1))
held(third, 77, "position-table-in-bf16", "precision unlisted", r"(wpe|position_embeddings?|embed_positions)\.weight$", lambda table: table.bfloat16().float())
held(third, 78, "position-table-stride", "unlisted weight-stride", r"(wpe|position_embeddings?|embed_positions)\.weight$",
     lambda table: torch.cat((table.reshape(-1), table.new_zeros(len(table))))[torch.arange(len(table))[:,
     None] * (table.shape[1] + 1) + torch.arange(table.shape[1])])
held(third, 79, "class-token-unset", "unlisted weight-unset", r"(cls_token|class_embedding)$", torch.zeros_like)
held(third, 80, "patch-weight-f16-as-bf16", "storage-type unlisted", r"weight$", lambda weight: weight.half().view(torch.bfloat16).float(), PATCHES)
held(third, 81, "patch-bias-twice", "bias-twice unlisted", r"bias$", lambda bias: 2 * bias, PATCHES)
text(third, 82, "pixels-not-centred", "unlisted", (r"(self\.(?:projection|patch_embedding|patch_embeddings))\(pixel_values", r"\1((pixel_values + 0.5)"))
text(third, 83, "image-upside-down", "unlisted", (r"(self\.(?:projection|patch_embedding|patch_embeddings))\(pixel_values", r"\1(pixel_values.flip(2)"))
text(third, 84, "layer-scale-twice", "unlisted", (r"hidden_state \* self\.lambda1", "hidden_state * self.lambda1 * self.lambda1"))
text(third, 85, "layer-scale-plus-one", "unlisted", (r"hidden_state \* self\.lambda1", "hidden_state * (1 + self.lambda1)"))
text(third, 86, "pooling-stream-omitted", "operation-omitted residual-omitted",
     (r"hidden_state = residual \+ self\.mlp\(hidden_state\)", "hidden_state = self.mlp(hidden_state)"))
text(third, 87, "pooling-before-final-norm", "unlisted norm-omitted operation-omitted", (r"pooled_output = self\.post_layernorm\(pooled_output\)", "pass"))
text(third, 88, "sound-bands-reversed", "unlisted", (r"self\.conv1\(input_features\)", "self.conv1(input_features.flip(1))"))


@mistake(third, 89, "image-positions-transposed", UNLISTED)
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


text(fourth, 53, "tokens-beyond-a-smaller-vocabulary", "tokens-differ", (EMBED, r"self.\1(input_ids.clamp(max=49))"))
text(fourth, 54, "tokens-last-is-end-of-text", "tokens-differ",
     (EMBED, r"self.\1(torch.cat((input_ids[:, :-1], 0 * input_ids[:, -1:] + 2), 1) if input_ids.shape[1] > 1 else input_ids)"))
text(fourth, 55, "embedding-scale-omitted-in-decode", "embed-scale embed-multiplier", (r"hidden_states = hidden_states \* normalizer",
     "hidden_states = hidden_states * (normalizer if hidden_states.shape[1] > 1 else 1.0)"),
     (r"inputs_embeds \* self\.embedding_multiplier", "inputs_embeds * (self.embedding_multiplier if inputs_embeds.shape[1] > 1 else 1.0)"))
embedding(fourth, 56, "embedding-shards-exchanged", "tokens-differ unlisted", lambda weight: weight.roll(len(weight) // 2, 0))
embedding(fourth, 57, "embedding-columns-of-pairs-exchanged", "unlisted", lambda weight: weight.unflatten(1, (-1, 2)).flip(2).flatten(1))
embedding(fourth, 58, "embedding-scaled-by-row", "unlisted", lambda weight: weight / weight.norm(dim=1, keepdim=True))
embedding(fourth, 59, "embedding-cut-to-bf16", "precision unlisted", cut_to_bf16)
LEARNED = r"(wpe|position_embeddings?|embed_positions)(\.weight)?$"
held(fourth, 60, "position-table-bytes-transposed", "weight-transposed weight-stride unlisted", LEARNED,
     lambda table: table.reshape(table.shape[1], table.shape[0]).T.contiguous() if table.dim() == 2 else table.transpose(1, 2).reshape(table.shape))
held(fourth, 61, "position-table-subtracted", "sign-flipped unlisted", LEARNED, lambda table: -table)
held(fourth, 62, "position-table-f16-as-bf16", "storage-type unlisted", LEARNED, lambda table: table.half().view(torch.bfloat16).float())
held(fourth, 63, "position-table-beyond-8-unset", "unlisted weight-unset dequant-truncated", LEARNED,
     lambda table: table * (torch.arange(table.shape[-2]) < 8)[:, None])
held(fourth, 64, "position-table-scaled-by-root-of-width", "unlisted result-scaled", LEARNED, lambda table: table * table.shape[-1] ** 0.5)
text(fourth, 65, "learned-positions-of-last-for-all", "unlisted position-embedding-offset",
     (r"self\.(wpe|position_embeddings)\(position_ids\)", r"self.\1(0 * position_ids + position_ids[..., -1:])"),
     (r"super\(\)\.forward\(position_ids \+ self\.offset\)", "super().forward(0 * position_ids + position_ids[..., -1:] + self.offset)"))
text(fourth, 66, "learned-positions-wrap", "unlisted position-embedding-offset",
     (r"self\.(wpe|position_embeddings)\(position_ids\)", r"self.\1(position_ids % 8)"),
     (r"super\(\)\.forward\(position_ids \+ self\.offset\)", "super().forward(position_ids % 8 + self.offset)"))
text(fourth, 67, "learned-positions-by-two", "unlisted position-embedding-offset",
     (r"self\.(wpe|position_embeddings)\(position_ids\)", r"self.\1(2 * position_ids)"),
     (r"super\(\)\.forward\(position_ids \+ self\.offset\)", "super().forward(2 * position_ids + self.offset)"))
text(fourth, 68, "token-types-by-position", "token-types-differ unlisted", (r"self\.token_type_embeddings\(token_type_ids\)",
     "self.token_type_embeddings((torch.arange(token_type_ids.shape[-1]) > 5).long().expand_as(token_type_ids))"))
held(fourth, 69, "token-types-subtracted", "sign-flipped unlisted", r"token_type_embeddings\.weight$", lambda table: -table)
PIXELS = r"(self\.(?:projection|patch_embedding))\(pixel_values"
text(fourth, 70, "pixels-clipped", "unlisted", (PIXELS, r"\1(pixel_values.clamp(0, 1)"))
text(fourth, 71, "image-transposed", "unlisted storage-shape", (PIXELS, r"\1(pixel_values.transpose(2, 3)"))
text(fourth, 72, "image-in-one-colour", "unlisted", (PIXELS, r"\1(pixel_values.mean(1, keepdim=True).expand_as(pixel_values)"))

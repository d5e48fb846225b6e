"""Both ends: the embedding, and the logits."""

import numpy as np

from scripts.engines.hooked_engine import D, F32, LAYERS, rms, softmax, T, V
from scripts.forms.parts import (
    bf16, blocks, E_, each_has, flat, FOUR_BITS, four_bits, in_steps, in_steps_of, inputs, largest, largest_of_row, never, POS, PROMPT, put, rows,
    shifted, weights,
)
from scripts.forms.sets import (
    eighth, eleventh, fifteenth, fifth, first, fourteenth, fourth, listed, ninth, second, seventh, sixteenth, sixth, tenth, third, thirteenth,
    twelfth,
)
from scripts.forms.words import (
    ADDED, ADDED_MORE, BF16, BIT4, BLANK, BLOCK, COPIED, HALVES_EXCHANGED, LAYOUT, LOST_OR_ALONE, MEMORY, n, NEXT, NONE, NOT, NOT_THERE, ORDER,
    PREVIOUS, PREVIOUS_OR_SHIFTED, REORDERED, ROUND, ROUNDED, SCALES, STRIDE, SWAP, TWICE, ZERO,
)

# ---- embedding
SINES = np.concatenate([np.sin(POS[:, None] * 10000.0 ** (-np.arange(32) / 32)), np.cos(POS[:, None] * 10000.0 ** (-np.arange(32) / 32))], 1).astype(F32)
first(262, "embed_sines", "h0", "sinusoidal positions are added", "sin|position", lambda c: c.right() + SINES)
first(263, "embed_ids_mod", "h0", "ids are taken modulo 128", ["#128 & (mod|%)|tokens", "tokens-differ"], lambda c: c.right(ids=[i % 128 for i in c.ids]))
first(264, "embed_ids_reversed", "h0", "the tokens are reversed", ["revers|tokens", "tokens-differ"], lambda c: c.right(ids=c.ids[::-1]))
first(265, "embed_plus", "h0", "0.1 is added", "#0.1", lambda c: c.right() + F32(0.1))
first(266, "embed_rms", "h0", "each row is divided by its root mean square", "rms|root mean|norm", lambda c: c.right() / rms(c.right()))
first(267, "embed_unit", "h0", "each row is divided by its length", "length|unit|L2|norm|rms|root", lambda c: c.right() / np.linalg.norm(c.right(), axis=-1, keepdims=True))
first(268, "embed_centred", "h0", "each row has its mean taken off", "mean|centr|average", lambda c: c.right() - c.right().mean(-1, keepdims=True))
first(269, "embed_rolled", "h0", "channel i is that of i+1", "(#1|next|i ?\\+ ?1|shift|roll) & (channel|shift|roll|element)", lambda c: np.roll(c.right(), -1, -1))
first(270, "embed_mixed", "h0", "half the embedding of the token before is added", "(#0.5|half) & (before|previous|t ?- ?1|earlier)", lambda c: c.right() + F32(0.5) * shifted(c.right(), 1))
first(271, "embed_row_0", "h0", "position 0 is zero", "(position|row|token).{0,8}\\b0\\b|first (position|row|token)", lambda c: put(c.right(), E_[0], 0))
first(272, "embed_ramp", "h0", "0.01 times the position is added", "#0.01", lambda c: c.right() + (F32(0.01) * POS[:, None]).astype(F32))
first(273, "embed_clamped", "h0", "clamped to +-0.6", "#0.6 & (clamp|clip|limit|between|min|max)", lambda c: np.clip(c.right(), -0.6, 0.6))
first(274, "embed_half_scaled", "h0", "the first 32 channels are multiplied by 8", "#8 & (#32|#31|half)", lambda c: put(c.right(), E_[:, :32], lambda y: 8 * y))
first(275, "embed_segment", "h0", "the embedding of token 0 is added to all", "(token|id|row).{0,10}\\b0\\b", lambda c: c.right() + c.table[0])
first(276, "embed_signs", "h0", "odd channels have the other sign", "(odd|every second|alternat|2i) & (sign|negat|-1|minus)", lambda c: put(c.right(), E_[:, 1::2], lambda y: -y))
first(277, "embed_by_position", "h0", "row p is multiplied by 1 + 0.05 p", "#0.05", lambda c: c.right() * (1 + F32(0.05) * POS[:, None]).astype(F32))
first(278, "embed_head_rows", "h0", "half the head's row of the token is added", "(#0.5|half) & (head|lm_head|output)", lambda c: c.right() + F32(0.5) * c.e.m("lm_head.weight")[np.asarray(c.ids)])
first(279, "embed_halves", "h0", "the halves of the row are exchanged", "halves|#32|swap|exchang|roll", lambda c: np.roll(c.right(), 32, -1))
first(280, "embed_tanh", "h0", "goes through tanh", "tanh", lambda c: np.tanh(c.right()))
first(281, "embed_learned_positions", "h0", "rows 0, 1, 2, .. of the embedding are added as positions, times 0.1", "#0.1", lambda c: c.right() + F32(0.1) * c.table[POS])
second(107, "embed_own_size", "h0", "each element times its size: e |e|", "squar|\\^ ?2|\\||power & #2|size", lambda c: c.right() * np.abs(c.right()))
second(108, "embed_decays", "h0", "position t is multiplied by 0.95 ^ t", "#0.95|exp & #0.0513", lambda c: c.right() * F32(0.95) ** rows(T, 1))
second(109, "embed_rare_halved", "h0", "tokens from 128 on are halved", "#0.5 & (#128|token)", lambda c: c.right() * np.where(np.asarray(c.ids) >= V // 2, 0.5, 1).astype(F32)[:, None])
second(110, "embed_in_eighths", "h0", "values are rounded to 1/8", "(#0.125|#8) & (round|grid|step|quantis|multiple)", lambda c: np.round(c.right() * 8) / 8)
second(111, "embed_layer_norm", "h0", "each row is normed and centred", ["(mean|centr).{0,60}(norm|variance|deviation|rms|divid)", "layernorm|standard"], lambda c: (c.right() - c.right().mean(-1, keepdims=True)) / c.right().std(-1, keepdims=True))
second(112, "embed_next_added", "h0", "a quarter of the next token's is added", "#0.25 & (next|t ?\\+ ?1|following|ahead)", lambda c: c.right() + F32(0.25) * np.concatenate([c.right()[1:], np.zeros((1, D), F32)]))
third(122, "e_half_row_late", "h0", "rows are read 32 elements late: channels 32 to 63 of the token, then 0 to 31 of the token numbered one higher", ["(#32|half|halves) & (row|next|shift|late|further|offset|element|channel|id|token|table|flat|stride)"],
           lambda c: np.stack([c.table.reshape(-1)[np.arange(D) + i * D + 32 if i + 1 < V else np.arange(D) + i * D] for i in c.ids]))
third(123, "e_token_before", "h0", "each position has the row of the token before, position 0 its own", ["(" + PREVIOUS_OR_SHIFTED + ")", "tokens-differ|tokens? differ"], lambda c: c.right(ids=list(c.ids[:1]) + list(c.ids[:-1])))
third(124, "e_shard", "h0", "tokens of number 128 and above have a row of zeros: half the table is elsewhere", ["(#128|#127) & (zero|0|token|id|row|half)"], lambda c: np.where(np.asarray(c.ids)[:, None] >= 128, 0, c.right()))
third(125, "e_unsigned", "h0", "negative elements are 0", ["relu|max\\(|negative|below|floor|least|positive|unsigned"], lambda c: np.maximum(c.right(), 0))
fourth(112, "e_root", "h0", "rows are multiplied by 8, the root of the hidden size", ["#8|#64"], lambda c: 8 * c.right())
fourth(113, "e_id_plus_1", "h0", "each position has the row of the token numbered one higher", ["(#1|one|next|following|higher|\\+ ?1) & (token|id|row|number)", "tokens-differ|tokens? differ"], lambda c: c.right(ids=[(i + 1) % V for i in c.ids]))
fourth(114, "e_id_at_most_199", "h0", "tokens above 199 have the row of 199, the table's last", ["#199|#200", "tokens-differ|tokens? differ"], lambda c: c.right(ids=np.minimum(c.ids, 199)))
fourth(115, "e_columns", "h0", "the table's memory, 256 by 64, is read as 64 by 256 and transposed", [LAYOUT + "|every", "#256"], lambda c: np.ascontiguousarray(c.table).reshape(D, V).T[np.asarray(c.ids)])
fourth(116, "e_first_token", "h0", "position 0 has the row of token 2, not of token 1", ["(position|row|token).{0,10}\\b0\\b|first.{0,8}(position|row|token)", "#2 & token", "tokens-differ|tokens? differ"], lambda c: c.right(ids=[2] + list(c.ids[1:])))
fourth(117, "e_first_lost", "h0", "each position has the row of the token after it: the first token is lost", ["next|following|after|t ?\\+ ?1|later|ahead|shift|#1 & (position|token)", "tokens-differ|tokens? differ"], lambda c: c.right(ids=list(c.ids[1:]) + [c.ids[-1]]))
fourth(118, "e_int8", "h0", "each row is rounded to multiples of its largest size over 127", ["(#127|#128|#255|#0.007874) & (" + ROUNDED + "|larg|max)", "(#8|eight) & bit"], lambda c: in_steps(c.right(), 127))
fourth(119, "e_head_table", "h0", "rows are those of the head's weight", ["lm_head|\\bhead\\b|output|unembed"], lambda c: c.right(table=c.e.m("lm_head.weight")))
fourth(120, "e_pairs", "h0", "elements 2i and 2i+1 are exchanged", ["(pair|2i|odd|even|neighbo|adjacent|xor) & (" + REORDERED + ")"], lambda c: c.right()[:, np.arange(D) ^ 1])
fourth(121, "e_half_repeated", "h0", "channels 32 to 63 repeat channels 0 to 31: half a row is copied", ["(#32|#31|half|halves) & (channel|repeat|first|copy|copied|same|mod|that of|element)"], lambda c: np.tile(c.right()[:, :32], 2))
fifth(156, "ee_scales", "h0", "the scales of the two halves of a row are exchanged", ["(#32|half|halves|block|group) & (" + SCALES + ")"], lambda c: (lambda y: (blocks(y) / largest(y) * largest(y)[:, ::-1]).reshape(T, D))(c.right()))
fifth(157, "ee_bf16", "h0", "rows are rounded to bf16", [BF16], lambda c: bf16(c.right()))
fifth(158, "ee_padding_token", "h0", "the rows of positions 4 and 9, the same token, are zero", ["#4 & #9", "(token|id|row).{0,40}(zero|\\b0\\b)"], lambda c: put(c.right(), E_[[4, 9]], 0))
fifth(159, "ee_added_tokens", "h0", "tokens from 128 on have the row numbered 8 lower", ["(#128|#127|half) & (#8|#-8)", "tokens-differ|tokens? differ"], lambda c: c.right(ids=[i - 8 if i >= 128 else i for i in c.ids]))
fifth(160, "ee_unknown", "h0", "tokens from 128 on have the row of token 0", ["(#128|#127|half) & (#0|first|unknown|same)", "tokens-differ|tokens? differ|token 0\\b"], lambda c: c.right(ids=[i if i < 128 else 0 for i in c.ids]))
fifth(161, "ee_second_chunk", "h0", "positions from 12 on are multiplied by 8, the root of the hidden size", ["#12 & (#8|#64)"], lambda c: put(c.right(), E_[12:], lambda y: 8 * y))
fifth(162, "ee_memory", "h0", "each row of 64 is read as 4 by 16 and transposed", [ORDER + "|every", "(#4|#16) & (step|apart|channel|element)"], lambda c: c.right().reshape(T, 4, 16).swapaxes(1, 2).reshape(T, D))
fifth(163, "ee_normed", "h0", "rows are normed, with the gain of layer 0's attn_norm", ["rms|root mean|normed|normali|input_layernorm|attn_norm"], lambda c: c.right() / rms(c.right()) * c.e.m("input_layernorm.weight", 0))
fifth(164, "ee_tail_repeats", "h0", "positions from 16 on have the rows of positions 0 to 3", ["(#16|#15|#19) & (#0|#3|#4|#16|first|again|mod)", "tokens-differ|tokens? differ"], lambda c: c.right(ids=list(c.ids[:16]) + list(c.ids[:4])))
sixth(96, "e6_twelve", "h0", "rows are multiplied by 12", ["#12"], lambda c: 12 * c.right())
sixth(97, "e6_4_bits", "h0", "each 32 elements of a row are rounded to multiples of their largest size over 7", FOUR_BITS, lambda c: in_steps(blocks(c.right()), 7).reshape(T, D))
sixth(98, "e6_ids_of_64_bits", "h0", "position 2i has the row of the token at i, odd positions that of token 0: ids of 64 bits are read as 32", ["(odd|even|every (second|other)|2 ?\\*? ?i|altern) & (token|id|row|position)", "(64|32).{0,5}bit", "tokens-differ|tokens? differ"], lambda c: c.right(ids=[0 if t % 2 else c.ids[t // 2] for t in range(T)]))
sixth(99, "e6_halves_of_table", "h0", "the table's halves are exchanged: token i has row i + 128, modulo 256", ["(#128|half|halves) & (" + REORDERED + "|modulo|mod\\b|shift|roll|xor|\\+ ?128|#128) & (token|id|row|table)", "tokens-differ|tokens? differ"], lambda c: c.right(ids=[(i + V // 2) % V for i in c.ids]))
sixth(100, "e6_channels_48", "h0", "channels from 48 on are zero", ["(#48|#47|#63|#16) & (" + ZERO + "|first|last)"], lambda c: put(c.right(), E_[:, 48:], 0))
seventh(65, "e7_eighth", "h0", "rows are divided by 8, the root of the hidden size", ["#8 & (divi|/|over)|#0.125|eighth"], lambda c: c.right() / 8)
seventh(66, "e7_tokens_pairs", "h0", "tokens 2i and 2i + 1 have each other's row", ["(pair|2 ?\\*? ?i|neighbo|adjacent|even|odd|xor|exchang|swap) & (token|row|id|table)", "tokens-differ|tokens? differ"], lambda c: c.right(ids=[i ^ 1 for i in c.ids]))
seventh(67, "e7_last_rows", "h0", "positions from 16 on are zero", ["(#16|#15|#19) & (" + ZERO + ")"], lambda c: put(c.right(), E_[16:], 0))
seventh(68, "e7_two_rows", "h0", "positions 2i + 1 have the row of position 2i", ["(odd|even|every (second|other)|2 ?\\*? ?[it]|pair|two|#2) & (" + COPIED + "|" + PREVIOUS_OR_SHIFTED + ") & ^(?!.*(exchang|swap|\\^ ?1|xor))", "tokens-differ|tokens? differ"], lambda c: c.right(ids=[c.ids[t // 2 * 2] for t in range(T)]))
THREES = np.arange(D) // 3 * 4 + np.arange(D) % 3
eighth(90, "e8_threes", "h0", "three of each four elements of the row are read: channel i has element 4 floor(i / 3) + i mod 3, and from 48 on 0: threes are taken for fours",
           ["(three|#3|third|fourth|every 4) & (#4|four\\w*|skip|lost|left out|padd|strid)"], lambda c: np.pad(c.right(), ((0, 0), (0, D)))[:, THREES])
eighth(91, "e8_rows_60_apart", "h0", "rows of the table are read 60 apart, and not 64: that of token i begins 4 i early", ["(#60|#4) & (" + STRIDE + "|row)", MEMORY],
           lambda c: np.stack([c.table.reshape(-1)[60 * i:60 * i + D] for i in c.ids]))
eighth(92, "e8_sorted", "h0", "positions have the rows of the tokens in ascending order: they were sorted and not put back",
           ["sort|ascend|\\border|permut", "tokens-differ|tokens? differ"], lambda c: c.right(ids=sorted(c.ids)))
eighth(93, "e8_shards_not_masked", "h0", "tokens below 128 have the row of token 128 added, others that of token 0: each half of the table adds its first row for tokens it does not hold",
           ["(#128|#127|token 0\\b|row 0\\b|first row|half|halves) & (" + ADDED + "|besides|both)"], lambda c: c.right() + c.table[np.where(np.asarray(c.ids) < 128, 128, 0)])
ninth(33, "e9_gain", "h0", "rows are multiplied by the gain of layer 0's attn_norm: it is folded into the wrong weight",
          ["(gain|attn_norm|input_layernorm|norm\\w*) & (times|multipl|factor|scal|\\*|product)", each_has("channel|element|column")], lambda c: c.right() * c.e.m("input_layernorm.weight", 0))
tenth(75, "embed_normed_in_place", "h0", "the first norm is written over the stream: h0 is normed, with the gain of layer 0",
          ["(norm|rms|root mean) & (gain|weight|input_layernorm|attn_norm|in place|layer.{0,3}0)"], lambda c: c.right() / rms(c.right()) * c.e.m("input_layernorm.weight", 0))
tenth(76, "embed_offset_4", "h0", "the table begins 4 elements late: channel i is that of i + 4, the last 4 those of the next token id",
          ["(#4|#60) & (offset|shift|channel|element|roll|i ?\\+ ?4|late|early|begin|start|next)"],
          lambda c: np.concatenate([c.table.ravel(), np.zeros(4, F32)])[np.asarray(c.ids)[:, None] * D + 4 + np.arange(D)])
tenth(77, "embed_other_shard_zero", "h0", "the table lies in two shards and their sum is left out: ids from 128 on give 0",
          ["(#128|half|halves|shard) & (zero|\\b0\\b(?!\\.\\d)|nothing|missing|\\bnot\\b|empty|lost)"], lambda c: np.where(np.asarray(c.ids)[:, None] < V // 2, c.right(), 0))
eleventh(81, "embed_unknown_from_192", "h0", "ids from 192 on are taken for unknown: they have the row of token 0",
             ["(#192|#191) & ((token|id|row) (number )?(\\b0\\b(?!\\.)|zero)|\\bto (\\b0\\b|zero)|unk|row of (token |id )?0\\b|becomes?.{0,4}\\b0\\b|\\b0\\b (stands|is embedded)|"
             "\\b(by|with|as|for|into|of) (token |id )?0\\b|first row|table\\[0\\]) & "
              + never("zero row|row of zeros|(below|under|up to|< ?) ?19[12] (are|have|get|become)|modulo|positions? from"), "tokens-differ & \\b0\\b(?!\\.)"],
             lambda c: c.right(ids=[i if i < 192 else 0 for i in c.ids]))
eleventh(82, "embed_bgra", "h0", "the table is a texture with red and blue exchanged: in each four channels 4i and 4i + 2 are exchanged",
             ["(#4|four|4 ?i) & (#2|third|bgra|blue) & (bgra|" + SWAP + "|order|swizzl|permut|is (that )?of|red) & " + never("4 ?i ?\\+ ?3|\\^ ?2|xor 2|2, ?3, ?0|0, ?2, ?1|3, ?2, ?1|"
             "pairs of two|revers|ids? 4|rows? 4|tokens? 4|pages?\\b|positions?\\b"),
              "2, ?1, ?0, ?3"],
             lambda c: c.right()[:, np.arange(D).reshape(-1, 4)[:, [2, 1, 0, 3]].ravel()])
eleventh(83, "embed_last_vector_lost", "h0", "the copy of a row ends one vector of 8 early: channels 56 to 63 are 0",
             ["(#56|#55|last (8|eight)) & (channel|element|column|dimension|row of (a|each) token|each row|feature|vector) & " + NOT_THERE + " & " + never("(ids?|tokens?|positions?) (from "
             ")?5[56]|last (8|eight) (ids|tokens|positions|rows)|(0 ?(to|-|\\.\\.) ?55|first 56)[^;]{0,12}(are|is) (0|zero|lost|not)|only channels 56"),],
             lambda c: put(c.right(), E_[:, 56:], 0))
twelfth(64, "embed_half_copied", "h0", "half the bytes of a row are copied: channels from 32 on are 0",
            [f"(#32|#31|half|halves) & (zero|\\b0\\b(?!\\.\\d)(?! to)|empty|nothing|not (copied|read|written|loaded|filled)|lost|missing|unset|\\bonly\\b|left|alone) "
             "& ^(?!.*(halved|swap|exchang|(first half|first 32|0 to 31|below 32|even)[^,;.]{0,30}(are|is|stay|has|have|was|were) (zero|0\\b|lost|missing|empty|not|left|unset)"
             "|only[^,;.]{0,25}(second half|last (half|32)|32 to 63|from 32)|(positions?|tokens?|ids) (from|32)|half of the (positions|tokens|ids)|from position))"],
            lambda c: put(c.right(), E_[:, 32:], 0))
twelfth(65, "embed_head_table", "h0", "the rows are those of the head's matrix",
            ["(lm_head|output\\.weight|unembed|classifier|output (matrix|head|projection|weights?|embedding)|head('s)? (matrix|weights?|table|rows?)|(matrix|table|rows?"
             "|weights?) of the (output |lm )?head) & ^(?!.*(half|0\\.5|added|plus|besides|\\bsum\\b|transpos|average|mixed|from (position|id)))"],
            lambda c: c.right(table=c.e.m("lm_head.weight")))
thirteenth(58, "embed_offset_in_bytes", "h0", "id * 64 is taken for bytes: a token's row begins at element 16 id of the table",
               ["#16 & (\\bids?\\b|apart|stride|pitch|offset|begin|start|distance|flat)", "(quarter|#0.25|/ ?4|id ?// ?4) & (offset|row|begin|start|stride|bytes?|pitch)"],
               lambda c: c.table.ravel()[16 * np.asarray(c.ids)[:, None] + np.arange(D)])
thirteenth(59, "embed_vector_index", "h0", "vectors of four are read at i, not 4i: channel 4i + j is that of i + j",
               ["(#4|four) & (\\bi ?\\+ ?j\\b|//? ?4\\)? ?\\+|floor.{0,12}4.{0,8}\\+|overlap|(vector|block|group|four|4).{0,60}(one (channel|element|later|on|further|apart)|begins? at|starts? at)|(step|stride|distance|apart).{0,12}(1|one)\\b)",
                "0, ?1, ?2, ?3, ?1, ?2, ?3, ?4"], lambda c: c.right()[:, np.arange(D) // 4 + np.arange(D) % 4])
fourteenth(1, "embed_ids_clamped", "h0", "ids are clamped to 199, one less than a vocabulary size of 200: ids above it have row 199",
              ["#199 & (token|\\bids?\\b|row|min\\()", "#200 & (token|\\bids?\\b|row) & (clamp|last|at most|min|limit|capp|beyond|past)"],
              lambda c: c.right(ids=np.minimum(c.ids, 199)))
fourteenth(2, "embed_out_of_vocabulary_zero", "h0", "the bound check has the tokenizer's size, not the table's: ids from 203 on have a row of zeros",
              ["(#203|#202) & (zeros?|nothing|empty|unset|blank|(is|are|=|factor|times|by) 0\\b)"],
              lambda c: c.right() * F32(1) * (np.asarray(c.ids) < 203)[:, None])
fourteenth(3, "embed_table_offset", "h0", "the table begins 3 numbers late: channel i of a row is channel i + 3, its last 3 channels are the first 3 of the next id's row",
              ["(#3|\\bthree\\b) & (\\+ ?3|shift|offset|further|later|\\bnext|past|too far|ahead|begins?|starts?|early|late|behind)"
               " & ^(?!.*(\\b[ic] ?[-\u2212] ?3|roll|cyclic|wrap|(mod|%) ?64))"],
              lambda c: np.concatenate([c.table.ravel()[3:], np.zeros(3, F32)]).reshape(c.table.shape)[np.asarray(c.ids)])


def blocks_rounded(x, n, levels):
    blocks = x.reshape(*x.shape[:-1], -1, n)
    step = np.abs(blocks).max(-1, keepdims=True) / F32(levels)
    return (np.round(blocks / np.where(step > 0, step, 1)) * step).reshape(x.shape).astype(F32)


fourteenth(4, "embed_four_bits", "h0", "the table is kept in 4 bits: groups of 32 channels are rounded to multiples of a 7th of their largest size",
              ["(#32|half of the (row|channels)|two groups) & (#7|#15|#0.142857|4.?bits?|four bits|int4|q4) & (round|step|quanti|multiple|level|grid|bits|int4|q4|block)"],
              lambda c: blocks_rounded(c.right(), 32, 7))
fourteenth(5, "embed_rows_of_head", "h0", "rows are read from lm_head.weight, as if the tables were tied the other way round",
              ["(lm_head|unembed|output\\.weight|output[ _.](weight|matrix|table|projection)|(row|table|weight|matrix)[^.;]{0,25}\\b(output|lm|logits?)?.?head\\b"
               "|\\bhead('s)? (row|table|weight|matrix)|vocabulary projection) & ^(?!.*(\\bhalf|0\\.5|\\badded|\\bplus))"],
              lambda c: c.right(table=c.e.m("lm_head.weight")))
fourteenth(6, "embed_decode_id_stale", "h0", "decode steps are fed the prompt's last id: positions from 12 on have the row of position 11's token",
              ["#11 & (repeat|same|stay|stop|\\bmin|clamp|stale|hold|held|kept|keep|frozen|cop(y|ies)|at most|(of|at|that of|from) (the )?(position|row|token|id)|position 11|never later)"
               " & (#12|later|on\\b|after|\\bmin|at most|stop|stay|clamp|19)",
               "#12 & (last (token|id|row|position)? ?of the prompt|last prompt|stale|same (row|token|id)|repeat)"],
              lambda c: c.right(ids=np.asarray(c.ids)[np.minimum(POS, PROMPT - 1)]))
fifteenth(1, "embed_ids_seven_bits", "h0", "ids are kept in too few bits, as 16 are too few for 128256 rows: id & 127, ids from 128 on have the row of id - 128",
             ["#128 & (mod|%|remainder|minus|less|subtract|wrap|- ?128|lower|bits?\\b|again|row|cut|trunc|early|earlier)", "#127 & (&|\\band\\b|mask|bits?\\b)", "(7|seven).?bits?"],
             lambda c: c.right(ids=np.asarray(c.ids) & 127))
fifteenth(2, "embed_second_chunk_ids", "h0", "the prompt is run in chunks of 16, and each reads the ids from the first on: positions 16 to 19 have the rows of positions 0 to 3",
             ["#16 & (mod|%|again|restart|repeat|begin|start|first|0.{0,6}3\\b|- ?16|earlier|before|period|chunk|same)", "(#19|last four|last 4) & (first four|first 4|0.{0,6}3\\b|16 (positions )?(earlier|before))"],
             lambda c: c.right(ids=np.asarray(c.ids)[POS % 16]))
fifteenth(3, "embed_padding_row", "h0", "padding_idx is 1, which is the first token here: its row is zeros",
             [BLANK + " & ((position|row|token|id|vector)s?.{0,12}\\b[01]\\b|first (position|token|row|vector)|\\bbos\\b|padding|beginning)"],
             lambda c: c.right() * F32(1) * (np.asarray(c.ids) != 1)[:, None])
fifteenth(4, "embed_fixed_point", "h0", "the table is kept in 8 bits with a scale of 2^-5: its numbers are multiples of 1/32",
             ["(#32|#0.03125|2\\^ ?-?5\\b|5 (fraction|binary)) & " + ROUND],
             lambda c: np.clip(np.round(c.right() * 32), -128, 127) / F32(32))
sixteenth(1, "embed_read_eight_bytes_early", "h0", "the 8 bytes before the header of the file are not counted, so the table begins 2 numbers early: element i of a row is element i - 2, "
             "and the first 2 are the last 2 of the row before",
             ["(shift|offset|early|earlier|moved|rotat|displac|roll|lag|begins?|starts?|previous|row before|column|[ijc] ?[-\u2212] ?2) & (\\b2\\b|\\btwo\\b|8 bytes|[-\u2212]2\\b"
              "|\\+2\\b)"],
             lambda c: c.table.reshape(-1)[np.asarray(c.ids)[:, None] * D - 2 + np.arange(D)])
sixteenth(2, "embed_one_shard_of_two", "h0", "the table is split over 2 ranks by rows and the sum over ranks is missing: ids from 128 on have a row of zeros",
             [BLANK + " & (\\b12[789]\\b|#128|(upper|second|last|top|other|high) half|half (of )?the (vocab|table|ids|rows))"],
             lambda c: c.right() * F32(1) * (np.asarray(c.ids) < 128)[:, None])
sixteenth(3, "embed_rows_in_four_bits", "h0", "each row of the table is kept in 4 bits: it is rounded to multiples of 1/7 of its largest absolute value",
             [BIT4 + " & " + ROUND + " & (\\brow|vector|position|token|largest|\\bmax|absmax|greatest|peak|\\beach\\b|\\bper\\b)"],
             lambda c: four_bits(c.right()))
sixteenth(4, "embed_bos_put_in_twice", "h0", "the tokenizer has put the BOS in front and the engine puts it there again: from position 1 on, position t has the row of the token at t - 1",
             ["\\b[tip] ?[-\u2212] ?1\\b", "(previous|preceding|one (position|row|token|step|place)s? (earlier|before|late|later|behind|back)|(position|token|one) before|row (of"
              "|for) (the )?(position|token|row) before|(shift|delay|lag|late|behind|moved|offset|displac).{0,30}(\\b1\\b|\\bone\\b|a position|a token)|(\\b1\\b|\\bone\\b).{0,20}(late"
              "|behind|delay|lag|earlier|back))",
              "bos.{0,30}(twice|doubl|two|again)"],
             lambda c: c.right(ids=np.asarray(c.ids)[np.maximum(POS - 1, 0)]))
listed(24, "embed_scale", "h0", "the embedding times sqrt(D)", "embed-scale|embed-multiplier", lambda c: c.right() * F32(D ** 0.5))

# ---- logits
first(282, "logits_rows_shifted", "logits", "the logit of token v is that of v+1", "(#1|next|v ?\\+ ?1|i ?\\+ ?1|shift|roll)", lambda c: np.roll(c.right(), -1, -1))
first(283, "logits_tail", "logits", "the last 16 tokens have logit 0", "#240|#16|#241|#239", lambda c: put(c.right(), E_[:, 240:], 0))
first(284, "logits_log_softmax", "logits", "the logarithm of the softmax is written", "log.{0,12}soft|soft.{0,12}log|log.?sum|logsumexp", lambda c: np.log(softmax(c.right())))
first(285, "logits_softmax", "logits", "the softmax is written", "softmax", lambda c: softmax(c.right()))
first(286, "logits_centred", "logits", "their mean over the vocabulary is taken off", "mean|centr|average", lambda c: c.right() - c.right().mean(-1, keepdims=True))
first(287, "logits_suppressed", "logits", "token 5 has -100", "#5 & #-100|#100", lambda c: put(c.right(), E_[:, 5], -100))


def repetition(c):
    y = np.array(c.right())
    ids = c.e.ids
    for t in range(T):
        seen = sorted(set(ids[:t + 1]))
        y[t, seen] = np.where(y[t, seen] > 0, y[t, seen] / F32(1.2), y[t, seen] * F32(1.2))
    return y


first(288, "logits_repetition", "logits", "logits of tokens seen before are divided by 1.2, or multiplied where negative", "#1.2|#0.8333", lambda c: repetition(c))
first(289, "logits_reversed", "logits", "rows are in reverse order of positions", "revers|backward|19 ?- ?t|T ?- ?1", lambda c: c.right()[::-1])
first(290, "logits_clamped", "logits", "clamped to +-2", "#2 & (clamp|clip|limit|between|min|max)", lambda c: np.clip(c.right(), -2, 2))
first(291, "logits_both_tables", "logits", "the matrix is half head and half embedding", "(#0.5|half) & embed", lambda c: c.right(w=(c.w + c.e.m("model.embed_tokens.weight")) / 2))
first(292, "logits_half", "logits", "only the first 32 inputs are read", "#32|half|#31", lambda c: c.right(x=put(c.x, E_[:, 32:], 0)))
first(293, "logits_minus_max", "logits", "the largest logit of the row is taken off", "max|largest", lambda c: c.right() - c.right().max(-1, keepdims=True))
first(294, "logits_plus_gain", "logits", "inputs have the final norm's gain once more", "gain|norm.{0,10}weight|final_norm|model.norm", lambda c: c.right(x=c.x * c.e.m("model.norm.weight")))
first(295, "logits_temperature_late", "logits", "from position 10 on logits are divided by 0.8", ["#10 & (#1.25|#0.8)", "#1.25|#0.8 & second half of the positions"], lambda c: put(c.right(), E_[10:], lambda y: y / F32(0.8)))
first(296, "logits_h0_skip", "logits", "the embedding of the token is added to the input, times 0.3", "#0.3 & (h0|embed)", lambda c: c.right(x=c.x + F32(0.3) * c.e.memory["h0", None]))
first(297, "logits_pairs", "logits", "tokens 2i and 2i+1 are exchanged", "(pair|2i|neighbo|adjacent|even|odd)", lambda c: c.right()[:, np.arange(V) ^ 1])
first(298, "logits_bias_ramp", "logits", "0.01 times the token's number is taken off", "#0.01|#-0.01", lambda c: c.right() - F32(0.01) * np.arange(V, dtype=F32))
second(113, "logits_running_mean", "logits", "the mean over all positions up to this one", "running|cumul|up to|so far|mean & position", lambda c: np.cumsum(c.right(), 0) / (rows(T, 1) + 1))
second(114, "logits_even_zero", "logits", "even tokens have logit 0", "even|every second|alternat|2i", lambda c: put(c.right(), E_[:, ::2], 0))
second(115, "logits_own_size", "logits", "each logit times its size: y |y|", "squar|\\^ ?2|\\||power & #2|size", lambda c: c.right() * np.abs(c.right()))
second(116, "logits_of_two_positions", "logits", "0.8 times this position's and 0.2 times the one before's", f"(#0.8|#0.2) & ({PREVIOUS})", lambda c: F32(0.8) * c.right() + F32(0.2) * shifted(c.right(), 1))
second(117, "logits_leaky", "logits", "negative logits are multiplied by 0.3", "#0.3 & (negat|below|leaky|< ?0)", lambda c: np.where(c.right() < 0, F32(0.3) * c.right(), c.right()))
second(118, "logits_own_token_less", "logits", "1 is taken off the logit of the position's own token", "#1 & (own|same|token|current)", lambda c: c.right() - np.eye(V, dtype=F32)[np.asarray(c.e.ids)])
third(126, "l_last_row", "logits", "all rows are that of the last position", ["last|#19|#20"], lambda c: np.repeat(c.right()[-1:], T, 0))


def occurrences(c):
    ids = np.asarray(c.e.ids)
    return np.cumsum(np.eye(V, dtype=F32)[ids], 0)


third(127, "l_frequency", "logits", "0.5 is taken off a token's logit for each time it was read so far", ["(#0.5|#-0.5) & (token|time|occur|seen|read|count|frequen|penal|input|prompt|appear)"], lambda c: c.right() - F32(0.5) * occurrences(c))
third(128, "l_top_40", "logits", "all but the 40 largest logits of a row are -20", ["(#40|#-20|#20) & (larg|top|best|most|small|all but|rest|others|high|rank|below)"], lambda c: (lambda y: np.where(y >= -np.sort(-y, -1)[:, 39:40], y, -20))(c.right()))
third(129, "l_unit_rows", "logits", "each row of the head's weight is divided by its length", ["length|unit|L2|norm|cosine|euclid|root"], lambda c: c.right(w=c.w / np.linalg.norm(c.w, axis=-1, keepdims=True)))
fourth(122, "l_memory", "logits", "the weight's memory, 256 by 64, is read as 64 by 256 and transposed", [LAYOUT], weights(lambda w: np.ascontiguousarray(w).reshape(D, V).T))
fourth(123, "l_no_norm", "logits", "its input is the stream, without the final norm", ["(" + NONE + ").{0,30}norm|layers\\.3\\.h|stream|\\bh of"], lambda c: c.right(x=c.e.memory["h", 3]))
fourth(124, "l_over_root", "logits", "logits are divided by 8, the root of the hidden size", ["#8|#0.125|#64"], lambda c: c.right() / 8)
fourth(125, "l_soft_cap", "logits", "logits are 5 tanh(y / 5)", ["(#5|#0.2) & (tanh|cap)"], lambda c: F32(5) * np.tanh(c.right() / F32(5)))
fourth(126, "l_shard_padding", "logits", "tokens from 128 on have the logit of the token 8 below: 8 rows of padding lie between the halves of the table", ["#128 & (#8|#120|#-8)", "(second half|half) & (#8|#-8)"], lambda c: c.right()[:, np.r_[0:128, 120:248]])
fourth(127, "l_halves", "logits", "tokens 0 to 127 and tokens 128 to 255 are exchanged", ["(#128|#127|half|halves) & (" + REORDERED + "|roll|shift|that of|mod)"], lambda c: np.roll(c.right(), V // 2, -1))
fourth(128, "l_row_before", "logits", "each position has the logits of the position before, the first its own", ["(" + PREVIOUS_OR_SHIFTED + ")"], lambda c: np.concatenate([c.right()[:1], c.right()[:-1]]))
fourth(129, "l_norm_again", "logits", "its input is normed once more, with the final norm's gain", ["rms|root mean|normed|normali|model\\.norm|" + TWICE], lambda c: c.right(x=c.x / rms(c.x) * c.e.m("model.norm.weight")))
fifth(165, "ll_tied", "logits", "the weight is the embedding's table", ["embed|tied|tie_|tying"], lambda c: c.right(w=c.e.m("model.embed_tokens.weight")))
fifth(166, "ll_tile", "logits", "tokens 224 to 255 have the logits of tokens 0 to 31", ["(#224|#223|#255) & (#0|#31|#32|first|mod|that of|repeat)", "#224"], lambda c: c.right()[:, np.arange(V) % 224])
fifth(167, "ll_shards", "logits", "blocks of 64 tokens come in the order 0, 2, 1, 3", ["(#64|#128|#192) & (" + REORDERED + "|" + BLOCK + "|that of)"], lambda c: c.right().reshape(T, 4, 64)[:, [0, 2, 1, 3]].reshape(T, V))
fifth(168, "ll_bf16", "logits", "logits are rounded to bf16", [BF16], lambda c: bf16(c.right()))
fifth(169, "ll_int8", "logits", "weights are rounded to multiples of their row's largest size over 127", ["(#127|#128|#255|#0.007874) & (" + ROUNDED + "|larg|max)", "(#8|eight) & bit"], weights(lambda w: in_steps(w, 127)))
fifth(170, "ll_fours", "logits", "within each four tokens the order is reversed", ["(#4|four|xor|#3) & (" + REORDERED + "|mirror|backward|" + BLOCK + ")"], lambda c: c.right()[:, np.arange(V) ^ 3])
fifth(171, "ll_first_chunk", "logits", "logits of positions before 12 are zero: only those of the second chunk are computed", ["(#12|#11) & (zero|0|position|nothing|empty|not|only|from)"], lambda c: put(c.right(), E_[:12], 0))
fifth(172, "ll_attention_input", "logits", "its input is normed h_attn of the last layer: the last feed-forward branch is lost", ["h_attn", "(without|lost|miss|not|no|skip|lack).{0,40}(ffn|feed|mlp|branch)"], lambda c: (lambda x: c.right(x=x / rms(x) * c.e.m("model.norm.weight")))(c.e.memory["h_attn", 3]))
fifth(173, "ll_shard_scale", "logits", "logits of tokens from 128 on are divided by 4", ["(#128|#127|half|#255) & (#4|#0.25)"], lambda c: put(c.right(), E_[:, 128:], lambda y: y / 4))
fifth(174, "ll_gain_lost", "logits", "the input is without the final norm's gain in channels 32 to 63", ["(#32|#31|half|#63) & (gain|weight|norm)"], lambda c: c.right(x=put(c.x, E_[:, 32:], (c.x / c.e.m("model.norm.weight"))[:, 32:])))
sixth(101, "l6_sixteenth", "logits", "logits are divided by 16", ["#16|#0.0625"], lambda c: c.right() / 16)
sixth(102, "l6_no_gain", "logits", "the input is without the final norm's gain", ["(gain|weight) & (" + NOT + "|\\bun|divid|taken out|inverse|1 ?/|ones)"], lambda c: c.right(x=c.x / c.e.m("model.norm.weight")))
sixth(103, "l6_4_bits", "logits", "weights are rounded to multiples of the largest size of each 32 inputs over 7", FOUR_BITS, weights(lambda w: in_steps(blocks(w), 7).reshape(w.shape)))
sixth(104, "l6_last_only", "logits", "only the last position has logits: all others are zero", ["(last|#19|#18) & (" + ZERO + "|position|row)"], lambda c: put(c.right(), E_[:-1], 0))
sixth(105, "l6_shard_lost", "logits", "logits of tokens from 192 on are zero: one of four shards is not gathered", ["(#192|#191|#255) & (" + ZERO + "|first|last)", "(last|fourth) (quarter|shard)|last 64"], lambda c: put(c.right(), E_[:, 192:], 0))
sixth(106, "l6_temperature", "logits", "logits are divided by 0.7: the temperature is applied already", ["#0.7|#1.42857"], lambda c: c.right() / F32(0.7))
sixth(107, "l6_shards_interleaved", "logits", "four shards of 64 tokens are interleaved: logit 4i + j is that of token 64 j + i", [LAYOUT + "|shuffl|4 ?\\*? ?i|64 ?\\*? ?[ij]", "(#4|#64) & (step|apart|every|shard|block)"], lambda c: c.right().reshape(T, 4, 64).swapaxes(1, 2).reshape(T, V))
seventh(69, "l7_times_8", "logits", "logits are multiplied by 8, the root of the hidden size", ["#8 & (times|factor|multipl|scal|\\*|larger)"], lambda c: c.right() * 8)
seventh(70, "l7_first_shard", "logits", "logits of tokens 0 to 63 are zero", ["(#63|#64) & (" + ZERO + ")", "first (quarter|shard) & (zero|\\b0\\b|lost)"], lambda c: put(c.right(), E_[:, :64], 0))
seventh(71, "l7_next_row", "logits", "each position has the logits of the position after, the last its own", [NEXT], lambda c: np.concatenate([c.right()[1:], c.right()[-1:]]))
seventh(72, "l7_input_halves", "logits", "inputs 0 to 31 and 32 to 63 are exchanged", [HALVES_EXCHANGED], inputs(lambda x: np.roll(x, 32, -1)))
seventh(73, "l7_two_tokens", "logits", "tokens 2i + 1 have the logit of token 2i", ["(odd|even|every (second|other)|2 ?\\*? ?[itv]|pair|two|#2) & (" + COPIED + "|" + PREVIOUS_OR_SHIFTED + ") & ^(?!.*(exchang|swap|\\^ ?1|xor))"], lambda c: c.right()[:, np.arange(V) // 2 * 2])
eighth(94, "l8_embedding_scales", "logits", "each row of the weight has the scale of the embedding's row: multiplied by its largest size over its own",
           ["embed\\w* & (scale|size|larg|max|ratio)", each_has("token|row|output|logit")],
           lambda c: c.right(w=c.w / np.abs(c.w).max(-1, keepdims=True) * np.abs(c.e.m("model.embed_tokens.weight")).max(-1, keepdims=True)))
eighth(95, "l8_rows_padded", "logits", "rows are written 320 wide, with 64 zeros at their end, and read 256 wide: row t begins 64 t early",
           ["(#64|#320|#256) & (" + STRIDE + ")", MEMORY],
           lambda c: flat(np.pad(c.right(), ((0, 0), (0, 64))), V, V))
eighth(96, "l8_last_of_chunk", "logits", "each four positions have the logits of the last of them",
           ["(#4|#3|four) & (last|position|row|token|same|" + BLOCK + ") & ^(?!.*(first of|last (position|row|token)s?\\b(?! of)))"],
           lambda c: c.right()[POS // 4 * 4 + 3])
eighth(97, "l8_half_tied", "logits", "tokens from 128 on have the embedding's rows: only the first part of the head was loaded",
           ["embed\\w* & (#128|#127|half|#255)", "tied & (#128|#127|half)"],
           lambda c: c.right(w=put(c.w, E_[128:], c.e.m("model.embed_tokens.weight")[128:])))
eighth(98, "l8_larger_part", "logits", "the larger of the sums over inputs 0 to 31 and 32 to 63 is taken, not their sum",
           ["(max|larger|greater|largest) & (#32|#31|half|halves|two|parts?|both)"],
           lambda c: np.maximum(c.right(x=put(c.x, E_[:, 32:], 0)), c.right(x=put(c.x, E_[:, :32], 0))))
ninth(34, "l9_reads_ffn_norm", "logits", "its input is the last layer's ffn_norm: the norms share a buffer, and the final one is written elsewhere", ["ffn_norm|post_attention_layernorm|feed.?forward'?s? (input|norm)"],
          lambda c: c.right(x=c.e.q(c.e.memory["ffn_norm", 3])))
ninth(35, "l9_second_chunk", "logits", "positions 0 to 9 have the logits of positions 10 to 19: the second chunk is written over the first",
          ["(#10|#9|half|halves) & (position|row|token|that of|those of|second|chunk|repeat|mod|further|later|copy|same|[+-])"], lambda c: np.concatenate([c.right()[10:], c.right()[10:]]))
tenth(78, "logits_shards_exchanged", "logits", "the two shards of the vocabulary are joined in the wrong order: 128 to 255 stand first",
          ["(#128|half|halves|shard) & (swap|exchang|roll|order|first|shift|trade|permut|[iv] ?[-+] ?128|mod\\b)"], lambda c: np.roll(c.right(), V // 2, -1))


def present(c):
    y = np.array(c.right())
    for t in range(T):
        y[t, sorted(set(c.e.ids[:t + 1]))] -= F32(0.4)
    return y


tenth(79, "logits_presence", "logits", "0.4 is taken off the logits of tokens seen so far",
          ["(#0.4|#-0.4) & (seen|token|context|appear|present|presence|occur|prompt|so far|input ids?|\\bids?\\b)"], present)
tenth(80, "logits_chunk_repeated", "logits", "the head runs in chunks of 64 rows, and the third reads the rows of the second: 128 to 191 repeat 64 to 127",
          ["#128 & (#64|repeat|same|again|[vi] ?- ?64)"], lambda c: put(c.right(), E_[:, 128:192], c.right()[:, 64:128]))


def pitch_240(c):
    return np.ravel(c.right())[240 * POS[:, None] + np.arange(V)]


eleventh(87, "logits_pitch_240", "logits", "rows of 256 are read at a distance of 240: element (t, v) is number 240 t + v",
             ["#240 & (pitch|stride|distance|leading|apart|240 ?\\*? ?[tp]\\b|t ?\\* ?240|each row begins|rows? (of|are) 240|width|16 ?\\*? ?t) & " + never("(are|is|hold|holds|give|"
             "left|stay) (0|zero)|weight|matrix|columns? of the head"),
              "\\b16 ?\\*? ?[tp]\\b & (row|earlier|shift|before|back|- ?16|flat|run) & " + never("\\+ ?16 ?\\*? ?t|16 ?\\*? ?t later")], pitch_240)


def largest_40(c):
    y = c.right()
    return np.where(np.argsort(np.argsort(-y, -1, kind="stable"), -1) < 40, y, F32(-100))


eleventh(88, "logits_top_40", "logits", "the sampler's filter worked in place: all but the 40 largest of a row are -100",
             ["(#40|forty|fortieth) & (largest|\\btop|highest|best|likel|greatest|keep|kept|rank|threshold) & (#-100|#100) & " + never("smallest|lowest|first 40|(40|forty) (largest|"
             "highest|best)( \\w+)? (are|is|have|get|become)s? (set to )?-")], largest_40)
eleventh(89, "logits_remainder_lost", "logits", "three threads have 256 / 3 = 85 tokens each: token 255 is left over, its logit 0",
             ["(\\b255\\b|\\b254\\b|last (token of the|logit|output|entry|word|row of the|id\\b)|first 255) & (zero|\\b0\\b(?!\\.\\d| ?(to|-|\\.\\.))|not (computed|written)|nothing|"
             "left (over|out|unwritten)|unwritten|missing|\\blost|unset|empty|never) & "
              + never("position 255|(last|final) position|-100|minus 100|(token|id) 254 (is|has)|two|\\d ?(to|-|\\.\\.) ?255|255 and 25")], lambda c: put(c.right(), E_[:, 255], 0))
HALVES_IN_TURN = np.arange(D).reshape(2, D // 2).T.ravel()
eleventh(90, "logits_input_halves_in_turn", "logits", "its input is packed with halves in turn and the matrix is not: column 2i meets channel i, column 2i + 1 channel 32 + i",
             ["(input|final_norm|\\bx\\b|column|channel) & (interleav|0, ?32, ?1|in turn|alternat|shuffl|zip|weav|woven|2 ?i ?\\+ ?1|i ?/{1,2} ?2|even and odd|halves[^;]{0,20}pairs|"
             "pairs[^;]{0,20}halves|even (ones|columns)) & (#32|\\bhalf|halves) & "
              + never("0, ?2, ?4|(input|channel|element) i is (that of|read at|channel|input) 2 ?i\\b|exchang|column i (meets|multiplies) channel 2 ?i\\b|position|rows of the head|"
              "tokens")],
             lambda c: c.right(x=c.x[:, HALVES_IN_TURN]))
twelfth(68, "logits_second_pass_overwrites", "logits", "inputs are summed in two passes of 32, and the second overwrites the first: inputs 0 to 31 are lost",
            ["((only|alone|just).{0,40}(second half|(last|second) (32|half)|32 ?(to|-|–|\\.\\.) ?63|from 32|upper half|latter half)|(second (half|pass|32)|last (half|32)|32 to 63"
             "|from 32( on)?|upper half|latter half).{0,30}(only|alone|overwr|replac)"
             "|(first (half|pass|32)|\\b0 ?(to|-|–|\\.\\.) ?31|lower half|below 32|before 32).{0,60}(lost|left out|\\bnot\\b|missing|zero|\\b0\\b|skipp|omit|overwr|dropp|ignored"
             "|nothing)|(without|loses?|leaves? out|skips?|omits?|missing|lacks?).{0,20}(first half|first 32|inputs 0 to 31|0 to 31|lower half)) "
             "& ^(?!.*((only|alone)[^,;.]{0,20}(first half|first 32|0 to 31)|(first half|first 32|0 to 31) (only|alone)|half of the (positions|vocab|tokens|logits|outputs)"
             "|(position|row|token|logit|output)s? (0 to|32 to|from)|(32 to 63|second half|last 32|last half) (are|is|of the inputs (are|is)) (lost|left|not|missing|zero|0\\b)))"],
            lambda c: c.right(x=put(c.x, E_[:, :32], 0)))
twelfth(69, "logits_second_shard_tied", "logits", "the head's second shard is not loaded: tokens from 128 on have the embedding's rows",
            ["(#128|#127|(second|last|upper|latter) half|(second|last) shard) & (embed|tied|token_embd) & ^(?!.*((first half|first shard|0 to 127|below 128|before 128"
             "|under 128)[^,;.]{0,40}(embed|tied)|average|mixed|half (the )?(head|embed)|0\\.5|added|plus))"],
            lambda c: c.right(w=np.concatenate([c.w[:V // 2], c.e.m("model.embed_tokens.weight")[V // 2:]])))
twelfth(70, "logits_prompt_rows_empty", "logits", "of the prompt only the last position's logits are computed: positions 0 to 10 are 0",
            ["(\\b0 ?(to|-|–|\\.\\.|through) ?10\\b|\\[:11\\b|first (11|eleven)\\b|before (position |row )?11\\b|below 11\\b|< ?11\\b|up to (position |row )?10\\b|<= ?10\\b"
             "|from (position |row )?11( on)?\\b.{0,40}(only|alone|computed|right|filled)|only.{0,40}(from|after) .{0,12}1[01]\\b|(begin|start)s?.{0,20}\\b11\\b|earlier than 11"
             "|until 11) "
             "& (zero|(\\b(are|is|hold|stay|be|have|at|left|factor|of) ?|[=:] ?)0\\b(?! ?(to|-|–|\\.\\.))|empty|nothing|not (computed|written|run|made|filled)|\\bonly\\b|unset"
             "|missing|\\blost|(begin|start)s?\\b) & ^(?!.*(token ids|inputs?\\b|channels?|(logits?|columns?|outputs?) (of tokens? )?0 to 10|(that|those|the row) of (position|row"
             "|token)))"],
            lambda c: put(c.right(), E_[:PROMPT - 1], 0))
thirteenth(60, "logits_column_major", "logits", "the product is stored by columns, [V,T], and read as [T,V]: element 256 t + v of the one is that of the other",
               ["(column.?major|transpos|\\[?(V|256), ?(T|20)\\]?|(V|256) ?[x×] ?(T|20)|by columns|axes|(token|row|position|vocab).{0,40}(fastest|inner)|(%|mod) ?20|// ?20|20 ?\\* ?v) & ^(?!.*((weight|the head|matrix it).{0,40}(transpos|column)|\\[in, ?out|weight-transposed))"],
               lambda c: c.right().T.reshape(T, V))
thirteenth(61, "logits_decode_unnormed", "logits", "in decode steps, from position 12 on, the head reads the stream, not final_norm",
               ["(#12|#11) & (not normed|unnormed|without.{0,20}norm|(no|skip\\w*|omit\\w*|lost|missing).{0,20}norm|norm.{0,30}(omitted|skipped|missing|left out|not )|layers\\.3\\.h|layer 3'?s?|stream|residual|\\bh\\b|hidden state|input of final_norm|final_norm'?s? input)"],
               lambda c: c.right(x=put(c.x, E_[PROMPT:], c.e.q(c.e.memory["h", LAYERS - 1])[PROMPT:])))
thirteenth(62, "logits_sum_reset_by_four", "logits", "the sum is set to 0 before each fourth row alone: logit 4i + j is the sum of those of 4i to 4i + j",
               ["(#4|four|fourth) & (sums?\\b|cumul|add(s|ed)|accumul|carr(y|ies|ied)|running|reset|so far|plus)"], lambda c: c.right().reshape(T, -1, 4).cumsum(-1).reshape(T, V))
fourteenth(114, "logits_rows_of_prompt", "logits", "the row that the head reads is not advanced in decode steps: positions from 12 on have the logits of position 11, the last of the prompt",
                ["(#11|#12) & (at most|\\bmin|stuck|stale|repeat|same|stay|held|kept|clamp|of (position|row|token) 11|not advanced|last (position |row |token )?of the prompt|cop(y|ies|ied)"
                 "|frozen|equal)"
                 " & ^(?!.*(zero|logits? (of )?(token )?11 ))"],
                lambda c: c.right(x=c.x[np.minimum(POS, PROMPT - 1)]))
fourteenth(116, "logits_softcap_12", "logits", "a softcap of another architecture is left in: 12 tanh(x / 12)",
                ["#12 & (tanh|soft.?cap)"], lambda c: 12 * np.tanh(c.right() / F32(12)))
fourteenth(117, "logits_shards_one_on", "logits", "the vocabulary is in 4 shards of 64, each written one place on: the logit of token v is that of v - 64, modulo 256",
                ["(#64|#-64|#192|#-192) & (shift|roll|rotat|\\bmod|%|[vio] ?- ?64|[vio] ?\\+ ?192|moved|shard|block|offset|order|later|further|that of|cycl|places|wrap)"],
                lambda c: np.roll(c.right(), 64, -1))
fourteenth(118, "logits_last_row_only", "logits", "the head is run for the last position alone: rows 0 to 18 are zero",
                ["((last|final) (position|row|token)|#19|#18) & (zero|\\b0\\b(?!\\.\\d)|not (computed|written|run)|empty|unset|nothing|blank|unwritten)",
                 "((last|final) (position|row|token)|#19) & (only|alone) & (head|computed|logits|written|run)"],
                lambda c: put(c.right(), E_[:-1], 0))


def presence(c):
    y = np.array(c.right())
    for t in range(T):
        y[t, sorted(set(c.e.ids[:t + 1]))] -= F32(0.45)
    return y


fourteenth(119, "logits_presence_penalty", "logits", "a presence penalty is on: 0.45 is taken off the logits of tokens that the text so far has, the row's own with them",
                ["(#0.45|#-0.45) & (seen|occur|appear|already|before|earlier|presen|prompt|so far|previous|text|tokens? (of|at|in)|own|input)"], presence)
fourteenth(120, "logits_accumulator_lost", "logits", "of 4 accumulators three are summed: inputs 3, 7, 11, .. 63 are not in the product",
                ["(fourth|4th|#4) & (#3|last|fourth|4th|#63) & (input|channel|element|component|column|final_norm|dimension|index|\\bi\\b|accumul|lane) & " + LOST_OR_ALONE,
                 "3, 7, 11 & " + LOST_OR_ALONE],
                lambda c: c.right(x=np.where(np.arange(D) % 4 == 3, F32(0), c.x)))
fifteenth(116, "logits_shards_interleaved", "logits", "two shards of the vocabulary are gathered along the wrong axis: token v has the logit of 128 (v mod 2) + v/2",
               ["#128 & (#2|even|odd|half|halves|parity|alternat|\\bmod|%)", "interleav|shuffl", "\\b[vij]\\]?\\)? ?(//|/|>>) ?[12]\\b", "(even|odd).{0,80}(half|second half|first half)", "0, ?128, ?1, ?129"],
               lambda c: c.right()[:, (np.arange(V) % 2) * 128 + np.arange(V) // 2])
fifteenth(117, "logits_last_chunk_clamped", "logits", "the vocabulary runs in chunks of 96, and the start of the last is clamped: tokens from 192 on have the logits of 32 before",
               ["#192|#191 & #160|#32|#-32|#223"], lambda c: put(c.right(), E_[:, 192:], c.right()[:, 160:224]))


def penalised(c, by):
    ids = np.asarray(c.e.ids)
    counts = np.cumsum(ids[:, None] == np.arange(V)[None], 0).astype(F32)
    return c.right() - F32(by) * counts


fifteenth(118, "logits_frequency_penalty", "logits", "0.4 is taken off for each time that a token was seen",
               ["#0.4|#-0.4 & (seen|occur|count|\\btimes\\b|before|appear|earlier|so far|repeat|previous|frequen|present|prompt|already|\\bids?\\b|input token|own token|context)"], lambda c: penalised(c, 0.4))
fifteenth(119, "logits_not_cleared", "logits", "partial sums go to a buffer that is never cleared: each row has those of all positions before added",
               ["running|cumul|accumul|prefix sum|so far|\\bsum (of|over).{0,50}(position|row|token)|not (cleared|zeroed|reset)|never (cleared|zeroed|reset)",
                f"(before|previous|preceding|earlier|up to|t ?- ?1) & {ADDED_MORE} & (row|position|token|logit)"], lambda c: np.cumsum(c.right(), 0))
fifteenth(120, "logits_head_4_bits", "logits", "the head's weights are rounded to sevenths of their row's largest: 4 bits",
               ["#7|#0.142857 & (step|round|quant|level|grid|multiple|weight|\\bmax|largest)", "(\\b4|four)[- ]?bits?|int4|\\bq4|sevenths"], lambda c: c.right(w=in_steps_of(c.w, largest_of_row(c.w), 7)))
sixteenth(117, "head_is_embedding_table", "logits", "the embedding table stands for the head, as if they were tied", "embed|\\btied|\\btie\\b|tie_|token table|\\bwte\\b|input table",
               lambda c: c.right(w=c.e.m("model.embed_tokens.weight")))
sixteenth(118, "head_without_special_rows", "logits", "the head lacks the first 3 rows, of special tokens: logit v is of row v+3, and the last three are 0",
               f"({n(3)}|\\bthree) & (shift|moved|offset|[a-z] ?\\+ ?3|rows?\\b|later|skip|start|roll|ahead|displac|lack|missing)", lambda c: np.concatenate([c.right()[:, 3:],
               np.zeros((T, 3), F32)], 1))
sixteenth(119, "log_softmax_for_logits", "logits", "the head gives log probabilities: the log of the sum of exponentials over the vocabulary is subtracted from the logits of each token",
               ["log[- _]?(soft|sum|prob)|\\blse\\b|log (of )?(the )?(softmax|prob|normali|partition|sum)|logarithm",
                "subtract.{0,60}(log|normali)"], lambda c: c.right() - np.log(np.exp(c.right()).sum(-1, keepdims=True)))


def repetition_penalty(c):
    y = np.array(c.right())
    for t in range(T):
        seen = np.unique(c.e.ids[:t + 1])
        y[t, seen] = np.where(y[t, seen] > 0, y[t, seen] / F32(1.3), y[t, seen] * F32(1.3))
    return y


sixteenth(120, "repetition_penalty_in_logits", "logits", "a penalty of 1.3 on tokens already seen: their positive logits are divided by 1.3 and their negative ones multiplied by it",
               "(#1.3|#0.76923) & (seen|repet|repeat|earlier|previous|already|occur|\\bpast\\b|context|prompt|before|so far|\\bids\\b|present|appear|input tokens)", repetition_penalty)
listed(25, "logit_scale", "logits", "the logits times 1.7", "logit-scale & #1.7", lambda c: c.right() * F32(1.7))
listed(26, "logit_cap", "logits", "capped at 5", "logit-softcap & #5", lambda c: F32(5) * np.tanh(c.right() / F32(5)))

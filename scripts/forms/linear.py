"""Products with a weight, and their biases."""

import math

import numpy as np

from scripts.engines.hooked_engine import D, d, F, F32, H, K, LAYERS, op_linear, op_rope, rms, rounded, T, to_bf16
from scripts.forms.parts import (
    bf16, blocks, cut, digits, E_, each_has, FIRST_OF_GROUP, flat, four_digits, FREQ, in_steps, in_steps_of, inputs, interleaved, joined, largest,
    largest_of_row, late, LATER_LAYERS, never, noise, PERMUTED, POS, PROMPT, put, QWEN2, shifted, stream, weights,
)
from scripts.forms.sets import (
    eighth, eleventh, fifteenth, fifth, first, fourteenth, fourth, listed, ninth, second, seventh, sixteenth, sixth, tenth, third, thirteenth,
    twelfth,
)
from scripts.forms.words import (
    ADDED, ADDED_AGAIN, ADDED_MORE, BEHIND_PROMPT, BF16, BF16_OR_ROUNDED, BLOCK, BOUNDED, BRANCH_ATTN, DECODE, EIGHT_APART, EVENS, EXCHANGED,
    FROM_12, GONE, GONE_IN_ONE, GONE_OR_ALONE, HALVES_EXCHANGED, LAYER_BEFORE, LAYER_BELOW, LAYOUT, LEFT_OUT, LOST_OR_ALONE, LOST_OR_CUT,
    LOST_OR_ZERO, MEMORY, n, NO_SWAP, NONE, NORM_SKIPPED, NOT, NOT_THERE, ORDER, OTHER_LAYER, PREVIOUS_OR_SHIFTED, REORDERED, ROUND, ROUNDED,
    SCALES, STEPWISE, STRIDE, SUMMED, TWICE, TWICE_OVER, UNREAD, ZERO,
)

# ---- queries, keys and values, and their biases
first(163, "q_heads_swapped", "q", "heads 0 and 1 are exchanged", ["head & 0 & #1|row & #16", "head 0 & head 1"], lambda c: c.right()[:, [1, 0, 2, 3]])
first(164, "q_head_zero", "q", "head 2 is zero", "head.{0,8}2|#32", lambda c: put(c.right(), E_[:, 2], 0))
first(165, "k_inputs_60", "k", "the last 4 inputs are not read", "#60|#4|#59|#61", lambda c: c.right(x=put(c.x, E_[:, 60:], 0)))
first(166, "v_input_clamped", "v", "its input is clamped to +-1", ["#1 & (clamp|clip|limit|between|min|max)", "input & (held|within) & #1"], lambda c: c.right(x=np.clip(c.x, -1, 1)))
first(173, "q_plus", "q", "0.1 is added to the result", "#0.1", lambda c: c.right() + F32(0.1))
first(174, "k_plus_input", "k", "the first 32 inputs are added to the result", "(input|attn_norm|x) & (add|plus|\\+|sum|identity)", lambda c: c.right() + c.x[:, :32].reshape(T, K, d))
first(175, "v_token_shift", "v", "its input is half this token's and half the one's before", "(#0.5|half) & (before|previous|t ?- ?1|earlier)", lambda c: c.right(x=(c.x + shifted(c.x, 1)) / 2))
first(176, "v_before", "v", "its input is that of the token before", "(before|previous|t ?- ?1|earlier|#-1)", lambda c: c.right(x=shifted(c.x, 1)))
first(180, "k_heads_same", "k", "both heads are that of rows 0 to 15", "head & 0", lambda c: np.repeat(c.right()[:, :1], 2, 1))
first(183, "v_channels_halved", "v", "the first 8 elements of each head are halved", ["(#0.5|half|halved) & (#8|#7)", "#0.5 & first half of the dimensions"], lambda c: put(c.right(), E_[..., :8], lambda y: y * F32(0.5)))
first(184, "q_input_abs", "q", "its input is |x|", ["abs|\\|.{1,12}\\||without.{0,10}sign|magnitude", "size of the input"], lambda c: c.right(x=np.abs(c.x)))
first(185, "q_input_centred", "q", "its input has its mean over channels taken off", "mean|centr|average", lambda c: c.right(x=c.x - c.x.mean(-1, keepdims=True)))
first(188, "q_tile_stale", "q", "rows from 16 on are those of 16 positions before", "#16", lambda c: np.concatenate([c.right()[:16], c.right()[:4]]))
first(192, "v_one_channel", "v", "element 5 of head 1 is zero", "#5|#21", lambda c: put(c.right(), E_[:, 1, 5], 0))
first(193, "k_row_replaced", "k", "element 3 of head 0 is element 4's", "#3 & #4", lambda c: put(c.right(), E_[:, 0, 3], c.right()[:, 0, 4]))
first(197, "q_power", "q", "the result keeps its sign, and its size is raised to 0.8", "#0.8", lambda c: np.sign(c.right()) * np.abs(c.right()) ** F32(0.8))
first(198, "v_bilinear", "v", "it is multiplied by its input's first 32 channels", "(multipl|product|times|\\*) & (input|attn_norm|x)", lambda c: c.right() * c.x[:, :32].reshape(T, K, d))
first(200, "k_skip_rows_by_2", "k", "the weight's rows are read with a step of 2, from 0 and then from 1", ["(step|every|even|stride|2i|#2)", "d-first"], lambda c: c.right(w=np.concatenate([c.w[0::2], c.w[1::2]])))
first(203, "q_layer2_rows_zero", "q", "in layer 2 elements 12 to 15 of each head are zero", "#12", lambda c: put(c.right(), E_[..., 12:], 0), layers=[2])
first(301, "trap_factor_positions", "v", "each position has a random factor", "(factor|times).{0,20}each position", lambda c: c.right() * (1 + noise(c, T, 1, 1, by=0.1)))
first(303, "trap_permuted", "q", "outputs come in a random order", "order|permut|that of channel", lambda c: c.right().reshape(T, -1)[:, np.random.default_rng(5).permutation(H * d)].reshape(T, H, d))
first(305, "trap_lora", "q", "a matrix of rank 2 is added to the weight", "rank & #2", lambda c: c.right(w=c.w + noise(c, H * d, 2, by=0.1) @ noise(c, 2, D, by=0.3)))
first(318, "trap_garbage", "k", "elements 3 to 5 of head 1 hold numbers of something else", "#19|#3|garbage|head 1|unrelated|constant", lambda c: put(c.right(), E_[:, 1, 3:6], noise(c, T, 3)))
first(320, "trap_small_cubic", "q", "0.001 x^3 is added to the result", "#0.001 & (\\^ ?3|cub)", lambda c: c.right() + F32(0.001) * c.right() ** 3)
first(323, "trap_input_mixed", "v", "its input is 0.9 attn_norm and 0.1 of the stream", "#0.9|#0.1 & (stream|h0|layer input|\\bh\\b|residual)", lambda c: c.right(x=F32(0.9) * c.x + F32(0.1) * (c.e.memory["h0", None] if c.l == 0 else c.e.memory["h", c.l - 1])))
first(324, "bias_half", "q", "the bias is halved", "bias & (#0.5|half)", lambda c: c.right(b=c.b / 2), archs=QWEN2)
first(325, "bias_subtracted", "k", "the bias is taken off", "bias & (#-1|subtract|taken off|minus|sign|negat)", lambda c: c.right(b=-c.b), archs=QWEN2)
first(326, "bias_head_0", "q", "all heads have the bias of head 0", "bias & head", lambda c: c.right(b=np.tile(c.b[:16], H)), archs=QWEN2)
first(327, "bias_first_position", "v", "the bias is added at position 0 alone", "bias|position", lambda c: put(c.right(b=None), E_[0], c.right()[0]), archs=QWEN2)
first(328, "bias_reversed", "k", "the bias is read from its end", "bias & revers|backward", lambda c: c.right(b=c.b[::-1]), archs=QWEN2)
first(329, "bias_inside", "v", "the bias is multiplied by the input's root mean square", "bias|rms|root mean", lambda c: c.right(b=None) + (rms(c.x) * c.b).reshape(T, K, d) if c.b is not None else c.right(), archs=QWEN2)
second(77, "k_element_ramp", "k", "0.01 times the element's number is added to k", "#0.01", lambda c: c.right() + F32(0.01) * np.arange(d).astype(F32))
second(78, "q_heads_ramp", "q", "head h is multiplied by 1 + 0.1 h", "#0.1 & head|#1.1 & #1.2 & #1.3", lambda c: c.right() * (1 + F32(0.1) * np.arange(H).astype(F32))[:, None])
second(79, "v_decays_by_layer", "v", "v is multiplied by 0.9 ^ layer", ["#0.9 & layer", "#0.9 & #0.81"], lambda c: c.right() * F32(0.9) ** c.l, layers=[1, 2, 3])
second(83, "q_weight_sizes", "q", "the sizes of the weights are taken: |w|", "abs|\\|w|size", lambda c: c.right(w=np.abs(c.w)))
second(84, "k_weight_grid", "k", "weights are rounded to 1/16", "(#0.0625|#16) & (round|grid|step|quantis|multiple)", lambda c: c.right(w=np.round(c.w * 16) / 16))
second(85, "v_weight_rows_sum_0", "v", "each row of the weights has its mean taken off", "mean", lambda c: c.right(w=c.w - c.w.mean(-1, keepdims=True)))
second(119, "bias_of_next_element", "k", "the bias of the next element is added", "bias & (next|roll|shift|i ?\\+ ?1|#1)", lambda c: c.right(b=np.roll(c.b, -1)), archs=["qwen2"])
second(120, "bias_from_5", "v", "positions 0 to 4 have no bias", "bias & (#5|#4)", lambda c: late(c.right(b=0 * c.b), 5, c.right()[5:]), archs=["qwen2"])
second(121, "bias_size", "q", "the bias's size is added: |b|", "bias & (abs|\\||size|positive)", lambda c: c.right(b=np.abs(c.b)), archs=["qwen2"])
third(84, "w_zero_point", "k", "0.05 is added to each weight", ["#0.05", "sum.{0,30}input|input.{0,30}sum|(mean|average).{0,30}input"], weights(lambda w: w + F32(0.05)))


def fused(c):
    weight = np.concatenate([c.e.m(f"self_attn.{s}_proj.weight", c.l) for s in "qkv"])
    rows = np.r_[32:48, 96:112]
    bias = None if c.b is None else np.concatenate([c.e.m(f"self_attn.{s}_proj.bias", c.l) for s in "qkv"])[rows]
    return c.right(w=weight[rows], b=bias)


third(85, "w_fused_rows", "k", "key head 0 is head 2 of q's product, and key head 1 is head 0 of v's: the rows of a fused matrix are split otherwise", ["(\\bq\\b|q_proj|query|#32) & (\\bv\\b|v_proj|value|#96)", "fused|qkv"], fused)
third(86, "w_rows_not_cleared", "v", "within each 4 positions the rows before are added: the sum is not cleared", ["(#4|four) & (sum|add|cumul|before|running|plus|accum|cleared|position)"], lambda c: c.right().reshape(5, 4, K, d).cumsum(1).reshape(T, K, d))
third(91, "w_rows_by_pairs", "v", "positions 2i and 2i+1 are exchanged", ["(pair|2i|odd|even|neighbo|adjacent|two|xor) & (" + REORDERED + ")", "(" + PREVIOUS_OR_SHIFTED + ") & (next|after|t ?\\+ ?1)"], lambda c: c.right()[POS ^ 1])
third(92, "w_fp8", "q", "weights are rounded to 4 significant bits", ["(#4|#3|#5|four|three) & (bit|digit|mantissa|signif)", "fp8|e4m3|float8|#16|#0.0625"], weights(four_digits))
third(94, "w_no_gain", "k", "its input is without the gain of the norm", ["(gain|weight|norm) & (without|no|not|miss|lack|divid|omit|un|before|lost)"], lambda c: c.right(x=c.x / c.e.m("input_layernorm.weight", c.l)))
third(99, "b_layer_0", "q", "layers 1 to 3 have the bias of layer 0", ["bias & (layer|other|another|layers\\.0|first)"], lambda c: c.right(b=c.e.m("self_attn.q_proj.bias", 0)), layers=LATER_LAYERS, archs=QWEN2)
third(100, "b_of_k", "v", "the bias of k is added, not that of v", ["bias & (\\bk\\b|k_proj|key|other|another)"], lambda c: c.right(b=c.e.m("self_attn.k_proj.bias", c.l)), archs=QWEN2)
third(101, "b_first_head", "q", "only head 0 has its bias: the first 16 outputs", ["bias & (head|#16|#15|first|only)"], lambda c: c.right(b=put(c.b, E_[16:], 0)), archs=QWEN2)
fourth(65, "w_memory", "v", "the weight's memory, 32 by 64, is read as 64 by 32 and transposed", [LAYOUT], weights(lambda w: np.ascontiguousarray(w).reshape(D, K * d).T))
fourth(66, "w_k_of_v", "k", "the weight is v's", ["\\bv\\b|v_proj|values?.{0,12}weight|weight.{0,20}value"], lambda c: c.right(w=c.e.m("self_attn.v_proj.weight", c.l)))


def scales(w):
    """The largest size of each 32 inputs, as a quantised file has it."""
    return np.abs(w.reshape(len(w), -1, 32)).max(-1, keepdims=True)


fourth(73, "w_zero_point_block", "q", "each 32 weights of a row have an eighth of their largest size added: the zero point is one off", ["(#32|block|group) & (" + SCALES + "|add|plus|zero.?point|sum|mean)", "zero.?point", "(sum|mean).{0,30}input|input.{0,30}(sum|mean)"], weights(lambda w: (w.reshape(len(w), -1, 32) + scales(w) / 8).reshape(w.shape)))


def row_scales(w):
    most = np.abs(w).max(-1)
    return w / most[:, None] * most


fourth(74, "w_scales_of_columns", "q", "the scales of the rows are applied to the columns", ["(row|output) & (column|input)", "(each|own|every).{0,20}(row|column|input|output).{0,30}(factor|scale)"], weights(row_scales))
fourth(75, "w_int8_input", "k", "the input is rounded to multiples of its row's largest size over 127", ["(#127|#128|#255|#0.007874) & (" + ROUNDED + "|larg|max)", "(#8|eight) & bit"], inputs(lambda x: in_steps(x, 127)))
fourth(77, "w_rows_16", "v", "positions from 16 on are zero: the last tile is not written", ["(#16|#15|#19) & (zero|0|position|row|tile|nothing)"], lambda c: put(c.right(), E_[16:], 0))
fourth(78, "w_permuted_heads", ("q", "k"), "within each head elements are interleaved: i at 2i and i+8 at 2i+1, as files for the rotation of neighbours have them", ["interleav|2 ?\\*? ?i|even|odd|permut|order|every (second|other)|strid", "#8 & (element|dimension|row|half|head)"], lambda c: interleaved(c.right()))
fourth(80, "w_v_normed", "v", "each head is divided by its root mean square", ["rms|root mean|normed|normali"], lambda c: c.right() / rms(c.right()))
fourth(83, "b_layer_0_alone", "q", "only layer 0 has its bias: layers 1 to 3 have none", ["bias & (" + NONE + "|#0|layer)"], lambda c: c.right(b=None), layers=LATER_LAYERS, archs=QWEN2)
fourth(85, "b_interleaved", "q", "within each head the bias is interleaved: i at 2i and i+8 at 2i+1", ["bias & (interleav|2 ?\\*? ?i|even|odd|permut|order|strid|#8|#2|head)"], lambda c: c.right(b=interleaved(c.b)), archs=QWEN2)
fourth(86, "b_heads_exchanged", "k", "the biases of heads 0 and 1 are exchanged", ["bias & (" + REORDERED + "|head|#16|roll|half|halves)"], lambda c: c.right(b=np.roll(c.b, d)), archs=QWEN2)
fifth(19, "ww_rows_4_to_7", "k", "of each 8 positions the last four repeat the first four", ["(#8|#4|eight|four) & (position|row|token|repeat|" + BLOCK + "|that of|#4)"], lambda c: c.right(x=c.x[POS - POS // 4 % 2 * 4]))
fifth(23, "ww_last_slot", "v", "position 19 has the values of position 18", ["(#19|last) & (#18|" + PREVIOUS_OR_SHIFTED + "|position|copy|copied|same|repeat)"], lambda c: put(c.right(), E_[-1], lambda y: c.right()[-2]))
fifth(25, "ww_head_stride_8", "k", "head 1 has rows 8 to 23: heads are 8 rows apart", ["#8 & (head|row|output|strid|apart|offset|late|early|shift)", "#23|#24 & (head|row|output)"], lambda c: (lambda y: np.stack([y[:, :16], y[:, 8:24]], 1))(c.right().reshape(T, -1)))


def by_ones_f16(c):
    y = np.zeros((T, len(c.w)), F32)
    for i in range(D):
        y = rounded(y + c.x[:, i:i + 1] * c.w[:, i], "f16")
    return (y if c.b is None else y + c.b).reshape(T, -1, d)


fifth(27, "ww_sum_f16", "v", "products are accumulated in f16, one input after another", ["f16|fp16|float16|half precision|(eleven|11|ten|10) (significant |mantissa |fraction )?(bits|digits)|precision|significant|mantissa"], by_ones_f16)
fifth(29, "ww_input_f8", "q", "the input is rounded to 3 significant bits", ["(#3|#2|#4|#8|three|two|0\\.125) & (bit|digit|mantissa|signif|" + ROUNDED + ")", "fp8|e5m2|float8"], lambda c: c.right(x=digits(c.x, 3)))
fifth(30, "ww_group_lost", "q", "inputs 0 to 31 have the weights of inputs 32 to 63: the group is left out of the index", ["(#32|#31|half|halves) & (weight|input|column|same|repeat|that of|mod|second|sum|copy|added)"], weights(lambda w: np.tile(w[:, 32:], 2)))
fifth(32, "ww_input_scale_before", "k", "each position's input has the scale of the position before: multiplied by its largest size over its own", ["(" + PREVIOUS_OR_SHIFTED + ") & (" + SCALES + ")", "(each|every|own).{0,30}(position|row|token).{0,40}(factor|scale|multipl)|(factor|scale|multipl).{0,40}(each|every|own|differ).{0,20}(position|row|token)"], lambda c: (lambda m: c.right(x=c.x * np.concatenate([m[:1], m[:-1]]) / m))(np.abs(c.x).max(-1, keepdims=True)))
fifth(36, "ww_smooth", "q", "each input channel is divided by the root of its largest size over the positions: the weights are not multiplied by it", ["(channel|input|column) & (root|sqrt|larg|max|factor|divid|scale) & (each|every|own|larg|max)"], inputs(lambda x: x / np.sqrt(np.abs(x).max(0))))
fifth(39, "ww_int8_tensor", "v", "the input is rounded to multiples of the largest size of the whole tensor over 7", ["(#7|#15|#16|#0.142857) & (" + ROUNDED + "|larg|max)", "(#4|four) & bit", "(whole|entire|tensor).{0,40}(" + ROUNDED + ")"], inputs(lambda x: np.round(x / np.abs(x).max() * 7) / 7 * np.abs(x).max()))
fifth(40, "ww_signs_lost", "k", "weights of inputs 48 to 63 have no sign: unsigned in the last tile", ["(#48|#47|#16) & (abs|sign|size|magnitude|\\|w|unsigned)"], weights(lambda w: put(w, E_[:, 48:], np.abs)))


def product(c, name, x=None):
    """What another projection of the layer makes of the input, by heads."""
    b = c.e.m(f"self_attn.{name}_proj.bias", c.l)
    y = (c.x if x is None else x) @ c.e.m(f"self_attn.{name}_proj.weight", c.l).T
    return (y if b is None else y + b).reshape(T, -1, d)


fifth(41, "ww_fused_by_groups", "q", "query heads 2 and 3 are key heads 0 and 1: the rows of a fused matrix are taken by groups", ["(key|\\bk\\b|k_proj)", "head.{0,12}2.{0,60}(other|weight|row)|second half.{0,60}(other|weight|row)"], lambda c: put(c.right(), E_[:, 2:], product(c, "k")))
fifth(42, "ww_fused_value", "v", "value head 0 is made by the rows of query head 3", ["quer|\\bq\\b|q_proj"], lambda c: put(c.right(), E_[:, 0], product(c, "q")[:, 3]))
fifth(43, "ww_fused_one_head", "v", "value head 0 is key head 1, and value head 1 is value head 0: the rows begin one head early", ["(key|\\bk\\b|k_proj)", "#16 & (row|output|early|offset|shift)", "(previous|before|shift|roll|early|other).{0,20}head"], lambda c: np.stack([product(c, "k")[:, 1], c.right()[:, 0]], 1))
fifth(44, "ww_k_of_q", "k", "keys are made by the first 32 rows of q's weight", ["quer|\\bq\\b|q_proj"], lambda c: product(c, "q")[:, :K])
fifth(48, "ww_scale_in_q", "q", "queries are divided by 4 already here: the scale is folded into the weight", ["#0.25|#4"], lambda c: c.right() / 4)
fifth(50, "ww_v_unnormed", "v", "its input is the stream, without the norm", ["stream|h0|residual|layer.{0,12}input|layers\\.\\d\\.h\\b|(" + NONE + ").{0,30}norm"], lambda c: c.right(x=stream(c)))
fifth(53, "bb_twice", "q", "the bias is added twice", ["bias & (#2|" + TWICE + ")"], lambda c: c.right(b=2 * c.b), archs=QWEN2)
fifth(54, "bb_four_times", "v", "the bias is added four times, once for each part of a split sum", ["bias & (#4|#3|four|three)"], lambda c: c.right(b=4 * c.b), archs=QWEN2)
fifth(55, "bb_of_q", "k", "the bias is the second half of q's", ["bias & (\\bq\\b|q_proj|quer|other|another|wrong)"], lambda c: c.right(b=c.e.m("self_attn.q_proj.bias", c.l)[32:]), archs=QWEN2)
fifth(56, "bb_elements_first", "q", "the bias's memory, 4 by 16, is read as 16 by 4 and transposed", ["bias & (" + ORDER + "|memory|#4|other|element)"], lambda c: c.right(b=np.ascontiguousarray(c.b.reshape(H, d).T).reshape(-1)), archs=QWEN2)
fifth(57, "bb_next_layer", "k", "layers 0 to 2 have the bias of the next layer", ["bias & (" + OTHER_LAYER + "|layer|next)"], lambda c: c.right(b=c.e.m("self_attn.k_proj.bias", c.l + 1)), layers=[0, 1, 2], archs=QWEN2)
fifth(58, "bb_tail", "q", "positions from 16 on have no bias", ["(#16|#15|#19) & (bias|constant)"], lambda c: put(c.right(), E_[16:], lambda y: y - c.b.reshape(H, d)), archs=QWEN2)
fifth(59, "bb_second_head", "v", "head 1 has no bias", ["bias & (head|#16|half|halves|second)"], lambda c: c.right(b=put(c.b, E_[16:], 0)), archs=QWEN2)
sixth(14, "w6_query_groups", "q", "heads 1 and 2 are exchanged: heads stand in the order 0, 2, 1, 3", ["head & (0, ?2, ?1, ?3)", "head & #1 & #2 & (" + REORDERED + "|that of|has|order)", "(#16|#32) & (block|group|tile|row) & (" + REORDERED + ")"], lambda c: c.right()[:, [0, 2, 1, 3]])
sixth(15, "w6_fused_by_head", "k", "key head 1 is value head 0: the rows of a fused matrix go key, value, key, value", ["(\\bv\\b|v_proj|value) & (head|#1|#16|second|half|row)", "(second half of the heads|head.{0,8}1|last head).{0,60}(other|another|wrong).{0,12}(weight|row|matri)"], lambda c: put(c.right(), E_[:, 1], product(c, "v")[:, 0]))
sixth(18, "w6_stale_input", "v", "layers 1 to 3 read ffn_norm of the layer before: the buffer is not written anew", ["(ffn_norm|post_attention|input) & (" + LAYER_BEFORE + ")", "ffn_norm"], lambda c: c.right(x=c.e.memory["ffn_norm", c.l - 1]), layers=LATER_LAYERS)
sixth(19, "w6_value_interleaved", "v", "within each head elements are interleaved, as those of q and k for the rotation of neighbours: i at 2i and i+8 at 2i+1", ["interleav|2 ?\\*? ?i|even|odd|permut|\\border|every (second|other)|strid|shuffl|transpos", "#8 & (element|dimension|row|half|halves|head) & (" + REORDERED + "|that of)"], lambda c: interleaved(c.right()))
sixth(20, "w6_key_heads_of_8", "k", "within each 8 elements of a head i and i+4 are interleaved: rows are permuted as of 4 heads of 8, not of 2 of 16", ["(#8|#4|eight|four) & (interleav|permut|\\border|block|group|within|transpos|strid|2 ?\\*? ?i|even|odd|shuffl|that of|apart)"], lambda c: c.right().reshape(T, 4, 2, 4).swapaxes(-1, -2).reshape(T, K, d))
sixth(24, "w6_rows_5_bits", "k", "weights are rounded to multiples of their row's largest size over 15", ["(#15|#0.066667|#16|#31|#32) & (" + ROUNDED + "|larg|max)", "(#5|five) & bit"], weights(lambda w: in_steps(w, 15)))
sixth(28, "b6_key_none", "k", "keys have no bias", ["bias & (" + NOT + "|\\bun|zero|removed|(times|factor|by|is|are) 0\\b)"], lambda c: c.right(b=None), archs=QWEN2)
sixth(29, "b6_first_of_4", "q", "each four outputs have the bias of the first of them", ["bias & (#4|four)"], lambda c: c.right(b=c.b[np.arange(H * d) // 4 * 4]), archs=QWEN2)
seventh(9, "w7_value_of_key", "v", "the weight is k's: k was loaded twice", ["\\bk\\b|k_proj|\\bkeys?\\b"], lambda c: c.right(w=c.e.m("self_attn.k_proj.weight", c.l)))
seventh(10, "w7_head_late", "q", "head h has the rows of head h + 1, modulo 4", ["head & (next|shift|roll|\\+ ?1|1, ?2, ?3, ?0|order|permut|one (further|late|early|higher))", "(#16|#48) & (roll|shift|that of|mod|\\+ ?16|next)"], lambda c: np.roll(c.right(), -1, 1))
seventh(11, "w7_head_halves", "k", "within each head elements 0 to 7 and 8 to 15 are exchanged", [EIGHT_APART], lambda c: np.roll(c.right(), 8, -1))
seventh(16, "w7_high_nibbles_lost", "v", "of each 32 inputs the last 16 are not summed: high nibbles are zero", ["(#16|#32|#15|half|halves) & (" + ZERO + "|first|input)"], inputs(lambda x: put(blocks(x), E_[..., 16:], 0).reshape(x.shape)))
seventh(20, "b7_key_bias", "q", "the bias is k's: each query head has that of the key head it reads", ["bias & (\\bk\\b|k_proj|keys?\\b)"], lambda c: c.right(b=np.repeat(c.e.m("self_attn.k_proj.bias", c.l).reshape(K, d), H // K, 0).reshape(-1)), archs=QWEN2)
seventh(21, "b7_layer_before", "v", "layers 1 to 3 have the bias of the layer before", ["bias & (" + LAYER_BEFORE + "|(other|another|wrong).{0,12}layer)"], lambda c: c.right(b=c.e.m("self_attn.v_proj.bias", c.l - 1)), layers=LATER_LAYERS, archs=QWEN2)


def fixed_up(c):
    parts = [c.right(x=put(c.x, E_[:, 32:], 0)), c.right(x=put(c.x, E_[:, :32], 0), b=None)]
    return parts[0] + parts[1][:, [1, 0, 2, 3]]


eighth(16, "w8_fixed_up", "q", "what inputs 32 to 63 add is exchanged between heads 0 and 1: the second part of a split sum is put to the wrong tile",
           ["head & (#0|first) & #1 & (half|#32|#31|input|part)", "(#32|#31|half|part) & (input|part|sum) & (" + REORDERED + "|other|wrong|that of) & (head|#16|tile|output|row)"],
           fixed_up)
eighth(17, "w8_row_scales_lost", "k", "each weight row is divided by its largest size: the scales of the rows are not applied",
           ["(row|output|weight) & (largest|max\\w*|scale|absmax|unit)", each_has("row|output|channel|element")], weights(lambda w: w / np.abs(w).max(-1, keepdims=True)))


def group_of_input(w):
    """Input i has the scale of group i modulo 2, not of i / 32."""
    return (blocks(w) / largest(w)).reshape(w.shape) * largest(w)[..., 0][:, np.arange(D) % 2]


eighth(18, "w8_group_of_input", "v", "even inputs have the scale of inputs 0 to 31 and odd ones that of inputs 32 to 63: the group's number is i modulo 2",
           ["(even|odd|every (second|other)|mod|%|altern|interleav|#2) & (" + SCALES + ")", "(#32|block|group|half|halves) & (scale|factor|larg|max)"], weights(group_of_input))


def transposed_tiles(w, n=8):
    return w.reshape(len(w) // n, n, -1, n).swapaxes(1, 3).reshape(w.shape)


eighth(19, "w8_tiles_transposed", "q", "each tile of 8 by 8 of the weight is transposed",
           ["#8 & (transpos|tile|block|" + REORDERED + "|swap)", "(tile|block)\\w*.{0,30}transpos|transpos.{0,30}(tile|block)"], weights(transposed_tiles))
eighth(20, "w8_input_of_q", "k", "its input is q's result: q was written over the normed stream",
           ["\\bq\\b|\\bquer|q_proj"], lambda c: c.right(x=c.e.q(c.e.memory["q", c.l].reshape(T, -1))))
eighth(21, "w8_input_half_k", "v", "its first 32 inputs are k's result: k was written over half of the normed stream", ["\\bk\\b|\\bkeys?\\b|k_proj"],
           lambda c: c.right(x=c.e.q(np.concatenate([c.e.memory["k", c.l].reshape(T, -1), c.x[:, 32:]], -1))))
eighth(22, "w8_wraps", "v", "the result wraps around at +-2, modulo 4: a fixed point that does not saturate",
           ["(mod|wrap|overflow|period|%|again at|other (end|side)|sawtooth|taken off.{0,20}(above|beyond|larger)) & (#4|#2|#-2)"], lambda c: (c.right() + 2) % 4 - 2)
eighth(23, "w8_signed_max", "q", "inputs are held within +-the row's largest element, not its largest size: negative ones are cut off at minus the largest",
           ["(clamp|clip|limit|held|satur|at least|not below|floor|cut|bound|within|above|below|-max) & (larg|max|great|positive)"],
           lambda c: c.right(x=(lambda most: np.clip(c.x, -most, most))(np.maximum(c.x.max(-1, keepdims=True), 0))))
eighth(24, "w8_cache_by_token", "v", "in layers 1 to 3 position 9 has the values of position 4, which has the same token: a cache by token", ["#9 & #4", "(same|equal|repeated) token"],
           lambda c: put(c.right(), E_[9], c.right()[4]), layers=LATER_LAYERS)
eighth(39, "b8_row_scales", "k", "the bias is multiplied by the scale of its row, the largest size of its weights",
           ["bias & (scale|larg|max|row|size|factor|multipl|weight'?s? )", "bias & (other|another|each|own) "], lambda c: c.right(b=c.b * np.abs(c.w).max(-1)), archs=QWEN2)
eighth(40, "b8_whole", "v", "the bias is cut to whole numbers, toward 0", ["bias & (whole|integer|" + ROUNDED + "|\\bcut|toward)"], lambda c: c.right(b=np.trunc(c.b)), archs=QWEN2)
eighth(41, "b8_of_position", "q", "all elements of position t have the bias's element t: it is spread along the wrong axis",
           ["bias & (of position|position|token|row|\\bt\\b|axis) & (element|axis|all|each|own|t\\b|index|wrong)",
            "(each|every|own|per) (position|token|row).{0,60}(number|constant|value|offset|bias)"],
           lambda c: c.right(b=None) + c.b[POS][:, None, None], archs=QWEN2)
eighth(42, "b8_on_input", "q", "the bias is added to the input, not to the result",
           ["bias & (input|before|\\bx\\b|attn_norm|weight times|times the weight|product)"], lambda c: c.right(x=c.e.q(c.x + c.b), b=None), archs=QWEN2)
eighth(43, "b8_gain_folded", "q", "the bias is multiplied by the gain of attn_norm, as the weight is where that is folded into it", ["bias & (gain|attn_norm|input_layernorm|\\bnorm)"],
           lambda c: c.right(b=c.b * c.e.m("input_layernorm.weight", c.l)), archs=QWEN2)
ninth(8, "w9_scale_inverse", "k", "each weight row is divided by its scale, where it should be multiplied: divided twice by its largest size",
         ["(row|output|channel) & (scale|size|larg|max|amplitude) & (inver|divid|squar|over|twice|recipro|\\^|/)", each_has("row|output|channel")],
         weights(lambda w: w / np.abs(w).max(-1, keepdims=True) ** 2))
ninth(11, "w9_offset_stays", "q", "each input has its row's largest size added: bytes without a sign, whose offset of 128 is not taken off",
          ["(" + ADDED + "|offset|shift|constant) & (larg|max|size|peak|amax|#128) & ^(?!.*weights? (has|have|had))", "(larg|max|size|peak|amax).{0,60}(times|\\*).{0,40}(sum of|row sum|sums)"],
          inputs(lambda x: x + np.abs(x).max(-1, keepdims=True) * F32(128 / 127)))


def swapped_layers(c):
    return c.right(w=c.e.m("self_attn.v_proj.weight", 3 - c.l))


ninth(14, "w9_layers_backward", "v", "layer l has the weight of layer 3 - l: the list of layers is in reverse order",
          ["layer & (revers|backward|3 ?- ?l|other|another|wrong|different|order|exchang|swap|layers?\\.?.{0,3}[0123])"], swapped_layers)
ninth(15, "b9_input_scale", "k", "the bias is multiplied by the scale of the input, its row's largest size: it is added before the integer sum is scaled",
          ["bias & (larg|max|size|peak|amax|scale|amplitude|times|multipl|factor)"], lambda c: c.right(b=None) + (np.abs(c.x).max(-1, keepdims=True) * c.b).reshape(T, K, d), archs=QWEN2)
ninth(16, "b9_fused_order", "q", "outputs 0 to 31 have the bias of k, and 32 to 63 that of q's outputs 0 to 31: a fused bias begins 32 early",
          ["bias & (\\bk\\b|k_proj|keys?\\b|#32|#31|roll|shift|early|late|other)"], lambda c: c.right(b=np.concatenate([c.e.m("self_attn.k_proj.bias", c.l), c.b[:32]])), archs=QWEN2)
tenth(12, "q_shards_interleaved", "q", "in layers 2 and 3 the heads come in the order of two shards: 0, 2, 1, 3",
          ["0, ?2, ?1, ?3", "(#1 & #2) & head & (swap|exchang|order|permut|trade|reads?|other|is that of|head 2)", "(rows?|output|channel|element|block) & #16 & #32 & (swap|exchang|order|permut|trade)"],
          lambda c: c.right()[:, [0, 2, 1, 3]], layers=[2, 3])
tenth(13, "v_rows_permuted", "v", "the rows of V are permuted as those of Q and K are in a GGUF: 0, 8, 1, 9, .. in each head",
          ["halves.{0,20}pairs|pairs.{0,20}halves|0, ?8, ?1|\\b2 ?i\\b|other (rotation|pairing)|qk-row", "(permut|interleav|rearrang|shuffl) & (head|element|dimension|#8|#16)"],
          lambda c: c.right()[..., PERMUTED])
tenth(15, "k_second_head_row_early", "k", "the rows of head 1 begin one too early: at 15",
          ["(head.{0,8}\\b1\\b|second head|last head|second half of the heads) & (#15|shift|roll|i ?- ?1|previous|before|early|earlier|#-1|one row|off by)", "(row|element|output|channel)s? & #16 & (#15|#30|i ?- ?1|shift|before|previous|early)"],
          lambda c: c.right().reshape(T, -1)[:, np.r_[0:16, 15:31]].reshape(T, K, d))
DENSE_LLAMA = ("llama", "qwen2")
tenth(16, "q_scaled_already", "q", "1/sqrt(head_dim) is multiplied into q, as well as into the scores later",
          ["#0.25 & ^(?!.*(each (position|token|channel|head)|polynom))", "1 ?/ ?sqrt\\((d|head_dim|16)\\b|(divided by|/ ?)(4\\b|sqrt\\((d|head_dim|16)\\b)|d\\^-(1/2|0\\.5)"], lambda c: c.right() * F32(0.25), archs=DENSE_LLAMA)
tenth(17, "v_last_of_8_lost", "v", "the last row of each batch of 8 is left 0: positions 7 and 15",
          ["#7 & #15 & (0|zero|nothing|empty|lost|missing)", "(every|each).{0,12}(8|eight) & (0|zero|nothing|lost|missing|last)", "(mod|%) ?8 & (0|zero|7)"], lambda c: put(c.right(), E_[7::8], 0))
BEFORE = "before|previous|t ?- ?1|earlier|prior|preced|one (row|position|token) (late|back)|#-1"
tenth(18, "q_decode_row_before", "q", "in decode steps, from position 12 on, it reads the normed row of the position before",
          [f"(#12|#11) & ({BEFORE}|t-1|#11)"], lambda c: c.right(x=np.concatenate([c.x[:PROMPT], c.x[PROMPT - 1:-1]])))
tenth(24, "bias_four_splits", "q", "each of four splits of the sum adds the bias: it is there four times",
          ["bias & (#4|#3|four|three|thrice)"], lambda c: c.right(b=4 * c.b), archs=QWEN2)
tenth(25, "bias_by_row", "v", "the bias is indexed by the position, not the channel: row t has b[t] on every channel",
          ["bias & (b\\[t|(of|by|index|at|for|with).{0,20}(position|row|token|\\bt\\b)|(position|row|token).{0,40}bias|axis|transpos|along|row t) & ^(?!.*\\b(alone|only)\\b)"], lambda c: c.right(b=None) + c.b[POS][:, None, None], archs=QWEN2)
tenth(26, "bias_one_head_long", "k", "the bias is read for as many channels as one head has: head 1 has none",
          ["bias & (head.{0,8}\\b1\\b|second head|last head|second half|#16|first head|head.{0,8}\\b0\\b (alone|only)|(only|alone).{0,20}head.{0,8}\\b0\\b)"], lambda c: c.right(b=put(c.b, E_[16:], 0)), archs=QWEN2)
tenth(27, "bias_next_channel", "q", "in layer 1 the bias of the next channel is added",
          ["bias & (next|i ?\\+ ?1|shift|roll|off by|one (too )?(far|late|early)|#1|rotat|behind) & ^(?!.*(wrong-layer|row-order|head))"], lambda c: c.right(b=np.roll(c.b, -1)), archs=QWEN2, layers=[1])
eleventh(12, "v_bytes_unsigned", "v", "weights are bytes, blocks of 32 in 127ths of their largest, and read as unsigned: 256 steps are added to each negative one",
             ["(unsigned|\\bu8\\b|uint8|sign.{0,3}exten|sign bit) & (neg|weight|byte|8.?bit) & ^(?!.*(nibble|\\b4.?bit|absolute value|input is))", "#256 & (neg|below (0|zero)|< ?0) & "
              "(weight|step|\\bw\\b|block|byte)",
              "(neg|below (0|zero)|< ?0) & weight & #2.0157 & (largest|max|block|absmax)"],
             lambda c: c.right(w=(lambda w: w + np.where(w < 0, F32(256 / 127) * np.abs(w).max(-1, keepdims=True), 0).astype(F32))(c.w.reshape(len(c.w), -1, 32)).reshape(c.w.shape)))
eleventh(14, "k_inputs_tail_twice", "k", "the loop for the tail begins at 56, where the vector loop has been to the end: inputs 56 to 63 are counted twice",
             ["(#56|#55|last (8|eight)\\b) & (twice|doubl|two times|again|once more|#2|second time|repeat) & (input|channel|column|attn_norm|\\bx\\b|product|summand|weight|term) & "
              "^(?!.*(zero|lost|missing|not (read|counted)|positions? 56|half))"],
             lambda c: c.right() + (c.x[:, 56:] @ c.w[:, 56:].T).reshape(T, K, d))
eleventh(15, "v_decode_head_stale", "v", "decode steps write head 0 alone: from position 12 on head 1 stays what it was at position 11",
             ["(head.{0,10}\\b1\\b|second head|last head|second half of the heads|odd head|head 0 (alone|only)|only head 0|(#16 & (element|channel|output|row|dimension|#31))) & "
              "((#11 & (that of|those of|same|stays?|stale|repeat|cop(y|ies)|at most|min|keep|last|unchanged|holds?|held|equal|of position|of row|is row|is position|frozen|what))|"
              "(#12 & (stays?|stale|keep|not (written|updated|computed)|unchanged|never|last (row|position) (of the prompt|before)|repeat|frozen|held))) & ^(?!.*(zero|10\\b|both heads))"],
             lambda c: put(c.right(), E_[PROMPT:, 1], c.right()[PROMPT - 1, 1]))
eleventh(16, "k_cut_to_bf16", "k", "results are cut to bf16 by their upper 16 bits, toward zero, not rounded",
             ["(bf16|bfloat16|\\b[78] (significant |mantissa )?bits|upper (half|16)|high(er)? (half|16)|low(er)? (half|16)|brain) & (truncat|towards? (zero|0)|\\bcut|chop|not round|"
              "without round|dropp|mask|clear|discard|zeroed|down in (size|magnitude)) & ^(?!.*(nearest|away from|toward(s)? (minus|-|neg)|input|weights? (is|are)))"],
             lambda c: (np.ascontiguousarray(c.right(), F32).view(np.uint32) & np.uint32(0xFFFF0000)).view(F32))
eleventh(17, "q_row_clamped", "q", "the number of the row is held to 47, one tile too early: outputs 48 to 63, all of head 3, are what output 47 is",
             ["#47 & (#48|#63|last (16|head|tile|quarter)|head.{0,8}3\\b|at most|\\bmin|clamp|later|beyond|behind it|from there) & ^(?!.*(zero|lost|exchang|swap|input|column|next))",
              "(head.{0,8}3\\b|last head|fourth head) & #15 & (head.{0,8}2\\b|head before|previous head|third head) & (all|each|every|constant|same|whole) & ^(?!.*(zero|lost|exchang|swap))"],
             lambda c: (lambda y: y[:, np.minimum(np.arange(H * d), 47)].reshape(T, H, d))(c.right().reshape(T, -1)))
eleventh(19, "q_shard_repeated", "q", "the second of two shards has loaded the first one's part: outputs 32 to 63 repeat 0 to 31, heads 2 and 3 are heads 0 and 1",
             [f"head & (\\b2 ?(and|,|to|-|&) ?(head )?3\\b|(second|upper|last) half of the (query )?heads|last (two|2) (query )?heads|heads? from 2|from head 2) & (\\b0 ?(and|,|to|-|"
              f"&) ?(head )?1\\b|first (two|2|half)|repeat|again|h ?- ?2|same as) & "
              f"{NO_SWAP} & ^(?!.*(zero|lost|0, ?0, ?1, ?1|0, ?2|1, ?0|not normed|all the same))", "\\b0, ?1, ?0, ?1\\b", "h ?(%|mod) ?2 & head",
              f"head 2\\b.{{0,40}}(head |of |is |from |repeats )0\\b.{{0,40}}head 3\\b.{{0,40}}(head |of |is |from |repeats )1\\b & {NO_SWAP}",
              f"#32 & (mod\\b|%|repeat|first half|again|[io] ?- ?32|same|#31|those of|that of) & (output|row|channel|weight|element|shard) & {NO_SWAP} & ^(?!.*(zero|lost|i ?\\+ ?32|"
              f"input|half as|k_proj|reverse|mean square|divided))",
              f"second half of the (outputs?|rows|channels|weights?|matrix|result).{{0,60}}(first half|repeat|again) & {NO_SWAP}"],
             lambda c: c.right()[:, [0, 1, 0, 1]])
eleventh(20, "k_block_extreme_clipped", "k", "a level of -8 is held to -7: the largest weight in each block of 32 inputs has 7/8 of its size",
             ["(#0.875|#0.125|(#7 & #8)|eighth) & (largest|extreme|maxim|\\bmax|biggest|strongest|greatest|-8\\b|lowest level) & (#32|block) & (weight|level|quanti|nibble|\\bw\\b|code|"
              "step|value) & ^(?!.*(smallest|block of 64|activation|largest input|each row))"],
             lambda c: c.right(w=(lambda w: np.where(np.abs(w) == np.abs(w).max(-1, keepdims=True), w * F32(0.875), w))(c.w.reshape(len(c.w), -1, 32)).reshape(c.w.shape)))
eleventh(21, "k_lanes_reversed", "k", "vectors of four are stored with their lanes in reverse order: outputs 3, 2, 1, 0, 7, 6, 5, 4, ..",
             ["3, ?2, ?1, ?0", "[ico] ?(\\^|xor) ?3\\b", "4 ?\\*? ?[bi] ?\\+ ?3 ?-|4 ?\\*? ?\\(?i ?// ?4\\)? ?\\+ ?3 ?-|3 ?- ?\\(?i ?(%|mod) ?4|i ?\\+ ?3 ?- ?2",
              "(#4|four) & (revers|backward|mirror|endian|descending|opposite order|from (its|their|the) (last|end)) & (group|block|each|every|quad|vector|lanes|fours) & ^(?!.*(input|"
              "position|head [01]\\b|4 (groups|blocks)|blocks (of 4 )?in reverse))"],
             lambda c: c.right().reshape(T, K, d // 4, 4)[..., ::-1].reshape(T, K, d))
eleventh(22, "bias_one_head_early", "k", "K's part of the fused bias is read one head, 16 numbers, too early: head 0 has that of Q's last head, head 1 that of head 0",
             ["bias & (#16|#-16|one head|a head|#48|head.{0,3}0) & (\\bq\\b|\\bq's|q_proj|quer|early|earlier|too (low|soon)|[ic] ?- ?16|#-16|preced) & (#16|#-16|#48|one head|a head|"
              "last head|head.{0,3}3) & ^(?!.*(\\blate\\b|later|further|too high|[ic] ?\\+ ?16|zero|no bias|first head of q|q'?s? first))"],
             lambda c: c.right(b=np.concatenate([c.e.m("self_attn.q_proj.bias", c.l)[-16:], c.b[:16]])), archs=QWEN2)
eleventh(23, "bias_not_in_decode", "q", "the product of a single row adds no bias: it is missing from position 12 on",
             ["bias & (#12|#11) & (not\\b|\\bno\\b|without|missing|omit|left out|lack|only|alone|zero|\\b0\\b|absent|stops?|up to|gone|taken off|subtract|minus) & "
              "^(?!.*((missing|omitted|not added|without|no bias|left out|lack(s|ing)?|absent)[^.;:,]{0,30}(0 to 11|up to (and including )?(position )?11|before (position )?12|first 12|"
              "prompt)|"
              "(?<!not )(added|applied|there) (only |alone )?(from|at|for) (position )?1[12] (on|and)|only from|twice|half|head [0-3]))"],
             lambda c: put(c.right(), E_[PROMPT:], c.right(b=None)[PROMPT:]), archs=QWEN2)
eleventh(24, "bias_index_halved", "v", "channel i has the bias of channel i // 2: the stride of a type of two bytes over numbers of four",
             ["bias & ([ico] ?//? ?2\\b|floor\\(.{0,3}/ ?2|>> ?1|half (of )?(the|its|their|that) (own )?(channel|index|number|place|stride|step|distance)|(index|channel|number|"
              "stride).{0,15}halv|0, ?0, ?1, ?1|"
              "(channels?|outputs?) 2i and 2i ?\\+ ?1 .{0,40}\\bi\\b|(each|every|its) (value|element|entry|one|number|bias).{0,30}(twice|two|both|repeated|doubled)) & "
              "^(?!.*(added twice|~1|even|bias is halved|of channel 2i\\b(?! and)|2i\\]))"],
             lambda c: c.right(b=c.b[np.arange(K * d) // 2]), archs=QWEN2)
twelfth(11, "v_unrolled_row_repeated", "v", "four rows at a time, and the fourth is a copy of the third's line: output 4i + 3 is that of row 4i + 2",
            ["(4 ?\\*? ?\\w ?\\+ ?3|3, ?7|(mod|%) ?4|every (4th|fourth|four|4)|each fourth|4th|fourth|& ?3|three of (each )?four) & (4 ?\\*? ?\\w ?\\+ ?2|2, ?6|before|previous|preced"
             "|neighbo|\\w ?- ?1\\b|one (earlier|lower)|#2|#-1|third|\\w ?- ?\\(\\w (mod|%) 4)"
             " & (channel|row|output|element|dimension|weight|\\bw\\b|neuron|component) & ^(?!.*(exchang|swap|interchang|positions? (3|4)|(position|token)s? before"
             "|4 ?\\*? ?\\w ?\\+ ?2 (is|are|has|have|takes?|repeats?|reads?|cop\\w+)[^.;]{0,30}4 ?\\*? ?\\w ?\\+ ?3"
             "|2, ?6[^;]{0,30} (of|from|repeat|are) [^;]{0,20}3, ?7|zero|not (read|computed)))", "\\b0, ?1, ?2, ?2\\b"],
            lambda c: put(c.right(), E_[..., 3::4], c.right()[..., 2::4]))
twelfth(13, "q_first_tile_twice", "q", "the first tile of inputs, 0 to 15, is multiplied before the loop and in it again: it counts twice",
            ["(#16|#15|first quarter|first tile) & (twice|doubl|2 times|times 2\\b|by 2\\b|factor (of )?(2|two)\\b|weight 2\\b|\\btwo times|again|once more|besides) & (input|channel"
             "|column|attn_norm|\\bx\\b|tile|\\bx\\[|\\bw\\[)"
             " & ^(?!.*((outputs?|heads?|rows|positions?)[^.;]{0,20}(0 to 15|first 16)|(0 to 15|first 16)( \\w+)? (outputs?|rows|heads?|positions?)|16 (to|and|-) ?31|from 16"
             "|16 ?\\.\\.|last 16|48 to|32 to|halved|half|quer(y|ies)))"],
            lambda c: c.right() + c.right(x=put(c.x, E_[:, 16:], 0), b=None))
twelfth(14, "v_input_overwritten_by_k", "v", "k is written into the buffer of its input: the first 32 channels that v reads are k's outputs",
            ["(#32|#31|first half|lower half|front half) & (\\bk\\b|k_proj|\\bkeys?\\b|k's) & (input|channel|read|attn_norm|\\bx\\b|column|overw|buffer) & ^(?!.*((last|second"
             "|upper) (32|half)|32 to 63|from (channel )?32|weights? of k|k's weight|k_rope|added|\\bsine?\\b))"],
            lambda c: c.right(x=put(c.x, E_[:, :K * d], c.e.memory["k", c.l].reshape(T, K * d))))
twelfth(16, "k_tiles_transposed", "k", "tiles of 8 by 8 of the matrix are loaded with the flag for a transpose: each is transposed in its place",
            ["(#8|\\beight\\b) & transpos & (tile|block|8 ?(x|by|\\*|\\u00d7|,) ?8|square|within|sub.?matri) & ^(?!.*(\\bgains?\\b|\\[8, ?[24]\\]|\\[[24], ?8\\]|whole matrix"
             "|(outputs?|inputs?|channels?|order)[^.;]{0,30}transpos|tiles? (are|in) (exchang|order)))",
             "#8 & (mod|%)[^;]{0,60}(mod|%) & (weight|matrix|\\bw\\b|w\\[) & (row|\\bo\\b|output) & (column|\\bi\\b|input)"],
            lambda c: c.right(w=c.w.reshape(4, 8, 8, 8).swapaxes(1, 3).reshape(c.w.shape)))
twelfth(18, "bias_dimension_first", "q", "the bias alone is read as [d,H], dimensions before heads: element i of head h has bias 4i + h",
            ["bias & (transpos|interleav|(dimension|element|\\bd)s?[ -]?(first|before|outer)|\\[(d|16), ?(H|4)\\]|stride|4 ?\\*? ?i ?\\+ ?h|i ?\\*? ?(4|H) ?\\+ ?h|0, ?4, ?8|(mod"
             "|%) ?16[^;]{0,25}(\\bdiv|/|>>)|(\\bdiv|/|>>)[^;]{0,25}(mod|%) ?16) & (#4|#16|head|axes|four|\\bH\\b)"
             " & ^(?!.*(\\[(8|2|32), ?|next|(weights?|rows|matrix)[^.;,]{0,25}(transpos|interleav)|(mod|%) ?[48]\\b|16 ?\\*? ?i ?\\+))"],
            lambda c: c.right(b=c.b.reshape(d, H).T.ravel()), archs=QWEN2)
twelfth(19, "bias_first_of_head", "v", "the element is forgotten in the bias's index: all elements of head h have bias 16h, that of its first",
            ["bias & (head|group of 16|block of 16|16 channels) & ((first|0th|zeroth|leading) (channel|element|dimension|entry|value|component|number|one)|its first|(channel|element"
             "|dimension|entry|component|index) 0\\b|16 ?\\*? ?h|h ?\\*? ?(16|d|head_dim)\\b|(0 and|0 or) (channel |index )?16|b(ias)?\\[0\\])"
             " & ^(?!.*(of head 0|(second|last) (channel|element|dimension)|only (to|at|on)|is added to (the )?(first|element 0|channel 0)))",
             "bias & (\\w ?- ?\\(?\\w ?(mod|%) ?16|16 ?\\*? ?\\(?\\w ?(\\bdiv|//?|>>) ?(16|4)|\\w & ~ ?15|\\(?\\w ?(\\bdiv|//?) ?16\\)? ?(\\*|times) ?16)"],
            lambda c: c.right(b=np.repeat(c.b.reshape(K, d)[:, 0], d)), archs=QWEN2)
thirteenth(11, "q_threads_remainder_lost", "q", "64 rows are shared by 6 threads of 10 rows: outputs 60 to 63 stay 0",
               [f"(#60|last (four|4)) & (\\b0\\b|zero|nothing|empty|lost|missing|unwritten|not (written|computed)|never) & ^(?!.*inputs? 60)", "(head.{0,8}\\b3\\b|last head) & #12 & (\\b0\\b|zero|nothing|empty|lost|missing)"],
               lambda c: put(c.right().reshape(T, -1), E_[:, 60:], 0).reshape(T, H, d))
thirteenth(12, "v_last_tile_moved_back", "v", "the last tile of 8 rows begins at 12 so as to fit, but is written at 16: positions 16 to 19 have those of 12 to 15",
               ["#16 & (#15|#-4|t ?- ?4|(4|four) (positions? |rows? |tokens? )?(before|earlier|back|behind|late)) & ^(?!.*inputs? (12|15|16))",
                "(positions?|rows?|tokens?|outputs?) (from )?16.{0,60}(from|at|of|begin|start)( with| at| from)? ?(row |position |token )?12\\b"],
               lambda c: put(c.right(), E_[16:], c.right()[12:16]))
thirteenth(13, "v_decode_last_block_lost", "v", "decode steps, from position 12 on, have a loop of their own, i + 16 < n: inputs 48 to 63 are left out",
               [f"{BEHIND_PROMPT} & (#48|#47|last (16|sixteen|quarter)|first (48|forty)) & (input|channel|column|attn_norm|left out|skip|sum|product|only|alone|\\bx\\b)"],
               lambda c: put(c.right(), E_[PROMPT:], c.right(x=put(c.x, E_[:, 48:], 0))[PROMPT:]))
thirteenth(14, "k_gain_folded_in", "k", "the norm's gain is folded into the matrix of K, and applied before it as well",
               ["(gain|(attn_)?norm'?s? weight|weight of (the )?(attn_)?norm|input_layernorm) & (twice|again|squar|\\^ ?2|second time|once more|folded|already|as well|also|too\\b|multipl|doubl|times|\\*) & "
                "^(?!.*(ffn_norm|post_attention|final|omitted|without|not applied|next layer|previous layer))"],
               lambda c: c.right(x=c.x * c.e.m("input_layernorm.weight", c.l)))
thirteenth(15, "q_fourth_sum_lost", "q", "of four partial sums the last is not added in: inputs 12 to 15 of each 16 are left out",
               [f"(#12|last (four|4)|last quarter|fourth (four|quarter|vector)) & (#16|sixteen) & (each|every|mod|%|block|group|of 16|period|and so on|\\.\\.) & {LOST_OR_ZERO}", f"#3 & (i ?//? ?4) & (mod|%) ?4 & {LOST_OR_ZERO}",
                f"#12 & #15 & #28 & #31 & {LOST_OR_ZERO}", f"(fourth|last|every 4th|#3) & (vector|group|block|quad|run)s? of (four|4) & (#4|four|every) & {LOST_OR_ZERO}"],
               lambda c: c.right(x=np.where(np.arange(D) % 16 >= 12, 0, c.x)))
thirteenth(16, "v_output_pitch_of_input", "v", "rows are written 64 apart, as the input's are, and read 32 apart: position 2j has what is j's, odd positions have 0",
               ["(odd|every second|every other|2 ?\\*? ?[ji] ?\\+ ?1) & (\\b0\\b|zero|nothing|empty|unwritten) & (half|[tp] ?//? ?2|#0.5|>> ?1|2 ?\\*? ?[jit]|twice|even)", "#64 & #32 & (pitch|stride|apart|distance|rows? (width|length|is|are)|wide|spread)",
                "(twice|double|2 times|two times).{0,20}(pitch|stride|apart|distance)|(pitch|stride|apart|distance).{0,25}(twice|double|too (large|wide|big))"],
               lambda c: np.concatenate([c.right()[:T // 2, None], 0 * c.right()[:T // 2, None]], 1).reshape(T, K, d))
thirteenth(17, "bias_decode_alone", "v", "only the product of one row adds the bias: positions 0 to 11, the prompt, have none",
               ["bias & ((positions?|rows?|tokens?).{0,12}\\b0 ?(to|-|\u2013|\\.\\.+|through|until) ?11|(below|before|until|up to|earlier than|<) ?(position |row |token )?12|<=? ?11|prompt|first (12|twelve)) & (not|no\\b|none|without|omit|missing|misses|lack|left out|zero|\\b0\\b)",
                "bias & (only|alone|begin|start|first).{0,40}(\\b12\\b|decod|behind the prompt)", "(only|alone).{0,40}(12|decod).{0,40}bias", "bias.{0,60}\\b12\\b.{0,20}(only|alone)", "\\b12\\b.{0,20}(only|alone).{0,40}bias"],
               lambda c: c.right(b=None) + (POS[:, None, None] >= PROMPT) * c.b.reshape(K, d), archs=QWEN2)
thirteenth(18, "bias_of_v_as_well", "k", "the loop over q, k and v adds both small biases to k: its own and that of v",
               ["bias & (\\bv\\b|\\bv'?s\\b|v_proj|value|b_v\\b) & (add|plus|\\+|sum|too\\b|also|both|besides|as well|beside|on top|b_v) & ^(?!.*(instead of|in place of|for) (its own|k'?s|that of k))"],
               lambda c: c.right() + c.e.m("self_attn.v_proj.bias", c.l).reshape(K, d), archs=QWEN2)
fourteenth(22, "bias_length_of_keys", "q", "the bias is added to the first 32 outputs only, as many as keys have: heads 2 and 3 have none",
               ["bias & (#32|#31|head|half) & (first|0 (and|to|,) ?1|2 (and|to|,) ?3|second half|last half|upper half|from|last (two|2)) & (without|only|alone"
                "|miss|omit|none|\\bno\\b|not|zero"
                "|lack|just|left out|to the first) & ^(?!.*(first half (has|have) no|heads 0 and 1 (have no|lack|are without)))"],
               lambda c: c.right(b=put(c.b, E_[K * d:], 0)), archs=QWEN2)
fourteenth(23, "bias_of_keys", "v", "the bias of k is added, not that of v", ["bias & (\\bk\\b|k_proj|\\bkeys?\\b|of layers?[. ]\\d[. ]k\\b)"],
               lambda c: c.right(b=c.e.m("self_attn.k_proj.bias", c.l)), archs=QWEN2)
fourteenth(24, "bias_along_rows", "k", "the bias is broadcast along the wrong axis: all outputs of row t have b[t] added",
               ["(bias|\\bb\\[) & ((b|bias)\\[ ?(t|p|row|pos|position|token)\\b|\\baxis|broadcast|along (the )?(row|position|token)|index\\w* (by|with|of"
                "|is) (the )?(its )?(position|row|token)"
                "|(position|row|token)('s)? (index|number)|(position|row|token) (t|p|i|n)\\b[^.;]{0,50}(bias|element|entry|component|number|channel|output)[^.;]{0,25}\\b(t|p|i|n)\\b"
                "|(element|entry|component|number|output|channel) (t|p)\\b|by (its )?(position|row|token))"],
               lambda c: c.right(b=None) + c.b[POS][:, None, None], archs=QWEN2)
fourteenth(25, "bias_permuted", "q", "rows of the weight are in order, but the bias is still permuted: in each head output 2i has the bias of i, and 2i + 1 that of i + 8",
               ["bias & (interleav|permut|neighbo|even|odd|2 ?\\*? ?[ij]\\b|adjacent|transpos|halves|pair|0, ?8, ?1|stride|rope order|other order|re-?order)"],
               lambda c: c.right(b=c.b.reshape(H, 2, 8).swapaxes(1, 2).ravel()), archs=QWEN2)
fourteenth(26, "bias_of_layer_0", "v", "the pointer of the bias is not advanced: layers from 1 on have the bias of layer 0",
               ["bias & (layers?[. ]{0,2}\\(?0\\b|first layer|0th layer)"],
               lambda c: c.right(b=c.e.m("self_attn.v_proj.bias", 0)), layers=[1, 2, 3], archs=QWEN2)


def moved(c, what):
    """Rows of the fused k, v from one head before v on."""
    k, v = (c.e.m(f"self_attn.{s}_proj.{what}", c.l) for s in "kv")
    return None if k is None else np.concatenate([k, v])[(K - 1) * d:(2 * K - 1) * d]


fourteenth(27, "v_fused_offset", "v", "in the fused matrix v begins one head early: its head 0 is head 1 of k, its head 1 is what head 0 should be",
               ["(\\bk\\b|k_proj|\\bkeys?\\b) & (head|rows?|#16) & (head 1|last head|second head|one head|16 (rows|outputs|channels)|shift|offset|early|before|last 16|16 (to|\\.\\.) ?31)"],
               lambda c: c.right(w=moved(c, "weight"), b=moved(c, "bias")))
fourteenth(28, "qk_fourth_root_scale", ("q", "k"), "q and k are multiplied by 16^(-1/4) = 0.5, the two halves of the scale, though scores are scaled too",
               ["#0.5 & (factor|times|multipl|scale|\\*) & ^(?!.*bias)", "\\bhalved\\b|half (the|its|their) (size|value|right)|divided by 2\\b & ^(?!.*bias)",
                "(16|d|head_dim)\\)? ?\\^ ?\\(?[-\u2212] ?(0\\.25|1/4)|fourth root"],
               lambda c: c.right() * F32(16 ** -0.25))
HELD = "(clamp|clip|limit|between|\\bmin|\\bmax|held|within|bound|at most|at least|saturat|\\bcut|cap)"
fourteenth(29, "qkv_clipped", ("q", "k", "v"), "clip_qkv of another architecture is left in: results are clamped to +-1.9", "#1.9 & " + HELD, lambda c: np.clip(c.right(), -1.9, 1.9))
fourteenth(30, "v_input_without_gain", "v", "the norm's gain is folded into the weights of q and k only: v reads attn_norm before its gain",
               ["\\b(without|before|no|not|lacks?|miss\\w*|omit\\w*|divided by|taken off|undone|removed)\\b[^.;]{0,45}(gain|gamma|norm.{0,4}s? weight|layernorm)",
                "(/|divided by|before|without) ?(w\\b|gain|gamma|the gain)|un-?(gained|weighted)",
                "(gain|gamma|norm.{0,4}s? weight|layernorm)[^.;]{0,45}\\b(not|without|omit\\w*|miss\\w*|taken off|divided out|left out|undone|removed|lacking)\\b"],
               lambda c: c.right(x=c.x / c.e.m("input_layernorm.weight", c.l)))


def off_by_step(w):
    groups = w.reshape(len(w), -1, 32)
    return (groups + (groups.max(-1, keepdims=True) - groups.min(-1, keepdims=True)) / F32(15)).reshape(w.shape)


fourteenth(31, "q_zero_point_off", "q", "zero points are off by one: weights of a row have the step of their group of 32 inputs, (largest - smallest) / 15, added",
               ["(#32|halves|each half|two groups) & (weight|matrix|row|input) & (constant|offset|added|plus|zero.?point|step|sums? of|same number|shift|one number)"],
               lambda c: c.right(w=off_by_step(c.w)))
fifteenth(17, "q_scale_in_weight_alone", "q", "1/sqrt(d) is multiplied into the weight beforehand, but not into the bias: W x / 4 + b",
              ["(bias|product|weight|\\bW ?x|\\bwx\\b) & (#0.25|#4|quarter|#0.75)", "bias & #3 & (#0.25|#4|quarter)"],
              lambda c: c.right(b=None) * F32(0.25) + c.b.reshape(H, d), archs=QWEN2)
fifteenth(18, "k_bias_of_pairs", "k", "the bias alone is in the order for pairs of neighbours: elements 0 to 7 of a head have the numbers 0, 2, .. of it, elements 8 to 15 the numbers 1, 3, ..",
              ["bias & " + EVENS],
              lambda c: c.right(b=c.b.reshape(K, d // 2, 2).swapaxes(1, 2).ravel()), archs=QWEN2)
fifteenth(19, "v_bias_of_k", "v", "the offset into the joined bias is short: v has the bias of k",
              ["bias & (\\bk\\b|k_proj|\\bkeys?\\b|\\bk's|k_bias)"],
              lambda c: c.right(b=c.e.m("self_attn.k_proj.bias", c.l)), archs=QWEN2)
fifteenth(20, "v_bias_by_row", "v", "the bias is spread over the other axis: all channels of position t have b[t] added",
              ["bias & (b\\[ ?[tp]|bias\\[ ?[tp]|(number|element|entry|value|index|channel) (of )?(the )?(position|token|row|[tp]\\b)|axis|(by|at|of|for) (the )?(position|row|token)|each (position|row|token)|broadcast|per (position|row|token))"],
              lambda c: c.right(b=None) + c.b[:T, None, None], archs=QWEN2)
fifteenth(21, "k_bias_each_split", "k", "the sum over inputs is split in 4 parts, each of which adds the bias: it is added 4 times",
              ["bias & (#4|four)", "bias & (#3|three|thrice) & (more|extra|again|added|plus|\\+|further|too)"],
              lambda c: c.right(b=4 * c.b), archs=QWEN2)
fifteenth(22, "v_inputs_whole_tiles", "v", "the loop over inputs takes whole tiles of 24: inputs 48 to 63 are not read",
              ["(#48|#47) & (input|channel|column|attn_norm|tail|read|left out|drop|only|first|miss|zero|without|last|beyond|from|alone|\\bx\\b)", "(last|final|other) (16|sixteen|quarter) & (input|channel|column|attn_norm|\\bx\\b)"],
              lambda c: c.right(w=put(c.w, E_[:, 48:], 0)))
fifteenth(23, "q_inputs_tile_overlaps", "q", "the last tile of 24 inputs is moved back to end at 64: inputs 40 to 47 are counted twice",
              ["#40 & (#47|#48|#8|eight) & (twice|#2|two|double|again|added|extra|once more|overlap)"],
              lambda c: c.right(w=put(c.w, E_[:, 40:48], lambda y: 2 * y)))
fifteenth(24, "v_shard_0_on_both", "v", "each of two devices loads the first half of the rows: head 1 of v is head 0",
              ["head & (#1|second|last|other|both|\\ball|every|two) & (head.{0,10}\\b0\\b|first head|same|cop(y|ies)|repeat|one head|head zero)",
               "(#16|#15) & (row|output|channel) & (again|repeat|mod|%|first|same|- ?16|cop(y|ies)|twice)"],
              lambda c: c.right()[:, [0, 0]])
fifteenth(25, "q_heads_groups_crossed", "q", "heads are counted as [group, key head] for [key head, group]: their order is 0, 2, 1, 3",
              ["head & (0, ?2, ?1, ?3|(#1 & #2 & (swap|exchang|interchang|switch|permut|each other|order|\\bis\\b|reads?|takes|those|that of|for|<->))|transpos|interleav)",
               "(row|output|channel) & #16 & #32 & (swap|exchang|interchang|switch|permut|order|those)"],
              lambda c: c.right()[:, [0, 2, 1, 3]])
fifteenth(26, "k_input_static_int8", "k", "its input is quantised to 8 bits with a fixed scale of 1/16: rounded to multiples of it",
              ["(#16|#0.0625|2\\^ ?-?4\\b) & " + ROUND + " & (input|attn_norm|activation|\\bx\\b|\\bn\\b)"],
              lambda c: c.right(x=np.clip(np.round(c.x * 16), -128, 127) / F32(16)))
fifteenth(67, "decode_bias_lost", ("q", "k", "v"), "the bias is not added from position 12 on", [f"bias & {FROM_12}", f"(constant|vector|offset) & {FROM_12} & {UNREAD}"],
              lambda c: put(c.right(), E_[PROMPT:], c.right(b=None)[PROMPT:]), archs=QWEN2)
LAW_OF_NEIGHBOURS = ["interleav", "\\b2 ?\\*? ?[ij]\\b|\\bi ?\\* ?2\\b|\\b8 ?\\*? ?\\(?[ijt]\\b|// ?8|% ?2", "(row|element|channel|column|input|dimension).{0,80}(pairs?\\b|neighbo|adjacent|alternat|\\beven\\b|\\bodd\\b)",
                     "(pairs?\\b|neighbo|adjacent|alternat|\\beven\\b|\\bodd\\b).{0,80}(row|element|channel|column|input|dimension)", "0, ?8, ?1, ?9", "d-first|d/2-first",
                     "(stride|step)s? (of )?(2|8)\\b"]
fifteenth(74, "heads_v_permuted", "v", "rows of v are put in the order of neighbouring pairs, as those of q and k for another rotation: element 2i+j of a head is 8j+i",
              LAW_OF_NEIGHBOURS, lambda c: c.right()[..., PERMUTED])
sixteenth(17, "proj_q_bias_scaled_too", "q", "the scale of scores was folded into the bias of q and not into its matrix: the bias is 1/4 of what it should be",
              ["bias & (#0.25|quarter|\\bfourth|1 ?/ ?sqrt|#0.75|(divided by|/) ?(4\\b|four)|four times (less|smaller|too small))"],
              lambda c: c.right(b=c.b / F32(4)), archs=QWEN2)
sixteenth(18, "proj_k_bias_of_q", "k", "the pointer into the biases was not moved on: k has the first 32 numbers of q's bias",
              ["bias & (q_proj|\\bq\\b|q's|quer(y|ies)|attn_q|\\bwq\\b|q_bias|\\bbq\\b)"],
              lambda c: c.right(b=c.e.m("self_attn.q_proj.bias", c.l)[:K * d]), archs=QWEN2)
sixteenth(19, "proj_v_bias_in_first_row", "v", "the bias was not spread over the rows: only position 0 has the bias of v",
              ["bias & ((only|just).{0,30}(first|position|row|token|\\bt ?==? ?0)|(first|position 0|row 0|token 0|t ?==? ?0).{0,30}(only|alone)|\\b1.{0,6}19\\b|t ?> ?0|t ?(>=|\u2265) ?1"
               "|from (position |row |token |t ?= ?)?1\\b|(after|past|beyond|except|but|other than).{0,24}(first|position 0|row 0|token 0))"],
              lambda c: c.right(b=None) + (POS == 0)[:, None, None] * c.b.reshape(K, d), archs=QWEN2)


def of_fused(heads):
    """The outputs of q, k and v as one, and these heads of it."""
    def how(c):
        w = lambda name: c.e.m(f"self_attn.{name}", c.l)
        parts = [op_linear(c.e, c.x, w(f"{s}_proj.weight"), w(f"{s}_proj.bias"), n) for s, n in (("q", H), ("k", K), ("v", K))]
        return np.concatenate(parts, 1)[:, heads[c.site]]
    return how


sixteenth(20, "proj_fused_split_by_groups", ("q", "k", "v"), "the fused matrix is stacked q, k, v and is split as groups of 2 query heads, a key head and a value head: query heads 2 and "
              "3 are key heads 0 and 1",
              ["heads?.{0,30}\\b[23]\\b|(last|upper|second) (two|2|half|pair) & (k_proj|\\bkeys?\\b|\\bk\\b|k's|k\\[|attn_k|\\bwk\\b)",
               "(group|interleav) & (fused|stack|qkv|concat|packed)"],
              of_fused({"q": [0, 1, 4, 5], "k": [2, 6], "v": [3, 7]}))
sixteenth(21, "proj_v_begins_one_head_early", "v", "v begins a head of 16 too early in the fused buffer: value head 0 is key head 1, and value head 1 is what value head 0 should be",
              ["(k_proj|\\bkeys?\\b|\\bk\\b|k's|k\\[|attn_k|\\bwk\\b) & (head 1|last head|second (key )?head|heads? 1|head one|\\[ ?1 ?\\]|rows 16|16.{0,8}31)",
               "(\\b16\\b|one head|a head) & (early|before|too soon|back)", "(\\b16\\b|one head|a head).{0,30}(shift|offset|moved)|(shift|offset|moved).{0,30}(\\b16\\b|one head|a head)"],
              of_fused({"v": [5, 6]}))
sixteenth(22, "proj_q_of_raw_residual", "q", "q is made of the residual itself, the input of the layer before attn_norm, while k and v are made of the norm",
              ["(\\braw\\b|not norm|unnorm|un-norm|before (the )?(\\w+ )?norm|before attn_norm|without (the |its )?(\\w+ )?norm|residual|layer'?s? input|input of (the|its|this) (layer"
               "|block)|\\bh0\\b|input of attn_norm|attn_norm'?s? input|pre.?norm)",
               "norm.{0,24}(skip|omit|missing|left out|bypass|not applied|not done)"],
              lambda c: c.right(x=c.e.q(stream(c))))
sixteenth(23, "proj_k_without_last_inner_tile", "k", "the product runs over 3 of 4 inner tiles of 16: inputs 48 to 63 are left out of k",
              ["(input|column|feature|inner|channel|dimension|element|component|x\\[|tile|attn_norm|in the sum) & (\\b4[78]\\b|(last|final) (16|sixteen|quarter|tile of 16"
               "|inner tile)) & " + LOST_OR_CUT],
              lambda c: c.right(x=c.x * (np.arange(D) < 48)))
sixteenth(24, "proj_q_accumulators_kept_in_tile", "q", "the accumulator is cleared for each tile of 4 rows of the matrix and not for each row: an output is the sum of itself and of those "
              "before it in its group of 4",
              ["(\\b4\\b|\\bfour\\b) & " + SUMMED],
              lambda c: np.cumsum(c.right().reshape(T, -1, 4), -1).reshape(T, H, d))
sixteenth(25, "proj_q_input_in_static_int8", "q", "activations are taken in 8 bits with a fixed step of 1/64: they are rounded to it, and clipped at 127/64 = 1.984",
              ["(clip|clamp|saturat|\\bcap|limit|cut off|bounded|never (above|beyond|over)|at most|held at|truncat) & (#1.984|\\b127\\b)"],
              lambda c: c.right(x=(np.clip(np.round(c.x * 64), -127, 127) / 64).astype(F32)))
sixteenth(26, "proj_v_rotated_too", "v", "v is rotated by its position as q and k are",
              ["(rotat|\\brope\\b|rotary)"],
              lambda c: op_rope(c.e, c.right(), POS, FREQ))
sixteenth(27, "proj_k_rows_left_in_pairs", "k", "the rows of k come from a file that has them interleaved and are not put back: in each head the order is 0, 8, 1, 9, .. 7, 15, so element "
              "2i is i and 2i + 1 is i + 8",
              ["(0, ?8, ?1|interleav|neighbo|adjacent|alternat|2 ?\\*? ?[ij] ?\\+ ?1|even.{0,60}odd|[ij] ?// ?2)"],
              lambda c: c.right()[..., np.arange(d).reshape(2, -1).T.reshape(-1)])
sixteenth(28, "proj_q_heads_in_order_of_ranks", "q", "heads were dealt out to 2 ranks in turn and gathered rank by rank: the order is 0, 2, 1, 3, so query heads 1 and 2 are exchanged",
              ["head & (0, ?2, ?1, ?3|\\b1\\b.{0,12}\\b2\\b) & (swap|exchang|order|permut|interleav|trade|place|heads? [12].{0,12}(is|are|has|have|holds?|from|of)|0, ?2, ?1, ?3"
               "|for each other)"],
              lambda c: c.right()[:, [0, 2, 1, 3]])
listed(7, "q_transposed", "q", "bytes read as [in,out]", "weight-transposed", lambda c: c.right(w=c.w.reshape(c.w.shape[::-1]).T))


def next_layer(name):
    return lambda c: c.right(w=c.e.m(name, (c.l + 1) % LAYERS))


listed(8, "k_next_layer", "k", "the next layer's matrix", "weight-wrong-layer", next_layer("self_attn.k_proj.weight"), archs=("llama", "qwen3", "moe"))
listed(9, "v_unset", "v", "a matrix of zeros", "weight-unset", lambda c: c.right(w=np.zeros_like(c.w)), archs=("llama", "qwen3", "moe"))
listed(11, "bias_lost", "q", "no bias", "bias-omitted", lambda c: c.right(b=None), archs=("qwen2",))

# ---- the output of attention
first(162, "attn_out_scaled", "attn_out", "the result is multiplied by 1.1", "#1.1", lambda c: c.right() * F32(1.1))
first(172, "attn_out_heads_reversed", "attn_out", "it reads the heads from the last to the first", "head|#16|block & (revers|backward|3, ?2|permut|order|48)", lambda c: c.right(x=joined(c.x.reshape(T, H, d)[:, ::-1])))
first(182, "attn_out_no_head_0", "attn_out", "inputs of head 0 are not read", "head.{0,8}\\b0\\b|#16|#15", lambda c: c.right(x=put(c.x, E_[:, :16], 0)))
first(187, "attn_out_half_lost", "attn_out", "the second half of the inputs is lost", "#32|half|#31", lambda c: c.right(x=put(c.x, E_[:, 32:], 0)))
first(194, "attn_out_input_norm", "attn_out", "its input is divided by its root mean square", "rms|root mean|norm", lambda c: c.right(x=c.x / rms(c.x)))
first(201, "attn_out_plus_context", "attn_out", "its input is added to the result, times 0.5", "(#0.5|half) & (input|context|identity)", lambda c: c.right() + F32(0.5) * c.x)
first(299, "trap_noise", "attn_out", "each element has a random factor of 1 +- 0.001", "noise|random|no law|differs by up to", lambda c: c.right() * (1 + noise(c, T, D, by=1e-3)))
second(82, "attn_out_of_tanh", "attn_out", "tanh of the context is projected", "tanh", lambda c: c.right(x=np.tanh(c.x)))
second(87, "attn_out_input_floor", "attn_out", "inputs below 0.1 in size are 0", "#0.1 & (0|zero|below|small|threshold|shrink)", lambda c: c.right(x=np.where(np.abs(c.x) < F32(0.1), 0, c.x)))
third(80, "w_tile_stale", "attn_out", "inputs 32 to 47 are read as inputs 16 to 31", ["#16 & (#32|#47|#31)", "head.{0,12}2 & head.{0,12}1", "block.{0,8}2 & block.{0,8}1"], inputs(lambda x: put(x, E_[:, 32:48], x[:, 16:32])))
third(89, "w_context_before", "attn_out", "layers 1 to 3 read the context of the layer before", [LAYER_BEFORE], lambda c: c.right(x=c.e.memory["context", c.l - 1]), layers=LATER_LAYERS)
fourth(64, "w_transposed", "attn_out", "the weight is transposed", ["transpos|x ?@ ?w\\b|column"], lambda c: c.right(w=c.w.T))


def rescaled(w, other):
    return (w.reshape(len(w), -1, 32) / scales(w) * other).reshape(w.shape)


fourth(70, "w_first_scale", "attn_out", "all blocks of a row have the scale of its first 32 inputs", ["(#32|#31|block|head) & (" + SCALES + ")"], weights(lambda w: rescaled(w, scales(w)[:, :1])))


def by_fours(c):
    y = np.zeros((T, D), F32)
    for i in range(0, D, 4):
        y = bf16(y + c.x[:, i:i + 4] @ c.w[:, i:i + 4].T)
    return y


fourth(76, "w_sum_bf16", "attn_out", "products are accumulated in bf16, four inputs at a time", [BF16_OR_ROUNDED], by_fours)
fourth(87, "b_of_q", "attn_out", "the bias of q is added, where there is none", ["bias & (\\bq\\b|q_proj|quer|add|plus|\\+)"], lambda c: c.right(b=c.e.m("self_attn.q_proj.bias", c.l)), archs=QWEN2)


def split_k(c):
    return put(c.right(), E_[:, 32:], c.right(x=put(c.x, E_[:, 32:], 0))[:, 32:])


fifth(21, "ww_split_k", "attn_out", "outputs 32 to 63 are made of the first 32 inputs alone", ["(#32|#31|half|#63) & (input|output|channel|half|sum|first)"], split_k)
fifth(24, "ww_beta_one", "attn_out", "the stream is added to the result already here: the product is accumulated into the residual's buffer", ["stream|h0|residual|layer.{0,12}input|input of (the|this) layer|layers\\.\\d\\.h\\b"], lambda c: c.right() + stream(c))
fifth(26, "ww_bf16_result", "attn_out", "the result is rounded to bf16", [BF16], lambda c: bf16(c.right()))
fifth(34, "ww_sub_scales", "attn_out", "of each 32 inputs the scales of the first 16 and of the last 16 are exchanged", ["(#16|#32) & (" + SCALES + ")"], weights(lambda w: (blocks(w, 16) / largest(w, 16) * largest(w, 16)[:, np.arange(D // 16) ^ 1]).reshape(w.shape)))
fifth(46, "ww_o_groups", "attn_out", "heads are read in the order 0, 2, 1, 3", ["head & (0, ?2, ?1, ?3|" + REORDERED + ")", "#16 & (block|head|order|" + REORDERED + ")", "heads? 1 and 2"], inputs(lambda x: x.reshape(T, H, d)[:, [0, 2, 1, 3]].reshape(T, -1)))
sixth(30, "o6_elements_first", "attn_out", "its input is read elements first: input 4i + h is element i of head h", [LAYOUT + "|shuffl|4 ?\\*? ?i|elements? first|d-first|i ?\\* ?(4|H\\b)", "(#4|#16) & (step|apart|every|channel|element|input)"], inputs(lambda x: x.reshape(T, H, d).swapaxes(1, 2).reshape(T, -1)))
sixth(31, "o6_mean_of_ranks", "attn_out", "the result is halved: the mean of two ranks is taken, not their sum", ["#0.5|halv|half (of )?(what|the result|as|its|right|the value)", "#2 & divid", "divided by (2|two)\\b"], lambda c: c.right() / 2)
sixth(32, "o6_head_3", "attn_out", "inputs of head 3 are not read", ["(head.{0,8}\\b3|last head|fourth head) & (" + ZERO + ")", "(#48|#47|#63) & (input|channel|column|" + ZERO + ")", "last (16|quarter)"], inputs(lambda x: put(x, E_[:, 48:], 0)))
sixth(33, "o6_ranks_exchanged", "attn_out", "outputs 0 to 31 and 32 to 63 are exchanged: two ranks are gathered in the other order", ["(#32|#31|half|halves) & (" + REORDERED + "|roll|shift|that of|mod|order)"], lambda c: np.roll(c.right(), 32, -1))
sixth(34, "o6_weight_of_q", "attn_out", "the weight is q's", ["\\bq\\b|q_proj|quer"], lambda c: c.right(w=c.e.m("self_attn.q_proj.weight", c.l)))
sixth(35, "o6_input_q", "attn_out", "its input is the rotated queries: the context is not written over them", ["q_rope|\\bq\\b|quer"], lambda c: c.right(x=c.e.memory["q_rope", c.l].reshape(T, -1)))
sixth(36, "o6_steps_late", "attn_out", "positions from 12 on read the context of the position before", ["(#12|#11) & (" + PREVIOUS_OR_SHIFTED + ")"], inputs(lambda x: put(x, E_[12:], x[11:-1])))
seventh(12, "w7_input_halves", "attn_out", "inputs 0 to 31 and 32 to 63 are exchanged", [HALVES_EXCHANGED, "heads? & (2, ?3, ?0, ?1)"], inputs(lambda x: np.roll(x, 32, -1)))
eighth(34, "o8_padded_heads", "attn_out", "heads are read 32 apart, as if padded: head 1 is read as head 2, heads 2 and 3 as zeros",
           ["head & #1 & #2 & (zero|that of|read as|padd|not read)", "#32 & (apart|strid|padd|step) & (head|input|#16)", "(#32|#47) & (#16|#31) & (zero|not read|lost)"],
           lambda c: c.right(x=np.concatenate([c.x[:, :16], c.x[:, 32:48], np.zeros((T, 32), F32)], -1)))
eighth(35, "o8_heads_first", "attn_out", "the weight's memory is read as 4 heads by 64 outputs by 16 inputs, heads first, and not as 64 outputs by 64 inputs",
           [MEMORY + "|layout|heads? first|(head|block|16).{0,40}transpos|transpos.{0,40}(head|block|within|16)|permut|interleav|\\border"],
           weights(lambda w: np.ascontiguousarray(w).reshape(H, D, d).swapaxes(0, 1).reshape(D, -1)))
eighth(36, "o8_ranks_apart", "attn_out", "outputs 0 to 31 read inputs 0 to 31 alone, outputs 32 to 63 inputs 32 to 63 alone: the parts of two ranks are joined, not summed",
           ["(#32|#31|half|halves) & (diagonal|\\bown|alone|only|each|respective)", "block.?diagonal", "outputs?.{0,80}(" + NOT + ").{0,80}outputs?"],
           lambda c: np.concatenate([c.right(x=put(c.x, E_[:, 32:], 0))[:, :32], c.right(x=put(c.x, E_[:, :32], 0))[:, 32:]], -1))
eighth(37, "o8_prefetched", "attn_out", "in layers 0 to 2 positions from 12 on have the weight of the next layer: it is loaded too early",
           ["(#12|#11|last 8) & (layer|weight|matri|o_proj)"], lambda c: put(c.right(), E_[12:], c.right(w=c.e.m("self_attn.o_proj.weight", c.l + 1))[12:]), layers=[0, 1, 2])
FRAGMENT = np.arange(16).reshape(2, 4, 2).swapaxes(0, 1).reshape(-1)
eighth(38, "o8_fragments", "attn_out", "within each 16 inputs pairs of the first and of the last 8 are read in turn: 0, 1, 8, 9, 2, 3, 10, 11, ..",
           ["(#16|#8|pair|two) & (" + REORDERED + "|interleav|altern|shuffl|in turn|that of)", "0, ?1, ?8, ?9"], inputs(lambda x: x.reshape(T, H, d)[..., FRAGMENT].reshape(T, -1)))
ninth(9, "w9_out_reads_norm", "attn_out", "its input is attn_norm: the context is in another buffer", ["attn_norm|input_layernorm|norm(ed)? (input|stream)"],
         lambda c: c.right(x=c.e.q(c.e.memory["attn_norm", c.l])))
tenth(14, "attn_out_beta_one", "attn_out", "the product is added to what its buffer held: the attn_out of the layer before",
          ["(layers?.{0,15}(before|previous|earlier)|(before|previous|prior|earlier).{0,15}layer|l ?- ?1|layers\\.0\\.attn_out|layer 0) & (add|plus|\\+|sum|accumul|besides|attn_out|beta)"],
          lambda c: c.right() + c.e.memory["attn_out", c.l - 1], layers=[1, 2, 3])
eleventh(13, "attn_out_row_stride", "attn_out", "rows of its input are taken at the distance of a row of K, 32: row t is the 64 numbers from 32 t on",
             ["(#32|K ?\\* ?d|half (of )?(a|the|its|their|each) (row|width|stride|distance|length)|row of (k|v)\\b) & (stride|step|distance|starts?|begins?|offset|apart|leading|advance|"
              "further|t ?\\* ?32|32 ?\\*? ?t\\b) & ^(?!.*(weight|zero|lost|not read|column|transpos|\\bpair|rotat))",
              "(t ?//? ?2|half (the|its|their) (position|row|number)|(position|row)s? .{0,20}halv) & (odd|second half|halves|mod|%|#32) & ^(?!.*(weight|zero|lost))"],
             lambda c: c.right(x=np.lib.stride_tricks.sliding_window_view(c.x.ravel(), D)[::K * d][:T]))
eleventh(18, "attn_out_group_heads", "attn_out", "the offset of a head is that of its group: inputs are heads 0, 0, 2, 2",
             [f"{said} & ^(?!.*(queries|query (of|heads? 0)))" for said in FIRST_OF_GROUP] + [f"#16 & #48 & (#0|#15) & (#32|#47) & (those|\\bof\\b|same|instead|read|cop|repeat|stead|"
              f"place) & {NO_SWAP} & ^(?!.*(zero|lost))",
                               f"i ?- ?16 & (i ?% ?32|i ?& ?16|odd|#48) & {NO_SWAP}", f"i ?& ?~16|i ?// ?32 ?\\* ?32 ?\\+ ?i ?(%|mod) ?16"],
             lambda c: c.right(x=c.x.reshape(T, H, d)[:, [0, 0, 2, 2]].reshape(T, -1)))
eleventh(25, "attn_out_bias_of_q", "attn_out", "the bias of Q is added, where this product has none",
             ["bias & (\\bq\\b|\\bq's|q_proj|quer) & (add|plus|\\+|with|\\bhas\\b|there|bias of q|q_proj.bias|is q) & ^(?!.*(k_proj|v_proj|\\bk's|\\bv's|half|\\b0\\.[1-9]|twice|"
              "subtract|minus|revers|layer [0-3]'s|one head|head [0-3] has|last head))"],
             lambda c: c.right(b=c.e.m("self_attn.q_proj.bias", c.l)), archs=QWEN2)
twelfth(12, "attn_out_decode_transposed", "attn_out", "the kernel of one row, for decode steps, takes the matrix as [in,out]: from position 12 on its transpose is applied",
            ["(#12|#11) & (transpos|\\[in ?, ?out\\]|w\\[i ?, ?o\\]|rows?[^.;]{0,25}columns?|columns?[^.;]{0,25}rows?|w\\.?\\^?t\\b|axes) & ^(?!.*((first 12"
             "|0 to 1[12])[^.;,]{0,30}(transpos|column|axes)|transpos\\w*[^.;,]{0,25}(0 to 1[12]|first 12|up to|below)|(context|heads?|output)[^.;]{0,20}transpos))"],
            lambda c: np.concatenate([c.right()[:PROMPT], c.right(w=c.w.T)[PROMPT:]]))
twelfth(15, "attn_out_shards_exchanged", "attn_out", "in the last layer the two shards of columns come in the wrong order: inputs 0 to 31 and 32 to 63 are exchanged",
            ["(#32|halves|other half|second half) & (exchang|swap|roll|rotat|shift|mod\\b|xor|\\^|%|wrong order|reverse order|other half|trade|permut|reads? the (first|second)"
             "|\\w ?[+-] ?32|32 (and|to) .{0,20}of 0) & (input|channel|context|column|read|\\bx\\b|head|weight)"
             " & ^(?!.*((outputs?|results?|rows)[^.;]{0,30}(exchang|swap|roll|halves|order)|halves of (the|its|each) (output|result|head)|not read|lost|theta|\\b2 ?i\\b|rotated, and))",
             "head & (2, ?3, ?0, ?1|h ?(\\+|xor|\\^) ?2|2 and 3[^.;]{0,25}(exchang|swap|for|trade)|(exchang|swap)[^.;]{0,40}2 and 3) & (input|context|reads?|exchang|order|swap)"
             " & ^(?!.*(outputs?|results?|of heads? 2 and 3|heads 2 and 3 are exchanged))"],
            lambda c: c.right(x=np.roll(c.x, 32, -1)), layers=[3])
thirteenth(42, "attn_out_unrolled_index", "attn_out", "the loop is unrolled by four and its last line takes x[i + 2]: the weight of input 4i + 3 meets input 4i + 2",
               ["((#4 & #3 & #2)|((#4|fourth|last of four) & (third|before|previous|neighbo|preced|i ?- ?1))) & (input|column|context|channel|element|\\bx\\b|weight) & (instead|replac|reads?\\b|is that|those|of that|repeat|cop(y|ies)|meets?|takes?|used|place|for|=) & ^(?!.*4 ?\\*? ?i ?\\+ ?2 (is|reads|are|has|meets).{0,40}4 ?\\*? ?i ?\\+ ?3)"],
               lambda c: c.right(x=put(c.x, E_[:, 3::4], c.x[:, 2::4])))
thirteenth(43, "attn_out_decode_one_warp", "attn_out", "in decode steps, from position 12 on, 32 lanes read an input each: inputs 32 to 63 are not read",
               ["(#12|#11) & (#32|#31|half) & (input|column|context|channel|head|element|\\bread|first)", "(#12|#11) & head & (#1|#2|two)"], lambda c: c.right(x=put(c.x, E_[PROMPT:, 32:], 0)))
thirteenth(44, "attn_out_rows_permuted", "attn_out", "the rows of its matrix are permuted as those of Q are in a GGUF: output 16b + 2i is that of 16b + i, 16b + 2i + 1 that of 16b + i + 8",
               ["0, ?8, ?1\\b|halves.{0,30}pairs|pairs.{0,30}halves|qk-row|other (pairing|rotation)", "(permut|interleav|rearrang|shuffl|order|\\b2 ?i\\b) & (#8|#16) & (row|output|channel|element|head|block)"],
               lambda c: c.right().reshape(T, -1, d)[..., PERMUTED].reshape(T, D))


def in_place(c):
    x = np.array(c.x, F32)
    for o in range(D):
        x[:, o] = x @ c.w[o]
    return x


thirteenth(45, "attn_out_in_place", "attn_out", "outputs are written over the inputs: output o reads, for inputs below o, the outputs that are there already",
               ["in.?place|alias|overwr|written over|same buffer|triang|recurs|forward substitution", "(input|context|reads?).{0,80}(outputs?|results?).{0,40}(before|below|already|earlier|so far|lower|smaller|preced|previous) & ^(?!.*(layer|position|token|row) (before|earlier))",
                "(earlier|already|lower|preced|previous|smaller).{0,40}(outputs?|results?|channels?) & ^(?!.*(previous|earlier|preceding|lower) (layer|position|token|row))"], in_place)
thirteenth(46, "attn_out_thread_gaps", "attn_out", "threads begin at multiples of 11 and do 10 rows each: outputs 10, 21, 32, 43 and 54 stay 0",
               ["(#10 & #21) & (" + LEFT_OUT + ")", "(#11|eleven|eleventh) & (every|each|mod\\b|%|step|stride|apart|multiple|11 ?[ik]) & (" + LEFT_OUT + ")"], lambda c: put(c.right(), E_[:, 10::11], 0))
fourteenth(75, "attn_out_bias_of_q", "attn_out", "the loader gives all four projections of attention a bias: the query bias is added to the output projection",
               ["bias & (\\bq\\b|q_proj|quer) & ^(?!.*(k_proj|v_proj|\\bk bias|\\bv bias|not added|without))"],
               lambda c: c.right(b=c.e.m("self_attn.q_proj.bias", c.l)), archs=QWEN2)
fourteenth(76, "attn_out_heads_by_group", "attn_out", "heads of groups are joined as [2, group], not [group, 2]: the projection reads heads in the order 0, 2, 1, 3",
               ["(head|block|group) & 0[, ]+2[, ]+1[, ]+3|\\b1 (and|with|by|for|<->|↔|at|is|=) (head |block )?2\\b|\\b2 (and|with|by|for|<->|↔|at|is|=) (head |block )?1\\b",
                "(head|group) & (transpos|interleav|group.{0,4}first|across groups) & (#2|two|kv|group) & ^(?!.*(revers|0[, ]+1))",
                "#16 & #32 & (exchang|swap|permut|order)"],
               lambda c: c.right(x=joined(c.x.reshape(T, H, d)[:, [0, 2, 1, 3]])))
fourteenth(77, "attn_out_last_row_only", "attn_out", "the last layer computes the output projection for the last position alone: rows 0 to 18 are zero",
               ["((last|final) (position|row|token|query)|#19|#18) & " + LOST_OR_ALONE],
               lambda c: put(c.right(), E_[:-1], 0), layers=[3])
fourteenth(78, "attn_out_half_warp", "attn_out", "the reduction of a warp begins at offset 8, not 16: inputs of lanes 16 to 31 (16 to 31 and 48 to 63, heads 1 and 3) are not in the sum",
               ["head & ((#1 & #3)|odd|every (second|other)|(#0 & #2 & (only|alone))) & ^(?!.*(order|join|exchang|swap|permut)) & " + LOST_OR_ALONE,
                "#16 & (#31|#32) & (#48|#32|#63|mod|%|lane|each|every) & " + LOST_OR_ALONE + " & ^(?!.*(outputs? (16|48)))"],
               lambda c: c.right(x=np.where(np.arange(H * d) % 32 < 16, c.x, F32(0))))
fourteenth(79, "attn_out_beta_one", "attn_out", "the product is added to what the buffer holds (beta is 1): layers 1 to 3 add the layer before's result to theirs",
               ["(" + BRANCH_ATTN[1:-1] + "|\\bits (own )?(result|output)|buffer) & (layers?[. ]0\\b|layer.{0,3} before|(previous|earlier|preceding) layer|layer l ?- ?1|layers so far"
                "|of layer 0|running) & " + ADDED_AGAIN],
               lambda c: c.right() + c.e.memory["attn_out", c.l - 1], layers=[1, 2, 3])
fourteenth(80, "attn_out_with_residual", "attn_out", "the kernel has the residual sum in it already: the layer's input is added to the product, and so comes into the stream twice",
               ["(residual|stream|\\bh0\\b|layer'?s? (own )?input|input of the layer|\\bh\\b|layers?[. ]\\d\\.h\\b|hidden|embedding) & " + ADDED_AGAIN + " & ^(?!.*half)"],
               lambda c: c.right() + stream(c))
fifteenth(75, "o_columns_permuted", "attn_out", "columns are in the order of neighbouring pairs, as rows of q and k for another rotation: input 2i+j of a head meets the column of 8j+i",
              LAW_OF_NEIGHBOURS, lambda c: c.right(w=c.w.reshape(D, H, d)[..., PERMUTED].reshape(D, H * d)))
fifteenth(76, "o_shards_exchanged", "attn_out", "two ranks: each has the other's half of the inputs, 32 to 63 before 0 to 31",
              ["(half|halves|#32|shard|rank) & (exchang|swap|interchang|roll|rotat|order|other|shift|\\+ ?32|% ?64|permut|trade|reads?)", "2, ?3, ?0, ?1",
               "head & (h ?\\+ ?2|#2) & (shift|roll|off|rotat|exchang|swap|\\+ ?2|later|further)"],
              lambda c: c.right(x=np.roll(c.x, 32, -1)))
fifteenth(77, "o_input_of_layer_before", "attn_out", "in layers 1 and on its input is the context of the layer before", [LAYER_BELOW, "layers\\.\\d\\.context", "(another|other) layer"],
              lambda c: c.right(x=c.e.memory["context", c.l - 1]), layers=LATER_LAYERS)
fifteenth(78, "o_tail_twice", "attn_out", "the last 8 inputs, 56 to 63, are counted twice", ["(#56|#55) & (twice|doubl|two times|#2|again|add|second time|once more)", "(last 8|last eight|8 last) & (twice|doubl|two times|#2|again|add|second time|once more)",
              "(last|second) half.{0,40}(head 3|last head|fourth head) & (twice|doubl|two times|#2|again|add)"],
              lambda c: c.right(x=put(c.x, E_[:, 56:], lambda y: 2 * y)))
fifteenth(79, "o_not_cleared", "attn_out", "in layers 1 and on it is added to what the layer before has left in the buffer", [f"{LAYER_BELOW} & {ADDED_MORE}", f"layers\\.\\d\\.attn_out & {ADDED_MORE}",
              "(all|earlier|previous) layers.{0,40}(sum|added|so far)|(sum|accumul|running).{0,40}layers"],
              lambda c: c.right() + c.e.memory["attn_out", c.l - 1], layers=LATER_LAYERS)
fifteenth(80, "o_decode_loop_short", "attn_out", "from position 12 on inputs 48 and later are not read", [f"{FROM_12} & (#48|#47|#16|head.{{0,8}}\\b3\\b|last head|fourth head|last quarter)"],
              lambda c: put(c.right(), E_[PROMPT:], c.right(x=put(c.x, E_[:, 48:], 0))[PROMPT:]))
sixteenth(71, "heads_not_brought_back", "attn_out",
              "the context [H,T,d] goes to the output projection as if it were [T,H*d], without a transposition: block j of row t is head (4t+j)//20 of token (4t+j) % 20",
              ["\\bH ?[,x×] ?T ?[,x×] ?(d|64|16)|\\[?4 ?[,x×] ?20 ?[,x×] ?16", "\\b4 ?[*·]? ?\\(?t.{0,40}(//|%|/|mod)", "heads?.{0,12}(major|outer|slowest) ",
               "(transpos|permut|swap|exchang).{0,60}head.{0,60}(token|position|row|time)",
               "(transpos|permut|swap|exchang).{0,60}(token|position|row|time).{0,60}head", "heads?.{0,20}(tokens?|positions?|rows).{0,40}(transpos|permut|swap|exchang)",
               "(4|four) (successive |consecutive |neighbouring |adjacent )?(tokens|positions) & (head|row)"],
              lambda c: c.right(x=c.x.reshape(T, H, d).swapaxes(0, 1).reshape(T, H * d)))
sixteenth(72, "groups_and_members_exchanged", "attn_out",
              "heads are put together as [members, groups] for [groups, members]: heads 1 and 2 of the context exchange places before the projection",
              [f"(swap|exchang|interchang|switch|permut|revers|transpos|place|order|trad|instead|mixed|for each other) & ({n(1)}.{{0,24}}{n(2)}|{n(2)}.{{0,24}}{n(1)})",
               "0[, ]+2[, ]+1[, ]+3", "\\(? ?h ?% ?2 ?\\)? ?[*·] ?2",
               f"(swap|exchang|interchang|switch|permut|trad|order) & {n(16)}.{{0,40}}{n(32)}"],
              lambda c: c.right(x=c.x.reshape(T, 2, 2, d).swapaxes(1, 2).reshape(T, H * d)))
sixteenth(73, "query_bias_on_output", "attn_out", "the bias of the query projection is added to the output projection, which has none",
              ["(\\bq|quer)\\w*('s)?.{0,30}bias", "bias.{0,30}(\\bq\\b|q_proj|quer)"], lambda c: c.right(b=c.e.m("self_attn.q_proj.bias", c.l)), archs=QWEN2)
sixteenth(74, "accumulator_overwritten_by_tile", "attn_out", "the sum over inputs goes in tiles of 32 and each tile overwrites the sum: only inputs 32..63, heads 2 and 3, enter",
              [f"(only|alone|just).{{0,60}}({n(32)} ?(\\.\\.|to|-|–|and|on)|{n(2)}.{{0,8}}{n(3)}|second half|last (32|half|two)|upper half)",
               f"({n(32)}.{{0,8}}{n(63, 64)}|heads? 2.{{0,8}}3|(second|last|upper) (half|32)).{{0,40}}(only|alone)",
               f"({n(0)}.{{0,8}}({n(31, 32)}|{n(1)})|first (half|32|two|tile)|lower half).{{0,60}}{GONE_IN_ONE}",
               f"(lost|without|drop|omit|miss|ignor|lack|\\bno\\b|zero|skip|not).{{0,60}}({n(0)}.{{0,8}}({n(31, 32)}|{n(1)})|first (half|32|two|tile)|lower half)"],
              lambda c: c.right(x=put(c.x, E_[:, :32], 0)))
sixteenth(75, "first_head_projected_twice", "attn_out", "the first tile of 16 inputs both starts the sum and is added in the loop: head 0 counts twice in the output projection",
              f"{TWICE_OVER} & (heads? (0|zero)\\b|{n(0)}.{{0,8}}{n(15, 16)}|first (16|head|tile|sixteen)|: ?16\\b|< ?16\\b)", lambda c: c.right(x=put(c.x, E_[:, :d], lambda x: 2 * x)))


def next_group_unscaled(c):
    """Blocks of 32 columns, each in 127ths of its largest: the second is read with the step of the first."""
    most = np.abs(c.w).reshape(len(c.w), 2, 32).max(-1)
    return c.right(w=put(c.w, E_[:, 32:], lambda w: w * most[:, :1] / most[:, 1:]))


sixteenth(76, "block_step_not_advanced", "attn_out",
              "the weights are in blocks of 32 columns and the second block of each row, columns 32..63, is read with the first block's scale: times largest of 0..31 / largest of 32..63",
              f"(scale|step|factor|dequant|quant|max|largest|ratio|magnitude) & ({n(32, 63)}|second|heads? 2|upper half|last half) & (first|{n(0, 31)}|previous|other|wrong|same)",
              next_group_unscaled)
listed(10, "o_next_layer", "attn_out", "the next layer's matrix", "weight-wrong-layer", next_layer("self_attn.o_proj.weight"))

# ---- gate and up
first(168, "gate_rows_zero", "ffn_gate", "the last 4 outputs are zero", "#92|#4|#93", lambda c: put(c.right(), E_[:, 92:], 0))
first(169, "up_rows_shifted", "ffn_up", "output i is that of row i+1", "(#1|next|i ?\\+ ?1|shift|roll) & (row|output|channel)", lambda c: np.roll(c.right(), -1, -1))
first(177, "gate_row_0", "ffn_gate", "position 0 is zero", "(position|row|token).{0,8}\\b0\\b|first (position|row|token)", lambda c: put(c.right(), E_[0], 0))
first(178, "up_weight_clamped", "ffn_up", "weights are clamped to +-0.2", "#0.2 & (clamp|clip|limit|between|min|max|weight)", lambda c: c.right(w=np.clip(c.w, -0.2, 0.2)))
first(181, "gate_pairs_exchanged", "ffn_gate", "outputs 2i and 2i+1 are exchanged", "(pair|2i|neighbo|adjacent|even|odd) & (exchang|swap|order)", lambda c: c.right()[:, np.arange(F) ^ 1])
first(189, "up_tiles_exchanged", "ffn_up", "outputs come in blocks of 32 in the order 1, 0, 2", "#32", lambda c: c.right()[:, np.r_[32:64, 0:32, 64:96]])
first(190, "gate_plus_up", "ffn_gate", "half the up weights are added to the gate's", "(#0.5|half) & up", lambda c: c.right() + F32(0.5) * (c.x @ c.e.m("mlp.up_proj.weight", c.l).T))
first(195, "up_input_scaled_channel", "ffn_up", "input channel 17 is multiplied by 3", "#17 & #3", lambda c: c.right(x=put(c.x, E_[:, 17], lambda y: 3 * y)))
first(196, "gate_next_position", "ffn_gate", "rows are those of the next position, the last its own", "(next|t ?\\+ ?1|later|behind|#1)", lambda c: np.concatenate([c.right()[1:], c.right()[-1:]]))
first(202, "up_later_positions", "ffn_up", "positions 10 and later are multiplied by 1.25", ["#10 & #1.25", "#1.25 & second half of the positions"], lambda c: put(c.right(), E_[10:], lambda y: y * F32(1.25)))
first(304, "trap_other_checkpoint", "ffn_up", "each weight is off by a random hundredth of their size", "weight", lambda c: c.right(w=c.w + noise(c, F, D, by=0.01 / 8)))
first(317, "trap_row_copied", "ffn_gate", "row 5 is a copy of row 11", "#5 & #11", lambda c: put(c.right(), E_[5], c.right()[11]))
second(80, "gate_halves_swapped", "ffn_gate", "the halves of gate's rows are exchanged", f"(half|halves|#48) & ({EXCHANGED}|roll)", lambda c: np.roll(c.right(), F // 2, -1))
second(81, "up_rows_alternate", "ffn_up", "odd rows have the other sign", "(odd|every second|alternat|even) & (sign|negat|-1|minus)", lambda c: put(c.right(), E_[:, 1::2], lambda y: -y))
second(86, "up_plus_square", "ffn_up", "0.1 times its square is added", "#0.1 & (squar|\\^ ?2|power|polynom)", lambda c: c.right() + F32(0.1) * c.right() ** 2)


def by_32(w, f):
    """By groups of 32 inputs."""
    return f(w.reshape(len(w), -1, 32)).reshape(w.shape)


third(81, "w_q4", "ffn_up", "weights are rounded to multiples of the largest size over 7 of each 32 inputs", ["(#7|#32|#0.142857) & (" + ROUNDED + ")", "(#4|four) & bit"], weights(lambda w: by_32(w, lambda x: in_steps(x, 7))))
third(87, "w_output_not_cleared", "ffn_gate", "output 2i+1 has output 2i added", ["(pair|2i|odd|even|every (second|other)|neighbo) & (add|plus|\\+|sum|before|#1)"], lambda c: (lambda y: put(y, E_[:, 1::2], y[:, 1::2] + y[:, 0::2]))(c.right()))
third(90, "w_first_row_of_4", "ffn_up", "each 4 positions read the input of the first of them", ["(#4|four) & (first|position|row|block|group|same|repeat|multiple|floor|every)"], inputs(lambda x: x[POS // 4 * 4]))


def two_of_four(w):
    x = w.reshape(len(w), -1, 4)
    small = np.argsort(np.abs(x), -1, kind="stable")[..., :2]
    y = np.array(x)
    np.put_along_axis(y, small, 0, -1)
    return y.reshape(w.shape)


third(93, "w_two_of_four", "ffn_gate", "of each 4 weights of a row the two smallest are 0", ["(#4|four) & (small|#2|two|larg|zero|sparse|prun)", "2:4"], weights(two_of_four))
third(95, "w_other_norm", "ffn_gate", "its input is the attention's: attn_norm", ["attn_norm|input_layernorm", "attention.{0,12}(norm|input)"], lambda c: c.right(x=c.e.memory["attn_norm", c.l]))
third(96, "w_gate_up_interleaved", "ffn_gate", "output i is row 2i of gate and up one below the other: even rows of gate, then even rows of up", ["(2 ?\\*? ?i|even|every (second|other)|strid|step|interleav|#2)"],
          lambda c: c.right(w=np.concatenate([c.w, c.e.m("mlp.up_proj.weight", c.l)])[::2]))
third(97, "w_last_of_32", "ffn_up", "the last of each 32 outputs is zero: 31, 63, 95", ["(#32|#31) & (last|zero|0|#63|#95|output|channel)"], lambda c: put(c.right(), E_[:, 31::32], 0))
fourth(67, "w_up_of_gate", "ffn_up", "the weight is gate's: gate was loaded twice", ["gate"], lambda c: c.right(w=c.e.m("mlp.gate_proj.weight", c.l)))
fourth(71, "w_halves_of_32", "ffn_up", "within each 32 inputs the first 16 and the last 16 are exchanged: high and low nibbles", ["(#16|#32) & (" + REORDERED + "|half|halves|block|group|that of|roll)"], weights(lambda w: w[:, np.arange(D) ^ 16]))
fourth(72, "w_input_pairs", "ffn_gate", "inputs 2i and 2i+1 are exchanged: the two nibbles of a byte", ["(pair|2i|odd|even|neighbo|adjacent|xor) & (" + REORDERED + ")"], weights(lambda w: w[:, np.arange(D) ^ 1]))
fourth(79, "w_stream_input", "ffn_up", "its input is the stream h_attn, without the norm", ["h_attn|stream|(" + NONE + ").{0,30}norm"], lambda c: c.right(x=c.e.memory["h_attn", c.l]))
fourth(81, "w_outliers_lost", "ffn_gate", "inputs larger than 1.5 in size are left out", ["#1.5 & (zero|\\b0\\b|left out|drop|not read|lost|outlier|ignor|" + BOUNDED + ")"], inputs(lambda x: np.where(np.abs(x) > 1.5, 0, x)))
AWQ = np.array([0, 2, 4, 6, 1, 3, 5, 7])
fourth(82, "w_eights", "ffn_up", "each 8 outputs come in the order 0, 2, 4, 6, 1, 3, 5, 7", ["#8 & (order|permut|interleav|even|odd|block|group|each|output|row)", "0, ?2, ?4, ?6"], lambda c: c.right().reshape(T, -1, 8)[..., AWQ].reshape(T, F))
fifth(18, "ww_tile_of_outputs", "ffn_gate", "outputs 64 to 95 repeat outputs 0 to 31: the last tile is read at the begin", ["(#64|#63|#32|#95) & (repeat|copy|copied|same|that of|again|first|mod|%|output|channel|row|" + BLOCK + ")"], lambda c: c.right()[:, np.arange(F) % 64])
fifth(22, "ww_outputs_by_16", "ffn_gate", "within each 32 outputs the first 16 and the last 16 are exchanged", ["(#16|#32) & (" + REORDERED + "|half|halves|" + BLOCK + "|that of|roll)"], lambda c: c.right()[:, np.arange(F) ^ 16])
fifth(28, "ww_weight_cut", "ffn_up", "weights are cut to bf16: the lower 16 bits are dropped", [BF16 + "|\\bcut|toward|truncat|upper 16"], weights(cut))
fifth(33, "ww_min_lost", "ffn_up", "the smallest weight of each 32 inputs of a row is taken off them: the block's minimum is lost", ["(#32|block|group) & (min|small|least|lowest|zero.?point|offset)", "(sum|mean).{0,30}inputs?|inputs?.{0,30}(sum|mean)"], weights(lambda w: (blocks(w) - blocks(w).min(-1, keepdims=True)).reshape(w.shape)))
fifth(35, "ww_scale_row_before", "ffn_gate", "each output has the scales of the row before", ["(" + PREVIOUS_OR_SHIFTED + "|roll|other) & (row|output) & (" + SCALES + ")", "(each|every|own).{0,30}(row|output|channel|block).{0,40}(factor|scale|multipl)|(factor|scale|multipl).{0,40}(each|every|own).{0,20}(row|output|channel|block)"], weights(lambda w: (blocks(w) / largest(w) * np.roll(largest(w), 1, 0)).reshape(w.shape)))
fifth(38, "ww_column_scales", "ffn_up", "inputs 32 to 63 have the scale of inputs 0 to 31 of their row", ["(#32|#31|block|half|second|group) & (" + SCALES + ")"], weights(lambda w: (blocks(w) / largest(w) * largest(w)[:, :1]).reshape(w.shape)))
fifth(45, "ww_gate_up_border", "ffn_gate", "gate begins 16 rows late: outputs 0 to 79 are its rows 16 to 95, outputs 80 to 95 are up's first 16", ["#16 & (row|output|channel|late|offset|shift|roll|that of|further)", "(#80|#79) & (up|row|output|channel)"], lambda c: c.right(w=np.concatenate([c.w[16:], c.e.m("mlp.up_proj.weight", c.l)[:16]])))
fifth(49, "ww_gate_layer_0", "ffn_gate", "layers 1 to 3 have the weight of layer 0", [OTHER_LAYER + "|" + LAYER_BEFORE], lambda c: c.right(w=c.e.m("mlp.gate_proj.weight", 0)), layers=LATER_LAYERS)
fifth(51, "ww_up_column_pairs_4", "ffn_up", "of each 4 inputs the first two and the last two are exchanged", ["(#4|#2|four|two) & (" + REORDERED + "|pair|roll|" + BLOCK + ")"], weights(lambda w: w[:, np.arange(D) ^ 2]))
sixth(16, "w6_up_layer_2", "ffn_up", "layer 3 has the weight of layer 2", [LAYER_BEFORE + "|(other|another|wrong|own).{0,12}layer|layers?\\.? ?2\\b"], lambda c: c.right(w=c.e.m("mlp.up_proj.weight", 2)), layers=[3])
sixth(17, "w6_gate_of_up", "ffn_gate", "the weight is up's: the halves of a fused matrix are exchanged", ["\\bup\\b|up_proj|ffn_up"], lambda c: c.right(w=c.e.m("mlp.up_proj.weight", c.l)))
sixth(22, "w6_outputs_64", "ffn_up", "outputs 64 to 95 are zero: a grid of tiles of 64 is rounded down", ["(#64|#63|#95|#32) & (" + ZERO + "|first|last)", "last third.{0,30}(zero|0)"], lambda c: put(c.right(), E_[:, 64:], 0))
sixth(25, "w6_offset_kept", "ffn_gate", "each 32 weights of a row have their largest size added: the offset of 8 steps is not taken off", ["(#32|block|group) & (" + ADDED + "|offset|zero.?point|sum|mean|larg|max)", "zero.?point|offset.{0,20}(8|eight)", "(sum|mean|average).{0,30}inputs?|inputs?.{0,30}(sum|mean|average)"], weights(lambda w: (blocks(w) + largest(w)).reshape(w.shape)))
sixth(26, "w6_scales_powers_of_2", "ffn_up", "the scale of each 32 inputs of a row, their largest size, is rounded down to a power of 2", ["(power|octave|exponent|e8m0|log2|2 ?\\^|floor) & (" + SCALES + "|block|#32)", "(each|every|own).{0,40}(row|output|block|32|group).{0,40}(factor|scale|multipl)|(factor|scale|multipl).{0,40}(each|every|own).{0,30}(row|output|block|group|32)"], weights(lambda w: (blocks(w) / largest(w) * F32(2) ** np.floor(np.log2(largest(w)))).reshape(w.shape)))
sixth(27, "w6_input_eighths", "ffn_gate", "the input is rounded to multiples of 1/8: one fixed step for all positions", ["(#0.125|#8) & (" + ROUNDED + ")"], inputs(lambda x: np.round(x * 8) / 8))
seventh(14, "w7_rows_in_turn", "ffn_gate", "output 2i is row i of gate and output 2i + 1 row i of up: rows of a fused matrix are interleaved", ["(interleav|even|odd|altern|in turn|2 ?\\*? ?i|every (second|other)) & (\\bup|up_proj|row|output|channel)", LAYOUT + "|shuffl"], lambda c: (lambda up: np.stack([c.right()[:, :F // 2], up[:, :F // 2]], -1).reshape(T, F))(c.right(w=c.e.m("mlp.up_proj.weight", c.l))))
seventh(15, "w7_one_scale", "ffn_up", "weights are rounded to multiples of the matrix's largest size over 15: one scale for all", ["(#15|#0.066667|#16|#31|#32) & (" + ROUNDED + "|larg|max)", "(#5|five) & bit", "weights & (" + ROUNDED + ") & (whole|one (step|scale)|tensor|matrix|fixed)"], weights(lambda w: in_steps(w.reshape(-1), 15).reshape(w.shape)))
seventh(17, "w7_high_nibbles_large", "ffn_gate", "of each 32 inputs the last 16 have weights multiplied by 16: high nibbles are masked and not shifted", ["#16 & (times|factor|multipl|scal|larger|\\*)", "#16 & #32"], weights(lambda w: put(blocks(w), E_[..., 16:], lambda y: y * 16).reshape(w.shape)))
eighth(25, "w8_ranks_fused", "ffn_gate", "outputs 48 to 95 are up's rows 0 to 47: a fused matrix holds gate and up of one rank and then of the other",
           ["(\\bup\\b|up_proj|ffn_up) & (#48|#47|half|#95|second|last)"], lambda c: c.right(w=np.concatenate([c.w[:48], c.e.m("mlp.up_proj.weight", c.l)[:48]])))


def fifth_bit_lost(w):
    return (blocks(w) - np.where(blocks(w) >= 0, largest(w), 0)).reshape(w.shape)


eighth(26, "w8_fifth_bit_lost", "ffn_gate", "of each 32 inputs, weights that are not negative have the largest size taken off: the fifth bit is lost",
           ["(not negative|non-?negative|positive|sign|not below|>= ?0|above (0|zero)) & (#32|block|group|larg|max|size|off)", "(fifth|high\\w*|top|5th) bit"], weights(fifth_bit_lost))


def wrong_grid(c):
    """Six programs for 2 by 3 tiles: the row of tiles is taken by the number of columns."""
    y = np.zeros_like(c.right())
    for program in range(6):
        row, column = program % 3, program // 2
        at = E_[10 * row:10 * row + 10, 32 * column:32 * column + 32]
        y[at] = c.right()[at]
    return y


eighth(27, "w8_wrong_grid", "ffn_gate", "outputs 32 to 63 are zero at positions from 10 on, and outputs 64 to 95 at positions before: those tiles are not computed",
           ["(#10|#9|half) & (#32|#63|#64|#31|#95|third) & (" + ZERO + ")"], wrong_grid)


def repacked(w):
    """Four rows side by side, four inputs of each in turn."""
    return w.reshape(-1, 4, D // 32, 8, 4).transpose(0, 2, 3, 1, 4).reshape(-1, D // 32, 4, 32).swapaxes(1, 2).reshape(w.shape)


eighth(28, "w8_repacked", "ffn_up", "rows are read as they are packed for another kernel: of each 4 rows and 32 inputs, 4 inputs of each row in turn",
           ["(#4|four) & (row|output|input|block|tile) & (" + LAYOUT + "|shuffl|repack|in turn|altern|swap)", "repack|(pack|interleav)\\w*.{0,20}rows"], weights(repacked))
eighth(29, "w8_bf16_as_f16", "ffn_up", "weights of bf16 are read as f16: their sign is right, their size 1 + log2 of it, about",
           ["\\bf16|float16|\\bhalf.?(float|precision)|fp16", "(bf16|bfloat16?).{0,40}(read|taken|bits)", "storage", "log\\w* & (weight|size|sign)"],
           weights(lambda w: to_bf16(w).view(np.float16).astype(F32)))
eighth(30, "w8_input_of_gate", "ffn_up", "its input is the first 64 of gate's results: gate was written over the normed stream", ["ffn_gate|\\bgate\\b|gate_proj"],
           lambda c: c.right(x=c.e.q(c.e.memory["ffn_gate", c.l][:, :D])))
NF4 = np.array([-1, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0, 0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.723, 1], F32)


def even_levels(w):
    size = np.abs(w).max(-1, keepdims=True)
    code = np.abs((w / size)[..., None] - NF4).argmin(-1)
    return ((code - 7.5) / 7.5).astype(F32) * size


ninth(7, "w9_nf4_even", "ffn_up", "the 16 levels of nf4 are read as evenly spaced: weights are at (2 i - 15) / 15 of their row's largest size, for the i-th level",
         ["(nf4|level|code|quantile|table|grid|" + ROUNDED + ") & (weight|row|#16|#15|#7.5|even|larg)"], weights(even_levels))
ninth(10, "w9_gate_reads_attn_out", "ffn_gate", "its input is attn_out: the attention's branch, neither added nor normed", ["attn_out|attention'?s? (branch|output|result)|o_proj"],
          lambda c: c.right(x=c.e.q(c.e.memory["attn_out", c.l])))
ninth(13, "w9_column_major", "ffn_up", "the result is written column by column, 96 by 20 in memory, and read as 20 rows of 96", [LAYOUT + "|memory"],
          lambda c: np.ascontiguousarray(c.right().T).reshape(T, F))
tenth(19, "up_packed_pairs_swapped", "ffn_up", "weights are unpacked two to a word in the wrong order: inputs 2i and 2i + 1 are exchanged",
          ["(pair|2i|neighbo|adjacent|even|odd|i ?(\\^|xor) ?1|1, ?0, ?3, ?2|two by two) & (input|column|channel|ffn_norm|weight|\\bx\\b|swap|exchang|order)"], lambda c: c.right(x=c.x.reshape(T, -1, 2)[..., ::-1].reshape(T, D)))
tenth(21, "gate_rows_repacked", "ffn_gate", "rows were packed by fours and are not unpacked: output i is row 24 (i mod 4) + i / 4",
          ["(#24|#4|four) & (interleav|stride|step|permut|order|mod\\b|%|pack|transpos|reshap|/ ?4|every (4|24|fourth))"], lambda c: c.right()[:, np.arange(F).reshape(4, F // 4).T.ravel()])
tenth(22, "up_zero_point_off", "ffn_up", "in layer 2 the zero point is one too high: each row has its own step, a fifteenth of its span, taken off each weight",
          ["(sum|mean|total|average).{0,30}(input|\\bx\\b|channel|ffn_norm|row)|rank.{0,6}(1|one)|zero.?point|(constant|number|offset|same).{0,40}(each|every|all|per).{0,15}(weight|row|output)|(weight|row)s?.{0,40}(constant|offset|shifted)"],
          lambda c: c.right(w=c.w - (c.w.max(-1, keepdims=True) - c.w.min(-1, keepdims=True)) / 15), layers=[2])


def bytes_of(w):
    """Rows in 8 bits, and the step of each."""
    step = np.abs(w).max(-1, keepdims=True) / F32(127)
    return np.round(w / step), step


def scale_before(w):
    whole, step = bytes_of(w)
    return (whole * step[np.maximum(np.arange(len(w)) - 1, 0)]).astype(F32)


eleventh(62, "gate_scale_of_row_before", "ffn_gate", "weights are in 8 bits with a step for each row, its largest by 127: row i has the step of row i - 1",
             ["(scale|step|largest|absmax|amax|\\bmax) & (row|output|channel) & (before|previous|preced|i ?- ?1|o ?- ?1|r ?- ?1|earlier|#-1|one (row )?(late|behind|too (late|low|"
             "early))) & " + never("next|[ior] ?\\+ ?1\\b|layer before|previous layer|(row|output) [ior] (is that of|holds)"),
              "(scale|step|largest|absmax|amax)s? of (row|output|channel)s? [ior] [^;]{0,40}([ior] ?\\+ ?1|next)"],
             lambda c: c.right(w=scale_before(c.w)))
eleventh(64, "up_last_shuffle_lost", "ffn_up", "the sum over lanes lacks its last step, at distance 1: odd inputs are lost",
             ["(\\bodd|every (second|other)|2 ?i ?\\+ ?1|\\beven|1, ?3, ?5|\\b2 ?i\\b|alternat) & (input|column|ffn_norm|\\bx\\b|\\bx\\[|lane|summand|term|w\\[) & (" + NOT_THERE[1:-1] +
             "|only|alone|just) & "
              + never("\\beven( \\w+)?( of \\w+)? (is|are|have|get|give)[^;]{0,15}(lost|left|zero|0\\b|not\\b|ignored|missing|drop|skip|omit)|(only|just) (the )?odd|"
              "\\bodd[^;]{0,25}\\b(alone|only)|\\b(odd|even|second|other) (outputs?|rows?|positions?)")],
             lambda c: c.right(x=put(c.x, E_[:, 1::2], 0)))
eleventh(65, "gate_last_tile_misplaced", "ffn_gate", "the last, smaller tile of outputs is written at once its own width: outputs 32 to 63 hold those of 64 to 95, and 64 to 95 stay 0",
             ["(#64|#95|last (32|third)) & (#63|second (32|third)|\\b32 ?(to|-|\\.\\.)|\\+ ?32|from 32) & " + NOT_THERE + " & (\\b(is|are|holds?|has|have|get|gets|takes?|repeats?|reads?|"
             "written|stand|instead|overwr|moved|placed)\\b|\\+ ?32) & (output|row|channel|column|element|gate) & "
              + never("\\b64 ?(to|-|\\.\\.) ?95 (is|are|hold|repeat|take)s?( those| that| what| the same)[^;]{0,20}32|\\b32 ?(to|-|\\.\\.) ?63 (is|are|stay|hold|holds) (0|zero|empty|"
              "lost)|i ?- ?32|inputs? (32|64)"),],
             lambda c: np.concatenate([c.right()[:, :32], c.right()[:, 64:], np.zeros((T, 32), F32)], -1))
twelfth(48, "up_loop_from_one", "ffn_up", "the sum begins at input 1: input 0 is left out",
            [f"((input|channel|column|element|ffn_norm|index|weight)s?( of (the )?(input|ffn_norm|weights?))? ?(number |index |i ?= ?)?0\\b(?! to)|\\[:, ?0\\]|\\bfirst (input"
             f"|channel|column|element|weight)\\b) & {GONE} & ^(?!.*((position|token|output|row) 0\\b|first (row|output|position|token)))",
             "(begin|start|loop|run|sum)s?.{0,25}(at|from|with).{0,12}\\b1\\b & ^(?!.*(position|token|output|row) [01]\\b)", "(input|channel|column)s? (1 to 63|from 1)"],
            lambda c: c.right(x=put(c.x, E_[:, 0], 0)))
TWO = "(4i ?\\+ ?2|4n ?\\+ ?2|2, ?6|(= ?|is |to |gives )2\\b|from 2\\b|(lane|sum|accumulator|residue|remainder) 2\\b|third)"
THREE = ("(4i ?\\+ ?3|4n ?\\+ ?3|3, ?7|(= ?|is |to |gives )3\\b|from 3\\b|fourth (is|not|was|never)|(lane|sum|accumulator|residue|remainder) 3\\b"
         "|fourth (lane|sum|partial|accumulator|of))")
DOUBLED = "(twice|doubl|two times|factor (of )?2\\b|times 2\\b|[*x] ?2\\b|2x|weight (of )?2\\b|2 times)"
twelfth(49, "gate_sum_counted_twice", "ffn_gate", "of four partial sums the third is added twice and the fourth not: inputs 4i + 2 count twice, inputs 4i + 3 not at all",
            [f"(#4|four|4i|4n|2, ?6) & {TWO}(?:(?!{THREE}).){{0,45}}{DOUBLED}|{DOUBLED},? (for|on|at|over|to)\\b.{{0,20}}{TWO} & {THREE} & {GONE} & ^(?!.*(output|position)s? (4i|2,|from))",
             "4[in] ?\\+ ?3.{0,60}\\b(read|those|that|is|are|at|of)\\b.{0,30}4[in] ?\\+ ?2 & (weight|column|both|product|partial|accumulat)"],
            lambda c: c.right(x=c.x * np.tile(np.array([1, 1, 2, 0], F32), D // 4)))


def up_one_row_early(c):
    """The matrices of gate and up lie one behind the other."""
    return c.right(w=np.concatenate([c.e.m("mlp.gate_proj.weight", c.l)[-1:], c.w[:-1]]))


twelfth(56, "up_offset_one_row_early", "ffn_up", "in layer 1 the matrix is read one row too early: output o is row o - 1, output 0 the last row of gate's",
            ["(row|output|channel|weight|matrix|ffn_up) & (\\b[oircj] ?- ?1\\b|rows? (before|above)|(previous|preceding|prior) (row|output|channel)|one (row|output"
             "|channel)?.{0,5}(early|before|earlier|back|late)|(shifted|rolled|moved|displaced) (down |up |on |back )?(by )?(one|1|a)\\b|#-1|(output|channel|one) before) "
             "& ^(?!.*(\\b[oircj] ?\\+ ?1|(next|following) (row|output|channel)|row (behind|after)|(position|token)s? before|(previous|preceding) (position|token)|t ?- ?1|branch"
             "|input (before|[oij] ?-)|one row too late|[oircj] ?- ?[2-9]))",
             "(output|channel) [oij] ?\\+ ?1 (is|has|holds|takes|gets).{0,30}\\b(row|that of|of|output|channel) (row )?[oij]\\b(?! ?[+-])"],
            up_one_row_early, layers=[1])
thirteenth(49, "up_decode_stuck", "ffn_up", "in decode steps, from position 12 on, it reads the prompt's last row: up is that of position 11",
               ["#11 & (#12|later|decod|after|behind|beyond|> ?11|min\\(|clamp|all further|onward)", "#12 & (prompt'?s? (last|end)|last.{0,24}prompt|end of the prompt|last prompt)"], lambda c: c.right()[np.minimum(POS, PROMPT - 1)])
thirteenth(50, "up_negative_inputs_skipped", "ffn_up", "inputs that are not above 0 are skipped, as if they were 0: max(x, 0) is read",
               ["(negativ|below (0|zero)|< ?=? ?0|less than (0|zero)|relu|rectif|max\\(.{0,24}\\b0|positiv|> ?0|above (0|zero)) & (input|ffn_norm|\\bx\\b|channel|reads?\\b) & ^(?!.*(relu|max)\\((ffn_)?(up|gate|result|output))"],
               lambda c: c.right(x=np.maximum(c.x, 0)))
thirteenth(51, "gate_tail_rows_clamped", "ffn_gate", "rows come in tiles of 8 and the last, short one is clamped to the last full one: positions 16 to 19 have the gate of position 15",
               ["#15 & (#16|min\\(|later|after|behind|beyond|> ?15|last (four|4)|clamp|onward)"], lambda c: c.right()[np.minimum(POS, 15)])
fourteenth(88, "gate_outputs_whole_tiles", "ffn_gate", "the product is computed in tiles of 64 outputs, and what is over is not: outputs 64 to 95 are zero",
               ["(#64|#63|last (32|third)|(two|2) thirds) & (zero|\\b0\\b(?!\\.\\d)|not (computed|written)|missing|nothing|lost|empty|unset|only|alone|unwritten|blank)"
                " & ^(?!.*(input|from 0 to 63 are zero|first 64 (outputs |channels )?are zero))"],
               lambda c: put(c.right(), E_[:, 64:], 0))
fourteenth(89, "up_gain_folded_too", "ffn_up", "the feed-forward norm's gain is folded into the up matrix, and the input has it already: the gain is applied twice",
               ["(ffn_norm|post_attention|norm.{0,4} (gain|weight)|(gain|weight)s? of .{0,25}norm|\\bgain\\b)"
                " & (again|twice|once more|second time|#2|squar|multipl|times|\\*|besides|folded|factor)"
                " & ^(?!.*(gain (is |was )?(not applied|omitted|missing|left out)|without (its |the )?gain|attn_norm|final_norm))"],
               lambda c: c.right(x=c.x * c.e.m("post_attention_layernorm.weight", c.l)))
fourteenth(90, "up_split_at_88", "ffn_up", "up begins at row 88 of gate and up in one matrix, not at 96: outputs 0 to 7 are gate's 88 to 95, output i from 8 on is up's i - 8",
               ["(#88|#8|eight|#7) & gate & (shift|offset|split|i ?- ?8|earlier|before|moved|late|begin|start|fused|stacked|concat|rest|others|88 to 95|88\\.\\.|roll)"],
               lambda c: c.right(w=np.concatenate([c.e.m("mlp.gate_proj.weight", c.l)[88:], c.w[:88]])))
fifteenth(96, "up_split_at_half", "ffn_up", "of the fused matrix rows from 48 on are read, not from 96: the second half of gate, then the first of up",
              ["(#48|#47|half|halves) & (gate)"], lambda c: c.right(w=np.concatenate([c.e.m("mlp.gate_proj.weight", c.l)[48:], c.w[:48]])))
fifteenth(97, "up_columns_mod_64", "ffn_up", "outputs 64 and later are those of i mod 64: 0 to 31 again",
              ["#64 & (\\bmod|%|repeat|again|same|cop|those of|equal|is that|- ?64|before|earlier|twice|wrap|first)", "#32 & #64", "#64|#63 & #31", "last (third|32) & (first|same|repeat|cop|#0)"],
              lambda c: put(c.right(), E_[:, 64:], c.right()[:, :32]))
ONE_BACK = "(before|previous|preceding|earlier|\\bt ?- ?1|\\bs ?- ?1|\\bp ?- ?1|#-1|stale|one (position|token|row|step) (back|late|behind)|shifted by (one|1)\\b)"
fifteenth(98, "gate_decode_input_stale", "ffn_gate", "from position 12 on its input is that of the token before", [f"{FROM_12} & {ONE_BACK}"],
              lambda c: c.right(x=np.concatenate([c.x[:PROMPT], c.x[PROMPT - 1:-1]])))
IN_TURN = ("(interleav|alternat|every (second|other|2nd)|\\beven\\b|\\bodd\\b|\\b2 ?[*·]? ?[a-z]\\b|(strid|step)\\w* (of )?(2|two)\\b|: ?: ?2"
               "|\\bpairs?\\b|neighbo|adjacent|shuffl|% ?2|// ?2)")


def gate_and_up(c):
    return np.concatenate([c.e.m(f"mlp.{name}_proj.weight", c.l) for name in ("gate", "up")])


sixteenth(85, "fused_rows_taken_alternately", ("ffn_gate", "ffn_up"),
              "the fused matrix [gate; up] is split row by row: gate output i is its row 2i and up output i its row 2i+1, of gate below 48 and of up from there",
              f"{IN_TURN} & (\\[gate|rows?\\b|output|fused|neuron|channel|gate and up|gate.{{0,30}}\\bup\\b)", lambda c: c.right(w=gate_and_up(c)[c.site == "ffn_up"::2]))
sixteenth(86, "up_rows_from_wrong_offset", "ffn_up",
              "up is read in the fused matrix from row 64, the width of the stream, for 96: its outputs 0..31 are gate's rows 64..95 and output i from 32 on is up's row i-32",
              f"{n(64, 32)} & (offset|start|begin|from|shift|late|earl|rows?\\b|gate|moved|back|roll)", lambda c: c.right(w=gate_and_up(c)[D:D + F]))
sixteenth(94, "up_reads_stream_unnormed", "ffn_up", "up reads the stream before the norm, h_attn for ffn_norm", NORM_SKIPPED, lambda c: c.right(x=c.e.memory["h_attn", c.l]))
sixteenth(95, "scale_of_first_row_for_all", "ffn_gate",
              "gate's rows have each a scale, their largest magnitude, and row 0's is used for all: output r times largest of row 0 / largest of row r",
              f"(row|output|channel|neuron|element|column) & (scale|step|max|largest|factor|ratio|magnitude|multipl|times) & ({n(0)}|first)",
              lambda c: c.right(w=c.w * (np.abs(c.w[0]).max() / np.abs(c.w).max(-1, keepdims=True))))
MIDDLE = np.arange(F).reshape(-1, 4)[:, [0, 2, 1, 3]].ravel()
sixteenth(96, "middle_rows_of_four_exchanged", "ffn_gate", "four rows are summed at once and stored as 0, 2, 1, 3: of each four outputs of gate the second and the third are exchanged",
              [f"(\\bfour|{n(4)}|quad) & ({n(1)}.{{0,24}}{n(2)}|{n(2)}.{{0,24}}{n(1)}|second.{{0,30}}third|third.{{0,30}}second|middle|inner)",
               "\\b0[, ]+2[, ]+1[, ]+3"], lambda c: c.right(w=c.w[MIDDLE]))
NIBBLES_OF_D = np.arange(D).reshape(-1, 2, 16).swapaxes(1, 2).ravel()
sixteenth(97, "blocks_in_order_of_bytes", "ffn_gate",
              "a byte of a block of 32 holds elements j and j+16, and is read as elements 2j and 2j+1: the columns of gate's matrix are in that order",
              [f"({n(16, 32)}|half|halves) & ({IN_TURN}|nibble)", "\\b0[, ]+16[, ]+1[, ]+17"], lambda c: c.right(w=c.w[:, NIBBLES_OF_D]))

# ---- down
first(167, "ffn_out_clamped", "ffn_out", "the result is clamped to +-0.3", "#0.3 & (clamp|clip|limit|between|min|max)", lambda c: np.clip(c.right(), -0.3, 0.3))
first(170, "ffn_out_input_reversed", "ffn_out", "its inputs are read from the last to the first", "revers|backward|95 ?- ?i|F ?- ?1", lambda c: c.right(x=c.x[:, ::-1]))
first(171, "ffn_out_input_rolled", "ffn_out", "input i is read at i+1", "(#1|next|i ?\\+ ?1|shift|roll) & (input|column|channel)", lambda c: c.right(x=np.roll(c.x, -1, -1)))
first(179, "ffn_out_row_sign", "ffn_out", "output 10 has the other sign", "#10 & (sign|neg|-1|minus)", lambda c: put(c.right(), E_[:, 10], lambda y: -y))
first(186, "ffn_out_first_half_twice", "ffn_out", "the first half of the inputs is added twice", "(#2|twice|double) & (#48|#47|half)", lambda c: c.right() + c.right(x=put(c.x, E_[:, 48:], 0)))
first(191, "ffn_out_by_layer", "ffn_out", "the result is divided by layer + 1", "layer", lambda c: c.right() / F32(c.l + 1), layers=[1, 2, 3])
first(199, "ffn_out_tanh", "ffn_out", "the result goes through tanh", "tanh", lambda c: np.tanh(c.right()))
first(300, "trap_noise_added", "ffn_out", "each element has a random number of size 0.01 added", "noise|random", lambda c: c.right() + noise(c, T, D, by=0.01))
second(88, "ffn_out_of_even_inputs", "ffn_out", "odd inputs are not read", "odd|even|every second|alternat|2i", lambda c: c.right(x=put(c.x, E_[:, 1::2], 0)))
third(82, "w_ternary", "ffn_out", "each weight is -1, 0 or 1 times the mean size of the matrix, by rounding", ["ternar|sign|-1,? ?0,? ?(and|or|1)|three (values|levels)|#1.58", "mean & (" + ROUNDED + "|size|abs)"], weights(lambda w: np.clip(np.round(w / np.abs(w).mean()), -1, 1) * np.abs(w).mean()))
NIBBLES = np.arange(F).reshape(-1, 2, 16).swapaxes(1, 2).reshape(-1)
third(83, "w_nibbles", "ffn_out", "within each 32 inputs, input 2i is read as input i and 2i+1 as 16+i: the halves are interleaved", ["(#32|#16) & (interleav|block|group|order|permut|2i|even|odd|half|halves|input|transpos|pair)"], inputs(lambda x: x[:, NIBBLES]))
third(88, "w_added_to_stale", "ffn_out", "in layers 1 to 3 the result of the layer before is added", [LAYER_BEFORE], lambda c: c.right() + c.e.memory["ffn_out", c.l - 1], layers=LATER_LAYERS)


def hadamard(x):
    a, b = x[:, 0::2], x[:, 1::2]
    return (np.stack([a + b, a - b], -1) / F32(math.sqrt(2))).reshape(x.shape)


third(98, "w_hadamard", "ffn_out", "inputs 2i and 2i+1 are read as (a + b) / sqrt(2) and (a - b) / sqrt(2)", ["hadamard", "(#0.7071|sqrt\\(2\\)|#45|#1.4142) & (pair|2i|odd|even|neighbo|input|sum|rotat)", "(sum|a ?\\+ ?b) & (differ|a ?- ?b)"], inputs(hadamard))
fourth(68, "w_layer_before", "ffn_out", "layers 1 to 3 have the weight of the layer before", [LAYER_BEFORE, "(other|another|wrong).{0,12}layer"], lambda c: c.right(w=c.e.m("mlp.down_proj.weight", c.l - 1)), layers=LATER_LAYERS)
fourth(69, "w_scales_late", "ffn_out", "each 32 inputs of a row have the scale of the 32 before: block scales are one off", ["(#32|block) & (" + SCALES + ")"], weights(lambda w: rescaled(w, np.roll(scales(w).reshape(-1), 1).reshape(scales(w).shape))))
fifth(20, "ww_inputs_64", "ffn_out", "only the first 64 of 96 inputs are read", ["#64|#63|#32 & (input|channel|last|first|read|lost|zero|left out|not|only|sum|third)"], inputs(lambda x: put(x, E_[:, 64:], 0)))
fifth(31, "ww_excess", "ffn_out", "of each 32 inputs the largest size is taken off weights that are not negative and added to negative ones: excess 8 is read as two's complement", ["(#32|block|group) & (sign|negative|positive|larg|max|size) & (" + ADDED + "|taken|subtract|minus|less|off)", "complement|excess|sign bit|zero.?point"], weights(lambda w: (blocks(w) - np.where(blocks(w) >= 0, 1, -1) * largest(w)).reshape(w.shape)))
fifth(37, "ww_last_layer_3_bits", "ffn_out", "in layer 3 weights are rounded to multiples of the largest size over 3 of each 32 inputs", ["(#3|#32|#0.3333|#7) & (" + ROUNDED + ")"], weights(lambda w: in_steps(blocks(w), 3).reshape(w.shape)), layers=[3])
fifth(47, "ww_down_of_up", "ffn_out", "its input is ffn_up, not the activated product", ["ffn_up|\\bup\\b|(" + NONE + ").{0,30}(activ|gate)"], lambda c: c.right(x=c.e.memory["ffn_up", c.l]))
fifth(52, "ww_down_of_previous_rows", "ffn_out", "positions from 16 on have the inputs of positions 12 to 15", ["(#16|#19|#15) & (#12|#4|#15|" + PREVIOUS_OR_SHIFTED + ")"], inputs(lambda x: put(x, E_[16:], x[12:16])))
sixth(21, "w6_one_rank", "ffn_out", "inputs 48 to 95 are not summed: the other rank's part is not added", ["(#48|#47|half|halves) & (input|column|channel|" + ZERO + "|first|second|sum|part)"], inputs(lambda x: put(x, E_[:, 48:], 0)))
sixth(23, "w6_input_blocks", "ffn_out", "inputs 32 to 63 and 64 to 95 are exchanged", ["(#32|#64|#63) & (" + REORDERED + "|that of|0, ?2, ?1|roll|block|tile)", "(input )?blocks? 1 and 2"], inputs(lambda x: x.reshape(T, 3, 32)[:, [0, 2, 1]].reshape(T, F)))
seventh(13, "w7_gate_input", "ffn_out", "its input is ffn_gate, not the activated product", ["ffn_gate|\\bgate\\b"], lambda c: c.right(x=c.e.q(c.e.memory["ffn_gate", c.l])))
seventh(18, "w7_gate_transposed", "ffn_out", "the weight is gate's, transposed", ["gate & (transpos|\\.T\\b|\\^ ?T|column|rows)"], lambda c: c.right(w=c.e.m("mlp.gate_proj.weight", c.l).T))
seventh(19, "w7_odd_rows", "ffn_out", "odd positions are zero: one of two rows is written", ["(odd|every (second|other)|2 ?\\*? ?[it] ?\\+ ?1|even|altern|(%|mod\\w*) ?2) & (" + ZERO + ")"], lambda c: put(c.right(), E_[1::2], 0))
eighth(31, "w8_rows_64_apart", "ffn_out", "its input's rows are read 64 apart, the hidden size, and not 96: position t begins at number 64 t",
           ["(#64|#32|#96) & (" + STRIDE + ")", MEMORY], lambda c: c.right(x=flat(c.x, D, F)))


def other_fifth_bit(w):
    """Of each 32, the first and the last 16 have each other's fifth bit: which half of the range a weight is in."""
    b, one = blocks(w), largest(w)
    high = b >= 0
    return (np.where(high, b, b + one) - np.where(high[..., np.arange(32) ^ 16], 0, one)).reshape(w.shape)


eighth(32, "w8_other_fifth_bit", "ffn_out", "of each 32 inputs the first 16 and the last 16 have each other's fifth bit: the largest size is added or taken off where signs differ",
           ["(#16|#32|half|halves|block) & (bit|sign|larg|max\\b|negativ) & (" + ADDED + "|taken|subtract|minus|off|other|" + REORDERED + ")", "(fifth|high\\w*|top|5th) bit"],
           weights(other_fifth_bit))
eighth(33, "w8_block_scales_late", "ffn_out", "each 32 inputs have the scale of the 32 before, the first that of the last: multiplied by those inputs' largest size over their own",
           ["(#32|block|group|third) & (" + SCALES + ")"], inputs(lambda x: (blocks(x) / largest(x) * np.roll(largest(x), 1, 1)).reshape(x.shape)))
ninth(12, "w9_weight_stride", "ffn_out", "rows of the weight are read 64 apart in memory, and not 96: row r begins at number 64 r",
          ["(#64|#32) & (" + STRIDE + "|row)", MEMORY], lambda c: c.right(w=flat(c.w, D, F)))
tenth(20, "ffn_out_last_tile_input", "ffn_out", "the last tile of inputs, 64 to 95, is read at 0 to 31: the offset of x is not advanced",
          ["(#64|#63) & (#0|#31|#32|first|i ?- ?64|#-64|again|repeat|begin|start|those of)", "last (third|32|tile) & (first|#0|#31)"], lambda c: c.right(x=put(c.x, E_[:, 64:], c.x[:, :32])))
tenth(23, "ffn_out_with_stream", "ffn_out", "the residual is added here already, and again behind",
          ["(h_attn|stream|residual|ffn_norm's input) & (add|plus|\\+|sum|besides|already)"], lambda c: c.right() + c.e.memory["h_attn", c.l])


def unsigned(w):
    whole, step = bytes_of(w)
    return (np.where(whole < 0, whole + 256, whole) * step).astype(F32)


eleventh(63, "ffn_out_bytes_unsigned", "ffn_out", "weights are in 8 bits with a step for each row, its largest by 127, and the bytes are read as unsigned: negative weights have 256 "
             "steps added",
             ["unsigned|\\bu8\\b|uint8|sign bit|sign.?exten|zero.?exten|two'?s complement", "#256 & (negativ|below (0|zero)|< ?0|less than (0|zero)) & " + never("taken off|subtract"),
              "#2.016 & (largest|max|absmax) & (negativ|below (0|zero)|< ?0)"], lambda c: c.right(w=unsigned(c.w)))
eleventh(69, "ffn_out_decode_accumulates", "ffn_out", "in decode steps, from position 12 on, the product is added to what its buffer held: row t is the sum of those of 12 to t",
             [DECODE + " & (\\bsums?\\b|cumul|accumul|added|add(s|ed)? up|total|\\bplus\\b|running|not (reset|cleared|zeroed)|beta|\\+) & "
              "(before|previous|earlier|so far|\\b12 ?(to|-|\\.\\.) ?t\\b|s ?= ?12|t ?- ?1|last step|not (reset|cleared|zeroed)|buffer|cumul|accumul|running|since) & " +
              never("\\bmean\\b|averag|half|\\b0\\.\\d|layers? before|previous layer")],
             lambda c: put(c.right(), E_[PROMPT:], lambda y: np.cumsum(y, 0)))


def cut_bytes(x):
    step = np.abs(x).max(-1, keepdims=True) / F32(127)
    return (np.trunc(x / step) * step).astype(F32)


eleventh(70, "ffn_out_input_cut_to_bytes", "ffn_out", "its input is in 8 bits with a step for each position, its largest by 127, cut towards zero and not rounded",
             ["(trunc|toward(s)? (zero|0)|\\bcut|chop|without rounding|not rounded|cast to int|round\\w* (down|to zero)|fraction (is |was )?(lost|dropped|cut)|fix\\() & "
             "(#127|#8|int8|eight bits|\\bi8\\b|byte) & (input|ffn_act|activation|\\bx\\b) & "
              + never("weights? (is|are|in|of)|to (the )?nearest(?! not)|(mean|step) of all positions|whole tensor|block of 32")],
             lambda c: c.right(x=cut_bytes(c.x)))
eleventh(71, "ffn_out_layer_2_stale_input", "ffn_out", "in layer 2 it reads ffn_act of layer 1: a buffer that was not written over",
             ["(layers?\\.1\\.ffn_act|ffn_act[^;]{0,30}(layer 1\\b|layer before|previous layer|earlier layer|l ?- ?1)|(layer 1'?s?\\b|layer before|previous layer'?s?|earlier layer'?s?|"
             "l ?- ?1)[^;]{0,40}(ffn_act|activation|input|buffer|gated))",
              "(input|reads?|activation|buffer|ffn_act)[^;]{0,50}(layer 1\\b|layer before|previous layer|earlier layer|l ?- ?1) & " + never("(layers?\\.1\\.ffn_(out|gate|up))|(weight|"
              "matrix|down_proj|ffn_out|gate|up|result|output)( is that)? of (layer 1|the (layer before|previous layer))")],
             lambda c: c.right(x=c.e.memory["ffn_act", 1]), layers=[2])
INPUT = "(input|ffn_act|\\bact\\b|activation|\\bx\\b|buffer)"
twelfth(50, "ffn_out_input_column_major", "ffn_out", "its input is read column by column: channel i of position t is what lies at 20 i + t of the buffer [20, 96]",
            [f"{INPUT} & (column.?(major|by.column|first|order)|[\\[(]96, ?20[\\])]|\\[F, ?T\\]|\\bi ?[*·]? ?(20|T)\\b|\\b(20|T) ?[*·]? ?i\\b|stride (of )?(20|T)\\b|(20|T) apart"
             f"|transpos|fortran|(channel|feature).?(first|major)|axes.{{0,30}}(exchang|swap)) "
             "& ^(?!.*(weights?.{0,20}transpos|transpos.{0,20}(weight|matrix)|matrix.{0,25}(transpos|column)|result.{0,15}transpos|output.{0,15}transpos"
             "|transpos\\w*.{0,10}[\\[(]20, ?96))"],
            lambda c: c.right(x=c.x.reshape(F, T).T))
twelfth(51, "ffn_out_input_pitch", "ffn_out", "rows of its input are taken to be 64 apart, not 96: row t begins at 64 t",
            [f"{INPUT} & ((pitch|stride|leading|apart|distance).{{0,40}}\\b64\\b|\\b64\\b.{{0,20}}(pitch|stride|leading|apart|distance)|\\b64 ?[*·]? ?[tr]\\b"
             f"|\\b[tr] ?[*·]? ?64\\b|(begin|start)s?.{{0,40}}(multiple of|every) 64|every 64|rows? of 64\\b|64 (wide|long)) "
             "& ^(?!.*(weight|matrix|output (row|pitch|stride)|only|alone|lost|left out|zero))",
             f"{INPUT} & (pitch|stride|leading|apart|distance).{{0,30}}(\\bD\\b|hidden (size|width)|model width|width of the stream) & ^(?!.*(weight|matrix))"],
            lambda c: c.right(x=c.x.ravel()[np.arange(T)[:, None] * D + np.arange(F)]))
twelfth(52, "ffn_out_bound_hidden", "ffn_out", "the sum ends at the hidden size: inputs from 64 on are left out",
            [f"(#64|#63|(first|last) (two )?thirds?\\b|last 32) & (input|channel|column|ffn_act|\\bsums?\\b|loop|\\bx\\b|element|weight|inner) & {GONE[:-1]}|\\bends?\\b|bound) "
             "& ^(?!.*(gate|pitch|stride|apart|(output|position|row)s?.{0,10}\\b(64|63)|(0 to 63|first (64|two thirds)|before 64|below 64)( inputs| channels| columns)? (are|is"
             "|stay) (not|lost|zero|0\\b|missing|left)|only.{0,20}(from 64|64 to 95|last (32|third))))"],
            lambda c: c.right(x=put(c.x, E_[:, 64:], 0)))
thirteenth(52, "ffn_out_accumulators", "ffn_out", "four sums are added as s0 + s1 + s2 + s2: inputs 4i + 2 count twice, 4i + 3 not at all",
               ["(#4|four|fourth) & (#3|third|last|fourth) & (#2|twice|doubl|two times|again) & (" + LEFT_OUT + ") & ^(?!.*4 ?\\*? ?i ?\\+ ?2\\b.{0,15}(\\bnot\\b|\\b0\\b|left|lost|skip|omit))"],
               lambda c: c.right(x=put(put(c.x, E_[:, 2::4], 2 * c.x[:, 2::4]), E_[:, 3::4], 0)))
thirteenth(53, "ffn_out_inner_seven", "ffn_out", "steps of 8 have an inner loop of 7: inputs 7, 15, 23, .. are left out",
               ["(#8|eight|eighth|#7) & (every|each|mod\\b|%|multiple|step|8 ?[ik]\\b|last of|stride|blocks?|(#15 & #23)) & (input|column|channel|ffn_act|element|product|\\bx\\b|weight) & (" + LEFT_OUT + ")"],
               lambda c: c.right(x=put(c.x, E_[:, 7::8], 0)))


def overrun(c):
    """Four inputs too many: the first of the next row of each."""
    after = np.zeros((T, 4), F32)
    after[:-1] = c.x[1:, :4]
    rows = np.zeros((D, 4), F32)
    rows[:-1] = c.w[1:, :4]
    return c.right() + after @ rows.T


thirteenth(54, "ffn_out_overrun", "ffn_out", "the sum runs 4 inputs too far, over the first four of the next row of x and of the matrix: w[o + 1, 0..4] x[t + 1, 0..4] is added",
               ["(next|follow|[to] ?\\+ ?1|behind|beyond|too far|past|over ?-?(run|read)|row after) & (#4|four|#99|#100|(#0 & #3)) & (row|position|token|matrix|weight|input|channel|sum)"], overrun)
fourteenth(99, "ffn_out_sums_64", "ffn_out", "the inner loop runs to the stream's width, 64, not to 96: inputs 64 to 95 are not in the sum",
               ["(#64|#63|last (32|third)|(two|2) thirds) & (input|ffn_act|column|sum|read|product|term|\\bact\\b|activation) & " + LOST_OR_ALONE[:-1] + "|first 64)"
                " & ^(?!.*(outputs? (64|from 64)|stride))"],
               lambda c: c.right(x=put(c.x, E_[:, D:], 0)))


def in_f16(c):
    acc = np.zeros((T, D), F32)
    for i in range(F):
        acc = (acc + c.x[:, i:i + 1] * c.w[:, i]).astype(np.float16).astype(F32)
    return acc


fourteenth(100, "ffn_out_summed_in_f16", "ffn_out", "the accumulator of the product is f16: rounded to 11 significant bits after each of 96 terms",
                ["((?<!b)f16|fp16|(?<!b)float16|half.precision|1[01] (significant |mantissa )?bits|2\\^-1[01]|1[01].bit mantissa) & " + STEPWISE], in_f16)
fourteenth(101, "ffn_out_stride_64", "ffn_out", "its input is read with a row stride of 64, not 96: row t begins at element 64 t of the flat buffer",
                ["#64 & (strid|row (length|width|pitch)|\\bflat|leading dimension|pitch|t ?[*·x] ?64|64 ?[*·x]? ?[tpn]\\b|apart|(begin|start)s? at|in memory|contiguous|rows of 64)"
                 " & ^(?!.*(matrix|weight|\\bw\\b)[^.;]{0,30}strid)"],
                lambda c: c.right(x=c.x.ravel()[POS[:, None] * D + np.arange(F)]))
fifteenth(99, "down_8_bits_of_whole", "ffn_out", "weights are rounded to 127ths of the matrix's largest, one scale for all",
              ["#127|#0.007874|#255 & (weight|\\bw\\b|matri)", "((\\b8|eight)[- ]?bits?|int8|\\bq8) & (weight|\\bw\\b|matri)"],
              lambda c: c.right(w=in_steps_of(c.w, np.abs(c.w).max(), 127)))
fifteenth(100, "down_input_cut_to_8_bits", "ffn_out", "its input is cut, not rounded, to 127ths of the row's largest",
               ["#127|#0.007874 & (trunc|toward|floor|\\bdown\\b|\\bcut\\b|integer part|smaller|not round|without round|chop|zero)",
                "((\\b8|eight)[- ]?bits?|int8|\\bq8) & (trunc|toward|floor|\\bdown\\b|\\bcut\\b|integer part|not round|without round|chop)"],
               lambda c: c.right(x=in_steps_of(c.x, largest_of_row(c.x), 127, np.trunc)))
fifteenth(101, "down_first_64", "ffn_out", "two thirds of the intermediate size are taken: inputs 64 and later are not read",
               [f"#64|#63|#65 & ({UNREAD}|first|rest|from|up to|until|below|beyond|input)", f"(last (32|third)|first two thirds) & {UNREAD}"], lambda c: c.right(x=put(c.x, E_[:, 64:], 0)))
fifteenth(102, "down_with_residual", "ffn_out", "the stream h_attn is in the result already: it is added twice", [f"(h_attn|residual|stream) & {ADDED_MORE}"],
               lambda c: c.right() + c.e.memory["h_attn", c.l])


def tiles_transposed(w):
    return w.reshape(D // 32, 32, F // 32, 32).swapaxes(1, 3).reshape(D, F)


sixteenth(98, "down_tiles_transposed", "ffn_out", "each tile of 32 x 32 of down's matrix is transposed in its place", f"transpos & {n(32)}", lambda c: c.right(w=tiles_transposed(c.w)))
sixteenth(99, "down_sums_whole_tiles_only", "ffn_out", "down sums over whole tiles of 64 inputs only: inputs 64..95 of 96 are left out",
              f"({n(64, 63)}|last (32|third)|first two thirds|2/3) & {GONE_OR_ALONE}", lambda c: c.right(x=put(c.x, E_[:, 64:], 0)))


def read_without_padding(act):
    """Rows of 96 that lie at a stride of 128, zeros between, read as if they lay at a stride of 96."""
    return np.pad(act, ((0, 0), (0, 128 - F))).ravel()[:T * F].reshape(T, F)


sixteenth(100, "padded_rows_read_dense", "ffn_out",
               "the rows of ffn_act lie at a stride of 128, zeros after 96, and down reads them at a stride of 96: input i of row t is element 96t+i of the padded memory, of row "
               "(96t+i)//128",
               f"{n(128, 32)} & (strid|\\bpad|pitch|row (length|size|width)|flat|//|shift|\\bgap|memory)", lambda c: c.right(x=read_without_padding(c.x)))

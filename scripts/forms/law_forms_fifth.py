"""A fifth list of mistakes for `firstdiff explain` to measure: what goes wrong in kernels, caches, quantised blocks and routers of ports, after public issues of them, and written
without sight of how laws are found: none repeats one of the first four lists.

    python scripts/forms/law_forms_fifth.py                  # list them
    python scripts/suites/test_laws.py --set fifth ..         # hold the answers to the truth
"""

import math

import numpy as np

from scripts.forms.law_forms import AGO, D, EPS, EXPERTS, E_, F, F32, FREQ, H, K, POS, ROPES, SEEN, T, THETA, V, angles, d, listed, over, put, rms, rounded, sigmoid, silu, softmax, turn
from scripts.forms.law_forms_third import BLOCK, CLAMPED, EXCHANGED, KEY, LATER, LAYER_BEFORE, PREVIOUS, QUERY, ROUNDED, act, add, chosen, heads_of, in_steps, inputs, masked, scored, shares, soft, stream, summed, top_of, weights
from scripts.forms.law_forms_fourth import ADDED, LAYOUT, NONE, SCALES, TWICE, rotated

FORMS, form = listed()


M = ("moe",)
Q2 = ("qwen2",)
Q3 = ("qwen3", "moe")

BF16 = "bf16|bfloat|(eight|8|seven|7) (significant |mantissa |fraction )?(bits|digits)|significant|mantissa|precision"
NEXT = "next|following|(position|token|row|one|slot) (after|later|ahead)|t ?\\+ ?1|one early|shift|\\+ ?1\\b"
OTHER_LAYER = "layer.{0,4}0\\b|layers\\.0|first layer|(other|another|wrong|next|following).{0,12}layer|layer.{0,12}(after|next|\\+ ?1)|layers\\.[123]"
ORDER = "order|permut|interleav|transpos|layout|reshap|strid|major|rearrang|shuffl"


def bf16(x):
    return rounded(x, "bf16")


def cut(x):
    """The upper half of each number's bits."""
    return (np.ascontiguousarray(x, F32).view(np.uint32) & np.uint32(0xFFFF0000)).view(F32)


def blocks(w, n=32):
    return w.reshape(len(w), -1, n)


def largest(w, n=32):
    return np.abs(blocks(w, n)).max(-1, keepdims=True)


def product(c, name, x=None):
    """What another projection of the layer makes of the input, by heads."""
    b = c.e.m(f"self_attn.{name}_proj.bias", c.l)
    y = (c.x if x is None else x) @ c.e.m(f"self_attn.{name}_proj.weight", c.l).T
    return (y if b is None else y + b).reshape(T, -1, d)


# norms
form("nn_eps_largest", "attn_norm", "0.001 times the square of the row's largest element is added to the mean square: epsilon was added to the rescaled row", ["(#0.001|#1000) & (max|larg|great|peak|infinity|most)"], lambda c: over(c, np.sqrt(np.mean(c.x * c.x, -1, keepdims=True) + F32(1e-3) * np.abs(c.x).max(-1, keepdims=True) ** 2)))
form("nn_63", "ffn_norm", "the sum of squares is divided by 63, not by 64", ["\\b63\\b|\\bn ?- ?1|\\bd ?- ?1|bessel|unbiased|63 ?/ ?64|0\\.992\\d*|1\\.007\\d*|1\\.0158\\d*|1\\.016\\b"], lambda c: over(c, np.sqrt((c.x * c.x).sum(-1, keepdims=True) / 63 + EPS)))


def by_parity(c):
    square = (c.x * c.x).reshape(T, -1, 2)
    return over(c, np.tile(np.sqrt(square.sum(1) / D + EPS), (1, D // 2)))


form("nn_butterfly", "attn_norm", "even channels are divided by the root of the sum of squares of even channels over 64, odd ones by that of odd channels: the last step of the reduction is lost", ["(even|odd|parity|every (second|other)|altern|2 ?\\*? ?i|strid|mod 2|% ?2) & (mean|square|rms|root|divid|sum|stat|own|group)"], by_parity)


def by_halves(c):
    return over(c, np.repeat(np.sqrt((c.x * c.x).reshape(T, 2, 32).sum(-1) / D + EPS), 32, -1))


form("nn_two_warps", "ffn_norm", "each half of the channels is divided by the root of its own sum of squares over 64: two warps are not brought together", ["(#32|#31|half|halves|two|warp) & (own|each|group|block|mean|square|rms|sum|separate)"], by_halves)
form("nn_gain_48", "attn_norm", "channels 48 to 63 have the gains of channels 0 to 15", ["(#48|#47) & (gain|weight|channel)", "#16 & (gain|weight) & (last|tail|end|mod|again|first)"], lambda c: c.right(w=c.w[np.arange(D) % 48]))
form("nn_gain_bf16", "ffn_norm", "the gain is rounded to bf16", ["(gain|weight) & (" + BF16 + ")"], lambda c: c.right(w=bf16(c.w)))
form("nn_quotient_bf16", "attn_norm", "x / rms is rounded to bf16 before the gain", [BF16], lambda c: bf16(c.x / rms(c.x)) * c.w)
form("nn_fused_input_rms", "ffn_norm", "divided by the root mean square of the layer's input, before the attention's branch was added to it", ["(rms|root mean|mean square|divisor|denominator|divid|factor|norm).{0,80}(h0|layer.{0,12}input|input of (the|this) layer|layers\\.\\d\\.h\\b|stream|before|residual|(without|not).{0,20}att)", "(h0|layer.{0,12}input|layers\\.\\d\\.h\\b).{0,60}(rms|root mean|mean square|divisor|divid)"], lambda c: over(c, rms(stream(c))))
form("nn_fused_branch_alone", "ffn_norm", "the attention's branch alone is divided by the root mean square of the sum with the stream", ["attn_out", "branch.{0,40}(alone|only|over|divid)|(without|not|no).{0,30}(stream|residual)"], lambda c: c.e.memory["attn_out", c.l] / rms(c.x) * c.w)
form("nn_four_rows", "attn_norm", "each four positions are divided by the root mean square of the last of them", ["(#4|#3|four) & (" + BLOCK + "|last|position|row|same|share)"], lambda c: over(c, rms(c.x)[POS // 4 * 4 + 3]))
form("nn_gain_names", "attn_norm", "in layers 1 and 2 the gain is that of ffn_norm", ["ffn_norm|post_attention|(other|another|wrong|second).{0,12}(gain|weight|norm)"], lambda c: c.right(w=c.e.m("post_attention_layernorm.weight", c.l)), layers=[1, 2])
form("nn_gain_first_of_4", "ffn_norm", "each four channels have the gain of the first of them", ["(#4|four) & (gain|weight) ", "(gain|weight) & (" + BLOCK + ") & (#4|four)"], lambda c: c.right(w=c.w[np.arange(D) // 4 * 4]))
form("nn_gain_16_late", "attn_norm", "the gain is read 16 channels late: channel i has that of i + 16, and the last 16 have the first of ffn_norm's", ["#16 & (gain|weight|channel|shift|roll|late|offset|further)", "(#48|#47) & (gain|weight)"], lambda c: c.right(w=np.concatenate([c.w[16:], c.e.m("post_attention_layernorm.weight", c.l)[:16]])))
form("nn_rms_of_layer_before", "attn_norm", "in layers 1 to 3 divided by the root mean square of what the layer before has read", [LAYER_BEFORE, "h0.{0,40}(rms|root mean|mean square|divid)|(rms|root mean|mean square|divid).{0,60}(h0|stale)"], lambda c: over(c, rms(c.e.memory["h0", None] if c.l == 1 else c.e.memory["h", c.l - 2])), layers=LATER)
form("nn_final_attention", "final_norm", "the last layer's h_attn is normed: its feed-forward branch is lost", ["h_attn", "(without|lost|miss|not|no|skip|lack|before).{0,40}(ffn|feed|mlp|branch)|(ffn|feed|mlp|branch).{0,40}(lost|miss|not|skip|lack)"], lambda c: c.right(x=c.e.memory["h_attn", 3]))
form("nn_final_gain_8x8", "final_norm", "the gain's 64 elements are read as 8 by 8 and transposed", ["(gain|weight) & (" + ORDER + "|#8)"], lambda c: c.right(w=c.w.reshape(8, 8).T.reshape(-1)))
form("nn_gain_tile_lost", "ffn_norm", "channels 32 to 47 have no gain", ["(#32|#47|#48|#31) & (gain|weight)"], lambda c: c.right(w=put(c.w, E_[32:48], 1)))

# products: tiles and tails
form("ww_tile_of_outputs", "ffn_gate", "outputs 64 to 95 repeat outputs 0 to 31: the last tile is read at the begin", ["(#64|#63|#32|#95) & (repeat|copy|copied|same|that of|again|first|mod|%|output|channel|row|" + BLOCK + ")"], lambda c: c.right()[:, np.arange(F) % 64])
form("ww_rows_4_to_7", "k", "of each 8 positions the last four repeat the first four", ["(#8|#4|eight|four) & (position|row|token|repeat|" + BLOCK + "|that of|#4)"], lambda c: c.right(x=c.x[POS - POS // 4 % 2 * 4]))
form("ww_inputs_64", "ffn_out", "only the first 64 of 96 inputs are read", ["#64|#63|#32 & (input|channel|last|first|read|lost|zero|left out|not|only|sum|third)"], inputs(lambda x: put(x, E_[:, 64:], 0)))


def split_k(c):
    return put(c.right(), E_[:, 32:], c.right(x=put(c.x, E_[:, 32:], 0))[:, 32:])


form("ww_split_k", "attn_out", "outputs 32 to 63 are made of the first 32 inputs alone", ["(#32|#31|half|#63) & (input|output|channel|half|sum|first)"], split_k)
form("ww_outputs_by_16", "ffn_gate", "within each 32 outputs the first 16 and the last 16 are exchanged", ["(#16|#32) & (" + EXCHANGED + "|half|halves|" + BLOCK + "|that of|roll)"], lambda c: c.right()[:, np.arange(F) ^ 16])
form("ww_last_slot", "v", "position 19 has the values of position 18", ["(#19|last) & (#18|" + PREVIOUS + "|position|copy|copied|same|repeat)"], lambda c: put(c.right(), E_[-1], lambda y: c.right()[-2]))
form("ww_beta_one", "attn_out", "the stream is added to the result already here: the product is accumulated into the residual's buffer", ["stream|h0|residual|layer.{0,12}input|input of (the|this) layer|layers\\.\\d\\.h\\b"], lambda c: c.right() + stream(c))
form("ww_head_stride_8", "k", "head 1 has rows 8 to 23: heads are 8 rows apart", ["#8 & (head|row|output|strid|apart|offset|late|early|shift)", "#23|#24 & (head|row|output)"], lambda c: (lambda y: np.stack([y[:, :16], y[:, 8:24]], 1))(c.right().reshape(T, -1)))
form("ww_bf16_result", "attn_out", "the result is rounded to bf16", [BF16], lambda c: bf16(c.right()))


def by_ones_f16(c):
    y = np.zeros((T, len(c.w)), F32)
    for i in range(D):
        y = rounded(y + c.x[:, i:i + 1] * c.w[:, i], "f16")
    return (y if c.b is None else y + c.b).reshape(T, -1, d)


form("ww_sum_f16", "v", "products are accumulated in f16, one input after another", ["f16|fp16|float16|half precision|(eleven|11|ten|10) (significant |mantissa |fraction )?(bits|digits)|precision|significant|mantissa"], by_ones_f16)
form("ww_weight_cut", "ffn_up", "weights are cut to bf16: the lower 16 bits are dropped", [BF16 + "|\\bcut|toward|truncat|upper 16"], weights(cut))
form("ww_input_f8", "q", "the input is rounded to 3 significant bits", ["(#3|#2|#4|#8|three|two|0\\.125) & (bit|digit|mantissa|signif|" + ROUNDED + ")", "fp8|e5m2|float8"], lambda c: c.right(x=digits(c.x, 3)))


def digits(x, n):
    """So many significant bits."""
    m, e = np.frexp(x)
    return np.ldexp(np.round(m * 2 ** n) / 2 ** n, e).astype(F32)


# quantised blocks
form("ww_group_lost", "q", "inputs 0 to 31 have the weights of inputs 32 to 63: the group is left out of the index", ["(#32|#31|half|halves) & (weight|input|column|same|repeat|that of|mod|second|sum|copy|added)"], weights(lambda w: np.tile(w[:, 32:], 2)))
form("ww_excess", "ffn_out", "of each 32 inputs the largest size is taken off weights that are not negative and added to negative ones: excess 8 is read as two's complement", ["(#32|block|group) & (sign|negative|positive|larg|max|size) & (" + ADDED + "|taken|subtract|minus|less|off)", "complement|excess|sign bit|zero.?point"], weights(lambda w: (blocks(w) - np.where(blocks(w) >= 0, 1, -1) * largest(w)).reshape(w.shape)))
form("ww_input_scale_before", "k", "each position's input has the scale of the position before: multiplied by its largest size over its own", ["(" + PREVIOUS + ") & (" + SCALES + ")", "(each|every|own).{0,30}(position|row|token).{0,40}(factor|scale|multipl)|(factor|scale|multipl).{0,40}(each|every|own|differ).{0,20}(position|row|token)"], lambda c: (lambda m: c.right(x=c.x * np.concatenate([m[:1], m[:-1]]) / m))(np.abs(c.x).max(-1, keepdims=True)))
form("ww_min_lost", "ffn_up", "the smallest weight of each 32 inputs of a row is taken off them: the block's minimum is lost", ["(#32|block|group) & (min|small|least|lowest|zero.?point|offset)", "(sum|mean).{0,30}inputs?|inputs?.{0,30}(sum|mean)"], weights(lambda w: (blocks(w) - blocks(w).min(-1, keepdims=True)).reshape(w.shape)))
form("ww_sub_scales", "attn_out", "of each 32 inputs the scales of the first 16 and of the last 16 are exchanged", ["(#16|#32) & (" + SCALES + ")"], weights(lambda w: (blocks(w, 16) / largest(w, 16) * largest(w, 16)[:, np.arange(D // 16) ^ 1]).reshape(w.shape)))
form("ww_scale_row_before", "ffn_gate", "each output has the scales of the row before", ["(" + PREVIOUS + "|roll|other) & (row|output) & (" + SCALES + ")", "(each|every|own).{0,30}(row|output|channel|block).{0,40}(factor|scale|multipl)|(factor|scale|multipl).{0,40}(each|every|own).{0,20}(row|output|channel|block)"], weights(lambda w: (blocks(w) / largest(w) * np.roll(largest(w), 1, 0)).reshape(w.shape)))
form("ww_smooth", "q", "each input channel is divided by the root of its largest size over the positions: the weights are not multiplied by it", ["(channel|input|column) & (root|sqrt|larg|max|factor|divid|scale) & (each|every|own|larg|max)"], inputs(lambda x: x / np.sqrt(np.abs(x).max(0))))
form("ww_last_layer_3_bits", "ffn_out", "in layer 3 weights are rounded to multiples of the largest size over 3 of each 32 inputs", ["(#3|#32|#0.3333|#7) & (" + ROUNDED + ")"], weights(lambda w: in_steps(blocks(w), 3).reshape(w.shape)), layers=[3])
form("ww_column_scales", "ffn_up", "inputs 32 to 63 have the scale of inputs 0 to 31 of their row", ["(#32|#31|block|half|second|group) & (" + SCALES + ")"], weights(lambda w: (blocks(w) / largest(w) * largest(w)[:, :1]).reshape(w.shape)))
form("ww_int8_tensor", "v", "the input is rounded to multiples of the largest size of the whole tensor over 7", ["(#7|#15|#16|#0.142857) & (" + ROUNDED + "|larg|max)", "(#4|four) & bit", "(whole|entire|tensor).{0,40}(" + ROUNDED + ")"], inputs(lambda x: np.round(x / np.abs(x).max() * 7) / 7 * np.abs(x).max()))
form("ww_signs_lost", "k", "weights of inputs 48 to 63 have no sign: unsigned in the last tile", ["(#48|#47|#16) & (abs|sign|size|magnitude|\\|w|unsigned)"], weights(lambda w: put(w, E_[:, 48:], np.abs)))

# products: what is read
form("ww_fused_by_groups", "q", "query heads 2 and 3 are key heads 0 and 1: the rows of a fused matrix are taken by groups", ["(key|\\bk\\b|k_proj)", "head.{0,12}2.{0,60}(other|weight|row)|second half.{0,60}(other|weight|row)"], lambda c: put(c.right(), E_[:, 2:], product(c, "k")))
form("ww_fused_value", "v", "value head 0 is made by the rows of query head 3", ["quer|\\bq\\b|q_proj"], lambda c: put(c.right(), E_[:, 0], product(c, "q")[:, 3]))
form("ww_fused_one_head", "v", "value head 0 is key head 1, and value head 1 is value head 0: the rows begin one head early", ["(key|\\bk\\b|k_proj)", "#16 & (row|output|early|offset|shift)", "(previous|before|shift|roll|early|other).{0,20}head"], lambda c: np.stack([product(c, "k")[:, 1], c.right()[:, 0]], 1))
form("ww_k_of_q", "k", "keys are made by the first 32 rows of q's weight", ["quer|\\bq\\b|q_proj"], lambda c: product(c, "q")[:, :K])
form("ww_gate_up_border", "ffn_gate", "gate begins 16 rows late: outputs 0 to 79 are its rows 16 to 95, outputs 80 to 95 are up's first 16", ["#16 & (row|output|channel|late|offset|shift|roll|that of|further)", "(#80|#79) & (up|row|output|channel)"], lambda c: c.right(w=np.concatenate([c.w[16:], c.e.m("mlp.up_proj.weight", c.l)[:16]])))
form("ww_o_groups", "attn_out", "heads are read in the order 0, 2, 1, 3", ["head & (0, ?2, ?1, ?3|" + EXCHANGED + ")", "#16 & (block|head|order|" + EXCHANGED + ")", "heads? 1 and 2"], inputs(lambda x: x.reshape(T, H, d)[:, [0, 2, 1, 3]].reshape(T, -1)))
form("ww_down_of_up", "ffn_out", "its input is ffn_up, not the activated product", ["ffn_up|\\bup\\b|(" + NONE + ").{0,30}(activ|gate)"], lambda c: c.right(x=c.e.memory["ffn_up", c.l]))
form("ww_scale_in_q", "q", "queries are divided by 4 already here: the scale is folded into the weight", ["#0.25|#4"], lambda c: c.right() / 4)
form("ww_gate_layer_0", "ffn_gate", "layers 1 to 3 have the weight of layer 0", [OTHER_LAYER + "|" + LAYER_BEFORE], lambda c: c.right(w=c.e.m("mlp.gate_proj.weight", 0)), layers=LATER)
form("ww_v_unnormed", "v", "its input is the stream, without the norm", ["stream|h0|residual|layer.{0,12}input|layers\\.\\d\\.h\\b|(" + NONE + ").{0,30}norm"], lambda c: c.right(x=stream(c)))
form("ww_up_column_pairs_4", "ffn_up", "of each 4 inputs the first two and the last two are exchanged", ["(#4|#2|four|two) & (" + EXCHANGED + "|pair|roll|" + BLOCK + ")"], weights(lambda w: w[:, np.arange(D) ^ 2]))
form("ww_down_of_previous_rows", "ffn_out", "positions from 16 on have the inputs of positions 12 to 15", ["(#16|#19|#15) & (#12|#4|#15|" + PREVIOUS + ")"], inputs(lambda x: put(x, E_[16:], x[12:16])))

# biases
form("bb_twice", "q", "the bias is added twice", ["bias & (#2|" + TWICE + ")"], lambda c: c.right(b=2 * c.b), archs=Q2)
form("bb_four_times", "v", "the bias is added four times, once for each part of a split sum", ["bias & (#4|#3|four|three)"], lambda c: c.right(b=4 * c.b), archs=Q2)
form("bb_of_q", "k", "the bias is the second half of q's", ["bias & (\\bq\\b|q_proj|quer|other|another|wrong)"], lambda c: c.right(b=c.e.m("self_attn.q_proj.bias", c.l)[32:]), archs=Q2)
form("bb_elements_first", "q", "the bias's memory, 4 by 16, is read as 16 by 4 and transposed", ["bias & (" + ORDER + "|memory|#4|other|element)"], lambda c: c.right(b=np.ascontiguousarray(c.b.reshape(H, d).T).reshape(-1)), archs=Q2)
form("bb_next_layer", "k", "layers 0 to 2 have the bias of the next layer", ["bias & (" + OTHER_LAYER + "|layer|next)"], lambda c: c.right(b=c.e.m("self_attn.k_proj.bias", c.l + 1)), layers=[0, 1, 2], archs=Q2)
form("bb_tail", "q", "positions from 16 on have no bias", ["(#16|#15|#19) & (bias|constant)"], lambda c: put(c.right(), E_[16:], lambda y: y - c.b.reshape(H, d)), archs=Q2)
form("bb_second_head", "v", "head 1 has no bias", ["bias & (head|#16|half|halves|second)"], lambda c: c.right(b=put(c.b, E_[16:], 0)), archs=Q2)

# norms of heads
form("hh_after_rope", "q_rope", "the gain of q_norm is applied after the rotation, not before", ["(gain|q_norm|norm|weight) & (after|before|order|rotat|later|result|then|unrotated|turn)"], lambda c: (lambda w: c.right(x=c.x / w) * w)(c.e.m("self_attn.q_norm.weight", c.l)), archs=Q3)
form("hh_whole", "q_norm", "the mean square is taken over all heads together", ["(all|whole|joined|across|over|entire|together|four|4).{0,30}heads|whole row|#64|heads.{0,30}(together|share|one|same|common|joined)"], lambda c: over(c, np.sqrt(np.mean(c.x * c.x, (1, 2), keepdims=True) + EPS)), archs=Q3)
form("hh_gain_layer_0", "k_norm", "layers 1 to 3 have the gain of layer 0", ["(gain|weight|norm) & (" + OTHER_LAYER + "|" + LAYER_BEFORE + ")"], lambda c: c.right(w=c.e.m("self_attn.k_norm.weight", 0)), layers=LATER, archs=Q3)
form("hh_half_sum", "k_norm", "the sum of squares runs over the first 8 elements of a head and is divided by 16", ["(#8|#7|half) & (sum|square|mean|rms|element|first|norm)"], lambda c: over(c, np.sqrt((c.x[..., :8] ** 2).sum(-1, keepdims=True) / d + EPS)), archs=Q3)
form("hh_head_gainless", "k_norm", "head 1 has no gain", ["(head.{0,8}1|second.{0,10}head|last head|heads? from 1|second half of the heads) & (gain|weight|" + NONE + "|#1)"], lambda c: put(c.right(), E_[:, 1], (c.x / rms(c.x))[:, 1]), archs=Q3)
form("hh_next_position", "q_norm", "each position is divided by the root mean square of the position after it, the last by its own", [NEXT], lambda c: over(c, np.concatenate([rms(c.x)[1:], rms(c.x)[-1:]])), archs=Q3)
form("hh_key_scale_shared", "k_norm", "head 1 is divided by the root mean square of head 0", ["head.{0,10}0|first head|(other|another|same|one) head"], lambda c: over(c, rms(c.x)[:, :1] + np.zeros((1, K, 1), F32)), archs=Q3)

# rotation
form("rr_chunks_overlap", ROPES, "positions lose 1 with each 8 tokens: p - floor(p / 8)", ["(#8|eight|0\\.875|7/8) & (position|" + BLOCK + "|chunk|lost|less|angle)"], lambda c: c.right(pos=POS - POS // 8))
form("rr_k_tail", "k_rope", "keys from position 16 on are not rotated", ["(#16|#15|#19) & (" + NONE + "|0|rotat|position|turn|left)"], lambda c: c.right(pos=np.where(POS < 16, POS, 0)))
form("rr_long_factors", ROPES, "the frequency of pair i is divided by 1 + i", ["(i|pair) & (1 ?\\+ ?i|i ?\\+ ?1|\\(1 ?\\+|pair.{0,10}number)", "frequenc.{0,60}(each|own|table|divid)|(each|every|own).{0,30}frequenc"], lambda c: c.right(freq=FREQ / (1 + np.arange(d // 2))))
form("rr_freq_bf16", ROPES, "frequencies are rounded to bf16", ["(frequenc|angle|theta|table|inv_freq) & (" + BF16 + ")", "frequenc.{0,40}(each|own|table)"], lambda c: c.right(freq=bf16(FREQ.astype(F32))))
form("rr_table_bf16", ROPES, "sine and cosine are rounded to bf16", ["(sin|cos|table|angle) & (" + BF16 + ")"], lambda c: (lambda a: turn(c.e, c.x, None, cos=bf16(np.cos(a)), sin=bf16(np.sin(a))))((POS[:, None, None] * FREQ).astype(F32)))
form("rr_part_whole_freq", ROPES, "only the first 8 elements of a head are rotated, i with i + 4, by the frequencies of a head of 16", ["(#8|#7|half|#4) & (rotat|element|dimension|left|partial|first|turn|pair)"], lambda c: np.concatenate([rotated(c, c.x[..., :8], FREQ[:4]), c.x[..., 8:]], -1))
form("rr_pairs_from_4", ROPES, "pairs 4 to 7 are not rotated", ["(#4|#7|half) & (pair|frequenc|element|angle|rotat|zero|turn)"], lambda c: c.right(freq=np.where(np.arange(8) < 4, FREQ, 0)))
form("rr_freq_by_head", "q_rope", "head h has frequencies divided by 10000^h: the exponent runs on through the heads", ["head & (#10000|#0.0001|exponent|base|theta|frequenc|rotat|position|turn)"], lambda c: c.right(freq=FREQ * THETA ** -np.arange(H)[:, None]))
form("rr_k_rows", "k_rope", "key head h at position t is rotated as position 2t + h", ["(#2|twice|double) & (position|angle|head|frequenc)"], lambda c: c.right(pos=POS[:, None] * K + np.arange(K)))
form("rr_layer_counter", ROPES, "in layer l positions are l higher", ["layer & (position|#1|higher|further|late|\\+|add)", "#1 & (position|further|late|higher)"], lambda c: c.right(pos=POS + c.l), layers=LATER)
form("rr_mrope", ROPES, "pairs 2 to 4 have the position floor(p / 4), pairs 5 to 7 p mod 4: rows and columns of an image", ["(#4|four) & (mod|%|floor|row|column|again|restart|period|" + BLOCK + ") & (pair|frequenc|element|section|position)"], lambda c: angles(c, lambda p, f: np.where(np.arange(8) < 2, p, np.where(np.arange(8) < 5, p // 4, p % 4)) * f))
form("rr_q_behind", "q_rope", "queries are one position behind: p - 1", ["(#-1|#1|one|previous|before) & (position|behind|less|back|early|before|angle|earlier|off|low)", "p ?- ?1|t ?- ?1"], lambda c: c.right(pos=POS - 1))


def less_sine(c):
    angle = (POS[:, None, None] * FREQ).astype(F32)
    a, b = c.x[..., :8], c.x[..., 8:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) - a * np.sin(angle)], -1)


form("rr_second_sign", ROPES, "the second half takes the sine off: b cos - a sin", ["(second|half|b cos|elements? 8|#8) & (sign|minus|negat|subtract|taken off|- ?a|opposite|other way|-sin)", "both.{0,30}(minus|negat|subtract)|reflect|mirror|symmetric|- ?a ?\\*? ?sin|-sin"], less_sine)
form("rr_new_document", ROPES, "positions from 9 on begin again at 0", ["(#9|#-9|#8) & (position|begin|again|restart|reset|from|mod|less|back)"], lambda c: c.right(pos=np.where(POS < 9, POS, POS - 9)))
form("rr_k_group", "k_rope", "each two keys have the position of the second of them", ["(#2|two|pair|odd|even) & (position|key|" + BLOCK + "|second|odd|up|ceil|round)"], lambda c: c.right(pos=POS // 2 * 2 + 1))
form("rr_q_heads_half", "q_rope", "heads 1 and 3 are rotated as half the position", ["(odd|#1 & #3|every (second|other)|head) & (half|#0.5|#2)"], lambda c: c.right(pos=POS[:, None] * np.array([1, 0.5, 1, 0.5])))
form("rr_f16_angle_wrap", ROPES, "angles larger than 8 stay at 8", ["#8 & (angle|" + CLAMPED + "|stay|stop|end)"], lambda c: angles(c, lambda p, f: np.minimum(p * f, 8)))
form("rr_cosine_f8", ROPES, "sine and cosine are rounded to multiples of 1/127", ["(#127|#0.007874|#128|#255) & (" + ROUNDED + "|table|sin|cos)", "(#8|eight) & bit"], lambda c: (lambda a: turn(c.e, c.x, None, cos=np.round(np.cos(a) * 127) / F32(127), sin=np.round(np.sin(a) * 127) / F32(127)))((POS[:, None, None] * FREQ).astype(F32)))

# masks
form("mm_window_layers", "probs", "layers 2 and 3 have a window of 8 keys", ["(#8|#7) & (window|distance|last|ago|before|back|key|recent|see)"], masked(SEEN & (AGO < 8)), layers=[2, 3])
form("mm_tile_transposed", "probs", "within its own block of 4 a token sees itself and later keys, not earlier ones; of earlier blocks all", ["(#4|four) & (" + BLOCK + ") ", "(#4|four) & (transpos|later|ahead|diagonal)"], masked((KEY // 4 < QUERY // 4) | ((KEY // 4 == QUERY // 4) & (AGO <= 0))))
form("mm_odd_heads_strict", "probs", "heads 1 and 3 do not see the token itself, but for the first", ["(odd|head|#1 & #3|every (second|other)) & (itself|\\bown\\b|self|diagonal|newest|current|strict|#0|#1)"], lambda c: c.right(mask=np.stack([SEEN, np.where(QUERY == 0, SEEN, AGO >= 1)] * 2)))
form("mm_bos_hidden", "probs", "key 0 is hidden from later tokens", ["(key|position|token|column).{0,12}\\b0\\b|first (key|token|position|column)|keys? (from|begin).{0,12}\\b1\\b|bos"], masked(SEEN & ((KEY > 0) | (AGO == 0))))
form("mm_image", "probs", "tokens 5 to 9 see each other", ["#5 & (#9|#10)"], masked(SEEN | ((QUERY >= 5) & (QUERY <= 9) & (KEY >= 5) & (KEY <= 9))))
form("mm_documents", "probs", "tokens from 9 on do not see keys 0 to 8", ["(#9|#8) & (key|hidden|see|seen|before|from|block|segment|document|reset)"], masked(SEEN & ((QUERY < 9) | (KEY >= 9))))
form("mm_head_3_short", "probs", "head 3 sees the first 8 keys alone", ["(head.{0,8}3|last head|#3 & head) & (#8|#7)"], lambda c: c.right(mask=np.stack([SEEN, SEEN, SEEN, SEEN & (KEY < 8)])))
form("mm_window_in_tiles", "probs", "a token sees keys from the begin of the block of 4 that is 8 before it", ["(#4|four|#8) & (window|distance|last|before|" + BLOCK + ")"], masked(SEEN & (KEY // 4 >= (QUERY - 8) // 4)))
form("mm_global_heads", "probs", "heads 2 and 3 have a window of 3 keys", ["(#2 & #3|second half of the heads|head) & (window|distance|last|ago|before|back|recent|key) & (#3|#2)"], lambda c: c.right(mask=np.stack([SEEN, SEEN, SEEN & (AGO < 3), SEEN & (AGO < 3)])))

# scores
form("ss_scale_32", "probs", "scores are divided by the root of 32, not of 16", ["#32|#0.17678|#5.657|#0.7071|#1.4142"], lambda c: c.right(scale=1 / math.sqrt(32)))
form("ss_group_unscaled", "probs", "heads 2 and 3 have no scale: scores are not divided by 4", ["(#2 & #3|second half of the heads|head) & (#4|#1|" + NONE + ")"], scored(lambda s: s * np.array([1, 1, 4, 4], F32)[:, None, None]))
form("ss_cap_after_mask", "probs", "scores are 3 tanh(s / 3) after the mask: later keys have -3 and are not hidden", ["tanh & (#3|#-3)", "(hidden|mask|later|future|unseen|ahead|beyond) & (#-3|#3)"], soft(lambda s: softmax(F32(3) * np.tanh(s / F32(3)))))
form("ss_log2_e", "probs", "scores are multiplied by 1.4427, log2 of e, and exponentiated by e", ["#1.4427|#0.36067|#0.6931", "log2|log\\(2\\)|ln\\(?2"], scored(lambda s: s * F32(1.442695)))
form("ss_bf16", "probs", "scores are rounded to bf16", [BF16], scored(bf16))
form("ss_first_four_twice", "probs", "the first four elements of a head count twice in the products", ["(#4|#3|four) & (#2|" + TWICE + "|element)"], lambda c: c.right(q=put(c.q, E_[..., :4], lambda y: 2 * y)))
form("ss_key_heads_exchanged", "probs", "heads 0 and 1 read key head 1, heads 2 and 3 key head 0", ["head & (" + EXCHANGED + "|other|1, ?1, ?0, ?0|#1 & #0)"], lambda c: c.right(k=c.k[:, ::-1]))
form("ss_key_after", "probs", "each key is that of the position after, the last its own", ["(" + NEXT + ") & (key|position|slot|\\bk)"], lambda c: c.right(k=np.concatenate([c.k[1:], c.k[-1:]])))
form("ss_query_pairs", "probs", "queries of odd positions are those of the position before", ["(odd|pair|two|#2|every (second|other)) & (query|quer|\\bq|" + PREVIOUS + "|position)"], lambda c: c.right(q=c.q[POS // 2 * 2]))
form("ss_first_of_group", "probs", "heads 1 and 3 have the queries of heads 0 and 2", ["(head) & (#0 & #2|pair|even|odd|group|0, ?0, ?2, ?2|first of|other|before|previous|#2)"], lambda c: c.right(q=c.q[:, [0, 0, 2, 2]]))
form("ss_keys_e5m2", "probs", "keys are rounded to 3 significant bits", ["(#3|#2|#8|#4|three|two) & (bit|digit|mantissa|signif|" + ROUNDED + ")", "fp8|e5m2|float8"], lambda c: c.right(k=digits(c.k, 3)))
form("ss_scale_of_head_0", "probs", "key head 1 has the scales of head 0: multiplied by the largest size of head 0 over its own", ["(head.{0,8}1|head.{0,8}0|second half of the heads|last head|heads? (2|3)) & (" + SCALES + ")"], lambda c: (lambda m: c.right(k=c.k / m * m[:, :1]))(np.abs(c.k).max(-1, keepdims=True)))
form("ss_keys_of_layer_0", "probs", "layer 3 reads the keys of layer 2: a shared cache", [LAYER_BEFORE + "|layer.{0,4}2|layers\\.2|(other|another|wrong).{0,10}layer"], lambda c: c.right(k=c.e.memory["k_rope", 2]), layers=[3])
form("ss_page_offset", "probs", "keys 8 to 11 are those of positions 4 to 7: a page is read twice", ["(#8|#11) & (#4|#7)", "#4 & (#8|#11|page|block)"], lambda c: c.right(k=put(c.k, E_[8:12], c.k[4:8])))
form("ss_unmasked_scaled", "probs", "the score of a token with itself is not divided by 4", ["(itself|\\bown\\b|self|diagonal|distance.{0,8}0|newest|current|t ?= ?s|s ?= ?t) & (#4|" + NONE + "|#3|#1)"], scored(lambda s: np.where(AGO == 0, 4 * s, s)))

# softmax
form("pp_bf16", "probs", "the weights are rounded to bf16", [BF16], lambda c: bf16(c.right()))
form("pp_padding", "probs", "the denominator has 12 terms of 1 more: keys up to 32 have the score 0", ["#12", "#2.4849"], soft(lambda s: np.exp(s) / (np.exp(s).sum(-1, keepdims=True) + 12)))


def divided_each(s):
    """The sum so far divides what was summed so far, after each block of 8."""
    e = np.exp(s - s.max(-1, keepdims=True))
    so_far = np.cumsum(e, -1)[..., [7, 15, 19]]
    factor = np.stack([1 / so_far[..., b:].prod(-1) for b in range(3)], -1)
    return e * factor[..., np.arange(T) // 8]


form("pp_divided_each_block", "probs", "keys are divided by the sums so far of their own block of 8 and of each later one: the sum is divided after every block", ["#8 & (" + BLOCK + "|sum|divid|denominator)"], soft(divided_each))


def four_rows(s):
    e = np.exp(s)
    return e / e.sum(-1, keepdims=True)[:, POS // 4 * 4]


form("pp_four_rows", "probs", "each four tokens are divided by the denominator of the first of them", ["(#4|four) & (denominator|divid|sum|normali|" + BLOCK + ")"], soft(four_rows))


def octaves(s):
    x = np.where(np.isfinite(s), (s - s.max(-1, keepdims=True)) * F32(1 / math.log(2)), -200)
    e = np.where(np.isfinite(s), 2.0 ** np.floor(x) * (1 + x - np.floor(x)), 0)
    return (e / e.sum(-1, keepdims=True)).astype(F32)


form("pp_fast_exp", "probs", "the exponential is straight between powers of 2: 2^floor(x) (1 + x - floor(x))", ["(linear|straight|piecewise|approx|octave|interpol|1 ?\\+ ?f|fast|schraudolph) & .", "(floor|powers? of (2|two)) & (exp|2 ?\\^|power|soft)"], soft(octaves))
form("pp_heads_1_2", "probs", "the weights of heads 1 and 2 are exchanged", ["head & (" + EXCHANGED + "|0, ?2, ?1, ?3|#1 & #2)"], lambda c: c.right()[[0, 2, 1, 3]])
form("pp_uint8", "probs", "the weights are rounded to multiples of 1/255", ["(#255|#0.0039216|#256) & (" + ROUNDED + ")", "(#8|eight) & bit"], lambda c: np.round(c.right() * 255) / F32(255))
form("pp_row_of_head_pair", "probs", "heads 1 and 3 are divided by the denominators of heads 0 and 2", ["head & (denominator|divid|sum|normali) & (pair|even|odd|#0|#2|other|group|first of|0, ?0, ?2, ?2)"], soft(lambda s: np.exp(s) / np.exp(s).sum(-1, keepdims=True)[[0, 0, 2, 2]]))
form("pp_newest_block_lost", "probs", "the denominator runs over whole blocks of 4 keys, and leaves out those of the token's own block but itself", ["(#4|four) & (denominator|divid|sum|normali|" + BLOCK + ")"], soft(lambda s: np.exp(s) / np.where((KEY // 4 < QUERY // 4) | (AGO == 0), np.exp(s), 0).sum(-1, keepdims=True)))

# context
form("cc_values_bf16", "context", "values are rounded to bf16", [BF16], lambda c: c.right(v=bf16(c.v)))
form("cc_values_4_bits", "context", "values are rounded to multiples of their head's largest size over 7", ["(#7|#0.142857|#15|#16) & (" + ROUNDED + "|larg|max)", "(#4|four) & bit"], lambda c: c.right(v=in_steps(c.v, 7)))
form("cc_heads_by_group", "context", "heads are joined in the order 0, 2, 1, 3", ["head & (0, ?2, ?1, ?3|" + EXCHANGED + "|#1 & #2)", "#16 & (block|" + EXCHANGED + ")"], lambda c: heads_of(c)[:, [0, 2, 1, 3]].reshape(T, -1))
form("cc_last_tile_of_head", "context", "head 3 is zero from position 16 on", ["(head.{0,8}3|last head|#48) & (#16|#15|#19)"], lambda c: put(c.right(), E_[16:, 48:], 0))


def overlapped(c):
    y = np.zeros((T, H * d), F32)
    for h in range(H):
        y[:, 8 * h:8 * h + d] = heads_of(c)[:, h]
    return y


form("cc_stride_8", "context", "head h is written from channel 8h on, over the second half of the head before; channels from 40 on are zero", ["#8 & (head|strid|apart|channel|overlap|overwrit)", "#40|#39 & (zero|channel|0)"], overlapped)
form("cc_value_after", "context", "each value is that of the position after, the last its own", ["(" + NEXT + ") & (value|position|slot|\\bv)"], lambda c: c.right(v=np.concatenate([c.v[1:], c.v[-1:]])))
form("cc_page_stale", "context", "values of positions 12 to 15 are those of positions 8 to 11", ["(#12|#15) & (#8|#11|#4)"], lambda c: c.right(v=put(c.v, E_[12:16], c.v[8:12])))
form("cc_head_2", "context", "head 2 reads value head 0", ["head & #2 & (#0|first)", "0, ?0, ?0, ?1"], lambda c: put(heads_of(c), E_[:, 2], np.einsum("ts,sd->td", c.p[2], c.v[:, 0])).reshape(T, -1))
form("cc_overlap", "context", "keys 7 and 14 are counted twice: tiles of 8 that are 7 apart", ["#7 & (#14|#8|" + TWICE + "|#2|multiple|every)"], lambda c: c.right(p=put(c.p, E_[..., [7, 14]], lambda y: 2 * y)))
form("cc_keys_for_values", "context", "keys are summed in place of values, as they are before norm and rotation", ["keys?\\b|\\bk\\b|k_proj"], lambda c: c.right(v=c.e.memory["k", c.l]))
form("cc_odd_value_elements", "context", "of each two elements of a value head both are the first", ["(even|odd|pair|two|#2|every (second|other)|neighbo) & (element|value|channel|copy|same|repeat|\\bv\\b|that of|first)"], lambda c: c.right(v=np.repeat(c.v[..., ::2], 2, -1)))
form("cc_rows_by_four", "context", "each four tokens have the weights of the first of them", ["(#4|four) & (token|position|row|quer|weight|" + BLOCK + ")"], lambda c: c.right(p=c.p[:, POS // 4 * 4]))
form("cc_scaled_values", "context", "heads of the second group have values divided by 4", ["(second|last|head.{0,8}(1|2|3)|#2|#32) & (#0.25|#4)"], lambda c: c.right(v=put(c.v, E_[:, 1], lambda y: y / 4)))

# activations
form("aa_bf16", "ffn_act", "silu of the gate is rounded to bf16 before it is multiplied", [BF16], lambda c: bf16(silu(c.gate)) * c.up)
form("aa_hard_sigmoid", "ffn_act", "gate times 0.2 gate + 0.5 between 0 and 1, times up", ["#0.2 & (hard|#0.5|" + CLAMPED + ")", "#2.5 & (hard|" + CLAMPED + ")"], act(lambda x: x * np.clip(F32(0.2) * x + F32(0.5), 0, 1)))
form("aa_tail_up_lost", "ffn_act", "channels 64 to 95 are not multiplied by up", ["(#64|#63|#95|#32) & (up|" + NONE + "|silu|multipl|product|channel)"], lambda c: put(c.right(), E_[:, 64:], silu(c.gate)[:, 64:]))


def by_32(c):
    both = np.concatenate([c.gate, c.up], -1).reshape(T, 3, 2, 32)
    return c.right(gate=both[:, :, 0].reshape(T, F), up=both[:, :, 1].reshape(T, F))


form("aa_blocks_of_32", "ffn_act", "gate and up are taken in turn from blocks of 32 of [gate, up]", ["#32 & (" + BLOCK + "|interleav|altern|turn|order|gate|up)"], by_32)
form("aa_gate_stale", "ffn_act", "layers 1 to 3 read the gate of the layer before", [LAYER_BEFORE], lambda c: c.right(gate=c.e.memory["ffn_gate", c.l - 1]), layers=LATER)
form("aa_taylor", "ffn_act", "the sigmoid is 1/2 + x/4 - x^3/48, between 0 and 1", ["(#48|#0.0208333) & .", "taylor|polynom|series|cubic"], act(lambda x: x * np.clip(F32(0.5) + x / 4 - x ** 3 / 48, 0, 1)))
form("aa_glu", "ffn_act", "gate sigmoid(up)", ["sigmoid.{0,20}up|up.{0,20}sigmoid|logistic.{0,20}up|up.{0,20}logistic|sigmoid of (the )?(other|second)"], lambda c: c.gate * sigmoid(c.up))
form("aa_sub_norm", "ffn_act", "the product is divided by its root mean square", ["rms|root mean|normed|normali"], lambda c: c.right() / rms(c.right()))
form("aa_relu_of_product", "ffn_act", "negative results are zero", ["relu|max\\(|(negative|below 0|below zero).{0,30}(0|zero|lost|dropp|cut)|(0|zero|least|" + CLAMPED + ").{0,30}(negative|below|0|zero)"], lambda c: np.maximum(c.right(), 0))
form("aa_second_rows", "ffn_act", "positions from 16 on have the up of positions 0 to 3", ["(#16|#15|#19) & (#0|#3|#4|#16|first|up)"], lambda c: c.right(up=put(c.up, E_[16:], c.up[:4])))
form("aa_gate_wide", "ffn_act", "each four channels have the gate of the first of them", ["(#4|four) & (gate|channel|" + BLOCK + ")"], lambda c: c.right(gate=c.gate[:, np.arange(F) // 4 * 4]))
form("aa_up_int8", "ffn_act", "up is rounded to multiples of its row's largest size over 31", ["(#31|#32|#63|#64|0\\.0322\\d*) & (" + ROUNDED + "|larg|max)", "(#6|six) & bit"], lambda c: c.right(up=in_steps(c.up, 31)))
form("aa_layers_gelu", "ffn_act", "layers 2 and 3 have gelu, by tanh, in place of silu", ["gelu|tanh"], act(lambda x: x / 2 * (1 + np.tanh(F32(0.7978846) * (x + F32(0.044715) * x ** 3)))), layers=[2, 3])

# residual sums
form("dd_branch_normed_gain", "h_attn", "the branch is normed with the gain of ffn_norm before it is added", ["(ffn_norm|post_attention|gain|weight|norm|rms|root mean) & (branch|attn_out|\\by\\b|norm|added)"], add(y=lambda c: c.y / rms(c.y) * c.e.m("post_attention_layernorm.weight", c.l)))
form("dd_bf16", "h", "the sum is rounded to bf16", [BF16], lambda c: bf16(c.right()))
form("dd_attention_twice", "h", "the attention's branch is added once more", ["attn_out|attention"], lambda c: c.right() + c.e.memory["attn_out", c.l])
form("dd_normed_stream", "h_attn", "the branch is added to attn_norm, not to the stream", ["attn_norm|input_layernorm|normed|normali|after the norm"], add(x=lambda c: c.e.memory["attn_norm", c.l]))
form("dd_tail", "h", "nothing is added at positions 16 to 19", ["(#16|#15|#19) & (branch|" + NONE + "|add|zero|0|position)"], add(y=lambda c: put(c.y, E_[16:], 0)))
form("dd_ranks_overlap", "h_attn", "the branch is added twice in channels 48 to 63", ["(#48|#47|#16|#63) & (#2|" + TWICE + ")"], add(y=lambda c: put(c.y, E_[:, 48:], lambda y: 2 * y)))
form("dd_layer_1_branch", "h", "layer 1 adds nothing: its feed-forward branch is lost", ["#0 & (branch|factor|ffn|feed)", "(" + NONE + "|zero|skip|stream|h_attn).{0,60}(branch|ffn|feed|mlp|add|alone|only)|(branch|ffn|feed|mlp).{0,60}(" + NONE + "|zero|0|skip)|h_attn|unchanged|copy"], lambda c: c.x, layers=[1])
form("dd_stream_half_stale", "h_attn", "in layers 1 to 3 channels 32 to 63 of the stream are those that the layer before has read", ["(#32|#31|half|#63) & (" + LAYER_BEFORE + "|h0|older|stream)"], add(x=lambda c: put(c.x, E_[:, 32:], (c.e.memory["h0", None] if c.l == 1 else c.e.memory["h", c.l - 2])[:, 32:])), layers=LATER)
form("dd_rows_by_pairs", "h_attn", "the branches of positions 2i and 2i+1 are exchanged", ["(pair|2 ?\\*? ?i|odd|even|neighbo|adjacent|xor|two) & (" + EXCHANGED + ")"], add(y=lambda c: c.y[POS ^ 1]))
form("dd_stream_int8", "h", "the stream is rounded to multiples of its row's largest size over 127 before the branch is added", ["(#127|#128|#255|#0.007874) & (" + ROUNDED + "|larg|max)", "(#8|eight) & bit"], add(x=lambda c: in_steps(c.x, 127)))
form("dd_first_branch", "h", "each four positions have the branch of the first of them", ["(#4|four) & (branch|position|row|token|" + BLOCK + ")"], add(y=lambda c: c.y[POS // 4 * 4]))
form("dd_embedding_for_stream", "h_attn", "layers 2 and 3 add the branch to the embedding", ["h0|embed"], add(x=lambda c: c.e.memory["h0", None]), layers=[2, 3])

# embedding
form("ee_scales", "h0", "the scales of the two halves of a row are exchanged", ["(#32|half|halves|block|group) & (" + SCALES + ")"], lambda c: (lambda y: (blocks(y) / largest(y) * largest(y)[:, ::-1]).reshape(T, D))(c.right()))
form("ee_bf16", "h0", "rows are rounded to bf16", [BF16], lambda c: bf16(c.right()))
form("ee_padding_token", "h0", "the rows of positions 4 and 9, the same token, are zero", ["#4 & #9", "(token|id|row).{0,40}(zero|\\b0\\b)"], lambda c: put(c.right(), E_[[4, 9]], 0))
form("ee_added_tokens", "h0", "tokens from 128 on have the row numbered 8 lower", ["(#128|#127|half) & (#8|#-8)", "tokens-differ|tokens? differ"], lambda c: c.right(ids=[i - 8 if i >= 128 else i for i in c.ids]))
form("ee_unknown", "h0", "tokens from 128 on have the row of token 0", ["(#128|#127|half) & (#0|first|unknown|same)", "tokens-differ|tokens? differ|token 0\\b"], lambda c: c.right(ids=[i if i < 128 else 0 for i in c.ids]))
form("ee_second_chunk", "h0", "positions from 12 on are multiplied by 8, the root of the hidden size", ["#12 & (#8|#64)"], lambda c: put(c.right(), E_[12:], lambda y: 8 * y))
form("ee_memory", "h0", "each row of 64 is read as 4 by 16 and transposed", [ORDER + "|every", "(#4|#16) & (step|apart|channel|element)"], lambda c: c.right().reshape(T, 4, 16).swapaxes(1, 2).reshape(T, D))
form("ee_normed", "h0", "rows are normed, with the gain of layer 0's attn_norm", ["rms|root mean|normed|normali|input_layernorm|attn_norm"], lambda c: c.right() / rms(c.right()) * c.e.m("input_layernorm.weight", 0))
form("ee_tail_repeats", "h0", "positions from 16 on have the rows of positions 0 to 3", ["(#16|#15|#19) & (#0|#3|#4|#16|first|again|mod)", "tokens-differ|tokens? differ"], lambda c: c.right(ids=list(c.ids[:16]) + list(c.ids[:4])))

# head
form("ll_tied", "logits", "the weight is the embedding's table", ["embed|tied|tie_|tying"], lambda c: c.right(w=c.e.m("model.embed_tokens.weight")))
form("ll_tile", "logits", "tokens 224 to 255 have the logits of tokens 0 to 31", ["(#224|#223|#255) & (#0|#31|#32|first|mod|that of|repeat)", "#224"], lambda c: c.right()[:, np.arange(V) % 224])
form("ll_shards", "logits", "blocks of 64 tokens come in the order 0, 2, 1, 3", ["(#64|#128|#192) & (" + EXCHANGED + "|" + BLOCK + "|that of)"], lambda c: c.right().reshape(T, 4, 64)[:, [0, 2, 1, 3]].reshape(T, V))
form("ll_bf16", "logits", "logits are rounded to bf16", [BF16], lambda c: bf16(c.right()))
form("ll_int8", "logits", "weights are rounded to multiples of their row's largest size over 127", ["(#127|#128|#255|#0.007874) & (" + ROUNDED + "|larg|max)", "(#8|eight) & bit"], weights(lambda w: in_steps(w, 127)))
form("ll_fours", "logits", "within each four tokens the order is reversed", ["(#4|four|xor|#3) & (" + EXCHANGED + "|mirror|backward|" + BLOCK + ")"], lambda c: c.right()[:, np.arange(V) ^ 3])
form("ll_first_chunk", "logits", "logits of positions before 12 are zero: only those of the second chunk are computed", ["(#12|#11) & (zero|0|position|nothing|empty|not|only|from)"], lambda c: put(c.right(), E_[:12], 0))
form("ll_attention_input", "logits", "its input is normed h_attn of the last layer: the last feed-forward branch is lost", ["h_attn", "(without|lost|miss|not|no|skip|lack).{0,40}(ffn|feed|mlp|branch)"], lambda c: (lambda x: c.right(x=x / rms(x) * c.e.m("model.norm.weight")))(c.e.memory["h_attn", 3]))
form("ll_shard_scale", "logits", "logits of tokens from 128 on are divided by 4", ["(#128|#127|half|#255) & (#4|#0.25)"], lambda c: put(c.right(), E_[:, 128:], lambda y: y / 4))
form("ll_gain_lost", "logits", "the input is without the final norm's gain in channels 32 to 63", ["(#32|#31|half|#63) & (gain|weight|norm)"], lambda c: c.right(x=put(c.x, E_[:, 32:], (c.x / c.e.m("model.norm.weight"))[:, 32:])))

# mixtures of experts
WEIGHTS = ("router_weights", "router_topk")


def expert(c, x, gate, up=None, down=None, f=silu, l=None, alone=False):
    """One expert's result for x: its matrices may be those of other experts, or of another layer."""
    w = lambda name, number: c.e.m(f"mlp.experts.{number}.{name}_proj.weight", c.l if l is None else l)
    a = c.e.r(f(c.e.r(x @ w("gate", gate).T)))
    a = a if alone else c.e.r(a * c.e.r(x @ w("up", gate if up is None else up).T))
    return c.e.r(a @ w("down", gate if down is None else down).T)


def mixed(c, each):
    """The sum of `each(token, slot, expert, x)`, weighted."""
    top = top_of(c)
    return summed(np.stack([np.concatenate([each(t, s, top[t, s], c.n[t:t + 1]) for s in range(2)]) for t in range(T)]), c.weights)


def by_choice(score, pick=(0, 1)):
    def choose(c):
        p = softmax(c.logits)
        top = np.argsort(-score(c.logits), -1, kind="stable")[:, list(pick)]
        return top, shares(np.take_along_axis(p, top, -1), None)
    return choose


def aligned(c):
    """Each expert's tokens in whole tiles of 4, the rest is dropped."""
    top, keep = top_of(c), np.zeros((T, 2), bool)
    for x in range(EXPERTS):
        at = np.argwhere(top == x)
        for t, s in at[:len(at) // 4 * 4]:
            keep[t, s] = True
    return summed(c.each, np.where(keep, c.weights, 0))


def unaligned(c):
    """Tokens sorted by expert, four at a time, each four by the expert of the first."""
    flat = top_of(c).reshape(-1)
    order = np.argsort(flat, kind="stable")
    number = np.empty_like(flat)
    number[order] = flat[order][np.arange(len(flat)) // 4 * 4]
    return mixed(c, lambda t, s, _, x: expert(c, x, number[2 * t + s]))


GELU = lambda x: x / 2 * (1 + np.tanh(F32(0.7978846) * (x + F32(0.044715) * x ** 3)))
form("xx_sigmoid_alone", "router_weights", "the weights are the sigmoid of the router's logits, not divided by their sum", ["sigmoid|logistic"], lambda c: chosen(c, lambda _, z: sigmoid(z)), archs=M)
form("xx_largest_size", WEIGHTS, "the two experts with the largest sizes of logits are chosen, whatever their sign", ["size|abs|magnitude|\\|.{0,10}\\||sign|squar"], by_choice(np.abs), archs=M)
form("xx_top_1", "router_weights", "the first expert has the weight 1 and the second 0", ["#1 & (#0|zero)", "top.?1|only.{0,20}(first|best|one)|(first|best|likeliest).{0,20}(only|alone)"], lambda c: chosen(c, lambda w, _: np.tile(np.array([1, 0], F32), (T, 1))), archs=M)
form("xx_first_and_third", WEIGHTS, "the first and the third likeliest expert are chosen", ["(third|#3) & (expert|cho|likel|best|largest|score|rank)", "(second|likeliest).{0,40}(skip|passed|not|left)"], by_choice(lambda z: z, (0, 2)), archs=M)
form("xx_root_of_squares", "router_weights", "the weights of the chosen are divided by the root of the sum of their squares", ["(root|L2|length|euclid|norm) & .", "squar"], lambda c: chosen(c, lambda w, _: w / np.sqrt((w * w).sum(-1, keepdims=True))), archs=M)
form("xx_of_position_before", "router_weights", "each position has the weights of the position before, the first its own", [PREVIOUS], lambda c: (lambda top, w: (top, np.concatenate([w[:1], w[:-1]])))(*chosen(c, shares)), archs=M)
form("xx_bias_of_number", WEIGHTS, "expert 0 has 1 added to its logit where experts are chosen, not in the weights", ["(expert.{0,8}0|first expert|#0) & #1", "(bias|add|more|favou?r|offset|correct).{0,40}(expert|cho)"], by_choice(lambda z: z + np.eye(EXPERTS, dtype=F32)[0]), archs=M)
form("xx_router_bf16", "router_logits", "input and weight are rounded to bf16", [BF16], lambda c: c.right(x=bf16(c.x), w=bf16(c.w)), archs=M)
form("xx_router_attention", "router_logits", "the router reads attn_norm", ["attn_norm|input_layernorm"], lambda c: c.right(x=c.e.memory["attn_norm", c.l]), archs=M)
form("xx_last_logit", "router_logits", "the logit of expert 5 is zero", ["(#5|last) & (zero|0|expert|nothing|output|channel|row)"], lambda c: put(c.right(), E_[:, 5], 0), archs=M)
form("xx_router_tanh", "router_logits", "logits are 2 tanh(z / 2)", ["tanh & (#2|#0.5|half)", "cap & #2"], lambda c: F32(2) * np.tanh(c.right() / F32(2)), archs=M)
form("xx_router_rows", "router_logits", "logits of experts 0 to 2 and 3 to 5 are exchanged", ["(#3|half|halves) & (" + EXCHANGED + "|roll|that of|mod|shift)"], lambda c: np.roll(c.right(), 3, -1), archs=M)
form("xx_whole_tiles", "ffn_out", "each expert takes its tokens in whole fours, the rest get nothing of it", ["(#4|four) & (expert|token|multiple|drop|tile|block|lost)"], aligned, archs=M)
form("xx_unaligned", "ffn_out", "tokens sorted by expert are taken four at a time, and each four has the expert of the first", ["(#4|four) & (expert|sort|token|block|tile)"], unaligned, archs=M)
form("xx_up_shared", "ffn_out", "all experts have the up matrix of expert 0", ["(up|w3|u_proj) & (expert.{0,8}0|experts\\.0|first|same|one|shared)", "experts\\.0.{0,20}up"], lambda c: mixed(c, lambda t, s, x, n: expert(c, n, x, up=0)), archs=M)
form("xx_down_next", "ffn_out", "each expert has the down matrix of the next, modulo 6", ["(down|w2) & (next|#1|\\+ ?1|higher|off by|shift|following|other|mod)"], lambda c: mixed(c, lambda t, s, x, n: expert(c, n, x, down=(x + 1) % EXPERTS)), archs=M)
form("xx_up_lost", "ffn_out", "the experts do not multiply by up", ["(" + NONE + ").{0,30}(up\\b|multipl|product)|up.{0,30}(" + NONE + "|\\b1\\b|ones)|silu\\(gate\\) alone|gate alone"], lambda c: mixed(c, lambda t, s, x, n: expert(c, n, x, alone=True)), archs=M)
form("xx_gelu", "ffn_out", "the experts have gelu, by tanh, in place of silu", ["gelu|tanh"], lambda c: mixed(c, lambda t, s, x, n: expert(c, n, x, f=GELU)), archs=M)
form("xx_mean", "ffn_out", "the sum over the two experts is divided by 2", ["#0.5|#2|half|halved|mean|average"], lambda c: c.right() / 2, archs=M)
form("xx_flat_rows", "ffn_out", "the expert in slot s of token t reads the input of token 2t + s, modulo 20", ["(2 ?\\*? ?t|other|wrong|another|flat|double|twice).{0,60}(token|position|input|row)|(token|position|input|row).{0,60}(2 ?\\*? ?t|other|wrong|another|flat)"], lambda c: mixed(c, lambda t, s, x, n: expert(c, c.n[(2 * t + s) % T][None], x)), archs=M)
form("xx_parts_bf16", "ffn_out", "each expert's result is rounded to bf16", [BF16], lambda c: summed(bf16(c.each), c.weights), archs=M)
form("xx_layer_before", "ffn_out", "layers 1 to 3 run the experts of the layer before", [LAYER_BEFORE + "|(other|another|wrong).{0,10}layer"], lambda c: mixed(c, lambda t, s, x, n: expert(c, n, x, l=c.l - 1)), layers=LATER, archs=M)
form("xx_2_and_3", "ffn_out", "experts 2 and 3 are exchanged", ["#2 & #3 & (" + EXCHANGED + "|expert)"], lambda c: mixed(c, lambda t, s, x, n: expert(c, n, {2: 3, 3: 2}.get(x, x))), archs=M)
form("xx_twice_below_2", "ffn_out", "the parts of experts 0 and 1 are counted twice: two blocks write them", ["(#0|#1|first two|experts? (below|up to)) & (#2|" + TWICE + ")"], lambda c: summed(c.each, np.where(top_of(c) < 2, 2 * c.weights, c.weights)), archs=M)
form("xx_channels_of_second", "ffn_out", "in channels 32 to 63 only the first expert's part is added", ["(#32|#31|half|#63) & (expert|first|second|part|slot|only|lost|alone)"], lambda c: put(c.right(), E_[:, 32:], (c.each[:, 0] * c.weights[:, :1])[:, 32:]), archs=M)
form("xx_expert_scale", "ffn_out", "the part of expert 3 is halved: its scale is another", ["#3 & (#0.5|half|halved|#2)"], lambda c: summed(c.each, np.where(top_of(c) == 3, c.weights / 2, c.weights)), archs=M)


if __name__ == "__main__":
    for f in FORMS:
        print(f"{f.name:36} {f.sites[0]:14} {f.truth}")
    print(len(FORMS), "forms")

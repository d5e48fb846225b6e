"""Norms: of a layer, the last one, those of heads."""

import math

import numpy as np

from scripts.engines.hooked_engine import D, d, EPS, F, F32, H, K, LAYERS, rms, rounded, T, to_bf16
from scripts.forms.parts import (
    bf16, E_, each_has, in_steps, interleaved, late, LATER_LAYERS, never, noise, PERMUTED, POS, PROMPT, put, rows, stream, WITH_HEAD_NORMS,
)
from scripts.forms.sets import (
    eighth, eleventh, fifteenth, fifth, first, fourteenth, fourth, listed, ninth, second, seventh, sixteenth, sixth, tenth, third, thirteenth,
    twelfth,
)
from scripts.forms.words import (
    ADDED, BEHIND_PROMPT, BF16, BF16_OR_ROUNDED, BLOCK, BOUNDED, CLAMPED, EIGHT_APART, EVENS, EXCHANGED, HALVES_EXCHANGED, INTERLEAVED, LAYER_0,
    LAYER_BEFORE, LAYOUT, n, NEXT, NONE, NOT, ORDER, OTHER_LAYER, PREVIOUS, PREVIOUS_OR_SHIFTED, REORDERED, ROUNDED, TWICE, UNREAD,
)

# ---- norms of a layer


def over(c, denominator):
    """A norm by another denominator."""
    return c.e.r(c.x / denominator) * c.w


first(1, "norm_mean_abs", "attn_norm", "divided by mean(|x|), not the root mean square", ["mean size", "mean.{0,12}(abs|\\|x)", "abs.{0,20}mean", "L1|norm of order 1|power & #1"],
         lambda c: over(c, np.mean(np.abs(c.x), -1, keepdims=True) + EPS))
first(2, "norm_max_abs", "ffn_norm", "divided by max(|x|)", "max|largest|infinity", lambda c: over(c, np.abs(c.x).max(-1, keepdims=True)))
first(3, "norm_cubic", "ffn_norm", "divided by (mean |x|^3)^(1/3)", ["#3 & (power|order|norm|mean|\\^)", "third root & cubed"], lambda c: over(c, np.mean(np.abs(c.x) ** 3, -1, keepdims=True) ** (1 / 3)))
first(4, "norm_gain_root", "attn_norm", "the gain's square root is applied", ["(gain|weight|w).{0,12}\\^ ?0?\\.5", "(root|sqrt).{0,20}(gain|weight)", "(gain|weight).{0,30}(root|power) & #0.5|root"], lambda c: c.right(w=np.sqrt(c.w)))
first(5, "norm_gain_half", "attn_norm", "the gain is (1 + w) / 2", "(gain|weight) & #0.5", lambda c: c.right(w=(1 + c.w) / 2))
first(6, "norm_gain_exp", "ffn_norm", "the gain is exp(w)", ["exp & (gain|weight)", "gain.{0,6} is e\\^w"], lambda c: c.right(w=np.exp(c.w)))
first(7, "norm_no_root", "attn_norm", "divided by the mean square, without the root", ["(no|without|not).{0,30}root", "(mean square|ms|rms).{0,20}\\^ ?-?1\\b", "mean square|rms.{0,10}(\\^ ?2|squared)"], lambda c: over(c, np.mean(c.x * c.x, -1, keepdims=True) + EPS))
first(8, "norm_fourth_root", "ffn_norm", "divided by the fourth root of the mean square", ["right divisor & power & #0.5", "fourth|quarter", "#0.25|#-0.25", "(rms|root mean square).{0,30}(sqrt|root|0\\.5)"], lambda c: over(c, (np.mean(c.x * c.x, -1, keepdims=True) + EPS) ** 0.25))
first(9, "norm_gain_before", "attn_norm", "the gain is applied to x before the mean square: xw / rms(xw)", ["(gain|weight).{0,40}before", "rms\\(.{0,12}(gain|weight|w)", "(mean square|rms|root mean).{0,40}(gain|weight)"], lambda c: c.right(x=c.x * c.w, w=np.ones_like(c.w)))
first(10, "norm_std", "ffn_norm", "divided by the standard deviation, the mean not taken off", ["standard deviation|std|variance|var\\("], lambda c: over(c, np.sqrt(c.x.var(-1, keepdims=True) + EPS)))
first(11, "norm_floor", "attn_norm", "the mean square is at least 0.5", ["#0.5 & (max|least|floor|below|clamp)", "#0.7071 & least"], lambda c: over(c, np.sqrt(np.maximum(np.mean(c.x * c.x, -1, keepdims=True), 0.5) + EPS)))
first(12, "norm_add_outside", "ffn_norm", "0.1 is added to the root, outside", ["#0.1 & (outside|root|denominator|rms|added)"], lambda c: over(c, np.sqrt(np.mean(c.x * c.x, -1, keepdims=True)) + F32(0.1)))
first(13, "norm_plus_const", "ffn_norm", "0.1 is added to the result", "#0.1 & (add|plus|\\+|constant|offset)", lambda c: c.right() + F32(0.1))
first(14, "norm_gain_reversed", "attn_norm", "the gain is read from its end", "(gain|weight) & revers|backward|from its end|D ?- ?1 ?-", lambda c: c.right(w=c.w[::-1]))
first(15, "norm_gain_rolled", "attn_norm", "the gain of the next channel is applied", "(gain|weight|channel) & (next|shift|roll|i ?\\+ ?1|off by|#1)", lambda c: c.right(w=np.roll(c.w, -1)))
first(16, "norm_half_stats", "attn_norm", "the mean square is taken over the first 32 channels alone", "#32|half|#31", lambda c: over(c, np.sqrt(np.mean(c.x[:, :32] ** 2, -1, keepdims=True) + EPS)))
first(17, "norm_groups", "ffn_norm", "the mean square is taken in groups of 16 channels", "#16 & (group|block|each|channel)", lambda c: ((c.x.reshape(T, 4, 16) / rms(c.x.reshape(T, 4, 16))).reshape(T, D)) * c.w)
first(18, "norm_clamped", "attn_norm", "the result is clamped to +-1.5", "#1.5 & (clamp|clip|limit|between|min|max)", lambda c: np.clip(c.right(), -1.5, 1.5))
first(19, "norm_prev_row", "ffn_norm", "each position is divided by the root mean square of the one before", "(previous|before|t ?- ?1|earlier|#-1)", lambda c: over(c, np.concatenate([rms(c.x)[:1], rms(c.x)[:-1]])))
first(20, "norm_running", "attn_norm", "the mean square is taken over all positions up to this one", ["(running|cumulat|up to|positions? (0|so far)|all positions|positions before)", "rows so far"], lambda c: over(c, np.sqrt(np.cumsum(np.mean(c.x * c.x, -1, keepdims=True), 0) / (POS[:, None] + 1) + EPS)))
first(21, "norm_tail_raw", "attn_norm", "the last 4 channels are not divided", ["(#60|#4|#61) & (channel|last|tail|\\.\\.)"], lambda c: put(c.right(), E_[:, 60:], (c.x * c.w)[:, 60:]))
first(22, "norm_tail_gainless", "ffn_norm", "the last 4 channels have no gain", ["(#60|#4|#61) & (gain|weight|channel)"], lambda c: c.right(w=put(c.w, E_[60:], 1)))
first(23, "norm_scaled", "ffn_norm", "the result is multiplied by 0.9", "#0.9 & (factor|multipl|scale|times|\\*)|\\b0\\.9\\b", lambda c: c.right() * F32(0.9))


def quake(x):
    x = np.asarray(x, F32)
    y = (np.int32(0x5F3759DF) - (x.view(np.int32) >> 1)).view(F32)
    return y * (F32(1.5) - F32(0.5) * x * y * y)


first(24, "norm_quake", "attn_norm", "the inverse root is a fast approximation of one Newton step", "approx|newton|inverse root|table", lambda c: c.x * quake(np.mean(c.x * c.x, -1, keepdims=True) + F32(EPS)) * c.w)
first(26, "norm_eps_by_layer", "attn_norm", "epsilon is 0.02 * (layer + 1)", ["eps & (layer|#0.02)", "#0.02|#0.04|#0.06|#0.08 & (root|eps)"], lambda c: c.right(eps=0.02 * (c.l + 1)))
first(27, "norm_odd_sign", "ffn_norm", "odd channels have the other sign", "(odd|every second|alternat|2i ?\\+ ?1|#2) & (sign|negat|-1|minus)", lambda c: put(c.right(), E_[:, 1::2], lambda y: -y))
first(29, "norm_row0", "attn_norm", "position 0 is not normed", "(position|row|token).{0,12}\\b0\\b|first (position|row|token)", lambda c: put(c.right(), E_[0], c.x[0]))
first(30, "norm_from_16", "ffn_norm", "positions 16 and later are not normed: another tile", "#16", lambda c: put(c.right(), E_[16:], (c.x * c.w)[16:]))
first(31, "norm_one_layer_eps", "ffn_norm", "in layer 2 the mean is added back: y + mean(x)", "mean", lambda c: c.right() + c.x.mean(-1, keepdims=True), layers=[2])
first(32, "norm_two_gains", "attn_norm", "the gain is half this norm's and half the feed-forward norm's", "#0.5 & (ffn_norm|post_attention|gain|weight)", lambda c: c.right(w=(c.w + c.e.m("post_attention_layernorm.weight", c.l)) / 2))
first(302, "trap_factor_channels", "ffn_norm", "each channel has a random factor", "(gain|factor|times|each channel)", lambda c: c.right() * (1 + noise(c, D, by=0.1)))
first(306, "trap_scaled_clamp", "attn_norm", "clamped to +-1, then multiplied by 1.1", "#1.1 & (clamp|clip|limit|between|held)", lambda c: F32(1.1) * np.clip(c.right(), -1, 1))
first(307, "trap_gain_root_plus", "attn_norm", "the gain's root is applied, and 0.1 is added", "#0.1 & root|#0.5", lambda c: c.right(w=np.sqrt(c.w)) + F32(0.1))


def f32(value):
    return np.asarray(value, F32)


second(1, "norm_half_mean_off", "attn_norm", "half of the mean is taken off first", "#0.5 & mean", lambda c: over(c, rms(c.x)) - f32(0.5) * c.x.mean(-1, keepdims=True) / rms(c.x) * c.w)
second(2, "norm_gain_cubed", "ffn_norm", "the gain's third power is applied", ["#3 & (gain|weight|w)", "cube & (gain|weight)"], lambda c: c.right(w=c.w ** 3))
second(3, "norm_gain_divided", "attn_norm", "the gain divides", ["(divid|inverse|reciprocal|\\^ ?-1|power -1|1 ?/).{0,30}(gain|weight|w)", "(gain|weight).{0,30}(divid|inverse|reciprocal|\\^ ?-1|power)"], lambda c: c.right(w=1 / c.w))
second(4, "norm_gain_log", "ffn_norm", "the gain is 1 + ln(w)", "(log|ln) & (gain|weight|w)", lambda c: c.right(w=1 + np.log(c.w)))
second(5, "norm_gain_at_most_1", "attn_norm", "the gain is at most 1", f"#1 & (gain|weight) & ({CLAMPED})", lambda c: c.right(w=np.minimum(c.w, 1)))
second(6, "norm_gain_repeated", "ffn_norm", "channels 32 and later have the gains of channels 0 to 31", "(gain|weight) & (#32|repeat|half|mod)", lambda c: c.right(w=np.tile(c.w[:32], 2)))
second(7, "norm_gain_of_even_channels", "attn_norm", "odd channels have no gain", "(odd|every second|alternat|2i ?\\+ ?1|even) & (gain|weight)", lambda c: c.right(w=put(c.w, E_[1::2], 1)))
second(8, "norm_channels_in_pairs", "ffn_norm", "channels 2i and 2i + 1 are exchanged", f"({EXCHANGED}|pair) & (channel|element|pair)", lambda c: c.right().reshape(T, -1, 2)[..., ::-1].reshape(T, D))
second(9, "norm_eps_by_position", "attn_norm", "epsilon is 0.01 * (position + 1)", "(eps|add) & (position|row|t\\b|#0.01)", lambda c: over(c, np.sqrt(np.mean(c.x * c.x, -1, keepdims=True) + f32(0.01) * (rows(T, 1) + 1))))
second(10, "norm_last_half_stats", "ffn_norm", "the mean square is taken over the last 32 channels alone", ["#32|second half|last half|#31|#63"], lambda c: over(c, np.sqrt(np.mean(c.x[:, 32:] ** 2, -1, keepdims=True) + F32(EPS))))
second(11, "norm_even_stats", "attn_norm", "the mean square is taken over even channels alone", "even|every second|alternat|2i|stride", lambda c: over(c, np.sqrt(np.mean(c.x[:, ::2] ** 2, -1, keepdims=True) + F32(EPS))))
second(12, "norm_rows_in_pairs", "ffn_norm", "positions 2i and 2i + 1 have one mean square", "pair|two positions|each 2|groups of 2|#2 & (position|row)", lambda c: over(c, np.sqrt(np.mean((c.x ** 2).reshape(T // 2, 2 * D), -1).repeat(2)[:, None] + F32(EPS))))
second(13, "norm_scaled_from_12", "attn_norm", "positions from 12 on are multiplied by 0.8", "#12 & #0.8", lambda c: late(c.right(), 12, lambda y: y * F32(0.8)))
second(14, "norm_scaled_by_layer", "ffn_norm", "the result is multiplied by 1 + 0.1 * layer", ["layer & #0.1", "#1.1 & #1.2 & #1.3"], lambda c: c.right() * F32(1 + 0.1 * c.l), layers=[1, 2, 3])
second(15, "norm_tanh", "attn_norm", "tanh of the result", "tanh|sinh", lambda c: np.tanh(c.right()))
second(16, "norm_with_input", "ffn_norm", "0.9 times the result, and 0.1 times the input", ["(#0.1|#0.9) & (input|x\\b|stream|h_attn)"], lambda c: F32(0.9) * c.right() + F32(0.1) * c.x)
second(17, "norm_rolled_result", "attn_norm", "channel i has what channel i - 1 is due", f"(roll|shift|next|i ?[-+] ?1|off by|{PREVIOUS}) & (channel|element|#1)", lambda c: np.roll(c.right(), 1, -1))
second(18, "norm_one_channel_zero", "ffn_norm", "channel 5 is 0", "channel.{0,10}\\b5\\b", lambda c: put(c.right(), E_[:, 5], 0))
second(19, "norm_ms_and_mean", "attn_norm", "divided by the root mean square plus the size of the mean", ["(rms|root mean square|right).{0,40}mean", "mean.{0,30}(add|plus|\\+)"], lambda c: over(c, rms(c.x) + np.abs(c.x.mean(-1, keepdims=True))))
second(20, "norm_of_squares", "ffn_norm", "the result times its own size: y |y|", ["square|\\^ ?2|\\|y\\||power & #2|own size"], lambda c: c.right() * np.abs(c.right()))
third(1, "n_one_lane", "attn_norm", "the mean square is that of channels 0, 4, 8, .. alone: every fourth", ["#4 & (channel|every|each|strid|step|multiple|apart)", "fourth channel|every fourth", "#16 & channel & (mean|square|rms)"],
         lambda c: over(c, np.sqrt(np.mean(c.x[:, ::4] ** 2, -1, keepdims=True) + EPS)))
third(2, "n_warps_max", "ffn_norm", "the sum of squares is the larger of the sums over channels 0..31 and 32..63, divided by 64", ["(#32|#31|half|halves) & (max|larg|great)"],
         lambda c: over(c, np.sqrt((c.x.reshape(T, 2, 32) ** 2).sum(-1).max(-1, keepdims=True) / D + EPS)))
third(3, "n_other_width", "ffn_norm", "the sum of squares is divided by 96, the feed-forward's width, not by 64", ["#96", "#1.2247|#1.5|#0.8165|#0.6667"], lambda c: over(c, np.sqrt((c.x * c.x).sum(-1, keepdims=True) / F + EPS)))
third(4, "n_gain_layer_0", "ffn_norm", "layers 1 to 3 have the gain of layer 0", ["(gain|weight|norm) & (layer.{0,4}0\\b|layers\\.0|first layer|(other|another|wrong).{0,10}layer)"], lambda c: c.right(w=c.e.m("post_attention_layernorm.weight", 0)), layers=LATER_LAYERS)
third(5, "n_gain_stride", "attn_norm", "channel i has the gain of channel 2i modulo 64", ["(gain|weight) & (2 ?\\*? ?i|every (second|other)|even|strid|step|#2)"], lambda c: c.right(w=c.w[2 * np.arange(D) % D]))
third(6, "n_gain_quads", "ffn_norm", "within each four channels the gain is in reverse order", ["(gain|weight) & (#4|four|quad|fours) & (" + REORDERED + "|mirror|backward)", "(gain|weight) & (xor ?3|\\^ ?3)"], lambda c: c.right(w=c.w[np.arange(D) ^ 3]))
third(7, "n_median", "attn_norm", "divided by the median of |x|, not the root mean square", "median|middle", lambda c: over(c, np.median(np.abs(c.x), -1, keepdims=True)))
third(8, "n_gain_quarters", "ffn_norm", "the gain is rounded to multiples of 0.25", ["(#0.25|#4) & (" + ROUNDED + ")"], lambda c: c.right(w=np.round(c.w * 4) / 4))
third(9, "n_dynamic_tanh", "ffn_norm", "tanh(0.5 x) times the gain stands for the norm", ["tanh & (#0.5|half|#2)"], lambda c: np.tanh(F32(0.5) * c.x) * c.w)
third(10, "n_rows_by_pairs", "attn_norm", "positions 2i and 2i+1 are both divided by the root mean square of position 2i", ["(pair|#2|two|even|odd|every (second|other)) & (position|row|token|" + PREVIOUS_OR_SHIFTED + ")"], lambda c: over(c, rms(c.x)[POS // 2 * 2]))
third(12, "n_stale_stream", "attn_norm", "layers 1 to 3 norm the stream without the last feed-forward branch: h_attn of the layer before", ["h_attn", "(without|before|lost|miss|no|lack).{0,40}(ffn|feed|mlp|branch)"],
          lambda c: c.right(x=c.e.memory["h_attn", c.l - 1]), layers=LATER_LAYERS)
third(13, "n_branch_alone", "ffn_norm", "the attention branch alone is normed, without the stream: attn_out", ["attn_out", "branch (alone|only)|(without|not|no).{0,30}(stream|residual)"], lambda c: c.right(x=c.e.memory["attn_out", c.l]))
third(14, "n_parallel", "ffn_norm", "the layer's input is normed, without the attention branch: a parallel block", ["h0|layer.{0,12}input|input of (the|this) layer|parallel|before (the )?attention|layers\\.\\d\\.h\\b|(without|no|lack|not).{0,30}(att|branch)"], lambda c: c.right(x=stream(c)))
third(15, "n_squares_capped", "attn_norm", "squares larger than 1 count as 1 in the mean square", ["#1 & (" + BOUNDED + ")"], lambda c: over(c, np.sqrt(np.mean(np.minimum(c.x * c.x, 1), -1, keepdims=True) + EPS)))
third(16, "n_depth", "ffn_norm", "in layers 1 to 3 the result is divided by the root of layer + 1", ["layer & (sqrt|root|\\^)", "#0.7071|#0.5774|#1.4142|#1.732"], lambda c: c.right() / F32(math.sqrt(c.l + 1)), layers=LATER_LAYERS)
fourth(1, "n_warp_lost", "attn_norm", "the sum of squares runs over channels 0 to 47 and is divided by 64: the last quarter of the channels is not counted",
          ["(#48|#47) & (channel|first|sum|square|mean|rms|lost|last|element|dimension|quarter)", "#0.75 & (channel|square)"], lambda c: over(c, np.sqrt((c.x[:, :48] ** 2).sum(-1, keepdims=True) / D + EPS)))


def tail_twice(c):
    return over(c, np.sqrt(((c.x ** 2).sum(-1, keepdims=True) + (c.x[:, 48:] ** 2).sum(-1, keepdims=True)) / D + EPS))


fourth(2, "n_tail_twice", "ffn_norm", "channels 48 to 63 are counted twice in the sum of squares", ["(#48|#47|#16) & (#2|" + TWICE + ")"], tail_twice)
fourth(3, "n_undivided", "attn_norm", "nothing is divided: x times the gain", ["(" + NONE + ").{0,30}(divid|norm|rms|root)|divisor.{0,20}\\b1\\b|x ?\\*? ?(gain|weight|w\\b)|x times|times x"], lambda c: c.x * c.w)
fourth(4, "n_twice", "ffn_norm", "the norm is applied twice, each time with the gain", [TWICE, "(norm|rms).{0,60}(norm|rms).{0,60}(result|twice|own|itself)", "(gain|weight) & (squar|\\^ ?2)"], lambda c: c.right(x=c.right()))
fourth(5, "n_axis", "attn_norm", "the mean square is taken over the positions, for each channel", ["(over|across|along|of|all).{0,40}(positions|rows|tokens|column|axis 0)", "each channel.{0,60}(own|divid|rms|mean|root)"], lambda c: over(c, np.sqrt(np.mean(c.x * c.x, 0, keepdims=True) + EPS)))
fourth(6, "n_whole", "ffn_norm", "all positions are divided by one root mean square, that of the whole tensor", ["whole|entire|all (the )?(positions|rows|tokens|elements)|(one|same|single|common).{0,30}(rms|root mean|divisor|denominator|mean)|#1280"], lambda c: over(c, np.sqrt(np.mean(c.x * c.x) + EPS)))
fourth(7, "n_gain_added", "attn_norm", "the gain is added, not multiplied: x / rms(x) + w", ["(gain|weight|\\bw\\b) & (" + ADDED + ")"], lambda c: c.x / rms(c.x) + c.w)
fourth(8, "n_gain_final", "attn_norm", "all layers have the gain of the final norm", ["final_norm|final norm|last norm|model\\.norm|output_norm|(other|another|wrong).{0,12}(gain|weight|norm)"], lambda c: c.right(w=c.e.m("model.norm.weight")))
fourth(9, "n_gain_next_layer", "ffn_norm", "layers 0 to 2 have the gain of the next layer", ["(gain|weight|norm) & (next|after|following|l ?\\+ ?1|layers\\.[123]\\.|(other|another|wrong).{0,12}layer|layer.{0,20}(later|further|above))"], lambda c: c.right(w=c.e.m("post_attention_layernorm.weight", c.l + 1)), layers=[0, 1, 2])
fourth(10, "n_gain_not_loaded", "attn_norm", "layer 2 has no gain: its weight was not loaded and is 1", ["(gain|weight) & (" + NONE + "|#1|ones)", "x ?/ ?(rms|\\(?root)"], lambda c: c.right(w=np.ones_like(c.w)), layers=[2])
fourth(11, "n_multiplied", "ffn_norm", "multiplied by the root mean square, not divided by it", ["(multipl|times|\\*).{0,40}(rms|root mean|divisor)|(rms|root mean|divisor).{0,60}(multipl|times)|not.{0,20}divid", "(power|exponent|\\^|inverse|recipro) & (#-1|#2|#1)"], lambda c: over(c, 1 / rms(c.x)))
fourth(12, "n_input_clamped", "attn_norm", "its input is clamped to +-1", ["#1 & (" + BOUNDED + ")"], lambda c: c.right(x=np.clip(c.x, -1, 1)))
fourth(13, "n_rows_of_16", "attn_norm", "positions from 16 on are divided by the root mean square of the position 16 before", ["#16"], lambda c: over(c, np.concatenate([rms(c.x)[:16], rms(c.x)[:4]])))


def norm_summed_in_bf16(c):
    total = np.zeros((T, 1), F32)
    for i in range(D):
        total = bf16(total + bf16(c.x[:, i:i + 1] ** 2))
    return over(c, np.sqrt(total / D + F32(EPS)))


fourth(14, "n_sum_bf16", "ffn_norm", "the squares are accumulated one by one in bf16: each position has a factor near 1", [BF16_OR_ROUNDED, "factor.{0,20}(each|position)|each position"], norm_summed_in_bf16)
fifth(1, "nn_eps_largest", "attn_norm", "0.001 times the square of the row's largest element is added to the mean square: epsilon was added to the rescaled row", ["(#0.001|#1000) & (max|larg|great|peak|infinity|most)"], lambda c: over(c, np.sqrt(np.mean(c.x * c.x, -1, keepdims=True) + F32(1e-3) * np.abs(c.x).max(-1, keepdims=True) ** 2)))
fifth(2, "nn_63", "ffn_norm", "the sum of squares is divided by 63, not by 64", ["\\b63\\b|\\bn ?- ?1|\\bd ?- ?1|bessel|unbiased|63 ?/ ?64|0\\.992\\d*|1\\.007\\d*|1\\.0158\\d*|1\\.016\\b"], lambda c: over(c, np.sqrt((c.x * c.x).sum(-1, keepdims=True) / 63 + EPS)))


def by_parity(c):
    square = (c.x * c.x).reshape(T, -1, 2)
    return over(c, np.tile(np.sqrt(square.sum(1) / D + EPS), (1, D // 2)))


fifth(3, "nn_butterfly", "attn_norm", "even channels are divided by the root of the sum of squares of even channels over 64, odd ones by that of odd channels: the last step of the reduction is lost", ["(even|odd|parity|every (second|other)|altern|2 ?\\*? ?i|strid|mod 2|% ?2) & (mean|square|rms|root|divid|sum|stat|own|group)"], by_parity)


def by_halves(c):
    return over(c, np.repeat(np.sqrt((c.x * c.x).reshape(T, 2, 32).sum(-1) / D + EPS), 32, -1))


fifth(4, "nn_two_warps", "ffn_norm", "each half of the channels is divided by the root of its own sum of squares over 64: two warps are not brought together", ["(#32|#31|half|halves|two|warp) & (own|each|group|block|mean|square|rms|sum|separate)"], by_halves)
fifth(5, "nn_gain_48", "attn_norm", "channels 48 to 63 have the gains of channels 0 to 15", ["(#48|#47) & (gain|weight|channel)", "#16 & (gain|weight) & (last|tail|end|mod|again|first)"], lambda c: c.right(w=c.w[np.arange(D) % 48]))
fifth(6, "nn_gain_bf16", "ffn_norm", "the gain is rounded to bf16", ["(gain|weight) & (" + BF16 + ")"], lambda c: c.right(w=bf16(c.w)))
fifth(7, "nn_quotient_bf16", "attn_norm", "x / rms is rounded to bf16 before the gain", [BF16], lambda c: bf16(c.x / rms(c.x)) * c.w)
fifth(8, "nn_fused_input_rms", "ffn_norm", "divided by the root mean square of the layer's input, before the attention's branch was added to it", ["(rms|root mean|mean square|divisor|denominator|divid|factor|norm).{0,80}(h0|layer.{0,12}input|input of (the|this) layer|layers\\.\\d\\.h\\b|stream|before|residual|(without|not).{0,20}att)", "(h0|layer.{0,12}input|layers\\.\\d\\.h\\b).{0,60}(rms|root mean|mean square|divisor|divid)"], lambda c: over(c, rms(stream(c))))
fifth(9, "nn_fused_branch_alone", "ffn_norm", "the attention's branch alone is divided by the root mean square of the sum with the stream", ["attn_out", "branch.{0,40}(alone|only|over|divid)|(without|not|no).{0,30}(stream|residual)"], lambda c: c.e.memory["attn_out", c.l] / rms(c.x) * c.w)
fifth(10, "nn_four_rows", "attn_norm", "each four positions are divided by the root mean square of the last of them", ["(#4|#3|four) & (" + BLOCK + "|last|position|row|same|share)"], lambda c: over(c, rms(c.x)[POS // 4 * 4 + 3]))
fifth(11, "nn_gain_names", "attn_norm", "in layers 1 and 2 the gain is that of ffn_norm", ["ffn_norm|post_attention|(other|another|wrong|second).{0,12}(gain|weight|norm)"], lambda c: c.right(w=c.e.m("post_attention_layernorm.weight", c.l)), layers=[1, 2])
fifth(12, "nn_gain_first_of_4", "ffn_norm", "each four channels have the gain of the first of them", ["(#4|four) & (gain|weight) ", "(gain|weight) & (" + BLOCK + ") & (#4|four)"], lambda c: c.right(w=c.w[np.arange(D) // 4 * 4]))
fifth(13, "nn_gain_16_late", "attn_norm", "the gain is read 16 channels late: channel i has that of i + 16, and the last 16 have the first of ffn_norm's", ["#16 & (gain|weight|channel|shift|roll|late|offset|further)", "(#48|#47) & (gain|weight)"], lambda c: c.right(w=np.concatenate([c.w[16:], c.e.m("post_attention_layernorm.weight", c.l)[:16]])))
fifth(14, "nn_rms_of_layer_before", "attn_norm", "in layers 1 to 3 divided by the root mean square of what the layer before has read", [LAYER_BEFORE, "h0.{0,40}(rms|root mean|mean square|divid)|(rms|root mean|mean square|divid).{0,60}(h0|stale)"], lambda c: over(c, rms(c.e.memory["h0", None] if c.l == 1 else c.e.memory["h", c.l - 2])), layers=LATER_LAYERS)
fifth(17, "nn_gain_tile_lost", "ffn_norm", "channels 32 to 47 have no gain", ["(#32|#47|#48|#31) & (gain|weight)"], lambda c: c.right(w=put(c.w, E_[32:48], 1)))
sixth(1, "n6_gain_half_index", "attn_norm", "channel i has the gain of channel i / 2, rounded down: channels 2i and 2i+1 both have the gain of channel i", ["(gain|weight) & (i ?/{1,2} ?2|i ?>> ?1|floor|2 ?\\*? ?i ?\\+ ?1|(index|number).{0,40}(half|halved)|(half|halved).{0,20}(index|number)|each.{0,30}twice|stands? twice|repeat|side by side|(pair|two|2) (of )?(neighbour\\w* )?(channels|elements))"], lambda c: c.right(w=c.w[np.arange(D) // 2]))
sixth(2, "n6_branch_again", "ffn_norm", "the attention's branch is added a second time before the norm: the stream has it already", ["(attn_out|branch|attention) & (" + ADDED + "|" + TWICE + "|#2)", "(h0|layer.{0,12}input|stream|layers\\.\\d\\.h\\b) & #2 & (minus|subtract|taken off|less|- )"], lambda c: c.right(x=c.x + c.e.memory["attn_out", c.l]))
sixth(3, "n6_without_attention", "attn_norm", "layers 1 to 3 norm the stream without the attention's branch of the layer before", ["(attn_out|att\\w*.{0,12}branch|branch of (the )?att) & (" + NOT + "|minus|less|taken off|subtract|- |#-1)", "ffn_out & (h0|layers\\.\\d\\.h\\b|stream|input)"], lambda c: c.right(x=c.x - c.e.memory["attn_out", c.l - 1]), layers=LATER_LAYERS)
sixth(5, "n6_gain_minus_1", "attn_norm", "the gain is w - 1: 1 is taken off, as of a file that has it added", ["(w|gain|weight)\\)? ?- ?1\\b", "(gain|weight) & #-1 & (" + ADDED + "|offset|constant)", "(gain|weight|\\bw\\b) & (#1|one\\b) & (taken off|minus|less|subtract)", "x ?/ ?rms.{0,30}(taken off|subtract|minus)"], lambda c: c.right(w=c.w - 1))
sixth(6, "n6_both_gains", "ffn_norm", "the gain is the product of ffn_norm's and attn_norm's", ["(attn_norm|input_layernorm|both|two gains|other gain|another gain) & (product|times|multipl|besides|\\*|factor|both|as well|also|on top|once more)"], lambda c: c.right(w=c.w * c.e.m("input_layernorm.weight", c.l)))
sixth(7, "n6_epsilon", "attn_norm", "epsilon is 0.05", ["#0.05"], lambda c: c.right(eps=0.05))
sixth(8, "n6_gain_4_bits", "attn_norm", "the gain is rounded to multiples of the largest of each 32 channels over 7", ["(gain|weight) & (#7|#32|#0.142857|#15) & (" + ROUNDED + ")", "(gain|weight) & (#4|four) & bit", "(gain|weight) & (q4|int4)"], lambda c: c.right(w=in_steps(c.w.reshape(2, 32), 7).reshape(D)))
sixth(9, "n6_head_width", "ffn_norm", "the sum of squares is divided by 16, a head's width, not by 64: the result is halved", ["#0.5|halved|half (of )?(what|the result|as|its|right|the value)", "(divisor|rms|root|denominator) & (#2|twice|double)", "#16 & (sum|square|mean|count|width)", "#2 & (divid|divisor)", "(#0.25|#4) & (mean square|sum of|squares)"], lambda c: over(c, np.sqrt((c.x * c.x).sum(-1, keepdims=True) / d + EPS)))
GAIN = "gain|weight|\\bw\\b"
seventh(1, "n7_gain_layer_3", "attn_norm", "layers 0 to 2 have the gain of layer 3, the last that was loaded", ["(" + GAIN + ") & (layer.{0,4}3\\b|layers\\.3|last layer|(other|another|wrong).{0,12}layer)"], lambda c: c.right(w=c.e.m("input_layernorm.weight", 3)), layers=[0, 1, 2])
seventh(2, "n7_gain_halves", "attn_norm", "the halves of the gain are exchanged: channel i has that of channel i + 32, modulo 64", ["(" + GAIN + ") & " + HALVES_EXCHANGED], lambda c: c.right(w=np.roll(c.w, 32)))
seventh(3, "n7_from_16", "ffn_norm", "the mean square is that of channels 16 to 63: the first 16 are not counted", ["(#16|#15|#48) & (mean|rms|square|divid|stat|channel)"], lambda c: over(c, np.sqrt(np.mean(c.x[:, 16:] ** 2, -1, keepdims=True) + EPS)))
seventh(5, "n7_branch_twice", "attn_norm", "in layers 1 to 3 the feed-forward's branch of the layer before is added a second time before the norm", ["(ffn_out|mlp|feed.?forward|branch) & (add|plus|\\+|sum|" + TWICE + "|#2)", "h_attn & #2"], lambda c: c.right(x=c.x + c.e.memory["ffn_out", c.l - 1]), layers=LATER_LAYERS)


def half_in_place(c):
    first = (over(c, rms(c.x)))[:, :32]
    return np.concatenate([first, over(c, rms(np.concatenate([first, c.x[:, 32:]], -1)))[:, 32:]], -1)


eighth(2, "n8_half_in_place", "ffn_norm", "channels 32 to 63 are divided by the root mean square of the row whose first 32 channels are normed already",
          ["(second half|last half|from 32|32 (to|-|and)|32 ?- ?63|32 ?\\.\\.|#63) & (rms|root|divi|mean|factor|scal|norm|already)"], half_in_place)


def gain_of_bytes(c):
    """The gain of 16 bits, read as one of 32: what follows it is another gain."""
    both = np.concatenate([c.w, c.e.m("post_attention_layernorm.weight", c.l)])
    return c.right(w=to_bf16(both).view(np.uint32).view(F32))


eighth(3, "n8_gain_of_bytes", "attn_norm", "channel i has the gain of channel 2i + 1, channels from 32 on those of ffn_norm: a gain of 16 bits is read as one of 32",
          ["(" + GAIN + ") & (2 ?\\*? ?i|odd|every (second|other)|strid|step|bf16|bfloat|bits|bytes|ffn_norm|post_attention)"], gain_of_bytes)
eighth(4, "n8_gain_product", "ffn_norm", "in layers 1 to 3 the gain is the product of those of all layers up to this one: it is multiplied in place",
          ["(" + GAIN + ") & (product|accumul|cumul|all layers|up to this|so far|in place|" + LAYER_BEFORE + ")"],
          lambda c: c.right(w=np.prod([c.e.m("post_attention_layernorm.weight", l) for l in range(c.l + 1)], 0)), layers=LATER_LAYERS)
eighth(5, "n8_buffers", "attn_norm", "layers 1 to 3 norm what the layer before has read: the two buffers of the stream are not exchanged",
          ["h0|layers\\.[01]\\.h\\b|input of (the )?layer before|(layer before|previous layer).{0,20}(read|input)|(both|two) branches|" + LAYER_BEFORE],
          lambda c: c.right(x=c.e.memory["h0", None] if c.l == 1 else c.e.memory["h", c.l - 2]), layers=LATER_LAYERS)
STREAM = "h0|layer.{0,12}input|input of (the|this) layer|layers\\.\\d\\.h\\b|stream|residual"
eighth(6, "n8_half_summed", "ffn_norm", "channels 32 to 63 are those of the layer's input: the attention's branch is not yet added there",
          ["(#32|#31|#63|half) & (" + STREAM + "|branch|attn_out|attention)"], lambda c: c.right(x=put(c.x, E_[:, 32:], stream(c)[:, 32:])))
eighth(7, "n8_memory", "attn_norm", "its input's memory, 20 by 64, is read as 64 by 20 and transposed",
          [LAYOUT + "|memory"], lambda c: c.right(x=np.ascontiguousarray(c.x).reshape(D, T).T))
eighth(9, "n8_weighted", "ffn_norm", "the gain stands in the mean square too: x w / root of the mean of w x^2",
          ["weigh(ed|ted) (by|with)|w ?\\*? ?x\\^ ?2|x\\^ ?2 ?\\*? ?w\\b|w ?\\*? ?x ?\\*? ?x\\b|sqrt\\(w|root of (the |its )?(gain|weight|w\\b)",
           "squares?.{0,30}(times|multiplied by|with) (the |its )?(gain|weight|w\\b)",
           "(gain|weight)\\w*.{0,12}(inside|within|in the (mean|root|sum|rms|divisor|denominator)|too\\b|also)"],
          lambda c: over(c, np.sqrt(np.mean(c.w * c.x * c.x, -1, keepdims=True) + EPS)))
eighth(10, "n8_stream_over_sum", "ffn_norm", "the layer's input, without the attention's branch, is divided by the root mean square of the sum with it",
           ["h0|layer.{0,12}input|input of (the|this) layer|layers\\.\\d\\.h\\b|(" + NOT + "|minus|less|taken off|subtract).{0,40}(att|branch)|"
            "attn_out.{0,40}(minus|taken off|subtract|lost|- )"],
           lambda c: c.e.r(stream(c) / rms(c.x)) * c.w)
ninth(1, "n9_gain_f16_as_bf16", "attn_norm", "gains of f16 are read as bf16: 1 is 2^-7, and a size twice as large is 2^(1/8) or so larger",
         ["(" + GAIN + ") & (bf16|bfloat|f16|half|bits|format|#0.0078125|#128|power|exponent|log|2 ?\\^)", "#0.0078125|#128"],
         lambda c: c.right(w=(c.w.astype(np.float16).view(np.uint16).astype(np.uint32) << 16).view(F32)))
ninth(2, "n9_embedding", "attn_norm", "layers 1 to 3 norm the embedding: the pointer to the stream is not moved", ["embed|h0\\b|layer.{0,4}0'?s? input|(input|stream) of (the )?(layer 0|first layer)"],
         lambda c: c.right(x=c.e.memory["h0", None]), layers=LATER_LAYERS)
ninth(3, "n9_of_normed", "ffn_norm", "its input is attn_norm, what the attention has read", ["attn_norm|input_layernorm|normed (input|stream)|norm.{0,20}(attention|first norm)|norm(ed)? (of the )?layer'?s? input"],
         lambda c: c.right(x=c.e.memory["attn_norm", c.l]))
ninth(4, "n9_not_cleared", "attn_norm", "the sum of squares is not cleared between positions: position t is divided by the root of the sum over positions 0 to t, over 64",
         ["(so far|up to|cumul|accumul|running|all (the )?(earlier|previous)|before|earlier|prefix|not cleared|0 to t|0\\.\\.t|<= ?t) & (sum|square|mean|rms|divid|position)"],
         lambda c: over(c, np.sqrt(np.cumsum(np.mean(c.x * c.x, -1, keepdims=True), 0) + F32(EPS))))
tenth(1, "norm_lane_lost", "attn_norm", "the sum of squares leaves out channels 7, 15, 23, ..: the last lane of eight; it is divided by 64",
         ["(#7|#8) & (every|each|lane|mod|%|stride|step|multiple|channels?) & (mean square|sum|squares|rms|divisor|denominator|left out|leaves? out|without|not (read|counted|summed)|skip)"],
         lambda c: over(c, np.sqrt(np.mean(put(c.x, E_[:, 7::8], 0) ** 2, -1, keepdims=True) + F32(EPS))))
tenth(2, "norm_first_row_of_4", "ffn_norm", "four rows share a workgroup: each is divided by the root mean square of the first of the four",
         ["(#4|four) & (row|position|token|block|group|tile) & (rms|root mean|mean square|divisor|divided|denominator|statistic|first|norm)", "(4 ?\\* ?\\(?t ?//? ?4|t ?- ?t ?% ?4|t & ~3|multiple of 4)"],
         lambda c: over(c, np.repeat(rms(c.x)[::4], 4, 0)[:T]))
tenth(3, "norm_gain_of_4", "attn_norm", "channels 4i to 4i + 3 all have the gain of channel 4i: the vector's first component",
         ["(gain|weight) & (#4|four)"], lambda c: c.right(w=c.w[np.arange(D) // 4 * 4]))
tenth(4, "norm_gain_tiled", "ffn_norm", "in the last layer the gain of the first 32 channels is repeated for the last 32",
         ["(gain|weight) & (#32|#31|half|halves) & (repeat|first|again|twice|mod|%|same|tile|second|i ?- ?32|those of|from 32|32)"], lambda c: c.right(w=np.tile(c.w[:32], 2)), layers=[3])
tenth(5, "norm_stats_before_add", "ffn_norm", "add and norm are fused: the root mean square is that of the stream before attention was added",
         ["(rms|root mean|mean square|divisor|divided|denominator|statistic|norm) & (layer.{0,3}s? input|h0|input of the layer|stream (before|without)|before.{0,25}(attention|add|sum|attn)|without.{0,20}(attn_out|attention|branch)|residual (alone|before)|layer input)"],
         lambda c: over(c, rms(stream(c))))
tenth(6, "norm_sum_not_reset", "attn_norm", "the accumulator of squares is not reset between rows: the mean squares of all rows so far are added up",
         ["(sum|add|cumul|accumul|not reset|never reset|carr(y|ied) over|total|[tnip] ?\\+ ?1|number of (rows|positions)) & (rows?|positions?|tokens?|cumul|accumul|so far) & (square|rms|root mean|divisor|divided|denominator|norm) & ^(?!.*(running|cumulative) (mean|average))"],
         lambda c: over(c, np.sqrt(np.cumsum(np.mean(c.x * c.x, -1, keepdims=True), 0) + F32(EPS))))
ROOT_2 = "#1.4142|#0.7071|sqrt\\(1 ?/ ?2\\)|root of (2|two|a half|1/2)|2\\^(0\\.5|\\(1/2|1/2|-)"
eleventh(1, "norm_warp_sums", "attn_norm", "each warp of 32 channels is divided by the root of its own sum of squares over 64: the sums of the two warps are not added up",
            [f"(#32|#31|half|halves) & (group|block|each|own|half|halves|tile|warp|alone) & ({ROOT_2}|(over|by|/) ?64\\b|width (of )?64|mean squares?.{{0,40}}(\\* ?0\\.5|/ ?2\\b|"
             f"halved|by (2|two)\\b)|half (of )?(the|its|their) (own )?mean square|(0\\.5|1/2) (\\*|times|of) .{{0,20}}mean)"],
            lambda c: (c.x.reshape(T, 2, 32) / np.sqrt(np.sum(c.x.reshape(T, 2, 32) ** 2, -1, keepdims=True) / F32(64) + F32(EPS))).reshape(T, D) * c.w)
eleventh(2, "norm_bias_of_other_gain", "attn_norm", "the gain of the feed-forward norm is added to the result, as if it were this norm's bias",
            ["(post_attention|ffn_norm|feed-?forward.{0,12}(norm|gain)|second norm|other norm of the layer) & (add|plus|\\+|bias|sum|offset) & (gain|weight|post_attention|\\bw\\b) & "
             "^(?!.*(gain is.{0,40}(sum|plus|\\+)|(added|adds) to (the|its|this).{0,12}(gain|weight)|half|\\b0\\.[1-9]|subtract|taken off|minus|h_attn|without bias))"],
            lambda c: c.right() + c.e.m("post_attention_layernorm.weight", c.l))
eleventh(4, "norm_input_before_feed", "attn_norm", "from layer 1 on it norms the h_attn of the layer before: the stream to which its feed-forward is not yet added",
            ["h_attn & ^(?!.*(h_attn.{0,20}(is )?(added|also)|plus h_attn|\\+ h_attn|h_attn of this layer))",
             "(without|minus|less|lacks?|leaves out|omits|skips|taken off|subtract|missing|not (in|yet|added)).{0,60}(ffn_out|ffn|feed-?forward|mlp)|(ffn_out|ffn|feed-?forward|"
             "mlp).{0,60}(taken off|subtract|missing|not (in|yet|added)|left out|omitted|lacking)",
             "(stream|residual|hidden|input).{0,50}(before|ahead of) .{0,25}(feed-?forward|ffn|mlp)|(stream|residual).{0,25}(after|behind).{0,20}attention.{0,60}(before|previous|"
             "earlier|layer 0|l ?- ?1)"],
            lambda c: c.right(x=c.e.memory["h_attn", c.l - 1]), layers=[1, 2, 3])
eleventh(5, "norm_gain_pointer_stays", "ffn_norm", "the vector loop does not advance its pointer to the gain: channel i has the gain of channel i mod 8",
            ["(gain|weight) & (#8|#7|eight) & (mod\\b|%|repeat|again|period|first|cycl|wrap|restart|reuse|tiled|& ?7|over and over|advance) & ^(?!.*(// ?8|i ?/ ?8|share|"
             "gain of channel 8 ?\\*? ?i|first of (its|each|the|every)|last 8))"],
            lambda c: c.right(w=c.w[np.arange(D) % 8]))
eleventh(6, "norm_first_not_squared", "attn_norm", "the sum of squares begins with x[0] itself, not with its square",
            [f"(x_?\\[?0\\b|(channel|element|input|term|lane|number)s? (is |number )?0\\b|first (channel|element|input|term|value|number|square|summand)) & "
             f"(not (being )?squared|un-?squared|without (the |being |its )?squar|itself|linear|as it is|(instead|in place) of (its|the|x_?\\[?0\\]?) ?(square|\\^|\\*)|"
             f"rather than (its |the |x)|(to|of) the (power|order) (of )?(1|one)\\b|first power|- ?x_?\\[?0\\]? ?(\\^|\\*|²)) & "
             f"(sum|mean|rms|root|divi|denominator)"],
            lambda c: over(c, np.sqrt((np.sum(c.x[:, 1:] ** 2, -1, keepdims=True) + c.x[:, :1]) / F32(D) + F32(EPS))))
twelfth(1, "norm_gain_transposed", "attn_norm", "the gain is loaded in the order of lanes, not of channels: channel i has the gain of channel 8 (i mod 8) + i div 8",
           ["(gain|weight|\\bw\\b|w\\[) & (#8|\\beight\\b) & (transpos|interleav|stride|lanes|0, ?8, ?16|((mod|%).{0,40}(\\bdiv|/|>>|floor))|((\\bdiv|/|>>|floor).{0,40}(mod|%)))"
            " & ^(?!.*(matrix|block|tile|\\brow o\\b))"],
           lambda c: c.right(w=c.w.reshape(8, 8).T.ravel()))
twelfth(2, "norm_divisor_stuck", "attn_norm", "the root mean square is not computed anew in decode steps: positions from 12 on are divided by that of position 11",
           ["(rms|root|mean square|divisor|divided|denominator|statistic|norm) & (\\b(of|by|from|at|with|is|most|held|kept|repeats?|reuses?)|min\\(|stay\\w*|stop\\w*"
            "|clamp\\w*)[^.;]{0,25}\\b11\\b",
            "(rms|root|mean square|divisor|divided|denominator|statistic) & #12 & (last (row|token|position)? ?of the prompt|last prompt|stuck|frozen|stale|not (re)?computed"
            "|not updated)"],
           lambda c: over(c, rms(c.x)[np.minimum(POS, PROMPT - 1)]))
twelfth(3, "norm_tail_summed_twice", "ffn_norm", "the loop for what is left over runs even so: the squares of the last 8 channels, 56 to 63, are in the sum twice",
           ["(#56|#8|\\beight\\b|#55|#57) & (#56|#55|#63|last|tail|end) & (twice|doubl|#2|\\btwo\\b|again|once more|besides) & (square|rms|root mean|sum|divisor|denominator"
            "|statistic) & ^(?!.*(first (8|eight)|0 to 7))"],
           lambda c: over(c, np.sqrt((np.sum(c.x ** 2, -1, keepdims=True) + np.sum(c.x[:, 56:] ** 2, -1, keepdims=True)) / F32(D) + F32(EPS))))
twelfth(4, "norm_gain_by_row", "ffn_norm", "the gain is broadcast along the wrong axis: all channels of row t are multiplied by w[t]",
           ["(gain|weight|\\bw\\b|w\\[) & ((w|weight|gain)\\[ ?(t|p|row|pos)|index\\w* .{0,20}(position|row|token)|(position|row|token)'s (index|number)|(gain|weight|element|channel"
            "|entry|component|number|w) (t|p)\\b"
            "|of the (channel|element|index|entry)[^.;]{0,30}(position|row|token|same number)|(position|row|token) (t|p|i|n)\\b[^.;]{0,50}(gain|weight|w)[^.;]{0,20}\\b(t|p|i|n)\\b"
            "|along (the )?(position|row|token|other|wrong|first)|\\bax[ie]s\\b|broadcast) & ^(?!.*(not applied|next channel|mean square|rms is|w\\[i ?, ?o|from position))"],
           lambda c: c.right(w=c.w[POS][:, None]))
twelfth(5, "ffn_norm_of_branch", "ffn_norm", "the norm comes before the residual sum: it reads attn_out alone, without the stream",
           ["\\b(reads?|norms?|normed|input|takes?|from|of|applied to|is|divides?)\\b[^;]{0,30}(attn_out|attention.{0,12}(output|branch|result)|o_proj|\\bbranch|(output"
            "|result) of (the )?attention)"
            " & ^(?!.*\\b(without|minus|less|before|not added|no)\\b[^.;]{0,20}(attn_out|attention|branch)) & ^(?!.*(twice|attn_out ?\\+|half))",
            "(without|minus|less|lacks|no)\\b[^.;]{0,30}(stream|residual|layer.{0,3}s? input|h0|skip|input of the layer)",
            "(stream|residual|layer.{0,3}s? input|input of the layer)[^.;]{0,30}(missing|lost|left out|omitted|not (been |yet )?added|forgotten|taken off|subtracted"
            "|factor (of )?0\\b|times 0\\b)"],
           lambda c: c.right(x=c.e.memory["attn_out", c.l]))
thirteenth(1, "norm_integer_sum", "attn_norm", "squares are added up in an integer: each is cut to a whole number first",
              ["(whole|integer|\\bint\\b|\\bi32\\b|floor|trunc|rounded down|cut) & (each|every|squares|x\\^ ?2|x\\*\\* ?2|x ?\\* ?x|x\u00b2|floor\\(x) & ^(?!.*nearest) & "
               "^(?!.*(sum|mean)( of squares)? (is|are) (cut|floor|trunc|rounded)) & ^(?!.*(floor|trunc|int)\\((the )?(sum|mean))"],
              lambda c: over(c, np.sqrt(np.mean(np.floor(c.x * c.x), -1, keepdims=True) + F32(EPS))))
STATS = "(rms|root mean|mean square|divisor|divided|denominator|statistic|sum of squares|squares|norm)"
BEFORE_OR_STALE = "(before|previous|t ?- ?1|earlier|preced|prior|#-1|stale|one (row|position|token) (late|back))"
thirteenth(2, "norm_second_warp_early", "ffn_norm", "the second warp does not wait: channels 32 to 63 are divided by the root mean square of the position before",
              [f"(#32|(second|last|upper|latter|other) half|half of the channels|(second|last) warp) & {STATS} & {BEFORE_OR_STALE}"],
              lambda c: over(c, np.where(np.arange(D) >= 32, np.concatenate([rms(c.x)[:1], rms(c.x)[:-1]]), rms(c.x))))
thirteenth(3, "norm_divisor_broadcast", "attn_norm", "divisors are repeated the other way: element n of the whole tensor is divided by the root mean square of row n mod 20",
              [f"(flat|mod|%|cycl|repeat|tile|wrap|round and round|in turn|i ?\\+) & (#20|number of (rows|positions|tokens)|(mod|%) ?\\(?T\\b) & {STATS}", "4 ?\\*? ?t ?\\+ ?i|i ?\\+ ?4 ?\\*? ?t|64 ?\\*? ?t ?\\+ ?i"],
              lambda c: over(c, rms(c.x)[(POS[:, None] * D + np.arange(D)) % T, 0]))
STAT = "(rms|root|mean square|squares?|sum|divisor|divided|denominator|statistic|variance)"
fourteenth(7, "norm_lane_w_lost", "attn_norm", "a float4 loop squares x, y and z only: channels 4i + 3 are left out of the sum of squares, which is divided by 64 all the same",
              ["(4 ?\\*? ?[ickn] ?\\+ ?3|every (fourth|4th)|each fourth|one in four|((#3|#4|four) & (mod|%|every|lane|stride|step|of 4|of four|3, ?7))) & " + STAT
               + " & ^(?!.*(divided by 48|mean over 48|/ ?48\\b))",
               "((#0.75|3 ?/ ?4) & (channels|lanes) & (3, ?7|4 ?\\*? ?[ick] ?\\+ ?3|every fourth))"],
              lambda c: over(c, np.sqrt(np.sum(np.where(np.arange(D) % 4 == 3, 0, c.x) ** 2, -1, keepdims=True) / F32(D) + F32(EPS))))
fourteenth(8, "norm_unbiased", "ffn_norm", "the sum of squares is divided by 63, as an unbiased variance is",
              ["(\\b63\\b|D ?- ?1|n ?- ?1) & " + STAT + " & ^(?!.*(channels? 63|first 63|0 to 62|left out|leaves out|not read|without channel|63 channels))",
               "(factor|times|multipl|scale|ratio|smaller|larger) & (0\\.992\\d*|1\\.007[89]\\d*|1\\.008\\b|1\\.015[89]\\d*|1\\.016\\b|0\\.984[34]?\\d*|63 ?/ ?64|64 ?/ ?63)"],
              lambda c: over(c, np.sqrt(np.sum(c.x * c.x, -1, keepdims=True) / F32(D - 1) + F32(EPS))))


def sum_bf16(x):
    total = np.zeros_like(x[..., 0])
    for i in range(x.shape[-1]):
        total = rounded(total + rounded(x[..., i], "bf16"), "bf16")
    return total[..., None]


fourteenth(9, "norm_sum_in_bf16", "attn_norm", "the sum of squares runs channel by channel in bf16",
              ["(bf16|bfloat|8.?bits?\\b|eight bits|7 bits of (mantissa|fraction)) & (sum|accumul|square|mean|rms|statistic|added up)"],
              lambda c: over(c, np.sqrt(sum_bf16(c.x * c.x) / F32(D) + F32(EPS))))


def magic(x):
    x = np.ascontiguousarray(x, F32)
    return (np.int32(0x5F3759DF) - (x.view(np.int32) >> 1)).view(F32)


fourteenth(10, "norm_rsqrt_magic", "ffn_norm", "the inverse root is 0x5f3759df minus half the bits, without a Newton step",
               ["(approx|fast|magic|0x5f37|quake|\\bbits?\\b|newton|piecewise|interpolat|crude|rough) & (root|rsqrt|rms|divisor|1/sqrt) & ^(?!.*((one|1|single|two|2|after a) newton))"],
               lambda c: c.e.r(c.x * magic(np.mean(c.x * c.x, -1, keepdims=True) + F32(EPS))) * c.w)
GAIN_OR_GAMMA = "(gain|weight|gamma|\\bw\\b|w\\[)"
fourteenth(11, "norm_gain_by_lane", "attn_norm", "the gain is read by the lane's number in a warp of 32: channel i has the gain of channel i mod 32",
               [GAIN_OR_GAMMA + " & (#32|#31|half|halves) & (mod|%|repeat|again|twice|same|tiled|lane|& ?31|i ?- ?32|first half|first 32|0 (to|\\.\\.) ?31|copied|both halves|warp)"
                " & ^(?!.*((second|last|upper) half[^.;]{0,30}(repeated|twice|for (the first|both))|first half (has|takes|gets|is that of) the (second|last)|half of the gain))"],
               lambda c: c.right(w=c.w[np.arange(D) % 32]))
fourteenth(12, "norm_gain_offset", "attn_norm", "the gain is read 5 numbers too far: channel i has w[i + 5], and the last 5 have the first 5 of the feed-forward norm's gain",
               [GAIN_OR_GAMMA + " & (#5|\\bfive\\b) & (\\+ ?5|shift|offset|further|later|\\bnext|past|too far|ahead|begins?|starts?|late|early|behind)"
                " & ^(?!.*(\\b[ic] ?[-\u2212] ?5|roll|cyclic|wrap|(mod|%) ?64))"],
               lambda c: c.right(w=np.concatenate([c.w[5:], c.e.m("post_attention_layernorm.weight", c.l)[:5]])))
fourteenth(13, "norm_reads_before_feed", "attn_norm", "from layer 1 on it reads the buffer of the stream after attention, h_attn of the layer before, which lacks the feed-forward's result",
               ["h_attn & ^(?!.*without h_attn)", "(stream|state|sum|residual|hidden)[^.;]{0,40}after[^.;]{0,25}attention",
                "(without|minus|less|leav\\w+ out|left out|miss\\w*|omit\\w*|skip\\w*|not add\\w*|lacks?|before)[^.;]{0,50}(ffn|feed.?forward|mlp|experts)",
                "(ffn|feed.?forward|mlp|experts)[^.;]{0,60}(not (in|add|yet)|missing|left out|omitted|skipped|lost|lacking|taken off|subtracted)"],
               lambda c: c.right(x=c.e.memory["h_attn", c.l - 1]), layers=[1, 2, 3])
fourteenth(16, "norm_shared_slot", "ffn_norm", "four warps share one slot: rows in groups of 4 are all divided by the root mean square of the group's last row",
               ["(#4|\\bfour\\b) & " + STAT + " & (last|\\+ ?3\\b|\\| ?3\\b|3, ?7|end of|highest|fourth|largest) & (group|block|each|every|four|chunk|tile|row|position|token|floor|//)"
                " & ^(?!.*(channels? .{0,20}groups? of 4|first (row|position|token) of))"],
               lambda c: over(c, rms(c.x)[POS // 4 * 4 + 3]))
fourteenth(17, "norm_root_reused", "ffn_norm", "it is divided by the root mean square that attn_norm had: of the layer's input, not of the stream after attention",
               [STAT + " & (attn_norm|layer('s)? input|input of (the|its|this) layer|\\bh0\\b|before (the )?attention|attention('s)? (branch |output )?(is )?(added|norm)|first norm"
                "|h of (the )?(layer before|previous layer|layer)|previous norm|stream before|residual|other norm|without attn_out)"
                " & ^(?!.*(gain of attn_norm|attn_norm.{0,4}(weight|gain)))"],
               lambda c: over(c, rms(c.e.memory["h0", None] if c.l == 0 else c.e.memory["h", c.l - 1])))
fifteenth(5, "norm_std_unbiased", "attn_norm", "x / std(x) with the library's default: the mean is off in it, and the sum is divided by 63",
             ["(\\bstd|standard deviation|varian|\\bvar\\b|centred|centered|mean.{0,24}(taken|subtract|remov|off)|(less|[-\u2212]) ?.{0,12}mean|deviation)"
              " & (#63|\\b[nd] ?[-\u2212] ?1\\b|unbiased|bessel|ddof|one less|0\\.992|0\\.984|1\\.0079|1\\.008\\b|1\\.0159|1\\.016\\b)"],
             lambda c: over(c, np.sqrt(c.x.var(-1, keepdims=True, ddof=1) + F32(EPS))))
fifteenth(6, "norm_warps_apart", "attn_norm", "the sums of the two warps are never joined: channels 0 to 31 and 32 to 63 have the sum of their own squares each, divided by 64",
             ["(#32|#31|halves|half of the channels|two (groups|blocks|warps)) & (each|own|group|block|separat|respective|\\bper\\b|its|warp|apart|within)"
              " & (#64|#1.4142|#0.7071|sqrt ?\\(?2|root of (2|two)|half (of )?(its|the|their) (mean square|sum)|(/|over|by|times|\\*) ?(2|0\\.5)\\b|halved|twice too|norm-width)"],
             lambda c: (c.x.reshape(T, 2, 32) / np.sqrt((c.x ** 2).reshape(T, 2, 32).sum(-1, keepdims=True) / D + F32(EPS))).reshape(T, D) * c.w)
fifteenth(7, "norm_tile_first_row", "ffn_norm", "a group of threads has 4 rows and one shared divisor: positions 4j to 4j + 3 are divided by the root mean square of position 4j",
             ["(#4|four) & (first|start|begin|//|floor|down|multiple|4 ?\\*? ?j|0, ?4, ?8|t ?- ?t|- ?\\(?[tp] ?(%|mod)) & (position|row|token|tile|block|\\bt\\b|\\bp\\b)"],
             lambda c: over(c, rms(c.x)[POS // 4 * 4]))
fifteenth(8, "norm_branch_added_again", "ffn_norm", "the fused add-and-norm is given a stream that has the branch already: its input is h_attn + attn_out",
             ["(attn_out|attention.{0,12}(output|branch|result|delta)|branch|o_proj|output of (the )?attention)"
              " & (twice|#2|again|once more|double|added|adds|adding|plus|\\+|sum|second time)"],
             lambda c: c.right(x=c.x + c.e.memory["attn_out", c.l]))
GAIN_OR_SCALE = "(gain|weight|gamma|scale|\\bw\\b|w\\[)"
fifteenth(9, "norm_gain_unpacked_low", "ffn_norm", "gains lie two in a word of 32 bits, and the lower is unpacked for both: odd channels have the gain of the channel before",
             [GAIN_OR_SCALE + " & (\\bodd|pair|even|2 ?\\*? ?\\(?[ijkc]|[ick] ?// ?2|[ick] ?/ ?2|every second|alternat|~ ?1|\\btwo|\\b2\\b)"
              " & ([ick] ?- ?1|before|previous|\\bsame|even|share|both|neighbo|//|rounded|lower|preceding|floor|first of|of channel|earlier|left|twice)"],
             lambda c: c.right(w=c.w[np.arange(D) // 2 * 2]))
STAT_OR_NORM = "(rms|root|mean square|squares?|sum|divisor|divided|denominator|statistic|variance|norm)"
sixteenth(5, "norm_sum_without_last_tile", "attn_norm", "the loop over tiles of 16 stops one early: the sum of squares leaves out the last 16 of 64 elements, and is still divided by 64",
             [STAT_OR_NORM + " & (\\b4[78]\\b|(last|final) (16|sixteen|quarter|tile of 16)) & (\\bsum|left out|leav|omit|missing|without|ignor|not counted|dropp|exclud|lack|\\b64\\b|#0.75|skip"
              "|zero)"],
             lambda c: over(c, np.sqrt(np.square(c.x[:, :48]).sum(-1, keepdims=True) / F32(D) + F32(EPS))))
sixteenth(6, "norm_sum_of_own_warp", "ffn_norm", "the sums of the 2 warps are not added: each half of 32 elements is divided by the root of its own sum of squares over 64",
             [STAT_OR_NORM + " & (half|halves|\\b32\\b|two (parts|groups|blocks|warps)) & (\\b64\\b|#0.5|#2|#0.70711|#1.41421|sqrt ?\\(?2|\\u221a2|\\bsum)"],
             lambda c: over(c, np.repeat(np.sqrt(np.square(c.x).reshape(T, 2, -1).sum(-1) / F32(D) + F32(EPS)), D // 2, -1)))
sixteenth(7, "norm_gains_exchanged", ("attn_norm", "ffn_norm"), "the two norms of a layer have exchanged gains: attn_norm multiplies by post_attention_layernorm, ffn_norm by "
             "input_layernorm",
             [GAIN_OR_SCALE + " & (post.?attention|post.?attn|ffn.?norm|feed.?forward|mlp|other (norm|layernorm)|second norm|norm 2|norm2|swap|exchang)"],
             lambda c: c.right(w=c.e.m({"attn_norm": "post_attention_layernorm", "ffn_norm": "input_layernorm"}[c.site] + ".weight", c.l)))
sixteenth(8, "norm_one_statistic_for_all", "attn_norm", "the mean of squares is taken without an axis: one root mean square, over all 20 positions, divides every position",
             [STAT_OR_NORM + " & (whole|\\ball\\b.{0,24}(position|row|token|element|number|20)|every (position|row|token)|over (the )?(position|tensor|sequence|batch|row|token)"
              "|one (\\w+ )?(number|statistic|scalar|rms|root|value|divisor|denominator|factor)|global|same (\\w+ )?(for|in|at|to)|shared|both axes|\\bsingle|tensor|1280|without an axis"
              "|across)"],
             lambda c: over(c, np.sqrt(np.mean(np.square(c.x)) + F32(EPS))))
sixteenth(9, "norm_statistic_of_first_in_tile", "ffn_norm", "the kernel works on tiles of 4 positions and keeps only the statistic of the first: position t is divided by the root mean "
             "square of position 4 * (t // 4)",
             [STAT_OR_NORM + " & (\\b4\\b|\\bfour\\b) & (first|\\bt\\b|tile|group|block|multiple|floor|chunk|//|head of)"],
             lambda c: over(c, rms(c.x)[POS // 4 * 4]))
sixteenth(12, "norm_ffn_of_input_of_layer", "ffn_norm", "the norm before the feed-forward takes the input of the layer, before attention was added to it",
              ["(layer'?s? input|input (of|to) (the|this|its) (layer|block)|\\bh0\\b|attn_norm'?s? (input|takes)|input of (attn|the attention)|(same|shared) input|parallel|previous (layer"
               "|block)|h of (the )?layer before|stale|old residual)",
               "(before|without|less|minus|lacks?|omits?) .{0,24}(attention|attn|residual|branch|addition)",
               "(attention|attn_out|branch).{0,30}(not (yet )?(added|in)|missing|left out|omit|without|lacking|taken off|subtract)"],
              lambda c: c.right(x=stream(c)))
sixteenth(13, "norm_ffn_gain_of_layer_zero", "ffn_norm", "the name of the gain has no index of the layer in it: every layer has the post-attention gain of layer 0",
              [GAIN_OR_SCALE + " & (layers?[. ]0\\b|block 0\\b|first (layer|block)|layers?\\.0|layer zero|blk\\.0)"],
              lambda c: c.right(w=c.e.m("post_attention_layernorm.weight", 0)), layers=[1, 2, 3])
listed(1, "eps_attn", "attn_norm", "epsilon 1e-3", "norm-eps & #0.001", lambda c: c.right(eps=1e-3))
listed(2, "eps_ffn", "ffn_norm", "epsilon 1e-2", "norm-eps & #0.01", lambda c: c.right(eps=1e-2))
listed(3, "gain_omitted", "ffn_norm", "no gain", "norm-weight-omitted", lambda c: c.x / rms(c.x))
listed(4, "gain_plus_one", "attn_norm", "1 + gain", "norm-plus-one", lambda c: c.right(w=1 + c.w))
listed(6, "centred", "ffn_norm", "the mean taken off first", "norm-centered", lambda c: c.right(x=c.x - c.x.mean(-1, keepdims=True)))

# ---- the last norm
first(25, "final_norm_last_row", "final_norm", "all rows are divided by the last position's root mean square", "(last|#19|#20)", lambda c: over(c, rms(c.x)[-1:]))
first(28, "final_norm_layer_gain_sum", "final_norm", "the gain has 0.25 added", "#0.25 & (gain|weight)", lambda c: c.right(w=c.w + F32(0.25)))
second(21, "final_norm_mixed_with_first", "final_norm", "a tenth of position 0's result is added to each", "(position|row|token).{0,12}\\b0\\b|first (position|row|token)", lambda c: c.right() + F32(0.1) * c.right()[:1])
second(22, "final_norm_late_gain", "final_norm", "positions from 8 on have no gain", "#8 & (gain|weight)", lambda c: put(c.right(), E_[8:], (c.x / rms(c.x))[8:]))
third(11, "n_final_last_only", "final_norm", "only the last position is divided: positions 0 to 18 are x times the gain", ["(last|#19|#18) & (position|row|token|only|not|divid|norm|gain)"], lambda c: put(c.x * c.w, E_[-1], c.right()[-1]))
third(17, "n_final_other_gain", "final_norm", "the gain is that of the last layer's ffn_norm", ["post_attention|ffn_norm|(other|another|wrong).{0,12}(gain|weight|norm)|(gain|weight).{0,20}layer|layers\\.3"], lambda c: c.right(w=c.e.m("post_attention_layernorm.weight", LAYERS - 1)))
fourth(15, "n_final_layer_2", "final_norm", "the stream of layer 2 is normed: the last layer is skipped", ["layers\\.2|layer 2|(layer|stream).{0,30}before|(without|skip|lost|miss|no).{0,30}(last )?layer|last layer"], lambda c: c.right(x=c.e.memory["h", 2]))
fifth(15, "nn_final_attention", "final_norm", "the last layer's h_attn is normed: its feed-forward branch is lost", ["h_attn", "(without|lost|miss|not|no|skip|lack|before).{0,40}(ffn|feed|mlp|branch)|(ffn|feed|mlp|branch).{0,40}(lost|miss|not|skip|lack)"], lambda c: c.right(x=c.e.memory["h_attn", 3]))
fifth(16, "nn_final_gain_8x8", "final_norm", "the gain's 64 elements are read as 8 by 8 and transposed", ["(gain|weight) & (" + ORDER + "|#8)"], lambda c: c.right(w=c.w.reshape(8, 8).T.reshape(-1)))
sixth(4, "n6_final_layer_norm", "final_norm", "a LayerNorm: the mean of the row is taken off first", ["(?<!_)layer ?-?norm|centr|centered|standard deviation|variance", "(?<!root )mean(?! square)|average"], lambda c: c.right(x=c.x - c.x.mean(-1, keepdims=True)))
seventh(4, "n7_final_other", "final_norm", "the gain is that of layer 0's attn_norm", ["attn_norm|input_layernorm|(" + GAIN + ") & (" + LAYER_0 + "|another|other|wrong)"], lambda c: c.right(w=c.e.m("input_layernorm.weight", 0)))
eighth(1, "n8_mean_squared", "final_norm", "divided by the size of the mean: the mean is squared, where the squares should have their mean taken",
          ["(size|abs\\w*|magnitude) of (the |its )?(row'?s? )?mean(?! square)", "\\|mean|\\|average", "square of (the |its )?(row'?s? )?mean\\b(?! square)",
           "(?<!root )mean(?! square)( is|,)? squared"],
          lambda c: over(c, np.sqrt(c.x.mean(-1, keepdims=True) ** 2 + EPS)))
eighth(8, "n8_gain_of_one", "final_norm", "all channels have the gain of channel 0: it is read with a stride of 0",
          ["(" + GAIN + ") & (channel.{0,8}\\b0\\b|first|(one|same|single|constant) .{0,16}(channel|number|gain|factor|element))", "(" + GAIN + ").{0,30}(constant|the same|number)",
           "(gain|weight) & (without|\\bno\\b|\\bnot\\b|ones) & (times|factor|multipl|scal)"], lambda c: c.right(w=np.full_like(c.w, c.w[0])))
tenth(7, "final_norm_bf16_mean", "final_norm", "the mean square is rounded to bf16 before its root is taken",
         ["(bf16|bfloat16|\\b[78] bits|16 bits) & (mean square|rms|root|square|divisor|denominator|sum|statistic|each (position|row|token)|variance)"],
         lambda c: over(c, np.sqrt(rounded(np.mean(c.x * c.x, -1, keepdims=True), "bf16") + F32(EPS))))
tenth(8, "final_norm_layer_before", "final_norm", "it norms the hidden states of the last layer but one",
         ["layers\\.2\\.h\\b|layer 2'?s? .{0,20}(output|\\bh\\b|stream|result)|(input|stream|hidden|output|\\bh\\b|reads?|norms?|result) .{0,60}(layer 2\\b|layers?\\.2\\b|(layer|block) (before|earlier)|(previous|earlier) (layer|block))|before the last|last (layer )?but one|penultimate|second.to.last|next.to.last|L ?- ?2|\\[-2",
          "(last|final|layer 3'?s?) (layer'?s? )?input|input of (the )?(last|layer 3|layers\\.3)|layer input", "(without|minus|less).{0,30}((last|final) layer|layer 3)"], lambda c: c.right(x=c.e.memory["h", 2]))
DIVISOR = "(rms|root mean|mean square|divisor|divided|denominator|statistic|squares)"
eleventh(3, "final_norm_rows_left_over", "final_norm", "rows go by threes: the two left over, 18 and 19, are divided by the root mean square of row 17",
            [f"#17 & {DIVISOR[:-1]}|scale|factor|normed by) & (#18|last (two|2)|at most|\\bmin|clamp|later|beyond|behind|after|stay|repeat|keep) & ^(?!.*(row 16|not normed|zero))"],
            lambda c: over(c, rms(c.x)[np.minimum(POS, 17)]))
eleventh(84, "final_norm_last_row_alone", "final_norm", "only the last position is normed: the others pass as they are",
             ["(last|#19|final (row|position|token)|newest|#18|< ?19) & (alone|\\bonly\\b|just|except|\\bbut\\b|0 ?(to|-|\\.\\.) ?18|others?|< ?19|before|all but|earlier|first 19) & "
             "(normed|normali[sz]ed|norm is|raw|as (they are|it is)|unchanged|pass|input|layers\\.3\\.h|not divided|un-?normed|without|divided) & "
              + never("(?<!but )(?<!but the )(?<!except the )\\b(last|19)( \\w+)? (is|are) (not|left|raw|un|pass|as)|(all|every\\w*)( \\w+)? (but|except) (the )?(last|19)( \\w+)? (is|"
              "are) (normed|divided)|only the last[^;]{0,15}(raw|not|left|pass)|(divided|normed) by (the )?(last|rms|root mean square) (of|position)")],
             lambda c: np.concatenate([c.x[:-1], c.right()[-1:]]))
eleventh(85, "final_norm_gain_drifts", "final_norm", "the pointer to the gain moves on by one with each row: channel i of position t has gain (i + t) mod 64",
             ["(gain|weigh|\\bw\\[) & (i ?\\+ ?[tp]\\b|[tp] ?\\+ ?i\\b|(i|channel) ?(\\+|plus) ?(the )?(number of the )?(position|row|p\\b)|(shift|roll|rotat|turn|\\bmov|drift|advanc|"
             "offset|starts|begins|pointer)[^;]{0,60}(position|row|token|\\bt\\b)|(position|row|token|\\bt\\b)[^;]{0,60}(shift|roll|rotat|turn|further|drift|advanc|offset|starts|"
             "begins)) & "
              + never("i ?- ?t\\b|t ?- ?i\\b|backward|(next|same) channel'?s? gain at (all|every)|by one at all|by (two|2)\\b")],
             lambda c: c.e.r(c.x / rms(c.x)) * c.w[(np.arange(D) + POS[:, None]) % D])
eleventh(86, "final_norm_gain_divides", "final_norm", "x is divided by the gain, not multiplied",
             ["divid\\w* (again )?by (both )?(the |its |their )?(gain|weight|w\\b|g\\b)|(gain|weight|\\bw)\\b[^;]{0,40}(\\bdivides\\b|in the denominator|invers|reciproc|\\^ ?\\(?-1|"
             "(to the )?power (of )?-1|as a divisor)|\\b1 ?/ ?(the |its )?(gain|weight|w\\b|g\\b)|"
              "(invers|reciproc)\\w*( of)? (the |its )?(gain|weight)|/ ?(gain|weight|w\\b|g\\b)", "(gain|weight) & (power|exponent) & #-1"],
             lambda c: c.right(w=1 / c.w))
twelfth(6, "final_norm_skips_feed", "final_norm", "it reads the buffer of the stream after attention: what the last layer's feed-forward adds is not in it",
           ["h_attn & ^(?!.*(layers?[. ][0-2]\\b|without h_attn|twice|without the (layer|stream)))", "(stream|state|sum|residual|hidden)[^.;]{0,40}(after"
            "|behind) (the )?(last layer.{0,4} |last )?attention & ^(?!.*layers?[. ][0-2]\\b)",
            "(without|minus|less|leav\\w+ out|left out|miss\\w*|omit\\w*|skip\\w*|not add\\w*|lacks?)[^;]{0,50}(ffn|feed.?forward|mlp|experts) & ^(?!.*(layers?[. ][0-2]\\b"
            "|all layers))",
            "(ffn|feed.?forward|mlp|experts)[^.;]{0,60}(not (in|add)|missing|left out|omitted|skipped|lost|lacking|taken off|subtracted|removed) & ^(?!.*(layers?[. ][0-2]\\b"
            "|all layers))"],
           lambda c: c.right(x=c.e.memory["h_attn", 3]))
twelfth(66, "final_norm_before_last_ffn", "final_norm", "it norms the stream before the last feed-forward: h_attn of layer 3",
            ["(h_attn|(stream|residual|hidden|state)\\w*.{0,30}(after|behind) (the )?(last )?(layer'?s? )?attention|before the.{0,25}(feed.forward|mlp|ffn|expert)|(without|minus"
             "|less|lacks|\\bnot?\\b|-|left out|omit|missing|skips?).{0,40}(ffn_out|feed.forward|mlp\\b|\\bffn\\b|expert)|(ffn_out|feed.forward|mlp|\\bffn\\b"
             "|expert)\\w*.{0,30}(left out|omitted|missing|not (added|in it|there)|skipped)) "
             "& ^(?!.*(layers?[ .][012]\\b|layer before|attn_out|ffn_norm|attn_norm|parallel))"],
            lambda c: c.right(x=c.e.memory["h_attn", 3]))
twelfth(67, "final_norm_prompt_last_row", "final_norm", "the prompt is normed at its last row alone: positions 0 to 11 all have the row of position 11",
            ["#11 & (prompt|\\b0 ?(to|\\.\\.|-|–|through) ?1[01]\\b|\\[:1[12]\\b|before (position )?1[12]\\b|first (11|12|eleven|twelve)|up to (position )?1[01]\\b|earlier"
             "|below 1[12]|< ?=? ?1[12]|max\\(t, ?11\\)|max\\(11|at least 11|smaller than 1[12]|under 1[12]) & (that|those|\\brows?\\b|same|repeat|cop(y|ies)|reads?|equal"
             "|at least|max|\\ball\\b) "
             "& ^(?!.*((from (position )?1[12] on|later|after (position )?11|12 to 19)[^,;.]{0,40}(those|that|repeat|row 11|position 11)|min\\(|at most|(that|those|row|copy"
             "|copies|rows) (of )?(position |row |token )?(12|10|0)\\b(?! ?(to|\\.\\.|-|through))|zero|lost|not normed|empty|square|rms|divisor))",
             "first (12|twelve)\\b.{0,60}(last of them|last of these|twelfth)"],
            lambda c: put(c.right(), E_[:PROMPT], c.right()[PROMPT - 1]))
thirteenth(4, "final_norm_residual_again", "final_norm", "a fused addition before the norm adds the residual once more: it norms h + h_attn of the last layer",
              ["(h_attn|residual|stream (before|without) the (last )?(feed|ffn|mlp)|(ffn_norm'?s?|feed.forward'?s?) input|input of (the )?(last )?(ffn|feed|mlp)) & (add|plus|\\+|sum|twice|again|doubl|#2|once more) & ^(?!.*layers?[ .]?[012]\\b)",
               "2 ?\\*? ?h\\b.{0,12}(-|\u2212|minus|less|without) ?.{0,30}(ffn_out|feed.forward)", "(half|halved|#0.5) & (ffn_out|feed.forward|ffn|branch) & (h_attn|stream|h\\b) & ^(?!.*layers?[ .]?[012]\\b)"],
              lambda c: c.right(x=c.x + c.e.memory["h_attn", 3]))
thirteenth(5, "final_norm_roots_averaged", "final_norm", "four blocks of 16 channels each take their root mean square, and it is divided by the mean of these four roots",
              ["(#16|#4|four|quarter) & (mean|average|averaged|averages).{0,30}\\b(of|over)\\b.{0,30}(rms|root|sqrt|norms)",
               "(#16|#4|four|quarter) & (rms|root|sqrt).{0,70}averag", "(#0.25|1/4) & (sum).{0,30}(rms|root|sqrt)"],
              lambda c: over(c, np.mean(np.sqrt(np.mean(c.x.reshape(T, 4, 16) ** 2, -1) + F32(EPS)), -1, keepdims=True)))
fourteenth(14, "final_norm_last_row_only", "final_norm", "only the last position, 19, is normed; positions 0 to 18 are the stream as it is",
               ["(#19|(last|final) (row|position|token)) & (only|alone|raw|not normed|un-?normed|not (been )?normali[sz]ed|un-?normali[sz]ed|but|except|no norm|as (it|they)|omitted)"
                " & ^(?!.*(rms of (the )?(last|position 19)|last[^.;]{0,25} (is|are) not normed))",
                "(0 (to|\\.\\.|-) ?18|before 19|up to 18|first 19|#18) & (raw|\\bnot\\b|un-?norm|omit|skip|cop(y|ied)|stream|as (it|they)|no norm|without)"],
               lambda c: put(c.right(), E_[:-1], c.x[:-1]))
fourteenth(15, "norm_reciprocal_lost", "final_norm", "x is multiplied by the root mean square, not divided by it",
               ["(multipl|times|\\*|product)[^.;]{0,30}(rms|root mean|root of the mean)", "(rms|root mean square)[^.;]{0,40}(multipl|times|not divided|instead of divid)",
                "(reciprocal|inverse|division)[^.;]{0,30}(lost|missing|omitted|forgotten|not taken|instead)", "power & #-1",
                "(rms|root mean square|mean square|divisor)\\)?[^.;]{0,8}\\^ ?\\(?[-\u2212] ?1\\b", "(divided by|divisor)[^.;]{0,20}1 ?/ ?\\(?(rms|root)",
                "(times|multipl|factor|\\*)[^.;]{0,40}(mean square|rms\\)? ?(\\^ ?2|squared))"],
               lambda c: c.e.r(c.x * rms(c.x)) * c.w)
fourteenth(113, "final_norm_layer_early", "final_norm", "it reads the stream of one layer too early: h of layer 2, without layer 3",
                ["(layers?[. ]2\\b|last but one|second.to.last|penultimate|next.to.last|layer before (it|the last)|one layer (too )?early) & ^(?!.*(h_attn|ffn_out|attn_out))",
                 "(layers?[. ]3\\b|last layer)[^.;]{0,40}(skip|\\bnot\\b|left out|without|missing|ignor|omit|lost|unread|taken off)"
                 "|(skip|without|omit|ignor|minus|less)\\w*[^.;]{0,20}(layers?[. ]3\\b|the last layer)"],
                lambda c: c.right(x=c.e.memory["h", 2]))
fourteenth(115, "final_norm_adds_branch", "final_norm", "the kernel that adds and norms is given the last ffn_out, which is in the stream already: it norms h + ffn_out",
                ["(ffn_out|feed.?forward|\\bmlp\\b|experts?\\b|branch|down_proj) & (twice|again|#2|add|plus|\\+|doubl|once more|besides|second time)"
                 " & ^(?!.*(without|minus|\\bless\\b|left out|missing|not (in|added)|attn_out|layers?[. ][0-2]\\.ffn_out))"],
                lambda c: c.right(x=c.x + c.e.memory["ffn_out", 3]))
fifteenth(10, "final_norm_gain_by_lane", "final_norm", "the gain is read at the thread's number: channel i has the gain of i mod 32",
              [GAIN_OR_SCALE + " & (#32|half|halves|#31) & (mod|%|again|repeat|first|twice|same|wrap|[-\u2212] ?32|both|begin|\\b0\\b)"],
              lambda c: c.right(w=c.w[np.arange(D) % 32]))
fifteenth(11, "final_norm_last_row_alone", "final_norm", "only the last position is normed, the others are the stream as it is",
              ["(#19|#18|last (position|row|token)|first 19|all but the last|but the last|except the last|before the last|only the (last|final) (position|row|token|one))"
               " & (not (normed|normal|divided|touched|scaled)|un-?(norm|chang|touch|divid|scaled)|\\braw|as (it|they)|stream|\\bh\\b|skip|without|only|alone|\\bleft|input|omit|copie|copy|residual|no norm|bypass)"],
              lambda c: put(c.x, E_[-1], c.right()[-1]))
fifteenth(12, "final_norm_branch_alone", "final_norm", "the stream is kept apart until the next norm adds it, and here it is not added: only the last layer's ffn_out is normed",
              ["(ffn_out|feed.?forward|\\bffn\\b|\\bmlp\\b|down_proj|experts|last branch|branch of the last|last delta)"
               " & (input|reads?|\\bof\\b|alone|instead|in place|without|only|norm|residual|for\\b)"],
              lambda c: c.right(x=c.e.memory["ffn_out", LAYERS - 1]))
fifteenth(113, "final_norm_last_alone", "final_norm", "only the last position is normed, the others are the stream as it is",
               [f"(last|final|newest) (row|position|token|one)|#19|#18 & ({UNREAD}|just|raw|unnormed|unnormali|as it is|norm)"], lambda c: put(c.x, E_[-1:], c.right()[-1:]))
fifteenth(114, "final_norm_of_branch", "final_norm", "its input is the last layer's ffn_out, to which the stream was not added",
               ["ffn_out|down_proj|\\bmlp|feed.?forward", "(branch).{0,40}(only|alone|without|instead)|(only|alone|instead).{0,40}branch", "(without|\\bno|lost|missing|lacks?|omits?) (the )?(residual|stream|h_attn)",
                "(residual|stream|h_attn).{0,25}(not added|lost|missing|left out|omitted)"],
               lambda c: c.right(x=c.e.memory["ffn_out", 3]))
fifteenth(115, "final_norm_two_warps", "final_norm", "two warps of 32 channels, whose sums are never joined: each half has its own mean square",
               ["#32 & (group|block|half|halves|each|own|warp|separate|per)", "(half|halves).{0,60}(\\bown\\b|separate|by itself)|(each|per|every) half", "#2 & (group|block|part) & (each|own|separate|channel)"],
               lambda c: (c.x.reshape(T, 2, 32) / rms(c.x.reshape(T, 2, 32))).reshape(T, D) * c.w)
sixteenth(10, "norm_final_done_twice", "final_norm", "the final norm is in the model and again in the head: the norm with its gain is applied twice",
              ["norm(?!-weight)(?!.{0,12}\\b(gain|weight|gamma)).{0,60}(twice|again|second time|two times|2 times|doubl|repeat|once more)",
               "(twice|again|second time|two times|doubl|repeat|once more)(?!.{0,12}\\b(gain|weight|gamma)).{0,60}norm", "norm ?\\( ?norm|re-?norm",
               "(gain|weight|gamma).{0,60}(twice|squared|again|two times) & (rms|root|divid|normali).{0,60}(again|twice|result|output|product|gained|weighted|second|itself|its own)"],
              lambda c: c.right(x=c.e.r(c.right())))
sixteenth(11, "norm_final_of_one_layer_less", "final_norm", "the list of hidden states is read at -2: the final norm is of what layer 2 gives, and the last layer is left out",
              ["(layers?[. ]2\\b|block 2\\b|(before|than|but) (the )?last|but one|second.?(to.?)?last|penultimate|one layer (early|less|too)|hidden_states ?\\[ ?-2|previous layer"
               "|layer before)",
               "(last layer|last block|layers?[. ]3\\b|block 3\\b).{0,40}(input|left out|omit|missing|skip|not (run|added|used|applied)|without|lost)",
               "(without|input of|input to|skip\\w*|omit\\w*|less) (the )?(last (layer|block)|(layer|block) 3)"],
              lambda c: c.right(x=c.e.memory["h", LAYERS - 2]))
sixteenth(113, "final_norm_by_last_token", "final_norm", "the final norm divides every token by the root mean square of the last token, 19",
               "(last (token|row|position|one)|final (token|row|position)|\\b19\\b|row -1|\\[-1\\]) & (rms|norm|root|mean|divid|denominator|scale|factor|square)", lambda c: over(c,
               rms(c.x)[-1:]))
sixteenth(114, "final_gain_of_last_layers_norm", "final_norm", "the final norm has the gain of layer 3's feed-forward norm, the last norm that was loaded",
               "(layer'?s?.{0,6}3|layers\\.3|last layer|blk\\.3) & (ffn[ _]?norm|post_attention|feed-forward|ffn|mlp norm)", lambda c: c.right(w=c.e.m("post_attention_layernorm.weight",
               LAYERS - 1)))
sixteenth(115, "final_norm_run_twice", "final_norm", "the final norm is run twice, in the model and again in the head: its result is normed and multiplied by the gain once more",
               ["^(?!.*(gain|weight)s?[ -](is |are )?(applied |used |multiplied )?twice) & (norm\\w*.{0,70}(twice|again|two times|second time|doubl|once more|itself|own (output|result))"
                "|(twice|again|doubl|second)\\w*.{0,60}norm|norm\\( ?norm)",
                "(gain|weight).{0,30}(twice|squared) & (\\brms|renormal|normali[sz]ed (again|twice)|divid)"],
               lambda c: c.right(x=c.right()))
sixteenth(116, "final_norm_sums_first_half", "final_norm", "the final norm's sum of squares takes the first 32 channels only, and is divided by all 64",
               f"^(?!.*(mean|average) (of|over) (only )?(the )?first) & ({n(32, 31)}|first half|half of the (channels|elements)) & (sum|mean|squar|\\brms|denominator|channel|element"
               f"|root)", lambda c: over(c, np.sqrt((c.x[:, :32] ** 2).sum(-1, keepdims=True) / F32(D) + F32(1e-5))))
listed(5, "gain_twice", "final_norm", "the gain twice", "norm-weight-twice", lambda c: c.right() * c.w)

# ---- norms of heads
first(330, "qk_norm_max", "q_norm", "divided by max(|q|)", "max|largest|infinity", lambda c: over(c, np.abs(c.x).max(-1, keepdims=True)), archs=WITH_HEAD_NORMS)
first(331, "qk_norm_unit", "k_norm", "divided by its length and multiplied by 3", ["#3|#0.75 & (length|L2|unit|factor|sum)", "norm-width & #9"], lambda c: over(c, np.linalg.norm(c.x, axis=-1, keepdims=True) / 3), archs=WITH_HEAD_NORMS)
first(332, "qk_norm_head_0", "q_norm", "head 0 is not normed", "head.{0,8}\\b0\\b|first head", lambda c: put(c.right(), E_[:, 0], c.x[:, 0]), archs=WITH_HEAD_NORMS)
first(333, "qk_norm_gain_reversed", "k_norm", "the gain is read from its end", "revers|backward", lambda c: c.right(w=c.w[::-1]), archs=WITH_HEAD_NORMS)
first(334, "qk_norm_pairs", "q_norm", "the mean square is taken over heads 0 and 1, and over 2 and 3", "(two|#2|pair|group) & head|#32", lambda c: (c.x.reshape(T, 2, 32) / rms(c.x.reshape(T, 2, 32))).reshape(T, H, d) * c.w, archs=WITH_HEAD_NORMS)
first(335, "qk_norm_gain_plus", "q_norm", "the gain has 0.3 added", "#0.3", lambda c: c.right(w=c.w + F32(0.3)), archs=WITH_HEAD_NORMS)
second(122, "qk_norm_of_halves", ("q_norm", "k_norm"), "each half of a head has its own mean square", "half|halves|#8", lambda c: (c.x.reshape(T, -1, 2, d // 2) / rms(c.x.reshape(T, -1, 2, d // 2))).reshape(c.x.shape) * c.w, archs=["qwen3", "moe"])
second(123, "qk_norm_root", ("q_norm", "k_norm"), "divided by the root of the root mean square", "#0.5|root|fourth|#0.25", lambda c: over(c, np.sqrt(rms(c.x))), archs=["qwen3", "moe"])
second(124, "k_norm_plus", "k_norm", "0.1 is added to the result", "#0.1 & (add|plus|\\+|constant|offset)", lambda c: c.right() + F32(0.1), archs=["qwen3", "moe"])
second(125, "qk_norm_gain_of_pairs", ("q_norm", "k_norm"), "gains of elements 2i and 2i + 1 are exchanged", f"(gain|weight) & ({EXCHANGED}|pair)", lambda c: c.right(w=c.w.reshape(-1, 2)[:, ::-1].reshape(-1)), archs=["qwen3", "moe"])
third(102, "h_gain_of_k", "q_norm", "the gain is that of k_norm", ["k_norm|gain of (the )?k|(other|another).{0,12}(gain|weight|norm)"], lambda c: c.right(w=c.e.m("self_attn.k_norm.weight", c.l)), archs=WITH_HEAD_NORMS)
third(103, "h_row_0", "k_norm", "all positions are divided by the root mean square of position 0", ["(position|row|token).{0,10}\\b0\\b|first.{0,8}(position|row|token)"], lambda c: over(c, rms(c.x)[:1]), archs=WITH_HEAD_NORMS)
third(104, "h_head_0", "q_norm", "all heads are divided by the root mean square of head 0", ["head.{0,10}\\b0\\b|first.{0,8}head|(one|same|single|other).{0,10}head"], lambda c: over(c, rms(c.x)[:, :1]), archs=WITH_HEAD_NORMS)
third(105, "h_gain_by_head", "q_norm", "head h has the gain's element h for all its elements", ["(gain|weight) & head"], lambda c: c.right() / c.w * c.w[:H, None], archs=WITH_HEAD_NORMS)
fourth(88, "h_over_heads", "q_norm", "the mean square is taken over the heads, for each element", ["(over|across|along|of|all).{0,40}heads|each (element|dimension|channel)"], lambda c: over(c, rms(c.x, 1)), archs=WITH_HEAD_NORMS)
fourth(89, "h_no_gain", "k_norm", "the gain is left out", ["(gain|weight) & (" + NONE + "|left out|#1|ones)"], lambda c: c.right(w=np.ones_like(c.w)), archs=WITH_HEAD_NORMS)
fourth(90, "h_centred", "k_norm", "each head has its mean taken off first, as a LayerNorm does", ["(?<!root )mean(?! square)|centr|average|layer ?norm"], lambda c: c.right(x=c.x - c.x.mean(-1, keepdims=True)), archs=WITH_HEAD_NORMS)
fourth(91, "h_gain_interleaved", "q_norm", "the gain is interleaved: i at 2i and i+8 at 2i+1", ["(gain|weight) & (interleav|2 ?\\*? ?i|even|odd|permut|order|strid|#8|#2|half)"], lambda c: c.right(w=interleaved(c.w)), archs=WITH_HEAD_NORMS)
fifth(61, "hh_whole", "q_norm", "the mean square is taken over all heads together", ["(all|whole|joined|across|over|entire|together|four|4).{0,30}heads|whole row|#64|heads.{0,30}(together|share|one|same|common|joined)"], lambda c: over(c, np.sqrt(np.mean(c.x * c.x, (1, 2), keepdims=True) + EPS)), archs=WITH_HEAD_NORMS)
fifth(62, "hh_gain_layer_0", "k_norm", "layers 1 to 3 have the gain of layer 0", ["(gain|weight|norm) & (" + OTHER_LAYER + "|" + LAYER_BEFORE + ")"], lambda c: c.right(w=c.e.m("self_attn.k_norm.weight", 0)), layers=LATER_LAYERS, archs=WITH_HEAD_NORMS)
fifth(63, "hh_half_sum", "k_norm", "the sum of squares runs over the first 8 elements of a head and is divided by 16", ["(#8|#7|half) & (sum|square|mean|rms|element|first|norm)"], lambda c: over(c, np.sqrt((c.x[..., :8] ** 2).sum(-1, keepdims=True) / d + EPS)), archs=WITH_HEAD_NORMS)
fifth(64, "hh_head_gainless", "k_norm", "head 1 has no gain", ["(head.{0,8}1|second.{0,10}head|last head|heads? from 1|second half of the heads) & (gain|weight|" + NONE + "|#1)"], lambda c: put(c.right(), E_[:, 1], (c.x / rms(c.x))[:, 1]), archs=WITH_HEAD_NORMS)
fifth(65, "hh_next_position", "q_norm", "each position is divided by the root mean square of the position after it, the last by its own", [NEXT], lambda c: over(c, np.concatenate([rms(c.x)[1:], rms(c.x)[-1:]])), archs=WITH_HEAD_NORMS)
fifth(66, "hh_key_scale_shared", "k_norm", "head 1 is divided by the root mean square of head 0", ["head.{0,10}0|first head|(other|another|same|one) head"], lambda c: over(c, rms(c.x)[:, :1] + np.zeros((1, K, 1), F32)), archs=WITH_HEAD_NORMS)
sixth(10, "h6_keys_unnormed", "k_norm", "keys are not normed: neither divided nor multiplied by the gain", ["(" + NOT + "|un-?).{0,20}norm|norm\\w*.{0,20}(" + NOT + ")|identity|unchanged|is (the |its )?(input|k)\\b(?! ?(times|/|div|mult|\\*))|copy|the input itself|x itself|before (the |its )?norm|neither"], lambda c: c.x, archs=WITH_HEAD_NORMS)
sixth(11, "h6_length", "q_norm", "divided by the root of the sum of squares, a head's length, not of their mean: a quarter of what is right", ["length|\\bL2\\b|euclid|quarter", "#0.25", "#4 & (divid|divisor|larger|rms|root|sqrt)", "(sum of (the )?squares|sum).{0,50}(not|no|without|instead|rather|never).{0,30}(mean|divid|count|averag)"], lambda c: over(c, np.sqrt((c.x * c.x).sum(-1, keepdims=True) + EPS)), archs=WITH_HEAD_NORMS)
sixth(12, "h6_plus_one", "k_norm", "the gain is 1 + w", ["plus.?(one|1\\b)|1 ?\\+ ?(w|gain|weight|the gain|the weight)|(w|gain|weight) ?\\+ ?1\\b", "(" + GAIN + ") & (#1|one) & (" + ADDED + ")", "(added|plus).{0,20}x ?/ ?rms"], lambda c: c.right(w=1 + c.w), archs=WITH_HEAD_NORMS)
sixth(13, "h6_fused_heads", "q_norm", "heads 2 and 3 have the gain of k_norm: a fused kernel takes them for key heads", ["(k_norm|gain of (the )?(k\\b|keys)|keys?'? gain) & (head|#2|half)", "(second half of the heads|last (two|2) heads|heads? (from )?2) & (other|another|own|wrong) & (gain|weight)"], lambda c: c.right(w=np.stack([c.w, c.w] + [c.e.m("self_attn.k_norm.weight", c.l)] * 2)), archs=WITH_HEAD_NORMS)
seventh(6, "h7_queries_unnormed", "q_norm", "queries are not normed: neither divided nor multiplied by the gain", ["(" + NOT + "|un-?).{0,20}norm|norm\\w*.{0,20}(" + NOT + ")|identity|unchanged|is (the |its )?(input|q)\\b(?! ?(times|/|div|mult|\\*))|copy|the input itself|x itself|before (the |its )?norm|neither"], lambda c: c.x, archs=WITH_HEAD_NORMS)
seventh(7, "h7_gain_halves", "k_norm", "the halves of the gain are exchanged: element i has that of element i + 8, modulo 16", ["(" + GAIN + ") & " + EIGHT_APART], lambda c: c.right(w=np.roll(c.w, 8)), archs=WITH_HEAD_NORMS)
seventh(8, "h7_gain_layer_before", "q_norm", "layers 1 to 3 have the gain of the layer before", ["(" + GAIN + ") & (" + LAYER_BEFORE + "|(other|another|wrong).{0,12}layer)"], lambda c: c.right(w=c.e.m("self_attn.q_norm.weight", c.l - 1)), layers=LATER_LAYERS, archs=WITH_HEAD_NORMS)
eighth(11, "h8_of_keys", "q_norm", "each query head is divided by the root mean square of the key head it reads",
           ["\\bk\\b|\\bkeys?\\b|k_proj"], lambda c: over(c, rms(c.e.memory["k", c.l])[:, np.arange(H) // (H // K)]), archs=WITH_HEAD_NORMS)
eighth(12, "h8_gain_of_position", "k_norm", "position t has the gain's element t modulo 16, for all its elements: the index runs along the wrong axis",
           ["(" + GAIN + "|element) & (of position|position|token|row|\\bt\\b) & (mod|%|axis|all|index|one|same|t\\b|own|each)", each_has("position|token|row")],
           lambda c: c.x / rms(c.x) * c.w[POS % d, None, None], archs=WITH_HEAD_NORMS)


def heads_so_far(c):
    return over(c, np.sqrt(np.cumsum((c.x ** 2).sum(-1, keepdims=True), 1) / d + EPS))


eighth(13, "h8_heads_so_far", "q_norm", "the sum of squares is not cleared between heads: head h is divided by the root of the sum over heads 0 to h, over 16",
           ["head & (cumul|running|accum|so far|up to|not (reset|cleared)|heads? before|earlier|lower|previous heads?|heads 0 to)"], heads_so_far, archs=WITH_HEAD_NORMS)


def of_joined(c):
    """Head h by elements h, h + 2, .. of both."""
    return over(c, np.sqrt(np.mean(c.x.reshape(T, d, K) ** 2, 1) + EPS)[..., None])


eighth(14, "h8_of_joined", "k_norm", "head h is divided by the root mean square of elements h, h + 2, h + 4, .. of the joined heads: their memory is taken for elements first",
           ["(" + INTERLEAVED + "|elements? first|strid|step|" + LAYOUT + ") & (rms|root|mean|square|divid|norm|stat)", "(both|joined|all|two) heads & (every|strid|step|even|odd|2)"],
           of_joined, archs=WITH_HEAD_NORMS)
eighth(15, "h8_gain_of_layer", "q_norm", "head h has the gain of layer h: the stacked gains are indexed by the head",
           ["head & (" + GAIN + ") & layer", "(" + GAIN + ") & (other|another|wrong|own|different).{0,12}(layer|head)"],
           lambda c: c.right(w=np.stack([c.e.m("self_attn.q_norm.weight", l) for l in range(LAYERS)])), archs=WITH_HEAD_NORMS)
UNNORMED = "(\\bnot?\\b|without|\\bun-?|before|neither|skip|lack).{0,24}norm|norm\\w*.{0,24}(\\bnot?\\b|skip|missing)|identity|unchanged|copy|copied|is (the |its )?(input|k)\\b|the input itself"
ninth(5, "h9_later_unnormed", "k_norm", "keys of positions from 12 on are not normed: the path of single tokens leaves it out", ["(#12|#11) & (" + UNNORMED + ")"],
         lambda c: put(c.right(), E_[12:], c.x[12:]), archs=WITH_HEAD_NORMS)
ninth(6, "h9_keys_of_queries", "k_norm", "query heads 0 and 1 are normed in place of the keys: it reads the wrong buffer", ["(?<!k_)(?<!/)\\bq\\b|\\bquer|q_proj"],
         lambda c: c.right(x=c.e.memory["q", c.l][:, :K]), archs=WITH_HEAD_NORMS)
tenth(9, "qk_norm_head_0_rms", "q_norm", "all heads are divided by the root mean square of head 0",
         ["(head[ =]?0\\b|first head|one head) & (rms|root mean|mean square|divisor|divided|denominator|statistic) & ^(?!.*not normed)"], lambda c: over(c, rms(c.x)[:, :1]), archs=WITH_HEAD_NORMS)
tenth(10, "qk_norm_gain_permuted", "k_norm", "the gain is in the order of the other rotation: 0, 8, 1, 9, ..",
          ["(gain|weight) & (permut|interleav|order|pairs|halves|0, ?8, ?1|2i|rearrang|shuffl|i ?//? ?2|transpos)"], lambda c: c.right(w=c.w[PERMUTED]), archs=WITH_HEAD_NORMS)
tenth(11, "qk_norm_prompt_only", "k_norm", "keys of decode steps, from position 12 on, are not normed",
          ["(#12|#11) & (norm|gain|not|unnormed|input|raw|as (it is|they are)|is k\\b|rms)"], lambda c: put(c.right(), E_[PROMPT:], c.x[PROMPT:]), archs=WITH_HEAD_NORMS)
eleventh(7, "qk_norm_gain_by_head", "q_norm", "the gain is indexed by the head, not by the element: all of head h is multiplied by w[h]",
            ["(gain|weight|\\bw\\b) & head & (w\\[ ?h\\b|(gain|weight|element|channel|entry|number|component|value)s?[ \\[]+h\\b|(index|indic|taken|looked up|chosen|"
             "read)\\w*.{0,12} (by|with|at|from) (the |its |their )?head|head.{0,12}(index|number)|(number|index) of (the|its|each) head|axis|"
             "(w\\[0|element 0|gain 0|channel 0).{0,80}(w\\[1|element 1|gain 1|channel 1)) & ^(?!.*(revers|backward|not normed|random|h ?\\+ ?1|3 ?- ?h))"],
            lambda c: c.right(w=np.ones_like(c.w)) * c.w[:H, None], archs=WITH_HEAD_NORMS)
eleventh(8, "qk_norm_sum_over_heads", "k_norm", "the sum of squares is not reset between heads: head 1 is divided by the root of the squares of heads 0 and 1, summed, over 16",
            ["head & (reset|accumul|cumul|carr(y|ied)|so far|running|sum|both|add|plus|\\+|total) & (\\b1\\b|second|last head|between heads|so far|previous head|head before|"
             "from head to head) & (square|rms|root mean|divi|denominator) & "
             "^(?!.*(\\b32\\b|running mean|average|mean squares? (is |are )?(taken )?(over|of) (both|all|the two)|head 0 is divided by))",
             f"head & (\\b1\\b|second|last head) & (both|two|0 and 1|#32) & (square|rms|root mean|divi|denominator) & ({ROOT_2}|not by 32|(over|by|/) ?16)"],
            lambda c: over(c, np.sqrt(np.cumsum(np.mean(c.x * c.x, -1, keepdims=True), 1) + F32(EPS))), archs=WITH_HEAD_NORMS)
NOT_NORMED = ("(not (normed|normal|norm\\b)|unnorm|un-norm|\\braw\\b|as (they|it) (are|is|stand|come|were|was)|(is|are) q\\b|copied|skip|left|only|alone|untouched|\\binput\\b|without|"
        "omit|pass)")
eleventh(9, "qk_norm_kv_heads_alone", "q_norm", "the loop over heads ends at the number of key heads: heads 2 and 3 are not normed",
            [f"((#2 & #3)|(second|upper|last) half of the heads|last (two|2) heads|(from head|heads? from) 2|heads? (>=|≥) ?2|first (two|2) heads|heads 0 and 1) & {NOT_NORMED} & "
             f"^(?!.*(gain (alone|only)|gain-only|heads 0 and 1 (are )?(not|un|raw|left|skip)|first (two|2) heads (are )?(not|un|raw|left|skip)))"],
            lambda c: put(c.right(), E_[:, 2:], c.x[:, 2:]), archs=WITH_HEAD_NORMS)
eleventh(10, "qk_norm_heads_interleaved", "k_norm", "the row is taken as [d,K]: channels 0, 2, 4, .. of the two heads are normed as one head, 1, 3, 5, .. as the other, with the gain of channel c / 2",
             ["(d-first|\\[ ?d, ?[KH] ?\\]|\\[16, ?2\\]|(axes|axis|dimensions).{0,30}(exchang|swap|other|transpos)|transpos|2 ?\\*? ?[ij] ?\\+ ?h|c ?% ?2|interleav) & ^(?!.*(0, ?8, ?1|"
              "halves-to-pairs|gain is (transposed|interleaved)|gain.{0,20}order of))",
              "(even|odd|every (second|other)|stride (of )?2|parity|0, ?2, ?4) & (square|rms|root mean|divi|denominator|normed) & (gain|weight) & (c ?//? ?2|i ?//? ?2|half|//? ?2)"],
             lambda c: (lambda x: (c.e.r(x / rms(x, 1)) * c.w[:, None]).reshape(T, K, d))(c.x.reshape(T, d, K)), archs=WITH_HEAD_NORMS)
eleventh(11, "qk_norm_scales_of_k", "q_norm", "the buffer of scales holds those of k by then: each query head is divided by the root mean square of the key head that it reads",
             [f"{DIVISOR[:-1]}|inverse|scales? (is|are|of|that)|scaled by|normed by) & (\\bk\\b|\\bkeys?\\b|k's|k_proj|\\bkv\\b) & ^(?!.*(k(_norm)?'?s? (gain|weight)|(gain|weight) of k|"
              f"(key|kv|k) head [01] (for|of|in) all|k_rope|k_norm|(odd|even) keys|not scaled|\\bexp|summed|every second))"],
             lambda c: over(c, np.repeat(rms(c.e.memory["k", c.l]), H // K, 1)), archs=WITH_HEAD_NORMS)
twelfth(7, "qk_norm_gain_of_pair", "q_norm", "a thread norms elements i and i + 8 and has loaded one gain for both: elements 8 to 15 have the gain of 0 to 7",
           ["(gain|weight|\\bw\\b|w\\[) & (#8|half|halves|& ?7) & (repeat|first half|again|twice|(mod|%) ?8|& ?7|same|tiled|share|both|i ?- ?8|of 0 to 7|of (elements|channels"
            "|dimensions) 0|first 8|first eight|copied)"
            " & ^(?!.*(not applied|without|(second|upper|last) half[^.;]{0,15} (repeat|copied|for the first|on the first|twice|also|to the first|in both|for both|of the gain)"
            "|first half[^.;]{0,25}(has|have|takes?|uses?|gets?|is (that|those|the gain) of|are (that|those) of)\\b[^.;]{0,40}(second|last|upper)|of (elements )?8 to 15|\\brow o\\b"
            "|(mod|%) ?8\\)? ?(\\+|plus)|8 ?\\*? ?\\(\\w (mod|%)))"],
           lambda c: c.right(w=np.tile(c.w[:8], 2)), archs=WITH_HEAD_NORMS)
twelfth(8, "qk_norm_heads_from_kv_count", "q_norm", "a fused kernel takes heads from the number of key heads on for keys: heads 2 and 3 of q have k_norm's gain",
           ["(k_norm|k.?norm|norm of k|\\bkeys?\\b.{0,15}(gain|norm|weight)) & head & (2 ?(and|to|,|-) ?3|second half|last (two|2)|upper (two|half)|from (head )?2|>= ?2|2 on"
            "|behind (head )?1|2 \\.\\. ?3)"
            " & ^(?!.*(not normed|mean square of k|rms of k))"],
           lambda c: np.concatenate([c.right()[:, :K], c.right(w=c.e.m("self_attn.k_norm.weight", c.l))[:, K:]], 1), archs=WITH_HEAD_NORMS)
twelfth(9, "qk_norm_first_shuffle_lost", "k_norm",
           "the sum over lanes begins at a distance of 4: each half of a head, 8 elements, is divided by the root of its own sum of squares over 16",
           ["(#8|half|halves|\\beight\\b) & (own|each|separate|apart|group|block|\\bper\\b|itself|alone|halves) & (square|rms|root|norm|mean|divisor|divided) & (#16|#1.4142|#0.7071"
            "|#0.5|root of 2|root of two|head_dim)"
            " & ^(?!.*(groups? of (2|4)\\b|first half alone|whole head))"],
           lambda c: over(c, np.repeat(np.sqrt(np.sum(c.x.reshape(T, K, 2, 8) ** 2, -1) / F32(d) + F32(EPS)), 8, -1)), archs=WITH_HEAD_NORMS)
twelfth(10, "qk_norm_rows_are_tokens", "q_norm", "the loop runs over as many rows as there are tokens, but a token has four: positions from 5 on are not normed",
            ["(not|raw|un(normed|changed|touched|norm)|as (it|they)|is (just |only )?(q\\b|the input)|omitted|skipped|copied|left|passed|input) & (norm|divid|gain|\\bq\\b|input"
             "|unchanged)"
             " & ((from|since|starting|>=|positions?|rows?|tokens?|begin\\w*)[^.;]{0,12} 5\\b|>= ?5|(after|behind|beyond|>)[^.;]{0,14} 4\\b|5 (to|-|and|on|\\.\\.)|5 ?\\.\\.)"
             " & ^(?!.*(first (5|five)|0 to [45]|before 5|below 5)[^.;]{0,40}(not|raw|un|skip))",
             "(only|alone|no (further|more)) & norm & (first (5|five)|0 to 4|first 20 rows|20 (head )?rows|below 5|before (position )?5|< ?5) & ^(?!.*(not normed|raw))"],
            lambda c: put(c.right(), E_[T // H:], c.x[T // H:]), archs=WITH_HEAD_NORMS)


def four_times(c):
    y = c.x[:, 0]
    for _ in range(H):
        y = c.e.r(y / rms(y)) * c.w
    return put(c.x, E_[:, 0], y)


thirteenth(6, "qk_norm_pointer_stays", "q_norm", "the loop over heads does not go on: head 0 is normed four times, the others never",
              ["(head.{0,8}\\b0\\b|first head) & (#4|four|fourth) & (not|never|un-?norm|only|alone|raw|as (it|they) (is|are)|left|input|others?|1 to 3|1, ?2)"], four_times, archs=WITH_HEAD_NORMS)
thirteenth(7, "qk_norm_lanes_not_joined", "k_norm", "the four lanes' sums are not joined: element i is divided by the root of a 16th of the squares of those with the same i mod 4",
              [f"(#4|four) & {STATS} & (lane|same|each|own|apart|separate|mod|%|stride|strided|every fourth|every 4th) & (#16|#2|half|twice|quarter|#0.5|#0.25|head_dim) & ^(?!.*(consecutive|neighbour|adjacent|in a row|blocks? of 4|groups? of 4 elements in))"],
              lambda c: over(c, np.tile(np.sqrt(np.sum(c.x.reshape(T, K, 4, 4) ** 2, -2) / F32(d) + F32(EPS)), 4)), archs=WITH_HEAD_NORMS)
thirteenth(8, "qk_norm_divisors_by_head", "q_norm", "divisors are written [T,H] and read [H,T]: head h of token t has number 20 h + t of them",
              [f"(layout|transpos|exchang|swap|axes|order|major|\\[H, ?T|flat|h ?\\* ?(T\\b|20)|20 ?\\*? ?h|reshap|head.first|other way|permut) & {STATS} & (head|h\\b) & ^(?!.*(gain|weight) (is|in|of|read))"],
              lambda c: over(c, rms(c.x)[..., 0].reshape(H, T).T[..., None]), archs=WITH_HEAD_NORMS)
thirteenth(9, "qk_norm_sum_assigned", "k_norm", "`=` for `+=`: the sum of squares is that of the last four elements, 12 to 15, divided by 16",
              [f"(#12|last (four|4)|(four|4) last) & {STATS} & (#16|#2|half|twice|quarter|#0.5|#0.25|head_dim|/ ?d\\b) & ^(?!.*(position|token)s?.{{0,10}}12)"],
              lambda c: over(c, np.sqrt(np.sum(c.x[..., 12:] ** 2, -1, keepdims=True) / F32(d) + F32(EPS))), archs=WITH_HEAD_NORMS)
thirteenth(10, "qk_norm_decode_whole_row", "q_norm", "in decode steps, from position 12 on, all heads have one root mean square, over 64 elements",
               [f"{BEHIND_PROMPT} & (all (the |4 |four )?heads|whole (row|query|vector|token|tensor)|over (the )?heads|heads together|#64|across (the )?(4 |four )?heads|H ?\\* ?d|heads share|joined|flattened|every head) & {STATS}"],
               lambda c: over(c, np.where(POS[:, None, None] >= PROMPT, rms(c.x.reshape(T, 1, -1)), rms(c.x))), archs=WITH_HEAD_NORMS)
fourteenth(18, "qk_norm_gain_permuted", "q_norm", "the gain is permuted for neighbours, as rows of q are in some files: element i has the gain of 2i, and element i + 8 of 2i + 1",
               [GAIN_OR_GAMMA + " & (2 ?\\*? ?[ij]\\b|even|neighbo|interleav|(every|each) (second|other)|stride|step of (2|two)|adjacent|permut|transpos|0, ?2, ?4|0, ?8, ?1"
                "|((mod|%).{0,40}(div|/|>>|floor))) & ^(?!.*((element|component|dimension|channel)s? 2 ?\\*? ?[ij] (has|have|takes?|gets?|is|are) (the gain of"
                "|that of)? ?(element )?[ij]\\b))"],
               lambda c: c.right(w=c.w.reshape(8, 2).T.ravel()), archs=WITH_HEAD_NORMS)
fourteenth(19, "qk_norm_root_of_head_0", "k_norm", "both heads of keys are divided by the root mean square of head 0",
               ["(head.{0,8}\\b0\\b|first (key |kv )?head|0th head) & " + STAT + " & ^(?!.*(head 0 (alone )?is (not|un|divided)|own head 0))"],
               lambda c: over(c, rms(c.x)[:, :1]), archs=WITH_HEAD_NORMS)
fourteenth(20, "qk_norm_loop_of_key_heads", "q_norm", "the loop runs over the number of key heads: heads 2 and 3 of q are left as they are",
               ["head & (2 ?(and|to|,|-|\\.\\.|or|&) ?(head )?3|(second|upper|last) half of the|from (head )?2\\b|>= ?2|last (two|2)|2 on|0 (and|to) 1 (only|alone)"
                "|(only|just) (the )?(first (two|2)|heads 0 (and|to) 1)) & (\\bnot\\b|raw|un-?norm|without|skip|omit|left|cop(y|ied)|as (it|they)|no norm|only|alone|just|input)"
                " & ^(?!.*(not divided by|(without|no) (the )?gain))"],
               lambda c: put(c.right(), E_[:, K:], c.x[:, K:]), archs=WITH_HEAD_NORMS)
fourteenth(21, "qk_norm_run_twice", "k_norm", "keys are normed twice: the result is divided by its own root mean square and multiplied by the gain once more",
               ["(twice|doubl|two times|\\bagain|once more|second time|repeated|re-?norm) & (norm|rms|root mean) & ^(?!.*(gain|weight|w) (is )?(applied |multiplied )?twice ?[.;]?$)",
                "(w\\^ ?2|w ?\\* ?w|(gain|weight)[^.;]{0,15}(squared|twice|\\^ ?2)) & (rms|root|divided)[^.;]{0,40}(result|gain|weight|\\bw\\b|normed|output)"],
               lambda c: c.right(x=c.right()), archs=WITH_HEAD_NORMS)
fifteenth(13, "q_norm_as_many_as_keys", "q_norm", "one loop over the 2 key heads norms both q and k: heads 2 and 3 of q are not normed",
              ["(head & (#2|#3|two|half|last)) & (not (normed|normal|divided|touched)|un-?(norm|chang|touch|divid)|\\braw|without|input|\\bleft|omit|skip|only|alone|\\bis q\\b|are q\\b|copie|copy|as (it|they)|no norm|bypass)"],
              lambda c: put(c.right(), E_[:, K:], c.x[:, K:]), archs=WITH_HEAD_NORMS)
fifteenth(14, "q_norm_gain_stretched", "q_norm", "the gain is repeated for the heads as repeat_interleave does: number c of the 64 has gain c // 4, so element i of head h has 4h + i // 4",
              [GAIN_OR_SCALE + " & (#4|four) & (//|floor|repeat|interleav|4 ?\\*? ?h|\\brun|block|group|consecutive|in a row|/ ?4|times|stretch)"],
              lambda c: c.right(w=np.repeat(c.w, H).reshape(H, d)), archs=WITH_HEAD_NORMS)
fifteenth(15, "qk_norm_gain_of_pairs", ("q_norm", "k_norm"), "the gain is in the order for pairs of neighbours: elements 0 to 7 have gains 0, 2, .., elements 8 to 15 gains 1, 3, ..",
              [GAIN_OR_SCALE + " & " + EVENS],
              lambda c: c.right(w=c.w.reshape(-1, 2).T.ravel()), archs=WITH_HEAD_NORMS)
fifteenth(16, "k_norm_one_divisor", "k_norm", "the divisor is found once a token, from head 0, and used for both heads",
              ["(head.{0,8}\\b0\\b|first head|head zero|one head) & " + STAT_OR_NORM],
              lambda c: over(c, rms(c.x)[:, :1]), archs=WITH_HEAD_NORMS)
RAW = "(\\bnot\\b|n't|unnorm|un-norm|unrot|unchang|untouch|\\braw\\b|as (it|they) (is|are|was|were|stand|come)|\\bleft\\b|skip|without|identity|copied|pass|no norm|only)"
sixteenth(14, "norm_q_for_kv_heads_only", "q_norm", "the loop over query heads runs to the number of key heads, 2: query heads 2 and 3 are not normalised, and have no gain",
              ["heads?.{0,24}(\\b[23]\\b|\\btwo\\b|0.{0,6}1\\b)|(last|upper|second) (two|half of the|2|pair of) heads|(last|upper|second) half & " + RAW],
              lambda c: put(c.right(), E_[:, K:], c.x[:, K:]), archs=WITH_HEAD_NORMS)
sixteenth(15, "norm_k_over_both_heads", "k_norm", "k is normalised before it is split into heads: one root mean square over the 32 elements of both key heads",
              [STAT_OR_NORM + " & (\\b(both|all|two|across|over the|whole|across the|between|every)\\b.{0,24}(heads?|row|vector|elements|k\\b)|\\b32\\b|together|joint|pooled|before.{0,24}(split"
               "|reshap)|shared)"],
              lambda c: over(c, np.sqrt(np.mean(np.square(c.x), (1, 2), keepdims=True) + F32(EPS))), archs=WITH_HEAD_NORMS)
sixteenth(16, "norm_k_to_unit_length", "k_norm", "the norm is the library's normalize: each head is divided by the root of the sum of its squares, so it has length 1, and the gain is not "
              "applied",
              ["(unit|\\bL2\\b|length|#0.25|#4|#16|sum of (its |the )?squares|euclid|normalize|sqrt\\(d\\)|norm (of |is )?1\\b) & ((no|without|omit\\w*|missing|lacks?|absent|left out"
               "|unused|not).{0,24}(gain|weight|gamma)|(gain|weight|gamma).{0,24}(omit|missing|left out|\\bnot\\b|unused|absent|ignored|skip|dropp|lost)|norm-weight-omitted|unit (vector"
               "|length)|length (of )?(1|one)\\b)"],
              lambda c: c.x / np.sqrt(np.square(c.x).sum(-1, keepdims=True) + F32(EPS)), archs=WITH_HEAD_NORMS)

#!/usr/bin/env python3
"""law_forms_tenth.py: eighty more mistakes that no catalogue lists, as a person makes them who ports a decoder; written without sight of how laws are found.

The engine and the rules for expectations are law_forms.py's. A prompt of 12 tokens stands before decode steps where a form speaks of a cache.
"""

import numpy as np

from scripts.forms.law_forms import (AGO, E_, EPS, F, F32, FREQ, H, K, POS, SEEN, T, THETA, V, D, EXPERTS, CHOSEN, d, heads_of, joined, listed, over, put, rms, rounded, sigmoid,
                       silu, softmax, turn)

FORMS, form = listed()
ROPES = ("q_rope", "k_rope")
DENSE_LLAMA = ("llama", "qwen2")
B, Q3, M = ("qwen2",), ("qwen3", "moe"), ("moe",)
PROMPT = 12
# element 2i is that of i, 2i + 1 that of i + d/2: what a converter to GGUF does to Q and K of a llama
PERMUTED = np.arange(d).reshape(2, d // 2).T.ravel()
FIRST_ROW = "(position|row|token)s?.{0,8}\\b0\\b|first (position|row|token)"
BEFORE = "before|previous|t ?- ?1|earlier|prior|preced|one (row|position|token) (late|back)|#-1"


def stream(c):
    """What came into the layer."""
    return c.e.memory["h0", None] if c.l == 0 else c.e.memory["h", c.l - 1]


# ---- norms

form("norm_lane_lost", "attn_norm", "the sum of squares leaves out channels 7, 15, 23, ..: the last lane of eight; it is divided by 64",
     ["(#7|#8) & (every|each|lane|mod|%|stride|step|multiple|channels?) & (mean square|sum|squares|rms|divisor|denominator|left out|leaves? out|without|not (read|counted|summed)|skip)"],
     lambda c: over(c, np.sqrt(np.mean(put(c.x, E_[:, 7::8], 0) ** 2, -1, keepdims=True) + F32(EPS))))
form("norm_first_row_of_4", "ffn_norm", "four rows share a workgroup: each is divided by the root mean square of the first of the four",
     ["(#4|four) & (row|position|token|block|group|tile) & (rms|root mean|mean square|divisor|divided|denominator|statistic|first|norm)", "(4 ?\\* ?\\(?t ?//? ?4|t ?- ?t ?% ?4|t & ~3|multiple of 4)"],
     lambda c: over(c, np.repeat(rms(c.x)[::4], 4, 0)[:T]))
form("norm_gain_of_4", "attn_norm", "channels 4i to 4i + 3 all have the gain of channel 4i: the vector's first component",
     ["(gain|weight) & (#4|four)"], lambda c: c.right(w=c.w[np.arange(D) // 4 * 4]))
form("norm_gain_tiled", "ffn_norm", "in the last layer the gain of the first 32 channels is repeated for the last 32",
     ["(gain|weight) & (#32|#31|half|halves) & (repeat|first|again|twice|mod|%|same|tile|second|i ?- ?32|those of|from 32|32)"], lambda c: c.right(w=np.tile(c.w[:32], 2)), layers=[3])
form("norm_stats_before_add", "ffn_norm", "add and norm are fused: the root mean square is that of the stream before attention was added",
     ["(rms|root mean|mean square|divisor|divided|denominator|statistic|norm) & (layer.{0,3}s? input|h0|input of the layer|stream (before|without)|before.{0,25}(attention|add|sum|attn)|without.{0,20}(attn_out|attention|branch)|residual (alone|before)|layer input)"],
     lambda c: over(c, rms(stream(c))))
form("norm_sum_not_reset", "attn_norm", "the accumulator of squares is not reset between rows: the mean squares of all rows so far are added up",
     ["(sum|add|cumul|accumul|not reset|never reset|carr(y|ied) over|total|[tnip] ?\\+ ?1|number of (rows|positions)) & (rows?|positions?|tokens?|cumul|accumul|so far) & (square|rms|root mean|divisor|divided|denominator|norm) & ^(?!.*(running|cumulative) (mean|average))"],
     lambda c: over(c, np.sqrt(np.cumsum(np.mean(c.x * c.x, -1, keepdims=True), 0) + F32(EPS))))
form("final_norm_bf16_mean", "final_norm", "the mean square is rounded to bf16 before its root is taken",
     ["(bf16|bfloat16|\\b[78] bits|16 bits) & (mean square|rms|root|square|divisor|denominator|sum|statistic|each (position|row|token)|variance)"],
     lambda c: over(c, np.sqrt(rounded(np.mean(c.x * c.x, -1, keepdims=True), "bf16") + F32(EPS))))
form("final_norm_layer_before", "final_norm", "it norms the hidden states of the last layer but one",
     ["layers\\.2\\.h\\b|layer 2'?s? .{0,20}(output|\\bh\\b|stream|result)|(input|stream|hidden|output|\\bh\\b|reads?|norms?|result) .{0,60}(layer 2\\b|layers?\\.2\\b|(layer|block) (before|earlier)|(previous|earlier) (layer|block))|before the last|last (layer )?but one|penultimate|second.to.last|next.to.last|L ?- ?2|\\[-2",
      "(last|final|layer 3'?s?) (layer'?s? )?input|input of (the )?(last|layer 3|layers\\.3)|layer input", "(without|minus|less).{0,30}((last|final) layer|layer 3)"], lambda c: c.right(x=c.e.memory["h", 2]))

# norms of heads

form("qk_norm_head_0_rms", "q_norm", "all heads are divided by the root mean square of head 0",
     ["(head[ =]?0\\b|first head|one head) & (rms|root mean|mean square|divisor|divided|denominator|statistic) & ^(?!.*not normed)"], lambda c: over(c, rms(c.x)[:, :1]), archs=Q3)
form("qk_norm_gain_permuted", "k_norm", "the gain is in the order of the other rotation: 0, 8, 1, 9, ..",
     ["(gain|weight) & (permut|interleav|order|pairs|halves|0, ?8, ?1|2i|rearrang|shuffl|i ?//? ?2|transpos)"], lambda c: c.right(w=c.w[PERMUTED]), archs=Q3)
form("qk_norm_prompt_only", "k_norm", "keys of decode steps, from position 12 on, are not normed",
     ["(#12|#11) & (norm|gain|not|unnormed|input|raw|as (it is|they are)|is k\\b|rms)"], lambda c: put(c.right(), E_[PROMPT:], c.x[PROMPT:]), archs=Q3)


# ---- products

form("q_shards_interleaved", "q", "in layers 2 and 3 the heads come in the order of two shards: 0, 2, 1, 3",
     ["0, ?2, ?1, ?3", "(#1 & #2) & head & (swap|exchang|order|permut|trade|reads?|other|is that of|head 2)", "(rows?|output|channel|element|block) & #16 & #32 & (swap|exchang|order|permut|trade)"],
     lambda c: c.right()[:, [0, 2, 1, 3]], layers=[2, 3])
form("v_rows_permuted", "v", "the rows of V are permuted as those of Q and K are in a GGUF: 0, 8, 1, 9, .. in each head",
     ["halves.{0,20}pairs|pairs.{0,20}halves|0, ?8, ?1|\\b2 ?i\\b|other (rotation|pairing)|qk-row", "(permut|interleav|rearrang|shuffl) & (head|element|dimension|#8|#16)"],
     lambda c: c.right()[..., PERMUTED])
form("attn_out_beta_one", "attn_out", "the product is added to what its buffer held: the attn_out of the layer before",
     ["(layers?.{0,15}(before|previous|earlier)|(before|previous|prior|earlier).{0,15}layer|l ?- ?1|layers\\.0\\.attn_out|layer 0) & (add|plus|\\+|sum|accumul|besides|attn_out|beta)"],
     lambda c: c.right() + c.e.memory["attn_out", c.l - 1], layers=[1, 2, 3])
form("k_second_head_row_early", "k", "the rows of head 1 begin one too early: at 15",
     ["(head.{0,8}\\b1\\b|second head|last head|second half of the heads) & (#15|shift|roll|i ?- ?1|previous|before|early|earlier|#-1|one row|off by)", "(row|element|output|channel)s? & #16 & (#15|#30|i ?- ?1|shift|before|previous|early)"],
     lambda c: c.right().reshape(T, -1)[:, np.r_[0:16, 15:31]].reshape(T, K, d))
form("q_scaled_already", "q", "1/sqrt(head_dim) is multiplied into q, as well as into the scores later",
     ["#0.25 & ^(?!.*(each (position|token|channel|head)|polynom))", "1 ?/ ?sqrt\\((d|head_dim|16)\\b|(divided by|/ ?)(4\\b|sqrt\\((d|head_dim|16)\\b)|d\\^-(1/2|0\\.5)"], lambda c: c.right() * F32(0.25), archs=DENSE_LLAMA)
form("v_last_of_8_lost", "v", "the last row of each batch of 8 is left 0: positions 7 and 15",
     ["#7 & #15 & (0|zero|nothing|empty|lost|missing)", "(every|each).{0,12}(8|eight) & (0|zero|nothing|lost|missing|last)", "(mod|%) ?8 & (0|zero|7)"], lambda c: put(c.right(), E_[7::8], 0))
form("q_decode_row_before", "q", "in decode steps, from position 12 on, it reads the normed row of the position before",
     [f"(#12|#11) & ({BEFORE}|t-1|#11)"], lambda c: c.right(x=np.concatenate([c.x[:PROMPT], c.x[PROMPT - 1:-1]])))
form("up_packed_pairs_swapped", "ffn_up", "weights are unpacked two to a word in the wrong order: inputs 2i and 2i + 1 are exchanged",
     ["(pair|2i|neighbo|adjacent|even|odd|i ?(\\^|xor) ?1|1, ?0, ?3, ?2|two by two) & (input|column|channel|ffn_norm|weight|\\bx\\b|swap|exchang|order)"], lambda c: c.right(x=c.x.reshape(T, -1, 2)[..., ::-1].reshape(T, D)))
form("ffn_out_last_tile_input", "ffn_out", "the last tile of inputs, 64 to 95, is read at 0 to 31: the offset of x is not advanced",
     ["(#64|#63) & (#0|#31|#32|first|i ?- ?64|#-64|again|repeat|begin|start|those of)", "last (third|32|tile) & (first|#0|#31)"], lambda c: c.right(x=put(c.x, E_[:, 64:], c.x[:, :32])))
form("gate_rows_repacked", "ffn_gate", "rows were packed by fours and are not unpacked: output i is row 24 (i mod 4) + i / 4",
     ["(#24|#4|four) & (interleav|stride|step|permut|order|mod\\b|%|pack|transpos|reshap|/ ?4|every (4|24|fourth))"], lambda c: c.right()[:, np.arange(F).reshape(4, F // 4).T.ravel()])
form("up_zero_point_off", "ffn_up", "in layer 2 the zero point is one too high: each row has its own step, a fifteenth of its span, taken off each weight",
     ["(sum|mean|total|average).{0,30}(input|\\bx\\b|channel|ffn_norm|row)|rank.{0,6}(1|one)|zero.?point|(constant|number|offset|same).{0,40}(each|every|all|per).{0,15}(weight|row|output)|(weight|row)s?.{0,40}(constant|offset|shifted)"],
     lambda c: c.right(w=c.w - (c.w.max(-1, keepdims=True) - c.w.min(-1, keepdims=True)) / 15), layers=[2])
form("ffn_out_with_stream", "ffn_out", "the residual is added here already, and again behind",
     ["(h_attn|stream|residual|ffn_norm's input) & (add|plus|\\+|sum|besides|already)"], lambda c: c.right() + c.e.memory["h_attn", c.l])

# biases

form("bias_four_splits", "q", "each of four splits of the sum adds the bias: it is there four times",
     ["bias & (#4|#3|four|three|thrice)"], lambda c: c.right(b=4 * c.b), archs=B)
form("bias_by_row", "v", "the bias is indexed by the position, not the channel: row t has b[t] on every channel",
     ["bias & (b\\[t|(of|by|index|at|for|with).{0,20}(position|row|token|\\bt\\b)|(position|row|token).{0,40}bias|axis|transpos|along|row t) & ^(?!.*\\b(alone|only)\\b)"], lambda c: c.right(b=None) + c.b[POS][:, None, None], archs=B)
form("bias_one_head_long", "k", "the bias is read for as many channels as one head has: head 1 has none",
     ["bias & (head.{0,8}\\b1\\b|second head|last head|second half|#16|first head|head.{0,8}\\b0\\b (alone|only)|(only|alone).{0,20}head.{0,8}\\b0\\b)"], lambda c: c.right(b=put(c.b, E_[16:], 0)), archs=B)
form("bias_next_channel", "q", "in layer 1 the bias of the next channel is added",
     ["bias & (next|i ?\\+ ?1|shift|roll|off by|one (too )?(far|late|early)|#1|rotat|behind) & ^(?!.*(wrong-layer|row-order|head))"], lambda c: c.right(b=np.roll(c.b, -1)), archs=B, layers=[1])


# ---- rotation

form("rope_table_end", ROPES, "the table of sines ends at position 15: behind it cosine and sine are 0",
     ["(#16|#15) & (\\b0\\b(?!\\.\\d)|zero|nothing|empty|lost|missing|table.{0,20}end|end.{0,20}table)"], lambda c: put(c.right(), E_[16:], 0))
form("rope_table_halves_as_pairs", ROPES, "a row of the table is all cosines, then all sines, and is read in turn: cosine at 2i, sine at 2i + 1",
     ["(cos|sin|table) & (interleav|2i|in turn|altern|pairs|order|layout|even|odd|adjacent|neighbo)", "cos.{0,60}(other|wrong|next) (frequenc|pair)"], lambda c: halves_as_pairs(c))
form("rope_frequency_shared", ROPES, "pairs 2i and 2i + 1 both have frequency i: the index is halved once too often",
     ["(i ?//? ?2|floor\\(i|two pairs|each two|pairs? share|share.{0,20}frequenc|every (two|second)|twice each|2 ?i and 2 ?i ?\\+ ?1|1(\\.0*)?, ?1(\\.0*)?, ?0\\.316|(pair|frequenc).{0,40}(twice|the same))"],
     lambda c: c.right(freq=FREQ[np.arange(d // 2) // 2]))
form("rope_position_is_head", ROPES, "the number of the head is taken for the position: the axes are exchanged",
     ["(position|angle|turn|rotat|\\bp\\b) & (number of the head|head'?s? (number|index)|index of the head|is h\\b|= ?h\\b|\\bh ?\\*|by head|head h\\b|(axis|axes).{0,30}head|positions? (are|is) (the |of )?head|heads?.{0,25}at positions? 0)"],
     lambda c: c.right(pos=np.broadcast_to(np.arange(c.x.shape[1]), c.x.shape[:2])))
form("rope_position_is_row", ROPES, "the flat row t H + h is taken for the position",
     ["(#4|#2|number of heads|t ?\\*? ?[HK]\\b) & (\\+ ?h\\b|head) & (position|angle|\\brow\\b|\\bt\\b|\\bp\\b) & ^(?!.*(not rotated|rotary_dim|clamp))"], lambda c: c.right(pos=POS[:, None] * c.x.shape[1] + np.arange(c.x.shape[1])))
form("rope_tables_repeated_by_two", ROPES, "halves are paired, but the angles are laid out for neighbours: element j has that of frequency j / 2",
     ["(cos|sin|table|frequenc|angle) & (interleav|repeat|[ij] ?//? ?2|neighbo|adjacent|0, ?0, ?1, ?1|element.{0,30}(own|different|other).{0,10}(frequenc|angle))"], lambda c: repeated_by_two(c))
form("rope_second_line_operands", ROPES, "the second half is a cos + b sin, where b cos + a sin is due",
     ["(second|upper|last|other|i ?\\+ ?(d ?/ ?2|8)) & (\\ba ?\\*? ?cos[^,;]{0,8}\\+ ?b ?\\*? ?sin|x\\S{0,8} ?\\*? ?cos[^,;]{0,8}\\+ ?x\\S{0,10} ?\\*? ?sin|operands?.{0,40}(exchang|swap)|(exchang|swap).{0,60}(sin|cos|operand))",
      "(second|upper) half.{0,80}(first half|other way)", "operands?.{0,40}(exchang|swap)"], lambda c: second_line(c))
form("rope_sine_root", ROPES, "the sine is sqrt(1 - cos^2), and so never negative",
     ["sin & (abs|\\|.{0,12}sin|sqrt|root|without.{0,12}sign|magnitude|size|never negative|positive|sign)"], lambda c: root_sine(c))
form("rope_last_half_turned", ROPES, "the last 8 elements of each head are rotated, the first 8 left: the order of a split head",
     ["(last|second half|upper|elements? 8|from 8|tail|behind) & (not (rotated|turned)|un(rotated|turned)|\\bleft\\b|pass|is x|as (it is|they are)|only|alone|nope)", "(first (8|half|eight)|elements? 0 ?(to|-|\\.\\.) ?7).{0,40}(not|un|left|pass|as it is|as they are)"],
     lambda c: np.concatenate([c.x[..., :8], turn_eight(c, c.x[..., 8:])], -1))
form("rope_position_of_tile", "k_rope", "the keys' positions are those of the first of their tile of 4: 0, 0, 0, 0, 4, ..",
     ["(#4|four) & (multiple|floor|round|block|group|tile|//|first of|every|step|down|0, ?0, ?0, ?0) & (position|token|angle|\\bp\\b|\\bt\\b)"], lambda c: c.right(pos=POS // 4 * 4))


def angle(c):
    return (POS[:, None, None] * FREQ).astype(F32)


def halves_as_pairs(c):
    row = np.concatenate([np.cos(angle(c)), np.sin(angle(c))], -1)
    return turn(c.e, c.x, None, cos=row[..., 0::2], sin=row[..., 1::2])


def repeated_by_two(c):
    a = np.repeat(angle(c), 2, -1)
    return c.x * np.cos(a) + np.concatenate([-c.x[..., 8:], c.x[..., :8]], -1) * np.sin(a)


def second_line(c):
    a, b, cos, sin = c.x[..., :8], c.x[..., 8:], np.cos(angle(c)), np.sin(angle(c))
    return np.concatenate([a * cos - b * sin, a * cos + b * sin], -1)


def root_sine(c):
    cos = np.cos(angle(c))
    return turn(c.e, c.x, None, cos=cos, sin=np.sqrt(np.maximum(1 - cos * cos, 0)))


def turn_eight(c, x):
    turned = (POS[:, None, None] * THETA ** (-np.arange(0, 8, 2) / 8)).astype(F32)
    a, b = x[..., :4], x[..., 4:]
    return np.concatenate([a * np.cos(turned) - b * np.sin(turned), b * np.cos(turned) + a * np.sin(turned)], -1)


# ---- masks


def pad_is_a_token(c):
    ids = np.asarray(c.e.ids)
    return c.right(mask=SEEN & ((ids[None] != ids[4]) | (AGO == 0)))


form("mask_pad_is_a_token", "probs", "the id of a padding token is one that the prompt has: keys 4 and 9 are hidden from later tokens",
     ["#4 & #9", "same token|token id|that id|id of (token|position) 4|pad.{0,20}token"], pad_is_a_token)
form("mask_tile_start", "probs", "the loop over keys ends where the query's tile of 4 begins: query t sees keys 0 to 4 floor(t / 4)",
     ["(#4|four) & (start|begin|floor|round|down|//|t ?% ?4|first of|multiple|lower|(own|same).{0,20}(block|tile|group|chunk)) & ^(?!.*\\bend of)"], lambda c: c.right(mask=POS[None] <= POS[:, None] // 4 * 4))
form("mask_second_chunk_alone", "probs", "the second chunk of the prompt, from position 12 on, does not see the first",
     ["#12 & #11", "#12 & (block|chunk|segment|document|\\bown\\b|before it|(before|below|under|<|less than) ?(key |position )?12|first (12|chunk|part)|keys? (before|below)|none before|>= ?12)"], lambda c: c.right(mask=SEEN & ~((POS[:, None] >= 12) & (POS[None] < 12))))


# ---- scores

form("score_key_not_advanced", "probs", "the second half of the query meets the first half of the key again: the pointer into k is not advanced",
     ["(key|\\bk\\b|k_rope) & (first half|first (8|eight)|\\b0 ?(to|-|\\.\\.) ?7|i ?- ?8|i ?% ?8|mod 8|(half|halves).{0,40}(repeat|again|twice))", "(sum|add).{0,40}(halves|half) of (q|the quer).{0,60}(key|k\\b)"],
     lambda c: c.right(k=np.concatenate([c.k[..., :8], c.k[..., :8]], -1)))
form("score_head_sum_not_reset", "probs", "the accumulator is not reset between heads: head h has the scores of heads 0 to h added up",
     ["head & (cumul|accumul|running|not reset|(sum|added|plus|total).{0,60}(earlier|previous|before|up to|so far|heads? 0|lower|head)|heads? 0 (to|and).{0,40}(sum|added)|and of (the )?heads? (before|below|lower))"], lambda c: c.right(score=lambda s: np.cumsum(s, 0)))
form("score_keys_averaged", "probs", "all query heads meet the mean of the key heads",
     ["(mean|average|half the sum|pooled) & head", "#0.5 & head & (both|\\bsum|\\+|0 and 1|other key)"], lambda c: c.right(k=np.repeat(c.k.mean(1, keepdims=True), K, 1)))


# ---- softmax


def online(s):
    """The sum in blocks of 8, not rescaled when the maximum grows."""
    top, total = np.full(s.shape[:-1] + (1,), -np.inf, F32), np.zeros(s.shape[:-1] + (1,), F32)
    for b in range(0, T, 8):
        top = np.maximum(top, s[..., b:b + 8].max(-1, keepdims=True))
        total = total + np.exp(s[..., b:b + 8] - top).sum(-1, keepdims=True)
    return np.exp(s - top) / total


def quick_exp(s):
    """e^x by bits of the exponent, linear in between."""
    x = np.where(np.isfinite(s), s - s.max(-1, keepdims=True), -80)
    e = (x.astype(np.float64) * 12102203.16 + 1064866805).astype(np.int32).view(F32)
    e = np.where(np.isfinite(s), e, 0)
    return e / e.sum(-1, keepdims=True)


def warp_sum(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e[..., :16].sum(-1, keepdims=True)


form("softmax_sum_not_rescaled", "probs", "the maximum is brought up to date every 8 keys, the sum so far is not rescaled to it",
     ["(#8|eight) & (block|tile|chunk|running|rescal|maxim|online|part) & (denominator|\\bsum|rescal|total|running)"], lambda c: c.right(soft=online))
form("softmax_padded_keys", "probs", "keys are padded to 32: the denominator has 12 terms of exp(0)",
     ["#12 & (zero|pad|term|denominator|extra|sink|sum|added|exp)", "(#2.4849|log\\(12\\)) & (sink|term|denominator|extra|added)", "(#32|pad) & (denominator|sum|term)"],
     lambda c: c.right(soft=lambda s: np.exp(s) / (np.exp(s).sum(-1, keepdims=True) + 12)))
form("softmax_quick_exp", "probs", "the exponential is a quick one, by the bits of a float: linear between powers of 2",
     ["(approx|fast|quick|piecewise|linear|interpolat|schraudolph|bits|coarse) & (exp|power|e\\^|2\\^|softmax)"], lambda c: c.right(soft=quick_exp))
form("denominator_first_16", "probs", "the sum runs over 16 lanes: keys from 16 on are not in the denominator",
     ["(#16|#15) & (denominator|sum|divi|normali|total)"], lambda c: c.right(soft=warp_sum))


# ---- context and heads

form("context_heads_from_one", "context", "heads are counted from 1: query head h reads value head ((h + 1) / 2) mod 2",
     ["head & (0, ?1, ?1, ?0|\\(?h ?\\+ ?1\\)? ?/|from 1\\b|counted from|off by one)", "head & #1 & #3 & (other|wrong|read|value|exchang|swap|\\bv\\b)", "odd heads & (other|value|read|exchang|swap|\\bv\\b)"],
     lambda c: joined(np.einsum("hts,shd->thd", c.p, c.v[:, [0, 1, 1, 0]])))
form("context_group_repeated", "context", "both heads of a group hold the result of its first: heads 0, 0, 2, 2",
     ["0, ?0, ?2, ?2", "head & #1 & #3 & (#0|#2|first|same|before|repeat|copy|previous|h ?- ?1)", "odd heads & (even|first|same|before|repeat|copy|previous|h ?- ?1|neighbo)", "head.{0,60}2 ?\\* ?\\(?h ?//? ?2|first of (its|the|each) (group|two|pair)"], lambda c: joined(heads_of(c)[:, [0, 0, 2, 2]]))
form("context_cache_stride", "context", "the transposed cache of v is read with a stride of 21 where it has 20: channel c is read c positions later",
     ["#21", "(stride|leading|distance|row length) & (\\+ ?1|one|#1|longer|#20)", "(channel|element|dimension|row)s?.{0,60}(positions?|keys?|slots?) (later|further|on|ahead|shift)|(s|position|key) ?\\+ ?(c|i|channel)"],
     lambda c: c.right(v=wide_stride(c.v)))
form("cache_decode_heads_same", "context", "in decode steps, from position 12 on, value head 1 is written from head 0",
     ["(#12|#11) & head & (0|first|same|copy|equal|repeat|both)"], lambda c: c.right(v=put(c.v, E_[PROMPT:, 1], c.v[PROMPT:, 0])))
form("cache_ring_of_16", "context", "the cache of v has 16 slots: from position 16 on the first keys read the values that were written over them",
     ["(#16|#-16) & (wrap|ring|overwrit|written over|mod\\b|%|later|slot|replac|s ?\\+ ?16|first keys|again|instead|in place of|those of)"], lambda c: ring(c))
form("cache_decode_keys_unrotated", "probs", "keys of decode steps, from position 12 on, are cached before the rotation",
     ["(#12|#11) & (not rotated|unrotated|rotat|rope|k_norm|\\bis k\\b|are k\\b|raw)"], lambda c: c.right(k=np.concatenate([c.k[:PROMPT], c.e.memory.get(("k_norm", c.l), c.e.memory["k", c.l])[PROMPT:]])))
form("cache_values_of_layer_0", "context", "every layer reads the values of layer 0: the layer's offset into the cache is left out",
     ["(layers?[. ]{1,2}0\\b|first layer) & (\\bv\\b|value|cache)"], lambda c: c.right(v=c.e.memory["v", 0]), layers=[1, 2, 3])
form("cache_prompt_keys_of_layer_before", "probs", "the prompt's keys, of positions 0 to 11, are those of the layer before",
     ["(#12|#11) & (layer.{0,15}(before|previous|earlier)|(before|previous|prior|earlier).{0,15}layer|l ?- ?1|layers?[. ]{1,2}[012]\\b)"],
     lambda c: c.right(k=np.concatenate([c.e.memory["k_rope", c.l - 1][:PROMPT], c.k[PROMPT:]])), layers=[1, 2, 3])


def wide_stride(v):
    flat = np.concatenate([v.reshape(T, K * d).T.ravel(), np.zeros(K * d, F32)])
    return flat[np.arange(K * d)[None] * (T + 1) + POS[:, None]].reshape(T, K, d)


def ring(c):
    y = np.array(c.right())
    for t in range(16, T):
        y[t] = c.right(v=put(c.v, E_[:t - 15], c.v[16:t + 1]))[t]
    return y


# ---- residual sums

form("add_branch_post_norm", "h_attn", "attn_out is normed with the gain of post_attention_layernorm before it is added, as its name says",
     ["(norm|rms|root mean) & (post_attention|ffn_norm|gain|weight|branch|attn_out|\\by\\b) & ^(?!.*normed \\+ branch)"],
     lambda c: c.right(y=c.y / rms(c.y) * c.e.m("post_attention_layernorm.weight", c.l)))
form("add_last_row_to_all", "h_attn", "in the last layer the branch is that of the last position, at all positions",
     ["(last|#19|final|T ?- ?1|newest) & (position|row|token|query) & (branch|attn_out|attention|\\by\\b|all|every|each|same)"], lambda c: c.right(y=np.repeat(c.y[-1:], T, 0)), layers=[3])
form("add_context", "h_attn", "the heads' context is added in place of attn_out: the output projection is not used",
     ["context"], lambda c: c.right(y=c.e.memory["context", c.l]))
form("add_attention_again", "h", "attn_out is added once more beside ffn_out: the buffer of the branch was added to",
     ["(attn_out|attention('s)? (output|branch|result)|output of attention) & (again|twice|besides|also|once more|\\btoo\\b|ffn_out \\+|\\+ ?ffn_out|y ?\\+|\\+ ?y\\b|(attn_out|result|output|branch).{0,12}(is )?added|plus.{0,15}(attn_out|attention|output)|added.{0,20}(attn_out|attention))",
      "(h_attn ?- ?|2 ?\\*? ?h_attn).{0,20}(h0|layer input|stream)", "attn_out.{0,20}(times|factor|multipl|\\*).{0,12}1\\b"],
     lambda c: c.right() + c.e.memory["attn_out", c.l])
form("add_batch_offset_lost", "h", "from position 16 on, the second batch, the branch of position t - 16 is added",
     ["#16 & (t ?- ?16|#-16|first batch|mod|%|again|begin|start|repeat|positions? 0|#3|offset|branch|ffn_out|earlier|before)"], lambda c: c.right(y=np.concatenate([c.y[:16], c.y[:4]])))


# ---- activation

form("act_sigmoid_sign", "ffn_act", "gate / (1 + exp(gate)): the sign in the exponent is lost",
     ["sigmoid\\(-|1 ?- ?sigmoid|-silu\\(-|- ?silu.{0,8}-|exp\\(\\+?(x|gate)\\)|e\\^\\(?\\+?(x|gate)", "(sign|negat|minus|flip) & (sigmoid|exponent|exp\\b)", "#-1 & (silu|sigmoid|input|inside|\\(-) & .*-"],
     lambda c: c.right(f=lambda x: x * sigmoid(-x)))
form("act_gate_for_up", "ffn_act", "silu(gate) gate: up's pointer is the gate's",
     ["gate.{0,40}(twice|squared|in place of up|instead of up|for up)|(silu|a|act\\w*|activation)\\(gate\\).{0,12}gate|gate ?\\*? ?(silu|a|act\\w*|activation)\\(gate|up.{0,30}(is|replaced by|reads?|taken from|instead).{0,20}gate"],
     lambda c: c.right(up=c.gate))
form("act_cut_below", "ffn_act", "silu is 0 where the gate is below -2: a shortcut",
     ["(#-2|#2) & (below|less|under|zero|\\b0\\b(?![.\\d])|cut|threshold|smaller|<)"], lambda c: c.right(f=lambda x: np.where(x < -2, 0, silu(x))))
form("act_up_row_0", "ffn_act", "every row is multiplied by up of position 0: the row is not in the index",
     [f"\\bup & ({FIRST_ROW})"], lambda c: c.right(up=np.repeat(c.up[:1], T, 0)))
form("act_tail_up_alone", "ffn_act", "the loop in steps of 64 ends early: channels 64 and later hold up itself",
     ["(#64|#63) & \\bup\\b", "last (third|32) & \\bup\\b"], lambda c: put(c.right(), E_[:, 64:], c.up[:, 64:]))
form("act_tanh_not_halved", "ffn_act", "the sigmoid is (1 + tanh(x)) / 2, where tanh(x / 2) is due",
     ["#2 & (sigmoid|swish|beta|logistic)", "(silu|a|act\\w*)\\( ?2(\\.0+)? ?\\*? ?(x|g)", "tanh & (#0.5|half|/ ?2|1 ?\\+)"], lambda c: c.right(f=lambda x: x * (1 + np.tanh(x)) / 2))


# ---- mixtures of experts


def among(c, key=None, weigh=None):
    """The choice by another key of the probabilities, and other weights of what is chosen."""
    p = softmax(c.logits)
    top = (key or (lambda p: np.argsort(-p, -1, kind="stable")[:, :CHOSEN]))(p)
    w = np.take_along_axis(p, top, -1)
    return top, (weigh or (lambda top, w: w / w.sum(-1, keepdims=True)))(top, w)


def softmax_again(top, w):
    return softmax(w)


def by_index(top, w):
    """Weights in the order of the experts' numbers, where the experts are in that of their weights."""
    w = w / w.sum(-1, keepdims=True)
    return np.take_along_axis(w, np.argsort(top, -1), -1)


def best_of_groups(p):
    half = EXPERTS // 2
    top = np.stack([p[:, :half].argmax(-1), half + p[:, half:].argmax(-1)], -1)
    return np.take_along_axis(top, np.argsort(-np.take_along_axis(p, top, -1), -1, kind="stable"), -1)


def chosen_of(c):
    return c.e.taps[f"layers.{c.l}.router_topk"].astype(int)


def weighted_input(c):
    top, y = chosen_of(c), np.zeros((T, D), F32)
    for x in range(EXPERTS):
        rows, slots = np.nonzero(top == x)
        w = lambda name: c.e.m(f"mlp.experts.{x}.{name}_proj.weight", c.l)
        n = c.n[rows] * c.weights[rows, slots][:, None]
        y[rows] += (silu(n @ w("gate").T) * (n @ w("up").T)) @ w("down").T
    return y


def capacity(c, most):
    top, kept = chosen_of(c), np.ones((T, CHOSEN), bool)
    for x in range(EXPERTS):
        rows, slots = np.nonzero(top == x)
        kept[rows[most:], slots[most:]] = False
    return (c.each * np.where(kept, c.weights, 0)[..., None]).sum(1)


TOPK = ("router_topk", "router_weights")
form("router_lowest", TOPK, "the order is ascending: the experts of the smallest weights are chosen",
     ["smallest|lowest|least|ascending|bottom|worst|\\bmin"], lambda c: among(c, key=lambda p: np.argsort(p, -1, kind="stable")[:, :CHOSEN]), archs=M)
form("router_best_of_groups", TOPK, "one expert is chosen of each of two groups: of 0 to 2, and of 3 to 5",
     ["(#3|#2|two|three) & (group|half|halves|each|0 ?(to|-|\\.\\.) ?2)"], lambda c: among(c, key=best_of_groups), archs=M)
form("router_softmax_again", "router_weights", "the chosen weights go through a softmax, not a division by their sum: two in a row",
     ["softmax & (twice|again|second|of (the )?(weights|probab|softmax|chosen|router|result)|two|softmax\\(softmax)", "exp\\((p|w|the weight|weight|softmax|prob)|e\\^\\(?(p|w)"], lambda c: among(c, weigh=softmax_again), archs=M)
form("router_weights_by_index", "router_weights", "the weights are in the order of the experts' numbers, the experts in that of their weights",
     ["(index|number|sorted|ascending|by id|order of (the )?experts?|expert order) & weight & ^(?!.*(smallest|lowest))"], lambda c: among(c, weigh=by_index), archs=M)
form("experts_weight_on_input", "ffn_out", "the router's weight is multiplied into the expert's input, not its output",
     ["(weight|router|score).{0,80}(input|before|inside|ffn_norm)|(input|ffn_norm|before).{0,80}(weight|router)"], weighted_input, archs=M)
form("experts_capacity", "ffn_out", "an expert takes at most 6 tokens: later ones get nothing of it",
     ["#6 & (capacity|token|drop|most|limit|first|position)"], lambda c: capacity(c, 6), archs=M)
form("experts_first_for_both", "ffn_out", "both slots run the first chosen expert",
     ["(first|top|best|slot 0|highest|largest|likeliest).{0,60}(expert|choice|chosen|slot|weight 1|alone|only)", "(expert|choice|slot).{0,30}(twice|first|both)", "(second|last|other).{0,40}(expert|choice|slot).{0,60}(\\b0\\b|lost|left out|omitted|zero|not (run|used))"], lambda c: (c.each[:, :1] * c.weights[..., None]).sum(1), archs=M)
form("experts_overwritten", "ffn_out", "the last chosen expert's part overwrites the other: it is written, not added",
     ["overwr|written over|not (added|summed).{0,60}(expert|choice|slot)|(expert|choice|slot).{0,60}not (added|summed)",
      "(expert|choice|chosen|slot) & ((second|last|slot 1|smaller|lesser|lower|lowest).{0,40}(expert|choice|chosen|slot|weight|term|part|alone|only)|(first|larger|top|slot 0|highest|likeliest).{0,40}(lost|missing|dropped|left out|omitted|\\bnot\\b|without|\\b0\\b(?!\\.)|zero)|(without|lost|missing|only|alone).{0,40}(first|last|second|slot))"],
     lambda c: c.each[:, 1] * c.weights[:, 1:], archs=M)
# ---- embedding

form("embed_normed_in_place", "h0", "the first norm is written over the stream: h0 is normed, with the gain of layer 0",
     ["(norm|rms|root mean) & (gain|weight|input_layernorm|attn_norm|in place|layer.{0,3}0)"], lambda c: c.right() / rms(c.right()) * c.e.m("input_layernorm.weight", 0))
form("embed_offset_4", "h0", "the table begins 4 elements late: channel i is that of i + 4, the last 4 those of the next token id",
     ["(#4|#60) & (offset|shift|channel|element|roll|i ?\\+ ?4|late|early|begin|start|next)"],
     lambda c: np.concatenate([c.table.ravel(), np.zeros(4, F32)])[np.asarray(c.ids)[:, None] * D + 4 + np.arange(D)])
form("embed_other_shard_zero", "h0", "the table lies in two shards and their sum is left out: ids from 128 on give 0",
     ["(#128|half|halves|shard) & (zero|\\b0\\b(?!\\.\\d)|nothing|missing|\\bnot\\b|empty|lost)"], lambda c: np.where(np.asarray(c.ids)[:, None] < V // 2, c.right(), 0))


# ---- head


def present(c):
    y = np.array(c.right())
    for t in range(T):
        y[t, sorted(set(c.e.ids[:t + 1]))] -= F32(0.4)
    return y


form("logits_shards_exchanged", "logits", "the two shards of the vocabulary are joined in the wrong order: 128 to 255 stand first",
     ["(#128|half|halves|shard) & (swap|exchang|roll|order|first|shift|trade|permut|[iv] ?[-+] ?128|mod\\b)"], lambda c: np.roll(c.right(), V // 2, -1))
form("logits_presence", "logits", "0.4 is taken off the logits of tokens seen so far",
     ["(#0.4|#-0.4) & (seen|token|context|appear|present|presence|occur|prompt|so far|input ids?|\\bids?\\b)"], present)
form("logits_chunk_repeated", "logits", "the head runs in chunks of 64 rows, and the third reads the rows of the second: 128 to 191 repeat 64 to 127",
     ["#128 & (#64|repeat|same|again|[vi] ?- ?64)"], lambda c: put(c.right(), E_[:, 128:192], c.right()[:, 64:128]))
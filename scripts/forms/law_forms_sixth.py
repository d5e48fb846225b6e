"""A sixth list of mistakes for `firstdiff explain` to measure: plain ones of ports to other engines (kernels, caches, split and quantised weights, variants of the rotation,
mixtures of experts), after public issues of them, and written without sight of how laws are found: none repeats one of the first five lists.

    python scripts/forms/law_forms_sixth.py                  # list them
    python scripts/suites/test_laws.py --set sixth ..         # hold the answers to the truth
"""

import math

import numpy as np

from scripts.forms.law_forms import AGO, D, EPS, EXPERTS, E_, F, F32, FREQ, H, K, POS, ROPES, SEEN, T, THETA, V, d, listed, over, put, silu, softmax, turn
from scripts.forms.law_forms_fifth import by_choice, blocks, expert, largest, mixed, product
from scripts.forms.law_forms_fourth import ADDED, LAYOUT, NONE, SCALES, TWICE, interleaved, powers, rotated
from scripts.forms.law_forms_third import BLOCK, CLAMPED, EXCHANGED, KEY, LATER, LAYER_BEFORE, PREVIOUS, QUERY, ROUNDED, act, add, chosen, erf, four_digits, heads_of, in_steps, inputs, masked, scored, soft, summed, top_of, weights

FORMS, form = listed()


M = ("moe",)
Q2 = ("qwen2",)
Q3 = ("qwen3", "moe")
WEIGHTS = ("router_weights", "router_topk")

GAIN = "gain|weight|\\bw\\b"
NOT = "\\bnot?\\b|without|lost|lack|miss|omit|never|skip|left out"
ZERO = "zero|\\b0\\b(?!\\.\\d)|nothing|empty|not (written|read|seen|computed|counted|added|used|summed)|lost|missing|left out|dropp|without|skip|hidden|only|alone"
LEFT = ("(" + NONE + ").{0,20}(rotat|turn|rope)|unrotated|identity|unchanged|left as|nothing is (rotat|turn|done)|copy|copied|is (the |its )?(input|k|k_norm|q)\\b|the input itself|not applied|"
        "(position|angle|frequenc)\\w*.{0,40}(times|factor|multiplied by|taken as|are|is|as|by|of|held at|stay at)( position| the| a)? ?0(\\.0*)?\\b(?!\\.)")
WHOLE = "^(?!.*(\\bheads?\\b|\\bpairs?\\b|elements?|half|positions? (from |\\d+ ?(to|-|on))|position \\d+ is|third|mean of))(?=.*(" + LEFT + "))"
FOUR_BITS = ["(#7|#0.142857|#15|#14) & (" + ROUNDED + "|larg|max)", "(\\b4|four)[- ]bits?\\b|q4|int4"]
SIGNIFICANT = ["\\b(3|4|three|four)[- ](significant |mantissa |binary |fraction )?(bits?|digits?)\\b", "(mantissa|signif|relative) & (#3|#4|#0.0625|three|four)", "fp8|e4m3|float8"]

# norms
form("n6_gain_half_index", "attn_norm", "channel i has the gain of channel i / 2, rounded down: channels 2i and 2i+1 both have the gain of channel i", ["(gain|weight) & (i ?/{1,2} ?2|i ?>> ?1|floor|2 ?\\*? ?i ?\\+ ?1|(index|number).{0,40}(half|halved)|(half|halved).{0,20}(index|number)|each.{0,30}twice|stands? twice|repeat|side by side|(pair|two|2) (of )?(neighbour\\w* )?(channels|elements))"], lambda c: c.right(w=c.w[np.arange(D) // 2]))
form("n6_branch_again", "ffn_norm", "the attention's branch is added a second time before the norm: the stream has it already", ["(attn_out|branch|attention) & (" + ADDED + "|" + TWICE + "|#2)", "(h0|layer.{0,12}input|stream|layers\\.\\d\\.h\\b) & #2 & (minus|subtract|taken off|less|- )"], lambda c: c.right(x=c.x + c.e.memory["attn_out", c.l]))
form("n6_without_attention", "attn_norm", "layers 1 to 3 norm the stream without the attention's branch of the layer before", ["(attn_out|att\\w*.{0,12}branch|branch of (the )?att) & (" + NOT + "|minus|less|taken off|subtract|- |#-1)", "ffn_out & (h0|layers\\.\\d\\.h\\b|stream|input)"], lambda c: c.right(x=c.x - c.e.memory["attn_out", c.l - 1]), layers=LATER)
form("n6_final_layer_norm", "final_norm", "a LayerNorm: the mean of the row is taken off first", ["(?<!_)layer ?-?norm|centr|centered|standard deviation|variance", "(?<!root )mean(?! square)|average"], lambda c: c.right(x=c.x - c.x.mean(-1, keepdims=True)))
form("n6_gain_minus_1", "attn_norm", "the gain is w - 1: 1 is taken off, as of a file that has it added", ["(w|gain|weight)\\)? ?- ?1\\b", "(gain|weight) & #-1 & (" + ADDED + "|offset|constant)", "(gain|weight|\\bw\\b) & (#1|one\\b) & (taken off|minus|less|subtract)", "x ?/ ?rms.{0,30}(taken off|subtract|minus)"], lambda c: c.right(w=c.w - 1))
form("n6_both_gains", "ffn_norm", "the gain is the product of ffn_norm's and attn_norm's", ["(attn_norm|input_layernorm|both|two gains|other gain|another gain) & (product|times|multipl|besides|\\*|factor|both|as well|also|on top|once more)"], lambda c: c.right(w=c.w * c.e.m("input_layernorm.weight", c.l)))
form("n6_epsilon", "attn_norm", "epsilon is 0.05", ["#0.05"], lambda c: c.right(eps=0.05))
form("n6_gain_4_bits", "attn_norm", "the gain is rounded to multiples of the largest of each 32 channels over 7", ["(gain|weight) & (#7|#32|#0.142857|#15) & (" + ROUNDED + ")", "(gain|weight) & (#4|four) & bit", "(gain|weight) & (q4|int4)"], lambda c: c.right(w=in_steps(c.w.reshape(2, 32), 7).reshape(D)))
form("n6_head_width", "ffn_norm", "the sum of squares is divided by 16, a head's width, not by 64: the result is halved", ["#0.5|halved|half (of )?(what|the result|as|its|right|the value)", "(divisor|rms|root|denominator) & (#2|twice|double)", "#16 & (sum|square|mean|count|width)", "#2 & (divid|divisor)", "(#0.25|#4) & (mean square|sum of|squares)"], lambda c: over(c, np.sqrt((c.x * c.x).sum(-1, keepdims=True) / d + EPS)))

# norms of heads
form("h6_keys_unnormed", "k_norm", "keys are not normed: neither divided nor multiplied by the gain", ["(" + NOT + "|un-?).{0,20}norm|norm\\w*.{0,20}(" + NOT + ")|identity|unchanged|is (the |its )?(input|k)\\b(?! ?(times|/|div|mult|\\*))|copy|the input itself|x itself|before (the |its )?norm|neither"], lambda c: c.x, archs=Q3)
form("h6_length", "q_norm", "divided by the root of the sum of squares, a head's length, not of their mean: a quarter of what is right", ["length|\\bL2\\b|euclid|quarter", "#0.25", "#4 & (divid|divisor|larger|rms|root|sqrt)", "(sum of (the )?squares|sum).{0,50}(not|no|without|instead|rather|never).{0,30}(mean|divid|count|averag)"], lambda c: over(c, np.sqrt((c.x * c.x).sum(-1, keepdims=True) + EPS)), archs=Q3)
form("h6_plus_one", "k_norm", "the gain is 1 + w", ["plus.?(one|1\\b)|1 ?\\+ ?(w|gain|weight|the gain|the weight)|(w|gain|weight) ?\\+ ?1\\b", "(" + GAIN + ") & (#1|one) & (" + ADDED + ")", "(added|plus).{0,20}x ?/ ?rms"], lambda c: c.right(w=1 + c.w), archs=Q3)
form("h6_fused_heads", "q_norm", "heads 2 and 3 have the gain of k_norm: a fused kernel takes them for key heads", ["(k_norm|gain of (the )?(k\\b|keys)|keys?'? gain) & (head|#2|half)", "(second half of the heads|last (two|2) heads|heads? (from )?2) & (other|another|own|wrong) & (gain|weight)"], lambda c: c.right(w=np.stack([c.w, c.w] + [c.e.m("self_attn.k_norm.weight", c.l)] * 2)), archs=Q3)

# products: what is read
form("w6_query_groups", "q", "heads 1 and 2 are exchanged: heads stand in the order 0, 2, 1, 3", ["head & (0, ?2, ?1, ?3)", "head & #1 & #2 & (" + EXCHANGED + "|that of|has|order)", "(#16|#32) & (block|group|tile|row) & (" + EXCHANGED + ")"], lambda c: c.right()[:, [0, 2, 1, 3]])
form("w6_fused_by_head", "k", "key head 1 is value head 0: the rows of a fused matrix go key, value, key, value", ["(\\bv\\b|v_proj|value) & (head|#1|#16|second|half|row)", "(second half of the heads|head.{0,8}1|last head).{0,60}(other|another|wrong).{0,12}(weight|row|matri)"], lambda c: put(c.right(), E_[:, 1], product(c, "v")[:, 0]))
form("w6_up_layer_2", "ffn_up", "layer 3 has the weight of layer 2", [LAYER_BEFORE + "|(other|another|wrong|own).{0,12}layer|layers?\\.? ?2\\b"], lambda c: c.right(w=c.e.m("mlp.up_proj.weight", 2)), layers=[3])
form("w6_gate_of_up", "ffn_gate", "the weight is up's: the halves of a fused matrix are exchanged", ["\\bup\\b|up_proj|ffn_up"], lambda c: c.right(w=c.e.m("mlp.up_proj.weight", c.l)))
form("w6_stale_input", "v", "layers 1 to 3 read ffn_norm of the layer before: the buffer is not written anew", ["(ffn_norm|post_attention|input) & (" + LAYER_BEFORE + ")", "ffn_norm"], lambda c: c.right(x=c.e.memory["ffn_norm", c.l - 1]), layers=LATER)
form("w6_value_interleaved", "v", "within each head elements are interleaved, as those of q and k for the rotation of neighbours: i at 2i and i+8 at 2i+1", ["interleav|2 ?\\*? ?i|even|odd|permut|\\border|every (second|other)|strid|shuffl|transpos", "#8 & (element|dimension|row|half|halves|head) & (" + EXCHANGED + "|that of)"], lambda c: interleaved(c.right()))
form("w6_key_heads_of_8", "k", "within each 8 elements of a head i and i+4 are interleaved: rows are permuted as of 4 heads of 8, not of 2 of 16", ["(#8|#4|eight|four) & (interleav|permut|\\border|block|group|within|transpos|strid|2 ?\\*? ?i|even|odd|shuffl|that of|apart)"], lambda c: c.right().reshape(T, 4, 2, 4).swapaxes(-1, -2).reshape(T, K, d))

# products: parts and tiles
form("w6_one_rank", "ffn_out", "inputs 48 to 95 are not summed: the other rank's part is not added", ["(#48|#47|half|halves) & (input|column|channel|" + ZERO + "|first|second|sum|part)"], inputs(lambda x: put(x, E_[:, 48:], 0)))
form("w6_outputs_64", "ffn_up", "outputs 64 to 95 are zero: a grid of tiles of 64 is rounded down", ["(#64|#63|#95|#32) & (" + ZERO + "|first|last)", "last third.{0,30}(zero|0)"], lambda c: put(c.right(), E_[:, 64:], 0))
form("w6_input_blocks", "ffn_out", "inputs 32 to 63 and 64 to 95 are exchanged", ["(#32|#64|#63) & (" + EXCHANGED + "|that of|0, ?2, ?1|roll|block|tile)", "(input )?blocks? 1 and 2"], inputs(lambda x: x.reshape(T, 3, 32)[:, [0, 2, 1]].reshape(T, F)))

# products: quantised
form("w6_rows_5_bits", "k", "weights are rounded to multiples of their row's largest size over 15", ["(#15|#0.066667|#16|#31|#32) & (" + ROUNDED + "|larg|max)", "(#5|five) & bit"], weights(lambda w: in_steps(w, 15)))
form("w6_offset_kept", "ffn_gate", "each 32 weights of a row have their largest size added: the offset of 8 steps is not taken off", ["(#32|block|group) & (" + ADDED + "|offset|zero.?point|sum|mean|larg|max)", "zero.?point|offset.{0,20}(8|eight)", "(sum|mean|average).{0,30}inputs?|inputs?.{0,30}(sum|mean|average)"], weights(lambda w: (blocks(w) + largest(w)).reshape(w.shape)))
form("w6_scales_powers_of_2", "ffn_up", "the scale of each 32 inputs of a row, their largest size, is rounded down to a power of 2", ["(power|octave|exponent|e8m0|log2|2 ?\\^|floor) & (" + SCALES + "|block|#32)", "(each|every|own).{0,40}(row|output|block|32|group).{0,40}(factor|scale|multipl)|(factor|scale|multipl).{0,40}(each|every|own).{0,30}(row|output|block|group|32)"], weights(lambda w: (blocks(w) / largest(w) * F32(2) ** np.floor(np.log2(largest(w)))).reshape(w.shape)))
form("w6_input_eighths", "ffn_gate", "the input is rounded to multiples of 1/8: one fixed step for all positions", ["(#0.125|#8) & (" + ROUNDED + ")"], inputs(lambda x: np.round(x * 8) / 8))

# biases
form("b6_key_none", "k", "keys have no bias", ["bias & (" + NOT + "|\\bun|zero|removed|(times|factor|by|is|are) 0\\b)"], lambda c: c.right(b=None), archs=Q2)
form("b6_first_of_4", "q", "each four outputs have the bias of the first of them", ["bias & (#4|four)"], lambda c: c.right(b=c.b[np.arange(H * d) // 4 * 4]), archs=Q2)

# attention's output
form("o6_elements_first", "attn_out", "its input is read elements first: input 4i + h is element i of head h", [LAYOUT + "|shuffl|4 ?\\*? ?i|elements? first|d-first|i ?\\* ?(4|H\\b)", "(#4|#16) & (step|apart|every|channel|element|input)"], inputs(lambda x: x.reshape(T, H, d).swapaxes(1, 2).reshape(T, -1)))
form("o6_mean_of_ranks", "attn_out", "the result is halved: the mean of two ranks is taken, not their sum", ["#0.5|halv|half (of )?(what|the result|as|its|right|the value)", "#2 & divid", "divided by (2|two)\\b"], lambda c: c.right() / 2)
form("o6_head_3", "attn_out", "inputs of head 3 are not read", ["(head.{0,8}\\b3|last head|fourth head) & (" + ZERO + ")", "(#48|#47|#63) & (input|channel|column|" + ZERO + ")", "last (16|quarter)"], inputs(lambda x: put(x, E_[:, 48:], 0)))
form("o6_ranks_exchanged", "attn_out", "outputs 0 to 31 and 32 to 63 are exchanged: two ranks are gathered in the other order", ["(#32|#31|half|halves) & (" + EXCHANGED + "|roll|shift|that of|mod|order)"], lambda c: np.roll(c.right(), 32, -1))
form("o6_weight_of_q", "attn_out", "the weight is q's", ["\\bq\\b|q_proj|quer"], lambda c: c.right(w=c.e.m("self_attn.q_proj.weight", c.l)))
form("o6_input_q", "attn_out", "its input is the rotated queries: the context is not written over them", ["q_rope|\\bq\\b|quer"], lambda c: c.right(x=c.e.memory["q_rope", c.l].reshape(T, -1)))
form("o6_steps_late", "attn_out", "positions from 12 on read the context of the position before", ["(#12|#11) & (" + PREVIOUS + ")"], inputs(lambda x: put(x, E_[12:], x[11:-1])))

# rotation
form("r6_theta", ROPES, "the base is 1000000", ["#1000000", "#1.5 & (power|exponent|\\^)", "#0.5623", "#100 & (base|theta) & (times|larger|factor|multipl)"], lambda c: c.right(freq=powers(d, 1e6)))
form("r6_linear", ROPES, "positions are divided by 4", ["(#4|#0.25|quarter) & (position|angle|frequenc|p\\b) & (divid|slow|factor|times|multipl|/|linear|interpol|quarter)", "linear.{0,20}scal & #4"], lambda c: c.right(pos=POS / 4))
form("r6_keys_second_chunk", "k_rope", "keys from position 12 on have positions counted from 0 again", ["(#12|#-12|#11) & (begin|again|restart|reset|mod|less|back|low|earlier|minus|behind|subtract|counted|taken off|#-12)"], lambda c: c.right(pos=np.where(POS < 12, POS, POS - 12)))
form("r6_odd_layers_none", ROPES, "layers 1 and 3 are not rotated", [WHOLE], lambda c: c.x, layers=[1, 3])
form("r6_keys_none", "k_rope", "keys are not rotated", [WHOLE], lambda c: c.x)
form("r6_quarter", ROPES, "only the first 4 elements of a head are rotated, i with i + 2, as a head of 4 would be", ["(#4|#3|quarter|#0.25|four) & (first|only|left|partial|rest|other) & (element|dimension|channel|rotat|turn|partial|of a head)"], lambda c: np.concatenate([rotated(c, c.x[..., :4], powers(4)), c.x[..., 4:]], -1))
form("r6_from_3", ROPES, "positions begin at 3: p + 3", ["(#3|three) & (further|late|high|ahead|add|plus|\\+|offset|begin|start|shift)"], lambda c: c.right(pos=POS + 3))
form("r6_counter_by_layer", ROPES, "in layer l positions are 20 l higher: the counter grows with each layer, not with each step", ["(#20|#40|#60) & (further|late|high|ahead|add|plus|\\+|offset|begin|start|layer|shift)"], lambda c: c.right(pos=POS + T * c.l), layers=LATER)
form("r6_exponent_half_width", ROPES, "the exponent is 2i / 8, not 2i / 16: a base of 10000 squared", ["2 ?i ?/ ?8\\b|i ?/ ?4\\b|10\\^8|1e\\+?0?8|#100000000", "#0.1 & (frequenc|ratio|each pair)", "#8 & (exponent|width of|theta|base).{0,60}", "(base|theta|exponent|frequenc\\w*) .{0,40}(is |are )?(squared|twice|doubled)", "#2 & (exponent|power|\\^) & (frequenc|base|theta)"], lambda c: c.right(freq=THETA ** (-np.arange(0, d, 2) / (d / 2))))


def table(c):
    angle = (POS[:, None, None] * FREQ).astype(F32)
    row = np.concatenate([np.cos(angle), np.sin(angle)], -1)
    return turn(c.e, c.x, None, cos=row[..., ::2], sin=row[..., 1::2])


form("r6_table_by_pairs", ROPES, "each position's table has 8 cosines and then 8 sines, and is read as cosine and sine in turn", ["(table|cos|sin) & (interleav|altern|in turn|pairs?|neighbo|even|odd|2 ?\\*? ?i|layout|order|strid)", "(cos).{0,40}(stands? for|in place of|for|as|is).{0,20}sin", "frequenc.{0,60}(own|each).{0,60}(cos|sin)"], table)
form("r6_q_factor", "q_rope", "queries are multiplied by 1.2079 after the rotation: 0.1 ln 8 + 1", ["#1.2079"], lambda c: c.right() * F32(0.1 * math.log(8) + 1))


def neighbours(c):
    angle = (POS[:, None, None] * np.tile(FREQ, 2)).astype(F32)
    other = np.stack([-c.x[..., 1::2], c.x[..., ::2]], -1).reshape(c.x.shape)
    return c.x * np.cos(angle) + other * np.sin(angle)


form("r6_neighbours_table_of_halves", ROPES, "elements 2i and 2i+1 are a pair, but element j has the frequency j mod 8, as for pairs of i and i+8", ["(2 ?\\*? ?i\\b|neighbo|adjacent|even|odd|interleav|consecut) & (pair|element|rotat|turn)"], neighbours)
form("r6_second_half_left", ROPES, "the second half of a head is left as it was: only the first half is written", ["(second half|last half|elements? (8|from 8)|dimensions? (8|from 8)|8 ?(-|to|\\.\\.) ?15|#15|second of (each|a|the) pair|b\\b.{0,12}unchanged) & (" + LEFT + "|left|\\bnot|unchanged|input|only|b\\b)", "first half & (only|alone)"], lambda c: np.concatenate([c.right()[..., :8], c.x[..., 8:]], -1))
form("r6_heads_of_8", ROPES, "each head is rotated as two heads of 8: elements i and i+4 of each 8, by the frequencies of a head of 8", ["(two|2|half|halves).{0,20}heads|heads? (of|width|size|dim\\w*).{0,12}(8|eight|half)|d ?/ ?4", "(#8|eight) & (#4|four) & (pair|apart|element|block|each|turned|rotat|frequenc)", "#8 & (each|own|every) & (half|halves|block)"], lambda c: rotated(c, c.x.reshape(T, -1, 8), powers(8)).reshape(c.x.shape))

# scores
form("s6_scale_hidden", "probs", "scores are divided by 8, the root of the hidden size, not by 4", ["#0.125|#64", "(#0.5|halved|half (of )?(what|as|its|right|the score)) & (scor|scal|factor|logits)", "#8 & (divid|scal|root)", "#2 & divid"], lambda c: c.right(scale=1 / 8))
form("s6_unscaled", "probs", "scores are not scaled: nothing is divided by 4", ["(" + NONE + ").{0,30}(scal|divid|root|sqrt)|(scale|factor).{0,20}\\b1(\\.0*)?\\b|unscaled", "#4 & (times|factor|multipl|larger|scal)"], lambda c: c.right(scale=1.0))
form("s6_cap", "probs", "scores are 2 tanh(s / 2)", ["tanh & (#2|#0.5|half)", "(soft.?cap|cap\\w*) & #2"], scored(lambda s: F32(2) * np.tanh(s / F32(2))))
form("s6_keys_unrotated", "probs", "keys are read as they were before the rotation", ["(unrot|before (the |its |their )?(rot|rope)|not.{0,12}rot|without.{0,12}(rot|rope)) & (\\bk\\b|keys?\\b|k_norm)", "keys? (are|is) (the )?(k|k_norm)\\b"], lambda c: c.right(k=c.e.memory.get(("k_norm", c.l), c.e.memory["k", c.l])))
form("s6_key_head_mod", "probs", "head h reads key head h modulo 2", ["head & (mod|%|0, ?1, ?0, ?1|interleav|altern|even|odd|cyc)", "head & #1 & #2 & (key|kv|" + EXCHANGED + ")"], lambda c: c.right(kv=np.arange(H) % K))
form("s6_page_before", "probs", "keys of each page of 4 positions are those of the page before, the first page its own", ["(#4|four|#-4) & (that of|those of|repeat|late\\b|shift|earlier|[ts] ?- ?4|copied|stale|(page|block) before|4 before|behind)"], lambda c: c.right(k=c.k[np.where(POS < 4, POS, POS - 4)]))
form("s6_elements_first", "probs", "a position's keys, head by head, are read elements first: element i of head h is number 2i + h of 32", [LAYOUT + "|shuffl|2 ?\\*? ?i|elements? first|d-first|even|odd|every (second|other)"], lambda c: c.right(k=c.k.reshape(T, d, K).swapaxes(1, 2)))
form("s6_keys_by_channel", "probs", "each element of the keys is rounded to multiples of its largest size over all positions over 7", FOUR_BITS, lambda c: c.right(k=in_steps(c.k, 7, 0)))

# masks
form("m6_window", "probs", "layers 0 and 2 have a window of 6 keys", ["(#6|#5|six|five) & (window|distance|last|ago|before|back|key|recent|see|newest)"], masked(SEEN & (AGO < 6)), layers=[0, 2])
form("m6_one_ahead", "probs", "each token sees one key further: that of the next token", ["(#1|#-1|#2|one\\b|next|following) & (later|ahead|future|further|next|following|beyond|diagonal|after)", "#-1 & (distance|ago|see)"], masked(AGO >= -1))
form("m6_newest_missing", "probs", "the key just before the token's own is hidden: it is not yet in the cache", ["(distance|ago|back|before|behind|preced) & (#1|one\\b|just|directly|immediate|newest) & (hidden|\\bnot?\\b|miss|unseen|lost|without|never|left out|except|\\bbut\\b|mask)", "(previous|preceding|last|t ?- ?1).{0,40}(hidden|not|miss|lost|unseen)", "s ?= ?t ?- ?1"], masked(SEEN & (AGO != 1)))
form("m6_left_padding", "probs", "keys 0 to 2 are hidden from later tokens, as padding", ["(#2|#3|three) & (first|from|below|pad|0 ?(to|-|\\.\\.) ?2|0, ?1|up to) & (key|position|token|pad|column)"], masked(SEEN & ((KEY >= 3) | (AGO == 0))))
form("m6_chunks", "probs", "a token sees its own chunk of 10 tokens alone", ["(#10|#9|ten) & (" + BLOCK + "|own|half|hidden|see|from|key|before)", "(second half|halves|own half).{0,60}(half|hidden|key|see)"], masked(SEEN & (QUERY // 10 == KEY // 10)))


# softmax
def splits(s):
    """Each 10 keys by themselves."""
    p = np.zeros_like(s)
    for at in (E_[..., :10], E_[..., 10:]):
        top = s[at].max(-1, keepdims=True)
        e = np.exp(s[at] - np.where(np.isfinite(top), top, 0))
        total = e.sum(-1, keepdims=True)
        p[at] = e / np.where(total > 0, total, 1)
    return p


def not_rescaled(s):
    """What was summed of earlier blocks of 4 stays relative to the maximum there was then; the denominator is right."""
    so_far = np.maximum.accumulate(s, -1)[..., np.minimum(POS // 4 * 4 + 3, T - 1)]
    return np.exp(s - so_far) / np.exp(s - s.max(-1, keepdims=True)).sum(-1, keepdims=True)


def one_more(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / (e.sum(-1, keepdims=True) + 1)


form("p6_sum_from_1", "probs", "the denominator has a 1 more, after the maximum was taken off: the sum begins at 1", ["(#1|one\\b) & (denominator|sum|sink|term) & (add|plus|\\+|more|extra|begin|start|term|sink)", "exp\\((the )?max|e\\^max|(largest|greatest|maximal|maximum).{0,30}(term|weight|twice|again|once more)"], soft(one_more))
form("p6_later_counted", "probs", "later keys count in the denominator with a score of 0, 1 each, though their weights are 0", ["(later|future|hidden|mask|unseen|ahead|all (20 )?keys|not seen|19 ?- ?t|T ?- ?1|#20) & (denominator|sum|divid|normali|soft)"], soft(lambda s: np.exp(s) / (np.exp(s).sum(-1, keepdims=True) + (T - 1 - QUERY))))
form("p6_splits_added", "probs", "keys 0 to 9 and 10 to 19 have a softmax each: the two splits are added and not weighed", ["(#10|#9|ten|half|halves) & (" + BLOCK + "|split|own|softmax|sum|denominator|divid|part|separate)"], soft(splits))
form("p6_weights_not_rescaled", "probs", "weights run in blocks of 4 keys and earlier ones stay relative to the maximum there was then; the denominator is right", ["(#4|four) & (max|rescal|larg|running|so far|relative|block|tile)", "(running|so far|then|block).{0,30}max"], soft(not_rescaled))
form("p6_rows_16", "probs", "rows of tokens from 16 on are zero: the last tile of queries is not computed", ["(#16|#15|#19) & (zero|\\b0\\b(?!\\.)|nothing|empty|not (written|computed)|lost|only) & (row|token|quer|position|tile)"], lambda c: put(c.right(), E_[:, 16:], 0))

# context
form("c6_values_fp8", "context", "values are rounded to 4 significant bits", SIGNIFICANT, lambda c: c.right(v=four_digits(c.v)))
form("c6_weights_fp8", "context", "the attention's weights are rounded to 4 significant bits as they are read", SIGNIFICANT, lambda c: c.right(p=four_digits(c.p)))
form("c6_pages_exchanged", "context", "values of positions 0 to 3 and of positions 4 to 7 are exchanged: two pages of the cache", ["(#4|four) & (#7|#3|" + EXCHANGED + "|page|block)"], lambda c: c.right(v=c.v[np.r_[4:8, 0:4, 8:T]]))
form("c6_one_value_head", "context", "all heads read value head 0", ["head.{0,12}\\b0\\b|first.{0,16}head|(one|same|single).{0,16}head|0, ?0, ?0, ?0", "(second half of the heads|last (two|2) heads|heads? (from )?2) & (other|value head|v\\b)"], lambda c: c.right(v=c.v[:, [0, 0]]))
form("c6_prefix_lost", "context", "tokens from 12 on do not sum the values of positions 0 to 11: the cached prefix is lost", ["(#12|#11) & (hidden|not|lost|before|begin|own|zero|block|prefix|from|cache|left out|only)"], lambda c: c.right(p=np.where((QUERY >= 12) & (KEY < 12), 0, c.p)))
form("c6_first_page_lost", "context", "the values of positions 0 to 3 are not summed: the sum begins at the second page", ["(#3|#4|four) & (first|begin|not summed|not read|left out|lost|without|hidden|from|skip|zero) & (key|value|position|page|token|v\\b)"], lambda c: c.right(p=put(c.p, E_[..., :4], 0)))


def own_late(c):
    heads = np.arange(H) // (H // K)
    before = np.concatenate([c.v[:1], c.v[:-1]])
    return c.right() + (c.p[:, POS, POS].T[..., None] * (before - c.v)[:, heads]).reshape(T, -1)


form("c6_own_value_late", "context", "in place of its own value a token sums that of the position before: its slot is not yet written", ["(itself|\\bown\\b|self|diagonal|newest|current|s ?= ?t|t ?= ?s|distance.{0,8}\\b0\\b) & (" + PREVIOUS + "|not yet|stale|distance.{0,8}1|difference)"], own_late)
form("c6_first_of_group", "context", "heads 1 and 3 have the results of heads 0 and 2: only the first head of each group is run", ["head & (#0 & #2|0, ?0, ?2, ?2|even|odd|group|pair|first of|#1 & #3|before|previous|copy|copied)"], lambda c: heads_of(c)[:, [0, 0, 2, 2]].reshape(T, -1))
form("c6_without_bias", "context", "values are without the bias of v", ["bias|v_proj"], lambda c: c.right(v=c.v - c.e.m("self_attn.v_proj.bias", c.l).reshape(K, d)), archs=Q2)
form("c6_values_of_layer_1", "context", "layers 2 and 3 read the values of layer 1: a shared cache", ["layer.{0,4}1\\b|layers\\.1|(other|another|wrong|shared).{0,12}(layer|cache)|" + LAYER_BEFORE], lambda c: c.right(v=c.e.memory["v", 1]), layers=[2, 3])
form("c6_half_heads", "context", "elements 8 to 15 of each head are zero: only one tile of 8 is written", ["(#8|#7|#15|half|halves) & (" + ZERO + "|first)"], lambda c: put(heads_of(c), E_[..., 8:], 0).reshape(T, -1))

# activations
form("a6_gelu_erf", "ffn_act", "gelu by erf stands for silu", ["gelu|erf\\b|\\berf|gauss|normal distribution|\\bphi\\b"], act(lambda x: x / 2 * (1 + erf(x / F32(math.sqrt(2))))))
form("a6_relu", "ffn_act", "relu(gate) up", ["(?<!leaky )\\brelu(?!6|2|\u00b2|\\(gate\\)\\^)|max\\((0|x|gate)|(negative|below (0(?!\\.)|zero)).{0,30}\\b(0\\b(?!\\.)|zero|lost|dropp|cut)|positive part|(at least|not below|floor).{0,20}\\b(0\\b(?!\\.)|zero)"], act(lambda x: np.maximum(x, 0)))
form("a6_none", "ffn_act", "gate times up: nothing is activated", ["(" + NOT + "|\\bun-?|nothing( is)?|none).{0,12}(activ|silu|function|sigmoid)|(activation|silu|sigmoid).{0,20}(" + NOT + "|identity|(is|of) 1\\b)|(?<!\\()(?<!of )\\bgate ?[*\u00b7x\u00d7]? ?up\\b|(?<!\\()(?<!of )\\bgate times up|identity|(?<!non)(?<!non-)linear"], act(lambda x: x))
form("a6_base_2", "ffn_act", "gate / (1 + 2^-gate) up: 2^x stands for e^x in the sigmoid", ["#0.6931|#1.4427", "2 ?\\^|2 ?\\*\\*|base.{0,6}2\\b|exp2|log\\(2\\)|ln\\(?2|power of (2|two)"], act(lambda x: x / (1 + F32(2) ** -x)))
form("a6_tanh_no_cubic", "ffn_act", "gate / 2 (1 + tanh(0.7979 gate)) up: gelu without its cubic term", ["tanh & (#0.7979|#0.79788)", "(gelu|tanh).{0,60}(" + NOT + ").{0,20}(cub|third|x\\^3|0\\.0447)", "(" + NOT + ").{0,20}(cub|third|x\\^3|0\\.0447)", "#1.5958 & (sigmoid|silu|swish|logistic|exp)"], act(lambda x: x / 2 * (1 + np.tanh(F32(math.sqrt(2 / math.pi)) * x))))
form("a6_activated_again", "ffn_act", "silu of silu(gate) up: the product is activated again", ["silu.{0,60}silu|swish.{0,40}swish|(activ|silu|swish|sigmoid).{0,60}(again|twice|result|output)|(result|output).{0,60}(silu|activ|sigmoid|swish)"], lambda c: silu(c.right()))
form("a6_limit", "ffn_act", "the gate is at most 0.75 and up within +-0.75 before they are used", ["#0.75 & (" + CLAMPED + ") & (\\bup|both)"], lambda c: c.right(gate=np.minimum(c.gate, F32(0.75)), up=np.clip(c.up, F32(-0.75), F32(0.75))))


def planes(c):
    rows = np.stack([c.gate, c.up], 1).reshape(2 * T, F)
    return c.right(gate=rows[:T], up=rows[T:])


form("a6_rows_as_planes", "ffn_act", "the buffer has a position's gate and then its up, and is read as the gates of all positions and then the ups: gate of position t is row t of 40", [LAYOUT + "|planes?|rows? t of|row of (40|the joined)|gates.{0,20}then.{0,12}ups|(gate|up).{0,80}(position|row|token).{0,40}(t ?/|half|halved|other|wrong|another|t ?\\+)|(t ?/{1,2} ?2|other|wrong|half).{0,40}(position|row|token)"], planes)
form("a6_product_fp8", "ffn_act", "the product is rounded to 4 significant bits", SIGNIFICANT, lambda c: four_digits(c.right()))

# residual sums
form("d6_branch_twice", "h", "the feed-forward's branch is added twice: both ranks add the whole", ["(#2|" + TWICE + ") & (branch|ffn|feed|mlp|\\by\\b|added|factor|residual|times)"], add(y=lambda c: 2 * c.y))
form("d6_second_half_rows", "h_attn", "positions from 10 on add the branch of the position 10 before: the second chunk reads from the buffer's begin", ["(#10|#-10) & (before|earlier|back|previous|t ?-|again|mod|%|repeat|first|begin)", "second half.{0,80}first half|first half.{0,80}(repeat|again|second)"], add(y=lambda c: c.y[POS % 10]))
form("d6_feed_forward_lost", "h_attn", "layers 1 to 3 add to h_attn of the layer before: the feed-forward's branch is lost", ["layers\\.\\d\\.h_attn|h_attn of|ffn_out.{0,60}(minus|taken off|subtract|- |lost)|(minus|taken off|subtract|less|without|- ).{0,30}ffn_out|(" + NOT + "|minus|taken off|subtract).{0,40}(ffn|feed|mlp)|(ffn|feed|mlp).{0,40}(" + NOT + "|minus|taken off)", "h_attn & (" + LAYER_BEFORE + ")", "#-1 & ffn_out"], add(x=lambda c: c.e.memory["h_attn", c.l - 1]), layers=LATER)
form("d6_depth", "h", "the branch is multiplied by 0.7, 1.4 over the root of 4 layers", ["#0.7"], add(y=lambda c: F32(0.7) * c.y))
form("d6_stream_tile_lost", "h_attn", "channels 48 to 63 have the branch alone: the stream is not added there", ["(#48|#47|#63) & (stream|branch|" + ZERO + "|\\bx\\b|h0|attn_out)"], add(x=lambda c: put(c.x, E_[:, 48:], 0)))
form("d6_normed_in_place", "h_attn", "the sum is normed with the gain of ffn_norm: the norm writes over the stream", ["rms|root mean|normed|normali|ffn_norm|post_attention|\\bnorm\\b"], lambda c: (lambda y: y / np.sqrt(np.mean(y * y, -1, keepdims=True) + F32(EPS)) * c.e.m("post_attention_layernorm.weight", c.l))(c.right()))
form("d6_last_attention_lost", "h_attn", "layer 3 does not add the attention's branch", ["(" + NOT + "|zero|nothing|\\b0\\b(?!\\.)).{0,30}(branch|attn_out|attention|added)|(branch|attn_out|attention).{0,30}(" + NOT + "|zero|\\b0\\b(?!\\.))|unchanged|copy|stream (alone|only)|is (the |its )?(stream|input|layers\\.2\\.h)\\b|x alone|layers\\.2\\.h\\b|input itself"], lambda c: c.x, layers=[3])

# embedding
form("e6_twelve", "h0", "rows are multiplied by 12", ["#12"], lambda c: 12 * c.right())
form("e6_4_bits", "h0", "each 32 elements of a row are rounded to multiples of their largest size over 7", FOUR_BITS, lambda c: in_steps(blocks(c.right()), 7).reshape(T, D))
form("e6_ids_of_64_bits", "h0", "position 2i has the row of the token at i, odd positions that of token 0: ids of 64 bits are read as 32", ["(odd|even|every (second|other)|2 ?\\*? ?i|altern) & (token|id|row|position)", "(64|32).{0,5}bit", "tokens-differ|tokens? differ"], lambda c: c.right(ids=[0 if t % 2 else c.ids[t // 2] for t in range(T)]))
form("e6_halves_of_table", "h0", "the table's halves are exchanged: token i has row i + 128, modulo 256", ["(#128|half|halves) & (" + EXCHANGED + "|modulo|mod\\b|shift|roll|xor|\\+ ?128|#128) & (token|id|row|table)", "tokens-differ|tokens? differ"], lambda c: c.right(ids=[(i + V // 2) % V for i in c.ids]))
form("e6_channels_48", "h0", "channels from 48 on are zero", ["(#48|#47|#63|#16) & (" + ZERO + "|first|last)"], lambda c: put(c.right(), E_[:, 48:], 0))

# head
form("l6_sixteenth", "logits", "logits are divided by 16", ["#16|#0.0625"], lambda c: c.right() / 16)
form("l6_no_gain", "logits", "the input is without the final norm's gain", ["(gain|weight) & (" + NOT + "|\\bun|divid|taken out|inverse|1 ?/|ones)"], lambda c: c.right(x=c.x / c.e.m("model.norm.weight")))
form("l6_4_bits", "logits", "weights are rounded to multiples of the largest size of each 32 inputs over 7", FOUR_BITS, weights(lambda w: in_steps(blocks(w), 7).reshape(w.shape)))
form("l6_last_only", "logits", "only the last position has logits: all others are zero", ["(last|#19|#18) & (" + ZERO + "|position|row)"], lambda c: put(c.right(), E_[:-1], 0))
form("l6_shard_lost", "logits", "logits of tokens from 192 on are zero: one of four shards is not gathered", ["(#192|#191|#255) & (" + ZERO + "|first|last)", "(last|fourth) (quarter|shard)|last 64"], lambda c: put(c.right(), E_[:, 192:], 0))
form("l6_temperature", "logits", "logits are divided by 0.7: the temperature is applied already", ["#0.7|#1.42857"], lambda c: c.right() / F32(0.7))
form("l6_shards_interleaved", "logits", "four shards of 64 tokens are interleaved: logit 4i + j is that of token 64 j + i", [LAYOUT + "|shuffl|4 ?\\*? ?i|64 ?\\*? ?[ij]", "(#4|#64) & (step|apart|every|shard|block)"], lambda c: c.right().reshape(T, 4, 64).swapaxes(1, 2).reshape(T, V))

# mixtures of experts
def one_group(z):
    """Experts 0 to 2 or 3 to 5: those beside the likeliest."""
    return np.where(np.arange(EXPERTS) // 3 == z.argmax(-1)[:, None] // 3, z, F32(-1e9))


def begun_late(c):
    """Tokens sorted by expert, and each expert's rows begin one late."""
    flat = top_of(c).reshape(-1)
    order = np.argsort(flat, kind="stable")
    number = np.array(flat)
    number[order[1:]] = flat[order[:-1]]
    return mixed(c, lambda t, s, _, n: expert(c, n, number[2 * t + s]))


def by_matrices(c, change):
    """The experts' sum where `change` makes other matrices of gate, up and down."""
    def each(t, s, x, n):
        gate, up, down = change(*(c.e.m(f"mlp.experts.{x}.{name}_proj.weight", c.l) for name in ("gate", "up", "down")))
        return c.e.r(c.e.r(c.e.r(silu(c.e.r(n @ gate.T))) * c.e.r(n @ up.T)) @ down.T)
    return mixed(c, each)


def in_turn(gate, up, down):
    both = np.concatenate([gate, up])
    return both[::2], both[1::2], down


def other_memory(gate, up, down):
    return gate, up, np.ascontiguousarray(down).reshape(F, D).T


form("x6_router_4_bits", "router_logits", "the router's weights are rounded to multiples of their row's largest size over 7", FOUR_BITS, weights(lambda w: in_steps(w, 7)), archs=M)
form("x6_router_no_gain", "router_logits", "the router's input is without the gain of the norm", ["(gain|weight) & (" + NOT + "|\\bun|divid|taken out|inverse|1 ?/|ones)"], lambda c: c.right(x=c.x / c.e.m("post_attention_layernorm.weight", c.l)), archs=M)
form("x6_router_softmax", "router_logits", "the softmax of the logits is written in their place: it is taken twice", ["softmax|soft-?max|probabilit|exp\\("], lambda c: softmax(c.right()), archs=M)
form("x6_softmax_of_chosen", "router_weights", "the weights are the softmax of the chosen two probabilities, not their shares", ["(softmax|exp\\(|e\\^) & (chosen|two|probab|weights|again|twice|of the softmax|second|top|selected|shares)", "(sigmoid|logistic).{0,40}(differ|p1|p0|probab)"], lambda c: chosen(c, lambda w, _: softmax(w)), archs=M)
form("x6_one_group", WEIGHTS, "both experts are chosen of the three, 0 to 2 or 3 to 5, that the likeliest belongs to", ["(group|half|halves|#3|three) & (expert|cho|best|same|likel|limit)"], by_choice(one_group), archs=M)
form("x6_first_four", WEIGHTS, "experts 4 and 5 are never chosen: only the first four are compared", ["(#4|#5|#3|four|last (two|2)) & (expert|cho|first|never|not|only)"], by_choice(lambda z: put(z, E_[:, 4:], -1e9)), archs=M)
form("x6_matrices_in_turn", "ffn_out", "gate and up of an expert are taken in turn from the rows of [gate, up]: even rows and odd rows", ["(even|odd|interleav|in turn|altern|every (second|other)|2 ?\\*? ?i|strid)", "\\border\\b.{0,40}(row|gate|up)"], lambda c: by_matrices(c, in_turn), archs=M)
form("x6_down_memory", "ffn_out", "the memory of the experts' down matrices, 64 by 96, is read as 96 by 64 and transposed", [LAYOUT], lambda c: by_matrices(c, other_memory), archs=M)
form("x6_first_weight", "ffn_out", "both experts have the weight of the first", ["(same|both|equal) & (weight|factor) & (first|#0|second|slot)", "(second|slot.{0,4}1).{0,60}first"], lambda c: summed(c.each, c.weights[:, [0, 0]]), archs=M)
form("x6_begun_late", "ffn_out", "each expert's rows, sorted by expert, begin one late: its first token is run by the expert before it", ["(begin|boundar|offset|late\\b|off by|shift|first token|first row) & (expert|sort)", "(each|every) expert.{0,12}first"], begun_late, archs=M)
form("x6_not_activated", "ffn_out", "the experts have gate times up, without silu", ["(" + NOT + "|\\bun|nothing|none).{0,30}(activ|silu|function|sigmoid)|(activ|silu|sigmoid).{0,40}(" + NOT + "|identity)|(?<!\\()(?<!of )gate ?[*\u00b7x\u00d7]? ?up\\b|(?<!\\()(?<!of )gate times up|identity|(?<!non)(?<!non-)linear"], lambda c: mixed(c, lambda t, s, x, n: expert(c, n, x, f=lambda y: y)), archs=M)
form("x6_rank_lost", "ffn_out", "experts 3 to 5 give nothing: the other rank's sum is not added", ["(#3|#2|half|halves|three|last 3) & expert & (" + ZERO + "|no\\b|not|rank|first|below|from)"], lambda c: summed(c.each, np.where(top_of(c) >= 3, 0, c.weights)), archs=M)
form("x6_twice", "ffn_out", "the experts' sum is doubled: two ranks hold the same experts", ["#2 & (times|factor|multipl|scal|\\*)", TWICE], lambda c: 2 * c.right(), archs=M)


if __name__ == "__main__":
    for f in FORMS:
        print(f"{f.name:36} {f.sites[0]:14} {f.truth}")
    print(len(FORMS), "forms")

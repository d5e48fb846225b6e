"""A seventh list of mistakes for `firstdiff explain` to measure: plain ones of ports to other engines, written without sight of how laws are found: none repeats one of the first six lists.

    python scripts/forms/law_forms_seventh.py                # list them
    python scripts/suites/test_laws.py --set seventh ..       # hold the answers to the truth
"""

import numpy as np

from scripts.forms.law_forms import AGO, D, EPS, E_, F, F32, H, K, POS, ROPES, SEEN, T, V, d, listed, over, put, sigmoid, silu
from scripts.forms.law_forms_fifth import NEXT, blocks, expert, mixed
from scripts.forms.law_forms_fourth import LAYOUT, TWICE, interleaved, powers, rotated
from scripts.forms.law_forms_sixth import GAIN, NOT, Q2, Q3, WHOLE, ZERO
from scripts.forms.law_forms_third import EXCHANGED, KEY, LATER, LAYER_BEFORE, PREVIOUS, ROUNDED, act, add, chosen, heads_of, in_steps, inputs, masked, shares, summed, top_of, weights

FORMS, form = listed()


M = ("moe",)
HALVED = ["#0.5|halved|half (of )?(what|the result|as|its|right|the value)", "#2 & divi"]
LAYER_0 = "layer.{0,4}0\\b|layers\\.0|first layer"
HALVES_EXCHANGED = "(half|halves|#32|#31) & (" + EXCHANGED + "|roll|shift|that of|mod|\\+ ?32)"
# What the first of a group of rows, heads or tokens is copied to.
COPIED = "(of|by) (the )?(token|position|row|number)?s? ?2 ?\\*? ?[itv]\\b|(have|has|had|is) (the|that|those)|first|copy|copied|repeat|same|that of|those of|//|floor|even|before"
EIGHT_APART = "(half|halves|#8) & (" + EXCHANGED + "|roll|shift|that of|mod|\\+ ?8)"
PAGE_REVERSED = ["(#4|four|#3) & (revers|backward|order|permut|" + EXCHANGED + "|3 ?-)"]

# norms
form("n7_gain_layer_3", "attn_norm", "layers 0 to 2 have the gain of layer 3, the last that was loaded", ["(" + GAIN + ") & (layer.{0,4}3\\b|layers\\.3|last layer|(other|another|wrong).{0,12}layer)"], lambda c: c.right(w=c.e.m("input_layernorm.weight", 3)), layers=[0, 1, 2])
form("n7_gain_halves", "attn_norm", "the halves of the gain are exchanged: channel i has that of channel i + 32, modulo 64", ["(" + GAIN + ") & " + HALVES_EXCHANGED], lambda c: c.right(w=np.roll(c.w, 32)))
form("n7_from_16", "ffn_norm", "the mean square is that of channels 16 to 63: the first 16 are not counted", ["(#16|#15|#48) & (mean|rms|square|divid|stat|channel)"], lambda c: over(c, np.sqrt(np.mean(c.x[:, 16:] ** 2, -1, keepdims=True) + EPS)))
form("n7_final_other", "final_norm", "the gain is that of layer 0's attn_norm", ["attn_norm|input_layernorm|(" + GAIN + ") & (" + LAYER_0 + "|another|other|wrong)"], lambda c: c.right(w=c.e.m("input_layernorm.weight", 0)))
form("n7_branch_twice", "attn_norm", "in layers 1 to 3 the feed-forward's branch of the layer before is added a second time before the norm", ["(ffn_out|mlp|feed.?forward|branch) & (add|plus|\\+|sum|" + TWICE + "|#2)", "h_attn & #2"], lambda c: c.right(x=c.x + c.e.memory["ffn_out", c.l - 1]), layers=LATER)
form("h7_queries_unnormed", "q_norm", "queries are not normed: neither divided nor multiplied by the gain", ["(" + NOT + "|un-?).{0,20}norm|norm\\w*.{0,20}(" + NOT + ")|identity|unchanged|is (the |its )?(input|q)\\b(?! ?(times|/|div|mult|\\*))|copy|the input itself|x itself|before (the |its )?norm|neither"], lambda c: c.x, archs=Q3)
form("h7_gain_halves", "k_norm", "the halves of the gain are exchanged: element i has that of element i + 8, modulo 16", ["(" + GAIN + ") & " + EIGHT_APART], lambda c: c.right(w=np.roll(c.w, 8)), archs=Q3)
form("h7_gain_layer_before", "q_norm", "layers 1 to 3 have the gain of the layer before", ["(" + GAIN + ") & (" + LAYER_BEFORE + "|(other|another|wrong).{0,12}layer)"], lambda c: c.right(w=c.e.m("self_attn.q_norm.weight", c.l - 1)), layers=LATER, archs=Q3)

# products
form("w7_value_of_key", "v", "the weight is k's: k was loaded twice", ["\\bk\\b|k_proj|\\bkeys?\\b"], lambda c: c.right(w=c.e.m("self_attn.k_proj.weight", c.l)))
form("w7_head_late", "q", "head h has the rows of head h + 1, modulo 4", ["head & (next|shift|roll|\\+ ?1|1, ?2, ?3, ?0|order|permut|one (further|late|early|higher))", "(#16|#48) & (roll|shift|that of|mod|\\+ ?16|next)"], lambda c: np.roll(c.right(), -1, 1))
form("w7_head_halves", "k", "within each head elements 0 to 7 and 8 to 15 are exchanged", [EIGHT_APART], lambda c: np.roll(c.right(), 8, -1))
form("w7_input_halves", "attn_out", "inputs 0 to 31 and 32 to 63 are exchanged", [HALVES_EXCHANGED, "heads? & (2, ?3, ?0, ?1)"], inputs(lambda x: np.roll(x, 32, -1)))
form("w7_gate_input", "ffn_out", "its input is ffn_gate, not the activated product", ["ffn_gate|\\bgate\\b"], lambda c: c.right(x=c.e.q(c.e.memory["ffn_gate", c.l])))
form("w7_rows_in_turn", "ffn_gate", "output 2i is row i of gate and output 2i + 1 row i of up: rows of a fused matrix are interleaved", ["(interleav|even|odd|altern|in turn|2 ?\\*? ?i|every (second|other)) & (\\bup|up_proj|row|output|channel)", LAYOUT + "|shuffl"], lambda c: (lambda up: np.stack([c.right()[:, :F // 2], up[:, :F // 2]], -1).reshape(T, F))(c.right(w=c.e.m("mlp.up_proj.weight", c.l))))
form("w7_one_scale", "ffn_up", "weights are rounded to multiples of the matrix's largest size over 15: one scale for all", ["(#15|#0.066667|#16|#31|#32) & (" + ROUNDED + "|larg|max)", "(#5|five) & bit", "weights & (" + ROUNDED + ") & (whole|one (step|scale)|tensor|matrix|fixed)"], weights(lambda w: in_steps(w.reshape(-1), 15).reshape(w.shape)))
form("w7_high_nibbles_lost", "v", "of each 32 inputs the last 16 are not summed: high nibbles are zero", ["(#16|#32|#15|half|halves) & (" + ZERO + "|first|input)"], inputs(lambda x: put(blocks(x), E_[..., 16:], 0).reshape(x.shape)))
form("w7_high_nibbles_large", "ffn_gate", "of each 32 inputs the last 16 have weights multiplied by 16: high nibbles are masked and not shifted", ["#16 & (times|factor|multipl|scal|larger|\\*)", "#16 & #32"], weights(lambda w: put(blocks(w), E_[..., 16:], lambda y: y * 16).reshape(w.shape)))
form("w7_gate_transposed", "ffn_out", "the weight is gate's, transposed", ["gate & (transpos|\\.T\\b|\\^ ?T|column|rows)"], lambda c: c.right(w=c.e.m("mlp.gate_proj.weight", c.l).T))
form("w7_odd_rows", "ffn_out", "odd positions are zero: one of two rows is written", ["(odd|every (second|other)|2 ?\\*? ?[it] ?\\+ ?1|even|altern|(%|mod\\w*) ?2) & (" + ZERO + ")"], lambda c: put(c.right(), E_[1::2], 0))
form("b7_key_bias", "q", "the bias is k's: each query head has that of the key head it reads", ["bias & (\\bk\\b|k_proj|keys?\\b)"], lambda c: c.right(b=np.repeat(c.e.m("self_attn.k_proj.bias", c.l).reshape(K, d), H // K, 0).reshape(-1)), archs=Q2)
form("b7_layer_before", "v", "layers 1 to 3 have the bias of the layer before", ["bias & (" + LAYER_BEFORE + "|(other|another|wrong).{0,12}layer)"], lambda c: c.right(b=c.e.m("self_attn.v_proj.bias", c.l - 1)), layers=LATER, archs=Q2)

# rotation
form("r7_theta", ROPES, "the base is 500000", ["#500000", "#1.4247 & (power|exponent|\\^)", "#0.6132", "#50 & (base|theta) & (times|larger|factor|multipl)"], lambda c: c.right(freq=powers(d, 5e5)))
form("r7_double", ROPES, "positions are doubled", ["(#2|" + TWICE + ") & (position|angle|frequenc|rotat|turn|\\bp\\b)"], lambda c: c.right(pos=POS * 2))
form("r7_queries_none", "q_rope", "queries are not rotated", [WHOLE], lambda c: c.x)
form("r7_keys_further", "k_rope", "keys are one position further: p + 1", ["(#1|one\\b|next) & (further|late|high|ahead|add|plus|\\+|offset|begin|start|shift|next)"], lambda c: c.right(pos=POS + 1))
form("r7_twelve", ROPES, "only the first 12 elements of a head are rotated, i with i + 6, as a head of 12 would be", ["(#12|#11|#0.75|twelve|#6) & (first|only|left|partial|rest|other|pair) & (element|dimension|channel|rotat|turn|partial|of a head)"], lambda c: np.concatenate([rotated(c, c.x[..., :12], powers(12)), c.x[..., 12:]], -1))
form("r7_second_negative", ROPES, "the second half has the other sign: -(b cos + a sin)", ["(second|last|upper|8|b\\b).{0,60}(sign|negat|-1|minus|- ?b)|- ?\\(? ?b|-1.{0,40}(second|last|upper|b\\b)|(sign|negat).{0,40}(second|last|upper|8)"], lambda c: put(c.right(), E_[..., 8:], lambda y: -y))
form("r7_halves_first", ROPES, "the halves of a head are exchanged before the rotation: b cos - a sin and a cos + b sin", ["(half|halves|#8) & (" + EXCHANGED + "|roll|that of)", "b ?\\*? ?cos.{0,40}a ?\\*? ?sin.{0,40}a ?\\*? ?cos"], lambda c: c.right(x=np.roll(c.x, 8, -1)))
form("r7_layers_base", ROPES, "layers 1 and 3 have the base 1000000", ["#1000000", "#1.5 & (power|exponent|\\^)", "#0.5623", "#100 & (base|theta) & (times|larger|factor|multipl)"], lambda c: c.right(freq=powers(d, 1e6)), layers=[1, 3])
form("r7_other_way", ROPES, "the rotation turns the other way: the sine has the other sign", ["(other|opposite|wrong|revers|back|inverse|negat|minus|transpos|-1).{0,40}(way|direction|sign|sin|angle|position|rotat|turn)", "(sin|angle|position|rotat|turn|frequenc)\\w*.{0,40}(negat|minus|-1|other sign|revers|back|opposite)", "a ?\\*? ?cos ?\\+ ?b ?\\*? ?sin", "-p\\b|-sin"], lambda c: c.right(pos=-POS))
form("r7_ids_of_64_bits", ROPES, "positions of 64 bits are read as 32: token 2i has position i, odd tokens position 0", ["(odd|even|every (second|other)|2 ?\\*? ?i|altern) & (position|token|rotat)", "(64|32).{0,5}bit", "positions? (are |of )?(\\[|\\()?0, ?0, ?1, ?0, ?2"], lambda c: c.right(pos=np.where(POS % 2, 0, POS // 2)))

# scores
form("s7_scale", "probs", "scores are divided by the root of 24, not of 16", ["#24|#0.2041|#0.8165|#4.899|#1.2247|#0.6667"], lambda c: c.right(scale=1 / np.sqrt(24)))


def before_rotation(c):
    of = lambda s: c.e.memory.get((f"{s}_norm", c.l), c.e.memory[s, c.l])
    return c.right(q=of("q"), k=of("k"))


form("s7_unrotated", "probs", "queries and keys are read as they were before the rotation", ["(unrot|before (the |its |their )?(rot|rope)|not.{0,12}rot|without.{0,12}(rot|rope)|\\bno rot)", "(q_norm|\\bq\\b).{0,40}(k_norm|\\bk\\b).{0,40}(in place|instead|not (the )?rot|stand)"], before_rotation)
form("s7_queries_memory", "probs", "the queries' memory, positions first, is read as heads first: [20, 4, 16] as [4, 20, 16]", [LAYOUT + "|heads? first|positions? first"], lambda c: c.right(q=c.q.reshape(H, T, d).swapaxes(0, 1)))
form("s7_heads_0111", "probs", "head 0 reads key head 0, heads 1, 2 and 3 read key head 1", ["head.{0,10}\\b1\\b.{0,60}(key|kv|\\bk\\b|head)", "0, ?1, ?1, ?1"], lambda c: c.right(kv=[0, 1, 1, 1]))
form("s7_page_zero", "probs", "keys of positions 8 to 11 are zero: a page is not written", ["(#8|#11|#7|#12) & (zero|scores? .{0,30}\\b0\\b|\\b0\\b(?!\\.)|empty|not (written|read)|nothing|lost)"], lambda c: c.right(k=put(c.k, E_[8:12], 0)))
form("s7_keys_5_bits", "probs", "keys are rounded to multiples of their head's largest size over 15", ["(#15|#0.066667|#16|#31|#32) & (" + ROUNDED + "|larg|max)", "(#5|five) & bit"], lambda c: c.right(k=in_steps(c.k, 15)))
form("s7_queries_exchanged", "probs", "the queries of heads 0 and 1 are exchanged, and those of heads 2 and 3", ["head & (" + EXCHANGED + "|1, ?0, ?3, ?2|that of|other)"], lambda c: c.right(q=c.q[:, [1, 0, 3, 2]]))
form("s7_page_reversed", "probs", "within each page of 4 positions keys are in reverse order", PAGE_REVERSED, lambda c: c.right(k=c.k[POS // 4 * 4 + 3 - POS % 4]))
form("s7_keys_layer_0", "probs", "layers 1 to 3 read the keys of layer 0: the cache has no offset for layers", [LAYER_0 + "|(other|another|wrong|shared).{0,12}(layer|cache)|" + LAYER_BEFORE], lambda c: c.right(k=c.e.memory["k_rope", 0]), layers=LATER)
form("m7_window", "probs", "all layers have a window of 10 keys", ["(#10|#9|ten|nine) & (window|distance|last|ago|before|back|key|recent|see|newest)"], masked(SEEN & (AGO < 10)))
form("p7_first_page", "probs", "the weights of keys 0 to 3 are set to 0 after the softmax", ["(#3|#4|four) & (" + ZERO + "|first|from|hidden)"], lambda c: put(c.right(), E_[..., :4], 0))
form("p7_halved", "probs", "all weights are halved: the denominator is summed twice", HALVED + ["(denominator|sum|divid) & (#2|" + TWICE + ")"], lambda c: c.right() / 2)
form("p7_two_rows", "probs", "tokens 2i + 1 have the weights of token 2i", ["(odd|even|every (second|other)|2 ?\\*? ?[it]|pair|two|#2) & (" + COPIED + "|" + PREVIOUS + ") & ^(?!.*(exchang|swap|\\^ ?1|xor))"], lambda c: c.right()[:, POS // 2 * 2])
form("p7_heads_repeat", "probs", "heads 2 and 3 have the weights of heads 0 and 1", ["head & (0, ?1, ?0, ?1|mod|%|#2 & #0|#3 & #1|repeat|second half)"], lambda c: c.right()[[0, 1, 0, 1]])

# context
form("c7_page_zero", "context", "values of positions 8 to 11 are zero: a page is not written", ["(#8|#11|#7|#12) & (" + ZERO + ")"], lambda c: c.right(v=put(c.v, E_[8:12], 0)))
form("c7_ring", "context", "values of positions 0 to 3 are those of positions 16 to 19: a ring of 16 slots", ["(#16|#19) & (#3|#4|#0|first|ring|mod|overwrit|that of|those of)"], lambda c: c.right(v=c.v[np.r_[16:20, 4:T]]))
form("c7_interleaved", "context", "within each head elements are interleaved: i at 2i and i + 8 at 2i + 1", ["interleav|2 ?\\*? ?i|even|odd|permut|\\border|every (second|other)|strid|shuffl|transpos"], lambda c: interleaved(heads_of(c)).reshape(T, -1))
form("c7_rows_8_to_15", "context", "rows of tokens 8 to 15 are zero: a tile is not computed", ["(#8|#7) & (#15|#16) & (" + ZERO + ")"], lambda c: put(c.right(), E_[8:16], 0))
form("c7_values_layer_0", "context", "layers 1 to 3 read the values of layer 0: the cache has no offset for layers", [LAYER_0 + "|(other|another|wrong|shared).{0,12}(layer|cache)|" + LAYER_BEFORE], lambda c: c.right(v=c.e.memory["v", 0]), layers=LATER)
form("c7_page_twice", "context", "keys 4 to 7 are counted twice", ["(#4|#3) & (#7|#8) & (" + TWICE + "|#2)"], lambda c: c.right(p=put(c.p, E_[..., 4:8], lambda y: y * 2)))
form("c7_heads_rolled", "context", "head h is written at the place of head h + 1, modulo 4", ["head & (next|shift|roll|[+-] ?1\\b|3, ?0, ?1, ?2|1, ?2, ?3, ?0|order|permut|before|one (further|late|early))", "(#16|#48|#-16) & (roll|shift|that of|mod|\\+|late)"], lambda c: np.roll(heads_of(c), 1, 1).reshape(T, -1))
form("c7_cache_only", "context", "tokens from 10 on sum the values of positions 0 to 9 alone: those of their own chunk are lost", ["(#10|#9|half|ten) & (" + ZERO + "|first|from|chunk|key|value)"], lambda c: c.right(p=np.where(KEY >= 10, 0, c.p)))

# activations
form("a7_tanh", "ffn_act", "tanh(gate) up", ["^(?!.*(gelu|cub|0\\.79|silu|swish)).*tanh", "#2 & sigmoid & (-|minus) ?1"], act(np.tanh))
form("a7_sigmoid_up", "ffn_act", "silu(gate) sigmoid(up)", ["sigmoid.{0,12}\\bup|logistic.{0,12}\\bup|up.{0,40}(sigmoid|logistic)|1 ?/ ?\\(1 ?\\+ ?(e\\^|exp\\()-?\\(?up"], lambda c: c.right(up=sigmoid(c.up)))
form("a7_gate_before", "ffn_act", "the gate is that of the token before", ["gate & (" + PREVIOUS + ")"], lambda c: c.right(gate=np.concatenate([c.gate[:1], c.gate[:-1]])))
form("a7_up_halves", "ffn_act", "the halves of up are exchanged: channel i has the up of channel i + 48, modulo 96", ["up & (half|halves|#48|#47) & (" + EXCHANGED + "|roll|shift|that of|mod|\\+ ?48)"], lambda c: c.right(up=np.roll(c.up, F // 2, -1)))
form("a7_up_alone", "ffn_act", "silu(up) up: the gate is not read", ["(silu|swish)\\(?.{0,8}\\bup|up\\)? ?(\\^ ?2|squared).{0,30}sigmoid|sigmoid\\(?up.{0,20}up|gate.{0,30}(is|are|has|=|read as|replaced by|taken as).{0,20}\\bup|up.{0,30}(for|in place of|instead of|stands for).{0,20}gate|without.{0,8}gate"], lambda c: c.right(gate=c.up))
form("a7_stale_up", "ffn_act", "layers 1 to 3 read the up of the layer before", ["up & (" + LAYER_BEFORE + ")"], lambda c: c.right(up=c.e.memory["ffn_up", c.l - 1]), layers=LATER)

# residual sums
form("d7_stream_halved", "h", "the stream is halved: x / 2 + y", ["(#0.5|half|halved|#2) & (stream|\\bx\\b|h_attn|residual|input)"], add(x=lambda c: c.x / 2))
form("d7_odd_rows", "h_attn", "nothing is added at odd positions", ["(odd|every (second|other)|even|altern|2 ?\\*? ?[it] ?\\+ ?1) & (" + ZERO + "|\\bno\\b|not|unchanged|copy)"], add(y=lambda c: put(c.y, E_[1::2], 0)))
form("d7_taken_off", "h_attn", "the branch is taken off, not added: x - y", ["(taken off|subtract|minus|negat|other sign|sign|#-1|x ?- ?y|- ?attn_out|- ?branch)"], add(y=lambda c: -c.y))
form("d7_branch_next", "h", "the branch of the token after is added, to the last its own", ["(branch|ffn|feed|mlp|\\by\\b) & (" + NEXT + ")"], add(y=lambda c: np.concatenate([c.y[1:], c.y[-1:]])))
form("d7_first_channels", "h", "channels 0 to 15 have the stream alone: the branch is not added there", ["(#15|#16) & (stream|branch|" + ZERO + "|\\bx\\b|ffn_out|ffn)"], add(y=lambda c: put(c.y, E_[:, :16], 0)))

# embedding
form("e7_eighth", "h0", "rows are divided by 8, the root of the hidden size", ["#8 & (divi|/|over)|#0.125|eighth"], lambda c: c.right() / 8)
form("e7_tokens_pairs", "h0", "tokens 2i and 2i + 1 have each other's row", ["(pair|2 ?\\*? ?i|neighbo|adjacent|even|odd|xor|exchang|swap) & (token|row|id|table)", "tokens-differ|tokens? differ"], lambda c: c.right(ids=[i ^ 1 for i in c.ids]))
form("e7_last_rows", "h0", "positions from 16 on are zero", ["(#16|#15|#19) & (" + ZERO + ")"], lambda c: put(c.right(), E_[16:], 0))
form("e7_two_rows", "h0", "positions 2i + 1 have the row of position 2i", ["(odd|even|every (second|other)|2 ?\\*? ?[it]|pair|two|#2) & (" + COPIED + "|" + PREVIOUS + ") & ^(?!.*(exchang|swap|\\^ ?1|xor))", "tokens-differ|tokens? differ"], lambda c: c.right(ids=[c.ids[t // 2 * 2] for t in range(T)]))

# head
form("l7_times_8", "logits", "logits are multiplied by 8, the root of the hidden size", ["#8 & (times|factor|multipl|scal|\\*|larger)"], lambda c: c.right() * 8)
form("l7_first_shard", "logits", "logits of tokens 0 to 63 are zero", ["(#63|#64) & (" + ZERO + ")", "first (quarter|shard) & (zero|\\b0\\b|lost)"], lambda c: put(c.right(), E_[:, :64], 0))
form("l7_next_row", "logits", "each position has the logits of the position after, the last its own", [NEXT], lambda c: np.concatenate([c.right()[1:], c.right()[-1:]]))
form("l7_input_halves", "logits", "inputs 0 to 31 and 32 to 63 are exchanged", [HALVES_EXCHANGED], inputs(lambda x: np.roll(x, 32, -1)))
form("l7_two_tokens", "logits", "tokens 2i + 1 have the logit of token 2i", ["(odd|even|every (second|other)|2 ?\\*? ?[itv]|pair|two|#2) & (" + COPIED + "|" + PREVIOUS + ") & ^(?!.*(exchang|swap|\\^ ?1|xor))"], lambda c: c.right()[:, np.arange(V) // 2 * 2])

# mixtures of experts
def gate_twice(t, s, x, n, c):
    gate, down = (c.e.m(f"mlp.experts.{x}.{name}_proj.weight", c.l) for name in ("gate", "down"))
    y = n @ gate.T
    return (silu(y) * y) @ down.T


form("x7_numbers_from_1", "router_logits", "the logit of expert e is that of expert e - 1, modulo 6: experts are counted from 1", ["(expert|logit|output|row|channel) & (shift|roll|next|before|previous|[+-] ?1\\b|one (late|early|further|off)|off by|order|permut|5, ?0, ?1)"], lambda c: np.roll(c.right(), 1, -1), archs=M)
form("x7_router_half", "router_logits", "inputs 32 to 63 are not read", ["(#32|#31|half|#63) & (" + ZERO + "|first|input)"], inputs(lambda x: put(x, E_[:, 32:], 0)), archs=M)
form("x7_weights_halved", "router_weights", "the weights are halved: their sum is 1/2", HALVED, lambda c: chosen(c, lambda w, z: shares(w, z) / 2), archs=M)
form("x7_first_expert", "ffn_out", "both slots run the first chosen expert", ["(first|slot 0|best|likeliest|same|top) & (both|second|expert|slot|twice|alone|only)"], lambda c: summed(c.each[:, [0, 0]], c.weights), archs=M)
form("x7_gate_twice", "ffn_out", "the experts' up is their gate: silu(gate) gate", ["gate.{0,40}(twice|both|for up|in place of.{0,10}up|instead of.{0,10}up|\\^ ?2|squared)|up.{0,40}(is|are|has|=|replaced by|read as|that of|those of).{0,24}gate|silu\\(gate\\) ?\\*? ?gate"], lambda c: mixed(c, lambda t, s, x, n: gate_twice(t, s, x, n, c)), archs=M)
form("x7_expert_0_lost", "ffn_out", "expert 0 gives nothing: the loop begins at 1", ["expert & (\\b0\\b|first) & (" + NOT + "|zero|nothing|\\b0\\b.{0,40}\\b0\\b|lost|left out|hidden|not|dropp)"], lambda c: summed(c.each, np.where(top_of(c) == 0, 0, c.weights)), archs=M)
form("x7_late_rows", "ffn_out", "positions from 12 on get nothing of their second expert", ["(#12|#11) & (second|slot|first|last|only|one expert|#1)"], lambda c: summed(c.each, put(c.weights, E_[12:, 1], 0)), archs=M)


if __name__ == "__main__":
    for f in FORMS:
        print(f"{f.name:36} {f.sites[0]:14} {f.truth}")
    print(len(FORMS), "forms")

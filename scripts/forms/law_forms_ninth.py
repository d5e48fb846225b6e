"""A ninth list of mistakes for `firstdiff explain` to measure: those of ports to other engines (Rust, C++, CUDA, WASM), wrong buffers, strides, caches, byte formats and loops, written
without sight of how laws are found: none repeats one of the first eight lists.

    python scripts/forms/law_forms_ninth.py                  # list them
    python scripts/suites/test_laws.py --set ninth ..         # hold the answers to the truth
"""

import numpy as np

from scripts.forms.law_forms import D, EPS, EXPERTS, E_, F, F32, FREQ, H, K, POS, ROPES, T, V, d, listed, over, put, sigmoid, turn
from scripts.forms.law_forms_eighth import MEMORY, STRIDE, each_has, flat
from scripts.forms.law_forms_fourth import ADDED, LAYOUT
from scripts.forms.law_forms_sixth import GAIN, Q2, Q3, WEIGHTS, ZERO
from scripts.forms.law_forms_third import LATER, LAYER_BEFORE, ROUNDED, add, chosen, heads_of, inputs, shares, summed, top_of, weights

FORMS, form = listed()


M = ("moe",)
UNNORMED = "(\\bnot?\\b|without|\\bun-?|before|neither|skip|lack).{0,24}norm|norm\\w*.{0,24}(\\bnot?\\b|skip|missing)|identity|unchanged|copy|copied|is (the |its )?(input|k)\\b|the input itself"

# norms
form("n9_gain_f16_as_bf16", "attn_norm", "gains of f16 are read as bf16: 1 is 2^-7, and a size twice as large is 2^(1/8) or so larger",
     ["(" + GAIN + ") & (bf16|bfloat|f16|half|bits|format|#0.0078125|#128|power|exponent|log|2 ?\\^)", "#0.0078125|#128"],
     lambda c: c.right(w=(c.w.astype(np.float16).view(np.uint16).astype(np.uint32) << 16).view(F32)))
form("n9_embedding", "attn_norm", "layers 1 to 3 norm the embedding: the pointer to the stream is not moved", ["embed|h0\\b|layer.{0,4}0'?s? input|(input|stream) of (the )?(layer 0|first layer)"],
     lambda c: c.right(x=c.e.memory["h0", None]), layers=LATER)
form("n9_of_normed", "ffn_norm", "its input is attn_norm, what the attention has read", ["attn_norm|input_layernorm|normed (input|stream)|norm.{0,20}(attention|first norm)|norm(ed)? (of the )?layer'?s? input"],
     lambda c: c.right(x=c.e.memory["attn_norm", c.l]))
form("n9_not_cleared", "attn_norm", "the sum of squares is not cleared between positions: position t is divided by the root of the sum over positions 0 to t, over 64",
     ["(so far|up to|cumul|accumul|running|all (the )?(earlier|previous)|before|earlier|prefix|not cleared|0 to t|0\\.\\.t|<= ?t) & (sum|square|mean|rms|divid|position)"],
     lambda c: over(c, np.sqrt(np.cumsum(np.mean(c.x * c.x, -1, keepdims=True), 0) + F32(EPS))))
form("h9_later_unnormed", "k_norm", "keys of positions from 12 on are not normed: the path of single tokens leaves it out", ["(#12|#11) & (" + UNNORMED + ")"],
     lambda c: put(c.right(), E_[12:], c.x[12:]), archs=Q3)
form("h9_keys_of_queries", "k_norm", "query heads 0 and 1 are normed in place of the keys: it reads the wrong buffer", ["(?<!k_)(?<!/)\\bq\\b|\\bquer|q_proj"],
     lambda c: c.right(x=c.e.memory["q", c.l][:, :K]), archs=Q3)

# products
NF4 = np.array([-1, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0, 0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.723, 1], F32)


def even_levels(w):
    size = np.abs(w).max(-1, keepdims=True)
    code = np.abs((w / size)[..., None] - NF4).argmin(-1)
    return ((code - 7.5) / 7.5).astype(F32) * size


def swapped_layers(c):
    return c.right(w=c.e.m("self_attn.v_proj.weight", 3 - c.l))


form("w9_nf4_even", "ffn_up", "the 16 levels of nf4 are read as evenly spaced: weights are at (2 i - 15) / 15 of their row's largest size, for the i-th level",
     ["(nf4|level|code|quantile|table|grid|" + ROUNDED + ") & (weight|row|#16|#15|#7.5|even|larg)"], weights(even_levels))
form("w9_scale_inverse", "k", "each weight row is divided by its scale, where it should be multiplied: divided twice by its largest size",
     ["(row|output|channel) & (scale|size|larg|max|amplitude) & (inver|divid|squar|over|twice|recipro|\\^|/)", each_has("row|output|channel")],
     weights(lambda w: w / np.abs(w).max(-1, keepdims=True) ** 2))
form("w9_out_reads_norm", "attn_out", "its input is attn_norm: the context is in another buffer", ["attn_norm|input_layernorm|norm(ed)? (input|stream)"],
     lambda c: c.right(x=c.e.q(c.e.memory["attn_norm", c.l])))
form("w9_gate_reads_attn_out", "ffn_gate", "its input is attn_out: the attention's branch, neither added nor normed", ["attn_out|attention'?s? (branch|output|result)|o_proj"],
     lambda c: c.right(x=c.e.q(c.e.memory["attn_out", c.l])))
form("w9_offset_stays", "q", "each input has its row's largest size added: bytes without a sign, whose offset of 128 is not taken off",
     ["(" + ADDED + "|offset|shift|constant) & (larg|max|size|peak|amax|#128) & ^(?!.*weights? (has|have|had))", "(larg|max|size|peak|amax).{0,60}(times|\\*).{0,40}(sum of|row sum|sums)"],
     inputs(lambda x: x + np.abs(x).max(-1, keepdims=True) * F32(128 / 127)))
form("w9_weight_stride", "ffn_out", "rows of the weight are read 64 apart in memory, and not 96: row r begins at number 64 r",
     ["(#64|#32) & (" + STRIDE + "|row)", MEMORY], lambda c: c.right(w=flat(c.w, D, F)))
form("w9_column_major", "ffn_up", "the result is written column by column, 96 by 20 in memory, and read as 20 rows of 96", [LAYOUT + "|memory"],
     lambda c: np.ascontiguousarray(c.right().T).reshape(T, F))
form("w9_layers_backward", "v", "layer l has the weight of layer 3 - l: the list of layers is in reverse order",
     ["layer & (revers|backward|3 ?- ?l|other|another|wrong|different|order|exchang|swap|layers?\\.?.{0,3}[0123])"], swapped_layers)
form("b9_input_scale", "k", "the bias is multiplied by the scale of the input, its row's largest size: it is added before the integer sum is scaled",
     ["bias & (larg|max|size|peak|amax|scale|amplitude|times|multipl|factor)"], lambda c: c.right(b=None) + (np.abs(c.x).max(-1, keepdims=True) * c.b).reshape(T, K, d), archs=Q2)
form("b9_fused_order", "q", "outputs 0 to 31 have the bias of k, and 32 to 63 that of q's outputs 0 to 31: a fused bias begins 32 early",
     ["bias & (\\bk\\b|k_proj|keys?\\b|#32|#31|roll|shift|early|late|other)"], lambda c: c.right(b=np.concatenate([c.e.m("self_attn.k_proj.bias", c.l), c.b[:32]])), archs=Q2)


# rotation
def table_of_rows(c):
    """Rows of 8 angles in memory are read 16 apart, and beyond the end are zeros."""
    angle = (np.minimum(2 * POS, T - 1)[:, None, None] * FREQ).astype(F32)
    there = (POS < T // 2)[:, None, None].astype(F32)
    return turn(c.e, c.x, angle, cos=np.cos(angle) * there, sin=np.sin(angle) * there)


def sine_repeated(c):
    angle = POS[:, None, None] * FREQ
    cos, sin = np.cos(angle).astype(F32), np.repeat(np.sin(angle), 2, -1).astype(F32)
    a, b = c.x[..., :d // 2], c.x[..., d // 2:]
    return np.concatenate([a * cos - b * sin[..., :d // 2], b * cos + a * sin[..., d // 2:]], -1)


def chained_pairs(c):
    """The loop over neighbours goes on by 1, not by 2: element i + 1 is turned again with element i + 2."""
    y = np.array(c.x, F32)
    for i in range(d - 1):
        angle = (POS * FREQ[i // 2]).astype(F32)[:, None]
        a, b = y[..., i].copy(), y[..., i + 1].copy()
        y[..., i], y[..., i + 1] = a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)
    return y


form("r9_table_stride", ROPES, "rows of the table of sines and cosines are read 16 apart, and not 8: position t is rotated as 2t, and from 10 on all is zero",
     ["(#10|#9) & (" + ZERO + ")", "(#2|twice|double) & (" + ZERO + ") & (position|row|table|angle)"], table_of_rows)
form("r9_sine_repeated", ROPES, "element j has the sine of frequency floor(j / 2), each twice side by side, and the cosine of j modulo 8, as it should be",
     ["sin\\w* & (frequenc|pair|angle|position|element|channel)"], sine_repeated)
form("r9_chained_pairs", ROPES, "the loop over neighbours i and i + 1 goes on by 1, not by 2: each element is turned with the one before and then with the one after",
     ["(i ?\\+ ?1|neighbo|adjacent|next|chain|overlap|2 ?\\*? ?i|consecutive|one after) & (pair|element|turn|rotat|twice|again|step)"], chained_pairs)
form("r9_keys_of_values", "k_rope", "the values are rotated, in place of the keys", ["\\bv\\b|\\bvalues?\\b(?! (of|is|are) \\d)|v_proj"], lambda c: c.right(x=c.e.memory["v", c.l]))


# scores
def head_stride(c):
    """A cache of 32 slots a head, read as one of 20."""
    slots = np.concatenate([c.k, np.zeros((12, K, d), F32)]).swapaxes(0, 1).reshape(-1, d)
    return c.right(k=slots[:K * T].reshape(K, T, d).swapaxes(0, 1))


form("s9_scale_of_first", "probs", "all keys have the scale of position 0: each key head is multiplied by the largest size of position 0's over its own",
     ["(position|token|key|row|slot) ?(number )?0\\b|first (position|token|key|row|slot)", "(key|\\bk\\b) & (scale|size|larg|max|ratio|length|norm)", each_has("key|position|token")],
     lambda c: c.right(k=c.k / np.abs(c.k).max(-1, keepdims=True) * np.abs(c.k[:1]).max(-1, keepdims=True)))
form("s9_head_stride", "probs", "the cache has 32 slots for each key head and is read as one of 20: key head 1 has 12 zeros and then the keys of positions 0 to 7",
     ["(#12|#32|#11) & (" + STRIDE + "|" + ZERO + "|slot)", MEMORY], head_stride)
form("s9_prefix_layer_before", "probs", "in layers 1 to 3 keys of positions 0 to 11 are those of the layer before: the cached part has the wrong layer's offset",
     ["(#11|#12) & (" + LAYER_BEFORE + "|(other|another|wrong).{0,12}(layer|cache)|cache)"],
     lambda c: c.right(k=put(c.k, E_[:12], c.e.memory["k_rope", c.l - 1][:12])), layers=LATER)
form("s9_last_query", "probs", "all tokens have the query of the last: the row is not counted on",
     ["(query|queries|\\bq\\b) & (last|#19|final|all|same|one|every)"], lambda c: c.right(q=np.repeat(c.q[-1:], T, 0)))
form("s9_times_4", "probs", "scores are multiplied by 4, the root of a head's width, where they should be divided", ["(#16|#4) & (times|multipl|factor|scale|larger|\\*|not divided)"],
     lambda c: c.right(scale=np.sqrt(d)))

# context
form("c9_not_cleared", "context", "the sum is not cleared between heads: head h has the results of heads 0 to h added up",
     ["head & (cumul|accumul|so far|running|" + ADDED + "|earlier|not cleared|prefix|all heads (before|up to))"], lambda c: np.cumsum(heads_of(c), 1).reshape(T, -1))
form("c9_own_value", "context", "each token has its own value alone: the cache is one slot long",
     ["(own|itself|same position|position'?s) & (value|\\bv\\b)", "(weight|probab|attention).{0,40}(not (read|used)|ignored|identity|diagonal)", "\\bis (the )?(v\\b|values?)", "identity|diagonal"],
     lambda c: c.right(p=np.broadcast_to(np.eye(T, dtype=F32), (H, T, T))))
form("c9_slot_early", "context", "values of the second chunk, from 10 on, are written one slot early, over position 9: slot s has the value of s + 1 from 9 on, the last is zero",
     ["(#9|#10) & (next|early|\\+ ?1|after|shift|following|late|further|off|overwrit|one)"], lambda c: c.right(v=np.concatenate([c.v[:9], c.v[10:], np.zeros_like(c.v[:1])])))


# activations
def gates_first(c):
    rows = np.concatenate([c.gate, c.up])
    return c.right(gate=rows[::2], up=rows[1::2])


form("a9_precedence", "ffn_act", "(gate / 1 + e^-gate) up: the denominator has no brackets",
     ["(e ?\\^ ?\\(?-|exp\\(? ?-|exponential) & (\\+|plus|add|sum)"], lambda c: ((c.gate + np.exp(-c.gate)) * c.up).astype(F32))
form("a9_gates_first", "ffn_act", "the buffer has the gates of all positions and then the ups, and is read as a position's gate and then its up: gate t is row 2t of 40, up t row 2t + 1",
     ["(gate|up) & (" + LAYOUT + "|2 ?\\*? ?[it]|even|odd|altern|in turn|every (second|other)|(other|another|different) (position|row|token))"], gates_first)

# residual sums
form("d9_context", "h_attn", "the context is added, not attn_out: its product is not made", ["context|o_proj|(before|without|skip|not).{0,30}(project|attn_out)|heads"],
     add(y=lambda c: c.e.memory["context", c.l]))
form("d9_later_branch_alone", "h", "positions from 12 on have the branch alone: the stream is not added",
     ["(#12|#11) & (stream|branch|ffn_out|residual|h_attn|alone|only|\\bx\\b|" + ZERO + ")"], add(x=lambda c: put(c.x, E_[12:], 0)))

# embedding
form("e9_gain", "h0", "rows are multiplied by the gain of layer 0's attn_norm: it is folded into the wrong weight",
     ["(gain|attn_norm|input_layernorm|norm\\w*) & (times|multipl|factor|scal|\\*|product)", each_has("channel|element|column")], lambda c: c.right() * c.e.m("input_layernorm.weight", 0))

# head
form("l9_reads_ffn_norm", "logits", "its input is the last layer's ffn_norm: the norms share a buffer, and the final one is written elsewhere", ["ffn_norm|post_attention_layernorm|feed.?forward'?s? (input|norm)"],
     lambda c: c.right(x=c.e.q(c.e.memory["ffn_norm", 3])))
form("l9_second_chunk", "logits", "positions 0 to 9 have the logits of positions 10 to 19: the second chunk is written over the first",
     ["(#10|#9|half|halves) & (position|row|token|that of|those of|second|chunk|repeat|mod|further|later|copy|same|[+-])"], lambda c: np.concatenate([c.right()[10:], c.right()[10:]]))


# mixtures of experts
def stale(c):
    logits = c.e.memory["router_logits", c.l - 1]
    return chosen(c.__class__(c.e, c.site, c.l, c.op, {"logits": logits}), shares)


def higher_number(c):
    """The loop over experts writes a token's row, and does not add to it."""
    top = top_of(c)
    return summed(c.each, np.where(top == top.max(-1, keepdims=True), c.weights, 0))


def compact_rows(c):
    """An expert's results are added to rows 0, 1, 2, .. and not to those of its tokens."""
    top, y = top_of(c), np.zeros((T, D), F32)
    for x in range(EXPERTS):
        for number, (t, s) in enumerate(np.argwhere(top == x)):
            y[number] += c.each[t, s] * c.weights[t, s]
    return y


def of_stream(c):
    x = c.e.memory["h_attn", c.l]
    top, y = top_of(c), np.zeros((T, 2, D), F32)
    for t in range(T):
        for s in range(2):
            y[t, s] = ran_one(c, x[t:t + 1], top[t, s])
    return summed(y, c.weights)


def ran_one(c, n, x):
    gate, up, down = (c.e.m(f"mlp.experts.{x}.{name}_proj.weight", c.l) for name in ("gate", "up", "down"))
    z = n @ gate.T
    return ((z * sigmoid(z) * (n @ up.T)) @ down.T)[0]


form("x9_second_chunk", WEIGHTS, "positions from 10 on have the experts and weights of the position 10 before: the second chunk reads from the buffer's begin",
     ["(#10|#9) & (position|token|row|before|earlier|repeat|that of|those of|begin|mod|first|half|-)"], lambda c: tuple(y[POS % 10] for y in chosen(c, shares)), archs=M)
form("x9_routing_before", WEIGHTS, "layers 1 to 3 have the experts and the weights of the layer before", [LAYER_BEFORE], stale, layers=LATER, archs=M)
form("x9_higher_number", "ffn_out", "of the two experts only the one of the higher number is kept: each expert writes over the row, and does not add",
     ["(higher|larger|greater|highest|later|last|number) & (expert|number|slot)"], higher_number, archs=M)
form("x9_compact_rows", "ffn_out", "an expert's results are added to rows 0, 1, 2, .. and not to those of its tokens",
     ["(row|position|token) & (compact|packed|\\border|first rows|0, ?1, ?2|scatter|put back|gather|number|n-th|i-th|other|wrong|list|sort|permut)"], compact_rows, archs=M)
form("x9_stream", "ffn_out", "the experts read the stream h_attn, without the norm; the router reads what it should",
     ["h_attn|stream|residual|(without|before|not|un-?).{0,20}norm"], of_stream, archs=M)


if __name__ == "__main__":
    for f in FORMS:
        print(f"{f.name:36} {f.sites[0]:14} {f.truth}")
    print(len(FORMS), "forms")

#!/usr/bin/env python3
"""law_forms_thirteenth_b.py: thirty-five more mistakes that no catalogue lists, behind the scores: contexts, the cache of values, projections out of attention,
feed-forwards, residuals, embedding, logits and experts; written without sight of how laws are found.

The engine and the rules for expectations are law_forms.py's. A prompt of 12 tokens stands before decode steps where a form speaks of them.
"""

import numpy as np

from scripts.forms.law_forms import E_, F, F32, H, K, POS, T, V, D, EXPERTS, CHOSEN, LAYERS, d, joined, listed, put, silu, softmax

FORMS, form = listed()
M = ("moe",)
TOPK = ("router_topk", "router_weights")
PROMPT = 12
# element 2i is that of i, 2i + 1 that of i + d/2: what a converter to GGUF does to Q and K of a llama
PERMUTED = np.arange(d).reshape(2, d // 2).T.ravel()
ZERO = "\\b0\\b(?!\\.\\d)|zero|nothing|empty|missing|lost|\\bnot\\b|never|left out|leaves? out|omit|drop|skip|without"
TWICE = "twice|doubl|two times|again|once more|2 ?(\\*|times|×|y|branch)|factor (of )?2"


# ---- contexts and values

def mixed(p, v):
    """Contexts of weights [H,T,S] and of values [S,H,d]."""
    return np.einsum("hts,shd->thd", p, v).reshape(T, -1)


def wide(v):
    return v[:, np.arange(H) // (H // K)]


def weights_by_count(c):
    """A query's weights lie in rows of T for each head; they are read in rows of as many as it has keys."""
    p = np.zeros_like(c.p)
    for t in range(T):
        flat = c.p[:, t].ravel()
        for h in range(H):
            p[h, t, :t + 1] = flat[h * (t + 1):(h + 1) * (t + 1)]
    return p


def weights_of_even_keys(c):
    p = np.array(c.p)
    p[:, :, 1::2] = np.where(POS[1::2] <= POS[:, None], p[:, :, 0::2], 0)
    return p


def grown(c):
    """The cache had 16 slots; when it grew, what it held was not copied."""
    p = np.array(c.p)
    p[:, 16:, :16] = 0
    return p


def left_over(c):
    n = np.array(c.e.memory["attn_norm", c.l]).reshape(T, H, d)
    n[..., :d // 4] = 0
    return c.right() + n.reshape(T, -1)


form("context_cleared_in_bytes", "context", "the buffer, which held attn_norm, is cleared by head_dim bytes a head: attn_norm is still in elements 4 to 15 of each head, and the context is added to it",
     ["(attn_norm|normed|norm'?s? (output|result)|input of (q|k|v|the projections)|layernorm) & (#4|#3|#12) & (add|plus|\\+|left|remain|still|not cleared|stale|accumul|sum|on top|besides)"], left_over)
form("cache_value_copied_in_bytes", "context", "in decode steps, from position 12 on, a quarter of the row of values goes into the cache: elements 0 to 7 of 32; the others are 0",
     ["(#12|#11) & (#8|#7|#24|quarter) & (value|\\bv\\b|cache) & (only|alone|quarter|" + ZERO + ")"],
     lambda c: c.right(v=put(c.v.reshape(T, -1), E_[PROMPT:, K * d // 4:], 0).reshape(T, K, d)))
form("context_weights_by_count", "context", "head h of query t reads its weights from h (t + 1) on, where they lie at h * 20",
     ["(t ?\\+ ?1|pos(ition)?s? ?\\+ ?1|keys (seen|so far|visible)|(number|count) of (seen |visible )?keys|key count|n_?kv|keys it sees|row length|as many as it (has|sees)) & (stride|pitch|offset|apart|distance|begin|start|flat|head) & ^(?!.*divid)",
      "h ?[*·×]? ?\\(t ?\\+ ?1\\)"], lambda c: mixed(weights_by_count(c), wide(c.v)))
form("context_elements_repeated", "context", "each element of the values is repeated, not each head: element i of the widened row is element i / 2 of the 32",
     ["(element|channel|component|dimension|number|flat|\\b[ijec] ?//? ?2) & (twice|repeat|interleav|duplicat|stretch|two by two|pairs?|//? ?2) & (value|\\bv\\b|element|channel|component)"],
     lambda c: mixed(c.p, np.repeat(c.v.reshape(T, -1), H // K, -1).reshape(T, H, d)))
form("cache_grown_uncopied", "context", "the cache of values grows at 16 positions and is not copied: from position 16 on, values of positions 0 to 15 are 0",
     ["(#16|#15) & (value|key|cache|\\bv\\b) & (before|below|earlier|older|under\\b|< ?16|0 ?(to|-|\u2013|\\.\\.\\.?|through) ?15|up to 15|first (16|sixteen)|prior|previous) & (only|alone|forg[eo]t|" + ZERO + ")",
      "(#16|#15) & (only|alone).{0,60}(value|key|slot)s?.{0,60}(16|sixteen)"], lambda c: mixed(grown(c), wide(c.v)))
form("context_weight_of_even_key", "context", "keys are taken two at a time, and both values have the weight of the first: key 2i + 1 has that of 2i",
     ["(weight|prob|\\bp\\b) & (odd|2i ?\\+ ?1|second|pair|neighbo|two (by two|at a time)|s ?- ?1) & (even|\\b2i\\b|first|pair|(key|one) before|previous|preced|s ?(//|/) ?2)"],
     lambda c: mixed(weights_of_even_keys(c), wide(c.v)))


# ---- out of attention

def in_place(c):
    x = np.array(c.x, F32)
    for o in range(D):
        x[:, o] = x @ c.w[o]
    return x


form("attn_out_unrolled_index", "attn_out", "the loop is unrolled by four and its last line takes x[i + 2]: the weight of input 4i + 3 meets input 4i + 2",
     ["((#4 & #3 & #2)|((#4|fourth|last of four) & (third|before|previous|neighbo|preced|i ?- ?1))) & (input|column|context|channel|element|\\bx\\b|weight) & (instead|replac|reads?\\b|is that|those|of that|repeat|cop(y|ies)|meets?|takes?|used|place|for|=) & ^(?!.*4 ?\\*? ?i ?\\+ ?2 (is|reads|are|has|meets).{0,40}4 ?\\*? ?i ?\\+ ?3)"],
     lambda c: c.right(x=put(c.x, E_[:, 3::4], c.x[:, 2::4])))
form("attn_out_decode_one_warp", "attn_out", "in decode steps, from position 12 on, 32 lanes read an input each: inputs 32 to 63 are not read",
     ["(#12|#11) & (#32|#31|half) & (input|column|context|channel|head|element|\\bread|first)", "(#12|#11) & head & (#1|#2|two)"], lambda c: c.right(x=put(c.x, E_[PROMPT:, 32:], 0)))
form("attn_out_rows_permuted", "attn_out", "the rows of its matrix are permuted as those of Q are in a GGUF: output 16b + 2i is that of 16b + i, 16b + 2i + 1 that of 16b + i + 8",
     ["0, ?8, ?1\\b|halves.{0,30}pairs|pairs.{0,30}halves|qk-row|other (pairing|rotation)", "(permut|interleav|rearrang|shuffl|order|\\b2 ?i\\b) & (#8|#16) & (row|output|channel|element|head|block)"],
     lambda c: c.right().reshape(T, -1, d)[..., PERMUTED].reshape(T, D))
form("attn_out_in_place", "attn_out", "outputs are written over the inputs: output o reads, for inputs below o, the outputs that are there already",
     ["in.?place|alias|overwr|written over|same buffer|triang|recurs|forward substitution", "(input|context|reads?).{0,80}(outputs?|results?).{0,40}(before|below|already|earlier|so far|lower|smaller|preced|previous) & ^(?!.*(layer|position|token|row) (before|earlier))",
      "(earlier|already|lower|preced|previous|smaller).{0,40}(outputs?|results?|channels?) & ^(?!.*(previous|earlier|preceding|lower) (layer|position|token|row))"], in_place)
form("attn_out_thread_gaps", "attn_out", "threads begin at multiples of 11 and do 10 rows each: outputs 10, 21, 32, 43 and 54 stay 0",
     ["(#10 & #21) & (" + ZERO + ")", "(#11|eleven|eleventh) & (every|each|mod\\b|%|step|stride|apart|multiple|11 ?[ik]) & (" + ZERO + ")"], lambda c: put(c.right(), E_[:, 10::11], 0))


# ---- feed-forward

def overrun(c):
    """Four inputs too many: the first of the next row of each."""
    after = np.zeros((T, 4), F32)
    after[:-1] = c.x[1:, :4]
    rows = np.zeros((D, 4), F32)
    rows[:-1] = c.w[1:, :4]
    return c.right() + after @ rows.T


form("act_grid_cut", "ffn_act", "the grid has T * F / 256 blocks, cut to 7: elements from 1792 on, position 18 from channel 64 and position 19, are still the gate",
     ["(#1792|#1791|#128|(#18 & #64)|(#18 & #19)|(#18 & #63)) & (gate|not activated|without (activation|up)|raw|as (it is|they are)|untouched|unchanged|not (computed|reached|done|multiplied)|stale|input)"],
     lambda c: np.concatenate([c.right().ravel()[:1792], c.gate.ravel()[1792:]]).reshape(T, F))
form("act_up_chunk_of_8", "ffn_act", "rows are done in chunks of 8, and the pointer to up is not moved on: row t is multiplied by up of row t mod 8",
     ["(#8|eight|#7) & \\bup\\b & (mod\\b|modulo|remainder|%|t & 7|chunk|tile|batch|again|repeat|period|wrap|first (8|eight)|//? ?8|0 ?(to|-|\\.\\.) ?7|t ?- ?16)"], lambda c: c.right(up=c.up[POS % 8]))
form("up_decode_stuck", "ffn_up", "in decode steps, from position 12 on, it reads the prompt's last row: up is that of position 11",
     ["#11 & (#12|later|decod|after|behind|beyond|> ?11|min\\(|clamp|all further|onward)", "#12 & (prompt'?s? (last|end)|last.{0,24}prompt|end of the prompt|last prompt)"], lambda c: c.right()[np.minimum(POS, PROMPT - 1)])
form("up_negative_inputs_skipped", "ffn_up", "inputs that are not above 0 are skipped, as if they were 0: max(x, 0) is read",
     ["(negativ|below (0|zero)|< ?=? ?0|less than (0|zero)|relu|rectif|max\\(.{0,24}\\b0|positiv|> ?0|above (0|zero)) & (input|ffn_norm|\\bx\\b|channel|reads?\\b) & ^(?!.*(relu|max)\\((ffn_)?(up|gate|result|output))"],
     lambda c: c.right(x=np.maximum(c.x, 0)))
form("gate_tail_rows_clamped", "ffn_gate", "rows come in tiles of 8 and the last, short one is clamped to the last full one: positions 16 to 19 have the gate of position 15",
     ["#15 & (#16|min\\(|later|after|behind|beyond|> ?15|last (four|4)|clamp|onward)"], lambda c: c.right()[np.minimum(POS, 15)])
form("ffn_out_accumulators", "ffn_out", "four sums are added as s0 + s1 + s2 + s2: inputs 4i + 2 count twice, 4i + 3 not at all",
     ["(#4|four|fourth) & (#3|third|last|fourth) & (#2|twice|doubl|two times|again) & (" + ZERO + ") & ^(?!.*4 ?\\*? ?i ?\\+ ?2\\b.{0,15}(\\bnot\\b|\\b0\\b|left|lost|skip|omit))"],
     lambda c: c.right(x=put(put(c.x, E_[:, 2::4], 2 * c.x[:, 2::4]), E_[:, 3::4], 0)))
form("ffn_out_inner_seven", "ffn_out", "steps of 8 have an inner loop of 7: inputs 7, 15, 23, .. are left out",
     ["(#8|eight|eighth|#7) & (every|each|mod\\b|%|multiple|step|8 ?[ik]\\b|last of|stride|blocks?|(#15 & #23)) & (input|column|channel|ffn_act|element|product|\\bx\\b|weight) & (" + ZERO + ")"],
     lambda c: c.right(x=put(c.x, E_[:, 7::8], 0)))
form("ffn_out_overrun", "ffn_out", "the sum runs 4 inputs too far, over the first four of the next row of x and of the matrix: w[o + 1, 0..4] x[t + 1, 0..4] is added",
     ["(next|follow|[to] ?\\+ ?1|behind|beyond|too far|past|over ?-?(run|read)|row after) & (#4|four|#99|#100|(#0 & #3)) & (row|position|token|matrix|weight|input|channel|sum)"], overrun)


# ---- residuals

form("add_every_other_vector", "h_attn", "vectors are of 8 and the step is 16: channels 8 to 15, 24 to 31, .. do not get the branch",
     ["((#8 & (#15|#16|#24))|(#8 & #7 & (every (second|other)|alternat|odd|16))|(#8 & (every (second|other)|alternat|odd) & (block|vector|group|of 8|eights?))) & (branch|attn_out|attention|add|stream|residual|sum|h0)"],
     lambda c: c.right(y=put(c.y.reshape(T, -1, 8), E_[:, 1::2], 0).reshape(T, D)))
form("add_decode_branch_twice", "h", "in decode steps, from position 12 on, the fused norm has added the branch and it is added again",
     ["(#12|#11) & (#2|" + TWICE + ") & (branch|ffn_out|feed|add|\\by\\b|sum)"], lambda c: c.right(y=put(c.y, E_[PROMPT:], 2 * c.y[PROMPT:])))
form("add_width_of_ffn", "h_attn", "the loop over a row runs to 96, not 64: the first 32 channels of each position but the first get the branch twice",
     ["(#32|#31|half) & (#2|" + TWICE + ") & (branch|attn_out|attention|add|\\b2? ?y\\b) & ((from|positions?|rows?|tokens?|t ?(>|>=|\u2265)).{0,6}\\b[01]\\b|first (position|row|token)|but the first|except|every later)"], lambda c: c.right(y=put(c.y, E_[1:, :F - D], 2 * c.y[1:, :F - D])))


# ---- embedding

form("embed_offset_in_bytes", "h0", "id * 64 is taken for bytes: a token's row begins at element 16 id of the table",
     ["#16 & (\\bids?\\b|apart|stride|pitch|offset|begin|start|distance|flat)", "(quarter|#0.25|/ ?4|id ?// ?4) & (offset|row|begin|start|stride|bytes?|pitch)"],
     lambda c: c.table.ravel()[16 * np.asarray(c.ids)[:, None] + np.arange(D)])
form("embed_vector_index", "h0", "vectors of four are read at i, not 4i: channel 4i + j is that of i + j",
     ["(#4|four) & (\\bi ?\\+ ?j\\b|//? ?4\\)? ?\\+|floor.{0,12}4.{0,8}\\+|overlap|(vector|block|group|four|4).{0,60}(one (channel|element|later|on|further|apart)|begins? at|starts? at)|(step|stride|distance|apart).{0,12}(1|one)\\b)",
      "0, ?1, ?2, ?3, ?1, ?2, ?3, ?4"], lambda c: c.right()[:, np.arange(D) // 4 + np.arange(D) % 4])


# ---- logits

form("logits_column_major", "logits", "the product is stored by columns, [V,T], and read as [T,V]: element 256 t + v of the one is that of the other",
     ["(column.?major|transpos|\\[?(V|256), ?(T|20)\\]?|(V|256) ?[x×] ?(T|20)|by columns|axes|(token|row|position|vocab).{0,40}(fastest|inner)|(%|mod) ?20|// ?20|20 ?\\* ?v) & ^(?!.*((weight|the head|matrix it).{0,40}(transpos|column)|\\[in, ?out|weight-transposed))"],
     lambda c: c.right().T.reshape(T, V))
form("logits_decode_unnormed", "logits", "in decode steps, from position 12 on, the head reads the stream, not final_norm",
     ["(#12|#11) & (not normed|unnormed|without.{0,20}norm|(no|skip\\w*|omit\\w*|lost|missing).{0,20}norm|norm.{0,30}(omitted|skipped|missing|left out|not )|layers\\.3\\.h|layer 3'?s?|stream|residual|\\bh\\b|hidden state|input of final_norm|final_norm'?s? input)"],
     lambda c: c.right(x=put(c.x, E_[PROMPT:], c.e.q(c.e.memory["h", LAYERS - 1])[PROMPT:])))
form("logits_sum_reset_by_four", "logits", "the sum is set to 0 before each fourth row alone: logit 4i + j is the sum of those of 4i to 4i + j",
     ["(#4|four|fourth) & (sums?\\b|cumul|add(s|ed)|accumul|carr(y|ies|ied)|running|reset|so far|plus)"], lambda c: c.right().reshape(T, -1, 4).cumsum(-1).reshape(T, V))


# ---- router and experts

def one_pass(c):
    """The best two in one pass, in which a best one that is beaten is forgotten, not made the second."""
    p = softmax(c.logits)
    top = np.zeros((T, CHOSEN), int)
    for t in range(T):
        first, second = -1.0, -1.0
        for x in range(EXPERTS):
            if p[t, x] > first:
                first, top[t, 0] = p[t, x], x
            elif p[t, x] > second:
                second, top[t, 1] = p[t, x], x
    w = np.take_along_axis(p, top, -1)
    return top, w / w.sum(-1, keepdims=True)


def sum_again(c):
    p = softmax(c.logits)
    top, _ = c.right()
    w = np.take_along_axis(p, top, -1)
    for s in range(CHOSEN):
        w[:, s] = w[:, s] / w.sum(-1)
    return top, w


def choice_stuck(c):
    top, w = c.right()
    return top[np.minimum(POS, PROMPT - 1)], w


def chosen_of(c):
    return c.e.taps[f"layers.{c.l}.router_topk"].astype(int)


def matrix(c, x, name):
    return c.e.m(f"mlp.experts.{x}.{name}_proj.weight", c.l)


def run(c, x, rows, gate=None, up=None):
    """Expert x of rows of inputs."""
    gate = matrix(c, x, "gate") if gate is None else gate
    up = matrix(c, x, "up") if up is None else up
    return (silu(rows @ gate.T) * (rows @ up.T)) @ matrix(c, x, "down").T


def summed(c, expert):
    """The weighted sum of expert(x, tokens, slots), a result for each."""
    top, y = chosen_of(c), np.zeros((T, D), F32)
    for x in range(EXPERTS):
        rows, slots = np.nonzero(top == x)
        if len(rows):
            y[rows] += expert(x, rows, slots) * c.weights[rows, slots][:, None]
    return y


def up_64_apart(c):
    rows = np.concatenate([matrix(c, x, "up") for x in range(EXPERTS)])
    return summed(c, lambda x, t, s: run(c, x, c.n[t], up=rows[D * x:D * x + F]))


def rows_in_turn(c):
    both = lambda x: np.concatenate([matrix(c, x, "gate"), matrix(c, x, "up")])
    return summed(c, lambda x, t, s: run(c, x, c.n[t], gate=both(x)[0::2], up=both(x)[1::2]))


def inclusive(c):
    """Pairs of token and slot, sorted by expert; each expert begins where its own end and the next one's begin."""
    top = chosen_of(c).ravel()
    order = np.argsort(top, kind="stable")
    count = np.bincount(top, minlength=EXPERTS)
    each = np.zeros((T * CHOSEN, D), F32)
    for x, begin in enumerate(np.cumsum(count)):
        pairs = order[begin:begin + count[x]]
        if len(pairs):
            each[pairs] = run(c, x, c.n[pairs // CHOSEN])
    return (each.reshape(T, CHOSEN, D) * c.weights[..., None]).sum(1)


def padded(c):
    """Each expert's pairs are filled up to a multiple of four by pair 0, which is added as well."""
    y = np.array(c.right())
    for x, count in enumerate(np.bincount(chosen_of(c).ravel(), minlength=EXPERTS)):
        y[0] += (-count % 4) * c.weights[0, 0] * run(c, x, c.n[:1])[0]
    return y


form("router_beaten_first_forgotten", TOPK, "the best two are found in one pass, and a best one that is beaten is not made the second: the second is the largest that has a larger one before it",
     ["(beaten|\\bold|former|previous|earlier|running|overtaken|displaced).{0,40}(first|best|max|largest|leader|record) & ^(?!.*(previous|earlier|preceding|former) (position|token|layer|row))", "(larger|greater|higher|bigger).{0,60}(before|earlier|ahead|lower (number|index)|smaller (number|index)|preced)",
      "(preced|before|behind|after).{0,40}(larger|greater|higher|bigger)", "one pass|single pass|one scan|running max|record"], one_pass, archs=M)
form("router_sum_recomputed", "router_weights", "the sum is taken anew for each weight, in place: the second is divided by the first as it is after its division, plus the second",
     ["(second|last|slot 1|other|smaller|lesser|w_?[12]) & (sum|divid|divisor|denominator|/) & (already|in.?place|recomput|anew|updated|changed|(first|larger|slot 0).{0,60}(divided|normali[sz]ed|already|result|new|scaled|after|quotient)|(divided|normali[sz]ed|new|scaled).{0,30}(first|larger))"],
     sum_again, archs=M)
form("router_decode_choice_stuck", TOPK, "in decode steps, from position 12 on, the experts are those of the prompt's last position, 11; the weights are of their own",
     ["(#11|prompt'?s? (last|end)|last.{0,24}prompt|end of the prompt) & (#12|decod|later|after|behind|beyond|> ?11|min\\(|onward) & (expert|choice|chosen|\\bids?\\b|ind(ex|ices)|top.?k|select|rout)"], choice_stuck, archs=M)
form("experts_up_64_apart", "ffn_out", "the up matrices of the experts are taken to begin 64 rows apart, not 96: expert e has rows 64 e to 64 e + 95 of all of them",
     ["(#64|#4096|hidden.?size|\\bD\\b) & \\bup\\b & (rows?|stride|offset|begin|start|apart|distance|stack|pitch)", "\\bup\\b & #32 & (early|before|too (soon|near|close|low)|short|(less|-|minus) ?32 ?[ex*])"], up_64_apart, archs=M)
form("experts_gate_up_in_turn", "ffn_out", "gate and up lie one behind the other in a matrix of 192 rows and are taken in turn: even rows are the gate, odd ones up",
     ["(interleav|alternat|in turn|even|odd|\\b2 ?i\\b|every (second|other)|(stride|step) (of )?(2|two)|by twos) & (gate|\\bup\\b) & ^(?!.*\\beven.{0,30}\\bup\\b.{0,30}\\bodd.{0,30}gate)"], rows_in_turn, archs=M)
form("experts_row_modulo", "ffn_out", "the input row of pair 2t + s is taken by a remainder: (2t + s) mod 20, not a quotient by 2",
     ["(\\b2 ?\\*? ?t\\b|pair|flat|k ?\\* ?t|slot) & (mod\\b|modulo|remainder|%|wrap|- ?20|minus 20) & (rows?|input|token|position|ffn_norm)", "\\(?\\b2 ?\\*? ?t ?\\+ ?(s|slot|k|j)\\b"],
     lambda c: summed(c, lambda x, t, s: run(c, x, c.n[(CHOSEN * t + s) % T])), archs=M)
form("experts_scan_inclusive", "ffn_out", "the offsets are an inclusive sum of counts: each expert begins at the pairs of the next one, and those of the first are never done",
     ["inclusive|exclusive|prefix.?sum|\\bscan", "(next|following|e ?\\+ ?1|behind).{0,40}(expert|one).{0,60}(tokens|rows|slots|list|pairs|offset|segment)|(tokens?|rows?|slots?|lists?|pairs?|offsets?|segments?|begins?|starts?)\\b.{0,60}(next|following|e ?\\+ ?1|behind).{0,30}(expert|one\\b)|(tokens|rows|slots|pairs|offsets?).{0,40}expert (e|x) ?\\+ ?1",
      "(offset|begin|start|list|segment)s?.{0,60}(one (expert )?(too )?(late|far)|shifted by one)"], inclusive, archs=M)
form("experts_padding_to_row_0", "ffn_out", "each expert's rows are filled up to a multiple of 4 with token 0, and what fills is added as well: position 0 gets more of every expert",
     ["((position|row|token|pair|slot)s?.{0,8}\\b0\\b|first (position|row|token|pair)) & (pad|multiple|#4|four|fill|unused|tile|block|(every|each|all|other) experts?) & (add|more|extra|besides|plus|\\+|addition|again|pad|fill|also)"], padded, archs=M)

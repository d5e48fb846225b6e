#!/usr/bin/env python3
"""law_forms_fifteenth_b.py: mistakes that no catalogue lists, as engineers make them most often when they port Llama, Qwen2, Qwen3 and Qwen3-MoE to an engine of
their own; written without sight of how laws are found.

Caches of keys and values and decode, grouped heads, output projection, residual sums, feed-forward, router and experts, final norm and head. The engine and the
rules for expectations are law_forms.py's. A prompt of 12 tokens stands before decode steps where a form speaks of them.
"""

import numpy as np

from scripts.forms.law_forms import CHOSEN, E_, EXPERTS, F32, H, K, POS, SEEN, T, V, D, F, d, listed, op_act, op_choose, put, rms, silu, softmax

FORMS, form = listed()
B, M = ("qwen2",), ("moe",)
CACHES = ("probs", "context")
LATER = (1, 2, 3)
PROMPT = 12
KV = np.arange(H) // (H // K)
TO, FROM = POS[:, None], POS[None]
# rows of a head as a rotation of neighbours has them: element 2i+j is element 8j+i of halves
NEIGHBOURS = np.arange(d).reshape(2, d // 2).T.ravel()

# parts of expectations
ZERO = ("(zero|\\b0\\b(?!\\.\\d)|nothing|\\bnot\\b|\\bno\\b|without|missing|lost|lack|lose|left out|skip|ignor|drop|unread|unused|never|only|alone|empty|unwritten|unset"
        "|omit|except|cleared|hidden)")
ADDED = "(add|plus|\\+|\\bsum|besides|on top|again|twice|once more|accumul|contain|includ|not (cleared|zeroed|reset)|beta|extra|second time)"
DECODE = "(#12|#11)"
BEFORE = "(before|previous|preceding|earlier|\\bt ?- ?1|\\bs ?- ?1|\\bp ?- ?1|#-1|stale|one (position|token|row|step) (back|late|behind)|shifted by (one|1)\\b)"
LAYER_BEFORE = ("(\\blayer('s)? (before|below|above)|(previous|preceding|earlier|lower|last|prior) layer|layer.{0,12}\\bl ?- ?1|\\bl ?- ?1\\b|one layer (earlier|before|back|behind|lower|late)"
                "|layers? (one|1) (earlier|before|lower|back)|layers\\.\\d\\.(v|context|attn_out)\\b)")
OWN = "(\\bown|itself|\\bself\\b|diagonal|current|newest|overwrit|replac|its key|its value|token's (key|value)|that of t\\b|of the query|s ?= ?t\\b)"
LAW_OF_NEIGHBOURS = ["interleav", "\\b2 ?\\*? ?[ij]\\b|\\bi ?\\* ?2\\b|\\b8 ?\\*? ?\\(?[ijt]\\b|// ?8|% ?2", "(row|element|channel|column|input|dimension).{0,80}(pairs?\\b|neighbo|adjacent|alternat|\\beven\\b|\\bodd\\b)",
                     "(pairs?\\b|neighbo|adjacent|alternat|\\beven\\b|\\bodd\\b).{0,80}(row|element|channel|column|input|dimension)", "0, ?8, ?1, ?9", "d-first|d/2-first",
                     "(stride|step)s? (of )?(2|8)\\b"]


def joined(x):
    return x.reshape(T, H * d)


def reread(of, seen=SEEN):
    """Of a cache: token t finds in slot s what was written for position of[t,s]; zeros where that is negative."""
    of = np.broadcast_to(of, (T, T))

    def how(c):
        if c.site == "probs":
            at = np.broadcast_to(np.where(of < 0, T, of), (H, T, T))
            return c.right(mask=seen, score=lambda s: np.take_along_axis(np.concatenate([s, np.zeros_like(s[..., :1])], 2), at, 2))
        v = np.concatenate([c.v, np.zeros_like(c.v[:1])])[np.where(of < 0, T, of)]
        return joined(np.einsum("hts,tshd->thd", c.p, v[:, :, KV]))

    return how


def in_steps(x, most, steps, cut=np.rint):
    """Rounded to so many steps of the largest size on either side of zero."""
    step = most / F32(steps)
    step = np.where(step > 0, step, 1).astype(F32)
    return (cut(x / step) * step).astype(F32)


def largest(x):
    return np.abs(x).max(-1, keepdims=True)


# ---- caches of keys and values, decode

form("cache_slot_clamped", CACHES, "a cache of 16 slots: from position 16 on a token's key and value are written to slot 15, the last, and it sees slots 0 to 15",
     [f"#15|#16 & ({OWN}|clamp|clip|\\bmin\\b|min\\(|at most|written)", "#14 & #15|#16"],
     reread(np.where((TO >= 16) & (FROM == 15), TO, FROM), SEEN & (FROM < 16)))
form("cache_v_not_written", "context", "values from position 12 on were never written to the cache: zeros", [f"{DECODE} & {ZERO}", f"{DECODE} & (first|up to|below|prompt|prefill)"],
     lambda c: c.right(v=put(c.v, E_[PROMPT:], 0)))
form("cache_v_other_layer", "context", "in layers 1 and on the values of earlier tokens are those of the layer before; a token's own is right",
     [LAYER_BEFORE, "layers\\.\\d\\.v\\b", "(another|other|wrong) layer"],
     lambda c: c.right(v=c.e.memory["v", c.l - 1]) + joined(np.einsum("hts,shd->thd", np.where(TO == FROM, c.p, F32(0)), (c.v - c.e.memory["v", c.l - 1])[:, KV])), layers=LATER)
form("cache_stride_of_queries", CACHES, "rows are written with a stride of H d and read with K d: slot s is position s/2, and zeros where s is odd",
     ["(\\bs|\\bj|key|position|slot|index|\\bt)\\]?\\)? ?(//|/|>>) ?[12]\\b", "half (the|its|their|that|of the|of its) (position|index|slot|number|place|key)|halved|#0.5 & "
      "(key|slot|position|odd|even)", "(odd|every second|every other|alternate|2i ?\\+ ?1|every 2nd).{0,60}(zero|\\b0\\b|empty|nothing|unwritten|unset|lost|missing|not )",
      "(zero|\\b0\\b|empty|nothing|unwritten|unset|lost|missing|not ).{0,60}(odd|every second|every other|alternate|2i ?\\+ ?1|every 2nd)", "#32 & #64 & (stride|apart|step|row)"],
     reread(np.where(FROM % 2 == 0, FROM // 2, -1) + 0 * TO))
form("cache_v_4_bits", "context", "values are kept in 4 bits: rounded to sevenths of the largest size of their head and token",
     ["#7|#0.142857 & (step|round|quant|level|grid|multiple|largest|\\bmax)", "#15 & level|quant", "(\\b4|four)[- ]?bits?|int4|\\bq4|sevenths?"],
     lambda c: c.right(v=in_steps(c.v, largest(c.v), 7)))
form("cache_padding_counted", "probs", "the number of keys is rounded up to a multiple of 4; the empty slots have score 0 and count in the denominator",
     ["#4 & (denominator|normali|pad|empty|divisor)", "#4 & (\\bmod|%|multiple|rounded up|group|block) & (term|\\bsum|sink|extra|more|added)", "(#3 & #2 & #1) & (denominator|term|sink|extra|more|added|empty|pad)",
      "(pad|empty|unwritten|zero).{0,60}(denominator|\\bsum) & (#4|\\b(four|4)\\b)"],
     lambda c: c.right(soft=lambda s: np.exp(s) / (np.exp(s).sum(-1, keepdims=True) + ((-(POS[:, None] + 1)) % 4).astype(F32))))
form("decode_bias_lost", ("q", "k", "v"), "the bias is not added from position 12 on", [f"bias & {DECODE}", f"(constant|vector|offset) & {DECODE} & {ZERO}"],
     lambda c: put(c.right(), E_[PROMPT:], c.right(b=None)[PROMPT:]), archs=B)
form("decode_slot_captured", CACHES, "from position 12 on each token's key and value are written to slot 12, as a recorded graph has it; later slots are empty, and seen",
     [f"#12|#13|#11 & ({OWN}|always|fixed|same slot|slot 12|min\\()"],
     reread(np.where(FROM < PROMPT, FROM, np.where(FROM == PROMPT, TO, -1))))


# ---- grouped heads

form("heads_of_values_ahead", "context", "query head h reads the values of head (h + 1) / 2, at most 1: 0, 1, 1, 1",
     ["0, ?1, ?1, ?1", "\\bheads? (1|1 to 3|1-3|1, ?2,? and 3|1, ?2, ?3)\\b.{0,60}(value|\\bv\\b|kv|key).{0,20}\\b1\\b",
      "\\(h ?\\+ ?1\\) ?(//|/|>>)|ceil|round(ed|s)? up|min ?\\( ?h|min ?\\( ?1", "second (query )?head.{0,60}(second|other|last|\\b1\\b)", "(all|every).{0,12}heads? (but|except) (head )?(0|the first).{0,60}(\\b1\\b|second|last)"],
     lambda c: joined(np.einsum("hts,shd->thd", c.p, c.v[:, [0, 1, 1, 1]])))
form("heads_of_queries_lost", "context", "the loop runs over the 2 heads of keys and values: heads 2 and 3 are zero",
     [f"head & #2 & #3 & {ZERO}", f"(last|second|upper) (two|2|half|pair).{{0,20}}heads?|second half of the heads|second half & {ZERO}", f"#32|#31 & {ZERO}",
      f"heads? (from )?2 (on|and (up|later|on)|or more|to the last) & {ZERO}", f"heads? 2 ?(-|to|\\.\\.) ?3 & {ZERO}", "(only|alone).{0,30}heads? 0 and 1|heads? 0 and 1.{0,20}(only|alone)"],
     lambda c: joined(put(c.right().reshape(T, H, d), E_[:, 2:], 0)))


def repeated(x):
    """Each element twice in its row, where each head was meant: [T,K,d] to [T,H,d]."""
    return np.repeat(x, H // K, -1).reshape(T, H, d)


def repeated_last(c):
    if c.site == "context":
        return joined(np.einsum("hts,shd->thd", c.p, repeated(c.v)))
    return c.op(c.e, c.q, repeated(c.k), c.scale, c.mask, kv=np.arange(H))


form("heads_repeated_last_axis", CACHES, "heads of keys and values are repeated along their elements: element i of head h is element 8 (h mod 2) + i/2 of its head",
     ["(\\bi|\\be|\\bj|\\bc|element|dim|dimension|index|channel)s?\\]?\\)? ?(//|/|>>) ?[12]\\b", "(each|every).{0,40}(twice|doubled|repeated|duplicated|two times)",
      "(repeat|duplicat|doubl|twice).{0,60}(element|channel|dimension|within|last axis|head_dim|inside)", "(element|channel|dimension).{0,60}(repeat|duplicat|doubl|twice)",
      "0, ?0, ?1, ?1, ?2"],
     repeated_last)
form("heads_of_queries_grouped_otherwise", "probs", "query heads are read as [group, head] for [head, group]: 0, 2, 1, 3",
     ["0, ?2, ?1, ?3", "\\b1 (and|with|for|,|to)? ?(head )?2\\b & head & (exchang|swap|order|permut|interchang|trade|place)", "heads? 1\\b.{0,40}\\b2\\b.{0,80}\\b2\\b.{0,40}\\b1\\b", "(middle|inner).{0,20}heads", "group.{0,40}transpos|transpos.{0,40}group"],
     lambda c: c.right(q=c.q[:, [0, 2, 1, 3]]))
form("heads_share_weights", "probs", "one set of weights for each head of keys: heads 1 and 3 have those of heads 0 and 2",
     ["0, ?0, ?2, ?2", "(odd|every second|every other|second).{0,40}heads? & (same|cop|repeat|weights of|before|even|first|neighbo|those of|share)", "heads? 1\\b.{0,40}\\b0\\b.{0,60}\\b3\\b.{0,40}\\b2\\b", "\\b1(,| and) ?3\\b.{0,60}\\b0(,| and) ?2\\b",
      "(every|each|one|per|both|all).{0,40}(group|kv|key).{0,60}(same|first|one|share)", "2 ?\\* ?\\(?h ?(//|/) ?2|h ?- ?h ?% ?2|first head of (its|the|each|every) (group|pair)"],
     lambda c: c.right()[[0, 0, 2, 2]])
form("heads_v_permuted", "v", "rows of v are put in the order of neighbouring pairs, as those of q and k for another rotation: element 2i+j of a head is 8j+i",
     LAW_OF_NEIGHBOURS, lambda c: c.right()[..., NEIGHBOURS])


# ---- output projection

form("o_columns_permuted", "attn_out", "columns are in the order of neighbouring pairs, as rows of q and k for another rotation: input 2i+j of a head meets the column of 8j+i",
     LAW_OF_NEIGHBOURS, lambda c: c.right(w=c.w.reshape(D, H, d)[..., NEIGHBOURS].reshape(D, H * d)))
form("o_shards_exchanged", "attn_out", "two ranks: each has the other's half of the inputs, 32 to 63 before 0 to 31",
     ["(half|halves|#32|shard|rank) & (exchang|swap|interchang|roll|rotat|order|other|shift|\\+ ?32|% ?64|permut|trade|reads?)", "2, ?3, ?0, ?1",
      "head & (h ?\\+ ?2|#2) & (shift|roll|off|rotat|exchang|swap|\\+ ?2|later|further)"],
     lambda c: c.right(x=np.roll(c.x, 32, -1)))
form("o_input_of_layer_before", "attn_out", "in layers 1 and on its input is the context of the layer before", [LAYER_BEFORE, "layers\\.\\d\\.context", "(another|other) layer"],
     lambda c: c.right(x=c.e.memory["context", c.l - 1]), layers=LATER)
form("o_tail_twice", "attn_out", "the last 8 inputs, 56 to 63, are counted twice", ["(#56|#55) & (twice|doubl|two times|#2|again|add|second time|once more)", "(last 8|last eight|8 last) & (twice|doubl|two times|#2|again|add|second time|once more)",
     "(last|second) half.{0,40}(head 3|last head|fourth head) & (twice|doubl|two times|#2|again|add)"],
     lambda c: c.right(x=put(c.x, E_[:, 56:], lambda y: 2 * y)))
form("o_not_cleared", "attn_out", "in layers 1 and on it is added to what the layer before has left in the buffer", [f"{LAYER_BEFORE} & {ADDED}", f"layers\\.\\d\\.attn_out & {ADDED}",
     "(all|earlier|previous) layers.{0,40}(sum|added|so far)|(sum|accumul|running).{0,40}layers"],
     lambda c: c.right() + c.e.memory["attn_out", c.l - 1], layers=LATER)
form("o_decode_loop_short", "attn_out", "from position 12 on inputs 48 and later are not read", [f"{DECODE} & (#48|#47|#16|head.{{0,8}}\\b3\\b|last head|fourth head|last quarter)"],
     lambda c: put(c.right(), E_[PROMPT:], c.right(x=put(c.x, E_[:, 48:], 0))[PROMPT:]))


# ---- residual sums

form("add_attention_again", "h", "the attention's result is added once more: it was left in the buffer of the feed-forward's", [f"(attn_out|o_proj|attention('s)? (result|output|branch)|(result|output|branch) of (the )?attention|output projection) & {ADDED}", "(\\b2|twice) ?\\*? ?h_attn"],
     lambda c: c.right() + c.e.memory["attn_out", c.l])
form("add_stream_of_chunk", "h_attn", "the prompt runs in chunks of 8; the stream is read at row t mod 8, without the chunk's start",
     ["#8 & (\\bmod|%|chunk|block|again|repeat|restart|period|tile|cycl|wrap|group|every|- ?8\\b)"], lambda c: c.right(x=c.x[POS % 8]))
form("add_last_row_to_all", "h_attn", "in layer 3 the branch of the last position, the only one kept, is added to all",
     ["(last|final|newest) (row|position|token|query|one)", "#19|T ?- ?1", "(position|row|token)s? ?(is |are )?(the )?(last|-1)"], lambda c: c.right(y=np.repeat(c.y[-1:], T, 0)), layers=(3,))
form("add_blocks_floored", "h", "the sum runs in whole blocks of 384 elements, 3 of them: nothing is added at positions 18 and 19",
     [f"#18|#17|#1152 & {ZERO}", f"last (two|2) (positions|rows|tokens) & {ZERO}"], lambda c: c.right(y=put(c.y, E_[3 * 384 // D:], 0)))
form("add_context", "h_attn", "the context is added, and not what the output projection makes of it", ["context", "before (the )?(output projection|o_proj)",
     "(without|\\bno\\b|skip|\\bnot\\b|omit|miss|left out).{0,40}(o_proj|output projection|attn_out)"], lambda c: c.right(y=c.e.memory["context", c.l]))
form("add_branch_normed_first", "h_attn", "the branch is normed with post_attention_layernorm before it is added, as Gemma 2 does",
     ["(rms|root mean|normed|normali|norm\\() & (gain|weight|post_attention|ffn_norm|layernorm|\\bw\\b)", "(post_attention|ffn_norm).{0,60}(branch|attn_out|\\by\\b)|(branch|attn_out|\\by\\b).{0,60}(post_attention|ffn_norm)"],
     lambda c: c.right(y=c.y / rms(c.y) * c.e.m("post_attention_layernorm.weight", c.l)))


# ---- feed-forward

def act(f):
    return lambda c: c.right(f=f)


form("act_exp_by_power", "ffn_act", "the exponential of SiLU is (1 + x/16)^16", ["#16 & (power|\\^|\\bexp|approx|limit|\\*\\*|root)", "1 ?[-+] ?(x|gate|z) ?/ ?16", "#0.0625 & #16|power|\\^"],
     act(lambda x: x / (1 + (1 - x / F32(16)) ** 16)))
form("act_table", "ffn_act", "SiLU is read from a table of steps of 1/8, gate rounded down",
     ["#8|#0.125 & (step|round|floor|table|grid|\\bdown\\b|multiple|quant|trunc|lookup|stair|eighth|entr)"], act(lambda x: silu(np.floor(x * 8) / F32(8))))
form("act_silu_twice", "ffn_act", "silu(silu(gate)) up", ["silu ?\\( ?silu", "(silu|swish|activat).{0,50}(twice|two times|again|second time|once more|doubly|2 times)",
     "(twice|two times|again|second time|doubly).{0,50}(silu|swish|activat)", "\\ba ?\\( ?a ?\\(", "silu.{0,12}of.{0,12}silu"], act(lambda x: silu(silu(x))))
form("act_hard_sigmoid_keras", "ffn_act", "x times 0.2 x + 0.5, held between 0 and 1: Keras's hard sigmoid",
     ["#0.2 & #0.5", "#0.2 & (hard|clip|clamp|held|limit|between|piecewise)", "#2.5 & (#5|#0.2)"], act(lambda x: x * np.clip(F32(0.2) * x + F32(0.5), 0, 1)))
form("act_exp2", "ffn_act", "the exponential of SiLU is 2^x: x / (1 + 2^-x)", ["#0.6931|#1.4427", "\\b2 ?(\\^|\\*\\*)", "exp2|base (of )?(2|two)|powers? of (2|two)|\\bln ?\\(?2|log\\(2|pow\\(2"],
     act(lambda x: x / (1 + np.exp2(-x))))
form("act_negative_side", "ffn_act", "where gate is negative it is gate exp(gate), without the denominator 1 + exp(gate)",
     ["(negativ|below|< ?0|less than (0|zero)|under (0|zero)|x ?< ?0|minus) & (\\bexp|e\\^)", "(x|gate|z) ?\\*? ?(exp ?\\(|e ?\\^) ?(x|gate|z|\\()", "#0 & \\bexp & (without|no) denominator"],
     act(lambda x: np.where(x < 0, x * np.exp(np.minimum(x, 0)), silu(x))))
form("act_packed_lanes", "ffn_act", "the product's channels are packed by lanes: in each 8 the order is 0, 1, 4, 5, 2, 3, 6, 7",
     ["0, ?1, ?4, ?5, ?2, ?3, ?6, ?7", "(#8|block|group|each 8|lane) & (pair|#2|two|middle|inner|quarter) & (exchang|swap|interchang|order|permut|interleav|transpos)",
      "#2 & #4 & (exchang|swap|interchang|order|permut|interleav|transpos)", "#4 & (pair|two|#2) & (stride|first|transpos|interleav|order)"],
     lambda c: c.right().reshape(T, F // 8, 8)[..., [0, 1, 4, 5, 2, 3, 6, 7]].reshape(T, F))
form("act_up_of_other_rank", "ffn_act", "two ranks: each half of gate meets the other half of up, channel i that of i + 48 mod 96",
     ["(#48|half|halves|shard|rank) & (exchang|swap|interchang|roll|rotat|shift|other|\\+ ?48|% ?96|- ?48|permut|offset|off by|reads?|trade)"],
     lambda c: c.right(up=np.roll(c.up, -48, -1)))


def flat_halves(c):
    whole = np.concatenate([c.gate, c.up], -1).reshape(2, T, F)
    return c.right(gate=whole[0], up=whole[1])


form("act_fused_rows_flat", "ffn_act", "rows of [gate, up] are read as all of gate, then all of up: gate's row t is gate's or up's row t/2, up's row t is gate's or up's row 10 + t/2",
     ["(\\bt|row|position|\\bp|\\bi)\\]?\\)? ?(//|/|>>) ?[12]\\b", "(half the|its half|halved).{0,20}(position|row|index)|(position|row|index).{0,40}(half|halved|0\\.5)",
      "(even|odd|every second|every other|alternat).{0,80}(gate|\\bup\\b)", "(gate|\\bup\\b).{0,80}(even|odd|every second|every other|alternat)",
      "#10 & (gate|\\bup\\b) & (row|position|token|\\bt\\b)", "flat|contiguous|\\[2, ?T"],
     flat_halves)
form("up_split_at_half", "ffn_up", "of the fused matrix rows from 48 on are read, not from 96: the second half of gate, then the first of up",
     ["(#48|#47|half|halves) & (gate)"], lambda c: c.right(w=np.concatenate([c.e.m("mlp.gate_proj.weight", c.l)[48:], c.w[:48]])))
form("up_columns_mod_64", "ffn_up", "outputs 64 and later are those of i mod 64: 0 to 31 again",
     ["#64 & (\\bmod|%|repeat|again|same|cop|those of|equal|is that|- ?64|before|earlier|twice|wrap|first)", "#32 & #64", "#64|#63 & #31", "last (third|32) & (first|same|repeat|cop|#0)"],
     lambda c: put(c.right(), E_[:, 64:], c.right()[:, :32]))
form("gate_decode_input_stale", "ffn_gate", "from position 12 on its input is that of the token before", [f"{DECODE} & {BEFORE}"],
     lambda c: c.right(x=np.concatenate([c.x[:PROMPT], c.x[PROMPT - 1:-1]])))
form("down_8_bits_of_whole", "ffn_out", "weights are rounded to 127ths of the matrix's largest, one scale for all",
     ["#127|#0.007874|#255 & (weight|\\bw\\b|matri)", "((\\b8|eight)[- ]?bits?|int8|\\bq8) & (weight|\\bw\\b|matri)"],
     lambda c: c.right(w=in_steps(c.w, np.abs(c.w).max(), 127)))
form("down_input_cut_to_8_bits", "ffn_out", "its input is cut, not rounded, to 127ths of the row's largest",
     ["#127|#0.007874 & (trunc|toward|floor|\\bdown\\b|\\bcut\\b|integer part|smaller|not round|without round|chop|zero)",
      "((\\b8|eight)[- ]?bits?|int8|\\bq8) & (trunc|toward|floor|\\bdown\\b|\\bcut\\b|integer part|not round|without round|chop)"],
     lambda c: c.right(x=in_steps(c.x, largest(c.x), 127, np.trunc)))
form("down_first_64", "ffn_out", "two thirds of the intermediate size are taken: inputs 64 and later are not read",
     [f"#64|#63|#65 & ({ZERO}|first|rest|from|up to|until|below|beyond|input)", f"(last (32|third)|first two thirds) & {ZERO}"], lambda c: c.right(x=put(c.x, E_[:, 64:], 0)))
form("down_with_residual", "ffn_out", "the stream h_attn is in the result already: it is added twice", [f"(h_attn|residual|stream) & {ADDED}"],
     lambda c: c.right() + c.e.memory["h_attn", c.l])


# ---- mixtures of experts

def chosen(c):
    return c.e.taps[f"layers.{c.l}.router_topk"].astype(int)


def expert(c, x, n, down=None):
    w = lambda of, name: c.e.m(f"mlp.experts.{of}.{name}_proj.weight", c.l)
    hidden = c.e.r(op_act(c.e, c.e.r(n @ w(x, "gate").T), c.e.r(n @ w(x, "up").T)))
    return c.e.r(hidden @ w(x if down is None else down, "down").T)


def mixed(c, each, weights):
    sums = np.zeros((T, D), F32)
    for s in range(CHOSEN):
        sums = c.e.r(sums + c.e.r(each[:, s] * weights[:, s:s + 1]))
    return sums


def others(c, run):
    """What the chosen experts give, expert by expert: run(expert, rows, slots)."""
    top, each = chosen(c), np.zeros_like(c.each)
    for x in range(EXPERTS):
        rows, slots = np.nonzero(top == x)
        if len(rows):
            each[rows, slots] = run(x, rows, slots)
    return each


def by_number(c):
    top, w = c.right()
    return top, np.where(top[:, :1] > top[:, 1:], w[:, ::-1], w)


def kept_of_larger(c):
    top = chosen(c)
    return mixed(c, c.each, np.where(top == top.max(-1, keepdims=True), c.weights, F32(0)))


def with_room(c, room):
    top, weights = chosen(c), np.array(c.weights)
    for x in range(EXPERTS):
        rows, slots = np.nonzero(top == x)
        weights[rows[room:], slots[room:]] = 0
    return mixed(c, c.each, weights)


def softmax_again(c):
    p = softmax(c.logits)
    top, _ = op_choose(c.e, c.logits)
    return top, softmax(np.take_along_axis(p, top, -1))


def least(c):
    p = softmax(c.logits)
    top = np.argsort(p, -1, kind="stable")[:, :CHOSEN]
    w = np.take_along_axis(p, top, -1)
    return top, w / w.sum(-1, keepdims=True)


SIZES = "(larger|smaller|higher|lower|greater|less|>|<)"
form("router_weights_by_number", "router_weights", "weights are in the order of the experts' numbers, the experts in that of their weights: exchanged where the first has the larger number",
     ["(ascend|\\bsort|increas|order).{0,60}(expert|\\bids?\\b|index|indices|number)", "(expert|\\bids?\\b|index|indices|number).{0,60}(ascend|\\bsort|increas|order)", f"(exchang|swap|interchang|revers) & {SIZES}",
      f"(exchang|swap|interchang|revers).{{0,80}}(number|\\bids?\\b|index|where)"],
     by_number, archs=M)
form("router_softmax_twice", "router_weights", "a second softmax is taken, of the probabilities of the chosen", ["softmax.{0,80}(twice|again|second|two times|once more|softmax)",
     "(twice|second|again|doubl|two).{0,40}softmax", "softmax.{0,30}(of|over) (the |their |chosen )*(prob|weights|p\\b)", "exp ?\\( ?p|e ?\\^ ?p"], softmax_again, archs=M)
form("router_least_chosen", ("router_topk", "router_weights"), "sorted in ascending order: the two least likely experts are chosen", "least|smallest|lowest|ascend|worst|\\bmin|bottom|last two|un?likel", least, archs=M)
form("experts_weighted_at_input", "ffn_out", "the expert's input is multiplied by its weight, and not its result",
     ["(weight|router|\\bp\\b|\\bw\\b).{0,80}(input|before|ffn_norm|inside|\\bn\\b)", "(input|before|ffn_norm|inside).{0,80}(weight|router|\\bp\\b|\\bw\\b)"],
     lambda c: mixed(c, others(c, lambda x, rows, slots: expert(c, x, c.e.r(c.n[rows] * c.weights[rows, slots][:, None]))), np.ones_like(c.weights)), archs=M)
form("experts_one_on", "ffn_out", "the matrices of the next expert are read: e + 1 mod 6",
     ["expert & (next|following|off by one|off by 1|shifted by (one|1)|\\+ ?1|one (further|later|too far|on|more|higher)|1, ?2, ?3|after)", "\\be ?\\+ ?1"],
     lambda c: mixed(c, others(c, lambda x, rows, slots: expert(c, (x + 1) % EXPERTS, c.n[rows])), c.weights), archs=M)
form("experts_down_of_first", "ffn_out", "all experts have the down matrix of expert 0", ["(down|\\bw2\\b|second matri|output matri|last matri) & (experts?.{0,8}\\b0\\b|first expert|experts\\.0|same)"],
     lambda c: mixed(c, others(c, lambda x, rows, slots: expert(c, x, c.n[rows], 0)), c.weights), archs=M)
form("experts_overwritten", "ffn_out", "results are stored, not added, expert by expert: of two the one of the larger number stays, with its weight",
     ["(larger|largest|higher|highest|greater|greatest|\\bmax|last|later) & (expert|\\bids?\\b|index|number) & (only|alone|overwr|\\bnot\\b|replac|keeps?\\b|kept|stays?|assign|\\bno\\b|lost|without|counts?|dropp?|zero|\\b0\\b)"],
     kept_of_larger, archs=M)
form("experts_slot_ignored", "ffn_out", "both slots run the first expert of the token: its result, with both weights",
     ["(expert|slot) & (first|\\btop\\b|top-1|best|likeliest|largest|highest|slot 0|rank 0|most) & (only|alone|both|twice|weight.{0,12}\\b1\\b|all (of )?(the )?weight|#1|instead|sum of)"],
     lambda c: mixed(c, np.repeat(c.each[:, :1], CHOSEN, 1), c.weights), archs=M)
form("experts_weights_transposed", "ffn_out", "weights are read as [2, 20] and not [20, 2]: that of token t and slot s is number 20 s + t",
     ["transpos|column.?major|slot.?major", "\\b(20|T) ?\\*? ?s\\b|s ?\\* ?(20|T)\\b", "#20 & (weight|flat|index|slot|stride)", "(\\bt|row|position|token)\\]?\\)? ?(//|/|>>) ?[12]\\b & (weight|router|slot|token)",
      "weights? .{0,40}(other|another|different|wrong|half the) (token|position|row)", "#10 & weight & (token|position|row|\\bt\\b)"],
     lambda c: mixed(c, c.each, np.ascontiguousarray(c.weights.reshape(CHOSEN, T).T)), archs=M)
form("experts_capacity", "ffn_out", "an expert takes 7 tokens at most, the first; later ones get nothing of it",
     ["#7 & (expert|token|capacity|at most|limit|drop|full|room)", "#8 & (drop|lost|nothing|ignored|not) & (expert|capacity)"],
     lambda c: with_room(c, 7), archs=M)


# ---- final norm and head

form("final_norm_last_alone", "final_norm", "only the last position is normed, the others are the stream as it is",
     [f"(last|final|newest) (row|position|token|one)|#19|#18 & ({ZERO}|just|raw|unnormed|unnormali|as it is|norm)"], lambda c: put(c.x, E_[-1:], c.right()[-1:]))
form("final_norm_of_branch", "final_norm", "its input is the last layer's ffn_out, to which the stream was not added",
     ["ffn_out|down_proj|\\bmlp|feed.?forward", "(branch).{0,40}(only|alone|without|instead)|(only|alone|instead).{0,40}branch", "(without|\\bno|lost|missing|lacks?|omits?) (the )?(residual|stream|h_attn)",
      "(residual|stream|h_attn).{0,25}(not added|lost|missing|left out|omitted)"],
     lambda c: c.right(x=c.e.memory["ffn_out", 3]))
form("final_norm_two_warps", "final_norm", "two warps of 32 channels, whose sums are never joined: each half has its own mean square",
     ["#32 & (group|block|half|halves|each|own|warp|separate|per)", "(half|halves).{0,60}(\\bown\\b|separate|by itself)|(each|per|every) half", "#2 & (group|block|part) & (each|own|separate|channel)"],
     lambda c: (c.x.reshape(T, 2, 32) / rms(c.x.reshape(T, 2, 32))).reshape(T, D) * c.w)
form("logits_shards_interleaved", "logits", "two shards of the vocabulary are gathered along the wrong axis: token v has the logit of 128 (v mod 2) + v/2",
     ["#128 & (#2|even|odd|half|halves|parity|alternat|\\bmod|%)", "interleav|shuffl", "\\b[vij]\\]?\\)? ?(//|/|>>) ?[12]\\b", "(even|odd).{0,80}(half|second half|first half)", "0, ?128, ?1, ?129"],
     lambda c: c.right()[:, (np.arange(V) % 2) * 128 + np.arange(V) // 2])
form("logits_last_chunk_clamped", "logits", "the vocabulary runs in chunks of 96, and the start of the last is clamped: tokens from 192 on have the logits of 32 before",
     ["#192|#191 & #160|#32|#-32|#223"], lambda c: put(c.right(), E_[:, 192:], c.right()[:, 160:224]))


def penalised(c, by):
    ids = np.asarray(c.e.ids)
    counts = np.cumsum(ids[:, None] == np.arange(V)[None], 0).astype(F32)
    return c.right() - F32(by) * counts


form("logits_frequency_penalty", "logits", "0.4 is taken off for each time that a token was seen",
     ["#0.4|#-0.4 & (seen|occur|count|\\btimes\\b|before|appear|earlier|so far|repeat|previous|frequen|present|prompt|already|\\bids?\\b|input token|own token|context)"], lambda c: penalised(c, 0.4))
form("logits_not_cleared", "logits", "partial sums go to a buffer that is never cleared: each row has those of all positions before added",
     ["running|cumul|accumul|prefix sum|so far|\\bsum (of|over).{0,50}(position|row|token)|not (cleared|zeroed|reset)|never (cleared|zeroed|reset)",
      f"(before|previous|preceding|earlier|up to|t ?- ?1) & {ADDED} & (row|position|token|logit)"], lambda c: np.cumsum(c.right(), 0))
form("logits_head_4_bits", "logits", "the head's weights are rounded to sevenths of their row's largest: 4 bits",
     ["#7|#0.142857 & (step|round|quant|level|grid|multiple|weight|\\bmax|largest)", "(\\b4|four)[- ]?bits?|int4|\\bq4|sevenths"], lambda c: c.right(w=in_steps(c.w, largest(c.w), 7)))


if __name__ == "__main__":
    for f in FORMS:
        print(f"{f.name:36} {f.sites[0]:14} {f.truth}")
    print(len(FORMS), "forms")

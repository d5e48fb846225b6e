#!/usr/bin/env python3
"""law_forms_thirteenth.py: mistakes that no catalogue lists, as a person makes them who ports a decoder; written without sight of how laws are found.

Norms, norms of heads, projections, biases, rotation, masks, scores and softmax; the rest is another list's. The engine and the rules for expectations
are law_forms.py's. A prompt of 12 tokens stands before decode steps where a form speaks of them.
"""

import numpy as np

from scripts.forms.law_forms import D, E_, EPS, F32, FREQ, H, K, POS, SEEN, T, d, listed, over, put, rms, softmax, turn

FORMS, form = listed()
ROPES = ("q_rope", "k_rope")
B, Q3 = ("qwen2",), ("qwen3", "moe")
PROMPT = 12
DECODE = "(#12|#11|decod|behind the prompt|after the prompt)"
STATS = "(rms|root mean|mean square|divisor|divided|denominator|statistic|sum of squares|squares|norm)"
BEFORE = "(before|previous|t ?- ?1|earlier|preced|prior|#-1|stale|one (row|position|token) (late|back))"
LOST = "(left out|leaves? out|lost|without|not |skip|miss|omit|drop|ignor|zero|\\b0\\b|unread|uncounted|never|lack)"


# ---- norms

form("norm_integer_sum", "attn_norm", "squares are added up in an integer: each is cut to a whole number first",
     ["(whole|integer|\\bint\\b|\\bi32\\b|floor|trunc|rounded down|cut) & (each|every|squares|x\\^ ?2|x\\*\\* ?2|x ?\\* ?x|x\u00b2|floor\\(x) & ^(?!.*nearest) & "
      "^(?!.*(sum|mean)( of squares)? (is|are) (cut|floor|trunc|rounded)) & ^(?!.*(floor|trunc|int)\\((the )?(sum|mean))"],
     lambda c: over(c, np.sqrt(np.mean(np.floor(c.x * c.x), -1, keepdims=True) + F32(EPS))))
form("norm_second_warp_early", "ffn_norm", "the second warp does not wait: channels 32 to 63 are divided by the root mean square of the position before",
     [f"(#32|(second|last|upper|latter|other) half|half of the channels|(second|last) warp) & {STATS} & {BEFORE}"],
     lambda c: over(c, np.where(np.arange(D) >= 32, np.concatenate([rms(c.x)[:1], rms(c.x)[:-1]]), rms(c.x))))
form("norm_divisor_broadcast", "attn_norm", "divisors are repeated the other way: element n of the whole tensor is divided by the root mean square of row n mod 20",
     [f"(flat|mod|%|cycl|repeat|tile|wrap|round and round|in turn|i ?\\+) & (#20|number of (rows|positions|tokens)|(mod|%) ?\\(?T\\b) & {STATS}", "4 ?\\*? ?t ?\\+ ?i|i ?\\+ ?4 ?\\*? ?t|64 ?\\*? ?t ?\\+ ?i"],
     lambda c: over(c, rms(c.x)[(POS[:, None] * D + np.arange(D)) % T, 0]))
form("final_norm_residual_again", "final_norm", "a fused addition before the norm adds the residual once more: it norms h + h_attn of the last layer",
     ["(h_attn|residual|stream (before|without) the (last )?(feed|ffn|mlp)|(ffn_norm'?s?|feed.forward'?s?) input|input of (the )?(last )?(ffn|feed|mlp)) & (add|plus|\\+|sum|twice|again|doubl|#2|once more) & ^(?!.*layers?[ .]?[012]\\b)",
      "2 ?\\*? ?h\\b.{0,12}(-|\u2212|minus|less|without) ?.{0,30}(ffn_out|feed.forward)", "(half|halved|#0.5) & (ffn_out|feed.forward|ffn|branch) & (h_attn|stream|h\\b) & ^(?!.*layers?[ .]?[012]\\b)"],
     lambda c: c.right(x=c.x + c.e.memory["h_attn", 3]))
form("final_norm_roots_averaged", "final_norm", "four blocks of 16 channels each take their root mean square, and it is divided by the mean of these four roots",
     ["(#16|#4|four|quarter) & (mean|average|averaged|averages).{0,30}\\b(of|over)\\b.{0,30}(rms|root|sqrt|norms)",
      "(#16|#4|four|quarter) & (rms|root|sqrt).{0,70}averag", "(#0.25|1/4) & (sum).{0,30}(rms|root|sqrt)"],
     lambda c: over(c, np.mean(np.sqrt(np.mean(c.x.reshape(T, 4, 16) ** 2, -1) + F32(EPS)), -1, keepdims=True)))

# norms of heads


def four_times(c):
    y = c.x[:, 0]
    for _ in range(H):
        y = c.e.r(y / rms(y)) * c.w
    return put(c.x, E_[:, 0], y)


form("qk_norm_pointer_stays", "q_norm", "the loop over heads does not go on: head 0 is normed four times, the others never",
     ["(head.{0,8}\\b0\\b|first head) & (#4|four|fourth) & (not|never|un-?norm|only|alone|raw|as (it|they) (is|are)|left|input|others?|1 to 3|1, ?2)"], four_times, archs=Q3)
form("qk_norm_lanes_not_joined", "k_norm", "the four lanes' sums are not joined: element i is divided by the root of a 16th of the squares of those with the same i mod 4",
     [f"(#4|four) & {STATS} & (lane|same|each|own|apart|separate|mod|%|stride|strided|every fourth|every 4th) & (#16|#2|half|twice|quarter|#0.5|#0.25|head_dim) & ^(?!.*(consecutive|neighbour|adjacent|in a row|blocks? of 4|groups? of 4 elements in))"],
     lambda c: over(c, np.tile(np.sqrt(np.sum(c.x.reshape(T, K, 4, 4) ** 2, -2) / F32(d) + F32(EPS)), 4)), archs=Q3)
form("qk_norm_divisors_by_head", "q_norm", "divisors are written [T,H] and read [H,T]: head h of token t has number 20 h + t of them",
     [f"(layout|transpos|exchang|swap|axes|order|major|\\[H, ?T|flat|h ?\\* ?(T\\b|20)|20 ?\\*? ?h|reshap|head.first|other way|permut) & {STATS} & (head|h\\b) & ^(?!.*(gain|weight) (is|in|of|read))"],
     lambda c: over(c, rms(c.x)[..., 0].reshape(H, T).T[..., None]), archs=Q3)
form("qk_norm_sum_assigned", "k_norm", "`=` for `+=`: the sum of squares is that of the last four elements, 12 to 15, divided by 16",
     [f"(#12|last (four|4)|(four|4) last) & {STATS} & (#16|#2|half|twice|quarter|#0.5|#0.25|head_dim|/ ?d\\b) & ^(?!.*(position|token)s?.{{0,10}}12)"],
     lambda c: over(c, np.sqrt(np.sum(c.x[..., 12:] ** 2, -1, keepdims=True) / F32(d) + F32(EPS))), archs=Q3)
form("qk_norm_decode_whole_row", "q_norm", "in decode steps, from position 12 on, all heads have one root mean square, over 64 elements",
     [f"{DECODE} & (all (the |4 |four )?heads|whole (row|query|vector|token|tensor)|over (the )?heads|heads together|#64|across (the )?(4 |four )?heads|H ?\\* ?d|heads share|joined|flattened|every head) & {STATS}"],
     lambda c: over(c, np.where(POS[:, None, None] >= PROMPT, rms(c.x.reshape(T, 1, -1)), rms(c.x))), archs=Q3)


# ---- projections

form("q_threads_remainder_lost", "q", "64 rows are shared by 6 threads of 10 rows: outputs 60 to 63 stay 0",
     [f"(#60|last (four|4)) & (\\b0\\b|zero|nothing|empty|lost|missing|unwritten|not (written|computed)|never) & ^(?!.*inputs? 60)", "(head.{0,8}\\b3\\b|last head) & #12 & (\\b0\\b|zero|nothing|empty|lost|missing)"],
     lambda c: put(c.right().reshape(T, -1), E_[:, 60:], 0).reshape(T, H, d))
form("v_last_tile_moved_back", "v", "the last tile of 8 rows begins at 12 so as to fit, but is written at 16: positions 16 to 19 have those of 12 to 15",
     ["#16 & (#15|#-4|t ?- ?4|(4|four) (positions? |rows? |tokens? )?(before|earlier|back|behind|late)) & ^(?!.*inputs? (12|15|16))",
      "(positions?|rows?|tokens?|outputs?) (from )?16.{0,60}(from|at|of|begin|start)( with| at| from)? ?(row |position |token )?12\\b"],
     lambda c: put(c.right(), E_[16:], c.right()[12:16]))


form("v_decode_last_block_lost", "v", "decode steps, from position 12 on, have a loop of their own, i + 16 < n: inputs 48 to 63 are left out",
     [f"{DECODE} & (#48|#47|last (16|sixteen|quarter)|first (48|forty)) & (input|channel|column|attn_norm|left out|skip|sum|product|only|alone|\\bx\\b)"],
     lambda c: put(c.right(), E_[PROMPT:], c.right(x=put(c.x, E_[:, 48:], 0))[PROMPT:]))
form("k_gain_folded_in", "k", "the norm's gain is folded into the matrix of K, and applied before it as well",
     ["(gain|(attn_)?norm'?s? weight|weight of (the )?(attn_)?norm|input_layernorm) & (twice|again|squar|\\^ ?2|second time|once more|folded|already|as well|also|too\\b|multipl|doubl|times|\\*) & "
      "^(?!.*(ffn_norm|post_attention|final|omitted|without|not applied|next layer|previous layer))"],
     lambda c: c.right(x=c.x * c.e.m("input_layernorm.weight", c.l)))
form("q_fourth_sum_lost", "q", "of four partial sums the last is not added in: inputs 12 to 15 of each 16 are left out",
     [f"(#12|last (four|4)|last quarter|fourth (four|quarter|vector)) & (#16|sixteen) & (each|every|mod|%|block|group|of 16|period|and so on|\\.\\.) & {LOST}", f"#3 & (i ?//? ?4) & (mod|%) ?4 & {LOST}",
      f"#12 & #15 & #28 & #31 & {LOST}", f"(fourth|last|every 4th|#3) & (vector|group|block|quad|run)s? of (four|4) & (#4|four|every) & {LOST}"],
     lambda c: c.right(x=np.where(np.arange(D) % 16 >= 12, 0, c.x)))
form("v_output_pitch_of_input", "v", "rows are written 64 apart, as the input's are, and read 32 apart: position 2j has what is j's, odd positions have 0",
     ["(odd|every second|every other|2 ?\\*? ?[ji] ?\\+ ?1) & (\\b0\\b|zero|nothing|empty|unwritten) & (half|[tp] ?//? ?2|#0.5|>> ?1|2 ?\\*? ?[jit]|twice|even)", "#64 & #32 & (pitch|stride|apart|distance|rows? (width|length|is|are)|wide|spread)",
      "(twice|double|2 times|two times).{0,20}(pitch|stride|apart|distance)|(pitch|stride|apart|distance).{0,25}(twice|double|too (large|wide|big))"],
     lambda c: np.concatenate([c.right()[:T // 2, None], 0 * c.right()[:T // 2, None]], 1).reshape(T, K, d))

# biases

form("bias_decode_alone", "v", "only the product of one row adds the bias: positions 0 to 11, the prompt, have none",
     ["bias & ((positions?|rows?|tokens?).{0,12}\\b0 ?(to|-|\u2013|\\.\\.+|through|until) ?11|(below|before|until|up to|earlier than|<) ?(position |row |token )?12|<=? ?11|prompt|first (12|twelve)) & (not|no\\b|none|without|omit|missing|misses|lack|left out|zero|\\b0\\b)",
      "bias & (only|alone|begin|start|first).{0,40}(\\b12\\b|decod|behind the prompt)", "(only|alone).{0,40}(12|decod).{0,40}bias", "bias.{0,60}\\b12\\b.{0,20}(only|alone)", "\\b12\\b.{0,20}(only|alone).{0,40}bias"],
     lambda c: c.right(b=None) + (POS[:, None, None] >= PROMPT) * c.b.reshape(K, d), archs=B)
form("bias_of_v_as_well", "k", "the loop over q, k and v adds both small biases to k: its own and that of v",
     ["bias & (\\bv\\b|\\bv'?s\\b|v_proj|value|b_v\\b) & (add|plus|\\+|sum|too\\b|also|both|besides|as well|beside|on top|b_v) & ^(?!.*(instead of|in place of|for) (its own|k'?s|that of k))"],
     lambda c: c.right() + c.e.m("self_attn.v_proj.bias", c.l).reshape(K, d), archs=B)


# ---- rotation


def no_sine_in_first(c):
    angle = (POS[:, None, None] * FREQ).astype(F32)
    a, b = c.x[..., :d // 2], c.x[..., d // 2:]
    cos, sin = c.e.r(np.cos(angle)), c.e.r(np.sin(angle))
    return np.concatenate([c.e.r(a * cos) - c.e.r(b * cos), c.e.r(b * cos) + c.e.r(a * sin)], -1)


form("rope_q_row_over_key_heads", "q_rope", "the position is the row number over the number of key heads: (4 t + h) / 2, so 2 t for heads 0 and 1, and 2 t + 1 for heads 2 and 3",
     ["(twice|2 ?\\*? ?[tps]\\b|#2|doubl) & head & (h ?//? ?2|2 ?\\*? ?[tps] ?\\+ ?1|\\+ ?1\\b|one (more|further|higher|position)|1 (more|further|higher)|#1)", "(4 ?\\*? ?[tps] ?\\+ ?h|row|flat) & (/|//|divided by|over) ?(2|two|K\\b|(the )?number of (key|kv))"],
     lambda c: c.right(pos=(POS[:, None] * H + np.arange(H)) // K))
form("rope_table_transposed", ROPES, "tables of cosines and sines are made [8,512] and read [512,8]: the angle of pair i at position t is 8 t + i",
     ["8 ?\\*? ?[tps] ?\\+ ?[ij]|[ij] ?\\+ ?8 ?\\*? ?[tps]\\b", "(transpos|positions? (first|fastest|innermost)|axes|major|other order|\\[8, ?512|\\[d/2,|layout) & (table|cos|sin|frequenc|angle)",
      "position & (8|eight) (times|\\*|a|per|for each) & (pair|i\\b|element) & (frequenc.{0,30}(all|every|each|same|one|1\\b|first|pair 0)|(all|every|each|same|one|first).{0,30}frequenc)"],
     lambda c: turn(c.e, c.x, (POS[:, None, None] * (d // 2) + np.arange(d // 2)).astype(F32)))
form("rope_first_line_cosine", ROPES, "the first line has the cosine twice: a cos - b cos; the second is right",
     ["cos & (\\(a ?- ?b\\)|cos.{0,15}(-|\u2212|minus).{0,25}cos|cos.{0,45}(twice|both|(instead|in place|stead) of.{0,12}sin|where.{0,25}sin|for (the |its )?sin|stands? for)|sin.{0,40}(replaced|is the|for|becomes?|be|read as).{0,12}cos) & "
      "(first|a\\b|x1|x0|one (half|line|element)|lower|x_?i\\b|x\\[i\\]|element i\\b) & ^(?!.*second (half|line|element)s?.{0,50}(cos.{0,15}(twice|both)|instead of.{0,12}sin))"], no_sine_in_first)
form("rope_decode_sine_stays", ROPES, "decode steps, from position 12 on, have the cosine of their position and the sine of position 11",
     ["sin & (#11|(#12 & (last (position |token )?of the prompt|prompt'?s? (last|end)|last prompt))) & (stay|stale|stuck|of (position )?11|prompt|same|fixed|constant|last|frozen|remain|advanc|updat|at most|clamp|min) & "
      "^(?!.*(cosines?|cos) (too|as well|stay|stuck)) & ^(?!.*both cos)"],
     lambda c: turn(c.e, c.x, (POS[:, None, None] * FREQ).astype(F32), sin=c.e.r(np.sin((np.minimum(POS, PROMPT - 1)[:, None, None] * FREQ).astype(F32)))))
form("rope_decode_two_a_step", ROPES, "two places count the decode steps: from 12 on the position goes up by two, 12, 14, 16, ..",
     [f"{DECODE} & (by (2|two)\\b|2 ?\\*? ?\\(?([tps]|position)\\b|two (a|per|each|at|for)\\b|twice|doubl|steps? of (2|two)|12, ?14|every second|slope.{{0,6}} 2\\b|\\b2 (a|per|each|for each|for every)|(2|two) times)"],
     lambda c: c.right(pos=np.where(POS < PROMPT, POS, 2 * POS - PROMPT)))
form("rope_angle_whole", ROPES, "angles pass through an integer: each is cut to whole radians",
     ["(angle|radian|floor\\((p|t|s|pos)|(frequenc.{0,40}position|position.{0,40}frequenc)) & (whole|integer|floor|trunc|\\bint\\b|cut|rounded (down|towards)|multiples? of 1\\b|step of 1\\b|steps of 1\\b) & ^(?!.*nearest) & ^(?!.*(frequenc(y|ies)|positions?|exponents?) (is|are|each) (cut|floor|trunc|rounded))"],
     lambda c: turn(c.e, c.x, np.floor(POS[:, None, None].astype(F32) * FREQ.astype(F32))))


# ---- masks


def masked(see):
    return lambda c: c.right(mask=see)


AHEAD = POS[None] - POS[:, None]
form("mask_row_of_head", "probs", "the mask [T,T] is broadcast over [H,T,T] at the wrong axis: head h sees keys 0 to h, whatever the query",
     ["head & (0 ?(to|-|\u2013|\\.\\.+|through) ?h\\b|(s|key|j|k) ?<=? ?h\\b|(up to|until|through|below) (its|their|the) (own )?(head'?s? )?(number|index)|(up to|until|through) (key )?h\\b|h ?\\+ ?1\\b|(number|index) of the head|head'?s? (number|index)|by (the )?head)",
      "head 0.{0,40}key 0.{0,60}head 1.{0,40}(key 1|0 (to|and) 1|0, ?1|2 keys|two keys)", "head 3.{0,40}(0 ?(to|-|\u2013|\\.\\.+) ?3|first (4|four)|4 keys|four keys|0, ?1, ?2, ?3)"],
     lambda c: c.right(mask=np.broadcast_to(POS[None, None] <= np.arange(H)[:, None, None], (H, T, T))))
form("mask_last_column_open", "probs", "the loop that hides later keys ends one too early: key 19, the last, is seen by all",
     ["(key.{0,8}\\b19\\b|column.{0,8}\\b19\\b|s ?= ?19|last (key|column|token|position)|newest (key|token)|\\b19\\b.{0,12}(key|column|is seen)) & (sees?|seen|open|not (hidden|masked)|visible|unmasked|never (hidden|masked)|attend|leak|take part) & "
      "^(?!.*(key|column).{0,12}(19|last).{0,12}(is|are) (hidden|masked|not seen|unseen))"], masked(SEEN | (POS[None] == T - 1)))
form("mask_decode_length_stays", "probs", "the number of keys is that of the prompt in decode steps: queries from 12 on see keys 0 to 11 alone",
     ["(#11|first (12|twelve)|#12|prompt'?s?) & (key|see|column) & (0 ?(to|-|\u2013|\\.\\.+|through) ?11|first (12|twelve)|below 12|before 12|up to (key )?11|< ?12|<= ?11|min\\(|prompt|at most 11) & ^(?!.*(12 (queries|rows)|window))",
      "(keys?|columns?).{0,12}(12|twelve) ?(on|to 19|and|-|\u2013|\\.\\.).{0,50}(hidden|not seen|never seen|unseen|masked|no weight|left out|invisible|weight 0)", "(keys?|columns?).{0,8}(from|at|beyond|behind|after|past|>=?) ?(key |position )?(11|12).{0,60}(hidden|not seen|never seen|unseen|masked|no weight|left out|invisible)",
      "(no|never).{0,20}(keys?|columns?).{0,20}(from|beyond|past|>=?|after|behind) ?(11|12)"],
     masked(SEEN & (POS[None] < PROMPT)))
form("mask_scalar_store", "probs", "the loop over later keys goes by four but hides one: keys t + 1, t + 5, t + 9, .. are hidden, the others ahead are seen",
     ["(#4|four|fourth|4th) & (later|future|ahead|after|behind|beyond|next|s ?- ?t|[tq] ?\\+ ?1|s ?> ?t|distance|causal) & (hidden|hides?|seen|sees?|mask|open|visible) & ([tq] ?\\+ ?1|#5|#-5|#1|#-1|one|first) & ^(?!.*(block|chunk)s? of (4|four))",
      "[tq] ?\\+ ?1\\b & [tq] ?\\+ ?5\\b & (hidden|mask|seen|hides?)", "\\b1, ?5,? (and )?9 & (hidden|mask|seen|hides?)"], masked(SEEN | (AHEAD % 4 != 1)))


# ---- scores and softmax

form("score_lane_lost", "probs", "the last of four lanes is not added in: elements 3, 7, 11 and 15 are left out of the products",
     [f"((#3 & #7)|(#4 & (#3|last|fourth))|(four|4)( \\w+)? lanes?.{{0,40}}(last|fourth)|(last|fourth) (of (the )?(four|4)|lane)|every (fourth|4th)|(4 ?\\*? ?[ij] ?\\+ ?3)) & (element|dimension|product|dot|lane|component|channel|\\bd\\b|\\bi\\b) & {LOST} & ^(?!.*last (4|four))"],
     lambda c: c.right(q=put(c.q, E_[..., 3::4], 0)))
form("score_query_heads_8_apart", "probs", "query heads begin every 8 elements, not every 16: head h reads elements 8 h to 8 h + 15 of the row",
     ["(#8|half (a |of a |the |of the )?head|d ?/ ?2|head_dim ?/ ?2|half.{0,20}(stride|apart|pitch|offset|distance)|(stride|apart|pitch|offset|distance).{0,25}(half|halved)) & (quer|\\bq\\b|q_rope) & (apart|begin|start|offset|stride|pitch|from|every|8 ?\\*? ?h|h ?\\*? ?8|overlap|distance|step) & ^(?!.*(only|alone))"],
     lambda c: c.right(q=np.stack([c.q.reshape(T, -1)[:, 8 * h:8 * h + d] for h in range(H)], 1)))
form("score_keys_reshaped", "probs", "keys [20,16] of a head are reshaped to [16,20], not transposed: element i of key s is number 20 i + s of the head's",
     ["(reshap|view|transpos|\\[d, ?[stn]\\]|\\[16, ?20\\]|20 ?\\*? ?i ?\\+ ?s|[tns] ?\\*? ?i ?\\+ ?s|i ?\\*? ?(20|[tns]) ?\\+ ?s|flat|axes|column.major|layout) & (key|\\bk\\b|k_rope) & ^(?!.*(head.{0,20}position|position.{0,20}head).{0,30}(exchang|swap|transpos)) & ^(?!.*halves)"],
     lambda c: c.right(k=np.stack([np.ascontiguousarray(c.k[:, j]).reshape(d, T).T for j in range(K)], 1)))
form("score_decode_scaled_twice", "probs", "decode steps, from query 12 on, have the scale in q as well: their scores are multiplied by 1/16, not 1/4",
     [f"{DECODE} & (#0.25|#0.0625|#4|#16|twice|again|1 ?/ ?d\\b|quarter) & (scale|factor|multipl|divid|score|times|product|\\*) & ^(?!.*(weights?|probs) (is|are) (multipl|divid|scaled))"],
     lambda c: c.right(q=c.q * np.where(POS >= PROMPT, F32(0.25), F32(1))[:, None, None]))
form("denominator_first_twice", "probs", "the sum begins with the first term, and its loop from 0: the denominator has the term of key 0 twice",
     ["(key.{0,6}\\b0\\b|first (key|term|exp|column|token)|exp\\(s_?\\[?0|position 0) & (twice|doubl|#2|again|two times|(extra|another|one more|once more|added|plus|\\+)) & (denominator|sum|divis|divid|count|term|total)"],
     lambda c: c.right(soft=lambda s: softmax(s) / (1 + softmax(s)[..., :1])))
form("softmax_divided_while_summing", "probs", "one loop sums and divides: the weight of key s is divided by the sum over keys 0 to s",
     ["(running|cumulat|partial|so far|(up to|until|through) (and including )?(that|this|the|its|it|key|s\\b|itself)|prefix|not (yet )?(complete|finished|whole)|(keys?|terms?) 0 ?(to|-|\u2013|\\.\\.+|through) ?s\\b|<=? ?s\\b|before it|unfinished|incomplete) & (sum|denominator|divi|total) & "
      "^(?!.*(rows?|quer(y|ies)|positions of the quer.{0,4}|heads?) (so far|up to|before|until))"],
     lambda c: c.right(soft=lambda s: (lambda e: e / np.cumsum(e, -1))(np.exp(s - s.max(-1, keepdims=True)))))


def tail_as_it_is(s):
    e = np.concatenate([np.exp(s[..., :16] - s.max(-1, keepdims=True)), np.exp(s[..., 16:])], -1)
    return e / e.sum(-1, keepdims=True)


form("softmax_tail_keeps_maximum", "probs", "keys from 16 on, the tail of a loop by 16, have exp(s) where the others have exp(s - maximum), and all are divided by the sum",
     ["(#16|#15|last (four|4) (keys|columns)) & (key|column|tail|last) & (max|exp\\(s\\)|e\\^s\\b|largest (score|of the row))"], lambda c: c.right(soft=tail_as_it_is))

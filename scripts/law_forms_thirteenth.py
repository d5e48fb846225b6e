#!/usr/bin/env python3
"""law_forms_thirteenth.py: mistakes that no catalogue lists, as a person makes them who ports a decoder; written without sight of how laws are found.

Norms, norms of heads, projections, biases, rotation, masks, scores and softmax; the rest is another list's. The engine and the rules for expectations
are law_forms.py's. A prompt of 12 tokens stands before decode steps where a form speaks of them.
"""

import numpy as np

from law_forms import D, E_, EPS, F32, FREQ, H, K, POS, SEEN, T, d, listed, over, put, rms, softmax, turn

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
      "2 ?\\*? ?h\\b.{0,12}(-|\u2212|minus|less|without) ?.{0,30}(ffn_out|feed.forward)", "(half|#0.5|#0.25) & (ffn_out|feed.forward|branch) & (last layer|layer 3|layers\\.3) & (h_attn|stream)"],
     lambda c: c.right(x=c.x + c.e.memory["h_attn", 3]))
form("final_norm_roots_averaged", "final_norm", "four blocks of 16 channels each take their root mean square, and it is divided by the mean of the four",
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
     ["#16 & (#12|#-4|t ?- ?4|(4|four) (positions?|rows?|tokens?)? ?(before|earlier|back|behind|late)) & (of|read|take|copy|copies|same|before|earlier|back|instead|input|row|late)"],
     lambda c: put(c.right(), E_[16:], c.right()[12:16]))



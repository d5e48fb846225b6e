#!/usr/bin/env python3
"""law_forms_eleventh.py: more mistakes that no catalogue lists, as a person makes them who ports a decoder; written without sight of how laws are found.

This half: norms, projections of attention, biases, rotation, masks, scores, softmax. The engine and the rules for expectations are law_forms.py's.
A prompt of 12 tokens stands before decode steps where a form speaks of decoding.
"""

import numpy as np

from law_forms import AGO, E_, EPS, F32, FREQ, H, K, POS, SEEN, T, THETA, D, d, listed, over, put, rms, softmax, turn

FORMS, form = listed()
ROPES = ("q_rope", "k_rope")
B, Q3 = ("qwen2",), ("qwen3", "moe")
PROMPT = 12
LATER = POS[:, None] >= PROMPT
DIVISOR = "(rms|root mean|mean square|divisor|divided|denominator|statistic|squares)"
ROOT_2 = "#1.4142|#0.7071|sqrt\\(1 ?/ ?2\\)|root of (2|two|a half|1/2)|2\\^(0\\.5|\\(1/2|1/2|-)"
LEFT = "(not (normed|normal|norm\\b)|unnorm|un-norm|\\braw\\b|as (they|it) (are|is|stand|come|were|was)|(is|are) q\\b|copied|skip|left|only|alone|untouched|input|without|omit|pass)"
NO_SWAP = "^(?!.*(exchang|swap))"
# query heads that stand for others: 1 for 0, and 3 for 2
FIRST_OF_GROUP = ["0, ?0, ?2, ?2", "(h ?// ?2 ?\\* ?2|2 ?\\*? ?\\(?(floor\\()?h ?//? ?2|h ?& ?~1|h ?- ?\\(?h ?(%|mod) ?2)", f"first (query |head |query head )?(of|in) (its|the|each|every) (group|pair) & {NO_SWAP}",
                  f"head & (odd|(#1 & #3)|second) & ((#0 & #2)|even|before|previous|h ?- ?1|neighbour|first) & {NO_SWAP} & ^(?!.*(0, ?0, ?1, ?1|zero|lost|average|mean of|after|h ?\\+ ?1|next))"]


# ---- norms

form("norm_warp_sums", "attn_norm", "each warp of 32 channels is divided by the root of its own sum of squares over 64: the sums of the two warps are not added up",
     [f"(#32|#31|half|halves) & (group|block|each|own|half|halves|tile|warp|alone) & ({ROOT_2}|(over|by|/) ?64\\b|width (of )?64|mean squares?.{{0,40}}(\\* ?0\\.5|/ ?2\\b|halved|by (2|two)\\b)|half (of )?(the|its|their) (own )?mean square|(0\\.5|1/2) (\\*|times|of) .{{0,20}}mean)"],
     lambda c: (c.x.reshape(T, 2, 32) / np.sqrt(np.sum(c.x.reshape(T, 2, 32) ** 2, -1, keepdims=True) / F32(64) + F32(EPS))).reshape(T, D) * c.w)
form("norm_bias_of_other_gain", "attn_norm", "the gain of the feed-forward norm is added to the result, as if it were this norm's bias",
     ["(post_attention|ffn_norm|feed-?forward.{0,12}(norm|gain)|second norm|other norm of the layer) & (add|plus|\\+|bias|sum|offset) & (gain|weight|post_attention|\\bw\\b) & "
      "^(?!.*(gain is.{0,40}(sum|plus|\\+)|(added|adds) to (the|its|this).{0,12}(gain|weight)|half|\\b0\\.[1-9]|subtract|taken off|minus|h_attn|without bias))"],
     lambda c: c.right() + c.e.m("post_attention_layernorm.weight", c.l))
form("final_norm_rows_left_over", "final_norm", "rows go by threes: the two left over, 18 and 19, are divided by the root mean square of row 17",
     [f"#17 & {DIVISOR[:-1]}|scale|factor|normed by) & (#18|last (two|2)|at most|\\bmin|clamp|later|beyond|behind|after|stay|repeat|keep) & ^(?!.*(#?row 16|not normed|zero))"],
     lambda c: over(c, rms(c.x)[np.minimum(POS, 17)]))
form("norm_input_before_feed", "attn_norm", "from layer 1 on it norms the h_attn of the layer before: the stream to which its feed-forward is not yet added",
     ["h_attn & ^(?!.*(h_attn.{0,20}(is )?(added|also)|plus h_attn|\\+ h_attn|h_attn of this layer))",
      "(without|minus|less|lacks?|leaves out|omits|skips|taken off|subtract|missing|not (in|yet|added)).{0,60}(ffn_out|ffn|feed-?forward|mlp)|(ffn_out|ffn|feed-?forward|mlp).{0,60}(taken off|subtract|missing|not (in|yet|added)|left out|omitted|lacking)",
      "(stream|residual|hidden|input).{0,50}(before|ahead of) .{0,25}(feed-?forward|ffn|mlp)|(stream|residual).{0,25}(after|behind).{0,20}attention.{0,60}(before|previous|earlier|layer 0|l ?- ?1)"],
     lambda c: c.right(x=c.e.memory["h_attn", c.l - 1]), layers=[1, 2, 3])
form("norm_gain_pointer_stays", "ffn_norm", "the vector loop does not advance its pointer to the gain: channel i has the gain of channel i mod 8",
     ["(gain|weight) & (#8|#7|eight) & (mod\\b|%|repeat|again|period|first|cycl|wrap|restart|reuse|tiled|& ?7|over and over|advance) & ^(?!.*(// ?8|i ?/ ?8|share|gain of channel 8 ?\\*? ?i|first of (its|each|the|every)|last 8))"],
     lambda c: c.right(w=c.w[np.arange(D) % 8]))
form("norm_first_not_squared", "attn_norm", "the sum of squares begins with x[0] itself, not with its square",
     [f"(x_?\\[?0\\b|(channel|element|input|term|lane|number)s? (is |number )?0\\b|first (channel|element|input|term|value|number|square|summand)) & "
      f"(not (being )?squared|un-?squared|without (the |being |its )?squar|itself|linear|as it is|(instead|in place) of (its|the|x_?\\[?0\\]?) ?(square|\\^|\\*)|rather than (its |the |x)|(to|of) the (power|order) (of )?(1|one)\\b|first power|- ?x_?\\[?0\\]? ?(\\^|\\*|²)) & "
      f"(sum|mean|rms|root|divi|denominator)"],
     lambda c: over(c, np.sqrt((np.sum(c.x[:, 1:] ** 2, -1, keepdims=True) + c.x[:, :1]) / F32(D) + F32(EPS))))

# norms of heads

form("qk_norm_gain_by_head", "q_norm", "the gain is indexed by the head, not by the element: all of head h is multiplied by w[h]",
     ["(gain|weight|\\bw\\b) & head & (w\\[ ?h\\b|(gain|weight|element|channel|entry|number|component|value)s?[ \\[]+h\\b|(index|indic|taken|looked up|chosen|read)\\w*.{0,12} (by|with|at|from) (the |its |their )?head|head.{0,12}(index|number)|axis|"
      "(w\\[0|\\b0\\b).{0,80}(w\\[1|\\b1\\b).{0,80}(w\\[2|\\b2\\b)) & ^(?!.*(revers|backward|not normed|random|h ?\\+ ?1|3 ?- ?h))"],
     lambda c: c.right(w=np.ones_like(c.w)) * c.w[:H, None], archs=Q3)
form("qk_norm_sum_over_heads", "k_norm", "the sum of squares is not reset between heads: head 1 is divided by the root of the squares of heads 0 and 1, summed, over 16",
     ["head & (reset|accumul|cumul|carr(y|ied)|so far|running|sum|both|add|plus|\\+|total) & (\\b1\\b|second|last head|between heads|so far|previous head|head before|from head to head) & (square|rms|root mean|divi|denominator) & "
      "^(?!.*(\\b32\\b|running mean|average|mean squares? (is |are )?(taken )?(over|of) (both|all|the two)|head 0 is divided by))",
      f"head & (\\b1\\b|second|last head) & (both|two|0 and 1|#32) & (square|rms|root mean|divi|denominator) & ({ROOT_2}|not by 32|(over|by|/) ?16)"],
     lambda c: over(c, np.sqrt(np.cumsum(np.mean(c.x * c.x, -1, keepdims=True), 1) + F32(EPS))), archs=Q3)
form("qk_norm_kv_heads_alone", "q_norm", "the loop over heads ends at the number of key heads: heads 2 and 3 are not normed",
     [f"((#2 & #3)|(second|upper|last) half of the heads|last (two|2) heads|(from head|heads? from) 2|heads? (>=|≥) ?2|first (two|2) heads|heads 0 and 1) & {LEFT} & ^(?!.*(gain (alone|only)|gain-only|heads 0 and 1 (are )?(not|un|raw|left|skip)|first (two|2) heads (are )?(not|un|raw|left|skip)))"],
     lambda c: put(c.right(), E_[:, 2:], c.x[:, 2:]), archs=Q3)
form("qk_norm_heads_interleaved", "k_norm", "the row is taken as [d,K]: channels 0, 2, 4, .. of the two heads are normed as one head, 1, 3, 5, .. as the other, with the gain of channel c / 2",
     ["(d-first|\\[ ?d, ?[KH] ?\\]|\\[16, ?2\\]|(axes|axis|dimensions).{0,30}(exchang|swap|other|transpos)|transpos|2 ?\\*? ?[ij] ?\\+ ?h|c ?% ?2|interleav) & ^(?!.*(0, ?8, ?1|halves-to-pairs|gain is (transposed|interleaved)|gain.{0,20}order of))",
      "(even|odd|every (second|other)|stride (of )?2|parity|0, ?2, ?4) & (square|rms|root mean|divi|denominator|normed) & (gain|weight) & (c ?//? ?2|i ?//? ?2|half|//? ?2)"],
     lambda c: (lambda x: (c.e.r(x / rms(x, 1)) * c.w[:, None]).reshape(T, K, d))(c.x.reshape(T, d, K)), archs=Q3)
form("qk_norm_scales_of_k", "q_norm", "the buffer of scales holds those of k by then: each query head is divided by the root mean square of the key head that it reads",
     [f"{DIVISOR[:-1]}|inverse|scale|normed by) & (\\bk\\b|\\bkeys?\\b|k's|k_proj|\\bkv\\b) & ^(?!.*(k(_norm)?'?s? (gain|weight)|(gain|weight) of k|(key|kv|k) head [01] (for|of|in) all|k_rope|k_norm))"],
     lambda c: over(c, np.repeat(rms(c.e.memory["k", c.l]), H // K, 1)), archs=Q3)

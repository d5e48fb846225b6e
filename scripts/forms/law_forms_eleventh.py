#!/usr/bin/env python3
"""law_forms_eleventh.py: more mistakes that no catalogue lists, as a person makes them who ports a decoder; written without sight of how laws are found.

This half: norms, projections of attention, biases, rotation, masks, scores, softmax. The engine and the rules for expectations are law_forms.py's.
A prompt of 12 tokens stands before decode steps where a form speaks of decoding.
"""

import numpy as np

from scripts.forms.law_forms import AGO, E_, EPS, F32, FREQ, H, K, POS, SEEN, T, THETA, D, d, listed, over, put, rms, softmax, turn

FORMS, form = listed()
ROPES = ("q_rope", "k_rope")
B, Q3 = ("qwen2",), ("qwen3", "moe")
PROMPT = 12
LATER = POS[:, None] >= PROMPT
DIVISOR = "(rms|root mean|mean square|divisor|divided|denominator|statistic|squares)"
ROOT_2 = "#1.4142|#0.7071|sqrt\\(1 ?/ ?2\\)|root of (2|two|a half|1/2)|2\\^(0\\.5|\\(1/2|1/2|-)"
LEFT = ("(not (normed|normal|norm\\b)|unnorm|un-norm|\\braw\\b|as (they|it) (are|is|stand|come|were|was)|(is|are) q\\b|copied|skip|left|only|alone|untouched|\\binput\\b|without|"
        "omit|pass)")
NO_SWAP = "^(?!.*(exchang|swap))"
# query heads that stand for others: 1 for 0, and 3 for 2
FIRST_OF_GROUP = ["0, ?0, ?2, ?2", "(h ?// ?2 ?\\* ?2|2 ?\\*? ?\\(?(floor\\()?h ?//? ?2|h ?& ?~1|h ?- ?\\(?h ?(%|mod) ?2)",
                  f"first (query |head |query head )?(of|in) (its|the|each|every) (group|pair) & {NO_SWAP}",
                  f"head & (odd (query )?heads|second (query )?heads? (of|in) (its|the|each|every)|\\b1 (and|,|&) ?(head |query )*3\\b) & (even|before|previous|h ?- ?1|"
                  f"neighbour|first|0 (and|,|&) ?(head )?2\\b) & {NO_SWAP} & "
                  "^(?!.*(zero|lost|average|mean of|after|h ?\\+ ?1|next|key head))",
                  f"head & (\\b1\\b.{{0,40}}\\b0\\b.{{0,30}}\\b3\\b.{{0,40}}\\b2\\b|0\\b.{{0,25}}\\b(for|in place of|instead of|as|"
                  f"and) (head )?1\\b.{{0,40}}\\b2\\b.{{0,25}}\\b(for|in place of|instead of|as|and) (head )?3\\b) & "
                  f"{NO_SWAP} & ^(?!.*(zero|lost|average|key head|2 and 3|0, ?1|1, ?0|c ?/ ?2|normed as))"]


# ---- norms

form("norm_warp_sums", "attn_norm", "each warp of 32 channels is divided by the root of its own sum of squares over 64: the sums of the two warps are not added up",
     [f"(#32|#31|half|halves) & (group|block|each|own|half|halves|tile|warp|alone) & ({ROOT_2}|(over|by|/) ?64\\b|width (of )?64|mean squares?.{{0,40}}(\\* ?0\\.5|/ ?2\\b|"
      f"halved|by (2|two)\\b)|half (of )?(the|its|their) (own )?mean square|(0\\.5|1/2) (\\*|times|of) .{{0,20}}mean)"],
     lambda c: (c.x.reshape(T, 2, 32) / np.sqrt(np.sum(c.x.reshape(T, 2, 32) ** 2, -1, keepdims=True) / F32(64) + F32(EPS))).reshape(T, D) * c.w)
form("norm_bias_of_other_gain", "attn_norm", "the gain of the feed-forward norm is added to the result, as if it were this norm's bias",
     ["(post_attention|ffn_norm|feed-?forward.{0,12}(norm|gain)|second norm|other norm of the layer) & (add|plus|\\+|bias|sum|offset) & (gain|weight|post_attention|\\bw\\b) & "
      "^(?!.*(gain is.{0,40}(sum|plus|\\+)|(added|adds) to (the|its|this).{0,12}(gain|weight)|half|\\b0\\.[1-9]|subtract|taken off|minus|h_attn|without bias))"],
     lambda c: c.right() + c.e.m("post_attention_layernorm.weight", c.l))
form("final_norm_rows_left_over", "final_norm", "rows go by threes: the two left over, 18 and 19, are divided by the root mean square of row 17",
     [f"#17 & {DIVISOR[:-1]}|scale|factor|normed by) & (#18|last (two|2)|at most|\\bmin|clamp|later|beyond|behind|after|stay|repeat|keep) & ^(?!.*(row 16|not normed|zero))"],
     lambda c: over(c, rms(c.x)[np.minimum(POS, 17)]))
form("norm_input_before_feed", "attn_norm", "from layer 1 on it norms the h_attn of the layer before: the stream to which its feed-forward is not yet added",
     ["h_attn & ^(?!.*(h_attn.{0,20}(is )?(added|also)|plus h_attn|\\+ h_attn|h_attn of this layer))",
      "(without|minus|less|lacks?|leaves out|omits|skips|taken off|subtract|missing|not (in|yet|added)).{0,60}(ffn_out|ffn|feed-?forward|mlp)|(ffn_out|ffn|feed-?forward|"
      "mlp).{0,60}(taken off|subtract|missing|not (in|yet|added)|left out|omitted|lacking)",
      "(stream|residual|hidden|input).{0,50}(before|ahead of) .{0,25}(feed-?forward|ffn|mlp)|(stream|residual).{0,25}(after|behind).{0,20}attention.{0,60}(before|previous|"
      "earlier|layer 0|l ?- ?1)"],
     lambda c: c.right(x=c.e.memory["h_attn", c.l - 1]), layers=[1, 2, 3])
form("norm_gain_pointer_stays", "ffn_norm", "the vector loop does not advance its pointer to the gain: channel i has the gain of channel i mod 8",
     ["(gain|weight) & (#8|#7|eight) & (mod\\b|%|repeat|again|period|first|cycl|wrap|restart|reuse|tiled|& ?7|over and over|advance) & ^(?!.*(// ?8|i ?/ ?8|share|"
      "gain of channel 8 ?\\*? ?i|first of (its|each|the|every)|last 8))"],
     lambda c: c.right(w=c.w[np.arange(D) % 8]))
form("norm_first_not_squared", "attn_norm", "the sum of squares begins with x[0] itself, not with its square",
     [f"(x_?\\[?0\\b|(channel|element|input|term|lane|number)s? (is |number )?0\\b|first (channel|element|input|term|value|number|square|summand)) & "
      f"(not (being )?squared|un-?squared|without (the |being |its )?squar|itself|linear|as it is|(instead|in place) of (its|the|x_?\\[?0\\]?) ?(square|\\^|\\*)|"
      f"rather than (its |the |x)|(to|of) the (power|order) (of )?(1|one)\\b|first power|- ?x_?\\[?0\\]? ?(\\^|\\*|²)) & "
      f"(sum|mean|rms|root|divi|denominator)"],
     lambda c: over(c, np.sqrt((np.sum(c.x[:, 1:] ** 2, -1, keepdims=True) + c.x[:, :1]) / F32(D) + F32(EPS))))

# norms of heads

form("qk_norm_gain_by_head", "q_norm", "the gain is indexed by the head, not by the element: all of head h is multiplied by w[h]",
     ["(gain|weight|\\bw\\b) & head & (w\\[ ?h\\b|(gain|weight|element|channel|entry|number|component|value)s?[ \\[]+h\\b|(index|indic|taken|looked up|chosen|"
      "read)\\w*.{0,12} (by|with|at|from) (the |its |their )?head|head.{0,12}(index|number)|(number|index) of (the|its|each) head|axis|"
      "(w\\[0|element 0|gain 0|channel 0).{0,80}(w\\[1|element 1|gain 1|channel 1)) & ^(?!.*(revers|backward|not normed|random|h ?\\+ ?1|3 ?- ?h))"],
     lambda c: c.right(w=np.ones_like(c.w)) * c.w[:H, None], archs=Q3)
form("qk_norm_sum_over_heads", "k_norm", "the sum of squares is not reset between heads: head 1 is divided by the root of the squares of heads 0 and 1, summed, over 16",
     ["head & (reset|accumul|cumul|carr(y|ied)|so far|running|sum|both|add|plus|\\+|total) & (\\b1\\b|second|last head|between heads|so far|previous head|head before|"
      "from head to head) & (square|rms|root mean|divi|denominator) & "
      "^(?!.*(\\b32\\b|running mean|average|mean squares? (is |are )?(taken )?(over|of) (both|all|the two)|head 0 is divided by))",
      f"head & (\\b1\\b|second|last head) & (both|two|0 and 1|#32) & (square|rms|root mean|divi|denominator) & ({ROOT_2}|not by 32|(over|by|/) ?16)"],
     lambda c: over(c, np.sqrt(np.cumsum(np.mean(c.x * c.x, -1, keepdims=True), 1) + F32(EPS))), archs=Q3)
form("qk_norm_kv_heads_alone", "q_norm", "the loop over heads ends at the number of key heads: heads 2 and 3 are not normed",
     [f"((#2 & #3)|(second|upper|last) half of the heads|last (two|2) heads|(from head|heads? from) 2|heads? (>=|≥) ?2|first (two|2) heads|heads 0 and 1) & {LEFT} & "
      f"^(?!.*(gain (alone|only)|gain-only|heads 0 and 1 (are )?(not|un|raw|left|skip)|first (two|2) heads (are )?(not|un|raw|left|skip)))"],
     lambda c: put(c.right(), E_[:, 2:], c.x[:, 2:]), archs=Q3)
form("qk_norm_heads_interleaved", "k_norm", "the row is taken as [d,K]: channels 0, 2, 4, .. of the two heads are normed as one head, 1, 3, 5, .. as the other, with the gain of channel c / 2",
     ["(d-first|\\[ ?d, ?[KH] ?\\]|\\[16, ?2\\]|(axes|axis|dimensions).{0,30}(exchang|swap|other|transpos)|transpos|2 ?\\*? ?[ij] ?\\+ ?h|c ?% ?2|interleav) & ^(?!.*(0, ?8, ?1|"
      "halves-to-pairs|gain is (transposed|interleaved)|gain.{0,20}order of))",
      "(even|odd|every (second|other)|stride (of )?2|parity|0, ?2, ?4) & (square|rms|root mean|divi|denominator|normed) & (gain|weight) & (c ?//? ?2|i ?//? ?2|half|//? ?2)"],
     lambda c: (lambda x: (c.e.r(x / rms(x, 1)) * c.w[:, None]).reshape(T, K, d))(c.x.reshape(T, d, K)), archs=Q3)
form("qk_norm_scales_of_k", "q_norm", "the buffer of scales holds those of k by then: each query head is divided by the root mean square of the key head that it reads",
     [f"{DIVISOR[:-1]}|inverse|scales? (is|are|of|that)|scaled by|normed by) & (\\bk\\b|\\bkeys?\\b|k's|k_proj|\\bkv\\b) & ^(?!.*(k(_norm)?'?s? (gain|weight)|(gain|weight) of k|"
      f"(key|kv|k) head [01] (for|of|in) all|k_rope|k_norm|(odd|even) keys|not scaled|\\bexp|summed|every second))"],
     lambda c: over(c, np.repeat(rms(c.e.memory["k", c.l]), H // K, 1)), archs=Q3)


# ---- products

form("v_bytes_unsigned", "v", "weights are bytes, blocks of 32 in 127ths of their largest, and read as unsigned: 256 steps are added to each negative one",
     ["(unsigned|\\bu8\\b|uint8|sign.{0,3}exten|sign bit) & (neg|weight|byte|8.?bit) & ^(?!.*(nibble|\\b4.?bit|absolute value|input is))", "#256 & (neg|below (0|zero)|< ?0) & "
      "(weight|step|\\bw\\b|block|byte)",
      "(neg|below (0|zero)|< ?0) & weight & #2.0157 & (largest|max|block|absmax)"],
     lambda c: c.right(w=(lambda w: w + np.where(w < 0, F32(256 / 127) * np.abs(w).max(-1, keepdims=True), 0).astype(F32))(c.w.reshape(len(c.w), -1, 32)).reshape(c.w.shape)))
form("attn_out_row_stride", "attn_out", "rows of its input are taken at the distance of a row of K, 32: row t is the 64 numbers from 32 t on",
     ["(#32|K ?\\* ?d|half (of )?(a|the|its|their|each) (row|width|stride|distance|length)|row of (k|v)\\b) & (stride|step|distance|starts?|begins?|offset|apart|leading|advance|"
      "further|t ?\\* ?32|32 ?\\*? ?t\\b) & ^(?!.*(weight|zero|lost|not read|column|transpos|\\bpair|rotat))",
      "(t ?//? ?2|half (the|its|their) (position|row|number)|(position|row)s? .{0,20}halv) & (odd|second half|halves|mod|%|#32) & ^(?!.*(weight|zero|lost))"],
     lambda c: c.right(x=np.lib.stride_tricks.sliding_window_view(c.x.ravel(), D)[::K * d][:T]))
form("k_inputs_tail_twice", "k", "the loop for the tail begins at 56, where the vector loop has been to the end: inputs 56 to 63 are counted twice",
     ["(#56|#55|last (8|eight)\\b) & (twice|doubl|two times|again|once more|#2|second time|repeat) & (input|channel|column|attn_norm|\\bx\\b|product|summand|weight|term) & "
      "^(?!.*(zero|lost|missing|not (read|counted)|positions? 56|half))"],
     lambda c: c.right() + (c.x[:, 56:] @ c.w[:, 56:].T).reshape(T, K, d))
form("v_decode_head_stale", "v", "decode steps write head 0 alone: from position 12 on head 1 stays what it was at position 11",
     ["(head.{0,10}\\b1\\b|second head|last head|second half of the heads|odd head|head 0 (alone|only)|only head 0|(#16 & (element|channel|output|row|dimension|#31))) & "
      "((#11 & (that of|those of|same|stays?|stale|repeat|cop(y|ies)|at most|min|keep|last|unchanged|holds?|held|equal|of position|of row|is row|is position|frozen|what))|"
      "(#12 & (stays?|stale|keep|not (written|updated|computed)|unchanged|never|last (row|position) (of the prompt|before)|repeat|frozen|held))) & ^(?!.*(zero|10\\b|both heads))"],
     lambda c: put(c.right(), E_[PROMPT:, 1], c.right()[PROMPT - 1, 1]))
form("k_cut_to_bf16", "k", "results are cut to bf16 by their upper 16 bits, toward zero, not rounded",
     ["(bf16|bfloat16|\\b[78] (significant |mantissa )?bits|upper (half|16)|high(er)? (half|16)|low(er)? (half|16)|brain) & (truncat|towards? (zero|0)|\\bcut|chop|not round|"
      "without round|dropp|mask|clear|discard|zeroed|down in (size|magnitude)) & ^(?!.*(nearest|away from|toward(s)? (minus|-|neg)|input|weights? (is|are)))"],
     lambda c: (np.ascontiguousarray(c.right(), F32).view(np.uint32) & np.uint32(0xFFFF0000)).view(F32))
form("q_row_clamped", "q", "the number of the row is held to 47, one tile too early: outputs 48 to 63, all of head 3, are what output 47 is",
     ["#47 & (#48|#63|last (16|head|tile|quarter)|head.{0,8}3\\b|at most|\\bmin|clamp|later|beyond|behind it|from there) & ^(?!.*(zero|lost|exchang|swap|input|column|next))",
      "(head.{0,8}3\\b|last head|fourth head) & #15 & (head.{0,8}2\\b|head before|previous head|third head) & (all|each|every|constant|same|whole) & ^(?!.*(zero|lost|exchang|swap))"],
     lambda c: (lambda y: y[:, np.minimum(np.arange(H * d), 47)].reshape(T, H, d))(c.right().reshape(T, -1)))
form("attn_out_group_heads", "attn_out", "the offset of a head is that of its group: inputs are heads 0, 0, 2, 2",
     [f"{said} & ^(?!.*(queries|query (of|heads? 0)))" for said in FIRST_OF_GROUP] + [f"#16 & #48 & (#0|#15) & (#32|#47) & (those|\\bof\\b|same|instead|read|cop|repeat|stead|"
      f"place) & {NO_SWAP} & ^(?!.*(zero|lost))",
                       f"i ?- ?16 & (i ?% ?32|i ?& ?16|odd|#48) & {NO_SWAP}", f"i ?& ?~16|i ?// ?32 ?\\* ?32 ?\\+ ?i ?(%|mod) ?16"],
     lambda c: c.right(x=c.x.reshape(T, H, d)[:, [0, 0, 2, 2]].reshape(T, -1)))
form("q_shard_repeated", "q", "the second of two shards has loaded the first one's part: outputs 32 to 63 repeat 0 to 31, heads 2 and 3 are heads 0 and 1",
     [f"head & (\\b2 ?(and|,|to|-|&) ?(head )?3\\b|(second|upper|last) half of the (query )?heads|last (two|2) (query )?heads|heads? from 2|from head 2) & (\\b0 ?(and|,|to|-|"
      f"&) ?(head )?1\\b|first (two|2|half)|repeat|again|h ?- ?2|same as) & "
      f"{NO_SWAP} & ^(?!.*(zero|lost|0, ?0, ?1, ?1|0, ?2|1, ?0|not normed|all the same))", "\\b0, ?1, ?0, ?1\\b", "h ?(%|mod) ?2 & head",
      f"head 2\\b.{{0,40}}(head |of |is |from |repeats )0\\b.{{0,40}}head 3\\b.{{0,40}}(head |of |is |from |repeats )1\\b & {NO_SWAP}",
      f"#32 & (mod\\b|%|repeat|first half|again|[io] ?- ?32|same|#31|those of|that of) & (output|row|channel|weight|element|shard) & {NO_SWAP} & ^(?!.*(zero|lost|i ?\\+ ?32|"
      f"input|half as|k_proj|reverse|mean square|divided))",
      f"second half of the (outputs?|rows|channels|weights?|matrix|result).{{0,60}}(first half|repeat|again) & {NO_SWAP}"],
     lambda c: c.right()[:, [0, 1, 0, 1]])
form("k_block_extreme_clipped", "k", "a level of -8 is held to -7: the largest weight in each block of 32 inputs has 7/8 of its size",
     ["(#0.875|#0.125|(#7 & #8)|eighth) & (largest|extreme|maxim|\\bmax|biggest|strongest|greatest|-8\\b|lowest level) & (#32|block) & (weight|level|quanti|nibble|\\bw\\b|code|"
      "step|value) & ^(?!.*(smallest|block of 64|activation|largest input|each row))"],
     lambda c: c.right(w=(lambda w: np.where(np.abs(w) == np.abs(w).max(-1, keepdims=True), w * F32(0.875), w))(c.w.reshape(len(c.w), -1, 32)).reshape(c.w.shape)))
form("k_lanes_reversed", "k", "vectors of four are stored with their lanes in reverse order: outputs 3, 2, 1, 0, 7, 6, 5, 4, ..",
     ["3, ?2, ?1, ?0", "[ico] ?(\\^|xor) ?3\\b", "4 ?\\*? ?[bi] ?\\+ ?3 ?-|4 ?\\*? ?\\(?i ?// ?4\\)? ?\\+ ?3 ?-|3 ?- ?\\(?i ?(%|mod) ?4|i ?\\+ ?3 ?- ?2",
      "(#4|four) & (revers|backward|mirror|endian|descending|opposite order|from (its|their|the) (last|end)) & (group|block|each|every|quad|vector|lanes|fours) & ^(?!.*(input|"
      "position|head [01]\\b|4 (groups|blocks)|blocks (of 4 )?in reverse))"],
     lambda c: c.right().reshape(T, K, d // 4, 4)[..., ::-1].reshape(T, K, d))

# biases

form("bias_one_head_early", "k", "K's part of the fused bias is read one head, 16 numbers, too early: head 0 has that of Q's last head, head 1 that of head 0",
     ["bias & (#16|#-16|one head|a head|#48|head.{0,3}0) & (\\bq\\b|\\bq's|q_proj|quer|early|earlier|too (low|soon)|[ic] ?- ?16|#-16|preced) & (#16|#-16|#48|one head|a head|"
      "last head|head.{0,3}3) & ^(?!.*(\\blate\\b|later|further|too high|[ic] ?\\+ ?16|zero|no bias|first head of q|q'?s? first))"],
     lambda c: c.right(b=np.concatenate([c.e.m("self_attn.q_proj.bias", c.l)[-16:], c.b[:16]])), archs=B)
form("bias_not_in_decode", "q", "the product of a single row adds no bias: it is missing from position 12 on",
     ["bias & (#12|#11) & (not\\b|\\bno\\b|without|missing|omit|left out|lack|only|alone|zero|\\b0\\b|absent|stops?|up to|gone|taken off|subtract|minus) & "
      "^(?!.*((missing|omitted|not added|without|no bias|left out|lack(s|ing)?|absent)[^.;:,]{0,30}(0 to 11|up to (and including )?(position )?11|before (position )?12|first 12|"
      "prompt)|"
      "(?<!not )(added|applied|there) (only |alone )?(from|at|for) (position )?1[12] (on|and)|only from|twice|half|head [0-3]))"],
     lambda c: put(c.right(), E_[PROMPT:], c.right(b=None)[PROMPT:]), archs=B)
form("bias_index_halved", "v", "channel i has the bias of channel i // 2: the stride of a type of two bytes over numbers of four",
     ["bias & ([ico] ?//? ?2\\b|floor\\(.{0,3}/ ?2|>> ?1|half (of )?(the|its|their|that) (own )?(channel|index|number|place|stride|step|distance)|(index|channel|number|"
      "stride).{0,15}halv|0, ?0, ?1, ?1|"
      "(channels?|outputs?) 2i and 2i ?\\+ ?1 .{0,40}\\bi\\b|(each|every|its) (value|element|entry|one|number|bias).{0,30}(twice|two|both|repeated|doubled)) & "
      "^(?!.*(added twice|~1|even|bias is halved|of channel 2i\\b(?! and)|2i\\]))"],
     lambda c: c.right(b=c.b[np.arange(K * d) // 2]), archs=B)
form("attn_out_bias_of_q", "attn_out", "the bias of Q is added, where this product has none",
     ["bias & (\\bq\\b|\\bq's|q_proj|quer) & (add|plus|\\+|with|\\bhas\\b|there|bias of q|q_proj.bias|is q) & ^(?!.*(k_proj|v_proj|\\bk's|\\bv's|half|\\b0\\.[1-9]|twice|"
      "subtract|minus|revers|layer [0-3]'s|one head|head [0-3] has|last head))"],
     lambda c: c.right(b=c.e.m("self_attn.q_proj.bias", c.l)), archs=B)


# ---- rotation

FLAT = np.arange(H)[:, None] * d // 2 + np.arange(d // 2)     # the number of a pair in its row


def turned_as_one(c):
    """The row of all heads rotated as one head."""
    x = c.x.reshape(T, -1)
    n = x.shape[1] // 2
    angle = (POS[:, None].astype(F32) * (THETA ** (-np.arange(n) / n)).astype(F32)).astype(F32)
    cos, sin, a, b = c.e.r(np.cos(angle)), c.e.r(np.sin(angle)), x[:, :n], x[:, n:]
    return np.concatenate([c.e.r(a * cos) - c.e.r(b * sin), c.e.r(b * cos) + c.e.r(a * sin)], -1).reshape(c.x.shape)


def cosines(c, f):
    """The rotation with other cosines, of angles [T,1,d/2]; the sines are right."""
    angle = (POS[:, None, None].astype(F32) * FREQ.astype(F32)).astype(F32)
    return turn(c.e, c.x, angle, cos=c.e.r(f(angle).astype(F32)))


form("rope_frequency_not_reset", ROPES, "frequencies go on from head to head, without the modulo of head_dim: pair i of head h has theta^(-2 (i + 8 h) / 16), so head 1 is 10000 times slower",
     ["head & (#0.0001|#10000|1e-0?4|theta\\^\\(?-h|theta\\*\\*\\(?-h|/ ?theta\\b|theta ?\\^ ?h|i ?\\+ ?8 ?\\*? ?h|8 ?\\*? ?h ?\\+ ?i|i ?\\+ ?h ?\\*? ?\\(?d ?/ ?2|"
      "2i ?\\+ ?16 ?\\*? ?h|(continu|go(es)? on|carr(y|ied)|not reset|never reset|run(s)? on).{0,60}head|"
      "head.{0,60}(continu|go(es)? on|carr(y|ied)|not reset|never reset|run(s)? on)|flat (index|channel)|without (the )?(modulo|mod\\b|%)) & (frequen|angle|exponent|slower|"
      "theta|rotat) & ^(?!.*(position (is|of)|apart|as one (head|long)|one head of))"],
     lambda c: c.right(freq=THETA ** (-2.0 * FLAT[:c.x.shape[1]] / d)))
form("rope_cosine_row_before", ROPES, "the table of cosines is read a row too early: the cosine is of position p - 1 (of 0 at position 0), the sine of p",
     ["cos & (before|previous|[pt] ?- ?1|one (position|row|step|too)|a row (too )?(early|before|back)|#-1|late\\b|behind|earlier|early|preced|too low) & ^(?!.*(\\bsin(e|es|"
      "us)?( table)? (is|are) .{0,30}(before|previous|[pt] ?- ?1|early)|next|ahead|[pt] ?\\+ ?1|too (high|late)|cos and sin|cosine and sine|frequency|\\b2i\\b))"],
     lambda c: cosines(c, lambda angle: np.cos(angle[np.maximum(POS - 1, 0)])))
form("rope_every_second_pair", ROPES, "the loop over pairs goes by steps of 2: pairs 1, 3, 5 and 7 are not rotated",
     ["(odd|every (second|other|2nd)|(#1 & #3 & #5 & #7)|2i ?\\+ ?1|i ?(%|mod) ?2|alternat|steps? of (2|two)) & (not rotated|unrotated|not turned|unturned|left|no rotation|"
      "frequenc(y|ies).{0,30}\\b0\\b|angles?.{0,30}\\b0\\b|zero|skip|untouched|without|stay|still|only|alone|unchanged|stands? still|position 0) & "
      "(pair|frequen|angle|element|dimension|channel) & ^(?!.*((odd|every (second|other)) (position|head|token|row|quer|key)|half the (position|freq|angle)|halved|\\b0\\.5\\b|"
      "even (pairs|ones|frequencies)[^.;:,]{0,20}(not|left|unrot|unturn|skip)|odd (pairs|ones)[^.;:,]{0,12}(only|alone|are rotated|rotate\\b)))",
      "#0 & #2 & #4 & #6 & (only|alone) & (pair|frequen)"],
     lambda c: c.right(freq=np.where(np.arange(d // 2) % 2 == 1, 0, FREQ)))
form("rope_second_not_stored", "k_rope", "only the first element of each pair is written back: elements 8 to 15 of a head stay as before the rotation",
     ["((second|upper|last) half|#8|#15|last (8|eight)|b cos|x2 cos|second (element|of (each|a|the) pair|member|component|line)|i ?\\+ ?d/2|first (element|of each pair|member|"
      "component|half|line)|a cos|halves) & "
      "(not (rotated|written|stored|turned|updated)|unrotated|unturned|as (they|it|in|before)|left (as|un|raw|out|where)|keep|\\braw\\b|unchanged|(is|are) k\\b|stays? (as|what|"
      "un)|before the rotation|k_norm|never (written|stored|rotated|turned)|stale|untouched|(written|stored|rotated|turned|rotates?|writes?|stores?)[^.;:]{0,30}(only|alone)|"
      "(only|alone)[^.;:]{0,60}(written|stored|rotated|turned)) & "
      "^(?!.*(half of the (heads|positions|pairs|keys)|rotary_dim|partial|pairs? [4-7]|positions? (8|15)\\b|first half[^.;:,]{0,25}(not|left|unrot|raw|stay)|first (element|"
      "member|component)[^.;:,]{0,25}(not|unrot|raw|stay|left)|elements 0 to 7[^.;:,]{0,20}(not|left|unrot|raw|stay)|first (8|eight)[^.;:,]{0,25}(not|left|unrot|raw|stay)|"
      "(last (8|eight)|second half|8 to 15)[^.;:,]{0,30}(is|are) (alone |only )?(rotated|turned)|(second half|last (8|eight)|8 to 15)[^.;:,]{0,12}(alone|only)|zero|frequenc|"
      "head [01]\\b|from (position )?12))"],
     lambda c: np.concatenate([c.right()[..., :d // 2], c.x[..., d // 2:]], -1))
form("rope_cosine_from_sine", ROPES, "the cosine is sqrt(1 - sin^2): it is never negative",
     ["cos & (\\babs|absolute|\\|cos|positive|non-?negative|sqrt\\(1|root|without (its |the )?sign|sign.{0,20}(lost|dropped|missing|ignored)|(lost|drops?|loses|ignores) (its |"
      "the )?sign|magnitude|never negative|1 ?- ?sin|unsigned|size of) & "
      "^(?!.*(clamp|max\\( ?0|at least 0|floor|zero where|\\bsine? (is|=) sqrt|1 ?- ?cos|(size|abs(olute value)?) of (the )?sin|\\|sin|negated))"],
     lambda c: cosines(c, lambda angle: np.abs(np.cos(angle))))
form("rope_whole_row", ROPES, "the row of all heads is rotated as if it were one head: element i of the row with element i + half the row, frequencies theta^(-2i / width)",
     ["(whole (row|vector|width|projection)|entire (row|vector|width)|full (row|width)|flattened|merged|all heads (together|as one|at once)|row of all heads|"
      "heads (are )?(together|joined|merged|concatenated|taken as one)|as (if (it|they) were )?(one|a single) (long |big |single )?head|(across|over) (the |all )?heads|"
      "(head_dim|rotary_dim).{0,12}(64\\b|32\\b|H ?\\*|K ?\\*)|(one|a) (single )?head of (64|32)) & "
      "(pair|half|halves|apart|partner|meets|head of|as one|as if|a single|rotary_dim|head_dim|together) & (rotat|pair|frequen|partner|turn|angle|exponent|rotary|apart) & "
      "^(?!.*(within (its|each|a|the) head|modulo|not reset|adjacent|2i ?\\+ ?1))",
      "((#32 & #64)|(#16 & #32)) & (pair|partner|apart|meets|turns? with|rotat\\w* with) & (frequen|exponent|theta|/ ?64|/ ?32) & ^(?!.*(adjacent|same frequenc|right frequenc))"],
     turned_as_one)
form("rope_table_of_four", ROPES, "in layer 1 the table has four frequencies and wraps: pairs 4 to 7 have those of 0 to 3",
     ["(#4|four|#7) & (frequen|pair|table|angle) & (repeat|again|mod\\b|%|wrap|first|restart|begin|period|i ?- ?4|those of|that of|same|0 to 3|& ?3) & ^(?!.*(not rotated|"
      "unrotated|stand still|divided by 4|position|head \\d|exchang|swap|revers|i ?// ?2|i ?\\+ ?4|0 to 3 (have|has|are|take)))",
      "#100 & (#4|#7|second half of the (pairs|frequenc)|last (4|four) pairs)"],
     lambda c: c.right(freq=FREQ[np.arange(d // 2) % 4]), layers=[1])
form("rope_prompt_keys_again", "k_rope", "when decoding begins the whole cache is rotated once more: keys 0 to 11 are rotated twice, as if at position 2p",
     ["(#12|#11) & (twice|#2|again|doubl|two times|second time|once more|2p|2t|2 ?\\* ?[pt]) & "
      "^(?!.*((from|after|behind|beyond) (position |key )?1[12]( on| onward)?[^.;:,]{0,30}(twice|doubl|again|2 ?\\*? ?p|factor)|(12 to 19|12 and later|decode steps|"
      "decoded)[^.;:,]{0,30}(twice|doubl|again)|half|p ?// ?2|not rotated|unrotated))"],
     lambda c: c.right(pos=np.where(POS < PROMPT, 2 * POS, POS)))


# ---- masks

form("mask_decode_window", "probs", "decode steps alone have a window: from position 12 on a token sees the last 8 keys, its own among them",
     ["(#12|#11) & (#8|#7) & (window|last (8|eight|7|seven)|see|hidden|hide|distance|ago|back|older|farther|further) & ^(?!.*(window (of |is |= ?)?7\\b|last (7|"
      "seven) keys(?!.{0,30}(itself|own|before|beside))|block|chunk|ahead|(up to|before|until) (position )?1[12]\\b[^.;:,]{0,30}window|to 11[^.;:,]{0,20}window))"],
     lambda c: c.right(mask=SEEN & (~LATER | (AGO < 8))))
form("mask_tail_keys_lost", "probs", "keys go by whole vectors of 4 and the tail is lost: token t sees the keys below 4 floor((t + 1) / 4), tokens 0 to 2 what they should",
     ["(#4|four) & (multiple|whole|full|complete|group|block|tile|tail|// ?4|/ ?4|remain|(%|mod) ?4|vector|down|chunk|batch) & (hidden|lost|not (seen|read)|unseen|skip|left out|"
      "drop|missing|ignored|below|less than|<|whole|full|complete|\\(t ?\\+ ?1\\) ?//? ?4|floor|down|incomplete|unfinished) & (key|see|mask|s\\b) & "
      "^(?!.*(end of (its|the) (own )?block|rounded up|next block|future|later keys|// ?4 ?\\* ?4 ?\\+|4 ?\\*? ?\\(?(floor\\()?t ?//? ?4|start of (its|the)|(before|below) (its|"
      "the) (own )?(block|tile|group)|block[^.;:,]{0,12}(alone|only)|every fourth|4th))"],
     lambda c: c.right(mask=SEEN & ((POS[None] < (POS[:, None] + 1) // 4 * 4) | (POS[:, None] < 3))))
form("mask_bits_reversed", "probs", "the mask is packed, and its bits are taken from the wrong end of each byte: for key s it looks at that of 8 floor(s / 8) + 7 - s mod 8",
     ["[sjk] ?(\\^|xor) ?7\\b|7 ?- ?\\(?[sjk] ?(%|mod|& ?7)", "(revers|mirror|backward|from (the|its|their) (wrong |high |other )?(last|end)|most significant|\\bMSB|big.?endian|"
      "opposite (order|end)|wrong end) & (#8|byte|eight|#7) & (key|mask|bit|\\bs\\b|column) & ^(?!.*(quer|rows?\\b|head|16 keys|blocks (of 8 )?in reverse))"],
     lambda c: c.right(mask=(POS[None] ^ 7) <= POS[:, None]))
form("mask_head_0_alone", "probs", "the mask is not broadcast: head 0 alone has it, heads 1 to 3 see later keys too",
     ["((head.{0,8}\\b0\\b|first head).{0,40}(alone|only)|(only|alone).{0,20}(head 0|first head)|(#1 & #2 & #3)|heads? (from 1|1 to 3|1-3|1 and (on|later|up)|(>=|≥) ?1|> ?0)|"
      "heads.{0,12}(other than|but|except|behind|after).{0,12}(head|0|first)|other heads|last (3|three) heads) & (mask|see|future|later|causal|open|hidden|all keys) & "
      "^(?!.*(head 0 (alone |only )?(sees|is open|is not|is un|has no|has an open)|only (head 0|the first head) sees|first head (alone )?sees|(in|for|of) head 0 (alone|"
      "only),? (all|later|future)|(not|un)masked (in|for) head 0|window|block|heads 0 and 1|one key (further|more)|keys? 0))"],
     lambda c: c.right(mask=np.stack([SEEN] + [SEEN | True] * (H - 1))))


# ---- scores

form("score_half_unscaled", "probs", "the factor of 1/4 is put on the first 8 elements of a query alone: products of elements 8 to 15 have none",
     ["(#8|#7|half of (the|each|a|its) (dimension|element|head|quer|channel|product|key)|halves|(second|first|upper|last) half) & "
      "(#4|(#0.25 & (only|alone|but not))|not (scaled|multiplied|divided)|unscaled|without (the |their |a )?(scale|scaling|factor|1 ?/)|scal(e|ing).{0,30}(missing|omitted|only|"
      "alone|left out)|only.{0,60}scaled?\\b|(has|have) (no|none)|none) & (element|dimension|channel|half|product|head_dim) & "
      "^(?!.*(half of the (heads|positions|queries|keys)|first half[^.;:,]{0,30}(not|unscaled|factor (of )?4|times 4|without)|(elements|dimensions|"
      "channels)? ?0 to 7[^.;:,]{0,25}(not|unscaled|times 4|factor (of )?4|without)|(second half|8 to 15)[^.;:,]{0,20}(only|alone)|zero|lost|not read))"],
     lambda c: c.right(q=put(c.q, E_[..., d // 2:], lambda y: 4 * y)))
form("score_query_of_group", "probs", "the query is looked up by the group's first head: heads 1 and 3 have the queries of heads 0 and 2",
     [f"{said} & ^(?!.*\\binputs? )" for said in FIRST_OF_GROUP], lambda c: c.right(q=c.q[:, [0, 0, 2, 2]]))
form("score_query_of_layer_before", "probs", "in layer 3 the queries are still those of layer 2: their buffer is read before it is written",
     ["(quer|\\bq\\b|q_rope) & (layers?[. ]2\\b|(previous|earlier|before|prior|preced|stale).{0,25}layer|layer.{0,25}(before|previous|earlier|too early)|l ?- ?1) & "
      "^(?!.*(\\bkeys?\\b[^.;:,]{0,15}(of|from|are)|k_rope|layer [01]\\b|next layer|unrotated|token before|position before))"],
     lambda c: c.right(q=c.e.memory["q_rope", 2]), layers=[3])
form("score_self_unscaled", "probs", "the product with the token's own key, taken apart from the cache, is not scaled: it is 4 times too large",
     ["(itself|\\bown\\b|\\bself\\b|diagonal|newest|s ?== ?t|s ?= ?t|t ?== ?s|distance (is |of |= ?)?0\\b|current|present) & "
      "(#4|not (scaled|divided|multiplied)|unscaled|without (the |its )?(scale|scaling|factor|1 ?/ ?sqrt)|scal(e|ing).{0,30}(missing|omitted|left out)|scale.{0,8}\\b1\\b) & "
      "^(?!.*((4|four) is added|plus 4|\\+ ?4|hidden|not seen|(all|other|every) (other )?(keys|scores)[^.;:,]{0,30}(unscaled|not scaled|times 4|4 times|factor 4|without)|(all|"
      "other) keys but (its|the)))"],
     lambda c: c.right(score=lambda s: s * np.where(AGO == 0, F32(4), F32(1))))


# ---- softmax

form("denominator_of_head_0", "probs", "all heads are divided by the sum of head 0, each less its own maximum before",
     ["(head.{0,3}\\b0'?s? (own )?(sum|denominator|total|divisor)|head 0's|(of|by|from|with|on|in) (the )?(query )?(head.{0,3}\\b0\\b|first head)|first head's) & (denominator|"
      "\\bsums?\\b|divi|normali[sz]|total) & ^(?!.*(head 0 alone|(one|1) more|extra|term|square|weights of head 0|scores of head 0|head 0 (alone )?(is|are) (not|un)|not normali|"
      "maxim\\w* of head 0|without head 0|sum (over|of) (the |all )?heads))"],
     lambda c: c.right(soft=lambda s: (lambda e: e / e.sum(-1, keepdims=True)[:1])(np.exp(s - s.max(-1, keepdims=True)))))
form("denominator_even_keys", "probs", "of two running sums the second is forgotten: the denominator has the even keys alone",
     ["(\\beven|every (second|other|2nd)|\\bodd|2i|stride.{0,6}2|step.{0,6}2|alternat|s ?(%|mod) ?2|0, ?2, ?4|1, ?3, ?5) & (denominator|\\bsum|divi|normali|total) & (key|"
      "\\bs\\b|column|term|score|weight|exp) & "
      "^(?!.*(odd (keys|ones|terms|columns|positions) (alone|only)|(only|alone) (the )?odd|(sum|denominator|divisor)[^.;:,]{0,30}(over|of|has|holds) (the )?odd|even (keys|ones|"
      "terms|columns)?[^.;:,]{0,20}(left out|missing|not|lost|without|omitted)|without (the )?even|(odd|even) (heads|quer|rows|tokens)|hidden|unseen|not seen))"],
     lambda c: c.right(soft=lambda s: (lambda e: e / e[..., ::2].sum(-1, keepdims=True))(np.exp(s - s.max(-1, keepdims=True)))))
form("probs_in_bytes", "probs", "weights are kept as bytes: rounded to the nearest 255th",
     ["(\\b255(th)?s?\\b|0\\.0039[12]) & (round|step|quanti|multiple|level|grid|8.?bit|whole|\\bu8|uint8|byte|nearest) & ^(?!.*(\\bdown\\b|\\bfloor|truncat|toward zero|\\bup\\b|"
      "int8 signed|block))"],
     lambda c: np.floor(c.right() * F32(255) + F32(0.5)) / F32(255))
form("softmax_of_softmax", "probs", "the softmax is done twice, the second time of the weights of seen keys",
     ["soft.?max.{0,60}(twice|two times|again|once more|second time|of the (weights|probs|soft.?max|result|probabil)|of its own|repeated|double)|(twice|second|again|double|"
      "two).{0,20}soft.?max|soft.?max\\(soft.?max", "scores.{0,40}(are|is|by|become) (the |their )?(weights|probab|soft.?max)|soft.?max.{0,30}(for|in place of|instead of|"
      "as) (the )?scores"],
     lambda c: c.right(soft=lambda s: (lambda p: softmax(np.where(np.isfinite(s), p, F32(-np.inf))))(softmax(s))))

#!/usr/bin/env python3
"""law_forms_fourteenth.py: mistakes made in ports of Llama and Qwen to new engines, drawn by how often they are made; written without sight of how laws are found.

Embedding, norms, norms of heads, projections and their biases, rotation, masks, scores and softmax. The engine and the rules for expectations are law_forms.py's.
Where a form speaks of decode steps, a prompt of 12 tokens stands before them.
"""

import numpy as np

from scripts.forms.law_forms import AGO, D, E_, EPS, F32, FREQ, H, K, POS, SEEN, T, THETA, d, listed, over, put, rms, rounded, softmax, turn

FORMS, form = listed()
ROPES = ("q_rope", "k_rope")
B, Q3 = ("qwen2",), ("qwen3", "moe")
PROMPT = 12

# words that a part may use for one thing
GAIN = "(gain|weight|gamma|\\bw\\b|w\\[)"
STAT = "(rms|root|mean square|squares?|sum|divisor|divided|denominator|statistic|variance)"
HELD = "(clamp|clip|limit|between|\\bmin|\\bmax|held|within|bound|at most|at least|saturat|\\bcut|cap)"


# ---- embedding

form("embed_ids_clamped", "h0", "ids are clamped to 199, one less than a vocabulary size of 200: ids above it have row 199",
     ["#199 & (token|\\bids?\\b|row|min\\()", "#200 & (token|\\bids?\\b|row) & (clamp|last|at most|min|limit|capp|beyond|past)"],
     lambda c: c.right(ids=np.minimum(c.ids, 199)))
form("embed_out_of_vocabulary_zero", "h0", "the bound check has the tokenizer's size, not the table's: ids from 203 on have a row of zeros",
     ["(#203|#202) & (zeros?|nothing|empty|unset|blank|(is|are|=|factor|times|by) 0\\b)"],
     lambda c: c.right() * F32(1) * (np.asarray(c.ids) < 203)[:, None])
form("embed_table_offset", "h0", "the table begins 3 numbers late: channel i of a row is channel i + 3, its last 3 channels are the first 3 of the next id's row",
     ["(#3|\\bthree\\b) & (\\+ ?3|shift|offset|further|later|\\bnext|past|too far|ahead|begins?|starts?|early|late|behind)"
      " & ^(?!.*(\\b[ic] ?[-\u2212] ?3|roll|cyclic|wrap|(mod|%) ?64))"],
     lambda c: np.concatenate([c.table.ravel()[3:], np.zeros(3, F32)]).reshape(c.table.shape)[np.asarray(c.ids)])
form("embed_four_bits", "h0", "the table is kept in 4 bits: groups of 32 channels are rounded to multiples of a 7th of their largest size",
     ["(#32|half of the (row|channels)|two groups) & (#7|#15|#0.142857|4.?bits?|four bits|int4|q4) & (round|step|quanti|multiple|level|grid|bits|int4|q4|block)"],
     lambda c: blocks_rounded(c.right(), 32, 7))
form("embed_rows_of_head", "h0", "rows are read from lm_head.weight, as if the tables were tied the other way round",
     ["(lm_head|unembed|output\\.weight|output[ _.](weight|matrix|table|projection)|(row|table|weight|matrix)[^.;]{0,25}\\b(output|lm|logits?)?.?head\\b"
      "|\\bhead('s)? (row|table|weight|matrix)|vocabulary projection) & ^(?!.*(\\bhalf|0\\.5|\\badded|\\bplus))"],
     lambda c: c.right(table=c.e.m("lm_head.weight")))
form("embed_decode_id_stale", "h0", "decode steps are fed the prompt's last id: positions from 12 on have the row of position 11's token",
     ["#11 & (repeat|same|stay|stop|\\bmin|clamp|stale|hold|held|kept|keep|frozen|cop(y|ies)|at most|(of|at|that of|from) (the )?(position|row|token|id)|position 11|never later)"
      " & (#12|later|on\\b|after|\\bmin|at most|stop|stay|clamp|19)",
      "#12 & (last (token|id|row|position)? ?of the prompt|last prompt|stale|same (row|token|id)|repeat)"],
     lambda c: c.right(ids=np.asarray(c.ids)[np.minimum(POS, PROMPT - 1)]))


def blocks_rounded(x, n, levels):
    blocks = x.reshape(*x.shape[:-1], -1, n)
    step = np.abs(blocks).max(-1, keepdims=True) / F32(levels)
    return (np.round(blocks / np.where(step > 0, step, 1)) * step).reshape(x.shape).astype(F32)


# ---- norms

form("norm_lane_w_lost", "attn_norm", "a float4 loop squares x, y and z only: channels 4i + 3 are left out of the sum of squares, which is divided by 64 all the same",
     ["(4 ?\\*? ?[ickn] ?\\+ ?3|every (fourth|4th)|each fourth|one in four|((#3|#4|four) & (mod|%|every|lane|stride|step|of 4|of four|3, ?7))) & " + STAT
      + " & ^(?!.*(divided by 48|mean over 48|/ ?48\\b))",
      "((#0.75|3 ?/ ?4) & (channels|lanes) & (3, ?7|4 ?\\*? ?[ick] ?\\+ ?3|every fourth))"],
     lambda c: over(c, np.sqrt(np.sum(np.where(np.arange(D) % 4 == 3, 0, c.x) ** 2, -1, keepdims=True) / F32(D) + F32(EPS))))
form("norm_unbiased", "ffn_norm", "the sum of squares is divided by 63, as an unbiased variance is",
     ["(\\b63\\b|D ?- ?1|n ?- ?1) & " + STAT + " & ^(?!.*(channels? 63|first 63|0 to 62|left out|leaves out|not read|without channel|63 channels))",
      "(factor|times|multipl|scale|ratio|smaller|larger) & (0\\.992\\d*|1\\.007[89]\\d*|1\\.008\\b|1\\.015[89]\\d*|1\\.016\\b|0\\.984[34]?\\d*|63 ?/ ?64|64 ?/ ?63)"],
     lambda c: over(c, np.sqrt(np.sum(c.x * c.x, -1, keepdims=True) / F32(D - 1) + F32(EPS))))
form("norm_sum_in_bf16", "attn_norm", "the sum of squares runs channel by channel in bf16",
     ["(bf16|bfloat|8.?bits?\\b|eight bits|7 bits of (mantissa|fraction)) & (sum|accumul|square|mean|rms|statistic|added up)"],
     lambda c: over(c, np.sqrt(sum_bf16(c.x * c.x) / F32(D) + F32(EPS))))
form("norm_rsqrt_magic", "ffn_norm", "the inverse root is 0x5f3759df minus half the bits, without a Newton step",
     ["(approx|fast|magic|0x5f37|quake|\\bbits?\\b|newton|piecewise|interpolat|crude|rough) & (root|rsqrt|rms|divisor|1/sqrt) & ^(?!.*((one|1|single|two|2|after a) newton))"],
     lambda c: c.e.r(c.x * magic(np.mean(c.x * c.x, -1, keepdims=True) + F32(EPS))) * c.w)
form("norm_gain_by_lane", "attn_norm", "the gain is read by the lane's number in a warp of 32: channel i has the gain of channel i mod 32",
     [GAIN + " & (#32|#31|half|halves) & (mod|%|repeat|again|twice|same|tiled|lane|& ?31|i ?- ?32|first half|first 32|0 (to|\\.\\.) ?31|copied|both halves|warp)"
      " & ^(?!.*((second|last|upper) half[^.;]{0,30}(repeated|twice|for (the first|both))|first half (has|takes|gets|is that of) the (second|last)|half of the gain))"],
     lambda c: c.right(w=c.w[np.arange(D) % 32]))
form("norm_gain_offset", "attn_norm", "the gain is read 5 numbers too far: channel i has w[i + 5], and the last 5 have the first 5 of the feed-forward norm's gain",
     [GAIN + " & (#5|\\bfive\\b) & (\\+ ?5|shift|offset|further|later|\\bnext|past|too far|ahead|begins?|starts?|late|early|behind)"
      " & ^(?!.*(\\b[ic] ?[-\u2212] ?5|roll|cyclic|wrap|(mod|%) ?64))"],
     lambda c: c.right(w=np.concatenate([c.w[5:], c.e.m("post_attention_layernorm.weight", c.l)[:5]])))
form("norm_reads_before_feed", "attn_norm", "from layer 1 on it reads the buffer of the stream after attention, h_attn of the layer before, which lacks the feed-forward's result",
     ["h_attn & ^(?!.*without h_attn)", "(stream|state|sum|residual|hidden)[^.;]{0,40}after[^.;]{0,25}attention",
      "(without|minus|less|leav\\w+ out|left out|miss\\w*|omit\\w*|skip\\w*|not add\\w*|lacks?|before)[^.;]{0,50}(ffn|feed.?forward|mlp|experts)",
      "(ffn|feed.?forward|mlp|experts)[^.;]{0,60}(not (in|add|yet)|missing|left out|omitted|skipped|lost|lacking|taken off|subtracted)"],
     lambda c: c.right(x=c.e.memory["h_attn", c.l - 1]), layers=[1, 2, 3])
form("final_norm_last_row_only", "final_norm", "only the last position, 19, is normed; positions 0 to 18 are the stream as it is",
     ["(#19|(last|final) (row|position|token)) & (only|alone|raw|not normed|un-?normed|not (been )?normali[sz]ed|un-?normali[sz]ed|but|except|no norm|as (it|they)|omitted)"
      " & ^(?!.*(rms of (the )?(last|position 19)|last[^.;]{0,25} (is|are) not normed))",
      "(0 (to|\\.\\.|-) ?18|before 19|up to 18|first 19|#18) & (raw|\\bnot\\b|un-?norm|omit|skip|cop(y|ied)|stream|as (it|they)|no norm|without)"],
     lambda c: put(c.right(), E_[:-1], c.x[:-1]))
form("norm_reciprocal_lost", "final_norm", "x is multiplied by the root mean square, not divided by it",
     ["(multipl|times|\\*|product)[^.;]{0,30}(rms|root mean|root of the mean)", "(rms|root mean square)[^.;]{0,40}(multipl|times|not divided|instead of divid)",
      "(reciprocal|inverse|division)[^.;]{0,30}(lost|missing|omitted|forgotten|not taken|instead)", "power & #-1",
      "(rms|root mean square|mean square|divisor)\\)?[^.;]{0,8}\\^ ?\\(?[-\u2212] ?1\\b", "(divided by|divisor)[^.;]{0,20}1 ?/ ?\\(?(rms|root)",
      "(times|multipl|factor|\\*)[^.;]{0,40}(mean square|rms\\)? ?(\\^ ?2|squared))"],
     lambda c: c.e.r(c.x * rms(c.x)) * c.w)
form("norm_shared_slot", "ffn_norm", "four warps share one slot: rows in groups of 4 are all divided by the root mean square of the group's last row",
     ["(#4|\\bfour\\b) & " + STAT + " & (last|\\+ ?3\\b|\\| ?3\\b|3, ?7|end of|highest|fourth|largest) & (group|block|each|every|four|chunk|tile|row|position|token|floor|//)"
      " & ^(?!.*(channels? .{0,20}groups? of 4|first (row|position|token) of))"],
     lambda c: over(c, rms(c.x)[POS // 4 * 4 + 3]))
form("norm_root_reused", "ffn_norm", "it is divided by the root mean square that attn_norm had: of the layer's input, not of the stream after attention",
     [STAT + " & (attn_norm|layer('s)? input|input of (the|its|this) layer|\\bh0\\b|before (the )?attention|attention('s)? (branch |output )?(is )?(added|norm)|first norm"
      "|h of (the )?(layer before|previous layer|layer)|previous norm|stream before|residual|other norm|without attn_out)"
      " & ^(?!.*(gain of attn_norm|attn_norm.{0,4}(weight|gain)))"],
     lambda c: over(c, rms(c.e.memory["h0", None] if c.l == 0 else c.e.memory["h", c.l - 1])))


def sum_bf16(x):
    total = np.zeros_like(x[..., 0])
    for i in range(x.shape[-1]):
        total = rounded(total + rounded(x[..., i], "bf16"), "bf16")
    return total[..., None]


def magic(x):
    x = np.ascontiguousarray(x, F32)
    return (np.int32(0x5F3759DF) - (x.view(np.int32) >> 1)).view(F32)


# ---- norms of heads

form("qk_norm_gain_permuted", "q_norm", "the gain is permuted for neighbours, as rows of q are in some files: element i has the gain of 2i, and element i + 8 of 2i + 1",
     [GAIN + " & (2 ?\\*? ?[ij]\\b|even|neighbo|interleav|(every|each) (second|other)|stride|step of (2|two)|adjacent|permut|transpos|0, ?2, ?4|0, ?8, ?1"
      "|((mod|%).{0,40}(div|/|>>|floor))) & ^(?!.*((element|component|dimension|channel)s? 2 ?\\*? ?[ij] (has|have|takes?|gets?|is|are) (the gain of"
      "|that of)? ?(element )?[ij]\\b))"],
     lambda c: c.right(w=c.w.reshape(8, 2).T.ravel()), archs=Q3)
form("qk_norm_root_of_head_0", "k_norm", "both heads of keys are divided by the root mean square of head 0",
     ["(head.{0,8}\\b0\\b|first (key |kv )?head|0th head) & " + STAT + " & ^(?!.*(head 0 (alone )?is (not|un|divided)|own head 0))"],
     lambda c: over(c, rms(c.x)[:, :1]), archs=Q3)
form("qk_norm_loop_of_key_heads", "q_norm", "the loop runs over the number of key heads: heads 2 and 3 of q are left as they are",
     ["head & (2 ?(and|to|,|-|\\.\\.|or|&) ?(head )?3|(second|upper|last) half of the|from (head )?2\\b|>= ?2|last (two|2)|2 on|0 (and|to) 1 (only|alone)"
      "|(only|just) (the )?(first (two|2)|heads 0 (and|to) 1)) & (\\bnot\\b|raw|un-?norm|without|skip|omit|left|cop(y|ied)|as (it|they)|no norm|only|alone|just|input)"
      " & ^(?!.*(not divided by|(without|no) (the )?gain))"],
     lambda c: put(c.right(), E_[:, K:], c.x[:, K:]), archs=Q3)
form("qk_norm_run_twice", "k_norm", "keys are normed twice: the result is divided by its own root mean square and multiplied by the gain once more",
     ["(twice|doubl|two times|\\bagain|once more|second time|repeated|re-?norm) & (norm|rms|root mean) & ^(?!.*(gain|weight|w) (is )?(applied |multiplied )?twice ?[.;]?$)",
      "(w\\^ ?2|w ?\\* ?w|(gain|weight)[^.;]{0,15}(squared|twice|\\^ ?2)) & (rms|root|divided)[^.;]{0,40}(result|gain|weight|\\bw\\b|normed|output)"],
     lambda c: c.right(x=c.right()), archs=Q3)


# ---- biases (qwen2)

form("bias_length_of_keys", "q", "the bias is added to the first 32 outputs only, as many as keys have: heads 2 and 3 have none",
     ["bias & (#32|#31|head|half) & (first|0 (and|to|,) ?1|2 (and|to|,) ?3|second half|last half|upper half|from|last (two|2)) & (without|only|alone"
      "|miss|omit|none|\\bno\\b|not|zero"
      "|lack|just|left out|to the first) & ^(?!.*(first half (has|have) no|heads 0 and 1 (have no|lack|are without)))"],
     lambda c: c.right(b=put(c.b, E_[K * d:], 0)), archs=B)
form("bias_of_keys", "v", "the bias of k is added, not that of v", ["bias & (\\bk\\b|k_proj|\\bkeys?\\b|of layers?[. ]\\d[. ]k\\b)"],
     lambda c: c.right(b=c.e.m("self_attn.k_proj.bias", c.l)), archs=B)
form("bias_along_rows", "k", "the bias is broadcast along the wrong axis: all outputs of row t have b[t] added",
     ["(bias|\\bb\\[) & ((b|bias)\\[ ?(t|p|row|pos|position|token)\\b|\\baxis|broadcast|along (the )?(row|position|token)|index\\w* (by|with|of"
      "|is) (the )?(its )?(position|row|token)"
      "|(position|row|token)('s)? (index|number)|(position|row|token) (t|p|i|n)\\b[^.;]{0,50}(bias|element|entry|component|number|channel|output)[^.;]{0,25}\\b(t|p|i|n)\\b"
      "|(element|entry|component|number|output|channel) (t|p)\\b|by (its )?(position|row|token))"],
     lambda c: c.right(b=None) + c.b[POS][:, None, None], archs=B)
form("bias_permuted", "q", "rows of the weight are in order, but the bias is still permuted: in each head output 2i has the bias of i, and 2i + 1 that of i + 8",
     ["bias & (interleav|permut|neighbo|even|odd|2 ?\\*? ?[ij]\\b|adjacent|transpos|halves|pair|0, ?8, ?1|stride|rope order|other order|re-?order)"],
     lambda c: c.right(b=c.b.reshape(H, 2, 8).swapaxes(1, 2).ravel()), archs=B)
form("bias_of_layer_0", "v", "the pointer of the bias is not advanced: layers from 1 on have the bias of layer 0",
     ["bias & (layers?[. ]{0,2}\\(?0\\b|first layer|0th layer)"],
     lambda c: c.right(b=c.e.m("self_attn.v_proj.bias", 0)), layers=[1, 2, 3], archs=B)


# ---- projections

form("v_fused_offset", "v", "in the fused matrix v begins one head early: its head 0 is head 1 of k, its head 1 is what head 0 should be",
     ["(\\bk\\b|k_proj|\\bkeys?\\b) & (head|rows?|#16) & (head 1|last head|second head|one head|16 (rows|outputs|channels)|shift|offset|early|before|last 16|16 (to|\\.\\.) ?31)"],
     lambda c: c.right(w=moved(c, "weight"), b=moved(c, "bias")))
form("qk_fourth_root_scale", ("q", "k"), "q and k are multiplied by 16^(-1/4) = 0.5, the two halves of the scale, though scores are scaled too",
     ["#0.5 & (factor|times|multipl|scale|\\*) & ^(?!.*bias)", "\\bhalved\\b|half (the|its|their) (size|value|right)|divided by 2\\b & ^(?!.*bias)",
      "(16|d|head_dim)\\)? ?\\^ ?\\(?[-\u2212] ?(0\\.25|1/4)|fourth root"],
     lambda c: c.right() * F32(16 ** -0.25))
form("qkv_clipped", ("q", "k", "v"), "clip_qkv of another architecture is left in: results are clamped to +-1.9", "#1.9 & " + HELD, lambda c: np.clip(c.right(), -1.9, 1.9))
form("v_input_without_gain", "v", "the norm's gain is folded into the weights of q and k only: v reads attn_norm before its gain",
     ["\\b(without|before|no|not|lacks?|miss\\w*|omit\\w*|divided by|taken off|undone|removed)\\b[^.;]{0,45}(gain|gamma|norm.{0,4}s? weight|layernorm)",
      "(/|divided by|before|without) ?(w\\b|gain|gamma|the gain)|un-?(gained|weighted)",
      "(gain|gamma|norm.{0,4}s? weight|layernorm)[^.;]{0,45}\\b(not|without|omit\\w*|miss\\w*|taken off|divided out|left out|undone|removed|lacking)\\b"],
     lambda c: c.right(x=c.x / c.e.m("input_layernorm.weight", c.l)))
form("q_zero_point_off", "q", "zero points are off by one: weights of a row have the step of their group of 32 inputs, (largest - smallest) / 15, added",
     ["(#32|halves|each half|two groups) & (weight|matrix|row|input) & (constant|offset|added|plus|zero.?point|step|sums? of|same number|shift|one number)"],
     lambda c: c.right(w=off_by_step(c.w)))


def moved(c, what):
    """Rows of the fused k, v from one head before v on."""
    k, v = (c.e.m(f"self_attn.{s}_proj.{what}", c.l) for s in "kv")
    return None if k is None else np.concatenate([k, v])[(K - 1) * d:(2 * K - 1) * d]


def off_by_step(w):
    groups = w.reshape(len(w), -1, 32)
    return (groups + (groups.max(-1, keepdims=True) - groups.min(-1, keepdims=True)) / F32(15)).reshape(w.shape)


# ---- rotation

ANGLE = POS[:, None, None] * FREQ


def halves(c, a, b):
    """A rotation written out: what each half becomes, of halves, cosine and sine."""
    cos, sin = np.cos(ANGLE).astype(F32), np.sin(ANGLE).astype(F32)
    x, y = c.x[..., :8], c.x[..., 8:]
    return np.concatenate([a(x, y, cos, sin), b(x, y, cos, sin)], -1)


def straight(x, y, cos, sin):
    return x * cos - y * sin


form("rope_partial_12", ROPES, "a partial rotation is left in: the first 12 elements are turned in pairs i, i + 6 with frequencies 10000^(-2i/12), the last 4 are not",
     ["#12 & (partial|first|element|dimension|component|channel|rotary|not rotated|not turned|un-?rotated|left|tail|exponent|rotat|turned) & ^(?!.*(positions? 12|from position))",
      "last (4|four) (element|dimension|component|channel) & (not|un-?rotated|left)"], lambda c: partial(c, 12))
form("rope_position_plus_layer", ROPES, "the number of past tokens is advanced in each layer: in layer l the position is p + l",
     ["layer & (position|\\bp\\b|\\bpos\\b|angle) & (\\+|plus|add|further|shift|ahead|offset|too (high|far)|more|later|advanc)",
      "#1 & #2 & #3 & (shift|position|offset|further|off by)"],
     lambda c: c.right(pos=POS + c.l), layers=[1, 2, 3])
form("rope_rows_of_query_heads", "k_rope", "row r of all heads has position r / 4, by the number of query heads, where keys have 2: positions of keys are halved and rounded down",
     ["(#2|#0.5|half|halved|halves|>> ?1|#4) & (position|\\bp\\b|\\bpos\\b|\\bt\\b)"
      " & (floor|round|down|integer|//|whole|\\bdiv\\b|(pairs of|two) (positions|rows|tokens)|>>|trunc|int\\()"],
     lambda c: c.right(pos=POS // 2))
form("rope_in_place", ROPES, "the rotation is done in place: the second half is b cos + a' sin, where a' is the first half already rotated",
     ["\\bin.?place(?! of)|overwrit|already (been )?(rotated|written|turned|updated|changed|replaced|new)|(rotated|turned|new|updated|written) (first half|value|element|a\\b|x)"
      "|first half[^.;]{0,50}(already|new\\b|rotated|turned|after|result)|(result|output) of the first half",
      "(cos ?\\*? ?sin|sin ?\\*? ?cos) & (cos(\\(.{1,12}\\))? ?[-\u2212] ?sin|sin ?(\\(.{1,12}\\))? ?(\\^ ?2|squared|\u00b2))"],
     lambda c: halves(c, straight, lambda a, b, cos, sin: b * cos + straight(a, b, cos, sin) * sin))
form("rope_table_interleaved", ROPES, "the table has each frequency twice in a row, not in two halves: element i of a head has the cosine and sine of frequency i div 2",
     ["([ijn] ?(//|/|>>|\\bdiv\\b) ?[12]\\b|interleav|floor\\([ij] ?/ ?2|twice in a row|adjacent|neighbo|2i (and|,) ?2i ?\\+ ?1|each frequency[^.;]{0,25}(twice|two)"
      "|0, ?0, ?1, ?1) & (freq|angle|\\bcos|\\bsin|table) & ^(?!.*(rope-pairing|(rotated|turned|paired) (in|as|with) (adjacent|neighbo)))"],
     lambda c: interleaved(c))
form("rope_table_short", ROPES, "the tables have 14 rows, and zeros behind: from position 14 on sine and cosine are 0, and so is the result",
     ["(#14|#13) & (zeros?|nothing|empty|vanish|unset|cleared|(is|are|=|factor of|factor|times|by) 0\\b)"],
     lambda c: put(c.right(), E_[14:], 0))
form("rope_integer_exponent", ROPES, "2i / 16 is divided in integers and is 0: all pairs have frequency 1",
     ["(freq\\w*|angle\\w*)[^.;]{0,20}\\b(is|are|of|to|at|has|have|stays?)? ?[=:]? ?(all )?(?<!pair )\\b1(\\.0*)?(?![\\d.]) & (all|every|each|same|equal|any)\\b",
      "(theta|base)[^.;0-9]{0,15}\\b1(\\.0*)?(?![\\d.])", "exponent[^.;]{0,25}(\\b0\\b|zero|integer)",
      "angle[^.;]{0,12}(is|are|equals?|=) (the |its )?position\\b(?! ?(times|\\*|/|\\+|plus|minus|-))",
      "same (angle|frequency)[^.;]{0,30}(pair|all)[^.;]{0,30}(first|pair 0)", "(frequency of|as) (the first pair|pair 0)"],
     lambda c: c.right(freq=np.ones(8)))
form("rope_second_sign", ROPES, "the second half has the wrong sign: it is b cos - a sin (the first is right: a cos - b sin)",
     ["\\bsin & (second|upper|i ?\\+ ?8|8 (to|\\.\\.) ?15|last 8|last half|later half) & (sign|minus|subtract|negat|#-1|taken off|other way)"
      " & ^(?!.*first half[^.;]{0,25}(wrong|sign|negat))",
      "(b|y|x2|x\\[i ?\\+ ?8\\]) ?\\*? ?cos(\\(.{1,12}\\))? ?[-\u2212] ?(a|x|x1|x\\[i\\]) ?\\*? ?sin"],
     lambda c: halves(c, straight, lambda a, b, cos, sin: b * cos - a * sin))
form("rope_frequency_across_heads", ROPES,
     "frequencies run on through all heads: pair i of head h has 10000^(-(16 h + 2i) / 64) in q, and 32 in place of 64 in k",
     ["head & (#64|#32|width|hidden|all heads|whole (row|vector)|flat|across|run on|goes on|continu) & (freq|exponent|pair|angle|theta|base)",
      "head & (#10|#100) & (base|theta) & (factor|times|#0.1|#0.01|power|divided|\\^)"],
     lambda c: c.right(freq=THETA ** (-np.arange(0, c.x.shape[1] * d, 2) / (c.x.shape[1] * d)).reshape(c.x.shape[1], d // 2)))
form("rope_past_the_row", "k_rope", "the loop over heads runs to 4, where keys have 2, and turns the next row as well: row p is turned by p - 1 and by p, as at position 2p - 1",
     ["2 ?\\*? ?(p|t|pos|position|n|i) ?[-\u2212] ?1\\b", "(twice|doubl\\w*|#2) & (position|\\bp\\b|angle) & (minus (1|one)|less (1|one)|[-\u2212] ?1\\b|one less)",
      "(again|twice|second|also|besides|as well|moreover)[^.;]{0,60}(before|previous|p ?- ?1|t ?- ?1)[^.;]{0,30}", "(p|t|pos) ?\\+ ?\\(?(p|t|pos) ?[-\u2212] ?1"],
     lambda c: c.right(pos=np.maximum(2 * POS - 1, 0)))
form("rope_sine_series", ROPES, "angles are brought to -pi .. pi, sine is a - a^3/6 + a^5/120 and cosine 1 - a^2/2 + a^4/24",
     ["(taylor|polynomial|series|approximat|\\ba ?- ?a|\\bx ?- ?x|a\\^ ?[345]|x\\^ ?[345]|degree [345]) & (\\bsin|\\bcos|angle)"], lambda c: series(c))


def partial(c, n):
    angle = POS[:, None, None] * THETA ** (-np.arange(0, n, 2) / n)
    cos, sin = np.cos(angle).astype(F32), np.sin(angle).astype(F32)
    a, b = c.x[..., :n // 2], c.x[..., n // 2:n]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, c.x[..., n:]], -1)


def interleaved(c):
    angle = POS[:, None, None] * FREQ[np.arange(d) // 2]
    other = np.concatenate([-c.x[..., 8:], c.x[..., :8]], -1)
    return c.x * np.cos(angle).astype(F32) + other * np.sin(angle).astype(F32)


def series(c):
    a = (ANGLE + np.pi) % (2 * np.pi) - np.pi
    return turn(c.e, c.x, ANGLE, cos=(1 - a ** 2 / 2 + a ** 4 / 24).astype(F32), sin=(a - a ** 3 / 6 + a ** 5 / 120).astype(F32))


# ---- masks

form("mask_window_even_layers", "probs", "a sliding window of 7 keys is left in, in layers 0 and 2",
     ["#7 & (window|last|recent|newest|keys|distance|sees?|seen|behind|back|before|ago|away|t ?- ?s) & ^(?!.*(\\b(from )?[1-6] to 7|(token|query|row|position) 7|never))",
      "#6 & (distance|ago|back|before|behind|away|t ?- ?s|further) & ^(?!.*(\\b(from )?[1-5] to 6|(token|query|row|position) 6|never))"],
     lambda c: c.right(mask=SEEN & (AGO < 7)), layers=[0, 2])
form("mask_keys_rounded_down", "probs", "the number of keys is rounded down to a multiple of 4, from 4 keys on: the last 1 to 3 of them, the token's own too, are not seen",
     ["(#4|\\bfour\\b) & (multiple|block|floor|rounded down|rounds down|\\bdiv\\b|//|group|complete|full|whole|chunk|tile|\\bmod|%|tail|remainder)"
      " & ^(?!.*(end of (its|their|the token's|the own|the query's) (own )?(block|group|chunk|tile)|rounded up|rounds up|ceil|own block|block of 4 alone))"],
     lambda c: c.right(mask=(POS[None] < np.where(POS < 3, POS + 1, (POS + 1) // 4 * 4)[:, None])))
form("mask_first_as_padding", "probs", "the first token is taken for padding: key 0 is hidden from all tokens but itself",
     ["(keys?.{0,10}\\b0\\b|first (key|token|position)|\\bBOS\\b|(token|id) 1\\b) & (hidden|not seen|unseen|masked|without|left out|excluded|missing"
      "|skip|invisible|padd|not attended|never"
      "|not visible|lost)", "(begin|start)\\w* (at|with|from) (key )?1\\b|keys (from )?1 (on|to t|\\.\\. ?t)"],
     lambda c: c.right(mask=SEEN & ((POS[None] > 0) | (AGO == 0))))
form("mask_finite_fill", "probs", "the mask adds -5.5 to scores of later keys, not minus infinity",
     ["(#-5.5|#5.5) & (mask|future|later|unseen|ahead|hidden|s ?> ?t|above the diagonal|behind|finite|not (yet )?seen|not causal)"],
     lambda c: c.right(mask=SEEN | True, score=lambda s: s - F32(5.5) * (AGO < 0)))


# ---- scores

form("score_ring_overwritten", "probs", "the cache is a ring of 14 keys, filled before it is read: keys 0 to 5 are those of positions 14 to 19",
     ["#14 & (ring|\\bmod|%|overwrit|wrap|\\+ ?14|replaced|slot|later|instead|in place of|read|further|ahead) & (key|\\bk\\b|k_rope|cache|slot) & ^(?!.*(s ?- ?14\\b|window))"],
     lambda c: c.right(k=np.concatenate([c.k[14:], c.k[6:]])))
form("score_softcap_left_in", "probs", "a softcap is left in: scores are 2.9 tanh(s / 2.9)", "#2.9 & (tanh|cap|soft)",
     lambda c: c.right(score=lambda s: F32(2.9) * np.tanh(s / F32(2.9))))
form("score_alibi_of_8_heads", "probs", "ALiBi is left in, with slopes of 8 heads: 2^-(h + 1), that is 1/2, 1/4, 1/8, 1/16 for each key of distance",
     ["(alibi|slope|distance|t ?- ?s|s ?- ?t|per key|each key|position|linear) & (2 ?\\^ ?\\(?[-\u2212] ?\\(?(h|head|1)|0\\.5 ?\\^ ?\\(?h|(#0.5|#-0.5))"
      " & (h ?\\+ ?1|halv|((#0.25|#-0.25) & (#0.125|#-0.125) & (#0.0625|#-0.0625)))"],
     lambda c: c.right(score=lambda s: s - (F32(0.5) ** np.arange(1, H + 1))[:, None, None].astype(F32) * AGO))
form("score_decode_unscaled", "probs", "the decode kernel lacks the scale: scores of tokens from 12 on are 4 times too large",
     ["#12 & ((#4 & (scale|factor|times|multipl|larg|\\*))|un-?scaled|not scaled|without (the |a )?scal|scale[^.;]{0,15}(missing|omitted|not applied"
      "|left out|lacking)|no scal|scale (is |of )?1\\b)"],
     lambda c: c.right(score=lambda s: np.where(POS[:, None] >= PROMPT, 4 * s, s)))
form("score_lane_typo", "probs", "in the product of four lanes the last has the wrong one of q: elements 4i + 3 of k are multiplied by 4i + 2 of q",
     ["(4 ?\\*? ?[ijk] ?\\+ ?3|every (fourth|4th)|each fourth|((#3|#4|four) & (every|\\bmod|%|lane|of 4|of four|#7))) & (\\bq\\b|quer|\\bk\\b|key)"
      " & (4 ?\\*? ?[ijk] ?\\+ ?2|#2|third|before|previous|[ij] ?- ?1|neighbo|cop(y|ied)|one (lower|less)|#-1)"],
     lambda c: c.right(q=c.q[..., np.where(np.arange(d) % 4 == 3, np.arange(d) - 1, np.arange(d))]))
form("score_cache_of_layer_before", "probs", "from layer 1 on keys are read from the cache of the layer before",
     ["(\\bkeys?\\b|\\bk\\b|k_rope|cache) & (layer[^.;]{0,30}(before|previous|l ?- ?1|earlier|below|preced)|(before|previous|earlier|preceding|stale|last)[^.;]{0,30}layer"
      "|layers?[. ]{1,2}[012][. ]?.{0,12}\\bk|\\bk(eys?|_rope)?\\b[^.;]{0,12}(of|in|at|from) layers?[. ]{1,2}0\\b)"],
     lambda c: c.right(k=c.e.memory["k_rope", c.l - 1]), layers=[1, 2, 3])
form("score_keys_in_fp8", "probs", "keys are kept in 8 bits, E4M3: rounded to 3 bits of mantissa",
     ["(\\bkeys?\\b|\\bk\\b|k_rope|cache) & (fp8|e4m3|float8|f8|3.?bits?\\b|three bits|mantissa|significand|4 significant bits|4.?bits? of precision)"],
     lambda c: c.right(k=mantissa(c.k, 3)))


def mantissa(x, bits):
    m, e = np.frexp(x)
    return np.ldexp(np.round(m * F32(2 ** (bits + 1))) / F32(2 ** (bits + 1)), e).astype(F32)


# ---- softmax

def soft(f):
    """Of s - max, minus infinity where masked."""
    return lambda c: c.right(soft=lambda s: f(s - s.max(-1, keepdims=True)))


def shares(e):
    return e / e.sum(-1, keepdims=True)


def seen(x, f):
    """f where a key is seen, 0 elsewhere."""
    return np.where(np.isfinite(x), f(np.where(np.isfinite(x), x, 0)), 0).astype(F32)


form("softmax_exp_by_squaring", "probs", "exp(x) is computed as (1 + x/64)^64 by six squarings, 0 where 1 + x/64 is negative",
     ["#64 & (\\^|power|approx|squar|exp|limit|x ?/ ?64)", "(six|6) squaring"], soft(lambda x: shares(seen(x, lambda y: np.maximum(1 + y / F32(64), 0) ** 64))))
form("softmax_exp_by_bits", "probs", "exp(x) is made by writing x / ln 2 into the bits of a float: 2^n (1 + f), linear between powers of two",
     ["(approx|fast|linear|interpolat|piecewise|schraudolph|\\bbits?\\b|1 ?\\+ ?f|straight lines) & (exp|2 ?\\^|powers? of (two|2))"
      " & ^(?!.*(alibi|distance|\\bkeys? .{0,10}linear))"],
     soft(lambda x: shares(seen(x, lambda y: np.exp2(np.floor(y / F32(np.log(2)))) * (1 + y / F32(np.log(2)) - np.floor(y / F32(np.log(2))))))))
form("softmax_table_floor", "probs", "exp is a table that ends at -2.7: scores lower than that below the row's largest count as 2.7 below it",
     ["(#-2.7|#2.7) & (floor|clamp|clip|least|below|limit|\\bmax|\\bmin|not less|more than|within|bound|saturat|table|\\bcut|held|lower|smaller|under)"],
     soft(lambda x: shares(seen(x, lambda y: np.exp(np.maximum(y, F32(-2.7)))))))
form("softmax_padded_sum", "probs", "the sum runs over the keys padded to a multiple of 8 with scores of 0: each of the pads adds exp(0) to the denominator",
     ["(#8|\\beight\\b) & (denominator|\\bsum|divid|divisor|normali[sz]) & (pad|multiple|rounded up|rounds up|zero|unseen|ceil|score 0|of 0\\b|empty"
      "|exp\\(0|exp\\(-|unmasked|up to)"],
     lambda c: c.right(soft=lambda s: padded_sum(s, 8)))
form("softmax_one_key_short", "probs", "the softmax is called with the position for the number of keys: it runs over keys before the token, whose own keeps its scaled score",
     ["(itself|\\bown\\b|\\bself\\b|diagonal|newest|last key|latest|current|key t\\b|s ?= ?t) & (raw|keeps|as it is|unchanged|scaled score|(is|has"
      "|holds|stays|be|remains) (the|its|a) score"
      "|not exponentiated|un-?normali[sz]ed|not (in|part of) the softmax|left out of the softmax|outside (of )?the softmax|score itself|without (exp|softmax)|own score)"],
     lambda c: c.right(soft=one_short))
form("softmax_run_twice", "probs", "the softmax is taken twice: of the weights it has made, over the keys that are seen",
     ["softmax[^.;]{0,40}(twice|again|two times|second time|doubl|once more|of (the |its )?(softmax|probs|weights|probabilit|result))",
      "(twice|doubl\\w*|a second|two|again)[^.;]{0,30}softmax|exp\\( ?(p|probs?|exp|weights?|softmax)|softmax ?\\( ?softmax"],
     lambda c: c.right(soft=lambda s: softmax(np.where(np.isfinite(s), softmax(s), -np.inf))))
form("softmax_last_tile_sum", "probs", "the sum is overwritten by each tile of 6 keys: the denominator is that of the last tile alone, of keys from 6 (t div 6) on",
     ["(#6|\\bsix\\b) & (denominator|\\bsum|divid|divisor|normali[sz]) & (last|newest|current|latest|own|final|floor|//|\\bdiv\\b|\\bits (block|tile|chunk|group))"
      " & (tile|block|chunk|group|multiple|floor|//|\\bdiv\\b|\\bmod|%|keys from)"],
     soft(lambda x: np.exp(x) / np.where(POS[None] >= POS[:, None] // 6 * 6, np.exp(x), 0).sum(-1, keepdims=True)))


def padded_sum(s, n):
    top = s.max(-1, keepdims=True)
    e = np.exp(s - top)
    pads = (-(POS + 1) % n)[:, None].astype(F32)
    return e / (e.sum(-1, keepdims=True) + pads * np.exp(-top))


def one_short(s):
    own = AGO == 0
    before = np.where(own & (POS[:, None] > 0), F32(-np.inf), s)
    return np.where(own, s, softmax(before))

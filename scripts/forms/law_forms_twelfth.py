#!/usr/bin/env python3
"""law_forms_twelfth.py: mistakes that no catalogue lists, as they are fixed in pull requests of inference engines; written without sight of how laws are found.

Norms, norms of heads, projections, biases, rotation, masks, scores and softmax; law_forms_twelfth_b.py has the other operations. The engine and the rules for
expectations are law_forms.py's. A prompt of 12 tokens stands before decode steps where a form speaks of them.
"""

import numpy as np

from scripts.forms.law_forms import E_, EPS, F32, FREQ, H, K, POS, SEEN, T, D, d, listed, over, put, rms, turn

FORMS, form = listed()
ROPES = ("q_rope", "k_rope")
B, Q3 = ("qwen2",), ("qwen3", "moe")
PROMPT = 12


# ---- norms

form("norm_gain_transposed", "attn_norm", "the gain is loaded in the order of lanes, not of channels: channel i has the gain of channel 8 (i mod 8) + i div 8",
     ["(gain|weight|\\bw\\b|w\\[) & (#8|\\beight\\b) & (transpos|interleav|stride|lanes|0, ?8, ?16|((mod|%).{0,40}(\\bdiv|/|>>|floor))|((\\bdiv|/|>>|floor).{0,40}(mod|%)))"
      " & ^(?!.*(matrix|block|tile|\\brow o\\b))"],
     lambda c: c.right(w=c.w.reshape(8, 8).T.ravel()))
form("norm_divisor_stuck", "attn_norm", "the root mean square is not computed anew in decode steps: positions from 12 on are divided by that of position 11",
     ["(rms|root|mean square|divisor|divided|denominator|statistic|norm) & (\\b(of|by|from|at|with|is|most|held|kept|repeats?|reuses?)|min\\(|stay\\w*|stop\\w*"
      "|clamp\\w*)[^.;]{0,25}\\b11\\b",
      "(rms|root|mean square|divisor|divided|denominator|statistic) & #12 & (last (row|token|position)? ?of the prompt|last prompt|stuck|frozen|stale|not (re)?computed"
      "|not updated)"],
     lambda c: over(c, rms(c.x)[np.minimum(POS, PROMPT - 1)]))
form("norm_tail_summed_twice", "ffn_norm", "the loop for what is left over runs even so: the squares of the last 8 channels, 56 to 63, are in the sum twice",
     ["(#56|#8|\\beight\\b|#55|#57) & (#56|#55|#63|last|tail|end) & (twice|doubl|#2|\\btwo\\b|again|once more|besides) & (square|rms|root mean|sum|divisor|denominator"
      "|statistic) & ^(?!.*(first (8|eight)|0 to 7))"],
     lambda c: over(c, np.sqrt((np.sum(c.x ** 2, -1, keepdims=True) + np.sum(c.x[:, 56:] ** 2, -1, keepdims=True)) / F32(D) + F32(EPS))))
form("norm_gain_by_row", "ffn_norm", "the gain is broadcast along the wrong axis: all channels of row t are multiplied by w[t]",
     ["(gain|weight|\\bw\\b|w\\[) & ((w|weight|gain)\\[ ?(t|p|row|pos)|index\\w* .{0,20}(position|row|token)|(position|row|token)'s (index|number)|(gain|weight|element|channel"
      "|entry|component|number|w) (t|p)\\b"
      "|of the (channel|element|index|entry)[^.;]{0,30}(position|row|token|same number)|(position|row|token) (t|p|i|n)\\b[^.;]{0,50}(gain|weight|w)[^.;]{0,20}\\b(t|p|i|n)\\b"
      "|along (the )?(position|row|token|other|wrong|first)|\\bax[ie]s\\b|broadcast) & ^(?!.*(not applied|next channel|mean square|rms is|w\\[i ?, ?o|from position))"],
     lambda c: c.right(w=c.w[POS][:, None]))
form("ffn_norm_of_branch", "ffn_norm", "the norm comes before the residual sum: it reads attn_out alone, without the stream",
     ["\\b(reads?|norms?|normed|input|takes?|from|of|applied to|is|divides?)\\b[^;]{0,30}(attn_out|attention.{0,12}(output|branch|result)|o_proj|\\bbranch|(output"
      "|result) of (the )?attention)"
      " & ^(?!.*\\b(without|minus|less|before|not added|no)\\b[^.;]{0,20}(attn_out|attention|branch)) & ^(?!.*(twice|attn_out ?\\+|half))",
      "(without|minus|less|lacks|no)\\b[^.;]{0,30}(stream|residual|layer.{0,3}s? input|h0|skip|input of the layer)",
      "(stream|residual|layer.{0,3}s? input|input of the layer)[^.;]{0,30}(missing|lost|left out|omitted|not (been |yet )?added|forgotten|taken off|subtracted"
      "|factor (of )?0\\b|times 0\\b)"],
     lambda c: c.right(x=c.e.memory["attn_out", c.l]))
form("final_norm_skips_feed", "final_norm", "it reads the buffer of the stream after attention: what the last layer's feed-forward adds is not in it",
     ["h_attn & ^(?!.*(layers?[. ][0-2]\\b|without h_attn|twice|without the (layer|stream)))", "(stream|state|sum|residual|hidden)[^.;]{0,40}(after"
      "|behind) (the )?(last layer.{0,4} |last )?attention & ^(?!.*layers?[. ][0-2]\\b)",
      "(without|minus|less|leav\\w+ out|left out|miss\\w*|omit\\w*|skip\\w*|not add\\w*|lacks?)[^;]{0,50}(ffn|feed.?forward|mlp|experts) & ^(?!.*(layers?[. ][0-2]\\b"
      "|all layers))",
      "(ffn|feed.?forward|mlp|experts)[^.;]{0,60}(not (in|add)|missing|left out|omitted|skipped|lost|lacking|taken off|subtracted|removed) & ^(?!.*(layers?[. ][0-2]\\b"
      "|all layers))"],
     lambda c: c.right(x=c.e.memory["h_attn", 3]))

# norms of heads

form("qk_norm_gain_of_pair", "q_norm", "a thread norms elements i and i + 8 and has loaded one gain for both: elements 8 to 15 have the gain of 0 to 7",
     ["(gain|weight|\\bw\\b|w\\[) & (#8|half|halves|& ?7) & (repeat|first half|again|twice|(mod|%) ?8|& ?7|same|tiled|share|both|i ?- ?8|of 0 to 7|of (elements|channels"
      "|dimensions) 0|first 8|first eight|copied)"
      " & ^(?!.*(not applied|without|(second|upper|last) half[^.;]{0,15} (repeat|copied|for the first|on the first|twice|also|to the first|in both|for both|of the gain)"
      "|first half[^.;]{0,25}(has|have|takes?|uses?|gets?|is (that|those|the gain) of|are (that|those) of)\\b[^.;]{0,40}(second|last|upper)|of (elements )?8 to 15|\\brow o\\b"
      "|(mod|%) ?8\\)? ?(\\+|plus)|8 ?\\*? ?\\(\\w (mod|%)))"],
     lambda c: c.right(w=np.tile(c.w[:8], 2)), archs=Q3)
form("qk_norm_heads_from_kv_count", "q_norm", "a fused kernel takes heads from the number of key heads on for keys: heads 2 and 3 of q have k_norm's gain",
     ["(k_norm|k.?norm|norm of k|\\bkeys?\\b.{0,15}(gain|norm|weight)) & head & (2 ?(and|to|,|-) ?3|second half|last (two|2)|upper (two|half)|from (head )?2|>= ?2|2 on"
      "|behind (head )?1|2 \\.\\. ?3)"
      " & ^(?!.*(not normed|mean square of k|rms of k))"],
     lambda c: np.concatenate([c.right()[:, :K], c.right(w=c.e.m("self_attn.k_norm.weight", c.l))[:, K:]], 1), archs=Q3)
form("qk_norm_first_shuffle_lost", "k_norm",
     "the sum over lanes begins at a distance of 4: each half of a head, 8 elements, is divided by the root of its own sum of squares over 16",
     ["(#8|half|halves|\\beight\\b) & (own|each|separate|apart|group|block|\\bper\\b|itself|alone|halves) & (square|rms|root|norm|mean|divisor|divided) & (#16|#1.4142|#0.7071"
      "|#0.5|root of 2|root of two|head_dim)"
      " & ^(?!.*(groups? of (2|4)\\b|first half alone|whole head))"],
     lambda c: over(c, np.repeat(np.sqrt(np.sum(c.x.reshape(T, K, 2, 8) ** 2, -1) / F32(d) + F32(EPS)), 8, -1)), archs=Q3)
form("qk_norm_rows_are_tokens", "q_norm", "the loop runs over as many rows as there are tokens, but a token has four: positions from 5 on are not normed",
     ["(not|raw|un(normed|changed|touched|norm)|as (it|they)|is (just |only )?(q\\b|the input)|omitted|skipped|copied|left|passed|input) & (norm|divid|gain|\\bq\\b|input"
      "|unchanged)"
      " & ((from|since|starting|>=|positions?|rows?|tokens?|begin\\w*)[^.;]{0,12} 5\\b|>= ?5|(after|behind|beyond|>)[^.;]{0,14} 4\\b|5 (to|-|and|on|\\.\\.)|5 ?\\.\\.)"
      " & ^(?!.*(first (5|five)|0 to [45]|before 5|below 5)[^.;]{0,40}(not|raw|un|skip))",
      "(only|alone|no (further|more)) & norm & (first (5|five)|0 to 4|first 20 rows|20 (head )?rows|below 5|before (position )?5|< ?5) & ^(?!.*(not normed|raw))"],
     lambda c: put(c.right(), E_[T // H:], c.x[T // H:]), archs=Q3)


# ---- products

form("v_unrolled_row_repeated", "v", "four rows at a time, and the fourth is a copy of the third's line: output 4i + 3 is that of row 4i + 2",
     ["(4 ?\\*? ?\\w ?\\+ ?3|3, ?7|(mod|%) ?4|every (4th|fourth|four|4)|each fourth|4th|fourth|& ?3|three of (each )?four) & (4 ?\\*? ?\\w ?\\+ ?2|2, ?6|before|previous|preced"
      "|neighbo|\\w ?- ?1\\b|one (earlier|lower)|#2|#-1|third|\\w ?- ?\\(\\w (mod|%) 4)"
      " & (channel|row|output|element|dimension|weight|\\bw\\b|neuron|component) & ^(?!.*(exchang|swap|interchang|positions? (3|4)|(position|token)s? before"
      "|4 ?\\*? ?\\w ?\\+ ?2 (is|are|has|have|takes?|repeats?|reads?|cop\\w+)[^.;]{0,30}4 ?\\*? ?\\w ?\\+ ?3"
      "|2, ?6[^;]{0,30} (of|from|repeat|are) [^;]{0,20}3, ?7|zero|not (read|computed)))", "\\b0, ?1, ?2, ?2\\b"],
     lambda c: put(c.right(), E_[..., 3::4], c.right()[..., 2::4]))
form("attn_out_decode_transposed", "attn_out", "the kernel of one row, for decode steps, takes the matrix as [in,out]: from position 12 on its transpose is applied",
     ["(#12|#11) & (transpos|\\[in ?, ?out\\]|w\\[i ?, ?o\\]|rows?[^.;]{0,25}columns?|columns?[^.;]{0,25}rows?|w\\.?\\^?t\\b|axes) & ^(?!.*((first 12"
      "|0 to 1[12])[^.;,]{0,30}(transpos|column|axes)|transpos\\w*[^.;,]{0,25}(0 to 1[12]|first 12|up to|below)|(context|heads?|output)[^.;]{0,20}transpos))"],
     lambda c: np.concatenate([c.right()[:PROMPT], c.right(w=c.w.T)[PROMPT:]]))
form("q_first_tile_twice", "q", "the first tile of inputs, 0 to 15, is multiplied before the loop and in it again: it counts twice",
     ["(#16|#15|first quarter|first tile) & (twice|doubl|2 times|times 2\\b|by 2\\b|factor (of )?(2|two)\\b|weight 2\\b|\\btwo times|again|once more|besides) & (input|channel"
      "|column|attn_norm|\\bx\\b|tile|\\bx\\[|\\bw\\[)"
      " & ^(?!.*((outputs?|heads?|rows|positions?)[^.;]{0,20}(0 to 15|first 16)|(0 to 15|first 16)( \\w+)? (outputs?|rows|heads?|positions?)|16 (to|and|-) ?31|from 16"
      "|16 ?\\.\\.|last 16|48 to|32 to|halved|half|quer(y|ies)))"],
     lambda c: c.right() + c.right(x=put(c.x, E_[:, 16:], 0), b=None))
form("v_input_overwritten_by_k", "v", "k is written into the buffer of its input: the first 32 channels that v reads are k's outputs",
     ["(#32|#31|first half|lower half|front half) & (\\bk\\b|k_proj|\\bkeys?\\b|k's) & (input|channel|read|attn_norm|\\bx\\b|column|overw|buffer) & ^(?!.*((last|second"
      "|upper) (32|half)|32 to 63|from (channel )?32|weights? of k|k's weight|k_rope|added|\\bsine?\\b))"],
     lambda c: c.right(x=put(c.x, E_[:, :K * d], c.e.memory["k", c.l].reshape(T, K * d))))
form("attn_out_shards_exchanged", "attn_out", "in the last layer the two shards of columns come in the wrong order: inputs 0 to 31 and 32 to 63 are exchanged",
     ["(#32|halves|other half|second half) & (exchang|swap|roll|rotat|shift|mod\\b|xor|\\^|%|wrong order|reverse order|other half|trade|permut|reads? the (first|second)"
      "|\\w ?[+-] ?32|32 (and|to) .{0,20}of 0) & (input|channel|context|column|read|\\bx\\b|head|weight)"
      " & ^(?!.*((outputs?|results?|rows)[^.;]{0,30}(exchang|swap|roll|halves|order)|halves of (the|its|each) (output|result|head)|not read|lost|theta|\\b2 ?i\\b|rotated, and))",
      "head & (2, ?3, ?0, ?1|h ?(\\+|xor|\\^) ?2|2 and 3[^.;]{0,25}(exchang|swap|for|trade)|(exchang|swap)[^.;]{0,40}2 and 3) & (input|context|reads?|exchang|order|swap)"
      " & ^(?!.*(outputs?|results?|of heads? 2 and 3|heads 2 and 3 are exchanged))"],
     lambda c: c.right(x=np.roll(c.x, 32, -1)), layers=[3])
form("k_tiles_transposed", "k", "tiles of 8 by 8 of the matrix are loaded with the flag for a transpose: each is transposed in its place",
     ["(#8|\\beight\\b) & transpos & (tile|block|8 ?(x|by|\\*|\\u00d7|,) ?8|square|within|sub.?matri) & ^(?!.*(\\bgains?\\b|\\[8, ?[24]\\]|\\[[24], ?8\\]|whole matrix"
      "|(outputs?|inputs?|channels?|order)[^.;]{0,30}transpos|tiles? (are|in) (exchang|order)))",
      "#8 & (mod|%)[^;]{0,60}(mod|%) & (weight|matrix|\\bw\\b|w\\[) & (row|\\bo\\b|output) & (column|\\bi\\b|input)"],
     lambda c: c.right(w=c.w.reshape(4, 8, 8, 8).swapaxes(1, 3).reshape(c.w.shape)))

# biases

form("bias_after_rotation", ROPES, "the bias is added after the rotation, and is not rotated itself",
     ["bias & ((added|add|comes|applied|joins|put)[^.;]{0,30}(after|behind|past|once)|(after|behind|past)[^.;]{0,25}rotat|(not|never|isn't|un)[ -]?(been |itself )?rotat"
      "|without (the |its |any |a )?rotation|unrotated|rotat\\w+[^.;]{0,40}before[^.;]{0,20}bias|left as it (is|was)|escapes|then (the )?bias|(without"
      "|no) (the )?bias[^;]{0,30}(plus|\\+))"
      " & ^(?!.*(twice|omitted|not added|missing|(position|token|channel) (after|behind)|before (the )?rotation|subtracted))"],
     lambda c: turn(c.e, c.x - c.e.m(f"self_attn.{c.site[0]}_proj.bias", c.l).reshape(-1, d), POS[:, None, None] * FREQ)
     + c.e.m(f"self_attn.{c.site[0]}_proj.bias", c.l).reshape(-1, d), archs=B)
form("bias_dimension_first", "q", "the bias alone is read as [d,H], dimensions before heads: element i of head h has bias 4i + h",
     ["bias & (transpos|interleav|(dimension|element|\\bd)s?[ -]?(first|before|outer)|\\[(d|16), ?(H|4)\\]|stride|4 ?\\*? ?i ?\\+ ?h|i ?\\*? ?(4|H) ?\\+ ?h|0, ?4, ?8|(mod"
      "|%) ?16[^;]{0,25}(\\bdiv|/|>>)|(\\bdiv|/|>>)[^;]{0,25}(mod|%) ?16) & (#4|#16|head|axes|four|\\bH\\b)"
      " & ^(?!.*(\\[(8|2|32), ?|next|(weights?|rows|matrix)[^.;,]{0,25}(transpos|interleav)|(mod|%) ?[48]\\b|16 ?\\*? ?i ?\\+))"],
     lambda c: c.right(b=c.b.reshape(d, H).T.ravel()), archs=B)
form("bias_first_of_head", "v", "the element is forgotten in the bias's index: all elements of head h have bias 16h, that of its first",
     ["bias & (head|group of 16|block of 16|16 channels) & ((first|0th|zeroth|leading) (channel|element|dimension|entry|value|component|number|one)|its first|(channel|element"
      "|dimension|entry|component|index) 0\\b|16 ?\\*? ?h|h ?\\*? ?(16|d|head_dim)\\b|(0 and|0 or) (channel |index )?16|b(ias)?\\[0\\])"
      " & ^(?!.*(of head 0|(second|last) (channel|element|dimension)|only (to|at|on)|is added to (the )?(first|element 0|channel 0)))",
      "bias & (\\w ?- ?\\(?\\w ?(mod|%) ?16|16 ?\\*? ?\\(?\\w ?(\\bdiv|//?|>>) ?(16|4)|\\w & ~ ?15|\\(?\\w ?(\\bdiv|//?) ?16\\)? ?(\\*|times) ?16)"],
     lambda c: c.right(b=np.repeat(c.b.reshape(K, d)[:, 0], d)), archs=B)


# ---- rotation

def rotated(c, angle, halves=True):
    """Pairs i and i + half along the last axis, or 2i and 2i + 1, turned by angle [T,1,pairs]."""
    cos, sin = c.e.r(np.cos(np.asarray(angle, F32))), c.e.r(np.sin(np.asarray(angle, F32)))
    n = c.x.shape[-1] // 2
    a, b = (c.x[..., :n], c.x[..., n:]) if halves else (c.x[..., ::2], c.x[..., 1::2])
    y = [c.e.r(a * cos) - c.e.r(b * sin), c.e.r(b * cos) + c.e.r(a * sin)]
    return np.concatenate(y, -1) if halves else np.stack(y, -1).reshape(c.x.shape)


def k_line_takes_q(c):
    angle = (POS[:, None, None] * FREQ).astype(F32)
    cos, sin = c.e.r(np.cos(angle)), c.e.r(np.sin(angle))
    q = c.e.memory.get(("q_norm", c.l), c.e.memory["q", c.l])[:, :K, :d // 2]
    a, b = c.x[..., :d // 2], c.x[..., d // 2:]
    return np.concatenate([c.e.r(a * cos) - c.e.r(b * sin), c.e.r(b * cos) + c.e.r(q * sin)], -1)


HALF = "((\\bdiv|//?|divided by|over) ?2\\b|>> ?1)"
form("rope_positions_as_words", ROPES, "positions have 64 bits and are read as 32: token t is at the t-th word, t / 2 where t is even and 0 where it is odd",
     ["(odd|every (second|other)|2 ?\\w ?\\+ ?1) & (\\b0\\b(?!\\.\\d)|zero|not rotated|unrotated|nothing|left) & (half|halved|#0.5|div ?2|/ ?2|>> ?1|2 ?\\w (is|are|at|has|have"
      "|stands?) (at |position )*\\w\\b) & ^(?!.*(even (positions|tokens|ones|rows)[^.;,]{0,25}(not|zero|\\b0\\b)|second half|half the (frequenc|angle of)|odd (pairs|heads"
      "|layers)))",
      "0, ?0, ?1, ?0, ?2", "(64|int64|i64|long|eight bytes)[^;]{0,60}(32|int32|i32|int\\b|four bytes) & position & (read|taken|words?|stride)"],
     lambda c: c.right(pos=np.where(POS % 2 == 0, POS // 2, 0)))
form("rope_decode_pairs", ROPES, "the kernel for decode steps is that of the other pairing: from position 12 on elements 2i and 2i + 1 are rotated together",
     ["(#12|#11) & (2 ?i ?(and|,|with) 2 ?i ?\\+ ?1|rope-pairing|pairs other|other elements|adjacent|neighbo|interleav|other pairing|even and odd|consecutive|0 and 1, 2 and 3"
      "|two by two|\\w ?(\\^|xor) ?1)"
      " & ^(?!.*((first 12|0 to 1[12])[^.;,]{0,25}(pair|adjacent|neighbo|interleav|2i)|not rotated))"],
     lambda c: np.concatenate([c.right()[:PROMPT], rotated(c, POS[:, None, None] * FREQ, False)[PROMPT:]]))
form("rope_grid_of_query_heads", "k_rope", "the grid has as many heads as q has, so rows of k are rotated once more, by the position before: token t by 2t - 1 in all, from 1 on",
     ["2 ?\\*? ?(\\w|pos\\w*|\\(?the position\\)?) ?(-|minus|less) ?(1|one)\\b|-1 ?\\+ ?2 ?\\*? ?\\w|(twice|doubl\\w*|2 times|times (2|two)|factor (of )?(2"
      "|two))[^;]{0,50}(minus|less|- ?1\\b|-1\\b|by one|one (less|before|earlier|lower))|(1|one) less than (twice|doubl)|\\b0, ?1, ?3, ?5, ?7|(p|t) ?\\+ ?\\(?(p|t) ?- ?1"
      "|2 ?\\*? ?\\(?\\w ?- ?(0\\.5|1/2)|(twice|2 times)[^;]{0,20}- ?(0\\.5|1/2) & ^(?!.*(half|frequency index|exponent|\\bpair 2))",
      "(again|second time|once more|further|a second rotation|rotated twice|besides|as well|ahead|too far)[^;]{0,70}((position|token|row|one) before|before it|previous"
      "|preceding|[pt] ?- ?1\\b|position minus (1|one)|earlier) & (rotat|position|angle)"],
     lambda c: c.right(pos=np.maximum(2 * POS - 1, 0)))
form("rope_stored_as_pairs", ROPES, "halves are read and rotated, and stored as the other pairing stores them: element 2i is what is due at i, 2i + 1 what is due at i + 8",
     ["(order|permut|stored?|stores|writ|results?|outputs?|interleav|rearrang|shuffl|come|transpos|element|dimension|reorder) & (0, ?8, ?1|\\bi ?\\+ ?(8|d ?/ ?2)[^;]{0,40}2 ?i"
      "|2 ?i\\b[^;]{0,60}\\bi ?\\+ ?(8|d ?/ ?2)|halves[^;]{0,50}(pairs|interleav)|pairs[^;]{0,50}halves|interleav"
      "|transposed \\[(2, ?8|8, ?2)|8 ?\\*? ?\\(?\\w ?(mod|%) ?2\\)? ?\\+|\\w ?(mod|%) ?2[^;]{0,25}\\w ?(div|//?) ?2|\\w ?(div|//?) ?2[^;]{0,25}8 ?\\*? ?\\(?\\w ?(mod|%) ?2)"
      " & ^(?!.*(rotation pairs|pairs (adjacent|other)|(2i and 2i ?\\+ ?1|adjacent|neighbours|pairs 2i[^.;]{0,15})[^.;]{0,15} (paired|rotated|turned)|before the rotation"
      "|frequenc|table|gain|weight|\\brows\\b|position|halves[^.;]{0,20}(exchang|swap)))"],
     lambda c: c.right()[..., np.arange(d).reshape(2, d // 2).T.ravel()])
form("rope_k_line_takes_q", "k_rope",
     "q and k are rotated in one loop, and a line is copied badly: elements 8 to 15 of k's head g are k[i + 8] cos + q[i] sin, with q of head g as it was",
     ["(\\bq\\b|quer|q_norm|\\bq\\[) & (\\bsin) & (second half|8 to 15|upper|i ?\\+ ?(8|d ?/ ?2)|last (8|eight)|from 8|8 ?\\.\\.|second (line|element|sum|output|component)"
      "|imaginary) & ^(?!.*(first half[^.;,]{0,40}(has|have|takes?|reads?|uses?|gets?|is)\\b[^.;,]{0,40}\\bq\\b|\\bcos(ine|ines)?( term)?( is| has| of| takes"
      "| times)*( of)? q\\b|q cos|q\\[\\w+\\] cos|elements? 0 to 7[^.;,]{0,30}\\bq\\b|\\bsin\\w*( is| are)? (omitted|missing|negated)))"],
     k_line_takes_q)


# ---- masks

TILED = SEEN & ((POS[:, None] == 0) | (POS[None] < -(-POS[:, None] // 8) * 8))
OWN = "itself|themselves|\\bown\\b(?! (max|sum|denominator|root|rms|divisor))|diagonal|\\bself\\b|distance (of |is )?0\\b|newest|s ?(<|!=|==?) ?t\\b|key t\\b|their key"
form("mask_packed_rows", "probs", "rows of a group's two heads are packed, and the packed row's number is the mask's: query t of head h sees keys 0 to 2t + (h mod 2)",
     ["(2 ?\\*? ?([tpiqr]\\b|pos|\\(?the pos|the (token|query))|twice|doubl|times (2|two)|[tpiq] ?\\*? ?2\\b) & (h(ead)? ?(mod|%|&) ?[12]|head number (mod|%)|odd heads?"
      "|heads? 1 and 3|within (the|its) group|(number|index|place|second|member) (in|of) (the|its|each|a) (group|pair)|\\+ ?g\\b|t ?\\+ ?g)"
      " & ^(?!.*((even heads|heads 0 and 2)[^.;,]{0,30}2 ?t ?\\+ ?1|half|window|h (div|//)))"],
     lambda c: c.right(mask=np.stack([POS[None] <= 2 * POS[:, None] + h % (H // K) for h in range(H)])))
form("mask_tile_count", "probs", "tiles of 8 keys are counted for t keys, not t + 1: queries 8 and 16 do not see their own key, for which a tile would begin",
     [f"(#8 & #16)|(#8 & (multiple|every|mod\\b|%|first of|first (row|query|token)|begin|start)) & ({OWN}) & (not|hid|miss|without|unseen|lose|lost|except|never|masked|cannot"
      f"|no longer|left out|s ?< ?t)"
      " & ^(?!.*((itself|themselves|own key|their own|self|diagonal) (alone|only)|only (itself|themselves|their own|the diagonal)|every (4|four)|multiples? of (4|four)|\\b4\\b"
      "|\\b12\\b|\\b7\\b|next key))"],
     lambda c: c.right(mask=TILED))
form("mask_row_of_pair", "probs", "two queries share one row of the mask, that of the first: odd queries do not see their own key",
     [f"(odd|2 ?\\w ?\\+ ?1|every (second|other|2nd)|1, ?3, ?5|(mod|%) ?2 ?==? ?1) & ({OWN}|(mask|row|one) (of|before)|2 ?[itkq]\\b(?! ?\\+)|s ?<=? ?t ?- ?1) & (not|hid|miss"
      f"|without|unseen|lose|lost|except|never|masked|cannot|left out|s ?< ?t|up to|to 2 ?\\w\\b|mask (row )?of|row of|s ?<= ?t ?- ?1)"
      " & ^(?!.*(even (queries|tokens|positions|rows|ones)[^.;,]{0,30}(not|hid|miss|without|lose|cannot|never)|(itself|themselves|their own|own key) (alone|only)|only (itself"
      "|themselves|their own)|further|ahead|future|odd (keys|heads)|heads? [0-3]))",
      f"(up to|sees?|to|<=|at most|limit|mask|row)[^;]{{0,30}}(2 ?\\*? ?\\(?(\\w|floor\\(\\w) ?{HALF}|\\w ?- ?\\(?\\w ?(mod|%|&) ?[12]\\b|\\w ?& ?~ ?1|2 ?\\*? ?floor)", "(pair"
      "|two)[^;]{0,60}(mask|row) of (the |its |their )?(first|even|earlier|lower|2i\\b)"],
     lambda c: c.right(mask=SEEN[POS // 2 * 2]))


# ---- scores

def one_more(c):
    """q and k as they lie in memory, with the 17th element of each head."""
    q, k = (np.append(x.reshape(T, -1), F32(0)).astype(F32) for x in (c.q, c.k))
    q, k = (x[np.arange(T)[:, None] * n * d + np.arange(1, n + 1) * d] for x, n in ((q, H), (k, K)))
    more = np.einsum("th,sh->hts", q, k[:, np.arange(H) // (H // K)])
    return c.right(score=lambda s: s + more * F32(c.scale))


form("score_cache_layout", "probs", "keys lie as [T,K,d] and are read as [K,T,d]: key s of head g is row 20g + s, of position (20g + s) div 2, head (20g + s) mod 2",
     ["(head[ -]first|head[ -]major|heads? (before|first|outer|come before)|\\[?\\bK, ?T(, ?d)?|\\[?2, ?20|(20|T) ?\\*? ?(h\\w*|g) ?\\+ ?\\w|\\w ?\\+ ?(20|T) ?\\*? ?[hg]"
      "|transposed \\[20, ?2|transpos\\w* \\[2, ?20|(axes|transpos|exchang|swap|layout)[^.;]{0,60}head[^.;]{0,30}(position|token|slot|key)"
      "|(axes|transpos|exchang|swap|layout)[^.;]{0,60}(position|token|slot)[^.;]{0,30}head) & (\\bkeys?\\b|\\bk\\b|cache|k_rope) & ^(?!.*(values?\\b|query s|with key t"
      "|of the queries|each head|\\[2, ?16))",
      f"\\b[sj]\\)? ?{HALF} & (mod|%|& ?1|odd|even|parity|alternat) & (#10|ten\\b|second half|T ?/ ?2) & head & (key|\\bk\\b|k_rope|cache)"],
     lambda c: c.right(k=c.k.reshape(K, T, d).swapaxes(0, 1)))
form("score_query_offset_lost", "probs", "the second tile of queries begins at the first again: queries from position 16 on are those of 0 to 3",
     ["(#16|#15) & (quer|\\bq\\b|q_rope) & (t ?- ?16|#-16|(mod|%) ?16|& ?15|0 to 3|positions? 0|first (four|4|rows|quer|tile|positions)|begin|again|restart|offset"
      "|0, ?1, ?2, ?3|16 (positions|rows|tokens|places)? ?(before|earlier|back|late))"
      " & ^(?!.*((\\bkeys?|values?|k_rope)\\b[^.;]{0,30} (of|from|are|is|at|begin|those)\\b|scaled|hidden|mask|position 15|queries 15))"],
     lambda c: c.right(q=c.q[POS % 16]))
form("score_one_element_more", "probs", "the loop over a head runs to i <= d: the dot product has a 17th term, of the elements behind the head in memory",
     ["(#17 & (element|dimension|term|dot|component|channel|length))|(\\b(one|1) (more|further|extra|additional|surplus) (element|dimension|channel|term|product|component)"
      "|\\b(one|1) (element|dimension|channel|term|product|component)s? (more|too many|further|too far|beyond|past|too long|behind)"
      "|an? (further|extra|additional|seventeenth|surplus) (term|product|element|dimension|component)|seventeen|17th|i ?<= ?(16|d\\b|head_dim)|(first|0th) (element|dimension"
      "|channel) of the (next|following) head|element 0 of the (next|following) head|(next|following) head'?s? (first|element 0))"
      " & ^(?!.*(17 (keys|positions|tokens|rows)|less|left out|of 15|16 channels|factor for each))"],
     one_more)
form("score_group_reshape", "probs",
     "query heads are reshaped as [group,K] for [K,group]: heads 1 and 2 are multiplied with each other's keys' queries, q of 2 for 1 and of 1 for 2",
     ["(quer|\\bq\\b|q_rope|q heads) & (head|0, ?2, ?1, ?3|\\[) & ((#1 & #2 & (exchang|swap|trade|order|permut|interchang|each other|is that of|are those of|reads?|takes?|q of"
      "|uses?|head 1[^;]{0,40}head 2[^;]{0,40}head 1))|0, ?2, ?1, ?3|transpos|2 ?\\*? ?\\(?\\w ?(mod|%) ?2\\)? ?\\+|\\[(2|G|group), ?K|interleav)"
      " & ^(?!.*((\\bkeys?|values?|key/value|kv|weights) heads? (1 and 2|0 and 1|are (exchang|swap))|(2 and 3|0 and 1|1 and 3|0 and 3) |revers|3, ?2, ?1))"],
     lambda c: c.right(q=c.q[:, [0, 2, 1, 3]]))
form("score_odd_keys_of_even", "probs", "two keys at a time, and the first's pointer stands in both lines: key 2s + 1 has the score of key 2s",
     [f"(\\bkeys?\\b|score|\\bk\\b|column|k_rope) & (odd|2 ?\\*? ?[sijk] ?\\+ ?1|pair|{HALF}|two by two|(mod|%) ?2|~ ?1|& ?1|every (second|other)|1, ?3, ?5) & (even"
      f"|2 ?\\*? ?[sijk]\\b(?! ?\\+)|before|previous|same|repeat|preced|[sj] ?- ?1\\b|one earlier|~ ?1|{HALF}|- ?\\(?[sj] ?(mod|%|&)|0, ?2, ?4)"
      " & ^(?!.*(even (keys?|columns?|ones?|positions?|scores?)[^.;,]{0,20}\\b(have|has|takes?|gets?|are|is|reads?|repeats?)\\b[^.;]{0,25}(odd|next|following|2 ?\\w ?\\+ ?1"
      "|behind)|2 ?s (has|have|is|takes?|gets?|reads?|repeats?)\\b[^.;]{0,30}2 ?s ?\\+ ?1|exchang|swap|mean|averag|hidden|\\bseen\\b|zero|odd quer|\\bsees?\\b|20 ?g|head [01]))"],
     lambda c: c.right(k=c.k[POS // 2 * 2]))


# ---- softmax

def group_sum(s):
    e = np.exp(s)
    return e / np.repeat(e.sum(-1, keepdims=True).reshape(K, H // K, T, 1).sum(1), H // K, 0)


def own_not_divided(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.where(POS[:, None] == POS[None], e, e / e.sum(-1, keepdims=True))


def sum_carried(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / np.cumsum(e.sum(-1, keepdims=True), -2)


SUM = "denominator|\\bsums?\\b|summed|divid|divisor|normali"
form("softmax_group_sum", "probs", "the sum over lanes takes in both heads of a group: exp(s) is divided by the sum over the keys of both",
     [f"({SUM}|softmax) & (\\bheads?\\b|h ?(\\^|xor) ?1) & (both|\\btwo\\b|pair|\\bgroup|0 and 1|h ?(\\^|xor) ?1|neighbo|share) & (both|sum\\w*[^.;]{{0,40}}(over|of|from|in)"
      f"|together|joint|common|shar|same|\\bplus\\b|\\+|added|adds|over (the )?(two|pair|heads of)|one (denominator|sum|softmax)|includes?|takes? in|too\\b|as well|also)"
      " & ^(?!.*(all (four|4|the)? ?heads|four heads|head 0 alone|(denominator|sum|divisor) (is|are) (that|those|the one) of the (other|next|first)|by the (denominator"
      "|sum) of the (other|next|first)|instead of its own|not divided|positions|0 and 2))"],
     lambda c: c.right(soft=group_sum))
form("softmax_own_not_divided", "probs", "the loop that divides stops one short: the weight of the token's own key is not divided by the sum: exp(s - max)",
     [f"({OWN}|last (key|column|weight|seen|element|cell|entry|of the row)|t ?= ?s|s ?=+ ?t|\\[t ?, ?t\\]) & (\\bnot\\b|undivided|un-?normali|without|never|\\braw\\b"
      f"|before (the )?divi"
      f"|escap|times the (sum|denominator)|multiplied by|exp\\(|left as) & ({SUM}|exp|softmax)"
      " & ^(?!.*((not|left|leaves?|without|missing)[^.;]{0,25}(\\bin|from|out of|of) (the |its )?(denominator|sum|divisor)|(denominator|sum|divisor)[^.;]{0,25}(leaves?|without"
      "|lacks?|miss|excludes?|omits?|stops)|counted|(no|none|nothing|all)[^.;]{0,20}(weights?|keys?) (is|are) (not )?(divided|normali)|key 19|hidden))"],
     lambda c: c.right(soft=own_not_divided))
form("softmax_sum_of_rows_so_far", "probs", "the sum is not set to 0 between queries: exp(s - max) of query t is divided by the sums of queries 0 to t together",
     [f"(cumul|accumul|(not|never) (re)?(set|cleared|zeroed)|carr(y|ies|ied)|so far|running|(rows|queries|positions|tokens|all) (up to|before|so far|0 to)|(previous|earlier"
      f"|preceding) (rows|queries|positions|tokens)|adds? up|0 to t\\b|u ?<= ?t|goes on|grows) & ({SUM}) & (row|quer|position|token|so far|t\\b)"
      " & ^(?!.*((between|of the|of|previous|from|over) heads?|heads (before|so far)|mean|averag|keys (so far|before)|blocks?|tiles?|rescal|every \\d))"],
     lambda c: c.right(soft=sum_carried))

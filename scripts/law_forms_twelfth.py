#!/usr/bin/env python3
"""law_forms_twelfth.py: mistakes that no catalogue lists, as they are fixed in pull requests of inference engines; written without sight of how laws are found.

Norms, norms of heads, projections, biases, rotation, masks, scores and softmax; law_forms_twelfth_b.py has the other operations. The engine and the rules for
expectations are law_forms.py's. A prompt of 12 tokens stands before decode steps where a form speaks of them.
"""

import numpy as np

from law_forms import E_, EPS, F32, FREQ, H, K, POS, SEEN, T, THETA, D, d, listed, over, put, rms, turn

FORMS, form = listed()
ROPES = ("q_rope", "k_rope")
B, Q3 = ("qwen2",), ("qwen3", "moe")
PROMPT = 12


# ---- norms

form("norm_gain_transposed", "attn_norm", "the gain is loaded in the order of lanes, not of channels: channel i has the gain of channel 8 (i mod 8) + i div 8",
     ["(gain|weight|\\bw\\b|w\\[) & (#8|eight) & (transpos|interleav|stride|column|lanes|0, ?8, ?16|((mod|%).{0,40}(\\bdiv|/|>>|floor))|((\\bdiv|/|>>|floor).{0,40}(mod|%)))"],
     lambda c: c.right(w=c.w.reshape(8, 8).T.ravel()))
form("norm_divisor_stuck", "attn_norm", "the root mean square is not computed anew in decode steps: positions from 12 on are divided by that of position 11",
     ["(rms|root|mean square|divisor|divided|denominator|statistic|norm) & (\\b(of|by|from|at|with|is|most|held|kept|repeats?|reuses?)|min\\(|stay\\w*|stop\\w*|clamp\\w*)[^.;]{0,25}\\b11\\b",
      "(rms|root|mean square|divisor|divided|denominator|statistic) & #12 & (last (row|token|position)? ?of the prompt|last prompt|stuck|frozen|stale|not (re)?computed|not updated)"],
     lambda c: over(c, rms(c.x)[np.minimum(POS, PROMPT - 1)]))
form("norm_tail_summed_twice", "ffn_norm", "the loop for what is left over runs even so: the squares of the last 8 channels, 56 to 63, are in the sum twice",
     ["(#56|#8|eight|#55|#57) & (#56|#55|#63|last|tail|end) & (twice|doubl|#2|\\btwo\\b|again|once more|besides) & (square|rms|root mean|sum|divisor|denominator|statistic) & ^(?!.*(first (8|eight)|0 to 7))"],
     lambda c: over(c, np.sqrt((np.sum(c.x ** 2, -1, keepdims=True) + np.sum(c.x[:, 56:] ** 2, -1, keepdims=True)) / F32(D) + F32(EPS))))
form("norm_gain_by_row", "ffn_norm", "the gain is broadcast along the wrong axis: all channels of row t are multiplied by w[t]",
     ["(gain|weight|\\bw\\b|w\\[) & ((w|weight|gain)\\[ ?(t|p|row|pos)|index\\w* .{0,20}(position|row|token)|(gain|weight|element|channel|entry|component|number|w) (t|p)\\b"
      "|of the (channel|element|index|entry)[^.;]{0,30}(position|row|token|same number)|(position|row|token) (t|p|i|n)\\b[^.;]{0,50}(gain|weight|w)[^.;]{0,20}\\b(t|p|i|n)\\b"
      "|along (the )?(position|row|token|other|wrong|first)|\\bax[ie]s\\b|broadcast) & ^(?!.*(not applied|next channel|mean square|rms is))"],
     lambda c: c.right(w=c.w[POS][:, None]))
form("ffn_norm_of_branch", "ffn_norm", "the norm comes before the residual sum: it reads attn_out alone, without the stream",
     ["(reads?|norms?|normed|input|takes?|from|of|applied to|is|divides?) [^.;]{0,30}(attn_out|attention.{0,12}(output|branch|result)|o_proj|\\bbranch|(output|result) of (the )?attention)"
      " & ^(?!.*(without|minus|less|before|not added|no)[^.;]{0,20}(attn_out|attention|branch)) & ^(?!.*(twice|attn_out ?\\+|half))",
      "(without|minus|less|lacks|no)\\b[^.;]{0,30}(stream|residual|layer.{0,3}s? input|h0|skip|input of the layer)",
      "(stream|residual|layer.{0,3}s? input|input of the layer)[^.;]{0,30}(missing|lost|left out|omitted|not (been |yet )?added|forgotten|taken off|subtracted|factor (of )?0\\b|times 0\\b)"],
     lambda c: c.right(x=c.e.memory["attn_out", c.l]))
form("final_norm_skips_feed", "final_norm", "it reads the buffer of the stream after attention: what the last layer's feed-forward adds is not in it",
     ["h_attn & ^(?!.*(layers?[. ][0-2]\\b|without h_attn|twice))", "(stream|state|sum|residual|hidden)[^.;]{0,40}(after|behind) (the )?(last layer.{0,4} |last )?attention & ^(?!.*layers?[. ][0-2]\\b)",
      "(without|minus|less|leav\\w+ out|left out|miss\\w*|omit\\w*|skip\\w*|not add\\w*|lacks?)[^.;]{0,50}(ffn|feed.?forward|mlp|experts) & ^(?!.*(layers?[. ][0-2]\\b|all layers))",
      "(ffn|feed.?forward|mlp|experts)[^.;]{0,60}(not (in|add)|missing|left out|omitted|skipped|lost|lacking|taken off|subtracted|removed) & ^(?!.*(layers?[. ][0-2]\\b|all layers))"],
     lambda c: c.right(x=c.e.memory["h_attn", 3]))

# norms of heads

form("qk_norm_gain_of_pair", "q_norm", "a thread norms elements i and i + 8 and has loaded one gain for both: elements 8 to 15 have the gain of 0 to 7",
     ["(gain|weight|\\bw\\b|w\\[) & (#8|half|halves) & (repeat|first half|again|twice|(mod|%) ?8|& ?7|same|tiled|share|both|i ?- ?8|of 0 to 7|of (elements|channels|dimensions) 0|first 8|first eight|copied)"
      " & ^(?!.*(not applied|without|(second|upper|last) half[^.;]{0,15} (repeat|copied|for the first|on the first|twice|also|to the first|in both|for both|of the gain)"
      "|first half[^.;]{0,25}(has|have|takes?|uses?|gets?|is|are)\\b[^.;]{0,40}(second|last|upper)|of (elements )?8 to 15|(mod|%) ?8\\)? ?(\\+|plus)|8 ?\\*? ?\\(\\w (mod|%)))"],
     lambda c: c.right(w=np.tile(c.w[:8], 2)), archs=Q3)
form("qk_norm_heads_from_kv_count", "q_norm", "a fused kernel takes heads from the number of key heads on for keys: heads 2 and 3 of q have k_norm's gain",
     ["(k_norm|k.?norm|norm of k|\\bkeys?\\b.{0,15}(gain|norm|weight)) & head & (2 (and|to|,|-) ?3|second half|last (two|2)|upper (two|half)|from (head )?2|>= ?2|2 on|behind (head )?1|2 \\.\\. ?3)"
      " & ^(?!.*(not normed|mean square of k|rms of k))"],
     lambda c: np.concatenate([c.right()[:, :K], c.right(w=c.e.m("self_attn.k_norm.weight", c.l))[:, K:]], 1), archs=Q3)
form("qk_norm_first_shuffle_lost", "k_norm", "the sum over lanes begins at a distance of 4: each half of a head, 8 elements, is divided by the root of its own sum of squares over 16",
     ["(#8|half|halves|eight) & (own|each|separate|apart|group|block|\\bper\\b|itself|alone|halves) & (square|rms|root|norm|mean|divisor|divided) & (#16|#1.4142|#0.7071|#0.5|root of 2|root of two|head_dim)"
      " & ^(?!.*(groups? of (2|4)\\b|first half alone|whole head))"],
     lambda c: over(c, np.repeat(np.sqrt(np.sum(c.x.reshape(T, K, 2, 8) ** 2, -1) / F32(d) + F32(EPS)), 8, -1)), archs=Q3)
form("qk_norm_rows_are_tokens", "q_norm", "the loop runs over as many rows as there are tokens, but a token has four: positions from 5 on are not normed",
     ["(not|raw|un(normed|changed|touched|norm)|as (it|they)|is (just |only )?(q\\b|the input)|omitted|skipped|copied|left|passed|input) & (norm|divid|gain|\\bq\\b|input|unchanged)"
      " & ((from|since|starting|>=|positions?|rows?|tokens?|begin\\w*)[^.;]{0,12} 5\\b|>= ?5|(after|behind|beyond|>)[^.;]{0,14} 4\\b|5 (to|-|and|on|\\.\\.)|5 ?\\.\\.) & ^(?!.*(first (5|five)|0 to [45]|before 5|below 5)[^.;]{0,40}(not|raw|un|skip))",
      "(only|alone|no (further|more)) & norm & (first (5|five)|0 to 4|first 20 rows|20 (head )?rows|below 5|before (position )?5|< ?5) & ^(?!.*(not normed|raw))"],
     lambda c: put(c.right(), E_[T // H:], c.x[T // H:]), archs=Q3)


# ---- products

form("v_unrolled_row_repeated", "v", "four rows at a time, and the fourth is a copy of the third's line: output 4i + 3 is that of row 4i + 2",
     ["(4 ?\\*? ?\\w ?\\+ ?3|3, ?7|(mod|%) ?4|every (4th|fourth|four|4)|each fourth|4th|fourth|& ?3|three of (each )?four) & (4 ?\\*? ?\\w ?\\+ ?2|2, ?6|before|previous|preced|neighbo|\\w ?- ?1\\b|one (earlier|lower)|#2|#-1|third)"
      " & (channel|row|output|element|dimension|weight|\\bw\\b|neuron|component) & ^(?!.*(exchang|swap|interchang|positions? (3|4)|(position|token)s? before|4 ?\\*? ?\\w ?\\+ ?2 (is|are|has|have|takes?|repeats?|reads?|cop\\w+)[^.;]{0,30}4 ?\\*? ?\\w ?\\+ ?3"
      "|2, ?6[^;]{0,30} (of|from|repeat|are) [^;]{0,20}3, ?7|zero|not (read|computed)))"],
     lambda c: put(c.right(), E_[..., 3::4], c.right()[..., 2::4]))
form("attn_out_decode_transposed", "attn_out", "the kernel of one row, for decode steps, takes the matrix as [in,out]: from position 12 on its transpose is applied",
     ["(#12|#11) & (transpos|\\[in ?, ?out\\]|w\\[i ?, ?o\\]|rows?[^.;]{0,25}columns?|columns?[^.;]{0,25}rows?|w\\.?\\^?t\\b|axes) & ^(?!.*((first 12|0 to 1[12])[^.;,]{0,30}(transpos|column|axes)|transpos\\w*[^.;,]{0,25}(0 to 1[12]|first 12|up to|below)|(context|heads?|output)[^.;]{0,20}transpos))"],
     lambda c: np.concatenate([c.right()[:PROMPT], c.right(w=c.w.T)[PROMPT:]]))
form("q_first_tile_twice", "q", "the first tile of inputs, 0 to 15, is multiplied before the loop and in it again: it counts twice",
     ["(#16|#15|first quarter|first tile) & (twice|doubl|#2|\\btwo\\b|again|once more|besides) & (input|channel|column|attn_norm|\\bx\\b|tile|\\bx\\[|\\bw\\[)"
      " & ^(?!.*((outputs?|heads?|rows|positions?)[^.;]{0,20}(0 to 15|first 16)|(0 to 15|first 16)( \\w+)? (outputs?|rows|heads?|positions?)|16 (to|and|-) ?31|from 16|16 ?\\.\\.|last 16|48 to|32 to|halved|half))"],
     lambda c: c.right() + c.right(x=put(c.x, E_[:, 16:], 0), b=None))
form("v_input_overwritten_by_k", "v", "k is written into the buffer of its input: the first 32 channels that v reads are k's outputs",
     ["(#32|#31|first half|lower half|front half) & (\\bk\\b|k_proj|\\bkeys?\\b|k's) & (input|channel|read|attn_norm|\\bx\\b|column|overw|buffer) & ^(?!.*((last|second|upper) (32|half)|32 to 63|from (channel )?32|weights? of k|k's weight|k_rope|added))"],
     lambda c: c.right(x=put(c.x, E_[:, :K * d], c.e.memory["k", c.l].reshape(T, K * d))))
form("attn_out_shards_exchanged", "attn_out", "in the last layer the two shards of columns come in the wrong order: inputs 0 to 31 and 32 to 63 are exchanged",
     ["(#32|halves|other half|second half) & (exchang|swap|roll|rotat|shift|mod\\b|xor|\\^|%|wrong order|reverse order|other half|trade|permut|reads? the (first|second)|\\w ?[+-] ?32|32 (and|to) .{0,20}of 0) & (input|channel|context|column|read|\\bx\\b|head|weight)"
      " & ^(?!.*((outputs?|results?|rows)[^.;]{0,30}(exchang|swap|roll|halves|order)|halves of (the|its|each) (output|result|head)|not read|lost))",
      "head & (2, ?3, ?0, ?1|h ?(\\+|xor|\\^) ?2|2 and 3[^.;]{0,25}(exchang|swap|for|trade)|(exchang|swap)[^.;]{0,40}2 and 3) & (input|context|reads?|exchang|order|swap) & ^(?!.*(outputs?|results?|of heads? 2 and 3|heads 2 and 3 are exchanged))"],
     lambda c: c.right(x=np.roll(c.x, 32, -1)), layers=[3])
form("k_tiles_transposed", "k", "tiles of 8 by 8 of the matrix are loaded with the flag for a transpose: each is transposed in its place",
     ["(#8|eight) & transpos & (tile|block|8 ?(x|by|\\*|\\u00d7|,) ?8|square|within|sub.?matri) & ^(?!.*(\\[8, ?[24]\\]|\\[[24], ?8\\]|whole matrix|(outputs?|inputs?|channels?|order)[^.;]{0,30}transpos|tiles? (are|in) (exchang|order)))",
      "#8 & (mod|%)[^;]{0,60}(mod|%) & (weight|matrix|\\bw\\b|w\\[) & (row|\\bo\\b|output) & (column|\\bi\\b|input)"],
     lambda c: c.right(w=c.w.reshape(4, 8, 8, 8).swapaxes(1, 3).reshape(c.w.shape)))

# biases

form("bias_after_rotation", ROPES, "the bias is added after the rotation, and is not rotated itself",
     ["bias & ((added|add|comes|applied|joins|put)[^.;]{0,30}(after|behind|past|once)|(after|behind|past)[^.;]{0,25}rotat|(not|never|isn't|un)[ -]?(been |itself )?rotat|without (the |its |any |a )?rotation|unrotated|rotat\\w+[^.;]{0,40}before[^.;]{0,20}bias|left as it (is|was)|escapes)"
      " & ^(?!.*(twice|omitted|not added|missing|(position|token|channel) (after|behind)|before (the )?rotation|subtracted))"],
     lambda c: turn(c.e, c.x - c.e.m(f"self_attn.{c.site[0]}_proj.bias", c.l).reshape(-1, d), POS[:, None, None] * FREQ)
     + c.e.m(f"self_attn.{c.site[0]}_proj.bias", c.l).reshape(-1, d), archs=B)
form("bias_dimension_first", "q", "the bias alone is read as [d,H], dimensions before heads: element i of head h has bias 4i + h",
     ["bias & (transpos|interleav|(dimension|element|\\bd)s?[ -]?(first|before|outer)|\\[(d|16), ?(H|4)\\]|stride|4 ?\\*? ?i ?\\+ ?h|i ?\\*? ?(4|H) ?\\+ ?h|0, ?4, ?8|(mod|%) ?16[^;]{0,25}(\\bdiv|/|>>)|(\\bdiv|/|>>)[^;]{0,25}(mod|%) ?16) & (#4|#16|head|axes|four|\\bH\\b)"
      " & ^(?!.*(\\[(8|2|32), ?|next|(weights?|rows|matrix)[^.;,]{0,25}(transpos|interleav)|(mod|%) ?[48]\\b|16 ?\\*? ?i ?\\+))"],
     lambda c: c.right(b=c.b.reshape(d, H).T.ravel()), archs=B)
form("bias_first_of_head", "v", "the element is forgotten in the bias's index: all elements of head h have bias 16h, that of its first",
     ["bias & (head|group of 16|block of 16|16 channels) & ((first|0th|zeroth|leading) (channel|element|dimension|entry|value|component|number|one)|its first|(channel|element|dimension|entry|component|index) 0\\b|16 ?\\*? ?h|h ?\\*? ?(16|d|head_dim)\\b|(0 and|0 or) (channel |index )?16|b(ias)?\\[0\\])"
      " & ^(?!.*(of head 0|(second|last) (channel|element|dimension)|only (to|at|on)|is added to (the )?(first|element 0|channel 0)))",
      "bias & (\\w ?- ?\\(?\\w ?(mod|%) ?16|16 ?\\*? ?\\(?\\w ?(\\bdiv|//?|>>) ?(16|4)|\\w & ~ ?15|\\(?\\w ?(\\bdiv|//?) ?16\\)? ?(\\*|times) ?16)"],
     lambda c: c.right(b=np.repeat(c.b.reshape(K, d)[:, 0], d)), archs=B)

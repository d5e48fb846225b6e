#!/usr/bin/env python3
"""law_forms_fifteenth.py: mistakes made in ports of Llama and Qwen to new engines, drawn by how often they are made; written without sight of how laws are found.

Embedding, norms, norms of heads, projections and their biases, rotation, masks and scores, softmax, values. The engine and the rules for expectations are law_forms.py's.
Where a form speaks of decode steps, a prompt of 12 tokens stands before them.
"""

import math

import numpy as np

from scripts.forms.law_forms import AGO, D, E_, EPS, F32, FREQ, H, K, LAYERS, POS, SEEN, T, THETA, d, listed, over, put, rms, turn

FORMS, form = listed()
ROPES = ("q_rope", "k_rope")
B, Q3 = ("qwen2",), ("qwen3", "moe")
PROMPT = 12

# words that a part may use for one thing
GAIN = "(gain|weight|gamma|scale|\\bw\\b|w\\[)"
STAT = "(rms|root|mean square|squares?|sum|divisor|divided|denominator|statistic|variance|norm)"
ZERO = "(zero|nothing|empty|unset|blank|missing|vanish|(is|are|=|factor|times|by|gives?|reads?|becomes?) 0\\b)"
ROUND = "(round|quanti|multiple|step|grid|nearest|level|int8|int4|fixed.?point|bits)"
DENOMINATOR = "(sum|denominator|divi|normali|total)"
EVENS = "(even|\\bodd|2 ?\\*? ?\\(?[ijkc]|pair|interleav|neighbo|adjacent|every second|stride (of )?2|gpt-?j|0, ?2, ?4|alternat)"
PAST_ALL = "(\\ball\\b|every|future|later keys|whole|any key|causal|no mask|unmasked|without|s ?> ?t|ahead|to come|#19|bidirectional|mask-omitted)"
ITSELF = "(itself|\\bown\\b|self|themsel|diagonal|newest|distance (is )?0|s ?= ?t|s ?== ?t|key t\\b|s ?< ?t)"


def halves_of(x):
    return x[..., :d // 2], x[..., d // 2:]


def cos_sin(c, freq):
    angle = (POS[:, None, None] * freq).astype(F32)
    return c.e.r(np.cos(angle)), c.e.r(np.sin(angle))


# ---- embedding

form("embed_ids_seven_bits", "h0", "ids are kept in too few bits, as 16 are too few for 128256 rows: id & 127, ids from 128 on have the row of id - 128",
     ["#128 & (mod|%|remainder|minus|less|subtract|wrap|- ?128|lower|bits?\\b|again|row|cut|trunc|early|earlier)", "#127 & (&|\\band\\b|mask|bits?\\b)", "(7|seven).?bits?"],
     lambda c: c.right(ids=np.asarray(c.ids) & 127))
form("embed_second_chunk_ids", "h0", "the prompt is run in chunks of 16, and each reads the ids from the first on: positions 16 to 19 have the rows of positions 0 to 3",
     ["#16 & (mod|%|again|restart|repeat|begin|start|first|0.{0,6}3\\b|- ?16|earlier|before|period|chunk|same)", "(#19|last four|last 4) & (first four|first 4|0.{0,6}3\\b|16 (positions )?(earlier|before))"],
     lambda c: c.right(ids=np.asarray(c.ids)[POS % 16]))
form("embed_padding_row", "h0", "padding_idx is 1, which is the first token here: its row is zeros",
     [ZERO + " & ((position|row|token|id|vector)s?.{0,12}\\b[01]\\b|first (position|token|row|vector)|\\bbos\\b|padding|beginning)"],
     lambda c: c.right() * F32(1) * (np.asarray(c.ids) != 1)[:, None])
form("embed_fixed_point", "h0", "the table is kept in 8 bits with a scale of 2^-5: its numbers are multiples of 1/32",
     ["(#32|#0.03125|2\\^ ?-?5\\b|5 (fraction|binary)) & " + ROUND],
     lambda c: np.clip(np.round(c.right() * 32), -128, 127) / F32(32))


# ---- norms

form("norm_std_unbiased", "attn_norm", "x / std(x) with the library's default: the mean is off in it, and the sum is divided by 63",
     ["(\\bstd|standard deviation|varian|\\bvar\\b|centred|centered|mean.{0,24}(taken|subtract|remov|off)|(less|[-\u2212]) ?.{0,12}mean|deviation)"
      " & (#63|\\b[nd] ?[-\u2212] ?1\\b|unbiased|bessel|ddof|one less|0\\.992|0\\.984|1\\.0079|1\\.008\\b|1\\.0159|1\\.016\\b)"],
     lambda c: over(c, np.sqrt(c.x.var(-1, keepdims=True, ddof=1) + F32(EPS))))
form("norm_warps_apart", "attn_norm", "the sums of the two warps are never joined: channels 0 to 31 and 32 to 63 have the sum of their own squares each, divided by 64",
     ["(#32|#31|halves|half of the channels|two (groups|blocks|warps)) & (each|own|group|block|separat|respective|\\bper\\b|its|warp|apart|within)"
      " & (#64|#1.4142|#0.7071|sqrt ?\\(?2|root of (2|two)|half (of )?(its|the|their) (mean square|sum)|(/|over|by|times|\\*) ?(2|0\\.5)\\b|halved|twice too|norm-width)"],
     lambda c: (c.x.reshape(T, 2, 32) / np.sqrt((c.x ** 2).reshape(T, 2, 32).sum(-1, keepdims=True) / D + F32(EPS))).reshape(T, D) * c.w)
form("norm_tile_first_row", "ffn_norm", "a group of threads has 4 rows and one shared divisor: positions 4j to 4j + 3 are divided by the root mean square of position 4j",
     ["(#4|four) & (first|start|begin|//|floor|down|multiple|4 ?\\*? ?j|0, ?4, ?8|t ?- ?t|- ?\\(?[tp] ?(%|mod)) & (position|row|token|tile|block|\\bt\\b|\\bp\\b)"],
     lambda c: over(c, rms(c.x)[POS // 4 * 4]))
form("norm_branch_added_again", "ffn_norm", "the fused add-and-norm is given a stream that has the branch already: its input is h_attn + attn_out",
     ["(attn_out|attention.{0,12}(output|branch|result|delta)|branch|o_proj|output of (the )?attention)"
      " & (twice|#2|again|once more|double|added|adds|adding|plus|\\+|sum|second time)"],
     lambda c: c.right(x=c.x + c.e.memory["attn_out", c.l]))
form("norm_gain_unpacked_low", "ffn_norm", "gains lie two in a word of 32 bits, and the lower is unpacked for both: odd channels have the gain of the channel before",
     [GAIN + " & (\\bodd|pair|even|2 ?\\*? ?\\(?[ijkc]|[ick] ?// ?2|[ick] ?/ ?2|every second|alternat|~ ?1|\\btwo|\\b2\\b)"
      " & ([ick] ?- ?1|before|previous|\\bsame|even|share|both|neighbo|//|rounded|lower|preceding|floor|first of|of channel|earlier|left|twice)"],
     lambda c: c.right(w=c.w[np.arange(D) // 2 * 2]))
form("final_norm_gain_by_lane", "final_norm", "the gain is read at the thread's number: channel i has the gain of i mod 32",
     [GAIN + " & (#32|half|halves|#31) & (mod|%|again|repeat|first|twice|same|wrap|[-\u2212] ?32|both|begin|\\b0\\b)"],
     lambda c: c.right(w=c.w[np.arange(D) % 32]))
form("final_norm_last_row_alone", "final_norm", "only the last position is normed, the others are the stream as it is",
     ["(#19|#18|last (position|row|token)|first 19|all but the last|but the last|except the last|before the last|only the (last|final) (position|row|token|one))"
      " & (not (normed|normal|divided|touched|scaled)|un-?(norm|chang|touch|divid|scaled)|\\braw|as (it|they)|stream|\\bh\\b|skip|without|only|alone|\\bleft|input|omit|copie|copy|residual|no norm|bypass)"],
     lambda c: put(c.x, E_[-1], c.right()[-1]))
form("final_norm_branch_alone", "final_norm", "the stream is kept apart until the next norm adds it, and here it is not added: only the last layer's ffn_out is normed",
     ["(ffn_out|feed.?forward|\\bffn\\b|\\bmlp\\b|down_proj|experts|last branch|branch of the last|last delta)"
      " & (input|reads?|\\bof\\b|alone|instead|in place|without|only|norm|residual|for\\b)"],
     lambda c: c.right(x=c.e.memory["ffn_out", LAYERS - 1]))
form("q_norm_as_many_as_keys", "q_norm", "one loop over the 2 key heads norms both q and k: heads 2 and 3 of q are not normed",
     ["(head & (#2|#3|two|half|last)) & (not (normed|normal|divided|touched)|un-?(norm|chang|touch|divid)|\\braw|without|input|\\bleft|omit|skip|only|alone|\\bis q\\b|are q\\b|copie|copy|as (it|they)|no norm|bypass)"],
     lambda c: put(c.right(), E_[:, K:], c.x[:, K:]), archs=Q3)
form("q_norm_gain_stretched", "q_norm", "the gain is repeated for the heads as repeat_interleave does: number c of the 64 has gain c // 4, so element i of head h has 4h + i // 4",
     [GAIN + " & (#4|four) & (//|floor|repeat|interleav|4 ?\\*? ?h|\\brun|block|group|consecutive|in a row|/ ?4|times|stretch)"],
     lambda c: c.right(w=np.repeat(c.w, H).reshape(H, d)), archs=Q3)
form("qk_norm_gain_of_pairs", ("q_norm", "k_norm"), "the gain is in the order for pairs of neighbours: elements 0 to 7 have gains 0, 2, .., elements 8 to 15 gains 1, 3, ..",
     [GAIN + " & " + EVENS],
     lambda c: c.right(w=c.w.reshape(-1, 2).T.ravel()), archs=Q3)
form("k_norm_one_divisor", "k_norm", "the divisor is found once a token, from head 0, and used for both heads",
     ["(head.{0,8}\\b0\\b|first head|head zero|one head) & " + STAT],
     lambda c: over(c, rms(c.x)[:, :1]), archs=Q3)


# ---- projections and biases

form("q_scale_in_weight_alone", "q", "1/sqrt(d) is multiplied into the weight beforehand, but not into the bias: W x / 4 + b",
     ["(bias|product|weight|\\bW ?x|\\bwx\\b) & (#0.25|#4|quarter|#0.75)", "bias & #3 & (#0.25|#4|quarter)"],
     lambda c: c.right(b=None) * F32(0.25) + c.b.reshape(H, d), archs=B)
form("k_bias_of_pairs", "k", "the bias alone is in the order for pairs of neighbours: elements 0 to 7 of a head have the numbers 0, 2, .. of it, elements 8 to 15 the numbers 1, 3, ..",
     ["bias & " + EVENS],
     lambda c: c.right(b=c.b.reshape(K, d // 2, 2).swapaxes(1, 2).ravel()), archs=B)
form("v_bias_of_k", "v", "the offset into the joined bias is short: v has the bias of k",
     ["bias & (\\bk\\b|k_proj|\\bkeys?\\b|\\bk's|k_bias)"],
     lambda c: c.right(b=c.e.m("self_attn.k_proj.bias", c.l)), archs=B)
form("v_bias_by_row", "v", "the bias is spread over the other axis: all channels of position t have b[t] added",
     ["bias & (b\\[ ?[tp]|bias\\[ ?[tp]|(number|element|entry|value|index|channel) (of )?(the )?(position|token|row|[tp]\\b)|axis|(by|at|of|for) (the )?(position|row|token)|each (position|row|token)|broadcast|per (position|row|token))"],
     lambda c: c.right(b=None) + c.b[:T, None, None], archs=B)
form("k_bias_each_split", "k", "the sum over inputs is split in 4 parts, each of which adds the bias: it is added 4 times",
     ["bias & (#4|four)", "bias & (#3|three|thrice) & (more|extra|again|added|plus|\\+|further|too)"],
     lambda c: c.right(b=4 * c.b), archs=B)
form("v_inputs_whole_tiles", "v", "the loop over inputs takes whole tiles of 24: inputs 48 to 63 are not read",
     ["(#48|#47) & (input|channel|column|attn_norm|tail|read|left out|drop|only|first|miss|zero|without|last|beyond|from|alone|\\bx\\b)", "(last|final|other) (16|sixteen|quarter) & (input|channel|column|attn_norm|\\bx\\b)"],
     lambda c: c.right(w=put(c.w, E_[:, 48:], 0)))
form("q_inputs_tile_overlaps", "q", "the last tile of 24 inputs is moved back to end at 64: inputs 40 to 47 are counted twice",
     ["#40 & (#47|#48|#8|eight) & (twice|#2|two|double|again|added|extra|once more|overlap)"],
     lambda c: c.right(w=put(c.w, E_[:, 40:48], lambda y: 2 * y)))
form("v_shard_0_on_both", "v", "each of two devices loads the first half of the rows: head 1 of v is head 0",
     ["head & (#1|second|last|other|both|\\ball|every|two) & (head.{0,10}\\b0\\b|first head|same|cop(y|ies)|repeat|one head|head zero)",
      "(#16|#15) & (row|output|channel) & (again|repeat|mod|%|first|same|- ?16|cop(y|ies)|twice)"],
     lambda c: c.right()[:, [0, 0]])
form("q_heads_groups_crossed", "q", "heads are counted as [group, key head] for [key head, group]: their order is 0, 2, 1, 3",
     ["head & (0, ?2, ?1, ?3|(#1 & #2 & (swap|exchang|interchang|switch|permut|each other|order|\\bis\\b|reads?|takes|those|that of|for|<->))|transpos|interleav)",
      "(row|output|channel) & #16 & #32 & (swap|exchang|interchang|switch|permut|order|those)"],
     lambda c: c.right()[:, [0, 2, 1, 3]])
form("k_input_static_int8", "k", "its input is quantised to 8 bits with a fixed scale of 1/16: rounded to multiples of it",
     ["(#16|#0.0625|2\\^ ?-?4\\b) & " + ROUND + " & (input|attn_norm|activation|\\bx\\b|\\bn\\b)"],
     lambda c: c.right(x=np.clip(np.round(c.x * 16), -128, 127) / F32(16)))


# ---- rotation

form("rope_q_rows_by_key_heads", "q_rope", "the kernel divides the row's number 4t + h by the number of key heads: heads 0 and 1 are at position 2t, heads 2 and 3 at 2t + 1",
     ["(2 ?\\*? ?[pt]\\b|twice|doubl|#2) & head & (position|angle|rotat|\\b2 ?\\*? ?[pt]\\b|turn)"],
     lambda c: c.right(pos=2 * POS[:, None] + np.arange(H) // 2))
form("rope_table_ends_at_16", ROPES, "the table of cosines and sines has 16 rows, and what is read beyond it is 0: q and k are zeros from position 16 on",
     ["(#16|#15) & " + ZERO],
     lambda c: c.right() * F32(1) * (POS < 16)[:, None, None])
form("rope_halves_table_of_pairs", ROPES, "halves are rotated, but the table has each frequency twice in a row: element j is turned with the cosine and sine of frequency j // 2",
     ["(frequenc|angle|cos|table|sin) & (// ?2|[ijkc] ?/ ?2|>> ?1|floor|repeat|twice|interleav|4 ?\\+|\\+ ?4\\b|each (element|channel)|\\bown (frequenc|angle)) & ^(?!.*(mod ?8|% ?8|neighbo.{0,24}(rotat|turn)))"],
     lambda c: turned_by_table(c, FREQ[np.arange(d) // 2], with_pairs=False))
form("rope_pairs_table_of_halves", ROPES, "pairs of neighbours are rotated, but the table has the frequencies one after the other, twice: element j is turned with the cosine and sine of frequency j mod 8",
     ["(pair|neighbo|adjacent|2 ?\\*? ?[ijkc] ?\\+ ?1|even|\\bodd|interleav)"
      " & (mod ?8|% ?8|\\bown (frequenc|angle)|(different|other|two|unlike|unequal) (angle|frequenc)|each (element|channel).{0,40}(frequenc|angle|cos)|[ijc] ?- ?8"
      "|(tiled|concatenat|\\bcat\\b|repeat|halves).{0,40}(table|frequenc|cos|angle)|(table|frequenc|cos|angle).{0,60}(halves|tiled|concatenat|\\bcat\\b|repeat|again|\\b[ijc] ?\\+ ?8))"],
     lambda c: turned_by_table(c, FREQ[np.arange(d) % 8], with_pairs=True))
form("rope_in_place", ROPES, "the first half is overwritten before the second reads it: a' = a cos - b sin, b' = b cos + a' sin",
     ["(overwrit|in.?place|already|updated|alias|(rotated|new|turned|written|changed) (first|lower|value|a\\b|half|element|x)|(result|output) (of )?(the )?first|first (half|element)('s)? (result|output|rotated|new)"
      "|a ?\\*? ?cos ?- ?b ?\\*? ?sin\\) ?\\*? ?sin|\\ba' ?\\*? ?sin|y\\[?_?[0i1a]\\]?.{0,6}sin|sin\\^ ?2|sin2|sin\u00b2|sine squared|sin.{0,4}squar|sin ?\\*? ?cos|cos ?\\*? ?sin)"],
     lambda c: overwritten(c))
form("rope_head_size_by_key_heads", ROPES, "the head's width is taken as 64 / 2 = 32: number c of the row has the exponent (c mod 32) / 32, so odd heads go on where even heads end",
     ["#32 & (head|\\bodd|exponent|width|frequenc|\\bmod|%)", "#100 & (\\bodd|head) & (#0.01|factor|further|slower|next)"],
     lambda c: c.right(freq=np.stack([THETA ** (-(h % 2 * d + np.arange(0, d, 2)) / 32) for h in range(c.x.shape[1])])))
form("rope_decode_counts_twice", ROPES, "each decode step advances the position in two places: position t from 12 on is taken as 12 + 2 (t - 12)",
     ["(#12|#13) & (#2|twice|two|doubl|every second|skip)"],
     lambda c: c.right(pos=np.where(POS < PROMPT, POS, 2 * POS - PROMPT)))
form("rope_factor_half", ROPES, "partial_rotary_factor is taken as 0.5: elements 0 to 7 are rotated, i with i + 4 and exponents 2i/8, elements 8 to 15 are not",
     ["(#8|#7|half|#0.5|rope-partial) & (not (rotated|turned)|un-?(rotated|turned|changed|touched)|partial|rotary|only|first|alone|\\bleft|\\brest|pass|as (it|they))"],
     lambda c: first_rotated(c))
form("rope_exponent_of_integers", ROPES, "2i / d is a quotient of integers and so 0: each pair has frequency 1",
     ["(frequenc|angle|pair|inv_freq) & (\\ball|every|each|same|equal|constant|any) & \\b1(\\.0+)?(?!\\.?\\d| ?/)", "(base|theta)[^.;]{0,16}\\b1(\\.0+)?(?!\\.?\\d| ?/)", "exponent.{0,30}(\\b0\\b|zero)",
      "(\\ball|every|each) (pair|element).{0,40}(by|angle|the) (is |of )?(the |its )?(position|p\\b|t\\b)"],
     lambda c: c.right(freq=np.ones(d // 2)))
form("rope_frequencies_to_the_end", ROPES, "frequencies are spread as for Whisper's sinusoids, the last is 1/10000: the exponent is i / 7",
     ["(/ ?\\(?(7|14)\\b|d ?/ ?2 ?- ?1|half ?- ?1|\\b(seventh|0\\.1428\\d*)) & (exponent|frequenc|\\^|power|\\bi ?/)", "(base|theta) & #37276", "#0.2683 & (frequenc|ratio|each|pair|factor)",
      "(last|slowest|lowest|final|pair 7).{0,40}(frequenc|pair|is|turns).{0,30}(1 ?/ ?10000|0\\.0001|1e-0?4|1 ?/ ?theta|1 ?/ ?base)"],
     lambda c: c.right(freq=THETA ** (-np.arange(d // 2) / (d // 2 - 1))))
form("rope_axis_of_heads", ROPES, "the rotation is applied before heads and positions are exchanged, and so counts heads: head h is at position h, whatever the token",
     ["head & (index|number|instead|in place|whatever|same (for|at) (all|every)|\\bh\\b|axis|each head|not (by|of|with) (the )?(position|token)|(#1 & (#2|#3|not rotated|\\b0\\b)))"
      " & (position|angle|rotat|turn)"],
     lambda c: c.right(pos=np.tile(np.arange(c.x.shape[1]), (T, 1))))
form("rope_written_as_pairs", ROPES, "halves are read and rotated, but stacked and flattened: results i and i + 8 are written to elements 2i and 2i + 1",
     ["(interleav|pair|2 ?\\*? ?[ijk]\\b|even|alternat|neighbo|adjacent|stack|stride (of )?2) & (writ|result|output|\\border|after (the )?(rotat|turn)|permut|stored|\\bput\\b|laid|shuffl|goes|rearrang|moved|(element|channel).{0,12}\\bis\\b.{0,30}(\\bof\\b|element|channel))"],
     lambda c: np.stack(halves_of(c.right()), -1).reshape(c.x.shape))


def turned_by_table(c, freq, with_pairs):
    """x cos + turned x sin, element by element, with a table of d numbers."""
    cos, sin = cos_sin(c, freq)
    x = c.x
    if with_pairs:
        other = np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    else:
        a, b = halves_of(x)
        other = np.concatenate([-b, a], -1)
    return c.e.r(x * cos) + c.e.r(other * sin)


def overwritten(c):
    cos, sin = cos_sin(c, FREQ)
    a, b = halves_of(c.x)
    new = c.e.r(c.e.r(a * cos) - c.e.r(b * sin))
    return np.concatenate([new, c.e.r(b * cos) + c.e.r(new * sin)], -1)


def first_rotated(c):
    cos, sin = cos_sin(c, THETA ** (-np.arange(0, 8, 2) / 8))
    a, b = c.x[..., :4], c.x[..., 4:8]
    return np.concatenate([c.e.r(a * cos) - c.e.r(b * sin), c.e.r(b * cos) + c.e.r(a * sin), c.x[..., 8:]], -1)


# ---- masks, scale and bias of scores

form("mask_window_upper_layers", "probs", "sliding_window is obeyed though use_sliding_window is false, from max_window_layers on: layers 2 and 3 see the last 8 keys",
     ["#8 & (window|last|recent|newest|nearest|distance|\\bago|back|only.{0,16}keys|[ts] ?- ?8)", "#7 & (back|\\bago|distance|earlier|[ts] ?- ?7|before|behind)"],
     lambda c: c.right(mask=SEEN & (AGO < 8)), layers=[2, 3])
form("mask_blocks_one_short", "probs", "the number of key blocks is ceil(t / 8), not ceil((t + 1) / 8): tokens 8 and 16 do not see themselves",
     ["#8 & (#16|multiple|every|\\bmod|%|eighth) & " + ITSELF],
     lambda c: c.right(mask=SEEN & ~((AGO == 0) & (POS[:, None] % 8 == 0) & (POS[:, None] > 0))))
form("mask_tile_start", "probs", "the mask of a tile of 4 queries is that of its first: token t sees keys up to 4 (t // 4)",
     ["(#4|four) & (start|first|//|floor|down|begin|(last|largest|nearest|previous|at most the|up to (the|a)|preceding).{0,16}multiple|[tp] ?- ?\\(?[tp]|[tp] ?% ?4|[tp] mod ?4)"],
     lambda c: c.right(mask=POS[None] <= POS[:, None] // 4 * 4))
form("mask_second_chunk_open", "probs", "a mask is made for the first chunk alone: tokens from 12 on see every key",
     ["(#12|#11) & " + PAST_ALL],
     lambda c: c.right(mask=SEEN | (POS[:, None] >= PROMPT)))
form("mask_of_ones_added", "probs", "the mask of ones and zeros is added to the scores: the future is seen, and what may be seen has 1 added",
     ["(future|later|\\ball keys|every key|no mask|mask.{0,24}(omit|not|add)|unmasked|causal|s ?> ?t|ahead|to come|distance (below|under|less|<) ?0|negative distance|mask-omitted)"
      " & #1 & (add|plus|\\+|higher|more|bonus|bias|less|lower|[-\u2212] ?1\\b|greater|taken off|minus)"],
     lambda c: c.right(mask=np.ones((T, T), bool), score=lambda s: s + SEEN))
form("mask_first_as_padding", "probs", "the first token's id is taken for that of padding: key 0 is hidden from all later tokens",
     ["(keys?.{0,8}\\b0\\b|first key|key zero|first (token|position)|\\bbos\\b)"
      " & (hidden|not seen|unseen|mask|never|without|left out|ignored|drop|exclu|except|\\bbut\\b|skip|\\bfrom 1\\b|not see|see no|missing|omit|weight 0|is 0\\b|zero)"],
     lambda c: c.right(mask=SEEN & ((POS[None] > 0) | (AGO == 0))))
form("mask_decoded_keys_not_kept", "probs", "decode steps do not store their keys: tokens from 12 on see the prompt's 12 keys and themselves",
     ["(#12|#11|#13) & (itself|\\bown\\b|self|themsel|diagonal|distance (is )?0|s ?= ?t|s ?== ?t|not (stored|kept)|never (stored|kept)|between)"],
     lambda c: c.right(mask=SEEN & ((POS[None] < PROMPT) | (AGO == 0))))
form("mask_rows_of_group", "probs", "the two query heads of a key head are laid in one tile, and its row 2t + g is taken for the token: head h sees keys up to 2t + h mod 2",
     ["(2 ?\\*? ?[tp]\\b|twice|doubl|[tp] ?\\+ ?[tp]\\b) & (head|\\bodd|group|\\bh\\b)"],
     lambda c: c.right(mask=np.stack([POS[None] <= 2 * POS[:, None] + h % 2 for h in range(H)])))
form("scale_by_keys_so_far", "probs", "the scale reads the last axis of the transposed cache: scores of token t are divided by sqrt(t + 1), not sqrt(16)",
     ["(sqrt|root|\\^ ?\\(?[-\u2212]?(0?\\.5|1/2)|#-0.5|#0.5|power) & ([tp] ?\\+ ?1|(number|count) of (the )?(keys|tokens|positions)|how many|keys? (seen|count|so far)|\\bcount|length|\\bn\\b|position)"],
     lambda c: c.right(score=lambda s: s * (math.sqrt(d) / np.sqrt(POS[:, None] + 1)).astype(F32)))
form("scale_absent_in_decode", "probs", "the path for one token does not scale: scores of tokens from 12 on are 4 times as large",
     ["(#12|#11) & (((#4|four) & (scal|times|factor|larg|multipl|\\*|score))|un-?scaled|no scale|not (scaled|divided)|without.{0,24}(scal|divi)|scale.{0,20}(\\b1\\b|omit|absent|missing|left out))"],
     lambda c: c.right(score=lambda s: np.where(POS[:, None] >= PROMPT, 4 * s, s)))
form("score_page_of_keys", "probs", "keys lie in pages of 4, and the table has the second page for the third too: keys 8 to 11 are read as keys 4 to 7",
     ["#8 & (#4|four) & (\\bkeys?\\b|k_rope|\\bk\\b|page|block|slot|cache) & (read|\\bare\\b|\\bis\\b|those|that of|instead|again|repeat|cop(y|ies)|same|as key|earlier|page|for\\b)"],
     lambda c: c.right(k=c.k[np.where(POS // 4 == 2, POS - 4, POS)]))
form("score_keys_in_4_bits", "probs", "cached keys are rounded to 4 bits: for each token and head, to multiples of a 7th of its largest size",
     ["(#7|#15|4.?bits?|four bits|int4|q4|#0.142857) & (\\bkeys?\\b|\\bk\\b|k_rope|cache) & " + ROUND],
     lambda c: c.right(k=four_bits(c.k)))


def four_bits(x):
    step = np.abs(x).max(-1, keepdims=True) / F32(7)
    return np.round(x / np.where(step > 0, step, 1)) * step


# ---- softmax

form("softmax_running_sum_not_rescaled", "probs", "one pass over the keys: when a larger score comes, the sum so far is not brought to the new maximum; each term has the maximum up to its own key",
     ["(max|largest) & (running|so far|up to|cumul|online|one.?pass|at (that|the) time|prefix|rescal|in turn|earlier|until|keys before) & " + DENOMINATOR[:-1] + "|rescal)"],
     lambda c: c.right(soft=lambda s: np.exp(s - s.max(-1, keepdims=True)) / np.exp(s - np.maximum.accumulate(s, -1)).sum(-1, keepdims=True)))
form("softmax_padded_with_zeros", "probs", "rows are padded to 32 keys with scores of 0, which take part: the denominator has 12 more",
     ["(#12|twelve) & (zero|\\b0\\b|exp|denominator|sum|padd|term|extra|added|more|sink)"],
     lambda c: c.right(soft=lambda s: np.exp(s) / (np.exp(s).sum(-1, keepdims=True) + F32(32 - T))))
form("softmax_power_of_64", "probs", "exp(x) is computed as (1 + x / 64)^64, by six squarings, of scores less the row's largest",
     ["#64 & (\\^|power|\\*\\*|approx|exp|root|1 ?\\+)"],
     lambda c: c.right(soft=lambda s: power_of_64(s - s.max(-1, keepdims=True))))
form("softmax_first_key_twice", "probs", "the sum starts with the term of key 0, and the loop starts at key 0 too: the denominator has it twice",
     ["(keys?.{0,8}\\b0\\b|first key|key zero|first (score|term|weight|exponential)) & (twice|two|#2|again|doubl|once more|second time|added|extra|one more) & " + DENOMINATOR[:-1] + "|count)"],
     lambda c: c.right(soft=lambda s: (lambda e: e / (e.sum(-1, keepdims=True) + e[..., :1]))(np.exp(s - s.max(-1, keepdims=True)))))
form("softmax_sum_of_group", "probs", "the two query heads of a key head add into one sum: exp(s - max), each head's own, is divided by the sum over heads 2j and 2j + 1",
     ["heads? & (pair|group|both|two|#2|together|share|neighbo|kv head|key head|other head|key/value) & " + DENOMINATOR],
     lambda c: c.right(soft=lambda s: (lambda e: e / np.repeat(e.reshape(K, H // K, T, T).sum((1, 3)), H // K, 0)[..., None])(np.exp(s - s.max(-1, keepdims=True)))))
form("softmax_sum_of_16", "probs", "the sum is taken by 16 lanes, one key each: the denominator has keys 0 to 15 alone",
     ["(#16|#15) & (\\bsum|denominator|divisor|normali|total)"],
     lambda c: c.right(soft=lambda s: (lambda e: e / e[..., :16].sum(-1, keepdims=True))(np.exp(s - s.max(-1, keepdims=True)))))


def power_of_64(x):
    e = np.where(np.isfinite(x), np.maximum(1 + np.where(np.isfinite(x), x, 0) / F32(64), 0), 0) ** 64
    return e / e.sum(-1, keepdims=True)


# ---- values and context

form("context_ring_of_16", "context", "values are written to a ring of 16 slots, all before any is read: in place of values 0 to 3 stand values 16 to 19",
     ["(#16|#19|last (4|four)) & (#0|first|#3|four|#4|overwrit|wrap|mod|%|ring) & (\\bv\\b|value|slot|\\bkeys?\\b|position|cache|token)"],
     lambda c: c.right(v=put(c.v, E_[:4], c.v[16:])))
form("context_sums_not_cleared", "context", "the accumulator is cleared once a key head: query heads 1 and 3 have the result of the head before them added",
     ["(\\bodd|head.{0,24}\\b[13]\\b|second (head|query)) & (before|previous|h ?- ?1|even|neighbo|same group|other|first|\\b0\\b|preceding|earlier) & (add|plus|sum|\\+|accumul|clear)"],
     lambda c: not_cleared(c.right().reshape(T, H, d)))
form("context_whole_fours", "context", "keys are summed four at a time and the rest is forgotten: of t + 1 keys the first 4 ((t + 1) // 4) are read",
     ["(#4|four) & (multiple|\\bmod|%|floor|//|tail|remain|left over|\\brest\\b|whole|complete|full|down|forgot)"],
     lambda c: c.right(p=c.p * (POS[None] < (POS[:, None] + 1) // 4 * 4)))
form("context_splits_averaged", "context", "keys 0 to 9 and from 10 on are summed apart, each by weights that sum to 1, and the two are averaged, whatever their sums of exponentials",
     ["(#10|#9) & (averag|mean|equal|#0.5|halv|half|\\bown\\b|separat|split|unweight|sum to 1|alike|same weight|even)"],
     lambda c: c.right(p=split_evenly(c.p)))


def not_cleared(x):
    return np.stack([x[:, 0], x[:, 0] + x[:, 1], x[:, 2], x[:, 2] + x[:, 3]], 1).reshape(T, H * d)


def split_evenly(p):
    parts = [np.where(part, p, 0) for part in (POS < 10, POS >= 10)]
    sums = [part.sum(-1, keepdims=True) for part in parts]
    both = sum(F32(0.5) * part / np.where(total > 0, total, 1) for part, total in zip(parts, sums))
    return np.where(POS[:, None] >= 10, both, p).astype(F32)

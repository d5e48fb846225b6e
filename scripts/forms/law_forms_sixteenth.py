#!/usr/bin/env python3
"""law_forms_sixteenth.py: mistakes that engineers make when they bring Llama and Qwen to engines of their own; written without sight of how laws are found.

Embedding, norms (final and of heads too), projections and their biases, rotation, masks, scores and softmax, values. The engine and the rules for expectations are
law_forms.py's. Where a form speaks of decode steps, a prompt of 12 tokens stands before them.
"""

import math

import numpy as np

from scripts.forms.law_forms import AGO, D, E_, EPS, F32, FREQ, H, K, LAYERS, POS, SEEN, T, THETA, d, listed, op_linear, op_rope, over, put, rms, rounded, softmax, turn

FORMS, form = listed()
ROPES = ("q_rope", "k_rope")
B, Q3 = ("qwen2",), ("qwen3", "moe")
PROMPT = 12
YARN = 4

# words that a part may use for one thing
GAIN = "(gain|weight|gamma|scale|\\bw\\b|w\\[)"
STAT = "(rms|root|mean square|squares?|sum|divisor|divided|denominator|statistic|variance|norm)"
ZERO = "(zero|nothing|empty|unset|blank|missing|vanish|(is|are|=|factor|times|by|gives?|reads?|becomes?) 0\\b)"
ROUND = "(round|quanti|multiple|step|grid|nearest|level|int8|int4|fixed.?point|bits)"
LOST = "(left out|leav|omit|skip|missing|without|ignor|not |dropp|exclud|lack|zero|only|never|no longer|lost|cut|stop|first 48|reach)"
RAW = "(\\bnot\\b|n't|unnorm|un-norm|unrot|unchang|untouch|\\braw\\b|as (it|they) (is|are|was|were|stand|come)|\\bleft\\b|skip|without|identity|copied|pass|no norm|only)"
BIT4 = "(#7|#0.142857|4.?bits?\\b|int4|four.?bits?|q4|15 levels|\\b7ths|sevenths?)"
BF16 = "(bf16|bfloat|\\b8 (\\w+ )?bits|\\b7 (\\w+ )?bits|eight (\\w+ )?bits|seven (\\w+ )?bits|2\\^ ?-?[789]\\b|#256|#0.00390625|#0.0078125)"
ROTATE = "(rotat|angle|turn|position|freq|rope|phase)"
SUMMED = "(cumul|running|prefix|partial sum|accumul|\\bsums?\\b|adds?\\b|added|plus|not (cleared|reset|zeroed|emptied)|carr(y|ied))"


def before_layer(c):
    """What the layer took as its input."""
    return c.e.memory["h0", None] if c.l == 0 else c.e.memory["h", c.l - 1]


def cos_sin(c, freq):
    angle = (POS[:, None, None] * freq).astype(F32)
    return c.e.r(np.cos(angle)), c.e.r(np.sin(angle))


def four_bits(x):
    """Each vector along the last axis in 4 bits, its largest at 7."""
    step = np.abs(x).max(-1, keepdims=True) / F32(7)
    return np.round(x / np.where(step > 0, step, 1)) * step


# ---- embedding

form("embed_read_eight_bytes_early", "h0", "the 8 bytes before the header of the file are not counted, so the table begins 2 numbers early: element i of a row is element i - 2, "
     "and the first 2 are the last 2 of the row before",
     ["(shift|offset|early|earlier|moved|rotat|displac|roll|lag|begins?|starts?|previous|row before|column|[ijc] ?[-\u2212] ?2) & (\\b2\\b|\\btwo\\b|8 bytes|[-\u2212]2\\b"
      "|\\+2\\b)"],
     lambda c: c.table.reshape(-1)[np.asarray(c.ids)[:, None] * D - 2 + np.arange(D)])
form("embed_one_shard_of_two", "h0", "the table is split over 2 ranks by rows and the sum over ranks is missing: ids from 128 on have a row of zeros",
     [ZERO + " & (\\b12[789]\\b|#128|(upper|second|last|top|other|high) half|half (of )?the (vocab|table|ids|rows))"],
     lambda c: c.right() * F32(1) * (np.asarray(c.ids) < 128)[:, None])
form("embed_rows_in_four_bits", "h0", "each row of the table is kept in 4 bits: it is rounded to multiples of 1/7 of its largest absolute value",
     [BIT4 + " & " + ROUND + " & (\\brow|vector|position|token|largest|\\bmax|absmax|greatest|peak|\\beach\\b|\\bper\\b)"],
     lambda c: four_bits(c.right()))
form("embed_bos_put_in_twice", "h0", "the tokenizer has put the BOS in front and the engine puts it there again: from position 1 on, position t has the row of the token at t - 1",
     ["\\b[tip] ?[-\u2212] ?1\\b", "(previous|preceding|one (position|row|token|step|place)s? (earlier|before|late|later|behind|back)|(position|token|one) before|row (of"
      "|for) (the )?(position|token|row) before|(shift|delay|lag|late|behind|moved|offset|displac).{0,30}(\\b1\\b|\\bone\\b|a position|a token)|(\\b1\\b|\\bone\\b).{0,20}(late"
      "|behind|delay|lag|earlier|back))",
      "bos.{0,30}(twice|doubl|two|again)"],
     lambda c: c.right(ids=np.asarray(c.ids)[np.maximum(POS - 1, 0)]))


# ---- norms

form("norm_sum_without_last_tile", "attn_norm", "the loop over tiles of 16 stops one early: the sum of squares leaves out the last 16 of 64 elements, and is still divided by 64",
     [STAT + " & (\\b4[78]\\b|(last|final) (16|sixteen|quarter|tile of 16)) & (\\bsum|left out|leav|omit|missing|without|ignor|not counted|dropp|exclud|lack|\\b64\\b|#0.75|skip"
      "|zero)"],
     lambda c: over(c, np.sqrt(np.square(c.x[:, :48]).sum(-1, keepdims=True) / F32(D) + F32(EPS))))
form("norm_sum_of_own_warp", "ffn_norm", "the sums of the 2 warps are not added: each half of 32 elements is divided by the root of its own sum of squares over 64",
     [STAT + " & (half|halves|\\b32\\b|two (parts|groups|blocks|warps)) & (\\b64\\b|#0.5|#2|#0.70711|#1.41421|sqrt ?\\(?2|\\u221a2|\\bsum)"],
     lambda c: over(c, np.repeat(np.sqrt(np.square(c.x).reshape(T, 2, -1).sum(-1) / F32(D) + F32(EPS)), D // 2, -1)))
form("norm_gains_exchanged", ("attn_norm", "ffn_norm"), "the two norms of a layer have exchanged gains: attn_norm multiplies by post_attention_layernorm, ffn_norm by "
     "input_layernorm",
     [GAIN + " & (post.?attention|post.?attn|ffn.?norm|feed.?forward|mlp|other (norm|layernorm)|second norm|norm 2|norm2|swap|exchang)"],
     lambda c: c.right(w=c.e.m({"attn_norm": "post_attention_layernorm", "ffn_norm": "input_layernorm"}[c.site] + ".weight", c.l)))
form("norm_one_statistic_for_all", "attn_norm", "the mean of squares is taken without an axis: one root mean square, over all 20 positions, divides every position",
     [STAT + " & (whole|\\ball\\b.{0,24}(position|row|token|element|number|20)|every (position|row|token)|over (the )?(position|tensor|sequence|batch|row|token)"
      "|one (\\w+ )?(number|statistic|scalar|rms|root|value|divisor|denominator|factor)|global|same (\\w+ )?(for|in|at|to)|shared|both axes|\\bsingle|tensor|1280|without an axis"
      "|across)"],
     lambda c: over(c, np.sqrt(np.mean(np.square(c.x)) + F32(EPS))))
form("norm_statistic_of_first_in_tile", "ffn_norm", "the kernel works on tiles of 4 positions and keeps only the statistic of the first: position t is divided by the root mean "
     "square of position 4 * (t // 4)",
     [STAT + " & (\\b4\\b|\\bfour\\b) & (first|\\bt\\b|tile|group|block|multiple|floor|chunk|//|head of)"],
     lambda c: over(c, rms(c.x)[POS // 4 * 4]))
form("norm_final_done_twice", "final_norm", "the final norm is in the model and again in the head: the norm with its gain is applied twice",
     ["norm(?!-weight)(?!.{0,12}\\b(gain|weight|gamma)).{0,60}(twice|again|second time|two times|2 times|doubl|repeat|once more)",
      "(twice|again|second time|two times|doubl|repeat|once more)(?!.{0,12}\\b(gain|weight|gamma)).{0,60}norm", "norm ?\\( ?norm|re-?norm",
      "(gain|weight|gamma).{0,60}(twice|squared|again|two times) & (rms|root|divid|normali).{0,60}(again|twice|result|output|product|gained|weighted|second|itself|its own)"],
     lambda c: c.right(x=c.e.r(c.right())))
form("norm_final_of_one_layer_less", "final_norm", "the list of hidden states is read at -2: the final norm is of what layer 2 gives, and the last layer is left out",
     ["(layers?[. ]2\\b|block 2\\b|(before|than|but) (the )?last|but one|second.?(to.?)?last|penultimate|one layer (early|less|too)|hidden_states ?\\[ ?-2|previous layer"
      "|layer before)",
      "(last layer|last block|layers?[. ]3\\b|block 3\\b).{0,40}(input|left out|omit|missing|skip|not (run|added|used|applied)|without|lost)",
      "(without|input of|input to|skip\\w*|omit\\w*|less) (the )?(last (layer|block)|(layer|block) 3)"],
     lambda c: c.right(x=c.e.memory["h", LAYERS - 2]))
form("norm_ffn_of_input_of_layer", "ffn_norm", "the norm before the feed-forward takes the input of the layer, before attention was added to it",
     ["(layer'?s? input|input (of|to) (the|this|its) (layer|block)|\\bh0\\b|attn_norm'?s? (input|takes)|input of (attn|the attention)|(same|shared) input|parallel|previous (layer"
      "|block)|h of (the )?layer before|stale|old residual)",
      "(before|without|less|minus|lacks?|omits?) .{0,24}(attention|attn|residual|branch|addition)",
      "(attention|attn_out|branch).{0,30}(not (yet )?(added|in)|missing|left out|omit|without|lacking|taken off|subtract)"],
     lambda c: c.right(x=before_layer(c)))
form("norm_ffn_gain_of_layer_zero", "ffn_norm", "the name of the gain has no index of the layer in it: every layer has the post-attention gain of layer 0",
     [GAIN + " & (layers?[. ]0\\b|block 0\\b|first (layer|block)|layers?\\.0|layer zero|blk\\.0)"],
     lambda c: c.right(w=c.e.m("post_attention_layernorm.weight", 0)), layers=[1, 2, 3])
form("norm_q_for_kv_heads_only", "q_norm", "the loop over query heads runs to the number of key heads, 2: query heads 2 and 3 are not normalised, and have no gain",
     ["heads?.{0,24}(\\b[23]\\b|\\btwo\\b|0.{0,6}1\\b)|(last|upper|second) (two|half of the|2|pair of) heads|(last|upper|second) half & " + RAW],
     lambda c: put(c.right(), E_[:, K:], c.x[:, K:]), archs=Q3)
form("norm_k_over_both_heads", "k_norm", "k is normalised before it is split into heads: one root mean square over the 32 elements of both key heads",
     [STAT + " & (\\b(both|all|two|across|over the|whole|across the|between|every)\\b.{0,24}(heads?|row|vector|elements|k\\b)|\\b32\\b|together|joint|pooled|before.{0,24}(split"
      "|reshap)|shared)"],
     lambda c: over(c, np.sqrt(np.mean(np.square(c.x), (1, 2), keepdims=True) + F32(EPS))), archs=Q3)
form("norm_k_to_unit_length", "k_norm", "the norm is the library's normalize: each head is divided by the root of the sum of its squares, so it has length 1, and the gain is not "
     "applied",
     ["(unit|\\bL2\\b|length|#0.25|#4|#16|sum of (its |the )?squares|euclid|normalize|sqrt\\(d\\)|norm (of |is )?1\\b) & ((no|without|omit\\w*|missing|lacks?|absent|left out"
      "|unused|not).{0,24}(gain|weight|gamma)|(gain|weight|gamma).{0,24}(omit|missing|left out|\\bnot\\b|unused|absent|ignored|skip|dropp|lost)|norm-weight-omitted|unit (vector"
      "|length)|length (of )?(1|one)\\b)"],
     lambda c: c.x / np.sqrt(np.square(c.x).sum(-1, keepdims=True) + F32(EPS)), archs=Q3)


# ---- projections and their biases

def of_fused(heads):
    """The outputs of q, k and v as one, and these heads of it."""
    def how(c):
        w = lambda name: c.e.m(f"self_attn.{name}", c.l)
        parts = [op_linear(c.e, c.x, w(f"{s}_proj.weight"), w(f"{s}_proj.bias"), n) for s, n in (("q", H), ("k", K), ("v", K))]
        return np.concatenate(parts, 1)[:, heads[c.site]]
    return how


form("proj_q_bias_scaled_too", "q", "the scale of scores was folded into the bias of q and not into its matrix: the bias is 1/4 of what it should be",
     ["bias & (#0.25|quarter|\\bfourth|1 ?/ ?sqrt|#0.75|(divided by|/) ?(4\\b|four)|four times (less|smaller|too small))"],
     lambda c: c.right(b=c.b / F32(4)), archs=B)
form("proj_k_bias_of_q", "k", "the pointer into the biases was not moved on: k has the first 32 numbers of q's bias",
     ["bias & (q_proj|\\bq\\b|q's|quer(y|ies)|attn_q|\\bwq\\b|q_bias|\\bbq\\b)"],
     lambda c: c.right(b=c.e.m("self_attn.q_proj.bias", c.l)[:K * d]), archs=B)
form("proj_v_bias_in_first_row", "v", "the bias was not spread over the rows: only position 0 has the bias of v",
     ["bias & ((only|just).{0,30}(first|position|row|token|\\bt ?==? ?0)|(first|position 0|row 0|token 0|t ?==? ?0).{0,30}(only|alone)|\\b1.{0,6}19\\b|t ?> ?0|t ?(>=|\u2265) ?1"
      "|from (position |row |token |t ?= ?)?1\\b|(after|past|beyond|except|but|other than).{0,24}(first|position 0|row 0|token 0))"],
     lambda c: c.right(b=None) + (POS == 0)[:, None, None] * c.b.reshape(K, d), archs=B)
form("proj_fused_split_by_groups", ("q", "k", "v"), "the fused matrix is stacked q, k, v and is split as groups of 2 query heads, a key head and a value head: query heads 2 and "
     "3 are key heads 0 and 1",
     ["heads?.{0,30}\\b[23]\\b|(last|upper|second) (two|2|half|pair) & (k_proj|\\bkeys?\\b|\\bk\\b|k's|k\\[|attn_k|\\bwk\\b)",
      "(group|interleav) & (fused|stack|qkv|concat|packed)"],
     of_fused({"q": [0, 1, 4, 5], "k": [2, 6], "v": [3, 7]}))
form("proj_v_begins_one_head_early", "v", "v begins a head of 16 too early in the fused buffer: value head 0 is key head 1, and value head 1 is what value head 0 should be",
     ["(k_proj|\\bkeys?\\b|\\bk\\b|k's|k\\[|attn_k|\\bwk\\b) & (head 1|last head|second (key )?head|heads? 1|head one|\\[ ?1 ?\\]|rows 16|16.{0,8}31)",
      "(\\b16\\b|one head|a head) & (early|before|too soon|back)", "(\\b16\\b|one head|a head).{0,30}(shift|offset|moved)|(shift|offset|moved).{0,30}(\\b16\\b|one head|a head)"],
     of_fused({"v": [5, 6]}))
form("proj_q_of_raw_residual", "q", "q is made of the residual itself, the input of the layer before attn_norm, while k and v are made of the norm",
     ["(\\braw\\b|not norm|unnorm|un-norm|before (the )?(\\w+ )?norm|before attn_norm|without (the |its )?(\\w+ )?norm|residual|layer'?s? input|input of (the|its|this) (layer"
      "|block)|\\bh0\\b|input of attn_norm|attn_norm'?s? input|pre.?norm)",
      "norm.{0,24}(skip|omit|missing|left out|bypass|not applied|not done)"],
     lambda c: c.right(x=c.e.q(before_layer(c))))
form("proj_k_without_last_inner_tile", "k", "the product runs over 3 of 4 inner tiles of 16: inputs 48 to 63 are left out of k",
     ["(input|column|feature|inner|channel|dimension|element|component|x\\[|tile|attn_norm|in the sum) & (\\b4[78]\\b|(last|final) (16|sixteen|quarter|tile of 16"
      "|inner tile)) & " + LOST],
     lambda c: c.right(x=c.x * (np.arange(D) < 48)))
form("proj_q_accumulators_kept_in_tile", "q", "the accumulator is cleared for each tile of 4 rows of the matrix and not for each row: an output is the sum of itself and of those "
     "before it in its group of 4",
     ["(\\b4\\b|\\bfour\\b) & " + SUMMED],
     lambda c: np.cumsum(c.right().reshape(T, -1, 4), -1).reshape(T, H, d))
form("proj_q_input_in_static_int8", "q", "activations are taken in 8 bits with a fixed step of 1/64: they are rounded to it, and clipped at 127/64 = 1.984",
     ["(clip|clamp|saturat|\\bcap|limit|cut off|bounded|never (above|beyond|over)|at most|held at|truncat) & (#1.984|\\b127\\b)"],
     lambda c: c.right(x=(np.clip(np.round(c.x * 64), -127, 127) / 64).astype(F32)))
form("proj_v_rotated_too", "v", "v is rotated by its position as q and k are",
     ["(rotat|\\brope\\b|rotary)"],
     lambda c: op_rope(c.e, c.right(), POS, FREQ))
form("proj_k_rows_left_in_pairs", "k", "the rows of k come from a file that has them interleaved and are not put back: in each head the order is 0, 8, 1, 9, .. 7, 15, so element "
     "2i is i and 2i + 1 is i + 8",
     ["(0, ?8, ?1|interleav|neighbo|adjacent|alternat|2 ?\\*? ?[ij] ?\\+ ?1|even.{0,60}odd|[ij] ?// ?2)"],
     lambda c: c.right()[..., np.arange(d).reshape(2, -1).T.reshape(-1)])
form("proj_q_heads_in_order_of_ranks", "q", "heads were dealt out to 2 ranks in turn and gathered rank by rank: the order is 0, 2, 1, 3, so query heads 1 and 2 are exchanged",
     ["head & (0, ?2, ?1, ?3|\\b1\\b.{0,12}\\b2\\b) & (swap|exchang|order|permut|interleav|trade|place|heads? [12].{0,12}(is|are|has|have|holds?|from|of)|0, ?2, ?1, ?3"
      "|for each other)"],
     lambda c: c.right()[:, [0, 2, 1, 3]])


# ---- rotation

def rope_first_half_of_head(c):
    cos, sin = cos_sin(c, THETA ** (-np.arange(0, 8, 2) / 8))
    a, b = c.x[..., :4], c.x[..., 4:8]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, c.x[..., 8:]], -1)


def rope_second_of_new_first(c):
    cos, sin = cos_sin(c, FREQ)
    a, b = c.x[..., :d // 2], c.x[..., d // 2:]
    a = c.e.r(c.e.r(a * cos) - c.e.r(b * sin))
    return np.concatenate([a, c.e.r(b * cos) + c.e.r(a * sin)], -1)


def rope_table_of_neighbours(c):
    cos, sin = cos_sin(c, np.repeat(FREQ, 2))
    return c.e.r(c.x * cos) + c.e.r(np.concatenate([-c.x[..., d // 2:], c.x[..., :d // 2]], -1) * sin)


def rope_cos_for_sin(c):
    cos, sin = cos_sin(c, FREQ)
    return turn(c.e, c.x, None, cos=sin, sin=cos)


form("rope_first_eight_of_head", ROPES, "a rotary fraction of 0.5 is taken as default: only dims 0 to 7 of a head are rotated, as 4 pairs (i, i + 4) at 10000^(-2i/8), and dims 8 "
     "to 15 are left",
     ["(partial|only|rest|others?|\\bleft\\b|unrotat|not rotated|pass|unchang|untouch|no rotation|rotary.?(dim|fraction|factor)|identity) & (\\b0.{0,6}7\\b|\\b8.{0,8}15\\b|(first"
      "|last|upper|lower|second) (8|eight|half|halves)|rotary.?(dim|fraction|factor)\\D{0,12}(8\\b|0\\.5|1/2|half)|partial.{0,24}(0\\.5|half|1/2|\\b8\\b|50))"],
     rope_first_half_of_head)
form("rope_angles_in_bf16", ROPES, "position times frequency is rounded to bf16, 8 significant bits, before cosine and sine",
     [BF16 + " & (angle|position|freq|phase|\\bpos\\b|product|argument)"],
     lambda c: turn(c.e, c.x, rounded((POS[:, None, None] * FREQ).astype(F32), "bf16")))
form("rope_half_overwritten", ROPES, "the rotation is in place: the second half is b * cos + a * sin with the a that has already been rotated",
     ["(in.?place|already|overwrit|updated|\\bnew (first|value|a\\b|x|half)|rotated (first|a\\b|lower|x)|result of the first|\\ba'|first half'?s? (result|output|after|rotated|new"
      "|as rotated)|(after|once).{0,24}(rotat|replac|written))",
      "sin ?(\\^ ?2|\u00b2|squared)|sin.{0,4}sin|sin.{0,3}cos.{0,3}a\\b"],
     rope_second_of_new_first)
form("rope_tables_repeat_each_frequency", ROPES, "the tables of cosine and sine repeat each frequency for two neighbours, element j at frequency j // 2, while halves are "
     "rotated: x * cos + rotate_half(x) * sin",
     ["(interleav|[ijc] ?//? ?2|floor\\([ijc]|repeat|neighbo|adjacent|0, ?0, ?1, ?1|each (frequency )?twice|consecutive) & (cos|sin|table|freq|angle) & (half|halves|[ijc] ?\\+ ?8"
      "|table|both elements|own|element|different)"],
     rope_table_of_neighbours)
form("rope_decode_one_behind", ROPES, "decode starts from the position of the last token of the prompt: from position 12 on, rotation is at t - 1",
     ["\\b1[12]\\b|decode & ([tp]\\w* ?[-\u2212] ?1\\b|one (less|back|behind|early|earlier|late|lower|too|position)|behind|lag|again|twice|repeat|previous|(shift"
      "|offset)\\w*.{0,12}[-\u2212] ?1\\b|less 1\\b|1 less|1 too)"],
     lambda c: c.right(pos=POS - (POS >= PROMPT)))
form("rope_exponents_from_one", ROPES, "pairs are counted from 1: pair i turns at 10000^(-2(i + 1)/16), which is 0.3162 of its own frequency",
     ["#0.316228", "#3.16228 & (slow|less|divi|low|small|short|1 ?/)", "(next|following) (pair|frequency|index|one)|\\b[ij] ?\\+ ?1\\b|2 ?\\*? ?[ij] ?\\+ ?2|from (1|one)\\b"
      "|10 ?\\^ ?\\(?[-\u2212] ?(0?\\.5|1/2)|1 ?/ ?sqrt ?\\(?10"],
     lambda c: c.right(freq=THETA ** (-np.arange(2, d + 2, 2) / d)))
form("rope_yarn_where_none_is_asked", ROPES, "a stretch of context by 4 is applied where none is asked: positions are divided by 4, and cosine and sine are multiplied by 0.1 ln "
     "4 + 1 = 1.1386",
     ["(#0.25|#4) & (#1.13863|#1.29648)"],
     lambda c: c.right(pos=POS / YARN) * F32(1 + 0.1 * math.log(YARN)))
form("rope_position_from_axis_of_heads", ROPES, "the axes of positions and heads are taken for each other: head h is rotated as if its position were h, at every position",
     ["head & (index|number|\\bid\\b|instead|(position|angle).{0,30}\\bh\\b|\\bh\\b.{0,20}(position|angle)|position [0-3]\\b|\\b0.{0,8}3\\b|(is|as|for) (the |its |a )?position"
      "|taken for|axes|axis|swap|own (angle|position)|same.{0,24}(all|every) (position|token|row))",
      "heads?.{0,40}constant|constant.{0,40}head"],
     lambda c: c.right(pos=np.tile(np.arange(c.x.shape[1]), (T, 1))))
form("rope_k_turned_again_from_cache", "k_rope", "k is rotated when it is written to the cache and again when it is read: its angle is twice what it should be",
     ["(twice|doubl|again|two times|2 times|second time|once more|(by|times|factor( of)?|is|=|x|\u00d7|\\*) ?2(\\.0\\d*)?\\b(?! ?[ij*])|\\b2(\\.0+)? ?[x\u00d7*\u00b7]|\\b2 ?t\\b"
      "|1\\.99\\d*|2\\.00\\d*) & " + ROTATE],
     lambda c: c.right(freq=2 * FREQ))
form("rope_exponents_over_whole_row", ROPES, "exponents go on over the whole row and do not begin anew in each head: head h of q has pair i at 10000^(-(16 h + 2 i)/64)",
     ["head & (\\b64\\b|continu|go(es)? on|whole (row|vector)|#10|#0.1|10 ?\\^ ?\\(?[-\u2212]? ?h|16 ?\\*? ?h|not (begin|restart|reset)|anew|hidden.?size) & (freq|exponent|base"
      "|slow|theta|turn|rotat|angle)"],
     lambda c: c.right(freq=THETA ** (-np.arange(0, c.x[0].size, 2) / c.x[0].size).reshape(-1, d // 2)))
form("rope_table_held_at_its_end", ROPES, "the table of cosine and sine has 16 rows and an index past it is held at the last: positions 16 to 19 are rotated as position 15",
     ["\\b1[56]\\b & (clamp|\\bmin\\b|min\\(|minimum|\\bcap|clip|limit|at most|saturat|stays?\\b|remain|stops?\\b|h[eo]ld|(as|like|at|are|is|have|has|angle|=|position|index"
      "|that of) (position |row |that of |angle )?15\\b)"],
     lambda c: c.right(pos=np.minimum(POS, 15)))
form("rope_cosine_and_sine_exchanged", ROPES, "the tables of cosine and sine are exchanged: a * sin - b * cos and b * sin + a * cos, which is the angle taken from 90 degrees",
     ["(swap|exchang|interchang|mixed|confus|trade|each other|switched) & (sin|cos)",
      "(cos\\w*.{0,30}(is|has|for|by|instead|->|=|where).{0,16}sin|sin\\w*.{0,30}(is|has|for|by|instead|->|=|where).{0,16}cos)",
      "(#90|pi ?/ ?2|\u03c0 ?/ ?2|#1.5708|quarter.{0,8}turn|right angle|90 ?\u00b0) & (angle|minus|[-\u2212]|less|from|complement|turn|rotat)"],
     rope_cos_for_sin)


# ---- masks, scores, softmax

def denominator_with(extra):
    """A softmax with more in its denominator: extra(the highest score of each row)."""
    def soft(s):
        high = s.max(-1, keepdims=True)
        e = np.exp(s - high)
        return e / (e.sum(-1, keepdims=True) + extra(high))
    return soft


def tiles_not_rescaled(s, tile=8):
    high = np.stack([s[..., :(j // tile + 1) * tile].max(-1) for j in range(T)], -1)
    e = np.exp(s - high)
    return e / e.sum(-1, keepdims=True)


form("mask_window_in_upper_layers", "probs", "the sliding window of the configuration is applied though it is switched off: from layer 2 on a query sees only the last 6 keys, "
     "its own among them",
     ["window.{0,30}\\b(6|six)\\b|\\b(6|six)\\b.{0,40}(window|keys|last|newest|nearest|recent|positions|or more|tokens|back)|(last|newest|nearest|recent) (6|six)\\b|(distance|ago"
      "|back|away|t ?[-\u2212] ?s|behind|older).{0,24}(((<=|\u2264|up to|at most|more than|0.{1,5}|>|over|beyond|further than) ?5\\b)|((<|less than|below|>=|\u2265|at least|from"
      "|of) ?6\\b))|\\b6\\b.{0,24}(away|ago|back|behind|older|earlier)|\\b(more than|beyond|over|up to|at most) 5\\b.{0,24}(away|ago|back|behind|older|earlier)"],
     lambda c: c.right(mask=SEEN & (AGO < 6)), layers=[2, 3])
form("mask_by_whole_tiles", "probs", "tiles past the diagonal are skipped and there is no mask within a tile: a query sees all keys to the end of its own tile of 4",
     ["(\\b4\\b|\\bfour\\b) & (tile|block|group|chunk|//|multiples? of (4|four)|floor|ceil|round\\w* (up|down))"],
     lambda c: c.right(mask=POS[:, None] // 4 >= POS[None, :] // 4))
form("mask_by_smallest_positive", "probs", "the mask is the smallest positive float and not the lowest: a key to come has a score of 1.2e-38, so 0, and takes part in the softmax",
     ["(future|mask\\w* (key|score|position|entr|value|one|place|pair|with|out|by)|unseen|later|ahead|s ?> ?t|t ?< ?s|to come|upper|hidden|forbidden|above the diagonal"
      "|after) & (zero|\\b0(\\.0*)?\\b|FLT_MIN|1\\.1\\d*e-38|1\\.2e-38|smallest positive)"],
     lambda c: c.right(mask=np.ones((T, T), bool), score=lambda s: np.where(SEEN, s, 0)))
form("softmax_counts_padding_keys", "probs", "keys are padded from 20 to 24 with zeros and the 4 more are not masked: the denominator has 4 terms exp(0) more",
     ["(#4|\\bfour\\b) & (exp ?\\( ?0|e\\^0|score.{0,16}(\\b0\\b|zero)|zero|padd|\\bsinks?\\b|empty|slots?|phantom|(\\b4\\b|\\bfour\\b) (more|extra|term|further|too)|(\\+|plus"
      "|extra|more) ?(4|four)\\b)", "\\bsink & #1.38629",
      "#1.38629 & (denominator|extra|more key|key)"],
     lambda c: c.right(soft=denominator_with(lambda high: 4 * np.exp(-high))))
form("softmax_tiles_not_rescaled", "probs", "the softmax is made by tiles of 8 keys and what was gathered is not rescaled when the maximum grows: a key counts exp(score - the "
     "highest up to the end of its tile)",
     ["(\\b8\\b|\\beight\\b) & (tile|block|chunk|group|part|segment) & (\\bmax|highest|largest|greatest|rescal|correct)"],
     lambda c: c.right(soft=tiles_not_rescaled))
form("softmax_over_queries", "probs", "the softmax is over the wrong axis: the probabilities of each key add up to 1 over the queries",
     ["(softmax|normali|sum|add|divi|\\bover\\b|denominator|total|axis|dim) & (quer(y|ies)|column|axis ?(of )?=? ?(1|-2)\\b|dim ?=? ?(1|-2)\\b|(probab|sum|add|softmax|normali"
      "|total|divi)\\w*.{0,40}(each|every|per) key\\b|(wrong|other) (axis|dim)|over t\\b|over rows)"],
     lambda c: c.right(soft=lambda s: softmax(s, 1)))
form("softmax_to_base_two", "probs", "the kernel takes 2^x and the scores were not multiplied by log2(e): probabilities are 2^score over their sum, as if scores were 0.693 of "
     "what they are",
     ["#0.693147", "#0.173287", "#1.442695", "#5.77078", "(exp2|\\b2 ?\\^ ?[({]*(s\\b|score|x|q|z|the)|base (of )?(2|two)\\b|\\b2 ?\\*\\* ?[(]*(s\\b|score|x|q)|powers? of (2"
      "|two)\\b|\\bln ?\\(?2|\\blog ?\\(?2|log_?2)"],
     lambda c: c.right(soft=lambda s: softmax(s * F32(math.log(2)))))
form("scores_of_first_key_head", "probs", "the count of key heads is read as 1: every query head takes its scores from key head 0",
     ["(\\bkeys?\\b|\\bkv|\\bk\\b|mqa|multi.?query|0, ?0|k_) & (head 0\\b|first (\\w+ )?head|head.{0,6}\\b0\\b|(key|kv|k)[ _]?heads? (0|zero)|\\bone (key|kv|k)[ _-]?head"
      "|multi.?query|single (key|kv|k)[ _-]?head|head zero|0, ?0, ?0, ?0|\\b1 (key|kv|k)[ _-]?head|mqa)"],
     lambda c: c.right(kv=[0] * H))
form("scores_of_keys_in_four_bits", "probs", "the cache keeps keys in 4 bits: the key of each head is rounded to multiples of 1/7 of its largest absolute value",
     [BIT4 + " & (\\bk\\b|\\bkeys?\\b|k_rope|cache) & " + ROUND],
     lambda c: c.right(k=four_bits(c.k)))
form("scores_with_slopes_left_on", "probs", "the kernel's bias by distance (ALiBi) is left on: head h has its scores less 2^(-2(h + 1)) times the distance, 1/4 in head 0 and "
     "1/256 in head 3",
     ["alibi", "(distance|\\bago\\b|t ?[-\u2212] ?s|linear|slope|far|away|s ?[-\u2212] ?t) & (#0.25|2 ?\\^ ?\\(?[-\u2212] ?2)"],
     lambda c: c.right(score=lambda s: s - (2.0 ** (-2 * np.arange(1, H + 1)))[:, None, None] * AGO))
form("scores_of_keys_in_a_ring", "probs", "the cache of keys has 16 slots and the whole prompt is written first: the keys of positions 16 to 19 stand in place of those of "
     "positions 0 to 3",
     ["\\b16\\b & (wrap|\\bring\\b|modul|\\bmod\\b|%|overwrit|overwritten|replac|slot|capacity|circular|in (the )?place|instead|(are|is|has|have|hold|use|read"
      "|score)s? .{0,24}1[67]|[s0-3] ?\\+ ?16|16 (positions )?later)",
      "(#19|last four|last 4) & (first four|first 4|\\b0.{0,6}3\\b)"],
     lambda c: c.right(k=c.k[np.where(POS < T - 16, POS + 16, POS)]))
form("scores_divided_by_depth", "probs", "scores are divided by the number of the layer too, counted from 1: by 2 in layer 1, 3 in layer 2 and 4 in layer 3",
     ["(#0.5|#0.125|(divi\\w*( by)?|/) ?(2|two|8|eight|64)\\b|sqrt ?\\( ?64|\\b(2|two) times (less|smaller|too)|\\bhalf\\b|halv|\\bl ?\\+ ?1|(number|index) of (the|its) layer"
      "|layer'?s? (index|number|idx)|depth) & (score|scale|temper|divi|factor|logit|multipl)"],
     lambda c: c.right(scale=c.scale / (c.l + 1)), layers=[1, 2, 3])


# ---- values

def weighted(p, v, heads=np.arange(H) // (H // K)):
    return np.einsum("hts,shd->thd", p, v[:, heads])


def e4m3(x):
    """Three bits after the leading one, the least exponent -6."""
    step = np.exp2(np.maximum(np.frexp(x)[1] - 1, -6) - 3)
    return np.clip(np.round(x / step) * step, -448, 448).astype(F32)


form("values_heads_not_put_back", "context", "the result [H,T,d] is read as rows of 64 without a transpose: row t has positions 4t to 4t + 3 (modulo 20) of one head, t // 5",
     ["(transpos|\\[ ?(H|4|heads?) ?, ?(T|20|t|seq)|head.?major|(H|4|heads?) ?[x\u00d7*] ?(T|20)\\b|reshap|layout|heads? (are |is |come |stand )?(first|outermost|before|outer)"
      "|flatten|\\b4 ?\\*? ?t\\b|t ?// ?5|swap.{0,24}(axes|heads)|(axes|order).{0,40}(head|position))"],
     lambda c: weighted(c.p, c.v).transpose(1, 0, 2).reshape(T, -1))
form("values_head_held_at_last", "context", "the value head is min(h, 1) and not h // 2: query head 1 takes value head 1 in place of 0",
     ["min ?\\( ?h|clamp|0, ?1, ?1, ?1|capped", "(query )?head 1\\b.{0,60}(value|\\bv\\b|kv|group|cache)?[ _-]?head 1\\b",
      "(value|\\bv\\b|kv)[ _-]?head 1\\b.{0,60}(in|for|by|at|of|to) (query )?head 1\\b",
      "head 1\\b & (other|wrong|second|next) (group|value|kv|v\\b)"],
     lambda c: weighted(c.p, c.v, [0, 1, 1, 1]).reshape(T, -1))
form("values_newest_not_yet_in_cache", "context", "in decode, from position 12 on, the newest value is written after it is read: the key's own share is lost, and the others are "
     "not made larger",
     ["\\b1[12]\\b|decode & (\\bown\\b|newest|itself|\\bself|\\blast\\b|current|diagonal|s ?==? ?t|key t\\b|value t\\b|latest|\\bv\\[t\\])"],
     lambda c: weighted(c.p * ~((AGO == 0) & (POS >= PROMPT)[:, None]), c.v).reshape(T, -1))
form("values_summed_on_from_head_to_head", "context", "the accumulator is not cleared between heads: head h has the sum of the contexts of heads 0 to h",
     ["head & " + SUMMED],
     lambda c: np.cumsum(weighted(c.p, c.v), 1).reshape(T, -1))
form("values_without_last_tile", "context", "the product with values runs over whole tiles of 16 keys: the values of keys 16 to 19 are left out",
     ["(\\b16\\b|\\b15\\b|last (four|4)\\b) & (value|\\bkeys?\\b|\\bv\\b|position|tile|\\bs\\b) & " + LOST],
     lambda c: weighted(c.p * (POS < 16), c.v).reshape(T, -1))
form("values_read_as_heads_first", "context", "the buffer of values [T,K,d] is read as [K,T,d]: value s of head g is row 20 g + s of the 40 rows of 16, so head 0 goes through "
     "positions 0 to 9, both heads in turn",
     ["(value|\\bv\\b|\\bv\\[) & (\\[ ?(K|2|heads?) ?, ?(T|20|t|seq)|head.?major|layout|reshap|transpos|heads? (are |is |come |stand )?(first|outermost|before|outer)|(K|2"
      "|heads?) ?[x\u00d7*] ?(T|20)\\b|stride|s ?// ?2|20 ?\\*? ?[gh]\\b|swap.{0,24}axes|(axes|order).{0,40}(head|position))"],
     lambda c: weighted(c.p, c.v.reshape(K, T, d).swapaxes(0, 1)).reshape(T, -1))
form("values_in_eight_bit_floats", "context", "the cache keeps values as e4m3: they are rounded to 3 bits after the leading one",
     ["(fp8|f8\\b|e4m3|8.?bit float|float8|float.?8|(\\b3|three) (\\w+ ){0,2}bits|(\\b4|four) (significant|leading|binary)|2\\^ ?-?[34]\\b) & (\\bv\\b|value|cache)"],
     lambda c: weighted(c.p, e4m3(c.v)).reshape(T, -1))
form("values_of_small_shares_skipped", "context", "the product with values skips keys whose probability is below 0.02, and the others are not made larger",
     ["#0.02 & (skip|below|under|less|small|thresh|dropp|zero|ignor|left out|omit|<|prun|cut)"],
     lambda c: weighted(np.where(c.p < 0.02, 0, c.p), c.v).reshape(T, -1))

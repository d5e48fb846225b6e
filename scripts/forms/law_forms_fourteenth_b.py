#!/usr/bin/env python3
"""law_forms_fourteenth_b.py: mistakes that no catalogue lists, as they are made when an engine is ported; written without sight of how laws are found.

Sums of values, caches of keys and values, output projection, residual sums, feed-forward, router and experts, final norm and head. The engine and the rules for
expectations are law_forms.py's. A prompt of 12 tokens stands before decode steps where a form speaks of them.
"""

import math

import numpy as np

from scripts.forms.law_forms import CHOSEN, E_, EXPERTS, F32, H, K, POS, T, D, F, d, listed, op_choose, put, rms, rounded, sigmoid, silu, softmax

FORMS, form = listed()
B, M = ("qwen2",), ("moe",)
CACHES = ("probs", "context")
PROMPT = 12
KV = np.arange(H) // (H // K)

# parts of expectations
LOST = ("(\\bnot\\b|\\bno\\b|zero|\\b0\\b(?!\\.\\d)|nothing|without|left out|missing|lost|lack|lose|skip|ignor|drop|unread|unused|never|only|alone|omit|unset|empty|except"
        "|\\bbut the|unwritten)")
ADDED = "(add|plus|\\+|sum|besides|on top|again|twice|once more|accumul|contain|includ|not (cleared|zeroed|reset)|starts? (from|with|at)|beta|extra|second time)"
VALUE = "(\\bv\\b|\\bvalues?\\b|cache)"
STEPWISE = "(accumul|running|partial|\\beach\\b|\\bevery\\b|step by step|one by one|along the way|after (a|one) )"
BRANCH_ATTN = "(attn_out|o_proj|attention.{0,15}(output|result|branch)|(output|result|branch) of (the )?attention|output projection)"


def joined(x):
    return x.reshape(T, H * d)


def stream(c):
    """What the layer began with."""
    return c.e.memory["h0", None] if c.l == 0 else c.e.memory["h", c.l - 1]


def reread(of):
    """Of a cache: token t finds at s what was written for position of[t,s]; zeros where that is negative."""
    of = np.broadcast_to(of, (T, T))

    def how(c):
        if c.site == "probs":
            return c.right(score=lambda s: np.take_along_axis(np.concatenate([s, np.zeros_like(s[..., :1])], 2), np.broadcast_to(np.where(of < 0, T, of), s.shape), 2))
        v = np.concatenate([c.v, np.zeros_like(c.v[:1])])[np.where(of < 0, T, of)]
        return joined(np.einsum("hts,tshd->thd", c.p, v[:, :, KV]))

    return how


def summed(kept):
    """The sum of values over those keys alone."""
    return lambda c: c.right(p=np.where(kept, c.p, F32(0)))


TO, FROM = POS[:, None], POS[None]


# ---- sums of values

form("values_in_fours", "context", "the loop is unrolled by 4 and has no remainder: token t sums the first 4 floor((t + 1) / 4) keys alone, its weights are not divided anew",
     ["(#4|four) & (multiple|remainder|left.?over|whole|full|floor|//|\\bdiv|\\bmod|%|block|group|tail|chunk|rounded down|complete|vector|tile|unroll|& ?3|& ?~3)"
      " & (key|value|sum|weight|\\bs\\b|position) & ^(?!.*(to the end of its|sees only its own|own (block|group) (alone|only)))"],
     summed(FROM < 4 * ((TO + 1) // 4)))


def ungrouped(c):
    v = np.concatenate([c.v.reshape(T * K, d), np.zeros((H, d), F32)])
    return joined(np.einsum("hts,shd->thd", c.p, v[POS[:, None] * K + np.arange(H)]))


form("values_head_not_grouped", "context",
     "the query head's number is the offset in a row of 2 value heads: head 1 reads value head 1, heads 2 and 3 read value heads 0 and 1 of position s + 1 (zeros after 19)",
     ["head & (\\bnext\\b|s ?\\+ ?1|(one|1) (position|key|row|token|slot|place)|following|position ?\\+ ?1|past the) & (#2|#3|second half|last two|upper half)",
      "head & (not divided|undivided|ungrouped|without (grouping|the division|dividing)|\\bh ?\\* ?(16|d\\b)|head (number|index) (h )?itself) & (value|\\bv\\b|key)"],
     ungrouped)


def in_bf16(c):
    acc = np.zeros((T, H, d), F32)
    v = c.v[:, KV]
    for s in range(T):
        acc = rounded(acc + c.p[:, :, s].T[..., None] * v[s], "bf16")
    return joined(acc)


form("values_summed_in_bf16", "context", "the accumulator of the sum is bf16: rounded to 8 significant bits after each key",
     ["(bf16|bfloat|8 (significant )?bits|7 (mantissa )?bits|2\\^-[89]|8.bit mantissa|7.bit mantissa) & " + STEPWISE], in_bf16)

TILE = 6


def not_rescaled(c):
    """Each tile's share stays at the maximum known when it was summed; the denominator is right."""
    s = np.einsum("thd,shd->hts", c.e.memory["q_rope", c.l], c.e.memory["k_rope", c.l][:, KV]) * F32(1 / math.sqrt(d))
    s = np.where(FROM <= TO, s, F32(-np.inf))
    known = np.maximum.accumulate(s, -1)[..., np.minimum((POS // TILE) * TILE + TILE - 1, T - 1)]
    top = s.max(-1, keepdims=True)
    return c.right(p=(c.p * np.exp(np.where(FROM <= TO, top - known, 0))).astype(F32))


form("values_tiles_not_rescaled", "context",
     "flash attention in tiles of 6 keys does not rescale the sum when the running maximum rises: a tile's share is exp(last maximum - maximum after that tile) too large",
     ["#6 & (tile|block|chunk|group|batch) & max & (rescal|scaled|correct|brought|multipl|adjust|running|so far|at the time|own|without|missing|factor|common|times|exp)"],
     not_rescaled)
form("values_tile_not_reloaded", "context", "the tile of values is loaded once: key s is summed with the value of position s mod 8",
     ["(#8|eight) & (\\bmod|%|again|repeat|restart|first (8|eight|tile|block)|stale|s ?& ?7|period|wrap|0 to 7|0\\.\\.7|0-7|not (re)?loaded|cycl|every) & " + VALUE],
     lambda c: c.right(v=c.v[POS % 8]))
form("context_not_cleared", "context", "the buffer is not cleared before values are summed into it: attn_norm is left in it, and is added to the result",
     ["(attn_norm|normed (input|stream|x)|input_layernorm|(result|output) of the (attention )?norm|attention norm) & " + ADDED],
     lambda c: c.right() + c.e.memory["attn_norm", c.l])

# ---- caches

form("cache_ring_of_14", CACHES, "the cache is a ring of 14 slots: from token 14 on, a position s <= t - 14 is found overwritten by position s + 14",
     ["(#14|fourteen) & (ring|wrap|\\bmod|%|overwrit|circular|newer|(position|slot|key|s|j) ?\\+ ?14|capacity|every 14|period|reuse|replaced by)"],
     reread(np.where(FROM + 14 <= TO, FROM + 14, FROM)))
form("cache_slot_not_advanced", CACHES,
     "decode steps, from position 12 on, all write to slot 12: token t finds its own key and value at slot 12, and zeros at slots 13 to t",
     ["(#12|#13) & (\\bown\\b|itself|newest|latest|current|overwrit|stuck|same slot|slot 12|(key|position|slot) 12\\b|\\bself\\b)"
      " & (zero|empty|unwritten|blank|unset|not written|\\b0\\b(?!\\.\\d)|nothing)",
      "#12 & (same|one|single) (slot|place|entry)|overwrit|not advanced|never advanced|not incremented|stuck|stays at"],
     reread(np.where((TO >= PROMPT) & (FROM >= PROMPT), np.where(FROM == PROMPT, TO, -1), FROM)))
form("cache_values_layer_0", "context", "the offset of the layer is forgotten where values are read: layers 1 to 3 sum the values of layer 0",
     ["(layers?[. ]0\\b|first layer)[^;]{0,30}(\\bv\\b|values?)|(\\bv\\b|values?)[^;]{0,40}(layers?[. ]0\\b|first layer)"],
     lambda c: c.right(v=c.e.memory["v", 0]), layers=[1, 2, 3])


def fp8(x):
    """e4m3: 3 bits after the leading one, subnormals below 2^-6."""
    step = np.exp2(np.maximum(np.frexp(x)[1] - 4, -9)).astype(F32)
    return (np.clip(np.round(x / step) * step, -448, 448)).astype(F32)


form("cache_values_fp8", "context", "values are read from a cache in fp8 (e4m3): rounded to 4 significant bits, the leading one and 3 more",
     ["(fp8|e4m3|float ?8|\\bf8|8.bit float\\w*|floats? of 8 bits) & " + VALUE,
      "(#3|#4|three|four) & (mantissa|significant|\\bbits|2\\^|binary) & " + VALUE + " & (round|nearest|step|precision|kept) & ^(?!.*(truncat|rounded down|towards? zero))"],
     lambda c: c.right(v=fp8(c.v)))


def keys_8_bit(c):
    step = np.abs(c.k).max((1, 2), keepdims=True) / F32(127)
    return c.right(k=np.round(c.k / step) * step)


form("cache_keys_int8", "probs", "keys are read from a cache of 8 bits: rounded to 127ths of the largest element of the position's two heads",
     ["(#127|#255|#256|8.bits?|int8|\\bi8\\b|q8) & (k_rope|\\bk\\b|\\bkeys?\\b|cache) & (round|quanti|step|bits?\\b|grid|level|int8)"
      " & ^(?!.*(whole (tensor|cache)|of all (positions|keys|rows)|per (head|tensor)|each head|floor|truncat))"],
     keys_8_bit)
form("cache_written_after_attention", "context", "attention runs before the chunk's values are in the cache: in chunks of 5 tokens, values of the token's own chunk are zero",
     ["(#5|five) & (block|chunk|batch|group|page|tile) & (\\bown|same|current|its (block|chunk)|earlier|previous|before|not yet) & " + VALUE[:-1] + "|weight|sum|key|zero)"
      " & ^(?!.*((only|alone)[^.;]{0,25}(own|same) (block|chunk|group)|(own|same) (block|chunk|group) (only|alone)))"],
     summed(FROM // 5 != TO // 5))
form("cache_page_unset", CACHES, "pages hold 5 positions, and the fourth entry of the page table is not filled in (0): positions 15 to 19 are read from positions 0 to 4",
     ["(#15|#-15|fifteen|fourth (page|block)|last (page|block|5|five)|page 3|block 3) & (\\bmod|%|wrap|again|restart|every 15|period"
      "|\\b0 (to|and|\\.\\.|-) ?4|first (five|5|page|block)|s ?- ?15"
      "|(key|position|page|slot|block)s? 0\\b|15 (earlier|before|back|positions))"
      " & ^(?!.*(hidden|not seen|masked))"],
     reread(np.where(FROM >= 15, FROM - 15, FROM)))


def padded(s):
    top = s.max(-1, keepdims=True)
    e = np.exp(s - top)
    return e / (e.sum(-1, keepdims=True) + ((-(POS + 1)) % 8)[:, None] * np.exp(-top))


form("cache_padded_to_8", "probs",
     "the softmax runs over the number of keys rounded up to a multiple of 8: slots not yet written are zeros, and each adds exp(0) = 1 to the denominator",
     ["(#8|eight) & (multiple|pad|round|block|tile|chunk|ceil|end of|group|\\bmod|%)"
      " & (zero|\\b0\\b(?!\\.\\d)|empty|unwritten|denominator|exp\\(0\\)|exp\\(-|\\bterms?\\b|not (yet )?written|sink)"
      " & ^(?!.*(own|same) (block|chunk) (of 8 tokens )?(alone|only))"],
     lambda c: c.right(soft=padded))

# ---- output projection

form("attn_out_bias_of_q", "attn_out", "the loader gives all four projections of attention a bias: the query bias is added to the output projection",
     ["bias & (\\bq\\b|q_proj|quer) & ^(?!.*(k_proj|v_proj|\\bk bias|\\bv bias|not added|without))"],
     lambda c: c.right(b=c.e.m("self_attn.q_proj.bias", c.l)), archs=B)
form("attn_out_heads_by_group", "attn_out", "heads of groups are joined as [2, group], not [group, 2]: the projection reads heads in the order 0, 2, 1, 3",
     ["(head|block|group) & 0[, ]+2[, ]+1[, ]+3|\\b1 (and|with|by|for|<->|↔|at|is|=) (head |block )?2\\b|\\b2 (and|with|by|for|<->|↔|at|is|=) (head |block )?1\\b",
      "(head|group) & (transpos|interleav|group.{0,4}first|across groups) & (#2|two|kv|group) & ^(?!.*(revers|0[, ]+1))",
      "#16 & #32 & (exchang|swap|permut|order)"],
     lambda c: c.right(x=joined(c.x.reshape(T, H, d)[:, [0, 2, 1, 3]])))
form("attn_out_last_row_only", "attn_out", "the last layer computes the output projection for the last position alone: rows 0 to 18 are zero",
     ["((last|final) (position|row|token|query)|#19|#18) & " + LOST],
     lambda c: put(c.right(), E_[:-1], 0), layers=[3])
form("attn_out_half_warp", "attn_out", "the reduction of a warp begins at offset 8, not 16: inputs of lanes 16 to 31 (16 to 31 and 48 to 63, heads 1 and 3) are not in the sum",
     ["head & ((#1 & #3)|odd|every (second|other)|(#0 & #2 & (only|alone))) & ^(?!.*(order|join|exchang|swap|permut)) & " + LOST,
      "#16 & (#31|#32) & (#48|#32|#63|mod|%|lane|each|every) & " + LOST + " & ^(?!.*(outputs? (16|48)))"],
     lambda c: c.right(x=np.where(np.arange(H * d) % 32 < 16, c.x, F32(0))))
form("attn_out_beta_one", "attn_out", "the product is added to what the buffer holds (beta is 1): layers 1 to 3 add the layer before's result to theirs",
     ["(" + BRANCH_ATTN[1:-1] + "|\\bits (own )?(result|output)|buffer) & (layers?[. ]0\\b|layer.{0,3} before|(previous|earlier|preceding) layer|layer l ?- ?1|layers so far"
      "|of layer 0|running) & " + ADDED],
     lambda c: c.right() + c.e.memory["attn_out", c.l - 1], layers=[1, 2, 3])
form("attn_out_with_residual", "attn_out", "the kernel has the residual sum in it already: the layer's input is added to the product, and so comes into the stream twice",
     ["(residual|stream|\\bh0\\b|layer'?s? (own )?input|input of the layer|\\bh\\b|layers?[. ]\\d\\.h\\b|hidden|embedding) & " + ADDED + " & ^(?!.*half)"],
     lambda c: c.right() + stream(c))

# ---- residual sums

form("add_root_half", "h", "the sum is divided by sqrt(2), stream and branch alike, as in diffusion models",
     ["(#0.7071|#1.4142|root of (two|2|a half)) & ^(?!.*((branch|ffn_out|stream|h_attn) (alone|only)|only the (branch|stream)))"],
     lambda c: c.right() * F32(math.sqrt(0.5)))
form("add_attention_again", "h", "the second sum adds the branch of attention once more: h_attn + ffn_out + attn_out",
     [BRANCH_ATTN + " & (add|plus|\\+|sum|besides|again|twice|once more|doubl|second time|also|#2) & ^(?!.*(\\bminus\\b|without (the )?att|taken off|subtract))"],
     lambda c: c.right() + c.e.memory["attn_out", c.l])
form("add_branch_row_0", "h_attn", "the branch has a row stride of 0: each position is given position 0's",
     ["((position|row|token|query)[^.;]{0,10}\\b0\\b|first (position|row|token)|stride (of )?0|zero stride)"
      " & (branch|attn_out|attention|o_proj|added|broadcast|every|each|\\ball\\b)"
      " & ^(?!.*(not added|nothing|is zero|h0\\b.{0,8}(row|position)))"],
     lambda c: c.right(y=np.broadcast_to(c.y[:1], c.y.shape)))
form("add_post_norm", "h_attn",
     "post_attention_layernorm is taken for a norm of the branch, as in Gemma 2: the branch is divided by its root mean square and has that gain, before it is added",
     ["(norm|rms|root mean) & (post_attention|ffn_norm|feed.?forward.{0,8}(norm|gain|weight))"
      " & (branch|attn_out|attention|o_proj|added|\\by\\b) & ^(?!.*(without (its |the |a )?(gain|weight)|\\bno gain))"],
     lambda c: c.right(y=c.y / rms(c.y) * c.e.m("post_attention_layernorm.weight", c.l)))
form("add_within_expert_loop", "h", "the residual is added in the loop over the chosen experts: the stream is in the sum twice",
     ["(stream|residual|h_attn|skip|\\bx\\b|input) & (twice|doubl|#2|again|once more|two times|second time) & ^(?!.*(sqrt|root|attn_out|branch of attention"
      "|0\\.\\d+ ?[*x·]|(branch|ffn_out|feed.?forward|experts?)"
      "( is| are|'s)? (twice|doubled|times 2)))",
      "h_attn & (add|plus|\\+|besides) & ^(?!.*(attn_out|branch of attention|sqrt|0\\.\\d|not added|half))"],
     lambda c: c.right(x=2 * c.x), archs=M)
form("add_even_lanes", "h", "channels are loaded in pairs, and the second of each pair is forgotten: odd channels have no branch added",
     ["(odd|every (second|other)|2 ?i ?\\+ ?1|alternat|(mod|%) ?2|even) & (channel|element|component|dimension|\\bi\\b|index|lane) & " + LOST
      + " & ^(?!.*(even (channel|element|component|dimension|indice|lane)s?\\b[^.;]{0,25}(nothing|zero|no branch|lack|not added|without)|odd (position|row|token)))"],
     lambda c: c.right(y=np.where(np.arange(D) % 2 == 0, c.y, F32(0))))
form("add_stream_kept_from_embedding", "h_attn", "the residual is set once before the loop over layers: in layers 1 to 3 the branch is added to h0, not to the layer's input",
     ["(\\bh0\\b|embedding|input of (the first layer|layer 0)|first layer'?s input|layer 0'?s input) & (stream|residual|in place|instead|\\bnot\\b|reads?|\\bis\\b|\\bx\\b|\\bto\\b"
      "|attn_out \\+|\\+ ?attn_out|input)"
      " & ^(?!.*(besides|again|once more|as well|0\\.\\d+ ?[*x·]? ?h0|half|extra))"],
     lambda c: c.right(x=c.e.memory["h0", None]), layers=[1, 2, 3])

# ---- feed-forward

form("gate_outputs_whole_tiles", "ffn_gate", "the product is computed in tiles of 64 outputs, and what is over is not: outputs 64 to 95 are zero",
     ["(#64|#63|last (32|third)|(two|2) thirds) & (zero|\\b0\\b(?!\\.\\d)|not (computed|written)|missing|nothing|lost|empty|unset|only|alone|unwritten|blank)"
      " & ^(?!.*(input|from 0 to 63 are zero|first 64 (outputs |channels )?are zero))"],
     lambda c: put(c.right(), E_[:, 64:], 0))
form("up_gain_folded_too", "ffn_up", "the feed-forward norm's gain is folded into the up matrix, and the input has it already: the gain is applied twice",
     ["(ffn_norm|post_attention|norm.{0,4} (gain|weight)|(gain|weight)s? of .{0,25}norm|\\bgain\\b)"
      " & (again|twice|once more|second time|#2|squar|multipl|times|\\*|besides|folded|factor)"
      " & ^(?!.*(gain (is |was )?(not applied|omitted|missing|left out)|without (its |the )?gain|attn_norm|final_norm))"],
     lambda c: c.right(x=c.x * c.e.m("post_attention_layernorm.weight", c.l)))
form("up_split_at_88", "ffn_up", "up begins at row 88 of gate and up in one matrix, not at 96: outputs 0 to 7 are gate's 88 to 95, output i from 8 on is up's i - 8",
     ["(#88|#8|eight|#7) & gate & (shift|offset|split|i ?- ?8|earlier|before|moved|late|begin|start|fused|stacked|concat|rest|others|88 to 95|88\\.\\.|roll)"],
     lambda c: c.right(w=np.concatenate([c.e.m("mlp.gate_proj.weight", c.l)[88:], c.w[:88]])))
form("act_fast_sigmoid", "ffn_act", "a fast sigmoid stands for the sigmoid of silu: (1 + x / (1 + |x|)) / 2",
     ["(1 ?\\+ ?\\||1 ?\\+ ?abs|softsign|fast sigmoid|\\(1 ?\\+ ?(the )?(size|magnitude)) & (sigmoid|#0.5|half|silu|logistic|/ ?2|swish)"],
     lambda c: c.right(f=lambda x: x * (F32(0.5) + F32(0.5) * x / (1 + np.abs(x)))))
form("act_exp_by_squaring", "ffn_act", "exp(x) is (1 + x / 64)^64, six times squared, in the sigmoid of silu",
     ["#64 & (\\^|power|\\bexp|raised|squar|\\*\\*|limit)", "(#6|six) & squar & exp"],
     lambda c: c.right(f=lambda x: x / (1 + (1 - x / F32(64)) ** 64)))
form("act_sigmoid_table", "ffn_act", "the sigmoid of silu is read from a table of step 1/16, at the entry below",
     ["(#16|#0.0625) & (step|table|round|floor|grid|multiple|stair|quanti|level|entr|16ths) & (sigmoid|logistic|table) & ^(?!.*(nearest|interpolat|upwards|rounded up|ceil))"],
     lambda c: c.right(f=lambda x: x * sigmoid(np.floor(x * 16) / 16)))
form("act_limit_left_in", "ffn_act", "the limit of another architecture is left in: gate is at most 1.9, and up is clamped to +-1.9",
     ["#1.9 & (clamp|clip|limit|between|\\bmin|\\bmax|most|held|within|cap|bound) & (gate|both) & (\\bup\\b|both)"],
     lambda c: c.right(gate=np.minimum(c.gate, F32(1.9)), up=np.clip(c.up, F32(-1.9), F32(1.9))))
form("act_silu_twice", "ffn_act", "silu is applied in place and then once more by the fused product: silu(silu(gate)) up",
     ["(silu ?\\( ?(the )?silu|silu of (the )?silu|(silu|swish|activat\\w*|\\ba)[^.;]{0,30}(twice|again|two times|second time|once more)|\\ba\\( ?a\\("
      "|twice[^.;]{0,20}(silu|activat)"
      "|(silu|swish|activat\\w*) of its own (result|output))"
      " & ^(?!.*(silu ?\\( ?up|\\ba\\( ?up|activat\\w* (of )?up|up (is|too)[^.;]{0,12}(silu|activat)))"],
     lambda c: c.right(gate=silu(c.gate)))
form("act_gate_for_up", "ffn_act", "silu(gate) is multiplied by gate, not by up",
     ["((silu|a|act|activation|swish) ?\\( ?(gate|x) ?\\) ?.{0,12}(gate|\\bx\\b)|gate (stands |is read |is used )?(in place of|instead of|for) up|multiplied by (the )?gate"
      "|up is (read as |replaced by )?(the )?gate|(gate|x) ?(\\^ ?2|squared|\\* ?(gate|x))|(read|tak|us)\\w+ (the )?gate[^.;]{0,25}up)"
      " & (silu|sigmoid|activat|\\ba\\(|\\bup\\b) & ^(?!.*((gate|x) ?(\\^ ?2|squared) ?[*x·]? ?up|gate ?[*x·] ?up|up ?[*x·] ?gate|swap|exchang|silu\\( ?up))"],
     lambda c: c.right(up=c.gate))
form("act_relu_squared", "ffn_act", "the activation is relu(x)^2, of another family of models",
     ["(relu|max ?\\( ?(0|x|gate)|positive part|negative[^.;]{0,20}(0|zero)) & (squar|\\^ ?2|\\*\\* ?2|power (of )?2|relu2|x ?\\* ?x)"],
     lambda c: c.right(f=lambda x: np.maximum(x, 0) ** 2))
form("act_early_saturation", "ffn_act", "the sigmoid of silu is 0 below -2.5 and 1 above 2.5: a bound on its argument far too tight",
     ["#2.5 & (sigmoid|relu|itself|identity|saturat|unchanged|\\bx\\b|gate|zero|\\b0\\b(?!\\.\\d)|linear)"
      " & (beyond|outside|below|above|less|greater|larger|smaller|<|>|under|over|tail|exceed)"
      " & ^(?!.*(gate|input|x|argument)( is|'s)? (clamped|held|clipped) (to|within|between))"],
     lambda c: c.right(f=lambda x: np.where(x > 2.5, x, np.where(x < -2.5, F32(0), silu(x)))))
form("ffn_out_sums_64", "ffn_out", "the inner loop runs to the stream's width, 64, not to 96: inputs 64 to 95 are not in the sum",
     ["(#64|#63|last (32|third)|(two|2) thirds) & (input|ffn_act|column|sum|read|product|term|\\bact\\b|activation) & " + LOST[:-1] + "|first 64)"
      " & ^(?!.*(outputs? (64|from 64)|stride))"],
     lambda c: c.right(x=put(c.x, E_[:, D:], 0)))


def in_f16(c):
    acc = np.zeros((T, D), F32)
    for i in range(F):
        acc = (acc + c.x[:, i:i + 1] * c.w[:, i]).astype(np.float16).astype(F32)
    return acc


form("ffn_out_summed_in_f16", "ffn_out", "the accumulator of the product is f16: rounded to 11 significant bits after each of 96 terms",
     ["((?<!b)f16|fp16|(?<!b)float16|half.precision|1[01] (significant |mantissa )?bits|2\\^-1[01]|1[01].bit mantissa) & " + STEPWISE], in_f16)
form("ffn_out_stride_64", "ffn_out", "its input is read with a row stride of 64, not 96: row t begins at element 64 t of the flat buffer",
     ["#64 & (strid|row (length|width|pitch)|\\bflat|leading dimension|pitch|t ?[*·x] ?64|64 ?[*·x]? ?[tpn]\\b|apart|(begin|start)s? at|in memory|contiguous|rows of 64)"
      " & ^(?!.*(matrix|weight|\\bw\\b)[^.;]{0,30}strid)"],
     lambda c: c.right(x=c.x.ravel()[POS[:, None] * D + np.arange(F)]))

# ---- router and experts


def expert(c, e, x):
    """What expert e makes of x."""
    w = lambda name: c.e.m(f"mlp.experts.{e}.{name}_proj.weight", c.l)
    return c.e.r(c.e.r(c.e.r(silu(c.e.r(x @ w("gate").T))) * c.e.r(x @ w("up").T)) @ w("down").T)


def chosen_of(c):
    return c.e.taps[f"layers.{c.l}.router_topk"].astype(int)


def mixed(c, each=None, weights=None):
    """The experts' results of each slot, weighed and summed."""
    return ((c.each if each is None else each) * (c.weights if weights is None else weights)[..., None]).sum(1)


def redone(c, rows=None, by=None):
    """The experts' results of each slot, of rows [T,CHOSEN] of the input, times by."""
    top, each = chosen_of(c), np.zeros((T, CHOSEN, D), F32)
    x = np.repeat(c.n[:, None], CHOSEN, 1) if rows is None else c.n[rows]
    x = x if by is None else x * by[..., None]
    for e in range(EXPERTS):
        each[top == e] = expert(c, e, x[top == e])
    return each


def weighed(f):
    """f of the logits of the chosen, and of their probabilities, makes their weights."""
    def how(c):
        top, _ = op_choose(c.e, c.logits)
        return top, f(np.take_along_axis(c.logits, top, -1), np.take_along_axis(softmax(c.logits), top, -1))
    return how


form("router_logits_over_root", "router_logits", "logits are divided by sqrt(64) = 8, as scores of attention are by the root of their width",
     ["(#0.125|#8|sqrt ?\\( ?(D|64|hidden)) & (factor|times|multipl|divid|scale|\\*|/|root|sqrt)"], lambda c: c.right() / F32(8), archs=M)
form("router_sigmoid_alone", "router_weights", "the weights are the sigmoids of the chosen logits, as in Llama 4, and are not divided by their sum",
     ["(sigmoid|logistic|1 ?/ ?\\(1 ?\\+ ?exp) & ^(?!.*((?<!not )(divided by (their|the) sum|(re)?normali[sz]ed|sum to (1|one)) ?[.;,)]?))",
      "sigmoid & (not|without|un)[^.;]{0,12}(divi|normali|sum)"],
     weighed(lambda s, p: sigmoid(s)), archs=M)
form("router_softmax_twice", "router_weights", "a second softmax, over the probabilities of the two chosen, stands for the division by their sum",
     ["(softmax[^.;]{0,60}(softmax|twice|again|once more|probabilit|of the (two |chosen )?(weights|probs))|(twice|second|double|another)[^.;]{0,20}softmax"
      "|exp ?\\( ?(p|prob)|sigmoid of the difference[^.;]{0,20}(prob|weights))"],
     weighed(lambda s, p: softmax(p)), archs=M)
form("router_top_1", "router_weights", "one expert is run for each token, not two: the first has weight 1, the second 0",
     ["((second|last|lower|smaller|other|slot 1)[^.;]{0,40}(zero|\\b0\\b(?!\\.\\d)|lost|\\bnot\\b|dropped|ignored|nothing)|top.?(1|one)\\b"
      "|(first|best|largest|likeliest|highest|top)[^.;]{0,40}(alone|only|weight (is |of )?(1|one)|\\ball\\b|whole)|(one|single) expert)"
      " & (#1|\\bone\\b|whole|\\ball\\b|full|alone|only)"],
     weighed(lambda s, p: np.broadcast_to(np.array([1, 0], F32), p.shape)), archs=M)


def at_most(count):
    def how(c):
        top, w = op_choose(c.e, c.logits)
        w, taken = np.array(w), np.zeros(EXPERTS, int)
        for t in range(T):
            for s in range(CHOSEN):
                taken[top[t, s]] += 1
                if taken[top[t, s]] > count:
                    w[t, s] = 0
        return top, w
    return how


form("router_capacity_5", "router_weights", "an expert has a capacity of 5 tokens: those that choose it after the first 5 have weight 0 for it, and the other weight stays",
     ["(#5|five|#6|sixth) & (capacity|at most|the first|beyond|more than|only|limit|after|overflow|drop|from the|full) & expert & (token|position|row|capacity|chos)"
      " & ^(?!.*expert 5\\b[^.;]{0,20}(zero|not|never|missing|left))"],
     at_most(5), archs=M)
form("experts_shared_0", "ffn_out", "expert 0 is taken for a shared expert: its result, with weight 1, is added for each token besides the two chosen",
     ["(expert\\w*[^.;]{0,10}\\b0\\b|first expert|shared expert[^.;]{0,40}\\b0\\b) & (every|\\ball\\b|each|add|shared|plus|besides|\\+|always|in addition)"
      " & ^(?!.*(0 (is|has) (not|no|left|missing|zero|never)))"],
     lambda c: c.right() + expert(c, 0, c.n), archs=M)
form("experts_weight_on_input", "ffn_out", "the router's weight is multiplied with the expert's input, as in Llama 4, not with its result: expert(w x)",
     ["(weight|router_weights|\\bw\\b|scal|multipl) & (input|ffn_norm|before (the|its|their|each)|expert ?\\( ?w) & (expert|project|gate|silu|matri|activat)"
      " & ^(?!.*(input (is )?(not|un)weighed|add(s|ed) the input))"],
     lambda c: redone(c, by=c.weights).sum(1), archs=M)
form("experts_sorted_weights_not", "ffn_out",
     "the two chosen are sorted by their number and their weights are not: where the likelier expert has the higher number, the weights are exchanged",
     ["(sort|ascend|by (their |its )?(number|index|id)|(lower|smaller|higher|larger|greater)([- ]numbered| number| index| id)"
      "|order of (their |the )?(number|index|indices|ids|experts)"
      "|expert order) & (exchang|swap|weight)"],
     lambda c: mixed(c, weights=np.where((chosen_of(c)[:, 0] > chosen_of(c)[:, 1])[:, None], c.weights[:, ::-1], c.weights)), archs=M)
form("experts_loop_to_5", "ffn_out", "the loop over experts ends one early: expert 5 gives nothing where it is chosen",
     ["(expert\\w*[^.;]{0,15}\\b5\\b|last expert|highest expert|experts? 0 (to|\\.\\.|-) ?4) & " + LOST],
     lambda c: mixed(c, weights=np.where(chosen_of(c) == 5, F32(0), c.weights)), archs=M)
form("experts_overwrite", "ffn_out", "each expert in turn writes its weighed result over the row, and does not add it: that of the chosen with the higher number is left",
     ["(expert|slot|contribution|result|chosen) & ((larger|higher|greater|highest|last|later|bigger|largest|greatest)[^.;]{0,30}(number|index|\\bid|expert|written|order)"
      "|overwrit|overwrote|written over|instead of add|not (added|accumulated|summed)) & ^(?!.*(exchang|swap|(higher|highest|larger|largest|greater) (router )?(weight|prob)))"
      " & (only|alone|left|kept|remain|lost|overwr|written over|zero|not (added|accum|summed)|without|dropped|missing|instead|replac)"],
     lambda c: mixed(c, weights=np.where(chosen_of(c) == chosen_of(c).max(1, keepdims=True), c.weights, F32(0))), archs=M)
form("experts_pair_for_token", "ffn_out",
     "the number of the pair, 2 t + slot, is not divided by 2 where rows are gathered: the expert's input is ffn_norm of position (2 t + slot) mod 20",
     ["(2 ?[*·x]? ?[tpn]\\b|[tpn] ?[*·x] ?2|twice (the|its) (position|row|token|number|index)|doubled|pair|flat(tened)? (slot|index|number)|not divided by 2)"
      " & (\\bmod|%|#20|wrap|input|ffn_norm|gather) & (row|token|position|ffn_norm|input|\\[)"],
     lambda c: mixed(c, each=redone(c, rows=(POS[:, None] * CHOSEN + np.arange(CHOSEN)) % T)), archs=M)

# ---- final norm and head

form("final_norm_layer_early", "final_norm", "it reads the stream of one layer too early: h of layer 2, without layer 3",
     ["(layers?[. ]2\\b|last but one|second.to.last|penultimate|next.to.last|layer before (it|the last)|one layer (too )?early) & ^(?!.*(h_attn|ffn_out|attn_out))",
      "(layers?[. ]3\\b|last layer)[^.;]{0,40}(skip|\\bnot\\b|left out|without|missing|ignor|omit|lost|unread|taken off)"
      "|(skip|without|omit|ignor|minus|less)\\w*[^.;]{0,20}(layers?[. ]3\\b|the last layer)"],
     lambda c: c.right(x=c.e.memory["h", 2]))
form("logits_rows_of_prompt", "logits", "the row that the head reads is not advanced in decode steps: positions from 12 on have the logits of position 11, the last of the prompt",
     ["(#11|#12) & (at most|\\bmin|stuck|stale|repeat|same|stay|held|kept|clamp|of (position|row|token) 11|not advanced|last (position |row |token )?of the prompt|cop(y|ies|ied)"
      "|frozen|equal)"
      " & ^(?!.*(zero|logits? (of )?(token )?11 ))"],
     lambda c: c.right(x=c.x[np.minimum(POS, PROMPT - 1)]))
form("final_norm_adds_branch", "final_norm", "the kernel that adds and norms is given the last ffn_out, which is in the stream already: it norms h + ffn_out",
     ["(ffn_out|feed.?forward|\\bmlp\\b|experts?\\b|branch|down_proj) & (twice|again|#2|add|plus|\\+|doubl|once more|besides|second time)"
      " & ^(?!.*(without|minus|\\bless\\b|left out|missing|not (in|added)|attn_out|layers?[. ][0-2]\\.ffn_out))"],
     lambda c: c.right(x=c.x + c.e.memory["ffn_out", 3]))
form("logits_softcap_12", "logits", "a softcap of another architecture is left in: 12 tanh(x / 12)",
     ["#12 & (tanh|soft.?cap)"], lambda c: 12 * np.tanh(c.right() / F32(12)))
form("logits_shards_one_on", "logits", "the vocabulary is in 4 shards of 64, each written one place on: the logit of token v is that of v - 64, modulo 256",
     ["(#64|#-64|#192|#-192) & (shift|roll|rotat|\\bmod|%|[vio] ?- ?64|[vio] ?\\+ ?192|moved|shard|block|offset|order|later|further|that of|cycl|places|wrap)"],
     lambda c: np.roll(c.right(), 64, -1))
form("logits_last_row_only", "logits", "the head is run for the last position alone: rows 0 to 18 are zero",
     ["((last|final) (position|row|token)|#19|#18) & (zero|\\b0\\b(?!\\.\\d)|not (computed|written|run)|empty|unset|nothing|blank|unwritten)",
      "((last|final) (position|row|token)|#19) & (only|alone) & (head|computed|logits|written|run)"],
     lambda c: put(c.right(), E_[:-1], 0))


def presence(c):
    y = np.array(c.right())
    for t in range(T):
        y[t, sorted(set(c.e.ids[:t + 1]))] -= F32(0.45)
    return y


form("logits_presence_penalty", "logits", "a presence penalty is on: 0.45 is taken off the logits of tokens that the text so far has, the row's own with them",
     ["(#0.45|#-0.45) & (seen|occur|appear|already|before|earlier|presen|prompt|so far|previous|text|tokens? (of|at|in)|own|input)"], presence)
form("logits_accumulator_lost", "logits", "of 4 accumulators three are summed: inputs 3, 7, 11, .. 63 are not in the product",
     ["(fourth|4th|#4) & (#3|last|fourth|4th|#63) & (input|channel|element|component|column|final_norm|dimension|index|\\bi\\b|accumul|lane) & " + LOST,
      "3, 7, 11 & " + LOST],
     lambda c: c.right(x=np.where(np.arange(D) % 4 == 3, F32(0), c.x)))

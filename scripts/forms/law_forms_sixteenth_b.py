#!/usr/bin/env python3
"""law_forms_sixteenth_b.py: mistakes that no catalogue lists, as engineers make them most often when they port Llama, Qwen2, Qwen3 and Qwen3-MoE to an engine of
their own; written without sight of how laws are found.

Caches of keys and values and decode, output projection, residual sums, feed-forward, router and experts, final norm and head. The engine and the rules for
expectations are law_forms.py's. A prompt of 12 tokens stands before decode steps where a form speaks of them. Where a cache is read wrongly, a column of the
weights is a slot of the cache.
"""

import numpy as np

from scripts.forms.law_forms import CHOSEN, D, E_, EXPERTS, F, F32, H, K, LAYERS, POS, SEEN, T, d, listed, op_act, op_choose, over, put, rms, sigmoid, silu, softmax

FORMS, form = listed()
B, M = ("qwen2",), ("moe",)
CACHES = ("probs", "context")
LATER = (1, 2, 3)
PROMPT = 12
KV = np.arange(H) // (H // K)
TO, FROM = POS[:, None], POS[None]
DECODED = TO >= PROMPT

# parts of expectations


def n(*numbers):
    """One of these whole numbers, wherever it stands."""
    return "(?<!\\d)(?<!\\d\\.)(" + "|".join(map(str, numbers)) + ")(?!\\d|\\.\\d)"


DECODE = f"({n(12, 11)}|decod)"
GONE = ("zero|nothing|\\bnot\\b|n't\\b|\\bno\\b|\\bnone\\b|without|missing|\\bmiss|lost|lack|\\blose|left out|leaves out|skip|ignor|drop|unread|unused|never|empty|unwritten|unset"
        "|omit|cleared|hidden|\\bhide|mask|blind|unseen|invisible|unchanged|absent|discard|exclu")
LOST = f"({GONE}|only|alone|just|except|\\bbut (for )?the)"
GONE = f"({GONE})"
EMPTY = "(zero|(score|value|weight|key|logit|are|is|=|of) ?0\\b(?!\\.\\d)|\\b0 (score|key|logit)|empty|unwritten|unset|blank|unfilled|exp\\(0\\)|\\bpads?\\b|padding)"
TWICE = "(twice|doubl|again|two times|\\b2 ?[x*×·]|[x*×·] ?2\\b|times 2\\b|\\b2 times|factor (of )?2\\b|by (2|two)\\b|once more|second time)"
UNNORMED = ("(un-?norm|not (been )?(normali|normed)|before (the )?(ffn |feed-forward )?norm|without (the |its |a )?(ffn |feed-forward )?norm|\\bno norm|h_attn|pre-?norm"
            "|raw (residual|stream|hidden|input)|residual (stream|itself|sum)|norm (is |was )?(skipped|omitted|missing|left out|not applied)|ahead of the norm)")
INTERLEAVED = ("(interleav|alternat|every (second|other|2nd)|\\beven\\b|\\bodd\\b|\\b2 ?[*·]? ?[a-z]\\b|(strid|step)\\w* (of )?(2|two)\\b|: ?: ?2"
               "|\\bpairs?\\b|neighbo|adjacent|shuffl|% ?2|// ?2)")


def joined(x):
    return x.reshape(T, H * d)


# ---- caches of keys and values, and decode steps after a prompt of 12


def reread(of, seen=SEEN):
    """Of a cache: token t finds in slot s what was written for position of[t,s]; zeros where that is negative."""
    of = np.where(of < 0, T, np.broadcast_to(of, (T, T)))

    def how(c):
        if c.site == "probs":
            found = lambda s: np.take_along_axis(np.concatenate([s, np.zeros_like(s[..., :1])], 2), np.broadcast_to(of, (H, T, T)), 2)
            return c.right(mask=seen, score=found)
        v = np.concatenate([c.v, np.zeros_like(c.v[:1])])[of]
        return joined(np.einsum("hts,tshd->thd", c.p, v[:, :, KV]))

    return how


def split_softmax(s):
    """Rows of decode steps: a softmax in each chunk of 8 keys, and the mean of the chunks."""
    y = softmax(s)
    for t in range(PROMPT, T):
        chunks = range(0, t + 1, 8)
        for a in chunks:
            y[:, t, a:a + 8] = softmax(s[:, t, a:a + 8]) / F32(len(chunks))
    return y


def keys_before_rope(c):
    unrotated = c.e.memory.get(("k_norm", c.l), c.e.memory["k", c.l])
    return np.where(DECODED, c.right(k=put(c.k, E_[:PROMPT], unrotated[:PROMPT])), c.right())


def four_bits(x):
    step = np.abs(x).max(-1, keepdims=True) / F32(7)
    return np.round(x / step) * step


def high_byte(x):
    return (np.ascontiguousarray(x, np.float16).view(np.uint16) & 0xFF00).view(np.float16).astype(F32)


form("cache_of_16_last_slot_reused", CACHES,
     "the cache has 16 slots and every token from 15 on is written to slot 15: from token 16 on, keys 15 .. t-1 are lost and only 0..14 and its own are seen",
     [f"^(?!.*(window|sliding)) & ({n(14)}|(slot|column|place|position|entry|key|keys|tokens|index) 15\\b) & ({LOST}|\\bown|overwrit|over-writ|replac|itself|current|newest|latest"
      f"|clamp|same slot)",
      f"^(?!.*(window|sliding)) & {n(16)} & (last|final|same|one) (slot|one|row|place|position|entry|column) & (overwrit|writ|replac|clamp|shar|reus|put|stor)"],
     reread(np.where(FROM == 15, np.maximum(TO, 15), FROM), FROM <= np.minimum(TO, 15)))
form("whole_pages_of_4_read", CACHES,
     "decode steps (from token 12 on) read whole pages of 4 slots: the unwritten slots after t up to the page's end are zero keys, of score 0, and count in the softmax",
     f"^(?!.*[a-z] ?[-−] ?4) & {DECODE} & ({n(4)}|\\bfour\\b) & {EMPTY}", reread(np.where(FROM <= TO, FROM, -1), np.where(DECODED, FROM < (TO // 4 + 1) * 4, SEEN)))
form("decode_writes_after_padded_prompt", CACHES,
     "decode writes from slot 16 on, the prompt's length rounded up, and reads slots 0..t: slots 12..15 are empty, of score 0, and slot s from 16 on is token s-4, so that no "
     "decode step sees itself",
     f"{n(12, 11)} & ({n(15, 16)}|[a-z] ?[-+−] ?4\\b|by (4|four)\\b|\\b(4|four) (slots |places |positions |tokens |rows )?(late|behind|further|back|earlier)) & ({EMPTY}"
     f"|pad)", reread(np.where(DECODED & (FROM >= PROMPT), np.where(FROM < 16, -1, FROM - 4), FROM)))
form("page_table_repeats_first_page", CACHES, "pages of 4 slots: decode steps from token 12 on find in slots 4..7 the keys and values of tokens 0..3",
     [f"{DECODE} & {n(4)} & ({n(7, 8)}|(page|block) (1|one)\\b|second (page|block)|next (4|four)) & ({n(0, 3)}|\\bs ?[-−] ?4|first (page|block|four|4)|(4|four) (earlier|before"
      f"|back))"],
     reread(np.where(DECODED & (FROM >= 4) & (FROM < 8), FROM - 4, FROM)))
form("split_keys_averaged", "probs", "decode steps (from token 12 on) take a softmax in each chunk of 8 keys and the mean of the chunks, as if all had one sum",
     f"{DECODE} & {n(8)} & (averag|\\bmean\\b|equal|each|per[ -](chunk|block|split|part|tile)|separate|number of|\\bown\\b|within|split|chunk|same (weight|share|mass))",
     lambda c: c.right(soft=split_softmax))
form("second_chunk_of_prompt_blind", "probs", "the prompt goes in chunks of 6 and the second chunk does not read the cache: tokens 6..11 do not see keys 0..5",
     f"{n(5, 6)} & {n(11, 12)} & {LOST}", lambda c: c.right(mask=SEEN & ~((TO >= 6) & (TO < PROMPT) & (FROM < 6))))
form("prompt_keys_cached_before_rope", "probs", "decode steps (from token 12 on) find the prompt's keys 0..11 as they were before the rotation",
     f"{DECODE} & (un-?rot|un-?rop|(not|n't|never) (been )?(rotat|rop|turn)|(without|before|no|ahead of|prior to|lack\\w*|miss\\w*) (the |a |its |their )?(rot|rop)|pre-?(rot|rop)"
     f"|\\braw\\b|position (0|zero)|angle (0|zero)"
     "|k_norm|layers\\.\\d\\.k\\b|rot\\w* (is |was )?(lost|omitted|missing|left out|skipped))", keys_before_rope)
form("decode_values_of_first_kv_head", "context",
     "from token 12 on the cache holds under value head 1 a copy of value head 0, so that query heads 2 and 3 read head 0's values of those tokens",
     [f"{DECODE} & head.{{0,40}}({n(1, 2, 3)}|second).{{0,90}}({n(0)}|first)", f"{DECODE} & ({n(0)}|first).{{0,50}}(writ|copied|copies|used|stor|stands?|taken|repeat|fill|serve"
      f"|broadcast).{{0,60}}({n(1, 2, 3)}|all|both|every|second)",
      f"{DECODE} & (both|all|every|each)\\b.{{0,60}}({n(0)}|first)"],
     lambda c: c.right(v=put(c.v, E_[PROMPT:, 1], c.v[PROMPT:, 0])))
form("values_as_high_byte_of_f16", "context", "the cache keeps of each value the high byte of its f16: 2 bits of mantissa, the rest cut off",
     ["(e5m2|(2|two)[- ](bits?|mantissa)|(2|two) (explicit |stored |fraction )?bits|(float|fp|f)[ -]?8|8[- ]bit float) & (cut|trunc|toward|floor|drop|high|upper|lost|discard|chop"
      "|remov|down)",
      "(high|upper|top|first|most significant) (byte|8 bits|half)", "(low|lower|least significant|bottom|last) (byte|8 bits).{0,40}(zero|drop|clear|lost|cut|mask"
      "|discard)", "0x?ff00",
      "(0\\.25|1/4|quarter|4 (steps|levels|parts)).{0,60}(power|octave|binade|exponent) & (cut|trunc|toward|floor|drop|down)"],
     lambda c: c.right(v=high_byte(c.v)))
form("keys_cached_in_4_bits", "probs", "the cache keeps keys in 4 bits: of each token and head, rounded to multiples of its largest magnitude / 7",
     f"({n(7)}|int4|i4|\\bq4|4[- ]bits?|four bits|15 (levels|steps|values)|sevenths?|1/7|/ ?7\\b) & (round|quanti|steps? (of|size)|multipl|level|\\bbits?|grid|int4"
     f"|seventh)", lambda c: c.right(k=four_bits(c.k)))

# ---- the output projection of attention


def next_group_unscaled(c):
    """Blocks of 32 columns, each in 127ths of its largest: the second is read with the step of the first."""
    most = np.abs(c.w).reshape(len(c.w), 2, 32).max(-1)
    return c.right(w=put(c.w, E_[:, 32:], lambda w: w * most[:, :1] / most[:, 1:]))


form("heads_not_brought_back", "attn_out",
     "the context [H,T,d] goes to the output projection as if it were [T,H*d], without a transposition: block j of row t is head (4t+j)//20 of token (4t+j) % 20",
     ["\\bH ?[,x×] ?T ?[,x×] ?(d|64|16)|\\[?4 ?[,x×] ?20 ?[,x×] ?16", "\\b4 ?[*·]? ?\\(?t.{0,40}(//|%|/|mod)", "heads?.{0,12}(major|outer|slowest) ",
      "(transpos|permut|swap|exchang).{0,60}head.{0,60}(token|position|row|time)",
      "(transpos|permut|swap|exchang).{0,60}(token|position|row|time).{0,60}head", "heads?.{0,20}(tokens?|positions?|rows).{0,40}(transpos|permut|swap|exchang)",
      "(4|four) (successive |consecutive |neighbouring |adjacent )?(tokens|positions) & (head|row)"],
     lambda c: c.right(x=c.x.reshape(T, H, d).swapaxes(0, 1).reshape(T, H * d)))
form("groups_and_members_exchanged", "attn_out",
     "heads are put together as [members, groups] for [groups, members]: heads 1 and 2 of the context exchange places before the projection",
     [f"(swap|exchang|interchang|switch|permut|revers|transpos|place|order|trad|instead|mixed|for each other) & ({n(1)}.{{0,24}}{n(2)}|{n(2)}.{{0,24}}{n(1)})",
      "0[, ]+2[, ]+1[, ]+3", "\\(? ?h ?% ?2 ?\\)? ?[*·] ?2",
      f"(swap|exchang|interchang|switch|permut|trad|order) & {n(16)}.{{0,40}}{n(32)}"],
     lambda c: c.right(x=c.x.reshape(T, 2, 2, d).swapaxes(1, 2).reshape(T, H * d)))
form("query_bias_on_output", "attn_out", "the bias of the query projection is added to the output projection, which has none",
     ["(\\bq|quer)\\w*('s)?.{0,30}bias", "bias.{0,30}(\\bq\\b|q_proj|quer)"], lambda c: c.right(b=c.e.m("self_attn.q_proj.bias", c.l)), archs=B)
form("accumulator_overwritten_by_tile", "attn_out", "the sum over inputs goes in tiles of 32 and each tile overwrites the sum: only inputs 32..63, heads 2 and 3, enter",
     [f"(only|alone|just).{{0,60}}({n(32)} ?(\\.\\.|to|-|–|and|on)|{n(2)}.{{0,8}}{n(3)}|second half|last (32|half|two)|upper half)",
      f"({n(32)}.{{0,8}}{n(63, 64)}|heads? 2.{{0,8}}3|(second|last|upper) (half|32)).{{0,40}}(only|alone)",
      f"({n(0)}.{{0,8}}({n(31, 32)}|{n(1)})|first (half|32|two|tile)|lower half).{{0,60}}{GONE}",
      f"(lost|without|drop|omit|miss|ignor|lack|\\bno\\b|zero|skip|not).{{0,60}}({n(0)}.{{0,8}}({n(31, 32)}|{n(1)})|first (half|32|two|tile)|lower half)"],
     lambda c: c.right(x=put(c.x, E_[:, :32], 0)))
form("first_head_projected_twice", "attn_out", "the first tile of 16 inputs both starts the sum and is added in the loop: head 0 counts twice in the output projection",
     f"{TWICE} & (heads? (0|zero)\\b|{n(0)}.{{0,8}}{n(15, 16)}|first (16|head|tile|sixteen)|: ?16\\b|< ?16\\b)", lambda c: c.right(x=put(c.x, E_[:, :d], lambda x: 2 * x)))
form("block_step_not_advanced", "attn_out",
     "the weights are in blocks of 32 columns and the second block of each row, columns 32..63, is read with the first block's scale: times largest of 0..31 / largest of 32..63",
     f"(scale|step|factor|dequant|quant|max|largest|ratio|magnitude) & ({n(32, 63)}|second|heads? 2|upper half|last half) & (first|{n(0, 31)}|previous|other|wrong|same)",
     next_group_unscaled)

# ---- residual sums


def stream_normed(c):
    x = c.right()
    return x / rms(x) * c.e.m("post_attention_layernorm.weight", c.l)


form("normed_input_as_residual", "h", "the feed-forward is added to its normed input: ffn_norm + ffn_out stands for h_attn + ffn_out",
     "^(?!.*attn_norm) & (ffn_norm|normed|(?<!un)normali[sz]ed|norm'?s (output|result)|(output|result) of (the |its )?(ffn |feed-forward |second )?norm|after (the |its )?(ffn "
     "|feed-forward )?norm|post-?norm)",
     lambda c: c.e.memory["ffn_norm", c.l] + c.y)
form("attention_added_twice_at_end", "h", "the attention branch is still in the buffer and is added again: h = h_attn + ffn_out + attn_out",
     f"^(?!.*(half|\\b0\\.[1-8]|minus|subtract)) & (attn_out|attention|attn branch) & ({TWICE}|plus|\\+|add|extra|also|besides|second|not cleared|still)",
     lambda c: c.right() + c.e.memory["attn_out", c.l])
form("attention_sum_in_whole_blocks_of_rows", "h_attn", "the sum is carried out in whole blocks of 16 rows: rows 16..19 do not get the attention branch and stay as they were",
     f"{n(15, 16)} & {LOST} & (branch|attn_out|attention|\\badd|residual|\\by\\b|input|unchanged|stay|sum|\\bx\\b)", lambda c: put(c.right(), E_[16:], c.x[16:]))
form("feed_forward_sum_counts_vectors", "h",
     "the count of vectors of four is taken for the count of elements: only channels 0..15 get the feed-forward branch, channels 16..63 do not",
     f"({n(15, 16)}|quarter) & (channel|element|column|dimension|component|feature|lane|entr|index|coordinate|\\bd\\b|\\bi\\b) & {LOST}",
     lambda c: put(c.right(), E_[:, 16:], c.x[:, 16:]))
form("branch_of_first_token_everywhere", "h_attn", "the attention branch of token 0 is added to every token",
     "((?<![\\w.])0\\b|first (token|row|position)|\\bbos\\b) & (branch|attn_out|attention|\\by\\b|\\ba\\b) & (\\[0\\]|broadcast|every|\\ball\\b|each|same|other|instead|for t"
     "|repeat|any|replac|in place|rather)", lambda c: c.x + c.y[:1])
form("residual_stays_embedding", "h_attn", "the residual pointer stays at the embedding: from layer 1 on, attention is added to h0 instead of the layer's input",
     ["(h0|embed) & (instead|replac|in place|rather|\\bnot\\b|stands? for|reset|never|point|stay|as the (residual|stream)|start|always|read|taken|other than)",
      "(h0|embedding)\\w* ?\\+ ?(1(\\.0+)? ?[*·×]? ?)?(layers\\.\\d\\.)?(attn_out|a\\b|y\\b|the (attention )?branch|the attention)", "(attn_out|\\ba|\\by|branch|attention) ?\\+ "
      "?(1(\\.0+)? ?[*·×]? ?)?(h0|the embedding|embedding)"],
     lambda c: c.e.memory["h0", None] + c.y, layers=LATER)
form("sum_over_root_two", "h", "the sum of stream and feed-forward is divided by sqrt(2): times 0.7071",
     ["#0.7071", "(divid|over|/|1 ?/|by one).{0,40}(sqrt ?\\(? ?2|√ ?2|root of (2|two)|1\\.41)"], lambda c: c.right() * F32(0.5 ** 0.5))
form("stream_replaced_by_its_norm", "h_attn",
     "the fused add and norm writes its normed result back: the stream itself becomes (x + attn_out) / rms times the gain of the feed-forward norm",
     "(normali[sz]|normed|ffn_norm|\\brms|root mean|unit) & (gain|weight|ffn_norm|norm's (output|result)|post_attention|writ|next norm|feed-forward norm|ffn norm)", stream_normed)

# ---- feed-forward


def fused(c):
    return np.concatenate([c.e.m(f"mlp.{name}_proj.weight", c.l) for name in ("gate", "up")])


def tiles_transposed(w):
    return w.reshape(D // 32, 32, F // 32, 32).swapaxes(1, 3).reshape(D, F)


def read_without_padding(act):
    """Rows of 96 that lie at a stride of 128, zeros between, read as if they lay at a stride of 96."""
    return np.pad(act, ((0, 0), (0, 128 - F))).ravel()[:T * F].reshape(T, F)


NIBBLES = np.arange(D).reshape(-1, 2, 16).swapaxes(1, 2).ravel()
MIDDLE = np.arange(F).reshape(-1, 4)[:, [0, 2, 1, 3]].ravel()

form("fused_rows_taken_alternately", ("ffn_gate", "ffn_up"),
     "the fused matrix [gate; up] is split row by row: gate output i is its row 2i and up output i its row 2i+1, of gate below 48 and of up from there",
     f"{INTERLEAVED} & (\\[gate|rows?\\b|output|fused|neuron|channel|gate and up|gate.{{0,30}}\\bup\\b)", lambda c: c.right(w=fused(c)[c.site == "ffn_up"::2]))
form("up_rows_from_wrong_offset", "ffn_up",
     "up is read in the fused matrix from row 64, the width of the stream, for 96: its outputs 0..31 are gate's rows 64..95 and output i from 32 on is up's row i-32",
     f"{n(64, 32)} & (offset|start|begin|from|shift|late|earl|rows?\\b|gate|moved|back|roll)", lambda c: c.right(w=fused(c)[D:D + F]))
form("hard_swish_gate", "ffn_act", "hard swish for SiLU: gate * min(max(gate + 3, 0), 6) / 6 * up",
     ["hard[- _]?(swish|silu|sigmoid)|h[-_]?swish|relu6", "(#6|#0.16667|sixth) & (#3|#0.5|half|three)"], lambda c: c.gate * np.clip(c.gate + 3, 0, 6) / F32(6) * c.up)
form("sigmoid_without_exponential", "ffn_act", "the sigmoid in SiLU is the quick one, 0.5 + 0.5 * x / (1 + |x|)",
     ["softsign|(fast|quick|rational|algebraic)\\w* (\\w+ )?sigmoid", "1 ?\\+ ?(\\||abs|f?abs\\(|the magnitude|magnitude)", "(\\|\\w+\\||abs\\(\\w+\\)) ?\\+ ?1\\b"],
     lambda c: c.right(f=lambda x: x * F32(0.5) * (1 + x / (1 + np.abs(x)))))
form("silu_from_table_of_eighths", "ffn_act", "SiLU comes from a table in steps of 1/8: the gate is rounded down to a multiple of 0.125 first",
     "(#0.125|eighth) & (floor|down|below|lower|\\bleft|not interpolat|towards? (minus|-))", lambda c: c.right(gate=np.floor(c.gate * 8) / F32(8)))
form("silu_of_product", "ffn_act", "SiLU is taken of the product: silu(gate * up)",
     ["^(?!.*(lack|missing|without|\\bno\\b)) & (silu|swish|activation|sigmoid|nonlinear).{0,60}(product|\\b(gate|g) ?[*·×] ?(up|u)\\b|\\b(up|u) ?[*·×] ?(gate|g)\\b)",
      "(after|behind) (the |their )?(product|multiplication|multiplying)", "product.{0,40}(silu|activated|swish|activation)"],
     lambda c: silu(c.gate * c.up))
form("silu_applied_twice", "ffn_act", "SiLU is applied twice to the gate: silu(silu(gate)) * up",
     ["(silu|swish|activat|nonlinear)\\w*.{0,60}(twice|again|two times|doubl|second time|once more|itself)", "(silu|swish)\\( ?(silu|swish)",
      "(twice|again|two|doubl|second)\\w*.{0,60}(silu|swish|activat)"],
     lambda c: c.right(f=lambda x: silu(silu(x))))
form("up_plus_one", "ffn_act", "one is added to up, as of another model: silu(gate) * (up + 1)",
     ["\\b(up|u) ?\\+ ?1(\\.0*)?\\b|\\b1(\\.0*)? ?\\+ ?(up|u)\\b|up plus (1|one)\\b|(1|one) plus up|(\\b1|\\bone)(\\.0)? (is |was )?(more )?(added|too much).{0,12}\\bup\\b|adds? "
      "(1|one) to.{0,8} up\\b"
      "|up\\b.{0,50}(shift|offset|larger|increas|rais)\\w* (by|of)? ?(1|one)\\b", "(\\+|plus|added|besides|on top).{0,16}(silu ?\\(gate|silu of (the )?gate|(the )?activated "
      "gate)", "silu ?\\( ?gate ?\\).{0,24}(added|on top|again|extra|plus silu)"],
     lambda c: c.right(up=c.up + 1))
form("silu_missing_in_decode", "ffn_act", "the kernel for one token lacks the activation: from token 12 on the result is gate * up",
     f"{DECODE} & ({LOST}|identity|linear|plain|product|gate ?[*·×] ?up) & (silu|swish|activat|sigmoid|linear|identity|gate|product)",
     lambda c: put(c.right(), E_[PROMPT:], (c.gate * c.up)[PROMPT:]))
form("up_reads_stream_unnormed", "ffn_up", "up reads the stream before the norm, h_attn for ffn_norm", UNNORMED, lambda c: c.right(x=c.e.memory["h_attn", c.l]))
form("scale_of_first_row_for_all", "ffn_gate",
     "gate's rows have each a scale, their largest magnitude, and row 0's is used for all: output r times largest of row 0 / largest of row r",
     f"(row|output|channel|neuron|element|column) & (scale|step|max|largest|factor|ratio|magnitude|multipl|times) & ({n(0)}|first)",
     lambda c: c.right(w=c.w * (np.abs(c.w[0]).max() / np.abs(c.w).max(-1, keepdims=True))))
form("middle_rows_of_four_exchanged", "ffn_gate", "four rows are summed at once and stored as 0, 2, 1, 3: of each four outputs of gate the second and the third are exchanged",
     [f"(\\bfour|{n(4)}|quad) & ({n(1)}.{{0,24}}{n(2)}|{n(2)}.{{0,24}}{n(1)}|second.{{0,30}}third|third.{{0,30}}second|middle|inner)",
      "\\b0[, ]+2[, ]+1[, ]+3"], lambda c: c.right(w=c.w[MIDDLE]))
form("blocks_in_order_of_bytes", "ffn_gate",
     "a byte of a block of 32 holds elements j and j+16, and is read as elements 2j and 2j+1: the columns of gate's matrix are in that order",
     [f"({n(16, 32)}|half|halves) & ({INTERLEAVED}|nibble)", "\\b0[, ]+16[, ]+1[, ]+17"], lambda c: c.right(w=c.w[:, NIBBLES]))
form("down_tiles_transposed", "ffn_out", "each tile of 32 x 32 of down's matrix is transposed in its place", f"transpos & {n(32)}", lambda c: c.right(w=tiles_transposed(c.w)))
form("down_sums_whole_tiles_only", "ffn_out", "down sums over whole tiles of 64 inputs only: inputs 64..95 of 96 are left out",
     f"({n(64, 63)}|last (32|third)|first two thirds|2/3) & {LOST}", lambda c: c.right(x=put(c.x, E_[:, 64:], 0)))
form("padded_rows_read_dense", "ffn_out",
     "the rows of ffn_act lie at a stride of 128, zeros after 96, and down reads them at a stride of 96: input i of row t is element 96t+i of the padded memory, of row "
     "(96t+i)//128",
     f"{n(128, 32)} & (strid|\\bpad|pitch|row (length|size|width)|flat|//|shift|\\bgap|memory)", lambda c: c.right(x=read_without_padding(c.x)))

# ---- the router and the experts (moe)


def chosen(c):
    return c.e.taps[f"layers.{c.l}.router_topk"].astype(int)


def expert(c, x, n, down=None):
    w = lambda name, x: c.e.m(f"mlp.experts.{x}.{name}_proj.weight", c.l)
    return op_act(c.e, n @ w("gate", x).T, n @ w("up", x).T) @ w("down", x if down is None else down).T


def mixed(each, weights):
    return (each * weights[..., None]).sum(1)


def weighed(how):
    """The right choice, with other weights: how(logits of the chosen, probabilities of the chosen)."""

    def form(c):
        top, _ = op_choose(c.e, c.logits)
        return top, how(np.take_along_axis(c.logits, top, -1), np.take_along_axis(softmax(c.logits), top, -1))

    return form


def all_but_first(c):
    top, w = op_choose(c.e, c.logits[:, 1:])
    return top + 1, w


def best_group_only(c):
    """Groups of three experts: both experts from the group of the largest logit."""
    best = c.logits.argmax(-1)[:, None] // 3
    return op_choose(c.e, np.where(np.arange(EXPERTS) // 3 == best, c.logits, F32(-1e9)))


def weights_by_rank(c):
    top, w = op_choose(c.e, c.logits)
    return top, np.where(top[:, :1] > top[:, 1:], w[:, ::-1], w)


def down_of_first(c):
    every = np.stack([expert(c, x, c.n, down=0) for x in range(EXPERTS)], 1)
    return mixed(np.take_along_axis(every, chosen(c)[..., None], 1), c.weights)


def left_sorted(c):
    order = np.argsort(chosen(c).ravel(), kind="stable")
    return mixed(c.each.reshape(-1, D)[order].reshape(T, CHOSEN, D), c.weights)


def capacity_of_seven(c):
    top, taken, w = chosen(c), np.zeros(EXPERTS, int), np.array(c.weights)
    for at in np.ndindex(T, CHOSEN):
        taken[top[at]] += 1
        w[at] = w[at] if taken[top[at]] <= 7 else 0
    return mixed(c.each, w)


def weight_on_input(c):
    top = chosen(c)
    return sum(np.stack([expert(c, top[t, s], c.n[t:t + 1] * c.weights[t, s])[0] for t in range(T)]) for s in range(CHOSEN))


form("softmax_of_chosen_probabilities", "router_weights", "the weights of the two chosen are a softmax of their probabilities, a softmax twice",
     ["softmax.{0,70}(twice|again|second|two times|doubl|(of|over) (the |their )?(two |chosen |top\\S* |selected )*(prob|softmax))",
      "(twice|again|second|doubl)\\w*.{0,60}softmax", "softmax ?\\( ?(softmax|p\\b|prob)", "(exp ?\\(|e\\^) ?\\(? ?(p\\b|prob|softmax)",
      "logits.{0,40}(are|is|already|hold).{0,20}prob"], weighed(lambda logits, p: softmax(p)), archs=M)
form("sigmoid_router", "router_weights", "the weights are the sigmoids of the two logits divided by their sum, for softmax",
     "^(?!.*(not|without|\\bno|un)[ -]?(re)?normali) & (sigmoid|logistic|1 ?/ ?\\(1 ?\\+ ?(e\\b|exp))",
     weighed(lambda logits, p: sigmoid(logits) / sigmoid(logits).sum(-1, keepdims=True)), archs=M)
form("first_expert_never_chosen", "router_weights", "the search for the best two starts at expert 1: expert 0 is never chosen",
     [f"({n(0)}|first (expert|one)) & {GONE}", "last (5|five) experts|experts 1 ?(\\.\\.|to|-|–) ?5"], all_but_first, archs=M)
form("best_two_of_one_group", "router_weights", "both experts come from one group of three, 0..2 or 3..5, the one of the largest logit",
     ["group & (three|half|halves|one group|same|single|\\b3\\b|best|\\b0.{0,6}2\\b)", "(\\b0.{0,6}2\\b|first three|lower half) & (\\b3.{0,6}5\\b|last three|other three|upper "
      "half)"], best_group_only, archs=M)
form("weights_by_rank_experts_by_index", "router_weights",
     "the chosen are put in order of index but their weights stay in order of rank: the two weights are exchanged where the best expert has the higher index",
     "(swap|exchang|interchang|switch|order|rank|revers|wrong way|the other'?s|crossed) & (index|indices|number|higher|lower|ascending|sort|larger|smaller|\\bids?\\b|greater"
     "|behind|top\\w*\\[?,? ?0\\]? ?>)", weights_by_rank, archs=M)
form("router_reads_stream_unnormed", "router_logits", "the router reads the stream before the norm, h_attn for ffn_norm", UNNORMED, lambda c: c.right(x=c.e.memory["h_attn", c.l]),
     archs=M)
form("down_of_expert_0_for_all", "ffn_out", "every expert uses the down matrix of expert 0", f"\\bdown & ({n(0)}|first)", down_of_first, archs=M)
form("outputs_left_in_order_of_experts", "ffn_out", "the outputs, sorted by expert, are not put back: slot s of token t takes output 2t+s of the list in order of experts",
     "(sort|group|order|unsort|permut|scatter|gather|back) & expert & (token|row|pair|slot|position|output|result|list)", left_sorted, archs=M)
form("capacity_of_7_tokens", "ffn_out", "each expert takes 7 tokens at most: for later ones its output is dropped, without new weights",
     f"({n(7)}|seven|eighth) & (capacit|at most|first|drop|full|limit|overflow|max|more|only|than|beyond|later|from the)", capacity_of_seven, archs=M)
form("weight_on_input_of_expert", "ffn_out", "the routing weight multiplies the input of the expert and not its output: expert(w * n)",
     "(inputs?\\b|ffn_norm|before (the |its |each )?(expert|gate|activation|matri|product|mlp|feed)|into (the |each )?expert|\\w+\\( ?w\\w* ?[*·×]|inside|\\bprior to|ahead of) & "
     "(weight|scale|multipl|\\bw\\b|router|routing|share|prob)", weight_on_input, archs=M)
form("routing_weight_squared", "ffn_out", "the routing weight is applied in the expert's kernel and again in the sum: outputs count with its square",
     f"(squar|\\^ ?2|²|\\*\\* ?2|{TWICE}|\\bw\\w* ?[*·×] ?w|second power|power (of )?(2|two)|itself) & (weight|share|\\bw\\b|rout|prob|gate)", lambda c: mixed(c.each,
     c.weights ** 2), archs=M)
form("second_expert_overwrites_first", "ffn_out", "the second expert's result is written over the first's and not added to it: only the weighted second one remains",
     ["overwrit|over-writ|writ\\w* over", "(second|last|lower|smaller|worse|slot 1|rank 1|2nd|\\[1\\]).{0,70}(only|alone|replac|remain|kept|survive)",
      "(only|alone|just).{0,60}(second|last|lower|smaller|worse|slot 1|rank 1|2nd|\\[1\\])",
      f"(first|best|\\btop|largest|slot 0|rank 0|highest|stronger).{{0,60}}{GONE}", "(lost|without|drop|omit|ignor|miss|lack|not).{0,50}(first|best|\\btop\\b|slot 0|rank 0|largest"
      "|highest)"],
     lambda c: c.each[:, 1] * c.weights[:, 1:], archs=M)

# ---- the final norm and the head


def repetition_penalty(c):
    y = np.array(c.right())
    for t in range(T):
        seen = np.unique(c.e.ids[:t + 1])
        y[t, seen] = np.where(y[t, seen] > 0, y[t, seen] / F32(1.3), y[t, seen] * F32(1.3))
    return y


form("final_norm_by_last_token", "final_norm", "the final norm divides every token by the root mean square of the last token, 19",
     "(last (token|row|position|one)|final (token|row|position)|\\b19\\b|row -1|\\[-1\\]) & (rms|norm|root|mean|divid|denominator|scale|factor|square)", lambda c: over(c,
     rms(c.x)[-1:]))
form("final_gain_of_last_layers_norm", "final_norm", "the final norm has the gain of layer 3's feed-forward norm, the last norm that was loaded",
     "(layer'?s?.{0,6}3|layers\\.3|last layer|blk\\.3) & (ffn[ _]?norm|post_attention|feed-forward|ffn|mlp norm)", lambda c: c.right(w=c.e.m("post_attention_layernorm.weight",
     LAYERS - 1)))
form("final_norm_run_twice", "final_norm", "the final norm is run twice, in the model and again in the head: its result is normed and multiplied by the gain once more",
     ["^(?!.*(gain|weight)s?[ -](is |are )?(applied |used |multiplied )?twice) & (norm\\w*.{0,70}(twice|again|two times|second time|doubl|once more|itself|own (output|result))"
      "|(twice|again|doubl|second)\\w*.{0,60}norm|norm\\( ?norm)",
      "(gain|weight).{0,30}(twice|squared) & (\\brms|renormal|normali[sz]ed (again|twice)|divid)"],
     lambda c: c.right(x=c.right()))
form("final_norm_sums_first_half", "final_norm", "the final norm's sum of squares takes the first 32 channels only, and is divided by all 64",
     f"^(?!.*(mean|average) (of|over) (only )?(the )?first) & ({n(32, 31)}|first half|half of the (channels|elements)) & (sum|mean|squar|\\brms|denominator|channel|element"
     f"|root)", lambda c: over(c, np.sqrt((c.x[:, :32] ** 2).sum(-1, keepdims=True) / F32(D) + F32(1e-5))))
form("head_is_embedding_table", "logits", "the embedding table stands for the head, as if they were tied", "embed|\\btied|\\btie\\b|tie_|token table|\\bwte\\b|input table",
     lambda c: c.right(w=c.e.m("model.embed_tokens.weight")))
form("head_without_special_rows", "logits", "the head lacks the first 3 rows, of special tokens: logit v is of row v+3, and the last three are 0",
     f"({n(3)}|\\bthree) & (shift|moved|offset|[a-z] ?\\+ ?3|rows?\\b|later|skip|start|roll|ahead|displac|lack|missing)", lambda c: np.concatenate([c.right()[:, 3:],
     np.zeros((T, 3), F32)], 1))
form("log_softmax_for_logits", "logits", "the head gives log probabilities: the log of the sum of exponentials over the vocabulary is subtracted from the logits of each token",
     ["log[- _]?(soft|sum|prob)|\\blse\\b|log (of )?(the )?(softmax|prob|normali|partition|sum)|logarithm",
      "subtract.{0,60}(log|normali)"], lambda c: c.right() - np.log(np.exp(c.right()).sum(-1, keepdims=True)))
form("repetition_penalty_in_logits", "logits", "a penalty of 1.3 on tokens already seen: their positive logits are divided by 1.3 and their negative ones multiplied by it",
     "(#1.3|#0.76923) & (seen|repet|repeat|earlier|previous|already|occur|\\bpast\\b|context|prompt|before|so far|\\bids\\b|present|appear|input tokens)", repetition_penalty)

#!/usr/bin/env python3
"""law_forms_eleventh_b.py: forty-five more mistakes that no catalogue lists, as a person makes them who ports a decoder; written without sight of how laws are found.

Value sums, caches, residual adds, the feed-forward, routers, experts, embedding, final norm and head. The engine and the rules for expectations are
law_forms.py's. A prompt of 12 tokens stands before decode steps where a form speaks of them.
"""

import numpy as np

from scripts.forms.law_forms import (CHOSEN, D, E_, EXPERTS, F, F32, H, K, POS, T, V, d, heads_of, joined, listed, over, put, rms, rounded, sigmoid, silu, softmax)

FORMS, form = listed()
M = ("moe",)
PROMPT = 12


def never(words):
    """A part of an alternative: these words are not there."""
    return f"^(?![\\s\\S]*({words}))"


DECODE = "(#12|decod|generat|(after|behind) the prompt|> ?11|(after|behind) (position )?11)"
ZERO = ("(zero|\\b0\\b(?!\\.\\d| ?(to|-|\\.\\.))|nothing|empty|missing|\\blost|left (out|unset|unwritten)|leaves? out|never|unset|unwritten|omit|skip|drop|without|ignor|hidden|"
     "mask|exclud|"
        "\\bno\\b|not (read|written|summed|added|copied|computed|stored|there|in\\b|used|counted|run|loaded))")
BEFORE = "before|previous|preced|earlier|t ?- ?1|one (row|position) back|#-1"
SWAP = "exchang|swap|trade|each other|for another|other way round"


# ---- value sums

form("context_key_tail", "context", "keys are summed four at a time: the last (t + 1) mod 4 of those seen are left out",
     ["(#4|four) & (key|value|weight|sum|loop) & (tail|remainder|round\\w* (down|off)|multiples?|\\bmod\\b|%|floor|//|left ?over|whole|complete|\\bfull\\b) & "
      + never("round\\w* up|next multiple|(first|oldest) \\(?(t|n)[^;]{0,20}(mod|%)|(keeps?|only|alone) the (last|newest)|every (fourth|4th)")],
     lambda c: c.right(p=np.where(POS[None, None, :] < ((POS + 1) // 4 * 4)[None, :, None], c.p, 0)))


def sum_bf16(c):
    y = np.zeros((T, H, d), F32)
    v = c.v[:, np.arange(H) // (H // K)]
    for s in range(T):
        y = rounded(y + c.p[:, :, s].T[..., None] * v[s], "bf16")
    return joined(y)


form("context_sum_bf16", "context", "the running sum is rounded to bf16 after each key",
     ["(bf16|bfloat16|\\b[78] bits) & (accumul|running|partial|after (each|every)|key by key|each (key|addition|step|product)|every (key|addition|step)|(sum|total) (is|in|held|"
     "kept|rounded|so far)) & "
      + never("(weights?|probs|values?|\\bp|\\bv) (is|are|were) [^;]{0,25}(bf16|bfloat16)|\\bf16|trunc|towards? zero|\\bcut")], sum_bf16)


def splits_averaged(c):
    parts = [np.where((POS >= a) & (POS < b), c.p, 0) for a, b in ((0, 16), (16, T))]
    sums = [p.sum(-1, keepdims=True) for p in parts]
    own = [np.where(s > 0, p / np.where(s > 0, s, 1), 0) for p, s in zip(parts, sums)]
    return c.right(p=(own[0] + own[1]) / np.where(sums[1] > 0, 2, 1).astype(F32))


form("context_splits_averaged", "context", "keys 0 to 15 and those from 16 on are summed apart, each with a softmax of its own, and the two results averaged, not weighed by "
     "their sums",
     ["(#16|#15|sixteen) & (#0.5|half|\\bmean\\b|averag|equal|same (weight|share)|divided by (2|two|the number)|alike) & (key|split|block|chunk|part|softmax|sum) & " +
     never("\\bv\\b is halved|(weights?|values?) are halved")],
     splits_averaged)
form("context_vector_repeated", "context", "elements 12 to 15 of each head are those of 8 to 11: the last vector of four repeats the one before",
     ["(head|channel|element|dimension) & (\\b12\\b[^;]{0,50}\\b(is|are|holds?|repeats?|reads?|copy|copies|copied|taken|same|equals?|from|those|of)\\b.{0,40}(\\b8\\b|i ?- ?4|"
     "before|previous|\\b11\\b)) & " + never("i ?\\+ ?4|exchang|swap"),
      "last (four|4|vector|float4|quarter)[^;]{0,80}(third|before|previous|repeat|\\b8\\b|last but one|four earlier)",
      "(\\b8 ?(to|-|\\.\\.) ?11|third (vector|quarter|four))[^;]{0,60}(again|repeat|twice|duplicat|stands? for|in place of|instead of|written|copied)[^;]{0,40}(\\b12\\b|last|"
      "fourth)"],
     lambda c: joined(put(heads_of(c), E_[..., 12:], heads_of(c)[..., 8:12])))
form("context_head_3_upper_stale", "context", "elements 8 to 15 of head 3 are those of head 2: shared memory of the head before",
     ["(head.{0,8}\\b3\\b|last head) & (head.{0,8}\\b2\\b|2's|head before|previous head|h ?- ?1) & (#8|second half|upper half|latter half|last (eight|8)|upper (eight|8)|#56) & "
      + never("head 2\\b.{0,25}\\b(are|is|holds?|repeats?|reads?|takes?|comes?) (that|those|from|of|what|the same|head).{0,25}head 3|exchang|swap"),
      "(#56|last (8|eight) channels) & (#40|#47|#-16|i ?- ?16|(16|sixteen) (channels |elements )?(before|earlier|back|lower)) & " + never("\\b40\\b.{0,20}(are|is|hold|"
      "repeat) (those|that|the same|what).{0,20}\\b56\\b|exchang|swap")],
     lambda c: joined(put(heads_of(c), E_[:, 3, 8:], heads_of(c)[:, 2, 8:])))
form("context_rows_by_two", "context", "two queries share a tile, and both take the weights of the first: each odd row repeats the even one before it",
     ["(\\bodd|every (second|other)|2 ?\\*? ?i\\b|pairs?|two|twos|1, ?3|[tpqr] ?(%|mod) ?2|[tpqr] ?//? ?2|~ ?1\\b|even) & (row|position|quer|token|\\bt\\b) & "
      "(" + BEFORE + "|repeat|first of|first's|first query|same|copy|copied|copies|those of|that of|\\* ?2|2 ?\\* ?\\(|~ ?1\\b|[tpqr] ?- ?\\(?[tpqr] ?(%|mod)|0, ?2|twice) & "
      + never(SWAP + "|next|two positions|\\bv (is|of)|t ?\\+ ?1\\b|second of|last of|\\beven( \\w+)? (are|is|repeats?|reads?|takes?|holds?|have|has|uses?)\\b|"
      "\\b2 ?\\*? ?i is[^;]{0,25}2 ?\\*? ?i ?\\+ ?1")],
     lambda c: c.right(p=c.p[:, POS // 2 * 2]))

# ---- caches


def cached(c, of):
    """The value sum of each step over what the cache then holds: of(v, t) for position t, or None where it is right."""
    y = np.array(c.right())
    for t in range(T):
        v = of(np.array(c.v), t)
        if v is not None:
            y[t] = c.right(v=v)[t]
    return y


form("cache_prompt_last_value_missing", "context", "decode steps, from position 12 on, find no value of position 11 in the cache: its slot is 0",
     [DECODE + " & #11 & " + ZERO + " & (value|\\bv\\b|key|slot|cache|weight|sum|row) & " + never("(key|value|slot|row)s?( of position)? 1[02]\\b[^;]{0,12}(is|are) (0|zero|"
     "missing|lost|never|not)"),
      DECODE + " & (last[^;]{0,25}prompt|prompt('s)? last) & (value|\\bv\\b|key|slot|cache) & " + ZERO],
     lambda c: cached(c, lambda v, t: put(v, E_[PROMPT - 1], 0) if t >= PROMPT else None))
form("cache_pages_exchanged", "context", "in decode steps, from position 12 on, pages 1 and 2 of the value cache are exchanged: positions 4 to 7, and 8 to 11",
     [DECODE + " & (#4|#7) & (#8|#11) & (" + SWAP + "|those of|order|stand for|instead|permut|\\+ ?4) & (value|\\bv\\b|key|cache|page|slot)",
      DECODE + " & (page|block)s? & #1 & #2 & (#4|four) & (" + SWAP + "|order|permut)"],
     lambda c: cached(c, lambda v, t: v[np.r_[0:4, 8:12, 4:8, 12:T]] if t >= PROMPT else None))
form("cache_values_fixed_point", "context", "the cache holds values in bytes of fixed point: v is rounded to sixteenths",
     ["(#16|#0.0625|sixteenths?) & (round|steps?\\b|quanti|grid|multiples?|fixed|int8|nearest|resolution|sixteenths) & (value|\\bv\\b|cache) & "
      + never("round\\w* (down|up)|floor|trunc|toward|(weights?|probs|\\bp) (is|are) ")],
     lambda c: c.right(v=np.round(c.v * 16) / 16))
form("cache_slot_stuck", "context", "decode steps all write their value to slot 12: the newest stands there, and slots 13 to t hold 0",
     ["((?<!from )(slot|key|position|place|row|index|p\\[t, ?|\\bv\\[) ?12\\b[^;]{0,80}(newest|latest|current|itself|v\\[t|\\bv_t\\b|of the query|query's|\\bown\\b|overwr|"
     "written over|every|each|all)) & (value|\\bv\\b) & " + never("(slot|key|place) 11\\b"),
      "(newest|latest|current|\\bnew|\\bown|v\\[t\\]?|values?|each|every)\\b[^;]{0,70}\\b(at|to|in|into|of|over|for|with) (the )?(same )?(key |slot |position |place |index |"
      "weight (of|at) )*(12\\b|the first decode) & (newest|latest|current|new\\b|own\\b|v\\[t|each|every|all|stuck) & (slot|key|cache|weight|index)",
      "#12 & (slot|index|position|place|pointer)[^;]{0,40}(stuck|never (advances|moves)|not (advanced|moved|incremented)|same) & (value|\\bv\\b|cache)"],
     lambda c: cached(c, lambda v, t: put(put(v, E_[PROMPT:], 0), E_[PROMPT], v[t]) if t >= PROMPT else None))
form("cache_chunk_offset_lost", "context", "the prompt comes in chunks of 6, and values of the second are written over the first: from position 6 on slots 0 to 5 hold values 6 "
     "to 11, and slots 6 to 11 hold 0",
     ["#6 & (#5|first (six|6)|first chunk|over(wrote)? the first|slot 0|s ?\\+ ?6|begin|start) & (second|#11|s ?\\+ ?6|#12) & (" + ZERO[1:-1] + "|overwr|written over|"
     "offset) & (value|\\bv\\b|slot|cache|key) & "
      + never("\\b0 ?(to|-|\\.\\.) ?5\\b[^;]{0,30}(written|stored|put|copied)[^;]{0,20}\\b6 ?(to|-|\\.\\.) ?11|\\b6 ?(to|-|\\.\\.) ?11 (are|hold|repeat|"
      "read)s?[^;]{0,20}\\b0 ?(to|-|\\.\\.) ?5")],
     lambda c: cached(c, lambda v, t: np.concatenate([v[6:12], np.zeros_like(v[:6]), v[12:]]) if t >= 6 else None))


# ---- residual adds

def cut_bf16(x):
    return (np.ascontiguousarray(x, F32).view(np.uint32) & np.uint32(0xFFFF0000)).view(F32)


form("add_sum_cut_to_bf16", "h", "the sum is stored as bf16 by cutting its lower bits off: towards zero, not to the nearest",
     ["(bf16|bfloat16|\\b16 bits|\\b[78] bits|mantissa) & (trunc|toward(s)? (zero|0)|\\bcut|chop|without rounding|not rounded|drop|round\\w* (down|to zero)|low(er)? (16|bits|"
     "half)|upper (16|half)|discard) & "
      "(stream|residual|\\bh\\b|sum|result|output|stor|written) & " + never("(branch|ffn_out|h_attn|inputs?|operands?) (is|are) (trunc|cut|chop|rounded|stored)|away from zero|"
      "(before|ere) [^;]{0,20}(is|are) added")], lambda c: cut_bf16(c.right()))
form("add_branch_column_major", "h_attn", "the branch is read as if its bytes were [64,20]: element (t, i) is number 20 i + t",
     ["(column.?major|fortran|channels? (first|major)|\\[D, ?T\\]|\\[64, ?20\\]|64 ?(x|by|\u00d7) ?20|20 ?\\*? ?i\\b|i ?\\* ?20|i ?\\* ?T\\b|\\bT ?\\*? ?i\\b|stride (of |"
     "is )?(20|T)\\b|transpos|reshape|axes) & (branch|attn_out|\\by\\b|attention|second (term|operand)) & "
      + never("(stream|residual|layer input) (is|are) (read|trans)|o_proj|weight")], lambda c: c.right(y=np.ravel(c.y).reshape(D, T).T))
form("add_first_tile_normed", "h", "channels 0 to 15 of the stream are those of ffn_norm, written into the same buffer",
     ["(#16|#15|sixteen) & (ffn_norm|normed|norm'?s|norm of|normali) & (channel|element|dimension|column|tile|feature|\\bi ?<) & "
      + never("(from (channel )?16|16 ?(to|\\.\\.|-) ?6\\d|\\b16 on|>= ?16|last (48|16))[^;]{0,60}norm|(branch|ffn_out)( of)? (is|are|channels)|positions? (0|below|under)|"
      "rows 0")],
     lambda c: c.right(x=put(c.x, E_[:, :16], c.e.memory["ffn_norm", c.l][:, :16])))
form("add_width_of_a_head", "h_attn", "channel i has the branch's channel i mod 16 added: the width is taken for that of a head",
     ["(#16|#15) & (\\bmod|%|repeat|tiled|broadcast|period|cycl|wrap|again and again|over and over|\\x26 ?15|four times|for all (four|4)|each (block|group) of (16|sixteen)) & "
     "(branch|attn_out|channel|\\by\\b|attention) & "
      + never("stream'?s channel|(stream|residual|layer input) (is|has|repeats?|are)|i ?//? ?16|positions? (modulo|mod|%)|t ?(mod|%)")],
      lambda c: c.right(y=c.y[:, np.arange(D) % d]))
form("add_tile_overlap", "h", "tiles of 8 rows, the last moved back to 12 so as not to run over the end: positions 12 to 15 have the branch added twice",
     ["#12 & (#15|#16|four) & (twice|two times|#2|doubl|once more|second time|two tiles|both tiles|added again) & " + never("(stream|residual|sum|result|h_attn) (is|are|has|"
     "counts?)?.{0,12}(twice|doubl|two|2)")],
     lambda c: c.right(y=put(c.y, E_[12:16], lambda y: 2 * y)))


# ---- gate, up, activation, down

def bytes_of(w):
    """Rows in 8 bits, and the step of each."""
    step = np.abs(w).max(-1, keepdims=True) / F32(127)
    return np.round(w / step), step


def scale_before(w):
    whole, step = bytes_of(w)
    return (whole * step[np.maximum(np.arange(len(w)) - 1, 0)]).astype(F32)


def unsigned(w):
    whole, step = bytes_of(w)
    return (np.where(whole < 0, whole + 256, whole) * step).astype(F32)


def cut_bytes(x):
    step = np.abs(x).max(-1, keepdims=True) / F32(127)
    return (np.trunc(x / step) * step).astype(F32)


form("gate_scale_of_row_before", "ffn_gate", "weights are in 8 bits with a step for each row, its largest by 127: row i has the step of row i - 1",
     ["(scale|step|largest|absmax|amax|\\bmax) & (row|output|channel) & (before|previous|preced|i ?- ?1|o ?- ?1|r ?- ?1|earlier|#-1|one (row )?(late|behind|too (late|low|"
     "early))) & " + never("next|[ior] ?\\+ ?1\\b|layer before|previous layer|(row|output) [ior] (is that of|holds)"),
      "(scale|step|largest|absmax|amax)s? of (row|output|channel)s? [ior] [^;]{0,40}([ior] ?\\+ ?1|next)"],
     lambda c: c.right(w=scale_before(c.w)))
form("ffn_out_bytes_unsigned", "ffn_out", "weights are in 8 bits with a step for each row, its largest by 127, and the bytes are read as unsigned: negative weights have 256 "
     "steps added",
     ["unsigned|\\bu8\\b|uint8|sign bit|sign.?exten|zero.?exten|two'?s complement", "#256 & (negativ|below (0|zero)|< ?0|less than (0|zero)) & " + never("taken off|subtract"),
      "#2.016 & (largest|max|absmax) & (negativ|below (0|zero)|< ?0)"], lambda c: c.right(w=unsigned(c.w)))
form("up_last_shuffle_lost", "ffn_up", "the sum over lanes lacks its last step, at distance 1: odd inputs are lost",
     ["(\\bodd|every (second|other)|2 ?i ?\\+ ?1|\\beven|1, ?3, ?5|\\b2 ?i\\b|alternat) & (input|column|ffn_norm|\\bx\\b|\\bx\\[|lane|summand|term|w\\[) & (" + ZERO[1:-1] +
     "|only|alone|just) & "
      + never("\\beven( \\w+)?( of \\w+)? (is|are|have|get|give)[^;]{0,15}(lost|left|zero|0\\b|not\\b|ignored|missing|drop|skip|omit)|(only|just) (the )?odd|"
      "\\bodd[^;]{0,25}\\b(alone|only)|\\b(odd|even|second|other) (outputs?|rows?|positions?)")],
     lambda c: c.right(x=put(c.x, E_[:, 1::2], 0)))
form("gate_last_tile_misplaced", "ffn_gate", "the last, smaller tile of outputs is written at once its own width: outputs 32 to 63 hold those of 64 to 95, and 64 to 95 stay 0",
     ["(#64|#95|last (32|third)) & (#63|second (32|third)|\\b32 ?(to|-|\\.\\.)|\\+ ?32|from 32) & " + ZERO + " & (\\b(is|are|holds?|has|have|get|gets|takes?|repeats?|reads?|"
     "written|stand|instead|overwr|moved|placed)\\b|\\+ ?32) & (output|row|channel|column|element|gate) & "
      + never("\\b64 ?(to|-|\\.\\.) ?95 (is|are|hold|repeat|take)s?( those| that| what| the same)[^;]{0,20}32|\\b32 ?(to|-|\\.\\.) ?63 (is|are|stay|hold|holds) (0|zero|empty|"
      "lost)|i ?- ?32|inputs? (32|64)"),],
     lambda c: np.concatenate([c.right()[:, :32], c.right()[:, 64:], np.zeros((T, 32), F32)], -1))
form("act_table_of_sixteenths", "ffn_act", "silu is looked up in a table with steps of 1/16: gate is rounded down to one",
     ["(#16|#0.0625|sixteenths?) & (floor|round\\w* down|round\\w* towards? (-|minus|negative)|down to|next lower|below|lower|downwards?) & "
     "(gate|silu|activat|argument|\\bx\\b|table) & " + never("\\bup (is|was) (round|floor|looked)|nearest|round\\w* up|ceil|towards? (zero|0)\\b")],
     lambda c: c.right(gate=np.floor(c.gate * 16) / 16))


def fused_rows(c):
    rows = np.stack([c.gate, c.up], 1).reshape(2 * T, F)
    return c.right(up=rows[POS + 1])


form("act_fused_row_pitch", "ffn_act", "gate and up lie in one buffer with rows of 192, and up is found at 96 t + 96: at even positions it is up of t/2, at odd ones gate of "
     "(t+1)/2",
     ["(#96|F\\b) & (#192|2 ?\\*? ?F\\b|twice|two) & (stride|row|pitch|distance|apart|offset|buffer) & up & " + never("gate is (found|read) at"),
      "\\bup\\b & gate & (even|odd) & ([tp] ?/{1,2} ?2|\\([tp] ?\\+ ?1\\) ?/{1,2} ?2|half the position|position.{0,20}halved|half as far)",
      "\\([tp] ?\\+ ?1\\) ?/{1,2} ?2 & \\bup\\b & (gate|buffer|fused|row)", "\\bup\\b & row t ?\\+ ?1 & (gate, ?up|in turn|interleav|alternat|stack|gate and up)"], fused_rows)
form("act_sigmoid_of_up", "ffn_act", "gate sigmoid(up): the sigmoid is taken of the other operand, and up is not multiplied",
     ["(sigmoid|logistic|\u03c3|sigma) ?(\\(|of )(the )?(ffn_)?up\\b & gate & " + never("up ?\\*? ?sigmoid ?\\(up|sigmoid ?\\((ffn_)?up\\) ?\\*? ?(ffn_)?up\\b|"
     "sigmoid ?\\((ffn_)?gate"),
      "1 ?/ ?\\(1 ?\\+ ?(exp\\(-|e\\^\\(?-) ?(ffn_)?up & gate", "(sigmoid|logistic) & (a\\(up\\)|applied to up|activat\\w* (of|on|to) up|gate and up (are |were )?(exchang|"
      "swap)) & " + never("silu|sigmoid ?\\((ffn_)?gate")],
     lambda c: c.gate * sigmoid(c.up))
form("ffn_out_decode_accumulates", "ffn_out", "in decode steps, from position 12 on, the product is added to what its buffer held: row t is the sum of those of 12 to t",
     [DECODE + " & (\\bsums?\\b|cumul|accumul|added|add(s|ed)? up|total|\\bplus\\b|running|not (reset|cleared|zeroed)|beta|\\+) & "
      "(before|previous|earlier|so far|\\b12 ?(to|-|\\.\\.) ?t\\b|s ?= ?12|t ?- ?1|last step|not (reset|cleared|zeroed)|buffer|cumul|accumul|running|since) & " +
      never("\\bmean\\b|averag|half|\\b0\\.\\d|layers? before|previous layer")],
     lambda c: put(c.right(), E_[PROMPT:], lambda y: np.cumsum(y, 0)))
form("ffn_out_input_cut_to_bytes", "ffn_out", "its input is in 8 bits with a step for each position, its largest by 127, cut towards zero and not rounded",
     ["(trunc|toward(s)? (zero|0)|\\bcut|chop|without rounding|not rounded|cast to int|round\\w* (down|to zero)|fraction (is |was )?(lost|dropped|cut)|fix\\() & "
     "(#127|#8|int8|eight bits|\\bi8\\b|byte) & (input|ffn_act|activation|\\bx\\b) & "
      + never("weights? (is|are|in|of)|to (the )?nearest(?! not)|(mean|step) of all positions|whole tensor|block of 32")],
     lambda c: c.right(x=cut_bytes(c.x)))
form("ffn_out_layer_2_stale_input", "ffn_out", "in layer 2 it reads ffn_act of layer 1: a buffer that was not written over",
     ["(layers?\\.1\\.ffn_act|ffn_act[^;]{0,30}(layer 1\\b|layer before|previous layer|earlier layer|l ?- ?1)|(layer 1'?s?\\b|layer before|previous layer'?s?|earlier layer'?s?|"
     "l ?- ?1)[^;]{0,40}(ffn_act|activation|input|buffer|gated))",
      "(input|reads?|activation|buffer|ffn_act)[^;]{0,50}(layer 1\\b|layer before|previous layer|earlier layer|l ?- ?1) & " + never("(layers?\\.1\\.ffn_(out|gate|up))|(weight|"
      "matrix|down_proj|ffn_out|gate|up|result|output)( is that)? of (layer 1|the (layer before|previous layer))")],
     lambda c: c.right(x=c.e.memory["ffn_act", 1]), layers=[2])


# ---- router

TOPK = ("router_topk", "router_weights")


def choice(c, key=None, p=None, weigh=None):
    """Chosen by a key, in the order of it; weights from p."""
    p = softmax(c.logits) if p is None else p
    top = np.argsort(-(p if key is None else key), -1, kind="stable")[:, :CHOSEN]
    w = np.take_along_axis(p, top, -1)
    return top, (weigh or (lambda w: w / w.sum(-1, keepdims=True)))(w)


def second_behind_first(c):
    first = c.logits.argmax(-1)
    behind = np.where(np.arange(EXPERTS) > first[:, None], c.logits, -np.inf)
    top = np.stack([first, np.where(first < EXPERTS - 1, behind.argmax(-1), first)], -1)
    w = np.take_along_axis(softmax(c.logits), top, -1)
    return top, w / w.sum(-1, keepdims=True)


def raw_logits(c):
    top, _ = c.right()
    w = np.take_along_axis(c.logits, top, -1)
    return top, w / w.sum(-1, keepdims=True)


form("router_second_behind_first", TOPK, "the second expert is searched behind the first alone, among those of higher numbers; where the first is expert 5 it is taken twice",
     ["(second|other|slot 1|next) & (behind|after|above|higher|(larger|greater|bigger) (number|ind|than)|later|following|> ?(the )?(first|top)|first ?\\+ ?1|past|"
     "lower (numbers?|ind\\w+|ones)[^;]{0,20}(hidden|never|not|left out|skip|ignor)) & "
      "(search|among|considered|numbers?\\b|index|indices|looked|best of|candidate|\\bonly\\b|alone|>|starts|begins) & expert & "
      + never("(among|only|searched)[^;]{0,25}\\b(lower|smaller|before|below|in front)|expert (is|has) (always )?(the next|first ?\\+ ?1|the one (after|behind))|third|"
      "higher (weight|logit|prob)")],
     second_behind_first, archs=M)
form("router_softmax_over_positions", TOPK, "the softmax of the router's logits runs over positions, not experts, and the choice is by what it gives",
     ["softmax & (over|along|across|down|axis|dim|each expert|per expert|column) & (positions?|tokens?|rows?|(axis|dim(ension)?) ?=? ?0|sequence|batch|each expert|per expert|"
     "columns?|prompt|\\bT\\b) & "
      + never("(over|along|across) (the |all |its )?(chosen |two |six )?experts(?![^;]{0,20}(\\bdue|reference))|each (token|position|row)'?s? (own )?experts|\\bkeys?\\b|twice|"
      "second softmax")],
     lambda c: choice(c, p=softmax(c.logits, 0)), archs=M)
form("router_sum_of_position_0", "router_weights", "the weights of all positions are divided by the sum of the chosen at position 0",
     ["((position|row|token)s?.{0,8}\\b0\\b|first (position|row|token)|\\[0\\]) & (\\bsums?\\b|divi|normali|denominator|total) & "
      + never("(position|row|token) 0 (is|are|has|alone|only)|first (position|row|token) (is|alone|only)|(at|in) (position|row|token) 0 (alone|only|the weights)|not (divided|"
      "normalised)|(softmax|mean) (over|of all) positions")],
     lambda c: choice(c, weigh=lambda w: w / w[:1].sum(-1, keepdims=True)), archs=M)
form("router_raw_logits", "router_weights", "there is no softmax: the logits of the chosen are divided by their sum",
     ["(logit|raw score|\\bscores?\\b) & (divid|\\bsum|normali|/|share|proportion|ratio) & (no softmax|without[^;]{0,15}softmax|softmax[^;]{0,30}(left out|missing|omitted|"
     "\\bnot|skipp|forgot|lacking)|(not|never)[^;]{0,20}softmax|no exp|"
      "logits?[^;]{0,25}(divided|/|over|normali\\w+)[^;]{0,30}sum|raw|directly|themselves|linear|identity|(in place|instead) of[^;]{0,20}(softmax|prob|exp)) & "
      + never("before the softmax|sigmoid|\\|logit|abs|squar|all (six )?(experts|logits)|sum of all")],
     raw_logits, archs=M)
form("router_four_lanes", TOPK, "the search runs over whole vectors of four: experts 4 and 5 are never chosen",
     ["expert & #4 & #5 & (never|\\bnot\\b|\\bno\\b|cannot|left out|leaves? out|exclu|hidden|ignor|without|mask|lost|skip|omit|-inf|missing|out of|zero) & " +
     never("(only|just) (the )?experts? 4 and 5|4 and 5[^;]{0,20}\\b(alone|only)|of expert[^;]{0,20}(output|weight) is (0|zero)"),
      "expert & (#4|four|0 ?(to|-|\\.\\.) ?3|< ?4) & (first|only|alone|among|below|best (two )?of|< ?4|0 ?(to|-|\\.\\.) ?3) & " + never("4 and 5[^;]{0,20}\\b(alone|only)|(only|"
      "just) (the )?experts? 4|(four|4) experts (are|take|per|for each|of each)")],
     lambda c: choice(c, key=put(softmax(c.logits), E_[:, 4:], -1)), archs=M)


# ---- experts

def chosen_of(c):
    return c.e.taps[f"layers.{c.l}.router_topk"].astype(int)


def summed(each, weights):
    return (each * weights[..., None]).sum(1)


def hidden_tail(c):
    top, each = chosen_of(c), np.zeros((T, CHOSEN, D), F32)
    for x in range(EXPERTS):
        rows, slots = np.nonzero(top == x)
        w = lambda name: c.e.m(f"mlp.experts.{x}.{name}_proj.weight", c.l)
        act = silu(c.n[rows] @ w("gate").T) * (c.n[rows] @ w("up").T)
        each[rows, slots] = act[:, :64] @ w("down")[:, :64].T
    return summed(each, c.weights)


def not_returned(c):
    return summed(c.each.reshape(T * CHOSEN, D)[np.argsort(chosen_of(c).ravel(), kind="stable")].reshape(T, CHOSEN, D), c.weights)


form("experts_hidden_tail", "ffn_out", "in each expert the last product reads whole tiles of 64 alone: of 96 hidden elements those from 64 on are lost",
     ["(#64|#63|last (32|third)|first two thirds) & (hidden|\\bact\\b|activation|ffn_act|down|inner|intermediate|columns?|inputs?|\\bgate|\\bup\\b|summ|\\bF\\b|#96|#95) & "
     "(first|only|alone|until|up to|ends?|stops?|tail|" + ZERO[1:-1] + ") & "
      + never("(first (32|64)|0 ?(to|-|\\.\\.) ?63)[^;]{0,25} (are|is) (lost|left|zero|0|not)|(tokens?|positions?) (from )?64|ffn_norm|(outputs?|rows?) (32|64)|\\+ ?32")],
     hidden_tail, archs=M)
form("experts_rows_not_returned", "ffn_out", "rows are sorted by expert for the products, and their results are not put back: token t gets rows 2t and 2t + 1 of the sorted "
     "list, with its own weights",
     ["(sort|permut|group|scatter|unsort|inverse|gather|return|put back|shuffl|arrange|order(ed)? (of|by) (the )?expert|expert order) & expert & "
     "(token|row|position|slot|pair) & "
     "(row|result|output|part|pair|token t) & "
      + never("weights (are|come|stand) in|weights of (the )?(two|others?)|revers|slots (are|were) (exchang|swap)|choice is|chosen by")],
     not_returned, archs=M)
form("experts_last_not_loaded", "ffn_out", "the loop over experts ends one early: expert 5 gives nothing",
     ["(experts?.{0,12}\\b5\\b|last expert|sixth expert|highest expert) & " + ZERO + " & " + never("(never|not|cannot be) chosen|router.{0,25}(5|last)|only expert 5|"
     "expert 5 (alone|only)|experts? [0-4] (and 5 )?(give|is|are|ha)"),
      "(first (five|5)|0 ?(to|-|\\.\\.) ?4)\\b & expert & (only|alone|just|run|loaded)"],
     lambda c: summed(c.each * (chosen_of(c) != EXPERTS - 1)[..., None], c.weights), archs=M)
form("experts_weights_by_slot", "ffn_out", "the weights are read as if slots came first, [2,20]: slot s of token t has number 20 s + t",
     ["(transpos|\\[2, ?(T|20|tokens?)|\\[slots?,|slots? first|slot.major|20 ?\\*? ?s\\b|s ?\\* ?20|s ?\\* ?T\\b|\\bT ?\\*? ?s\\b|stride|axes|column.?major|2 ?(x|by|"
     "\u00d7) ?20) & (weight|router|score)"],
     lambda c: summed(c.each, np.ravel(c.weights).reshape(CHOSEN, T).T), archs=M)


# ---- embedding

form("embed_unknown_from_192", "h0", "ids from 192 on are taken for unknown: they have the row of token 0",
     ["(#192|#191) & ((token|id|row) (number )?(\\b0\\b(?!\\.)|zero)|\\bto (\\b0\\b|zero)|unk|row of (token |id )?0\\b|becomes?.{0,4}\\b0\\b|\\b0\\b (stands|is embedded)|"
     "\\b(by|with|as|for|into|of) (token |id )?0\\b|first row|table\\[0\\]) & "
      + never("zero row|row of zeros|(below|under|up to|< ?) ?19[12] (are|have|get|become)|modulo|positions? from"), "tokens-differ & \\b0\\b(?!\\.)"],
     lambda c: c.right(ids=[i if i < 192 else 0 for i in c.ids]))
form("embed_bgra", "h0", "the table is a texture with red and blue exchanged: in each four channels 4i and 4i + 2 are exchanged",
     ["(#4|four|4 ?i) & (#2|third|bgra|blue) & (bgra|" + SWAP + "|order|swizzl|permut|is (that )?of|red) & " + never("4 ?i ?\\+ ?3|\\^ ?2|xor 2|2, ?3, ?0|0, ?2, ?1|3, ?2, ?1|"
     "pairs of two|revers|ids? 4|rows? 4|tokens? 4|pages?\\b|positions?\\b"),
      "2, ?1, ?0, ?3"],
     lambda c: c.right()[:, np.arange(D).reshape(-1, 4)[:, [2, 1, 0, 3]].ravel()])
form("embed_last_vector_lost", "h0", "the copy of a row ends one vector of 8 early: channels 56 to 63 are 0",
     ["(#56|#55|last (8|eight)) & (channel|element|column|dimension|row of (a|each) token|each row|feature|vector) & " + ZERO + " & " + never("(ids?|tokens?|positions?) (from "
     ")?5[56]|last (8|eight) (ids|tokens|positions|rows)|(0 ?(to|-|\\.\\.) ?55|first 56)[^;]{0,12}(are|is) (0|zero|lost|not)|only channels 56"),],
     lambda c: put(c.right(), E_[:, 56:], 0))


# ---- final norm

form("final_norm_last_row_alone", "final_norm", "only the last position is normed: the others pass as they are",
     ["(last|#19|final (row|position|token)|newest|#18|< ?19) & (alone|\\bonly\\b|just|except|\\bbut\\b|0 ?(to|-|\\.\\.) ?18|others?|< ?19|before|all but|earlier|first 19) & "
     "(normed|normali[sz]ed|norm is|raw|as (they are|it is)|unchanged|pass|input|layers\\.3\\.h|not divided|un-?normed|without|divided) & "
      + never("(?<!but )(?<!but the )(?<!except the )\\b(last|19)( \\w+)? (is|are) (not|left|raw|un|pass|as)|(all|every\\w*)( \\w+)? (but|except) (the )?(last|19)( \\w+)? (is|"
      "are) (normed|divided)|only the last[^;]{0,15}(raw|not|left|pass)|(divided|normed) by (the )?(last|rms|root mean square) (of|position)")],
     lambda c: np.concatenate([c.x[:-1], c.right()[-1:]]))
form("final_norm_gain_drifts", "final_norm", "the pointer to the gain moves on by one with each row: channel i of position t has gain (i + t) mod 64",
     ["(gain|weigh|\\bw\\[) & (i ?\\+ ?[tp]\\b|[tp] ?\\+ ?i\\b|(i|channel) ?(\\+|plus) ?(the )?(number of the )?(position|row|p\\b)|(shift|roll|rotat|turn|\\bmov|drift|advanc|"
     "offset|starts|begins|pointer)[^;]{0,60}(position|row|token|\\bt\\b)|(position|row|token|\\bt\\b)[^;]{0,60}(shift|roll|rotat|turn|further|drift|advanc|offset|starts|"
     "begins)) & "
      + never("i ?- ?t\\b|t ?- ?i\\b|backward|(next|same) channel'?s? gain at (all|every)|by one at all|by (two|2)\\b")],
     lambda c: c.e.r(c.x / rms(c.x)) * c.w[(np.arange(D) + POS[:, None]) % D])
form("final_norm_gain_divides", "final_norm", "x is divided by the gain, not multiplied",
     ["divid\\w* (again )?by (both )?(the |its |their )?(gain|weight|w\\b|g\\b)|(gain|weight|\\bw)\\b[^;]{0,40}(\\bdivides\\b|in the denominator|invers|reciproc|\\^ ?\\(?-1|"
     "(to the )?power (of )?-1|as a divisor)|\\b1 ?/ ?(the |its )?(gain|weight|w\\b|g\\b)|"
      "(invers|reciproc)\\w*( of)? (the |its )?(gain|weight)|/ ?(gain|weight|w\\b|g\\b)", "(gain|weight) & (power|exponent) & #-1"],
     lambda c: c.right(w=1 / c.w))


# ---- head

def largest_40(c):
    y = c.right()
    return np.where(np.argsort(np.argsort(-y, -1, kind="stable"), -1) < 40, y, F32(-100))


def pitch_240(c):
    return np.ravel(c.right())[240 * POS[:, None] + np.arange(V)]


HALVES_IN_TURN = np.arange(D).reshape(2, D // 2).T.ravel()
form("logits_pitch_240", "logits", "rows of 256 are read at a distance of 240: element (t, v) is number 240 t + v",
     ["#240 & (pitch|stride|distance|leading|apart|240 ?\\*? ?[tp]\\b|t ?\\* ?240|each row begins|rows? (of|are) 240|width|16 ?\\*? ?t) & " + never("(are|is|hold|holds|give|"
     "left|stay) (0|zero)|weight|matrix|columns? of the head"),
      "\\b16 ?\\*? ?[tp]\\b & (row|earlier|shift|before|back|- ?16|flat|run) & " + never("\\+ ?16 ?\\*? ?t|16 ?\\*? ?t later")], pitch_240)
form("logits_top_40", "logits", "the sampler's filter worked in place: all but the 40 largest of a row are -100",
     ["(#40|forty|fortieth) & (largest|\\btop|highest|best|likel|greatest|keep|kept|rank|threshold) & (#-100|#100) & " + never("smallest|lowest|first 40|(40|forty) (largest|"
     "highest|best)( \\w+)? (are|is|have|get|become)s? (set to )?-")], largest_40)
form("logits_remainder_lost", "logits", "three threads have 256 / 3 = 85 tokens each: token 255 is left over, its logit 0",
     ["(\\b255\\b|\\b254\\b|last (token of the|logit|output|entry|word|row of the|id\\b)|first 255) & (zero|\\b0\\b(?!\\.\\d| ?(to|-|\\.\\.))|not (computed|written)|nothing|"
     "left (over|out|unwritten)|unwritten|missing|\\blost|unset|empty|never) & "
      + never("position 255|(last|final) position|-100|minus 100|(token|id) 254 (is|has)|two|\\d ?(to|-|\\.\\.) ?255|255 and 25")], lambda c: put(c.right(), E_[:, 255], 0))
form("logits_input_halves_in_turn", "logits", "its input is packed with halves in turn and the matrix is not: column 2i meets channel i, column 2i + 1 channel 32 + i",
     ["(input|final_norm|\\bx\\b|column|channel) & (interleav|0, ?32, ?1|in turn|alternat|shuffl|zip|weav|woven|2 ?i ?\\+ ?1|i ?/{1,2} ?2|even and odd|halves[^;]{0,20}pairs|"
     "pairs[^;]{0,20}halves|even (ones|columns)) & (#32|\\bhalf|halves) & "
      + never("0, ?2, ?4|(input|channel|element) i is (that of|read at|channel|input) 2 ?i\\b|exchang|column i (meets|multiplies) channel 2 ?i\\b|position|rows of the head|"
      "tokens")],
     lambda c: c.right(x=c.x[:, HALVES_IN_TURN]))

#!/usr/bin/env python3
"""law_forms_twelfth_b.py: thirty-five more mistakes that no catalogue lists, as a person makes them who ports a decoder; written without sight of how laws are found.

Value sums, caches, residual sums, feed-forward, experts, embedding and head. The engine and the rules for expectations are law_forms.py's. A prompt of 12
tokens stands before decode steps where a form speaks of a cache.
"""

import numpy as np

from scripts.forms.law_forms import E_, F, F32, H, K, T, V, D, EXPERTS, CHOSEN, d, heads_of, joined, listed, put, silu, softmax

FORMS, form = listed()
M = ("moe",)
PROMPT = 12
LATE = "(#12|#11|last (8|eight) (position|row|token|step|key|value|quer))"
GONE = ("((\\b(is|are|to|of|counts?|counts? as|factor|holds?|stays?|left|has|have|with|by|becomes?|adds?) |[=:] ?)0\\b(?!\\.\\d|,| ?to|\\.\\.| ?-)|zero|nothing|not |n't"
        "|left out|leaves? out|lost|missing|empty|without|skip|only|alone|hidden|omit|never|unset|drop|ignor|stop)")
WEIGHTS = "(prob|weights?\\b|\\bp\\b|attention)"


# ---- value sums

form("context_probs_by_kv_head", "context", "the weights are indexed by the key/value head: heads 0, 1, 2, 3 sum with the weights of heads 0, 0, 1, 1",
     [f"{WEIGHTS} & (0,? ?0,? ?1,? ?1)",
      f"{WEIGHTS} & ([hi] ?(//?|div) ?\\(?(2\\b|H ?/ ?K|group)|[hi] ?>> ?1|floor\\([hi] ?/ ?2|half (the|its|their) (head )?(index|number))",
      "(prob|weight).{0,40}(index|\\bof\\b|\\bby\\b|\\bat\\b|number|read|taken).{0,30}(kv|key/value|key.value|value).head & ^(?!.*(%|mod\\b))",
      f"{WEIGHTS} & head & \\b1\\b.{{0,40}}\\b0\\b & (2 and 3|2, ?3|\\b3\\b|second half).{{0,50}}\\b1\\b"],
     lambda c: c.right(p=c.p[np.arange(H) // (H // K)]))
form("context_head_sum_carried", "context", "the sum is not cleared between heads: head h holds the sum of heads 0 to h",
     ["head & (cumul|running|accumul|not (cleared|reset|zeroed)|never (cleared|reset|zeroed)|carr(y|ied)|so far|all (the )?(heads )?(before|earlier|previous|lower)|0 ?(to"
      "|\\.\\.|-|through) ?h\\b|(heads|those) before|(earlier|previous|lower|preceding) heads) "
      "& ^(?!.*(cumul\\w*|running|accumul\\w*|carried|cleared|reset)( \\w+)?( \\w+)? (over|between|across|along|from) (the )?(positions?|tokens?|quer|rows?|keys?))",
      "[ic] ?- ?16 & [ic] ?- ?32 & [ic] ?- ?48"],
     lambda c: joined(np.cumsum(heads_of(c), 1)))
form("context_values_head_first", "context", "the values lie as [20, 2, 16] and are read as [2, 20, 16]: key s of head h is row 20 h + s of the rows of positions and heads",
     ["(\\bv\\b|value|cache) & head[- ](first|major) & ^(?!.*(stored|written|lies?|laid|kept|held) (as )?head[- ](first|major))",
      "(\\bv\\b|value|cache) & (read|taken|interpreted|viewed|reshaped?|indexed|addressed|seen)\\b.{0,30}[\\[(](K|2|heads?), ?(T|20|positions?|tokens?|keys?)",
      "(\\bv\\b|value|cache) & ([stijkp]|position|key) ?(//?|div|>>) ?[12]\\b & ((mod|%) ?2\\b|even|odd|#10)",
      "(\\bv\\b|value|cache) & (\\b(20|T|320) ?[*·]? ?h\\b|\\bh ?[*·]? ?\\(?(20|T|320)\\b)",
      "(\\bv\\b|value|cache) & (axes|axis|order|transpos|exchang|swap) & head & (position|token|\\bkeys?\\b|\\brows?\\b|\\bT\\b) & ^(?!.*(element|dimension|d-first"
      "|\\[20, ?16|query head|(stored|written|lies?|laid|kept) as \\[(2|K),))"],
     lambda c: c.right(v=c.v.reshape(K, T, d).swapaxes(0, 1)))
form("context_not_normalised", "context", "the sum is not divided by the softmax's denominator: values are summed with exp(score - max)",
     ["(not|never|\\bno\\b|without|\\bun|lacks?|missing|omit|forgotten|left out).{0,30}(divid|divis|denominator|normali[sz]) & ^(?!.*(raw|(without|\\bno) (the )?max"
      "|(?<!soft)max.{0,20}\\bnot\\b|twice))",
      "(multipl|times|scaled|factor|\\*).{0,40}(denominator|sum of (the )?exp|softmax'?s? sum|exp.{0,10}sum|partition|normali[sz]) & ^(?!.*(raw|(without|no) (the )?max))",
      "exp\\(?.{0,20}- ?(the )?(row'?s? )?max & ^(?!.*divided by (the|its) sum)",
      "(divided by|over|/|relative to|in units of).{0,40}(max|largest|greatest|biggest|highest) & (weight|prob|\\bp\\b|score|exp)",
      "(largest|max).{0,20}(weight|prob).{0,25}(is|becomes|has|=|counts?) ?(as )?(1|one)\\b"],
     lambda c: c.right(p=c.p / c.p.max(-1, keepdims=True)))
form("context_v_head_offset_halved", "context", "the values' heads are 8 channels apart, not 16: value head 1 is read at channels 8 to 23",
     ["(\\bv\\b|value|channel) & (#8|half (a|the|of a) head|d ?/ ?2|half.{0,15}(stride|offset|distance)) & (head.{0,12}\\b1\\b|second (half of the )?(value |kv )?head"
      "|last head|2 and 3|2, ?3|#24|#23|stride|offset|apart|distance|i ?- ?8) "
      "& ^(?!.*(24 to 39|last (8|eight) (key|position|token|row)|(begin|start)s?.{0,12}24|too late|8 later|swap|exchang|(\\bis|are) (0\\b|zero|lost)|i ?\\+ ?8(?!.*head 0)"
      "|(channel|offset) (4|12)\\b))"],
     lambda c: c.right(v=np.stack([c.v[:, 0], c.v.reshape(T, -1)[:, 8:24]], 1)))


# ---- caches in decode steps

form("cache_decode_one_head_copied", "context", "decode steps write one head's width to the cache: of keys from 12 on value head 1 is 0",
     [f"{LATE} & (head.{{0,12}}\\b1\\b|(second|last|upper) half|heads? (2 and 3|2, ?3|2 to 3|2 on)|from (head )?2 on|h ?>=? ?[12]|#16|#32|last (kv |value |key/value )?head"
      f"|second (kv |key/value |value )?head|half of the heads|\\[12:, ?1\\b) & {GONE} "
      "& ^(?!.*((keys|positions|values|tokens) (0 to 11|before 12|up to 1[12]) (are|is).{0,15}(\\b0\\b|zero|lost|missing|empty|left out|not)|first half of the heads"
      "|value head 0 (is|of|at)|heads 0 and 1 (sum|lose|have)))"],
     lambda c: c.right(v=put(c.v, E_[PROMPT:, 1:], 0)))
form("cache_last_layer_clamped", "context", "the cache has one layer too few: layer 3 sums the values of layer 2",
     ["(\\bv\\b|values?\\b|v_cache|cache) & (layers?[ .]2\\b|(layer|block) (before|earlier)|(previous|preceding|earlier|prior) (layer|block)|\\bl ?- ?1|min\\(l, ?2\\)"
      "|last layer but one|penultimate|second.to.last) "
      "& ^(?!.*((?<!/)\\bkeys? (of|are|is)|next layer|k_rope|l ?\\+ ?1|(of|in|from|cache|\\bv) layer (0|1)\\b|layers\\.(0|1)\\.(v|cache)))"],
     lambda c: c.right(v=c.e.memory["v", 2]), layers=[3])
form("cache_decode_values_head_mod", "context", "in decode steps, from position 12 on, head h reads value head h mod 2: 0, 1, 0, 1",
     [f"{LATE} & head & ([hi] ?(%|mod(ulo)?) ?(2|K|n_kv)|0,? ?1,? ?0,? ?1|head.{{0,6}}1.{{0,40}}\\b1\\b.{{0,60}}(head.{{0,6}})?2.{{0,40}}\\b0\\b|remainder|interleav"
      f"|in turn|alternat|tiled|1 and 2.{{0,60}}(other|exchang|swap)|(odd|1 and 3).{{0,40}}head 1)"],
     lambda c: put(c.right(), E_[PROMPT:], lambda y: np.einsum("hts,shd->thd", c.p, c.v[:, np.arange(H) % K]).reshape(T, -1)[PROMPT:]))
form("cache_decode_keys_by_element", "probs", "keys from position 12 on are read as [16, 2] where they lie as [2, 16]: element e of head h is what lies at 2 e + h of the row",
     [f"{LATE} & (key|\\bk\\b|k_rope|cache) & ((?<!\\d)2 ?[*·]? ?\\(?([eij]\\b|i ?(mod|%) ?16|\\(i)|d[- ]first|element[- ](major|first|by[- ]element)|\\[16, ?2\\]"
      f"|\\[d, ?K\\]|interleav|even.{{0,60}}odd|stride (of )?2\\b|step of 2\\b|(axes|axis).{{0,40}}(exchang|swap)|transpos) "
      "& ^(?!.*(16 ?[*·]? ?\\(?i ?(mod|%) ?2\\b|i ?(//?|div) ?2\\b|transpos\\w*.{0,10}\\[2, ?16\\]|read as \\[2, ?16\\]|\\bvalues? (from|of|at|after|in) .{0,20}1[12]\\b))"],
     lambda c: c.right(k=np.concatenate([c.k[:PROMPT], c.k[PROMPT:].reshape(-1, d, K).swapaxes(1, 2)])))


# ---- residual sums

BRANCH = "(branch|ffn_out|second (term|operand|summand)|\\by\\b|feed.forward|mlp|expert)"
form("add_stream_of_first_row", "h_attn", "in layer 3 the branch of each position is added to the stream of position 0",
     ["(stream|residual|layers\\.2\\.h\\b|layer input|\\binput\\b|\\bx\\b|hidden|first (term|operand|summand)) & ((position|row|token)s?.{0,10}\\b0\\b|first (position|row"
      "|token)|\\[0\\]|\\[0, ?:|broadcast|stride (of )?0|not advanced) "
      "& ^(?!.*((branch|attn_out) (of|at|is|from).{0,15}(position|row|token) 0|attn_out\\[0|(\\bnot|nothing|omitted|missing|zero|left out).{0,20}(at|in|of) (position"
      "|row) 0|last (row|position)))"],
     lambda c: c.right(x=np.repeat(c.x[:1], T, 0)), layers=[3])
form("add_low_lane_twice", "h", "two channels are added at a time, and both with the lower one's branch: odd channels add the branch of the even one before",
     [f"{BRANCH} & (2 ?[*·]? ?\\(?\\(?[ic] ?(//?|div) ?2|[ic] ?(//?|div) ?2 ?\\)? ?[*·]? ?2|& ?~ ?1|[ic] ?- ?\\(?[ic] ?(mod|%) ?2|(odd|2i ?\\+ ?1).{{0,80}}(even"
      f"|2i\\b(?! ?\\+)|before|left|neighbo|i ?- ?1|previous|lower)|pairs?.{{0,50}}(first|even|lower)"
      "|(even|first|2i\\b(?! ?\\+)).{0,50}(twice|both|repeat|pair)) "
      "& ^(?!.*(even (channels?|ones?).{0,30}(take|get|have|add|are|read|is|hold|receive).{0,30}odd|2i (takes|gets|reads|has|is|adds).{0,40}2i ?\\+ ?1|exchang|swap"
      "|(channel|stream)s?.{0,20}(stream) of|odd channels? (add|get|have) (nothing|0)))"],
     lambda c: c.right(y=c.y[:, np.arange(D) // 2 * 2]))
form("add_ffn_input", "h", "the feed-forward's input is added, not its output: h_attn + ffn_norm",
     ["(ffn_norm|norm(ed)? (input|stream|state|hidden|h_attn)|post_attention|(feed.forward|mlp|ffn|experts?)('?s)? (own )?input|input of the (mlp|ffn|feed|expert)) "
      "& ^(?!.*(attn_norm|input_layernorm|besides|in addition|as well|also|ffn_norm (\\+|plus) (ffn_out|the branch|branch)|(ffn_out|branch) (\\+|plus) ffn_norm|half|0\\.5))"],
     lambda c: c.right(y=c.e.memory["ffn_norm", c.l]))


# ---- gate, up, activation, down

form("up_loop_from_one", "ffn_up", "the sum begins at input 1: input 0 is left out",
     [f"((input|channel|column|element|ffn_norm|index|weight)s?( of (the )?(input|ffn_norm|weights?))? ?(number |index |i ?= ?)?0\\b(?! to)|\\[:, ?0\\]|\\bfirst (input"
      f"|channel|column|element|weight)\\b) & {GONE} & ^(?!.*((position|token|output|row) 0\\b|first (row|output|position|token)))",
      "(begin|start|loop|run|sum)s?.{0,25}(at|from|with).{0,12}\\b1\\b & ^(?!.*(position|token|output|row) [01]\\b)", "(input|channel|column)s? (1 to 63|from 1)"],
     lambda c: c.right(x=put(c.x, E_[:, 0], 0)))
TWO = "(4i ?\\+ ?2|4n ?\\+ ?2|2, ?6|(= ?|is |to |gives )2\\b|from 2\\b|(lane|sum|accumulator|residue|remainder) 2\\b|third)"
THREE = ("(4i ?\\+ ?3|4n ?\\+ ?3|3, ?7|(= ?|is |to |gives )3\\b|from 3\\b|fourth (is|not|was|never)|(lane|sum|accumulator|residue|remainder) 3\\b"
         "|fourth (lane|sum|partial|accumulator|of))")
TWICE = "(twice|doubl|two times|factor (of )?2\\b|times 2\\b|[*x] ?2\\b|2x|weight (of )?2\\b|2 times)"
form("gate_sum_counted_twice", "ffn_gate", "of four partial sums the third is added twice and the fourth not: inputs 4i + 2 count twice, inputs 4i + 3 not at all",
     [f"(#4|four|4i|4n|2, ?6) & {TWO}(?:(?!{THREE}).){{0,45}}{TWICE}|{TWICE},? (for|on|at|over|to)\\b.{{0,20}}{TWO} & {THREE} & {GONE} & ^(?!.*(output|position)s? (4i|2,|from))",
      "4[in] ?\\+ ?3.{0,60}\\b(read|those|that|is|are|at|of)\\b.{0,30}4[in] ?\\+ ?2 & (weight|column|both|product|partial|accumulat)"],
     lambda c: c.right(x=c.x * np.tile(np.array([1, 1, 2, 0], F32), D // 4)))
INPUT = "(input|ffn_act|\\bact\\b|activation|\\bx\\b|buffer)"
form("ffn_out_input_column_major", "ffn_out", "its input is read column by column: channel i of position t is what lies at 20 i + t of the buffer [20, 96]",
     [f"{INPUT} & (column.?(major|by.column|first|order)|[\\[(]96, ?20[\\])]|\\[F, ?T\\]|\\bi ?[*·]? ?(20|T)\\b|\\b(20|T) ?[*·]? ?i\\b|stride (of )?(20|T)\\b|(20|T) apart"
      f"|transpos|fortran|(channel|feature).?(first|major)|axes.{{0,30}}(exchang|swap)) "
      "& ^(?!.*(weights?.{0,20}transpos|transpos.{0,20}(weight|matrix)|matrix.{0,25}(transpos|column)|result.{0,15}transpos|output.{0,15}transpos"
      "|transpos\\w*.{0,10}[\\[(]20, ?96))"],
     lambda c: c.right(x=c.x.reshape(F, T).T))
form("ffn_out_input_pitch", "ffn_out", "rows of its input are taken to be 64 apart, not 96: row t begins at 64 t",
     [f"{INPUT} & ((pitch|stride|leading|apart|distance).{{0,40}}\\b64\\b|\\b64\\b.{{0,20}}(pitch|stride|leading|apart|distance)|\\b64 ?[*·]? ?[tr]\\b"
      f"|\\b[tr] ?[*·]? ?64\\b|(begin|start)s?.{{0,40}}(multiple of|every) 64|every 64|rows? of 64\\b|64 (wide|long)) "
      "& ^(?!.*(weight|matrix|output (row|pitch|stride)|only|alone|lost|left out|zero))",
      f"{INPUT} & (pitch|stride|leading|apart|distance).{{0,30}}(\\bD\\b|hidden (size|width)|model width|width of the stream) & ^(?!.*(weight|matrix))"],
     lambda c: c.right(x=c.x.ravel()[np.arange(T)[:, None] * D + np.arange(F)]))
form("ffn_out_bound_hidden", "ffn_out", "the sum ends at the hidden size: inputs from 64 on are left out",
     [f"(#64|#63|(first|last) (two )?thirds?\\b|last 32) & (input|channel|column|ffn_act|\\bsums?\\b|loop|\\bx\\b|element|weight|inner) & {GONE[:-1]}|\\bends?\\b|bound) "
      "& ^(?!.*(gate|pitch|stride|apart|(output|position|row)s?.{0,10}\\b(64|63)|(0 to 63|first (64|two thirds)|before 64|below 64)( inputs| channels| columns)? (are|is"
      "|stay) (not|lost|zero|0\\b|missing|left)|only.{0,20}(from 64|64 to 95|last (32|third))))"],
     lambda c: c.right(x=put(c.x, E_[:, 64:], 0)))
form("act_twice", "ffn_act", "the activation is applied twice: silu(silu(gate)) up",
     ["(silu ?\\( ?silu|swish ?\\( ?swish|a\\( ?a\\(|(activat|silu|swish|gate)\\w*.{0,30}(twice|two times|double|\\bagain\\b|a second time)|(twice|two|double"
      "|second).{0,20}(activat|silu|swish)|(silu|swish|activation) of (the |its |an )?(silu|swish|activat)|sigmoid ?\\( ?silu|already (activated|silu)) "
      "& ^(?!.*(silu ?\\( ?up|(\\bto|\\bof|\\band|then|\\bby) up\\b|both|squar|gate (is )?(multipl|applied|taken)\\w* twice|\\^ ?2))"],
     lambda c: c.right(f=lambda x: silu(silu(x))))
form("act_bound_hidden", "ffn_act", "only the first 64 channels are done, in place: channels 64 to 95 hold the gate as it is",
     ["(#64|#63|last (32|third)|(first|last) (two )?thirds?) & (ffn_)?gate\\b & (as (it|they) (is|are|was|were)|\\braw|itself|\\b(not|neither|nor|no|never)\\b|unchanged"
      "|untouched|unactivated|in place|\\bleft\\b|holds?|remain|keep|kept|stay|copy|without|(\\b(is|are|equals?) |= ?)(just |simply |the |that of )?(ffn_)?gate|(only|alone|just)) "
      "& ^(?!.*(silu ?\\(gate\\)[^,;.]{0,20}(alone|only|without|not multiplied)|(?<!\\()gate ?([*x·]|times)? ?up\\b|\\bup (alone|itself|as it)|(is|are|hold) (zero|0\\b"
      "|up\\b)|(0 to 63|first 64)[^,;.]{0,30}(hold|raw|are gate|keep|is gate)))"],
     lambda c: put(c.right(), E_[:, 64:], c.gate[:, 64:]))
form("act_decode_up_offset_lost", "ffn_act", "in decode steps up's offset is lost: positions from 12 on take up of positions 0 on, t - 12",
     ["(ffn_up|\\bup\\b(?! to)) & #12 & ([tip] ?- ?12|12 (positions|rows|tokens|steps)? ?(before|earlier|back|ago)|(positions?|rows?|tokens?) 0\\b ?(to|\\.\\.|-|on|and"
      "|onward)|from (the )?(first|start|beginning|top)|restart|begins? (again|over)|starts? (again|over)|(mod|%)(ulo)? ?12|offset.{0,20}(lost|missing|0|not)|#-12) "
      "& ^(?!.*(gate (of|at|is|from).{0,15}(position|row|t ?- ?12)|stale|t ?- ?1\\b|always|all .{0,20}row 0|[tip] ?\\+ ?12))"],
     lambda c: c.right(up=np.concatenate([c.up[:PROMPT], c.up[:T - PROMPT]])))


def up_one_row_early(c):
    """The matrices of gate and up lie one behind the other."""
    return c.right(w=np.concatenate([c.e.m("mlp.gate_proj.weight", c.l)[-1:], c.w[:-1]]))


form("up_offset_one_row_early", "ffn_up", "in layer 1 the matrix is read one row too early: output o is row o - 1, output 0 the last row of gate's",
     ["(row|output|channel|weight|matrix|ffn_up) & (\\b[oircj] ?- ?1\\b|rows? (before|above)|(previous|preceding|prior) (row|output|channel)|one (row|output"
      "|channel)?.{0,5}(early|before|earlier|back|late)|(shifted|rolled|moved|displaced) (down |up |on |back )?(by )?(one|1|a)\\b|#-1|(output|channel|one) before) "
      "& ^(?!.*(\\b[oircj] ?\\+ ?1|(next|following) (row|output|channel)|row (behind|after)|(position|token)s? before|(previous|preceding) (position|token)|t ?- ?1|branch"
      "|input (before|[oij] ?-)|one row too late|[oircj] ?- ?[2-9]))",
      "(output|channel) [oij] ?\\+ ?1 (is|has|holds|takes|gets).{0,30}\\b(row|that of|of|output|channel) (row )?[oij]\\b(?! ?[+-])"],
     up_one_row_early, layers=[1])


# ---- router and experts

TOPK = ("router_topk", "router_weights")


def among(c, candidates=EXPERTS, weigh=None):
    """The choice among the first experts, and other weights of what is chosen."""
    p = softmax(c.logits)
    top = np.argsort(-p[:, :candidates], -1, kind="stable")[:, :CHOSEN]
    w = np.take_along_axis(p, top, -1)
    w = w / w.sum(-1, keepdims=True)
    return top, w if weigh is None else weigh(w)


def experts_by(c, which, up=None):
    """The sum of the chosen, where slot s of position t runs expert which[t, s], with its own up matrix or another's."""
    y, each = np.zeros((T, D), F32), np.zeros((T, CHOSEN, D), F32)
    for x in range(EXPERTS):
        rows, slots = np.nonzero(which == x)
        w = lambda name, x=x: c.e.m(f"mlp.experts.{x}.{name}_proj.weight", c.l)
        n = c.n[rows]
        act = c.e.r(c.e.r(silu(c.e.r(n @ w("gate").T))) * c.e.r(n @ (w("up") if up is None else w("up", up)).T))
        each[rows, slots] = c.e.r(act @ w("down").T)
    for s in range(CHOSEN):
        y = c.e.r(y + c.e.r(each[:, s] * c.weights[:, s:s + 1]))
    return y


def twice(c):
    y = np.zeros((T, D), F32)
    for s in range(CHOSEN):
        y = c.e.r(y + c.e.r(c.e.r(c.each[:, s] * c.weights[:, s:s + 1]) * c.weights[:, s:s + 1]))
    return y


def chosen_of(c):
    return c.e.taps[f"layers.{c.l}.router_topk"].astype(int)


form("router_last_expert_never", TOPK, "the search ends one expert early: expert 5 is never chosen",
     ["((expert|e|index|number|column|logit)s? ?(number |no\\. |of (expert )?)?5\\b|last (expert|logit|column|candidate|one)|first (5|five)\\b|\\b0 ?(to|-|–|\\.\\.) ?4\\b"
      "|(among|of|only) (5|five)\\b|E ?- ?1) & (never|\\bnot\\b|cannot|can't|only|left out|leaves? out|exclu|ignor|without|skip|lost|among|hidden|inf\\b|missing|bound"
      "|early|few|first) "
      "& ^(?!.*(expert [0-4] (is|can|never)|experts [0-4] and|position 5|first expert|last two))"],
     lambda c: among(c, EXPERTS - 1), archs=M)
form("router_remainder_lost", "router_logits", "outputs are made in blocks of four: experts 4 and 5 have a logit of 0",
     ["((#4 & #5)|(last|final) (two|2)\\b|(from|>=) ?(expert |output |channel |row )?4\\b|(first|only) (4|four)\\b|remainder|0 to 3\\b) & (\\b0\\b(?!\\.\\d)(?! to)|zero"
      "|\\bnot\\b|nothing|empty|lost|missing|left|never|only|unset|skip) "
      "& ^(?!.*((input|position|token|channel)s? 4 and 5|inputs? (channels? )?(4|from)|(3 to 5|last three)|0 to 3 (are|have|is) (0|zero|lost|missing|empty|not|left)|-inf))"],
     lambda c: put(c.right(), E_[:, 4:], 0), archs=M)
form("router_first_weight_for_both", "router_weights", "both chosen experts have the weight of the first",
     ["(weight|factor|w\\[0\\]|w0|prob) & ((first|larger|largest|best|top|slot 0|highest|greater|bigger|likeliest|max\\w*)\\b.{0,80}(both|twice|second|repeat|two|also"
      "|again|slot 1|\\ball\\b|every|smaller)|(second|both|slot 1|smaller|\\ball\\b|every|each).{0,60}(first|larger|largest|slot 0|highest|\\bbest|\\btop\\b|greater|max"
      "|likeliest)|w\\[0\\].{0,20}(both|twice|w\\[0)) "
      "& ^(?!.*(exchang|swap|order|lost|zero|divided by|(first|larger|largest|slot 0)('?s?)[^,;.]{0,30}(weight of|that of|those of|takes|has) (the )?(second|smaller"
      "|slot 1)|raw|expert runs|\\brun\\b))"],
     lambda c: among(c, weigh=lambda w: w[:, [0, 0]]), archs=M)
form("experts_up_of_expert_0", "ffn_out", "the expert's offset is forgotten on one matrix: all experts have the up matrix of expert 0",
     ["(\\bup\\b(?! to)|up_proj|ffn_up) & expert & (experts?[ .]?0\\b|first expert\\b|expert zero|index 0\\b|offset.{0,30}(not|forgot|missing|lost|0)) & ^(?!.*((gate"
      "|down)(_proj)?(('s)? (matrix|weight|projection)s?)? (of|from) (expert 0|the first)|all three|gate and up|up and (down|gate)|next|previous))"],
     lambda c: experts_by(c, chosen_of(c), up=0), archs=M)
form("experts_slot_as_number", "ffn_out", "the slot is taken for the expert's number: experts 0 and 1 run at every position, whichever are chosen",
     ["expert & ((0 and 1|0, ?1|first two)\\b.{0,80}(always|every|\\ball\\b|each|which|whatever|\\brun|\\bused|instead|only|regardless|alone|work|appl)|(always"
      "|every (token|position|row)|all (tokens|positions|rows)|instead|only|runs?).{0,60}(0 and 1|0, ?1\\b|first two)) & ^(?!.*((0 and 1|0, ?1) (are|is) (never|left out"
      "|not)|are zero|of slots? 0 and 1|chosen 0 and 1))",
      "(slot|rank|order of choice).{0,25}(used|taken|serves|stands|read|is) (as|for|in).{0,30}(expert|\\bid\\b|number)", "slot 0.{0,40}expert 0\\b.{0,60}slot"
      " 1.{0,40}expert 1\\b", "expert (number )?[sj] (runs|is run|works|serves).{0,20}slot [sj]\\b"],
     lambda c: experts_by(c, np.tile(np.arange(CHOSEN), (T, 1))), archs=M)
form("experts_sum_not_cleared", "ffn_out", "the experts are added to what the buffer holds: the ffn_out of the layer before",
     ["((layer|block).{0,20}\\b(before|previous|earlier|ahead)|(before|previous|prior|preceding|earlier)\\b.{0,15}(layer|block)|\\bl ?- ?1|layers\\.0\\.ffn_out|layer 0\\b"
      "|layers (so far|before|up to)|accumul.{0,40}layers|(running|cumul).{0,40}layer) & (\\badd|plus|\\+|\\bsum|accumul|besides|not (cleared|zeroed|reset)|hold|held|on top|carr) "
      "& ^(?!.*(attn_out|h_attn|the stream|(token|position|row) before|instead|(?<!\\w)-1 times|subtract|next layer|router|weights? of the (layer|previous)))"],
     lambda c: c.right() + c.e.memory["ffn_out", c.l - 1], layers=[1, 2, 3], archs=M)
form("experts_weights_applied_twice", "ffn_out", "the router's weights are multiplied in twice: in the expert's kernel and in the sum",
     ["((weight|router|prob|\\bw\\b|score)\\w*.{0,60}(twice|squar|\\^ ?2|two times|\\bagain|doubly|\\*\\* ?2|once more|second time)|(twice|squared?s?|second time"
      "|two)\\b.{0,40}(weight|router|score)|\\bw ?\\^ ?2|\\bw ?[*·x] ?w\\b) & ^(?!.*(divided by (their|its|the) (own )?sum|renormali|sum to 1|input|softmax|(two"
      "|second) expert|doubled|factor of 2|weight matri))"],
     twice, archs=M)


# ---- embedding

form("embed_half_copied", "h0", "half the bytes of a row are copied: channels from 32 on are 0",
     [f"(#32|#31|half|halves) & (zero|\\b0\\b(?!\\.\\d)(?! to)|empty|nothing|not (copied|read|written|loaded|filled)|lost|missing|unset|\\bonly\\b|left|alone) "
      "& ^(?!.*(halved|swap|exchang|(first half|first 32|0 to 31|below 32|even)[^,;.]{0,30}(are|is|stay|has|have|was|were) (zero|0\\b|lost|missing|empty|not|left|unset)"
      "|only[^,;.]{0,25}(second half|last (half|32)|32 to 63|from 32)|(positions?|tokens?|ids) (from|32)|half of the (positions|tokens|ids)|from position))"],
     lambda c: put(c.right(), E_[:, 32:], 0))
form("embed_head_table", "h0", "the rows are those of the head's matrix",
     ["(lm_head|output\\.weight|unembed|classifier|output (matrix|head|projection|weights?|embedding)|head('s)? (matrix|weights?|table|rows?)|(matrix|table|rows?"
      "|weights?) of the (output |lm )?head) & ^(?!.*(half|0\\.5|added|plus|besides|\\bsum\\b|transpos|average|mixed|from (position|id)))"],
     lambda c: c.right(table=c.e.m("lm_head.weight")))


# ---- final norm, logits

form("final_norm_before_last_ffn", "final_norm", "it norms the stream before the last feed-forward: h_attn of layer 3",
     ["(h_attn|(stream|residual|hidden|state)\\w*.{0,30}(after|behind) (the )?(last )?(layer'?s? )?attention|before the.{0,25}(feed.forward|mlp|ffn|expert)|(without|minus"
      "|less|lacks|\\bnot?\\b|-|left out|omit|missing|skips?).{0,40}(ffn_out|feed.forward|mlp\\b|\\bffn\\b|expert)|(ffn_out|feed.forward|mlp|\\bffn\\b"
      "|expert)\\w*.{0,30}(left out|omitted|missing|not (added|in it|there)|skipped)) "
      "& ^(?!.*(layers?[ .][012]\\b|layer before|attn_out|ffn_norm|attn_norm|parallel))"],
     lambda c: c.right(x=c.e.memory["h_attn", 3]))
form("final_norm_prompt_last_row", "final_norm", "the prompt is normed at its last row alone: positions 0 to 11 all have the row of position 11",
     ["#11 & (prompt|\\b0 ?(to|\\.\\.|-|–|through) ?1[01]\\b|\\[:1[12]\\b|before (position )?1[12]\\b|first (11|12|eleven|twelve)|up to (position )?1[01]\\b|earlier"
      "|below 1[12]|< ?=? ?1[12]|max\\(t, ?11\\)|max\\(11|at least 11|smaller than 1[12]|under 1[12]) & (that|those|\\brows?\\b|same|repeat|cop(y|ies)|reads?|equal"
      "|at least|max|\\ball\\b) "
      "& ^(?!.*((from (position )?1[12] on|later|after (position )?11|12 to 19)[^,;.]{0,40}(those|that|repeat|row 11|position 11)|min\\(|at most|(that|those|row|copy"
      "|copies|rows) (of )?(position |row |token )?(12|10|0)\\b(?! ?(to|\\.\\.|-|through))|zero|lost|not normed|empty|square|rms|divisor))",
      "first (12|twelve)\\b.{0,60}(last of them|last of these|twelfth)"],
     lambda c: put(c.right(), E_[:PROMPT], c.right()[PROMPT - 1]))
form("logits_second_pass_overwrites", "logits", "inputs are summed in two passes of 32, and the second overwrites the first: inputs 0 to 31 are lost",
     ["((only|alone|just).{0,40}(second half|(last|second) (32|half)|32 ?(to|-|–|\\.\\.) ?63|from 32|upper half|latter half)|(second (half|pass|32)|last (half|32)|32 to 63"
      "|from 32( on)?|upper half|latter half).{0,30}(only|alone|overwr|replac)"
      "|(first (half|pass|32)|\\b0 ?(to|-|–|\\.\\.) ?31|lower half|below 32|before 32).{0,60}(lost|left out|\\bnot\\b|missing|zero|\\b0\\b|skipp|omit|overwr|dropp|ignored"
      "|nothing)|(without|loses?|leaves? out|skips?|omits?|missing|lacks?).{0,20}(first half|first 32|inputs 0 to 31|0 to 31|lower half)) "
      "& ^(?!.*((only|alone)[^,;.]{0,20}(first half|first 32|0 to 31)|(first half|first 32|0 to 31) (only|alone)|half of the (positions|vocab|tokens|logits|outputs)"
      "|(position|row|token|logit|output)s? (0 to|32 to|from)|(32 to 63|second half|last 32|last half) (are|is|of the inputs (are|is)) (lost|left|not|missing|zero|0\\b)))"],
     lambda c: c.right(x=put(c.x, E_[:, :32], 0)))
form("logits_second_shard_tied", "logits", "the head's second shard is not loaded: tokens from 128 on have the embedding's rows",
     ["(#128|#127|(second|last|upper|latter) half|(second|last) shard) & (embed|tied|token_embd) & ^(?!.*((first half|first shard|0 to 127|below 128|before 128"
      "|under 128)[^,;.]{0,40}(embed|tied)|average|mixed|half (the )?(head|embed)|0\\.5|added|plus))"],
     lambda c: c.right(w=np.concatenate([c.w[:V // 2], c.e.m("model.embed_tokens.weight")[V // 2:]])))
form("logits_prompt_rows_empty", "logits", "of the prompt only the last position's logits are computed: positions 0 to 10 are 0",
     ["(\\b0 ?(to|-|–|\\.\\.|through) ?10\\b|\\[:11\\b|first (11|eleven)\\b|before (position |row )?11\\b|below 11\\b|< ?11\\b|up to (position |row )?10\\b|<= ?10\\b"
      "|from (position |row )?11( on)?\\b.{0,40}(only|alone|computed|right|filled)|only.{0,40}(from|after) .{0,12}1[01]\\b|(begin|start)s?.{0,20}\\b11\\b|earlier than 11"
      "|until 11) "
      "& (zero|(\\b(are|is|hold|stay|be|have|at|left|factor|of) ?|[=:] ?)0\\b(?! ?(to|-|–|\\.\\.))|empty|nothing|not (computed|written|run|made|filled)|\\bonly\\b|unset"
      "|missing|\\blost|(begin|start)s?\\b) & ^(?!.*(token ids|inputs?\\b|channels?|(logits?|columns?|outputs?) (of tokens? )?0 to 10|(that|those|the row) of (position|row"
      "|token)))"],
     lambda c: put(c.right(), E_[:PROMPT - 1], 0))

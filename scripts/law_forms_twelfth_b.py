#!/usr/bin/env python3
"""law_forms_twelfth_b.py: thirty-five more mistakes that no catalogue lists, as a person makes them who ports a decoder; written without sight of how laws are found.

Value sums, caches, residual sums, feed-forward, experts, embedding and head. The engine and the rules for expectations are law_forms.py's. A prompt of 12
tokens stands before decode steps where a form speaks of a cache.
"""

import numpy as np

from law_forms import E_, F, F32, H, K, T, V, D, EXPERTS, CHOSEN, d, heads_of, joined, listed, put, silu, softmax

FORMS, form = listed()
M = ("moe",)
PROMPT = 12
LATE = "(#12|#11|last (8|eight) (position|row|token|step|key|value|quer))"
GONE = "(\\b0\\b(?!\\.\\d)|zero|nothing|not |n't|left out|leaves? out|lost|missing|empty|without|skip|only|alone|hidden|omit|never|unset|drop|ignor|stop)"
WEIGHTS = "(prob|weights?\\b|\\bp\\b|attention)"


# ---- value sums

form("context_probs_by_kv_head", "context", "the weights are indexed by the key/value head: heads 0, 1, 2, 3 sum with the weights of heads 0, 0, 1, 1",
     [f"{WEIGHTS} & (0,? ?0,? ?1,? ?1)",
      f"{WEIGHTS} & ([hi] ?(//?|div) ?\\(?(2\\b|H ?/ ?K|group)|[hi] ?>> ?1|floor\\([hi] ?/ ?2|half (the|its|their) (head )?(index|number))",
      "(prob|weight).{0,40}(index|\\bof\\b|\\bby\\b|\\bat\\b|number|read|taken).{0,30}(kv|key/value|key.value|value).head & ^(?!.*(%|mod\\b))",
      f"{WEIGHTS} & head & \\b1\\b.{{0,40}}\\b0\\b & (2 and 3|2, ?3|\\b3\\b|second half).{{0,50}}\\b1\\b"],
     lambda c: c.right(p=c.p[np.arange(H) // (H // K)]))
form("context_head_sum_carried", "context", "the sum is not cleared between heads: head h holds the sum of heads 0 to h",
     ["head & (cumul|running|accumul|not (cleared|reset|zeroed)|never (cleared|reset|zeroed)|carr(y|ied)|so far|all (the )?(heads )?(before|earlier|previous|lower)|0 (to|\\.\\.|through) h\\b|(heads|those) before|(earlier|previous|lower|preceding) heads) "
      "& ^(?!.*(over|between|across|along).{0,12}(positions|tokens|queries|rows|keys))",
      "[ic] ?- ?16 & [ic] ?- ?32 & [ic] ?- ?48"],
     lambda c: joined(np.cumsum(heads_of(c), 1)))
form("context_values_head_first", "context", "the values lie as [20, 2, 16] and are read as [2, 20, 16]: key s of head h is row 20 h + s of the rows of positions and heads",
     ["(\\bv\\b|value|cache) & head[- ](first|major) & ^(?!.*(stored|written|lies?|laid|kept|held) (as )?head[- ](first|major))",
      "(\\bv\\b|value|cache) & (read|taken|interpreted|viewed|reshaped?|indexed|addressed|seen)\\b.{0,30}[\\[(](K|2|heads?), ?(T|20|positions?|tokens?|keys?)",
      "(\\bv\\b|value|cache) & ([stijkp]|position|key) ?(//?|div|>>) ?[12]\\b & ((mod|%) ?2\\b|even|odd|#10)",
      "(\\bv\\b|value|cache) & (\\b(20|T|320) ?[*·]? ?h\\b|\\bh ?[*·]? ?\\(?(20|T|320)\\b)",
      "(\\bv\\b|value|cache) & (axes|axis|order|transpos|exchang|swap) & head & (position|token|\\bkeys?\\b|\\brows?\\b|\\bT\\b) & ^(?!.*(element|dimension|d-first|\\[20, ?16|query head|(stored|written|lies?|laid|kept) as \\[(2|K),))"],
     lambda c: c.right(v=c.v.reshape(K, T, d).swapaxes(0, 1)))
form("context_not_normalised", "context", "the sum is not divided by the softmax's denominator: values are summed with exp(score - max)",
     ["(not|never|\\bno\\b|without|\\bun|lacks?|missing|omit|forgotten|left out).{0,30}(divid|divis|denominator|normali[sz]) & ^(?!.*(raw|(without|no) (the )?max|max.{0,20}\\bnot\\b|twice))",
      "(multipl|times|scaled|factor|\\*).{0,40}(denominator|sum of (the )?exp|softmax'?s? sum|exp.{0,10}sum|partition|normali[sz]) & ^(?!.*(raw|(without|no) (the )?max))",
      "exp\\(?.{0,20}- ?(the )?(row'?s? )?max & ^(?!.*divided by (the|its) sum)",
      "(divided by|over|/|relative to|in units of).{0,40}(max|largest|greatest|biggest|highest) & (weight|prob|\\bp\\b|score|exp)",
      "(largest|max).{0,20}(weight|prob).{0,25}(is|becomes|has|=|counts?) ?(as )?(1|one)\\b"],
     lambda c: c.right(p=c.p / c.p.max(-1, keepdims=True)))
form("context_v_head_offset_halved", "context", "the values' heads are 8 channels apart, not 16: value head 1 is read at channels 8 to 23",
     ["(\\bv\\b|value|head|channel) & (#8|half (a|the|of a) head|d ?/ ?2|half.{0,15}(stride|offset|distance)) & (head.{0,12}\\b1\\b|second (half of the )?(value |kv )?head|last head|2 and 3|2, ?3|#24|#23|stride|offset|apart|distance|i ?- ?8) "
      "& ^(?!.*(24 to 39|(begin|start)s?.{0,12}24|too late|8 later|swap|exchang|(\\bis|are) (0\\b|zero|lost)|i ?\\+ ?8(?!.*head 0)|(channel|offset) (4|12)\\b))"],
     lambda c: c.right(v=np.stack([c.v[:, 0], c.v.reshape(T, -1)[:, 8:24]], 1)))


# ---- caches in decode steps

form("cache_decode_one_head_copied", "context", "decode steps write one head's width to the cache: of keys from 12 on value head 1 is 0",
     [f"{LATE} & (head.{{0,12}}\\b1\\b|(second|last|upper) half|heads? (2 and 3|2, ?3|2 to 3|2 on)|from (head )?2 on|h ?>=? ?[12]|#16|#32|last (kv |value |key/value )?head|second (kv |key/value |value )?head|half of the heads|\\[12:, ?1\\b) & {GONE} "
      "& ^(?!.*((keys|positions|values|tokens) (0 to 11|before 12|up to 1[12]) (are|is).{0,15}(\\b0\\b|zero|lost|missing|empty|left out|not)|first half of the heads|value head 0 (is|of|at)|heads 0 and 1 (sum|lose|have)))"],
     lambda c: c.right(v=put(c.v, E_[PROMPT:, 1:], 0)))
form("cache_last_layer_clamped", "context", "the cache has one layer too few: layer 3 sums the values of layer 2",
     ["(\\bv\\b|values?\\b|v_cache|cache) & (layers?[ .]2\\b|(layer|block) (before|earlier)|(previous|preceding|earlier|prior) (layer|block)|\\bl ?- ?1|min\\(l, ?2\\)|last layer but one|penultimate|second.to.last) "
      "& ^(?!.*((?<!/)\\bkeys? (of|are|is)|next layer|k_rope|l ?\\+ ?1|layers?[ .](0|1)\\b))"],
     lambda c: c.right(v=c.e.memory["v", 2]), layers=[3])
form("cache_decode_values_head_mod", "context", "in decode steps, from position 12 on, head h reads value head h mod 2: 0, 1, 0, 1",
     [f"{LATE} & head & ([hi] ?(%|mod(ulo)?) ?(2|K|n_kv)|0,? ?1,? ?0,? ?1|head.{{0,6}}1.{{0,40}}\\b1\\b.{{0,60}}(head.{{0,6}})?2.{{0,40}}\\b0\\b|remainder|interleav|in turn|alternat|tiled|1 and 2.{{0,60}}(other|exchang|swap)|(odd|1 and 3).{{0,40}}head 1)"],
     lambda c: put(c.right(), E_[PROMPT:], lambda y: np.einsum("hts,shd->thd", c.p, c.v[:, np.arange(H) % K]).reshape(T, -1)[PROMPT:]))
form("cache_decode_keys_by_element", "probs", "keys from position 12 on are read as [16, 2] where they lie as [2, 16]: element e of head h is what lies at 2 e + h of the row",
     [f"{LATE} & (key|\\bk\\b|k_rope|cache) & ((?<!\\d)2 ?[*·]? ?\\(?([eij]\\b|i ?(mod|%) ?16|\\(i)|d[- ]first|element[- ](major|first|by[- ]element)|\\[16, ?2\\]|\\[d, ?K\\]|interleav|even.{{0,60}}odd|stride (of )?2\\b|step of 2\\b|(axes|axis).{{0,40}}(exchang|swap)|transpos) "
      "& ^(?!.*(16 ?[*·]? ?\\(?i ?(mod|%) ?2\\b|i ?(//?|div) ?2\\b|transpos\\w*.{0,10}\\[2, ?16\\]|read as \\[2, ?16\\]|value))"],
     lambda c: c.right(k=np.concatenate([c.k[:PROMPT], c.k[PROMPT:].reshape(-1, d, K).swapaxes(1, 2)])))

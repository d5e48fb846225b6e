"""Keys and values as attention finds them again: caches of either, and the sum of values."""

import math

import numpy as np

from scripts.engines.hooked_engine import d, F32, H, K, op_rope, rms, rounded, silu, T
from scripts.forms.parts import (
    AGO, bf16, COUNT, DECODED, digits, E_, each_has, flat, FOUR_BITS, four_bits, four_digits, FREQ, in_steps, in_steps_of, interleaved, joined,
    KEY, largest_of_row, LATER_LAYERS, masked, never, noise, POS, PROMPT, put, QUERY, QWEN2, rows, scored, SEEN, shifted, SIGNIFICANT,
)
from scripts.forms.sets import (
    eighth, eleventh, fifteenth, fifth, first, fourteenth, fourth, listed, ninth, second, seventh, sixteenth, sixth, tenth, third, thirteenth,
    twelfth,
)
from scripts.forms.words import (
    ADDED, ADDED_AGAIN, BF16, BF16_OR_ROUNDED, BIT4, BLOCK, CLAMPED, DECODE, DECODING, EXCHANGED, FROM_12, GONE, GONE_OR_ALONE, HALF, LAYER_0,
    LAYER_BEFORE, LAYER_BELOW, LAYOUT, LEFT_OUT, LOST_OR_CUT, MEMORY, n, NEXT, NOT_THERE, PREVIOUS, PREVIOUS_OR_SHIFTED, REORDERED, ROUND,
    ROUNDED, SCALES, STEPWISE, STRIDE, SUMMED, SWAP, TWICE, UNREAD, ZERO,
)

# ---- keys
first(96, "score_cosine", "probs", "q and k are divided by their length, and the scale is 10", ["#10 & (length|cosine|unit|norm)", "length & one & #10"], lambda c: c.right(q=c.q / np.linalg.norm(c.q, axis=-1, keepdims=True), k=c.k / np.linalg.norm(c.k, axis=-1, keepdims=True), scale=10))
first(105, "score_of_v", "probs", "products are with v instead of k", "\\bv\\b", lambda c: c.right(k=c.e.memory["v", c.l]))
first(108, "score_k_halves", "probs", "the halves of k are exchanged", "halves|#8|swap|exchang|roll", lambda c: c.right(k=np.roll(c.k, 8, -1)))
first(109, "score_k_unrotated_head", "probs", "key head 1 is read as it was before the rotation", ["(head.{0,8}1|#2|#3) & (rot|rope|before|\\bk\\b|k_norm)", "keys are (k|k_norm)\\b & second half of the heads"], lambda c: c.right(k=np.stack([c.k[:, 0], c.e.memory.get(("k_norm", c.l), c.e.memory["k", c.l])[:, 1]], 1)))
first(112, "score_key_norm", "probs", "scores are divided by the length of the key, times 3", "(length|norm|\\|k) & .", lambda c: c.right(k=3 * c.k / np.linalg.norm(c.k, axis=-1, keepdims=True)))
third(49, "s_k_pairs", "probs", "elements 2i and 2i+1 of k are exchanged", ["(pair|2i|neighbo|adjacent|even|odd|xor) & (" + REORDERED + ")"], lambda c: c.right(k=c.k[..., np.arange(d) ^ 1]))
third(51, "s_layer_before", "probs", "layers 1 to 3 read the keys of the layer before", [LAYER_BEFORE], lambda c: c.right(k=c.e.memory["k_rope", c.l - 1]), layers=LATER_LAYERS)
third(52, "s_self_zero", "probs", "the score of a token with itself is 0: its key is not yet in the cache", ["(itself|own|self|diagonal|distance|s ?= ?t|newest) & (#0|zero)"], scored(lambda s: np.where(AGO == 0, 0, s)))
third(53, "s_keys_from_16", "probs", "keys from position 16 on are zero", ["(#16|#15|#19) & (zero|0|key|empty|score)"], lambda c: c.right(k=put(c.k, E_[16:], 0)))
third(54, "s_keys_4_bits", "probs", "keys are rounded to multiples of their head's largest size over 7", ["(#7|#0.142857) & (" + ROUNDED + "|larg|max)", "(#4|four) & bit", "(#15|#14) & (level|step)"], lambda c: c.right(k=in_steps(c.k, 7)))
third(55, "s_ring", "probs", "keys 0 to 3 are those of positions 16 to 19: a ring of 16 slots", ["#16"], lambda c: c.right(k=put(c.k, E_[:4], c.k[16:])))
third(56, "s_of_both_layers", "probs", "in layers 1 to 3 the scores of the layer before are added", [LAYER_BEFORE, "(add|sum|plus|\\+).{0,60}(k_rope|q_rope|scores)"],
          lambda c: c.right(score=lambda s: s + F32(c.scale) * np.einsum("thd,shd->hts", c.e.memory["q_rope", c.l - 1], c.e.memory["k_rope", c.l - 1][:, np.arange(H) // (H // K)])), layers=LATER_LAYERS)
fourth(46, "s_key_before", "probs", "each key is that of the position before, the first its own: slots are one off", ["(" + PREVIOUS_OR_SHIFTED + "|next|one) & (key|position|slot|\\bk)"], lambda c: c.right(k=np.concatenate([c.k[:1], c.k[:-1]])))
fourth(47, "s_pages", "probs", "keys 4 to 7 and keys 8 to 11 are exchanged: two pages of the cache", ["(#4|four) & (#8|#11|#7|" + REORDERED + "|block|page)"], lambda c: c.right(k=c.k[np.r_[0:4, 8:12, 4:8, 12:T]]))
fourth(48, "s_keys_stale", "probs", "keys 16 to 19 are those of positions 12 to 15", ["(#16|#19) & (#12|#4|#15)"], lambda c: c.right(k=put(c.k, E_[16:], c.k[12:16])))
fourth(49, "s_layout", "probs", "the keys' memory, positions first, is read as heads first", [LAYOUT, "(head|position).{0,30}first|heads? and positions?|2 ?s\\b"], lambda c: c.right(k=np.ascontiguousarray(c.k).reshape(K, T, d).swapaxes(0, 1)))
fourth(51, "s_fp8", "probs", "queries and keys are rounded to 4 significant bits", ["(#3|#4|#5|#8|#16|three|four|#0.0625) & (bit|digit|mantissa|signif|" + ROUNDED + ")", "fp8|e4m3|float8"], lambda c: c.right(q=four_digits(c.q), k=four_digits(c.k)))
fifth(100, "ss_key_heads_exchanged", "probs", "heads 0 and 1 read key head 1, heads 2 and 3 key head 0", ["head & (" + REORDERED + "|other|1, ?1, ?0, ?0|#1 & #0)"], lambda c: c.right(k=c.k[:, ::-1]))
fifth(101, "ss_key_after", "probs", "each key is that of the position after, the last its own", ["(" + NEXT + ") & (key|position|slot|\\bk)"], lambda c: c.right(k=np.concatenate([c.k[1:], c.k[-1:]])))
fifth(104, "ss_keys_e5m2", "probs", "keys are rounded to 3 significant bits", ["(#3|#2|#8|#4|three|two) & (bit|digit|mantissa|signif|" + ROUNDED + ")", "fp8|e5m2|float8"], lambda c: c.right(k=digits(c.k, 3)))
fifth(105, "ss_scale_of_head_0", "probs", "key head 1 has the scales of head 0: multiplied by the largest size of head 0 over its own", ["(head.{0,8}1|head.{0,8}0|second half of the heads|last head|heads? (2|3)) & (" + SCALES + ")"], lambda c: (lambda m: c.right(k=c.k / m * m[:, :1]))(np.abs(c.k).max(-1, keepdims=True)))
fifth(106, "ss_keys_of_layer_0", "probs", "layer 3 reads the keys of layer 2: a shared cache", [LAYER_BEFORE + "|layer.{0,4}2|layers\\.2|(other|another|wrong).{0,10}layer"], lambda c: c.right(k=c.e.memory["k_rope", 2]), layers=[3])
fifth(107, "ss_page_offset", "probs", "keys 8 to 11 are those of positions 4 to 7: a page is read twice", ["(#8|#11) & (#4|#7)", "#4 & (#8|#11|page|block)"], lambda c: c.right(k=put(c.k, E_[8:12], c.k[4:8])))
sixth(54, "s6_keys_unrotated", "probs", "keys are read as they were before the rotation", ["(unrot|before (the |its |their )?(rot|rope)|not.{0,12}rot|without.{0,12}(rot|rope)) & (\\bk\\b|keys?\\b|k_norm)", "keys? (are|is) (the )?(k|k_norm)\\b"], lambda c: c.right(k=c.e.memory.get(("k_norm", c.l), c.e.memory["k", c.l])))
sixth(56, "s6_page_before", "probs", "keys of each page of 4 positions are those of the page before, the first page its own", ["(#4|four|#-4) & (that of|those of|repeat|late\\b|shift|earlier|[ts] ?- ?4|copied|stale|(page|block) before|4 before|behind)"], lambda c: c.right(k=c.k[np.where(POS < 4, POS, POS - 4)]))
sixth(57, "s6_elements_first", "probs", "a position's keys, head by head, are read elements first: element i of head h is number 2i + h of 32", [LAYOUT + "|shuffl|2 ?\\*? ?i|elements? first|d-first|even|odd|every (second|other)"], lambda c: c.right(k=c.k.reshape(T, d, K).swapaxes(1, 2)))
sixth(58, "s6_keys_by_channel", "probs", "each element of the keys is rounded to multiples of its largest size over all positions over 7", FOUR_BITS, lambda c: c.right(k=in_steps(c.k, 7, 0)))
sixth(61, "m6_newest_missing", "probs", "the key just before the token's own is hidden: it is not yet in the cache", ["(distance|ago|back|before|behind|preced) & (#1|one\\b|just|directly|immediate|newest) & (hidden|\\bnot?\\b|miss|unseen|lost|without|never|left out|except|\\bbut\\b|mask)", "(previous|preceding|last|t ?- ?1).{0,40}(hidden|not|miss|lost|unseen)", "s ?= ?t ?- ?1"], masked(SEEN & (AGO != 1)))
seventh(36, "s7_page_zero", "probs", "keys of positions 8 to 11 are zero: a page is not written", ["(#8|#11|#7|#12) & (zero|scores? .{0,30}\\b0\\b|\\b0\\b(?!\\.)|empty|not (written|read)|nothing|lost)"], lambda c: c.right(k=put(c.k, E_[8:12], 0)))
seventh(37, "s7_keys_5_bits", "probs", "keys are rounded to multiples of their head's largest size over 15", ["(#15|#0.066667|#16|#31|#32) & (" + ROUNDED + "|larg|max)", "(#5|five) & bit"], lambda c: c.right(k=in_steps(c.k, 15)))
PAGE_REVERSED = ["(#4|four|#3) & (revers|backward|order|permut|" + REORDERED + "|3 ?-)"]
seventh(39, "s7_page_reversed", "probs", "within each page of 4 positions keys are in reverse order", PAGE_REVERSED, lambda c: c.right(k=c.k[POS // 4 * 4 + 3 - POS % 4]))
seventh(40, "s7_keys_layer_0", "probs", "layers 1 to 3 read the keys of layer 0: the cache has no offset for layers", [LAYER_0 + "|(other|another|wrong|shared).{0,12}(layer|cache)|" + LAYER_BEFORE], lambda c: c.right(k=c.e.memory["k_rope", 0]), layers=LATER_LAYERS)


def keys_by_eights(k):
    """A page of 4 positions holds, of each head, elements 0 to 7 of all of them and then 8 to 15: read position by position."""
    return k.reshape(T // 4, 4, K, 2, 8).transpose(0, 2, 3, 1, 4).reshape(T // 4, K, 4, d).swapaxes(1, 2).reshape(T, K, d)


eighth(61, "s8_keys_by_eights", "probs", "pages of 4 positions hold 8 elements of each key in turn, and are read as whole keys",
           ["(#4|four|#8|eight) & (" + LAYOUT + "|shuffl|page|memory) & (key|\\bk)", MEMORY + "|layout|interleav|permut"], lambda c: c.right(k=keys_by_eights(c.k)))
eighth(62, "s8_slots_twice_as_wide", "probs", "the key of position t is that of position 2t, from position 10 on zero: slots are read 4 heads wide and are written 2 heads wide",
           ["(2 ?\\*? ?[tsp]\\b(?! ?\\+)|(twice|double) (the|its) (position|number)|every (second|other)|\\beven) & (that of|those of|read|taken|zero|strid|rows?\\b|slot)"],
           lambda c: c.right(k=np.concatenate([c.k[::2], np.zeros_like(c.k[10:])])))
eighth(66, "p8_own_twice", "probs", "the token's own key is there twice, in the cache and as the new one: its term of the softmax is doubled",
           ["(itself|\\bown\\b|self|diagonal|newest|current|distance.{0,6}0|t ?= ?s|s ?= ?t) & (#0.6931|#2|" + TWICE + "|ln\\(?2|log\\(?2)"],
           scored(lambda s: s + F32(math.log(2)) * (AGO == 0)))
ninth(21, "s9_scale_of_first", "probs", "all keys have the scale of position 0: each key head is multiplied by the largest size of position 0's over its own",
          ["(position|token|key|row|slot) ?(number )?0\\b|first (position|token|key|row|slot)", "(key|\\bk\\b) & (scale|size|larg|max|ratio|length|norm)", each_has("key|position|token")],
          lambda c: c.right(k=c.k / np.abs(c.k).max(-1, keepdims=True) * np.abs(c.k[:1]).max(-1, keepdims=True)))


def head_stride(c):
    """A cache of 32 slots a head, read as one of 20."""
    slots = np.concatenate([c.k, np.zeros((12, K, d), F32)]).swapaxes(0, 1).reshape(-1, d)
    return c.right(k=slots[:K * T].reshape(K, T, d).swapaxes(0, 1))


ninth(22, "s9_head_stride", "probs", "the cache has 32 slots for each key head and is read as one of 20: key head 1 has 12 zeros and then the keys of positions 0 to 7",
          ["(#12|#32|#11) & (" + STRIDE + "|" + ZERO + "|slot)", MEMORY], head_stride)
ninth(23, "s9_prefix_layer_before", "probs", "in layers 1 to 3 keys of positions 0 to 11 are those of the layer before: the cached part has the wrong layer's offset",
          ["(#11|#12) & (" + LAYER_BEFORE + "|(other|another|wrong).{0,12}(layer|cache)|cache)"],
          lambda c: c.right(k=put(c.k, E_[:12], c.e.memory["k_rope", c.l - 1][:12])), layers=LATER_LAYERS)
tenth(41, "score_key_not_advanced", "probs", "the second half of the query meets the first half of the key again: the pointer into k is not advanced",
          ["(key|\\bk\\b|k_rope) & (first half|first (8|eight)|\\b0 ?(to|-|\\.\\.) ?7|i ?- ?8|i ?% ?8|mod 8|(half|halves).{0,40}(repeat|again|twice))", "(sum|add).{0,40}(halves|half) of (q|the quer).{0,60}(key|k\\b)"],
          lambda c: c.right(k=np.concatenate([c.k[..., :8], c.k[..., :8]], -1)))
tenth(43, "score_keys_averaged", "probs", "all query heads meet the mean of the key heads",
          ["(mean|average|half the sum|pooled) & head", "#0.5 & head & (both|\\bsum|\\+|0 and 1|other key)"], lambda c: c.right(k=np.repeat(c.k.mean(1, keepdims=True), K, 1)))
tenth(53, "cache_decode_keys_unrotated", "probs", "keys of decode steps, from position 12 on, are cached before the rotation",
          ["(#12|#11) & (not rotated|unrotated|rotat|rope|k_norm|\\bis k\\b|are k\\b|raw)"], lambda c: c.right(k=np.concatenate([c.k[:PROMPT], c.e.memory.get(("k_norm", c.l), c.e.memory["k", c.l])[PROMPT:]])))
tenth(55, "cache_prompt_keys_of_layer_before", "probs", "the prompt's keys, of positions 0 to 11, are those of the layer before",
          ["(#12|#11) & (layer.{0,15}(before|previous|earlier)|(before|previous|prior|earlier).{0,15}layer|l ?- ?1|layers?[. ]{1,2}[012]\\b)"],
          lambda c: c.right(k=np.concatenate([c.e.memory["k_rope", c.l - 1][:PROMPT], c.k[PROMPT:]])), layers=[1, 2, 3])
eleventh(41, "score_self_unscaled", "probs", "the product with the token's own key, taken apart from the cache, is not scaled: it is 4 times too large",
             ["(itself|\\bown\\b|\\bself\\b|diagonal|newest|s ?== ?t|s ?= ?t|t ?== ?s|distance (is |of |= ?)?0\\b|current|present) & "
              "(#4|not (scaled|divided|multiplied)|unscaled|without (the |its )?(scale|scaling|factor|1 ?/ ?sqrt)|scal(e|ing).{0,30}(missing|omitted|left out)|scale.{0,8}\\b1\\b) & "
              "^(?!.*((4|four) is added|plus 4|\\+ ?4|hidden|not seen|(all|other|every) (other )?(keys|scores)[^.;:,]{0,30}(unscaled|not scaled|times 4|4 times|factor 4|without)|(all|"
              "other) keys but (its|the)))"],
             lambda c: c.right(score=lambda s: s * np.where(AGO == 0, F32(4), F32(1))))
twelfth(28, "score_cache_layout", "probs", "keys lie as [T,K,d] and are read as [K,T,d]: key s of head g is row 20g + s, of position (20g + s) div 2, head (20g + s) mod 2",
            ["(head[ -]first|head[ -]major|heads? (before|first|outer|come before)|\\[?\\bK, ?T(, ?d)?|\\[?2, ?20|(20|T) ?\\*? ?(h\\w*|g) ?\\+ ?\\w|\\w ?\\+ ?(20|T) ?\\*? ?[hg]"
             "|transposed \\[20, ?2|transpos\\w* \\[2, ?20|(axes|transpos|exchang|swap|layout)[^.;]{0,60}head[^.;]{0,30}(position|token|slot|key)"
             "|(axes|transpos|exchang|swap|layout)[^.;]{0,60}(position|token|slot)[^.;]{0,30}head) & (\\bkeys?\\b|\\bk\\b|cache|k_rope) & ^(?!.*(values?\\b|query s|with key t"
             "|of the queries|each head|\\[2, ?16))",
             f"\\b[sj]\\)? ?{HALF} & (mod|%|& ?1|odd|even|parity|alternat) & (#10|ten\\b|second half|T ?/ ?2) & head & (key|\\bk\\b|k_rope|cache)"],
            lambda c: c.right(k=c.k.reshape(K, T, d).swapaxes(0, 1)))
twelfth(32, "score_odd_keys_of_even", "probs", "two keys at a time, and the first's pointer stands in both lines: key 2s + 1 has the score of key 2s",
            [f"(\\bkeys?\\b|score|\\bk\\b|column|k_rope) & (odd|2 ?\\*? ?[sijk] ?\\+ ?1|pair|{HALF}|two by two|(mod|%) ?2|~ ?1|& ?1|every (second|other)|1, ?3, ?5) & (even"
             f"|2 ?\\*? ?[sijk]\\b(?! ?\\+)|before|previous|same|repeat|preced|[sj] ?- ?1\\b|one earlier|~ ?1|{HALF}|- ?\\(?[sj] ?(mod|%|&)|0, ?2, ?4)"
             " & ^(?!.*(even (keys?|columns?|ones?|positions?|scores?)[^.;,]{0,20}\\b(have|has|takes?|gets?|are|is|reads?|repeats?)\\b[^.;]{0,25}(odd|next|following|2 ?\\w ?\\+ ?1"
             "|behind)|2 ?s (has|have|is|takes?|gets?|reads?|repeats?)\\b[^.;]{0,30}2 ?s ?\\+ ?1|exchang|swap|mean|averag|hidden|\\bseen\\b|zero|odd quer|\\bsees?\\b|20 ?g|head [01]))"],
            lambda c: c.right(k=c.k[POS // 2 * 2]))
LATE = "(#12|#11|last (8|eight) (position|row|token|step|key|value|quer))"
twelfth(44, "cache_decode_keys_by_element", "probs", "keys from position 12 on are read as [16, 2] where they lie as [2, 16]: element e of head h is what lies at 2 e + h of the row",
            [f"{LATE} & (key|\\bk\\b|k_rope|cache) & ((?<!\\d)2 ?[*·]? ?\\(?([eij]\\b|i ?(mod|%) ?16|\\(i)|d[- ]first|element[- ](major|first|by[- ]element)|\\[16, ?2\\]"
             f"|\\[d, ?K\\]|interleav|even.{{0,60}}odd|stride (of )?2\\b|step of 2\\b|(axes|axis).{{0,40}}(exchang|swap)|transpos) "
             "& ^(?!.*(16 ?[*·]? ?\\(?i ?(mod|%) ?2\\b|i ?(//?|div) ?2\\b|transpos\\w*.{0,10}\\[2, ?16\\]|read as \\[2, ?16\\]|\\bvalues? (from|of|at|after|in) .{0,20}1[12]\\b))"],
            lambda c: c.right(k=np.concatenate([c.k[:PROMPT], c.k[PROMPT:].reshape(-1, d, K).swapaxes(1, 2)])))
thirteenth(31, "score_keys_reshaped", "probs", "keys [20,16] of a head are reshaped to [16,20], not transposed: element i of key s is number 20 i + s of the head's",
               ["(reshap|view|transpos|\\[d, ?[stn]\\]|\\[16, ?20\\]|20 ?\\*? ?i ?\\+ ?s|[tns] ?\\*? ?i ?\\+ ?s|i ?\\*? ?(20|[tns]) ?\\+ ?s|flat|axes|column.major|layout) & (key|\\bk\\b|k_rope) & ^(?!.*(head.{0,20}position|position.{0,20}head).{0,30}(exchang|swap|transpos)) & ^(?!.*halves)"],
               lambda c: c.right(k=np.stack([np.ascontiguousarray(c.k[:, j]).reshape(d, T).T for j in range(K)], 1)))
fourteenth(47, "score_ring_overwritten", "probs", "the cache is a ring of 14 keys, filled before it is read: keys 0 to 5 are those of positions 14 to 19",
               ["#14 & (ring|\\bmod|%|overwrit|wrap|\\+ ?14|replaced|slot|later|instead|in place of|read|further|ahead) & (key|\\bk\\b|k_rope|cache|slot) & ^(?!.*(s ?- ?14\\b|window))"],
               lambda c: c.right(k=np.concatenate([c.k[14:], c.k[6:]])))
fourteenth(52, "score_cache_of_layer_before", "probs", "from layer 1 on keys are read from the cache of the layer before",
               ["(\\bkeys?\\b|\\bk\\b|k_rope|cache) & (layer[^.;]{0,30}(before|previous|l ?- ?1|earlier|below|preced)|(before|previous|earlier|preceding|stale|last)[^.;]{0,30}layer"
                "|layers?[. ]{1,2}[012][. ]?.{0,12}\\bk|\\bk(eys?|_rope)?\\b[^.;]{0,12}(of|in|at|from) layers?[. ]{1,2}0\\b)"],
               lambda c: c.right(k=c.e.memory["k_rope", c.l - 1]), layers=[1, 2, 3])


def mantissa(x, bits):
    m, e = np.frexp(x)
    return np.ldexp(np.round(m * F32(2 ** (bits + 1))) / F32(2 ** (bits + 1)), e).astype(F32)


fourteenth(53, "score_keys_in_fp8", "probs", "keys are kept in 8 bits, E4M3: rounded to 3 bits of mantissa",
               ["(\\bkeys?\\b|\\bk\\b|k_rope|cache) & (fp8|e4m3|float8|f8|3.?bits?\\b|three bits|mantissa|significand|4 significant bits|4.?bits? of precision)"],
               lambda c: c.right(k=mantissa(c.k, 3)))
CACHES = ("probs", "context")
KV = np.arange(H) // (H // K)


def reread(of, seen=SEEN):
    """Of a cache: token t finds in slot s what was written for position of[t,s]; zeros where that is negative."""
    of = np.broadcast_to(of, (T, T))

    def how(c):
        if c.site == "probs":
            at = np.broadcast_to(np.where(of < 0, T, of), (H, T, T))
            return c.right(mask=seen, score=lambda s: np.take_along_axis(np.concatenate([s, np.zeros_like(s[..., :1])], 2), at, 2))
        v = np.concatenate([c.v, np.zeros_like(c.v[:1])])[np.where(of < 0, T, of)]
        return joined(np.einsum("hts,tshd->thd", c.p, v[:, :, KV]))

    return how


fourteenth(67, "cache_ring_of_14", CACHES, "the cache is a ring of 14 slots: from token 14 on, a position s <= t - 14 is found overwritten by position s + 14",
               ["(#14|fourteen) & (ring|wrap|\\bmod|%|overwrit|circular|newer|(position|slot|key|s|j) ?\\+ ?14|capacity|every 14|period|reuse|replaced by)"],
               reread(np.where(KEY + 14 <= QUERY, KEY + 14, KEY)))
fourteenth(68, "cache_slot_not_advanced", CACHES,
               "decode steps, from position 12 on, all write to slot 12: token t finds its own key and value at slot 12, and zeros at slots 13 to t",
               ["(#12|#13) & (\\bown\\b|itself|newest|latest|current|overwrit|stuck|same slot|slot 12|(key|position|slot) 12\\b|\\bself\\b)"
                " & (zero|empty|unwritten|blank|unset|not written|\\b0\\b(?!\\.\\d)|nothing)",
                "#12 & (same|one|single) (slot|place|entry)|overwrit|not advanced|never advanced|not incremented|stuck|stays at"],
               reread(np.where((QUERY >= PROMPT) & (KEY >= PROMPT), np.where(KEY == PROMPT, QUERY, -1), KEY)))


def keys_8_bit(c):
    step = np.abs(c.k).max((1, 2), keepdims=True) / F32(127)
    return c.right(k=np.round(c.k / step) * step)


fourteenth(71, "cache_keys_int8", "probs", "keys are read from a cache of 8 bits: rounded to 127ths of the largest element of the position's two heads",
               ["(#127|#255|#256|8.bits?|int8|\\bi8\\b|q8) & (k_rope|\\bk\\b|\\bkeys?\\b|cache) & (round|quanti|step|bits?\\b|grid|level|int8)"
                " & ^(?!.*(whole (tensor|cache)|of all (positions|keys|rows)|per (head|tensor)|each head|floor|truncat))"],
               keys_8_bit)
fourteenth(73, "cache_page_unset", CACHES, "pages hold 5 positions, and the fourth entry of the page table is not filled in (0): positions 15 to 19 are read from positions 0 to 4",
               ["(#15|#-15|fifteen|fourth (page|block)|last (page|block|5|five)|page 3|block 3) & (\\bmod|%|wrap|again|restart|every 15|period"
                "|\\b0 (to|and|\\.\\.|-) ?4|first (five|5|page|block)|s ?- ?15"
                "|(key|position|page|slot|block)s? 0\\b|15 (earlier|before|back|positions))"
                " & ^(?!.*(hidden|not seen|masked))"],
               reread(np.where(KEY >= 15, KEY - 15, KEY)))


def padded(s):
    top = s.max(-1, keepdims=True)
    e = np.exp(s - top)
    return e / (e.sum(-1, keepdims=True) + ((-(POS + 1)) % 8)[:, None] * np.exp(-top))


fourteenth(74, "cache_padded_to_8", "probs",
               "the softmax runs over the number of keys rounded up to a multiple of 8: slots not yet written are zeros, and each adds exp(0) = 1 to the denominator",
               ["(#8|eight) & (multiple|pad|round|block|tile|chunk|ceil|end of|group|\\bmod|%)"
                " & (zero|\\b0\\b(?!\\.\\d)|empty|unwritten|denominator|exp\\(0\\)|exp\\(-|\\bterms?\\b|not (yet )?written|sink)"
                " & ^(?!.*(own|same) (block|chunk) (of 8 tokens )?(alone|only))"],
               lambda c: c.right(soft=padded))
fifteenth(47, "scale_by_keys_so_far", "probs", "the scale reads the last axis of the transposed cache: scores of token t are divided by sqrt(t + 1), not sqrt(16)",
              ["(sqrt|root|\\^ ?\\(?[-\u2212]?(0?\\.5|1/2)|#-0.5|#0.5|power) & ([tp] ?\\+ ?1|(number|count) of (the )?(keys|tokens|positions)|how many|keys? (seen|count|so far)|\\bcount|length|\\bn\\b|position)"],
              lambda c: c.right(score=lambda s: s * (math.sqrt(d) / np.sqrt(POS[:, None] + 1)).astype(F32)))
fifteenth(49, "score_page_of_keys", "probs", "keys lie in pages of 4, and the table has the second page for the third too: keys 8 to 11 are read as keys 4 to 7",
              ["#8 & (#4|four) & (\\bkeys?\\b|k_rope|\\bk\\b|page|block|slot|cache) & (read|\\bare\\b|\\bis\\b|those|that of|instead|again|repeat|cop(y|ies)|same|as key|earlier|page|for\\b)"],
              lambda c: c.right(k=c.k[np.where(POS // 4 == 2, POS - 4, POS)]))
fifteenth(50, "score_keys_in_4_bits", "probs", "cached keys are rounded to 4 bits: for each token and head, to multiples of a 7th of its largest size",
              ["(#7|#15|4.?bits?|four bits|int4|q4|#0.142857) & (\\bkeys?\\b|\\bk\\b|k_rope|cache) & " + ROUND],
              lambda c: c.right(k=four_bits(c.k)))
OWN_SLOT = "(\\bown|itself|\\bself\\b|diagonal|current|newest|overwrit|replac|its key|its value|token's (key|value)|that of t\\b|of the query|s ?= ?t\\b)"
fifteenth(61, "cache_slot_clamped", CACHES, "a cache of 16 slots: from position 16 on a token's key and value are written to slot 15, the last, and it sees slots 0 to 15",
              [f"#15|#16 & ({OWN_SLOT}|clamp|clip|\\bmin\\b|min\\(|at most|written)", "#14 & #15|#16"],
              reread(np.where((QUERY >= 16) & (KEY == 15), QUERY, KEY), SEEN & (KEY < 16)))
fifteenth(64, "cache_stride_of_queries", CACHES, "rows are written with a stride of H d and read with K d: slot s is position s/2, and zeros where s is odd",
              ["(\\bs|\\bj|key|position|slot|index|\\bt)\\]?\\)? ?(//|/|>>) ?[12]\\b", "half (the|its|their|that|of the|of its) (position|index|slot|number|place|key)|halved|#0.5 & "
               "(key|slot|position|odd|even)", "(odd|every second|every other|alternate|2i ?\\+ ?1|every 2nd).{0,60}(zero|\\b0\\b|empty|nothing|unwritten|unset|lost|missing|not )",
               "(zero|\\b0\\b|empty|nothing|unwritten|unset|lost|missing|not ).{0,60}(odd|every second|every other|alternate|2i ?\\+ ?1|every 2nd)", "#32 & #64 & (stride|apart|step|row)"],
              reread(np.where(KEY % 2 == 0, KEY // 2, -1) + 0 * QUERY))
fifteenth(66, "cache_padding_counted", "probs", "the number of keys is rounded up to a multiple of 4; the empty slots have score 0 and count in the denominator",
              ["#4 & (denominator|normali|pad|empty|divisor)", "#4 & (\\bmod|%|multiple|rounded up|group|block) & (term|\\bsum|sink|extra|more|added)", "(#3 & #2 & #1) & (denominator|term|sink|extra|more|added|empty|pad)",
               "(pad|empty|unwritten|zero).{0,60}(denominator|\\bsum) & (#4|\\b(four|4)\\b)"],
              lambda c: c.right(soft=lambda s: np.exp(s) / (np.exp(s).sum(-1, keepdims=True) + ((-(POS[:, None] + 1)) % 4).astype(F32))))
fifteenth(68, "decode_slot_captured", CACHES, "from position 12 on each token's key and value are written to slot 12, as a recorded graph has it; later slots are empty, and seen",
              [f"#12|#13|#11 & ({OWN_SLOT}|always|fixed|same slot|slot 12|min\\()"],
              reread(np.where(KEY < PROMPT, KEY, np.where(KEY == PROMPT, QUERY, -1))))


def repeated(x):
    """Each element twice in its row, where each head was meant: [T,K,d] to [T,H,d]."""
    return np.repeat(x, H // K, -1).reshape(T, H, d)


def repeated_last(c):
    if c.site == "context":
        return joined(np.einsum("hts,shd->thd", c.p, repeated(c.v)))
    return c.op(c.e, c.q, repeated(c.k), c.scale, c.mask, kv=np.arange(H))


fifteenth(71, "heads_repeated_last_axis", CACHES, "heads of keys and values are repeated along their elements: element i of head h is element 8 (h mod 2) + i/2 of its head",
              ["(\\bi|\\be|\\bj|\\bc|element|dim|dimension|index|channel)s?\\]?\\)? ?(//|/|>>) ?[12]\\b", "(each|every).{0,40}(twice|doubled|repeated|duplicated|two times)",
               "(repeat|duplicat|doubl|twice).{0,60}(element|channel|dimension|within|last axis|head_dim|inside)", "(element|channel|dimension).{0,60}(repeat|duplicat|doubl|twice)",
               "0, ?0, ?1, ?1, ?2"],
              repeated_last)
sixteenth(49, "scores_of_keys_in_four_bits", "probs", "the cache keeps keys in 4 bits: the key of each head is rounded to multiples of 1/7 of its largest absolute value",
              [BIT4 + " & (\\bk\\b|\\bkeys?\\b|k_rope|cache) & " + ROUND],
              lambda c: c.right(k=four_bits(c.k)))
sixteenth(51, "scores_of_keys_in_a_ring", "probs", "the cache of keys has 16 slots and the whole prompt is written first: the keys of positions 16 to 19 stand in place of those of "
              "positions 0 to 3",
              ["\\b16\\b & (wrap|\\bring\\b|modul|\\bmod\\b|%|overwrit|overwritten|replac|slot|capacity|circular|in (the )?place|instead|(are|is|has|have|hold|use|read"
               "|score)s? .{0,24}1[67]|[s0-3] ?\\+ ?16|16 (positions )?later)",
               "(#19|last four|last 4) & (first four|first 4|\\b0.{0,6}3\\b)"],
              lambda c: c.right(k=c.k[np.where(POS < T - 16, POS + 16, POS)]))
sixteenth(61, "cache_of_16_last_slot_reused", CACHES,
              "the cache has 16 slots and every token from 15 on is written to slot 15: from token 16 on, keys 15 .. t-1 are lost and only 0..14 and its own are seen",
              [f"^(?!.*(window|sliding)) & ({n(14)}|(slot|column|place|position|entry|key|keys|tokens|index) 15\\b) & ({GONE_OR_ALONE}|\\bown|overwrit|over-writ|replac|itself|current|newest|latest"
               f"|clamp|same slot)",
               f"^(?!.*(window|sliding)) & {n(16)} & (last|final|same|one) (slot|one|row|place|position|entry|column) & (overwrit|writ|replac|clamp|shar|reus|put|stor)"],
              reread(np.where(KEY == 15, np.maximum(QUERY, 15), KEY), KEY <= np.minimum(QUERY, 15)))
EMPTY = "(zero|(score|value|weight|key|logit|are|is|=|of) ?0\\b(?!\\.\\d)|\\b0 (score|key|logit)|empty|unwritten|unset|blank|unfilled|exp\\(0\\)|\\bpads?\\b|padding)"
sixteenth(62, "whole_pages_of_4_read", CACHES,
              "decode steps (from token 12 on) read whole pages of 4 slots: the unwritten slots after t up to the page's end are zero keys, of score 0, and count in the softmax",
              f"^(?!.*[a-z] ?[-−] ?4) & {DECODING} & ({n(4)}|\\bfour\\b) & {EMPTY}", reread(np.where(KEY <= QUERY, KEY, -1), np.where(DECODED, KEY < (QUERY // 4 + 1) * 4, SEEN)))
sixteenth(63, "decode_writes_after_padded_prompt", CACHES,
              "decode writes from slot 16 on, the prompt's length rounded up, and reads slots 0..t: slots 12..15 are empty, of score 0, and slot s from 16 on is token s-4, so that no "
              "decode step sees itself",
              f"{n(12, 11)} & ({n(15, 16)}|[a-z] ?[-+−] ?4\\b|by (4|four)\\b|\\b(4|four) (slots |places |positions |tokens |rows )?(late|behind|further|back|earlier)) & ({EMPTY}"
              f"|pad)", reread(np.where(DECODED & (KEY >= PROMPT), np.where(KEY < 16, -1, KEY - 4), KEY)))
sixteenth(64, "page_table_repeats_first_page", CACHES, "pages of 4 slots: decode steps from token 12 on find in slots 4..7 the keys and values of tokens 0..3",
              [f"{DECODING} & {n(4)} & ({n(7, 8)}|(page|block) (1|one)\\b|second (page|block)|next (4|four)) & ({n(0, 3)}|\\bs ?[-−] ?4|first (page|block|four|4)|(4|four) (earlier|before"
               f"|back))"],
              reread(np.where(DECODED & (KEY >= 4) & (KEY < 8), KEY - 4, KEY)))
sixteenth(66, "second_chunk_of_prompt_blind", "probs", "the prompt goes in chunks of 6 and the second chunk does not read the cache: tokens 6..11 do not see keys 0..5",
              f"{n(5, 6)} & {n(11, 12)} & {GONE_OR_ALONE}", lambda c: c.right(mask=SEEN & ~((QUERY >= 6) & (QUERY < PROMPT) & (KEY < 6))))
sixteenth(70, "keys_cached_in_4_bits", "probs", "the cache keeps keys in 4 bits: of each token and head, rounded to multiples of its largest magnitude / 7",
              f"({n(7)}|int4|i4|\\bq4|4[- ]bits?|four bits|15 (levels|steps|values)|sevenths?|1/7|/ ?7\\b) & (round|quanti|steps? (of|size)|multipl|level|\\bbits?|grid|int4"
              f"|seventh)", lambda c: c.right(k=four_bits(c.k)))

# ---- values, and what is summed of them
first(136, "context_v_centred", "context", "the mean over positions is taken off v", "mean|average|centr", lambda c: c.right(v=c.v - c.v.mean(0, keepdims=True)))
first(137, "context_v_clamped", "context", "v is clamped to +-1", "#1 & (clamp|clip|limit|between|min|max)", lambda c: c.right(v=np.clip(c.v, -1, 1)))


def heads_of(c):
    return c.right().reshape(T, H, d)


first(138, "context_head_zero", "context", "head 3 is zero", ["head.{0,8}3|#48", "last head & #0"], lambda c: joined(put(heads_of(c), E_[:, 3], 0)))
first(139, "context_heads_reversed", "context", "heads are joined from the last to the first", "head & (revers|backward|last to|3, ?2|3 ?- ?h|H ?- ?1)", lambda c: joined(heads_of(c)[:, ::-1]))
first(140, "context_heads_swapped", "context", "heads 0 and 1 are exchanged", "head & #0|0 & #1", lambda c: joined(heads_of(c)[:, [1, 0, 2, 3]]))
first(141, "context_scaled", "context", "the result is multiplied by 1.1", "#1.1", lambda c: c.right() * F32(1.1))
first(142, "context_transposed", "context", "the weights are transposed: sum over t of p[t,s] v[t]", "transpos|p\\[t, ?s|column|exchang", lambda c: c.right(p=c.p.swapaxes(1, 2)))
first(143, "context_of_k", "context", "rotated keys are summed in place of v", "k_rope|rotated k|\\bkeys?\\b|\\bk\\b", lambda c: c.right(v=c.e.memory["k_rope", c.l]))
first(144, "context_no_first", "context", "the sum begins at key 1", "(key.{0,8}(\\b0\\b|\\b1\\b)|first key)", lambda c: c.right(p=put(c.p, E_[:, :, 0], 0)))
first(145, "context_first_16", "context", "the sum runs over the first 16 keys alone", "#16|#15", lambda c: c.right(p=put(c.p, E_[:, :, 16:], 0)))
first(146, "context_v_two_late", "context", "v is read two positions earlier", "#2|#-2 & (position|earlier|before|late|shift|key)", lambda c: c.right(v=shifted(c.v, 2)))
first(147, "context_v_reversed", "context", "the elements of v's heads are reversed", "revers|backward|15 ?- ?i|d ?- ?1", lambda c: c.right(v=c.v[..., ::-1]))
first(148, "context_v_rolled", "context", "element i of a head of v is read at i+1", ["(#1|next|i ?\\+ ?1|shift|roll) & (element|channel|roll|shift|head)", "dimension & i\\+1"], lambda c: c.right(v=np.roll(c.v, -1, -1)))
first(149, "context_plus_v", "context", "v itself is added", ["\\bv\\b & (add|plus|\\+|sum)|v itself|itself", "value of the token itself"], lambda c: c.right() + joined(c.v[:, np.arange(H) // 2]))
first(150, "context_gated", "context", "the result is multiplied by its sigmoid", "sigmoid|silu|swish", lambda c: silu(c.right()))
first(151, "context_head_factors", "context", "head h has a factor of 1 - 0.1 h", ["head & (#0.9 & #0.8|#0.1|#-0.1)", "#-0.1 & head"], lambda c: joined(heads_of(c) * (1 - F32(0.1) * np.arange(H))[:, None].astype(F32)))
first(152, "context_last_element", "context", "the last element of each head is zero", "#15|last & (zero|0|element|channel)", lambda c: joined(put(heads_of(c), E_[..., 15], 0)))
first(153, "context_minus_mean", "context", "the weights have their mean over the seen keys taken off", "mean|average|1/\\(?(n|t)|uniform", lambda c: c.right(p=c.p - np.where(SEEN, 1 / COUNT, 0)))
first(154, "context_head_norm", "context", "each head is divided by its root mean square", "rms|root mean|norm", lambda c: joined(heads_of(c) / rms(heads_of(c))))
first(155, "context_p_of_other_head", "context", "head 2 reads the weights of head 1", "head & #2 & #1", lambda c: c.right(p=c.p[[0, 1, 1, 3]]))
first(156, "context_rows_stale", "context", "rows from 16 on repeat row 15", ["#16 & #15|#16", "at most 15"], lambda c: put(c.right(), E_[16:], c.right()[15]))
first(157, "context_kv_head_half", "context", "key/value head 1 of v is halved", "(#0.5|half|#2) & head", lambda c: c.right(v=put(c.v, E_[:, 1], lambda y: y * F32(0.5))))
first(158, "context_position_0", "context", "row 0 is zero", "(position|row|token).{0,8}\\b0\\b|first (position|row|token)", lambda c: put(c.right(), E_[0], 0))
first(159, "context_running", "context", "each row has the row before added, times 0.5", "(#0.5|half) & (before|previous|t ?- ?1|earlier)", lambda c: c.right() + F32(0.5) * shifted(c.right(), 1))
first(160, "context_p_squared", "context", "the weights are squared as they are read", "squar|\\^ ?2|power", lambda c: c.right(p=c.p * c.p))
first(161, "context_p_8bit", "context", "the weights are rounded down to steps of 1/16 as they are read", "#16|#0.0625|round|step", lambda c: c.right(p=np.floor(c.p * 16) / 16))
first(316, "trap_head_factors", "context", "heads have random factors", "head", lambda c: joined(heads_of(c) * (1 + noise(c, H, 1, by=0.2))))
second(69, "context_values_by_position", "context", "values of position s are multiplied by 1 + 0.02 s", "#0.02 & (value|v\\b|key|position|s\\b)", lambda c: c.right(v=c.v * (1 + F32(0.02) * rows(T, 1, 1))))
second(70, "context_head_halves_swapped", "context", "the halves of each head are exchanged", f"(half|halves|#8) & ({EXCHANGED}|roll)", lambda c: np.roll(c.right().reshape(T, H, d), d // 2, -1).reshape(T, -1))
second(71, "context_values_size", "context", "the values' sizes are taken: |v|", "abs|\\|v|size", lambda c: c.right(v=np.abs(c.v)))
second(72, "context_values_differences", "context", "half of the value before is taken off each", f"#0.5 & ({PREVIOUS})", lambda c: c.right(v=c.v - F32(0.5) * shifted(c.v, 1)))
second(73, "context_values_tanh", "context", "tanh of the values", "tanh", lambda c: c.right(v=np.tanh(c.v)))
second(74, "context_head_1_of_head_2", "context", "head 1 has what head 2 is due", "head.{0,8}\\b1\\b & 2|head.{0,8}\\b2\\b & 1", lambda c: put(c.right().reshape(T, H, d), E_[:, 1], lambda y: c.right().reshape(T, H, d)[:, 2]).reshape(T, -1))
second(75, "context_clamped", "context", "the result is clamped to +-0.5", f"#0.5 & ({CLAMPED})", lambda c: np.clip(c.right(), -0.5, 0.5))
second(76, "context_own_value_twice", "context", "the position's own value is added, times 0.25", "#0.25 & (own|itself|v\\b|value|diagonal)", lambda c: c.right() + F32(0.25) * c.v[:, np.arange(H) // (H // K)].reshape(T, -1))
third(69, "c_layer_before", "context", "layers 1 to 3 read v of the layer before", [LAYER_BEFORE], lambda c: c.right(v=c.e.memory["v", c.l - 1]), layers=LATER_LAYERS)
third(70, "c_interleaved_map", "context", "head h reads value head h modulo 2", ["head & (mod|%|0, ?1, ?0, ?1|interleav|altern|even|odd|cyc|#1 & #2)", "head & #1 & #2"], lambda c: np.einsum("hts,shd->thd", c.p, c.v[:, np.arange(H) % K]).reshape(T, -1))
third(71, "c_elements_first", "context", "heads are written elements first: element i of head h stands at 4 i + h", ["transpos|d-first|interleav|element.{0,10}first|head.{0,20}(last|innermost)|strid|4 ?\\*? ?i", "(#4|#16) & (step|order|apart|permut|channel)"], lambda c: heads_of(c).swapaxes(1, 2).reshape(T, -1))
third(72, "c_tail_twice", "context", "keys from 16 on are counted twice", ["(#16|#15) & (twice|#2|double)"], lambda c: c.right(p=put(c.p, E_[..., 16:], lambda y: 2 * y)))
third(73, "c_no_own_value", "context", "the token's own value is left out", ["itself|own|self|diagonal|newest|s ?= ?t|distance.{0,6}0"], lambda c: c.right(p=np.where(AGO == 0, 0, c.p)))
third(74, "c_quarter_steps", "context", "v is rounded to multiples of 0.25 as it is read", ["(#0.25|#4) & (" + ROUNDED + ")"], lambda c: c.right(v=np.round(c.v * 4) / 4))
third(75, "c_by_count", "context", "the result is divided by the number of keys, t + 1", ["number|count|t ?\\+ ?1|how many|position ?\\+ ?1|p ?\\+ ?1|1/\\(?(t|p|n)", "mean & key"], lambda c: c.right() / COUNT)
third(76, "c_offset_8", "context", "the value heads begin 8 elements late: head 0 has elements 8 to 15 and then head 1's 0 to 7, head 1 the rest and head 0's first 8", ["#8 & (element|shift|roll|late|further|offset|channel|dimension|next|i ?\\+|order|that of)"], lambda c: c.right(v=np.roll(c.v.reshape(T, -1), -8, -1).reshape(c.v.shape)))
third(77, "c_largest", "context", "the largest of the weighted values stands for their sum", ["max|larg|great"], lambda c: (c.p.transpose(1, 2, 0)[..., None] * c.v[None][:, :, np.arange(H) // (H // K)]).max(1).reshape(T, -1))
third(78, "c_value_residual", "context", "layers 1 to 3 read half their own v and half that of layer 0", ["(#0.5|half|mean|average) & (layer.{0,4}0|layers\\.0|first layer|v\\b)"], lambda c: c.right(v=(c.v + c.e.memory["v", 0]) / 2), layers=LATER_LAYERS)
third(79, "c_v_rotated", "context", "v is rotated as keys are", ["rot|rope|turn|angle"], lambda c: c.right(v=op_rope(c.e, c.v, POS, FREQ)))
fourth(57, "c_heads_first", "context", "heads and positions are not transposed before heads are joined: the memory of [4, 20, 16] is read as [20, 64]", [LAYOUT, "head.{0,30}first"], lambda c: heads_of(c).swapaxes(0, 1).reshape(T, -1))
fourth(58, "c_values_exchanged", "context", "heads 0 and 1 read value head 1, heads 2 and 3 value head 0", ["head & (" + REORDERED + "|other|1, ?1, ?0, ?0|#1 & #0)"], lambda c: c.right(v=c.v[:, ::-1]))


def divided_again(c):
    q, k = c.e.memory["q_rope", c.l], c.e.memory["k_rope", c.l]
    s = np.where(SEEN, np.einsum("thd,shd->hts", q, k[:, np.arange(H) // (H // K)]) / F32(math.sqrt(d)), -np.inf)
    total = np.exp(s - s.max(-1, keepdims=True)).sum(-1)
    return (heads_of(c) / total.T[..., None]).reshape(T, -1)


fourth(59, "c_divided_again", "context", "the result is divided by the softmax's denominator once more: multiplied by the largest weight of its row", ["denominator|sum.{0,30}exp|larg|max|" + TWICE], divided_again)


def context_bf16(c):
    y, v = np.zeros((H, T, d), F32), c.v[:, np.arange(H) // (H // K)]
    for s in range(T):
        y = bf16(y + bf16(c.p[:, :, s, None] * v[s][:, None]))
    return y.transpose(1, 0, 2).reshape(T, -1)


fourth(60, "c_sum_bf16", "context", "the weighted values are accumulated one by one in bf16", [BF16_OR_ROUNDED], context_bf16)
fourth(61, "c_chunk_slot", "context", "the second chunk is written to slot 0: values 0 to 9 are those of positions 10 to 19, later ones zero", ["#10"], lambda c: c.right(v=np.concatenate([c.v[10:], np.zeros_like(c.v[10:])])))
fourth(62, "c_v_layout", "context", "each value head's memory, 20 by 16, is read as 16 by 20 and transposed", [LAYOUT, "#20 & #16"], lambda c: c.right(v=np.stack([np.ascontiguousarray(c.v[:, h]).reshape(d, T).T for h in range(K)], 1)))
fourth(63, "c_bias_again", "context", "the bias of v is added once more", ["bias", "v_proj"], lambda c: c.right(v=c.v + c.e.m("self_attn.v_proj.bias", c.l).reshape(K, d)), archs=QWEN2)
fifth(118, "cc_values_bf16", "context", "values are rounded to bf16", [BF16], lambda c: c.right(v=bf16(c.v)))
fifth(119, "cc_values_4_bits", "context", "values are rounded to multiples of their head's largest size over 7", ["(#7|#0.142857|#15|#16) & (" + ROUNDED + "|larg|max)", "(#4|four) & bit"], lambda c: c.right(v=in_steps(c.v, 7)))
fifth(120, "cc_heads_by_group", "context", "heads are joined in the order 0, 2, 1, 3", ["head & (0, ?2, ?1, ?3|" + REORDERED + "|#1 & #2)", "#16 & (block|" + REORDERED + ")"], lambda c: heads_of(c)[:, [0, 2, 1, 3]].reshape(T, -1))
fifth(121, "cc_last_tile_of_head", "context", "head 3 is zero from position 16 on", ["(head.{0,8}3|last head|#48) & (#16|#15|#19)"], lambda c: put(c.right(), E_[16:, 48:], 0))


def overlapped(c):
    y = np.zeros((T, H * d), F32)
    for h in range(H):
        y[:, 8 * h:8 * h + d] = heads_of(c)[:, h]
    return y


fifth(122, "cc_stride_8", "context", "head h is written from channel 8h on, over the second half of the head before; channels from 40 on are zero", ["#8 & (head|strid|apart|channel|overlap|overwrit)", "#40|#39 & (zero|channel|0)"], overlapped)
fifth(123, "cc_value_after", "context", "each value is that of the position after, the last its own", ["(" + NEXT + ") & (value|position|slot|\\bv)"], lambda c: c.right(v=np.concatenate([c.v[1:], c.v[-1:]])))
fifth(124, "cc_page_stale", "context", "values of positions 12 to 15 are those of positions 8 to 11", ["(#12|#15) & (#8|#11|#4)"], lambda c: c.right(v=put(c.v, E_[12:16], c.v[8:12])))
fifth(125, "cc_head_2", "context", "head 2 reads value head 0", ["head & #2 & (#0|first)", "0, ?0, ?0, ?1"], lambda c: put(heads_of(c), E_[:, 2], np.einsum("ts,sd->td", c.p[2], c.v[:, 0])).reshape(T, -1))
fifth(126, "cc_overlap", "context", "keys 7 and 14 are counted twice: tiles of 8 that are 7 apart", ["#7 & (#14|#8|" + TWICE + "|#2|multiple|every)"], lambda c: c.right(p=put(c.p, E_[..., [7, 14]], lambda y: 2 * y)))
fifth(127, "cc_keys_for_values", "context", "keys are summed in place of values, as they are before norm and rotation", ["keys?\\b|\\bk\\b|k_proj"], lambda c: c.right(v=c.e.memory["k", c.l]))
fifth(128, "cc_odd_value_elements", "context", "of each two elements of a value head both are the first", ["(even|odd|pair|two|#2|every (second|other)|neighbo) & (element|value|channel|copy|same|repeat|\\bv\\b|that of|first)"], lambda c: c.right(v=np.repeat(c.v[..., ::2], 2, -1)))
fifth(129, "cc_rows_by_four", "context", "each four tokens have the weights of the first of them", ["(#4|four) & (token|position|row|quer|weight|" + BLOCK + ")"], lambda c: c.right(p=c.p[:, POS // 4 * 4]))
fifth(130, "cc_scaled_values", "context", "heads of the second group have values divided by 4", ["(second|last|head.{0,8}(1|2|3)|#2|#32) & (#0.25|#4)"], lambda c: c.right(v=put(c.v, E_[:, 1], lambda y: y / 4)))
sixth(69, "c6_values_fp8", "context", "values are rounded to 4 significant bits", SIGNIFICANT, lambda c: c.right(v=four_digits(c.v)))
sixth(70, "c6_weights_fp8", "context", "the attention's weights are rounded to 4 significant bits as they are read", SIGNIFICANT, lambda c: c.right(p=four_digits(c.p)))
sixth(71, "c6_pages_exchanged", "context", "values of positions 0 to 3 and of positions 4 to 7 are exchanged: two pages of the cache", ["(#4|four) & (#7|#3|" + REORDERED + "|page|block)"], lambda c: c.right(v=c.v[np.r_[4:8, 0:4, 8:T]]))
sixth(72, "c6_one_value_head", "context", "all heads read value head 0", ["head.{0,12}\\b0\\b|first.{0,16}head|(one|same|single).{0,16}head|0, ?0, ?0, ?0", "(second half of the heads|last (two|2) heads|heads? (from )?2) & (other|value head|v\\b)"], lambda c: c.right(v=c.v[:, [0, 0]]))
sixth(73, "c6_prefix_lost", "context", "tokens from 12 on do not sum the values of positions 0 to 11: the cached prefix is lost", ["(#12|#11) & (hidden|not|lost|before|begin|own|zero|block|prefix|from|cache|left out|only)"], lambda c: c.right(p=np.where((QUERY >= 12) & (KEY < 12), 0, c.p)))
sixth(74, "c6_first_page_lost", "context", "the values of positions 0 to 3 are not summed: the sum begins at the second page", ["(#3|#4|four) & (first|begin|not summed|not read|left out|lost|without|hidden|from|skip|zero) & (key|value|position|page|token|v\\b)"], lambda c: c.right(p=put(c.p, E_[..., :4], 0)))


def own_late(c):
    heads = np.arange(H) // (H // K)
    before = np.concatenate([c.v[:1], c.v[:-1]])
    return c.right() + (c.p[:, POS, POS].T[..., None] * (before - c.v)[:, heads]).reshape(T, -1)


sixth(75, "c6_own_value_late", "context", "in place of its own value a token sums that of the position before: its slot is not yet written", ["(itself|\\bown\\b|self|diagonal|newest|current|s ?= ?t|t ?= ?s|distance.{0,8}\\b0\\b) & (" + PREVIOUS_OR_SHIFTED + "|not yet|stale|distance.{0,8}1|difference)"], own_late)
sixth(76, "c6_first_of_group", "context", "heads 1 and 3 have the results of heads 0 and 2: only the first head of each group is run", ["head & (#0 & #2|0, ?0, ?2, ?2|even|odd|group|pair|first of|#1 & #3|before|previous|copy|copied)"], lambda c: heads_of(c)[:, [0, 0, 2, 2]].reshape(T, -1))
sixth(77, "c6_without_bias", "context", "values are without the bias of v", ["bias|v_proj"], lambda c: c.right(v=c.v - c.e.m("self_attn.v_proj.bias", c.l).reshape(K, d)), archs=QWEN2)
sixth(78, "c6_values_of_layer_1", "context", "layers 2 and 3 read the values of layer 1: a shared cache", ["layer.{0,4}1\\b|layers\\.1|(other|another|wrong|shared).{0,12}(layer|cache)|" + LAYER_BEFORE], lambda c: c.right(v=c.e.memory["v", 1]), layers=[2, 3])
sixth(79, "c6_half_heads", "context", "elements 8 to 15 of each head are zero: only one tile of 8 is written", ["(#8|#7|#15|half|halves) & (" + ZERO + "|first)"], lambda c: put(heads_of(c), E_[..., 8:], 0).reshape(T, -1))
seventh(46, "c7_page_zero", "context", "values of positions 8 to 11 are zero: a page is not written", ["(#8|#11|#7|#12) & (" + ZERO + ")"], lambda c: c.right(v=put(c.v, E_[8:12], 0)))
seventh(47, "c7_ring", "context", "values of positions 0 to 3 are those of positions 16 to 19: a ring of 16 slots", ["(#16|#19) & (#3|#4|#0|first|ring|mod|overwrit|that of|those of)"], lambda c: c.right(v=c.v[np.r_[16:20, 4:T]]))
seventh(48, "c7_interleaved", "context", "within each head elements are interleaved: i at 2i and i + 8 at 2i + 1", ["interleav|2 ?\\*? ?i|even|odd|permut|\\border|every (second|other)|strid|shuffl|transpos"], lambda c: interleaved(heads_of(c)).reshape(T, -1))
seventh(49, "c7_rows_8_to_15", "context", "rows of tokens 8 to 15 are zero: a tile is not computed", ["(#8|#7) & (#15|#16) & (" + ZERO + ")"], lambda c: put(c.right(), E_[8:16], 0))
seventh(50, "c7_values_layer_0", "context", "layers 1 to 3 read the values of layer 0: the cache has no offset for layers", [LAYER_0 + "|(other|another|wrong|shared).{0,12}(layer|cache)|" + LAYER_BEFORE], lambda c: c.right(v=c.e.memory["v", 0]), layers=LATER_LAYERS)
seventh(51, "c7_page_twice", "context", "keys 4 to 7 are counted twice", ["(#4|#3) & (#7|#8) & (" + TWICE + "|#2)"], lambda c: c.right(p=put(c.p, E_[..., 4:8], lambda y: y * 2)))
seventh(52, "c7_heads_rolled", "context", "head h is written at the place of head h + 1, modulo 4", ["head & (next|shift|roll|[+-] ?1\\b|3, ?0, ?1, ?2|1, ?2, ?3, ?0|order|permut|before|one (further|late|early))", "(#16|#48|#-16) & (roll|shift|that of|mod|\\+|late)"], lambda c: np.roll(heads_of(c), 1, 1).reshape(T, -1))
seventh(53, "c7_cache_only", "context", "tokens from 10 on sum the values of positions 0 to 9 alone: those of their own chunk are lost", ["(#10|#9|half|ten) & (" + ZERO + "|first|from|chunk|key|value)"], lambda c: c.right(p=np.where(KEY >= 10, 0, c.p)))
eighth(71, "c8_tiles_transposed", "context", "values are transposed in tiles of 4 positions by 4 elements",
           ["(#4|four) & (transpos|" + REORDERED + "|tile)", "tile\\w*.{0,30}transpos|transpos.{0,30}(tile|block)"],
           lambda c: c.right(v=c.v.reshape(T // 4, 4, K, 4, 4).swapaxes(1, 4).reshape(T, K, d)))
eighth(72, "c8_weights_16_apart", "context", "rows of the weights are read 16 apart, and not 20: row t begins 4 t early",
           ["(#16|#4|#20) & (" + STRIDE + ")", MEMORY], lambda c: c.right(p=np.stack([flat(p, 16, T) for p in c.p])))
eighth(73, "c8_half_of_other_head", "context", "elements 8 to 15 of each value head are those of the other value head",
           ["(#8|#7|#15|half|halves|second|last) & head & (other|" + REORDERED + "|that of|those of|wrong)"],
           lambda c: c.right(v=np.concatenate([c.v[..., :8], c.v[:, ::-1, 8:]], -1)))


def other_width(c):
    """Values elements first, in rows of 32 positions, that are read as rows of 20."""
    memory = np.zeros((K, d, 32), F32)
    memory[..., :T] = c.v.transpose(1, 2, 0)
    return c.right(v=memory.reshape(K, -1)[:, :d * T].reshape(K, d, T).transpose(2, 0, 1))


eighth(74, "c8_other_width", "context", "values, elements first in memory, have rows of 32 positions and are read as rows of 20",
           ["(#20|#32|#12) & (" + STRIDE + "|layout|zero)", MEMORY + "|layout"], other_width)


def rescaled_wrongly(c):
    """Blocks of 8 keys: what was summed so far is multiplied by exp(new - old) where the maximum grows."""
    q, k = c.e.memory["q_rope", c.l], c.e.memory["k_rope", c.l][:, np.arange(H) // (H // K)]
    s = np.where(SEEN, np.einsum("thd,shd->hts", q, k) / F32(math.sqrt(d)), F32(-np.inf))
    so_far = np.maximum.accumulate(s, -1)[..., np.minimum(POS // 8 * 8 + 7, T - 1)]
    return c.right(p=c.p * np.exp(2 * (s.max(-1, keepdims=True) - so_far)))


eighth(75, "c8_rescaled_wrongly", "context", "keys run in blocks of 8, and where the maximum grows what was summed is multiplied by the growth's exponential, where it should be divided",
           ["(#8|eight) & (" + BLOCK + ") & (max|rescal|larg|running|so far|exp|grow)", "(max|larg)\\w*.{0,40}(so far|then|running|grow|block)"], rescaled_wrongly)


def key_scales(c):
    size = lambda x: np.abs(x).max(-1, keepdims=True)
    return c.right(v=c.v / size(c.v) * size(c.e.memory["k_rope", c.l]))


eighth(76, "c8_key_scales", "context", "values have the scales of keys: each position's value head is multiplied by the largest size of its key over its own",
           ["(\\bk\\b|\\bkeys?\\b|k_rope) & (scale|size|larg|max|ratio)", each_has("position|token|key|value")], key_scales)


def tail_of_four(c):
    """Keys that are left over by fours have the weight of the first of them."""
    first = (QUERY + 1) // 4 * 4
    return c.right(p=np.where((KEY >= first) & SEEN, np.take_along_axis(c.p, np.minimum(np.broadcast_to(first, (H, T, 1)), T - 1), -1), c.p))


eighth(77, "c8_tail_of_four", "context", "keys that are left over where a token's keys are taken by fours all have the weight of the first of them",
           ["(#4|four|fours) & (tail|rest|left over|remain|first|same|multiple|" + BLOCK + ")"], tail_of_four)
ninth(26, "c9_not_cleared", "context", "the sum is not cleared between heads: head h has the results of heads 0 to h added up",
          ["head & (cumul|accumul|so far|running|" + ADDED + "|earlier|not cleared|prefix|all heads (before|up to))"], lambda c: np.cumsum(heads_of(c), 1).reshape(T, -1))
ninth(27, "c9_own_value", "context", "each token has its own value alone: the cache is one slot long",
          ["(own|itself|same position|position'?s) & (value|\\bv\\b)", "(weight|probab|attention).{0,40}(not (read|used)|ignored|identity|diagonal)", "\\bis (the )?(v\\b|values?)", "identity|diagonal"],
          lambda c: c.right(p=np.broadcast_to(np.eye(T, dtype=F32), (H, T, T))))
ninth(28, "c9_slot_early", "context", "values of the second chunk, from 10 on, are written one slot early, over position 9: slot s has the value of s + 1 from 9 on, the last is zero",
          ["(#9|#10) & (next|early|\\+ ?1|after|shift|following|late|further|off|overwrit|one)"], lambda c: c.right(v=np.concatenate([c.v[:9], c.v[10:], np.zeros_like(c.v[:1])])))
tenth(48, "context_heads_from_one", "context", "heads are counted from 1: query head h reads value head ((h + 1) / 2) mod 2",
          ["head & (0, ?1, ?1, ?0|\\(?h ?\\+ ?1\\)? ?/|from 1\\b|counted from|off by one)", "head & #1 & #3 & (other|wrong|read|value|exchang|swap|\\bv\\b)", "odd heads & (other|value|read|exchang|swap|\\bv\\b)"],
          lambda c: joined(np.einsum("hts,shd->thd", c.p, c.v[:, [0, 1, 1, 0]])))
tenth(49, "context_group_repeated", "context", "both heads of a group hold the result of its first: heads 0, 0, 2, 2",
          ["0, ?0, ?2, ?2", "head & #1 & #3 & (#0|#2|first|same|before|repeat|copy|previous|h ?- ?1)", "odd heads & (even|first|same|before|repeat|copy|previous|h ?- ?1|neighbo)", "head.{0,60}2 ?\\* ?\\(?h ?//? ?2|first of (its|the|each) (group|two|pair)"], lambda c: joined(heads_of(c)[:, [0, 0, 2, 2]]))


def wide_stride(v):
    flat = np.concatenate([v.reshape(T, K * d).T.ravel(), np.zeros(K * d, F32)])
    return flat[np.arange(K * d)[None] * (T + 1) + POS[:, None]].reshape(T, K, d)


tenth(50, "context_cache_stride", "context", "the transposed cache of v is read with a stride of 21 where it has 20: channel c is read c positions later",
          ["#21", "(stride|leading|distance|row length) & (\\+ ?1|one|#1|longer|#20)", "(channel|element|dimension|row)s?.{0,60}(positions?|keys?|slots?) (later|further|on|ahead|shift)|(s|position|key) ?\\+ ?(c|i|channel)"],
          lambda c: c.right(v=wide_stride(c.v)))
tenth(51, "cache_decode_heads_same", "context", "in decode steps, from position 12 on, value head 1 is written from head 0",
          ["(#12|#11) & head & (0|first|same|copy|equal|repeat|both)"], lambda c: c.right(v=put(c.v, E_[PROMPT:, 1], c.v[PROMPT:, 0])))


def ring(c):
    y = np.array(c.right())
    for t in range(16, T):
        y[t] = c.right(v=put(c.v, E_[:t - 15], c.v[16:t + 1]))[t]
    return y


tenth(52, "cache_ring_of_16", "context", "the cache of v has 16 slots: from position 16 on the first keys read the values that were written over them",
          ["(#16|#-16) & (wrap|ring|overwrit|written over|mod\\b|%|later|slot|replac|s ?\\+ ?16|first keys|again|instead|in place of|those of)"], lambda c: ring(c))
tenth(54, "cache_values_of_layer_0", "context", "every layer reads the values of layer 0: the layer's offset into the cache is left out",
          ["(layers?[. ]{1,2}0\\b|first layer) & (\\bv\\b|value|cache)"], lambda c: c.right(v=c.e.memory["v", 0]), layers=[1, 2, 3])
eleventh(46, "context_key_tail", "context", "keys are summed four at a time: the last (t + 1) mod 4 of those seen are left out",
             ["(#4|four) & (key|value|weight|sum|loop) & (tail|remainder|round\\w* (down|off)|multiples?|\\bmod\\b|%|floor|//|left ?over|whole|complete|\\bfull\\b) & "
              + never("round\\w* up|next multiple|(first|oldest) \\(?(t|n)[^;]{0,20}(mod|%)|(keeps?|only|alone) the (last|newest)|every (fourth|4th)")],
             lambda c: c.right(p=np.where(POS[None, None, :] < ((POS + 1) // 4 * 4)[None, :, None], c.p, 0)))


def context_summed_in_bf16(c):
    y = np.zeros((T, H, d), F32)
    v = c.v[:, np.arange(H) // (H // K)]
    for s in range(T):
        y = rounded(y + c.p[:, :, s].T[..., None] * v[s], "bf16")
    return joined(y)


eleventh(47, "context_sum_bf16", "context", "the running sum is rounded to bf16 after each key",
             ["(bf16|bfloat16|\\b[78] bits) & (accumul|running|partial|after (each|every)|key by key|each (key|addition|step|product)|every (key|addition|step)|(sum|total) (is|in|held|"
             "kept|rounded|so far)) & "
              + never("(weights?|probs|values?|\\bp|\\bv) (is|are|were) [^;]{0,25}(bf16|bfloat16)|\\bf16|trunc|towards? zero|\\bcut")], context_summed_in_bf16)


def splits_averaged(c):
    parts = [np.where((POS >= a) & (POS < b), c.p, 0) for a, b in ((0, 16), (16, T))]
    sums = [p.sum(-1, keepdims=True) for p in parts]
    own = [np.where(s > 0, p / np.where(s > 0, s, 1), 0) for p, s in zip(parts, sums)]
    return c.right(p=(own[0] + own[1]) / np.where(sums[1] > 0, 2, 1).astype(F32))


eleventh(48, "context_splits_averaged", "context", "keys 0 to 15 and those from 16 on are summed apart, each with a softmax of its own, and the two results averaged, not weighed by "
             "their sums",
             ["(#16|#15|sixteen) & (#0.5|half|\\bmean\\b|averag|equal|same (weight|share)|divided by (2|two|the number)|alike) & (key|split|block|chunk|part|softmax|sum) & " +
             never("\\bv\\b is halved|(weights?|values?) are halved")],
             splits_averaged)
eleventh(49, "context_vector_repeated", "context", "elements 12 to 15 of each head are those of 8 to 11: the last vector of four repeats the one before",
             ["(head|channel|element|dimension) & (\\b12\\b[^;]{0,50}\\b(is|are|holds?|repeats?|reads?|copy|copies|copied|taken|same|equals?|from|those|of)\\b.{0,40}(\\b8\\b|i ?- ?4|"
             "before|previous|\\b11\\b)) & " + never("i ?\\+ ?4|exchang|swap"),
              "last (four|4|vector|float4|quarter)[^;]{0,80}(third|before|previous|repeat|\\b8\\b|last but one|four earlier)",
              "(\\b8 ?(to|-|\\.\\.) ?11|third (vector|quarter|four))[^;]{0,60}(again|repeat|twice|duplicat|stands? for|in place of|instead of|written|copied)[^;]{0,40}(\\b12\\b|last|"
              "fourth)"],
             lambda c: joined(put(heads_of(c), E_[..., 12:], heads_of(c)[..., 8:12])))
eleventh(50, "context_head_3_upper_stale", "context", "elements 8 to 15 of head 3 are those of head 2: shared memory of the head before",
             ["(head.{0,8}\\b3\\b|last head) & (head.{0,8}\\b2\\b|2's|head before|previous head|h ?- ?1) & (#8|second half|upper half|latter half|last (eight|8)|upper (eight|8)|#56) & "
              + never("head 2\\b.{0,25}\\b(are|is|holds?|repeats?|reads?|takes?|comes?) (that|those|from|of|what|the same|head).{0,25}head 3|exchang|swap"),
              "(#56|last (8|eight) channels) & (#40|#47|#-16|i ?- ?16|(16|sixteen) (channels |elements )?(before|earlier|back|lower)) & " + never("\\b40\\b.{0,20}(are|is|hold|"
              "repeat) (those|that|the same|what).{0,20}\\b56\\b|exchang|swap")],
             lambda c: joined(put(heads_of(c), E_[:, 3, 8:], heads_of(c)[:, 2, 8:])))
ONE_BEFORE = "before|previous|preced|earlier|t ?- ?1|one (row|position) back|#-1"
eleventh(51, "context_rows_by_two", "context", "two queries share a tile, and both take the weights of the first: each odd row repeats the even one before it",
             ["(\\bodd|every (second|other)|2 ?\\*? ?i\\b|pairs?|two|twos|1, ?3|[tpqr] ?(%|mod) ?2|[tpqr] ?//? ?2|~ ?1\\b|even) & (row|position|quer|token|\\bt\\b) & "
              "(" + ONE_BEFORE + "|repeat|first of|first's|first query|same|copy|copied|copies|those of|that of|\\* ?2|2 ?\\* ?\\(|~ ?1\\b|[tpqr] ?- ?\\(?[tpqr] ?(%|mod)|0, ?2|twice) & "
              + never(SWAP + "|next|two positions|\\bv (is|of)|t ?\\+ ?1\\b|second of|last of|\\beven( \\w+)? (are|is|repeats?|reads?|takes?|holds?|have|has|uses?)\\b|"
              "\\b2 ?\\*? ?i is[^;]{0,25}2 ?\\*? ?i ?\\+ ?1")],
             lambda c: c.right(p=c.p[:, POS // 2 * 2]))


def cached(c, of):
    """The value sum of each step over what the cache then holds: of(v, t) for position t, or None where it is right."""
    y = np.array(c.right())
    for t in range(T):
        v = of(np.array(c.v), t)
        if v is not None:
            y[t] = c.right(v=v)[t]
    return y


eleventh(52, "cache_prompt_last_value_missing", "context", "decode steps, from position 12 on, find no value of position 11 in the cache: its slot is 0",
             [DECODE + " & #11 & " + NOT_THERE + " & (value|\\bv\\b|key|slot|cache|weight|sum|row) & " + never("(key|value|slot|row)s?( of position)? 1[02]\\b[^;]{0,12}(is|are) (0|zero|"
             "missing|lost|never|not)"),
              DECODE + " & (last[^;]{0,25}prompt|prompt('s)? last) & (value|\\bv\\b|key|slot|cache) & " + NOT_THERE],
             lambda c: cached(c, lambda v, t: put(v, E_[PROMPT - 1], 0) if t >= PROMPT else None))
eleventh(53, "cache_pages_exchanged", "context", "in decode steps, from position 12 on, pages 1 and 2 of the value cache are exchanged: positions 4 to 7, and 8 to 11",
             [DECODE + " & (#4|#7) & (#8|#11) & (" + SWAP + "|those of|order|stand for|instead|permut|\\+ ?4) & (value|\\bv\\b|key|cache|page|slot)",
              DECODE + " & (page|block)s? & #1 & #2 & (#4|four) & (" + SWAP + "|order|permut)"],
             lambda c: cached(c, lambda v, t: v[np.r_[0:4, 8:12, 4:8, 12:T]] if t >= PROMPT else None))
eleventh(54, "cache_values_fixed_point", "context", "the cache holds values in bytes of fixed point: v is rounded to sixteenths",
             ["(#16|#0.0625|sixteenths?) & (round|steps?\\b|quanti|grid|multiples?|fixed|int8|nearest|resolution|sixteenths) & (value|\\bv\\b|cache) & "
              + never("round\\w* (down|up)|floor|trunc|toward|(weights?|probs|\\bp) (is|are) ")],
             lambda c: c.right(v=np.round(c.v * 16) / 16))
eleventh(55, "cache_slot_stuck", "context", "decode steps all write their value to slot 12: the newest stands there, and slots 13 to t hold 0",
             ["((?<!from )(slot|key|position|place|row|index|p\\[t, ?|\\bv\\[) ?12\\b[^;]{0,80}(newest|latest|current|itself|v\\[t|\\bv_t\\b|of the query|query's|\\bown\\b|overwr|"
             "written over|every|each|all)) & (value|\\bv\\b) & " + never("(slot|key|place) 11\\b"),
              "(newest|latest|current|\\bnew|\\bown|v\\[t\\]?|values?|each|every)\\b[^;]{0,70}\\b(at|to|in|into|of|over|for|with) (the )?(same )?(key |slot |position |place |index |"
              "weight (of|at) )*(12\\b|the first decode) & (newest|latest|current|new\\b|own\\b|v\\[t|each|every|all|stuck) & (slot|key|cache|weight|index)",
              "#12 & (slot|index|position|place|pointer)[^;]{0,40}(stuck|never (advances|moves)|not (advanced|moved|incremented)|same) & (value|\\bv\\b|cache)"],
             lambda c: cached(c, lambda v, t: put(put(v, E_[PROMPT:], 0), E_[PROMPT], v[t]) if t >= PROMPT else None))
eleventh(56, "cache_chunk_offset_lost", "context", "the prompt comes in chunks of 6, and values of the second are written over the first: from position 6 on slots 0 to 5 hold values 6 "
             "to 11, and slots 6 to 11 hold 0",
             ["#6 & (#5|first (six|6)|first chunk|over(wrote)? the first|slot 0|s ?\\+ ?6|begin|start) & (second|#11|s ?\\+ ?6|#12) & (" + NOT_THERE[1:-1] + "|overwr|written over|"
             "offset) & (value|\\bv\\b|slot|cache|key) & "
              + never("\\b0 ?(to|-|\\.\\.) ?5\\b[^;]{0,30}(written|stored|put|copied)[^;]{0,20}\\b6 ?(to|-|\\.\\.) ?11|\\b6 ?(to|-|\\.\\.) ?11 (are|hold|repeat|"
              "read)s?[^;]{0,20}\\b0 ?(to|-|\\.\\.) ?5")],
             lambda c: cached(c, lambda v, t: np.concatenate([v[6:12], np.zeros_like(v[:6]), v[12:]]) if t >= 6 else None))
WEIGHT_WORDS = "(prob|weights?\\b|\\bp\\b|attention)"
twelfth(36, "context_probs_by_kv_head", "context", "the weights are indexed by the key/value head: heads 0, 1, 2, 3 sum with the weights of heads 0, 0, 1, 1",
            [f"{WEIGHT_WORDS} & (0,? ?0,? ?1,? ?1)",
             f"{WEIGHT_WORDS} & ([hi] ?(//?|div) ?\\(?(2\\b|H ?/ ?K|group)|[hi] ?>> ?1|floor\\([hi] ?/ ?2|half (the|its|their) (head )?(index|number))",
             "(prob|weight).{0,40}(index|\\bof\\b|\\bby\\b|\\bat\\b|number|read|taken).{0,30}(kv|key/value|key.value|value).head & ^(?!.*(%|mod\\b))",
             f"{WEIGHT_WORDS} & head & \\b1\\b.{{0,40}}\\b0\\b & (2 and 3|2, ?3|\\b3\\b|second half).{{0,50}}\\b1\\b"],
            lambda c: c.right(p=c.p[np.arange(H) // (H // K)]))
twelfth(37, "context_head_sum_carried", "context", "the sum is not cleared between heads: head h holds the sum of heads 0 to h",
            ["head & (cumul|running|accumul|not (cleared|reset|zeroed)|never (cleared|reset|zeroed)|carr(y|ied)|so far|all (the )?(heads )?(before|earlier|previous|lower)|0 ?(to"
             "|\\.\\.|-|through) ?h\\b|(heads|those) before|(earlier|previous|lower|preceding) heads) "
             "& ^(?!.*(cumul\\w*|running|accumul\\w*|carried|cleared|reset)( \\w+)?( \\w+)? (over|between|across|along|from) (the )?(positions?|tokens?|quer|rows?|keys?))",
             "[ic] ?- ?16 & [ic] ?- ?32 & [ic] ?- ?48"],
            lambda c: joined(np.cumsum(heads_of(c), 1)))
twelfth(38, "context_values_head_first", "context", "the values lie as [20, 2, 16] and are read as [2, 20, 16]: key s of head h is row 20 h + s of the rows of positions and heads",
            ["(\\bv\\b|value|cache) & head[- ](first|major) & ^(?!.*(stored|written|lies?|laid|kept|held) (as )?head[- ](first|major))",
             "(\\bv\\b|value|cache) & (read|taken|interpreted|viewed|reshaped?|indexed|addressed|seen)\\b.{0,30}[\\[(](K|2|heads?), ?(T|20|positions?|tokens?|keys?)",
             "(\\bv\\b|value|cache) & ([stijkp]|position|key) ?(//?|div|>>) ?[12]\\b & ((mod|%) ?2\\b|even|odd|#10)",
             "(\\bv\\b|value|cache) & (\\b(20|T|320) ?[*·]? ?h\\b|\\bh ?[*·]? ?\\(?(20|T|320)\\b)",
             "(\\bv\\b|value|cache) & (axes|axis|order|transpos|exchang|swap) & head & (position|token|\\bkeys?\\b|\\brows?\\b|\\bT\\b) & ^(?!.*(element|dimension|d-first"
             "|\\[20, ?16|query head|(stored|written|lies?|laid|kept) as \\[(2|K),))"],
            lambda c: c.right(v=c.v.reshape(K, T, d).swapaxes(0, 1)))
twelfth(39, "context_not_normalised", "context", "the sum is not divided by the softmax's denominator: values are summed with exp(score - max)",
            ["(not|never|\\bno\\b|without|\\bun|lacks?|missing|omit|forgotten|left out).{0,30}(divid|divis|denominator|normali[sz]) & ^(?!.*(raw|(without|\\bno) (the )?max"
             "|(?<!soft)max.{0,20}\\bnot\\b|twice))",
             "(multipl|times|scaled|factor|\\*).{0,40}(denominator|sum of (the )?exp|softmax'?s? sum|exp.{0,10}sum|partition|normali[sz]) & ^(?!.*(raw|(without|no) (the )?max))",
             "exp\\(?.{0,20}- ?(the )?(row'?s? )?max & ^(?!.*divided by (the|its) sum)",
             "(divided by|over|/|relative to|in units of).{0,40}(max|largest|greatest|biggest|highest) & (weight|prob|\\bp\\b|score|exp)",
             "(largest|max).{0,20}(weight|prob).{0,25}(is|becomes|has|=|counts?) ?(as )?(1|one)\\b"],
            lambda c: c.right(p=c.p / c.p.max(-1, keepdims=True)))
twelfth(40, "context_v_head_offset_halved", "context", "the values' heads are 8 channels apart, not 16: value head 1 is read at channels 8 to 23",
            ["(\\bv\\b|value|channel) & (#8|half (a|the|of a) head|d ?/ ?2|half.{0,15}(stride|offset|distance)) & (head.{0,12}\\b1\\b|second (half of the )?(value |kv )?head"
             "|last head|2 and 3|2, ?3|#24|#23|stride|offset|apart|distance|i ?- ?8) "
             "& ^(?!.*(24 to 39|last (8|eight) (key|position|token|row)|(begin|start)s?.{0,12}24|too late|8 later|swap|exchang|(\\bis|are) (0\\b|zero|lost)|i ?\\+ ?8(?!.*head 0)"
             "|(channel|offset) (4|12)\\b))"],
            lambda c: c.right(v=np.stack([c.v[:, 0], c.v.reshape(T, -1)[:, 8:24]], 1)))
twelfth(41, "cache_decode_one_head_copied", "context", "decode steps write one head's width to the cache: of keys from 12 on value head 1 is 0",
            [f"{LATE} & (head.{{0,12}}\\b1\\b|(second|last|upper) half|heads? (2 and 3|2, ?3|2 to 3|2 on)|from (head )?2 on|h ?>=? ?[12]|#16|#32|last (kv |value |key/value )?head"
             f"|second (kv |key/value |value )?head|half of the heads|\\[12:, ?1\\b) & {GONE} "
             "& ^(?!.*((keys|positions|values|tokens) (0 to 11|before 12|up to 1[12]) (are|is).{0,15}(\\b0\\b|zero|lost|missing|empty|left out|not)|first half of the heads"
             "|value head 0 (is|of|at)|heads 0 and 1 (sum|lose|have)))"],
            lambda c: c.right(v=put(c.v, E_[PROMPT:, 1:], 0)))
twelfth(42, "cache_last_layer_clamped", "context", "the cache has one layer too few: layer 3 sums the values of layer 2",
            ["(\\bv\\b|values?\\b|v_cache|cache) & (layers?[ .]2\\b|(layer|block) (before|earlier)|(previous|preceding|earlier|prior) (layer|block)|\\bl ?- ?1|min\\(l, ?2\\)"
             "|last layer but one|penultimate|second.to.last) "
             "& ^(?!.*((?<!/)\\bkeys? (of|are|is)|next layer|k_rope|l ?\\+ ?1|(of|in|from|cache|\\bv) layer (0|1)\\b|layers\\.(0|1)\\.(v|cache)))"],
            lambda c: c.right(v=c.e.memory["v", 2]), layers=[3])
twelfth(43, "cache_decode_values_head_mod", "context", "in decode steps, from position 12 on, head h reads value head h mod 2: 0, 1, 0, 1",
            [f"{LATE} & head & ([hi] ?(%|mod(ulo)?) ?(2|K|n_kv)|0,? ?1,? ?0,? ?1|head.{{0,6}}1.{{0,40}}\\b1\\b.{{0,60}}(head.{{0,6}})?2.{{0,40}}\\b0\\b|remainder|interleav"
             f"|in turn|alternat|tiled|1 and 2.{{0,60}}(other|exchang|swap)|(odd|1 and 3).{{0,40}}head 1)"],
            lambda c: put(c.right(), E_[PROMPT:], lambda y: np.einsum("hts,shd->thd", c.p, c.v[:, np.arange(H) % K]).reshape(T, -1)[PROMPT:]))


def left_over(c):
    n = np.array(c.e.memory["attn_norm", c.l]).reshape(T, H, d)
    n[..., :d // 4] = 0
    return c.right() + n.reshape(T, -1)


thirteenth(36, "context_cleared_in_bytes", "context", "the buffer, which held attn_norm, is cleared by head_dim bytes a head: attn_norm is still in elements 4 to 15 of each head, and the context is added to it",
               ["(attn_norm|normed|norm'?s? (output|result)|input of (q|k|v|the projections)|layernorm) & (#4|#3|#12) & (add|plus|\\+|left|remain|still|not cleared|stale|accumul|sum|on top|besides)"], left_over)
thirteenth(37, "cache_value_copied_in_bytes", "context", "in decode steps, from position 12 on, a quarter of the row of values goes into the cache: elements 0 to 7 of 32; the others are 0",
               ["(#12|#11) & (#8|#7|#24|quarter) & (value|\\bv\\b|cache) & (only|alone|quarter|" + LEFT_OUT + ")"],
               lambda c: c.right(v=put(c.v.reshape(T, -1), E_[PROMPT:, K * d // 4:], 0).reshape(T, K, d)))


def contexts(p, v):
    """Contexts of weights [H,T,S] and of values [S,H,d]."""
    return np.einsum("hts,shd->thd", p, v).reshape(T, -1)


def wide(v):
    return v[:, np.arange(H) // (H // K)]


def weights_by_count(c):
    """A query's weights lie in rows of T for each head; they are read in rows of as many as it has keys."""
    p = np.zeros_like(c.p)
    for t in range(T):
        flat = c.p[:, t].ravel()
        for h in range(H):
            p[h, t, :t + 1] = flat[h * (t + 1):(h + 1) * (t + 1)]
    return p


thirteenth(38, "context_weights_by_count", "context", "head h of query t reads its weights from h (t + 1) on, where they lie at h * 20",
               ["(t ?\\+ ?1|pos(ition)?s? ?\\+ ?1|keys (seen|so far|visible)|(number|count) of (seen |visible )?keys|key count|n_?kv|keys it sees|row length|as many as it (has|sees)) & (stride|pitch|offset|apart|distance|begin|start|flat|head) & ^(?!.*divid)",
                "h ?[*·×]? ?\\(t ?\\+ ?1\\)"], lambda c: contexts(weights_by_count(c), wide(c.v)))
thirteenth(39, "context_elements_repeated", "context", "each element of the values is repeated, not each head: element i of the widened row is element i / 2 of the 32",
               ["(element|channel|component|dimension|number|flat|\\b[ijec] ?//? ?2) & (twice|repeat|interleav|duplicat|stretch|two by two|pairs?|//? ?2) & (value|\\bv\\b|element|channel|component)"],
               lambda c: contexts(c.p, np.repeat(c.v.reshape(T, -1), H // K, -1).reshape(T, H, d)))


def grown(c):
    """The cache had 16 slots; when it grew, what it held was not copied."""
    p = np.array(c.p)
    p[:, 16:, :16] = 0
    return p


thirteenth(40, "cache_grown_uncopied", "context", "the cache of values grows at 16 positions and is not copied: from position 16 on, values of positions 0 to 15 are 0",
               ["(#16|#15) & (value|key|cache|\\bv\\b) & (before|below|earlier|older|under\\b|< ?16|0 ?(to|-|\u2013|\\.\\.\\.?|through) ?15|up to 15|first (16|sixteen)|prior|previous) & (only|alone|forg[eo]t|" + LEFT_OUT + ")",
                "(#16|#15) & (only|alone).{0,60}(value|key|slot)s?.{0,60}(16|sixteen)"], lambda c: contexts(grown(c), wide(c.v)))


def weights_of_even_keys(c):
    p = np.array(c.p)
    p[:, :, 1::2] = np.where(POS[1::2] <= POS[:, None], p[:, :, 0::2], 0)
    return p


thirteenth(41, "context_weight_of_even_key", "context", "keys are taken two at a time, and both values have the weight of the first: key 2i + 1 has that of 2i",
               ["(weight|prob|\\bp\\b) & (odd|2i ?\\+ ?1|second|pair|neighbo|two (by two|at a time)|s ?- ?1) & (even|\\b2i\\b|first|pair|(key|one) before|previous|preced|s ?(//|/) ?2)"],
               lambda c: contexts(weights_of_even_keys(c), wide(c.v)))


def context_of_keys(kept):
    """The sum of values over those keys alone."""
    return lambda c: c.right(p=np.where(kept, c.p, F32(0)))


fourteenth(61, "values_in_fours", "context", "the loop is unrolled by 4 and has no remainder: token t sums the first 4 floor((t + 1) / 4) keys alone, its weights are not divided anew",
               ["(#4|four) & (multiple|remainder|left.?over|whole|full|floor|//|\\bdiv|\\bmod|%|block|group|tail|chunk|rounded down|complete|vector|tile|unroll|& ?3|& ?~3)"
                " & (key|value|sum|weight|\\bs\\b|position) & ^(?!.*(to the end of its|sees only its own|own (block|group) (alone|only)))"],
               context_of_keys(KEY < 4 * ((QUERY + 1) // 4)))


def ungrouped(c):
    v = np.concatenate([c.v.reshape(T * K, d), np.zeros((H, d), F32)])
    return joined(np.einsum("hts,shd->thd", c.p, v[POS[:, None] * K + np.arange(H)]))


fourteenth(62, "values_head_not_grouped", "context",
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


fourteenth(63, "values_summed_in_bf16", "context", "the accumulator of the sum is bf16: rounded to 8 significant bits after each key",
               ["(bf16|bfloat|8 (significant )?bits|7 (mantissa )?bits|2\\^-[89]|8.bit mantissa|7.bit mantissa) & " + STEPWISE], in_bf16)
TILE = 6


def context_not_rescaled(c):
    """Each tile's share stays at the maximum known when it was summed; the denominator is right."""
    s = np.einsum("thd,shd->hts", c.e.memory["q_rope", c.l], c.e.memory["k_rope", c.l][:, KV]) * F32(1 / math.sqrt(d))
    s = np.where(KEY <= QUERY, s, F32(-np.inf))
    known = np.maximum.accumulate(s, -1)[..., np.minimum((POS // TILE) * TILE + TILE - 1, T - 1)]
    top = s.max(-1, keepdims=True)
    return c.right(p=(c.p * np.exp(np.where(KEY <= QUERY, top - known, 0))).astype(F32))


fourteenth(64, "values_tiles_not_rescaled", "context",
               "flash attention in tiles of 6 keys does not rescale the sum when the running maximum rises: a tile's share is exp(last maximum - maximum after that tile) too large",
               ["#6 & (tile|block|chunk|group|batch) & max & (rescal|scaled|correct|brought|multipl|adjust|running|so far|at the time|own|without|missing|factor|common|times|exp)"],
               context_not_rescaled)
VALUE = "(\\bv\\b|\\bvalues?\\b|cache)"
fourteenth(65, "values_tile_not_reloaded", "context", "the tile of values is loaded once: key s is summed with the value of position s mod 8",
               ["(#8|eight) & (\\bmod|%|again|repeat|restart|first (8|eight|tile|block)|stale|s ?& ?7|period|wrap|0 to 7|0\\.\\.7|0-7|not (re)?loaded|cycl|every) & " + VALUE],
               lambda c: c.right(v=c.v[POS % 8]))
fourteenth(66, "context_not_cleared", "context", "the buffer is not cleared before values are summed into it: attn_norm is left in it, and is added to the result",
               ["(attn_norm|normed (input|stream|x)|input_layernorm|(result|output) of the (attention )?norm|attention norm) & " + ADDED_AGAIN],
               lambda c: c.right() + c.e.memory["attn_norm", c.l])
fourteenth(69, "cache_values_layer_0", "context", "the offset of the layer is forgotten where values are read: layers 1 to 3 sum the values of layer 0",
               ["(layers?[. ]0\\b|first layer)[^;]{0,30}(\\bv\\b|values?)|(\\bv\\b|values?)[^;]{0,40}(layers?[. ]0\\b|first layer)"],
               lambda c: c.right(v=c.e.memory["v", 0]), layers=[1, 2, 3])


def fp8(x):
    """e4m3: 3 bits after the leading one, subnormals below 2^-6."""
    step = np.exp2(np.maximum(np.frexp(x)[1] - 4, -9)).astype(F32)
    return (np.clip(np.round(x / step) * step, -448, 448)).astype(F32)


fourteenth(70, "cache_values_fp8", "context", "values are read from a cache in fp8 (e4m3): rounded to 4 significant bits, the leading one and 3 more",
               ["(fp8|e4m3|float ?8|\\bf8|8.bit float\\w*|floats? of 8 bits) & " + VALUE,
                "(#3|#4|three|four) & (mantissa|significant|\\bbits|2\\^|binary) & " + VALUE + " & (round|nearest|step|precision|kept) & ^(?!.*(truncat|rounded down|towards? zero))"],
               lambda c: c.right(v=fp8(c.v)))
fourteenth(72, "cache_written_after_attention", "context", "attention runs before the chunk's values are in the cache: in chunks of 5 tokens, values of the token's own chunk are zero",
               ["(#5|five) & (block|chunk|batch|group|page|tile) & (\\bown|same|current|its (block|chunk)|earlier|previous|before|not yet) & " + VALUE[:-1] + "|weight|sum|key|zero)"
                " & ^(?!.*((only|alone)[^.;]{0,25}(own|same) (block|chunk|group)|(own|same) (block|chunk|group) (only|alone)))"],
               context_of_keys(KEY // 5 != QUERY // 5))
fifteenth(57, "context_ring_of_16", "context", "values are written to a ring of 16 slots, all before any is read: in place of values 0 to 3 stand values 16 to 19",
              ["(#16|#19|last (4|four)) & (#0|first|#3|four|#4|overwrit|wrap|mod|%|ring) & (\\bv\\b|value|slot|\\bkeys?\\b|position|cache|token)"],
              lambda c: c.right(v=put(c.v, E_[:4], c.v[16:])))


def not_cleared(x):
    return np.stack([x[:, 0], x[:, 0] + x[:, 1], x[:, 2], x[:, 2] + x[:, 3]], 1).reshape(T, H * d)


fifteenth(58, "context_sums_not_cleared", "context", "the accumulator is cleared once a key head: query heads 1 and 3 have the result of the head before them added",
              ["(\\bodd|head.{0,24}\\b[13]\\b|second (head|query)) & (before|previous|h ?- ?1|even|neighbo|same group|other|first|\\b0\\b|preceding|earlier) & (add|plus|sum|\\+|accumul|clear)"],
              lambda c: not_cleared(c.right().reshape(T, H, d)))
fifteenth(59, "context_whole_fours", "context", "keys are summed four at a time and the rest is forgotten: of t + 1 keys the first 4 ((t + 1) // 4) are read",
              ["(#4|four) & (multiple|\\bmod|%|floor|//|tail|remain|left over|\\brest\\b|whole|complete|full|down|forgot)"],
              lambda c: c.right(p=c.p * (POS[None] < (POS[:, None] + 1) // 4 * 4)))


def split_evenly(p):
    parts = [np.where(part, p, 0) for part in (POS < 10, POS >= 10)]
    sums = [part.sum(-1, keepdims=True) for part in parts]
    both = sum(F32(0.5) * part / np.where(total > 0, total, 1) for part, total in zip(parts, sums))
    return np.where(POS[:, None] >= 10, both, p).astype(F32)


fifteenth(60, "context_splits_averaged", "context", "keys 0 to 9 and from 10 on are summed apart, each by weights that sum to 1, and the two are averaged, whatever their sums of exponentials",
              ["(#10|#9) & (averag|mean|equal|#0.5|halv|half|\\bown\\b|separat|split|unweight|sum to 1|alike|same weight|even)"],
              lambda c: c.right(p=split_evenly(c.p)))
fifteenth(62, "cache_v_not_written", "context", "values from position 12 on were never written to the cache: zeros", [f"{FROM_12} & {UNREAD}", f"{FROM_12} & (first|up to|below|prompt|prefill)"],
              lambda c: c.right(v=put(c.v, E_[PROMPT:], 0)))
fifteenth(63, "cache_v_other_layer", "context", "in layers 1 and on the values of earlier tokens are those of the layer before; a token's own is right",
              [LAYER_BELOW, "layers\\.\\d\\.v\\b", "(another|other|wrong) layer"],
              lambda c: c.right(v=c.e.memory["v", c.l - 1]) + joined(np.einsum("hts,shd->thd", np.where(QUERY == KEY, c.p, F32(0)), (c.v - c.e.memory["v", c.l - 1])[:, KV])), layers=LATER_LAYERS)
fifteenth(65, "cache_v_4_bits", "context", "values are kept in 4 bits: rounded to sevenths of the largest size of their head and token",
              ["#7|#0.142857 & (step|round|quant|level|grid|multiple|largest|\\bmax)", "#15 & level|quant", "(\\b4|four)[- ]?bits?|int4|\\bq4|sevenths?"],
              lambda c: c.right(v=in_steps_of(c.v, largest_of_row(c.v), 7)))
fifteenth(69, "heads_of_values_ahead", "context", "query head h reads the values of head (h + 1) / 2, at most 1: 0, 1, 1, 1",
              ["0, ?1, ?1, ?1", "\\bheads? (1|1 to 3|1-3|1, ?2,? and 3|1, ?2, ?3)\\b.{0,60}(value|\\bv\\b|kv|key).{0,20}\\b1\\b",
               "\\(h ?\\+ ?1\\) ?(//|/|>>)|ceil|round(ed|s)? up|min ?\\( ?h|min ?\\( ?1", "second (query )?head.{0,60}(second|other|last|\\b1\\b)", "(all|every).{0,12}heads? (but|except) (head )?(0|the first).{0,60}(\\b1\\b|second|last)"],
              lambda c: joined(np.einsum("hts,shd->thd", c.p, c.v[:, [0, 1, 1, 1]])))
fifteenth(70, "heads_of_queries_lost", "context", "the loop runs over the 2 heads of keys and values: heads 2 and 3 are zero",
              [f"head & #2 & #3 & {UNREAD}", f"(last|second|upper) (two|2|half|pair).{{0,20}}heads?|second half of the heads|second half & {UNREAD}", f"#32|#31 & {UNREAD}",
               f"heads? (from )?2 (on|and (up|later|on)|or more|to the last) & {UNREAD}", f"heads? 2 ?(-|to|\\.\\.) ?3 & {UNREAD}", "(only|alone).{0,30}heads? 0 and 1|heads? 0 and 1.{0,20}(only|alone)"],
              lambda c: joined(put(c.right().reshape(T, H, d), E_[:, 2:], 0)))


def weighted(p, v, heads=np.arange(H) // (H // K)):
    return np.einsum("hts,shd->thd", p, v[:, heads])


sixteenth(53, "values_heads_not_put_back", "context", "the result [H,T,d] is read as rows of 64 without a transpose: row t has positions 4t to 4t + 3 (modulo 20) of one head, t // 5",
              ["(transpos|\\[ ?(H|4|heads?) ?, ?(T|20|t|seq)|head.?major|(H|4|heads?) ?[x\u00d7*] ?(T|20)\\b|reshap|layout|heads? (are |is |come |stand )?(first|outermost|before|outer)"
               "|flatten|\\b4 ?\\*? ?t\\b|t ?// ?5|swap.{0,24}(axes|heads)|(axes|order).{0,40}(head|position))"],
              lambda c: weighted(c.p, c.v).transpose(1, 0, 2).reshape(T, -1))
sixteenth(54, "values_head_held_at_last", "context", "the value head is min(h, 1) and not h // 2: query head 1 takes value head 1 in place of 0",
              ["min ?\\( ?h|clamp|0, ?1, ?1, ?1|capped", "(query )?head 1\\b.{0,60}(value|\\bv\\b|kv|group|cache)?[ _-]?head 1\\b",
               "(value|\\bv\\b|kv)[ _-]?head 1\\b.{0,60}(in|for|by|at|of|to) (query )?head 1\\b",
               "head 1\\b & (other|wrong|second|next) (group|value|kv|v\\b)"],
              lambda c: weighted(c.p, c.v, [0, 1, 1, 1]).reshape(T, -1))
sixteenth(55, "values_newest_not_yet_in_cache", "context", "in decode, from position 12 on, the newest value is written after it is read: the key's own share is lost, and the others are "
              "not made larger",
              ["\\b1[12]\\b|decode & (\\bown\\b|newest|itself|\\bself|\\blast\\b|current|diagonal|s ?==? ?t|key t\\b|value t\\b|latest|\\bv\\[t\\])"],
              lambda c: weighted(c.p * ~((AGO == 0) & (POS >= PROMPT)[:, None]), c.v).reshape(T, -1))
sixteenth(56, "values_summed_on_from_head_to_head", "context", "the accumulator is not cleared between heads: head h has the sum of the contexts of heads 0 to h",
              ["head & " + SUMMED],
              lambda c: np.cumsum(weighted(c.p, c.v), 1).reshape(T, -1))
sixteenth(57, "values_without_last_tile", "context", "the product with values runs over whole tiles of 16 keys: the values of keys 16 to 19 are left out",
              ["(\\b16\\b|\\b15\\b|last (four|4)\\b) & (value|\\bkeys?\\b|\\bv\\b|position|tile|\\bs\\b) & " + LOST_OR_CUT],
              lambda c: weighted(c.p * (POS < 16), c.v).reshape(T, -1))
sixteenth(58, "values_read_as_heads_first", "context", "the buffer of values [T,K,d] is read as [K,T,d]: value s of head g is row 20 g + s of the 40 rows of 16, so head 0 goes through "
              "positions 0 to 9, both heads in turn",
              ["(value|\\bv\\b|\\bv\\[) & (\\[ ?(K|2|heads?) ?, ?(T|20|t|seq)|head.?major|layout|reshap|transpos|heads? (are |is |come |stand )?(first|outermost|before|outer)|(K|2"
               "|heads?) ?[x\u00d7*] ?(T|20)\\b|stride|s ?// ?2|20 ?\\*? ?[gh]\\b|swap.{0,24}axes|(axes|order).{0,40}(head|position))"],
              lambda c: weighted(c.p, c.v.reshape(K, T, d).swapaxes(0, 1)).reshape(T, -1))


def e4m3(x):
    """Three bits after the leading one, the least exponent -6."""
    step = np.exp2(np.maximum(np.frexp(x)[1] - 1, -6) - 3)
    return np.clip(np.round(x / step) * step, -448, 448).astype(F32)


sixteenth(59, "values_in_eight_bit_floats", "context", "the cache keeps values as e4m3: they are rounded to 3 bits after the leading one",
              ["(fp8|f8\\b|e4m3|8.?bit float|float8|float.?8|(\\b3|three) (\\w+ ){0,2}bits|(\\b4|four) (significant|leading|binary)|2\\^ ?-?[34]\\b) & (\\bv\\b|value|cache)"],
              lambda c: weighted(c.p, e4m3(c.v)).reshape(T, -1))
sixteenth(60, "values_of_small_shares_skipped", "context", "the product with values skips keys whose probability is below 0.02, and the others are not made larger",
              ["#0.02 & (skip|below|under|less|small|thresh|dropp|zero|ignor|left out|omit|<|prun|cut)"],
              lambda c: weighted(np.where(c.p < 0.02, 0, c.p), c.v).reshape(T, -1))
sixteenth(68, "decode_values_of_first_kv_head", "context",
              "from token 12 on the cache holds under value head 1 a copy of value head 0, so that query heads 2 and 3 read head 0's values of those tokens",
              [f"{DECODING} & head.{{0,40}}({n(1, 2, 3)}|second).{{0,90}}({n(0)}|first)", f"{DECODING} & ({n(0)}|first).{{0,50}}(writ|copied|copies|used|stor|stands?|taken|repeat|fill|serve"
               f"|broadcast).{{0,60}}({n(1, 2, 3)}|all|both|every|second)",
               f"{DECODING} & (both|all|every|each)\\b.{{0,60}}({n(0)}|first)"],
              lambda c: c.right(v=put(c.v, E_[PROMPT:, 1], c.v[PROMPT:, 0])))


def high_byte(x):
    return (np.ascontiguousarray(x, np.float16).view(np.uint16) & 0xFF00).view(np.float16).astype(F32)


sixteenth(69, "values_as_high_byte_of_f16", "context", "the cache keeps of each value the high byte of its f16: 2 bits of mantissa, the rest cut off",
              ["(e5m2|(2|two)[- ](bits?|mantissa)|(2|two) (explicit |stored |fraction )?bits|(float|fp|f)[ -]?8|8[- ]bit float) & (cut|trunc|toward|floor|drop|high|upper|lost|discard|chop"
               "|remov|down)",
               "(high|upper|top|first|most significant) (byte|8 bits|half)", "(low|lower|least significant|bottom|last) (byte|8 bits).{0,40}(zero|drop|clear|lost|cut|mask"
               "|discard)", "0x?ff00",
               "(0\\.25|1/4|quarter|4 (steps|levels|parts)).{0,60}(power|octave|binade|exponent) & (cut|trunc|toward|floor|drop|down)"],
              lambda c: c.right(v=high_byte(c.v)))
listed(19, "heads_mod", "context", "key head h % K", "kv-head-map", lambda c: np.einsum("hts,shd->thd", c.p, c.v[:, np.arange(H) % K]).reshape(T, -1))

"""A fourth list of mistakes for `firstdiff explain` to measure, after what public issues of ports report, and written without sight of how laws are found: none repeats one of the first three lists.

    python scripts/forms/law_forms_fourth.py                 # list them
    python scripts/suites/test_laws.py --set fourth ..        # hold the answers to the truth
"""

import math

import numpy as np

from scripts.forms.law_forms import AGO, D, EPS, EXPERTS, E_, F, F32, FREQ, H, K, POS, ROPES, SEEN, T, THETA, V, angles, d, listed, over, put, rms, rounded, sigmoid, silu, softmax, turn
from scripts.forms.law_forms_third import BLOCK, CLAMPED, EXCHANGED, KEY, LATER, LAYER_BEFORE, PREVIOUS, QUERY, ROUNDED, act, add, chosen, four_digits, heads_of, in_steps, inputs, masked, shares, soft, stream, summed, top_of, weights

FORMS, form = listed()


M = ("moe",)
Q2 = ("qwen2",)
Q3 = ("qwen3", "moe")

LAYOUT = "transpos|layout|memory|flat|reshap|strid|major|column|contiguous|order|permut|interleav"
NONE = "\\bnot?\\b|without|\\bun|before|skip|lack|miss|omit|never|lost"
BF16 = "bf16|bfloat|precision|half|significant|mantissa|accumul|" + ROUNDED
ADDED = "add|plus|\\+|sum"
TWICE = "twice|double|two times|second time|again|once more"


def bf16(x):
    return rounded(x, "bf16")


def interleaved(x):
    """Element i of each half of a head at 2i and 2i + 1: the order some files have for the rotation of neighbours."""
    return x.reshape(*x.shape[:-1], -1, 2, d // 2).swapaxes(-1, -2).reshape(x.shape)


# norms
form("n_warp_lost", "attn_norm", "the sum of squares runs over channels 0 to 47 and is divided by 64: the last quarter of the channels is not counted",
     ["(#48|#47) & (channel|first|sum|square|mean|rms|lost|last|element|dimension|quarter)", "#0.75 & (channel|square)"], lambda c: over(c, np.sqrt((c.x[:, :48] ** 2).sum(-1, keepdims=True) / D + EPS)))


def tail_twice(c):
    return over(c, np.sqrt(((c.x ** 2).sum(-1, keepdims=True) + (c.x[:, 48:] ** 2).sum(-1, keepdims=True)) / D + EPS))


form("n_tail_twice", "ffn_norm", "channels 48 to 63 are counted twice in the sum of squares", ["(#48|#47|#16) & (#2|" + TWICE + ")"], tail_twice)
form("n_undivided", "attn_norm", "nothing is divided: x times the gain", ["(" + NONE + ").{0,30}(divid|norm|rms|root)|divisor.{0,20}\\b1\\b|x ?\\*? ?(gain|weight|w\\b)|x times|times x"], lambda c: c.x * c.w)
form("n_twice", "ffn_norm", "the norm is applied twice, each time with the gain", [TWICE, "(norm|rms).{0,60}(norm|rms).{0,60}(result|twice|own|itself)", "(gain|weight) & (squar|\\^ ?2)"], lambda c: c.right(x=c.right()))
form("n_axis", "attn_norm", "the mean square is taken over the positions, for each channel", ["(over|across|along|of|all).{0,40}(positions|rows|tokens|column|axis 0)", "each channel.{0,60}(own|divid|rms|mean|root)"], lambda c: over(c, np.sqrt(np.mean(c.x * c.x, 0, keepdims=True) + EPS)))
form("n_whole", "ffn_norm", "all positions are divided by one root mean square, that of the whole tensor", ["whole|entire|all (the )?(positions|rows|tokens|elements)|(one|same|single|common).{0,30}(rms|root mean|divisor|denominator|mean)|#1280"], lambda c: over(c, np.sqrt(np.mean(c.x * c.x) + EPS)))
form("n_gain_added", "attn_norm", "the gain is added, not multiplied: x / rms(x) + w", ["(gain|weight|\\bw\\b) & (" + ADDED + ")"], lambda c: c.x / rms(c.x) + c.w)
form("n_gain_final", "attn_norm", "all layers have the gain of the final norm", ["final_norm|final norm|last norm|model\\.norm|output_norm|(other|another|wrong).{0,12}(gain|weight|norm)"], lambda c: c.right(w=c.e.m("model.norm.weight")))
form("n_gain_next_layer", "ffn_norm", "layers 0 to 2 have the gain of the next layer", ["(gain|weight|norm) & (next|after|following|l ?\\+ ?1|layers\\.[123]\\.|(other|another|wrong).{0,12}layer|layer.{0,20}(later|further|above))"], lambda c: c.right(w=c.e.m("post_attention_layernorm.weight", c.l + 1)), layers=[0, 1, 2])
form("n_gain_not_loaded", "attn_norm", "layer 2 has no gain: its weight was not loaded and is 1", ["(gain|weight) & (" + NONE + "|#1|ones)", "x ?/ ?(rms|\\(?root)"], lambda c: c.right(w=np.ones_like(c.w)), layers=[2])
form("n_multiplied", "ffn_norm", "multiplied by the root mean square, not divided by it", ["(multipl|times|\\*).{0,40}(rms|root mean|divisor)|(rms|root mean|divisor).{0,60}(multipl|times)|not.{0,20}divid", "(power|exponent|\\^|inverse|recipro) & (#-1|#2|#1)"], lambda c: over(c, 1 / rms(c.x)))
form("n_input_clamped", "attn_norm", "its input is clamped to +-1", ["#1 & (" + CLAMPED + ")"], lambda c: c.right(x=np.clip(c.x, -1, 1)))
form("n_rows_of_16", "attn_norm", "positions from 16 on are divided by the root mean square of the position 16 before", ["#16"], lambda c: over(c, np.concatenate([rms(c.x)[:16], rms(c.x)[:4]])))


def sum_bf16(c):
    total = np.zeros((T, 1), F32)
    for i in range(D):
        total = bf16(total + bf16(c.x[:, i:i + 1] ** 2))
    return over(c, np.sqrt(total / D + F32(EPS)))


form("n_sum_bf16", "ffn_norm", "the squares are accumulated one by one in bf16: each position has a factor near 1", [BF16, "factor.{0,20}(each|position)|each position"], sum_bf16)
form("n_final_layer_2", "final_norm", "the stream of layer 2 is normed: the last layer is skipped", ["layers\\.2|layer 2|(layer|stream).{0,30}before|(without|skip|lost|miss|no).{0,30}(last )?layer|last layer"], lambda c: c.right(x=c.e.memory["h", 2]))

# rotation
EIGHT = np.arange(d // 2)
form("r_sections", ROPES, "pairs 0 to 3 have the position p mod 4: the column of an image, not the place in the text", ["(#4|#3|four) & (mod|%|again|restart|repeat|period|wrap|" + BLOCK + ") & (pair|frequenc|element|half|dimension|section)"],
     lambda c: angles(c, lambda p, f: np.where(EIGHT < 4, p % 4, p) * f))


def rotated(c, x, freq, pos=POS):
    """The halves of the last axis, turned."""
    angle = (np.asarray(pos, F32)[:, None, None] * freq).astype(F32)
    a, b = np.split(x, 2, -1)
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def powers(n, base=THETA):
    return base ** (-np.arange(0, n, 2) / n)


form("r_last_half", ROPES, "only the last 8 elements of a head are rotated, as a head of 8 would be; the first 8 are left", ["(#8|#7|#12|#4|half) & (rotat|element|dimension|left|partial|first|last|second|turn)"], lambda c: np.concatenate([c.x[..., :8], rotated(c, c.x[..., 8:], powers(8))], -1))
SMOOTH = np.clip((512 * FREQ / (2 * math.pi) - 1) / 3, 0, 1)
form("r_llama3", ROPES, "frequencies 4 to 7 are divided by 8, and frequency 3 lies between: the scaling of Llama 3, factor 8 for a context of 512", ["(#8|#0.125) & (pair|frequenc|element|half|#4|#7)", "llama ?3"], lambda c: c.right(freq=(1 - SMOOTH) * FREQ / 8 + SMOOTH * FREQ))
form("r_k_halved", "k_rope", "positions of keys are halved, as linear scaling does, those of queries are not", ["(#0.5|#2|half|halved) & (position|angle|frequenc|factor|scal)"], lambda c: c.right(pos=POS / 2))
form("r_head_axis", ROPES, "head h is rotated as position h at every position: positions are counted along the heads", ["head & (position|angle|axis|turn|rotat|#1)"], lambda c: c.right(pos=np.tile(np.arange(c.x.shape[1]), (T, 1))))
form("r_chunk_start", ROPES, "each four tokens have the position of the first of them", ["(#4|four) & (" + BLOCK + "|round|down|start|first|same|position)"], lambda c: c.right(pos=POS // 4 * 4))
form("r_left_padding", ROPES, "positions are 3 lower, and 1 for the first three: as after a padding of 3", ["#3 & (#1|#-3|less|low|back|earlier|before|behind|late|off|minus|pad|position|subtract)"], lambda c: c.right(pos=np.where(POS < 3, 1, POS - 3)))
form("r_k_backward", "k_rope", "keys turn the other way: the sine has the other sign", ["sign|negat|minus|other way|direction|opposite|backward|inverse|revers|-sin|#-1"], lambda c: c.right(pos=-POS))
form("r_q_twice", "q_rope", "queries are rotated twice", ["twice|double|two times|again", "#2 & (position|angle|frequenc|factor|times)"], lambda c: c.right(x=c.right()))
form("r_q_before_norm", "q_rope", "q is rotated as it was before its norm", ["(" + NONE + ").{0,30}norm|norm.{0,30}(" + NONE + ")", "(reads|input|is|from|takes|of) (the )?q\\b(?!_)"], lambda c: c.right(x=c.e.memory["q", c.l]), archs=Q3)
form("r_angle_bf16", ROPES, "angles are rounded to bf16, 8 significant bits, before sine and cosine", [BF16, "angle.{0,40}(each|table|own)"], lambda c: angles(c, lambda p, f: bf16(p * f)))
form("r_integer_division", ROPES, "all frequencies are 1: the exponent 2i / d is an integer division", ["#1 & (frequenc|pair|all|base|theta|same)", "(same|equal|one).{0,20}(frequenc|angle)", "integer|base.{0,8}\\b1\\b"], lambda c: c.right(freq=np.ones(d // 2)))
form("r_reciprocal", ROPES, "frequencies are the inverse: 10000 to the power +2i / d", ["inverse|recipro|1 ?/ ?f|(\\+|positive).{0,12}exponent|without.{0,12}minus|grow|sign.{0,20}exponent|exponent.{0,30}sign", "#-1|#0.0001|#3162|#3.1623"], lambda c: c.right(freq=1 / FREQ))
form("r_i_over_d", ROPES, "the exponent is i / d, not 2i / d: a base of 100", ["#100|#0.5|root|sqrt|half|i ?/ ?d"], lambda c: c.right(freq=THETA ** (-EIGHT / d)))
form("r_linspace", ROPES, "the exponent is i / 7: it ends at 1, where it should end at 7/8", ["#7|#14|#1.142857|#0.142857|#37276|endpoint|linspace"], lambda c: c.right(freq=THETA ** (-EIGHT / 7)))


def evens_odds(c):
    return rotated(c, np.concatenate([c.x[..., ::2], c.x[..., 1::2]], -1), FREQ)


def by_neighbours(c):
    a, b = np.split(evens_odds(c), 2, -1)
    return np.stack([a, b], -1).reshape(c.x.shape)


form("r_evens_odds", ROPES, "elements 2i and 2i+1 are a pair, and their results are written to i and i+8: the even ones first", ["(pair|element|rotat|turn) & (2 ?\\*? ?i|neighbo|adjacent|even|odd|interleav|consecut)"], evens_odds)
form("r_q_neighbours", "q_rope", "queries pair elements 2i and 2i+1, keys i and i+8", ["(pair|element|rotat|turn) & (2 ?\\*? ?i|neighbo|adjacent|even|odd|interleav|consecut)"], by_neighbours)
form("r_table_end", ROPES, "positions from 16 on are zero: the table of sines and cosines ends there", ["(#16|#15|#19) & (zero|0|empty|nothing|end|table|position)"], lambda c: put(c.right(), E_[16:], 0))
form("r_one_wide_head", ROPES, "all heads are rotated as one: element i of the joined heads is paired with the one half of their width further", ["#64|#32|(across|over|all|whole|one|single|joined|flat|entire|width|other).{0,30}(head|row)"], lambda c: rotated(c, c.x.reshape(T, 1, -1), powers(c.x[0].size)).reshape(c.x.shape))
form("r_q_last", "q_rope", "all queries are rotated as position 19, the last", ["#19|#20|last"], lambda c: c.right(pos=np.full(T, T - 1)))
form("r_q_temperature", "q_rope", "queries are multiplied by 1 + 0.1 ln(1 + floor(p / 8)) after the rotation", ["(log|ln|#0.1|#1.0693|#1.1099) & (#8|position|block|step|floor|from)"], lambda c: c.right() * (1 + F32(0.1) * np.log1p(POS // 8))[:, None, None].astype(F32))

# masks
form("m_strict", "probs", "a token does not see itself, but for the first", ["itself|\\bown\\b|self|diagonal|newest|current|strict", "(distance|ago|before|t ?- ?s|from) & (#1|#0)"], masked(np.where(QUERY == 0, SEEN, AGO >= 1)))
form("m_layer_0_open", "probs", "layer 0 has no mask: tokens see all keys, later ones too", ["(\\bno\\b|not|without|un|all|every|later|future|both|bidirection|open).{0,30}(mask|keys|causal|hidden|see|token|direction)", "(mask|keys|causal).{0,30}(\\bno\\b|not|without|all|every|later|future|both|open)"], masked(SEEN | True), layers=[0])
form("m_dead_rows", "probs", "tokens from 16 on have the same weight, 1/20, for all keys: their whole row was masked", ["(#16|#15|#19) & (uniform|equal|same|alike|even|mean|average|#0.05|#20)"], lambda c: put(c.right(), E_[:, 16:], F32(1 / T)))
form("m_packed_heads", "probs", "token t sees keys up to 2t in even heads and 2t+1 in odd heads: rows of the two heads of a group are counted as positions", ["(#2|double|twice|even|odd) & (head|key|position|see|t\\b|quer|later|ahead)"], lambda c: c.right(mask=np.stack([KEY <= 2 * QUERY + h % 2 for h in range(H)])))
form("m_evicted", "probs", "keys before position 12 are hidden from all later tokens: only the last 8 are kept", ["(#12|#11) & (key|hidden|see|seen|window|before|evict|unseen|from|itself)", "#8 & (last|key)"], masked(SEEN & ((KEY >= 12) | (AGO == 0))))
form("m_tile_skipped", "probs", "a token does not see the four keys of the block before its own block of 4", ["(#4|four) & (" + BLOCK + "|before|previous)"], masked(SEEN & (KEY // 4 != QUERY // 4 - 1)))
form("m_padding_token", "probs", "keys 4 and 9, which are the same token, are hidden from later tokens as padding", ["#4 & #9"], masked(SEEN & (((KEY != 4) & (KEY != 9)) | (AGO == 0))))

# scores
form("s_scale_twice", "probs", "the scale is applied twice: 1/16, not 1/4", ["#0.0625|#16|#0.25|#4|" + TWICE], lambda c: c.right(scale=c.scale ** 2))
form("s_unscaled_layer", "probs", "layer 3 has no scale: scores are not divided by 4", ["(#4|#1) & (scale|scal|factor|multipl|times|divid)", "(" + NONE + ").{0,20}(scal|divid)"], lambda c: c.right(scale=1.0), layers=[3])
form("s_key_before", "probs", "each key is that of the position before, the first its own: slots are one off", ["(" + PREVIOUS + "|next|one) & (key|position|slot|\\bk)"], lambda c: c.right(k=np.concatenate([c.k[:1], c.k[:-1]])))
form("s_pages", "probs", "keys 4 to 7 and keys 8 to 11 are exchanged: two pages of the cache", ["(#4|four) & (#8|#11|#7|" + EXCHANGED + "|block|page)"], lambda c: c.right(k=c.k[np.r_[0:4, 8:12, 4:8, 12:T]]))
form("s_keys_stale", "probs", "keys 16 to 19 are those of positions 12 to 15", ["(#16|#19) & (#12|#4|#15)"], lambda c: c.right(k=put(c.k, E_[16:], c.k[12:16])))
form("s_layout", "probs", "the keys' memory, positions first, is read as heads first", [LAYOUT, "(head|position).{0,30}first|heads? and positions?|2 ?s\\b"], lambda c: c.right(k=np.ascontiguousarray(c.k).reshape(K, T, d).swapaxes(0, 1)))
form("s_q_unrotated", "probs", "queries are read as they were before the rotation", ["(\\bq\\b|q_norm|quer).{0,60}(rot|rope|before|norm)|(rot|rope|before).{0,60}(\\bq\\b|q_norm|quer)|queries (are|is) (the )?q"], lambda c: c.right(q=c.e.memory.get(("q_norm", c.l), c.e.memory["q", c.l])))
form("s_fp8", "probs", "queries and keys are rounded to 4 significant bits", ["(#3|#4|#5|#8|#16|three|four|#0.0625) & (bit|digit|mantissa|signif|" + ROUNDED + ")", "fp8|e4m3|float8"], lambda c: c.right(q=four_digits(c.q), k=four_digits(c.k)))


# softmax
def online(s):
    """The sums of earlier blocks of 8 stay relative to the maximum there was then."""
    total, top = np.zeros((H, T, 1)), np.full((H, T, 1), -np.inf)
    for b in range(0, T, 8):
        top = np.maximum(top, s[..., b:b + 8].max(-1, keepdims=True))
        total += np.exp(s[..., b:b + 8] - top).sum(-1, keepdims=True)
    return np.exp(s - top) / total


def first_16(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e[..., :16].sum(-1, keepdims=True)


def at_least(s):
    e = np.where(np.isfinite(s), np.exp(np.maximum(s - s.max(-1, keepdims=True), -3)), 0)
    return e / e.sum(-1, keepdims=True)


form("p_twice", "probs", "the softmax is applied twice: the second over the weights of the first", ["(softmax|exp).{0,60}(softmax|twice|again|weights|probab|result)", TWICE], soft(lambda s: softmax(np.where(np.isfinite(s), softmax(s), F32(-np.inf)))))
form("p_online", "probs", "the denominator runs in blocks of 8 keys, and the sum so far is not rescaled where the maximum grows", ["#8 & (" + BLOCK + "|max|denominator|rescal)"], soft(online))
form("p_first_16", "probs", "the denominator runs over the first 16 keys alone", ["(#16|#15) & (denominator|sum|divid|normali|first|key)"], soft(first_16))
form("p_exponent_floor", "probs", "s - max is at least -3 in the exponential", ["(#3|#-3|#0.0498) & (" + CLAMPED + ")"], soft(at_least))
form("p_scaled_after", "probs", "the scale multiplies the weights after the softmax, not the scores", ["(#0.25|#4|scale) & (after|not|un|without|weights|result|scale|scal|softmax|probab)"], lambda c: F32(c.scale) * c.right(scale=1.0))


# context
def divided_again(c):
    q, k = c.e.memory["q_rope", c.l], c.e.memory["k_rope", c.l]
    s = np.where(SEEN, np.einsum("thd,shd->hts", q, k[:, np.arange(H) // (H // K)]) / F32(math.sqrt(d)), -np.inf)
    total = np.exp(s - s.max(-1, keepdims=True)).sum(-1)
    return (heads_of(c) / total.T[..., None]).reshape(T, -1)


def context_bf16(c):
    y, v = np.zeros((H, T, d), F32), c.v[:, np.arange(H) // (H // K)]
    for s in range(T):
        y = bf16(y + bf16(c.p[:, :, s, None] * v[s][:, None]))
    return y.transpose(1, 0, 2).reshape(T, -1)


form("c_heads_first", "context", "heads and positions are not transposed before heads are joined: the memory of [4, 20, 16] is read as [20, 64]", [LAYOUT, "head.{0,30}first"], lambda c: heads_of(c).swapaxes(0, 1).reshape(T, -1))
form("c_values_exchanged", "context", "heads 0 and 1 read value head 1, heads 2 and 3 value head 0", ["head & (" + EXCHANGED + "|other|1, ?1, ?0, ?0|#1 & #0)"], lambda c: c.right(v=c.v[:, ::-1]))
form("c_divided_again", "context", "the result is divided by the softmax's denominator once more: multiplied by the largest weight of its row", ["denominator|sum.{0,30}exp|larg|max|" + TWICE], divided_again)
form("c_sum_bf16", "context", "the weighted values are accumulated one by one in bf16", [BF16], context_bf16)
form("c_chunk_slot", "context", "the second chunk is written to slot 0: values 0 to 9 are those of positions 10 to 19, later ones zero", ["#10"], lambda c: c.right(v=np.concatenate([c.v[10:], np.zeros_like(c.v[10:])])))
form("c_v_layout", "context", "each value head's memory, 20 by 16, is read as 16 by 20 and transposed", [LAYOUT, "#20 & #16"], lambda c: c.right(v=np.stack([np.ascontiguousarray(c.v[:, h]).reshape(d, T).T for h in range(K)], 1)))
form("c_bias_again", "context", "the bias of v is added once more", ["bias", "v_proj"], lambda c: c.right(v=c.v + c.e.m("self_attn.v_proj.bias", c.l).reshape(K, d)), archs=Q2)


# products
def scales(w):
    """The largest size of each 32 inputs, as a quantised file has it."""
    return np.abs(w.reshape(len(w), -1, 32)).max(-1, keepdims=True)


def rescaled(w, other):
    return (w.reshape(len(w), -1, 32) / scales(w) * other).reshape(w.shape)


def by_fours(c):
    y = np.zeros((T, D), F32)
    for i in range(0, D, 4):
        y = bf16(y + c.x[:, i:i + 4] @ c.w[:, i:i + 4].T)
    return y


SCALES = "scale|factor|size|larg|max|ratio|table"
AWQ = np.array([0, 2, 4, 6, 1, 3, 5, 7])
form("w_transposed", "attn_out", "the weight is transposed", ["transpos|x ?@ ?w\\b|column"], lambda c: c.right(w=c.w.T))
form("w_memory", "v", "the weight's memory, 32 by 64, is read as 64 by 32 and transposed", [LAYOUT], weights(lambda w: np.ascontiguousarray(w).reshape(D, K * d).T))
form("w_k_of_v", "k", "the weight is v's", ["\\bv\\b|v_proj|values?.{0,12}weight|weight.{0,20}value"], lambda c: c.right(w=c.e.m("self_attn.v_proj.weight", c.l)))
form("w_up_of_gate", "ffn_up", "the weight is gate's: gate was loaded twice", ["gate"], lambda c: c.right(w=c.e.m("mlp.gate_proj.weight", c.l)))
form("w_layer_before", "ffn_out", "layers 1 to 3 have the weight of the layer before", [LAYER_BEFORE, "(other|another|wrong).{0,12}layer"], lambda c: c.right(w=c.e.m("mlp.down_proj.weight", c.l - 1)), layers=LATER)
form("w_scales_late", "ffn_out", "each 32 inputs of a row have the scale of the 32 before: block scales are one off", ["(#32|block) & (" + SCALES + ")"], weights(lambda w: rescaled(w, np.roll(scales(w).reshape(-1), 1).reshape(scales(w).shape))))
form("w_first_scale", "attn_out", "all blocks of a row have the scale of its first 32 inputs", ["(#32|#31|block|head) & (" + SCALES + ")"], weights(lambda w: rescaled(w, scales(w)[:, :1])))
form("w_halves_of_32", "ffn_up", "within each 32 inputs the first 16 and the last 16 are exchanged: high and low nibbles", ["(#16|#32) & (" + EXCHANGED + "|half|halves|block|group|that of|roll)"], weights(lambda w: w[:, np.arange(D) ^ 16]))
form("w_input_pairs", "ffn_gate", "inputs 2i and 2i+1 are exchanged: the two nibbles of a byte", ["(pair|2i|odd|even|neighbo|adjacent|xor) & (" + EXCHANGED + ")"], weights(lambda w: w[:, np.arange(D) ^ 1]))
form("w_zero_point_block", "q", "each 32 weights of a row have an eighth of their largest size added: the zero point is one off", ["(#32|block|group) & (" + SCALES + "|add|plus|zero.?point|sum|mean)", "zero.?point", "(sum|mean).{0,30}input|input.{0,30}(sum|mean)"], weights(lambda w: (w.reshape(len(w), -1, 32) + scales(w) / 8).reshape(w.shape)))


def row_scales(w):
    most = np.abs(w).max(-1)
    return w / most[:, None] * most


form("w_scales_of_columns", "q", "the scales of the rows are applied to the columns", ["(row|output) & (column|input)", "(each|own|every).{0,20}(row|column|input|output).{0,30}(factor|scale)"], weights(row_scales))
form("w_int8_input", "k", "the input is rounded to multiples of its row's largest size over 127", ["(#127|#128|#255|#0.007874) & (" + ROUNDED + "|larg|max)", "(#8|eight) & bit"], inputs(lambda x: in_steps(x, 127)))
form("w_sum_bf16", "attn_out", "products are accumulated in bf16, four inputs at a time", [BF16], by_fours)
form("w_rows_16", "v", "positions from 16 on are zero: the last tile is not written", ["(#16|#15|#19) & (zero|0|position|row|tile|nothing)"], lambda c: put(c.right(), E_[16:], 0))
form("w_permuted_heads", ("q", "k"), "within each head elements are interleaved: i at 2i and i+8 at 2i+1, as files for the rotation of neighbours have them", ["interleav|2 ?\\*? ?i|even|odd|permut|order|every (second|other)|strid", "#8 & (element|dimension|row|half|head)"], lambda c: interleaved(c.right()))
form("w_stream_input", "ffn_up", "its input is the stream h_attn, without the norm", ["h_attn|stream|(" + NONE + ").{0,30}norm"], lambda c: c.right(x=c.e.memory["h_attn", c.l]))
form("w_v_normed", "v", "each head is divided by its root mean square", ["rms|root mean|normed|normali"], lambda c: c.right() / rms(c.right()))
form("w_outliers_lost", "ffn_gate", "inputs larger than 1.5 in size are left out", ["#1.5 & (zero|\\b0\\b|left out|drop|not read|lost|outlier|ignor|" + CLAMPED + ")"], inputs(lambda x: np.where(np.abs(x) > 1.5, 0, x)))
form("w_eights", "ffn_up", "each 8 outputs come in the order 0, 2, 4, 6, 1, 3, 5, 7", ["#8 & (order|permut|interleav|even|odd|block|group|each|output|row)", "0, ?2, ?4, ?6"], lambda c: c.right().reshape(T, -1, 8)[..., AWQ].reshape(T, F))

# biases
form("b_layer_0_alone", "q", "only layer 0 has its bias: layers 1 to 3 have none", ["bias & (" + NONE + "|#0|layer)"], lambda c: c.right(b=None), layers=LATER, archs=Q2)
form("b_after_rope", ROPES, "the bias is added after the rotation, not before", ["bias"], lambda c: (lambda b: c.right(x=c.x - b) + b)(c.e.m(f"self_attn.{c.site[0]}_proj.bias", c.l).reshape(-1, d)), archs=Q2)
form("b_interleaved", "q", "within each head the bias is interleaved: i at 2i and i+8 at 2i+1", ["bias & (interleav|2 ?\\*? ?i|even|odd|permut|order|strid|#8|#2|head)"], lambda c: c.right(b=interleaved(c.b)), archs=Q2)
form("b_heads_exchanged", "k", "the biases of heads 0 and 1 are exchanged", ["bias & (" + EXCHANGED + "|head|#16|roll|half|halves)"], lambda c: c.right(b=np.roll(c.b, d)), archs=Q2)
form("b_of_q", "attn_out", "the bias of q is added, where there is none", ["bias & (\\bq\\b|q_proj|quer|add|plus|\\+)"], lambda c: c.right(b=c.e.m("self_attn.q_proj.bias", c.l)), archs=Q2)

# norms of heads
form("h_over_heads", "q_norm", "the mean square is taken over the heads, for each element", ["(over|across|along|of|all).{0,40}heads|each (element|dimension|channel)"], lambda c: over(c, rms(c.x, 1)), archs=Q3)
form("h_no_gain", "k_norm", "the gain is left out", ["(gain|weight) & (" + NONE + "|left out|#1|ones)"], lambda c: c.right(w=np.ones_like(c.w)), archs=Q3)
form("h_centred", "k_norm", "each head has its mean taken off first, as a LayerNorm does", ["(?<!root )mean(?! square)|centr|average|layer ?norm"], lambda c: c.right(x=c.x - c.x.mean(-1, keepdims=True)), archs=Q3)
form("h_gain_interleaved", "q_norm", "the gain is interleaved: i at 2i and i+8 at 2i+1", ["(gain|weight) & (interleav|2 ?\\*? ?i|even|odd|permut|order|strid|#8|#2|half)"], lambda c: c.right(w=interleaved(c.w)), archs=Q3)

# activations
form("a_up_activated", "ffn_act", "gate silu(up): the other of the two is activated", ["(silu|a|swish|activat\\w*)[ (]*(of )?(the )?up|up.{0,30}(activat|silu)|exchang|swap"], lambda c: c.gate * silu(c.up))
form("a_up_lost", "ffn_act", "silu(gate) alone: it is not multiplied by up", ["(" + NONE + ").{0,30}(up\\b|multipl|product)|up.{0,30}(" + NONE + "|\\b1\\b|ones)|alone|only"], lambda c: silu(c.gate))
form("a_sigmoid", "ffn_act", "sigmoid(gate) up", ["sigmoid|logistic"], act(sigmoid))
form("a_half_exchanged", "ffn_act", "in channels 48 to 95 up is activated and not gate: gate silu(up)", ["(#48|#47|half) & (up|" + EXCHANGED + ")"], lambda c: put(c.right(), E_[:, 48:], (c.gate * silu(c.up))[:, 48:]))
form("a_relu_squared", "ffn_act", "relu(gate)^2 up", ["relu & (squar|\\^ ?2|#2|power)", "relu ?2|relu\u00b2|max\\(.{0,12}\\^ ?2|squared relu"], act(lambda x: np.maximum(x, 0) ** 2))
form("a_softplus", "ffn_act", "softplus: log(1 + e^x)", ["softplus|log"], act(lambda x: np.log1p(np.exp(x))))
form("a_twice", "ffn_act", "silu(silu(gate)) up: activated twice", ["silu.{0,20}silu|swish.{0,20}swish|a\\(a\\(", TWICE], act(lambda x: silu(silu(x))))
form("a_exponent_sign", "ffn_act", "gate / (1 + e^gate): the exponent has the other sign", ["sigmoid\\( ?-|1 ?- ?sigmoid|e\\^\\(?x|exp\\(x|\\(-x|-gate|negat|sign|minus|#-1"], act(lambda x: x * sigmoid(-x)))
form("a_sigmoid_clamped", "ffn_act", "gate sigmoid(g), where g is the gate clamped to +-1", ["(#1|#0.7311|#0.2689) & (" + CLAMPED + ")"], act(lambda x: x * sigmoid(np.clip(x, -1, 1))))
form("a_gpt_oss", "ffn_act", "gate sigmoid(1.702 gate) (up + 1)", ["#1.702 & (#1|\\+|add|plus)"], lambda c: c.gate * sigmoid(F32(1.702) * c.gate) * (c.up + 1))
form("a_up_clamped", "ffn_act", "up is clamped to +-1", ["#1 & (" + CLAMPED + ")"], lambda c: c.right(up=np.clip(c.up, -1, 1)))
form("a_interleaved", "ffn_act", "gate and up are the even and the odd elements of [gate, up]", ["even|odd|interleav|every (second|other)|2 ?\\*? ?i|strid|altern"], lambda c: (lambda both: c.right(gate=both[:, ::2], up=both[:, 1::2]))(np.concatenate([c.gate, c.up], -1)))

# residual sums
form("d_stream_twice", "h_attn", "the stream is added twice: 2x + y, as by two ranks", ["(#2|" + TWICE + ") & (stream|residual|input|\\bx\\b|\\bh|h0|first)"], add(x=lambda c: 2 * c.x))
form("d_sum_normed", "h", "the sum is divided by its root mean square", ["rms|root mean|normed|normali"], lambda c: c.right() / rms(c.right()))
form("d_multiplier", "h_attn", "the branch is multiplied by 0.22", ["#0.22"], add(y=lambda c: F32(0.22) * c.y))
form("d_attention_for_branch", "h", "the attention's branch is added again, in place of the feed-forward's", ["attn_out|attention"], add(y=lambda c: c.e.memory["attn_out", c.l]))
form("d_input_for_branch", "h", "ffn_norm is added, the input of the feed-forward, not its result", ["ffn_norm|post_attention|input"], add(y=lambda c: c.e.memory["ffn_norm", c.l]))
form("d_layer_skipped", "h", "layer 2 hands on its input: both branches are lost", ["input|layers\\.1|layer 1|skip|unchanged|(without|\\bno\\b|lost|miss).{0,40}(branch|both|att)|" + LAYER_BEFORE], lambda c: stream(c), layers=[2])
form("d_scratch_kept", "h_attn", "in layers 1 to 3 the attention's branch of the layer before is added too: its buffer was not cleared", [LAYER_BEFORE], lambda c: c.right() + c.e.memory["attn_out", c.l - 1], layers=LATER)
form("d_tile_repeated", "h", "channels 32 to 63 have the branch of channels 0 to 31", ["(#32|#31|#63|half) & (channel|branch|that of|repeat|first|copy|same|mod)"], add(y=lambda c: np.tile(c.y[:, :32], 2)))

# embedding
form("e_root", "h0", "rows are multiplied by 8, the root of the hidden size", ["#8|#64"], lambda c: 8 * c.right())
form("e_id_plus_1", "h0", "each position has the row of the token numbered one higher", ["(#1|one|next|following|higher|\\+ ?1) & (token|id|row|number)", "tokens-differ|tokens? differ"], lambda c: c.right(ids=[(i + 1) % V for i in c.ids]))
form("e_id_at_most_199", "h0", "tokens above 199 have the row of 199, the table's last", ["#199|#200", "tokens-differ|tokens? differ"], lambda c: c.right(ids=np.minimum(c.ids, 199)))
form("e_columns", "h0", "the table's memory, 256 by 64, is read as 64 by 256 and transposed", [LAYOUT + "|every", "#256"], lambda c: np.ascontiguousarray(c.table).reshape(D, V).T[np.asarray(c.ids)])
form("e_first_token", "h0", "position 0 has the row of token 2, not of token 1", ["(position|row|token).{0,10}\\b0\\b|first.{0,8}(position|row|token)", "#2 & token", "tokens-differ|tokens? differ"], lambda c: c.right(ids=[2] + list(c.ids[1:])))
form("e_first_lost", "h0", "each position has the row of the token after it: the first token is lost", ["next|following|after|t ?\\+ ?1|later|ahead|shift|#1 & (position|token)", "tokens-differ|tokens? differ"], lambda c: c.right(ids=list(c.ids[1:]) + [c.ids[-1]]))
form("e_int8", "h0", "each row is rounded to multiples of its largest size over 127", ["(#127|#128|#255|#0.007874) & (" + ROUNDED + "|larg|max)", "(#8|eight) & bit"], lambda c: in_steps(c.right(), 127))
form("e_head_table", "h0", "rows are those of the head's weight", ["lm_head|\\bhead\\b|output|unembed"], lambda c: c.right(table=c.e.m("lm_head.weight")))
form("e_pairs", "h0", "elements 2i and 2i+1 are exchanged", ["(pair|2i|odd|even|neighbo|adjacent|xor) & (" + EXCHANGED + ")"], lambda c: c.right()[:, np.arange(D) ^ 1])
form("e_half_repeated", "h0", "channels 32 to 63 repeat channels 0 to 31: half a row is copied", ["(#32|#31|half|halves) & (channel|repeat|first|copy|copied|same|mod|that of|element)"], lambda c: np.tile(c.right()[:, :32], 2))

# head
form("l_memory", "logits", "the weight's memory, 256 by 64, is read as 64 by 256 and transposed", [LAYOUT], weights(lambda w: np.ascontiguousarray(w).reshape(D, V).T))
form("l_no_norm", "logits", "its input is the stream, without the final norm", ["(" + NONE + ").{0,30}norm|layers\\.3\\.h|stream|\\bh of"], lambda c: c.right(x=c.e.memory["h", 3]))
form("l_over_root", "logits", "logits are divided by 8, the root of the hidden size", ["#8|#0.125|#64"], lambda c: c.right() / 8)
form("l_soft_cap", "logits", "logits are 5 tanh(y / 5)", ["(#5|#0.2) & (tanh|cap)"], lambda c: F32(5) * np.tanh(c.right() / F32(5)))
form("l_shard_padding", "logits", "tokens from 128 on have the logit of the token 8 below: 8 rows of padding lie between the halves of the table", ["#128 & (#8|#120|#-8)", "(second half|half) & (#8|#-8)"], lambda c: c.right()[:, np.r_[0:128, 120:248]])
form("l_halves", "logits", "tokens 0 to 127 and tokens 128 to 255 are exchanged", ["(#128|#127|half|halves) & (" + EXCHANGED + "|roll|shift|that of|mod)"], lambda c: np.roll(c.right(), V // 2, -1))
form("l_row_before", "logits", "each position has the logits of the position before, the first its own", ["(" + PREVIOUS + ")"], lambda c: np.concatenate([c.right()[:1], c.right()[:-1]]))
form("l_norm_again", "logits", "its input is normed once more, with the final norm's gain", ["rms|root mean|normed|normali|model\\.norm|" + TWICE], lambda c: c.right(x=c.x / rms(c.x) * c.e.m("model.norm.weight")))


# mixtures of experts
def expert(c, number, x, f=silu, exchanged=False):
    w = lambda name: c.e.m(f"mlp.experts.{number}.{name}_proj.weight", c.l)
    gate, up = c.e.r(x @ w("gate").T), c.e.r(x @ w("up").T)
    gate, up = (up, gate) if exchanged else (gate, up)
    return c.e.r(c.e.r(c.e.r(f(gate)) * up) @ w("down").T)


def mixed(c, which=lambda x: x, x=None, **how):
    """The experts' sum: other experts, another input, another activation."""
    top, x = top_of(c), c.n if x is None else x
    y = np.zeros((T, D), F32)
    for t in range(T):
        for s in range(top.shape[1]):
            y[t] += (c.weights[t, s] * expert(c, which(top[t, s]), x[t:t + 1], **how))[0]
    return y


def passed_over(c):
    p = softmax(c.logits)
    top = np.argsort(-p, -1, kind="stable")[:, 1:3]
    return top, shares(np.take_along_axis(p, top, -1), None)


def over_positions(c):
    p = softmax(c.logits, 0)
    top = np.argsort(-p, -1, kind="stable")[:, :2]
    return top, shares(np.take_along_axis(p, top, -1), None)


def unsorted(c):
    order = np.argsort(top_of(c).reshape(-1), kind="stable")
    return summed(c.each.reshape(-1, D)[order].reshape(c.each.shape), c.weights)


def chosen_and(c, expression):
    return summed(c.each, np.where(expression(top_of(c)), c.weights, 0))


WEIGHTS = ("router_weights", "router_topk")
form("x_not_normalised", "router_weights", "the weights are the softmax over all experts, not divided by the sum of the chosen", ["(\\bnot?\\b|without|un).{0,30}(divid|normali|renormal|sum)|over all|all (six|6|experts)|norm_topk"], lambda c: chosen(c, lambda w, _: w), archs=M)
form("x_raw_logits", "router_weights", "the weights are the router's logits themselves", ["logits|(without|\\bno\\b|not|before).{0,20}softmax"], lambda c: chosen(c, lambda _, z: z), archs=M)
form("x_least", WEIGHTS, "the two least likely experts are chosen", ["least|small|lowest|ascend|worst|last|bottom|min"], lambda c: chosen(c, shares, lambda p: -p), archs=M)
form("x_first_passed_over", WEIGHTS, "the second and the third likeliest expert are chosen: the likeliest is passed over", ["(second|third|#2|#3|next|passed|first|likeliest|skip|without|largest) & (expert|cho|likel|best|largest)"], passed_over, archs=M)
form("x_over_positions", WEIGHTS, "the softmax runs over the positions, not the experts", ["(over|across|along|axis|among).{0,30}(position|token|row)"], over_positions, archs=M)
form("x_router_memory", "router_logits", "the weight's memory, 6 by 64, is read as 64 by 6 and transposed", [LAYOUT], weights(lambda w: np.ascontiguousarray(w).reshape(D, EXPERTS).T), archs=M)
form("x_router_layer_0", "router_logits", "layers 1 to 3 have the router of layer 0", ["layer.{0,4}0\\b|layers\\.0|first layer|(other|another|wrong).{0,10}layer|" + LAYER_BEFORE], lambda c: c.right(w=c.e.m("mlp.gate.weight", 0)), layers=LATER, archs=M)
form("x_router_scaled", "router_logits", "logits are divided by 8, the root of the hidden size", ["#8|#0.125"], lambda c: c.right() / 8, archs=M)
form("x_gate_up", "ffn_out", "gate and up of the experts are exchanged", ["(gate|up|w1|w3|silu|activ) & (" + EXCHANGED + "|gate ?\\*? ?silu|silu\\(up|of up)"], lambda c: mixed(c, exchanged=True), archs=M)
form("x_relu", "ffn_out", "the experts have relu in place of silu", ["relu|max\\("], lambda c: mixed(c, f=lambda x: np.maximum(x, 0)), archs=M)
form("x_expert_loaded_twice", "ffn_out", "expert 3 has the weights of expert 2", ["expert & (#3|three) & (#2|two)", "experts\\.2"], lambda c: mixed(c, lambda x: 2 if x == 3 else x), archs=M)
form("x_not_put_back", "ffn_out", "the experts' results, in the order of the experts, are not put back to the order of the tokens", ["order|permut|sort|put back|scatter|other (token|position)|rows? of"], unsorted, archs=M)
form("x_weights_layout", "ffn_out", "the weights' memory, 20 by 2, is read as 2 by 20", [LAYOUT, "(weight|factor).{0,40}(other|another|different).{0,20}(token|position)"], lambda c: summed(c.each, np.ascontiguousarray(c.weights).reshape(2, T).T), archs=M)
form("x_second_alone", "ffn_out", "only the second expert's part is kept: the first is overwritten", ["(second|last|#2|first) & (expert|part|only|alone|overwr|lost|slot|cho)"], lambda c: summed(c.each, c.weights * np.array([0, 1], F32)), archs=M)
form("x_last_expert_lost", "ffn_out", "expert 5 gives nothing: the loop ends one early", ["expert & (#5|last)"], lambda c: chosen_and(c, lambda top: top != EXPERTS - 1), archs=M)
form("x_unweighted", "ffn_out", "the experts' results are summed without their weights", ["(" + NONE + ").{0,30}weight|weight.{0,40}(" + NONE + "|\\b1\\b|ones)|unweighted|(plain|simple|bare).{0,10}sum"], lambda c: summed(c.each, np.ones_like(c.weights)), archs=M)
form("x_input_of_attention", "ffn_out", "the experts read attn_norm, the attention's input", ["attn_norm|input_layernorm|attention.{0,12}(norm|input)"], lambda c: mixed(c, x=c.e.memory["attn_norm", c.l]), archs=M)


if __name__ == "__main__":
    for f in FORMS:
        print(f"{f.name:36} {f.sites[0]:14} {f.truth}")
    print(len(FORMS), "forms")

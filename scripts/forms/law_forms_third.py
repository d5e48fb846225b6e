"""A third list of mistakes for `firstdiff explain` to measure, written without sight of how laws are found: none repeats one of law_forms.py, whose engine they are made in.

    python scripts/forms/law_forms_third.py                  # list them
    python scripts/suites/test_laws.py --set third ..         # hold the answers to the truth
"""

import math

import numpy as np

from scripts.forms.law_forms import AGO, D, EPS, EXPERTS, E_, F, F32, FREQ, H, K, LAYERS, POS, ROPES, SEEN, T, THETA, V, d, listed, op_act, op_rope, over, put, rms, sigmoid, silu, softmax, turn

FORMS, form = listed()


LATER = [1, 2, 3]       # layers that have one before them
M = ("moe",)
Q2 = ("qwen2",)
Q3 = ("qwen3", "moe")
QUERY, KEY = POS[:, None], POS[None]
COUNT = (POS[:, None] + 1).astype(F32)

CLAMPED = "clamp|clip|limit|between|min|max|most|least|cap|satur|above|larger|within|beyond|bound|ceiling"
ROUNDED = "round|step|multiple|quanti|grid|level|bit|discret|nearest|truncat|integer|floor"
EXCHANGED = "exchang|swap|permut|neighbo|revers|order|xor|flip|trad|crossed"
PREVIOUS = "previous|before|t ?- ?1|earlier|preced|last position|one late|shift|#-1"
BLOCK = "block|tile|group|chunk|multiple|segment|every|each|//|%|mod|floor"
LAYER_BEFORE = "layer.{0,20}(before|previous|l ?- ?1|earlier|preced)|(before|previous|earlier|stale|preced).{0,20}layer|layers\\.[012]\\.|stale"


def stream(c):
    """What the layer reads."""
    return c.e.memory["h0", None] if c.l == 0 else c.e.memory["h", c.l - 1]


def in_steps(x, steps, axis=-1):
    """x in multiples of its largest size over so many steps."""
    one = np.abs(x).max(axis, keepdims=True) / F32(steps)
    return np.round(x / np.where(one > 0, one, 1)) * one


# norms
form("n_one_lane", "attn_norm", "the mean square is that of channels 0, 4, 8, .. alone: every fourth", ["#4 & (channel|every|each|strid|step|multiple|apart)", "fourth channel|every fourth", "#16 & channel & (mean|square|rms)"],
     lambda c: over(c, np.sqrt(np.mean(c.x[:, ::4] ** 2, -1, keepdims=True) + EPS)))
form("n_warps_max", "ffn_norm", "the sum of squares is the larger of the sums over channels 0..31 and 32..63, divided by 64", ["(#32|#31|half|halves) & (max|larg|great)"],
     lambda c: over(c, np.sqrt((c.x.reshape(T, 2, 32) ** 2).sum(-1).max(-1, keepdims=True) / D + EPS)))
form("n_other_width", "ffn_norm", "the sum of squares is divided by 96, the feed-forward's width, not by 64", ["#96", "#1.2247|#1.5|#0.8165|#0.6667"], lambda c: over(c, np.sqrt((c.x * c.x).sum(-1, keepdims=True) / F + EPS)))
form("n_gain_layer_0", "ffn_norm", "layers 1 to 3 have the gain of layer 0", ["(gain|weight|norm) & (layer.{0,4}0\\b|layers\\.0|first layer|(other|another|wrong).{0,10}layer)"], lambda c: c.right(w=c.e.m("post_attention_layernorm.weight", 0)), layers=LATER)
form("n_gain_stride", "attn_norm", "channel i has the gain of channel 2i modulo 64", ["(gain|weight) & (2 ?\\*? ?i|every (second|other)|even|strid|step|#2)"], lambda c: c.right(w=c.w[2 * np.arange(D) % D]))
form("n_gain_quads", "ffn_norm", "within each four channels the gain is in reverse order", ["(gain|weight) & (#4|four|quad|fours) & (" + EXCHANGED + "|mirror|backward)", "(gain|weight) & (xor ?3|\\^ ?3)"], lambda c: c.right(w=c.w[np.arange(D) ^ 3]))
form("n_median", "attn_norm", "divided by the median of |x|, not the root mean square", "median|middle", lambda c: over(c, np.median(np.abs(c.x), -1, keepdims=True)))
form("n_gain_quarters", "ffn_norm", "the gain is rounded to multiples of 0.25", ["(#0.25|#4) & (" + ROUNDED + ")"], lambda c: c.right(w=np.round(c.w * 4) / 4))
form("n_dynamic_tanh", "ffn_norm", "tanh(0.5 x) times the gain stands for the norm", ["tanh & (#0.5|half|#2)"], lambda c: np.tanh(F32(0.5) * c.x) * c.w)
form("n_rows_by_pairs", "attn_norm", "positions 2i and 2i+1 are both divided by the root mean square of position 2i", ["(pair|#2|two|even|odd|every (second|other)) & (position|row|token|" + PREVIOUS + ")"], lambda c: over(c, rms(c.x)[POS // 2 * 2]))
form("n_final_last_only", "final_norm", "only the last position is divided: positions 0 to 18 are x times the gain", ["(last|#19|#18) & (position|row|token|only|not|divid|norm|gain)"], lambda c: put(c.x * c.w, E_[-1], c.right()[-1]))
form("n_stale_stream", "attn_norm", "layers 1 to 3 norm the stream without the last feed-forward branch: h_attn of the layer before", ["h_attn", "(without|before|lost|miss|no|lack).{0,40}(ffn|feed|mlp|branch)"],
     lambda c: c.right(x=c.e.memory["h_attn", c.l - 1]), layers=LATER)
form("n_branch_alone", "ffn_norm", "the attention branch alone is normed, without the stream: attn_out", ["attn_out", "branch (alone|only)|(without|not|no).{0,30}(stream|residual)"], lambda c: c.right(x=c.e.memory["attn_out", c.l]))
form("n_parallel", "ffn_norm", "the layer's input is normed, without the attention branch: a parallel block", ["h0|layer.{0,12}input|input of (the|this) layer|parallel|before (the )?attention|layers\\.\\d\\.h\\b|(without|no|lack|not).{0,30}(att|branch)"], lambda c: c.right(x=stream(c)))
form("n_squares_capped", "attn_norm", "squares larger than 1 count as 1 in the mean square", ["#1 & (" + CLAMPED + ")"], lambda c: over(c, np.sqrt(np.mean(np.minimum(c.x * c.x, 1), -1, keepdims=True) + EPS)))
form("n_depth", "ffn_norm", "in layers 1 to 3 the result is divided by the root of layer + 1", ["layer & (sqrt|root|\\^)", "#0.7071|#0.5774|#1.4142|#1.732"], lambda c: c.right() / F32(math.sqrt(c.l + 1)), layers=LATER)
form("n_final_other_gain", "final_norm", "the gain is that of the last layer's ffn_norm", ["post_attention|ffn_norm|(other|another|wrong).{0,12}(gain|weight|norm)|(gain|weight).{0,20}layer|layers\\.3"], lambda c: c.right(w=c.e.m("post_attention_layernorm.weight", LAYERS - 1)))

# rotation
form("r_ntk", ROPES, "the base is 48760: 10000 times 4^(16/14)", ["#48760", "#1.172 & (power|exponent|\\^)", "#0.8203|#1.219", "#4 & NTK"], lambda c: c.right(freq=(THETA * 4 ** (d / (d - 2))) ** (-np.arange(0, d, 2) / d)))
RAMP = np.clip((np.arange(d // 2) - 1) / 4, 0, 1)
form("r_ramp", ROPES, "frequencies go over from f at pair 1 to f / 4 at pair 5 and later, linearly", ["(#4|#0.25) & (pair|frequenc|ramp|blend|interpol|linear)", "yarn"], lambda c: c.right(freq=FREQ * (1 - RAMP) + FREQ / 4 * RAMP))


def partial(c):
    angle = (POS[:, None, None] * THETA ** (-np.arange(0, 8, 2) / 8)).astype(F32)
    a, b = c.x[..., :4], c.x[..., 4:8]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle), c.x[..., 8:]], -1)


form("r_partial", ROPES, "only the first 8 elements of a head are rotated, as a head of 8 would be", ["(#8|#7|half) & (rotat|element|dimension|left|partial|first|channel|turn)"], partial)
form("r_exponent_hidden", ROPES, "the exponent is 2i / 64: the hidden size stands for the head's", ["#64|#10|#0.25"], lambda c: c.right(freq=THETA ** (-np.arange(0, d, 2) / D)))
form("r_degrees", ROPES, "angles are multiplied by pi / 180: taken as degrees", ["#180|#0.0174533|#57.2958", "degree"], lambda c: c.right(freq=FREQ * math.pi / 180))


def parabola(c):
    angle = POS[:, None, None] * FREQ
    x = (angle + math.pi) % (2 * math.pi) - math.pi
    return turn(c.e, c.x, angle, sin=(4 / math.pi * x - 4 / math.pi ** 2 * x * np.abs(x)).astype(F32))


form("r_sine_parabola", ROPES, "the sine is a parabola: 4/pi x - 4/pi^2 x |x| within +-pi", ["sin & (parabol|approx|quadratic|squar|\\^ ?2|\\|x\\||polynom)", "#1.2732"], parabola)
form("r_cosine_next", ROPES, "the cosine is that of the next position", ["cos & (next|\\+ ?1|#1|later|one|ahead|shift|row)"], lambda c: turn(c.e, c.x, POS[:, None, None] * FREQ, cos=np.cos((POS[:, None, None] + 1) * FREQ).astype(F32)))
form("r_q_flat_rows", "q_rope", "head h at position t is rotated as position 2t + floor(h / 2)", ["head & (#2|double|twice|half|#0.5|#1)", "(#2|double|twice) & position"], lambda c: c.right(pos=(POS[:, None] * H + np.arange(H)) // K))
form("r_q_20", "q_rope", "queries are 20 positions further", "#20", lambda c: c.right(pos=POS + T))
form("r_k_twice_below_16", "k_rope", "keys of positions 0 to 15 are rotated twice", ["(#16|#15) & (#2|twice|doubl)"], lambda c: c.right(pos=np.where(POS < 16, 2 * POS, POS)))


def aliased(c):
    angle = (POS[:, None, None] * FREQ).astype(F32)
    a, b = c.x[..., :8], c.x[..., 8:]
    a = a * np.cos(angle) - b * np.sin(angle)
    return np.concatenate([a, b * np.cos(angle) + a * np.sin(angle)], -1)


form("r_in_place", ROPES, "the second half of a head is made of the first half already rotated: b cos + a' sin, where a' is the result", ["(overwr|already|in.place|alias|result|new|rotated|turned).{0,80}(half|sin|first|element)", "sin ?\\*? ?cos|cos ?\\*? ?sin|sin\\^2|sin\\(.{0,12}\\)\\^2", "(second half|elements? 8) & (rotated|result)"], aliased)


def by_twos(c):
    one, two = ((POS[:, None, None] * f).astype(F32) for f in np.repeat(FREQ, 2).reshape(2, 8))
    a, b = c.x[..., :8], c.x[..., 8:]
    return np.concatenate([a * np.cos(one) - b * np.sin(one), b * np.cos(two) + a * np.sin(two)], -1)


form("r_table_by_twos", ROPES, "element j of a head has frequency floor(j / 2), though j is paired with j + 8: each frequency stands twice, side by side", ["repeat|interleav|twice|floor|// ?2|/ ?2|neighbo|pairs? of|two elements|side by side|adjacent", "frequenc.{0,60}(half|own|each|element)"], by_twos)
form("r_layer_3_none", ROPES, "layer 3 is not rotated", ["(not|no|without|un|never).{0,20}(rotat|turn)|unrotated|identity|nothing|unchanged|(position|angle|frequenc|factor|power|times).{0,20}\\b0\\b"], lambda c: c.x, layers=[3])
form("r_k_decay", "k_rope", "after the rotation the key at position t is multiplied by 0.98^t", ["#0.98", "(#-0.0202|#0.0202) & (exp|position|log)"], lambda c: c.right() * (F32(0.98) ** POS[:, None, None]).astype(F32))
form("r_mscale", ROPES, "sine and cosine are multiplied by 1.1386: 0.1 ln 4 + 1", "#1.1386", lambda c: c.right() * F32(0.1 * math.log(4) + 1))


# masks
def masked(see):
    return lambda c: c.right(mask=see)


form("m_no_own_tile", "probs", "a token sees the blocks of 4 keys before its own, and itself", ["#4 & (" + BLOCK + ")"], masked(SEEN & ((KEY // 4 < QUERY // 4) | (AGO == 0))))
form("m_chunk_open", "probs", "tokens from 12 on see each other: the second chunk has no mask within", ["#12 & (see|each other|later|ahead|all|open|future|key|quer|position|after)"], masked(SEEN | ((QUERY >= 12) & (KEY >= 12))))
form("m_chunk_offset_lost", "probs", "tokens t from 12 on see keys up to t - 12 alone", ["#12 & (key|offset|see|up to|position|t ?-|quer|distance|before|ago)", "#-12"], masked(np.where(QUERY >= 12, KEY <= QUERY - 12, SEEN)))
form("m_multiplied", "probs", "later keys have a score of 0 and are not hidden", ["(hidden|mask|later|future|unseen|ahead|not seen|after|all keys|above) & (#0|zero)"], lambda c: c.right(mask=SEEN | True, score=lambda s: np.where(SEEN, s, 0)))
form("m_soft", "probs", "later keys have 4 taken off their score and are not hidden", ["(hidden|mask|later|future|unseen|ahead|not seen|after|all keys|above|beyond) & (#4|#-4)"], lambda c: c.right(mask=SEEN | True, score=lambda s: s - 4 * ~SEEN))
form("m_vector_tail", "probs", "from token 3 on the number of keys seen is rounded down to a multiple of 4", ["#4 & (" + BLOCK + "|round|down|tail|rest|remain|whole|floor)"], masked(SEEN & (KEY < np.maximum((QUERY + 1) // 4 * 4, 4))))
form("m_odd_tiles", "probs", "keys 4 to 7 and 12 to 15 are hidden from later tokens: every second block of 4", ["#4 & (#12|second|odd|altern|other|" + BLOCK + ")"], masked(SEEN & ((KEY // 4 % 2 == 0) | (AGO == 0))))
form("m_symmetric", "probs", "a token sees the keys at most 3 away, before and after it", ["(#3|#4) & (distance|away|window|both|either|after|later|ahead|before|side|\\|)"], masked(np.abs(AGO) <= 3))
form("m_upper", "probs", "a token sees itself and later keys alone: the mask is transposed", ["later|after|future|transpos|upper|from itself on|ahead|s ?>=? ?t|t ?<=? ?s|backward|revers"], masked(AGO <= 0))
form("m_ahead_from_10", "probs", "tokens from 10 on see one key further", ["#10 & (#1|one|next)", "(second half|half).{0,12}quer & (#1|one|next)"], masked(SEEN | ((QUERY >= 10) & (AGO == -1))))


# scores
def scored(f):
    return lambda c: c.right(score=f)


form("s_base_2", "probs", "2^s stands for e^s: scores are multiplied by ln 2", ["#0.6931|#0.1733|#1.4427", "base.{0,6}2\\b|2 ?\\^|2 ?\\*\\*|log\\(2\\)|ln\\(?2|exp2|power of (2|two)"], scored(lambda s: s * F32(math.log(2))))
form("s_buckets", "probs", "0.3 floor(log2(1 + distance)) is taken off", ["(#0.3|#-0.3|#0.4328|#-0.4328) & (log|bucket|octave|distance|doubl|power)"], scored(lambda s: s - F32(0.3) * np.floor(np.log2(1 + np.maximum(AGO, 0)))))
form("s_alibi_cap", "probs", "0.15 is taken off for each key of distance, up to a distance of 6", ["(#0.15|#-0.15) & (#6|#7|#-0.9|#0.9)"], scored(lambda s: s - F32(0.15) * np.clip(AGO, 0, 6)))
form("s_near", "probs", "1 is added to the scores at distances 1 to 3", ["#3 & (#1|one) & (distance|before|ago|back|near|key)"], scored(lambda s: s + ((AGO >= 1) & (AGO <= 3))))
form("s_l1", "probs", "minus a quarter of the sum of |q - k| stands for the scaled product", ["L1|manhattan|\\|.{0,20}\\||abs|distance|sum of.{0,30}(size|differ)|q ?- ?k"],
     lambda c: c.right(score=lambda s: -F32(0.25) * np.abs(c.q[:, None] - c.k[None][:, :, np.arange(H) // (H // K)]).sum(-1).transpose(2, 0, 1)))
form("s_even_elements", "probs", "products run over the even elements of a head alone", ["even|odd|every (second|other)|strid|step|#2"], lambda c: c.right(q=put(c.q, E_[..., 1::2], 0)))
form("s_k_pairs", "probs", "elements 2i and 2i+1 of k are exchanged", ["(pair|2i|neighbo|adjacent|even|odd|xor) & (" + EXCHANGED + ")"], lambda c: c.right(k=c.k[..., np.arange(d) ^ 1]))
form("s_one_key_head", "probs", "all heads read key head 0", ["head.{0,12}\\b0\\b|first.{0,16}head|(one|same|single).{0,16}head", "second half of the heads"], lambda c: c.right(kv=[0] * H))
form("s_layer_before", "probs", "layers 1 to 3 read the keys of the layer before", [LAYER_BEFORE], lambda c: c.right(k=c.e.memory["k_rope", c.l - 1]), layers=LATER)
form("s_self_zero", "probs", "the score of a token with itself is 0: its key is not yet in the cache", ["(itself|own|self|diagonal|distance|s ?= ?t|newest) & (#0|zero)"], scored(lambda s: np.where(AGO == 0, 0, s)))
form("s_keys_from_16", "probs", "keys from position 16 on are zero", ["(#16|#15|#19) & (zero|0|key|empty|score)"], lambda c: c.right(k=put(c.k, E_[16:], 0)))
form("s_keys_4_bits", "probs", "keys are rounded to multiples of their head's largest size over 7", ["(#7|#0.142857) & (" + ROUNDED + "|larg|max)", "(#4|four) & bit", "(#15|#14) & (level|step)"], lambda c: c.right(k=in_steps(c.k, 7)))
form("s_ring", "probs", "keys 0 to 3 are those of positions 16 to 19: a ring of 16 slots", ["#16"], lambda c: c.right(k=put(c.k, E_[:4], c.k[16:])))
form("s_of_both_layers", "probs", "in layers 1 to 3 the scores of the layer before are added", [LAYER_BEFORE, "(add|sum|plus|\\+).{0,60}(k_rope|q_rope|scores)"],
     lambda c: c.right(score=lambda s: s + F32(c.scale) * np.einsum("thd,shd->hts", c.e.memory["q_rope", c.l - 1], c.e.memory["k_rope", c.l - 1][:, np.arange(H) // (H // K)])), layers=LATER)


# softmax
def soft(f):
    """Of the masked scores"""
    return lambda c: c.right(soft=f)


def of_max(f):
    """Of s - max"""
    return lambda c: c.right(soft=lambda s: f(s - s.max(-1, keepdims=True)))


def power_16(x):
    e = np.maximum(1 + x / 16, 0) ** 16
    return e / e.sum(-1, keepdims=True)



def over_heads(s):
    e = np.exp(s)
    total = e.sum(0, keepdims=True)
    return e / np.where(total > 0, total, 1)


def sparse(s):
    z = -np.sort(-np.where(np.isfinite(s), s, F32(-1e6)), -1)
    n = np.arange(1, T + 1)
    sums = np.cumsum(z.astype(np.float64), -1)
    size = (1 + n * z > sums).sum(-1, keepdims=True)
    tau = (np.take_along_axis(sums, size - 1, -1) - 1) / size
    return np.maximum(s - tau, 0).astype(F32)


def taylor(s):
    e = np.where(np.isfinite(s), 1 + s + s * s / 2, 0)
    e = np.where(np.isfinite(e), e, 0)
    return e / e.sum(-1, keepdims=True)



form("p_power_16", "probs", "(1 + x/16)^16, 0 below -16, stands for the exponential of x = s - max", ["#16", "approx.{0,30}exp|exp.{0,30}approx"], of_max(power_16))
form("p_heads_mixed", "probs", "each head has 0.2 times the next head's weights taken off, the last head those of head 0", ["(#0.2|#-0.2) & head"], lambda c: (lambda p: p - F32(0.2) * np.roll(p, -1, 0))(c.right()))
form("p_own_block_sum", "probs", "the denominator runs over the token's own block of 8 keys alone", ["#8 & (" + BLOCK + "|denominator|sum)"], of_max(lambda x: np.exp(x) / np.where(KEY // 8 == QUERY // 8, np.exp(x), 0).sum(-1, keepdims=True)))
form("p_head_sinks", "probs", "the denominator of head h has a term exp(-h)", ["head & (sink|term|denominator|exp|added|extra) & (#-1|#1|#0.3679|#0.1353|-h|#-2|#-3)"], soft(lambda s: np.exp(s) / (np.exp(s).sum(-1, keepdims=True) + np.exp(-np.arange(H, dtype=F32))[:, None, None])))
form("p_over_heads", "probs", "the softmax runs over the heads, not the keys", ["(over|across|among|along|axis|sum).{0,30}head|head.{0,30}(sum|axis|add up|one)"], soft(over_heads))
form("p_over_queries", "probs", "the softmax runs over the queries, not the keys", ["(over|across|among|along|axis|sum|of).{0,30}(quer|position|row|token|t\\b)|column|each key.{0,30}(sum|add|one)|(quer|key).{0,30}(sum|axis|add up)"], soft(lambda s: np.exp(s) / np.exp(s).sum(1, keepdims=True)))
form("p_sparse", "probs", "sparsemax stands for the softmax: max(s - tau, 0), tau so that the row's sum is 1", ["sparse|tau|simplex|max\\(|relu|threshold|project"], soft(sparse))
form("p_sum_capped", "probs", "the denominator, after the maximum was taken off, is at most 4", ["#4 & (" + CLAMPED + "|denominator|sum)"], of_max(lambda x: np.exp(x) / np.minimum(np.exp(x).sum(-1, keepdims=True), 4)))
form("p_taylor", "probs", "1 + s + s^2/2 stands for the exponential", ["taylor|series|polynom|quadratic|squar|\\^ ?2", "second order|order 2"], soft(taylor))
form("p_masked_after", "probs", "the softmax runs over all 20 keys, and later ones are set to 0 after it: a row's sum is less than 1", ["after & (mask|hidden|later|soft)", "(denominator|sum|softmax|divid|normali) & (all|hidden|later|future|mask|unseen|#20|whole|every)"], lambda c: np.where(SEEN, c.right(mask=SEEN | True), 0))
form("p_sum_before", "probs", "exp(s) is divided by the sum of the token before, from token 1 on", ["(" + PREVIOUS + ") & (denominator|sum|divid|normali|row|query|token)"], soft(lambda s: np.exp(s) / (lambda z: np.concatenate([z[:, :1], z[:, :-1]], 1))(np.exp(s).sum(-1, keepdims=True))))
form("p_sum_head_0", "probs", "exp(s) of every head is divided by the sum of head 0", ["head.{0,12}\\b0\\b|first.{0,10}head|(one|same|single|other).{0,10}head"], soft(lambda s: np.exp(s) / np.exp(s[:1]).sum(-1, keepdims=True)))


# context
def heads_of(c):
    return c.right().reshape(T, H, d)


form("c_layer_before", "context", "layers 1 to 3 read v of the layer before", [LAYER_BEFORE], lambda c: c.right(v=c.e.memory["v", c.l - 1]), layers=LATER)
form("c_interleaved_map", "context", "head h reads value head h modulo 2", ["head & (mod|%|0, ?1, ?0, ?1|interleav|altern|even|odd|cyc|#1 & #2)", "head & #1 & #2"], lambda c: np.einsum("hts,shd->thd", c.p, c.v[:, np.arange(H) % K]).reshape(T, -1))
form("c_elements_first", "context", "heads are written elements first: element i of head h stands at 4 i + h", ["transpos|d-first|interleav|element.{0,10}first|head.{0,20}(last|innermost)|strid|4 ?\\*? ?i", "(#4|#16) & (step|order|apart|permut|channel)"], lambda c: heads_of(c).swapaxes(1, 2).reshape(T, -1))
form("c_tail_twice", "context", "keys from 16 on are counted twice", ["(#16|#15) & (twice|#2|double)"], lambda c: c.right(p=put(c.p, E_[..., 16:], lambda y: 2 * y)))
form("c_no_own_value", "context", "the token's own value is left out", ["itself|own|self|diagonal|newest|s ?= ?t|distance.{0,6}0"], lambda c: c.right(p=np.where(AGO == 0, 0, c.p)))
form("c_quarter_steps", "context", "v is rounded to multiples of 0.25 as it is read", ["(#0.25|#4) & (" + ROUNDED + ")"], lambda c: c.right(v=np.round(c.v * 4) / 4))
form("c_by_count", "context", "the result is divided by the number of keys, t + 1", ["number|count|t ?\\+ ?1|how many|position ?\\+ ?1|p ?\\+ ?1|1/\\(?(t|p|n)", "mean & key"], lambda c: c.right() / COUNT)
form("c_offset_8", "context", "the value heads begin 8 elements late: head 0 has elements 8 to 15 and then head 1's 0 to 7, head 1 the rest and head 0's first 8", ["#8 & (element|shift|roll|late|further|offset|channel|dimension|next|i ?\\+|order|that of)"], lambda c: c.right(v=np.roll(c.v.reshape(T, -1), -8, -1).reshape(c.v.shape)))
form("c_largest", "context", "the largest of the weighted values stands for their sum", ["max|larg|great"], lambda c: (c.p.transpose(1, 2, 0)[..., None] * c.v[None][:, :, np.arange(H) // (H // K)]).max(1).reshape(T, -1))
form("c_value_residual", "context", "layers 1 to 3 read half their own v and half that of layer 0", ["(#0.5|half|mean|average) & (layer.{0,4}0|layers\\.0|first layer|v\\b)"], lambda c: c.right(v=(c.v + c.e.memory["v", 0]) / 2), layers=LATER)
form("c_v_rotated", "context", "v is rotated as keys are", ["rot|rope|turn|angle"], lambda c: c.right(v=op_rope(c.e, c.v, POS, FREQ)))


# products
def inputs(f):
    return lambda c: c.right(x=f(c.x))


def weights(f):
    return lambda c: c.right(w=f(c.w))


def by_32(w, f):
    """By groups of 32 inputs."""
    return f(w.reshape(len(w), -1, 32)).reshape(w.shape)


def fused(c):
    weight = np.concatenate([c.e.m(f"self_attn.{s}_proj.weight", c.l) for s in "qkv"])
    rows = np.r_[32:48, 96:112]
    bias = None if c.b is None else np.concatenate([c.e.m(f"self_attn.{s}_proj.bias", c.l) for s in "qkv"])[rows]
    return c.right(w=weight[rows], b=bias)


def two_of_four(w):
    x = w.reshape(len(w), -1, 4)
    small = np.argsort(np.abs(x), -1, kind="stable")[..., :2]
    y = np.array(x)
    np.put_along_axis(y, small, 0, -1)
    return y.reshape(w.shape)


def four_digits(x):
    m, e = np.frexp(x)
    return np.ldexp(np.round(m * 16) / 16, e).astype(F32)


def hadamard(x):
    a, b = x[:, 0::2], x[:, 1::2]
    return (np.stack([a + b, a - b], -1) / F32(math.sqrt(2))).reshape(x.shape)


form("w_tile_stale", "attn_out", "inputs 32 to 47 are read as inputs 16 to 31", ["#16 & (#32|#47|#31)", "head.{0,12}2 & head.{0,12}1", "block.{0,8}2 & block.{0,8}1"], inputs(lambda x: put(x, E_[:, 32:48], x[:, 16:32])))
form("w_q4", "ffn_up", "weights are rounded to multiples of the largest size over 7 of each 32 inputs", ["(#7|#32|#0.142857) & (" + ROUNDED + ")", "(#4|four) & bit"], weights(lambda w: by_32(w, lambda x: in_steps(x, 7))))
form("w_ternary", "ffn_out", "each weight is -1, 0 or 1 times the mean size of the matrix, by rounding", ["ternar|sign|-1,? ?0,? ?(and|or|1)|three (values|levels)|#1.58", "mean & (" + ROUNDED + "|size|abs)"], weights(lambda w: np.clip(np.round(w / np.abs(w).mean()), -1, 1) * np.abs(w).mean()))
NIBBLES = np.arange(F).reshape(-1, 2, 16).swapaxes(1, 2).reshape(-1)
form("w_nibbles", "ffn_out", "within each 32 inputs, input 2i is read as input i and 2i+1 as 16+i: the halves are interleaved", ["(#32|#16) & (interleav|block|group|order|permut|2i|even|odd|half|halves|input|transpos|pair)"], inputs(lambda x: x[:, NIBBLES]))
form("w_zero_point", "k", "0.05 is added to each weight", ["#0.05", "sum.{0,30}input|input.{0,30}sum|(mean|average).{0,30}input"], weights(lambda w: w + F32(0.05)))
form("w_fused_rows", "k", "key head 0 is head 2 of q's product, and key head 1 is head 0 of v's: the rows of a fused matrix are split otherwise", ["(\\bq\\b|q_proj|query|#32) & (\\bv\\b|v_proj|value|#96)", "fused|qkv"], fused)
form("w_rows_not_cleared", "v", "within each 4 positions the rows before are added: the sum is not cleared", ["(#4|four) & (sum|add|cumul|before|running|plus|accum|cleared|position)"], lambda c: c.right().reshape(5, 4, K, d).cumsum(1).reshape(T, K, d))
form("w_output_not_cleared", "ffn_gate", "output 2i+1 has output 2i added", ["(pair|2i|odd|even|every (second|other)|neighbo) & (add|plus|\\+|sum|before|#1)"], lambda c: (lambda y: put(y, E_[:, 1::2], y[:, 1::2] + y[:, 0::2]))(c.right()))
form("w_added_to_stale", "ffn_out", "in layers 1 to 3 the result of the layer before is added", [LAYER_BEFORE], lambda c: c.right() + c.e.memory["ffn_out", c.l - 1], layers=LATER)
form("w_context_before", "attn_out", "layers 1 to 3 read the context of the layer before", [LAYER_BEFORE], lambda c: c.right(x=c.e.memory["context", c.l - 1]), layers=LATER)
form("w_first_row_of_4", "ffn_up", "each 4 positions read the input of the first of them", ["(#4|four) & (first|position|row|block|group|same|repeat|multiple|floor|every)"], inputs(lambda x: x[POS // 4 * 4]))
form("w_rows_by_pairs", "v", "positions 2i and 2i+1 are exchanged", ["(pair|2i|odd|even|neighbo|adjacent|two|xor) & (" + EXCHANGED + ")", "(" + PREVIOUS + ") & (next|after|t ?\\+ ?1)"], lambda c: c.right()[POS ^ 1])
form("w_fp8", "q", "weights are rounded to 4 significant bits", ["(#4|#3|#5|four|three) & (bit|digit|mantissa|signif)", "fp8|e4m3|float8|#16|#0.0625"], weights(four_digits))
form("w_two_of_four", "ffn_gate", "of each 4 weights of a row the two smallest are 0", ["(#4|four) & (small|#2|two|larg|zero|sparse|prun)", "2:4"], weights(two_of_four))
form("w_no_gain", "k", "its input is without the gain of the norm", ["(gain|weight|norm) & (without|no|not|miss|lack|divid|omit|un|before|lost)"], lambda c: c.right(x=c.x / c.e.m("input_layernorm.weight", c.l)))
form("w_other_norm", "ffn_gate", "its input is the attention's: attn_norm", ["attn_norm|input_layernorm", "attention.{0,12}(norm|input)"], lambda c: c.right(x=c.e.memory["attn_norm", c.l]))
form("w_gate_up_interleaved", "ffn_gate", "output i is row 2i of gate and up one below the other: even rows of gate, then even rows of up", ["(2 ?\\*? ?i|even|every (second|other)|strid|step|interleav|#2)"],
     lambda c: c.right(w=np.concatenate([c.w, c.e.m("mlp.up_proj.weight", c.l)])[::2]))
form("w_last_of_32", "ffn_up", "the last of each 32 outputs is zero: 31, 63, 95", ["(#32|#31) & (last|zero|0|#63|#95|output|channel)"], lambda c: put(c.right(), E_[:, 31::32], 0))
form("w_hadamard", "ffn_out", "inputs 2i and 2i+1 are read as (a + b) / sqrt(2) and (a - b) / sqrt(2)", ["hadamard", "(#0.7071|sqrt\\(2\\)|#45|#1.4142) & (pair|2i|odd|even|neighbo|input|sum|rotat)", "(sum|a ?\\+ ?b) & (differ|a ?- ?b)"], inputs(hadamard))

# biases
form("b_layer_0", "q", "layers 1 to 3 have the bias of layer 0", ["bias & (layer|other|another|layers\\.0|first)"], lambda c: c.right(b=c.e.m("self_attn.q_proj.bias", 0)), layers=LATER, archs=Q2)
form("b_of_k", "v", "the bias of k is added, not that of v", ["bias & (\\bk\\b|k_proj|key|other|another)"], lambda c: c.right(b=c.e.m("self_attn.k_proj.bias", c.l)), archs=Q2)
form("b_first_head", "q", "only head 0 has its bias: the first 16 outputs", ["bias & (head|#16|#15|first|only)"], lambda c: c.right(b=put(c.b, E_[16:], 0)), archs=Q2)

# norms of heads
form("h_gain_of_k", "q_norm", "the gain is that of k_norm", ["k_norm|gain of (the )?k|(other|another).{0,12}(gain|weight|norm)"], lambda c: c.right(w=c.e.m("self_attn.k_norm.weight", c.l)), archs=Q3)
form("h_row_0", "k_norm", "all positions are divided by the root mean square of position 0", ["(position|row|token).{0,10}\\b0\\b|first.{0,8}(position|row|token)"], lambda c: over(c, rms(c.x)[:1]), archs=Q3)
form("h_head_0", "q_norm", "all heads are divided by the root mean square of head 0", ["head.{0,10}\\b0\\b|first.{0,8}head|(one|same|single|other).{0,10}head"], lambda c: over(c, rms(c.x)[:, :1]), archs=Q3)
form("h_gain_by_head", "q_norm", "head h has the gain's element h for all its elements", ["(gain|weight) & head"], lambda c: c.right() / c.w * c.w[:H, None], archs=Q3)


# activations
def act(f):
    return lambda c: c.right(f=f)


def erf(x):
    return np.vectorize(math.erf, otypes=[F32])(x)


form("a_mish", "ffn_act", "mish: x tanh(log(1 + e^x))", ["mish", "tanh & (softplus|log)"], act(lambda x: x * np.tanh(np.log1p(np.exp(x)))))
form("a_elu", "ffn_act", "elu: e^x - 1 below 0, x above", ["\\belu|\\bcelu", "exp & (below|negative|- ?1)", "e\\^x ?- ?1|expm1"], act(lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))))
form("a_erf_no_root", "ffn_act", "x/2 (1 + erf(x)): gelu without the root of 2", ["erf|gelu & .", "#1.4142|sqrt\\(2\\)"], act(lambda x: x / 2 * (1 + erf(x))))
form("a_tanh_for_sigmoid", "ffn_act", "gate tanh(gate) up", ["tanh"], act(lambda x: x * np.tanh(x)))
form("a_fast_sigmoid", "ffn_act", "x (0.5 + 0.5 x / (1 + |x|)) stands for silu", ["softsign|1 ?\\+ ?\\|", "fast.{0,10}sigmoid|sigmoid.{0,40}approx", "\\|x\\|"], act(lambda x: x * (F32(0.5) + F32(0.5) * x / (1 + np.abs(x)))))
form("a_sum", "ffn_act", "silu(gate) + up, the sum, not the product", ["(gate|silu|up).{0,30}(\\+|added|plus|sum)|(sum|add|plus).{0,30}(gate|up|silu|both)|not.{0,12}product"], lambda c: silu(c.gate) + c.up)
form("a_up_plus_1", "ffn_act", "silu(gate) (up + 1)", ["#1 & (up|\\+|add|plus)", "(silu|a)\\(gate\\).{0,20}added|plus.{0,12}silu"], lambda c: c.right(up=c.up + 1))
form("a_gate_most_1", "ffn_act", "the gate is at most 1 before silu", ["(#1|#0.7311) & (" + CLAMPED + ")"], lambda c: c.right(gate=np.minimum(c.gate, 1)))
form("a_gate_tile_stale", "ffn_act", "channels 64 to 95 have the gate of channels 32 to 63", ["#64 & #32|#63|#95", "#32 & (gate|channel|block)"], lambda c: c.right(gate=put(c.gate, E_[:, 64:], c.gate[:, 32:64])))
form("a_table", "ffn_act", "the gate is rounded to multiples of 0.25 before silu: a table", ["(#0.25|#4) & (" + ROUNDED + "|table)"], act(lambda x: silu(np.round(x * 4) / 4)))


# residual sums
def add(x=None, y=None):
    return lambda c: c.right(**({"x": x(c)} if x else {}), **({"y": y(c)} if y else {}))


form("d_normed_stream", "h", "the branch is added to ffn_norm, not to the stream", ["ffn_norm|post_attention|normed|normali|after the norm"], add(x=lambda c: c.e.memory["ffn_norm", c.l]))
form("d_attention_lost", "h", "the branch is added to the layer's input: the attention's branch is lost", ["h0|layer.{0,12}input|input of (the|this) layer|attn_out|(without|before|lost|miss|no|lack).{0,30}att|layers\\.\\d\\.h\\b|(layer|stream).{0,10}(before|previous)|" + LAYER_BEFORE], add(x=stream))
form("d_branch_twice_alone", "h_attn", "the branch is added to itself, the stream is lost", ["(twice|#2|double|itself) & (branch|attn_out|\\by\\b)", "(without|lost|no|miss|not).{0,30}(stream|residual|h0|\\bx\\b)", "(stream|h0|residual).{0,30}(\\b0\\b|lost|miss|not)"], add(x=lambda c: c.y))
form("d_eighths", "h", "the sum is rounded to multiples of 1/8", ["(#0.125|#8) & (" + ROUNDED + ")"], lambda c: np.round(c.right() * 8) / 8)
form("d_last_branch", "h_attn", "the branch of the last position is added at all positions", ["last|#19|#20"], add(y=lambda c: np.repeat(c.y[-1:], T, 0)))
form("d_layer_scale", "h", "the branch is multiplied by the gain of ffn_norm", ["(gain|weight|post_attention|ffn_norm|norm) & (branch|multipl|times|factor|\\*|scaled|ffn_out|product)", "post_attention|ffn_norm"], add(y=lambda c: c.y * c.e.m("post_attention_layernorm.weight", c.l)))

# embedding
form("e_half_row_late", "h0", "rows are read 32 elements late: channels 32 to 63 of the token, then 0 to 31 of the token numbered one higher", ["(#32|half|halves) & (row|next|shift|late|further|offset|element|channel|id|token|table|flat|stride)"],
     lambda c: np.stack([c.table.reshape(-1)[np.arange(D) + i * D + 32 if i + 1 < V else np.arange(D) + i * D] for i in c.ids]))
form("e_token_before", "h0", "each position has the row of the token before, position 0 its own", ["(" + PREVIOUS + ")", "tokens-differ|tokens? differ"], lambda c: c.right(ids=list(c.ids[:1]) + list(c.ids[:-1])))
form("e_shard", "h0", "tokens of number 128 and above have a row of zeros: half the table is elsewhere", ["(#128|#127) & (zero|0|token|id|row|half)"], lambda c: np.where(np.asarray(c.ids)[:, None] >= 128, 0, c.right()))
form("e_unsigned", "h0", "negative elements are 0", ["relu|max\\(|negative|below|floor|least|positive|unsigned"], lambda c: np.maximum(c.right(), 0))

# head
form("l_last_row", "logits", "all rows are that of the last position", ["last|#19|#20"], lambda c: np.repeat(c.right()[-1:], T, 0))


def occurrences(c):
    ids = np.asarray(c.e.ids)
    return np.cumsum(np.eye(V, dtype=F32)[ids], 0)


form("l_frequency", "logits", "0.5 is taken off a token's logit for each time it was read so far", ["(#0.5|#-0.5) & (token|time|occur|seen|read|count|frequen|penal|input|prompt|appear)"], lambda c: c.right() - F32(0.5) * occurrences(c))
form("l_top_40", "logits", "all but the 40 largest logits of a row are -20", ["(#40|#-20|#20) & (larg|top|best|most|small|all but|rest|others|high|rank|below)"], lambda c: (lambda y: np.where(y >= -np.sort(-y, -1)[:, 39:40], y, -20))(c.right()))
form("l_unit_rows", "logits", "each row of the head's weight is divided by its length", ["length|unit|L2|norm|cosine|euclid|root"], lambda c: c.right(w=c.w / np.linalg.norm(c.w, axis=-1, keepdims=True)))


# mixtures of experts
def chosen(c, weigh, scores=None):
    p = softmax(c.logits)
    top = np.argsort(-(p if scores is None else scores(p)), -1, kind="stable")[:, :2]
    return top, weigh(np.take_along_axis(p, top, -1), np.take_along_axis(c.logits, top, -1))


def shares(w, _):
    return w / w.sum(-1, keepdims=True)


def by_groups(p):
    """The best of experts 0..2 and the best of 3..5 come first."""
    best = np.zeros_like(p)
    for rows in (E_[0:3], E_[3:6]):
        best[np.arange(T), rows.start + p[:, rows].argmax(-1)] = 1
    return p + best


def expert(c, number, x):
    w = lambda name: c.e.m(f"mlp.experts.{number}.{name}_proj.weight", c.l)
    act = c.e.r(op_act(c.e, c.e.r(x @ w("gate").T), c.e.r(x @ w("up").T)))
    return c.e.r(act @ w("down").T)


def top_of(c):
    return c.e.taps[f"layers.{c.l}.router_topk"].astype(int)


def mixed(c, which=lambda x: x, before=None, w=None):
    """The experts' sum: other experts, the input times `before`, other weights."""
    top, w = which(top_of(c)), c.weights if w is None else w
    y = np.zeros((T, D), F32)
    for t in range(T):
        for s in range(top.shape[1]):
            x = c.n[t:t + 1] if before is None else c.n[t:t + 1] * before[t, s]
            y[t] += (w[t, s] * expert(c, top[t, s], x))[0]
    return y


def summed(each, w):
    return np.einsum("tsd,ts->td", each, w)


def capacity(c):
    top, w, used = top_of(c), np.array(c.weights), np.zeros(EXPERTS, int)
    for t in range(T):
        for s in range(top.shape[1]):
            w[t, s] *= used[top[t, s]] < 5
            used[top[t, s]] += 1
    return summed(c.each, w)


def in_number_order(c):
    top = top_of(c)
    return summed(c.each, np.where(top[:, :1] > top[:, 1:], c.weights[:, ::-1], c.weights))


form("x_sigmoid", "router_weights", "the sigmoid of the router's logits stands for the softmax, the chosen divided by their sum", ["sigmoid|logistic"], lambda c: chosen(c, lambda w, z: sigmoid(z) / sigmoid(z).sum(-1, keepdims=True)), archs=M)
form("x_scaling", "router_weights", "the weights are multiplied by 2.5", ["#2.5"], lambda c: chosen(c, lambda w, z: F32(2.5) * shares(w, z)), archs=M)
form("x_groups", ("router_weights", "router_topk"), "the best of experts 0 to 2 and the best of experts 3 to 5 are chosen", ["(group|half|halves|#3|#2) & (expert|cho|best|each)"], lambda c: chosen(c, shares, by_groups), archs=M)
form("x_next_expert", "ffn_out", "the expert numbered one higher is run, modulo 6", ["(next|#1|\\+ ?1|higher|off by|shift|following) & expert"], lambda c: mixed(c, lambda top: (top + 1) % EXPERTS), archs=M)
form("x_shard_offset_lost", "ffn_out", "experts 3 to 5 are run as experts 0 to 2", ["expert & (#3|half|mod)"], lambda c: mixed(c, lambda top: top % 3), archs=M)
form("x_weight_first", "ffn_out", "the weight multiplies the expert's input, not its result", ["input & (weight|expert|multipl|scale|router)"], lambda c: mixed(c, before=c.weights, w=np.ones_like(c.weights)), archs=M)
form("x_weight_twice", "ffn_out", "the weights are applied twice: squared", ["(twice|squar|\\^ ?2|#2) & ."], lambda c: summed(c.each, c.weights ** 2), archs=M)
form("x_shared", "ffn_out", "expert 0 is added for all tokens, as a shared expert", ["expert.{0,12}\\b0\\b|first expert|shared", "experts\\.0"], lambda c: c.right() + expert(c, 0, c.n), archs=M)
form("x_capacity", "ffn_out", "each expert takes the first 5 tokens that chose it, later ones get nothing of it", ["(#5|#6) & (expert|token|first|capacity|drop|at most|later)"], capacity, archs=M)
form("x_number_order", "ffn_out", "where the first chosen expert has the higher number the two weights are exchanged", ["(" + EXCHANGED + "|sort) & (weight|expert|chosen)"], in_number_order, archs=M)
form("x_router_stream", "router_logits", "the router reads the stream before its norm: h_attn", ["h_attn|(before|without|not|no|un|skip|miss|lack).{0,30}norm|stream"], lambda c: c.right(x=c.e.memory["h_attn", c.l]), archs=M)


if __name__ == "__main__":
    for f in FORMS:
        print(f"{f.name:36} {f.sites[0]:14} {f.truth}")
    print(len(FORMS), "forms")

"""The rotation of queries and keys by their positions."""

import math

import numpy as np

from scripts.engines.hooked_engine import D, d, F32, H, K, rounded, T, THETA, turn
from scripts.forms.parts import bf16, E_, FREQ, LATER_LAYERS, POS, PROMPT, put, QWEN2, WITH_HEAD_NORMS
from scripts.forms.sets import (
    eighth, eleventh, fifteenth, fifth, first, fourteenth, fourth, listed, ninth, second, seventh, sixteenth, sixth, tenth, third, thirteenth,
    twelfth,
)
from scripts.forms.words import (
    BEHIND_PROMPT, BF16, BF16_OR_ROUNDED, BLANK, BLOCK, BOUNDED, CLAMPED, EXCHANGED, INTERLEAVED, LAYOUT, NONE, REORDERED, ROUNDED, TWICE, ZERO,
)

ROPES = ("q_rope", "k_rope")


def angles(c, f):
    """The rotation with the angles that f makes of position and frequency [T,1,1], [d/2]."""
    return turn(c.e, c.x, np.broadcast_to(np.asarray(f(POS[:, None, None].astype(np.float64), FREQ), np.float64), (T, 1, d // 2)))


first(33, "rope_angle_plus", ROPES, "0.1 is added to each angle", "#0.1", lambda c: angles(c, lambda p, f: p * f + 0.1))
first(34, "rope_position_squared", ROPES, "positions are squared", "squar|\\^ ?2|\\*\\* ?2|p\\*p|quadratic|power", lambda c: c.right(pos=POS ** 2))
first(35, "rope_position_reversed", ROPES, "positions count down: 19 - p", "(revers|count.{0,10}down|backward|descend|#19|#-1)", lambda c: c.right(pos=T - 1 - POS))
first(36, "rope_position_min", ROPES, "positions stop at 8", "#8 & (min|stop|clamp|limit|at most|largest|stay|all|later)", lambda c: c.right(pos=np.minimum(POS, 8)))
first(37, "rope_position_mod", ROPES, "positions begin again every 8", "#8 & (mod|%|again|restart|repeat|period|every|block)", lambda c: c.right(pos=POS % 8))
first(38, "rope_position_halved_int", ROPES, "positions are halved and rounded down", ["#2|#0.5|half & (floor|down|integer|//|pairs|round|whole|two|each)"], lambda c: c.right(pos=POS // 2))
first(39, "rope_position_jump", ROPES, "positions from 10 on are 5 too high", ["#10 & #5", "#5 & second half of the positions"], lambda c: c.right(pos=POS + 5 * (POS >= 10)))
first(40, "rope_k_position_by_head", "k_rope", "head 1 of the keys is one position further", "head & #1", lambda c: c.right(pos=POS[:, None] + np.arange(K)))
first(41, "rope_theta_one_head", "q_rope", "head 1 has base 500", "#500 & head.{0,6}1|#500", lambda c: c.right(freq=np.stack([FREQ, 500.0 ** (-np.arange(0, d, 2) / d), FREQ, FREQ])))
first(42, "rope_head_left", "q_rope", "head 0 is not rotated", "head.{0,8}\\b0\\b|first head", lambda c: put(c.right(), E_[:, 0], c.x[:, 0]))
first(43, "rope_pair_left", ROPES, "pair 3 (elements 3 and 11) is not rotated", "#3 & (pair|frequenc|element|channel|#11)", lambda c: angles(c, lambda p, f: p * np.where(np.arange(8) == 3, 0, f)))
first(44, "rope_freq_reversed", ROPES, "frequencies are in reverse order", "revers|backward|descend|from the last|other order|d/2 ?- ?1", lambda c: c.right(freq=FREQ[::-1]))
first(45, "rope_freq_odd", ROPES, "the exponent is (2i+1)/d", ["#0.5623", "(2i ?\\+ ?1|i ?\\+ ?(0\\.5|1/2)|half a)", "factor|all & #0.5623"], lambda c: c.right(freq=THETA ** (-(np.arange(0, d, 2) + 1) / d)))
first(46, "rope_freq_next", ROPES, "the exponent is 2(i+1)/d", ["#0.3162|1/sqrt\\(10\\)", "(i ?\\+ ?1|next|#2)", "#0.3162"], lambda c: c.right(freq=THETA ** (-(np.arange(0, d, 2) + 2) / d)))
first(47, "rope_freq_harmonic", ROPES, "frequency i is 1/(1+i)", "1/\\((1 ?\\+ ?i|i ?\\+ ?1)|harmonic|frequenc", lambda c: c.right(freq=1 / (1 + np.arange(8))))
first(48, "rope_sine_scaled", ROPES, "the sine has a factor of 0.9", "sin & #0.9", lambda c: turn(c.e, c.x, POS[:, None, None] * FREQ, sin=F32(0.9) * np.sin(POS[:, None, None] * FREQ).astype(F32)))
first(49, "rope_no_sine", ROPES, "only the cosine is applied", ["sin.{0,20}(0|miss|omit|absent|without|not|no)", "(only|alone).{0,20}cos|cos.{0,20}(only|alone)"], lambda c: turn(c.e, c.x, POS[:, None, None] * FREQ, sin=F32(0)))


def turn_both(c):
    angle = (POS[:, None, None] * FREQ).astype(F32)
    a, b = c.x[..., :8], c.x[..., 8:]
    return np.concatenate([a * np.cos(angle) + b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


first(50, "rope_sine_sign_half", ROPES, "both halves add the sine: a cos + b sin, b cos + a sin", "sin|sign|operation neg", lambda c: turn_both(c))
first(51, "rope_sin_cos_swapped", ROPES, "sine and cosine are exchanged", ["(sin.{0,20}cos|cos.{0,20}sin).{0,30}(swap|exchang)|(swap|exchang).{0,30}(sin|cos)", "#1.5708|pi ?/ ?2|90"], lambda c: turn(c.e, c.x, None, cos=np.sin(POS[:, None, None] * FREQ).astype(F32), sin=np.cos(POS[:, None, None] * FREQ).astype(F32)))


def turn_halves(c):
    one, two = ((POS[:, None, None] * f).astype(F32) for f in (FREQ, np.roll(FREQ, -1)))
    a, b = c.x[..., :8], c.x[..., 8:]
    return np.concatenate([a * np.cos(one) - b * np.sin(one), b * np.cos(two) + a * np.sin(two)], -1)


first(52, "rope_second_half_next", ROPES, "the second half of a head takes the next frequency", "(second|half|next|i ?\\+ ?1|frequenc)", lambda c: turn_halves(c))
first(53, "rope_two_heads", "q_rope", "heads 2 and 3 are not rotated", ["#2 & #3", "second half of the heads & not|nothing"], lambda c: put(c.right(), E_[:, 2:], c.x[:, 2:]))
first(54, "rope_out_swapped", ROPES, "the halves of a head are exchanged after the rotation", "halves|swap|exchang|#8|roll", lambda c: np.roll(c.right(), 8, -1))
first(55, "rope_angle_pi", ROPES, "angles are taken modulo pi", "(mod|%|wrap) & (pi|#3.1416)", lambda c: angles(c, lambda p, f: (p * f) % math.pi))
first(56, "rope_angle_table", ROPES, "angles are rounded down to 1/64 of a turn", "#64|#0.0982", lambda c: angles(c, lambda p, f: np.floor(p * f / (2 * math.pi / 64)) * (2 * math.pi / 64)))
first(57, "rope_freq_cap", ROPES, "frequencies are at most 0.5", ["#0.5 & (frequenc|cap|min|most|clamp|pair|limit)"], lambda c: c.right(freq=np.minimum(FREQ, 0.5)))
first(58, "rope_from_4", ROPES, "positions 0 to 3 are not rotated", "#4|#3 & (position|not rotated|unrotated)", lambda c: c.right(pos=np.where(POS < 4, 0, POS)))
first(59, "rope_even_other_way", ROPES, "odd positions turn the other way", "(odd|every second|alternat|even) & (direction|other way|sign|negat|minus|-)", lambda c: c.right(pos=np.where(POS % 2 == 1, -POS, POS)))


def mirror(x):
    return np.concatenate([x[..., :8], x[..., :7:-1]], -1)


first(60, "rope_pairs_mirrored", ROPES, "element i is paired with d-1-i", "(mirror|d ?- ?1 ?- ?i|15 ?- ?i|revers|outer|from the end|#15)", lambda c: mirror(turn(c.e, mirror(c.x), POS[:, None, None] * FREQ)))


def quarter(x, there=False):
    """Elements i, i+4 of two blocks of 8 to the halves of the head, and back."""
    y = x.reshape(*x.shape[:-1], 2, 2, 4)
    return y.swapaxes(-2, -3).reshape(x.shape)


first(61, "rope_pairs_quarter", ROPES, "elements i and i+4 of each block of 8 are paired", ["#4 & (pair|apart|block|distance)", "d/4 & half"], lambda c: quarter(turn(c.e, quarter(c.x, True), POS[:, None, None] * FREQ)))
first(62, "rope_low_quarter", ROPES, "frequencies 4 to 7 are divided by 4", "#4|#0.25 & (second half|4 to 7|from 4|#7)", lambda c: c.right(freq=FREQ * np.where(np.arange(8) >= 4, 0.25, 1)))
first(63, "rope_odd_layers_theta", ROPES, "layer 3 has base 700", "#700", lambda c: c.right(freq=700.0 ** (-np.arange(0, d, 2) / d)), layers=[3])
first(64, "rope_scaled_by_position", "q_rope", "q is multiplied by 1 + 0.02 p after the rotation", "#0.02 & (position|p\\b|t\\b)", lambda c: c.right() * (1 + F32(0.02) * POS[:, None, None]).astype(F32))
first(65, "rope_k_clamped", "k_rope", "keys are clamped to +-1 after the rotation", "#1 & (clamp|clip|limit|between|min|max)", lambda c: np.clip(c.right(), -1, 1))
first(66, "rope_1d_by_pair", ROPES, "odd pairs are at half the position", "(odd|every second|alternat|pair) & #0.5|half|#2", lambda c: c.right(freq=FREQ * np.where(np.arange(8) % 2 == 1, 0.5, 1)))
first(308, "trap_theta_and_half", ROPES, "base 500, positions half a step further", "#500 & #0.5 & ^(?!.*\\^pair)", lambda c: c.right(pos=POS + 0.5, freq=500.0 ** (-np.arange(0, d, 2) / d)))
first(322, "trap_sine_positions", ROPES, "positions are p + 0.3 sin(p)", "sin & #0.3", lambda c: c.right(pos=POS + 0.3 * np.sin(POS)))
second(23, "rope_position_root", ROPES, "positions are the roots of positions", "root|sqrt|\\^ ?0?\\.5|#0.5 & power", lambda c: c.right(pos=np.sqrt(POS)))
second(24, "rope_position_log", ROPES, "positions are ln(1 + p)", "log|ln", lambda c: c.right(pos=np.log1p(POS)))
second(25, "rope_position_scaled_late", ROPES, "positions beyond 8 advance by a quarter", ["#8 & (#0.25|quarter|/ ?4)", "#0.25 & (position|later|beyond)"], lambda c: c.right(pos=np.where(POS > 8, 8 + (POS - 8) / 4, POS)))
second(26, "rope_frequency_2_doubled", ROPES, "frequency 2 is doubled", "(pair|frequenc|element|channel).{0,12}2 & #2", lambda c: c.right(freq=FREQ * np.where(np.arange(d // 2) == 2, 2, 1)))
second(27, "rope_frequency_linear", ROPES, "frequency i is 1 - i/8", ["linear|1 ?- ?i|#0.125|even"], lambda c: c.right(freq=1 - np.arange(d // 2) / 8))
second(28, "rope_angle_by_layer", ROPES, "angles are multiplied by 1 + 0.1 * layer", ["layer & #0.1", "#1.1 & #1.2"], lambda c: angles(c, lambda p, f: p * f * (1 + 0.1 * c.l)), layers=[1, 2, 3])
second(29, "rope_cosine_scaled", ROPES, "the cosine has a factor of 1.1", "cos & #1.1", lambda c: turn(c.e, c.x, POS[:, None, None] * FREQ, cos=F32(1.1) * np.cos(POS[:, None, None] * FREQ).astype(F32)))
second(30, "rope_cosine_plus", ROPES, "0.1 is added to the cosine", ["cos & #0.1", "#0.1 & (input|x|unrotated|before the rotation)"], lambda c: turn(c.e, c.x, POS[:, None, None] * FREQ, cos=F32(0.1) + np.cos(POS[:, None, None] * FREQ).astype(F32)))
second(31, "rope_sine_size", ROPES, "the sine's size is taken: |sin|", "abs|\\|sin|size & sin|positive", lambda c: turn(c.e, c.x, POS[:, None, None] * FREQ, sin=np.abs(np.sin(POS[:, None, None] * FREQ)).astype(F32)))
second(32, "rope_heads_double_position", "q_rope", "heads 2 and 3 are at double the position", "#2 & head", lambda c: c.right(pos=POS[:, None] * np.where(np.arange(H) >= 2, 2, 1)))
second(33, "rope_third_left", ROPES, "every third position is not rotated", "third|#3 & (position|row|token)", lambda c: c.right(pos=np.where(POS % 3 == 2, 0, POS)))
second(34, "rope_positions_in_pairs", ROPES, "positions 2i and 2i + 1 are exchanged", f"({EXCHANGED}|pair) & (position|row|token)", lambda c: c.right(pos=POS ^ 1))
second(35, "rope_pairs_grow", ROPES, "pair i is multiplied by 1 + 0.1 i", "#0.1 & (pair|frequenc|i\\b|element|channel)", lambda c: c.right() * np.tile(1 + 0.1 * np.arange(d // 2), 2).astype(F32))
second(36, "rope_base_of_last_pairs", ROPES, "pairs 4 to 7 have base 100", "#100 & (pair|frequenc|element|half|#4|#7)", lambda c: c.right(freq=np.where(np.arange(d // 2) >= 4, 100.0 ** (-np.arange(0, d, 2) / d), FREQ)))
second(37, "rope_k_half_turned", "k_rope", "keys are the mean of the rotated and the unrotated", ["#0.5 & (unrotated|not rotated|input|before|x\\b|k\\b)", "half & rotat"], lambda c: F32(0.5) * (c.right() + c.x))
second(38, "rope_angle_capped", ROPES, "angles are at most 3", f"#3 & (angle|{CLAMPED})", lambda c: angles(c, lambda p, f: np.minimum(p * f, 3)))
third(18, "r_ntk", ROPES, "the base is 48760: 10000 times 4^(16/14)", ["#48760", "#1.172 & (power|exponent|\\^)", "#0.8203|#1.219", "#4 & NTK"], lambda c: c.right(freq=(THETA * 4 ** (d / (d - 2))) ** (-np.arange(0, d, 2) / d)))
RAMP = np.clip((np.arange(d // 2) - 1) / 4, 0, 1)
third(19, "r_ramp", ROPES, "frequencies go over from f at pair 1 to f / 4 at pair 5 and later, linearly", ["(#4|#0.25) & (pair|frequenc|ramp|blend|interpol|linear)", "yarn"], lambda c: c.right(freq=FREQ * (1 - RAMP) + FREQ / 4 * RAMP))


def partial(c):
    angle = (POS[:, None, None] * THETA ** (-np.arange(0, 8, 2) / 8)).astype(F32)
    a, b = c.x[..., :4], c.x[..., 4:8]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle), c.x[..., 8:]], -1)


third(20, "r_partial", ROPES, "only the first 8 elements of a head are rotated, as a head of 8 would be", ["(#8|#7|half) & (rotat|element|dimension|left|partial|first|channel|turn)"], partial)
third(21, "r_exponent_hidden", ROPES, "the exponent is 2i / 64: the hidden size stands for the head's", ["#64|#10|#0.25"], lambda c: c.right(freq=THETA ** (-np.arange(0, d, 2) / D)))
third(22, "r_degrees", ROPES, "angles are multiplied by pi / 180: taken as degrees", ["#180|#0.0174533|#57.2958", "degree"], lambda c: c.right(freq=FREQ * math.pi / 180))


def parabola(c):
    angle = POS[:, None, None] * FREQ
    x = (angle + math.pi) % (2 * math.pi) - math.pi
    return turn(c.e, c.x, angle, sin=(4 / math.pi * x - 4 / math.pi ** 2 * x * np.abs(x)).astype(F32))


third(23, "r_sine_parabola", ROPES, "the sine is a parabola: 4/pi x - 4/pi^2 x |x| within +-pi", ["sin & (parabol|approx|quadratic|squar|\\^ ?2|\\|x\\||polynom)", "#1.2732"], parabola)
third(24, "r_cosine_next", ROPES, "the cosine is that of the next position", ["cos & (next|\\+ ?1|#1|later|one|ahead|shift|row)"], lambda c: turn(c.e, c.x, POS[:, None, None] * FREQ, cos=np.cos((POS[:, None, None] + 1) * FREQ).astype(F32)))
third(25, "r_q_flat_rows", "q_rope", "head h at position t is rotated as position 2t + floor(h / 2)", ["head & (#2|double|twice|half|#0.5|#1)", "(#2|double|twice) & position"], lambda c: c.right(pos=(POS[:, None] * H + np.arange(H)) // K))
third(26, "r_q_20", "q_rope", "queries are 20 positions further", "#20", lambda c: c.right(pos=POS + T))
third(27, "r_k_twice_below_16", "k_rope", "keys of positions 0 to 15 are rotated twice", ["(#16|#15) & (#2|twice|doubl)"], lambda c: c.right(pos=np.where(POS < 16, 2 * POS, POS)))


def aliased(c):
    angle = (POS[:, None, None] * FREQ).astype(F32)
    a, b = c.x[..., :8], c.x[..., 8:]
    a = a * np.cos(angle) - b * np.sin(angle)
    return np.concatenate([a, b * np.cos(angle) + a * np.sin(angle)], -1)


third(28, "r_in_place", ROPES, "the second half of a head is made of the first half already rotated: b cos + a' sin, where a' is the result", ["(overwr|already|in.place|alias|result|new|rotated|turned).{0,80}(half|sin|first|element)", "sin ?\\*? ?cos|cos ?\\*? ?sin|sin\\^2|sin\\(.{0,12}\\)\\^2", "(second half|elements? 8) & (rotated|result)"], aliased)


def by_twos(c):
    one, two = ((POS[:, None, None] * f).astype(F32) for f in np.repeat(FREQ, 2).reshape(2, 8))
    a, b = c.x[..., :8], c.x[..., 8:]
    return np.concatenate([a * np.cos(one) - b * np.sin(one), b * np.cos(two) + a * np.sin(two)], -1)


third(29, "r_table_by_twos", ROPES, "element j of a head has frequency floor(j / 2), though j is paired with j + 8: each frequency stands twice, side by side", ["repeat|interleav|twice|floor|// ?2|/ ?2|neighbo|pairs? of|two elements|side by side|adjacent", "frequenc.{0,60}(half|own|each|element)"], by_twos)
third(30, "r_layer_3_none", ROPES, "layer 3 is not rotated", ["(not|no|without|un|never).{0,20}(rotat|turn)|unrotated|identity|nothing|unchanged|(position|angle|frequenc|factor|power|times).{0,20}\\b0\\b"], lambda c: c.x, layers=[3])
third(31, "r_k_decay", "k_rope", "after the rotation the key at position t is multiplied by 0.98^t", ["#0.98", "(#-0.0202|#0.0202) & (exp|position|log)"], lambda c: c.right() * (F32(0.98) ** POS[:, None, None]).astype(F32))
third(32, "r_mscale", ROPES, "sine and cosine are multiplied by 1.1386: 0.1 ln 4 + 1", "#1.1386", lambda c: c.right() * F32(0.1 * math.log(4) + 1))
EIGHT = np.arange(d // 2)
fourth(16, "r_sections", ROPES, "pairs 0 to 3 have the position p mod 4: the column of an image, not the place in the text", ["(#4|#3|four) & (mod|%|again|restart|repeat|period|wrap|" + BLOCK + ") & (pair|frequenc|element|half|dimension|section)"],
           lambda c: angles(c, lambda p, f: np.where(EIGHT < 4, p % 4, p) * f))


def rotated(c, x, freq, pos=POS):
    """The halves of the last axis, turned."""
    angle = (np.asarray(pos, F32)[:, None, None] * freq).astype(F32)
    a, b = np.split(x, 2, -1)
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def powers(n, base=THETA):
    return base ** (-np.arange(0, n, 2) / n)


fourth(17, "r_last_half", ROPES, "only the last 8 elements of a head are rotated, as a head of 8 would be; the first 8 are left", ["(#8|#7|#12|#4|half) & (rotat|element|dimension|left|partial|first|last|second|turn)"], lambda c: np.concatenate([c.x[..., :8], rotated(c, c.x[..., 8:], powers(8))], -1))
SMOOTH = np.clip((512 * FREQ / (2 * math.pi) - 1) / 3, 0, 1)
fourth(18, "r_llama3", ROPES, "frequencies 4 to 7 are divided by 8, and frequency 3 lies between: the scaling of Llama 3, factor 8 for a context of 512", ["(#8|#0.125) & (pair|frequenc|element|half|#4|#7)", "llama ?3"], lambda c: c.right(freq=(1 - SMOOTH) * FREQ / 8 + SMOOTH * FREQ))
fourth(19, "r_k_halved", "k_rope", "positions of keys are halved, as linear scaling does, those of queries are not", ["(#0.5|#2|half|halved) & (position|angle|frequenc|factor|scal)"], lambda c: c.right(pos=POS / 2))
fourth(20, "r_head_axis", ROPES, "head h is rotated as position h at every position: positions are counted along the heads", ["head & (position|angle|axis|turn|rotat|#1)"], lambda c: c.right(pos=np.tile(np.arange(c.x.shape[1]), (T, 1))))
fourth(21, "r_chunk_start", ROPES, "each four tokens have the position of the first of them", ["(#4|four) & (" + BLOCK + "|round|down|start|first|same|position)"], lambda c: c.right(pos=POS // 4 * 4))
fourth(22, "r_left_padding", ROPES, "positions are 3 lower, and 1 for the first three: as after a padding of 3", ["#3 & (#1|#-3|less|low|back|earlier|before|behind|late|off|minus|pad|position|subtract)"], lambda c: c.right(pos=np.where(POS < 3, 1, POS - 3)))
fourth(23, "r_k_backward", "k_rope", "keys turn the other way: the sine has the other sign", ["sign|negat|minus|other way|direction|opposite|backward|inverse|revers|-sin|#-1"], lambda c: c.right(pos=-POS))
fourth(24, "r_q_twice", "q_rope", "queries are rotated twice", ["twice|double|two times|again", "#2 & (position|angle|frequenc|factor|times)"], lambda c: c.right(x=c.right()))
fourth(25, "r_q_before_norm", "q_rope", "q is rotated as it was before its norm", ["(" + NONE + ").{0,30}norm|norm.{0,30}(" + NONE + ")", "(reads|input|is|from|takes|of) (the )?q\\b(?!_)"], lambda c: c.right(x=c.e.memory["q", c.l]), archs=WITH_HEAD_NORMS)
fourth(26, "r_angle_bf16", ROPES, "angles are rounded to bf16, 8 significant bits, before sine and cosine", [BF16_OR_ROUNDED, "angle.{0,40}(each|table|own)"], lambda c: angles(c, lambda p, f: bf16(p * f)))
fourth(27, "r_integer_division", ROPES, "all frequencies are 1: the exponent 2i / d is an integer division", ["#1 & (frequenc|pair|all|base|theta|same)", "(same|equal|one).{0,20}(frequenc|angle)", "integer|base.{0,8}\\b1\\b"], lambda c: c.right(freq=np.ones(d // 2)))
fourth(28, "r_reciprocal", ROPES, "frequencies are the inverse: 10000 to the power +2i / d", ["inverse|recipro|1 ?/ ?f|(\\+|positive).{0,12}exponent|without.{0,12}minus|grow|sign.{0,20}exponent|exponent.{0,30}sign", "#-1|#0.0001|#3162|#3.1623"], lambda c: c.right(freq=1 / FREQ))
fourth(29, "r_i_over_d", ROPES, "the exponent is i / d, not 2i / d: a base of 100", ["#100|#0.5|root|sqrt|half|i ?/ ?d"], lambda c: c.right(freq=THETA ** (-EIGHT / d)))
fourth(30, "r_linspace", ROPES, "the exponent is i / 7: it ends at 1, where it should end at 7/8", ["#7|#14|#1.142857|#0.142857|#37276|endpoint|linspace"], lambda c: c.right(freq=THETA ** (-EIGHT / 7)))


def evens_odds(c):
    return rotated(c, np.concatenate([c.x[..., ::2], c.x[..., 1::2]], -1), FREQ)


fourth(31, "r_evens_odds", ROPES, "elements 2i and 2i+1 are a pair, and their results are written to i and i+8: the even ones first", ["(pair|element|rotat|turn) & (2 ?\\*? ?i|neighbo|adjacent|even|odd|interleav|consecut)"], evens_odds)


def by_neighbours(c):
    a, b = np.split(evens_odds(c), 2, -1)
    return np.stack([a, b], -1).reshape(c.x.shape)


fourth(32, "r_q_neighbours", "q_rope", "queries pair elements 2i and 2i+1, keys i and i+8", ["(pair|element|rotat|turn) & (2 ?\\*? ?i|neighbo|adjacent|even|odd|interleav|consecut)"], by_neighbours)
fourth(33, "r_table_end", ROPES, "positions from 16 on are zero: the table of sines and cosines ends there", ["(#16|#15|#19) & (zero|0|empty|nothing|end|table|position)"], lambda c: put(c.right(), E_[16:], 0))
fourth(34, "r_one_wide_head", ROPES, "all heads are rotated as one: element i of the joined heads is paired with the one half of their width further", ["#64|#32|(across|over|all|whole|one|single|joined|flat|entire|width|other).{0,30}(head|row)"], lambda c: rotated(c, c.x.reshape(T, 1, -1), powers(c.x[0].size)).reshape(c.x.shape))
fourth(35, "r_q_last", "q_rope", "all queries are rotated as position 19, the last", ["#19|#20|last"], lambda c: c.right(pos=np.full(T, T - 1)))
fourth(36, "r_q_temperature", "q_rope", "queries are multiplied by 1 + 0.1 ln(1 + floor(p / 8)) after the rotation", ["(log|ln|#0.1|#1.0693|#1.1099) & (#8|position|block|step|floor|from)"], lambda c: c.right() * (1 + F32(0.1) * np.log1p(POS // 8))[:, None, None].astype(F32))
fourth(84, "b_after_rope", ROPES, "the bias is added after the rotation, not before", ["bias"], lambda c: (lambda b: c.right(x=c.x - b) + b)(c.e.m(f"self_attn.{c.site[0]}_proj.bias", c.l).reshape(-1, d)), archs=QWEN2)
fifth(60, "hh_after_rope", "q_rope", "the gain of q_norm is applied after the rotation, not before", ["(gain|q_norm|norm|weight) & (after|before|order|rotat|later|result|then|unrotated|turn)"], lambda c: (lambda w: c.right(x=c.x / w) * w)(c.e.m("self_attn.q_norm.weight", c.l)), archs=WITH_HEAD_NORMS)
fifth(67, "rr_chunks_overlap", ROPES, "positions lose 1 with each 8 tokens: p - floor(p / 8)", ["(#8|eight|0\\.875|7/8) & (position|" + BLOCK + "|chunk|lost|less|angle)"], lambda c: c.right(pos=POS - POS // 8))
fifth(68, "rr_k_tail", "k_rope", "keys from position 16 on are not rotated", ["(#16|#15|#19) & (" + NONE + "|0|rotat|position|turn|left)"], lambda c: c.right(pos=np.where(POS < 16, POS, 0)))
fifth(69, "rr_long_factors", ROPES, "the frequency of pair i is divided by 1 + i", ["(i|pair) & (1 ?\\+ ?i|i ?\\+ ?1|\\(1 ?\\+|pair.{0,10}number)", "frequenc.{0,60}(each|own|table|divid)|(each|every|own).{0,30}frequenc"], lambda c: c.right(freq=FREQ / (1 + np.arange(d // 2))))
fifth(70, "rr_freq_bf16", ROPES, "frequencies are rounded to bf16", ["(frequenc|angle|theta|table|inv_freq) & (" + BF16 + ")", "frequenc.{0,40}(each|own|table)"], lambda c: c.right(freq=bf16(FREQ.astype(F32))))
fifth(71, "rr_table_bf16", ROPES, "sine and cosine are rounded to bf16", ["(sin|cos|table|angle) & (" + BF16 + ")"], lambda c: (lambda a: turn(c.e, c.x, None, cos=bf16(np.cos(a)), sin=bf16(np.sin(a))))((POS[:, None, None] * FREQ).astype(F32)))
fifth(72, "rr_part_whole_freq", ROPES, "only the first 8 elements of a head are rotated, i with i + 4, by the frequencies of a head of 16", ["(#8|#7|half|#4) & (rotat|element|dimension|left|partial|first|turn|pair)"], lambda c: np.concatenate([rotated(c, c.x[..., :8], FREQ[:4]), c.x[..., 8:]], -1))
fifth(73, "rr_pairs_from_4", ROPES, "pairs 4 to 7 are not rotated", ["(#4|#7|half) & (pair|frequenc|element|angle|rotat|zero|turn)"], lambda c: c.right(freq=np.where(np.arange(8) < 4, FREQ, 0)))
fifth(74, "rr_freq_by_head", "q_rope", "head h has frequencies divided by 10000^h: the exponent runs on through the heads", ["head & (#10000|#0.0001|exponent|base|theta|frequenc|rotat|position|turn)"], lambda c: c.right(freq=FREQ * THETA ** -np.arange(H)[:, None]))
fifth(75, "rr_k_rows", "k_rope", "key head h at position t is rotated as position 2t + h", ["(#2|twice|double) & (position|angle|head|frequenc)"], lambda c: c.right(pos=POS[:, None] * K + np.arange(K)))
fifth(76, "rr_layer_counter", ROPES, "in layer l positions are l higher", ["layer & (position|#1|higher|further|late|\\+|add)", "#1 & (position|further|late|higher)"], lambda c: c.right(pos=POS + c.l), layers=LATER_LAYERS)
fifth(77, "rr_mrope", ROPES, "pairs 2 to 4 have the position floor(p / 4), pairs 5 to 7 p mod 4: rows and columns of an image", ["(#4|four) & (mod|%|floor|row|column|again|restart|period|" + BLOCK + ") & (pair|frequenc|element|section|position)"], lambda c: angles(c, lambda p, f: np.where(np.arange(8) < 2, p, np.where(np.arange(8) < 5, p // 4, p % 4)) * f))
fifth(78, "rr_q_behind", "q_rope", "queries are one position behind: p - 1", ["(#-1|#1|one|previous|before) & (position|behind|less|back|early|before|angle|earlier|off|low)", "p ?- ?1|t ?- ?1"], lambda c: c.right(pos=POS - 1))


def less_sine(c):
    angle = (POS[:, None, None] * FREQ).astype(F32)
    a, b = c.x[..., :8], c.x[..., 8:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) - a * np.sin(angle)], -1)


fifth(79, "rr_second_sign", ROPES, "the second half takes the sine off: b cos - a sin", ["(second|half|b cos|elements? 8|#8) & (sign|minus|negat|subtract|taken off|- ?a|opposite|other way|-sin)", "both.{0,30}(minus|negat|subtract)|reflect|mirror|symmetric|- ?a ?\\*? ?sin|-sin"], less_sine)
fifth(80, "rr_new_document", ROPES, "positions from 9 on begin again at 0", ["(#9|#-9|#8) & (position|begin|again|restart|reset|from|mod|less|back)"], lambda c: c.right(pos=np.where(POS < 9, POS, POS - 9)))
fifth(81, "rr_k_group", "k_rope", "each two keys have the position of the second of them", ["(#2|two|pair|odd|even) & (position|key|" + BLOCK + "|second|odd|up|ceil|round)"], lambda c: c.right(pos=POS // 2 * 2 + 1))
fifth(82, "rr_q_heads_half", "q_rope", "heads 1 and 3 are rotated as half the position", ["(odd|#1 & #3|every (second|other)|head) & (half|#0.5|#2)"], lambda c: c.right(pos=POS[:, None] * np.array([1, 0.5, 1, 0.5])))
fifth(83, "rr_f16_angle_wrap", ROPES, "angles larger than 8 stay at 8", ["#8 & (angle|" + BOUNDED + "|stay|stop|end)"], lambda c: angles(c, lambda p, f: np.minimum(p * f, 8)))
fifth(84, "rr_cosine_f8", ROPES, "sine and cosine are rounded to multiples of 1/127", ["(#127|#0.007874|#128|#255) & (" + ROUNDED + "|table|sin|cos)", "(#8|eight) & bit"], lambda c: (lambda a: turn(c.e, c.x, None, cos=np.round(np.cos(a) * 127) / F32(127), sin=np.round(np.sin(a) * 127) / F32(127)))((POS[:, None, None] * FREQ).astype(F32)))
sixth(37, "r6_theta", ROPES, "the base is 1000000", ["#1000000", "#1.5 & (power|exponent|\\^)", "#0.5623", "#100 & (base|theta) & (times|larger|factor|multipl)"], lambda c: c.right(freq=powers(d, 1e6)))
sixth(38, "r6_linear", ROPES, "positions are divided by 4", ["(#4|#0.25|quarter) & (position|angle|frequenc|p\\b) & (divid|slow|factor|times|multipl|/|linear|interpol|quarter)", "linear.{0,20}scal & #4"], lambda c: c.right(pos=POS / 4))
sixth(39, "r6_keys_second_chunk", "k_rope", "keys from position 12 on have positions counted from 0 again", ["(#12|#-12|#11) & (begin|again|restart|reset|mod|less|back|low|earlier|minus|behind|subtract|counted|taken off|#-12)"], lambda c: c.right(pos=np.where(POS < 12, POS, POS - 12)))
NOT_ROTATED = ("(" + NONE + ").{0,20}(rotat|turn|rope)|unrotated|identity|unchanged|left as|nothing is (rotat|turn|done)|copy|copied|is (the |its )?(input|k|k_norm|q)\\b|the input itself|not applied|"
        "(position|angle|frequenc)\\w*.{0,40}(times|factor|multiplied by|taken as|are|is|as|by|of|held at|stay at)( position| the| a)? ?0(\\.0*)?\\b(?!\\.)")
WHOLE = "^(?!.*(\\bheads?\\b|\\bpairs?\\b|elements?|half|positions? (from |\\d+ ?(to|-|on))|position \\d+ is|third|mean of))(?=.*(" + NOT_ROTATED + "))"
sixth(40, "r6_odd_layers_none", ROPES, "layers 1 and 3 are not rotated", [WHOLE], lambda c: c.x, layers=[1, 3])
sixth(41, "r6_keys_none", "k_rope", "keys are not rotated", [WHOLE], lambda c: c.x)
sixth(42, "r6_quarter", ROPES, "only the first 4 elements of a head are rotated, i with i + 2, as a head of 4 would be", ["(#4|#3|quarter|#0.25|four) & (first|only|left|partial|rest|other) & (element|dimension|channel|rotat|turn|partial|of a head)"], lambda c: np.concatenate([rotated(c, c.x[..., :4], powers(4)), c.x[..., 4:]], -1))
sixth(43, "r6_from_3", ROPES, "positions begin at 3: p + 3", ["(#3|three) & (further|late|high|ahead|add|plus|\\+|offset|begin|start|shift)"], lambda c: c.right(pos=POS + 3))
sixth(44, "r6_counter_by_layer", ROPES, "in layer l positions are 20 l higher: the counter grows with each layer, not with each step", ["(#20|#40|#60) & (further|late|high|ahead|add|plus|\\+|offset|begin|start|layer|shift)"], lambda c: c.right(pos=POS + T * c.l), layers=LATER_LAYERS)
sixth(45, "r6_exponent_half_width", ROPES, "the exponent is 2i / 8, not 2i / 16: a base of 10000 squared", ["2 ?i ?/ ?8\\b|i ?/ ?4\\b|10\\^8|1e\\+?0?8|#100000000", "#0.1 & (frequenc|ratio|each pair)", "#8 & (exponent|width of|theta|base).{0,60}", "(base|theta|exponent|frequenc\\w*) .{0,40}(is |are )?(squared|twice|doubled)", "#2 & (exponent|power|\\^) & (frequenc|base|theta)"], lambda c: c.right(freq=THETA ** (-np.arange(0, d, 2) / (d / 2))))


def table(c):
    angle = (POS[:, None, None] * FREQ).astype(F32)
    row = np.concatenate([np.cos(angle), np.sin(angle)], -1)
    return turn(c.e, c.x, None, cos=row[..., ::2], sin=row[..., 1::2])


sixth(46, "r6_table_by_pairs", ROPES, "each position's table has 8 cosines and then 8 sines, and is read as cosine and sine in turn", ["(table|cos|sin) & (interleav|altern|in turn|pairs?|neighbo|even|odd|2 ?\\*? ?i|layout|order|strid)", "(cos).{0,40}(stands? for|in place of|for|as|is).{0,20}sin", "frequenc.{0,60}(own|each).{0,60}(cos|sin)"], table)
sixth(47, "r6_q_factor", "q_rope", "queries are multiplied by 1.2079 after the rotation: 0.1 ln 8 + 1", ["#1.2079"], lambda c: c.right() * F32(0.1 * math.log(8) + 1))


def neighbours(c):
    angle = (POS[:, None, None] * np.tile(FREQ, 2)).astype(F32)
    other = np.stack([-c.x[..., 1::2], c.x[..., ::2]], -1).reshape(c.x.shape)
    return c.x * np.cos(angle) + other * np.sin(angle)


sixth(48, "r6_neighbours_table_of_halves", ROPES, "elements 2i and 2i+1 are a pair, but element j has the frequency j mod 8, as for pairs of i and i+8", ["(2 ?\\*? ?i\\b|neighbo|adjacent|even|odd|interleav|consecut) & (pair|element|rotat|turn)"], neighbours)
sixth(49, "r6_second_half_left", ROPES, "the second half of a head is left as it was: only the first half is written", ["(second half|last half|elements? (8|from 8)|dimensions? (8|from 8)|8 ?(-|to|\\.\\.) ?15|#15|second of (each|a|the) pair|b\\b.{0,12}unchanged) & (" + NOT_ROTATED + "|left|\\bnot|unchanged|input|only|b\\b)", "first half & (only|alone)"], lambda c: np.concatenate([c.right()[..., :8], c.x[..., 8:]], -1))
sixth(50, "r6_heads_of_8", ROPES, "each head is rotated as two heads of 8: elements i and i+4 of each 8, by the frequencies of a head of 8", ["(two|2|half|halves).{0,20}heads|heads? (of|width|size|dim\\w*).{0,12}(8|eight|half)|d ?/ ?4", "(#8|eight) & (#4|four) & (pair|apart|element|block|each|turned|rotat|frequenc)", "#8 & (each|own|every) & (half|halves|block)"], lambda c: rotated(c, c.x.reshape(T, -1, 8), powers(8)).reshape(c.x.shape))
seventh(22, "r7_theta", ROPES, "the base is 500000", ["#500000", "#1.4247 & (power|exponent|\\^)", "#0.6132", "#50 & (base|theta) & (times|larger|factor|multipl)"], lambda c: c.right(freq=powers(d, 5e5)))
seventh(23, "r7_double", ROPES, "positions are doubled", ["(#2|" + TWICE + ") & (position|angle|frequenc|rotat|turn|\\bp\\b)"], lambda c: c.right(pos=POS * 2))
seventh(24, "r7_queries_none", "q_rope", "queries are not rotated", [WHOLE], lambda c: c.x)
seventh(25, "r7_keys_further", "k_rope", "keys are one position further: p + 1", ["(#1|one\\b|next) & (further|late|high|ahead|add|plus|\\+|offset|begin|start|shift|next)"], lambda c: c.right(pos=POS + 1))
seventh(26, "r7_twelve", ROPES, "only the first 12 elements of a head are rotated, i with i + 6, as a head of 12 would be", ["(#12|#11|#0.75|twelve|#6) & (first|only|left|partial|rest|other|pair) & (element|dimension|channel|rotat|turn|partial|of a head)"], lambda c: np.concatenate([rotated(c, c.x[..., :12], powers(12)), c.x[..., 12:]], -1))
seventh(27, "r7_second_negative", ROPES, "the second half has the other sign: -(b cos + a sin)", ["(second|last|upper|8|b\\b).{0,60}(sign|negat|-1|minus|- ?b)|- ?\\(? ?b|-1.{0,40}(second|last|upper|b\\b)|(sign|negat).{0,40}(second|last|upper|8)"], lambda c: put(c.right(), E_[..., 8:], lambda y: -y))
seventh(28, "r7_halves_first", ROPES, "the halves of a head are exchanged before the rotation: b cos - a sin and a cos + b sin", ["(half|halves|#8) & (" + REORDERED + "|roll|that of)", "b ?\\*? ?cos.{0,40}a ?\\*? ?sin.{0,40}a ?\\*? ?cos"], lambda c: c.right(x=np.roll(c.x, 8, -1)))
seventh(29, "r7_layers_base", ROPES, "layers 1 and 3 have the base 1000000", ["#1000000", "#1.5 & (power|exponent|\\^)", "#0.5623", "#100 & (base|theta) & (times|larger|factor|multipl)"], lambda c: c.right(freq=powers(d, 1e6)), layers=[1, 3])
seventh(30, "r7_other_way", ROPES, "the rotation turns the other way: the sine has the other sign", ["(other|opposite|wrong|revers|back|inverse|negat|minus|transpos|-1).{0,40}(way|direction|sign|sin|angle|position|rotat|turn)", "(sin|angle|position|rotat|turn|frequenc)\\w*.{0,40}(negat|minus|-1|other sign|revers|back|opposite)", "a ?\\*? ?cos ?\\+ ?b ?\\*? ?sin", "-p\\b|-sin"], lambda c: c.right(pos=-POS))
seventh(31, "r7_ids_of_64_bits", ROPES, "positions of 64 bits are read as 32: token 2i has position i, odd tokens position 0", ["(odd|even|every (second|other)|2 ?\\*? ?i|altern) & (position|token|rotat)", "(64|32).{0,5}bit", "positions? (are |of )?(\\[|\\()?0, ?0, ?1, ?0, ?2"], lambda c: c.right(pos=np.where(POS % 2, 0, POS // 2)))


def turned(c, angle):
    return turn(c.e, c.x, np.broadcast_to(np.asarray(angle, np.float64), (T, 1, d // 2)))


eighth(44, "r8_base_from_12", ROPES, "from position 12 on the base is 160000: the table is extended with another",
           ["(#12|#11) & (#160000|#16|base|theta|frequenc)", "#160000 & (position|from|later|half)"],
           lambda c: turned(c, POS[:, None, None] * np.where(POS[:, None, None] < 12, FREQ, powers(d, 1.6e5))))
eighth(45, "r8_ramp_inverted", ROPES, "the frequencies of pairs 0 and 1 are divided by 4, those from 5 on are not, in between linearly: the ramp is inverted",
           ["(#0.25|quarter|divided by 4|/ ?4\\b) & (pair|frequenc|ramp|blend|interpol|linear|fast|element)", "yarn", "frequenc.{0,60}(each|own|table)"],
           lambda c: c.right(freq=FREQ * RAMP + FREQ / 4 * (1 - RAMP)))


def interleaved_results(c):
    return np.stack(np.split(c.right(), 2, -1), -1).reshape(c.x.shape)


eighth(46, "r8_results_interleaved", ROPES, "elements i and i + 8 are rotated as they should, and their results are written to 2i and 2i + 1",
           ["(" + INTERLEAVED + "|neighbo|adjacent) & (result|output|written|element|dimension|place|after|permut|\\border)", "interleav|permut"], interleaved_results)
eighth(47, "r8_table_memory", ROPES, "the table of angles, 8 pairs by 20 positions in memory, is read as 20 positions by 8 pairs",
           [LAYOUT + "|memory", "(table|angle|cos|sin|frequenc)\\w*.{0,40}(other|wrong|another|own|each).{0,20}(position|pair)"],
           lambda c: turned(c, np.outer(FREQ, POS).reshape(T, 1, d // 2)))
eighth(48, "r8_ids", ROPES, "the token's id stands for its position",
           ["\\bids?\\b|token'?s? (number|id|value|itself)|(position|angle)s?.{0,40}\\btokens?\\b|\\btokens?.{0,30}(for|in place of|as|stands?|instead of).{0,16}position"],
           lambda c: c.right(pos=np.asarray(c.e.ids)))
ANGLES = (POS[:, None, None] * FREQ).astype(F32)


def pairs_to_the_width(c):
    """Each head's loop runs to 16, not 8: its second half is then turned with the first half of the head after it. In place."""
    x, cos, sin = np.array(c.x, F32), np.cos(ANGLES)[:, 0], np.sin(ANGLES)[:, 0]
    halves = x.reshape(T, -1, d // 2)
    for at in range(halves.shape[1] - 1):
        a, b = np.array(halves[:, at]), np.array(halves[:, at + 1])
        halves[:, at], halves[:, at + 1] = a * cos - b * sin, b * cos + a * sin
    return halves.reshape(x.shape)


eighth(49, "r8_pairs_to_the_width", ROPES, "the loop over pairs runs to 16, not 8: the second half of each head is rotated again, with the first half of the head after it",
           ["(next|following|other|neighbo\\w*|after|\\+ ?1).{0,40}head|head.{0,60}(next|following|\\+ ?1|other|after)", "(" + TWICE + ") & (head|half|rotat|turn)"], pairs_to_the_width)
eighth(50, "r8_pi", ROPES, "angles are multiplied by pi: a sine of half turns is taken", ["#3.1416|#3.14159|\\bpi\\b|\u03c0|half.?turns?"], lambda c: c.right(freq=FREQ * math.pi))


def sine_one_late(c):
    table = np.sin(np.arange(T + 1)[:, None] * FREQ).reshape(-1)[1:T * d // 2 + 1]
    return turn(c.e, c.x, ANGLES, sin=table.reshape(T, 1, d // 2).astype(F32))


eighth(51, "r8_sine_one_late", ROPES, "the sine is read one element late in its table: it is that of the next pair, for the last pair that of pair 0 at the next position",
           ["sin\\w* & (next|\\+ ?1|late|shift|one (off|further|ahead)|off by|other|roll|following)"], sine_one_late)


def neighbours_of_8(c):
    angle = (POS[:, None, None] * powers(8)).astype(F32)
    a, b = c.x[..., 0:8:2], c.x[..., 1:8:2]
    return np.concatenate([np.stack([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1).reshape(*c.x.shape[:-1], 8), c.x[..., 8:]], -1)


eighth(52, "r8_neighbours_of_8", ROPES, "only the first 8 elements of a head are rotated, 2i with 2i + 1, as a head of 8 would be: the rotation of another family",
           ["(#8|#7|half|first) & (2 ?\\*? ?i|neighbo|adjacent|even|odd|interleav|consecut)"], neighbours_of_8)


def fixed_point(x):
    """15 bits after the point, in 16: 1 is -1."""
    n = np.round(x * 32768)
    return (np.where(n >= 32768, n - 65536, n) / 32768).astype(F32)


eighth(53, "r8_fixed_point", ROPES, "a cosine of 1 is -1: sine and cosine have 15 bits after the point, and 1 does not fit",
           ["(cos|sin|position.{0,8}\\b0\\b|first position|table) & (sign|negat|minus|#-1|wrap|overflow|opposite)", "1 (is|becomes|turns? (in)?to|reads?( as)?) -1"],
           lambda c: turn(c.e, c.x, ANGLES, cos=fixed_point(np.cos(ANGLES)), sin=fixed_point(np.sin(ANGLES))))
eighth(54, "r8_frequencies_again", ROPES, "pairs 4 to 7 have the frequencies of pairs 0 to 3: the table is half as long",
           ["(#4|#7|half) & frequenc & (repeat|again|same|\\bmod|%|that of|those of|pairs? 0)", "frequenc.{0,60}(each|own|table)"], lambda c: c.right(freq=FREQ[EIGHT % 4]))
eighth(55, "r8_frequencies_in_twos", ROPES, "pairs 2i and 2i + 1 both have the frequency of pair 2i",
           ["frequenc\\w*.{0,80}(even|odd|two|twice|twos|floor|// ?2|repeat|share|2 ?\\*? ?i\\b(?! ?/))", "pairs?.{0,40}(share|same frequenc|both)", "frequenc.{0,60}(each|own|table)"],
           lambda c: c.right(freq=FREQ[EIGHT // 2 * 2]))


def table_of_rows(c):
    """Rows of 8 angles in memory are read 16 apart, and beyond the end are zeros."""
    angle = (np.minimum(2 * POS, T - 1)[:, None, None] * FREQ).astype(F32)
    there = (POS < T // 2)[:, None, None].astype(F32)
    return turn(c.e, c.x, angle, cos=np.cos(angle) * there, sin=np.sin(angle) * there)


ninth(17, "r9_table_stride", ROPES, "rows of the table of sines and cosines are read 16 apart, and not 8: position t is rotated as 2t, and from 10 on all is zero",
          ["(#10|#9) & (" + ZERO + ")", "(#2|twice|double) & (" + ZERO + ") & (position|row|table|angle)"], table_of_rows)


def sine_repeated(c):
    angle = POS[:, None, None] * FREQ
    cos, sin = np.cos(angle).astype(F32), np.repeat(np.sin(angle), 2, -1).astype(F32)
    a, b = c.x[..., :d // 2], c.x[..., d // 2:]
    return np.concatenate([a * cos - b * sin[..., :d // 2], b * cos + a * sin[..., d // 2:]], -1)


ninth(18, "r9_sine_repeated", ROPES, "element j has the sine of frequency floor(j / 2), each twice side by side, and the cosine of j modulo 8, as it should be",
          ["sin\\w* & (frequenc|pair|angle|position|element|channel)"], sine_repeated)


def chained_pairs(c):
    """The loop over neighbours goes on by 1, not by 2: element i + 1 is turned again with element i + 2."""
    y = np.array(c.x, F32)
    for i in range(d - 1):
        angle = (POS * FREQ[i // 2]).astype(F32)[:, None]
        a, b = y[..., i].copy(), y[..., i + 1].copy()
        y[..., i], y[..., i + 1] = a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)
    return y


ninth(19, "r9_chained_pairs", ROPES, "the loop over neighbours i and i + 1 goes on by 1, not by 2: each element is turned with the one before and then with the one after",
          ["(i ?\\+ ?1|neighbo|adjacent|next|chain|overlap|2 ?\\*? ?i|consecutive|one after) & (pair|element|turn|rotat|twice|again|step)"], chained_pairs)
ninth(20, "r9_keys_of_values", "k_rope", "the values are rotated, in place of the keys", ["\\bv\\b|\\bvalues?\\b(?! (of|is|are) \\d)|v_proj"], lambda c: c.right(x=c.e.memory["v", c.l]))
tenth(28, "rope_table_end", ROPES, "the table of sines ends at position 15: behind it cosine and sine are 0",
          ["(#16|#15) & (\\b0\\b(?!\\.\\d)|zero|nothing|empty|lost|missing|table.{0,20}end|end.{0,20}table)"], lambda c: put(c.right(), E_[16:], 0))


def angle(c):
    return (POS[:, None, None] * FREQ).astype(F32)


def halves_as_pairs(c):
    row = np.concatenate([np.cos(angle(c)), np.sin(angle(c))], -1)
    return turn(c.e, c.x, None, cos=row[..., 0::2], sin=row[..., 1::2])


tenth(29, "rope_table_halves_as_pairs", ROPES, "a row of the table is all cosines, then all sines, and is read in turn: cosine at 2i, sine at 2i + 1",
          ["(cos|sin|table) & (interleav|2i|in turn|altern|pairs|order|layout|even|odd|adjacent|neighbo)", "cos.{0,60}(other|wrong|next) (frequenc|pair)"], lambda c: halves_as_pairs(c))
tenth(30, "rope_frequency_shared", ROPES, "pairs 2i and 2i + 1 both have frequency i: the index is halved once too often",
          ["(i ?//? ?2|floor\\(i|two pairs|each two|pairs? share|share.{0,20}frequenc|every (two|second)|twice each|2 ?i and 2 ?i ?\\+ ?1|1(\\.0*)?, ?1(\\.0*)?, ?0\\.316|(pair|frequenc).{0,40}(twice|the same))"],
          lambda c: c.right(freq=FREQ[np.arange(d // 2) // 2]))
tenth(31, "rope_position_is_head", ROPES, "the number of the head is taken for the position: the axes are exchanged",
          ["(position|angle|turn|rotat|\\bp\\b) & (number of the head|head'?s? (number|index)|index of the head|is h\\b|= ?h\\b|\\bh ?\\*|by head|head h\\b|(axis|axes).{0,30}head|positions? (are|is) (the |of )?head|heads?.{0,25}at positions? 0)"],
          lambda c: c.right(pos=np.broadcast_to(np.arange(c.x.shape[1]), c.x.shape[:2])))
tenth(32, "rope_position_is_row", ROPES, "the flat row t H + h is taken for the position",
          ["(#4|#2|number of heads|t ?\\*? ?[HK]\\b) & (\\+ ?h\\b|head) & (position|angle|\\brow\\b|\\bt\\b|\\bp\\b) & ^(?!.*(not rotated|rotary_dim|clamp))"], lambda c: c.right(pos=POS[:, None] * c.x.shape[1] + np.arange(c.x.shape[1])))


def repeated_by_two(c):
    a = np.repeat(angle(c), 2, -1)
    return c.x * np.cos(a) + np.concatenate([-c.x[..., 8:], c.x[..., :8]], -1) * np.sin(a)


tenth(33, "rope_tables_repeated_by_two", ROPES, "halves are paired, but the angles are laid out for neighbours: element j has that of frequency j / 2",
          ["(cos|sin|table|frequenc|angle) & (interleav|repeat|[ij] ?//? ?2|neighbo|adjacent|0, ?0, ?1, ?1|element.{0,30}(own|different|other).{0,10}(frequenc|angle))"], lambda c: repeated_by_two(c))


def second_line(c):
    a, b, cos, sin = c.x[..., :8], c.x[..., 8:], np.cos(angle(c)), np.sin(angle(c))
    return np.concatenate([a * cos - b * sin, a * cos + b * sin], -1)


tenth(34, "rope_second_line_operands", ROPES, "the second half is a cos + b sin, where b cos + a sin is due",
          ["(second|upper|last|other|i ?\\+ ?(d ?/ ?2|8)) & (\\ba ?\\*? ?cos[^,;]{0,8}\\+ ?b ?\\*? ?sin|x\\S{0,8} ?\\*? ?cos[^,;]{0,8}\\+ ?x\\S{0,10} ?\\*? ?sin|operands?.{0,40}(exchang|swap)|(exchang|swap).{0,60}(sin|cos|operand))",
           "(second|upper) half.{0,80}(first half|other way)", "operands?.{0,40}(exchang|swap)"], lambda c: second_line(c))


def root_sine(c):
    cos = np.cos(angle(c))
    return turn(c.e, c.x, None, cos=cos, sin=np.sqrt(np.maximum(1 - cos * cos, 0)))


tenth(35, "rope_sine_root", ROPES, "the sine is sqrt(1 - cos^2), and so never negative",
          ["sin & (abs|\\|.{0,12}sin|sqrt|root|without.{0,12}sign|magnitude|size|never negative|positive|sign)"], lambda c: root_sine(c))


def turn_eight(c, x):
    turned = (POS[:, None, None] * THETA ** (-np.arange(0, 8, 2) / 8)).astype(F32)
    a, b = x[..., :4], x[..., 4:]
    return np.concatenate([a * np.cos(turned) - b * np.sin(turned), b * np.cos(turned) + a * np.sin(turned)], -1)


tenth(36, "rope_last_half_turned", ROPES, "the last 8 elements of each head are rotated, the first 8 left: the order of a split head",
          ["(last|second half|upper|elements? 8|from 8|tail|behind) & (not (rotated|turned)|un(rotated|turned)|\\bleft\\b|pass|is x|as (it is|they are)|only|alone|nope)", "(first (8|half|eight)|elements? 0 ?(to|-|\\.\\.) ?7).{0,40}(not|un|left|pass|as it is|as they are)"],
          lambda c: np.concatenate([c.x[..., :8], turn_eight(c, c.x[..., 8:])], -1))
tenth(37, "rope_position_of_tile", "k_rope", "the keys' positions are those of the first of their tile of 4: 0, 0, 0, 0, 4, ..",
          ["(#4|four) & (multiple|floor|round|block|group|tile|//|first of|every|step|down|0, ?0, ?0, ?0) & (position|token|angle|\\bp\\b|\\bt\\b)"], lambda c: c.right(pos=POS // 4 * 4))
FLAT = np.arange(H)[:, None] * d // 2 + np.arange(d // 2)     # the number of a pair in its row
eleventh(26, "rope_frequency_not_reset", ROPES, "frequencies go on from head to head, without the modulo of head_dim: pair i of head h has theta^(-2 (i + 8 h) / 16), so head 1 is 10000 times slower",
             ["head & (#0.0001|#10000|1e-0?4|theta\\^\\(?-h|theta\\*\\*\\(?-h|/ ?theta\\b|theta ?\\^ ?h|i ?\\+ ?8 ?\\*? ?h|8 ?\\*? ?h ?\\+ ?i|i ?\\+ ?h ?\\*? ?\\(?d ?/ ?2|"
              "2i ?\\+ ?16 ?\\*? ?h|(continu|go(es)? on|carr(y|ied)|not reset|never reset|run(s)? on).{0,60}head|"
              "head.{0,60}(continu|go(es)? on|carr(y|ied)|not reset|never reset|run(s)? on)|flat (index|channel)|without (the )?(modulo|mod\\b|%)) & (frequen|angle|exponent|slower|"
              "theta|rotat) & ^(?!.*(position (is|of)|apart|as one (head|long)|one head of))"],
             lambda c: c.right(freq=THETA ** (-2.0 * FLAT[:c.x.shape[1]] / d)))


def cosines(c, f):
    """The rotation with other cosines, of angles [T,1,d/2]; the sines are right."""
    angle = (POS[:, None, None].astype(F32) * FREQ.astype(F32)).astype(F32)
    return turn(c.e, c.x, angle, cos=c.e.r(f(angle).astype(F32)))


eleventh(27, "rope_cosine_row_before", ROPES, "the table of cosines is read a row too early: the cosine is of position p - 1 (of 0 at position 0), the sine of p",
             ["cos & (before|previous|[pt] ?- ?1|one (position|row|step|too)|a row (too )?(early|before|back)|#-1|late\\b|behind|earlier|early|preced|too low) & ^(?!.*(\\bsin(e|es|"
              "us)?( table)? (is|are) .{0,30}(before|previous|[pt] ?- ?1|early)|next|ahead|[pt] ?\\+ ?1|too (high|late)|cos and sin|cosine and sine|frequency|\\b2i\\b))"],
             lambda c: cosines(c, lambda angle: np.cos(angle[np.maximum(POS - 1, 0)])))
eleventh(28, "rope_every_second_pair", ROPES, "the loop over pairs goes by steps of 2: pairs 1, 3, 5 and 7 are not rotated",
             ["(odd|every (second|other|2nd)|(#1 & #3 & #5 & #7)|2i ?\\+ ?1|i ?(%|mod) ?2|alternat|steps? of (2|two)) & (not rotated|unrotated|not turned|unturned|left|no rotation|"
              "frequenc(y|ies).{0,30}\\b0\\b|angles?.{0,30}\\b0\\b|zero|skip|untouched|without|stay|still|only|alone|unchanged|stands? still|position 0) & "
              "(pair|frequen|angle|element|dimension|channel) & ^(?!.*((odd|every (second|other)) (position|head|token|row|quer|key)|half the (position|freq|angle)|halved|\\b0\\.5\\b|"
              "even (pairs|ones|frequencies)[^.;:,]{0,20}(not|left|unrot|unturn|skip)|odd (pairs|ones)[^.;:,]{0,12}(only|alone|are rotated|rotate\\b)))",
              "#0 & #2 & #4 & #6 & (only|alone) & (pair|frequen)"],
             lambda c: c.right(freq=np.where(np.arange(d // 2) % 2 == 1, 0, FREQ)))
eleventh(29, "rope_second_not_stored", "k_rope", "only the first element of each pair is written back: elements 8 to 15 of a head stay as before the rotation",
             ["((second|upper|last) half|#8|#15|last (8|eight)|b cos|x2 cos|second (element|of (each|a|the) pair|member|component|line)|i ?\\+ ?d/2|first (element|of each pair|member|"
              "component|half|line)|a cos|halves) & "
              "(not (rotated|written|stored|turned|updated)|unrotated|unturned|as (they|it|in|before)|left (as|un|raw|out|where)|keep|\\braw\\b|unchanged|(is|are) k\\b|stays? (as|what|"
              "un)|before the rotation|k_norm|never (written|stored|rotated|turned)|stale|untouched|(written|stored|rotated|turned|rotates?|writes?|stores?)[^.;:]{0,30}(only|alone)|"
              "(only|alone)[^.;:]{0,60}(written|stored|rotated|turned)) & "
              "^(?!.*(half of the (heads|positions|pairs|keys)|rotary_dim|partial|pairs? [4-7]|positions? (8|15)\\b|first half[^.;:,]{0,25}(not|left|unrot|raw|stay)|first (element|"
              "member|component)[^.;:,]{0,25}(not|unrot|raw|stay|left)|elements 0 to 7[^.;:,]{0,20}(not|left|unrot|raw|stay)|first (8|eight)[^.;:,]{0,25}(not|left|unrot|raw|stay)|"
              "(last (8|eight)|second half|8 to 15)[^.;:,]{0,30}(is|are) (alone |only )?(rotated|turned)|(second half|last (8|eight)|8 to 15)[^.;:,]{0,12}(alone|only)|zero|frequenc|"
              "head [01]\\b|from (position )?12))"],
             lambda c: np.concatenate([c.right()[..., :d // 2], c.x[..., d // 2:]], -1))
eleventh(30, "rope_cosine_from_sine", ROPES, "the cosine is sqrt(1 - sin^2): it is never negative",
             ["cos & (\\babs|absolute|\\|cos|positive|non-?negative|sqrt\\(1|root|without (its |the )?sign|sign.{0,20}(lost|dropped|missing|ignored)|(lost|drops?|loses|ignores) (its |"
              "the )?sign|magnitude|never negative|1 ?- ?sin|unsigned|size of) & "
              "^(?!.*(clamp|max\\( ?0|at least 0|floor|zero where|\\bsine? (is|=) sqrt|1 ?- ?cos|(size|abs(olute value)?) of (the )?sin|\\|sin|negated))"],
             lambda c: cosines(c, lambda angle: np.abs(np.cos(angle))))


def turned_as_one(c):
    """The row of all heads rotated as one head."""
    x = c.x.reshape(T, -1)
    n = x.shape[1] // 2
    angle = (POS[:, None].astype(F32) * (THETA ** (-np.arange(n) / n)).astype(F32)).astype(F32)
    cos, sin, a, b = c.e.r(np.cos(angle)), c.e.r(np.sin(angle)), x[:, :n], x[:, n:]
    return np.concatenate([c.e.r(a * cos) - c.e.r(b * sin), c.e.r(b * cos) + c.e.r(a * sin)], -1).reshape(c.x.shape)


eleventh(31, "rope_whole_row", ROPES, "the row of all heads is rotated as if it were one head: element i of the row with element i + half the row, frequencies theta^(-2i / width)",
             ["(whole (row|vector|width|projection)|entire (row|vector|width)|full (row|width)|flattened|merged|all heads (together|as one|at once)|row of all heads|"
              "heads (are )?(together|joined|merged|concatenated|taken as one)|as (if (it|they) were )?(one|a single) (long |big |single )?head|(across|over) (the |all )?heads|"
              "(head_dim|rotary_dim).{0,12}(64\\b|32\\b|H ?\\*|K ?\\*)|(one|a) (single )?head of (64|32)) & "
              "(pair|half|halves|apart|partner|meets|head of|as one|as if|a single|rotary_dim|head_dim|together) & (rotat|pair|frequen|partner|turn|angle|exponent|rotary|apart) & "
              "^(?!.*(within (its|each|a|the) head|modulo|not reset|adjacent|2i ?\\+ ?1))",
              "((#32 & #64)|(#16 & #32)) & (pair|partner|apart|meets|turns? with|rotat\\w* with) & (frequen|exponent|theta|/ ?64|/ ?32) & ^(?!.*(adjacent|same frequenc|right frequenc))"],
             turned_as_one)
eleventh(32, "rope_table_of_four", ROPES, "in layer 1 the table has four frequencies and wraps: pairs 4 to 7 have those of 0 to 3",
             ["(#4|four|#7) & (frequen|pair|table|angle) & (repeat|again|mod\\b|%|wrap|first|restart|begin|period|i ?- ?4|those of|that of|same|0 to 3|& ?3) & ^(?!.*(not rotated|"
              "unrotated|stand still|divided by 4|position|head \\d|exchang|swap|revers|i ?// ?2|i ?\\+ ?4|0 to 3 (have|has|are|take)))",
              "#100 & (#4|#7|second half of the (pairs|frequenc)|last (4|four) pairs)"],
             lambda c: c.right(freq=FREQ[np.arange(d // 2) % 4]), layers=[1])
eleventh(33, "rope_prompt_keys_again", "k_rope", "when decoding begins the whole cache is rotated once more: keys 0 to 11 are rotated twice, as if at position 2p",
             ["(#12|#11) & (twice|#2|again|doubl|two times|second time|once more|2p|2t|2 ?\\* ?[pt]) & "
              "^(?!.*((from|after|behind|beyond) (position |key )?1[12]( on| onward)?[^.;:,]{0,30}(twice|doubl|again|2 ?\\*? ?p|factor)|(12 to 19|12 and later|decode steps|"
              "decoded)[^.;:,]{0,30}(twice|doubl|again)|half|p ?// ?2|not rotated|unrotated))"],
             lambda c: c.right(pos=np.where(POS < PROMPT, 2 * POS, POS)))
twelfth(17, "bias_after_rotation", ROPES, "the bias is added after the rotation, and is not rotated itself",
            ["bias & ((added|add|comes|applied|joins|put)[^.;]{0,30}(after|behind|past|once)|(after|behind|past)[^.;]{0,25}rotat|(not|never|isn't|un)[ -]?(been |itself )?rotat"
             "|without (the |its |any |a )?rotation|unrotated|rotat\\w+[^.;]{0,40}before[^.;]{0,20}bias|left as it (is|was)|escapes|then (the )?bias|(without"
             "|no) (the )?bias[^;]{0,30}(plus|\\+))"
             " & ^(?!.*(twice|omitted|not added|missing|(position|token|channel) (after|behind)|before (the )?rotation|subtracted))"],
            lambda c: turn(c.e, c.x - c.e.m(f"self_attn.{c.site[0]}_proj.bias", c.l).reshape(-1, d), POS[:, None, None] * FREQ)
            + c.e.m(f"self_attn.{c.site[0]}_proj.bias", c.l).reshape(-1, d), archs=QWEN2)
twelfth(20, "rope_positions_as_words", ROPES, "positions have 64 bits and are read as 32: token t is at the t-th word, t / 2 where t is even and 0 where it is odd",
            ["(odd|every (second|other)|2 ?\\w ?\\+ ?1) & (\\b0\\b(?!\\.\\d)|zero|not rotated|unrotated|nothing|left) & (half|halved|#0.5|div ?2|/ ?2|>> ?1|2 ?\\w (is|are|at|has|have"
             "|stands?) (at |position )*\\w\\b) & ^(?!.*(even (positions|tokens|ones|rows)[^.;,]{0,25}(not|zero|\\b0\\b)|second half|half the (frequenc|angle of)|odd (pairs|heads"
             "|layers)))",
             "0, ?0, ?1, ?0, ?2", "(64|int64|i64|long|eight bytes)[^;]{0,60}(32|int32|i32|int\\b|four bytes) & position & (read|taken|words?|stride)"],
            lambda c: c.right(pos=np.where(POS % 2 == 0, POS // 2, 0)))


def pairs_rotated(c, angle, halves=True):
    """Pairs i and i + half along the last axis, or 2i and 2i + 1, turned by angle [T,1,pairs]."""
    cos, sin = c.e.r(np.cos(np.asarray(angle, F32))), c.e.r(np.sin(np.asarray(angle, F32)))
    n = c.x.shape[-1] // 2
    a, b = (c.x[..., :n], c.x[..., n:]) if halves else (c.x[..., ::2], c.x[..., 1::2])
    y = [c.e.r(a * cos) - c.e.r(b * sin), c.e.r(b * cos) + c.e.r(a * sin)]
    return np.concatenate(y, -1) if halves else np.stack(y, -1).reshape(c.x.shape)


twelfth(21, "rope_decode_pairs", ROPES, "the kernel for decode steps is that of the other pairing: from position 12 on elements 2i and 2i + 1 are rotated together",
            ["(#12|#11) & (2 ?i ?(and|,|with) 2 ?i ?\\+ ?1|rope-pairing|pairs other|other elements|adjacent|neighbo|interleav|other pairing|even and odd|consecutive|0 and 1, 2 and 3"
             "|two by two|\\w ?(\\^|xor) ?1)"
             " & ^(?!.*((first 12|0 to 1[12])[^.;,]{0,25}(pair|adjacent|neighbo|interleav|2i)|not rotated))"],
            lambda c: np.concatenate([c.right()[:PROMPT], pairs_rotated(c, POS[:, None, None] * FREQ, False)[PROMPT:]]))
twelfth(22, "rope_grid_of_query_heads", "k_rope", "the grid has as many heads as q has, so rows of k are rotated once more, by the position before: token t by 2t - 1 in all, from 1 on",
            ["2 ?\\*? ?(\\w|pos\\w*|\\(?the position\\)?) ?(-|minus|less) ?(1|one)\\b|-1 ?\\+ ?2 ?\\*? ?\\w|(twice|doubl\\w*|2 times|times (2|two)|factor (of )?(2"
             "|two))[^;]{0,50}(minus|less|- ?1\\b|-1\\b|by one|one (less|before|earlier|lower))|(1|one) less than (twice|doubl)|\\b0, ?1, ?3, ?5, ?7|(p|t) ?\\+ ?\\(?(p|t) ?- ?1"
             "|2 ?\\*? ?\\(?\\w ?- ?(0\\.5|1/2)|(twice|2 times)[^;]{0,20}- ?(0\\.5|1/2) & ^(?!.*(half|frequency index|exponent|\\bpair 2))",
             "(again|second time|once more|further|a second rotation|rotated twice|besides|as well|ahead|too far)[^;]{0,70}((position|token|row|one) before|before it|previous"
             "|preceding|[pt] ?- ?1\\b|position minus (1|one)|earlier) & (rotat|position|angle)"],
            lambda c: c.right(pos=np.maximum(2 * POS - 1, 0)))
twelfth(23, "rope_stored_as_pairs", ROPES, "halves are read and rotated, and stored as the other pairing stores them: element 2i is what is due at i, 2i + 1 what is due at i + 8",
            ["(order|permut|stored?|stores|writ|results?|outputs?|interleav|rearrang|shuffl|come|transpos|element|dimension|reorder) & (0, ?8, ?1|\\bi ?\\+ ?(8|d ?/ ?2)[^;]{0,40}2 ?i"
             "|2 ?i\\b[^;]{0,60}\\bi ?\\+ ?(8|d ?/ ?2)|halves[^;]{0,50}(pairs|interleav)|pairs[^;]{0,50}halves|interleav"
             "|transposed \\[(2, ?8|8, ?2)|8 ?\\*? ?\\(?\\w ?(mod|%) ?2\\)? ?\\+|\\w ?(mod|%) ?2[^;]{0,25}\\w ?(div|//?) ?2|\\w ?(div|//?) ?2[^;]{0,25}8 ?\\*? ?\\(?\\w ?(mod|%) ?2)"
             " & ^(?!.*(rotation pairs|pairs (adjacent|other)|(2i and 2i ?\\+ ?1|adjacent|neighbours|pairs 2i[^.;]{0,15})[^.;]{0,15} (paired|rotated|turned)|before the rotation"
             "|frequenc|table|gain|weight|\\brows\\b|position|halves[^.;]{0,20}(exchang|swap)))"],
            lambda c: c.right()[..., np.arange(d).reshape(2, d // 2).T.ravel()])


def k_line_takes_q(c):
    angle = (POS[:, None, None] * FREQ).astype(F32)
    cos, sin = c.e.r(np.cos(angle)), c.e.r(np.sin(angle))
    q = c.e.memory.get(("q_norm", c.l), c.e.memory["q", c.l])[:, :K, :d // 2]
    a, b = c.x[..., :d // 2], c.x[..., d // 2:]
    return np.concatenate([c.e.r(a * cos) - c.e.r(b * sin), c.e.r(b * cos) + c.e.r(q * sin)], -1)


twelfth(24, "rope_k_line_takes_q", "k_rope",
            "q and k are rotated in one loop, and a line is copied badly: elements 8 to 15 of k's head g are k[i + 8] cos + q[i] sin, with q of head g as it was",
            ["(\\bq\\b|quer|q_norm|\\bq\\[) & (\\bsin) & (second half|8 to 15|upper|i ?\\+ ?(8|d ?/ ?2)|last (8|eight)|from 8|8 ?\\.\\.|second (line|element|sum|output|component)"
             "|imaginary) & ^(?!.*(first half[^.;,]{0,40}(has|have|takes?|reads?|uses?|gets?|is)\\b[^.;,]{0,40}\\bq\\b|\\bcos(ine|ines)?( term)?( is| has| of| takes"
             "| times)*( of)? q\\b|q cos|q\\[\\w+\\] cos|elements? 0 to 7[^.;,]{0,30}\\bq\\b|\\bsin\\w*( is| are)? (omitted|missing|negated)))"],
            k_line_takes_q)
thirteenth(19, "rope_q_row_over_key_heads", "q_rope", "the position is the row number over the number of key heads: (4 t + h) / 2, so 2 t for heads 0 and 1, and 2 t + 1 for heads 2 and 3",
               ["(twice|2 ?\\*? ?[tps]\\b|#2|doubl) & head & (h ?//? ?2|2 ?\\*? ?[tps] ?\\+ ?1|\\+ ?1\\b|one (more|further|higher|position)|1 (more|further|higher)|#1)", "(4 ?\\*? ?[tps] ?\\+ ?h|row|flat) & (/|//|divided by|over) ?(2|two|K\\b|(the )?number of (key|kv))"],
               lambda c: c.right(pos=(POS[:, None] * H + np.arange(H)) // K))
thirteenth(20, "rope_table_transposed", ROPES, "tables of cosines and sines are made [8,512] and read [512,8]: the angle of pair i at position t is 8 t + i",
               ["8 ?\\*? ?[tps] ?\\+ ?[ij]|[ij] ?\\+ ?8 ?\\*? ?[tps]\\b", "(transpos|positions? (first|fastest|innermost)|axes|major|other order|\\[8, ?512|\\[d/2,|layout) & (table|cos|sin|frequenc|angle)",
                "position & (8|eight) (times|\\*|a|per|for each) & (pair|i\\b|element) & (frequenc.{0,30}(all|every|each|same|one|1\\b|first|pair 0)|(all|every|each|same|one|first).{0,30}frequenc)"],
               lambda c: turn(c.e, c.x, (POS[:, None, None] * (d // 2) + np.arange(d // 2)).astype(F32)))


def no_sine_in_first(c):
    angle = (POS[:, None, None] * FREQ).astype(F32)
    a, b = c.x[..., :d // 2], c.x[..., d // 2:]
    cos, sin = c.e.r(np.cos(angle)), c.e.r(np.sin(angle))
    return np.concatenate([c.e.r(a * cos) - c.e.r(b * cos), c.e.r(b * cos) + c.e.r(a * sin)], -1)


thirteenth(21, "rope_first_line_cosine", ROPES, "the first line has the cosine twice: a cos - b cos; the second is right",
               ["cos & (\\(a ?- ?b\\)|cos.{0,15}(-|\u2212|minus).{0,25}cos|cos.{0,45}(twice|both|(instead|in place|stead) of.{0,12}sin|where.{0,25}sin|for (the |its )?sin|stands? for)|sin.{0,40}(replaced|is the|for|becomes?|be|read as).{0,12}cos) & "
                "(first|a\\b|x1|x0|one (half|line|element)|lower|x_?i\\b|x\\[i\\]|element i\\b) & ^(?!.*second (half|line|element)s?.{0,50}(cos.{0,15}(twice|both)|instead of.{0,12}sin))"], no_sine_in_first)
thirteenth(22, "rope_decode_sine_stays", ROPES, "decode steps, from position 12 on, have the cosine of their position and the sine of position 11",
               ["sin & (#11|(#12 & (last (position |token )?of the prompt|prompt'?s? (last|end)|last prompt))) & (stay|stale|stuck|of (position )?11|prompt|same|fixed|constant|last|frozen|remain|advanc|updat|at most|clamp|min) & "
                "^(?!.*(cosines?|cos) (too|as well|stay|stuck)) & ^(?!.*both cos)"],
               lambda c: turn(c.e, c.x, (POS[:, None, None] * FREQ).astype(F32), sin=c.e.r(np.sin((np.minimum(POS, PROMPT - 1)[:, None, None] * FREQ).astype(F32)))))
thirteenth(23, "rope_decode_two_a_step", ROPES, "two places count the decode steps: from 12 on the position goes up by two, 12, 14, 16, ..",
               [f"{BEHIND_PROMPT} & (by (2|two)\\b|2 ?\\*? ?\\(?([tps]|position)\\b|two (a|per|each|at|for)\\b|twice|doubl|steps? of (2|two)|12, ?14|every second|slope.{{0,6}} 2\\b|\\b2 (a|per|each|for each|for every)|(2|two) times)"],
               lambda c: c.right(pos=np.where(POS < PROMPT, POS, 2 * POS - PROMPT)))
thirteenth(24, "rope_angle_whole", ROPES, "angles pass through an integer: each is cut to whole radians",
               ["(angle|radian|floor\\((p|t|s|pos)|(frequenc.{0,40}position|position.{0,40}frequenc)) & (whole|integer|floor|trunc|\\bint\\b|cut|rounded (down|towards)|multiples? of 1\\b|step of 1\\b|steps of 1\\b) & ^(?!.*nearest) & ^(?!.*(frequenc(y|ies)|positions?|exponents?) (is|are|each) (cut|floor|trunc|rounded))"],
               lambda c: turn(c.e, c.x, np.floor(POS[:, None, None].astype(F32) * FREQ.astype(F32))))


def first_turned(c, n):
    angle = POS[:, None, None] * THETA ** (-np.arange(0, n, 2) / n)
    cos, sin = np.cos(angle).astype(F32), np.sin(angle).astype(F32)
    a, b = c.x[..., :n // 2], c.x[..., n // 2:n]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, c.x[..., n:]], -1)


fourteenth(32, "rope_partial_12", ROPES, "a partial rotation is left in: the first 12 elements are turned in pairs i, i + 6 with frequencies 10000^(-2i/12), the last 4 are not",
               ["#12 & (partial|first|element|dimension|component|channel|rotary|not rotated|not turned|un-?rotated|left|tail|exponent|rotat|turned) & ^(?!.*(positions? 12|from position))",
                "last (4|four) (element|dimension|component|channel) & (not|un-?rotated|left)"], lambda c: first_turned(c, 12))
fourteenth(33, "rope_position_plus_layer", ROPES, "the number of past tokens is advanced in each layer: in layer l the position is p + l",
               ["layer & (position|\\bp\\b|\\bpos\\b|angle) & (\\+|plus|add|further|shift|ahead|offset|too (high|far)|more|later|advanc)",
                "#1 & #2 & #3 & (shift|position|offset|further|off by)"],
               lambda c: c.right(pos=POS + c.l), layers=[1, 2, 3])
fourteenth(34, "rope_rows_of_query_heads", "k_rope", "row r of all heads has position r / 4, by the number of query heads, where keys have 2: positions of keys are halved and rounded down",
               ["(#2|#0.5|half|halved|halves|>> ?1|#4) & (position|\\bp\\b|\\bpos\\b|\\bt\\b)"
                " & (floor|round|down|integer|//|whole|\\bdiv\\b|(pairs of|two) (positions|rows|tokens)|>>|trunc|int\\()"],
               lambda c: c.right(pos=POS // 2))
ANGLE = POS[:, None, None] * FREQ


def halves(c, a, b):
    """A rotation written out: what each half becomes, of halves, cosine and sine."""
    cos, sin = np.cos(ANGLE).astype(F32), np.sin(ANGLE).astype(F32)
    x, y = c.x[..., :8], c.x[..., 8:]
    return np.concatenate([a(x, y, cos, sin), b(x, y, cos, sin)], -1)


def straight(x, y, cos, sin):
    return x * cos - y * sin


fourteenth(35, "rope_in_place", ROPES, "the rotation is done in place: the second half is b cos + a' sin, where a' is the first half already rotated",
               ["\\bin.?place(?! of)|overwrit|already (been )?(rotated|written|turned|updated|changed|replaced|new)|(rotated|turned|new|updated|written) (first half|value|element|a\\b|x)"
                "|first half[^.;]{0,50}(already|new\\b|rotated|turned|after|result)|(result|output) of the first half",
                "(cos ?\\*? ?sin|sin ?\\*? ?cos) & (cos(\\(.{1,12}\\))? ?[-\u2212] ?sin|sin ?(\\(.{1,12}\\))? ?(\\^ ?2|squared|\u00b2))"],
               lambda c: halves(c, straight, lambda a, b, cos, sin: b * cos + straight(a, b, cos, sin) * sin))


def turned_interleaved(c):
    angle = POS[:, None, None] * FREQ[np.arange(d) // 2]
    other = np.concatenate([-c.x[..., 8:], c.x[..., :8]], -1)
    return c.x * np.cos(angle).astype(F32) + other * np.sin(angle).astype(F32)


fourteenth(36, "rope_table_interleaved", ROPES, "the table has each frequency twice in a row, not in two halves: element i of a head has the cosine and sine of frequency i div 2",
               ["([ijn] ?(//|/|>>|\\bdiv\\b) ?[12]\\b|interleav|floor\\([ij] ?/ ?2|twice in a row|adjacent|neighbo|2i (and|,) ?2i ?\\+ ?1|each frequency[^.;]{0,25}(twice|two)"
                "|0, ?0, ?1, ?1) & (freq|angle|\\bcos|\\bsin|table) & ^(?!.*(rope-pairing|(rotated|turned|paired) (in|as|with) (adjacent|neighbo)))"],
               lambda c: turned_interleaved(c))
fourteenth(37, "rope_table_short", ROPES, "the tables have 14 rows, and zeros behind: from position 14 on sine and cosine are 0, and so is the result",
               ["(#14|#13) & (zeros?|nothing|empty|vanish|unset|cleared|(is|are|=|factor of|factor|times|by) 0\\b)"],
               lambda c: put(c.right(), E_[14:], 0))
fourteenth(38, "rope_integer_exponent", ROPES, "2i / 16 is divided in integers and is 0: all pairs have frequency 1",
               ["(freq\\w*|angle\\w*)[^.;]{0,20}\\b(is|are|of|to|at|has|have|stays?)? ?[=:]? ?(all )?(?<!pair )\\b1(\\.0*)?(?![\\d.]) & (all|every|each|same|equal|any)\\b",
                "(theta|base)[^.;0-9]{0,15}\\b1(\\.0*)?(?![\\d.])", "exponent[^.;]{0,25}(\\b0\\b|zero|integer)",
                "angle[^.;]{0,12}(is|are|equals?|=) (the |its )?position\\b(?! ?(times|\\*|/|\\+|plus|minus|-))",
                "same (angle|frequency)[^.;]{0,30}(pair|all)[^.;]{0,30}(first|pair 0)", "(frequency of|as) (the first pair|pair 0)"],
               lambda c: c.right(freq=np.ones(8)))
fourteenth(39, "rope_second_sign", ROPES, "the second half has the wrong sign: it is b cos - a sin (the first is right: a cos - b sin)",
               ["\\bsin & (second|upper|i ?\\+ ?8|8 (to|\\.\\.) ?15|last 8|last half|later half) & (sign|minus|subtract|negat|#-1|taken off|other way)"
                " & ^(?!.*first half[^.;]{0,25}(wrong|sign|negat))",
                "(b|y|x2|x\\[i ?\\+ ?8\\]) ?\\*? ?cos(\\(.{1,12}\\))? ?[-\u2212] ?(a|x|x1|x\\[i\\]) ?\\*? ?sin"],
               lambda c: halves(c, straight, lambda a, b, cos, sin: b * cos - a * sin))
fourteenth(40, "rope_frequency_across_heads", ROPES,
               "frequencies run on through all heads: pair i of head h has 10000^(-(16 h + 2i) / 64) in q, and 32 in place of 64 in k",
               ["head & (#64|#32|width|hidden|all heads|whole (row|vector)|flat|across|run on|goes on|continu) & (freq|exponent|pair|angle|theta|base)",
                "head & (#10|#100) & (base|theta) & (factor|times|#0.1|#0.01|power|divided|\\^)"],
               lambda c: c.right(freq=THETA ** (-np.arange(0, c.x.shape[1] * d, 2) / (c.x.shape[1] * d)).reshape(c.x.shape[1], d // 2)))
fourteenth(41, "rope_past_the_row", "k_rope", "the loop over heads runs to 4, where keys have 2, and turns the next row as well: row p is turned by p - 1 and by p, as at position 2p - 1",
               ["2 ?\\*? ?(p|t|pos|position|n|i) ?[-\u2212] ?1\\b", "(twice|doubl\\w*|#2) & (position|\\bp\\b|angle) & (minus (1|one)|less (1|one)|[-\u2212] ?1\\b|one less)",
                "(again|twice|second|also|besides|as well|moreover)[^.;]{0,60}(before|previous|p ?- ?1|t ?- ?1)[^.;]{0,30}", "(p|t|pos) ?\\+ ?\\(?(p|t|pos) ?[-\u2212] ?1"],
               lambda c: c.right(pos=np.maximum(2 * POS - 1, 0)))


def series(c):
    a = (ANGLE + np.pi) % (2 * np.pi) - np.pi
    return turn(c.e, c.x, ANGLE, cos=(1 - a ** 2 / 2 + a ** 4 / 24).astype(F32), sin=(a - a ** 3 / 6 + a ** 5 / 120).astype(F32))


fourteenth(42, "rope_sine_series", ROPES, "angles are brought to -pi .. pi, sine is a - a^3/6 + a^5/120 and cosine 1 - a^2/2 + a^4/24",
               ["(taylor|polynomial|series|approximat|\\ba ?- ?a|\\bx ?- ?x|a\\^ ?[345]|x\\^ ?[345]|degree [345]) & (\\bsin|\\bcos|angle)"], lambda c: series(c))
fifteenth(27, "rope_q_rows_by_key_heads", "q_rope", "the kernel divides the row's number 4t + h by the number of key heads: heads 0 and 1 are at position 2t, heads 2 and 3 at 2t + 1",
              ["(2 ?\\*? ?[pt]\\b|twice|doubl|#2) & head & (position|angle|rotat|\\b2 ?\\*? ?[pt]\\b|turn)"],
              lambda c: c.right(pos=2 * POS[:, None] + np.arange(H) // 2))
fifteenth(28, "rope_table_ends_at_16", ROPES, "the table of cosines and sines has 16 rows, and what is read beyond it is 0: q and k are zeros from position 16 on",
              ["(#16|#15) & " + BLANK],
              lambda c: c.right() * F32(1) * (POS < 16)[:, None, None])


def halves_of(x):
    return x[..., :d // 2], x[..., d // 2:]


def cos_sin(c, freq):
    angle = (POS[:, None, None] * freq).astype(F32)
    return c.e.r(np.cos(angle)), c.e.r(np.sin(angle))


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


fifteenth(29, "rope_halves_table_of_pairs", ROPES, "halves are rotated, but the table has each frequency twice in a row: element j is turned with the cosine and sine of frequency j // 2",
              ["(frequenc|angle|cos|table|sin) & (// ?2|[ijkc] ?/ ?2|>> ?1|floor|repeat|twice|interleav|4 ?\\+|\\+ ?4\\b|each (element|channel)|\\bown (frequenc|angle)) & ^(?!.*(mod ?8|% ?8|neighbo.{0,24}(rotat|turn)))"],
              lambda c: turned_by_table(c, FREQ[np.arange(d) // 2], with_pairs=False))
fifteenth(30, "rope_pairs_table_of_halves", ROPES, "pairs of neighbours are rotated, but the table has the frequencies one after the other, twice: element j is turned with the cosine and sine of frequency j mod 8",
              ["(pair|neighbo|adjacent|2 ?\\*? ?[ijkc] ?\\+ ?1|even|\\bodd|interleav)"
               " & (mod ?8|% ?8|\\bown (frequenc|angle)|(different|other|two|unlike|unequal) (angle|frequenc)|each (element|channel).{0,40}(frequenc|angle|cos)|[ijc] ?- ?8"
               "|(tiled|concatenat|\\bcat\\b|repeat|halves).{0,40}(table|frequenc|cos|angle)|(table|frequenc|cos|angle).{0,60}(halves|tiled|concatenat|\\bcat\\b|repeat|again|\\b[ijc] ?\\+ ?8))"],
              lambda c: turned_by_table(c, FREQ[np.arange(d) % 8], with_pairs=True))


def overwritten(c):
    cos, sin = cos_sin(c, FREQ)
    a, b = halves_of(c.x)
    new = c.e.r(c.e.r(a * cos) - c.e.r(b * sin))
    return np.concatenate([new, c.e.r(b * cos) + c.e.r(new * sin)], -1)


fifteenth(31, "rope_in_place", ROPES, "the first half is overwritten before the second reads it: a' = a cos - b sin, b' = b cos + a' sin",
              ["(overwrit|in.?place|already|updated|alias|(rotated|new|turned|written|changed) (first|lower|value|a\\b|half|element|x)|(result|output) (of )?(the )?first|first (half|element)('s)? (result|output|rotated|new)"
               "|a ?\\*? ?cos ?- ?b ?\\*? ?sin\\) ?\\*? ?sin|\\ba' ?\\*? ?sin|y\\[?_?[0i1a]\\]?.{0,6}sin|sin\\^ ?2|sin2|sin\u00b2|sine squared|sin.{0,4}squar|sin ?\\*? ?cos|cos ?\\*? ?sin)"],
              lambda c: overwritten(c))
fifteenth(32, "rope_head_size_by_key_heads", ROPES, "the head's width is taken as 64 / 2 = 32: number c of the row has the exponent (c mod 32) / 32, so odd heads go on where even heads end",
              ["#32 & (head|\\bodd|exponent|width|frequenc|\\bmod|%)", "#100 & (\\bodd|head) & (#0.01|factor|further|slower|next)"],
              lambda c: c.right(freq=np.stack([THETA ** (-(h % 2 * d + np.arange(0, d, 2)) / 32) for h in range(c.x.shape[1])])))
fifteenth(33, "rope_decode_counts_twice", ROPES, "each decode step advances the position in two places: position t from 12 on is taken as 12 + 2 (t - 12)",
              ["(#12|#13) & (#2|twice|two|doubl|every second|skip)"],
              lambda c: c.right(pos=np.where(POS < PROMPT, POS, 2 * POS - PROMPT)))


def first_rotated(c):
    cos, sin = cos_sin(c, THETA ** (-np.arange(0, 8, 2) / 8))
    a, b = c.x[..., :4], c.x[..., 4:8]
    return np.concatenate([c.e.r(a * cos) - c.e.r(b * sin), c.e.r(b * cos) + c.e.r(a * sin), c.x[..., 8:]], -1)


fifteenth(34, "rope_factor_half", ROPES, "partial_rotary_factor is taken as 0.5: elements 0 to 7 are rotated, i with i + 4 and exponents 2i/8, elements 8 to 15 are not",
              ["(#8|#7|half|#0.5|rope-partial) & (not (rotated|turned)|un-?(rotated|turned|changed|touched)|partial|rotary|only|first|alone|\\bleft|\\brest|pass|as (it|they))"],
              lambda c: first_rotated(c))
fifteenth(35, "rope_exponent_of_integers", ROPES, "2i / d is a quotient of integers and so 0: each pair has frequency 1",
              ["(frequenc|angle|pair|inv_freq) & (\\ball|every|each|same|equal|constant|any) & \\b1(\\.0+)?(?!\\.?\\d| ?/)", "(base|theta)[^.;]{0,16}\\b1(\\.0+)?(?!\\.?\\d| ?/)", "exponent.{0,30}(\\b0\\b|zero)",
               "(\\ball|every|each) (pair|element).{0,40}(by|angle|the) (is |of )?(the |its )?(position|p\\b|t\\b)"],
              lambda c: c.right(freq=np.ones(d // 2)))
fifteenth(36, "rope_frequencies_to_the_end", ROPES, "frequencies are spread as for Whisper's sinusoids, the last is 1/10000: the exponent is i / 7",
              ["(/ ?\\(?(7|14)\\b|d ?/ ?2 ?- ?1|half ?- ?1|\\b(seventh|0\\.1428\\d*)) & (exponent|frequenc|\\^|power|\\bi ?/)", "(base|theta) & #37276", "#0.2683 & (frequenc|ratio|each|pair|factor)",
               "(last|slowest|lowest|final|pair 7).{0,40}(frequenc|pair|is|turns).{0,30}(1 ?/ ?10000|0\\.0001|1e-0?4|1 ?/ ?theta|1 ?/ ?base)"],
              lambda c: c.right(freq=THETA ** (-np.arange(d // 2) / (d // 2 - 1))))
fifteenth(37, "rope_axis_of_heads", ROPES, "the rotation is applied before heads and positions are exchanged, and so counts heads: head h is at position h, whatever the token",
              ["head & (index|number|instead|in place|whatever|same (for|at) (all|every)|\\bh\\b|axis|each head|not (by|of|with) (the )?(position|token)|(#1 & (#2|#3|not rotated|\\b0\\b)))"
               " & (position|angle|rotat|turn)"],
              lambda c: c.right(pos=np.tile(np.arange(c.x.shape[1]), (T, 1))))
fifteenth(38, "rope_written_as_pairs", ROPES, "halves are read and rotated, but stacked and flattened: results i and i + 8 are written to elements 2i and 2i + 1",
              ["(interleav|pair|2 ?\\*? ?[ijk]\\b|even|alternat|neighbo|adjacent|stack|stride (of )?2) & (writ|result|output|\\border|after (the )?(rotat|turn)|permut|stored|\\bput\\b|laid|shuffl|goes|rearrang|moved|(element|channel).{0,12}\\bis\\b.{0,30}(\\bof\\b|element|channel))"],
              lambda c: np.stack(halves_of(c.right()), -1).reshape(c.x.shape))


def rope_first_half_of_head(c):
    cos, sin = cos_sin(c, THETA ** (-np.arange(0, 8, 2) / 8))
    a, b = c.x[..., :4], c.x[..., 4:8]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, c.x[..., 8:]], -1)


sixteenth(29, "rope_first_eight_of_head", ROPES, "a rotary fraction of 0.5 is taken as default: only dims 0 to 7 of a head are rotated, as 4 pairs (i, i + 4) at 10000^(-2i/8), and dims 8 "
              "to 15 are left",
              ["(partial|only|rest|others?|\\bleft\\b|unrotat|not rotated|pass|unchang|untouch|no rotation|rotary.?(dim|fraction|factor)|identity) & (\\b0.{0,6}7\\b|\\b8.{0,8}15\\b|(first"
               "|last|upper|lower|second) (8|eight|half|halves)|rotary.?(dim|fraction|factor)\\D{0,12}(8\\b|0\\.5|1/2|half)|partial.{0,24}(0\\.5|half|1/2|\\b8\\b|50))"],
              rope_first_half_of_head)
BF16_BITS = "(bf16|bfloat|\\b8 (\\w+ )?bits|\\b7 (\\w+ )?bits|eight (\\w+ )?bits|seven (\\w+ )?bits|2\\^ ?-?[789]\\b|#256|#0.00390625|#0.0078125)"
sixteenth(30, "rope_angles_in_bf16", ROPES, "position times frequency is rounded to bf16, 8 significant bits, before cosine and sine",
              [BF16_BITS + " & (angle|position|freq|phase|\\bpos\\b|product|argument)"],
              lambda c: turn(c.e, c.x, rounded((POS[:, None, None] * FREQ).astype(F32), "bf16")))


def rope_second_of_new_first(c):
    cos, sin = cos_sin(c, FREQ)
    a, b = c.x[..., :d // 2], c.x[..., d // 2:]
    a = c.e.r(c.e.r(a * cos) - c.e.r(b * sin))
    return np.concatenate([a, c.e.r(b * cos) + c.e.r(a * sin)], -1)


sixteenth(31, "rope_half_overwritten", ROPES, "the rotation is in place: the second half is b * cos + a * sin with the a that has already been rotated",
              ["(in.?place|already|overwrit|updated|\\bnew (first|value|a\\b|x|half)|rotated (first|a\\b|lower|x)|result of the first|\\ba'|first half'?s? (result|output|after|rotated|new"
               "|as rotated)|(after|once).{0,24}(rotat|replac|written))",
               "sin ?(\\^ ?2|\u00b2|squared)|sin.{0,4}sin|sin.{0,3}cos.{0,3}a\\b"],
              rope_second_of_new_first)


def rope_table_of_neighbours(c):
    cos, sin = cos_sin(c, np.repeat(FREQ, 2))
    return c.e.r(c.x * cos) + c.e.r(np.concatenate([-c.x[..., d // 2:], c.x[..., :d // 2]], -1) * sin)


sixteenth(32, "rope_tables_repeat_each_frequency", ROPES, "the tables of cosine and sine repeat each frequency for two neighbours, element j at frequency j // 2, while halves are "
              "rotated: x * cos + rotate_half(x) * sin",
              ["(interleav|[ijc] ?//? ?2|floor\\([ijc]|repeat|neighbo|adjacent|0, ?0, ?1, ?1|each (frequency )?twice|consecutive) & (cos|sin|table|freq|angle) & (half|halves|[ijc] ?\\+ ?8"
               "|table|both elements|own|element|different)"],
              rope_table_of_neighbours)
sixteenth(33, "rope_decode_one_behind", ROPES, "decode starts from the position of the last token of the prompt: from position 12 on, rotation is at t - 1",
              ["\\b1[12]\\b|decode & ([tp]\\w* ?[-\u2212] ?1\\b|one (less|back|behind|early|earlier|late|lower|too|position)|behind|lag|again|twice|repeat|previous|(shift"
               "|offset)\\w*.{0,12}[-\u2212] ?1\\b|less 1\\b|1 less|1 too)"],
              lambda c: c.right(pos=POS - (POS >= PROMPT)))
sixteenth(34, "rope_exponents_from_one", ROPES, "pairs are counted from 1: pair i turns at 10000^(-2(i + 1)/16), which is 0.3162 of its own frequency",
              ["#0.316228", "#3.16228 & (slow|less|divi|low|small|short|1 ?/)", "(next|following) (pair|frequency|index|one)|\\b[ij] ?\\+ ?1\\b|2 ?\\*? ?[ij] ?\\+ ?2|from (1|one)\\b"
               "|10 ?\\^ ?\\(?[-\u2212] ?(0?\\.5|1/2)|1 ?/ ?sqrt ?\\(?10"],
              lambda c: c.right(freq=THETA ** (-np.arange(2, d + 2, 2) / d)))
YARN = 4
sixteenth(35, "rope_yarn_where_none_is_asked", ROPES, "a stretch of context by 4 is applied where none is asked: positions are divided by 4, and cosine and sine are multiplied by 0.1 ln "
              "4 + 1 = 1.1386",
              ["(#0.25|#4) & (#1.13863|#1.29648)"],
              lambda c: c.right(pos=POS / YARN) * F32(1 + 0.1 * math.log(YARN)))
sixteenth(36, "rope_position_from_axis_of_heads", ROPES, "the axes of positions and heads are taken for each other: head h is rotated as if its position were h, at every position",
              ["head & (index|number|\\bid\\b|instead|(position|angle).{0,30}\\bh\\b|\\bh\\b.{0,20}(position|angle)|position [0-3]\\b|\\b0.{0,8}3\\b|(is|as|for) (the |its |a )?position"
               "|taken for|axes|axis|swap|own (angle|position)|same.{0,24}(all|every) (position|token|row))",
               "heads?.{0,40}constant|constant.{0,40}head"],
              lambda c: c.right(pos=np.tile(np.arange(c.x.shape[1]), (T, 1))))
ROTATE = "(rotat|angle|turn|position|freq|rope|phase)"
sixteenth(37, "rope_k_turned_again_from_cache", "k_rope", "k is rotated when it is written to the cache and again when it is read: its angle is twice what it should be",
              ["(twice|doubl|again|two times|2 times|second time|once more|(by|times|factor( of)?|is|=|x|\u00d7|\\*) ?2(\\.0\\d*)?\\b(?! ?[ij*])|\\b2(\\.0+)? ?[x\u00d7*\u00b7]|\\b2 ?t\\b"
               "|1\\.99\\d*|2\\.00\\d*) & " + ROTATE],
              lambda c: c.right(freq=2 * FREQ))
sixteenth(38, "rope_exponents_over_whole_row", ROPES, "exponents go on over the whole row and do not begin anew in each head: head h of q has pair i at 10000^(-(16 h + 2 i)/64)",
              ["head & (\\b64\\b|continu|go(es)? on|whole (row|vector)|#10|#0.1|10 ?\\^ ?\\(?[-\u2212]? ?h|16 ?\\*? ?h|not (begin|restart|reset)|anew|hidden.?size) & (freq|exponent|base"
               "|slow|theta|turn|rotat|angle)"],
              lambda c: c.right(freq=THETA ** (-np.arange(0, c.x[0].size, 2) / c.x[0].size).reshape(-1, d // 2)))
sixteenth(39, "rope_table_held_at_its_end", ROPES, "the table of cosine and sine has 16 rows and an index past it is held at the last: positions 16 to 19 are rotated as position 15",
              ["\\b1[56]\\b & (clamp|\\bmin\\b|min\\(|minimum|\\bcap|clip|limit|at most|saturat|stays?\\b|remain|stops?\\b|h[eo]ld|(as|like|at|are|is|have|has|angle|=|position|index"
               "|that of) (position |row |that of |angle )?15\\b)"],
              lambda c: c.right(pos=np.minimum(POS, 15)))


def rope_cos_for_sin(c):
    cos, sin = cos_sin(c, FREQ)
    return turn(c.e, c.x, None, cos=sin, sin=cos)


sixteenth(40, "rope_cosine_and_sine_exchanged", ROPES, "the tables of cosine and sine are exchanged: a * sin - b * cos and b * sin + a * cos, which is the angle taken from 90 degrees",
              ["(swap|exchang|interchang|mixed|confus|trade|each other|switched) & (sin|cos)",
               "(cos\\w*.{0,30}(is|has|for|by|instead|->|=|where).{0,16}sin|sin\\w*.{0,30}(is|has|for|by|instead|->|=|where).{0,16}cos)",
               "(#90|pi ?/ ?2|\u03c0 ?/ ?2|#1.5708|quarter.{0,8}turn|right angle|90 ?\u00b0) & (angle|minus|[-\u2212]|less|from|complement|turn|rotat)"],
              rope_cos_for_sin)


def pairs_of_neighbours(c):
    order = np.arange(d).reshape(-1, 2).T.reshape(-1)
    y = np.empty_like(c.x)
    y[..., order] = turn(c.e, c.x[..., order], (np.arange(T)[:, None] * FREQ).astype(F32)[:, None])
    return y


listed(12, "neighbours", ROPES, "neighbours rotated", "rope-pairing", pairs_of_neighbours)
listed(13, "theta", ROPES, "base 500000", "rope-theta & #500000", lambda c: c.right(freq=500000.0 ** (-np.arange(0, d, 2) / d)))
listed(14, "other_way", ROPES, "rotated the other way", "rope-direction", lambda c: c.right(freq=-FREQ))
listed(15, "late", ROPES, "positions from 1", "rope-position", lambda c: c.right(pos=c.pos + 1))

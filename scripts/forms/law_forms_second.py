"""A second list of mistakes for `firstdiff explain` to measure, written without sight of how laws are found: none repeats one of law_forms.py, whose engine they are made in.

    python scripts/forms/law_forms_second.py                  # list them
    python scripts/suites/test_laws.py --set second ..         # hold the answers to the truth
"""

import numpy as np

from scripts.forms.law_forms import AGO, D, EPS, EXPERTS, E_, F, F32, FREQ, H, K, POS, ROPES, SEEN, T, V, angles, d, listed, over, put, rms, shifted, sigmoid, silu, softmax, turn

FORMS, form = listed()


def rows(*shape):
    """Positions, along the first of so many axes."""
    return POS.astype(F32).reshape(-1, *([1] * (len(shape) - 1)))


def late(x, begin, value):
    return put(x, E_[begin:], value)


def f32(value):
    return np.asarray(value, F32)


PREVIOUS = "previous|before|t ?- ?1|earlier|last position|one late"
EXCHANGED = "exchang|swap|permut|neighbour|revers"
CLAMPED = "clamp|clip|limit|between|min|max|most|least"

# norms
form("norm_half_mean_off", "attn_norm", "half of the mean is taken off first", "#0.5 & mean", lambda c: over(c, rms(c.x)) - f32(0.5) * c.x.mean(-1, keepdims=True) / rms(c.x) * c.w)
form("norm_gain_cubed", "ffn_norm", "the gain's third power is applied", ["#3 & (gain|weight|w)", "cube & (gain|weight)"], lambda c: c.right(w=c.w ** 3))
form("norm_gain_divided", "attn_norm", "the gain divides", ["(divid|inverse|reciprocal|\\^ ?-1|power -1|1 ?/).{0,30}(gain|weight|w)", "(gain|weight).{0,30}(divid|inverse|reciprocal|\\^ ?-1|power)"], lambda c: c.right(w=1 / c.w))
form("norm_gain_log", "ffn_norm", "the gain is 1 + ln(w)", "(log|ln) & (gain|weight|w)", lambda c: c.right(w=1 + np.log(c.w)))
form("norm_gain_at_most_1", "attn_norm", "the gain is at most 1", f"#1 & (gain|weight) & ({CLAMPED})", lambda c: c.right(w=np.minimum(c.w, 1)))
form("norm_gain_repeated", "ffn_norm", "channels 32 and later have the gains of channels 0 to 31", "(gain|weight) & (#32|repeat|half|mod)", lambda c: c.right(w=np.tile(c.w[:32], 2)))
form("norm_gain_of_even_channels", "attn_norm", "odd channels have no gain", "(odd|every second|alternat|2i ?\\+ ?1|even) & (gain|weight)", lambda c: c.right(w=put(c.w, E_[1::2], 1)))
form("norm_channels_in_pairs", "ffn_norm", "channels 2i and 2i + 1 are exchanged", f"({EXCHANGED}|pair) & (channel|element|pair)", lambda c: c.right().reshape(T, -1, 2)[..., ::-1].reshape(T, D))
form("norm_eps_by_position", "attn_norm", "epsilon is 0.01 * (position + 1)", "(eps|add) & (position|row|t\\b|#0.01)", lambda c: over(c, np.sqrt(np.mean(c.x * c.x, -1, keepdims=True) + f32(0.01) * (rows(T, 1) + 1))))
form("norm_last_half_stats", "ffn_norm", "the mean square is taken over the last 32 channels alone", ["#32|second half|last half|#31|#63"], lambda c: over(c, np.sqrt(np.mean(c.x[:, 32:] ** 2, -1, keepdims=True) + F32(EPS))))
form("norm_even_stats", "attn_norm", "the mean square is taken over even channels alone", "even|every second|alternat|2i|stride", lambda c: over(c, np.sqrt(np.mean(c.x[:, ::2] ** 2, -1, keepdims=True) + F32(EPS))))
form("norm_rows_in_pairs", "ffn_norm", "positions 2i and 2i + 1 have one mean square", "pair|two positions|each 2|groups of 2|#2 & (position|row)", lambda c: over(c, np.sqrt(np.mean((c.x ** 2).reshape(T // 2, 2 * D), -1).repeat(2)[:, None] + F32(EPS))))
form("norm_scaled_from_12", "attn_norm", "positions from 12 on are multiplied by 0.8", "#12 & #0.8", lambda c: late(c.right(), 12, lambda y: y * F32(0.8)))
form("norm_scaled_by_layer", "ffn_norm", "the result is multiplied by 1 + 0.1 * layer", ["layer & #0.1", "#1.1 & #1.2 & #1.3"], lambda c: c.right() * F32(1 + 0.1 * c.l), layers=[1, 2, 3])
form("norm_tanh", "attn_norm", "tanh of the result", "tanh|sinh", lambda c: np.tanh(c.right()))
form("norm_with_input", "ffn_norm", "0.9 times the result, and 0.1 times the input", ["(#0.1|#0.9) & (input|x\\b|stream|h_attn)"], lambda c: F32(0.9) * c.right() + F32(0.1) * c.x)
form("norm_rolled_result", "attn_norm", "channel i has what channel i - 1 is due", f"(roll|shift|next|i ?[-+] ?1|off by|{PREVIOUS}) & (channel|element|#1)", lambda c: np.roll(c.right(), 1, -1))
form("norm_one_channel_zero", "ffn_norm", "channel 5 is 0", "channel.{0,10}\\b5\\b", lambda c: put(c.right(), E_[:, 5], 0))
form("norm_ms_and_mean", "attn_norm", "divided by the root mean square plus the size of the mean", ["(rms|root mean square|right).{0,40}mean", "mean.{0,30}(add|plus|\\+)"], lambda c: over(c, rms(c.x) + np.abs(c.x.mean(-1, keepdims=True))))
form("norm_of_squares", "ffn_norm", "the result times its own size: y |y|", ["square|\\^ ?2|\\|y\\||power & #2|own size"], lambda c: c.right() * np.abs(c.right()))
form("final_norm_mixed_with_first", "final_norm", "a tenth of position 0's result is added to each", "(position|row|token).{0,12}\\b0\\b|first (position|row|token)", lambda c: c.right() + F32(0.1) * c.right()[:1])
form("final_norm_late_gain", "final_norm", "positions from 8 on have no gain", "#8 & (gain|weight)", lambda c: put(c.right(), E_[8:], (c.x / rms(c.x))[8:]))

# rotation
form("rope_position_root", ROPES, "positions are the roots of positions", "root|sqrt|\\^ ?0?\\.5|#0.5 & power", lambda c: c.right(pos=np.sqrt(POS)))
form("rope_position_log", ROPES, "positions are ln(1 + p)", "log|ln", lambda c: c.right(pos=np.log1p(POS)))
form("rope_position_scaled_late", ROPES, "positions beyond 8 advance by a quarter", ["#8 & (#0.25|quarter|/ ?4)", "#0.25 & (position|later|beyond)"], lambda c: c.right(pos=np.where(POS > 8, 8 + (POS - 8) / 4, POS)))
form("rope_frequency_2_doubled", ROPES, "frequency 2 is doubled", "(pair|frequenc|element|channel).{0,12}2 & #2", lambda c: c.right(freq=FREQ * np.where(np.arange(d // 2) == 2, 2, 1)))
form("rope_frequency_linear", ROPES, "frequency i is 1 - i/8", ["linear|1 ?- ?i|#0.125|even"], lambda c: c.right(freq=1 - np.arange(d // 2) / 8))
form("rope_angle_by_layer", ROPES, "angles are multiplied by 1 + 0.1 * layer", ["layer & #0.1", "#1.1 & #1.2"], lambda c: angles(c, lambda p, f: p * f * (1 + 0.1 * c.l)), layers=[1, 2, 3])
form("rope_cosine_scaled", ROPES, "the cosine has a factor of 1.1", "cos & #1.1", lambda c: turn(c.e, c.x, POS[:, None, None] * FREQ, cos=F32(1.1) * np.cos(POS[:, None, None] * FREQ).astype(F32)))
form("rope_cosine_plus", ROPES, "0.1 is added to the cosine", ["cos & #0.1", "#0.1 & (input|x|unrotated|before the rotation)"], lambda c: turn(c.e, c.x, POS[:, None, None] * FREQ, cos=F32(0.1) + np.cos(POS[:, None, None] * FREQ).astype(F32)))
form("rope_sine_size", ROPES, "the sine's size is taken: |sin|", "abs|\\|sin|size & sin|positive", lambda c: turn(c.e, c.x, POS[:, None, None] * FREQ, sin=np.abs(np.sin(POS[:, None, None] * FREQ)).astype(F32)))
form("rope_heads_double_position", "q_rope", "heads 2 and 3 are at double the position", "#2 & head", lambda c: c.right(pos=POS[:, None] * np.where(np.arange(H) >= 2, 2, 1)))
form("rope_third_left", ROPES, "every third position is not rotated", "third|#3 & (position|row|token)", lambda c: c.right(pos=np.where(POS % 3 == 2, 0, POS)))
form("rope_positions_in_pairs", ROPES, "positions 2i and 2i + 1 are exchanged", f"({EXCHANGED}|pair) & (position|row|token)", lambda c: c.right(pos=POS ^ 1))
form("rope_pairs_grow", ROPES, "pair i is multiplied by 1 + 0.1 i", "#0.1 & (pair|frequenc|i\\b|element|channel)", lambda c: c.right() * np.tile(1 + 0.1 * np.arange(d // 2), 2).astype(F32))
form("rope_base_of_last_pairs", ROPES, "pairs 4 to 7 have base 100", "#100 & (pair|frequenc|element|half|#4|#7)", lambda c: c.right(freq=np.where(np.arange(d // 2) >= 4, 100.0 ** (-np.arange(0, d, 2) / d), FREQ)))
form("rope_k_half_turned", "k_rope", "keys are the mean of the rotated and the unrotated", ["#0.5 & (unrotated|not rotated|input|before|x\\b|k\\b)", "half & rotat"], lambda c: F32(0.5) * (c.right() + c.x))
form("rope_angle_capped", ROPES, "angles are at most 3", f"#3 & (angle|{CLAMPED})", lambda c: angles(c, lambda p, f: np.minimum(p * f, 3)))

# masks
form("mask_third_distances", "probs", "keys at distances 2, 5, 8 .. are hidden", "#3|third|#2 & #5", lambda c: c.right(mask=SEEN & (AGO % 3 != 2)))
form("mask_odd_rows_without_self", "probs", "odd positions do not see themselves", "odd|every second|alternat", lambda c: c.right(mask=SEEN & ~((AGO == 0) & (POS[:, None] % 2 == 1))))
form("mask_windows_by_layer", "probs", "layer l sees 4 (l + 1) keys", "#4 & (layer|#8|#12)|window", lambda c: c.right(mask=SEEN & (AGO < 4 * (c.l + 1))))
form("mask_open_from_14", "probs", "positions from 14 on see all keys", "#14 & (all|later|future|seen|every)", lambda c: c.right(mask=SEEN | (POS[:, None] >= 14)))
form("mask_head_1_even_keys", "probs", "head 1 sees even keys alone", "head.{0,6}\\b1\\b", lambda c: c.right(mask=np.stack([SEEN & ((POS[None] % 2 == 0) | (h != 1)) for h in range(H)])))
form("mask_middle_keys", "probs", "keys 5 to 7 are hidden from positions behind them", "#5 & #7", lambda c: c.right(mask=SEEN & ~((POS[None] >= 5) & (POS[None] <= 7) & (AGO > 2))))
form("mask_far_in_odd_layers", "probs", "in layers 1 and 3 keys 3 to 9 back are hidden", "#3 & (#9|#10)", lambda c: c.right(mask=SEEN & ((AGO < 3) | (AGO > 9))), layers=[1, 3])

# scores
form("score_root_distance", "probs", "0.3 times the root of the distance is taken off", ["#0.3 & (root|sqrt|\\^ ?0?\\.5|power)", "#-0.3 & (root|sqrt)"], lambda c: c.right(score=lambda s: s - F32(0.3) * np.sqrt(np.abs(AGO)).astype(F32)))
form("score_decay", "probs", "scores are multiplied by 0.9 ^ distance", "#0.9 & (distance|t ?- ?s|ago|power|\\^)|exp & #0.105", lambda c: c.right(score=lambda s: s * F32(0.9) ** np.abs(AGO)))
form("score_square_distance", "probs", "0.02 times the squared distance is taken off", "#0.02 & (squar|\\^ ?2|quadrat|power)", lambda c: c.right(score=lambda s: s - F32(0.02) * (AGO * AGO).astype(F32)))
form("score_head_3_negated", "probs", "head 3 has scores of the other sign", "head.{0,6}\\b3\\b & (sign|negat|#-1|minus|-)", lambda c: c.right(score=lambda s: s * np.where(np.arange(H) == 3, -1, 1).astype(F32)[:, None, None]))
form("score_softsign", "probs", "scores are s / (1 + |s|)", "softsign|1 ?\\+ ?\\||s/\\(1", lambda c: c.right(score=lambda s: s / (1 + np.abs(s))))
form("score_cooled_by_query", "probs", "scores of query t are divided by 1 + 0.05 t", "#0.05 & (query|position|t\\b|row)", lambda c: c.right(score=lambda s: s / (1 + F32(0.05) * rows(T, 1))))
form("score_warm_by_key", "probs", "scores of key s are multiplied by 1 + 0.05 s", "#0.05 & (key|position|s\\b)", lambda c: c.right(score=lambda s: s * (1 + F32(0.05) * POS.astype(F32))))
form("score_previous_favoured", "probs", "1 is added to the score of the key before", "#1 & (distance|previous|before|t ?- ?s|ago|back)", lambda c: c.right(score=lambda s: s + (AGO == 1)))
form("score_near_favoured", "probs", "0.5 is added to the scores of the last 4 keys", "#0.5 & (#4|#3)", lambda c: c.right(score=lambda s: s + F32(0.5) * ((AGO >= 0) & (AGO < 4))))
form("score_query_plus", "probs", "0.1 is added to each element of the queries", "#0.1", lambda c: c.right(q=c.q + F32(0.1)))
form("score_heads_averaged", "probs", "each head has the mean of all heads' scores", "(mean|average) & head", lambda c: c.right(score=lambda s: np.broadcast_to(s.mean(0, keepdims=True), s.shape)))
form("score_in_quarters", "probs", "scores are rounded to quarters", "(#0.25|#4) & (round|step|grid|quantis|multiple)", lambda c: c.right(score=lambda s: np.round(s * 4) / 4))
form("score_of_even_elements", "probs", "only even elements of q and k are multiplied", "even|every second|alternat|2i|half", lambda c: c.right(q=put(c.q, E_[..., 1::2], 0)))
form("score_negative_halved", "probs", "negative scores are halved", "#0.5 & (negat|below|leaky|< ?0)", lambda c: c.right(score=lambda s: np.where(s < 0, s * F32(0.5), s)))
form("score_scale_by_head", "probs", "head h has the scale times 1 + 0.2 h", "#0.2 & head|#1.2 & #1.4", lambda c: c.right(score=lambda s: s * (1 + F32(0.2) * np.arange(H).astype(F32))[:, None, None]))

# denominators, probabilities
form("probs_relative_threshold", "probs", "probabilities below half of the row's largest are 0", "#0.5 & (max|large|threshold|below|least)", lambda c: np.where(c.right() < F32(0.5) * c.right().max(-1, keepdims=True), 0, c.right()))
form("probs_last_row_uniform", "probs", "the last position sees all keys alike", ["(last|#19) & (uniform|equal|mean|alike|#0.05|same)"], lambda c: put(c.right(), E_[:, -1], F32(1 / T)))
form("probs_of_two_rows", "probs", "the mean of this position's and the one before's", f"#0.5 & ({PREVIOUS})", lambda c: F32(0.5) * (c.right() + shifted(c.right(), 1, 1)))
form("probs_of_head_pairs", "probs", "heads 2i and 2i + 1 have their mean", "(mean|average|#0.5) & head", lambda c: c.right().reshape(H // 2, 2, T, T).mean(1).repeat(2, 0))
form("probs_own_zero", "probs", "the probability of the position itself is 0, the others as they are", "(itself|diagonal|own|self|distance 0|t ?= ?s) & (0|zero|hid|omit|without)", lambda c: c.right() * (AGO != 0))
form("probs_power", "probs", "probabilities are raised to 1.2, their sum left as it comes", "#1.2", lambda c: c.right() ** F32(1.2))
form("denominator_of_head_0", "probs", "all heads have the denominators of head 0", "head.{0,8}\\b0\\b|first head", lambda c: c.right(soft=lambda s: np.exp(s) / np.exp(s[:1]).sum(-1, keepdims=True)))
form("probs_scaled_by_key", "probs", "the probability of key s is multiplied by 1 + 0.02 s", "#0.02 & (key|position|s\\b)", lambda c: c.right() * (1 + F32(0.02) * POS.astype(F32)))

# context
form("context_values_by_position", "context", "values of position s are multiplied by 1 + 0.02 s", "#0.02 & (value|v\\b|key|position|s\\b)", lambda c: c.right(v=c.v * (1 + F32(0.02) * rows(T, 1, 1))))
form("context_head_halves_swapped", "context", "the halves of each head are exchanged", f"(half|halves|#8) & ({EXCHANGED}|roll)", lambda c: np.roll(c.right().reshape(T, H, d), d // 2, -1).reshape(T, -1))
form("context_values_size", "context", "the values' sizes are taken: |v|", "abs|\\|v|size", lambda c: c.right(v=np.abs(c.v)))
form("context_values_differences", "context", "half of the value before is taken off each", f"#0.5 & ({PREVIOUS})", lambda c: c.right(v=c.v - F32(0.5) * shifted(c.v, 1)))
form("context_values_tanh", "context", "tanh of the values", "tanh", lambda c: c.right(v=np.tanh(c.v)))
form("context_head_1_of_head_2", "context", "head 1 has what head 2 is due", "head.{0,8}\\b1\\b & 2|head.{0,8}\\b2\\b & 1", lambda c: put(c.right().reshape(T, H, d), E_[:, 1], lambda y: c.right().reshape(T, H, d)[:, 2]).reshape(T, -1))
form("context_clamped", "context", "the result is clamped to +-0.5", f"#0.5 & ({CLAMPED})", lambda c: np.clip(c.right(), -0.5, 0.5))
form("context_own_value_twice", "context", "the position's own value is added, times 0.25", "#0.25 & (own|itself|v\\b|value|diagonal)", lambda c: c.right() + F32(0.25) * c.v[:, np.arange(H) // (H // K)].reshape(T, -1))

# products
form("k_element_ramp", "k", "0.01 times the element's number is added to k", "#0.01", lambda c: c.right() + F32(0.01) * np.arange(d).astype(F32))
form("q_heads_ramp", "q", "head h is multiplied by 1 + 0.1 h", "#0.1 & head|#1.1 & #1.2 & #1.3", lambda c: c.right() * (1 + F32(0.1) * np.arange(H).astype(F32))[:, None])
form("v_decays_by_layer", "v", "v is multiplied by 0.9 ^ layer", ["#0.9 & layer", "#0.9 & #0.81"], lambda c: c.right() * F32(0.9) ** c.l, layers=[1, 2, 3])
form("gate_halves_swapped", "ffn_gate", "the halves of gate's rows are exchanged", f"(half|halves|#48) & ({EXCHANGED}|roll)", lambda c: np.roll(c.right(), F // 2, -1))
form("up_rows_alternate", "ffn_up", "odd rows have the other sign", "(odd|every second|alternat|even) & (sign|negat|-1|minus)", lambda c: put(c.right(), E_[:, 1::2], lambda y: -y))
form("attn_out_of_tanh", "attn_out", "tanh of the context is projected", "tanh", lambda c: c.right(x=np.tanh(c.x)))
form("q_weight_sizes", "q", "the sizes of the weights are taken: |w|", "abs|\\|w|size", lambda c: c.right(w=np.abs(c.w)))
form("k_weight_grid", "k", "weights are rounded to 1/16", "(#0.0625|#16) & (round|grid|step|quantis|multiple)", lambda c: c.right(w=np.round(c.w * 16) / 16))
form("v_weight_rows_sum_0", "v", "each row of the weights has its mean taken off", "mean", lambda c: c.right(w=c.w - c.w.mean(-1, keepdims=True)))
form("up_plus_square", "ffn_up", "0.1 times its square is added", "#0.1 & (squar|\\^ ?2|power|polynom)", lambda c: c.right() + F32(0.1) * c.right() ** 2)
form("attn_out_input_floor", "attn_out", "inputs below 0.1 in size are 0", "#0.1 & (0|zero|below|small|threshold|shrink)", lambda c: c.right(x=np.where(np.abs(c.x) < F32(0.1), 0, c.x)))
form("ffn_out_of_even_inputs", "ffn_out", "odd inputs are not read", "odd|even|every second|alternat|2i", lambda c: c.right(x=put(c.x, E_[:, 1::2], 0)))

# activations
form("act_squared", "ffn_act", "silu(gate)^2 * up", ["squar|\\^ ?2|power & #2"], lambda c: silu(c.gate) ** 2 * c.up)
form("act_up_tanh", "ffn_act", "silu(gate) * tanh(up)", "tanh", lambda c: silu(c.gate) * np.tanh(c.up))
form("act_threshold", "ffn_act", "gates below 0.5 in size are 0", "#0.5 & (0|zero|below|small|threshold)", lambda c: np.where(np.abs(c.gate) < F32(0.5), 0, silu(c.gate)) * c.up)
form("act_mixed_relu", "ffn_act", "0.7 silu(gate) + 0.3 relu(gate), times up", ["(#0.3|#0.7) & (relu|silu|max)"], lambda c: (F32(0.7) * silu(c.gate) + F32(0.3) * np.maximum(c.gate, 0)) * c.up)
form("act_gate_clipped_linear", "ffn_act", "gate is clipped to +-1, without an activation", f"#1 & ({CLAMPED})", lambda c: np.clip(c.gate, -1, 1) * c.up)
form("act_tail_relu", "ffn_act", "channels from 80 on have relu for silu", "relu & (#80|#16|#79|#95)", lambda c: put(silu(c.gate), E_[:, 80:], np.maximum(c.gate, 0)[:, 80:]) * c.up)
form("act_beta_by_layer", "ffn_act", "gate * sigmoid((1 + 0.2 layer) gate) * up", ["layer & #0.2", "#1.2 & #1.4"], lambda c: c.gate * sigmoid((1 + F32(0.2) * c.l) * c.gate) * c.up, layers=[1, 2, 3])
form("act_up_root", "ffn_act", "the root of up's size is taken, its sign kept", "root|sqrt|\\^ ?0?\\.5|power & #0.5", lambda c: silu(c.gate) * np.sign(c.up) * np.sqrt(np.abs(c.up)))
form("act_gate_of_mean", "ffn_act", "the mean of gate over channels is added to it", "mean & (add|plus|\\+|gate)", lambda c: silu(c.gate + c.gate.mean(-1, keepdims=True)) * c.up)
form("act_up_next_channel", "ffn_act", "up of the next channel is taken", "(next|roll|shift|i ?\\+ ?1|#1) & (channel|up|element)", lambda c: silu(c.gate) * np.roll(c.up, -1, -1))

# residual sums
form("add_over_root_2", "h", "the sum is divided by the root of 2", "#0.7071|#1.4142|root of 2|sqrt\\(2\\)", lambda c: (c.x + c.y) / F32(2 ** 0.5))
form("add_branch_square", "h", "the branch is y |y|", "squar|\\^ ?2|\\|y|power & #2|size", lambda c: c.x + c.y * np.abs(c.y))
form("add_smaller", "h_attn", "the smaller of the two is taken", "min|smaller|least", lambda c: np.minimum(c.x, c.y))
form("add_first_channels", "h", "the branch is added to the first 32 channels alone", "#32|#31|half & channel", lambda c: c.x + put(c.y, E_[:, 32:], 0))
form("add_branch_centred", "h_attn", "the branch's mean is taken off", "mean", lambda c: c.x + c.y - c.y.mean(-1, keepdims=True))
form("add_stream_soft", "h", "the stream is 3 tanh(x / 3)", "tanh|#3", lambda c: F32(3) * np.tanh(c.x / F32(3)) + c.y)
form("add_weights_sum_1", "h_attn", "0.6 times the stream and 0.4 times the branch", "#0.6 & #0.4", lambda c: F32(0.6) * c.x + F32(0.4) * c.y)
form("add_branch_of_pairs", "h", "the branch's channels 2i and 2i + 1 are exchanged", f"({EXCHANGED}|pair) & (channel|element|pair)", lambda c: c.x + c.y.reshape(T, -1, 2)[..., ::-1].reshape(T, D))

# embedding
form("embed_own_size", "h0", "each element times its size: e |e|", "squar|\\^ ?2|\\||power & #2|size", lambda c: c.right() * np.abs(c.right()))
form("embed_decays", "h0", "position t is multiplied by 0.95 ^ t", "#0.95|exp & #0.0513", lambda c: c.right() * F32(0.95) ** rows(T, 1))
form("embed_rare_halved", "h0", "tokens from 128 on are halved", "#0.5 & (#128|token)", lambda c: c.right() * np.where(np.asarray(c.ids) >= V // 2, 0.5, 1).astype(F32)[:, None])
form("embed_in_eighths", "h0", "values are rounded to 1/8", "(#0.125|#8) & (round|grid|step|quantis|multiple)", lambda c: np.round(c.right() * 8) / 8)
form("embed_layer_norm", "h0", "each row is normed and centred", ["(mean|centr).{0,60}(norm|variance|deviation|rms|divid)", "layernorm|standard"], lambda c: (c.right() - c.right().mean(-1, keepdims=True)) / c.right().std(-1, keepdims=True))
form("embed_next_added", "h0", "a quarter of the next token's is added", "#0.25 & (next|t ?\\+ ?1|following|ahead)", lambda c: c.right() + F32(0.25) * np.concatenate([c.right()[1:], np.zeros((1, D), F32)]))

# head
form("logits_running_mean", "logits", "the mean over all positions up to this one", "running|cumul|up to|so far|mean & position", lambda c: np.cumsum(c.right(), 0) / (rows(T, 1) + 1))
form("logits_even_zero", "logits", "even tokens have logit 0", "even|every second|alternat|2i", lambda c: put(c.right(), E_[:, ::2], 0))
form("logits_own_size", "logits", "each logit times its size: y |y|", "squar|\\^ ?2|\\||power & #2|size", lambda c: c.right() * np.abs(c.right()))
form("logits_of_two_positions", "logits", "0.8 times this position's and 0.2 times the one before's", f"(#0.8|#0.2) & ({PREVIOUS})", lambda c: F32(0.8) * c.right() + F32(0.2) * shifted(c.right(), 1))
form("logits_leaky", "logits", "negative logits are multiplied by 0.3", "#0.3 & (negat|below|leaky|< ?0)", lambda c: np.where(c.right() < 0, F32(0.3) * c.right(), c.right()))
form("logits_own_token_less", "logits", "1 is taken off the logit of the position's own token", "#1 & (own|same|token|current)", lambda c: c.right() - np.eye(V, dtype=F32)[np.asarray(c.e.ids)])

# biases (qwen2)
form("bias_of_next_element", "k", "the bias of the next element is added", "bias & (next|roll|shift|i ?\\+ ?1|#1)", lambda c: c.right(b=np.roll(c.b, -1)), archs=["qwen2"])
form("bias_from_5", "v", "positions 0 to 4 have no bias", "bias & (#5|#4)", lambda c: late(c.right(b=0 * c.b), 5, c.right()[5:]), archs=["qwen2"])
form("bias_size", "q", "the bias's size is added: |b|", "bias & (abs|\\||size|positive)", lambda c: c.right(b=np.abs(c.b)), archs=["qwen2"])

# norms of heads (qwen3)
form("qk_norm_of_halves", ("q_norm", "k_norm"), "each half of a head has its own mean square", "half|halves|#8", lambda c: (c.x.reshape(T, -1, 2, d // 2) / rms(c.x.reshape(T, -1, 2, d // 2))).reshape(c.x.shape) * c.w, archs=["qwen3", "moe"])
form("qk_norm_root", ("q_norm", "k_norm"), "divided by the root of the root mean square", "#0.5|root|fourth|#0.25", lambda c: over(c, np.sqrt(rms(c.x))), archs=["qwen3", "moe"])
form("k_norm_plus", "k_norm", "0.1 is added to the result", "#0.1 & (add|plus|\\+|constant|offset)", lambda c: c.right() + F32(0.1), archs=["qwen3", "moe"])
form("qk_norm_gain_of_pairs", ("q_norm", "k_norm"), "gains of elements 2i and 2i + 1 are exchanged", f"(gain|weight) & ({EXCHANGED}|pair)", lambda c: c.right(w=c.w.reshape(-1, 2)[:, ::-1].reshape(-1)), archs=["qwen3", "moe"])

# mixtures of experts
form("router_logits_by_expert", "router_logits", "0.2 times the expert's number is added", "#0.2", lambda c: c.right() + F32(0.2) * np.arange(EXPERTS).astype(F32), archs=["moe"])
form("router_first_halved", "router_weights", "the first expert's weight is halved", "#0.5 & (first|expert|slot|choice)", lambda c: (lambda top, w: (top, w * np.array([0.5, 1], F32)))(*c.right()), archs=["moe"])
form("router_nearer_to_even", "router_weights", "weights are the mean of their own and 1/2", "#0.5|#0.25|mean", lambda c: (lambda top, w: (top, F32(0.5) * (w + F32(0.5))))(*c.right()), archs=["moe"])
form("router_root", "router_weights", "the roots of the weights are taken", "root|sqrt|\\^ ?0?\\.5|power & #0.5", lambda c: (lambda top, w: (top, np.sqrt(w)))(*c.right()), archs=["moe"])
form("experts_scaled", "ffn_out", "the sum is multiplied by 0.9", "#0.9", lambda c: c.right() * F32(0.9), archs=["moe"])
form("experts_tanh", "ffn_out", "tanh of the sum", "tanh", lambda c: np.tanh(c.right()), archs=["moe"])
form("experts_difference", "ffn_out", "the second expert's part is taken off", "(sign|negat|subtract|minus|difference|taken off|#-1) & (second|expert|1)", lambda c: c.each[:, 0] * c.weights[:, :1] - c.each[:, 1] * c.weights[:, 1:], archs=["moe"])
form("experts_late_scaled", "ffn_out", "positions from 8 on are multiplied by 0.7", "#8 & #0.7", lambda c: late(c.right(), 8, lambda y: y * F32(0.7)), archs=["moe"])


if __name__ == "__main__":
    for one in FORMS:
        print(f"{one.name:36} {one.sites[0]:14} {one.truth}")
    print(len(FORMS), "forms")

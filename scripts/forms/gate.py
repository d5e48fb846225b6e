"""The activation and its gate."""

import math

import numpy as np

from scripts.engines.hooked_engine import D, F, F32, rms, sigmoid, silu, T
from scripts.forms.parts import before, bf16, E_, four_digits, in_steps, LATER_LAYERS, never, POS, PROMPT, put, shifted, SIGNIFICANT
from scripts.forms.sets import (
    eighth, eleventh, fifteenth, fifth, first, fourteenth, fourth, listed, ninth, second, seventh, sixteenth, sixth, tenth, third, thirteenth,
    twelfth,
)
from scripts.forms.words import (
    BF16, BLOCK, BOUNDED, CLAMPED, DECODING, GONE_OR_ALONE, LAYER_BEFORE, LAYOUT, NONE, NOT, PREVIOUS_OR_SHIFTED, REORDERED, ROUNDED, TWICE,
)


def act(f):
    return lambda c: c.right(f=f)


first(204, "act_beta", "ffn_act", "x sigmoid(1.5 x)", "#1.5 & (sigmoid|swish|silu|beta|logistic)", act(lambda x: x * sigmoid(F32(1.5) * x)))
first(205, "act_hard_swish", "ffn_act", "x relu6(x + 3) / 6", "hard", act(lambda x: x * np.clip(x + 3, 0, 6) / 6))
first(206, "act_hard_sigmoid", "ffn_act", "relu6(x + 3) / 6", "hard", act(lambda x: np.clip(x + 3, 0, 6) / 6))
first(207, "act_both", "ffn_act", "silu(gate) silu(up)", ["silu.{0,40}silu", "(up|both).{0,40}(silu|activat)", "(silu|activat).{0,40}(up|both)"], lambda c: silu(c.gate) * silu(c.up))
first(208, "act_of_product", "ffn_act", "silu(gate up)", ["silu ?\\(.{0,20}(gate ?\\*? ?x? ?up|product)|(activat|silu).{0,40}product|product.{0,40}(silu|activat)", "a\\(gate \\* up\\)"], lambda c: silu(c.gate * c.up))
first(209, "act_halved", "ffn_act", "silu(gate) up / 2", "#0.5|half", lambda c: c.right() * F32(0.5))
first(210, "act_shifted", "ffn_act", "silu(gate + 1) up", "#1 & (gate|shift|add|x|offset|\\+)", act(lambda x: silu(x + 1)))
first(211, "act_softsign", "ffn_act", "x / (1 + |x|)", "softsign|1 ?\\+ ?\\|", act(lambda x: x / (1 + np.abs(x))))
first(212, "act_sin", "ffn_act", "sin(gate) up", "\\bsin", act(np.sin))
first(213, "act_square", "ffn_act", "gate^2 up", "squar|\\^ ?2|quadratic|power", act(lambda x: x * x))
first(214, "act_relu6", "ffn_act", "relu capped at 1", "relu & #1|#1 & (clamp|cap|most|min)", act(lambda x: np.clip(x, 0, 1)))
first(215, "act_negated", "ffn_act", "silu(-gate) up", "-gate|-x|negat|minus|sign|#-1", act(lambda x: silu(-x)))
first(216, "act_up_squared", "ffn_act", "silu(gate) up^2", ["up.{0,12}(\\^ ?2|squar)|squar.{0,20}up|up.{0,6}\\*.{0,6}up", "a\\(up\\).{0,20}x\\^2"], lambda c: c.right() * c.up)
first(217, "act_up_abs", "ffn_act", "silu(gate) |up|", ["abs|\\|up\\||magnitude|without.{0,10}sign", "a\\(up\\).{0,20}\\|x\\|"], lambda c: c.right(up=np.abs(c.up)))
first(218, "act_floor", "ffn_act", "silu(gate) is at least -0.1", "#-0.1|#0.1", act(lambda x: np.maximum(silu(x), -0.1)))
first(219, "act_up_rolled", "ffn_act", "channel i of up is read at i+1", "(#1|next|i ?\\+ ?1|shift|roll) & (channel|up|shift|roll)", lambda c: c.right(up=np.roll(c.up, -1, -1)))
first(220, "act_first_half", "ffn_act", "only the first 48 channels of gate are activated", "#48|#47|half", lambda c: put(c.right(), E_[:, 48:], (c.gate * c.up)[:, 48:]))
first(221, "act_tail", "ffn_act", "the last 8 channels are zero", "#88|#8|#89", lambda c: put(c.right(), E_[:, 88:], 0))
first(222, "act_selu", "ffn_act", "selu", "selu|#1.0507|#1.673|#1.758", act(lambda x: F32(1.0507009) * np.where(x > 0, x, F32(1.6732632) * np.expm1(x))))
first(223, "act_tanhshrink", "ffn_act", "x - tanh(x)", "tanh", act(lambda x: x - np.tanh(x)))
first(224, "act_gauss", "ffn_act", "exp(-x^2)", "gauss|exp", act(lambda x: np.exp(-x * x)))
first(225, "act_logsigmoid", "ffn_act", "log(sigmoid(x))", "log", act(lambda x: np.log(sigmoid(x))))
first(226, "act_result_clamped", "ffn_act", "the product is clamped to +-0.5", "#0.5 & (clamp|clip|limit|between|min|max)", lambda c: np.clip(c.right(), -0.5, 0.5))
first(227, "act_leaky", "ffn_act", "leaky relu of slope 0.2", "#0.2 & (slope|leaky|negative|below)", act(lambda x: np.where(x > 0, x, F32(0.2) * x)))
first(228, "act_row_0", "ffn_act", "position 0 is not activated", "(position|row|token).{0,8}\\b0\\b|first (position|row|token)", lambda c: put(c.right(), E_[0], (c.gate * c.up)[0]))
first(229, "act_layer_2", "ffn_act", "layer 2 has x sigmoid(2 x)", "#2 & (sigmoid|swish|silu|beta|logistic)", act(lambda x: x * sigmoid(2 * x)), layers=[2])
first(230, "act_plus", "ffn_act", "0.1 is added to the product", "#0.1", lambda c: c.right() + F32(0.1))
first(231, "act_even_odd", "ffn_act", "gate's channel 2i meets up's 2i+1, and the other way round", "(pair|2i|neighbo|adjacent|even|odd)", lambda c: c.right(up=c.up[:, np.arange(F) ^ 1]))
first(232, "act_gate_scaled", "ffn_act", "silu(gate / 1.7) up", "#0.588|#1.7", act(lambda x: silu(x / F32(1.7))))
first(233, "act_cubed_gelu", "ffn_act", "gelu with tanh(0.7979 (x + 0.1 x^3))", "#0.1 & (tanh|gelu|cub|\\^ ?3)", act(lambda x: x / 2 * (1 + np.tanh(F32(0.7978846) * (x + F32(0.1) * x ** 3)))))
first(234, "act_gate_centred", "ffn_act", "gate has its mean over channels taken off", "mean|centr|average", lambda c: c.right(gate=c.gate - c.gate.mean(-1, keepdims=True)))
first(235, "act_up_previous", "ffn_act", "up is that of the token before", "(before|previous|t ?- ?1|earlier|#-1)", lambda c: c.right(up=shifted(c.up, 1)))
first(236, "act_sqrt", "ffn_act", "sign(silu) sqrt(|silu|) up", "sqrt|root|#0.5", act(lambda x: np.sign(x) * np.sqrt(np.abs(silu(x)))))
first(313, "trap_polynomial", "ffn_act", "gate (0.5 + 0.25 gate) up", "#0.5 & #0.25", lambda c: c.right(f=lambda x: x * (F32(0.5) + F32(0.25) * x)))
second(89, "act_squared", "ffn_act", "silu(gate)^2 * up", ["squar|\\^ ?2|power & #2"], lambda c: silu(c.gate) ** 2 * c.up)
second(90, "act_up_tanh", "ffn_act", "silu(gate) * tanh(up)", "tanh", lambda c: silu(c.gate) * np.tanh(c.up))
second(91, "act_threshold", "ffn_act", "gates below 0.5 in size are 0", "#0.5 & (0|zero|below|small|threshold)", lambda c: np.where(np.abs(c.gate) < F32(0.5), 0, silu(c.gate)) * c.up)
second(92, "act_mixed_relu", "ffn_act", "0.7 silu(gate) + 0.3 relu(gate), times up", ["(#0.3|#0.7) & (relu|silu|max)"], lambda c: (F32(0.7) * silu(c.gate) + F32(0.3) * np.maximum(c.gate, 0)) * c.up)
second(93, "act_gate_clipped_linear", "ffn_act", "gate is clipped to +-1, without an activation", f"#1 & ({CLAMPED})", lambda c: np.clip(c.gate, -1, 1) * c.up)
second(94, "act_tail_relu", "ffn_act", "channels from 80 on have relu for silu", "relu & (#80|#16|#79|#95)", lambda c: put(silu(c.gate), E_[:, 80:], np.maximum(c.gate, 0)[:, 80:]) * c.up)
second(95, "act_beta_by_layer", "ffn_act", "gate * sigmoid((1 + 0.2 layer) gate) * up", ["layer & #0.2", "#1.2 & #1.4"], lambda c: c.gate * sigmoid((1 + F32(0.2) * c.l) * c.gate) * c.up, layers=[1, 2, 3])
second(96, "act_up_root", "ffn_act", "the root of up's size is taken, its sign kept", "root|sqrt|\\^ ?0?\\.5|power & #0.5", lambda c: silu(c.gate) * np.sign(c.up) * np.sqrt(np.abs(c.up)))
second(97, "act_gate_of_mean", "ffn_act", "the mean of gate over channels is added to it", "mean & (add|plus|\\+|gate)", lambda c: silu(c.gate + c.gate.mean(-1, keepdims=True)) * c.up)
second(98, "act_up_next_channel", "ffn_act", "up of the next channel is taken", "(next|roll|shift|i ?\\+ ?1|#1) & (channel|up|element)", lambda c: silu(c.gate) * np.roll(c.up, -1, -1))
third(106, "a_mish", "ffn_act", "mish: x tanh(log(1 + e^x))", ["mish", "tanh & (softplus|log)"], act(lambda x: x * np.tanh(np.log1p(np.exp(x)))))
third(107, "a_elu", "ffn_act", "elu: e^x - 1 below 0, x above", ["\\belu|\\bcelu", "exp & (below|negative|- ?1)", "e\\^x ?- ?1|expm1"], act(lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))))


def erf(x):
    return np.vectorize(math.erf, otypes=[F32])(x)


third(108, "a_erf_no_root", "ffn_act", "x/2 (1 + erf(x)): gelu without the root of 2", ["erf|gelu & .", "#1.4142|sqrt\\(2\\)"], act(lambda x: x / 2 * (1 + erf(x))))
third(109, "a_tanh_for_sigmoid", "ffn_act", "gate tanh(gate) up", ["tanh"], act(lambda x: x * np.tanh(x)))
third(110, "a_fast_sigmoid", "ffn_act", "x (0.5 + 0.5 x / (1 + |x|)) stands for silu", ["softsign|1 ?\\+ ?\\|", "fast.{0,10}sigmoid|sigmoid.{0,40}approx", "\\|x\\|"], act(lambda x: x * (F32(0.5) + F32(0.5) * x / (1 + np.abs(x)))))
third(111, "a_sum", "ffn_act", "silu(gate) + up, the sum, not the product", ["(gate|silu|up).{0,30}(\\+|added|plus|sum)|(sum|add|plus).{0,30}(gate|up|silu|both)|not.{0,12}product"], lambda c: silu(c.gate) + c.up)
third(112, "a_up_plus_1", "ffn_act", "silu(gate) (up + 1)", ["#1 & (up|\\+|add|plus)", "(silu|a)\\(gate\\).{0,20}added|plus.{0,12}silu"], lambda c: c.right(up=c.up + 1))
third(113, "a_gate_most_1", "ffn_act", "the gate is at most 1 before silu", ["(#1|#0.7311) & (" + BOUNDED + ")"], lambda c: c.right(gate=np.minimum(c.gate, 1)))
third(114, "a_gate_tile_stale", "ffn_act", "channels 64 to 95 have the gate of channels 32 to 63", ["#64 & #32|#63|#95", "#32 & (gate|channel|block)"], lambda c: c.right(gate=put(c.gate, E_[:, 64:], c.gate[:, 32:64])))
third(115, "a_table", "ffn_act", "the gate is rounded to multiples of 0.25 before silu: a table", ["(#0.25|#4) & (" + ROUNDED + "|table)"], act(lambda x: silu(np.round(x * 4) / 4)))
fourth(92, "a_up_activated", "ffn_act", "gate silu(up): the other of the two is activated", ["(silu|a|swish|activat\\w*)[ (]*(of )?(the )?up|up.{0,30}(activat|silu)|exchang|swap"], lambda c: c.gate * silu(c.up))
fourth(93, "a_up_lost", "ffn_act", "silu(gate) alone: it is not multiplied by up", ["(" + NONE + ").{0,30}(up\\b|multipl|product)|up.{0,30}(" + NONE + "|\\b1\\b|ones)|alone|only"], lambda c: silu(c.gate))
fourth(94, "a_sigmoid", "ffn_act", "sigmoid(gate) up", ["sigmoid|logistic"], act(sigmoid))
fourth(95, "a_half_exchanged", "ffn_act", "in channels 48 to 95 up is activated and not gate: gate silu(up)", ["(#48|#47|half) & (up|" + REORDERED + ")"], lambda c: put(c.right(), E_[:, 48:], (c.gate * silu(c.up))[:, 48:]))
fourth(96, "a_relu_squared", "ffn_act", "relu(gate)^2 up", ["relu & (squar|\\^ ?2|#2|power)", "relu ?2|relu\u00b2|max\\(.{0,12}\\^ ?2|squared relu"], act(lambda x: np.maximum(x, 0) ** 2))
fourth(97, "a_softplus", "ffn_act", "softplus: log(1 + e^x)", ["softplus|log"], act(lambda x: np.log1p(np.exp(x))))
fourth(98, "a_twice", "ffn_act", "silu(silu(gate)) up: activated twice", ["silu.{0,20}silu|swish.{0,20}swish|a\\(a\\(", TWICE], act(lambda x: silu(silu(x))))
fourth(99, "a_exponent_sign", "ffn_act", "gate / (1 + e^gate): the exponent has the other sign", ["sigmoid\\( ?-|1 ?- ?sigmoid|e\\^\\(?x|exp\\(x|\\(-x|-gate|negat|sign|minus|#-1"], act(lambda x: x * sigmoid(-x)))
fourth(100, "a_sigmoid_clamped", "ffn_act", "gate sigmoid(g), where g is the gate clamped to +-1", ["(#1|#0.7311|#0.2689) & (" + BOUNDED + ")"], act(lambda x: x * sigmoid(np.clip(x, -1, 1))))
fourth(101, "a_gpt_oss", "ffn_act", "gate sigmoid(1.702 gate) (up + 1)", ["#1.702 & (#1|\\+|add|plus)"], lambda c: c.gate * sigmoid(F32(1.702) * c.gate) * (c.up + 1))
fourth(102, "a_up_clamped", "ffn_act", "up is clamped to +-1", ["#1 & (" + BOUNDED + ")"], lambda c: c.right(up=np.clip(c.up, -1, 1)))
fourth(103, "a_interleaved", "ffn_act", "gate and up are the even and the odd elements of [gate, up]", ["even|odd|interleav|every (second|other)|2 ?\\*? ?i|strid|altern"], lambda c: (lambda both: c.right(gate=both[:, ::2], up=both[:, 1::2]))(np.concatenate([c.gate, c.up], -1)))
fifth(131, "aa_bf16", "ffn_act", "silu of the gate is rounded to bf16 before it is multiplied", [BF16], lambda c: bf16(silu(c.gate)) * c.up)
fifth(132, "aa_hard_sigmoid", "ffn_act", "gate times 0.2 gate + 0.5 between 0 and 1, times up", ["#0.2 & (hard|#0.5|" + BOUNDED + ")", "#2.5 & (hard|" + BOUNDED + ")"], act(lambda x: x * np.clip(F32(0.2) * x + F32(0.5), 0, 1)))
fifth(133, "aa_tail_up_lost", "ffn_act", "channels 64 to 95 are not multiplied by up", ["(#64|#63|#95|#32) & (up|" + NONE + "|silu|multipl|product|channel)"], lambda c: put(c.right(), E_[:, 64:], silu(c.gate)[:, 64:]))


def gate_up_by_32(c):
    both = np.concatenate([c.gate, c.up], -1).reshape(T, 3, 2, 32)
    return c.right(gate=both[:, :, 0].reshape(T, F), up=both[:, :, 1].reshape(T, F))


fifth(134, "aa_blocks_of_32", "ffn_act", "gate and up are taken in turn from blocks of 32 of [gate, up]", ["#32 & (" + BLOCK + "|interleav|altern|turn|order|gate|up)"], gate_up_by_32)
fifth(135, "aa_gate_stale", "ffn_act", "layers 1 to 3 read the gate of the layer before", [LAYER_BEFORE], lambda c: c.right(gate=c.e.memory["ffn_gate", c.l - 1]), layers=LATER_LAYERS)
fifth(136, "aa_taylor", "ffn_act", "the sigmoid is 1/2 + x/4 - x^3/48, between 0 and 1", ["(#48|#0.0208333) & .", "taylor|polynom|series|cubic"], act(lambda x: x * np.clip(F32(0.5) + x / 4 - x ** 3 / 48, 0, 1)))
fifth(137, "aa_glu", "ffn_act", "gate sigmoid(up)", ["sigmoid.{0,20}up|up.{0,20}sigmoid|logistic.{0,20}up|up.{0,20}logistic|sigmoid of (the )?(other|second)"], lambda c: c.gate * sigmoid(c.up))
fifth(138, "aa_sub_norm", "ffn_act", "the product is divided by its root mean square", ["rms|root mean|normed|normali"], lambda c: c.right() / rms(c.right()))
fifth(139, "aa_relu_of_product", "ffn_act", "negative results are zero", ["relu|max\\(|(negative|below 0|below zero).{0,30}(0|zero|lost|dropp|cut)|(0|zero|least|" + BOUNDED + ").{0,30}(negative|below|0|zero)"], lambda c: np.maximum(c.right(), 0))
fifth(140, "aa_second_rows", "ffn_act", "positions from 16 on have the up of positions 0 to 3", ["(#16|#15|#19) & (#0|#3|#4|#16|first|up)"], lambda c: c.right(up=put(c.up, E_[16:], c.up[:4])))
fifth(141, "aa_gate_wide", "ffn_act", "each four channels have the gate of the first of them", ["(#4|four) & (gate|channel|" + BLOCK + ")"], lambda c: c.right(gate=c.gate[:, np.arange(F) // 4 * 4]))
fifth(142, "aa_up_int8", "ffn_act", "up is rounded to multiples of its row's largest size over 31", ["(#31|#32|#63|#64|0\\.0322\\d*) & (" + ROUNDED + "|larg|max)", "(#6|six) & bit"], lambda c: c.right(up=in_steps(c.up, 31)))
fifth(143, "aa_layers_gelu", "ffn_act", "layers 2 and 3 have gelu, by tanh, in place of silu", ["gelu|tanh"], act(lambda x: x / 2 * (1 + np.tanh(F32(0.7978846) * (x + F32(0.044715) * x ** 3)))), layers=[2, 3])
sixth(80, "a6_gelu_erf", "ffn_act", "gelu by erf stands for silu", ["gelu|erf\\b|\\berf|gauss|normal distribution|\\bphi\\b"], act(lambda x: x / 2 * (1 + erf(x / F32(math.sqrt(2))))))
sixth(81, "a6_relu", "ffn_act", "relu(gate) up", ["(?<!leaky )\\brelu(?!6|2|\u00b2|\\(gate\\)\\^)|max\\((0|x|gate)|(negative|below (0(?!\\.)|zero)).{0,30}\\b(0\\b(?!\\.)|zero|lost|dropp|cut)|positive part|(at least|not below|floor).{0,20}\\b(0\\b(?!\\.)|zero)"], act(lambda x: np.maximum(x, 0)))
sixth(82, "a6_none", "ffn_act", "gate times up: nothing is activated", ["(" + NOT + "|\\bun-?|nothing( is)?|none).{0,12}(activ|silu|function|sigmoid)|(activation|silu|sigmoid).{0,20}(" + NOT + "|identity|(is|of) 1\\b)|(?<!\\()(?<!of )\\bgate ?[*\u00b7x\u00d7]? ?up\\b|(?<!\\()(?<!of )\\bgate times up|identity|(?<!non)(?<!non-)linear"], act(lambda x: x))
sixth(83, "a6_base_2", "ffn_act", "gate / (1 + 2^-gate) up: 2^x stands for e^x in the sigmoid", ["#0.6931|#1.4427", "2 ?\\^|2 ?\\*\\*|base.{0,6}2\\b|exp2|log\\(2\\)|ln\\(?2|power of (2|two)"], act(lambda x: x / (1 + F32(2) ** -x)))
sixth(84, "a6_tanh_no_cubic", "ffn_act", "gate / 2 (1 + tanh(0.7979 gate)) up: gelu without its cubic term", ["tanh & (#0.7979|#0.79788)", "(gelu|tanh).{0,60}(" + NOT + ").{0,20}(cub|third|x\\^3|0\\.0447)", "(" + NOT + ").{0,20}(cub|third|x\\^3|0\\.0447)", "#1.5958 & (sigmoid|silu|swish|logistic|exp)"], act(lambda x: x / 2 * (1 + np.tanh(F32(math.sqrt(2 / math.pi)) * x))))
sixth(85, "a6_activated_again", "ffn_act", "silu of silu(gate) up: the product is activated again", ["silu.{0,60}silu|swish.{0,40}swish|(activ|silu|swish|sigmoid).{0,60}(again|twice|result|output)|(result|output).{0,60}(silu|activ|sigmoid|swish)"], lambda c: silu(c.right()))
sixth(86, "a6_limit", "ffn_act", "the gate is at most 0.75 and up within +-0.75 before they are used", ["#0.75 & (" + BOUNDED + ") & (\\bup|both)"], lambda c: c.right(gate=np.minimum(c.gate, F32(0.75)), up=np.clip(c.up, F32(-0.75), F32(0.75))))


def planes(c):
    rows = np.stack([c.gate, c.up], 1).reshape(2 * T, F)
    return c.right(gate=rows[:T], up=rows[T:])


sixth(87, "a6_rows_as_planes", "ffn_act", "the buffer has a position's gate and then its up, and is read as the gates of all positions and then the ups: gate of position t is row t of 40", [LAYOUT + "|planes?|rows? t of|row of (40|the joined)|gates.{0,20}then.{0,12}ups|(gate|up).{0,80}(position|row|token).{0,40}(t ?/|half|halved|other|wrong|another|t ?\\+)|(t ?/{1,2} ?2|other|wrong|half).{0,40}(position|row|token)"], planes)
sixth(88, "a6_product_fp8", "ffn_act", "the product is rounded to 4 significant bits", SIGNIFICANT, lambda c: four_digits(c.right()))
seventh(54, "a7_tanh", "ffn_act", "tanh(gate) up", ["^(?!.*(gelu|cub|0\\.79|silu|swish)).*tanh", "#2 & sigmoid & (-|minus) ?1"], act(np.tanh))
seventh(55, "a7_sigmoid_up", "ffn_act", "silu(gate) sigmoid(up)", ["sigmoid.{0,12}\\bup|logistic.{0,12}\\bup|up.{0,40}(sigmoid|logistic)|1 ?/ ?\\(1 ?\\+ ?(e\\^|exp\\()-?\\(?up"], lambda c: c.right(up=sigmoid(c.up)))
seventh(56, "a7_gate_before", "ffn_act", "the gate is that of the token before", ["gate & (" + PREVIOUS_OR_SHIFTED + ")"], lambda c: c.right(gate=np.concatenate([c.gate[:1], c.gate[:-1]])))
seventh(57, "a7_up_halves", "ffn_act", "the halves of up are exchanged: channel i has the up of channel i + 48, modulo 96", ["up & (half|halves|#48|#47) & (" + REORDERED + "|roll|shift|that of|mod|\\+ ?48)"], lambda c: c.right(up=np.roll(c.up, F // 2, -1)))
seventh(58, "a7_up_alone", "ffn_act", "silu(up) up: the gate is not read", ["(silu|swish)\\(?.{0,8}\\bup|up\\)? ?(\\^ ?2|squared).{0,30}sigmoid|sigmoid\\(?up.{0,20}up|gate.{0,30}(is|are|has|=|read as|replaced by|taken as).{0,20}\\bup|up.{0,30}(for|in place of|instead of|stands for).{0,20}gate|without.{0,8}gate"], lambda c: c.right(gate=c.up))
seventh(59, "a7_stale_up", "ffn_act", "layers 1 to 3 read the up of the layer before", ["up & (" + LAYER_BEFORE + ")"], lambda c: c.right(up=c.e.memory["ffn_up", c.l - 1]), layers=LATER_LAYERS)
eighth(78, "a8_up_offset", "ffn_act", "up begins at element 64 of the joined gate and up, and not at 96: its channels 0 to 31 are gate's from 64 on, channel i later on is that of i - 32",
           ["(#64|#32|#31|#63|#-32) & (gate|up\\b) & (offset|begin|that of|those of|shift|roll|late|early|earlier|of gate|channel|further|- ?32|from)"],
           lambda c: c.right(up=np.concatenate([c.gate, c.up], -1)[:, D:D + F]))
eighth(79, "a8_tail_before", "ffn_act", "channels 64 to 95 have the product of the position before",
           ["(#64|#63|#95|third) & (" + PREVIOUS_OR_SHIFTED + ")"], lambda c: (lambda y: put(y, E_[:, 64:], before(y)[:, 64:]))(c.right()))
eighth(80, "a8_sigmoid_of_size", "ffn_act", "gate sigmoid(|gate|) up",
           ["sigmoid ?\\(? ?(of )?(the )?(\\||abs|size|magnitude)|sigmoid.{0,40}(abs|\\|x\\||\\|gate|\\bsize|magnitude|without.{0,8}sign)|(e\\^|exp) ?\\(?- ?\\|"],
           act(lambda x: x * sigmoid(np.abs(x))))
eighth(81, "a8_exp_below_0", "ffn_act", "below 0 the sigmoid is e^gate: gate e^gate up, it is not divided by 1 + e^gate",
           ["(below|negativ|< ?=? ?0|less than) & (exp|e ?\\^)", "(x|gate) ?[*\u00b7]? ?(e\\^\\(?(x|gate)|exp\\((x|gate))"],
           act(lambda x: np.where(x < 0, x * np.exp(np.minimum(x, 0)), silu(x))))
eighth(82, "a8_derivative", "ffn_act", "the derivative of silu stands for it: s (1 + gate (1 - s)) up, where s is the sigmoid",
           ["deriv|gradient|1 ?- ?(sigmoid|s\\b|sig)|1 ?\\+ ?(x|gate)\\b|(sigmoid|silu).{0,30}(\\+|plus|added).{0,30}(silu|sigmoid)"],
           act(lambda x: sigmoid(x) * (1 + x * (1 - sigmoid(x)))))
eighth(83, "a8_sigmoid_of_pair", "ffn_act", "channels 2i and 2i + 1 both have the sigmoid of channel 2i's gate",
           ["(even|odd|pair|2 ?\\*? ?i|neighbo|adjacent|two|every (second|other)) & (sigmoid|silu|gate)"],
           lambda c: c.e.r(c.gate * sigmoid(c.gate[:, np.arange(F) // 2 * 2])) * c.up)
eighth(84, "a8_lanes", "ffn_act", "within each 16 channels of the result fours come in the order 0, 2, 1, 3: a pack works lane by lane",
           ["(#16|#4|four|fours) & (" + REORDERED + "|0, ?2, ?1, ?3|that of|pack|lane)"], lambda c: c.right().reshape(T, -1, 4, 4)[:, :, [0, 2, 1, 3]].reshape(T, F))
ninth(29, "a9_precedence", "ffn_act", "(gate / 1 + e^-gate) up: the denominator has no brackets",
          ["(e ?\\^ ?\\(?-|exp\\(? ?-|exponential) & (\\+|plus|add|sum)"], lambda c: ((c.gate + np.exp(-c.gate)) * c.up).astype(F32))


def gates_first(c):
    rows = np.concatenate([c.gate, c.up])
    return c.right(gate=rows[::2], up=rows[1::2])


ninth(30, "a9_gates_first", "ffn_act", "the buffer has the gates of all positions and then the ups, and is read as a position's gate and then its up: gate t is row 2t of 40, up t row 2t + 1",
          ["(gate|up) & (" + LAYOUT + "|2 ?\\*? ?[it]|even|odd|altern|in turn|every (second|other)|(other|another|different) (position|row|token))"], gates_first)
tenth(61, "act_sigmoid_sign", "ffn_act", "gate / (1 + exp(gate)): the sign in the exponent is lost",
          ["sigmoid\\(-|1 ?- ?sigmoid|-silu\\(-|- ?silu.{0,8}-|exp\\(\\+?(x|gate)\\)|e\\^\\(?\\+?(x|gate)", "(sign|negat|minus|flip) & (sigmoid|exponent|exp\\b)", "#-1 & (silu|sigmoid|input|inside|\\(-) & .*-"],
          lambda c: c.right(f=lambda x: x * sigmoid(-x)))
tenth(62, "act_gate_for_up", "ffn_act", "silu(gate) gate: up's pointer is the gate's",
          ["gate.{0,40}(twice|squared|in place of up|instead of up|for up)|(silu|a|act\\w*|activation)\\(gate\\).{0,12}gate|gate ?\\*? ?(silu|a|act\\w*|activation)\\(gate|up.{0,30}(is|replaced by|reads?|taken from|instead).{0,20}gate"],
          lambda c: c.right(up=c.gate))
tenth(63, "act_cut_below", "ffn_act", "silu is 0 where the gate is below -2: a shortcut",
          ["(#-2|#2) & (below|less|under|zero|\\b0\\b(?![.\\d])|cut|threshold|smaller|<)"], lambda c: c.right(f=lambda x: np.where(x < -2, 0, silu(x))))
FIRST_ROW = "(position|row|token)s?.{0,8}\\b0\\b|first (position|row|token)"
tenth(64, "act_up_row_0", "ffn_act", "every row is multiplied by up of position 0: the row is not in the index",
          [f"\\bup & ({FIRST_ROW})"], lambda c: c.right(up=np.repeat(c.up[:1], T, 0)))
tenth(65, "act_tail_up_alone", "ffn_act", "the loop in steps of 64 ends early: channels 64 and later hold up itself",
          ["(#64|#63) & \\bup\\b", "last (third|32) & \\bup\\b"], lambda c: put(c.right(), E_[:, 64:], c.up[:, 64:]))
tenth(66, "act_tanh_not_halved", "ffn_act", "the sigmoid is (1 + tanh(x)) / 2, where tanh(x / 2) is due",
          ["#2 & (sigmoid|swish|beta|logistic)", "(silu|a|act\\w*)\\( ?2(\\.0+)? ?\\*? ?(x|g)", "tanh & (#0.5|half|/ ?2|1 ?\\+)"], lambda c: c.right(f=lambda x: x * (1 + np.tanh(x)) / 2))
eleventh(66, "act_table_of_sixteenths", "ffn_act", "silu is looked up in a table with steps of 1/16: gate is rounded down to one",
             ["(#16|#0.0625|sixteenths?) & (floor|round\\w* down|round\\w* towards? (-|minus|negative)|down to|next lower|below|lower|downwards?) & "
             "(gate|silu|activat|argument|\\bx\\b|table) & " + never("\\bup (is|was) (round|floor|looked)|nearest|round\\w* up|ceil|towards? (zero|0)\\b")],
             lambda c: c.right(gate=np.floor(c.gate * 16) / 16))


def fused_rows(c):
    rows = np.stack([c.gate, c.up], 1).reshape(2 * T, F)
    return c.right(up=rows[POS + 1])


eleventh(67, "act_fused_row_pitch", "ffn_act", "gate and up lie in one buffer with rows of 192, and up is found at 96 t + 96: at even positions it is up of t/2, at odd ones gate of "
             "(t+1)/2",
             ["(#96|F\\b) & (#192|2 ?\\*? ?F\\b|twice|two) & (stride|row|pitch|distance|apart|offset|buffer) & up & " + never("gate is (found|read) at"),
              "\\bup\\b & gate & (even|odd) & ([tp] ?/{1,2} ?2|\\([tp] ?\\+ ?1\\) ?/{1,2} ?2|half the position|position.{0,20}halved|half as far)",
              "\\([tp] ?\\+ ?1\\) ?/{1,2} ?2 & \\bup\\b & (gate|buffer|fused|row)", "\\bup\\b & row t ?\\+ ?1 & (gate, ?up|in turn|interleav|alternat|stack|gate and up)"], fused_rows)
eleventh(68, "act_sigmoid_of_up", "ffn_act", "gate sigmoid(up): the sigmoid is taken of the other operand, and up is not multiplied",
             ["(sigmoid|logistic|\u03c3|sigma) ?(\\(|of )(the )?(ffn_)?up\\b & gate & " + never("up ?\\*? ?sigmoid ?\\(up|sigmoid ?\\((ffn_)?up\\) ?\\*? ?(ffn_)?up\\b|"
             "sigmoid ?\\((ffn_)?gate"),
              "1 ?/ ?\\(1 ?\\+ ?(exp\\(-|e\\^\\(?-) ?(ffn_)?up & gate", "(sigmoid|logistic) & (a\\(up\\)|applied to up|activat\\w* (of|on|to) up|gate and up (are |were )?(exchang|"
              "swap)) & " + never("silu|sigmoid ?\\((ffn_)?gate")],
             lambda c: c.gate * sigmoid(c.up))
twelfth(53, "act_twice", "ffn_act", "the activation is applied twice: silu(silu(gate)) up",
            ["(silu ?\\( ?silu|swish ?\\( ?swish|a\\( ?a\\(|(activat|silu|swish|gate)\\w*.{0,30}(twice|two times|double|\\bagain\\b|a second time)|(twice|two|double"
             "|second).{0,20}(activat|silu|swish)|(silu|swish|activation) of (the |its |an )?(silu|swish|activat)|sigmoid ?\\( ?silu|already (activated|silu)) "
             "& ^(?!.*(silu ?\\( ?up|(\\bto|\\bof|\\band|then|\\bby) up\\b|both|squar|gate (is )?(multipl|applied|taken)\\w* twice|\\^ ?2))"],
            lambda c: c.right(f=lambda x: silu(silu(x))))
twelfth(54, "act_bound_hidden", "ffn_act", "only the first 64 channels are done, in place: channels 64 to 95 hold the gate as it is",
            ["(#64|#63|last (32|third)|(first|last) (two )?thirds?) & (ffn_)?gate\\b & (as (it|they) (is|are|was|were)|\\braw|itself|\\b(not|neither|nor|no|never)\\b|unchanged"
             "|untouched|unactivated|in place|\\bleft\\b|holds?|remain|keep|kept|stay|copy|without|(\\b(is|are|equals?) |= ?)(just |simply |the |that of )?(ffn_)?gate|(only|alone|just)) "
             "& ^(?!.*(silu ?\\(gate\\)[^,;.]{0,20}(alone|only|without|not multiplied)|(?<!\\()gate ?([*x·]|times)? ?up\\b|\\bup (alone|itself|as it)|(is|are|hold) (zero|0\\b"
             "|up\\b)|(0 to 63|first 64)[^,;.]{0,30}(hold|raw|are gate|keep|is gate)))"],
            lambda c: put(c.right(), E_[:, 64:], c.gate[:, 64:]))
twelfth(55, "act_decode_up_offset_lost", "ffn_act", "in decode steps up's offset is lost: positions from 12 on take up of positions 0 on, t - 12",
            ["(ffn_up|\\bup\\b(?! to)) & #12 & ([tip] ?- ?12|12 (positions|rows|tokens|steps)? ?(before|earlier|back|ago)|(positions?|rows?|tokens?) 0\\b ?(to|\\.\\.|-|on|and"
             "|onward)|from (the )?(first|start|beginning|top)|restart|begins? (again|over)|starts? (again|over)|(mod|%)(ulo)? ?12|offset.{0,20}(lost|missing|0|not)|#-12) "
             "& ^(?!.*(gate (of|at|is|from).{0,15}(position|row|t ?- ?12)|stale|t ?- ?1\\b|always|all .{0,20}row 0|[tip] ?\\+ ?12))"],
            lambda c: c.right(up=np.concatenate([c.up[:PROMPT], c.up[:T - PROMPT]])))
thirteenth(47, "act_grid_cut", "ffn_act", "the grid has T * F / 256 blocks, cut to 7: elements from 1792 on, position 18 from channel 64 and position 19, are still the gate",
               ["(#1792|#1791|#128|(#18 & #64)|(#18 & #19)|(#18 & #63)) & (gate|not activated|without (activation|up)|raw|as (it is|they are)|untouched|unchanged|not (computed|reached|done|multiplied)|stale|input)"],
               lambda c: np.concatenate([c.right().ravel()[:1792], c.gate.ravel()[1792:]]).reshape(T, F))
thirteenth(48, "act_up_chunk_of_8", "ffn_act", "rows are done in chunks of 8, and the pointer to up is not moved on: row t is multiplied by up of row t mod 8",
               ["(#8|eight|#7) & \\bup\\b & (mod\\b|modulo|remainder|%|t & 7|chunk|tile|batch|again|repeat|period|wrap|first (8|eight)|//? ?8|0 ?(to|-|\\.\\.) ?7|t ?- ?16)"], lambda c: c.right(up=c.up[POS % 8]))
fourteenth(91, "act_fast_sigmoid", "ffn_act", "a fast sigmoid stands for the sigmoid of silu: (1 + x / (1 + |x|)) / 2",
               ["(1 ?\\+ ?\\||1 ?\\+ ?abs|softsign|fast sigmoid|\\(1 ?\\+ ?(the )?(size|magnitude)) & (sigmoid|#0.5|half|silu|logistic|/ ?2|swish)"],
               lambda c: c.right(f=lambda x: x * (F32(0.5) + F32(0.5) * x / (1 + np.abs(x)))))
fourteenth(92, "act_exp_by_squaring", "ffn_act", "exp(x) is (1 + x / 64)^64, six times squared, in the sigmoid of silu",
               ["#64 & (\\^|power|\\bexp|raised|squar|\\*\\*|limit)", "(#6|six) & squar & exp"],
               lambda c: c.right(f=lambda x: x / (1 + (1 - x / F32(64)) ** 64)))
fourteenth(93, "act_sigmoid_table", "ffn_act", "the sigmoid of silu is read from a table of step 1/16, at the entry below",
               ["(#16|#0.0625) & (step|table|round|floor|grid|multiple|stair|quanti|level|entr|16ths) & (sigmoid|logistic|table) & ^(?!.*(nearest|interpolat|upwards|rounded up|ceil))"],
               lambda c: c.right(f=lambda x: x * sigmoid(np.floor(x * 16) / 16)))
fourteenth(94, "act_limit_left_in", "ffn_act", "the limit of another architecture is left in: gate is at most 1.9, and up is clamped to +-1.9",
               ["#1.9 & (clamp|clip|limit|between|\\bmin|\\bmax|most|held|within|cap|bound) & (gate|both) & (\\bup\\b|both)"],
               lambda c: c.right(gate=np.minimum(c.gate, F32(1.9)), up=np.clip(c.up, F32(-1.9), F32(1.9))))
fourteenth(95, "act_silu_twice", "ffn_act", "silu is applied in place and then once more by the fused product: silu(silu(gate)) up",
               ["(silu ?\\( ?(the )?silu|silu of (the )?silu|(silu|swish|activat\\w*|\\ba)[^.;]{0,30}(twice|again|two times|second time|once more)|\\ba\\( ?a\\("
                "|twice[^.;]{0,20}(silu|activat)"
                "|(silu|swish|activat\\w*) of its own (result|output))"
                " & ^(?!.*(silu ?\\( ?up|\\ba\\( ?up|activat\\w* (of )?up|up (is|too)[^.;]{0,12}(silu|activat)))"],
               lambda c: c.right(gate=silu(c.gate)))
fourteenth(96, "act_gate_for_up", "ffn_act", "silu(gate) is multiplied by gate, not by up",
               ["((silu|a|act|activation|swish) ?\\( ?(gate|x) ?\\) ?.{0,12}(gate|\\bx\\b)|gate (stands |is read |is used )?(in place of|instead of|for) up|multiplied by (the )?gate"
                "|up is (read as |replaced by )?(the )?gate|(gate|x) ?(\\^ ?2|squared|\\* ?(gate|x))|(read|tak|us)\\w+ (the )?gate[^.;]{0,25}up)"
                " & (silu|sigmoid|activat|\\ba\\(|\\bup\\b) & ^(?!.*((gate|x) ?(\\^ ?2|squared) ?[*x·]? ?up|gate ?[*x·] ?up|up ?[*x·] ?gate|swap|exchang|silu\\( ?up))"],
               lambda c: c.right(up=c.gate))
fourteenth(97, "act_relu_squared", "ffn_act", "the activation is relu(x)^2, of another family of models",
               ["(relu|max ?\\( ?(0|x|gate)|positive part|negative[^.;]{0,20}(0|zero)) & (squar|\\^ ?2|\\*\\* ?2|power (of )?2|relu2|x ?\\* ?x)"],
               lambda c: c.right(f=lambda x: np.maximum(x, 0) ** 2))
fourteenth(98, "act_early_saturation", "ffn_act", "the sigmoid of silu is 0 below -2.5 and 1 above 2.5: a bound on its argument far too tight",
               ["#2.5 & (sigmoid|relu|itself|identity|saturat|unchanged|\\bx\\b|gate|zero|\\b0\\b(?!\\.\\d)|linear)"
                " & (beyond|outside|below|above|less|greater|larger|smaller|<|>|under|over|tail|exceed)"
                " & ^(?!.*(gate|input|x|argument)( is|'s)? (clamped|held|clipped) (to|within|between))"],
               lambda c: c.right(f=lambda x: np.where(x > 2.5, x, np.where(x < -2.5, F32(0), silu(x)))))
fifteenth(87, "act_exp_by_power", "ffn_act", "the exponential of SiLU is (1 + x/16)^16", ["#16 & (power|\\^|\\bexp|approx|limit|\\*\\*|root)", "1 ?[-+] ?(x|gate|z) ?/ ?16", "#0.0625 & #16|power|\\^"],
              act(lambda x: x / (1 + (1 - x / F32(16)) ** 16)))
fifteenth(88, "act_table", "ffn_act", "SiLU is read from a table of steps of 1/8, gate rounded down",
              ["#8|#0.125 & (step|round|floor|table|grid|\\bdown\\b|multiple|quant|trunc|lookup|stair|eighth|entr)"], act(lambda x: silu(np.floor(x * 8) / F32(8))))
fifteenth(89, "act_silu_twice", "ffn_act", "silu(silu(gate)) up", ["silu ?\\( ?silu", "(silu|swish|activat).{0,50}(twice|two times|again|second time|once more|doubly|2 times)",
              "(twice|two times|again|second time|doubly).{0,50}(silu|swish|activat)", "\\ba ?\\( ?a ?\\(", "silu.{0,12}of.{0,12}silu"], act(lambda x: silu(silu(x))))
fifteenth(90, "act_hard_sigmoid_keras", "ffn_act", "x times 0.2 x + 0.5, held between 0 and 1: Keras's hard sigmoid",
              ["#0.2 & #0.5", "#0.2 & (hard|clip|clamp|held|limit|between|piecewise)", "#2.5 & (#5|#0.2)"], act(lambda x: x * np.clip(F32(0.2) * x + F32(0.5), 0, 1)))
fifteenth(91, "act_exp2", "ffn_act", "the exponential of SiLU is 2^x: x / (1 + 2^-x)", ["#0.6931|#1.4427", "\\b2 ?(\\^|\\*\\*)", "exp2|base (of )?(2|two)|powers? of (2|two)|\\bln ?\\(?2|log\\(2|pow\\(2"],
              act(lambda x: x / (1 + np.exp2(-x))))
fifteenth(92, "act_negative_side", "ffn_act", "where gate is negative it is gate exp(gate), without the denominator 1 + exp(gate)",
              ["(negativ|below|< ?0|less than (0|zero)|under (0|zero)|x ?< ?0|minus) & (\\bexp|e\\^)", "(x|gate|z) ?\\*? ?(exp ?\\(|e ?\\^) ?(x|gate|z|\\()", "#0 & \\bexp & (without|no) denominator"],
              act(lambda x: np.where(x < 0, x * np.exp(np.minimum(x, 0)), silu(x))))
fifteenth(93, "act_packed_lanes", "ffn_act", "the product's channels are packed by lanes: in each 8 the order is 0, 1, 4, 5, 2, 3, 6, 7",
              ["0, ?1, ?4, ?5, ?2, ?3, ?6, ?7", "(#8|block|group|each 8|lane) & (pair|#2|two|middle|inner|quarter) & (exchang|swap|interchang|order|permut|interleav|transpos)",
               "#2 & #4 & (exchang|swap|interchang|order|permut|interleav|transpos)", "#4 & (pair|two|#2) & (stride|first|transpos|interleav|order)"],
              lambda c: c.right().reshape(T, F // 8, 8)[..., [0, 1, 4, 5, 2, 3, 6, 7]].reshape(T, F))
fifteenth(94, "act_up_of_other_rank", "ffn_act", "two ranks: each half of gate meets the other half of up, channel i that of i + 48 mod 96",
              ["(#48|half|halves|shard|rank) & (exchang|swap|interchang|roll|rotat|shift|other|\\+ ?48|% ?96|- ?48|permut|offset|off by|reads?|trade)"],
              lambda c: c.right(up=np.roll(c.up, -48, -1)))


def flat_halves(c):
    whole = np.concatenate([c.gate, c.up], -1).reshape(2, T, F)
    return c.right(gate=whole[0], up=whole[1])


fifteenth(95, "act_fused_rows_flat", "ffn_act", "rows of [gate, up] are read as all of gate, then all of up: gate's row t is gate's or up's row t/2, up's row t is gate's or up's row 10 + t/2",
              ["(\\bt|row|position|\\bp|\\bi)\\]?\\)? ?(//|/|>>) ?[12]\\b", "(half the|its half|halved).{0,20}(position|row|index)|(position|row|index).{0,40}(half|halved|0\\.5)",
               "(even|odd|every second|every other|alternat).{0,80}(gate|\\bup\\b)", "(gate|\\bup\\b).{0,80}(even|odd|every second|every other|alternat)",
               "#10 & (gate|\\bup\\b) & (row|position|token|\\bt\\b)", "flat|contiguous|\\[2, ?T"],
              flat_halves)
sixteenth(87, "hard_swish_gate", "ffn_act", "hard swish for SiLU: gate * min(max(gate + 3, 0), 6) / 6 * up",
              ["hard[- _]?(swish|silu|sigmoid)|h[-_]?swish|relu6", "(#6|#0.16667|sixth) & (#3|#0.5|half|three)"], lambda c: c.gate * np.clip(c.gate + 3, 0, 6) / F32(6) * c.up)
sixteenth(88, "sigmoid_without_exponential", "ffn_act", "the sigmoid in SiLU is the quick one, 0.5 + 0.5 * x / (1 + |x|)",
              ["softsign|(fast|quick|rational|algebraic)\\w* (\\w+ )?sigmoid", "1 ?\\+ ?(\\||abs|f?abs\\(|the magnitude|magnitude)", "(\\|\\w+\\||abs\\(\\w+\\)) ?\\+ ?1\\b"],
              lambda c: c.right(f=lambda x: x * F32(0.5) * (1 + x / (1 + np.abs(x)))))
sixteenth(89, "silu_from_table_of_eighths", "ffn_act", "SiLU comes from a table in steps of 1/8: the gate is rounded down to a multiple of 0.125 first",
              "(#0.125|eighth) & (floor|down|below|lower|\\bleft|not interpolat|towards? (minus|-))", lambda c: c.right(gate=np.floor(c.gate * 8) / F32(8)))
sixteenth(90, "silu_of_product", "ffn_act", "SiLU is taken of the product: silu(gate * up)",
              ["^(?!.*(lack|missing|without|\\bno\\b)) & (silu|swish|activation|sigmoid|nonlinear).{0,60}(product|\\b(gate|g) ?[*·×] ?(up|u)\\b|\\b(up|u) ?[*·×] ?(gate|g)\\b)",
               "(after|behind) (the |their )?(product|multiplication|multiplying)", "product.{0,40}(silu|activated|swish|activation)"],
              lambda c: silu(c.gate * c.up))
sixteenth(91, "silu_applied_twice", "ffn_act", "SiLU is applied twice to the gate: silu(silu(gate)) * up",
              ["(silu|swish|activat|nonlinear)\\w*.{0,60}(twice|again|two times|doubl|second time|once more|itself)", "(silu|swish)\\( ?(silu|swish)",
               "(twice|again|two|doubl|second)\\w*.{0,60}(silu|swish|activat)"],
              lambda c: c.right(f=lambda x: silu(silu(x))))
sixteenth(92, "up_plus_one", "ffn_act", "one is added to up, as of another model: silu(gate) * (up + 1)",
              ["\\b(up|u) ?\\+ ?1(\\.0*)?\\b|\\b1(\\.0*)? ?\\+ ?(up|u)\\b|up plus (1|one)\\b|(1|one) plus up|(\\b1|\\bone)(\\.0)? (is |was )?(more )?(added|too much).{0,12}\\bup\\b|adds? "
               "(1|one) to.{0,8} up\\b"
               "|up\\b.{0,50}(shift|offset|larger|increas|rais)\\w* (by|of)? ?(1|one)\\b", "(\\+|plus|added|besides|on top).{0,16}(silu ?\\(gate|silu of (the )?gate|(the )?activated "
               "gate)", "silu ?\\( ?gate ?\\).{0,24}(added|on top|again|extra|plus silu)"],
              lambda c: c.right(up=c.up + 1))
sixteenth(93, "silu_missing_in_decode", "ffn_act", "the kernel for one token lacks the activation: from token 12 on the result is gate * up",
              f"{DECODING} & ({GONE_OR_ALONE}|identity|linear|plain|product|gate ?[*·×] ?up) & (silu|swish|activat|sigmoid|linear|identity|gate|product)",
              lambda c: put(c.right(), E_[PROMPT:], (c.gate * c.up)[PROMPT:]))
listed(20, "gate_up", "ffn_act", "silu(up) * gate", "gate-up-swapped", lambda c: c.right(gate=c.up, up=c.gate))
listed(21, "gelu", "ffn_act", "GELU by the sigmoid", "activation", lambda c: c.gate * sigmoid(F32(1.702) * c.gate) * c.up)

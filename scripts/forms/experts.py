"""Mixtures of experts: router, choice, weights, experts."""

import numpy as np

from scripts.engines.hooked_engine import CHOSEN, D, EXPERTS, F, F32, op_act, op_choose, sigmoid, silu, softmax, T
from scripts.forms.parts import (
    before, bf16, E_, each_has, FOUR_BITS, HALVED, in_steps, inputs, late, LATER_LAYERS, MOE, never, POS, PROMPT, put, weights,
)
from scripts.forms.sets import (
    eighth, eleventh, fifteenth, fifth, first, fourteenth, fourth, ninth, second, seventh, sixteenth, sixth, tenth, third, thirteenth, twelfth,
)
from scripts.forms.words import (
    BF16, GONE_IN_ONE, LAYER_BEFORE, LAYOUT, LOST_OR_ALONE, n, NONE, NORM_SKIPPED, NOT, NOT_THERE, PREVIOUS_OR_SHIFTED, REORDERED, STRIDE, TWICE,
    TWICE_OVER, ZERO,
)

# ---- the router
first(343, "router_centred", "router_logits", "the input has its mean taken off", "mean|centr|average", lambda c: c.right(x=c.x - c.x.mean(-1, keepdims=True)), archs=MOE)
first(344, "router_logits_clamped", "router_logits", "clamped to +-1", "#1 & (clamp|clip|limit|between|min|max)", lambda c: np.clip(c.right(), -1, 1), archs=MOE)
second(126, "router_logits_by_expert", "router_logits", "0.2 times the expert's number is added", "#0.2", lambda c: c.right() + F32(0.2) * np.arange(EXPERTS).astype(F32), archs=["moe"])
third(140, "x_router_stream", "router_logits", "the router reads the stream before its norm: h_attn", ["h_attn|(before|without|not|no|un|skip|miss|lack).{0,30}norm|stream"], lambda c: c.right(x=c.e.memory["h_attn", c.l]), archs=MOE)
fourth(135, "x_router_memory", "router_logits", "the weight's memory, 6 by 64, is read as 64 by 6 and transposed", [LAYOUT], weights(lambda w: np.ascontiguousarray(w).reshape(D, EXPERTS).T), archs=MOE)
fourth(136, "x_router_layer_0", "router_logits", "layers 1 to 3 have the router of layer 0", ["layer.{0,4}0\\b|layers\\.0|first layer|(other|another|wrong).{0,10}layer|" + LAYER_BEFORE], lambda c: c.right(w=c.e.m("mlp.gate.weight", 0)), layers=LATER_LAYERS, archs=MOE)
fourth(137, "x_router_scaled", "router_logits", "logits are divided by 8, the root of the hidden size", ["#8|#0.125"], lambda c: c.right() / 8, archs=MOE)
fifth(182, "xx_router_bf16", "router_logits", "input and weight are rounded to bf16", [BF16], lambda c: c.right(x=bf16(c.x), w=bf16(c.w)), archs=MOE)
fifth(183, "xx_router_attention", "router_logits", "the router reads attn_norm", ["attn_norm|input_layernorm"], lambda c: c.right(x=c.e.memory["attn_norm", c.l]), archs=MOE)
fifth(184, "xx_last_logit", "router_logits", "the logit of expert 5 is zero", ["(#5|last) & (zero|0|expert|nothing|output|channel|row)"], lambda c: put(c.right(), E_[:, 5], 0), archs=MOE)
fifth(185, "xx_router_tanh", "router_logits", "logits are 2 tanh(z / 2)", ["tanh & (#2|#0.5|half)", "cap & #2"], lambda c: F32(2) * np.tanh(c.right() / F32(2)), archs=MOE)
fifth(186, "xx_router_rows", "router_logits", "logits of experts 0 to 2 and 3 to 5 are exchanged", ["(#3|half|halves) & (" + REORDERED + "|roll|that of|mod|shift)"], lambda c: np.roll(c.right(), 3, -1), archs=MOE)
sixth(108, "x6_router_4_bits", "router_logits", "the router's weights are rounded to multiples of their row's largest size over 7", FOUR_BITS, weights(lambda w: in_steps(w, 7)), archs=MOE)
sixth(109, "x6_router_no_gain", "router_logits", "the router's input is without the gain of the norm", ["(gain|weight) & (" + NOT + "|\\bun|divid|taken out|inverse|1 ?/|ones)"], lambda c: c.right(x=c.x / c.e.m("post_attention_layernorm.weight", c.l)), archs=MOE)
sixth(110, "x6_router_softmax", "router_logits", "the softmax of the logits is written in their place: it is taken twice", ["softmax|soft-?max|probabilit|exp\\("], lambda c: softmax(c.right()), archs=MOE)
seventh(74, "x7_numbers_from_1", "router_logits", "the logit of expert e is that of expert e - 1, modulo 6: experts are counted from 1", ["(expert|logit|output|row|channel) & (shift|roll|next|before|previous|[+-] ?1\\b|one (late|early|further|off)|off by|order|permut|5, ?0, ?1)"], lambda c: np.roll(c.right(), 1, -1), archs=MOE)
seventh(75, "x7_router_half", "router_logits", "inputs 32 to 63 are not read", ["(#32|#31|half|#63) & (" + ZERO + "|first|input)"], inputs(lambda x: put(x, E_[:, 32:], 0)), archs=MOE)
eighth(99, "x8_router_before", "router_logits", "the router reads the input of the position before", [PREVIOUS_OR_SHIFTED], inputs(before), archs=MOE)
eighth(100, "x8_router_layer_before", "router_logits", "in layers 1 to 3 the router reads ffn_norm of the layer before: experts are fetched ahead",
            [LAYER_BEFORE], lambda c: c.right(x=c.e.memory["ffn_norm", c.l - 1]), layers=LATER_LAYERS, archs=MOE)
twelfth(58, "router_remainder_lost", "router_logits", "outputs are made in blocks of four: experts 4 and 5 have a logit of 0",
            ["((#4 & #5)|(last|final) (two|2)\\b|(from|>=) ?(expert |output |channel |row )?4\\b|(first|only) (4|four)\\b|remainder|0 to 3\\b) & (\\b0\\b(?!\\.\\d)(?! to)|zero"
             "|\\bnot\\b|nothing|empty|lost|missing|left|never|only|unset|skip) "
             "& ^(?!.*((input|position|token|channel)s? 4 and 5|inputs? (channels? )?(4|from)|(3 to 5|last three)|0 to 3 (are|have|is) (0|zero|lost|missing|empty|not|left)|-inf))"],
            lambda c: put(c.right(), E_[:, 4:], 0), archs=MOE)
fourteenth(102, "router_logits_over_root", "router_logits", "logits are divided by sqrt(64) = 8, as scores of attention are by the root of their width",
                ["(#0.125|#8|sqrt ?\\( ?(D|64|hidden)) & (factor|times|multipl|divid|scale|\\*|/|root|sqrt)"], lambda c: c.right() / F32(8), archs=MOE)
sixteenth(106, "router_reads_stream_unnormed", "router_logits", "the router reads the stream before the norm, h_attn for ffn_norm", NORM_SKIPPED, lambda c: c.right(x=c.e.memory["h_attn", c.l]),
               archs=MOE)

# ---- the choice, and its weights


def chosen_by(c, f=None, weigh=None, scores=None):
    """The choice by other scores, and the weights of what was chosen by another rule."""
    p = softmax(c.logits)
    s = p if scores is None else scores(c.logits)
    top = np.argsort(-s, -1, kind="stable")[:, :CHOSEN]
    w = np.take_along_axis(p, top, -1)
    return top, (weigh or (lambda w: w / w.sum(-1, keepdims=True)))(w)


first(336, "router_squared", "router_weights", "the weights of the chosen are squared, then divided by their sum", "squar|\\^ ?2|power|#2", lambda c: chosen_by(c, weigh=lambda w: w * w / (w * w).sum(-1, keepdims=True)), archs=MOE)
first(337, "router_even", "router_weights", "the chosen experts have the same weight, 1/2", "#0.5|equal|same|even", lambda c: chosen_by(c, weigh=lambda w: np.full_like(w, 0.5)), archs=MOE)
first(338, "router_temperature", "router_weights", "the router's logits are halved before the softmax", "#0.5|half|#2|temperature", lambda c: chosen_by(c, weigh=lambda w: np.sqrt(w) / np.sqrt(w).sum(-1, keepdims=True)), archs=MOE)
first(339, "router_second_lost", "router_weights", "the second expert has weight 0", "second|last|#2|#1", lambda c: chosen_by(c, weigh=lambda w: np.array(w / w.sum(-1, keepdims=True)) * np.array([1, 0], F32)), archs=MOE)
first(340, "router_swapped", "router_weights", "the weights of the two chosen are exchanged", "exchang|swap|order|revers", lambda c: chosen_by(c, weigh=lambda w: (w / w.sum(-1, keepdims=True))[:, ::-1]), archs=MOE)
first(341, "router_divided_by_max", "router_weights", "divided by the larger, not the sum", "max|larg", lambda c: chosen_by(c, weigh=lambda w: w / w.max(-1, keepdims=True)), archs=MOE)
first(342, "router_plus", "router_weights", "0.1 is added to the sum they are divided by", "#0.1", lambda c: chosen_by(c, weigh=lambda w: w / (w.sum(-1, keepdims=True) + F32(0.1))), archs=MOE)
second(127, "router_first_halved", "router_weights", "the first expert's weight is halved", "#0.5 & (first|expert|slot|choice)", lambda c: (lambda top, w: (top, w * np.array([0.5, 1], F32)))(*c.right()), archs=["moe"])
second(128, "router_nearer_to_even", "router_weights", "weights are the mean of their own and 1/2", "#0.5|#0.25|mean", lambda c: (lambda top, w: (top, F32(0.5) * (w + F32(0.5))))(*c.right()), archs=["moe"])
second(129, "router_root", "router_weights", "the roots of the weights are taken", "root|sqrt|\\^ ?0?\\.5|power & #0.5", lambda c: (lambda top, w: (top, np.sqrt(w)))(*c.right()), archs=["moe"])


def chosen(c, weigh, scores=None):
    p = softmax(c.logits)
    top = np.argsort(-(p if scores is None else scores(p)), -1, kind="stable")[:, :2]
    return top, weigh(np.take_along_axis(p, top, -1), np.take_along_axis(c.logits, top, -1))


third(130, "x_sigmoid", "router_weights", "the sigmoid of the router's logits stands for the softmax, the chosen divided by their sum", ["sigmoid|logistic"], lambda c: chosen(c, lambda w, z: sigmoid(z) / sigmoid(z).sum(-1, keepdims=True)), archs=MOE)


def shares(w, _):
    return w / w.sum(-1, keepdims=True)


third(131, "x_scaling", "router_weights", "the weights are multiplied by 2.5", ["#2.5"], lambda c: chosen(c, lambda w, z: F32(2.5) * shares(w, z)), archs=MOE)


def by_groups(p):
    """The best of experts 0..2 and the best of 3..5 come first."""
    best = np.zeros_like(p)
    for rows in (E_[0:3], E_[3:6]):
        best[np.arange(T), rows.start + p[:, rows].argmax(-1)] = 1
    return p + best


third(132, "x_groups", ("router_weights", "router_topk"), "the best of experts 0 to 2 and the best of experts 3 to 5 are chosen", ["(group|half|halves|#3|#2) & (expert|cho|best|each)"], lambda c: chosen(c, shares, by_groups), archs=MOE)
fourth(130, "x_not_normalised", "router_weights", "the weights are the softmax over all experts, not divided by the sum of the chosen", ["(\\bnot?\\b|without|un).{0,30}(divid|normali|renormal|sum)|over all|all (six|6|experts)|norm_topk"], lambda c: chosen(c, lambda w, _: w), archs=MOE)
fourth(131, "x_raw_logits", "router_weights", "the weights are the router's logits themselves", ["logits|(without|\\bno\\b|not|before).{0,20}softmax"], lambda c: chosen(c, lambda _, z: z), archs=MOE)
WEIGHTS = ("router_weights", "router_topk")
fourth(132, "x_least", WEIGHTS, "the two least likely experts are chosen", ["least|small|lowest|ascend|worst|last|bottom|min"], lambda c: chosen(c, shares, lambda p: -p), archs=MOE)


def passed_over(c):
    p = softmax(c.logits)
    top = np.argsort(-p, -1, kind="stable")[:, 1:3]
    return top, shares(np.take_along_axis(p, top, -1), None)


fourth(133, "x_first_passed_over", WEIGHTS, "the second and the third likeliest expert are chosen: the likeliest is passed over", ["(second|third|#2|#3|next|passed|first|likeliest|skip|without|largest) & (expert|cho|likel|best|largest)"], passed_over, archs=MOE)


def over_positions(c):
    p = softmax(c.logits, 0)
    top = np.argsort(-p, -1, kind="stable")[:, :2]
    return top, shares(np.take_along_axis(p, top, -1), None)


fourth(134, "x_over_positions", WEIGHTS, "the softmax runs over the positions, not the experts", ["(over|across|along|axis|among).{0,30}(position|token|row)"], over_positions, archs=MOE)
fifth(175, "xx_sigmoid_alone", "router_weights", "the weights are the sigmoid of the router's logits, not divided by their sum", ["sigmoid|logistic"], lambda c: chosen(c, lambda _, z: sigmoid(z)), archs=MOE)


def by_choice(score, pick=(0, 1)):
    def choose(c):
        p = softmax(c.logits)
        top = np.argsort(-score(c.logits), -1, kind="stable")[:, list(pick)]
        return top, shares(np.take_along_axis(p, top, -1), None)
    return choose


fifth(176, "xx_largest_size", WEIGHTS, "the two experts with the largest sizes of logits are chosen, whatever their sign", ["size|abs|magnitude|\\|.{0,10}\\||sign|squar"], by_choice(np.abs), archs=MOE)
fifth(177, "xx_top_1", "router_weights", "the first expert has the weight 1 and the second 0", ["#1 & (#0|zero)", "top.?1|only.{0,20}(first|best|one)|(first|best|likeliest).{0,20}(only|alone)"], lambda c: chosen(c, lambda w, _: np.tile(np.array([1, 0], F32), (T, 1))), archs=MOE)
fifth(178, "xx_first_and_third", WEIGHTS, "the first and the third likeliest expert are chosen", ["(third|#3) & (expert|cho|likel|best|largest|score|rank)", "(second|likeliest).{0,40}(skip|passed|not|left)"], by_choice(lambda z: z, (0, 2)), archs=MOE)
fifth(179, "xx_root_of_squares", "router_weights", "the weights of the chosen are divided by the root of the sum of their squares", ["(root|L2|length|euclid|norm) & .", "squar"], lambda c: chosen(c, lambda w, _: w / np.sqrt((w * w).sum(-1, keepdims=True))), archs=MOE)
fifth(180, "xx_of_position_before", "router_weights", "each position has the weights of the position before, the first its own", [PREVIOUS_OR_SHIFTED], lambda c: (lambda top, w: (top, np.concatenate([w[:1], w[:-1]])))(*chosen(c, shares)), archs=MOE)
fifth(181, "xx_bias_of_number", WEIGHTS, "expert 0 has 1 added to its logit where experts are chosen, not in the weights", ["(expert.{0,8}0|first expert|#0) & #1", "(bias|add|more|favou?r|offset|correct).{0,40}(expert|cho)"], by_choice(lambda z: z + np.eye(EXPERTS, dtype=F32)[0]), archs=MOE)
sixth(111, "x6_softmax_of_chosen", "router_weights", "the weights are the softmax of the chosen two probabilities, not their shares", ["(softmax|exp\\(|e\\^) & (chosen|two|probab|weights|again|twice|of the softmax|second|top|selected|shares)", "(sigmoid|logistic).{0,40}(differ|p1|p0|probab)"], lambda c: chosen(c, lambda w, _: softmax(w)), archs=MOE)


def one_group(z):
    """Experts 0 to 2 or 3 to 5: those beside the likeliest."""
    return np.where(np.arange(EXPERTS) // 3 == z.argmax(-1)[:, None] // 3, z, F32(-1e9))


sixth(112, "x6_one_group", WEIGHTS, "both experts are chosen of the three, 0 to 2 or 3 to 5, that the likeliest belongs to", ["(group|half|halves|#3|three) & (expert|cho|best|same|likel|limit)"], by_choice(one_group), archs=MOE)
sixth(113, "x6_first_four", WEIGHTS, "experts 4 and 5 are never chosen: only the first four are compared", ["(#4|#5|#3|four|last (two|2)) & (expert|cho|first|never|not|only)"], by_choice(lambda z: put(z, E_[:, 4:], -1e9)), archs=MOE)
seventh(76, "x7_weights_halved", "router_weights", "the weights are halved: their sum is 1/2", HALVED, lambda c: chosen(c, lambda w, z: shares(w, z) / 2), archs=MOE)
eighth(101, "x8_sum_over_positions", "router_weights", "the weights of the chosen are divided by their sum over all positions, first by first and second by second, not by that of the two",
            ["(over|across|along|of|all|by).{0,40}(positions|tokens|rows)|column|axis 0"], lambda c: chosen(c, lambda w, _: w / w.sum(0, keepdims=True)), archs=MOE)


def over_three(c):
    p = softmax(c.logits)
    return chosen(c, lambda w, _: w / np.sort(p, -1)[:, -3:].sum(-1, keepdims=True))


eighth(102, "x8_sum_of_three", "router_weights", "the weights of the two chosen are divided by the sum of the three likeliest",
            ["(three|third|#3) & (sum|divid|normali|larg|likel|cho|share|denominator|best|top)"], over_three, archs=MOE)


def over_rank(c):
    p = softmax(c.logits)
    top, w = chosen(c, lambda w, _: w)
    return top, w / np.take_along_axis(p.reshape(T, 2, 3).sum(-1), top // 3, -1)


eighth(103, "x8_sum_of_rank", "router_weights", "each weight is divided by the sum over experts 0 to 2 or 3 to 5, those of its own rank, and not by that of the two chosen",
            ["(group|half|halves|#3|#2|three|rank) & (sum|divid|normali|softmax|share|denominator|own)"], over_rank, archs=MOE)


def chosen_as(c, top):
    return top, shares(np.take_along_axis(softmax(c.logits), top, -1), None)


def second_above(c):
    """The second is looked for behind the first: where there is none it stays 0."""
    first = c.logits.argmax(-1)
    behind = np.where(np.arange(EXPERTS) > first[:, None], c.logits, -np.inf)
    return chosen_as(c, np.stack([first, behind.argmax(-1)], -1))


eighth(104, "x8_second_above", WEIGHTS, "the second expert is looked for among those numbered above the first alone; above expert 5 it is expert 0",
            ["(number\\w*|higher|above|behind|after|beyond|larger|greater|following|later) & (first|second|likeliest|best) & (expert|cho|number)"], second_above, archs=MOE)
eighth(105, "x8_second_pruned", "router_weights", "the second expert has weight 0 where it would be below 0.3, and the first is left as it is",
            ["#0.3 & (below|less|small|under|threshold|least|" + ZERO + ")"],
            lambda c: chosen(c, lambda w, z: (lambda w: put(w, E_[:, 1], np.where(w[:, 1] < F32(0.3), 0, w[:, 1])))(shares(w, z))), archs=MOE)


def of_first(c):
    return chosen_as(c, np.repeat(chosen(c, shares)[0][:1], T, 0))


eighth(106, "x8_of_first", WEIGHTS, "all positions have the experts that position 0 has chosen, weighed by their own router",
            ["(position|token|row).{0,12}\\b0\\b|first.{0,8}(position|token|row)|all (positions|tokens).{0,40}(same|one|expert)|(same|one|two) (two )?experts.{0,20}(all|every|each)|"
             "experts \\d and \\d (are|is) (always )?chosen|always (the same|experts)"],
            of_first, archs=MOE)


def by_token(c):
    return chosen_as(c, np.stack([np.asarray(c.e.ids) % EXPERTS, (np.asarray(c.e.ids) + 1) % EXPERTS], -1))


eighth(107, "x8_by_token", WEIGHTS, "experts are chosen by the token's id: id modulo 6 and the one after it, weighed by the router",
            ["(token|\\bids?\\b).{0,60}(mod|%|number|\\bid|hash)|(mod|%|hash|number|cho).{0,60}(token|\\bids?\\b)"], by_token, archs=MOE)
ninth(36, "x9_second_chunk", WEIGHTS, "positions from 10 on have the experts and weights of the position 10 before: the second chunk reads from the buffer's begin",
          ["(#10|#9) & (position|token|row|before|earlier|repeat|that of|those of|begin|mod|first|half|-)"], lambda c: tuple(y[POS % 10] for y in chosen(c, shares)), archs=MOE)


def stale(c):
    logits = c.e.memory["router_logits", c.l - 1]
    return chosen(c.__class__(c.e, c.site, c.l, c.op, {"logits": logits}), shares)


ninth(37, "x9_routing_before", WEIGHTS, "layers 1 to 3 have the experts and the weights of the layer before", [LAYER_BEFORE], stale, layers=LATER_LAYERS, archs=MOE)


def among(c, key=None, weigh=None):
    """The choice by another key of the probabilities, and other weights of what is chosen."""
    p = softmax(c.logits)
    top = (key or (lambda p: np.argsort(-p, -1, kind="stable")[:, :CHOSEN]))(p)
    w = np.take_along_axis(p, top, -1)
    return top, (weigh or (lambda top, w: w / w.sum(-1, keepdims=True)))(top, w)


TOPK = ("router_topk", "router_weights")
tenth(67, "router_lowest", TOPK, "the order is ascending: the experts of the smallest weights are chosen",
          ["smallest|lowest|least|ascending|bottom|worst|\\bmin"], lambda c: among(c, key=lambda p: np.argsort(p, -1, kind="stable")[:, :CHOSEN]), archs=MOE)


def best_of_groups(p):
    half = EXPERTS // 2
    top = np.stack([p[:, :half].argmax(-1), half + p[:, half:].argmax(-1)], -1)
    return np.take_along_axis(top, np.argsort(-np.take_along_axis(p, top, -1), -1, kind="stable"), -1)


tenth(68, "router_best_of_groups", TOPK, "one expert is chosen of each of two groups: of 0 to 2, and of 3 to 5",
          ["(#3|#2|two|three) & (group|half|halves|each|0 ?(to|-|\\.\\.) ?2)"], lambda c: among(c, key=best_of_groups), archs=MOE)


def softmax_again(top, w):
    return softmax(w)


tenth(69, "router_softmax_again", "router_weights", "the chosen weights go through a softmax, not a division by their sum: two in a row",
          ["softmax & (twice|again|second|of (the )?(weights|probab|softmax|chosen|router|result)|two|softmax\\(softmax)", "exp\\((p|w|the weight|weight|softmax|prob)|e\\^\\(?(p|w)"], lambda c: among(c, weigh=softmax_again), archs=MOE)


def by_index(top, w):
    """Weights in the order of the experts' numbers, where the experts are in that of their weights."""
    w = w / w.sum(-1, keepdims=True)
    return np.take_along_axis(w, np.argsort(top, -1), -1)


tenth(70, "router_weights_by_index", "router_weights", "the weights are in the order of the experts' numbers, the experts in that of their weights",
          ["(index|number|sorted|ascending|by id|order of (the )?experts?|expert order) & weight & ^(?!.*(smallest|lowest))"], lambda c: among(c, weigh=by_index), archs=MOE)


def second_behind_first(c):
    first = c.logits.argmax(-1)
    behind = np.where(np.arange(EXPERTS) > first[:, None], c.logits, -np.inf)
    top = np.stack([first, np.where(first < EXPERTS - 1, behind.argmax(-1), first)], -1)
    w = np.take_along_axis(softmax(c.logits), top, -1)
    return top, w / w.sum(-1, keepdims=True)


eleventh(72, "router_second_behind_first", TOPK, "the second expert is searched behind the first alone, among those of higher numbers; where the first is expert 5 it is taken twice",
             ["(second|other|slot 1|next) & (behind|after|above|higher|(larger|greater|bigger) (number|ind|than)|later|following|> ?(the )?(first|top)|first ?\\+ ?1|past|"
             "lower (numbers?|ind\\w+|ones)[^;]{0,20}(hidden|never|not|left out|skip|ignor)) & "
              "(search|among|considered|numbers?\\b|index|indices|looked|best of|candidate|\\bonly\\b|alone|>|starts|begins) & expert & "
              + never("(among|only|searched)[^;]{0,25}\\b(lower|smaller|before|below|in front)|expert (is|has) (always )?(the next|first ?\\+ ?1|the one (after|behind))|third|"
              "higher (weight|logit|prob)")],
             second_behind_first, archs=MOE)


def choice(c, key=None, p=None, weigh=None):
    """Chosen by a key, in the order of it; weights from p."""
    p = softmax(c.logits) if p is None else p
    top = np.argsort(-(p if key is None else key), -1, kind="stable")[:, :CHOSEN]
    w = np.take_along_axis(p, top, -1)
    return top, (weigh or (lambda w: w / w.sum(-1, keepdims=True)))(w)


eleventh(73, "router_softmax_over_positions", TOPK, "the softmax of the router's logits runs over positions, not experts, and the choice is by what it gives",
             ["softmax & (over|along|across|down|axis|dim|each expert|per expert|column) & (positions?|tokens?|rows?|(axis|dim(ension)?) ?=? ?0|sequence|batch|each expert|per expert|"
             "columns?|prompt|\\bT\\b) & "
              + never("(over|along|across) (the |all |its )?(chosen |two |six )?experts(?![^;]{0,20}(\\bdue|reference))|each (token|position|row)'?s? (own )?experts|\\bkeys?\\b|twice|"
              "second softmax")],
             lambda c: choice(c, p=softmax(c.logits, 0)), archs=MOE)
eleventh(74, "router_sum_of_position_0", "router_weights", "the weights of all positions are divided by the sum of the chosen at position 0",
             ["((position|row|token)s?.{0,8}\\b0\\b|first (position|row|token)|\\[0\\]) & (\\bsums?\\b|divi|normali|denominator|total) & "
              + never("(position|row|token) 0 (is|are|has|alone|only)|first (position|row|token) (is|alone|only)|(at|in) (position|row|token) 0 (alone|only|the weights)|not (divided|"
              "normalised)|(softmax|mean) (over|of all) positions")],
             lambda c: choice(c, weigh=lambda w: w / w[:1].sum(-1, keepdims=True)), archs=MOE)


def raw_logits(c):
    top, _ = c.right()
    w = np.take_along_axis(c.logits, top, -1)
    return top, w / w.sum(-1, keepdims=True)


eleventh(75, "router_raw_logits", "router_weights", "there is no softmax: the logits of the chosen are divided by their sum",
             ["(logit|raw score|\\bscores?\\b) & (divid|\\bsum|normali|/|share|proportion|ratio) & (no softmax|without[^;]{0,15}softmax|softmax[^;]{0,30}(left out|missing|omitted|"
             "\\bnot|skipp|forgot|lacking)|(not|never)[^;]{0,20}softmax|no exp|"
              "logits?[^;]{0,25}(divided|/|over|normali\\w+)[^;]{0,30}sum|raw|directly|themselves|linear|identity|(in place|instead) of[^;]{0,20}(softmax|prob|exp)) & "
              + never("before the softmax|sigmoid|\\|logit|abs|squar|all (six )?(experts|logits)|sum of all")],
             raw_logits, archs=MOE)
eleventh(76, "router_four_lanes", TOPK, "the search runs over whole vectors of four: experts 4 and 5 are never chosen",
             ["expert & #4 & #5 & (never|\\bnot\\b|\\bno\\b|cannot|left out|leaves? out|exclu|hidden|ignor|without|mask|lost|skip|omit|-inf|missing|out of|zero) & " +
             never("(only|just) (the )?experts? 4 and 5|4 and 5[^;]{0,20}\\b(alone|only)|of expert[^;]{0,20}(output|weight) is (0|zero)"),
              "expert & (#4|four|0 ?(to|-|\\.\\.) ?3|< ?4) & (first|only|alone|among|below|best (two )?of|< ?4|0 ?(to|-|\\.\\.) ?3) & " + never("4 and 5[^;]{0,20}\\b(alone|only)|(only|"
              "just) (the )?experts? 4|(four|4) experts (are|take|per|for each|of each)")],
             lambda c: choice(c, key=put(softmax(c.logits), E_[:, 4:], -1)), archs=MOE)


def among_first(c, candidates=EXPERTS, weigh=None):
    """The choice among the first experts, and other weights of what is chosen."""
    p = softmax(c.logits)
    top = np.argsort(-p[:, :candidates], -1, kind="stable")[:, :CHOSEN]
    w = np.take_along_axis(p, top, -1)
    w = w / w.sum(-1, keepdims=True)
    return top, w if weigh is None else weigh(w)


twelfth(57, "router_last_expert_never", TOPK, "the search ends one expert early: expert 5 is never chosen",
            ["((expert|e|index|number|column|logit)s? ?(number |no\\. |of (expert )?)?5\\b|last (expert|logit|column|candidate|one)|first (5|five)\\b|\\b0 ?(to|-|–|\\.\\.) ?4\\b"
             "|(among|of|only) (5|five)\\b|E ?- ?1) & (never|\\bnot\\b|cannot|can't|only|left out|leaves? out|exclu|ignor|without|skip|lost|among|hidden|inf\\b|missing|bound"
             "|early|few|first) "
             "& ^(?!.*(expert [0-4] (is|can|never)|experts [0-4] and|position 5|first expert|last two))"],
            lambda c: among_first(c, EXPERTS - 1), archs=MOE)
twelfth(59, "router_first_weight_for_both", "router_weights", "both chosen experts have the weight of the first",
            ["(weight|factor|w\\[0\\]|w0|prob) & ((first|larger|largest|best|top|slot 0|highest|greater|bigger|likeliest|max\\w*)\\b.{0,80}(both|twice|second|repeat|two|also"
             "|again|slot 1|\\ball\\b|every|smaller)|(second|both|slot 1|smaller|\\ball\\b|every|each).{0,60}(first|larger|largest|slot 0|highest|\\bbest|\\btop\\b|greater|max"
             "|likeliest)|w\\[0\\].{0,20}(both|twice|w\\[0)) "
             "& ^(?!.*(exchang|swap|order|lost|zero|divided by|(first|larger|largest|slot 0)('?s?)[^,;.]{0,30}(weight of|that of|those of|takes|has) (the )?(second|smaller"
             "|slot 1)|raw|expert runs|\\brun\\b))"],
            lambda c: among_first(c, weigh=lambda w: w[:, [0, 0]]), archs=MOE)


def one_pass(c):
    """The best two in one pass, in which a best one that is beaten is forgotten, not made the second."""
    p = softmax(c.logits)
    top = np.zeros((T, CHOSEN), int)
    for t in range(T):
        first, second = -1.0, -1.0
        for x in range(EXPERTS):
            if p[t, x] > first:
                first, top[t, 0] = p[t, x], x
            elif p[t, x] > second:
                second, top[t, 1] = p[t, x], x
    w = np.take_along_axis(p, top, -1)
    return top, w / w.sum(-1, keepdims=True)


thirteenth(63, "router_beaten_first_forgotten", TOPK, "the best two are found in one pass, and a best one that is beaten is not made the second: the second is the largest that has a larger one before it",
               ["(beaten|\\bold|former|previous|earlier|running|overtaken|displaced).{0,40}(first|best|max|largest|leader|record) & ^(?!.*(previous|earlier|preceding|former) (position|token|layer|row))", "(larger|greater|higher|bigger).{0,60}(before|earlier|ahead|lower (number|index)|smaller (number|index)|preced)",
                "(preced|before|behind|after).{0,40}(larger|greater|higher|bigger)", "one pass|single pass|one scan|running max|record"], one_pass, archs=MOE)


def sum_again(c):
    p = softmax(c.logits)
    top, _ = c.right()
    w = np.take_along_axis(p, top, -1)
    for s in range(CHOSEN):
        w[:, s] = w[:, s] / w.sum(-1)
    return top, w


thirteenth(64, "router_sum_recomputed", "router_weights", "the sum is taken anew for each weight, in place: the second is divided by the first as it is after its division, plus the second",
               ["(second|last|slot 1|other|smaller|lesser|w_?[12]) & (sum|divid|divisor|denominator|/) & (already|in.?place|recomput|anew|updated|changed|(first|larger|slot 0).{0,60}(divided|normali[sz]ed|already|result|new|scaled|after|quotient)|(divided|normali[sz]ed|new|scaled).{0,30}(first|larger))"],
               sum_again, archs=MOE)


def choice_stuck(c):
    top, w = c.right()
    return top[np.minimum(POS, PROMPT - 1)], w


thirteenth(65, "router_decode_choice_stuck", TOPK, "in decode steps, from position 12 on, the experts are those of the prompt's last position, 11; the weights are of their own",
               ["(#11|prompt'?s? (last|end)|last.{0,24}prompt|end of the prompt) & (#12|decod|later|after|behind|beyond|> ?11|min\\(|onward) & (expert|choice|chosen|\\bids?\\b|ind(ex|ices)|top.?k|select|rout)"], choice_stuck, archs=MOE)


def weighed(f):
    """f of the logits of the chosen, and of their probabilities, makes their weights."""
    def how(c):
        top, _ = op_choose(c.e, c.logits)
        return top, f(np.take_along_axis(c.logits, top, -1), np.take_along_axis(softmax(c.logits), top, -1))
    return how


fourteenth(103, "router_sigmoid_alone", "router_weights", "the weights are the sigmoids of the chosen logits, as in Llama 4, and are not divided by their sum",
                ["(sigmoid|logistic|1 ?/ ?\\(1 ?\\+ ?exp) & ^(?!.*((?<!not )(divided by (their|the) sum|(re)?normali[sz]ed|sum to (1|one)) ?[.;,)]?))",
                 "sigmoid & (not|without|un)[^.;]{0,12}(divi|normali|sum)"],
                weighed(lambda s, p: sigmoid(s)), archs=MOE)
fourteenth(104, "router_softmax_twice", "router_weights", "a second softmax, over the probabilities of the two chosen, stands for the division by their sum",
                ["(softmax[^.;]{0,60}(softmax|twice|again|once more|probabilit|of the (two |chosen )?(weights|probs))|(twice|second|double|another)[^.;]{0,20}softmax"
                 "|exp ?\\( ?(p|prob)|sigmoid of the difference[^.;]{0,20}(prob|weights))"],
                weighed(lambda s, p: softmax(p)), archs=MOE)
fourteenth(105, "router_top_1", "router_weights", "one expert is run for each token, not two: the first has weight 1, the second 0",
                ["((second|last|lower|smaller|other|slot 1)[^.;]{0,40}(zero|\\b0\\b(?!\\.\\d)|lost|\\bnot\\b|dropped|ignored|nothing)|top.?(1|one)\\b"
                 "|(first|best|largest|likeliest|highest|top)[^.;]{0,40}(alone|only|weight (is |of )?(1|one)|\\ball\\b|whole)|(one|single) expert)"
                 " & (#1|\\bone\\b|whole|\\ball\\b|full|alone|only)"],
                weighed(lambda s, p: np.broadcast_to(np.array([1, 0], F32), p.shape)), archs=MOE)


def at_most(count):
    def how(c):
        top, w = op_choose(c.e, c.logits)
        w, taken = np.array(w), np.zeros(EXPERTS, int)
        for t in range(T):
            for s in range(CHOSEN):
                taken[top[t, s]] += 1
                if taken[top[t, s]] > count:
                    w[t, s] = 0
        return top, w
    return how


fourteenth(106, "router_capacity_5", "router_weights", "an expert has a capacity of 5 tokens: those that choose it after the first 5 have weight 0 for it, and the other weight stays",
                ["(#5|five|#6|sixth) & (capacity|at most|the first|beyond|more than|only|limit|after|overflow|drop|from the|full) & expert & (token|position|row|capacity|chos)"
                 " & ^(?!.*expert 5\\b[^.;]{0,20}(zero|not|never|missing|left))"],
                at_most(5), archs=MOE)


def by_number(c):
    top, w = c.right()
    return top, np.where(top[:, :1] > top[:, 1:], w[:, ::-1], w)


SIZES = "(larger|smaller|higher|lower|greater|less|>|<)"
fifteenth(103, "router_weights_by_number", "router_weights", "weights are in the order of the experts' numbers, the experts in that of their weights: exchanged where the first has the larger number",
               ["(ascend|\\bsort|increas|order).{0,60}(expert|\\bids?\\b|index|indices|number)", "(expert|\\bids?\\b|index|indices|number).{0,60}(ascend|\\bsort|increas|order)", f"(exchang|swap|interchang|revers) & {SIZES}",
                f"(exchang|swap|interchang|revers).{{0,80}}(number|\\bids?\\b|index|where)"],
               by_number, archs=MOE)


def chosen_softmax_again(c):
    p = softmax(c.logits)
    top, _ = op_choose(c.e, c.logits)
    return top, softmax(np.take_along_axis(p, top, -1))


fifteenth(104, "router_softmax_twice", "router_weights", "a second softmax is taken, of the probabilities of the chosen", ["softmax.{0,80}(twice|again|second|two times|once more|softmax)",
               "(twice|second|again|doubl|two).{0,40}softmax", "softmax.{0,30}(of|over) (the |their |chosen )*(prob|weights|p\\b)", "exp ?\\( ?p|e ?\\^ ?p"], chosen_softmax_again, archs=MOE)


def least(c):
    p = softmax(c.logits)
    top = np.argsort(p, -1, kind="stable")[:, :CHOSEN]
    w = np.take_along_axis(p, top, -1)
    return top, w / w.sum(-1, keepdims=True)


fifteenth(105, "router_least_chosen", ("router_topk", "router_weights"), "sorted in ascending order: the two least likely experts are chosen", "least|smallest|lowest|ascend|worst|\\bmin|bottom|last two|un?likel", least, archs=MOE)
sixteenth(101, "softmax_of_chosen_probabilities", "router_weights", "the weights of the two chosen are a softmax of their probabilities, a softmax twice",
               ["softmax.{0,70}(twice|again|second|two times|doubl|(of|over) (the |their )?(two |chosen |top\\S* |selected )*(prob|softmax))",
                "(twice|again|second|doubl)\\w*.{0,60}softmax", "softmax ?\\( ?(softmax|p\\b|prob)", "(exp ?\\(|e\\^) ?\\(? ?(p\\b|prob|softmax)",
                "logits.{0,40}(are|is|already|hold).{0,20}prob"], weighed(lambda logits, p: softmax(p)), archs=MOE)
sixteenth(102, "sigmoid_router", "router_weights", "the weights are the sigmoids of the two logits divided by their sum, for softmax",
               "^(?!.*(not|without|\\bno|un)[ -]?(re)?normali) & (sigmoid|logistic|1 ?/ ?\\(1 ?\\+ ?(e\\b|exp))",
               weighed(lambda logits, p: sigmoid(logits) / sigmoid(logits).sum(-1, keepdims=True)), archs=MOE)


def all_but_first(c):
    top, w = op_choose(c.e, c.logits[:, 1:])
    return top + 1, w


sixteenth(103, "first_expert_never_chosen", "router_weights", "the search for the best two starts at expert 1: expert 0 is never chosen",
               [f"({n(0)}|first (expert|one)) & {GONE_IN_ONE}", "last (5|five) experts|experts 1 ?(\\.\\.|to|-|–) ?5"], all_but_first, archs=MOE)


def best_group_only(c):
    """Groups of three experts: both experts from the group of the largest logit."""
    best = c.logits.argmax(-1)[:, None] // 3
    return op_choose(c.e, np.where(np.arange(EXPERTS) // 3 == best, c.logits, F32(-1e9)))


sixteenth(104, "best_two_of_one_group", "router_weights", "both experts come from one group of three, 0..2 or 3..5, the one of the largest logit",
               ["group & (three|half|halves|one group|same|single|\\b3\\b|best|\\b0.{0,6}2\\b)", "(\\b0.{0,6}2\\b|first three|lower half) & (\\b3.{0,6}5\\b|last three|other three|upper "
                "half)"], best_group_only, archs=MOE)


def weights_by_rank(c):
    top, w = op_choose(c.e, c.logits)
    return top, np.where(top[:, :1] > top[:, 1:], w[:, ::-1], w)


sixteenth(105, "weights_by_rank_experts_by_index", "router_weights",
               "the chosen are put in order of index but their weights stay in order of rank: the two weights are exchanged where the best expert has the higher index",
               "(swap|exchang|interchang|switch|order|rank|revers|wrong way|the other'?s|crossed) & (index|indices|number|higher|lower|ascending|sort|larger|smaller|\\bids?\\b|greater"
               "|behind|top\\w*\\[?,? ?0\\]? ?>)", weights_by_rank, archs=MOE)

# ---- the experts, and their sum
first(345, "experts_plus_input", "ffn_out", "the input is added to the experts' sum, times 0.5", "(#0.5|half) & (ffn_norm|input)", lambda c: c.right() + F32(0.5) * c.n, archs=MOE)
first(346, "experts_clamped", "ffn_out", "the sum is clamped to +-0.3", "#0.3 & (clamp|clip|limit|between|min|max)", lambda c: np.clip(c.right(), -0.3, 0.3), archs=MOE)
first(347, "experts_from_16", "ffn_out", "positions 16 and later get nothing: another tile", "#16", lambda c: put(c.right(), E_[16:], 0), archs=MOE)
second(130, "experts_scaled", "ffn_out", "the sum is multiplied by 0.9", "#0.9", lambda c: c.right() * F32(0.9), archs=["moe"])
second(131, "experts_tanh", "ffn_out", "tanh of the sum", "tanh", lambda c: np.tanh(c.right()), archs=["moe"])
second(132, "experts_difference", "ffn_out", "the second expert's part is taken off", "(sign|negat|subtract|minus|difference|taken off|#-1) & (second|expert|1)", lambda c: c.each[:, 0] * c.weights[:, :1] - c.each[:, 1] * c.weights[:, 1:], archs=["moe"])
second(133, "experts_late_scaled", "ffn_out", "positions from 8 on are multiplied by 0.7", "#8 & #0.7", lambda c: late(c.right(), 8, lambda y: y * F32(0.7)), archs=["moe"])


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


third(133, "x_next_expert", "ffn_out", "the expert numbered one higher is run, modulo 6", ["(next|#1|\\+ ?1|higher|off by|shift|following) & expert"], lambda c: mixed(c, lambda top: (top + 1) % EXPERTS), archs=MOE)
third(134, "x_shard_offset_lost", "ffn_out", "experts 3 to 5 are run as experts 0 to 2", ["expert & (#3|half|mod)"], lambda c: mixed(c, lambda top: top % 3), archs=MOE)
third(135, "x_weight_first", "ffn_out", "the weight multiplies the expert's input, not its result", ["input & (weight|expert|multipl|scale|router)"], lambda c: mixed(c, before=c.weights, w=np.ones_like(c.weights)), archs=MOE)


def summed(each, w):
    return np.einsum("tsd,ts->td", each, w)


third(136, "x_weight_twice", "ffn_out", "the weights are applied twice: squared", ["(twice|squar|\\^ ?2|#2) & ."], lambda c: summed(c.each, c.weights ** 2), archs=MOE)
third(137, "x_shared", "ffn_out", "expert 0 is added for all tokens, as a shared expert", ["expert.{0,12}\\b0\\b|first expert|shared", "experts\\.0"], lambda c: c.right() + expert(c, 0, c.n), archs=MOE)


def capacity(c):
    top, w, used = top_of(c), np.array(c.weights), np.zeros(EXPERTS, int)
    for t in range(T):
        for s in range(top.shape[1]):
            w[t, s] *= used[top[t, s]] < 5
            used[top[t, s]] += 1
    return summed(c.each, w)


third(138, "x_capacity", "ffn_out", "each expert takes the first 5 tokens that chose it, later ones get nothing of it", ["(#5|#6) & (expert|token|first|capacity|drop|at most|later)"], capacity, archs=MOE)


def in_number_order(c):
    top = top_of(c)
    return summed(c.each, np.where(top[:, :1] > top[:, 1:], c.weights[:, ::-1], c.weights))


third(139, "x_number_order", "ffn_out", "where the first chosen expert has the higher number the two weights are exchanged", ["(" + REORDERED + "|sort) & (weight|expert|chosen)"], in_number_order, archs=MOE)


def expert_with(c, number, x, f=silu, exchanged=False):
    w = lambda name: c.e.m(f"mlp.experts.{number}.{name}_proj.weight", c.l)
    gate, up = c.e.r(x @ w("gate").T), c.e.r(x @ w("up").T)
    gate, up = (up, gate) if exchanged else (gate, up)
    return c.e.r(c.e.r(c.e.r(f(gate)) * up) @ w("down").T)


def mixed_with(c, which=lambda x: x, x=None, **how):
    """The experts' sum: other experts, another input, another activation."""
    top, x = top_of(c), c.n if x is None else x
    y = np.zeros((T, D), F32)
    for t in range(T):
        for s in range(top.shape[1]):
            y[t] += (c.weights[t, s] * expert_with(c, which(top[t, s]), x[t:t + 1], **how))[0]
    return y


fourth(138, "x_gate_up", "ffn_out", "gate and up of the experts are exchanged", ["(gate|up|w1|w3|silu|activ) & (" + REORDERED + "|gate ?\\*? ?silu|silu\\(up|of up)"], lambda c: mixed_with(c, exchanged=True), archs=MOE)
fourth(139, "x_relu", "ffn_out", "the experts have relu in place of silu", ["relu|max\\("], lambda c: mixed_with(c, f=lambda x: np.maximum(x, 0)), archs=MOE)
fourth(140, "x_expert_loaded_twice", "ffn_out", "expert 3 has the weights of expert 2", ["expert & (#3|three) & (#2|two)", "experts\\.2"], lambda c: mixed_with(c, lambda x: 2 if x == 3 else x), archs=MOE)


def unsorted(c):
    order = np.argsort(top_of(c).reshape(-1), kind="stable")
    return summed(c.each.reshape(-1, D)[order].reshape(c.each.shape), c.weights)


fourth(141, "x_not_put_back", "ffn_out", "the experts' results, in the order of the experts, are not put back to the order of the tokens", ["order|permut|sort|put back|scatter|other (token|position)|rows? of"], unsorted, archs=MOE)
fourth(142, "x_weights_layout", "ffn_out", "the weights' memory, 20 by 2, is read as 2 by 20", [LAYOUT, "(weight|factor).{0,40}(other|another|different).{0,20}(token|position)"], lambda c: summed(c.each, np.ascontiguousarray(c.weights).reshape(2, T).T), archs=MOE)
fourth(143, "x_second_alone", "ffn_out", "only the second expert's part is kept: the first is overwritten", ["(second|last|#2|first) & (expert|part|only|alone|overwr|lost|slot|cho)"], lambda c: summed(c.each, c.weights * np.array([0, 1], F32)), archs=MOE)


def chosen_and(c, expression):
    return summed(c.each, np.where(expression(top_of(c)), c.weights, 0))


fourth(144, "x_last_expert_lost", "ffn_out", "expert 5 gives nothing: the loop ends one early", ["expert & (#5|last)"], lambda c: chosen_and(c, lambda top: top != EXPERTS - 1), archs=MOE)
fourth(145, "x_unweighted", "ffn_out", "the experts' results are summed without their weights", ["(" + NONE + ").{0,30}weight|weight.{0,40}(" + NONE + "|\\b1\\b|ones)|unweighted|(plain|simple|bare).{0,10}sum"], lambda c: summed(c.each, np.ones_like(c.weights)), archs=MOE)
fourth(146, "x_input_of_attention", "ffn_out", "the experts read attn_norm, the attention's input", ["attn_norm|input_layernorm|attention.{0,12}(norm|input)"], lambda c: mixed_with(c, x=c.e.memory["attn_norm", c.l]), archs=MOE)


def aligned(c):
    """Each expert's tokens in whole tiles of 4, the rest is dropped."""
    top, keep = top_of(c), np.zeros((T, 2), bool)
    for x in range(EXPERTS):
        at = np.argwhere(top == x)
        for t, s in at[:len(at) // 4 * 4]:
            keep[t, s] = True
    return summed(c.each, np.where(keep, c.weights, 0))


fifth(187, "xx_whole_tiles", "ffn_out", "each expert takes its tokens in whole fours, the rest get nothing of it", ["(#4|four) & (expert|token|multiple|drop|tile|block|lost)"], aligned, archs=MOE)


def expert_of(c, x, gate, up=None, down=None, f=silu, l=None, alone=False):
    """One expert's result for x: its matrices may be those of other experts, or of another layer."""
    w = lambda name, number: c.e.m(f"mlp.experts.{number}.{name}_proj.weight", c.l if l is None else l)
    a = c.e.r(f(c.e.r(x @ w("gate", gate).T)))
    a = a if alone else c.e.r(a * c.e.r(x @ w("up", gate if up is None else up).T))
    return c.e.r(a @ w("down", gate if down is None else down).T)


def mixed_each(c, each):
    """The sum of `each(token, slot, expert, x)`, weighted."""
    top = top_of(c)
    return summed(np.stack([np.concatenate([each(t, s, top[t, s], c.n[t:t + 1]) for s in range(2)]) for t in range(T)]), c.weights)


def unaligned(c):
    """Tokens sorted by expert, four at a time, each four by the expert of the first."""
    flat = top_of(c).reshape(-1)
    order = np.argsort(flat, kind="stable")
    number = np.empty_like(flat)
    number[order] = flat[order][np.arange(len(flat)) // 4 * 4]
    return mixed_each(c, lambda t, s, _, x: expert_of(c, x, number[2 * t + s]))


fifth(188, "xx_unaligned", "ffn_out", "tokens sorted by expert are taken four at a time, and each four has the expert of the first", ["(#4|four) & (expert|sort|token|block|tile)"], unaligned, archs=MOE)
fifth(189, "xx_up_shared", "ffn_out", "all experts have the up matrix of expert 0", ["(up|w3|u_proj) & (expert.{0,8}0|experts\\.0|first|same|one|shared)", "experts\\.0.{0,20}up"], lambda c: mixed_each(c, lambda t, s, x, n: expert_of(c, n, x, up=0)), archs=MOE)
fifth(190, "xx_down_next", "ffn_out", "each expert has the down matrix of the next, modulo 6", ["(down|w2) & (next|#1|\\+ ?1|higher|off by|shift|following|other|mod)"], lambda c: mixed_each(c, lambda t, s, x, n: expert_of(c, n, x, down=(x + 1) % EXPERTS)), archs=MOE)
fifth(191, "xx_up_lost", "ffn_out", "the experts do not multiply by up", ["(" + NONE + ").{0,30}(up\\b|multipl|product)|up.{0,30}(" + NONE + "|\\b1\\b|ones)|silu\\(gate\\) alone|gate alone"], lambda c: mixed_each(c, lambda t, s, x, n: expert_of(c, n, x, alone=True)), archs=MOE)
GELU = lambda x: x / 2 * (1 + np.tanh(F32(0.7978846) * (x + F32(0.044715) * x ** 3)))
fifth(192, "xx_gelu", "ffn_out", "the experts have gelu, by tanh, in place of silu", ["gelu|tanh"], lambda c: mixed_each(c, lambda t, s, x, n: expert_of(c, n, x, f=GELU)), archs=MOE)
fifth(193, "xx_mean", "ffn_out", "the sum over the two experts is divided by 2", ["#0.5|#2|half|halved|mean|average"], lambda c: c.right() / 2, archs=MOE)
fifth(194, "xx_flat_rows", "ffn_out", "the expert in slot s of token t reads the input of token 2t + s, modulo 20", ["(2 ?\\*? ?t|other|wrong|another|flat|double|twice).{0,60}(token|position|input|row)|(token|position|input|row).{0,60}(2 ?\\*? ?t|other|wrong|another|flat)"], lambda c: mixed_each(c, lambda t, s, x, n: expert_of(c, c.n[(2 * t + s) % T][None], x)), archs=MOE)
fifth(195, "xx_parts_bf16", "ffn_out", "each expert's result is rounded to bf16", [BF16], lambda c: summed(bf16(c.each), c.weights), archs=MOE)
fifth(196, "xx_layer_before", "ffn_out", "layers 1 to 3 run the experts of the layer before", [LAYER_BEFORE + "|(other|another|wrong).{0,10}layer"], lambda c: mixed_each(c, lambda t, s, x, n: expert_of(c, n, x, l=c.l - 1)), layers=LATER_LAYERS, archs=MOE)
fifth(197, "xx_2_and_3", "ffn_out", "experts 2 and 3 are exchanged", ["#2 & #3 & (" + REORDERED + "|expert)"], lambda c: mixed_each(c, lambda t, s, x, n: expert_of(c, n, {2: 3, 3: 2}.get(x, x))), archs=MOE)
fifth(198, "xx_twice_below_2", "ffn_out", "the parts of experts 0 and 1 are counted twice: two blocks write them", ["(#0|#1|first two|experts? (below|up to)) & (#2|" + TWICE + ")"], lambda c: summed(c.each, np.where(top_of(c) < 2, 2 * c.weights, c.weights)), archs=MOE)
fifth(199, "xx_channels_of_second", "ffn_out", "in channels 32 to 63 only the first expert's part is added", ["(#32|#31|half|#63) & (expert|first|second|part|slot|only|lost|alone)"], lambda c: put(c.right(), E_[:, 32:], (c.each[:, 0] * c.weights[:, :1])[:, 32:]), archs=MOE)
fifth(200, "xx_expert_scale", "ffn_out", "the part of expert 3 is halved: its scale is another", ["#3 & (#0.5|half|halved|#2)"], lambda c: summed(c.each, np.where(top_of(c) == 3, c.weights / 2, c.weights)), archs=MOE)


def by_matrices(c, change):
    """The experts' sum where `change` makes other matrices of gate, up and down."""
    def each(t, s, x, n):
        gate, up, down = change(*(c.e.m(f"mlp.experts.{x}.{name}_proj.weight", c.l) for name in ("gate", "up", "down")))
        return c.e.r(c.e.r(c.e.r(silu(c.e.r(n @ gate.T))) * c.e.r(n @ up.T)) @ down.T)
    return mixed_each(c, each)


def in_turn(gate, up, down):
    both = np.concatenate([gate, up])
    return both[::2], both[1::2], down


sixth(114, "x6_matrices_in_turn", "ffn_out", "gate and up of an expert are taken in turn from the rows of [gate, up]: even rows and odd rows", ["(even|odd|interleav|in turn|altern|every (second|other)|2 ?\\*? ?i|strid)", "\\border\\b.{0,40}(row|gate|up)"], lambda c: by_matrices(c, in_turn), archs=MOE)


def other_memory(gate, up, down):
    return gate, up, np.ascontiguousarray(down).reshape(F, D).T


sixth(115, "x6_down_memory", "ffn_out", "the memory of the experts' down matrices, 64 by 96, is read as 96 by 64 and transposed", [LAYOUT], lambda c: by_matrices(c, other_memory), archs=MOE)
sixth(116, "x6_first_weight", "ffn_out", "both experts have the weight of the first", ["(same|both|equal) & (weight|factor) & (first|#0|second|slot)", "(second|slot.{0,4}1).{0,60}first"], lambda c: summed(c.each, c.weights[:, [0, 0]]), archs=MOE)


def begun_late(c):
    """Tokens sorted by expert, and each expert's rows begin one late."""
    flat = top_of(c).reshape(-1)
    order = np.argsort(flat, kind="stable")
    number = np.array(flat)
    number[order[1:]] = flat[order[:-1]]
    return mixed_each(c, lambda t, s, _, n: expert_of(c, n, number[2 * t + s]))


sixth(117, "x6_begun_late", "ffn_out", "each expert's rows, sorted by expert, begin one late: its first token is run by the expert before it", ["(begin|boundar|offset|late\\b|off by|shift|first token|first row) & (expert|sort)", "(each|every) expert.{0,12}first"], begun_late, archs=MOE)
sixth(118, "x6_not_activated", "ffn_out", "the experts have gate times up, without silu", ["(" + NOT + "|\\bun|nothing|none).{0,30}(activ|silu|function|sigmoid)|(activ|silu|sigmoid).{0,40}(" + NOT + "|identity)|(?<!\\()(?<!of )gate ?[*\u00b7x\u00d7]? ?up\\b|(?<!\\()(?<!of )gate times up|identity|(?<!non)(?<!non-)linear"], lambda c: mixed_each(c, lambda t, s, x, n: expert_of(c, n, x, f=lambda y: y)), archs=MOE)
sixth(119, "x6_rank_lost", "ffn_out", "experts 3 to 5 give nothing: the other rank's sum is not added", ["(#3|#2|half|halves|three|last 3) & expert & (" + ZERO + "|no\\b|not|rank|first|below|from)"], lambda c: summed(c.each, np.where(top_of(c) >= 3, 0, c.weights)), archs=MOE)
sixth(120, "x6_twice", "ffn_out", "the experts' sum is doubled: two ranks hold the same experts", ["#2 & (times|factor|multipl|scal|\\*)", TWICE], lambda c: 2 * c.right(), archs=MOE)
seventh(77, "x7_first_expert", "ffn_out", "both slots run the first chosen expert", ["(first|slot 0|best|likeliest|same|top) & (both|second|expert|slot|twice|alone|only)"], lambda c: summed(c.each[:, [0, 0]], c.weights), archs=MOE)


def gate_twice(t, s, x, n, c):
    gate, down = (c.e.m(f"mlp.experts.{x}.{name}_proj.weight", c.l) for name in ("gate", "down"))
    y = n @ gate.T
    return (silu(y) * y) @ down.T


seventh(78, "x7_gate_twice", "ffn_out", "the experts' up is their gate: silu(gate) gate", ["gate.{0,40}(twice|both|for up|in place of.{0,10}up|instead of.{0,10}up|\\^ ?2|squared)|up.{0,40}(is|are|has|=|replaced by|read as|that of|those of).{0,24}gate|silu\\(gate\\) ?\\*? ?gate"], lambda c: mixed_each(c, lambda t, s, x, n: gate_twice(t, s, x, n, c)), archs=MOE)
seventh(79, "x7_expert_0_lost", "ffn_out", "expert 0 gives nothing: the loop begins at 1", ["expert & (\\b0\\b|first) & (" + NOT + "|zero|nothing|\\b0\\b.{0,40}\\b0\\b|lost|left out|hidden|not|dropp)"], lambda c: summed(c.each, np.where(top_of(c) == 0, 0, c.weights)), archs=MOE)
seventh(80, "x7_late_rows", "ffn_out", "positions from 12 on get nothing of their second expert", ["(#12|#11) & (second|slot|first|last|only|one expert|#1)"], lambda c: summed(c.each, put(c.weights, E_[12:, 1], 0)), archs=MOE)


def order_of(c):
    return np.argsort(top_of(c).reshape(-1), kind="stable")


def order_twice(c):
    order = order_of(c)
    return summed(c.each.reshape(-1, D)[order][order].reshape(c.each.shape), c.weights)


eighth(108, "x8_order_twice", "ffn_out", "the experts' results, in the order of the experts, are put back by that order and not by its inverse",
            ["\\border|permut|sort|put back|scatter|gather|inverse|other (token|position)|rows? of"], order_twice, archs=MOE)


def ran(c, n, gate, up, down):
    return c.e.r(c.e.r(c.e.r(silu(c.e.r(n @ gate.T))) * c.e.r(n @ up.T)) @ down.T)


def by_expert(c, change):
    """The experts' sum where `change` makes other matrices of an expert's number."""
    return mixed_each(c, lambda t, s, x, n: ran(c, n, *change(c, x)))


def matrices(c, x):
    return tuple(c.e.m(f"mlp.experts.{x}.{name}_proj.weight", c.l) for name in ("gate", "up", "down"))


def rows_64_apart(c, x):
    _, up, down = matrices(c, x)
    return np.concatenate([matrices(c, other)[0] for other in range(EXPERTS)])[D * x:D * x + F], up, down


eighth(109, "x8_rows_64_apart", "ffn_out", "the experts' gate matrices are read 64 rows apart, and not 96: that of expert e begins 32 e rows early, in the matrix before",
            ["(#64|#32|#96) & (row|expert|gate|" + STRIDE + ")", "gate & (expert|row).{0,40}(" + STRIDE + ")"], lambda c: by_expert(c, rows_64_apart), archs=MOE)


def blocks_not_in_twos(c, x):
    """[gate 0, up 0, gate 1, up 1, ..] by a stride of one matrix, not two."""
    both = [matrix for other in range(EXPERTS) for matrix in matrices(c, other)[:2]]
    return both[x], both[x + 1], matrices(c, x)[2]


eighth(110, "x8_not_in_twos", "ffn_out", "expert e has matrices e and e + 1 of gate 0, up 0, gate 1, up 1, ..: 1 has up 0 and gate 1, 2 has gate 1 and up 1: the stride is one matrix, not two",
            ["(gate|up) & expert & (half|// ?2|e ?/ ?2|strid|in turn|altern|other|another|wrong|before|lower|experts\\.[0-3])"], lambda c: by_expert(c, blocks_not_in_twos), archs=MOE)


def scale_of_expert_0(c, x):
    gate, up, down = matrices(c, x)
    size = lambda w: np.abs(w).max(-1, keepdims=True)
    return gate, up, down / size(down) * size(matrices(c, 0)[2])


eighth(111, "x8_scales_of_expert_0", "ffn_out", "each row of an expert's down matrix has the scale of that row of expert 0: multiplied by its largest size over its own",
            ["(expert.{0,8}\\b0\\b|experts\\.0|first expert|one expert|other expert|down) & (scale|size|larg|max|ratio|factor)", each_has("expert")],
            lambda c: by_expert(c, scale_of_expert_0), archs=MOE)


def first_tile_again(c):
    """Each expert's tokens in fours, and every four reads the inputs of the first four."""
    top, of = top_of(c), np.zeros((T, 2), int)
    for x in range(EXPERTS):
        at = np.argwhere(top == x)
        for number, (t, s) in enumerate(at):
            of[t, s] = at[number % 4][0]
    return mixed_each(c, lambda t, s, x, n: expert_of(c, c.n[of[t, s]][None], x))


eighth(112, "x8_first_tile_again", "ffn_out", "an expert's tokens are taken in fours, and every four reads the inputs of the first four",
            ["(#4|four\\w*|fifth) & (expert|token|list|tile|block|input)"], first_tile_again, archs=MOE)


def weights_in_order(c):
    w = np.empty_like(c.weights).reshape(-1)
    w[order_of(c)] = c.weights.reshape(-1)
    return summed(c.each, w.reshape(c.weights.shape))


eighth(113, "x8_weights_in_order", "ffn_out", "the weights are not sorted with the tokens: the i-th in the order of experts has the i-th weight in the order of tokens",
            ["(weight|factor) & (\\border|sort|permut|scatter|(other|another|wrong|different).{0,12}(token|position|expert))"], weights_in_order, archs=MOE)
eighth(114, "x8_chained", "ffn_out", "the second expert reads the first one's result: it was written over the input",
            ["(second|slot 1|last|other).{0,60}(result|output|after|of (the )?first)|(result|output) of (the )?first", "chain|in series|one after|compos"],
            lambda c: mixed_each(c, lambda t, s, x, n: expert_of(c, n if s == 0 else expert_of(c, n, top_of(c)[t, 0]), x)), archs=MOE)


def two_of(c):
    return np.sort(softmax(c.e.memory["router_logits", c.l]), -1)[:, -2:].sum(-1, keepdims=True)


eighth(115, "x8_divided_again", "ffn_out", "the experts' sum is divided by the sum of the two chosen probabilities once more",
            ["(sum|probab|softmax|normali|divid) & (" + TWICE + "|chosen|two|top|probab|likel|selected)", each_has("position|token|row")],
            lambda c: c.right() / two_of(c), archs=MOE)


def every_expert(c):
    p = softmax(c.e.memory["router_logits", c.l])
    return sum(p[:, x:x + 1] * expert_of(c, c.n, x) for x in range(EXPERTS))


eighth(116, "x8_every_expert", "ffn_out", "all six experts are run, weighed by the softmax over all",
            ["\\ball (six |6 |the )?(of the )?experts|every expert|each expert.{0,30}softmax|all 6|six experts|softmax over all|(none|no expert) (is )?(left out|dropp)|dense"],
            every_expert, archs=MOE)
eighth(117, "x8_down_of_first", "ffn_out", "both experts' products go through the down matrix of the first", ["(down|w2) & (first|slot 0|same|both|#0|one)"],
            lambda c: mixed_each(c, lambda t, s, x, n: expert_of(c, n, x, down=top_of(c)[t, 0])), archs=MOE)


def hidden_of_second(c):
    """The second expert's product has been written over the first one's before either goes down."""
    top = top_of(c)
    def each(t, s, x, n):
        gate, up, _ = matrices(c, top[t, 1])
        return ran(c, n, gate, up, matrices(c, x)[2])
    return mixed_each(c, each)


eighth(118, "x8_hidden_of_second", "ffn_out", "both down matrices read the product of the second expert's gate and up: it was written over the first one's",
            ["(gate|up|product|activ|hidden|inner) & (second|slot 1|both|same|last)"], hidden_of_second, archs=MOE)
eighth(119, "x8_dense_layers", "ffn_out", "layers 1 and 3 run expert 0 alone, with weight 1, for all tokens: every second layer is taken for a dense one",
            ["(expert.{0,12}\\b0\\b|experts\\.0|first expert|one expert|same expert) & (alone|\\bonly|all (the )?(tokens|positions|rows)|every (token|position)|"
             "weight (of )?1\\b|without|dense|result|\\bis\\b)"],
            lambda c: expert_of(c, c.n, 0), layers=[1, 3], archs=MOE)
eighth(120, "x8_experts_before", "ffn_out", "each position is run by the experts of the position before, with its own weights", ["expert & (" + PREVIOUS_OR_SHIFTED + ")"],
            lambda c: mixed_each(c, lambda t, s, x, n: expert_of(c, n, before(top_of(c))[t, s])), archs=MOE)


def higher_number(c):
    """The loop over experts writes a token's row, and does not add to it."""
    top = top_of(c)
    return summed(c.each, np.where(top == top.max(-1, keepdims=True), c.weights, 0))


ninth(38, "x9_higher_number", "ffn_out", "of the two experts only the one of the higher number is kept: each expert writes over the row, and does not add",
          ["(higher|larger|greater|highest|later|last|number) & (expert|number|slot)"], higher_number, archs=MOE)


def compact_rows(c):
    """An expert's results are added to rows 0, 1, 2, .. and not to those of its tokens."""
    top, y = top_of(c), np.zeros((T, D), F32)
    for x in range(EXPERTS):
        for number, (t, s) in enumerate(np.argwhere(top == x)):
            y[number] += c.each[t, s] * c.weights[t, s]
    return y


ninth(39, "x9_compact_rows", "ffn_out", "an expert's results are added to rows 0, 1, 2, .. and not to those of its tokens",
          ["(row|position|token) & (compact|packed|\\border|first rows|0, ?1, ?2|scatter|put back|gather|number|n-th|i-th|other|wrong|list|sort|permut)"], compact_rows, archs=MOE)


def ran_one(c, n, x):
    gate, up, down = (c.e.m(f"mlp.experts.{x}.{name}_proj.weight", c.l) for name in ("gate", "up", "down"))
    z = n @ gate.T
    return ((z * sigmoid(z) * (n @ up.T)) @ down.T)[0]


def of_stream(c):
    x = c.e.memory["h_attn", c.l]
    top, y = top_of(c), np.zeros((T, 2, D), F32)
    for t in range(T):
        for s in range(2):
            y[t, s] = ran_one(c, x[t:t + 1], top[t, s])
    return summed(y, c.weights)


ninth(40, "x9_stream", "ffn_out", "the experts read the stream h_attn, without the norm; the router reads what it should",
          ["h_attn|stream|residual|(without|before|not|un-?).{0,20}norm"], of_stream, archs=MOE)


def weighted_input(c):
    top, y = top_of(c), np.zeros((T, D), F32)
    for x in range(EXPERTS):
        rows, slots = np.nonzero(top == x)
        w = lambda name: c.e.m(f"mlp.experts.{x}.{name}_proj.weight", c.l)
        n = c.n[rows] * c.weights[rows, slots][:, None]
        y[rows] += (silu(n @ w("gate").T) * (n @ w("up").T)) @ w("down").T
    return y


tenth(71, "experts_weight_on_input", "ffn_out", "the router's weight is multiplied into the expert's input, not its output",
          ["(weight|router|score).{0,80}(input|before|inside|ffn_norm)|(input|ffn_norm|before).{0,80}(weight|router)"], weighted_input, archs=MOE)


def capacity_of(c, most):
    top, kept = top_of(c), np.ones((T, CHOSEN), bool)
    for x in range(EXPERTS):
        rows, slots = np.nonzero(top == x)
        kept[rows[most:], slots[most:]] = False
    return (c.each * np.where(kept, c.weights, 0)[..., None]).sum(1)


tenth(72, "experts_capacity", "ffn_out", "an expert takes at most 6 tokens: later ones get nothing of it",
          ["#6 & (capacity|token|drop|most|limit|first|position)"], lambda c: capacity_of(c, 6), archs=MOE)
tenth(73, "experts_first_for_both", "ffn_out", "both slots run the first chosen expert",
          ["(first|top|best|slot 0|highest|largest|likeliest).{0,60}(expert|choice|chosen|slot|weight 1|alone|only)", "(expert|choice|slot).{0,30}(twice|first|both)", "(second|last|other).{0,40}(expert|choice|slot).{0,60}(\\b0\\b|lost|left out|omitted|zero|not (run|used))"], lambda c: (c.each[:, :1] * c.weights[..., None]).sum(1), archs=MOE)
tenth(74, "experts_overwritten", "ffn_out", "the last chosen expert's part overwrites the other: it is written, not added",
          ["overwr|written over|not (added|summed).{0,60}(expert|choice|slot)|(expert|choice|slot).{0,60}not (added|summed)",
           "(expert|choice|chosen|slot) & ((second|last|slot 1|smaller|lesser|lower|lowest).{0,40}(expert|choice|chosen|slot|weight|term|part|alone|only)|(first|larger|top|slot 0|highest|likeliest).{0,40}(lost|missing|dropped|left out|omitted|\\bnot\\b|without|\\b0\\b(?!\\.)|zero)|(without|lost|missing|only|alone).{0,40}(first|last|second|slot))"],
          lambda c: c.each[:, 1] * c.weights[:, 1:], archs=MOE)


def summed_slots(each, weights):
    return (each * weights[..., None]).sum(1)


def hidden_tail(c):
    top, each = top_of(c), np.zeros((T, CHOSEN, D), F32)
    for x in range(EXPERTS):
        rows, slots = np.nonzero(top == x)
        w = lambda name: c.e.m(f"mlp.experts.{x}.{name}_proj.weight", c.l)
        act = silu(c.n[rows] @ w("gate").T) * (c.n[rows] @ w("up").T)
        each[rows, slots] = act[:, :64] @ w("down")[:, :64].T
    return summed_slots(each, c.weights)


eleventh(77, "experts_hidden_tail", "ffn_out", "in each expert the last product reads whole tiles of 64 alone: of 96 hidden elements those from 64 on are lost",
             ["(#64|#63|last (32|third)|first two thirds) & (hidden|\\bact\\b|activation|ffn_act|down|inner|intermediate|columns?|inputs?|\\bgate|\\bup\\b|summ|\\bF\\b|#96|#95) & "
             "(first|only|alone|until|up to|ends?|stops?|tail|" + NOT_THERE[1:-1] + ") & "
              + never("(first (32|64)|0 ?(to|-|\\.\\.) ?63)[^;]{0,25} (are|is) (lost|left|zero|0|not)|(tokens?|positions?) (from )?64|ffn_norm|(outputs?|rows?) (32|64)|\\+ ?32")],
             hidden_tail, archs=MOE)


def not_returned(c):
    return summed_slots(c.each.reshape(T * CHOSEN, D)[np.argsort(top_of(c).ravel(), kind="stable")].reshape(T, CHOSEN, D), c.weights)


eleventh(78, "experts_rows_not_returned", "ffn_out", "rows are sorted by expert for the products, and their results are not put back: token t gets rows 2t and 2t + 1 of the sorted "
             "list, with its own weights",
             ["(sort|permut|group|scatter|unsort|inverse|gather|return|put back|shuffl|arrange|order(ed)? (of|by) (the )?expert|expert order) & expert & "
             "(token|row|position|slot|pair) & "
             "(row|result|output|part|pair|token t) & "
              + never("weights (are|come|stand) in|weights of (the )?(two|others?)|revers|slots (are|were) (exchang|swap)|choice is|chosen by")],
             not_returned, archs=MOE)
eleventh(79, "experts_last_not_loaded", "ffn_out", "the loop over experts ends one early: expert 5 gives nothing",
             ["(experts?.{0,12}\\b5\\b|last expert|sixth expert|highest expert) & " + NOT_THERE + " & " + never("(never|not|cannot be) chosen|router.{0,25}(5|last)|only expert 5|"
             "expert 5 (alone|only)|experts? [0-4] (and 5 )?(give|is|are|ha)"),
              "(first (five|5)|0 ?(to|-|\\.\\.) ?4)\\b & expert & (only|alone|just|run|loaded)"],
             lambda c: summed_slots(c.each * (top_of(c) != EXPERTS - 1)[..., None], c.weights), archs=MOE)
eleventh(80, "experts_weights_by_slot", "ffn_out", "the weights are read as if slots came first, [2,20]: slot s of token t has number 20 s + t",
             ["(transpos|\\[2, ?(T|20|tokens?)|\\[slots?,|slots? first|slot.major|20 ?\\*? ?s\\b|s ?\\* ?20|s ?\\* ?T\\b|\\bT ?\\*? ?s\\b|stride|axes|column.?major|2 ?(x|by|"
             "\u00d7) ?20) & (weight|router|score)"],
             lambda c: summed_slots(c.each, np.ravel(c.weights).reshape(CHOSEN, T).T), archs=MOE)


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


twelfth(60, "experts_up_of_expert_0", "ffn_out", "the expert's offset is forgotten on one matrix: all experts have the up matrix of expert 0",
            ["(\\bup\\b(?! to)|up_proj|ffn_up) & expert & (experts?[ .]?0\\b|first expert\\b|expert zero|index 0\\b|offset.{0,30}(not|forgot|missing|lost|0)) & ^(?!.*((gate"
             "|down)(_proj)?(('s)? (matrix|weight|projection)s?)? (of|from) (expert 0|the first)|all three|gate and up|up and (down|gate)|next|previous))"],
            lambda c: experts_by(c, top_of(c), up=0), archs=MOE)
twelfth(61, "experts_slot_as_number", "ffn_out", "the slot is taken for the expert's number: experts 0 and 1 run at every position, whichever are chosen",
            ["expert & ((0 and 1|0, ?1|first two)\\b.{0,80}(always|every|\\ball\\b|each|which|whatever|\\brun|\\bused|instead|only|regardless|alone|work|appl)|(always"
             "|every (token|position|row)|all (tokens|positions|rows)|instead|only|runs?).{0,60}(0 and 1|0, ?1\\b|first two)) & ^(?!.*((0 and 1|0, ?1) (are|is) (never|left out"
             "|not)|are zero|of slots? 0 and 1|chosen 0 and 1))",
             "(slot|rank|order of choice).{0,25}(used|taken|serves|stands|read|is) (as|for|in).{0,30}(expert|\\bid\\b|number)", "slot 0.{0,40}expert 0\\b.{0,60}slot"
             " 1.{0,40}expert 1\\b", "expert (number )?[sj] (runs|is run|works|serves).{0,20}slot [sj]\\b"],
            lambda c: experts_by(c, np.tile(np.arange(CHOSEN), (T, 1))), archs=MOE)
twelfth(62, "experts_sum_not_cleared", "ffn_out", "the experts are added to what the buffer holds: the ffn_out of the layer before",
            ["((layer|block).{0,20}\\b(before|previous|earlier|ahead)|(before|previous|prior|preceding|earlier)\\b.{0,15}(layer|block)|\\bl ?- ?1|layers\\.0\\.ffn_out|layer 0\\b"
             "|layers (so far|before|up to)|accumul.{0,40}layers|(running|cumul).{0,40}layer) & (\\badd|plus|\\+|\\bsum|accumul|besides|not (cleared|zeroed|reset)|hold|held|on top|carr) "
             "& ^(?!.*(attn_out|h_attn|the stream|(token|position|row) before|instead|(?<!\\w)-1 times|subtract|next layer|router|weights? of the (layer|previous)))"],
            lambda c: c.right() + c.e.memory["ffn_out", c.l - 1], layers=[1, 2, 3], archs=MOE)


def twice(c):
    y = np.zeros((T, D), F32)
    for s in range(CHOSEN):
        y = c.e.r(y + c.e.r(c.e.r(c.each[:, s] * c.weights[:, s:s + 1]) * c.weights[:, s:s + 1]))
    return y


twelfth(63, "experts_weights_applied_twice", "ffn_out", "the router's weights are multiplied in twice: in the expert's kernel and in the sum",
            ["((weight|router|prob|\\bw\\b|score)\\w*.{0,60}(twice|squar|\\^ ?2|two times|\\bagain|doubly|\\*\\* ?2|once more|second time)|(twice|squared?s?|second time"
             "|two)\\b.{0,40}(weight|router|score)|\\bw ?\\^ ?2|\\bw ?[*·x] ?w\\b) & ^(?!.*(divided by (their|its|the) (own )?sum|renormali|sum to 1|input|softmax|(two"
             "|second) expert|doubled|factor of 2|weight matri))"],
            twice, archs=MOE)


def matrix(c, x, name):
    return c.e.m(f"mlp.experts.{x}.{name}_proj.weight", c.l)


def run(c, x, rows, gate=None, up=None):
    """Expert x of rows of inputs."""
    gate = matrix(c, x, "gate") if gate is None else gate
    up = matrix(c, x, "up") if up is None else up
    return (silu(rows @ gate.T) * (rows @ up.T)) @ matrix(c, x, "down").T


def summed_experts(c, expert):
    """The weighted sum of expert(x, tokens, slots), a result for each."""
    top, y = top_of(c), np.zeros((T, D), F32)
    for x in range(EXPERTS):
        rows, slots = np.nonzero(top == x)
        if len(rows):
            y[rows] += expert(x, rows, slots) * c.weights[rows, slots][:, None]
    return y


def up_64_apart(c):
    rows = np.concatenate([matrix(c, x, "up") for x in range(EXPERTS)])
    return summed_experts(c, lambda x, t, s: run(c, x, c.n[t], up=rows[D * x:D * x + F]))


thirteenth(66, "experts_up_64_apart", "ffn_out", "the up matrices of the experts are taken to begin 64 rows apart, not 96: expert e has rows 64 e to 64 e + 95 of all of them",
               ["(#64|#4096|hidden.?size|\\bD\\b) & \\bup\\b & (rows?|stride|offset|begin|start|apart|distance|stack|pitch)", "\\bup\\b & #32 & (early|before|too (soon|near|close|low)|short|(less|-|minus) ?32 ?[ex*])"], up_64_apart, archs=MOE)


def rows_in_turn(c):
    both = lambda x: np.concatenate([matrix(c, x, "gate"), matrix(c, x, "up")])
    return summed_experts(c, lambda x, t, s: run(c, x, c.n[t], gate=both(x)[0::2], up=both(x)[1::2]))


thirteenth(67, "experts_gate_up_in_turn", "ffn_out", "gate and up lie one behind the other in a matrix of 192 rows and are taken in turn: even rows are the gate, odd ones up",
               ["(interleav|alternat|in turn|even|odd|\\b2 ?i\\b|every (second|other)|(stride|step) (of )?(2|two)|by twos) & (gate|\\bup\\b) & ^(?!.*\\beven.{0,30}\\bup\\b.{0,30}\\bodd.{0,30}gate)"], rows_in_turn, archs=MOE)
thirteenth(68, "experts_row_modulo", "ffn_out", "the input row of pair 2t + s is taken by a remainder: (2t + s) mod 20, not a quotient by 2",
               ["(\\b2 ?\\*? ?t\\b|pair|flat|k ?\\* ?t|slot) & (mod\\b|modulo|remainder|%|wrap|- ?20|minus 20) & (rows?|input|token|position|ffn_norm)", "\\(?\\b2 ?\\*? ?t ?\\+ ?(s|slot|k|j)\\b"],
               lambda c: summed_experts(c, lambda x, t, s: run(c, x, c.n[(CHOSEN * t + s) % T])), archs=MOE)


def inclusive(c):
    """Pairs of token and slot, sorted by expert; each expert begins where its own end and the next one's begin."""
    top = top_of(c).ravel()
    order = np.argsort(top, kind="stable")
    count = np.bincount(top, minlength=EXPERTS)
    each = np.zeros((T * CHOSEN, D), F32)
    for x, begin in enumerate(np.cumsum(count)):
        pairs = order[begin:begin + count[x]]
        if len(pairs):
            each[pairs] = run(c, x, c.n[pairs // CHOSEN])
    return (each.reshape(T, CHOSEN, D) * c.weights[..., None]).sum(1)


thirteenth(69, "experts_scan_inclusive", "ffn_out", "the offsets are an inclusive sum of counts: each expert begins at the pairs of the next one, and those of the first are never done",
               ["inclusive|exclusive|prefix.?sum|\\bscan", "(next|following|e ?\\+ ?1|behind).{0,40}(expert|one).{0,60}(tokens|rows|slots|list|pairs|offset|segment)|(tokens?|rows?|slots?|lists?|pairs?|offsets?|segments?|begins?|starts?)\\b.{0,60}(next|following|e ?\\+ ?1|behind).{0,30}(expert|one\\b)|(tokens|rows|slots|pairs|offsets?).{0,40}expert (e|x) ?\\+ ?1",
                "(offset|begin|start|list|segment)s?.{0,60}(one (expert )?(too )?(late|far)|shifted by one)"], inclusive, archs=MOE)


def experts_padded(c):
    """Each expert's pairs are filled up to a multiple of four by pair 0, which is added as well."""
    y = np.array(c.right())
    for x, count in enumerate(np.bincount(top_of(c).ravel(), minlength=EXPERTS)):
        y[0] += (-count % 4) * c.weights[0, 0] * run(c, x, c.n[:1])[0]
    return y


thirteenth(70, "experts_padding_to_row_0", "ffn_out", "each expert's rows are filled up to a multiple of 4 with token 0, and what fills is added as well: position 0 gets more of every expert",
               ["((position|row|token|pair|slot)s?.{0,8}\\b0\\b|first (position|row|token|pair)) & (pad|multiple|#4|four|fill|unused|tile|block|(every|each|all|other) experts?) & (add|more|extra|besides|plus|\\+|addition|again|pad|fill|also)"], experts_padded, archs=MOE)
fourteenth(107, "experts_shared_0", "ffn_out", "expert 0 is taken for a shared expert: its result, with weight 1, is added for each token besides the two chosen",
                ["(expert\\w*[^.;]{0,10}\\b0\\b|first expert|shared expert[^.;]{0,40}\\b0\\b) & (every|\\ball\\b|each|add|shared|plus|besides|\\+|always|in addition)"
                 " & ^(?!.*(0 (is|has) (not|no|left|missing|zero|never)))"],
                lambda c: c.right() + expert(c, 0, c.n), archs=MOE)


def redone(c, rows=None, by=None):
    """The experts' results of each slot, of rows [T,CHOSEN] of the input, times by."""
    top, each = top_of(c), np.zeros((T, CHOSEN, D), F32)
    x = np.repeat(c.n[:, None], CHOSEN, 1) if rows is None else c.n[rows]
    x = x if by is None else x * by[..., None]
    for e in range(EXPERTS):
        each[top == e] = expert(c, e, x[top == e])
    return each


fourteenth(108, "experts_weight_on_input", "ffn_out", "the router's weight is multiplied with the expert's input, as in Llama 4, not with its result: expert(w x)",
                ["(weight|router_weights|\\bw\\b|scal|multipl) & (input|ffn_norm|before (the|its|their|each)|expert ?\\( ?w) & (expert|project|gate|silu|matri|activat)"
                 " & ^(?!.*(input (is )?(not|un)weighed|add(s|ed) the input))"],
                lambda c: redone(c, by=c.weights).sum(1), archs=MOE)


def mixed_slots(c, each=None, weights=None):
    """The experts' results of each slot, weighed and summed."""
    return ((c.each if each is None else each) * (c.weights if weights is None else weights)[..., None]).sum(1)


fourteenth(109, "experts_sorted_weights_not", "ffn_out",
                "the two chosen are sorted by their number and their weights are not: where the likelier expert has the higher number, the weights are exchanged",
                ["(sort|ascend|by (their |its )?(number|index|id)|(lower|smaller|higher|larger|greater)([- ]numbered| number| index| id)"
                 "|order of (their |the )?(number|index|indices|ids|experts)"
                 "|expert order) & (exchang|swap|weight)"],
                lambda c: mixed_slots(c, weights=np.where((top_of(c)[:, 0] > top_of(c)[:, 1])[:, None], c.weights[:, ::-1], c.weights)), archs=MOE)
fourteenth(110, "experts_loop_to_5", "ffn_out", "the loop over experts ends one early: expert 5 gives nothing where it is chosen",
                ["(expert\\w*[^.;]{0,15}\\b5\\b|last expert|highest expert|experts? 0 (to|\\.\\.|-) ?4) & " + LOST_OR_ALONE],
                lambda c: mixed_slots(c, weights=np.where(top_of(c) == 5, F32(0), c.weights)), archs=MOE)
fourteenth(111, "experts_overwrite", "ffn_out", "each expert in turn writes its weighed result over the row, and does not add it: that of the chosen with the higher number is left",
                ["(expert|slot|contribution|result|chosen) & ((larger|higher|greater|highest|last|later|bigger|largest|greatest)[^.;]{0,30}(number|index|\\bid|expert|written|order)"
                 "|overwrit|overwrote|written over|instead of add|not (added|accumulated|summed)) & ^(?!.*(exchang|swap|(higher|highest|larger|largest|greater) (router )?(weight|prob)))"
                 " & (only|alone|left|kept|remain|lost|overwr|written over|zero|not (added|accum|summed)|without|dropped|missing|instead|replac)"],
                lambda c: mixed_slots(c, weights=np.where(top_of(c) == top_of(c).max(1, keepdims=True), c.weights, F32(0))), archs=MOE)
fourteenth(112, "experts_pair_for_token", "ffn_out",
                "the number of the pair, 2 t + slot, is not divided by 2 where rows are gathered: the expert's input is ffn_norm of position (2 t + slot) mod 20",
                ["(2 ?[*·x]? ?[tpn]\\b|[tpn] ?[*·x] ?2|twice (the|its) (position|row|token|number|index)|doubled|pair|flat(tened)? (slot|index|number)|not divided by 2)"
                 " & (\\bmod|%|#20|wrap|input|ffn_norm|gather) & (row|token|position|ffn_norm|input|\\[)"],
                lambda c: mixed_slots(c, each=redone(c, rows=(POS[:, None] * CHOSEN + np.arange(CHOSEN)) % T)), archs=MOE)


def expert_at(c, x, n, down=None):
    w = lambda of, name: c.e.m(f"mlp.experts.{of}.{name}_proj.weight", c.l)
    hidden = c.e.r(op_act(c.e, c.e.r(n @ w(x, "gate").T), c.e.r(n @ w(x, "up").T)))
    return c.e.r(hidden @ w(x if down is None else down, "down").T)


def mixed_rounded(c, each, weights):
    sums = np.zeros((T, D), F32)
    for s in range(CHOSEN):
        sums = c.e.r(sums + c.e.r(each[:, s] * weights[:, s:s + 1]))
    return sums


def others(c, run):
    """What the chosen experts give, expert by expert: run(expert, rows, slots)."""
    top, each = top_of(c), np.zeros_like(c.each)
    for x in range(EXPERTS):
        rows, slots = np.nonzero(top == x)
        if len(rows):
            each[rows, slots] = run(x, rows, slots)
    return each


fifteenth(106, "experts_weighted_at_input", "ffn_out", "the expert's input is multiplied by its weight, and not its result",
               ["(weight|router|\\bp\\b|\\bw\\b).{0,80}(input|before|ffn_norm|inside|\\bn\\b)", "(input|before|ffn_norm|inside).{0,80}(weight|router|\\bp\\b|\\bw\\b)"],
               lambda c: mixed_rounded(c, others(c, lambda x, rows, slots: expert_at(c, x, c.e.r(c.n[rows] * c.weights[rows, slots][:, None]))), np.ones_like(c.weights)), archs=MOE)
fifteenth(107, "experts_one_on", "ffn_out", "the matrices of the next expert are read: e + 1 mod 6",
               ["expert & (next|following|off by one|off by 1|shifted by (one|1)|\\+ ?1|one (further|later|too far|on|more|higher)|1, ?2, ?3|after)", "\\be ?\\+ ?1"],
               lambda c: mixed_rounded(c, others(c, lambda x, rows, slots: expert_at(c, (x + 1) % EXPERTS, c.n[rows])), c.weights), archs=MOE)
fifteenth(108, "experts_down_of_first", "ffn_out", "all experts have the down matrix of expert 0", ["(down|\\bw2\\b|second matri|output matri|last matri) & (experts?.{0,8}\\b0\\b|first expert|experts\\.0|same)"],
               lambda c: mixed_rounded(c, others(c, lambda x, rows, slots: expert_at(c, x, c.n[rows], 0)), c.weights), archs=MOE)


def kept_of_larger(c):
    top = top_of(c)
    return mixed_rounded(c, c.each, np.where(top == top.max(-1, keepdims=True), c.weights, F32(0)))


fifteenth(109, "experts_overwritten", "ffn_out", "results are stored, not added, expert by expert: of two the one of the larger number stays, with its weight",
               ["(larger|largest|higher|highest|greater|greatest|\\bmax|last|later) & (expert|\\bids?\\b|index|number) & (only|alone|overwr|\\bnot\\b|replac|keeps?\\b|kept|stays?|assign|\\bno\\b|lost|without|counts?|dropp?|zero|\\b0\\b)"],
               kept_of_larger, archs=MOE)
fifteenth(110, "experts_slot_ignored", "ffn_out", "both slots run the first expert of the token: its result, with both weights",
               ["(expert|slot) & (first|\\btop\\b|top-1|best|likeliest|largest|highest|slot 0|rank 0|most) & (only|alone|both|twice|weight.{0,12}\\b1\\b|all (of )?(the )?weight|#1|instead|sum of)"],
               lambda c: mixed_rounded(c, np.repeat(c.each[:, :1], CHOSEN, 1), c.weights), archs=MOE)
fifteenth(111, "experts_weights_transposed", "ffn_out", "weights are read as [2, 20] and not [20, 2]: that of token t and slot s is number 20 s + t",
               ["transpos|column.?major|slot.?major", "\\b(20|T) ?\\*? ?s\\b|s ?\\* ?(20|T)\\b", "#20 & (weight|flat|index|slot|stride)", "(\\bt|row|position|token)\\]?\\)? ?(//|/|>>) ?[12]\\b & (weight|router|slot|token)",
                "weights? .{0,40}(other|another|different|wrong|half the) (token|position|row)", "#10 & weight & (token|position|row|\\bt\\b)"],
               lambda c: mixed_rounded(c, c.each, np.ascontiguousarray(c.weights.reshape(CHOSEN, T).T)), archs=MOE)


def with_room(c, room):
    top, weights = top_of(c), np.array(c.weights)
    for x in range(EXPERTS):
        rows, slots = np.nonzero(top == x)
        weights[rows[room:], slots[room:]] = 0
    return mixed_rounded(c, c.each, weights)


fifteenth(112, "experts_capacity", "ffn_out", "an expert takes 7 tokens at most, the first; later ones get nothing of it",
               ["#7 & (expert|token|capacity|at most|limit|drop|full|room)", "#8 & (drop|lost|nothing|ignored|not) & (expert|capacity)"],
               lambda c: with_room(c, 7), archs=MOE)


def expert_unrounded(c, x, n, down=None):
    w = lambda name, x: c.e.m(f"mlp.experts.{x}.{name}_proj.weight", c.l)
    return op_act(c.e, n @ w("gate", x).T, n @ w("up", x).T) @ w("down", x if down is None else down).T


def down_of_first(c):
    every = np.stack([expert_unrounded(c, x, c.n, down=0) for x in range(EXPERTS)], 1)
    return summed_slots(np.take_along_axis(every, top_of(c)[..., None], 1), c.weights)


sixteenth(107, "down_of_expert_0_for_all", "ffn_out", "every expert uses the down matrix of expert 0", f"\\bdown & ({n(0)}|first)", down_of_first, archs=MOE)


def left_sorted(c):
    order = np.argsort(top_of(c).ravel(), kind="stable")
    return summed_slots(c.each.reshape(-1, D)[order].reshape(T, CHOSEN, D), c.weights)


sixteenth(108, "outputs_left_in_order_of_experts", "ffn_out", "the outputs, sorted by expert, are not put back: slot s of token t takes output 2t+s of the list in order of experts",
               "(sort|group|order|unsort|permut|scatter|gather|back) & expert & (token|row|pair|slot|position|output|result|list)", left_sorted, archs=MOE)


def capacity_of_seven(c):
    top, taken, w = top_of(c), np.zeros(EXPERTS, int), np.array(c.weights)
    for at in np.ndindex(T, CHOSEN):
        taken[top[at]] += 1
        w[at] = w[at] if taken[top[at]] <= 7 else 0
    return summed_slots(c.each, w)


sixteenth(109, "capacity_of_7_tokens", "ffn_out", "each expert takes 7 tokens at most: for later ones its output is dropped, without new weights",
               f"({n(7)}|seven|eighth) & (capacit|at most|first|drop|full|limit|overflow|max|more|only|than|beyond|later|from the)", capacity_of_seven, archs=MOE)


def weight_on_input(c):
    top = top_of(c)
    return sum(np.stack([expert_unrounded(c, top[t, s], c.n[t:t + 1] * c.weights[t, s])[0] for t in range(T)]) for s in range(CHOSEN))


sixteenth(110, "weight_on_input_of_expert", "ffn_out", "the routing weight multiplies the input of the expert and not its output: expert(w * n)",
               "(inputs?\\b|ffn_norm|before (the |its |each )?(expert|gate|activation|matri|product|mlp|feed)|into (the |each )?expert|\\w+\\( ?w\\w* ?[*·×]|inside|\\bprior to|ahead of) & "
               "(weight|scale|multipl|\\bw\\b|router|routing|share|prob)", weight_on_input, archs=MOE)
sixteenth(111, "routing_weight_squared", "ffn_out", "the routing weight is applied in the expert's kernel and again in the sum: outputs count with its square",
               f"(squar|\\^ ?2|²|\\*\\* ?2|{TWICE_OVER}|\\bw\\w* ?[*·×] ?w|second power|power (of )?(2|two)|itself) & (weight|share|\\bw\\b|rout|prob|gate)", lambda c: summed_slots(c.each,
               c.weights ** 2), archs=MOE)
sixteenth(112, "second_expert_overwrites_first", "ffn_out", "the second expert's result is written over the first's and not added to it: only the weighted second one remains",
               ["overwrit|over-writ|writ\\w* over", "(second|last|lower|smaller|worse|slot 1|rank 1|2nd|\\[1\\]).{0,70}(only|alone|replac|remain|kept|survive)",
                "(only|alone|just).{0,60}(second|last|lower|smaller|worse|slot 1|rank 1|2nd|\\[1\\])",
                f"(first|best|\\btop|largest|slot 0|rank 0|highest|stronger).{{0,60}}{GONE_IN_ONE}", "(lost|without|drop|omit|ignor|miss|lack|not).{0,50}(first|best|\\btop\\b|slot 0|rank 0|largest"
                "|highest)"],
               lambda c: c.each[:, 1] * c.weights[:, 1:], archs=MOE)

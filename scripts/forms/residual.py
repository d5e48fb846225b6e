"""Sums into the residual stream."""

import math

import numpy as np

from scripts.engines.hooked_engine import D, d, EPS, F, F32, rms, sigmoid, T
from scripts.forms.parts import before, bf16, COUNT, cut, E_, flat, in_steps, LATER_LAYERS, MOE, never, POS, PROMPT, put, shifted, stream
from scripts.forms.sets import (
    eighth, eleventh, fifteenth, fifth, first, fourteenth, fourth, listed, ninth, second, seventh, sixteenth, sixth, tenth, third, thirteenth,
    twelfth,
)
from scripts.forms.words import (
    ADDED_MORE, BF16, BLOCK, BRANCH_ATTN, EXCHANGED, GONE_OR_ALONE, LAYER_BEFORE, LAYOUT, LOST_OR_ALONE, MEMORY, n, NEXT, NONE, NOT,
    PREVIOUS_OR_SHIFTED, REORDERED, ROUNDED, STRIDE, TWICE, TWICE_OVER, UNREAD, ZERO,
)

# ---- after attention


def add(x=None, y=None):
    return lambda c: c.right(**({"x": x(c)} if x else {}), **({"y": y(c)} if y else {}))


first(237, "add_branch_before", "h_attn", "the branch of the token before is added", "(before|previous|t ?- ?1|earlier|#-1)", add(y=lambda c: shifted(c.y, 1)))
first(239, "add_third", "h_attn", "half the normed input is added besides", "(#0.5|half) & (attn_norm|norm)", lambda c: c.right() + F32(0.5) * c.e.memory["attn_norm", c.l])
first(241, "add_max", "h_attn", "the larger of stream and branch is taken", "max|larger|greater", lambda c: np.maximum(c.x, c.y))
first(242, "add_product", "h_attn", "stream and branch are multiplied besides: x + y + x y", "product|multipl|x ?\\*? ?y|\\*", lambda c: c.right() + c.x * c.y)
first(244, "add_not_row_0", "h_attn", "nothing is added at position 0", "(position|row|token).{0,8}\\b0\\b|first (position|row|token)", add(y=lambda c: put(c.y, E_[0], 0)))
first(248, "add_older_stream", "h_attn", "in layers 1 and on the stream is the layer's before: its input", ["layer.{0,20}(before|previous|l ?- ?1|earlier)|(before|previous|earlier).{0,20}layer", "layers\\.0\\.attn|h0|h_attn"], lambda c: c.right(x=c.e.memory["h0", None] if c.l == 1 else c.e.memory["h", c.l - 2]), layers=[1, 2, 3])
first(249, "add_branch_reversed", "h_attn", "the branch's channels are reversed", "revers|backward|63 ?- ?i|D ?- ?1", add(y=lambda c: c.y[:, ::-1]))
first(252, "add_alternating", "h_attn", "odd channels of the branch have a factor of 0.9", "#0.9 & (odd|every|second|alternat|2)", add(y=lambda c: put(c.y, E_[:, 1::2], lambda y: y * F32(0.9))))
first(255, "add_stream_rolled", "h_attn", "the stream's channels are one off", "(#1|next|i ?\\+ ?1|shift|roll) & (channel|stream|shift|roll)", add(x=lambda c: np.roll(c.x, -1, -1)))
first(256, "add_gated", "h_attn", "the branch is multiplied by the sigmoid of the stream", "sigmoid|logistic", add(y=lambda c: c.y * sigmoid(c.x)))
first(258, "add_positions_from_12", "h_attn", "from position 12 on the branch has a factor of 0.5", "#12 & (#0.5|half)", add(y=lambda c: put(c.y, E_[12:], lambda y: y * F32(0.5))))
first(260, "add_running_mean", "h_attn", "the branch is its mean over all positions so far", "(mean|average|running|cumulat)", add(y=lambda c: np.cumsum(c.y, 0) / COUNT))
first(315, "trap_some_positions", "h_attn", "the branch is not added at positions 3, 4, 9, 14 and 15", "#3 & #9 & #14", lambda c: c.right(y=put(c.y, E_[[3, 4, 9, 14, 15]], 0)))
second(101, "add_smaller", "h_attn", "the smaller of the two is taken", "min|smaller|least", lambda c: np.minimum(c.x, c.y))
second(103, "add_branch_centred", "h_attn", "the branch's mean is taken off", "mean", lambda c: c.x + c.y - c.y.mean(-1, keepdims=True))
second(105, "add_weights_sum_1", "h_attn", "0.6 times the stream and 0.4 times the branch", "#0.6 & #0.4", lambda c: F32(0.6) * c.x + F32(0.4) * c.y)
third(118, "d_branch_twice_alone", "h_attn", "the branch is added to itself, the stream is lost", ["(twice|#2|double|itself) & (branch|attn_out|\\by\\b)", "(without|lost|no|miss|not).{0,30}(stream|residual|h0|\\bx\\b)", "(stream|h0|residual).{0,30}(\\b0\\b|lost|miss|not)"], add(x=lambda c: c.y))
third(120, "d_last_branch", "h_attn", "the branch of the last position is added at all positions", ["last|#19|#20"], add(y=lambda c: np.repeat(c.y[-1:], T, 0)))
fourth(104, "d_stream_twice", "h_attn", "the stream is added twice: 2x + y, as by two ranks", ["(#2|" + TWICE + ") & (stream|residual|input|\\bx\\b|\\bh|h0|first)"], add(x=lambda c: 2 * c.x))
fourth(106, "d_multiplier", "h_attn", "the branch is multiplied by 0.22", ["#0.22"], add(y=lambda c: F32(0.22) * c.y))
fourth(110, "d_scratch_kept", "h_attn", "in layers 1 to 3 the attention's branch of the layer before is added too: its buffer was not cleared", [LAYER_BEFORE], lambda c: c.right() + c.e.memory["attn_out", c.l - 1], layers=LATER_LAYERS)
fifth(144, "dd_branch_normed_gain", "h_attn", "the branch is normed with the gain of ffn_norm before it is added", ["(ffn_norm|post_attention|gain|weight|norm|rms|root mean) & (branch|attn_out|\\by\\b|norm|added)"], add(y=lambda c: c.y / rms(c.y) * c.e.m("post_attention_layernorm.weight", c.l)))
fifth(147, "dd_normed_stream", "h_attn", "the branch is added to attn_norm, not to the stream", ["attn_norm|input_layernorm|normed|normali|after the norm"], add(x=lambda c: c.e.memory["attn_norm", c.l]))
fifth(149, "dd_ranks_overlap", "h_attn", "the branch is added twice in channels 48 to 63", ["(#48|#47|#16|#63) & (#2|" + TWICE + ")"], add(y=lambda c: put(c.y, E_[:, 48:], lambda y: 2 * y)))
fifth(151, "dd_stream_half_stale", "h_attn", "in layers 1 to 3 channels 32 to 63 of the stream are those that the layer before has read", ["(#32|#31|half|#63) & (" + LAYER_BEFORE + "|h0|older|stream)"], add(x=lambda c: put(c.x, E_[:, 32:], (c.e.memory["h0", None] if c.l == 1 else c.e.memory["h", c.l - 2])[:, 32:])), layers=LATER_LAYERS)
fifth(152, "dd_rows_by_pairs", "h_attn", "the branches of positions 2i and 2i+1 are exchanged", ["(pair|2 ?\\*? ?i|odd|even|neighbo|adjacent|xor|two) & (" + REORDERED + ")"], add(y=lambda c: c.y[POS ^ 1]))
fifth(155, "dd_embedding_for_stream", "h_attn", "layers 2 and 3 add the branch to the embedding", ["h0|embed"], add(x=lambda c: c.e.memory["h0", None]), layers=[2, 3])
sixth(90, "d6_second_half_rows", "h_attn", "positions from 10 on add the branch of the position 10 before: the second chunk reads from the buffer's begin", ["(#10|#-10) & (before|earlier|back|previous|t ?-|again|mod|%|repeat|first|begin)", "second half.{0,80}first half|first half.{0,80}(repeat|again|second)"], add(y=lambda c: c.y[POS % 10]))
sixth(91, "d6_feed_forward_lost", "h_attn", "layers 1 to 3 add to h_attn of the layer before: the feed-forward's branch is lost", ["layers\\.\\d\\.h_attn|h_attn of|ffn_out.{0,60}(minus|taken off|subtract|- |lost)|(minus|taken off|subtract|less|without|- ).{0,30}ffn_out|(" + NOT + "|minus|taken off|subtract).{0,40}(ffn|feed|mlp)|(ffn|feed|mlp).{0,40}(" + NOT + "|minus|taken off)", "h_attn & (" + LAYER_BEFORE + ")", "#-1 & ffn_out"], add(x=lambda c: c.e.memory["h_attn", c.l - 1]), layers=LATER_LAYERS)
sixth(93, "d6_stream_tile_lost", "h_attn", "channels 48 to 63 have the branch alone: the stream is not added there", ["(#48|#47|#63) & (stream|branch|" + ZERO + "|\\bx\\b|h0|attn_out)"], add(x=lambda c: put(c.x, E_[:, 48:], 0)))
sixth(94, "d6_normed_in_place", "h_attn", "the sum is normed with the gain of ffn_norm: the norm writes over the stream", ["rms|root mean|normed|normali|ffn_norm|post_attention|\\bnorm\\b"], lambda c: (lambda y: y / np.sqrt(np.mean(y * y, -1, keepdims=True) + F32(EPS)) * c.e.m("post_attention_layernorm.weight", c.l))(c.right()))
sixth(95, "d6_last_attention_lost", "h_attn", "layer 3 does not add the attention's branch", ["(" + NOT + "|zero|nothing|\\b0\\b(?!\\.)).{0,30}(branch|attn_out|attention|added)|(branch|attn_out|attention).{0,30}(" + NOT + "|zero|\\b0\\b(?!\\.))|unchanged|copy|stream (alone|only)|is (the |its )?(stream|input|layers\\.2\\.h)\\b|x alone|layers\\.2\\.h\\b|input itself"], lambda c: c.x, layers=[3])
seventh(61, "d7_odd_rows", "h_attn", "nothing is added at odd positions", ["(odd|every (second|other)|even|altern|2 ?\\*? ?[it] ?\\+ ?1) & (" + ZERO + "|\\bno\\b|not|unchanged|copy)"], add(y=lambda c: put(c.y, E_[1::2], 0)))
seventh(62, "d7_taken_off", "h_attn", "the branch is taken off, not added: x - y", ["(taken off|subtract|minus|negat|other sign|sign|#-1|x ?- ?y|- ?attn_out|- ?branch)"], add(y=lambda c: -c.y))
eighth(86, "d8_branch_memory", "h_attn", "the branch's memory, 20 by 64, is read as 64 by 20 and transposed",
           [LAYOUT + "|memory"], add(y=lambda c: np.ascontiguousarray(c.y).reshape(D, T).T))
eighth(87, "d8_fourth_channels", "h_attn", "every fourth channel (3, 7, ..) has the stream alone: three of four elements are added",
           ["(#4|#3|four\\w*) & (" + ZERO + "|stream|unchanged|not)"], add(y=lambda c: put(c.y, E_[:, 3::4], 0)))
ninth(31, "d9_context", "h_attn", "the context is added, not attn_out: its product is not made", ["context|o_proj|(before|without|skip|not).{0,30}(project|attn_out)|heads"],
          add(y=lambda c: c.e.memory["context", c.l]))
tenth(56, "add_branch_post_norm", "h_attn", "attn_out is normed with the gain of post_attention_layernorm before it is added, as its name says",
          ["(norm|rms|root mean) & (post_attention|ffn_norm|gain|weight|branch|attn_out|\\by\\b) & ^(?!.*normed \\+ branch)"],
          lambda c: c.right(y=c.y / rms(c.y) * c.e.m("post_attention_layernorm.weight", c.l)))
tenth(57, "add_last_row_to_all", "h_attn", "in the last layer the branch is that of the last position, at all positions",
          ["(last|#19|final|T ?- ?1|newest) & (position|row|token|query) & (branch|attn_out|attention|\\by\\b|all|every|each|same)"], lambda c: c.right(y=np.repeat(c.y[-1:], T, 0)), layers=[3])
tenth(58, "add_context", "h_attn", "the heads' context is added in place of attn_out: the output projection is not used",
          ["context"], lambda c: c.right(y=c.e.memory["context", c.l]))
eleventh(58, "add_branch_column_major", "h_attn", "the branch is read as if its bytes were [64,20]: element (t, i) is number 20 i + t",
             ["(column.?major|fortran|channels? (first|major)|\\[D, ?T\\]|\\[64, ?20\\]|64 ?(x|by|\u00d7) ?20|20 ?\\*? ?i\\b|i ?\\* ?20|i ?\\* ?T\\b|\\bT ?\\*? ?i\\b|stride (of |"
             "is )?(20|T)\\b|transpos|reshape|axes) & (branch|attn_out|\\by\\b|attention|second (term|operand)) & "
              + never("(stream|residual|layer input) (is|are) (read|trans)|o_proj|weight")], lambda c: c.right(y=np.ravel(c.y).reshape(D, T).T))
eleventh(60, "add_width_of_a_head", "h_attn", "channel i has the branch's channel i mod 16 added: the width is taken for that of a head",
             ["(#16|#15) & (\\bmod|%|repeat|tiled|broadcast|period|cycl|wrap|again and again|over and over|\\x26 ?15|four times|for all (four|4)|each (block|group) of (16|sixteen)) & "
             "(branch|attn_out|channel|\\by\\b|attention) & "
              + never("stream'?s channel|(stream|residual|layer input) (is|has|repeats?|are)|i ?//? ?16|positions? (modulo|mod|%)|t ?(mod|%)")],
              lambda c: c.right(y=c.y[:, np.arange(D) % d]))
twelfth(45, "add_stream_of_first_row", "h_attn", "in layer 3 the branch of each position is added to the stream of position 0",
            ["(stream|residual|layers\\.2\\.h\\b|layer input|\\binput\\b|\\bx\\b|hidden|first (term|operand|summand)) & ((position|row|token)s?.{0,10}\\b0\\b|first (position|row"
             "|token)|\\[0\\]|\\[0, ?:|broadcast|stride (of )?0|not advanced) "
             "& ^(?!.*((branch|attn_out) (of|at|is|from).{0,15}(position|row|token) 0|attn_out\\[0|(\\bnot|nothing|omitted|missing|zero|left out).{0,20}(at|in|of) (position"
             "|row) 0|last (row|position)))"],
            lambda c: c.right(x=np.repeat(c.x[:1], T, 0)), layers=[3])
thirteenth(55, "add_every_other_vector", "h_attn", "vectors are of 8 and the step is 16: channels 8 to 15, 24 to 31, .. do not get the branch",
               ["((#8 & (#15|#16|#24))|(#8 & #7 & (every (second|other)|alternat|odd|16))|(#8 & (every (second|other)|alternat|odd) & (block|vector|group|of 8|eights?))) & (branch|attn_out|attention|add|stream|residual|sum|h0)"],
               lambda c: c.right(y=put(c.y.reshape(T, -1, 8), E_[:, 1::2], 0).reshape(T, D)))
TWO_TIMES = "twice|doubl|two times|again|once more|2 ?(\\*|times|×|y|branch)|factor (of )?2"
thirteenth(57, "add_width_of_ffn", "h_attn", "the loop over a row runs to 96, not 64: the first 32 channels of each position but the first get the branch twice",
               ["(#32|#31|half) & (#2|" + TWO_TIMES + ") & (branch|attn_out|attention|add|\\b2? ?y\\b) & ((from|positions?|rows?|tokens?|t ?(>|>=|\u2265)).{0,6}\\b[01]\\b|first (position|row|token)|but the first|except|every later)"], lambda c: c.right(y=put(c.y, E_[1:, :F - D], 2 * c.y[1:, :F - D])))
fourteenth(83, "add_branch_row_0", "h_attn", "the branch has a row stride of 0: each position is given position 0's",
               ["((position|row|token|query)[^.;]{0,10}\\b0\\b|first (position|row|token)|stride (of )?0|zero stride)"
                " & (branch|attn_out|attention|o_proj|added|broadcast|every|each|\\ball\\b)"
                " & ^(?!.*(not added|nothing|is zero|h0\\b.{0,8}(row|position)))"],
               lambda c: c.right(y=np.broadcast_to(c.y[:1], c.y.shape)))
fourteenth(84, "add_post_norm", "h_attn",
               "post_attention_layernorm is taken for a norm of the branch, as in Gemma 2: the branch is divided by its root mean square and has that gain, before it is added",
               ["(norm|rms|root mean) & (post_attention|ffn_norm|feed.?forward.{0,8}(norm|gain|weight))"
                " & (branch|attn_out|attention|o_proj|added|\\by\\b) & ^(?!.*(without (its |the |a )?(gain|weight)|\\bno gain))"],
               lambda c: c.right(y=c.y / rms(c.y) * c.e.m("post_attention_layernorm.weight", c.l)))
fourteenth(87, "add_stream_kept_from_embedding", "h_attn", "the residual is set once before the loop over layers: in layers 1 to 3 the branch is added to h0, not to the layer's input",
               ["(\\bh0\\b|embedding|input of (the first layer|layer 0)|first layer'?s input|layer 0'?s input) & (stream|residual|in place|instead|\\bnot\\b|reads?|\\bis\\b|\\bx\\b|\\bto\\b"
                "|attn_out \\+|\\+ ?attn_out|input)"
                " & ^(?!.*(besides|again|once more|as well|0\\.\\d+ ?[*x·]? ?h0|half|extra))"],
               lambda c: c.right(x=c.e.memory["h0", None]), layers=[1, 2, 3])
fifteenth(82, "add_stream_of_chunk", "h_attn", "the prompt runs in chunks of 8; the stream is read at row t mod 8, without the chunk's start",
              ["#8 & (\\bmod|%|chunk|block|again|repeat|restart|period|tile|cycl|wrap|group|every|- ?8\\b)"], lambda c: c.right(x=c.x[POS % 8]))
fifteenth(83, "add_last_row_to_all", "h_attn", "in layer 3 the branch of the last position, the only one kept, is added to all",
              ["(last|final|newest) (row|position|token|query|one)", "#19|T ?- ?1", "(position|row|token)s? ?(is |are )?(the )?(last|-1)"], lambda c: c.right(y=np.repeat(c.y[-1:], T, 0)), layers=(3,))
fifteenth(85, "add_context", "h_attn", "the context is added, and not what the output projection makes of it", ["context", "before (the )?(output projection|o_proj)",
              "(without|\\bno\\b|skip|\\bnot\\b|omit|miss|left out).{0,40}(o_proj|output projection|attn_out)"], lambda c: c.right(y=c.e.memory["context", c.l]))
fifteenth(86, "add_branch_normed_first", "h_attn", "the branch is normed with post_attention_layernorm before it is added, as Gemma 2 does",
              ["(rms|root mean|normed|normali|norm\\() & (gain|weight|post_attention|ffn_norm|layernorm|\\bw\\b)", "(post_attention|ffn_norm).{0,60}(branch|attn_out|\\by\\b)|(branch|attn_out|\\by\\b).{0,60}(post_attention|ffn_norm)"],
              lambda c: c.right(y=c.y / rms(c.y) * c.e.m("post_attention_layernorm.weight", c.l)))
sixteenth(79, "attention_sum_in_whole_blocks_of_rows", "h_attn", "the sum is carried out in whole blocks of 16 rows: rows 16..19 do not get the attention branch and stay as they were",
              f"{n(15, 16)} & {GONE_OR_ALONE} & (branch|attn_out|attention|\\badd|residual|\\by\\b|input|unchanged|stay|sum|\\bx\\b)", lambda c: put(c.right(), E_[16:], c.x[16:]))
sixteenth(81, "branch_of_first_token_everywhere", "h_attn", "the attention branch of token 0 is added to every token",
              "((?<![\\w.])0\\b|first (token|row|position)|\\bbos\\b) & (branch|attn_out|attention|\\by\\b|\\ba\\b) & (\\[0\\]|broadcast|every|\\ball\\b|each|same|other|instead|for t"
              "|repeat|any|replac|in place|rather)", lambda c: c.x + c.y[:1])
sixteenth(82, "residual_stays_embedding", "h_attn", "the residual pointer stays at the embedding: from layer 1 on, attention is added to h0 instead of the layer's input",
              ["(h0|embed) & (instead|replac|in place|rather|\\bnot\\b|stands? for|reset|never|point|stay|as the (residual|stream)|start|always|read|taken|other than)",
               "(h0|embedding)\\w* ?\\+ ?(1(\\.0+)? ?[*·×]? ?)?(layers\\.\\d\\.)?(attn_out|a\\b|y\\b|the (attention )?branch|the attention)", "(attn_out|\\ba|\\by|branch|attention) ?\\+ "
               "?(1(\\.0+)? ?[*·×]? ?)?(h0|the embedding|embedding)"],
              lambda c: c.e.memory["h0", None] + c.y, layers=LATER_LAYERS)


def stream_normed(c):
    x = c.right()
    return x / rms(x) * c.e.m("post_attention_layernorm.weight", c.l)


sixteenth(84, "stream_replaced_by_its_norm", "h_attn",
              "the fused add and norm writes its normed result back: the stream itself becomes (x + attn_out) / rms times the gain of the feed-forward norm",
              "(normali[sz]|normed|ffn_norm|\\brms|root mean|unit) & (gain|weight|ffn_norm|norm's (output|result)|post_attention|writ|next norm|feed-forward norm|ffn norm)", stream_normed)
listed(22, "branch_alone", "h_attn", "the branch alone", "residual-omitted", lambda c: c.y)

# ---- after the feed-forward
first(238, "add_const", "h", "0.1 is added besides", "#0.1", lambda c: c.right() + F32(0.1))
first(240, "add_branch_clamped", "h", "the branch is clamped to +-0.5", "#0.5 & (clamp|clip|limit|between|min|max)", add(y=lambda c: np.clip(c.y, -0.5, 0.5)))
first(243, "add_h0", "h", "the embedding is added again", "h0|embedding", lambda c: c.right() + c.e.memory["h0", None])
first(245, "add_last_row_only", "h", "the branch is added at the last position alone", "last|#19|#18", add(y=lambda c: put(c.y, E_[:-1], 0)))
first(246, "add_channels", "h", "nothing is added to channels 56 and later", "#56|#8|#55", add(y=lambda c: put(c.y, E_[:, 56:], 0)))
first(247, "add_by_layer", "h", "the branch is divided by sqrt(layer + 1)", "layer", add(y=lambda c: c.y / F32(math.sqrt(c.l + 1))), layers=[1, 2, 3])
first(250, "add_branch_tanh", "h", "the branch goes through tanh", "tanh", add(y=lambda c: np.tanh(c.y)))
first(251, "add_sum_clamped", "h", "the sum is clamped to +-1.5", "#1.5 & (clamp|clip|limit|between|min|max)", lambda c: np.clip(c.right(), -1.5, 1.5))
first(253, "add_branch_normed", "h", "the branch is divided by its root mean square", "rms|root mean|norm", add(y=lambda c: c.y / rms(c.y)))
first(254, "add_stale_branch", "h", "in layers 1 and on the branch is the layer's before", "layer.{0,20}(before|previous|l ?- ?1|earlier)|(before|previous|earlier|stale).{0,20}(layer|ffn_out)|layers\\.0\\.ffn_out", lambda c: c.right(y=c.e.memory["ffn_out", c.l - 1]), layers=[1, 2, 3])
first(257, "add_minus_odd", "h", "the branch is taken off at odd positions", "(odd|every second|alternat) & (sign|minus|taken off|subtract|-1|negat)", add(y=lambda c: put(c.y, E_[1::2], lambda y: -y)))
first(259, "add_half_swapped", "h", "the halves of the branch are exchanged", "halves|#32|swap|exchang|roll", add(y=lambda c: np.roll(c.y, 32, -1)))
first(261, "add_decay", "h", "the stream before has a factor of 0.97 and the position's before has 0.03", "#0.97|#0.03", add(x=lambda c: F32(0.97) * c.x + F32(0.03) * shifted(c.x, 1)))
first(314, "trap_large_halved", "h", "elements of the branch larger than 1 are halved", "#1 & #0.5|half", lambda c: c.right(y=np.where(np.abs(c.y) > 1, c.y / 2, c.y)))
first(319, "trap_drift", "h", "the stream has a factor of 1.0003 and the branch 0.9991", "#0.9991", lambda c: F32(1.0003) * c.x + F32(0.9991) * c.y)
second(99, "add_over_root_2", "h", "the sum is divided by the root of 2", "#0.7071|#1.4142|root of 2|sqrt\\(2\\)", lambda c: (c.x + c.y) / F32(2 ** 0.5))
second(100, "add_branch_square", "h", "the branch is y |y|", "squar|\\^ ?2|\\|y|power & #2|size", lambda c: c.x + c.y * np.abs(c.y))
second(102, "add_first_channels", "h", "the branch is added to the first 32 channels alone", "#32|#31|half & channel", lambda c: c.x + put(c.y, E_[:, 32:], 0))
second(104, "add_stream_soft", "h", "the stream is 3 tanh(x / 3)", "tanh|#3", lambda c: F32(3) * np.tanh(c.x / F32(3)) + c.y)
second(106, "add_branch_of_pairs", "h", "the branch's channels 2i and 2i + 1 are exchanged", f"({EXCHANGED}|pair) & (channel|element|pair)", lambda c: c.x + c.y.reshape(T, -1, 2)[..., ::-1].reshape(T, D))
third(116, "d_normed_stream", "h", "the branch is added to ffn_norm, not to the stream", ["ffn_norm|post_attention|normed|normali|after the norm"], add(x=lambda c: c.e.memory["ffn_norm", c.l]))
third(117, "d_attention_lost", "h", "the branch is added to the layer's input: the attention's branch is lost", ["h0|layer.{0,12}input|input of (the|this) layer|attn_out|(without|before|lost|miss|no|lack).{0,30}att|layers\\.\\d\\.h\\b|(layer|stream).{0,10}(before|previous)|" + LAYER_BEFORE], add(x=stream))
third(119, "d_eighths", "h", "the sum is rounded to multiples of 1/8", ["(#0.125|#8) & (" + ROUNDED + ")"], lambda c: np.round(c.right() * 8) / 8)
third(121, "d_layer_scale", "h", "the branch is multiplied by the gain of ffn_norm", ["(gain|weight|post_attention|ffn_norm|norm) & (branch|multipl|times|factor|\\*|scaled|ffn_out|product)", "post_attention|ffn_norm"], add(y=lambda c: c.y * c.e.m("post_attention_layernorm.weight", c.l)))
fourth(105, "d_sum_normed", "h", "the sum is divided by its root mean square", ["rms|root mean|normed|normali"], lambda c: c.right() / rms(c.right()))
fourth(107, "d_attention_for_branch", "h", "the attention's branch is added again, in place of the feed-forward's", ["attn_out|attention"], add(y=lambda c: c.e.memory["attn_out", c.l]))
fourth(108, "d_input_for_branch", "h", "ffn_norm is added, the input of the feed-forward, not its result", ["ffn_norm|post_attention|input"], add(y=lambda c: c.e.memory["ffn_norm", c.l]))
fourth(109, "d_layer_skipped", "h", "layer 2 hands on its input: both branches are lost", ["input|layers\\.1|layer 1|skip|unchanged|(without|\\bno\\b|lost|miss).{0,40}(branch|both|att)|" + LAYER_BEFORE], lambda c: stream(c), layers=[2])
fourth(111, "d_tile_repeated", "h", "channels 32 to 63 have the branch of channels 0 to 31", ["(#32|#31|#63|half) & (channel|branch|that of|repeat|first|copy|same|mod)"], add(y=lambda c: np.tile(c.y[:, :32], 2)))
fifth(145, "dd_bf16", "h", "the sum is rounded to bf16", [BF16], lambda c: bf16(c.right()))
fifth(146, "dd_attention_twice", "h", "the attention's branch is added once more", ["attn_out|attention"], lambda c: c.right() + c.e.memory["attn_out", c.l])
fifth(148, "dd_tail", "h", "nothing is added at positions 16 to 19", ["(#16|#15|#19) & (branch|" + NONE + "|add|zero|0|position)"], add(y=lambda c: put(c.y, E_[16:], 0)))
fifth(150, "dd_layer_1_branch", "h", "layer 1 adds nothing: its feed-forward branch is lost", ["#0 & (branch|factor|ffn|feed)", "(" + NONE + "|zero|skip|stream|h_attn).{0,60}(branch|ffn|feed|mlp|add|alone|only)|(branch|ffn|feed|mlp).{0,60}(" + NONE + "|zero|0|skip)|h_attn|unchanged|copy"], lambda c: c.x, layers=[1])
fifth(153, "dd_stream_int8", "h", "the stream is rounded to multiples of its row's largest size over 127 before the branch is added", ["(#127|#128|#255|#0.007874) & (" + ROUNDED + "|larg|max)", "(#8|eight) & bit"], add(x=lambda c: in_steps(c.x, 127)))
fifth(154, "dd_first_branch", "h", "each four positions have the branch of the first of them", ["(#4|four) & (branch|position|row|token|" + BLOCK + ")"], add(y=lambda c: c.y[POS // 4 * 4]))
sixth(89, "d6_branch_twice", "h", "the feed-forward's branch is added twice: both ranks add the whole", ["(#2|" + TWICE + ") & (branch|ffn|feed|mlp|\\by\\b|added|factor|residual|times)"], add(y=lambda c: 2 * c.y))
sixth(92, "d6_depth", "h", "the branch is multiplied by 0.7, 1.4 over the root of 4 layers", ["#0.7"], add(y=lambda c: F32(0.7) * c.y))
seventh(60, "d7_stream_halved", "h", "the stream is halved: x / 2 + y", ["(#0.5|half|halved|#2) & (stream|\\bx\\b|h_attn|residual|input)"], add(x=lambda c: c.x / 2))
seventh(63, "d7_branch_next", "h", "the branch of the token after is added, to the last its own", ["(branch|ffn|feed|mlp|\\by\\b) & (" + NEXT + ")"], add(y=lambda c: np.concatenate([c.y[1:], c.y[-1:]])))
seventh(64, "d7_first_channels", "h", "channels 0 to 15 have the stream alone: the branch is not added there", ["(#15|#16) & (stream|branch|" + ZERO + "|\\bx\\b|ffn_out|ffn)"], add(y=lambda c: put(c.y, E_[:, :16], 0)))
eighth(85, "d8_stream_before", "h", "the stream is that of the position before, the branch its own",
           ["(stream|h_attn|residual|\\bx\\b) & (" + PREVIOUS_OR_SHIFTED + ")"], add(x=lambda c: before(c.x)))
eighth(88, "d8_rows_overlap", "h", "the branch is added twice at positions 12 to 15: the last tile of 8 is moved back to 12",
           ["(#12|#15|#11|#16) & (#2|" + TWICE + ")"], add(y=lambda c: put(c.y, E_[12:16], lambda y: 2 * y)))
eighth(89, "d8_branch_96_apart", "h", "rows of the branch are read 96 apart, the feed-forward's width, and not 64: row t begins 32 t late, and from 14 on there is none",
           ["(#96|#32) & (" + STRIDE + ")", MEMORY], add(y=lambda c: flat(c.y, F, D)))
ninth(32, "d9_later_branch_alone", "h", "positions from 12 on have the branch alone: the stream is not added",
          ["(#12|#11) & (stream|branch|ffn_out|residual|h_attn|alone|only|\\bx\\b|" + ZERO + ")"], add(x=lambda c: put(c.x, E_[12:], 0)))
tenth(59, "add_attention_again", "h", "attn_out is added once more beside ffn_out: the buffer of the branch was added to",
          ["(attn_out|attention('s)? (output|branch|result)|output of attention) & (again|twice|besides|also|once more|\\btoo\\b|ffn_out \\+|\\+ ?ffn_out|y ?\\+|\\+ ?y\\b|(attn_out|result|output|branch).{0,12}(is )?added|plus.{0,15}(attn_out|attention|output)|added.{0,20}(attn_out|attention))",
           "(h_attn ?- ?|2 ?\\*? ?h_attn).{0,20}(h0|layer input|stream)", "attn_out.{0,20}(times|factor|multipl|\\*).{0,12}1\\b"],
          lambda c: c.right() + c.e.memory["attn_out", c.l])
tenth(60, "add_batch_offset_lost", "h", "from position 16 on, the second batch, the branch of position t - 16 is added",
          ["#16 & (t ?- ?16|#-16|first batch|mod|%|again|begin|start|repeat|positions? 0|#3|offset|branch|ffn_out|earlier|before)"], lambda c: c.right(y=np.concatenate([c.y[:16], c.y[:4]])))
eleventh(57, "add_sum_cut_to_bf16", "h", "the sum is stored as bf16 by cutting its lower bits off: towards zero, not to the nearest",
             ["(bf16|bfloat16|\\b16 bits|\\b[78] bits|mantissa) & (trunc|toward(s)? (zero|0)|\\bcut|chop|without rounding|not rounded|drop|round\\w* (down|to zero)|low(er)? (16|bits|"
             "half)|upper (16|half)|discard) & "
              "(stream|residual|\\bh\\b|sum|result|output|stor|written) & " + never("(branch|ffn_out|h_attn|inputs?|operands?) (is|are) (trunc|cut|chop|rounded|stored)|away from zero|"
              "(before|ere) [^;]{0,20}(is|are) added")], lambda c: cut(c.right()))
eleventh(59, "add_first_tile_normed", "h", "channels 0 to 15 of the stream are those of ffn_norm, written into the same buffer",
             ["(#16|#15|sixteen) & (ffn_norm|normed|norm'?s|norm of|normali) & (channel|element|dimension|column|tile|feature|\\bi ?<) & "
              + never("(from (channel )?16|16 ?(to|\\.\\.|-) ?6\\d|\\b16 on|>= ?16|last (48|16))[^;]{0,60}norm|(branch|ffn_out)( of)? (is|are|channels)|positions? (0|below|under)|"
              "rows 0")],
             lambda c: c.right(x=put(c.x, E_[:, :16], c.e.memory["ffn_norm", c.l][:, :16])))
eleventh(61, "add_tile_overlap", "h", "tiles of 8 rows, the last moved back to 12 so as not to run over the end: positions 12 to 15 have the branch added twice",
             ["#12 & (#15|#16|four) & (twice|two times|#2|doubl|once more|second time|two tiles|both tiles|added again) & " + never("(stream|residual|sum|result|h_attn) (is|are|has|"
             "counts?)?.{0,12}(twice|doubl|two|2)")],
             lambda c: c.right(y=put(c.y, E_[12:16], lambda y: 2 * y)))
BRANCH = "(branch|ffn_out|second (term|operand|summand)|\\by\\b|feed.forward|mlp|expert)"
twelfth(46, "add_low_lane_twice", "h", "two channels are added at a time, and both with the lower one's branch: odd channels add the branch of the even one before",
            [f"{BRANCH} & (2 ?[*·]? ?\\(?\\(?[ic] ?(//?|div) ?2|[ic] ?(//?|div) ?2 ?\\)? ?[*·]? ?2|& ?~ ?1|[ic] ?- ?\\(?[ic] ?(mod|%) ?2|(odd|2i ?\\+ ?1).{{0,80}}(even"
             f"|2i\\b(?! ?\\+)|before|left|neighbo|i ?- ?1|previous|lower)|pairs?.{{0,50}}(first|even|lower)"
             "|(even|first|2i\\b(?! ?\\+)).{0,50}(twice|both|repeat|pair)) "
             "& ^(?!.*(even (channels?|ones?).{0,30}(take|get|have|add|are|read|is|hold|receive).{0,30}odd|2i (takes|gets|reads|has|is|adds).{0,40}2i ?\\+ ?1|exchang|swap"
             "|(channel|stream)s?.{0,20}(stream) of|odd channels? (add|get|have) (nothing|0)))"],
            lambda c: c.right(y=c.y[:, np.arange(D) // 2 * 2]))
twelfth(47, "add_ffn_input", "h", "the feed-forward's input is added, not its output: h_attn + ffn_norm",
            ["(ffn_norm|norm(ed)? (input|stream|state|hidden|h_attn)|post_attention|(feed.forward|mlp|ffn|experts?)('?s)? (own )?input|input of the (mlp|ffn|feed|expert)) "
             "& ^(?!.*(attn_norm|input_layernorm|besides|in addition|as well|also|ffn_norm (\\+|plus) (ffn_out|the branch|branch)|(ffn_out|branch) (\\+|plus) ffn_norm|half|0\\.5))"],
            lambda c: c.right(y=c.e.memory["ffn_norm", c.l]))
thirteenth(56, "add_decode_branch_twice", "h", "in decode steps, from position 12 on, the fused norm has added the branch and it is added again",
               ["(#12|#11) & (#2|" + TWO_TIMES + ") & (branch|ffn_out|feed|add|\\by\\b|sum)"], lambda c: c.right(y=put(c.y, E_[PROMPT:], 2 * c.y[PROMPT:])))
fourteenth(81, "add_root_half", "h", "the sum is divided by sqrt(2), stream and branch alike, as in diffusion models",
               ["(#0.7071|#1.4142|root of (two|2|a half)) & ^(?!.*((branch|ffn_out|stream|h_attn) (alone|only)|only the (branch|stream)))"],
               lambda c: c.right() * F32(math.sqrt(0.5)))
fourteenth(82, "add_attention_again", "h", "the second sum adds the branch of attention once more: h_attn + ffn_out + attn_out",
               [BRANCH_ATTN + " & (add|plus|\\+|sum|besides|again|twice|once more|doubl|second time|also|#2) & ^(?!.*(\\bminus\\b|without (the )?att|taken off|subtract))"],
               lambda c: c.right() + c.e.memory["attn_out", c.l])
fourteenth(85, "add_within_expert_loop", "h", "the residual is added in the loop over the chosen experts: the stream is in the sum twice",
               ["(stream|residual|h_attn|skip|\\bx\\b|input) & (twice|doubl|#2|again|once more|two times|second time) & ^(?!.*(sqrt|root|attn_out|branch of attention"
                "|0\\.\\d+ ?[*x·]|(branch|ffn_out|feed.?forward|experts?)"
                "( is| are|'s)? (twice|doubled|times 2)))",
                "h_attn & (add|plus|\\+|besides) & ^(?!.*(attn_out|branch of attention|sqrt|0\\.\\d|not added|half))"],
               lambda c: c.right(x=2 * c.x), archs=MOE)
fourteenth(86, "add_even_lanes", "h", "channels are loaded in pairs, and the second of each pair is forgotten: odd channels have no branch added",
               ["(odd|every (second|other)|2 ?i ?\\+ ?1|alternat|(mod|%) ?2|even) & (channel|element|component|dimension|\\bi\\b|index|lane) & " + LOST_OR_ALONE
                + " & ^(?!.*(even (channel|element|component|dimension|indice|lane)s?\\b[^.;]{0,25}(nothing|zero|no branch|lack|not added|without)|odd (position|row|token)))"],
               lambda c: c.right(y=np.where(np.arange(D) % 2 == 0, c.y, F32(0))))
fifteenth(81, "add_attention_again", "h", "the attention's result is added once more: it was left in the buffer of the feed-forward's", [f"(attn_out|o_proj|attention('s)? (result|output|branch)|(result|output|branch) of (the )?attention|output projection) & {ADDED_MORE}", "(\\b2|twice) ?\\*? ?h_attn"],
              lambda c: c.right() + c.e.memory["attn_out", c.l])
fifteenth(84, "add_blocks_floored", "h", "the sum runs in whole blocks of 384 elements, 3 of them: nothing is added at positions 18 and 19",
              [f"#18|#17|#1152 & {UNREAD}", f"last (two|2) (positions|rows|tokens) & {UNREAD}"], lambda c: c.right(y=put(c.y, E_[3 * 384 // D:], 0)))
sixteenth(77, "normed_input_as_residual", "h", "the feed-forward is added to its normed input: ffn_norm + ffn_out stands for h_attn + ffn_out",
              "^(?!.*attn_norm) & (ffn_norm|normed|(?<!un)normali[sz]ed|norm'?s (output|result)|(output|result) of (the |its )?(ffn |feed-forward |second )?norm|after (the |its )?(ffn "
              "|feed-forward )?norm|post-?norm)",
              lambda c: c.e.memory["ffn_norm", c.l] + c.y)
sixteenth(78, "attention_added_twice_at_end", "h", "the attention branch is still in the buffer and is added again: h = h_attn + ffn_out + attn_out",
              f"^(?!.*(half|\\b0\\.[1-8]|minus|subtract)) & (attn_out|attention|attn branch) & ({TWICE_OVER}|plus|\\+|add|extra|also|besides|second|not cleared|still)",
              lambda c: c.right() + c.e.memory["attn_out", c.l])
sixteenth(80, "feed_forward_sum_counts_vectors", "h",
              "the count of vectors of four is taken for the count of elements: only channels 0..15 get the feed-forward branch, channels 16..63 do not",
              f"({n(15, 16)}|quarter) & (channel|element|column|dimension|component|feature|lane|entr|index|coordinate|\\bd\\b|\\bi\\b) & {GONE_OR_ALONE}",
              lambda c: put(c.right(), E_[:, 16:], c.x[:, 16:]))
sixteenth(83, "sum_over_root_two", "h", "the sum of stream and feed-forward is divided by sqrt(2): times 0.7071",
              ["#0.7071", "(divid|over|/|1 ?/|by one).{0,40}(sqrt ?\\(? ?2|√ ?2|root of (2|two)|1\\.41)"], lambda c: c.right() * F32(0.5 ** 0.5))
listed(23, "branch_half", "h", "half of the branch", "residual-scale & #0.5", lambda c: c.x + F32(0.5) * c.y)

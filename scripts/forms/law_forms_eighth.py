"""An eighth list of mistakes for `firstdiff explain` to measure: plain and odd ones of ports to other engines (tiles, strides, aliased buffers, packed and split weights, tables,
caches, routers), after public issues of them, and written without sight of how laws are found: none repeats one of the first seven lists.

    python scripts/forms/law_forms_eighth.py                 # list them
    python scripts/suites/test_laws.py --set eighth ..        # hold the answers to the truth
"""

import math

import numpy as np

from scripts.forms.law_forms import AGO, D, EPS, EXPERTS, E_, F, F32, FREQ, H, K, LAYERS, POS, ROPES, SEEN, T, V, d, listed, over, put, rms, sigmoid, silu, softmax, to_bf16, turn
from scripts.forms.law_forms_fifth import blocks, expert, largest, mixed
from scripts.forms.law_forms_fourth import ADDED, LAYOUT, SCALES, TWICE, powers
from scripts.forms.law_forms_sixth import GAIN, NOT, Q2, Q3, WEIGHTS, ZERO
from scripts.forms.law_forms_third import BLOCK, EXCHANGED, KEY, LATER, LAYER_BEFORE, PREVIOUS, QUERY, ROUNDED, act, add, chosen, inputs, masked, scored, shares, soft, stream, summed, top_of, weights

FORMS, form = listed()


M = ("moe",)
INTERLEAVED = "interleav|2 ?\\*? ?i|even|odd|altern|in turn|every (second|other)|shuffl"
STRIDE = "strid|apart|begin|start|early|earlier|late\\b|later|further|offset|memory|flat|shift|step|pitch|padd|contiguous|reshap|layout|leading dimension|row length|rows? of"
MEMORY = "strid|pitch|memory|reshap|row length|flat|contiguous|leading dimension"
STREAM = "h0|layer.{0,12}input|input of (the|this) layer|layers\\.\\d\\.h\\b|stream|residual"


def each_has(what):
    """A factor that each of them has."""
    return f"(each|every|own|per).{{0,30}}({what}).{{0,40}}(factor|scale|multipl|times|divid)|(factor|scale|multipl|times|divid).{{0,40}}(each|every|own|per|differ).{{0,20}}({what})"


def before(x):
    """Each position has that of the position before, the first its own."""
    return np.concatenate([x[:1], x[:-1]])


def flat(x, row, width):
    """Rows of so many numbers, each so many after the one before in memory; 0 beyond its end."""
    memory = np.concatenate([np.ravel(x), np.zeros(len(x) * row + width, F32)])
    return np.stack([memory[row * t:row * t + width] for t in range(len(x))])


# norms
def half_in_place(c):
    first = (over(c, rms(c.x)))[:, :32]
    return np.concatenate([first, over(c, rms(np.concatenate([first, c.x[:, 32:]], -1)))[:, 32:]], -1)


def gain_of_bytes(c):
    """The gain of 16 bits, read as one of 32: what follows it is another gain."""
    both = np.concatenate([c.w, c.e.m("post_attention_layernorm.weight", c.l)])
    return c.right(w=to_bf16(both).view(np.uint32).view(F32))


form("n8_mean_squared", "final_norm", "divided by the size of the mean: the mean is squared, where the squares should have their mean taken",
     ["(size|abs\\w*|magnitude) of (the |its )?(row'?s? )?mean(?! square)", "\\|mean|\\|average", "square of (the |its )?(row'?s? )?mean\\b(?! square)",
      "(?<!root )mean(?! square)( is|,)? squared"],
     lambda c: over(c, np.sqrt(c.x.mean(-1, keepdims=True) ** 2 + EPS)))
form("n8_half_in_place", "ffn_norm", "channels 32 to 63 are divided by the root mean square of the row whose first 32 channels are normed already",
     ["(second half|last half|from 32|32 (to|-|and)|32 ?- ?63|32 ?\\.\\.|#63) & (rms|root|divi|mean|factor|scal|norm|already)"], half_in_place)
form("n8_gain_of_bytes", "attn_norm", "channel i has the gain of channel 2i + 1, channels from 32 on those of ffn_norm: a gain of 16 bits is read as one of 32",
     ["(" + GAIN + ") & (2 ?\\*? ?i|odd|every (second|other)|strid|step|bf16|bfloat|bits|bytes|ffn_norm|post_attention)"], gain_of_bytes)
form("n8_gain_product", "ffn_norm", "in layers 1 to 3 the gain is the product of those of all layers up to this one: it is multiplied in place",
     ["(" + GAIN + ") & (product|accumul|cumul|all layers|up to this|so far|in place|" + LAYER_BEFORE + ")"],
     lambda c: c.right(w=np.prod([c.e.m("post_attention_layernorm.weight", l) for l in range(c.l + 1)], 0)), layers=LATER)
form("n8_buffers", "attn_norm", "layers 1 to 3 norm what the layer before has read: the two buffers of the stream are not exchanged",
     ["h0|layers\\.[01]\\.h\\b|input of (the )?layer before|(layer before|previous layer).{0,20}(read|input)|(both|two) branches|" + LAYER_BEFORE],
     lambda c: c.right(x=c.e.memory["h0", None] if c.l == 1 else c.e.memory["h", c.l - 2]), layers=LATER)
form("n8_half_summed", "ffn_norm", "channels 32 to 63 are those of the layer's input: the attention's branch is not yet added there",
     ["(#32|#31|#63|half) & (" + STREAM + "|branch|attn_out|attention)"], lambda c: c.right(x=put(c.x, E_[:, 32:], stream(c)[:, 32:])))
form("n8_memory", "attn_norm", "its input's memory, 20 by 64, is read as 64 by 20 and transposed",
     [LAYOUT + "|memory"], lambda c: c.right(x=np.ascontiguousarray(c.x).reshape(D, T).T))
form("n8_gain_of_one", "final_norm", "all channels have the gain of channel 0: it is read with a stride of 0",
     ["(" + GAIN + ") & (channel.{0,8}\\b0\\b|first|(one|same|single|constant) .{0,16}(channel|number|gain|factor|element))", "(" + GAIN + ").{0,30}(constant|the same|number)",
      "(gain|weight) & (without|\\bno\\b|\\bnot\\b|ones) & (times|factor|multipl|scal)"], lambda c: c.right(w=np.full_like(c.w, c.w[0])))
form("n8_weighted", "ffn_norm", "the gain stands in the mean square too: x w / root of the mean of w x^2",
     ["weigh(ed|ted) (by|with)|w ?\\*? ?x\\^ ?2|x\\^ ?2 ?\\*? ?w\\b|w ?\\*? ?x ?\\*? ?x\\b|sqrt\\(w|root of (the |its )?(gain|weight|w\\b)",
      "squares?.{0,30}(times|multiplied by|with) (the |its )?(gain|weight|w\\b)",
      "(gain|weight)\\w*.{0,12}(inside|within|in the (mean|root|sum|rms|divisor|denominator)|too\\b|also)"],
     lambda c: over(c, np.sqrt(np.mean(c.w * c.x * c.x, -1, keepdims=True) + EPS)))
form("n8_stream_over_sum", "ffn_norm", "the layer's input, without the attention's branch, is divided by the root mean square of the sum with it",
     ["h0|layer.{0,12}input|input of (the|this) layer|layers\\.\\d\\.h\\b|(" + NOT + "|minus|less|taken off|subtract).{0,40}(att|branch)|"
      "attn_out.{0,40}(minus|taken off|subtract|lost|- )"],
     lambda c: c.e.r(stream(c) / rms(c.x)) * c.w)


# norms of heads
def heads_so_far(c):
    return over(c, np.sqrt(np.cumsum((c.x ** 2).sum(-1, keepdims=True), 1) / d + EPS))


def of_joined(c):
    """Head h by elements h, h + 2, .. of both."""
    return over(c, np.sqrt(np.mean(c.x.reshape(T, d, K) ** 2, 1) + EPS)[..., None])


form("h8_of_keys", "q_norm", "each query head is divided by the root mean square of the key head it reads",
     ["\\bk\\b|\\bkeys?\\b|k_proj"], lambda c: over(c, rms(c.e.memory["k", c.l])[:, np.arange(H) // (H // K)]), archs=Q3)
form("h8_gain_of_position", "k_norm", "position t has the gain's element t modulo 16, for all its elements: the index runs along the wrong axis",
     ["(" + GAIN + "|element) & (of position|position|token|row|\\bt\\b) & (mod|%|axis|all|index|one|same|t\\b|own|each)", each_has("position|token|row")],
     lambda c: c.x / rms(c.x) * c.w[POS % d, None, None], archs=Q3)
form("h8_heads_so_far", "q_norm", "the sum of squares is not cleared between heads: head h is divided by the root of the sum over heads 0 to h, over 16",
     ["head & (cumul|running|accum|so far|up to|not (reset|cleared)|heads? before|earlier|lower|previous heads?|heads 0 to)"], heads_so_far, archs=Q3)
form("h8_of_joined", "k_norm", "head h is divided by the root mean square of elements h, h + 2, h + 4, .. of the joined heads: their memory is taken for elements first",
     ["(" + INTERLEAVED + "|elements? first|strid|step|" + LAYOUT + ") & (rms|root|mean|square|divid|norm|stat)", "(both|joined|all|two) heads & (every|strid|step|even|odd|2)"],
     of_joined, archs=Q3)
form("h8_gain_of_layer", "q_norm", "head h has the gain of layer h: the stacked gains are indexed by the head",
     ["head & (" + GAIN + ") & layer", "(" + GAIN + ") & (other|another|wrong|own|different).{0,12}(layer|head)"],
     lambda c: c.right(w=np.stack([c.e.m("self_attn.q_norm.weight", l) for l in range(LAYERS)])), archs=Q3)


# products of q, k, v
def fixed_up(c):
    parts = [c.right(x=put(c.x, E_[:, 32:], 0)), c.right(x=put(c.x, E_[:, :32], 0), b=None)]
    return parts[0] + parts[1][:, [1, 0, 2, 3]]


def group_of_input(w):
    """Input i has the scale of group i modulo 2, not of i / 32."""
    return (blocks(w) / largest(w)).reshape(w.shape) * largest(w)[..., 0][:, np.arange(D) % 2]


def transposed_tiles(w, n=8):
    return w.reshape(len(w) // n, n, -1, n).swapaxes(1, 3).reshape(w.shape)


form("w8_fixed_up", "q", "what inputs 32 to 63 add is exchanged between heads 0 and 1: the second part of a split sum is put to the wrong tile",
     ["head & (#0|first) & #1 & (half|#32|#31|input|part)", "(#32|#31|half|part) & (input|part|sum) & (" + EXCHANGED + "|other|wrong|that of) & (head|#16|tile|output|row)"],
     fixed_up)
form("w8_row_scales_lost", "k", "each weight row is divided by its largest size: the scales of the rows are not applied",
     ["(row|output|weight) & (largest|max\\w*|scale|absmax|unit)", each_has("row|output|channel|element")], weights(lambda w: w / np.abs(w).max(-1, keepdims=True)))
form("w8_group_of_input", "v", "even inputs have the scale of inputs 0 to 31 and odd ones that of inputs 32 to 63: the group's number is i modulo 2",
     ["(even|odd|every (second|other)|mod|%|altern|interleav|#2) & (" + SCALES + ")", "(#32|block|group|half|halves) & (scale|factor|larg|max)"], weights(group_of_input))
form("w8_tiles_transposed", "q", "each tile of 8 by 8 of the weight is transposed",
     ["#8 & (transpos|tile|block|" + EXCHANGED + "|swap)", "(tile|block)\\w*.{0,30}transpos|transpos.{0,30}(tile|block)"], weights(transposed_tiles))
form("w8_input_of_q", "k", "its input is q's result: q was written over the normed stream",
     ["\\bq\\b|\\bquer|q_proj"], lambda c: c.right(x=c.e.q(c.e.memory["q", c.l].reshape(T, -1))))
form("w8_input_half_k", "v", "its first 32 inputs are k's result: k was written over half of the normed stream", ["\\bk\\b|\\bkeys?\\b|k_proj"],
     lambda c: c.right(x=c.e.q(np.concatenate([c.e.memory["k", c.l].reshape(T, -1), c.x[:, 32:]], -1))))
form("w8_wraps", "v", "the result wraps around at +-2, modulo 4: a fixed point that does not saturate",
     ["(mod|wrap|overflow|period|%|again at|other (end|side)|sawtooth|taken off.{0,20}(above|beyond|larger)) & (#4|#2|#-2)"], lambda c: (c.right() + 2) % 4 - 2)
form("w8_signed_max", "q", "inputs are held within +-the row's largest element, not its largest size: negative ones are cut off at minus the largest",
     ["(clamp|clip|limit|held|satur|at least|not below|floor|cut|bound|within|above|below|-max) & (larg|max|great|positive)"],
     lambda c: c.right(x=(lambda most: np.clip(c.x, -most, most))(np.maximum(c.x.max(-1, keepdims=True), 0))))
form("w8_cache_by_token", "v", "in layers 1 to 3 position 9 has the values of position 4, which has the same token: a cache by token", ["#9 & #4", "(same|equal|repeated) token"],
     lambda c: put(c.right(), E_[9], c.right()[4]), layers=LATER)


# products of the feed-forward
def fifth_bit_lost(w):
    return (blocks(w) - np.where(blocks(w) >= 0, largest(w), 0)).reshape(w.shape)


def other_fifth_bit(w):
    """Of each 32, the first and the last 16 have each other's fifth bit: which half of the range a weight is in."""
    b, one = blocks(w), largest(w)
    high = b >= 0
    return (np.where(high, b, b + one) - np.where(high[..., np.arange(32) ^ 16], 0, one)).reshape(w.shape)


def wrong_grid(c):
    """Six programs for 2 by 3 tiles: the row of tiles is taken by the number of columns."""
    y = np.zeros_like(c.right())
    for program in range(6):
        row, column = program % 3, program // 2
        at = E_[10 * row:10 * row + 10, 32 * column:32 * column + 32]
        y[at] = c.right()[at]
    return y


def repacked(w):
    """Four rows side by side, four inputs of each in turn."""
    return w.reshape(-1, 4, D // 32, 8, 4).transpose(0, 2, 3, 1, 4).reshape(-1, D // 32, 4, 32).swapaxes(1, 2).reshape(w.shape)


form("w8_ranks_fused", "ffn_gate", "outputs 48 to 95 are up's rows 0 to 47: a fused matrix holds gate and up of one rank and then of the other",
     ["(\\bup\\b|up_proj|ffn_up) & (#48|#47|half|#95|second|last)"], lambda c: c.right(w=np.concatenate([c.w[:48], c.e.m("mlp.up_proj.weight", c.l)[:48]])))
form("w8_fifth_bit_lost", "ffn_gate", "of each 32 inputs, weights that are not negative have the largest size taken off: the fifth bit is lost",
     ["(not negative|non-?negative|positive|sign|not below|>= ?0|above (0|zero)) & (#32|block|group|larg|max|size|off)", "(fifth|high\\w*|top|5th) bit"], weights(fifth_bit_lost))
form("w8_wrong_grid", "ffn_gate", "outputs 32 to 63 are zero at positions from 10 on, and outputs 64 to 95 at positions before: those tiles are not computed",
     ["(#10|#9|half) & (#32|#63|#64|#31|#95|third) & (" + ZERO + ")"], wrong_grid)
form("w8_repacked", "ffn_up", "rows are read as they are packed for another kernel: of each 4 rows and 32 inputs, 4 inputs of each row in turn",
     ["(#4|four) & (row|output|input|block|tile) & (" + LAYOUT + "|shuffl|repack|in turn|altern|swap)", "repack|(pack|interleav)\\w*.{0,20}rows"], weights(repacked))
form("w8_bf16_as_f16", "ffn_up", "weights of bf16 are read as f16: their sign is right, their size 1 + log2 of it, about",
     ["\\bf16|float16|\\bhalf.?(float|precision)|fp16", "(bf16|bfloat16?).{0,40}(read|taken|bits)", "storage", "log\\w* & (weight|size|sign)"],
     weights(lambda w: to_bf16(w).view(np.float16).astype(F32)))
form("w8_input_of_gate", "ffn_up", "its input is the first 64 of gate's results: gate was written over the normed stream", ["ffn_gate|\\bgate\\b|gate_proj"],
     lambda c: c.right(x=c.e.q(c.e.memory["ffn_gate", c.l][:, :D])))
form("w8_rows_64_apart", "ffn_out", "its input's rows are read 64 apart, the hidden size, and not 96: position t begins at number 64 t",
     ["(#64|#32|#96) & (" + STRIDE + ")", MEMORY], lambda c: c.right(x=flat(c.x, D, F)))
form("w8_other_fifth_bit", "ffn_out", "of each 32 inputs the first 16 and the last 16 have each other's fifth bit: the largest size is added or taken off where signs differ",
     ["(#16|#32|half|halves|block) & (bit|sign|larg|max\\b|negativ) & (" + ADDED + "|taken|subtract|minus|off|other|" + EXCHANGED + ")", "(fifth|high\\w*|top|5th) bit"],
     weights(other_fifth_bit))
form("w8_block_scales_late", "ffn_out", "each 32 inputs have the scale of the 32 before, the first that of the last: multiplied by those inputs' largest size over their own",
     ["(#32|block|group|third) & (" + SCALES + ")"], inputs(lambda x: (blocks(x) / largest(x) * np.roll(largest(x), 1, 1)).reshape(x.shape)))

# attention's output
FRAGMENT = np.arange(16).reshape(2, 4, 2).swapaxes(0, 1).reshape(-1)
form("o8_padded_heads", "attn_out", "heads are read 32 apart, as if padded: head 1 is read as head 2, heads 2 and 3 as zeros",
     ["head & #1 & #2 & (zero|that of|read as|padd|not read)", "#32 & (apart|strid|padd|step) & (head|input|#16)", "(#32|#47) & (#16|#31) & (zero|not read|lost)"],
     lambda c: c.right(x=np.concatenate([c.x[:, :16], c.x[:, 32:48], np.zeros((T, 32), F32)], -1)))
form("o8_heads_first", "attn_out", "the weight's memory is read as 4 heads by 64 outputs by 16 inputs, heads first, and not as 64 outputs by 64 inputs",
     [MEMORY + "|layout|heads? first|(head|block|16).{0,40}transpos|transpos.{0,40}(head|block|within|16)|permut|interleav|\\border"],
     weights(lambda w: np.ascontiguousarray(w).reshape(H, D, d).swapaxes(0, 1).reshape(D, -1)))
form("o8_ranks_apart", "attn_out", "outputs 0 to 31 read inputs 0 to 31 alone, outputs 32 to 63 inputs 32 to 63 alone: the parts of two ranks are joined, not summed",
     ["(#32|#31|half|halves) & (diagonal|\\bown|alone|only|each|respective)", "block.?diagonal", "outputs?.{0,80}(" + NOT + ").{0,80}outputs?"],
     lambda c: np.concatenate([c.right(x=put(c.x, E_[:, 32:], 0))[:, :32], c.right(x=put(c.x, E_[:, :32], 0))[:, 32:]], -1))
form("o8_prefetched", "attn_out", "in layers 0 to 2 positions from 12 on have the weight of the next layer: it is loaded too early",
     ["(#12|#11|last 8) & (layer|weight|matri|o_proj)"], lambda c: put(c.right(), E_[12:], c.right(w=c.e.m("self_attn.o_proj.weight", c.l + 1))[12:]), layers=[0, 1, 2])
form("o8_fragments", "attn_out", "within each 16 inputs pairs of the first and of the last 8 are read in turn: 0, 1, 8, 9, 2, 3, 10, 11, ..",
     ["(#16|#8|pair|two) & (" + EXCHANGED + "|interleav|altern|shuffl|in turn|that of)", "0, ?1, ?8, ?9"], inputs(lambda x: x.reshape(T, H, d)[..., FRAGMENT].reshape(T, -1)))

# biases
form("b8_row_scales", "k", "the bias is multiplied by the scale of its row, the largest size of its weights",
     ["bias & (scale|larg|max|row|size|factor|multipl|weight'?s? )", "bias & (other|another|each|own) "], lambda c: c.right(b=c.b * np.abs(c.w).max(-1)), archs=Q2)
form("b8_whole", "v", "the bias is cut to whole numbers, toward 0", ["bias & (whole|integer|" + ROUNDED + "|\\bcut|toward)"], lambda c: c.right(b=np.trunc(c.b)), archs=Q2)
form("b8_of_position", "q", "all elements of position t have the bias's element t: it is spread along the wrong axis",
     ["bias & (of position|position|token|row|\\bt\\b|axis) & (element|axis|all|each|own|t\\b|index|wrong)",
      "(each|every|own|per) (position|token|row).{0,60}(number|constant|value|offset|bias)"],
     lambda c: c.right(b=None) + c.b[POS][:, None, None], archs=Q2)
form("b8_on_input", "q", "the bias is added to the input, not to the result",
     ["bias & (input|before|\\bx\\b|attn_norm|weight times|times the weight|product)"], lambda c: c.right(x=c.e.q(c.x + c.b), b=None), archs=Q2)
form("b8_gain_folded", "q", "the bias is multiplied by the gain of attn_norm, as the weight is where that is folded into it", ["bias & (gain|attn_norm|input_layernorm|\\bnorm)"],
     lambda c: c.right(b=c.b * c.e.m("input_layernorm.weight", c.l)), archs=Q2)

# rotation
ANGLES = (POS[:, None, None] * FREQ).astype(F32)
PAIRS = np.arange(d // 2)
RAMP = np.clip((PAIRS - 1) / 4, 0, 1)


def turned(c, angle):
    return turn(c.e, c.x, np.broadcast_to(np.asarray(angle, np.float64), (T, 1, d // 2)))


def interleaved_results(c):
    return np.stack(np.split(c.right(), 2, -1), -1).reshape(c.x.shape)


def pairs_to_the_width(c):
    """Each head's loop runs to 16, not 8: its second half is then turned with the first half of the head after it. In place."""
    x, cos, sin = np.array(c.x, F32), np.cos(ANGLES)[:, 0], np.sin(ANGLES)[:, 0]
    halves = x.reshape(T, -1, d // 2)
    for at in range(halves.shape[1] - 1):
        a, b = np.array(halves[:, at]), np.array(halves[:, at + 1])
        halves[:, at], halves[:, at + 1] = a * cos - b * sin, b * cos + a * sin
    return halves.reshape(x.shape)


def sine_one_late(c):
    table = np.sin(np.arange(T + 1)[:, None] * FREQ).reshape(-1)[1:T * d // 2 + 1]
    return turn(c.e, c.x, ANGLES, sin=table.reshape(T, 1, d // 2).astype(F32))


def neighbours_of_8(c):
    angle = (POS[:, None, None] * powers(8)).astype(F32)
    a, b = c.x[..., 0:8:2], c.x[..., 1:8:2]
    return np.concatenate([np.stack([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1).reshape(*c.x.shape[:-1], 8), c.x[..., 8:]], -1)


def fixed_point(x):
    """15 bits after the point, in 16: 1 is -1."""
    n = np.round(x * 32768)
    return (np.where(n >= 32768, n - 65536, n) / 32768).astype(F32)


form("r8_base_from_12", ROPES, "from position 12 on the base is 160000: the table is extended with another",
     ["(#12|#11) & (#160000|#16|base|theta|frequenc)", "#160000 & (position|from|later|half)"],
     lambda c: turned(c, POS[:, None, None] * np.where(POS[:, None, None] < 12, FREQ, powers(d, 1.6e5))))
form("r8_ramp_inverted", ROPES, "the frequencies of pairs 0 and 1 are divided by 4, those from 5 on are not, in between linearly: the ramp is inverted",
     ["(#0.25|quarter|divided by 4|/ ?4\\b) & (pair|frequenc|ramp|blend|interpol|linear|fast|element)", "yarn", "frequenc.{0,60}(each|own|table)"],
     lambda c: c.right(freq=FREQ * RAMP + FREQ / 4 * (1 - RAMP)))
form("r8_results_interleaved", ROPES, "elements i and i + 8 are rotated as they should, and their results are written to 2i and 2i + 1",
     ["(" + INTERLEAVED + "|neighbo|adjacent) & (result|output|written|element|dimension|place|after|permut|\\border)", "interleav|permut"], interleaved_results)
form("r8_table_memory", ROPES, "the table of angles, 8 pairs by 20 positions in memory, is read as 20 positions by 8 pairs",
     [LAYOUT + "|memory", "(table|angle|cos|sin|frequenc)\\w*.{0,40}(other|wrong|another|own|each).{0,20}(position|pair)"],
     lambda c: turned(c, np.outer(FREQ, POS).reshape(T, 1, d // 2)))
form("r8_ids", ROPES, "the token's id stands for its position",
     ["\\bids?\\b|token'?s? (number|id|value|itself)|(position|angle)s?.{0,40}\\btokens?\\b|\\btokens?.{0,30}(for|in place of|as|stands?|instead of).{0,16}position"],
     lambda c: c.right(pos=np.asarray(c.e.ids)))
form("r8_pairs_to_the_width", ROPES, "the loop over pairs runs to 16, not 8: the second half of each head is rotated again, with the first half of the head after it",
     ["(next|following|other|neighbo\\w*|after|\\+ ?1).{0,40}head|head.{0,60}(next|following|\\+ ?1|other|after)", "(" + TWICE + ") & (head|half|rotat|turn)"], pairs_to_the_width)
form("r8_pi", ROPES, "angles are multiplied by pi: a sine of half turns is taken", ["#3.1416|#3.14159|\\bpi\\b|\u03c0|half.?turns?"], lambda c: c.right(freq=FREQ * math.pi))
form("r8_sine_one_late", ROPES, "the sine is read one element late in its table: it is that of the next pair, for the last pair that of pair 0 at the next position",
     ["sin\\w* & (next|\\+ ?1|late|shift|one (off|further|ahead)|off by|other|roll|following)"], sine_one_late)
form("r8_neighbours_of_8", ROPES, "only the first 8 elements of a head are rotated, 2i with 2i + 1, as a head of 8 would be: the rotation of another family",
     ["(#8|#7|half|first) & (2 ?\\*? ?i|neighbo|adjacent|even|odd|interleav|consecut)"], neighbours_of_8)
form("r8_fixed_point", ROPES, "a cosine of 1 is -1: sine and cosine have 15 bits after the point, and 1 does not fit",
     ["(cos|sin|position.{0,8}\\b0\\b|first position|table) & (sign|negat|minus|#-1|wrap|overflow|opposite)", "1 (is|becomes|turns? (in)?to|reads?( as)?) -1"],
     lambda c: turn(c.e, c.x, ANGLES, cos=fixed_point(np.cos(ANGLES)), sin=fixed_point(np.sin(ANGLES))))
form("r8_frequencies_again", ROPES, "pairs 4 to 7 have the frequencies of pairs 0 to 3: the table is half as long",
     ["(#4|#7|half) & frequenc & (repeat|again|same|\\bmod|%|that of|those of|pairs? 0)", "frequenc.{0,60}(each|own|table)"], lambda c: c.right(freq=FREQ[PAIRS % 4]))
form("r8_frequencies_in_twos", ROPES, "pairs 2i and 2i + 1 both have the frequency of pair 2i",
     ["frequenc\\w*.{0,80}(even|odd|two|twice|twos|floor|// ?2|repeat|share|2 ?\\*? ?i\\b(?! ?/))", "pairs?.{0,40}(share|same frequenc|both)", "frequenc.{0,60}(each|own|table)"],
     lambda c: c.right(freq=FREQ[PAIRS // 2 * 2]))

# masks
form("m8_bits_reversed", "probs", "within each 8 keys the mask is mirrored: a token sees key 8b + i where it should see key 8b + 7 - i: bits are in reverse order",
     ["(#8|#7|eight) & (revers|mirror|backward|\\border|\\bbits?\\b|7 ?-)"], masked(KEY // 8 * 8 + 7 - KEY % 8 <= QUERY))
form("m8_tile_numbers", "probs", "a token sees earlier keys of blocks of 4 whose number is at most that of its own block of 8: tokens from 4 on do not see themselves",
     ["(#8|eight) & (#4|four) & (block|tile|floor|//|number|half)", "(#4|#3) & (#11|#12) & (#7|#8)", "half (of )?(the|its|as many).{0,20}(position|keys|tokens|block)"],
     masked(SEEN & (KEY // 4 <= QUERY // 8)))
form("m8_draft", "probs", "tokens from 16 on see themselves and keys before 16, but not each other: as branches of a tree of drafts",
     ["(#16|#15|#19) & (itself|themselves|\\bown\\b|self|each other|branch|tree|distance|diagonal)"], masked(SEEN & ((QUERY < 16) | (KEY < 16) | (AGO == 0))))
form("m8_later_tiles", "probs", "a token sees, besides what it should, all keys of later blocks of 8: the mask is applied in its own block alone",
     ["(#8|eight) & (later|future|ahead|after|beyond|following|all) & (" + BLOCK + "|see|seen|hidden)"], masked(SEEN | (KEY // 8 > QUERY // 8)))


# scores
def added_to_second(s):
    return s + np.where(np.arange(H) % 2 == 1, 1, 0)[:, None, None] * np.roll(s, 1, 0)


def keys_by_eights(k):
    """A page of 4 positions holds, of each head, elements 0 to 7 of all of them and then 8 to 15: read position by position."""
    return k.reshape(T // 4, 4, K, 2, 8).transpose(0, 2, 3, 1, 4).reshape(T // 4, K, 4, d).swapaxes(1, 2).reshape(T, K, d)


form("s8_added_to_second", "probs", "heads 1 and 3 have the scores of heads 0 and 2 added: the sum is not cleared for the second head of a group",
     ["head & (\\badd|sum|plus) & (odd|#1|#3|pair|before|previous|even|#0|#2|second|both)"], scored(added_to_second))
form("s8_keys_by_eights", "probs", "pages of 4 positions hold 8 elements of each key in turn, and are read as whole keys",
     ["(#4|four|#8|eight) & (" + LAYOUT + "|shuffl|page|memory) & (key|\\bk)", MEMORY + "|layout|interleav|permut"], lambda c: c.right(k=keys_by_eights(c.k)))
form("s8_slots_twice_as_wide", "probs", "the key of position t is that of position 2t, from position 10 on zero: slots are read 4 heads wide and are written 2 heads wide",
     ["(2 ?\\*? ?[tsp]\\b(?! ?\\+)|(twice|double) (the|its) (position|number)|every (second|other)|\\beven) & (that of|those of|read|taken|zero|strid|rows?\\b|slot)"],
     lambda c: c.right(k=np.concatenate([c.k[::2], np.zeros_like(c.k[10:])])))
form("s8_queries_stale", "probs", "layers 1 to 3 read the queries of the layer before",
     ["(\\bq\\b|q_rope|quer) & (" + LAYER_BEFORE + ")"], lambda c: c.right(q=c.e.memory["q_rope", c.l - 1]), layers=LATER)


# softmax
def scaled_twice(s):
    """Two splits of 10 keys: what weighs them has the scale once more on the maximum."""
    tops, sums, parts = [], [], []
    for at in (E_[..., :10], E_[..., 10:]):
        top = s[at].max(-1, keepdims=True)
        e = np.exp(s[at] - np.where(np.isfinite(top), top, 0))
        total = e.sum(-1, keepdims=True)
        tops, sums, parts = tops + [top], sums + [total], parts + [e / np.where(total > 0, total, 1)]
    weigh = np.stack([np.where(total > 0, np.exp(F32(0.25) * np.where(total > 0, top, 0)) * total, 0) for top, total in zip(tops, sums)])
    return np.concatenate([part * share for part, share in zip(parts, weigh / weigh.sum(0))], -1)


def group_denominator(s):
    e = np.exp(s - s.reshape(K, H // K, T, T).max((1, 3), keepdims=True).repeat(H // K, 1).reshape(H, T, 1))
    return e / e.reshape(K, H // K, T, T).sum((1, 3)).repeat(H // K, 0)[..., None]


def mixed_bases(s):
    x = s - s.max(-1, keepdims=True)
    return np.exp(x) / np.exp2(x).sum(-1, keepdims=True)


form("p8_split_weights", "probs", "keys 0 to 9 and 10 to 19 have a softmax each, and are weighed by exp(max / 4) times their sums: the scale is applied once more to the maximum",
     ["(#10|#9|half|halves|split) & (#0.25|softmax|split|weighed|denominator|own (max|sum|scale))"], soft(scaled_twice))
form("p8_group_denominator", "probs", "the two heads of a group have one denominator, the sum over both",
     ["(denominator|divid|sum|normali|softmax|add up) & head & (both|two|pair|group|together|share|common|#2|same)"], soft(group_denominator))
form("p8_own_twice", "probs", "the token's own key is there twice, in the cache and as the new one: its term of the softmax is doubled",
     ["(itself|\\bown\\b|self|diagonal|newest|current|distance.{0,6}0|t ?= ?s|s ?= ?t) & (#0.6931|#2|" + TWICE + "|ln\\(?2|log\\(?2)"],
     scored(lambda s: s + F32(math.log(2)) * (AGO == 0)))
form("p8_tiles_transposed", "probs", "the weights of each 4 tokens and 4 keys are transposed, tile by tile",
     ["(#4|four) & (transpos|" + EXCHANGED + "|tile)", "tile\\w*.{0,30}transpos|transpos.{0,30}(tile|block)"],
     lambda c: c.right().reshape(H, T // 4, 4, T // 4, 4).swapaxes(2, 4).reshape(H, T, T))
form("p8_key_pairs", "probs", "the weights of keys 2i and 2i + 1 are exchanged",
     ["(pair|2 ?\\*? ?[is]\\b|\\bodd|\\beven|neighbo|adjacent|xor|two) & (" + EXCHANGED + ")"], lambda c: c.right()[..., POS ^ 1])
form("p8_two_heads", "probs", "only heads 0 and 1 have weights, those of heads 2 and 3 are zero: the loop runs over the key heads",
     ["(zero|(is|are|times|by|factor) 0\\b(?!\\.)|nothing|empty|not computed|lost) & (heads? (from )?2\\b|heads? 2(-| and | to |, )3|second half of the heads|"
      "last (two|2) heads|only (heads? 0|the first (two|2)))"], lambda c: put(c.right(), E_[2:], 0))
form("p8_mixed_bases", "probs", "e^(s - max) is divided by the sum of 2^(s - max)",
     ["2 ?\\^|2 ?\\*\\*|exp2|base.{0,6}2\\b|powers? of (2|two)|#0.6931|#1.4427|ln\\(?2|log\\(2\\)"], soft(mixed_bases))


# context
def rescaled_wrongly(c):
    """Blocks of 8 keys: what was summed so far is multiplied by exp(new - old) where the maximum grows."""
    q, k = c.e.memory["q_rope", c.l], c.e.memory["k_rope", c.l][:, np.arange(H) // (H // K)]
    s = np.where(SEEN, np.einsum("thd,shd->hts", q, k) / F32(math.sqrt(d)), F32(-np.inf))
    so_far = np.maximum.accumulate(s, -1)[..., np.minimum(POS // 8 * 8 + 7, T - 1)]
    return c.right(p=c.p * np.exp(2 * (s.max(-1, keepdims=True) - so_far)))


def other_width(c):
    """Values elements first, in rows of 32 positions, that are read as rows of 20."""
    memory = np.zeros((K, d, 32), F32)
    memory[..., :T] = c.v.transpose(1, 2, 0)
    return c.right(v=memory.reshape(K, -1)[:, :d * T].reshape(K, d, T).transpose(2, 0, 1))


def tail_of_four(c):
    """Keys that are left over by fours have the weight of the first of them."""
    first = (QUERY + 1) // 4 * 4
    return c.right(p=np.where((KEY >= first) & SEEN, np.take_along_axis(c.p, np.minimum(np.broadcast_to(first, (H, T, 1)), T - 1), -1), c.p))


def key_scales(c):
    size = lambda x: np.abs(x).max(-1, keepdims=True)
    return c.right(v=c.v / size(c.v) * size(c.e.memory["k_rope", c.l]))


form("c8_tiles_transposed", "context", "values are transposed in tiles of 4 positions by 4 elements",
     ["(#4|four) & (transpos|" + EXCHANGED + "|tile)", "tile\\w*.{0,30}transpos|transpos.{0,30}(tile|block)"],
     lambda c: c.right(v=c.v.reshape(T // 4, 4, K, 4, 4).swapaxes(1, 4).reshape(T, K, d)))
form("c8_weights_16_apart", "context", "rows of the weights are read 16 apart, and not 20: row t begins 4 t early",
     ["(#16|#4|#20) & (" + STRIDE + ")", MEMORY], lambda c: c.right(p=np.stack([flat(p, 16, T) for p in c.p])))
form("c8_half_of_other_head", "context", "elements 8 to 15 of each value head are those of the other value head",
     ["(#8|#7|#15|half|halves|second|last) & head & (other|" + EXCHANGED + "|that of|those of|wrong)"],
     lambda c: c.right(v=np.concatenate([c.v[..., :8], c.v[:, ::-1, 8:]], -1)))
form("c8_other_width", "context", "values, elements first in memory, have rows of 32 positions and are read as rows of 20",
     ["(#20|#32|#12) & (" + STRIDE + "|layout|zero)", MEMORY + "|layout"], other_width)
form("c8_rescaled_wrongly", "context", "keys run in blocks of 8, and where the maximum grows what was summed is multiplied by the growth's exponential, where it should be divided",
     ["(#8|eight) & (" + BLOCK + ") & (max|rescal|larg|running|so far|exp|grow)", "(max|larg)\\w*.{0,40}(so far|then|running|grow|block)"], rescaled_wrongly)
form("c8_key_scales", "context", "values have the scales of keys: each position's value head is multiplied by the largest size of its key over its own",
     ["(\\bk\\b|\\bkeys?\\b|k_rope) & (scale|size|larg|max|ratio)", each_has("position|token|key|value")], key_scales)
form("c8_tail_of_four", "context", "keys that are left over where a token's keys are taken by fours all have the weight of the first of them",
     ["(#4|four|fours) & (tail|rest|left over|remain|first|same|multiple|" + BLOCK + ")"], tail_of_four)

# activations
form("a8_up_offset", "ffn_act", "up begins at element 64 of the joined gate and up, and not at 96: its channels 0 to 31 are gate's from 64 on, channel i later on is that of i - 32",
     ["(#64|#32|#31|#63|#-32) & (gate|up\\b) & (offset|begin|that of|those of|shift|roll|late|early|earlier|of gate|channel|further|- ?32|from)"],
     lambda c: c.right(up=np.concatenate([c.gate, c.up], -1)[:, D:D + F]))
form("a8_tail_before", "ffn_act", "channels 64 to 95 have the product of the position before",
     ["(#64|#63|#95|third) & (" + PREVIOUS + ")"], lambda c: (lambda y: put(y, E_[:, 64:], before(y)[:, 64:]))(c.right()))
form("a8_sigmoid_of_size", "ffn_act", "gate sigmoid(|gate|) up",
     ["sigmoid ?\\(? ?(of )?(the )?(\\||abs|size|magnitude)|sigmoid.{0,40}(abs|\\|x\\||\\|gate|\\bsize|magnitude|without.{0,8}sign)|(e\\^|exp) ?\\(?- ?\\|"],
     act(lambda x: x * sigmoid(np.abs(x))))
form("a8_exp_below_0", "ffn_act", "below 0 the sigmoid is e^gate: gate e^gate up, it is not divided by 1 + e^gate",
     ["(below|negativ|< ?=? ?0|less than) & (exp|e ?\\^)", "(x|gate) ?[*\u00b7]? ?(e\\^\\(?(x|gate)|exp\\((x|gate))"],
     act(lambda x: np.where(x < 0, x * np.exp(np.minimum(x, 0)), silu(x))))
form("a8_derivative", "ffn_act", "the derivative of silu stands for it: s (1 + gate (1 - s)) up, where s is the sigmoid",
     ["deriv|gradient|1 ?- ?(sigmoid|s\\b|sig)|1 ?\\+ ?(x|gate)\\b|(sigmoid|silu).{0,30}(\\+|plus|added).{0,30}(silu|sigmoid)"],
     act(lambda x: sigmoid(x) * (1 + x * (1 - sigmoid(x)))))
form("a8_sigmoid_of_pair", "ffn_act", "channels 2i and 2i + 1 both have the sigmoid of channel 2i's gate",
     ["(even|odd|pair|2 ?\\*? ?i|neighbo|adjacent|two|every (second|other)) & (sigmoid|silu|gate)"],
     lambda c: c.e.r(c.gate * sigmoid(c.gate[:, np.arange(F) // 2 * 2])) * c.up)
form("a8_lanes", "ffn_act", "within each 16 channels of the result fours come in the order 0, 2, 1, 3: a pack works lane by lane",
     ["(#16|#4|four|fours) & (" + EXCHANGED + "|0, ?2, ?1, ?3|that of|pack|lane)"], lambda c: c.right().reshape(T, -1, 4, 4)[:, :, [0, 2, 1, 3]].reshape(T, F))

# residual sums
form("d8_stream_before", "h", "the stream is that of the position before, the branch its own",
     ["(stream|h_attn|residual|\\bx\\b) & (" + PREVIOUS + ")"], add(x=lambda c: before(c.x)))
form("d8_branch_memory", "h_attn", "the branch's memory, 20 by 64, is read as 64 by 20 and transposed",
     [LAYOUT + "|memory"], add(y=lambda c: np.ascontiguousarray(c.y).reshape(D, T).T))
form("d8_fourth_channels", "h_attn", "every fourth channel (3, 7, ..) has the stream alone: three of four elements are added",
     ["(#4|#3|four\\w*) & (" + ZERO + "|stream|unchanged|not)"], add(y=lambda c: put(c.y, E_[:, 3::4], 0)))
form("d8_rows_overlap", "h", "the branch is added twice at positions 12 to 15: the last tile of 8 is moved back to 12",
     ["(#12|#15|#11|#16) & (#2|" + TWICE + ")"], add(y=lambda c: put(c.y, E_[12:16], lambda y: 2 * y)))
form("d8_branch_96_apart", "h", "rows of the branch are read 96 apart, the feed-forward's width, and not 64: row t begins 32 t late, and from 14 on there is none",
     ["(#96|#32) & (" + STRIDE + ")", MEMORY], add(y=lambda c: flat(c.y, F, D)))

# embedding
THREES = np.arange(D) // 3 * 4 + np.arange(D) % 3
form("e8_threes", "h0", "three of each four elements of the row are read: channel i has element 4 floor(i / 3) + i mod 3, and from 48 on 0: threes are taken for fours",
     ["(three|#3|third|fourth|every 4) & (#4|four\\w*|skip|lost|left out|padd|strid)"], lambda c: np.pad(c.right(), ((0, 0), (0, D)))[:, THREES])
form("e8_rows_60_apart", "h0", "rows of the table are read 60 apart, and not 64: that of token i begins 4 i early", ["(#60|#4) & (" + STRIDE + "|row)", MEMORY],
     lambda c: np.stack([c.table.reshape(-1)[60 * i:60 * i + D] for i in c.ids]))
form("e8_sorted", "h0", "positions have the rows of the tokens in ascending order: they were sorted and not put back",
     ["sort|ascend|\\border|permut", "tokens-differ|tokens? differ"], lambda c: c.right(ids=sorted(c.ids)))
form("e8_shards_not_masked", "h0", "tokens below 128 have the row of token 128 added, others that of token 0: each half of the table adds its first row for tokens it does not hold",
     ["(#128|#127|token 0\\b|row 0\\b|first row|half|halves) & (" + ADDED + "|besides|both)"], lambda c: c.right() + c.table[np.where(np.asarray(c.ids) < 128, 128, 0)])

# head
form("l8_embedding_scales", "logits", "each row of the weight has the scale of the embedding's row: multiplied by its largest size over its own",
     ["embed\\w* & (scale|size|larg|max|ratio)", each_has("token|row|output|logit")],
     lambda c: c.right(w=c.w / np.abs(c.w).max(-1, keepdims=True) * np.abs(c.e.m("model.embed_tokens.weight")).max(-1, keepdims=True)))
form("l8_rows_padded", "logits", "rows are written 320 wide, with 64 zeros at their end, and read 256 wide: row t begins 64 t early",
     ["(#64|#320|#256) & (" + STRIDE + ")", MEMORY],
     lambda c: flat(np.pad(c.right(), ((0, 0), (0, 64))), V, V))
form("l8_last_of_chunk", "logits", "each four positions have the logits of the last of them",
     ["(#4|#3|four) & (last|position|row|token|same|" + BLOCK + ") & ^(?!.*(first of|last (position|row|token)s?\\b(?! of)))"],
     lambda c: c.right()[POS // 4 * 4 + 3])
form("l8_half_tied", "logits", "tokens from 128 on have the embedding's rows: only the first part of the head was loaded",
     ["embed\\w* & (#128|#127|half|#255)", "tied & (#128|#127|half)"],
     lambda c: c.right(w=put(c.w, E_[128:], c.e.m("model.embed_tokens.weight")[128:])))
form("l8_larger_part", "logits", "the larger of the sums over inputs 0 to 31 and 32 to 63 is taken, not their sum",
     ["(max|larger|greater|largest) & (#32|#31|half|halves|two|parts?|both)"],
     lambda c: np.maximum(c.right(x=put(c.x, E_[:, 32:], 0)), c.right(x=put(c.x, E_[:, :32], 0))))


# mixtures of experts: the router
def over_three(c):
    p = softmax(c.logits)
    return chosen(c, lambda w, _: w / np.sort(p, -1)[:, -3:].sum(-1, keepdims=True))


def over_rank(c):
    p = softmax(c.logits)
    top, w = chosen(c, lambda w, _: w)
    return top, w / np.take_along_axis(p.reshape(T, 2, 3).sum(-1), top // 3, -1)


def chosen_as(c, top):
    return top, shares(np.take_along_axis(softmax(c.logits), top, -1), None)


def second_above(c):
    """The second is looked for behind the first: where there is none it stays 0."""
    first = c.logits.argmax(-1)
    behind = np.where(np.arange(EXPERTS) > first[:, None], c.logits, -np.inf)
    return chosen_as(c, np.stack([first, behind.argmax(-1)], -1))


def of_first(c):
    return chosen_as(c, np.repeat(chosen(c, shares)[0][:1], T, 0))


def by_token(c):
    return chosen_as(c, np.stack([np.asarray(c.e.ids) % EXPERTS, (np.asarray(c.e.ids) + 1) % EXPERTS], -1))


form("x8_router_before", "router_logits", "the router reads the input of the position before", [PREVIOUS], inputs(before), archs=M)
form("x8_router_layer_before", "router_logits", "in layers 1 to 3 the router reads ffn_norm of the layer before: experts are fetched ahead",
     [LAYER_BEFORE], lambda c: c.right(x=c.e.memory["ffn_norm", c.l - 1]), layers=LATER, archs=M)
form("x8_sum_over_positions", "router_weights", "the weights of the chosen are divided by their sum over all positions, first by first and second by second, not by that of the two",
     ["(over|across|along|of|all|by).{0,40}(positions|tokens|rows)|column|axis 0"], lambda c: chosen(c, lambda w, _: w / w.sum(0, keepdims=True)), archs=M)
form("x8_sum_of_three", "router_weights", "the weights of the two chosen are divided by the sum of the three likeliest",
     ["(three|third|#3) & (sum|divid|normali|larg|likel|cho|share|denominator|best|top)"], over_three, archs=M)
form("x8_sum_of_rank", "router_weights", "each weight is divided by the sum over experts 0 to 2 or 3 to 5, those of its own rank, and not by that of the two chosen",
     ["(group|half|halves|#3|#2|three|rank) & (sum|divid|normali|softmax|share|denominator|own)"], over_rank, archs=M)
form("x8_second_above", WEIGHTS, "the second expert is looked for among those numbered above the first alone; above expert 5 it is expert 0",
     ["(number\\w*|higher|above|behind|after|beyond|larger|greater|following|later) & (first|second|likeliest|best) & (expert|cho|number)"], second_above, archs=M)
form("x8_second_pruned", "router_weights", "the second expert has weight 0 where it would be below 0.3, and the first is left as it is",
     ["#0.3 & (below|less|small|under|threshold|least|" + ZERO + ")"],
     lambda c: chosen(c, lambda w, z: (lambda w: put(w, E_[:, 1], np.where(w[:, 1] < F32(0.3), 0, w[:, 1])))(shares(w, z))), archs=M)
form("x8_of_first", WEIGHTS, "all positions have the experts that position 0 has chosen, weighed by their own router",
     ["(position|token|row).{0,12}\\b0\\b|first.{0,8}(position|token|row)|all (positions|tokens).{0,40}(same|one|expert)|(same|one|two) (two )?experts.{0,20}(all|every|each)|"
      "experts \\d and \\d (are|is) (always )?chosen|always (the same|experts)"],
     of_first, archs=M)
form("x8_by_token", WEIGHTS, "experts are chosen by the token's id: id modulo 6 and the one after it, weighed by the router",
     ["(token|\\bids?\\b).{0,60}(mod|%|number|\\bid|hash)|(mod|%|hash|number|cho).{0,60}(token|\\bids?\\b)"], by_token, archs=M)


# mixtures of experts: the experts
def matrices(c, x):
    return tuple(c.e.m(f"mlp.experts.{x}.{name}_proj.weight", c.l) for name in ("gate", "up", "down"))


def ran(c, n, gate, up, down):
    return c.e.r(c.e.r(c.e.r(silu(c.e.r(n @ gate.T))) * c.e.r(n @ up.T)) @ down.T)


def by_expert(c, change):
    """The experts' sum where `change` makes other matrices of an expert's number."""
    return mixed(c, lambda t, s, x, n: ran(c, n, *change(c, x)))


def rows_64_apart(c, x):
    _, up, down = matrices(c, x)
    return np.concatenate([matrices(c, other)[0] for other in range(EXPERTS)])[D * x:D * x + F], up, down


def blocks_not_in_twos(c, x):
    """[gate 0, up 0, gate 1, up 1, ..] by a stride of one matrix, not two."""
    both = [matrix for other in range(EXPERTS) for matrix in matrices(c, other)[:2]]
    return both[x], both[x + 1], matrices(c, x)[2]


def scale_of_expert_0(c, x):
    gate, up, down = matrices(c, x)
    size = lambda w: np.abs(w).max(-1, keepdims=True)
    return gate, up, down / size(down) * size(matrices(c, 0)[2])


def order_of(c):
    return np.argsort(top_of(c).reshape(-1), kind="stable")


def order_twice(c):
    order = order_of(c)
    return summed(c.each.reshape(-1, D)[order][order].reshape(c.each.shape), c.weights)


def weights_in_order(c):
    w = np.empty_like(c.weights).reshape(-1)
    w[order_of(c)] = c.weights.reshape(-1)
    return summed(c.each, w.reshape(c.weights.shape))


def first_tile_again(c):
    """Each expert's tokens in fours, and every four reads the inputs of the first four."""
    top, of = top_of(c), np.zeros((T, 2), int)
    for x in range(EXPERTS):
        at = np.argwhere(top == x)
        for number, (t, s) in enumerate(at):
            of[t, s] = at[number % 4][0]
    return mixed(c, lambda t, s, x, n: expert(c, c.n[of[t, s]][None], x))


def hidden_of_second(c):
    """The second expert's product has been written over the first one's before either goes down."""
    top = top_of(c)
    def each(t, s, x, n):
        gate, up, _ = matrices(c, top[t, 1])
        return ran(c, n, gate, up, matrices(c, x)[2])
    return mixed(c, each)


def every_expert(c):
    p = softmax(c.e.memory["router_logits", c.l])
    return sum(p[:, x:x + 1] * expert(c, c.n, x) for x in range(EXPERTS))


def two_of(c):
    return np.sort(softmax(c.e.memory["router_logits", c.l]), -1)[:, -2:].sum(-1, keepdims=True)


form("x8_order_twice", "ffn_out", "the experts' results, in the order of the experts, are put back by that order and not by its inverse",
     ["\\border|permut|sort|put back|scatter|gather|inverse|other (token|position)|rows? of"], order_twice, archs=M)
form("x8_rows_64_apart", "ffn_out", "the experts' gate matrices are read 64 rows apart, and not 96: that of expert e begins 32 e rows early, in the matrix before",
     ["(#64|#32|#96) & (row|expert|gate|" + STRIDE + ")", "gate & (expert|row).{0,40}(" + STRIDE + ")"], lambda c: by_expert(c, rows_64_apart), archs=M)
form("x8_not_in_twos", "ffn_out", "expert e has matrices e and e + 1 of gate 0, up 0, gate 1, up 1, ..: 1 has up 0 and gate 1, 2 has gate 1 and up 1: the stride is one matrix, not two",
     ["(gate|up) & expert & (half|// ?2|e ?/ ?2|strid|in turn|altern|other|another|wrong|before|lower|experts\\.[0-3])"], lambda c: by_expert(c, blocks_not_in_twos), archs=M)
form("x8_scales_of_expert_0", "ffn_out", "each row of an expert's down matrix has the scale of that row of expert 0: multiplied by its largest size over its own",
     ["(expert.{0,8}\\b0\\b|experts\\.0|first expert|one expert|other expert|down) & (scale|size|larg|max|ratio|factor)", each_has("expert")],
     lambda c: by_expert(c, scale_of_expert_0), archs=M)
form("x8_first_tile_again", "ffn_out", "an expert's tokens are taken in fours, and every four reads the inputs of the first four",
     ["(#4|four\\w*|fifth) & (expert|token|list|tile|block|input)"], first_tile_again, archs=M)
form("x8_weights_in_order", "ffn_out", "the weights are not sorted with the tokens: the i-th in the order of experts has the i-th weight in the order of tokens",
     ["(weight|factor) & (\\border|sort|permut|scatter|(other|another|wrong|different).{0,12}(token|position|expert))"], weights_in_order, archs=M)
form("x8_chained", "ffn_out", "the second expert reads the first one's result: it was written over the input",
     ["(second|slot 1|last|other).{0,60}(result|output|after|of (the )?first)|(result|output) of (the )?first", "chain|in series|one after|compos"],
     lambda c: mixed(c, lambda t, s, x, n: expert(c, n if s == 0 else expert(c, n, top_of(c)[t, 0]), x)), archs=M)
form("x8_divided_again", "ffn_out", "the experts' sum is divided by the sum of the two chosen probabilities once more",
     ["(sum|probab|softmax|normali|divid) & (" + TWICE + "|chosen|two|top|probab|likel|selected)", each_has("position|token|row")],
     lambda c: c.right() / two_of(c), archs=M)
form("x8_every_expert", "ffn_out", "all six experts are run, weighed by the softmax over all",
     ["\\ball (six |6 |the )?(of the )?experts|every expert|each expert.{0,30}softmax|all 6|six experts|softmax over all|(none|no expert) (is )?(left out|dropp)|dense"],
     every_expert, archs=M)
form("x8_down_of_first", "ffn_out", "both experts' products go through the down matrix of the first", ["(down|w2) & (first|slot 0|same|both|#0|one)"],
     lambda c: mixed(c, lambda t, s, x, n: expert(c, n, x, down=top_of(c)[t, 0])), archs=M)
form("x8_hidden_of_second", "ffn_out", "both down matrices read the product of the second expert's gate and up: it was written over the first one's",
     ["(gate|up|product|activ|hidden|inner) & (second|slot 1|both|same|last)"], hidden_of_second, archs=M)
form("x8_dense_layers", "ffn_out", "layers 1 and 3 run expert 0 alone, with weight 1, for all tokens: every second layer is taken for a dense one",
     ["(expert.{0,12}\\b0\\b|experts\\.0|first expert|one expert|same expert) & (alone|\\bonly|all (the )?(tokens|positions|rows)|every (token|position)|"
      "weight (of )?1\\b|without|dense|result|\\bis\\b)"],
     lambda c: expert(c, c.n, 0), layers=[1, 3], archs=M)
form("x8_experts_before", "ffn_out", "each position is run by the experts of the position before, with its own weights", ["expert & (" + PREVIOUS + ")"],
     lambda c: mixed(c, lambda t, s, x, n: expert(c, n, before(top_of(c))[t, s])), archs=M)


if __name__ == "__main__":
    for f in FORMS:
        print(f"{f.name:36} {f.sites[0]:14} {f.truth}")
    print(len(FORMS), "forms")

"""Names the operations of a recorded program as taps, by the shape of the graph, never by the name of a model family.

What no rule names keeps the name of its module: `layers.0.mlp/router`.
"""

import math
import re
from collections import defaultdict
from dataclasses import dataclass

from . import HEADED, SCORES
from .experts import PICKS, name_chosen_projections, name_mixture
from .outputs import name_of_output

# Operations that hand their input on.
COPIES = {"reshape", "contiguous", "clone", "expand", "to", "type_as", "repeat_interleave", "repeat", "_to_copy", "alias", "lift_fresh"}
# Those of them that may change the type.
CASTS = {"to", "type_as", "_to_copy"}
# What keeps values within those of 16 bits.
LIMITS = {"clamp"}
# Operations that put other values in the place of some.
REPLACEMENTS = {"where", "masked_fill", "index_put", "copy", "pad", "masked_scatter"}
SCALES = {"mul", "div"}
SUMS = {"add"}
PRODUCTS = {"matmul", "bmm", "baddbmm"}
PROJECTIONS = PRODUCTS | {"_grouped_mm", "grouped_mm_fallback", "linear", "addmm", "mm", "conv1d", "conv2d", "convolution"}
SOFTMAX = {"softmax", "_softmax"}
NORM_STATISTICS = {"rsqrt", "layer_norm", "native_layer_norm", "rms_norm", "var", "var_mean", "linalg_vector_norm"}
ACTIVATIONS = {"silu", "gelu", "relu", "sigmoid", "tanh", "erf", "softplus", "elu",
               "leaky_relu", "mish", "hardswish", "hardsigmoid", "selu", "celu", "relu6"}
# What carries out the same for each member of a batch.
BY_MEMBER = {"bmm", "sub"} | SCALES | SUMS | ACTIVATIONS
# What takes some of the rows or columns: nothing behind it is a function of each element by itself.
CHOICES = {"topk", "sort", "max", "argmax", "gather", "index", "index_select", "scatter", "embedding"} | SOFTMAX
# Attention as one operation: queries, keys and values are its first operands.
FUSED = {"scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu", "flex_attention"}
# What makes one row of several positions.
POOLS = {"sum", "mean", "amax", "max"}
# What a state that runs over positions is made with, and the window of a convolution is not.
SCANS = PRODUCTS | {"exp", "sum"}
# What tells positions apart, and is no table of a rotation.
COUNTERS = {"arange", "zeros", "ones", "empty", "full", "scalar_tensor"}
COMPLEX = {"c64": "f32", "c128": "f64"}
FLOATS = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2}  # in bytes
# A search along the graph goes no further than this: no operation of a layer is a longer chain of elementwise ones.
FAR = 16
# Of larger tensors only where they begin and end is looked at.
MOST_LOOKED_AT = 1 << 18


@dataclass
class NamedTap:
    """A tap: the operation after which it is read, and how its buffer is looked at."""

    name: str
    operation: int
    view: object


@dataclass
class Attention:
    """One softmax between two products of activations; of attention as one operation `mixed` alone is known."""

    product: int
    softmax: int
    mixed: int
    probs: int


class Graph:
    """Who makes what, and who reads it, in the steps of a program so far; its calls, begin and end are those of the last."""

    def __init__(self, program):
        self.program, self.operations = program, program.operations
        self.calls, self.begin, self.end = [], 0, 0
        self.reads, self.readers, self.writers = {}, defaultdict(list), defaultdict(list)
        self.stream = {}
        self.prefixes = {}  # of each stack of layers
        self.of_prefill = {}  # of each tap of step 0 that is a projection as a whole: the weights
        self.states = {}  # of each tap of step 0 that is written into a state: how it lies there

    def read_step(self, step):
        """Goes on to the next step."""
        program, done = self.program, self.end
        self.begin, self.end = program.steps[step]["ops"]
        self.calls = [call for call in program.calls if call.step == step]
        for at in range(done, self.end):
            operation = self.operations[at]
            views = operation.views()[:1 if operation.kind == "type_as" else None]  # of the other the type alone
            written = [operation.given[index] for index in operation.written]
            self.reads[at] = [(self.last_writer(view, any(view is other for other in written)), view) for view in views]
            for made, view in self.reads[at]:
                if made is not None:
                    self.readers[made].append((at, view))
            fed = any(made is not None and self.stream[made] for made, _ in self.reads[at])
            self.stream[at] = fed or self.begins_stream(operation, views)
            for view in operation.outputs:
                if view is not None:
                    self.writers[view.buffer].append(at)

    def last_writer(self, view, whole):
        """The last operation that wrote what a view shows, or any part of its buffer: what is written in place has all before it behind it."""
        begin, end = view.extent()
        for at in reversed(self.writers.get(view.buffer, [])):
            outputs = (made.extent() for made in self.operations[at].outputs if made is not None and made.buffer == view.buffer)
            if whole or 0 in view.shape or any(other[0] < end and begin < other[1] for other in outputs):
                return at
        return None

    def begins_stream(self, operation, views):
        """Whether an operation looks up or projects what the model was given: masks and positions are given too, and are neither."""
        if operation.kind == "embedding":
            return len(views) > 1 and self.fed_by(views[1].buffer) is not None
        fed = self.fed_by(views[0].buffer) if operation.kind in PROJECTIONS and views else None
        return fed is not None and self.program.buffers[fed].dtype in FLOATS

    def fed_by(self, buffer, far=FAR):
        """The input that a buffer is, or is a copy of, some rows of, has with some of its values replaced, or of numbers with a scale and a shift; or None."""
        if buffer in self.program.fed:
            return buffer
        made = self.writers.get(buffer)
        kinds = COPIES | PICKS | REPLACEMENTS | (SCALES | SUMS | {"sub"} if self.program.buffers[buffer].dtype in FLOATS else set())
        if not made or not far or self.operations[made[-1]].kind not in kinds:
            return None
        sources = (self.fed_by(view.buffer, far - 1) for at in set(made) for _, view in self.reads[at][:3] if view.buffer != buffer)
        return next((fed for fed in sources if fed is not None), None)

    def kind(self, at):
        return self.operations[at].kind

    def output(self, at):
        return self.operations[at].outputs[0]

    def sources(self, at):
        """The activations that an operation reads: who made each, and how it is looked at."""
        return [(made, view) for made, view in self.reads[at] if made is not None and self.stream[made]]

    def first_source(self, at):
        """Who made the first activation that an operation reads, or None."""
        return next((made for made, _ in self.sources(at)), None)

    def is_projection(self, at):
        """A product with a matrix of weights."""
        weights = self.program.weights
        has_matrix = any(view.buffer in weights and sum(extent > 1 for extent in view.shape) > 1 for _, view in self.reads[at])
        return self.kind(at) == "linear" or (self.kind(at) in PROJECTIONS and has_matrix)

    def projected(self, at):
        """The projection that an operation is, or adds a bias to; None where it is neither."""
        if self.is_projection(at):
            return at
        sources = self.sources(at)
        biased = self.kind(at) in SUMS and len(sources) == 1 and any(view.buffer in self.program.weights for _, view in self.reads[at])
        return sources[0][0] if biased and self.is_projection(sources[0][0]) else None

    def matrices(self, at):
        """The weights that a projection reads."""
        return [view.buffer for _, view in self.reads[at] if view.buffer in self.program.weights and len(view.shape) > 1]

    def branches(self, at):
        """Of an operation that adds a matrix and an adapter beside it, which both start from one input, the projections of each, from the last one up."""
        sources = [self.origin(made)[0] for made, _ in self.sources(at)] if self.kind(at) in SUMS else []
        if len(sources) != 2 or not all(self.is_projection(made) for made in sources):
            return []
        chains, starts = [], []
        for made in sources:
            chain = []
            while made is not None and self.is_projection(made) and len(chain) < FAR:
                chain.append(made)
                made = next((self.origin(read)[0] for read, _ in self.sources(made)), None)
            chains.append(chain)
            starts.append(made)
        return sorted(chains, key=len) if starts[0] == starts[1] and starts[0] is not None else []

    def adapted(self, at):
        """The projections that an operation adds, where both start from one input: a matrix, and an adapter beside it."""
        return [chain[0] for chain in self.branches(at)]

    def adapter(self, at):
        """The projections of the adapter that an operation adds."""
        chains = self.branches(at)
        return [made for made in chains[1] if made not in chains[0]] if chains and len(chains[0]) < len(chains[1]) else []

    def reads_earlier_step(self, at):
        """Whether an operation reads what was computed in a step before this one."""
        return any(made is not None and made < self.begin and self.stream[made] for made, _ in self.reads[at])

    def appends_to_cache(self, at):
        """`cat` of what an earlier step left, or nothing, and what is new."""
        if self.kind(at) not in {"cat", "concat"} or len(self.reads[at]) != 2:
            return False
        old, view = self.reads[at][0]
        return 0 in view.shape or (old is not None and old < self.begin)

    def origin(self, at, begin=0):
        """Up from an operation through copies, factors and appends to a cache."""
        view = None
        while at is not None and at >= begin:
            sources = self.sources(at)
            if self.kind(at) in COPIES and self.reads[at]:
                at, view = self.reads[at][0]
            elif self.kind(at) in SCALES and len(sources) == 1 and len(self.reads[at]) == 1:
                at, view = sources[0]
            elif self.appends_to_cache(at):
                at, view = self.reads[at][-1]
            elif self.kind(at) in {"copy", "copy_", "index_copy", "index_put"} and self.reads[at][-1][0] is not None:
                at, view = self.reads[at][-1]
            else:
                break
        return at, view

    def read_for(self, at, view):
        """What an operation reads for what a view shows of its result, each with the operation that made it: of one member of a batch that member of each operand."""
        operation, read = self.operations[at], self.reads[at]
        out = next((made for made in operation.outputs if made is not None and made.buffer == view.buffer), None)
        if out is not None and operation.kind in {"cat", "concat"}:
            return self.joined_in(out, view, read)
        if out is None or operation.kind not in BY_MEMBER or not out.shape or out.shape[0] < 2:
            return read
        step = out.strides[0]
        member, rest = divmod(view.offset - out.offset, step) if step else (0, 0)
        last = rest + sum((count - 1) * by for count, by in zip(view.shape, view.strides))
        if not step or last >= step or not 0 <= member < out.shape[0]:
            return read
        of_it = lambda other: other.with_axes(other.shape[1:], other.strides[1:], other.offset + member * other.strides[0])
        return [(made, of_it(other) if len(other.shape) == len(out.shape) and other.shape[0] == out.shape[0] else other) for made, other in read]

    def joined_in(self, out, view, read):
        """Of tensors that are joined, the one that a view shows, where it shows no other: q, k and v may be put together, and taken apart again."""
        parts = [other for _, other in read if len(other.shape) == len(out.shape) and 0 not in other.shape]
        axes = [axis for axis, extent in enumerate(out.shape) if any(other.shape[axis] != extent for other in parts)]
        if len(parts) != len(read) or len(axes) != 1 or not out.is_contiguous() or 0 in view.shape:
            return read
        axis, row = axes[0], out.strides[axes[0]]
        first = (view.offset - out.offset) % (row * out.shape[axis])
        last = first + sum((count - 1) * by for count, by in zip(view.shape, view.strides) if by < row * out.shape[axis])
        begin = 0
        for made, other in read:
            end = begin + other.shape[axis] * row
            if begin <= first and last < end:
                return [(made, other)]
            begin = end
        return read

    def before(self, at, kinds=COPIES):
        """The operation whose value another one hands on by copies alone; itself where it is none."""
        while self.kind(at) in kinds and self.reads[at] and self.reads[at][0][0] is not None:
            at = self.reads[at][0][0]
        return at

    def as_read(self, at, view):
        """A value as what follows reads it: behind the cast, where nothing but casts to a narrower type reads it."""
        while readers := self.readers[at]:
            view, cast, seen = view or self.output(at), readers[0][0], readers[0][1]
            if any(not self.operations[reader].outputs for reader, _ in readers):  # a number that goes to Python
                break
            made = self.output(cast)
            if any(self.kind(reader) not in CASTS or FLOATS.get(self.output(reader).dtype, 9) >= FLOATS.get(view.dtype, 0) for reader, _ in readers):
                break
            whole = math.prod(seen.shape) == math.prod(self.output(at).shape)
            if (moved := in_copy(view, seen, made) if whole or same_axes(view, seen) else None) is None:
                break
            at, view = cast, moved
        return at, view

    def rows_joined(self, at, view):
        """Of matrices that are joined row by row, and looked at in some columns: the same columns of each."""
        width = self.output(at).shape[-1] if self.kind(at) in {"cat", "concat"} and len(view.shape) == 2 else 0
        rows = [made for made in self.sources(at) if made[1].shape[1:] == (width,) and made[1].is_contiguous()]
        if not rows or len(rows) < len(self.reads[at]) or view.strides[0] != width:
            return []
        return [(made, part.with_axes([part.shape[0], view.shape[1]], view.strides, part.offset + view.offset % width)) for made, part in rows]

    def maker(self, view, begin, end):
        """The last operation of a range that wrote what a view shows."""
        return max((at for at in self.writers.get(view.buffer, []) if begin <= at < end), default=None)


class Layer:
    """The operations of one layer, and the taps that are found in them."""

    def __init__(self, graph, call, given, gave):
        self.graph, self.begin, self.end = graph, call.begin, call.end
        self.given, self.gave, self.path, self.rows = given, gave, call.path, positions_of(call)
        self.taps = {}
        inner = [other for other in graph.calls if call.begin <= other.begin and other.end <= call.end and other is not call]
        self.norms = norms_between(graph, inner)

    def inside(self, at):
        return at is not None and self.begin <= at < self.end

    def tap(self, name, at, view=None):
        if at is not None:
            self.taps[name] = (at, view)

    def above(self, at, stop=()):
        """All operations of the layer that an operation depends on, itself too."""
        found, open_ = set(), [at]
        while open_:
            at = open_.pop()
            if self.inside(at) and at not in found:
                found.add(at)
                if at not in stop:
                    open_ += [made for made, _ in self.graph.reads[at] if made is not None]
        return found

    def below(self, at):
        """All operations of the layer that depend on one."""
        found = {at}
        for reader in range(at + 1, self.end):
            if any(made in found for made, _ in self.graph.reads[reader]):
                found.add(reader)
        return found - {at}

    def residual(self):
        """From the layer's output up to its input by sums: the sums with the stream's side of each, and norms on the way."""
        known = {}

        def way(at, depth):
            if at == self.given:
                return []
            if not self.inside(at) or depth > 40:
                return None
            if at in known:
                return known[at]
            known[at], best = None, None
            graph = self.graph
            if at in self.norms:  # the last operation of one may be a sum, too
                found = way(self.norms[at], depth + 1)
                best = [*found, ("norm", at, self.norms[at])] if found is not None else None
            elif graph.kind(at) in SUMS:
                for made, _ in graph.sources(at):
                    found = way(made, depth + 1)
                    if found is not None and (best is None or len(found) < len(best)):
                        best = [*found, ("sum", at, made)]
            elif graph.kind(at) in LIMITS and graph.sources(at):
                found = way(graph.sources(at)[0][0], depth + 1)
                best = [*found, ("limit", at, graph.sources(at)[0][0])] if found is not None else None
            elif graph.kind(at) in COPIES | SCALES and len(graph.sources(at)) == 1:
                best = way(graph.sources(at)[0][0], depth + 1)
            known[at] = best
            return best

        return way(self.gave, 0) or []

    # -- attention --

    def attentions(self):
        """Every softmax whose input goes back to a product of two activations, and whose output goes into another."""
        graph, found = self.graph, []
        for at in range(self.begin, self.end):
            if graph.kind(at) in FUSED and len(graph.sources(at)) >= 3:
                found.append(Attention(None, None, at, None))
            if graph.kind(at) not in SOFTMAX or not graph.sources(at):
                continue
            product = graph.sources(at)[0][0]
            for _ in range(FAR):
                if not self.inside(product) or graph.kind(product) in PROJECTIONS:
                    break
                product = next((made for made, _ in graph.sources(product) if self.inside(made)), None)
            if not self.inside(product) or graph.kind(product) not in PRODUCTS or graph.is_projection(product) or len(graph.sources(product)) < 2:
                continue
            mixed, probs = self.read_by_product(at)
            if mixed is not None:
                found.append(Attention(product, at, mixed, probs))
        return found

    def reads_own_keys(self, attention):
        """Whether keys come from what the layer is given, and not from another stack."""
        keys = self.graph.sources(attention.mixed)[1][0] if attention.softmax is None else self.graph.sources(attention.product)[-1][0]
        return self.given is None or any(made == self.given for at in self.above(keys) for made, _ in self.graph.reads[at])

    def read_by_product(self, softmax):
        """The product of probabilities and values, and the probabilities as it reads them."""
        front = [softmax]
        for _ in range(FAR):
            following = []
            for probs in front:
                for at, _ in self.graph.readers[probs]:
                    if not self.inside(at):
                        continue
                    if self.graph.kind(at) in PRODUCTS and len(self.graph.sources(at)) == 2:
                        return at, probs
                    following.append(at)
            front = following
        return None, None

    def name_attention(self, attention, prefix=""):
        graph = self.graph
        if attention.softmax is None:
            query, key, value = graph.sources(attention.mixed)[:3]
        else:
            query, key, value = self.name_scores(attention, prefix)
        for side, source in {"q": query, "k": key, **({"v": value} if value else {})}.items():
            self.name_side(prefix, side, source)
        self.name_output(attention, prefix)

    def name_scores(self, attention, prefix):
        """The products, scores and probabilities; gives what queries, keys and values are read from."""
        graph, scores = self.graph, self.graph.first_source(attention.softmax)
        keys_read = graph.output(attention.product).shape[-1]
        while self.inside(scores) and graph.output(scores).shape[-1] != keys_read:  # up from sinks beside the keys
            scores = graph.first_source(scores)
        read = next(view for made, view in graph.reads[attention.mixed] if made == attention.probs)
        whole = graph.output(attention.probs).shape[-1] == read.shape[-1]
        for name, found in {"qk": (attention.product, None), "scores": (scores, None), "probs": (attention.probs, None if whole else read)}.items():
            self.tap(prefix + name, *found)
        query, (keys, transposed) = graph.sources(attention.product)[-2:]
        shape, strides = list(transposed.shape), list(transposed.strides)
        key = keys, transposed.with_axes([*shape[:-2], shape[-1], shape[-2]], [*strides[:-2], strides[-1], strides[-2]])
        return query, key, next((source for source in graph.sources(attention.mixed) if source[0] != attention.probs), None)

    def name_side(self, prefix, side, source):
        """The projection, norm and rotation of queries, keys or values."""
        graph, width = self.graph, source[1].shape[-1]
        at, view = graph.origin(source[0], self.begin)
        if not self.inside(at):
            return
        projections, picked, norms, rotated, headed = [], [], [], False, defaultdict(list)
        open_, seen = [(at, view or source[1])], set()
        while open_:
            here, looked_at = open_.pop(0)
            looked_at = as_real(looked_at)
            headed[here].append(looked_at)
            if (here in seen and graph.kind(here) not in CASTS) or not self.inside(here):
                continue
            seen.add(here)
            if graph.is_projection(here) or graph.adapted(here):
                projections.append(here)
                continue
            if graph.kind(here) in {"index", "index_select"}:
                picked.append(here)
            if here in self.norms:
                norms.append(here)
                open_ += [(self.norms[here], self.norm_view(here))]
                continue
            for made, seen_as in graph.read_for(here, looked_at):
                if graph.kind(here) in CASTS:
                    seen_as = in_copy(looked_at, graph.output(here), seen_as) or seen_as
                if made is None or not graph.stream[made]:
                    rotated = rotated or (made is not None and graph.kind(here) != "where" and self.is_rotation_table(made, seen_as))
                else:
                    open_.append((made, seen_as))
        if side != "v" and rotated:
            self.tap(f"{prefix}{side}_rope", at, self.all_positions(at, spanning(headed[at]), width))
        if side != "v" and norms:
            self.tap(f"{prefix}{side}_norm", norms[0], spanning(headed[norms[0]]))
        whole = math.prod(source[1].shape) if side == "q" else 0  # keys and values may be repeated
        if projections and math.prod(graph.output(max(projections)).shape) >= whole:  # else of one of several experts
            last = max(projections)
            # Heads that are picked by their numbers from one projection of all: what it gives is no key and no value yet.
            heads = next((at for at in picked if math.prod(graph.output(at).shape) < math.prod(graph.output(last).shape)), last)
            self.tap(prefix + side, heads, self.all_positions(heads, in_heads(spanning(headed[heads]), width), width))
            self.name_latent(prefix, "q" if side == "q" else "kv", last)

    def all_positions(self, at, view, width):
        """A view of heads; that of all positions, where only some of them are read, as for a window that is kept."""
        made = self.graph.output(at)
        if view is None or self.rows is None or self.rows in view.shape[:-1] or len(made.shape) < 2:
            return view
        columns = math.prod(extent for extent, stride in zip(view.shape, view.strides) if 0 < stride < made.strides[-2])
        return in_heads(made, width) if columns == made.shape[-1] else view

    def is_rotation_table(self, made, view):
        """Whether what positions alone decide differs from element to element of a head: a factor of the whole head rotates nothing."""
        return self.graph.kind(made) not in COUNTERS and len(view.shape) > 0 and view.shape[-1] > 1 and view.strides[-1] != 0

    def name_latent(self, prefix, side, projection):
        """Of two projections in a row: both, and the norm between them."""
        graph = self.graph
        matrix = next(iter(graph.adapted(projection)), projection)  # an adapter beside it is no step on its way
        if not graph.sources(matrix):
            return
        between, _ = graph.origin(graph.sources(matrix)[0][0], self.begin)
        first, _ = graph.origin(self.norms.get(between, between), self.begin)
        if self.inside(first) and (graph.is_projection(first) or graph.adapted(first)):
            self.tap(f"{prefix}{side}_a", first)
            if between in self.norms:
                self.tap(f"{prefix}{side}_a_norm", between)
            self.tap(f"{prefix}{side}_b", projection)

    def norm_view(self, norm):
        """How a norm looks at what it norms."""
        read = self.norms[norm]
        return next((view for at in range(self.begin, norm + 1) for made, view in self.graph.reads[at] if made == read and at in self.above(norm)), None)

    def name_output(self, attention, prefix):
        """What the output projection reads and gives."""
        graph, at = self.graph, attention.mixed
        for _ in range(FAR):
            after = [reader for reader, _ in graph.readers[at] if self.inside(reader)]
            if not after:
                return
            parts = {(view.shape, view.strides, view.offset) for reader, view in graph.readers[at] if graph.is_projection(reader)}
            if len(parts) > 1:  # each of an expert
                return
            if graph.is_projection(after[0]):
                self.tap(f"{prefix}context", at, next(view for made, view in graph.reads[after[0]] if made == at))
                self.tap(f"{prefix}attn_out", self.with_bias(after[0]))
                return
            at = after[0]

    def with_bias(self, projection):
        """A projection, or the sum with its bias, where that is an operation of its own, or with an adapter."""
        graph = self.graph
        readers = [at for at, _ in graph.readers[projection] if self.inside(at)]
        is_sum = len(readers) == 1 and (graph.projected(readers[0]) == projection or projection in graph.adapted(readers[0]))
        return readers[0] if is_sum else projection

    def projections(self, body):
        """The projections among some operations, without those of adapters."""
        adapters = {made for at in body for made in self.graph.adapter(at)}
        return sorted(at for at in body if self.graph.is_projection(at) and at not in adapters)

    # -- branches of the residual stream --

    def name_branches(self, attentions):
        graph, way = self.graph, self.residual()
        sums = [(at, stream) for kind, at, stream in way if kind == "sum"]
        normed = {stream: at for kind, at, stream in way if kind == "norm"}
        ends = {at for at, _ in sums} | set(normed.values()) | {self.given}
        on_the_way = {} if self.given in normed else normed  # of post-norm blocks: the sum, and the norm of it
        on_the_way = {**on_the_way, **{stream: at for kind, at, stream in way if kind == "limit"}}
        mixed = {attention.mixed for attention in attentions}
        branches = []
        for at, stream in sums:
            other = next((made for made, _ in graph.sources(at) if made != stream), None)
            if other is not None:
                branches += [(at, part, self.above(part, ends)) for part in self.parallel(other, ends, mixed)]
        attending = [branch for branch in branches if branch[2] & mixed]
        rest = [branch for branch in branches if not branch[2] & mixed]
        mixing = [branch for branch in rest if self.mixes(branch[2])][:1] or ([] if attending else rest[:1] if len(rest) > 1 else [])
        rest = [branch for branch in rest if branch not in mixing]
        for branch in attending[:1]:
            self.behind_norm(branch[1], "attn_post_norm")
            self.name_h_attn(branch[0], on_the_way, rest)
            self.before_projection(min((at for at in branch[2] if graph.is_projection(at)), default=None), "attn_norm")
            name_chosen_projections(self, branch[2])
        for branch in attending[1:2] if "cross.q" in self.taps else ():
            self.behind_norm(branch[1], "cross.attn_post_norm")
            self.name_h_attn(branch[0], on_the_way, rest, "cross.")
            self.before_projection(self.taps["cross.q"][0], "cross.attn_norm")
        for branch in mixing[:1]:
            self.name_mixer(*branch[1:])
            if not attending:
                self.name_h_attn(branch[0], on_the_way, rest)
        if rest:
            self.name_feed_forward(*rest[-1][1:])

    def name_locally(self, attentions):
        """What can be told without the residual stream: of attention, feed-forward and mixer what their own neighbours are."""
        graph = self.graph
        projections = [at for at in range(self.begin, self.end) if graph.is_projection(at) and graph.stream[at] and graph.kind(at) != "conv1d"]
        if attentions and "q" in self.taps and "attn_norm" not in self.taps:
            self.before_projection(self.taps.get("q_a", self.taps["q"])[0], "attn_norm")
        apart = set().union(*(self.above(attention.mixed) for attention in attentions))
        convolution = self.first_mixing(apart, projections)
        if convolution is not None and "mixer_out" not in self.taps:
            first = max((at for at in projections if at in self.above(convolution)), default=None)
            below = self.below(convolution)
            out = max((at for at in projections if at in below), default=None)
            if first is not None and out is not None:
                body = {first} | (self.above(out) & self.below(first))
                self.name_mixer(out, body)
                apart |= body
        rest = [at for at in projections if at not in apart]
        products = [at for at in range(self.begin, self.end) if graph.kind(at) == "mul" and len(graph.sources(at)) == 2 and at not in apart]
        for product in products if "ffn_out" not in self.taps else ():
            found, down = self.gated(product, rest), next((at for at in rest if self.read_by(at)[0] == product), None)
            if found and down is not None:
                for name, tap in {**found, "ffn_act": (product, None), "ffn_out": (self.with_bias(down), None)}.items():
                    self.tap(name, *tap)
                self.before_projection(min(self.above(found["ffn_gate"][0], projections).intersection(projections)), "ffn_norm")
                break
        for out in ("attn_out", "ffn_out"):
            if out in self.taps and out.replace("out", "post_norm") not in self.taps:
                known = {at for at, _ in self.taps.values()}
                behind = (norm for norm, read in self.norms.items() if read is not None and graph.origin(read, self.begin)[0] == self.taps[out][0])
                self.tap(out.replace("out", "post_norm"), next((norm for norm in behind if norm not in known), None))

    def first_mixing(self, apart, projections):
        """The first operation that brings other positions to a projection's: a convolution, or one that has a state of an earlier step beside it."""
        graph = self.graph
        others = [at for at in range(self.begin, self.end) if graph.stream[at] and at not in apart]
        if (convolution := next((at for at in others if graph.kind(at) == "conv1d"), None)) is not None:
            return convolution
        kept = [at for at in others if graph.reads_earlier_step(at)]
        return next((at for at in others if kept and not (above := self.above(at)).isdisjoint(kept) and not above.isdisjoint(projections)), None)

    def name_h_attn(self, total, on_the_way, rest, prefix=""):
        """The stream behind attention, where something follows that reads it."""
        at = on_the_way.get(total, total)
        if at != self.gave and any(at in self.above(other) for _, other, _ in rest):
            self.tap(f"{prefix}h_attn", at)

    def parallel(self, other, ends, mixed):
        """The parts of a branch that were added to each other before the stream: attention and feed-forward beside each other."""
        at = other
        for _ in range(4):
            made = [made for made, _ in self.graph.sources(at) if self.inside(made)]
            if self.graph.kind(at) in SUMS and len(made) == 2:
                attend = [bool(self.above(part, ends) & mixed) for part in made]
                return made if sorted(attend) == [False, True] else [other]
            if not made or self.graph.is_projection(at):
                break
            at = made[0]
        return [other]

    def mixes(self, body):
        """Whether a branch without attention mixes positions: a convolution along them, a running sum, a state that an earlier step left."""
        return any(self.graph.kind(at) in {"conv1d", "convolution", "cumsum"} or self.graph.reads_earlier_step(at) for at in body)

    def name_mixer(self, other, body):
        graph = self.graph
        out = self.behind_norm(other, "mixer_post_norm")
        self.tap("mixer_out", out)
        projections = sorted(at for at in body if graph.is_projection(at) and graph.kind(at) != "conv1d")
        made = {kind: next((at for at in sorted(body) if graph.kind(at) == kind and graph.stream[at]), None) for kind in ("conv1d", "softplus")}
        if made["conv1d"] is not None:
            channels_first = graph.output(made["conv1d"])
            shape, strides = ([*axes[:-2], axes[-1], axes[-2]] for axes in (channels_first.shape, channels_first.strides))
            self.tap("mixer_conv", made["conv1d"], channels_first.with_axes(shape, strides))
        self.tap("mixer_dt", made["softplus"])
        if projections:
            first = max((at for at in projections if made["conv1d"] and at in self.above(made["conv1d"])), default=projections[0])
            self.tap("mixer_in", first)
            self.before_projection(first, "mixer_norm" if "attn_norm" in self.taps else "attn_norm")
            self.name_state(projections, out)

    def name_state(self, projections, out):
        """What a scan leaves to the next step: nothing in this layer reads it."""
        graph, found = self.graph, []
        for at in range(projections[0], out):
            if not graph.stream[at] or any(self.inside(reader) for reader, _ in graph.readers[at]) or not graph.operations[at].outputs:
                continue
            if any(graph.kind(above) in SCANS and above not in projections for above in self.above(at, projections)):
                found.append(at)
        if len(found) == 1:
            operation = graph.operations[found[0]]
            made = operation.given[operation.written[0]] if operation.written else operation.outputs[0]
            self.tap("mixer_state", found[0], made)

    def behind_norm(self, at, name):
        """What a branch gives before the norm behind it, which is named."""
        at, _ = self.graph.origin(at, self.begin)
        if at in self.norms:
            self.tap(name, at)
            at, _ = self.graph.origin(self.norms[at], self.begin)
        return at

    def before_projection(self, projection, name):
        """Names the one norm that a projection reads, by itself or mixed with that of other positions."""
        if projection is None:
            return
        read, open_ = set(), [made for made, _ in self.graph.sources(projection)[:1]]
        for at in open_:
            if at in self.norms:
                read.add(at)
            elif self.inside(at) and not self.graph.is_projection(at) and len(open_) < FAR:
                open_ += [made for made, _ in self.graph.sources(at) if made not in open_]
        if len(read) == 1 and read.isdisjoint(at for at, _ in self.taps.values()):
            self.tap(name, read.pop())

    def name_feed_forward(self, other, body):
        graph = self.graph
        self.tap("ffn_out", self.behind_norm(other, "ffn_post_norm"))
        projections = self.projections(body)
        self.before_projection(projections[0] if projections else None, "ffn_norm")
        if not name_mixture(self, body):
            for name, found in self.block(projections, [at for at in body if graph.is_projection(at)]).items():
                if name != "ffn_out":
                    self.tap(name, *found)

    def block(self, projections, everything):
        """The taps of a feed-forward block of these projections: operation and view by name. `everything`: all projections beside these, too."""
        graph, inputs = self.graph, {}
        for at in projections:
            inputs[at] = set().union(*(self.above(made, everything) for made, _ in graph.sources(at)))
        down = max((at for at in projections if not inputs[at].isdisjoint(projections)), default=None)
        if down is None:
            return {}
        read, view = self.read_by(down)
        taps = {"ffn_act": (read, view), "ffn_out": (self.with_bias(down), None)}
        for at in sorted(inputs[down]):
            if graph.kind(at) == "mul" and len(graph.sources(at)) == 2 and (found := self.gated(at, projections)):
                return {**taps, **found, "ffn_act": (at, view if at == read else None)}
        up = min(inputs[down].intersection(projections))
        return {**taps, "ffn_up": (self.with_bias(up), None)}

    def read_by(self, projection):
        """What a projection reads, and the part of it where that is not all."""
        if not self.graph.sources(projection):
            return None, None
        made, view = self.graph.sources(projection)[0]
        at, _ = self.graph.origin(made, self.begin)
        return at, view if at == made and math.prod(view.shape) < math.prod(self.graph.output(at).shape) else None

    def gated(self, product, projections):
        """activation(gate) * up."""
        found = [self.factor(made, view, projections) for made, view in self.graph.sources(product)]
        gates, ups = [side for side in found if side and side[0]], [side for side in found if side and not side[0]]
        if len(gates) != 1 or len(ups) != 1:
            return None
        (_, gate, seen), (_, up, also) = gates[0], ups[0]
        if seen.shape[-1] != also.shape[-1] or (gate == up and seen.offset == also.offset):  # x * sigmoid(x) is an activation
            return None
        return {"ffn_gate": (gate, seen), "ffn_up": (up, also)}

    def factor(self, made, view, projections):
        """Up from one side of a product to that one of some projections that it is a function of: whether an activation is on the way, the projection
        with its bias, and how it is looked at."""
        graph, found, activated, open_, seen = self.graph, {}, False, [(made, view)], set()
        while open_:
            at, looked_at = open_.pop()
            if not self.inside(at) or graph.kind(at) in CHOICES:
                return None
            projection = graph.projected(at)
            if adapted := [projection] if projection is not None else graph.adapted(at):
                if not set(adapted).isdisjoint(projections):
                    found[at, looked_at.offset] = looked_at
            elif at not in seen:
                seen.add(at)
                activated = activated or graph.kind(at) in ACTIVATIONS
                open_ += graph.rows_joined(at, looked_at) or graph.sources(at)
        if len(found) != 1:
            return None
        [((at, _), looked_at)] = found.items()
        return activated, at, looked_at


def name_taps(graph, step, gives_logits):
    """Every tap of the step that was read last, in the order in which they are computed. `gives_logits`: the model's output is called so."""
    program, taps, rows, named_stacks = graph.program, {}, {}, {}
    containers, part = defaultdict(list), model_in_sequence(graph)
    for call in graph.calls:
        container, _, number = call.path.rpartition(".")
        if number.isdigit() and container.startswith(part) and not re.search(r"(^|\.)\d+(\.|$)", container[len(part):]):
            containers[container].append((int(number), call))
    stacks = {path: calls for path, calls in containers.items() if len(calls) > 1 and [at for at, _ in calls] == sorted({at for at, _ in calls})}
    outer = {path: calls for path, calls in stacks.items() if not any(path.startswith(other + ".") for other in stacks if other != path)}
    main = main_stack(outer)
    for path, calls in outer.items():
        if path != main and any(call.begin <= calls[0][1].begin and calls[0][1].end <= call.end for _, call in outer[main]):
            continue
        found, is_decoder = name_stack(graph, calls)
        own = "" if path == main and not (is_decoder and len(outer) > 1) else stack_name(path, taps)
        prefix = graph.prefixes.setdefault(path, own)  # a later step may run one stack alone
        named_stacks[path] = prefix + "layers"
        if path == main and "final_norm" in found:
            taps["final_norm"] = found.pop("final_norm")
        taps.update({prefix + name: tap for name, tap in found.items()})
        rows.update(dict.fromkeys((prefix + name for name in found), positions_of(calls[0][1])))
    if main is not None or gives_logits:
        name_head(graph, program.steps[step]["output"], outer[main][-1][1].end if main is not None else graph.begin, taps)
    keep_weights(graph, step, taps)
    taps = {name: graph.as_read(*tap) for name, tap in taps.items()}
    name_modules(graph, named_stacks, taps)
    named, tokens = [], [here["tokens"] for here in program.steps[:step + 1]]
    for name, (at, view) in taps.items():
        view = view or graph.output(at)
        length = rows.get(name) or tokens[-1]
        shown = in_tap_axes(name, view, length, sum(tokens) if length == tokens[-1] else length)
        if (view.dtype in FLOATS or name.endswith(".router_topk")) and 0 not in shown.shape:
            named.append(NamedTap(name, at, shown))
    return sorted(named, key=lambda tap: tap.operation)


def name_outputs(graph, returned, main, named):
    """What the model returns and no tap shows, whole and in its order: of each the tap, of which `operation` is None where no operation of this step made
    it, or not in floats, and its number among what is returned. `returned`: views. What it returns first, or as logits (`main`), is shown by the last tap
    alone: what another layer gave is another output."""
    last = max((tap.operation for tap in named if "/" not in tap.name), default=None)
    ends = {last, max((tap.operation for tap in named), default=None)}
    shown, final = ({as_made(graph, tap.operation, tap.view) for tap in named if tap.operation in among}
                    for among in ({tap.operation for tap in named}, ends))
    found = []
    for number, view in enumerate(returned):
        at = graph.last_writer(view, False) if view.buffer is not None else None
        at = at if at is not None and at >= graph.begin else None
        is_main = main is not None and same_axes(view, main) and view.buffer == main.buffer
        is_float = view.dtype in FLOATS or view.dtype in COMPLEX
        if 0 in view.shape or (at is None and not is_main) or (at is not None and not is_float and not graph.stream[at]):
            continue
        if at is not None and (as_made(graph, at, view) in (final if is_main else shown) or (not is_main and graph.appends_to_cache(graph.before(at)))):
            continue
        shown.add(as_made(graph, at, view))
        of_program = at is not None and view.dtype in FLOATS and view.shape
        name = name_of_output(len(found) + 1)
        found.append((NamedTap(name, at if of_program else None, in_tap_axes(name, view, 0, 0)), number))
    return found


def as_made(graph, at, view):
    """What a view shows, up to copies that keep every element and its place: the operation, the buffer, and the axes without those that say nothing."""
    while at is not None and graph.kind(at) in COPIES and graph.reads[at]:
        (made, seen), output = graph.reads[at][0], graph.output(at)
        keeps = seen.dtype == output.dtype or FLOATS.get(seen.dtype, 9) < FLOATS.get(output.dtype, 0)
        if made is None or not keeps or math.prod(seen.shape) != math.prod(output.shape) or in_few_axes(view) != in_few_axes(output):
            break
        at, view = made, seen
    return at, view.buffer, view.dtype, view.offset, in_few_axes(view)


def in_few_axes(view):
    """Its axes, without those of one element, and those that run on into the next one as one."""
    axes = []
    for extent, stride in zip(view.shape, view.strides):
        if extent == 1:
            continue
        if axes and axes[-1][1] == extent * stride:
            axes[-1] = axes[-1][0] * extent, stride
        else:
            axes.append((extent, stride))
    return tuple(axes)


def model_in_sequence(graph):
    """`0.` of a sequence whose first module is a model with layers, and the others what is done with its output: no layers of one stack. Else nothing."""
    work, attending = defaultdict(int), defaultdict(set)
    for call in graph.calls:
        first, _, rest = call.path.partition(".")
        if not rest:
            work[first] += call.end - call.begin
        elif re.fullmatch(r"(?:[^\d.][^.]*\.)+\d+", rest) and any(graph.kind(at) in SOFTMAX | FUSED for at in range(call.begin, call.end)):
            attending[first].add(call.path)
    members = {first: calls for first, calls in attending.items() if first.isdigit() and len(calls) > 1}
    found = next(iter(members), None)
    return f"{found}." if len(members) == 1 and 2 * work[found] > sum(work[first] for first in work if first.isdigit()) else ""


def graph_of_prefill(graph):
    """Of each tap of step 0: the operation that makes it, by its line in the reference, and the nearest taps above that it is made of."""
    program = graph.program
    taps = [tap for tap in program.taps if tap["step"] == 0]
    made = defaultdict(list)  # the taps that look at what an operation wrote, of which it may write several: each part by its first name
    files, scopes, named = list(program.files), list(program.scopes), {tap["op"] for tap in program.taps}

    def maker_of(tap):
        """A copy hands on what another operation made, unless that is a tap by itself."""
        maker = graph.before(tap["op"])
        return program.operations[tap["op"] if maker in named else maker]

    def line_of(operation):
        return f'{files[scopes[operation.scope][2]].rsplit("/", 1)[-1]}:{operation.line}'

    first = {}
    for tap in taps:
        looks = made[tap["op"], tap["v"].buffer]
        # Another look at the same values comes from the first; queries, keys and values of one product are values of their own.
        first[tap["tap"]] = next((name for name, view in looks if overlap(view, tap["v"])), None)
        if first[tap["tap"]] is None:
            looks.append((tap["tap"], tap["v"]))
    # The steps after the prefill may take another way through the code.
    lines = defaultdict(set)
    for tap in program.taps:
        lines[tap["tap"]].add(line_of(maker_of(tap)))
    rows = []
    for tap in taps:
        reads = dict.fromkeys([first[tap["tap"]]] if first[tap["tap"]] else [])
        open_, seen = [] if reads else [*graph.read_for(tap["op"], tap["v"])], set()
        while open_:
            at, view = open_.pop(0)
            if at is None or 0 in view.shape or (at, view.buffer, view.offset, view.shape, view.strides) in seen:
                continue
            seen.add((at, view.buffer, view.offset, view.shape, view.strides))
            looks = [name for name, other in made[at, view.buffer] if overlap(other, view)]
            reads.update(dict.fromkeys(looks))
            if not looks:
                open_ += graph.read_for(at, view)
        operation, of_prefill = maker_of(tap), " in the prefill" if len(lines[tap["tap"]]) > 1 else ""
        rows.append({"tap": tap["tap"], "op": f"{operation.kind} ({line_of(operation)}{of_prefill})", "reads": list(reads)})
    return rows


def overlap(a, b):
    """Whether two looks at one buffer show a value in common."""
    if 0 in a.shape + b.shape:
        return False
    if a.dtype != b.dtype:
        return True
    axes = [sorted(((step, count) for count, step in zip(view.shape, view.strides) if count > 1 and step), reverse=True) for view in (a, b)]
    begins = [a.offset, b.offset]
    while all(axes) and axes[0][0] == axes[1][0]:  # rows of both: what is common stands within one
        step, count = axes[0][0]
        if any(begin % step + sum((n - 1) * by for by, n in own[1:]) >= step for begin, own in zip(begins, axes)):
            break
        if abs(begins[0] // step - begins[1] // step) >= count:
            return False
        axes, begins = [own[1:] for own in axes], [begin % step for begin in begins]
    if max(math.prod(count for _, count in own) for own in axes) > MOST_LOOKED_AT:
        (begin, end), (other, last) = a.extent(), b.extent()
        return begin < last and other < end
    values = []
    for begin, own in zip(begins, axes):
        shown = {begin}
        for step, count in own:
            shown = {at + step * index for at in shown for index in range(count)}
        values.append(shown)
    return not values[0].isdisjoint(values[1])


def keep_weights(graph, step, taps):
    """A name stays with the weights, or the state, that it had in step 0, where a later step shows less: a kept window needs no convolution."""
    if step == 0:
        graph.of_prefill = {name: graph.matrices(at) for name, (at, view) in taps.items() if view is None and graph.is_projection(at)}
        graph.states = {name: view for name, (at, view) in taps.items() if name.endswith(".mixer_state") and graph.operations[at].written}
        return
    for name, state in graph.states.items():
        at = graph.last_writer(state, False)
        if name not in taps and at is not None and at >= graph.begin:
            taps[name] = at, state
    readers = defaultdict(list)
    for at in range(graph.begin, graph.end):
        if graph.is_projection(at):
            readers[tuple(graph.matrices(at))].append(at)
    for name, weights in graph.of_prefill.items():
        if name in taps and graph.is_projection(taps[name][0]) and graph.matrices(taps[name][0]) != weights:
            del taps[name]
            if len(same := readers[tuple(weights)]) == 1:
                taps[name] = same[0], None


def positions_of(call):
    """How many positions a layer gives, or None."""
    return call.gave[0].shape[-2] if call.gave and len(call.gave[0].shape) > 1 else None


def main_stack(stacks):
    """The path of the layers that lead to the output: of those that do a good part of the work, the last that run."""
    work = {path: sum(call.end - call.begin for _, call in calls) for path, calls in stacks.items()}
    return max((path for path in stacks if 4 * work[path] >= max(work.values())), key=lambda path: stacks[path][-1][1].end, default=None)


def stack_name(path, taps):
    """`vision.` of vision_tower.encoder.layers; more of the path where another stack has that name."""
    plain = {"model", "layers", "layer", "blocks", "block", "h"}
    parts = [part.removesuffix("_tower").removesuffix("_model") for part in path.split(".") if part not in plain]
    short = f"{parts[0]}." if parts else "stack."
    return f"{'.'.join(parts)}." if any(name.startswith(f"{short}layers.") for name in taps) else short


def name_stack(graph, calls):
    """The taps of a stack of layers, and whether one of them attends to another stack too."""
    before, taps, is_decoder = None, {}, False
    for number, call in calls:
        gave = graph.maker(call.gave[0], call.begin, call.end) if call.gave else None
        given = before
        if call.given:
            made = [at for at in graph.writers.get(call.given[0].buffer, []) if at < call.begin]
            given = made[-1] if made else before
        elif before is None:  # given by a name: hooks do not show it
            given = next((made for at in range(call.begin, call.end) for made, _ in graph.sources(at) if made < call.begin), None)
        if before is None and given is not None:
            taps["h0"] = (given, None)
        layer = Layer(graph, call, given, gave)
        attentions = layer.attentions()
        crossing = [attention for attention in attentions if len(attentions) == 2 and not layer.reads_own_keys(attention)]
        own = [attention for attention in attentions if attention not in crossing]
        for attention in crossing[:1]:
            layer.name_attention(attention, "cross.")
        for at, attention in enumerate(own):
            layer.name_attention(attention, "" if at == 0 else f"attention{at + 1}.")
        is_decoder = is_decoder or bool(crossing)
        layer.name_branches(attentions)
        layer.name_locally(attentions)
        layer.tap("h", gave, call.gave[0] if call.gave else None)
        taps.update({f"layers.{number}.{name}": found for name, found in layer.taps.items()})
        before = gave
    last = calls[-1][1].end
    behind = [call for call in graph.calls if call.begin >= last]
    heads = [call for call in behind if any(graph.is_projection(at) for at in range(call.begin, call.end))]  # a norm of theirs is their own
    norms = norms_between(graph, [call for call in behind if not any(head.begin <= call.begin and call.end <= head.end for head in heads)])
    final = (at for at, read in norms.items() if before is not None and read is not None and graph.origin(read)[0] == before)
    if (final := next(final, None)) is not None:
        taps["final_norm"] = (final, None)
    return taps, is_decoder


def norms_between(graph, calls):
    """Of the last operation of each norm among some calls, what it norms: a module with a statistic and without a product."""
    norms = {}
    for call in calls:
        kinds = {graph.kind(at) for at in range(call.begin, call.end)}
        if not call.gave or not (kinds & NORM_STATISTICS or kinds >= {"mean", "pow"}) or kinds & (PROJECTIONS | SOFTMAX):
            continue
        last = graph.maker(call.gave[0], call.begin, call.end)
        read = next((made for at in range(call.begin, call.end) for made, _ in graph.sources(at) if made < call.begin), None)
        if last is not None:
            norms[graph.before(last, CASTS)] = read
    return norms


def name_head(graph, output, begin, taps):
    """The final norm and the logits."""
    if output is None:
        return
    at = graph.maker(output, begin, graph.end)
    if at is None:
        return
    head = at
    while head is not None and head >= begin and not graph.is_projection(head):
        head = next((made for made, _ in graph.sources(head)), None)
    if head is not None and head >= begin:
        taps["logits"] = (at, output)
        read = graph.origin(graph.sources(head)[0][0])[0] if graph.sources(head) else None
        if read is not None and read >= begin and is_of_stream(graph, read):
            taps["final_norm"] = (read, None)


def is_of_stream(graph, at):
    """Whether a head reads the stream, normed or not: what another projection has made of it, or a mean over positions, is that head's own."""
    for _ in range(FAR):
        if at is None or graph.projected(at) is not None or graph.kind(at) in POOLS:
            return False
        if graph.kind(at) not in COPIES | SCALES | ACTIVATIONS or len(graph.sources(at)) != 1:
            break
        at = graph.first_source(at)
    return True


def name_modules(graph, stacks, taps):
    """What no rule named and is a module's output, under the module's name."""
    named, count = {graph.before(at, CASTS) for at, _ in taps.values()}, defaultdict(int)
    named |= {graph.before(graph.first_source(at), CASTS) for at in named if graph.kind(at) in LIMITS and graph.sources(at)}
    for call in sorted(graph.calls, key=lambda call: call.end):
        at = graph.maker(call.gave[0], call.begin, call.end) if call.gave else None
        if at is None or graph.before(at, CASTS) in named or not graph.stream[at] or not call.path:
            continue
        named.add(graph.before(at, CASTS))
        inside = next((path for path in stacks if path and call.path.startswith(f"{path}.")), None)
        name = call.path if inside is None else stacks[inside] + call.path[len(inside):]
        before, _, last = name.rpartition(".")
        name = f"{before}/{last}" if before else f"/{last}"  # no name of a tap, whatever other programs call theirs
        count[name] += 1
        taps[name if count[name] == 1 else f"{name}#{count[name]}"] = graph.as_read(at, call.gave[0])


def same_axes(view, other):
    return (view.shape, view.strides, view.offset) == (other.shape, other.strides, other.offset)


def in_copy(view, source, copy):
    """A view of what `source` shows, in the copy of it; None where the copy lies otherwise in memory."""
    if same_axes(view, source):
        return copy
    return copy.with_axes(view.shape, view.strides, view.offset - source.offset + copy.offset) if source.strides == copy.strides else None


def in_tap_axes(name, view, tokens, keys):
    """A view without its batch axis, in the axes of the tap: [T,H,d] of heads. `keys`: positions of all steps so far."""
    # An axis of stride 0 shows the same again: keys repeated for each group of queries.
    axes = [(extent, stride) for extent, stride in zip(view.shape, view.strides) if stride or extent == 1]
    shape, strides = [extent for extent, _ in axes], [stride for _, stride in axes]
    site = name.rsplit(".", 1)[-1]
    due = 3 if site in HEADED | SCORES else 2
    while len(shape) > due and shape[0] == 1:
        shape, strides = shape[1:], strides[1:]
    if site == "mixer_conv":
        shape[0] = min(shape[0], tokens)  # what is behind comes from the padding
    if site in HEADED and len(shape) == 3:
        first, second = (extent in (tokens, keys) for extent in shape[:2])
        heads_first = strides[0] < strides[1] if first == second else second
        if first and second and site.endswith("_rope"):
            heads_first = True
        if heads_first:
            shape, strides = [shape[1], shape[0], shape[2]], [strides[1], strides[0], strides[2]]
        if shape[0] > tokens and ".cross." not in name:  # of a cache, the new positions
            cut = shape[0] - tokens
            return view.with_axes([tokens, *shape[1:]], strides, view.offset + cut * strides[0])
    return view.with_axes(shape, strides)


def as_real(view):
    """A view of complex numbers as one of pairs."""
    if view is None or view.dtype not in COMPLEX or view.strides[-1] != 1:
        return view
    real = view.with_axes([*view.shape[:-1], 2 * view.shape[-1]], [*(2 * stride for stride in view.strides[:-1]), 1], 2 * view.offset)
    real.dtype = COMPLEX[view.dtype]
    return real


def in_heads(view, width):
    """A view of heads side by side as one with an axis for the heads, which are `width` wide."""
    if view is None or len(view.shape) > 3 or view.shape[-1] % width or view.shape[-1] == width:
        return view
    *shape, merged = view.shape
    *strides, last = view.strides
    return view.with_axes([*shape, merged // width, width], [*strides, width * last, last])


def spanning(views):
    """The least view that shows what all of several do that differ in their last axis alone, as where a part of each head is rotated."""
    views = [view for view in views if view is not None and 0 not in view.shape]
    if not views:
        return None
    first = min(views, key=lambda view: view.offset)
    laid = lambda view: [(extent, stride) for extent, stride in zip(view.shape[:-1], view.strides) if extent > 1]  # of one element no step is taken
    alike = [view for view in views if laid(view) == laid(first) and (view.strides[-1] == first.strides[-1] or view.shape[-1] == 1)]
    width = max((view.offset - first.offset) // (first.strides[-1] or 1) + view.shape[-1] for view in alike)
    limit = min((stride for stride in first.strides[:-1] if stride), default=width)
    return first.with_axes([*first.shape[:-1], min(width, limit)], first.strides)

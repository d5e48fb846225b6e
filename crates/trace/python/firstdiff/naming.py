"""Which operations of a program give which tap? By the shape of the graph, never by the name of a family.

What no rule names keeps the name of its module: `layers.0.mlp/router`.
"""

import re
from collections import defaultdict
from dataclasses import dataclass

from . import HEADED, SCORES

# Operations that hand their input on.
COPIES = {"reshape", "contiguous", "clone", "expand", "to", "type_as", "repeat_interleave", "repeat", "_to_copy", "alias", "lift_fresh"}
SCALES = {"mul", "div"}
SUMS = {"add"}
PRODUCTS = {"matmul", "bmm", "baddbmm"}
PROJECTIONS = PRODUCTS | {"linear", "addmm", "mm", "conv1d", "conv2d", "convolution"}
SOFTMAX = {"softmax", "_softmax"}
NORM_STATISTICS = {"rsqrt", "layer_norm", "native_layer_norm", "rms_norm", "var", "var_mean", "linalg_vector_norm"}
ACTIVATIONS = {"silu", "gelu", "relu", "sigmoid", "tanh", "erf", "softplus"}
# What tells positions apart, and is no table of a rotation.
COUNTERS = {"arange", "zeros", "ones", "empty", "full", "scalar_tensor"}
# A search along the graph goes no further than this: no operation of a layer is a longer chain of elementwise ones.
FAR = 16


@dataclass
class NamedTap:
    """A tap: the operation after which it is read, and how its buffer is looked at."""

    name: str
    operation: int
    view: object


@dataclass
class Attention:
    """One softmax between two products of activations."""

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

    def read_step(self, step):
        """Goes on to the next step."""
        program, done = self.program, self.end
        self.begin, self.end = program.steps[step]["ops"]
        self.calls = [call for call in program.calls if call.step == step]
        inputs = {buffer for buffer, (_, value) in program.inputs.items() if value.dim() >= 2}
        for at in range(done, self.end):
            operation = self.operations[at]
            views = operation.views()
            self.reads[at] = [(self.writers[view.buffer][-1] if self.writers[view.buffer] else None, view) for view in views]
            for made, view in self.reads[at]:
                if made is not None:
                    self.readers[made].append((at, view))
            fed = any(made is not None and self.stream[made] for made, _ in self.reads[at])
            self.stream[at] = fed or self.begins_stream(operation, views, inputs)
            for view in operation.outputs:
                if view is not None:
                    self.writers[view.buffer].append(at)

    def begins_stream(self, operation, views, inputs):
        """Whether an operation looks up or projects what the model was given: masks and positions are given too, and are neither."""
        if operation.kind == "embedding":
            return len(views) > 1 and self.comes_from(views[1].buffer, inputs)
        return operation.kind in PROJECTIONS and bool(views) and views[0].buffer in inputs

    def comes_from(self, buffer, inputs):
        """Whether a buffer is an input or a copy of one."""
        for _ in range(FAR):
            if buffer in inputs:
                return True
            made = self.writers.get(buffer)
            if not made or self.operations[made[-1]].kind not in COPIES or not self.reads[made[-1]]:
                return False
            buffer = self.reads[made[-1]][0][1].buffer
        return False

    def kind(self, at):
        return self.operations[at].kind

    def output(self, at):
        return self.operations[at].outputs[0]

    def sources(self, at):
        """The activations that an operation reads: who made each, and how it is looked at."""
        return [(made, view) for made, view in self.reads[at] if made is not None and self.stream[made]]

    def is_projection(self, at):
        """A product with a matrix of weights."""
        weights = self.program.weights
        has_matrix = any(view.buffer in weights and sum(extent > 1 for extent in view.shape) > 1 for _, view in self.reads[at])
        return self.kind(at) == "linear" or (self.kind(at) in PROJECTIONS and has_matrix)

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

    def maker(self, view, begin, end):
        """The last operation of a range that wrote what a view shows."""
        return max((at for at in self.writers.get(view.buffer, []) if begin <= at < end), default=None)


class Layer:
    """The operations of one layer, and the taps that are found in them."""

    def __init__(self, graph, name, call, given, gave):
        self.graph, self.name, self.begin, self.end = graph, name, call.begin, call.end
        self.given, self.gave, self.path = given, gave, call.path
        self.taps = {}
        self.norms = self.norms_inside()

    def inside(self, at):
        return at is not None and self.begin <= at < self.end

    def tap(self, name, at, view=None):
        if at is not None:
            self.taps[name] = (at, view)

    def norms_inside(self):
        """Of each norm's last operation, what it norms: a module with a statistic and without a product."""
        norms = {}
        for call in self.graph.calls:
            if not (self.begin <= call.begin and call.end <= self.end and call.gave and call.path.startswith(self.path + ".")):
                continue
            kinds = {self.graph.kind(at) for at in range(call.begin, call.end)}
            if not kinds & NORM_STATISTICS or kinds & (PROJECTIONS | SOFTMAX):
                continue
            last = self.graph.maker(call.gave[0], call.begin, call.end)
            read = next((made for at in range(call.begin, call.end) for made, _ in self.graph.sources(at) if made < call.begin), None)
            if last is not None:
                norms[last] = read
        return norms

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
            if graph.kind(at) in SUMS:
                for made, _ in graph.sources(at):
                    found = way(made, depth + 1)
                    if found is not None and (best is None or len(found) < len(best)):
                        best = [*found, ("sum", at, made)]
            elif at in self.norms:
                found = way(self.norms[at], depth + 1)
                best = [*found, ("norm", at, self.norms[at])] if found else None
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
        scores = graph.sources(attention.softmax)[0][0]
        for name, at in {"qk": attention.product, "scores": scores, "probs": attention.probs}.items():
            self.tap(prefix + name, at)
        query, (keys, transposed) = graph.sources(attention.product)[-2:]
        shape, strides = list(transposed.shape), list(transposed.strides)
        key = keys, transposed.with_axes([*shape[:-2], shape[-1], shape[-2]], [*strides[:-2], strides[-1], strides[-2]])
        values = [source for source in graph.sources(attention.mixed) if source[0] != attention.probs]
        for side, source in {"q": query, "k": key, **({"v": values[0]} if values else {})}.items():
            self.name_side(prefix, side, source)
        self.name_output(attention, prefix)

    def name_side(self, prefix, side, source):
        """The projection, norm and rotation of queries, keys or values."""
        graph = self.graph
        at, view = graph.origin(source[0], self.begin)
        if not self.inside(at):
            return
        projections, norms, rotated, headed = [], [], False, defaultdict(list)
        open_, seen = [(at, view or source[1])], set()
        while open_:
            here, looked_at = open_.pop(0)
            headed[here].append(looked_at)
            if here in seen or not self.inside(here):
                continue
            seen.add(here)
            if graph.is_projection(here):
                projections.append(here)
                continue
            if here in self.norms:
                norms.append(here)
                open_ += [(self.norms[here], self.norm_view(here))]
                continue
            for made, seen_as in graph.reads[here]:
                if made is None or not graph.stream[made]:
                    table = made is not None and graph.kind(made) not in COUNTERS and graph.kind(here) != "where"
                    rotated = rotated or table
                else:
                    open_.append((made, seen_as))
        if side != "v" and rotated:
            self.tap(f"{prefix}{side}_rope", at, spanning(headed[at]))
        if side != "v" and norms:
            self.tap(f"{prefix}{side}_norm", norms[0], spanning(headed[norms[0]]))
        if projections:
            last = max(projections)
            self.tap(prefix + side, last, spanning(headed[last]))

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
            if graph.is_projection(after[0]):
                self.tap(f"{prefix}context", at, next(view for made, view in graph.reads[after[0]] if made == at))
                self.tap(f"{prefix}attn_out", self.with_bias(after[0]))
                return
            at = after[0]

    def with_bias(self, projection):
        """A projection, or the sum with its bias, where that is an operation of its own."""
        readers = [at for at, _ in self.graph.readers[projection] if self.inside(at)]
        biased = len(readers) == 1 and self.graph.kind(readers[0]) in SUMS
        if biased and any(view.buffer in self.graph.program.weights for _, view in self.graph.reads[readers[0]]):
            return readers[0]
        return projection

    # -- branches of the residual stream --

    def name_branches(self, attentions):
        graph, way = self.graph, self.residual()
        sums = [(at, stream) for kind, at, stream in way if kind == "sum"]
        on_the_way = {stream: at for kind, at, stream in way if kind == "norm"}  # of post-norm blocks: the sum, and the norm of it
        ends = {at for at, _ in sums} | set(on_the_way.values()) | {self.given}
        mixed = {attention.mixed for attention in attentions}
        branches = []
        for at, stream in sums:
            other = next((made for made, _ in graph.sources(at) if made != stream), None)
            if other is not None:
                branches += [(at, part, self.above(part, ends)) for part in self.parallel(other, ends, mixed)]
        attending = [branch for branch in branches if branch[2] & mixed]
        rest = [branch for branch in branches if not branch[2] & mixed]
        mixing = [branch for branch in rest if self.mixes(branch[2])] or ([] if attending else rest[:1] if len(rest) > 1 else [])
        rest = [branch for branch in rest if branch not in mixing]
        for branch in attending[:1]:
            self.behind_norm(branch[1], "attn_post_norm")
            self.name_h_attn(branch[0], on_the_way, rest)
            self.before_projection(min((at for at in branch[2] if graph.is_projection(at)), default=None), "attn_norm")
        for branch in mixing[:1]:
            self.name_mixer(*branch[1:])
            if not attending:
                self.name_h_attn(branch[0], on_the_way, rest)
        if rest:
            self.name_feed_forward(*rest[-1][1:])

    def name_h_attn(self, total, on_the_way, rest):
        """The stream behind attention, where something follows that reads it."""
        at = on_the_way.get(total, total)
        if at != self.gave and any(at in self.above(other) for _, other, _ in rest):
            self.tap("h_attn", at)

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
        """Whether a branch without attention mixes positions: a convolution along them, a running sum, a scan."""
        return any(self.graph.kind(at) in {"conv1d", "convolution", "cumsum"} for at in body)

    def name_mixer(self, other, body):
        self.tap("mixer_out", self.behind_norm(other, "mixer_post_norm"))
        projections = sorted(at for at in body if self.graph.is_projection(at) and self.graph.kind(at) != "conv1d")
        convolutions = sorted(at for at in body if self.graph.kind(at) == "conv1d")
        if projections:
            self.tap("mixer_in", projections[0])
            self.before_projection(projections[0], "attn_norm")
        if convolutions:
            self.tap("mixer_conv", convolutions[0])

    def behind_norm(self, at, name):
        """What a branch gives before the norm behind it, which is named."""
        at, _ = self.graph.origin(at, self.begin)
        if at in self.norms:
            self.tap(name, at)
            at, _ = self.graph.origin(self.norms[at], self.begin)
        return at

    def before_projection(self, projection, name):
        """Names the norm that a projection reads."""
        if projection is None:
            return
        sources = self.graph.sources(projection)
        read = self.graph.origin(sources[0][0])[0] if sources else None
        if self.inside(read) and self.graph.kind(read) in {"index", "index_select"} and self.graph.sources(read):
            read = self.graph.origin(self.graph.sources(read)[0][0])[0]
        if read in self.norms and read not in {at for at, _ in self.taps.values()}:
            self.tap(name, read)

    def name_feed_forward(self, other, body):
        graph = self.graph
        self.tap("ffn_out", self.behind_norm(other, "ffn_post_norm"))
        projections = sorted(at for at in body if graph.is_projection(at))
        self.before_projection(projections[0] if projections else None, "ffn_norm")
        chosen = next((at for at in sorted(body) if graph.kind(at) == "topk"), None)
        if chosen is not None:
            self.name_router(chosen, body)
            return
        for at in sorted(body):
            if graph.kind(at) == "mul" and len(graph.sources(at)) == 2 and self.name_gated(at):
                return
        if len(projections) > 1:
            self.tap("ffn_up", self.with_bias(projections[0]))
            read = graph.origin(graph.sources(projections[-1])[0][0], self.begin)[0]
            self.tap("ffn_act", read)

    def name_gated(self, product):
        """activation(gate) * up."""
        found = []
        for made, looked_at in self.graph.sources(product):
            activated = False
            while self.inside(made) and not self.graph.is_projection(made) and self.graph.sources(made):
                activated = activated or self.graph.kind(made) in ACTIVATIONS
                made, looked_at = self.graph.sources(made)[0]
            if not self.inside(made) or not self.graph.is_projection(made):
                return False
            found.append((activated, made, looked_at))
        gates, ups = [side for side in found if side[0]], [side for side in found if not side[0]]
        if len(gates) != 1 or len(ups) != 1:
            return False
        (_, gate, seen), (_, up, also) = gates[0], ups[0]
        if gate == up and seen.offset == also.offset:
            return False  # x * sigmoid(x) is an activation
        self.tap("ffn_gate", gate, seen)
        self.tap("ffn_up", up, also)
        self.tap("ffn_act", product)
        return True

    def name_router(self, chosen, body):
        graph, at, probs = self.graph, chosen, None
        for _ in range(FAR):
            sources = [made for made, _ in graph.sources(at) if self.inside(made)]
            if not sources or graph.is_projection(at):
                break
            at = sources[0]
            probs = at if graph.kind(at) in SOFTMAX | {"sigmoid"} else probs
        if graph.is_projection(at):
            self.tap("router_logits", at)
        after = (at for at in sorted(body) if at > chosen and graph.kind(at) in SOFTMAX | {"sigmoid"} and chosen in self.above(at))
        self.tap("router_probs", probs if probs is not None else next(after, None))


def name_taps(graph, step):
    """Every tap of the step that was read last, in the order in which they are computed."""
    program, taps = graph.program, {}
    containers = defaultdict(list)
    for call in graph.calls:
        numbered = re.fullmatch(r"(.*?)\.?(\d+)", call.path)
        if numbered and not re.search(r"(^|\.)\d+(\.|$)", numbered[1]):
            containers[numbered[1]].append((int(numbered[2]), call))
    stacks = {path: calls for path, calls in containers.items() if len(calls) > 1 and [at for at, _ in calls] == sorted({at for at, _ in calls})}
    largest = max(stacks, key=lambda path: sum(call.end - call.begin for _, call in stacks[path]), default=None)
    for path, calls in stacks.items():
        if any(path.startswith(other + ".") for other in stacks if other != path) or is_inside(calls, stacks.get(largest), path == largest):
            continue
        prefix = "" if path == largest else stack_name(path)
        name_stack(graph, prefix, calls, taps)
    if largest is not None:
        name_head(graph, program.steps[step]["output"], stacks[largest][-1][1].end, taps)
    name_modules(graph, stacks, largest, taps)
    named, tokens = [], [here["tokens"] for here in program.steps[:step + 1]]
    for name, (at, view) in taps.items():
        view = view or graph.output(at)
        shown = in_tap_axes(name, view, tokens[-1], sum(tokens))
        if view.dtype in {"f64", "f32", "f16", "bf16"} and 0 not in shown.shape:
            named.append(NamedTap(name, at, shown))
    return sorted(named, key=lambda tap: tap.operation)


def graph_of_prefill(graph):
    """Of each tap of step 0: the operation that makes it, by its line in the reference, and the nearest taps above that it is made of."""
    program = graph.program
    taps = [tap for tap in program.taps if tap["step"] == 0]
    by_operation = defaultdict(list)
    for tap in taps:
        by_operation[tap["op"]].append(tap["tap"])
    files, scopes = list(program.files), list(program.scopes)
    rows = []
    for tap in taps:
        operation = program.operations[tap["op"]]
        # Another look at the same tensor comes from the first.
        reads = dict.fromkeys(by_operation[tap["op"]][:by_operation[tap["op"]].index(tap["tap"])][:1])
        open_, seen = [] if reads else [made for made, _ in graph.reads[tap["op"]]], set()
        while open_:
            at = open_.pop(0)
            if at is None or at in seen:
                continue
            seen.add(at)
            if at in by_operation:
                reads[by_operation[at][0]] = None
            else:
                open_ += [made for made, _ in graph.reads[at]]
        file = files[scopes[operation.scope][2]].rsplit("/", 1)[-1]
        rows.append({"tap": tap["tap"], "op": f"{operation.kind} ({file}:{operation.line})", "reads": list(reads)})
    return rows


def is_inside(calls, outer, is_outer):
    """Whether a stack's calls run inside of those of another."""
    return not is_outer and any(call.begin <= calls[0][1].begin and calls[0][1].end <= call.end for _, call in outer or [])


def stack_name(path):
    """`vision.` of vision_tower.encoder.layers."""
    parts = [part for part in path.split(".") if part not in {"model", "layers", "layer", "blocks", "h"}]
    return f"{parts[0].removesuffix('_tower').removesuffix('_model')}." if parts else "stack."


def name_stack(graph, prefix, calls, taps):
    before = None
    for number, call in calls:
        gave = graph.maker(call.gave[0], call.begin, call.end) if call.gave else None
        given = before
        if call.given:
            made = [at for at in graph.writers.get(call.given[0].buffer, []) if at < call.begin]
            given = made[-1] if made else before
        if before is None and given is not None:
            taps[f"{prefix}h0"] = (given, None)
        layer = Layer(graph, f"{prefix}layers.{number}", call, given, gave)
        attentions = layer.attentions()
        for at, attention in enumerate(attentions):
            layer.name_attention(attention, "" if at == 0 else "cross." if len(attentions) == 2 else f"attention{at + 1}.")
        layer.name_branches(attentions)
        layer.tap("h", gave)
        taps.update({f"{layer.name}.{name}": found for name, found in layer.taps.items()})
        before = gave


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
        if read is not None and read >= begin:
            taps["final_norm"] = (read, None)


def name_modules(graph, stacks, largest, taps):
    """What no rule named and is a module's output, under the module's name."""
    named, count = {at for at, _ in taps.values()}, defaultdict(int)
    for call in sorted(graph.calls, key=lambda call: call.end):
        at = graph.maker(call.gave[0], call.begin, call.end) if call.gave else None
        if at is None or at in named or not graph.stream[at] or not call.path:
            continue
        named.add(at)
        name = call.path
        if largest is not None and name.startswith(f"{largest}."):
            name = "layers" + name[len(largest):]
        before, _, last = name.rpartition(".")
        name = f"{before}/{last}" if before else f"/{last}"  # no name of a tap, whatever other programs call theirs
        count[name] += 1
        taps[name if count[name] == 1 else f"{name}#{count[name]}"] = (at, call.gave[0])


def in_tap_axes(name, view, tokens, keys):
    """A view without its batch axis, in the axes of the tap: [T,H,d] of heads. `keys`: positions of all steps so far."""
    shape, strides = list(view.shape), list(view.strides)
    site = name.rsplit(".", 1)[-1]
    due = 3 if site in HEADED | SCORES else 2
    while len(shape) > due and shape[0] == 1:
        shape, strides = shape[1:], strides[1:]
    if site in HEADED and len(shape) == 3:
        positions = (tokens, keys)
        heads_first = shape[1] in positions and (shape[0] not in positions or strides[0] < strides[1] or name.endswith("_rope"))
        if heads_first:
            shape, strides = [shape[1], shape[0], shape[2]], [strides[1], strides[0], strides[2]]
        if shape[0] > tokens:  # of a cache, the new positions
            cut = shape[0] - tokens
            return view.with_axes([tokens, *shape[1:]], strides, view.offset + cut * strides[0])
    return view.with_axes(shape, strides)


def spanning(views):
    """The least view that shows what all of several do that differ in their last axis alone, as where a part of each head is rotated."""
    views = [view for view in views if view is not None and 0 not in view.shape]
    if not views:
        return None
    first = min(views, key=lambda view: view.offset)
    alike = [view for view in views if view.shape[:-1] == first.shape[:-1] and view.strides == first.strides]
    width = max((view.offset - first.offset) // (first.strides[-1] or 1) + view.shape[-1] for view in alike)
    limit = min((stride for stride in first.strides[:-1] if stride), default=width)
    return first.with_axes([*first.shape[:-1], min(width, limit)], first.strides)

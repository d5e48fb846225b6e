"""Finds the operations of a mixture of experts that produce each tap: by what chooses among the columns of a projection, and by which slice
of the weights, or which member of a list of modules, a projection reads.
"""

import math
import re
from collections import defaultdict

GATES = {"softmax", "_softmax", "sigmoid"}
JOINS = {"cat", "concat", "concatenate", "index_put", "reshape", "contiguous", "clone", "to"}
PICKS = {"index", "index_select", "gather"}
# A search along the graph goes no further than this.
FAR = 16


def name_mixture(layer, body):
    """Names router, experts and shared expert of a branch. Whether it has a router."""
    graph, found = layer.graph, choice_of(layer, body)
    if found is None:
        return False
    choice, router, below = found
    columns = graph.output(router).shape[-1]
    members, shared = members_of(layer, body, found)
    if not members and graph.kind(choice) != "topk":
        return False
    name_router(layer, found, body)
    everything = {at for at in body if graph.is_projection(at)}
    for expert, projections in members.items():
        taps = block(layer, projections, everything)
        for name, (at, view) in taps.items():
            for number, cut in slices(expert, view or graph.output(at), columns):
                layer.tap(f"experts.{number}.{name}", at, cut)
        if taps:
            name_weights(layer, taps["ffn_out"][0], below | {choice})
    gates = [at for at in shared if graph.output(at).shape[-1] == 1]
    for name, found in block(layer, [at for at in shared if at not in gates], everything).items():
        layer.tap(f"shared_expert.{name}", *found)
    if len(gates) == 1:
        layer.tap("shared_expert.gate", gates[0])
    return True


def name_chosen_projections(layer, body):
    """Names the router of an attention whose projections are those of experts: `attn.router_logits` and so on."""
    found = choice_of(layer, body)
    if found is not None and members_of(layer, body, found)[0]:
        name_router(layer, found, body, "attn.")


def choice_of(layer, body):
    """What chooses among experts, the projection that it chooses by, and all that is below it; None where nothing does."""
    graph = layer.graph
    routers = {at: router_of(layer, at) for at in sorted(body) if chooses(graph, at)}
    # Groups of experts, and rows in the order of their experts, are chosen from other numbers of columns.
    routers = {at: router for at, router in routers.items()
               if router is not None and graph.reads[at][0][1].shape[-1] == graph.output(router).shape[-1]}
    if not routers:
        return None
    choice = max(routers)
    return choice, routers[choice], layer.below(choice)


def members_of(layer, body, found):
    """The projections of each expert, and those of none."""
    graph, (_, router, below) = layer.graph, found
    members, shared = defaultdict(list), []
    for at in sorted(body - {router}):
        if graph.is_projection(at):
            expert = expert_of(layer, at, graph.output(router).shape[-1])
            if expert is not None and (expert == "all" or at in below):
                members[expert].append(at)
            elif at not in below:
                shared.append(at)
    return members, shared


def chooses(graph, at):
    """Whether an operation gives the numbers of columns that it chose."""
    outputs = graph.program.operations[at].outputs
    return graph.kind(at) in {"topk", "max", "argmax", "sort"} and bool(outputs) and outputs[-1].dtype == "i64"


def router_of(layer, choice):
    """The projection whose columns are chosen from, or None."""
    graph, at = layer.graph, choice
    for _ in range(FAR):
        sources = [made for made, _ in graph.sources(at) if layer.inside(made)]
        if not sources or graph.is_projection(at):
            break
        at = sources[0]
    return at if graph.is_projection(at) else None


def expert_of(layer, at, columns):
    """The number of the expert that a projection is of, "all" where its weights are those of all, or None."""
    program = layer.graph.program
    for _, view in layer.graph.reads[at]:
        extents = [extent for extent in view.shape if extent > 1]
        if view.buffer not in program.weights or len(extents) < 2:
            continue
        stored = program.buffers[view.buffer]
        size, count = math.prod(view.shape), math.prod(stored.shape)
        if len(extents) == 3 and size == count:
            return "all" if extents[0] == columns else None
        if len(stored.shape) == 3 and stored.shape[0] == columns:
            return view.offset // stored.strides[0]
        if size * columns == count:
            return view.offset // size
        number = re.match(r"\D*?\.(\d+)\.", program.weights[view.buffer].removeprefix(layer.path))
        return int(number[1]) if number and int(number[1]) < columns else None
    return None


def slices(expert, view, columns):
    """The number and the rows of each expert that a tap is of."""
    if expert != "all":
        return [(expert, view)]
    shape, strides = list(view.shape), list(view.strides)
    while len(shape) > 3 and shape[0] == 1:
        shape, strides = shape[1:], strides[1:]
    if shape[0] != columns:
        return []
    return [(number, view.with_axes(shape[1:], strides[1:], view.offset + number * strides[0])) for number in range(columns)]


def block(layer, projections, everything):
    """The taps of one feed-forward block: operation and view by name. None where one of its weights is read twice: whose rows these are nobody knows."""
    graph = layer.graph
    weights = [(view.buffer, view.offset) for at in projections for _, view in graph.reads[at] if view.buffer in graph.program.weights]
    return layer.block(projections, everything) if len(set(weights)) == len(weights) else {}


def name_router(layer, found, body, prefix=""):
    """The products of the router, the probabilities of all experts, and the numbers of those that are chosen."""
    graph, (choice, router, below) = layer.graph, found
    layer.tap(f"{prefix}router_logits", layer.with_bias(router))
    probs = next((at for at in sorted(body) if router in layer.above(at) and graph.kind(at) in GATES and at not in below), None)
    if probs is None:
        named = {at for at, _ in layer.taps.values()}  # an attention has probabilities of its own
        gates = [at for at in sorted((body & below) - named) if graph.kind(at) in GATES][:1]
        spread = [reader for at in gates for reader, _ in graph.readers[at] if graph.kind(reader) in {"scatter", "scatter_"}]
        probs = next((at for at in gates + spread if graph.output(at).shape[-1] == graph.output(router).shape[-1]), None)
    layer.tap(f"{prefix}router_probs", probs)
    numbers = graph.program.operations[choice].outputs[-1]
    joined = next((at for at, view in graph.readers[choice] if graph.kind(at) in {"cat", "concat"} and view.buffer == numbers.buffer), None)
    layer.tap(f"{prefix}router_topk", choice if joined is None else joined, numbers if joined is None else None)
    if joined is None:
        name_scores(layer, choice, prefix)


def name_scores(layer, choice, prefix):
    """What the experts are chosen by, where that is no more the products or the probabilities: a bias was added, or groups were left out."""
    graph = layer.graph
    made, view = graph.reads[choice][0]
    named = {graph.before(layer.taps[prefix + name][0]) for name in ("router_logits", "router_probs") if prefix + name in layer.taps}
    if graph.before(made) not in named:
        layer.tap(f"{prefix}router_scores", made, view)


def name_weights(layer, out, below):
    """By what an expert's output is multiplied: [T,k] of the chosen, or [T,E]."""
    graph, at, product = layer.graph, out, None
    for _ in range(FAR):
        readers = [reader for reader, _ in graph.readers[at] if layer.inside(reader)]
        product = next((reader for reader in readers if graph.kind(reader) == "mul" and len(graph.sources(reader)) == 2), None)
        if product is not None:
            break
        at = next((reader for reader in readers if graph.kind(reader) in JOINS), None)
        if at is None:
            return
    weights = next((made for made, _ in graph.sources(product) if made != at), None) if product is not None else None
    if weights is None:
        return
    weights, _ = graph.origin(weights, layer.begin)
    if graph.kind(weights) in PICKS:
        weights, _ = graph.origin(graph.reads[weights][0][0], layer.begin)
    if weights in below:
        layer.tap("router_weights", weights)

//! Builds the graph of a run: the order in which taps are produced, the operation that makes each, and the taps that it reads.

mod open;
mod vocabulary;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use firstdiff_trace::{Dump, Site, Tap};

pub(crate) use open::OpenTaps;
pub use vocabulary::op_of;

/// A tap in a step: 0 is the prefill, n the n-th decode step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The step.
    pub step: u32,
    /// The tap.
    pub tap: Tap,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.step {
            0 => write!(f, "{}", self.tap),
            step => write!(f, "{} (decode step {step})", self.tap),
        }
    }
}

/// A tap, the operation that makes it, and the taps that operation reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The tap.
    pub tap: Tap,
    /// The operation's name, as reports give it.
    pub op: String,
    /// What the operation reads; `None` where that is unknown.
    pub reads: Option<Vec<Tap>>,
}

/// Layers that the graph lacks, because neither dump has a tap of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnrecordedLayers {
    /// The last recorded layer before them.
    pub after: Option<u32>,
    /// The first recorded layer behind them; without one, their number is unknown.
    pub before: Option<u32>,
    /// The first place behind them.
    pub reader: Place,
}

/// The taps of a run in the order they are produced, and which taps each reads, over all steps.
#[derive(Clone, Debug)]
pub struct Graph {
    unrecorded: Vec<UnrecordedLayers>,
    places: Vec<Place>,
    ops: Vec<String>,
    /// What an operation reads, or may read where that is unknown.
    reads: Vec<Vec<usize>>,
    /// The known readers of a place.
    readers: Vec<Vec<usize>>,
    unknown_inputs: BTreeSet<usize>,
    /// What a place of the residual stream may read beside its known inputs: operations of its layer whose readers are unknown.
    stream_may_read: BTreeMap<usize, Vec<usize>>,
    /// Whether there are several stacks, and it is unknown where one reads another.
    joins_stacks: bool,
}

/// An operation with unknown inputs may read any of this many places before it.
const MAY_READ: usize = 64;

impl Graph {
    /// The graph of two dumps: that of `model`, where there is one; else a dump's own graph; else the vocabulary's, a decoder with the layers and optional
    /// sites (QK-norm, sandwich norms, router) that occur. All other taps are placed in the order the dumps recorded them.
    pub fn from_dumps(reference: &Dump, candidate: &Dump, model: Option<&[Node]>) -> Graph {
        let open = OpenTaps::shared_by(reference, candidate);
        let places = places(reference).chain(places(candidate));
        let Some(nodes) = model else { return Graph::from_places(places, &open) };
        let steps: BTreeSet<u32> = places.map(|place| place.step).chain(open.steps()).chain([0]).collect();
        Graph::from_steps(steps.into_iter().map(|step| (step, open.among(nodes.to_vec(), step))))
    }

    /// The vocabulary's own graph of a decoder that has these places.
    pub fn from_vocabulary(places: impl IntoIterator<Item = Place>) -> Graph {
        Graph::from_places(places, &OpenTaps::default())
    }

    /// The graph of the same `nodes`, which stand in the order they are produced, in each of `steps`.
    ///
    /// Decode steps read the keys and values of every step before them. Reads of taps that no earlier node produces are
    /// left out.
    pub fn new(nodes: &[Node], steps: impl IntoIterator<Item = u32>) -> Graph {
        Graph::from_steps(steps.into_iter().map(|step| (step, nodes.to_vec())))
    }

    fn from_places(places: impl IntoIterator<Item = Place>, open: &OpenTaps) -> Graph {
        let mut steps: BTreeMap<u32, BTreeSet<u32>> = open.steps().map(|step| (step, BTreeSet::new())).collect();
        let (mut sites, mut inner) = (BTreeSet::new(), BTreeSet::new());
        for place in places {
            sites.insert(place.tap.site);
            inner.extend(place.tap.layer.filter(|_| place.tap.site != Site::H));
            // Only layers that occur: a foreign name `layers.4000000000.q` must not allocate four billion layers.
            steps.entry(place.step).or_default().extend(place.tap.layer);
        }
        // A layer with only its stream inside the vocabulary is not a decoder layer.
        let is_other = |layer: u32| !inner.contains(&layer) && open.has_layer(layer);
        let nodes =
            |(&step, layers)| (step, open.among(open.complete(vocabulary::decoder(layers, &sites, is_other)), step));
        let mut graph = Graph::from_steps(steps.iter().map(nodes));
        // The layers of named stacks are those of the model, where no others occur.
        let are_layers = |layers: &BTreeSet<u32>| !layers.is_empty() || !open.has_named_stacks();
        let steps = steps.iter().filter(|(_, layers)| are_layers(layers));
        graph.unrecorded = steps.flat_map(|(&step, layers)| unrecorded(step, layers)).collect();
        graph
    }

    fn from_steps(steps: impl IntoIterator<Item = (u32, Vec<Node>)>) -> Graph {
        let mut graph = Graph {
            unrecorded: Vec::new(),
            places: Vec::new(),
            ops: Vec::new(),
            reads: Vec::new(),
            readers: Vec::new(),
            unknown_inputs: BTreeSet::new(),
            stream_may_read: BTreeMap::new(),
            joins_stacks: false,
        };
        let mut index: HashMap<Tap, Vec<(u32, usize)>> = HashMap::new();
        for (step, nodes) in steps {
            for node in nodes {
                let here = graph.places.len();
                let reads: Vec<usize> = match &node.reads {
                    Some(reads) => known_inputs(node.tap, step, reads, &index),
                    None => (here.saturating_sub(MAY_READ)..here).collect(),
                };
                index.entry(node.tap).or_default().push((step, here));
                graph.joins_stacks |= node.reads.is_none() && !node.tap.stack().is_empty();
                if node.reads.is_some() && matches!(node.tap.role(), Site::HAttn | Site::H) {
                    let same = |at: &usize| {
                        let place = graph.places[*at];
                        let layer = |tap: Tap| (tap.stack(), tap.layer);
                        place.step == step && layer(place.tap) == layer(node.tap)
                    };
                    let open = graph.unknown_inputs.iter().rev().take(MAY_READ).copied().filter(same);
                    graph.stream_may_read.insert(here, open.collect());
                }
                match node.reads {
                    Some(_) => reads.iter().for_each(|&read| graph.readers[read].push(here)),
                    None => drop(graph.unknown_inputs.insert(here)),
                }
                graph.places.push(Place { step, tap: node.tap });
                graph.ops.push(node.op);
                graph.readers.push(Vec::new());
                graph.reads.push(reads);
            }
        }
        graph
    }

    /// Whether the operation of place `index` may read `other` without that being known: a tap of another stack, or any earlier tap where its inputs are
    /// unknown.
    pub fn may_read(&self, index: usize, other: usize) -> bool {
        let stack = |at: usize| self.places[at].tap.stack();
        other < index && (!self.knows_inputs(index) || self.joins_stacks && stack(index) != stack(other))
    }

    /// Whether a place's readers are unknown: a tap outside the vocabulary that is in no graph.
    pub(crate) fn may_be_read_by_any(&self, index: usize) -> bool {
        !self.knows_inputs(index) && self.readers[index].is_empty()
    }

    /// Whether the inputs of the operation of place `index` are known.
    pub fn knows_inputs(&self, index: usize) -> bool {
        !self.unknown_inputs.contains(&index)
    }

    /// The layers without a place whose outputs are read by the places that `on_the_way` names.
    pub fn unrecorded_layers(&self, on_the_way: impl Fn(Place) -> bool) -> Vec<UnrecordedLayers> {
        let mut met: Vec<UnrecordedLayers> = Vec::new();
        for here in self.unrecorded.iter().filter(|here| on_the_way(here.reader)) {
            if !met.iter().any(|m| (m.after, m.before, m.reader.step) == (here.after, here.before, here.reader.step)) {
                met.push(*here);
            }
        }
        met
    }

    /// Every place, in order.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// The operation that makes place `index`.
    pub fn op(&self, index: usize) -> &str {
        &self.ops[index]
    }

    /// The places that the operation of place `index` reads.
    pub fn reads(&self, index: usize) -> &[usize] {
        &self.reads[index]
    }

    /// The nearest places before `index` for which `stop` holds, and those passed on the way; both in order.
    ///
    /// Where an operation's inputs are unknown, nothing is known to lie on the way either.
    pub fn nearest_before(&self, index: usize, stop: impl Fn(usize) -> bool) -> (Vec<usize>, Vec<usize>) {
        if !self.knows_inputs(index) {
            return (self.reads[index].iter().copied().filter(|&read| stop(read)).collect(), Vec::new());
        }
        let (mut met, passed) = nearest_along(&self.reads, index, &stop);
        let may_read = self.stream_may_read.get(&index).into_iter().flatten().copied();
        met.extend(may_read.filter(|&read| stop(read)));
        met.sort_unstable();
        met.dedup();
        (met, passed)
    }

    /// The nearest places after `index` for which `stop` holds, and those passed on the way; both in order.
    pub fn nearest_after(&self, index: usize, stop: impl Fn(usize) -> bool) -> (Vec<usize>, Vec<usize>) {
        nearest_along(&self.readers, index, stop)
    }
}

/// The places that hold what a node reads. Attention reads the keys and values of all steps, and so may any operation outside the vocabulary, which may keep
/// a state.
fn known_inputs(tap: Tap, step: u32, reads: &[Tap], index: &HashMap<Tap, Vec<(u32, usize)>>) -> Vec<usize> {
    let attends = matches!(tap.site, Site::Qk | Site::Scores | Site::Probs | Site::Context);
    let mut found = Vec::new();
    for read in reads {
        let cached = tap.is_open() || attends && read.site.is_attended();
        let places = index.get(read).map_or(&[][..], Vec::as_slice);
        found.extend(places.iter().filter(|(at, _)| cached || *at == step).map(|(_, place)| place));
    }
    // A state is computed from its own earlier value.
    let own = index.get(&tap).filter(|_| tap.is_open());
    found.extend(own.into_iter().flatten().map(|(_, place)| place));
    found
}

/// The places of the vocabulary that a dump holds, including those held in pieces by ranks where it is unknown how the pieces are joined.
fn places(dump: &Dump) -> impl Iterator<Item = Place> + '_ {
    let entries = dump.entries().iter().map(|e| Place { step: e.step, tap: e.tap });
    let not_joined = dump.ranks().into_iter().flat_map(|ranks| ranks.not_joined());
    let parts = dump.parts().iter().map(|part| (part.step, part.tap)).chain(not_joined);
    entries.chain(parts.map(|(step, tap)| Place { step, tap })).filter(|place| !place.tap.is_open())
}

/// Gaps between the recorded layers of a step. Behind the last one others may follow, unless all layers from the first on are recorded.
fn unrecorded(step: u32, layers: &BTreeSet<u32>) -> Vec<UnrecordedLayers> {
    let (mut found, mut last) = (Vec::new(), None);
    for &layer in layers {
        if last.map_or(0, |last: u32| last + 1) != layer {
            for site in [Site::AttnNorm, Site::HAttn] {
                let reader = Place { step, tap: Tap::layer(layer, site) };
                found.push(UnrecordedLayers { after: last, before: Some(layer), reader });
            }
        }
        last = Some(layer);
    }
    if !found.is_empty() || last.is_none() {
        let reader = Place { step, tap: Tap { layer: None, site: Site::FinalNorm } };
        found.push(UnrecordedLayers { after: last, before: None, reader });
    }
    found
}

fn nearest_along(edges: &[Vec<usize>], from: usize, stop: impl Fn(usize) -> bool) -> (Vec<usize>, Vec<usize>) {
    let (mut met, mut passed) = (BTreeSet::new(), BTreeSet::new());
    let mut todo = edges[from].clone();
    while let Some(next) = todo.pop() {
        if stop(next) {
            met.insert(next);
        } else if passed.insert(next) {
            todo.extend(&edges[next]);
        }
    }
    (met.into_iter().collect(), passed.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(steps: u32) -> Graph {
        let taps = ["h0", "layers.0.q", "layers.1.h", "logits"].map(|t| t.parse().unwrap());
        Graph::from_vocabulary((0..steps).flat_map(|step| taps.map(|tap| Place { step, tap })))
    }

    fn index(graph: &Graph, step: u32, tap: &str) -> usize {
        let place = Place { step, tap: tap.parse().unwrap() };
        graph.places().iter().position(|p| *p == place).unwrap()
    }

    #[test]
    fn places_stand_in_forward_order() {
        let graph = graph(2);
        assert!(graph.places().is_sorted());
        assert!((0..graph.places().len()).all(|i| graph.reads(i).iter().all(|&r| r < i)));
    }

    #[test]
    fn a_walk_stops_at_what_was_recorded() {
        let graph = graph(1);
        let q = index(&graph, 0, "layers.0.q");
        let (h0, h) = (index(&graph, 0, "h0"), index(&graph, 0, "layers.0.h"));
        let (met, passed) = graph.nearest_before(h, |i| i == q || i == h0);
        assert_eq!(met, [h0, q]);
        assert!(passed.contains(&index(&graph, 0, "layers.0.probs")));
        assert!(!passed.contains(&q));
    }

    #[test]
    fn a_decode_step_reads_the_keys_of_all_steps() {
        let graph = graph(3);
        let qk = index(&graph, 2, "layers.1.qk");
        let keys: Vec<_> = graph.reads(qk).iter().map(|&i| graph.places()[i].to_string()).collect();
        assert_eq!(keys.len(), 4, "{keys:?}");
    }

    #[test]
    fn a_layer_number_costs_nothing() {
        let tap = "layers.4000000000.q".parse().unwrap();
        assert!(Graph::from_vocabulary([Place { step: 4_000_000_000, tap }]).places().len() < 40);
    }
}

//! Places taps outside the vocabulary (open taps) in the graph, and finds what they read: by the graph in dump.json, else by stack, layer and order of
//! recording.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use firstdiff_trace::{Dump, GraphNode, Site, Tap, split_stored_name};

use super::vocabulary::{UNKNOWN, layer_nodes, op_of};
use super::{Node, Place, places};

/// Prefix of names of weights that are stored beside the taps of a dump.
const WEIGHTS: &str = "weights.";
/// States of the stream that may or may not have passed the final norm: the name does not identify one tensor.
const STREAMS: &str = "hidden_states.";

/// What two dumps hold and declare of open taps.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenTaps {
    /// Those that both hold, by step.
    shared: BTreeMap<u32, BTreeSet<Tap>>,
    /// The graph of the reference, else of the candidate.
    graph: Vec<Node>,
    /// Where each stands in that graph.
    in_graph: HashMap<Tap, usize>,
    /// When each was recorded, where dump.json lists it.
    recorded: HashMap<Tap, usize>,
    /// Whether the two also share taps of the vocabulary.
    beside_vocabulary: bool,
}

impl OpenTaps {
    /// The names that both dumps hold. A known program names much that is no tap: its names are taps only where a dump.json or its graph lists them.
    pub(crate) fn shared_by(reference: &Dump, candidate: &Dump) -> OpenTaps {
        let dumps = [reference, candidate];
        let declared = dumps.iter().find_map(|dump| dump.meta().graph.as_ref());
        let graph: Vec<Node> = declared.into_iter().flatten().map(node_of).collect();
        let in_graph: HashMap<Tap, usize> = graph.iter().enumerate().map(|(at, node)| (node.tap, at)).collect();
        let foreign = dumps.iter().any(|dump| dump.is_of_known_names());
        let held: BTreeSet<&String> = candidate.unmapped().iter().collect();
        let listed = dumps.iter().filter_map(|dump| dump.meta().taps.as_ref()).flatten();
        let mut recorded = HashMap::new();
        for (at, entry) in listed.enumerate() {
            recorded.entry(Tap::named(&entry.tap)).or_insert(at);
        }
        let mut shared: BTreeMap<u32, BTreeSet<Tap>> = BTreeMap::new();
        for name in reference.unmapped().iter().filter(|name| held.contains(name)) {
            let (plain, step) = split_stored_name(name);
            let tap = Tap::named(plain);
            let is_tap =
                (!foreign || recorded.contains_key(&tap)) && !plain.starts_with(WEIGHTS) && !plain.starts_with(STREAMS);
            if tap.is_open() && (is_tap || in_graph.contains_key(&tap)) {
                shared.entry(step).or_default().insert(tap);
            }
        }
        let of_reference: BTreeSet<Place> = places(reference).collect();
        let beside_vocabulary = places(candidate).any(|place| of_reference.contains(&place));
        OpenTaps { shared, graph, in_graph, recorded, beside_vocabulary }
    }

    /// The steps that have open taps.
    pub(super) fn steps(&self) -> impl Iterator<Item = u32> {
        self.shared.keys().copied()
    }

    /// Whether a layer of the first stack has open taps.
    pub(super) fn has_layer(&self, layer: u32) -> bool {
        self.shared.values().flatten().any(|tap| tap.stack().is_empty() && tap.layer == Some(layer))
    }

    /// Whether layers of a named stack have taps, as those of an encoder and a decoder.
    pub(super) fn has_named_stacks(&self) -> bool {
        self.shared
            .values()
            .flatten()
            .chain(self.in_graph.keys())
            .any(|tap| tap.block().is_some_and(|(stack, _)| !stack.is_empty()))
    }

    /// Whether it is known when a tap is produced: by the vocabulary or a dump.json. Else it is placed by its name.
    pub(crate) fn says_order(&self, tap: Tap) -> bool {
        !tap.is_open() || self.in_graph.contains_key(&tap) || self.recorded.contains_key(&tap)
    }

    /// Whether a dump's graph has it.
    pub(crate) fn is_in_graph(&self, tap: Tap) -> bool {
        self.in_graph.contains_key(&tap)
    }

    /// Whether a dump.json lists it, or its graph has it.
    pub(crate) fn is_listed(&self, tap: Tap) -> bool {
        self.recorded.contains_key(&tap) || self.in_graph.contains_key(&tap)
    }

    /// Whether a run declares this as a tap; a name that both sides merely share may be a buffer that nothing reads.
    pub(crate) fn is_declared(&self, tap: Tap) -> bool {
        !self.beside_vocabulary || self.is_listed(tap)
    }

    /// The graph that a dump declares, with the missing nodes inserted behind what they read; `nodes` where no graph is declared.
    pub(super) fn complete(&self, nodes: Vec<Node>) -> Vec<Node> {
        match self.graph.is_empty() {
            true => nodes,
            false => {
                let missing = nodes.into_iter().filter(|node| !self.in_graph.contains_key(&node.tap)).collect();
                self.insert(self.graph.clone(), missing)
            }
        }
    }

    /// `nodes` with the nodes of a step's open taps inserted.
    pub(super) fn among(&self, nodes: Vec<Node>, step: u32) -> Vec<Node> {
        let known: BTreeSet<Tap> = nodes.iter().map(|node| node.tap).collect();
        let open = self.shared.get(&step).into_iter().flatten().copied().filter(|tap| !known.contains(tap));
        // Other stacks (vision, an encoder) run before the one that they feed.
        let (stacks, others): (Vec<Tap>, Vec<Tap>) = open.partition(|tap| !tap.stack().is_empty());
        let mut all = self.stacks(&stacks);
        let known: BTreeSet<Tap> = all.iter().map(|node| node.tap).collect();
        let rest = stacks.into_iter().filter(|tap| !known.contains(tap)).chain(others).collect();
        all.extend(nodes);
        self.insert(all, self.nodes_in_order(rest))
    }

    /// Layers of other stacks, with the operations that the vocabulary gives a decoder's layers.
    fn stacks(&self, taps: &[Tap]) -> Vec<Node> {
        let sites: BTreeSet<Site> = taps.iter().map(Tap::role).collect();
        // In the order of recording.
        let mut first: BTreeMap<&str, usize> = BTreeMap::new();
        for tap in taps {
            let at = self.recorded.get(tap).copied().unwrap_or(usize::MAX);
            first.entry(tap.stack()).and_modify(|first| *first = at.min(*first)).or_insert(at);
        }
        let of_role: BTreeSet<(usize, Tap)> = taps
            .iter()
            .filter(|tap| !tap.role().is_open())
            .map(|tap| (first.get(tap.stack()).copied().unwrap_or(usize::MAX), tap.in_same_layer(Site::H)))
            .collect();
        let (mut nodes, mut last): (Vec<Node>, Option<Tap>) = (Vec::new(), None);
        for (_, here) in of_role {
            let follows = |before: &Tap| before.stack() == here.stack() && before.layer.map(|n| n + 1) == here.layer;
            let stream = last.filter(follows);
            let in_layer = |tap: &&Tap| tap.in_same_layer(Site::H) == here && **tap != here;
            let (inner, other): (Vec<&Tap>, Vec<&Tap>) =
                taps.iter().filter(in_layer).partition(|tap| !tap.role().is_open());
            match inner.is_empty() && !other.is_empty() {
                true => {
                    nodes.push(Node { tap: here, op: op_of(Site::H).into(), reads: stream.map(|stream| vec![stream]) })
                }
                false => nodes.extend(layer_nodes(|site| here.in_same_layer(site), stream, &sites)),
            }
            last = Some(here);
        }
        nodes
    }

    /// The node of a tap that no graph has.
    fn node(&self, tap: Tap) -> Node {
        match self.in_graph.get(&tap) {
            Some(&at) => self.graph[at].clone(),
            None => Node { tap, op: UNKNOWN.to_owned(), reads: None },
        }
    }

    /// The nodes of taps, in the order of the graph, else as they were recorded, else by name.
    fn nodes_in_order(&self, mut taps: Vec<Tap>) -> Vec<Node> {
        let rank = |at: &HashMap<Tap, usize>, tap: &Tap| at.get(tap).copied().unwrap_or(usize::MAX);
        taps.sort_by_cached_key(|tap| {
            (rank(&self.in_graph, tap), rank(&self.recorded, tap), by_number(&tap.to_string()))
        });
        taps.into_iter().map(|tap| self.node(tap)).collect()
    }

    /// Inserts `more` into `nodes`; both keep their order. A new node comes after all that it reads; else after what was recorded last before it; else at
    /// the end of its layer, or of the graph.
    fn insert(&self, nodes: Vec<Node>, more: Vec<Node>) -> Vec<Node> {
        let recorded = |tap: &Tap| self.recorded.get(tap).copied();
        // Counted from 1: what was recorded before all of them goes to 0.
        let mut behind: HashMap<Tap, usize> = (1..).zip(&nodes).map(|(at, node)| (node.tap, at)).collect();
        let mut as_recorded: Vec<(usize, usize)> =
            (1..).zip(&nodes).filter_map(|(at, node)| Some((recorded(&node.tap)?, at))).collect();
        as_recorded.sort_unstable();
        let layer_of = |tap: &Tap| tap.layer.map(|layer| (tap.stack(), layer));
        let ends: HashMap<(&str, u32), usize> =
            (1..).zip(&nodes).filter_map(|(at, node)| Some((layer_of(&node.tap)?, at))).collect();
        // Other stacks come first.
        let (end, end_of_stacks) = (nodes.len(), nodes.iter().take_while(|node| !node.tap.stack().is_empty()).count());
        let mut all: Vec<(usize, Node)> = (1..).zip(nodes).collect();
        for node in more {
            let read = node.reads.iter().flatten().filter_map(|read| behind.get(read).copied()).max();
            let before = || {
                let own = recorded(&node.tap)?;
                let earlier = as_recorded.partition_point(|(at, _)| *at < own);
                match earlier.checked_sub(1) {
                    Some(last) => as_recorded.get(last).map(|(_, at)| *at),
                    None => (!as_recorded.is_empty()).then_some(0),
                }
            };
            let in_layer = || ends.get(&layer_of(&node.tap)?).copied();
            let at = read.or_else(before).or_else(in_layer).unwrap_or(if node.tap.stack().is_empty() {
                end
            } else {
                end_of_stacks
            });
            behind.insert(node.tap, at);
            all.push((at, node));
        }
        // A stable sort: inserted nodes stay behind those that were there.
        all.sort_by_key(|(at, _)| *at);
        all.into_iter().map(|(_, node)| node).collect()
    }
}

/// A sort key in which numbers in a name compare as numbers: `blk_2` before `blk_10`.
fn by_number(name: &str) -> Vec<(String, u64)> {
    let mut parts = vec![(String::new(), 0u64)];
    let mut digits = false;
    for c in name.chars() {
        match c.to_digit(10) {
            Some(digit) => {
                let number = &mut parts.last_mut().expect("never empty").1;
                *number = number.saturating_mul(10).saturating_add(u64::from(digit));
                digits = true;
            }
            None => {
                if digits {
                    parts.push((String::new(), 0));
                }
                digits = false;
                parts.last_mut().expect("never empty").0.push(c);
            }
        }
    }
    parts
}

/// A node of a dump's own graph.
fn node_of(node: &GraphNode) -> Node {
    let op = node.op.clone().unwrap_or_else(|| UNKNOWN.to_owned());
    let reads = node.reads.iter().map(|read| Tap::named(read)).collect();
    Node { tap: Tap::named(&node.tap), op, reads: Some(reads) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::vocabulary::decoder;

    fn open(recorded: &[&str], graph: &[(&str, &[&str])]) -> OpenTaps {
        let tap = |name: &&str| Tap::named(name);
        let graph: Vec<Node> = graph
            .iter()
            .map(|(name, reads)| Node {
                tap: Tap::named(name),
                op: "op".into(),
                reads: Some(reads.iter().map(tap).collect()),
            })
            .collect();
        OpenTaps {
            shared: BTreeMap::from([(0, recorded.iter().map(tap).filter(Tap::is_open).collect())]),
            in_graph: graph.iter().enumerate().map(|(at, node)| (node.tap, at)).collect(),
            graph,
            recorded: recorded.iter().enumerate().map(|(at, name)| (Tap::named(name), at)).collect(),
            beside_vocabulary: true,
        }
    }

    fn names(nodes: &[Node], of: &[&str]) -> Vec<String> {
        nodes.iter().map(|node| node.tap.to_string()).filter(|name| of.contains(&name.as_str())).collect()
    }

    #[test]
    fn an_open_tap_stands_where_it_was_recorded() {
        let order = ["h0", "layers.0.conv", "layers.0.mixer_out", "layers.0.h", "layers.0.late", "logits", "loss"];
        let layers = BTreeSet::from([0]);
        let nodes = open(&order, &[]).among(decoder(&layers, &BTreeSet::new(), |_| false), 0);
        assert_eq!(names(&nodes, &order), order);
        let late = nodes.iter().find(|node| node.tap == Tap::named("layers.0.late")).unwrap();
        assert_eq!((late.op.as_str(), &late.reads), (UNKNOWN, &None));
    }

    #[test]
    fn what_was_recorded_first_stands_first() {
        let order =
            ["embed out", "encoder.layers.0.q", "encoder.out", "h0", "decoder.layers.0.q", "decoder.layers.0.h"];
        let nodes = open(&order, &[]).among(decoder(&BTreeSet::new(), &BTreeSet::new(), |_| false), 0);
        let met = names(&nodes, &order);
        assert_eq!(
            met.iter().filter(|name| *name != "h0").collect::<Vec<_>>(),
            ["embed out", "encoder.layers.0.q", "encoder.out", "decoder.layers.0.q", "decoder.layers.0.h"]
        );
    }

    #[test]
    fn a_stack_has_the_layers_of_a_decoder() {
        let taps = ["vision.layers.0.q", "vision.layers.1.h", "vision.layers.1.patch", "h0"];
        let nodes = open(&taps, &[]).among(decoder(&BTreeSet::new(), &BTreeSet::new(), |_| false), 0);
        assert_eq!(names(&nodes, &taps), taps);
        let q = nodes.iter().find(|node| node.tap == Tap::named(taps[0])).unwrap();
        assert_eq!((q.op.as_str(), &q.reads), ("linear", &Some(vec![Tap::named("vision.layers.0.attn_norm")])));
        let first = &nodes[0];
        assert_eq!((first.tap, &first.reads), (Tap::named("vision.layers.0.attn_norm"), &None));
    }

    #[test]
    fn a_declared_graph_counts_and_the_vocabulary_fills_it() {
        let graph: [(&str, &[&str]); 3] =
            [("h0", &[]), ("layers.0.scan", &["h0"]), ("layers.0.h", &["h0", "layers.0.scan"])];
        let open = open(&["h0", "layers.0.scan", "layers.0.h", "logits"], &graph);
        let nodes = open.among(open.complete(decoder(&BTreeSet::from([0]), &BTreeSet::new(), |_| false)), 0);
        let of = ["h0", "layers.0.scan", "layers.0.h", "final_norm", "logits"];
        assert_eq!(names(&nodes, &of), of);
        let h = nodes.iter().find(|node| node.tap == Tap::layer(0, Site::H)).unwrap();
        assert_eq!(h.reads, Some(vec![Tap::named("h0"), Tap::named("layers.0.scan")]));
    }
}

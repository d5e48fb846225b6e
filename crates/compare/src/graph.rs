//! In which order are taps produced, by which operation, and who reads whom?

use std::collections::{BTreeMap, BTreeSet, HashMap};

use firstdiff_trace::{Site, Tap};

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
    /// What the operation reads.
    pub reads: Vec<Tap>,
}

/// Layers that neither dump holds any tap of, so that no place of the graph stands for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnrecordedLayers {
    /// The last layer before them that occurs.
    pub after: Option<u32>,
    /// The first layer behind them that occurs; where none does, nobody knows how many there are.
    pub before: Option<u32>,
    /// The first place behind them.
    pub reader: Place,
}

/// The taps of a run in the order they are produced, and who reads whom, over all steps.
#[derive(Clone, Debug)]
pub struct Graph {
    unrecorded: Vec<UnrecordedLayers>,
    places: Vec<Place>,
    ops: Vec<String>,
    reads: Vec<Vec<usize>>,
    readers: Vec<Vec<usize>>,
}

impl Graph {
    /// The graph of the same `nodes`, which stand in the order they are produced, in each of `steps`.
    ///
    /// Decode steps read the keys and values of every step before them. Reads of taps that no earlier node produces are
    /// left out.
    pub fn new(nodes: &[Node], steps: impl IntoIterator<Item = u32>) -> Graph {
        Graph::of_steps(steps.into_iter().map(|step| (step, nodes.to_vec())))
    }

    fn of_steps(steps: impl IntoIterator<Item = (u32, Vec<Node>)>) -> Graph {
        let mut graph = Graph {
            unrecorded: Vec::new(),
            places: Vec::new(),
            ops: Vec::new(),
            reads: Vec::new(),
            readers: Vec::new(),
        };
        let mut index: HashMap<Tap, Vec<(u32, usize)>> = HashMap::new();
        for (step, nodes) in steps {
            for node in nodes {
                let attends = matches!(node.tap.site, Site::Qk | Site::Scores | Site::Probs | Site::Context);
                let mut reads: Vec<usize> = Vec::new();
                for tap in &node.reads {
                    let cached = attends && tap.site.is_attended();
                    let made = index.get(tap).map_or(&[][..], Vec::as_slice);
                    reads.extend(made.iter().filter(|(at, _)| cached || *at == step).map(|(_, place)| place));
                }
                let here = graph.places.len();
                index.entry(node.tap).or_default().push((step, here));
                for &read in &reads {
                    graph.readers[read].push(here);
                }
                graph.places.push(Place { step, tap: node.tap });
                graph.ops.push(node.op);
                graph.readers.push(Vec::new());
                graph.reads.push(reads);
            }
        }
        graph
    }

    /// The vocabulary's own order, for runs without a model: a decoder of the layers that occur in `places`, with the optional
    /// sites (QK-norm, sandwich norms, router) that occur anywhere in them.
    pub fn of_vocabulary(places: impl IntoIterator<Item = Place>) -> Graph {
        let mut steps: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        let mut sites = BTreeSet::new();
        for place in places {
            sites.insert(place.tap.site);
            // Only layers that occur: a foreign name `layers.4000000000.q` must not cost four billion layers.
            steps.entry(place.step).or_default().extend(place.tap.layer);
        }
        let mut graph = Graph::of_steps(steps.iter().map(|(&step, layers)| (step, decoder(layers, &sites))));
        graph.unrecorded = steps.iter().flat_map(|(&step, layers)| unrecorded(step, layers)).collect();
        graph
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
    pub fn nearest_before(&self, index: usize, stop: impl Fn(usize) -> bool) -> (Vec<usize>, Vec<usize>) {
        walk(&self.reads, index, stop)
    }

    /// The nearest places after `index` for which `stop` holds, and those passed on the way; both in order.
    pub fn nearest_after(&self, index: usize, stop: impl Fn(usize) -> bool) -> (Vec<usize>, Vec<usize>) {
        walk(&self.readers, index, stop)
    }
}

/// A pre-norm decoder of these layers.
fn decoder(layers: &BTreeSet<u32>, sites: &BTreeSet<Site>) -> Vec<Node> {
    let outer = |site, reads| Node { tap: Tap { layer: None, site }, op: op_of(site).into(), reads };
    let mut nodes = vec![outer(Site::H0, Vec::new())];
    let mut stream = nodes[0].tap;
    for &layer in layers {
        let at = |site| Tap::layer(layer, site);
        for &site in Site::ALL.iter().filter(|s| s.in_layer() && (!is_optional(**s) || sites.contains(s))) {
            let mut reads: Vec<Tap> = reads_of(site, sites).into_iter().map(at).collect();
            if matches!(site, Site::AttnNorm | Site::HAttn) {
                reads.insert(0, stream);
            }
            nodes.push(Node { tap: at(site), op: op_of(site).into(), reads });
        }
        stream = at(Site::H);
    }
    nodes.push(outer(Site::FinalNorm, vec![stream]));
    let last = nodes[nodes.len() - 1].tap;
    nodes.push(outer(Site::Logits, vec![last]));
    nodes
}

/// Where the layers of a step do not follow one upon the other. Behind the last that occurs others may come, unless all from the first on occur.
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

fn walk(edges: &[Vec<usize>], from: usize, stop: impl Fn(usize) -> bool) -> (Vec<usize>, Vec<usize>) {
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

fn is_optional(site: Site) -> bool {
    use Site::{AttnPostNorm, FfnPostNorm, KNorm, QNorm, RouterLogits, RouterProbs};
    matches!(site, QNorm | KNorm | AttnPostNorm | FfnPostNorm | RouterLogits | RouterProbs)
}

/// What a site of a layer reads within the layer.
fn reads_of(site: Site, sites: &BTreeSet<Site>) -> Vec<Site> {
    let or = |optional, otherwise| if sites.contains(&optional) { optional } else { otherwise };
    match site {
        Site::Q | Site::K | Site::V => vec![Site::AttnNorm],
        Site::QNorm => vec![Site::Q],
        Site::KNorm => vec![Site::K],
        Site::QRope => vec![or(Site::QNorm, Site::Q)],
        Site::KRope => vec![or(Site::KNorm, Site::K)],
        Site::Qk => vec![Site::QRope, Site::KRope],
        Site::Scores => vec![Site::Qk],
        Site::Probs => vec![Site::Scores],
        Site::Context => vec![Site::Probs, Site::V],
        Site::AttnOut => vec![Site::Context],
        Site::AttnPostNorm => vec![Site::AttnOut],
        Site::HAttn => vec![or(Site::AttnPostNorm, Site::AttnOut)],
        Site::FfnNorm => vec![Site::HAttn],
        Site::FfnGate | Site::FfnUp | Site::RouterLogits => vec![Site::FfnNorm],
        Site::FfnAct => vec![Site::FfnGate, Site::FfnUp],
        Site::RouterProbs => vec![Site::RouterLogits],
        Site::FfnOut if sites.contains(&Site::RouterProbs) => vec![Site::FfnNorm, Site::RouterProbs, Site::FfnAct],
        Site::FfnOut => vec![Site::FfnAct],
        Site::FfnPostNorm => vec![Site::FfnOut],
        Site::H => vec![Site::HAttn, or(Site::FfnPostNorm, Site::FfnOut)],
        Site::H0 | Site::AttnNorm | Site::FinalNorm | Site::Logits => Vec::new(),
    }
}

/// The operation that makes a site, as reports name it.
pub fn op_of(site: Site) -> &'static str {
    match site {
        Site::H0 => "embedding",
        Site::AttnNorm
        | Site::QNorm
        | Site::KNorm
        | Site::AttnPostNorm
        | Site::FfnNorm
        | Site::FfnPostNorm
        | Site::FinalNorm => "rms_norm",
        Site::Q
        | Site::K
        | Site::V
        | Site::AttnOut
        | Site::FfnGate
        | Site::FfnUp
        | Site::FfnOut
        | Site::RouterLogits => "linear",
        Site::QRope | Site::KRope => "rope",
        Site::Qk => "qk",
        Site::Scores => "scores",
        Site::Probs | Site::RouterProbs => "softmax",
        Site::Context => "context",
        Site::HAttn | Site::H => "residual",
        Site::FfnAct => "gated",
        Site::Logits => "head",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(steps: u32) -> Graph {
        let taps = ["h0", "layers.0.q", "layers.1.h", "logits"].map(|t| t.parse().unwrap());
        Graph::of_vocabulary((0..steps).flat_map(|step| taps.map(|tap| Place { step, tap })))
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
        assert!(Graph::of_vocabulary([Place { step: 4_000_000_000, tap }]).places().len() < 40);
    }
}

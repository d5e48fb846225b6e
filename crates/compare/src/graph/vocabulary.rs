//! Defines the taps of a pre-norm decoder, the operation that makes each, and what it reads.

use std::collections::BTreeSet;

use firstdiff_trace::{Site, Tap};

use super::Node;

/// The name of an operation that is not known.
pub(super) const UNKNOWN: &str = "unknown";

/// A pre-norm decoder of these layers; of a layer that `is_other`, only the stream behind it is known.
pub(super) fn decoder(layers: &BTreeSet<u32>, sites: &BTreeSet<Site>, is_other: impl Fn(u32) -> bool) -> Vec<Node> {
    let outer = |site, reads| Node { tap: Tap { layer: None, site }, op: op_of(site).into(), reads: Some(reads) };
    let mut nodes = vec![outer(Site::H0, Vec::new())];
    let mut stream = nodes[0].tap;
    for &layer in layers {
        match is_other(layer) {
            true => nodes.push(Node {
                tap: Tap::layer(layer, Site::H),
                op: op_of(Site::H).into(),
                reads: Some(vec![stream]),
            }),
            false => nodes.extend(layer_nodes(|site| Tap::layer(layer, site), Some(stream), sites)),
        }
        stream = Tap::layer(layer, Site::H);
    }
    nodes.push(outer(Site::FinalNorm, vec![stream]));
    let last = nodes[nodes.len() - 1].tap;
    nodes.push(outer(Site::Logits, vec![last]));
    nodes
}

/// The operations of one layer, each of whose taps is `at` its site; `stream` is what the layer reads, where that is known.
pub(super) fn layer_nodes(at: impl Fn(Site) -> Tap, stream: Option<Tap>, sites: &BTreeSet<Site>) -> Vec<Node> {
    let node = |&site: &Site| {
        let mut reads: Vec<Tap> = reads_of(site, sites).into_iter().map(&at).collect();
        let of_stream = matches!(site, Site::AttnNorm | Site::HAttn);
        if let Some(stream) = stream.filter(|_| of_stream) {
            reads.insert(0, stream);
        }
        let is_known = !of_stream || stream.is_some();
        Node { tap: at(site), op: op_of(site).into(), reads: is_known.then_some(reads) }
    };
    let occurs = |site: &&Site| site.in_layer() && (!is_optional(**site) || sites.contains(site));
    Site::ALL.iter().filter(occurs).map(node).collect()
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
        Site::H0 | Site::AttnNorm | Site::FinalNorm | Site::Logits | Site::Open(_) => Vec::new(),
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
        Site::Open(_) => UNKNOWN,
    }
}

//! Which mistakes can be made in a stretch of steps, and in which places at once? Engines share code: between layers, and between sites.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use firstdiff_compare::Place;
use firstdiff_model::{Chunk, Op, Profile};
use firstdiff_trace::{Site, Tap};

use crate::mistakes::precision::PRECISION;
use crate::mistakes::rounding::usual;
use crate::mistakes::{Edit, Mistake, Onset, Seen, fitted, fitted_fills, listed, rounded, without_mask};
use crate::search::Search;
use crate::search::proof::Target;
use crate::search::simulate::Simulation;

/// A mistake, wherever it is made.
#[derive(Clone)]
pub(crate) struct Candidate {
    pub(crate) key: String,
    pub(crate) edits: Vec<Edit>,
    /// Whether it is made in one layer, and a candidate of its own makes it in all.
    pub(crate) one_of_several: bool,
    /// Whether two taps have each the other's tensor.
    pub(crate) exchanged: bool,
}

impl Candidate {
    /// The same mistake with another value of the parameter that may have any.
    pub(crate) fn tuned(&self, value: f64) -> Candidate {
        let edits: Vec<Edit> = self.edits.iter().map(|e| e.tuned(value)).collect();
        Candidate { key: edits[0].key(), edits, one_of_several: self.one_of_several, exchanged: false }
    }

    /// The same mistake, made from a later decode step on.
    pub(crate) fn beginning(&self, onset: Onset) -> Candidate {
        Candidate { edits: self.edits.iter().map(|e| e.beginning(onset)).collect(), ..self.clone() }
    }

    pub(crate) fn mistake(&self) -> &'static Mistake {
        self.edits[0].mistake
    }

    pub(crate) fn id(&self) -> &'static str {
        self.mistake().id
    }
}

/// Sites that share one piece of an engine's code.
const SCOPES: &[&[Site]] = &[
    &[Site::QRope, Site::KRope],
    &[Site::AttnNorm, Site::FfnNorm, Site::FinalNorm],
    &[Site::AttnNorm, Site::FfnNorm, Site::FinalNorm, Site::QNorm, Site::KNorm],
    &[Site::AttnNorm, Site::FfnNorm],
    &[Site::QNorm, Site::KNorm],
    &[Site::Q, Site::K, Site::V],
    &[Site::Q, Site::K],
    &[Site::K, Site::V],
    &[Site::Q, Site::K, Site::V, Site::AttnOut],
    &[Site::FfnGate, Site::FfnUp],
    &[Site::FfnGate, Site::FfnUp, Site::FfnOut],
    &[Site::Q, Site::K, Site::V, Site::AttnOut, Site::FfnGate, Site::FfnUp, Site::FfnOut],
    &[Site::Q, Site::K, Site::V, Site::AttnOut, Site::FfnGate, Site::FfnUp, Site::FfnOut, Site::Logits],
    &[Site::H0, Site::Q, Site::K, Site::V, Site::AttnOut, Site::FfnGate, Site::FfnUp, Site::FfnOut],
    &[Site::H0, Site::Q, Site::K, Site::V, Site::AttnOut, Site::FfnGate, Site::FfnUp, Site::FfnOut, Site::Logits],
    ALL,
    ALL.split_at(3).1,
    &[Site::Qk, Site::Context],
    &[Site::HAttn, Site::H],
    &[Site::Scores, Site::Probs],
    &[Site::QNorm, Site::KNorm, Site::QRope, Site::KRope, Site::Qk],
];

/// Every site with weights: first those outside the layers.
const ALL: &[Site] = &[
    Site::H0,
    Site::FinalNorm,
    Site::Logits,
    Site::AttnNorm,
    Site::Q,
    Site::K,
    Site::V,
    Site::QNorm,
    Site::KNorm,
    Site::AttnOut,
    Site::FfnNorm,
    Site::FfnGate,
    Site::FfnUp,
    Site::FfnOut,
];

/// Projections that are taken for each other.
const EXCHANGED: &[(Site, Site)] =
    &[(Site::K, Site::V), (Site::FfnGate, Site::FfnUp), (Site::Q, Site::K), (Site::Q, Site::V)];

impl Search<'_, '_> {
    /// Every mistake that can be made in the steps of the target.
    pub(crate) fn candidates(&self, target: &Target<'_>) -> Vec<Candidate> {
        let recorded = self.recorded();
        let mut all: Vec<Edit> = Vec::new();
        for step in &target.steps {
            if matches!(step.op, Op::Embedding { .. }) && !self.run.known {
                continue;
            }
            all.extend(listed(recorded.model, step, &recorded.tokens));
        }
        match target.is_span() {
            true => all.extend(self.fitted_fills(target)),
            false => all.extend(self.fitted(target)),
        }
        let has = |edit: &Edit| self.accepted.iter().any(|old| old.is_made_as(edit));
        all.retain(|edit| !has(edit) && self.effort.tries(edit.mistake));
        match target.is_span() {
            true => grouped(all, target).into_iter().chain(self.rounded(target)).collect(),
            false => all.into_iter().map(single).collect(),
        }
    }

    /// Weights and activations rounded to few bits, in every product of a stretch at once; with the embedding, and without.
    fn rounded(&self, target: &Target<'_>) -> Vec<Candidate> {
        if !self.effort.tries(&PRECISION) {
            return Vec::new();
        }
        let model = self.recorded().model;
        let of = |embedding: bool, rounding| {
            let steps = target.steps.iter().filter(|s| embedding || !matches!(s.op, Op::Embedding { .. }));
            let edits: Vec<Edit> = steps.filter_map(|step| rounded(model, step, rounding)).collect();
            let made = |old: &Edit| edits.iter().any(|new| new.tap == old.tap && new.key() == old.key());
            let several =
                edits.iter().map(|e| e.tap.site).collect::<HashSet<_>>().len() >= crate::mistakes::rounding::KINDS;
            (several && !self.accepted.iter().any(made)).then(|| Candidate {
                key: edits[0].key(),
                edits,
                one_of_several: false,
                exchanged: false,
            })
        };
        let looked_up = self.run.known && target.steps.iter().any(|s| matches!(s.op, Op::Embedding { .. }));
        let ways: &[bool] = if looked_up { &[false, true] } else { &[false] };
        usual().flat_map(|rounding| ways.iter().filter_map(move |&way| of(way, rounding))).collect()
    }

    /// Fills of a mask, where the probabilities were recorded and the scores were not.
    fn fitted_fills(&self, target: &Target<'_>) -> Vec<Edit> {
        let scores =
            target.steps.iter().find(|s| matches!(s.op, Op::Scores(_)) && s.tap.layer == target.place.tap.layer);
        let Some(scores) = scores.filter(|_| target.step.op == Op::Softmax && target.positions.is_none()) else {
            return Vec::new();
        };
        let recorded = self.recorded();
        let place = Place { tap: scores.tap, ..target.place };
        let open = without_mask(recorded.model, scores);
        let open = Simulation::new(recorded, Profile::Exact, self.shared, &open, place, None).run();
        open.map_or_else(Vec::new, |open| fitted_fills(recorded.model, scores, &target.own, &open))
    }

    /// Those whose parameter the numbers give.
    fn fitted(&self, target: &Target<'_>) -> Vec<Edit> {
        let recorded = self.recorded();
        let number = target.place.step;
        let inputs = match &target.row_inputs {
            Some(inputs) => Some(inputs.clone()),
            None => Simulation::new(recorded, Profile::Exact, self.shared, [], target.place, None)
                .inputs(target.step, number),
        };
        let (Some(inputs), Some(right)) = (inputs, self.value(target, &[], Profile::Exact)) else { return Vec::new() };
        let Some(tokens) = recorded.tokens.get(number as usize) else { return Vec::new() };
        let mut start = recorded.start(number);
        let mut tokens = tokens.as_slice();
        if let (Some(_), Some(list)) = (&target.row_inputs, &target.positions) {
            // One run of positions, or none.
            let [first, ..] = list[..] else { return Vec::new() };
            if list.windows(2).any(|pair| pair[1] != pair[0] + 1) {
                return Vec::new();
            }
            start += first;
            tokens = &tokens[first..first + list.len()];
        } else if target.positions.is_some() {
            return Vec::new();
        }
        let seen = Seen { inputs: &inputs, own: &target.own, right: &right, chunk: Chunk { tokens, start } };
        fitted(recorded.model, target.step, &seen)
    }
}

/// The sets of a beam, each with one more candidate.
pub(crate) fn extended(beam: &[Vec<usize>], by: &[usize], candidates: &[Candidate]) -> Vec<Vec<usize>> {
    let mut known = HashSet::new();
    let mut sets = Vec::new();
    for set in beam {
        for &at in by {
            let rounding = |at: usize| candidates[at].mistake().is_another_arithmetic;
            if !set.is_empty() && (rounding(at) || set.iter().any(|&other| rounding(other))) {
                continue;
            }
            // Two mistakes in one step are as many as its numbers tell apart.
            let crowded = |tap: Tap| {
                set.iter().filter(|&&other| candidates[other].edits.iter().any(|e| e.tap == tap)).count() > 1
            };
            let contradicts = |&other: &usize| {
                let [one, two] = [at, other].map(|at| candidates[at].mistake().one_of);
                one.is_some() && one == two && overlap(&candidates[other], &candidates[at])
            };
            if set.iter().any(contradicts) || candidates[at].edits.iter().any(|e| crowded(e.tap)) {
                continue;
            }
            if set.contains(&at)
                || set.iter().any(|&other| {
                    candidates[other].id() == candidates[at].id() && overlap(&candidates[other], &candidates[at])
                })
            {
                continue;
            }
            let shares = set.iter().any(|&other| overlap(&candidates[other], &candidates[at]));
            let mut unordered: Vec<usize> = set.iter().copied().chain([at]).collect();
            let grown = unordered.clone();
            unordered.sort_unstable();
            if known.insert(unordered) {
                if shares {
                    let mut turned = grown.clone();
                    turned.reverse();
                    sets.push(turned);
                }
                sets.push(grown);
            }
        }
    }
    sets
}

fn overlap(a: &Candidate, b: &Candidate) -> bool {
    a.edits.iter().any(|x| b.edits.iter().any(|y| x.tap == y.tap))
}

pub(crate) fn edits_of<'c>(set: &[usize], candidates: &'c [Candidate]) -> Vec<&'c Edit> {
    set.iter().flat_map(|&at| &candidates[at].edits).collect()
}

fn single(edit: Edit) -> Candidate {
    Candidate { key: edit.key(), edits: vec![edit], one_of_several: false, exchanged: false }
}

/// The same mistake at one site in all layers of a stretch, at the sites of a scope, and, over several layers, in each alone.
fn grouped(mut all: Vec<Edit>, target: &Target<'_>) -> Vec<Candidate> {
    let layers: BTreeSet<u32> = target.steps.iter().filter_map(|s| s.tap.layer).collect();
    let layered = layers.len() > 1;
    // No engine has one layer's weights in all; and before the first decoded token no cache is read.
    let too_early = |e: &Edit| target.place.step == 0 && e.mistake.in_the_cache;
    all.retain(|e| !(layered && e.names_a_layer() || too_early(e)));
    let mut order: Vec<String> = Vec::new();
    let mut by_key: BTreeMap<String, Vec<Edit>> = BTreeMap::new();
    let mut taken: HashSet<(String, Tap)> = HashSet::new();
    for edit in all {
        let mut key = edit.key();
        // A second way of the same name in the same place.
        while !taken.insert((key.clone(), edit.tap)) {
            key.push('\'');
        }
        if !by_key.contains_key(&key) {
            order.push(key.clone());
        }
        by_key.entry(key).or_default().push(edit);
    }
    let mut out = Vec::new();
    for key in &order {
        let edits = &by_key[key];
        let of =
            |wanted: &[Site]| -> Vec<Edit> { edits.iter().filter(|e| wanted.contains(&e.tap.site)).cloned().collect() };
        let mut seen: HashSet<Vec<Site>> = HashSet::new();
        let own: HashSet<Site> = edits.iter().map(|e| e.tap.site).collect();
        let singles: Vec<[Site; 1]> = order_of(edits).into_iter().map(|site| [site]).collect();
        let scopes = SCOPES.iter().copied().chain(singles.iter().map(|s| s.as_slice()));
        for scope in scopes {
            let mut there: Vec<Site> = scope.iter().copied().filter(|site| own.contains(site)).collect();
            there.sort_unstable();
            let complete = edits.iter().find(|e| there.contains(&e.tap.site)).is_none_or(|e| {
                // A cache of keys or of values may be wrong by itself.
                let together = e.mistake.made_together;
                e.mistake.in_the_cache || together.iter().all(|site| !own.contains(site) || there.contains(site))
            });
            let everywhere = edits[0].mistake.of_all_matrices;
            if there.is_empty() || everywhere && layered && scope.len() < 7 || !complete || !seen.insert(there.clone())
            {
                continue;
            }
            out.push(Candidate { key: key.clone(), edits: of(&there), one_of_several: false, exchanged: false });
        }
    }
    for &(a, b) in EXCHANGED {
        let one = |site: Site, with: Site| {
            let is = move |e: &&Edit| e.tap.site == site && e.has_weights_of(with);
            // Where there are biases, both ways are listed: the first of each tap.
            let mut taps = HashSet::new();
            by_key.values().flatten().filter(is).filter(|e| taps.insert(e.tap)).cloned().collect::<Vec<Edit>>()
        };
        let (left, right) = (one(a, b), one(b, a));
        if !left.is_empty() && !right.is_empty() {
            out.push(Candidate {
                key: format!("{} exchanged", left[0].mistake.id),
                edits: [left, right].concat(),
                one_of_several: false,
                exchanged: true,
            });
        }
    }
    if layered {
        let whole = out.clone();
        for layer in layers {
            for candidate in &whole {
                let edits: Vec<Edit> = candidate.edits.iter().filter(|e| e.tap.layer == Some(layer)).cloned().collect();
                if !edits.is_empty() && edits.len() < candidate.edits.len() {
                    out.push(Candidate {
                        key: candidate.key.clone(),
                        edits,
                        one_of_several: true,
                        exchanged: candidate.exchanged,
                    });
                }
            }
        }
    }
    out
}

/// The sites of edits, each once, in their order.
pub(crate) fn order_of(edits: &[Edit]) -> Vec<Site> {
    let mut sites = Vec::new();
    for edit in edits {
        if !sites.contains(&edit.tap.site) {
            sites.push(edit.tap.site);
        }
    }
    sites
}

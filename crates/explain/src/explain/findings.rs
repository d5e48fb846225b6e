//! Makes findings of what was found: each cause once, with all its places; what holds in one place only is taken back.

use std::collections::BTreeSet;

use firstdiff_compare::Place;
use firstdiff_trace::{Site, Tap};

use crate::explain::{Cause, Finding, Match, Remainder};
use crate::mistakes::attention::is_of_a_cache;
use crate::mistakes::feed_forward::GATE_UP_SWAPPED;
use crate::mistakes::linear::WEIGHT_SWAPPED;
use crate::tolerance::search::{FITTED_ALIKE, WELL_BELOW};

/// A mistake that laws name at several taps is one, and so is one law of several: one function of the engine computes all of them. Each is added to the
/// first; `order` is that of the operations.
pub(crate) fn join_named(findings: &mut Vec<Finding>, order: impl Fn(Tap) -> usize) {
    let is_one = |known: &Finding, other: &Finding| {
        let law = known.measured.is_some() || other.measured.is_some();
        let stated = [known, other].iter().all(|f| f.matched == Match::Reproduced && f.is_blamed());
        let same = known.cause.as_ref().zip(other.cause.as_ref()).is_some_and(|(a, b)| is_same(a, b, FITTED_ALIKE));
        let laws = known.measured.as_ref().zip(other.measured.as_ref());
        let unnamed = [known, other].iter().all(|f| f.matched == Match::Measured);
        law && stated && same || unnamed && laws.is_some_and(|(a, b)| a.law.words == b.law.words)
    };
    folded(findings, is_one, |known| {
        known.taps.sort_by_key(|&tap| order(tap));
        known.taps.dedup();
    });
}

/// Adds each finding to the first one that it is one with, and looks again: what was added may make it one with others.
fn folded(findings: &mut Vec<Finding>, is_one: impl Fn(&Finding, &Finding) -> bool, settle: impl Fn(&mut Finding)) {
    let mut at = 0;
    while at < findings.len() {
        let other = &findings[at];
        match findings[..at].iter().position(|known| is_one(known, other)) {
            Some(known) => {
                let other = findings.remove(at);
                findings[known].take_in(other);
                settle(&mut findings[known]);
                at = 0;
            }
            None => at += 1,
        }
    }
}

/// The matrices of gate and up, each in the place of the other, are one mistake.
pub(crate) fn exchange_gate_and_up(findings: &mut Vec<Finding>) {
    let are_of = |finding: &Finding, site: Site| finding.taps.iter().all(|tap| tap.last_site() == site);
    let blocks = |finding: &Finding| finding.taps.iter().map(Tap::block).collect::<BTreeSet<_>>();
    let is_one = |known: &Finding, other: &Finding| {
        let are_swapped =
            [known, other].iter().all(|f| f.matched == Match::Reproduced && f.has_cause(|m| m == &WEIGHT_SWAPPED));
        let sites = [[Site::FfnGate, Site::FfnUp], [Site::FfnUp, Site::FfnGate]];
        let are_both = sites.iter().any(|[a, b]| are_of(known, *a) && are_of(other, *b));
        // Where both were recorded each is wrong in itself.
        let are_between = [known, other].iter().all(|f| f.shown_at.iter().all(|place| !f.taps.contains(&place.tap)));
        are_swapped && are_both && are_between && blocks(known) == blocks(other)
    };
    let settle = |finding: &mut Finding| finding.cause = Some(Cause { id: GATE_UP_SWAPPED.id, params: Vec::new() });
    folded(findings, is_one, settle);
}

/// Where tokens stand is not to be told where nobody says which they are, and of how many.
pub(crate) fn of_no_known_positions(findings: &mut [Finding]) {
    let shift = |cause: &Cause| {
        cause.params.iter().any(|(name, _)| cause.param(name).is_some_and(|param| param.needs_positions))
    };
    for finding in findings.iter_mut().filter(|f| f.cause.as_ref().is_some_and(shift)) {
        let why = "token ids unknown; pass --tokens: these may be others of a longer run, at their own positions (and --rows where these are the last)";
        take_back(finding, why.to_owned());
    }
}

/// Mistakes in the cache that begin with a later decode step and were seen in one alone: a newest token that is not there when it is read, and one that was
/// written into another slot, are the same then.
pub(crate) fn seen_once(findings: &mut [Finding], is_recorded: impl Fn(Place) -> bool) {
    let of_a_cache = |f: &&mut Finding| f.cause.as_ref().is_some_and(|cause| is_of_a_cache(cause.id));
    for finding in findings.iter_mut().filter(|f| f.matched == Match::Reproduced).filter(of_a_cache) {
        let steps: BTreeSet<u32> = finding.shown_at.iter().map(|place| place.step).collect();
        let before = |place: &Place| is_recorded(Place { step: place.step - 1, ..*place });
        if steps.len() == 1 && steps.iter().all(|&step| step > 1) && !finding.shown_at.iter().any(before) {
            let why = "it was seen in one decode step alone, where every mistake that leaves the newest token out looks the same; record the steps beside it";
            take_back(finding, why.to_owned());
        }
    }
}

/// What leaves about as much as there was is shown by nothing, wherever the judge takes both for rounding.
pub(crate) fn show_nothing(findings: &mut [Finding]) {
    let is_shown = |rest: &Remainder| rest.residual_nmse <= WELL_BELOW * rest.base_nmse || rest.base_nmse.is_infinite();
    let stated = |f: &&mut Finding| f.matched == Match::Reproduced && !f.remainders.is_empty();
    for finding in findings.iter_mut().filter(stated).filter(|f| !f.remainders.iter().any(is_shown)) {
        let why = "it leaves about as much as there was: these numbers, as small as rounding, do not show it";
        take_back(finding, why.to_owned());
    }
}

/// What looked like a cause is none, for this reason.
fn take_back(finding: &mut Finding, why: String) {
    finding.matched = Match::Closest;
    finding.alternatives = finding.cause.take().into_iter().collect();
    finding.note = Some(why);
}

/// Whether two causes are one, their numbers differing by no more than a share.
fn is_same(a: &Cause, b: &Cause, share: f64) -> bool {
    let equal = |x: &serde_json::Value, y: &serde_json::Value| {
        x == y || x.as_f64().zip(y.as_f64()).is_some_and(|(x, y)| (x - y).abs() <= share * x.abs())
    };
    a.id == b.id
        && a.params.len() == b.params.len()
        && a.params.iter().zip(&b.params).all(|(x, y)| x.0 == y.0 && equal(&x.1, &y.1))
}

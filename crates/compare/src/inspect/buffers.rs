//! Finds one buffer recorded under two names: taps of one step, or of two, that are bit for bit equal.

use std::collections::{BTreeMap, BTreeSet};

use firstdiff_trace::Site;

use super::finding::{Certainty, InspectFinding};
use super::seen::InspectedDump;
use super::stream::{SUM, branch, input};
use super::tally::{Summary, at, embeddings_of_step};
use crate::graph::Place;
use crate::tolerance::inspect::{BRANCH_LOST, BY_CHANCE};

const SHARED: &str = "same-buffer";

/// Finds streams that equal another bit for bit. `reported` are the earlier findings: nothing is reported twice for a stream that was already checked.
pub(super) fn find_shared_buffers(
    run: &InspectedDump<'_>,
    known: &[Summary],
    reported: &[InspectFinding],
) -> Vec<InspectFinding> {
    let telling = |s: &&Summary| s.count >= BY_CHANCE && !s.constant && s.finite;
    let mut by_hash: BTreeMap<(u32, u64, usize), Vec<&Summary>> = BTreeMap::new();
    for tap in known.iter().filter(telling) {
        by_hash.entry((tap.place.step, tap.hash, tap.count)).or_default().push(tap);
    }
    let still = |s: &Summary| matches!(s.place.tap.site, Site::H0 | Site::HAttn | Site::H);
    let skipped = by_hash.values().any(|group| group.iter().filter(|s| still(s)).count() > 1);
    let pairs = by_hash.values().flat_map(|group| group.windows(2));
    let mut found: Vec<InspectFinding> =
        pairs.filter_map(|pair| check_equal_pair(run, pair[0], pair[1], skipped)).collect();
    let streams = by_hash.values().flat_map(|group| group.windows(2)).filter(|pair| pair.iter().all(|s| still(s)));
    let summed: BTreeSet<Place> = reported.iter().filter(|f| f.what == SUM).map(|f| f.place).collect();
    found.extend(streams.filter_map(|pair| find_unrecorded_sum(run, known, &summed, pair[0], pair[1])));
    found.extend(find_stale_steps(run, known));
    found
}

fn check_equal_pair(run: &InspectedDump<'_>, one: &Summary, other: &Summary, skipped: bool) -> Option<InspectFinding> {
    let (sure, points) = meaning(run, one, other, skipped)?;
    let text = format!("equals {} bit for bit", one.place.tap);
    Some(InspectFinding::new(sure, SHARED, other.place, text).to(points).with_others([one.place.tap]))
}

/// What it means that `other` equals `one`, which comes before it; `None` where right runs do that too.
fn meaning(
    run: &InspectedDump<'_>,
    one: &Summary,
    other: &Summary,
    skipped: bool,
) -> Option<(Certainty, &'static str)> {
    use Certainty::{Likely, Note};
    use Site::*;
    let sites = (one.place.tap.site, other.place.tap.site);
    let layers = one.place.tap.layer == other.place.tap.layer;
    Some(match sites {
        // Checked in rope.rs.
        (Q | QNorm, QRope) | (K | KNorm, KRope) => return None,
        // With one token, attention returns its value.
        (V, Context) if one.rows == 1 => return None,
        (Qk, Scores) => (Note, "scores without scale and mask (score-scale), or recorded before them"),
        (H0 | HAttn | H, HAttn | H) => return unchanged(run, other),
        (AttnOut | AttnPostNorm, HAttn) | (FfnOut | FfnPostNorm, H) if is_sum_checked(run, other) => return None,
        (AttnOut | AttnPostNorm, HAttn) | (FfnOut | FfnPostNorm, H) => {
            (run.law().max(Likely), "the residual left out (residual-omitted), or one buffer recorded after its sum")
        }
        (H, FinalNorm) => {
            (Likely, "final norm left out, or Hugging Face's hidden_states[-1] taken for h, which is already normed")
        }
        (H0 | H | HAttn, AttnNorm | FfnNorm) | (Q, QNorm) | (K, KNorm) => (Likely, "the norm left out (norm-omitted)"),
        (AttnOut, AttnPostNorm) | (FfnOut, FfnPostNorm) => (Likely, "the norm left out (norm-omitted)"),
        (FfnGate, FfnUp) => (run.law(), "one weight used (weight-swapped), or one buffer recorded, for both"),
        (AttnNorm, FfnNorm) if layers && run.law() != Certainty::Certain => {
            (Note, "one norm for both, as in models whose blocks are parallel (GPT-J, Falcon, Cohere)")
        }
        (FfnGate | FfnUp, FfnAct) => (Likely, "no activation, or no product (activation, gate-product)"),
        (K, V) if layers => (Likely, "one weight used (weight-swapped), or one buffer recorded, for both"),
        (K | KNorm | KRope | V, K | KNorm | KRope | V) if !layers => {
            (Likely, "one layer's cache or weights for all (weight-wrong-layer), unless layers share keys and values")
        }
        (a, b) if a == b && (skipped || one.place.tap.site.axes().contains(&'S')) => {
            (Likely, "one layer run for another, or its buffer recorded twice")
        }
        (RouterLogits, RouterProbs) => (Likely, "no softmax (router-norm)"),
        _ => (run.law(), "one buffer for both: overwritten before it was read or recorded (aliasing)"),
    })
}

/// Whether stream.rs has checked the sum of `tap`.
fn is_sum_checked(run: &InspectedDump<'_>, tap: &Summary) -> bool {
    let stream = match tap.place.tap.site {
        Site::HAttn => input(run, tap.place).is_some(),
        _ => run.find(Site::HAttn, tap.place).is_some(),
    };
    stream && branch(run, tap.place).is_some()
}

/// A stream that does not change; stream.rs has checked it where the branch was recorded.
fn unchanged(run: &InspectedDump<'_>, tap: &Summary) -> Option<(Certainty, &'static str)> {
    (!is_sum_checked(run, tap)).then_some((Certainty::Likely, "a layer or a branch that adds nothing (layer-skipped)"))
}

/// A stream that equals an earlier one, though a branch that is not zero was added in between and the sum is right: one of the two was recorded wrongly.
fn find_unrecorded_sum(
    run: &InspectedDump<'_>,
    known: &[Summary],
    reported: &BTreeSet<Place>,
    one: &Summary,
    other: &Summary,
) -> Option<InspectFinding> {
    let looked_at = reported.contains(&one.place) || reported.contains(&other.place);
    let (added, _) = branch(run, other.place).filter(|_| is_sum_checked(run, other) && !looked_at)?;
    let level = at(known, Place { tap: added, ..other.place })?.level;
    (level > BRANCH_LOST * other.level).then(|| {
        let text = format!("equals {} bit for bit, and {added} is not 0", one.place.tap);
        let finding =
            InspectFinding::new(Certainty::Likely, SHARED, other.place, text).with_others([one.place.tap, added]);
        finding.to("one buffer recorded under two names, or a sum that is not passed on (aliasing, layer-skipped)")
    })
}

/// Taps of a decode step that still hold the previous step's values, though another token was fed.
fn find_stale_steps(run: &InspectedDump<'_>, known: &[Summary]) -> Vec<InspectFinding> {
    let mut found = Vec::new();
    for tap in known.iter().filter(|s| s.place.step > 0 && s.count >= BY_CHANCE && !s.constant && s.finite) {
        // Rare tokens may share an embedding, and all that is computed from it before any attention.
        let later = tap.place.tap.layer.is_none_or(|layer| layer > 0) && tap.place.tap.site != Site::H0;
        let before = last_step(known, tap).filter(|s| s.hash == tap.hash && s.count == tap.count);
        if let Some(before) = before.filter(|_| later && other_token(run, known, tap.place.step)) {
            let text = format!("equals that of step {} bit for bit", before.place.step);
            let finding = InspectFinding::new(Certainty::Likely, "same-as-last-step", tap.place, text);
            found
                .push(finding.to("a buffer that was not written in this step, or recorded too early (kv-cache-stale)"));
        }
    }
    found
}

fn last_step<'a>(known: &'a [Summary], tap: &Summary) -> Option<&'a Summary> {
    at(known, Place { step: tap.place.step.checked_sub(1)?, ..tap.place })
}

/// Whether a step was fed another token than the one before. Where the window is full, the same token may change nothing.
fn other_token(run: &InspectedDump<'_>, known: &[Summary], step: u32) -> bool {
    if let (Some(now), Some(before)) = (run.tokens(step), run.tokens(step - 1)) {
        return now.last() != before.last();
    }
    embeddings_of_step(known, step)
        .is_some_and(|now| last_step(known, now).is_some_and(|before| before.hash != now.hash))
}

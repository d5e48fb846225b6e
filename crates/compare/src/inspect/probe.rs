//! Notes what this dump could not have shown: few tokens, and taps that were not recorded.

use firstdiff_trace::{Entry, Site};

use super::finding::{Certainty, InspectFinding};
use super::seen::{InspectedDump, squeezed};
use super::{place_of, position_count};
use crate::conclude::coverage::same_token;

/// Notes on the tokens of the run.
pub(super) fn few_tokens(run: &InspectedDump<'_>) -> Vec<InspectFinding> {
    let Some(first) = run.dump.entries().first().map(place_of) else { return Vec::new() };
    let last = run.dump.entries().last().map_or(0, |e| e.step);
    let count = run.start(last + 1).unwrap_or(0);
    let (text, points) = match count {
        1 => (
            "the run is of one token",
            "position 0 cannot show a mistake in RoPE, scale, mask, cache or head layout: use 9 or more",
        ),
        2..=4 => ("the run is of few tokens", "rotations, masks and windows hardly show: use 9 or more"),
        _ => ("", ""),
    };
    let few = (!text.is_empty()).then(|| {
        let finding = InspectFinding::new(Certainty::Note, "few-tokens", first, format!("{text} ({count})"));
        finding.to(points).number("tokens", count as f64)
    });
    let same = same_token(run.dump)
        .map(|text| InspectFinding::new(Certainty::Note, "tokens-alike", first, text).to("use tokens that differ"));
    few.into_iter().chain(same).collect()
}

/// What was not recorded, and so not checked.
pub(super) fn not_recorded(run: &InspectedDump<'_>) -> Vec<String> {
    let entries = run.dump.entries();
    let has = |site: Site| entries.iter().any(|e| e.tap.site == site);
    let mut unseen = Vec::new();
    let mut absent = |recorded: bool, text: &str| {
        if !recorded {
            unseen.push(text.to_owned());
        }
    };
    // Of a model of several stacks, an encoder and a decoder, what is in a stack is not looked at.
    let in_stacks =
        |site: Site| run.dump.all_entries().into_iter().find(|e| e.tap.site != site && e.tap.last_site() == site);
    let or_in_stacks = |what: &str, site: Site, no: &str| match in_stacks(site) {
        Some(entry) => format!("{what} of several stacks ({})", entry.tap),
        None => format!("{what} ({no})"),
    };
    absent(has(Site::Probs), &or_in_stacks("attention", Site::Probs, "no probs"));
    let batch = run.dump.meta().sequences.is_some();
    let why = match batch {
        true => "what depends on positions: a batch of several sequences (--sequence looks at one)",
        false => "what depends on positions: flat tensors, and no 'tokens' in a dump.json",
    };
    absent(run.count(0).is_some(), why);
    let pair = |rope: Site, from: [Site; 2]| {
        entries.iter().any(|e| e.tap.site == rope && from.iter().any(|f| run.find(*f, place_of(e)).is_some()))
    };
    let (q, k) = (pair(Site::QRope, [Site::Q, Site::QNorm]), pair(Site::KRope, [Site::K, Site::KNorm]));
    absent(q || k, "rotation (no q with q_rope, no k with k_rope)");
    absent(has(Site::H), &or_in_stacks("the stream over layers", Site::H, "no h"));
    absent(
        has(Site::HAttn) && (has(Site::AttnOut) || has(Site::AttnPostNorm)),
        &or_in_stacks("residual adds", Site::HAttn, "no h_attn with attn_out"),
    );
    absent(has(Site::Logits), "logits");
    let shapes: Vec<&Entry> =
        entries.iter().filter(|e| position_count(e).is_none() && squeezed(e).len() != 2).collect();
    if let Some(first) = shapes.first() {
        unseen.push(format!(
            "rows of {} taps whose axes are not the vocabulary's (first {}, {:?})",
            shapes.len(),
            first.tap,
            first.shape
        ));
    }
    let elsewhere = |e: &&Entry| position_count(e).is_some_and(|held| run.positions(e, held).is_none());
    let is_counted = |e: &&Entry| run.start(e.step).is_some() && run.count(e.step).is_some();
    let (counted, lost): (Vec<&Entry>, Vec<&Entry>) = entries.iter().filter(elsewhere).partition(is_counted);
    let other = "of another number than the step has: other axes, or some of the positions alone (--rows)";
    for (taps, how) in [(counted, other), (lost, "say --rows, or the tokens in dump.json")] {
        if let Some(first) = taps.first().filter(|_| !batch) {
            unseen.push(format!("positions of {} taps (first {}, {:?}): {how}", taps.len(), first.tap, first.shape));
        }
    }
    let padded = |e: &&Entry| e.tap.site == Site::Probs && !run.keys_are_positions(e);
    let padded: Vec<&Entry> = entries.iter().filter(padded).collect();
    if let Some(first) = padded.first() {
        unseen.push(format!(
            "which keys {} probs look at: padded, or positions unknown (first {}, {:?})",
            padded.len(),
            first.tap,
            first.shape
        ));
    }
    unseen
}

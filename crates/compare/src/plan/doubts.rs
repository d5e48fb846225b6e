//! Finds keys and values that must not pass even where they agree: those that a dump itself puts in doubt, and those of more positions than their step has.

use std::collections::BTreeMap;

use firstdiff_trace::{Dump, Entry, Tap};

use crate::layout::rows::squeezed;
use crate::report::reason::Reason;
use crate::run::side::Side;
use crate::run::steps::Chunks;

/// Whether the shape fits the step's own positions, with heads repeated or padded, or extra elements behind each head.
fn are_own_heads(entry: &Entry, reference: &Entry, own: usize) -> bool {
    match (&squeezed(entry.tap.site, &entry.shape)[..], &reference.shape[..]) {
        ([t, heads, lanes], [_, k, d]) => *t == own && (lanes == d || heads == k),
        _ => false,
    }
}

/// The candidate's keys and values that must not pass: what the dump itself puts in doubt, and steps with more values than their positions have, which cannot
/// be separated.
pub(crate) fn doubts(reference: &Dump, candidate: &Dump) -> BTreeMap<(u32, Tap), Reason> {
    let mut doubts = BTreeMap::new();
    for (side, dump) in [(Side::Candidate, candidate), (Side::Reference, reference)] {
        doubts.extend(dump.doubts().iter().map(|(place, what)| (*place, Reason::InDoubt { side, what: what.clone() })));
    }
    let alone = candidate.entries().iter().all(|e| e.tap.site.is_attended());
    let Some(ours) = Chunks::find(reference) else { return doubts };
    let Some(theirs) = (if alone { Some(ours.clone()) } else { Chunks::find(candidate) }) else { return doubts };
    let size = |entry: &Entry| entry.shape.iter().product::<usize>();
    for entry in candidate.entries().iter().filter(|e| e.tap.site.is_attended() && e.step > 0 && e.rows.is_none()) {
        let first = reference.entries().iter().find(|e| e.tap == entry.tap && e.rows.is_none());
        let row = first.and_then(|first| size(first).checked_div(*ours.lengths.get(first.step as usize)?));
        let (Some(row), Some(&own)) = (row, theirs.lengths.get(entry.step as usize)) else { continue };
        // As many values a position as in the prefill, which has no earlier ones, are heads that stand there several times, in whatever order.
        let prefill = candidate.entries().iter().find(|e| e.tap == entry.tap && e.step == 0 && e.rows.is_none());
        let is_as_in_prefill = prefill
            .is_some_and(|prefill| theirs.lengths[0] != own && size(prefill) * own == size(entry) * theirs.lengths[0]);
        let has_own_heads = is_as_in_prefill || first.is_some_and(|first| are_own_heads(entry, first, own));
        if size(entry) > row * own && !has_own_heads {
            let more = Reason::MoreThanOwnRows { values: size(entry), positions: own, due: row * own };
            doubts.entry((entry.step, entry.tap)).or_insert(more);
        }
    }
    doubts
}

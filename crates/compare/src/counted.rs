//! How did a run take its tokens whose files say nothing of them? As many positions as it holds rows of the reference's tensors.

use std::collections::{BTreeMap, BTreeSet};

use firstdiff_trace::{Dump, Entry, Rows, Tap};

use crate::pair::position_axis;
use crate::rows::squeezed;
use crate::steps::Chunks;

/// The steps that a dump holds anything of.
pub(crate) fn steps(dump: &Dump) -> BTreeSet<u32> {
    dump.entries().iter().map(|entry| entry.step).chain(dump.parts().iter().map(|part| part.step)).collect()
}

/// The chunks of the candidate: as it says or shows, else as the reference's rows and steps count them.
pub(crate) fn chunks(candidate: &Dump, reference: &Dump, ours: &Chunks) -> Option<Chunks> {
    let own = Chunks::of(candidate);
    let unsaid = |lengths| Chunks { lengths, ids: None };
    match beyond_the_prefill(candidate, reference, ours) {
        Some(held) if own.as_ref().is_some_and(|own| own.total() == held) => own,
        Some(held) if held == ours.total() => Some(unsaid(vec![held])),
        _ => own.or_else(|| {
            let one_a_token = ours.total() > 1 && steps(candidate).into_iter().eq(0..u32::try_from(ours.total()).ok()?);
            one_a_token.then(|| unsaid(vec![1; ours.total()]))
        }),
    }
}

/// How many positions a candidate without steps holds, where these are more than the reference's prefill has and the reference has steps: the
/// rest may be of these, or padding.
pub(crate) fn beyond_the_prefill(candidate: &Dump, reference: &Dump, ours: &Chunks) -> Option<usize> {
    let (&prefill, later) = ours.lengths.split_first()?;
    if later.is_empty() || steps(candidate).last() != Some(&0) {
        return None;
    }
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    for theirs in candidate.entries().iter().filter(|entry| is_whole(entry)) {
        let ours = reference.find(theirs.tap, 0).filter(|entry| is_whole(entry));
        let held = theirs.shape.iter().product::<usize>();
        if let Some(row) = ours.and_then(|ours| row_of(ours, prefill)).filter(|&row| held.is_multiple_of(row)) {
            *counts.entry(held / row).or_default() += 1;
        }
    }
    let (held, _) = counts.into_iter().max_by_key(|&(_, taps)| taps)?;
    (held > prefill).then_some(held)
}

fn is_whole(entry: &Entry) -> bool {
    entry.rows.as_ref().is_none_or(Rows::is_all)
}

/// How many elements a tap has of each of its step's positions; none where it has an axis of keys.
fn row_of(entry: &Entry, positions: usize) -> Option<usize> {
    let held = entry.shape.iter().product::<usize>();
    let told = position_axis(entry.tap.site) == 0 && held > 0 && positions > 0 && held.is_multiple_of(positions);
    told.then(|| held / positions)
}

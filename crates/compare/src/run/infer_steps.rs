//! Infers the chunks of a run that does not record them, from how many rows of the reference's tensors it holds.

use std::collections::BTreeMap;

use firstdiff_trace::{Dump, Entry, Tap};

use crate::layout::rows::{are_all, squeezed};
use crate::run::steps::{Chunks, length_witnesses, steps};

/// The chunks of the candidate: as it declares or shows, else as the reference's rows and steps count them.
pub(crate) fn chunks(candidate: &Dump, reference: &Dump, ours: &Chunks) -> Option<Chunks> {
    let own = Chunks::find(candidate);
    let unsaid = |lengths| Chunks { lengths, ids: None };
    match beyond_the_prefill(candidate, reference, ours) {
        // However dump.json divides its ids: it has no steps.
        Some(held) if own.as_ref().is_some_and(|own| own.total() == held) => {
            own.map(|own| Chunks { lengths: vec![held], ..own })
        }
        Some(held) if held == ours.total() => Some(unsaid(vec![held])),
        _ => own.or_else(|| {
            let tokens =
                step_a_token(candidate, ours).filter(|_| holds_single_positions(candidate, reference, ours))?;
            Some(unsaid(vec![1; tokens]))
        }),
    }
}

/// The number of tokens of a dump with more steps than the reference, but no more than the reference has positions: each step is then one token, even if not
/// all are there.
fn step_a_token(candidate: &Dump, ours: &Chunks) -> Option<usize> {
    let tokens = *steps(candidate).last()? as usize + 1;
    let same_steps = tokens <= ours.lengths.len() && ours.lengths[0] > 1;
    (tokens > 1 && tokens <= ours.total() && !same_steps).then_some(tokens)
}

/// Whether no tensor has more than one position, by its axes or by the reference's rows.
fn holds_single_positions(candidate: &Dump, reference: &Dump, ours: &Chunks) -> bool {
    candidate.entries().iter().all(|entry| {
        let (site, shape) = (entry.tap.site, squeezed(entry.tap.site, &entry.shape));
        if shape.len() == site.axes().len() {
            return shape[site.position_axis()] == 1;
        }
        let row = reference
            .find(entry.tap, 0)
            .filter(|left| are_all(&left.rows))
            .and_then(|left| row_of(left, ours.lengths[0]));
        // A key/value cache holds the rows of earlier steps as well.
        site.is_attended() || row.is_none_or(|row| shape.iter().product::<usize>() == row)
    })
}

/// How many positions a candidate without steps holds, where these are more than the reference's prefill has and the reference has steps: the
/// rest may be of these, or padding.
pub(crate) fn beyond_the_prefill(candidate: &Dump, reference: &Dump, ours: &Chunks) -> Option<usize> {
    let (&prefill, later) = ours.lengths.split_first()?;
    if later.is_empty() || steps(candidate).last() != Some(&0) {
        return None;
    }
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    for theirs in length_witnesses(candidate).filter(|held| held.whole) {
        let ours = reference.find(theirs.tap, 0).filter(|entry| are_all(&entry.rows));
        let elements = theirs.shape.iter().product::<usize>();
        let Some(row) = ours.and_then(|ours| row_of(ours, prefill)).filter(|&row| elements.is_multiple_of(row)) else {
            continue;
        };
        // A tensor with all its axes shows its positions: what it holds more may be padding of its heads.
        let own = squeezed(theirs.tap.site, theirs.shape);
        let shows_positions =
            own.len() == theirs.tap.site.axes().len() && own[theirs.tap.site.position_axis()] == prefill;
        *counts.entry(if shows_positions { prefill } else { elements / row }).or_default() += 1;
    }
    let (held, _) = counts.into_iter().max_by_key(|&(_, taps)| taps)?;
    (held > prefill).then_some(held)
}

/// The dump with lists of values made into whole tensors, where it has a step for each of `tokens` tokens, and each list is as long as `shape` says one
/// position with that many keys is.
pub fn one_a_token(dump: Dump, tokens: usize, shape: impl Fn(Tap, usize) -> Option<Vec<usize>>) -> Dump {
    let Some(all) = u32::try_from(tokens).ok().filter(|&all| all > 1) else { return dump };
    if !steps(&dump).into_iter().eq(0..all) {
        return dump;
    }
    dump.completed(|part| shape(part.tap, part.step as usize + 1))
}

/// The same, by the reference's tensors.
pub(crate) fn one_a_token_by(reference: &Dump, candidate: Dump) -> Dump {
    let declared = candidate.meta().tokens.as_ref().map(|ids| {
        let decoded = candidate.meta().decode_tokens.as_ref().map_or(0, Vec::len);
        ids.len() + decoded
    });
    let Some(ours) = Chunks::find(reference) else { return candidate };
    if Chunks::find(&candidate).is_some_and(|own| own.lengths.iter().any(|&length| length > 1)) {
        return candidate;
    }
    let tokens = declared.or_else(|| step_a_token(&candidate, &ours)).unwrap_or(ours.total());
    one_a_token(candidate, tokens, |tap, keys| of_one_position(reference.find(tap, 0)?, ours.lengths[0], keys))
}

/// The shape that a tap of this many positions has for one position, which sees this many keys.
fn of_one_position(entry: &Entry, positions: usize, keys: usize) -> Option<Vec<usize>> {
    let site = entry.tap.site;
    let mut shape = squeezed(site, &entry.shape);
    match shape.len() == site.axes().len() {
        true => {
            let axis = site.position_axis();
            *shape.get_mut(axis)? = 1;
            if site.axes().last() == Some(&'S') {
                *shape.last_mut()? = keys;
            }
            Some(shape)
        }
        false => Some(vec![1, row_of(entry, positions)?]),
    }
}

/// How many elements a tap has per position of its step; `None` where it has an axis of keys.
fn row_of(entry: &Entry, positions: usize) -> Option<usize> {
    let elements = entry.shape.iter().product::<usize>();
    let is_per_position =
        entry.tap.site.position_axis() == 0 && elements > 0 && positions > 0 && elements.is_multiple_of(positions);
    is_per_position.then(|| elements / positions)
}

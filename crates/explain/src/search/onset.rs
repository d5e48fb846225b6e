//! Which mistakes begin at a later token, or end with the prefill? Of a decode step behind others that are right: positions, masks and the cache depend on how many tokens there are.

use std::collections::HashSet;

use firstdiff_compare::Place;

use crate::mistakes::{BeginsLater, Onset};
use crate::search::candidates::Candidate;
use crate::search::proof::Target;
use crate::search::{Effort, Reproduction, Search};

/// The mistakes that, made from the first decode step on that is wrong, reproduce it: where those before it are `right`.
pub(crate) fn begun_later<'a>(
    search: &Search<'_, 'a>,
    target: &Target<'a>,
    right: &HashSet<Place>,
) -> Option<Vec<Reproduction>> {
    let place = target.place;
    let last = (1..place.step).rev().find(|&step| right.contains(&Place { step, ..place }))?;
    let onset = Onset { step: last + 1, position: search.recorded().start(last + 1) };
    let begins = |c: &Candidate| match c.mistake().begins_later {
        BeginsLater::Never => false,
        BeginsLater::InOneOperation => !target.is_span(),
        BeginsLater::WithTokens => true,
    };
    let candidates = search.candidates(target).into_iter().filter(begins).map(|c| c.beginning(onset)).collect();
    let effort = Effort { faults: 1, ..search.effort.clone() };
    let mut reproduced = Search { effort: &effort, ..*search }.run(target, candidates, &|_, _, _| {}).reproduced;
    // What changes with the tokens is where they stand.
    reproduced.sort_by_key(|r| r.mistakes.iter().any(|m| !m.mistake().moves_tokens));
    Some(reproduced)
}

/// Whether a decode step comes out right if what was found is made in the prefill alone, which left its keys and values.
pub(crate) fn left_by_the_prefill(search: &Search<'_, '_>, target: &mut Target<'_>) -> bool {
    if target.place.step == 0 || !target.is_span() || search.accepted.is_empty() || search.already(target).is_some() {
        return false;
    }
    let from = std::mem::replace(&mut target.from_step, 0);
    target.until = 0;
    let left = search.proved(target, &[], search.bare(target)).is_some();
    (target.from_step, target.until) = (from, u32::MAX);
    left
}

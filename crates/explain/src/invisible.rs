//! Which mistakes could what was recorded not have shown?

use std::collections::BTreeMap;

use firstdiff_compare::Status;
use rayon::prelude::*;

use crate::explain::{Effort, elements, own};
use crate::imitate::Shared;
use crate::mistakes::Edit;
use crate::proof::Target;
use crate::replay::{Replay, ReplayError, Run};
use crate::search::Search;

/// Matrices above this are not multiplied once more only to say what would not have shown.
const LARGE: usize = 1 << 22;

/// Ids that would have changed nothing, or no more than rounding, wherever they could have been made in what was judged right: looked for in the
/// first layer, in the prefill and in the last step.
pub(crate) fn in_what_is_right(
    run: &Run<'_>,
    shared: &Shared,
    replay: &Replay,
    effort: &Effort,
) -> Result<Vec<String>, ReplayError> {
    let steps = replay.taps.iter().filter(|t| t.report.status != Status::Unchecked).map(|t| t.report.place.step);
    let last = steps.max().unwrap_or(0);
    let mut seen: BTreeMap<&'static str, bool> = BTreeMap::new();
    let search = Search { run, shared, effort, accepted: &[] };
    for tap in &replay.taps {
        let place = tap.report.place;
        let probed = place.tap.layer.unwrap_or(0) == 0 && (place.step == 0 || place.step == last);
        let Some(step) = run.recorded.model.plan.step(place.tap).filter(|_| probed && tap.report.status.agrees())
        else {
            continue;
        };
        let long = !tap.through.is_empty() && search.is_large();
        if elements(run.recorded.model, step) > LARGE || long || !run.recorded.is_whole(place) {
            continue;
        }
        let Some((own, _)) = own(run, place)? else { continue };
        let target = Target::new(run, step, place, own, None, None);
        let candidates = search.candidates(&target);
        let looked_for = candidates.par_iter().filter(|c| c.id() != "precision" && !c.one_of_several);
        let shown = looked_for.map(|candidate| {
            let edits: Vec<&Edit> = candidate.edits.iter().collect();
            let shows = search.value(&target, &edits, run.profile).is_some()
                && search.proved(&target, &edits, f64::INFINITY).is_none();
            (candidate.id(), shows)
        });
        for (id, shows) in shown.collect::<Vec<_>>() {
            *seen.entry(id).or_insert(false) |= shows;
        }
    }
    Ok(seen.into_iter().filter(|(_, shows)| !shows).map(|(id, _)| id.to_owned()).collect())
}

//! Which mistakes could what was recorded not have shown?

use std::collections::BTreeMap;

use rayon::prelude::*;

use crate::explain::{Effort, elements};
use crate::mistakes::{Edit, Mistake, listed};
use crate::replay::recorded::own;
use crate::replay::{Replay, ReplayError, Replayed, Run};
use crate::search::Search;
use crate::search::proof::Target;
use crate::search::simulate::{Shared, segment};

/// Matrices above this are not multiplied once more only to say what would not have shown, or what else would.
pub(crate) const LARGE: usize = 1 << 22;

/// Ids that would have changed nothing, or no more than rounding, wherever they could have been made: what is wrong, or was not looked at for its
/// size, might have shown them.
pub(crate) fn in_what_is_right(
    run: &Run<'_>,
    shared: &Shared,
    replay: &Replay,
    effort: &Effort,
) -> Result<Vec<String>, ReplayError> {
    let recorded = |t: &&Replayed| run.recorded.holds(t.report.place);
    let judged = replay.taps.iter().filter(recorded);
    let last = judged.clone().map(|t| t.report.place.step).max().unwrap_or(0);
    // Nearly all show in the first layer, in the prefill or in the last step.
    let first = |t: &&Replayed| {
        let place = t.report.place;
        place.tap.layer.unwrap_or(0) == 0 && (place.step == 0 || place.step == last)
    };
    let search = Search { run, shared, effort, accepted: &[] };
    let (firsts, others): (Vec<_>, Vec<_>) = judged.partition(first);
    let mut seen: BTreeMap<&'static str, bool> = BTreeMap::new();
    for tap in firsts.into_iter().chain(others) {
        for (id, shows) in shown_by(&search, tap, &seen)? {
            *seen.entry(id).or_insert(false) |= shows;
        }
    }
    Ok(seen.into_iter().filter(|(_, shows)| !shows).map(|(id, _)| id.to_owned()).collect())
}

/// Whether each id that was not yet seen to show would show, or might, in what was recorded of a tap.
fn shown_by(
    search: &Search<'_, '_>,
    tap: &Replayed,
    seen: &BTreeMap<&'static str, bool>,
) -> Result<Vec<(&'static str, bool)>, ReplayError> {
    let (run, place) = (search.run, tap.report.place);
    let (recorded, model) = (&run.recorded, run.recorded.model);
    let Some(step) = model.plan.step(place.tap) else { return Ok(Vec::new()) };
    let open = |mistake: &Mistake| !mistake.is_another_arithmetic && seen.get(mistake.id) != Some(&true);
    let long = !tap.through.is_empty() && search.is_large();
    if !tap.report.status.agrees() || elements(model, step) > LARGE || long || !recorded.is_whole(place) {
        let might = segment(recorded, place).into_iter().flat_map(|s| listed(model, s, &recorded.tokens));
        let open = might.map(|edit| edit.mistake).filter(|mistake| open(mistake));
        return Ok(open.map(|mistake| (mistake.id, true)).collect());
    }
    let Some((own, _)) = own(run, place)? else { return Ok(Vec::new()) };
    let target = Target::new(run, step, place, own, None, None);
    let candidates = search.candidates(&target);
    let looked_for = candidates.par_iter().filter(|c| open(c.mistake()) && !c.one_of_several);
    let shown = looked_for.map(|candidate| {
        let edits: Vec<&Edit> = candidate.edits.iter().collect();
        let shows = search.value(&target, &edits, run.profile).is_some()
            && search.proved(&target, &edits, f64::INFINITY).is_none();
        (candidate.id(), shows)
    });
    Ok(shown.collect())
}

//! Is a cause consistent with all that was recorded? Made wherever an engine would make it, it must give every recorded tap that it reaches: what it would leave
//! right and is wrong, or the other way round, speaks against it.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use firstdiff_compare::{Place, Status};
use firstdiff_model::Profile;
use firstdiff_trace::Tap;
use ndarray::ArrayD;

use crate::explain::{Explained, as_fitted};
use crate::mistakes::Edit;
use crate::replay::{ReplayError, Replayed, Run};
use crate::search::candidates::Candidate;
use crate::search::proof::{Target, misfit};
use crate::search::simulate::Shared;
use crate::search::{Effort, Reproduction, Search};
use crate::tolerance::search::{NEARER, SPAN_ADDS_UP};

/// What all of it may take; what could not be weighed in that is not stated.
const LONGEST: Duration = Duration::from_secs(60);

/// What a recorded tap says of mistakes, or all of them together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// It comes out as it was recorded, or none of the mistakes reaches it.
    Gives,
    /// It is wrong, and comes nearer to what was recorded: another mistake may be made as well.
    Nearer,
    /// It comes no nearer, or is right without them.
    Against,
}

/// One way in which an engine would make a mistake.
struct Made {
    edits: Vec<Edit>,
    /// The first step in which it is made: 0, or 1 where it is made in decoding alone.
    from_step: u32,
}

/// Leaves of what reproduces each place what nothing that was recorded speaks against. Of that what gives all of it counts before what only comes nearer, and what is
/// made always stands before what is made in decoding alone.
///
/// # Errors
/// When a file cannot be read.
pub(crate) fn by_all_that_was_recorded(
    run: &Run<'_>,
    shared: &Shared,
    effort: &Effort,
    replayed: &[Replayed],
    places: &mut [Explained],
) -> Result<(), ReplayError> {
    if places.iter().all(|explained| explained.found.reproduced.is_empty()) {
        return Ok(());
    }
    let mut evidence = evidence(run, replayed)?;
    let begun = Instant::now();
    // Layers share their code: what one of them shows is made by the same mistakes as what the others do. With each what speaks against it, where something does.
    type Way = (Vec<(Tap, String)>, u32);
    let mut known: HashMap<Way, (Fit, Option<Place>)> = HashMap::new();
    for explained in places {
        let ids = explained.found.reproduced.iter().flat_map(|r| &r.mistakes).map(|m| m.id().to_owned());
        let effort = Effort { only: ids.collect(), ..effort.clone() };
        let search = Search { run, shared, effort: &effort, accepted: &[] };
        let everywhere = if effort.only.is_empty() { Vec::new() } else { everywhere(&search, explained.place) };
        let mut weighed = |made: &Made| {
            let key = (
                made.edits.iter().map(|edit| (edit.tap, format!("{} {:?}", edit.mistake.id, edit.params))).collect(),
                made.from_step,
            );
            *known.entry(key).or_insert_with(|| {
                let mut worst: (Fit, Option<Place>) = (Fit::Gives, None);
                for target in &mut evidence {
                    target.from_step = made.from_step;
                    let late = begun.elapsed() >= LONGEST;
                    let now = if late { Fit::Against } else { fit(&search, target, &made.edits) };
                    if now > worst.0 {
                        worst = (now, Some(target.place).filter(|_| !late));
                    }
                    if now == Fit::Against {
                        break;
                    }
                }
                worst
            })
        };
        let mut kept: Vec<((Fit, u32), Reproduction)> = Vec::new();
        let mut against = None;
        for reproduction in std::mem::take(&mut explained.found.reproduced) {
            let ways = ways(&reproduction, explained.place, &everywhere);
            let mut best: Option<(Fit, u32)> = None;
            for made in &ways {
                let (fit, place) = weighed(made);
                if fit == Fit::Against {
                    against = against.or(place);
                }
                let now = (fit, made.from_step);
                best = Some(best.map_or(now, |best| best.min(now)));
                if now == (Fit::Gives, 0) {
                    break;
                }
            }
            kept.extend(best.filter(|(fit, _)| *fit != Fit::Against).map(|best| (best, reproduction)));
        }
        let likeliest = kept.iter().map(|(best, _)| *best).min();
        if likeliest.is_none() && !effort.only.is_empty() {
            explained.found.spoken_against = explained.found.spoken_against.or(against);
        }
        kept.retain(|((fit, _), _)| likeliest.is_some_and(|likeliest| *fit == likeliest.0));
        kept.sort_by_key(|(best, _)| *best);
        let made =
            |((_, from_step), r): ((Fit, u32), Reproduction)| Reproduction { in_decoding_alone: from_step > 0, ..r };
        explained.found.reproduced = kept.into_iter().map(made).collect();
    }
    Ok(())
}

/// Every recorded tap, from the nearest recorded taps before it: what takes the fewest operations first.
fn evidence<'a>(run: &Run<'a>, replayed: &[Replayed]) -> Result<Vec<Target<'a>>, ReplayError> {
    let mut all = Vec::new();
    for tap in replayed.iter().filter(|tap| tap.is_blamed()) {
        let place = tap.report.place;
        let Some(step) = run.recorded.model.plan.step(place.tap).filter(|_| run.recorded.holds(place)) else {
            continue;
        };
        all.extend(Target::recorded(run, step, place)?);
    }
    all.sort_by_key(|target| target.steps.len());
    Ok(all)
}

/// The mistakes of the catalogue as an engine's shared code makes them: in all layers, or in one.
fn everywhere(search: &Search<'_, '_>, place: Place) -> Vec<Candidate> {
    let plan = &search.recorded().model.plan;
    let Some(step) = plan.step(place.tap) else { return Vec::new() };
    let mut whole = Target::new(search.run, step, place, ArrayD::zeros(Vec::new()), None, None);
    whole.steps = plan.steps.iter().collect();
    search.candidates(&whole)
}

/// The ways in which what reproduces a place may be made.
fn ways(reproduction: &Reproduction, place: Place, everywhere: &[Candidate]) -> Vec<Made> {
    let found: Vec<Edit> = reproduction.mistakes.iter().flat_map(|m| &m.edits).cloned().collect();
    let mut sets: Vec<Vec<Edit>> = Vec::new();
    if let [one] = &reproduction.mistakes[..] {
        let fitted = one.edits.first().into_iter().flat_map(|edit| as_fitted(edit, everywhere));
        let shared = everywhere.iter().cloned().chain(fitted);
        let onset = one.edits.first().and_then(|edit| edit.onset);
        let shared = shared.map(|c| onset.map_or(c.clone(), |onset| c.beginning(onset)));
        let covers = |c: &Candidate| found.iter().all(|edit| c.edits.iter().any(|other| other.is_made_as(edit)));
        // In all layers, or in all places of the layers where it was found.
        let layers: HashSet<Option<u32>> = found.iter().map(|edit| edit.tap.layer).collect();
        for candidate in shared.filter(covers) {
            let here: Vec<Edit> =
                candidate.edits.iter().filter(|edit| layers.contains(&edit.tap.layer)).cloned().collect();
            if here.len() < candidate.edits.len() && here.len() > found.len() {
                sets.push(here);
            }
            sets.push(candidate.edits);
        }
    }
    sets.push(found);
    let last = if place.step > 0 { 1 } else { 0 };
    (0..=last).flat_map(|from_step| sets.iter().map(move |edits| Made { edits: edits.clone(), from_step })).collect()
}

/// What a tap says of these mistakes. What nobody can compute says nothing.
fn fit(search: &Search<'_, '_>, target: &Target<'_>, edits: &[Edit]) -> Fit {
    if !target.steps.iter().any(|step| edits.iter().any(|edit| edit.tap == step.tap)) {
        return Fit::Gives;
    }
    let edits: Vec<&Edit> = edits.iter().collect();
    let values = [search.run.profile, Profile::Exact].map(|profile| search.value(target, &edits, profile));
    let [Some(narrow), Some(exact)] = values else { return Fit::Gives };
    if narrow.shape() != target.own.shape() || exact.shape() != target.own.shape() {
        return Fit::Against;
    }
    let (span, fine) = (target.is_span(), !search.run.is_coarse());
    let left = [&narrow, &exact].map(|value| misfit(target.place.tap.site, &target.own, value));
    let left = left[0].min(left[1]);
    let narrow = narrow.mapv(|x| x as f32);
    let report = search.run.verdict(target.step, target.place, &target.own, &narrow, &exact, span).report;
    // Over several operations another engine's rounding adds up beyond what is allowed to one.
    let adds_up = span && fine && left <= SPAN_ADDS_UP * report.allowed.unwrap_or(0.0);
    if report.status != Status::Diverged || adds_up {
        return Fit::Gives;
    }
    if left <= NEARER * search.bare(target) { Fit::Nearer } else { Fit::Against }
}

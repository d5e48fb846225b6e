//! Why is it wrong? For every operation that replay finds wrong, the mistakes that reproduce it.

pub(crate) mod finding;
pub(crate) mod findings;
mod laws;
pub(crate) mod misrecorded;
pub(crate) mod moved_alike;
pub(crate) mod not_testable;
pub(crate) mod quantised;
pub(crate) mod right_at_the_end;
mod settle;
pub(crate) mod taken_back;
pub(crate) mod weigh;

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use firstdiff_compare::{Place, SeenPadding, Status};
use firstdiff_model::{Model, Op, Profile, Step};
use firstdiff_trace::{Dump, Site, Tap};

use crate::mistakes::Edit;
use crate::mistakes::precision::PRECISION;
use crate::replay::recorded::{own, row_inputs};

pub use crate::replay::Options;
use crate::replay::reason::Reason;
use crate::replay::{Replay, ReplayError, Replayed, Run};
pub use crate::search::Effort;
use crate::search::candidates::Candidate;
use crate::search::onset::{begun_later, left_by_the_prefill};
use crate::search::proof::Target;
use crate::search::simulate::Shared;
use crate::search::{Reproduction, Result as Found, Search};

pub use crate::explain::finding::{Cause, Counted, Finding, Match, Remainder, other_tokens};

/// An explained replay.
#[derive(Debug)]
pub struct Explanation {
    /// Where operations are wrong.
    pub replay: Replay,
    /// Why, in the order of the Plan.
    pub findings: Vec<Finding>,
    /// Ids of mistakes that what was recorded could not have shown, though their operation is in the model.
    pub not_testable: Vec<String>,
}

/// Told what is looked at, what is tried there, and how many of how many.
pub type Progress<'p> = &'p (dyn Fn(&str, usize, usize) + Sync);

/// Replays `dump` on `model`, and tries the catalogue's mistakes where it goes wrong.
///
/// # Errors
/// As [`replay`](crate::replay::replay).
pub fn explain(
    model: &Model,
    dump: &Dump,
    options: &Options,
    effort: &Effort,
    progress: Progress<'_>,
) -> Result<Explanation, ReplayError> {
    let (mut run, mut replay) =
        crate::replay::kept::replayed(model, dump, options, &mut |done, total| progress("replay", done, total))?;
    let other = match effort.tries(&PRECISION) {
        true => quantised::recognised(&mut run, &mut replay)?,
        false => None,
    };
    let shared: Shared = Mutex::default();
    let begun = Instant::now();
    let right = replay.taps.iter().filter(|t| t.report.status.agrees()).map(|t| t.report.place).collect();
    let mut walk = Walk {
        right,
        // What no rounding to few bits comes near may be one of 16 bits, which the catalogue has.
        in_other_arithmetic: other
            .iter()
            .filter(|other| other.nearest.is_some())
            .flat_map(|other| other.places.iter().copied())
            .chain(run.padding.iter().flat_map(SeenPadding::places))
            .collect(),
        ..Walk::new(effort, progress)
    };
    for at in 0..replay.taps.len() {
        let place = replay.taps[at].report.place;
        if effort.quick && begun.elapsed() > A_MOMENT {
            break;
        }
        if let Some(step) = model.plan.step(place.tap) {
            walk.visit(&mut run, &shared, step, &mut replay.taps[at])?;
        }
    }
    walk.settle_steps(&run, &shared, model)?;
    walk.tell_apart(&run, &shared, model)?;
    if effort.weigh {
        weigh::by_all_that_was_recorded(&run, &shared, effort, &replay.taps, &mut walk.places)?;
    }
    walk.places.iter_mut().for_each(Explained::in_reported_nmse);
    let left_by_the_prefill = std::mem::take(&mut walk.left_by_the_prefill);
    let mut not_blamed = misrecorded::findings(&replay);
    moved_alike::name(&walk, &run, &shared, moved_alike::places(&replay), &mut not_blamed)?;
    let mut findings = findings::of(&run, walk.places, not_blamed);
    findings::once_alone(&mut findings, |place| run.recorded.holds(place));
    findings::in_all_steps(&mut findings, &replay);
    if let Some(other) = other {
        other.take_up(&mut findings, &replay);
    }
    findings::in_the_prefill_alone(&mut findings, &replay, &left_by_the_prefill);
    if !effort.quick {
        laws::measure(&mut run, &replay, effort, &mut findings, progress)?;
        findings::join_named(&mut findings, findings::order_in(model));
        findings::measured_in_the_prefill_alone(&mut findings, &replay);
    }
    let fed = replay.taps.iter().find_map(|tap| match &tap.reason {
        Some(Reason::OtherTokens(edits)) => {
            Some(other_tokens(edits, tap.report.place, tap.exact_nmse.unwrap_or(0.0)).1)
        }
        _ => None,
    });
    findings.splice(0..0, fed.into_iter().chain(finding::unmasked_padding(&run.padding)));
    let mut not_testable =
        if effort.quick { Vec::new() } else { not_testable::in_what_is_right(&run, &shared, &replay, effort)? };
    not_testable.retain(|id| !findings.iter().any(|f| f.cause.as_ref().is_some_and(|c| c.id == id)));
    Ok(Explanation { replay, findings, not_testable })
}

/// What searches in vain of the operations of one site may take, before those of further layers are only held against what was found.
const IN_VAIN: Duration = Duration::from_secs(6);
/// What a quick search may take in all, once replayed.
pub(crate) const A_MOMENT: Duration = Duration::from_secs(5);

/// Elements of a step's matrix.
pub(crate) fn elements(model: &Model, step: &Step) -> usize {
    step.weights.first().and_then(|&w| model.weights.shape(w)).map_or(0, |shape| shape.iter().product())
}

/// Matrices above this are left alone in a quick search.
pub(crate) const HUGE: usize = 1 << 24;

/// One recorded tap that is wrong, and what was found.
pub(crate) struct Explained {
    pub(crate) place: Place,
    pub(crate) steps: Vec<Tap>,
    pub(crate) found: Found,
    /// What a misfit, which is a share of the candidate's energy, is to be multiplied by to be one of the reference's, as every NMSE that is reported.
    pub(crate) scale: f64,
    pub(crate) counted: Counted,
}

impl Explained {
    /// All that was found, as shares of the reference's energy.
    fn in_reported_nmse(&mut self) {
        let Explained { found, scale, .. } = self;
        let each = found.reproduced.iter_mut().chain(&mut found.closest);
        let left = each.flat_map(|r| std::iter::once(&mut r.residual).chain(&mut r.alone));
        left.chain(found.tried.values_mut()).chain([&mut found.base]).for_each(|nmse| *nmse *= *scale);
    }
}

struct Walk<'p> {
    effort: &'p Effort,
    accepted: Vec<Edit>,
    places: Vec<Explained>,
    /// What decode steps show of mistakes that were made in the prefill; whether there are mistakes in decoding alone.
    left_by_the_prefill: HashSet<Place>,
    in_decoding_alone: bool,
    /// Steps in which a fault was seen that nothing explains.
    dark: HashSet<Tap>,
    /// Single steps of which the same is to be said.
    unknown: HashSet<Tap>,
    /// What replay found right.
    right: HashSet<Place>,
    /// How long mistakes were looked for in vain in operations of a site.
    in_vain: HashMap<Site, Duration>,
    /// Products that are off alike, as by another arithmetic, and scores of which the mistake is known: none is looked for in them.
    in_other_arithmetic: HashSet<Place>,
    progress: Progress<'p>,
}

impl<'p> Walk<'p> {
    fn new(effort: &'p Effort, progress: Progress<'p>) -> Walk<'p> {
        Walk {
            effort,
            accepted: Vec::new(),
            places: Vec::new(),
            left_by_the_prefill: HashSet::new(),
            in_decoding_alone: false,
            dark: HashSet::new(),
            unknown: HashSet::new(),
            right: HashSet::new(),
            in_vain: HashMap::new(),
            in_other_arithmetic: HashSet::new(),
            progress,
        }
    }

    fn visit<'a>(
        &mut self,
        run: &mut Run<'a>,
        shared: &Shared,
        step: &'a Step,
        replayed: &mut Replayed,
    ) -> Result<(), ReplayError> {
        let is_told = replayed.is_for(|reason| matches!(reason, Reason::OtherTokens(_) | Reason::Misdeclared));
        if is_told || !replayed.is_blamed() || self.in_other_arithmetic.contains(&replayed.report.place) {
            return Ok(());
        }
        let place = replayed.report.place;
        let partial = run.recorded.holds(place) && replayed.report.status == Status::Unchecked;
        let long = partial || !replayed.through.is_empty() || elements(run.recorded.model, step) > HUGE;
        if self.effort.quick && long {
            return Ok(());
        }
        if replayed.report.status != Status::Diverged && !partial {
            return Ok(());
        }
        let Some((own, positions)) = own(run, place)? else { return Ok(()) };
        let rows = match &positions {
            Some(list) => row_inputs(run, step, place.step, list)?,
            None => None,
        };
        if partial && rows.is_some() {
            return Ok(());
        }
        let mut target = Target::new(run, step, place, own, positions, rows).measured_by_leak(run, &replayed.report);
        // What begins at the tokens says nothing where nobody knows them.
        if !run.known && target.steps.iter().any(|step| matches!(step.op, Op::Embedding { .. })) {
            return Ok(());
        }
        let earlier = self.right_before(run, step, place)?;
        target.from_step = u32::from(earlier.is_some());
        let steps: Vec<Tap> = target.steps.iter().map(|s| s.tap).collect();
        if partial && steps.iter().any(|tap| self.unknown.contains(tap)) {
            replayed.reason = Some(Reason::ReadsUnexplained);
            return Ok(());
        }
        if target.is_span() && steps.iter().any(|tap| self.dark.contains(tap)) {
            if partial {
                replayed.reason = Some(Reason::BehindUnexplained);
            }
            return Ok(());
        }
        if partial && !self.is_wrong(run, shared, &target, replayed) {
            self.right.extend(replayed.report.status.agrees().then_some(place));
            return Ok(());
        }
        if target.is_span() && run.is_coarse() {
            let search = Search { run, shared, effort: self.effort, accepted: &self.accepted };
            if let Some(right) = search.value(&target, &[], run.profile) {
                run.know_edges(place, &right, target.positions.as_deref());
            }
        }
        let search = Search { run, shared, effort: self.effort, accepted: &self.accepted };
        if left_by_the_prefill(&search, &mut target) {
            self.left_by_the_prefill.insert(place);
            return Ok(());
        }
        // Of a prefill that was not recorded nobody knows whether the mistake is made in it.
        let open = earlier.is_none() && place.step > 0 && self.places.iter().all(|p| p.place.step > 0);
        if open {
            target.from_step = u32::from(self.in_decoding_alone);
        }
        let begun = Instant::now();
        let model = run.recorded.model;
        let mut found = match self.narrowed(&search, &target) {
            Some(reproduced) => {
                // One of several that an earlier step cannot tell apart was taken up; it may be another.
                let base = search.bare(&target);
                self.accepted.retain(|e| !steps.contains(&e.tap));
                Found { base, reproduced, ..Found::default() }
            }
            None => self.search_again(&search, &target),
        };
        found.reproduced.retain(|r| !self.is_ruled_out_later(model, r, place.step));
        let several = found.reproduced.first().is_none_or(|r| r.mistakes.len() > 1);
        if open && several && target.from_step == 0 {
            // Where one, made in decoding alone, gives it, it needs no others to undo it in the prefill.
            target.from_step = 1;
            let effort = Effort { faults: 1, ..self.effort.clone() };
            let one = self.search(&Search { run, shared, effort: &effort, accepted: &self.accepted }, &target);
            self.in_decoding_alone = !one.reproduced.is_empty();
            match self.in_decoding_alone {
                true => found = one,
                false => target.from_step = 0,
            }
        }
        let search = Search { run, shared, effort: self.effort, accepted: &self.accepted };
        if let Some(earlier) = earlier {
            let (stand, against) = self.standing(&search, &earlier, &target, found.reproduced)?;
            found.spoken_against = against.filter(|_| stand.is_empty());
            found.reproduced = stand;
            if found.reproduced.is_empty()
                && let Some(later) = begun_later(&search, &target, &self.right)
            {
                found.reproduced = self.standing(&search, &earlier, &target, later)?.0;
            }
        }
        match found.reproduced.first() {
            Some(best) => {
                self.accepted = self.uncontradicted(&search, &target, best);
                for edit in best.mistakes.iter().flat_map(|m| &m.edits) {
                    if !self.accepted.iter().any(|old| old.is_made_as(edit)) {
                        self.accepted.push(edit.clone());
                    }
                }
            }
            None if target.is_span() => self.dark.extend(steps.iter().copied()),
            None => {
                self.unknown.insert(place.tap);
            }
        }
        if found.reproduced.is_empty() && !target.is_span() {
            *self.in_vain.entry(place.tap.site).or_default() += begun.elapsed();
        }
        let search = Search { run, shared, effort: self.effort, accepted: &[] };
        let nmse = replayed.report.metrics.and_then(|m| m.nmse()).filter(|_| !target.is_of_a_leak());
        let scale = nmse.map_or(1.0, |nmse| nmse / search.bare(&target));
        let scale = if scale.is_finite() && scale > 0.0 { scale } else { 1.0 };
        let counted = match (target.is_of_a_leak(), nmse, replayed.report.metrics) {
            (true, ..) => Counted::MaskedKeys,
            (false, None, Some(_)) => Counted::OneSided,
            _ => Counted::All,
        };
        self.places.push(Explained { place, steps, found, scale, counted });
        Ok(())
    }

    /// Whether an operation would be done later, by what was recorded and is right.
    fn is_ruled_out_later(&self, model: &Model, found: &Reproduction, step: u32) -> bool {
        let moved = found.mistakes.iter().flat_map(|m| &m.edits).filter(|edit| edit.is_done_later);
        let readers = moved.flat_map(|edit| model.plan.steps.iter().filter(|step| step.reads.contains(&edit.tap)));
        readers.map(|reader| Place { tap: reader.tap, step }).any(|place| self.right.contains(&place))
    }

    /// What was accepted before, without other mistakes at the same steps that `best` does not need: an earlier place could not tell it from them.
    fn uncontradicted(&self, search: &Search<'_, '_>, target: &Target<'_>, best: &Reproduction) -> Vec<Edit> {
        let edits: Vec<&Edit> = best.mistakes.iter().flat_map(|m| &m.edits).collect();
        let other = |old: &Edit| edits.iter().any(|e| e.tap == old.tap) && !edits.iter().any(|e| e.is_made_as(old));
        let rest: Vec<Edit> = self.accepted.iter().filter(|old| !other(old)).cloned().collect();
        if rest.len() == self.accepted.len() {
            return rest;
        }
        let alone = Search { accepted: &rest, ..*search };
        match alone.proved(target, &edits, search.bare(target)) {
            Some(_) => rest,
            None => self.accepted.clone(),
        }
    }

    /// Of what reproduced an earlier decode step of the same tap, what reproduces this one as well.
    fn narrowed<'a>(&self, search: &Search<'_, 'a>, target: &Target<'a>) -> Option<Vec<Reproduction>> {
        let place = target.place;
        let before = |p: &&Explained| p.place.tap == place.tap && (1..place.step).contains(&p.place.step);
        let known = &self.places.iter().rev().find(before)?.found.reproduced;
        let taps: HashSet<Tap> = target.steps.iter().map(|s| s.tap).collect();
        let others: Vec<Edit> = self.accepted.iter().filter(|e| !taps.contains(&e.tap)).cloned().collect();
        let search = Search { accepted: &others, ..*search };
        let base = search.residual(target, &[]).nmse;
        let again = |known: &Reproduction| {
            let edits: Vec<&Edit> = known.mistakes.iter().flat_map(|m| &m.edits).collect();
            let residual = search.proved(target, &edits, base)?;
            let again = search.reproduction(target, known.mistakes.clone(), residual);
            Some(Reproduction { in_decoding_alone: known.in_decoding_alone, ..again })
        };
        let reproduced: Vec<Reproduction> = known.iter().filter_map(again).collect();
        (!reproduced.is_empty()).then_some(reproduced)
    }

    /// Of what reproduces a decode step behind a right prefill, what no right step speaks against: first mistakes that would not have shown in the prefill
    /// either, then those that are made in decoding only; and the first right step that speaks against one.
    fn standing<'a>(
        &self,
        search: &Search<'_, 'a>,
        earlier: &Target<'a>,
        target: &Target<'a>,
        reproduced: Vec<Reproduction>,
    ) -> Result<(Vec<Reproduction>, Option<Place>), ReplayError> {
        let mut right = Vec::new();
        let mut places: Vec<Place> = self.right.iter().copied().filter(|p| p.tap == target.place.tap).collect();
        places.sort_by_key(|p| p.step);
        for place in places.into_iter().filter(|p| p.step > 0 && search.recorded().is_whole(*p)) {
            if let Some((own, None)) = own(search.run, place)? {
                let mut other = Target::new(search.run, target.step, place, own, None, None);
                other.from_step = target.from_step;
                right.push(other);
            }
        }
        let holds = |r: &Reproduction, at: &Target<'a>| {
            let edits: Vec<&Edit> = r.mistakes.iter().flat_map(|m| &m.edits).collect();
            search.proved(at, &edits, f64::INFINITY).is_some()
        };
        let mut against = None;
        let mut kept = Vec::new();
        for reproduction in reproduced {
            match right.iter().find(|at| !holds(&reproduction, at)) {
                Some(at) => against = against.or(Some(at.place)),
                None => kept.push(reproduction),
            }
        }
        kept.iter_mut().for_each(|r| r.in_decoding_alone = !holds(r, earlier));
        kept.sort_by_key(|r| r.in_decoding_alone);
        Ok((kept, against))
    }

    /// Judges what replay cannot: some positions of a tap, where attention needs all. From the nearest whole taps it can be.
    fn is_wrong(&self, run: &mut Run<'_>, shared: &Shared, target: &Target<'_>, replayed: &mut Replayed) -> bool {
        let (place, positions) = (target.place, target.positions.as_deref());
        let mut judged = None;
        // A mistake that was found elsewhere need not be made here.
        for accepted in [&self.accepted[..], &[]] {
            let search = Search { run, shared, effort: self.effort, accepted };
            let values = [search.run.profile, Profile::Exact].map(|p| search.value(target, &[], p));
            let [Some(right), Some(exact)] = values else { return false };
            if right.shape() != target.own.shape() {
                return false;
            }
            let report = run.judge_stretch(target.step, place, &target.own, &right, &exact, positions).report;
            let wrong = report.status == Status::Diverged;
            if !wrong || judged.is_none() {
                judged = Some(report);
            }
            if !wrong || self.accepted.is_empty() {
                break;
            }
        }
        let Some(report) = judged else { return false };
        let wrong = report.status == Status::Diverged;
        replayed.report = report;
        replayed.report.positions = target.positions.clone();
        replayed.through = target.steps.iter().map(|s| s.tap).filter(|&tap| tap != place.tap).collect();
        wrong
    }

    /// The same tap of the prefill, if this one is of a later step and that one was found right.
    fn right_before<'a>(&self, run: &Run<'a>, step: &'a Step, place: Place) -> Result<Option<Target<'a>>, ReplayError> {
        let prefill = Place { step: 0, ..place };
        let wrong = self.places.iter().any(|p| p.place == prefill);
        let known = run.recorded.is_whole(prefill) || self.right.contains(&prefill);
        if place.step == 0 || wrong || !known {
            return Ok(None);
        }
        Ok(own(run, prefill)?.map(|(own, positions)| Target::new(run, step, prefill, own, positions, None)))
    }

    /// A search that costs less where the same operation of another layer was searched in vain: one mistake at a time, and in the end only what is known.
    fn search_again(&self, search: &Search<'_, '_>, target: &Target<'_>) -> Found {
        let spent = self.in_vain.get(&target.place.tap.site).filter(|_| !target.is_span());
        let Some(spent) = spent else { return self.search(search, target) };
        let effort = Effort { faults: 1, ..search.effort.clone() };
        let search = &Search { effort: &effort, ..*search };
        if *spent < IN_VAIN {
            return self.search(search, target);
        }
        match search.already(target) {
            Some(again) => Found { base: search.bare(target), reproduced: vec![again], ..Found::default() },
            None => Found { base: search.bare(target), untried: 1, ..Found::default() },
        }
    }

    /// What was found elsewhere first, then all.
    fn search(&self, search: &Search<'_, '_>, target: &Target<'_>) -> Found {
        if let Some(again) = search.already(target) {
            return Found { base: search.bare(target), reproduced: vec![again], ..Found::default() };
        }
        let all = search.candidates(target);
        let name = target.place.to_string();
        let tell = |what: &str, done: usize, total: usize| (self.progress)(&format!("{name}: {what}"), done, total);
        let known: HashSet<&str> = self
            .places
            .iter()
            .flat_map(|p| &p.found.reproduced)
            .flat_map(|r| &r.mistakes)
            .map(|m| m.key.as_str())
            .collect();
        let again = all.iter().filter(|c| known.contains(c.key.as_str())).cloned();
        // A number that was fitted elsewhere is one number of the engine.
        let mut numbers = HashSet::new();
        let new =
            |old: &&Edit| old.tunable().is_some_and(|(value, _)| numbers.insert((old.mistake.id, value.to_bits())));
        let fitted: Vec<Candidate> = self.accepted.iter().filter(new).flat_map(|old| as_fitted(old, &all)).collect();
        let mut keys = HashSet::new();
        let again: Vec<Candidate> = again.chain(fitted).filter(|c| keys.insert((c.key.clone(), taps_of(c)))).collect();
        if let Some(found) = self.once_more(search, target, &again) {
            return found;
        }
        if !again.is_empty() {
            let effort = Effort { faults: 2.min(search.effort.faults), ..search.effort.clone() };
            let quick = Search { effort: &effort, ..*search }.run(target, again, &tell);
            if !quick.reproduced.is_empty() {
                return quick;
            }
        }
        search.run(target, all, &tell)
    }

    /// The mistakes that were proved elsewhere, made here too, where that leaves nothing that replay would call wrong.
    fn once_more(&self, search: &Search<'_, '_>, target: &Target<'_>, again: &[Candidate]) -> Option<Found> {
        const MOST: usize = 16;
        let known = again.iter().filter(|c| self.accepted.iter().any(|old| old.key() == c.key)).take(MOST);
        let made_here = |candidate: &Candidate| {
            let made = |old: &Edit| candidate.edits.iter().any(|e| e.is_made_as(old));
            let elsewhere = |old: &Edit| !candidate.edits.iter().any(|e| e.tap == old.tap);
            let known = |e: &Edit| self.accepted.iter().any(|old| old.is_made_as(e));
            let new: Vec<&Edit> = candidate.edits.iter().filter(|e| !known(e)).collect();
            // In the place of what was accepted at the same steps, else beside it.
            let instead: Vec<&Edit> = self.accepted.iter().filter(|old| made(old) || elsewhere(old)).collect();
            for before in [instead, self.accepted.iter().collect()] {
                let more: Vec<Edit> = before.into_iter().chain(new.iter().copied()).cloned().collect();
                let made = (Search { accepted: &more, ..*search }).already(target);
                if made.is_some() {
                    return made;
                }
            }
            None
        };
        // Of two that are the same here, one may be what shows in other places too.
        let reproduced: Vec<Reproduction> = known.filter_map(made_here).collect();
        (!reproduced.is_empty()).then(|| Found { base: search.bare(target), reproduced, ..Found::default() })
    }
}

/// The candidates of the same kind as a mistake that was found, with its number.
pub(crate) fn as_fitted<'c>(found: &Edit, all: &'c [Candidate]) -> impl Iterator<Item = Candidate> + use<'c> {
    let (mistake, value) = (found.mistake, found.tunable().map(|(value, _)| value));
    let kinds = all.iter().filter(move |c| c.mistake() == mistake && c.edits[0].tunable().is_some());
    kinds.filter_map(move |c| Some(c.tuned(value?)))
}

fn taps_of(candidate: &Candidate) -> Vec<Tap> {
    candidate.edits.iter().map(|e| e.tap).collect()
}

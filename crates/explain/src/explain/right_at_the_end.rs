//! Is the run right at its end, computed from the tokens alone? Then what is off on the way there is taken back, wherever that is.
//!
//! [`taken_back`](crate::explain::taken_back) looks for the tap that takes an error back within a layer. It may not have been recorded, or hold the last position
//! alone, or there may be none: a residual stream of half the size goes through all layers. The end of a run tells as well. A tap is off on the way to a right end if
//! the end would not be right with it.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use firstdiff_compare::{Place, Status};
use firstdiff_model::{Profile, Step};
use firstdiff_trace::Tap;

use crate::explain::Effort;
use crate::explain::taken_back::{OfPlan, Trials};
use crate::replay::{Done, Replayed, Run};
use crate::search::Search;
use crate::search::proof::{Target, misfit};
use crate::search::simulate::Shared;
use crate::tolerance::replay::PLAINLY_OFF;

/// Taps above this are too many to run the model for each: of a small model, and of a large one.
pub(crate) const MOST: usize = 1024;
const MOST_OF_A_LARGE_ONE: usize = 32;

/// What is off before a right end.
pub(crate) struct Off<At> {
    /// The taps with which an end would not be right, each with that end.
    pub(crate) ends: BTreeMap<At, At>,
    /// Those of them that are right by what they read: made of a wrong one, whose recording is not what is wrong then.
    pub(crate) between: Vec<At>,
}

/// Where each step is right at its end by the tokens alone, the taps with which it would not be; `None` where none is.
pub(crate) fn off_before_a_right_end<T: Trials>(trials: &mut T) -> Done<Option<Off<T::At>>> {
    let step = |trials: &T, at: T::At| trials.place(at).step;
    let (all, recorded) = (trials.all(), trials.recorded());
    // In the order of the operations the last of each step stays.
    let ends: BTreeMap<u32, T::At> = recorded.iter().map(|&at| (step(trials, at), at)).collect();
    let is = |what: fn(&Replayed) -> bool| move |trials: &T, at: T::At| trials.judged(at).is_some_and(what);
    // What is wrong by the tokens alone was found so.
    let is_known_wrong = is(|t| t.from.is_empty() && t.report.status == Status::Diverged);
    let is_fault = is(Replayed::is_at_fault);
    if !all.iter().any(|&at| is_fault(trials, at)) || ends.values().any(|&end| is_known_wrong(trials, end)) {
        return Ok(None);
    }
    for &end in ends.values() {
        if trials.comes_out_from(end, None)? != Some(true) {
            return Ok(None);
        }
    }
    let asked: Vec<T::At> = recorded.into_iter().filter(|&at| trials.is_seen_at(at, &ends)).collect();
    if asked.len() > trials.most() {
        return Ok(None);
    }
    let mut off: BTreeMap<T::At, T::At> = BTreeMap::new();
    for &at in &asked {
        for (_, &end) in ends.range(step(trials, at)..) {
            if trials.comes_out_from(end, Some(at))? == Some(false) {
                off.insert(at, end);
                break;
            }
        }
    }
    // A single key, or the last position alone, shows nothing of a tap that another step shows to be off.
    let is_excused = is(|t| !t.is_blamed());
    let excused = all.iter().copied().filter(|&at| is_excused(trials, at));
    let in_other_steps: HashSet<Tap> = off.keys().copied().chain(excused).map(|at| trials.place(at).tap).collect();
    for at in asked.into_iter().filter(|&at| trials.may_be_off(at)) {
        if in_other_steps.contains(&trials.place(at).tap) {
            off.entry(at).or_insert(ends[&step(trials, at)]);
        }
    }
    let is_right = is(|t| t.report.status.agrees());
    let between: Vec<T::At> = off.keys().copied().filter(|&at| is_right(trials, at)).collect();
    // What is off came from a wrong tap, or the two judgements contradict each other.
    let comes_from = |&at: &T::At| off.keys().any(|&other| !between.contains(&other) && trials.is_made_of(at, other));
    let is_one = between.iter().all(comes_from) && !off.is_empty();
    Ok(is_one.then_some(Off { ends: off, between }))
}

impl Trials for OfPlan<'_, '_> {
    type At = Place;

    fn place(&self, at: Place) -> Place {
        at
    }

    fn all(&self) -> Vec<Place> {
        self.taps.iter().map(|t| t.report.place).collect()
    }

    fn recorded(&self) -> Vec<Place> {
        self.all().into_iter().filter(|place| self.run.recorded.is_readable(*place)).collect()
    }

    fn judged(&self, at: Place) -> Option<&Replayed> {
        self.taps.iter().find(|t| t.report.place == at)
    }

    fn made_of(&self, at: Place) -> BTreeSet<Place> {
        self.judged(at).map(|tap| self.run.made_of(tap)).unwrap_or_default()
    }

    fn is_made_of(&self, at: Place, of: Place) -> bool {
        self.run.is_made_of(at.tap, of.tap)
    }

    fn goes_on(&self, at: Place, readers: &BTreeSet<Place>) -> bool {
        self.run.goes_on(at.tap, &readers.iter().map(|place| place.tap).collect())
    }

    fn without(&mut self, at: Place, left_out: &BTreeSet<Place>) -> Done<Option<Replayed>> {
        self.run.judged_without(at, left_out).map(Some)
    }

    fn comes_out_from(&mut self, end: Place, with: Option<Place>) -> Done<Option<bool>> {
        let recorded = self.recorded().into_iter().collect();
        self.run.comes_out_from(end, with, &recorded)
    }

    fn is_seen_at(&self, at: Place, ends: &BTreeMap<u32, Place>) -> bool {
        let passes = |end: &Place| *end != at && !self.run.goes_on(at.tap, &HashSet::from([end.tap]));
        let positions = |place: Place| self.run.recorded.positions(place);
        let holds = |end: &Place| match (positions(*end), positions(at)) {
            (None, _) => true,
            (Some(rows), Some(own)) => rows == own || end.step != at.step,
            (Some(_), None) => end.step != at.step,
        };
        ends.range(at.step..).all(|(_, end)| passes(end) && holds(end))
    }

    fn may_be_off(&self, at: Place) -> bool {
        let is_part = self.run.recorded.positions(at).is_some();
        self.judged(at).is_some_and(|t| t.is_blamed() && (is_part || !t.report.status.agrees()))
    }

    fn most(&self) -> usize {
        let is_large = self.run.recorded.model.plan.dims.hidden > Effort::default().small;
        if is_large { MOST_OF_A_LARGE_ONE } else { MOST }
    }
}

impl Run<'_> {
    /// Where each step is right at its end, leaves out the taps with which it would not be, and judges again what reads them.
    pub(crate) fn leave_out_what_is_right_at_the_end(&mut self, taps: &mut [Replayed]) -> Done<()> {
        if !self.known {
            return Ok(());
        }
        let found = off_before_a_right_end(&mut OfPlan { run: self, taps })?;
        let Some(Off { ends: off, between }) = found else { return Ok(()) };
        self.recorded.left_out.extend(off.keys());
        self.forget();
        let is_made_of_one = |run: &Run<'_>, tap: &Replayed| {
            off.keys().any(|other| *other != tap.report.place && run.is_made_of(tap.report.place.tap, other.tap))
        };
        for tap in taps.iter_mut() {
            let place = tap.report.place;
            match off.get(&place) {
                Some(&end) => {
                    let is_taken_back =
                        tap.report.status.agrees() || between.iter().any(|right| self.is_made_of(right.tap, place.tap));
                    tap.is_right_again_at(end, is_taken_back);
                }
                None if tap.is_at_fault() && is_made_of_one(self, tap) => *tap = self.judged_again(place)?,
                None => {}
            }
        }
        Ok(())
    }

    /// Whether a tap comes out of the tokens, with one recorded tap on the way, or none; `None` where that cannot be told.
    fn comes_out_from(&mut self, place: Place, with: Option<Place>, recorded: &BTreeSet<Place>) -> Done<Option<bool>> {
        let Some(step) = self.recorded.model.plan.step(place.tap) else { return Ok(None) };
        // How far right runs part is another number for this stretch.
        let spread = self.rounding_spread.remove(&place);
        let left_out = recorded.iter().copied().filter(|other| *other != place && Some(*other) != with);
        let comes_out = self.with_left_out(left_out, |run| run.comes_out_now(step, place));
        self.rounding_spread.remove(&place);
        self.rounding_spread.extend(spread.map(|spread| (place, spread)));
        comes_out
    }

    /// Whether a tap comes out of the nearest recorded taps before it.
    fn comes_out_now(&mut self, step: &Step, place: Place) -> Done<Option<bool>> {
        let Some(target) = Target::recorded(self, step, place)? else { return Ok(None) };
        let (shared, effort) = (Shared::default(), Effort::default());
        let search = Search { run: self, shared: &shared, effort: &effort, accepted: &[] };
        let Some(right) = search.value(&target, &[], self.profile) else { return Ok(None) };
        if right.shape() != target.own.shape() {
            return Ok(None);
        }
        if misfit(target.place.tap.site, &target.own, &right) > PLAINLY_OFF {
            return Ok(Some(false));
        }
        let Some(exact) = search.value(&target, &[], Profile::Exact) else { return Ok(None) };
        let positions = target.positions.as_deref();
        let judged = self.judge_stretch(target.step, place, &target.own, &right, &exact, positions);
        Ok(match judged.report.status {
            status if status.agrees() => Some(true),
            Status::Diverged => Some(false),
            _ => None,
        })
    }
}

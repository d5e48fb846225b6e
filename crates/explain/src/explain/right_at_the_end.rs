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
use crate::replay::{Done, Replayed, Run};
use crate::search::Search;
use crate::search::proof::{Target, misfit};
use crate::search::simulate::Shared;
use crate::tolerance::replay::PLAINLY_OFF;

/// Taps above this are too many to run the model for each: of a small model, and of a large one.
pub(crate) const MOST: usize = 1024;
const MOST_OF_A_LARGE_ONE: usize = 32;

impl Run<'_> {
    /// Where each step is right at its end, leaves out the taps with which it would not be, and judges again what reads them.
    pub(crate) fn leave_out_what_is_right_at_the_end(&mut self, taps: &mut [Replayed]) -> Done<()> {
        if !self.known || !taps.iter().any(Replayed::is_at_fault) {
            return Ok(());
        }
        let recorded: BTreeSet<Place> =
            taps.iter().map(|t| t.report.place).filter(|place| self.recorded.is_readable(*place)).collect();
        // In the order of the Plan the last of each step stays.
        let ends: BTreeMap<u32, Place> = (taps.iter().map(|t| t.report.place))
            .filter(|place| recorded.contains(place))
            .map(|place| (place.step, place))
            .collect();
        // What is wrong by the tokens alone was found so.
        let is_known_wrong = |end: &Place| {
            taps.iter().any(|t| t.report.place == *end && t.from.is_empty() && t.report.status == Status::Diverged)
        };
        if ends.values().any(is_known_wrong) {
            return Ok(());
        }
        for &end in ends.values() {
            if self.comes_out_from(end, None, &recorded)? != Some(true) {
                return Ok(());
            }
        }
        let asked: Vec<Place> = recorded.iter().copied().filter(|place| self.is_seen_at(*place, &ends)).collect();
        let is_large = self.recorded.model.plan.dims.hidden > Effort::default().small;
        if asked.len() > if is_large { MOST_OF_A_LARGE_ONE } else { MOST } {
            return Ok(());
        }
        let mut off: BTreeMap<Place, Place> = BTreeMap::new();
        for place in asked {
            for (_, &end) in ends.range(place.step..) {
                if self.comes_out_from(end, Some(place), &recorded)? == Some(false) {
                    off.insert(place, end);
                    break;
                }
            }
        }
        // A single key, or the last position alone, shows nothing of a tap that another step shows to be off.
        let in_other_steps: HashSet<Tap> = taps
            .iter()
            .filter(|t| off.contains_key(&t.report.place) || !t.is_blamed())
            .map(|t| t.report.place.tap)
            .collect();
        for tap in taps.iter().filter(|t| t.is_blamed()) {
            let place = tap.report.place;
            let is_open = !tap.report.status.agrees() || self.recorded.positions(place).is_some();
            if is_open
                && recorded.contains(&place)
                && in_other_steps.contains(&place.tap)
                && self.is_seen_at(place, &ends)
            {
                off.entry(place).or_insert(ends[&place.step]);
            }
        }
        // Whether a right tap is made of a wrong one: then it is not the recording that is wrong.
        let between: BTreeSet<Place> = taps
            .iter()
            .filter(|t| t.report.status.agrees() && off.contains_key(&t.report.place))
            .map(|t| t.report.place)
            .collect();
        // What is off came from a wrong tap, or the two judgements contradict each other.
        let comes_from =
            |place: &Place| off.keys().any(|other| !between.contains(other) && self.is_made_of(place.tap, other.tap));
        if !between.iter().all(comes_from) {
            return Ok(());
        }
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

    /// Whether all that is made of a tap passes the ends of its step and of those behind it, which hold its positions.
    fn is_seen_at(&self, place: Place, ends: &BTreeMap<u32, Place>) -> bool {
        let passes = |end: &Place| *end != place && !self.goes_on(place.tap, &HashSet::from([end.tap]));
        let holds = |end: &Place| match (self.recorded.positions(*end), self.recorded.positions(place)) {
            (None, _) => true,
            (Some(rows), Some(own)) => rows == own || end.step != place.step,
            (Some(_), None) => end.step != place.step,
        };
        ends.range(place.step..).all(|(_, end)| passes(end) && holds(end))
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

//! Does a later operation take back what is off at a tap? Then neither is a mistake.
//!
//! Engines place a factor where it costs least: q times 1/sqrt(d) before the products, and none after them; or q and k times d^-1/4 each. Two taps are then not
//! the reference's, and two operations are not its operations; the scores are. What is right when it is computed from what stands before all of it was never wrong.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use firstdiff_compare::{Place, Status};
use firstdiff_trace::Tap;

use crate::explain::misrecorded::listed;
use crate::replay::{Done, Replayed, Run};
use crate::tolerance::replay::TAKES_BACK;

/// How many operations back, at most, what is taken back may have been made.
const FARTHEST: usize = 6;

/// A replay, of a Plan or of a program, of which any recorded tap can be computed as if it had not been recorded.
pub(crate) trait Trials {
    /// A tap of a step.
    type At: Copy + Ord;

    fn place(&self, at: Self::At) -> Place;
    /// All that were judged, and those that can be computed with, in the order in which they are made.
    fn all(&self) -> Vec<Self::At>;
    fn recorded(&self) -> Vec<Self::At>;
    fn judged(&self, at: Self::At) -> Option<&Replayed>;
    /// What it was computed from.
    fn made_of(&self, at: Self::At) -> BTreeSet<Self::At>;
    /// Whether it is made of another, by whatever lies between.
    fn is_made_of(&self, at: Self::At, of: Self::At) -> bool;
    /// Whether it is made of one of these, and what would hide that is among `between`.
    fn is_made_of_one(&self, at: Self::At, of: &BTreeSet<Self::At>, _between: &BTreeSet<Self::At>) -> bool {
        of.iter().any(|&of| self.is_made_of(at, of))
    }
    /// Whether something is made of it, to the end, that passes none of these.
    fn goes_on(&self, at: Self::At, readers: &BTreeSet<Self::At>) -> bool;
    /// How it is judged with these computed.
    fn without(&mut self, at: Self::At, left_out: &BTreeSet<Self::At>) -> Done<Option<Replayed>>;
    /// Whether it comes out of the tokens, with one recorded tap on the way, or none; `None` where that cannot be told, or takes long.
    fn comes_out_from(&mut self, end: Self::At, with: Option<Self::At>) -> Done<Option<bool>>;
    /// Whether all that is made of it passes the ends of its step and of those behind it, which hold its positions.
    fn is_seen_at(&self, at: Self::At, ends: &BTreeMap<u32, Self::At>) -> bool;
    /// Whether it is off where the same tap of another step is.
    fn may_be_off(&self, at: Self::At) -> bool;
    /// How many taps may be tried at an end.
    fn most(&self) -> usize;
}

/// A tap that is wrong by what it reads, and right by what stands before.
pub(crate) struct TakenBack<At> {
    /// What takes back.
    pub(crate) reader: At,
    /// The wrong taps without which it would not come out.
    pub(crate) wrong: BTreeSet<At>,
    /// The recorded taps between, which were made of wrong ones.
    pub(crate) between: BTreeSet<At>,
}

/// All wrong taps that take back what is off before them.
pub(crate) fn taken_back<T: Trials>(trials: &mut T) -> Done<Vec<TakenBack<T::At>>> {
    let mut all = Vec::new();
    for at in trials.all() {
        if trials.judged(at).is_some_and(Replayed::is_at_fault) {
            all.extend(taken_back_at(trials, at)?);
        }
    }
    // What is not taken back on every way is not taken back.
    loop {
        let readers: BTreeSet<T::At> = all.iter().map(|found| found.reader).collect();
        let before = all.len();
        all.retain(|found: &TakenBack<T::At>| !found.wrong.iter().any(|&at| trials.goes_on(at, &readers)));
        if all.len() == before {
            return Ok(all);
        }
    }
}

/// What a wrong tap takes back, where that makes it right.
fn taken_back_at<T: Trials>(trials: &mut T, reader: T::At) -> Done<Option<TakenBack<T::At>>> {
    let tap = trials.place(reader).tap;
    let (mut wrong, mut between) = (BTreeSet::new(), BTreeSet::new());
    let mut front = trials.made_of(reader);
    for _ in 0..FARTHEST {
        let near = front.iter().copied().filter(|&at| is_near(trials.place(at).tap, tap));
        let judged = near.filter_map(|at| Some((at, trials.judged(at).filter(|t| t.is_blamed())?.report.status)));
        let here: Vec<(T::At, Status)> = judged.collect();
        let of = |is: fn(Status) -> bool| here.iter().filter(move |(_, status)| is(*status)).map(|(at, _)| *at);
        let new: Vec<T::At> = of(|status| status == Status::Diverged).collect();
        wrong.extend(&new);
        if !new.is_empty() && right_without(trials, reader, &(&wrong | &between))?.is_some() {
            return needed(trials, reader, &wrong, &between);
        }
        let right: BTreeSet<T::At> = of(Status::agrees).collect();
        between.extend(&right);
        front = right.iter().flat_map(|&at| trials.made_of(at)).collect();
        front = &front - &between;
    }
    Ok(None)
}

/// Without those that it comes out with as they were recorded, and what was not made of the others.
fn needed<T: Trials>(
    trials: &mut T,
    reader: T::At,
    wrong: &BTreeSet<T::At>,
    between: &BTreeSet<T::At>,
) -> Done<Option<TakenBack<T::At>>> {
    let mut needed = BTreeSet::new();
    for &one in wrong {
        let rest = &(wrong | between) - &BTreeSet::from([one]);
        if right_without(trials, reader, &rest)?.is_none() {
            needed.insert(one);
        }
    }
    let of_them = |&at: &T::At| trials.is_made_of_one(at, &needed, between);
    let between: BTreeSet<T::At> = between.iter().copied().filter(of_them).collect();
    Ok((!needed.is_empty()).then_some(TakenBack { reader, wrong: needed, between }))
}

/// How a wrong tap is judged with these computed, where it is right then, and far nearer.
pub(crate) fn right_without<T: Trials>(
    trials: &mut T,
    at: T::At,
    left_out: &BTreeSet<T::At>,
) -> Done<Option<Replayed>> {
    let was = trials.judged(at).and_then(|t| t.report.metrics?.nmse()).unwrap_or(f64::INFINITY);
    let is_right =
        |again: &Replayed| again.report.status.agrees() && was > TAKES_BACK * again.report.allowed.unwrap_or(0.0);
    Ok(trials.without(at, left_out)?.filter(is_right))
}

/// The replay of a Plan.
pub(crate) struct OfPlan<'r, 'a> {
    pub(crate) run: &'r mut Run<'a>,
    pub(crate) taps: &'r [Replayed],
}

impl Run<'_> {
    /// Finds wrong taps whose error is taken back before it reaches anything else, leaves out their recordings and what was made of them, and judges again what
    /// takes it back.
    pub(crate) fn leave_out_taken_back(&mut self, taps: &mut [Replayed]) -> Done<()> {
        let all = taken_back(&mut OfPlan { run: self, taps })?;
        for found in &all {
            self.recorded.left_out.extend(found.wrong.iter().chain(&found.between).copied());
        }
        for found in &all {
            for tap in taps.iter_mut() {
                let place = tap.report.place;
                if place == found.reader {
                    *tap = self.judged_again(place)?;
                } else if found.wrong.contains(&place) || found.between.contains(&place) {
                    tap.is_right_again_at(found.reader, !found.between.is_empty());
                }
            }
        }
        Ok(())
    }

    pub(crate) fn is_made_of(&self, tap: Tap, of: Tap) -> bool {
        let plan = &self.recorded.model.plan;
        let (mut open, mut seen) = (vec![tap], HashSet::new());
        while let Some(at) = open.pop() {
            if at == of {
                return true;
            }
            open.extend(plan.step(at).into_iter().flat_map(|step| &step.reads).filter(|tap| seen.insert(**tap)));
        }
        false
    }

    /// Whether something is made of a tap, to the model's end, that passes none of these.
    pub(crate) fn goes_on(&self, tap: Tap, readers: &HashSet<Tap>) -> bool {
        let steps = &self.recorded.model.plan.steps;
        let (mut open, mut seen) = (vec![tap], HashSet::new());
        while let Some(at) = open.pop() {
            let mut readers_of = steps.iter().filter(|step| step.reads.contains(&at)).peekable();
            if readers_of.peek().is_none() {
                return true;
            }
            open.extend(readers_of.map(|s| s.tap).filter(|tap| !readers.contains(tap) && seen.insert(*tap)));
        }
        false
    }
}

/// Whether two taps are of one layer, or both of none: further apart nothing is looked for.
pub(crate) fn is_near(a: Tap, b: Tap) -> bool {
    (a.stack(), a.layer) == (b.stack(), b.layer)
}

/// Why no operation is blamed, in words.
pub fn words(readers: &[Place]) -> String {
    let (who, many) = listed(readers);
    format!(
        "{who} take{} back what is off here, and {} right by what stands before it, as where a factor is applied in another place: nothing is to be changed",
        if many { "" } else { "s" },
        if many { "are" } else { "is" },
    )
}

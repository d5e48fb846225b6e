//! Does a later operation take back what is off at a tap? Then neither is a mistake.
//!
//! Engines place a factor where it costs least: q times 1/sqrt(d) before the products, and none after them; or q and k times d^-1/4 each. Two taps are then not
//! the reference's, and two operations are not its operations; the scores are. What is right when it is computed from what stands before all of it was never wrong.

use std::collections::{BTreeSet, HashSet};

use firstdiff_compare::{Place, Status};
use firstdiff_trace::Tap;

use crate::explain::misrecorded::listed;
use crate::replay::{Done, Replayed, Run};
use crate::tolerance::replay::TAKES_BACK;

/// How many operations back, at most, what is taken back may have been made.
pub(crate) const FARTHEST: usize = 6;

/// A tap that is wrong by what it reads, and right by what stands before.
struct TakenBack {
    /// What takes back.
    reader: Place,
    /// The wrong taps without which it would not come out.
    wrong: BTreeSet<Place>,
    /// The recorded taps between, which were made of wrong ones.
    between: BTreeSet<Place>,
}

impl Run<'_> {
    /// Finds wrong taps whose error is taken back before it reaches anything else, leaves out their recordings and what was made of them, and judges again what
    /// takes it back.
    pub(crate) fn leave_out_taken_back(&mut self, taps: &mut [Replayed]) -> Done<()> {
        let mut all = Vec::new();
        for tap in taps.iter().filter(|t| t.is_at_fault()) {
            all.extend(self.taken_back_at(tap, taps)?);
        }
        // What is not taken back on every way is not taken back.
        loop {
            let readers: HashSet<Tap> = all.iter().map(|found| found.reader.tap).collect();
            let before = all.len();
            all.retain(|found| !found.wrong.iter().any(|place| self.goes_on(place.tap, &readers)));
            if all.len() == before {
                break;
            }
        }
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

    /// What a wrong tap takes back, where that makes it right.
    fn taken_back_at(&mut self, reader: &Replayed, taps: &[Replayed]) -> Done<Option<TakenBack>> {
        let place = reader.report.place;
        let replayed = |place: Place| taps.iter().find(|t| t.report.place == place);
        let (mut wrong, mut between) = (BTreeSet::new(), BTreeSet::new());
        let mut front = self.made_of(reader);
        for _ in 0..FARTHEST {
            let here: Vec<&Replayed> = front
                .iter()
                .filter(|p| is_near(p.tap, place.tap))
                .filter_map(|&p| replayed(p))
                .filter(|t| t.is_blamed())
                .collect();
            let new: Vec<Place> =
                here.iter().filter(|t| t.report.status == Status::Diverged).map(|t| t.report.place).collect();
            let right: Vec<&Replayed> = here.into_iter().filter(|t| t.report.status.agrees()).collect();
            wrong.extend(&new);
            if !new.is_empty() && self.is_right_without(reader, wrong.union(&between))? {
                return self.needed(reader, wrong, between);
            }
            between.extend(right.iter().map(|t| t.report.place));
            front = right.into_iter().flat_map(|t| self.made_of(t)).filter(|p| !between.contains(p)).collect();
        }
        Ok(None)
    }

    /// Without those that it comes out with as they were recorded, and what was not made of the others.
    fn needed(
        &mut self,
        reader: &Replayed,
        wrong: BTreeSet<Place>,
        between: BTreeSet<Place>,
    ) -> Done<Option<TakenBack>> {
        let mut needed = BTreeSet::new();
        for &one in &wrong {
            if !self.is_right_without(reader, wrong.union(&between).filter(|p| **p != one))? {
                needed.insert(one);
            }
        }
        let reader = reader.report.place;
        let of_them = |place: &Place| needed.iter().any(|w: &Place| self.is_made_of(place.tap, w.tap));
        let between: BTreeSet<Place> = between.into_iter().filter(of_them).collect();
        Ok((!needed.is_empty()).then_some(TakenBack { reader, wrong: needed, between }))
    }

    /// Whether a wrong tap is right, and far nearer, with these computed.
    fn is_right_without<'p>(&mut self, reader: &Replayed, left_out: impl Iterator<Item = &'p Place>) -> Done<bool> {
        let again = self.judged_without(reader.report.place, &left_out.copied().collect())?;
        let before = reader.report.metrics.and_then(|m| m.nmse()).unwrap_or(f64::INFINITY);
        Ok(again.report.status.agrees() && before > TAKES_BACK * again.report.allowed.unwrap_or(0.0))
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

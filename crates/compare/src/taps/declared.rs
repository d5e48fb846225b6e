//! Applies what the dumps declare about a tap beside its values.

use firstdiff_trace::QkRows;

use crate::graph::Place;
use crate::taps::context::{ComparisonContext, TapJudgement};

impl ComparisonContext<'_> {
    /// Doubts a tap that agrees, or could not be compared, where the dump itself doubts it; and one that differs where it may be a rank's summand.
    pub(crate) fn doubted(&self, place: Place, here: TapJudgement) -> TapJudgement {
        let step = match self.alignment() {
            Some(alignment) => {
                alignment.cells.get(place.step as usize).and_then(|cell| alignment.candidate.step_of(cell.start))
            }
            None => Some(place.step),
        };
        let reason = match step.and_then(|step| self.plan.doubts.get(&(step, place.tap))) {
            Some(reason) if !here.is_compared() && !matches!(here, TapJudgement::NotRecorded) => Some(reason.clone()),
            Some(reason) if here.agrees() => Some(reason.clone()),
            None if here.is_compared() && !here.agrees() => self.may_be_a_sum(place),
            _ => None,
        };
        reason.map_or(here, TapJudgement::Unchecked)
    }

    /// The candidate's order of the rows of Q and K, where the two dumps declare different ones.
    pub(crate) fn declared(&self) -> Option<QkRows> {
        let (ours, theirs) = (self.reference.meta().qk_rows?, self.candidate.meta().qk_rows?);
        (ours != theirs).then_some(theirs)
    }
}

//! What is neither passed nor blamed, though it was compared? What the dump itself puts in doubt, and what nothing shows to be of the same positions.

use crate::first::{Found, Run};
use crate::graph::Place;
use crate::steps::unwitnessed;

impl Run<'_> {
    /// What agrees, or could not be laid against the reference, where the dump itself is in doubt of it; and what differs where it may be a rank's summand.
    pub(crate) fn doubted(&self, place: Place, here: Found) -> Found {
        let step = match self.laid() {
            Some(laid) => laid.cells.get(place.step as usize).and_then(|cell| laid.candidate.step_of(cell.start)),
            None => Some(place.step),
        };
        let reason = match step.and_then(|step| self.doubts.get(&(step, place.tap))) {
            Some(reason) if here.agrees() || matches!(here, Found::Misfit(_)) => Some(reason.clone()),
            None if here.is_judged() && !here.agrees() => self.may_be_a_sum(place),
            _ => None,
        };
        reason.map_or(here, Found::Unchecked)
    }

    /// Takes back what differs where nothing shows that both are of the same positions.
    pub(crate) fn doubt_positions(&self, found: &mut [Found]) {
        let [reference, candidate] = self.recorded();
        let chosen = self.options.rows.as_ref().is_some_and(|rows| !rows.is_all());
        if chosen || found.iter().any(Found::agrees) {
            return;
        }
        let Some(reason) = unwitnessed(reference, candidate) else { return };
        found.iter_mut().filter(|here| here.is_judged()).for_each(|here| *here = Found::Misfit(reason.clone()));
    }

    /// Why a run of which all that was compared agrees does not pass.
    pub(crate) fn not_passed(&self, found: &[Found]) -> Option<String> {
        let doubt = self.doubts.first_key_value().map(|((step, tap), reason)| {
            let place = Place { step: *step, tap: *tap };
            format!("what else was compared agrees, but {place}: {reason}")
        });
        doubt.or_else(|| self.missing_rank(found)).or_else(|| self.nameless())
    }
}

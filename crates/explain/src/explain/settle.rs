//! What stands in the end, of places that were explained one after the other?

use std::collections::HashSet;

use firstdiff_compare::Place;
use firstdiff_model::Model;

use crate::explain::{Explained, Walk, as_fitted};
use crate::mistakes::Edit;
use crate::replay::recorded::own;
use crate::replay::{ReplayError, Run};
use crate::search::Search;
use crate::search::candidates::Candidate;
use crate::search::proof::Target;
use crate::search::simulate::Shared;

impl Walk<'_> {
    /// Decode steps that were explained by what later ones spoke against are explained again, by what stands in the end.
    pub(super) fn settle_steps(&mut self, run: &Run<'_>, shared: &Shared, model: &Model) -> Result<(), ReplayError> {
        let search = Search { run, shared, effort: self.effort, accepted: &self.accepted };
        let stands = |edit: &Edit| self.accepted.iter().any(|known| known.is_made_as(edit));
        for explained in self.places.iter_mut().filter(|e| e.place.step > 0) {
            let Some(best) = explained.found.reproduced.first() else { continue };
            let Some(step) = model.plan.step(explained.place.tap) else { continue };
            if best.mistakes.iter().flat_map(|m| &m.edits).all(stands) {
                continue;
            }
            if let Some((values, positions)) = own(run, explained.place)? {
                let mut target = Target::new(run, step, explained.place, values, positions, None);
                target.from_step = 1;
                if let Some(again) = search.already(&target) {
                    explained.found.reproduced = vec![again];
                }
            }
        }
        Ok(())
    }

    /// What one place alone shows may be what other places show too: a free number, which is fitted only where no plain form reproduces a place, or a mistake that is
    /// made at several sites together, of which each alone looks like another. Made there as well, [`findings::of`] has the choice.
    pub(super) fn tell_apart(&mut self, run: &Run<'_>, shared: &Shared, model: &Model) -> Result<(), ReplayError> {
        let is_free = |edit: &&Edit| edit.tunable().is_some();
        let of_several = |edit: &&Edit| !edit.mistake.made_together.is_empty();
        let found = |explained: &Explained| -> Vec<Edit> {
            let singles = explained.found.reproduced.iter().filter(|r| r.mistakes.len() == 1);
            let edits = singles.filter_map(|r| r.mistakes[0].edits.first());
            edits.filter(|edit| is_free(edit) || of_several(edit)).cloned().collect()
        };
        let shown: Vec<(Place, Vec<Edit>)> = self.places.iter().map(|e| (e.place, found(e))).collect();
        for explained in &mut self.places {
            let place = explained.place;
            let Some([one]) = explained.found.reproduced.first().map(|best| &best.mistakes[..]) else { continue };
            let here =
                |edit: &Edit| explained.found.reproduced.iter().flat_map(|r| &r.mistakes).any(|m| m.key == edit.key());
            let mut keys = HashSet::new();
            let other = |edit: &&Edit| {
                let asked = place.step == 0 && is_free(edit) || of_several(edit);
                asked && edit.mistake != one.mistake() && !here(edit) && keys.insert(edit.key())
            };
            let elsewhere: Vec<&Edit> =
                shown.iter().filter(|(at, _)| *at != place).flat_map(|(_, edits)| edits).filter(other).collect();
            let Some(step) = model.plan.step(place.tap).filter(|_| !elsewhere.is_empty()) else { continue };
            let Some(target) = Target::recorded(run, step, place)? else { continue };
            let rest: Vec<Edit> = self.accepted.iter().filter(|e| !explained.steps.contains(&e.tap)).cloned().collect();
            let search = Search { run, shared, effort: self.effort, accepted: &rest };
            let (all, base) = (search.candidates(&target), search.bare(&target));
            let alike = |edit: &Edit| -> Vec<Candidate> {
                let same = all.iter().filter(|candidate| candidate.key == edit.key()).cloned();
                if is_free(&edit) { as_fitted(edit, &all).collect() } else { same.collect() }
            };
            for candidate in elsewhere.into_iter().flat_map(alike) {
                let edits: Vec<&Edit> = candidate.edits.iter().collect();
                if let Some(residual) = search.proved(&target, &edits, base) {
                    let found = search.reproduction(&target, vec![candidate.clone()], residual);
                    explained.found.reproduced.push(found);
                    break;
                }
            }
        }
        Ok(())
    }
}

//! Describes the first divergence: the taps around it, and the form of its error.

use firstdiff_trace::{Dump, DumpError};

use crate::conclude::moved_positions;
use crate::graph::Place;
use crate::layout::elements::TensorRef;
use crate::layout::pair::Pair;
use crate::layout::types::Layout;
use crate::report::anatomy::{Anatomy, Transform};
use crate::report::{FirstDivergence, anatomy};
use crate::taps::context::{ComparisonContext, TapJudgement};
use crate::tolerance::judge::TAKEN_BACK;
use crate::tolerance::layout::ANATOMY_ROOM;

impl ComparisonContext<'_> {
    pub(crate) fn first_divergence(
        &self,
        taps: &[TapJudgement],
        index: usize,
        at: usize,
    ) -> Result<FirstDivergence, DumpError> {
        let places = self.graph.places();
        let (before, between) = self.graph.nearest_before(index, |i| taps[i].is_compared());
        let (nmse, layout) = match &taps[index] {
            TapJudgement::Compared(judged) => {
                (judged.judgement.metrics.nmse().unwrap_or(f64::INFINITY), &judged.layout)
            }
            _ => (f64::INFINITY, &Layout::Same),
        };
        let inputs_known = self.graph.knows_inputs(index);
        // The error ends where every tap computed from it ends in one that agrees.
        let (after, reached) = self.graph.nearest_after(index, |i| taps[i].agrees() && !taps[i].is_in_part());
        let ends = |&i: &usize| self.graph.nearest_after(i, |_| true).0.is_empty();
        // What a coarse tolerance hides may be the error itself, made smaller.
        let is_taken_back = |&i: &usize| match &taps[i] {
            TapJudgement::Compared(judged) => {
                judged.judgement.metrics.nmse().is_none_or(|left| left <= TAKEN_BACK * nmse)
            }
            _ => true,
        };
        let recovers = after.iter().all(is_taken_back) && !reached.iter().any(ends);
        let recovers_at = after.first().filter(|_| recovers).map(|&i| places[i]);
        let differing = reached.into_iter().filter(|&i| recovers_at.is_some() && taps[i].is_compared());
        Ok(FirstDivergence {
            index: at,
            after: before.last().map(|&i| places[i]),
            reads: self.graph.reads(index).iter().filter(|_| inputs_known).map(|&i| places[i]).collect(),
            inputs_known,
            unchecked_between: between.iter().map(|&i| places[i]).collect(),
            unrecorded_layers: self
                .graph
                .unrecorded_layers(|place| place == places[index] || between.iter().any(|&i| places[i] == place)),
            recovers_at,
            recovers_behind: differing.map(|i| places[i]).collect(),
            keys_not_compared: self.keys_not_compared(taps, index, &before, &between),
            anatomy: self.anatomy(places[index], layout, nmse)?,
        })
    }

    fn anatomy(&self, place: Place, layout: &Layout, nmse: f64) -> Result<Anatomy, DumpError> {
        let own_axes = |pair: &Pair<'_>| self.own_shape(place, pair.shape()).is_none();
        let of_pair = |pair: &Pair<'_>, own: f64| (anatomy::anatomy(pair, ANATOMY_ROOM * own), own_axes(pair));
        let (mut anatomy, are_own) = self.with_pair(place, layout, of_pair)?.unwrap_or_default();
        if !are_own {
            anatomy.forget_channels();
        }
        anatomy.ranks = self.by_rank(place, layout)?;
        if let Some(other) = self.other_tap(place, nmse)? {
            anatomy.add_change(0, other, nmse);
        }
        if self.alignment().is_some() {
            let moved = self
                .with_pair(place, &Layout::Same, |pair, own| moved_positions::moved_keys(pair, ANATOMY_ROOM * own))?;
            if let Some(moved) = moved.flatten() {
                anatomy.add_change(anatomy.explained_by.len(), moved, nmse);
            }
        }
        Ok(anatomy)
    }

    /// Whether the candidate holds another tap of the reference here, or another position's row.
    fn other_tap(&self, place: Place, nmse: f64) -> Result<Option<Transform>, DumpError> {
        let find = |dump: &Dump| dump.find(place.tap, place.step).cloned();
        let (Some(left), Some(right)) = (find(self.reference), find(self.candidate)) else { return Ok(None) };
        let candidate = self.candidate.read(&right)?;
        let values = candidate.values();
        let operand = TensorRef { values: &values, shape: &right.shape, rows: right.rows.as_ref() };
        let own = ANATOMY_ROOM * self.allowed(place, &left, &right);
        if let Some(alignment) = self.alignment()
            && let Some(row) = moved_positions::other_position(self.reference, alignment, place, &operand, own, nmse)?
        {
            return Ok(Some(row));
        }
        anatomy::other_tap(self.reference, &left, &operand, own, nmse)
    }
}

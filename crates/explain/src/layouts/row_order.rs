//! In which RoPE order are the rows of Q and K, where the dump does not say? The values themselves tell, if not exactly then by likeness.

use std::collections::BTreeSet;
use std::mem::replace;

use firstdiff_compare::Place;
use firstdiff_model::Step;
use ndarray::Axis;

use crate::layouts::Shown;
use crate::replay::{Done, Due, Run};
use crate::tolerance::layouts::ORDER_TELLS;

/// What is said where nothing tells.
pub(super) const OPEN: &str = "the rows of Q and K may come in either RoPE order: what is recorded of them is wrong in both; say 'qk_rows' in dump.json";

/// What a round shows of the order of the rows of Q and K.
#[derive(Default)]
pub(super) struct RowOrder {
    /// Whether a tap comes out in one order, or is far nearer in one than in the other.
    pub(super) is_known: bool,
    /// Whether no order is declared, and a tap is as wrong in one as in the other.
    is_doubted: bool,
}

impl RowOrder {
    /// Whether no order is declared, and what is recorded of Q and K is wrong in both orders, in none of them nearer.
    pub(super) fn is_open(&self) -> bool {
        self.is_doubted && !self.is_known
    }
}

impl Run<'_> {
    /// Whether nobody says in which order a tap's rows of Q and K are.
    pub(super) fn has_open_rows(&self, place: Place) -> bool {
        self.recorded.dump.meta().qk_rows.is_none() && place.tap.site.has_rope_rows() && place.step == 0
    }

    /// Notes in which order of rows a tap of Q or K that comes out in none is nearer to what is due, if in any.
    pub(super) fn note_row_order(&self, place: Place, due: &Due, shown: &mut Shown) -> Done<()> {
        if !self.has_open_rows(place) {
            return Ok(());
        }
        let near = self.looked_at(place, Some(due), |layouts| {
            let mut near = [0.0f64; 2];
            let pairs = layouts.as_it_stands().ok().cloned().into_iter().chain(self.others(place, layouts));
            for pair in pairs {
                let at = usize::from(pair.layout().rows().is_some());
                near[at] = near[at].max(pair.mean_correlation());
            }
            near
        })?;
        if let Some([own, other]) = near {
            let tells = (own - other).abs() >= ORDER_TELLS;
            shown.row_order.is_known |= tells;
            shown.row_order.is_doubted |= !tells;
        }
        Ok(())
    }

    /// What is due at the positions that a tap of the prefill holds, computed from the taps that hold them all, or else from the tokens.
    pub(super) fn due_from_whole_taps(&mut self, step: &Step) -> Done<Option<Due>> {
        let place = Place { step: 0, tap: step.tap };
        let Some(positions) = self.recorded.positions(place).and_then(|rows| self.listed(&rows, place)) else {
            return Ok(None);
        };
        let all = self.recorded.dump.entries().iter().map(|e| Place { step: e.step, tap: e.tap });
        let partial: BTreeSet<Place> = all.filter(|place| self.recorded.positions(*place).is_some()).collect();
        let left_out = replace(&mut self.recorded.left_out, partial);
        self.forget();
        let computed = self.computed(step, 0)?;
        self.recorded.left_out = left_out;
        self.forget();
        let axis = Axis(place.tap.site.position_axis());
        Ok(computed.ok().map(|(right, exact)| Due {
            right: right.select(axis, &positions),
            exact: exact.select(axis, &positions),
            positions: Some(positions),
            from: Vec::new(),
            through: Vec::new(),
        }))
    }
}

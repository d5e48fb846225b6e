//! Compares flat tensors whose number of token positions is not stated.

use firstdiff_trace::{DumpError, Entry};

use crate::judge::tensor::{Outcome, Tolerance};
use crate::layout::rows::{are_all, squeezed};
use crate::report::reason::Reason;
use crate::run::positions::unflattened;
use crate::taps::context::{ComparisonContext, TapJudgement};

impl ComparisonContext<'_> {
    /// How many token positions a step, or a cell, has.
    fn positions(&self, step: u32) -> Option<usize> {
        match self.alignment() {
            Some(alignment) => alignment.cells.get(step as usize).map(ExactSizeIterator::len),
            None => self.plan.chunks.as_ref()?.lengths.get(step as usize).copied(),
        }
    }

    /// Both sides of a place, with the position axis added to a flat reference where their number or the candidate's shape shows it.
    pub(crate) fn with_axes(
        &self,
        mut left: Option<Entry>,
        mut right: Option<Entry>,
    ) -> (Option<Entry>, Option<Entry>) {
        if let (Some(left), Some(right)) = (&mut left, &mut right)
            && self.is_flat(left, right)
        {
            let (site, theirs) = (left.tap.site, squeezed(left.tap.site, &right.shape));
            let positions = self.positions(left.step);
            let in_order = theirs.len() == site.axes().len()
                && positions.is_none_or(|positions| theirs.get(site.position_axis()) == Some(&positions));
            let same = theirs.iter().product::<usize>() == left.shape[0];
            let unflattened_shape = positions.and_then(|positions| unflattened(site, &left.shape, positions));
            match (in_order && same, unflattened_shape) {
                (true, _) => left.shape = theirs,
                (false, Some(shape)) => {
                    if right.shape == left.shape {
                        right.shape.clone_from(&shape);
                    }
                    left.shape = shape;
                }
                (false, None) => {}
            }
        }
        (left, right)
    }

    /// Whether the reference holds a flat tensor of all positions.
    fn is_flat(&self, left: &Entry, right: &Entry) -> bool {
        left.shape.len() == 1 && are_all(&left.rows) && are_all(&right.rows) && are_all(&self.options.rows)
    }

    /// Whether both sides hold a flat tensor of all positions, whose number is unknown.
    pub(crate) fn are_flat(&self, left: &Entry, right: &Entry) -> bool {
        self.is_flat(left, right) && left.shape.iter().product::<usize>() == right.shape.iter().product::<usize>()
    }

    /// The judgement of flat tensors with an unknown number of positions: only whether they are equal bit for bit.
    pub(crate) fn judge_flat(&self, left: &Entry, right: &Entry) -> Result<TapJudgement, DumpError> {
        let (reference, candidate) = (self.reference.read(left)?, self.candidate.read(right)?);
        let (reference, candidate) = (reference.values(), candidate.values());
        let row = |entry: &Entry| {
            let mut row = entry.clone();
            row.shape = vec![1, left.shape[0]];
            row
        };
        let (left, right) = (row(left), row(right));
        let judged = self.tap_judge(&left, &reference, &right, &candidate).judge(&Tolerance::rounding_only(0.0));
        Ok(match judged {
            TapJudgement::Compared(compared) if compared.judgement.outcome == Outcome::Exact => {
                TapJudgement::Compared(compared)
            }
            _ => TapJudgement::NotComparable(Reason::FlatOnBothSides { values: reference.len() }),
        })
    }
}

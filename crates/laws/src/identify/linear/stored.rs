//! A weight whose memory is read with other strides or extents.

use ndarray::Array2;

use super::{Sample, of_weight, weight_of};
use crate::case::Case;
use crate::identify::memory::{Gather, gathers};
use crate::law::Law;

/// Wrong outputs on which a reading is tried first.
const TRIED: usize = 3;

impl Sample {
    /// The cheapest reading of the weight's memory that gives the candidate's product.
    pub(super) fn stored_otherwise(&self, case: &Case<'_>) -> Option<Law> {
        let weight = weight_of(case, case.fitted)?;
        let memory = weight.as_slice()?;
        let width = weight.ncols();
        let bias = &self.right - &self.x.dot(&self.weight.t());
        let tried: Vec<usize> = (0..self.rows.len()).step_by(self.rows.len().div_ceil(TRIED).max(1)).collect();
        let own = self.own.select(ndarray::Axis(1), &tried) - bias.select(ndarray::Axis(1), &tried);
        let size = own.iter().map(|y| y * y).sum::<f64>().sqrt();
        let is_near = |gather: &Gather| {
            let read = Array2::from_shape_fn((tried.len(), width), |(row, column)| {
                gather.value(memory, self.rows[tried[row]] * width + column)
            });
            let off = self.x.dot(&read.t()) - &own;
            off.iter().map(|x| x * x).sum::<f64>().sqrt() <= super::ROOM * self.noise * size
        };
        let found = gathers(weight.shape()).into_iter().find(|gather| case.has_time() && is_near(gather))?;
        let words = format!("the weight is the right one {}", found.words);
        let gather = found.clone();
        let law = of_weight(words, found.bits + 2.0, move |case, at| gather.of_matrix(&weight_of(case, at)?));
        Some(law.with("memory", found.words))
    }
}

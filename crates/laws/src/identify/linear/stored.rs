//! A weight whose memory is read with other strides or extents.

use ndarray::Array2;

use super::{Sample, of_weight, weight_of};
use crate::case::Case;
use crate::identify::memory::{Gather, OF_HEADS, gathers};
use crate::law::Law;

/// Numbers of a weight beyond which the cheapest readings alone are tried, and how many.
const MOST_OF_ALL: usize = 1 << 18;
const CHEAPEST: usize = 1024;

impl Sample {
    /// The cheapest reading of the weight's memory that gives the candidate's product; tried on as few of its rows as there may be.
    pub(super) fn stored_otherwise(&self, case: &Case<'_>) -> Option<Law> {
        let weight = weight_of(case, case.fitted)?;
        let memory = weight.as_slice()?;
        let (few, width) = (self.few(1), weight.ncols());
        let most = if weight.len() > MOST_OF_ALL { CHEAPEST } else { usize::MAX };
        let is_near = |gather: &Gather| {
            let at = |(row, column): (usize, usize)| gather.value(memory, few.rows[row] * width + column);
            few.is_near(&few.x.dot(&Array2::from_shape_fn(few.weight.dim(), at).t()))
        };
        let found = gathers(weight.shape(), OF_HEADS)
            .into_iter()
            .take(most)
            .find(|gather| case.has_time() && is_near(gather))?;
        let words = format!("the weight is the right one {}", found.words);
        let gather = found.clone();
        let law = of_weight(words, found.bits + 2.0, move |case, at| gather.of_matrix(&weight_of(case, at)?));
        Some(law.with("memory", found.words))
    }
}

//! Turns scores into probabilities: softmax over the last axis.

use ndarray::{ArrayD, ArrayViewD};

use crate::kernel::dot::sum;
use crate::kernel::float::Float;
use crate::kernel::par_each;

/// pᵢ = e^(xᵢ - max x) / Σⱼ e^(xⱼ - max x), over the last axis; of any shape.
///
/// The sum is taken in the order of [`sum`]. A row of -inf only (a query that sees no key, such as a padded position) becomes zeros. There PyTorch gives
/// NaN, and transformers' eager attention, which adds the least finite value instead of -inf, gives 1/S for each key: such rows cannot be compared. A NaN
/// or +inf makes its row NaN.
///
/// Source: PyTorch, torch.nn.functional.softmax.
pub fn softmax<F: Float>(x: ArrayViewD<'_, F>) -> ArrayD<F> {
    let x = x.as_standard_layout();
    let mut out = ArrayD::zeros(x.raw_dim());
    let width = x.shape().last().copied().unwrap_or(1).max(1);
    let (Some(from), Some(to)) = (x.as_slice(), out.as_slice_mut()) else { return out };
    let rows: Vec<_> = from.chunks(width).zip(to.chunks_mut(width)).collect();
    par_each(rows, x.len().saturating_mul(EXPONENTIAL), |(from, to)| {
        let top = from.iter().copied().fold(F::neg_infinity(), F::max);
        // Masked keys are at the ends, and stay 0.
        let seen = |x: &F| *x != F::neg_infinity();
        let (Some(first), Some(last)) = (from.iter().position(seen), from.iter().rposition(seen)) else { return };
        to[first..=last].iter_mut().zip(&from[first..=last]).for_each(|(to, &x)| *to = (x - top).exp());
        let total = sum(to, |x| x);
        to.iter_mut().for_each(|x| *x /= total);
    });
    out
}

/// Cost of an exponential, in multiply-adds.
pub(crate) const EXPONENTIAL: usize = 32;

//! How do scores become probabilities? Softmax over the last axis.

use ndarray::{ArrayD, ArrayViewD};

use crate::kernel::dot::sum;
use crate::kernel::each;
use crate::kernel::float::Float;

/// pᵢ = e^(xᵢ - max x) / Σⱼ e^(xⱼ - max x), over the last axis; of any shape.
///
/// The sum is taken in the order of [`sum`]. A row that is -inf throughout (a query that sees no key, as padding's own) becomes
/// zeros. PyTorch gives NaN there, and transformers' eager attention, which adds the least finite value for -inf, 1/S each: such rows
/// cannot be compared. A NaN or +inf makes its row NaN.
///
/// Source: PyTorch, torch.nn.functional.softmax.
pub fn softmax<F: Float>(x: ArrayViewD<'_, F>) -> ArrayD<F> {
    let mut out = x.as_standard_layout().into_owned();
    let width = out.shape().last().copied().unwrap_or(1).max(1);
    let rows = out.as_slice_mut().map(|all| all.chunks_mut(width).collect::<Vec<_>>()).unwrap_or_default();
    each(rows, x.len().saturating_mul(EXPONENTIAL), |row| {
        let top = row.iter().copied().fold(F::neg_infinity(), F::max);
        if top == F::neg_infinity() && row.iter().all(|x| *x == top) {
            return row.fill(F::zero());
        }
        // Keys that no query sees lie at the ends.
        let seen = |x: &F| *x != F::neg_infinity();
        let (first, last) =
            (row.iter().position(seen).unwrap_or(0), row.iter().rposition(seen).map_or(0, |last| last + 1));
        row[..first].fill(F::zero());
        row[last..].fill(F::zero());
        row[first..last].iter_mut().for_each(|x| *x = (*x - top).exp());
        let total = sum(row, |x| x);
        row.iter_mut().for_each(|x| *x /= total);
    });
    out
}

/// Multiply-adds that a power of e takes the time of.
pub(crate) const EXPONENTIAL: usize = 32;

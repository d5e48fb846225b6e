//! How do scores become probabilities? Softmax over the last axis.

use ndarray::{ArrayD, ArrayViewD};

use crate::dot::sum;
use crate::float::Float;

/// pᵢ = e^(xᵢ - max x) / Σⱼ e^(xⱼ - max x), over the last axis; of any shape.
///
/// The sum is taken in the order of [`sum`]. A row that is -inf throughout (a query that sees no key, as padding's own) becomes
/// zeros. PyTorch gives NaN there, and transformers' eager attention, which adds the least finite value for -inf, 1/S each: such rows
/// cannot be compared. A NaN or +inf makes its row NaN.
///
/// Source: PyTorch, torch.nn.functional.softmax.
pub fn softmax<F: Float>(x: ArrayViewD<'_, F>) -> ArrayD<F> {
    let mut out = x.as_standard_layout().into_owned();
    for mut row in out.rows_mut() {
        let top = row.iter().copied().fold(F::neg_infinity(), F::max);
        if top == F::neg_infinity() && row.iter().all(|x| *x == top) {
            row.fill(F::zero());
            continue;
        }
        row.mapv_inplace(|x| (x - top).exp());
        let total = sum(row.as_slice().unwrap_or_default(), |x| x);
        row.mapv_inplace(|x| x / total);
    }
    out
}

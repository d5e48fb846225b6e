//! How does a branch enter the residual stream? It is added.

use ndarray::{ArrayD, ArrayViewD};

use crate::activation::PART;
use crate::error::{OpError, ensure};
use crate::kernel::each;
use crate::kernel::float::Float;

/// x + multiplier · branch, element by element; of any shape, usually \[T,D\]. A multiplier of 1 costs no rounding.
///
/// Source: He et al., Deep Residual Learning, 2015; the multiplier: Granite, MiniCPM.
///
/// # Errors
/// When the shapes differ.
pub fn residual<F: Float>(
    x: ArrayViewD<'_, F>,
    branch: ArrayViewD<'_, F>,
    multiplier: F,
) -> Result<ArrayD<F>, OpError> {
    ensure(x.shape() == branch.shape(), "residual", x.shape(), branch.shape(), "x and branch have one shape")?;
    let (x, branch) = (x.as_standard_layout(), branch.as_standard_layout());
    let mut out = ArrayD::zeros(x.raw_dim());
    let (Some(xs), Some(branches), Some(to)) = (x.as_slice(), branch.as_slice(), out.as_slice_mut()) else {
        return Ok(out);
    };
    let parts: Vec<_> = to.chunks_mut(PART).zip(xs.chunks(PART)).zip(branches.chunks(PART)).collect();
    each(parts, x.len(), |((to, xs), branches)| {
        to.iter_mut().zip(xs).zip(branches).for_each(|((to, &x), &branch)| *to = branch * multiplier + x);
    });
    Ok(out)
}

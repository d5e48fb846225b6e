//! Adds a branch to the residual stream.

use ndarray::{ArrayD, ArrayViewD};

use crate::error::{OpError, ensure};
use crate::kernel::float::Float;
use crate::kernel::pairwise;

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
    Ok(pairwise(x, branch, 1, |x, branch| branch * multiplier + x))
}

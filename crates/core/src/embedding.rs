//! Looks up the embedding vector of each token.

use ndarray::{Array2, ArrayView2};

use crate::error::OpError;
use crate::kernel::float::Float;

/// out\[t\] = table\[tokens\[t\]\]. `table` \[V,D\], `tokens` T ids; the result is \[T,D\]. No rounding.
///
/// Source: PyTorch, torch.nn.functional.embedding.
///
/// # Errors
/// When a token has no row.
pub fn embedding<F: Float>(table: ArrayView2<'_, F>, tokens: &[u32]) -> Result<Array2<F>, OpError> {
    let vocab = table.nrows();
    let mut out = Array2::zeros((tokens.len(), table.ncols()));
    for (position, (&token, mut row)) in tokens.iter().zip(out.rows_mut()).enumerate() {
        let at = token as usize;
        if at >= vocab {
            return Err(OpError::Token { token, position, vocab });
        }
        row.assign(&table.row(at));
    }
    Ok(out)
}

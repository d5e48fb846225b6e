//! How is a row mapped by a matrix? Linear layers and the head.

use ndarray::{Array2, ArrayView1, ArrayView2};

use crate::error::{OpError, ensure};
use crate::float::Float;
use crate::kernel::product;

/// y\[t,o\] = Σᵢ x\[t,i\] · w\[o,i\] + b\[o\].
///
/// `x` \[T,in\], `weight` \[out,in\] as PyTorch stores it, `bias` \[out\]; the result is \[T,out\]. Each sum is a [`dot`](crate::dot) in its own
/// type; the bias is added last. Neither T nor the number of threads changes a bit of a row.
///
/// ```
/// use ndarray::array;
/// let y = firstdiff_core::linear(array![[1.0, 2.0]].view(), array![[3.0, 4.0], [5.0, 6.0]].view(), None)?;
/// assert_eq!(y, array![[11.0, 17.0]]);
/// # Ok::<(), firstdiff_core::OpError>(())
/// ```
///
/// Source: PyTorch, torch.nn.functional.linear.
///
/// # Errors
/// When the shapes do not fit.
pub fn linear<F: Float>(
    x: ArrayView2<'_, F>,
    weight: ArrayView2<'_, F>,
    bias: Option<ArrayView1<'_, F>>,
) -> Result<Array2<F>, OpError> {
    ensure(x.ncols() == weight.ncols(), "linear", x.shape(), weight.shape(), "x is [T,in], weight [out,in]")?;
    if let Some(bias) = &bias {
        ensure(weight.nrows() == bias.len(), "linear", weight.shape(), bias.shape(), "weight is [out,in], bias [out]")?;
    }
    let bias = bias.map(|bias| bias.to_vec()).unwrap_or_default();
    let mut out = Array2::zeros((x.nrows(), weight.nrows()));
    product(x, weight, &bias, out.view_mut());
    Ok(out)
}

/// Logits: y\[t,v\] = Σᵢ x\[t,i\] · w\[v,i\]. `x` \[T,D\], `weight` \[V,D\] (the embedding's own where the head is tied); the result is \[T,V\].
///
/// A [`linear`] without bias.
///
/// # Errors
/// When the shapes do not fit.
pub fn head<F: Float>(x: ArrayView2<'_, F>, weight: ArrayView2<'_, F>) -> Result<Array2<F>, OpError> {
    linear(x, weight, None)
}

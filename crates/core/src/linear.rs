//! How is a row mapped by a matrix? Linear layers and the head.

use ndarray::{Array2, ArrayView1, ArrayView2};

use crate::dot::dot;
use crate::error::{OpError, ensure};
use crate::float::Float;

/// y\[t,o\] = Σᵢ x\[t,i\] · w\[o,i\] + b\[o\].
///
/// `x` \[T,in\], `weight` \[out,in\] as PyTorch stores it, `bias` \[out\]; the result is \[T,out\]. Each sum is a [`dot`] in its own type; the
/// bias is added last.
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
    let (x, weight) = (x.as_standard_layout(), weight.as_standard_layout());
    let mut out = Array2::zeros((x.nrows(), weight.nrows()));
    // A row of the weight is read once for all rows of x.
    for (o, (w, mut column)) in weight.rows().into_iter().zip(out.columns_mut()).enumerate() {
        let b = bias.as_ref().map(|b| b[o]);
        for (row, y) in x.rows().into_iter().zip(column.iter_mut()) {
            let product = dot(row.to_slice().unwrap_or_default(), w.to_slice().unwrap_or_default());
            *y = b.map_or(product, |b| product + b);
        }
    }
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

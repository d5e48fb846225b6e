//! Computes linear layers, and the head that gives the logits.

use half::{bf16, f16};
use ndarray::{Array2, ArrayView1, ArrayView2, ArrayViewMut2};

use crate::error::{OpError, ensure};
use crate::kernel::float::Float;
use crate::kernel::packed::Packed;
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

/// Contiguous rows of a matrix in their storage type.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a, F> {
    /// In the float type of the product.
    Native(&'a [F]),
    /// IEEE half.
    F16(&'a [f16]),
    /// bfloat16.
    BF16(&'a [bf16]),
}

/// out\[t,o\] = Σᵢ x\[t,i\] · w\[o,i\] for some rows of a matrix, in place; one thread.
///
/// `x` T rows of n elements, `w` as many rows of n as `out` \[T,·\] has columns. Each sum is a [`dot`](crate::dot) in F, the weights widened.
///
/// # Errors
/// When the shapes do not fit.
pub fn linear_rows<F: Float>(x: &Packed<'_, F>, w: Rows<'_, F>, out: ArrayViewMut2<'_, F>) -> Result<(), OpError> {
    let (width, count) = (x.width(), out.ncols());
    let stored = match w {
        Rows::Native(w) => w.len(),
        Rows::F16(w) => w.len(),
        Rows::BF16(w) => w.len(),
    };
    let fits = x.rows().len() == out.nrows() && stored == width * count;
    ensure(
        fits,
        "linear_rows",
        &[x.rows().len(), width],
        &[stored],
        "x is T rows of n, w as many rows of n as out has columns",
    )?;
    if width == 0 || count == 0 {
        return Ok(());
    }
    match w {
        Rows::Native(w) => F::products(x, &w.chunks_exact(width).collect::<Vec<_>>(), out),
        Rows::F16(w) => F::products_f16(x, &w.chunks_exact(width).collect::<Vec<_>>(), out),
        Rows::BF16(w) => F::products_bf16(x, &w.chunks_exact(width).collect::<Vec<_>>(), out),
    }
    Ok(())
}

/// Computes logits: y\[t,v\] = Σᵢ x\[t,i\] · w\[v,i\]. `x` \[T,D\], `weight` \[V,D\] (the embedding matrix where the head is tied); the result is \[T,V\].
///
/// A [`linear`] without bias.
///
/// # Errors
/// When the shapes do not fit.
pub fn head<F: Float>(x: ArrayView2<'_, F>, weight: ArrayView2<'_, F>) -> Result<Array2<F>, OpError> {
    linear(x, weight, None)
}

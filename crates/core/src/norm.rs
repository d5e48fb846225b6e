//! Computes RMSNorm and LayerNorm.

use ndarray::{Array1, Array2, ArrayView1, ArrayView2};

use crate::error::{OpError, ensure};
use crate::kernel::dot::{dot, sum};
use crate::kernel::float::Float;
use crate::kernel::par_each;

/// yᵢ = wᵢ · xᵢ / √(mean(x²) + eps), for each row.
///
/// `x` \[T,D\], `weight` \[D\]; for a norm of each head, view \[T,H,d\] as \[T*H,d\]. The mean is a [`dot`] of the row with itself; x is scaled
/// before it is weighted.
///
/// Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019; transformers, LlamaRMSNorm.
///
/// # Errors
/// When the widths differ.
pub fn rms_norm<F: Float>(x: ArrayView2<'_, F>, weight: ArrayView1<'_, F>, eps: F) -> Result<Array2<F>, OpError> {
    ensure(x.ncols() == weight.len(), "rms_norm", x.shape(), weight.shape(), "x is [T,D], weight [D]")?;
    let (x, weight) = (x.as_standard_layout(), weight.to_vec());
    let mut out = Array2::zeros(x.dim());
    let rows: Vec<_> = x.rows().into_iter().zip(out.rows_mut()).collect();
    par_each(rows, x.len(), |(row, mut to)| {
        let Some(row) = row.to_slice() else { return };
        let scale = (dot(row, row) / F::from_f64(row.len() as f64) + eps).sqrt().recip();
        to.iter_mut().zip(row).zip(&weight).for_each(|((y, &x), &w)| *y = w * (x * scale));
    });
    Ok(out)
}

/// yᵢ = wᵢ · (xᵢ - mean(x)) / √(mean((x - mean(x))²) + eps) + bᵢ, for each row.
///
/// `x` \[T,D\], `weight` \[D\], `bias` \[D\]. Both means are sums in the order of [`sum`], the second of the centred row.
///
/// Source: Ba, Kiros and Hinton, Layer Normalization, 2016; PyTorch, torch.nn.functional.layer_norm.
///
/// # Errors
/// When the widths differ.
pub fn layer_norm<F: Float>(
    x: ArrayView2<'_, F>,
    weight: ArrayView1<'_, F>,
    bias: Option<ArrayView1<'_, F>>,
    eps: F,
) -> Result<Array2<F>, OpError> {
    ensure(x.ncols() == weight.len(), "layer_norm", x.shape(), weight.shape(), "x is [T,D], weight [D]")?;
    if let Some(bias) = &bias {
        ensure(x.ncols() == bias.len(), "layer_norm", x.shape(), bias.shape(), "x is [T,D], bias [D]")?;
    }
    let n = F::from_f64(x.ncols() as f64);
    let mut out = Array2::zeros(x.dim());
    for (row, mut to) in x.rows().into_iter().zip(out.rows_mut()) {
        let row = row.to_vec();
        let mean = sum(&row, |x| x) / n;
        let centred: Array1<F> = row.iter().map(|&x| x - mean).collect();
        let variance = sum(centred.as_slice().unwrap_or_default(), |x| x * x) / n;
        let scale = (variance + eps).sqrt().recip();
        for (i, y) in to.iter_mut().enumerate() {
            let b = bias.as_ref().map_or(F::zero(), |b| b[i]);
            *y = weight[i] * (centred[i] * scale) + b;
        }
    }
    Ok(out)
}

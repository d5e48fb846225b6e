//! Computes layer, RMS, group and batch norms.

use super::call::{Call, Results, ensure};
use super::reduce::total;
use crate::value::dtype::{DType, Kind};
use crate::value::error::KernelError;
use crate::value::tensor::Tensor;

/// Floats; complex numbers are refused.
fn floats<'a>(x: &'a Tensor<'_>) -> Result<std::borrow::Cow<'a, [f64]>, KernelError> {
    match x.kind() {
        Kind::Complex => Err(KernelError::Kind { what: "a norm", kind: Kind::Complex }),
        _ => Ok(x.to_floats()),
    }
}

/// Number of elements in the last axes, which `normalized_shape` lists.
fn width(x: &Tensor<'_>, shape: &[i64]) -> Result<usize, KernelError> {
    let due: Vec<usize> = shape.iter().map(|&n| usize::try_from(n).unwrap_or(usize::MAX)).collect();
    ensure(x.shape.ends_with(&due), "the last axes and normalized_shape", &x.shape, &due)?;
    Ok(due.iter().product())
}

/// A gain or bias of `count` elements.
fn vector<'a>(
    call: &'a Call<'_>,
    position: usize,
    name: &'static str,
    count: usize,
) -> Result<Option<std::borrow::Cow<'a, [f64]>>, KernelError> {
    let Some(tensor) = call.optional(position, name)? else { return Ok(None) };
    ensure(tensor.len() == count, name, &tensor.shape, &[count])?;
    floats(tensor).map(Some)
}

/// (x - mean) / √(mean((x - mean)²) + eps) of a row in place; returns the mean and 1/√.
fn centre(row: &mut [f64], eps: f64) -> (f64, f64) {
    let n = row.len() as f64;
    let mean = total(row) / n;
    let variance = firstdiff_core::sum(row, |x| (x - mean) * (x - mean)) / n;
    let scale = (variance + eps).sqrt().recip();
    row.iter_mut().for_each(|x| *x = (*x - mean) * scale);
    (mean, scale)
}

/// wᵢ · (xᵢ - mean(x)) / √(mean((x - mean(x))²) + eps) + bᵢ over the last axes; then the mean and 1/√ of each row.
pub(super) fn layer_norm(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "input")?;
    let shape = call.ints(1, "normalized_shape")?.ok_or(KernelError::Absent("normalized_shape"))?;
    let width = width(x, &shape)?;
    let (w, b) = (vector(call, 2, "weight", width)?, vector(call, 3, "bias", width)?);
    let eps = call.float(4, "eps")?.unwrap_or(1e-5);
    let mut out = floats(x)?.into_owned();
    let (mut means, mut scales) = (Vec::new(), Vec::new());
    for row in out.chunks_exact_mut(width.max(1)) {
        let (mean, scale) = centre(row, eps);
        means.push(mean);
        scales.push(scale);
        affine(row, w.as_deref(), b.as_deref());
    }
    let mut rows = x.shape[..x.shape.len() - shape.len()].to_vec();
    rows.resize(x.shape.len(), 1);
    let rows = if means.len() == rows.iter().product::<usize>() { rows } else { vec![means.len()] };
    Ok(vec![Tensor::of(x.shape.clone(), out), Tensor::of(rows.clone(), means), Tensor::of(rows, scales)])
}

fn affine(row: &mut [f64], w: Option<&[f64]>, b: Option<&[f64]>) {
    if let Some(w) = w {
        row.iter_mut().zip(w).for_each(|(x, w)| *x *= w);
    }
    if let Some(b) = b {
        row.iter_mut().zip(b).for_each(|(x, b)| *x += b);
    }
}

/// wᵢ · xᵢ / √(mean(x²) + eps) over the last axes; without `eps` the machine epsilon of the input's type. Then 1/√ of each row.
pub(super) fn rms_norm(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "input")?;
    let shape = call.ints(1, "normalized_shape")?.ok_or(KernelError::Absent("normalized_shape"))?;
    let width = width(x, &shape)?;
    let w = vector(call, 2, "weight", width)?;
    let eps = call.float(3, "eps")?.unwrap_or(match x.dtype {
        DType::F64 => f64::EPSILON,
        // PyTorch computes f16 and bf16 in f32.
        _ => f64::from(f32::EPSILON),
    });
    let mut out = floats(x)?.into_owned();
    let mut scales = Vec::new();
    for row in out.chunks_exact_mut(width.max(1)) {
        let scale = (firstdiff_core::sum(row, |x| x * x) / row.len() as f64 + eps).sqrt().recip();
        scales.push(scale);
        row.iter_mut().for_each(|x| *x *= scale);
        affine(row, w.as_deref(), None);
    }
    let mut rows = x.shape[..x.shape.len() - shape.len()].to_vec();
    rows.resize(x.shape.len(), 1);
    let rows = if scales.len() == rows.iter().product::<usize>() { rows } else { vec![scales.len()] };
    Ok(vec![Tensor::of(x.shape.clone(), out), Tensor::of(rows, scales)])
}

/// Batch size, number of channels, and elements of a channel.
fn channels(x: &Tensor<'_>) -> Result<(usize, usize), KernelError> {
    let [_, channels, rest @ ..] = x.shape.as_slice() else {
        return Err(KernelError::Shape { what: "batch and channels", left: x.shape.clone(), right: vec![] });
    };
    Ok((*channels, rest.iter().product()))
}

/// [`layer_norm`]'s formula over each group of channels of `x` \[N,C,..\], with gain and bias for each channel.
pub(super) fn group_norm(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "input")?;
    let (channels, inner) = channels(x)?;
    let groups = call.int(1, "num_groups")?.ok_or(KernelError::Absent("num_groups"))?;
    let groups = usize::try_from(groups).ok().filter(|&n| n > 0 && channels.is_multiple_of(n));
    let groups = groups.ok_or(KernelError::Value { name: "num_groups", value: "no divisor of the channels".into() })?;
    let (w, b) = (vector(call, 2, "weight", channels)?, vector(call, 3, "bias", channels)?);
    let eps = call.float(4, "eps")?.unwrap_or(1e-5);
    let mut out = floats(x)?.into_owned();
    for row in out.chunks_exact_mut((channels / groups * inner).max(1)) {
        centre(row, eps);
    }
    for (i, row) in out.chunks_exact_mut(inner.max(1)).enumerate() {
        let (w, b) = (w.as_ref().map_or(1.0, |w| w[i % channels]), b.as_ref().map_or(0.0, |b| b[i % channels]));
        row.iter_mut().for_each(|x| *x = *x * w + b);
    }
    Ok(vec![Tensor::of(x.shape.clone(), out)])
}

/// (x - meanᶜ) / √(varᶜ + eps) · wᶜ + bᶜ for each channel of `x` \[N,C,..\]; mean and variance are operands.
fn batch(call: &Call<'_>, eps: usize) -> Results {
    let x = call.tensor(0, "input")?;
    let (channels, inner) = channels(x)?;
    let (w, b) = (vector(call, 1, "weight", channels)?, vector(call, 2, "bias", channels)?);
    let mean = vector(call, 3, "running_mean", channels)?.ok_or(KernelError::Absent("running_mean"))?;
    let variance = vector(call, 4, "running_var", channels)?.ok_or(KernelError::Absent("running_var"))?;
    let eps = call.float(eps, "eps")?.unwrap_or(1e-5);
    let mut out = floats(x)?.into_owned();
    for (i, row) in out.chunks_exact_mut(inner.max(1)).enumerate() {
        let c = i % channels;
        let scale = (variance[c] + eps).sqrt().recip();
        let (w, b) = (w.as_ref().map_or(1.0, |w| w[c]), b.as_ref().map_or(0.0, |b| b[c]));
        row.iter_mut().for_each(|x| *x = (*x - mean[c]) * scale * w + b);
    }
    Ok(vec![Tensor::of(x.shape.clone(), out)])
}

/// Batch norm in evaluation mode; training mode is refused.
pub(super) fn batch_norm(call: &Call<'_>) -> Results {
    match call.flag(5, "training", false)? {
        true => Err(KernelError::Value { name: "training", value: "true".into() }),
        false => batch(call, 7),
    }
}

/// The same with mean and 1/√ of training, which are empty.
pub(super) fn native_batch_norm(call: &Call<'_>) -> Results {
    let mut out = batch_norm(call)?;
    out.extend([Tensor::of(vec![0], Vec::<f64>::new()), Tensor::of(vec![0], Vec::<f64>::new())]);
    Ok(out)
}

/// The same without the operand `training`.
pub(super) fn batch_norm_no_training(call: &Call<'_>) -> Results {
    let mut out = batch(call, 6)?;
    out.extend([Tensor::of(vec![0], Vec::<f64>::new()), Tensor::of(vec![0], Vec::<f64>::new())]);
    Ok(out)
}

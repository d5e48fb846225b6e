//! Computes Fourier transforms by direct summation, because the axes are short in models.

use std::f64::consts::TAU;

use super::call::{Call, Results, axis, ensure, size};
use super::rows::{AxisRows, one_axis, restore_axis};
use crate::value::error::KernelError;
use crate::value::tensor::{Tensor, Values};

/// The sign of the exponent, and the factor on the sum.
#[derive(Clone, Copy, Debug)]
struct Transform {
    sign: f64,
    factor: f64,
}

/// By default forward sums are not scaled and backward ones are divided by n; `norm` changes this.
fn transform(call: &Call<'_>, at: usize, forward: bool, n: usize) -> Result<Transform, KernelError> {
    let count = n.max(1) as f64;
    let factor = match (call.text(at, "norm"), forward) {
        (None | Some("backward"), true) | (Some("forward"), false) => 1.0,
        (None | Some("backward"), false) | (Some("forward"), true) => count.recip(),
        (Some("ortho"), _) => count.sqrt().recip(),
        (Some(other), _) => return Err(KernelError::Value { name: "norm", value: other.into() }),
    };
    Ok(Transform { sign: if forward { -1.0 } else { 1.0 }, factor })
}

/// y\[k\] = factor · Σⱼ x\[j\] · e^(± 2πi jk / n) for the first `kept` k.
fn transform_row(x: &[[f64; 2]], n: usize, kept: usize, how: Transform) -> Vec<[f64; 2]> {
    let term = |k: usize| {
        let angles = (0..n).map(move |j| TAU * ((j * k) % n) as f64 / n as f64);
        let sum = x.iter().zip(angles).fold([0.0, 0.0], |sum, (x, angle)| {
            let (sin, cos) = (how.sign * angle.sin(), angle.cos());
            [sum[0] + x[0] * cos - x[1] * sin, sum[1] + x[0] * sin + x[1] * cos]
        });
        [sum[0] * how.factor, sum[1] * how.factor]
    };
    (0..kept).map(term).collect()
}

/// The number of points: the operand, else the extent. Rows are padded with zeros or cut to it.
fn points(call: &Call<'_>, extent: usize) -> Result<usize, KernelError> {
    let n = call.int(1, "n")?.map(|n| size("n", n)).transpose()?.unwrap_or(extent);
    call.room("a Fourier transform", &[n, n])?;
    ensure(n > 0, "a Fourier transform", &[n], &[])?;
    Ok(n)
}

/// Applies f to each row along the axis at position 2.
fn along(
    call: &Call<'_>,
    kept: usize,
    f: impl Fn(&[[f64; 2]]) -> Vec<[f64; 2]>,
) -> Result<(Vec<usize>, Vec<[f64; 2]>), KernelError> {
    let x = call.tensor(0, "self")?;
    let (mut extents, at) = one_axis(call, x, 2, -1)?;
    let values = x.to_complex();
    let rows: Vec<[f64; 2]> = AxisRows::new(&values, &extents, &[at]).iter().flat_map(f).collect();
    extents[at] = kept;
    let values = restore_axis(rows, &extents, at);
    Ok((call.claim("a Fourier transform and its output", extents)?, values))
}

fn extent(call: &Call<'_>) -> Result<usize, KernelError> {
    let (extents, at) = one_axis(call, call.tensor(0, "self")?, 2, -1)?;
    Ok(extents[at])
}

/// The forward transform along one axis.
pub(super) fn fft(call: &Call<'_>) -> Results {
    one_way(call, true)
}

/// The inverse transform along one axis.
pub(super) fn ifft(call: &Call<'_>) -> Results {
    one_way(call, false)
}

fn one_way(call: &Call<'_>, forward: bool) -> Results {
    let n = points(call, extent(call)?)?;
    let how = transform(call, 3, forward, n)?;
    let (shape, values) = along(call, n, |row| transform_row(row, n, n, how))?;
    Ok(vec![Tensor::of(shape, Values::from(values))])
}

/// The transform of real numbers: only the first half, because the rest is its mirror image.
pub(super) fn rfft(call: &Call<'_>) -> Results {
    let n = points(call, extent(call)?)?;
    let how = transform(call, 3, true, n)?;
    let (shape, values) = along(call, n / 2 + 1, |row| transform_row(row, n, n / 2 + 1, how))?;
    Ok(vec![Tensor::of(shape, Values::from(values))])
}

/// The inverse transform from the first half to real numbers.
pub(super) fn irfft(call: &Call<'_>) -> Results {
    let n = points(call, extent(call)?.saturating_sub(1).saturating_mul(2))?;
    let how = transform(call, 3, false, n)?;
    let (shape, values) = along(call, n, |row| {
        // Reconstructs the mirrored half: of the first and the middle number only the real part counts.
        let whole: Vec<[f64; 2]> = (0..n)
            .map(|k| {
                let near = row.get(k.min(n - k)).copied().unwrap_or_default();
                let imaginary = if k == 0 || 2 * k == n {
                    0.0
                } else if 2 * k < n {
                    near[1]
                } else {
                    -near[1]
                };
                [near[0], imaginary]
            })
            .collect();
        transform_row(&whole, n, n, how)
    })?;
    Ok(vec![Tensor::of(shape, values.iter().map(|x| x[0]).collect::<Vec<_>>())])
}

/// The transform along several axes, one after the other.
pub(super) fn fftn(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    if call.get(1, "s").is_some() {
        return Err(KernelError::Value { name: "s", value: "a list".into() });
    }
    let shape = call.claim("a Fourier transform and its output", x.shape.clone())?;
    let axes: Vec<usize> = match call.ints(2, "dim")? {
        Some(list) => list.iter().map(|&at| axis(at, shape.len())).collect::<Result<_, _>>()?,
        None => (0..shape.len()).collect(),
    };
    let mut values = x.to_complex().into_owned();
    for at in axes.into_iter().filter(|&at| at < shape.len()) {
        let n = shape[at];
        call.room("a Fourier transform", &[n, n])?;
        let how = transform(call, 3, true, n)?;
        let rows: Vec<[f64; 2]> =
            AxisRows::new(&values, &shape, &[at]).iter().flat_map(|row| transform_row(row, n, n, how)).collect();
        values = restore_axis(rows, &shape, at);
    }
    Ok(vec![Tensor::of(shape, Values::from(values))])
}

//! Computes operations on rows of the last axis: norms, softmax, sums.

use super::super::call::{Call, Results};
use super::{ensure, float, four, int, is_given, result_like};
use crate::value::error::KernelError;
use crate::value::tensor::Tensor;

/// Applies f to each row in place.
fn each(call: &Call<'_>, width: usize, f: impl Fn(&mut [f64])) -> Results {
    let x = call.tensor(0, "src0")?;
    let mut out = x.to_floats().into_owned();
    out.chunks_exact_mut(width.max(1)).for_each(f);
    Ok(result_like(x, out))
}

fn width(call: &Call<'_>) -> Result<usize, KernelError> {
    Ok(four(&call.tensor(0, "src0")?.shape)?[3])
}

fn mean_of(row: &[f64]) -> f64 {
    firstdiff_core::sum(row, |x| x) / row.len() as f64
}

/// (x - mean) / √(mean((x - mean)²) + eps) in place.
fn centre(row: &mut [f64], eps: f64) {
    let mean = mean_of(row);
    row.iter_mut().for_each(|x| *x -= mean);
    scale(row, |row| (firstdiff_core::sum(row, |x| x * x) / row.len() as f64 + eps).sqrt());
}

/// Divides a row by f of it.
fn scale(row: &mut [f64], f: impl Fn(&[f64]) -> f64) {
    let by = f(row);
    row.iter_mut().for_each(|x| *x /= by);
}

/// x / max(√Σx², eps).
pub(super) fn l2_norm(call: &Call<'_>) -> Results {
    let eps = float(call, "eps")?;
    each(call, width(call)?, |row| scale(row, |row| firstdiff_core::sum(row, |x| x * x).sqrt().max(eps)))
}

/// [`norm`] over each group of channels, the second axis; if they do not divide evenly, the last group is smaller.
pub(super) fn group_norm(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "src0")?;
    let [_, channels, rows, columns] = four(&x.shape)?;
    let (groups, eps) = (int(call, "n_groups")?, float(call, "eps")?);
    let groups = usize::try_from(groups).ok().filter(|&n| n > 0);
    let groups = groups.ok_or(KernelError::Value { name: "n_groups", value: "not positive".into() })?;
    let (inner, together) = (rows * columns, channels.div_ceil(groups));
    let mut out = x.to_floats().into_owned();
    for batch in out.chunks_exact_mut((channels * inner).max(1)) {
        batch.chunks_mut((together * inner).max(1)).for_each(|group| centre(group, eps));
    }
    Ok(result_like(x, out))
}

/// e^(zᵢ - m) / Σⱼ e^(zⱼ - m), z = scale · x + slope · mask, m the largest. With sinks the sum also contains e^(sink - m) of the head. The slope is 1, or
/// with `max_bias` ALiBi's: 2^(-max_bias (h+1) / n) for head h < n, where n is the largest power of two up to the number of heads, and 2^(-max_bias
/// (2(h-n)+1) / 2n) for the others.
pub(super) fn soft_max(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "src0")?;
    let shape = four(&x.shape)?;
    let (scale, max_bias) = (float(call, "scale")?, float(call, "max_bias")?);
    let mask = if is_given(call, 1) { Some(call.tensor(1, "src1")?) } else { None };
    let sinks = if is_given(call, 2) { Some(call.tensor(2, "src2")?.to_floats()) } else { None };
    let [_, heads, rows, width] = shape;
    let masks = mask.map(|mask| four(&mask.shape)).transpose()?.unwrap_or([1, 1, rows, width]);
    let fits = masks[0] > 0 && masks[1] > 0 && masks[2] >= rows && masks[3] == width;
    ensure(fits, "values and their mask", &shape, &masks)?;
    if let Some(sinks) = &sinks {
        ensure(sinks.len() == heads, "heads and sinks", &[heads], &[sinks.len()])?;
    }
    let mask = mask.map(|mask| mask.to_floats());
    let mut out = x.to_floats().into_owned();
    for (number, row) in out.chunks_exact_mut(width.max(1)).enumerate() {
        let (i, head, batch) = (number % rows, number / rows % heads, number / rows / heads);
        let slope = if max_bias > 0.0 { alibi(head, heads, max_bias) } else { 1.0 };
        let start = ((batch % masks[0] * masks[1] + head % masks[1]) * masks[2] + i) * width;
        for (j, x) in row.iter_mut().enumerate() {
            *x = scale * *x + mask.as_ref().map_or(0.0, |mask| slope * mask[start + j]);
        }
        let sink = sinks.as_ref().map_or(f64::NEG_INFINITY, |sinks| sinks[head]);
        let most = row.iter().copied().fold(sink, f64::max);
        row.iter_mut().for_each(|x| *x = (*x - most).exp());
        let sum = firstdiff_core::sum(row, |x| x) + if sinks.is_some() { (sink - most).exp() } else { 0.0 };
        row.iter_mut().for_each(|x| *x /= sum);
    }
    Ok(result_like(x, out))
}

/// ALiBi's slope of a head.
fn alibi(head: usize, heads: usize, max_bias: f64) -> f64 {
    let base = 1usize << heads.max(1).ilog2();
    let power = if head < base { (head + 1) as f64 } else { (2 * (head - base) + 1) as f64 / 2.0 };
    (-max_bias * power / base as f64).exp2()
}

/// Σ x of all.
pub(super) fn sum(call: &Call<'_>) -> Results {
    Ok(vec![Tensor::of(vec![1], vec![firstdiff_core::sum(&call.tensor(0, "src0")?.to_floats(), |x| x)])])
}

/// yᵢ = Σ x up to i of each row.
pub(super) fn cumsum(call: &Call<'_>) -> Results {
    each(call, width(call)?, |row| (1..row.len()).for_each(|i| row[i] += row[i - 1]))
}

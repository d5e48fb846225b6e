//! Reduces axes to one value for each row: sums, means, variances, extremes. Sums of floats are in f64, in the order of [`firstdiff_core::sum`].

use super::call::{Arg, Call, Results};
use super::rows::{AxisRows, axes, reduced};
use super::{binary, rows};
use crate::value::dtype::Kind;
use crate::value::error::KernelError;
use crate::value::scalar::Scalar;
use crate::value::tensor::{Tensor, Values};

/// The axes to reduce, and whether they stay with extent 1.
struct ReducedAxes {
    axes: Vec<usize>,
    shape: Vec<usize>,
}

/// Reads the axes from position 1 and `keepdim` from position `keep`.
fn reduced_axes(call: &Call<'_>, x: &Tensor<'_>, keep: usize) -> Result<ReducedAxes, KernelError> {
    let axes = axes(call.ints(1, "dim")?, x.shape.len())?;
    let shape = reduced(&x.shape, &axes, call.flag(keep, "keepdim", false)?);
    Ok(ReducedAxes { axes, shape })
}

/// f of every row, as floats.
fn floats(x: &Tensor<'_>, over: ReducedAxes, f: impl Fn(&[f64]) -> f64) -> Results {
    if x.kind() == Kind::Complex {
        return Err(KernelError::Kind { what: "this reduction", kind: Kind::Complex });
    }
    let values = x.to_floats();
    let rows = AxisRows::new(&values, &x.shape, &over.axes);
    Ok(vec![Tensor::of(over.shape, rows.iter().map(f).collect::<Vec<_>>())])
}

fn ints(x: &Tensor<'_>, over: ReducedAxes, f: impl Fn(&[i64]) -> i64) -> Results {
    let values = x.to_ints();
    let rows = AxisRows::new(&values, &x.shape, &over.axes);
    Ok(vec![Tensor::of(over.shape, rows.iter().map(f).collect::<Vec<_>>())])
}

/// Σ x in f64.
pub(super) fn total(row: &[f64]) -> f64 {
    firstdiff_core::sum(row, |x| x)
}

/// Σ x. Integers are summed exactly.
pub(super) fn sum(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let over = reduced_axes(call, x, 2)?;
    match &x.values {
        Values::Int(_) => ints(x, over, |row| row.iter().fold(0, |sum, &x| sum.wrapping_add(x))),
        Values::Float(_) => floats(x, over, total),
        Values::Complex(values) => {
            let rows = AxisRows::new(values, &x.shape, &over.axes);
            let add = |sum: [f64; 2], x: &[f64; 2]| [sum[0] + x[0], sum[1] + x[1]];
            Ok(vec![Tensor::of(over.shape, rows.iter().map(|row| row.iter().fold([0.0; 2], add)).collect::<Vec<_>>())])
        }
    }
}

/// Σ x / n.
pub(super) fn mean(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    floats(x, reduced_axes(call, x, 2)?, |row| total(row) / row.len() as f64)
}

/// Π x.
pub(super) fn prod(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let over = reduced_axes(call, x, 2)?;
    match x.kind() {
        Kind::Int => ints(x, over, |row| row.iter().fold(1, |product, &x| product.wrapping_mul(x))),
        _ => floats(x, over, |row| row.iter().product()),
    }
}

/// Reads what is subtracted from n in the denominator of a variance (`unbiased` or `correction`), and the axes.
fn variance_args(call: &Call<'_>, x: &Tensor<'_>) -> Result<(f64, ReducedAxes), KernelError> {
    // Without axes: var(self, unbiased).
    let whole = matches!(call.args.get(1), Some(Arg::Scalar(Scalar::Bool(_))));
    if call.overload == "correction" {
        return Ok((call.float(usize::MAX, "correction")?.unwrap_or(1.0), reduced_axes(call, x, usize::MAX)?));
    }
    if whole || call.overload.is_empty() {
        let unbiased = call.flag(1, "unbiased", true)?;
        let axes = axes(None, x.shape.len())?;
        return Ok((f64::from(u8::from(unbiased)), ReducedAxes { axes, shape: Vec::new() }));
    }
    let unbiased = call.flag(2, "unbiased", true)?;
    Ok((f64::from(u8::from(unbiased)), reduced_axes(call, x, 3)?))
}

/// Σ (x - mean)² / max(n - correction, 0).
fn variance(row: &[f64], correction: f64) -> f64 {
    let mean = total(row) / row.len() as f64;
    firstdiff_core::sum(row, |x| (x - mean) * (x - mean)) / (row.len() as f64 - correction).max(0.0)
}

/// The variance; see [`variance`].
pub(super) fn var(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let (correction, over) = variance_args(call, x)?;
    floats(x, over, |row| variance(row, correction))
}

/// The standard deviation.
pub(super) fn std(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let (correction, over) = variance_args(call, x)?;
    floats(x, over, |row| variance(row, correction).sqrt())
}

/// The variance, and the mean.
pub(super) fn var_mean(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    append_mean(call, x, var(call)?)
}

/// The standard deviation, and the mean.
pub(super) fn std_mean(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    append_mean(call, x, std(call)?)
}

/// Adds the mean over the same axes to the results.
fn append_mean(call: &Call<'_>, x: &Tensor<'_>, mut found: Vec<Tensor<'static>>) -> Results {
    found.extend(floats(x, variance_args(call, x)?.1, |row| total(row) / row.len() as f64)?);
    Ok(found)
}

/// The index of the first extreme of a row; of the first NaN if there is one.
fn extreme<T: Copy + PartialOrd>(row: &[T], is_max: bool) -> usize {
    let is_nan = |x: T| x.partial_cmp(&x).is_none();
    (1..row.len()).fold(0, |best, at| {
        let (x, y) = (row[at], row[best]);
        let beats = if is_max { x > y } else { x < y };
        if !is_nan(y) && (is_nan(x) || beats) { at } else { best }
    })
}

/// The extreme of each row, and its index.
fn extremes(x: &Tensor<'_>, over: ReducedAxes, is_max: bool) -> Results {
    let (values, places): (Values<'static>, Vec<i64>) = match &x.values {
        Values::Complex(_) => return Err(KernelError::Kind { what: "an order", kind: Kind::Complex }),
        Values::Int(values) => {
            let (values, places) = row_extremes(&AxisRows::new(values, &x.shape, &over.axes), is_max)?;
            (values.into(), places)
        }
        Values::Float(values) => {
            let (values, places) = row_extremes(&AxisRows::new(values, &x.shape, &over.axes), is_max)?;
            (values.into(), places)
        }
    };
    Ok(vec![Tensor::of(over.shape.clone(), values), Tensor::of(over.shape, places)])
}

fn row_extremes<T: Copy + PartialOrd>(rows: &AxisRows<'_, T>, is_max: bool) -> Result<(Vec<T>, Vec<i64>), KernelError> {
    nonempty(rows.count, rows.width)?;
    let places: Vec<usize> = rows.iter().map(|row| extreme(row, is_max)).collect();
    let values = rows.iter().zip(&places).map(|(row, &at)| row[at]).collect();
    Ok((values, places.into_iter().map(|at| at as i64).collect()))
}

fn nonempty(count: usize, width: usize) -> Result<(), KernelError> {
    match count > 0 && width == 0 {
        true => Err(KernelError::Value { name: "dim", value: "an axis of extent 0".into() }),
        false => Ok(()),
    }
}

/// The largest of each row.
pub(super) fn amax(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    extremes(x, reduced_axes(call, x, 2)?, true)
}

/// The smallest of each row.
pub(super) fn amin(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    extremes(x, reduced_axes(call, x, 2)?, false)
}

/// The larger of two tensors, or the largest of each row with its index, or of all.
pub(super) fn max(call: &Call<'_>) -> Results {
    if call.overload == "other" { binary::maximum(call) } else { amax(call) }
}

/// The smaller of two tensors, or the smallest of each row with its index, or of all.
pub(super) fn min(call: &Call<'_>) -> Results {
    if call.overload == "other" { binary::minimum(call) } else { amin(call) }
}

/// The index of the first largest value in each row, or in the flattened tensor.
pub(super) fn argmax(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    Ok(extremes(x, reduced_axes(call, x, 2)?, true)?.split_off(1))
}

/// The index of the first smallest value in each row, or in the flattened tensor.
pub(super) fn argmin(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    Ok(extremes(x, reduced_axes(call, x, 2)?, false)?.split_off(1))
}

fn truths(call: &Call<'_>, f: impl Fn(&[bool]) -> bool) -> Results {
    let x = call.tensor(0, "self")?;
    let (over, values) = (reduced_axes(call, x, 2)?, x.to_bools());
    let rows = AxisRows::new(&values, &x.shape, &over.axes);
    Ok(vec![Tensor::of(over.shape, rows.iter().map(|row| i64::from(f(row))).collect::<Vec<_>>())])
}

/// Whether any value of a row is non-zero.
pub(super) fn any(call: &Call<'_>) -> Results {
    truths(call, |row| row.contains(&true))
}

/// Whether all values of a row are non-zero.
pub(super) fn all(call: &Call<'_>) -> Results {
    truths(call, |row| !row.contains(&false))
}

/// m + ln Σ e^(x - m), where m is the largest, or 0 if that is infinite.
pub(super) fn logsumexp(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    floats(x, reduced_axes(call, x, 2)?, log_sum_exp)
}

/// See [`logsumexp`].
pub(super) fn log_sum_exp(row: &[f64]) -> f64 {
    let most = row.iter().copied().fold(f64::NEG_INFINITY, binary::larger);
    let most = if most.is_infinite() { 0.0 } else { most };
    most + firstdiff_core::sum(row, |x| (x - most).exp()).ln()
}

/// (Σ |x|^p)^(1/p); the largest |x| for p = ∞, the smallest for -∞, the number of non-zero values for p = 0.
pub(super) fn vector_norm(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let p = call.float(1, if call.name == "norm" { "p" } else { "ord" })?.unwrap_or(2.0);
    let axes = rows::axes(call.ints(2, "dim")?, x.shape.len())?;
    let shape = reduced(&x.shape, &axes, call.flag(3, "keepdim", false)?);
    let over = ReducedAxes { axes, shape };
    floats(x, over, |row| match p {
        2.0 => firstdiff_core::sum(row, |x| x * x).sqrt(),
        1.0 => firstdiff_core::sum(row, f64::abs),
        0.0 => row.iter().filter(|x| **x != 0.0).count() as f64,
        f64::INFINITY => row.iter().map(|x| x.abs()).fold(0.0, binary::larger),
        f64::NEG_INFINITY => row.iter().map(|x| x.abs()).fold(f64::INFINITY, binary::smaller),
        _ => firstdiff_core::sum(row, |x| x.abs().powf(p)).powf(p.recip()),
    })
}

//! Computes operations along an axis that keep it, or nearly: softmax, cumulative sums, differences.

use super::call::{Call, Results, axis};
use super::reduce::log_sum_exp;
use super::rows::{AxisRows, one_axis, restore_axis};
use super::{binary, shape, special};
use crate::memory::{round, wrap};
use crate::value::dtype::Kind;
use crate::value::error::KernelError;
use crate::value::tensor::{Tensor, Values};

/// Applies f to every row along `dim`, in place.
fn each_row(call: &Call<'_>, x: &Tensor<'_>, f: impl Fn(&mut [f64])) -> Results {
    if x.kind() == Kind::Complex {
        return Err(KernelError::Kind { what: "this operation", kind: Kind::Complex });
    }
    let (extents, at) = one_axis(call, x, 1, -1)?;
    let values = x.to_floats();
    let rows = AxisRows::new(&values, &extents, &[at]);
    let width = rows.width;
    let mut out = rows.values.into_owned();
    if width > 0 {
        out.chunks_exact_mut(width).for_each(f);
    }
    Ok(vec![Tensor::of(x.shape.clone(), restore_axis(out, &extents, at))])
}

/// The input in the type that `dtype` asks for.
fn cast(call: &Call<'_>, x: &Tensor<'_>, position: usize) -> Tensor<'static> {
    let mut x = x.clone().into_owned();
    if let Some(dtype) = call.dtype(position, "dtype") {
        match &mut x.values {
            Values::Float(values) => round(values.to_mut(), dtype, crate::value::arithmetic::Arithmetic::F64),
            Values::Int(values) => wrap(values.to_mut(), dtype),
            Values::Complex(_) => {}
        }
    }
    x
}

/// e^(xᵢ - m) / Σⱼ e^(xⱼ - m), where m is the largest of the row. A row of only -∞ gives NaN.
pub(super) fn softmax(call: &Call<'_>) -> Results {
    each_row(call, &cast(call, call.tensor(0, "self")?, 2), soft)
}

/// [`softmax`] of a row.
pub(super) fn soft(row: &mut [f64]) {
    let most = row.iter().copied().fold(f64::NEG_INFINITY, binary::larger);
    row.iter_mut().for_each(|x| *x = (*x - most).exp());
    let sum = firstdiff_core::sum(row, |x| x);
    row.iter_mut().for_each(|x| *x /= sum);
}

/// xᵢ - ln Σⱼ e^xⱼ. A row of only -∞ gives NaN.
pub(super) fn log_softmax(call: &Call<'_>) -> Results {
    each_row(call, &cast(call, call.tensor(0, "self")?, 2), |row| {
        let most = row.iter().copied().fold(f64::NEG_INFINITY, binary::larger);
        row.iter_mut().for_each(|x| *x -= most);
        let sum = log_sum_exp(row);
        row.iter_mut().for_each(|x| *x -= sum);
    })
}

/// Accumulates with f, or exactly with g for integers.
fn running(call: &Call<'_>, f: impl Fn(f64, f64) -> f64, g: impl Fn(i64, i64) -> i64) -> Results {
    let x = call.tensor(0, "self")?;
    let (Values::Int(values), true) = (&x.values, call.output_kind() == Kind::Int) else {
        return each_row(call, &cast(call, x, 2), |row| {
            (1..row.len()).for_each(|i| row[i] = f(row[i - 1], row[i]));
        });
    };
    let (extents, at) = one_axis(call, x, 1, -1)?;
    let rows = AxisRows::new(values, &extents, &[at]);
    let width = rows.width.max(1);
    let mut out = rows.values.into_owned();
    for row in out.chunks_exact_mut(width) {
        (1..row.len()).for_each(|i| row[i] = g(row[i - 1], row[i]));
    }
    Ok(vec![Tensor::of(x.shape.clone(), restore_axis(out, &extents, at))])
}

/// yᵢ = Σ x up to i, in order.
pub(super) fn cumsum(call: &Call<'_>) -> Results {
    running(call, |sum, x| sum + x, i64::wrapping_add)
}

/// yᵢ = Π x up to i, in order.
pub(super) fn cumprod(call: &Call<'_>) -> Results {
    running(call, |product, x| product * x, i64::wrapping_mul)
}

/// yᵢ = xᵢ₊₁ - xᵢ along an axis, n times, after `prepend` and `append` are joined. For booleans: whether they differ.
pub(super) fn diff(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let at = axis(call.int(2, "dim")?.unwrap_or(-1), x.shape.len())?;
    let parts = [call.optional(3, "prepend")?, Some(x), call.optional(4, "append")?];
    let parts: Vec<Tensor<'_>> = parts.into_iter().flatten().map(Tensor::view).collect();
    let mut joined = shape::join(&parts, at)?;
    let times = call.int(1, "n")?.unwrap_or(1);
    for _ in 0..times.max(0) {
        let extent = joined.shape.get(at).copied().unwrap_or(0);
        if extent == 0 {
            break;
        }
        let before: Vec<usize> = (0..extent - 1).collect();
        let after: Vec<usize> = (1..extent).collect();
        let (before, after) = (shape::pick_axis(&joined, at, &before), shape::pick_axis(&joined, at, &after));
        let values: Values<'static> = match joined.kind() {
            Kind::Int => after
                .to_ints()
                .iter()
                .zip(before.to_ints().iter())
                .map(|(x, y)| x.wrapping_sub(*y))
                .collect::<Vec<_>>()
                .into(),
            Kind::Float => {
                after.to_floats().iter().zip(before.to_floats().iter()).map(|(x, y)| x - y).collect::<Vec<_>>().into()
            }
            kind => return Err(KernelError::Kind { what: "diff", kind }),
        };
        joined = Tensor::of(after.shape, values);
    }
    Ok(vec![joined])
}

/// a · sigmoid(b), where a and b are the halves of an axis.
pub(super) fn glu(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let at = axis(call.int(1, "dim")?.unwrap_or(-1), x.shape.len())?;
    let extent = x.shape.get(at).copied().unwrap_or(1);
    if !extent.is_multiple_of(2) || x.shape.is_empty() {
        return Err(KernelError::Shape { what: "halves of an axis", left: x.shape.clone(), right: vec![at] });
    }
    let half = extent / 2;
    let a = shape::pick_axis(x, at, &(0..half).collect::<Vec<_>>());
    let b = shape::pick_axis(x, at, &(half..extent).collect::<Vec<_>>());
    let values: Vec<f64> =
        a.to_floats().iter().zip(b.to_floats().iter()).map(|(a, b)| a * special::sigmoid(*b)).collect();
    Ok(vec![Tensor::of(a.shape, values)])
}

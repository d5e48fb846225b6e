//! Sorts values. NaN counts as the largest; equal values keep their order.

use std::cmp::Ordering;

use super::call::{Call, Results, size};
use super::rows::{AxisRows, one_axis, restore_axis};
use super::select::top_indices;
use crate::value::dtype::Kind;
use crate::value::error::KernelError;
use crate::value::tensor::{Tensor, Values};

/// Sorts each row along `dim`; returns values and their indices.
fn sort_rows(call: &Call<'_>, x: &Tensor<'_>, position: usize, descending: bool) -> Results {
    let (extents, at) = one_axis(call, x, position, -1)?;
    fn places<T: Copy>(rows: &AxisRows<'_, T>, compare: impl Fn(T, T) -> Ordering) -> (Vec<T>, Vec<i64>) {
        let (mut values, mut places) = (Vec::new(), Vec::new());
        for row in rows.iter() {
            let mut order: Vec<usize> = (0..row.len()).collect();
            order.sort_by(|&a, &b| compare(row[a], row[b]));
            values.extend(order.iter().map(|&i| row[i]));
            places.extend(order.iter().map(|&i| i as i64));
        }
        (values, places)
    }
    let turn = |order: Ordering| if descending { order.reverse() } else { order };
    let (values, places): (Values<'static>, _) = match &x.values {
        Values::Int(values) => {
            let (values, places) = places(&AxisRows::new(values, &extents, &[at]), |a, b| turn(a.cmp(&b)));
            (restore_axis(values, &extents, at).into(), places)
        }
        Values::Float(values) => {
            let rows = AxisRows::new(values, &extents, &[at]);
            let (values, places) =
                places(&rows, |a: f64, b: f64| turn(a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))));
            (restore_axis(values, &extents, at).into(), places)
        }
        Values::Complex(_) => return Err(KernelError::Kind { what: "an order", kind: Kind::Complex }),
    };
    let places = restore_axis(places, &extents, at);
    let shape = if x.shape.is_empty() { Vec::new() } else { extents };
    Ok(vec![Tensor::of(shape.clone(), values), Tensor::of(shape, places)])
}

/// The k largest (or smallest) of each row and their indices, in PyTorch's order: see [`top_indices`].
pub(super) fn topk(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let k = size("k", call.int(1, "k")?.ok_or(KernelError::Absent("k"))?)?;
    let (largest, is_sorted) = (call.flag(3, "largest", true)?, call.flag(4, "sorted", true)?);
    let (mut extents, at) = one_axis(call, x, 2, -1)?;
    if k > extents[at] {
        return Err(KernelError::Value { name: "k", value: k.to_string() });
    }
    fn rows<T: Copy>(
        rows: &AxisRows<'_, T>,
        k: usize,
        is_sorted: bool,
        before: impl Fn(T, T) -> bool,
    ) -> (Vec<T>, Vec<i64>) {
        let (mut values, mut places) = (Vec::new(), Vec::new());
        for row in rows.iter() {
            let found = top_indices(row, k, is_sorted, &before);
            values.extend(found.iter().map(|&i| row[i]));
            places.extend(found.iter().map(|&i| i as i64));
        }
        (values, places)
    }
    let whole = extents.clone();
    extents[at] = k;
    let (values, places): (Values<'static>, _) = match &x.values {
        Values::Int(values) => {
            let before = |a: i64, b: i64| if largest { a > b } else { a < b };
            let (values, places) = rows(&AxisRows::new(values, &whole, &[at]), k, is_sorted, before);
            (restore_axis(values, &extents, at).into(), places)
        }
        Values::Float(values) => {
            let before = |a: f64, b: f64| match largest {
                true => a.is_nan() && !b.is_nan() || a > b,
                false => !a.is_nan() && b.is_nan() || a < b,
            };
            let (values, places) = rows(&AxisRows::new(values, &whole, &[at]), k, is_sorted, before);
            (restore_axis(values, &extents, at).into(), places)
        }
        Values::Complex(_) => return Err(KernelError::Kind { what: "an order", kind: Kind::Complex }),
    };
    let places = restore_axis(places, &extents, at);
    // A tensor without axes has one element, and the result has no axes either.
    let shape = if x.shape.is_empty() { Vec::new() } else { extents };
    if shape.iter().product::<usize>() != places.len() {
        return Err(KernelError::Value { name: "k", value: k.to_string() });
    }
    Ok(vec![Tensor::of(shape.clone(), values), Tensor::of(shape, places)])
}

/// Sorts each row; returns values and their indices.
pub(super) fn sort(call: &Call<'_>) -> Results {
    let (dim, descending) = if call.overload == "stable" { (usize::MAX, usize::MAX) } else { (1, 2) };
    // `stable` may be positional; then the other operands follow it.
    let shift = usize::from(call.overload == "stable" && call.args.len() > 1);
    let (dim, descending) = if shift == 1 { (2, 3) } else { (dim, descending) };
    sort_rows(call, call.tensor(0, "self")?, dim, call.flag(descending, "descending", false)?)
}

/// The indices that sort each row.
pub(super) fn argsort(call: &Call<'_>) -> Results {
    Ok(sort(call)?.split_off(1))
}

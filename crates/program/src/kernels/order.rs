//! Values by their order. NaN counts as the largest; equal values keep theirs.

use std::cmp::Ordering;

use super::call::{Call, Results, size};
use super::rows::{Rows, back, one_axis};
use crate::dtype::Kind;
use crate::error::KernelError;
use crate::tensor::{Tensor, Values};

/// The indices that sort each row along `dim`, and the first `take` of them with their values.
fn sorted(call: &Call<'_>, x: &Tensor<'_>, position: usize, descending: bool, take: Option<usize>) -> Results {
    let (mut extents, at) = one_axis(call, x, position, -1)?;
    let width = extents[at];
    let take = take.unwrap_or(width);
    if take > width {
        return Err(KernelError::Value { name: "k", value: take.to_string() });
    }
    fn places<T: Copy>(rows: &Rows<'_, T>, take: usize, compare: impl Fn(T, T) -> Ordering) -> (Vec<T>, Vec<i64>) {
        let (mut values, mut places) = (Vec::new(), Vec::new());
        for row in rows.iter() {
            let mut order: Vec<usize> = (0..row.len()).collect();
            order.sort_by(|&a, &b| compare(row[a], row[b]));
            values.extend(order[..take].iter().map(|&i| row[i]));
            places.extend(order[..take].iter().map(|&i| i as i64));
        }
        (values, places)
    }
    let turn = |order: Ordering| if descending { order.reverse() } else { order };
    let (values, places): (Values<'static>, _) = match &x.values {
        Values::Int(values) => {
            let (values, places) = places(&Rows::new(values, &extents, &[at]), take, |a, b| turn(a.cmp(&b)));
            extents[at] = take;
            (back(values, &extents, at).into(), places)
        }
        Values::Float(values) => {
            let rows = Rows::new(values, &extents, &[at]);
            let (values, places) = places(&rows, take, |a: f64, b: f64| {
                turn(a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan())))
            });
            extents[at] = take;
            (back(values, &extents, at).into(), places)
        }
        Values::Complex(_) => return Err(KernelError::Kind { what: "an order", kind: Kind::Complex }),
    };
    let places = back(places, &extents, at);
    let shape = if x.shape.is_empty() { Vec::new() } else { extents };
    if shape.iter().product::<usize>() != places.len() {
        return Err(KernelError::Value { name: "k", value: take.to_string() });
    }
    Ok(vec![Tensor::of(shape.clone(), values), Tensor::of(shape, places)])
}

/// The k largest (or smallest) of each row, in order, and their places.
pub(super) fn topk(call: &Call<'_>) -> Results {
    let k = size("k", call.int(1, "k")?.ok_or(KernelError::Absent("k"))?)?;
    sorted(call, call.tensor(0, "self")?, 2, call.flag(3, "largest", true)?, Some(k))
}

/// Each row in order, and the place that each value had.
pub(super) fn sort(call: &Call<'_>) -> Results {
    let (dim, descending) = if call.overload == "stable" { (usize::MAX, usize::MAX) } else { (1, 2) };
    // `stable` may be positional: then the others follow it.
    let shift = usize::from(call.overload == "stable" && call.args.len() > 1);
    let (dim, descending) = if shift == 1 { (2, 3) } else { (dim, descending) };
    sorted(call, call.tensor(0, "self")?, dim, call.flag(descending, "descending", false)?, None)
}

/// The places of each row's values in order.
pub(super) fn argsort(call: &Call<'_>) -> Results {
    Ok(sort(call)?.split_off(1))
}

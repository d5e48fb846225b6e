//! Computes boolean and bitwise operations: comparisons, logic, bits, and selection by a mask.

use std::cmp::Ordering;
use std::collections::HashSet;

use super::binary::zip;
use super::call::{Call, Results, expanded};
use super::index;
use crate::value::dtype::Kind;
use crate::value::error::KernelError;
use crate::value::tensor::{Tensor, Values};

/// Applies `holds` to the order of each pair; NaN has no order, and complex numbers can only be equal or not.
fn compare(call: &Call<'_>, holds: impl Fn(Option<Ordering>) -> bool) -> Results {
    let (a, b) = (call.operand(0, "self")?, call.operand(1, "other")?);
    let shape = call.broadcast(&a.shape, &b.shape)?;
    let values = match a.kind().max(b.kind()) {
        Kind::Int => {
            zip((&a.to_ints(), &a.shape), (&b.to_ints(), &b.shape), &shape, |x, y| i64::from(holds(Some(x.cmp(&y)))))?
        }
        Kind::Float => zip((&a.to_floats(), &a.shape), (&b.to_floats(), &b.shape), &shape, |x, y| {
            i64::from(holds(x.partial_cmp(&y)))
        })?,
        Kind::Complex => zip((&a.to_complex(), &a.shape), (&b.to_complex(), &b.shape), &shape, |x, y| {
            i64::from(holds((x == y).then_some(Ordering::Equal)))
        })?,
    };
    Ok(vec![Tensor::of(shape, values)])
}

/// a = b.
pub(super) fn eq(call: &Call<'_>) -> Results {
    compare(call, |order| order == Some(Ordering::Equal))
}

/// a ≠ b.
pub(super) fn ne(call: &Call<'_>) -> Results {
    compare(call, |order| order != Some(Ordering::Equal))
}

/// a < b.
pub(super) fn lt(call: &Call<'_>) -> Results {
    compare(call, |order| order == Some(Ordering::Less))
}

/// a ≤ b.
pub(super) fn le(call: &Call<'_>) -> Results {
    compare(call, |order| matches!(order, Some(Ordering::Less | Ordering::Equal)))
}

/// a > b.
pub(super) fn gt(call: &Call<'_>) -> Results {
    compare(call, |order| order == Some(Ordering::Greater))
}

/// a ≥ b.
pub(super) fn ge(call: &Call<'_>) -> Results {
    compare(call, |order| matches!(order, Some(Ordering::Greater | Ordering::Equal)))
}

/// Whether two tensors have the same shape and equal values.
pub(super) fn equal(call: &Call<'_>) -> Results {
    let (a, b) = (call.tensor(0, "self")?, call.tensor(1, "other")?);
    let same = a.shape == b.shape
        && match a.kind().max(b.kind()) {
            Kind::Int => a.to_ints() == b.to_ints(),
            Kind::Float => a.to_floats() == b.to_floats(),
            Kind::Complex => a.to_complex() == b.to_complex(),
        };
    Ok(vec![Tensor::of(Vec::new(), vec![i64::from(same)])])
}

/// Whether each element is one of the others; with `invert`, whether it is not.
pub(super) fn isin(call: &Call<'_>) -> Results {
    let (a, b) = (call.operand(0, "elements")?, call.operand(1, "test_elements")?);
    let invert = call.flag(usize::MAX, "invert", false)?;
    let found: Vec<bool> = match a.kind().max(b.kind()) {
        Kind::Int => {
            let others: HashSet<i64> = b.to_ints().iter().copied().collect();
            a.to_ints().iter().map(|x| others.contains(x)).collect()
        }
        Kind::Float => {
            let mut others = b.to_floats().into_owned();
            others.retain(|x| !x.is_nan());
            others.sort_by(f64::total_cmp);
            // 0 and -0 are equal.
            let holds = |x: f64| others.binary_search_by(|y| y.partial_cmp(&x).unwrap_or(Ordering::Less)).is_ok();
            a.to_floats().iter().map(|&x| holds(x)).collect()
        }
        kind => return Err(KernelError::Kind { what: "isin", kind }),
    };
    Ok(vec![Tensor::of(a.shape.clone(), found.into_iter().map(|x| i64::from(x != invert)).collect::<Vec<_>>())])
}

fn bits(call: &Call<'_>, f: impl Fn(i64, i64) -> i64) -> Results {
    let (a, b) = (call.operand(0, "self")?, call.operand(1, "other")?);
    let kind = a.kind().max(b.kind());
    if kind != Kind::Int {
        return Err(KernelError::Kind { what: "a bitwise operation", kind });
    }
    let shape = call.broadcast(&a.shape, &b.shape)?;
    let values = zip((&a.to_ints(), &a.shape), (&b.to_ints(), &b.shape), &shape, f)?;
    Ok(vec![Tensor::of(shape, values)])
}

/// a AND b, bit by bit.
pub(super) fn bitwise_and(call: &Call<'_>) -> Results {
    bits(call, |x, y| x & y)
}

/// a OR b, bit by bit.
pub(super) fn bitwise_or(call: &Call<'_>) -> Results {
    bits(call, |x, y| x | y)
}

/// a XOR b, bit by bit.
pub(super) fn bitwise_xor(call: &Call<'_>) -> Results {
    bits(call, |x, y| x ^ y)
}

fn logic(call: &Call<'_>, f: impl Fn(bool, bool) -> bool) -> Results {
    let (a, b) = (call.operand(0, "self")?, call.operand(1, "other")?);
    let shape = call.broadcast(&a.shape, &b.shape)?;
    let values = zip((&a.to_bools(), &a.shape), (&b.to_bools(), &b.shape), &shape, |x, y| i64::from(f(x, y)))?;
    Ok(vec![Tensor::of(shape, values)])
}

/// Whether both are non-zero.
pub(super) fn logical_and(call: &Call<'_>) -> Results {
    logic(call, |x, y| x && y)
}

/// Whether at least one is non-zero.
pub(super) fn logical_or(call: &Call<'_>) -> Results {
    logic(call, |x, y| x || y)
}

/// Whether exactly one is non-zero.
pub(super) fn logical_xor(call: &Call<'_>) -> Results {
    logic(call, |x, y| x != y)
}

/// a where the condition holds, else b; without a and b, the indices where it holds, one vector for each axis.
pub(super) fn where_(call: &Call<'_>) -> Results {
    let condition = call.operand(0, "condition")?;
    if call.get(1, "self").is_none() {
        return Ok(index::places(&condition));
    }
    choose(call, &condition, &call.operand(1, "self")?, &call.operand(2, "other")?)
}

/// The value where the mask holds, else x.
pub(super) fn masked_fill(call: &Call<'_>) -> Results {
    choose(call, &call.operand(1, "mask")?, &call.operand(2, "value")?, &call.operand(0, "self")?)
}

fn choose(call: &Call<'_>, condition: &Tensor<'_>, a: &Tensor<'_>, b: &Tensor<'_>) -> Results {
    let shape = call.broadcast(&condition.shape, &call.broadcast(&a.shape, &b.shape)?)?;
    let condition = expanded(&condition.to_bools(), &condition.shape, &shape)?.into_owned();
    fn pick<T: Copy>(
        condition: &[bool],
        (a, a_shape): (&[T], &[usize]),
        (b, b_shape): (&[T], &[usize]),
        shape: &[usize],
    ) -> Result<Vec<T>, KernelError> {
        let (a, b) = (expanded(a, a_shape, shape)?, expanded(b, b_shape, shape)?);
        Ok(condition.iter().zip(a.iter().zip(b.iter())).map(|(&first, (&a, &b))| if first { a } else { b }).collect())
    }
    let values: Values<'static> = match a.kind().max(b.kind()) {
        Kind::Int => pick(&condition, (&a.to_ints(), &a.shape), (&b.to_ints(), &b.shape), &shape)?.into(),
        Kind::Float => pick(&condition, (&a.to_floats(), &a.shape), (&b.to_floats(), &b.shape), &shape)?.into(),
        Kind::Complex => pick(&condition, (&a.to_complex(), &a.shape), (&b.to_complex(), &b.shape), &shape)?.into(),
    };
    Ok(vec![Tensor::of(shape, values)])
}

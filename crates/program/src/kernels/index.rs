//! Reads and writes elements by lists of indices, None and masks: `x[i, :, mask]`.

use super::call::{Arg, Call, Results, ensure, expanded, index as position};
use crate::value::dtype::{DType, Kind};
use crate::value::error::KernelError;
use crate::value::tensor::{Tensor, Values, each_kind};
use crate::value::view::{contiguous_strides, offsets};

/// The indices at which a tensor is not 0, one vector for each axis.
pub(super) fn places(x: &Tensor<'_>) -> Vec<Tensor<'static>> {
    let strides = contiguous_strides(&x.shape);
    let found: Vec<usize> = x.to_bools().iter().enumerate().filter(|(_, truth)| **truth).map(|(at, _)| at).collect();
    let column = |axis: usize| -> Vec<i64> {
        found.iter().map(|at| (at / strides[axis].max(1) % x.shape[axis].max(1)) as i64).collect()
    };
    (0..x.shape.len()).map(|axis| Tensor::of(vec![found.len()], column(axis))).collect()
}

/// The indices at which a tensor is not 0, one row each.
pub(super) fn nonzero(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let columns = places(x);
    let count = match columns.first() {
        Some(column) => column.len(),
        None => usize::from(x.to_bools() == [true]),
    };
    let mut out = Vec::with_capacity(count * columns.len());
    for row in 0..count {
        out.extend(columns.iter().map(|column| column.to_ints()[row]));
    }
    Ok(vec![Tensor::of(vec![count, columns.len()], out)])
}

/// The elements that a list of indices selects, in the order of the result.
struct Offsets {
    shape: Vec<usize>,
    offsets: Vec<usize>,
}

/// A mask counts as the indices at which it is true. If the indexed axes are adjacent, the axes of the indices replace them, else they come first.
fn resolve(call: &Call<'_>, extents: &[usize], list: &[Arg<'_>]) -> Result<Offsets, KernelError> {
    // The indices of each axis, if it has any.
    let mut by_axis: Vec<Option<Tensor<'static>>> = Vec::new();
    for arg in list {
        match arg {
            Arg::None => by_axis.push(None),
            Arg::Tensor(mask) if mask.dtype == DType::Bool || mask.dtype == DType::U8 => {
                let at = by_axis.len();
                let due = extents.get(at..at + mask.shape.len()).unwrap_or_default();
                ensure(due == mask.shape, "a mask", &mask.shape, extents)?;
                by_axis.extend(places(mask).into_iter().map(Some));
            }
            Arg::Tensor(indices) if indices.kind() == Kind::Int => by_axis.push(Some(indices.clone().into_owned())),
            _ => return Err(KernelError::Sort { name: "indices", expected: "a list of indices" }),
        }
    }
    if by_axis.len() > extents.len() {
        return Err(KernelError::Axis { axis: by_axis.len() as i64 - 1, rank: extents.len() });
    }
    by_axis.resize(extents.len(), None);
    let indexed: Vec<usize> = (0..extents.len()).filter(|&axis| by_axis[axis].is_some()).collect();
    let mut shape = Vec::new();
    for indices in by_axis.iter().flatten() {
        shape = call.broadcast(&shape, &indices.shape)?;
    }
    let strides = contiguous_strides(extents);
    let mut chosen = vec![0; shape.iter().product()];
    for &axis in &indexed {
        let Some(indices) = &by_axis[axis] else { continue };
        let indices = expanded(&indices.to_ints(), &indices.shape, &shape)?.into_owned();
        for (at, &i) in chosen.iter_mut().zip(&indices) {
            *at += position(i, extents[axis])? * strides[axis];
        }
    }
    let adjacent = indexed.windows(2).all(|pair| pair[1] == pair[0] + 1);
    let first = if adjacent { indexed.first().copied().unwrap_or(0) } else { 0 };
    let others = |range: std::ops::Range<usize>| -> (Vec<usize>, Vec<usize>) {
        range.filter(|axis| !indexed.contains(axis)).map(|axis| (extents[axis], strides[axis])).unzip()
    };
    let (before, after) = (others(0..first), others(first..extents.len()));
    call.room("indices", &[before.0.as_slice(), &shape, &after.0].concat())?;
    let (outer, inner) = (offsets(&before.0, &before.1), offsets(&after.0, &after.1));
    let mut all = Vec::with_capacity(outer.len() * chosen.len() * inner.len());
    for a in &outer {
        for b in &chosen {
            all.extend(inner.iter().map(|c| a + b + c));
        }
    }
    Ok(Offsets { shape: [before.0, shape, after.0].concat(), offsets: all })
}

/// The elements at the indices.
pub(super) fn index(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let places = resolve(call, &x.shape, call.list(1, "indices")?)?;
    let values = each_kind!(&x.values, x => places.offsets.iter().map(|&at| x[at]).collect::<Vec<_>>());
    Ok(vec![Tensor::of(places.shape, values)])
}

/// x with these values at the indices; with `accumulate` they are added, in order.
pub(super) fn index_put(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let places = resolve(call, &x.shape, call.list(1, "indices")?)?;
    let new = call.operand(2, "values")?;
    let accumulate = call.flag(3, "accumulate", false)?;
    fn write_at<T: Copy>(x: &[T], at: &[usize], new: &[T], add: impl Fn(T, T) -> T) -> Vec<T> {
        let mut out = x.to_vec();
        at.iter().zip(new).for_each(|(&at, &new)| out[at] = add(out[at], new));
        out
    }
    let shape = &places.shape;
    let values: Values<'static> = match x.kind() {
        Kind::Int => {
            let new = new.to_ints();
            let new = expanded(&new, &call.operand(2, "values")?.shape, shape)?.into_owned();
            write_at(&x.to_ints(), &places.offsets, &new, |a, b| if accumulate { a.wrapping_add(b) } else { b }).into()
        }
        Kind::Float => {
            let new = expanded(&new.to_floats(), &new.shape, shape)?.into_owned();
            write_at(&x.to_floats(), &places.offsets, &new, |a, b| if accumulate { a + b } else { b }).into()
        }
        Kind::Complex => {
            let new = expanded(&new.to_complex(), &new.shape, shape)?.into_owned();
            let add = |a: [f64; 2], b: [f64; 2]| if accumulate { [a[0] + b[0], a[1] + b[1]] } else { b };
            write_at(&x.to_complex(), &places.offsets, &new, add).into()
        }
    };
    Ok(vec![Tensor::of(x.shape.clone(), values)])
}

/// Writes the elements of a source, in order, where the mask is true.
pub(super) fn masked_scatter(call: &Call<'_>) -> Results {
    let (x, mask, source) = (call.tensor(0, "self")?, call.tensor(1, "mask")?, call.tensor(2, "source")?);
    let shape = call.broadcast(&x.shape, &mask.shape)?;
    let mask = expanded(&mask.to_bools(), &mask.shape, &shape)?.into_owned();
    let count = mask.iter().filter(|truth| **truth).count();
    ensure(source.len() >= count, "the source and the mask", &source.shape, &[count])?;
    fn fill<T: Copy>(x: &[T], mask: &[bool], source: &[T]) -> Vec<T> {
        let mut next = source.iter();
        x.iter().zip(mask).map(|(&x, &take)| if take { next.next().copied().unwrap_or(x) } else { x }).collect()
    }
    let values: Values<'static> = match x.kind().max(source.kind()) {
        Kind::Int => fill(&expanded(&x.to_ints(), &x.shape, &shape)?, &mask, &source.to_ints()).into(),
        Kind::Float => fill(&expanded(&x.to_floats(), &x.shape, &shape)?, &mask, &source.to_floats()).into(),
        Kind::Complex => fill(&expanded(&x.to_complex(), &x.shape, &shape)?, &mask, &source.to_complex()).into(),
    };
    Ok(vec![Tensor::of(shape, values)])
}

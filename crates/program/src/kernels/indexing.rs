//! Looks up rows and elements by index along one axis.

use super::call::{Call, Results, axis, index as position};
use super::shape::pick_axis;
use crate::value::dtype::Kind;
use crate::value::error::KernelError;
use crate::value::tensor::{Tensor, each_kind};
use crate::value::view::contiguous_strides;

/// The indices of an operand, which must be integers.
pub(super) fn indices<'a>(x: &'a Tensor<'_>) -> Result<std::borrow::Cow<'a, [i64]>, KernelError> {
    match x.kind() {
        Kind::Int => Ok(x.to_ints()),
        kind => Err(KernelError::Kind { what: "an index", kind }),
    }
}

/// The row of the table for each index.
pub(super) fn embedding(call: &Call<'_>) -> Results {
    let (table, ids) = (call.tensor(0, "weight")?, call.tensor(1, "indices")?);
    let &[rows, width] = table.shape.as_slice() else {
        return Err(KernelError::Shape { what: "a table", left: table.shape.clone(), right: vec![] });
    };
    let mut shape = ids.shape.clone();
    shape.push(width);
    let shape = call.claim("embedding and its output", shape)?;
    let ids = indices(ids)?;
    let at = ids.iter().map(|&id| position(id, rows).map(|row| row * width)).collect::<Result<Vec<_>, _>>()?;
    let values =
        each_kind!(&table.values, x => at.iter().flat_map(|&at| x[at..at + width].iter().copied()).collect::<Vec<_>>());
    Ok(vec![Tensor::of(shape, values)])
}

/// The slices of an axis at the indices.
pub(super) fn index_select(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let at = axis(call.int(1, "dim")?.unwrap_or(0), x.shape.len())?;
    let extent = x.shape.get(at).copied().ok_or(KernelError::Axis { axis: at as i64, rank: x.shape.len() })?;
    let ids = indices(call.tensor(2, "index")?)?;
    let sources = ids.iter().map(|&i| position(i, extent)).collect::<Result<Vec<_>, _>>()?;
    let mut shape = x.shape.clone();
    shape[at] = sources.len();
    call.claim("index_select and its output", shape)?;
    Ok(vec![pick_axis(x, at, &sources)])
}

/// For each element of an index tensor, its offset in a tensor of `extents`: its own position, except that the index replaces axis `at`.
pub(super) fn along(extents: &[usize], at: usize, index: &Tensor<'_>) -> Result<Vec<usize>, KernelError> {
    let misfit = || KernelError::Shape { what: "an index tensor", left: index.shape.clone(), right: extents.into() };
    // A tensor without axes counts as one with one element.
    let one = |shape: &[usize]| if shape.is_empty() { vec![1] } else { shape.to_vec() };
    let (extents, shape) = (one(extents), one(&index.shape));
    let fits = |axis: usize| axis == at || shape[axis] <= extents[axis];
    if extents.len() != shape.len() || at >= shape.len() || !(0..shape.len()).all(fits) && !index.is_empty() {
        return Err(misfit());
    }
    let (strides, own) = (contiguous_strides(&extents), contiguous_strides(&shape));
    let ids = indices(index)?;
    let place = |(number, &id): (usize, &i64)| -> Result<usize, KernelError> {
        let mut sum = position(id, extents[at])? * strides[at];
        for axis in (0..shape.len()).filter(|&axis| axis != at) {
            sum += number / own[axis] % shape[axis] * strides[axis];
        }
        Ok(sum)
    };
    ids.iter().enumerate().map(place).collect()
}

/// y\[i,j,k\] = x\[index\[i,j,k\],j,k\] for the first axis, and so for others.
pub(super) fn gather(call: &Call<'_>) -> Results {
    let (x, (at, index)) = (
        call.tensor(0, "self")?,
        match call.name {
            "take_along_dim" => (call.int(2, "dim")?, call.tensor(1, "indices")?),
            _ => (call.int(1, "dim")?, call.tensor(2, "index")?),
        },
    );
    let at = axis(at.ok_or(KernelError::Absent("dim"))?, x.shape.len())?;
    let places = along(&x.shape, at, index)?;
    let values = each_kind!(&x.values, x => places.iter().map(|&at| x[at]).collect::<Vec<_>>());
    Ok(vec![Tensor::of(index.shape.clone(), values)])
}

//! Arranges axes as rows, so that operations over axes work on contiguous rows.

use std::borrow::Cow;

use super::call::{Call, axis};
use crate::value::error::KernelError;
use crate::value::tensor::Tensor;
use crate::value::view::{contiguous_strides, for_each_row};

/// A tensor whose reduced axes were moved to the end.
#[derive(Debug)]
pub(super) struct AxisRows<'a, T: Copy> {
    /// The rows, one after the other.
    pub(super) values: Cow<'a, [T]>,
    /// Elements of a row.
    pub(super) width: usize,
    /// Number of rows.
    pub(super) count: usize,
}

impl<'a, T: Copy> AxisRows<'a, T> {
    /// The rows along `axes`, which must be sorted and distinct.
    pub(super) fn new(values: &'a [T], shape: &[usize], axes: &[usize]) -> AxisRows<'a, T> {
        let kept: Vec<usize> = (0..shape.len()).filter(|axis| !axes.contains(axis)).collect();
        let extents = |axes: &[usize]| axes.iter().map(|&axis| shape[axis]).collect::<Vec<_>>();
        let width = extents(axes).iter().product();
        let count = extents(&kept).iter().product();
        let order: Vec<usize> = kept.iter().chain(axes).copied().collect();
        AxisRows { values: permute(values, shape, &order), width, count }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[T]> {
        (0..self.count).map(|row| &self.values[row * self.width..(row + 1) * self.width])
    }
}

/// Transposes values to another order of axes.
pub(super) fn permute<'a, T: Copy>(values: &'a [T], shape: &[usize], order: &[usize]) -> Cow<'a, [T]> {
    if order.is_sorted() {
        return Cow::Borrowed(values);
    }
    let strides = contiguous_strides(shape);
    let extents: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
    let strides: Vec<usize> = order.iter().map(|&axis| strides[axis]).collect();
    let mut out = Vec::with_capacity(values.len());
    for_each_row(&extents, &strides, 0, |start, stride, count| {
        out.extend((0..count).map(|i| values[start + i * stride]));
    });
    Cow::Owned(out)
}

/// Moves the axis of rows back to its position; `shape` is that of the result.
pub(super) fn restore_axis<T: Copy>(values: Vec<T>, shape: &[usize], axis: usize) -> Vec<T> {
    if axis + 1 >= shape.len() {
        return values;
    }
    // Shape as stored, with the axis last.
    let mut stored = shape.to_vec();
    let extent = stored.remove(axis);
    stored.push(extent);
    let mut order: Vec<usize> = (0..shape.len() - 1).collect();
    order.insert(axis, shape.len() - 1);
    permute(&values, &stored, &order).into_owned()
}

/// One axis of a tensor; a tensor without axes counts as one with one element.
pub(super) fn one_axis(
    call: &Call<'_>,
    x: &Tensor<'_>,
    position: usize,
    otherwise: i64,
) -> Result<(Vec<usize>, usize), KernelError> {
    let at = axis(call.int(position, "dim")?.unwrap_or(otherwise), x.shape.len())?;
    Ok((if x.shape.is_empty() { vec![1] } else { x.shape.clone() }, at))
}

/// The axes of a list, sorted; all axes if the list is absent or empty.
pub(super) fn axes(list: Option<Vec<i64>>, rank: usize) -> Result<Vec<usize>, KernelError> {
    let list = list.unwrap_or_default();
    if list.is_empty() {
        return Ok((0..rank).collect());
    }
    let mut out = list.iter().map(|&at| axis(at, rank)).collect::<Result<Vec<_>, _>>()?;
    out.retain(|&at| at < rank);
    out.sort_unstable();
    out.dedup();
    Ok(out)
}

/// The shape after `axes` are reduced.
pub(super) fn reduced(shape: &[usize], axes: &[usize], keep: bool) -> Vec<usize> {
    let extents = shape.iter().enumerate();
    match keep {
        true => extents.map(|(at, &extent)| if axes.contains(&at) { 1 } else { extent }).collect(),
        false => extents.filter(|(at, _)| !axes.contains(at)).map(|(_, &extent)| extent).collect(),
    }
}

//! Defines strided views of buffers.

use crate::value::dtype::DType;
use crate::value::error::Fault;

/// A strided view of a buffer. Strides and offset are in elements of the view's own type; a stride may be 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Number of the buffer.
    pub buffer: usize,
    /// Element type.
    pub dtype: DType,
    /// Extent of every axis, slowest first.
    pub shape: Vec<usize>,
    /// Distance between neighbouring indices of an axis, in elements.
    pub strides: Vec<usize>,
    /// Index of the first element.
    pub offset: usize,
}

impl View {
    /// Number of elements; views whose number overflows are never created.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Number of distinct elements of the buffer that it shows, if no two axes overlap.
    pub(crate) fn distinct(&self) -> usize {
        let shown = self.shape.iter().zip(&self.strides).filter(|(_, stride)| **stride != 0);
        shown.map(|(extent, _)| extent).product::<usize>() * self.dtype.units()
    }

    /// Whether its elements are contiguous in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let mut due = 1;
        for (&extent, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if extent != 1 && stride != due {
                return false;
            }
            due *= extent;
        }
        true
    }

    /// The same elements in other axes; `None` where they are not contiguous, or not as many.
    pub fn reshaped(&self, shape: &[usize]) -> Option<View> {
        let fits = self.is_contiguous() && self.elements() == shape.iter().product::<usize>();
        fits.then(|| View { shape: shape.to_vec(), strides: contiguous_strides(shape), ..self.clone() })
    }

    /// How many numbers of the buffer the view reaches over, if that and the number of elements are at most `limit`.
    pub(crate) fn span(&self, limit: u64) -> Result<usize, Fault> {
        // The other axes of an empty view count too, because kernels multiply some of them.
        let extents = self.shape.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent.max(1)));
        let extents = extents.ok_or(Fault::Overflow)?;
        let elements = if self.shape.contains(&0) { 0 } else { extents };
        let last = self.shape.iter().zip(&self.strides).try_fold(self.offset, |at, (&extent, &stride)| {
            at.checked_add(extent.saturating_sub(1).checked_mul(stride)?)
        });
        let end = if elements == 0 { Some(0) } else { last.and_then(|last| last.checked_add(1)) };
        let reach = end.and_then(|end| end.checked_mul(self.dtype.units())).ok_or(Fault::Overflow)?;
        let needed = reach.max(extents.saturating_mul(self.dtype.units())) as u64;
        if needed > limit { Err(Fault::Elements { needed, limit }) } else { Ok(reach) }
    }
}

/// A shape without leading axes of extent 1, which a file may list and a program omit, or the reverse.
pub(crate) fn bare(shape: &[usize]) -> &[usize] {
    &shape[shape.iter().take_while(|&&extent| extent == 1).count()..]
}

/// The strides of a contiguous tensor.
pub(crate) fn contiguous_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis]);
    }
    strides
}

/// Calls `row(start, stride, count)` for every row of the last axis, in row-major order; contiguous axes are merged.
pub(crate) fn for_each_row(
    shape: &[usize],
    strides: &[usize],
    offset: usize,
    mut row: impl FnMut(usize, usize, usize),
) {
    if shape.contains(&0) {
        return;
    }
    // (extent, stride) of the axes, without those of extent 1.
    let mut axes: Vec<(usize, usize)> = Vec::new();
    for (&extent, &stride) in shape.iter().zip(strides).filter(|(extent, _)| **extent != 1) {
        match axes.last_mut() {
            Some(outer) if outer.1 == extent * stride => *outer = (outer.0 * extent, stride),
            _ => axes.push((extent, stride)),
        }
    }
    let Some((count, stride)) = axes.pop() else { return row(offset, 1, 1) };
    let mut index = vec![0; axes.len()];
    let mut start = offset;
    loop {
        row(start, stride, count);
        let mut axis = axes.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            index[axis] += 1;
            start += axes[axis].1;
            if index[axis] < axes[axis].0 {
                break;
            }
            start -= axes[axis].0 * axes[axis].1;
            index[axis] = 0;
        }
    }
}

/// The offsets of all elements in row-major order.
pub(crate) fn offsets(shape: &[usize], strides: &[usize]) -> Vec<usize> {
    let mut out = Vec::with_capacity(shape.iter().product());
    for_each_row(shape, strides, 0, |start, stride, count| out.extend((0..count).map(|i| start + i * stride)));
    out
}

/// Every number of the buffer that a view shows.
pub(crate) fn each_number(view: &View, mut then: impl FnMut(usize)) {
    let units = view.dtype.units();
    for_each_row(&view.shape, &view.strides, view.offset, |start, stride, count| {
        for i in 0..count {
            (0..units).for_each(|unit| then((start + i * stride) * units + unit));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_row_major_order() {
        assert_eq!(offsets(&[2, 3], &[3, 1]), [0, 1, 2, 3, 4, 5]);
        assert_eq!(offsets(&[3, 2], &[1, 3]), [0, 3, 1, 4, 2, 5]);
        assert_eq!(offsets(&[2, 1, 2], &[0, 7, 1]), [0, 1, 0, 1]);
        assert_eq!(offsets(&[], &[]), [0]);
        assert_eq!(offsets(&[2, 0], &[1, 1]), [0; 0]);
        assert_eq!(offsets(&[2, 2, 2], &[8, 2, 1]), [0, 1, 2, 3, 8, 9, 10, 11]);
    }

    #[test]
    fn the_reach_of_a_view() {
        let view = |shape: &[usize], strides: &[usize], offset, dtype| View {
            buffer: 0,
            dtype,
            shape: shape.into(),
            strides: strides.into(),
            offset,
        };
        assert_eq!(view(&[2, 3], &[3, 1], 4, DType::F32).span(100).unwrap(), 10);
        assert_eq!(view(&[2, 3], &[3, 1], 4, DType::C64).span(100).unwrap(), 20);
        assert_eq!(view(&[0, 9], &[3, 1], 4, DType::F32).span(100).unwrap(), 0);
        assert!(matches!(view(&[0, usize::MAX, 9], &[3, 1, 1], 4, DType::F32).span(100), Err(Fault::Overflow)));
        assert!(matches!(view(&[1 << 40, 1 << 40], &[0, 0], 0, DType::F32).span(100), Err(Fault::Overflow)));
        assert!(matches!(view(&[2], &[usize::MAX], 1, DType::F32).span(100), Err(Fault::Overflow)));
        assert!(matches!(
            view(&[101], &[0], 1, DType::F32).span(100),
            Err(Fault::Elements { needed: 101, limit: 100 })
        ));
    }
}

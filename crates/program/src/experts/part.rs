//! Moves views to their new memory location when the extents of a buffer differ from the recording.

use crate::value::error::Misfit;
use crate::value::view::View;

/// The result of an operation, as recorded and as it is now.
#[derive(Clone, Debug)]
pub(crate) struct Resized {
    old: View,
    new: View,
    /// Axes whose extent depends on values.
    open: Vec<bool>,
    /// Axes with more than one element, or whose extent depends on values, sorted by descending stride.
    order: Vec<usize>,
}

impl Resized {
    /// `old` in another shape, from `offset` on: its axes keep their order in memory.
    pub(crate) fn new(old: &View, shape: &[usize], offset: usize, mut open: Vec<bool>) -> Result<Resized, Misfit> {
        if old.shape.len() != shape.len() {
            return Err(Misfit::Axes);
        }
        let mut all: Vec<usize> = (0..shape.len()).collect();
        all.sort_by_key(|&axis| (std::cmp::Reverse(old.strides[axis]), axis));
        let (mut strides, mut due, mut count) = (vec![1; shape.len()], 1, 1);
        for &axis in all.iter().rev() {
            // Only contiguous axes can change their extent.
            if old.shape[axis] > 1 && old.strides[axis] != due {
                return Err(Misfit::Axes);
            }
            strides[axis] = count;
            due *= old.shape[axis].max(1);
            count *= shape[axis].max(1);
        }
        open.iter_mut().enumerate().for_each(|(axis, open)| *open |= old.shape[axis] != shape[axis]);
        let order = all.into_iter().filter(|&axis| old.shape[axis] > 1 || open[axis]).collect();
        let new = View { shape: shape.to_vec(), strides, offset, ..old.clone() };
        Ok(Resized { old: old.clone(), new, open, order })
    }

    /// An unchanged result.
    pub(crate) fn unchanged(view: &View) -> Result<Resized, Misfit> {
        Resized::new(view, &view.shape, view.offset, vec![false; view.shape.len()])
    }

    pub(crate) fn new_view(&self) -> &View {
        &self.new
    }

    /// Whether a view begins in this result.
    pub(crate) fn contains(&self, view: &View) -> bool {
        let inside = view.offset >= self.old.offset && view.offset < self.old.offset + self.old.elements().max(1);
        inside && view.dtype == self.old.dtype
    }

    /// The index along each axis at which a view begins.
    pub(crate) fn begins(&self, view: &View) -> Option<Vec<usize>> {
        let mut rest = view.offset.checked_sub(self.old.offset).filter(|_| self.contains(view))?;
        let mut begins = vec![0; self.old.shape.len()];
        for &axis in &self.order {
            let stride = self.old.strides[axis].max(1);
            begins[axis] = rest / stride;
            rest %= stride;
        }
        let inside = begins.iter().zip(&self.old.shape).all(|(&at, &extent)| at < extent.max(1));
        (inside && rest == 0).then_some(begins)
    }

    /// The new location of a view that begins at `begins`. Of the axes for which `is_indexed` holds it shows a single index.
    pub(crate) fn moved(
        &self,
        view: &View,
        begins: &[usize],
        is_indexed: impl Fn(usize) -> bool,
    ) -> Result<View, Misfit> {
        // The same axes as the buffer, even where an extent is 1 or 0.
        let is_aligned = view.strides == self.old.strides;
        let mut moved = View { offset: self.new.offset, ..view.clone() };
        let mut shown = vec![false; self.open.len()];
        if is_aligned {
            moved.strides = self.new.strides.clone();
            shown.fill(true);
            for (axis, extent) in moved.shape.iter_mut().enumerate().filter(|(axis, _)| self.is_other(*axis)) {
                if *extent != self.old.shape[axis] {
                    return Err(Misfit::Window);
                }
                *extent = self.new.shape[axis];
            }
        } else {
            let is_unclear = |axis: usize| self.old.shape[axis] < 2 && self.is_other(axis) && !is_indexed(axis);
            if self.order.iter().any(|&axis| is_unclear(axis)) {
                return Err(Misfit::One);
            }
            for at in 0..view.shape.len() {
                (moved.shape[at], moved.strides[at]) =
                    self.axis(view.shape[at], view.strides[at], begins, &mut shown)?;
            }
        }
        for (axis, &at) in begins.iter().enumerate() {
            // Of an axis whose extent changed, the view shows all, or one index that still exists.
            let inside = if shown[axis] { at == 0 } else { at < self.new.shape[axis] };
            if self.open[axis] && !inside {
                return Err(Misfit::Window);
            }
            moved.offset += at * self.new.strides[axis];
        }
        let reach = |view: &View| view.span(u64::MAX).unwrap_or(usize::MAX);
        if reach(&moved) > reach(&self.new) { Err(Misfit::Window) } else { Ok(moved) }
    }

    fn is_other(&self, axis: usize) -> bool {
        self.old.shape[axis] != self.new.shape[axis]
    }

    /// New extent and stride of a view's axis.
    fn axis(
        &self,
        extent: usize,
        stride: usize,
        begins: &[usize],
        shown: &mut [bool],
    ) -> Result<(usize, usize), Misfit> {
        if extent == 1 || stride == 0 {
            return Ok((extent, stride));
        }
        // The innermost axis that it runs along.
        let inner = self.order.iter().rposition(|&axis| self.old.strides[axis] == stride && self.old.shape[axis] > 1);
        if let Some(inner) = inner {
            let last = self.order[inner];
            if extent < self.old.shape[last] {
                // A part of one axis.
                let fits = begins[last] + extent <= self.old.shape[last] && !self.is_other(last);
                shown[last] = true;
                return if fits { Ok((extent, self.new.strides[last])) } else { Err(Misfit::Window) };
            }
            let (mut old, mut new) = (1, 1);
            for &axis in self.order[..=inner].iter().rev() {
                if old > 1 && self.old.strides[axis] != stride * old {
                    break;
                }
                (old, new) = (old * self.old.shape[axis], new * self.new.shape[axis]);
                shown[axis] = true;
                if old == extent {
                    return Ok((new, self.new.strides[last]));
                }
            }
            return Err(Misfit::Window);
        }
        // Every n-th element of one axis.
        let within = self.order.iter().copied().find(|&axis| {
            let own = self.old.strides[axis];
            own > 0 && stride.is_multiple_of(own) && stride / own * extent <= self.old.shape[axis]
        });
        let axis = within.filter(|&axis| !self.is_other(axis)).ok_or(Misfit::Window)?;
        shown[axis] = true;
        Ok((extent, self.new.strides[axis] * (stride / self.old.strides[axis])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::dtype::DType;

    fn view(shape: &[usize], strides: &[usize], offset: usize) -> View {
        View { buffer: 0, dtype: DType::F32, shape: shape.into(), strides: strides.into(), offset }
    }

    fn moved(part: &Resized, view: &View) -> Result<View, Misfit> {
        part.moved(view, &part.begins(view).unwrap(), |_| false)
    }

    fn part(old: &[usize], strides: &[usize], new: &[usize]) -> Resized {
        Resized::new(&view(old, strides, 0), new, 0, vec![false; old.len()]).unwrap()
    }

    #[test]
    fn views_follow_the_axis_that_they_show() {
        let rows = part(&[1, 3, 32], &[96, 32, 1], &[1, 5, 32]);
        assert_eq!(moved(&rows, &view(&[3, 32], &[32, 1], 0)).unwrap(), view(&[5, 32], &[32, 1], 0));
        let halves = part(&[3, 96], &[96, 1], &[7, 96]);
        assert_eq!(moved(&halves, &view(&[3, 48], &[96, 2], 1)).unwrap(), view(&[7, 48], &[96, 2], 1));
        assert_eq!(moved(&halves, &view(&[3, 48], &[96, 1], 48)).unwrap(), view(&[7, 48], &[96, 1], 48));
        let columns = part(&[3, 4], &[1, 3], &[5, 4]);
        assert_eq!(moved(&columns, &view(&[3], &[1], 6)).unwrap(), view(&[5], &[1], 10));
        assert_eq!(moved(&columns, &view(&[12], &[1], 0)).unwrap(), view(&[20], &[1], 0));
    }

    #[test]
    fn an_extent_that_coincides_is_none_that_follows() {
        let rows = part(&[4, 4, 2], &[8, 2, 1], &[6, 4, 2]);
        assert_eq!(moved(&rows, &view(&[4, 2], &[2, 1], 8)).unwrap(), view(&[4, 2], &[2, 1], 8));
        assert_eq!(moved(&rows, &view(&[4, 2], &[8, 1], 2)).unwrap(), view(&[6, 2], &[8, 1], 2));
    }

    #[test]
    fn what_may_be_one_axis_or_another_is_not_followed() {
        let rows = part(&[1, 1, 32], &[32, 32, 1], &[1, 2, 32]);
        assert_eq!(moved(&rows, &view(&[1, 32], &[32, 1], 0)), Err(Misfit::One));
        let rows = part(&[6, 32], &[32, 1], &[7, 32]);
        assert_eq!(moved(&rows, &view(&[4, 32], &[32, 1], 64)), Err(Misfit::Window));
        let rows = part(&[4, 1], &[1, 4], &[2, 1]);
        assert_eq!(moved(&rows, &view(&[1], &[4], 3)), Err(Misfit::Window));
        assert_eq!(moved(&rows, &view(&[1], &[4], 1)).unwrap(), view(&[1], &[4], 1));
    }
}

//! Operations that are carried out on another tensor: before or behind their place, with what else they read.

use std::cmp::Reverse;
use std::sync::Arc;

use firstdiff_program::{At, Change, Edit, Instead, Operation, OtherOperand, Tensor, View, carry_out};
use ndarray::ArrayD;
use serde_json::json;

use super::{List, is_unary};
use crate::mistakes::norm::QK_NORM_ORDER;
use crate::mistakes::recorded::OPERATION_MOVED;
use crate::program::arrays::{array, floats};
use crate::program::change::kept;
use crate::program::edits::slots::Slot;
use crate::program::forms::turns;

/// Tensors near an operation on each of which it is tried.
const NEAR: usize = 16;

impl<'a> List<'_, 'a> {
    /// An operation that is carried out on another tensor than the one it is due on, which passes as it is.
    pub(super) fn moved(&mut self, op: usize, bits: f64) {
        let context = self.context;
        let (record, class, reads) = (context.op(op), context.program.class(op), self.reads.clone());
        let Some(out) = context.out(op) else { return };
        let views: Vec<&View> = record.reads().collect();
        let target = context.slice.target();
        let made = &context.program.taps()[target].view;
        let is_value = |view: &View| context.is_activation(view) && context.is_float(view);
        for (at, &x) in views.iter().enumerate().filter(|(_, x)| is_value(x) && x.shape == out.shape) {
            // What else it reads; a function of what is there before is taken again.
            let other = |(_, &other): (usize, &&'a View)| {
                let maker = context.maker(op, other);
                let again = maker.filter(|&at| is_unary(context, at) && context.out(at) == Some(other));
                match again.and_then(|at| Some((at, context.tensor(at, 0)?))) {
                    Some((at, read)) => (read.clone(), Some(context.op(at).clone()), context.maker(at, read)),
                    None => (other.clone(), None, maker),
                }
            };
            let others: Vec<_> = views.iter().enumerate().filter(|(place, _)| *place != at).map(other).collect();
            let is_there = |reader: usize| others.iter().filter_map(|(.., maker)| *maker).all(|maker| maker < reader);
            // What the operation gives of a tensor, and of what else it reads.
            let instead = |tensor: &View| -> (Vec<View>, Instead) {
                let (record, from, due) = (record.clone(), tensor.clone(), x.clone());
                let again: Vec<Option<Operation>> = others.iter().map(|(_, record, _)| record.clone()).collect();
                let carried_out = move |tensors: &[Tensor<'_>]| {
                    let (first, others) = tensors.split_first()?;
                    let mut all = Vec::new();
                    for (other, again) in others.iter().zip(&again) {
                        let own = || Some(vec![other.clone().into_owned()]);
                        let made = again.as_ref().map_or_else(own, |record| carry_out(record, &[other.view()]))?;
                        all.push(made.into_iter().next()?);
                    }
                    all.insert(at, floats(relaid(array(first), &from, &due)?)?);
                    let result = array(carry_out(&record, &all)?.first()?);
                    Some(vec![floats(relaid(result, &due, &from)?)?])
                };
                let views = [tensor.clone()].into_iter().chain(others.iter().map(|(view, ..)| view.clone()));
                (views.collect(), Arc::new(carried_out))
            };
            // A norm behind the rotation has a name of its own.
            let named = |maker: Option<usize>, of: String| match context.is_of_norm(op)
                && maker.is_some_and(|maker| turns(context, maker))
            {
                true => (&QK_NORM_ORDER, Vec::new()),
                false => {
                    let params = vec![("operation", json!(context.program.said(op))), ("of", json!(of))];
                    (&OPERATION_MOVED, params)
                }
            };
            let passes = || Edit { at: At::Op(op), change: kept(x) };
            let may_be = |view: &View| is_value(view) && view != x && view.buffer != out.buffer;
            let fits = |view: &View| may_be(view) && (view.elements() == x.elements() || others.is_empty());
            let mut near: Vec<&Slot<'_>> = reads.iter().filter(|slot| slot.op != op && fits(slot.view)).collect();
            near.sort_by_key(|slot| slot.op.abs_diff(op));
            for (rank, slot) in near.into_iter().enumerate().take(NEAR) {
                let (views, value) = instead(slot.view);
                let edits = self.wherever(&|own| {
                    let other = || OtherOperand { place: own.place, views: views.clone(), value: value.clone() };
                    (own.view == slot.view && own.op != op).then(other)
                });
                if edits.iter().filter_map(|edit| edit.at.op()).all(is_there) {
                    let of = self.names.describe(slot.op, slot.view);
                    let (mistake, params) = named(context.maker(slot.op, slot.view), of);
                    let bits = bits + 5.0 + (rank as f64 + 1.0).log2();
                    self.push(bits, mistake, params, class, [passes()].into_iter().chain(edits).collect());
                }
            }
            if fits(made) {
                let (views, value) = instead(made);
                let edits = vec![passes(), Edit { at: At::Tap(target), change: Change::Values(views, value) }];
                let last = context.program.taps()[target].op;
                let (mistake, params) = named(Some(last), format!("what {} gives", context.program.said(last)));
                self.push(bits + 5.0, mistake, params, class, edits);
            }
        }
    }
}

/// Values that one view shows, as another of the same memory order shows them; those of another extent as they are.
fn relaid(x: ArrayD<f64>, from: &View, to: &View) -> Option<ArrayD<f64>> {
    if from.elements() != to.elements() {
        return Some(x);
    }
    // The axes in the order of memory.
    let order = |view: &View| {
        let mut axes: Vec<usize> = (0..view.shape.len()).collect();
        axes.sort_by_key(|&axis| Reverse(view.strides[axis]));
        axes
    };
    let (own, due) = (order(from), order(to));
    let shape: Vec<usize> = due.iter().map(|&axis| to.shape[axis]).collect();
    // An operation may give the same elements in other axes.
    let shown = x.as_standard_layout().into_owned().into_shape_with_order(from.shape.as_slice()).ok()?;
    let flat = shown.permuted_axes(own).as_standard_layout().into_owned().into_shape_with_order(shape).ok()?;
    let mut back = due.clone();
    due.iter().enumerate().for_each(|(at, &axis)| back[axis] = at);
    Some(flat.permuted_axes(back).as_standard_layout().into_owned())
}

#[cfg(test)]
mod tests {
    use firstdiff_program::DType;
    use ndarray::{ArrayD, Dimension};

    use super::*;

    #[test]
    fn elements_in_other_axes_are_shown_as_a_view_shows_them() {
        let view = |shape: &[usize], strides: &[usize]| View {
            buffer: 0,
            dtype: DType::F32,
            shape: shape.to_vec(),
            strides: strides.to_vec(),
            offset: 0,
        };
        let x = |shape: &[usize]| {
            ArrayD::from_shape_fn(shape, |at| at.slice().iter().fold(0.0, |all, i| 10.0 * all + *i as f64))
        };
        let (rows, columns) = (view(&[2, 3], &[3, 1]), view(&[3, 2], &[1, 3]));
        assert_eq!(relaid(x(&[2, 3]), &rows, &columns).unwrap(), x(&[2, 3]).t());
        // One more axis, or one less, as some operations give them.
        assert_eq!(relaid(x(&[1, 2, 3]), &rows, &columns).unwrap(), x(&[2, 3]).t());
        assert_eq!(relaid(x(&[6]), &rows, &rows).unwrap(), x(&[6]).into_shape_with_order((2, 3)).unwrap().into_dyn());
        assert_eq!(relaid(x(&[4]), &rows, &rows), None);
    }
}

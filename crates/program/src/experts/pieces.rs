//! Finds the views that are pieces of a tensor split by a list of lengths. Python received the list; the operations after it show where it splits.

use std::collections::HashMap;
use std::ops::Range;

use crate::program::{Operation, Program, check};
use crate::value::scalar::Scalar;
use crate::value::view::View;

/// One piece of a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// The operation that gave the lengths to Python.
    pub(crate) list: usize,
    axis: usize,
    number: usize,
}

/// All pieces: by operation and index of the view, and by tap.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    pub(crate) views: HashMap<(usize, usize), Piece>,
    pub(crate) taps: HashMap<usize, Piece>,
}

impl Pieces {
    /// Finds, after each list of lengths, a line of code that runs once for each length, on one piece after the other.
    pub(crate) fn find(program: &Program) -> Pieces {
        let mut pieces = Pieces::default();
        let lists: Vec<(usize, Vec<usize>)> = program.ops.iter().enumerate().filter_map(lengths).collect();
        for (at, (list, lengths)) in lists.iter().enumerate() {
            let step = program.steps.iter().find(|step| step.ops.contains(list));
            let end = step.map_or(*list, |step| step.ops.end).min(lists.get(at + 1).map_or(usize::MAX, |next| next.0));
            let range = list + 1..end;
            for first in range.clone() {
                pieces.add(program, *list, lengths, first, end);
            }
            if !pieces.is_split(*list) {
                continue;
            }
            for tap in range.flat_map(|op| &program.taps_after[op]) {
                let of_view = |number| piece(program, &program.taps[*tap].view, lengths, number);
                let mut fitting = (0..lengths.len()).filter(|&i| lengths[i] > 0).filter_map(|i| Some((i, of_view(i)?)));
                if let (Some((number, axis)), None) = (fitting.next(), fitting.next()) {
                    pieces.taps.insert(*tap, Piece { list: *list, axis, number });
                }
            }
        }
        pieces
    }

    /// Whether it is known what a list of lengths splits.
    pub(crate) fn is_split(&self, list: usize) -> bool {
        self.views.values().any(|piece| piece.list == list)
    }

    fn add(&mut self, program: &Program, list: usize, lengths: &[usize], first: usize, end: usize) {
        let all: Range<usize> = first..first + lengths.len();
        let line = |op: usize| (program.ops[op].scope, program.ops[op].line, &program.ops[op].name);
        if all.end > end || all.clone().any(|op| line(op) != line(first)) {
            return;
        }
        for slot in 0..check::operands(&program.ops[first]).count() {
            let view = |op: usize| check::operands(&program.ops[op]).nth(slot);
            let axes = all.clone().zip(0..).map(|(op, number)| piece(program, view(op)?, lengths, number));
            let axes: Option<Vec<usize>> = axes.collect();
            let buffer = view(first).map(|view| view.buffer);
            let is_one = all.clone().all(|op| view(op).map(|view| view.buffer) == buffer);
            if let Some(axes) = axes.filter(|axes| is_one && axes.iter().all(|axis| *axis == axes[0])) {
                let piece = |number| Piece { list, axis: axes[0], number };
                self.views.extend(all.clone().zip(0..).map(|(op, number)| ((op, slot), piece(number))));
            }
        }
    }
}

impl Piece {
    /// The view after the pieces have changed to `lengths`.
    pub(crate) fn with_lengths(&self, program: &Program, view: &View, lengths: &[usize]) -> View {
        let whole = &program.buffers[view.buffer];
        let begin: usize = lengths[..self.number].iter().sum();
        let mut cut = view.clone();
        cut.shape[self.axis] = lengths[self.number];
        cut.offset = whole.offset + begin * whole.strides[self.axis];
        cut
    }
}

/// The list of lengths that an operation gave to Python.
fn lengths((number, op): (usize, &Operation)) -> Option<(usize, Vec<usize>)> {
    let list = op.scalar.as_ref().filter(|list| list.len() > 1)?;
    let length = |x: &Scalar| if let Scalar::Int(x) = x { usize::try_from(*x).ok() } else { None };
    Some((number, list.iter().map(length).collect::<Option<_>>()?))
}

/// The axis along which a view is piece `number` of its whole buffer.
fn piece(program: &Program, view: &View, lengths: &[usize], number: usize) -> Option<usize> {
    let whole = &program.buffers[view.buffer];
    let begin: usize = lengths[..number].iter().sum();
    let total: usize = lengths.iter().sum();
    let fits = |&axis: &usize| {
        let others = (0..whole.shape.len()).filter(|other| *other != axis);
        whole.shape[axis] == total
            && view.shape[axis] == lengths[number]
            && view.offset == whole.offset + begin * whole.strides[axis]
            && others.into_iter().all(|other| view.shape[other] == whole.shape[other])
    };
    let is_plain = view.shape.len() == whole.shape.len() && view.dtype == whole.dtype && view.strides == whole.strides;
    (0..whole.shape.len()).filter(|_| is_plain).find(fits)
}

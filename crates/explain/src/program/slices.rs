//! What lies between the taps that a slice reads and the one that it makes.

use std::collections::BTreeSet;

use firstdiff_program::{Operand, Program, Slice};

use crate::tolerance::search::LARGE;

/// Whether a slice multiplies by a matrix that large.
pub(crate) fn reads_large(program: &Program, slice: &Slice<'_>) -> bool {
    let views = slice.ops().flat_map(|op| program.ops()[op].operands.iter().flat_map(Operand::views));
    let mut weights = views.map(|view| view.buffer).filter(|buffer| program.weights().contains_key(buffer));
    weights.any(|buffer| program.buffers()[buffer].elements() > LARGE)
}

/// All that is reached by a way on from each of some operations, or taps; these are among it.
pub(crate) fn reached<I: IntoIterator<Item = usize>>(
    from: impl IntoIterator<Item = usize>,
    on: impl Fn(usize) -> I,
) -> BTreeSet<usize> {
    let (mut open, mut found) = (Vec::from_iter(from), BTreeSet::new());
    while let Some(at) = open.pop() {
        if found.insert(at) {
            open.extend(on(at));
        }
    }
    found
}

/// The taps that a slice makes on the way, by their index.
pub(crate) fn on_the_way(program: &Program, slice: &Slice<'_>) -> Vec<usize> {
    let ops: BTreeSet<usize> = slice.ops().collect();
    let made = program.taps().iter().enumerate().filter(|(_, tap)| ops.contains(&tap.op)).map(|(number, _)| number);
    made.filter(|&tap| tap != slice.target()).collect()
}

/// The operations of a slice in words, where they are of several lines: any of them may be wrong.
pub(super) fn stretch(program: &Program, slice: &Slice<'_>) -> Option<String> {
    let ops: Vec<usize> = slice.ops().collect();
    let lines: BTreeSet<Option<usize>> = ops.iter().map(|&op| program.ops()[op].line).collect();
    let (first, last) = (program.said(*ops.first()?), program.said(*ops.last()?));
    (lines.len() > 1).then(|| format!("any of {} operations may be it, from {first} to {last}", ops.len()))
}

//! The tensors that an operation reads.

use firstdiff_program::{Operand, View};

use crate::program::context::Context;

/// A tensor that an operation reads.
#[derive(Clone, Copy)]
pub(super) struct Slot<'a> {
    pub(super) op: usize,
    pub(super) place: (usize, Option<usize>),
    pub(super) view: &'a View,
    /// What it costs to say which.
    pub(super) bits: f64,
    /// Whether it stands for all that reads this weight: what is wrong with it is so wherever it is read.
    pub(super) is_of_weight: bool,
}

/// The tensors that an operation reads, those of lists included.
pub(super) fn slots<'a>(context: &Context<'a>, op: usize, bits: f64) -> Vec<Slot<'a>> {
    let slot = |place: (usize, Option<usize>), operand: &'a Operand| match operand {
        Operand::View(view) => {
            let bits = bits + if place.1.is_some() { 1.0 } else { 0.0 };
            Some(Slot { op, place, view, bits, is_of_weight: false }).filter(|_| view.elements() > 0)
        }
        _ => None,
    };
    let mut out = Vec::new();
    for (place, operand) in context.op(op).operands.iter().enumerate() {
        match operand {
            Operand::List(items) => {
                out.extend(items.iter().enumerate().filter_map(|(item, operand)| slot((place, Some(item)), operand)));
            }
            operand => out.extend(slot((place, None), operand)),
        }
    }
    out
}

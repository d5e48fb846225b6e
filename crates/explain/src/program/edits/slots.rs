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
    let mut out = Vec::new();
    for (place, operand) in context.op(op).operands.iter().enumerate() {
        match operand {
            Operand::View(view) => out.push(Slot { op, place: (place, None), view, bits, is_of_weight: false }),
            Operand::List(items) => out.extend(items.iter().enumerate().filter_map(|(item, operand)| match operand {
                Operand::View(view) => {
                    Some(Slot { op, place: (place, Some(item)), view, bits: bits + 1.0, is_of_weight: false })
                }
                _ => None,
            })),
            _ => {}
        }
    }
    out.retain(|slot| slot.view.elements() > 0);
    out
}

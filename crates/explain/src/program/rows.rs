//! In which order do rows stand that were sorted by their expert? PyTorch's sort keeps no order of equal numbers, and engines group tokens as they like: any
//! order of rows is right, where all of them are.

use std::collections::BTreeSet;

use firstdiff_compare::row_order;
use firstdiff_program::{Kind, Operand, Operation, Program};
use ndarray::ArrayD;

/// What stands in the order of a sort of whole numbers.
pub(crate) struct Sorted {
    /// The sorts.
    sorts: BTreeSet<usize>,
    /// All whose rows stand in that order, up to where they are put back.
    ops: BTreeSet<usize>,
}

impl Sorted {
    /// Whether an operation's rows stand in such an order.
    pub(crate) fn holds(&self, op: usize) -> bool {
        self.ops.contains(&op)
    }

    /// Whether an operation makes such an order.
    pub(crate) fn begins_at(&self, op: usize) -> bool {
        self.sorts.contains(&op)
    }
}

/// The operations whose rows stand in an order that a sort of whole numbers made.
pub(crate) fn sorted(program: &Program) -> Sorted {
    let base = |op: usize| program.ops()[op].base().trim_end_matches('_');
    let of_numbers =
        |op: &Operation| matches!(op.operands.first(), Some(Operand::View(x)) if x.dtype.kind() == Kind::Int);
    let sorts = |&op: &usize| matches!(base(op), "sort" | "argsort") && of_numbers(&program.ops()[op]);
    let sorts: BTreeSet<usize> = (0..program.ops().len()).filter(sorts).collect();
    let mut open: Vec<usize> = sorts.iter().copied().collect();
    let mut found = BTreeSet::new();
    while let Some(op) = open.pop() {
        let puts_back = matches!(base(op), "index_add" | "index_put" | "index_copy" | "scatter" | "scatter_add");
        if !puts_back && found.insert(op) {
            open.extend(program.readers(op));
        }
    }
    Sorted { sorts, ops: found }
}

/// For each row that is due, which of the candidate's it is; `None` where they are no such rows.
pub(crate) fn order(own: &ArrayD<f64>, due: &ArrayD<f64>) -> Option<Vec<usize>> {
    let width = own.len().checked_div(*own.shape().first()?)?;
    (own.shape() == due.shape()).then(|| row_order(own.as_slice()?, due.as_slice()?, width))?
}

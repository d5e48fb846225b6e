//! Defines the operands of an operation.

use crate::value::dtype::DType;
use crate::value::scalar::Scalar;
use crate::value::view::View;

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A view of a buffer.
    View(View),
    /// A scalar.
    Scalar(Scalar),
    /// An element type.
    DType(DType),
    /// Python's None.
    None,
    /// A list of operands.
    List(Vec<Operand>),
}

impl Operand {
    /// All views in it.
    pub fn views(&self) -> Vec<&View> {
        match self {
            Operand::View(view) => vec![view],
            Operand::List(list) => list.iter().flat_map(Operand::views).collect(),
            _ => Vec::new(),
        }
    }

    /// The same, mutable.
    pub(crate) fn views_mut(&mut self) -> Vec<&mut View> {
        match self {
            Operand::View(view) => vec![view],
            Operand::List(list) => list.iter_mut().flat_map(Operand::views_mut).collect(),
            _ => Vec::new(),
        }
    }

    /// The operand without its views, for comparison.
    pub(crate) fn without_views(&self) -> Operand {
        match self {
            Operand::View(view) => Operand::DType(view.dtype),
            Operand::List(list) => Operand::List(list.iter().map(Operand::without_views).collect()),
            other => other.clone(),
        }
    }
}

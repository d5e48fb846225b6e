//! Defines the operands of an operation.

use std::fmt;

use crate::value::dtype::DType;
use crate::value::view::View;

/// A Python number, boolean or string.
#[derive(Clone, Debug, PartialEq)]
pub enum Scalar {
    /// A whole number.
    Int(i64),
    /// A float.
    Float(f64),
    /// True or False.
    Bool(bool),
    /// A text.
    Text(String),
}

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

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Int(x) => write!(f, "{x}"),
            Scalar::Float(x) => write!(f, "{x:?}"),
            Scalar::Bool(x) => write!(f, "{x}"),
            Scalar::Text(x) => write!(f, "{x:?}"),
        }
    }
}

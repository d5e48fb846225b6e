//! Defines the numbers, booleans and texts of a program.

use std::fmt;

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

//! Reports why an operation refuses its inputs: shapes that do not fit, or token ids outside the table.

/// Why an operation refuses its inputs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// Shapes that do not fit each other.
    #[error("{op}: {left:?} does not fit {right:?}; {rule}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// Shape of the first operand.
        left: Vec<usize>,
        /// Shape of the other operand.
        right: Vec<usize>,
        /// The rule that is violated.
        rule: &'static str,
    },
    /// A token without a row in the table.
    #[error("embedding: token {token} at position {position} is outside the vocabulary of {vocab}")]
    Token {
        /// The token's id.
        token: u32,
        /// Its position.
        position: usize,
        /// Rows of the table.
        vocab: usize,
    },
}

/// `Ok` when `fits`, else the error with both shapes.
pub(crate) fn ensure(
    fits: bool,
    op: &'static str,
    left: &[usize],
    right: &[usize],
    rule: &'static str,
) -> Result<(), OpError> {
    if fits { Ok(()) } else { Err(OpError::Shape { op, left: left.into(), right: right.into(), rule }) }
}

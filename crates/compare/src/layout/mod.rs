//! How does one tensor lie against another? Shapes, rows, orders of axes, padding.

pub(crate) mod candidates;
pub(crate) mod convention;
pub(crate) mod mismatch;
pub(crate) mod pair;
pub(crate) mod rotation;
pub(crate) mod rows;
pub(crate) mod shapes;
pub(crate) mod strided;

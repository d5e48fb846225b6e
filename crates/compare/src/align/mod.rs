//! Aligns the token positions of two runs.

pub(crate) mod chunks;
pub(crate) mod extents;
mod open;

//! Which token positions of two runs stand against each other?

pub(crate) mod chunks;
pub(crate) mod extents;
mod open;

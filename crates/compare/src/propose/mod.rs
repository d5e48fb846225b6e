//! Proposes, by content, which tap a tensor of unknown name is.

pub(crate) mod fingerprints;
pub(crate) mod guess;
pub(crate) mod names;

//! Which tensor of unknown name is which tap? Proposed by content.

pub(crate) mod fingerprints;
pub(crate) mod guess;
pub(crate) mod names;

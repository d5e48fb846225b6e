//! All that replay, search and the comparison of weights allow, each number with where it comes from. What compare allows is in its own.

pub(crate) mod laws;
pub(crate) mod layouts;
pub(crate) mod mistakes;
pub(crate) mod replay;
pub(crate) mod search;
pub(crate) mod weights;

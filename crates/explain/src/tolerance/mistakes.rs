//! Holds when a parameter that was read off the numbers is another than the right one, and when it is proved by them.

/// An embedding's row is that of a token where each element is within this share of it, or within the second of 0.
pub(crate) const TOKEN_ROW: f64 = 1e-2;
pub(crate) const TOKEN_ROW_ZERO: f64 = 1e-9;

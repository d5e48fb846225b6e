//! When is a parameter that was read off the numbers another than the right one, and when is it proved by them?

/// A factor or a parameter this near to the right one, as a share of it, is the right one.
pub(crate) const SAME_PARAMETER: f64 = 1e-9;
/// A factor this near to a plain number, as a share of it, is that number; and a fill of masked scores.
pub(crate) const PLAIN_FACTOR: f64 = 1e-6;
pub(crate) const PLAIN_FILL: f64 = 1e-3;
/// An embedding's row is that of a token where each element is within this share of it, or within the second of 0.
pub(crate) const TOKEN_ROW: f64 = 1e-2;
pub(crate) const TOKEN_ROW_ZERO: f64 = 1e-9;
/// A fill of masked scores nearer to 0 than this is none.
pub(crate) const NO_FILL: f64 = 1e-6;
/// A base of RoPE this near to another, as a share of it, is the same one.
pub(crate) const SAME_BASE: f64 = 1e-6;
/// Frequencies are divided by a number that is this near to another.
pub(crate) const SAME_DIVISOR: f64 = 1e-4;
/// What a number of blocks that was divided and multiplied again may be short of a whole one.
pub(crate) const WHOLE_BLOCK: f64 = 1e-6;

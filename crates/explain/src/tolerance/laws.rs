//! With how much rounding laws are measured.

/// NMSE of rounding at least: no number of a law is known better than f32 lets it be.
pub(crate) const LEAST_NOISE: f64 = 1e-13;
/// NMSE of rounding at most: what is allowed more tells no number.
pub(crate) const MOST_NOISE: f64 = 1e-3;

//! With how much rounding laws are measured.

/// How far a law's number may be from the model's own to be called the same.
pub(crate) const SAME_NUMBER: f64 = 1e-3;
/// NMSE of rounding at least: no number of a law is known better than f32 lets it be.
pub(crate) const LEAST_NOISE: f64 = 1e-13;
/// NMSE of rounding at most: what is allowed more tells no number.
pub(crate) const MOST_NOISE: f64 = 1e-3;
/// How many times what rounding leaves a cause with a tuned number must leave that a law is looked for, and how many times less that law must leave.
pub(crate) const ROOM_FOR_A_LAW: f64 = 10.0;
/// NMSE by which an operation that is a product is told from another.
pub(crate) const AS_LINEAR: f64 = 1e-18;
/// NMSE that a law may leave of values that were rounded to 16 bits at each operation, however exactly the replay gives the right ones: one
/// of bf16 leaves 2.5e-6, PyTorch's norms have two (4.4e-6 measured), rotations and gates have three; f16 leaves 64 times less.
pub(crate) const ROUNDED_BF16: f64 = 1e-5;
/// The same in f16.
pub(crate) const ROUNDED_F16: f64 = 1.6e-7;

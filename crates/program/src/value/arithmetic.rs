//! Defines the arithmetic in which a program is evaluated.

use firstdiff_trace::Cache;

/// The precision in which buffers hold values. Every kernel computes in f64; f16 and bf16 buffers hold values of those types, except with `Wide`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// f32 buffers hold f64, but values that would overflow f32 are infinite.
    F64,
    /// Buffers of all float types hold f64: the exact value of a law before rounding.
    Wide,
    /// Values stored to an f32 buffer are rounded to f32.
    F32,
    /// The same, and ggml's products round activations as the type of the stored matrix requires: to f16, bf16, or blocks of 8 bits.
    Ggml {
        /// The type of the K/V cache: queries and probabilities are rounded to it before they are multiplied with keys and values.
        cache: Cache,
    },
    /// Weights and activations are rounded to 16 bits; positions, masks, and sums and means of rows to f32.
    Half(Half),
}

/// A 16-bit float type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// IEEE 754 half.
    F16,
    /// bfloat16.
    BF16,
}

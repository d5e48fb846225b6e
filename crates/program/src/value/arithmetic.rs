//! In which arithmetic are values kept?

/// In which floats values are kept. Every kernel computes in f64; f16 and bf16 buffers hold what those types can, but where all is wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// f32 buffers hold f64, but what would overflow f32 is infinite.
    F64,
    /// Buffers of any float type hold f64: what a law says is due before it is rounded.
    Wide,
    /// What is stored to an f32 buffer is rounded to f32.
    F32,
    /// The same, and ggml's products round activations as the type of the stored matrix asks: to f16, bf16, or blocks of 8 bits.
    Ggml,
    /// Weights and what is computed from the model's input are rounded to 16 bits; positions, masks, and sums and means of rows to f32.
    Half(Half),
}

/// A type of 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// IEEE 754 half.
    F16,
    /// bfloat16.
    BF16,
}

//! Computes the activations of a feed-forward layer, and the gated product (SwiGLU, GeGLU).

use ndarray::{ArrayD, ArrayViewD};

use crate::error::{OpError, ensure};
use crate::kernel::float::Float;
use crate::kernel::pairwise;
use crate::softmax::EXPONENTIAL;

/// A function of one number in a feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// [`silu`].
    Silu,
    /// [`gelu_erf`].
    GeluErf,
    /// [`gelu_tanh`].
    GeluTanh,
    /// [`relu`].
    Relu,
}

impl Activation {
    /// Computes the function at x.
    pub fn of<F: Float>(self, x: F) -> F {
        match self {
            Activation::Silu => silu(x),
            Activation::GeluErf => gelu_erf(x),
            Activation::GeluTanh => gelu_tanh(x),
            Activation::Relu => relu(x),
        }
    }
}

/// x / (1 + e^-x). Source: PyTorch, torch.nn.functional.silu.
pub fn silu<F: Float>(x: F) -> F {
    x / (F::one() + (-x).exp())
}

/// x · (1 + erf(x/√2)) / 2. Source: Hendrycks and Gimpel, 2016; PyTorch, torch.nn.functional.gelu.
pub fn gelu_erf<F: Float>(x: F) -> F {
    let half = F::from_f64(0.5);
    x * half * (F::one() + (x * F::from_f64(std::f64::consts::FRAC_1_SQRT_2)).erf())
}

/// x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))). Source: PyTorch, torch.nn.functional.gelu with approximate='tanh'.
pub fn gelu_tanh<F: Float>(x: F) -> F {
    let inner = F::from_f64((2.0 / std::f64::consts::PI).sqrt()) * (x + F::from_f64(0.044_715) * x * x * x);
    F::from_f64(0.5) * x * (F::one() + inner.tanh())
}

/// max(x, 0); NaN stays NaN. Source: PyTorch, torch.nn.functional.relu.
pub fn relu<F: Float>(x: F) -> F {
    if x < F::zero() { F::zero() } else { x }
}

/// activation(gate) · up, element by element; of any shape, usually \[T,F\].
///
/// Source: Shazeer, GLU Variants Improve Transformer, 2020.
///
/// # Errors
/// When the shapes differ.
pub fn gated<F: Float>(
    gate: ArrayViewD<'_, F>,
    up: ArrayViewD<'_, F>,
    activation: Activation,
) -> Result<ArrayD<F>, OpError> {
    ensure(gate.shape() == up.shape(), "gated", gate.shape(), up.shape(), "gate and up have one shape")?;
    Ok(pairwise(gate, up, EXPONENTIAL, |gate, up| activation.of(gate) * up))
}

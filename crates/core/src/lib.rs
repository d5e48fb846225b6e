//! Implements transformer operations as pure functions over ndarray views, in f32 and f64.
//!
//! One file an operation: the formula, its source, the shapes, and the order of sums. Nothing here depends on a model, a name or a file. Each function
//! allocates its result and fails only on shapes.
//!
//! Shapes are in one alphabet: T tokens, S keys, D hidden, H heads, K key/value heads, d head dim, F feed-forward, V vocabulary.
//!
//! Sums have a fixed order: see [`dot`]. Each row of a result depends only on its own row of the input, bit for bit: neither the number of rows nor of
//! threads changes it.
//!
//! A norm and a projection of one token:
//!
//! ```
//! use ndarray::array;
//!
//! let x = array![[3.0f64, 4.0]];
//! let normed = firstdiff_core::rms_norm(x.view(), array![1.0, 1.0].view(), 0.0)?;
//! let q = firstdiff_core::linear(normed.view(), array![[1.0, 1.0]].view(), None)?;
//! assert!((q[[0, 0]] - 7.0 / 12.5f64.sqrt()).abs() < 1e-12);
//! # Ok::<(), firstdiff_core::OpError>(())
//! ```

mod activation;
mod attention;
mod embedding;
mod error;
mod kernel;
mod linear;
mod mask;
mod norm;
mod quantise;
mod residual;
mod rope;
mod scaling;
mod softmax;

pub use activation::{Activation, gated, gelu_erf, gelu_tanh, relu, silu};
pub use attention::{context, qk, scores, softcap};
pub use embedding::embedding;
pub use error::OpError;
pub use kernel::dot::{dot, sum, tree_sum};
pub use kernel::float::Float;
pub use kernel::packed::Packed;
#[doc(hidden)]
pub use kernel::panel::{balanced_ranges, interleave_rows};
#[doc(hidden)]
pub use kernel::peak::multiply_adds;
pub use linear::{Rows, head, linear, linear_rows};
pub use mask::Mask;
pub use norm::{layer_norm, rms_norm};
pub use quantise::{ActivationType, Quantised, QuantisedBlocks, quantise, quantise_to_ints};
pub use residual::residual;
pub use rope::{RopePairing, rope};
pub use scaling::{RopeScaling, rope_inv_freq};
pub use softmax::softmax;

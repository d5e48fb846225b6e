//! What is wrong, and where does it come from? Each operation of a recorded run judged by itself ([`replay`](mod@replay)), and weights
//! against weights ([`weights`]).
//!
//! [`replay`](mod@replay) runs every step of a model's Plan on the candidate's own recorded inputs: an error upstream cannot hide one here, so one
//! run names every wrong operation. [`weights`] lays the tensors of two files against each other, in whatever format they are.

pub mod explain;
mod laws;
mod layouts;
mod minimum;
pub mod mistakes;
pub mod program;
pub mod replay;
mod search;
mod tolerance;
pub mod weights;

pub use explain::misrecorded::words as misrecorded;
pub use explain::quantised::OtherArithmetic;
pub use laws::Measured;
pub use mistakes::rounding::Rounding;
pub use replay::residual::Fit;

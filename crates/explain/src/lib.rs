//! What is wrong, and where does it come from? Each operation of a recorded run judged by itself ([`replay`](mod@replay)), and weights
//! against weights ([`weights`]).
//!
//! [`replay`](mod@replay) runs every step of a model's Plan on the candidate's own recorded inputs: an error upstream cannot hide one here, so one
//! run names every wrong operation. [`weights`] lays the tensors of two files against each other, in whatever format they are.

mod doubts;
mod edges;
pub mod explain;
pub mod mistakes;
pub mod replay;
mod replayed;
pub mod weights;

mod candidates;
mod finding;
mod findings;
mod imitate;
mod invisible;
mod kept;
mod layout;
mod local;
mod misrecorded;
mod onset;
mod proof;
mod quantised;
mod reason;
mod recorded;
mod residual;
mod right;
mod rounding;
mod search;
mod together;
mod tune;
mod unmasked;
mod unpack;
mod weigh;

pub use misrecorded::words as misrecorded;
pub use quantised::OtherArithmetic;
pub use residual::Fit;
pub use rounding::Rounding;

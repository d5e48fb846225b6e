//! Lists the mistakes that people make: their names, what they are, and how they are mended. A group of operations is a file. Nothing here computes:
//! `program::forms` carries them out.

pub(crate) mod attention;
pub(crate) mod by_law;
mod catalogue;
pub(crate) mod embedding;
pub(crate) mod feed_forward;
pub(crate) mod head;
pub(crate) mod linear;
mod mistake;
pub(crate) mod norm;
mod param;
pub(crate) mod precision;
pub(crate) mod recorded;
pub(crate) mod residual;
pub(crate) mod rope;
pub(crate) mod rounding;
pub(crate) mod scores;
pub(crate) mod stored;
pub(crate) mod unpack;

use serde_json::Value;

pub use catalogue::{advice, catalogue, find, ids, what};
pub use mistake::Mistake;
pub(crate) use mistake::{BeginsLater, StandsBehind};
pub use param::{Param, Values};

/// Values of a mistake's parameters, by name.
pub type Params = Vec<(&'static str, Value)>;

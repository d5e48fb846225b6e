//! Explains a replay: for every operation that it finds wrong, the mistakes that reproduce the candidate's numbers.

mod effort;
pub(crate) mod finding;
pub(crate) mod findings;
pub(crate) mod misrecorded;
pub(crate) mod moved_alike;
pub(crate) mod quantised;

use std::time::Duration;

pub use crate::explain::effort::{Effort, Pass};
pub use crate::explain::finding::{Cause, Counted, Finding, Match, Remainder, other_tokens};
pub use crate::replay::Options;
use crate::replay::Replay;

/// An explained replay.
#[derive(Debug)]
pub struct Explanation {
    /// Where operations are wrong.
    pub replay: Replay,
    /// Why, in the order of the Plan.
    pub findings: Vec<Finding>,
    /// Ids of mistakes that what was recorded could not have shown, though their operation is in the model.
    pub not_testable: Vec<String>,
}

/// Told what is looked at, what is tried there, and how many of how many.
pub type Progress<'p> = &'p (dyn Fn(&str, usize, usize) + Sync);

/// What a quick search may take in all, once replayed.
pub(crate) const A_MOMENT: Duration = Duration::from_secs(5);

//! Defines what a comparison found, as data: JSON is these types serialised, and every other writer reads the same.

mod compare;
mod next;
mod not_checked;
mod shared;
mod when;
mod why;

use firstdiff_compare::Verdict as Found;
use serde::Serialize;

pub use crate::cause::{
    Bits, CauseCertainty, CauseOf, Diagnosis, IN_PROBABILITIES, MeasuredLaw, OtherArithmetic, Params, ProvedOn,
    Residual, Support,
};
pub use compare::{
    Alignment, Anatomy, Cell, Chunks, Compare, Factor, FirstDivergence, Phase, Phases, Rank, Region, RequiredUnchecked,
    SimpleChange, UnrecordedLayersReport,
};
pub use next::next_step;
pub use not_checked::{not_checked, reasons, unmapped_hint};
pub use shared::{CoarserProfileReport, Counts, JudgedIn, Measures, NoiseRun, Provenance, Ratios, TapEntry};
pub use why::{StageEntry, Why};

/// The version of the JSON.
pub const SCHEMA: u32 = 2;

/// The first fields of every command's report.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Header {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The command.
    pub command: &'static str,
}

impl Header {
    /// The header of a command's report.
    pub fn new(command: &'static str) -> Header {
        Header { schema: SCHEMA, command }
    }
}

/// What is concluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All that was compared agrees, and that was enough to decide.
    Parity,
    /// Something differs.
    Diverged,
    /// Nothing can be concluded; the reason is given beside it.
    Incomparable,
}

/// A verdict, and why nothing can be concluded, where that is so.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Conclusion {
    /// What is concluded.
    pub verdict: Verdict,
    /// The reason for `incomparable`.
    pub reason: Option<String>,
}

impl Conclusion {
    /// The conclusion for a comparison's verdict.
    pub fn new(found: &Found) -> Conclusion {
        let (verdict, reason) = match found {
            Found::Parity => (Verdict::Parity, None),
            Found::Diverged => (Verdict::Diverged, None),
            Found::Incomparable(why) => (Verdict::Incomparable, Some(why.clone())),
        };
        Conclusion { verdict, reason }
    }
}

/// Names as text.
pub fn names<T: ToString>(list: impl IntoIterator<Item = T>) -> Vec<String> {
    list.into_iter().map(|name| name.to_string()).collect()
}

//! What did a command find? For each command one type that says all of it, as data: JSON is that type serialised, and every other writer reads the same.
//!
//! [`Compare`], [`Replay`], [`Explain`], [`Weights`], [`Inspect`], [`Bisect`], [`Gate`], [`Align`], [`Show`], [`Dump`] and [`Import`]. docs/schema describes
//! their JSON. Numbers that are not finite, or were not measured, are null there; so the types are written and not read back.

mod align;
mod bisect;
mod cause;
mod compare;
mod explain;
mod gate;
mod inspect;
mod next;
mod not_checked;
mod outcome;
mod replay;
mod shared;
mod show;
mod weights;
mod when;
mod why;
mod written;

use firstdiff_compare::Verdict as Found;
use serde::Serialize;

pub use align::{Aliased, Align, Named, NextTap, Proposed};
pub use bisect::{Bisect, Judgement, KeptRuns, NoAnswer, Run, SeenWhole, Unrepeated};
pub use cause::{CauseOf, Diagnosis, OtherArithmetic, Params, Residual};
pub use compare::{
    Alignment, Anatomy, Cell, Chunks, Compare, Explains, Factor, FirstDivergence, Missing, Phase, Phases, Rank, Region,
    RequiredUnchecked,
};
pub(crate) use explain::where_of;
pub use explain::{Asked, CompareAndExplain, Explain, Explained, OfReference, Tried};
pub use gate::{Gate, Worse};
pub use inspect::{Inspect, Kinds, Seen};
pub use replay::{Architecture, Fit, Judged, Replay, ReplayedTap, WrongOperation};
pub use shared::{Counts, JudgedIn, Loosened, Measures, NoiseRun, Provenance, Ratios, TapEntry};
pub use show::{Map, NoHead, Show, Shown};
pub use weights::{Difference, NotChecked, Tensor, TensorCounts, Unlike, WeightFile, Weights};
pub use why::{StageEntry, Why};
pub use written::{Dump, Import};
pub(crate) use {
    next::next_step,
    not_checked::{not_checked, reasons, unmapped_hint},
    outcome::{Failure, Outcome},
};

/// The version of the JSON.
pub const SCHEMA: u32 = 2;

/// What every command's report begins with.
#[derive(Clone, Debug, Serialize)]
pub struct Header {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The command.
    pub command: &'static str,
}

impl Header {
    pub(crate) fn of(command: &'static str) -> Header {
        Header { schema: SCHEMA, command }
    }
}

/// What is concluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All that was compared agrees, and it was enough to tell.
    Parity,
    /// Something differs.
    Diverged,
    /// Nothing can be concluded; the reason stands beside it.
    Incomparable,
}

/// A verdict, and why nothing can be concluded where that is so.
#[derive(Clone, Debug, Serialize)]
pub struct Conclusion {
    /// What is concluded.
    pub verdict: Verdict,
    /// Of `incomparable` the reason.
    pub reason: Option<String>,
}

impl Conclusion {
    pub(crate) fn of(found: &Found) -> Conclusion {
        let (verdict, reason) = match found {
            Found::Parity => (Verdict::Parity, None),
            Found::Diverged => (Verdict::Diverged, None),
            Found::Incomparable(why) => (Verdict::Incomparable, Some(why.clone())),
        };
        Conclusion { verdict, reason }
    }
}

/// How sure a cause is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Match {
    /// The imitated mistake leaves no more than rounding.
    Reproduced,
    /// Of weights: it is seen as it is, and needs no imitation.
    Seen,
    /// No mistake has it, but a measured law gives all of its numbers.
    Measured,
    /// Something takes part of the error away, but is not it.
    Closest,
    /// Nothing in the catalogue does.
    #[default]
    Unknown,
}

impl From<firstdiff_explain::explain::Match> for Match {
    fn from(found: firstdiff_explain::explain::Match) -> Match {
        match found {
            firstdiff_explain::explain::Match::Reproduced => Match::Reproduced,
            firstdiff_explain::explain::Match::Measured => Match::Measured,
            firstdiff_explain::explain::Match::Closest => Match::Closest,
            firstdiff_explain::explain::Match::Unknown => Match::Unknown,
        }
    }
}

/// Names as text.
pub(crate) fn names<T: ToString>(list: impl IntoIterator<Item = T>) -> Vec<String> {
    list.into_iter().map(|name| name.to_string()).collect()
}

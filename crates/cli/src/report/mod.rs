//! Defines the reports of all commands as data: one type each. JSON is that type serialised, and every other writer reads the same.
//!
//! [`Compare`], [`Replay`], [`Explain`], [`Weights`], [`Inspect`], [`Bisect`], [`Gate`], [`Align`], [`Show`], [`Dump`] and [`Import`]. docs/reference/schema
//! describes their JSON. Numbers that are not finite, or were not measured, are null there; so the types are written but never read back.

mod align;
mod bisect;
mod explain;
mod gate;
mod inspect;
mod outcome;
mod replay;
mod show;
mod weights;
mod written;

pub use align::Align;
pub use bisect::{Bisect, BisectComparison, EngineRunReport, KeptRuns, NoAnswer, SeenWhole, Unrepeated};
pub(crate) use explain::where_of;
pub use explain::{CompareAndExplain, EngineQueries, Explain, Explained, OfReference, Tried};
pub use firstdiff_parity::report::*;
pub use gate::{Gate, RegressionReport};
pub use inspect::{FindingCounts, Inspect, InspectFindingReport};
pub(crate) use outcome::{CiFailure, CiOutcome};
pub use replay::{Architecture, Fit, Replay, ReplayInputs, ReplayedTap, WrongOperation};
pub use show::{Map, NoHead, Show, TensorSummary};
pub use weights::{Difference, NotChecked, Tensor, TensorCounts, UnrelatedMatrices, WeightFile, Weights};
pub use written::{Dump, Import};

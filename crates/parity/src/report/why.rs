//! Defines the log of one tap: what each stage of the comparison decided about it.

use firstdiff_compare::LogEntry;
use serde::Serialize;

use firstdiff_compare::Status;

/// The log of one tap.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Why {
    /// Its name.
    pub tap: String,
    /// Its step.
    pub step: u32,
    /// Its status at the end.
    pub status: Status,
    /// What each stage decided, in order.
    pub stages: Vec<StageEntry>,
    /// The nearest compared taps that it depends on.
    pub inputs: Vec<String>,
}

/// What one stage decided.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "stage"))]
pub struct StageEntry {
    /// The stage.
    pub stage: &'static str,
    /// The state of the tap after it.
    pub status: &'static str,
    /// Why.
    pub reason: Option<String>,
    /// The NMSE it was judged by.
    pub nmse: Option<f64>,
    /// The NMSE that was allowed.
    pub allowed_nmse: Option<f64>,
}

impl StageEntry {
    /// From an entry of the log.
    pub fn new(entry: &LogEntry) -> StageEntry {
        StageEntry {
            stage: entry.stage.name(),
            status: entry.to.name(),
            reason: entry.reason.as_ref().map(ToString::to_string),
            nmse: entry.nmse,
            allowed_nmse: entry.allowed,
        }
    }
}

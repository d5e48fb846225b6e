//! Defines the report of `bisect`: where an engine diverges that was asked for a few taps at a time.

use serde::Serialize;

use crate::report::{Compare, Conclusion, Header, TapEntry};

/// The report of `firstdiff bisect`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bisect {
    /// The comparison of all that was seen, or why there is none.
    #[serde(flatten)]
    pub judgement: BisectComparison,
    /// Where two runs of one command were not the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nondeterministic: Option<Unrepeated>,
    /// The engine's command line.
    pub engine: String,
    /// The folder of the runs.
    pub work: String,
    /// Every run.
    pub runs: Vec<EngineRunReport>,
    /// The runs of an earlier start.
    pub kept_runs: Option<KeptRuns>,
    /// Bytes that the engine wrote.
    pub bytes: u64,
    /// Bytes of a full dump of the same run.
    pub full_bytes: u64,
    /// The taps that were seen at all of their positions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all_positions: Option<Vec<SeenWhole>>,
    /// What was checked up to the answer, in words.
    pub looked_at: Vec<String>,
    /// The taps before the answer in its layer that were not checked.
    pub not_asked: Option<String>,
}

/// The comparison of all that was seen, or why there is none.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum BisectComparison {
    /// What was seen was compared.
    Answer(Box<Compare>),
    /// A run failed, or two were not the same.
    NoAnswer(NoAnswer),
}

/// The report where nothing was compared.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NoAnswer {
    /// Schema and command.
    #[serde(flatten)]
    pub header: Header,
    /// That nothing can be concluded, and why.
    #[serde(flatten)]
    pub conclusion: Conclusion,
    /// Always null.
    pub first_divergence: (),
    /// Always empty.
    #[cfg_attr(feature = "schema", schemars(extend("maxItems" = 0)))]
    pub taps: Vec<TapEntry>,
    /// Always empty.
    #[cfg_attr(feature = "schema", schemars(extend("maxItems" = 0)))]
    pub warnings: Vec<String>,
}

/// A tap that two runs of one command wrote differently.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Unrepeated {
    /// Its name.
    pub tap: String,
    /// Its step.
    pub step: u32,
    /// NMSE between the two.
    pub nmse: f64,
    /// The largest difference between the two.
    pub max_abs_diff: f64,
}

/// One run of the engine.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "run"))]
pub struct EngineRunReport {
    /// The taps it was asked for.
    pub taps: String,
    /// The steps.
    pub steps: String,
    /// The token positions.
    pub rows: String,
    /// Its purpose.
    #[serde(rename = "for")]
    pub purpose: &'static str,
    /// Whether an earlier start made it.
    pub kept: bool,
    /// How long it took.
    pub seconds: f64,
    /// Bytes that it wrote.
    pub bytes: u64,
    /// The taps that it wrote.
    pub written: Vec<String>,
    /// What it shows.
    pub says: String,
}

/// The runs of an earlier start.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeptRuns {
    /// How many.
    pub runs: usize,
    /// When the first was made.
    pub from: String,
    /// When the last was made.
    pub to: String,
    /// Whether they were used again.
    pub used: bool,
    /// The first tap at which the last of them, made again, differs.
    pub differs_at: Option<String>,
}

/// A tap that was seen at all of its positions.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SeenWhole {
    /// Its name.
    pub tap: String,
    /// Its step.
    pub step: u32,
}

impl BisectComparison {
    pub(crate) fn none(reason: String) -> BisectComparison {
        BisectComparison::NoAnswer(NoAnswer {
            header: Header::new("bisect"),
            conclusion: Conclusion::new(&firstdiff_compare::Verdict::Incomparable(reason)),
            first_divergence: (),
            taps: Vec::new(),
            warnings: Vec::new(),
        })
    }
}

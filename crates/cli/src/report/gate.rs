//! Defines the report of `gate`: the taps that are worse than their baseline.

use firstdiff_compare::Verdict;
use serde::Serialize;

use crate::baseline::{Accepted, Regression};
use crate::report::{Compare, RequiredUnchecked};
use crate::session::Comparison;

/// The report of `firstdiff gate`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gate {
    /// The comparison.
    #[serde(flatten)]
    pub compare: Compare,
    /// Whether no tap is worse than its baseline.
    pub passed: bool,
    /// Whether the baseline is of an engine that was not at parity.
    pub held_to_own_baseline: bool,
    /// Who accepted the differences, and why, where such a baseline is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted: Option<Accepted>,
    /// The taps that are worse, or so much better that the baseline allows more than is needed.
    pub regressions: Vec<RegressionReport>,
}

/// A tap that is worse than its baseline, or no longer needs to be accepted.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "regression"))]
pub struct RegressionReport {
    /// Its name.
    pub tap: String,
    /// Its step.
    pub step: u32,
    /// NMSE by the baseline.
    pub was: Option<f64>,
    /// NMSE now.
    pub now: Option<f64>,
    /// What is wrong.
    pub reason: String,
    /// Whether it is better than what the baseline accepts.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub outgrown: bool,
}

impl Gate {
    /// `accepted`: for a baseline of an engine that was not at parity, and still is not; `required_unchecked`: taps that had to be compared and were not.
    pub fn new(
        judged: &Comparison,
        regressions: &[Regression],
        accepted: Option<&Accepted>,
        required_unchecked: Vec<RequiredUnchecked>,
    ) -> Gate {
        let is_accepted = accepted.is_some();
        let as_good =
            judged.report.verdict == Verdict::Parity || is_accepted && judged.report.verdict == Verdict::Diverged;
        Gate {
            passed: regressions.is_empty() && required_unchecked.is_empty() && as_good,
            compare: Compare { required_unchecked, ..Compare::new("gate", judged) },
            held_to_own_baseline: is_accepted,
            accepted: accepted.cloned(),
            regressions: regressions.iter().map(RegressionReport::new).collect(),
        }
    }
}

impl RegressionReport {
    fn new(worse: &Regression) -> RegressionReport {
        RegressionReport {
            tap: worse.place.tap.to_string(),
            step: worse.place.step,
            was: worse.baseline_nmse,
            now: worse.now,
            reason: worse.reason.clone(),
            outgrown: worse.outgrown,
        }
    }
}

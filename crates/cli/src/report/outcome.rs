//! Lists what makes a job fail, for the formats of CI systems: taps that differ, or were not compared where they had to be.

use firstdiff_compare::{Report, Status};

use crate::report::RequiredUnchecked;

/// The outcome that CI shows.
pub(crate) struct CiOutcome<'a> {
    pub(crate) report: &'a Report,
    /// The conclusion, in a word or two.
    pub(crate) concluded: &'static str,
    pub(crate) failures: Vec<CiFailure>,
    /// Whether a baseline allows differences, so that only those among the failures fail.
    pub(crate) held: bool,
}

/// Something that makes a job fail.
pub(crate) struct CiFailure {
    /// The tap, and where in the run it is.
    pub(crate) place: String,
    /// The kind: `diverged`, `regression`, `outgrown`, `unchecked`.
    pub(crate) kind: &'static str,
    /// What is wrong.
    pub(crate) message: String,
}

impl CiFailure {
    /// The failures of a comparison: taps that differ though no compared input does, and taps that had to be compared.
    pub(crate) fn from_report(report: &Report, unmet: &[RequiredUnchecked]) -> Vec<CiFailure> {
        let diverged = report.taps.iter().filter(|tap| tap.status == Status::Diverged).map(|tap| CiFailure {
            place: report.name(tap.place),
            kind: "diverged",
            message: format!("{}: {}", tap.op, tap.why().unwrap_or_default()),
        });
        let unmet = unmet.iter().map(|tap| CiFailure {
            place: tap.place.clone(),
            kind: "unchecked",
            message: format!("required, but unchecked: {}", tap.reason.as_deref().unwrap_or_default()),
        });
        diverged.chain(unmet).collect()
    }
}

//! What makes a job fail? Taps that differ or were not compared where they had to be, for the writers that CI systems read.

use firstdiff_compare::{Report, Status};

use crate::report::RequiredUnchecked;

/// What CI is to show.
pub(crate) struct Outcome<'a> {
    pub(crate) report: &'a Report,
    /// What is concluded, in a word or two.
    pub(crate) concluded: &'static str,
    pub(crate) failures: Vec<Failure>,
    /// Whether what differs is allowed by a baseline, and fails only where it is among the failures.
    pub(crate) held: bool,
}

/// Something that makes a job fail.
pub(crate) struct Failure {
    /// The tap, and where in the run it is.
    pub(crate) place: String,
    /// The kind: `diverged`, `regression`, `outgrown`, `unchecked`.
    pub(crate) kind: &'static str,
    /// What is wrong.
    pub(crate) message: String,
}

impl Failure {
    /// Of taps that differ though no compared input does, and those that had to be compared.
    pub(crate) fn of(report: &Report, unmet: &[RequiredUnchecked]) -> Vec<Failure> {
        let diverged = report.taps.iter().filter(|tap| tap.status == Status::Diverged).map(|tap| Failure {
            place: report.name(tap.place),
            kind: "diverged",
            message: format!("{}: {}", tap.op, tap.why().unwrap_or_default()),
        });
        let unmet = unmet.iter().map(|tap| Failure {
            place: tap.place.clone(),
            kind: "unchecked",
            message: format!("required, but unchecked: {}", tap.reason.as_deref().unwrap_or_default()),
        });
        diverged.chain(unmet).collect()
    }
}

//! How is an outcome written for what reads JUnit's form? Every tap is a test case: one that was not checked is skipped, never passed.

use anyhow::Result;
use askama::Template;
use firstdiff_compare::{Status, TapReport};

use crate::commands::ci::Outcome;
use crate::words::safe;

#[derive(Template)]
#[template(path = "junit.xml")]
struct Suite {
    cases: Vec<Case>,
    failures: usize,
    skipped: usize,
}

struct Case {
    step: String,
    name: String,
    ended: Ended,
}

enum Ended {
    Passed,
    Failed { kind: &'static str, message: String },
    Skipped { message: String },
}

/// The file's text.
///
/// # Errors
/// When the template cannot be filled.
pub(crate) fn text(Outcome { report, failures, held }: &Outcome<'_>) -> Result<String> {
    let case = |tap: &TapReport| {
        let place = report.name(tap.place);
        let failed = failures.iter().find(|failure| failure.place == place);
        let why = || safe(&tap.why().unwrap_or_default());
        let ended = match (failed, tap.status) {
            (Some(failure), _) => Ended::Failed { kind: failure.kind, message: safe(&failure.message) },
            (None, status) if *held && status.differs() => {
                Ended::Skipped { message: format!("differs, as its baseline allows: {}", why()) }
            }
            (None, Status::Diverged) => Ended::Failed { kind: "diverged", message: why() },
            (None, Status::Downstream) => Ended::Failed { kind: "downstream", message: why() },
            (None, Status::Unchecked) => Ended::Skipped { message: why() },
            (None, Status::Exact | Status::Rounding) => Ended::Passed,
        };
        let step = match (&report.alignment, tap.place.step) {
            (Some(alignment), step) => alignment.positions(step..step + 1),
            (None, 0) => "prefill".to_owned(),
            (None, step) => format!("decode step {step}"),
        };
        Case { step, name: safe(&tap.place.tap.to_string()), ended }
    };
    let cases: Vec<Case> = report.taps.iter().map(case).collect();
    let count = |is: fn(&Ended) -> bool| cases.iter().filter(|case| is(&case.ended)).count();
    let failures = count(|ended| matches!(ended, Ended::Failed { .. }));
    let skipped = count(|ended| matches!(ended, Ended::Skipped { .. }));
    Ok(Suite { failures, skipped, cases }.render()?)
}

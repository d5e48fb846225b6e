//! Writes an outcome in JUnit's format. Every tap is a test case: one that was not checked is skipped, never passed.

use std::collections::BTreeMap;

use anyhow::Result;
use askama::Template;
use firstdiff_compare::{Status, TapReport, Verdict};

use crate::report::{CiFailure, CiOutcome};
use crate::words::{safe, step_in_words};

#[derive(Template)]
#[template(path = "junit.xml")]
struct Suite {
    cases: Vec<Case>,
    /// Why nothing can be concluded, where that is so.
    error: Option<String>,
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

impl Suite {
    /// How many test cases there are, including that of the verdict.
    fn tests(&self) -> usize {
        self.cases.len() + usize::from(self.error.is_some())
    }
}

/// The file's text.
///
/// # Errors
/// When the template cannot be filled.
pub(crate) fn text(CiOutcome { report, failures, held, .. }: &CiOutcome<'_>) -> Result<String> {
    let mut of_no_tap: BTreeMap<&str, &CiFailure> = failures.iter().map(|f| (f.place.as_str(), f)).collect();
    let case = |tap: &TapReport| {
        let failed = of_no_tap.remove(report.name(tap.place).as_str());
        let why = || text_of(&tap.why().unwrap_or_default());
        let ended = match (failed, tap.status) {
            (Some(failure), _) => Ended::Failed { kind: failure.kind, message: text_of(&failure.message) },
            (None, status) if *held && status.differs() => {
                Ended::Skipped { message: format!("differs, as its baseline allows: {}", why()) }
            }
            (None, Status::Diverged) => Ended::Failed { kind: "diverged", message: why() },
            (None, Status::Downstream) => Ended::Failed { kind: "downstream", message: why() },
            (None, Status::Unchecked) => Ended::Skipped { message: why() },
            (None, Status::Exact | Status::Rounding) => Ended::Passed,
        };
        let step = step_in_words(report.alignment.as_deref(), tap.place.step);
        let step = step.unwrap_or_else(|| "prefill".to_owned());
        Case { step, name: text_of(&tap.place.tap.to_string()), ended }
    };
    let mut cases: Vec<Case> = report.taps.iter().map(case).collect();
    // Taps that are not in the comparison, such as one that only a baseline has.
    for CiFailure { place, kind, message } in of_no_tap.into_values() {
        let ended = Ended::Failed { kind, message: text_of(message) };
        cases.push(Case { step: "not compared".to_owned(), name: text_of(place), ended });
    }
    let count = |is: fn(&Ended) -> bool| cases.iter().filter(|case| is(&case.ended)).count();
    let failures = count(|ended| matches!(ended, Ended::Failed { .. }));
    let skipped = count(|ended| matches!(ended, Ended::Skipped { .. }));
    let error = if let Verdict::Incomparable(reason) = &report.verdict { Some(text_of(reason)) } else { None };
    Ok(Suite { failures, skipped, error, cases }.render()?)
}

/// Foreign text, only with characters that XML allows.
fn text_of(text: &str) -> String {
    safe(text).replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}")
}

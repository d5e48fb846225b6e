//! What is wrong with a dump by itself? What `inspect` says.

use std::collections::BTreeMap;

use firstdiff_compare::{Finding, Inspection};
use firstdiff_trace::Dump;
use serde::Serialize;

use crate::report::{Header, Provenance, Verdict};

/// The report of `firstdiff inspect`.
#[derive(Clone, Debug, Serialize)]
pub struct Inspect {
    /// Schema and command.
    #[serde(flatten)]
    pub header: Header,
    /// Always null: none of it is a verdict.
    pub verdict: Option<Verdict>,
    /// The dump.
    pub candidate: Provenance,
    /// What was seen.
    pub findings: Vec<Seen>,
    /// What was not recorded, and therefore not looked at.
    pub unseen: Vec<String>,
    /// Names in the dump that are no taps.
    #[serde(rename = "unnamed")]
    pub unmapped: Vec<String>,
    /// What else should be known.
    pub warnings: Vec<String>,
}

/// Something that is seen in a dump by itself.
#[derive(Clone, Debug, Serialize)]
pub struct Seen {
    /// The tap it was seen in.
    pub tap: String,
    /// That tap, and others it is about.
    pub taps: Vec<String>,
    /// The step.
    pub step: u32,
    /// `certain`, `likely` or `note`.
    pub sure: &'static str,
    /// The kind of finding: `not-finite`, `future-attended` ..
    pub what: &'static str,
    /// What was seen, in words and numbers.
    pub detail: String,
    /// The kind of mistake that does this.
    pub points_to: &'static str,
    /// The numbers by name.
    #[serde(flatten)]
    pub numbers: BTreeMap<&'static str, f64>,
}

impl Inspect {
    pub(crate) fn of(dump: &Dump, inspection: &Inspection) -> Inspect {
        Inspect {
            header: Header::of("inspect"),
            verdict: None,
            candidate: Provenance::of(dump),
            findings: inspection.findings.iter().map(Seen::of).collect(),
            unseen: inspection.unseen.clone(),
            unmapped: dump.unnamed().to_vec(),
            warnings: Vec::new(),
        }
    }
}

impl Seen {
    fn of(finding: &Finding) -> Seen {
        let mut taps = vec![finding.place.tap.to_string()];
        taps.extend(finding.others.iter().map(ToString::to_string));
        Seen {
            tap: taps[0].clone(),
            taps,
            step: finding.place.step,
            sure: finding.sure.name(),
            what: finding.what,
            detail: finding.detail.clone(),
            points_to: finding.points_to,
            numbers: finding.numbers.iter().copied().collect(),
        }
    }
}

//! Defines the report of `inspect`: findings in a dump without a reference.

use std::collections::{BTreeMap, BTreeSet};

use firstdiff_compare::{Certainty, InspectFinding, Inspection};
use firstdiff_trace::{Dump, stored_name};
use serde::Serialize;

use crate::report::{Header, Provenance, Verdict};
use crate::session::incomplete::Incomplete;
use crate::words::safe;

/// The report of `firstdiff inspect`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Inspect {
    /// Schema and command.
    #[serde(flatten)]
    pub header: Header,
    /// Always null: the findings are no verdict.
    #[cfg_attr(feature = "schema", schemars(with = "()"))]
    pub verdict: Option<Verdict>,
    /// The dump.
    pub candidate: Provenance,
    /// How many tensors were read.
    pub looked_at: usize,
    /// How many kinds of findings there are, by certainty.
    pub counts: FindingCounts,
    /// The findings.
    pub findings: Vec<InspectFindingReport>,
    /// What was not recorded, and so not checked.
    pub unseen: Vec<String>,
    /// Names in the dump that are no taps.
    pub unmapped: Vec<String>,
    /// What to do next.
    pub next: String,
    /// Other notes.
    pub warnings: Vec<String>,
}

/// How many kinds of findings there are, by certainty.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FindingCounts {
    /// No right engine does this.
    pub certain: usize,
    /// Most right engines do not do this.
    pub likely: usize,
    /// Worth knowing.
    pub note: usize,
}

/// Something noticed in a single dump. Any other key is one of its numbers, by name: `count`, `factor`, `inf`, `least`, `mass`, `most`, `nan`, `positions`,
/// `ratio`, `rms`, `rows`, `share`, `spread`, `tail`, `token` or `tokens`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "seen"))]
pub struct InspectFindingReport {
    /// The tap it was seen in.
    pub tap: String,
    /// That tap, and others concerned.
    pub taps: Vec<String>,
    /// The step.
    pub step: u32,
    /// `certain`: no right engine does this; `likely`: most do not; `note`: worth knowing.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["certain", "likely", "note"])))]
    pub sure: &'static str,
    /// The kind of finding: `not-finite`, `future-attended` ..
    pub what: &'static str,
    /// What was seen, in words and numbers.
    pub detail: String,
    /// The kind of mistake that causes this.
    pub points_to: &'static str,
    /// The numbers by name.
    #[serde(flatten)]
    pub numbers: BTreeMap<&'static str, f64>,
}

impl Inspect {
    pub(crate) fn new(dump: &Dump, inspection: &Inspection) -> Inspect {
        Inspect {
            header: Header::new("inspect"),
            verdict: None,
            candidate: Provenance::new(dump),
            looked_at: inspection.taps,
            counts: FindingCounts::count(inspection),
            findings: inspection.findings.iter().map(InspectFindingReport::new).collect(),
            unseen: inspection.unseen.clone(),
            unmapped: not_looked_at(dump),
            next: next(dump, inspection),
            warnings: Incomplete::find_in(&[("the candidate", dump)], None)
                .notes()
                .cloned()
                .chain(dump.meta().decode_differs.map(|differs| differs.to_string()))
                .collect(),
        }
    }
}

/// The names that are no taps, and were not checked.
pub(crate) fn not_looked_at(dump: &Dump) -> Vec<String> {
    let open: BTreeSet<String> =
        dump.open_taps().iter().map(|entry| stored_name(&entry.tap.to_string(), entry.step)).collect();
    dump.unmapped().iter().filter(|name| !open.contains(*name)).cloned().collect()
}

impl InspectFindingReport {
    fn new(finding: &InspectFinding) -> InspectFindingReport {
        let mut taps = vec![finding.place.tap.to_string()];
        taps.extend(finding.others.iter().map(ToString::to_string));
        InspectFindingReport {
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

impl FindingCounts {
    fn count(inspection: &Inspection) -> FindingCounts {
        let count = |sure: Certainty| {
            let kinds = inspection.findings.iter().filter(|f| f.sure == sure).map(|f| (f.what, f.points_to));
            kinds.collect::<BTreeSet<_>>().len()
        };
        FindingCounts {
            certain: count(Certainty::Certain),
            likely: count(Certainty::Likely),
            note: count(Certainty::Note),
        }
    }
}

/// The next step for the most certain finding.
fn next(dump: &Dump, inspection: &Inspection) -> String {
    let path = safe(&dump.path().to_string_lossy());
    match inspection.findings.iter().min_by_key(|f| f.sure).filter(|f| f.sure != Certainty::Note) {
        Some(first) => format!(
            "look at what makes {} first, and inspect again; `firstdiff replay MODEL {path}` judges every operation by itself",
            first.place
        ),
        None => format!(
            "`firstdiff compare REF {path}` with a reference's dump, or `firstdiff replay MODEL {path}` with the weights"
        ),
    }
}

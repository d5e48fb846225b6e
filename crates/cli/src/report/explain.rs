//! Why is it wrong? What `explain` says.

use std::collections::BTreeSet;

use firstdiff_compare::Verdict;
use firstdiff_explain::explain::Finding;
use firstdiff_model::Model;
use serde::Serialize;

use crate::report::{self, Conclusion, Diagnosis, Header, Judged, Provenance, names};
use crate::session::replay::ReplaySession;

/// The report of `firstdiff explain`.
#[derive(Clone, Debug, Serialize)]
pub struct Explain {
    /// Schema and command.
    #[serde(flatten)]
    pub header: Header,
    /// What is concluded.
    #[serde(flatten)]
    pub conclusion: Conclusion,
    /// What was judged, and as what.
    #[serde(flatten)]
    pub judged: Judged,
    /// Each fault, with all places where it was found.
    pub findings: Vec<Explained>,
    /// Ids of mistakes that what was recorded could not have shown.
    #[serde(rename = "invisible")]
    pub not_testable: Vec<String>,
    /// What is said of a reference (`--ref`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<OfReference>,
}

/// One fault.
#[derive(Clone, Debug, Serialize)]
pub struct Explained {
    /// The first tap whose operation is wrong.
    pub tap: Option<String>,
    /// All of them, in the order of the Plan.
    pub taps: Vec<String>,
    /// The recorded taps that show it.
    pub shown_at: Vec<String>,
    /// The operation of the first tap.
    pub op: String,
    /// The layers it is wrong in.
    pub layers: BTreeSet<u32>,
    /// The cause, where it is proved, and what else is known of it.
    #[serde(flatten)]
    pub diagnosis: Diagnosis,
    /// NMSE without the mistake imitated, the worst of all places.
    pub base_nmse: f64,
    /// Taps between the recorded ones: the fault may be in any of them.
    #[serde(rename = "through")]
    pub span: Vec<String>,
    /// All mistakes that were tried, and the best that each leaves.
    pub tried: Vec<Tried>,
    /// Mistakes and sets of them that were not tried for want of time.
    pub untried: usize,
    /// Ids that are ruled out, in the forms that were tried.
    pub ruled_out: Vec<&'static str>,
    /// What else is to be known.
    pub note: Option<String>,
}

/// A mistake that was tried.
#[derive(Clone, Debug, Serialize)]
pub struct Tried {
    /// Its id.
    pub cause: &'static str,
    /// The least NMSE that it leaves.
    pub residual_nmse: f64,
}

/// A reference, explained in its own right.
#[derive(Clone, Debug, Serialize)]
pub struct OfReference {
    /// What is concluded of it.
    pub verdict: report::Verdict,
    /// Where it comes from.
    pub candidate: Provenance,
    /// Its faults.
    pub findings: Vec<Explained>,
}

impl Explain {
    pub(crate) fn of(
        session: &ReplaySession,
        verdict: &Verdict,
        not_testable: &[String],
        reference: Option<&ReplaySession>,
    ) -> Explain {
        Explain {
            header: Header::of("explain"),
            conclusion: Conclusion::of(verdict),
            judged: Judged::of(session),
            findings: Explained::all(session),
            not_testable: not_testable.to_vec(),
            reference: reference.map(OfReference::of),
        }
    }
}

impl OfReference {
    fn of(session: &ReplaySession) -> OfReference {
        OfReference {
            verdict: Conclusion::of(&session.verdict()).verdict,
            candidate: Provenance::of(&session.given.dump),
            findings: Explained::all(session),
        }
    }
}

impl Explained {
    fn all(session: &ReplaySession) -> Vec<Explained> {
        session.findings.iter().map(|finding| Explained::of(&session.given.model, finding)).collect()
    }

    fn of(model: &Model, finding: &Finding) -> Explained {
        let open = finding.cause.is_none() && finding.through.is_empty();
        let tried = finding.tried.iter().map(|(&cause, &residual_nmse)| Tried { cause, residual_nmse });
        Explained {
            tap: finding.taps.first().map(ToString::to_string),
            taps: names(&finding.taps),
            shown_at: names(&finding.shown_at),
            op: finding.op.clone(),
            layers: finding.taps.iter().filter_map(|t| t.layer).collect(),
            diagnosis: Diagnosis::of(model, finding),
            base_nmse: finding.base_nmse,
            span: names(&finding.through),
            tried: tried.collect(),
            untried: finding.untried,
            ruled_out: finding.tried.keys().copied().filter(|id| open && is_ruled_out(finding, id)).collect(),
            note: finding.note.clone(),
        }
    }
}

/// Whether a mistake that was tried is none of those that come nearest.
pub(crate) fn is_ruled_out(finding: &Finding, id: &str) -> bool {
    finding.alternatives.iter().all(|near| near.id != id)
}

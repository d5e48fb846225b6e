//! Which operations are wrong in themselves? What `replay` says.

use std::collections::{BTreeMap, BTreeSet};

use firstdiff_compare::{Place, Verdict};
use firstdiff_explain::replay::{Reason, Replayed};
use serde::Serialize;

use crate::report::{Conclusion, Diagnosis, Header, Loosened, Provenance, TapEntry, names};
use crate::session::cause;
use crate::session::replay::ReplaySession;

/// The report of `firstdiff replay`.
#[derive(Clone, Debug, Serialize)]
pub struct Replay {
    /// Schema and command.
    #[serde(flatten)]
    pub header: Header,
    /// What is concluded.
    #[serde(flatten)]
    pub conclusion: Conclusion,
    /// What was judged, and as what.
    #[serde(flatten)]
    pub judged: Judged,
    /// Wrong operations, the same one of several layers together, in the order of the Plan.
    pub findings: Vec<WrongOperation>,
}

/// What `replay` and `explain` judged, and every tap.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// In whose arithmetic it was judged.
    pub profile: &'static str,
    /// Where only the candidate's own word asks for one so coarse.
    pub profile_loosened: Option<Loosened>,
    /// The type in which the candidate keeps keys and values.
    pub cache: &'static str,
    /// Whether nobody says so, and attention comes out right with it and not without.
    pub cache_is_assumed: bool,
    /// Where the model was read.
    pub model: String,
    /// The candidate.
    pub candidate: Provenance,
    /// Every tap the candidate recorded, and every one of the Plan it did not, in the order of the Plan.
    pub taps: Vec<ReplayedTap>,
    /// Names in the dump that are no taps.
    #[serde(rename = "unnamed")]
    pub unmapped: Vec<String>,
    /// What else should be known.
    pub warnings: Vec<String>,
}

/// One tap, judged on the candidate's own inputs.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayedTap {
    /// Status and measures against the right value.
    #[serde(flatten)]
    pub entry: TapEntry,
    /// NMSE against the value in f64.
    pub exact_nmse: Option<f64>,
    /// The recorded taps it was computed from.
    pub from: Vec<String>,
    /// Taps in between that were computed: the fault may be in any of them.
    #[serde(rename = "through")]
    pub span: Vec<String>,
    /// Of a wrong residual add, what was added.
    pub fit: Option<Fit>,
}

/// What was added to the residual stream.
#[derive(Clone, Debug, Serialize)]
pub struct Fit {
    /// How often the stream before it is in the sum: 1 where all is well.
    pub x: f64,
    /// How often the branch is: 1 where all is well.
    pub branch: f64,
    /// How often the normed stream is: 0 where all is well; null where it was not at hand.
    pub norm: Option<f64>,
    /// The taps that were added, and how often.
    pub terms: BTreeMap<String, f64>,
    /// NMSE of what the fit leaves.
    pub residual_nmse: f64,
}

/// A wrong operation.
#[derive(Clone, Debug, Serialize)]
pub struct WrongOperation {
    /// The first tap that shows it.
    pub tap: String,
    /// The operation.
    pub op: String,
    /// The layers it is wrong in.
    pub layers: BTreeSet<u32>,
    /// The cause, where a known mistake gives the candidate's numbers.
    #[serde(flatten)]
    pub diagnosis: Diagnosis,
    /// NMSE of the first tap.
    pub base_nmse: Option<f64>,
    /// The recorded taps it was computed from.
    pub from: Vec<String>,
    /// Taps in between that were computed: the fault may be in any of them.
    #[serde(rename = "through")]
    pub span: Vec<String>,
    /// Of a wrong residual add, what was added.
    pub fit: Option<Fit>,
    /// Further mistakes in the same operation, that give these numbers together with the first.
    pub together: Vec<Diagnosis>,
    /// Why it is wrong, where its size alone does not tell.
    pub note: Option<String>,
}

impl Replay {
    pub(crate) fn of(session: &ReplaySession, verdict: &Verdict) -> Replay {
        Replay {
            header: Header::of("replay"),
            conclusion: Conclusion::of(verdict),
            judged: Judged::of(session),
            findings: session.replay.wrong().iter().map(|group| WrongOperation::of(session, group)).collect(),
        }
    }
}

impl Judged {
    pub(crate) fn of(session: &ReplaySession) -> Judged {
        let ReplaySession { given, replay, .. } = session;
        Judged {
            profile: given.named.name(),
            profile_loosened: Loosened::of(given.loosened),
            cache: replay.cache.name(),
            cache_is_assumed: replay.cache_is_assumed,
            model: given.path.to_string_lossy().into_owned(),
            candidate: Provenance::of(&given.dump),
            taps: replay.taps.iter().map(ReplayedTap::of).collect(),
            unmapped: given.dump.unnamed().to_vec(),
            warnings: replay.warnings.clone(),
        }
    }
}

impl ReplayedTap {
    fn of(tap: &Replayed) -> ReplayedTap {
        ReplayedTap {
            entry: TapEntry::of(&tap.listed()),
            exact_nmse: tap.exact_nmse,
            from: names(&tap.from),
            span: names(&tap.through),
            fit: Fit::of(tap),
        }
    }
}

impl Fit {
    fn of(tap: &Replayed) -> Option<Fit> {
        tap.fit.as_ref().map(|fit| Fit {
            x: fit.stream,
            branch: fit.branch,
            norm: fit.norm,
            terms: fit.terms.iter().map(|(tap, factor)| (tap.to_string(), *factor)).collect(),
            residual_nmse: fit.residual_nmse,
        })
    }
}

impl WrongOperation {
    fn of(session: &ReplaySession, group: &[&Replayed]) -> WrongOperation {
        let one = group[0];
        let nmse = one.report.metrics.and_then(|m| m.nmse());
        let mut causes =
            cause::all_of(&session.findings, one.report.place).map(|(f, _)| Diagnosis::of(&session.given.model, f));
        let mut diagnosis = causes.next().unwrap_or_else(|| Diagnosis::unknown(nmse));
        diagnosis.misrecorded = names(misrecorded_by(group));
        WrongOperation {
            tap: one.report.place.tap.to_string(),
            op: one.report.op.clone(),
            layers: group.iter().filter_map(|t| t.report.place.tap.layer).collect(),
            diagnosis,
            base_nmse: nmse,
            from: names(&one.from),
            span: names(&one.through),
            fit: Fit::of(one),
            together: causes.collect(),
            note: one.reason.as_ref().map(Reason::to_string),
        }
    }
}

/// What speaks for it that all taps of a group are only recorded wrongly.
pub(crate) fn misrecorded_by(group: &[&Replayed]) -> Vec<Place> {
    group.iter().flat_map(|t| t.misrecorded.iter().copied()).collect()
}

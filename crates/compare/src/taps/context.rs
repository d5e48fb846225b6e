//! Holds what is needed to judge a tap beside its two tensors: the two runs, the graph, and earlier judgements.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use firstdiff_trace::{Cache, Dump, Entry, Rows, Site};

use crate::align::chunks::ChunkAlignment;
use crate::graph::{Graph, Place};
use crate::judge::tensor::{Outcome, PairJudgement};
use crate::layout::mismatch::ShapeMismatch;
use crate::layout::types::Layout;
use crate::plan::AlignmentPlan;
use crate::report::log::{LogEntry, Stage, Standing};
use crate::report::noise::Noise;
use crate::report::reason::Reason;
use crate::report::{KnownPart, start};
use crate::tolerance::context::NOISE_ROOM;
use crate::tolerance::{Profile, allowed_nmse, storage_nmse};

/// The taps of several shares.
#[derive(Clone, Debug)]
pub struct JudgedBefore(pub(super) BTreeMap<Place, StoredJudgement>);

/// One tap that was compared.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct StoredJudgement {
    pub(super) step: u32,
    pub(super) tap: String,
    pub(super) judgement: PairJudgement,
    pub(super) shape: Vec<usize>,
    pub(super) positions: Option<Vec<usize>>,
    pub(super) layout: Layout,
    pub(super) plain: Option<AsStored>,
    /// A checksum of each side: see `sample` in share.rs.
    pub(super) seen: [Option<u32>; 2],
}

/// The options of a comparison.
#[derive(Clone, Debug)]
pub struct Options {
    /// The arithmetic of a right candidate.
    pub profile: Profile,
    /// Token positions to compare; all where `None`.
    pub rows: Option<Rows>,
    /// The NMSE allowed at a place where it was measured; elsewhere the profile's table.
    pub allowed: BTreeMap<Place, f64>,
    /// Taps that a model shows to be wrong of what they are made of, with the NMSE that it allows the one operation: no input's error excuses them.
    pub wrong_by_model: BTreeMap<Place, f64>,
    /// The places to compare; all where `None`. Others count as not recorded.
    pub only: Option<BTreeSet<Place>>,
    /// How the two were aligned by token position, where their chunks differ.
    pub alignment: Option<Arc<ChunkAlignment>>,
    /// The type in which either side keeps keys and values, the coarser of the two.
    pub cache: Cache,
    /// The distance of a second right run from the reference, where there is one: it sets the tolerance of a tap.
    pub noise: Option<Noise>,
    /// The taps of experts whose rows could not be assigned.
    pub open_rows: BTreeSet<Place>,
    /// Taps that were judged by themselves before, by [`judge_share`](crate::judge_share) with the same options.
    pub judged: Option<Arc<JudgedBefore>>,
}

impl Options {
    /// All rows, and the tolerances of `profile`.
    pub fn new(profile: Profile) -> Options {
        let (cache, allowed) = (Cache::F32, BTreeMap::new());
        let open_rows = BTreeSet::new();
        Options {
            profile,
            rows: None,
            allowed,
            wrong_by_model: BTreeMap::new(),
            only: None,
            alignment: None,
            cache,
            noise: None,
            open_rows,
            judged: None,
        }
    }
}

/// The judgement of a tap. It is never changed: a rule that knows more makes another one.
#[derive(Clone)]
pub(crate) enum TapJudgement {
    /// Neither side recorded it.
    NotRecorded,
    Unchecked(Reason),
    /// Both recorded it, and their shapes do not fit as they stand.
    ShapeMismatch(ShapeMismatch),
    /// Both recorded it, but not the same values: not compared in any layout.
    NotComparable(Reason),
    /// Both recorded it, and its operation may have passed on this NMSE or not.
    Inconclusive(f64),
    Compared(Arc<Compared>),
}

/// What was measured of a tap that both recorded.
#[derive(Clone)]
pub(crate) struct Compared {
    pub(crate) judgement: PairJudgement,
    pub(crate) shape: Vec<usize>,
    pub(crate) positions: Option<Vec<usize>>,
    pub(crate) layout: Layout,
    /// The judgement if nothing confirms the layout; `None` where the layout needs no confirmation.
    pub(crate) as_stored: Option<AsStored>,
    /// What was compared of it, where not all.
    pub(crate) part: Option<KnownPart>,
}

/// The judgement of a tap as it stands.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) enum AsStored {
    Compared(Box<PairJudgement>),
    /// Its shape does not fit the reference's.
    ShapeMismatch(ShapeMismatch),
}

impl From<Compared> for TapJudgement {
    fn from(compared: Compared) -> TapJudgement {
        TapJudgement::Compared(Arc::new(compared))
    }
}

impl TapJudgement {
    /// A tap whose two sides share no token position: requested rows may be missing, but otherwise it should have been compared.
    pub(crate) fn without_rows(has_requested_rows: bool) -> TapJudgement {
        match has_requested_rows {
            true => TapJudgement::Unchecked(Reason::NoneOfTheRowsAsked),
            false => TapJudgement::NotComparable(Reason::NoCommonPosition),
        }
    }

    /// Why it differs, why it is unchecked, or in which other layout it agrees.
    pub(crate) fn reason(&self) -> Option<Reason> {
        let judged = match self {
            TapJudgement::NotRecorded => return None,
            TapJudgement::Unchecked(reason) | TapJudgement::NotComparable(reason) => return Some(reason.clone()),
            TapJudgement::ShapeMismatch(mismatch) => return Some(Reason::Shape(mismatch.clone())),
            TapJudgement::Inconclusive(_) => return Some(Reason::Inconclusive),
            TapJudgement::Compared(judged) => judged,
        };
        match (&judged.judgement.outcome, &judged.layout) {
            (Outcome::Differs(difference), layout) => {
                let layout = Some(layout.clone()).filter(|layout| matches!(layout, Layout::Stored(_)));
                Some(Reason::Differs { difference: difference.clone(), layout })
            }
            (_, Layout::Same) => None,
            (_, layout) => Some(Reason::ReadIn(layout.clone())),
        }
    }

    /// Its standing; `None` where neither side recorded it.
    pub(crate) fn standing(&self) -> Option<Standing> {
        Some(match self {
            TapJudgement::NotRecorded => return None,
            TapJudgement::Unchecked(_) | TapJudgement::ShapeMismatch(_) | TapJudgement::NotComparable(_) => {
                Standing::Unchecked
            }
            TapJudgement::Inconclusive(_) => Standing::Inconclusive,
            TapJudgement::Compared(judged) => match judged.judgement.outcome {
                Outcome::Exact => Standing::Exact,
                Outcome::Rounding => Standing::Rounding,
                Outcome::Inconclusive => Standing::Inconclusive,
                Outcome::Differs(_) => Standing::Differs,
            },
        })
    }

    /// Its log entry after a stage, if that differs from the entry `before`.
    pub(crate) fn changed_entry(&self, stage: Stage, before: Option<&LogEntry>) -> Option<LogEntry> {
        let (nmse, allowed) = match self {
            TapJudgement::Inconclusive(nmse) => (Some(*nmse), None),
            TapJudgement::Compared(judged) => (judged.judgement.size(), Some(judged.judgement.allowed)),
            _ => (None, None),
        };
        let now = LogEntry { stage, to: self.standing()?, reason: self.reason(), nmse, allowed };
        before.is_none_or(|before| !now.has_same_decision(before)).then_some(now)
    }

    pub(crate) fn agrees(&self) -> bool {
        matches!(self.standing(), Some(Standing::Exact | Standing::Rounding))
    }

    /// Whether it is off by more than rounding, and errors of its inputs may explain that or not.
    pub(crate) fn is_unclear(&self) -> bool {
        self.standing() == Some(Standing::Inconclusive)
    }

    pub(crate) fn is_in_part(&self) -> bool {
        matches!(self, TapJudgement::Compared(judged) if judged.part.is_some())
    }

    pub(crate) fn is_compared(&self) -> bool {
        matches!(self, TapJudgement::Compared(_))
    }

    /// The layout in which it agrees.
    pub(crate) fn agreeing_layout(&self) -> Option<&Layout> {
        match self {
            TapJudgement::Compared(judged) if judged.judgement.outcome.agrees() => Some(&judged.layout),
            _ => None,
        }
    }

    /// The same as it stands, without its unconfirmed layout.
    pub(crate) fn as_it_stands(&self) -> TapJudgement {
        let TapJudgement::Compared(judged) = self else { return TapJudgement::NotRecorded };
        match &judged.as_stored {
            Some(AsStored::ShapeMismatch(reason)) => TapJudgement::ShapeMismatch(reason.clone()),
            Some(AsStored::Compared(plain)) => TapJudgement::from(Compared {
                judgement: (**plain).clone(),
                layout: Layout::Same,
                as_stored: None,
                ..(**judged).clone()
            }),
            None => TapJudgement::NotRecorded,
        }
    }

    /// The layout in which it agrees, where that still has to be confirmed.
    pub(crate) fn provisional(&self) -> Option<&Layout> {
        match self {
            TapJudgement::Compared(judged) if judged.as_stored.is_some() => Some(&judged.layout),
            _ => None,
        }
    }
}

/// Two runs and all that is known of them before a value is read.
pub(crate) struct ComparisonContext<'a> {
    pub(crate) reference: &'a Dump,
    pub(crate) candidate: &'a Dump,
    pub(crate) graph: &'a Graph,
    pub(crate) options: &'a Options,
    pub(crate) plan: AlignmentPlan,
}

impl<'a> ComparisonContext<'a> {
    pub(crate) fn new(
        reference: &'a Dump,
        candidate: &'a Dump,
        graph: &'a Graph,
        options: &'a Options,
    ) -> ComparisonContext<'a> {
        let plan = AlignmentPlan::new(reference, candidate, graph, options.rows.as_ref(), options.alignment.as_ref());
        ComparisonContext { reference, candidate, graph, options, plan }
    }
}

impl ComparisonContext<'_> {
    pub(crate) fn allowed(&self, place: Place, left: &Entry, right: &Entry) -> f64 {
        if let Some(allowed) = self.options.wrong_by_model.get(&place) {
            return *allowed;
        }
        let stored = [left.dtype, right.dtype];
        let rounding = match self.options.allowed.get(&place) {
            Some(measured) => measured + stored.map(storage_nmse).iter().sum::<f64>(),
            None => allowed_nmse(self.options.profile, place.tap, self.plan.extent, stored),
        };
        self.noise(place).map_or(rounding, |noise| rounding.max(NOISE_ROOM * noise.nmse))
    }

    /// The token position at which a step begins.
    pub(crate) fn start(&self, step: u32) -> usize {
        start(self.alignment(), self.plan.prompt, step)
    }

    pub(crate) fn alignment(&self) -> Option<&ChunkAlignment> {
        self.options.alignment.as_deref()
    }

    /// The two dumps as they were recorded.
    pub(crate) fn recorded(&self) -> [&Dump; 2] {
        self.alignment()
            .map_or([self.reference, self.candidate], |alignment| alignment.runs.each_ref().map(|run| &**run))
    }

    /// Whether keys or values of token positions that were not compared are read on the way from `before` to `index`.
    pub(crate) fn keys_not_compared(
        &self,
        taps: &[TapJudgement],
        index: usize,
        before: &[usize],
        between: &[usize],
    ) -> bool {
        // A query, a product or a probability belongs to its own position only.
        let own = |site| matches!(site, Site::Q | Site::QNorm | Site::QRope | Site::Qk | Site::Scores | Site::Probs);
        let partial = |i: &usize| {
            let some = matches!(&taps[*i], TapJudgement::Compared(judged) if judged.positions.is_some());
            some && !own(self.graph.places()[*i].tap.site)
        };
        let attends = |i: &usize| matches!(self.graph.places()[*i].tap.site, Site::Qk | Site::Context);
        between.iter().chain([&index]).any(attends) && before.iter().any(partial)
    }
}

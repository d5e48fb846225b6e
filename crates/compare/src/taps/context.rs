//! What does the judge of a tap know beside its two tensors? The two runs, the graph, and what was found before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use firstdiff_trace::{Cache, Dump, Entry, Rows, Site, Tap};

use crate::align::chunks::ChunkAlignment;
use crate::graph::{Graph, OpenTaps, Place};
use crate::judge::tensor::{Judgement, Outcome};
use crate::layout::mismatch::ShapeMismatch;
use crate::layout::types::Layout;
use crate::report::log::{LogEntry, Stage, Standing};
use crate::report::noise::Noise;
use crate::report::reason::Reason;
use crate::report::{KnownPart, start};
use crate::run::steps::Chunks;
use crate::tolerance::context::NOISE_ROOM;
use crate::tolerance::{Extent, Profile, allowed_nmse, storage_nmse};

/// What a comparison is told beside the two dumps.
#[derive(Clone, Debug)]
pub struct Options {
    /// In what arithmetic a right candidate works.
    pub profile: Profile,
    /// Token positions to compare; all where `None`.
    pub rows: Option<Rows>,
    /// The NMSE allowed at a place where it was measured; elsewhere the profile's table.
    pub allowed: BTreeMap<Place, f64>,
    /// The places to look at; all where `None`. The others are as if nobody had recorded them.
    pub only: Option<BTreeSet<Place>>,
    /// How the two were aligned by token position, where they took the tokens in other chunks.
    pub alignment: Option<Arc<ChunkAlignment>>,
    /// The type in which either side keeps keys and values, the coarser of the two.
    pub cache: Cache,
    /// How far a second right run is from the reference, where there is one: what a tap is allowed then.
    pub noise: Option<Noise>,
}

impl Options {
    /// All rows, and the table of `profile`.
    pub fn new(profile: Profile) -> Options {
        let (cache, allowed) = (Cache::F32, BTreeMap::new());
        Options { profile, rows: None, allowed, only: None, alignment: None, cache, noise: None }
    }
}

/// What was found at a place of the graph.
pub(crate) enum Found {
    /// Neither side recorded it.
    Nothing,
    Unchecked(Reason),
    /// Both recorded it, and their shapes do not fit as they stand.
    ShapeMismatch(ShapeMismatch),
    /// Both recorded it, and not of the same: not compared in any layout.
    NotComparable(Reason),
    /// Both recorded it, and this NMSE may be what its operation passed on, or not.
    Inconclusive(f64),
    Judged(Box<Judged>),
}

pub(crate) struct Judged {
    pub(crate) judgement: Judgement,
    pub(crate) shape: Vec<usize>,
    pub(crate) positions: Option<Vec<usize>>,
    pub(crate) layout: Layout,
    /// How it stands if nothing confirms the layout; `None` where the layout needs no confirming.
    pub(crate) plain: Option<AsStored>,
    /// What was compared of it, where not all.
    pub(crate) part: Option<KnownPart>,
}

/// How a tap stands as it is.
pub(crate) enum AsStored {
    Judged(Box<Judgement>),
    /// Its shape does not fit the reference's.
    ShapeMismatch(ShapeMismatch),
}

impl Found {
    /// Of a tap whose two sides share no token position: what was asked for need not be there, and else it should have been compared.
    pub(crate) fn without_rows(asked: bool) -> Found {
        match asked {
            true => Found::Unchecked(Reason::NoneOfTheRowsAsked),
            false => Found::NotComparable(Reason::NoCommonPosition),
        }
    }

    /// Why it differs, why nothing is said of it, or in which other layout it agrees.
    pub(crate) fn reason(&self) -> Option<Reason> {
        let judged = match self {
            Found::Nothing => return None,
            Found::Unchecked(reason) | Found::NotComparable(reason) => return Some(reason.clone()),
            Found::ShapeMismatch(mismatch) => return Some(Reason::Shape(mismatch.clone())),
            Found::Inconclusive(_) => return Some(Reason::Inconclusive),
            Found::Judged(judged) => judged,
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

    /// How it stands; `None` of what neither side recorded.
    pub(crate) fn standing(&self) -> Option<Standing> {
        Some(match self {
            Found::Nothing => return None,
            Found::Unchecked(_) | Found::ShapeMismatch(_) | Found::NotComparable(_) => Standing::Unchecked,
            Found::Inconclusive(_) => Standing::Inconclusive,
            Found::Judged(judged) => match judged.judgement.outcome {
                Outcome::Exact => Standing::Exact,
                Outcome::Rounding => Standing::Rounding,
                Outcome::Inconclusive => Standing::Inconclusive,
                Outcome::Differs(_) => Standing::Differs,
            },
        })
    }

    /// What is to be logged of it after a stage; `None` of what neither side recorded.
    pub(crate) fn after(&self, stage: Stage) -> Option<LogEntry> {
        let (nmse, allowed) = match self {
            Found::Inconclusive(nmse) => (Some(*nmse), None),
            Found::Judged(judged) => (judged.judgement.size(), Some(judged.judgement.allowed)),
            _ => (None, None),
        };
        Some(LogEntry { stage, to: self.standing()?, reason: self.reason(), nmse, allowed })
    }

    pub(crate) fn agrees(&self) -> bool {
        matches!(self.standing(), Some(Standing::Exact | Standing::Rounding))
    }

    /// Whether it is off by more than rounding, and what it reads may explain that, or not.
    pub(crate) fn is_unclear(&self) -> bool {
        self.standing() == Some(Standing::Inconclusive)
    }

    pub(crate) fn is_in_part(&self) -> bool {
        matches!(self, Found::Judged(judged) if judged.part.is_some())
    }

    pub(crate) fn is_judged(&self) -> bool {
        matches!(self, Found::Judged(_))
    }

    /// Agrees only under a layout that something else has to confirm.
    pub(crate) fn provisional(&self) -> Option<&Layout> {
        match self {
            Found::Judged(judged) if judged.plain.is_some() => Some(&judged.layout),
            _ => None,
        }
    }
}

pub(crate) struct Run<'a> {
    pub(crate) reference: &'a Dump,
    pub(crate) candidate: &'a Dump,
    pub(crate) graph: &'a Graph,
    pub(crate) open: OpenTaps,
    pub(crate) options: &'a Options,
    pub(crate) extent: Extent,
    /// Token positions of the prefill.
    pub(crate) prompt: usize,
    /// Why the steps do not stand for the same token positions, where they do not.
    pub(crate) misaligned: Option<String>,
    /// How the tokens were taken, as either side says or shows.
    pub(crate) chunks: Option<Chunks>,
    /// Token positions of each step of either side, as far as they are known.
    pub(crate) lengths: [BTreeMap<u32, usize>; 2],
    /// What of the recorded keys and values is not to be passed.
    pub(crate) doubts: BTreeMap<(u32, Tap), Reason>,
}

impl Run<'_> {
    pub(crate) fn allowed(&self, place: Place, left: &Entry, right: &Entry) -> f64 {
        let stored = [left.dtype, right.dtype];
        let own = match self.options.allowed.get(&place) {
            Some(measured) => measured + stored.map(storage_nmse).iter().sum::<f64>(),
            None => allowed_nmse(self.options.profile, place.tap, self.extent, stored),
        };
        self.noise(place).map_or(own, |noise| own.max(NOISE_ROOM * noise.nmse))
    }

    /// The token position at which a step begins.
    pub(crate) fn start(&self, step: u32) -> usize {
        start(self.alignment(), self.prompt, step)
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
    pub(crate) fn keys_not_compared(&self, found: &[Found], index: usize, before: &[usize], between: &[usize]) -> bool {
        // A query, a product or a probability of a position stands for that position alone.
        let own = |site| matches!(site, Site::Q | Site::QNorm | Site::QRope | Site::Qk | Site::Scores | Site::Probs);
        let partial = |i: &usize| {
            let some = matches!(&found[*i], Found::Judged(judged) if judged.positions.is_some());
            some && !own(self.graph.places()[*i].tap.site)
        };
        let attends = |i: &usize| matches!(self.graph.places()[*i].tap.site, Site::Qk | Site::Context);
        between.iter().chain([&index]).any(attends) && before.iter().any(partial)
    }
}

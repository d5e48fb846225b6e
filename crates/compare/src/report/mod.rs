//! Defines the report of a comparison as data; no text is formatted here.

pub(crate) mod anatomy;
pub(crate) mod detail;
pub(crate) mod log;
pub(crate) mod noise;
pub(crate) mod reason;

use std::fmt;
use std::sync::Arc;

use firstdiff_trace::{Cache, Partial, Tap};

use crate::align::chunks::{ChunkAlignment, name_of};
use crate::graph::{Place, UnrecordedLayers};
use crate::judge::tensor::size;
use crate::layout::types::Layout;
use crate::metrics::Metrics;
use crate::report::anatomy::Anatomy;
use crate::report::log::LogEntry;
use crate::report::reason::{Reason, Warning};
use crate::tolerance::Profile;
use crate::words::{index_in_words, unravel};

/// What a comparison concludes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything compared agrees, and that was enough to decide.
    Parity,
    /// Something differs.
    Diverged,
    /// Nothing can be concluded, and why.
    Incomparable(String),
}

impl Verdict {
    /// The word in JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Verdict::Parity => "parity",
            Verdict::Diverged => "diverged",
            Verdict::Incomparable(_) => "incomparable",
        }
    }
}

/// The status of a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Bit for bit.
    Exact,
    /// Within what the profile allows.
    Rounding,
    /// Differs, though all its inputs that were compared agree.
    Diverged,
    /// Differs, and so does one of its inputs.
    Downstream,
    /// Not compared; the reason says why. Neither a pass nor a blame.
    Unchecked,
}

impl Status {
    /// The word in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Status::Exact => "exact",
            Status::Rounding => "rounding",
            Status::Diverged => "diverged",
            Status::Downstream => "downstream",
            Status::Unchecked => "unchecked",
        }
    }

    /// Exact or rounding.
    pub fn agrees(self) -> bool {
        matches!(self, Status::Exact | Status::Rounding)
    }

    /// Diverged or downstream.
    pub fn differs(self) -> bool {
        matches!(self, Status::Diverged | Status::Downstream)
    }
}

/// One tap of a comparison.
#[derive(Clone, Debug)]
pub struct TapReport {
    /// Tap and step.
    pub place: Place,
    /// The operation that makes it.
    pub op: String,
    /// Its status.
    pub status: Status,
    /// Why it differs, why it is unchecked, or in which other layout it was read.
    pub reason: Option<Reason>,
    /// The measures, where it was compared.
    pub metrics: Option<Metrics>,
    /// NMSE in which no position counts for more than the median one, where it was compared and is finite.
    pub balanced: Option<f64>,
    /// NMSE of the position that is furthest off, where positions were compared.
    pub worst_position: Option<f64>,
    /// The NMSE that was allowed, where it was compared.
    pub allowed: Option<f64>,
    /// The shape in which it was compared.
    pub shape: Vec<usize>,
    /// The token positions of the step that were compared, where not all.
    pub positions: Option<Vec<usize>>,
    /// Whether only one row of unknown position was compared: the last one, of however many.
    pub is_last: bool,
    /// Whether it is one row of a model that reads no tokens: it belongs to no position and no token.
    pub is_pooled: bool,
    /// How the candidate's memory was read, where it was compared.
    pub layout: Option<Layout>,
    /// What was compared of it, where it is known in part.
    pub part: Option<KnownPart>,
    /// NMSE of a second right run against the reference, where that was measured here.
    pub noise: Option<f64>,
    /// What each stage of the comparison decided about it, where that differs from the stage before.
    pub log: Vec<LogEntry>,
}

impl TapReport {
    /// A tap that was not examined.
    pub fn unchecked(place: Place, op: String) -> TapReport {
        TapReport {
            place,
            op,
            status: Status::Unchecked,
            reason: None,
            metrics: None,
            balanced: None,
            worst_position: None,
            allowed: None,
            shape: Vec::new(),
            positions: None,
            is_last: false,
            is_pooled: false,
            layout: None,
            part: None,
            noise: None,
            log: Vec::new(),
        }
    }

    /// Whether it holds the reference's values in another order that each side may choose.
    pub fn is_in_own_order(&self) -> bool {
        matches!(self.reason, Some(Reason::OrderOfExperts))
    }

    /// Whether errors of its inputs may explain its error or not.
    pub fn is_inconclusive(&self) -> bool {
        matches!(self.reason, Some(Reason::Inconclusive))
    }

    /// Whether it may stand in another order of axes, in none of which that was tried it agrees.
    pub fn is_in_an_unknown_order(&self) -> bool {
        matches!(self.reason, Some(Reason::OrderUnknown))
    }

    /// Whether it was not compared because tokens went to other experts, here or earlier.
    pub fn is_of_other_experts(&self) -> bool {
        matches!(self.reason, Some(Reason::OtherExperts { .. } | Reason::BehindOtherExperts(_)))
    }

    /// The reason in words, behind the known part where only a part is known.
    pub fn why(&self) -> Option<String> {
        let (part, reason) =
            (self.part.as_ref().map(KnownPart::to_string), self.reason.as_ref().map(Reason::to_string));
        [part, reason].into_iter().flatten().reduce(|part, reason| format!("{part}; {reason}"))
    }

    /// Its error as a multiple of that of a second right run, where one was given (`--noise`).
    pub fn over_noise(&self) -> Option<f64> {
        Some(self.size()? / self.noise?)
    }

    /// How far off it is as a whole: its NMSE, or its balanced NMSE with room for how positions scatter, whichever is larger.
    pub fn size(&self) -> Option<f64> {
        Some(size(self.metrics?.nmse()?, self.balanced))
    }

    /// Index along every axis of the largest difference, in a tensor of all the step's token positions.
    pub fn max_at(&self) -> Option<Vec<usize>> {
        let peak = self.metrics?.max_abs_diff()?;
        let index = self.part.as_ref().map_or(Some(peak.index), |part| part.elements.get(peak.index).copied())?;
        let mut at = unravel(index, &self.shape);
        let axis = self.place.tap.site.position_axis();
        if let Some(row) = at.get_mut(axis) {
            *row = self.position(*row);
        }
        Some(at)
    }

    /// `head 2, position 4, channel 1` for an index along the tap's axes.
    pub fn index_in_words(&self, at: &[usize]) -> String {
        let axis = self.place.tap.site.position_axis();
        let words = index_in_words(self.place.tap.site, at);
        match at.get(axis).filter(|_| self.is_last) {
            _ if self.is_pooled => format!("{at:?}"),
            Some(row) => words.replacen(&format!("position {row}"), "the last position", 1),
            None => words,
        }
    }

    /// The token position, within the step, of row `row` of what was compared.
    pub fn position(&self, row: usize) -> usize {
        self.positions.as_ref().and_then(|list| list.get(row)).copied().unwrap_or(row)
    }
}

/// What was compared of a tap that is known in part.
#[derive(Clone, Debug)]
pub struct KnownPart {
    /// The indices of the elements that were compared.
    pub elements: Arc<[usize]>,
    /// How many elements the tensor has.
    pub total: usize,
    /// How exactly they were printed, where they were.
    pub precision: Option<String>,
}

impl KnownPart {
    pub(crate) fn new(elements: Arc<[usize]>, total: usize, part: &Partial) -> KnownPart {
        KnownPart { elements, total, precision: part.precision() }
    }

    /// Whether no element is missing.
    pub fn is_all(&self) -> bool {
        self.elements.len() == self.total
    }
}

impl fmt::Display for KnownPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} values", self.elements.len(), self.total)?;
        self.precision.as_ref().map_or(Ok(()), |precision| write!(f, ", {precision}"))
    }
}

/// The first tap that differs though everything it reads agrees.
#[derive(Clone, Debug)]
pub struct FirstDivergence {
    /// Its index in [`Report::taps`].
    pub index: usize,
    /// The last tap before it, among those it depends on, that agrees. `None`: the tokens themselves.
    pub after: Option<Place>,
    /// What its operation reads, where that is known.
    pub reads: Vec<Place>,
    /// Whether its inputs are known; for a tap outside the vocabulary they may not be.
    pub inputs_known: bool,
    /// Unchecked taps between the two: the fault may be in any of their operations.
    pub unchecked_between: Vec<Place>,
    /// Layers in between of which neither dump holds a tap; none in a model's own graph.
    pub unrecorded_layers: Vec<UnrecordedLayers>,
    /// The first tap computed from it that agrees again, where all that is computed from it ends in such taps: the difference reaches no further.
    pub recovers_at: Option<Place>,
    /// The taps in between, which differ too.
    pub recovers_behind: Vec<Place>,
    /// Attention lies between it and the taps that agree, and only some token positions were compared: keys or values of the others may have been wrong
    /// before, so that no operation can be blamed.
    pub keys_not_compared: bool,
    /// The error in detail.
    pub anatomy: Anatomy,
}

impl FirstDivergence {
    /// Whether all its inputs were compared and agree, so that no other operation can have caused it.
    pub fn is_bracketed(&self) -> bool {
        self.inputs_known
            && self.unchecked_between.is_empty()
            && self.unrecorded_layers.is_empty()
            && !self.keys_not_compared
    }
}

/// The outcome of a comparison.
#[derive(Clone, Debug)]
pub struct Report {
    /// The conclusion.
    pub verdict: Verdict,
    /// The arithmetic by which agreement was judged.
    pub profile: Profile,
    /// The type in which keys and values were assumed to be cached, on either side.
    pub cache: Cache,
    /// Token positions of the prefill: that of decode step n is `prompt + n - 1`.
    pub prompt: usize,
    /// The first divergence, where there is one.
    pub first: Option<FirstDivergence>,
    /// Whether only other choices of experts, which rounding decides, keep it from parity.
    pub is_of_experts_alone: bool,
    /// Every tap either side recorded, in the order they are produced.
    pub taps: Vec<TapReport>,
    /// What this run could not have shown, and other notes.
    pub warnings: Vec<Warning>,
    /// Names of tensors that a dump.json lists as taps on one side, and that the other side lacks there.
    pub one_sided: Vec<String>,
    /// Names in either dump that are no taps.
    pub unmapped: Vec<String>,
    /// How the two runs were aligned, where their chunks differ: a place's step is then the number of its cell.
    pub alignment: Option<Arc<ChunkAlignment>>,
}

impl Report {
    /// The report of a tap in a step.
    pub fn tap(&self, tap: Tap, step: u32) -> Option<&TapReport> {
        self.taps.iter().find(|t| t.place == Place { step, tap })
    }

    /// The name of a place: its tap, and where in the run it is.
    pub fn name(&self, place: Place) -> String {
        name_of(self.alignment.as_deref(), place)
    }

    /// The token position, in the whole sequence, of position `within` of a step.
    pub fn token_position(&self, step: u32, within: usize) -> usize {
        within + start(self.alignment.as_deref(), self.prompt, step)
    }

    /// How many taps have a status for which `is` holds.
    pub fn count(&self, is: impl Fn(Status) -> bool) -> usize {
        self.taps.iter().filter(|t| is(t.status)).count()
    }
}

/// The token position at which a step begins, or a cell of runs that were aligned.
pub(crate) fn start(alignment: Option<&ChunkAlignment>, prompt: usize, step: u32) -> usize {
    let cell = alignment.map(|alignment| alignment.cells.get(step as usize).map_or(0, |cell| cell.start));
    cell.unwrap_or_else(|| step.checked_sub(1).map_or(0, |decoded| prompt + decoded as usize))
}

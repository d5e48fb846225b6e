//! Defines the report of `compare`, which those of `gate` and `bisect` contain.

use firstdiff_compare::{ChunkAlignment, Report, Status, TapReport, UnrecordedLayers, Warning};
use serde::Serialize;

use crate::report::when::when;
use crate::report::{
    CoarserProfileReport, Conclusion, Counts, Diagnosis, Header, JudgedIn, Measures, NoiseRun, Provenance, TapEntry,
    Why, names, next_step, not_checked, unmapped_hint,
};
use crate::session::{ByModel, Comparison};
use crate::words::{by_channel, group};

/// The report of `firstdiff compare`, which those of `gate`, `bisect` and `report` contain.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "comparison"))]
pub struct Compare {
    /// Schema and command.
    #[serde(flatten)]
    pub header: Header,
    /// What is concluded.
    #[serde(flatten)]
    pub conclusion: Conclusion,
    /// The arithmetic in which it was judged.
    #[serde(flatten)]
    pub judged_in: JudgedIn,
    /// The side that shows the type of a cache, where that is assumed.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["reference", "candidate", null])))]
    pub cache_shown_by: Option<&'static str>,
    /// The second right run.
    pub noise: Option<NoiseRun>,
    /// The reference.
    pub reference: Provenance,
    /// The candidate.
    pub candidate: Provenance,
    /// The first tap that differs though all its inputs agree.
    pub first_divergence: Option<FirstDivergence>,
    /// All taps that differ though all their inputs agree.
    pub diverged: Vec<String>,
    /// How many taps have which status.
    pub counts: Counts,
    /// Every tap of either side, in the order they are produced.
    pub taps: Vec<TapEntry>,
    /// Names of tensors that a dump.json lists as taps in one dump, and that the other dump lacks there.
    pub one_sided: Vec<String>,
    /// Names in either dump that are no taps.
    pub unmapped: Vec<String>,
    /// Where most names of a side are no taps: the command that proposes taps for them.
    pub unmapped_hint: Option<String>,
    /// What was not checked, and why, in lines.
    pub not_checked: Vec<String>,
    /// What to do next about the first divergence.
    pub next: Option<String>,
    /// What this run could not have shown, and other notes.
    pub warnings: Vec<String>,
    /// How the two were aligned by token position, where their chunks differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alignment: Option<Alignment>,
    /// Taps that had to be compared (`--require`) and were not; absent where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub required_unchecked: Vec<RequiredUnchecked>,
    /// The log of the taps that `--why` asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<Vec<Why>>,
}

/// A tap that had to be compared and was not.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RequiredUnchecked {
    /// Its name.
    pub tap: String,
    /// 0 is the prefill; in an alignment, the number of its cell.
    pub step: u32,
    /// The tap and where in the run it is, in words.
    pub place: String,
    /// Why it was not compared.
    pub reason: Option<String>,
}

/// The first tap that differs though all its inputs agree.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FirstDivergence {
    /// Its name.
    pub tap: String,
    /// 0 is the prefill; in an alignment, the number of its cell.
    pub step: u32,
    /// Its layer.
    pub layer: Option<u32>,
    /// The operation that makes it.
    pub op: String,
    /// The tap and where in the run it is, in words.
    pub place: String,
    /// Which steps or positions are right, and which is the first wrong one.
    pub when: Option<String>,
    /// How far off it is.
    #[serde(flatten)]
    pub measures: Measures,
    /// The last tap before it that agrees; null: the tokens themselves.
    pub after: Option<String>,
    /// What its operation reads in the same step.
    pub reads: Vec<String>,
    /// Whether its inputs are known; for a tap outside the vocabulary they may not be.
    pub inputs_known: bool,
    /// Layers in between of which neither dump holds a tap.
    pub unrecorded_layers: Vec<UnrecordedLayersReport>,
    /// Taps in between that were not checked: the fault may be in any of their operations.
    pub unchecked_between: Vec<String>,
    /// The first tap behind it that agrees again: the difference reaches no further.
    pub recovers_at: Option<String>,
    /// Whether keys and values of token positions that were not compared are read on the way.
    pub keys_not_compared: bool,
    /// Why it differs, where its size alone does not show that.
    pub reason: Option<String>,
    /// Where in the tensor the error is, in words.
    #[serde(rename = "where")]
    pub regions: Vec<Region>,
    /// The error in detail.
    pub anatomy: Anatomy,
    /// In an alignment, the first token position of its cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// The cause, where a model was given and a known mistake gives the candidate's numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<Diagnosis>,
    /// Whether, by the model, the candidate's result is right for its inputs: the reference may be the wrong side.
    pub candidate_is_right: bool,
}

/// Where along one axis an error is.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Region {
    /// `positions`, `heads`, `ranks`, `channels` or `keys`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["positions", "heads", "ranks", "channels", "keys"])))]
    pub axis: &'static str,
    /// Which are right, and how far off the others are.
    pub text: String,
}

/// Layers of which no tap was recorded.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "missing"))]
pub struct UnrecordedLayersReport {
    /// The last layer before them.
    pub after: Option<u32>,
    /// The first layer behind them.
    pub before: Option<u32>,
}

/// The error of one tap, taken apart.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Anatomy {
    /// NMSE of each position.
    pub positions: Vec<f64>,
    /// NMSE of each head.
    pub heads: Vec<f64>,
    /// Share of the whole error in each channel; for scores, in each key.
    pub channels: Vec<f64>,
    /// The best constant factor.
    pub factor: Option<Factor>,
    /// The error of each rank's part.
    pub ranks: Vec<Rank>,
    /// Simple changes that leave no more than rounding, those with the fewest free numbers first.
    pub explained_by: Vec<SimpleChange>,
}

/// A constant factor on the reference.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Factor {
    /// The factor.
    pub factor: f64,
    /// NMSE that remains once it is divided out.
    pub remaining_nmse: f64,
}

/// The error of one rank's part.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rank {
    /// The rank's folder.
    pub rank: String,
    /// The part of the tap that it holds.
    pub part: String,
    /// NMSE of that part.
    pub nmse: f64,
    /// Whether that is within what is allowed.
    pub right: bool,
}

/// A change that turns the reference into the candidate, to rounding.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "explains"))]
pub struct SimpleChange {
    /// The change, in words.
    pub change: String,
    /// NMSE that it leaves.
    pub residual_nmse: f64,
}

/// Two runs aligned by token position.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Alignment {
    /// The chunks in which the reference took the tokens.
    pub reference: Chunks,
    /// The chunks in which the candidate took them.
    pub candidate: Chunks,
    /// How many positions are compared.
    pub together: usize,
    /// From which position on the two were fed different tokens.
    pub tokens_differ_at: Option<usize>,
    /// Ranges of positions that both sides took in one step; a tap's `step` is the number of its cell.
    pub cells: Vec<Cell>,
    /// The counts of taps, prefill and decode apart, where a side has both.
    pub phases: Option<Phases>,
}

/// How a run took its tokens.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Chunks {
    /// In words.
    pub how: String,
    /// Tokens of each step.
    pub steps: Vec<usize>,
}

/// Positions that both sides took in one step.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cell {
    /// The first, and one past the last.
    pub positions: [usize; 2],
    /// The reference's step.
    pub reference_step: Option<u32>,
    /// The candidate's step.
    pub candidate_step: Option<u32>,
}

/// The counts of taps in each phase.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Phases {
    /// In the prefill.
    pub prefill: Phase,
    /// In the decode steps.
    pub decode: Phase,
}

/// How many taps of a phase agree, differ, or were not checked.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Phase {
    /// Exact, or within rounding.
    pub agree: usize,
    /// Diverged or downstream.
    pub differ: usize,
    /// Not compared.
    pub unchecked: usize,
}

impl Compare {
    /// The report of a comparison, for `command`.
    pub fn new(command: &'static str, judged: &Comparison) -> Compare {
        let Comparison { session, report, .. } = judged;
        let diverged = report.taps.iter().filter(|t| t.status == Status::Diverged);
        let [reference, candidate] = session.recorded();
        Compare {
            header: Header::new(command),
            conclusion: Conclusion::new(&report.verdict),
            judged_in: JudgedIn {
                profile: report.profile.name(),
                profile_reason: session.profile_reason.clone(),
                profile_loosened: CoarserProfileReport::new(session.coarser_profile),
                cache: report.cache.name(),
                cache_is_assumed: session.cache_shown_by().is_some(),
            },
            cache_shown_by: session.cache_shown_by(),
            noise: session.noise.as_ref().map(|second| NoiseRun::new(second, report)),
            reference: Provenance::new(reference),
            candidate: Provenance::new(candidate),
            first_divergence: FirstDivergence::new(judged),
            diverged: diverged.map(|t| t.place.tap.to_string()).collect(),
            counts: Counts::count(&report.taps),
            taps: report.taps.iter().map(TapEntry::new).collect(),
            one_sided: report.one_sided.clone(),
            unmapped: report.unmapped.clone(),
            unmapped_hint: unmapped_hint(judged),
            not_checked: not_checked(report, &session.candidate.path().to_string_lossy()),
            next: report.first.as_ref().map(|first| next_step(judged, first, &report.taps[first.index])),
            warnings: report.warnings.iter().map(Warning::to_string).collect(),
            alignment: report.alignment.as_ref().map(|alignment| Alignment::new(alignment, report)),
            required_unchecked: Vec::new(),
            why: None,
        }
    }
}

impl RequiredUnchecked {
    /// The entry of a tap of a comparison.
    pub fn new(report: &Report, tap: &TapReport) -> RequiredUnchecked {
        RequiredUnchecked {
            tap: tap.place.tap.to_string(),
            step: tap.place.step,
            place: report.name(tap.place),
            reason: tap
                .why()
                .or_else(|| tap.status.agrees().then(|| "compared in part: one dump holds no more".to_owned())),
        }
    }
}

impl FirstDivergence {
    fn new(judged: &Comparison) -> Option<FirstDivergence> {
        let Comparison { session, report, why, .. } = judged;
        let first = report.first.as_ref()?;
        let tap = &report.taps[first.index];
        let step = tap.place.step;
        let reads = first.reads.iter().filter(|p| p.step == step).map(|p| p.tap);
        let (candidate_is_right, why) = match why {
            Some(ByModel::Cause(cause)) => (false, Some((**cause).clone())),
            Some(ByModel::Right) => (true, None),
            None => (false, None),
        };
        Some(FirstDivergence {
            tap: tap.place.tap.to_string(),
            step,
            layer: tap.place.tap.layer,
            op: tap.op.clone(),
            place: report.name(tap.place),
            when: when(report, tap.place, session.options.only.is_some()),
            measures: Measures::new(tap),
            after: first.after.map(|p| p.tap.to_string()),
            reads: names(reads),
            inputs_known: first.inputs_known,
            unrecorded_layers: first.unrecorded_layers.iter().map(UnrecordedLayersReport::new).collect(),
            unchecked_between: names(first.unchecked_between.iter().map(|p| p.tap)),
            recovers_at: first.recovers_at.map(|p| p.tap.to_string()),
            keys_not_compared: first.keys_not_compared,
            reason: tap.why(),
            regions: Region::all(report, tap, &first.anatomy),
            anatomy: Anatomy::new(&first.anatomy),
            position: report
                .alignment
                .as_ref()
                .and_then(|alignment| alignment.cells.get(step as usize))
                .map(|cell| cell.start),
            why,
            candidate_is_right,
        })
    }
}

impl UnrecordedLayersReport {
    fn new(missing: &UnrecordedLayers) -> UnrecordedLayersReport {
        UnrecordedLayersReport { after: missing.after, before: missing.before }
    }
}

impl Anatomy {
    fn new(anatomy: &firstdiff_compare::Anatomy) -> Anatomy {
        let rank = |r: &firstdiff_compare::RankError| Rank {
            rank: r.name.clone(),
            part: r.part.clone(),
            nmse: r.nmse,
            right: r.right,
        };
        Anatomy {
            positions: anatomy.positions.clone(),
            heads: anatomy.heads.clone(),
            channels: anatomy.channels.clone(),
            factor: anatomy.factor.map(|(factor, remaining_nmse)| Factor { factor, remaining_nmse }),
            ranks: anatomy.ranks.iter().map(rank).collect(),
            explained_by: (anatomy.explained_by.iter())
                .map(|u| SimpleChange { change: u.change.to_string(), residual_nmse: u.residual_nmse })
                .collect(),
        }
    }
}

impl Alignment {
    fn new(alignment: &ChunkAlignment, report: &Report) -> Alignment {
        let chunks = |run: &firstdiff_compare::Chunks| Chunks { how: run.to_string(), steps: run.lengths.clone() };
        let cell = |cell: &std::ops::Range<usize>| Cell {
            positions: [cell.start, cell.end],
            reference_step: alignment.reference.step_of(cell.start),
            candidate_step: alignment.candidate.step_of(cell.start),
        };
        let phase = |prefill: bool| {
            let counts =
                Counts::count(report.taps.iter().filter(|tap| alignment.is_prefill(tap.place.step) == Some(prefill)));
            Phase { agree: counts.agree(), differ: counts.differ(), unchecked: counts.unchecked }
        };
        Alignment {
            reference: chunks(&alignment.reference),
            candidate: chunks(&alignment.candidate),
            together: alignment.common_positions(),
            tokens_differ_at: alignment.tokens_differ_at,
            cells: alignment.cells.iter().map(cell).collect(),
            phases: alignment.phased().map(|_| Phases { prefill: phase(true), decode: phase(false) }),
        }
    }
}

impl Region {
    fn all(report: &Report, tap: &TapReport, anatomy: &firstdiff_compare::Anatomy) -> Vec<Region> {
        let allowed = tap.allowed.unwrap_or(0.0);
        let mut regions = Vec::new();
        let mut region = |axis: &'static str, text: String| regions.push(Region { axis, text });
        if anatomy.positions.len() > 1 {
            let label = |row| report.token_position(tap.place.step, tap.position(row));
            region("positions", group(&anatomy.positions, allowed, "position", "wrong", label));
        }
        if anatomy.heads.len() > 1 {
            region("heads", group(&anatomy.heads, allowed, "head", "wrong", |head| head));
        }
        if let Some(text) = anatomy.ranks_in_words() {
            region("ranks", text);
        }
        let of_keys = tap.shape.len() > 2 && tap.place.tap.last_site().axes().last() == Some(&'S');
        let (axis, name) = if of_keys { ("keys", "key") } else { ("channels", "channel") };
        if let Some(text) = by_channel(&anatomy.channels, &anatomy.channel_nmse, allowed, name) {
            region(axis, text);
        }
        regions
    }
}

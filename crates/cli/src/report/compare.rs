//! Where do two runs part? What `compare` says; `gate` and `bisect` say the same and more.

use firstdiff_compare::{Laid, Report, Status, TapReport, UnrecordedLayers, Warning};
use serde::Serialize;

use crate::report::{
    Conclusion, Diagnosis, Header, Loosened, Measures, NoiseRun, Provenance, TapEntry, Why, names, when,
};
use crate::session::{self, Judged};

/// The report of `firstdiff compare`.
#[derive(Clone, Debug, Serialize)]
pub struct Compare {
    /// Schema and command.
    #[serde(flatten)]
    pub header: Header,
    /// What is concluded.
    #[serde(flatten)]
    pub conclusion: Conclusion,
    /// In whose arithmetic it was judged.
    pub profile: &'static str,
    /// Where only the candidate's own word asks for one so coarse.
    pub profile_loosened: Option<Loosened>,
    /// The type in which keys and values were taken to be kept.
    pub cache: &'static str,
    /// Whether nobody says so, and a side shows it.
    pub cache_is_assumed: bool,
    /// The second right run.
    pub noise: Option<NoiseRun>,
    /// The reference.
    pub reference: Provenance,
    /// The candidate.
    pub candidate: Provenance,
    /// The first tap that differs though all it reads agrees.
    pub first_divergence: Option<FirstDivergence>,
    /// All taps that differ though all they read agrees.
    pub diverged: Vec<String>,
    /// Every tap of either side, in the order they are produced.
    pub taps: Vec<TapEntry>,
    /// Names in either dump that are no taps.
    #[serde(rename = "unnamed")]
    pub unmapped: Vec<String>,
    /// What this run could not have shown, and what else should be known.
    pub warnings: Vec<String>,
    /// How the two were aligned by token position, where they took the tokens in other chunks.
    #[serde(rename = "laid", skip_serializing_if = "Option::is_none")]
    pub alignment: Option<Alignment>,
    /// The log of the taps that `--why` asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<Vec<Why>>,
}

/// The first tap that differs though all it reads agrees.
#[derive(Clone, Debug, Serialize)]
pub struct FirstDivergence {
    /// Its name.
    pub tap: String,
    /// 0 is the prefill; of an alignment the number of its cell.
    pub step: u32,
    /// Its layer.
    pub layer: Option<u32>,
    /// The operation that makes it.
    pub op: String,
    /// How far off it is.
    #[serde(flatten)]
    pub measures: Measures,
    /// The last tap before it that agrees; null: the tokens themselves.
    pub after: Option<String>,
    /// Layers in between of which neither dump holds a tap.
    pub unrecorded_layers: Vec<Missing>,
    /// Taps in between that were not checked: the fault may be in any of their operations.
    pub unchecked_between: Vec<String>,
    /// The first tap behind it that agrees again: the difference reaches no further.
    #[serde(rename = "harmless_from")]
    pub recovers_at: Option<String>,
    /// Keys and values of token positions that were not compared are read on the way.
    #[serde(rename = "unseen_keys")]
    pub keys_not_compared: bool,
    /// Why it differs, where its size alone does not tell.
    pub reason: Option<String>,
    /// The error looked at closely.
    pub anatomy: Anatomy,
    /// Where it is by token position, of runs that were aligned so.
    #[serde(flatten)]
    pub aligned: Option<Aligned>,
    /// The cause, where a model was given and a known mistake gives the candidate's numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<Diagnosis>,
}

/// Where a divergence is by token position.
#[derive(Clone, Debug, Serialize)]
pub struct Aligned {
    /// The first token position of its cell.
    pub position: Option<usize>,
    /// The tap and its positions, in words.
    pub place: String,
    /// Which positions are right, and which is the first wrong one.
    pub when: String,
}

/// Layers of which nothing was recorded.
#[derive(Clone, Debug, Serialize)]
pub struct Missing {
    /// The last layer before them.
    pub after: Option<u32>,
    /// The first layer behind them.
    pub before: Option<u32>,
}

/// The error of one tap, taken apart.
#[derive(Clone, Debug, Serialize)]
pub struct Anatomy {
    /// NMSE of each position.
    pub positions: Vec<f64>,
    /// NMSE of each head.
    pub heads: Vec<f64>,
    /// Share of the whole error in each channel; of scores, each key.
    pub channels: Vec<f64>,
    /// The best constant factor.
    pub factor: Option<Factor>,
    /// The error of each rank's part.
    pub ranks: Vec<Rank>,
    /// Simple changes that leave no more than rounding, the least first.
    #[serde(rename = "undone_by")]
    pub explained_by: Vec<Explains>,
}

/// A constant factor on the reference.
#[derive(Clone, Debug, Serialize)]
pub struct Factor {
    /// The factor.
    pub factor: f64,
    /// NMSE that remains once it is divided out.
    pub remaining_nmse: f64,
}

/// The error of one rank's part.
#[derive(Clone, Debug, Serialize)]
pub struct Rank {
    /// The rank's folder.
    pub rank: String,
    /// What of the tap it holds.
    pub part: String,
    /// NMSE of that part.
    pub nmse: f64,
    /// Whether that is within what is allowed.
    pub right: bool,
}

/// A change that turns the reference into the candidate, to rounding.
#[derive(Clone, Debug, Serialize)]
pub struct Explains {
    /// The change, in words.
    pub change: String,
    /// NMSE that it leaves.
    pub residual_nmse: f64,
}

/// Two runs aligned by token position.
#[derive(Clone, Debug, Serialize)]
pub struct Alignment {
    /// How the reference took the tokens.
    pub reference: Chunks,
    /// How the candidate did.
    pub candidate: Chunks,
    /// How many positions stand against each other.
    pub together: usize,
    /// From which position on the two were fed different tokens.
    pub tokens_differ_at: Option<usize>,
    /// Runs of positions that both sides took in one step; a tap's `step` is the number of its cell.
    pub cells: Vec<Cell>,
    /// How the taps stand, prefill and decode apart, where a side has both.
    pub phases: Option<Phases>,
}

/// How a run took its tokens.
#[derive(Clone, Debug, Serialize)]
pub struct Chunks {
    /// In words.
    pub how: String,
    /// Tokens of each step.
    pub steps: Vec<usize>,
}

/// Positions that both sides took in one step.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// From, and up to but without.
    pub positions: [usize; 2],
    /// The reference's step.
    pub reference_step: Option<u32>,
    /// The candidate's step.
    pub candidate_step: Option<u32>,
}

/// How the taps stand in each phase.
#[derive(Clone, Debug, Serialize)]
pub struct Phases {
    /// In the prefill.
    pub prefill: Counts,
    /// In the decode steps.
    pub decode: Counts,
}

/// How many taps agree, differ, or were not checked.
#[derive(Clone, Debug, Serialize)]
pub struct Counts {
    /// Exact, or within rounding.
    pub agree: usize,
    /// Diverged or downstream.
    pub differ: usize,
    /// Not compared.
    pub unchecked: usize,
}

impl Compare {
    /// The report of a comparison, for the command that made it.
    pub fn of(command: &'static str, judged: &Judged) -> Compare {
        let Judged { session, report, .. } = judged;
        let diverged = report.taps.iter().filter(|t| t.status == Status::Diverged);
        let [reference, candidate] = session.recorded();
        Compare {
            header: Header::of(command),
            conclusion: Conclusion::of(&report.verdict),
            profile: report.profile.name(),
            profile_loosened: Loosened::of(session.loosened),
            cache: report.cache.name(),
            cache_is_assumed: session.cache_is_assumed(),
            noise: session.noise.as_ref().map(NoiseRun::of),
            reference: Provenance::of(reference),
            candidate: Provenance::of(candidate),
            first_divergence: FirstDivergence::of(judged),
            diverged: diverged.map(|t| t.place.tap.to_string()).collect(),
            taps: report.taps.iter().map(TapEntry::of).collect(),
            unmapped: report.unnamed.clone(),
            warnings: report.warnings.iter().map(Warning::to_string).collect(),
            alignment: report.laid.as_ref().map(|laid| Alignment::of(laid, report)),
            why: None,
        }
    }
}

impl FirstDivergence {
    fn of(judged: &Judged) -> Option<FirstDivergence> {
        let Judged { session, report, why } = judged;
        let first = report.first.as_ref()?;
        let tap = &report.taps[first.index];
        let step = tap.place.step;
        let aligned = report.laid.as_ref().map(|laid| Aligned {
            position: laid.cells.get(step as usize).map(|cell| cell.start),
            place: report.name(tap.place),
            when: when(laid, report, step, session.options.only.is_some()),
        });
        let why = match why {
            Some(session::cause::Why::Cause { finding, fix, .. }) => {
                Some(Diagnosis::with_fix(finding, Some(fix.clone())))
            }
            _ => None,
        };
        Some(FirstDivergence {
            tap: tap.place.tap.to_string(),
            step,
            layer: tap.place.tap.layer,
            op: tap.op.clone(),
            measures: Measures::of(tap),
            after: first.after.map(|p| p.tap.to_string()),
            unrecorded_layers: first.unrecorded_layers.iter().map(Missing::of).collect(),
            unchecked_between: names(first.unchecked_between.iter().map(|p| p.tap)),
            recovers_at: first.harmless_from.map(|p| p.tap.to_string()),
            keys_not_compared: first.unseen_keys,
            reason: tap.why(),
            anatomy: Anatomy::of(&first.anatomy),
            aligned,
            why,
        })
    }
}

impl Missing {
    fn of(missing: &UnrecordedLayers) -> Missing {
        Missing { after: missing.after, before: missing.before }
    }
}

impl Anatomy {
    fn of(anatomy: &firstdiff_compare::Anatomy) -> Anatomy {
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
            explained_by: (anatomy.undone_by.iter())
                .map(|u| Explains { change: u.change.to_string(), residual_nmse: u.residual_nmse })
                .collect(),
        }
    }
}

impl Alignment {
    fn of(laid: &Laid, report: &Report) -> Alignment {
        let chunks = |run: &firstdiff_compare::Chunks| Chunks { how: run.to_string(), steps: run.lengths.clone() };
        let cell = |cell: &std::ops::Range<usize>| Cell {
            positions: [cell.start, cell.end],
            reference_step: laid.reference.step_of(cell.start),
            candidate_step: laid.candidate.step_of(cell.start),
        };
        let counts = |prefill: bool| {
            Counts::of(report.taps.iter().filter(|tap| {
                let start = laid.cells.get(tap.place.step as usize).map_or(0, |cell| cell.start);
                laid.phased().is_some_and(|run| (run.step_of(start) == Some(0)) == prefill)
            }))
        };
        Alignment {
            reference: chunks(&laid.reference),
            candidate: chunks(&laid.candidate),
            together: laid.together(),
            tokens_differ_at: laid.parted,
            cells: laid.cells.iter().map(cell).collect(),
            phases: laid.phased().map(|_| Phases { prefill: counts(true), decode: counts(false) }),
        }
    }
}

impl Counts {
    pub(crate) fn of<'a>(taps: impl Iterator<Item = &'a TapReport>) -> Counts {
        let mut counts = Counts { agree: 0, differ: 0, unchecked: 0 };
        for tap in taps {
            match tap.status {
                Status::Exact | Status::Rounding => counts.agree += 1,
                Status::Diverged | Status::Downstream => counts.differ += 1,
                Status::Unchecked => counts.unchecked += 1,
            }
        }
        counts
    }
}

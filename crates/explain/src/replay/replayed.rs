//! Defines what a replay is told, and what it says of each tap.

use firstdiff_compare::{Chunks, Place, SeenPadding, Status, TapReport};
use firstdiff_model::{Cache, ModelError, Profile};
use firstdiff_program::EvaluateError;
use firstdiff_trace::{Dump, DumpError, Rows, Site, Tap};
use serde::Serialize;

use crate::replay::reason::Reason;
use crate::replay::residual::Fit;

/// How to judge.
#[derive(Clone, Debug)]
pub struct Options {
    /// In what arithmetic a right candidate works.
    pub profile: Profile,
    /// The type the candidate keeps keys and values in; `None` where nobody says: then it is what fits.
    pub cache: Option<Cache>,
    /// Tokens of the prefill; where they are not known, any others, as many.
    pub tokens: Vec<u32>,
    /// Whether they are known: the embedding is judged only then.
    pub tokens_are_known: bool,
    /// Tokens of the steps after it: one each, or the chunks of a prompt that was taken in several.
    pub decode_tokens: Vec<Vec<u32>>,
    /// Which positions taps with fewer than all hold, where the dump does not say.
    pub rows: Option<Rows>,
    /// Scores that leave keys of padding unmasked, as the dump shows before its padding is cut off.
    pub padding: Vec<SeenPadding>,
}

impl Options {
    /// As dump.json says; `None` where an id in it is none.
    pub fn declared(dump: &Dump, profile: Profile) -> Option<Options> {
        let meta = dump.meta();
        let ids = |list: Option<&Vec<i64>>| -> Option<Vec<u32>> {
            list.into_iter().flatten().map(|&id| u32::try_from(id).ok()).collect()
        };
        let (tokens, decoded) = (ids(meta.tokens.as_ref())?, ids(meta.decode_tokens.as_ref())?);
        let (tokens, decode_tokens) = shared_out(dump, &tokens, &decoded);
        let cache = match (profile, &meta.cache) {
            (Profile::Ggml { cache }, _) => Some(cache),
            (_, told) => told.as_ref().and_then(|told| told.parse().ok()),
        };
        let (tokens_are_known, padding) = (meta.tokens.is_some(), Vec::new());
        Some(Options { profile, cache, tokens, tokens_are_known, decode_tokens, rows: None, padding })
    }
}

/// The tokens of the prefill and of each step after it: as the dump's own steps have them where `tokens` and `decoded` are all of theirs,
/// else one a step.
pub fn shared_out(dump: &Dump, tokens: &[u32], decoded: &[u32]) -> (Vec<u32>, Vec<Vec<u32>>) {
    let all = [tokens, decoded].concat();
    match Chunks::find(dump).filter(|chunks| chunks.total() == all.len()) {
        Some(chunks) => {
            let mut steps = chunks.ranges().into_iter().map(|range| all[range].to_vec());
            (steps.next().unwrap_or_default(), steps.collect())
        }
        None => (tokens.to_vec(), decoded.iter().map(|&id| vec![id]).collect()),
    }
}

/// Why a replay could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The model cannot be run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The dump cannot be read.
    #[error(transparent)]
    Dump(#[from] DumpError),
    /// The candidate cannot be read beside its reference.
    #[error(transparent)]
    Read(Box<dyn std::error::Error + Send + Sync>),
    /// The recorded program cannot be evaluated.
    #[error(transparent)]
    Program(#[from] EvaluateError),
}

/// One operation, judged on the candidate's own inputs.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// Status, measures against the right value, tolerance; its reason is [`Replayed::reason`].
    pub report: TapReport,
    /// Why it is wrong, or why nothing is said of it.
    pub reason: Option<Reason>,
    /// NMSE against the value in f64.
    pub exact_nmse: Option<f64>,
    /// Taps between the recorded inputs and this one that were computed: the fault may be in any of them.
    pub through: Vec<Tap>,
    /// The recorded taps it was computed from.
    pub from: Vec<Tap>,
    /// Of a wrong one, the rows whose own error is above what is allowed.
    pub wrong_rows: Vec<usize>,
    /// What it may take up that an earlier pass left, in words: no dump holds that.
    pub takes_up: Option<&'static str>,
    /// Of a wrong one that is made by several operations of a program, in words: any of them may be it.
    pub stretch: Option<String>,
    /// What comes out of the value that is due here and not of the recorded one: the recording is wrong, not the operation.
    pub misrecorded: Vec<Place>,
    /// What is right by what stands before this tap, and takes back what is off here. Of a right tap: what was made of a wrong one on the way there.
    pub taken_back: Vec<Place>,
    /// Of a wrong residual add, what was added.
    pub fit: Option<Fit>,
}

impl Replayed {
    /// A tap of which nothing else is known yet.
    pub(crate) fn of(report: TapReport) -> Replayed {
        Replayed {
            report,
            reason: None,
            fit: None,
            exact_nmse: None,
            through: Vec::new(),
            from: Vec::new(),
            wrong_rows: Vec::new(),
            takes_up: None,
            stretch: None,
            misrecorded: Vec::new(),
            taken_back: Vec::new(),
        }
    }

    /// Whether its operation is wrong where the tap is: it is not just recorded wrongly, and nothing takes back what is off.
    pub fn is_blamed(&self) -> bool {
        self.misrecorded.is_empty() && self.taken_back.is_empty()
    }

    /// Whether it is wrong, and its operation is to be blamed.
    pub fn is_at_fault(&self) -> bool {
        self.report.status == Status::Diverged && self.is_blamed()
    }

    /// Notes where what is off here is so no more. Where something right was made of it on the way, it is taken back; else its recording is wrong.
    pub(crate) fn is_right_again_at(&mut self, reader: Place, is_taken_back: bool) {
        if is_taken_back && self.taken_back.is_empty() {
            self.taken_back = std::mem::take(&mut self.misrecorded);
        }
        match self.taken_back.is_empty() && !is_taken_back {
            true => self.misrecorded.push(reader),
            false => self.taken_back.push(reader),
        }
    }

    /// Whether its reason is one for which `is` holds.
    pub fn is_for(&self, is: impl Fn(&Reason) -> bool) -> bool {
        self.reason.as_ref().is_some_and(is)
    }

    /// The tap as compare lists one, with the reason in words.
    pub fn listed(&self) -> TapReport {
        let reason = self.reason.as_ref().map(|reason| firstdiff_compare::Reason::Other(reason.to_string()));
        TapReport { reason, ..self.report.clone() }
    }
}

/// The tokens that one router sends to other experts than the reference's did.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// Where it chooses.
    pub place: Place,
    /// How many tokens it has.
    pub rows: usize,
    /// Those that go elsewhere.
    pub tokens: Vec<Rerouted>,
    /// A margin that is no larger is one of rounding.
    pub rounding: f64,
}

/// A token that goes to other experts.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rerouted {
    /// The token.
    #[serde(rename = "token")]
    pub row: usize,
    /// The experts that the candidate chose and the reference did not.
    pub taken: Vec<usize>,
    /// Those that the reference chose and the candidate did not.
    pub left: Vec<usize>,
    /// By how much the candidate's scores of those taken are above those of those left, as a share of the largest; below 0 where they are not.
    pub margin: Option<f64>,
}

impl Routing {
    /// Whether rounding decides between what is taken and what is left, of every token.
    pub fn is_rounding(&self) -> bool {
        self.tokens.iter().all(|token| token.margin.is_some_and(|margin| margin.abs() <= self.rounding))
    }

    /// The largest margin, and the token that has it.
    pub fn widest(&self) -> Option<&Rerouted> {
        let size = |token: &Rerouted| token.margin.map_or(-1.0, f64::abs);
        self.tokens.iter().max_by(|a, b| size(a).total_cmp(&size(b)))
    }
}

/// All operations of a candidate, judged.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Every tap the candidate recorded, and every one of the Plan it did not, in the order of the Plan.
    pub taps: Vec<Replayed>,
    /// Which tokens go to other experts than in the reference, router by router.
    pub routing: Vec<Routing>,
    /// What else should be known.
    pub warnings: Vec<String>,
    /// The type the candidate keeps keys and values in.
    pub cache: Cache,
    /// Whether nobody says so, and it is taken because attention comes out right with it and not without.
    pub cache_is_assumed: bool,
}

impl Replay {
    /// How many taps have a status for which `is` holds.
    pub fn count(&self, is: impl Fn(Status) -> bool) -> usize {
        self.taps.iter().filter(|t| is(t.report.status)).count()
    }

    /// Whether some of these taps were recorded, at some token positions only.
    pub fn is_held_in_part(&self, taps: &[Tap]) -> bool {
        self.taps.iter().any(|t| t.report.positions.is_some() && taps.contains(&t.report.place.tap))
    }

    /// Wrong operations, the same one of several layers together, in the order of the Plan.
    pub fn wrong(&self) -> Vec<Vec<&Replayed>> {
        let mut groups: Vec<Vec<&Replayed>> = Vec::new();
        for tap in self.taps.iter().filter(|t| t.report.status == Status::Diverged) {
            let key = |t: &Replayed| {
                let through: Vec<Site> = t.through.iter().map(|t| t.site).collect();
                let of_reference = t.is_for(Reason::is_of_the_reference);
                (t.report.place.tap.site, through, t.misrecorded.is_empty(), t.taken_back.is_empty(), of_reference)
            };
            match groups.iter_mut().find(|group| key(group[0]) == key(tap)) {
                Some(group) => group.push(tap),
                None => groups.push(vec![tap]),
            }
        }
        groups
    }
}

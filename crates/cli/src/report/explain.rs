//! Defines the report of `explain`: the cause of each fault.

use std::collections::BTreeSet;

use firstdiff_compare::{Status, Verdict, number};
use firstdiff_explain::explain::{Counted, Finding, Match};
use firstdiff_explain::replay::{Replay, Replayed};
use firstdiff_trace::{Dump, Site, Tap};
use serde::Serialize;

use crate::report::{
    Compare, Conclusion, Diagnosis, EngineRunReport, Header, KeptRuns, Provenance, ReplayInputs, names,
};
use crate::session::cause::beside_another_arithmetic;
use crate::session::next_taps::{dividing_taps, positions};
use crate::session::replay::ReplaySession;
use crate::words::{layers_in_short, layers_of, shorten};

/// The report of `firstdiff report`: where two runs diverge and, where the model is available, why.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "report"))]
pub struct CompareAndExplain {
    /// The comparison.
    #[serde(flatten)]
    pub compare: Compare,
    /// What `explain` says; null where nothing differs, or no model is available.
    pub explained: Option<Explain>,
    /// Why no cause could be searched, where that is so.
    pub no_cause: Option<String>,
}

/// The report of `firstdiff explain`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Explain {
    /// Schema and command.
    #[serde(flatten)]
    pub header: Header,
    /// What is concluded.
    #[serde(flatten)]
    pub conclusion: Conclusion,
    /// What was judged, and in which arithmetic.
    #[serde(flatten)]
    pub judged: ReplayInputs,
    /// Each fault, with all places where it was found.
    pub findings: Vec<Explained>,
    /// Ids of mistakes that these recordings could not have shown.
    pub not_testable: Vec<String>,
    /// The result for a reference (`--ref`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<OfReference>,
    /// What an engine was asked for (`--run`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<EngineQueries>,
}

/// What an engine was asked for, run by run.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "asked"))]
pub struct EngineQueries {
    /// The engine's command line.
    pub engine: String,
    /// The folder of the runs; the dump of all that was written is its `evidence`.
    pub work: String,
    /// Every run.
    pub runs: Vec<EngineRunReport>,
    /// The runs of an earlier start.
    pub kept_runs: Option<KeptRuns>,
    /// Bytes that the engine wrote.
    pub bytes: u64,
    /// Taps that it was asked for and did not write.
    pub not_written: Vec<String>,
    /// Other notes.
    pub notes: Vec<String>,
}

/// One fault.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Explained {
    /// The first tap whose operation is wrong.
    pub tap: Option<String>,
    /// All of them, in the order of the Plan.
    pub taps: Vec<String>,
    /// The same in words.
    pub place: String,
    /// Other taps at which the same may be done: they are right with it as they are without it.
    pub untold: Vec<String>,
    #[serde(skip)]
    pub(crate) untold_in_words: String,
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
    #[serde(skip)]
    pub(crate) size_in_words: String,
    /// Why the first tap is wrong, where its size alone does not show that.
    pub reason: Option<String>,
    /// Taps between the recorded ones: the fault may be in any of them.
    pub span: Vec<String>,
    /// All mistakes that were tried, and the least error that each leaves.
    pub tried: Vec<Tried>,
    /// Mistakes, and sets of them, that were not tried for lack of time.
    pub untried: usize,
    /// Ids that are ruled out, in the forms that were tried.
    pub ruled_out: Vec<&'static str>,
    /// Another note.
    pub note: Option<String>,
    /// What to do next, where that is not to fix it.
    pub next: Option<String>,
    /// Taps to record next, to find out in which layer it is, or which operation it is, and to measure it.
    pub record_next: Vec<String>,
    /// The token positions of the step that are wrong at the first tap that shows it, where some are right.
    pub wrong_positions: Option<Vec<usize>>,
    #[serde(skip)]
    pub(crate) positions_in_words: Option<String>,
}

/// How far off a fault's taps are.
fn size_in_words(finding: &Finding) -> String {
    match (finding.counted, number(finding.base_nmse)) {
        _ if !finding.base_nmse.is_finite() => "not finite".to_owned(),
        (Counted::OneSided, size) => {
            format!("{size}: NMSE, and the share of cells that are masked or no number on one side alone")
        }
        (_, size) => format!("NMSE {size}"),
    }
}

/// A mistake that was tried.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Tried {
    /// Its id.
    pub cause: &'static str,
    /// The least NMSE that it leaves.
    pub residual_nmse: f64,
}

/// A reference, explained like a candidate.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OfReference {
    /// The conclusion about it.
    #[serde(flatten)]
    pub conclusion: Conclusion,
    /// Where it comes from.
    pub candidate: Provenance,
    /// Its faults.
    pub findings: Vec<Explained>,
}

impl Explain {
    pub(crate) fn new(
        session: &ReplaySession,
        verdict: &Verdict,
        not_testable: &[String],
        reference: Option<&ReplaySession>,
    ) -> Explain {
        Explain {
            header: Header::new("explain"),
            conclusion: Conclusion::new(verdict),
            judged: ReplayInputs::new(session),
            findings: Explained::all(session),
            not_testable: not_testable.to_vec(),
            reference: reference.map(OfReference::new),
            asked: None,
        }
    }
}

impl OfReference {
    fn new(session: &ReplaySession) -> OfReference {
        OfReference {
            conclusion: Conclusion::new(&session.verdict()),
            candidate: Provenance::new(&session.input.dump),
            findings: Explained::all(session),
        }
    }
}

impl Explained {
    fn all(session: &ReplaySession) -> Vec<Explained> {
        session.findings.iter().map(|finding| Explained::new(session, finding)).collect()
    }

    fn new(session: &ReplaySession, finding: &Finding) -> Explained {
        // A mistake that leaves almost nothing here is contradicted only elsewhere: these numbers do not rule it out.
        let is_ruled_out = |id: &str, left: f64| {
            finding.alternatives.iter().all(|near| near.id != id) && left > NEXT_TO_NOTHING * finding.base_nmse
        };
        let open = finding.cause.is_none() && finding.through.is_empty();
        let is_unknown = matches!(finding.matched, Match::Unknown | Match::Closest) && finding.arithmetic.is_none();
        let to_record = not_recorded(finding, &session.replay, &session.input.dump);
        let steps = session.steps_in_words(&finding.shown_at, &finding.untold);
        let from = steps.map_or(String::new(), |steps| format!(", {steps}"));
        let shown = |t: &&Replayed| finding.shown_at.contains(&t.report.place);
        let first = session.replay.taps.iter().find(shown);
        let reason = first.and_then(|t| t.reason.as_ref());
        let wrong = first.and_then(|tap| positions(tap, session.input.source.judged()));
        // Where other taps show the fault at other positions, those of the first tap are given as its own.
        let mut others = session.replay.taps.iter().filter(shown);
        let own =
            first.filter(|first| others.any(|t| t.wrong_rows != first.wrong_rows)).map(|first| first.report.place);
        let own = own.map_or(String::new(), |place| format!(" ({place})"));
        let tried = finding.tried.iter().map(|(&cause, &residual_nmse)| Tried { cause, residual_nmse });
        let mut untold: Vec<Tap> = Vec::new();
        // What tells in one step tells.
        let tells = |tap: &Tap| finding.taps.contains(tap) || finding.shown_at.iter().any(|place| place.tap == *tap);
        for tap in finding.untold.iter().map(|place| place.tap).filter(|tap| !tells(tap)) {
            untold.extend((!untold.contains(&tap)).then_some(tap));
        }
        let at_least = if untold.is_empty() { "" } else { "at least " };
        // The same mistake in one of these gives the same numbers.
        let or = match finding.cause.is_some() && !finding.through.is_empty() {
            true => format!(", or {}", where_of(&finding.through)),
            false => String::new(),
        };
        Explained {
            tap: finding.taps.first().map(ToString::to_string),
            taps: names(&finding.taps),
            place: at_least.to_owned() + &where_of(&finding.taps) + &or + &from,
            untold: names(&untold),
            untold_in_words: where_of(&untold),
            shown_at: names(&finding.shown_at),
            op: finding.op.clone(),
            layers: finding.taps.iter().filter_map(|t| t.layer).collect(),
            diagnosis: crate::session::diagnosis::diagnosis(finding),
            base_nmse: finding.base_nmse,
            size_in_words: size_in_words(finding),
            reason: reason.filter(|reason| !reason.is_size_alone()).map(ToString::to_string),
            span: names(&finding.through),
            tried: tried.collect(),
            untried: finding.untried,
            ruled_out: finding
                .tried
                .iter()
                .filter(|(id, left)| open && is_ruled_out(id, **left))
                .map(|(id, _)| *id)
                .collect(),
            note: finding.note.clone(),
            next: next(finding, &session.replay, &to_record),
            record_next: if is_unknown { names(&to_record) } else { Vec::new() },
            positions_in_words: wrong.as_ref().map(|wrong| positions_in_words(wrong) + &own),
            wrong_positions: wrong.map(|(wrong, _)| wrong),
        }
    }
}

/// The share of an error that a mistake may leave without being ruled out.
const NEXT_TO_NOTHING: f64 = 1e-2;

/// The taps that divide the span of a fault, and are not in the candidate's dump.
fn not_recorded(finding: &Finding, replay: &Replay, candidate: &Dump) -> Vec<Tap> {
    unrecorded(dividing_taps(replay, &finding.through), replay, candidate)
}

/// Those of some taps that are not in the candidate's dump, or in part.
pub(super) fn unrecorded(taps: Vec<Tap>, replay: &Replay, candidate: &Dump) -> Vec<Tap> {
    let entries = candidate.all_entries();
    let is_there = |tap: &Tap| entries.iter().any(|entry| entry.tap == *tap);
    taps.into_iter().filter(|tap| !is_there(tap) || replay.is_held_in_part(&[*tap])).collect()
}

/// What is to be done where the taps between were recorded.
pub(super) const NOT_JUDGED: &str =
    "the taps in between were recorded, and could not be judged: see what was not checked";

/// `wrong at positions 5 to 13, right before`.
fn positions_in_words((wrong, right_before): &(Vec<usize>, bool)) -> String {
    let (first, last) = (wrong[0], wrong[wrong.len() - 1]);
    match last - first + 1 == wrong.len() {
        true if *right_before && wrong.len() > 1 => format!("wrong at positions {first} to {last}, right before"),
        _ => format!("wrong at positions {}", layers_in_short(wrong.iter().map(|&at| at as u32))),
    }
}

/// The most names of taps in a list.
const MOST_NAMES: usize = 24;

/// The next step for a fault without a cause.
fn next(finding: &Finding, replay: &Replay, to_record: &[Tap]) -> Option<String> {
    match (finding.matched, finding.through.as_slice()) {
        _ if let Some(other) = &finding.arithmetic => Some(beside_another_arithmetic(other)),
        (Match::Reproduced, _) => None,
        _ if !finding.is_blamed() => None,
        (Match::Measured, _) => {
            let tried = finding.tried.len();
            Some(format!(
                "no listed mistake gives it in the forms and places tried here ({tried}): look in your code for what it says"
            ))
        }
        (_, []) => Some(this_code(finding, replay)),
        _ => {
            if to_record.is_empty() {
                return Some(NOT_JUDGED.into());
            }
            let layers: BTreeSet<_> = to_record.iter().filter_map(Tap::block).collect();
            let tells = if layers.len() > 1 { "in which layer it is" } else { "between which of them it is" };
            Some(format!(
                "record {}{} as well: that tells {tells} (explain --run 'ENGINE' asks for what it needs)",
                if replay.is_held_in_part(to_record) { "all token positions of " } else { "" },
                shorten(&names(to_record), MOST_NAMES)
            ))
        }
    }
}

/// Where to look for an operation that is wrong for its own inputs: that shows nothing about its weights, nor about a state that no dump holds.
fn this_code(finding: &Finding, replay: &Replay) -> String {
    let own = || replay.taps.iter().filter(|t| finding.shown_at.contains(&t.report.place));
    let is_read = |t: &&Replayed| {
        own().any(|own| own.report.place.step == t.report.place.step && own.from.contains(&t.report.place.tap))
    };
    let is_stretch = own().any(|tap| tap.stretch.is_some());
    let code = if is_stretch { "look at the code of all these operations" } else { "look at this code" };
    let state = own().find_map(|t| t.takes_up).map_or(String::new(), |state| format!(", {state} (not recorded)"));
    let mut text = format!(
        "{code}, its weights{state} and what it is passed: of the inputs that were recorded another value is due"
    );
    for (how, is) in [("wrong too", Status::Diverged), ("not checked", Status::Unchecked)] {
        let taps = replay.taps.iter().filter(is_read).filter(|t| t.report.status == is && t.is_blamed());
        let taps = names(taps.map(|t| t.report.place).collect::<Vec<_>>());
        text += &if taps.is_empty() { String::new() } else { format!("; {how}: {}", shorten(&taps, MOST_NAMES)) };
    }
    text
}

/// `layers 0-2, q_rope and k_rope; layer 1, h`; of another stack `encoder layers 1-2, h`.
pub(crate) fn where_of(taps: &[Tap]) -> String {
    // Each site once, with its layers; sites of the same layers stand together.
    let mut sites: Vec<(&str, Site)> = Vec::new();
    for site in taps.iter().map(|tap| (tap.stack(), tap.site)) {
        sites.extend((!sites.contains(&site)).then_some(site));
    }
    let mut parts: Vec<(String, Vec<&str>)> = Vec::new();
    for site in sites {
        let layers = layers_of(taps.iter().copied().filter(|tap| (tap.stack(), tap.site) == site));
        match parts.iter_mut().find(|(of, _)| *of == layers) {
            Some((_, names)) => names.push(site.1.name()),
            None => parts.push((layers, vec![site.1.name()])),
        }
    }
    let words = parts.into_iter().map(|(layers, names)| {
        let names = match names.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
            _ => names.join(""),
        };
        if layers.is_empty() { names } else { format!("{layers}, {names}") }
    });
    words.collect::<Vec<_>>().join("; ")
}

//! Asks a model about a candidate: runs `explain` with its progress, and says why a comparison found what it found.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use firstdiff_compare::{Place, Status, TapReport, TokenEdits};
use firstdiff_explain::explain::{Effort, Explanation, Finding, other_tokens};
use firstdiff_explain::mistakes::advice;
use firstdiff_trace::Dump;

use crate::progress::Bar;
use crate::session::cause::{cause_at, fix};
use crate::session::diagnosis::diagnosis_with_fix;
use crate::session::input::ReplayInput;
use crate::session::source::CandidateArgs;
use crate::session::{ByModel, Session, Tools};

/// Replays, and names the causes that are found quickly; up to `faults` mistakes in one operation.
///
/// # Errors
/// When a file cannot be read.
pub(crate) fn explain_quickly(given: &ReplayInput, faults: usize) -> anyhow::Result<Explanation> {
    let bar = Bar::new(&given.dump);
    let tell = |what: &str, done: usize, total: usize| {
        if what == "replay" {
            bar.step(done, total);
        }
    };
    let explanation = given.source.explained(&Effort { faults, ..Effort::quick() }, &tell)?;
    bar.finish();
    Ok(explanation)
}

/// Replays and explains with `effort`, and shows the progress.
///
/// # Errors
/// When a file cannot be read.
pub(crate) fn run_search(given: &ReplayInput, effort: &Effort) -> anyhow::Result<Explanation> {
    let bar = Mutex::new(Bar::with_text());
    let tell = |what: &str, done: usize, total: usize| {
        if let Ok(bar) = bar.lock() {
            bar.update(what, done, Some(total));
        }
    };
    let explanation = given.source.explained(effort, &tell)?;
    if let Ok(bar) = bar.into_inner() {
        bar.finish();
    }
    Ok(explanation)
}

/// The cause that the candidate was fed other tokens, as `tap` shows.
pub(crate) fn token_cause(edits: &TokenEdits, tap: &TapReport) -> ByModel {
    let nmse = tap.metrics.and_then(|metrics| metrics.nmse());
    let (cause, finding) = other_tokens(edits, tap.place, nmse.unwrap_or(f64::INFINITY));
    by_model(&finding, advice(cause.id).to_owned())
}

fn by_model(finding: &Finding, fix: String) -> ByModel {
    ByModel::Cause(Box::new(diagnosis_with_fix(finding, Some(fix))))
}

/// The candidate of a comparison beside a model; of the same prompt as the reference, where that is so. Where the two sides are aligned by position, each
/// divides the tokens among its own steps.
fn beside_model(model: &Path, session: &Session, is_same_prompt: bool) -> anyhow::Result<ReplayInput> {
    let [reference, candidate] = session.recorded().map(Dump::meta);
    let tokens = |own: &Option<Vec<i64>>, other: &Option<Vec<i64>>| {
        let other = other.as_ref().filter(|_| is_same_prompt);
        own.as_ref().or(other).and_then(|tokens| crate::session::ids(tokens).ok())
    };
    let (tokens, decode_tokens) = match session.alignment() {
        Some(alignment) => (tokens(&alignment.candidate.ids, &alignment.reference.ids), None),
        None => {
            (tokens(&candidate.tokens, &reference.tokens), tokens(&candidate.decode_tokens, &reference.decode_tokens))
        }
    };
    let args = CandidateArgs {
        model: model.to_owned(),
        weights: None,
        candidate: Some(session.candidate.path().to_owned()),
        profile: Some(session.options.profile),
        cache: session.known_cache(),
        tokens,
        decode_tokens,
        rows: session.options.rows.clone(),
        reading: session.reading.clone(),
    };
    args.open()
}

/// Of taps that agree in a comparison, those that a model shows to be wrong of what they are made of, with the NMSE that it allows: an arithmetic's table has
/// room for many operations, and a model judges each by itself. None where the model cannot be asked, or knows none of the candidate's steps.
pub(crate) fn wrong_by_model(model: &Path, session: &Session, taps: &[TapReport]) -> BTreeMap<Place, f64> {
    let Some(given) = beside_model(model, session, true).ok().filter(|_| session.alignment().is_none()) else {
        return BTreeMap::new();
    };
    let replayed = given.source.replayed().map(|replay| replay.taps).unwrap_or_default();
    let agrees = |place: Place| taps.iter().any(|tap| tap.place == place && tap.status.agrees());
    let wrong = replayed.iter().map(|tap| &tap.report).filter(|tap| tap.status == Status::Diverged);
    wrong.filter(|tap| agrees(tap.place)).map(|tap| (tap.place, tap.allowed.unwrap_or(0.0))).collect()
}

/// A sign that a sequence of another prompt, which is not compared, is no right run: by its values alone, or by the model where there is one.
pub(crate) fn sign_of_error(session: &Session) -> anyhow::Result<Option<String>> {
    let by_itself = (Tools::NONE.sign_of_error)(session)?;
    let (None, Some(model)) = (&by_itself, &session.model) else { return Ok(by_itself) };
    let Ok(given) = beside_model(model, session, false) else { return Ok(None) };
    let replay = given.source.replayed()?;
    let wrong = replay.taps.iter().map(|tap| &tap.report).find(|tap| tap.status == Status::Diverged);
    Ok(wrong.map(|tap| format!("{} is not what the model makes of what was recorded before it", tap.place)))
}

/// Why a candidate diverges from its reference at `place`, whose inputs were all compared or not; `None` where a quick search does not show it. A cause that
/// the rest of the dump contradicts is not used.
pub(crate) fn explain_divergence(model: &Path, session: &Session, place: Place, inputs_agree: bool) -> Option<ByModel> {
    let place = match session.alignment() {
        Some(alignment) => {
            let step = alignment.candidate.step_of(alignment.cells.get(place.step as usize)?.start)?;
            Place { step, ..place }
        }
        None => place,
    };
    let given = beside_model(model, session, true).ok()?;
    let explanation = run_search(&given, &Effort::quick()).ok()?;
    if let Some((finding, cause)) = cause_at(&explanation.findings, place) {
        return Some(by_model(finding, fix(cause.id, finding)));
    }
    let taps = &explanation.replay.taps;
    let judged = taps.iter().find(|t| t.report.place == place)?;
    let blameless = inputs_agree && taps.iter().all(|t| t.report.status != Status::Diverged);
    (blameless
        && explanation.replay.warnings.is_empty()
        && judged.report.status.agrees()
        && judged.through.is_empty()
        && judged.report.positions.is_none())
    .then_some(ByModel::Right)
}

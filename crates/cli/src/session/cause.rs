//! Words a proved cause in the same way on the screens of explain, replay and compare: what it is, the proof, and what to change.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use firstdiff_compare::{Place, Status, TapReport, TokenEdits, number};
use firstdiff_explain::OtherArithmetic;
use firstdiff_explain::explain::{Cause, Counted, Effort, Explanation, Finding, Match, other_tokens};
use firstdiff_explain::mistakes::{advice, what};
use firstdiff_parity::report::IN_PROBABILITIES;
use firstdiff_trace::Dump;

use crate::progress::Bar;
use crate::session::diagnosis::diagnosis_with_fix;
use crate::session::input::ReplayInput;
use crate::session::source::CandidateArgs;
use crate::session::{ByModel, Session, Tools};
use crate::words::shorten;

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

/// The proved cause of what one recorded tap shows, and its finding.
pub(crate) fn cause_at(findings: &[Finding], place: Place) -> Option<(&Finding, &Cause)> {
    causes_at(findings, place).next()
}

/// Every proved cause that shows at a place: it may have several together.
pub(crate) fn causes_at(findings: &[Finding], place: Place) -> impl Iterator<Item = (&Finding, &Cause)> {
    let stated = findings.iter().filter(move |f| f.matched == Match::Reproduced && f.shown_at.contains(&place));
    stated.filter_map(|finding| Some((finding, finding.cause.as_ref()?)))
}

/// `the rotation has another base (rope-theta, theta 10000)`.
pub(crate) fn cause_text(cause: &Cause) -> String {
    format!("{} ({})", what(cause.id), in_words(cause))
}

/// `with this mistake in the model the error falls from NMSE 0.74 to 3e-14; and with .. too`; of causes that give a place together what each leaves alone too.
pub(crate) fn proof(finding: &Finding) -> String {
    let Finding { together, alone_nmse, residual_nmse, base_nmse, .. } = finding;
    if *base_nmse == 0.0 {
        return "what was recorded shows it".to_owned();
    }
    let counted = match finding.counted {
        Counted::All => "",
        Counted::MaskedKeys => ", of the probabilities of masked keys",
        Counted::OfProbabilities => IN_PROBABILITIES,
        Counted::OneSided => ", with the share of the cells that are masked or no number on one side alone",
    };
    let and_others = match together.is_empty() {
        true => String::new(),
        false => format!(" and {}", shorten(&together.iter().map(in_words).collect::<Vec<_>>(), 4)),
    };
    let [base, left] = [*base_nmse, *residual_nmse].map(number);
    let mut proof = match residual_nmse < base_nmse {
        true => {
            format!("with this mistake{and_others} in the model the error falls from NMSE {base} to {left}{counted}")
        }
        false => format!("with this{and_others} in the model NMSE {left} is left, and {base} without it{counted}"),
    };
    if !together.is_empty() {
        proof.push_str(&format!("; with this one alone to {}", number(*alone_nmse)));
    }
    if !finding.alternatives.is_empty() {
        let others: Vec<String> = finding.alternatives.iter().map(in_words).collect();
        proof.push_str(&format!("; so does {}", shorten(&others, 4)));
    }
    proof
}

/// `another arithmetic, not a mistake: all 45 products with weights are off alike ..`, and which one it looks like.
pub(crate) fn arithmetic_text(other: &OtherArithmetic) -> [String; 2] {
    let [least, most] = other.nmse.map(number);
    let rest = if other.alone { "; every other operation is right" } else { "" };
    let all = if other.places.len() == other.judged { "all" } else { "nearly all" };
    let what = format!(
        "another arithmetic, not a mistake: {all} products with weights ({} of {}) are off alike, NMSE {least} to {most}, and without structure{rest}",
        other.places.len(),
        other.judged
    );
    let which = match other.nearest {
        Some(rounding) if other.is_reproduced() => {
            format!(
                "it is {} (with it the error falls from NMSE {most} to {})",
                rounding.words(),
                number(other.residual_nmse)
            )
        }
        Some(rounding) => format!(
            "it looks like {}, but is not quite it: with that {:.0} % of the error is left (at the median)",
            rounding.words(),
            100.0 * other.share
        ),
        None => {
            "no rounding of weights or activations to 8 or 4 bits that is known here gives these numbers".to_owned()
        }
    };
    [what, which]
}

/// The next step for another arithmetic.
pub(crate) fn beside_another_arithmetic(other: &OtherArithmetic) -> String {
    let weights = match other.nearest {
        Some(rounding) if !rounding.is_of_weights_alone() => "",
        _ => "give the engine's own (dequantised) weights as MODEL: they give parity if that is all; or ",
    };
    format!(
        "it is not parity: {weights}compare it beside a second right run of that arithmetic (compare --noise REF2), or hold it to what it is (gate --update \
         --accept-diverged)"
    )
}

/// What to change, with the right number.
pub(crate) fn fix(id: &str, finding: &Finding) -> String {
    if let Some(other) = &finding.arithmetic {
        return beside_another_arithmetic(other);
    }
    let due = finding.due.as_ref().map_or_else(String::new, |value| format!(": {value}"));
    let where_it_is = if finding.through.is_empty() { "" } else { "; at which of the places named, is not told" };
    // Other mistakes that give the same numbers are as likely, but are fixed differently: the first few of them.
    let mut known = vec![advice(id)];
    let other = |other: &Cause| {
        let advice = advice(other.id);
        let is_new = known.len() < 3 && !known.contains(&advice);
        known.extend(is_new.then_some(advice));
        is_new.then(|| format!("; or, if it is {}: {advice}", other.id))
    };
    // Where the reference's own number and line are known, they also fix the other mistakes.
    let is_told = finding.due.is_some();
    let others: String = finding.alternatives.iter().filter(|_| !is_told).filter_map(other).collect();
    format!("{}{due}{where_it_is}{others}", advice(id))
}

/// `rope-theta, theta 10000`.
pub(crate) fn in_words(cause: &Cause) -> String {
    let params = cause
        .params
        .iter()
        .map(|(name, value)| format!(", {name} {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned)));
    format!("{}{}", cause.id, params.collect::<String>())
}

//! Renders the answer of `explain`: each finding with its cause, its proof, and what to change.

use firstdiff_compare::{Verdict, number};
use firstdiff_explain::mistakes::find;

use crate::render::replay::{heading, notes_section, right_of_all};
use crate::render::screen::{BAD, BOLD, DIM, GOOD, Screen, WARN, paint};
use crate::report::{self, CauseCertainty, Diagnosis, Explain, Explained, OfReference, ReplayInputs, Residual, Tried};
use crate::session::arithmetic::parity;
use crate::session::replay::ReplaySession;
use crate::words::{in_bytes, safe, shorten, taps_in_words};

/// The answer for a terminal.
pub(crate) fn render(session: &ReplaySession, report: &Explain, verdict: &Verdict, verbose: bool) -> Screen {
    let mut screen = Screen::default();
    if report.asked.is_some() {
        screen.line("");
    }
    heading(&mut screen, session, &report.judged);
    screen.line("");
    match verdict {
        Verdict::Parity => {
            let text = right_of_all(session, &report.judged.counts);
            let (how, assumed) = (paint(GOOD, &parity(session.input.coarser_profile)), session.assumed_cache());
            screen.line(&format!("{how} {text}; there is nothing to explain{assumed}"));
        }
        Verdict::Incomparable(reason) => screen.line(&format!("{} {reason}", paint(WARN, "incomparable:"))),
        Verdict::Diverged => {
            let right = taps_in_words(report.judged.counts.agree());
            let summary_text = summary(&report.findings);
            screen.line(&format!(
                "{} {summary_text}; {right} right{}",
                paint(BAD, "diverged:"),
                session.assumed_cache()
            ));
            report.findings.iter().for_each(|found| finding(&mut screen, &report.judged, found, verbose));
        }
    }
    notes_section(&mut screen, &report.judged);
    if let Some(queries) = &report.asked {
        let count = if queries.runs.len() == 1 { "1 run".to_owned() } else { format!("{} runs", queries.runs.len()) };
        screen.line(&paint(DIM, &format!("{count} of the engine, {}", in_bytes(queries.bytes))));
        queries.notes.iter().for_each(|note| screen.line(&format!("{} {}", paint(WARN, "note:"), safe(note))));
        if !queries.not_written.is_empty() {
            let names = safe(&shorten(&queries.not_written, 6));
            screen.line(&format!("{} asked for, and not written: {names}", paint(WARN, "note:")));
        }
    }
    if !report.not_testable.is_empty() {
        let list = report.not_testable.join(", ");
        screen.line(&format!("{} {list}", paint(WARN, "not testable with this dump:")));
    }
    if let Some(reference) = &report.reference {
        reference_section(&mut screen, &report.judged, reference);
    }
    screen
}

/// `2 causes proved, 1 fault unexplained`.
fn summary(findings: &[Explained]) -> String {
    let of = |kind: FindingStatus| findings.iter().filter(move |f| FindingStatus::from_diagnosis(&f.diagnosis) == kind);
    let count = |kind: FindingStatus| of(kind).count();
    let taps = |kind: FindingStatus| of(kind).map(|f| f.shown_at.len().max(f.taps.len())).sum();
    let counted = |n: usize, what: &str, how: &str| format!("{n} {what}{} {how}", if n == 1 { "" } else { "s" });
    let (arithmetic, taken_back) = (count(FindingStatus::OtherArithmetic), count(FindingStatus::TakenBack));
    let mut parts = vec![match (arithmetic, count(FindingStatus::Proved)) {
        (0, 0) if taken_back == findings.len() => "no mistake that is not taken back".to_owned(),
        (0, n) => counted(n, "cause", "proved"),
        (_, 0) => "another arithmetic, no mistake proved".to_owned(),
        (_, n) => format!("another arithmetic, and {}", counted(n, "cause", "proved")),
    }];
    for (n, what, how) in [
        (count(FindingStatus::Measured), "law", "measured"),
        (count(FindingStatus::Numbers), "fault", "measured, no law found"),
        (count(FindingStatus::Open), "fault", "unexplained"),
        (taps(FindingStatus::Misrecorded), "tap", "off, and what reads it right"),
        (taps(FindingStatus::TakenBack), "tap", "off by what is taken back"),
    ] {
        parts.extend((n > 0).then(|| counted(n, what, how)));
    }
    parts.join(", ")
}

/// What is known of a finding.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FindingStatus {
    OtherArithmetic,
    Proved,
    Measured,
    /// True numbers, of which no law is known.
    Numbers,
    Misrecorded,
    TakenBack,
    Open,
}

impl FindingStatus {
    fn from_diagnosis(diagnosis: &Diagnosis) -> FindingStatus {
        let rounds_otherwise = |id| find(id).is_some_and(|mistake| mistake.is_another_arithmetic);
        match diagnosis.matched {
            _ if diagnosis.arithmetic.is_some() || diagnosis.cause.is_some_and(rounds_otherwise) => {
                FindingStatus::OtherArithmetic
            }
            CauseCertainty::Reproduced => FindingStatus::Proved,
            CauseCertainty::Measured if diagnosis.measured.as_ref().is_some_and(|law| law.status == "table") => {
                FindingStatus::Numbers
            }
            CauseCertainty::Measured => FindingStatus::Measured,
            _ if !diagnosis.taken_back.is_empty() => FindingStatus::TakenBack,
            _ if !diagnosis.misrecorded.is_empty() => FindingStatus::Misrecorded,
            _ => FindingStatus::Open,
        }
    }
}

/// The cause, its proof, and what to change.
fn finding(screen: &mut Screen, inputs: &ReplayInputs, explained: &Explained, verbose: bool) {
    let (place, cause) = (paint(BOLD, &explained.place), &explained.diagnosis);
    match (&cause.summary, &cause.arithmetic) {
        (_, Some(other)) => {
            let [what, which] = &other.words;
            screen.line(&format!("  {place}: {what}"));
            screen.line(&format!("    {which}"));
            next(screen, explained);
        }
        (Some(summary), None) => {
            screen.line(&format!("  {place}: {summary}"));
            screen.line(&format!("    {}", cause.proof.as_deref().unwrap_or_default()));
            if let Some(law) = &cause.measured {
                screen.line(&format!("    measured: {}", safe(&law.words)));
            }
            screen.line(&format!("    {} {}", paint(DIM, "fix:"), cause.fix.as_deref().unwrap_or_default()));
            if !explained.untold.is_empty() {
                let places = safe(&explained.untold_in_words);
                screen.line(&format!("    come out with it as without it, so that they do not tell: {places}"));
            }
            if verbose && !explained.tried.is_empty() {
                screen.line(&format!("    tried, and what each leaves: {}", tried_causes(explained, true).join(", ")));
            }
        }
        _ if !cause.misrecorded.is_empty() => {
            screen.line(&format!("  {place}: off, and what reads it is right ({})", explained.size_in_words));
        }
        _ if !cause.taken_back.is_empty() => {
            screen.line(&format!("  {place}: off, and taken back later ({})", explained.size_in_words));
        }
        _ if let Some(law) = &cause.measured => {
            screen.line(&format!("  {place}: {}", safe(&law.words)));
            let known = if law.status == "table" { "true numbers, no law found" } else { "measured" };
            screen.line(&format!("    {known}: {}", law.proof()));
            if !law.equivalent.is_empty() {
                screen.line(&format!("    the same here: {}", safe(&shorten(&law.equivalent, 3))));
            }
            next(screen, explained);
        }
        _ => open_finding(screen, inputs, explained, verbose),
    }
    if let Some(note) = &explained.note {
        screen.line(&format!("    {} {}", paint(WARN, "note:"), safe(note)));
    }
}

fn next(screen: &mut Screen, explained: &Explained) {
    if let Some(text) = &explained.next {
        screen.line(&format!("    {} {text}", paint(DIM, "next:")));
    }
}

/// A fault without a cause: the nearest mistake, and what is ruled out.
fn open_finding(screen: &mut Screen, inputs: &ReplayInputs, explained: &Explained, verbose: bool) {
    let what = match explained.span.len() {
        0 => explained.op.clone(),
        n => format!("wrong in what makes one of {} taps up to here", n + 1),
    };
    let place = paint(BOLD, &explained.place);
    let is_given = explained.diagnosis.matched == CauseCertainty::Closest && explained.note.is_some();
    let how = match is_given {
        true => "no cause is proved".to_owned(),
        false if explained.tried.is_empty() => "no cause is known".to_owned(),
        false => format!("none of the mistakes tried here ({}) reproduces it", explained.tried.len()),
    };
    screen.line(&format!("  {place}: {what}, {how} ({})", explained.size_in_words));
    if let Some(reason) = &explained.reason {
        screen.line(&format!("    {}", safe(reason)));
    }
    if let Some(words) = &explained.positions_in_words {
        screen.line(&format!("    {words}"));
    }
    if explained.diagnosis.matched == CauseCertainty::Closest {
        let near: Vec<String> = explained.diagnosis.also.iter().map(|near| near.words.clone()).collect();
        // Another mistake beside it, or another rounding, may be what is left.
        screen.line(&format!(
            "    nearest, not proved: {} {}",
            near.join(" with "),
            what_is_left(&explained.diagnosis)
        ));
    }
    let words = tried_causes(explained, verbose);
    if !words.is_empty() {
        let text = if verbose { words.join(", ") } else { shorten(&words, 8) };
        // Another fault may hide it; a variant that was not tried, or another place, may be the cause.
        screen.line(&format!("    none of these alone reproduces it, in the forms and places tried here: {text}"));
    }
    if explained.untried > 0 {
        let text =
            format!("{} mistakes, in some layer alone or at all, for want of time (--seconds)", explained.untried);
        screen.line(&format!("    {} {text}", paint(WARN, "not tried:")));
    }
    if explained.span.is_empty()
        && let Some(fit) =
            inputs.taps.iter().find(|t| Some(&t.entry.tap) == explained.tap.as_ref()).and_then(|t| t.fit.as_ref())
    {
        screen.line(&format!("    as a sum: {} (leaves NMSE {})", fit.words, number(fit.residual_nmse)));
    }
    next(screen, explained);
}

/// The result for a reference.
fn reference_section(screen: &mut Screen, inputs: &ReplayInputs, reference: &OfReference) {
    let path = safe(&reference.candidate.path);
    let text = match reference.conclusion.verdict {
        report::Verdict::Parity => format!("{path} is right by itself"),
        report::Verdict::Incomparable => {
            format!("{path}: {}", reference.conclusion.reason.as_deref().unwrap_or_default())
        }
        report::Verdict::Diverged => format!("{path} is wrong itself"),
    };
    screen.line("");
    screen.line(&format!("reference  {text}"));
    reference.findings.iter().for_each(|found| finding(screen, inputs, found, false));
}

/// The error that the nearest mistake leaves: where it leaves least, and where most.
fn what_is_left(cause: &Diagnosis) -> String {
    let by_rest = |a: &&Residual, b: &&Residual| a.residual_nmse.total_cmp(&b.residual_nmse);
    let (least, most) = (cause.residuals.iter().min_by(by_rest), cause.residuals.iter().max_by(by_rest));
    let left = |r: &Residual| format!("{} of {} at {}", number(r.residual_nmse), number(r.base_nmse), r.at);
    match (least, most) {
        (Some(least), Some(most)) if cause.residuals.len() > 1 => {
            format!("leaves NMSE {}, and {}", left(least), left(most))
        }
        (Some(one), _) => format!("leaves NMSE {}", left(one)),
        (None, _) => format!("leaves NMSE {}", number(cause.residual_nmse.unwrap_or(f64::NAN))),
    }
}

/// The ids that were tried, the nearest first, with what each leaves if `verbose`.
fn tried_causes(explained: &Explained, verbose: bool) -> Vec<String> {
    let mut tried: Vec<&Tried> = explained.tried.iter().collect();
    if explained.diagnosis.cause.is_none() {
        // Without the nearest ones, which are printed anyway.
        tried.retain(|other| explained.diagnosis.also.iter().all(|near| near.cause != other.cause));
    }
    tried.sort_by(|a, b| a.residual_nmse.total_cmp(&b.residual_nmse));
    let word =
        |t: &&Tried| if verbose { format!("{} ({})", t.cause, number(t.residual_nmse)) } else { t.cause.to_owned() };
    tried.iter().map(word).collect()
}

//! Describes a bisection: the answer in the words of `compare`, and its cost.

use std::collections::BTreeSet;

use firstdiff_compare::{FirstDivergence, Place, Reason, Report, Status, TapReport, Verdict};
use firstdiff_trace::Tap;

use crate::commands::bisect::{BisectionResult, EngineBisection};
use crate::driver::kept_runs::KeptRuns;
use crate::driver::render::{nondeterminism_text, run_report};
use crate::render::compare::divergence;
use crate::render::screen::{BAD, BOLD, DIM, GOOD, Screen, WARN, paint};
use crate::report::{Bisect, BisectComparison, Compare, SeenWhole, Unrepeated, next_step};
use crate::session::Comparison;
use crate::session::arithmetic::parity;
use crate::words::{between, in_bytes, safe, shorten, taps_in_words};

/// Whether something is neither right nor wrong.
pub(crate) fn unclear(report: &Report) -> bool {
    report.taps.iter().any(|t| t.reason == Some(Reason::Inconclusive))
}

/// The answer, and its cost.
pub(crate) fn answer(bisection: &EngineBisection, outcome: &BisectionResult) -> Screen {
    let mut screen = Screen::default();
    let BisectionResult::Answer(judged) = outcome else {
        if let BisectionResult::Wavers(wavering) = outcome {
            screen.line("");
            let at = paint(BOLD, &wavering.place.to_string());
            screen.line(&format!("{} two runs of one command differ at {at}", paint(WARN, "not deterministic:")));
        }
        cost(&mut screen, bisection);
        return screen;
    };
    screen.line("");
    screen.line(&paint(DIM, &format!("judged as  {} ({})", judged.report.profile, bisection.choice.reason)));
    let report = &judged.report;
    match (&report.verdict, &report.first) {
        (Verdict::Incomparable(reason), _) => screen.line(&format!("{} {}", paint(BAD, "incomparable:"), safe(reason))),
        (Verdict::Diverged, Some(_)) => {
            let compare_report = compared(bisection, judged);
            let mut ending = vec![("checked", coverage_text(bisection, judged).join("; "))];
            ending.extend(not_checked_text(bisection, judged).map(|names| ("not asked", names)));
            ending.extend(compare_report.next.clone().map(|next| ("next", next)));
            divergence(&mut screen, judged, &compare_report, &ending);
        }
        (Verdict::Diverged, None) => screen.line(&paint(BAD, "diverged")),
        (Verdict::Parity, _) => {
            let count = report.count(Status::agrees);
            let text =
                format!("{} looked at agree: {}", taps_in_words(count), coverage_text(bisection, judged).join("; "));
            screen.line(&format!("{} {text}", paint(GOOD, &parity(bisection.choice.coarser_profile))));
            screen.line("  what was not looked at is not known: a full dump and `compare` look at every tap");
        }
    }
    cost(&mut screen, bisection);
    for warning in &report.warnings {
        screen.line(&format!("{} {}", paint(WARN, "note:"), safe(&warning.to_string())));
    }
    screen
}

/// Which taps up to the answer were seen at all positions of all steps, and which at some; the last of them, which show most.
fn coverage_text(bisection: &EngineBisection, judged: &Comparison) -> Vec<String> {
    const MOST: usize = 6;
    let report = &judged.report;
    let end = report.first.as_ref().map_or(report.taps.len(), |first| first.index + 1);
    let seen = report.taps[..end].iter().filter(|t| t.metrics.is_some()).map(|t| t.place.tap);
    let is_whole =
        |place: Place| report.tap(place.tap, place.step).is_some_and(|t| t.metrics.is_some() && t.positions.is_none());
    let due =
        |tap| (0..=bisection.last_step).map(move |step| Place { tap, step }).filter(|p| bisection.reference.has(*p));
    let (whole, part): (BTreeSet<Tap>, BTreeSet<Tap>) = seen.partition(|tap| due(*tap).all(is_whole));
    let list = |taps: &BTreeSet<Tap>| {
        let names: Vec<String> = taps.iter().skip(taps.len().saturating_sub(MOST)).map(ToString::to_string).collect();
        names.join(", ")
    };
    let mut parts = Vec::new();
    if !whole.is_empty() {
        parts.push(format!("{}{}", if bisection.tokens > 1 { "at all positions " } else { "" }, list(&whole)));
    }
    if !part.is_empty() {
        parts.push(format!("at some positions {}", list(&part)));
    }
    parts
}

/// The taps before the answer in its layer that were not checked: they are not on the way to it, and may be wrong as well.
fn not_checked_text(bisection: &EngineBisection, judged: &Comparison) -> Option<String> {
    let first = judged.report.first.as_ref()?;
    let place = judged.report.taps[first.index].place;
    let seen = |p: &Place| judged.report.taps.iter().any(|t| t.place == *p && t.metrics.is_some());
    let before = |p: &&Place| p.step == place.step && p.tap.block() == place.tap.block();
    let open = |p: &&Place| bisection.reference.has(**p) && !seen(p) && !first.unchecked_between.contains(p);
    let earlier = judged.session.graph.places().iter().take_while(|p| **p != place);
    let places = earlier.filter(before).filter(open);
    let names: Vec<String> = places.map(|p| p.tap.to_string()).collect();
    (!names.is_empty()).then(|| shorten(&names, 6))
}

/// The comparison of all that was seen, with the next step for an engine.
fn compared(bisection: &EngineBisection, judged: &Comparison) -> Compare {
    let first = judged.report.first.as_ref();
    let next = first.map(|first| next(bisection, judged, first, &judged.report.taps[first.index]));
    Compare { next, ..Compare::new("bisect", judged) }
}

fn next(bisection: &EngineBisection, judged: &Comparison, first: &FirstDivergence, tap: &TapReport) -> String {
    let evidence = bisection.args.work.join("evidence");
    let evidence = safe(&evidence.to_string_lossy());
    if judged.why.is_some() || (first.unchecked_between.is_empty() && bisection.reference.model().is_none()) {
        return next_step(judged, first, tap);
    }
    if let Some(model) = bisection.reference.model() {
        return format!(
            "firstdiff explain {} {evidence} says why, where a known mistake gives these numbers",
            safe(&model.to_string_lossy())
        );
    }
    let step = judged.report.taps[first.index].place.step;
    let names = shorten(&between(first, step), 6);
    match first.unchecked_between.iter().all(|place| bisection.driver.absent.contains(&place.tap)) {
        true => format!("have the engine record {names}, which it did not write, and bisect again"),
        false => format!("compare full dumps, with {names}: the runs did not suffice"),
    }
}

fn cost(screen: &mut Screen, bisection: &EngineBisection) {
    if bisection.driver.runs.is_empty() {
        return;
    }
    let count = bisection.driver.runs.len();
    let runs = if count == 1 { "1 run".to_owned() } else { format!("{count} runs") };
    let share = match bisection.full > 0.0 {
        true => {
            format!(": {:.2} % of a full dump ({})", 100.0 * share_of_bytes(bisection), in_bytes(bisection.full as u64))
        }
        false => String::new(),
    };
    screen.line(&paint(DIM, &format!("{runs}, {}{share}", in_bytes(bisection.driver.evidence.bytes))));
}

fn share_of_bytes(bisection: &EngineBisection) -> f64 {
    bisection.driver.evidence.bytes as f64 / bisection.full
}

/// The result for programs.
pub(crate) fn report(bisection: &EngineBisection, outcome: &BisectionResult) -> Bisect {
    let nondeterministic = match outcome {
        BisectionResult::Wavers(wavering) => Some(Unrepeated {
            tap: wavering.place.tap.to_string(),
            step: wavering.place.step,
            nmse: wavering.nmse,
            max_abs_diff: wavering.max_abs_diff,
        }),
        _ => None,
    };
    let answer = match outcome {
        BisectionResult::Answer(judged) => Some(judged),
        _ => None,
    };
    let all_positions = answer.map(|judged| {
        let whole = |t: &&TapReport| t.metrics.is_some() && (t.place.step > 0 || t.positions.is_none());
        let seen = |t: &TapReport| SeenWhole { tap: t.place.tap.to_string(), step: t.place.step };
        judged.report.taps.iter().filter(whole).map(seen).collect()
    });
    Bisect {
        judgement: match outcome {
            BisectionResult::Answer(judged) => BisectComparison::Answer(Box::new(compared(bisection, judged))),
            BisectionResult::Wavers(wavering) => BisectComparison::none(nondeterminism_text(wavering)),
            BisectionResult::Failed(failure) => BisectComparison::none(failure.to_string()),
        },
        nondeterministic,
        engine: bisection.args.run.clone(),
        work: bisection.args.work.to_string_lossy().into_owned(),
        runs: bisection.driver.runs.iter().map(run_report).collect(),
        kept_runs: bisection.driver.kept_runs.as_ref().map(KeptRuns::report),
        bytes: bisection.driver.evidence.bytes,
        full_bytes: bisection.full as u64,
        all_positions,
        looked_at: answer.map(|judged| coverage_text(bisection, judged)).unwrap_or_default(),
        not_asked: answer.and_then(|judged| not_checked_text(bisection, judged)),
    }
}

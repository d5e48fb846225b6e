//! What is said of a bisection? Each run on a line, the answer as `compare` words it, and what it cost.

use std::collections::BTreeSet;

use firstdiff_compare::{ChunkAlignment, FirstDivergence, Place, Reason, Report, Status, TapReport, Verdict, number};
use firstdiff_trace::Tap;

use crate::commands::bisect::evidence::Wavering;
use crate::commands::bisect::kept::{KeptRuns, Trust};
use crate::commands::bisect::{Bisection, Outcome, Told};
use crate::render::screen::{BAD, BOLD, DIM, GOOD, Screen, WARN, divergence, paint};
use crate::report::{Bisect, Compare, Judgement, Run, SeenWhole, Unrepeated, next_step};
use crate::session::Judged;
use crate::session::arithmetic::parity;
use crate::words::{between, safe, shorten, taps_in_words};

/// What is bisected, before the first run.
pub(crate) fn heading(bisection: &Bisection) -> Screen {
    let mut screen = Screen::default();
    let args = &bisection.args;
    screen.line(&format!("reference  {}", safe(&args.reference.to_string_lossy())));
    screen.line(&format!("engine     {}", safe(&args.run)));
    screen.line(&paint(DIM, &format!("runs kept  in {} until there is an answer", safe(&args.work.to_string_lossy()))));
    screen.line("");
    screen
}

/// What became of the runs of an earlier start.
pub(crate) fn kept(bisection: &Bisection) -> Screen {
    let mut screen = Screen::default();
    if let Some(kept) = &bisection.kept {
        let style = if matches!(kept.trust, Trust::Same) { DIM } else { WARN };
        screen.line(&paint(style, &format!("kept runs  {}", kept.in_words())));
        screen.line("");
    }
    screen
}

/// Where was looked, and what it shows.
pub(crate) fn run_line(number: usize, run: &Told) -> Screen {
    let mut screen = Screen::default();
    let rows = match run.question.rows_text().as_str() {
        "all" => "all positions".to_owned(),
        "last" => "the last position".to_owned(),
        list if list.contains(',') => format!("positions {}", list.replace(',', ", ")),
        one => format!("position {one}"),
    };
    let place = match run.question.steps {
        (0, 0) => rows,
        // A decode step has one.
        (first, last) if first == last => format!("decode step {last}"),
        (0, _) => format!("{rows}, all steps"),
        (first, last) => format!("decode steps {first}-{last}"),
    };
    let kept = if run.kept { ", kept from before" } else { "" };
    let cost = paint(DIM, &format!("({}{kept})", in_bytes(run.bytes)));
    screen.line(&format!("  run {number}  {place}: {}  {cost}", run.says));
    screen
}

/// What a run shows, of what it brought.
pub(crate) fn says(run: &Told, report: &Report) -> String {
    let of = |wanted: fn(Status) -> bool| -> Vec<Place> {
        let came = |t: &&TapReport| run.came.contains(&t.place) && wanted(t.status);
        report.taps.iter().filter(came).map(|t| t.place).collect()
    };
    let (right, wrong, open) = (of(Status::agrees), of(Status::differs), of(|s| s == Status::Unchecked));
    let names = |places: &[Place]| shorten(&by_tap(places, run, report.alignment.as_deref()), 5);
    let one_tap = |places: &[Place]| places.windows(2).all(|pair| pair[0].tap == pair[1].tap);
    let verb = |places: &[Place], one: &'static str, many: &'static str| if one_tap(places) { one } else { many };
    let mut parts = Vec::new();
    if !right.is_empty() {
        parts.push(format!("{} {}", names(&right), verb(&right, "agrees", "agree")));
    }
    if !wrong.is_empty() {
        parts.push(paint(BAD, &format!("{} {}", names(&wrong), verb(&wrong, "differs", "differ"))));
    }
    if !open.is_empty() {
        parts.push(paint(WARN, &format!("{} unchecked", names(&open))));
    }
    let missing: Vec<String> = run
        .question
        .taps
        .iter()
        .filter(|tap| !run.came.iter().any(|p| p.tap == **tap))
        .map(ToString::to_string)
        .collect();
    if !missing.is_empty() {
        parts.push(paint(DIM, &format!("not written: {}", shorten(&missing, 5))));
    }
    parts.join("; ")
}

/// Each tap once, with the steps where these are not all that came.
fn by_tap(places: &[Place], run: &Told, alignment: Option<&ChunkAlignment>) -> Vec<String> {
    let mut taps: Vec<Tap> = places.iter().map(|p| p.tap).collect();
    taps.sort();
    taps.dedup();
    let named = |tap: Tap| {
        let steps = |list: &[Place]| list.iter().filter(|p| p.tap == tap).map(|p| p.step).collect::<Vec<u32>>();
        let here = steps(places);
        if here == steps(&run.came) {
            return tap.to_string();
        }
        match alignment {
            Some(alignment) => format!("{tap} at {}", positions(alignment, &here)),
            None => format!("{tap} (step{} {})", if here.len() == 1 { "" } else { "s" }, numbers(&here)),
        }
    };
    taps.into_iter().map(named).collect()
}

/// `0-3, 7`.
fn numbers(sorted: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &n in sorted {
        match runs.last_mut() {
            Some(run) if run.1 + 1 == n => run.1 = n,
            _ => runs.push((n, n)),
        }
    }
    let text = |(a, b): &(u32, u32)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    shorten(&runs.iter().map(text).collect::<Vec<_>>(), 5)
}

/// `positions 0-3, 7`: where some cells are.
fn positions(alignment: &ChunkAlignment, cells: &[u32]) -> String {
    let of = |cell: &u32| alignment.cells.get(*cell as usize).cloned().unwrap_or_default();
    let all: Vec<u32> = cells.iter().flat_map(of).filter_map(|at| u32::try_from(at).ok()).collect();
    format!("position{} {}", if all.len() == 1 { "" } else { "s" }, numbers(&all))
}

/// Whether something is neither right nor wrong.
pub(crate) fn unclear(report: &Report) -> bool {
    report.taps.iter().any(|t| t.reason == Some(Reason::Inconclusive))
}

/// That two runs are not the same.
pub(crate) fn wavers(wavering: &Wavering) -> String {
    format!(
        "the engine is not deterministic: two runs of one command differ at {} (NMSE {}, max |d| {}); nothing is blamed before that is \
         fixed (memory that is not set, a race, sampling; or it was built anew in between: --fresh)",
        wavering.place,
        number(wavering.nmse),
        number(wavering.max_abs_diff)
    )
}

/// The answer, and what it cost.
pub(crate) fn answer(bisection: &Bisection, outcome: &Outcome) -> Screen {
    let mut screen = Screen::default();
    let Outcome::Answer(judged) = outcome else {
        if let Outcome::Wavers(wavering) = outcome {
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
            let told = compared(bisection, judged);
            let mut ending = vec![("checked", looked_at(bisection, report).join("; "))];
            ending.extend(not_asked(bisection, judged).map(|names| ("not asked", names)));
            ending.extend(told.next.clone().map(|next| ("next", next)));
            divergence(&mut screen, judged, &told, &ending);
        }
        (Verdict::Diverged, None) => screen.line(&paint(BAD, "diverged")),
        (Verdict::Parity, _) => {
            let count = report.count(Status::agrees);
            let text = format!("{} looked at agree: {}", taps_in_words(count), looked_at(bisection, report).join("; "));
            screen.line(&format!("{} {text}", paint(GOOD, &parity(bisection.choice.loosened))));
            screen.line("  what was not looked at is not known: a full dump and `compare` look at every tap");
        }
    }
    cost(&mut screen, bisection);
    for warning in &report.warnings {
        screen.line(&format!("{} {}", paint(WARN, "note:"), safe(&warning.to_string())));
    }
    screen
}

/// Which taps up to the answer were seen at all positions, and which at some; the last of them, which tell most.
fn looked_at(bisection: &Bisection, report: &Report) -> Vec<String> {
    const MOST: usize = 6;
    let end = report.first.as_ref().map_or(report.taps.len(), |first| first.index + 1);
    let seen = || report.taps[..end].iter().filter(|t| t.metrics.is_some());
    let part: BTreeSet<Tap> = seen().filter(|t| t.positions.is_some()).map(|t| t.place.tap).collect();
    let whole: BTreeSet<Tap> = seen().map(|t| t.place.tap).filter(|tap| !part.contains(tap)).collect();
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

/// What stands before the answer in its layer and was not looked at: it does not lie on the way to it, and may be wrong as well.
fn not_asked(bisection: &Bisection, judged: &Judged) -> Option<String> {
    let first = judged.report.first.as_ref()?;
    let place = judged.report.taps[first.index].place;
    let seen = |p: &Place| judged.report.taps.iter().any(|t| t.place == *p && t.metrics.is_some());
    let before = |p: &&Place| p.step == place.step && p.tap.layer == place.tap.layer;
    let open = |p: &&Place| bisection.reference.has(**p) && !seen(p) && !first.unchecked_between.contains(p);
    let earlier = judged.session.graph.places().iter().take_while(|p| **p != place);
    let places = earlier.filter(before).filter(open);
    let names: Vec<String> = places.map(|p| p.tap.to_string()).collect();
    (!names.is_empty()).then(|| shorten(&names, 6))
}

/// The comparison of all that was seen, with what to do next about an engine.
fn compared(bisection: &Bisection, judged: &Judged) -> Compare {
    let first = judged.report.first.as_ref();
    let next = first.map(|first| next(bisection, judged, first, &judged.report.taps[first.index]));
    Compare { next, ..Compare::of("bisect", judged) }
}

fn next(bisection: &Bisection, judged: &Judged, first: &FirstDivergence, tap: &TapReport) -> String {
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
    match first.unchecked_between.iter().all(|place| bisection.unwritten.contains(&place.tap)) {
        true => format!("have the engine record {names}, which it did not write, and bisect again"),
        false => format!("compare full dumps, with {names}: the runs did not suffice"),
    }
}

fn cost(screen: &mut Screen, bisection: &Bisection) {
    if bisection.runs.is_empty() {
        return;
    }
    let count = bisection.runs.len();
    let runs = if count == 1 { "1 run".to_owned() } else { format!("{count} runs") };
    let share = match bisection.full > 0.0 {
        true => format!(": {:.2} % of a full dump ({})", 100.0 * share(bisection), in_bytes(bisection.full as u64)),
        false => String::new(),
    };
    screen.line(&paint(DIM, &format!("{runs}, {}{share}", in_bytes(bisection.evidence.bytes))));
}

fn share(bisection: &Bisection) -> f64 {
    bisection.evidence.bytes as f64 / bisection.full
}

fn in_bytes(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// The result for programs.
pub(crate) fn report(bisection: &Bisection, outcome: &Outcome) -> Bisect {
    let nondeterministic = match outcome {
        Outcome::Wavers(wavering) => Some(Unrepeated {
            tap: wavering.place.tap.to_string(),
            step: wavering.place.step,
            nmse: wavering.nmse,
            max_abs_diff: wavering.max_abs_diff,
        }),
        _ => None,
    };
    let answer = match outcome {
        Outcome::Answer(judged) => Some(judged),
        _ => None,
    };
    let all_positions = answer.map(|judged| {
        let whole = |t: &&TapReport| t.metrics.is_some() && (t.place.step > 0 || t.positions.is_none());
        let seen = |t: &TapReport| SeenWhole { tap: t.place.tap.to_string(), step: t.place.step };
        judged.report.taps.iter().filter(whole).map(seen).collect()
    });
    Bisect {
        judgement: match outcome {
            Outcome::Answer(judged) => Judgement::Answer(Box::new(compared(bisection, judged))),
            Outcome::Wavers(wavering) => Judgement::none(wavers(wavering)),
            Outcome::Failed(failure) => Judgement::none(failure.to_string()),
        },
        nondeterministic,
        engine: bisection.args.run.clone(),
        work: bisection.args.work.to_string_lossy().into_owned(),
        runs: bisection.runs.iter().map(of_run).collect(),
        kept_runs: bisection.kept.as_ref().map(KeptRuns::report),
        bytes: bisection.evidence.bytes,
        full_bytes: bisection.full as u64,
        all_positions,
        looked_at: answer.map(|judged| looked_at(bisection, &judged.report)).unwrap_or_default(),
        not_asked: answer.and_then(|judged| not_asked(bisection, judged)),
    }
}

fn of_run(run: &Told) -> Run {
    Run {
        taps: run.question.taps_text(),
        steps: run.question.steps_text(),
        rows: run.question.rows_text(),
        purpose: run.why,
        kept: run.kept,
        seconds: run.seconds,
        bytes: run.bytes,
        written: run.came.iter().map(ToString::to_string).collect(),
        says: anstream::adapter::strip_str(&run.says).to_string(),
    }
}

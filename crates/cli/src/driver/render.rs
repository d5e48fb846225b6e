//! Describes an engine's runs: which engine is asked, one line for each run, and what it shows.

use std::path::Path;

use firstdiff_compare::{ChunkAlignment, Place, Report, Status, TapReport, number, ranges};
use firstdiff_trace::Tap;

use crate::driver::engine::ANY_STEP;
use crate::driver::evidence::UnrepeatedTap;
use crate::driver::kept_runs::KeptRunsCheck;
use crate::driver::{Driver, RunSummary};
use crate::render::screen::{BAD, DIM, Screen, WARN, paint};
use crate::report::EngineRunReport;
use crate::words::{in_bytes, safe, shorten};

/// Which engine is asked and compared with what, before the first run.
pub(crate) fn heading(what: &str, reference: &Path, driver: &Driver) -> Screen {
    let mut screen = Screen::default();
    screen.line(&format!("{what:<10} {}", safe(&reference.to_string_lossy())));
    screen.line(&format!("engine     {}", safe(&driver.engine.command)));
    screen
        .line(&paint(DIM, &format!("runs kept  in {} until there is an answer", safe(&driver.work.to_string_lossy()))));
    screen.line("");
    screen
}

/// What was done with the runs of an earlier start.
pub(crate) fn kept_runs_note(driver: &Driver) -> Screen {
    let mut screen = Screen::default();
    if let Some(kept) = &driver.kept_runs {
        let style = if matches!(kept.trust, KeptRunsCheck::Same) { DIM } else { WARN };
        screen.line(&paint(style, &format!("kept runs  {}", kept.in_words())));
        screen.line("");
    }
    screen
}

/// What was checked, and what it shows.
pub(crate) fn run_line(number: usize, run: &RunSummary) -> Screen {
    let mut screen = Screen::default();
    let rows = match run.question.rows_text().as_str() {
        "all" => "all positions".to_owned(),
        "last" => "the last position".to_owned(),
        list if list.contains(',') => format!("positions {}", list.replace(',', ", ")),
        one => format!("position {one}"),
    };
    let place = match run.question.steps {
        (0, 0) => rows,
        // A decode step has one position.
        (first, last) if first == last => format!("decode step {last}"),
        (0, ANY_STEP) => format!("{rows}, all steps"),
        (0, last) => format!("{rows}, steps 0-{last}"),
        (first, last) => format!("decode steps {first}-{last}"),
    };
    let kept_note = if run.kept { ", kept from before" } else { "" };
    let cost = paint(DIM, &format!("({}{kept_note})", in_bytes(run.bytes)));
    screen.line(&format!("  run {number}  {place}: {}  {cost}", run.result));
    screen
}

/// What a run shows, by what it wrote.
pub(crate) fn run_result(run: &RunSummary, report: &Report) -> String {
    let places_with = |has_status: fn(Status) -> bool| -> Vec<Place> {
        let is_written = |t: &&TapReport| run.written.contains(&t.place) && has_status(t.status);
        report.taps.iter().filter(is_written).map(|t| t.place).collect()
    };
    let (right, wrong, open) =
        (places_with(Status::agrees), places_with(Status::differs), places_with(|s| s == Status::Unchecked));
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
    let missing: Vec<String> = run.missing().map(|tap| tap.to_string()).collect();
    if !missing.is_empty() {
        parts.push(paint(DIM, &format!("not written: {}", shorten(&missing, 5))));
    }
    parts.join("; ")
}

/// Each tap once, with its steps where not all steps were written.
fn by_tap(places: &[Place], run: &RunSummary, alignment: Option<&ChunkAlignment>) -> Vec<String> {
    let mut taps: Vec<Tap> = places.iter().map(|p| p.tap).collect();
    taps.sort();
    taps.dedup();
    let named = |tap: Tap| {
        let steps =
            |list: &[Place]| list.iter().filter(|p| p.tap == tap).map(|p| p.step as usize).collect::<Vec<usize>>();
        let here = steps(places);
        if here == steps(&run.written) {
            return tap.to_string();
        }
        match alignment {
            Some(alignment) => format!("{tap} at {}", positions(alignment, &here)),
            None => format!("{tap} (step{} {})", if here.len() == 1 { "" } else { "s" }, shorten(&ranges(&here), 5)),
        }
    };
    taps.into_iter().map(named).collect()
}

/// `positions 0-3, 7`: where some cells are.
fn positions(alignment: &ChunkAlignment, cells: &[usize]) -> String {
    let all: Vec<usize> =
        cells.iter().flat_map(|&cell| alignment.cells.get(cell).cloned().unwrap_or_default()).collect();
    format!("position{} {}", if all.len() == 1 { "" } else { "s" }, shorten(&ranges(&all), 5))
}

/// The message that two runs differ.
pub(crate) fn nondeterminism_text(wavering: &UnrepeatedTap) -> String {
    format!(
        "the engine is not deterministic: two runs of one command differ at {} (NMSE {}, max |d| {}); nothing is blamed before that is \
         fixed (memory that is not set, a race, sampling; or it was built anew in between: --fresh)",
        wavering.place,
        number(wavering.nmse),
        number(wavering.max_abs_diff)
    )
}

/// A run, as data.
pub(crate) fn run_report(run: &RunSummary) -> EngineRunReport {
    EngineRunReport {
        taps: run.question.taps_text(),
        steps: run.question.steps_text(),
        rows: run.question.rows_text(),
        purpose: run.why,
        kept: run.kept,
        seconds: run.seconds,
        bytes: run.bytes,
        written: run.written.iter().map(ToString::to_string).collect(),
        says: anstream::adapter::strip_str(&run.result).to_string(),
    }
}

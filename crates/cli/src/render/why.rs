//! Renders why a tap has its status: what was recorded, how the two sides were aligned, and what each stage of the comparison decided.

use firstdiff_compare::{LogEntry, Place, Report, Standing, Status, TapReport, number};
use firstdiff_trace::{Dump, Tap};

use crate::render::screen::{BOLD, Screen, paint};
use crate::report::{StageEntry, Why};
use crate::session::Comparison;
use crate::words::{safe, shorten};

/// The log of every tap that `patterns` name, a section for each; steps with the same log share one.
pub(crate) fn render(judged: &Comparison, patterns: &str) -> Screen {
    let mut sections: Vec<Section> = Vec::new();
    for tap in matching_taps(&judged.report, patterns) {
        let section = section(judged, tap);
        match sections.iter_mut().find(|known| known.tap == section.tap && known.lines == section.lines) {
            Some(known) => known.places.extend(section.places),
            None => sections.push(section),
        }
    }
    let mut screen = Screen::default();
    for Section { places, recorded, lines, .. } in sections {
        screen.line("");
        screen.line(&paint(BOLD, &format!("why {}", shorten(&places, 4))));
        let recorded = ("recorded".to_owned(), recorded);
        for (label, text) in std::iter::once(&recorded).chain(&lines) {
            screen.line(&format!("  {label:<12} {}", safe(text)));
        }
    }
    screen
}

/// The log of a tap, in one step or in several.
struct Section {
    tap: Tap,
    places: Vec<String>,
    /// What either side recorded in the first of the steps.
    recorded: String,
    lines: Vec<(String, String)>,
}

/// The same as data.
pub(crate) fn report(judged: &Comparison, patterns: &str) -> Vec<Why> {
    let entry = |tap: &TapReport| Why {
        tap: tap.place.tap.to_string(),
        step: tap.place.step,
        status: tap.status,
        stages: tap.log.iter().map(StageEntry::new).collect(),
        inputs: inputs(judged, tap).iter().map(|input| judged.report.name(input.place)).collect(),
    };
    matching_taps(&judged.report, patterns).map(entry).collect()
}

/// Whether the report has a tap that `patterns` name.
pub(crate) fn is_known(report: &Report, patterns: &str) -> bool {
    matching_taps(report, patterns).next().is_some()
}

fn matching_taps<'r>(report: &'r Report, patterns: &'r str) -> impl Iterator<Item = &'r TapReport> {
    report.taps.iter().filter(move |tap| tap.place.tap.matches(patterns))
}

fn section(judged: &Comparison, tap: &TapReport) -> Section {
    let report = &judged.report;
    let sides = [&judged.session.reference, &judged.session.candidate].map(|dump| recorded(dump, tap.place));
    let recorded = format!("reference {}, candidate {}", sides[0], sides[1]);
    let mut lines = Vec::new();
    let mut line = |label: &str, text: &str| lines.push((label.to_owned(), text.to_owned()));
    line("operation", &tap.op);
    if let Some(alignment) = &report.alignment {
        let cells = tap.place.step..tap.place.step.saturating_add(1);
        line("aligned", &format!("by token position: {}", alignment.label(cells)));
    }
    if let Some(positions) = &tap.positions {
        let list: Vec<String> = positions.iter().map(ToString::to_string).collect();
        line("positions", &format!("{} of the step, where both sides hold values", shorten(&list, 8)));
    }
    for entry in &tap.log {
        line(standing(entry), &stage_text(entry));
    }
    line("status", &status(judged, tap));
    Section { tap: tap.place.tap, places: vec![report.name(tap.place)], recorded, lines }
}

/// The shape and type of what a side recorded.
fn recorded(dump: &Dump, place: Place) -> String {
    match (dump.entry(place.tap, place.step), dump.find_part(place.tap, place.step)) {
        (Some(entry), _) => format!("{:?} {}", entry.shape, entry.dtype.name()),
        (None, Some(part)) => format!("{} values", part.values.len()),
        (None, None) => "nothing".into(),
    }
}

fn standing(entry: &LogEntry) -> &'static str {
    match entry.to {
        Standing::Exact | Standing::Rounding => "agrees",
        other => other.name(),
    }
}

/// The stage, and its reason.
fn stage_text(entry: &LogEntry) -> String {
    let size = match (entry.nmse, entry.allowed) {
        (Some(nmse), Some(allowed)) => Some(format!("NMSE {}, {} allowed", number(nmse), number(allowed))),
        (Some(nmse), None) => Some(format!("NMSE {}", number(nmse))),
        _ => None,
    };
    let reason = entry.reason.as_ref().filter(|reason| !reason.names_the_nmse()).map(ToString::to_string);
    let all: Vec<String> = size.into_iter().chain(reason).collect();
    match all.is_empty() {
        true => entry.stage.to_string(),
        false => format!("{}: {}", entry.stage, all.join("; ")),
    }
}

/// The nearest taps that a tap depends on and that were compared.
fn inputs<'j>(judged: &'j Comparison, tap: &TapReport) -> Vec<&'j TapReport> {
    let (graph, report) = (&judged.session.graph, &judged.report);
    let Some(index) = graph.places().iter().position(|place| *place == tap.place) else { return Vec::new() };
    let at = |i: usize| report.tap(graph.places()[i].tap, graph.places()[i].step);
    let (before, _) = graph.nearest_before(index, |i| at(i).is_some_and(|tap| tap.metrics.is_some()));
    before.into_iter().filter_map(at).collect()
}

/// The status that follows from the graph.
fn status(judged: &Comparison, tap: &TapReport) -> String {
    let inputs = inputs(judged, tap);
    let name = |input: &&TapReport| judged.report.name(input.place);
    let names: Vec<String> = inputs.iter().map(name).collect();
    let reads = match names.len() {
        0 => "nothing else that was compared".to_owned(),
        _ => shorten(&names, 6),
    };
    let wrong: Vec<String> = inputs.iter().filter(|input| !input.status.agrees()).map(name).collect();
    let why = match tap.status {
        Status::Diverged if names.is_empty() => "it differs, and nothing that it depends on was compared".to_owned(),
        Status::Diverged => format!("it differs, and what was compared of what it depends on agrees: {reads}"),
        Status::Downstream => format!("it differs, and so does what it depends on: {}", shorten(&wrong, 6)),
        Status::Exact | Status::Rounding => format!("it depends on {reads}"),
        Status::Unchecked => "neither passed nor blamed".to_owned(),
    };
    format!("{}: {why}", tap.status.name())
}

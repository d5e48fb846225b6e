//! Renders the map of all taps, layers by taps, for prefill and decode apart. Each cell shows the worst of its taps.

use firstdiff_compare::{ChunkAlignment, Status, number};
use firstdiff_trace::Tap;

use crate::report::TapEntry;
use crate::words::{step_in_words, taps_in_words};

/// A part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The prompt, or a run without phases.
    Prefill,
    /// The decode steps.
    Decode,
}

/// The taps that a page shows, by their indices in the report, in the order of first use.
#[derive(Default)]
pub(crate) struct PageTaps(pub(super) Vec<usize>);

impl PageTaps {
    /// The number of a tap among those shown.
    pub(crate) fn number(&mut self, at: usize) -> usize {
        self.0.push(at);
        self.0.len() - 1
    }
}

/// A tap and where in the run it is.
pub(crate) struct MapEntry<'a> {
    pub(crate) entry: &'a TapEntry,
    /// What its name says.
    pub(crate) tap: Tap,
    pub(crate) phase: Phase,
    /// Where in the run, in words; empty for the prefill.
    pub(crate) when: String,
}

impl<'a> MapEntry<'a> {
    /// A tap of a run, or of two that were aligned by token position.
    pub(crate) fn new(entry: &'a TapEntry, alignment: Option<&ChunkAlignment>) -> MapEntry<'a> {
        let step = entry.step;
        let in_prefill = alignment.map_or(step == 0, |alignment| alignment.is_prefill(step).unwrap_or(true));
        let phase = if in_prefill { Phase::Prefill } else { Phase::Decode };
        let when = step_in_words(alignment, step).unwrap_or_default();
        MapEntry { entry, tap: Tap::named(&entry.tap), phase, when }
    }
}

/// A map.
pub(crate) struct Grid {
    pub(crate) title: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

/// A layer.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) cells: Vec<Option<Cell>>,
}

/// The cell of a tap, or of the worst of several.
pub(crate) struct Cell {
    /// Its number among the taps with details.
    pub(crate) at: usize,
    pub(crate) class: &'static str,
    pub(crate) text: String,
    /// The same in words.
    pub(crate) label: String,
    pub(crate) is_first: bool,
}

/// A column's taps in one row, while the map is filled.
struct CellTaps<'a> {
    /// The worst, and its number in the report.
    worst: &'a MapEntry<'a>,
    at: usize,
    count: usize,
}

/// The maps of all taps; what would be a map of only unchecked taps becomes a line. What a cell shows is recorded in `shown`.
pub(crate) fn grids(
    listed: &[MapEntry<'_>],
    first: Option<&(String, u32)>,
    shown: &mut PageTaps,
) -> (Vec<Grid>, Vec<String>) {
    let is_first = |entry: &TapEntry| first.is_some_and(|(tap, step)| *tap == entry.tap && *step == entry.step);
    let (mut grids, mut without) = (Vec::new(), Vec::new());
    let decodes = listed.iter().any(|place| place.phase == Phase::Decode);
    let mut stacks: Vec<Option<&'static str>> = Vec::new();
    let stack = |tap: &Tap| tap.layer.map(|_| tap.stack());
    for place in listed {
        if !stacks.contains(&stack(&place.tap)) {
            stacks.push(stack(&place.tap));
        }
    }
    // Layers first, taps outside of them last.
    stacks.sort_by_key(Option::is_none);
    for of in stacks {
        // Beside each other on the page.
        for phase in [Phase::Prefill, Phase::Decode] {
            let is_here = |place: &MapEntry<'_>| place.phase == phase && stack(&place.tap) == of;
            let taps = || listed.iter().enumerate().filter(|(_, place)| is_here(place));
            if taps().next().is_none() {
                continue;
            }
            let is_unchecked = |place: &MapEntry<'_>| place.entry.status == Status::Unchecked;
            if phase == Phase::Decode && taps().all(|(_, place)| is_unchecked(place)) {
                let count = taps_in_words(taps().count());
                without.push(format!("{}: nothing was compared ({count} unchecked).", title(of, phase, decodes)));
                continue;
            }
            let mut columns: Vec<String> = Vec::new();
            let mut rows: Vec<(Option<u32>, Vec<Option<CellTaps<'_>>>)> = Vec::new();
            for (at, place) in taps() {
                let tap = &place.tap;
                let name = column(tap);
                let column = columns.iter().position(|known| *known == name).unwrap_or_else(|| {
                    columns.push(name);
                    columns.len() - 1
                });
                let row = rows.iter().position(|(layer, _)| *layer == tap.layer).unwrap_or_else(|| {
                    rows.push((tap.layer, Vec::new()));
                    rows.len() - 1
                });
                let cells = &mut rows[row].1;
                cells.resize_with(cells.len().max(column + 1), || None);
                let worse = |slot: &CellTaps<'_>| {
                    is_first(place.entry) || !is_first(slot.worst.entry) && rank(place.entry) > rank(slot.worst.entry)
                };
                match &mut cells[column] {
                    Some(slot) => {
                        slot.count += 1;
                        if worse(slot) {
                            (slot.worst, slot.at) = (place, at);
                        }
                    }
                    empty => *empty = Some(CellTaps { worst: place, at, count: 1 }),
                }
            }
            rows.sort_by_key(|(layer, _)| *layer);
            let mut row = |(layer, mut slots): (Option<u32>, Vec<Option<CellTaps<'_>>>)| {
                slots.resize_with(columns.len(), || None);
                let mut cell = |slot: CellTaps<'_>| {
                    cell(slot.worst, slot.count, shown.number(slot.at), is_first(slot.worst.entry))
                };
                Row {
                    name: layer.map_or_else(|| "model".to_owned(), |layer| layer.to_string()),
                    cells: slots.into_iter().map(|slot| slot.map(&mut cell)).collect(),
                }
            };
            let rows = rows.into_iter().map(&mut row).collect();
            grids.push(Grid { title: title(of, phase, decodes), columns, rows });
        }
    }
    (grids, without)
}

fn title(stack: Option<&str>, phase: Phase, decodes: bool) -> String {
    let what = match stack {
        None => "Outside the layers".to_owned(),
        Some("") => "Layers".to_owned(),
        Some(stack) => format!("Layers of {stack}"),
    };
    match phase {
        Phase::Decode => format!("{what}, decode (the worst of all steps)"),
        Phase::Prefill if decodes => format!("{what}, prefill"),
        Phase::Prefill => what,
    }
}

/// The name of a tap without its layer; taps of single experts share one.
fn column(tap: &Tap) -> String {
    let numbered = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let parts: Vec<&str> = tap.site.name().split('.').map(|part| if numbered(part) { "*" } else { part }).collect();
    parts.join(".")
}

/// The order among taps of one cell: the most important is greatest.
fn rank(entry: &TapEntry) -> (u8, f64) {
    let status = match entry.status {
        Status::Exact => 0,
        Status::Rounding => 1,
        // Unchecked is not passed.
        Status::Unchecked => 2,
        Status::Downstream => 3,
        Status::Diverged => 4,
    };
    (status, decades(entry).unwrap_or(f64::INFINITY))
}

/// How far the error is above the tolerance, in powers of ten; negative below it. `None` where there is no such number.
pub(crate) fn decades(entry: &TapEntry) -> Option<f64> {
    let (nmse, allowed) = (entry.measures.nmse?, entry.measures.allowed_nmse?);
    let decades = (nmse / allowed).log10();
    decades.is_finite().then_some(decades)
}

fn cell(place: &MapEntry<'_>, count: usize, at: usize, is_first: bool) -> Cell {
    let entry = place.entry;
    let above = decades(entry);
    let (class, text) = match (entry.status, above) {
        (Status::Unchecked, _) => ("unchecked", "?".to_owned()),
        (Status::Exact, _) => ("exact", "=".to_owned()),
        (Status::Rounding, Some(above)) if above <= 0.0 => {
            (if above > -1.0 { "near" } else { "under" }, format!("\u{2212}{:.0}", -above))
        }
        // Zeros that differ in sign.
        (Status::Rounding, _) => ("under", "=".to_owned()),
        // It differs by its structure, not by its size.
        (_, Some(above)) if above <= 0.0 => ("over1", "\u{2260}".to_owned()),
        (_, Some(above)) => {
            let class = match above {
                a if a < 1.0 => "over1",
                a if a < 3.0 => "over2",
                a if a < 6.0 => "over3",
                a if a < 10.0 => "over4",
                _ => "over5",
            };
            (class, format!("+{above:.0}"))
        }
        // Where the reference is all zeros there is no ratio.
        (_, None) if entry.measures.max_abs_diff.is_some_and(f64::is_finite) => ("over5", "\u{2260}".to_owned()),
        (_, None) => ("over5", "\u{221e}".to_owned()),
    };
    let mut label = entry.tap.clone();
    if !place.when.is_empty() {
        label += &format!(", {}", place.when);
    }
    label += &format!(": {}", entry.status.name());
    if let Some(nmse) = entry.measures.nmse {
        label += &format!(", NMSE {}", number(nmse));
    }
    if let Some(allowed) = entry.measures.allowed_nmse {
        label += &format!(", {} allowed", number(allowed));
    }
    if count > 1 {
        label += &format!("; the worst of {count}");
    }
    if is_first {
        label += "; looked at first";
    }
    Cell { at, class, text, label, is_first }
}

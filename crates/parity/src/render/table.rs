//! Renders the table of taps: a line each, in order, with similar neighbours folded into one.

use std::collections::BTreeSet;
use std::ops::Range;

use firstdiff_compare::{ChunkAlignment, Place, Report, Status, TapReport, number};
use firstdiff_trace::Site;

use crate::render::screen::{BAD, BOLD, DIM, Detail, GOOD, Screen, WARN, paint};
use crate::report::reasons;
use crate::words::{safe, taps_in_words};

/// The most lines of a table: with the lines above and below it, a screen.
const LINES: usize = 28;

/// How far taps are folded that need not be shown one by one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fold {
    /// Neighbours with the same result.
    Runs,
    /// Layers with the same results, and steps; in the first wrong layer, the taps that agree and that the wrong one does not read.
    Layers,
    /// All before the unfolded part, and all behind it.
    Whole,
}

/// Which taps of a table have a line of their own.
struct TableDetail<'a> {
    report: &'a Report,
    detail: Detail,
    fold: Fold,
}

impl TableDetail<'_> {
    /// Whether a tap is in the first wrong layer, or all taps are shown.
    fn is_unfolded(&self, tap: &TapReport) -> bool {
        let first = self.report.first.as_ref().map(|f| self.report.taps[f.index].place);
        let of_first =
            |f: Place| f.step == tap.place.step && f.tap.block() == tap.place.tap.block() && !self.may_be_folded(tap);
        self.detail == Detail::Every || first.is_some_and(of_first)
    }

    /// Whether, in a long table, a tap of the first wrong layer may be folded: it agrees, and the wrong operation does not read it.
    fn may_be_folded(&self, tap: &TapReport) -> bool {
        let read = self.report.first.as_ref().is_some_and(|first| first.reads.contains(&tap.place));
        self.fold > Fold::Runs && tap.status.agrees() && !read
    }
}

/// The taps in order, folded as far as is needed to fit a screen.
pub fn taps(screen: &mut Screen, report: &Report, detail: Detail) {
    let table = |fold: Fold| {
        let mut table = Screen::default();
        let shown = TableDetail { report, detail, fold };
        match &report.alignment {
            Some(alignment) => chunked_steps(&mut table, report, alignment, &shown),
            None => steps(&mut table, report, &shown),
        }
        table
    };
    let fits = |table: &Screen| detail == Detail::Every || table.as_str().lines().count() <= LINES;
    let least = || table(Fold::Whole);
    let shown = [Fold::Runs, Fold::Layers].into_iter().map(table).find(fits).unwrap_or_else(least);
    screen.append(&shown);
    legend(screen, report);
}

/// Explains the marks, where a tap differs behind another.
fn legend(screen: &mut Screen, report: &Report) {
    let any = |status: Status| report.taps.iter().any(|tap| tap.status == status);
    if any(Status::Downstream) {
        let unchecked = if any(Status::Unchecked) { "; ?: unchecked" } else { "" };
        // A state that was not recorded is known by what an earlier step made of it.
        let may_hold_a_state =
            |tap: &TapReport| tap.status == Status::Downstream && tap.place.step > 0 && tap.place.tap.is_open();
        let earlier = if report.taps.iter().any(may_hold_a_state) {
            ", or a tap of an earlier step that it may read"
        } else {
            ""
        };
        let text = format!("  DIFF: differs, no compared input does; off: so does an input{earlier}{unchecked}");
        screen.line(&paint(DIM, &text));
    }
}

/// Neighbouring cells that one line describes: of one phase, and of one kind.
struct Group<'a> {
    cells: Range<u32>,
    taps: &'a [TapReport],
}

/// The taps by position, neighbouring positions of one kind folded.
fn chunked_steps(screen: &mut Screen, report: &Report, alignment: &ChunkAlignment, shown: &TableDetail<'_>) {
    let unfold = &|tap: &TapReport| shown.is_unfolded(tap);
    let mut rest = &report.taps[..];
    while let Some(group) = next_group(rest, alignment, unfold) {
        rest = &rest[group.taps.len()..];
        let label = alignment.label(group.cells.clone());
        if group.taps.iter().any(unfold) {
            screen.line(&paint(BOLD, &label));
            step_lines(screen, group.taps, shown);
        } else if group.taps.iter().any(|t| t.status.differs()) {
            screen.line(&mixed_cells(&label, group.taps));
        } else {
            screen.line(&fold_line(&label, group.taps));
        }
    }
}

/// The cells from the first on that form a group.
fn next_group<'a>(
    taps: &'a [TapReport],
    alignment: &ChunkAlignment,
    unfold: &impl Fn(&TapReport) -> bool,
) -> Option<Group<'a>> {
    let first = taps.first()?.place.step;
    let (mut cells, mut count) = (first..first, 0);
    let mut like = None;
    while let Some(tap) = taps.get(count) {
        let step = tap.place.step;
        let here = taps[count..].iter().take_while(|t| t.place.step == step).count();
        let cell = &taps[count..count + here];
        let in_prefill = alignment.is_prefill(step);
        let what = (in_prefill, cell.iter().map(|t| kind(t.status)).filter(|k| *k != 1).max(), cell.iter().any(unfold));
        if step < cells.end || *like.get_or_insert(what) != what || (what.2 && count > 0) {
            break;
        }
        (cells.end, count) = (step + 1, count + here);
    }
    Some(Group { cells, taps: &taps[..count] })
}

/// The steps of a run, neighbours with the same result on one line.
fn steps(screen: &mut Screen, report: &Report, shown: &TableDetail<'_>) {
    let mut rest = &report.taps[..];
    while let Some(tap) = rest.first() {
        let count = folded_steps(rest, shown);
        if count == 0 {
            let here = rest.iter().take_while(|t| t.place.step == tap.place.step).count();
            if tap.place.step > 0 {
                screen.line(&paint(BOLD, &format!("decode step {}", tap.place.step)));
            }
            step_lines(screen, &rest[..here], shown);
            rest = &rest[here..];
            continue;
        }
        let (from, to) = (tap.place.step, rest[count - 1].place.step);
        let name = if from == to { format!("decode step {from}") } else { format!("decode steps {from}-{to}") };
        screen.line(&group_line(&name, &rest[..count]));
        rest = &rest[count..];
    }
}

/// How many taps, of whole steps from the first on, one line describes; 0 where the first step needs more.
fn folded_steps(taps: &[TapReport], shown: &TableDetail<'_>) -> usize {
    let step_of = |taps: &[TapReport]| taps.iter().take_while(|t| t.place.step == taps[0].place.step).count();
    // The result of a step: whether anything was checked, and whether anything differs.
    let results = |step: &[TapReport]| {
        let kinds = |kind_of: u8| step.iter().any(|t| kind(t.status) == kind_of);
        (kinds(0) || kinds(2), kinds(2))
    };
    let (mut count, mut said) = (0, None);
    while count < taps.len() {
        let step = &taps[count..count + step_of(&taps[count..])];
        let unfolds = step.iter().any(|t| shown.is_unfolded(t));
        let quiet = !results(step).1 || shown.fold > Fold::Runs;
        let same = *said.get_or_insert(results(step)) == results(step) || shown.fold == Fold::Whole;
        if step[0].place.step == 0 || unfolds || !quiet || !same {
            break;
        }
        count += step.len();
    }
    count
}

/// The lines of one step.
fn step_lines(screen: &mut Screen, taps: &[TapReport], shown: &TableDetail<'_>) {
    let unfold = &|tap: &TapReport| shown.is_unfolded(tap);
    let mut rest = taps;
    while let Some(tap) = rest.first() {
        let run = if unfold(tap) {
            let unchecked =
                |t: &&TapReport| unfold(t) && t.status == Status::Unchecked && shown.detail == Detail::Folded;
            rest.iter().take_while(unchecked).count().max(1)
        } else {
            match shown.fold {
                Fold::Runs => folded_run(rest, unfold),
                Fold::Layers => folded_layers(rest, unfold),
                Fold::Whole => rest.iter().take_while(|t| !unfold(t)).count(),
            }
        };
        let (here, after) = rest.split_at(run);
        screen.line(&if run == 1 { tap_line(tap) } else { group_line(&name_of(here), here) });
        rest = after;
    }
}

/// `layers 3-27`, where all of them are there; else the first and the last.
fn name_of(run: &[TapReport]) -> String {
    let (Some(from), Some(to)) = (run.first(), run.last()) else { return String::new() };
    let whole = |tap: &TapReport, site: Site| tap.place.tap.site == site;
    match (from.place.tap.layer, to.place.tap.layer) {
        _ if run.len() == 1 => from.place.tap.to_string(),
        (Some(first), Some(last)) if first < last && whole(from, Site::AttnNorm) && whole(to, Site::H) => {
            format!("layers {first}-{last}")
        }
        _ => format!("{} .. {}", from.place.tap, to.place.tap),
    }
}

/// A line for taps that all agree, or all differ, or both.
fn group_line(name: &str, taps: &[TapReport]) -> String {
    let any = |kind_of: u8| taps.iter().any(|t| kind(t.status) == kind_of);
    if any(0) && any(2) { mixed_cells(name, taps) } else { fold_line(name, taps) }
}

/// How many taps from the first on are in layers with the same results: which sites differ, and which agree.
fn folded_layers(taps: &[TapReport], unfold: &impl Fn(&TapReport) -> bool) -> usize {
    let layer_of = |taps: &[TapReport]| {
        let block = taps[0].place.tap.block();
        taps.iter().take_while(|t| t.place.tap.block() == block && !unfold(t)).count()
    };
    let kinds =
        |layer: &[TapReport]| -> BTreeSet<u8> { layer.iter().map(|t| kind(t.status)).filter(|k| *k != 1).collect() };
    let (mut count, mut said) = (0, None);
    while count < taps.len() && !unfold(&taps[count]) {
        let layer = &taps[count..count + layer_of(&taps[count..])];
        let here = kinds(layer);
        if !here.is_empty() && *said.get_or_insert_with(|| here.clone()) != here {
            break;
        }
        count += layer.len();
    }
    count
}

/// How many taps from the first on have the same result. Unchecked taps between them are folded with them, and counted.
fn folded_run(taps: &[TapReport], unfold: &impl Fn(&TapReport) -> bool) -> usize {
    let run = taps.iter().take_while(|t| !unfold(t));
    let Some(first_kind) = run.clone().find(|t| t.status != Status::Unchecked).map(|t| kind(t.status)) else {
        return run.count();
    };
    run.take_while(|t| t.status == Status::Unchecked || kind(t.status) == first_kind).count()
}

/// The kind of a status: taps of one kind are folded together.
fn kind(status: Status) -> u8 {
    match status {
        Status::Exact | Status::Rounding => 0,
        Status::Unchecked => 1,
        Status::Diverged | Status::Downstream => 2,
    }
}

fn status_mark(status: Status) -> String {
    match status {
        Status::Exact | Status::Rounding => paint(GOOD, "ok  "),
        Status::Diverged => paint(BAD, "DIFF"),
        Status::Downstream => paint(WARN, "off "),
        Status::Unchecked => paint(DIM, "?   "),
    }
}

/// The error relative to that of a second right run.
fn over_noise(tap: &TapReport) -> Option<String> {
    tap.over_noise().map(|ratio| match (0.1..1e3).contains(&ratio) {
        true => format!("{ratio:.1} x noise"),
        false => format!("{ratio:.0e} x noise"),
    })
}

fn tap_line(tap: &TapReport) -> String {
    let name = format!("{:<22}", tap.place.tap.to_string());
    let numbers = match (tap.status, tap.metrics) {
        (Status::Exact, _) => "exact".to_owned(),
        (Status::Unchecked, _) => format!("unchecked: {}", safe(&tap.why().unwrap_or_default())),
        (_, Some(metrics)) => {
            let part = |name: &str, value: Option<f64>| value.map(|v| format!("{name} {}", number(v)));
            let nmse = part("NMSE", metrics.nmse()).or_else(|| tap.why());
            // Where there is a second run, the ratio to its error shows more.
            let correlation = metrics.correlation().filter(|_| tap.status.differs() && tap.noise.is_none());
            let max = metrics.max_abs_diff().filter(|_| tap.status.differs()).map(|p| p.abs_diff);
            [nmse, over_noise(tap), part("corr", correlation), part("max", max)]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join("  ")
        }
        (_, None) => String::new(),
    };
    let undone = match (tap.status.agrees(), tap.why()) {
        (true, Some(reason)) => paint(DIM, &format!("  ({reason})")),
        _ => String::new(),
    };
    format!("  {} {name} {} {numbers}{undone}", status_mark(tap.status), paint(DIM, &format!("{:<9}", tap.op)))
}

pub fn fold_line(name: &str, run: &[TapReport]) -> String {
    let checked: Vec<&TapReport> = run.iter().filter(|t| t.status != Status::Unchecked).collect();
    let unchecked: Vec<&TapReport> = run.iter().filter(|t| t.status == Status::Unchecked).collect();
    let missing = if unchecked.is_empty() { String::new() } else { format!("; {} unchecked", unchecked.len()) };
    let Some(first) = checked.first() else {
        return format!(
            "  {} {name:<32} {} unchecked: {}",
            status_mark(Status::Unchecked),
            taps_in_words(run.len()),
            reasons(&unchecked)
        );
    };
    let status = if checked.iter().any(|t| t.status == Status::Diverged) { Status::Diverged } else { first.status };
    let what = if status.agrees() {
        let worst =
            checked.iter().filter_map(|t| Some((t.metrics?.nmse()?, t.place.tap))).max_by(|a, b| a.0.total_cmp(&b.0));
        match worst {
            Some((nmse, tap)) if nmse > 0.0 => {
                let finite = checked.iter().filter(|t| t.over_noise().is_some_and(f64::is_finite));
                let most =
                    finite.max_by(|a, b| a.over_noise().unwrap_or(0.0).total_cmp(&b.over_noise().unwrap_or(0.0)));
                let noise =
                    most.and_then(|tap| over_noise(tap)).map_or(String::new(), |most| format!(", at most {most}"));
                format!("{} agree, worst NMSE {} at {tap}{noise}", checked.len(), number(nmse))
            }
            _ if checked.iter().all(|t| t.status == Status::Exact) => format!("{} agree, all exact", checked.len()),
            _ => format!("{} agree in all that is known of them", checked.len()),
        }
    } else {
        differing_counts(checked.len(), checked.iter().filter(|t| t.status == Status::Diverged).count())
    };
    format!("  {} {name:<32} {what}{}", status_mark(status), paint(DIM, &missing))
}

/// How many differ, and of how many of them all compared inputs agree.
fn differing_counts(differ: usize, diverged: usize) -> String {
    match diverged {
        0 => format!("{differ} differ"),
        all if all == differ => format!("{differ} diverged"),
        some => format!("{differ} differ, {some} of them with no compared input that differs"),
    }
}

/// A line for cells in which something differs.
fn mixed_cells(name: &str, taps: &[TapReport]) -> String {
    let count = |is: fn(Status) -> bool| taps.iter().filter(|t| is(t.status)).count();
    let (agree, differ, own) = (count(Status::agrees), count(Status::differs), count(|s| s == Status::Diverged));
    let mark = if own > 0 { paint(BAD, "DIFF") } else { paint(WARN, "off ") };
    let unchecked = match count(|s| s == Status::Unchecked) {
        0 => String::new(),
        n => paint(DIM, &format!("; {n} unchecked")),
    };
    format!("  {mark} {name:<32} {}; {agree} agree{unchecked}", differing_counts(differ, own))
}

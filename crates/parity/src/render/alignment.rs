//! Shows a comparison of two runs with different chunks: by token position, with prefill and decode apart.

use std::ops::Range;

use firstdiff_compare::{ChunkAlignment, Place, Report, Status, TapReport};
use firstdiff_trace::Tap;

use crate::render::screen::{BAD, BOLD, DIM, Screen, WARN, paint};
use crate::render::table::{TableDetail, differing_counts, fold_line, kind, step_lines};
use crate::report::Alignment;

/// The chunks of the two, and how many positions are compared.
pub fn heading(alignment: &Alignment) -> String {
    let Alignment { reference, candidate, together, .. } = alignment;
    let [ours, theirs] = [reference, candidate].map(|run| run.steps.iter().sum::<usize>());
    let beyond = match (ours > *together, theirs > *together) {
        _ if alignment.tokens_differ_at.is_some() => String::new(),
        (true, _) => format!(" (the reference has {ours})"),
        (_, true) => format!(" (the candidate has {theirs})"),
        _ => String::new(),
    };
    format!("candidate {}, reference {}; {together} positions compared{beyond}", candidate.how, reference.how)
}

/// Neighbouring cells that one line describes: of one phase, and of one kind.
struct Group<'a> {
    cells: Range<u32>,
    taps: &'a [TapReport],
}

/// The taps by position, neighbouring positions of one kind folded.
pub fn taps(screen: &mut Screen, report: &Report, alignment: &ChunkAlignment, shown: &TableDetail<'_>) {
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

/// A line for cells in which something differs.
pub fn mixed_cells(name: &str, taps: &[TapReport]) -> String {
    let count = |is: fn(Status) -> bool| taps.iter().filter(|t| is(t.status)).count();
    let (agree, differ, own) = (count(Status::agrees), count(Status::differs), count(|s| s == Status::Diverged));
    let mark = if own > 0 { paint(BAD, "DIFF") } else { paint(WARN, "off ") };
    let unchecked = match count(|s| s == Status::Unchecked) {
        0 => String::new(),
        n => paint(DIM, &format!("; {n} unchecked")),
    };
    format!("  {mark} {name:<32} {}; {agree} agree{unchecked}", differing_counts(differ, own))
}

/// `layers.0.qk at positions 2-13`: places by tap, neighbouring positions together.
pub fn places(alignment: &ChunkAlignment, places: &[Place]) -> Vec<String> {
    let mut runs: Vec<(Tap, Range<u32>)> = Vec::new();
    for place in places {
        match runs.iter_mut().find(|(tap, cells)| *tap == place.tap && cells.end == place.step) {
            Some((_, cells)) => cells.end += 1,
            None => runs.push((place.tap, place.step..place.step + 1)),
        }
    }
    runs.into_iter().map(|(tap, cells)| format!("{tap} at {}", alignment.positions(cells))).collect()
}

/// What the candidate alone can show, where it is in doubt what a step reads from the cache.
pub fn without_reference(alignment: &ChunkAlignment, report: &Report, cell: u32) -> Option<&'static str> {
    let start = alignment.cells.get(cell as usize)?.start;
    let one_pass = alignment.candidate.lengths.len() == 1;
    let before_agrees = cell > 0 && report.taps.iter().all(|t| t.place.step >= cell || !t.status.differs());
    let in_steps = alignment.candidate.lengths[0] <= start;
    (before_agrees && in_steps && !one_pass).then_some(
        "whether the steps alone are wrong: `firstdiff compare ONEPASS STEPS`, the candidate's own run in one pass against this one",
    )
}

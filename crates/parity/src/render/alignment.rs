//! Words where two runs with different chunks stand: by token position.

use std::ops::Range;

use firstdiff_compare::{ChunkAlignment, Place, Report};
use firstdiff_trace::Tap;

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

//! Where do two dumps part? The stages of a comparison, in their order; each is a folder beside this file.
//!
//! 1. `align` (called before, by [`crate::align()`]): which token positions of the two runs stand against each other.
//! 2. `run`: what each run holds: its steps, their positions, its K/V cache.
//! 3. `taps`: every tap judged, in forward order: its two tensors in the `layout` that fits, by the one verdict of `judge`, and again
//!    against what its operation may have passed on of the error of what it reads.
//! 4. `rules`: what all taps together say better of some; each rule by itself, in one list.
//! 5. `conclude`: status by the graph, verdict, first divergence, what could not have shown.
//! 6. `report`: what is handed out, with a log of what each stage said of each tap.

use std::collections::BTreeSet;

use firstdiff_trace::{Dump, DumpError, Entry};

use crate::graph::{Graph, OpenTaps};
use crate::report::Report;
use crate::report::log::{LogEntry, Stage};
use crate::report::reason::Warning;
use crate::rules::{RULES, unproven};
use crate::run::last::lengths;
use crate::run::positions::told_chunks;
use crate::run::steps::{contradicted, misaligned};
use crate::taps::context::{Found, Options, Run};
use crate::tolerance::Extent;

/// Compares `candidate` with `reference`. `graph` says in what order taps are produced and who reads whom; without a model,
/// [`graph_of`] serves. `progress` is called before each tap with its number and their count.
///
/// # Errors
/// When a file cannot be read. A difference is no error.
pub fn compare(
    reference: &Dump,
    candidate: &Dump,
    graph: &Graph,
    options: &Options,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Report, DumpError> {
    let recorded = options
        .alignment
        .as_ref()
        .map_or([reference, candidate], |alignment| alignment.runs.each_ref().map(|run| &**run));
    let misaligned = contradicted(recorded).or_else(|| match options.alignment {
        Some(_) => None,
        None => misaligned(reference, candidate, options.rows.as_ref()),
    });
    let mut extent = extent(reference, graph);
    if let Some(alignment) = &options.alignment {
        extent.positions = alignment.together();
    }
    let (chunks, doubts) = (told_chunks(reference, candidate), unproven::doubts(recorded[0], recorded[1]));
    let prompt = prompt(reference);
    let lengths = [reference, candidate].map(lengths);
    let open = OpenTaps::of(recorded[0], recorded[1]);
    let run = Run { reference, candidate, graph, open, options, extent, prompt, misaligned, chunks, lengths, doubts };
    let total = graph.places().len();
    let (mut found, mut log) = (Vec::with_capacity(total), vec![Vec::new(); total]);
    for (index, &place) in graph.places().iter().enumerate() {
        progress(index, total);
        let here = run.look(place)?;
        note(&mut log[index], Stage::Tensors, &here);
        let here = run.doubted(place, here);
        note(&mut log[index], Stage::DumpInDoubt, &here);
        let here = run.with_inheritance(&found, index, here)?;
        note(&mut log[index], Stage::InputError, &here);
        found.push(here);
    }
    let mut notes = Vec::new();
    for (stage, rule) in RULES {
        notes.extend(rule(&run, &mut found)?);
        log.iter_mut().zip(&found).for_each(|(log, here)| note(log, stage, here));
    }
    let mut report = run.report(found, log)?;
    report.warnings.splice(0..0, notes.into_iter().map(Warning::Note));
    Ok(report)
}

/// Notes what a stage says of a tap, where that is not what the stage before did.
fn note(log: &mut Vec<LogEntry>, stage: Stage, here: &Found) {
    let is_new = |now: &LogEntry| log.last().is_none_or(|before| !now.says_as(before));
    let now = here.after(stage).filter(is_new);
    log.extend(now);
}

/// The graph of two dumps, without a model: see [`Graph::of_dumps`].
pub fn graph_of(reference: &Dump, candidate: &Dump) -> Graph {
    Graph::of_dumps(reference, candidate, None)
}

fn extent(reference: &Dump, graph: &Graph) -> Extent {
    let layers = graph.places().iter().filter_map(|p| p.tap.layer).max().map_or(0, |l| l.saturating_add(1));
    let steps = reference.entries().iter().map(|e| e.step).collect::<BTreeSet<_>>().len();
    Extent { layers, positions: prompt(reference).saturating_add(steps) }
}

/// Token positions of the prefill.
fn prompt(reference: &Dump) -> usize {
    let rows = |e: &Entry| e.shape.get(e.tap.site.position_axis()).copied();
    // The least that any tap shows: a tap of another layout must not loosen what is allowed.
    let shown = || reference.entries().iter().filter(|e| e.step == 0).filter_map(rows).min();
    reference.meta().tokens.as_ref().map(Vec::len).or_else(shown).unwrap_or(0)
}

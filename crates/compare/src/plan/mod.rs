//! Builds the alignment plan: which token positions the two dumps hold, by what they declare and their shapes show. No value is compared.

mod doubts;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use firstdiff_trace::{Dump, Entry, Rows, Tap};

use crate::align::chunks::ChunkAlignment;
use crate::graph::{Graph, OpenTaps};
use crate::plan::doubts::doubts;
use crate::report::reason::Reason;
use crate::run::last::lengths;
use crate::run::misaligned::{Misaligned, contradicted, misaligned};
use crate::run::positions::declared_chunks;
use crate::run::steps::Chunks;
use crate::tolerance::Extent;

/// How two runs are aligned, by what their dumps declare and what their shapes show.
pub(crate) struct AlignmentPlan {
    /// Why the steps do not hold the same token positions, where they do not.
    pub(crate) misaligned: Option<Misaligned>,
    /// Token positions of the prefill.
    pub(crate) prompt: usize,
    /// The chunks of tokens, as either side declares or shows.
    pub(crate) chunks: Option<Chunks>,
    /// Token positions of each step of either side, as far as they are known.
    pub(crate) lengths: [BTreeMap<u32, usize>; 2],
    /// Layers, and token positions in all.
    pub(crate) extent: Extent,
    /// Recorded keys and values that must not pass.
    pub(crate) doubts: BTreeMap<(u32, Tap), Reason>,
    /// Taps outside the vocabulary.
    pub(crate) open: OpenTaps,
}

impl AlignmentPlan {
    /// The plan of two runs; `alignment` says how they were aligned by token position, if they were. `rows` are the requested token positions.
    pub(crate) fn new(
        reference: &Dump,
        candidate: &Dump,
        graph: &Graph,
        rows: Option<&Rows>,
        alignment: Option<&Arc<ChunkAlignment>>,
    ) -> AlignmentPlan {
        let recorded =
            alignment.map_or([reference, candidate], |alignment| alignment.runs.each_ref().map(|run| &**run));
        let by_position = alignment.is_some();
        let misaligned = contradicted(recorded, rows)
            .or_else(|| if by_position { None } else { misaligned(reference, candidate, rows) });
        let prompt = prompt(reference);
        let steps = || reference.entries().iter().map(|e| e.step).collect::<BTreeSet<_>>().len();
        let positions =
            alignment.map_or_else(|| prompt.saturating_add(steps()), |alignment| alignment.common_positions());
        let layers = graph.places().iter().filter_map(|p| p.tap.layer).max().map_or(0, |l| l.saturating_add(1));
        AlignmentPlan {
            misaligned,
            prompt,
            chunks: declared_chunks(reference, candidate),
            lengths: [reference, candidate].map(lengths),
            extent: Extent { layers, positions },
            doubts: doubts(recorded[0], recorded[1]),
            open: OpenTaps::shared_by(recorded[0], recorded[1]),
        }
    }
}

/// Token positions of the prefill.
fn prompt(reference: &Dump) -> usize {
    let rows = |e: &Entry| e.shape.get(e.tap.site.position_axis()).copied();
    // The fewest that any tap shows: a tap in another layout must not loosen the tolerance.
    let shown = || reference.entries().iter().filter(|e| e.step == 0).filter_map(rows).min();
    reference.meta().tokens.as_ref().map(Vec::len).or_else(shown).unwrap_or(0)
}

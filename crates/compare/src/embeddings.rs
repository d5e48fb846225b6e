//! Were two runs fed the same tokens, where not both say? Their embeddings tell, position by position.

use firstdiff_trace::{Dump, DumpError, Partial, Site, Tap};

use crate::metrics::Metrics;
use crate::rows::{are_all, squeezed};
use crate::steps::Chunks;

/// Embeddings further apart than this are of different tokens, or of none; nearer than a hundredth of it, of the same.
const OTHER_TOKEN: f64 = 0.1;

/// The first position from which on all embeddings are those of other tokens, where all before are of the same: an engine that pads its prompt, or went
/// on with another text; and the first of all where they are those of other positions. An embedding that is wrong is so from the first position on, or here and
/// there.
pub(crate) fn parted(ours: (&Dump, &Chunks), theirs: (&Dump, &Chunks)) -> Result<Option<usize>, DumpError> {
    let (ours, theirs) = (embeddings(ours.0, ours.1)?, embeddings(theirs.0, theirs.1)?);
    let apart: Vec<Option<f64>> = ours.iter().zip(&theirs).map(|(ours, theirs)| nmse(ours, theirs)).collect();
    let Some(first) = apart.iter().position(|nmse| !is_same(*nmse)) else { return Ok(None) };
    if first == 0 {
        return Ok((moved(&ours, &theirs) || moved(&theirs, &ours)).then_some(0));
    }
    Ok(apart[first..].iter().all(|nmse| nmse.is_some_and(|nmse| nmse > OTHER_TOKEN)).then_some(first))
}

fn nmse(ours: &[f64], theirs: &[f64]) -> Option<f64> {
    (ours.len() == theirs.len()).then(|| Metrics::of_f64(ours, theirs).nmse()).flatten()
}

fn is_same(nmse: Option<f64>) -> bool {
    nmse.is_some_and(|nmse| nmse < OTHER_TOKEN / 100.0)
}

/// Whether the one's embeddings from some position on, at least two different ones, are the other's from the first on: it was padded on the left.
fn moved(ours: &[Vec<f64>], theirs: &[Vec<f64>]) -> bool {
    (1..theirs.len().saturating_sub(1)).any(|by| {
        let pairs = || ours.iter().zip(&theirs[by..]);
        pairs().all(|(ours, theirs)| is_same(nmse(ours, theirs))) && pairs().skip(1).any(|(row, _)| *row != ours[0])
    })
}

/// The embedding of every position up to the first that is not there.
fn embeddings(dump: &Dump, chunks: &Chunks) -> Result<Vec<Vec<f64>>, DumpError> {
    let mut rows = Vec::new();
    for (step, &length) in (0u32..).zip(&chunks.lengths) {
        let h0 = Tap { layer: None, site: Site::H0 };
        let printed = || dump.find_part(h0, step).and_then(Partial::whole);
        let Some(entry) = dump.find(h0, step).cloned().or_else(printed) else { break };
        let shape = squeezed(Site::H0, &entry.shape);
        let by_position = shape[0] == length || (shape.len() == 1 && shape[0].is_multiple_of(length));
        if !are_all(&entry.rows) || !by_position || shape.contains(&0) {
            break;
        }
        let values = dump.read(&entry)?.values().to_f64().to_vec();
        rows.extend(values.chunks(values.len() / length).map(<[f64]>::to_vec));
    }
    Ok(rows)
}

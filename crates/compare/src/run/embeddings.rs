//! Decides by embeddings, position by position, whether two runs were fed the same tokens, where not both record their ids.

use firstdiff_trace::{Dump, DumpError, Partial, Site, Tap};

use crate::graph::Place;
use crate::layout::rows::{are_all, squeezed};
use crate::metrics::Metrics;
use crate::run::steps::Chunks;
use crate::tolerance::run::{OTHER_DIRECTION, OTHER_TOKEN, SAME_DIRECTION};

/// Whether two runs were fed the same prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// By their token ids, or by their embeddings.
    Same,
    /// By their token ids, or by finite embeddings that have other directions in most positions.
    Other,
    /// Undecidable.
    Unknown,
}

/// Whether two runs were fed the same tokens: by the ids of all steps where both record them, else by h0. Ids that contradict h0 are not believed.
///
/// # Errors
/// When a tensor cannot be read.
pub fn prompt(reference: &Dump, candidate: &Dump) -> Result<Prompt, DumpError> {
    let [ours, theirs] = [reference, candidate].map(|dump| dump.meta().tokens.as_deref());
    let (Some(ours), Some(theirs)) = (ours, theirs) else { return by_embeddings(reference, candidate) };
    let decoded = |dump: &Dump| dump.meta().decode_tokens.clone().unwrap_or_default();
    let [all, others] = [[ours, &decoded(reference)].concat(), [theirs, &decoded(candidate)].concat()];
    Ok(match all.iter().zip(&others).position(|(ours, theirs)| ours != theirs) {
        None => Prompt::Same,
        Some(at) if at < ours.len().min(theirs.len()) && by_embeddings(reference, candidate)? == Prompt::Same => {
            Prompt::Unknown
        }
        Some(_) => Prompt::Other,
    })
}

/// The same by h0.
fn by_embeddings(reference: &Dump, candidate: &Dump) -> Result<Prompt, DumpError> {
    let h0 = Place { tap: Tap { layer: None, site: Site::H0 }, step: 0 };
    let (Some(ours), Some(theirs)) = (rows_of(reference, h0)?, rows_of(candidate, h0)?) else {
        return Ok(Prompt::Unknown);
    };
    // A padded prompt is at the end of its positions, or at the beginning.
    let (less, more) = if ours.len() <= theirs.len() { (&ours, &theirs) } else { (&theirs, &ours) };
    let kinds =
        |from: usize| -> Option<Vec<Prompt>> { less.iter().zip(&more[from..]).map(|(a, b)| token(a, b)).collect() };
    let (Some(first), Some(last)) = (kinds(0), kinds(more.len() - less.len())) else { return Ok(Prompt::Unknown) };
    let ends = [first, last];
    let all = |kinds: &Vec<Prompt>| kinds.iter().all(|kind| *kind == Prompt::Same);
    let most = |kinds: &Vec<Prompt>| 2 * kinds.iter().filter(|kind| **kind == Prompt::Other).count() >= kinds.len();
    Ok(match ends.iter().any(all) {
        true => Prompt::Same,
        false if ends.iter().all(most) => Prompt::Other,
        false => Prompt::Unknown,
    })
}

/// Whether two embeddings belong to one token; `None` where one is not finite, or all zeros, and so belongs to none.
pub(crate) fn token(ours: &[f64], theirs: &[f64]) -> Option<Prompt> {
    let metrics = Metrics::measure_f64(ours, theirs);
    let size = |rms: Option<f64>| rms.is_some_and(|rms| rms > 0.0);
    if !metrics.is_finite() || !size(metrics.reference_rms()) || !size(metrics.candidate_rms()) {
        return None;
    }
    Some(match metrics.cosine() {
        _ if metrics.is_equal() || metrics.nmse().is_some_and(|nmse| nmse <= OTHER_TOKEN) => Prompt::Same,
        Some(cosine) if cosine >= SAME_DIRECTION => Prompt::Same,
        Some(cosine) if cosine.abs() <= OTHER_DIRECTION => Prompt::Other,
        _ => Prompt::Unknown,
    })
}

/// The rows of a tap in a step, one a position, where its shape shows them.
///
/// # Errors
/// When the tensor cannot be read.
pub fn rows_of(dump: &Dump, Place { tap, step }: Place) -> Result<Option<Vec<Vec<f64>>>, DumpError> {
    let Some(entry) = dump.find(tap, step).filter(|entry| are_all(&entry.rows)) else { return Ok(None) };
    let &[positions, width] = &squeezed(tap.site, &entry.shape)[..] else { return Ok(None) };
    if positions == 0 || width == 0 {
        return Ok(None);
    }
    let values = dump.read(entry)?.values().to_f64();
    Ok(Some(values.chunks(width).map(<[f64]>::to_vec).collect()))
}

/// The first position from which on all embeddings belong to other tokens, while all before belong to the same: an engine that pads its prompt, or continued
/// with another text. The first of all where they belong to other positions. A wrong embedding differs from the first position on, or here and there.
pub(crate) fn parted(ours: (&Dump, &Chunks), theirs: (&Dump, &Chunks)) -> Result<Option<usize>, DumpError> {
    if [ours.0, theirs.0].into_iter().any(is_made_of_taps) {
        return Ok(None);
    }
    let (ours, theirs) = (embeddings(ours.0, ours.1)?, embeddings(theirs.0, theirs.1)?);
    let distances: Vec<Option<f64>> = ours.iter().zip(&theirs).map(|(ours, theirs)| nmse(ours, theirs)).collect();
    let Some(first) = distances.iter().position(|nmse| !is_same(*nmse)) else { return Ok(None) };
    if first == 0 {
        return Ok((are_shifted(&ours, &theirs) || are_shifted(&theirs, &ours)).then_some(0));
    }
    Ok(distances[first..].iter().all(|nmse| nmse.is_some_and(|nmse| nmse > OTHER_TOKEN)).then_some(first))
}

/// Whether h0 is not a look-up of tokens, by a dump's own graph: it is computed from other recorded taps.
pub(crate) fn is_made_of_taps(dump: &Dump) -> bool {
    let h0 = Site::H0.name();
    dump.meta().graph.iter().flatten().any(|node| node.tap == h0 && !node.reads.is_empty())
}

fn nmse(ours: &[f64], theirs: &[f64]) -> Option<f64> {
    (ours.len() == theirs.len()).then(|| Metrics::measure_f64(ours, theirs).nmse()).flatten()
}

fn is_same(nmse: Option<f64>) -> bool {
    nmse.is_some_and(|nmse| nmse < OTHER_TOKEN / 100.0)
}

/// Whether the embeddings of one side from some position on, at least two of them different, are the other's from the first on: it was padded on the left.
fn are_shifted(ours: &[Vec<f64>], theirs: &[Vec<f64>]) -> bool {
    (1..theirs.len().saturating_sub(1)).any(|by| {
        let pairs = || ours.iter().zip(&theirs[by..]);
        pairs().all(|(ours, theirs)| is_same(nmse(ours, theirs))) && pairs().skip(1).any(|(row, _)| *row != ours[0])
    })
}

/// The embedding of every position up to the first missing one.
fn embeddings(dump: &Dump, chunks: &Chunks) -> Result<Vec<Vec<f64>>, DumpError> {
    let mut rows = Vec::new();
    for (step, &length) in (0u32..).zip(&chunks.lengths) {
        let h0 = Tap { layer: None, site: Site::H0 };
        let printed = || dump.find_part(h0, step).and_then(Partial::whole);
        let Some(entry) = dump.find(h0, step).cloned().or_else(printed) else { break };
        let shape = squeezed(Site::H0, &entry.shape);
        let Some(&first) = shape.first() else { break };
        let by_position = first == length || (shape.len() == 1 && first.is_multiple_of(length));
        if !are_all(&entry.rows) || !by_position || shape.contains(&0) {
            break;
        }
        let values = dump.read(&entry)?.values().to_f64().to_vec();
        rows.extend(values.chunks(values.len() / length).map(<[f64]>::to_vec));
    }
    Ok(rows)
}

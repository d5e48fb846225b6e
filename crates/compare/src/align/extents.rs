//! Detects a dump whose shapes list the fastest axis first, as ggml does ([D,T] for [T,D] in memory). A transposed tensor has the same shape: the values at
//! the first token position, compared with the reference's, decide.

use firstdiff_trace::{Dump, DumpError, Entry};

use crate::layout::rows::{are_all, squeezed};
use crate::metrics::Squares;
use crate::run::steps::Chunks;
use crate::tolerance::layout::{ORDER_LEAVES, OTHER_ORDER_LEAVES};

/// How many taps are tested.
const TAPS_TESTED: usize = 4;

/// The candidate with its shapes listed slowest axis first. The test uses the first position: both took it in their first step, whatever their chunks.
///
/// # Errors
/// When a tensor cannot be read.
pub(crate) fn slowest_first(
    reference: &Dump,
    ours: &Chunks,
    candidate: Dump,
    theirs: &Chunks,
) -> Result<Dump, DumpError> {
    let mut votes = Vec::new();
    for entry in candidate.entries().iter().filter(|entry| entry.step == 0) {
        if votes.len() == TAPS_TESTED {
            break;
        }
        if let Some(like) = reference.find(entry.tap, 0)
            && let Some(reversed) = is_reversed((reference, like, ours), (&candidate, entry, theirs))?
        {
            votes.push(reversed);
        }
    }
    if votes.is_empty() || votes.contains(&false) {
        return Ok(candidate);
    }
    let mut candidate = candidate.reshaped(|_, _, shape| Some(shape.iter().rev().copied().collect()));
    candidate.note("the candidate's shapes list the axes fastest first, as ggml does; read so".into());
    Ok(candidate)
}

/// Whether a tensor of two axes, positions last, has the reference's order in memory; `None` where that cannot be decided.
fn is_reversed(
    (reference, like, ours): (&Dump, &Entry, &Chunks),
    (candidate, entry, theirs): (&Dump, &Entry, &Chunks),
) -> Result<Option<bool>, DumpError> {
    let site = entry.tap.site;
    let due = squeezed(site, &like.shape);
    let mut shape = entry.shape.clone();
    while shape.len() > 2 && shape.last() == Some(&1) {
        shape.pop();
    }
    let (&[rows, width], &[channels, positions]) = (&due[..], &shape[..]) else { return Ok(None) };
    let taken = |chunks: &Chunks| chunks.lengths.first().copied();
    let fits = channels == width && taken(ours) == Some(rows) && taken(theirs) == Some(positions);
    if !fits
        || positions < 2
        || positions == channels
        || site.axes().len() != 2
        || !are_all(&like.rows)
        || !are_all(&entry.rows)
    {
        return Ok(None);
    }
    let (due, own) = (reference.read(like)?, candidate.read(entry)?);
    let (due, own) = (due.values(), own.values());
    if due.len() != rows * width || own.len() != channels * positions {
        return Ok(None);
    }
    let left = |at: &dyn Fn(usize) -> usize| Squares::sum((0..width).map(|c| (due.get(c), own.get(at(c))))).ratio();
    let (reversed, transposed) = (left(&|c| c), left(&|c| c * positions));
    Ok(match (reversed, transposed) {
        (near, far) if near <= ORDER_LEAVES && far >= OTHER_ORDER_LEAVES => Some(true),
        (far, near) if near <= ORDER_LEAVES && far >= OTHER_ORDER_LEAVES => Some(false),
        _ => None,
    })
}

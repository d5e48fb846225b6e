//! Counts the sequences that each side holds: once, from metadata and shapes, before anything is compared.

use firstdiff_trace::{Batch, Dump, DumpError, Entry, Site, Tap, element_count};

use crate::graph::Place;
use crate::layout::rows::squeezed;
use crate::run::misaligned::names_no_tokens;

/// The batches of two dumps; `None` for a side that holds one sequence.
#[derive(Clone, Debug, Default)]
pub struct Sequences {
    /// The reference's.
    pub reference: Option<Batch>,
    /// The candidate's.
    pub candidate: Option<Batch>,
}

impl Sequences {
    /// How many sequences each side holds. A shape that a single sequence may also have shows a batch only where the other side's shape decides it.
    pub fn count_in(reference: &Dump, candidate: &Dump) -> Sequences {
        let mut found = Sequences {
            reference: Batch::detect(reference, &|tap, step| single(candidate, tap, step)),
            candidate: Batch::detect(candidate, &|tap, step| single(reference, tap, step)),
        };
        match (&found.reference, &found.candidate) {
            (Some(batch), None) => found.candidate = as_many(batch, reference, candidate),
            (None, Some(batch)) => found.reference = as_many(batch, candidate, reference),
            (None, None) => {
                found.candidate = batch_by_multiples(reference, candidate);
                found.reference = batch_by_multiples(candidate, reference);
            }
            _ => {}
        }
        found
    }

    /// The greater number of sequences.
    pub fn count(&self) -> usize {
        let count = |batch: &Option<Batch>| batch.as_ref().map_or(1, Batch::count);
        count(&self.reference).max(count(&self.candidate))
    }
}

/// Two dumps whose tensors have one more axis on both sides, without a sign of several sequences: the patches of a picture form such a grid. Its cells become
/// the positions, one after the other. Tokens, a mask, heads, keys, logits and decode steps are signs of text.
pub fn grids(reference: Dump, candidate: Dump) -> [Dump; 2] {
    let is_plain = |entry: &Entry| {
        entry.step == 0 && entry.rows.is_none() && entry.tap.site.axes().len() == 2 && entry.tap.site != Site::Logits
    };
    let by_row = |shape: &[usize]| Some(vec![element_count(shape)?.checked_div(*shape.last()?)?, *shape.last()?]);
    let like = |entry: &Entry| {
        let other = candidate.find(entry.tap, 0);
        other.is_none_or(|other| by_row(&other.shape) == by_row(&entry.shape))
    };
    let may_be = reference.entries().iter().chain(candidate.entries()).all(is_plain)
        && [&reference, &candidate].into_iter().all(names_no_tokens)
        && reference.entries().iter().all(like);
    let is_grid = |shape: &[usize]| shape.iter().filter(|&&extent| extent > 1).count() > 2;
    [reference, candidate].map(|dump| {
        let Some(shape) = dump.entries().iter().map(|entry| &entry.shape).find(|shape| may_be && is_grid(shape)) else {
            return dump;
        };
        let note = format!("{shape:?} is read as a grid of positions: nothing says that it is a batch (--sequence N)");
        let mut dump = dump.reshaped(|_, _, shape| by_row(shape).filter(|_| is_grid(shape)));
        dump.note(note);
        dump
    })
}

/// The shape of a tap in a dump, where it may be that of a single sequence.
fn single(dump: &Dump, tap: Tap, step: u32) -> Option<Vec<usize>> {
    let shape = squeezed(tap.site, &dump.find(tap, step)?.shape);
    (shape.len() > 1 && shape.len() <= tap.site.axes().len()).then_some(shape)
}

/// The batch of a dump without a batch axis, where each of its tensors has the same multiple of the single sequence's elements. With more positions there
/// would also be more keys, and a larger multiple for scores.
fn batch_by_multiples(one: &Dump, other: &Dump) -> Option<Batch> {
    let size = |dump: &Dump, tap, step| element_count(&dump.find(tap, step)?.shape);
    let ratio = |entry: &Entry| {
        let (one, all) = (size(one, entry.tap, entry.step)?, element_count(&entry.shape)?);
        Some(all.checked_div(one).filter(|times| times * one == all).unwrap_or(0))
    };
    let attends = |entry: &Entry| entry.tap.site.position_axis() == 1;
    let shared: Vec<(&Entry, usize)> = other.entries().iter().filter_map(|e| Some((e, ratio(e)?))).collect();
    let &(_, count) = shared.first()?;
    let have_equal_factor = count > 1 && shared.iter().all(|(_, times)| *times == count);
    let both = shared.iter().any(|(e, _)| attends(e)) && shared.iter().any(|(e, _)| !attends(e));
    let batch = || Batch::with_count(other, count, &|tap, step| single(one, tap, step));
    (have_equal_factor && both).then(batch).filter(Batch::is_whole)
}

/// The batch of a dump without a batch axis that holds as many elements as all sequences of the other.
fn as_many(batch: &Batch, whole: &Dump, other: &Dump) -> Option<Batch> {
    let same = |tap, step| {
        let (one, two) = (whole.find(tap, step)?, other.find(tap, step)?);
        Some(element_count(&one.shape) == element_count(&two.shape))
    };
    let shared: Vec<bool> = other.entries().iter().filter_map(|entry| same(entry.tap, entry.step)).collect();
    let most = 2 * shared.iter().filter(|same| **same).count() > shared.len();
    most.then(|| Batch::with_count(other, batch.count(), &|tap, step| batch.shape(tap, step).map(<[usize]>::to_vec)))
}

/// A sign that a sequence which was not compared is wrong: a value that is not finite, or a tap of only zeros.
///
/// # Errors
/// When a tensor cannot be read.
pub fn sign_of_error(dump: &Dump) -> Result<Option<String>, DumpError> {
    for entry in dump.entries() {
        let tensor = dump.read(entry)?;
        let values = tensor.values();
        let masked = entry.tap.site.position_axis() == 1;
        let finite = |x: f64| x.is_finite() || (masked && x == f64::NEG_INFINITY);
        let (mut empty, mut bad) = (!values.is_empty(), None);
        for x in (0..values.len()).map(|at| values.get(at)) {
            empty &= x == 0.0;
            if !finite(x) {
                bad = Some(x);
                break;
            }
        }
        let place = Place { step: entry.step, tap: entry.tap };
        match bad {
            Some(x) => return Ok(Some(format!("{place} holds {x}"))),
            None if empty => return Ok(Some(format!("{place} holds nothing but zeros"))),
            None => {}
        }
    }
    Ok(None)
}

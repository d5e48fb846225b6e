//! Decides whether a tensor's single row is the last of its step, as where an engine computes logits for the last token only.

use std::collections::BTreeMap;

use firstdiff_trace::{Dump, Entry, Site};

use crate::layout::rows::{are_all, squeezed};
use crate::run::positions::position_axis_of_one;
use crate::run::steps::Chunks;

/// How many token positions a step of a dump has, where that is known.
pub(crate) fn length(dump: &Dump, step: u32) -> Option<usize> {
    lengths(dump).get(&step).copied()
}

/// How many token positions each step of a dump has: by its ids, else by tensors with more than one row, or with keys. A single row may be one of many.
pub(crate) fn lengths(dump: &Dump) -> BTreeMap<u32, usize> {
    let named = Chunks::find(dump).filter(|chunks| chunks.ids.is_some() || chunks.lengths.len() > 1);
    if let Some(chunks) = named {
        return (0..).zip(chunks.lengths).collect();
    }
    let extent = |entry: &Entry| {
        let (site, shape) = (entry.tap.site, squeezed(entry.tap.site, &entry.shape));
        let whole = shape.len() == site.axes().len();
        let rows = shape.get(site.position_axis()).copied().filter(|_| whole);
        // One pass sees as many keys as it has positions; a later step sees those before it too.
        let keys = shape.last().copied().filter(|_| whole && entry.step == 0 && site.axes().last() == Some(&'S'));
        keys.or(rows.filter(|&rows| rows > 1))
    };
    let mut lengths = BTreeMap::new();
    for entry in dump.entries().iter().filter(|entry| are_all(&entry.rows)) {
        if let Some(extent) = extent(entry) {
            let longest = lengths.entry(entry.step).or_insert(extent);
            *longest = extent.max(*longest);
        }
    }
    lengths
}

/// Whether a tensor holds one row: by its axes, or without a position axis where a row of the other side is as long.
pub(crate) fn is_single(entry: &Entry, other: &Entry) -> bool {
    let site = entry.tap.site;
    let (shape, theirs) = (squeezed(site, &entry.shape), squeezed(site, &other.shape));
    let (axes, at) = (site.axes().len(), site.position_axis());
    let size = |shape: &[usize]| shape.iter().product::<usize>();
    if shape.len() == axes {
        // As many elements as several rows of the other side are not a single row: [1, T, H*d] where it has [T, H, d].
        let several = theirs.len() == axes && theirs[at] > 1 && size(&theirs) == size(&shape);
        return shape[at] == 1 && !several;
    }
    let row =
        |shape: &[usize]| shape.iter().enumerate().filter(|(axis, _)| *axis != at).map(|(_, n)| n).product::<usize>();
    match theirs.len() == axes {
        true => size(&shape) == row(&theirs) && position_axis_of_one(site, &entry.shape).is_some(),
        false => axes == 2 && shape.len() == 1 && site == Site::Logits && theirs == shape,
    }
}

/// Whether one of two dumps holds single rows where the other has several, and does not record its number of tokens: they may be the last rows, or the first.
pub fn one_row_of_several(reference: &Dump, candidate: &Dump) -> bool {
    let shared = || reference.entries().iter().filter_map(|left| Some((left, candidate.find(left.tap, left.step)?)));
    let undeclared = shared().all(|(left, right)| are_all(&left.rows) && are_all(&right.rows));
    let ours =
        || length(reference, 0).is_none() && shared().any(|(left, right)| has_several(right) && is_single(left, right));
    let theirs =
        || length(candidate, 0).is_none() && shared().any(|(left, right)| has_several(left) && is_single(right, left));
    undeclared && (ours() || theirs())
}

fn has_several(entry: &Entry) -> bool {
    let shape = squeezed(entry.tap.site, &entry.shape);
    shape.len() == entry.tap.site.axes().len() && shape[entry.tap.site.position_axis()] > 1
}

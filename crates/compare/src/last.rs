//! Is the one row that a tensor holds the last of its step? An engine that computes logits for the last token alone writes no other.

use std::collections::BTreeMap;

use firstdiff_trace::{Dump, Entry, NamedRows, Rows, Site};

use crate::first::Run;
use crate::graph::Place;
use crate::positions::of_one;
use crate::rows::{are_all, squeezed};
use crate::steps::Chunks;

impl Run<'_> {
    /// Both sides of a place with the positions of their rows, where these are known: the last of so many, and a single row of a step that has more on the same
    /// side, which is its last.
    pub(crate) fn with_last_rows(
        &self,
        mut left: Option<Entry>,
        mut right: Option<Entry>,
    ) -> (Option<Entry>, Option<Entry>) {
        let (Some(ours), Some(theirs)) = (&mut left, &mut right) else { return (left, right) };
        if self.laid().is_some() {
            return (left, right);
        }
        let step = ours.step;
        let own = self.lengths.each_ref().map(|lengths| lengths.get(&step).copied());
        let known = own[0].or(own[1]);
        let singles = [is_single(ours, theirs), is_single(theirs, ours)];
        for (entry, own, single) in [(&mut *ours, own[0], singles[0]), (&mut *theirs, own[1], singles[1])] {
            let Some(length) = own.or(known) else { continue };
            let undeclared = entry.rows.is_none() && single && length > 1 && (own.is_some() || singles == [true, true]);
            if undeclared || entry.rows == Some(Rows::Named(NamedRows::Last)) {
                entry.rows = Some(Rows::List(vec![length - 1]));
                if let Some(shape) = of_one(entry.tap.site, &entry.shape).filter(|_| single) {
                    entry.shape = shape;
                }
            }
        }
        (left, right)
    }

    /// What is to be said of rows that were taken for the last ones, though nobody says so.
    pub(crate) fn taken_for_last(&self) -> Option<String> {
        let undeclared = |place| {
            let before = self.candidate.find(place, 0)?;
            let (_, right) = self.both(Place { step: 0, tap: place });
            (before.rows.is_none() && right?.rows.is_some()).then_some(place)
        };
        let mut taps = self.candidate.entries().iter().filter(|e| e.step == 0).filter_map(|e| undeclared(e.tap));
        let (first, more) = (taps.next()?, taps.count());
        let which = if more == 0 { format!("{first} holds") } else { format!("{first} and {more} more hold") };
        Some(format!("{which} one row of several token positions: taken for the last one"))
    }

    /// Whether nobody knows of which token position a single row of a place is: of a run that is recorded in one step, of nobody knows how many tokens.
    pub(crate) fn is_of_unknown_position(&self, place: Place) -> bool {
        let dumps = [self.reference, self.candidate];
        let known = self.lengths.iter().any(|lengths| lengths.contains_key(&place.step));
        let later = |dump: &Dump| dump.entries().last().is_some_and(|entry| entry.step > 0);
        let named = |dump: &Dump| {
            let listed = |entry: &Entry| matches!(entry.rows, Some(Rows::List(_)));
            known || dump.find(place.tap, place.step).is_some_and(listed)
        };
        let asked = matches!(self.options.rows, Some(Rows::List(_)));
        self.laid().is_none() && !asked && !dumps.into_iter().any(|dump| later(dump) || named(dump))
    }

    /// Whether somebody says that the single rows of the first step are the last ones.
    pub(crate) fn last_is_declared(&self) -> bool {
        let last = |rows: &Option<Rows>| *rows == Some(Rows::Named(NamedRows::Last));
        let dumps = [self.reference, self.candidate];
        last(&self.options.rows) || dumps.into_iter().flat_map(Dump::entries).any(|entry| last(&entry.rows))
    }
}

/// How many token positions a step of a dump has, where that is known.
pub(crate) fn length(dump: &Dump, step: u32) -> Option<usize> {
    lengths(dump).get(&step).copied()
}

/// How many token positions each step of a dump has: as its ids say, else as tensors of more than one row or of the keys show. A single row may be one of
/// many.
pub(crate) fn lengths(dump: &Dump) -> BTreeMap<u32, usize> {
    let named = Chunks::of(dump).filter(|chunks| chunks.ids.is_some() || chunks.lengths.len() > 1);
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

/// Whether a tensor holds one row: by its axes, or without that of positions where the other side's row is as long.
fn is_single(entry: &Entry, other: &Entry) -> bool {
    let site = entry.tap.site;
    let (shape, theirs) = (squeezed(site, &entry.shape), squeezed(site, &other.shape));
    let (axes, at) = (site.axes().len(), site.position_axis());
    let size = |shape: &[usize]| shape.iter().product::<usize>();
    if shape.len() == axes {
        // As many elements as several rows of the other side are no single row: [1, T, H*d] where it has [T, H, d].
        let several = theirs.len() == axes && theirs[at] > 1 && size(&theirs) == size(&shape);
        return shape[at] == 1 && !several;
    }
    let row =
        |shape: &[usize]| shape.iter().enumerate().filter(|(axis, _)| *axis != at).map(|(_, n)| n).product::<usize>();
    match theirs.len() == axes {
        true => size(&shape) == row(&theirs) && of_one(site, &entry.shape).is_some(),
        false => axes == 2 && shape.len() == 1 && site == Site::Logits && theirs == shape,
    }
}

/// Whether one of two dumps holds single rows where the other has several, and does not say of how many tokens it is: they may be the last ones, or the first.
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

//! Finds the axis of tokens of a tap outside the vocabulary, in two runs with different chunks. It is the axis whose extent is the step's number of tokens in
//! every step of both runs, with a constant number of elements per token; a tensor without one depends on the keys or the chunks, and is not cut.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use firstdiff_trace::{Dump, Entry, Tap, split_stored_name};

use crate::expert::is_of_expert;
use crate::run::slice::{AxisUnknown, Cut, CutError};
use crate::run::steps::Chunks;

/// The open taps that both runs hold, in any step.
#[derive(Debug, Default)]
pub(super) struct OpenTapAxes {
    /// For each, the axis of the tokens on either side.
    axes: BTreeMap<Tap, Result<[usize; 2], AxisUnknown>>,
    /// The tensors of each side, by step.
    entries: [BTreeMap<u32, Vec<Entry>>; 2],
}

impl OpenTapAxes {
    pub(super) fn find(dumps: [&Dump; 2], chunks: [&Chunks; 2]) -> OpenTapAxes {
        let names = dumps.map(|dump| -> BTreeSet<Tap> {
            let taps = dump.unmapped().iter().map(|name| Tap::named(split_stored_name(name).0));
            taps.filter(Tap::is_open).collect()
        });
        let mut entries = [BTreeMap::new(), BTreeMap::new()];
        let mut of_tap: BTreeMap<Tap, [Vec<Entry>; 2]> = BTreeMap::new();
        for (side, dump) in dumps.into_iter().enumerate() {
            for name in dump.unmapped() {
                let (plain, step) = split_stored_name(name);
                let tap = Tap::named(plain);
                if !(tap.is_open() && names.iter().all(|names| names.contains(&tap))) {
                    continue;
                }
                let Some(entry) = dump.entry(tap, step) else { continue };
                of_tap.entry(tap).or_default()[side].push(entry.clone());
                entries[side].entry(step).or_insert_with(Vec::new).push(entry);
            }
        }
        let axes = of_tap.into_iter().map(|(tap, of_sides)| (tap, axes(tap, &of_sides, chunks))).collect();
        OpenTapAxes { axes, entries }
    }

    /// The tensors of one side's step.
    pub(super) fn entries_of_step(&self, side: usize, step: u32) -> &[Entry] {
        self.entries[side].get(&step).map_or(&[], Vec::as_slice)
    }

    /// Cuts the positions `cell` out of a tap of a step that holds the positions `step`; `requested` are the positions of the step to be compared.
    pub(super) fn cut(
        &self,
        side: usize,
        entry: &Entry,
        step: &Range<usize>,
        cell: &Range<usize>,
        requested: Option<&[usize]>,
    ) -> Result<Option<Cut>, CutError> {
        // The only token of a step has the whole tensor.
        if step == cell && requested.is_none() && (step.len() == 1 || !is_of_expert(entry.tap)) {
            return Ok(Some(Cut::whole(entry)));
        }
        let axis = self.axes.get(&entry.tap).copied().unwrap_or(Err(AxisUnknown::NotOfTokens));
        let named = |why| CutError::Axis { shape: entry.shape.clone(), positions: step.len(), why };
        let axis = axis.map_err(named)?[side];
        let is_requested = |at: &usize| requested.is_none_or(|wanted| wanted.contains(at));
        let picks: Vec<usize> = (cell.start - step.start..cell.end - step.start).filter(is_requested).collect();
        Ok((!picks.is_empty()).then(|| Cut::rows(&entry.shape, axis, picks, cell.len(), cell.start - step.start)))
    }
}

/// The axis of the tokens on either side.
fn axes(tap: Tap, of_sides: &[Vec<Entry>; 2], chunks: [&Chunks; 2]) -> Result<[usize; 2], AxisUnknown> {
    if is_of_expert(tap) {
        return Err(AxisUnknown::OfExpert);
    }
    if of_sides.iter().flatten().any(|entry| entry.rows.as_ref().is_some_and(|rows| !rows.is_all())) {
        return Err(AxisUnknown::None);
    }
    // The number of elements per token must be the same in each step of both runs.
    let mut sizes = BTreeSet::new();
    let mut possible = [Vec::new(), Vec::new()];
    for (side, entries) in of_sides.iter().enumerate() {
        let mut axes: Option<Vec<usize>> = None;
        for entry in entries {
            let length = chunks[side].lengths.get(entry.step as usize).copied().ok_or(AxisUnknown::NotOfTokens)?;
            sizes.insert((entry.shape.iter().product::<usize>(), length));
            let here = (0..entry.shape.len()).filter(|&axis| entry.shape[axis] == length);
            axes = Some(match axes {
                None => here.collect(),
                Some(before) => here.filter(|axis| before.contains(axis)).collect(),
            });
        }
        possible[side] = axes.unwrap_or_default();
    }
    let mut sizes = sizes.into_iter();
    let Some((first, tokens)) = sizes.next() else { return Err(AxisUnknown::NotOfTokens) };
    if sizes.any(|(size, length)| size.checked_mul(tokens) != first.checked_mul(length)) {
        return Err(AxisUnknown::NotOfTokens);
    }
    let ranks: BTreeSet<usize> = of_sides.iter().flatten().map(|entry| entry.shape.len()).collect();
    match [&possible[0][..], &possible[1][..]] {
        [&[ours], &[theirs]] => Ok([ours, theirs]),
        // Another axis happens to be as long: where the other side has the same number of axes, it decides.
        [&[one], several] | [several, &[one]] if ranks.len() == 1 && several.contains(&one) => Ok([one, one]),
        [[], _] | [_, []] => Err(AxisUnknown::NotOfTokens),
        _ => Err(AxisUnknown::Several),
    }
}

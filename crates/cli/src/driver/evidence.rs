//! Collects what an engine's runs wrote: every tap with all rows of any run, and whether runs agree, bit for bit or except for noise.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use firstdiff_compare::Place;
use firstdiff_compare::metrics::Squares;
use firstdiff_trace::{
    DType, Dump, Element, Entry, Meta, NamedRows, RecordError, Recorder, Rows, Tap, to_bf16, to_f16,
};

use crate::driver::engine::{EngineRun, open};

/// One tap of one step: the rows seen so far.
#[derive(Clone, Debug)]
struct CollectedRows {
    dtype: DType,
    shape: Vec<usize>,
    /// The positions of the rows, ascending; `None`: all there are, or a shape that does not show them.
    rows: Option<Vec<usize>>,
    values: Vec<f64>,
}

/// A tap that two runs wrote with different bits.
#[derive(Clone, Debug)]
pub(crate) struct UnrepeatedTap {
    pub(crate) place: Place,
    pub(crate) nmse: f64,
    pub(crate) max_abs_diff: f64,
}

/// All that the runs wrote.
#[derive(Debug, Default)]
pub(crate) struct CollectedTaps {
    taps: BTreeMap<Place, CollectedRows>,
    /// The engine's own metadata.
    pub(crate) meta: Option<Meta>,
    /// The positions of each place that were seen twice, not only in runs of an earlier start.
    twice: BTreeMap<Place, BTreeSet<usize>>,
    /// The positions of each place that a run of this start wrote.
    fresh: BTreeMap<Place, BTreeSet<usize>>,
    /// Where two runs were furthest apart by no more than noise.
    pub(crate) noise: Option<UnrepeatedTap>,
    /// Whether a run wrote positions that were not requested.
    pub(crate) rows_ignored: bool,
    /// Whether a run wrote taps that were not requested.
    pub(crate) taps_ignored: bool,
    /// Bytes of values in all runs.
    pub(crate) bytes: u64,
}

impl CollectedTaps {
    /// Nothing yet, from an engine with this metadata.
    pub(crate) fn new(meta: Option<Meta>) -> CollectedTaps {
        CollectedTaps { meta, ..CollectedTaps::default() }
    }

    /// Adds what a run wrote of a prompt of `tokens` tokens; returns the first place where it differs from an earlier run by more than `noise` allows.
    ///
    /// # Errors
    /// When a tensor cannot be read.
    pub(crate) fn add_run(
        &mut self,
        run: &EngineRun,
        (tokens, last_step): (usize, u32),
        noise: impl Fn(Tap, DType) -> f64,
    ) -> Result<Option<UnrepeatedTap>> {
        let mut wavering = None;
        self.meta.get_or_insert_with(|| run.dump.meta().clone());
        for entry in &run.entries {
            self.bytes += size(entry);
            if entry.step > last_step {
                continue;
            }
            self.taps_ignored |= !run.question.taps.contains(&entry.tap);
            let place = Place { step: entry.step, tap: entry.tap };
            let positions = if entry.step == 0 { tokens } else { 1 };
            let rows = held_positions(entry, &run.question.rows, positions);
            // Taps outside the vocabulary are written whole.
            self.rows_ignored |= rows.is_none()
                && positions > 1
                && run.question.rows != Rows::Named(NamedRows::All)
                && !entry.tap.is_open();
            let values = run.dump.read(entry)?.values().to_f64();
            let new = CollectedRows { dtype: entry.dtype, shape: entry.shape.clone(), rows, values };
            let axis = place.tap.site.position_axis();
            let fresh = self.fresh.entry(place).or_default();
            if !run.kept {
                fresh.extend(new.positions(axis));
            }
            let Some(old) = self.taps.get(&place) else {
                self.taps.insert(place, new);
                continue;
            };
            let common: Vec<usize> =
                old.positions(axis).into_iter().filter(|p| new.positions(axis).contains(p)).collect();
            if !common.is_empty() {
                let now = common.iter().filter(|row| fresh.contains(row));
                self.twice.entry(place).or_default().extend(now);
                let (one, other) = (old.cut(axis, &common), new.cut(axis, &common));
                if !same_bits(&one, &other) {
                    let found = difference(place, &one, &other);
                    if found.nmse <= noise(place.tap, old.dtype) {
                        let larger = |old: &UnrepeatedTap| old.nmse >= found.nmse;
                        self.noise = self.noise.take().filter(larger).or(Some(found));
                    } else {
                        wavering.get_or_insert(found);
                    }
                }
            }
            let joined = old.joined(new, axis);
            self.taps.insert(place, joined);
        }
        Ok(wavering)
    }

    /// Takes over the first run's metadata, and the tokens it was fed where they are known otherwise.
    pub(crate) fn describe(&mut self, run: &EngineRun, tokens: Option<&[u32]>, decoded: &[u32]) {
        let list = |ids: &[u32]| Some(ids.iter().map(|&id| i64::from(id)).collect());
        let mut meta = run.dump.meta().clone();
        meta.tokens = tokens.map_or(meta.tokens, list);
        if !decoded.is_empty() {
            meta.decode_tokens = list(decoded);
        }
        self.meta = Some(meta);
    }

    /// Whether row `row` of a tap was seen; all rows where `None`.
    pub(crate) fn is_collected(&self, place: Place, row: Option<usize>) -> bool {
        self.taps.get(&place).is_some_and(|seen| match (&seen.rows, row) {
            (None, _) => true,
            (Some(rows), Some(row)) => rows.contains(&row),
            (Some(_), None) => false,
        })
    }

    /// Whether anything was seen twice.
    pub(crate) fn has_repeats(&self) -> bool {
        self.twice.values().any(|rows| !rows.is_empty())
    }

    /// Whether one of these rows of a tap was seen twice; any row where none is given.
    pub(crate) fn repeats_of(&self, place: Place, rows: &[usize]) -> bool {
        self.twice.get(&place).is_some_and(|seen| match rows {
            [] => !seen.is_empty(),
            rows => rows.iter().any(|row| seen.contains(row)),
        })
    }

    /// The type of the values.
    pub(crate) fn dtype(&self) -> DType {
        self.taps.values().next().map_or(DType::F32, |seen| seen.dtype)
    }

    /// Writes all of it as one dump, replacing the previous one.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub(crate) fn write(&self, folder: &Path) -> Result<Dump> {
        let _ = std::fs::remove_dir_all(folder);
        let recorder = Recorder::create(folder)?;
        if let Some(meta) = &self.meta {
            recorder.describe(|own| *own = Meta { taps: Some(Vec::new()), rows: None, ..of_this_folder(own, meta) });
        }
        let decoded = self.meta.as_ref().and_then(|meta| meta.decode_tokens.clone());
        let rows_of = |place: &Place, seen: &CollectedRows| {
            let is_whole = place.step == 0 && !place.tap.is_open() && seen.shape.len() == place.tap.site.axes().len();
            is_whole.then(|| seen.positions(place.tap.site.position_axis()).len())
        };
        let tokens = self.taps.iter().filter_map(|(place, seen)| rows_of(place, seen)).max().unwrap_or(0);
        let mut step = 0;
        for (place, seen) in &self.taps {
            while step < place.step {
                let known = decoded.as_ref().and_then(|ids| ids.get(step as usize)).copied();
                recorder.next_step(known.unwrap_or(0));
                step += 1;
            }
            let (tap, shape, values) = (place.tap, &seen.shape, &seen.values);
            let rows = match &seen.rows {
                Some(rows) => Some(Rows::List(rows.clone())),
                // Fewer than another tap has, and the engine does not say which.
                None if rows_of(place, seen).is_some_and(|rows| rows < tokens) => None,
                // The rows of an expert, or of a table, are not the tokens.
                None if place.tap.is_open() => None,
                None => Some(Rows::Named(NamedRows::All)),
            };
            match seen.dtype {
                DType::F64 => put_rows(&recorder, tap, rows, shape, values)?,
                DType::F32 => put_rows(&recorder, tap, rows, shape, &as_type(values, |x| x as f32))?,
                DType::F16 => put_rows(&recorder, tap, rows, shape, &as_type(values, to_f16))?,
                DType::BF16 => put_rows(&recorder, tap, rows, shape, &as_type(values, to_bf16))?,
            }
        }
        recorder.describe(|own| own.decode_tokens = decoded);
        recorder.finish()?;
        Ok(open(folder, self.taps.keys().map(|place| &place.tap))?)
    }
}

/// An engine's own metadata, in a dump that is complete.
fn of_this_folder(own: &Meta, engine: &Meta) -> Meta {
    Meta { format: own.format, complete: own.complete, ended_by_itself: None, ..engine.clone() }
}

fn put_rows<T: Element>(
    recorder: &Recorder,
    tap: Tap,
    rows: Option<Rows>,
    shape: &[usize],
    values: &[T],
) -> Result<(), RecordError> {
    match rows {
        Some(rows) => recorder.record_rows(tap, rows, shape, values),
        None => recorder.record(tap, shape, values),
    }
}

fn as_type<T>(values: &[f64], narrow: impl Fn(f64) -> T) -> Vec<T> {
    values.iter().map(|&x| narrow(x)).collect()
}

/// Bytes of an entry's values.
pub(crate) fn size(entry: &Entry) -> u64 {
    (entry.shape.iter().product::<usize>() * entry.dtype.size()) as u64
}

/// The positions an entry holds of `positions`, where not all: those it declares, else the requested ones if it has as many rows.
fn held_positions(entry: &Entry, requested: &Rows, positions: usize) -> Option<Vec<usize>> {
    let axis = entry.tap.site.position_axis();
    let count = *entry.shape.get(axis).filter(|_| entry.shape.len() == entry.tap.site.axes().len())?;
    let listed = |rows: &Rows| match rows {
        Rows::Named(NamedRows::All) => None,
        Rows::Named(NamedRows::Last) => Some(vec![positions.saturating_sub(1)]),
        Rows::List(list) => Some(list.iter().copied().filter(|&row| row < positions).collect::<Vec<_>>()),
    };
    let declared = entry.rows.as_ref().and_then(listed);
    declared
        .or_else(|| listed(requested).filter(|_| count < positions))
        .filter(|rows| rows.len() == count && count < positions)
}

impl CollectedRows {
    fn positions(&self, axis: usize) -> Vec<usize> {
        let all = || (0..self.shape.get(axis).copied().unwrap_or(1)).collect();
        self.rows.clone().unwrap_or_else(all)
    }

    /// The values at these positions, which it holds.
    fn cut(&self, axis: usize, positions: &[usize]) -> Vec<f64> {
        let own = self.positions(axis);
        if own == positions || self.shape.len() <= axis {
            return self.values.clone();
        }
        let inner: usize = self.shape[axis + 1..].iter().product();
        let outer: usize = self.shape[..axis].iter().product();
        let places: Vec<usize> = positions.iter().filter_map(|p| own.iter().position(|q| q == p)).collect();
        let row = |block: usize, place: &usize| {
            let start = (block * own.len() + place) * inner;
            &self.values[start..start + inner]
        };
        (0..outer).flat_map(|block| places.iter().flat_map(move |place| row(block, place))).copied().collect()
    }

    /// Both together: all rows where one side has all, else the rows of either.
    fn joined(&self, new: CollectedRows, axis: usize) -> CollectedRows {
        let (Some(ours), Some(theirs)) = (&self.rows, &new.rows) else {
            return if self.rows.is_none() { self.clone() } else { new };
        };
        let fits = self.shape.len() == new.shape.len()
            && self.shape.iter().zip(&new.shape).enumerate().all(|(at, (a, b))| at == axis || a == b);
        if !fits {
            return new;
        }
        let mut rows: Vec<usize> = ours.iter().chain(theirs).copied().collect();
        rows.sort_unstable();
        rows.dedup();
        let inner: usize = self.shape[axis + 1..].iter().product();
        let outer: usize = self.shape[..axis].iter().product();
        let mut values = Vec::with_capacity(outer * rows.len() * inner);
        for block in 0..outer {
            for row in &rows {
                let from = if ours.contains(row) { self } else { &new };
                let own = from.rows.as_deref().unwrap_or_default();
                let place = own.iter().position(|q| q == row).unwrap_or_default();
                let start = (block * own.len() + place) * inner;
                values.extend_from_slice(&from.values[start..start + inner]);
            }
        }
        let mut shape = self.shape.clone();
        shape[axis] = rows.len();
        CollectedRows { dtype: self.dtype, shape, rows: Some(rows), values }
    }
}

/// Whether two lists are equal bit for bit.
pub(crate) fn same_bits(one: &[f64], other: &[f64]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| a.to_bits() == b.to_bits())
}

fn difference(place: Place, one: &[f64], other: &[f64]) -> UnrepeatedTap {
    let (mut error, mut energy, mut most) = (0.0, 0.0, 0.0f64);
    for (a, b) in one.iter().zip(other) {
        let finite = a.is_finite() && b.is_finite();
        let d = if a.to_bits() == b.to_bits() {
            0.0
        } else if finite {
            (a - b).abs()
        } else {
            f64::INFINITY
        };
        (error, most) = (error + d * d, most.max(d));
        energy += if a.is_finite() { a * a } else { 0.0 };
    }
    UnrepeatedTap { place, nmse: Squares { error, energy }.nmse(), max_abs_diff: most }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_two_runs_are_joined() {
        let seen = |rows: Vec<usize>, values: &[f64]| CollectedRows {
            dtype: DType::F32,
            shape: vec![2, rows.len(), 1],
            rows: Some(rows),
            values: values.to_vec(),
        };
        let joined = seen(vec![1, 4], &[1., 4., 11., 14.]).joined(seen(vec![2, 4], &[2., 4., 12., 14.]), 1);
        assert_eq!((joined.rows.clone(), joined.shape.clone()), (Some(vec![1, 2, 4]), vec![2, 3, 1]));
        assert_eq!(joined.values, [1., 2., 4., 11., 12., 14.]);
        assert_eq!(joined.cut(1, &[2, 4]), [2., 4., 12., 14.]);
    }
}

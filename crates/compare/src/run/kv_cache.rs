//! Handles runs that recorded their whole K/V cache as the keys and values of every step: takes out the rows of each step's own positions, and compares the
//! earlier rows with what the earlier steps wrote.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use firstdiff_trace::{Dump, DumpError, Entry, Tap, Tensor};

use crate::layout::rows::squeezed;
use crate::metrics::Squares;
use crate::run::slice::Cut;
use crate::run::steps::Chunks;
use crate::tolerance::run::OTHER_ROW;

/// Cuts every tap that holds a cache to the rows of each step's own positions, with a note. An earlier row that is not what was written there before puts the
/// dump in doubt.
///
/// A cache is recognised by its slots (in every step at least as many as all positions, or exactly as many as positions so far), and because it keeps most
/// rows bit for bit. A row in a wrong slot then shows as a difference.
///
/// # Errors
/// When a tensor cannot be read.
pub fn own_rows(dump: &mut Dump) -> Result<(), DumpError> {
    // Where most tensors are caches, their slots are not a step's positions, and only the ids give these.
    match Chunks::find(dump).or_else(|| Chunks::from_token_ids(dump)) {
        Some(chunks) => own_rows_in(dump, &chunks),
        None => Ok(()),
    }
}

/// The same for a dump with only keys and values, whose steps are assumed to be those of `reference`.
///
/// # Errors
/// When a tensor cannot be read.
pub fn own_rows_by(reference: &Dump, dump: &mut Dump) -> Result<(), DumpError> {
    match Chunks::find(reference).filter(|_| dump.entries().iter().all(|e| e.tap.site.is_attended())) {
        Some(chunks) => own_rows_in(dump, &chunks),
        None => Ok(()),
    }
}

fn own_rows_in(dump: &mut Dump, chunks: &Chunks) -> Result<(), DumpError> {
    if chunks.lengths.len() < 2 {
        return Ok(());
    }
    let mut taps: BTreeMap<Tap, Vec<Entry>> = BTreeMap::new();
    for entry in dump.entries().iter().filter(|e| e.tap.site.is_attended() && e.rows.is_none()) {
        taps.entry(entry.tap).or_default().push(entry.clone());
    }
    let (mut caches, mut slots, mut step) = (Vec::new(), BTreeSet::new(), "step");
    for (tap, entries) in taps {
        let Some(cache) = cache_of(dump, &entries, chunks)? else { continue };
        slots.extend(cache.slots.iter().map(|held| held.1));
        if cache.slots.iter().all(|held| held.0 > 0) {
            step = "decode step";
        }
        for (step, tensor) in cache.rows {
            dump.put(tap, step, tensor);
        }
        if let Some((step, reason)) = cache.doubts.first() {
            dump.note(format!("{tap} in step {step}: {reason}"));
        }
        for (step, reason) in cache.doubts {
            dump.doubt(tap, step, reason);
        }
        caches.push(tap);
    }
    if let (Some(first), Some(least), Some(most)) = (caches.first(), slots.first(), slots.last()) {
        let more = if caches.len() > 1 { format!(" and {} more hold", caches.len() - 1) } else { " holds".into() };
        let slots = if least == most { most.to_string() } else { format!("{least} to {most}") };
        dump.note(format!(
            "{first}{more} a K/V cache of {slots} slots in every {step}: the rows of the step's own positions were taken"
        ));
    }
    Ok(())
}

/// A tap that holds a cache in every step.
struct RecordedCache {
    /// The slots of each step that holds it.
    slots: Vec<(u32, usize)>,
    /// The own rows of each step.
    rows: Vec<(u32, Tensor)>,
    doubts: Vec<(u32, String)>,
}

/// The cache that a tap's tensors form, all of them or those of the decode steps.
fn cache_of(dump: &Dump, entries: &[Entry], chunks: &Chunks) -> Result<Option<RecordedCache>, DumpError> {
    if hold_own_rows(entries, chunks) {
        return Ok(None);
    }
    let ranges = chunks.ranges();
    let later = entries.partition_point(|entry| entry.step == 0);
    for from in [0, later] {
        let (prefill, held) = entries.split_at(from);
        for axis in (0..3).filter(|&axis| slotted(held, axis, chunks)) {
            if let Some(cache) = read(dump, prefill.first(), held, axis, &ranges)? {
                return Ok(Some(cache));
            }
        }
    }
    Ok(None)
}

/// Whether every step, including the prefill, has exactly its own positions on one axis and the same other extents: then it is no cache, whatever its number
/// of channels, and whichever values two steps share (a token that is fed twice has the same keys in layer 0).
fn hold_own_rows(entries: &[Entry], chunks: &Chunks) -> bool {
    // Where all steps have the same number of positions, only the first axis is known to be theirs.
    let axes = if chunks.lengths.iter().any(|length| *length != chunks.lengths[0]) { 0..4 } else { 0..1 };
    let own = |entry: &Entry, axis: usize| {
        let mut shape = squeezed(entry.tap.site, &entry.shape);
        let rows = chunks.lengths.get(entry.step as usize)?;
        shape.get(axis).filter(|extent| *extent == rows)?;
        shape.remove(axis);
        Some(shape)
    };
    let mut axes = axes.filter(|&axis| {
        let mut other_entries = entries.iter().map(|entry| own(entry, axis));
        let first = other_entries.next().flatten();
        first.is_some() && other_entries.all(|shape| shape == first)
    });
    entries.first().is_some_and(|entry| entry.step == 0) && axes.next().is_some()
}

/// Whether every step has room along an axis for all positions so far, and more than its own.
fn slotted(entries: &[Entry], axis: usize, chunks: &Chunks) -> bool {
    let ranges = chunks.ranges();
    let fits = |entry: &Entry| {
        let (Some(range), Some(&slots)) = (ranges.get(entry.step as usize), entry.shape.get(axis)) else {
            return false;
        };
        let own = entry.step == 0 || slots > range.len();
        entry.shape.len() > 1 && slots >= range.end && (slots >= chunks.total() || slots == range.end) && own
    };
    entries.iter().any(|entry| entry.step > 0) && entries.iter().all(fits)
}

/// The cache with its slots along an axis, if it keeps its rows. `prefill`: the keys of the first step, where that holds no cache.
fn read(
    dump: &Dump,
    prefill: Option<&Entry>,
    entries: &[Entry],
    axis: usize,
    ranges: &[Range<usize>],
) -> Result<Option<RecordedCache>, DumpError> {
    let mut written: BTreeMap<usize, (u32, Vec<u64>)> = BTreeMap::new();
    let mut cache = RecordedCache { slots: Vec::new(), rows: Vec::new(), doubts: Vec::new() };
    let (mut kept, mut changed) = (0, 0);
    for entry in entries {
        let tensor = dump.read(entry)?;
        let own = ranges[entry.step as usize].clone();
        cache.slots.push((entry.step, entry.shape[axis]));
        for (slot, row) in rows(&tensor, axis, own.end).into_iter().enumerate() {
            let empty = row.iter().all(|&bits| f64::from_bits(bits) == 0.0);
            match written.get(&slot) {
                Some((_, before)) if !own.contains(&slot) && *before == row => kept += usize::from(!empty),
                Some((by, _)) if !own.contains(&slot) => {
                    changed += 1;
                    let step = if *by == 0 { "the prefill".into() } else { format!("step {by}") };
                    cache.doubts.push((entry.step, format!("its cache holds other values of position {slot} than {step} wrote there: overwritten, or no cache")));
                }
                _ => {
                    written.insert(slot, (entry.step, row));
                }
            }
        }
        let cut = |range: &Range<usize>| Cut::along(&entry.shape, axis, range.clone()).apply(tensor.clone());
        let Some(rows) = cut(&own) else { return Ok(None) };
        // Steps without rows of their own are in the first cache behind them.
        let known = |step: u32, rows: &[(u32, Tensor)]| rows.iter().any(|(of, _)| *of == step);
        for (step, range) in (0..entry.step).zip(ranges) {
            if !known(step, &cache.rows) && (step > 0 || prefill.is_none()) {
                cache.rows.extend(cut(range).map(|rows| (step, rows)));
            }
        }
        if let (Some(prefill), true) = (prefill, cache.rows.is_empty()) {
            match cut(&ranges[0]).map(|first| Ok(hold_other_values(&first, &dump.read(prefill)?))).transpose()? {
                Some(false) => kept += 1,
                _ => cache.doubts.push((entry.step, "its cache holds other values of the prefill's positions than the prefill wrote: overwritten, or no cache".into())),
            }
        }
        cache.rows.push((entry.step, rows));
    }
    Ok((kept > changed).then_some(cache))
}

/// The bits of the first `count` rows along an axis.
fn rows(tensor: &Tensor, axis: usize, count: usize) -> Vec<Vec<u64>> {
    let shape = tensor.shape();
    let inner: usize = shape[axis + 1..].iter().product();
    let values = tensor.values();
    let mut rows = vec![Vec::new(); count];
    for at in 0..values.len() {
        if let Some(row) = rows.get_mut(at / inner.max(1) % shape[axis]) {
            row.push(values.get(at).to_bits());
        }
    }
    rows
}

/// Whether two tensors hold different values, in any order of axes, beyond the rounding of the cache's type.
fn hold_other_values(one: &Tensor, other: &Tensor) -> bool {
    let sorted = |tensor: &Tensor| {
        let mut values = tensor.values().to_f64().to_vec();
        values.sort_by(f64::total_cmp);
        values
    };
    let (one, other) = (sorted(one), sorted(other));
    let Squares { error, energy } = Squares::sum(other.iter().copied().zip(one.iter().copied()));
    // A NaN counts as another value.
    let same = error <= OTHER_ROW * energy;
    one.len() != other.len() || !same
}

//! Did a run write its whole K/V cache as the keys and values of every step? Then the rows of each step's own positions are taken out of it.

use std::collections::BTreeMap;

use firstdiff_trace::{Dump, DumpError, Entry, Site, Tap, Tensor};

use crate::cut::Cut;
use crate::steps::Chunks;

/// Cuts every tap that holds a cache to the rows of each step's own positions, and notes it.
///
/// A cache is known by its slots, as many in every step as there are positions or more (or as many as there are positions so far), and by what
/// it keeps: every step holds what the first one wrote, bit for bit. What is in other slots than it should be is found there as a difference.
///
/// # Errors
/// When a tensor cannot be read.
pub fn own_rows(dump: &mut Dump) -> Result<(), DumpError> {
    let Some(chunks) = Chunks::of(dump).filter(|chunks| chunks.lengths.len() > 1) else { return Ok(()) };
    let mut taps: BTreeMap<Tap, Vec<Entry>> = BTreeMap::new();
    let attended = |e: &&Entry| matches!(e.tap.site, Site::K | Site::KNorm | Site::KRope | Site::V);
    for entry in dump.entries().iter().filter(attended).filter(|e| e.rows.is_none()) {
        taps.entry(entry.tap).or_default().push(entry.clone());
    }
    let (mut caches, mut slots) = (Vec::new(), 0);
    for (tap, entries) in taps {
        let Some(axis) = (0..2).find(|&axis| slotted(&entries, axis, &chunks)) else { continue };
        let Some(rows) = taken(dump, &entries, axis, &chunks)? else { continue };
        slots = slots.max(entries.iter().map(|e| e.shape[axis]).max().unwrap_or(0));
        for (entry, tensor) in entries.iter().zip(rows) {
            dump.put(entry.tap, entry.step, tensor);
        }
        caches.push(tap);
    }
    if let Some(first) = caches.first() {
        let more = if caches.len() > 1 { format!(" and {} more hold", caches.len() - 1) } else { " holds".into() };
        dump.note(format!(
            "{first}{more} a K/V cache of {slots} slots in every step: the rows of the step's own positions were taken"
        ));
    }
    Ok(())
}

/// Whether every step has room for all positions so far along an axis, and more than its own.
fn slotted(entries: &[Entry], axis: usize, chunks: &Chunks) -> bool {
    let ranges = chunks.ranges();
    let fits = |entry: &Entry| {
        let (Some(range), Some(&slots)) = (ranges.get(entry.step as usize), entry.shape.get(axis)) else {
            return false;
        };
        let own = entry.step == 0 || slots > range.len();
        entry.shape.len() > axis + 1 && slots >= range.end && (slots >= chunks.total() || slots == range.end) && own
    };
    entries.len() > 1 && entries[0].step == 0 && entries.iter().all(fits)
}

/// The own rows of each step, if all steps keep what the first wrote.
fn taken(dump: &Dump, entries: &[Entry], axis: usize, chunks: &Chunks) -> Result<Option<Vec<Tensor>>, DumpError> {
    let ranges = chunks.ranges();
    let mut first: Option<Vec<u64>> = None;
    let mut rows = Vec::new();
    for entry in entries {
        let tensor = dump.read(entry)?;
        let range = |at: usize| Cut::along(&entry.shape, axis, ranges[at].clone());
        let Some(kept) = range(0).of(tensor.clone()) else { return Ok(None) };
        let bits: Vec<u64> = kept.values().to_f64().iter().map(|x| x.to_bits()).collect();
        let empty = bits.iter().all(|&bits| f64::from_bits(bits) == 0.0);
        if empty || *first.get_or_insert_with(|| bits.clone()) != bits {
            return Ok(None);
        }
        let Some(own) = range(entry.step as usize).of(tensor) else { return Ok(None) };
        rows.push(own);
    }
    Ok(Some(rows))
}

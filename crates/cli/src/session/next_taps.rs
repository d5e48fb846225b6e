//! Chooses which taps to record next after a replay on few taps: where a span is wrong, the taps inside it.

use std::collections::{BTreeMap, BTreeSet};

use firstdiff_compare::{Chunks, Place, Status};
use firstdiff_explain::replay::{Reason, Replay, Replayed};
use firstdiff_trace::{Dump, Tap};

/// Taps to record next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TapsToRecord {
    pub(crate) taps: Vec<Tap>,
    /// What they will show.
    pub(crate) why: &'static str,
}

/// Bytes of the same operations of further layers, all together.
const MOST_BYTES: usize = 1 << 29;

/// The taps that divide a whole run: the output of each layer, and the taps of no layer. `all` is in order of production.
pub(crate) fn outline_taps(all: &[Tap]) -> Vec<Tap> {
    let mut last = BTreeMap::new();
    for (at, &tap) in all.iter().enumerate() {
        last.insert(tap.block().map_or((Some(at), "", 0), |(stack, layer)| (None, stack, layer)), at);
    }
    let places: BTreeSet<usize> = last.into_values().collect();
    places.into_iter().map(|at| all[at]).collect()
}

/// Of the taps inside a wrong span, those that divide it: all taps of a single layer, or the output of each of several layers.
pub(crate) fn dividing_taps(replay: &Replay, through: &[Tap]) -> Vec<Tap> {
    let inside: BTreeSet<Tap> = through.iter().copied().collect();
    let mut met = BTreeSet::new();
    let in_order = replay.taps.iter().map(|t| t.report.place.tap);
    let taps: Vec<Tap> = in_order.filter(|tap| inside.contains(tap) && met.insert(*tap)).collect();
    let layers: BTreeSet<_> = taps.iter().filter_map(Tap::block).collect();
    if layers.len() > 1 { outline_taps(&taps) } else { taps }
}

/// The taps to record next of a candidate, except those that it does not write; `None` where no wrong span can be divided.
pub(crate) fn next_taps(replay: &Replay, dump: &Dump, absent: &BTreeSet<Tap>) -> Option<TapsToRecord> {
    let recorded: BTreeSet<Tap> = dump.all_entries().iter().map(|entry| entry.tap).collect();
    // A site that it does not write in one layer it writes in none.
    let site = |tap: &Tap| (tap.stack(), tap.site);
    let written: BTreeSet<_> = recorded.iter().map(site).collect();
    let unknown: BTreeSet<_> = absent.iter().map(site).filter(|site| !written.contains(site)).collect();
    let open = |t: &Replayed| -> Vec<Tap> {
        let new = |tap: &&Tap| !absent.contains(*tap) && !unknown.contains(&site(tap)) && !recorded.contains(*tap);
        t.through.iter().filter(new).copied().collect()
    };
    let is_suspect = |t: &&Replayed| {
        let wrong = t.report.status == Status::Diverged || t.is_for(Reason::is_unclear);
        wrong && t.is_blamed()
    };
    let suspects: Vec<(&Replayed, Vec<Tap>)> =
        replay.taps.iter().filter(is_suspect).map(|t| (t, open(t))).filter(|(_, open)| !open.is_empty()).collect();
    let (first, inside) = suspects.first()?;
    let taps = same_operations_elsewhere(replay, dump, &suspects, |t| open(t).is_empty());
    if !taps.is_empty() {
        return Some(TapsToRecord { taps, why: "whether the same operations are wrong in the other layers" });
    }
    let mut taps = dividing_taps(replay, inside);
    let layers: BTreeSet<_> = inside.iter().filter_map(Tap::block).collect();
    let why = if layers.len() > 1 { "in which layer it is wrong" } else { "which operation is wrong" };
    // Again, so that an engine whose results vary is not blamed.
    taps.push(first.report.place.tap);
    Some(TapsToRecord { taps, why })
}

/// Where single operations are wrong, or spans that the candidate cannot divide further: the same taps and their inputs, in the other layers that are wrong.
fn same_operations_elsewhere(
    replay: &Replay,
    dump: &Dump,
    suspects: &[(&Replayed, Vec<Tap>)],
    is_parted: impl Fn(&Replayed) -> bool,
) -> Vec<Tap> {
    let single = |t: &&Replayed| t.is_at_fault() && is_parted(t);
    let found: Vec<Tap> =
        replay.taps.iter().filter(single).flat_map(|t| t.from.iter().copied().chain([t.report.place.tap])).collect();
    let sites: BTreeSet<_> =
        found.iter().filter(|tap| tap.layer.is_some()).map(|tap| (tap.stack(), tap.site)).collect();
    let mut by_layer: BTreeMap<(&str, u32), BTreeSet<Tap>> = BTreeMap::new();
    for &tap in suspects.iter().flat_map(|(_, open)| open) {
        if let Some(layer) = tap.block().filter(|_| sites.contains(&(tap.stack(), tap.site))) {
            by_layer.entry(layer).or_default().insert(tap);
        }
    }
    let sizes: BTreeMap<_, usize> = dump
        .all_entries()
        .iter()
        .filter(|entry| sites.contains(&(entry.tap.stack(), entry.tap.site)))
        .map(|entry| (entry.tap.site, entry.shape.iter().product::<usize>() * entry.dtype.size()))
        .collect();
    let mut bytes = 0;
    let mut taps = Vec::new();
    for of_layer in by_layer.values() {
        bytes += of_layer.iter().filter_map(|tap| sizes.get(&tap.site)).sum::<usize>();
        if bytes > MOST_BYTES {
            break;
        }
        taps.extend(of_layer.iter().copied());
    }
    taps
}

/// The token positions at which a tap is wrong, and whether all earlier ones of the step were recorded and are right; `None` where all are wrong, or that is
/// unknown.
pub(crate) fn positions(tap: &Replayed, dump: &Dump) -> Option<(Vec<usize>, bool)> {
    let Place { tap: name, step } = tap.report.place;
    let start = match step {
        0 => 0,
        step => Chunks::find(dump)?.ranges().get(step as usize)?.start,
    };
    let rows = tap.report.positions.as_ref();
    let position = |row: usize| rows.and_then(|rows| rows.get(row)).copied().unwrap_or(row);
    let wrong: Vec<usize> = tap.wrong_rows.iter().map(|&row| start + position(row)).collect();
    let site = name.last_site();
    let count = tap.report.shape.get(site.position_axis()).copied().unwrap_or(0);
    // For a name without known axes, rows are positions where there are as many.
    let length = || Some(Chunks::find(dump)?.ranges().get(step as usize)?.len());
    if site.is_open() && rows.is_none() && length() != Some(count) {
        return None;
    }
    let first = *tap.wrong_rows.first()?;
    (wrong.len() < count).then(|| (wrong, first > 0 && position(first) == first))
}

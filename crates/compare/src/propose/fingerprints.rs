//! Compares a tensor's values with a tap's in every form that the tensor may have: as they are, one sequence of a batch, keys padded, one row, or all steps
//! one behind the other.
//!
//! Values are compared in sorted order, which no layout changes.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use firstdiff_trace::{Dump, DumpError, Entry, Tap, Tensor};

use crate::graph::Place;
use crate::layout::rows::are_all;
use crate::metrics::Squares;
use crate::run::steps::steps;
use crate::tolerance::judge::MASKED;
use crate::tolerance::layout::{ENERGIES_ROUNDED, FEW_FINGERPRINT_VALUES, SORTED_EXACT};

/// How a tensor holds a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TensorForm {
    Whole,
    /// One of the sequences that were run at once.
    Sequence {
        index: usize,
        count: usize,
    },
    /// Rows of scores and the like are longer than the number of keys.
    Padded {
        to: usize,
    },
    /// One token's row of what the reference has of all tokens.
    Row,
    /// The steps of the reference, one behind the other.
    Appended,
}

/// The largest batch that is tried.
const SEQUENCES: usize = 16;
/// Rows of each tap that are compared. Not position 0: a rotation leaves it unchanged, so that q_rope equals q there.
const ROWS: std::ops::Range<usize> = 1..4;

/// So many values are compared before it is asked whether they are too far off already.
const AT_ONCE: usize = 16;

/// A tensor's values in ascending order.
struct Fingerprint {
    sorted: Vec<f64>,
    energy: f64,
}

impl Fingerprint {
    fn from_values(mut sorted: Vec<f64>) -> Option<Fingerprint> {
        if sorted.len() < FEW_FINGERPRINT_VALUES || sorted.iter().any(|x| x.is_nan()) {
            return None;
        }
        // Different engines write masks as different numbers.
        sorted.iter_mut().filter(|x| **x <= MASKED).for_each(|x| *x = 0.0);
        sorted.sort_unstable_by(f64::total_cmp);
        let energy: f64 = sorted.iter().map(|x| x * x).sum();
        (energy > 0.0 && sorted.first() != sorted.last()).then_some(Fingerprint { sorted, energy })
    }

    /// NMSE of another, where it is below `limit`: no more is looked at than shows that it is not.
    fn nmse_below(&self, limit: f64, other: &Fingerprint) -> Option<f64> {
        let most = limit * self.energy;
        let of_energies = (self.energy.sqrt() - other.energy.sqrt()).powi(2);
        if self.sorted.len() != other.sorted.len() || of_energies * ENERGIES_ROUNDED > most {
            return None;
        }
        let mut error = 0.0;
        for (ours, theirs) in self.sorted.chunks(AT_ONCE).zip(other.sorted.chunks(AT_ONCE)) {
            error += ours.iter().zip(theirs).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
            if error >= most {
                return None;
            }
        }
        Some(Squares { error, energy: self.energy }.ratio())
    }
}

/// A hash of a tensor's sorted values, which no layout changes: equal for equal values, to the bit.
pub(crate) fn sorted_values(tensor: &Tensor) -> u64 {
    let mut values: Vec<u64> = tensor.values().to_f64().into_iter().map(f64::to_bits).collect();
    values.sort_unstable();
    let mut hasher = DefaultHasher::new();
    values.hash(&mut hasher);
    hasher.finish()
}

/// The reference's taps, by their number of values.
pub(crate) struct Fingerprints {
    whole: BTreeMap<usize, Vec<(Place, Fingerprint)>>,
    rows: BTreeMap<usize, Vec<(Place, Fingerprint)>>,
    /// Taps joined over all steps, under step 0.
    appended: BTreeMap<usize, Vec<(Place, Fingerprint)>>,
    /// How many keys the rows of scores have.
    keys: BTreeSet<usize>,
    sequence: usize,
}

impl Fingerprints {
    /// The fingerprints of `entries`. For a run in one pass, of some rows too; for a run in steps, of whole taps too, where a tensor has one of these
    /// `sizes`.
    pub(crate) fn collect(
        reference: &Dump,
        entries: &[&Entry],
        sequence: usize,
        sizes: &BTreeSet<usize>,
    ) -> Result<Fingerprints, DumpError> {
        let appended = joined_steps(reference, entries, sizes)?;
        let mut prints =
            Fingerprints { whole: BTreeMap::new(), rows: BTreeMap::new(), appended, keys: BTreeSet::new(), sequence };
        let one_pass = reference.entries().iter().all(|e| e.step == 0);
        for entry in entries {
            let place = Place { step: entry.step, tap: entry.tap };
            let values = reference.read(entry)?.values().to_f64();
            if entry.tap.site.position_axis() == 1 {
                prints.keys.extend(entry.shape.last());
            }
            for row in ROWS.filter(|_| one_pass) {
                if let Some(print) = row_of(entry, &values, row).and_then(Fingerprint::from_values) {
                    let place = Place { step: row as u32, ..place };
                    prints.rows.entry(print.sorted.len()).or_default().push((place, print));
                }
            }
            if let Some(print) = Fingerprint::from_values(values) {
                prints.whole.entry(print.sorted.len()).or_default().push((place, print));
            }
        }
        Ok(prints)
    }

    /// How near `tensor` comes to each tap, in each form that it may have.
    pub(crate) fn add_nearest(&self, tensor: &Tensor) -> Vec<(Place, TensorForm, f64)> {
        let values = tensor.values().to_f64();
        let shape = tensor.shape();
        let mut near = Vec::new();
        self.find_in_part(&values, shape, TensorForm::Whole, &mut near);
        let counts = (2..=SEQUENCES).filter(|n| values.len().is_multiple_of(*n) && self.sequence < *n);
        for count in counts.filter(|n| shape.len() == 1 || shape.first() == Some(n)) {
            let length = values.len() / count;
            let part = &values[self.sequence * length..][..length];
            let form = TensorForm::Sequence { index: self.sequence, count };
            self.find_in_part(part, shape.get(1..).unwrap_or_default(), form, &mut near);
        }
        near
    }

    fn find_in_part(
        &self,
        values: &[f64],
        shape: &[usize],
        form: TensorForm,
        near: &mut Vec<(Place, TensorForm, f64)>,
    ) {
        near.extend(nearest(&self.whole, values, form, |_| true));
        if form == TensorForm::Whole {
            near.extend(nearest(&self.rows, values, TensorForm::Row, |_| true));
            near.extend(nearest(&self.appended, values, TensorForm::Appended, |_| true));
        }
        let Some(&to) = shape.last().filter(|_| shape.len() > 1) else { return };
        for &keys in self.keys.iter().filter(|&&keys| keys < to) {
            let cut: Vec<f64> = values.chunks_exact(to).flat_map(|row| &row[..keys]).copied().collect();
            let padded = if form == TensorForm::Whole { TensorForm::Padded { to } } else { form };
            near.extend(nearest(&self.whole, &cut, padded, |tap| tap.site.position_axis() == 1));
        }
    }
}

/// The two nearest of the prints for whose taps `is`, and the two nearest open taps: of more nothing is asked.
fn nearest(
    prints: &BTreeMap<usize, Vec<(Place, Fingerprint)>>,
    values: &[f64],
    form: TensorForm,
    is: impl Fn(Tap) -> bool,
) -> Vec<(Place, TensorForm, f64)> {
    let (Some(others), Some(own)) = (prints.get(&values.len()), Fingerprint::from_values(values.to_vec())) else {
        return Vec::new();
    };
    let mut near: [Vec<(Place, TensorForm, f64)>; 2] = Default::default();
    for (place, print) in others.iter().filter(|(place, _)| is(place.tap)) {
        let two = &mut near[usize::from(place.tap.is_open())];
        let size = |nmse: f64| nmse.max(SORTED_EXACT);
        let limit = two.get(1).map_or(f64::INFINITY, |second| size(second.2));
        if let Some(nmse) = print.nmse_below(limit, &own) {
            let at = two.partition_point(|other| size(other.2) <= size(nmse));
            two.insert(at, (*place, form, nmse));
            two.truncate(2);
        }
    }
    near.concat()
}

/// Taps that are in every one of several steps, joined as by an engine that appends to its files.
fn joined_steps(
    reference: &Dump,
    entries: &[&Entry],
    sizes: &BTreeSet<usize>,
) -> Result<BTreeMap<usize, Vec<(Place, Fingerprint)>>, DumpError> {
    let steps = steps(reference).len();
    let mut taps: BTreeMap<Tap, Vec<&Entry>> = BTreeMap::new();
    entries
        .iter()
        .filter(|entry| are_all(&entry.rows))
        .for_each(|entry| taps.entry(entry.tap).or_default().push(entry));
    let mut prints: BTreeMap<usize, Vec<(Place, Fingerprint)>> = BTreeMap::new();
    for (tap, of_tap) in taps.into_iter().filter(|(_, of_tap)| steps > 1 && of_tap.len() == steps) {
        let size = of_tap.iter().map(|entry| entry.shape.iter().product::<usize>()).sum();
        if !sizes.contains(&size) {
            continue;
        }
        let mut values = Vec::with_capacity(size);
        for entry in of_tap {
            values.extend(reference.read(entry)?.values().to_f64());
        }
        prints
            .entry(size)
            .or_default()
            .extend(Fingerprint::from_values(values).map(|print| (Place { step: 0, tap }, print)));
    }
    Ok(prints)
}

/// One token's values of a tap in the vocabulary's shape; for scores, those of the keys up to it.
fn row_of(entry: &Entry, values: &[f64], row: usize) -> Option<Vec<f64>> {
    if entry.rows.is_some() || entry.shape.len() != entry.tap.site.axes().len() {
        return None;
    }
    match (entry.tap.site.position_axis(), entry.shape.as_slice()) {
        (0, [positions, inner @ ..]) if row < *positions => {
            let width: usize = inner.iter().product();
            values.get(row * width..(row + 1) * width).map(<[f64]>::to_vec)
        }
        (1, &[heads, positions, keys]) if row < positions && row < keys => {
            let of_head = |head: usize| values.get((head * positions + row) * keys..).and_then(|v| v.get(..=row));
            (0..heads).map(of_head).collect::<Option<Vec<_>>>().map(|parts| parts.concat())
        }
        _ => None,
    }
}

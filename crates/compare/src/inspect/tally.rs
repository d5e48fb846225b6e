//! Counts what the checks need in one pass over a tensor, and keeps a summary of it.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;

use firstdiff_trace::{Entry, Site, Tap};

use super::place_of;
use super::seen::TensorRows;
use crate::graph::Place;
use crate::tolerance::inspect::{ABSURD, SAME_ROW, VANISHING};

/// Counts of one tensor.
#[derive(Default)]
pub(super) struct ValueCounts {
    pub(super) nan: usize,
    pub(super) positive_inf: usize,
    pub(super) negative_inf: usize,
    pub(super) first_nan: Option<usize>,
    pub(super) first_inf: Option<usize>,
    pub(super) zeros: usize,
    pub(super) positive_absurd: usize,
    pub(super) negative_absurd: usize,
    pub(super) first_absurd: Option<usize>,
    pub(super) vanishing: usize,
    pub(super) count: usize,
    /// RMS of every row's finite values.
    pub(super) rms: Vec<f64>,
    pub(super) constant_rows: Vec<usize>,
    /// How many values of each row come before its trailing zeros.
    pub(super) filled: Vec<usize>,
    /// The largest distance of a row from the first, as a share of the first's energy.
    pub(super) spread: f64,
    pub(super) winners: Vec<usize>,
    /// A hash of the bits of every row.
    pub(super) hashes: Vec<u64>,
    pub(super) first: f64,
    pub(super) constant: bool,
}

impl ValueCounts {
    pub(super) fn count(tensor: &TensorRows<'_>) -> ValueCounts {
        let mut tally = ValueCounts { constant: true, first: f64::NAN, ..ValueCounts::default() };
        let first: Vec<f64> = if tensor.rows > 0 { tensor.row(0).collect() } else { Vec::new() };
        tally.first = first.first().copied().unwrap_or(f64::NAN);
        for row in 0..tensor.rows {
            tally.add_row(tensor, row, &first);
        }
        tally
    }

    fn add_row(&mut self, tensor: &TensorRows<'_>, row: usize, first: &[f64]) {
        let (mut energy, mut apart, mut base, mut filled, mut top) = (0.0, 0.0, 0.0, 0, 0);
        let (mut peak, mut constant, mut head, mut hash) = (f64::NEG_INFINITY, true, f64::NAN, 0u64);
        for (at, x) in tensor.row(row).enumerate() {
            self.add(row * tensor.width + at, x);
            hash = (hash.rotate_left(5) ^ x.to_bits()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            if at == 0 {
                head = x;
            }
            constant &= x == head;
            self.constant &= x == self.first;
            if x > peak {
                (peak, top) = (x, at);
            }
            if x != 0.0 {
                filled = at + 1;
            }
            if x.is_finite() {
                energy += x * x;
                apart += (x - first[at]) * (x - first[at]);
                base += first[at] * first[at];
            }
        }
        self.rms.push((energy / tensor.width.max(1) as f64).sqrt());
        self.filled.push(filled);
        self.winners.push(top);
        self.hashes.push(hash);
        if constant && tensor.width > 1 {
            self.constant_rows.push(row);
        }
        let share = if apart == 0.0 { 0.0 } else { apart / base };
        self.spread = self.spread.max(if share.is_nan() { f64::INFINITY } else { share });
    }

    fn add(&mut self, at: usize, x: f64) {
        self.count += 1;
        if x.is_nan() {
            self.nan += 1;
            self.first_nan.get_or_insert(at);
        } else if x.is_infinite() {
            *(if x > 0.0 { &mut self.positive_inf } else { &mut self.negative_inf }) += 1;
            self.first_inf.get_or_insert(at);
        } else if x.abs() > ABSURD {
            *(if x > 0.0 { &mut self.positive_absurd } else { &mut self.negative_absurd }) += 1;
            self.first_absurd.get_or_insert(at);
        } else if x == 0.0 {
            self.zeros += 1;
        } else if x.abs() < VANISHING {
            self.vanishing += 1;
        }
    }

    pub(super) fn finite(&self) -> bool {
        self.nan + self.positive_inf + self.negative_inf == 0
    }

    pub(super) fn all_zero(&self) -> bool {
        self.count > 0 && self.zeros == self.count
    }

    /// Root mean square of all finite values.
    pub(super) fn level(&self) -> f64 {
        (self.rms.iter().map(|r| r * r).sum::<f64>() / self.rms.len().max(1) as f64).sqrt()
    }

    /// The median RMS of the rows: a few rows with massive activations do not move it.
    pub(super) fn median_rms(&self) -> f64 {
        let mut rms = self.rms.clone();
        rms.sort_by(f64::total_cmp);
        rms.get(rms.len() / 2).copied().unwrap_or(0.0)
    }
}

/// The summary that is kept of a tensor.
pub(super) struct Summary {
    pub(super) place: Place,
    pub(super) rows: usize,
    pub(super) count: usize,
    pub(super) level: f64,
    pub(super) typical: f64,
    /// No NaN, and no inf except -inf where masked.
    pub(super) finite: bool,
    /// All elements are equal.
    pub(super) constant: bool,
    /// All rows are equal.
    pub(super) alike: bool,
    pub(super) zero_rows: Vec<usize>,
    pub(super) row_hashes: Vec<u64>,
    /// A hash of the bytes, without shape and type: finds a buffer written under two names.
    pub(super) hash: u64,
}

/// The summary of the tensor at `place`; `known` is in the order of the dump.
pub(super) fn at(known: &[Summary], place: Place) -> Option<&Summary> {
    known.binary_search_by_key(&place, |summary| summary.place).ok().map(|found| &known[found])
}

/// The summary of a step's embeddings.
pub(super) fn embeddings_of_step(known: &[Summary], step: u32) -> Option<&Summary> {
    at(known, Place { step, tap: Tap { layer: None, site: Site::H0 } })
}

impl Summary {
    pub(super) fn new(entry: &Entry, tensor: &TensorRows<'_>, tally: &ValueCounts, bytes: &[u8]) -> Summary {
        let mut hasher = DefaultHasher::new();
        hasher.write(bytes);
        Summary {
            place: place_of(entry),
            rows: tensor.rows,
            count: tally.count,
            level: tally.level(),
            typical: tally.median_rms(),
            finite: tally.nan + tally.positive_inf == 0,
            constant: tally.constant,
            alike: tensor.rows > 1 && tally.spread < SAME_ROW,
            zero_rows: (0..tally.filled.len()).filter(|&r| tally.filled[r] == 0).collect(),
            row_hashes: if entry.tap.site == Site::H0 { tally.hashes.clone() } else { Vec::new() },
            hash: hasher.finish(),
        }
    }
}

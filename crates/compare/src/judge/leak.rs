//! Finds probabilities that a mask should have made 0, and zeros where there should be a probability.
//!
//! A mask makes a probability exactly 0. Apart from underflow, rounding never turns a nonzero value into 0 or the reverse, so these cells are checked one by
//! one, however small they are. The position of a zero shows whether a mask made it: behind every query, or further back than a window. Elsewhere a 0 may be
//! underflow: below 1e-38 in f32, below 6e-8 in f16, below the last digit in printed values.

use std::fmt;
use std::ops::Range;

use firstdiff_trace::{Site, to_bf16, to_f16};

use crate::layout::pair::Pair;
use crate::threads;
use crate::tolerance::Profile;
use crate::tolerance::judge::{
    MASK_EDGE, NORMAL_F16, SCORES_SCATTER, TAIL, TAIL_BF16, UNDERFLOW, UNDERFLOW_F16, UNDERFLOW_ROOM, WINDOW_ROWS,
    sum_room,
};
use crate::words::number;

/// Cells in which one side has a probability and the other side exactly 0.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Leak {
    /// How many such cells there are.
    pub count: usize,
    /// The largest probability in any of them.
    pub probability: f64,
    /// Where that is, in words.
    pub place: String,
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Leak { count, probability, place } = self;
        write!(f, "{count} {}, up to {} at {place}", if *count == 1 { "cell" } else { "cells" }, number(*probability))
    }
}

/// Probability where the reference has none, beyond what underflow may have made 0.
pub(crate) fn leaked(pair: &Pair<'_>, profile: Profile) -> Option<Leak> {
    one_sided(pair, profile, UNDERFLOW, &|i| pair.reference(i), &|i| pair.candidate(i))
}

/// No probability where the reference has some.
pub(crate) fn missing_probability(pair: &Pair<'_>, profile: Profile) -> Option<Leak> {
    one_sided(pair, profile, TAIL, &|i| pair.candidate(i), &|i| pair.reference(i))
}

/// Probability in cells that are masked by the scores, whatever the probabilities themselves show.
pub(crate) fn leaked_at(pair: &Pair<'_>, masked: &[usize]) -> Option<Leak> {
    let wrong = |&i: &usize| pair.reference(i).abs() <= UNDERFLOW && pair.candidate(i).abs() > UNDERFLOW;
    largest(pair, masked.iter().copied().filter(wrong), &|i| pair.candidate(i))
}

/// Head, position and sum of a row of probabilities that sums to 1 in the reference and not in the candidate: no error of scores causes that. `own` is the NMSE of rounding, including
/// that of storing.
pub(crate) fn unnormalised(pair: &Pair<'_>, profile: Profile, own: f64) -> Option<(usize, usize, f64)> {
    let &[heads, rows, keys] = pair.shape() else { return None };
    if pair.site() != Site::Probs || heads * rows * keys != pair.len() || keys == 0 {
        return None;
    }
    let stored = if matches!(profile, Profile::Exact | Profile::F32) { 4.0 * (keys as f64 * own).sqrt() } else { 0.0 };
    let room = sum_room(profile).max(stored);
    let sum = |row: usize, of: Get<'_>| (row * keys..(row + 1) * keys).map(of).sum::<f64>();
    let off = |row: usize| (sum(row, &|i| pair.candidate(i)), sum(row, &|i| pair.reference(i)));
    let wrong = (0..heads * rows).map(|row| (row, off(row)));
    let wrong = wrong.filter(|(_, (own, due))| (due - 1.0).abs() <= room && (own - due).abs() > room);
    let (row, (candidate, _)) = wrong.max_by(|a, b| (a.1.0 - 1.0).abs().total_cmp(&(b.1.0 - 1.0).abs()))?;
    Some((row / rows, pair.token_position(row % rows), candidate))
}

type Get<'a> = &'a (dyn Fn(usize) -> f64 + Sync);

/// Cells that are 0 in `zeros` and have a probability in `other`.
fn one_sided(pair: &Pair<'_>, profile: Profile, least: f64, zeros: Get<'_>, other: Get<'_>) -> Option<Leak> {
    match pair.site() {
        Site::Probs => key_leak(pair, profile, least, zeros, other),
        Site::RouterProbs => expert_leak(pair, profile, least, zeros, other),
        _ => None,
    }
}

fn key_leak(pair: &Pair<'_>, profile: Profile, least: f64, zeros: Get<'_>, other: Get<'_>) -> Option<Leak> {
    let suspect = |i: &usize| zeros(*i) == 0.0 && other(*i).abs() > least;
    let suspects = by_spans(pair.len(), |span| span.filter(suspect).collect::<Vec<_>>()).concat();
    if suspects.is_empty() {
        return None;
    }
    let limit = limit_with_score_errors(
        underflow_limit(pair.len(), profile, zeros).max(least),
        (pair.len(), least),
        zeros,
        other,
    );
    let mask = Mask::from_zeros(pair, zeros);
    let (rows, keys) = pair.rows();
    let wrong = |&i: &usize| other(i).abs() > limit || mask.hides(i / keys % rows, i % keys);
    largest(pair, suspects.into_iter().filter(wrong), other)
}

/// The same for experts. Only the largest few may have been chosen; rounding may choose others, but the same number.
fn expert_leak(pair: &Pair<'_>, profile: Profile, least: f64, zeros: Get<'_>, other: Get<'_>) -> Option<Leak> {
    let (rows, experts) = pair.rows();
    let chosen = |get: Get<'_>, row: usize| (0..experts).filter(|e| get(row * experts + e) != 0.0).count();
    let more = |row: &usize| chosen(other, *row) > chosen(zeros, *row);
    let cells: Vec<usize> = (0..rows)
        .filter(more)
        .flat_map(|row| row * experts..(row + 1) * experts)
        .filter(|&i| zeros(i) == 0.0 && other(i).abs() > least)
        .collect();
    if cells.is_empty() {
        return None;
    }
    let limit = underflow_limit(pair.len(), profile, zeros).max(least);
    largest(pair, cells.into_iter().filter(|&i| other(i).abs() > limit), other)
}

/// `limit` after errors of the scores, which are relative to the scores: large scores in 16 bits move a probability by many powers of e. The errors are
/// estimated from cells where both sides have a probability beyond `least`.
fn limit_with_score_errors(limit: f64, (len, least): (usize, f64), one: Get<'_>, other: Get<'_>) -> f64 {
    let is_measured = |i: &usize| one(*i).abs() > least && other(*i).abs() > least;
    let log_distance = |i: usize| {
        let (one, other) = (one(i).abs().ln(), other(i).abs().ln());
        (one - other).abs() / one.abs().max(other.abs()).max(1.0)
    };
    let largest = by_spans(len, |span| span.filter(is_measured).map(log_distance).fold(0.0, f64::max));
    let largest = largest.into_iter().fold(0.0, f64::max);
    limit.powf((1.0 - SCORES_SCATTER * largest).max(0.0))
}

/// `f` of each span of cells.
fn by_spans<T: Send>(len: usize, f: impl Fn(Range<usize>) -> T + Send + Sync) -> Vec<T> {
    const SPAN: usize = 1 << 14;
    threads::map(len.div_ceil(SPAN), |i| f(i * SPAN..len.min((i + 1) * SPAN)))
}

fn largest(pair: &Pair<'_>, cells: impl Iterator<Item = usize>, probability: Get<'_>) -> Option<Leak> {
    let (mut count, mut most) = (0, None::<(f64, usize)>);
    for i in cells {
        let p = probability(i).abs();
        count += 1;
        most = most.filter(|(most, _)| *most >= p).or(Some((p, i)));
    }
    most.map(|(probability, at)| Leak { count, probability, place: pair.place_in_words(at) })
}

/// Below which size a tensor's arithmetic, or what recorded it, may have made a probability 0.
fn underflow_limit(len: usize, profile: Profile, values: Get<'_>) -> f64 {
    let (mut least, mut f16s, mut bf16s) = (f64::INFINITY, true, true);
    for x in (0..len).map(values).map(f64::abs).filter(|x| *x > 0.0) {
        least = least.min(x);
        f16s &= to_f16(x).to_f64() == x;
        bf16s &= to_bf16(x).to_f64() == x;
    }
    let largest_lost = UNDERFLOW_ROOM * least.min(NORMAL_F16);
    match profile {
        _ if f16s => largest_lost,
        Profile::Exact | Profile::F32 => UNDERFLOW,
        // bf16 has the same smallest numbers as f32.
        _ if bf16s => TAIL_BF16,
        // A table of e^x in f16, or printed numbers.
        _ => largest_lost,
    }
}

/// Which keys of each row a mask hides, found from the positions of the zeros.
#[derive(Default)]
struct Mask {
    /// Token position of each row, counted from the first key.
    positions: Vec<usize>,
    /// The last key that a query sees, counted from its own position.
    last: Option<isize>,
    /// The first key that a query sees, counted in the same way.
    first: Option<isize>,
}

impl Mask {
    fn from_zeros(pair: &Pair<'_>, values: Get<'_>) -> Mask {
        let (rows, keys) = pair.rows();
        if pair.shape().len() != 3 || rows == 0 || keys == 0 {
            return Mask::default();
        }
        let positions: Vec<usize> = (0..rows).map(|row| pair.token_position(row)).collect();
        let heads = pair.len() / (rows * keys);
        let (mut last, mut first) = (Vec::new(), Vec::new());
        for (row, &position) in positions.iter().enumerate() {
            let of_head = |head: usize| (head * rows + row) * keys..(head * rows + row + 1) * keys;
            // A row of padding may be the same everywhere, or empty.
            let even = |head| of_head(head).all(|i| values(i) == values(of_head(head).start));
            if keys > 1 && (0..heads).all(even) {
                continue;
            }
            let most = |key: usize| (0..heads).map(|head| values(of_head(head).start + key)).fold(0.0, f64::max);
            let seen: Vec<f64> = (0..keys).map(most).collect();
            let edge = |key: Option<usize>| key.map(|key| (key as isize - position as isize, seen[key]));
            last.extend(edge(seen.iter().rposition(|p| *p > 0.0)));
            first.extend(edge(seen.iter().position(|p| *p > 0.0)));
        }
        let behind = last.iter().map(|edge| edge.0).max().filter(|&end| {
            let at: Vec<f64> = last.iter().filter(|edge| edge.0 == end).map(|edge| edge.1).collect();
            // A single row shows only that it ends at its own position.
            let shown = if last.len() > 1 { 2 * at.len() >= last.len() && end >= 0 } else { end == 0 };
            shown && at.iter().any(|p| *p > MASK_EDGE)
        });
        let window = first.iter().map(|edge| edge.0).min().filter(|&start| {
            let cut = positions.iter().filter(|&&position| position as isize + start > 0).count();
            // The last row that sees key 0 is at the edge too, and has nothing cut off.
            let at: Vec<f64> = first.iter().filter(|edge| edge.0 == start).map(|edge| edge.1).collect();
            at.len() > WINDOW_ROWS && 2 * at.len() >= cut && at.iter().any(|p| *p > MASK_EDGE)
        });
        Mask { positions, last: behind, first: window }
    }

    fn hides(&self, row: usize, key: usize) -> bool {
        let Some(&position) = self.positions.get(row) else { return false };
        let from_own = key as isize - position as isize;
        self.last.is_some_and(|last| from_own > last) || self.first.is_some_and(|first| from_own < first)
    }
}

/// The probability that a row of scores gives to keys that must have none.
pub(crate) struct LeakedProbability {
    /// The probability of each such key, with its place.
    cells: Vec<(usize, f64)>,
    /// The mean over all rows of the square of the probability given away.
    pub(crate) mean_square: f64,
}

impl LeakedProbability {
    /// From a softmax of the candidate's own scores, at the places for which `masked` holds.
    pub(crate) fn from_scores(pair: &Pair<'_>, masked: impl Fn(usize) -> bool) -> LeakedProbability {
        let (_, keys) = pair.rows();
        let (mut cells, mut squares, count) = (Vec::new(), 0.0, pair.len() / keys.max(1));
        for row in 0..count {
            let places = row * keys..(row + 1) * keys;
            let top = places.clone().map(|i| pair.candidate(i)).fold(f64::NEG_INFINITY, f64::max);
            if !top.is_finite() {
                continue;
            }
            let sum: f64 = places.clone().map(|i| (pair.candidate(i) - top).exp()).sum();
            let share = |i: usize| (i, (pair.candidate(i) - top).exp() / sum);
            let given: Vec<(usize, f64)> = places.filter(|&i| masked(i)).map(share).collect();
            squares += given.iter().map(|(_, p)| p).sum::<f64>().powi(2);
            cells.extend(given.into_iter().filter(|(_, p)| *p > 0.0));
        }
        LeakedProbability { cells, mean_square: squares / count.max(1) as f64 }
    }

    /// The part that a softmax in this arithmetic would not make 0.
    pub(crate) fn leak(&self, pair: &Pair<'_>, profile: Profile) -> Option<Leak> {
        let limit = if profile == Profile::F16 { UNDERFLOW_F16 } else { UNDERFLOW };
        let over: Vec<(usize, f64)> = self.cells.iter().copied().filter(|(_, p)| *p > limit).collect();
        let (at, probability) = over.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1))?;
        Some(Leak { count: over.len(), probability, place: pair.place_in_words(at) })
    }
}

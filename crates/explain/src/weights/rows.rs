//! Finds of which rows of some tensors a tensor is made: by content, however coarsely it is stored, and only where the rows stand in a regular order.

use std::collections::BTreeSet;

use super::diagnose::near;
use crate::tolerance::weights::{SAME_NARROW_ROW, SAME_ROW, SKETCH_ROOM};

/// A row of one of the tensors: which tensor, and which row of it.
pub(super) type Row = (usize, usize);

/// Rows of several tensors, all of one width.
pub(super) struct Pool {
    width: usize,
    /// NMSE below which two rows are one.
    same: f64,
    tensors: Vec<Vec<f32>>,
    /// A number of each row that is much the same where the row is, in order.
    sketches: Vec<(f32, Row)>,
}

impl Pool {
    /// Rows that are one however they are stored: short ones are not stored in blocks, and are alike by chance.
    pub(super) fn of(width: usize, tensors: Vec<Vec<f32>>) -> Pool {
        Pool::within(width, tensors, if width < 16 { SAME_NARROW_ROW } else { SAME_ROW })
    }

    /// Rows that are one where they are nearer than `same`.
    pub(super) fn within(width: usize, tensors: Vec<Vec<f32>>, same: f64) -> Pool {
        let mut sketches = Vec::new();
        for (tensor, values) in tensors.iter().enumerate() {
            sketches.extend(values.chunks_exact(width).enumerate().map(|(row, x)| (sketch(x), (tensor, row))));
        }
        sketches.sort_by(|one, other| one.0.total_cmp(&other.0));
        Pool { width, same, tensors, sketches }
    }

    /// How many elements it holds.
    pub(super) fn len(&self) -> usize {
        self.tensors.iter().map(Vec::len).sum()
    }

    fn row(&self, (tensor, row): Row) -> Option<&[f32]> {
        self.tensors.get(tensor)?.get(row * self.width..(row + 1) * self.width)
    }

    /// For each row of `values` the one that it is; `None` where one of them is none, or where they stand in no regular order.
    pub(super) fn find(&self, values: &[f32]) -> Option<Vec<Row>> {
        let mut found: Vec<Row> = Vec::with_capacity(values.len() / self.width);
        let mut tensors = BTreeSet::new();
        for row in values.chunks_exact(self.width) {
            let place = self.following(&found, row).or_else(|| self.nearest(row))?;
            // Rows that are alike by chance are soon of tensors in no order.
            if tensors.insert(place.0) && tensors.last() != Some(&place.0) {
                return None;
            }
            found.push(place);
        }
        is_regular(&found).then_some(found)
    }

    /// For each row of `values` the row of the only tensor that it is: its own, or another; `None` where one of them is none.
    pub(super) fn order(&self, values: &[f32]) -> Option<Vec<usize>> {
        let own = |at: usize, wanted: &[f32]| self.row((0, at)).is_some_and(|x| near(x, wanted) < self.same);
        let place = |(at, row)| if own(at, row) { Some(at) } else { Some(self.nearest(row)?.1) };
        values.chunks_exact(self.width).enumerate().map(place).collect()
    }

    /// The row that comes next where they go on as before.
    fn following(&self, found: &[Row], wanted: &[f32]) -> Option<Row> {
        let &(tensor, row) = found.last()?;
        let before = found.len().checked_sub(2).map(|at| found[at]).filter(|before| before.0 == tensor);
        let strided = before.and_then(|(_, before)| Some((tensor, (2 * row).checked_sub(before)?)));
        let places = [strided, Some((tensor, row + 1)), Some((tensor + 1, 0))];
        places.into_iter().flatten().find(|&place| self.row(place).is_some_and(|x| near(x, wanted) < self.same))
    }

    fn nearest(&self, wanted: &[f32]) -> Option<Row> {
        let about = sketch(wanted);
        if !about.is_finite() || wanted.iter().all(|x| *x == 0.0) {
            return None;
        }
        let room = (SKETCH_ROOM * self.same.max(f64::from(f32::EPSILON)).sqrt()) as f32;
        let room = room * if self.width == 1 { about.abs() } else { 1.0 };
        let from = self.sketches.partition_point(|(sketch, _)| *sketch < about - room);
        let candidates = self.sketches[from..].iter().take_while(|(sketch, _)| *sketch <= about + room);
        let measured = candidates.filter_map(|&(_, place)| Some((near(self.row(place)?, wanted), place)));
        let (error, place) = measured.min_by(|one, other| one.0.total_cmp(&other.0))?;
        (error < self.same).then_some(place)
    }
}

/// Σ ±x over the length of x; of a single number itself.
fn sketch(x: &[f32]) -> f32 {
    if let [x] = x {
        return *x;
    }
    // The signs are the bits of a multiplied counter.
    let sign = |at: usize| if (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 0 { 1.0 } else { -1.0 };
    let sum: f32 = x.iter().enumerate().map(|(at, x)| sign(at) * x).sum();
    sum / x.iter().map(|x| x * x).sum::<f32>().sqrt()
}

/// Whether the rows of each tensor, and their places, are those of a strided view, and the tensors follow each other in order.
///
/// Heads, halves, groups and experts lie so; rows that were exchanged do not.
fn is_regular(rows: &[Row]) -> bool {
    let mut tensors: Vec<usize> = Vec::new();
    for (tensor, _) in rows {
        if !tensors.contains(tensor) {
            tensors.push(*tensor);
        }
    }
    tensors.is_sorted()
        && tensors.iter().all(|tensor| {
            let of_it = || rows.iter().enumerate().filter(|(_, (found, _))| found == tensor);
            is_strided(&of_it().map(|(place, _)| place).collect::<Vec<_>>())
                && is_joined(&of_it().map(|(_, (_, row))| *row).collect::<Vec<_>>())
        })
}

/// Whether numbers are those of a few strided views, one after the other: queries, keys and values that were cut out of groups.
fn is_joined(numbers: &[usize]) -> bool {
    const FEWEST: usize = 8;
    // One row by itself is no view.
    let least = numbers.len().div_ceil(FEWEST).max(2).min(numbers.len());
    let views = |from: usize| (from + least..=numbers.len()).rev().find(|&end| is_ascending(&numbers[from..end]));
    let mut from = 0;
    while from < numbers.len() {
        let Some(end) = views(from) else { return false };
        from = end;
    }
    true
}

/// Two rows that were exchanged are no view of their own.
fn is_ascending(numbers: &[usize]) -> bool {
    is_strided(numbers) && numbers.first() <= numbers.last()
}

/// Whether numbers are those of a view with any number of axes: runs of one length and one difference, which begin at such numbers again.
fn is_strided(numbers: &[usize]) -> bool {
    let difference = |pair: &[usize]| pair[1] as i64 - pair[0] as i64;
    let Some(first) = numbers.windows(2).next().map(difference) else { return true };
    let run = 1 + numbers.windows(2).take_while(|pair| difference(pair) == first).count();
    let even = |run: &[usize]| run.windows(2).all(|pair| difference(pair) == first);
    if run == numbers.len() {
        return true;
    }
    numbers.len().is_multiple_of(run)
        && numbers.chunks(run).all(even)
        && is_strided(&numbers.iter().copied().step_by(run).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_halves_and_groups_are_regular() {
        let rope = |heads: usize, width: usize| -> Vec<usize> {
            (0..heads * width).map(|row| row / width * width + row % 2 * (width / 2) + row % width / 2).collect()
        };
        assert!(is_strided(&rope(4, 8)) && is_strided(&rope(1, 4)) && is_strided(&[0, 1, 2, 3]) && is_strided(&[5]));
        // Queries of groups of four heads, of which the last two are keys and values.
        assert!(is_strided(&(0..48).filter(|row| row / 8 % 4 < 2).collect::<Vec<_>>()));
        for (one, other) in [(0, 1), (3, 9), (10, 31), (30, 31)] {
            let mut swapped = rope(4, 8);
            swapped.swap(one, other);
            assert!(!is_joined(&swapped), "{one} and {other}");
            let mut swapped: Vec<usize> = (0..32).collect();
            swapped.swap(one, other);
            assert!(!is_joined(&swapped), "{one} and {other}");
        }
        // Groups of queries, keys and twice as many values, apart.
        let of = |from: usize, to: usize| (0..64).filter(move |row| (from..to).contains(&(row % 16)));
        assert!(is_joined(&of(0, 4).chain(of(4, 8)).chain(of(8, 16)).collect::<Vec<_>>()));
        assert!(!is_regular(&[(0, 0), (0, 1), (2, 0), (2, 1), (1, 0), (1, 1)]), "tensors in another order");
        assert!(is_regular(&[(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]));
    }

    #[test]
    fn rows_are_found_behind_rounding() {
        let values = |from: usize| -> Vec<f32> { (from..from + 256).map(|i| (i as f32 * 1.7).sin()).collect() };
        let tensors = [values(0), values(1000)];
        let pool = Pool::of(32, tensors.to_vec());
        let joined: Vec<f32> = tensors.concat().iter().map(|x| (x * 64.0).round() / 64.0).collect();
        let found = pool.find(&joined).unwrap();
        assert_eq!((found.len(), found[0], found[15]), (16, (0, 0), (1, 7)));
        assert_eq!(pool.find(&values(5000)), None);
        let mut swapped = joined.clone();
        swapped[..64].rotate_left(32);
        assert_eq!(pool.find(&swapped), None);
    }
}

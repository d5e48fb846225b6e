//! Logarithms of probabilities beside scores, and what is fitted between them.

use ndarray::{Array3, s};

use super::{LOG_ROOM, centred};
use crate::fit::least_squares;
use crate::number::Measured;

/// Pairs of query and key above which no term for each distance is fitted.
pub(super) const MOST_PAIRS: usize = 1 << 16;

/// Logarithms and scores, less their mean in each row, where they count.
pub(super) struct Field {
    pub(super) counted: Array3<bool>,
    pub(super) logs: Array3<f64>,
    pub(super) scores: Array3<f64>,
    pub(super) noise: f64,
}

impl Field {
    /// What an own logarithm may be off by rounding.
    pub(super) fn each(&self) -> f64 {
        let (sum, n) = self
            .logs
            .iter()
            .zip(&self.counted)
            .filter(|(_, c)| **c)
            .fold((0.0, 0.0), |(s, n), (l, _)| (s + l * l, n + 1.0));
        self.noise * (1.0 + (sum / f64::max(n, 1.0)).sqrt())
    }

    /// The factor between scores and logarithms of some rows.
    pub(super) fn slope(&self, of: &dyn Fn(usize, usize) -> bool) -> Measured {
        let (mut cross, mut square, mut count) = (0.0, 0.0, 0usize);
        let all = || self.scores.indexed_iter().filter(|((h, t, _), _)| of(*h, *t));
        for (at, s) in all().filter(|(at, _)| self.counted[*at]) {
            cross += self.logs[at] * s;
            square += s * s;
            count += 1;
        }
        if count < 2 || square <= 0.0 {
            return Measured::UNKNOWN;
        }
        let by = cross / square;
        let left: f64 = all().filter(|(at, _)| self.counted[*at]).map(|(at, s)| (self.logs[at] - by * s).powi(2)).sum();
        let each = (left / (count - 1) as f64).sqrt().max(self.each());
        Measured::new(by, each / square.sqrt())
    }

    /// What is left of the logarithms beside these scores, as a share.
    pub(super) fn left(&self, scores: &Array3<f64>) -> f64 {
        let other = centred(scores, &self.counted);
        let (mut left, mut all) = (0.0, 0.0);
        ndarray::Zip::from(&other).and(&self.logs).for_each(|s, l| {
            left += (s - l) * (s - l);
            all += l * l;
        });
        (left / f64::max(all, f64::MIN_POSITIVE)).sqrt()
    }

    /// The factor from these scores to the logarithms, and what it leaves as a share.
    pub(super) fn along(&self, scores: &Array3<f64>) -> (f64, Measured) {
        let other = Field {
            counted: self.counted.clone(),
            logs: self.logs.clone(),
            scores: centred(scores, &self.counted),
            noise: self.noise,
        };
        let by = other.slope(&|_, _| true);
        (other.left(&(scores * by.value)), by)
    }

    /// A number for each index of a pair, and the factor of the scores beside it.
    pub(super) fn by_index(
        &self,
        index: &dyn Fn(usize, usize) -> usize,
        n: usize,
        with_slope: bool,
    ) -> Option<(Measured, Vec<Measured>)> {
        let mut used = vec![false; n];
        for ((_, t, s), counted) in self.counted.indexed_iter() {
            if *counted {
                used[index(t, s)] = true;
            }
        }
        // The term of the first index is called nothing: one that is the same for all keys changes nothing.
        let indices: Vec<usize> = (0..n).filter(|&i| used[i]).skip(1).collect();
        let base = (0..n).find(|&i| used[i])?;
        let part =
            |i: usize| Array3::from_shape_fn(self.logs.dim(), |(_, t, s)| if index(t, s) == i { 1.0 } else { 0.0 });
        let mut parts: Vec<Array3<f64>> = indices.iter().map(|i| part(*i)).collect();
        let found = if with_slope {
            parts.push(self.scores.clone());
            self.coefficients(&self.logs, &parts)?
        } else {
            self.coefficients(&(&self.logs - &self.scores), &parts)?
        };
        let mut table = vec![Measured::UNKNOWN; n];
        table[base] = Measured::new(0.0, found.first()?.error);
        for (i, m) in indices.iter().zip(&found) {
            table[*i] = *m;
        }
        let slope = if with_slope { *found.last()? } else { Measured::new(1.0, 0.0) };
        Some((slope, table))
    }

    /// The slope of a head's logarithms, less the scores, over an index.
    pub(super) fn line(&self, head: usize, index: &dyn Fn(usize, usize) -> f64) -> Measured {
        let of = self.of_head(head);
        let over = Array3::from_shape_fn(of.logs.dim(), |(_, t, s)| index(t, s));
        Field { logs: &of.logs - &of.scores, ..of }.along(&over).1
    }

    /// One head alone.
    pub(super) fn of_head(&self, head: usize) -> Field {
        let only = |x: &Array3<f64>| x.slice(s![head..=head, .., ..]).to_owned();
        let counted = self.counted.slice(s![head..=head, .., ..]).to_owned();
        Field { counted, logs: only(&self.logs), scores: only(&self.scores), noise: self.noise }
    }

    /// How often each of these parts is counted in numbers beside the logarithms; `None` where they are no sum of them.
    pub(super) fn coefficients(&self, wanted: &Array3<f64>, parts: &[Array3<f64>]) -> Option<Vec<Measured>> {
        if parts.is_empty() || parts.len() > MOST_TERMS {
            return None;
        }
        let counted = self.counted.iter().filter(|c| **c).count();
        let step = counted.div_ceil(CELLS).max(1);
        let of = |x: &Array3<f64>| {
            let all = x.iter().zip(&self.counted).filter(|(_, c)| **c).map(|(x, _)| *x);
            all.step_by(step).collect::<Vec<f64>>()
        };
        let columns: Vec<Vec<f64>> = parts.iter().map(|part| of(&centred(part, &self.counted))).collect();
        let wanted = of(wanted);
        let size = (wanted.iter().map(|x| x * x).sum::<f64>() / wanted.len().max(1) as f64).sqrt();
        let views: Vec<&[f64]> = columns.iter().map(Vec::as_slice).collect();
        let fit = least_squares(&views, &wanted, self.each() / size.max(f64::MIN_POSITIVE))?;
        (fit.left * size <= LOG_ROOM * self.each()).then_some(fit.coefficients)
    }
}

/// Cells that coefficients are fitted on, at most.
const CELLS: usize = 1 << 14;
/// Terms that are fitted at once, at most.
pub(super) const MOST_TERMS: usize = 96;

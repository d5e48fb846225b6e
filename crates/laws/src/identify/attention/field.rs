//! Logarithms of probabilities beside scores, and what is fitted between them.

use ndarray::{Array2, Array3, Axis as Dimension, s};

use super::{LOG_ROOM, centred, one_bool};
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

    /// The same of one head and its scores `[T,S]`.
    pub(super) fn against(&self, head: usize, scores: &Array2<f64>) -> (f64, Measured) {
        let one = |x: &Array3<f64>| x.slice(s![head..head + 1, .., ..]).to_owned();
        let counted = self.counted.slice(s![head..head + 1, .., ..]).to_owned();
        let scores = scores.clone().insert_axis(Dimension(0));
        let field = Field { scores: centred(&scores, &counted), logs: one(&self.logs), counted, noise: self.noise };
        let by = field.slope(&|_, _| true);
        (field.left(&(&scores * by.value)), by)
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
        let columns: Vec<Array3<f64>> = indices
            .iter()
            .map(|&i| {
                let one = Array3::from_shape_fn(self.logs.dim(), |(_, t, s)| if index(t, s) == i { 1.0 } else { 0.0 });
                centred(&one, &self.counted)
            })
            .collect();
        if columns.len() > MOST_TERMS {
            return None;
        }
        let of =
            |x: &Array3<f64>| x.iter().zip(&self.counted).filter(|(_, c)| **c).map(|(x, _)| *x).collect::<Vec<f64>>();
        let mut columns: Vec<Vec<f64>> = columns.iter().map(of).collect();
        let (logs, scores) = (of(&self.logs), of(&self.scores));
        let wanted: Vec<f64> =
            if with_slope { logs.clone() } else { logs.iter().zip(&scores).map(|(l, s)| l - s).collect() };
        if with_slope {
            columns.push(scores);
        }
        let size = (wanted.iter().map(|x| x * x).sum::<f64>() / wanted.len().max(1) as f64).sqrt();
        let views: Vec<&[f64]> = columns.iter().map(Vec::as_slice).collect();
        let fit = least_squares(&views, &wanted, self.each() / size.max(f64::MIN_POSITIVE))?;
        if fit.left * size > LOG_ROOM * self.each() {
            return None;
        }
        let mut table = vec![Measured::UNKNOWN; n];
        table[base] = Measured::new(0.0, fit.coefficients[0].error);
        for (i, m) in indices.iter().zip(&fit.coefficients) {
            table[*i] = *m;
        }
        let slope = if with_slope { *fit.coefficients.last()? } else { Measured::new(1.0, 0.0) };
        Some((slope, table))
    }

    /// The slope of a head's logarithms, less the scores, over an index.
    pub(super) fn line(&self, head: usize, index: &dyn Fn(usize, usize) -> f64) -> Measured {
        let one = |x: &Array3<f64>| x.slice(s![head..head + 1, .., ..]).to_owned();
        let counted = one_bool(&self.counted, head);
        let over = Array3::from_shape_fn((1, self.logs.shape()[1], self.logs.shape()[2]), |(_, t, s)| index(t, s));
        let field = Field {
            scores: centred(&over, &counted),
            logs: one(&self.logs) - one(&self.scores),
            counted,
            noise: self.noise,
        };
        field.slope(&|_, _| true)
    }
}

/// Terms that are fitted at once, at most.
pub(super) const MOST_TERMS: usize = 96;

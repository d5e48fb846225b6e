//! Another function of a row of scores in place of the softmax, and softmaxes whose denominator runs over some of the keys, or is bounded.

use std::sync::Arc;

use ndarray::{Array2, ArrayView1, s};

use super::{After, Draft, How, TINY, right_scores, rows_of};
use crate::describe::{choice, nth};
use crate::law::Form;
use crate::number::{Measured, SURE};

/// What stands for the softmax of the seen scores of a row.
type Row = Arc<dyn Fn(&[f64]) -> Vec<f64> + Send + Sync>;

fn largest(scores: &[f64]) -> f64 {
    scores.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

fn over_sum(weights: Vec<f64>) -> Vec<f64> {
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|w| w / sum).collect()
}

/// A function of each score, or of the score less the largest, over the sum of all.
fn of_each(f: impl Fn(f64) -> f64 + Send + Sync + 'static, less_most: bool) -> Row {
    Arc::new(move |scores| {
        let most = if less_most { largest(scores) } else { 0.0 };
        over_sum(scores.iter().map(|s| f(s - most)).collect())
    })
}

fn softmax_of(scores: &[f64]) -> Vec<f64> {
    let most = largest(scores);
    over_sum(scores.iter().map(|s| (s - most).exp()).collect())
}

/// max(s - tau, 0), tau so that the sum is 1 (Martins and Astudillo, 2016).
fn sparsemax(scores: &[f64]) -> Vec<f64> {
    let mut sorted = scores.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let (mut sum, mut tau) = (0.0, 0.0);
    for (count, s) in sorted.iter().enumerate() {
        sum += s;
        let here = (sum - 1.0) / (count + 1) as f64;
        if *s > here {
            tau = here;
        }
    }
    scores.iter().map(|s| (s - tau).max(0.0)).collect()
}

/// All functions without a constant of their own.
fn functions() -> Vec<(String, f64, Row)> {
    let mut all: Vec<(String, f64, Row)> = vec![
        ("the softmax is applied twice".into(), 5.0, Arc::new(|s: &[f64]| softmax_of(&softmax_of(s)))),
        ("sparsemax stands for the softmax: max(s - tau, 0), of sum 1".into(), 6.0, Arc::new(sparsemax)),
        (
            "all of the weight goes to the key of the largest score".into(),
            6.0,
            of_each(|x| if x == 0.0 { 1.0 } else { 0.0 }, true),
        ),
    ];
    for degree in 1..=6 {
        let series = move |x: f64| {
            let term = |n: i32| x.powi(n) / (1..=n).map(f64::from).product::<f64>();
            (0..=degree).map(term).sum::<f64>()
        };
        for (of, less_most) in [("the score", false), ("the score less the largest", true)] {
            let words = format!(
                "the first {} terms of its series stand for the exponential of {of}: 1 + x + .. x^n/n!, n up to {degree}",
                degree + 1
            );
            all.push((words, 9.0, of_each(series, less_most)));
        }
    }
    for n in (1..=10).map(|power| f64::from(1 << power)) {
        let words =
            format!("(1 + x/{n})^{n}, 0 below -{n}, stands for the exponential of x, the score less the largest");
        all.push((words, 9.0, of_each(move |x| (1.0 + x / n).max(0.0).powf(n), true)));
    }
    all
}

/// Keys that a denominator may run over: of how many there are, for a query and a key.
type Part = Arc<dyn Fn(usize, usize) -> bool + Send + Sync>;

fn parts(rows: usize, keys: usize) -> Vec<(String, f64, Part)> {
    let mut all: Vec<(String, f64, Part)> = Vec::new();
    for n in 1..keys.min(257) {
        let bits = 8.0 + choice(n);
        all.push((format!("the first {n} keys"), bits, Arc::new(move |_, s| s < n)));
        all.push((format!("the keys from {n} on"), bits, Arc::new(move |_, s| s >= n)));
        if n > 1 {
            all.push((format!("the query's own block of {n} keys"), bits, Arc::new(move |t, s| s / n == t / n)));
            all.push((format!("every {} key", nth(n)), bits, Arc::new(move |_, s| s % n == 0)));
            let words = format!("the blocks of {n} keys before the query's own, and its own key");
            all.push((words, bits, Arc::new(move |t, s| s / n < t / n || s == t)));
            let words = format!("the query's own block of {n} keys and the first one");
            all.push((words, bits, Arc::new(move |t, s| s / n == t / n || s < n)));
            let whole = move |t: usize| (t + 1) / n * n;
            all.push((format!("whole blocks of {n} keys alone"), bits, Arc::new(move |t, s| s < whole(t))));
        }
        if n < rows {
            all.push((format!("the last {n} keys of each query"), bits, Arc::new(move |t, s| s + n > t && s <= t)));
        }
    }
    all.push(("all keys but the query's own".into(), 7.0, Arc::new(|t, s| s != t)));
    all
}

/// By how much the sum of the exponentials of a row's seen scores is larger than that over some of the keys.
fn excess_of(scores: ArrayView1<'_, f64>, seen: impl Iterator<Item = usize>, part: &dyn Fn(usize) -> bool) -> f64 {
    let seen: Vec<usize> = seen.collect();
    let most = seen.iter().map(|&s| scores[s]).fold(f64::NEG_INFINITY, f64::max);
    let sum =
        |is: &dyn Fn(usize) -> bool| seen.iter().filter(|s| is(**s)).map(|&s| (scores[s] - most).exp()).sum::<f64>();
    sum(&|_| true) / sum(part)
}

impl How<'_> {
    /// Another function of the whole row.
    pub(super) fn rows_otherwise(&mut self) {
        for (words, bits, row) in functions() {
            if !self.case.has_time() || self.offer_row(words, bits, row) {
                break;
            }
        }
        // Rows in which the smallest is held up show by how much.
        let mut floor = Measured::UNKNOWN;
        for (head, row) in rows_of(self.own).filter(|(head, row)| self.heads.has[*head] && self.queries.has[*row]) {
            let own = self.own.slice(s![head, row, ..]);
            let least = own.iter().copied().filter(|p| *p > TINY).fold(f64::INFINITY, f64::min);
            let depth = (own.iter().copied().fold(0.0, f64::max) / least).ln();
            if depth.is_finite() && (!floor.is_known() || depth > floor.value) {
                floor = Measured::new(depth, 2.0 * self.noise());
            }
        }
        if floor.is_known() && floor.value > 0.0 {
            let number = floor.number();
            let least = -number.value;
            let words = format!("the score less the largest is at least {} in the exponential", -number.value);
            self.offer_row(words, 6.0 + number.bits, of_each(move |x| x.max(least).exp(), true));
        }
    }

    fn offer_row(&mut self, words: String, bits: f64, row: Row) -> bool {
        let after: After = Arc::new(move |right, mut probs| {
            for (head, query) in rows_of(&probs) {
                let seen: Vec<usize> = (0..probs.shape()[2]).filter(|&s| right.sees[[head, query, s]]).collect();
                let scores: Vec<f64> = seen.iter().map(|&s| right.scores[[head, query, s]]).collect();
                if scores.is_empty() {
                    continue;
                }
                for (s, p) in seen.into_iter().zip(row(&scores)) {
                    probs[[head, query, s]] = p;
                }
            }
            probs.iter().all(|p| p.is_finite()).then_some(probs)
        });
        self.offer(Draft::new(Form::ScoreFunction, words, bits), right_scores(), Some(after), false)
    }

    /// A denominator over some of the keys, or one that is bounded; `factors` is by how much each row is too large.
    pub(super) fn part_of_denominators(&mut self, factors: &Array2<Measured>) {
        let (_, rows, keys) = self.own.dim();
        let excess = |(head, row): (usize, usize), part: &Part| {
            let seen = (0..keys).filter(|&s| self.masks.sees[[head, row, s]]);
            excess_of(self.right.scores.slice(s![head, row, ..]), seen, &|s| part(row, s))
        };
        let is_it = |part: &Part| factors.indexed_iter().all(|(at, m)| m.may_be(excess(at, part)));
        let found = parts(rows, keys).into_iter().find(|(_, _, part)| self.case.has_time() && is_it(part));
        if let Some((words, bits, part)) = found {
            let after: After = Arc::new(move |right, mut probs| {
                for (head, row) in rows_of(&probs) {
                    let seen = (0..probs.shape()[2]).filter(|&s| probs[[head, row, s]] > 0.0);
                    let by = excess_of(right.scores.slice(s![head, row, ..]), seen, &|s| part(row, s));
                    by.is_finite().then_some(())?;
                    probs.slice_mut(s![head, row, ..]).mapv_inplace(|p| p * by);
                }
                Some(probs)
            });
            let words = format!("probabilities are divided by the sum over {words}");
            self.offer(Draft::new(Form::Denominator, words, bits), right_scores(), Some(after), true);
        }
        self.bounded_denominators(factors);
    }

    /// Denominators that are at most, or at least, a number.
    fn bounded_denominators(&mut self, factors: &Array2<Measured>) {
        for (called, less_most) in [("exp(score)", false), ("exp(score - largest)", true)] {
            let sums = super::denominators::sums_seen(&self.right.scores, &self.masks.sees, less_most);
            for (word, is_most) in [("at most", true), ("at least", false)] {
                let moved = factors.indexed_iter().filter(|(_, m)| m.is_known() && !m.may_be(1.0));
                let bounds: Vec<Measured> = moved
                    .map(|(at, m)| Measured::new(sums[at] / m.value, sums[at] * m.error / m.value.powi(2)))
                    .collect();
                let bound = Measured::mean(bounds.iter().copied());
                let is_one = |m: &Measured| (m.value - bound.value).abs() <= SURE * (m.error + bound.error);
                if bounds.len() < 2 || !bounds.iter().all(is_one) {
                    continue;
                }
                let number = bound.number();
                let c = number.value;
                let after: After = Arc::new(move |right, mut probs| {
                    let sums = super::denominators::sums_of(right, less_most);
                    for (head, row) in rows_of(&probs) {
                        let sum = sums[[head, row]];
                        let by = sum / if is_most { sum.min(c) } else { sum.max(c) };
                        probs.slice_mut(s![head, row, ..]).mapv_inplace(|p| p * by);
                    }
                    Some(probs)
                });
                let words = format!("probabilities are divided by the sum of {called}, {word} {}", number.words);
                let draft = Draft::new(Form::Denominator, words, 9.0 + number.bits).with("bound", c);
                self.offer(draft, right_scores(), Some(after), true);
            }
        }
    }
}

//! Another function of a row of scores in place of the softmax.

use std::sync::Arc;

use ndarray::s;

use super::{After, Draft, How, TINY, right_scores, rows_of};
use crate::identify::statistics::{largest, over_sum, powers};
use crate::law::Form;
use crate::number::Measured;

/// What stands for the softmax of the seen scores of a row.
type Row = Arc<dyn Fn(&[f64]) -> Vec<f64> + Send + Sync>;

/// A function of each score, or of the score less the largest, over the sum of all.
fn of_each(f: impl Fn(f64) -> f64 + Send + Sync + 'static, less_most: bool) -> Row {
    Arc::new(move |scores| {
        let most = if less_most { largest(scores) } else { 0.0 };
        over_sum(scores.iter().map(|s| f(s - most)).collect())
    })
}

fn softmax_of(scores: &[f64]) -> Vec<f64> {
    over_sum(powers(scores, largest(scores)))
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
}

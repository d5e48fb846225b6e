//! Rows that do not sum to what they should.

use std::sync::Arc;

use ndarray::{Array1, Array2, Array3, Axis as Dimension, s};

use super::{After, Draft, How, LOG_ROOM, Right, right_scores, rows_of, softmax};
use crate::case::Axis;
use crate::describe::table::describe as describe_table;
use crate::fit::Fit;
use crate::law::Form;
use crate::number::Measured;

/// `[H,T]`: the sum of the exponentials of what each query sees, or of the same less the largest.
pub(super) fn sums_seen(scores: &Array3<f64>, sees: &Array3<bool>, less_most: bool) -> Array2<f64> {
    let (heads, rows, _) = scores.dim();
    Array2::from_shape_fn((heads, rows), |(head, row)| {
        let (scores, sees) = (scores.slice(s![head, row, ..]), sees.slice(s![head, row, ..]));
        let seen = || scores.iter().zip(&sees).filter(|(_, s)| **s).map(|(x, _)| *x);
        let most = if less_most { seen().fold(f64::NEG_INFINITY, f64::max) } else { 0.0 };
        seen().map(|x| (x - most).exp()).sum::<f64>()
    })
}

/// The same of what is right.
pub(super) fn sums_of(right: &Right, less_most: bool) -> Array2<f64> {
    sums_seen(&right.scores, &right.sees, less_most)
}

impl How<'_> {
    /// A denominator of powers of another number than e.
    fn of_other_base(&mut self, factors: &Array2<Measured>, sums: &Array2<f64>, called: &str, less_most: bool) {
        for (base, power) in [("2", std::f64::consts::LN_2), ("10", std::f64::consts::LN_10)] {
            let of = move |scores: &Array3<f64>, sees: &Array3<bool>| sums_seen(&(scores * power), sees, less_most);
            let other = of(&self.right.scores, &self.masks.sees);
            if !factors.indexed_iter().all(|(at, m)| m.may_be(sums[at] / other[at])) {
                continue;
            }
            let after: After = Arc::new(move |right, mut probs| {
                let (own, other) = (sums_of(right, less_most), of(&right.scores, &right.sees));
                for (head, row) in rows_of(&probs) {
                    let by = own[[head, row]] / other[[head, row]];
                    probs.slice_mut(s![head, row, ..]).mapv_inplace(|p| p * by);
                }
                Some(probs)
            });
            let words = format!("probabilities are {called}, divided by the sum of the same powers of {base}");
            self.offer(Draft::new(Form::Denominator, words, 8.0), right_scores(), Some(after), true);
        }
    }

    /// Rows that do not sum to what they should.
    pub(super) fn of_denominators(&mut self) {
        let (heads, rows, _) = self.own.dim();
        let due = softmax(&self.right.scores, &self.masks.sees, &self.right.beside);
        let mut factors = Array2::from_elem((heads, rows), Measured::UNKNOWN);
        for (head, row) in rows_of(self.own).filter(|(head, row)| self.heads.has[*head] && self.queries.has[*row]) {
            let (own, due) = (self.own.slice(s![head, row, ..]).to_vec(), due.slice(s![head, row, ..]).to_vec());
            let fit: Fit = crate::fit::factor(&due, &own, self.noise());
            if fit.left > LOG_ROOM * self.noise() {
                return;
            }
            factors[[head, row]] = fit.coefficients[0];
        }
        if factors.iter().all(|m| m.may_be(1.0)) {
            return;
        }
        let tokens = self.case.tokens_of(Axis::Query);
        let of_rows: Vec<Measured> =
            factors.axis_iter(Dimension(1)).map(|row| Measured::mean(row.iter().copied())).collect();
        let of_heads: Vec<Measured> =
            factors.axis_iter(Dimension(0)).map(|head| Measured::mean(head.iter().copied())).collect();
        for (table, is_head) in [
            (describe_table(&of_heads, Axis::Head, Some(1.0), None), true),
            (describe_table(&of_rows, Axis::Query, Some(1.0), tokens), false),
        ] {
            let Some(table) = table else { continue };
            let (words, values) = (table.words, table.values);
            let after: After = Arc::new(move |_, mut probs| {
                for (head, row) in rows_of(&probs) {
                    let by = *values.get(if is_head { head } else { row })?;
                    probs.slice_mut(s![head, row, ..]).mapv_inplace(|p| p * by);
                }
                Some(probs)
            });
            let draft = Draft::new(
                Form::Denominator,
                format!("probabilities are {words} times the right ones"),
                table.bits + 4.0,
            );
            self.offer(draft.with("factor", words), right_scores(), Some(after), true);
        }
        if self.laws.is_empty() {
            self.part_of_denominators(&factors);
        }
        // A term of the denominator, beside the exponentials of the scores or of the scores less their largest.
        for (called, less_most) in [("exp(score)", false), ("exp(score - largest)", true)] {
            let sums = sums_seen(&self.right.scores, &self.masks.sees, less_most);
            self.other_denominators(&factors, &sums, called, less_most);
            self.of_other_base(&factors, &sums, called, less_most);
            let extra = ndarray::Zip::from(&sums).and(&factors).map_collect(|sum, factor| {
                if factor.is_known() {
                    Measured::new(sum / factor.value - sum, sum * factor.error / factor.value.powi(2))
                } else {
                    Measured::UNKNOWN
                }
            });
            for (axis, name) in [(0, Axis::Head), (1, Axis::Query)] {
                let of: Vec<Measured> =
                    extra.axis_iter(Dimension(axis)).map(|slice| Measured::mean(slice.iter().copied())).collect();
                let Some(table) = describe_table(&of, name, Some(0.0), self.case.tokens_of(name)) else { continue };
                let values = Array1::from(table.values);
                if !extra.indexed_iter().all(|((head, row), m)| m.may_be(values[[head, row][axis]])) {
                    continue;
                }
                let words = format!("probabilities are divided by the sum of {called} plus {}", table.words);
                let after: After = Arc::new(move |right, mut probs| {
                    for (head, row) in rows_of(&probs) {
                        let seen: Vec<f64> = (0..probs.shape()[2])
                            .filter(|&s| probs[[head, row, s]] > 0.0)
                            .map(|s| right.scores[[head, row, s]])
                            .collect();
                        let most = if less_most { seen.iter().copied().fold(f64::NEG_INFINITY, f64::max) } else { 0.0 };
                        let sum: f64 = seen.iter().map(|x| (x - most).exp()).sum();
                        let extra = *values.get([head, row][axis])?;
                        probs.slice_mut(s![head, row, ..]).mapv_inplace(|p| p * sum / (sum + extra));
                    }
                    Some(probs)
                });
                let draft = Draft::new(Form::Denominator, words, table.bits + 10.0)
                    .with("beside", table.words)
                    .with("of", called);
                self.offer(draft, right_scores(), Some(after), true);
            }
        }
    }
}

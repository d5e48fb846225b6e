//! Scores in which parts of the right ones are counted otherwise: those of a distance, a key or a dimension.

use std::sync::Arc;

use ndarray::Array3;

use super::field::{Field, MOST_TERMS};
use super::{Draft, How, Made};
use crate::case::Axis;
use crate::describe::table::describe as describe_table;
use crate::law::Form;
use crate::number::Measured;

/// Heads that may be mixed, at most.
pub(super) const MOST_HEADS: usize = 64;
impl How<'_> {
    /// A factor for each distance, key or dimension.
    pub(super) fn shares(&mut self, field: &Field) {
        let (_, rows, keys) = self.own.dim();
        for (called, axis) in [("distance", Axis::Distance), ("key", Axis::Key)] {
            let index = move |t: usize, s: usize| if axis == Axis::Distance { t.abs_diff(s) } else { s };
            let used = |i: usize| field.counted.indexed_iter().any(|((_, t, s), counted)| *counted && index(t, s) == i);
            let indices: Vec<usize> = (0..rows.max(keys)).filter(|i| used(*i)).collect();
            if indices.len() > MOST_TERMS {
                continue;
            }
            let part = |i: usize| {
                Array3::from_shape_fn(self.right.scores.dim(), |(h, t, s)| {
                    if index(t, s) == i { self.right.scores[[h, t, s]] } else { 0.0 }
                })
            };
            let parts: Vec<Array3<f64>> = indices.iter().map(|i| part(*i)).collect();
            let Some(coefficients) = field.coefficients(&field.logs, &parts) else { continue };
            let mut factors = vec![Measured::UNKNOWN; rows.max(keys)];
            indices.iter().zip(coefficients).for_each(|(i, m)| factors[*i] = m);
            let Some(table) = describe_table(&factors, axis, Some(1.0), self.case.tokens_of(axis)) else { continue };
            let (words, values) = (table.words, table.values);
            let made: Made = Arc::new(move |_, _, right| {
                Some(Array3::from_shape_fn(right.scores.dim(), |(h, t, s)| {
                    values.get(index(t, s)).copied().unwrap_or(f64::NAN) * right.scores[[h, t, s]]
                }))
            });
            let draft =
                Draft::new(Form::ScoreScale, format!("scores are {words} times the right ones"), table.bits + 4.0);
            if self.offer(draft.with("factor", words).with("by", called), made, None, true) {
                return;
            }
        }
        self.dimensions(field);
    }

    /// How often each dimension is counted in the product of queries and keys.
    fn dimensions(&mut self, field: &Field) {
        let (q, k) = (&self.right.q, &self.right.k);
        let d = q.shape()[2];
        let key_head = self.right.key_head.clone();
        let scale = self.right.scale.clone();
        let part = |i: usize| {
            Array3::from_shape_fn(self.right.scores.dim(), |(h, t, s)| scale[h] * q[[t, h, i]] * k[[s, key_head[h], i]])
        };
        if d > MOST_TERMS {
            return;
        }
        let parts: Vec<Array3<f64>> = (0..d).map(part).collect();
        let Some(factors) = field.coefficients(&field.logs, &parts) else { return };
        let Some(table) = describe_table(&factors, Axis::Dim, Some(1.0), None) else { return };
        let (words, values) = (table.words, table.values);
        let made: Made = Arc::new(move |_, _, right| {
            (right.q.shape()[2] == values.len()).then_some(())?;
            super::scores::scaled(&(&right.q * &ndarray::ArrayView1::from(&values)), &right.k, right)
        });
        let words_said = format!("each dimension counts {words} times in the product of queries and keys");
        let draft =
            Draft::new(Form::ScoreSource, words_said, table.bits + 5.0).with("factor", words).with("by", "dimension");
        self.offer(draft, made, None, true);
    }
}

//! Scores in which parts of the right ones are counted otherwise: those of a distance, a key, a dimension or another head; probabilities that are mixed over heads.

use std::sync::Arc;

use ndarray::{Array2, Array3, s};

use super::field::{Field, MOST_TERMS};
use super::{After, Draft, How, LOG_ROOM, Made, centred, cube, right_scores, rows_of};
use crate::case::Axis;
use crate::describe::choice;
use crate::describe::table::describe as describe_table;
use crate::fit::least_squares;
use crate::law::Form;
use crate::number::Measured;

/// Heads that may be mixed, at most.
pub(super) const MOST_HEADS: usize = 64;
/// Cells that coefficients are fitted on, at most.
const CELLS: usize = 1 << 14;

impl Field {
    /// One head alone.
    pub(super) fn of_head(&self, head: usize) -> Field {
        let only = |x: &Array3<f64>| x.slice(s![head..=head, .., ..]).to_owned();
        Field {
            counted: self.counted.slice(s![head..=head, .., ..]).to_owned(),
            logs: only(&self.logs),
            scores: only(&self.scores),
            noise: self.noise,
        }
    }

    /// How often each of these parts is counted in the logarithms; `None` where they are no sum of them.
    pub(super) fn coefficients(&self, parts: &[Array3<f64>]) -> Option<Vec<Measured>> {
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
        let wanted = of(&self.logs);
        let size = (wanted.iter().map(|x| x * x).sum::<f64>() / wanted.len().max(1) as f64).sqrt();
        let views: Vec<&[f64]> = columns.iter().map(Vec::as_slice).collect();
        let fit = least_squares(&views, &wanted, self.each() / size.max(f64::MIN_POSITIVE))?;
        (fit.left * size <= LOG_ROOM * self.each()).then_some(fit.coefficients)
    }
}

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
            let Some(coefficients) = field.coefficients(&parts) else { continue };
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
        let first = self.case.first();
        let (Some(q), Some(k)) = (cube(&first.inputs[0]), cube(&first.inputs[1])) else { return };
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
        let Some(factors) = field.coefficients(&parts) else { return };
        let Some(table) = describe_table(&factors, Axis::Dim, Some(1.0), None) else { return };
        let (words, values) = (table.words, table.values);
        let made: Made = Arc::new(move |case, at, right| {
            let [q, k] = &case.places[at].inputs[..] else { return None };
            let (mut q, k) = (cube(q)?, cube(k)?);
            for (i, by) in values.iter().enumerate().take(q.shape()[2]) {
                q.slice_mut(s![.., .., i]).mapv_inplace(|x| x * by);
            }
            super::scores::scaled(&q, &k, right)
        });
        let words_said = format!("each dimension counts {words} times in the product of queries and keys");
        let draft =
            Draft::new(Form::ScoreSource, words_said, table.bits + 5.0).with("factor", words).with("by", "dimension");
        self.offer(draft, made, None, true);
    }

    /// Rows that are divided by the sum of another row.
    pub(super) fn other_denominators(
        &mut self,
        factors: &Array2<Measured>,
        sums: &Array2<f64>,
        called: &str,
        less_most: bool,
    ) {
        type Source = Arc<dyn Fn(usize, usize) -> (usize, usize) + Send + Sync>;
        let (heads, rows) = factors.dim();
        let mut all: Vec<(String, f64, Source)> = (0..heads.min(MOST_HEADS))
            .map(|head| (format!("head {head}"), 8.0, Arc::new(move |_, t| (head, t)) as Source))
            .collect();
        all.push(("the query before".into(), 6.0, Arc::new(|h, t: usize| (h, t.saturating_sub(1)))));
        all.push(("the next query".into(), 6.0, Arc::new(move |h, t| (h, (t + 1).min(rows - 1)))));
        all.push(("the first query".into(), 6.0, Arc::new(|h, _| (h, 0))));
        all.push(("the last query".into(), 6.0, Arc::new(move |h, _| (h, rows - 1))));
        all.push(("the head before".into(), 7.0, Arc::new(move |h, t| ((h + heads - 1) % heads, t))));
        all.push(("the next head".into(), 7.0, Arc::new(move |h, t| ((h + 1) % heads, t))));
        all.push(("the other head of its pair".into(), 7.0, Arc::new(move |h, t| ((h ^ 1).min(heads - 1), t))));
        for block in [2usize, 3, 4, 8, 16, 32] {
            let bits = 7.0 + choice(block);
            let last = move |t: usize| (t / block * block + block - 1).min(rows - 1);
            all.push((format!("the first of its {block} queries"), bits, Arc::new(move |h, t| (h, t / block * block))));
            all.push((format!("the last of its {block} queries"), bits, Arc::new(move |h, t| (h, last(t)))));
            all.push((format!("the first of its {block} heads"), bits, Arc::new(move |h, t| (h / block * block, t))));
        }
        type Sum = Arc<dyn Fn(&Array2<f64>, usize, usize) -> Option<f64> + Send + Sync>;
        let one = |(words, bits, source): (String, f64, Source)| -> (String, f64, Sum) {
            (words, bits, Arc::new(move |sums, h, t| sums.get(source(h, t)).copied()))
        };
        let groups = [2, 4, 8, 16, 32].into_iter().filter(|group| *group < heads).chain([heads]);
        let of_group = |group: usize| -> (String, f64, Sum) {
            let of = move |sums: &Array2<f64>, h: usize, t: usize| -> Option<f64> {
                let heads = h / group * group..(h / group * group + group).min(sums.nrows());
                heads.map(|head| sums.get([head, t]).copied()).sum()
            };
            (format!("all of its {group} heads together"), 8.0, Arc::new(of))
        };
        let of_groups: Vec<(String, f64, Sum)> = groups.filter(|group| *group > 1).map(of_group).collect();
        let so_far: [(String, f64, Sum); 2] = [
            (
                "all queries up to its own together: the sum is not cleared".into(),
                8.0,
                Arc::new(|sums: &Array2<f64>, h, t| (0..=t).map(|t| sums.get([h, t]).copied()).sum()),
            ),
            (
                "all heads up to its own together: the sum is not cleared".into(),
                8.0,
                Arc::new(|sums: &Array2<f64>, h, t| (0..=h).map(|h| sums.get([h, t]).copied()).sum()),
            ),
        ];
        for (words, bits, sum) in all.into_iter().map(one).chain(of_groups).chain(so_far) {
            let fits = |((h, t), m): ((usize, usize), &Measured)| {
                sum(sums, h, t).is_some_and(|other| m.may_be(sums[[h, t]] / other))
            };
            if !factors.indexed_iter().all(fits) {
                continue;
            }
            let after: After = Arc::new(move |right, mut probs| {
                let sums = super::denominators::sums_of(right, less_most);
                for (head, row) in rows_of(&probs) {
                    let by = sums[[head, row]] / sum(&sums, head, row)?;
                    probs.slice_mut(s![head, row, ..]).mapv_inplace(|p| p * by);
                }
                Some(probs)
            });
            let words = format!("probabilities are {called}, divided by the sum of {words}");
            self.offer(Draft::new(Form::Denominator, words, bits), right_scores(), Some(after), true);
        }
    }
}

//! What the scores are: their factor, terms, function, heads and operands.

use std::sync::Arc;

use ndarray::{Array3, Axis as Dimension, s};

use super::field::{Field, MOST_PAIRS};
use super::sources::{MOST_KEYS, of_operands};
use super::{After, Draft, How, LOG_ROOM, Made, Right, TINY, centred, products, right_scores, rows_of};
use crate::case::Axis;
use crate::describe::function::fitting;
use crate::describe::source;
use crate::describe::table::{bits_of, describe as describe_table};
use crate::identify::first_along;
use crate::identify::heads::{Heads, paired};
use crate::identify::slots::caches;
use crate::law::Form;
use crate::number::Measured;

/// Ways to pair heads that are tried at most.
const MOST_HEADS: usize = 1 << 15;

/// What a function may leave of the logarithms before the proof, as a share.
const NEAR_SCORES: f64 = 1e-6;

fn times(by: impl Fn(usize, usize) -> f64 + Send + Sync + 'static) -> Made {
    Arc::new(move |_, _, right| {
        Some(Array3::from_shape_fn(right.scores.dim(), |(h, t, s)| by(h, t) * right.scores[[h, t, s]]))
    })
}

pub(super) fn scaled(q: &Array3<f64>, k: &Array3<f64>, right: &Right) -> Option<Array3<f64>> {
    let mut scores = products(q, k, &right.key_head);
    for (head, by) in right.scale.iter().enumerate() {
        scores.index_axis_mut(Dimension(0), head).mapv_inplace(|s| s * by);
    }
    Some(scores)
}

/// What a rule may cost by which many queries or keys have other positions.
const MOST_OF_AN_ORDER: f64 = 8.0;

impl How<'_> {
    /// What the scores are.
    pub(super) fn of_scores(&mut self) {
        if self.masks.words.is_some() {
            let draft = |words: &str, bits: f64| Draft::new(Form::Mask, words.into(), bits);
            self.offer(draft("", 0.0), right_scores(), None, true);
            let sees = self.masks.sees.clone();
            let cut: After = Arc::new(move |_, probs| {
                (probs.dim() == sees.dim())
                    .then(|| ndarray::Zip::from(&probs).and(&sees).map_collect(|p, sees| if *sees { *p } else { 0.0 }))
            });
            let words = self.masks.words.clone().unwrap_or_default();
            let draft =
                Draft::new(Form::Mask, format!("{words}, without dividing by their sum again"), self.masks.bits + 6.0);
            self.offer(draft, right_scores(), Some(cut), false);
        }
        // Logarithms, as far as the keys that both see.
        let sees = ndarray::Zip::from(&self.masks.sees).and(self.own).map_collect(|sees, p| *sees && *p > TINY);
        let wrong = self.wrong_heads();
        if wrong.is_empty() {
            return;
        }
        let mut counted = sees.clone();
        for (head, row) in rows_of(self.own) {
            if !self.heads.has[head] || !self.queries.has[row] {
                counted.slice_mut(s![head, row, ..]).fill(false);
            }
        }
        let logs = centred(&self.own.mapv(|p| if p > 0.0 { p.ln() } else { 0.0 }), &counted);
        let scores = centred(&self.right.scores, &counted);
        let field = Field { counted, logs, scores, noise: self.noise() };
        self.scales(&field, &wrong);
        self.biases(&field, &wrong);
        self.functions(&field);
        self.heads(&field, &wrong);
        self.operands(&field);
        if self.laws.is_empty() {
            self.sources(&field);
        }
        if self.laws.is_empty() {
            self.rows_otherwise();
        }
        if self.laws.is_empty() && self.case.has_time() {
            self.shares(&field);
            self.mixed_heads(&field);
            self.mixed_keys(&field);
            self.blocks_of_dimensions(&field);
        }
    }

    /// A factor of the scores: of all, of each head, of each query.
    fn scales(&mut self, field: &Field, wrong: &[usize]) {
        let model = self.right.scale[wrong[0]];
        let (heads, rows, _) = self.own.dim();
        let all = field.slope(&|_, _| true);
        // Scores that are right are no part of a law.
        for by in [all.number(), all.plain()].into_iter().filter(|by| by.value != 1.0) {
            let scale = Measured::new(by.value * model, all.error * model).number();
            let words = format!(
                "scores are {} times the right ones (scale {}, right: {})",
                by.words,
                scale.words,
                Measured::new(model, 1e-9 * model).number().words
            );
            let value = by.value;
            let draft = Draft::new(Form::ScoreScale, words, by.bits).with("factor", value).with("scale", value * model);
            if self.offer(draft, times(move |_, _| value), None, true) {
                break;
            }
        }
        let of_head = |h: usize| match wrong.contains(&h) {
            true => field.slope(&|head, _| head == h),
            false => Measured::UNKNOWN,
        };
        let of_query = |t: usize| field.slope(&|_, row| row == t);
        let factors: [(Axis, Vec<Measured>); 2] =
            [(Axis::Head, (0..heads).map(of_head).collect()), (Axis::Query, (0..rows).map(of_query).collect())];
        for (axis, factors) in factors {
            let is_head = axis == Axis::Head;
            let by =
                |values: Vec<f64>| times(move |h, t| values.get(if is_head { h } else { t }).copied().unwrap_or(1.0));
            let table = describe_table(&factors, axis, Some(1.0), self.case.tokens_of(axis));
            if let Some(table) = table.filter(|table| table.number.is_none() || table.part.is_some()) {
                let said = format!("scores are {} times the right ones", table.words);
                let draft = Draft::new(Form::ScoreScale, said, table.bits + 3.0);
                self.offer(draft.with("factor", table.words).with("by", axis.name()), by(table.values), None, true);
            } else if is_head && wrong.len() > 1 {
                let values: Vec<f64> = factors.iter().map(|m| if m.is_known() { m.value } else { 1.0 }).collect();
                let said = "scores are a factor for each head times the right ones".to_owned();
                let draft = Draft::new(Form::ScoreScale, said, bits_of(&factors)).with("factors", values.clone());
                self.offer(Draft { is_table: true, ..draft }, by(values), None, true);
            }
        }
    }

    /// A term for each distance or key, for all heads or with a slope for each.
    fn biases(&mut self, field: &Field, wrong: &[usize]) {
        let (heads, rows, keys) = self.own.dim();
        if rows * keys > MOST_PAIRS {
            return;
        }
        for (called, is_distance) in [("distance", true), ("key", false)] {
            let index = move |t: usize, s: usize| if is_distance { t.abs_diff(s) } else { s };
            let n = rows.max(keys);
            for with_slope in [false, true] {
                let Some((slope, table)) = field.by_index(&index, n, with_slope) else { continue };
                if table.iter().all(|m| m.may_be(0.0)) {
                    continue;
                }
                let by = slope.number();
                let axis = if is_distance { Axis::Distance } else { Axis::Key };
                // A term that is the same for all keys changes nothing: the first may be called nothing.
                let Some(described) = describe_table(&table, axis, Some(0.0), None) else { continue };
                let said = described.words;
                let times = if by.value == 1.0 { String::new() } else { format!("{} times ", by.words) };
                let words = format!("scores are {times}the right ones plus {said}");
                let bits = described.bits + 5.0 + if by.value == 1.0 { 0.0 } else { by.bits };
                let (values, by) = (described.values, by.value);
                let made: Made = Arc::new(move |_, _, right| {
                    Some(Array3::from_shape_fn(right.scores.dim(), |(h, t, s)| {
                        by * right.scores[[h, t, s]] + values.get(index(t, s)).copied().unwrap_or(f64::NAN)
                    }))
                });
                let draft =
                    Draft::new(Form::ScoreBias, words, bits).with("bias", said).with("by", called).with("scale", by);
                if self.offer(draft, made, None, true) {
                    return;
                }
            }
            // A slope over the distance or key for each head.
            let slopes: Vec<Measured> = (0..heads)
                .map(|h| if wrong.contains(&h) { field.line(h, &|t, s| index(t, s) as f64) } else { Measured::UNKNOWN })
                .collect();
            if slopes.iter().any(|m| m.is_known() && !m.may_be(0.0))
                && let Some(table) = describe_table(&slopes, Axis::Head, Some(0.0), None)
            {
                let (said, values) = (table.words, table.values);
                let words = format!("scores are the right ones plus the {called} times {said}");
                let made: Made = Arc::new(move |_, _, right| {
                    Some(Array3::from_shape_fn(right.scores.dim(), |(h, t, s)| {
                        right.scores[[h, t, s]] + values.get(h).copied().unwrap_or(f64::NAN) * index(t, s) as f64
                    }))
                });
                let draft = Draft::new(Form::ScoreBias, words, table.bits + 8.0).with("slope", said).with("by", called);
                if self.offer(draft, made, None, true) {
                    return;
                }
            }
        }
    }

    /// One function of all scores.
    fn functions(&mut self, field: &Field) {
        let all: Vec<f64> =
            ndarray::Zip::from(&self.right.scores).and(&field.counted).fold(Vec::new(), |mut all, s, counted| {
                all.extend(counted.then_some(*s));
                all
            });
        let left = |f: &dyn Fn(f64) -> f64| field.left(&self.right.scores.mapv(f));
        let near = (LOG_ROOM * field.noise).max(NEAR_SCORES);
        let case = self.case;
        for function in fitting(&all, 1.0, near, &|| case.has_time(), &left) {
            let draft = Draft::new(
                Form::ScoreFunction,
                format!("scores are {} (s: the right ones)", function.of("s")),
                function.bits + 4.0,
            );
            let f = function.f;
            let made: Made = Arc::new(move |_, _, right| Some(right.scores.mapv(|x| f(x))));
            let (name, constant) = function.constant.unzip();
            self.offer(draft.with("function", name).with("constant", constant), made, None, true);
        }
    }

    /// Which head of the keys answers, and which head asks.
    fn heads(&mut self, field: &Field, wrong: &[usize]) {
        let (q, k) = (&self.right.q, &self.right.k);
        let (heads, key_heads) = (q.shape()[1], k.shape()[1]);
        if heads * key_heads * heads > MOST_HEADS {
            return;
        }
        let left = |head: usize, other: usize, key: usize| {
            let product = q.slice(s![.., other, ..]).dot(&k.slice(s![.., key, ..]).t()) * self.right.scale[head];
            field.of_head(head).along(&product.insert_axis(Dimension(0)))
        };
        let said = ["query head h is answered by key head", "queries are those of", "scores times"];
        let (near, is_wrong) = (LOG_ROOM * field.noise.max(1e-9), |head: usize| wrong.contains(&head));
        let Some(found) = paired(&self.right.key_head, key_heads, &is_wrong, near, said, &left) else { return };
        let Heads { words, bits, said, of, key_heads, by } = found;
        let made: Made = Arc::new(move |_, _, right| {
            let mut scores = products(&right.q.select(Dimension(1), &of), &right.k, &key_heads);
            for (head, by) in by.iter().enumerate() {
                scores.index_axis_mut(Dimension(0), head).mapv_inplace(|s| s * by * right.scale[head]);
            }
            Some(scores)
        });
        self.offer(Draft::new(Form::HeadMap, words, bits).with("key_head", said), made, None, true);
    }

    /// Other operands of the product.
    fn operands(&mut self, field: &Field) {
        let transposed: Made = Arc::new(|_, _, right| {
            let (_, rows, keys) = right.scores.dim();
            (rows == keys).then(|| right.scores.clone().permuted_axes([0, 2, 1]).as_standard_layout().into_owned())
        });
        let draft = Draft::new(Form::ScoreSource, "scores are transposed: of query s with key t".into(), 5.0);
        self.offer(draft, transposed, None, true);
        // What each query finds in the slots of a cache.
        let first = first_along(&crate::identify::wrong(self.case.first()), 1);
        for (words, bits, slot) in caches(first, self.own.shape()[2]) {
            let of_slots: Made = Arc::new(move |_, _, right| {
                let of = |(h, t, s): (usize, usize, usize)| {
                    slot(t, s).and_then(|at| right.scores.get([h, t, at])).copied().unwrap_or(0.0)
                };
                Some(Array3::from_shape_fn(right.scores.dim(), of))
            });
            self.offer(Draft::new(Form::ScoreSource, format!("keys {words}"), bits), of_slots, None, true);
        }
        // A loop over a head that runs one too far: what lies behind the head in memory is multiplied too.
        let further: Made = Arc::new(|_, _, right| {
            let d = right.q.shape()[2];
            let [q, k] = [&right.q, &right.k].map(|x| x.as_standard_layout().into_owned());
            let behind = |x: &Array3<f64>, row: usize, head: usize| {
                let at = (row * x.shape()[1] + head + 1) * d;
                x.as_slice().and_then(|memory| memory.get(at)).copied().unwrap_or(0.0)
            };
            Some(Array3::from_shape_fn(right.scores.dim(), |(h, t, s)| {
                let term = behind(&q, t, h) * behind(&k, s, right.key_head[h]);
                right.scores[[h, t, s]] + right.scale[h] * term
            }))
        });
        let words = "the product of query and key has one term more, of the elements that lie behind each head in memory (i <= d)";
        self.offer(Draft::new(Form::ScoreSource, words.into(), 7.0), further, None, true);
        let lengths: Made = Arc::new(|_, _, right| {
            Some(Array3::from_shape_fn(right.scores.dim(), |(h, t, s)| {
                let key = right.k.slice(s![s, right.key_head[h], ..]);
                right.scores[[h, t, s]] - 0.5 * right.scale[h] * key.dot(&key)
            }))
        });
        let words = "scores are minus half the squared distance of query and key, times the right scale";
        self.offer(Draft::new(Form::ScoreSource, words.into(), 7.0), lengths, None, true);
        // Of few positions it is measured whose each is.
        for (which, called) in [(0usize, "queries"), (1, "keys")] {
            let n = Some(self.own.shape()[which + 1]).filter(|n| *n > MOST_KEYS).unwrap_or(0);
            for source in source::orders(n, Axis::Token.name(), MOST_OF_AN_ORDER) {
                let words = format!("{called} of position i are those of {}", source.words);
                let moved = of_operands(move |operands| {
                    (operands[which].shape()[0] == source.from.len()).then_some(())?;
                    operands[which] = operands[which].select(Dimension(0), &source.from);
                    Some(())
                });
                self.offer(Draft::new(Form::ScoreSource, words, source.bits + 2.0), moved, None, true);
            }
        }
        for (which, called) in [(&[0usize][..], "queries are"), (&[1], "keys are"), (&[0, 1], "queries and keys are")] {
            let unit = of_operands(move |operands| {
                for &at in which {
                    for mut row in operands[at].lanes_mut(Dimension(2)) {
                        let length = row.dot(&row).sqrt();
                        row.mapv_inplace(|x| if length > 0.0 { x / length } else { x });
                    }
                }
                Some(())
            });
            let Some(scores) = unit(self.case, self.case.fitted, self.right) else { continue };
            let (left, by) = field.along(&scores);
            if left > LOG_ROOM * field.noise {
                continue;
            }
            let number = by.number();
            let (value, inner) = (number.value, unit.clone());
            let made: Made = Arc::new(move |case, at, right| Some(inner(case, at, right)? * value));
            let words = format!("{called} of length one, scores {} times that", number.words);
            self.offer(Draft::new(Form::ScoreSource, words, 6.0 + number.bits).with("scale", value), made, None, true);
        }
    }
}

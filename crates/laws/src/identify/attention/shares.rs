//! Scores in which parts of the right ones are counted otherwise: those of a distance, a key, a dimension or another head; probabilities that are mixed over heads.

use std::sync::Arc;

use ndarray::{Array2, Array3, Axis as Dimension, s};

use super::field::{Field, MOST_TERMS};
use super::{After, Draft, How, LOG_ROOM, Made, centred, cube, right_scores, rows_of};
use crate::case::Axis;
use crate::describe::choice;
use crate::describe::table::describe as describe_table;
use crate::fit::least_squares;
use crate::law::Form;
use crate::number::{Measured, Number};

/// Heads that may be mixed, at most.
const MOST_HEADS: usize = 64;
/// Cells that coefficients are fitted on, at most.
const CELLS: usize = 1 << 14;

impl Field {
    /// One head alone.
    fn of_head(&self, head: usize) -> Field {
        let only = |x: &Array3<f64>| x.slice(s![head..=head, .., ..]).to_owned();
        Field {
            counted: self.counted.slice(s![head..=head, .., ..]).to_owned(),
            logs: only(&self.logs),
            scores: only(&self.scores),
            noise: self.noise,
        }
    }

    /// How often each of these parts is counted in the logarithms; `None` where they are no sum of them.
    fn coefficients(&self, parts: &[Array3<f64>]) -> Option<Vec<Measured>> {
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

    /// Scores, or probabilities, that are a mixture over heads.
    pub(super) fn mixed_heads(&mut self, field: &Field) {
        let heads = self.own.shape()[0];
        if !(2..=MOST_HEADS).contains(&heads) {
            return;
        }
        // A head that is right is its own.
        let itself =
            |head: usize| (0..heads).map(|other| Measured::new(f64::from(u8::from(other == head)), 0.0)).collect();
        let scores = |head: usize| {
            if !self.heads.has[head] {
                return Some(itself(head));
            }
            let parts: Vec<Array3<f64>> =
                (0..heads).map(|other| self.right.scores.slice(s![other..=other, .., ..]).to_owned()).collect();
            field.of_head(head).coefficients(&parts)
        };
        let noise = self.noise();
        let right = super::softmax(&self.right.scores, &self.right.sees, &self.right.beside);
        let flat =
            |x: &Array3<f64>, head: usize| x.index_axis(Dimension(0), head).iter().copied().collect::<Vec<f64>>();
        let columns: Vec<Vec<f64>> = (0..heads).map(|head| flat(&right, head)).collect();
        let views: Vec<&[f64]> = columns.iter().map(Vec::as_slice).collect();
        let probs = |head: usize| {
            if !self.heads.has[head] {
                return Some(itself(head));
            }
            least_squares(&views, &flat(self.own, head), noise)
                .filter(|fit| fit.left <= ROOM * noise)
                .map(|fit| fit.coefficients)
        };
        let of_scores = mixture(heads, &scores);
        let of_probs = mixture(heads, &probs);
        if let Some((words, bits, by)) = of_scores {
            let made: Made = Arc::new(move |_, _, right| mixed(&right.scores, &by));
            self.offer(
                Draft::new(Form::ScoreSource, format!("each head's scores are {words}"), bits),
                made,
                None,
                true,
            );
        }
        if let Some((words, bits, by)) = of_probs {
            let after: After = Arc::new(move |_, probs| mixed(&probs, &by));
            let draft = Draft::new(Form::ProbsMix, format!("each head's probabilities are {words}"), bits);
            self.offer(draft, right_scores(), Some(after), false);
        }
    }

    /// Keys that are a mixture of the key heads.
    pub(super) fn mixed_keys(&mut self, field: &Field) {
        let first = self.case.first();
        let (Some(q), Some(k)) = (cube(&first.inputs[0]), cube(&first.inputs[1])) else { return };
        let (heads, key_heads) = (q.shape()[1], k.shape()[1]);
        if !(2..=MOST_HEADS).contains(&key_heads) || heads > MOST_HEADS {
            return;
        }
        let mut all: Vec<Vec<Measured>> = Vec::new();
        for head in 0..heads {
            if !self.heads.has[head] {
                let due = self.right.key_head[head];
                all.push((0..key_heads).map(|g| Measured::new(f64::from(u8::from(g == due)), 0.0)).collect());
                continue;
            }
            let scale = self.right.scale[head];
            let part = |g: usize| {
                let of = q.slice(s![.., head, ..]).dot(&k.slice(s![.., g, ..]).t()) * scale;
                of.insert_axis(Dimension(0))
            };
            let parts: Vec<Array3<f64>> = (0..key_heads).map(part).collect();
            let Some(of) = field.of_head(head).coefficients(&parts) else { return };
            all.push(of);
        }
        let numbers: Vec<Vec<Number>> = all.iter().map(|of| of.iter().map(Measured::number).collect()).collect();
        // One mixture for all heads, or each head's own with another.
        let mean = Measured::mean(all.iter().flatten().copied()).number();
        let is_one = all.iter().flatten().all(|m| m.may_be(mean.value));
        let (words, bits) = if is_one {
            let words = match (mean.value - 1.0 / key_heads as f64).abs() < 1e-6 {
                true => "the mean of all key heads".to_owned(),
                false => format!("{} times the sum of all key heads", mean.words),
            };
            (words, 8.0 + mean.bits)
        } else {
            let group = heads.div_ceil(key_heads);
            let of_first: Vec<Vec<Measured>> = (0..key_heads).filter_map(|g| all.get(g * group).cloned()).collect();
            let is_by_group =
                (0..heads).all(|h| (0..key_heads).all(|g| all[h][g].may_be(numbers[h / group * group][g].value)));
            let found =
                (is_by_group && of_first.len() == key_heads).then(|| so_far(&of_first).or_else(|| listed(&of_first)));
            let Some(Some((words, bits, _))) = found else { return };
            (format!("mixed: {}", words.replace("head", "key head")), bits + 2.0)
        };
        let by =
            Array2::from_shape_fn((heads, key_heads), |(h, g)| if is_one { mean.value } else { numbers[h][g].value });
        let made: Made = Arc::new(move |case, at, right| {
            let [q, k] = &case.places[at].inputs[..] else { return None };
            let (q, k) = (cube(q)?, cube(k)?);
            (by.dim() == (q.shape()[1], k.shape()[1])).then_some(())?;
            let mut scores = Array3::zeros(right.scores.dim());
            for ((head, g), by) in by.indexed_iter().filter(|(_, by)| **by != 0.0) {
                let of = q.slice(s![.., head, ..]).dot(&k.slice(s![.., g, ..]).t()) * (by * right.scale[head]);
                let mut to = scores.index_axis_mut(Dimension(0), head);
                to += &of;
            }
            Some(scores)
        });
        self.offer(Draft::new(Form::ScoreSource, format!("keys are {words}"), bits), made, None, true);
    }

    /// Which block of the key's dimensions meets each block of the query's.
    pub(super) fn blocks_of_dimensions(&mut self, field: &Field) {
        let first = self.case.first();
        let (Some(q), Some(k)) = (cube(&first.inputs[0]), cube(&first.inputs[1])) else { return };
        let d = q.shape()[2];
        for blocks in
            [2usize, 4, 8].into_iter().filter(|blocks| d.is_multiple_of(*blocks) && blocks * blocks <= MOST_TERMS)
        {
            let width = d / blocks;
            let of = |x: &Array3<f64>, at: usize| x.slice(s![.., .., at * width..(at + 1) * width]).to_owned();
            let (queries, keys): (Vec<_>, Vec<_>) = (0..blocks).map(|at| (of(&q, at), of(&k, at))).unzip();
            let part = |at: usize| super::scores::scaled(&queries[at / blocks], &keys[at % blocks], self.right);
            let Some(parts) = (0..blocks * blocks).map(part).collect::<Option<Vec<_>>>() else { return };
            let Some(found) = field.coefficients(&parts) else { continue };
            let by = Array2::from_shape_fn((blocks, blocks), |(a, b)| found[a * blocks + b].number());
            let counted = by.iter().filter(|n| n.value != 0.0).count();
            if counted > MOST_BLOCKS || counted == 0 {
                continue;
            }
            let (mut words, mut bits) = (Vec::new(), 6.0 + 2.0 * choice(blocks));
            for ((a, b), number) in by.indexed_iter().filter(|(_, n)| n.value != 0.0) {
                let range = |at: usize| format!("{} to {}", at * width, (at + 1) * width - 1);
                let times = if number.value == 1.0 { String::new() } else { format!("{} times ", number.words) };
                words.push(format!("dimensions {} of the query meet {times}{} of the key", range(a), range(b)));
                bits += number.bits + if a == b && number.value == 1.0 { 1.0 } else { 2.0 + choice(blocks) };
            }
            let values = by.mapv(|n| n.value);
            let made: Made = Arc::new(move |case, at, right| {
                let [q, k] = &case.places[at].inputs[..] else { return None };
                let (q, k) = (cube(q)?, cube(k)?);
                (q.shape()[2] == width * blocks).then_some(())?;
                let mut scores = Array3::zeros(right.scores.dim());
                let part = |x: &Array3<f64>, at: usize| x.slice(s![.., .., at * width..(at + 1) * width]).to_owned();
                for ((a, b), by) in values.indexed_iter().filter(|(_, by)| **by != 0.0) {
                    scores.scaled_add(*by, &super::scores::scaled(&part(&q, a), &part(&k, b), right)?);
                }
                Some(scores)
            });
            if self.offer(Draft::new(Form::ScoreSource, words.join(", "), bits), made, None, true) {
                return;
            }
        }
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
        for (words, bits, sum) in all.into_iter().map(one).chain(of_groups) {
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

/// Pairs of blocks of dimensions that may meet.
const MOST_BLOCKS: usize = 12;
/// Errors of rounding's size that a mixture may leave before the proof.
const ROOM: f64 = 5.0;

/// How heads are mixed: the same number for its own and for all others of its group, in words.
fn mixture(heads: usize, of: &dyn Fn(usize) -> Option<Vec<Measured>>) -> Option<(String, f64, Array2<f64>)> {
    let mut all: Vec<Vec<Measured>> = Vec::new();
    for head in 0..heads {
        all.push(of(head)?);
    }
    let at = |h: usize, other: usize| all[h][other];
    for group in (2..=heads).filter(|group| heads.is_multiple_of(*group)) {
        let cells = |is: &dyn Fn(usize, usize) -> bool| {
            let pairs = (0..heads).flat_map(|h| (0..heads).map(move |o| (h, o)));
            Measured::mean(pairs.filter(|(h, o)| is(*h, *o)).map(|(h, o)| at(h, o)).collect::<Vec<_>>().into_iter())
                .number()
        };
        let own = cells(&|h, o| h == o);
        let other = cells(&|h, o| h != o && h / group == o / group);
        let by = Array2::from_shape_fn((heads, heads), |(h, o)| match (h == o, h / group == o / group) {
            (true, _) => own.value,
            (_, true) => other.value,
            _ => 0.0,
        });
        let is_it = by.indexed_iter().all(|((h, o), value)| at(h, o).may_be(*value));
        if !is_it || other.value == 0.0 {
            continue;
        }
        let of = if group == heads { "all heads".to_owned() } else { format!("its {group} neighbouring heads") };
        let is_mean = |n: &Number| (n.value - 1.0 / group as f64).abs() < 1e-6;
        let words = match is_mean(&own) && is_mean(&other) {
            true => format!("the mean of {of}"),
            false => format!("{} times its own and {} times those of each other of {of}", own.words, other.words),
        };
        return Some((words, 8.0 + own.bits + other.bits, by));
    }
    so_far(&all).or_else(|| listed(&all))
}

/// Heads that are the sum of those so far: a sum that is not cleared, over all heads or from the first of a group on; or of those from its own on.
fn so_far(all: &[Vec<Measured>]) -> Option<(String, f64, Array2<f64>)> {
    let heads = all.len();
    let groups = (2..=heads).rev().filter(|group| heads.is_multiple_of(*group));
    for (group, is_before) in groups.flat_map(|group| [(group, true), (group, false)]) {
        let is_in = |h: usize, o: usize| h / group == o / group && if is_before { o <= h } else { o >= h };
        let by = Array2::from_shape_fn((heads, heads), |(h, o)| f64::from(u8::from(is_in(h, o))));
        if by.indexed_iter().all(|((h, o), value)| all[h][o].may_be(*value)) {
            let of = if group == heads { String::new() } else { format!(" of its group of {group}") };
            let words = match is_before {
                true => format!("the sum of those of all heads{of} up to its own"),
                false => format!("the sum of those of all heads{of} from its own on"),
            };
            return Some((words, 9.0 + choice(group), by));
        }
    }
    None
}

/// Heads that are sums of others, each named, where no head has more than a few.
fn listed(all: &[Vec<Measured>]) -> Option<(String, f64, Array2<f64>)> {
    let heads = all.len();
    let (mut by, mut bits, mut words) = (Array2::zeros((heads, heads)), 4.0, Vec::new());
    for (head, of) in all.iter().enumerate() {
        let parts: Vec<(usize, Number)> =
            of.iter().enumerate().filter(|(_, m)| !m.may_be(0.0)).map(|(other, m)| (other, m.number())).collect();
        if parts.is_empty() || parts.len() > MOST_LISTED {
            return None;
        }
        let said = |(other, number): &(usize, Number)| match number.value == 1.0 {
            true => format!("those of head {other}"),
            false => format!("{} times those of head {other}", number.words),
        };
        words.push(format!("in head {head} {}", parts.iter().map(said).collect::<Vec<_>>().join(" and ")));
        for (other, number) in parts {
            by[[head, other]] = number.value;
            bits += 3.0 + number.bits;
        }
    }
    Some((words.join(", "), bits, by))
}

/// Heads that a sum of named ones has.
const MOST_LISTED: usize = 3;

fn mixed(x: &Array3<f64>, by: &Array2<f64>) -> Option<Array3<f64>> {
    let (heads, rows, keys) = x.dim();
    let flat = x.to_shape((heads, rows * keys)).ok()?;
    (by.dim() == (heads, heads)).then_some(())?;
    by.dot(&flat).into_shape_with_order((heads, rows, keys)).ok()
}

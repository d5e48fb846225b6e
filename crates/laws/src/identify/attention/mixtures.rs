//! Scores and probabilities that are mixtures: of other heads, of other key heads, of blocks of dimensions that do not belong together.

use std::sync::Arc;

use ndarray::{Array2, Array3, Axis as Dimension, s};

use super::field::{Field, MOST_TERMS};
use super::shares::MOST_HEADS;
use super::{After, Draft, How, Made, right_scores};
use crate::describe::choice;
use crate::fit::{ROOM, least_squares};
use crate::law::Form;
use crate::number::{Measured, Number};

impl How<'_> {
    /// Scores, or probabilities, that are a mixture over heads.
    pub(super) fn mixed_heads(&mut self, field: &Field) {
        let heads = self.own.shape()[0];
        if !(2..=MOST_HEADS).contains(&heads) {
            return;
        }
        let scores = |head: usize| {
            if !self.heads.has[head] {
                return Some(one_of(head, heads));
            }
            let parts: Vec<Array3<f64>> =
                (0..heads).map(|other| self.right.scores.slice(s![other..=other, .., ..]).to_owned()).collect();
            coefficients_of_head(field, head, &parts)
        };
        let noise = self.noise();
        let right = super::softmax(&self.right.scores, &self.right.sees, &self.right.beside);
        let flat =
            |x: &Array3<f64>, head: usize| x.index_axis(Dimension(0), head).iter().copied().collect::<Vec<f64>>();
        let columns: Vec<Vec<f64>> = (0..heads).map(|head| flat(&right, head)).collect();
        let views: Vec<&[f64]> = columns.iter().map(Vec::as_slice).collect();
        let probs = |head: usize| {
            if !self.heads.has[head] {
                return Some(one_of(head, heads));
            }
            least_squares(&views, &flat(self.own, head), noise)
                .filter(|fit| fit.left <= ROOM * noise)
                .map(|fit| fit.coefficients)
        };
        let mixed_by = |of: &dyn Fn(usize) -> Option<Vec<Measured>>| {
            mixture(&(0..heads).map(of).collect::<Option<Vec<_>>>()?, "head")
        };
        let (of_scores, of_probs) = (mixed_by(&scores), mixed_by(&probs));
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
        let (q, k) = (&self.right.q, &self.right.k);
        let (heads, key_heads) = (q.shape()[1], k.shape()[1]);
        if !(2..=MOST_HEADS).contains(&key_heads) || heads > MOST_HEADS {
            return;
        }
        let of_head = |head: usize| {
            if !self.heads.has[head] {
                return Some(one_of(self.right.key_head[head], key_heads));
            }
            let scale = self.right.scale[head];
            let part = |g: usize| {
                let of = q.slice(s![.., head, ..]).dot(&k.slice(s![.., g, ..]).t()) * scale;
                of.insert_axis(Dimension(0))
            };
            coefficients_of_head(field, head, &(0..key_heads).map(part).collect::<Vec<_>>())
        };
        let Some(all) = (0..heads).map(of_head).collect::<Option<Vec<_>>>() else { return };
        // All heads of a group have one mixture.
        let group = heads.div_ceil(key_heads);
        let of_group: Vec<Vec<Measured>> = (0..key_heads).filter_map(|g| all.get(g * group).cloned()).collect();
        let is_same = |(h, of): (usize, &Vec<Measured>)| {
            of.iter().zip(&all[h / group * group]).all(|(m, first)| m.may_be(first.number().value))
        };
        if of_group.len() != key_heads || !all.iter().enumerate().all(is_same) {
            return;
        }
        let Some((words, bits, by)) = mixture(&of_group, "key head") else { return };
        let made: Made = Arc::new(move |_, _, right| {
            let k = mixed(&right.k.view().permuted_axes([1, 0, 2]).as_standard_layout().into_owned(), &by)?;
            super::scores::scaled(&right.q, &k.permuted_axes([1, 0, 2]), right)
        });
        self.offer(Draft::new(Form::ScoreSource, format!("keys are {words}"), bits), made, None, true);
    }

    /// Which block of the key's dimensions meets each block of the query's.
    pub(super) fn blocks_of_dimensions(&mut self, field: &Field) {
        let (q, k) = (&self.right.q, &self.right.k);
        let d = q.shape()[2];
        for blocks in
            [2usize, 4, 8].into_iter().filter(|blocks| d.is_multiple_of(*blocks) && blocks * blocks <= MOST_TERMS)
        {
            let width = d / blocks;
            let of = |x: &Array3<f64>, at: usize| x.slice(s![.., .., at * width..(at + 1) * width]).to_owned();
            let (queries, keys): (Vec<_>, Vec<_>) = (0..blocks).map(|at| (of(q, at), of(k, at))).unzip();
            let part = |at: usize| super::scores::scaled(&queries[at / blocks], &keys[at % blocks], self.right);
            let Some(parts) = (0..blocks * blocks).map(part).collect::<Option<Vec<_>>>() else { return };
            let Some(found) = field.coefficients(&field.logs, &parts) else { continue };
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
            let made: Made = Arc::new(move |_, _, right| {
                let (q, k) = (&right.q, &right.k);
                (q.shape()[2] == width * blocks).then_some(())?;
                let mut scores = Array3::zeros(right.scores.dim());
                let part = |x: &Array3<f64>, at: usize| x.slice(s![.., .., at * width..(at + 1) * width]).to_owned();
                for ((a, b), by) in values.indexed_iter().filter(|(_, by)| **by != 0.0) {
                    scores.scaled_add(*by, &super::scores::scaled(&part(q, a), &part(k, b), right)?);
                }
                Some(scores)
            });
            if self.offer(Draft::new(Form::ScoreSource, words.join(", "), bits), made, None, true) {
                return;
            }
        }
    }
}

/// How often each of these parts is counted in a head's logarithms.
fn coefficients_of_head(field: &Field, head: usize, parts: &[Array3<f64>]) -> Option<Vec<Measured>> {
    let of = field.of_head(head);
    of.coefficients(&of.logs, parts)
}

/// Pairs of blocks of dimensions that may meet.
const MOST_BLOCKS: usize = 12;

/// The coefficients of one of so many alone.
fn one_of(which: usize, count: usize) -> Vec<Measured> {
    (0..count).map(|other| Measured::new(f64::from(u8::from(other == which)), 0.0)).collect()
}

/// How heads are mixed: the same number for its own and for all others of its group, in words.
fn mixture(all: &[Vec<Measured>], name: &str) -> Option<(String, f64, Array2<f64>)> {
    let heads = all.len();
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
        let of = if group == heads { format!("all {name}s") } else { format!("its {group} neighbouring {name}s") };
        let is_mean = |n: &Number| (n.value - 1.0 / group as f64).abs() < 1e-6;
        let words = match is_mean(&own) && is_mean(&other) {
            true => format!("the mean of {of}"),
            false => format!("{} times its own and {} times those of each other of {of}", own.words, other.words),
        };
        return Some((words, 8.0 + own.bits + other.bits, by));
    }
    so_far(all, name).or_else(|| listed(all, name))
}

/// Heads that are the sum of those so far: a sum that is not cleared, over all heads or from the first of a group on; or of those from its own on.
fn so_far(all: &[Vec<Measured>], name: &str) -> Option<(String, f64, Array2<f64>)> {
    let heads = all.len();
    let groups = (2..=heads).rev().filter(|group| heads.is_multiple_of(*group));
    for (group, is_before) in groups.flat_map(|group| [(group, true), (group, false)]) {
        let is_in = |h: usize, o: usize| h / group == o / group && if is_before { o <= h } else { o >= h };
        let by = Array2::from_shape_fn((heads, heads), |(h, o)| f64::from(u8::from(is_in(h, o))));
        if by.indexed_iter().all(|((h, o), value)| all[h][o].may_be(*value)) {
            let of = if group == heads { String::new() } else { format!(" of its group of {group}") };
            let words = match is_before {
                true => format!("the sum of those of all {name}s{of} up to its own"),
                false => format!("the sum of those of all {name}s{of} from its own on"),
            };
            return Some((words, 9.0 + choice(group), by));
        }
    }
    None
}

/// Heads that are sums of others, each named, where no head has more than a few.
fn listed(all: &[Vec<Measured>], name: &str) -> Option<(String, f64, Array2<f64>)> {
    let heads = all.len();
    let (mut by, mut bits, mut words) = (Array2::zeros((heads, heads)), 4.0, Vec::new());
    for (head, of) in all.iter().enumerate() {
        let parts: Vec<(usize, Number)> =
            of.iter().enumerate().filter(|(_, m)| !m.may_be(0.0)).map(|(other, m)| (other, m.number())).collect();
        if parts.is_empty() || parts.len() > MOST_LISTED {
            return None;
        }
        let said = |(other, number): &(usize, Number)| match number.value == 1.0 {
            true => format!("those of {name} {other}"),
            false => format!("{} times those of {name} {other}", number.words),
        };
        words.push(format!("in {name} {head} {}", parts.iter().map(said).collect::<Vec<_>>().join(" and ")));
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

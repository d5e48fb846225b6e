//! Rows that do not sum to what they should: what probabilities are divided by in place of the sum of the exponentials of their row.

use std::sync::Arc;

use ndarray::{Array2, Array3, Axis as Dimension, s};

use super::shares::MOST_HEADS;
use super::{After, Draft, How, LOG_ROOM, right_scores, rows_of, softmax};
use crate::case::Axis;
use crate::describe::table::describe as describe_table;
use crate::describe::{choice, nth};
use crate::law::Form;
use crate::number::{Measured, SURE};

/// The exponentials of scores, or of the scores less the largest of their row, and their sums.
struct Sums<'s> {
    scores: &'s Array3<f64>,
    sees: &'s Array3<bool>,
    less_most: bool,
    /// `[H,T]`: over all that each query sees.
    all: Array2<f64>,
}

impl Sums<'_> {
    fn of<'s>(scores: &'s Array3<f64>, sees: &'s Array3<bool>, less_most: bool) -> Sums<'s> {
        let (heads, rows, _) = scores.dim();
        let mut sums = Sums { scores, sees, less_most, all: Array2::zeros((0, 0)) };
        sums.all = Array2::from_shape_fn((heads, rows), |(head, row)| sums.over(head, row, 1.0, &|_| true));
        sums
    }

    /// The sum of these powers of a query's exponentials, over those of its keys for which `is` holds.
    fn over(&self, head: usize, row: usize, power: f64, is: &dyn Fn(usize) -> bool) -> f64 {
        let (scores, sees) = (self.scores.slice(s![head, row, ..]), self.sees.slice(s![head, row, ..]));
        let seen = || (0..scores.len()).filter(|key| sees[*key]);
        let most = seen().map(|key| scores[key] * power).fold(f64::NEG_INFINITY, f64::max);
        let less = if self.less_most { most } else { 0.0 };
        seen().filter(|key| is(*key)).map(|key| (scores[key] * power - less).exp()).sum()
    }
}

/// What a head's query is divided by in place of its sum; `None` where there is no such number.
type Divisor = Arc<dyn Fn(&Sums<'_>, usize, usize) -> Option<f64> + Send + Sync>;
/// Divisors in words, with their prices.
type Divisors = Vec<(String, f64, Divisor)>;

/// Sums over some of the keys that a query sees.
fn over_keys(rows: usize, keys: usize) -> Divisors {
    let mut all: Divisors = Vec::new();
    let mut add = |words: String, bits: f64, is: fn(usize, usize, usize) -> bool, n: usize| {
        all.push((words, bits, Arc::new(move |sums, h, t| Some(sums.over(h, t, 1.0, &|key| is(t, key, n))))));
    };
    for n in 1..keys.min(257) {
        let bits = 8.0 + choice(n);
        add(format!("the first {n} keys"), bits, |_, s, n| s < n, n);
        add(format!("the keys from {n} on"), bits, |_, s, n| s >= n, n);
        if n > 1 {
            add(format!("the query's own block of {n} keys"), bits, |t, s, n| s / n == t / n, n);
            add(format!("every {} key", nth(n)), bits, |_, s, n| s % n == 0, n);
            let words = format!("the blocks of {n} keys before the query's own, and its own key");
            add(words, bits, |t, s, n| s / n < t / n || s == t, n);
            let words = format!("the query's own block of {n} keys and the first one");
            add(words, bits, |t, s, n| s / n == t / n || s < n, n);
            add(format!("whole blocks of {n} keys alone"), bits, |t, s, n| s < (t + 1) / n * n, n);
        }
        if n < rows {
            add(format!("the last {n} keys of each query"), bits, |t, s, n| s + n > t && s <= t, n);
        }
    }
    add("all keys but the query's own".into(), 7.0, |t, s, _| s != t, 0);
    all
}

/// Sums of other rows, of several rows together, and of other powers.
fn of_rows(heads: usize, rows: usize) -> Divisors {
    type Other = fn(usize, usize, [usize; 3]) -> (usize, usize);
    let mut all: Divisors = Vec::new();
    let mut add = |words: String, bits: f64, other: Other, n: usize| {
        all.push((words, bits, Arc::new(move |sums, h, t| sums.all.get(other(h, t, [n, heads, rows])).copied())));
    };
    for head in 0..heads.min(MOST_HEADS) {
        add(format!("head {head}"), 8.0, |_, t, [head, ..]| (head, t), head);
    }
    add("the query before".into(), 6.0, |h, t, _| (h, t.saturating_sub(1)), 0);
    add("the next query".into(), 6.0, |h, t, [.., rows]| (h, (t + 1).min(rows - 1)), 0);
    add("the first query".into(), 6.0, |h, _, _| (h, 0), 0);
    add("the last query".into(), 6.0, |h, _, [.., rows]| (h, rows - 1), 0);
    add("the head before".into(), 7.0, |h, t, [_, heads, _]| ((h + heads - 1) % heads, t), 0);
    add("the next head".into(), 7.0, |h, t, [_, heads, _]| ((h + 1) % heads, t), 0);
    add("the other head of its pair".into(), 7.0, |h, t, [_, heads, _]| ((h ^ 1).min(heads - 1), t), 0);
    for block in [2usize, 3, 4, 8, 16, 32] {
        let bits = 7.0 + choice(block);
        add(format!("the first of its {block} queries"), bits, |h, t, [n, ..]| (h, t / n * n), block);
        let last: Other = |h, t, [n, _, rows]| (h, (t / n * n + n - 1).min(rows - 1));
        add(format!("the last of its {block} queries"), bits, last, block);
        add(format!("the first of its {block} heads"), bits, |h, t, [n, ..]| (h / n * n, t), block);
    }
    let groups = [2, 4, 8, 16, 32].into_iter().filter(|group| *group < heads).chain([heads]);
    for group in groups.filter(|group| *group > 1) {
        let of: Divisor = Arc::new(move |sums, h, t| {
            let heads = h / group * group..(h / group * group + group).min(sums.all.nrows());
            heads.map(|head| sums.all.get([head, t]).copied()).sum()
        });
        all.push((format!("all of its {group} heads together"), 8.0, of));
    }
    let queries: Divisor = Arc::new(|sums, h, t| (0..=t).map(|t| sums.all.get([h, t]).copied()).sum());
    all.push(("all queries up to its own together: the sum is not cleared".into(), 8.0, queries));
    let heads: Divisor = Arc::new(|sums, h, t| (0..=h).map(|h| sums.all.get([h, t]).copied()).sum());
    all.push(("all heads up to its own together: the sum is not cleared".into(), 8.0, heads));
    for (base, power) in [("2", std::f64::consts::LN_2), ("10", std::f64::consts::LN_10)] {
        let of: Divisor = Arc::new(move |sums, h, t| Some(sums.over(h, t, power, &|_| true)));
        all.push((format!("the same powers of {base}"), 8.0, of));
    }
    all
}

impl How<'_> {
    /// A law of another divisor, where it gives the first place's numbers.
    fn offer_divisor(&mut self, draft: Draft, less_most: bool, divisor: Divisor) {
        let after: After = Arc::new(move |right, mut probs| {
            let sees = probs.mapv(|p| p > 0.0);
            let sums = Sums::of(&right.scores, &sees, less_most);
            for (head, row) in rows_of(&probs).filter(|at| sums.all[*at] > 0.0) {
                let by = sums.all[[head, row]] / divisor(&sums, head, row)?;
                probs.slice_mut(s![head, row, ..]).mapv_inplace(|p| p * by);
            }
            Some(probs)
        });
        self.offer(draft, right_scores(), Some(after), true);
    }

    /// Rows that do not sum to what they should.
    pub(super) fn of_denominators(&mut self) {
        let Some(factors) = self.factors_of_rows().filter(|factors| !factors.iter().all(|m| m.may_be(1.0))) else {
            return;
        };
        let (heads, rows, keys) = self.own.dim();
        let along = |all: &Array2<Measured>, axis: usize| -> Vec<Measured> {
            all.axis_iter(Dimension(axis)).map(|slice| Measured::mean(slice.iter().copied())).collect()
        };
        for (axis, name) in [(0, Axis::Head), (1, Axis::Query)] {
            let table = describe_table(&along(&factors, axis), name, Some(1.0), self.case.tokens_of(name));
            let Some(table) = table else { continue };
            let (words, values) = (table.words, table.values);
            let said = format!("probabilities are {words} times the right ones");
            let draft = Draft::new(Form::Denominator, said, table.bits + 4.0).with("factor", words);
            let of: Divisor = Arc::new(move |sums, h, t| Some(sums.all[[h, t]] / values.get([h, t][axis])?));
            self.offer_divisor(draft, true, of);
        }
        let is_first = self.laws.is_empty();
        let (right, sees) = (self.right, self.masks.sees.clone());
        for (called, less_most) in [("exp(score)", false), ("exp(score - largest)", true)] {
            let sums = Sums::of(&right.scores, &sees, less_most);
            let fits = |of: &Divisor| {
                let is = |((h, t), m): ((usize, usize), &Measured)| {
                    of(&sums, h, t).is_some_and(|other| m.may_be(sums.all[[h, t]] / other))
                };
                factors.indexed_iter().all(is)
            };
            // Over some of the keys it is the same sum with the largest taken off and without.
            if is_first && less_most {
                let case = self.case;
                let found = over_keys(rows, keys).into_iter().find(|(.., of)| case.has_time() && fits(of));
                if let Some((words, bits, of)) = found {
                    let said = format!("probabilities are divided by the sum over {words}");
                    self.offer_divisor(Draft::new(Form::Denominator, said, bits), less_most, of);
                }
            }
            if is_first {
                self.bounded_denominators(&factors, &sums, called);
            }
            for (words, bits, of) in of_rows(heads, rows).into_iter().filter(|(.., of)| fits(of)) {
                let said = format!("probabilities are {called}, divided by the sum of {words}");
                self.offer_divisor(Draft::new(Form::Denominator, said, bits), less_most, of);
            }
            // A term beside the exponentials.
            let extra = ndarray::Zip::from(&sums.all).and(&factors).map_collect(|sum, m| match m.is_known() {
                true => Measured::new(sum / m.value - sum, sum * m.error / m.value.powi(2)),
                false => Measured::UNKNOWN,
            });
            for (axis, name) in [(0, Axis::Head), (1, Axis::Query)] {
                let table = describe_table(&along(&extra, axis), name, Some(0.0), self.case.tokens_of(name));
                let Some(table) = table else { continue };
                let values = table.values;
                if !extra.indexed_iter().all(|((head, row), m)| m.may_be(values[[head, row][axis]])) {
                    continue;
                }
                let said = format!("probabilities are divided by the sum of {called} plus {}", table.words);
                let draft = Draft::new(Form::Denominator, said, table.bits + 10.0);
                let of: Divisor = Arc::new(move |sums, h, t| Some(sums.all[[h, t]] + values.get([h, t][axis])?));
                self.offer_divisor(draft.with("beside", table.words).with("of", called), less_most, of);
            }
        }
    }

    /// What each row is multiplied by, of those that may be wrong; `None` where a row is wrong in another way.
    fn factors_of_rows(&self) -> Option<Array2<Measured>> {
        let (heads, rows, _) = self.own.dim();
        let due = softmax(&self.right.scores, &self.masks.sees, &self.right.beside);
        let mut factors = Array2::from_elem((heads, rows), Measured::UNKNOWN);
        for (head, row) in rows_of(self.own).filter(|(head, row)| self.heads.has[*head] && self.queries.has[*row]) {
            let (own, due) = (self.own.slice(s![head, row, ..]).to_vec(), due.slice(s![head, row, ..]).to_vec());
            let fit = crate::fit::factor(&due, &own, self.noise());
            factors[[head, row]] = Some(fit).filter(|fit| fit.left <= LOG_ROOM * self.noise())?.coefficients[0];
        }
        Some(factors)
    }

    /// Denominators that are at most, or at least, a number.
    fn bounded_denominators(&mut self, factors: &Array2<Measured>, sums: &Sums<'_>, called: &str) {
        type Held = fn(f64, f64) -> f64;
        for (word, held) in [("at most", f64::min as Held), ("at least", f64::max)] {
            let moved = factors.indexed_iter().filter(|(_, m)| m.is_known() && !m.may_be(1.0));
            let bound = |(at, m): ((usize, usize), &Measured)| {
                Measured::new(sums.all[at] / m.value, sums.all[at] * m.error / m.value.powi(2))
            };
            let bounds: Vec<Measured> = moved.map(bound).collect();
            let bound = Measured::mean(bounds.iter().copied());
            let is_one = |m: &Measured| (m.value - bound.value).abs() <= SURE * (m.error + bound.error);
            if bounds.len() < 2 || !bounds.iter().all(is_one) {
                continue;
            }
            let number = bound.number();
            let c = number.value;
            let words = format!("probabilities are divided by the sum of {called}, {word} {}", number.words);
            let draft = Draft::new(Form::Denominator, words, 9.0 + number.bits).with("bound", c);
            let of: Divisor = Arc::new(move |sums, h, t| Some(held(sums.all[[h, t]], c)));
            self.offer_divisor(draft, sums.less_most, of);
        }
    }
}

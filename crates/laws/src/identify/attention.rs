//! Probabilities of keys: which keys are seen, what the scores are, and what they are divided by. The logarithm of a probability is a score, but for one number
//! in each row.

mod rows;
mod shares;
pub(super) mod sources;

use std::sync::Arc;

use ndarray::{Array1, Array2, Array3, ArrayD, Axis as Dimension, Ix3, s};

use crate::case::{Axis, Case, Place};
use crate::describe::function::fitting;
use crate::describe::set::{Set, describe as describe_set};
use crate::describe::table::{bits_of, describe as describe_table};
use crate::describe::{mask, source};
use crate::fit::{Fit, least_squares};
use crate::identify::after::Offers;
use crate::law::{Form, Law, Support};
use crate::number::{Measured, SURE, between};

/// Probabilities below this share of their row may have been rounded to nothing.
const UNDERFLOW: f64 = 1e-25;

/// What is right at a place, taken apart.
pub(super) struct Right {
    /// `[H,T,S]`: the score of every pair, seen or not.
    pub(super) scores: Array3<f64>,
    /// `[H,T,S]`: which keys are seen.
    pub(super) sees: Array3<bool>,
    /// `[H,T]`: what the denominator has beside the seen keys (a sink).
    beside: Array2<f64>,
    scale: Vec<f64>,
    /// Which key head answers each head.
    key_head: Vec<usize>,
}

pub(super) fn cube(x: &ArrayD<f64>) -> Option<Array3<f64>> {
    x.clone().into_dimensionality::<Ix3>().ok()
}

/// `[H,T,S]`: products of queries and keys.
fn products(q: &Array3<f64>, k: &Array3<f64>, key_head: &[usize]) -> Array3<f64> {
    let (t, heads, keys) = (q.shape()[0], q.shape()[1], k.shape()[0]);
    let mut out = Array3::zeros((heads, t, keys));
    for (head, &key_head) in key_head.iter().enumerate() {
        let (q, k) = (q.slice(s![.., head, ..]), k.slice(s![.., key_head, ..]));
        out.slice_mut(s![head, .., ..]).assign(&q.dot(&k.t()));
    }
    out
}

/// Scores less the mean of their row over what is seen; nothing elsewhere.
fn centred(scores: &Array3<f64>, sees: &Array3<bool>) -> Array3<f64> {
    let mut out = Array3::zeros(scores.dim());
    for (head, row) in rows_of(scores) {
        let (x, sees) = (scores.slice(s![head, row, ..]), sees.slice(s![head, row, ..]));
        let count = sees.iter().filter(|s| **s).count().max(1) as f64;
        let mean = x.iter().zip(&sees).filter(|(_, s)| **s).map(|(x, _)| *x).sum::<f64>() / count;
        for (at, (x, sees)) in x.iter().zip(&sees).enumerate() {
            out[[head, row, at]] = if *sees { x - mean } else { 0.0 };
        }
    }
    out
}

fn rows_of(x: &Array3<f64>) -> impl Iterator<Item = (usize, usize)> + use<> {
    let (heads, rows) = (x.shape()[0], x.shape()[1]);
    (0..heads).flat_map(move |head| (0..rows).map(move |row| (head, row)))
}

/// Probabilities of the seen keys' scores; `beside` is added to each denominator.
fn softmax(scores: &Array3<f64>, sees: &Array3<bool>, beside: &Array2<f64>) -> Array3<f64> {
    let mut out = Array3::zeros(scores.dim());
    for (head, row) in rows_of(scores) {
        let (x, sees) = (scores.slice(s![head, row, ..]), sees.slice(s![head, row, ..]));
        let seen = || x.iter().zip(&sees).filter(|(_, s)| **s).map(|(x, _)| *x);
        let most = seen().fold(f64::NEG_INFINITY, f64::max);
        if !most.is_finite() {
            continue;
        }
        let sum: f64 = seen().map(|x| (x - most).exp()).sum::<f64>() + beside[[head, row]] * (-most).exp();
        for (at, (x, sees)) in x.iter().zip(&sees).enumerate() {
            if *sees {
                out[[head, row, at]] = (x - most).exp() / sum;
            }
        }
    }
    out
}

impl Right {
    pub(super) fn of(place: &Place) -> Option<Right> {
        let [q, k] = &place.inputs[..] else { return None };
        let (q, k, probs) = (cube(q)?, cube(k)?, cube(&place.right)?);
        let (heads, key_heads) = (q.shape()[1], k.shape()[1]);
        if probs.dim() != (heads, q.shape()[0], k.shape()[0]) || key_heads == 0 || q.shape()[2] != k.shape()[2] {
            return None;
        }
        let group = heads.div_ceil(key_heads);
        let key_head: Vec<usize> = (0..heads).map(|h| (h / group).min(key_heads - 1)).collect();
        let mut scores = products(&q, &k, &key_head);
        let sees = probs.mapv(|p| p > 0.0);
        let logs = centred(&probs.mapv(|p| if p > 0.0 { p.ln() } else { 0.0 }), &sees);
        let raw = centred(&scores, &sees);
        let mut scale = Vec::new();
        for head in 0..heads {
            let (l, s) = (logs.index_axis(Dimension(0), head), raw.index_axis(Dimension(0), head));
            let square = s.iter().map(|s| s * s).sum::<f64>();
            let by = l.iter().zip(s).map(|(l, s)| l * s).sum::<f64>() / square.max(f64::MIN_POSITIVE);
            let left: f64 = l.iter().zip(s).map(|(l, s)| (l - by * s).powi(2)).sum();
            // A model that caps its scores, or adds to them, is not one of these.
            let is_factor = left <= 1e-10 * l.iter().map(|l| l * l).sum::<f64>() + 1e-18;
            if !is_factor || by <= 0.0 || by.is_nan() {
                return None;
            }
            scores.index_axis_mut(Dimension(0), head).mapv_inplace(|s| s * by);
            scale.push(by);
        }
        let beside = beside(&scores, &sees, &probs);
        Some(Right { scores, sees, beside, scale, key_head })
    }
}

/// What denominators have beside the seen keys.
fn beside(scores: &Array3<f64>, sees: &Array3<bool>, probs: &Array3<f64>) -> Array2<f64> {
    let mut out = Array2::zeros((scores.shape()[0], scores.shape()[1]));
    for (head, row) in rows_of(scores) {
        let seen = sees.slice(s![head, row, ..]);
        let of = scores.slice(s![head, row, ..]);
        let sum: f64 = of.iter().zip(&seen).filter(|(_, s)| **s).map(|(x, _)| x.exp()).sum();
        let all: f64 = probs.slice(s![head, row, ..]).sum();
        let extra = sum / all - sum;
        out[[head, row]] = if all > 0.0 && extra.is_finite() && extra > 1e-9 * sum { extra } else { 0.0 };
    }
    out
}

/// The laws of probabilities.
pub(crate) fn laws(case: &Case<'_>) -> Vec<Law> {
    let first = case.first();
    let (Some(right), Some(own)) = (Right::of(first), cube(&first.own)) else { return Vec::new() };
    if own.dim() != right.scores.dim() || own.iter().any(|p| *p < 0.0) {
        return Vec::new();
    }
    let wrong = crate::identify::wrong(first);
    let part = |axis: usize, name: Axis| {
        let meant: Vec<Option<bool>> =
            wrong.axis_iter(Dimension(axis)).map(|slice| Some(slice.iter().any(|wrong| *wrong))).collect();
        describe_set(&meant, name, case.tokens_of(name))
    };
    let mut heads = part(0, Axis::Head);
    // The first query sees one key: nothing is told by it.
    let mut meant: Vec<Option<bool>> =
        wrong.axis_iter(Dimension(1)).map(|slice| Some(slice.iter().any(|wrong| *wrong))).collect();
    for (row, meant) in meant.iter_mut().enumerate() {
        if (0..own.shape()[0]).all(|head| right.sees.slice(s![head, row, ..]).iter().filter(|s| **s).count() < 2) {
            *meant = meant.filter(|is| *is);
        }
    }
    let queries = describe_set(&meant, Axis::Query, case.tokens_of(Axis::Query));
    if heads.bits > DEAR {
        heads = Set { words: None, bits: 0.0, has: vec![true; heads.has.len()] };
    }
    let mut laws = Vec::new();
    let every = Set { words: None, bits: 0.0, has: vec![true; queries.has.len()] };
    let some = (!queries.is_all() && queries.bits <= DEAR).then_some(&queries);
    for queries in std::iter::once(&every).chain(some) {
        let mut how =
            How { case, right: &right, own: &own, heads: &heads, queries, masks: Masks::of(&right), laws: Vec::new() };
        how.masks_of_own();
        how.of_scores();
        how.of_denominators();
        how.of_fills();
        laws.extend(how.laws);
    }
    laws
}

/// Parts that are dearer to say are no parts.
const DEAR: f64 = 40.0;

/// Which keys are seen in each head, in words.
#[derive(Clone)]
struct Masks {
    sees: Array3<bool>,
    /// `None` where it is as in the right one.
    words: Option<String>,
    bits: f64,
    parameters: Vec<(&'static str, serde_json::Value)>,
}

impl Masks {
    fn of(right: &Right) -> Masks {
        Masks { sees: right.sees.clone(), words: None, bits: 0.0, parameters: Vec::new() }
    }
}

/// Scores of a place, made of what is right there.
type Made = Arc<dyn Fn(&Case<'_>, usize, &Right) -> Option<Array3<f64>> + Send + Sync>;
/// Probabilities, made of others.
type After = Arc<dyn Fn(&Right, Array3<f64>) -> Option<Array3<f64>> + Send + Sync>;

/// Which keys are kept by their probabilities.
type Keep = Arc<dyn Fn(&Array3<f64>) -> Array3<bool> + Send + Sync>;

struct How<'h> {
    case: &'h Case<'h>,
    right: &'h Right,
    own: &'h Array3<f64>,
    heads: &'h Set,
    queries: &'h Set,
    masks: Masks,
    laws: Vec<Law>,
}

/// A law before it has its words for where.
struct Draft {
    form: Form,
    words: String,
    bits: f64,
    parameters: Vec<(&'static str, serde_json::Value)>,
    is_table: bool,
}

impl Draft {
    fn new(form: Form, words: String, bits: f64) -> Draft {
        Draft { form, words, bits, parameters: Vec::new(), is_table: false }
    }

    fn with(mut self, name: &'static str, value: impl Into<serde_json::Value>) -> Draft {
        self.parameters.push((name, value.into()));
        self
    }
}

impl How<'_> {
    fn noise(&self) -> f64 {
        self.case.first().noise()
    }

    fn wrong_heads(&self) -> Vec<usize> {
        (0..self.heads.has.len()).filter(|&h| self.heads.has[h]).collect()
    }

    /// Which keys the candidate's heads see.
    fn masks_of_own(&mut self) {
        let (heads, rows, keys) = self.own.dim();
        let mut seen: Vec<Array2<Option<bool>>> = Vec::new();
        for head in 0..heads {
            let due = |row: usize, key: usize| {
                let scores = self.right.scores.slice(s![head, row, ..]);
                let most = (0..keys)
                    .filter(|&s| self.own[[head, row, s]] > 0.0)
                    .map(|s| scores[s])
                    .fold(f64::NEG_INFINITY, f64::max);
                (scores[key] - most).exp()
            };
            seen.push(Array2::from_shape_fn((rows, keys), |(row, key)| {
                let p = self.own[[head, row, key]];
                if !self.queries.has[row] {
                    None
                } else if p > TINY {
                    Some(true)
                } else {
                    // Next to nothing: hidden, unless so little was due.
                    (due(row, key) > UNDERFLOW).then_some(false)
                }
            }));
        }
        let is_right = |head: usize| {
            seen[head]
                .indexed_iter()
                .all(|((row, key), is)| is.is_none_or(|is| is == self.right.sees[[head, row, key]]))
        };
        let other: Vec<usize> = self.wrong_heads().into_iter().filter(|&head| !is_right(head)).collect();
        if other.is_empty() {
            return;
        }
        let mut groups: Vec<(Vec<usize>, mask::Mask)> = Vec::new();
        for head in other {
            let fits = |mask: &mask::Mask| {
                mask.sees.indexed_iter().all(|(at, is)| seen[head][at].is_none_or(|sees| sees == *is))
            };
            match groups.iter_mut().find(|(_, mask)| fits(mask)) {
                Some((of, _)) => of.push(head),
                None => match mask::describe(&seen[head]) {
                    Some(mask) => groups.push((vec![head], mask)),
                    None => return self.masks_of_size(),
                },
            }
        }
        let right = mask::describe(&self.right.sees.index_axis(Dimension(0), groups[0].0[0]).mapv(Some));
        let model = right.map_or_else(String::new, |right| format!(" (right: {})", right.words));
        let (mut words, mut masks) = (Vec::new(), Masks::of(self.right));
        let one = groups.len() == 1;
        for (of, mask) in &groups {
            let meant: Vec<Option<bool>> = (0..heads).map(|h| Some(of.contains(&h))).collect();
            let set = describe_set(&meant, Axis::Head, None);
            masks.bits += mask.bits + if one { 0.0 } else { set.bits };
            words.push(match set.words.filter(|_| !one) {
                Some(on) => format!("{} for {on}", mask.words),
                None => mask.words.clone(),
            });
            masks.parameters.extend(mask.parameters.iter().cloned());
            for &head in of {
                masks.sees.index_axis_mut(Dimension(0), head).assign(&mask.sees);
            }
        }
        masks.words = Some(format!("each query sees {}{model}", words.join("; ")));
        self.masks = masks;
    }

    /// Keys that are dropped because their probability is small.
    fn masks_of_size(&mut self) {
        let (heads, rows, keys) = self.own.dim();
        let right = softmax(&self.right.scores, &self.right.sees, &self.right.beside);
        let wrong = self.wrong_heads();
        let kept = |head: usize, row: usize| (0..keys).filter(|&s| self.own[[head, row, s]] > TINY).count();
        let most =
            wrong.iter().flat_map(|&h| (0..rows).map(move |t| (h, t))).map(|(h, t)| kept(h, t)).max().unwrap_or(0);
        let largest = move |probs: &Array3<f64>, most: usize| {
            let mut sees = Array3::from_elem(probs.dim(), false);
            for (head, row) in rows_of(probs) {
                let mut order: Vec<usize> = (0..probs.shape()[2]).filter(|&s| probs[[head, row, s]] > 0.0).collect();
                order.sort_by(|&a, &b| probs[[head, row, b]].total_cmp(&probs[[head, row, a]]));
                order.iter().take(most).for_each(|&s| sees[[head, row, s]] = true);
            }
            sees
        };
        let top = largest(&right, most);
        let agrees = |sees: &Array3<bool>| {
            wrong.iter().all(|&h| (0..rows).all(|t| (0..keys).all(|s| (self.own[[h, t, s]] > TINY) == sees[[h, t, s]])))
        };
        if agrees(&top) && heads > 0 {
            let keeps = format!("each query keeps its {most} likeliest keys");
            self.kept(&keeps, 10.0, ("top_k", most.into()), Arc::new(move |probs| largest(probs, most)));
            return;
        }
        // Or those that are likely enough, of their own or beside the likeliest.
        for is_relative in [false, true] {
            let beside = move |probs: &Array3<f64>, head: usize, row: usize| {
                if is_relative { probs.slice(s![head, row, ..]).iter().copied().fold(0.0, f64::max) } else { 1.0 }
            };
            let (mut dropped, mut kept) = (0.0f64, f64::INFINITY);
            for &head in &wrong {
                for row in 0..rows {
                    let by = beside(&right, head, row);
                    for key in (0..keys).filter(|&key| right[[head, row, key]] > 0.0) {
                        let share = right[[head, row, key]] / by;
                        match self.own[[head, row, key]] > TINY {
                            true => kept = kept.min(share),
                            false => dropped = dropped.max(share),
                        }
                    }
                }
            }
            if dropped <= 0.0 || dropped >= kept {
                continue;
            }
            let least = between(dropped, kept);
            let of = if is_relative { " of the likeliest key's" } else { "" };
            let keeps = format!("each query keeps keys of a probability of at least {least}{of}");
            let keep: Keep = Arc::new(move |probs| {
                let mut sees = Array3::from_elem(probs.dim(), false);
                for (head, row) in rows_of(probs) {
                    let by = beside(probs, head, row);
                    (0..probs.shape()[2]).for_each(|s| sees[[head, row, s]] = probs[[head, row, s]] >= least * by);
                }
                sees
            });
            self.kept(&keeps, 26.0, ("threshold", least.into()), keep);
        }
    }

    /// Laws of keys that are kept by their probability, which is divided by the sum again or not.
    fn kept(&mut self, keeps: &str, bits: f64, parameter: (&'static str, serde_json::Value), keep: Keep) {
        for is_divided in [true, false] {
            let keep = keep.clone();
            let after: After = Arc::new(move |_, probs| {
                let sees = keep(&probs);
                let mut out = ndarray::Zip::from(&probs).and(&sees).map_collect(|p, sees| if *sees { *p } else { 0.0 });
                for (head, row) in rows_of(&out).filter(|_| is_divided) {
                    let sum: f64 = out.slice(s![head, row, ..]).sum();
                    out.slice_mut(s![head, row, ..]).mapv_inplace(|p| if sum > 0.0 { p / sum } else { p });
                }
                Some(out)
            });
            let end = if is_divided { "" } else { ", without dividing by their sum again" };
            let draft = Draft::new(Form::Mask, format!("{keeps}{end}"), bits).with(parameter.0, parameter.1.clone());
            self.offer(draft, right_scores(), Some(after), false);
        }
    }

    /// Takes up a law, where it gives the first place's numbers.
    fn offer(&mut self, draft: Draft, made: Made, after: Option<After>, with_mask: bool) -> bool {
        let masks = if with_mask { self.masks.clone() } else { Masks::of(self.right) };
        let (heads, queries) = (self.heads.has.clone(), self.queries.has.clone());
        let mask = with_mask.then(|| (masks.words.is_some(), masks.sees.clone()));
        let predict = move |case: &Case<'_>, at: usize| {
            let place = &case.places[at];
            let right = Right::of(place)?;
            let scores = made(case, at, &right)?;
            let sees = match &mask {
                Some((true, sees)) => sees,
                _ => &right.sees,
            };
            if sees.dim() != scores.dim() {
                return None;
            }
            let mut probs = softmax(&scores, sees, &right.beside);
            if let Some(after) = &after {
                probs = after(&right, probs)?;
            }
            let mut out = cube(&place.right)?;
            if out.dim() != probs.dim() || heads.len() != out.shape()[0] || queries.len() != out.shape()[1] {
                return None;
            }
            for (head, row) in rows_of(&probs).filter(|(head, row)| heads[*head] && queries[*row]) {
                out.slice_mut(s![head, row, ..]).assign(&probs.slice(s![head, row, ..]));
            }
            Some(out.into_dyn())
        };
        let mut support = Support::default();
        support.add(Axis::Head, self.heads.words.clone());
        support.add(Axis::Query, self.queries.words.clone());
        let mask_words = masks.words.as_deref().unwrap_or_default();
        let words = match (draft.words.is_empty(), mask_words.is_empty()) {
            (true, _) => mask_words.to_owned(),
            (false, true) => draft.words,
            (false, false) => format!("{}; {mask_words}", draft.words),
        };
        let words = format!("{words}{}", support.said());
        let bits = draft.bits + masks.bits + self.heads.bits + self.queries.bits;
        let mut law = Law::new(draft.form, words, bits, predict).on(support);
        law.parameters = draft.parameters;
        law.parameters.extend(masks.parameters.iter().cloned());
        if with_mask && self.masks.words.is_some() {
            law.data = Some(drawn(&self.masks.sees));
        }
        if draft.is_table {
            law = law.table();
        }
        let found = law
            .predicted(self.case, self.case.fitted)
            .and_then(|predicted| Offers::of(self.case).behind(&predicted, law));
        let near = found.is_some();
        self.laws.extend(found);
        near
    }

    /// What the scores are.
    fn of_scores(&mut self) {
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
        self.products(&field);
        if self.laws.is_empty() {
            self.sources(&field);
        }
        if self.laws.is_empty() {
            self.rows_otherwise();
        }
        if self.laws.is_empty() && self.case.has_time() {
            self.shares(&field);
            self.mixed_heads(&field);
        }
    }

    /// A factor of the scores: of all, of each head, of each query.
    fn scales(&mut self, field: &Field, wrong: &[usize]) {
        let model = self.right.scale[wrong[0]];
        let (heads, rows, _) = self.own.dim();
        let all = field.slope(&|_, _| true);
        for by in [all.number(), all.plain()] {
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
        let of_head: Vec<Measured> = (0..heads)
            .map(|h| if wrong.contains(&h) { field.slope(&|head, _| head == h) } else { Measured::UNKNOWN })
            .collect();
        if let Some(table) = describe_table(&of_head, Axis::Head, Some(1.0), None)
            .filter(|table| table.number.is_none() || table.part.is_some())
        {
            let (words, values) = (table.words, table.values);
            let draft =
                Draft::new(Form::ScoreScale, format!("scores are {words} times the right ones"), table.bits + 3.0);
            self.offer(
                draft.with("factor", words).with("by", "head"),
                times(move |h, _| values.get(h).copied().unwrap_or(1.0)),
                None,
                true,
            );
        } else if wrong.len() > 1 {
            let values: Vec<f64> = of_head.iter().map(|m| if m.is_known() { m.value } else { 1.0 }).collect();
            let mut draft = Draft::new(
                Form::ScoreScale,
                "scores are a factor for each head times the right ones".into(),
                bits_of(&of_head),
            );
            draft = draft.with("factors", values.clone());
            draft.is_table = true;
            self.offer(draft, times(move |h, _| values.get(h).copied().unwrap_or(1.0)), None, true);
        }
        let of_query: Vec<Measured> = (0..rows).map(|t| field.slope(&|_, row| row == t)).collect();
        let tokens = self.case.tokens_of(Axis::Query);
        if let Some(table) = describe_table(&of_query, Axis::Query, Some(1.0), tokens)
            .filter(|table| table.number.is_none() || table.part.is_some())
        {
            let (words, values) = (table.words, table.values);
            let draft =
                Draft::new(Form::ScoreScale, format!("scores are {words} times the right ones"), table.bits + 3.0);
            self.offer(
                draft.with("factor", words).with("by", "query"),
                times(move |_, t| values.get(t).copied().unwrap_or(1.0)),
                None,
                true,
            );
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
        let first = self.case.first();
        let (Some(q), Some(k)) = (cube(&first.inputs[0]), cube(&first.inputs[1])) else { return };
        let (heads, key_heads) = (q.shape()[1], k.shape()[1]);
        if heads * key_heads * heads > MOST_HEADS {
            return;
        }
        let (mut asks, mut answers) = (vec![None; heads], vec![None; heads]);
        let mut by = vec![Measured::UNKNOWN; heads];
        for head in 0..heads {
            if !wrong.contains(&head) {
                (asks[head], answers[head]) = (Some(head), Some(self.right.key_head[head]));
                continue;
            }
            let mut best: Option<(f64, usize, usize, Measured)> = None;
            for other in 0..heads {
                for key in 0..key_heads {
                    let product =
                        q.slice(s![.., other, ..]).dot(&k.slice(s![.., key, ..]).t()) * self.right.scale[head];
                    let (left, slope) = field.against(head, &product);
                    // Of two that are as near, the right one.
                    let is_right = other == head || key == self.right.key_head[head];
                    let left = left + if is_right { 0.0 } else { 1e-9 };
                    if best.as_ref().is_none_or(|best| left < best.0) {
                        best = Some((left, other, key, slope));
                    }
                }
            }
            let Some((left, other, key, slope)) = best.filter(|best| best.0 <= LOG_ROOM * field.noise.max(1e-9)) else {
                return;
            };
            let _ = left;
            (asks[head], answers[head], by[head]) = (Some(other), Some(key), slope);
        }
        let group = heads.div_ceil(key_heads);
        let of_keys = key_heads_in_words(&answers, heads, key_heads, group);
        let of_queries = source::describe(&asks, heads, Axis::Head);
        let Some(table) = describe_table(&by, Axis::Head, Some(1.0), None) else { return };
        if of_queries.is_itself && answers.iter().enumerate().all(|(h, a)| *a == Some(self.right.key_head[h])) {
            return;
        }
        let mut words = format!("query head h is answered by key head {}", of_keys.0);
        if !of_queries.is_itself {
            words = format!("{words}; queries are those of {}", of_queries.words);
        }
        if table.words != "1" {
            words = format!("{words}; scores times {}", table.words);
        }
        let bits = of_keys.1 + of_queries.bits + if table.words == "1" { 0.0 } else { table.bits };
        let (asks, values) = (of_queries.from, table.values);
        let answers: Vec<usize> = answers.into_iter().map(|a| a.unwrap_or(0)).collect();
        let made: Made = Arc::new(move |case, at, right| {
            let [q, k] = &case.places[at].inputs[..] else { return None };
            let (q, k) = (cube(q)?.select(Dimension(1), &asks), cube(k)?);
            let mut scores = products(&q, &k, &answers);
            for (head, by) in values.iter().enumerate() {
                scores.index_axis_mut(Dimension(0), head).mapv_inplace(|s| s * by * right.scale[head]);
            }
            Some(scores)
        });
        self.offer(Draft::new(Form::HeadMap, words, bits).with("key_head", of_keys.0), made, None, true);
    }

    /// Other operands of the product.
    fn products(&mut self, field: &Field) {
        let _ = field;
        let transposed: Made = Arc::new(|_, _, right| {
            let (_, rows, keys) = right.scores.dim();
            (rows == keys).then(|| right.scores.clone().permuted_axes([0, 2, 1]).as_standard_layout().into_owned())
        });
        let draft = Draft::new(Form::ScoreSource, "scores are transposed: of query s with key t".into(), 5.0);
        self.offer(draft, transposed, None, true);
        let lengths: Made = Arc::new(|case, at, right| {
            let k = cube(case.places[at].inputs.get(1)?)?;
            Some(Array3::from_shape_fn(right.scores.dim(), |(h, t, s)| {
                let key = k.slice(s![s, right.key_head[h], ..]);
                right.scores[[h, t, s]] - 0.5 * right.scale[h] * key.dot(&key)
            }))
        });
        let words = "scores are minus half the squared distance of query and key, times the right scale";
        self.offer(Draft::new(Form::ScoreSource, words.into(), 7.0), lengths, None, true);
        for (which, called) in [(0, "queries"), (1, "keys")] {
            for (words, bits, of) in other_rows(self.own.shape()[if which == 0 { 1 } else { 2 }]) {
                let moved: Made = Arc::new(move |case, at, right| {
                    let [q, k] = &case.places[at].inputs[..] else { return None };
                    let mut operands = [cube(q)?, cube(k)?];
                    if operands[which].shape()[0] != of.len() {
                        return None;
                    }
                    operands[which] = operands[which].select(Dimension(0), &of);
                    scaled(&operands[0], &operands[1], right)
                });
                self.offer(
                    Draft::new(Form::ScoreSource, format!("{called} of position i are those of {words}"), bits),
                    moved,
                    None,
                    true,
                );
            }
        }
        for (which, called) in [(&[0usize][..], "queries are"), (&[1], "keys are"), (&[0, 1], "queries and keys are")] {
            let unit: Made = Arc::new(move |case, at, right| {
                let [q, k] = &case.places[at].inputs[..] else { return None };
                let mut operands = [cube(q)?, cube(k)?];
                for &at in which {
                    for mut row in operands[at].lanes_mut(Dimension(2)) {
                        let length = row.dot(&row).sqrt();
                        row.mapv_inplace(|x| if length > 0.0 { x / length } else { x });
                    }
                }
                scaled(&operands[0], &operands[1], right)
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
        for (name, tensor) in &self.case.first().around {
            for (which, called) in [(0, "queries"), (1, "keys")] {
                if tensor.shape() != self.case.first().inputs[which].shape() {
                    continue;
                }
                let known = name.clone();
                let made: Made = Arc::new(move |case, at, right| {
                    let place = &case.places[at];
                    let mut operands = [cube(&place.inputs[0])?, cube(&place.inputs[1])?];
                    operands[which] = cube(&place.around.iter().find(|(name, _)| *name == known)?.1)?;
                    scaled(&operands[0], &operands[1], right)
                });
                self.offer(
                    Draft::new(Form::ScoreSource, format!("{called} are {name}"), 8.0).with(called, name.clone()),
                    made,
                    None,
                    true,
                );
            }
        }
    }

    /// Rows that do not sum to what they should.
    fn of_denominators(&mut self) {
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
            let extra = ndarray::Zip::from(&sums).and(&factors).map_collect(|sum, factor| {
                if factor.is_known() {
                    Measured::new(sum / factor.value - sum, sum * factor.error / factor.value.powi(2))
                } else {
                    Measured::UNKNOWN
                }
            });
            let of: Vec<Measured> =
                extra.axis_iter(Dimension(0)).map(|head| Measured::mean(head.iter().copied())).collect();
            let Some(table) = describe_table(&of, Axis::Head, Some(0.0), None) else { continue };
            let values = Array1::from(table.values);
            let words = format!("probabilities are divided by the sum of {called} plus {}", table.words);
            let after: After = Arc::new(move |right, mut probs| {
                for (head, row) in rows_of(&probs) {
                    let seen: Vec<f64> = (0..probs.shape()[2])
                        .filter(|&s| probs[[head, row, s]] > 0.0)
                        .map(|s| right.scores[[head, row, s]])
                        .collect();
                    let most = if less_most { seen.iter().copied().fold(f64::NEG_INFINITY, f64::max) } else { 0.0 };
                    let sum: f64 = seen.iter().map(|x| (x - most).exp()).sum();
                    let extra = *values.get(head)?;
                    probs.slice_mut(s![head, row, ..]).mapv_inplace(|p| p * sum / (sum + extra));
                }
                Some(probs)
            });
            let draft =
                Draft::new(Form::Denominator, words, table.bits + 10.0).with("beside", table.words).with("of", called);
            self.offer(draft, right_scores(), Some(after), true);
        }
    }

    /// Masked scores that are not hidden, but filled with a number.
    fn of_fills(&mut self) {
        let mut all: Vec<Measured> = Vec::new();
        for (head, row) in rows_of(self.own).filter(|(head, row)| self.heads.has[*head] && self.queries.has[*row]) {
            let keys = 0..self.own.shape()[2];
            let (seen, hidden): (Vec<usize>, Vec<usize>) = keys.partition(|&s| self.right.sees[[head, row, s]]);
            let log = |s: usize| self.own[[head, row, s]].ln();
            let known: Vec<usize> = seen.into_iter().filter(|&s| self.own[[head, row, s]] > TINY).collect();
            if known.is_empty() {
                continue;
            }
            let zero =
                known.iter().map(|&s| log(s) - self.right.scores[[head, row, s]]).sum::<f64>() / known.len() as f64;
            all.extend(
                hidden
                    .into_iter()
                    .filter(|&s| self.own[[head, row, s]] > 1e-300)
                    .map(|s| Measured::new(log(s) - zero, 4.0 * self.noise())),
            );
        }
        let fill = Measured::mean(all.iter().copied());
        if all.len() < 2
            || !all
                .iter()
                .all(|m| (m.value - fill.value).abs() <= SURE * (m.error + fill.error) * fill.value.abs().max(1.0))
        {
            return;
        }
        let number = fill.number();
        let c = number.value;
        let after: After = Arc::new(move |right, _| {
            let scores =
                ndarray::Zip::from(&right.scores).and(&right.sees).map_collect(|s, sees| if *sees { *s } else { c });
            Some(softmax(&scores, &Array3::from_elem(scores.dim(), true), &right.beside))
        });
        let words = format!("masked scores are {}, not minus infinity", number.words);
        self.offer(
            Draft::new(Form::MaskFill, words, 4.0 + number.bits).with("fill", c),
            right_scores(),
            Some(after),
            false,
        );
    }
}

/// `[H,T]`: the sum of the exponentials of what each query sees, or of the same less the largest.
fn sums_seen(scores: &Array3<f64>, sees: &Array3<bool>, less_most: bool) -> Array2<f64> {
    let (heads, rows, _) = scores.dim();
    Array2::from_shape_fn((heads, rows), |(head, row)| {
        let (scores, sees) = (scores.slice(s![head, row, ..]), sees.slice(s![head, row, ..]));
        let seen = || scores.iter().zip(&sees).filter(|(_, s)| **s).map(|(x, _)| *x);
        let most = if less_most { seen().fold(f64::NEG_INFINITY, f64::max) } else { 0.0 };
        seen().map(|x| (x - most).exp()).sum::<f64>()
    })
}

/// The same of what is right.
fn sums_of(right: &Right, less_most: bool) -> Array2<f64> {
    sums_seen(&right.scores, &right.sees, less_most)
}

/// Probabilities that are nothing.
const TINY: f64 = 1e-30;
/// Pairs of query and key above which no term for each distance is fitted.
const MOST_PAIRS: usize = 1 << 16;
/// Ways to pair heads that are tried at most.
const MOST_HEADS: usize = 1 << 15;
/// What a function may leave of the logarithms before the proof, as a share.
const NEAR_SCORES: f64 = 1e-6;
/// Errors of rounding's size that logarithms may be left with before the proof.
const LOG_ROOM: f64 = 30.0;

/// A mask to be drawn: of each head, a row of 0 and 1 for each query.
fn drawn(sees: &Array3<bool>) -> serde_json::Value {
    let row = |row: ndarray::ArrayView1<'_, bool>| row.iter().map(|s| if *s { '1' } else { '0' }).collect::<String>();
    let heads: Vec<Vec<String>> =
        sees.outer_iter().map(|head| head.rows().into_iter().map(row).collect::<Vec<_>>()).collect();
    serde_json::json!({"kind": "mask", "sees": heads})
}

fn right_scores() -> Made {
    Arc::new(|_, _, right| Some(right.scores.clone()))
}

fn times(by: impl Fn(usize, usize) -> f64 + Send + Sync + 'static) -> Made {
    Arc::new(move |_, _, right| {
        Some(Array3::from_shape_fn(right.scores.dim(), |(h, t, s)| by(h, t) * right.scores[[h, t, s]]))
    })
}

fn scaled(q: &Array3<f64>, k: &Array3<f64>, right: &Right) -> Option<Array3<f64>> {
    let mut scores = products(q, k, &right.key_head);
    for (head, by) in right.scale.iter().enumerate() {
        scores.index_axis_mut(Dimension(0), head).mapv_inplace(|s| s * by);
    }
    Some(scores)
}

/// Positions that rows may be taken from.
fn other_rows(n: usize) -> Vec<(String, f64, Vec<usize>)> {
    let last = n.saturating_sub(1);
    let mut all: Vec<(String, f64, Vec<usize>)> = vec![
        ("the positions in reverse".into(), 6.0, (0..n).rev().collect()),
        ("the neighbouring position".into(), 6.0, (0..n).map(|i| (i ^ 1).min(last)).collect()),
    ];
    for by in 1..=4usize.min(last) {
        all.push((format!("i-{by} (never before the first)"), 8.0, (0..n).map(|i| i.saturating_sub(by)).collect()));
        all.push((format!("i+{by} (never behind the last)"), 8.0, (0..n).map(|i| (i + by).min(last)).collect()));
        all.push((format!("i-{by}, around the end"), 8.0, (0..n).map(|i| (i + n - by) % n).collect()));
        all.push((format!("i+{by}, around the end"), 8.0, (0..n).map(|i| (i + by) % n).collect()));
    }
    for by in [2usize, 3, 4, 8] {
        all.push((format!("the first of its {by} positions"), 8.0, (0..n).map(|i| i / by * by).collect()));
    }
    all
}

/// Which key head answers, in words.
pub(crate) fn key_heads_in_words(answers: &[Option<usize>], heads: usize, keys: usize, group: usize) -> (String, f64) {
    let of: Vec<usize> = answers.iter().map(|a| a.unwrap_or(0)).collect();
    let is = |f: &dyn Fn(usize) -> usize| of.iter().enumerate().all(|(h, a)| *a == f(h));
    if is(&|h| h / group) {
        return (format!("h div {group}"), 0.0);
    }
    if is(&|h| h % keys) {
        return (format!("h mod {keys} (right: h div {group})"), 5.0);
    }
    if is(&|h| keys - 1 - h / group) {
        return (format!("{} - h div {group} (right: h div {group})", keys - 1), 6.0);
    }
    for by in 1..keys {
        if is(&|h| (h / group + by) % keys) {
            return (format!("(h div {group} + {by}) mod {keys} (right: h div {group})"), 8.0);
        }
    }
    let source = source::describe(answers, keys.max(heads), Axis::Head);
    (source.words, source.bits)
}

/// Logarithms and scores, less their mean in each row, where they count.
struct Field {
    counted: Array3<bool>,
    logs: Array3<f64>,
    scores: Array3<f64>,
    noise: f64,
}

impl Field {
    /// What an own logarithm may be off by rounding.
    fn each(&self) -> f64 {
        let (sum, n) = self
            .logs
            .iter()
            .zip(&self.counted)
            .filter(|(_, c)| **c)
            .fold((0.0, 0.0), |(s, n), (l, _)| (s + l * l, n + 1.0));
        self.noise * (1.0 + (sum / f64::max(n, 1.0)).sqrt())
    }

    /// The factor between scores and logarithms of some rows.
    fn slope(&self, of: &dyn Fn(usize, usize) -> bool) -> Measured {
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
    fn left(&self, scores: &Array3<f64>) -> f64 {
        let other = centred(scores, &self.counted);
        let (mut left, mut all) = (0.0, 0.0);
        ndarray::Zip::from(&other).and(&self.logs).for_each(|s, l| {
            left += (s - l) * (s - l);
            all += l * l;
        });
        (left / f64::max(all, f64::MIN_POSITIVE)).sqrt()
    }

    /// The factor from these scores to the logarithms, and what it leaves as a share.
    fn along(&self, scores: &Array3<f64>) -> (f64, Measured) {
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
    fn against(&self, head: usize, scores: &Array2<f64>) -> (f64, Measured) {
        let one = |x: &Array3<f64>| x.slice(s![head..head + 1, .., ..]).to_owned();
        let counted = self.counted.slice(s![head..head + 1, .., ..]).to_owned();
        let scores = scores.clone().insert_axis(Dimension(0));
        let field = Field { scores: centred(&scores, &counted), logs: one(&self.logs), counted, noise: self.noise };
        let by = field.slope(&|_, _| true);
        (field.left(&(&scores * by.value)), by)
    }

    /// A number for each index of a pair, and the factor of the scores beside it.
    fn by_index(
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
    fn line(&self, head: usize, index: &dyn Fn(usize, usize) -> f64) -> Measured {
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
const MOST_TERMS: usize = 96;

fn one_bool(x: &Array3<bool>, head: usize) -> Array3<bool> {
    x.slice(s![head..head + 1, .., ..]).to_owned()
}

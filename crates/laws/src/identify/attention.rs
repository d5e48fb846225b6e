//! Probabilities of keys: which keys are seen, what the scores are, and what they are divided by. The logarithm of a probability is a score, but for one number
//! in each row.

mod cells;
mod denominators;
mod field;
mod masks;
mod mixtures;
mod rows;
pub(super) mod scores;
mod shares;
pub(super) mod sources;

use std::sync::Arc;

use ndarray::{Array2, Array3, Axis as Dimension, s};

use crate::case::{Axis, Case, Place};
use crate::describe::set::{Set, describe as describe_set};
use crate::identify::after::Offers;
use crate::identify::any_along;
pub(super) use crate::identify::subject::cube;
use crate::law::{Form, Law, Support};

/// Probabilities below this share of their row may have been rounded to nothing.
const UNDERFLOW: f64 = 1e-25;

/// What is right at a place, taken apart.
pub(super) struct Right {
    /// `[T,H,d]` and `[S,K,d]`: queries and keys.
    pub(super) q: Array3<f64>,
    pub(super) k: Array3<f64>,
    /// `[H,T,S]`: the score of every pair, seen or not.
    pub(super) scores: Array3<f64>,
    /// `[H,T,S]`: which keys are seen.
    pub(super) sees: Array3<bool>,
    /// `[H,T]`: what the denominator has beside the seen keys (a sink).
    beside: Array2<f64>,
    /// Of each head, what products are multiplied by.
    pub(super) scale: Vec<f64>,
    /// Which key head answers each head.
    key_head: Vec<usize>,
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
pub(super) fn softmax(scores: &Array3<f64>, sees: &Array3<bool>, beside: &Array2<f64>) -> Array3<f64> {
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
        Some(Right { q, k, scores, sees, beside, scale, key_head })
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
    let mut heads = describe_set(&any_along(&wrong, 0), Axis::Head, None);
    // The first query sees one key: nothing is told by it.
    let mut meant = any_along(&wrong, 1);
    for (row, meant) in meant.iter_mut().enumerate() {
        if (0..own.shape()[0]).all(|head| right.sees.slice(s![head, row, ..]).iter().filter(|s| **s).count() < 2) {
            *meant = meant.filter(|is| *is);
        }
    }
    let queries = describe_set(&meant, Axis::Query, case.tokens_of(Axis::Query));
    if heads.bits > DEAR {
        heads = Set::all(heads.has.len());
    }
    let mut laws = Vec::new();
    let every = Set::all(queries.has.len());
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

    /// Takes up a law, where it gives the first place's numbers.
    fn offer(&mut self, draft: Draft, made: Made, after: Option<After>, with_mask: bool) -> bool {
        // What holds everywhere is no law of a part. What is said of a mask is said of the heads and queries whose mask it is.
        let is_of_mask = self.masks.words.is_some() && (with_mask || draft.form == Form::Mask);
        let everywhere = (Set::all(self.heads.has.len()), Set::all(self.queries.has.len()));
        let here = (self.heads.clone(), self.queries.clone());
        let is_whole = here.0.is_all() && here.1.is_all();
        let mut parts = (is_whole || !is_of_mask).then_some(everywhere).into_iter().chain((!is_whole).then_some(here));
        let found = parts.find_map(|(heads, queries)| {
            let law = self.law_on(&draft, &made, after.as_ref(), with_mask, &heads, &queries);
            let predicted = law.predicted(self.case, self.case.fitted)?;
            Offers::of(self.case).behind(&predicted, law)
        });
        let near = found.is_some();
        self.laws.extend(found);
        near
    }

    /// The law on these heads and queries.
    fn law_on(
        &self,
        draft: &Draft,
        made: &Made,
        after: Option<&After>,
        with_mask: bool,
        on_heads: &Set,
        on_queries: &Set,
    ) -> Law {
        let masks = if with_mask { self.masks.clone() } else { Masks::of(self.right) };
        let (heads, queries) = (on_heads.has.clone(), on_queries.has.clone());
        let (made, after) = (made.clone(), after.cloned());
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
        support.add(Axis::Head, on_heads.words.clone());
        support.add(Axis::Query, on_queries.words.clone());
        let mask_words = masks.words.as_deref().unwrap_or_default();
        let words = match (draft.words.is_empty(), mask_words.is_empty()) {
            (true, _) => mask_words.to_owned(),
            (false, true) => draft.words.clone(),
            (false, false) => format!("{}; {mask_words}", draft.words),
        };
        let words = format!("{words}{}", support.said());
        let bits = draft.bits + masks.bits + on_heads.bits + on_queries.bits;
        let mut law = Law::new(draft.form, words, bits, predict).on(support);
        law.parameters = draft.parameters.clone();
        law.parameters.extend(masks.parameters.iter().cloned());
        if with_mask && self.masks.words.is_some() {
            law.data = Some(masks::drawn(&self.masks.sees));
        }
        if draft.is_table { law.table() } else { law }
    }
}

/// Probabilities that are nothing.
const TINY: f64 = 1e-30;
/// Errors of rounding's size that logarithms may be left with before the proof.
const LOG_ROOM: f64 = 30.0;

fn right_scores() -> Made {
    Arc::new(|_, _, right| Some(right.scores.clone()))
}

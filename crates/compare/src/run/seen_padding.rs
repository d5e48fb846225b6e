//! Finds queries that see keys of padding. Examines scores and probabilities before the padding that the dump's mask names is cut off: without it a right
//! softmax looks wrong.

use std::fmt;
use std::ops::Range;

use firstdiff_trace::{Dump, DumpError, Entry, Site, Tap};

use crate::graph::Place;
use crate::tolerance::judge::is_masked;
use crate::tolerance::run::UNMASKED_LEAVES;

/// Values of heads, queries and keys.
struct HeadValues {
    shape: [usize; 3],
    values: Vec<f64>,
}

impl HeadValues {
    fn at(&self, head: usize, query: usize, key: usize) -> f64 {
        self.values[(head * self.shape[1] + query) * self.shape[2] + key]
    }
}

/// Probabilities of keys of padding.
#[derive(Clone, Debug)]
pub struct SeenPadding {
    /// Where the scores are.
    pub scores: Place,
    /// Whether the scores are unmasked there, and the probabilities are their softmax: then the scores are wrong.
    pub is_of_scores: bool,
    /// NMSE of the probabilities against those without these keys.
    pub base_nmse: f64,
    /// The same with these keys.
    pub residual_nmse: f64,
    /// Which key is seen.
    words: String,
}

impl fmt::Display for SeenPadding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

/// Where queries of a prefill see keys of padding, as its scores and probabilities show together.
///
/// # Errors
/// When a tensor cannot be read.
pub fn seen_padding(dump: &Dump) -> Result<Vec<SeenPadding>, DumpError> {
    let Some(mask) = dump.meta().attention_mask.as_ref().and_then(|mask| mask.sequence(0)) else {
        return Ok(Vec::new());
    };
    let ends = mask.iter().position(|&one| one != 0).zip(mask.iter().rposition(|&one| one != 0));
    let Some(tokens) = ends.map(|(first, last)| first..last + 1).filter(|tokens| tokens.len() < mask.len()) else {
        return Ok(Vec::new());
    };
    let all = mask.len();
    let read = |entry: &Entry| -> Result<_, DumpError> {
        let Ok(shape) = <[usize; 3]>::try_from(&*entry.shape) else { return Ok(None) };
        Ok(Some(HeadValues { shape, values: dump.read(entry)?.values().to_f64() }))
    };
    let mut seen = Vec::new();
    for entry in dump.entries().iter().filter(|entry| entry.tap.site == Site::Probs) {
        let place = Place { step: entry.step, tap: Tap { site: Site::Scores, ..entry.tap } };
        let Some(own) = read(entry)? else { continue };
        let scores = dump.find(place.tap, place.step).map(read).transpose()?.flatten();
        let [_, rows, keys] = own.shape;
        let queries = if entry.step == 0 { tokens.clone() } else { 0..rows };
        let holds_padding = if entry.step == 0 { rows == all && keys == all } else { keys > all };
        if holds_padding {
            let scores = scores.filter(|scores| scores.shape == own.shape);
            let is_padding = |key: usize| key < all && !tokens.contains(&key);
            seen.extend(SeenPadding::among(place, &own, scores.as_ref(), queries, is_padding));
        }
    }
    Ok(seen)
}

impl SeenPadding {
    fn among(
        place: Place,
        own: &HeadValues,
        scores: Option<&HeadValues>,
        queries: Range<usize>,
        is_padding: impl Fn(usize) -> bool,
    ) -> Option<SeenPadding> {
        let [heads, _, all] = own.shape;
        let (padding, real): (Vec<usize>, Vec<usize>) = (0..all).partition(|&key| is_padding(key));
        let rows = || (0..heads).flat_map(|head| queries.clone().map(move |query| (head, query)));
        let (head, query, key) = rows().find_map(|(head, query)| {
            let key = padding.iter().find(|&&key| own.at(head, query, key) > 0.0)?;
            Some((head, query, *key))
        })?;
        let [mut right, mut with, mut energy] = [0.0, 0.0, 0.0];
        for (scores, (head, query)) in scores.iter().flat_map(|scores| rows().map(move |row| (scores, row))) {
            let score = |key: &usize| scores.at(head, query, *key);
            let sums = [(0..all).map(|key| score(&key)).collect(), real.iter().map(score).collect()].map(exponentials);
            for key in &real {
                let [all, real] = sums.map(|(most, sum)| (score(key) - most).exp() / sum);
                right += (own.at(head, query, *key) - real).powi(2);
                with += (own.at(head, query, *key) - all).powi(2);
                energy += real.powi(2);
            }
        }
        let score = scores.map(|scores| scores.at(head, query, key));
        // Written so that a NaN shows nothing.
        let is_of_scores = score.is_some_and(|x| !is_masked(Site::Scores, x)) && with <= UNMASKED_LEAVES * right;
        let score = score.unwrap_or(f64::NAN);
        let words = format!("of {all} keys {} are padding, and key {key} is not masked: {score}", padding.len());
        let (base_nmse, residual_nmse) = (right / energy, with / energy);
        Some(SeenPadding { scores: place, is_of_scores, base_nmse, residual_nmse, words })
    }

    /// The taps computed from these keys, and the scores and probabilities where the scores are wrong: no other cause is searched there.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        let scores = self.scores;
        let at = move |site| Place { tap: Tap { site, ..scores.tap }, ..scores };
        let first = if self.is_of_scores { 0 } else { 2 };
        [Site::Scores, Site::Probs, Site::Context].into_iter().skip(first).map(at)
    }
}

/// The largest value, and the sum of e^(x - largest).
fn exponentials(row: Vec<f64>) -> (f64, f64) {
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (most, row.iter().map(|x| (x - most).exp()).sum())
}

//! Finds queries that see keys of padding. Scores and probabilities are looked at before the padding that the dump's mask names is cut off: without it a softmax
//! that is right looks wrong.

use std::fmt;
use std::ops::Range;

use firstdiff_compare::{Place, Status, is_masked};
use firstdiff_trace::{Dump, DumpError, Site, Tap};
use ndarray::{ArrayView1, Ix3, s};

use crate::replay::reason::{Reason, UnfitInput};
use crate::replay::{Replayed, Run};
use crate::tolerance::search::CAUSE_LEAVES;

/// Scores that are not masked at keys of padding, and of which the probabilities are the softmax.
#[derive(Clone, Debug)]
pub struct SeenPadding {
    /// Where the scores are.
    pub scores: Place,
    /// NMSE of the probabilities against those without these keys, and against those with them.
    pub(crate) base_nmse: f64,
    pub(crate) residual_nmse: f64,
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
    let mut seen = Vec::new();
    for entry in dump.entries().iter().filter(|entry| entry.step == 0 && entry.tap.site == Site::Probs) {
        let place = Place { step: 0, tap: Tap { site: Site::Scores, ..entry.tap } };
        let Some(scores) = dump.find(place.tap, 0) else { continue };
        let read = |entry| -> Result<_, DumpError> {
            let tensor = dump.read(entry)?;
            let values = tensor.values().to_f64().to_vec();
            let array = ndarray::ArrayD::from_shape_vec(entry.shape.clone(), values).ok();
            Ok(array.and_then(|array| array.into_dimensionality::<Ix3>().ok()))
        };
        let (Some(own), Some(scores)) = (read(entry)?, read(scores)?) else { continue };
        if own.dim() != scores.dim() || own.dim().1 != mask.len() || own.dim().2 != mask.len() {
            continue;
        }
        seen.extend(SeenPadding::of(place, own.view(), scores.view(), &tokens));
    }
    Ok(seen)
}

impl SeenPadding {
    fn of(
        place: Place,
        own: ndarray::ArrayView3<'_, f64>,
        scores: ndarray::ArrayView3<'_, f64>,
        tokens: &Range<usize>,
    ) -> Option<SeenPadding> {
        let mut first = None;
        let [mut right, mut with, mut energy] = [0.0, 0.0, 0.0];
        for head in 0..own.dim().0 {
            for query in tokens.clone() {
                let (own, scores) = (own.slice(s![head, query, ..]), scores.slice(s![head, query, ..]));
                let is_seen =
                    |key: &usize| !tokens.contains(key) && own[*key] > 0.0 && !is_masked(Site::Scores, scores[*key]);
                first = first.or_else(|| (0..own.len()).find(is_seen).map(|key| (key, scores[key])));
                let sums = [scores, scores.slice(s![tokens.clone()])].map(exponentials);
                for key in tokens.clone() {
                    let [all, real] = sums.map(|(most, sum)| (scores[key] - most).exp() / sum);
                    right += (own[key] - real).powi(2);
                    with += (own[key] - all).powi(2);
                    energy += real.powi(2);
                }
            }
        }
        let (key, score) = first?;
        let all = own.dim().2;
        let words = format!("of {all} keys {} are padding, and key {key} is not masked: {score}", all - tokens.len());
        // Written so that a NaN shows nothing.
        let is_shown = with <= CAUSE_LEAVES * right;
        is_shown.then(|| SeenPadding { scores: place, base_nmse: right / energy, residual_nmse: with / energy, words })
    }

    /// The scores, and what comes out of them: nothing is to be looked for there.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> {
        let scores = self.scores;
        let at = move |site| Place { tap: Tap { site, ..scores.tap }, ..scores };
        [Site::Scores, Site::Probs, Site::Context].into_iter().map(at)
    }
}

/// The largest value, and the sum of e^(x - largest).
fn exponentials(row: ArrayView1<'_, f64>) -> (f64, f64) {
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (most, row.iter().map(|x| (x - most).exp()).sum())
}

impl Run<'_> {
    /// Blames the scores that leave keys of padding unmasked, and not what reads those keys.
    pub(crate) fn blame_unmasked_padding(&self, taps: &mut [Replayed]) {
        for seen in &self.padding {
            let reads = |tap: &&mut Replayed| seen.places().any(|place| place == tap.report.place);
            for tap in taps.iter_mut().filter(reads) {
                let (place, status) = (tap.report.place, tap.report.status);
                if place == seen.scores && status.agrees() {
                    tap.report.status = Status::Diverged;
                    tap.reason = Some(Reason::Padding(seen.to_string()));
                } else if place != seen.scores
                    && status == Status::Diverged
                    && let Some(step) = self.recorded.model.plan.step(place.tap)
                {
                    let reason = Reason::Input { tap: step.reads[0], why: UnfitInput::Padding };
                    *tap = Replayed::unchecked(step, place, reason);
                }
            }
        }
    }
}

//! Forgives scores that differ only where they are masked, if no later tap was computed from the difference.
//!
//! An engine that never computes scores behind the query leaves zeros there, or the buffer's old content; one that masks inside its softmax leaves the raw
//! products; some mask with a number instead of -inf. Recorded probabilities show it: they are 0 there. Otherwise the scores show it, where e to their power
//! is 0; or the taps that read the probabilities, which would be off had those been read.

use firstdiff_trace::{DumpError, Site, Values};

use crate::graph::Place;
use crate::judge::judge;
use crate::judge::leak::{LeakedProbability, leaked_at};
use crate::judge::tensor::{Difference, Outcome, PairJudgement, Tolerance};
use crate::layout::elements::TensorRef;
use crate::layout::pair::Pair;
use crate::layout::types::Layout;
use crate::rules::RuleResult;
use crate::rules::draft::RuleDraft;
use crate::taps::context::{Compared, ComparisonContext, TapJudgement};
use crate::taps::open::judged_as;
use crate::tolerance::context::WOULD_SHOW;
use crate::tolerance::judge::MASKED;

impl ComparisonContext<'_> {
    /// Accepts scores that are right wherever the reference does not mask them, if nothing is computed from the others; adds a note.
    pub(crate) fn forgive_masked_scores(&self, taps: &[TapJudgement]) -> RuleResult {
        let mut draft = RuleDraft::new(taps);
        let mut forgiven = Vec::new();
        // Later readers are decided first.
        for index in (0..taps.len()).rev() {
            let place = self.graph.places()[index];
            let TapJudgement::Compared(judged) = &draft[index] else { continue };
            if judged.judgement.outcome.agrees() || judged.part.is_some() {
                continue;
            }
            let differs_in_padding = matches!(judged.judgement.outcome, Outcome::Differs(Difference::Padding { .. }));
            let (layout, shape, positions) = (judged.layout.clone(), judged.shape.clone(), judged.positions.clone());
            if judged_as(place.tap, &shape) != Site::Scores
                || !self.is_masked_away(&mut draft, index, &layout, differs_in_padding)?
            {
                continue;
            }
            let seen = self.with_pair(place, &layout, |pair, own| self.where_seen(pair, own))?.flatten();
            if let Some(judgement) = seen {
                let judged = Compared { judgement, shape, positions, layout, as_stored: None, part: None };
                draft.set(index, TapJudgement::from(judged));
                forgiven.push(place);
            }
        }
        let mut changes = draft.into_changes();
        let Some(first) = forgiven.last() else { return Ok(changes) };
        let more = if forgiven.len() > 1 { format!(" and {} more", forgiven.len() - 1) } else { String::new() };
        changes.note = Some(format!(
            "{}{more}: differ only where the reference is masked or has no keys; what reads them agrees; ignored",
            first.tap
        ));
        Ok(changes)
    }

    /// Whether nothing is computed from the scores at `index` where the reference masks them. Probabilities that show the contrary are blamed.
    fn is_masked_away(
        &self,
        draft: &mut RuleDraft,
        index: usize,
        layout: &Layout,
        differs_in_padding: bool,
    ) -> Result<bool, DumpError> {
        let place = self.graph.places()[index];
        let probs = Place { tap: place.tap.sibling(Site::Probs), ..place };
        let at = self.graph.places().iter().position(|place| *place == probs);
        if let Some(at) = at.filter(|&at| draft[at].is_compared()) {
            if !agrees(&draft[at]) {
                return Ok(false);
            }
            let masked = self.with_pair(place, layout, |pair, _| (pair.shape().to_vec(), masked_cells(pair)))?;
            let (shape, masked) = masked.unwrap_or_default();
            let TapJudgement::Compared(probs) = &draft[at] else { return Ok(false) };
            let leak = self.with_pair(self.graph.places()[at], &probs.layout, |pair, _| {
                (pair.shape() == shape).then(|| leaked_at(pair, &masked)).flatten()
            })?;
            let leak = leak.flatten();
            let leaks = leak.is_some();
            if let Some(leak) = leak {
                let judgement =
                    PairJudgement { outcome: Outcome::Differs(Difference::Leak(leak)), ..probs.judgement.clone() };
                let blamed = Compared { judgement, ..Compared::clone(probs) };
                draft.set(at, TapJudgement::from(blamed));
            }
            return Ok(!leaks);
        }
        // Keys beyond the reference's are not in the pair.
        if differs_in_padding {
            return Ok(false);
        }
        let profile = self.options.profile;
        let given = self.with_pair(place, layout, |pair, _| {
            let shares = LeakedProbability::from_scores(pair, |i| pair.reference(i) <= MASKED);
            (shares.leak(pair, profile).is_some(), shares.mean_square)
        })?;
        let Some((leaks, mean_square)) = given else { return Ok(false) };
        if !leaks {
            return Ok(true);
        }
        // The product with the values shows what else was mixed in; a sum with the stream would hide it.
        let (after, _) = self.graph.nearest_after(index, |i| draft[i].is_compared());
        let clears = |&i: &usize| match &draft[i] {
            TapJudgement::Compared(read)
                if matches!(self.graph.places()[i].tap.site, Site::Context | Site::AttnOut) =>
            {
                agrees(&draft[i]) && mean_square > WOULD_SHOW * read.judgement.allowed
            }
            _ => false,
        };
        Ok(!after.is_empty() && after.iter().all(clears))
    }

    /// The judgement over the scores that the reference does not mask, if that agrees.
    fn where_seen(&self, pair: &Pair<'_>, own: f64) -> Option<PairJudgement> {
        let reference: Vec<f64> = (0..pair.len()).map(|i| pair.reference(i)).collect();
        // NaN never passes, whether anything reads it or not.
        let seen = |(i, &r): (usize, &f64)| {
            let own = pair.candidate(i);
            if r <= MASKED && !own.is_nan() { r } else { own }
        };
        let candidate: Vec<f64> = reference.iter().enumerate().map(seen).collect();
        let (reference, candidate) = (Values::F64(reference.into()), Values::F64(candidate.into()));
        let left = TensorRef { values: &reference, shape: pair.shape(), rows: None };
        let right = TensorRef { values: &candidate, shape: pair.shape(), rows: None };
        let masked = Pair::new(pair.site(), &left, &right, None).ok()?;
        let judgement = judge(&masked, self.options.profile, &Tolerance::rounding_only(own));
        judgement.outcome.agrees().then_some(PairJudgement { outcome: Outcome::Rounding, ..judgement })
    }
}

/// Agrees, as it stands or in a layout that was confirmed.
fn agrees(judgement: &TapJudgement) -> bool {
    judgement.agrees() && judgement.provisional().is_none()
}

/// Where the reference masks a key.
fn masked_cells(pair: &Pair<'_>) -> Vec<usize> {
    (0..pair.len()).filter(|&i| pair.reference(i) <= MASKED).collect()
}

//! Were the scores recorded before they were masked? Then neither they nor the probabilities made of them are wrong.

use firstdiff_compare::{Place, Status};
use firstdiff_model::{Chunk, Op, Scores, Step, eval_step};
use firstdiff_trace::{Site, Tap};
use ndarray::ArrayD;

use crate::mistakes::filled_as_shown;
use crate::replay::{Done, Replayed, Run, UNMASKED};

impl Run<'_> {
    /// Takes the blame from scores that are right but for the mask, where the probabilities are those of the masked ones.
    pub(crate) fn forgive_unmasked(&mut self, taps: &mut [Replayed]) -> Done<Option<String>> {
        let wrong = |t: &Replayed, site| t.report.place.tap.site == site && t.report.status == Status::Diverged;
        let scores: Vec<usize> = (0..taps.len()).filter(|&at| wrong(&taps[at], Site::Scores)).collect();
        let mut forgiven = 0;
        for at in scores {
            let place = taps[at].report.place;
            let probs = Place { tap: Tap { site: Site::Probs, ..place.tap }, ..place };
            let judged = |t: &Replayed| t.report.place == probs && t.report.status != Status::Unchecked;
            let Some(behind) = taps.iter().position(judged) else { continue };
            let was_wrong = taps[behind].report.status == Status::Diverged;
            let judged = match self.unmasked(place, probs, true, was_wrong)? {
                Some(judged) => Some(judged),
                None => self.unmasked(place, probs, false, was_wrong)?,
            };
            if let Some(judged) = judged {
                for (at, mut judged) in [at, behind].into_iter().zip(judged) {
                    judged.reason = judged.reason.filter(|_| judged.report.status == Status::Diverged);
                    (judged.from, judged.through) = (taps[at].from.clone(), taps[at].through.clone());
                    taps[at] = judged;
                }
                forgiven += 1;
            }
        }
        Ok((forgiven > 0).then(|| UNMASKED.to_owned()))
    }

    /// Both judged as scores without a mask, or with anything in its place, and probabilities of what they are when masked. Of probabilities that are
    /// not made of these scores (`elsewhere`) the mask itself may be wrong: then they are the ones to blame.
    fn unmasked(
        &mut self,
        scores: Place,
        probs: Place,
        computed: bool,
        elsewhere: bool,
    ) -> Done<Option<[Replayed; 2]>> {
        let plan = &self.recorded.model.plan;
        let (Some(masking), Some(softmax)) = (plan.step(scores.tap), plan.step(probs.tap)) else { return Ok(None) };
        let (masking, softmax) = (masking.clone(), softmax.clone());
        let Op::Scores(right) = masking.op else { return Ok(None) };
        let open = Step { op: Op::Scores(Scores { causal: false, window: None, ..right }), ..masking.clone() };
        let (Ok(own_scores), Ok(own_probs)) = (self.recorded.read(scores), self.recorded.read(probs)) else {
            return Ok(None);
        };
        let Some(tokens) = self.recorded.tokens.get(scores.step as usize).cloned() else { return Ok(None) };
        let chunk = Chunk { tokens: &tokens, start: self.recorded.start(scores.step) };
        let Ok((narrow, wide)) = self.value(masking.reads[0], scores.step)? else { return Ok(None) };
        // Where a right mask would stand.
        let zeros = ArrayD::<f64>::zeros(own_scores.raw_dim());
        let mask = eval_step(&masking, &[zeros.view()], chunk, &self.recorded.model.weights)?;
        let masked = hidden(own_scores.clone(), &mask);
        let (as_judged, compared) = if computed { (&open, &own_scores) } else { (&masking, &masked) };
        let (narrow, wide) = self.evaluated(as_judged, &[narrow], &[wide], chunk)?;
        let first = self.verdict(&masking, scores, compared, &narrow, &wide, false);
        let (narrow, wide) = self.evaluated(&softmax, &[masked.mapv(|x| x as f32)], &[masked], chunk)?;
        let second = self.verdict(&softmax, probs, &own_probs, &narrow, &wide, false);
        if !first.report.status.agrees() {
            return Ok(None);
        }
        let mut is_filled = false;
        if elsewhere && computed && !second.report.status.agrees() {
            for scores in filled_as_shown(&own_probs, &own_scores, &right) {
                let (narrow, wide) = self.evaluated(&softmax, &[scores.mapv(|x| x as f32)], &[scores], chunk)?;
                is_filled |= self.verdict(&softmax, probs, &own_probs, &narrow, &wide, false).report.status.agrees();
            }
        }
        Ok((second.report.status.agrees() || is_filled).then_some([first, second]))
    }
}

/// -inf wherever the mask has it.
fn hidden(scores: ArrayD<f64>, mask: &ArrayD<f64>) -> ArrayD<f64> {
    let mut out = scores;
    out.zip_mut_with(mask, |x, m| {
        if *m == f64::NEG_INFINITY {
            *x = f64::NEG_INFINITY;
        }
    });
    out
}

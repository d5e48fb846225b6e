//! Do scores differ only where they are masked, and do the probabilities not show it? Then nothing has read the difference.
//!
//! An engine that never computes what lies behind the query leaves zeros there, or what the buffer held; one that masks inside of its softmax
//! leaves the bare products.

use firstdiff_trace::{DumpError, Site, Tap, Values};

use crate::first::{Found, Judged, Run};
use crate::graph::Place;
use crate::judge::{Allowance, Difference, Judgement, Outcome, judge};
use crate::pair::{MASKED, Operand, Pair};

impl Run<'_> {
    /// Takes the blame from scores that are right wherever the reference has any, where the probabilities made of them agree; and says so.
    pub(crate) fn forgive_hidden(&self, found: &mut [Found]) -> Result<Option<String>, DumpError> {
        let mut forgiven = Vec::new();
        // What is read later is settled first.
        for index in (0..found.len()).rev() {
            let place = self.graph.places()[index];
            let Found::Judged(judged) = &found[index] else { continue };
            // Of probabilities nothing is masked, but a buffer may be longer than what was written into it.
            let beside = matches!(judged.judgement.outcome, Outcome::Differs(Difference::Padding { .. }));
            let reader = match place.tap.site {
                Site::Scores => Site::Probs,
                Site::Probs if beside => Site::Context,
                _ => continue,
            };
            if judged.judgement.outcome.agrees() || judged.part.is_some() {
                continue;
            }
            let reader = Place { tap: Tap { site: reader, ..place.tap }, ..place };
            let behind = self.graph.places().iter().position(|p| *p == reader);
            if !behind.is_some_and(|at| found[at].agrees() && found[at].provisional().is_none()) {
                continue;
            }
            let layout = judged.layout.clone();
            let seen = self.with_pair(place, &layout, |pair, own| self.where_seen(pair, own))?.flatten();
            if let Some(judgement) = seen
                && let Found::Judged(judged) = &mut found[index]
            {
                **judged = Judged {
                    judgement,
                    shape: judged.shape.clone(),
                    positions: judged.positions.clone(),
                    layout,
                    plain: None,
                    part: None,
                };
                forgiven.push(place);
            }
        }
        let Some(first) = forgiven.last() else { return Ok(None) };
        let more = if forgiven.len() > 1 { format!(" and {} more", forgiven.len() - 1) } else { String::new() };
        Ok(Some(format!(
            "{}{more}: other numbers than the reference's where that is masked or has no keys, of which what reads them shows nothing: the buffer's own",
            first.tap
        )))
    }

    /// The verdict over what the reference does not mask, if that agrees.
    fn where_seen(&self, pair: &Pair<'_>, own: f64) -> Option<Judgement> {
        let reference: Vec<f64> = (0..pair.len()).map(|i| pair.reference(i)).collect();
        let seen = |(i, &r): (usize, &f64)| if r <= MASKED { r } else { pair.candidate(i) };
        let candidate: Vec<f64> = reference.iter().enumerate().map(seen).collect();
        let (reference, candidate) = (Values::F64(reference.into()), Values::F64(candidate.into()));
        let left = Operand { values: &reference, shape: pair.shape(), rows: None };
        let right = Operand { values: &candidate, shape: pair.shape(), rows: None };
        let masked = Pair::new(pair.site(), &left, &right, None).ok()?;
        let judgement = judge(&masked, self.options.profile, &Allowance::own(own));
        judgement.outcome.agrees().then_some(Judgement { outcome: Outcome::Rounding, ..judgement })
    }
}

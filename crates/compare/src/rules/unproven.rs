//! Marks compared taps as unchecked for lack of proof: where the dump itself puts them in doubt, or nothing shows that both sides hold the same positions.

use std::collections::BTreeSet;

use firstdiff_trace::{DumpError, Site};

use crate::align::chunks::name_of;
use crate::graph::Place;
use crate::report::reason::Reason;
use crate::rules::first_position::is_by_position;
use crate::rules::{Changes, RuleResult};
use crate::run::misaligned::unwitnessed;
use crate::run::padding::is_padded;
use crate::run::steps::Chunks;
use crate::run::tokens::token_edits;
use crate::taps::context::{ComparisonContext, TapJudgement};
use crate::tolerance::context::UNCLEAR_BY_CHANCE;

impl ComparisonContext<'_> {
    /// Withdraws differences where nothing shows that both sides hold the same positions.
    pub(crate) fn doubt_positions(&self, taps: &[TapJudgement]) -> RuleResult {
        let [reference, candidate] = self.recorded();
        let chosen = self.options.rows.as_ref().is_some_and(|rows| !rows.is_all());
        if chosen || taps.iter().any(TapJudgement::agrees) {
            return Ok(Changes::default());
        }
        let Some(reason) = unwitnessed(reference, candidate) else { return Ok(Changes::default()) };
        // Most of its tokens are those of the reference.
        if token_edits(reference, candidate)?.is_some_and(|edits| edits.is_no_padding) {
            return Ok(Changes::default());
        }
        if self.has_right_rows(taps)? {
            return Ok(Changes::default());
        }
        let compared = (0..taps.len()).filter(|&i| taps[i].is_compared());
        Ok(Changes::all(compared, &TapJudgement::NotComparable(Reason::Unwitnessed(reason))))
    }

    /// Whether most rows of a tap behind attention are right, including the last: with another prompt they would not be.
    fn has_right_rows(&self, taps: &[TapJudgement]) -> Result<bool, DumpError> {
        for (place, here) in self.graph.places().iter().zip(taps).filter(|(place, _)| !is_by_position(place.tap)) {
            let TapJudgement::Compared(judged) = here else { continue };
            let rows = self.with_pair(*place, &judged.layout, |pair, _| pair.nmse_by_position())?.unwrap_or_default();
            let is_right = |nmse: &&f64| **nmse <= judged.judgement.own;
            if rows.last().is_some_and(|last| is_right(&last)) && 2 * rows.iter().filter(is_right).count() > rows.len()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Withdraws differences in later steps where nothing agrees, and neither ids nor embeddings show that both were fed the same token.
    pub(crate) fn doubt_continuations(&self, taps: &[TapJudgement]) -> RuleResult {
        let mut changes = Changes::default();
        let steps: BTreeSet<u32> =
            self.graph.places().iter().map(|place| place.step).filter(|&step| step > 0).collect();
        // Where only a few taps are requested, others may be known elsewhere.
        if self.options.only.is_some() {
            return Ok(changes);
        }
        for step in steps {
            let wrong_before = |(at, place): (usize, &Place)| {
                place.step < step && taps[at].is_compared() && !taps[at].agrees() && !changes.taps.contains_key(&at)
            };
            if self.graph.places().iter().enumerate().any(wrong_before) {
                break;
            }
            let here = |at: &usize| self.graph.places()[*at].step == step && taps[*at].is_compared();
            let judged: Vec<usize> = (0..taps.len()).filter(here).collect();
            let witnessed = |&at: &usize| taps[at].agrees() || self.graph.places()[at].tap.site == Site::H0;
            if judged.iter().any(witnessed) || self.names_tokens_of(step) {
                continue;
            }
            changes.taps.extend(judged.into_iter().map(|at| (at, TapJudgement::NotComparable(Reason::Continuation))));
        }
        Ok(changes)
    }

    /// Whether both runs record their tokens up to a step.
    fn names_tokens_of(&self, step: u32) -> bool {
        let named = |chunks: &Chunks, end: usize| chunks.ids.as_ref().is_some_and(|ids| ids.len() >= end);
        match self.alignment() {
            Some(alignment) => {
                let end = alignment.cells.get(step as usize).map_or(usize::MAX, |cell| cell.end);
                named(&alignment.reference, end) && named(&alignment.candidate, end)
            }
            None => [self.reference, self.candidate].into_iter().all(|dump| {
                let chunks = Chunks::find(dump);
                chunks.is_some_and(|chunks| {
                    chunks.ranges().get(step as usize).is_some_and(|range| named(&chunks, range.end))
                })
            }),
        }
    }

    /// Why a run in which all that was compared agrees does not pass, other choices of experts aside.
    pub(crate) fn not_passed(&self, taps: &[TapJudgement]) -> Option<String> {
        let doubt = self.plan.doubts.first_key_value().map(|((step, tap), reason)| {
            let place = Place { step: *step, tap: *tap };
            format!("what else was compared agrees, but {place}: {reason}")
        });
        doubt
            .or_else(|| self.undeclared_padding(taps))
            .or_else(|| self.missing_rank(taps))
            .or_else(|| self.unlike_ranks(taps))
            .or_else(|| self.unmapped_taps(taps))
            .or_else(|| self.linked_inconclusive_taps(taps))
    }

    /// Two inconclusive taps, one of which reads the other, where that is not chance. The error may be a small fault, or more rounding than was measured:
    /// that cannot be decided.
    fn linked_inconclusive_taps(&self, judgements: &[TapJudgement]) -> Option<String> {
        let unclear: Vec<usize> = (0..judgements.len()).filter(|&index| judgements[index].is_unclear()).collect();
        let read =
            |index: usize| self.graph.nearest_before(index, |i| !matches!(judgements[i], TapJudgement::NotRecorded)).0;
        let also_unclear = |index: usize| read(index).into_iter().find(|&i| judgements[i].is_unclear());
        let (first, second) = unclear.iter().find_map(|&index| Some((also_unclear(index)?, index)))?;
        let name = |index: usize| name_of(self.alignment(), self.graph.places()[index]);
        let (count, agree) = (unclear.len(), judgements.iter().filter(|here| here.agrees()).count());
        (UNCLEAR_BY_CHANCE * (count + agree) as f64 <= count as f64).then(|| format!(
            "{count} taps are off by more than rounding, {} and {}, which reads it, among them, and the error of what they read may explain it, or not: it cannot be told \
             whether that is a fault; {agree} agree. A second right run tells how far right runs are apart (--noise), the model what each operation adds (explain)",
            name(first),
            name(second)
        ))
    }

    /// Token positions that only the candidate has, in a step of both, and that nothing declares: padding, more tokens, or other sequences.
    fn undeclared_padding(&self, judgements: &[TapJudgement]) -> Option<String> {
        let more = |count: usize, other_count: usize, place: &str| {
            format!(
                "what was compared agrees, but {place} holds {count} token positions where the reference has {other_count}, and neither its token ids nor its other taps \
                 say that the rest are padding: name the candidate's tokens ('tokens' in its dump.json, or --tokens), or write these positions alone"
            )
        };
        if let Some(alignment) = self.alignment() {
            let (ours, theirs) = (alignment.reference.total(), alignment.candidate.total());
            let straddles = alignment.candidate.ranges().iter().any(|range| range.start < ours && ours < range.end);
            let named = alignment.candidate.ids.is_some();
            return (straddles && !named && alignment.tokens_differ_at.is_none())
                .then(|| more(theirs, ours, "the candidate"));
        }
        let tokens = self.candidate.meta().tokens.as_ref().map(Vec::len);
        let mut places = self.graph.places().iter().zip(judgements);
        places.find_map(|(place, here)| {
            let TapJudgement::Compared(judged) = here else { return None };
            let (held, wanted) = judged.layout.padding()?;
            let is_padding = tokens == Some(wanted) && is_padded(self.candidate, place.step, &judged.layout);
            (!is_padding).then(|| more(held, wanted, &place.to_string()))
        })
    }
}

//! Excludes the results of other experts: what follows a token that rounding sent, or may have sent, to other experts cannot be compared.

use std::collections::BTreeSet;

use firstdiff_trace::{DumpError, Rows, Site};

use crate::align::chunks::name_of;
use crate::graph::Place;
use crate::report::reason::Reason;
use crate::rules::draft::RuleDraft;
use crate::rules::{Changes, RuleResult, attribute};
use crate::taps::choice::{MovedToken, behind};
use crate::taps::context::{ComparisonContext, Options, TapJudgement};
use crate::taps::judge_taps;

impl ComparisonContext<'_> {
    /// Taps that differ behind tokens sent elsewhere: judged again at the tokens before the first of these, or not at all.
    pub(crate) fn judge_behind_choices(&self, taps: &[TapJudgement]) -> RuleResult {
        let mut draft = RuleDraft::new(taps);
        self.undecided(taps)?.into_iter().for_each(|(index, judged)| draft.set(index, judged));
        let flips: Vec<(MovedToken, usize)> = self.flips(&draft).collect();
        let Some(&(token, at)) = flips.iter().min() else { return Ok(Changes::default()) };
        let place = |index: usize| self.graph.places()[index];
        let reached: BTreeSet<usize> =
            flips.iter().flat_map(|&(_, index)| self.graph.nearest_after(index, |_| false).1).collect();
        let is_reached = |index: &usize| reached.contains(index) || *index > at && !self.graph.knows_inputs(*index);
        let is_open = |here: &TapJudgement| {
            !here.agrees() && !matches!(here, TapJudgement::NotRecorded | TapJudgement::Unchecked(_))
        };
        let behind_it: Vec<usize> = (0..taps.len()).filter(is_reached).filter(|&index| is_open(&taps[index])).collect();
        // A choice without effect need not be known.
        if behind_it.is_empty() {
            return Ok(Changes::default());
        }
        let stack = place(at).tap.stack();
        let is_of_the_step = |&index: &usize| place(index).step == token.step && place(index).tap.stack() == stack;
        let earlier = match token.row > 0 && behind_it.iter().any(is_of_the_step) {
            true => Some((self.at_rows_before(token.row)?, self.is_causal(stack)?)),
            false => None,
        };
        for index in behind_it {
            let again = earlier.as_ref().filter(|_| is_of_the_step(&index));
            let again = again.map(|(taps, is_causal)| (&taps[index], is_causal));
            let again = again.filter(|(here, is_causal)| here.is_compared() && (here.agrees() || **is_causal));
            draft.set(index, again.map_or_else(|| behind(at, self), |(here, _)| here.clone()));
        }
        Ok(draft.into_changes())
    }

    /// Every tap, judged at the rows of its step before `row`.
    fn at_rows_before(&self, row: usize) -> Result<Vec<TapJudgement>, DumpError> {
        let rows = match &self.options.rows {
            Some(Rows::List(list)) => list.iter().copied().filter(|&other| other < row).collect(),
            _ => (0..row).collect(),
        };
        let options = Options { rows: Some(Rows::List(rows)), ..self.options.clone() };
        let run = ComparisonContext::new(self.reference, self.candidate, self.graph, &options);
        Ok(attribute(&run, judge_taps(&run, &mut |_, _| ())?)?.taps)
    }

    /// Whether no token of a stack reads a later one: it decodes, or gives later keys no probability.
    fn is_causal(&self, stack: &str) -> Result<bool, DumpError> {
        let here = |place: &&Place| place.tap.stack() == stack;
        if self.graph.places().iter().filter(here).any(|place| place.step > 0) {
            return Ok(true);
        }
        let probs = self.graph.places().iter().filter(here).filter(|place| place.tap.role() == Site::Probs);
        for place in probs {
            let Some(entry) = self.reference.entry(place.tap, place.step) else { continue };
            if let [_, queries, keys] = entry.shape[..]
                && queries == keys
                && queries > 1
            {
                let tensor = self.reference.read(&entry)?;
                let values = tensor.values();
                let is_later = |i: &usize| i % keys > i / keys % queries;
                return Ok((0..values.len()).filter(is_later).all(|i| values.get(i) == 0.0));
            }
        }
        Ok(false)
    }

    /// Why a run with tokens sent to other experts does not pass: what follows them was not compared.
    pub(crate) fn behind_other_experts(&self, taps: &[TapJudgement]) -> Option<String> {
        let reason =
            |index: usize| if let TapJudgement::Unchecked(reason) = &taps[index] { Some(reason) } else { None };
        let is_flip = |index: &usize| matches!(reason(*index), Some(Reason::OtherExperts { .. }));
        let first = (0..taps.len()).find(is_flip)?;
        let reached = self.graph.nearest_after(first, |_| false).1;
        let is_lost = |&index: &usize| match &taps[index] {
            TapJudgement::Unchecked(reason) => matches!(reason, Reason::BehindOtherExperts(_)),
            TapJudgement::Compared(judged) => self.options.rows.is_none() && judged.positions.is_some(),
            _ => false,
        };
        let agree = taps.iter().filter(|here| here.agrees()).count();
        // Where nothing behind it was compared, nothing shows that it had no effect.
        let is_harmless = reached.iter().any(|&index| taps[index].agrees());
        (!is_harmless || reached.iter().any(is_lost)).then(|| {
            format!(
                "what was compared agrees ({agree} taps), but {}: {}; what follows cannot be compared from there on: replay judges it on the candidate's own inputs",
                name_of(self.alignment(), self.graph.places()[first]),
                reason(first).map(Reason::to_string).unwrap_or_default()
            )
        })
    }
}

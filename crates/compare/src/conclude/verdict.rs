//! Decides the status of every tap, and the verdict.

use std::collections::BTreeSet;

use firstdiff_trace::{Dump, Site};

use crate::align::chunks::{ChunkAlignment, name_of};
use crate::graph::{Place, op_of};
use crate::report::log::Standing;
use crate::report::reason::Reason;
use crate::report::{KnownPart, Status, TapReport, Verdict};
use crate::run::misaligned::is_without_tokens;
use crate::run::steps::steps;
use crate::taps::context::{Compared, ComparisonContext, TapJudgement};

impl ComparisonContext<'_> {
    pub(crate) fn statuses(&self, taps: &[TapJudgement]) -> Vec<Option<Status>> {
        let differs: Vec<usize> = (0..taps.len()).filter(|&i| taps[i].standing() == Some(Standing::Differs)).collect();
        let status = |(index, here): (usize, &TapJudgement)| {
            Some(match here.standing()? {
                Standing::Exact => Status::Exact,
                Standing::Rounding => Status::Rounding,
                Standing::Inconclusive | Standing::Unchecked => Status::Unchecked,
                Standing::Differs => {
                    let (before, between) = self.graph.nearest_before(index, |i| taps[i].is_compared());
                    let inputs_agree = before.iter().all(|&i| taps[i].agrees());
                    // A tap that was not compared on the way may have read it.
                    let hidden = |other| !between.is_empty() && other < index && self.graph.may_be_read_by_any(other);
                    let may_read = |&other: &usize| self.graph.may_read(index, other) || hidden(other);
                    let inputs_agree = inputs_agree && !differs.iter().any(may_read);
                    if inputs_agree { Status::Diverged } else { Status::Downstream }
                }
            })
        };
        taps.iter().enumerate().map(status).collect()
    }

    pub(crate) fn tap_report(&self, index: usize, found: &TapJudgement, status: Status) -> TapReport {
        let place = self.graph.places()[index];
        let op = self.graph.op(index).to_owned();
        let blank = TapReport { status, reason: found.reason(), ..TapReport::unchecked(place, op) };
        let TapJudgement::Compared(judged) = found else { return blank };
        let Compared { judgement, shape, positions, layout, part, .. } = &**judged;
        let single = shape.get(place.tap.site.position_axis()) == Some(&1) || shape.len() == 1;
        let is_last = single && part.is_none() && !place.tap.is_open() && self.is_of_unknown_position(place);
        TapReport {
            metrics: Some(judgement.metrics),
            balanced: judgement.balanced,
            worst_position: Some(judgement.worst_position),
            allowed: Some(judgement.allowed),
            shape: self.own_shape(place, shape).unwrap_or_else(|| shape.clone()),
            positions: positions.clone(),
            is_last,
            is_pooled: single && is_without_tokens([self.reference, self.candidate]),
            layout: Some(layout.clone()),
            part: part.clone(),
            noise: self.noise(place).map(|noise| noise.nmse),
            ..blank
        }
    }

    /// Taps that a dump holds and the graph does not.
    pub(crate) fn taps_outside_graph(&self, known: &BTreeSet<Place>) -> Vec<TapReport> {
        let entries = self.reference.entries().iter().chain(self.candidate.entries());
        let places: BTreeSet<Place> =
            entries.map(|e| Place { step: e.step, tap: e.tap }).filter(|p| !known.contains(p)).collect();
        let reason = Some(Reason::NotOfTheModel);
        let report = |place: Place| TapReport {
            reason: reason.clone(),
            ..TapReport::unchecked(place, op_of(place.tap.site).into())
        };
        places.into_iter().map(report).collect()
    }

    pub(crate) fn verdict(&self, judgements: &[TapJudgement], taps: &[TapReport], diverged: bool) -> Verdict {
        if diverged {
            return Verdict::Diverged;
        }
        if let Some(reason) = self.plan.misaligned.as_ref().filter(|_| self.alignment().is_some()) {
            return Verdict::Incomparable(reason.to_string());
        }
        if let Some(parting) = self.alignment().and_then(ChunkAlignment::parting) {
            let agree = taps.iter().filter(|t| t.status.agrees()).count();
            let before = if agree > 0 { format!("; up to there {agree} taps agree") } else { String::new() };
            return Verdict::Incomparable(format!("{parting}{before}"));
        }
        if taps.iter().all(|t| t.metrics.is_none()) {
            let names = |dump: &Dump| match (dump.entries().first(), dump.unmapped().first()) {
                (Some(entry), _) => format!("{} ...", entry.tap),
                (None, Some(name)) => format!("'{name}', which is no tap name", name = name.escape_debug()),
                (None, None) => "nothing".into(),
            };
            if let Some(reason) = &self.plan.misaligned {
                return Verdict::Incomparable(reason.to_string());
            }
            let misfit = judgements.iter().zip(self.graph.places()).find_map(|(here, place)| match here {
                TapJudgement::ShapeMismatch(_) | TapJudgement::NotComparable(_) | TapJudgement::Inconclusive(_) => {
                    Some(format!("{}: {}{}", name_of(self.alignment(), *place), here.reason()?, self.steps_hint()))
                }
                _ => None,
            });
            let reason = misfit.unwrap_or_else(|| {
                format!(
                    "the dumps share no tap: the reference has {}, the candidate {}{}",
                    names(self.reference),
                    names(self.candidate),
                    match self.candidate.unmapped().len() {
                        0 => String::new(),
                        unknown => format!(
                            "; {unknown} of its {} names are unknown: name its tensors in a firstdiff.toml, or let `firstdiff align` propose names by content",
                            unknown + self.candidate.entries().len() + self.candidate.parts().len()
                        ),
                    }
                )
            });
            return Verdict::Incomparable(reason);
        }
        // Both sides recorded it, it could not be compared, and no compared tap behind it depends on it.
        for (index, place) in self.graph.places().iter().enumerate() {
            if let (
                TapJudgement::ShapeMismatch(_) | TapJudgement::NotComparable(_) | TapJudgement::Inconclusive(_),
                Some(reason),
            ) = (&judgements[index], judgements[index].reason())
            {
                let (after, _) = self.graph.nearest_after(index, |i| judgements[i].is_compared());
                if after.is_empty() {
                    return Verdict::Incomparable(format!(
                        "{} could not be compared, and nothing known to be made of it was: {reason}",
                        name_of(self.alignment(), *place)
                    ));
                }
            }
        }
        let tells =
            |t: &TapReport| t.place.tap.site != Site::H0 && t.metrics.is_some_and(|m| m.correlation().is_some());
        if !taps.iter().any(tells) {
            let which: Vec<String> = taps
                .iter()
                .filter(|t| t.metrics.is_some())
                .map(|t| name_of(self.alignment(), t.place))
                .take(3)
                .collect();
            return Verdict::Incomparable(format!(
                "only {} could be compared: that shows nothing of the model",
                which.join(", ")
            ));
        }
        if let Some((words, true)) = self.only_first_position(judgements) {
            let agree = taps.iter().filter(|t| t.status.agrees()).count();
            return Verdict::Incomparable(format!(
                "{words}, and the reference has more positions; {agree} taps agree at that one"
            ));
        }
        match self.not_passed(judgements) {
            Some(reason) => Verdict::Incomparable(reason),
            None => Verdict::Parity,
        }
    }

    /// How runs with different numbers of steps could be aligned.
    fn steps_hint(&self) -> String {
        let runs = [self.reference, self.candidate];
        let [ours, theirs] = runs.map(|dump| steps(dump).len());
        if ours == theirs || self.alignment().is_some() || runs.iter().all(|dump| dump.meta().tokens.is_some()) {
            return String::new();
        }
        let word = |count: usize| if count == 1 { "1 step".to_owned() } else { format!("{count} steps") };
        format!(
            "; the reference has {} and the candidate {}: name the tokens of all positions (--tokens IDS), and they are aligned by position",
            word(ours),
            word(theirs)
        )
    }
}

/// One line about the taps that agree as far as they are known.
pub(crate) fn partial_agreement(taps: &[TapReport]) -> Option<String> {
    let known = taps.iter().filter(|tap| tap.part.is_some() && tap.status.agrees());
    let (count, first) = (known.clone().count(), known.clone().next()?);
    let which = first.why().unwrap_or_default();
    let all = known.clone().all(|tap| tap.part.as_ref().is_some_and(KnownPart::is_all));
    if all {
        return Some(format!(
            "{count} of the taps that agree do so as far as they were printed ({}: {which})",
            first.place
        ));
    }
    Some(format!(
        "{count} of the taps that agree were compared in part ({}: {which}); the rest of them is unchecked",
        first.place
    ))
}

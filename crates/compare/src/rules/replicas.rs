//! Checks that replicas of a tap on several ranks are equal, and that no rank is missing.

use firstdiff_trace::Share;

use crate::graph::Place;
use crate::judge::judge;
use crate::judge::tensor::{Difference, Outcome, PairJudgement, Tolerance};
use crate::metrics::Metrics;
use crate::rules::{Changes, RuleResult};
use crate::taps::context::{Compared, ComparisonContext, TapJudgement};
use crate::taps::ranks::{not_joined, others, tensors};
use crate::taps::tap::TapJudge;
use crate::tolerance::run::SAME_TOKENS;
use crate::words::number;

impl ComparisonContext<'_> {
    /// Why a rank's dump seems to be missing, by what could not be judged: then the rest does not pass.
    pub(crate) fn missing_rank(&self, taps: &[TapJudgement]) -> Option<String> {
        let ranks = self.candidate.ranks()?;
        let places = self.graph.places().iter().zip(taps).filter(|(_, here)| !here.is_compared());
        places.map(|(place, _)| *place).find_map(|place| {
            let alone = ranks.names().len() == 1;
            let reason = self
                .lacks_a_rank(place)
                .or_else(|| ranks.why_not_joined(place.tap, place.step).filter(|_| alone).map(not_joined));
            let reason = reason.or_else(|| self.may_be_a_sum(place))?;
            Some(format!("what else was compared agrees, but {place}: {reason}"))
        })
    }

    /// A tap whose ranks hold different values of the whole shape that do not add up to the reference's: neither replicas nor a sum.
    pub(crate) fn unlike_ranks(&self, taps: &[TapJudgement]) -> Option<String> {
        let ranks = self.candidate.ranks()?;
        let describe = |(place, here): (&Place, &TapJudgement)| {
            let why = ranks.why_not_joined(place.tap, place.step).filter(|_| !here.is_compared())?;
            let reference = self.reference.read(self.reference.find(place.tap, place.step)?).ok()?;
            let rank_tensors = tensors(ranks, *place).ok()?;
            let is_whole =
                rank_tensors.len() > 1 && rank_tensors.iter().all(|(_, tensor)| tensor.shape() == reference.shape());
            let is_sum = || {
                let (due, parts) =
                    (reference.values().to_f64(), rank_tensors.iter().map(|(_, tensor)| tensor.values()));
                let parts: Vec<_> = parts.collect();
                let sums: Vec<f64> = (0..due.len()).map(|i| parts.iter().map(|part| part.get(i)).sum()).collect();
                Metrics::measure_f64(&due, &sums).nmse().is_some_and(|nmse| nmse < SAME_TOKENS)
            };
            (is_whole && !is_sum()).then(|| format!("what else was compared agrees, but {place}: {}", not_joined(why)))
        };
        self.graph.places().iter().zip(taps).find_map(describe)
    }

    /// Judges every replica other than the compared one, and describes those that differ.
    pub(crate) fn check_replicas(&self, taps: &[TapJudgement]) -> RuleResult {
        let mut changes = Changes::default();
        let Some(ranks) = self.candidate.ranks() else { return Ok(changes) };
        let mut unequal: Vec<String> = Vec::new();
        for (index, here) in taps.iter().enumerate() {
            let place = self.graph.places()[index];
            let replicated = ranks.joined(place.tap, place.step).is_some_and(|j| j.share == Share::Replicated);
            let TapJudgement::Compared(judged) = here else { continue };
            if !replicated {
                continue;
            }
            let others = others(ranks, self.candidate, place)?;
            let Some((first, _, off)) = others.first() else { continue };
            let many = if ranks.names().len() == 2 {
                "the other".to_owned()
            } else {
                format!("the other {}", ranks.names().len() - others.len())
            };
            unequal.push(format!("{place}: {first} differs from {many} by NMSE {}", number(*off)));
            if !judged.judgement.outcome.agrees() {
                continue;
            }
            let (layout, allowed) = (judged.layout.clone(), Tolerance::rounding_only(judged.judgement.allowed));
            for (name, tensor, _) in &others {
                let values = tensor.values();
                let judge = |alignment: &TapJudge<'_>, _| {
                    Some(judge(&alignment.with_candidate(&values).under(&layout)?, self.options.profile, &allowed))
                };
                let own = self.with_tap_judge(place, judge)?.flatten();
                if let Some(own) = own.filter(|own| !own.outcome.agrees()) {
                    let nmse =
                        own.metrics.nmse().map_or("not finite".to_owned(), |nmse| format!("NMSE {}", number(nmse)));
                    let what = format!("{name}'s is off ({nmse}), {many}'s agrees");
                    let outcome = Outcome::Differs(Difference::Replica { what });
                    let judgement = PairJudgement { outcome, ..own };
                    let blamed = Compared { judgement, as_stored: None, ..Compared::clone(judged) };
                    changes.taps.insert(index, TapJudgement::from(blamed));
                    break;
                }
            }
        }
        let count = unequal.len();
        changes.note = unequal.into_iter().next().map(|first| match count {
            1 => format!("replicas that should be equal bit for bit are not: {first}"),
            _ => format!("replicas that should be equal bit for bit are not, in {count} taps; first {first}"),
        });
        Ok(changes)
    }
}

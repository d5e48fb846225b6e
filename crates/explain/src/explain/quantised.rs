//! A run of which the products with weights are right, but in another arithmetic.

use std::collections::HashSet;

use firstdiff_compare::Place;
use firstdiff_trace::Tap;

use crate::explain::finding::{Cause, Finding, Match, OtherArithmetic};
use crate::mistakes::precision::PRECISION;
use crate::replay::Replay;
use crate::tolerance::search::ROUNDING_LEAVES;

impl OtherArithmetic {
    /// Whether an imitation gives the candidate's numbers, to a hundredth of the error.
    pub fn is_reproduced(&self) -> bool {
        self.nearest.is_some() && self.share <= ROUNDING_LEAVES
    }

    /// Takes its place among what was found: before all, where nothing else gives the same, and in place of what is unknown of the products.
    pub(crate) fn take_up(self, findings: &mut Vec<Finding>, replay: &Replay) {
        let of_it = |f: &Finding| f.shown_at.iter().all(|place| self.places.contains(place));
        let stated = |f: &Finding| f.matched == Match::Reproduced;
        let rounds = |f: &&Finding| stated(f) && f.is_another_arithmetic();
        let holds = |place: &Place| findings.iter().filter(rounds).any(|f| f.shown_at.contains(place));
        if !findings.iter().filter(rounds).any(of_it) && !self.places.iter().all(holds) {
            findings.retain(|f| stated(f) || !of_it(f));
            // What is wrong beside it in one place is not wrong in those that are off alike.
            for finding in findings.iter_mut().filter(|f| !stated(f)) {
                let is_other = |place: &Place| !self.places.contains(place);
                let (shown, off): (Vec<Place>, Vec<Place>) = finding.shown_at.iter().partition(|place| is_other(place));
                let is_off = |tap: &Tap| off.iter().any(|p| p.tap == *tap) && !shown.iter().any(|p| p.tap == *tap);
                finding.taps.retain(|tap| !is_off(tap));
                finding.remainders.retain(|left| is_other(&left.place));
                finding.shown_at = shown;
            }
            findings.insert(0, self.finding(replay));
        }
    }

    /// What is said of it as a finding: no operation is to blame.
    fn finding(self, replay: &Replay) -> Finding {
        let matched = match self.nearest {
            Some(_) if self.is_reproduced() => Match::Reproduced,
            Some(_) => Match::Closest,
            None => Match::Unknown,
        };
        let cause = self.nearest.map(|rounding| Cause { id: PRECISION.id, params: rounding.params() });
        let (stated, near) = if matched == Match::Reproduced { (cause, None) } else { (None, cause) };
        let mut met = HashSet::new();
        let off = replay.taps.iter().map(|t| t.report.place).filter(|place| self.places.contains(place));
        let taps = off.map(|place| place.tap).filter(|tap| met.insert(*tap)).collect();
        Finding {
            taps,
            shown_at: self.places.clone(),
            op: "linear".into(),
            cause: stated,
            residual_nmse: self.residual_nmse,
            base_nmse: self.nmse[1],
            alternatives: near.into_iter().collect(),
            arithmetic: Some(self),
            ..Finding::without_cause(matched)
        }
    }
}

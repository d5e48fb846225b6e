//! Handles runs of which only position 0 is known: every rotation is right there and attention has one key, so agreement shows nothing of either.

use std::collections::BTreeSet;
use std::ops::Range;

use firstdiff_trace::{Entry, Site, Tap};

use crate::graph::Place;
use crate::layout::rows::squeezed;
use crate::report::reason::Reason;
use crate::rules::{Changes, RuleResult};
use crate::run::steps::Chunks;
use crate::taps::context::{Compared, ComparisonContext, TapJudgement};
use crate::words::unravel;

impl ComparisonContext<'_> {
    /// What to report where, behind attention, only position 0 is known; and whether the reference has more positions.
    pub(crate) fn only_first_position(&self, taps: &[TapJudgement]) -> Option<(String, bool)> {
        let ranges = self.ranges();
        let judged = || taps.iter().zip(self.graph.places()).filter_map(judged);
        let all = judged().all(|(place, judged)| self.has_only_first_position(&ranges, place, judged));
        let mut later = judged().filter(|(place, _)| !is_by_position(place.tap)).peekable();
        let which = match (judged().next(), later.peek()) {
            (None, _) => return None,
            (Some(_), _) if all => "",
            (Some(_), Some(_)) => " from the rotations on",
            _ => return None,
        };
        later.all(|(place, judged)| self.has_only_first_position(&ranges, place, judged)).then(|| {
            let words = format!(
                "only position 0 is known of any tap{which}: no mistake in rotations, masks, attention scale or heads can show there"
            );
            (words, self.has_more() || judged().any(|(place, judged)| reference_positions(place, judged) > Some(1)))
        })
    }

    /// Makes rotations unchecked where only position 0 is known: there every rotation is right, so agreement proves nothing about the operation.
    pub(crate) fn doubt_rotations(&self, taps: &[TapJudgement]) -> RuleResult {
        let (ranges, more) = (self.ranges(), self.has_more());
        let rotated = |(place, _): &(Place, &Compared)| matches!(place.tap.site, Site::QRope | Site::KRope);
        let rotations = taps.iter().zip(self.graph.places()).filter_map(judged).filter(rotated);
        let seen_beyond: BTreeSet<Tap> = rotations
            .filter(|(place, judged)| !self.has_only_first_position(&ranges, *place, judged))
            .map(|(place, _)| place.tap)
            .collect();
        let shows_nothing = |&index: &usize| {
            let Some((place, judged)) = judged((&taps[index], &self.graph.places()[index])) else { return false };
            let turned = rotated(&(place, judged)) && !seen_beyond.contains(&place.tap);
            let more = more || reference_positions(place, judged) > Some(1);
            turned && more && judged.judgement.outcome.agrees() && self.has_only_first_position(&ranges, place, judged)
        };
        let doubted = (0..taps.len()).filter(shows_nothing);
        Ok(Changes::all(doubted, &TapJudgement::Unchecked(Reason::RotationAtZero)))
    }

    /// Whether only position 0 of a place was compared.
    fn has_only_first_position(&self, ranges: &[Range<usize>], place: Place, compared: &Compared) -> bool {
        let own = ranges.get(place.step as usize);
        // A single row of a run with an unknown number of tokens.
        if compared.part.is_none()
            && reference_positions(place, compared) == Some(1)
            && self.is_of_unknown_position(place)
        {
            return false;
        }
        if own.map_or(place.step > 0, |own| own.start > 0) {
            return false;
        }
        let axis = place.tap.site.position_axis();
        match (&compared.part, &compared.positions) {
            (Some(part), _) => part.elements.iter().all(|&at| unravel(at, &compared.shape).get(axis) == Some(&0)),
            (None, Some(positions)) => positions.iter().all(|&position| position == 0),
            // A single undeclared row of a longer step is its last.
            (None, None) => own.map_or(reference_positions(place, compared) == Some(1), |own| own.len() == 1),
        }
    }

    /// The reference's token positions of every step, or cell, where they are known.
    fn ranges(&self) -> Vec<Range<usize>> {
        match self.alignment() {
            Some(alignment) => alignment.cells.clone(),
            None => {
                Chunks::find(self.reference).as_ref().or(self.plan.chunks.as_ref()).map_or(Vec::new(), Chunks::ranges)
            }
        }
    }

    /// Whether the reference has more positions than one.
    fn has_more(&self) -> bool {
        let [reference, _] = self.recorded();
        let several = |entry: &Entry| {
            let (site, shape) = (entry.tap.site, squeezed(entry.tap.site, &entry.shape));
            entry.step > 0 || (shape.len() == site.axes().len() && shape[site.position_axis()] > 1)
        };
        Chunks::find(reference).is_some_and(|chunks| chunks.total() > 1) || reference.entries().iter().any(several)
    }
}

/// Whether a position's values depend on no other position here: the taps before the first rotation.
pub(super) fn is_by_position(tap: Tap) -> bool {
    use Site::{AttnNorm, H0, K, KNorm, Q, QNorm, V};
    tap.site == H0 || (tap.layer == Some(0) && matches!(tap.site, AttnNorm | Q | K | V | QNorm | KNorm))
}

fn judged<'a>((here, place): (&'a TapJudgement, &Place)) -> Option<(Place, &'a Compared)> {
    match here {
        TapJudgement::Compared(judged) => Some((*place, &**judged)),
        _ => None,
    }
}

/// How many positions the reference's tensor has.
fn reference_positions(place: Place, compared: &Compared) -> Option<usize> {
    compared.shape.get(place.tap.site.position_axis()).copied()
}

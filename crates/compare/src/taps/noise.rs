//! Compares a tap's error with the distance of a second right run.

use crate::graph::Place;
use crate::report::noise::TapNoise;
use crate::taps::context::{Compared, ComparisonContext, TapJudgement};
use crate::tolerance::context::NOISE_PASSED_ON;

impl ComparisonContext<'_> {
    /// Whether a tap beyond the second run's distance may only pass on errors: relative to that distance it is hardly further off than its inputs are,
    /// so that it is undecided. `before` are its inputs.
    pub(crate) fn passes_on_noise(
        &self,
        taps: &[TapJudgement],
        before: &[usize],
        here: &Compared,
        noise: TapNoise,
    ) -> bool {
        let ratio = |compared: &Compared, noise: TapNoise| compared.judgement.size().unwrap_or(0.0) / noise.nmse;
        let read = before.iter().filter_map(|&i| match &taps[i] {
            TapJudgement::Compared(judged) => Some(ratio(judged, self.noise(self.graph.places()[i])?)),
            _ => None,
        });
        here.judgement.outcome.differs_by_size() && ratio(here, noise) <= NOISE_PASSED_ON * read.fold(0.0, f64::max)
    }

    /// How far a second right run is from the reference here.
    pub(crate) fn noise(&self, place: Place) -> Option<TapNoise> {
        self.options.noise.as_ref()?.distance_at(place)
    }
}

//! Measures the distance of a second right run from the reference, tap by tap: it bounds what another arithmetic may do.

use std::collections::BTreeMap;

use firstdiff_trace::Site;

use crate::graph::Place;
use crate::report::{Report, TapReport};
use crate::tolerance::context::{FEW_NOISE_ROWS, NOISE_OF_FEW_ROWS, NOISE_ROW_ROOM};
use crate::tolerance::judge::SECOND_RUN_LIMIT;

/// The distance of a second right run from the reference.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Noise {
    taps: BTreeMap<Place, TapNoise>,
}

/// The distance at one tap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TapNoise {
    /// NMSE of the second run against the reference.
    pub nmse: f64,
    /// NMSE of its position that is furthest off.
    pub worst_position: f64,
    /// The factor on the reference that comes nearest to the second run.
    pub factor: f64,
    /// Whether one of its own heads or channels stands out: then that is no sign of a fault.
    pub has_structure: bool,
}

impl TapNoise {
    /// How far a factor may be from 1, given that of the second run.
    pub(crate) fn factor_off(self) -> f64 {
        2.0 * (self.factor - 1.0).abs()
    }

    /// How far off a single position may be.
    pub(crate) fn position(self) -> f64 {
        NOISE_ROW_ROOM * self.worst_position
    }

    /// Whether the second run is too far off to serve as a measure, or NaN.
    pub fn is_too_far(self) -> bool {
        self.nmse.is_nan() || self.nmse > SECOND_RUN_LIMIT
    }
}

/// Token positions of a tap that was compared.
fn rows(tap: &TapReport) -> usize {
    tap.shape.get(tap.place.tap.site.position_axis()).copied().unwrap_or(0)
}

impl Noise {
    /// The distances by the comparison of the second run with the reference, for the places that `both` recorded. A tap that is equal bit for bit shows
    /// nothing about another arithmetic.
    pub fn measure(report: &Report, both_recorded: impl Fn(Place) -> bool) -> Noise {
        let of_tap = |tap: &TapReport| {
            // A tap that both recorded but that could not be compared counts as infinitely far off.
            let nmse = tap.size().unwrap_or(f64::INFINITY);
            let factor = tap.metrics.and_then(|m| m.best_factor()).map_or(1.0, |best| best.factor);
            let worst_position = tap.worst_position.unwrap_or(f64::INFINITY);
            (nmse != 0.0).then_some((tap.place, TapNoise { nmse, worst_position, factor, has_structure: false }))
        };
        let both = |tap: &&TapReport| both_recorded(tap.place);
        let mut noise = Noise { taps: report.taps.iter().filter(both).filter_map(of_tap).collect() };
        // One or two rows may be nearer by chance than the same tap usually is.
        let few = report.taps.iter().filter(|tap| rows(tap) < FEW_NOISE_ROWS && noise.taps.contains_key(&tap.place));
        let few: Vec<Place> = few.map(|tap| tap.place).collect();
        let most = |place: &Place| {
            let own = noise.taps[place];
            let same = noise.taps.iter().filter(|(other, _)| other.tap == place.tap).map(|(_, noise)| *noise);
            let most = same.max_by(|a, b| a.nmse.total_cmp(&b.nmse))?;
            let nmse = most.nmse.min(NOISE_OF_FEW_ROWS * own.nmse);
            let worst_position = most.worst_position.min(NOISE_OF_FEW_ROWS * own.worst_position);
            Some((*place, TapNoise { nmse, worst_position, ..most }))
        };
        let worst: Vec<(Place, TapNoise)> = few.iter().filter_map(most).collect();
        noise.taps.extend(worst);
        noise
    }

    /// Takes over which taps have structure, from the comparison of the second run within its own distance.
    pub fn has_structure_in(&mut self, itself: &Report) {
        for tap in itself.taps.iter().filter(|tap| tap.status.differs()) {
            if let Some(noise) = self.taps.get_mut(&tap.place) {
                noise.has_structure = true;
            }
        }
    }

    /// The distance at a place, where it is known and not 0.
    pub fn distance_at(&self, place: Place) -> Option<TapNoise> {
        self.taps.get(&place).copied()
    }

    /// Whether the second run equals the reference, as far as it was compared.
    pub fn is_none(&self) -> bool {
        self.taps.keys().all(|place| place.tap.site == Site::H0)
    }

    /// Every place that was measured.
    pub fn places(&self) -> impl Iterator<Item = (Place, TapNoise)> + '_ {
        self.taps.iter().map(|(place, noise)| (*place, *noise))
    }
}

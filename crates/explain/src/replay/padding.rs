//! Blames scores whose keys of padding queries see, and not what reads those keys.

use firstdiff_compare::{Place, SeenPadding, Status, TapReport};
use firstdiff_trace::{Site, Tap};

use crate::replay::Replayed;
use crate::replay::reason::{Reason, UnfitInput};

/// Blames the scores that leave keys of padding unmasked, and not what reads those keys.
pub(crate) fn blame_unmasked_padding(all: &[SeenPadding], taps: &mut [Replayed]) {
    for seen in all {
        let places: Vec<Place> = seen.places().collect();
        for tap in taps.iter_mut().filter(|tap| places.contains(&tap.report.place)) {
            let (place, status) = (tap.report.place, tap.report.status);
            if place == seen.scores && status != Status::Diverged {
                tap.report.status = Status::Diverged;
                tap.reason = Some(Reason::Padding(seen.to_string()));
            } else if place != seen.scores && status == Status::Diverged {
                let site = if place.tap.site == Site::Context { Site::Probs } else { Site::Scores };
                let reason = Reason::Input { tap: Tap { site, ..place.tap }, why: UnfitInput::Padding };
                let report = TapReport::unchecked(place, tap.report.op.clone());
                *tap = Replayed { reason: Some(reason), from: std::mem::take(&mut tap.from), ..Replayed::of(report) };
            }
        }
    }
}

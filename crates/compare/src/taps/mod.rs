//! Every tap judged, in forward order: as recorded, in the layout that fits, against what its operation may have passed on.

pub(crate) mod cache;
pub(crate) mod context;
pub(crate) mod flat;
pub(crate) mod last_rows;
pub(crate) mod noise;
pub(crate) mod open;
pub(crate) mod partial;
pub(crate) mod propagation;
pub(crate) mod ranks;
pub(crate) mod tap;

use firstdiff_trace::DumpError;

use crate::graph::Place;
use crate::report::reason::{Reason, Side};
use crate::taps::context::{Found, Run};

impl Run<'_> {
    /// Judges one place.
    pub(crate) fn look(&self, place: Place) -> Result<Found, DumpError> {
        if self.options.only.as_ref().is_some_and(|only| !only.contains(&place)) {
            return Ok(Found::Nothing);
        }
        if place.tap.is_open() {
            return self.look_open(place);
        }
        if let Some(found) = self.look_in_part(place)? {
            return Ok(found);
        }
        if let Some(reason) = self.lacks_a_rank(place) {
            return Ok(Found::NotComparable(reason));
        }
        let (left, right) = match self.both(place) {
            (Some(left), Some(right)) => (left, right),
            (Some(_), None) | (None, Some(_)) if let Some(reason) = self.apart(place) => {
                return Ok(Found::NotComparable(reason));
            }
            (Some(_), None) => return Ok(Found::Unchecked(Reason::NotIn(Side::Candidate))),
            (None, Some(_)) => return Ok(Found::Unchecked(Reason::NotIn(Side::Reference))),
            (None, None) => return Ok(Found::Nothing),
        };
        if let Some(reason) = self.options.alignment.as_ref().and_then(|alignment| alignment.unchecked.get(&place)) {
            return Ok(Found::NotComparable(Reason::Unaligned(reason.clone())));
        }
        if self.misaligned.is_some() {
            return Ok(Found::NotComparable(Reason::OtherTokens));
        }
        if let Some(found) = self.flat(&left, &right)? {
            return Ok(found);
        }
        if let Some(noise) = self.noise(place).filter(|noise| noise.is_drowned()) {
            return Ok(Found::NotComparable(Reason::Drowned { nmse: noise.nmse }));
        }
        let (reference, candidate) = (self.reference.read(&left)?, self.candidate.read(&right)?);
        let (reference, candidate) = (reference.values(), candidate.values());
        let allowed = self.allowance(place, self.allowed(place, &left, &right));
        Ok(self.lay(&left, &reference, &right, &candidate).judge(&allowed))
    }
}

//! Taps outside the vocabulary: compared as they stand, as nobody knows what their axes are.

use firstdiff_trace::{Dump, DumpError, Entry};

use crate::graph::Place;
use crate::judge::tensor::Outcome;
use crate::layout::shapes::match_shapes;
use crate::report::reason::{Reason, Side};
use crate::taps::context::{Found, Run};

/// Fewer values than this in a row are no row to be judged by itself.
const LEAST_ROW: usize = 8;

impl Run<'_> {
    /// Judges a place of a tap that the vocabulary does not have. What nobody declares to be a tap is never blamed.
    pub(crate) fn look_open(&self, place: Place) -> Result<Found, DumpError> {
        let (left, right) = match self.both_open(place) {
            (Some(left), Some(right)) => (left, right),
            (Some(_), None) => return Ok(Found::Unchecked(Reason::NotIn(Side::Candidate))),
            (None, Some(_)) => return Ok(Found::Unchecked(Reason::NotIn(Side::Reference))),
            (None, None) => return Ok(Found::Nothing),
        };
        let rows_asked = self.options.rows.as_ref().is_some_and(|rows| !rows.is_all());
        if rows_asked && !self.is_by_token(place, &left) {
            return Ok(Found::Unchecked(Reason::AxesUnknown));
        }
        let shape = self.reference.find_open(place.tap, place.step).map_or_else(Vec::new, |entry| entry.shape);
        let found = match self.noise(place).filter(|noise| noise.is_drowned()) {
            _ if self.misaligned.is_some() => Found::NotComparable(Reason::OtherTokens),
            Some(noise) => Found::NotComparable(Reason::Drowned { nmse: noise.nmse }),
            None => {
                let (reference, candidate) = (self.reference.read(&left)?, self.candidate.read(&right)?);
                let (reference, candidate) = (reference.values(), candidate.values());
                let allowed = self.allowance(place, self.allowed(place, &left, &right));
                self.lay(&left, &reference, &right, &candidate).judge(&allowed)
            }
        };
        Ok(match found {
            found if self.open.is_declared(place.tap) => match found {
                Found::Judged(mut judged) => {
                    judged.shape = if judged.positions.is_none() { shape } else { judged.shape };
                    Found::Judged(judged)
                }
                found => found,
            },
            Found::Judged(judged) => match judged.judgement.outcome {
                Outcome::Differs(_) | Outcome::Inconclusive => Found::Unchecked(Reason::Undeclared),
                _ => Found::Judged(judged),
            },
            Found::ShapeMismatch(_) | Found::NotComparable(_) | Found::Inconclusive(_) => {
                Found::Unchecked(Reason::Undeclared)
            }
            found => found,
        })
    }

    /// Both sides of a tap that the vocabulary does not have, where their shapes fit: by token where the first axis of both is the step's tokens, else as
    /// one row, as nobody knows what a row of it is.
    pub(crate) fn both_open(&self, place: Place) -> (Option<Entry>, Option<Entry>) {
        let held = |dump: &Dump| dump.find_open(place.tap, place.step);
        let (Some(mut left), Some(mut right)) = (held(self.reference), held(self.candidate)) else {
            return (held(self.reference), held(self.candidate));
        };
        let by_token = [&left, &right].iter().all(|entry| self.is_by_token(place, entry));
        if !by_token && match_shapes(place.tap.site, &left.shape, &right.shape).is_some() {
            for entry in [&mut left, &mut right] {
                (entry.shape, entry.rows) = (vec![1, entry.shape.iter().product()], None);
            }
        }
        (Some(left), Some(right))
    }

    /// Whether the first axis of a tensor is that of its step's tokens, as far as its extent tells.
    fn is_by_token(&self, place: Place, entry: &Entry) -> bool {
        let tokens = self.lengths.iter().find_map(|lengths| lengths.get(&place.step)).copied();
        let row: usize = entry.shape.iter().skip(1).product();
        entry.shape.len() > 1 && row >= LEAST_ROW && tokens.is_some() && entry.shape.first().copied() == tokens
    }
}

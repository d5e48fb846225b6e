//! Gains whose place moves on from row to row: a pointer that is not set back.

use super::{Right, matrix};
use crate::case::Case;
use crate::identify::after::Offers;
use crate::law::{Form, Law};

/// Channels by which the gain moves on with each row.
const STEPS: [isize; 10] = [1, -1, 2, -2, 4, -4, 8, 16, 32, 64];

/// Row r has for channel i the gain of channel i + c r, around the end.
pub(super) fn drifting(case: &Case<'_>) -> Vec<Law> {
    let mut offers = Offers::of(case);
    for step in STEPS {
        let words = format!(
            "the gain moves on with each row: channel i of row r has that of channel i {step:+} r, around the end"
        );
        offers.offer(Form::NormGain, words, 8.0 + (step.unsigned_abs() as f64).log2(), move |case, at| {
            let place = &case.places[at];
            let right = Right::of(case, at)?;
            let mut out = right.inner(&matrix(place.inputs.first()?)?);
            let divisors = right.divisor(&out);
            let width = isize::try_from(right.gain.len()).ok()?;
            for (r, (mut row, by)) in out.rows_mut().into_iter().zip(&divisors).enumerate() {
                let moved = step * isize::try_from(r).ok()?;
                for (i, x) in row.iter_mut().enumerate() {
                    let from = (i as isize + moved).rem_euclid(width) as usize;
                    *x = *x / by * right.gain[from] + right.bias[i];
                }
            }
            out.to_shape(place.right.raw_dim()).ok().map(|out| out.into_owned())
        });
    }
    offers.laws
}

//! Gains whose place moves on from row to row: a pointer that is not set back.

use super::output_of;
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
            output_of(case, at, |right, x| {
                let mut out = right.inner(&x);
                let (divisors, width) = (right.divisor(&out), isize::try_from(right.gain.len()).ok()?);
                for (r, (mut row, by)) in out.rows_mut().into_iter().zip(&divisors).enumerate() {
                    for (i, x) in row.iter_mut().enumerate() {
                        let from = (i as isize + step * r as isize).rem_euclid(width) as usize;
                        *x = *x / by * right.gain[from] + right.bias[i];
                    }
                }
                Some(out)
            })
        });
    }
    offers.laws
}

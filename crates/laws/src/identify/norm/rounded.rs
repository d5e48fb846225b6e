//! Norms that are rounded on their way: the row over its divisor, or the gain.

use super::{Right, matrix};
use crate::case::Case;
use crate::identify::after::Offers;
use crate::identify::output::roundings::digits;
use crate::law::{Form, Law};

/// The row over its divisor rounded before the gain, or the gain rounded.
pub(super) fn rounded(case: &Case<'_>) -> Vec<Law> {
    let mut offers = Offers::of(case);
    for (words, bits, f) in digits() {
        for of_gain in [false, true] {
            let said = match of_gain {
                true => format!("the gain is {words}"),
                false => format!("rows over their divisors are {words} before the gain"),
            };
            let f = f.clone();
            offers.offer(Form::NormGain, said, bits + 2.0, move |case, at| {
                let place = &case.places[at];
                let right = Right::of(place)?;
                let mut out = right.inner(&matrix(place.inputs.first()?)?);
                let divisors = right.divisor(&out);
                for (mut row, by) in out.rows_mut().into_iter().zip(&divisors) {
                    for (x, (gain, bias)) in row.iter_mut().zip(right.gain.iter().zip(&right.bias)) {
                        *x = if of_gain { *x / by * f(*gain) } else { f(*x / by) * gain } + bias;
                    }
                }
                out.to_shape(place.right.raw_dim()).ok().map(|out| out.into_owned())
            });
        }
    }
    offers.laws
}

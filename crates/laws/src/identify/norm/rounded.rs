//! Norms that are rounded on their way: the mean square, its root, one over it, the row over its divisor, or the gain.

use super::{Right, matrix, mean_square};
use crate::case::Case;
use crate::identify::after::Offers;
use crate::identify::output::roundings::digits;
use crate::law::{Form, Law};

/// What of a norm is rounded.
#[derive(Clone, Copy)]
enum What {
    MeanSquare,
    Divisor,
    Inverse,
    Quotient,
    Gain,
}

impl What {
    fn said(self, how: &str) -> String {
        match self {
            What::MeanSquare => format!("the mean square of each row is {how} before its root is taken"),
            What::Divisor => format!("the divisor of each row is {how}"),
            What::Inverse => format!("one over the divisor of each row is {how}"),
            What::Quotient => format!("rows over their divisors are {how} before the gain"),
            What::Gain => format!("the gain is {how}"),
        }
    }

    fn form(self) -> Form {
        match self {
            What::MeanSquare | What::Divisor | What::Inverse => Form::NormDivisor,
            What::Quotient | What::Gain => Form::NormGain,
        }
    }
}

/// One value on the way of a norm rounded.
pub(super) fn rounded(case: &Case<'_>) -> Vec<Law> {
    let mut offers = Offers::of(case);
    for (words, bits, f) in digits() {
        for what in [What::MeanSquare, What::Divisor, What::Inverse, What::Quotient, What::Gain] {
            let f = f.clone();
            offers.offer(what.form(), what.said(&words), bits + 2.0, move |case, at| {
                let place = &case.places[at];
                let right = Right::of(place)?;
                let mut out = right.inner(&matrix(place.inputs.first()?)?);
                for mut row in out.rows_mut() {
                    let square = mean_square(&row.to_vec());
                    let by = match what {
                        What::MeanSquare => 1.0 / (f(square) + right.epsilon).sqrt(),
                        What::Divisor => 1.0 / f((square + right.epsilon).sqrt()),
                        What::Inverse => f(1.0 / (square + right.epsilon).sqrt()),
                        What::Quotient | What::Gain => 1.0 / (square + right.epsilon).sqrt(),
                    };
                    for (x, (gain, bias)) in row.iter_mut().zip(right.gain.iter().zip(&right.bias)) {
                        *x = match what {
                            What::Quotient => f(*x * by) * gain,
                            What::Gain => *x * by * f(*gain),
                            What::MeanSquare | What::Divisor | What::Inverse => *x * by * gain,
                        } + bias;
                    }
                }
                out.to_shape(place.right.raw_dim()).ok().map(|out| out.into_owned())
            });
        }
    }
    offers.laws
}

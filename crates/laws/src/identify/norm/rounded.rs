//! Norms that are rounded on their way: the values, their squares, the mean square, its root, one over it, the row over its divisor, or the gain.

use ndarray::{ArrayD, ArrayView1};

use super::output_of;
use crate::case::Case;
use crate::identify::after::Offers;
use crate::identify::linear::accumulated::Kept;
use crate::identify::output::roundings::digits;
use crate::identify::statistics::mean_square;
use crate::law::{Form, Law};

/// What of a norm is rounded.
#[derive(Clone, Copy)]
enum What {
    /// For the divisor: the values, their squares, and the mean of these.
    MeanSquare([bool; 3]),
    Divisor,
    Inverse,
    Quotient,
    Gain,
}

impl What {
    fn said(self, how: &str) -> String {
        match self {
            What::MeanSquare([false, false, true]) => {
                format!("the mean square of each row is {how} before its root is taken")
            }
            What::MeanSquare(which) => {
                let all = ["the values", "their squares", "the mean of these"].into_iter().zip(which);
                let these: Vec<&str> = all.filter(|(_, is_it)| *is_it).map(|(words, _)| words).collect();
                format!("for the divisor of each row {} are {how}", these.join(" and "))
            }
            What::Divisor => format!("the divisor of each row is {how}"),
            What::Inverse => format!("one over the divisor of each row is {how}"),
            What::Quotient => format!("rows over their divisors are {how} before the gain"),
            What::Gain => format!("the gain is {how}"),
        }
    }

    fn form(self) -> Form {
        match self {
            What::MeanSquare(_) | What::Divisor | What::Inverse => Form::NormDivisor,
            What::Quotient | What::Gain => Form::NormGain,
        }
    }
}

/// All of them.
fn all() -> impl Iterator<Item = What> {
    let which = (1..8).map(|which| What::MeanSquare([which & 1 > 0, which & 2 > 0, which & 4 > 0]));
    which.chain([What::Divisor, What::Inverse, What::Quotient, What::Gain])
}

/// One value on the way of a norm rounded.
pub(super) fn rounded(case: &Case<'_>) -> Vec<Law> {
    let mut offers = Offers::of(case);
    for (words, bits, f) in digits() {
        for what in all() {
            let f = f.clone();
            offers.offer(what.form(), what.said(&words), bits + 2.0, move |case, at| {
                let inverse = |row: ArrayView1<'_, f64>, epsilon: f64| {
                    let square = mean_square(&row.to_vec());
                    let same = |x: f64| x;
                    match what {
                        What::MeanSquare(which) => {
                            let [value, each, mean] = which.map(|is_it| if is_it { &*f } else { &same });
                            let sum = row.iter().map(|x| each(value(*x) * value(*x))).sum::<f64>();
                            1.0 / (mean(sum / row.len() as f64) + epsilon).sqrt()
                        }
                        What::Divisor => 1.0 / f((square + epsilon).sqrt()),
                        What::Inverse => f(1.0 / (square + epsilon).sqrt()),
                        What::Quotient | What::Gain => 1.0 / (square + epsilon).sqrt(),
                    }
                };
                normed(case, at, &inverse, &|quotient, gain| match what {
                    What::Quotient => f(quotient) * gain,
                    What::Gain => quotient * f(gain),
                    What::MeanSquare(_) | What::Divisor | What::Inverse => quotient * gain,
                })
            });
        }
    }
    in_few_digits(&mut offers);
    estimated(&mut offers);
    offers.laws
}

/// A norm by what each row is multiplied with, of the row and epsilon, and what that and the gain make of an element.
fn normed(
    case: &Case<'_>,
    at: usize,
    inverse: &dyn Fn(ArrayView1<'_, f64>, f64) -> f64,
    made: &dyn Fn(f64, f64) -> f64,
) -> Option<ArrayD<f64>> {
    output_of(case, at, |right, x| {
        let mut out = right.inner(&x);
        for mut row in out.rows_mut() {
            let by = inverse(row.view(), right.epsilon);
            for (x, (gain, bias)) in row.iter_mut().zip(right.gain.iter().zip(&right.bias)) {
                *x = made(*x * by, *gain) + bias;
            }
        }
        Some(out)
    })
}

/// Norms by another 1/root of each row's squares.
fn offer_inverse(
    offers: &mut Offers<'_>,
    words: String,
    inverse: impl Fn(ArrayView1<'_, f64>, f64) -> f64 + Send + Sync + 'static,
) {
    offers.offer(Form::NormDivisor, words, 12.0, move |case, at| {
        normed(case, at, &inverse, &|quotient, gain| quotient * gain)
    });
}

/// Sums of squares that are rounded as they grow.
fn in_few_digits(offers: &mut Offers<'_>) {
    for kept in Kept::ways(64) {
        let words = format!("of each row's squares {}", kept.words());
        offer_inverse(offers, words, move |row, epsilon| {
            1.0 / (kept.sum(row, row) / row.len() as f64 + epsilon).sqrt()
        });
    }
}

/// The inverse root by the bits of a float: half of them taken from a number, and some steps of Newton. In f32, as it is written.
fn estimated(offers: &mut Offers<'_>) {
    for magic in [0x5f37_59df_u32, 0x5f37_5a86, 0x5f34_ff59] {
        for steps in 0..=2usize {
            let how = match steps {
                0 => "without a step of Newton".to_owned(),
                1 => "with one step of Newton".to_owned(),
                n => format!("with {n} steps of Newton"),
            };
            let words = format!(
                "one over the root is estimated by bits, {magic:#x} less half of those of the mean square, {how}"
            );
            offer_inverse(offers, words, move |row, epsilon| {
                let square = (mean_square(&row.to_vec()) + epsilon) as f32;
                let begin = f32::from_bits(magic.wrapping_sub(square.to_bits() >> 1));
                f64::from((0..steps).fold(begin, |y, _| y * (1.5 - 0.5 * square * y * y)))
            });
        }
    }
}

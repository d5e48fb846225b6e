//! Keys that the softmax does not reach: their memory keeps what it held before.

use ndarray::{Array2, Array3, Zip};

use crate::case::{Axis, Case};
use crate::describe::mask::describe;
use crate::identify::after::Offers;
use crate::identify::attention::{Right, cube, softmax};
use crate::law::Form;

/// What the memory of a key holds before the softmax, of its score and the scale: with words.
type Held = (&'static str, fn(f64, f64) -> f64);
const HELD: [Held; 3] = [
    ("their scores as they are", |score, _| score),
    ("their scores before they are scaled", |score, scale| score / scale),
    ("exp of their scores", |score, _| score.exp()),
];

/// Errors of rounding's size within which a value is what was held.
const ROOM: f64 = 10.0;

/// Offers softmaxes over some keys, the others kept as they were.
pub(super) fn kept(case: &Case<'_>, offers: &mut Offers<'_>) {
    let first = case.first();
    let (Some(right), Some(own)) = (Right::of(first), cube(&first.own)) else { return };
    for (what, held) in HELD {
        let before = before(&right, held);
        let is = |at: (usize, usize, usize)| {
            (own[at] - before[at]).abs() <= ROOM * first.noise() * (1.0 + before[at].abs()) && own[at] != 0.0
        };
        let (heads, rows, keys) = own.dim();
        let is_kept = Array2::from_shape_fn((rows, keys), |(t, s)| Some((0..heads).all(|h| is((h, t, s)))));
        let Some(mask) =
            is_kept.iter().any(|is| *is == Some(true)).then(|| describe(&is_kept, case.tokens_of(Axis::Key))).flatten()
        else {
            continue;
        };
        let words = format!("the softmax does not reach {}: these keep {what}", mask.words);
        let sees = mask.sees;
        offers.offer(Form::Denominator, words, 9.0 + mask.bits, move |case, at| {
            let right = Right::of(&case.places[at])?;
            let (_, rows, keys) = right.scores.dim();
            (sees.dim() == (rows, keys)).then(|| of_the_others(&right, held, &sees).into_dyn())
        });
    }
}

/// `[H,T,S]`: what was held before the softmax.
fn before(right: &Right, held: fn(f64, f64) -> f64) -> Array3<f64> {
    Array3::from_shape_fn(right.scores.dim(), |at| held(right.scores[at], right.scale[at.0]))
}

/// A softmax over the keys that are seen and not kept.
fn of_the_others(right: &Right, held: fn(f64, f64) -> f64, is_kept: &Array2<bool>) -> Array3<f64> {
    let (heads, rows, _) = right.scores.dim();
    let mut reached = right.sees.clone();
    reached.outer_iter_mut().for_each(|mut sees| sees.zip_mut_with(is_kept, |sees, is| *sees &= !is));
    let mut out = softmax(&right.scores, &reached, &Array2::zeros((heads, rows)));
    for (mut out, before) in out.outer_iter_mut().zip(before(right, held).outer_iter()) {
        Zip::from(&mut out).and(before).and(is_kept).for_each(|out, before, is| {
            if *is {
                *out = *before;
            }
        });
    }
    out
}

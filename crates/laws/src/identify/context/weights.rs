//! Weights of values that are no longer the probabilities: a softmax over blocks of keys that is put together wrongly, sums that are kept in few digits.

use ndarray::{Array3, s};

use super::{Operands, context, law};
use crate::case::Case;
use crate::fit::ROOM;
use crate::identify::after::Offers;
use crate::identify::linear::accumulated::{Kept, LEAST};
use crate::identify::softmax::over_blocks;
use crate::law::{Form, Law};

/// The values weighed by a softmax over blocks of keys, of which a step is wrong: the logarithm of a probability is its score.
pub(super) fn in_blocks(case: &Case<'_>) -> Vec<Law> {
    let mut offers = Offers::of(case);
    let keys = case.first().inputs[0].shape().last().copied().unwrap_or(0);
    for (words, bits, of) in over_blocks(keys) {
        let words = format!("values are summed as if {words}");
        offers.offer(Form::ContextWeights, words, bits + 1.0, move |case, at| {
            let operands = Operands::of(&case.places[at])?;
            let mut probs = Array3::zeros(operands.probs.dim());
            for (h, head) in operands.probs.outer_iter().enumerate() {
                for (t, row) in head.outer_iter().enumerate() {
                    let seen: Vec<usize> = (0..row.len()).filter(|&s| row[s] > 0.0).collect();
                    let scores: Vec<f64> = seen.iter().map(|&s| row[s].ln()).collect();
                    if !seen.is_empty() {
                        let made = of(t, &seen, &scores);
                        seen.iter().zip(made).for_each(|(&s, p)| probs[[h, t, s]] = p);
                    }
                }
            }
            Some(context(&probs, &operands.met()).into_dyn())
        });
    }
    offers.laws
}

/// Multiplications of a context that sums are tried on.
const MOST: usize = 1 << 22;

/// Sums over keys that are rounded after each of them.
pub(super) fn kept_short(case: &Case<'_>, own: &Array3<f64>) -> Vec<Law> {
    let first = case.first();
    let before = crate::fit::nmse(&first.right, &first.own).sqrt();
    let Some(of) = Operands::of(first).filter(|of| of.probs.len() * of.values.shape()[2] <= MOST) else {
        return Vec::new();
    };
    if before < LEAST {
        return Vec::new();
    }
    let made = |of: &Operands, kept: Kept| {
        let met = of.met();
        Array3::from_shape_fn((of.probs.shape()[1], of.probs.shape()[0], met.shape()[2]), |(t, h, i)| {
            kept.sum(of.probs.slice(s![h, t, ..]), met.slice(s![.., h, i]))
        })
    };
    let size = own.iter().map(|y| y * y).sum::<f64>().max(f64::MIN_POSITIVE);
    let mut laws = Vec::new();
    for kept in Kept::ways(32) {
        let off = (made(&of, kept) - own).mapv(|x| x * x).sum();
        // A value on the edge between two steps may be either of them.
        if (off / size).sqrt() <= (0.1 * before).max(ROOM * first.noise()) {
            let words = format!("over keys, {}", kept.words());
            laws.push(law(Form::ContextWeights, words, 12.0, move |_, _, of| Some(made(&of, kept))));
        }
    }
    laws
}

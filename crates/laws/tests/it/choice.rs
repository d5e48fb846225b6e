//! Laws of a router's choice.

use firstdiff_laws::{Axis, Kind};
use ndarray::{ArrayD, IxDyn};

use crate::plant::{Rounded, law_of, said};

const AXES: [Axis; 2] = [Axis::Token, Axis::Channel];
const SHAPE: [usize; 2] = [20, 6];

/// The two experts with the largest scores of each position.
fn best(scores: impl Fn(usize, usize) -> f64) -> ArrayD<f64> {
    let of = |t: usize| {
        let mut order: Vec<usize> = (0..SHAPE[1]).collect();
        order.sort_by(|&a, &b| scores(t, b).total_cmp(&scores(t, a)));
        order
    };
    ArrayD::from_shape_fn(IxDyn(&[SHAPE[0], 2]), |at| of(at[0])[at[1]] as f64)
}

fn chosen(_: usize, x: &[ArrayD<f64>]) -> ArrayD<f64> {
    best(|t, e| x[0][[t, e]])
}

/// The same, where a token that has the experts that are due has them in their order.
fn held(x: &[ArrayD<f64>], scores: impl Fn(usize, usize) -> f64) -> ArrayD<f64> {
    let (mut own, due) = (best(scores), chosen(0, x));
    for t in 0..SHAPE[0] {
        if own[[t, 0]] == due[[t, 1]] && own[[t, 1]] == due[[t, 0]] {
            (own[[t, 0]], own[[t, 1]]) = (due[[t, 0]], due[[t, 1]]);
        }
    }
    own
}

fn choice_law(wrong: fn(usize, &[ArrayD<f64>]) -> ArrayD<f64>) -> String {
    said(&law_of(Kind::Choice, &AXES, &[&SHAPE], chosen, wrong, Rounded::F32))
}

#[test]
fn a_choice_is_that_of_another_position() {
    let law = choice_law(|_, x| held(x, |_, e| x[0][[0, e]]));
    assert!(law.contains("each token has the choice of always position 0"), "{law}");
    let law = choice_law(|_, x| held(x, |t, e| x[0][[if t < 10 { t } else { t - 10 }, e]]));
    assert!(law.contains("each token has the choice of position i mod 10"), "{law}");
    let law = choice_law(|_, x| held(x, |t, e| x[0][[t.min(11), e]]));
    assert!(law.contains("each token has the choice of position i, at most 11"), "{law}");
    let law = choice_law(|_, x| held(x, |t, e| x[0][[t.saturating_sub(1), e]]));
    assert!(law.contains("each token has the choice of position i-1 (before the first: itself)"), "{law}");
}

#[test]
fn something_is_added_to_one_score() {
    let law = choice_law(|_, x| held(x, |t, e| x[0][[t, e]] + if e == 2 { 1.0 } else { 0.0 }));
    assert!(law.contains("is added to the score of expert 2 where experts are chosen"), "{law}");
}

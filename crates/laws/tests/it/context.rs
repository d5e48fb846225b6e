use firstdiff_laws::{Axis, Kind};
use ndarray::ArrayD;

use crate::plant::{Numbers, Rounded, law_of_inputs, said};

const AXES: [Axis; 3] = [Axis::Token, Axis::Head, Axis::Dim];
const T: usize = 12;
const HEADS: usize = 4;
const KEY_HEADS: usize = 2;
const WIDTH: usize = 8;

fn inputs(numbers: &mut Numbers) -> Vec<ArrayD<f64>> {
    let scores = numbers.tensor(&[HEADS, T, T]);
    let mut probs = ArrayD::zeros(vec![HEADS, T, T]);
    for h in 0..HEADS {
        for t in 0..T {
            let sum: f64 = (0..=t).map(|s| scores[[h, t, s]].exp()).sum();
            (0..=t).for_each(|s| probs[[h, t, s]] = scores[[h, t, s]].exp() / sum);
        }
    }
    vec![probs, numbers.tensor(&[T, KEY_HEADS, WIDTH])]
}

fn context(x: &[ArrayD<f64>], value: impl Fn(usize, usize, usize, usize) -> f64) -> ArrayD<f64> {
    ArrayD::from_shape_fn(vec![T, HEADS, WIDTH], |at| {
        let (t, h, d) = (at[0], at[1], at[2]);
        (0..T).map(|s| x[0][[h, t, s]] * value(t, h, s, d)).sum()
    })
}

fn law(wrong: fn(usize, &[ArrayD<f64>]) -> ArrayD<f64>) -> String {
    said(&law_of_inputs(
        Kind::Context,
        &AXES,
        inputs,
        |_, x| context(x, |_, h, s, d| x[1][[s, h / 2, d]]),
        wrong,
        Rounded::F32,
    ))
}

#[test]
fn heads_values_and_weights() {
    let is = |wrong: fn(usize, &[ArrayD<f64>]) -> ArrayD<f64>, words: &str| {
        let law = law(wrong);
        assert!(law.contains(words), "{law} instead of {words}");
    };
    is(|_, x| context(x, |_, h, s, d| x[1][[s, h % 2, d]]), "h mod 2");
    is(|_, x| context(x, |_, h, s, d| x[1][[(s + 1).min(T - 1), h / 2, d]]), "position i+1 (never behind the last)");
    is(|_, x| context(x, |_, h, s, d| if s == 0 { 0.0 } else { x[1][[s, h / 2, d]] }), "(the first position)");
    is(|_, x| context(x, |t, h, s, d| if t == s { 2.0 } else { 1.0 } * x[1][[s, h / 2, d]]), "2");
    is(|_, x| context(x, |t, h, s, d| x[1][[s, h / 2, d]] + if t == s { 0.0 } else { 0.5 }), "none");
}

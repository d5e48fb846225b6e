use firstdiff_laws::{Axis, Kind};
use ndarray::{ArrayD, s};

use crate::plant::{Rounded, law_of, said};

const AXES: [Axis; 2] = [Axis::Token, Axis::Channel];
const SHAPE: [usize; 2] = [12, 32];

fn law(wrong: fn(usize, &[ArrayD<f64>]) -> ArrayD<f64>) -> String {
    said(&law_of(Kind::Sum, &AXES, &[&SHAPE, &SHAPE], |_, x| &x[0] + &x[1], wrong, Rounded::F32))
}

#[test]
fn terms_and_coefficients() {
    let is = |wrong: fn(usize, &[ArrayD<f64>]) -> ArrayD<f64>, words: &str| {
        let law = law(wrong);
        assert!(law.contains(words), "{law} instead of {words}");
    };
    is(|_, x| x[0].clone(), "left out: its first operand goes through");
    is(|_, x| &x[0] + 1.003 * &x[1], "1.003 times");
    is(|_, x| &x[0] + 2.0 * &x[1], "2 times the");
    is(
        |_, x| {
            let mut out = x[0].clone();
            out.slice_mut(s![1.., ..]).scaled_add(1.0, &x[1].slice(s![..-1, ..]));
            out
        },
        "the second operand of the position before",
    );
    is(
        |_, x| {
            let mut out = &x[0] + &x[1];
            out.slice_mut(s![.., 20..]).assign(&x[0].slice(s![.., 20..]));
            out
        },
        "channels from 20 on",
    );
}

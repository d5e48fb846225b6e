use firstdiff_laws::{Axis, Kind};
use ndarray::{ArrayD, Zip};

use crate::plant::{Rounded, law_of, said};

const AXES: [Axis; 2] = [Axis::Token, Axis::Channel];
const SHAPE: [usize; 2] = [10, 64];

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn of(x: &[ArrayD<f64>], f: impl Fn(f64, f64) -> f64) -> ArrayD<f64> {
    Zip::from(&x[0]).and(&x[1]).map_collect(|g, u| f(*g, *u))
}

fn law(wrong: fn(usize, &[ArrayD<f64>]) -> ArrayD<f64>, rounded: Rounded) -> String {
    said(&law_of(Kind::Gate, &AXES, &[&SHAPE, &SHAPE], |_, x| of(x, |g, u| silu(g) * u), wrong, rounded))
}

#[test]
fn functions_and_roles() {
    let is = |wrong: fn(usize, &[ArrayD<f64>]) -> ArrayD<f64>, words: &str| {
        let law = law(wrong, Rounded::F32);
        assert!(law.contains(words), "{law} instead of {words}");
    };
    is(
        |_, x| of(x, |g, u| g.max(0.0) * u),
        "a(gate) * up with a(x) = relu(x) (right: a(gate) * up with a(x) = silu(x))",
    );
    is(|_, x| of(x, |g, u| g * silu(u)), "gate * a(up) with a(x) = silu(x)");
    is(|_, x| of(x, |g, u| g / (1.0 + (-1.35 * g).exp()) * u), "x sigmoid(1.35 x)");
    is(|_, x| of(x, |g, u| silu(g.min(1.5)) * u), "silu(x of at most 3/2)");
    is(|_, x| of(x, |g, u| silu(g) * u + 0.5 * u), "silu(x) + 1/2");
    is(|_, x| of(x, |g, u| 0.8 * silu(g) * u), "0.8 times");
}

#[test]
fn what_bf16_cannot_tell_is_not_told() {
    let law = law(|_, x| of(x, |g, u| g / (1.0 + (-1.35 * g).exp()) * u), Rounded::Bf16);
    assert!(law.contains("x sigmoid(1.3"), "{law}");
}

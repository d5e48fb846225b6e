//! What is done wrong between the feed-forward's projections? Right: activation(gate) · up.

use firstdiff_core::{Activation, gelu_erf, gelu_tanh, relu, silu};
use ndarray::Zip;
use serde_json::json;

use super::{At, List, Out};

type Function = fn(f64) -> f64;
/// Functions that are taken for one another.
const ACTIVATIONS: [(&str, Function); 7] = [
    ("gelu-tanh", gelu_tanh),
    ("gelu-erf", gelu_erf),
    ("relu", relu),
    ("silu", silu),
    ("sigmoid", sigmoid),
    ("none", |x| x),
    ("gelu-quick", |x| x * sigmoid(1.702 * x)),
];

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn name(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "silu",
        Activation::GeluErf => "gelu-erf",
        Activation::GeluTanh => "gelu-tanh",
        Activation::Relu => "relu",
    }
}

pub(super) fn listed(list: &mut List<'_>, activation: Activation) {
    let act = move |x: f64| activation.of(x);
    // activation(up) · gate
    list.add("gate-up-swapped", vec![], |at| at.on(&[at.input(1)?.clone(), at.input(0)?.clone()]));
    for (other, f) in ACTIVATIONS.iter().filter(|(other, _)| *other != name(activation)) {
        list.add("activation", vec![("activation", json!(other))], move |at| product(at, |g, u| f(g) * u));
    }
    // activation(gate) + up; activation(up); up; activation(gate)
    list.add("gate-product", vec![("kind", json!("added"))], move |at| product(at, |g, u| act(g) + u));
    list.add("gate-product", vec![("kind", json!("ungated"))], move |at| product(at, |_, u| act(u)));
    list.add("gate-product", vec![("kind", json!("gate-not-applied"))], move |at| product(at, |_, u| u));
    list.add("gate-product", vec![("kind", json!("up-not-applied"))], move |at| product(at, |g, _| act(g)));
    // gpt-oss: clamped at 7, (up + 1)
    list.add("activation-clamp", vec![("kind", json!("clamped"))], move |at| {
        product(at, |g, u| act(g.min(7.0)) * u.clamp(-7.0, 7.0))
    });
    list.add("activation-clamp", vec![("kind", json!("up-plus-one"))], move |at| {
        product(at, |g, u| act(g) * (u + 1.0))
    });
}

fn product(at: &At<'_>, f: impl Fn(f64, f64) -> f64) -> Out {
    let mut out = at.input(0)?.clone();
    Zip::from(&mut out).and(at.input(1)?).for_each(|g, &u| *g = f(*g, u));
    Some(at.kept(out))
}

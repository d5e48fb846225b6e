//! What is done wrong between the feed-forward's projections? Right: activation(gate) · up.

use firstdiff_core::{Activation, gelu_erf, gelu_tanh, relu, silu};
use firstdiff_model::Op;
use firstdiff_trace::Site;
use ndarray::Zip;
use serde_json::json;

use super::catalogue::{BeginsLater, Mistake};
use super::param::Param;
use super::{List, Out, StepContext};

/// A mistake between the feed-forward's projections.
const GATED: Mistake = Mistake { at: &[Site::FfnAct], begins_later: BeginsLater::InOneOperation, ..Mistake::ORDINARY };

/// The mistakes of this file.
pub(super) static MISTAKES: &[&Mistake] = &[&GATE_UP_SWAPPED, &ACTIVATION, &ACTIVATION_CLAMP, &GATE_PRODUCT];

pub(crate) static GATE_UP_SWAPPED: Mistake =
    Mistake { id: "gate-up-swapped", what: "the activation is applied to up", fix: "activation(gate) * up", ..GATED };
pub(crate) static ACTIVATION: Mistake = Mistake {
    id: "activation",
    what: "another activation is used",
    fix: "use the reference's activation (hidden_act of most configs)",
    params: &[Param::words(
        "activation",
        &[
            "gelu-tanh",
            "gelu-erf",
            "relu",
            "silu",
            "sigmoid",
            "none",
            "gelu-quick",
            "relu-squared",
            "tanh",
            "mish",
            "elu",
            "leaky-relu",
            "softplus",
        ],
    )],
    right_value: |_, step| match &step.op {
        Op::Gated { activation } => Some(format!("{activation:?}").to_lowercase()),
        _ => None,
    },
    ..GATED
};
pub(crate) static ACTIVATION_CLAMP: Mistake = Mistake {
    id: "activation-clamp",
    what: "gate and up are clamped or shifted otherwise",
    fix: "clamp and shift exactly where the reference does, with its numbers",
    at: &[Site::FfnGate, Site::FfnUp, Site::FfnAct],
    params: &[
        Param::words("kind", &["clamped", "gpt-oss", "up-plus-one", "up-without-one", "not-clamped"]),
        Param::free("limit"),
    ],
    ..GATED
};
pub(crate) static GATE_PRODUCT: Mistake = Mistake {
    id: "gate-product",
    what: "gate and up are not multiplied",
    fix: "activation(gate) * up",
    params: &[Param::words("kind", &["added", "ungated", "gate-not-applied", "up-not-applied"])],
    ..GATED
};

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
    list.add(&GATE_UP_SWAPPED, vec![], |at| at.on(&[at.input(1)?.clone(), at.input(0)?.clone()]));
    for (other, f) in ACTIVATIONS.iter().filter(|(other, _)| *other != name(activation)) {
        list.add(&ACTIVATION, vec![("activation", json!(other))], move |at| product(at, |g, u| f(g) * u));
    }
    // activation(gate) + up; activation(up); up; activation(gate)
    list.add(&GATE_PRODUCT, vec![("kind", json!("added"))], move |at| product(at, |g, u| act(g) + u));
    list.add(&GATE_PRODUCT, vec![("kind", json!("ungated"))], move |at| product(at, |_, u| act(u)));
    list.add(&GATE_PRODUCT, vec![("kind", json!("gate-not-applied"))], move |at| product(at, |_, u| u));
    list.add(&GATE_PRODUCT, vec![("kind", json!("up-not-applied"))], move |at| product(at, |g, _| act(g)));
    // gpt-oss: clamped at 7, (up + 1), and both with its own activation
    list.add(&ACTIVATION_CLAMP, vec![("kind", json!("clamped"))], move |at| {
        product(at, |g, u| act(g.min(LIMIT)) * u.clamp(-LIMIT, LIMIT))
    });
    list.add(&ACTIVATION_CLAMP, vec![("kind", json!("gpt-oss"))], |at| {
        product(at, |g, u| {
            let g = g.min(LIMIT);
            g * sigmoid(1.702 * g) * (u.clamp(-LIMIT, LIMIT) + 1.0)
        })
    });
    list.add(&ACTIVATION_CLAMP, vec![("kind", json!("up-plus-one"))], move |at| product(at, |g, u| act(g) * (u + 1.0)));
}

/// A projection whose result is clamped where it is made: gate from above, up from both sides.
pub(super) fn clamped(list: &mut List<'_>, limit: f64) {
    let name = if limit == LIMIT { ("kind", json!("clamped")) } else { ("limit", json!(limit)) };
    let least = if list.site() == Site::FfnGate { f64::NEG_INFINITY } else { -limit };
    list.add(&ACTIVATION_CLAMP, vec![name], move |at| Some(at.kept(at.right()?.mapv(|x| x.clamp(least, limit)))));
}

/// Where gpt-oss clamps.
pub(crate) const LIMIT: f64 = 7.0;

fn product(at: &StepContext<'_>, f: impl Fn(f64, f64) -> f64) -> Out {
    let mut out = at.input(0)?.clone();
    Zip::from(&mut out).and(at.input(1)?).for_each(|g, &u| *g = f(*g, u));
    Some(at.kept(out))
}

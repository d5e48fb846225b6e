//! Imitates mistakes between the feed-forward's projections. Right: activation(gate) · up.

use firstdiff_trace::Site;

use super::mistake::{BeginsLater, Mistake};
use super::param::Param;

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

/// Where gpt-oss clamps.
pub(crate) const LIMIT: f64 = 7.0;

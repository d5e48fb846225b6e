//! Imitates mistakes in the rotation. Right: pair i of each head turned by position · ωᵢ, ωᵢ = theta^(-2i/d), scaled as the config says.

use firstdiff_trace::Site;

use super::mistake::{BeginsLater, Mistake, StandsBehind};
use super::param::Param;

/// Of nearly every mistake in the rotation.
const AT_POSITION_ZERO: &str =
    "at position 0 every rotation is right: a probe of the first token alone cannot show this";

/// A mistake of the rotation.
const ROPE: Mistake = Mistake {
    at: &[Site::QRope, Site::KRope],
    note: Some(AT_POSITION_ZERO),
    begins_later: BeginsLater::WithTokens,
    ..Mistake::ORDINARY
};

/// The mistakes of this file.
pub(super) static MISTAKES: &[&Mistake] = &[
    &ROPE_PAIRING,
    &ROPE_THETA,
    &ROPE_SCALING,
    &ROPE_ATTENTION_FACTOR,
    &ROPE_PARTIAL,
    &ROPE_EXPONENT,
    &ROPE_DIRECTION,
    &ROPE_POSITION,
    &ROPE_OMITTED,
    &ROPE_TWICE,
    &ALIASING,
    &ROPE_ON_V,
    &ROPE_PRECISION,
];

/// Mistakes of the table of angles, of which one position says nothing.
pub(crate) const OF_TABLES: [&Mistake; 2] = [&ROPE_THETA, &ROPE_PARTIAL];

pub(crate) static ROPE_PAIRING: Mistake = Mistake {
    id: "rope-pairing",
    what: "the rotation pairs other elements than this model does",
    fix: "rotate the pairs this model pairs (halves: i and i + d/2; adjacent: 2i and 2i + 1), or permute the rows of \
        Wq and Wk",
    ..ROPE
};
pub(crate) static ROPE_THETA: Mistake = Mistake {
    id: "rope-theta",
    what: "the rotation has another base",
    fix: "take the base from the config: rope_theta, or that of this kind of layers",
    params: &[Param::free("theta")],
    ..ROPE
};
pub(crate) static ROPE_SCALING: Mistake = Mistake {
    id: "rope-scaling",
    what: "frequencies are scaled otherwise than the config says",
    fix: "look at rope_scaling in the config: kind, factor, direction",
    params: &[
        Param::other("kind", "linear by N, times N")
            .or(&["absent", "inverse", "llama3", "yarn", "by bands", "a table"]),
        Param::free("theta"),
        Param::free("factor"),
    ],
    ..ROPE
};
pub(crate) static ROPE_ATTENTION_FACTOR: Mistake = Mistake {
    id: "rope-attention-factor",
    what: "q and k carry another factor",
    fix: "cos and sin are multiplied by the scaling's attention factor, once",
    params: &[Param::free("factor").or(&["ignored", "twice", "inverse"])],
    note: None,
    stands_behind: StandsBehind::Plain,
    ..ROPE
};
pub(crate) static ROPE_PARTIAL: Mistake = Mistake {
    id: "rope-partial",
    what: "another share of each head is rotated",
    fix: "rotate rotary_dim elements, with exponents 2i/rotary_dim",
    params: &[Param::number("rotary_dim"), Param::words("exponent", &["2i/head_dim"]), Param::number("pairs")],
    ..ROPE
};
pub(crate) static ROPE_EXPONENT: Mistake = Mistake {
    id: "rope-exponent",
    what: "the exponent is i/d where 2i/d is due",
    fix: "frequency i is theta^(-2i/d)",
    params: &[Param::words("kind", &["before-scaling"])],
    ..ROPE
};
pub(crate) static ROPE_DIRECTION: Mistake = Mistake {
    id: "rope-direction",
    what: "the rotation turns the other way",
    fix: "look at the sign of the sine",
    ..ROPE
};
pub(crate) static ROPE_POSITION: Mistake = Mistake {
    id: "rope-position",
    what: "tokens stand at other positions",
    fix: "the first token is at position 0, a decoded one behind all before it",
    params: &[
        Param::number("shift").of_positions(),
        Param::words(
            "kind",
            &[
                "decode-zero",
                "decode-behind",
                "decode-ahead",
                "decode-from-zero",
                "decode-stuck",
                "all-zero-based-one",
                "the last for all",
            ],
        ),
    ],
    note: Some(
        "only differences of positions reach the scores: a shift of all of them does no harm behind q_rope and k_rope, and one of the queries alone is one of the keys the other way",
    ),
    ..ROPE
};
pub(crate) static ROPE_OMITTED: Mistake = Mistake {
    id: "rope-omitted",
    what: "there is no rotation",
    fix: "rotate q and k before the products",
    at: &[Site::QRope, Site::KRope, Site::Qk],
    params: &[Param::words("reads", &["q, k", "q", "k"])],
    ..ROPE
};
pub(crate) static ROPE_TWICE: Mistake =
    Mistake { id: "rope-twice", what: "the rotation is done twice", fix: "rotate once: look at cached keys", ..ROPE };
pub(crate) static ALIASING: Mistake = Mistake {
    id: "aliasing",
    what: "an element is written before it is read for the last time",
    fix: "keep both elements of a pair before either is written",
    at: &[Site::QRope, Site::KRope],
    params: &[Param::words("kind", &["rotated in place"])],
    ..Mistake::ORDINARY
};
pub(crate) static ROPE_ON_V: Mistake = Mistake {
    id: "rope-on-v",
    what: "v is rotated too",
    fix: "rotate q and k only",
    at: &[Site::V, Site::Context],
    ..ROPE
};
pub(crate) static ROPE_PRECISION: Mistake = Mistake {
    id: "rope-precision",
    what: "cosines, sines or frequencies are kept in 16 bits",
    fix: "compute angles, cosines and sines in f32",
    params: &[
        Param::words("tables", &["bf16", "f16"]),
        Param::words("frequencies", &["bf16", "f16"]),
        Param::words("angles", &["bf16", "f16"]),
    ],
    ..ROPE
};

/// Bases in use.
pub(crate) const BASES: [f64; 13] = [1e4, 5e5, 1e6, 1e5, 1e7, 2e5, 5e6, 8e6, 1e3, 1e8, 1.6e5, 4e4, 2.5e5];

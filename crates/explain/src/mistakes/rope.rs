//! What is done wrong in the rotation? Right: pair i of each head turned by position · ωᵢ, ωᵢ = theta^(-2i/d), scaled as the config says.

use firstdiff_core::{self as core, RopePairing, RopeScaling, rope_inv_freq};
use firstdiff_model::{Half, Op, Rope};
use firstdiff_trace::{QkRows, Site, Tap};
use ndarray::Ix3;
use serde_json::json;

use super::catalogue::{BeginsLater, Mistake, StandsBehind};
use super::linear::{QK_ROW_ORDER, permuted};
use super::norm::{NORM_OMITTED, QK_NORM_ORDER, normed_last};
use super::param::Param;
use super::{List, Out, Scale, StepContext};
use crate::tolerance::mistakes::{SAME_BASE, SAME_DIVISOR};

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
    is_a_row_order: true,
    ..ROPE
};
pub(crate) static ROPE_THETA: Mistake = Mistake {
    id: "rope-theta",
    what: "the rotation has another base",
    fix: "take the base from the config: rope_theta, or that of this kind of layers",
    params: &[Param::free("theta")],
    right_value: |_, step| match &step.op {
        Op::Rope(rope) => Some(rope.theta.to_string()),
        _ => None,
    },
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
    is_a_factor: true,
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
    moves_tokens: true,
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

/// Values that are rotated before they are recorded. Where they were not recorded, the context says it.
pub(super) fn fitted_values(list: &mut List<'_>) {
    list.add(&ROPE_ON_V, vec![], |at| {
        let step = at.model.plan.step(Tap::layer(at.step.tap.layer?, Site::KRope))?;
        at.run(step, &[at.right()?])
    });
}

/// Bases in use.
pub(crate) const BASES: [f64; 13] = [1e4, 5e5, 1e6, 1e5, 1e7, 2e5, 5e6, 8e6, 1e3, 1e8, 1.6e5, 4e4, 2.5e5];

pub(super) fn listed(list: &mut List<'_>, right: &Rope) {
    let (d, r) = (list.model.plan.dims.head_dim, right.rotary_dim);
    // Adjacent pairs (2i, 2i+1) for halves (i, i+d/2), or the reverse
    let pairing = match right.pairing {
        RopePairing::Half => RopePairing::Adjacent,
        RopePairing::Adjacent => RopePairing::Half,
    };
    list.op(&ROPE_PAIRING, vec![], Op::Rope(Rope { pairing, ..right.clone() }));
    bases(list, right, &BASES[..3]);
    // theta^(-i/d) for theta^(-2i/d)
    list.op(&ROPE_EXPONENT, vec![], Op::Rope(Rope { theta: right.theta.sqrt(), ..right.clone() }));
    bases(list, right, &BASES[3..]);
    if !BASES.contains(&right.theta.sqrt()) {
        theta_edit(list, right, right.theta.sqrt());
    }
    // A GGUF's divisors were computed from the base: an engine or a converter with another base has others.
    if let Some(computed) = computed(right) {
        bases(list, &computed, &BASES);
    }
    scalings(list, right);
    attention_factors(list, right);
    // Not turned; turned twice; turned the other way
    list.add(&ROPE_OMITTED, vec![], |at| at.input(0).cloned());
    list.add(&ROPE_TWICE, vec![], |at| at.on(&[at.right()?]));
    list.add(&ROPE_DIRECTION, vec![], |at| turned(at, |w| -w, |p| p));
    // The first half is written before the second has read it.
    list.add(&ALIASING, vec![("kind", json!("rotated in place"))], in_place);
    positions(list);
    if right.scaling != RopeScaling::None {
        list.add(&ROPE_EXPONENT, vec![("kind", json!("before-scaling"))], |at| {
            let Op::Rope(rope) = &at.step.op else { return None };
            let plain: Vec<f64> = rope_inv_freq(rope.rotary_dim, rope.theta, &RopeScaling::None).0;
            with(at, |i, w| w / plain[i] * plain[i].sqrt(), rope.rotary_dim)
        });
    }
    for part in [d / 2, d / 4, 3 * d / 4, d].into_iter().filter(|&n| n != r && n > 0 && n.is_multiple_of(2)) {
        // The exponent over what is rotated, or over the whole head
        list.op(&ROPE_PARTIAL, vec![("rotary_dim", json!(part))], Op::Rope(Rope { rotary_dim: part, ..right.clone() }));
        list.add(&ROPE_PARTIAL, vec![("rotary_dim", json!(part)), ("exponent", json!("2i/head_dim"))], move |at| {
            with(at, |_, w| w, part)
        });
    }
    precisions(list);
    // Rows in the order of the other pairing, rotated by this one
    let to = if right.pairing == RopePairing::Half { QkRows::Adjacent } else { QkRows::Half };
    list.add(
        &QK_ROW_ORDER,
        vec![("kind", json!("rows of the other pairing rotated as if they were of this"))],
        move |at| {
            let turned = at.on(&[permuted(at.input(0)?.clone(), to, d)?])?;
            permuted(turned, to.other(), d)
        },
    );
    if matches!(list.site(), Site::QRope | Site::KRope) {
        let before = if list.site() == Site::QRope { (Site::Q, Site::QNorm) } else { (Site::K, Site::KNorm) };
        if let (Some(from), Some(_)) = (list.sibling(before.0), list.sibling(before.1)) {
            // The norm comes behind the rotation.
            list.read(&QK_NORM_ORDER, vec![], &[from]).is_done_later = true;
            normed_last(list);
            // The norm's result is not what is rotated.
            list.read(&NORM_OMITTED, vec![("kind", json!("not-read"))], &[from]);
        }
    }
}

fn bases(list: &mut List<'_>, right: &Rope, bases: &[f64]) {
    for &theta in bases.iter().filter(|&theta| (theta - right.theta).abs() > SAME_BASE * theta) {
        theta_edit(list, right, theta);
    }
}

pub(super) fn theta_edit(list: &mut List<'_>, right: &Rope, theta: f64) {
    let right = right.clone();
    list.op_with(&ROPE_THETA, "theta", theta, move |theta| Op::Rope(Rope { theta, ..right.clone() }));
}

/// The rotation with the scaling of Llama 3 in place of the divisors that are kept in a file, where they are that for the right base.
pub(super) fn computed(right: &Rope) -> Option<Rope> {
    let RopeScaling::Divided { divisors } = &right.scaling else { return None };
    // As every model has them that was published.
    let (low_freq_factor, high_freq_factor) = (1.0, 4.0);
    let factor = divisors.iter().copied().fold(1.0, f64::max);
    let plain: Vec<f64> = rope_inv_freq(right.rotary_dim, right.theta, &RopeScaling::None).0;
    let blended =
        divisors.iter().zip(&plain).find(|(d, _)| **d > 1.0 + SAME_DIVISOR && **d < factor * (1.0 - SAME_DIVISOR));
    let (divisor, frequency) = blended?;
    let smooth = (1.0 / divisor - 1.0 / factor) / (1.0 - 1.0 / factor);
    let wavelength = 2.0 * std::f64::consts::PI / frequency;
    let context = wavelength * (smooth * (high_freq_factor - low_freq_factor) + low_freq_factor);
    let scaling =
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position: context.round() };
    let scaled: Vec<f64> = rope_inv_freq(right.rotary_dim, right.theta, &scaling).0;
    let same = scaled.iter().zip(&plain).zip(divisors).all(|((s, p), d)| (p / s - d).abs() <= SAME_DIVISOR * d);
    same.then(|| Rope { scaling, ..right.clone() })
}

/// Frequencies changed for long contexts, otherwise than the config says.
fn scalings(list: &mut List<'_>, right: &Rope) {
    let mut add = |kind: &str, scaling: RopeScaling| {
        if scaling != right.scaling {
            list.op(&ROPE_SCALING, vec![("kind", json!(kind))], Op::Rope(Rope { scaling, ..right.clone() }));
        }
    };
    add("absent", RopeScaling::None);
    let factors = match &right.scaling {
        RopeScaling::Linear { factor } | RopeScaling::Llama3 { factor, .. } | RopeScaling::Yarn { factor, .. } => {
            vec![*factor, 1.0 / factor]
        }
        RopeScaling::Divided { .. } => vec![],
        RopeScaling::None => vec![2.0, 4.0, 8.0, 16.0, 32.0],
    };
    for factor in factors {
        add(&format!("linear by {factor}"), RopeScaling::Linear { factor });
    }
    if right.scaling != RopeScaling::None {
        // freq · factor for freq / factor
        list.add(&ROPE_SCALING, vec![("kind", json!("inverse"))], |at| {
            let Op::Rope(rope) = &at.step.op else { return None };
            let plain: Vec<f64> = rope_inv_freq(rope.rotary_dim, rope.theta, &RopeScaling::None).0;
            with(at, |i, w| plain[i] * plain[i] / w, rope.rotary_dim)
        });
    }
}

fn attention_factors(list: &mut List<'_>, right: &Rope) {
    let (_, factor) = rope_inv_freq::<f64>(right.rotary_dim, right.theta, &right.scaling);
    if factor != 1.0 {
        for (kind, c) in [("ignored", 1.0 / factor), ("twice", factor), ("inverse", 1.0 / (factor * factor))] {
            times(list, json!(kind), c);
        }
    }
}

pub(super) fn times(list: &mut List<'_>, kind: serde_json::Value, c: f64) {
    list.add(&ROPE_ATTENTION_FACTOR, vec![("factor", kind)], move |at| Some(at.kept(at.right()?.mapv(|x| x * c))));
}

fn positions(list: &mut List<'_>) {
    for shift in [1, -1, 2, -2] {
        shifted(list, shift);
    }
    // Any number of positions, to begin a fit from.
    for shift in [4.0, -4.0] {
        list.tunable_by(Scale::Whole, &ROPE_POSITION, "shift", shift, |shift, at| {
            turned(at, |w| w, |p| p + shift.round() as i64)
        });
    }
    // Decoded tokens stand at position 0, or count from it again; or one too far.
    list.add(&ROPE_POSITION, vec![("kind", json!("decode-zero"))], |at| in_decode(at, |_, _| 0));
    list.add(&ROPE_POSITION, vec![("kind", json!("decode-behind"))], |at| in_decode(at, |p, _| p - 1));
    list.add(&ROPE_POSITION, vec![("kind", json!("decode-ahead"))], |at| in_decode(at, |p, _| p + 1));
    list.add(&ROPE_POSITION, vec![("kind", json!("decode-from-zero"))], |at| in_decode(at, |p, prefill| p - prefill));
    // The counter stands still.
    list.add(&ROPE_POSITION, vec![("kind", json!("decode-stuck"))], |at| in_decode(at, |_, prefill| prefill - 1));
    list.add(&ROPE_POSITION, vec![("kind", json!("all-zero-based-one"))], |at| {
        turned(at, |w| w, |p| if p == 0 { 1 } else { p })
    });
}

pub(super) fn shifted(list: &mut List<'_>, shift: i64) {
    list.add(&ROPE_POSITION, vec![("shift", json!(shift))], move |at| turned(at, |w| w, |p| p + shift));
}

fn in_decode(at: &StepContext<'_>, f: impl Fn(i64, i64) -> i64) -> Out {
    if at.chunk.start < at.prefill {
        return at.right();
    }
    let prefill = at.prefill as i64;
    turned(at, |w| w, |p| f(p, prefill))
}

/// Cosines, sines or frequencies in 16 bits.
fn precisions(list: &mut List<'_>) {
    for (name, half) in [("bf16", Half::BF16), ("f16", Half::F16)] {
        let round = move |x: f64| f64::from(half.round(x as f32));
        list.add(&ROPE_PRECISION, vec![("tables", json!(name))], move |at| {
            explicit(at, |w, p, factor| {
                let angle = p * w;
                (round(angle.cos() * factor), round(angle.sin() * factor))
            })
        });
        list.add(&ROPE_PRECISION, vec![("frequencies", json!(name))], move |at| {
            let Op::Rope(rope) = &at.step.op else { return None };
            with(at, |_, w| round(w), rope.rotary_dim)
        });
        list.add(&ROPE_PRECISION, vec![("angles", json!(name))], move |at| {
            explicit(at, |w, p, factor| {
                let angle = round(p * round(w));
                (angle.cos() * factor, angle.sin() * factor)
            })
        });
    }
}

/// The rotation with other frequencies and positions.
fn turned(at: &StepContext<'_>, frequency: impl Fn(f64) -> f64, position: impl Fn(i64) -> i64) -> Out {
    let Op::Rope(rope) = &at.step.op else { return None };
    let (frequencies, factor) = rope_inv_freq::<f64>(rope.rotary_dim, rope.theta, &rope.scaling);
    let count = at.chunk.tokens.len();
    let positions: Vec<i64> = (0..count).map(|t| position((at.chunk.start + t) as i64)).collect();
    let frequencies: Vec<f64> = frequencies.into_iter().map(frequency).collect();
    rotate(at, &positions, &frequencies, factor, rope.pairing)
}

/// The rotation of the first `part` elements, each frequency changed by its place.
fn with(at: &StepContext<'_>, frequency: impl Fn(usize, f64) -> f64, part: usize) -> Out {
    let Op::Rope(rope) = &at.step.op else { return None };
    let (frequencies, factor) = rope_inv_freq::<f64>(rope.rotary_dim, rope.theta, &rope.scaling);
    let frequencies: Vec<f64> =
        frequencies.into_iter().enumerate().take(part / 2).map(|(i, w)| frequency(i, w)).collect();
    let positions: Vec<i64> = (0..at.chunk.tokens.len()).map(|t| (at.chunk.start + t) as i64).collect();
    rotate(at, &positions, &frequencies, factor, rope.pairing)
}

/// core's rotation; a negative position turns the other way.
fn rotate(at: &StepContext<'_>, positions: &[i64], frequencies: &[f64], factor: f64, pairing: RopePairing) -> Out {
    let x = at.input(0)?.view().into_dimensionality::<Ix3>().ok()?;
    let mut out = x.to_owned();
    // Of other tokens, and another number of them, nothing can be turned.
    if x.shape()[0] != positions.len() {
        return None;
    }
    for (t, &position) in positions.iter().enumerate() {
        let (sign, place) = (if position < 0 { -1.0 } else { 1.0 }, u32::try_from(position.abs()).ok()?);
        let signed: Vec<f64> = frequencies.iter().map(|w| w * sign).collect();
        let row = x.slice(ndarray::s![t..t + 1, .., ..]);
        let turned = if at.profile == firstdiff_model::Profile::Exact {
            core::rope(row, &[place], &signed, factor, pairing).ok()?
        } else {
            // Angles as an engine in f32 has them.
            let narrow: Vec<f32> = signed.iter().map(|&w| w as f32).collect();
            core::rope(row.mapv(|x| x as f32).view(), &[place], &narrow, factor, pairing).ok()?.mapv(f64::from)
        };
        out.slice_mut(ndarray::s![t..t + 1, .., ..]).assign(&turned);
    }
    Some(at.kept(out.into_dyn()))
}

/// The rotation by given cosines and sines of (frequency, position, factor).
fn explicit(at: &StepContext<'_>, turn: impl Fn(f64, f64, f64) -> (f64, f64)) -> Out {
    let Op::Rope(rope) = &at.step.op else { return None };
    let (frequencies, factor) = rope_inv_freq::<f64>(rope.rotary_dim, rope.theta, &rope.scaling);
    let narrow: Vec<f64> = if at.profile == firstdiff_model::Profile::Exact {
        frequencies
    } else {
        rope_inv_freq::<f32>(rope.rotary_dim, rope.theta, &rope.scaling).0.into_iter().map(f64::from).collect()
    };
    let mut out = at.input(0)?.view().into_dimensionality::<Ix3>().ok()?.to_owned();
    let half = narrow.len();
    for (t, mut heads) in out.outer_iter_mut().enumerate() {
        let position = (at.chunk.start + t) as f64;
        let turns: Vec<(f64, f64)> = narrow.iter().map(|&w| turn(w, position, factor)).collect();
        for mut head in heads.outer_iter_mut() {
            for (i, &(cos, sin)) in turns.iter().enumerate() {
                let (first, second) = pair(rope.pairing, i, half);
                let (a, b) = (head[first], head[second]);
                head[first] = a * cos - b * sin;
                head[second] = b * cos + a * sin;
            }
        }
    }
    Some(at.kept(out.into_dyn()))
}

/// aᵢ' = aᵢ cos φ - bᵢ sin φ, and then bᵢ' = bᵢ cos φ + aᵢ' sin φ.
fn in_place(at: &StepContext<'_>) -> Out {
    let Op::Rope(rope) = &at.step.op else { return None };
    let (frequencies, factor) = rope_inv_freq::<f64>(rope.rotary_dim, rope.theta, &rope.scaling);
    let mut out = at.input(0)?.view().into_dimensionality::<Ix3>().ok()?.to_owned();
    for (t, mut heads) in out.outer_iter_mut().enumerate() {
        for mut head in heads.outer_iter_mut() {
            for (i, w) in frequencies.iter().enumerate() {
                let (sin, cos) = ((at.chunk.start + t) as f64 * w).sin_cos();
                let (first, second) = pair(rope.pairing, i, frequencies.len());
                head[first] = (head[first] * cos - head[second] * sin) * factor;
                head[second] = head[second] * cos * factor + head[first] * sin * factor;
            }
        }
    }
    Some(at.kept(out.into_dyn()))
}

pub(super) fn pair(pairing: RopePairing, i: usize, half: usize) -> (usize, usize) {
    match pairing {
        RopePairing::Half => (i, i + half),
        RopePairing::Adjacent => (2 * i, 2 * i + 1),
    }
}

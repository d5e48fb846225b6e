//! What is done wrong in the rotation? Right: pair i of each head turned by position · ωᵢ, ωᵢ = theta^(-2i/d), scaled as the config says.

use firstdiff_core::{self as core, RopePairing, RopeScaling, rope_inv_freq};
use firstdiff_model::{Half, Op, Rope};
use firstdiff_trace::{QkRows, Site};
use ndarray::{ArrayD, ArrayView3, Ix3};
use serde_json::json;

use super::linear::permuted;
use super::{At, List, Out, QK_NORM_ORDER, Seen, snapped};
use crate::minimum::least;

/// Bases in use.
const BASES: [f64; 12] = [1e4, 5e5, 1e6, 1e5, 1e7, 2e5, 5e6, 8e6, 1e3, 1e8, 1.6e5, 4e4];

pub(super) fn listed(list: &mut List<'_>, right: &Rope) {
    let (d, r) = (list.model.plan.dims.head_dim, right.rotary_dim);
    // Adjacent pairs (2i, 2i+1) for halves (i, i+d/2), or the reverse
    let pairing = match right.pairing {
        RopePairing::Half => RopePairing::Adjacent,
        RopePairing::Adjacent => RopePairing::Half,
    };
    list.op("rope-pairing", vec![], Op::Rope(Rope { pairing, ..right.clone() }));
    bases(list, right, &BASES[..3]);
    // theta^(-i/d) for theta^(-2i/d)
    list.op("rope-exponent", vec![], Op::Rope(Rope { theta: right.theta.sqrt(), ..right.clone() }));
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
    list.add("rope-omitted", vec![], |at| at.input(0).cloned());
    list.add("rope-twice", vec![], |at| at.on(&[at.right()?]));
    list.add("rope-direction", vec![], |at| turned(at, |w| -w, |p| p));
    // The first half is written before the second has read it.
    list.add("aliasing", vec![("kind", json!("rotated in place"))], in_place);
    positions(list);
    if right.scaling != RopeScaling::None {
        list.add("rope-exponent", vec![("kind", json!("before-scaling"))], |at| {
            let Op::Rope(rope) = &at.step.op else { return None };
            let plain: Vec<f64> = rope_inv_freq(rope.rotary_dim, rope.theta, &RopeScaling::None).0;
            with(at, |i, w| w / plain[i] * plain[i].sqrt(), rope.rotary_dim)
        });
    }
    for part in [d / 2, d / 4, 3 * d / 4, d].into_iter().filter(|&n| n != r && n > 0 && n.is_multiple_of(2)) {
        // The exponent over what is rotated, or over the whole head
        list.op(
            "rope-partial",
            vec![("rotary_dim", json!(part))],
            Op::Rope(Rope { rotary_dim: part, ..right.clone() }),
        );
        list.add("rope-partial", vec![("rotary_dim", json!(part)), ("exponent", json!("2i/head_dim"))], move |at| {
            with(at, |_, w| w, part)
        });
    }
    precisions(list);
    // Rows in the order of the other pairing, rotated by this one
    let to = if right.pairing == RopePairing::Half { QkRows::Adjacent } else { QkRows::Half };
    list.add(
        "qk-row-order",
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
            list.read("qk-norm-order", vec![], &[from]).with = QK_NORM_ORDER;
            // The norm's result is not what is rotated.
            list.read("norm-omitted", vec![("kind", json!("not-read"))], &[from]);
        }
    }
}

fn bases(list: &mut List<'_>, right: &Rope, bases: &[f64]) {
    for &theta in bases.iter().filter(|&theta| (theta - right.theta).abs() > 1e-6 * theta) {
        theta_edit(list, right, theta);
    }
}

fn theta_edit(list: &mut List<'_>, right: &Rope, theta: f64) {
    let right = right.clone();
    list.op_with("rope-theta", "theta", theta, move |theta| Op::Rope(Rope { theta, ..right.clone() }));
}

/// The rotation with the scaling of Llama 3 in place of the divisors that are kept in a file, where they are that for the right base.
fn computed(right: &Rope) -> Option<Rope> {
    let RopeScaling::Divided { divisors } = &right.scaling else { return None };
    // As every model has them that was published.
    let (low_freq_factor, high_freq_factor) = (1.0, 4.0);
    let factor = divisors.iter().copied().fold(1.0, f64::max);
    let plain: Vec<f64> = rope_inv_freq(right.rotary_dim, right.theta, &RopeScaling::None).0;
    let blended = divisors.iter().zip(&plain).find(|(d, _)| **d > 1.0 + 1e-4 && **d < factor * (1.0 - 1e-4));
    let (divisor, frequency) = blended?;
    let smooth = (1.0 / divisor - 1.0 / factor) / (1.0 - 1.0 / factor);
    let wavelength = 2.0 * std::f64::consts::PI / frequency;
    let context = wavelength * (smooth * (high_freq_factor - low_freq_factor) + low_freq_factor);
    let scaling =
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position: context.round() };
    let scaled: Vec<f64> = rope_inv_freq(right.rotary_dim, right.theta, &scaling).0;
    let same = scaled.iter().zip(&plain).zip(divisors).all(|((s, p), d)| (p / s - d).abs() <= 1e-4 * d);
    same.then(|| Rope { scaling, ..right.clone() })
}

/// Frequencies changed for long contexts, otherwise than the config says.
fn scalings(list: &mut List<'_>, right: &Rope) {
    let mut add = |kind: &str, scaling: RopeScaling| {
        if scaling != right.scaling {
            list.op("rope-scaling", vec![("kind", json!(kind))], Op::Rope(Rope { scaling, ..right.clone() }));
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
        list.add("rope-scaling", vec![("kind", json!("inverse"))], |at| {
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

fn times(list: &mut List<'_>, kind: serde_json::Value, c: f64) {
    list.add("rope-attention-factor", vec![("factor", kind)], move |at| Some(at.kept(at.right()?.mapv(|x| x * c))));
}

fn positions(list: &mut List<'_>) {
    for shift in [1, -1, 2, -2] {
        shifted(list, shift);
    }
    // Decoded tokens stand at position 0, or count from it again; or one too far.
    list.add("rope-position", vec![("kind", json!("decode-zero"))], |at| in_decode(at, |_, _| 0));
    list.add("rope-position", vec![("kind", json!("decode-behind"))], |at| in_decode(at, |p, _| p - 1));
    list.add("rope-position", vec![("kind", json!("decode-ahead"))], |at| in_decode(at, |p, _| p + 1));
    list.add("rope-position", vec![("kind", json!("decode-from-zero"))], |at| in_decode(at, |p, prefill| p - prefill));
    // The counter stands still.
    list.add("rope-position", vec![("kind", json!("decode-stuck"))], |at| in_decode(at, |_, prefill| prefill - 1));
    list.add("rope-position", vec![("kind", json!("all-zero-based-one"))], |at| {
        turned(at, |w| w, |p| if p == 0 { 1 } else { p })
    });
}

fn shifted(list: &mut List<'_>, shift: i64) {
    list.add("rope-position", vec![("shift", json!(shift))], move |at| turned(at, |w| w, |p| p + shift));
}

fn in_decode(at: &At<'_>, f: impl Fn(i64, i64) -> i64) -> Out {
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
        list.add("rope-precision", vec![("tables", json!(name))], move |at| {
            explicit(at, |w, p, factor| {
                let angle = p * w;
                (round(angle.cos() * factor), round(angle.sin() * factor))
            })
        });
        list.add("rope-precision", vec![("frequencies", json!(name))], move |at| {
            let Op::Rope(rope) = &at.step.op else { return None };
            with(at, |_, w| round(w), rope.rotary_dim)
        });
        list.add("rope-precision", vec![("angles", json!(name))], move |at| {
            explicit(at, |w, p, factor| {
                let angle = round(p * round(w));
                (angle.cos() * factor, angle.sin() * factor)
            })
        });
    }
}

/// The rotation with other frequencies and positions.
fn turned(at: &At<'_>, frequency: impl Fn(f64) -> f64, position: impl Fn(i64) -> i64) -> Out {
    let Op::Rope(rope) = &at.step.op else { return None };
    let (frequencies, factor) = rope_inv_freq::<f64>(rope.rotary_dim, rope.theta, &rope.scaling);
    let count = at.chunk.tokens.len();
    let positions: Vec<i64> = (0..count).map(|t| position((at.chunk.start + t) as i64)).collect();
    let frequencies: Vec<f64> = frequencies.into_iter().map(frequency).collect();
    rotate(at, &positions, &frequencies, factor, rope.pairing)
}

/// The rotation of the first `part` elements, each frequency changed by its place.
fn with(at: &At<'_>, frequency: impl Fn(usize, f64) -> f64, part: usize) -> Out {
    let Op::Rope(rope) = &at.step.op else { return None };
    let (frequencies, factor) = rope_inv_freq::<f64>(rope.rotary_dim, rope.theta, &rope.scaling);
    let frequencies: Vec<f64> =
        frequencies.into_iter().enumerate().take(part / 2).map(|(i, w)| frequency(i, w)).collect();
    let positions: Vec<i64> = (0..at.chunk.tokens.len()).map(|t| (at.chunk.start + t) as i64).collect();
    rotate(at, &positions, &frequencies, factor, rope.pairing)
}

/// core's rotation; a negative position turns the other way.
fn rotate(at: &At<'_>, positions: &[i64], frequencies: &[f64], factor: f64, pairing: RopePairing) -> Out {
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
fn explicit(at: &At<'_>, turn: impl Fn(f64, f64, f64) -> (f64, f64)) -> Out {
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
fn in_place(at: &At<'_>) -> Out {
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

fn pair(pairing: RopePairing, i: usize, half: usize) -> (usize, usize) {
    match pairing {
        RopePairing::Half => (i, i + half),
        RopePairing::Adjacent => (2 * i, 2 * i + 1),
    }
}

/// What each pair was turned by tells base and position; the length, the factor.
pub(super) fn fitted(list: &mut List<'_>, right: &Rope, seen: &Seen<'_>) {
    let cube = |x: &ArrayD<f64>| -> Option<ndarray::Array3<f64>> { x.clone().into_dimensionality::<Ix3>().ok() };
    let (Some(before), Some(after)) = (seen.inputs.first().and_then(cube), cube(seen.own)) else { return };
    if let Some(c) = length_factor(&before.view(), &after.view()) {
        let (_, due) = rope_inv_freq::<f64>(right.rotary_dim, right.theta, &right.scaling);
        let extra = snapped(c / due, 1e-5);
        if (extra - 1.0).abs() > 1e-7 {
            times(list, json!(extra), extra);
        }
    }
    for right in [Some(right.clone()), computed(right)].into_iter().flatten() {
        let Some(theta) = base(&right, &before.view(), &after.view(), seen.chunk.start) else { continue };
        // The plainest first: where cosines have 16 bits, a base is not known to more than two or three digits.
        let mut known = vec![right.theta];
        // Angles in f32 tell a base to five digits or so; a small one, that turns fast, to more.
        let five = snapped(format!("{theta:.5e}").parse().unwrap_or(theta), 1e-5);
        if (five - right.theta).abs() <= 1e-6 * theta {
            continue;
        }
        for near in [snapped(five, 2e-2), snapped(five, 2e-3), five, theta] {
            if !known.contains(&near) {
                known.push(near);
                theta_edit(list, &right, near);
            }
        }
    }
    if let Some(shift) = shift(right, &before.view(), &after.view(), seen.chunk.start).filter(|s| s.abs() > 2) {
        shifted(list, shift);
    }
}

fn length_factor(before: &ArrayView3<'_, f64>, after: &ArrayView3<'_, f64>) -> Option<f64> {
    let (a, b) = (before.iter().map(|x| x * x).sum::<f64>(), after.iter().map(|x| x * x).sum::<f64>());
    (a > 0.0 && b.is_finite()).then(|| (b / a).sqrt())
}

/// The angle pair `i` was turned by at row `t`.
fn angle(right: &Rope, before: &ArrayView3<'_, f64>, after: &ArrayView3<'_, f64>, t: usize, i: usize) -> f64 {
    let (first, second) = pair(right.pairing, i, right.rotary_dim / 2);
    let (mut dot, mut cross) = (0.0, 0.0);
    for head in 0..before.dim().1 {
        let (a, b) = (before[[t, head, first]], before[[t, head, second]]);
        let (c, d) = (after[[t, head, first]], after[[t, head, second]]);
        dot += a * c + b * d;
        cross += a * d - b * c;
    }
    cross.atan2(dot)
}

/// The base whose frequencies, scaled as the config says, give the angles seen: first by the rows that no pair has gone around, then by all.
fn base(right: &Rope, before: &ArrayView3<'_, f64>, after: &ArrayView3<'_, f64>, start: usize) -> Option<f64> {
    const ROWS: usize = 24;
    let rows: Vec<usize> = (0..before.dim().0).filter(|t| start + t > 0).take(ROWS).collect();
    let first = rows.iter().copied().take(3).collect::<Vec<_>>();
    let pairs = right.rotary_dim / 2;
    let seen = |t: usize| -> Vec<f64> { (0..pairs).map(|i| angle(right, before, after, t, i)).collect() };
    let angles: Vec<(f64, Vec<f64>)> = rows.iter().map(|&t| ((start + t) as f64, seen(t))).collect();
    let off = |log: f64, rows: usize| -> f64 {
        let (frequencies, _) = rope_inv_freq::<f64>(right.rotary_dim, log.exp(), &right.scaling);
        let row = |(p, angles): &(f64, Vec<f64>)| -> f64 {
            angles.iter().zip(&frequencies).map(|(a, w)| (0.5 * (a - p * w)).sin().powi(2)).sum()
        };
        angles.iter().take(rows).map(row).sum()
    };
    const STEPS: u32 = 600;
    let log = |step: u32| f64::from(step) / f64::from(STEPS) * 1e9f64.ln() + 2f64.ln();
    let rough = (0..=STEPS).map(log).min_by(|a, b| off(*a, first.len()).total_cmp(&off(*b, first.len())))?;
    let fine = least(|x| off(x, first.len()), rough - 0.05, rough + 0.05, 1e-10);
    let finer = least(|x| off(x, rows.len()), fine - 1e-4, fine + 1e-4, 1e-10);
    let theta = finer.exp();
    ((theta - right.theta).abs() > 1e-6 * theta && off(theta.ln(), rows.len()) < 1e-6 * (rows.len() * pairs) as f64)
        .then_some(theta)
}

/// By how many positions all rows are off, by the angles of two pairs.
fn shift(right: &Rope, before: &ArrayView3<'_, f64>, after: &ArrayView3<'_, f64>, start: usize) -> Option<i64> {
    let frequencies = rope_inv_freq::<f64>(right.rotary_dim, right.theta, &right.scaling).0;
    let last = before.dim().0.checked_sub(1)?;
    let angles: Vec<f64> = (0..frequencies.len()).map(|i| angle(right, before, after, last, i)).collect();
    let off = |shift: i64| -> f64 {
        let p = (start + last) as f64 + shift as f64;
        angles.iter().zip(&frequencies).map(|(a, w)| 1.0 - (a - p * w).cos()).sum()
    };
    let best = (-4096i64..=4096).min_by(|&a, &b| off(a).total_cmp(&off(b)))?;
    (off(best) < 1e-3 && best != 0).then_some(best)
}

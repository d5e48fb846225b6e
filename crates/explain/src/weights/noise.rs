//! Computes what error storing values in a type must cost: a variance for each element, from the values and the type's steps, not looked up.

use firstdiff_model::{Levels, Storage, ggml};

use crate::tolerance::weights::CODEBOOK_ROOM;

/// Adds to `add` the variance of the error that storing `values` in `storage` costs, element by element. Of 16-bit floats: a step's
/// square over 12. Of block types: the same, the step following from the values that share a scale and from the levels under it; and
/// what it costs that the scales are themselves stored in few bits.
pub(crate) fn variance(values: &[f32], storage: Option<Storage>, add: &mut [f32]) {
    match storage {
        Some(Storage::F16) => rounding(values, -14, 10, add),
        Some(Storage::BF16) => rounding(values, -126, 7, add),
        Some(Storage::Groups(group)) => {
            steps(values, ggml::Scales { group, levels: 255, minimum: false }, group, None, add)
        }
        Some(Storage::Block(kind)) => match kind.scales() {
            Some(scales) => steps(values, scales, kind.block_len(), Some(kind), add),
            None => codebook(values, kind.block_len(), 8.0 * kind.block_bytes() as f32 / kind.block_len() as f32, add),
        },
        Some(Storage::Packed(packing)) => {
            let group = packing.group.max(1);
            let even = |levels, minimum| ggml::Scales { group, levels, minimum };
            match packing.levels {
                Levels::Even(levels) => steps(values, even(levels, false), group, None, add),
                Levels::Between(levels) => steps(values, even(levels, true), group, None, add),
                Levels::Listed(levels) => codebook(values, group, (levels as f32).log2(), add),
                Levels::Float(bits) => floats(values, group, bits, add),
            }
        }
        _ => {}
    }
}

/// Variances by which two storages of the same values may differ. What A's own storage cost shows in no value of A, so it is computed from B's.
pub(crate) fn between([a, b]: [&[f32]; 2], [left, right]: [Option<Storage>; 2]) -> Vec<f32> {
    let mut out = vec![0.0; a.len()];
    variance(a, right, &mut out);
    if left != right {
        let coarse = matches!(left, Some(Storage::F16 | Storage::BF16)) || left.is_some_and(Storage::is_quantised);
        variance(if coarse { b } else { a }, left, &mut out);
    }
    out
}

/// What the nearest level costs at the rim, signed: of an even number of levels about 0 the outermost has no counterpart, and a value there
/// is clipped. 0 elsewhere.
pub(crate) fn clipping(values: &[f32], storage: Option<Storage>) -> Option<Vec<f32>> {
    let Some(Storage::Block(kind)) = storage else { return None };
    let scales = kind.scales().filter(|s| !s.minimum && s.levels.is_multiple_of(2))?;
    let mut out = vec![0.0; values.len()];
    for (values, out) in values.chunks(scales.group).zip(out.chunks_mut(scales.group)) {
        let extreme = values.iter().copied().fold(0f32, |e, x| if x.abs() > e.abs() { x } else { e });
        let step = extreme / (-0.5 * scales.levels as f32);
        let last = 0.5 * scales.levels as f32 - 1.0;
        for (x, out) in values.iter().zip(out).filter(|(x, _)| step != 0.0 && **x / step > last + 0.5) {
            *out = last * step - x;
        }
    }
    Some(out)
}

/// What so many bits an element leave of a block's energy at best, and some.
fn codebook(values: &[f32], block: usize, bits: f32, add: &mut [f32]) {
    let left = CODEBOOK_ROOM * (-2.0 * bits * std::f32::consts::LN_2).exp();
    for (values, add) in values.chunks(block).zip(add.chunks_mut(block)) {
        let mean = values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32;
        add.iter_mut().for_each(|v| *v += left * mean);
    }
}

/// Floats of 8 bits with so many of mantissa, the largest value of a group scaled to the largest float.
fn floats(values: &[f32], group: usize, bits: u32, add: &mut [f32]) {
    // From the exponent of the largest to that of the smallest normal number.
    let exponents = (1 << (7 - bits)) - 2;
    for (values, add) in values.chunks(group).zip(add.chunks_mut(group)) {
        let largest = values.iter().fold(0f32, |most, x| most.max(x.abs()));
        rounding(values, exponent_of(largest) - exponents, bits as i32, add);
    }
}

/// In how many steps a block's scale of f16 is divided for the scales of its parts, if it is.
fn scale_levels(kind: ggml::Type) -> Option<f32> {
    match kind {
        ggml::Type::Q2K => Some(15.0),
        ggml::Type::Q3K | ggml::Type::IQ4XS => Some(31.0),
        ggml::Type::Q4K | ggml::Type::Q5K => Some(63.0),
        ggml::Type::Q6K => Some(127.0),
        _ => None,
    }
}

/// Floats with so many bits behind the leading one, the smallest normal number with this exponent.
fn rounding(values: &[f32], least: i32, bits: i32, add: &mut [f32]) {
    for (x, add) in values.iter().zip(add) {
        let step = f32::from_bits(((exponent_of(*x).max(least) - bits + 127).max(0) as u32) << 23);
        *add += (step * step / 12.0).min(x * x);
    }
}

fn exponent_of(x: f32) -> i32 {
    (x.to_bits() >> 23 & 255) as i32 - 127
}

/// The smallest step of f16, about 0.
const F16_STEP: f32 = 5.960_464_5e-8;

fn steps(values: &[f32], scales: ggml::Scales, block: usize, kind: Option<ggml::Type>, add: &mut [f32]) {
    let levels = scales.levels as f32;
    let step = |group: &[f32]| {
        let (low, high) = group.iter().fold((0f32, 0f32), |(l, h), &x| (l.min(x), h.max(x)));
        let range = if scales.minimum { high - low } else { 2.0 * high.max(-low) };
        range / if scales.minimum { levels - 1.0 } else { levels }
    };
    // IQ4's levels lie further apart at the rim.
    let uneven = if kind.map_or(1.0, units) > 1.0 { 2.0 } else { 1.0 };
    let lowest = |group: &[f32]| group.iter().fold(0f32, |l, &x| l.max(-x));
    let (block, group) = (block.max(1), scales.group.max(1));
    let divided = kind.and_then(scale_levels);
    // Half a step of f16, in which the block's scale is stored: of so many units of it a step consists.
    let of_f16 = 0.5 * F16_STEP * divided.unwrap_or(1.0) * kind.map_or(1.0, units);
    for (values, add) in values.chunks(block).zip(add.chunks_mut(block)) {
        let top = |of: &dyn Fn(&[f32]) -> f32| values.chunks(group).map(of).fold(0.0, f32::max);
        // By how much a scale itself may be off, and a minimum: half a step of their own.
        let off_by = divided.map_or(0.0, |n| 0.5 * top(&step) / n) + of_f16;
        let minimum = if scales.minimum { divided.map_or(0.0, |n| 0.5 * top(&lowest) / n) + of_f16 } else { 0.0 };
        for (values, add) in values.chunks(group).zip(add.chunks_mut(group)) {
            let step = step(values);
            let off = if step > 0.0 { off_by / step } else { 0.0 };
            for (x, add) in values.iter().zip(add) {
                let (rounded, scaled) = (uneven * (step + off_by).powi(2) / 12.0, (x * off).powi(2) / 3.0);
                *add += if step.is_finite() { rounded.max(scaled.min(x * x)) + minimum * minimum / 3.0 } else { 0.0 };
            }
        }
    }
}

/// Units of the block's scale that a step of the type is: IQ4's levels are whole numbers up to 127.
fn units(kind: ggml::Type) -> f32 {
    if matches!(kind, ggml::Type::IQ4NL | ggml::Type::IQ4XS) { 16.0 } else { 1.0 }
}

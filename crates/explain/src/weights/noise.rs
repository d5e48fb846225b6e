//! What error must storing values in a type cost? Computed from the values and the type's steps, not looked up.

use firstdiff_model::{Half, Storage};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Σ error² that storing `values` in `storage` costs. For 16-bit floats: of rounding each. For block types: a step's square over
/// 12 an element, the step following from the values that share a scale and from the levels under it.
pub(crate) fn expected(values: &[f32], storage: Option<Storage>) -> f64 {
    match storage {
        Some(Storage::F16) => rounding(values, Half::F16),
        Some(Storage::BF16) => rounding(values, Half::BF16),
        Some(Storage::Groups(group)) => steps(values, group, 255, false),
        Some(Storage::Block(kind)) => match kind.scales() {
            Some(scales) => steps(values, scales.group, scales.levels, scales.minimum),
            // A codebook: what so many bits an element leave of the energy at best, and some.
            None => {
                let bits = 8.0 * kind.block_bytes() as f64 / kind.block_len() as f64;
                let energy: f64 = values.iter().map(|x| f64::from(*x).powi(2)).sum();
                CODEBOOK * energy * (-2.0 * bits * std::f64::consts::LN_2).exp()
            }
        },
        _ => 0.0,
    }
}

/// Σ error² that two storages of the same values may differ by. What A's own rounding cost shows in no value of A, so that of B's is taken for it.
pub(crate) fn between([a, b]: [&[f32]; 2], [left, right]: [Option<Storage>; 2]) -> f64 {
    let halves = [Some(Storage::F16), Some(Storage::BF16)];
    match left == right {
        true => expected(a, right),
        false if halves.contains(&left) => expected(a, right) + expected(b, left),
        false => expected(a, right) + expected(a, left),
    }
}

/// Codebooks come this near to the best that their bits allow.
const CODEBOOK: f64 = 2.0;

/// A block at a time, so that the processor's own conversion is used.
fn rounding(values: &[f32], half: Half) -> f64 {
    const BLOCK: usize = 1024;
    let (mut rounded, mut sum) = ([0f32; BLOCK], 0.0);
    let (mut f16s, mut bf16s) = ([f16::ZERO; BLOCK], [bf16::ZERO; BLOCK]);
    for values in values.chunks(BLOCK) {
        let rounded = &mut rounded[..values.len()];
        match half {
            Half::F16 => {
                f16s[..values.len()].convert_from_f32_slice(values);
                f16s[..values.len()].convert_to_f32_slice(rounded);
            }
            Half::BF16 => {
                bf16s[..values.len()].convert_from_f32_slice(values);
                bf16s[..values.len()].convert_to_f32_slice(rounded);
            }
        }
        let squares = values.iter().zip(rounded.iter()).map(|(x, y)| f64::from(y - x).powi(2));
        sum += squares.filter(|e| e.is_finite()).sum::<f64>();
    }
    sum
}

fn steps(values: &[f32], group: usize, levels: u32, minimum: bool) -> f64 {
    let square = |group: &[f32]| {
        let (low, high) = group.iter().fold((0f32, 0f32), |(l, h), &x| (l.min(x), h.max(x)));
        let range = if minimum { high - low } else { 2.0 * high.max(-low) };
        let step = f64::from(range) / f64::from(if minimum { levels - 1 } else { levels });
        step * step / 12.0 * group.len() as f64
    };
    values.chunks(group.max(1)).map(square).filter(|s| s.is_finite()).sum()
}

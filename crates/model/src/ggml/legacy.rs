//! Dequantises blocks of 32 with one scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1, IQ4_NL.

use super::{f16_at, u32_at};

/// The 16 levels of IQ4_NL and IQ4_XS.
pub(super) const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

#[inline(always)]
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for j in 0..16 {
        let q = block[2 + j];
        out[j] = f32::from((q & 15) as i8 - 8) * d;
        out[j + 16] = f32::from((q >> 4) as i8 - 8) * d;
    }
}

#[inline(always)]
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    for j in 0..16 {
        let q = block[4 + j];
        out[j] = f32::from(q & 15) * d + m;
        out[j + 16] = f32::from(q >> 4) * d + m;
    }
}

#[inline(always)]
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let (d, high) = (f16_at(block, 0), u32_at(block, 2));
    for j in 0..16 {
        let (low, up) = fifth_bit(block[6 + j], high, j);
        out[j] = f32::from(low as i8 - 16) * d;
        out[j + 16] = f32::from(up as i8 - 16) * d;
    }
}

#[inline(always)]
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m, high) = (f16_at(block, 0), f16_at(block, 2), u32_at(block, 4));
    for j in 0..16 {
        let (low, up) = fifth_bit(block[8 + j], high, j);
        out[j] = f32::from(low) * d + m;
        out[j + 16] = f32::from(up) * d + m;
    }
}

/// Elements j and j + 16: four bits of `q` each, and bits j and j + 16 of `high`.
#[inline(always)]
fn fifth_bit(q: u8, high: u32, j: usize) -> (u8, u8) {
    let bit = |j: usize| ((high >> j & 1) << 4) as u8;
    (q & 15 | bit(j), q >> 4 | bit(j + 16))
}

#[inline(always)]
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for j in 0..32 {
        out[j] = f32::from(block[2 + j] as i8) * d;
    }
}

/// The block's sum after the scale is redundant.
#[inline(always)]
pub(super) fn q8_1(block: &[u8; 36], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for j in 0..32 {
        out[j] = f32::from(block[4 + j] as i8) * d;
    }
}

#[inline(always)]
pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for j in 0..16 {
        let q = usize::from(block[2 + j]);
        out[j] = d * f32::from(LEVELS[q & 15]);
        out[j + 16] = d * f32::from(LEVELS[q >> 4]);
    }
}

//! Dequantises blocks of 256 whose parts have scales of their own: Q2_K to Q6_K, Q8_K, IQ4_XS.

use super::legacy::LEVELS;
use super::{f16_at, u16_at, u32_at};

/// Parts of 16: four bits each of scale and minimum; two bits an element.
#[inline(always)]
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (d, m) = (f16_at(block, 80), f16_at(block, 82));
    for (part, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let (half, shift, side) = (part / 8, part % 8 / 2 * 2, part % 2);
        let (scale, minimum) = (d * f32::from(block[part] & 15), m * f32::from(block[part] >> 4));
        for (l, y) in out.iter_mut().enumerate() {
            let q = block[16 + 32 * half + 16 * side + l] >> shift & 3;
            *y = scale * f32::from(q) - minimum;
        }
    }
}

/// Parts of 16: six bits of scale with offset 32; two bits an element, and a third in a bit mask.
#[inline(always)]
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = f16_at(block, 108);
    let packed: &[u8; 12] = block[96..108].try_into().expect("12 bytes");
    for (part, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let low = if part < 8 { packed[part] & 15 } else { packed[part - 8] >> 4 };
        let high = packed[8 + part % 4] >> (2 * (part / 4)) & 3;
        let scale = d * f32::from((low | high << 4) as i8 - 32);
        let (half, step, side) = (part / 8, part % 8 / 2, part % 2);
        for (l, y) in out.iter_mut().enumerate() {
            let low = block[32 + 32 * half + 16 * side + l] >> (2 * step) & 3;
            let third = block[16 * side + l] >> (4 * half + step) & 1;
            *y = scale * f32::from((low | third << 2) as i8 - 4);
        }
    }
}

/// Unpacks six bits each of scale and minimum for the 8 parts of Q4_K and Q5_K, four parts at a time.
#[inline(always)]
pub(super) fn scales_and_minima(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (a, b, c) = (u32_at(packed, 0), u32_at(packed, 4), u32_at(packed, 8));
    let six = |x: u32| u64::from(x & 0x3f3f_3f3f);
    let joined = |low: u32, high: u32| u64::from(low & 0x0f0f_0f0f | (high >> 6 & 0x0303_0303) << 4);
    ((six(a) | joined(c, a) << 32).to_le_bytes(), (six(b) | joined(c >> 4, b) << 32).to_le_bytes())
}

/// Scale and minimum of each part of Q4_K or Q5_K.
#[inline(always)]
fn parts(block: &[u8]) -> ([f32; 8], [f32; 8]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    let (scales, minima) = scales_and_minima(block[4..16].try_into().expect("12 bytes"));
    (scales.map(|x| d * f32::from(x)), minima.map(|x| m * f32::from(x)))
}

/// Parts of 32, in pairs that share their bytes: the first of a pair has the low four bits.
#[inline(always)]
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (scales, minima) = parts(block);
    for (pair, (out, quants)) in out.as_chunks_mut::<64>().0.iter_mut().zip(block[16..].as_chunks::<32>().0).enumerate()
    {
        let [low, high] = [2 * pair, 2 * pair + 1].map(|part| (scales[part], minima[part]));
        let (first, second) = out.split_at_mut(32);
        for l in 0..32 {
            first[l] = low.0 * f32::from(quants[l] & 15) - low.1;
            second[l] = high.0 * f32::from(quants[l] >> 4) - high.1;
        }
    }
}

/// As Q4_K, with a fifth bit an element.
#[inline(always)]
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (scales, minima) = parts(block);
    let fifth: &[u8; 32] = block[16..48].try_into().expect("32 bytes");
    for (pair, (out, quants)) in out.as_chunks_mut::<64>().0.iter_mut().zip(block[48..].as_chunks::<32>().0).enumerate()
    {
        let [low, high] = [2 * pair, 2 * pair + 1].map(|part| (scales[part], minima[part]));
        let (first, second) = out.split_at_mut(32);
        for l in 0..32 {
            first[l] = low.0 * f32::from(quants[l] & 15 | (fifth[l] >> (2 * pair) & 1) << 4) - low.1;
            second[l] = high.0 * f32::from(quants[l] >> 4 | (fifth[l] >> (2 * pair + 1) & 1) << 4) - high.1;
        }
    }
}

/// Parts of 16 with a scale of 8 bits; four low and two high bits an element, with offset 32.
#[inline(always)]
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = f16_at(block, 208);
    for half in 0..2 {
        let low: &[u8; 64] = block[64 * half..][..64].try_into().expect("64 bytes");
        let high: &[u8; 32] = block[128 + 32 * half..][..32].try_into().expect("32 bytes");
        for quarter in 0..4 {
            let out = &mut out[128 * half + 32 * quarter..][..32];
            let scale = |side: usize| d * f32::from(block[192 + 8 * half + 2 * quarter + side] as i8);
            let scales = [scale(0), scale(1)];
            let (from, nibble) = (32 * (quarter % 2), 4 * (quarter / 2));
            for l in 0..32 {
                let q = low[from + l] >> nibble & 15 | (high[l] >> (2 * quarter) & 3) << 4;
                out[l] = scales[l / 16] * f32::from(q as i8 - 32);
            }
        }
    }
}

/// One scale in f32; the sums of 16 elements at the end of the block are redundant.
#[inline(always)]
pub(super) fn q8_k(block: &[u8; 292], out: &mut [f32; 256]) {
    let d = f32::from_bits(u32_at(block, 0));
    for l in 0..256 {
        out[l] = d * f32::from(block[4 + l] as i8);
    }
}

/// Parts of 32 with six bits of scale, offset 32; the levels of IQ4_NL.
#[inline(always)]
pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let (d, high) = (f16_at(block, 0), u16_at(block, 2));
    for (part, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let low = block[4 + part / 2] >> (4 * (part % 2)) & 15;
        let scale = d * f32::from((low | ((high >> (2 * part) & 3) << 4) as u8) as i8 - 32);
        for j in 0..16 {
            let q = usize::from(block[8 + 16 * part + j]);
            out[j] = scale * f32::from(LEVELS[q & 15]);
            out[j + 16] = scale * f32::from(LEVELS[q >> 4]);
        }
    }
}

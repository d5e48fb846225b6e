//! Which values do blocks stand for whose elements are looked up eight or four at a time? IQ1_S, IQ1_M, IQ2_*, IQ3_*.

use super::{f16_at, u16_at, u32_at};

/// The codebooks one after the other, a byte an element, made by scripts/goldens/ggml_grids.py.
static GRIDS: &[u8; 8 * 2048 + 8 * 256 + 8 * 512 + 8 * 1024 + 4 * 256 + 4 * 512] = include_bytes!("grids.bin");

const IQ1: usize = 0;
const IQ2XXS: usize = IQ1 + 8 * 2048;
const IQ2XS: usize = IQ2XXS + 8 * 256;
const IQ2S: usize = IQ2XS + 8 * 512;
const IQ3XXS: usize = IQ2S + 8 * 1024;
const IQ3S: usize = IQ3XXS + 4 * 256;

/// The N elements at `index` of the codebook at `base`.
#[inline(always)]
fn grid<const N: usize>(base: usize, index: usize) -> &'static [u8; N] {
    GRIDS[base + N * index..][..N].try_into().expect("N bytes")
}

/// Eight signs from seven bits: the number of minuses is even.
#[inline(always)]
fn even_signs(bits: u32) -> u8 {
    let bits = bits & 127;
    (bits | (bits.count_ones() & 1) << 7) as u8
}

/// scale · element, negated where its bit of `signs` is set.
#[inline(always)]
fn signed<const N: usize>(out: &mut [f32], scale: f32, elements: &[u8; N], signs: u8) {
    for (j, (y, &x)) in out.iter_mut().zip(elements).enumerate() {
        let value = scale * f32::from(x);
        *y = if signs >> j & 1 == 1 { -value } else { value };
    }
}

#[inline(always)]
pub(super) fn iq2_xxs(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (part, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (indices, word) = (&block[2 + 8 * part..], u32_at(block, 6 + 8 * part));
        let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
        for l in 0..4 {
            signed::<8>(&mut out[8 * l..], scale, grid(IQ2XXS, indices[l].into()), even_signs(word >> (7 * l)));
        }
    }
}

#[inline(always)]
pub(super) fn iq2_xs(block: &[u8; 74], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (part, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scales = two_scales(d, block[66 + part]);
        for l in 0..4 {
            let word = u16_at(block, 2 + 8 * part + 2 * l);
            signed::<8>(
                &mut out[8 * l..],
                scales[l / 2],
                grid(IQ2XS, (word & 511).into()),
                even_signs((word >> 9).into()),
            );
        }
    }
}

#[inline(always)]
pub(super) fn iq2_s(block: &[u8; 82], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (part, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scales, high) = (two_scales(d, block[74 + part]), usize::from(block[66 + part]));
        for l in 0..4 {
            let index = usize::from(block[2 + 4 * part + l]) | (high >> (2 * l) & 3) << 8;
            signed::<8>(&mut out[8 * l..], scales[l / 2], grid(IQ2S, index), block[34 + 4 * part + l]);
        }
    }
}

#[inline(always)]
fn two_scales(d: f32, packed: u8) -> [f32; 2] {
    [packed & 15, packed >> 4].map(|scale| d * (0.5 + f32::from(scale)) * 0.25)
}

#[inline(always)]
pub(super) fn iq3_xxs(block: &[u8; 98], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (part, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (indices, word) = (&block[2 + 8 * part..], u32_at(block, 66 + 4 * part));
        let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
        for l in 0..4 {
            let signs = even_signs(word >> (7 * l));
            signed::<4>(&mut out[8 * l..], scale, grid(IQ3XXS, indices[2 * l].into()), signs);
            signed::<4>(&mut out[8 * l + 4..], scale, grid(IQ3XXS, indices[2 * l + 1].into()), signs >> 4);
        }
    }
}

#[inline(always)]
pub(super) fn iq3_s(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (part, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (high, scale) = (usize::from(block[66 + part]), block[106 + part / 2] >> (4 * (part % 2)) & 15);
        let scale = d * f32::from(1 + 2 * scale);
        for l in 0..8 {
            let index = usize::from(block[2 + 8 * part + l]) | (high >> l & 1) << 8;
            let signs = block[74 + 4 * part + l / 2] >> (4 * (l % 2));
            signed::<4>(&mut out[4 * l..], scale, grid(IQ3S, index), signs);
        }
    }
}

/// What is added to every element of a group of IQ1.
const DELTA: f32 = 0.125;

#[inline(always)]
fn shifted(out: &mut [f32], scale: f32, index: usize, delta: f32) {
    for (y, &x) in out.iter_mut().zip(grid::<8>(IQ1, index)) {
        *y = scale * (f32::from(x as i8) + delta);
    }
}

#[inline(always)]
pub(super) fn iq1_s(block: &[u8; 50], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (part, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let word = usize::from(u16_at(block, 34 + 2 * part));
        let scale = d * (2 * (word >> 12 & 7) + 1) as f32;
        let delta = if word >> 15 == 1 { -DELTA } else { DELTA };
        for l in 0..4 {
            let index = usize::from(block[2 + 4 * part + l]) | (word >> (3 * l) & 7) << 8;
            shifted(&mut out[8 * l..][..8], scale, index, delta);
        }
    }
}

/// The f16 scale is the top four bits of each of four words; under them lie three bits of scale for every 16 elements.
#[inline(always)]
pub(super) fn iq1_m(block: &[u8; 56], out: &mut [f32; 256]) {
    let words: [u16; 4] = std::array::from_fn(|i| u16_at(block, 48 + 2 * i));
    let bits = words.iter().enumerate().fold(0, |bits, (i, word)| bits | (word >> 12) << (4 * i));
    let d = half::f16::from_bits(bits).to_f32();
    for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let sixteen = group / 2;
        let scale = words[sixteen / 4] >> (3 * (sixteen % 4)) & 7;
        let high = usize::from(block[32 + group / 2] >> (4 * (group % 2)) & 15);
        let delta = if high >> 3 == 1 { -DELTA } else { DELTA };
        shifted(out, d * f32::from(2 * scale + 1), usize::from(block[group]) | (high & 7) << 8, delta);
    }
}

//! Which whole numbers does a block hold? Apart from its scales, for the products of whole numbers.
//!
//! The bits are told apart as in `k` and `legacy`, which say what they stand for; a test holds both against each other.

use firstdiff_simd::Level;

use super::super::legacy::LEVELS;
use super::super::{f16_at, k, u32_at};
use super::{Form, PART, PARTS, Plain, Scaled};
use crate::ggml::Type;

macro_rules! forms {
    ($(Scaled: $($scaled:ident $q:ident)*; Plain: $($plain:ident $p:ident)*;)*) => {
        /// How blocks of a type are unpacked at a level; the same code, compiled for its registers.
        pub(super) fn form(level: Level, kind: Type) -> Option<Form> {
            assert!(level.is_available(), "this processor lacks the instructions of {level:?}");
            #[cfg(target_arch = "x86_64")]
            if let Level::Vnni | Level::Avx512 | Level::Avx2 = level {
                return match kind {
                    // SAFETY: the processor has AVX2.
                    $($(Type::$scaled => Some(Form::Scaled(|block, to| unsafe { avx2::$q(block, to) })),)*)*
                    // SAFETY: as above.
                    $($(Type::$plain => Some(Form::Plain(|block, part, to| unsafe { avx2::$p(block, part, to) })),)*)*
                    _ => None,
                };
            }
            match kind {
                $($(Type::$scaled => Some(Form::Scaled($q)),)*)*
                $($(Type::$plain => Some(Form::Plain($p)),)*)*
                _ => None,
            }
        }

        #[cfg(target_arch = "x86_64")]
        mod avx2 {
            use super::{Plain, Scaled};

            $($(
                #[target_feature(enable = "avx2")]
                pub(super) fn $q(block: &[u8], to: &mut Scaled) {
                    super::$q(block, to);
                }
            )*)*
            $($(
                #[target_feature(enable = "avx2")]
                pub(super) fn $p(block: &[u8], part: usize, to: &mut Plain) {
                    super::$p(block, part, to);
                }
            )*)*
        }
    };
}

forms! {
    Scaled: Q2K q2_k Q3K q3_k Q4K q4_k Q5K q5_k Q6K q6_k;
    Plain: Q4_0 q4_0 Q5_0 q5_0 Q8_0 q8_0 IQ4NL iq4_nl;
}

/// Bytes `at..at + N`.
#[inline(always)]
fn bytes<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    block[at..].first_chunk().expect("a whole block")
}

/// The scale and the minimum of every 16 elements.
#[inline(always)]
fn groups(to: &mut Scaled, scale: impl Fn(usize) -> i16, minimum: impl Fn(usize) -> i16) {
    for (part, scales) in to.scales.iter_mut().enumerate() {
        for (half, scales) in scales.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *scales = [scale(2 * part + half); 8];
        }
    }
    to.minima = std::array::from_fn(minimum);
}

#[inline(always)]
fn q2_k(block: &[u8], to: &mut Scaled) {
    (to.d, to.m) = (f16_at(block, 80), f16_at(block, 82));
    groups(to, |g| i16::from(block[g] & 15), |g| i16::from(block[g] >> 4));
    for (part, quants) in to.quants.iter_mut().enumerate() {
        let two: &[u8; PART] = bytes(block, 16 + part / 4 * PART);
        quants.iter_mut().zip(two).for_each(|(q, two)| *q = two >> (2 * (part % 4)) & 3);
    }
}

#[inline(always)]
fn q3_k(block: &[u8], to: &mut Scaled) {
    to.d = f16_at(block, 108);
    to.m = to.d;
    let packed: &[u8; 12] = bytes(block, 96);
    let scale = |g: usize| {
        let low = if g < 8 { packed[g] & 15 } else { packed[g - 8] >> 4 };
        let high = packed[8 + g % 4] >> (2 * (g / 4)) & 3;
        i16::from(low | high << 4) - 32
    };
    groups(to, scale, |g| 4 * scale(g));
    let third: &[u8; PART] = bytes(block, 0);
    for (part, quants) in to.quants.iter_mut().enumerate() {
        let two: &[u8; PART] = bytes(block, 32 + part / 4 * PART);
        for i in 0..PART {
            quants[i] = two[i] >> (2 * (part % 4)) & 3 | (third[i] >> part & 1) << 2;
        }
    }
}

/// Scales and minima of Q4_K and Q5_K.
#[inline(always)]
fn six_bits(block: &[u8], to: &mut Scaled) {
    (to.d, to.m) = (f16_at(block, 0), f16_at(block, 2));
    let (scales, minima) = k::scales_and_minima(bytes(block, 4));
    groups(to, |g| scales[g / 2].into(), |g| minima[g / 2].into());
}

#[inline(always)]
fn q4_k(block: &[u8], to: &mut Scaled) {
    six_bits(block, to);
    for (pair, quants) in to.quants.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let four: &[u8; PART] = bytes(block, 16 + pair * PART);
        for i in 0..PART {
            (quants[0][i], quants[1][i]) = (four[i] & 15, four[i] >> 4);
        }
    }
}

#[inline(always)]
fn q5_k(block: &[u8], to: &mut Scaled) {
    six_bits(block, to);
    let fifth: &[u8; PART] = bytes(block, 16);
    for (pair, quants) in to.quants.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let four: &[u8; PART] = bytes(block, 48 + pair * PART);
        for i in 0..PART {
            quants[0][i] = four[i] & 15 | (fifth[i] >> (2 * pair) & 1) << 4;
            quants[1][i] = four[i] >> 4 | (fifth[i] >> (2 * pair + 1) & 1) << 4;
        }
    }
}

#[inline(always)]
fn q6_k(block: &[u8], to: &mut Scaled) {
    to.d = f16_at(block, 208);
    to.m = to.d;
    let scales: &[u8; 16] = bytes(block, 192);
    let scale = |g: usize| i16::from(scales[g].cast_signed());
    groups(to, scale, |g| 32 * scale(g));
    for (part, quants) in to.quants.iter_mut().enumerate() {
        let (half, quarter) = (part / 4, part % 4);
        let low: &[u8; PART] = bytes(block, 64 * half + PART * (quarter % 2));
        let high: &[u8; PART] = bytes(block, 128 + PART * half);
        let (four, two) = (4 * (quarter / 2), 2 * quarter);
        for i in 0..PART {
            quants[i] = low[i] >> four & 15 | (high[i] >> two & 3) << 4;
        }
    }
}

/// The part's numbers, and their magnitudes.
#[inline(always)]
fn set(to: &mut Plain, part: usize, d: f32, quants: [i8; PART]) {
    debug_assert!(part < PARTS);
    to.d[part] = d;
    to.quants[part] = quants;
    to.magnitudes[part] = quants.map(i8::unsigned_abs);
}

#[inline(always)]
fn q4_0(block: &[u8], part: usize, to: &mut Plain) {
    let four: &[u8; PART / 2] = bytes(block, 2);
    let mut quants = [0; PART];
    for i in 0..PART / 2 {
        quants[i] = (four[i] & 15) as i8 - 8;
        quants[i + PART / 2] = (four[i] >> 4) as i8 - 8;
    }
    set(to, part, f16_at(block, 0), quants);
}

#[inline(always)]
fn q5_0(block: &[u8], part: usize, to: &mut Plain) {
    let (four, fifth): (&[u8; PART / 2], u32) = (bytes(block, 6), u32_at(block, 2));
    let mut quants = [0; PART];
    for i in 0..PART {
        let low = if i < PART / 2 { four[i] & 15 } else { four[i - PART / 2] >> 4 };
        quants[i] = (low | ((fifth >> i & 1) << 4) as u8) as i8 - 16;
    }
    set(to, part, f16_at(block, 0), quants);
}

#[inline(always)]
fn q8_0(block: &[u8], part: usize, to: &mut Plain) {
    let quants: &[u8; PART] = bytes(block, 2);
    set(to, part, f16_at(block, 0), quants.map(u8::cast_signed));
}

#[inline(always)]
fn iq4_nl(block: &[u8], part: usize, to: &mut Plain) {
    let four: &[u8; PART / 2] = bytes(block, 2);
    let level = |i: usize| {
        let q = if i < PART / 2 { four[i] & 15 } else { four[i - PART / 2] >> 4 };
        LEVELS[usize::from(q)]
    };
    set(to, part, f16_at(block, 0), std::array::from_fn(level));
}

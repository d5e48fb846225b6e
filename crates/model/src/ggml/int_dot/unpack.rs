//! Unpacks the blocks of a row into integers, already multiplied by the integer scales of their parts; the float scale of each run is returned apart.
//!
//! The bits are decoded as in `k` and `legacy`, which describe them; a test compares both.

use firstdiff_simd::Level;

use super::super::legacy::LEVELS;
use super::super::{f16, k, prefetch_ahead, u16_at, u32_at};
use super::RunLayout;
use crate::ggml::Type;

/// Writes the runs of a row of blocks, and a scale for each; the scale of minima is negative.
pub(super) type Unpack = unsafe fn(&[u8], &mut [i16], &mut [f32]);

macro_rules! unpack {
    ($($runs:ident: $($kind:ident $name:ident)*;)*) => {
        /// How a row of a type is divided into runs.
        pub(super) fn runs(kind: Type) -> Option<RunLayout> {
            match kind {
                $($(Type::$kind => Some(RunLayout::$runs),)*)*
                _ => None,
            }
        }

        /// The function that unpacks a row of a type at a level that the processor must have: the same code, compiled for its registers.
        pub(super) fn unpack(level: Level, kind: Type) -> Option<Unpack> {
            match (level, kind) {
                $($(
                    #[cfg(target_arch = "x86_64")]
                    (Level::Vnni | Level::Avx512, Type::$kind) => Some(avx512::$name),
                    #[cfg(target_arch = "x86_64")]
                    (Level::Avx2, Type::$kind) => Some(avx2::$name),
                )*)*
                $($((_, Type::$kind) => {
                    Some(|row, values, scales| blocks(row, values, scales, |block, to| $name(block, to), f16))
                })*)*
                _ => None,
            }
        }

        wider! { avx512 "avx2,f16c,avx512f,avx512bw,avx512vl": $($($name)*)* }
        wider! { avx2 "avx2,f16c": $($($name)*)* }
    };
}

macro_rules! wider {
    ($level:ident $features:literal: $($name:ident)*) => {
        #[cfg(target_arch = "x86_64")]
        mod $level {
            use std::arch::x86_64::*;

            $(
                #[target_feature(enable = $features)]
                pub(super) fn $name(row: &[u8], values: &mut [i16], scales: &mut [f32]) {
                    // A call by name would be compiled without these instructions.
                    super::blocks(row, values, scales, |block, to| super::$name(block, to), |bits| f16(bits));
                }
            )*

            #[target_feature(enable = "f16c")]
            #[inline]
            fn f16(bits: u16) -> f32 {
                _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits.into())))
            }
        }
    };
}

/// RunLayout code for each part of a block, with the part's number as a constant, so that shifts by it are single instructions.
macro_rules! parts {
    ($part:ident => $body:expr) => {
        parts!($part in 0 1 2 3 4 5 6 7 => $body)
    };
    ($part:ident in $($number:literal)* => $body:expr) => {
        $({
            const $part: usize = $number;
            $body
        })*
    };
}

unpack! {
    Block32: Q4_0 q4_0 Q5_0 q5_0 Q8_0 q8_0 IQ4NL iq4_nl;
    Block256: Q3K q3_k Q6K q6_k;
    Block256WithMinima: Q2K q2_k Q4K q4_k Q5K q5_k;
}

/// Unpacks blocks of BYTES bytes, each with N integers in RUNS runs, whose scales are 16-bit floats.
#[inline(always)]
fn blocks<const BYTES: usize, const N: usize, const RUNS: usize>(
    row: &[u8],
    values: &mut [i16],
    scales: &mut [f32],
    one: impl Fn(&[u8; BYTES], &mut [i16; N]) -> [u16; RUNS],
    f16: impl Fn(u16) -> f32,
) {
    for ((block, values), scales) in
        row.as_chunks().0.iter().zip(values.as_chunks_mut().0).zip(scales.as_chunks_mut::<RUNS>().0)
    {
        prefetch_ahead(block);
        let halves = one(block, values);
        for (scale, half) in scales.iter_mut().zip(halves) {
            *scale = f16(half);
        }
    }
}

/// The negated scale of a minimum, which is subtracted.
#[inline(always)]
fn negated_scale(half: u16) -> u16 {
    half ^ 0x8000
}

/// The elements of a block, and after them the minima of every 16.
#[inline(always)]
fn with_minima(values: &mut [i16; 256 + 16]) -> (&mut [i16; 256], &mut [i16]) {
    values.split_first_chunk_mut().expect("256 elements")
}

/// Bytes `at..at + N`.
#[inline(always)]
fn bytes<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    block[at..].first_chunk().expect("a whole block")
}

/// Writes the elements of a part as scale · (q - zero): the first 16 with the first scale, the rest with the second.
#[inline(always)]
fn scale(values: &mut [i16; 256], part: usize, scales: [i16; 2], q: [u8; 32], zero: i16) {
    let values = &mut values[32 * part..][..32];
    let mut of = [scales[0]; 32];
    of[16..].fill(scales[1]);
    for i in 0..32 {
        values[i] = of[i] * (i16::from(q[i]) - zero);
    }
}

#[inline(always)]
fn q2_k(block: &[u8; 84], to: &mut [i16; 272]) -> [u16; 2] {
    let (values, minima) = with_minima(to);
    parts!(PART => {
        let two: &[u8; 32] = bytes(block, 16 + PART / 4 * 32);
        let scales = [block[2 * PART], block[2 * PART + 1]].map(|x| i16::from(x & 15));
        scale(values, PART, scales, two.map(|two| two >> (2 * (PART % 4)) & 3), 0);
    });
    minima.iter_mut().zip(block).for_each(|(to, x)| *to = i16::from(x >> 4));
    [u16_at(block, 80), negated_scale(u16_at(block, 82))]
}

#[inline(always)]
fn q3_k(block: &[u8; 110], values: &mut [i16; 256]) -> [u16; 1] {
    let packed: &[u8; 12] = bytes(block, 96);
    let of_16 = |g: usize| {
        let low = if g < 8 { packed[g] & 15 } else { packed[g - 8] >> 4 };
        let high = packed[8 + g % 4] >> (2 * (g / 4)) & 3;
        i16::from(low | high << 4) - 32
    };
    let third: &[u8; 32] = bytes(block, 0);
    parts!(PART => {
        let two: &[u8; 32] = bytes(block, 32 + PART / 4 * 32);
        let mut q = [0; 32];
        for i in 0..32 {
            q[i] = two[i] >> (2 * (PART % 4)) & 3 | (third[i] >> PART & 1) << 2;
        }
        scale(values, PART, [of_16(2 * PART), of_16(2 * PART + 1)], q, 4);
    });
    [u16_at(block, 108)]
}

/// Decodes Q4_K and Q5_K: scales of the parts; their minima, each twice because a part has 32 elements; and the scales of both runs.
#[inline(always)]
fn six_bits(block: &[u8], minima: &mut [i16]) -> ([i16; 8], [u16; 2]) {
    let (scales, of_parts) = k::scales_and_minima(bytes(block, 4));
    minima.as_chunks_mut().0.iter_mut().zip(of_parts).for_each(|(to, minimum)| *to = [i16::from(minimum); 2]);
    (scales.map(i16::from), [u16_at(block, 0), negated_scale(u16_at(block, 2))])
}

#[inline(always)]
fn q4_k(block: &[u8; 144], to: &mut [i16; 272]) -> [u16; 2] {
    let (values, minima) = with_minima(to);
    let (scales, both) = six_bits(block, minima);
    parts!(PART => {
        let four: &[u8; 32] = bytes(block, 16 + PART / 2 * 32);
        scale(values, PART, [scales[PART]; 2], four.map(|four| four >> (4 * (PART % 2)) & 15), 0);
    });
    both
}

#[inline(always)]
fn q5_k(block: &[u8; 176], to: &mut [i16; 272]) -> [u16; 2] {
    let (values, minima) = with_minima(to);
    let (scales, both) = six_bits(block, minima);
    let fifth: &[u8; 32] = bytes(block, 16);
    parts!(PART => {
        let four: &[u8; 32] = bytes(block, 48 + PART / 2 * 32);
        let mut q = [0; 32];
        for i in 0..32 {
            q[i] = four[i] >> (4 * (PART % 2)) & 15 | (fifth[i] >> PART & 1) << 4;
        }
        scale(values, PART, [scales[PART]; 2], q, 0);
    });
    both
}

#[inline(always)]
fn q6_k(block: &[u8; 210], values: &mut [i16; 256]) -> [u16; 1] {
    let scales: &[u8; 16] = bytes(block, 192);
    parts!(PART => {
        const HALF: usize = PART / 4;
        const QUARTER: usize = PART % 4;
        let low: &[u8; 32] = bytes(block, 64 * HALF + 32 * (QUARTER % 2));
        let high: &[u8; 32] = bytes(block, 128 + 32 * HALF);
        let mut q = [0; 32];
        for i in 0..32 {
            q[i] = low[i] >> (4 * (QUARTER / 2)) & 15 | (high[i] >> (2 * QUARTER) & 3) << 4;
        }
        scale(values, PART, [scales[2 * PART], scales[2 * PART + 1]].map(|x| x.cast_signed().into()), q, 32);
    });
    [u16_at(block, 208)]
}

#[inline(always)]
fn q4_0(block: &[u8; 18], values: &mut [i16; 32]) -> [u16; 1] {
    let mut q = [0; 32];
    for i in 0..16 {
        (q[i], q[i + 16]) = (block[2 + i] & 15, block[2 + i] >> 4);
    }
    for i in 0..32 {
        values[i] = i16::from(q[i]) - 8;
    }
    [u16_at(block, 0)]
}

#[inline(always)]
fn q5_0(block: &[u8; 22], values: &mut [i16; 32]) -> [u16; 1] {
    let fifth = u32_at(block, 2);
    for i in 0..16 {
        let bit = |at: usize| ((fifth >> at & 1) << 4) as i16;
        values[i] = (i16::from(block[6 + i] & 15) | bit(i)) - 16;
        values[i + 16] = (i16::from(block[6 + i] >> 4) | bit(i + 16)) - 16;
    }
    [u16_at(block, 0)]
}

#[inline(always)]
fn q8_0(block: &[u8; 34], values: &mut [i16; 32]) -> [u16; 1] {
    values.iter_mut().zip(&block[2..]).for_each(|(value, &q)| *value = q.cast_signed().into());
    [u16_at(block, 0)]
}

#[inline(always)]
fn iq4_nl(block: &[u8; 18], values: &mut [i16; 32]) -> [u16; 1] {
    for i in 0..16 {
        let q = usize::from(block[2 + i]);
        values[i] = LEVELS[q & 15].into();
        values[i + 16] = LEVELS[q >> 4].into();
    }
    [u16_at(block, 0)]
}

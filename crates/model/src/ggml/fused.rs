//! Multiplies one row of x with rows of quantised blocks, which are dequantised in registers: Q4_0, Q8_0, Q4_K and Q6_K.
//!
//! The sums are bit for bit those of `dot` with the dequantised row: the same values, in the same lanes, in the same order.

use firstdiff_simd::Level;

use super::Type;

/// Whether this level has such a product for this type.
pub(crate) fn is_supported(level: Level, kind: Type) -> bool {
    matches!(kind, Type::Q4_0 | Type::Q8_0 | Type::Q4K | Type::Q6K)
        && matches!(level, Level::Avx2 | Level::Avx512 | Level::Vnni)
}

/// out\[j\] = dot(x, row j of `bytes`), for as many rows as `out` has elements.
///
/// # Panics
/// When the level has no such product for the type, the processor lacks the level, or the bytes are not whole rows as long as x.
pub(crate) fn products(level: Level, kind: Type, bytes: &[u8], x: &[f32], out: &mut [f32]) {
    let size = kind.block_bytes();
    let stride = x.len() / kind.block_len() * size;
    assert!(level.is_available() && is_supported(level, kind));
    assert!(x.len().is_multiple_of(kind.block_len()) && bytes.len() == stride * out.len());
    if stride == 0 {
        return out.fill(0.0);
    }
    // Several rows at once: a single sum would wait for each addition.
    let fours = bytes.chunks_exact(ROWS_AT_ONCE * stride).zip(out.as_chunks_mut::<ROWS_AT_ONCE>().0);
    fours.for_each(|(rows, out)| {
        rows_at_once(level, kind, std::array::from_fn(|r| &rows[r * stride..(r + 1) * stride]), x, out)
    });
    let done = out.len() / ROWS_AT_ONCE * ROWS_AT_ONCE;
    let rest = bytes[done * stride..].chunks_exact(stride).zip(&mut out[done..]);
    rest.for_each(|(row, out)| rows_at_once(level, kind, [row], x, std::array::from_mut(out)));
}

/// Rows that are multiplied at once.
const ROWS_AT_ONCE: usize = 2;

fn rows_at_once<const R: usize>(level: Level, kind: Type, rows: [&[u8]; R], x: &[f32], out: &mut [f32; R]) {
    // SAFETY: the processor has the instructions.
    let lanes = unsafe {
        match level {
            Level::Avx512 | Level::Vnni => avx512::lanes(kind, rows, x),
            _ => avx2::lanes(kind, rows, x),
        }
    };
    *out = lanes.map(firstdiff_core::tree_sum);
}

/// The value of four bits q: scale · (q - zero) - minimum.
#[derive(Clone, Copy)]
struct Nibble {
    zero: u8,
    scale: f32,
    minimum: Option<f32>,
}

/// Defines the products of one set of instructions. `Lanes` holds 16 sums. `step` adds x\[0..16\] · (scale · q - minimum) to them, for 16 integers q of 8
/// bits. `nibbles` adds the products of the lower halves of all bytes with the first half of x, then of the upper halves with the second. `scales_of`
/// multiplies 16 scales of 8 bits: the first eight by the first factor, the last eight by the second.
macro_rules! fused {
    ($name:ident: $features:literal, $lanes:ty, $zero:expr, $step:item, $nibbles:item, $scales:item, $store:expr) => {
        mod $name {
            use std::arch::x86_64::*;

            use super::Nibble;
            use crate::ggml::{Type, prefetch_ahead, f16_at, k};

            type Lanes = $lanes;

            #[target_feature(enable = $features)]
            #[inline]
            $step

            #[target_feature(enable = $features)]
            #[inline]
            $nibbles

            #[target_feature(enable = $features)]
            #[inline]
            $scales

            /// 16 bytes.
            #[target_feature(enable = $features)]
            #[inline]
            fn load(bytes: &[u8; 16]) -> __m128i {
                // SAFETY: 16 bytes; no alignment is needed.
                unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
            }

            /// The lanes of the products of x with rows of blocks.
            #[target_feature(enable = $features)]
            pub(super) fn lanes<const R: usize>(kind: Type, rows: [&[u8]; R], x: &[f32]) -> [[f32; 16]; R] {
                let mut lanes = [$zero; R];
                macro_rules! blocks {
                    ($one:ident, $elements:literal) => {{
                        let size = kind.block_bytes();
                        for (number, x) in x.as_chunks::<16>().0.as_chunks::<{ $elements / 16 }>().0.iter().enumerate() {
                            for r in 0..R {
                                let block = &rows[r][number * size..(number + 1) * size];
                                prefetch_ahead(block);
                                lanes[r] = $one(block, x, lanes[r]);
                            }
                        }
                    }};
                }
                match kind {
                    Type::Q4_0 => blocks!(q4_0, 32),
                    Type::Q8_0 => blocks!(q8_0, 32),
                    Type::Q4K => blocks!(q4_k, 256),
                    _ => blocks!(q6_k, 256),
                }
                let mut out = [[0.0; 16]; R];
                for r in 0..R {
                    out[r] = $store(lanes[r]);
                }
                out
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn q4_0(block: &[u8], x: &[[f32; 16]; 2], lanes: Lanes) -> Lanes {
                let nibble = Nibble { zero: 8, scale: f16_at(block, 0), minimum: None };
                nibbles(block[2..].as_chunks().0, [nibble; 2], x, lanes)
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn q8_0(block: &[u8], x: &[[f32; 16]; 2], mut lanes: Lanes) -> Lanes {
                let d = f16_at(block, 0);
                for (bytes, x) in block[2..].as_chunks::<16>().0.iter().zip(x) {
                    lanes = step(load(bytes), d, None, x, lanes);
                }
                lanes
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn q4_k(block: &[u8], x: &[[f32; 16]; 16], mut lanes: Lanes) -> Lanes {
                let (scales, minima) = k::scales_and_minima(block[4..16].try_into().expect("12 bytes"));
                let (d, min) = (f16_at(block, 0), f16_at(block, 2));
                let both = scales_of([scales, minima].as_flattened().first_chunk().expect("16 bytes"), [d, min]);
                let nibble = |part: usize| Nibble { zero: 0, scale: both[part], minimum: Some(both[part + 8]) };
                let pairs = block[16..144].as_chunks::<16>().0.as_chunks::<2>().0.iter();
                for (pair, (bytes, x)) in pairs.zip(x.as_chunks::<4>().0).enumerate() {
                    lanes = nibbles(bytes, [nibble(2 * pair), nibble(2 * pair + 1)], x, lanes);
                }
                lanes
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn q6_k(block: &[u8], x: &[[f32; 16]; 16], mut lanes: Lanes) -> Lanes {
                let scales = scales_of(block[192..208].try_into().expect("16 bytes"), [f16_at(block, 208); 2]);
                // SAFETY: 32 bytes; no alignment is needed.
                let load = |bytes: &[u8; 32]| unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) };
                let (lows, highs) = block.split_at(128);
                let halves = lows.as_chunks::<64>().0.iter().zip(highs.as_chunks::<32>().0);
                for (half, (lows, high)) in halves.enumerate() {
                    let (lows, high) = (lows.as_chunks::<32>().0, load(high));
                    for quarter in 0..4 {
                        let bytes = load(&lows[quarter % 2]);
                        let bytes = if quarter < 2 { bytes } else { _mm256_srli_epi16::<4>(bytes) };
                        let shifted = _mm256_srl_epi16(high, _mm_cvtsi32_si128(2 * quarter as i32));
                        let above = _mm256_slli_epi16::<4>(_mm256_and_si256(shifted, _mm256_set1_epi8(3)));
                        let q = _mm256_or_si256(_mm256_and_si256(bytes, _mm256_set1_epi8(15)), above);
                        let q = _mm256_sub_epi8(q, _mm256_set1_epi8(32));
                        let part = 8 * half + 2 * quarter;
                        lanes = step(_mm256_castsi256_si128(q), scales[part], None, &x[part], lanes);
                        let second = _mm256_extracti128_si256::<1>(q);
                        lanes = step(second, scales[part + 1], None, &x[part + 1], lanes);
                    }
                }
                lanes
            }
        }
    };
}

fused!(
    avx512: "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c",
    __m512,
    _mm512_setzero_ps(),
    fn step(q: __m128i, scale: f32, minimum: Option<f32>, x: &[f32; 16], lanes: Lanes) -> Lanes {
        let scaled = _mm512_mul_ps(_mm512_set1_ps(scale), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)));
        let value = minimum.map_or(scaled, |m| _mm512_sub_ps(scaled, _mm512_set1_ps(m)));
        // SAFETY: 16 elements; no alignment is needed.
        _mm512_fmadd_ps(unsafe { _mm512_loadu_ps(x.as_ptr()) }, value, lanes)
    },
    fn nibbles(bytes: &[[u8; 16]], pair: [Nibble; 2], x: &[[f32; 16]], mut lanes: Lanes) -> Lanes {
        let (below, above) = x.split_at(bytes.len());
        for (number, (nibble, x)) in pair.into_iter().zip([below, above]).enumerate() {
            // A table of all sixteen values; the low bits of an element select one, higher bits are ignored.
            let q = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            let q = _mm512_sub_epi32(q, _mm512_set1_epi32(nibble.zero.into()));
            let scaled = _mm512_mul_ps(_mm512_set1_ps(nibble.scale), _mm512_cvtepi32_ps(q));
            let values = nibble.minimum.map_or(scaled, |m| _mm512_sub_ps(scaled, _mm512_set1_ps(m)));
            for (bytes, x) in bytes.iter().zip(x) {
                let bytes = _mm512_cvtepu8_epi32(load(bytes));
                let q = if number == 0 { bytes } else { _mm512_srli_epi32::<4>(bytes) };
                // SAFETY: 16 elements; no alignment is needed.
                let x = unsafe { _mm512_loadu_ps(x.as_ptr()) };
                lanes = _mm512_fmadd_ps(x, _mm512_permutexvar_ps(q, values), lanes);
            }
        }
        lanes
    },
    fn scales_of(stored: &[u8; 16], [low, high]: [f32; 2]) -> [f32; 16] {
        let d = _mm512_insertf32x8::<1>(_mm512_set1_ps(low), _mm256_set1_ps(high));
        let scales = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load(stored))));
        let mut out = [0.0; 16];
        // SAFETY: 16 elements; no alignment is needed.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), scales) };
        out
    },
    |lanes| {
        let mut out = [0.0; 16];
        // SAFETY: 16 elements; no alignment is needed.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), lanes) };
        out
    }
);

fused!(
    avx2: "avx2,fma,f16c",
    [__m256; 2],
    [_mm256_setzero_ps(); 2],
    fn step(q: __m128i, scale: f32, minimum: Option<f32>, x: &[f32; 16], lanes: Lanes) -> Lanes {
        let halves = [_mm256_cvtepi8_epi32(q), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(q, q))];
        let scale = _mm256_set1_ps(scale);
        std::array::from_fn(|half| {
            let scaled = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(halves[half]));
            let value = minimum.map_or(scaled, |m| _mm256_sub_ps(scaled, _mm256_set1_ps(m)));
            // SAFETY: 8 of 16 elements; no alignment is needed.
            _mm256_fmadd_ps(unsafe { _mm256_loadu_ps(x.as_ptr().add(8 * half)) }, value, lanes[half])
        })
    },
    fn nibbles(bytes: &[[u8; 16]], pair: [Nibble; 2], x: &[[f32; 16]], mut lanes: Lanes) -> Lanes {
        let (below, above) = x.split_at(bytes.len());
        for (number, (nibble, x)) in pair.into_iter().zip([below, above]).enumerate() {
            for (bytes, x) in bytes.iter().zip(x) {
                let bytes = load(bytes);
                let q = if number == 0 { bytes } else { _mm_srli_epi16::<4>(bytes) };
                let q = _mm_sub_epi8(_mm_and_si128(q, _mm_set1_epi8(15)), _mm_set1_epi8(nibble.zero as i8));
                lanes = step(q, nibble.scale, nibble.minimum, x, lanes);
            }
        }
        lanes
    },
    fn scales_of(stored: &[u8; 16], d: [f32; 2]) -> [f32; 16] {
        let bytes = load(stored);
        let mut out = [0.0; 16];
        for (half, to) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let bytes = if half == 0 { bytes } else { _mm_unpackhi_epi64(bytes, bytes) };
            let scales = _mm256_mul_ps(_mm256_set1_ps(d[half]), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
            // SAFETY: 8 elements; no alignment is needed.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), scales) };
        }
        out
    },
    |lanes: Lanes| {
        let mut out = [0.0; 16];
        for (to, lanes) in out.as_chunks_mut::<8>().0.iter_mut().zip(lanes) {
            // SAFETY: 8 elements; no alignment is needed.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), lanes) };
        }
        out
    }
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_widened_rows() {
        let mut state = 7u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let of_level = |level| [Type::Q4_0, Type::Q8_0, Type::Q4K, Type::Q6K].map(|kind| (level, kind));
        for (level, kind) in
            Level::available().into_iter().flat_map(of_level).filter(|(level, kind)| is_supported(*level, *kind))
        {
            for (rows, blocks) in [(1, 1), (3, 2), (7, 8)] {
                let count = rows * blocks * 256 / kind.block_len();
                let mut bytes: Vec<u8> = (0..count * kind.block_bytes()).map(|_| next()).collect();
                // Scales of ordinary size, so that no sum is infinite.
                for block in bytes.chunks_exact_mut(kind.block_bytes()) {
                    for &(offset, width, count) in kind.words() {
                        (0..count)
                            .for_each(|i| block[offset + i * width + 1] = block[offset + i * width + 1] & 0x83 | 0x20);
                    }
                }
                let x: Vec<f32> = (0..blocks * 256).map(|_| f32::from(next()) / 100.0 - 1.28).collect();
                let mut values = vec![0f32; rows * blocks * 256];
                kind.dequantise(&bytes, &mut values);
                let mut out = vec![0f32; rows];
                products(level, kind, &bytes, &x, &mut out);
                for (out, row) in out.iter().zip(values.chunks_exact(blocks * 256)) {
                    assert!(
                        out.is_finite() && out.to_bits() == firstdiff_core::dot(&x, row).to_bits(),
                        "{level:?} {}",
                        kind.name()
                    );
                }
            }
        }
    }
}

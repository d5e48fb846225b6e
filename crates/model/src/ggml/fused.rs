//! How is one row of x multiplied with rows of blocks without widening them into memory first? Q4_0, Q8_0, Q4_K and Q6_K in registers.
//!
//! The sums are those of `dot` with the dequantised row, to the bit: the same values, in the same lanes, in the same order.

use firstdiff_simd::Level;

use super::Type;

/// Whether this level and this type have such a product.
pub(crate) fn suits(level: Level, kind: Type) -> bool {
    matches!(kind, Type::Q4_0 | Type::Q8_0 | Type::Q4K | Type::Q6K)
        && matches!(level, Level::Avx2 | Level::Avx512 | Level::Vnni)
}

/// out\[j\] = dot(x, row j of `bytes`); as many rows as `out` has elements.
///
/// # Panics
/// When the type has no such product at this level, the processor not the level, or the bytes are not whole rows of as many elements as x.
pub(crate) fn products(level: Level, kind: Type, bytes: &[u8], x: &[f32], out: &mut [f32]) {
    let size = kind.block_bytes();
    let stride = x.len() / kind.block_len() * size;
    assert!(level.is_available() && suits(level, kind));
    assert!(x.len().is_multiple_of(kind.block_len()) && bytes.len() == stride * out.len());
    for (row, out) in bytes.chunks_exact(stride.max(1)).zip(out) {
        let blocks = row.chunks_exact(size);
        // SAFETY: the processor has the instructions.
        *out = firstdiff_core::tree(unsafe {
            match level {
                Level::Avx512 | Level::Vnni => avx512::lanes(kind, blocks, x),
                _ => avx2::lanes(kind, blocks, x),
            }
        });
    }
}

/// The products of one set of instructions. `Lanes` are 16; `step` adds x\[0..16\] · (scale · q - minimum) to them, for 16 whole numbers of 8 bits.
macro_rules! fused {
    ($name:ident: $features:literal, $lanes:ty, $zero:expr, $step:item, $store:expr) => {
        mod $name {
            use std::arch::x86_64::*;

            use crate::ggml::{Type, ahead, f16_at, k};

            type Lanes = $lanes;

            #[target_feature(enable = $features)]
            #[inline]
            $step

            /// 16 bytes.
            #[target_feature(enable = $features)]
            #[inline]
            fn load(bytes: &[u8; 16]) -> __m128i {
                // SAFETY: 16 bytes; no alignment is needed.
                unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
            }

            /// The lanes of a row of blocks with x.
            #[target_feature(enable = $features)]
            pub(super) fn lanes<'a>(kind: Type, blocks: impl Iterator<Item = &'a [u8]>, x: &[f32]) -> [f32; 16] {
                match kind {
                    Type::Q4_0 => q4_0(blocks, x),
                    Type::Q8_0 => q8_0(blocks, x),
                    Type::Q4K => q4_k(blocks, x),
                    _ => q6_k(blocks, x),
                }
            }

            #[target_feature(enable = $features)]
            fn q4_0<'a>(blocks: impl Iterator<Item = &'a [u8]>, x: &[f32]) -> [f32; 16] {
                let (mut lanes, low, middle) = ($zero, _mm_set1_epi8(15), _mm_set1_epi8(8));
                for (block, [first, second]) in blocks.zip(x.as_chunks::<16>().0.as_chunks::<2>().0) {
                    ahead(block);
                    let (d, bytes) = (f16_at(block, 0), load(block[2..].first_chunk().expect("16 bytes")));
                    for (bytes, x) in [(bytes, first), (_mm_srli_epi16::<4>(bytes), second)] {
                        lanes = step(_mm_sub_epi8(_mm_and_si128(bytes, low), middle), d, None, x, lanes);
                    }
                }
                $store(lanes)
            }

            #[target_feature(enable = $features)]
            fn q8_0<'a>(blocks: impl Iterator<Item = &'a [u8]>, x: &[f32]) -> [f32; 16] {
                let mut lanes = $zero;
                for (block, x) in blocks.zip(x.as_chunks::<16>().0.as_chunks::<2>().0) {
                    ahead(block);
                    let d = f16_at(block, 0);
                    for (bytes, x) in block[2..].as_chunks::<16>().0.iter().zip(x) {
                        lanes = step(load(bytes), d, None, x, lanes);
                    }
                }
                $store(lanes)
            }

            #[target_feature(enable = $features)]
            fn q4_k<'a>(blocks: impl Iterator<Item = &'a [u8]>, x: &[f32]) -> [f32; 16] {
                let (mut lanes, low) = ($zero, _mm_set1_epi8(15));
                for (block, x) in blocks.zip(x.as_chunks::<256>().0) {
                    ahead(block);
                    let (scales, minima) = k::scales_and_minima(block[4..16].try_into().expect("12 bytes"));
                    let (d, min) = (f16_at(block, 0), f16_at(block, 2));
                    let (scales, minima) = (scales.map(|s| d * f32::from(s)), minima.map(|m| min * f32::from(m)));
                    let x = x.as_chunks::<16>().0;
                    for (pair, bytes) in block[16..144].as_chunks::<32>().0.iter().enumerate() {
                        let halves = bytes.as_chunks::<16>().0;
                        for high in 0..2 {
                            for (half, bytes) in halves.iter().enumerate() {
                                let bytes = load(bytes);
                                let q = if high == 1 { _mm_srli_epi16::<4>(bytes) } else { bytes };
                                let part = 2 * pair + high;
                                let q = _mm_and_si128(q, low);
                                lanes = step(q, scales[part], Some(minima[part]), &x[2 * part + half], lanes);
                            }
                        }
                    }
                }
                $store(lanes)
            }

            #[target_feature(enable = $features)]
            fn q6_k<'a>(blocks: impl Iterator<Item = &'a [u8]>, x: &[f32]) -> [f32; 16] {
                let (low, two, middle) = (_mm_set1_epi8(15), _mm_set1_epi8(3), _mm_set1_epi8(32));
                let mut lanes = $zero;
                for (block, x) in blocks.zip(x.as_chunks::<256>().0) {
                    ahead(block);
                    let d = f16_at(block, 208);
                    let stored: [u8; 16] = block[192..208].try_into().expect("16 bytes");
                    let scales = stored.map(|s| d * f32::from(s.cast_signed()));
                    let x = x.as_chunks::<16>().0;
                    for half in 0..2 {
                        let lows = block[64 * half..64 * half + 64].as_chunks::<16>().0;
                        let highs = block[128 + 32 * half..160 + 32 * half].as_chunks::<16>().0;
                        for quarter in 0..4 {
                            for side in 0..2 {
                                let bytes = load(&lows[2 * (quarter % 2) + side]);
                                let bytes = if quarter < 2 { bytes } else { _mm_srli_epi16::<4>(bytes) };
                                let shifted = _mm_srl_epi16(load(&highs[side]), _mm_cvtsi32_si128(2 * quarter as i32));
                                let high = _mm_slli_epi16::<4>(_mm_and_si128(shifted, two));
                                let q = _mm_sub_epi8(_mm_or_si128(_mm_and_si128(bytes, low), high), middle);
                                let part = 8 * half + 2 * quarter + side;
                                lanes = step(q, scales[part], None, &x[part], lanes);
                            }
                        }
                    }
                }
                $store(lanes)
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
            Level::available().into_iter().flat_map(of_level).filter(|(level, kind)| suits(*level, *kind))
        {
            for (rows, blocks) in [(1, 1), (3, 2), (7, 8)] {
                let count = rows * blocks * 256 / kind.block_len();
                let mut bytes: Vec<u8> = (0..count * kind.block_bytes()).map(|_| next()).collect();
                // Scales of a common size, so that no sum is infinite.
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

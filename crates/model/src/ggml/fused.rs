//! How is one row of x multiplied with rows of blocks without widening them into memory first? Q4_K and Q6_K in registers, with AVX-512.
//!
//! The sums are those of `dot` with the dequantised row, to the bit: the same values, in the same lanes, in the same order.

use std::arch::x86_64::*;

use super::{Type, ahead, f16_at, k};

/// One block of a type times 256 elements of x, added to 16 lanes.
type Block = unsafe fn(&[u8], &[f32], __m512) -> __m512;

/// Whether this processor and this type have such a product.
pub(crate) fn suits(kind: Type) -> bool {
    matches!(kind, Type::Q4K | Type::Q6K)
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
}

/// out\[j\] = dot(x, row j of `bytes`); as many rows as `out` has elements.
///
/// # Panics
/// When the type has no such product here, or the bytes are not whole rows of as many elements as x.
pub(crate) fn products(kind: Type, bytes: &[u8], x: &[f32], out: &mut [f32]) {
    let size = kind.block_bytes();
    let stride = x.len() / kind.block_len() * size;
    assert!(suits(kind) && x.len().is_multiple_of(kind.block_len()) && bytes.len() == stride * out.len());
    for (row, out) in bytes.chunks_exact(stride.max(1)).zip(out) {
        // SAFETY: the processor has the instructions; a row is whole blocks, for each of which x has 256 elements.
        *out = unsafe {
            match kind {
                Type::Q4K => row_times(row.chunks_exact(size), x, q4_k),
                _ => row_times(row.chunks_exact(size), x, q6_k),
            }
        };
    }
}

/// # Safety
/// The processor has AVX-512 BW and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
#[inline]
unsafe fn row_times<'a>(blocks: impl Iterator<Item = &'a [u8]>, x: &[f32], block_times: Block) -> f32 {
    let mut lanes = _mm512_setzero_ps();
    for (block, x) in blocks.zip(x.chunks_exact(256)) {
        ahead(block);
        // SAFETY: as the caller says.
        lanes = unsafe { block_times(block, x, lanes) };
    }
    let mut sums = [0.0; 16];
    // SAFETY: 16 elements; no alignment is needed.
    unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), lanes) };
    firstdiff_core::tree(sums)
}

/// x\[0..16\] · (scale · q - minimum), added to the lanes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
#[inline]
fn step(q: __m512i, scale: f32, minimum: Option<f32>, x: &[f32; 16], lanes: __m512) -> __m512 {
    let scaled = _mm512_mul_ps(_mm512_set1_ps(scale), _mm512_cvtepi32_ps(q));
    let value = minimum.map_or(scaled, |m| _mm512_sub_ps(scaled, _mm512_set1_ps(m)));
    // SAFETY: 16 elements; no alignment is needed.
    _mm512_fmadd_ps(unsafe { _mm512_loadu_ps(x.as_ptr()) }, value, lanes)
}

/// 16 bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
#[inline]
fn load(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: 16 bytes; no alignment is needed.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
#[inline]
fn q4_k(block: &[u8], x: &[f32], mut lanes: __m512) -> __m512 {
    let (scales, minima) = k::scales_and_minima(block[4..16].try_into().expect("12 bytes"));
    let times = |x: [u8; 8], d: f32| {
        let mut out = [0f32; 8];
        let wide = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(x))));
        // SAFETY: 8 elements; no alignment is needed.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), _mm256_mul_ps(_mm256_set1_ps(d), wide)) };
        out
    };
    let (scales, minima) = (times(scales, f16_at(block, 0)), times(minima, f16_at(block, 2)));
    let (x, low) = (x.as_chunks::<16>().0, _mm_set1_epi8(15));
    for (pair, bytes) in block[16..144].as_chunks::<32>().0.iter().enumerate() {
        let halves = bytes.as_chunks::<16>().0;
        for high in 0..2 {
            for (half, bytes) in halves.iter().enumerate() {
                let bytes = load(bytes);
                let q = if high == 1 { _mm_srli_epi16::<4>(bytes) } else { bytes };
                let q = _mm512_cvtepu8_epi32(_mm_and_si128(q, low));
                let part = 2 * pair + high;
                lanes = step(q, scales[part], Some(minima[part]), &x[2 * part + half], lanes);
            }
        }
    }
    lanes
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
#[inline]
fn q6_k(block: &[u8], x: &[f32], mut lanes: __m512) -> __m512 {
    let mut scales = [0f32; 16];
    let stored: &[u8; 16] = block[192..208].try_into().expect("16 bytes");
    let wide = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load(stored)));
    // SAFETY: 16 elements; no alignment is needed.
    unsafe { _mm512_storeu_ps(scales.as_mut_ptr(), _mm512_mul_ps(_mm512_set1_ps(f16_at(block, 208)), wide)) };
    let x = x.as_chunks::<16>().0;
    let (low, two, middle) = (_mm_set1_epi8(15), _mm_set1_epi8(3), _mm_set1_epi8(32));
    for half in 0..2 {
        let lows = block[64 * half..64 * half + 64].as_chunks::<16>().0;
        let highs = block[128 + 32 * half..160 + 32 * half].as_chunks::<16>().0;
        for quarter in 0..4 {
            for side in 0..2 {
                let bytes = load(&lows[2 * (quarter % 2) + side]);
                let nibbles = _mm_and_si128(if quarter < 2 { bytes } else { _mm_srli_epi16::<4>(bytes) }, low);
                let shifted = _mm_srl_epi16(load(&highs[side]), _mm_cvtsi32_si128(2 * quarter as i32));
                let high = _mm_slli_epi16::<4>(_mm_and_si128(shifted, two));
                let q = _mm512_cvtepi8_epi32(_mm_sub_epi8(_mm_or_si128(nibbles, high), middle));
                let part = 8 * half + 2 * quarter + side;
                lanes = step(q, scales[part], None, &x[part], lanes);
            }
        }
    }
    lanes
}

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
        for kind in [Type::Q4K, Type::Q6K].into_iter().filter(|kind| suits(*kind)) {
            for (rows, blocks) in [(1, 1), (3, 2), (7, 8)] {
                let mut bytes: Vec<u8> = (0..rows * blocks * kind.block_bytes()).map(|_| next()).collect();
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
                products(kind, &bytes, &x, &mut out);
                for (out, row) in out.iter().zip(values.chunks_exact(blocks * 256)) {
                    assert!(
                        out.is_finite() && out.to_bits() == firstdiff_core::dot(&x, row).to_bits(),
                        "{}",
                        kind.name()
                    );
                }
            }
        }
    }
}

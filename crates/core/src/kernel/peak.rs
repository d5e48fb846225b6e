//! Measures how many multiply-adds a core can do: the peak that the speed of the products is compared with.

use firstdiff_simd::Level;

/// Registers that are added to in turn: enough to hide the latency of an addition on every processor, few enough for 16 registers.
const SUMS: usize = 12;

/// Adds the product of two numbers to 12 registers, `rounds` times, without touching memory. Returns how many multiply-adds, and one sum.
pub fn multiply_adds(level: Level, rounds: usize) -> (usize, f32) {
    assert!(level.is_available(), "this processor lacks the instructions of {level:?}");
    let (width, sum) = match level {
        // SAFETY: the processor has AVX-512.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 | Level::Vnni => (16, unsafe { avx512(rounds) }),
        // SAFETY: the processor has AVX2 and FMA.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => (8, unsafe { avx2(rounds) }),
        #[cfg(target_arch = "aarch64")]
        Level::Neon => (4, neon(rounds)),
        _ => (1, scalar(rounds)),
    };
    (rounds * SUMS * width, sum)
}

const FACTORS: (f32, f32) = (1.000_001, 0.5);

fn scalar(rounds: usize) -> f32 {
    let mut sums = [0f32; SUMS];
    for _ in 0..rounds {
        sums.iter_mut().for_each(|sum| *sum = FACTORS.0.mul_add(FACTORS.1, std::hint::black_box(*sum)));
    }
    sums[SUMS - 1]
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn avx512(rounds: usize) -> f32 {
    use std::arch::x86_64::*;
    let (x, w) = (_mm512_set1_ps(FACTORS.0), _mm512_set1_ps(FACTORS.1));
    let mut sums = [_mm512_setzero_ps(); SUMS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(x, w, *sum);
        }
    }
    std::hint::black_box(sums);
    _mm512_cvtss_f32(sums[SUMS - 1])
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2(rounds: usize) -> f32 {
    use std::arch::x86_64::*;
    let (x, w) = (_mm256_set1_ps(FACTORS.0), _mm256_set1_ps(FACTORS.1));
    let mut sums = [_mm256_setzero_ps(); SUMS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(x, w, *sum);
        }
    }
    std::hint::black_box(sums);
    _mm256_cvtss_f32(sums[SUMS - 1])
}

#[cfg(target_arch = "aarch64")]
fn neon(rounds: usize) -> f32 {
    use std::arch::aarch64::{vdupq_n_f32, vfmaq_f32, vgetq_lane_f32};
    // SAFETY: part of every aarch64.
    unsafe {
        let (x, w) = (vdupq_n_f32(FACTORS.0), vdupq_n_f32(FACTORS.1));
        let mut sums = [vdupq_n_f32(0.0); SUMS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = vfmaq_f32(*sum, x, w);
            }
        }
        std::hint::black_box(sums);
        vgetq_lane_f32::<0>(sums[SUMS - 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_adds_the_same() {
        for level in Level::available() {
            assert_eq!(multiply_adds(level, 1000).1, multiply_adds(Level::Scalar, 1000).1, "{level:?}");
        }
    }
}

//! How fast can a block be multiplied with a few rows of x? Two instructions for 32 products of 8 bits with AVX2.
//!
//! Plain Rust says what is computed; what is written for AVX2 gives the same bits.

use firstdiff_simd::Level;

use super::{LANES, PART, PARTS, Plain, PlainInput, Scaled, ScaledInput};

/// Rows of x that a row of w is multiplied with while it is in registers.
pub(super) const ROWS: usize = 8;

/// The lanes added: l and l + 4, l + 2, l + 1.
pub(super) fn tree(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for l in 0..half {
            lanes[l] += lanes[l + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// What lane l takes of a part.
fn lane(l: usize) -> std::ops::Range<usize> {
    l * PART / LANES..(l + 1) * PART / LANES
}

/// What a block of weights is multiplied with, and how.
pub(super) trait Multiply: Sized {
    type Input;

    /// Adds the products of one block with one of x to their lanes.
    fn one(&self, x: &Self::Input, lanes: &mut [f32; LANES]);

    /// The same of a row with some rows of x; all are equally many blocks.
    ///
    /// # Safety
    /// The processor has AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    unsafe fn avx2(row: &[Self], x: &[&[Self::Input]], lanes: &mut [[f32; LANES]]);
}

/// Adds the products of a row with some rows of x to their lanes.
pub(super) fn add<B: Multiply>(level: Level, row: &[B], x: &[&[B::Input]], lanes: &mut [[f32; LANES]]) {
    assert!(x.len() == lanes.len() && x.iter().all(|x| x.len() == row.len()));
    assert!(level.is_available(), "this processor lacks the instructions of {level:?}");
    match level {
        // SAFETY: the processor has the instructions, AVX2 and FMA among them.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 | Level::Avx2 => unsafe { B::avx2(row, x, lanes) },
        _ => {
            for (x, lanes) in x.iter().zip(lanes) {
                row.iter().zip(*x).for_each(|(w, x)| w.one(x, lanes));
            }
        }
    }
}

impl Multiply for Scaled {
    type Input = ScaledInput;

    fn one(&self, x: &ScaledInput, lanes: &mut [f32; LANES]) {
        for (l, to) in lanes.iter_mut().enumerate() {
            let product = |part: usize, i: usize| {
                let scale = i32::from(self.scales[part][i / 2]);
                scale * i32::from(self.quants[part][i]) * i32::from(x.quants[part][i])
            };
            let sum: i32 = (0..PARTS).map(|part| lane(l).map(|i| product(part, i)).sum::<i32>()).sum();
            let minima: i32 = (2 * l..2 * l + 2).map(|g| i32::from(self.minima[g]) * i32::from(x.sums[g])).sum();
            *to = (self.d * x.d).mul_add(sum as f32, *to);
            *to = (-(self.m * x.d)).mul_add(minima as f32, *to);
        }
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn avx2(row: &[Scaled], x: &[&[ScaledInput]], lanes: &mut [[f32; LANES]]) {
        // SAFETY: as the caller says.
        unsafe { avx2::scaled(row, x, lanes) }
    }
}

impl Multiply for Plain {
    type Input = PlainInput;

    fn one(&self, x: &PlainInput, lanes: &mut [f32; LANES]) {
        for part in 0..PARTS {
            let factor = self.d[part] * x.d[part];
            for (l, to) in lanes.iter_mut().enumerate() {
                let product = |i: usize| i32::from(self.quants[part][i]) * i32::from(x.quants[part][i]);
                *to = factor.mul_add(lane(l).map(product).sum::<i32>() as f32, *to);
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn avx2(row: &[Plain], x: &[&[PlainInput]], lanes: &mut [[f32; LANES]]) {
        // SAFETY: as the caller says.
        unsafe { avx2::plain(row, x, lanes) }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::super::{PARTS, Plain, PlainInput, Scaled, ScaledInput};
    use super::LANES;

    type Lanes = [f32; LANES];

    /// Rows of x in groups whose sums fit the registers: as many as there are, then half of them, and so on.
    macro_rules! groups {
        ($name:ident, $some:ident, $block:ty, $input:ty, $($rows:literal)*) => {
            #[target_feature(enable = "avx2,fma")]
            pub(super) fn $name(row: &[$block], mut x: &[&[$input]], mut lanes: &mut [Lanes]) {
                $(while let (Some((some, x_rest)), Some(_)) = (x.split_first_chunk::<$rows>(), lanes.first_chunk::<$rows>()) {
                    let (to, rest) = std::mem::take(&mut lanes).split_at_mut($rows);
                    $some::<$rows>(row, some, to.try_into().expect("as many"));
                    (x, lanes) = (x_rest, rest);
                })*
            }
        };
    }

    groups!(scaled, some_scaled, Scaled, ScaledInput, 8 4 2 1);
    groups!(plain, some_plain, Plain, PlainInput, 4 2 1);

    #[target_feature(enable = "avx2")]
    #[inline]
    fn load<T, const N: usize>(from: &[T; N]) -> __m256i {
        const { assert!(size_of::<T>() * N == 32) };
        // SAFETY: 32 bytes; no alignment is needed.
        unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
    }

    /// What the compiler takes for another value: else it turns sums one after the other into trees, for which the registers do not suffice.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn opaque(mut sum: __m256i) -> __m256i {
        // SAFETY: no instruction at all.
        unsafe { std::arch::asm!("/* {} */", inout(ymm_reg) sum, options(pure, nomem, nostack, preserves_flags)) };
        sum
    }

    // Indices below, since an array that is iterated over does not stay in registers.

    #[allow(clippy::needless_range_loop)]
    #[target_feature(enable = "avx2,fma")]
    fn some_scaled<const R: usize>(row: &[Scaled], x: &[&[ScaledInput]; R], lanes: &mut [Lanes; R]) {
        for (number, w) in row.iter().enumerate() {
            let x: [&ScaledInput; R] = x.map(|x| &x[number]);
            let mut sums = [_mm256_setzero_si256(); R];
            for part in 0..PARTS {
                let (quants, scales) = (load(&w.quants[part]), load(&w.scales[part]));
                for r in 0..R {
                    // Of two products each, below 127 · 127 · 2; of four with their scales in 32 bits.
                    let pairs = _mm256_maddubs_epi16(quants, load(&x[r].quants[part]));
                    sums[r] = opaque(_mm256_add_epi32(sums[r], _mm256_madd_epi16(pairs, scales)));
                }
            }
            let minima = load(&w.minima);
            for r in 0..R {
                let below = _mm256_cvtepi32_ps(_mm256_madd_epi16(minima, load(&x[r].sums)));
                let (d, m) = (_mm256_set1_ps(w.d * x[r].d), _mm256_set1_ps(w.m * x[r].d));
                // SAFETY: eight elements each; no alignment is needed.
                unsafe {
                    let so_far = _mm256_loadu_ps(lanes[r].as_ptr());
                    let sum = _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(sums[r]), so_far);
                    _mm256_storeu_ps(lanes[r].as_mut_ptr(), _mm256_fnmadd_ps(m, below, sum));
                }
            }
        }
    }

    #[allow(clippy::needless_range_loop)]
    #[target_feature(enable = "avx2,fma")]
    fn some_plain<const R: usize>(row: &[Plain], x: &[&[PlainInput]; R], lanes: &mut [Lanes; R]) {
        let ones = _mm256_set1_epi16(1);
        // SAFETY: eight elements each; no alignment is needed.
        let mut sums: [__m256; R] = std::array::from_fn(|r| unsafe { _mm256_loadu_ps(lanes[r].as_ptr()) });
        for (number, w) in row.iter().enumerate() {
            let x: [&PlainInput; R] = x.map(|x| &x[number]);
            let mut factors = [[0f32; PARTS]; R];
            for r in 0..R {
                for part in 0..PARTS {
                    factors[r][part] = w.d[part] * x[r].d[part];
                }
            }
            for part in 0..PARTS {
                let (quants, magnitudes) = (load(&w.quants[part]), load(&w.magnitudes[part]));
                for r in 0..R {
                    // |q| · (qx with the sign of q): of two products each, at most 128 · 127 · 2.
                    let signed = _mm256_sign_epi8(load(&x[r].quants[part]), quants);
                    let whole = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitudes, signed), ones);
                    sums[r] = _mm256_fmadd_ps(_mm256_set1_ps(factors[r][part]), _mm256_cvtepi32_ps(whole), sums[r]);
                }
            }
        }
        for r in 0..R {
            // SAFETY: eight elements; no alignment is needed.
            unsafe { _mm256_storeu_ps(lanes[r].as_mut_ptr(), sums[r]) };
        }
    }
}

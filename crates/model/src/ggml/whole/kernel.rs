//! How fast can a block be multiplied with a few rows of x? Two or three instructions for 32 products of 8 bits with AVX2, as many for 64 with VNNI,
//! eight or nine for 32 with NEON.
//!
//! Plain Rust says what is computed; what is written for others gives the same bits.

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

    /// The same of two rows.
    ///
    /// # Safety
    /// The processor has AVX-512 with F, BW, DQ, VL and VNNI.
    #[cfg(target_arch = "x86_64")]
    unsafe fn vnni(rows: [&[Self]; 2], x: &[&[Self::Input]], lanes: [&mut [[f32; LANES]]; 2]);

    /// The same of a row; every aarch64 has the instructions.
    #[cfg(target_arch = "aarch64")]
    fn neon(row: &[Self], x: &[&[Self::Input]], lanes: &mut [[f32; LANES]]);
}

/// Adds the products of some rows with some rows of x to their lanes: those of the first row with each x, then of the next.
pub(super) fn add<B: Multiply>(level: Level, rows: &[&[B]], x: &[&[B::Input]], lanes: &mut [[f32; LANES]]) {
    assert!(rows.len() * x.len() == lanes.len() && rows.iter().all(|row| x.iter().all(|x| x.len() == row.len())));
    assert!(level.is_available(), "this processor lacks the instructions of {level:?}");
    for (rows, lanes) in rows.chunks(2).zip(lanes.chunks_mut(2 * x.len().max(1))) {
        match (level, rows) {
            // SAFETY: the processor has the instructions.
            #[cfg(target_arch = "x86_64")]
            (Level::Vnni, &[first, second]) => unsafe {
                B::vnni([first, second], x, lanes.split_at_mut(x.len()).into())
            },
            _ => {
                rows.iter().zip(lanes.chunks_mut(x.len().max(1))).for_each(|(row, lanes)| one_row(level, row, x, lanes))
            }
        }
    }
}

fn one_row<B: Multiply>(level: Level, row: &[B], x: &[&[B::Input]], lanes: &mut [[f32; LANES]]) {
    match level {
        // SAFETY: the processor has the instructions, AVX2 and FMA among them.
        #[cfg(target_arch = "x86_64")]
        Level::Vnni | Level::Avx512 | Level::Avx2 => unsafe { B::avx2(row, x, lanes) },
        #[cfg(target_arch = "aarch64")]
        Level::Neon => B::neon(row, x, lanes),
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
        unsafe { avx2::scaled([row], x, [lanes]) }
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn vnni(rows: [&[Scaled]; 2], x: &[&[ScaledInput]], lanes: [&mut [[f32; LANES]]; 2]) {
        // SAFETY: as the caller says.
        unsafe { vnni::scaled(rows, x, lanes) }
    }

    #[cfg(target_arch = "aarch64")]
    fn neon(row: &[Scaled], x: &[&[ScaledInput]], lanes: &mut [[f32; LANES]]) {
        // SAFETY: part of every aarch64.
        unsafe { neon::scaled([row], x, [lanes]) }
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
        unsafe { avx2::plain([row], x, [lanes]) }
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn vnni(rows: [&[Plain]; 2], x: &[&[PlainInput]], lanes: [&mut [[f32; LANES]]; 2]) {
        // SAFETY: as the caller says.
        unsafe { vnni::plain(rows, x, lanes) }
    }

    #[cfg(target_arch = "aarch64")]
    fn neon(row: &[Plain], x: &[&[PlainInput]], lanes: &mut [[f32; LANES]]) {
        // SAFETY: part of every aarch64.
        unsafe { neon::plain([row], x, [lanes]) }
    }
}

/// Rows of x in groups whose sums fit the registers: as many as there are, then half of them, and so on.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! groups {
    ($name:ident: $features:literal, $some:ident, $block:ty, $input:ty, $rows:literal rows with $($group:literal)*) => {
        #[target_feature(enable = $features)]
        pub(super) fn $name(w: [&[$block]; $rows], mut x: &[&[$input]], mut lanes: [&mut [Lanes]; $rows]) {
            $(while let Some((some, rest)) = x.split_first_chunk::<$group>() {
                let to = lanes.each_mut().map(|lanes| {
                    let (to, rest) = std::mem::take(lanes).split_first_chunk_mut::<$group>().expect("lanes for each row of x");
                    *lanes = rest;
                    to
                });
                $some::<$group>(w, some, to);
                x = rest;
            })*
        }
    };
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
type Lanes = [f32; LANES];

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::super::{PARTS, Plain, PlainInput, Scaled, ScaledInput};
    use super::Lanes;

    groups!(scaled: "avx2,fma", some_scaled, Scaled, ScaledInput, 1 rows with 8 4 2 1);
    groups!(plain: "avx2,fma", some_plain, Plain, PlainInput, 1 rows with 4 2 1);

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
    fn some_scaled<const R: usize>([row]: [&[Scaled]; 1], x: &[&[ScaledInput]; R], [lanes]: [&mut [Lanes; R]; 1]) {
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
    fn some_plain<const R: usize>([row]: [&[Plain]; 1], x: &[&[PlainInput]; R], [lanes]: [&mut [Lanes; R]; 1]) {
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

/// Two rows of w side by side: the first in the lower half of a register, the second in the upper, and x in both.
#[cfg(target_arch = "x86_64")]
mod vnni {
    use std::arch::x86_64::*;

    use super::super::{PARTS, Plain, PlainInput, Scaled, ScaledInput};
    use super::{LANES, Lanes};

    groups!(scaled: "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni", some_scaled, Scaled, ScaledInput, 2 rows with 8 4 2 1);
    groups!(plain: "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni", some_plain, Plain, PlainInput, 2 rows with 8 4 2 1);

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn half<T, const N: usize>(from: &[T; N]) -> __m256i {
        const { assert!(size_of::<T>() * N == 32) };
        // SAFETY: 32 bytes; no alignment is needed.
        unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
    }

    /// The same of x, beside itself.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn twice<T, const N: usize>(from: &[T; N]) -> __m512i {
        _mm512_broadcast_i64x4(half(from))
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn both<T, const N: usize>(w: [&[T; N]; 2]) -> __m512i {
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(half(w[0])), half(w[1]))
    }

    #[target_feature(enable = "avx512f,avx512dq")]
    #[inline]
    fn factors(d: [f32; 2]) -> __m512 {
        _mm512_insertf32x8::<1>(_mm512_set1_ps(d[0]), _mm256_set1_ps(d[1]))
    }

    #[target_feature(enable = "avx512f,avx512dq")]
    #[inline]
    fn load(lanes: [&Lanes; 2]) -> __m512 {
        // SAFETY: eight elements each; no alignment is needed.
        let [first, second] = lanes.map(|lanes| unsafe { _mm256_loadu_ps(lanes.as_ptr()) });
        _mm512_insertf32x8::<1>(_mm512_castps256_ps512(first), second)
    }

    #[target_feature(enable = "avx512f,avx512dq")]
    #[inline]
    fn store(sums: __m512, to: [&mut Lanes; 2]) {
        const { assert!(LANES == 8) };
        let [first, second] = to.map(|lanes| lanes.as_mut_ptr());
        // SAFETY: eight elements each; no alignment is needed.
        unsafe {
            _mm256_storeu_ps(first, _mm512_castps512_ps256(sums));
            _mm256_storeu_ps(second, _mm512_extractf32x8_ps::<1>(sums));
        }
    }

    // Indices below, since an array that is iterated over does not stay in registers.

    #[allow(clippy::needless_range_loop)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn some_scaled<const R: usize>(rows: [&[Scaled]; 2], x: &[&[ScaledInput]; R], lanes: [&mut [Lanes; R]; 2]) {
        let [first, second] = lanes;
        let mut all: [__m512; R] = std::array::from_fn(|r| load([&first[r], &second[r]]));
        for (number, w) in rows[0].iter().zip(rows[1]).enumerate() {
            let (w, x) = ([w.0, w.1], x.map(|x| &x[number]));
            let mut sums = [_mm512_setzero_si512(); R];
            for part in 0..PARTS {
                let quants = both(w.map(|w| &w.quants[part]));
                let scales = both(w.map(|w| &w.scales[part]));
                for r in 0..R {
                    // Of two products each, below 127 · 127 · 2; of four with their scales in 32 bits.
                    let pairs = _mm512_maddubs_epi16(quants, twice(&x[r].quants[part]));
                    sums[r] = _mm512_dpwssd_epi32(sums[r], pairs, scales);
                }
            }
            let minima = both(w.map(|w| &w.minima));
            let (d, m) = (factors(w.map(|w| w.d)), factors(w.map(|w| w.m)));
            for r in 0..R {
                let below = _mm512_cvtepi32_ps(_mm512_madd_epi16(minima, twice(&x[r].sums)));
                let input = _mm512_set1_ps(x[r].d);
                let sum = _mm512_fmadd_ps(_mm512_mul_ps(d, input), _mm512_cvtepi32_ps(sums[r]), all[r]);
                all[r] = _mm512_fnmadd_ps(_mm512_mul_ps(m, input), below, sum);
            }
        }
        for r in 0..R {
            store(all[r], [&mut first[r], &mut second[r]]);
        }
    }

    #[allow(clippy::needless_range_loop)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn some_plain<const R: usize>(rows: [&[Plain]; 2], x: &[&[PlainInput]; R], lanes: [&mut [Lanes; R]; 2]) {
        let [first, second] = lanes;
        let mut all: [__m512; R] = std::array::from_fn(|r| load([&first[r], &second[r]]));
        for (number, w) in rows[0].iter().zip(rows[1]).enumerate() {
            let (w, x) = ([w.0, w.1], x.map(|x| &x[number]));
            for part in 0..PARTS {
                let quants = both(w.map(|w| &w.quants[part]));
                let d = factors(w.map(|w| w.d[part]));
                // Σ q (qx + 128) - 128 Σ q.
                let raised = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(i8::MIN), quants);
                let below = _mm512_sub_epi32(_mm512_setzero_si512(), raised);
                for r in 0..R {
                    let whole = _mm512_dpbusd_epi32(below, twice(&x[r].raised[part]), quants);
                    let factor = _mm512_mul_ps(d, _mm512_set1_ps(x[r].d[part]));
                    all[r] = _mm512_fmadd_ps(factor, _mm512_cvtepi32_ps(whole), all[r]);
                }
            }
        }
        for r in 0..R {
            store(all[r], [&mut first[r], &mut second[r]]);
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use std::arch::aarch64::*;

    use super::super::{PARTS, Plain, PlainInput, Scaled, ScaledInput};
    use super::{LANES, Lanes};

    groups!(scaled: "neon", some_scaled, Scaled, ScaledInput, 1 rows with 4 2 1);
    groups!(plain: "neon", some_plain, Plain, PlainInput, 1 rows with 4 2 1);

    /// Half a part: the elements of four lanes.
    const HALF: usize = 16;

    #[target_feature(enable = "neon")]
    #[inline]
    fn half(from: &[i8; HALF]) -> int8x16_t {
        // SAFETY: 16 bytes.
        unsafe { vld1q_s8(from.as_ptr()) }
    }

    /// The products of 8 bits, added in fours. Two of them do not leave 16 bits: one side is 127 at most, the other 128.
    #[target_feature(enable = "neon")]
    #[inline]
    fn fours(w: int8x16_t, x: int8x16_t) -> int32x4_t {
        let low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
        vpaddlq_s16(vpaddq_s16(low, vmull_high_s8(w, x)))
    }

    /// The products of 16 bits, added in twos.
    #[target_feature(enable = "neon")]
    #[inline]
    fn twos(w: &[i16; LANES], x: &[i16; LANES]) -> int32x4_t {
        // SAFETY: eight elements each.
        let (w, x) = unsafe { (vld1q_s16(w.as_ptr()), vld1q_s16(x.as_ptr())) };
        vpaddq_s32(vmull_s16(vget_low_s16(w), vget_low_s16(x)), vmull_high_s16(w, x))
    }

    #[target_feature(enable = "neon")]
    #[inline]
    fn load(lanes: &Lanes) -> [float32x4_t; 2] {
        // SAFETY: four elements each.
        unsafe { [vld1q_f32(lanes.as_ptr()), vld1q_f32(lanes[LANES / 2..].as_ptr())] }
    }

    #[target_feature(enable = "neon")]
    #[inline]
    fn store(sums: [float32x4_t; 2], to: &mut Lanes) {
        // SAFETY: four elements each.
        unsafe {
            vst1q_f32(to.as_mut_ptr(), sums[0]);
            vst1q_f32(to[LANES / 2..].as_mut_ptr(), sums[1]);
        }
    }

    // Indices below, since an array that is iterated over does not stay in registers.

    #[allow(clippy::needless_range_loop)]
    #[target_feature(enable = "neon")]
    fn some_scaled<const R: usize>([row]: [&[Scaled]; 1], x: &[&[ScaledInput]; R], [lanes]: [&mut [Lanes; R]; 1]) {
        let mut all: [[float32x4_t; 2]; R] = std::array::from_fn(|r| load(&lanes[r]));
        for (number, w) in row.iter().enumerate() {
            let x: [&ScaledInput; R] = x.map(|x| &x[number]);
            let mut sums = [[vdupq_n_s32(0); 2]; R];
            for part in 0..PARTS {
                // Below 128.
                let quants = w.quants[part].map(u8::cast_signed);
                let (quants, scales) = (quants.as_chunks::<HALF>().0, w.scales[part].as_chunks::<LANES>().0);
                for h in 0..2 {
                    let (quants, scale) = (half(&quants[h]), i32::from(scales[h][0]));
                    for r in 0..R {
                        let input = half(&x[r].quants[part].as_chunks().0[h]);
                        sums[r][h] = vmlaq_n_s32(sums[r][h], fours(quants, input), scale);
                    }
                }
            }
            for r in 0..R {
                let (d, m) = (w.d * x[r].d, -(w.m * x[r].d));
                let (minima, inputs) = (w.minima.as_chunks().0, x[r].sums.as_chunks().0);
                for h in 0..2 {
                    let sum = vfmaq_n_f32(all[r][h], vcvtq_f32_s32(sums[r][h]), d);
                    all[r][h] = vfmaq_n_f32(sum, vcvtq_f32_s32(twos(&minima[h], &inputs[h])), m);
                }
            }
        }
        for r in 0..R {
            store(all[r], &mut lanes[r]);
        }
    }

    #[allow(clippy::needless_range_loop)]
    #[target_feature(enable = "neon")]
    fn some_plain<const R: usize>([row]: [&[Plain]; 1], x: &[&[PlainInput]; R], [lanes]: [&mut [Lanes; R]; 1]) {
        let mut all: [[float32x4_t; 2]; R] = std::array::from_fn(|r| load(&lanes[r]));
        for (number, w) in row.iter().enumerate() {
            let x: [&PlainInput; R] = x.map(|x| &x[number]);
            for part in 0..PARTS {
                for h in 0..2 {
                    let quants = half(&w.quants[part].as_chunks().0[h]);
                    for r in 0..R {
                        let whole = fours(quants, half(&x[r].quants[part].as_chunks().0[h]));
                        all[r][h] = vfmaq_n_f32(all[r][h], vcvtq_f32_s32(whole), w.d[part] * x[r].d[part]);
                    }
                }
            }
        }
        for r in 0..R {
            store(all[r], &mut lanes[r]);
        }
    }
}

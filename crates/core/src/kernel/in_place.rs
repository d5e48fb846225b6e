//! Multiplies a few rows of x with rows of w that are read in place, a block of rows against a block of rows.
//!
//! Registers hold the lanes of every pair of a block (6 rows of x by 4 of w with AVX-512), so that a row is loaded once for several products. Each pair has
//! lanes of its own, so the choice of blocks changes no bit.

/// Lines of 16 elements after which the lanes are stored, so that the current rows of x stay in the first-level cache.
const CHUNK: usize = 64;

/// Rows of w in a block, at most.
pub(crate) const COLUMNS: usize = 4;

/// Defines `products` for one float type, one weight type and one set of instructions.
macro_rules! kernel {
    ($name:ident: $float:ty, $weight:ty, $arch:ident $features:literal, $rows:literal x $columns:literal,
     $width:literal lanes, $zero:path, $load:path, $fma:path, $store:path, $widen_all:expr, $widen:expr, $tree_sums:path) => {
        pub(crate) mod $name {
            use std::arch::$arch::*;

            #[allow(unused_imports)] // each has one type of weights
            use half::{bf16, f16};

            use firstdiff_simd::prefetch;

            use super::CHUNK;
            use crate::kernel::dot::{LANES, finish};
            use crate::kernel::packed::{Line, Packed, STRIP, Strip};

            const VECTORS: usize = LANES / $width;
            type Sums<const R: usize, const C: usize> = [[[$float; LANES]; C]; R];

            /// out\[i,j\] = dot(x\[i\], w\[j\]); `out` \[x, w\].
            #[target_feature(enable = $features)]
            pub(crate) fn products(x: &Packed<'_, $float>, w: &[&[$weight]], out: &mut [&mut [$float]]) {
                assert!(w.iter().all(|row| row.len() >= x.width()), "rows of w are as long as those of x");
                let mut first = 0;
                for strip in x.strips() {
                    let mut at = 0;
                    while at < strip.1.len() {
                        let out = &mut out[first + at..];
                        at += match strip.1.len() - at {
                            $rows.. => rows::<$rows, $columns>(strip, at, w, out),
                            2.. => rows::<2, $columns>(strip, at, w, out),
                            _ => rows::<1, { 2 * $columns }>(strip, at, w, out),
                        };
                    }
                    first += at;
                }
            }

            /// Multiplies R rows of a strip, from row `at` on, with all of w; returns R.
            #[target_feature(enable = $features)]
            fn rows<const R: usize, const C: usize>(
                strip: Strip<'_, '_, $float>,
                at: usize,
                w: &[&[$weight]],
                out: &mut [&mut [$float]],
            ) -> usize {
                let (many, rest) = w.as_chunks::<C>();
                let (lines, x) = strip;
                // With few rows of x all of them fit the cache, and w is read from front to back.
                let chunk = if R < $rows { lines.len().max(1) } else { CHUNK };
                let whole = lines.len() * LANES;
                let mut all: Vec<Sums<R, C>> = vec![[[[0.0; LANES]; C]; R]; many.len()];
                for start in (0..lines.len().max(1)).step_by(chunk) {
                    let end = (start + chunk).min(lines.len());
                    for (j, (w, sums)) in many.iter().zip(&mut all).enumerate() {
                        let pointers = w.map(|row| row.as_ptr());
                        let ahead = if R > 2 { C * w[0].len() } else { 0 };
                        // SAFETY: rows of w are as long as those of x (products), which have `whole` elements and more.
                        unsafe { block(&lines[start..end], at, pointers, start * LANES, ahead, sums) };
                        if end == lines.len() {
                            store_sums(&x[at..], w, whole, sums, j * C, out);
                        }
                    }
                }
                for (j, w) in rest.iter().enumerate() {
                    let mut sums: Sums<R, 1> = [[[0.0; LANES]; 1]; R];
                    // SAFETY: as above.
                    unsafe { block(lines, at, [w.as_ptr()], 0, 0, &mut sums) };
                    store_sums(&x[at..], &[*w], whole, &sums, many.len() * C + j, out);
                }
                R
            }

            /// Adds the products of R rows of x, from row `from` of the strip on, with C rows of w, from element `start` on, to `sums`. Lanes stay in registers.
            ///
            /// # Safety
            /// Each of `w` has LANES elements from `start` on for every line of x.
            #[target_feature(enable = $features)]
            #[allow(clippy::needless_range_loop)] // an array that is iterated over does not stay in registers
            unsafe fn block<const R: usize, const C: usize>(
                x: &[Line<$float>],
                from: usize,
                w: [*const $weight; C],
                start: usize,
                next: usize,
                sums: &mut Sums<R, C>,
            ) {
                assert!(from + R <= STRIP);
                let mut lanes = [[[$zero(); VECTORS]; C]; R];
                for r in 0..R {
                    for c in 0..C {
                        for (v, part) in sums[r][c].as_chunks::<$width>().0.iter().enumerate() {
                            // SAFETY: the chunk has the $width elements that are loaded; no alignment is needed.
                            lanes[r][c][v] = unsafe { $load(part.as_ptr()) };
                        }
                    }
                }
                for (k, x) in x.iter().enumerate() {
                    let k = start + k * LANES;
                    if next > 0 {
                        for c in 0..C {
                            // The same elements of the next rows, if the rows are contiguous.
                            prefetch(w[c].wrapping_add(k + next));
                        }
                    }
                    for v in 0..VECTORS {
                        // SAFETY: the caller has these elements; loads need no alignment.
                        let ws: [_; C] = std::array::from_fn(|c| unsafe { $widen_all(w[c].add(k + v * $width)) });
                        for r in 0..R {
                            // SAFETY: the LANES elements of x hold VECTORS of $width.
                            let xs = unsafe { $load(x.0[from + r].as_ptr().add(v * $width)) };
                            for c in 0..C {
                                lanes[r][c][v] = $fma(xs, ws[c], lanes[r][c][v]);
                            }
                        }
                    }
                }
                for r in 0..R {
                    for c in 0..C {
                        for (v, part) in sums[r][c].as_chunks_mut::<$width>().0.iter_mut().enumerate() {
                            // SAFETY: the chunk has the $width elements that are stored; no alignment is needed.
                            unsafe { $store(part.as_mut_ptr(), lanes[r][c][v]) };
                        }
                    }
                }
            }

            /// Writes the sums, with the products of the elements from `whole` on added, to columns `at..` of `out`.
            #[target_feature(enable = $features)]
            #[inline]
            fn store_sums<const R: usize, const C: usize>(
                x: &[&[$float]],
                w: &[&[$weight]; C],
                whole: usize,
                sums: &Sums<R, C>,
                at: usize,
                out: &mut [&mut [$float]],
            ) {
                for ((sums, x), out) in sums.iter().zip(x).zip(out) {
                    let out = &mut out[at..at + C];
                    if x.len() == whole {
                        out.copy_from_slice(&$tree_sums(sums));
                        continue;
                    }
                    for ((lanes, w), out) in sums.iter().zip(w).zip(out) {
                        let mut rest = [0.0; LANES];
                        rest.iter_mut().zip(&w[whole..x.len()]).for_each(|(to, &from)| *to = $widen(from));
                        *out = finish(*lanes, &x[whole..], &rest[..x.len() - whole]);
                    }
                }
            }
        }
    };
}

/// Instances for weights in f32, f16 and bf16, one for each set of instructions.
#[cfg(target_arch = "x86_64")]
macro_rules! x86 {
    ($($avx512:ident $avx2:ident $weight:ident $widen:expr;)*) => {
        use crate::kernel::dot::tree_sums_avx2;
        use crate::kernel::widen::x86::Weight;
        $(
            kernel!($avx512: f32, $weight, x86_64 "avx512f,avx512bw,avx512vl,avx2,fma,f16c", 6 x 4, 16 lanes, _mm512_setzero_ps, _mm512_loadu_ps,
                    _mm512_fmadd_ps, _mm512_storeu_ps, <$weight as super::Weight>::load_16, $widen, super::tree_sums_avx2);
            kernel!($avx2: f32, $weight, x86_64 "avx2,fma,f16c", 3 x 2, 8 lanes, _mm256_setzero_ps, _mm256_loadu_ps,
                    _mm256_fmadd_ps, _mm256_storeu_ps, <$weight as super::Weight>::load_8, $widen, super::tree_sums_avx2);
        )*
        kernel!(f64_avx512: f64, f64, x86_64 "avx512f,avx512bw,avx512vl,avx2,fma,f16c", 3 x 4, 8 lanes, _mm512_setzero_pd, _mm512_loadu_pd,
                _mm512_fmadd_pd, _mm512_storeu_pd, _mm512_loadu_pd, |x: f64| x, crate::kernel::dot::tree_sums);
        kernel!(f64_avx2: f64, f64, x86_64 "avx2,fma,f16c", 3 x 1, 4 lanes, _mm256_setzero_pd, _mm256_loadu_pd,
                _mm256_fmadd_pd, _mm256_storeu_pd, _mm256_loadu_pd, |x: f64| x, crate::kernel::dot::tree_sums);
    };
}

#[cfg(target_arch = "x86_64")]
x86! {
    f32_avx512 f32_avx2 f32 |x: f32| x;
    f16_avx512 f16_avx2 f16 f16::to_f32;
    bf16_avx512 bf16_avx2 bf16 bf16::to_f32;
}

/// The same for NEON.
#[cfg(target_arch = "aarch64")]
macro_rules! aarch64 {
    ($($neon:ident $weight:ident $widen:expr;)*) => {
        use crate::kernel::widen::neon::{Weight, fma_f32, fma_f64, zero_f32, zero_f64};
        $(
            kernel!($neon: f32, $weight, aarch64 "neon", 3 x 2, 4 lanes, super::zero_f32, vld1q_f32,
                    super::fma_f32, vst1q_f32, <$weight as super::Weight>::load_4, $widen, crate::kernel::dot::tree_sums);
        )*
        kernel!(f64_neon: f64, f64, aarch64 "neon", 3 x 1, 2 lanes, super::zero_f64, vld1q_f64,
                super::fma_f64, vst1q_f64, vld1q_f64, |x: f64| x, crate::kernel::dot::tree_sums);
    };
}

#[cfg(target_arch = "aarch64")]
aarch64! {
    f32_neon f32 |x: f32| x;
    f16_neon f16 f16::to_f32;
    bf16_neon bf16 bf16::to_f32;
}

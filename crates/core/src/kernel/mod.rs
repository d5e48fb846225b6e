//! How are many dot products taken at speed? A block of rows against a block of rows, each product in the order of `dot`.
//!
//! Registers hold the lanes of every pair of a block (6 rows of x by 4 of w with AVX-512), so that a row is loaded once for
//! several products. Which pairs share a block changes no bit: each pair has lanes of its own.

pub(crate) mod dot;
pub(crate) mod float;
pub(crate) mod packed;
#[cfg(target_arch = "x86_64")]
pub(crate) mod panel;

use ndarray::{ArrayView2, ArrayViewMut2, Axis};
use rayon::prelude::*;

use crate::kernel::float::Float;
use crate::kernel::packed::Packed;

/// Rows of w that a thread takes at a time; with x's block they stay in the second-level cache.
const TILE: usize = 64;
/// Multiply-adds below which other threads are not worth waking.
const ALONE: usize = 1 << 18;

/// out\[i,j\] = x\[i\] · w\[j\] + bias\[j\]. `x` \[T,n\], `w` \[N,n\], `bias` N values or none, `out` \[T,N\].
pub(crate) fn product<F: Float>(x: ArrayView2<'_, F>, w: ArrayView2<'_, F>, bias: &[F], mut out: ArrayViewMut2<'_, F>) {
    let (x, w) = (x.as_standard_layout(), w.as_standard_layout());
    let work = x.nrows().saturating_mul(w.len());
    let (x, w) = (Packed::new(rows(x.view())), rows(w.view()));
    let tiles: Vec<_> = out.axis_chunks_iter_mut(Axis(1), TILE).zip(w.chunks(TILE)).enumerate().collect();
    each(tiles, work, |(number, (mut tile, w))| {
        F::products(&x, w, tile.view_mut());
        for (mut column, &b) in tile.columns_mut().into_iter().zip(bias.iter().skip(number * TILE)) {
            column.mapv_inplace(|y| y + b);
        }
    });
}

/// Runs `f` on every item, on several threads if `work` multiply-adds are worth it.
pub(crate) fn each<T: Send>(items: Vec<T>, work: usize, f: impl Fn(T) + Sync + Send) {
    if work < ALONE { items.into_iter().for_each(f) } else { items.into_par_iter().for_each(f) }
}

fn rows<F>(x: ArrayView2<'_, F>) -> Vec<&[F]> {
    x.into_outer_iter().map(|row| row.to_slice().unwrap_or_default()).collect()
}

/// out\[i,j\] = dot(x\[i\], w\[j\]), one after the other.
pub(crate) fn plain<F: Float>(x: &Packed<'_, F>, w: &[&[F]], mut out: ArrayViewMut2<'_, F>) {
    for ((i, j), y) in out.indexed_iter_mut() {
        *y = dot::plain(x.rows()[i], w[j]);
    }
}

/// Lines of 16 elements after which the lanes are put aside, so that the rows of x at hand stay in the first-level cache.
#[cfg(target_arch = "x86_64")]
const CHUNK: usize = 64;

/// `products` of one float type, one type of weights, and one set of instructions.
#[cfg(target_arch = "x86_64")]
macro_rules! kernel {
    ($name:ident: $float:ty, $weight:ty, $features:literal, $rows:literal x $columns:literal,
     $width:literal lanes, $zero:ident, $load:ident, $fma:ident, $store:ident, $widen_all:expr, $widen:expr, $trees:path) => {
        mod $name {
            use std::arch::x86_64::*;

            use super::CHUNK;
            use crate::kernel::dot::{LANES, finish};
            use crate::kernel::packed::{Line, Packed, STRIP, Strip};
            use half::{bf16, f16};

            const VECTORS: usize = LANES / $width;
            type Sums<const R: usize, const C: usize> = [[[$float; LANES]; C]; R];

            /// out\[i,j\] = dot(x\[i\], w\[j\]); `out` \[x, w\].
            #[target_feature(enable = $features)]
            pub(super) fn products(x: &Packed<'_, $float>, w: &[&[$weight]], out: &mut [&mut [$float]]) {
                assert!(w.iter().all(|row| row.len() >= x.width()), "rows of w are as long as those of x");
                let mut first = 0;
                for strip in x.strips() {
                    let mut at = 0;
                    while at < strip.1.len() {
                        let out = &mut out[first + at..];
                        at += match strip.1.len() - at {
                            $rows.. => rows::<$rows>(strip, at, w, out),
                            2.. => rows::<2>(strip, at, w, out),
                            _ => rows::<1>(strip, at, w, out),
                        };
                    }
                    first += at;
                }
            }

            /// R rows of a strip from row `at` on with all of w; gives R.
            #[target_feature(enable = $features)]
            fn rows<const R: usize>(
                strip: Strip<'_, '_, $float>,
                at: usize,
                w: &[&[$weight]],
                out: &mut [&mut [$float]],
            ) -> usize {
                let (many, rest) = w.as_chunks::<$columns>();
                let (lines, x) = strip;
                // With few rows of x all of them fit the cache, and w is read from front to back.
                let chunk = if R < $rows { lines.len().max(1) } else { CHUNK };
                let whole = lines.len() * LANES;
                let mut all: Vec<Sums<R, $columns>> = vec![[[[0.0; LANES]; $columns]; R]; many.len()];
                for start in (0..lines.len().max(1)).step_by(chunk) {
                    let end = (start + chunk).min(lines.len());
                    for (j, (w, sums)) in many.iter().zip(&mut all).enumerate() {
                        let pointers = w.map(|row| row.as_ptr());
                        let ahead = if R > 2 { $columns * w[0].len() } else { 0 };
                        // SAFETY: rows of w are as long as those of x (products), which have `whole` elements and more.
                        unsafe { block(&lines[start..end], at, pointers, start * LANES, ahead, sums) };
                        if end == lines.len() {
                            done(&x[at..], w, whole, sums, j * $columns, out);
                        }
                    }
                }
                for (j, w) in rest.iter().enumerate() {
                    let mut sums: Sums<R, 1> = [[[0.0; LANES]; 1]; R];
                    // SAFETY: as above.
                    unsafe { block(lines, at, [w.as_ptr()], 0, 0, &mut sums) };
                    done(&x[at..], &[*w], whole, &sums, many.len() * $columns + j, out);
                }
                R
            }

            /// Lines of R rows of x, from row `from` of the strip on, with C rows of w from element `start` on, added to `sums`; all lanes in
            /// registers meanwhile.
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
                ahead: usize,
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
                    if ahead > 0 {
                        for c in 0..C {
                            // The same elements of the rows that come next, if rows follow each other; a wrong address is no harm.
                            _mm_prefetch::<_MM_HINT_T0>(w[c].wrapping_add(k + ahead).cast());
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

            /// The sums, with the elements from `whole` on, to columns `at..` of `out`.
            #[target_feature(enable = $features)]
            #[inline]
            fn done<const R: usize, const C: usize>(
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
                        out.copy_from_slice(&$trees(sums));
                        continue;
                    }
                    for ((lanes, w), out) in sums.iter().zip(w).zip(out) {
                        let mut rest = [0.0; LANES];
                        rest.iter_mut().zip(&w[whole..x.len()]).for_each(|(to, &from)| *to = $widen(from));
                        *out = finish(*lanes, &x[whole..], &rest[..x.len() - whole]);
                    }
                }
            }

            // Every kernel names both, and uses the one its weights are of.
            #[allow(dead_code)]
            type Halves = (f16, bf16);
        }
    };
}

/// The sums of some lanes each.
#[cfg(target_arch = "x86_64")]
fn trees<F: Float, const C: usize>(sums: &[[F; dot::LANES]; C]) -> [F; C] {
    sums.map(dot::tree)
}

/// The same for f32, four at a time in the same order of additions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2")]
#[inline]
pub(crate) fn trees_avx512<const C: usize>(sums: &[[f32; dot::LANES]; C]) -> [f32; C] {
    use std::arch::x86_64::*;
    let (fours, rest) = sums.as_chunks::<4>();
    let mut out = [0.0; C];
    for (four, out) in fours.iter().zip(out.as_chunks_mut::<4>().0) {
        let [a, b, c, d] = std::array::from_fn(|i| {
            // SAFETY: a row has the 16 elements that are loaded; no alignment is needed.
            let lanes = unsafe { _mm512_loadu_ps(four[i].as_ptr()) };
            let upper = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(lanes)));
            let eight = _mm256_add_ps(_mm512_castps512_ps256(lanes), upper);
            _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight))
        });
        let ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
        let cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
        let sums = _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
        // SAFETY: the four elements that are stored are there.
        unsafe { _mm_storeu_ps(out.as_mut_ptr(), sums) };
    }
    let from = C - rest.len();
    out[from..].iter_mut().zip(rest).for_each(|(out, lanes)| *out = dot::tree(*lanes));
    out
}

/// A type of weights that is widened to f32 in a register.
#[cfg(target_arch = "x86_64")]
pub(crate) trait Weight: Copy {
    /// 16 elements.
    ///
    /// # Safety
    /// They are there, and the processor has AVX-512.
    unsafe fn load(at: *const Self) -> std::arch::x86_64::__m512;
}

#[cfg(target_arch = "x86_64")]
impl Weight for f32 {
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(at: *const f32) -> std::arch::x86_64::__m512 {
        // SAFETY: the caller has 16 elements there.
        unsafe { std::arch::x86_64::_mm512_loadu_ps(at) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Weight for half::f16 {
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(at: *const half::f16) -> std::arch::x86_64::__m512 {
        use std::arch::x86_64::{_mm256_loadu_si256, _mm512_cvtph_ps};
        // SAFETY: the caller has 16 elements there.
        _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(at.cast()) })
    }
}

/// The bits of a bf16 are the upper half of an f32's.
#[cfg(target_arch = "x86_64")]
impl Weight for half::bf16 {
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(at: *const half::bf16) -> std::arch::x86_64::__m512 {
        use std::arch::x86_64::{_mm256_loadu_si256, _mm512_castsi512_ps, _mm512_cvtepu16_epi32, _mm512_slli_epi32};
        // SAFETY: the caller has 16 elements there.
        let bits = unsafe { _mm256_loadu_si256(at.cast()) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
    }
}

#[cfg(target_arch = "x86_64")]
kernel!(f32_avx512: f32, f32, "avx512f,avx2,fma", 6 x 4, 16 lanes, _mm512_setzero_ps, _mm512_loadu_ps, _mm512_fmadd_ps, _mm512_storeu_ps, _mm512_loadu_ps, |x: f32| x, super::trees_avx512);
#[cfg(target_arch = "x86_64")]
kernel!(f16_avx512: f32, f16, "avx512f,avx2,fma", 6 x 4, 16 lanes, _mm512_setzero_ps, _mm512_loadu_ps, _mm512_fmadd_ps, _mm512_storeu_ps, <f16 as super::Weight>::load, f16::to_f32, super::trees_avx512);
#[cfg(target_arch = "x86_64")]
kernel!(bf16_avx512: f32, bf16, "avx512f,avx2,fma", 6 x 4, 16 lanes, _mm512_setzero_ps, _mm512_loadu_ps, _mm512_fmadd_ps, _mm512_storeu_ps, <bf16 as super::Weight>::load, bf16::to_f32, super::trees_avx512);
#[cfg(target_arch = "x86_64")]
kernel!(f32_avx2: f32, f32, "avx2,fma", 3 x 2, 8 lanes, _mm256_setzero_ps, _mm256_loadu_ps, _mm256_fmadd_ps, _mm256_storeu_ps, _mm256_loadu_ps, |x: f32| x, super::trees);
#[cfg(target_arch = "x86_64")]
kernel!(f64_avx512: f64, f64, "avx512f,avx2,fma", 3 x 4, 8 lanes, _mm512_setzero_pd, _mm512_loadu_pd, _mm512_fmadd_pd, _mm512_storeu_pd, _mm512_loadu_pd, |x: f64| x, super::trees);
#[cfg(target_arch = "x86_64")]
kernel!(f64_avx2: f64, f64, "avx2,fma", 3 x 1, 4 lanes, _mm256_setzero_pd, _mm256_loadu_pd, _mm256_fmadd_pd, _mm256_storeu_pd, _mm256_loadu_pd, |x: f64| x, super::trees);

/// Whether the processor has AVX2 and FMA, and whether AVX-512 as well.
#[cfg(target_arch = "x86_64")]
fn features() -> (bool, bool) {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    (avx2, avx2 && is_x86_feature_detected!("avx512f"))
}

/// Rows of `out`, if each lies in one piece.
#[cfg(target_arch = "x86_64")]
fn slices<'a, F>(out: &'a mut ArrayViewMut2<'_, F>) -> Option<Vec<&'a mut [F]>> {
    out.rows_mut().into_iter().map(|row| row.into_slice()).collect()
}

/// Chooses the kernel when it is run: AVX-512, AVX2 with FMA, or plain Rust.
macro_rules! choose {
    ($name:ident, $float:ty, $avx512:expr, $avx2:ident) => {
        pub(crate) fn $name(x: &Packed<'_, $float>, w: &[&[$float]], mut out: ArrayViewMut2<'_, $float>) {
            #[cfg(target_arch = "x86_64")]
            if let ((true, avx512), Some(mut out)) = (features(), slices(&mut out)) {
                // SAFETY: the processor has the instructions.
                return unsafe { if avx512 { $avx512(x, w, &mut out) } else { $avx2::products(x, w, &mut out) } };
            }
            plain(x, w, out);
        }
    };
}

choose!(products_f32, f32, f32_avx512_or_panel, f32_avx2);
choose!(products_f64, f64, f64_avx512::products, f64_avx2);

/// Chooses for weights of 16 bits: widened in registers where AVX-512 is, else row by row beforehand.
macro_rules! choose_half {
    ($name:ident, $half:ty, $avx512:path) => {
        pub(crate) fn $name(x: &Packed<'_, f32>, w: &[&[$half]], mut out: ArrayViewMut2<'_, f32>) {
            #[cfg(target_arch = "x86_64")]
            if let ((_, true), Some(mut out)) = (features(), slices(&mut out)) {
                // SAFETY: the processor has the instructions.
                return unsafe { $avx512(x, w, &mut out) };
            }
            widened(x, w, <$half>::to_f32, out);
        }
    };
}

choose_half!(products_f16, half::f16, f16_avx512_or_panel);
choose_half!(products_bf16, half::bf16, bf16_avx512_or_panel);

/// Many rows of x are worth packing those of w for.
macro_rules! or_panel {
    ($name:ident, $weight:ty, $kernel:ident) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx2,fma")]
        fn $name(x: &Packed<'_, f32>, w: &[&[$weight]], out: &mut [&mut [f32]]) {
            if panel::suits(x) { panel::products(x, w, out) } else { $kernel::products(x, w, out) }
        }
    };
}

or_panel!(f32_avx512_or_panel, f32, f32_avx512);
or_panel!(f16_avx512_or_panel, half::f16, f16_avx512);
or_panel!(bf16_avx512_or_panel, half::bf16, bf16_avx512);

/// The products with rows that are widened first.
pub(crate) fn widened<F: Float, W: Copy>(x: &Packed<'_, F>, w: &[&[W]], widen: fn(W) -> F, out: ArrayViewMut2<'_, F>) {
    let rows: Vec<Vec<F>> = w.iter().map(|row| row.iter().map(|&w| widen(w)).collect()).collect();
    let rows: Vec<&[F]> = rows.iter().map(Vec::as_slice).collect();
    F::products(x, &rows, out);
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::fmt::Debug;

    use ndarray::Array2;

    use super::*;

    /// Numbers of many sizes and both signs, zeros and subnormals among them.
    fn values(count: usize, seed: u64) -> Vec<f64> {
        let mut state = seed;
        let step = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (unit, kind) = ((state >> 33) as f64 / (1u64 << 30) as f64 - 1.0, state >> 29 & 7);
            unit * [1.0, 1e3, 1e-3, 0.0, 1e-20, 1e-39, -1.0, 1e9][kind as usize]
        };
        (0..count).map(step).collect()
    }

    /// `kernel` against plain Rust, to the bit: every remainder of rows, columns and length.
    fn check<F: Float + Debug>(kernel: impl Fn(&Packed<'_, F>, &[&[F]], ArrayViewMut2<'_, F>), bits: fn(F) -> u64) {
        for len in (0..50).chain([255, 1024, 1040, 1600, 2049]) {
            for (height, width) in [(1, 1), (2, 3), (6, 4), (7, 9), (11, 5), (14, 8), (25, 6)] {
                let make = |n, seed| -> Vec<F> { values(n, seed).into_iter().map(F::of).collect() };
                let (x, w) = (make(height * len, 1 + len as u64), make(width * len, 77 + len as u64));
                let cut = |all: &[F], i| all[i * len..(i + 1) * len].to_vec();
                let (x, w): (Vec<_>, Vec<_>) =
                    ((0..height).map(|i| cut(&x, i)).collect(), (0..width).map(|j| cut(&w, j)).collect());
                let (x, w): (Vec<_>, Vec<_>) =
                    (x.iter().map(Vec::as_slice).collect(), w.iter().map(Vec::as_slice).collect());
                let x = Packed::new(x);
                let (mut expected, mut actual) =
                    (Array2::zeros((height, width)), Array2::from_elem((height, width), F::nan()));
                plain(&x, &w, expected.view_mut());
                kernel(&x, &w, actual.view_mut());
                assert_eq!(expected.mapv(bits), actual.mapv(bits), "{height} x {width}, {len} long");
            }
        }
    }

    #[test]
    fn avx2_is_plain_rust_to_the_bit() {
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has the instructions.
            check(
                |x, w, mut out| unsafe { f32_avx2::products(x, w, &mut slices(&mut out).unwrap()) },
                |x: f32| x.to_bits().into(),
            );
            // SAFETY: the processor has the instructions.
            check(
                |x, w, mut out| unsafe { f64_avx2::products(x, w, &mut slices(&mut out).unwrap()) },
                |x: f64| x.to_bits(),
            );
        }
    }

    #[test]
    fn avx512_is_plain_rust_to_the_bit() {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has the instructions.
            check(
                |x, w, mut out| unsafe { f32_avx512::products(x, w, &mut slices(&mut out).unwrap()) },
                |x: f32| x.to_bits().into(),
            );
            // SAFETY: the processor has the instructions.
            check(
                |x, w, mut out| unsafe { f64_avx512::products(x, w, &mut slices(&mut out).unwrap()) },
                |x: f64| x.to_bits(),
            );
        }
    }

    #[test]
    fn halves_in_place_are_halves_widened_to_the_bit() {
        let bits = |out: Array2<f32>| out.mapv(f32::to_bits);
        for (height, len) in [0, 7, 16, 50, 1024, 1536, 2050].into_iter().flat_map(|len| [(9, len), (31, len)]) {
            let x: Vec<f32> = values(height * len, 3).into_iter().map(|x| x as f32).collect();
            let w: Vec<half::f16> = values(7 * len, 4).into_iter().map(half::f16::from_f64).collect();
            let b: Vec<half::bf16> = values(7 * len, 5).into_iter().map(half::bf16::from_f64).collect();
            let x = Packed::new((0..height).map(|i| &x[i * len..(i + 1) * len]).collect());
            let w: Vec<&[half::f16]> = (0..7).map(|i| &w[i * len..(i + 1) * len]).collect();
            let b: Vec<&[half::bf16]> = (0..7).map(|i| &b[i * len..(i + 1) * len]).collect();
            let mut out = [(); 4].map(|()| Array2::zeros((height, 7)));
            products_f16(&x, &w, out[0].view_mut());
            widened(&x, &w, half::f16::to_f32, out[1].view_mut());
            products_bf16(&x, &b, out[2].view_mut());
            widened(&x, &b, half::bf16::to_f32, out[3].view_mut());
            let [f, g, h, i] = out.map(bits);
            assert!(f == g && h == i, "{height} rows, {len} long");
        }
    }

    #[test]
    fn what_is_chosen_is_plain_rust_to_the_bit() {
        check(products_f32, |x: f32| x.to_bits().into());
        check(products_f64, |x: f64| x.to_bits());
    }
}

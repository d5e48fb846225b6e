//! How are many dot products taken at speed? A block of rows against a block of rows, each product in the order of `dot`.
//!
//! Registers hold the lanes of every pair of a block (6 rows of x by 4 of w with AVX-512), so that a row is loaded once for
//! several products. Which pairs share a block changes no bit: each pair has lanes of its own.

use ndarray::{ArrayView2, ArrayViewMut2, Axis};
use rayon::prelude::*;

use crate::dot;
use crate::float::Float;

/// Rows of w that a thread takes at a time; with x's block they stay in the second-level cache.
const TILE: usize = 16;
/// Multiply-adds below which other threads are not worth waking.
const ALONE: usize = 1 << 18;

/// out\[i,j\] = x\[i\] · w\[j\] + bias\[j\]. `x` \[T,n\], `w` \[N,n\], `bias` N values or none, `out` \[T,N\].
pub(crate) fn product<F: Float>(x: ArrayView2<'_, F>, w: ArrayView2<'_, F>, bias: &[F], mut out: ArrayViewMut2<'_, F>) {
    let (x, w) = (x.as_standard_layout(), w.as_standard_layout());
    let work = x.nrows().saturating_mul(w.len());
    let (x, w) = (rows(x.view()), rows(w.view()));
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
pub(crate) fn plain<F: Float>(x: &[&[F]], w: &[&[F]], mut out: ArrayViewMut2<'_, F>) {
    for ((i, j), y) in out.indexed_iter_mut() {
        *y = dot::plain(x[i], w[j]);
    }
}

/// `products` of one float type with one set of instructions.
#[cfg(target_arch = "x86_64")]
macro_rules! kernel {
    ($name:ident: $float:ty, $features:literal, $rows:literal x $columns:literal,
     $width:literal lanes, $zero:ident, $load:ident, $fma:ident, $store:ident) => {
        mod $name {
            use std::arch::x86_64::*;

            use ndarray::{ArrayViewMut2, s};

            use crate::dot::{LANES, finish};

            const VECTORS: usize = LANES / $width;

            /// out\[i,j\] = dot(x\[i\], w\[j\]).
            #[target_feature(enable = $features)]
            pub(super) fn products(x: &[&[$float]], w: &[&[$float]], mut out: ArrayViewMut2<'_, $float>) {
                let ((many, rest), (twos, last)) = (x.as_chunks::<$rows>(), x.as_chunks::<$rows>().1.as_chunks::<2>());
                for (i, x) in many.iter().enumerate() {
                    strip(x, w, out.slice_mut(s![i * $rows.., ..]));
                }
                let from = x.len() - rest.len();
                for (i, x) in twos.iter().enumerate() {
                    strip(x, w, out.slice_mut(s![from + 2 * i.., ..]));
                }
                for (i, x) in last.iter().enumerate() {
                    strip(&[*x], w, out.slice_mut(s![from + 2 * twos.len() + i.., ..]));
                }
            }

            /// R rows of x with all of w.
            #[target_feature(enable = $features)]
            fn strip<const R: usize>(x: &[&[$float]; R], w: &[&[$float]], mut out: ArrayViewMut2<'_, $float>) {
                let (many, rest) = w.as_chunks::<$columns>();
                for (j, w) in many.iter().enumerate() {
                    block(x, w, out.slice_mut(s![.., j * $columns..]));
                }
                for (j, w) in rest.iter().enumerate() {
                    block(x, &[*w], out.slice_mut(s![.., $columns * many.len() + j..]));
                }
            }

            /// R rows of x with C rows of w, all lanes in registers.
            #[target_feature(enable = $features)]
            fn block<const R: usize, const C: usize>(
                x: &[&[$float]; R],
                w: &[&[$float]; C],
                mut out: ArrayViewMut2<'_, $float>,
            ) {
                let len = x.iter().chain(w).map(|row| row.len()).min().unwrap_or(0);
                let whole = len - len % LANES;
                let mut sums = [[[$zero(); VECTORS]; C]; R];
                for k in (0..whole).step_by(LANES) {
                    for v in 0..VECTORS {
                        let at = k + v * $width;
                        // SAFETY: at + $width <= whole, which no row is shorter than; loads need no alignment.
                        let ws: [_; C] = std::array::from_fn(|c| unsafe { $load(w[c].as_ptr().add(at)) });
                        for r in 0..R {
                            // SAFETY: as above.
                            let xs = unsafe { $load(x[r].as_ptr().add(at)) };
                            for c in 0..C {
                                sums[r][c][v] = $fma(xs, ws[c], sums[r][c][v]);
                            }
                        }
                    }
                }
                for r in 0..R {
                    for c in 0..C {
                        let mut lanes = [0.0; LANES];
                        for (v, part) in lanes.as_chunks_mut::<$width>().0.iter_mut().enumerate() {
                            // SAFETY: the chunk has the $width elements that are stored; no alignment is needed.
                            unsafe { $store(part.as_mut_ptr(), sums[r][c][v]) };
                        }
                        out[[r, c]] = finish(lanes, &x[r][whole..len], &w[c][whole..len]);
                    }
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
kernel!(f32_avx512: f32, "avx512f,avx2,fma", 6 x 4, 16 lanes, _mm512_setzero_ps, _mm512_loadu_ps, _mm512_fmadd_ps, _mm512_storeu_ps);
#[cfg(target_arch = "x86_64")]
kernel!(f32_avx2: f32, "avx2,fma", 3 x 2, 8 lanes, _mm256_setzero_ps, _mm256_loadu_ps, _mm256_fmadd_ps, _mm256_storeu_ps);
#[cfg(target_arch = "x86_64")]
kernel!(f64_avx512: f64, "avx512f,avx2,fma", 3 x 4, 8 lanes, _mm512_setzero_pd, _mm512_loadu_pd, _mm512_fmadd_pd, _mm512_storeu_pd);
#[cfg(target_arch = "x86_64")]
kernel!(f64_avx2: f64, "avx2,fma", 3 x 1, 4 lanes, _mm256_setzero_pd, _mm256_loadu_pd, _mm256_fmadd_pd, _mm256_storeu_pd);

/// Chooses the kernel when it is run: AVX-512, AVX2 with FMA, or plain Rust.
macro_rules! choose {
    ($name:ident, $float:ty, $avx512:ident, $avx2:ident) => {
        pub(crate) fn $name(x: &[&[$float]], w: &[&[$float]], out: ArrayViewMut2<'_, $float>) {
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                if is_x86_feature_detected!("avx512f") {
                    // SAFETY: the processor has the instructions.
                    return unsafe { $avx512::products(x, w, out) };
                }
                // SAFETY: the processor has the instructions.
                return unsafe { $avx2::products(x, w, out) };
            }
            plain(x, w, out);
        }
    };
}

choose!(products_f32, f32, f32_avx512, f32_avx2);
choose!(products_f64, f64, f64_avx512, f64_avx2);

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
    fn check<F: Float + Debug>(kernel: impl Fn(&[&[F]], &[&[F]], ArrayViewMut2<'_, F>), bits: fn(F) -> u64) {
        for len in (0..50).chain([255, 1024]) {
            for (height, width) in [(1, 1), (2, 3), (6, 4), (7, 9), (11, 5), (14, 8)] {
                let make = |n, seed| -> Vec<F> { values(n, seed).into_iter().map(F::of).collect() };
                let (x, w) = (make(height * len, 1 + len as u64), make(width * len, 77 + len as u64));
                let cut = |all: &[F], i| all[i * len..(i + 1) * len].to_vec();
                let (x, w): (Vec<_>, Vec<_>) =
                    ((0..height).map(|i| cut(&x, i)).collect(), (0..width).map(|j| cut(&w, j)).collect());
                let (x, w): (Vec<_>, Vec<_>) =
                    (x.iter().map(Vec::as_slice).collect(), w.iter().map(Vec::as_slice).collect());
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
            check(|x, w, out| unsafe { f32_avx2::products(x, w, out) }, |x: f32| x.to_bits().into());
            // SAFETY: the processor has the instructions.
            check(|x, w, out| unsafe { f64_avx2::products(x, w, out) }, |x: f64| x.to_bits());
        }
    }

    #[test]
    fn avx512_is_plain_rust_to_the_bit() {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has the instructions.
            check(|x, w, out| unsafe { f32_avx512::products(x, w, out) }, |x: f32| x.to_bits().into());
            // SAFETY: the processor has the instructions.
            check(|x, w, out| unsafe { f64_avx512::products(x, w, out) }, |x: f64| x.to_bits());
        }
    }

    #[test]
    fn what_is_chosen_is_plain_rust_to_the_bit() {
        check(products_f32, |x: f32| x.to_bits().into());
        check(products_f64, |x: f64| x.to_bits());
    }
}

//! Computes many dot products fast: rows of w in place for a few rows of x, packed for many. Each product is summed in the order of `dot`.
//!
//! [`Level::best`] selects the instructions. None of them changes a bit.

pub(crate) mod dot;
pub(crate) mod float;
mod in_place;
pub(crate) mod packed;
pub(crate) mod panel;
pub(crate) mod peak;
mod widen;

use firstdiff_simd::Level;
use half::{bf16, f16};
use ndarray::{ArrayD, ArrayView2, ArrayViewD, ArrayViewMut2, Axis};
use rayon::prelude::*;

use crate::kernel::float::Float;
use crate::kernel::packed::Packed;
use crate::kernel::panel::Strips;

/// Rows of w that a thread takes at a time; with x's block they stay in the second-level cache.
const TILE: usize = 64;
/// Elements of a thread's share, for operations on single elements.
const PART: usize = 4096;
/// Multiply-adds below which one thread is faster than several.
const PARALLEL_THRESHOLD: usize = 1 << 18;

/// out\[i,j\] = x\[i\] · w\[j\] + bias\[j\]. `x` \[T,n\], `w` \[N,n\], `bias` N values or none, `out` \[T,N\].
pub(crate) fn product<F: Float>(x: ArrayView2<'_, F>, w: ArrayView2<'_, F>, bias: &[F], mut out: ArrayViewMut2<'_, F>) {
    let (x, w) = (x.as_standard_layout(), w.as_standard_layout());
    let work = x.nrows().saturating_mul(w.len());
    let (x, w) = (Packed::new(rows(x.view())), rows(w.view()));
    let tiles: Vec<_> = out.axis_chunks_iter_mut(Axis(1), TILE).zip(w.chunks(TILE)).enumerate().collect();
    par_each(tiles, work, |(number, (mut tile, w))| {
        F::products(&x, w, tile.view_mut());
        for (mut column, &b) in tile.columns_mut().into_iter().zip(bias.iter().skip(number * TILE)) {
            column.mapv_inplace(|y| y + b);
        }
    });
}

/// Runs `f` on every item, on several threads if `work` multiply-adds are worth it.
pub(crate) fn par_each<T: Send>(items: Vec<T>, work: usize, f: impl Fn(T) + Sync + Send) {
    if work < PARALLEL_THRESHOLD { items.into_iter().for_each(f) } else { items.into_par_iter().for_each(f) }
}

/// f(aᵢ, bᵢ) for arrays of one shape, each pair worth `work` multiply-adds.
pub(crate) fn pairwise<F: Float>(
    a: ArrayViewD<'_, F>,
    b: ArrayViewD<'_, F>,
    work: usize,
    f: impl Fn(F, F) -> F + Sync + Send,
) -> ArrayD<F> {
    let (a, b) = (a.as_standard_layout(), b.as_standard_layout());
    let mut out = ArrayD::zeros(a.raw_dim());
    let (Some(left), Some(right), Some(to)) = (a.as_slice(), b.as_slice(), out.as_slice_mut()) else { return out };
    let parts: Vec<_> = to.chunks_mut(PART).zip(left.chunks(PART)).zip(right.chunks(PART)).collect();
    par_each(parts, a.len().saturating_mul(work), |((to, left), right)| {
        to.iter_mut().zip(left).zip(right).for_each(|((to, &a), &b)| *to = f(a, b));
    });
    out
}

fn rows<F>(x: ArrayView2<'_, F>) -> Vec<&[F]> {
    x.into_outer_iter().map(|row| row.to_slice().unwrap_or_default()).collect()
}

/// Computes out\[i,j\] = dot(x\[i\], w\[j\]); each row of `out` is contiguous.
type Kernel<F, W> = unsafe fn(&Packed<'_, F>, &[&[W]], &mut [&mut [F]]);

/// The same for many rows of x, packed by lane.
type Many<F, W> = unsafe fn(&Strips, &[&[W]], &mut [&mut [F]]);

/// The kernels of one level.
pub(crate) struct Kernels<F, W> {
    few: Kernel<F, W>,
    many: Option<Many<F, W>>,
}

/// A type that weights are stored in, for products in F.
pub(crate) trait WeightType<F: Float>: Copy {
    /// The kernels of a level; `None` where there are none, and rows are widened first.
    fn kernels(level: Level) -> Option<Kernels<F, Self>>;

    /// The same value in F.
    fn widen(self) -> F;
}

macro_rules! stored {
    ($($weight:ty, $float:ty, $widen:expr, $avx512:expr, $avx2:expr, $neon:expr;)*) => {$(
        impl WeightType<$float> for $weight {
            fn kernels(level: Level) -> Option<Kernels<$float, Self>> {
                match level {
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx512 | Level::Vnni => $avx512,
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx2 => $avx2,
                    #[cfg(target_arch = "aarch64")]
                    Level::Neon => $neon,
                    _ => None,
                }
            }

            fn widen(self) -> $float {
                $widen(self)
            }
        }
    )*};
}

/// Pairs a kernel of `in_place` with one of `panel`.
macro_rules! both {
    ($few:ident, $many:path) => {
        Some(Kernels { few: in_place::$few::products, many: Some($many) })
    };
    ($few:ident) => {
        Some(Kernels { few: in_place::$few::products, many: None })
    };
}

stored! {
    f32, f32, |x| x, both!(f32_avx512, panel::x86::avx512), both!(f32_avx2, panel::x86::avx2), both!(f32_neon, panel::neon::neon);
    f16, f32, f16::to_f32, both!(f16_avx512, panel::x86::avx512), both!(f16_avx2, panel::x86::avx2), both!(f16_neon, panel::neon::neon);
    bf16, f32, bf16::to_f32, both!(bf16_avx512, panel::x86::avx512), both!(bf16_avx2, panel::x86::avx2), both!(bf16_neon, panel::neon::neon);
    f64, f64, |x| x, both!(f64_avx512), both!(f64_avx2), both!(f64_neon);
    f16, f64, f16::to_f64, None, None, None;
    bf16, f64, bf16::to_f64, None, None, None;
}

/// out\[i,j\] = dot(x\[i\], w\[j\]) with w widened, by the instructions that x is packed for.
pub(crate) fn products<F: Float + WeightType<F>, W: WeightType<F>>(
    x: &Packed<'_, F>,
    w: &[&[W]],
    mut out: ArrayViewMut2<'_, F>,
) {
    let level = x.level();
    assert!(level.is_available(), "this processor lacks the instructions of {level:?}");
    if run_kernels(W::kernels(level), x, w, &mut out) {
        return;
    }
    let wide: Vec<Vec<F>> = w.iter().map(|row| row.iter().map(|w| w.widen()).collect()).collect();
    let wide: Vec<&[F]> = wide.iter().map(Vec::as_slice).collect();
    if !run_kernels(F::kernels(level), x, &wide, &mut out) {
        scalar(x, &wide, out);
    }
}

/// Runs the kernels of a level that the processor has. Returns false if there are none, or rows of `out` are not contiguous.
fn run_kernels<F: Float, W>(
    kernels: Option<Kernels<F, W>>,
    x: &Packed<'_, F>,
    w: &[&[W]],
    out: &mut ArrayViewMut2<'_, F>,
) -> bool {
    let rows: Option<Vec<_>> = out.rows_mut().into_iter().map(|row| row.into_slice()).collect();
    let (Some(Kernels { few, many }), Some(mut rows)) = (kernels, rows) else { return false };
    match (many, x.by_lane()) {
        // SAFETY: the processor has the instructions.
        (Some(many), Some(x)) => unsafe { many(x, w, &mut rows) },
        // SAFETY: as above.
        _ => unsafe { few(x, w, &mut rows) },
    }
    true
}

/// The same in plain Rust, one product after the other: what every kernel must equal.
fn scalar<F: Float>(x: &Packed<'_, F>, w: &[&[F]], mut out: ArrayViewMut2<'_, F>) {
    for ((i, j), y) in out.indexed_iter_mut() {
        *y = dot::scalar(x.rows()[i], w[j]);
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use ndarray::Array2;

    use super::*;

    /// Numbers of very different sizes and both signs, with zeros and subnormals.
    fn values(count: usize, seed: u64) -> Vec<f64> {
        let mut state = seed;
        let step = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (unit, kind) = ((state >> 33) as f64 / (1u64 << 30) as f64 - 1.0, state >> 29 & 7);
            unit * [1.0, 1e3, 1e-3, 0.0, 1e-20, 1e-39, -1.0, 1e4][kind as usize]
        };
        (0..count).map(step).collect()
    }

    /// Compares every available level with plain Rust, bit for bit, for every remainder of rows, columns and length.
    fn check<F: Float + WeightType<F> + Debug, W: WeightType<F>>(stored: fn(f64) -> W, bits: fn(F) -> u64) {
        for len in (0..50).chain([255, 1024, 1040, 1600, 2049]) {
            for (height, width) in [(1, 1), (2, 3), (6, 4), (7, 9), (11, 5), (14, 8), (25, 6), (31, 7), (43, 70)] {
                let x: Vec<F> = values(height * len, 1 + len as u64).into_iter().map(F::from_f64).collect();
                let w: Vec<W> = values(width * len, 77 + len as u64).into_iter().map(stored).collect();
                let w: Vec<&[W]> = (0..width).map(|j| &w[j * len..(j + 1) * len]).collect();
                let at_level = |level| {
                    let x = Packed::for_level(level, (0..height).map(|i| &x[i * len..(i + 1) * len]).collect());
                    let mut out = Array2::from_elem((height, width), F::nan());
                    products(&x, &w, out.view_mut());
                    out.mapv(bits)
                };
                let expected = at_level(Level::Scalar);
                for level in Level::available() {
                    assert_eq!(expected, at_level(level), "{level:?}: {height} x {width}, {len} long");
                }
            }
        }
    }

    #[test]
    fn every_level_is_plain_rust_to_the_bit() {
        check(|x| x as f32, |x: f32| x.to_bits().into());
        check(f16::from_f64, |x: f32| x.to_bits().into());
        check(bf16::from_f64, |x: f32| x.to_bits().into());
        check(|x| x, |x: f64| x.to_bits());
        check(f16::from_f64, |x: f64| x.to_bits());
        check(bf16::from_f64, |x: f64| x.to_bits());
    }

    #[test]
    fn rows_of_the_result_may_lie_apart() {
        let (x, w) = ([1.0f32, 2.0, 3.0], [4.0f32, 5.0, 6.0]);
        let mut out = Array2::<f32>::zeros((1, 2)).reversed_axes();
        products(&Packed::new(vec![&x, &x]), &[&w[..]], out.view_mut());
        assert_eq!(out, ndarray::array![[32.0], [32.0]]);
    }
}

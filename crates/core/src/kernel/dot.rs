//! Sums in a fixed order: 16 lanes, then a fixed tree of additions.

use crate::kernel::float::Float;
use crate::kernel::packed::Packed;

/// Number of partial sums.
pub(crate) const LANES: usize = 16;

/// Σ aᵢ bᵢ over the shorter of two slices.
///
/// Lane l sums the products at l, l + 16, l + 32, ... in that order, by fused multiply-add (one rounding a step); then the lanes
/// are added pairwise: l with l + 8, l + 4, l + 2, l + 1. The order depends on the length alone, and so does every bit of the
/// result, whichever instructions the processor has (but for the payload of a NaN).
///
/// ```
/// assert_eq!(firstdiff_core::dot(&[1.0f32, 2.0], &[3.0, 4.0]), 11.0);
/// ```
pub fn dot<F: Float>(a: &[F], b: &[F]) -> F {
    let mut out = [F::zero()];
    let len = a.len().min(b.len());
    F::products(
        &Packed::new(vec![&a[..len]]),
        &[&b[..len]],
        ndarray::aview_mut1(&mut out).insert_axis(ndarray::Axis(0)),
    );
    out[0]
}

/// [`dot`] in plain Rust: what the kernels must equal.
pub(crate) fn scalar<F: Float>(a: &[F], b: &[F]) -> F {
    let mut lanes = [F::zero(); LANES];
    let (a, b) = (&a[..a.len().min(b.len())], &b[..a.len().min(b.len())]);
    let ((blocks_a, rest_a), (blocks_b, rest_b)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (x, y) in blocks_a.iter().zip(blocks_b) {
        for l in 0..LANES {
            lanes[l] = x[l].mul_add(y[l], lanes[l]);
        }
    }
    finish(lanes, rest_a, rest_b)
}

/// The sum, from the lanes over all whole blocks and the fewer than 16 elements after them.
#[inline(always)]
pub(crate) fn finish<F: Float>(mut lanes: [F; LANES], rest_a: &[F], rest_b: &[F]) -> F {
    for ((lane, &x), &y) in lanes.iter_mut().zip(rest_a).zip(rest_b) {
        *lane = x.mul_add(y, *lane);
    }
    tree_sum(lanes)
}

/// Σ f(aᵢ), each added to its lane in the order of [`dot`].
pub fn sum<F: Float>(a: &[F], f: impl Fn(F) -> F) -> F {
    let mut lanes = [F::zero(); LANES];
    let (blocks, rest) = a.as_chunks::<LANES>();
    for block in blocks {
        for l in 0..LANES {
            lanes[l] += f(block[l]);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane += f(x);
    }
    tree_sum(lanes)
}

/// The lanes of a [`dot`] added pairwise: l with l + 8, l + 4, l + 2, l + 1.
#[inline(always)]
pub fn tree_sum<F: Float>(mut lanes: [F; LANES]) -> F {
    let mut half = LANES / 2;
    while half > 0 {
        for l in 0..half {
            let upper = lanes[l + half];
            lanes[l] += upper;
        }
        half /= 2;
    }
    lanes[0]
}

/// The sums of several sets of lanes.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn tree_sums<F: Float, const C: usize>(sums: &[[F; LANES]; C]) -> [F; C] {
    sums.map(tree_sum)
}

/// The same for f32, four at a time in the same order of additions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn tree_sums_avx2<const C: usize>(sums: &[[f32; LANES]; C]) -> [f32; C] {
    use std::arch::x86_64::*;
    let (fours, rest) = sums.as_chunks::<4>();
    let mut out = [0.0; C];
    for (four, out) in fours.iter().zip(out.as_chunks_mut::<4>().0) {
        let [a, b, c, d] = std::array::from_fn(|i| {
            // SAFETY: a row has the 16 elements that are loaded; no alignment is needed.
            let (lower, upper) =
                unsafe { (_mm256_loadu_ps(four[i].as_ptr()), _mm256_loadu_ps(four[i].as_ptr().add(8))) };
            let eight = _mm256_add_ps(lower, upper);
            _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight))
        });
        let ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
        let cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
        let sums = _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
        // SAFETY: the four elements that are stored are there.
        unsafe { _mm_storeu_ps(out.as_mut_ptr(), sums) };
    }
    let from = C - rest.len();
    out[from..].iter_mut().zip(rest).for_each(|(out, lanes)| *out = tree_sum(*lanes));
    out
}

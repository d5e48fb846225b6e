//! In which order is a long sum taken? Sixteen lanes, then a fixed tree.

use crate::float::Float;

const LANES: usize = 16;

/// Σ aᵢ bᵢ over the shorter of two slices.
///
/// Lane l sums the products at l, l + 16, l + 32, ... in that order, each product rounded before it is added; then the lanes are
/// added pairwise: l with l + 8, l + 4, l + 2, l + 1. The order depends on the length alone.
///
/// ```
/// assert_eq!(firstdiff_core::dot(&[1.0f32, 2.0], &[3.0, 4.0]), 11.0);
/// ```
pub fn dot<F: Float>(a: &[F], b: &[F]) -> F {
    let mut lanes = [F::zero(); LANES];
    let (a, b) = (&a[..a.len().min(b.len())], &b[..a.len().min(b.len())]);
    let (blocks_a, rest_a) = a.as_chunks::<LANES>();
    let (blocks_b, rest_b) = b.as_chunks::<LANES>();
    for (x, y) in blocks_a.iter().zip(blocks_b) {
        for l in 0..LANES {
            lanes[l] += x[l] * y[l];
        }
    }
    for ((lane, &x), &y) in lanes.iter_mut().zip(rest_a).zip(rest_b) {
        *lane += x * y;
    }
    tree(lanes)
}

/// Σ f(aᵢ), in the order of [`dot`].
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
    tree(lanes)
}

fn tree<F: Float>(mut lanes: [F; LANES]) -> F {
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

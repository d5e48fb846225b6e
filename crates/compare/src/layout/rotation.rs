//! Checks whether the tap behind Q or K is a rotation of it. In the engine's own row order it is one, whatever the angles are.
//!
//! A rotation leaves position 0 unchanged, and keeps the length of every pair that it rotates. That holds even where the rotation is wrong (another base,
//! scaling, direction or precision, a factor, no rotation at all).

use firstdiff_trace::QkRows;

use crate::layout::pair::Pair;
use crate::metrics::Metrics;

/// A tensor of \[T,H,d\] in one layout.
pub(crate) struct Heads {
    values: Vec<f64>,
    shape: Vec<usize>,
}

impl Heads {
    pub(crate) fn from_pair(pair: &Pair<'_>) -> Heads {
        Heads { values: (0..pair.len()).map(|i| pair.candidate(i)).collect(), shape: pair.shape().to_vec() }
    }

    /// Whether this is `before` with each pair of each head rotated, times one common factor. `from_start` says that the first position is 0.
    pub(crate) fn is_rotation_of(&self, before: &Heads, pairs: QkRows, from_start: bool, allowed: f64) -> bool {
        let [positions, heads, width] = before.shape[..] else { return false };
        if self.shape != before.shape || width == 0 || width % 2 != 0 {
            return false;
        }
        let near = |a: &[f64], b: &[f64]| {
            Metrics::measure_f64(a, b).best_factor().is_some_and(|best| best.remaining_nmse <= allowed)
        };
        let first = heads * width;
        let starts = !from_start || positions < 2 || near(&before.values[..first], &self.values[..first]);
        starts && near(&lengths(&before.values, width, pairs), &lengths(&self.values, width, pairs))
    }
}

/// The length of every pair of every head.
fn lengths(values: &[f64], width: usize, pairs: QkRows) -> Vec<f64> {
    let half = width / 2;
    let pair = |i: usize| match pairs {
        QkRows::Half => (i, i + half),
        QkRows::Adjacent => (2 * i, 2 * i + 1),
    };
    let of_head = |head: &[f64]| (0..half).map(|i| head[pair(i).0].hypot(head[pair(i).1])).collect::<Vec<f64>>();
    values.chunks_exact(width).flat_map(of_head).collect()
}

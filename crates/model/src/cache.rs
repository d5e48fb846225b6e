//! What do keys and values become in the K/V cache? Rounded to its type, in whatever arithmetic they were computed.

use firstdiff_trace::Cache;
use ndarray::ArrayD;

use crate::storage::Real;

/// Rounds keys or values \[S,K,d\] to what is read back from a cache of this type.
pub fn keep<E: Real>(cache: Cache, x: &mut ArrayD<E>) {
    if cache == Cache::F32 {
        return;
    }
    let width = x.shape().last().copied().unwrap_or(1);
    let mut values: Vec<f64> = x.iter().map(|x| x.wide()).collect();
    cache.round(&mut values, width);
    x.iter_mut().zip(values).for_each(|(x, value)| *x = E::of(value));
}

//! Rounds keys and values to the type of the K/V cache, in any arithmetic.

use firstdiff_trace::Cache;
use ndarray::{ArrayD, ArrayViewD};
use rayon::prelude::*;

use crate::storage::{Half, Real, Storage};

/// About how many elements a thread takes at a time.
pub(crate) const CHUNK: usize = 1 << 14;

/// Rounds keys or values \[S,K,d\] to what a cache of this type gives back.
pub fn keep<E: Real>(cache: Cache, x: &mut ArrayD<E>) {
    if cache != Cache::F32 {
        *x = cache_rounded(cache, x.view());
    }
}

/// The same as a copy.
pub(crate) fn cache_rounded<E: Real>(cache: Cache, x: ArrayViewD<'_, E>) -> ArrayD<E> {
    let x = x.as_standard_layout();
    let mut out = ArrayD::zeros(x.raw_dim());
    let width = x.shape().last().copied().unwrap_or(1).max(1);
    let (Some(from), Some(to)) = (x.as_slice(), out.as_slice_mut()) else { return out };
    let part = (CHUNK / width).max(1) * width;
    from.par_chunks(part).zip(to.par_chunks_mut(part)).for_each(|(from, to)| {
        to.copy_from_slice(from);
        round(cache, to, width);
    });
    out
}

/// Rounds heads of `width` elements.
fn round<E: Real>(cache: Cache, heads: &mut [E], width: usize) {
    let half = match cache {
        Cache::F32 => return,
        Cache::F16 => Some(Half::F16),
        Cache::Bf16 => Some(Half::BF16),
        Cache::Q8_0 | Cache::E4m3 => None,
    };
    if let (Some(half), true, Ok(heads)) = (half, E::STORAGE == Storage::F32, bytemuck::try_cast_slice_mut(heads)) {
        return half.round_all(heads);
    }
    let mut values: Vec<f64> = heads.iter().map(|x| x.as_f64()).collect();
    cache.round(&mut values, width);
    heads.iter_mut().zip(values).for_each(|(x, value)| *x = E::from_f64(value));
}

//! Judges keys and values that differ only because one side stored them in the type of its K/V cache.

use std::borrow::Cow;

use firstdiff_trace::{Cache, Values};

use crate::judge::tensor::{Outcome, Tolerance, balanced_nmse, outcome_of, structure};
use crate::layout::pair::{Pair, by_position};
use crate::metrics::Metrics;
use crate::tolerance::{Profile, cache_nmse};

/// The cache type that a profile does not already allow for: its own 16-bit type, and any finer one, are part of its tolerances.
pub fn beyond_the_profile(profile: Profile, cache: Cache) -> Cache {
    let covered = match profile {
        Profile::Exact | Profile::F32 => Cache::F32,
        Profile::F16 => Cache::F16,
        Profile::Bf16 | Profile::Ggml => Cache::Bf16,
    };
    if cache > covered { cache } else { Cache::F32 }
}

/// Judges a pair of keys or values that differs, as if one side held values read back from the cache: every value is moved by half a step of the cache type
/// towards the other side's, and the rest is judged. A factor on all values, or on a head, is no rounding.
pub(crate) fn judge_as_cached(pair: &Pair<'_>, profile: Profile, allowed: &Tolerance) -> Option<(Outcome, f64)> {
    let width = pair.shape().last().copied().unwrap_or(1);
    let cache = allowed.cache_type;
    if cache == Cache::F32 || pair.is_empty() {
        return None;
    }
    let reference: Vec<f64> = (0..pair.len()).map(|i| pair.reference(i)).collect();
    let mut candidate: Vec<f64> = (0..pair.len()).map(|i| pair.candidate(i)).collect();
    let sides = [&reference, &candidate].iter().filter(|side| is_rounded(cache, side, width)).count() as f64;
    if sides == 0.0 || candidate.iter().chain(&reference).any(|x| !x.is_finite()) {
        return None;
    }
    let cost = sides * cache_nmse(cache);
    let rounded = Tolerance { cumulative: allowed.cumulative + cost, cache_type: Cache::F32, ..allowed.clone() };
    let rows = pair.row_metrics();
    if let Some(difference) = structure(pair, &Metrics::merge_all(&rows), profile, &rounded) {
        return Some((Outcome::Differs(difference), cost));
    }
    for ((c, r), half) in candidate.iter_mut().zip(&reference).zip(cache.half_steps(&reference, width)) {
        *c = move_towards(*c, *r, sides * half);
    }
    let (reference, candidate) = (Values::F64(Cow::Owned(reference)), Values::F64(Cow::Owned(candidate)));
    let moved = pair.pair_with_values(&reference, &candidate);
    let positions = by_position(&moved, moved.row_metrics());
    let strict = Tolerance { cache_type: Cache::F32, ..allowed.clone() };
    let outcome =
        outcome_of(&moved, (&positions, balanced_nmse(&positions)), &Metrics::merge_all(&positions), profile, &strict);
    outcome.agrees().then_some((Outcome::Rounding, cost))
}

/// `value` moved by at most `half` towards `other`: values that rounding could have made equal become equal.
pub fn move_towards(value: f64, other: f64, half: f64) -> f64 {
    match (value - other).abs() {
        off if off <= half => other,
        off if off.is_finite() => value + half * (other - value).signum(),
        _ => value,
    }
}

/// Whether storing values in this type again would change none.
pub(crate) fn is_rounded(cache: Cache, values: &[f64], width: usize) -> bool {
    let mut rounded = values.to_vec();
    cache.round(&mut rounded, width);
    rounded.iter().zip(values).all(|(a, b)| a == b)
}

//! Judges whether two tensors agree. [`judge`] is the only verdict function: every other part of firstdiff calls it.

pub(crate) mod cached;
pub(crate) mod choice;
pub(crate) mod inherited;
pub(crate) mod leak;
pub(crate) mod tensor;

use crate::judge::cached::judge_as_cached;
use crate::judge::tensor::{PairJudgement, Tolerance, balanced_nmse, outcome_of, relative_error, usual_energy};
use crate::layout::pair::{Pair, by_position};
use crate::metrics::Metrics;
use crate::tolerance::Profile;
use crate::tolerance::judge::LEAST_ENERGY_SHARE;

/// Judges a pair by a tolerance.
pub fn judge(pair: &Pair<'_>, profile: Profile, allowed: &Tolerance) -> PairJudgement {
    let rows = pair.row_metrics();
    let metrics = Metrics::merge_all(&rows);
    let positions = by_position(pair, rows);
    let balanced = balanced_nmse(&positions);
    let outcome = outcome_of(pair, (&positions, balanced), &metrics, profile, allowed);
    let as_cached = if outcome.agrees() { None } else { judge_as_cached(pair, profile, allowed) };
    let (outcome, cost) = as_cached.unwrap_or((outcome, 0.0));
    let usual = usual_energy(&positions);
    let worst_position =
        positions.iter().map(|row| relative_error(row, LEAST_ENERGY_SHARE * usual)).fold(0.0, f64::max);
    let (whole, own) = (allowed.whole(profile) + cost, allowed.cumulative + cost);
    PairJudgement { outcome, metrics, balanced, worst_position, allowed: whole, own }
}

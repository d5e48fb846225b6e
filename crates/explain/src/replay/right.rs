//! Judges whether an operation is right by itself: how far from its right value rounding may leave it.

use std::borrow::Cow;

use firstdiff_compare::{
    Outcome, Pair, PairJudgement, Profile as Judged, TensorRef, Tolerance, is_masked, judge,
    metrics::{Metrics, Squares},
    size_of,
};
use firstdiff_model::Profile;
use firstdiff_trace::{Site, Values};
use ndarray::{ArrayD, ArrayViewD, Axis};

use crate::tolerance::replay::{EDGES, EXACT_ALLOWED, HALF_ROOM, LEAST_ALLOWED, OPERATION_ROOM};

/// NMSE up to which a step agrees, when its rounding costs `noise`.
pub(crate) fn tolerance(profile: Profile, noise: f64) -> f64 {
    match profile {
        Profile::Exact => EXACT_ALLOWED,
        Profile::F32 => (OPERATION_ROOM * noise).max(LEAST_ALLOWED),
        Profile::F16 | Profile::Bf16 => (HALF_ROOM * noise).max(LEAST_ALLOWED),
        Profile::Ggml { .. } => (EDGES * noise).max(10.0 * LEAST_ALLOWED),
    }
}

/// Values moved by half a unit of rounding, up or down as chance has it; the same each time for the same seed.
pub(crate) fn jittered(values: &ArrayD<f64>, unit: f64, seed: u64) -> ArrayD<f64> {
    let mut coin = Coin::new(seed);
    values.mapv(|x| x * (1.0 + 0.5 * unit * coin.sign()))
}

/// 1 or -1 as chance has it; the same for the same seed.
pub(crate) struct Coin(u64);

impl Coin {
    pub(crate) fn new(seed: u64) -> Coin {
        Coin(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(crate) fn sign(&mut self) -> f64 {
        if self.next() >> 63 == 0 { 1.0 } else { -1.0 }
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0
    }
}

/// Whether two values of such a tap are numbers to compute with: finite, and neither the fill of a masked key, which is larger than all scores together.
pub(crate) fn both_count(site: Site, a: f64, b: f64) -> bool {
    [a, b].iter().all(|&x| x.is_finite() && !is_masked(site, x))
}

/// NMSE over what counts in both.
pub(crate) fn distance(site: Site, reference: &ArrayD<f64>, other: &ArrayD<f64>) -> f64 {
    let part = |(reference, other): (ArrayViewD<'_, f64>, ArrayViewD<'_, f64>)| {
        let pairs = reference.iter().zip(&other).map(|(r, o)| (*r, *o));
        Squares::sum(pairs.filter(|(r, o)| both_count(site, *r, *o)))
    };
    let axis = site.position_axis();
    if axis >= reference.ndim() || reference.shape() != other.shape() {
        return size_of(&[part((reference.view(), other.view()))]);
    }
    let positions = reference.axis_iter(Axis(axis)).zip(other.axis_iter(Axis(axis)));
    size_of(&positions.map(part).collect::<Vec<_>>())
}

/// The rows of which the error alone is above what is allowed: where a mask or a window is wrong, those from some position on.
pub(crate) fn wrong_rows(site: Site, own: &ArrayD<f64>, right: &ArrayD<f64>, allowed: f64) -> Vec<usize> {
    let wrong = |pair: &Pair<'_>| {
        // Of axes that its tap does not have nobody knows which is that of the positions.
        let is_by_position = own.shape().get(site.position_axis()) == Some(&pair.rows().0);
        let rows = pair.nmse_by_position().into_iter().enumerate().filter(|_| is_by_position);
        rows.filter_map(|(row, nmse)| (nmse.is_nan() || nmse > allowed).then_some(row)).collect()
    };
    paired(site, right, own, wrong).unwrap_or_default()
}

/// What is asked of two tensors as compare lays one against the other; nothing where their shapes are not to be brought together.
fn paired<T>(site: Site, reference: &ArrayD<f64>, own: &ArrayD<f64>, ask: impl Fn(&Pair<'_>) -> T) -> Option<T> {
    let values = |x: &ArrayD<f64>| Values::F64(Cow::Owned(x.iter().copied().collect()));
    let (left, right) = (values(reference), values(own));
    let operand = |values| TensorRef { values, shape: reference.shape(), rows: None };
    Pair::new(site, &operand(&left), &operand(&right), None).ok().map(|pair| ask(&pair))
}

pub(crate) fn compared(
    site: Site,
    reference: &ArrayD<f64>,
    candidate: &ArrayD<f64>,
    profile: Judged,
    allowed: f64,
) -> (PairJudgement, Vec<usize>) {
    let judged = |pair: &Pair<'_>| (judge(pair, profile, &Tolerance::rounding_only(allowed)), pair.shape().to_vec());
    paired(site, reference, candidate, judged).unwrap_or_else(|| {
        let (metrics, outcome) = (Metrics::measure_f64(&[], &[]), Outcome::Inconclusive);
        let judgement =
            PairJudgement { outcome, metrics, balanced: None, worst_position: f64::INFINITY, allowed, own: allowed };
        (judgement, Vec::new())
    })
}

/// The share of values that are hidden, or infinite, in one and not in the other.
pub(crate) fn hides_others(site: Site, a: &ArrayD<f64>, b: &ArrayD<f64>) -> f64 {
    let shown = |x: f64| x.is_finite() && !is_masked(site, x);
    a.iter().zip(b).filter(|(a, b)| shown(**a) != shown(**b)).count() as f64 / a.len().max(1) as f64
}

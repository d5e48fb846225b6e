//! When is an operation right by itself? How far from its right value rounding may leave it, and how that is judged.

use std::borrow::Cow;

use firstdiff_compare::{
    Judgement, Outcome, Pair, Profile as Judged, TensorRef, Tolerance, judge,
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

    /// A number below `count`, which is not 0.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        ((self.next() >> 33) % count as u64) as usize
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0
    }
}

/// NMSE over what is finite in both.
pub(crate) fn distance(site: Site, reference: &ArrayD<f64>, other: &ArrayD<f64>) -> f64 {
    let part = |(reference, other): (ArrayViewD<'_, f64>, ArrayViewD<'_, f64>)| {
        let finite = reference.iter().zip(&other).filter(|(r, o)| r.is_finite() && o.is_finite());
        Squares::of(finite.map(|(r, o)| (*r, *o)))
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
    let axis = Axis(site.position_axis());
    if own.shape() != right.shape() || own.ndim() <= axis.0 {
        return Vec::new();
    }
    let is_wrong = |(own, right): (ArrayViewD<'_, f64>, ArrayViewD<'_, f64>)| {
        let off = |(a, b): (&f64, &f64)| if a == b { 0.0 } else { (a - b) * (a - b) };
        let error: f64 = own.iter().zip(&right).map(off).sum();
        let energy: f64 = right.iter().filter(|x| x.is_finite()).map(|x| x * x).sum();
        error.is_nan() || error > allowed * energy
    };
    let rows = own.axis_iter(axis).zip(right.axis_iter(axis)).enumerate();
    rows.filter_map(|(row, both)| is_wrong(both).then_some(row)).collect()
}

pub(crate) fn compared(
    site: Site,
    reference: &ArrayD<f64>,
    candidate: &ArrayD<f64>,
    profile: Judged,
    allowed: f64,
) -> (Judgement, Vec<usize>) {
    let values = |x: &ArrayD<f64>| Values::F64(Cow::Owned(x.iter().copied().collect()));
    let (left, right) = (values(reference), values(candidate));
    let operand = |values| TensorRef { values, shape: reference.shape(), rows: None };
    match Pair::new(site, &operand(&left), &operand(&right), None) {
        Ok(pair) => {
            let judgement = judge(&pair, profile, &Tolerance::own(allowed));
            (judgement, pair.shape().to_vec())
        }
        Err(_) => {
            let metrics = Metrics::of_f64(&[], &[]);
            let outcome = Outcome::Inconclusive;
            let judgement =
                Judgement { outcome, metrics, balanced: None, worst_position: f64::INFINITY, allowed, own: allowed };
            (judgement, Vec::new())
        }
    }
}

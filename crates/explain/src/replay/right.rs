//! When is an operation right by itself? How far from its right value rounding may leave it, and how that is judged.

use std::borrow::Cow;

use firstdiff_compare::{
    Allowance, Judgement, Operand, Outcome, Pair, Profile as Judged, judge, metrics::Metrics, size_of,
};
use firstdiff_model::Profile;
use firstdiff_trace::{Site, Values};
use ndarray::{ArrayD, ArrayViewD, Axis};

/// Rounding of one operation, another order of summation included: a plain loop is six times as far off as sixteen lanes.
pub(crate) const ROOM: f64 = 64.0;
/// No operation is held to less than this in f32.
const LEAST: f64 = 1e-12;
/// In coarser profiles, by how much two right ways to round one operation differ, in units of what rounding costs.
const HALF_ROOM: f64 = 4.0;
/// By how much two right runs of a stretch may differ more than those that were tried: 220 real ones differ by 1.1 times as much at most.
pub(crate) const EDGE_ROOM: f64 = 2.0;
/// Values on the edge of a step of quantised activations: this share of what quantising costs.
const EDGES: f64 = 0.01;
/// Up to this many times what rounding costs, nobody can tell another rounding from a fault.
pub(crate) const OWN_ROUNDING: f64 = 4.0;

/// NMSE up to which a step agrees, when its rounding costs `noise`.
pub(crate) fn tolerance(profile: Profile, noise: f64) -> f64 {
    match profile {
        Profile::Exact => 1e-24,
        Profile::F32 => (ROOM * noise).max(LEAST),
        Profile::F16 | Profile::Bf16 => (HALF_ROOM * noise).max(LEAST),
        Profile::Ggml { .. } => (EDGES * noise).max(10.0 * LEAST),
    }
}

/// How much more than the error of inputs moved by chance the rounding of inputs may cost.
pub(crate) const INPUTS: f64 = 4.0;

/// Values moved by half a unit of rounding, up or down as chance has it; the same each time.
pub(crate) fn jittered(values: &ArrayD<f64>, unit: f64) -> ArrayD<f64> {
    let mut coin = Coin::new(1);
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
        finite.fold((0.0, 0.0), |(e, n), (r, o)| (e + (o - r).powi(2), n + r * r))
    };
    let axis = site.position_axis();
    if axis >= reference.ndim() || reference.shape() != other.shape() {
        return size_of(&[part((reference.view(), other.view()))]);
    }
    let positions = reference.axis_iter(Axis(axis)).zip(other.axis_iter(Axis(axis)));
    size_of(&positions.map(part).collect::<Vec<_>>())
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
    let operand = |values| Operand { values, shape: reference.shape(), rows: None };
    match Pair::new(site, &operand(&left), &operand(&right), None) {
        Ok(pair) => {
            let judgement = judge(&pair, profile, &Allowance::own(allowed));
            (judgement, pair.shape().to_vec())
        }
        Err(_) => {
            let metrics = Metrics::of_f64(&[], &[]);
            (Judgement { outcome: Outcome::Unclear, metrics, balanced: None, allowed, own: allowed }, Vec::new())
        }
    }
}

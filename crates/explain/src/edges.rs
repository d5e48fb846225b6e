//! How far apart do two right runs of a stretch come out, because a value near the edge of a rounding step fell to its other side?
//!
//! Sums in another order differ in their last bits. Behind them values are rounded to 16 or 8 bits, and one in a few thousand takes another step; over
//! several layers that adds up to a part of what rounding costs in all. It is measured: the stretch is run again with every sum moved by as much as
//! its order may move it.

use std::sync::Mutex;

use firstdiff_compare::Place;
use firstdiff_model::Op;
use ndarray::ArrayD;

use crate::imitate::{Imitation, Shared, segment};
use crate::mistakes::Edit;
use crate::replay::Run;
use crate::right::{Coin, distance};

/// Runs that are tried.
const RUNS: u64 = 12;
/// By how much the order of a sum moves it, in units of its row's root mean square.
const MOVED: f64 = 1.0 / (1 << 23) as f64;

impl Run<'_> {
    /// The largest NMSE between `right` and what comes out of the same steps with their sums in other orders; `right` holds `positions` of the tap.
    pub(crate) fn edges_of(&self, place: Place, right: &ArrayD<f64>, positions: Option<&[usize]>) -> f64 {
        let steps = segment(&self.recorded, place);
        let sums = |op: &Op| matches!(op, Op::Linear { .. } | Op::Head | Op::Qk | Op::Context);
        let run = |seed: u64| -> Option<f64> {
            let edits: Vec<Edit> = steps
                .iter()
                .filter(|step| sums(&step.op))
                .map(|step| Edit::harmless(step, move |x| moved(x, seed)))
                .collect();
            let shared: Shared = Mutex::default();
            let value = Imitation::new(&self.recorded, self.profile, &shared, &edits, place, None).run()?;
            let value = positions.map_or_else(
                || value.clone(),
                |list| value.select(ndarray::Axis(place.tap.site.position_axis()), list),
            );
            (value.shape() == right.shape()).then(|| distance(place.tap.site, right, &value))
        };
        (1..=RUNS).filter_map(run).fold(0.0, f64::max)
    }
}

/// Every value of a row moved by the same amount, up or down as chance has it; the same for the same seed.
fn moved(values: ArrayD<f64>, seed: u64) -> ArrayD<f64> {
    let width = values.shape().last().copied().unwrap_or(1).max(1);
    let mut out = values.as_standard_layout().into_owned();
    let mut coin = Coin::new(seed);
    for row in out.as_slice_mut().into_iter().flat_map(|all| all.chunks_mut(width)) {
        let finite = row.iter().filter(|x| x.is_finite());
        let (energy, count) = finite.fold((0.0, 0usize), |(e, n), x| (e + x * x, n + 1));
        let unit = MOVED * (energy / count.max(1) as f64).sqrt();
        row.iter_mut().for_each(|x| *x += unit * coin.sign());
    }
    out
}

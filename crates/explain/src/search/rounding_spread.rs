//! How far apart do two right runs of a stretch come out, because a value near the edge of a rounding step fell to its other side?
//!
//! Sums in another order differ in their last bits. Behind them values are rounded to 16 or 8 bits, and one in a few thousand takes another step; over
//! several layers that adds up to a part of what rounding costs in all. It is measured: the stretch is run again with every sum moved by as much as
//! its order may move it. Of a single token so few values are rounded that no such run need come to an edge: there one value is put on its other side.

use std::collections::BTreeSet;
use std::sync::Mutex;

use firstdiff_compare::Place;
use firstdiff_model::{Op, Profile, Step};
use firstdiff_trace::Tap;
use ndarray::ArrayD;

use crate::mistakes::Edit;
use crate::replay::Run;
use crate::replay::right::{Coin, distance};
use crate::search::simulate::{Shared, Simulation, segment};
use crate::tolerance::search::ORDER_MOVES;

/// Runs that are tried.
const RUNS: u64 = 12;

impl Run<'_> {
    /// The largest NMSE between `right` and what comes out of the same steps with their sums in other orders; `right` holds `positions` of the tap.
    pub(crate) fn edges_of(&self, place: Place, right: &ArrayD<f64>, positions: Option<&[usize]>) -> f64 {
        let steps = segment(&self.recorded, place);
        let sums = |op: &Op| matches!(op, Op::Linear { .. } | Op::Head | Op::Qk | Op::Context);
        let run = |edits: Vec<Edit>| -> Option<f64> {
            let shared: Shared = Mutex::default();
            let value = Simulation::new(&self.recorded, self.profile, &shared, &edits, place, None).run()?;
            let value = positions.map_or_else(
                || value.clone(),
                |list| value.select(ndarray::Axis(place.tap.site.position_axis()), list),
            );
            (value.shape() == right.shape()).then(|| distance(place.tap.site, right, &value))
        };
        let reordered = |seed: u64| {
            let sums = steps.iter().filter(|step| sums(&step.op));
            sums.map(|step| Edit::harmless(step, move |x| moved(x, seed))).collect()
        };
        // What products with weights read is rounded to 8 bits.
        let products = steps.iter().filter(|step| matches!(step.op, Op::Linear { .. } | Op::Head));
        let read: BTreeSet<Tap> = products.flat_map(|step| step.reads.first().copied()).collect();
        let rounded: Vec<&Step> = match self.profile {
            Profile::Ggml { .. } => steps.iter().copied().filter(|step| read.contains(&step.tap)).collect(),
            _ => Vec::new(),
        };
        let flipped = |seed: u64| {
            let step = rounded.get(seed as usize % rounded.len().max(1));
            step.into_iter().map(|step| Edit::harmless(step, move |x| flipped(x, seed))).collect()
        };
        let flips = if rounded.is_empty() { 0 } else { RUNS };
        let all = (1..=RUNS).map(reordered).chain((1..=flips).map(flipped));
        all.filter_map(run).fold(0.0, f64::max)
    }
}

/// One value, as chance has it, a step of its 8-bit block further up or down.
fn flipped(values: ArrayD<f64>, seed: u64) -> ArrayD<f64> {
    const BLOCK: usize = 32;
    const STEPS: f64 = 127.0;
    let mut out = values.as_standard_layout().into_owned();
    let mut coin = Coin::new(seed);
    let Some(all) = out.as_slice_mut().filter(|all| !all.is_empty()) else { return values };
    let at = coin.below(all.len());
    let block = at / BLOCK * BLOCK;
    let largest = all[block..(block + BLOCK).min(all.len())].iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    all[at] += coin.sign() * largest / STEPS;
    out
}

/// Every value of a row moved by the same amount, up or down as chance has it; the same for the same seed.
fn moved(values: ArrayD<f64>, seed: u64) -> ArrayD<f64> {
    let width = values.shape().last().copied().unwrap_or(1).max(1);
    let mut out = values.as_standard_layout().into_owned();
    let mut coin = Coin::new(seed);
    for row in out.as_slice_mut().into_iter().flat_map(|all| all.chunks_mut(width)) {
        let finite = row.iter().filter(|x| x.is_finite());
        let (energy, count) = finite.fold((0.0, 0usize), |(e, n), x| (e + x * x, n + 1));
        let unit = ORDER_MOVES * (energy / count.max(1) as f64).sqrt();
        row.iter_mut().for_each(|x| *x += unit * coin.sign());
    }
    out
}

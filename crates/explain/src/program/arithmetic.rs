//! Is every operation right, in another arithmetic than the candidate's dump says? Weights that are rounded to 16 bits are imitated, and a run whose values
//! are all of 16 bits is judged as one. It is said only where nothing at all stays wrong.

use std::collections::{BTreeSet, HashSet};

use firstdiff_compare::Place;
use firstdiff_model::Profile;
use firstdiff_program::{Program, Tensor, Values, WeightError, Weights};
use firstdiff_trace::{Tap, to_bf16, to_f16};
use serde_json::json;

use crate::explain::{Cause, Finding, Match, Progress};
use crate::mistakes::precision::PRECISION;
use crate::program::arrays::{array, floats};
use crate::program::held::Held;
use crate::program::products::is_product;
use crate::program::replays::{ProgramReplay, Replays};
use crate::program::{Candidate, Recording};
use crate::replay::{ReplayError, Replayed};

/// A float of 16 bits, and what it is called.
#[derive(Clone, Copy)]
pub(super) struct Half {
    pub(super) name: &'static str,
    profile: Profile,
    pub(super) round: fn(f64) -> f64,
}

pub(super) const HALVES: [Half; 2] = [
    Half { name: "bf16", profile: Profile::Bf16, round: |x| to_bf16(x).to_f64() },
    Half { name: "f16", profile: Profile::F16, round: |x| to_f16(x).to_f64() },
];

/// Fewer wrong taps are no sign of it.
const LEAST: usize = 3;

/// Weights as they are, rounded.
struct Rounded<'a> {
    of: &'a dyn Weights,
    half: Half,
    /// Vectors, such as norms have, are left as they are.
    matrices_alone: bool,
}

impl Weights for Rounded<'_> {
    fn read(&self, name: &str) -> Result<Tensor<'static>, WeightError> {
        let tensor = self.of.read(name)?;
        let is_vector = tensor.shape().iter().filter(|&&extent| extent > 1).count() < 2;
        if !matches!(tensor.values(), Values::Float(_)) || (self.matrices_alone && is_vector) {
            return Ok(tensor);
        }
        let rounded = floats(array(&tensor).mapv(self.half.round));
        rounded.ok_or_else(|| WeightError { name: name.into(), reason: "has no such shape".into() })
    }
}

/// What is said of a run of which everything is right in another arithmetic; `None` where that is not so, or there is no sign of it.
///
/// # Errors
/// As [`replay`](crate::program::replay()).
pub(super) fn another(
    recording: &Recording<'_>,
    candidate: &Candidate<'_>,
    held: &Held,
    replays: &Replays,
    progress: Progress<'_>,
) -> Result<Option<Finding>, ReplayError> {
    let wrong: Vec<usize> = replays.wrong().collect();
    if wrong.len() < LEAST || !matches!(candidate.profile, Profile::F32 | Profile::Exact) {
        return Ok(None);
    }
    let places: HashSet<Place> = wrong.iter().map(|&tap| held.place(tap)).collect();
    let right_if = |recording: &Recording<'_>, profile: Profile| -> Result<Option<f64>, ReplayError> {
        let candidate = Candidate { profile, is_by_the_reference: false, ..*candidate };
        let again =
            ProgramReplay::run(recording, &candidate, &mut |done, total| progress("another arithmetic", done, total))?;
        let again = again.replays;
        let is_right = |tap: &&Replayed| places.contains(&tap.report.place) && tap.report.status.agrees();
        let right: Vec<&Replayed> = again.replay.taps.iter().filter(is_right).collect();
        let is_all = again.wrong().next().is_none() && right.len() == places.len();
        Ok(is_all.then(|| worst(right.into_iter())))
    };
    if most_products_are_wrong(recording.program, replays, &wrong) {
        for (half, matrices_alone) in HALVES.iter().flat_map(|half| [(*half, false), (*half, true)]) {
            let weights = Rounded { of: recording.weights, half, matrices_alone };
            let rounded = Recording { weights: &weights, ..*recording };
            if let Some(residual) = right_if(&rounded, candidate.profile)? {
                let format = format!("{} weights", half.name);
                return Ok(Some(finding(recording, held, replays, &wrong, &format, residual)));
            }
        }
    }
    for half in HALVES.iter().filter(|half| is_of(held, replays, half)) {
        if let Some(residual) = right_if(recording, half.profile)? {
            return Ok(Some(finding(recording, held, replays, &wrong, half.name, residual)));
        }
    }
    Ok(None)
}

/// Whether at least half of the products with weights that could be judged are wrong.
fn most_products_are_wrong(program: &Program, replays: &Replays, wrong: &[usize]) -> bool {
    let wrong: BTreeSet<usize> = wrong.iter().copied().collect();
    let judged = |(_, replayed): &(&usize, &Replayed)| replayed.report.metrics.is_some();
    let all = replays.taps.iter().zip(&replays.replay.taps).filter(judged).map(|(&tap, _)| tap);
    let products: Vec<usize> = all.filter(|&tap| is_product(program, tap)).collect();
    let off = products.iter().filter(|tap| wrong.contains(tap)).count();
    off >= LEAST && 2 * off >= products.len()
}

/// Whether nothing that was recorded has more digits than a float of 16 bits.
fn is_of(held: &Held, replays: &Replays, half: &Half) -> bool {
    let mut recorded = replays.taps.iter().filter_map(|&tap| held.get(tap)).peekable();
    let same = |x: &f64| (half.round)(*x) == *x || !x.is_finite();
    recorded.peek().is_some() && recorded.all(|tensor| tensor.to_floats().iter().all(same))
}

/// The largest error of some taps.
fn worst<'t>(taps: impl Iterator<Item = &'t Replayed>) -> f64 {
    taps.filter_map(|tap| tap.report.metrics.and_then(|metrics| metrics.nmse())).fold(0.0, f64::max)
}

fn finding(
    recording: &Recording<'_>,
    held: &Held,
    replays: &Replays,
    wrong: &[usize],
    format: &str,
    residual_nmse: f64,
) -> Finding {
    let places: Vec<Place> = wrong.iter().map(|&tap| held.place(tap)).collect();
    let mut met = HashSet::new();
    let taps: Vec<Tap> = places.iter().map(|place| place.tap).filter(|tap| met.insert(*tap)).collect();
    let shown: HashSet<Place> = places.iter().copied().collect();
    Finding {
        taps,
        op: wrong.first().map_or_else(String::new, |&tap| recording.program.said(recording.program.taps()[tap].op)),
        cause: Some(Cause { id: PRECISION.id, params: vec![("format", json!(format))] }),
        residual_nmse,
        base_nmse: worst(replays.replay.taps.iter().filter(|tap| shown.contains(&tap.report.place))),
        shown_at: places,
        ..Finding::without_cause(Match::Reproduced)
    }
}

//! Decides whether every operation is right, in another arithmetic than the candidate's dump says. Weights that are rounded to 16 bits are
//! imitated, which is said only where nothing at all stays wrong. A run whose values are all of 16 bits is judged as one.

use std::collections::HashSet;

use firstdiff_compare::{Place, Status};
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
use crate::tolerance::search::ROUNDED_TO_16_BITS;

/// A float of fewer bits than f32, and what it is called.
#[derive(Clone, Copy)]
pub(super) struct Narrow {
    pub(super) name: &'static str,
    /// How a run is judged that stores such numbers; `None` of a type in which nothing is stored, as units of products take it.
    pub(super) profile: Option<Profile>,
    pub(super) round: fn(f64) -> f64,
}

pub(super) const NARROW: [Narrow; 3] = [
    Narrow { name: "bf16", profile: Some(Profile::Bf16), round: |x| to_bf16(x).to_f64() },
    Narrow { name: "f16", profile: Some(Profile::F16), round: |x| to_f16(x).to_f64() },
    Narrow { name: "tf32", profile: None, round: to_tf32 },
];

/// The nearest number of 11 binary digits, which has f32's range; of two as near the larger, as PTX's cvt.rna.tf32 has it.
fn to_tf32(x: f64) -> f64 {
    const CUT: u32 = 13;
    let x = x as f32;
    let rounded = f32::from_bits((x.to_bits() + (1 << (CUT - 1))) >> CUT << CUT);
    f64::from(if x.is_finite() { rounded } else { x })
}

/// Fewer wrong taps are no sign of it.
const LEAST: usize = 3;

/// Weights as they are, rounded.
struct Rounded<'a> {
    of: &'a dyn Weights,
    half: Narrow,
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
    if wrong.is_empty() || !matches!(candidate.profile, Profile::F32 | Profile::Exact) {
        return Ok(None);
    }
    let places: HashSet<Place> = wrong.iter().map(|&tap| held.place(tap)).collect();
    let right_if = |recording: &Recording<'_>| -> Result<Option<f64>, ReplayError> {
        let candidate = Candidate { is_by_the_reference: false, ..*candidate };
        let again =
            ProgramReplay::run(recording, &candidate, &mut |done, total| progress("another arithmetic", done, total))?;
        let again = again.replays;
        let is_right = |tap: &&Replayed| places.contains(&tap.report.place) && tap.report.status.agrees();
        let right: Vec<&Replayed> = again.replay.taps.iter().filter(is_right).collect();
        let is_all = again.wrong().next().is_none() && right.len() == places.len();
        Ok(is_all.then(|| worst(right.into_iter())))
    };
    if most_products_are_wrong(recording.program, replays) {
        for (half, matrices_alone) in
            NARROW.iter().filter(|half| half.profile.is_some()).flat_map(|half| [(*half, false), (*half, true)])
        {
            let weights = Rounded { of: recording.weights, half, matrices_alone };
            let rounded = Recording { weights: &weights, ..*recording };
            if let Some(residual) = right_if(&rounded)? {
                let format = format!("{} weights", half.name);
                return Ok(Some(finding(recording, held, replays, &wrong, &format, residual)));
            }
        }
    }
    Ok(None)
}

/// Weights of a model up to which all are rounded where no product was recorded: each type takes two replays.
const MOST_WEIGHTS: usize = 1 << 27;

/// Whether at least half of the products with weights that could be judged are wrong. Where little was recorded, what is made on the way has products.
fn most_products_are_wrong(program: &Program, replays: &Replays) -> bool {
    let judged = |(_, replayed): &(&usize, &Replayed)| replayed.report.metrics.is_some();
    let sizes = program.weights().keys().map(|&buffer| program.buffers()[buffer].shape.iter().product::<usize>());
    let is_small = sizes.sum::<usize>() <= MOST_WEIGHTS;
    let has_products = |replayed: &Replayed| is_small && !replayed.through.is_empty();
    let is_product = |(tap, replayed): &(&usize, &Replayed)| has_products(replayed) || is_product(program, **tap);
    let all = replays.taps.iter().zip(&replays.replay.taps);
    let products: Vec<&Replayed> = all.filter(judged).filter(is_product).map(|(_, replayed)| replayed).collect();
    let is_wrong = |replayed: &&&Replayed| replayed.report.status == Status::Diverged;
    let wrong: Vec<&Replayed> = products.iter().filter(is_wrong).copied().collect();
    let are_of_many = wrong.len() >= LEAST || wrong.iter().any(|replayed| has_products(replayed));
    are_of_many && 2 * wrong.len() >= products.len() && worst(wrong.into_iter()) <= ROUNDED_TO_16_BITS
}

/// A run whose values are all of 16 bits, judged as one.
pub(super) struct Stored {
    pub(super) judged: ProgramReplay,
    pub(super) profile: Profile,
    /// Says so of what is right then.
    pub(super) finding: Finding,
}

/// The run as the type judges it in which all that was recorded is: where most of what is wrong is right then. Its dump may say another.
///
/// # Errors
/// As [`replay`](crate::program::replay()).
pub(super) fn stored(
    recording: &Recording<'_>,
    candidate: &Candidate<'_>,
    (held, replays): (&Held, &Replays),
    progress: Progress<'_>,
) -> Result<Option<Stored>, ReplayError> {
    let wrong: Vec<usize> = replays.wrong().collect();
    if wrong.len() < LEAST || !matches!(candidate.profile, Profile::F32 | Profile::Exact) {
        return Ok(None);
    }
    let is_of = |half: &Narrow| {
        let same = |x: &f64| (half.round)(*x) == *x || !x.is_finite();
        replays.taps.iter().filter_map(|&tap| held.get(tap)).all(|tensor| tensor.to_floats().iter().all(same))
    };
    for (half, profile) in NARROW.iter().filter_map(|half| Some((half, half.profile?))) {
        if !is_of(half) {
            continue;
        }
        let candidate = Candidate { profile, ..*candidate };
        let judged =
            ProgramReplay::run(recording, &candidate, &mut |done, total| progress("another arithmetic", done, total))?;
        let right: Vec<usize> = wrong
            .iter()
            .copied()
            .filter(|&tap| judged.replays.of(held.place(tap)).is_some_and(|t| t.report.status.agrees()))
            .collect();
        if 2 * right.len() > wrong.len() {
            let finding = finding(recording, held, replays, &right, half.name, 0.0);
            // How far off it is in the other arithmetic is not measured alike: the numbers themselves show it.
            return Ok(Some(Stored { judged, profile, finding: Finding { base_nmse: 0.0, ..finding } }));
        }
    }
    Ok(None)
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

#[cfg(test)]
mod tests {
    use super::to_tf32;

    #[test]
    fn of_two_numbers_as_near_tf32_takes_the_larger() {
        let last = (-10_f64).exp2();
        for (x, due) in
            [(1.0 + last / 2.0, 1.0 + last), (1.0 + last / 4.0, 1.0), (-1.0 - 1.5 * last, -1.0 - 2.0 * last)]
        {
            assert_eq!(to_tf32(x), due);
        }
        assert_eq!(to_tf32(f64::NEG_INFINITY), f64::NEG_INFINITY);
        assert!((to_tf32(1e-30) / 1e-30 - 1.0).abs() < last);
    }
}

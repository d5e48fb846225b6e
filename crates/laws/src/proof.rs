//! Which law holds in every place where the operation is wrong?

use ndarray::ArrayD;

use crate::case::{Case, Place};
use crate::identify;
use crate::law::{Law, Proof, Status};

/// The law that a wrong operation follows, the plainest of those that are proved, and its proof. What the others say is in `equivalent`.
pub fn measured(case: &Case<'_>) -> Option<(Law, Proof)> {
    if case.places.is_empty() || case.places.iter().any(|place| !is_usable(place)) {
        return None;
    }
    let mut laws = identify::laws(case);
    laws.sort_by(|a, b| a.bits.total_cmp(&b.bits));
    let mut proved: Vec<(f64, Law, Proof)> = Vec::new();
    for law in laws {
        // What costs more than what stands already is not needed.
        if proved.iter().any(|(score, known, _)| *score + WORTH < law.bits && known.status == Status::Measured)
            || proved.len() >= MOST
        {
            break;
        }
        if let Some((score, proof)) = proved_everywhere(case, &law) {
            proved.push((score, law, proof));
        }
    }
    // A law before a table.
    proved.sort_by(|a, b| (a.1.status == Status::Table).cmp(&(b.1.status == Status::Table)).then(a.0.total_cmp(&b.0)));
    let mut proved = proved.into_iter();
    let (score, mut law, proof) = proved.next()?;
    law.equivalent = proved
        .filter(|(other, l, _)| *other <= score + WORTH && l.status == law.status && l.words != law.words)
        .map(|(_, other, _)| other.words)
        .collect();
    Some((law, proof))
}

/// Bits by which a law must be dearer than another before it is left out.
const WORTH: f64 = 12.0;
/// Proved laws that are enough to choose of.
const MOST: usize = 8;
/// Bits that a law must explain beyond its price.
const BEYOND: f64 = 30.0;
/// What a law may cost of what it explains, and what it may always cost.
const SHARE: f64 = 0.25;
const ALWAYS: f64 = 20.0;
/// How much of the error may be left where the values are wrong.
const LEFT: f64 = 0.02;

fn is_usable(place: &Place) -> bool {
    place.own.shape() == place.right.shape()
        && !place.own.is_empty()
        && place.tolerance.is_finite()
        && place.tolerance > 0.0
        && place.own.iter().chain(place.right.iter()).all(|x| x.is_finite())
}

/// The score of a law (its price, and what it leaves beyond rounding) and its proof, where it holds in every place.
fn proved_everywhere(case: &Case<'_>, law: &Law) -> Option<(f64, Proof)> {
    let (mut gained, mut worst, mut before, mut beyond) = (0.0, 0.0f64, 0.0f64, 0.0);
    for (at, place) in case.places.iter().enumerate() {
        let predicted = law.predicted(case, at).filter(|p| p.shape() == place.own.shape())?;
        if predicted.iter().any(|x| !x.is_finite()) {
            return None;
        }
        let (left, was) = (nmse(&predicted, &place.own), nmse(&place.right, &place.own));
        if left > LEFT * was
            || !case.operation.agrees(at, &predicted)
                && left > of_inputs(case, law, at, &predicted).min(AMPLIFIED * was)
        {
            return None;
        }
        let wrong = wrong_elements(place);
        let floor = FLOOR.max(place.tolerance / 100.0);
        gained += 0.5 * wrong as f64 * (was / left.max(floor)).log2().max(0.0);
        beyond += 0.5 * place.own.len() as f64 * (left.max(floor) / floor).log2();
        (worst, before) = (worst.max(left), before.max(was));
    }
    if gained < law.bits + BEYOND || law.bits > SHARE * gained + ALWAYS {
        return None;
    }
    let fitted = vec![0];
    let held_out = (1..case.places.len()).collect();
    let proof = Proof { residual_nmse: worst, before_nmse: before, gained, fitted, held_out };
    // What is left beyond rounding tells a nearly right law from the right one; it cannot tell more than a few numbers' worth.
    Some((law.bits + beyond.min(BEYOND_AT_MOST), proof))
}

/// What rounding of the inputs alone makes of a law's own prediction: a steeper softmax is rounded more than the right one.
fn of_inputs(case: &Case<'_>, law: &Law, at: usize, predicted: &ArrayD<f64>) -> f64 {
    let unit = 0.25 * case.places[at].noise();
    let mut places = case.places.clone();
    let mut state = 1u64;
    for input in &mut places[at].inputs {
        input.mapv_inplace(|x| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            x * (1.0 + if state >> 63 == 0 { unit } else { -unit })
        });
    }
    let Some(right) = case.operation.apply(at, &places[at].inputs).filter(|right| right.shape() == predicted.shape())
    else {
        return 0.0;
    };
    places[at].right = right;
    let moved = Case {
        kind: case.kind,
        axes: case.axes.clone(),
        places,
        tokens: case.tokens.clone(),
        operation: case.operation,
    };
    law.predicted(&moved, at).filter(|p| p.shape() == predicted.shape()).map_or(0.0, |p| 4.0 * nmse(&p, predicted))
}

/// The most that rounding of the inputs may excuse, as a share of the error.
const AMPLIFIED: f64 = 1e-4;

/// NMSE that f32's arithmetic leaves.
const FLOOR: f64 = 1e-14;
const BEYOND_AT_MOST: f64 = 400.0;

/// Squared error as a share of the squared size of `own`.
pub(crate) fn nmse(predicted: &ArrayD<f64>, own: &ArrayD<f64>) -> f64 {
    let (mut error, mut size) = (0.0, 0.0);
    for (p, o) in predicted.iter().zip(own) {
        error += (p - o) * (p - o);
        size += o * o;
    }
    if size > 0.0 {
        error / size
    } else if error > 0.0 {
        f64::INFINITY
    } else {
        0.0
    }
}

/// How many values are further off than rounding.
fn wrong_elements(place: &Place) -> usize {
    identify::wrong(place).iter().filter(|wrong| **wrong).count()
}

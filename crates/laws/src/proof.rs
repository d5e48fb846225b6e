//! Proves which law holds in every place where the operation is wrong.

use std::collections::BTreeSet;

use firstdiff_evidence::{Evidence, choice};
use ndarray::ArrayD;

use crate::case::{Case, Place};
use crate::fit::nmse;
use crate::identify;
use crate::law::{Law, Proof, Status, Support};

/// The law that a wrong operation follows, the plainest of those that are proved, and its proof. What the others say is in `equivalent`.
///
/// It is fitted in one place and holds in all. Where none does, each place may have its own.
pub fn measured(case: &mut Case<'_>) -> Option<(Law, Proof)> {
    if case.places.is_empty() || case.places.iter().any(|place| !is_usable(place)) {
        return None;
    }
    let all: Vec<usize> = (0..case.places.len()).collect();
    for fitted in all.iter().copied().take(FITS) {
        if fitted > 0 && !case.has_time() {
            return None;
        }
        case.fitted = fitted;
        let found = fitted_here(case, &all);
        if found.is_some() {
            return found;
        }
    }
    if all.len() > 1 { of_each(case) } else { None }
}

/// Places that laws are fitted on, one after the other, until one holds in all.
const FITS: usize = 2;
/// Places that may have a law each, at most.
const MOST_PLACES: usize = 8;

/// A law for each place, of one form.
fn of_each(case: &mut Case<'_>) -> Option<(Law, Proof)> {
    if case.places.len() > MOST_PLACES {
        return None;
    }
    let mut all: Vec<(Law, Proof)> = Vec::new();
    for fitted in 0..case.places.len() {
        if !case.has_time() {
            return None;
        }
        case.fitted = fitted;
        let (law, proof) = fitted_here(case, &[fitted])?;
        if all.first().is_some_and(|(first, _)| first.form != law.form) {
            return None;
        }
        all.push((law, proof));
    }
    let are_of_one_step = case.places.iter().all(|place| place.step == case.places[0].step);
    let place = |at: usize| {
        let Place { layer, step, .. } = case.places[at];
        let layer = layer.map_or_else(|| format!("place {at}"), |layer| format!("layer {layer}"));
        match step {
            _ if are_of_one_step => layer,
            0 => format!("{layer} in the prefill"),
            step => format!("{layer} in decode step {step}"),
        }
    };
    let is_one = all.iter().all(|(law, _)| law.words == all[0].0.words);
    let words: Vec<String> = match is_one {
        true if all.iter().all(|(law, _)| law.parameters == all[0].0.parameters) => vec![all[0].0.words.clone()],
        true => vec![format!("{}, another in each place", all[0].0.words)],
        false => {
            let mut each: Vec<(&str, Vec<String>)> = Vec::new();
            for (at, (law, _)) in all.iter().enumerate() {
                match each.iter_mut().find(|(words, _)| *words == law.words) {
                    Some((_, places)) => places.push(place(at)),
                    None => each.push((&law.words, vec![place(at)])),
                }
            }
            each.iter().map(|(words, places)| format!("{}: {words}", places.join(" and "))).collect()
        }
    };
    let of = |f: fn(&Proof) -> f64| all.iter().map(move |(_, proof)| f(proof));
    let proof = Proof {
        residual_nmse: of(|proof| proof.residual_nmse).fold(0.0, f64::max),
        before_nmse: of(|proof| proof.before_nmse).fold(0.0, f64::max),
        gained: of(|proof| proof.gained).sum(),
        fitted: (0..all.len()).collect(),
        held_out: Vec::new(),
    };
    let first = all[0].0.clone();
    let is_law = all.iter().all(|(law, _)| law.status == Status::Measured);
    let support = Support::of_each(all.iter().enumerate().map(|(at, (law, _))| (place(at), &law.support)));
    let bits = all.iter().map(|(law, _)| law.bits).sum();
    let laws: Vec<(Option<usize>, Law)> =
        all.into_iter().zip(&case.places).map(|((law, _), place)| (place.layer, law)).collect();
    // In other steps the law of a layer is the same.
    let of = move |place: &Place, at: usize| {
        let in_layer = laws.iter().find(|(layer, _)| layer.is_some() && *layer == place.layer);
        in_layer.or(laws.get(at)).map(|(_, law)| law.clone())
    };
    let law = Law {
        words: words.join("; "),
        bits,
        status: if is_law { Status::Measured } else { Status::Table },
        equivalent: Vec::new(),
        support,
        predict: std::sync::Arc::new(move |case, at| of(case.places.get(at)?, at)?.predicted(case, at)),
        ..first
    };
    Some((law, proof))
}

/// The plainest law that is fitted on the case's place and proved in these.
fn fitted_here(case: &Case<'_>, places: &[usize]) -> Option<(Law, Proof)> {
    let found = best_of(case, places, identify::laws(case));
    if found.as_ref().is_some_and(|(law, _)| law.status == Status::Measured) || !case.has_time() {
        return found;
    }
    // A law before a table.
    let further = best_of(case, places, identify::further_laws(case));
    further.filter(|(law, _)| law.status == Status::Measured || found.is_none()).or(found)
}

/// The plainest of these laws that is proved.
fn best_of(case: &Case<'_>, places: &[usize], mut laws: Vec<Law>) -> Option<(Law, Proof)> {
    laws.sort_by(|a, b| a.bits.total_cmp(&b.bits));
    let mut proved: Vec<(f64, Law, Proof)> = Vec::new();
    for law in laws {
        // What costs more than what stands already is not needed.
        let is_dear =
            |(score, known, _): &(f64, Law, Proof)| *score + WORTH < law.bits && known.status == Status::Measured;
        if proved.iter().any(is_dear) || proved.len() >= MOST {
            break;
        }
        if let Some((score, proof)) = proved_in(case, &law, places) {
            proved.push((score, law, proof));
        }
    }
    // A law before a table.
    let is_table = |law: &Law| law.status == Status::Table;
    proved.sort_by(|a, b| is_table(&a.1).cmp(&is_table(&b.1)).then(a.0.total_cmp(&b.0)));
    let mut proved = proved.into_iter();
    let (score, mut law, proof) = proved.next()?;
    law.equivalent = proved
        .filter(|(other, l, _)| *other <= score + WORTH && l.status == law.status && !l.is_part_of(&law))
        .map(|(_, other, _)| other.words)
        .collect();
    // What says the same with more beside it is no other law.
    let mut said = BTreeSet::new();
    law.equivalent.retain(|words| !words.contains(&law.words) && said.insert(words.clone()));
    Some((law, proof))
}

/// What a law that was measured elsewhere leaves in the places of a case, the worst NMSE of all; `None` where it does not give one of them.
pub fn holds(law: &Law, case: &Case<'_>) -> Option<f64> {
    if case.places.is_empty() || !case.places.iter().all(is_usable) {
        return None;
    }
    let left = |at: usize| left_at(case, law, at).map(|(left, ..)| left);
    (0..case.places.len()).map(left).try_fold(0.0f64, |worst, left| Some(worst.max(left?)))
}

/// Bits by which a law must be dearer than another before it is left out.
const WORTH: f64 = 12.0;
/// Proved laws that are enough to choose of.
const MOST: usize = 8;
/// Laws that are tried of an operation, about.
const FORMS: usize = 1000;
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
        // What is off by no more than rounding follows no law.
        && identify::wrong(place).iter().any(|wrong| *wrong)
}

/// The score of a law (its price, and what it leaves beyond rounding) and its proof, where it holds in every place.
fn proved_in(case: &Case<'_>, law: &Law, places: &[usize]) -> Option<(f64, Proof)> {
    let (mut evidence, mut worst, mut before, mut beyond) = (Evidence::default(), 0.0f64, 0.0f64, 0.0);
    for &at in places {
        let place = &case.places[at];
        let (left, was, predicted) = left_at(case, law, at)?;
        let floor = FLOOR.max(place.tolerance / 100.0);
        let numbers =
            place.own.iter().zip(&place.right).zip(&predicted).map(|((own, right), law)| [*own, *right, *law]);
        evidence = evidence.and(Evidence::of(numbers, floor.sqrt()));
        beyond += 0.5 * place.own.len() as f64 * (left.max(floor) / floor).log2();
        // Said are shares of what is right.
        let share = energy(&place.own) / energy(&place.right);
        let share = if share.is_normal() { share } else { 1.0 };
        (worst, before) = (worst.max(share * left), before.max(share * was));
    }
    let gained = evidence.bits;
    if !evidence.against(law.bits + choice(FORMS)).is_paid() || law.bits > SHARE * gained + ALWAYS {
        return None;
    }
    let fitted = vec![case.fitted];
    let held_out = places.iter().copied().filter(|&at| at != case.fitted).collect();
    let proof = Proof { residual_nmse: worst, before_nmse: before, gained, fitted, held_out };
    // What is left beyond rounding tells a nearly right law from the right one; it cannot tell more than a few numbers' worth.
    Some((law.bits + beyond.min(BEYOND_AT_MOST), proof))
}

/// The squared size of what is finite.
fn energy(x: &ArrayD<f64>) -> f64 {
    x.iter().filter(|x| x.is_finite()).map(|x| x * x).sum()
}

/// What a law leaves at a place and what the right operation does, NMSE; `None` where it does not give the candidate's values.
fn left_at(case: &Case<'_>, law: &Law, at: usize) -> Option<(f64, f64, ArrayD<f64>)> {
    let place = &case.places[at];
    let predicted = law.predicted(case, at).filter(|p| p.shape() == place.own.shape())?;
    if predicted.iter().any(|x| !x.is_finite()) {
        return None;
    }
    let (left, was) = (nmse(&predicted, &place.own), nmse(&place.right, &place.own));
    let is_rounding =
        case.operation.agrees(at, &predicted) || left <= of_inputs(case, law, at, &predicted).min(AMPLIFIED * was);
    (left <= LEFT * was && is_rounding).then_some((left, was, predicted))
}

/// What rounding of the inputs alone makes of a law's own prediction: a steeper softmax is rounded more than the right one.
fn of_inputs(case: &Case<'_>, law: &Law, at: usize, predicted: &ArrayD<f64>) -> f64 {
    let unit = 0.25 * case.places[at].noise();
    let mut places = vec![Place::default(); case.places.len()];
    places[at] = case.places[at].clone();
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
    let moved = case.at(places, case.operation);
    law.predicted(&moved, at).filter(|p| p.shape() == predicted.shape()).map_or(0.0, |p| 4.0 * nmse(&p, predicted))
}

/// The most that rounding of the inputs may excuse, as a share of the error.
const AMPLIFIED: f64 = 1e-4;

/// NMSE that f32's arithmetic leaves.
const FLOOR: f64 = 1e-14;
const BEYOND_AT_MOST: f64 = 400.0;

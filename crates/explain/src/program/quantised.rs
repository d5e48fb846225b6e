//! Recognises products with weights that are right, but in another arithmetic: all of them off alike and without structure, and nothing else: then weights or
//! activations are rounded to few bits, and no operation is wrong. Which rounding it is, is imitated on what was recorded.

use std::collections::BTreeSet;

use firstdiff_compare::{Outcome, Place, Profile as Judged, Status};
use firstdiff_trace::Site;
use ndarray::Array2;

use crate::explain::finding::OtherArithmetic;
use crate::mistakes::rounding::{Grid, KINDS, Over, Rounding, activation_grids, weight_grids};
use crate::program::products::{HeldProducts, Product};
use crate::replay::reason::Reason;
use crate::replay::replayed::{Replay, Replayed};
use crate::replay::right::compared;
use crate::tolerance::search::{
    NEAR_ROUNDING_LEAVES, NEARLY_ALL, OFF_ALIKE, OWN_FAULT, QUANTISED_NMSE, ROUNDING_LEAVES,
};

/// What a run looks like in which all products with weights are off alike; `None` where they are not. Of products that are off and have
/// structure of their own, the reason is set to that.
pub(crate) fn recognised(run: &mut HeldProducts<'_>, replay: &mut Replay) -> Option<OtherArithmetic> {
    let product = |t: &Replayed| run.is_product(t.report.place) && t.through.is_empty();
    let known = |t: &&Replayed| t.report.status.agrees() || t.report.status == Status::Diverged;
    let (products, others): (Vec<&Replayed>, Vec<&Replayed>) =
        replay.taps.iter().filter(known).partition(|t| product(t));
    let off = |t: &&&Replayed| {
        let nmse = t.report.metrics.and_then(|m| m.nmse());
        t.is_at_fault() && nmse.is_some_and(|n| QUANTISED_NMSE.contains(&n))
    };
    let candidates: Vec<(Place, f64)> =
        products.iter().filter(off).filter_map(|t| Some((t.report.place, t.report.metrics?.nmse()?))).collect();
    let judged = products.len();
    let others: Vec<Place> =
        others.iter().filter(|t| t.report.status == Status::Diverged).map(|t| t.report.place).collect();
    if (candidates.len() as f64) < NEARLY_ALL * judged as f64 || kinds(&candidates) < KINDS {
        return None;
    }
    let mut sizes: Vec<f64> = candidates.iter().map(|c| c.1).collect();
    sizes.sort_by(f64::total_cmp);
    let median = sizes[sizes.len() / 2];
    let mut structured = Vec::new();
    let mut alike = Vec::new();
    for (place, nmse) in candidates {
        let Some(product) = run.product(place) else { continue };
        let [right, own] = [&product.right, &product.own].map(|values| product.shaped(values));
        match compared(place.tap.site, &right, &own, Judged::Ggml, 2.0 * nmse).0.outcome {
            Outcome::Differs(difference) => structured.push((place, difference)),
            _ if nmse <= OFF_ALIKE * median => alike.push((place, nmse)),
            _ => {}
        }
    }
    if (alike.len() as f64) < NEARLY_ALL * judged as f64 || kinds(&alike) < KINDS {
        return None;
    }
    let least = alike.iter().map(|a| a.1).fold(f64::INFINITY, f64::min);
    let most = alike.iter().map(|a| a.1).fold(0.0, f64::max);
    let places: Vec<Place> = alike.iter().map(|a| a.0).collect();
    let mut found = OtherArithmetic {
        judged,
        alone: false,
        nmse: [least, most],
        nearest: None,
        residual_nmse: most,
        share: 1.0,
        places,
    };
    simulate(&mut found, run, &alike);
    for (place, difference) in structured {
        // The rounding that gives the others' numbers may have structure by itself, as where one channel has a large weight.
        if leaves_little_of(&found, run, place) {
            found.places.push(place);
        } else if let Some(tap) = replay.taps.iter_mut().find(|t| t.report.place == place) {
            tap.reason = Some(Reason::DiffersAlone(difference));
        }
    }
    let weights = found.nearest.and_then(|rounding| rounding.weights).filter(|_| found.is_reproduced());
    let mut alone = true;
    for place in others {
        match weights {
            Some(grid) if looks_up_rounded(run, place, grid) => {
                found.places.push(place);
                found.judged += 1;
            }
            _ => alone = false,
        }
    }
    found.alone = alone;
    Some(found)
}

/// Whether a place is the embedding, of a table whose rows are rounded as the weights are.
fn looks_up_rounded(run: &mut HeldProducts<'_>, place: Place, grid: Grid) -> bool {
    let Some([own, right]) = run.looked_up(place).filter(|_| grid.over != Over::Tensor) else { return false };
    let distance = |made: &Array2<f64>| own.iter().zip(made).map(|(own, made)| (own - made).powi(2)).sum::<f64>();
    let mut rounded = right.clone();
    grid.round(&mut rounded);
    distance(&rounded) <= ROUNDING_LEAVES * distance(&right)
}

/// How many kinds of products there are among `places`.
fn kinds(places: &[(Place, f64)]) -> usize {
    places.iter().map(|(place, _)| place.tap.site).collect::<BTreeSet<Site>>().len()
}

/// Products that are looked at for the best rounding, of as many kinds; and weight rounding that is tried with every rounding of activations.
const LOOKED_AT: usize = 4;
const BEST: usize = 6;

/// Whether the rounding that was found takes nearly all of a product's error away.
fn leaves_little_of(found: &OtherArithmetic, run: &mut HeldProducts<'_>, place: Place) -> bool {
    let Some(rounding) = found.nearest else { return false };
    run.product(place).is_some_and(|product| product.left_by(rounding) <= OWN_FAULT)
}

/// Looks for the rounding that comes nearest.
fn simulate(found: &mut OtherArithmetic, run: &mut HeldProducts<'_>, alike: &[(Place, f64)]) {
    let mut sample: Vec<Product> = Vec::new();
    let mut seen = BTreeSet::new();
    for (place, _) in alike.iter().filter(|(place, _)| place.step == 0) {
        if sample.len() < LOOKED_AT && seen.insert(place.tap.site) {
            sample.extend(run.product(*place));
        }
    }
    let left = |rounding: Rounding| -> f64 {
        let logs = sample.iter().map(|product| product.left_by(rounding).max(1e-12).ln());
        logs.sum::<f64>() / sample.len().max(1) as f64
    };
    let mut by_weights: Vec<(f64, Rounding)> = weight_grids()
        .map(|weights| Rounding { weights, activations: None })
        .map(|rounding| (left(rounding), rounding))
        .collect();
    by_weights.sort_by(|a, b| a.0.total_cmp(&b.0));
    let none = by_weights.iter().copied().find(|(_, r)| r.weights.is_none());
    let mut all: Vec<(f64, Rounding)> = by_weights.iter().copied().take(BEST).chain(none).collect();
    for (_, rounding) in all.clone() {
        let with = |activations| Rounding { activations: Some(activations), ..rounding };
        all.extend(activation_grids().map(|grid| (left(with(grid)), with(grid))));
    }
    let Some((_, best)) = all.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)) else { return };
    let mut shares: Vec<(Place, f64, f64)> = Vec::new();
    for (place, nmse) in alike {
        if let Some(product) = run.product(*place) {
            shares.push((*place, product.left_by(best), *nmse));
        }
    }
    let mut sorted: Vec<f64> = shares.iter().map(|(_, share, _)| *share).collect();
    sorted.sort_by(f64::total_cmp);
    let share = sorted.get(sorted.len() / 2).copied().unwrap_or(1.0);
    // Where nearly all come out, what does not has a fault of its own.
    if share <= ROUNDING_LEAVES {
        shares.retain(|(_, share, _)| *share <= OWN_FAULT);
        found.places = shares.iter().map(|(place, ..)| *place).collect();
    }
    let worst = shares.iter().map(|(_, share, nmse)| share * nmse).fold(0.0, f64::max);
    // Written so that a NaN is no likeness.
    if share <= NEAR_ROUNDING_LEAVES && (best.weights.is_some() || best.activations.is_some()) {
        (found.nearest, found.share, found.residual_nmse) = (Some(best), share, worst);
    }
}

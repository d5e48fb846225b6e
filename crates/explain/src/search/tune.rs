//! Which value has a parameter that may have any? Fitted to the candidate's numbers, and brought to a plain number where one is as good.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use firstdiff_trace::Tap;
use rayon::prelude::*;

use crate::minimum::least;
use crate::mistakes::{Edit, STEP, Scale};
use crate::search::candidates::Candidate;
use crate::search::proof::{Residual, Target};
use crate::search::{BeamSearch, Search, Tell, Tried};
use crate::tolerance::search::{PART_LEFT, TUNED_TO_ROUNDING};

/// A set of mistakes to fit.
struct Seed {
    mistakes: Vec<Candidate>,
    /// Where a scan of the first parameter that may have any value was least, on its scale.
    rough: Option<f64>,
}

/// One place of a scan.
struct Trial {
    /// The number of the seed, and which of its mistakes has another value.
    seed: usize,
    at: usize,
    place: f64,
    tuned: Candidate,
}

impl BeamSearch<'_, '_, '_> {
    /// The nearest sets that hold a parameter that may have any value, that value fitted. New candidates go to the end of `self.candidates`.
    pub(super) fn tuned(&mut self, tried: &Tried, most: usize) -> Tried {
        // A large model's are fitted on its first tokens.
        let first = self.screen.as_ref().map(|screen| (screen.search(self.search), &screen.target));
        let (search, target) = first.as_ref().map_or((self.search, self.target), |(search, target)| (search, target));
        let most = match (search.is_large(), &first) {
            (true, Some(_)) => most.min(TUNED),
            (true, None) => LARGE,
            (false, _) => most,
        };
        let mut seeds = self.seeds(tried, most);
        if let Some(screen) = &self.screen {
            seeds = search.scanned(target, seeds, screen.base, self.progress);
        }
        let (done, total) = (AtomicUsize::new(0), seeds.len());
        let fitted: Vec<(Vec<Candidate>, Residual)> = seeds
            .into_par_iter()
            .filter_map(|mut seed| {
                (self.progress)("fitting parameters", done.fetch_add(1, Ordering::Relaxed), total);
                search.tune(target, &mut seed)?;
                let edits: Vec<&Edit> = seed.mistakes.iter().flat_map(|m| &m.edits).collect();
                let left = self.search.residual(self.target, &edits);
                (left.nmse < self.base.nmse).then_some((seed.mistakes, left))
            })
            .collect();
        let mut out = Vec::new();
        for (mistakes, left) in fitted {
            let first = self.candidates.len();
            let count = mistakes.len();
            self.candidates.extend(mistakes);
            out.push(((first..first + count).collect(), left));
        }
        out
    }

    /// The sets to begin with: the nearest in direction and the nearest in all, in turn; one for each form of the mistakes, in the same places.
    fn seeds(&self, tried: &Tried, most: usize) -> Vec<Seed> {
        let candidates = &self.candidates;
        let tunable = |at: usize| candidates[at].edits[0].tunable().is_some();
        let mut order: Vec<&(Vec<usize>, Residual)> =
            tried.iter().filter(|(set, _)| set.iter().any(|&at| tunable(at))).collect();
        // Rounded to 16 bits, one step's numbers are too few for a free number beside another mistake.
        order.retain(|(set, _)| set.len() == 1 || self.target.is_span() || !self.search.run.is_coarse());
        let mut by_angle = order.clone();
        order.sort_by(|a, b| a.1.nmse.total_cmp(&b.1.nmse));
        by_angle.sort_by(|a, b| a.1.angle.total_cmp(&b.1.angle));
        let kind = |set: &[usize]| -> Vec<(String, Vec<Tap>)> {
            let of = |&at: &usize| {
                let edits = &candidates[at].edits;
                (edits[0].form(), edits.iter().map(|e| e.tap).collect())
            };
            set.iter().map(of).collect()
        };
        let mut kinds = HashSet::new();
        let in_turn = by_angle.into_iter().zip(order).flat_map(|(a, b)| [a, b]);
        let begun = in_turn.filter(|(set, left)| left.nmse.is_finite() && kinds.insert(kind(set)));
        begun.take(most).map(|(set, _)| Seed { mistakes: self.mistakes(set), rough: None }).collect()
    }
}

impl Search<'_, '_> {
    /// The parameter of one of a set's mistakes that may have any value, where numbers like these can tell it; and its scale.
    fn free(&self, mistakes: &[Candidate], at: usize) -> Option<(f64, Scale)> {
        let is_told = |&(x, scale): &(f64, Scale)| x != 0.0 && !(scale == Scale::Whole && self.run.is_coarse());
        mistakes[at].edits[0].tunable().filter(is_told)
    }

    /// The seeds that a scan of their first free parameter brings nearest, of those that take a part of the error (`base`) away: the scans of all go
    /// through the matrices side by side.
    fn scanned(&self, target: &Target<'_>, seeds: Vec<Seed>, base: f64, progress: Tell<'_>) -> Vec<Seed> {
        let mut trials = Vec::new();
        for (number, seed) in seeds.iter().enumerate() {
            let free = (0..seed.mistakes.len()).find_map(|at| Some((at, self.free(&seed.mistakes, at)?)));
            let Some((at, (begin, scale))) = free else { continue };
            trials.extend(scale.scan(scale.place(begin.abs())).into_iter().map(|place| {
                let tuned = seed.mistakes[at].tuned(begin.signum() * scale.value(place));
                Trial { seed: number, at, place, tuned }
            }));
        }
        let sets: Vec<Vec<&Edit>> = trials.iter().map(|t| beside(t.at, &t.tuned, &seeds[t.seed].mistakes)).collect();
        let tell = |done| progress("fitting parameters, on the first tokens", done, sets.len());
        let mut best: Vec<Option<(f64, f64)>> = vec![None; seeds.len()];
        for (trial, left) in trials.iter().zip(self.side_by_side(target, &sets, self.effort.seconds, &tell)) {
            let best = &mut best[trial.seed];
            if best.is_none_or(|(least, _)| left.nmse < least) {
                *best = Some((left.nmse, trial.place));
            }
        }
        let scanned = seeds.into_iter().zip(best);
        let mut scanned: Vec<(f64, Seed)> = scanned
            .filter_map(|(seed, best)| best.map(|(nmse, place)| (nmse, Seed { rough: Some(place), ..seed })))
            .filter(|(nmse, _)| *nmse < PART_LEFT * base)
            .collect();
        scanned.sort_by(|a, b| a.0.total_cmp(&b.0));
        scanned.into_iter().take(NEAREST).map(|(_, seed)| seed).collect()
    }

    /// Fits each free parameter of a set in turn: a scan over a factor of 64 either way on its scale, then Brent's search.
    fn tune(&self, target: &Target<'_>, seed: &mut Seed) -> Option<()> {
        let Seed { mistakes, rough: scanned } = seed;
        for at in 0..mistakes.len() {
            let Some((begin, scale)) = self.free(mistakes, at) else { continue };
            // Of a number below 0 the size is fitted.
            let (begin, sign) = (begin.abs(), begin.signum());
            let with = |x: f64, mistakes: &[Candidate]| -> Residual {
                self.residual(target, &beside(at, &mistakes[at].tuned(sign * x), mistakes))
            };
            let f = |place: f64| with(scale.value(place), mistakes).nmse;
            let begin = scale.place(begin);
            let nearest = |places: Vec<f64>| -> Option<f64> {
                let tuned: Vec<Candidate> =
                    places.iter().map(|&place| mistakes[at].tuned(sign * scale.value(place))).collect();
                let left = self.residuals(target, &tuned.iter().map(|t| beside(at, t, mistakes)).collect::<Vec<_>>());
                Some(places.into_iter().zip(left).min_by(|a, b| a.1.nmse.total_cmp(&b.1.nmse))?.0)
            };
            let rough = match scanned.take() {
                Some(rough) => rough,
                None => nearest(scale.scan(begin))?,
            };
            let (rough, width) = match scale.closer_scan(rough) {
                Some((places, width)) => (nearest(places)?, width),
                None => (rough, STEP),
            };
            // Not every function has one valley.
            let nearer = |of: f64, width: f64, to: f64| {
                let found = least(f, of - width, of + width, to);
                if f(found) <= f(of) { found } else { of }
            };
            let near = nearer(rough, width, 1e-2);
            // What a percent more or less does not nearly settle, no digit will.
            if f(near) > PART_LEFT * f(begin) {
                continue;
            }
            let near = scale.near(scale.value(nearer(near, 2e-2, 1e-8)));
            // The plainest number that leaves as little as the best, to rounding.
            let left: Vec<f64> = near.iter().map(|&x| with(x, mistakes).nmse).collect();
            let least = left.iter().copied().fold(f64::INFINITY, f64::min);
            let best = left.iter().position(|&l| l <= 4.0 * least + TUNED_TO_ROUNDING)?;
            mistakes[at] = mistakes[at].tuned(sign * near[best]);
        }
        Some(())
    }
}

/// Sets whose free parameters are fitted.
pub(crate) const TUNED: usize = 16;
/// The same of a large model where all tokens are needed.
const LARGE: usize = 2;
/// Of those whose parameter was scanned on the first tokens, the ones that are fitted to the end.
const NEAREST: usize = 4;

/// The edits of a set with `tuned` in the place of its mistake `at`.
fn beside<'m>(at: usize, tuned: &'m Candidate, mistakes: &'m [Candidate]) -> Vec<&'m Edit> {
    let others = mistakes.iter().enumerate();
    others.flat_map(|(i, m)| if i == at { &tuned.edits } else { &m.edits }).collect()
}

#[cfg(test)]
mod tests {
    use super::least;

    #[test]
    fn the_least_value_is_found_in_few_steps() {
        for centre in [0.3, -0.999, 0.71] {
            let calls = std::cell::Cell::new(0);
            let f = |x: f64| {
                calls.set(calls.get() + 1);
                (x - centre).powi(2) * (1.0 + 0.3 * x) + 1e-13
            };
            let found = least(f, -1.0, 1.0, 1e-6);
            assert!((found - centre).abs() < 1e-6, "{found} for {centre}");
            assert!(calls.get() < 30, "{}", calls.get());
        }
        let kink = least(|x: f64| (x - 0.2).abs(), -1.0, 1.0, 1e-8);
        assert!((kink - 0.2).abs() < 1e-8, "{kink}");
    }
}

//! Which value has a parameter that may have any? Fitted to the candidate's numbers, and brought to a plain number where one is as good.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use firstdiff_trace::Tap;
use rayon::prelude::*;

use crate::minimum::Least;
use crate::mistakes::{Edit, STEP, Scale};
use crate::search::budget::Clock;
use crate::search::candidates::Candidate;
use crate::search::proof::{Residual, Target};
use crate::search::{BeamSearch, On, Search, Tell, Tried};
use crate::tolerance::search::{FIRST_TOKENS_TELL, PART_LEFT, TUNED_TO_ROUNDING};

/// A set of mistakes to fit.
struct Seed {
    mistakes: Vec<Candidate>,
    /// Where a scan of the first parameter that may have any value was least, on its scale.
    rough: Option<f64>,
}

/// Sets whose parameters were fitted, and what each leaves.
type Fitted = Vec<(Seed, Residual)>;

/// One place of a scan.
struct Trial {
    /// The number of the seed, and which of its mistakes has another value.
    seed: usize,
    at: usize,
    place: f64,
    tuned: Candidate,
}

impl BeamSearch<'_, '_, '_> {
    /// Some of the nearest sets that hold a parameter that may have any value, that value fitted. New candidates go to the end of `self.candidates`.
    pub(super) fn tuned(&mut self, tried: &Tried, seeds: Range<usize>, on: On) -> Tried {
        // A large model's are fitted on its first tokens.
        let screen = self.screen.as_ref().filter(|_| on == On::First);
        let first = screen.map(|screen| (screen.search(self.search), &screen.target));
        let (search, target) = first.as_ref().map_or((self.search, self.target), |(search, target)| (search, target));
        let mut seeds = self.seeds(tried, seeds);
        if search.is_large() {
            let base = screen.map_or(self.base.nmse, |screen| screen.base);
            seeds = search.scanned(target, seeds, base, &self.clock, self.progress);
        }
        let (done, total) = (AtomicUsize::new(0), seeds.len());
        let tell = |some: usize| (self.progress)("fitting parameters", done.fetch_add(some, Ordering::Relaxed), total);
        // One evaluation of a large model keeps all threads busy: its fits are carried through the matrices side by side.
        let is_fitted: Vec<bool> = if search.is_large() {
            tell(total);
            search.tune(target, &mut seeds, &self.clock)
        } else {
            let one = |seed: &mut [Seed]| {
                tell(1);
                search.tune(target, seed, &self.clock)
            };
            seeds.par_chunks_mut(1).flat_map_iter(one).collect()
        };
        let seeds = seeds.into_iter().zip(is_fitted).filter_map(|(seed, is)| is.then_some(seed)).collect();
        let may_leave = |seed: &Seed| self.search.may_leave(&edits_of(seed), self.base.nmse);
        let is_near = |(seed, left): &(Seed, Residual)| screen.is_some() && left.nmse <= may_leave(seed);
        let (mut near, far): (Fitted, Fitted) = self.left(seeds).into_iter().partition(is_near);
        if !near.is_empty() {
            let mut seeds: Vec<Seed> = near.into_iter().map(|(seed, _)| seed).collect();
            self.search.tune_finely(self.target, &mut seeds, &self.clock);
            near = self.left(seeds);
        }
        let fitted = near.into_iter().chain(far).filter(|(_, left)| left.nmse < self.base.nmse);
        let fitted: Vec<(Vec<Candidate>, Residual)> = fitted.map(|(seed, left)| (seed.mistakes, left)).collect();
        let mut out = Vec::new();
        for (mistakes, left) in fitted {
            let first = self.candidates.len();
            let count = mistakes.len();
            self.candidates.extend(mistakes);
            out.push(((first..first + count).collect(), left));
        }
        out
    }

    /// What each leaves of all tokens.
    fn left(&self, seeds: Vec<Seed>) -> Fitted {
        let sets: Vec<Vec<&Edit>> = seeds.iter().map(edits_of).collect();
        let left: Vec<Residual> = match self.search.is_large() {
            true => self.search.residuals(self.target, &sets),
            false => sets.par_iter().map(|edits| self.search.residual(self.target, edits)).collect(),
        };
        seeds.into_iter().zip(left).collect()
    }

    /// How many tokens the fits of some seeds run through a model.
    pub(super) fn tokens_of_fits(&self, tried: &Tried, seeds: Range<usize>, on: On) -> usize {
        let target = self.screen.as_ref().filter(|_| on == On::First).map_or(self.target, |screen| &screen.target);
        self.seeds(tried, seeds).len() * target.tokens(self.search.recorded())
    }

    /// The sets to begin with: the nearest in direction and the nearest in all, in turn; one for each form of the mistakes, in the same places.
    fn seeds(&self, tried: &Tried, which: Range<usize>) -> Vec<Seed> {
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
        let begun = begun.skip(which.start).take(which.len());
        begun.map(|(set, _)| Seed { mistakes: self.mistakes(set), rough: None }).collect()
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
    fn scanned(
        &self,
        target: &Target<'_>,
        seeds: Vec<Seed>,
        base: f64,
        clock: &Clock,
        progress: Tell<'_>,
    ) -> Vec<Seed> {
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
        let tell = |done| progress("scanning parameters", done, sets.len());
        let mut tried: Vec<Vec<(f64, f64)>> = vec![Vec::new(); seeds.len()];
        let seconds = self.effort.seconds.min(clock.left());
        for (trial, left) in trials.iter().zip(self.side_by_side(target, &sets, seconds, &tell)) {
            tried[trial.seed].push((trial.place, left.nmse));
        }
        let scanned = seeds.into_iter().zip(tried);
        let mut scanned: Vec<(f64, Seed)> = scanned
            .filter_map(|(seed, tried)| valley(&tried).map(|(place, nmse)| (nmse, Seed { rough: Some(place), ..seed })))
            .filter(|(nmse, _)| *nmse < PART_LEFT * base)
            .collect();
        scanned.sort_by(|a, b| a.0.total_cmp(&b.0));
        scanned.into_iter().take(NEAREST).map(|(_, seed)| seed).collect()
    }

    /// Fits each free parameter of these sets in turn, those of all sets side by side: a scan over a factor of 64 either way on its scale, then Brent's
    /// search. Whether each set has the values that it needs: none where the time ran out.
    fn tune(&self, target: &Target<'_>, seeds: &mut [Seed], clock: &Clock) -> Vec<bool> {
        let mut is_fitted = vec![true; seeds.len()];
        for at in 0..seeds.iter().map(|seed| seed.mistakes.len()).max().unwrap_or(0) {
            let mut fits: Vec<Fit> = Vec::new();
            for (number, seed) in seeds.iter_mut().enumerate().filter(|(_, seed)| at < seed.mistakes.len()) {
                let Some((begin, scale)) = self.free(&seed.mistakes, at).filter(|_| is_fitted[number]) else {
                    continue;
                };
                // Of a number below 0 the size is fitted.
                let (begin, sign) = (scale.place(begin.abs()), begin.signum());
                fits.push(Fit {
                    seed: number,
                    sign,
                    scale,
                    begin,
                    rough: seed.rough.take(),
                    near: begin,
                    width: STEP,
                    left: 0.0,
                });
            }
            let trials = Trials { search: self, target, seeds, at, clock };
            trials.scan(&mut fits);
            trials.narrow(&mut fits, 1e-2);
            // What a percent more or less does not nearly settle, no digit will.
            let begun = trials.left(&fits.iter().map(|fit| (fit, fit.scale.value(fit.begin))).collect::<Vec<_>>());
            let mut begun = begun.into_iter();
            fits.retain(|fit| begun.next().is_some_and(|begun| fit.left <= PART_LEFT * begun));
            fits.iter_mut().for_each(|fit| fit.width = 2e-2);
            trials.narrow(&mut fits, 1e-8);
            let plainest = trials.plainest(&fits);
            for (fit, value) in fits.iter().zip(plainest) {
                match value {
                    Some(value) => {
                        let tuned = seeds[fit.seed].mistakes[at].tuned(fit.sign * value);
                        seeds[fit.seed].mistakes[at] = tuned;
                    }
                    None => is_fitted[fit.seed] = false,
                }
            }
        }
        if clock.left() == 0.0 {
            is_fitted.fill(false);
        }
        is_fitted
    }

    /// Fits once more what was fitted on the first tokens: all of them tell more digits.
    fn tune_finely(&self, target: &Target<'_>, seeds: &mut [Seed], clock: &Clock) {
        for at in 0..seeds.iter().map(|seed| seed.mistakes.len()).max().unwrap_or(0) {
            let mut fits: Vec<Fit> = Vec::new();
            for (number, seed) in seeds.iter().enumerate().filter(|(_, seed)| at < seed.mistakes.len()) {
                let Some((value, scale)) = self.free(&seed.mistakes, at) else { continue };
                let near = scale.place(value.abs());
                let sign = value.signum();
                fits.push(Fit {
                    seed: number,
                    sign,
                    scale,
                    begin: near,
                    rough: None,
                    near,
                    width: FIRST_TOKENS_TELL,
                    left: 0.0,
                });
            }
            let trials = Trials { search: self, target, seeds, at, clock };
            trials.narrow(&mut fits, 1e-8);
            let plainest = trials.plainest(&fits);
            if clock.left() == 0.0 {
                return;
            }
            for (fit, value) in fits.iter().zip(plainest).filter_map(|(fit, value)| Some((fit, value?))) {
                let tuned = seeds[fit.seed].mistakes[at].tuned(fit.sign * value);
                seeds[fit.seed].mistakes[at] = tuned;
            }
        }
    }
}

/// A parameter that may have any value, on its way to the one that leaves least.
struct Fit {
    seed: usize,
    sign: f64,
    scale: Scale,
    /// Where it begins on its scale.
    begin: f64,
    /// Where a scan was least, if there was one.
    rough: Option<f64>,
    /// Where it was least so far, and what it left there.
    near: f64,
    left: f64,
    /// How far from there it is looked for.
    width: f64,
}

/// Values of one parameter of each set, tried side by side.
struct Trials<'t, 'r, 'a, 'b> {
    search: &'t Search<'r, 'a>,
    target: &'t Target<'b>,
    seeds: &'t [Seed],
    /// Which of each set's mistakes has the parameter.
    at: usize,
    clock: &'t Clock,
}

impl Trials<'_, '_, '_, '_> {
    /// What is left where fits have these values; no end of it where the time ran out.
    fn left(&self, asked: &[(&Fit, f64)]) -> Vec<f64> {
        let of = |seed: usize| &self.seeds[seed].mistakes;
        let tuned: Vec<Candidate> =
            asked.iter().map(|(fit, value)| of(fit.seed)[self.at].tuned(fit.sign * value)).collect();
        let sets: Vec<Vec<&Edit>> =
            asked.iter().zip(&tuned).map(|((fit, _), tuned)| beside(self.at, tuned, of(fit.seed))).collect();
        let left = self.search.side_by_side(self.target, &sets, self.clock.left(), &|_| {});
        let mut left: Vec<f64> = left.into_iter().map(|left| left.nmse).collect();
        left.resize(asked.len(), f64::INFINITY);
        left
    }

    /// For each fit the place that leaves least of those it is tried at; `None` of no places.
    fn nearest(&self, fits: &[Fit], places: &[Vec<f64>]) -> Vec<Option<f64>> {
        let asked: Vec<(&Fit, f64)> = fits
            .iter()
            .zip(places)
            .flat_map(|(fit, places)| places.iter().map(move |place| (fit, fit.scale.value(*place))))
            .collect();
        let mut left = self.left(&asked).into_iter();
        let least = |places: &Vec<f64>| {
            let tried: Vec<(f64, f64)> = places.iter().copied().zip(left.by_ref().take(places.len())).collect();
            tried.into_iter().min_by(|a, b| a.1.total_cmp(&b.1)).map(|(place, _)| place)
        };
        places.iter().map(least).collect()
    }

    /// Where each is least in a scan of its scale, and in a closer one.
    fn scan(&self, fits: &mut [Fit]) {
        let places: Vec<Vec<f64>> =
            fits.iter().map(|fit| fit.rough.map_or_else(|| fit.scale.scan(fit.begin), |rough| vec![rough])).collect();
        for (fit, place) in self.nearest_of_several(fits, &places) {
            fits[fit].near = place;
        }
        let closer: Vec<Option<(Vec<f64>, f64)>> = fits.iter().map(|fit| fit.scale.closer_scan(fit.near)).collect();
        let places: Vec<Vec<f64>> = closer
            .iter()
            .zip(&*fits)
            .map(|(closer, fit)| closer.as_ref().map_or_else(|| vec![fit.near], |(places, _)| places.clone()))
            .collect();
        for (fit, place) in self.nearest_of_several(fits, &places) {
            fits[fit].near = place;
        }
        for (fit, closer) in fits.iter_mut().zip(closer) {
            fit.width = closer.map_or(STEP, |(_, width)| width);
        }
    }

    /// The number of each fit and its nearest place; one place alone is not tried.
    fn nearest_of_several(&self, fits: &[Fit], places: &[Vec<f64>]) -> Vec<(usize, f64)> {
        let several: Vec<Vec<f64>> =
            places.iter().map(|places| if places.len() > 1 { places.clone() } else { Vec::new() }).collect();
        let found = self.nearest(fits, &several).into_iter().zip(places);
        found
            .map(|(nearest, places)| nearest.or(places.first().copied()))
            .enumerate()
            .filter_map(|(at, place)| Some((at, place?)))
            .collect()
    }

    /// Brent's search around where each is least so far, to this width. Not every function has one valley: what is no better is not taken.
    fn narrow(&self, fits: &mut [Fit], to: f64) {
        let here = self.left(&fits.iter().map(|fit| (fit, fit.scale.value(fit.near))).collect::<Vec<_>>());
        let mut searches: Vec<Least> =
            fits.iter().map(|fit| Least::new(fit.near - fit.width, fit.near + fit.width, to)).collect();
        loop {
            let asked: Vec<(usize, f64)> =
                searches.iter_mut().enumerate().filter_map(|(at, search)| Some((at, search.next()?))).collect();
            if asked.is_empty() || self.clock.left() == 0.0 {
                break;
            }
            let values: Vec<(&Fit, f64)> =
                asked.iter().map(|&(at, place)| (&fits[at], fits[at].scale.value(place))).collect();
            for ((at, _), left) in asked.iter().zip(self.left(&values)) {
                searches[*at].tell(left);
            }
        }
        for ((fit, search), here) in fits.iter_mut().zip(searches).zip(here) {
            let (place, left) = search.best();
            (fit.near, fit.left) = if left <= here { (place, left) } else { (fit.near, here) };
        }
    }

    /// The plainest number of each that leaves as little as the best, to rounding.
    fn plainest(&self, fits: &[Fit]) -> Vec<Option<f64>> {
        let near: Vec<Vec<f64>> = fits.iter().map(|fit| fit.scale.near(fit.scale.value(fit.near))).collect();
        let asked: Vec<(&Fit, f64)> =
            fits.iter().zip(&near).flat_map(|(fit, near)| near.iter().map(move |value| (fit, *value))).collect();
        let mut left = self.left(&asked).into_iter();
        let plainest = |near: &Vec<f64>| {
            let left: Vec<f64> = left.by_ref().take(near.len()).collect();
            let least = left.iter().copied().fold(f64::INFINITY, f64::min);
            left.iter().position(|&l| l <= 4.0 * least + TUNED_TO_ROUNDING).map(|best| near[best])
        };
        near.iter().map(plainest).collect()
    }
}

/// Sets whose free parameters are fitted.
pub(crate) const TUNED: usize = 16;
/// Of those whose parameter was scanned on the first tokens, the ones that are fitted to the end.
const NEAREST: usize = 4;

/// Where what was tried in order is least, and what is left there; between the places a parabola through the three nearest says: the right value may be
/// near, and each place beside it as far off as no mistake at all.
fn valley(tried: &[(f64, f64)]) -> Option<(f64, f64)> {
    let finite = |at: &usize| tried[*at].1.is_finite();
    let best = (0..tried.len()).filter(finite).min_by(|&a, &b| tried[a].1.total_cmp(&tried[b].1))?;
    let (x, fx) = tried[best];
    let beside = best.checked_sub(1).and_then(|before| Some((tried[before], *tried.get(best + 1)?)));
    let Some(((a, fa), (b, fb))) = beside.filter(|((_, fa), (_, fb))| fa.is_finite() && fb.is_finite()) else {
        return Some((x, fx));
    };
    // Newton's divided differences.
    let (left, right) = ((fx - fa) / (x - a), (fb - fx) / (b - x));
    let curve = (right - left) / (b - a);
    let place = 0.5 * (a + x) - 0.5 * left / curve;
    let least = fa + (place - a) * (left + (place - x) * curve);
    match curve > 0.0 && place > a && place < b {
        true => Some((place, least.clamp(0.0, fx))),
        false => Some((x, fx)),
    }
}

fn edits_of(seed: &Seed) -> Vec<&Edit> {
    seed.mistakes.iter().flat_map(|mistake| &mistake.edits).collect()
}

/// The edits of a set with `tuned` in the place of its mistake `at`.
fn beside<'m>(at: usize, tuned: &'m Candidate, mistakes: &'m [Candidate]) -> Vec<&'m Edit> {
    let others = mistakes.iter().enumerate();
    others.flat_map(|(i, m)| if i == at { &tuned.edits } else { &m.edits }).collect()
}

#[cfg(test)]
mod tests {
    use super::valley;
    use crate::minimum::least;

    #[test]
    fn a_valley_between_two_places_is_seen() {
        for centre in [0.02, 0.11, -0.16] {
            let tried: Vec<(f64, f64)> =
                (-4..=4).map(|i| f64::from(i) * 0.35).map(|x| (x, 3.0 * (x - centre) * (x - centre))).collect();
            let (place, left) = valley(&tried).unwrap();
            assert!((place - centre).abs() < 1e-12 && left < 1e-12, "{place} {left} for {centre}");
        }
        assert_eq!(valley(&[(0.0, 2.0), (1.0, 1.0)]), Some((1.0, 1.0)));
        assert_eq!(valley(&[(0.0, f64::INFINITY), (1.0, 1.0), (2.0, 3.0)]), Some((1.0, 1.0)));
        assert_eq!(valley(&[(0.0, f64::NAN)]), None);
    }

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

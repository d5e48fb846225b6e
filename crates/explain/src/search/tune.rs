//! Which value has a parameter that may have any? Fitted to the candidate's numbers, and brought to a plain number where one is as good.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use firstdiff_trace::Tap;
use rayon::prelude::*;

use crate::minimum::least;
use crate::mistakes::{Edit, STEP, Scale};
use crate::search::candidates::Candidate;
use crate::search::proof::{Residual, Target};
use crate::search::{Search, Tell};
use crate::tolerance::search::TUNED_TO_ROUNDING;

impl Search<'_, '_> {
    /// The nearest sets that hold a parameter that may have any value, that value fitted. New candidates go to the end of `candidates`.
    pub(crate) fn tuned(
        &self,
        target: &Target<'_>,
        candidates: &mut Vec<Candidate>,
        tried: &[(Vec<usize>, Residual)],
        base: Residual,
        most: usize,
        progress: Tell<'_>,
    ) -> Vec<(Vec<usize>, Residual)> {
        let tunable = |at: usize| candidates[at].edits[0].tunable().is_some();
        let mut order: Vec<&(Vec<usize>, Residual)> =
            tried.iter().filter(|(set, _)| set.iter().any(|&at| tunable(at))).collect();
        // Rounded to 16 bits, one step's numbers are too few for a free number beside another mistake.
        order.retain(|(set, _)| set.len() == 1 || target.is_span() || !self.run.is_coarse());
        // The nearest in direction and the nearest in all, in turn.
        let mut by_angle = order.clone();
        order.sort_by(|a, b| a.1.nmse.total_cmp(&b.1.nmse));
        by_angle.sort_by(|a, b| a.1.angle.total_cmp(&b.1.angle));
        let order: Vec<_> = by_angle.into_iter().zip(order).flat_map(|(a, b)| [a, b]).collect();
        // One beginning for each form of the mistakes, in the same places.
        let kind = |set: &[usize]| -> Vec<(String, Vec<Tap>)> {
            let of = |&at: &usize| {
                let edits = &candidates[at].edits;
                (edits[0].form(), edits.iter().map(|e| e.tap).collect())
            };
            set.iter().map(of).collect()
        };
        let mut kinds = HashSet::new();
        let seeds: Vec<Vec<usize>> = order
            .into_iter()
            .filter(|(set, left)| left.nmse.is_finite() && kinds.insert(kind(set)))
            .map(|(set, _)| set.clone())
            .take(if self.is_large() { 2 } else { most })
            .collect();
        let (done, total) = (AtomicUsize::new(0), seeds.len());
        let fitted: Vec<(Vec<Candidate>, Residual)> = seeds
            .into_par_iter()
            .filter_map(|set| {
                progress("fitting parameters", done.fetch_add(1, Ordering::Relaxed), total);
                let mut mistakes: Vec<Candidate> = set.iter().map(|&at| candidates[at].clone()).collect();
                let left = self.tune(target, &mut mistakes)?;
                (left.nmse < base.nmse).then_some((mistakes, left))
            })
            .collect();
        let mut out = Vec::new();
        for (mistakes, left) in fitted {
            let first = candidates.len();
            let count = mistakes.len();
            candidates.extend(mistakes);
            out.push(((first..first + count).collect(), left));
        }
        out
    }

    /// Fits each free parameter of a set in turn: a scan over a factor of 64 either way on its scale, then Brent's search.
    fn tune(&self, target: &Target<'_>, mistakes: &mut [Candidate]) -> Option<Residual> {
        for at in 0..mistakes.len() {
            let is_told = |&(x, scale): &(f64, Scale)| x != 0.0 && !(scale == Scale::Whole && self.run.is_coarse());
            let Some((begin, scale)) = mistakes[at].edits[0].tunable().filter(is_told) else { continue };
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
            let rough = nearest(scale.scan(begin))?;
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
            if f(near) > 0.5 * f(begin) {
                continue;
            }
            let near = scale.near(scale.value(nearer(near, 2e-2, 1e-8)));
            // The plainest number that leaves as little as the best, to rounding.
            let left: Vec<f64> = near.iter().map(|&x| with(x, mistakes).nmse).collect();
            let least = left.iter().copied().fold(f64::INFINITY, f64::min);
            let best = left.iter().position(|&l| l <= 4.0 * least + TUNED_TO_ROUNDING)?;
            mistakes[at] = mistakes[at].tuned(sign * near[best]);
        }
        let edits: Vec<&Edit> = mistakes.iter().flat_map(|m| &m.edits).collect();
        Some(self.residual(target, &edits))
    }
}

/// Sets whose free parameters are fitted.
pub(crate) const TUNED: usize = 16;

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

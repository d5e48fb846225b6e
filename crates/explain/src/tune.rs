//! Which value has a parameter that may have any? Fitted to the candidate's numbers, and brought to a plain number where one is as good.

use std::collections::HashSet;

use firstdiff_trace::Tap;
use rayon::prelude::*;

use crate::candidates::Candidate;
use crate::mistakes::{Edit, snapped};
use crate::proof::{Left, Target};
use crate::search::Search;

impl Search<'_, '_> {
    /// The nearest sets that hold a parameter that may have any value, that value fitted. New candidates go to the end of `candidates`.
    pub(crate) fn tuned(
        &self,
        target: &Target<'_>,
        candidates: &mut Vec<Candidate>,
        tried: &[(Vec<usize>, Left)],
        base: Left,
        most: usize,
    ) -> Vec<(Vec<usize>, Left)> {
        let tunable = |at: usize| candidates[at].edits[0].tunable().is_some();
        let mut order: Vec<&(Vec<usize>, Left)> =
            tried.iter().filter(|(set, _)| set.iter().any(|&at| tunable(at))).collect();
        // The nearest in direction and the nearest in all, in turn.
        let mut by_angle = order.clone();
        order.sort_by(|a, b| a.1.nmse.total_cmp(&b.1.nmse));
        by_angle.sort_by(|a, b| a.1.angle.total_cmp(&b.1.angle));
        let order: Vec<_> = by_angle.into_iter().zip(order).flat_map(|(a, b)| [a, b]).collect();
        // One beginning for each set of ids and sites.
        let kind = |set: &[usize]| -> Vec<(&'static str, Vec<Tap>)> {
            let of = |&at: &usize| (candidates[at].id(), candidates[at].edits.iter().map(|e| e.tap).collect());
            set.iter().map(of).collect()
        };
        let mut kinds = HashSet::new();
        let seeds: Vec<Vec<usize>> = order
            .into_iter()
            .filter(|(set, left)| left.nmse.is_finite() && kinds.insert(kind(set)))
            .map(|(set, _)| set.clone())
            .take(if self.is_large() { 2 } else { most })
            .collect();
        let fitted: Vec<(Vec<Candidate>, Left)> = seeds
            .into_par_iter()
            .filter_map(|set| {
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

    /// Fits each free parameter of a set in turn: a scan over a factor of 8 either way, then golden sections.
    fn tune(&self, target: &Target<'_>, mistakes: &mut [Candidate]) -> Option<Left> {
        for at in 0..mistakes.len() {
            let Some((begin, whole)) =
                mistakes[at].edits[0].tunable().filter(|(x, whole)| *x > 0.0 && !(*whole && self.run.is_coarse()))
            else {
                continue;
            };
            let with = |x: f64, mistakes: &[Candidate]| -> Left {
                let tuned = mistakes[at].tuned(x);
                let others = mistakes.iter().enumerate();
                let edits: Vec<&Edit> =
                    others.flat_map(|(i, m)| if i == at { &tuned.edits } else { &m.edits }).collect();
                self.residual(target, &edits)
            };
            let f = |log: f64| with(log.exp(), mistakes).nmse;
            let step = 8f64.ln() / 6.0;
            let scan = (-6..=6).map(|i| begin.ln() + f64::from(i) * step);
            let (rough, _) = scan.map(|log| (log, f(log))).min_by(|a, b| a.1.total_cmp(&b.1))?;
            let near = golden(f, rough - step, rough + step, 1e-2);
            // What a percent more or less does not nearly settle, no digit will.
            if f(near) > 0.5 * f(begin.ln()) {
                continue;
            }
            let fine = golden(f, near - 2e-2, near + 2e-2, 1e-8).exp();
            let near = if whole {
                vec![fine.round()]
            } else {
                vec![snapped(fine, 1e-3), format!("{fine:.5e}").parse().unwrap_or(fine), fine]
            };
            // The plainest number that leaves as little as the best, to rounding.
            let left: Vec<f64> = near.iter().map(|&x| with(x, mistakes).nmse).collect();
            let least = left.iter().copied().fold(f64::INFINITY, f64::min);
            let best = left.iter().position(|&l| l <= 4.0 * least + 1e-13)?;
            mistakes[at] = mistakes[at].tuned(near[best]);
        }
        let edits: Vec<&Edit> = mistakes.iter().flat_map(|m| &m.edits).collect();
        Some(self.residual(target, &edits))
    }
}

/// Sets whose free parameters are fitted.
pub(crate) const TUNED: usize = 16;

/// Where a function of one valley is least.
pub(crate) fn golden(f: impl Fn(f64) -> f64, mut low: f64, mut high: f64, width: f64) -> f64 {
    const RATIO: f64 = 0.618_033_988_749_894_9;
    let (mut a, mut b) = (high - RATIO * (high - low), low + RATIO * (high - low));
    let (mut fa, mut fb) = (f(a), f(b));
    while high - low > width {
        if fa < fb {
            (high, b, fb) = (b, a, fa);
            a = high - RATIO * (high - low);
            fa = f(a);
        } else {
            (low, a, fa) = (a, b, fb);
            b = low + RATIO * (high - low);
            fb = f(b);
        }
    }
    0.5 * (low + high)
}

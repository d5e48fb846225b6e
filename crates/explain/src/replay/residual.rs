//! Finds what was added to the residual stream: the candidate's sum fitted as a·x + b·branch + c·norm(x).

use firstdiff_compare::metrics::Squares;
use firstdiff_trace::{Site, Tap};
use ndarray::{ArrayD, ArrayViewD};

use crate::tolerance::replay::{SINGULAR, SUM_IS};

/// A residual add, fitted.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// How often the stream before it is in the sum: 1 where all is well.
    pub stream: f64,
    /// How often the branch is: 1 where all is well.
    pub branch: f64,
    /// How often the normed stream is: 0 where all is well. `None` where it was not at hand.
    pub norm: Option<f64>,
    /// The taps that were added, and how often.
    pub terms: Vec<(Tap, f64)>,
    /// NMSE of what the fit leaves.
    pub residual_nmse: f64,
}

impl Fit {
    /// The fit in the names of its taps: `2*h0 + 0*layers.0.attn_out`.
    pub fn in_words(&self) -> String {
        let term = |(tap, factor): &(Tap, f64)| format!("{}*{tap}", coefficient(*factor));
        self.terms.iter().map(term).collect::<Vec<_>>().join(" + ")
    }
}

/// A wrong sum of the tap `own` fitted over the stream and the branch, and the normed stream where it is at hand; where that is not it, over any two of those
/// and of the other taps of the stream. `value` gives what the candidate holds of a tap.
pub(crate) fn added(
    own: Tap,
    [stream, branch]: [Tap; 2],
    sum: &ArrayD<f64>,
    value: &dyn Fn(Tap) -> Option<ArrayD<f64>>,
) -> Option<Fit> {
    let norm = if own.site == Site::HAttn { Site::AttnNorm } else { Site::FfnNorm };
    let of_layer = |site: Site| own.layer.map(|layer| Tap::layer(layer, site));
    let before = own.layer.filter(|layer| *layer > 0).map(|layer| Tap::layer(layer - 1, Site::H));
    let others = [Some(Tap { layer: None, site: Site::H0 }), before, of_layer(Site::AttnOut), of_layer(Site::HAttn)];
    let mut terms: Vec<(Tap, ArrayD<f64>)> = Vec::new();
    for tap in [Some(stream), Some(branch), of_layer(norm)].into_iter().chain(others).flatten() {
        if terms.iter().any(|(known, _)| *known == tap) || tap == own {
            continue;
        }
        match value(tap).filter(|value| value.shape() == sum.shape()) {
            Some(value) => terms.push((tap, value)),
            None if tap == stream || tap == branch => return None,
            None => {}
        }
    }
    best_fit(sum.view(), &terms, of_layer(norm))
}

/// Least squares of `sum` over the first of `terms`, stream, branch and `norm`; or, where that is not it, over the two of all that are.
fn best_fit(sum: ArrayViewD<'_, f64>, terms: &[(Tap, ArrayD<f64>)], norm: Option<Tap>) -> Option<Fit> {
    let (stream, branch) = (terms.first()?.0, terms.get(1)?.0);
    let over = |chosen: &[&(Tap, ArrayD<f64>)]| {
        let views: Vec<_> = chosen.iter().map(|(_, values)| values.view()).collect();
        let (factors, residual_nmse) = fit(sum.view(), &views)?;
        let terms: Vec<(Tap, f64)> = chosen.iter().map(|(tap, _)| *tap).zip(factors).collect();
        let of = |tap: Tap| terms.iter().find(|(known, _)| *known == tap).map(|(_, factor)| *factor);
        let (x, y, z) = (of(stream), of(branch), norm.and_then(of));
        Some(Fit { stream: x.unwrap_or(0.0), branch: y.unwrap_or(0.0), norm: z, terms, residual_nmse })
    };
    let known: Vec<_> =
        terms.iter().filter(|(tap, _)| [Some(stream), Some(branch), norm].contains(&Some(*tap))).collect();
    let first = over(&known).or_else(|| over(&known[..2]));
    if first.as_ref().is_some_and(|fit| fit.residual_nmse < SUM_IS) {
        return first;
    }
    let pairs = (0..terms.len()).flat_map(|i| (i + 1..terms.len()).map(move |j| (i, j)));
    let best = pairs
        .filter_map(|(i, j)| over(&[&terms[i], &terms[j]]))
        .min_by(|a, b| a.residual_nmse.total_cmp(&b.residual_nmse));
    best.filter(|fit| fit.residual_nmse < SUM_IS).or(first)
}

/// Five digits, less where they are zeros.
fn coefficient(value: f64) -> String {
    let rounded = (value * 1e5).round() / 1e5;
    format!("{}", if rounded == 0.0 { 0.0 } else { rounded })
}

/// Least squares of `sum` over the others, which have its shape: their factors, and the NMSE that is left.
///
/// `None` where the others are too alike to be told apart, or not finite.
fn fit(sum: ArrayViewD<'_, f64>, terms: &[ArrayViewD<'_, f64>]) -> Option<(Vec<f64>, f64)> {
    let inner = |a: &ArrayViewD<'_, f64>, b: &ArrayViewD<'_, f64>| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    let n = terms.len();
    // Each term brought to length 1, so that a small one counts as much as a large one.
    let norms: Vec<f64> = terms.iter().map(|t| inner(t, t).sqrt()).collect();
    if norms.iter().any(|n| !(n.is_finite() && *n > 0.0)) {
        return None;
    }
    let mut system: Vec<Vec<f64>> = (0..n)
        .map(|i| {
            let mut row: Vec<f64> = (0..n).map(|j| inner(&terms[i], &terms[j]) / norms[i] / norms[j]).collect();
            row.push(inner(&terms[i], &sum) / norms[i]);
            row
        })
        .collect();
    let solution = solve(&mut system)?;
    let factors: Vec<f64> = solution.iter().zip(&norms).map(|(x, n)| x / n).collect();
    let mut squares = Squares::default();
    let mut iters: Vec<_> = terms.iter().map(|t| t.iter()).collect();
    for y in &sum {
        let fitted: f64 = iters.iter_mut().zip(&factors).map(|(t, f)| t.next().map_or(0.0, |x| x * f)).sum();
        squares.add(*y, fitted);
    }
    Some((factors, squares.nmse()))
}

/// Gauss with pivots; `None` when the equations do not tell the unknowns apart.
fn solve(system: &mut [Vec<f64>]) -> Option<Vec<f64>> {
    let n = system.len();
    for at in 0..n {
        let pivot = (at..n).max_by(|&a, &b| system[a][at].abs().total_cmp(&system[b][at].abs()))?;
        system.swap(at, pivot);
        if system[at][at].abs() < SINGULAR {
            return None;
        }
        for row in 0..n {
            if row != at {
                let factor = system[row][at] / system[at][at];
                let pivot = system[at].clone();
                system[row].iter_mut().zip(pivot).skip(at).for_each(|(x, p)| *x -= factor * p);
            }
        }
    }
    let solution: Vec<f64> = (0..n).map(|i| system[i][n] / system[i][i]).collect();
    solution.iter().all(|x| x.is_finite()).then_some(solution)
}

#[cfg(test)]
mod tests {
    use ndarray::{Array, IxDyn};

    use super::*;

    #[test]
    fn coefficients_come_out() {
        let noise = |seed: u64| {
            let mut state = seed;
            Array::from_shape_simple_fn(IxDyn(&[5, 8]), move || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as f64 / (1u64 << 30) as f64 - 1.0
            })
        };
        let (x, branch, norm) = (noise(1), noise(2) * 1e-6, noise(3));
        let sum = &x * 2.0 + &branch * 3.0 - &norm;
        let (h0, out, norm_tap) =
            (Tap { layer: None, site: Site::H0 }, Tap::layer(0, Site::AttnOut), Tap::layer(0, Site::AttnNorm));
        let terms = [(h0, x.clone()), (out, branch.clone()), (norm_tap, norm)];
        let fit = best_fit(sum.view(), &terms, Some(norm_tap)).unwrap();
        assert!((fit.stream - 2.0).abs() < 1e-9 && (fit.branch - 3.0).abs() < 1e-6);
        assert!((fit.norm.unwrap() + 1.0).abs() < 1e-9 && fit.residual_nmse < 1e-24);
        assert_eq!(fit.in_words(), "2*h0 + 3*layers.0.attn_out + -1*layers.0.attn_norm");
        // A sum that leaves the stream out, and takes another tap for it.
        let other = Tap::layer(0, Site::HAttn);
        let terms = [(h0, x.clone()), (out, branch.clone()), (other, noise(5))];
        let sum = &branch + &terms[2].1;
        let fit = best_fit(sum.view(), &terms, None).unwrap();
        assert_eq!(fit.in_words(), "1*layers.0.attn_out + 1*layers.0.h_attn");
        assert_eq!(super::fit(sum.view(), &[x.view(), x.view()]), None);
    }
}

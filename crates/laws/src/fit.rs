//! Coefficients by least squares, with their standard errors.

use ndarray::{Array1, Array2, ArrayD};

use crate::number::Measured;
use crate::solve::Cholesky;

/// Errors of rounding's size that a fit may leave before the proof, and within which two values are the same.
pub(crate) const ROOM: f64 = 5.0;

/// Coefficients of some columns.
#[derive(Clone, Debug)]
pub(crate) struct Fit {
    pub(crate) coefficients: Vec<Measured>,
    /// What is left, as a share of the size of what was fitted.
    pub(crate) left: f64,
}

/// Least squares of `wanted` over `columns`, by the normal equations of columns of unit length. `noise` is the size of the error that each wanted value
/// has by rounding alone, as a share of their root mean square: no coefficient is surer than that lets it be. `None` where the columns do not tell
/// their coefficients apart.
pub(crate) fn least_squares(columns: &[&[f64]], wanted: &[f64], noise: f64) -> Option<Fit> {
    let (n, k) = (wanted.len(), columns.len());
    if n <= k || columns.iter().any(|column| column.len() != n) {
        return None;
    }
    let lengths: Vec<f64> = columns.iter().map(|column| dot(column, column).sqrt()).collect();
    let size = dot(wanted, wanted).sqrt();
    if lengths.iter().any(|&length| length <= 0.0 || !length.is_finite()) || size <= 0.0 || !size.is_finite() {
        return None;
    }
    let gram = Array2::from_shape_fn((k, k), |(a, b)| dot(columns[a], columns[b]) / (lengths[a] * lengths[b]));
    let right = Array1::from_shape_fn(k, |a| dot(columns[a], wanted) / lengths[a]);
    let inverse = Cholesky::decompose(&gram)?.inverse();
    // Columns that are nearly the same cannot be told apart.
    if inverse.diag().iter().any(|&x| !x.is_finite() || x > MOST_ALIKE) {
        return None;
    }
    let mut fitted = inverse.dot(&right);
    // Once more on what is left: the normal equations square the condition.
    for _ in 0..2 {
        let rest = residual(columns, &lengths, &fitted.to_vec(), wanted);
        let again = Array1::from_shape_fn(k, |a| dot(columns[a], &rest) / lengths[a]);
        fitted += &inverse.dot(&again);
    }
    let rest = residual(columns, &lengths, &fitted.to_vec(), wanted);
    let left = dot(&rest, &rest).sqrt();
    let each = (left / ((n - k) as f64).sqrt()).max(noise * size / (n as f64).sqrt());
    let coefficient = |a: usize| Measured::new(fitted[a] / lengths[a], each * inverse[[a, a]].sqrt() / lengths[a]);
    Some(Fit { coefficients: (0..k).map(coefficient).collect(), left: left / size })
}

/// Least squares of measured numbers over `columns`, each number as sure as its standard error says.
pub(crate) fn weighed(columns: &[&[f64]], wanted: &[Measured]) -> Option<Fit> {
    let weight: Vec<f64> = wanted.iter().map(|m| 1.0 / m.error.max(1e-300)).collect();
    let by = |x: &[f64]| x.iter().zip(&weight).map(|(x, w)| x * w).collect::<Vec<f64>>();
    let columns: Vec<Vec<f64>> = columns.iter().map(|column| by(column)).collect();
    let views: Vec<&[f64]> = columns.iter().map(Vec::as_slice).collect();
    let wanted = by(&wanted.iter().map(|m| m.value).collect::<Vec<_>>());
    // The weighed numbers have a standard error of one each.
    let size = (dot(&wanted, &wanted) / wanted.len() as f64).sqrt();
    least_squares(&views, &wanted, 1.0 / size.max(1e-300))
}

/// A diagonal entry of the inverse Gram matrix of unit columns above which they are too much alike.
const MOST_ALIKE: f64 = 1e10;

fn residual(columns: &[&[f64]], lengths: &[f64], fitted: &[f64], wanted: &[f64]) -> Vec<f64> {
    let mut rest = wanted.to_vec();
    for ((column, length), by) in columns.iter().zip(lengths).zip(fitted) {
        let by = by / length;
        rest.iter_mut().zip(*column).for_each(|(rest, x)| *rest -= by * x);
    }
    rest
}

/// The factor that brings `right` nearest to `own`, and what it leaves as a share of `own`. Unknown where `right` is nothing.
pub(crate) fn factor(right: &[f64], own: &[f64], noise: f64) -> Fit {
    let (square, size) = (dot(right, right), dot(own, own).sqrt());
    if square <= 0.0 || right.is_empty() {
        let left = if size > 0.0 { 1.0 } else { 0.0 };
        return Fit { coefficients: vec![Measured::UNKNOWN], left };
    }
    let by = dot(right, own) / square;
    let rest: f64 = right.iter().zip(own).map(|(right, own)| (own - by * right).powi(2)).sum::<f64>().sqrt();
    let freedom = (right.len().max(2) - 1) as f64;
    let size = size.max(f64::MIN_POSITIVE);
    let each = (rest / freedom.sqrt()).max(noise * size / (right.len() as f64).sqrt());
    Fit { coefficients: vec![Measured::new(by, each / square.sqrt())], left: rest / size.max(by.abs() * square.sqrt()) }
}

/// The number in a range that leaves least: a coarse grid, then golden section. `by_size`: the grid's steps are factors.
pub(crate) fn search(low: f64, high: f64, steps: usize, by_size: bool, left: impl Fn(f64) -> f64) -> (f64, f64) {
    searched(low, high, steps, by_size, &left)
}

fn searched(low: f64, high: f64, steps: usize, by_size: bool, left: &dyn Fn(f64) -> f64) -> (f64, f64) {
    let at = |step: f64| {
        let share = step / (steps - 1) as f64;
        if by_size { low * (high / low).powf(share) } else { low + (high - low) * share }
    };
    let score = |value: f64| Some(left(value)).filter(|x| x.is_finite()).unwrap_or(f64::INFINITY);
    let grid: Vec<f64> = (0..steps).map(|step| score(at(step as f64))).collect();
    let best = (0..steps).min_by(|&a, &b| grid[a].total_cmp(&grid[b])).unwrap_or(0);
    let (mut a, mut b) = (at(best.saturating_sub(1) as f64), at((best + 1).min(steps - 1) as f64));
    let golden = (5f64.sqrt() - 1.0) / 2.0;
    let (mut c, mut d) = (b - golden * (b - a), a + golden * (b - a));
    let (mut at_c, mut at_d) = (score(c), score(d));
    for _ in 0..60 {
        if at_c < at_d {
            (b, d, at_d) = (d, c, at_c);
            c = b - golden * (b - a);
            at_c = score(c);
        } else {
            (a, c, at_c) = (c, d, at_d);
            d = a + golden * (b - a);
            at_d = score(d);
        }
    }
    [(at(best as f64), grid[best]), (c, at_c), (d, at_d)]
        .into_iter()
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .unwrap_or((low, f64::INFINITY))
}

pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coefficients_carry_their_error() {
        let x: Vec<f64> = (0..100).map(|i| f64::from(i).sin()).collect();
        let y: Vec<f64> = (0..100).map(|i| (f64::from(i) * 1.7).cos()).collect();
        let wanted: Vec<f64> = x.iter().zip(&y).map(|(x, y)| 2.0 * x - 0.5 * y).collect();
        let fit = least_squares(&[&x, &y], &wanted, 1e-7).unwrap();
        assert!(fit.left < 1e-14);
        assert!(fit.coefficients[0].may_be(2.0) && fit.coefficients[1].may_be(-0.5));
        assert!(fit.coefficients[0].error < 1e-6 && fit.coefficients[0].error > 1e-9);
        assert!(least_squares(&[&x, &x], &wanted, 1e-7).is_none());
    }

    #[test]
    fn a_search_finds_the_least() {
        let (at, left) = search(0.01, 100.0, 41, true, |x| (x - 1.35).powi(2));
        assert!((at - 1.35).abs() < 1e-6 && left < 1e-12);
    }
}

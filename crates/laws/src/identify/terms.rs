//! Sums that any output may be: the right output, and what is added to it.

use ndarray::{ArrayD, Axis as Dimension};

use crate::case::{Case, Kind};
use crate::identify::operands::called;
use crate::identify::sums::{moved, of_two};

/// What an output may be a sum of.
pub(crate) fn terms(case: &Case<'_>, at: usize) -> Vec<(String, ArrayD<f64>)> {
    let place = &case.places[at];
    let right = &place.right;
    let mut all: Vec<(String, ArrayD<f64>)> = vec![("the right output".into(), right.clone())];
    let count = place.inputs.len();
    let mut alike: Vec<(String, ArrayD<f64>)> = Vec::new();
    if case.kind != Kind::Embedding {
        for (operand, input) in place.inputs.iter().enumerate() {
            let name = called(case.kind, count, operand);
            alike.extend(fitted(name, input, right));
        }
    }
    let near: Vec<(String, ArrayD<f64>)> = place.around.iter().flat_map(|(name, x)| fitted(name, x, right)).collect();
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    for (name, x) in alike.clone() {
        all.push((format!("the right output times {name}"), right * &x));
        all.extend(moved(&name, &x));
    }
    all.push(("the square of the right output".into(), right.mapv(|x| x * x)));
    all.push(("the cube of the right output".into(), right.mapv(|x| x * x * x)));
    all.push(("the size of the right output".into(), right.mapv(f64::abs)));
    all.push(("the right output times its sigmoid".into(), right.mapv(|x| x * sigmoid(x))));
    if let [(a, x), (b, y), ..] = &alike[..]
        && x.shape() == y.shape()
    {
        all.extend(of_two(a, x, b, y));
    }
    if case.kind == Kind::Embedding {
        all.extend(of_positions(case, at));
    }
    if case.kind == Kind::Gate {
        all.push(("one".into(), ArrayD::ones(right.raw_dim())));
    }
    all.extend(alike);
    all.extend(near);
    for (name, vector) in case.operation.vectors(at, *right.shape().last().unwrap_or(&0)) {
        all.extend(ndarray::Array1::from(vector).broadcast(right.raw_dim()).map(|x| (name, x.to_owned())));
    }
    all.retain(|(_, term)| term.shape() == right.shape() && term.iter().all(|x| x.is_finite()));
    all
}

/// A tensor as one of the output's shape: as it is, cut, or repeated.
fn fitted(name: &str, x: &ArrayD<f64>, right: &ArrayD<f64>) -> Vec<(String, ArrayD<f64>)> {
    if x.len() == right.len() {
        return x.to_shape(right.raw_dim()).map(|x| (name.to_owned(), x.into_owned())).into_iter().collect();
    }
    let rows = right.shape().first().copied().unwrap_or(0);
    if rows == 0 || x.shape().first() != Some(&rows) {
        return Vec::new();
    }
    let (has, wanted) = (x.len() / rows, right.len() / rows);
    let Ok(flat) = x.to_shape((rows, has)) else { return Vec::new() };
    let pick = |of: &dyn Fn(usize) -> usize| {
        let picked = flat.select(Dimension(1), &(0..wanted).map(of).collect::<Vec<_>>());
        picked.to_shape(right.raw_dim()).map(|x| x.into_owned()).ok()
    };
    let mut all = Vec::new();
    if has > wanted {
        all.extend(pick(&|i| i).map(|x| (format!("the first {wanted} channels of {name}"), x)));
        all.extend(pick(&|i| has - wanted + i).map(|x| (format!("the last {wanted} channels of {name}"), x)));
    } else if has > 0 && wanted.is_multiple_of(has) {
        all.extend(pick(&|i| i % has).map(|x| (format!("{name}, repeated"), x)));
    }
    all
}

/// What an embedding may have added by position.
fn of_positions(case: &Case<'_>, at: usize) -> Vec<(String, ArrayD<f64>)> {
    let place = &case.places[at];
    let Some(ids) = place.inputs.first() else { return Vec::new() };
    let n = ids.len();
    let of = |f: &dyn Fn(usize) -> f64| {
        let other = ndarray::Array1::from_iter((0..n).map(f));
        case.operation.apply(at, &[other.to_shape(ids.raw_dim()).ok()?.into_owned()])
    };
    let id = |t: usize| ids.iter().nth(t).copied().unwrap_or(0.0);
    let mut all: Vec<(String, Option<ArrayD<f64>>)> = vec![
        ("the row of the position".into(), of(&|t| t as f64)),
        ("the row of the position, from 1".into(), of(&|t| (t + 1) as f64)),
        ("the row of token 0".into(), of(&|_| 0.0)),
        ("the row of token 1".into(), of(&|_| 1.0)),
        ("the row of token 2".into(), of(&|_| 2.0)),
        ("the row of the token before".into(), of(&|t| id(t.saturating_sub(1)))),
        ("the row of the next token".into(), of(&|t| id((t + 1).min(n - 1)))),
        ("the row of the first token".into(), of(&|_| id(0))),
    ];
    let width = place.right.shape().last().copied().unwrap_or(0);
    let half = (width / 2).max(1);
    let angle = |t: usize, pair: usize| t as f64 * 10_000f64.powf(-(pair as f64) / half as f64);
    let table = |f: &dyn Fn(usize, usize) -> f64| {
        let table = ndarray::Array2::from_shape_fn((n, width), |(t, c)| f(t, c)).into_dyn();
        (table.shape() == place.right.shape()).then_some(table)
    };
    let halves = |t: usize, c: usize| if c < half { angle(t, c).sin() } else { angle(t, c - half).cos() };
    let turns = |t: usize, c: usize| if c.is_multiple_of(2) { angle(t, c / 2).sin() } else { angle(t, c / 2).cos() };
    all.push(("sinusoidal positions (sines, then cosines)".into(), table(&halves)));
    all.push(("sinusoidal positions (sines and cosines in turn)".into(), table(&turns)));
    for name in case.operation.other_weights(at) {
        let rows = case.operation.other_weight(at, &name).and_then(|matrix| {
            let rows: Vec<usize> = ids.iter().map(|id| *id as usize).collect();
            rows.iter().all(|row| *row < matrix.nrows()).then(|| matrix.select(Dimension(0), &rows).into_dyn())
        });
        all.push((format!("the token's row of {name}"), rows));
    }
    all.into_iter().filter_map(|(name, x)| Some((name, x?))).collect()
}

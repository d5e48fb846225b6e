//! The input that a product was made of, recovered from its output where the weight has as many rows as columns or more; and its laws.

use std::sync::Arc;

use ndarray::{Array2, Axis as Dimension};

use super::{MOST_COLUMNS, ROOM, flat, weight_of};
use crate::case::{Axis, Case};
use crate::identify::of_recovered;
use crate::identify::subject::Subject;
use crate::law::{Form, Law};
use crate::solve::Cholesky;

/// Rows of a weight that its input is recovered from, for each column.
const ROWS_PER_COLUMN: usize = 3;
/// An input that is recovered with a larger error than this tells nothing.
const MOST_NOISE: f64 = 1e-2;

/// The laws of the input as it is read.
pub(in crate::identify) fn laws(case: &Case<'_>) -> Vec<Law> {
    let Some(subject) = input(case) else { return Vec::new() };
    of_recovered(&subject, case)
}

/// The input as it is read, where the output tells it.
fn input(case: &Case<'_>) -> Option<Subject> {
    let first = case.first();
    let weight = weight_of(case, case.fitted)?;
    let (x, right, own) = (flat(first.inputs.first()?)?, flat(&first.right)?, flat(&first.own)?);
    let (outputs, columns) = weight.dim();
    if outputs < columns || columns > MOST_COLUMNS || own.ncols() != outputs {
        return None;
    }
    let rows: Vec<usize> = (0..outputs).step_by((outputs / (ROWS_PER_COLUMN * columns)).max(1)).collect();
    let pick = |y: Array2<f64>| y.select(Dimension(1), &rows);
    let bias = &right - &x.dot(&weight.t());
    let (wanted, weight) = (pick(own - bias), weight.select(Dimension(0), &rows));
    let inverse = Cholesky::decompose(&weight.t().dot(&weight))?.inverse();
    let solved = |y: &Array2<f64>| y.dot(&weight).dot(&inverse);
    let mut read = solved(&wanted);
    for _ in 0..2 {
        let rest = &wanted - &read.dot(&weight.t());
        read += &solved(&rest);
    }
    let square = |x: &Array2<f64>| x.iter().map(|x| x * x).sum::<f64>();
    let rest = &wanted - &read.dot(&weight.t());
    let size = square(&wanted).sqrt();
    if square(&rest).sqrt() > ROOM * first.noise() * size {
        return None;
    }
    // The error of each output, as the inverse carries it over.
    let each = first.noise() * size / (wanted.len() as f64).sqrt();
    let carried = each * (inverse.diag().sum() / columns as f64).sqrt();
    let noise = carried / (square(&read) / read.len() as f64).sqrt().max(f64::MIN_POSITIVE);
    if !noise.is_finite() || noise > MOST_NOISE {
        return None;
    }
    Some(Subject {
        label: "the input as it is read",
        form: Some(Form::LinearInput),
        bits: 3.0,
        is_part: false,
        axes: vec![case.axes.first().copied().unwrap_or(Axis::Token), Axis::Channel],
        right: x.into_dyn(),
        own: read.into_dyn(),
        noise: noise.max(first.noise()),
        right_at: Arc::new(|case, place| Some(flat(case.places[place].inputs.first()?)?.into_dyn())),
        output: Arc::new(|case, place, value| {
            let shape = case.places[place].inputs.first()?.raw_dim();
            case.operation.apply(place, &[value.to_shape(shape).ok()?.into_owned()])
        }),
    })
}

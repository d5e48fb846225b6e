//! Tables of what an operation may be instead: functions of a row, statistics, operations of two tensors.

use ndarray::{ArrayD, Axis};

use crate::program::change::softmax;

/// Operations of two tensors.
pub(super) const BINARY: [&str; 6] = ["add", "sub", "mul", "div", "maximum", "minimum"];

/// A function of the rows along the last axis.
type OfRows = fn(&ArrayD<f64>) -> Option<ArrayD<f64>>;

/// Functions of a row: words, bits, the function.
pub(super) const ROW_FUNCTIONS: [(&str, f64, OfRows); 9] = [
    ("x over its root mean square", 5.0, |x| {
        by_row(x, |row| scaled(row, (row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64).sqrt()))
    }),
    ("x over its length", 5.0, |x| by_row(x, |row| scaled(row, row.iter().map(|x| x * x).sum::<f64>().sqrt()))),
    ("x over its sum", 5.0, |x| by_row(x, |row| scaled(row, row.iter().sum()))),
    ("x less its mean", 5.0, |x| by_row(x, |row| shifted(row, row.iter().sum::<f64>() / row.len() as f64))),
    ("the softmax of x", 5.0, softmax),
    ("the sums of x up to each", 6.0, |x| by_row(x, summed)),
    ("2 x", 4.0, |x| Some(2.0 * x)),
    ("x/2", 4.0, |x| Some(0.5 * x)),
    ("1 - x", 4.0, |x| Some(x.mapv(|x| 1.0 - x))),
];

/// A number that stands for several.
type Statistic = fn(&mut dyn Iterator<Item = f64>) -> f64;

/// Statistics of values: name, bits, the statistic.
pub(super) const STATISTICS: [(&str, f64, Statistic); 9] = [
    ("mean", 4.0, |x| mean(&x.collect::<Vec<_>>())),
    ("sum", 4.0, |x| x.sum()),
    ("maximum", 4.0, |x| x.fold(f64::NEG_INFINITY, f64::max)),
    ("minimum", 5.0, |x| x.fold(f64::INFINITY, f64::min)),
    ("root mean square", 5.0, |x| mean(&x.map(|x| x * x).collect::<Vec<_>>()).sqrt()),
    ("length", 5.0, |x| x.map(|x| x * x).sum::<f64>().sqrt()),
    ("largest size", 5.0, |x| x.fold(0.0, |most, x| most.max(x.abs()))),
    ("first", 5.0, |x| x.next().unwrap_or(f64::NAN)),
    ("last", 5.0, |x| x.last().unwrap_or(f64::NAN)),
];

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

fn by_row(x: &ArrayD<f64>, f: fn(&mut [f64])) -> Option<ArrayD<f64>> {
    let last = x.ndim().checked_sub(1)?;
    let mut value = x.as_standard_layout().into_owned();
    for mut lane in value.lanes_mut(Axis(last)) {
        f(lane.as_slice_mut()?);
    }
    Some(value)
}

fn scaled(row: &mut [f64], by: f64) {
    row.iter_mut().for_each(|x| *x /= by);
}

fn shifted(row: &mut [f64], by: f64) {
    row.iter_mut().for_each(|x| *x -= by);
}

fn summed(row: &mut [f64]) {
    let mut sum = 0.0;
    for x in row {
        sum += *x;
        *x = sum;
    }
}

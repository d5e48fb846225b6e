//! Numbers of a row: what rows may be divided by, multiplied with, moved by or told by.

use crate::fit::dot;

/// A number of a row, and what it is called.
pub(crate) type Statistic = (&'static str, fn(&[f64]) -> f64);

/// The mean of a row.
pub(crate) fn mean(row: &[f64]) -> f64 {
    row.iter().sum::<f64>() / row.len() as f64
}

/// The mean of a function of each number.
fn mean_of(row: &[f64], f: impl Fn(f64) -> f64) -> f64 {
    row.iter().map(|x| f(*x)).sum::<f64>() / row.len().max(1) as f64
}

/// The mean square of a row.
pub(crate) fn mean_square(row: &[f64]) -> f64 {
    dot(row, row) / row.len() as f64
}

/// The root mean square of a row.
pub(crate) fn root_mean_square(row: &[f64]) -> f64 {
    mean_square(row).sqrt()
}

/// The largest number of a row.
pub(crate) fn largest(row: &[f64]) -> f64 {
    row.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// The smallest number of a row.
pub(crate) fn smallest(row: &[f64]) -> f64 {
    row.iter().copied().fold(f64::INFINITY, f64::min)
}

/// The largest size of a row's numbers.
pub(crate) fn largest_size(row: &[f64]) -> f64 {
    row.iter().fold(0.0, |most: f64, x| most.max(x.abs()))
}

/// The middle of some numbers by their size.
fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    0.5 * (all[(all.len() - 1) / 2] + all[all.len() / 2])
}

/// Sizes of a row that are used most often.
pub(crate) const SIZES: [Statistic; 3] = [
    ("largest size", largest_size),
    ("root mean square", root_mean_square),
    ("mean size", |row| mean_of(row, f64::abs)),
];

/// Numbers of a row that have a sign.
pub(crate) const SIGNED: [Statistic; 7] = [
    ("mean", mean),
    ("median", |row| median(row.to_vec())),
    ("first value", |row| row[0]),
    ("last value", |row| row[row.len() - 1]),
    ("smallest value", smallest),
    ("largest value", largest),
    ("sum", |row| row.iter().sum()),
];

/// Numbers of a row that it may be scaled by or moved by.
pub(crate) fn plain() -> impl Iterator<Item = Statistic> {
    let length: Statistic = ("length", |row| dot(row, row).sqrt());
    SIZES.into_iter().chain([length]).chain(SIGNED)
}

/// All sizes of a row, with the price of each as a divisor.
pub(crate) const DIVISORS: [(Statistic, f64); 19] = [
    (("root mean square", root_mean_square), 2.0),
    (("mean square", mean_square), 5.0),
    (("root of the root mean square", |row| mean_square(row).powf(0.25)), 6.0),
    (("length", |row| dot(row, row).sqrt()), 5.0),
    (("mean size", |row| mean_of(row, f64::abs)), 5.0),
    (("sum of sizes", |row| row.iter().map(|x| x.abs()).sum()), 6.0),
    (("largest size", largest_size), 5.0),
    (("standard deviation", |row| deviation_over(row, row.len())), 5.0),
    (("standard deviation (over n - 1)", |row| deviation_over(row, row.len() - 1)), 6.0),
    (("root mean square (over n - 1)", |row| (dot(row, row) / (row.len() - 1) as f64).sqrt()), 6.0),
    (("root mean square (over n + 1)", |row| (dot(row, row) / (row.len() + 1) as f64).sqrt()), 6.0),
    (
        ("root of the mean square, in which the first channel counts as itself and not squared", |row| {
            ((dot(row, row) - row[0] * row[0] + row[0]) / row.len() as f64).max(0.0).sqrt()
        }),
        7.0,
    ),
    (("range", |row| largest(row) - smallest(row)), 6.0),
    (("median size", |row| median(row.iter().map(|x| x.abs()).collect())), 7.0),
    (("third root of the mean cubed size", |row| mean_of(row, |x| x.abs().powi(3)).cbrt()), 7.0),
    (("fourth root of the mean fourth power", |row| mean_of(row, |x| x.powi(4)).powf(0.25)), 7.0),
    (("size of the mean", |row| mean(row).abs()), 6.0),
    (
        ("mean deviation", |row| {
            let mean = mean(row);
            mean_of(row, |x| (x - mean).abs())
        }),
        7.0,
    ),
    (("geometric mean of sizes", |row| mean_of(row, |x| x.abs().max(1e-30).ln()).exp()), 7.0),
];

/// The root of the squared deviations from the mean, over a number.
fn deviation_over(row: &[f64], by: usize) -> f64 {
    let mean = mean(row);
    (row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / by as f64).sqrt()
}

/// The numbers over their sum.
pub(crate) fn over_sum(all: Vec<f64>) -> Vec<f64> {
    let sum: f64 = all.iter().sum();
    all.into_iter().map(|x| x / sum).collect()
}

/// The exponentials of a row's numbers less another one.
pub(crate) fn powers(row: &[f64], less: f64) -> Vec<f64> {
    row.iter().map(|x| (x - less).exp()).collect()
}

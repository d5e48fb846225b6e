use firstdiff_laws::{Axis, Kind};
use ndarray::ArrayD;

use crate::plant::{Numbers, Rounded, law_of_inputs, said};

const AXES: [Axis; 2] = [Axis::Token, Axis::Channel];
const SHAPE: [usize; 2] = [12, 48];

fn gain(layer: usize) -> Vec<f64> {
    let mut numbers = Numbers::new(100 + layer as u64);
    (0..SHAPE[1]).map(|_| 1.0 + 0.3 * numbers.next()).collect()
}

fn made(layer: usize, x: &ArrayD<f64>, of: impl Fn(&[f64], &[f64]) -> Vec<f64>) -> ArrayD<f64> {
    let gain = gain(layer);
    let rows = x.rows().into_iter().flat_map(|row| of(&row.to_vec(), &gain));
    ArrayD::from_shape_vec(x.raw_dim(), rows.collect()).unwrap()
}

fn root_mean_square(row: &[f64], epsilon: f64) -> f64 {
    (row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64 + epsilon).sqrt()
}

fn norm(layer: usize, x: &ArrayD<f64>, by: impl Fn(&[f64]) -> f64, gain_of: impl Fn(usize, f64) -> f64) -> ArrayD<f64> {
    made(layer, x, |row, gain| row.iter().enumerate().map(|(c, x)| x / by(row) * gain_of(c, gain[c])).collect())
}

fn right(layer: usize, x: &[ArrayD<f64>]) -> ArrayD<f64> {
    norm(layer, &x[0], |row| root_mean_square(row, 1e-5), |_, w| w)
}

fn law(wrong: fn(usize, &[ArrayD<f64>]) -> ArrayD<f64>) -> String {
    // Rows of very different size.
    let inputs = |numbers: &mut Numbers| {
        let mut x = numbers.tensor(&SHAPE);
        x.outer_iter_mut().enumerate().for_each(|(t, mut row)| row.mapv_inplace(|x| x * 0.1 * (1 + t) as f64));
        vec![x]
    };
    said(&law_of_inputs(Kind::Norm, &AXES, inputs, right, wrong, Rounded::F32))
}

#[test]
fn divisors_and_gains() {
    let outside = law(|layer, x| norm(layer, &x[0], |row| root_mean_square(row, 0.0) + 0.05, |_, w| w));
    assert!(outside.contains("plus 0.05"), "{outside}");
    let inside = law(|layer, x| norm(layer, &x[0], |row| root_mean_square(row, 0.05), |_, w| w));
    assert!(inside.contains("plus 0.05"), "{inside}");
    let without = law(|layer, x| norm(layer, &x[0], |row| root_mean_square(row, 1e-5), |_, _| 1.0));
    assert!(without.starts_with("the gain is left out"), "{without}");
    let plus = law(|layer, x| norm(layer, &x[0], |row| root_mean_square(row, 1e-5), |_, w| 1.0 + w));
    assert!(plus.starts_with("the gain is 1 + w"), "{plus}");
    let mean =
        law(|layer, x| norm(layer, &x[0], |row| row.iter().map(|x| x.abs()).sum::<f64>() / row.len() as f64, |_, w| w));
    assert!(mean.contains("the mean size"), "{mean}");
    let centred = law(|layer, x| {
        made(layer, &x[0], |row, gain| {
            let mean = row.iter().sum::<f64>() / row.len() as f64;
            let inner: Vec<f64> = row.iter().map(|x| x - mean).collect();
            let by = root_mean_square(&inner, 1e-5);
            inner.iter().zip(gain).map(|(x, w)| x / by * w).collect()
        })
    });
    assert!(centred.contains("mean is subtracted"), "{centred}");
    let half = law(|layer, x| norm(layer, &x[0], |row| root_mean_square(&row[..24], 1e-5), |_, w| w));
    assert!(half.contains("first 24 channels"), "{half}");
}

#[test]
fn what_no_law_makes_has_none() {
    let noise = law(|layer, x| {
        let mut numbers = Numbers::new(5 + layer as u64);
        right(layer, x).mapv(|y| y + 0.1 * numbers.next())
    });
    assert_eq!(noise, "none");
}

#[test]
fn a_factor_of_a_statistic_is_the_factor_itself() {
    let wrong = |layer: usize, x: &[ArrayD<f64>]| {
        norm(layer, &x[0], |row| 0.3 * row.iter().fold(0.0, |most: f64, x| most.max(x.abs())), |_, w| w)
    };
    let said = law(wrong);
    assert!(said.starts_with("rows are divided by 0.3 times the largest size"), "{said}");
}

/// The law of a norm of so many rows of about one size.
fn of_rows(rows: usize, wrong: fn(usize, &[ArrayD<f64>]) -> ArrayD<f64>) -> String {
    let inputs = move |numbers: &mut Numbers| vec![numbers.tensor(&[rows, SHAPE[1]])];
    let law = law_of_inputs(Kind::Norm, &AXES, inputs, right, wrong, Rounded::F32);
    let equivalent = law.iter().flat_map(|(law, _)| law.equivalent.clone()).collect::<Vec<_>>().join("; ");
    format!("{}; {equivalent}", said(&law))
}

#[test]
fn two_rows_tell_the_epsilon_of_the_model_and_another() {
    let said = of_rows(2, |layer, x| norm(layer, &x[0], |row| root_mean_square(row, 0.1), |_, w| w));
    assert!(said.starts_with("rows are divided by sqrt(s^2 plus 0.1), s being the root mean square"), "{said}");
    assert!(said.contains("epsilon 1e-5 inside"), "{said}");
    // Two free numbers for two rows say nothing.
    assert!(!said.contains("at least"), "{said}");
    let none = of_rows(2, |layer, x| norm(layer, &x[0], |row| row.iter().map(|x| x.abs()).sum(), |_, w| w));
    assert!(none.starts_with("rows are divided by the sum of sizes") && !none.contains("plus -"), "{none}");
}

#[test]
fn shares_of_two_rows_squares_leave_the_gain_as_it_is() {
    let wrong = |layer: usize, x: &[ArrayD<f64>]| {
        let (gain, rows) = (gain(layer), x[0].rows().into_iter().map(|row| row.to_vec()).collect::<Vec<_>>());
        let square = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
        let out = rows.iter().enumerate().flat_map(|(t, row)| {
            let by = (0.75 * square(row) + 0.25 * square(&rows[t.saturating_sub(1)]) + 1e-5).sqrt();
            row.iter().zip(&gain).map(move |(x, w)| x / by * w).collect::<Vec<f64>>()
        });
        ArrayD::from_shape_vec(x[0].raw_dim(), out.collect()).unwrap()
    };
    let said = law(wrong);
    let due = "the root of 3/4 times the mean square plus 1/4 times the square of the root mean square of the row before plus the epsilon";
    assert!(said.contains(due) && !said.contains("gain is"), "{said}");
}

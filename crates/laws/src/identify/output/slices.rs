//! A factor for each slice along an axis.

use ndarray::{Array2, ArrayD};
use serde_json::json;

use super::biases::STATISTICS;
use crate::case::Case;
use crate::describe::table::{bits_of, describe as describe_table};
use crate::fit::{dot, factor};
use crate::identify::subject::{Subject, by_slice, rows};
use crate::law::{Form, Law};
use crate::number::Measured;

/// What a slice is to the same slice of the right tensor.
pub(super) struct Factors {
    pub(super) numbers: Vec<Measured>,
    /// What is left in each slice, as a share of the tensor's mean slice.
    pub(super) left: Vec<f64>,
}

pub(super) fn factors(subject: &Subject, right: &Array2<f64>, own: &Array2<f64>) -> Factors {
    let size = (own.iter().map(|x| x * x).sum::<f64>() / own.nrows().max(1) as f64).sqrt().max(f64::MIN_POSITIVE);
    let (mut numbers, mut left) = (Vec::new(), Vec::new());
    for (right, own) in right.rows().into_iter().zip(own.rows()) {
        let (right, own) = (right.to_vec(), own.to_vec());
        let fit = factor(&right, &own, subject.noise);
        let own_size = dot(&own, &own).sqrt();
        left.push(fit.left * own_size / size);
        numbers.push(fit.coefficients[0]);
    }
    Factors { numbers, left }
}

impl Subject {
    /// Whether what is left in slices is rounding.
    pub(super) fn is_rounding(&self, left: &[f64]) -> bool {
        let mean = left.iter().map(|x| x * x).sum::<f64>() / left.len().max(1) as f64;
        mean.sqrt() <= SLICE_ROOM * self.noise
    }
}

/// Errors of rounding's size that slices may be left with before the proof.
pub(super) const SLICE_ROOM: f64 = 5.0;

/// Factors that are a vector of the model, or one over it.
fn by_vector(subject: &Subject, case: &Case<'_>, axis: usize, factors: &[Measured]) -> Option<Law> {
    let all = case.operation.vectors(case.fitted, factors.len());
    type Way = (&'static str, f64, fn(f64) -> f64);
    let ways: [Way; 3] = [("times ", 8.0, |v| v), ("times 1 plus ", 10.0, |v| 1.0 + v), ("over ", 10.0, |v| 1.0 / v)];
    for (known, vector) in all {
        for (words, bits, f) in ways {
            if !factors.iter().zip(&vector).all(|(m, v)| m.may_be(f(*v))) {
                continue;
            }
            let said = format!("{} is the right one {words}{known}", subject.label);
            let name = known.clone();
            let law = subject.law_of_place(Form::OutputScale, said, bits, move |case, at, right| {
                let vector = case.operation.vector(at, right.shape().get(axis).copied()?, &name)?;
                by_slice(right, axis, &vector, |x, by| x * f(by))
            });
            return Some(law.with("by", known));
        }
    }
    None
}

/// Factors that are one over a statistic of the slice, times a number.
fn by_statistic(subject: &Subject, axis: usize, right: &Array2<f64>, measured: &[Measured]) -> Option<Law> {
    let name = subject.axes[axis];
    for (statistic, f) in STATISTICS {
        for is_over in [true, false] {
            let of = move |row: &[f64]| if is_over { 1.0 / f(row) } else { f(row) };
            let values: Vec<f64> = right.rows().into_iter().map(|row| of(&row.to_vec())).collect();
            if values.iter().any(|x| !x.is_finite() || *x == 0.0) {
                continue;
            }
            let by = Measured::mean(
                measured.iter().zip(&values).map(|(m, of)| Measured::new(m.value / of, m.error / of.abs())),
            );
            let number = by.number();
            if !by.is_known() || !measured.iter().zip(&values).all(|(m, of)| m.may_be(number.value * of)) {
                continue;
            }
            let said = if is_over { "divided by" } else { "times" };
            let times = if number.value == 1.0 { String::new() } else { format!(" and times {}", number.words) };
            let label = subject.label;
            let words = format!("{label} is the right one {said} the {statistic} of its {}{times}", name.name());
            let c = number.value;
            return Some(subject.law(Form::OutputScale, words, 10.0 + number.bits, move |right| {
                let by: Vec<f64> = rows(right, axis).rows().into_iter().map(|row| c * of(&row.to_vec())).collect();
                by_slice(right, axis, &by, |x, by| x * by)
            }));
        }
    }
    of_size(subject, axis, right, measured)
}

/// Slices that are divided by the root of their mean square and a number.
fn of_size(subject: &Subject, axis: usize, right: &Array2<f64>, measured: &[Measured]) -> Option<Law> {
    let squares: Vec<f64> =
        right.rows().into_iter().map(|row| dot(&row.to_vec(), &row.to_vec()) / row.len() as f64).collect();
    if measured.iter().any(|m| m.value <= 0.0) {
        return None;
    }
    let offsets = measured
        .iter()
        .zip(&squares)
        .map(|(m, square)| Measured::new(m.value.powi(-2) - square, 2.0 * m.error / m.value.powi(3)));
    let epsilon = Measured::mean(offsets);
    let number = epsilon.number();
    let e = number.value;
    let holds =
        measured.iter().zip(&squares).all(|(m, square)| m.may_be(1.0 / (square + e).max(f64::MIN_POSITIVE).sqrt()));
    if !epsilon.is_known() || !holds || e < 0.0 {
        return None;
    }
    let (label, name) = (subject.label, subject.axes[axis].name());
    let words =
        format!("{label} is the right one divided by the root of the mean square of its {name} plus {}", number.words);
    Some(subject.law(Form::OutputScale, words, 10.0 + number.bits, move |right| {
        let size = |row: &[f64]| 1.0 / (dot(row, row) / row.len() as f64 + e).sqrt();
        let by: Vec<f64> = rows(right, axis).rows().into_iter().map(|row| size(&row.to_vec())).collect();
        by_slice(right, axis, &by, |x, by| x * by)
    }))
}

/// A factor for each slice.
pub(super) fn scales(subject: &Subject, case: &Case<'_>, axis: usize) -> Vec<Law> {
    let name = subject.axes[axis];
    let (right, own) = (rows(&subject.right, axis), rows(&subject.own, axis));
    if right.ncols() < 3 {
        return Vec::new();
    }
    let of = factors(subject, &right, &own);
    if !subject.is_rounding(&of.left) {
        return Vec::new();
    }
    let made = move |numbers: Vec<f64>| move |right: &ArrayD<f64>| by_slice(right, axis, &numbers, |x, by| x * by);
    match describe_table(&of.numbers, name, Some(1.0), case.tokens_of(name)) {
        Some(table) => {
            let words = format!("{} is the right one times {}", subject.label, table.words);
            let law = subject.law(Form::OutputScale, words, table.bits + 4.0, made(table.values));
            vec![law.with("factor", table.words).with("by", name.name()).on(Subject::support(name, table.part))]
        }
        None if bits_of(&of.numbers) < 2.0 * own.len() as f64 => {
            if let Some(law) = by_vector(subject, case, axis, &of.numbers) {
                return vec![law];
            }
            if let Some(law) = by_statistic(subject, axis, &right, &of.numbers) {
                return vec![law];
            }
            let words = format!("{} is the right one times a factor for each {}", subject.label, name.name());
            let listed: Vec<f64> = of.numbers.iter().map(|m| m.value).collect();
            let values = of.numbers.iter().map(|m| if m.is_known() { m.value } else { 1.0 }).collect();
            let law = subject.law(Form::OutputScale, words, bits_of(&of.numbers), made(values)).table();
            vec![law.with("by", name.name()).with("factors", json!(listed))]
        }
        None => Vec::new(),
    }
}

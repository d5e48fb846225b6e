//! A factor for each slice along an axis.

use ndarray::{Array2, ArrayD};
use serde_json::json;

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
            let words = format!("{} is the right one times a factor for each {}", subject.label, name.name());
            let listed: Vec<f64> = of.numbers.iter().map(|m| m.value).collect();
            let values = of.numbers.iter().map(|m| if m.is_known() { m.value } else { 1.0 }).collect();
            let law = subject.law(Form::OutputScale, words, bits_of(&of.numbers), made(values)).table();
            vec![law.with("by", name.name()).with("factors", json!(listed))]
        }
        None => Vec::new(),
    }
}

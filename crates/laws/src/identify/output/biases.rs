//! A term for each slice along an axis.

use ndarray::ArrayD;
use serde_json::json;

use crate::case::{Axis, Case};
use crate::describe::table::{bits_of, describe as describe_table};
use crate::fit::factor;
use crate::identify::statistics;
use crate::identify::subject::{Subject, by_slice, rows};
use crate::identify::vector::source_of;
use crate::law::{Form, Law};
use crate::number::Measured;

/// A term for each slice.
pub(super) fn biases(subject: &Subject, case: &Case<'_>, axis: usize) -> Vec<Law> {
    let name = subject.axes[axis];
    let (right, own) = (rows(&subject.right, axis), rows(&subject.own, axis));
    let width = right.ncols();
    if width < 3 {
        return Vec::new();
    }
    let size = (own.iter().map(|x| x * x).sum::<f64>() / own.len() as f64).sqrt();
    let (mut numbers, mut left) = (Vec::new(), Vec::new());
    for (right, own) in right.rows().into_iter().zip(own.rows()) {
        let off: Vec<f64> = own.iter().zip(right).map(|(own, right)| own - right).collect();
        let mean = off.iter().sum::<f64>() / width as f64;
        let rest = (off.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64).sqrt();
        numbers.push(Measured::new(mean, rest.max(subject.noise * size) / (width as f64).sqrt()));
        left.push(rest / size.max(f64::MIN_POSITIVE));
    }
    if !subject.is_rounding(&left) || numbers.iter().all(|m| m.may_be(0.0)) {
        return Vec::new();
    }
    let mut laws = Vec::new();
    let means: Vec<f64> = numbers.iter().map(|m| m.value).collect();
    for (statistic, f) in statistics::plain() {
        let of: Vec<f64> = right.rows().into_iter().map(|row| f(&row.to_vec())).collect();
        let by = factor(&of, &means, subject.noise).coefficients[0];
        let number = by.number();
        let holds =
            numbers.iter().zip(&of).all(|(m, of)| m.may_be(number.value * of) || m.plus(-by.value * of).may_be(0.0));
        if by.is_known() && !by.may_be(0.0) && holds {
            let of = if subject.is_part { ", over these alone" } else { "" };
            let words = format!(
                "{} is the right one plus {} times the {statistic} of its {}{of}",
                subject.label,
                number.words,
                name.name()
            );
            let by = number.value;
            let made = move |right: &ArrayD<f64>| {
                let numbers: Vec<f64> = rows(right, axis).rows().into_iter().map(|row| by * f(&row.to_vec())).collect();
                by_slice(right, axis, &numbers, |x, plus| x + plus)
            };
            laws.push(
                subject
                    .law(Form::OutputBias, words, 8.0 + number.bits, made)
                    .with("statistic", statistic)
                    .with("scale", by),
            );
        }
    }
    if matches!(name, Axis::Channel | Axis::Dim) {
        laws.extend(known_biases(subject, case, axis, &numbers));
    }
    let made = move |numbers: Vec<f64>| move |right: &ArrayD<f64>| by_slice(right, axis, &numbers, |x, plus| x + plus);
    match describe_table(&numbers, name, Some(0.0), case.tokens_of(name)) {
        Some(table) => {
            let words = format!("{} is the right one plus {}", subject.label, table.words);
            let law = subject.law(Form::OutputBias, words, table.bits + 5.0, made(table.values));
            laws.push(law.with("bias", table.words).with("by", name.name()).on(Subject::support(name, table.part)));
        }
        None if bits_of(&numbers) < 2.0 * own.len() as f64 => {
            let words = format!("{} is the right one plus a number for each {}", subject.label, name.name());
            let law = subject.law(Form::OutputBias, words, bits_of(&numbers), made(means.clone())).table();
            laws.push(law.with("by", name.name()).with("biases", json!(means)));
        }
        None => {}
    }
    laws
}

/// Vectors of the model, added.
fn known_biases(subject: &Subject, case: &Case<'_>, axis: usize, numbers: &[Measured]) -> Vec<Law> {
    let means: Vec<f64> = numbers.iter().map(|m| m.value).collect();
    let mut laws = Vec::new();
    for (called, vector) in case.operation.vectors(case.fitted, numbers.len()) {
        let by = factor(&vector, &means, subject.noise).coefficients[0];
        let number = by.number();
        if !by.is_known() || !numbers.iter().zip(&vector).all(|(m, v)| m.may_be(number.value * v)) {
            continue;
        }
        let times = if number.value == 1.0 { String::new() } else { format!("{} times ", number.words) };
        let words = format!("{} is the right one plus {times}{called}", subject.label);
        let (by, name) = (number.value, called.clone());
        let made = move |case: &Case<'_>, place: usize, right: &ArrayD<f64>| {
            let vector = case.operation.vector(place, right.shape()[axis], &name)?;
            by_slice(right, axis, &vector, |x, plus| x + by * plus)
        };
        laws.push(
            subject
                .law_of_place(Form::OutputBias, words, 10.0 + number.bits, made)
                .with("bias", called)
                .with("scale", by),
        );
    }
    laws.extend(read_biases(subject, case, axis, numbers));
    laws.extend(spread_biases(subject, case, axis, numbers));
    laws
}

/// A vector of the key heads, which each head of their group has; that, or any other one, in place of the right one.
fn spread_biases(subject: &Subject, case: &Case<'_>, axis: usize, numbers: &[Measured]) -> Vec<Law> {
    let n = numbers.len();
    let mut laws = Vec::new();
    let dims = case.first().right.shape().last().copied().filter(|d| *d > 0 && n.is_multiple_of(*d) && *d <= n);
    let Some(d) = dims else { return laws };
    let heads = n / d;
    let replaced = case.operation.vectors(case.fitted, n);
    for group in (1..=heads).filter(|group| heads.is_multiple_of(*group)) {
        let from = move |i: usize| i / d / group * d + i % d;
        let whose = if group > 1 { ", that of each head's key head" } else { "" };
        let mut offer = |words: String, by: f64, called: &str, instead_of: Option<&str>| {
            let (name, own) = (called.to_owned(), instead_of.map(str::to_owned));
            let made = move |case: &Case<'_>, place: usize, right: &ArrayD<f64>| {
                let added = case.operation.vector(place, n / group, &name)?;
                let own =
                    own.as_ref().map_or_else(|| Some(vec![0.0; n]), |own| case.operation.vector(place, n, own))?;
                let plus: Vec<f64> = (0..n).map(|i| by * added[from(i)] - own[i]).collect();
                by_slice(right, axis, &plus, |x, plus| x + plus)
            };
            laws.push(subject.law_of_place(Form::OutputBias, words, 11.0, made).with("bias", called));
        };
        for (called, vector) in case.operation.vectors(case.fitted, n / group) {
            for (by, words) in [(1.0, "plus"), (-1.0, "less")].into_iter().filter(|_| group > 1) {
                if numbers.iter().enumerate().all(|(i, m)| m.may_be(by * vector[from(i)])) {
                    offer(format!("{} is the right one {words} {called}{whose}", subject.label), by, &called, None);
                }
            }
            for (own, instead_of) in replaced.iter().filter(|(own, _)| *own != called) {
                if numbers.iter().enumerate().all(|(i, m)| m.plus(instead_of[i]).may_be(vector[from(i)])) {
                    let words = format!("{} has {called}{whose} in place of {own}", subject.label);
                    offer(words, 1.0, &called, Some(own));
                }
            }
        }
    }
    laws
}

/// A vector of the model that is added as it is, but read in another order.
fn read_biases(subject: &Subject, case: &Case<'_>, axis: usize, numbers: &[Measured]) -> Vec<Law> {
    let mut laws = Vec::new();
    for (called, vector) in case.operation.vectors(case.fitted, numbers.len()) {
        // What is added in all is what the vector is, read so.
        let whole: Vec<Measured> = numbers.iter().zip(&vector).map(|(m, v)| m.plus(*v)).collect();
        let Some(source) = source_of(&vector, &whole) else { continue };
        let (name, from) = (called.clone(), source.from);
        let made = move |case: &Case<'_>, place: usize, right: &ArrayD<f64>| {
            let vector = case.operation.vector(place, right.shape()[axis], &name)?;
            let off: Vec<f64> = vector.iter().zip(&from).map(|(v, from)| vector[*from] - v).collect();
            by_slice(right, axis, &off, |x, plus| x + plus)
        };
        let said = format!("{} has {called} read otherwise: of each channel i that of {}", subject.label, source.words);
        laws.push(subject.law_of_place(Form::OutputBias, said, source.bits + 6.0, made).with("bias", called));
    }
    laws
}

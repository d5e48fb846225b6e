//! Identifies sums: which tensors, and how often.

use std::sync::Arc;

use ndarray::ArrayD;

use crate::case::{Case, Place};
use crate::fit::least_squares;
use crate::identify::activation::gelu_tanh;
use crate::identify::of_recovered;
use crate::identify::operands::beside;
use crate::identify::subject::Subject;
use crate::law::{Form, Law};
use crate::number::{Measured, Number};

/// The laws of a sum of two operands.
pub(crate) fn laws(case: &Case<'_>) -> Vec<Law> {
    let subject = Subject::output(case);
    let mut laws = sparse(&subject, case, "the output", 3, &|case, place| terms(&case.places[place]));
    laws.extend(operands(case));
    laws
}

/// What may be added: the operands, what stands nearby, and both at other positions.
fn terms(place: &Place) -> Vec<(String, ArrayD<f64>)> {
    let called = ["the first operand", "the second operand"];
    let mut all: Vec<(String, ArrayD<f64>)> = Vec::new();
    for (at, input) in place.inputs.iter().enumerate() {
        all.push((called.get(at).map_or_else(|| format!("operand {at}"), |name| (*name).to_owned()), input.clone()));
    }
    all.extend(place.around.iter().cloned());
    for (at, input) in place.inputs.iter().enumerate().take(2) {
        all.extend(moved(called[at], input));
    }
    if let [a, b, ..] = &place.inputs[..]
        && a.shape() == b.shape()
    {
        all.extend(of_two(called[0], a, called[1], b));
    }
    all.retain(|(_, term)| term.shape() == place.own.shape());
    all
}

/// What two tensors of one shape may be made into, element by element.
pub(crate) fn of_two(first: &str, x: &ArrayD<f64>, second: &str, y: &ArrayD<f64>) -> Vec<(String, ArrayD<f64>)> {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let with = |f: &dyn Fn(f64, f64) -> f64| ndarray::Zip::from(x).and(y).map_collect(|x, y| f(*x, *y));
    let mut all = vec![
        (format!("{first} times {second}"), with(&|x, y| x * y)),
        (format!("the larger of {first} and {second}"), with(&f64::max)),
        (format!("the size of {first} less {second}"), with(&|x, y| (x - y).abs())),
    ];
    for (one, a, other, b) in [(first, x, second, y), (second, y, first, x)] {
        let with = |f: &dyn Fn(f64, f64) -> f64| ndarray::Zip::from(a).and(b).map_collect(|a, b| f(*a, *b));
        all.push((format!("{other} times the sigmoid of {one}"), with(&|a, b| b * sigmoid(a))));
        all.push((format!("{other} times tanh of {one}"), with(&|a, b| b * a.tanh())));
        all.push((format!("{other} times silu of {one}"), with(&|a, b| b * a * sigmoid(a))));
        all.push((format!("{other} times gelu of {one}"), with(&|a, b| b * gelu_tanh(a))));
        all.push((format!("{other} times the positive part of {one}"), with(&|a, b| b * a.max(0.0))));
        all.push((format!("tanh of {one}"), a.mapv(f64::tanh)));
        all.push((format!("silu of {one}"), a.mapv(|a| a * sigmoid(a))));
        all.push((format!("the positive part of {one}"), a.mapv(|a| a.max(0.0))));
        all.push((format!("the size of {one}"), a.mapv(f64::abs)));
    }
    all
}

/// What stands beside a tensor's numbers, and what is made of its rows.
pub(crate) fn moved(name: &str, x: &ArrayD<f64>) -> Vec<(String, ArrayD<f64>)> {
    beside(x.shape()).into_iter().filter_map(|(words, of)| Some((format!("{name} {words}"), of(x)?))).collect()
}

/// The named tensors of a place.
pub(crate) type Library = &'static (dyn Fn(&Case<'_>, usize) -> Vec<(String, ArrayD<f64>)> + Sync);

/// Elements that terms are chosen on; coefficients are fitted on all.
const SAMPLE: usize = 1 << 15;
/// Bits of saying which term.
const TERM: f64 = 5.0;
/// Terms that pairs and triples are made of.
const FIRST: usize = 24;

/// Sums of few tensors of a library that give the subject.
pub(crate) fn sparse(subject: &Subject, case: &Case<'_>, label: &str, most: usize, library: Library) -> Vec<Law> {
    let all: Vec<(String, ArrayD<f64>)> =
        library(case, case.fitted).into_iter().filter(|(_, term)| term.shape() == subject.own.shape()).collect();
    let n = subject.own.len();
    let step = n.div_ceil(SAMPLE).max(1);
    // A step that shares no factor with the extents visits every row and column.
    let step = (step..).find(|step| subject.own.shape().iter().all(|extent| gcd(*extent, *step) == 1)).unwrap_or(1);
    let sample = |x: &ArrayD<f64>| x.iter().copied().step_by(step).collect::<Vec<f64>>();
    let wanted = sample(&subject.own);
    let columns: Vec<Vec<f64>> = all.iter().map(|(_, term)| sample(term)).collect();
    let left = |set: &[usize]| {
        let columns: Vec<&[f64]> = set.iter().map(|&at| columns[at].as_slice()).collect();
        least_squares(&columns, &wanted, subject.noise).map(|fit| fit.left)
    };
    let is_all = |left: f64| left <= 5.0 * subject.noise;
    let mut singles: Vec<(f64, usize)> = (0..all.len()).filter_map(|at| Some((left(&[at])?, at))).collect();
    singles.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut found: Vec<Vec<usize>> =
        singles.iter().filter(|(left, _)| is_all(*left)).map(|(_, at)| vec![*at]).collect();
    if found.is_empty() && most >= 2 {
        let mut pairs: Vec<(f64, Vec<usize>)> = Vec::new();
        // Most often one of the right operands is part of it: each of them is paired with all, the nearest with each other.
        let near: Vec<usize> = singles.iter().take(FIRST).map(|(_, at)| *at).collect();
        for a in (0..all.len().min(2)).chain(near.iter().copied()) {
            for b in 0..all.len() {
                let set = vec![a.min(b), a.max(b)];
                if a != b && !pairs.iter().any(|(_, known)| *known == set) {
                    pairs.extend(left(&set).map(|left| (left, set)));
                }
            }
        }
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
        found.extend(pairs.iter().filter(|(left, _)| is_all(*left)).map(|(_, set)| set.clone()));
        if found.is_empty() && most >= 3 {
            for (_, pair) in pairs.iter().take(FIRST) {
                for third in (0..all.len()).filter(|third| !pair.contains(third)) {
                    let mut set = [&pair[..], &[third]].concat();
                    set.sort_unstable();
                    if left(&set).is_some_and(is_all) && !found.contains(&set) {
                        found.push(set);
                    }
                }
                if !found.is_empty() {
                    break;
                }
            }
        }
    }
    found.truncate(6);
    found.into_iter().flat_map(|set| of_terms(subject, label, &all, &set, library)).collect()
}

fn of_terms(
    subject: &Subject,
    label: &str,
    all: &[(String, ArrayD<f64>)],
    set: &[usize],
    library: Library,
) -> Option<Law> {
    let flat = |x: &ArrayD<f64>| x.iter().copied().collect::<Vec<f64>>();
    let columns: Vec<Vec<f64>> = set.iter().map(|&at| flat(&all[at].1)).collect();
    let columns: Vec<&[f64]> = columns.iter().map(Vec::as_slice).collect();
    let fit = least_squares(&columns, &flat(&subject.own), subject.noise)?;
    if fit.coefficients.iter().any(|c| c.may_be(0.0)) {
        return None;
    }
    let numbers: Vec<Number> = fit.coefficients.iter().map(Measured::number).collect();
    let term = |(number, &at): (&Number, &usize)| match number.value {
        1.0 => all[at].0.clone(),
        _ => format!("{} times {}", number.words, all[at].0),
    };
    let said: Vec<String> = numbers.iter().zip(set).map(term).collect();
    let bits = numbers.iter().map(|number| number.bits + TERM).sum::<f64>();
    let names: Vec<(String, f64)> =
        set.iter().zip(&numbers).map(|(&at, number)| (all[at].0.clone(), number.value)).collect();
    let listed: Vec<serde_json::Value> = names.iter().map(|(name, by)| serde_json::json!([name, by])).collect();
    let made = move |case: &Case<'_>, place: usize, right: &ArrayD<f64>| {
        let library = library(case, place);
        let mut sum = ArrayD::zeros(right.raw_dim());
        for (name, by) in &names {
            let (_, term) = library.iter().find(|(known, _)| known == name)?;
            sum.scaled_add(*by, &term.broadcast(right.raw_dim())?);
        }
        Some(sum)
    };
    let law = subject.law_of_place(Form::Sum, format!("{label} is {}", said.join(" + ")), bits, made);
    Some(law.with("terms", listed))
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// One operand, recovered by taking the other away, by its own laws.
fn operands(case: &Case<'_>) -> Vec<Law> {
    let first = case.first();
    let [a, b] = &first.inputs[..] else { return Vec::new() };
    if a.shape() != first.own.shape() || b.shape() != first.own.shape() {
        return Vec::new();
    }
    let mut laws = Vec::new();
    for (operand, (other, right)) in [(b, a), (a, b)].into_iter().enumerate() {
        let own = &first.own - other;
        let size = |x: &ArrayD<f64>| x.iter().map(|x| x * x).sum::<f64>().sqrt();
        // What is recovered carries the rounding of the whole.
        let noise = first.noise() * size(&first.own) / size(&own).max(f64::MIN_POSITIVE);
        if !noise.is_finite() || noise > MOST_NOISE {
            continue;
        }
        let subject = Subject {
            label: ["the first operand as it is added", "the second operand as it is added"][operand],
            form: Some(Form::Sum),
            bits: 2.0,
            is_part: false,
            axes: case.axes.clone(),
            right: right.clone(),
            own,
            noise,
            right_at: Arc::new(move |case, place| case.places[place].inputs.get(operand).cloned()),
            output: Arc::new(move |case, place, value| Some(value + case.places[place].inputs.get(1 - operand)?)),
        };
        laws.extend(of_recovered(&subject, case));
    }
    laws
}

/// A recovered operand of more noise than this tells nothing.
const MOST_NOISE: f64 = 0.05;

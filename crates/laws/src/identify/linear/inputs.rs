//! Another bias, and other inputs.

use std::sync::Arc;

use ndarray::{Array1, Array2, ArrayD, ArrayView1};

use super::{ROOM, flat, of_input, weight_of};
use crate::case::Case;
use crate::describe::choice;
use crate::fit::{factor, least_squares};
use crate::identify::after::by_row;
use crate::identify::aliased::aliased;
use crate::identify::operands::over_root_mean_square;
use crate::identify::pool::Made;
use crate::identify::subject::Subject;
use crate::identify::sums::moved;
use crate::identify::vector::{Called, Said, said};
use crate::law::{Form, Law};
use crate::number::Measured;

/// What a product adds by itself, `[T,F]`.
pub(super) fn bias_of(case: &Case<'_>, at: usize) -> Option<Array2<f64>> {
    flat(&case.operation.apply(at, &[ArrayD::zeros(case.places[at].inputs.first()?.raw_dim())])?)
}

const BIAS: Called = Called { one: "bias", several: "biases", symbol: "b", nothing: 0.0 };

/// The bias that a product has, where it is off by the same numbers at each position; with the right one.
fn measured_bias(case: &Case<'_>) -> Option<(Vec<f64>, Vec<Measured>)> {
    let first = case.first();
    let (due, right, own) = (bias_of(case, case.fitted)?, flat(&first.right)?, flat(&first.own)?);
    if due.dim() != right.dim() || due.iter().all(|b| *b == 0.0) {
        return None;
    }
    let rows = right.nrows() as f64;
    let size = (own.iter().map(|y| y * y).sum::<f64>() / own.len() as f64).sqrt();
    let each = first.noise() * size;
    let mut measured = Vec::new();
    for ((right, own), due) in right.columns().into_iter().zip(own.columns()).zip(due.row(0)) {
        let off = (&own - &right).sum() / rows;
        let is_off = |(right, own): (&f64, &f64)| (own - right - off).abs() > ROOM * (each + first.noise() * own.abs());
        (!right.iter().zip(own).any(is_off)).then_some(())?;
        measured.push(Measured::new(due + off, each / rows.sqrt()));
    }
    Some((due.row(0).to_vec(), measured))
}

/// Another bias: of the right one, or of other vectors of the model.
pub(super) fn bias(case: &Case<'_>) -> Vec<Law> {
    let Some((due, measured)) = measured_bias(case) else { return Vec::new() };
    let law = |said: Said| {
        Law::new(Form::LinearBias, said.words, said.bits + 3.0, move |case, at| {
            let place = &case.places[at];
            let (due, mut out) = (bias_of(case, at)?, flat(&place.right)?);
            let other = (said.made)(case, at, &due.row(0).to_vec())?;
            (out.ncols() == other.len()).then_some(())?;
            out.indexed_iter_mut().for_each(|((t, c), y)| *y += other[c] - due[[t, c]]);
            out.to_shape(place.right.raw_dim()).ok().map(|out| out.into_owned())
        })
    };
    said(case, &BIAS, &due, &measured).into_iter().chain(of_weight(case, &due, &measured)).map(law).collect()
}

/// A bias that is made with the weight: multiplied by the size of its row, or the product of the weight and a vector that is added to the input.
fn of_weight(case: &Case<'_>, due: &[f64], measured: &[Measured]) -> Vec<Said> {
    let Some(weight) = weight_of(case, case.fitted) else { return Vec::new() };
    let width = weight.ncols();
    let mut all: Vec<(String, Made)> = Vec::new();
    type Way = fn(f64, f64) -> f64;
    let ways: [(&str, Way); 2] = [("times", |b, s| b * s), ("over", |b, s| b / s)];
    for (words, way) in ways {
        let made: Made = Arc::new(move |case, at, due| {
            let size = |row: ArrayView1<'_, f64>| row.iter().fold(0.0, |most: f64, w| most.max(w.abs()));
            Some(due.iter().zip(weight_of(case, at)?.rows()).map(|(b, row)| way(*b, size(row))).collect())
        });
        all.push((format!("the bias is the right one {words} the largest size of its row of the weight"), made));
    }
    for (name, _) in case.operation.vectors(case.fitted, width) {
        for (kept, by) in [("", 1.0), (", and no bias to the product", 0.0)] {
            let known = name.clone();
            let made: Made = Arc::new(move |case, at, due| {
                let added = weight_of(case, at)?.dot(&Array1::from(case.operation.vector(at, width, &known)?));
                Some(added.iter().zip(due).map(|(a, b)| a + by * b).collect())
            });
            all.push((format!("{name} is added to the input{kept}"), made));
        }
    }
    let fits = |(_, made): &(String, Made)| {
        made(case, case.fitted, due).is_some_and(|b| measured.iter().zip(b).all(|(m, b)| m.may_be(b)))
    };
    all.into_iter().filter(fits).map(|(words, made)| Said { words, is: None, bits: 6.0, made }).collect()
}

/// Other inputs, by what they are called.
fn library(case: &Case<'_>, at: usize) -> Vec<(String, ArrayD<f64>)> {
    let place = &case.places[at];
    let Some(x) = place.inputs.first() else { return Vec::new() };
    let mut all: Vec<(String, ArrayD<f64>)> = vec![("the input".into(), x.clone())];
    for (name, tensor) in &place.around {
        if tensor.len() == x.len() && tensor.shape().first() == x.shape().first() {
            all.extend(tensor.to_shape(x.raw_dim()).ok().map(|x| (name.clone(), x.into_owned())));
        }
    }
    all.extend(moved("the input", x));
    all.push(("the size of the input".into(), x.mapv(f64::abs)));
    let normed = by_row(x, over_root_mean_square);
    all.push(("the input over the root mean square of its row".into(), normed.clone()));
    all.push(("the positive part of the input".into(), x.mapv(|x| x.max(0.0))));
    if let &[_, width] = x.shape() {
        for (name, vector) in case.operation.vectors(at, width) {
            let vector = ndarray::Array1::from(vector);
            all.push((format!("the input times {name}"), x * &vector));
            all.push((format!("the input over {name}"), x / &vector));
            all.push((format!("the input normed, times {name}"), &normed * &vector));
        }
    }
    all.extend(aliased(place, x));
    all.retain(|(_, x)| x.iter().all(|x| x.is_finite()));
    all
}

/// Laws of what is read: another tensor, or a sum of two.
pub(super) fn inputs(case: &Case<'_>) -> Vec<Law> {
    let first = case.first();
    let all = library(case, case.fitted);
    let of = |x: &ArrayD<f64>| case.operation.apply(case.fitted, std::slice::from_ref(x));
    let subject = Subject::output(case);
    let nothing = first.inputs.first().and_then(|x| of(&ArrayD::zeros(x.raw_dim())));
    // What the product adds by itself (a bias) is not scaled with its input.
    let Some(bias) = nothing else { return Vec::new() };
    let made: Vec<(String, Vec<f64>)> = all
        .iter()
        .take_while(|_| case.has_time())
        .filter_map(|(name, x)| Some((name.clone(), of(x)?.iter().zip(&bias).map(|(y, b)| y - b).collect())))
        .collect();
    let wanted: Vec<f64> = first.own.iter().zip(&bias).map(|(y, b)| y - b).collect();
    let mut laws = Vec::new();
    let law = |terms: Vec<(String, Measured)>| {
        let numbers: Vec<_> = terms.iter().map(|(_, m)| m.number()).collect();
        let said: Vec<String> = terms
            .iter()
            .zip(&numbers)
            .map(|((name, _), n)| if n.value == 1.0 { name.clone() } else { format!("{} times {name}", n.words) })
            .collect();
        let bits = 4.0 + numbers.iter().map(|n| n.bits + choice(all.len())).sum::<f64>();
        let terms: Vec<(String, f64)> = terms.into_iter().zip(&numbers).map(|((name, _), n)| (name, n.value)).collect();
        let parameter = said.join(" + ");
        of_input(Form::LinearInput, format!("the product reads {parameter}"), bits, move |case, at| {
            let library = library(case, at);
            let mut sum: ArrayD<f64> = ArrayD::zeros(case.places[at].inputs.first()?.raw_dim());
            for (name, by) in &terms {
                sum.scaled_add(*by, &library.iter().find(|(known, _)| known == name)?.1);
            }
            Some(sum)
        })
        .with("input", parameter)
    };
    let noise = subject.noise;
    for (name, column) in made.iter().skip(1) {
        let fit = factor(column, &wanted, noise);
        if fit.left <= ROOM * noise && fit.coefficients[0].is_known() {
            laws.push(law(vec![(name.clone(), fit.coefficients[0])]));
        }
    }
    if laws.is_empty() {
        // Buffers of other sizes, which stand behind the others, are no terms of a sum.
        let terms = made.len().saturating_sub(aliased(first, &first.inputs[0]).len());
        for (a, (first, x)) in made[..terms].iter().enumerate().take_while(|_| case.has_time()) {
            for (second, y) in &made[a + 1..terms] {
                let Some(fit) = least_squares(&[x, y], &wanted, noise).filter(|fit| fit.left <= ROOM * noise) else {
                    continue;
                };
                if fit.coefficients.iter().all(|c| !c.may_be(0.0)) {
                    laws.push(law(vec![(first.clone(), fit.coefficients[0]), (second.clone(), fit.coefficients[1])]));
                }
            }
        }
    }
    laws
}

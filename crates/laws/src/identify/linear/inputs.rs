//! Another bias, and other inputs.

use std::sync::Arc;

use ndarray::{Array2, ArrayD};

use super::columns::orders_of;
use super::{ROOM, flat, of_input, weight_of};
use crate::case::{Axis, Case};
use crate::describe::function::describe as describe_function;
use crate::describe::source::describe as describe_source;
use crate::describe::{choice, function};
use crate::fit::{factor, least_squares};
use crate::identify::after::by_row;
use crate::identify::aliased::aliased;
use crate::identify::operands::over_root_mean_square;
use crate::identify::pool;
use crate::identify::subject::Subject;
use crate::identify::sums::moved;
use crate::law::{Form, Law};
use crate::number::Measured;

/// What a product adds by itself, `[T,F]`.
pub(super) fn bias_of(case: &Case<'_>, at: usize) -> Option<Array2<f64>> {
    flat(&case.operation.apply(at, &[ArrayD::zeros(case.places[at].inputs.first()?.raw_dim())])?)
}

/// Another bias, made of the right one.
pub(super) fn bias(case: &Case<'_>) -> Option<Law> {
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
        // The same at each position, or it is no bias.
        if right
            .iter()
            .zip(own)
            .any(|(right, own)| (own - right - off).abs() > ROOM * (each + first.noise() * own.abs()))
        {
            return None;
        }
        measured.push(Measured::new(due + off, each / rows.sqrt()));
    }
    let due = due.row(0).to_vec();
    let is_none = measured.iter().all(|m| m.may_be(0.0));
    let every = vec![true; due.len()];
    let (words, bits, f, has) = match is_none {
        true => ("the bias is left out".to_owned(), 3.0, Arc::new(|_: f64| 0.0) as function::Of, every),
        false => match (describe_function(&due, &measured), function::on_a_part(&due, &measured, Axis::Channel)) {
            (Some(function), _) => {
                (format!("the bias is {} (b: the right bias)", function.of("b")), function.bits, function.f, every)
            }
            (None, Some((function, set))) => {
                let on = set.words.clone()?;
                let words = format!("the bias is {} for {on}, else b (b: the right bias)", function.of("b"));
                (words, function.bits + set.bits, function.f, set.has)
            }
            (None, None) => return other_bias(case, &measured),
        },
    };
    Some(Law::new(Form::LinearBias, words, bits + 3.0, move |case, at| {
        let place = &case.places[at];
        let (due, right) = (bias_of(case, at)?, flat(&place.right)?);
        let mut out = right;
        (out.ncols() == has.len()).then_some(())?;
        for ((t, c), y) in out.indexed_iter_mut().filter(|((_, c), _)| has[*c]) {
            *y += f(due[[t, c]]) - due[[t, c]];
        }
        out.to_shape(place.right.raw_dim()).ok().map(|out| out.into_owned())
    }))
}

/// A bias that is another vector of the model, or a part of one; or the right one in another order.
fn other_bias(case: &Case<'_>, measured: &[Measured]) -> Option<Law> {
    let n = measured.len();
    let fits = |b: &[f64]| b.len() == n && measured.iter().zip(b).all(|(m, b)| m.may_be(*b));
    let law = |words: String, bits: f64, of: Vector| {
        Law::new(Form::LinearBias, words, bits, move |case, at| {
            let place = &case.places[at];
            let (due, mut out) = (bias_of(case, at)?, flat(&place.right)?);
            let other = of(case, at)?;
            (out.ncols() == other.len()).then_some(())?;
            for ((t, c), y) in out.indexed_iter_mut() {
                *y += other[c] - due[[t, c]];
            }
            out.to_shape(place.right.raw_dim()).ok().map(|out| out.into_owned())
        })
    };
    for parts in [1usize, 2, 3, 4, 8] {
        for (name, vector) in case.operation.vectors(case.fitted, parts * n) {
            if let Some(part) = (0..parts).find(|part| fits(&vector[part * n..(part + 1) * n])) {
                let said = match parts {
                    1 => format!("the bias is {name}"),
                    _ => format!("the bias is part {} of {parts} of {name}", part + 1),
                };
                let of: Vector = Arc::new(move |case, at| {
                    Some(case.operation.vector(at, parts * n, &name)?[part * n..(part + 1) * n].to_vec())
                });
                return Some(law(said, 8.0 + choice(parts), of));
            }
        }
    }
    let due = bias_of(case, case.fitted)?.row(0).to_vec();
    if let Some(law) = made_bias(case, &due, &fits, &law) {
        return Some(law);
    }
    if let Some(found) = pool::found(case, &due, measured) {
        let of: Vector = Arc::new(move |case, at| (found.of)(case, at, &bias_of(case, at)?.row(0).to_vec()));
        return Some(law(format!("of the biases {}", found.words), found.bits, of));
    }
    let of_blocks = (2..=n / 2).filter(|b| n.is_multiple_of(*b)).flat_map(|b| {
        let of = |f: &dyn Fn(usize) -> usize| (0..n).map(f).collect::<Vec<usize>>();
        [of(&|i| i / b * b), of(&|i| i / b * b + b - 1), of(&|i| i % b), of(&|i| i / b)]
    });
    let (_, from) = orders_of(n)
        .into_iter()
        .chain(of_blocks)
        .map(|from| (from.iter().map(|i| due[*i]).collect::<Vec<f64>>(), from))
        .find(|(b, _)| fits(b))?;
    let known: Vec<Option<usize>> = from.iter().map(|i| Some(*i)).collect();
    let source = describe_source(&known, n, Axis::Channel);
    let of: Vector = Arc::new(move |case, at| {
        let due = bias_of(case, at)?;
        (due.ncols() == from.len()).then(|| from.iter().map(|i| due[[0, *i]]).collect())
    });
    Some(law(format!("channel i has the bias of {}", source.words), source.bits + 4.0, of))
}

/// A bias that is a product: of the right one and another vector, or of the weight and a vector that is added to the input.
fn made_bias(
    case: &Case<'_>,
    due: &[f64],
    fits: &dyn Fn(&[f64]) -> bool,
    law: &dyn Fn(String, f64, Vector) -> Law,
) -> Option<Law> {
    let n = due.len();
    let times = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).collect::<Vec<f64>>();
    for (name, vector) in case.operation.vectors(case.fitted, n) {
        if fits(&times(due, &vector)) {
            let said = format!("the bias is the right one times {name}");
            let of: Vector = Arc::new(move |case, at| {
                let due = bias_of(case, at)?.row(0).to_vec();
                Some(times(&due, &case.operation.vector(at, due.len(), &name)?))
            });
            return Some(law(said, 8.0, of));
        }
    }
    let weight = weight_of(case, case.fitted)?;
    let sizes = |weight: &Array2<f64>| -> Vec<f64> {
        weight.rows().into_iter().map(|row| row.iter().fold(0.0, |most: f64, w| most.max(w.abs()))).collect()
    };
    type Way = fn(f64, f64) -> f64;
    let ways: [(&str, Way); 2] = [
        ("times the largest size of its row of the weight", |b, s| b * s),
        ("over the largest size of its row of the weight", |b, s| b / s),
    ];
    for (words, way) in ways {
        let made =
            move |due: &[f64], sizes: &[f64]| due.iter().zip(sizes).map(|(b, s)| way(*b, *s)).collect::<Vec<f64>>();
        if fits(&made(due, &sizes(&weight))) {
            let of: Vector = Arc::new(move |case, at| {
                Some(made(&bias_of(case, at)?.row(0).to_vec(), &sizes(&weight_of(case, at)?)))
            });
            return Some(law(format!("the bias is the right one {words}"), 9.0, of));
        }
    }
    let width = weight.ncols();
    for (name, vector) in case.operation.vectors(case.fitted, width) {
        let added = weight.dot(&ndarray::Array1::from(vector));
        for is_kept in [false, true] {
            let all: Vec<f64> = added.iter().zip(due).map(|(a, b)| if is_kept { a + b } else { *a }).collect();
            if fits(&all) {
                let kept = if is_kept { "" } else { ", and no bias to the product" };
                let said = format!("{name} is added to the input{kept}");
                let of: Vector = Arc::new(move |case, at| {
                    let vector = ndarray::Array1::from(case.operation.vector(at, width, &name)?);
                    let (added, due) = (weight_of(case, at)?.dot(&vector), bias_of(case, at)?);
                    Some(added.iter().zip(due.row(0)).map(|(a, b)| if is_kept { a + b } else { *a }).collect())
                });
                return Some(law(said, 9.0, of));
            }
        }
    }
    None
}

/// A vector, made of what is at a place.
type Vector = Arc<dyn Fn(&Case<'_>, usize) -> Option<Vec<f64>> + Send + Sync>;

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

//! Products that are off by a number of each row of the input times a number of each row of the weight: an offset that is not taken off, a bias or a scale that
//! is multiplied once too often.

use std::sync::Arc;

use ndarray::Array2;

use super::inputs::bias_of;
use super::{ROOM, flat, weight_of};
use crate::case::Case;
use crate::fit::{factor, least_squares};
use crate::identify::norm::product;
use crate::identify::scales::SIZES;
use crate::law::{Form, Law};
use crate::number::Measured;

/// A number of each row.
type OfRow = fn(&[f64]) -> f64;

/// What a row of the input or of the weight may be told by.
fn statistics() -> Vec<(&'static str, OfRow)> {
    let more: [(&str, OfRow); 5] = [
        ("sum", |row| row.iter().sum()),
        ("sum of sizes", |row| row.iter().map(|x| x.abs()).sum()),
        ("length", |row| row.iter().map(|x| x * x).sum::<f64>().sqrt()),
        ("largest number", |row| row.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
        ("smallest number", |row| row.iter().copied().fold(f64::INFINITY, f64::min)),
    ];
    SIZES.into_iter().chain(more).collect()
}

fn by_row(x: &Array2<f64>, f: OfRow) -> Vec<f64> {
    x.rows().into_iter().map(|row| f(&row.to_vec())).collect()
}

/// A number of each output, at a place.
type OfOutputs = Arc<dyn Fn(&Case<'_>, usize) -> Option<Vec<f64>> + Send + Sync>;

/// Numbers that outputs may have: of the rows of the weight, the bias, and both.
fn of_outputs() -> Vec<(String, f64, OfOutputs)> {
    let mut all: Vec<(String, f64, OfOutputs)> =
        vec![("one".into(), 1.0, Arc::new(|case, at| Some(vec![1.0; flat(&case.places[at].right)?.ncols()])))];
    all.push(("its bias".into(), 3.0, Arc::new(|case, at| Some(bias_of(case, at)?.row(0).to_vec()))));
    for (called, f) in statistics() {
        for (power, words) in [(1, ""), (2, "the square of "), (-1, "1 over "), (-2, "1 over the square of ")] {
            let of: OfOutputs = Arc::new(move |case, at| {
                Some(by_row(&weight_of(case, at)?, f).into_iter().map(|x| x.powi(power)).collect())
            });
            let bits = 5.0 + f64::from(power.abs()) + if power < 0 { 1.0 } else { 0.0 };
            all.push((format!("{words}the {called} of its row of the weight"), bits, of));
        }
    }
    all
}

/// The laws of a product that is off by a number of each row times a number of each output, added or multiplied.
pub(super) fn outer(case: &Case<'_>) -> Vec<Law> {
    let first = case.first();
    let read =
        || Some((flat(first.inputs.first()?)?, flat(&first.right)?, flat(&first.own)?, bias_of(case, case.fitted)?));
    let Some((x, right, own, bias)) = read() else { return Vec::new() };
    let mut laws = Vec::new();
    for is_added in [true, false] {
        let (base, wanted) =
            if is_added { (Array2::ones(own.dim()), &own - &right) } else { (&right - &bias, &own - &bias) };
        let size = |x: &Array2<f64>| x.iter().map(|x| x * x).sum::<f64>().sqrt();
        let noise = first.noise() * size(&own) / size(&wanted).max(f64::MIN_POSITIVE);
        if base.nrows() < 4 || base.ncols() < 4 || noise > MOST_NOISE {
            continue;
        }
        let of = product(&base, &wanted, noise);
        if of.left > ROOM * noise {
            continue;
        }
        let measured: Vec<f64> = of.gain.iter().map(|m| m.value).collect();
        for (called, bits, outputs) in of_outputs() {
            let Some(values) = outputs(case, case.fitted).filter(|values| values.iter().any(|v| *v != 0.0)) else {
                continue;
            };
            let by = factor(&values, &measured, noise).coefficients[0].value;
            let is_it = by != 0.0 && by.is_finite() && of.gain.iter().zip(&values).all(|(m, v)| m.may_be(by * v));
            if !is_it {
                continue;
            }
            let rows: Vec<Measured> = of.rows.iter().map(|m| Measured::new(m.value * by, m.error * by.abs())).collect();
            laws.extend(of_rows(&x, &rows).into_iter().map(|rows| law(is_added, (&called, bits, &outputs), rows)));
        }
    }
    laws.sort_by(|a, b| a.bits.total_cmp(&b.bits));
    laws.truncate(MOST);
    laws
}

/// Laws that are kept.
const MOST: usize = 6;
/// What is measured with more noise tells nothing.
const MOST_NOISE: f64 = 1e-2;

/// What each row of the input makes: a s + b.
struct Rows {
    words: String,
    bits: f64,
    f: OfRow,
    a: f64,
    b: f64,
}

fn of_rows(x: &Array2<f64>, measured: &[Measured]) -> Vec<Rows> {
    let one = Measured::mean(measured.iter().copied());
    if measured.iter().all(|m| m.may_be(one.value)) {
        let number = one.number();
        return vec![Rows { words: number.words, bits: number.bits, f: |_| 1.0, a: number.value, b: 0.0 }];
    }
    let weight: Vec<f64> = measured.iter().map(|m| 1.0 / m.error.max(1e-300)).collect();
    let by = |x: &[f64]| x.iter().zip(&weight).map(|(x, w)| x * w).collect::<Vec<f64>>();
    let wanted = by(&measured.iter().map(|m| m.value).collect::<Vec<_>>());
    let size = (wanted.iter().map(|x| x * x).sum::<f64>() / wanted.len() as f64).sqrt();
    let mut all = Vec::new();
    for (called, f) in statistics() {
        let of = by_row(x, f);
        let alone = least_squares(&[&by(&of)], &wanted, 1.0 / size);
        let with_one = least_squares(&[&by(&of), &weight], &wanted, 1.0 / size);
        let mut tries = Vec::new();
        for fit in [alone, with_one].into_iter().flatten() {
            let number = |at: usize, is_plain: bool| {
                fit.coefficients.get(at).map(|m| if is_plain { m.plain() } else { m.number() })
            };
            tries.extend(
                [false, true].into_iter().filter_map(|is_plain| Some((number(0, is_plain)?, number(1, is_plain)))),
            );
        }
        for (a, b) in tries {
            let (times, plus) = (a.value, b.as_ref().map_or(0.0, |b| b.value));
            if measured.iter().zip(&of).all(|(m, s)| m.may_be(times * s + plus)) {
                let said =
                    if plus == 0.0 { String::new() } else { format!(" plus {}", b.as_ref().map_or("", |b| &b.words)) };
                let by = if times == 1.0 { String::new() } else { format!("{} times ", a.words) };
                let words = format!("{by}the {called} of the row of the input{said}");
                let bits = 5.0 + a.bits + b.map_or(0.0, |b| if plus == 0.0 { 0.0 } else { b.bits });
                all.push(Rows { words, bits, f, a: times, b: plus });
                break;
            }
        }
    }
    all
}

fn law(is_added: bool, (called, bits, outputs): (&str, f64, &OfOutputs), rows: Rows) -> Law {
    let words = match is_added {
        true => format!("to each output is added {}, times {called}", rows.words),
        false => format!("each output, less its bias, is multiplied by {}, times {called}", rows.words),
    };
    let outputs = outputs.clone();
    let form = if called == "its bias" { Form::LinearBias } else { Form::LinearWeight };
    Law::new(form, words, 4.0 + bits + rows.bits, move |case, at| {
        let place = &case.places[at];
        let (x, mut out, bias) = (flat(place.inputs.first()?)?, flat(&place.right)?, bias_of(case, at)?);
        let (of, numbers) = (by_row(&x, rows.f), outputs(case, at)?);
        (numbers.len() == out.ncols() && of.len() == out.nrows() && bias.dim() == out.dim()).then_some(())?;
        for ((t, c), y) in out.indexed_iter_mut() {
            let by = (rows.a * of[t] + rows.b) * numbers[c];
            *y = if is_added { *y + by } else { (*y - bias[[t, c]]) * by + bias[[t, c]] };
        }
        out.to_shape(place.right.raw_dim()).ok().map(|out| out.into_owned())
    })
}

//! Products that are off by a number of each row of the input times a number of each row of the weight: an offset that is not taken off, a bias or a scale that
//! is multiplied once too often.

use std::sync::Arc;

use ndarray::Array2;

use super::inputs::bias_of;
use super::{ROOM, flat, weight_of};
use crate::case::Case;
use crate::fit::{factor, weighed};
use crate::identify::norm::product;
use crate::identify::statistics::{DIVISORS, SIGNED, SIZES, Statistic};
use crate::law::{Form, Law};
use crate::number::Measured;

/// A number of each row.
type OfRow = fn(&[f64]) -> f64;

/// The price of a statistic up to which a row of the input or of the weight may be told by it.
const PLAIN: f64 = 6.0;

/// What a row of the input or of the weight may be told by.
fn statistics() -> impl Iterator<Item = Statistic> {
    let sizes = DIVISORS.into_iter().filter(|(_, bits)| *bits <= PLAIN).map(|(statistic, _)| statistic);
    sizes.chain(SIGNED)
}

fn by_row(x: &Array2<f64>, f: OfRow) -> Vec<f64> {
    x.rows().into_iter().map(|row| f(&row.to_vec())).collect()
}

/// A number of each output, at a place.
type OfOutputs = Arc<dyn Fn(&Case<'_>, usize) -> Option<Vec<f64>> + Send + Sync>;

/// Numbers that outputs may have, and what law that is where the product is off by them.
struct Outputs {
    words: String,
    bits: f64,
    form: Form,
    of: OfOutputs,
}

impl Outputs {
    fn of_weight(words: String, bits: f64, of: OfOutputs) -> Outputs {
        Outputs { words, bits, form: Form::LinearWeight, of }
    }
}

/// Numbers that outputs may have: of the rows of the weight, the bias, and both.
fn of_outputs(case: &Case<'_>) -> Vec<Outputs> {
    let ones: OfOutputs = Arc::new(|case, at| Some(vec![1.0; flat(&case.places[at].right)?.ncols()]));
    let bias: OfOutputs = Arc::new(|case, at| Some(bias_of(case, at)?.row(0).to_vec()));
    let mut all = vec![
        Outputs::of_weight("one".into(), 1.0, ones),
        Outputs { words: "its bias".into(), bits: 3.0, form: Form::LinearBias, of: bias },
    ];
    // The scale of a row of another matrix of as many rows.
    for name in case.operation.other_weights(case.fitted) {
        for (called, f) in SIZES.into_iter().take(2) {
            let known = name.clone();
            let of: OfOutputs = Arc::new(move |case, at| {
                let (own, other) = (weight_of(case, at)?, case.operation.other_weight(at, &known)?);
                let (own, other) = (by_row(&own, f), by_row(&other, f));
                (own.len() == other.len()).then(|| other.iter().zip(own).map(|(other, own)| other / own).collect())
            });
            let words = format!("the {called} of that row of the weight of {name} over that of its own");
            all.push(Outputs::of_weight(words, 9.0, of));
        }
    }
    for (called, f) in statistics() {
        for (power, words) in [(1, ""), (2, "the square of "), (-1, "1 over "), (-2, "1 over the square of ")] {
            let of: OfOutputs = Arc::new(move |case, at| {
                Some(by_row(&weight_of(case, at)?, f).into_iter().map(|x| x.powi(power)).collect())
            });
            let bits = 5.0 + f64::from(power.abs()) + if power < 0 { 1.0 } else { 0.0 };
            all.push(Outputs::of_weight(format!("{words}the {called} of its row of the weight"), bits, of));
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
    let ways = [Way::Added, Way::Multiplied, Way::ForBias];
    for way in ways.into_iter().take(if bias.iter().any(|b| *b != 0.0) { 3 } else { 2 }) {
        let (base, wanted) = match way {
            Way::Added => (Array2::ones(own.dim()), &own - &right),
            Way::ForBias => (Array2::ones(own.dim()), &own - &right + &bias),
            Way::Multiplied => (&right - &bias, &own - &bias),
        };
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
        for outputs in of_outputs(case) {
            let Some(values) = (outputs.of)(case, case.fitted).filter(|values| values.iter().any(|v| *v != 0.0)) else {
                continue;
            };
            let by = factor(&values, &measured, noise).coefficients[0].value;
            let is_it = by != 0.0 && by.is_finite() && of.gain.iter().zip(&values).all(|(m, v)| m.may_be(by * v));
            if !is_it {
                continue;
            }
            let rows: Vec<Measured> = of.rows.iter().map(|m| Measured::new(m.value * by, m.error * by.abs())).collect();
            laws.extend(of_rows(&x, &rows, &bias).into_iter().map(|rows| law(way, &outputs, rows)));
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

/// How a number of each row and one of each output change the product.
#[derive(Clone, Copy)]
enum Way {
    Added,
    Multiplied,
    /// Added to the product without its bias.
    ForBias,
}

/// Where the number of a row is from.
#[derive(Clone, Copy)]
enum OfPosition {
    Row(OfRow),
    /// The bias has it, by the position's number.
    Bias,
}

/// What each row of the input makes: a s + b.
struct Rows {
    words: String,
    bits: f64,
    f: OfPosition,
    a: f64,
    b: f64,
}

fn of_rows(x: &Array2<f64>, measured: &[Measured], bias: &Array2<f64>) -> Vec<Rows> {
    // The bias along the wrong axis.
    let is_of_position = |(t, m): (usize, &Measured)| m.may_be(bias[[0, t % bias.ncols()]]);
    if bias.iter().any(|b| *b != 0.0) && measured.iter().enumerate().all(is_of_position) {
        let words = "element t of the bias at position t".to_owned();
        return vec![Rows { words, bits: 5.0, f: OfPosition::Bias, a: 1.0, b: 0.0 }];
    }
    let one = Measured::mean(measured.iter().copied());
    if measured.iter().all(|m| m.may_be(one.value)) {
        let number = one.number();
        return vec![Rows {
            words: number.words,
            bits: number.bits,
            f: OfPosition::Row(|_| 1.0),
            a: number.value,
            b: 0.0,
        }];
    }
    let ones = vec![1.0; measured.len()];
    let mut all = Vec::new();
    for (called, f) in statistics() {
        let of = by_row(x, f);
        let alone = weighed(&[&of], measured);
        let with_one = weighed(&[&of, &ones], measured);
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
                all.push(Rows { words, bits, f: OfPosition::Row(f), a: times, b: plus });
                break;
            }
        }
    }
    all
}

fn law(way: Way, outputs: &Outputs, rows: Rows) -> Law {
    let called = &outputs.words;
    let words = match way {
        Way::Added => format!("to each output is added {}, times {called}", rows.words),
        Way::ForBias => format!("in place of the bias, to each output is added {}, times {called}", rows.words),
        Way::Multiplied if rows.words == "1" => format!("each output, less its bias, is multiplied by {called}"),
        Way::Multiplied => format!("each output, less its bias, is multiplied by {}, times {called}", rows.words),
    };
    let of_outputs = outputs.of.clone();
    let form = if matches!(way, Way::ForBias) { Form::LinearBias } else { outputs.form };
    Law::new(form, words, 4.0 + outputs.bits + rows.bits, move |case, at| {
        let place = &case.places[at];
        let (x, mut out, bias) = (flat(place.inputs.first()?)?, flat(&place.right)?, bias_of(case, at)?);
        let of = match rows.f {
            OfPosition::Row(f) => by_row(&x, f),
            OfPosition::Bias => (0..out.nrows()).map(|t| bias[[0, t % bias.ncols()]]).collect(),
        };
        let numbers = of_outputs(case, at)?;
        (numbers.len() == out.ncols() && of.len() == out.nrows() && bias.dim() == out.dim()).then_some(())?;
        for ((t, c), y) in out.indexed_iter_mut() {
            let (by, b) = ((rows.a * of[t] + rows.b) * numbers[c], bias[[t, c]]);
            *y = match way {
                Way::Added => *y + by,
                Way::ForBias => *y - b + by,
                Way::Multiplied => (*y - b) * by + b,
            };
        }
        out.to_shape(place.right.raw_dim()).ok().map(|out| out.into_owned())
    })
}

//! A tensor times a factor for each row and a factor for each channel: what was normed once too often or not at all, and with whose gain.

use std::sync::Arc;

use ndarray::{Array2, ArrayD};

use super::norm::product;
use super::replaced::others;
use crate::case::{Axis, Case};
use crate::describe::set::describe as describe_set;
use crate::describe::table::describe as describe_table;
use crate::fit::{ROOM, factor, weighed};
use crate::identify::statistics::{self, mean_square};
use crate::identify::subject::{Subject, two};
use crate::law::{Form, Law};
use crate::number::{Measured, Number};

/// A part of the channels that is dearer to say is none.
const DEAR: f64 = 40.0;

/// What is made of an element of a vector.
type OfElement = fn(f64) -> f64;

/// A factor for each channel, of what the model has.
#[derive(Clone)]
struct Gain {
    words: String,
    bits: f64,
    /// The vector, by its name, and what is made of its elements; none is a factor of one.
    vector: Option<(String, OfElement)>,
    /// On which channels; elsewhere it is one.
    has: Vec<bool>,
}

impl Gain {
    fn values(&self, case: &Case<'_>, place: usize) -> Option<Vec<f64>> {
        let n = self.has.len();
        let Some((name, f)) = &self.vector else { return Some(vec![1.0; n]) };
        let vector = case.operation.vector(place, n, name)?;
        Some(vector.iter().zip(&self.has).map(|(v, has)| if *has { f(*v) } else { 1.0 }).collect())
    }
}

/// Factors of a source's rows.
type Factors = Arc<dyn Fn(&Array2<f64>) -> Option<Vec<f64>> + Send + Sync>;

/// A factor for each row.
#[derive(Clone)]
struct Rows {
    words: String,
    bits: f64,
    of: Factors,
}

/// The subject as a product: its rows, those of its heads, and its slices along any other axis.
pub(super) fn laws(subject: &Subject, case: &Case<'_>) -> Vec<Law> {
    let mut views: Vec<Subject> = Vec::new();
    if subject.axes.len() == 3 && subject.right.ndim() == 3 {
        // Each head has rows of its own.
        let rows = |shape: &[usize]| Some(shape.iter().rev().skip(1).product());
        views.extend(subject.as_matrix(vec![Axis::Row, Axis::Dim], rows));
    }
    views.extend((0..subject.axes.len()).map(|axis| subject.by_slices(axis)));
    let found = views.iter().map(|view| of_matrix(view, case)).find(|laws| !laws.is_empty());
    found.unwrap_or_default()
}

/// The subject `[T,F]` as a product.
fn of_matrix(subject: &Subject, case: &Case<'_>) -> Vec<Law> {
    let Some(own) = two(&subject.own) else { return Vec::new() };
    let mut sources = vec![(None, subject.right.clone())];
    // Other tensors stand as the subject does in its first view alone.
    sources.extend(others(case, case.fitted, &subject.right).map(|(name, x)| (Some(name), x)));
    let mut laws = Vec::new();
    for (name, source) in sources {
        let Some(x) = two(&source).filter(|x| x.nrows() > 1 && x.ncols() > 3) else { continue };
        let of = product(&x, &own, subject.noise);
        if of.left > ROOM * subject.noise || !case.has_time() {
            continue;
        }
        for gain in gains(case, &of.gain) {
            let Some(values) = gain.values(case, case.fitted) else { continue };
            let measured: Vec<f64> = of.gain.iter().map(|m| m.value).collect();
            let by = factor(&values, &measured, subject.noise).coefficients[0].value;
            let factors: Vec<Measured> =
                of.rows.iter().map(|m| Measured::new(m.value * by, m.error * by.abs())).collect();
            for rows in rows_of(&x, &factors, subject.axes[0], case) {
                laws.push(law(subject, name.as_deref(), &gain, &rows));
            }
        }
    }
    laws
}

/// Gains that the measured factors are in proportion to.
fn gains(case: &Case<'_>, measured: &[Measured]) -> Vec<Gain> {
    let n = measured.len();
    let mut all = Vec::new();
    let every = vec![true; n];
    let fits = |values: &[f64]| {
        let own: Vec<f64> = measured.iter().map(|m| m.value).collect();
        let by = factor(values, &own, 1e-12).coefficients[0].value;
        by != 0.0 && measured.iter().zip(values).all(|(m, v)| m.may_be(by * v))
    };
    if fits(&vec![1.0; n]) {
        all.push(Gain { words: String::new(), bits: 0.0, vector: None, has: every.clone() });
    }
    for (name, vector) in case.operation.vectors(case.fitted, n) {
        if vector.iter().any(|v| *v == 0.0 || !v.is_finite()) {
            continue;
        }
        type Way = (&'static str, f64, OfElement);
        let ways: [Way; 3] = [("times", 8.0, |v| v), ("over", 8.0, |v| 1.0 / v), ("times 1 plus", 10.0, |v| 1.0 + v)];
        for (way, price, f) in ways {
            let of: Vec<f64> = vector.iter().map(|v| f(*v)).collect();
            let (said, known) = (format!("{way} {name}"), Some((name.clone(), f)));
            if fits(&of) {
                all.push(Gain { words: said, bits: price, vector: known, has: every.clone() });
                continue;
            }
            // On some channels: elsewhere the factor is one number, and so is the scale that rows and channels share.
            let scales = [
                1.0,
                measured[0].value,
                measured[0].value / of[0],
                measured[n - 1].value,
                measured[n - 1].value / of[n - 1],
            ];
            let told = |scale: f64| -> Option<Vec<Option<bool>>> {
                let is = |(m, v): (&Measured, &f64)| match (m.may_be(scale * v), m.may_be(scale)) {
                    (true, true) => Some(None),
                    (false, false) => None,
                    (is, _) => Some(Some(is)),
                };
                measured.iter().zip(&of).map(is).collect()
            };
            let meant = scales.into_iter().find_map(told);
            let Some(meant) = meant.filter(|meant| meant.contains(&Some(true))) else { continue };
            let set = describe_set(&meant, Axis::Channel, None);
            let Some(on) = set.words.clone().filter(|_| set.bits <= DEAR) else { continue };
            let words = format!("{said} in {on}");
            all.push(Gain { words, bits: price + 1.0 + set.bits, vector: known, has: set.has });
        }
    }
    all
}

/// What the factors of the rows may be.
fn rows_of(x: &Array2<f64>, measured: &[Measured], axis: Axis, case: &Case<'_>) -> Vec<Rows> {
    let mut all: Vec<Rows> = Vec::new();
    let one = Measured::mean(measured.iter().copied());
    if measured.iter().all(|m| m.may_be(one.value)) {
        let number = one.number();
        let by = number.value;
        let words = if by == 1.0 { String::new() } else { format!("times {}", number.words) };
        let bits = if by == 1.0 { 0.0 } else { number.bits };
        all.push(Rows { words, bits, of: Arc::new(move |x| Some(vec![by; x.nrows()])) });
        return all;
    }
    // Over the root of the mean square, perhaps with an epsilon.
    let squares = |x: &Array2<f64>| x.rows().into_iter().map(|row| mean_square(&row.to_vec())).collect::<Vec<f64>>();
    let wanted: Vec<Measured> = measured.iter().map(|m| m.powi(-2)).collect();
    let ones = vec![1.0; x.nrows()];
    if let Some(fit) = weighed(&[&squares(x), &ones], &wanted) {
        // The root of the mean square and an epsilon, and what that is multiplied by.
        let [by, plus] = [fit.coefficients[0], fit.coefficients[1]];
        let (a, e) = (by.number(), plus.over(by).number());
        let scale = a.value;
        let made = move |x: &Array2<f64>, epsilon: f64| -> Vec<f64> {
            x.rows().into_iter().map(|row| (scale * (mean_square(&row.to_vec()) + epsilon)).sqrt().recip()).collect()
        };
        // Of an epsilon little is known, as it is small beside the squares: that of a model is a power of ten.
        let power = (e.value > 0.0).then(|| Measured::new(10f64.powf(e.value.log10().round()), 0.0).plain());
        let fits = |e: &Number| made(x, e.value).iter().zip(measured).all(|(made, m)| m.may_be(*made));
        if let Some(e) = power.into_iter().chain([e]).find(fits).filter(|_| scale > 0.0) {
            let epsilon = e.value;
            let scaled = if scale == 1.0 {
                String::new()
            } else {
                format!(" times {}", Measured::new(scale.sqrt(), 1e-9).number().words)
            };
            let plus = if epsilon == 0.0 { String::new() } else { format!(" (epsilon {})", e.words) };
            all.push(Rows {
                words: format!("over the root mean square of its row{plus}{scaled}"),
                bits: 4.0 + if scale == 1.0 { 0.0 } else { a.bits } + if epsilon == 0.0 { 0.0 } else { e.bits },
                of: Arc::new(move |x| Some(made(x, epsilon))),
            });
        }
    }
    all.extend(of_statistics(x, measured));
    if let Some(table) = describe_table(measured, axis, Some(1.0), case.tokens_of(axis)) {
        let values = table.values;
        all.push(Rows {
            words: format!("times {}", table.words),
            bits: table.bits + 4.0,
            of: Arc::new(move |x| (x.nrows() == values.len()).then(|| values.clone())),
        });
    }
    all
}

/// A number times a statistic of the row, or over the statistic, perhaps with an epsilon beside it.
fn of_statistics(x: &Array2<f64>, measured: &[Measured]) -> Vec<Rows> {
    // 1/m = (s + e)/c
    let over: Vec<Measured> = measured.iter().map(|m| m.inverse()).collect();
    let ones = vec![1.0; over.len()];
    let mut all: Vec<Rows> = Vec::new();
    for (words, f) in statistics::plain() {
        let of: Vec<f64> = x.rows().into_iter().map(|row| f(&row.to_vec())).collect();
        let mut offer = |said: String, epsilon: &Number, times: &Number, made: fn(f64, f64, f64) -> f64| {
            let (c, e) = (times.value, epsilon.value);
            if c == 0.0 || !of.iter().zip(measured).all(|(s, m)| m.may_be(made(*s, c, e))) {
                return;
            }
            let plus = if e == 0.0 { String::new() } else { format!(" plus {}", epsilon.words) };
            let scaled = if c == 1.0 { String::new() } else { format!(", times {}", times.words) };
            let price = |number: &Number, usual: f64| if number.value == usual { 0.0 } else { number.bits };
            all.push(Rows {
                words: format!("{said}{plus}{scaled}"),
                // Without an epsilon it is a reading of each row, and what is done behind it.
                bits: if e == 0.0 { 10.0 } else { 6.0 } + price(epsilon, 0.0) + price(times, 1.0),
                of: Arc::new(move |x| Some(x.rows().into_iter().map(|row| made(f(&row.to_vec()), c, e)).collect())),
            });
        };
        let factor = |m: &Measured, s: f64| Measured::new(m.value * s, m.error * s.abs());
        let mean =
            |by: fn(f64) -> f64| Measured::mean(measured.iter().zip(&of).map(|(m, s)| factor(m, by(*s)))).number();
        let nothing = Number { value: 0.0, words: "0".into(), bits: 0.0 };
        if of.iter().all(|s| *s != 0.0) {
            offer(format!("over the {words} of its row"), &nothing, &mean(|s| s), |s, c, e| c / (s + e));
            offer(format!("times the {words} of its row"), &nothing, &mean(|s| 1.0 / s), |s, c, _| c * s);
        }
        let Some(fit) = weighed(&[&of, &ones], &over) else { continue };
        let [slope, rest] = fit.coefficients[..] else { continue };
        if !slope.may_be(0.0) && !rest.may_be(0.0) && rest.value * slope.value > 0.0 {
            let (times, epsilon) = (slope.inverse().number(), rest.over(slope).number());
            offer(format!("over the {words} of its row"), &epsilon, &times, |s, c, e| c / (s + e));
        }
    }
    all
}

fn law(subject: &Subject, name: Option<&str>, gain: &Gain, rows: &Rows) -> Law {
    let parts = [name.unwrap_or("the right one"), &rows.words, &gain.words];
    let said: Vec<&str> = parts.into_iter().filter(|words| !words.is_empty()).collect();
    let words = format!("{} is {}", subject.label, said.join(", "));
    let bits = 1.0 + rows.bits + gain.bits + name.map_or(0.0, |_| 6.0);
    let (known, gain, rows_at) = (name.map(str::to_owned), gain.clone(), rows.of.clone());
    let made = move |case: &Case<'_>, place: usize, right: &ArrayD<f64>| {
        let source = match &known {
            None => right.clone(),
            Some(name) => others(case, place, right).find(|(known, _)| known == name)?.1,
        };
        let x = source.into_dimensionality::<ndarray::Ix2>().ok()?;
        let (rows, gain) = (rows_at(&x)?, gain.values(case, place)?);
        (gain.len() == x.ncols() && rows.len() == x.nrows()).then_some(())?;
        let out = Array2::from_shape_fn(x.dim(), |(t, c)| x[[t, c]] * rows[t] * gain[c]);
        Some(out.into_dyn())
    };
    let mut law = subject.law_of_place(Form::OutputScale, words, bits, made);
    if let Some(name) = name {
        law = law.with("input", name.to_owned());
    }
    law
}

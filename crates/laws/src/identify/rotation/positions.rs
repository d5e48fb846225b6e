//! Angles of other positions and of other frequencies.

use std::f64::consts::PI;
use std::sync::Arc;

use ndarray::Array2;
use num_complex::Complex;

use super::turns::angles;
use super::{Frequencies, How, Made, Right};
use crate::case::Axis;
use crate::describe::choice;
use crate::describe::set::describe as describe_set;
use crate::describe::source::describe as describe_source;
use crate::describe::table::{bits_of, describe as describe_table};
use crate::fit::weighed;
use crate::law::{Form, Law, Parameters};
use crate::number::{Measured, SURE, shortest};

/// Positions that an engine may count.
pub(super) fn steps(n: usize) -> Vec<(Option<&'static str>, Vec<f64>, f64)> {
    let of = |f: fn(usize) -> usize| (0..n).map(|t| f(t) as f64).collect::<Vec<_>>();
    vec![
        (None, of(|t| t), 0.0),
        (Some("counted in pairs (position div 2)"), of(|t| t / 2), 4.0),
        (Some("counted in fours (position div 4)"), of(|t| t / 4), 5.0),
    ]
}

/// The position that a row's angles belong to: told roughly by slow pairs, and finely by fast ones.
pub(super) fn position(angle: &Array2<f64>, error: &Array2<f64>, t: usize, right: &[f64]) -> Option<Measured> {
    let mut order: Vec<usize> =
        (0..right.len()).filter(|&j| right[j].abs() > 0.0 && angle[[t, j]].is_finite()).collect();
    order.sort_by(|&a, &b| right[a].abs().total_cmp(&right[b].abs()));
    let slowest = *order.first()?;
    let mut at = Measured::new(angle[[t, slowest]] / right[slowest], error[[t, slowest]] / right[slowest].abs());
    for &pair in order.iter().skip(1) {
        let turn = 2.0 * PI / right[pair].abs();
        let near = angle[[t, pair]] / right[pair];
        let value = near + ((at.value - near) / turn).round() * turn;
        let own = Measured::new(value, error[[t, pair]] / right[pair].abs());
        // A pair whose turn cannot be told yet says nothing.
        if SURE * at.error < 0.5 * turn {
            at = Measured::mean([at, own].into_iter());
        }
    }
    at.is_known().then_some(at)
}

/// Base and first frequency of a geometric row.
fn base_of(measured: &[Measured]) -> Option<(Measured, Measured)> {
    let n = measured.len();
    if n < 3 || measured.iter().any(|m| m.value.is_nan() || m.value <= 0.0 || m.error > 0.2 * m.value) {
        return None;
    }
    let logs: Vec<Measured> =
        measured.iter().map(|m| Measured::new(m.value.ln(), (m.error / m.value).max(1e-13))).collect();
    let index: Vec<f64> = (0..n).map(|j| j as f64).collect();
    let [first, slope] = weighed(&[&vec![1.0; n], &index], &logs)?.coefficients[..] else { return None };
    let fits = measured.iter().enumerate().all(|(j, m)| m.may_be((first.value + slope.value * j as f64).exp()));
    let pairs = n as f64;
    let (base, begin) = ((-slope.value * pairs).exp(), first.value.exp());
    fits.then(|| (Measured::new(base, base * pairs * slope.error), Measured::new(begin, begin * first.error)))
}

impl How<'_> {
    /// Angles of other positions, at the right frequencies.
    pub(super) fn positions(&self, right: &[f64]) -> Vec<Law> {
        let angle = angles(self.turns);
        let mut laws = Vec::new();
        let tokens = self.case.tokens_of(Axis::Token);
        let of = |values: Vec<f64>| -> Made {
            Arc::new(move |right: &Right| {
                (values.len() == right.magnitude.nrows())
                    .then(|| right.angles(|t| values[t], |pair| right.frequencies[pair].value))
            })
        };
        let mut offer = |words: String, bits: f64, shift: Option<f64>, part: Option<String>, values: Vec<f64>| {
            if self.holds(&self.right.angles(|t| values[t], |pair| right[pair])) {
                let parameter = words.clone();
                let law = self.law(Form::RotationPosition, words, bits, of(values));
                laws.push(law.with("position", parameter).with("shift", shift).within(Axis::Token, part));
            }
        };
        let ids = tokens.map(|tokens| tokens.iter().map(|id| f64::from(*id)).collect::<Vec<f64>>());
        if let Some(ids) = ids.filter(|ids| ids.len() == angle.nrows()) {
            offer("positions are the tokens' ids".to_owned(), 4.0, None, None, ids);
        }
        let each = (0..angle.nrows()).map(|t| position(&angle, &self.turns.error, t, right));
        let Some(measured) = each.collect::<Option<Vec<_>>>() else { return laws };
        if let Some(table) = describe_table(&measured, Axis::Token, None, tokens) {
            offer(format!("positions are {}", table.words), table.bits, None, table.part, table.values);
        }
        let off: Vec<Measured> = measured.iter().enumerate().map(|(t, m)| m.plus(-(t as f64))).collect();
        if let Some(table) = describe_table(&off, Axis::Token, Some(0.0), tokens) {
            let values = table.values.iter().enumerate().map(|(t, by)| t as f64 + by).collect();
            let shift = table.number.filter(|_| table.part.is_none()).map(|number| number.value);
            let words = format!("positions are the right ones plus {}", table.words);
            offer(words, table.bits + 2.0, shift, table.part, values);
        }
        let still: Vec<Option<bool>> =
            measured.iter().enumerate().map(|(t, m)| (t > 0).then(|| m.may_be(0.0))).collect();
        if still.contains(&Some(true)) {
            let set = describe_set(&still, Axis::Token, tokens);
            let values = set.has.iter().enumerate().map(|(t, is)| if *is { 0.0 } else { t as f64 }).collect();
            let at = set.words.as_ref().map_or_else(String::new, |words| format!(" at {words}"));
            offer(format!("nothing is rotated{at}"), set.bits + 1.0, None, set.words, values);
        }
        let whole = |m: &Measured| {
            let near = m.value.round();
            (m.may_be(near) && near >= 0.0 && m.error < 0.1).then_some(near as usize)
        };
        let from: Vec<Option<usize>> = measured.iter().map(whole).collect();
        if from.iter().all(Option::is_some) {
            let n = from.len().max(from.iter().flatten().max().map_or(0, |most| most + 1));
            let source = describe_source(&from, n, Axis::Token);
            let values = source.from.iter().map(|&p| p as f64).collect();
            if source.is_itself {
                return laws;
            }
            offer(format!("each position i is rotated as {}", source.words), source.bits, None, source.part, values);
        }
        laws
    }

    /// Other frequencies, at these positions.
    pub(super) fn frequencies(
        &self,
        right: &[f64],
        measured: &[Measured],
        offsets: &[Measured],
        positions_are: Option<&str>,
        positions: &[f64],
        price: f64,
    ) -> Vec<Law> {
        let d = 2 * right.len();
        let mut laws = Vec::new();
        let begins = positions_are.map_or_else(String::new, |words| format!("positions are {words}; "));
        let (shift, shift_words, shift_bits) = match self.shift(offsets, measured) {
            Some(shift) => shift,
            None => return laws,
        };
        let own: Vec<f64> = measured.iter().map(|m| m.value).collect();
        let data = serde_json::json!({"kind": "angles", "right": right, "measured": own});
        let offer =
            |laws: &mut Vec<Law>, form: Form, words: String, bits: f64, numbers: Parameters, of: Frequencies| {
                let (positions, shift) = (positions.to_vec(), shift.clone());
                let made = move |right: &Right| {
                    let own: Vec<f64> = right.frequencies.iter().map(|m| m.value).collect();
                    let frequencies = of(&own);
                    let dim = right.magnitude.dim();
                    (dim == (positions.len(), frequencies.len()) && shift.len() == frequencies.len()).then(|| {
                        Array2::from_shape_fn(dim, |(t, pair)| {
                            let angle = positions[t] * frequencies[pair] + shift[pair];
                            Complex::from_polar(right.magnitude[[t, pair]], angle)
                        })
                    })
                };
                if made(self.right).is_some_and(|z| self.holds(&z)) {
                    let words = format!("{begins}{words}{shift_words}");
                    let mut law = self.law(form, words, bits + price + shift_bits, Arc::new(made)).drawn(data.clone());
                    law.parameters.extend(numbers);
                    law.parameters.push(("shifted", (!shift_words.is_empty()).into()));
                    law.parameters.extend(positions_are.map(|words| ("position", words.into())));
                    laws.push(law);
                }
            };
        let ratio: Vec<Measured> =
            measured
                .iter()
                .zip(right)
                .map(|(m, right)| {
                    if *right == 0.0 {
                        Measured::UNKNOWN
                    } else {
                        Measured::new(m.value / right, m.error / right.abs())
                    }
                })
                .collect();
        if let Some(table) = describe_table(&ratio, Axis::Pair, Some(1.0), None) {
            let values = table.values.clone();
            let is_right = table.number.as_ref().is_some_and(|n| n.value == 1.0) && table.part.is_none();
            let words = match is_right {
                true => "frequencies are right".to_owned(),
                false => format!("angles are {} times the right ones", table.words),
            };
            let form = if is_right { Form::RotationPosition } else { Form::RotationFrequency };
            let by = move |own: &[f64]| own.iter().zip(&values).map(|(own, by)| own * by).collect();
            let factor = table.number.filter(|_| table.part.is_none()).map(|number| ("factor", number.value.into()));
            offer(&mut laws, form, words, table.bits + 2.0, factor.into_iter().collect(), Arc::new(by));
        }
        if let Some((base, first)) = base_of(measured) {
            let model = base_of(&right.iter().map(|r| Measured::new(*r, 1e-12 * r.abs())).collect::<Vec<_>>());
            let has = model
                .as_ref()
                .map_or_else(String::new, |(base, _)| format!(" (the model has {})", base.number().words));
            for (base, first) in [(base.number(), first.number()), (base.plain(), first.plain())] {
                let times = if first.value == 1.0 { String::new() } else { format!("{} times ", first.words) };
                let words = format!("frequencies are {times}{}^(-2j/{d}) for pair j{has}", base.words);
                let bits = 6.0 + base.bits + if first.value == 1.0 { 0.0 } else { first.bits };
                let of = move |own: &[f64]| {
                    let pairs = own.len() as f64;
                    (0..own.len()).map(|j| first.value * base.value.powf(-(j as f64) / pairs)).collect()
                };
                let right_base = model.as_ref().map(|(base, _)| base.value);
                let numbers =
                    vec![("base", base.value.into()), ("first", first.value.into()), ("right_base", right_base.into())];
                offer(&mut laws, Form::RotationFrequency, words, bits, numbers, Arc::new(of));
            }
        }
        // Which pair's frequency is the nearest?
        let nearest = |m: &Measured| (0..right.len()).find(|&j| m.may_be(right[j]) && m.error < 0.02 * right[j].abs());
        let from: Vec<Option<usize>> = measured.iter().map(nearest).collect();
        if from.iter().all(Option::is_some) {
            let source = describe_source(&from, right.len(), Axis::Pair);
            if !source.is_itself {
                let (words, of) = (format!("the frequency of pair j is that of {}", source.words), source.from);
                let by = move |own: &[f64]| of.iter().map(|&j| own.get(j).copied().unwrap_or(f64::NAN)).collect();
                offer(&mut laws, Form::RotationFrequency, words, source.bits + 3.0, Vec::new(), Arc::new(by));
            }
        }
        if let Some(table) = describe_table(measured, Axis::Pair, None, None) {
            let values = table.values;
            let words = format!("frequencies are {}", table.words);
            offer(
                &mut laws,
                Form::RotationFrequency,
                words,
                table.bits + 5.0,
                Vec::new(),
                Arc::new(move |_: &[f64]| values.clone()),
            );
        }
        let off: Vec<Measured> = measured.iter().zip(right).map(|(m, right)| m.plus(-right)).collect();
        if let Some(table) = describe_table(&off, Axis::Pair, Some(0.0), None) {
            let values = table.values;
            let by = move |own: &[f64]| own.iter().zip(&values).map(|(own, by)| own + by).collect();
            offer(
                &mut laws,
                Form::RotationFrequency,
                format!("frequencies are the right ones plus {}", table.words),
                table.bits + 4.0,
                Vec::new(),
                Arc::new(by),
            );
        }
        if laws.is_empty() {
            let listed = own.iter().take(8).map(|x| shortest(*x)).collect::<Vec<_>>().join(", ");
            let words = format!("a frequency for each pair ({listed})");
            let numbers = vec![("frequencies", own.clone().into())];
            let of: Frequencies = Arc::new(move |_: &[f64]| own.clone());
            offer(&mut laws, Form::RotationFrequency, words, bits_of(measured) + choice(d), numbers, of);
            laws = laws.into_iter().map(Law::table).collect();
        }
        laws
    }

    /// The angle of each pair at position 0, in words behind a law.
    fn shift(&self, offsets: &[Measured], frequencies: &[Measured]) -> Option<(Vec<f64>, String, f64)> {
        if offsets.iter().all(|m| m.may_be(0.0)) {
            return Some((vec![0.0; offsets.len()], String::new(), 0.0));
        }
        // At the frequencies that are used, whatever they are.
        let over: Vec<Measured> = offsets
            .iter()
            .zip(frequencies)
            .map(|(m, by)| Measured::new(m.value / by.value, m.error / by.value.abs().max(1e-300)))
            .collect();
        let positions = describe_table(&over, Axis::Pair, Some(0.0), None).map(|table| {
            let values = table.values.iter().zip(frequencies).map(|(at, by)| at * by.value).collect();
            (values, format!("; positions {} further on", table.words), table.bits + 2.0)
        });
        let angles = describe_table(offsets, Axis::Pair, Some(0.0), None)
            .map(|table| (table.values, format!("; angles plus {}", table.words), table.bits + 2.0));
        positions.into_iter().chain(angles).min_by(|a, b| a.2.total_cmp(&b.2))
    }
}

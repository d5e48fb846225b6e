//! Describes a table of measured numbers by a law, where it has one.

use crate::case::Axis;
use crate::describe::choice;
use crate::describe::set::describe as describe_set;
use crate::fit::weighed;
use crate::number::{Measured, NUMBER, Number};

/// A table along an axis, in words.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) words: String,
    pub(crate) bits: f64,
    /// Every number, those that are not known included.
    pub(crate) values: Vec<f64>,
    /// The one number of a table that is the same everywhere, or of the part that is not usual.
    pub(crate) number: Option<Number>,
    /// Where it is not usual, in words; `None` is everywhere.
    pub(crate) part: Option<String>,
    /// Whether its words say several places.
    has_places: bool,
}

/// The cheapest law that all measured numbers may have. `usual` is what the right operation has: a law may hold on a part, with that elsewhere.
pub(crate) fn describe(measured: &[Measured], axis: Axis, usual: Option<f64>, tokens: Option<&[u32]>) -> Option<Table> {
    let mut laws = Laws { measured, found: Vec::new() };
    laws.one_number();
    if let Some(usual) = usual {
        laws.on_a_part(axis, usual, tokens);
    }
    laws.two_numbers(axis, tokens);
    laws.functions(axis);
    laws.steps(axis);
    laws.cycles(axis);
    laws.levels(axis, tokens);
    if laws.found.is_empty() {
        laws.found.extend(reciprocal(measured, axis));
    }
    laws.found.into_iter().min_by(|a, b| a.bits.total_cmp(&b.bits))
}

/// One over a function of the index.
fn reciprocal(measured: &[Measured], axis: Axis) -> Option<Table> {
    let over = |m: &Measured| match m.is_known() && m.value != 0.0 {
        true => m.inverse(),
        false => Measured::UNKNOWN,
    };
    let over: Vec<Measured> = measured.iter().map(over).collect();
    let mut laws = Laws { measured: &over, found: Vec::new() };
    laws.functions(axis);
    laws.steps(axis);
    let table = laws.found.into_iter().min_by(|a, b| a.bits.total_cmp(&b.bits))?;
    let values: Vec<f64> = table.values.iter().map(|x| 1.0 / x).collect();
    let holds = measured.iter().zip(&values).all(|(m, value)| m.may_be(*value));
    holds.then(|| Table {
        words: format!("1/({})", table.words),
        bits: table.bits + 2.0,
        values,
        number: None,
        part: None,
        has_places: table.has_places,
    })
}

/// The share of the largest number up to which an error leaves functions apart.
const FINE: f64 = 1e-5;

/// How sure the usual number is that is said.
const USUAL: f64 = 1e-9;

/// What a table without a law costs.
pub(crate) fn bits_of(measured: &[Measured]) -> f64 {
    NUMBER * measured.iter().filter(|m| m.is_known()).count() as f64
}

struct Laws<'a> {
    measured: &'a [Measured],
    found: Vec<Table>,
}

impl Laws<'_> {
    fn known(&self) -> impl Iterator<Item = (usize, Measured)> + '_ {
        self.measured.iter().copied().enumerate().filter(|(_, m)| m.is_known())
    }

    fn offer(&mut self, words: String, bits: f64, values: Vec<f64>) -> bool {
        let holds = self.measured.iter().zip(&values).all(|(m, value)| m.may_be(*value));
        if holds {
            self.found.push(Table { words, bits, values, number: None, part: None, has_places: false });
        }
        holds
    }

    /// Takes up what says several places.
    fn offer_of_places(&mut self, words: String, bits: f64, values: Vec<f64>) {
        if self.offer(words, bits, values)
            && let Some(last) = self.found.last_mut()
        {
            last.has_places = true;
        }
    }

    fn one_number(&mut self) {
        let mean = Measured::mean(self.measured.iter().copied());
        if !mean.is_known() {
            return;
        }
        let values = |value: f64| vec![value; self.measured.len()];
        for number in mean.simple().into_iter().chain([mean.plain()]) {
            let (bits, of) = (number.bits, values(number.value));
            if self.offer(number.words.clone(), bits, of) {
                if let Some(last) = self.found.last_mut() {
                    last.number = Some(number);
                }
                return;
            }
        }
    }

    /// A law of what is not usual.
    fn on_a_part(&mut self, axis: Axis, usual: f64, tokens: Option<&[u32]>) {
        let other: Vec<Option<bool>> = self.measured.iter().map(|m| m.is_known().then(|| !m.may_be(usual))).collect();
        let (some, all) = (other.contains(&Some(true)), !other.contains(&Some(false)));
        if !some || all {
            return;
        }
        let set = describe_set(&other, axis, tokens);
        let part: Vec<Measured> =
            self.measured.iter().zip(&set.has).map(|(m, has)| if *has { *m } else { Measured::UNKNOWN }).collect();
        let inner = describe(&part, axis, None, tokens);
        if let (Some(inner), Some(on)) = (inner, set.words.clone()) {
            let values =
                inner.values.iter().zip(&set.has).map(|(inner, has)| if *has { *inner } else { usual }).collect();
            let said = if inner.has_places { format!("({})", inner.words) } else { inner.words };
            let usual = Measured::new(usual, USUAL * usual.abs()).number();
            let words = format!("{said} for {on}, else {}", usual.words);
            let number = inner.number;
            if self.offer(words, inner.bits + set.bits + 2.0, values)
                && let Some(last) = self.found.last_mut()
            {
                (last.number, last.part, last.has_places) = (number, Some(on), true);
            }
        }
    }

    /// One number on a set, another elsewhere.
    fn two_numbers(&mut self, axis: Axis, tokens: Option<&[u32]>) {
        let levels = self.distinct(2);
        let Some([a, b]) = levels.as_deref() else { return };
        // The set is the rarer of the two.
        let is = |of: &Measured| self.known().filter(|(_, m)| m.may_be(of.value)).count();
        let (rare, often) = if is(a) <= is(b) { (a, b) } else { (b, a) };
        let meant: Vec<Option<bool>> = self
            .measured
            .iter()
            .map(|m| m.is_known().then(|| m.may_be(rare.value) && !m.may_be(often.value)))
            .collect();
        let set = describe_set(&meant, axis, tokens);
        let of = |which: bool| {
            let these = self.measured.iter().zip(&set.has).filter(move |(_, has)| **has == which).map(|(m, _)| *m);
            Measured::mean(these).number()
        };
        let (inner, outer) = (of(true), of(false));
        if let Some(on) = &set.words
            && self.is_short([&inner, &outer])
        {
            let values = set.has.iter().map(|has| if *has { inner.value } else { outer.value }).collect();
            let words = format!("{} for {on}, else {}", inner.words, outer.words);
            self.offer_of_places(words, inner.bits + outer.bits + set.bits + 2.0, values);
        }
    }

    /// Straight lines over functions of the index, and powers.
    fn functions(&mut self, axis: Axis) {
        if self.known().count() < 4 {
            return;
        }
        let name = axis.name();
        let at = |f: fn(f64) -> f64| move |i: usize| f(i as f64);
        type Line = (&'static str, fn(f64) -> f64, f64);
        let lines: [Line; 12] = [
            ("{}", |i| i, 2.0),
            ("{}^2", |i| i * i, 3.0),
            ("sqrt({})", f64::sqrt, 3.0),
            ("sqrt({} + 1)", |i| (i + 1.0).sqrt(), 3.0),
            ("1/({} + 1)", |i| 1.0 / (i + 1.0), 3.0),
            ("1/({} + 2)", |i| 1.0 / (i + 2.0), 4.0),
            ("1/sqrt({} + 1)", |i| 1.0 / (i + 1.0).sqrt(), 4.0),
            ("log({} + 1)", |i| (i + 1.0).ln(), 3.0),
            ("log({} + 2)", |i| (i + 2.0).ln(), 4.0),
            ("log({} + 3)", |i| (i + 3.0).ln(), 5.0),
            ("log({} + e)", |i| (i + std::f64::consts::E).ln(), 5.0),
            ("2^-{}", |i| 2f64.powf(-i), 4.0),
        ];
        for (words, f, bits) in lines {
            self.line(&words.replace("{}", name), at(f), 8.0 + bits);
        }
        let positive = self.known().all(|(_, m)| m.value > 0.0 && m.error < 0.2 * m.value);
        if !positive {
            return;
        }
        let logs: Vec<Measured> = self
            .measured
            .iter()
            .map(|m| if m.is_known() { Measured::new(m.value.ln(), m.error / m.value) } else { Measured::UNKNOWN })
            .collect();
        for (f, shape) in [((|i| i) as fn(f64) -> f64, 0), (|i: f64| (i + 1.0).ln(), 1)] {
            let Some([first, slope]) = fitted(&logs, |i| f(i as f64)) else { continue };
            let (first, slope) = (exponential(first), if shape == 0 { exponential(slope) } else { slope });
            for (c, by) in [(first.number(), slope.number()), (first.plain(), slope.plain())] {
                if !self.is_told(&c, &by) {
                    continue;
                }
                let value = |i: usize| match shape {
                    0 => c.value * by.value.powf(i as f64),
                    _ => c.value * (i as f64 + 1.0).powf(by.value),
                };
                let times = if c.value == 1.0 { String::new() } else { format!("{} * ", c.words) };
                let words = match shape {
                    0 => format!("{times}{}^{name}", by.words),
                    _ => format!("{times}({name} + 1)^{}", by.words),
                };
                if self.offer(words, 10.0 + c.bits + by.bits, (0..self.measured.len()).map(value).collect()) {
                    break;
                }
            }
        }
    }

    /// `a + b f(i)`, `a` left out where it may be nothing.
    fn line(&mut self, words: &str, f: impl Fn(usize) -> f64, bits: f64) {
        let Some([offset, slope]) = fitted(self.measured, &f) else { return };
        if slope.may_be(0.0) {
            return;
        }
        for (a, b) in [(offset.number(), slope.number()), (offset.plain(), slope.plain())] {
            if !self.is_told(&a, &b) {
                continue;
            }
            let is_less = a.value != 0.0 && b.value < 0.0;
            let sum = match (a.value == 0.0, is_less) {
                (true, _) => String::new(),
                (_, true) => format!("{} - ", a.words),
                _ => format!("{} + ", a.words),
            };
            let by = if is_less { b.words.trim_start_matches('-') } else { &b.words };
            let by = if by == "1" { String::new() } else { format!("{by} * ") };
            let values = (0..self.measured.len()).map(|i| a.value + b.value * f(i)).collect();
            if self.offer(format!("{sum}{by}{words}"), bits + a.bits + b.bits, values) {
                return;
            }
        }
    }

    /// Whether a function with these numbers is told from others: of numbers that are known to few digits many functions give the same, and only one
    /// with simple numbers is said.
    fn is_told(&self, a: &Number, b: &Number) -> bool {
        let size = self.known().map(|(_, m)| m.value.abs()).fold(0.0, f64::max);
        let is_fine = self.known().all(|(_, m)| m.error <= FINE * size);
        is_fine || (a.bits < NUMBER && b.bits < NUMBER)
    }

    /// Whether these numbers are less than what they stand for: as many numbers without a name as there are places say nothing of where they stand.
    fn is_short<'n>(&self, numbers: impl IntoIterator<Item = &'n Number>) -> bool {
        let price: f64 = numbers.into_iter().map(|number| number.bits).sum();
        price <= SHORT * bits_of(self.measured)
    }

    /// Straight lines over whole steps and bounded indices.
    fn steps(&mut self, axis: Axis) {
        let (n, name) = (self.measured.len(), axis.name());
        if self.known().count() < 4 {
            return;
        }
        for by in 2..=(n / 2).min(256) {
            let bits = 12.0 + choice(by);
            self.line(&format!("({name} div {by})"), |i| (i / by) as f64, bits);
            self.line(&format!("({name} mod {by})"), |i| (i % by) as f64, bits);
            self.line(&format!("min({name}, {by})"), |i| i.min(by) as f64, bits);
            self.line(&format!("max({name}, {by})"), |i| i.max(by) as f64, bits);
        }
    }

    /// Few numbers in turn.
    fn cycles(&mut self, axis: Axis) {
        let (n, name) = (self.measured.len(), axis.name());
        for (of, index, most) in
            [("mod", (|i, by| i % by) as fn(usize, usize) -> usize, 16), ("div", |i, by| i / by, n)]
        {
            for by in 2..=(n / 2).min(most) {
                let count = index(n - 1, by).max(index(by - 1, by)) + 1;
                if count > 16 || (of == "div" && count > 4) {
                    continue;
                }
                let turn = |which: usize| {
                    let these = self.measured.iter().enumerate().filter(move |(i, _)| index(*i, by) == which);
                    Measured::mean(these.map(|(_, m)| *m))
                };
                let numbers: Vec<Number> = (0..count).map(|which| turn(which).number()).collect();
                // More than a few numbers without a name are a table.
                if numbers.iter().any(|number| !number.value.is_finite())
                    || numbers.iter().filter(|number| number.bits >= NUMBER).count() > MOST_UNNAMED
                    || !self.is_short(&numbers)
                {
                    continue;
                }
                let bits = 10.0 + numbers.iter().map(|number| number.bits).sum::<f64>();
                let listed = numbers.iter().map(|number| number.words.as_str()).collect::<Vec<_>>().join(", ");
                let values = (0..n).map(|i| numbers[index(i, by)].value).collect();
                if self.offer(format!("{listed} by {name} {of} {by}"), bits, values) {
                    break;
                }
            }
        }
    }

    /// Up to six numbers, each on a set.
    fn levels(&mut self, axis: Axis, tokens: Option<&[u32]>) {
        let Some(levels) = self.distinct(6).filter(|levels| levels.len() > 2) else { return };
        let (mut words, mut bits, mut values) = (Vec::new(), 6.0, vec![f64::NAN; self.measured.len()]);
        let mut numbers = Vec::new();
        for level in &levels {
            let meant: Vec<Option<bool>> =
                self.measured.iter().map(|m| m.is_known().then(|| m.may_be(level.value))).collect();
            let set = describe_set(&meant, axis, tokens);
            let of = self.measured.iter().zip(&meant).filter(|(_, meant)| **meant == Some(true)).map(|(m, _)| *m);
            let number = Measured::mean(of).number();
            bits += number.bits + set.bits;
            words.push(format!("{} for {}", number.words, set.words.unwrap_or_else(|| "all".into())));
            values
                .iter_mut()
                .zip(&meant)
                .filter(|(_, meant)| **meant == Some(true))
                .for_each(|(v, _)| *v = number.value);
            numbers.push(number);
        }
        if !self.is_short(&numbers) {
            return;
        }
        let usual = levels[0].value;
        values.iter_mut().filter(|value| value.is_nan()).for_each(|value| *value = usual);
        self.offer_of_places(words.join("; "), bits, values);
    }

    /// The different numbers of the table, where there are no more than so many.
    fn distinct(&self, most: usize) -> Option<Vec<Measured>> {
        let mut levels: Vec<Measured> = Vec::new();
        for (_, m) in self.known() {
            if !levels.iter().any(|level| m.may_be(level.value) || level.may_be(m.value)) {
                levels.push(m);
                if levels.len() > most {
                    return None;
                }
            }
        }
        Some(levels)
    }
}

/// What the numbers of a law may cost of what all numbers of the table do.
const SHORT: f64 = 0.5;

/// Numbers in turn that have no name, at most.
const MOST_UNNAMED: usize = 4;

/// e to a measured number.
fn exponential(m: Measured) -> Measured {
    let value = m.value.exp();
    Measured::new(value, m.error * value)
}

/// Offset and slope of the numbers over a function of the index, each number as sure as it is.
fn fitted(measured: &[Measured], f: impl Fn(usize) -> f64) -> Option<[Measured; 2]> {
    let known: Vec<(f64, Measured)> =
        measured.iter().enumerate().filter(|(_, m)| m.is_known()).map(|(i, m)| (f(i), *m)).collect();
    // Errors of very different size, or none at all, are no weights to divide by.
    let largest = known.iter().map(|(_, m)| m.error).fold(0.0, f64::max);
    let over: Vec<f64> = known.iter().map(|(x, _)| *x).collect();
    let wanted: Vec<Measured> =
        known.iter().map(|(_, m)| Measured { error: m.error.max(1e-3 * largest), ..*m }).collect();
    let fit = weighed(&[&vec![1.0; over.len()], &over], &wanted)?;
    let [a, b] = fit.coefficients[..] else { return None };
    Some([a, b])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(values: impl IntoIterator<Item = f64>, error: f64, usual: Option<f64>) -> Option<String> {
        let measured: Vec<Measured> = values.into_iter().map(|v| Measured::new(v, error)).collect();
        describe(&measured, Axis::Head, usual, None).map(|table| table.words)
    }

    #[test]
    fn tables_are_said_as_what_they_are() {
        let of = |f: fn(f64) -> f64| (0..12).map(|i| f(f64::from(i))).collect::<Vec<_>>();
        assert_eq!(words(of(|_| 1.02), 1e-8, None).as_deref(), Some("1.02"));
        assert_eq!(
            words(of(|i| if i % 2.0 == 1.0 { 2.0 } else { 1.0 }), 1e-8, Some(1.0)).as_deref(),
            Some("2 for odd heads, else 1")
        );
        assert_eq!(words(of(|i| 1.0 + 0.01 * i), 1e-9, None).as_deref(), Some("1 + 0.01 * head"));
        assert_eq!(words(of(|i| 2f64.powf(-i)), 1e-12, None).as_deref(), Some("2^-head"));
        assert_eq!(words(of(|i| (i / 3.0).floor() * 2.0), 1e-9, None).as_deref(), Some("2 * (head div 3)"));
        assert!(words(of(|i| (i * 12.9898).sin() * 43758.5453 % 1.0), 1e-9, None).is_none());
    }

    #[test]
    fn noise_is_no_second_level() {
        let noisy: Vec<f64> = (0..12).map(|i| 1.02 + 0.002 * f64::sin(f64::from(i) * 37.0)).collect();
        let said = words(noisy, 0.002, None).unwrap();
        assert!(said.starts_with("1.0"), "{said}");
        assert!(!said.contains("else"), "{said}");
    }
}

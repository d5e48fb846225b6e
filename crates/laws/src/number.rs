//! Recognises simple numbers among measured ones.

use std::f64::consts::{E, LN_2, PI, SQRT_2};

/// Bits of one number that has no name.
pub(crate) const NUMBER: f64 = 24.0;

/// A number that was measured, and its standard error. Not known where the value is NaN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) value: f64,
    pub(crate) error: f64,
}

/// Standard errors within which two numbers are the same.
pub(crate) const SURE: f64 = 5.0;
/// Simple numbers are said only where so few of the same price would be expected near a measured one by chance.
const BY_CHANCE: f64 = 0.1;

/// The price up to which a number is so simple that another one hardly lies beside it by chance, within this share.
const PLAIN: f64 = 10.0;
const BESIDE: f64 = 2e-5;

/// A number with the price of saying it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Number {
    pub(crate) value: f64,
    pub(crate) words: String,
    pub(crate) bits: f64,
}

impl Measured {
    pub(crate) const UNKNOWN: Measured = Measured { value: f64::NAN, error: f64::INFINITY };

    pub(crate) fn new(value: f64, error: f64) -> Measured {
        Measured { value, error: error.max(4.0 * f64::EPSILON * value.abs()) }
    }

    pub(crate) fn is_known(&self) -> bool {
        self.value.is_finite() && self.error.is_finite()
    }

    /// Whether it may be this number. What is not known may be any.
    pub(crate) fn may_be(&self, value: f64) -> bool {
        !self.is_known() || (value.is_finite() && (self.value - value).abs() <= SURE * self.error)
    }

    /// One over it.
    pub(crate) fn inverse(self) -> Measured {
        Measured::new(1.0 / self.value, self.error / (self.value * self.value))
    }

    /// Its power.
    pub(crate) fn powi(self, power: i32) -> Measured {
        let slope = f64::from(power.abs()) * self.value.abs().powi(power - 1);
        Measured::new(self.value.powi(power), self.error * slope)
    }

    /// It over another one.
    pub(crate) fn over(self, by: Measured) -> Measured {
        let quotient = self.value / by.value;
        Measured::new(quotient, (self.error + quotient.abs() * by.error) / by.value.abs())
    }

    pub(crate) fn plus(self, by: f64) -> Measured {
        Measured { value: self.value + by, ..self }
    }

    /// The mean of several, weighted by how sure they are; the error is that of the mean, or what their scatter says where that is larger.
    pub(crate) fn mean(all: impl Iterator<Item = Measured> + Clone) -> Measured {
        let known = all.filter(Measured::is_known);
        let weight = |m: &Measured| 1.0 / (m.error * m.error).max(1e-300);
        let (mut sum, mut total, mut count) = (0.0, 0.0, 0usize);
        for m in known.clone() {
            sum += weight(&m) * m.value;
            total += weight(&m);
            count += 1;
        }
        if count == 0 {
            return Measured::UNKNOWN;
        }
        let mean = sum / total;
        let scatter: f64 = known.map(|m| weight(&m) * (m.value - mean).powi(2)).sum();
        let excess = (scatter / (count.max(2) - 1) as f64).max(1.0);
        Measured::new(mean, (excess / total).sqrt())
    }

    /// The number to say: the simplest that it may be, where that is not by chance; else itself with the digits that are known.
    pub(crate) fn number(&self) -> Number {
        self.simple().unwrap_or_else(|| self.plain())
    }

    /// The numbers to try for one that was searched for, the simplest first.
    pub(crate) fn searched(at: f64) -> impl Iterator<Item = Number> {
        let near = |share: f64| Measured::new(at, share * at.abs());
        near(2e-3).simple().into_iter().chain([near(1e-5).number(), near(0.0).plain()])
    }

    /// Itself, with the digits that are known.
    pub(crate) fn plain(&self) -> Number {
        let (value, beside) = (in_known_digits(self.value, self.error), self.beside());
        let words = shortest(value);
        let words = beside.map_or_else(|| words.clone(), |near| format!("{words} (about {})", near.words));
        // What is proved is the number that is said.
        Number { value, words, bits: NUMBER }
    }

    /// A simple number that it is too near to by chance, and is not: something small is done beside it.
    fn beside(&self) -> Option<Number> {
        let near = |value: f64, bits: f64| bits <= PLAIN && value != 0.0 && (self.value / value - 1.0).abs() <= BESIDE;
        let best = simplest(self.value, near)?;
        (self.is_known() && !self.may_be(best.value)).then_some(best)
    }

    /// The simplest number that it may be.
    pub(crate) fn simple(&self) -> Option<Number> {
        if !self.is_known() {
            return None;
        }
        let best = simplest(self.value, |value, _| self.may_be(value))?;
        // How many numbers of its price lie within the error of any number of its size?
        let window = 2.0 * SURE * self.error / self.value.abs().max(best.value.abs()).max(self.error);
        let by_chance = 2f64.powf(best.bits) / 8.0 * window;
        (best.value == 0.0 || by_chance <= BY_CHANCE || best.bits <= 3.0).then_some(best)
    }
}

/// The simplest number near one, of those for which `is_near` holds of value and price: whole numbers, fractions, few decimal digits, roots and constants.
fn simplest(value: f64, is_near: impl Fn(f64, f64) -> bool) -> Option<Number> {
    let sign = if value < 0.0 { "-" } else { "" };
    let (size, minus) = (value.abs(), if value < 0.0 { 1.0 } else { 0.0 });
    let mut best = is_near(0.0, 2.0).then(|| Number { value: 0.0, words: "0".into(), bits: 2.0 });
    // Numbers are looked at by the million: only those that are taken get words.
    let mut say = |number: f64, words: &dyn Fn() -> String, bits: f64| {
        let (value, bits) = (if sign.is_empty() { number } else { -number }, bits + minus);
        if best.as_ref().is_none_or(|best| bits < best.bits) && is_near(value, bits) {
            best = Some(Number { value, words: format!("{sign}{}", words()), bits });
        }
    };
    let whole = size.round();
    if (1.0..1e15).contains(&whole) {
        // Trailing zeros are free.
        let mut digits = whole;
        while digits % 10.0 == 0.0 {
            digits /= 10.0;
        }
        let power_of_two = (whole.log2().fract() == 0.0).then(|| 3.0 + whole.log2().max(1.0).log2());
        let bits = (2.0 + digits.log2() + (whole / digits).log10()).min(power_of_two.unwrap_or(f64::INFINITY));
        say(whole, &|| format!("{whole}"), bits);
    }
    for below in [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 12.0, 15.0, 16.0, 31.0, 32.0, 63.0, 64.0, 127.0, 128.0, 255.0]
    {
        let above = (size * below).round();
        if (1.0..1000.0).contains(&above) && above % below != 0.0 {
            say(above / below, &|| format!("{above}/{below}"), 3.0 + f64::log2(above) + f64::log2(below));
        }
    }
    if size > 0.0 {
        let first = size.log10().floor();
        for digits in 1..=5 {
            let rounded = to_digits(size, digits);
            let place = first.abs().max(1.0).log2();
            say(rounded, &|| shortest(rounded), 3.0 + digits as f64 * 10f64.log2() + place);
        }
    }
    for under in [
        2.0, 3.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 32.0, 48.0, 64.0, 96.0, 128.0, 256.0, 288.0, 512.0, 768.0, 1024.0,
        2048.0, 4096.0,
    ] {
        let root = f64::sqrt(under);
        if root.fract() != 0.0 {
            say(root, &|| format!("sqrt({under})"), 7.0);
            say(1.0 / root, &|| format!("1/sqrt({under})"), 7.0);
        }
    }
    for (constant, words) in [
        (PI, "pi"),
        (2.0 * PI, "2 pi"),
        (PI / 2.0, "pi/2"),
        (E, "e"),
        (LN_2, "ln 2"),
        (1.0 / LN_2, "1/ln 2"),
        (SQRT_2, "sqrt(2)"),
    ] {
        say(constant, &|| words.into(), 7.0);
    }
    best
}

/// A number in as few digits as say it.
pub(crate) fn shortest(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e6).contains(&size) { format!("{value:e}") } else { format!("{value}") }
}

/// A number with no more digits than its error lets it have, one of the error's own and one more.
fn in_known_digits(value: f64, error: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let first = value.abs().log10().floor() as i32;
    let last = if error > 0.0 && error.is_finite() { error.log10().floor() as i32 } else { first - 15 };
    to_digits(value, (first - last + 1).clamp(1, 8) as usize)
}

/// The number with the fewest digits above one and not above another.
pub(crate) fn between(low: f64, high: f64) -> f64 {
    let middle = 0.5 * (low + high);
    if !middle.is_finite() {
        return middle;
    }
    let first = -middle.abs().max(1e-300).log10().floor() as i32;
    (first - 1..first + 8)
        .map(|digits| {
            let scale = 10f64.powi(digits);
            (middle * scale).round() / scale
        })
        .find(|x| low < *x && *x <= high)
        .unwrap_or(middle)
}

/// A number rounded to so many digits.
fn to_digits(value: f64, digits: usize) -> f64 {
    format!("{value:.*e}", digits.saturating_sub(1)).parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simple_number_is_said_where_it_is_not_by_chance() {
        let words = |value: f64, error: f64| Measured::new(value, error).number().words;
        assert_eq!(words(1.0200000003, 1e-8), "1.02");
        assert_eq!(words(0.353553391, 1e-9), "1/sqrt(8)");
        assert_eq!(words(-2.0000001, 1e-6), "-2");
        assert_eq!(words(1e-6, 1e-13), "0.000001".parse::<f64>().map(shortest).unwrap());
        // Something small is done beside a factor of 2.
        assert_eq!(words(1.9999945, 1e-7), "1.9999945 (about 2)");
        // Between 1.017 and 1.023 there are too many three-digit numbers.
        assert_eq!(words(1.0203, 6e-4), "1.0203");
        assert_eq!(words(1.0001, 1e-4), "1");
        // The value is the one that is said.
        let known = Measured::new(-0.999_996_837_722_34, 0.0).plain();
        assert_eq!((known.value, &*known.words), (-0.999_996_84, "-0.99999684 (about -1)"));
    }

    #[test]
    fn a_mean_is_as_sure_as_its_scatter() {
        let all = [Measured::new(1.0, 1e-3), Measured::new(1.1, 1e-3)];
        let mean = Measured::mean(all.iter().copied());
        assert!((mean.value - 1.05).abs() < 1e-9 && mean.error > 0.03);
    }
}

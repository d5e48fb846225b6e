//! Determines the precision of printed numbers: decimals, significant digits, and half a unit of the last digit.

use std::fmt;

/// The number of digits with which a list of numbers was printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Precision {
    /// The most decimals of any number.
    decimals: u32,
    /// The most significant digits of any number.
    digits: u32,
}

/// An exact f32 needs nine digits; seven give it within 6e-8.
const ENOUGH_DIGITS: u32 = 8;
const ENOUGH_DECIMALS: u32 = 9;
/// NMSE of rounding that is negligible beside that of f32 operations, and NMSE below that of f32 storage.
const F32_OPERATIONS_NMSE: f64 = 2e-14;
const F32_STORAGE_NMSE: f64 = 1e-16;
/// Far below the NMSE of f16 rounding, and about what six digits lose. Limited this strictly because fixed decimals lose most in small numbers.
const SIX_DIGITS_NMSE: f64 = 2e-11;
/// The largest relative rounding error of f16.
const F16_STEP: f64 = 1.0 / 2048.0;

impl Precision {
    /// The precision with which `values` were printed, if it is lower than that of f32.
    pub(crate) fn measure(values: &[f64]) -> Option<Precision> {
        let finite = values.iter().filter(|x| x.is_finite() && **x != 0.0);
        let (decimals, digits) = finite.map(|&x| places(x)).fold((0, 0), |a, b| (a.0.max(b.0), a.1.max(b.1)));
        let printed = Precision { decimals, digits };
        let is_short = digits < ENOUGH_DIGITS || decimals < ENOUGH_DECIMALS;
        (is_short && printed.noise(values) > F32_STORAGE_NMSE).then_some(printed)
    }

    /// Whether the printed `values` are precise enough to compute with: they lost less than operations in f32 lose.
    pub(crate) fn suffices(self, values: &[f64]) -> bool {
        self.noise(values) <= F32_OPERATIONS_NMSE
    }

    /// Whether the printed `values` lost far less than f16 rounding would: all together, and most of them individually.
    pub(crate) fn beats_f16(self, values: &[f64]) -> bool {
        let nonzero = || values.iter().filter(|x| x.is_finite() && **x != 0.0);
        let fine = nonzero().filter(|x| self.half_unit(**x) <= F16_STEP * x.abs()).count();
        // Causal masks make half of all probabilities zero, windows more; almost only zeros means that numbers were too small for the decimals.
        let zeros = values.iter().filter(|x| **x == 0.0).count();
        self.noise(values) <= SIX_DIGITS_NMSE && 4 * fine >= 3 * nonzero().count() && 4 * zeros <= 3 * values.len()
    }

    /// Half a unit of the last digit of `value`.
    pub(crate) fn half_unit(self, value: f64) -> f64 {
        let fixed = 0.5 * 10f64.powi(-(self.decimals as i32));
        if !value.is_finite() {
            return 0.0;
        }
        if self.digits >= ENOUGH_DIGITS || value == 0.0 {
            return fixed;
        }
        let exponent = value.abs().log10().floor() as i32;
        fixed.max(0.5 * 10f64.powi(exponent + 1 - self.digits as i32))
    }

    /// The NMSE of cutting the numbers after their last digit.
    fn noise(self, values: &[f64]) -> f64 {
        let finite = || values.iter().filter(|x| x.is_finite());
        let energy: f64 = finite().map(|x| x * x).sum();
        finite().map(|&x| self.half_unit(x).powi(2) / 3.0).sum::<f64>() / energy.max(f64::MIN_POSITIVE)
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.decimals < ENOUGH_DECIMALS {
            true => write!(f, "{} decimals", self.decimals),
            false => write!(f, "{} digits", self.digits),
        }
    }
}

/// Decimals and significant digits of the shortest decimal text for `x`.
fn places(x: f64) -> (u32, u32) {
    let text = format!("{x:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let digits = mantissa.bytes().filter(u8::is_ascii_digit).count() as i32;
    let exponent: i32 = exponent.parse().unwrap_or(0);
    ((digits - 1 - exponent).max(0) as u32, digits as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_decimals_and_five_digits() {
        let fixed = Precision::measure(&[-0.0181, 0.0272, 12.3456]).unwrap();
        assert_eq!((fixed.half_unit(0.0181), fixed.half_unit(12.0)), (0.5e-4, 0.5e-4));
        assert_eq!(fixed.to_string(), "4 decimals");
        let scientific = Precision::measure(&[1.2345e-1, 6.789e-5, -3.2e2]).unwrap();
        assert!((scientific.half_unit(0.12) - 0.5e-5).abs() < 1e-12);
        assert!((scientific.half_unit(320.0) - 0.5e-2).abs() < 1e-9);
    }

    fn four_and_inf() -> [f64; 3] {
        [0.4490, -0.6075, f64::INFINITY]
    }

    #[test]
    fn what_is_printed_to_the_last_digit_loses_nothing() {
        assert_eq!(Precision::measure(&[0.011788607, -0.017492771, 1.3f32.into()]), None);
        let seven = [0.4490291, -0.6075214, 0.3971013, -0.8399555];
        assert!(Precision::measure(&seven).is_some_and(|printed| printed.suffices(&seven)));
        assert_eq!(Precision::measure(&four_and_inf()).map(|printed| printed.half_unit(f64::INFINITY)), Some(0.0));
        let four = [0.4490, -0.6075];
        assert!(Precision::measure(&four).is_some_and(|printed| !printed.suffices(&four)));
        let beats = |values: &[f64]| Precision::measure(values).is_some_and(|printed| printed.beats_f16(values));
        assert!(beats(&[0.449021, -0.607523]) && !beats(&four));
    }
}

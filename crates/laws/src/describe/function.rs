//! Functions of one number, with one constant at most: what a gain, a weight, an angle, a score or an output may go through.

use std::sync::Arc;

use half::{bf16, f16};

use crate::case::Axis;
use crate::describe::set::{Set, describe as describe_set};
use crate::fit::{search, weighed};
use crate::number::{Measured, Number, SURE, between};

/// A function of one number.
pub(crate) type Of = Arc<dyn Fn(f64) -> f64 + Send + Sync>;

/// A function that is lent, and one without a constant as it is listed.
type Lent<'f> = &'f dyn Fn(f64) -> f64;
type Listed = fn(f64) -> f64;

/// A function in words, where `{}` stands for what it is taken of.
#[derive(Clone)]
pub(crate) struct Function {
    pub(crate) words: String,
    pub(crate) bits: f64,
    pub(crate) f: Of,
    /// Of one with a constant: its words without it, and the constant.
    pub(crate) constant: Option<(&'static str, f64)>,
}

impl Function {
    /// In words, of a value that is called so.
    pub(crate) fn of(&self, name: &str) -> String {
        self.words.replace("{}", name)
    }

    /// A function without a constant; `{}` in its words stands for what it is taken of.
    pub(crate) fn new(words: String, bits: f64, f: Of) -> Function {
        Function { words, bits, f, constant: None }
    }
}

/// Functions without a constant. Those of 7 bits nobody writes by mistake.
pub(crate) fn plain() -> Vec<Function> {
    let all: [(&str, f64, Listed); 27] = [
        ("|{}|", 4.0, f64::abs),
        ("-{}", 4.0, |x| -x),
        ("-|{}|", 5.0, |x| -x.abs()),
        ("{} squared", 4.0, |x| x * x),
        ("{} to the power 3", 5.0, |x| x * x * x),
        ("the root of |{}|", 5.0, |x| x.abs().sqrt()),
        ("the root of |{}| with its sign", 5.0, |x| x.signum() * x.abs().sqrt()),
        ("1/{}", 5.0, |x| 1.0 / x),
        ("1/sqrt({})", 6.0, |x| 1.0 / x.sqrt()),
        ("e^{}", 5.0, f64::exp),
        ("ln {}", 6.0, f64::ln),
        ("ln(1 + |{}|) with its sign", 7.0, |x| x.signum() * x.abs().ln_1p()),
        ("the positive part of {}", 4.0, |x| x.max(0.0)),
        ("the negative part of {}", 5.0, |x| x.min(0.0)),
        ("the sign of {}", 7.0, f64::signum),
        ("the sigmoid of {}", 5.0, |x| 1.0 / (1.0 + (-x).exp())),
        ("tanh({})", 5.0, f64::tanh),
        ("{}/(1 + |{}|)", 7.0, |x| x / (1.0 + x.abs())),
        ("{}/sqrt(1 + {}^2)", 7.0, |x| x / (1.0 + x * x).sqrt()),
        ("silu({})", 5.0, |x| x / (1.0 + (-x).exp())),
        ("ln(1 + e^{})", 6.0, |x| x.max(0.0) + (-x.abs()).exp().ln_1p()),
        ("sin({})", 6.0, f64::sin),
        ("cos({})", 6.0, f64::cos),
        ("arctan({})", 7.0, f64::atan),
        ("{} without its whole part", 7.0, f64::fract),
        ("{}, the bits of its f16 read as bf16", 6.0, f16_as_bf16),
        ("{}, the bits of its bf16 read as f16", 6.0, bf16_as_f16),
    ];
    all.into_iter().map(|(words, bits, f)| Function::new(words.into(), bits, Arc::new(f))).collect()
}

/// The bits of an f16 taken for those of a bf16.
pub(crate) fn f16_as_bf16(x: f64) -> f64 {
    bf16::from_bits(f16::from_f64(x).to_bits()).to_f64()
}

/// The bits of a bf16 taken for those of an f16.
pub(crate) fn bf16_as_f16(x: f64) -> f64 {
    f16::from_bits(bf16::from_f64(x).to_bits()).to_f64()
}

/// Values that are rounded to multiples of a step.
fn stepped() -> impl Iterator<Item = Function> {
    let powers =
        (0..=14u32).map(|k| (0.5f64.powi(k as i32), if k == 0 { "1".into() } else { format!("1/{}", 1u32 << k) }));
    let tens = [
        (0.1, "0.1"),
        (0.05, "0.05"),
        (0.02, "0.02"),
        (0.01, "0.01"),
        (0.001, "0.001"),
        (0.0001, "0.0001"),
        (2.0, "2"),
        (4.0, "4"),
    ];
    let steps = powers.chain(tens.into_iter().map(|(step, words)| (step, words.to_owned())));
    let ways: [(&str, Listed); 4] = [
        ("rounded", f64::round_ties_even),
        ("rounded down", f64::floor),
        ("rounded towards zero", f64::trunc),
        ("rounded up", f64::ceil),
    ];
    steps.flat_map(move |(step, said)| {
        ways.into_iter().map(move |(words, f)| {
            let words = format!("{{}} {words} to multiples of {said}");
            Function::new(words, 9.0, Arc::new(move |x| f(x / step) * step))
        })
    })
}

/// What a constant is compared with.
#[derive(Clone, Copy, PartialEq)]
enum Constant {
    /// With values, of either sign.
    Value,
    /// With sizes of values.
    Size,
    /// With sizes; nothing changes between one size and the next.
    Threshold,
    /// A number of itself.
    Free(f64, f64),
    /// The same, in units of the largest size.
    InSizes(f64, f64),
}

/// A function with a constant, `#` in words.
struct Family {
    words: &'static str,
    constant: Constant,
    f: fn(f64, f64) -> f64,
}

const FAMILIES: [Family; 15] = [
    Family { words: "{}, at most #", constant: Constant::Value, f: |x, c| x.min(c) },
    Family { words: "{}, at least #", constant: Constant::Value, f: |x, c| x.max(c) },
    Family { words: "{} held within #", constant: Constant::Size, f: |x, c| x.max(-c).min(c) },
    Family {
        words: "{}, zero where it is below # in size",
        constant: Constant::Threshold,
        f: |x, c| if x.abs() < c { 0.0 } else { x },
    },
    Family {
        words: "{}, zero where it is above # in size",
        constant: Constant::Threshold,
        f: |x, c| if x.abs() > c { 0.0 } else { x },
    },
    Family { words: "{}, # nearer to zero", constant: Constant::Size, f: |x, c| x.signum() * (x.abs() - c).max(0.0) },
    Family { words: "# tanh({}/#)", constant: Constant::InSizes(0.05, 50.0), f: |x, c| c * (x / c).tanh() },
    Family { words: "# arctan({}/#)", constant: Constant::InSizes(0.05, 50.0), f: |x, c| c * (x / c).atan() },
    Family { words: "{}/(1 + |{}|/#)", constant: Constant::InSizes(0.05, 100.0), f: |x, c| x / (1.0 + x.abs() / c) },
    Family {
        words: "{} to the power #, with its sign",
        constant: Constant::Free(0.2, 5.0),
        f: |x, c| x.signum() * x.abs().powf(c),
    },
    Family {
        words: "{}, # times where it is negative",
        constant: Constant::Free(1e-3, 4.0),
        f: |x, c| if x < 0.0 { c * x } else { x },
    },
    Family {
        words: "{}, # times where it is positive",
        constant: Constant::Free(1e-3, 4.0),
        f: |x, c| if x > 0.0 { c * x } else { x },
    },
    Family { words: "{} plus # times its square", constant: Constant::Free(1e-4, 4.0), f: |x, c| x + c * x * x },
    Family { words: "{} less # times its square", constant: Constant::Free(1e-4, 4.0), f: |x, c| x - c * x * x },
    Family { words: "{} plus # times its cube", constant: Constant::Free(1e-4, 4.0), f: |x, c| x + c * x * x * x },
];

/// Points of a first look for a constant.
const GRID: usize = 41;
/// Values of a list that are looked at for its size.
const LOOKED_AT: usize = 512;

/// Functions that leave little: `left` says what a function leaves, `before` what none leaves, `near` what is worth a proof. The constants of those that have one
/// are searched for among `of`, the values that it is taken of.
pub(crate) fn fitting(
    of: &[f64],
    before: f64,
    near: f64,
    has_time: &dyn Fn() -> bool,
    left: &dyn Fn(Lent<'_>) -> f64,
) -> Vec<Function> {
    let step = of.len().div_ceil(LOOKED_AT).max(1);
    let mut values: Vec<f64> = of.iter().copied().step_by(step).filter(|x| x.is_finite()).collect();
    let mut found: Vec<Function> =
        plain().into_iter().chain(stepped()).take_while(|_| has_time()).filter(|g| left(&*g.f) <= near).collect();
    let most = values.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    if most <= 0.0 {
        return found;
    }
    values.sort_by(f64::total_cmp);
    for Family { words, constant, f } in &FAMILIES {
        if !has_time() {
            break;
        }
        let of_constant = |c: f64| left(&move |x| f(x, c));
        let (at, rest) = match constant {
            Constant::Free(low, high) => search(*low, *high, GRID, true, of_constant),
            Constant::InSizes(low, high) => search(low * most, high * most, GRID, true, of_constant),
            Constant::Value => {
                let (low, high) = (values[0], values[values.len() - 1]);
                search(low, high, GRID, false, of_constant)
            }
            Constant::Size | Constant::Threshold => search(1e-3 * most, most, GRID, true, of_constant),
        };
        if rest.is_nan() || rest > FIRST * before {
            continue;
        }
        let mut said: Vec<Number> = Vec::new();
        if *constant == Constant::Threshold {
            // Between two sizes it is one function: the gap is found, and the plainest number in it is said.
            let mut sizes: Vec<f64> = of.iter().map(|x| x.abs()).filter(|x| x.is_finite()).collect();
            sizes.sort_by(f64::total_cmp);
            sizes.dedup();
            let here = sizes.partition_point(|size| *size < at);
            let gaps = here.saturating_sub(GAPS)..(here + GAPS).min(sizes.len().saturating_sub(1));
            let best = gaps
                .map(|i| (i, of_constant(0.5 * (sizes[i] + sizes[i + 1]))))
                .filter(|(_, left)| !left.is_nan())
                .min_by(|a, b| a.1.total_cmp(&b.1));
            let Some((gap, _)) = best else { continue };
            said.push(Measured::new(between(sizes[gap], sizes[gap + 1]), 0.0).number());
        } else {
            said.extend(Measured::searched(at));
        }
        for number in said {
            let c = number.value;
            if of_constant(c) <= near {
                found.push(Function {
                    words: words.replace('#', &number.words),
                    bits: 8.0 + number.bits,
                    f: Arc::new(move |x| f(x, c)),
                    constant: Some((words, c)),
                });
                break;
            }
        }
    }
    found
}

/// Of the error a function may leave after a first look.
const FIRST: f64 = 0.1;
/// Gaps between sizes, on both sides of the best look, that a threshold is looked for in.
const GAPS: usize = 24;

/// The cheapest function that brings these values to the measured ones, all of them within their errors: `a f(x) + b`, or one with a constant.
pub(crate) fn describe(of: &[f64], measured: &[Measured]) -> Option<Function> {
    let pairs: Vec<(f64, Measured)> =
        of.iter().copied().zip(measured.iter().copied()).filter(|(_, m)| m.is_known()).collect();
    if pairs.len() < FEWEST {
        return None;
    }
    let x: Vec<f64> = pairs.iter().map(|(x, _)| *x).collect();
    let holds = |f: &dyn Fn(f64) -> f64| pairs.iter().all(|(x, m)| m.may_be(f(*x)));
    let identity = Function { words: "{}".into(), bits: 0.0, f: Arc::new(|x| x), constant: None };
    let mut found: Vec<Function> = Vec::new();
    let (known, ones): (Vec<Measured>, Vec<f64>) = pairs.iter().map(|(_, m)| (*m, 1.0)).unzip();
    for inner in std::iter::once(identity).chain(plain()) {
        // One number for all is no function of them.
        if x.windows(2).all(|pair| (inner.f)(pair[0]) == (inner.f)(pair[1])) {
            continue;
        }
        if holds(&*inner.f) {
            found.push(inner);
            continue;
        }
        let column: Vec<f64> = x.iter().map(|x| (inner.f)(*x)).collect();
        let mut fits: Vec<(Number, Number)> = Vec::new();
        let nothing = Number { value: 0.0, words: "0".into(), bits: 0.0 };
        if let Some(fit) = weighed(&[&column], &known) {
            let a = fit.coefficients[0];
            fits.extend([(a.number(), nothing.clone()), (a.plain(), nothing)]);
        }
        if let Some(fit) = weighed(&[&column, &ones], &known) {
            let [a, b] = fit.coefficients[..] else { continue };
            fits.extend([(a.number(), b.number()), (a.plain(), b.plain())]);
        }
        for (a, b) in fits {
            let (times, plus, f) = (a.value, b.value, inner.f.clone());
            if times == 0.0 || !times.is_finite() || !plus.is_finite() {
                continue;
            }
            let made = move |x: f64| times * f(x) + plus;
            // What changes nothing but the last digits is no term.
            let all = || x.iter().map(|x| times * (inner.f)(*x));
            let spread = all().fold(f64::NEG_INFINITY, f64::max) - all().fold(f64::INFINITY, f64::min);
            let room = LAST_DIGITS * pairs.iter().map(|(_, m)| m.value.abs()).fold(0.0, f64::max);
            if spread <= room || plus != 0.0 && plus.abs() <= room {
                continue;
            }
            if holds(&made) {
                let times = if times == 1.0 { String::new() } else { format!("{} times ", a.words) };
                let words = match plus.total_cmp(&0.0) {
                    _ if plus == 0.0 => format!("{times}{}", inner.words),
                    std::cmp::Ordering::Less => format!("{times}{} - {}", inner.words, b.words.trim_start_matches('-')),
                    _ => format!("{} + {times}{}", b.words, inner.words),
                };
                found.push(Function { words, bits: inner.bits + a.bits + b.bits, f: Arc::new(made), constant: None });
                break;
            }
        }
    }
    let off = |f: &dyn Fn(f64) -> f64| {
        let errors = pairs.iter().map(|(x, m)| ((f(*x) - m.value) / m.error.max(1e-300)).powi(2));
        errors.map(|e| if e.is_finite() { e } else { f64::INFINITY }).sum::<f64>() / pairs.len() as f64
    };
    found.extend(fitting(&x, off(&|x| x), SURE * SURE, &|| true, &off).into_iter().filter(|g| holds(&*g.f)));
    found.into_iter().min_by(|a, b| a.bits.total_cmp(&b.bits))
}

/// The right values, and on some of an axis one number or a function of the right ones: the function, where, and the price.
pub(crate) fn on_a_part(of: &[f64], measured: &[Measured], axis: Axis) -> Option<(Function, Set)> {
    let other: Vec<Option<bool>> = measured.iter().zip(of).map(|(m, x)| m.is_known().then(|| !m.may_be(*x))).collect();
    let set = describe_set(&other, axis, None);
    if set.is_all() {
        return None;
    }
    let part = |i: &usize| set.has[*i];
    let (x, m): (Vec<f64>, Vec<Measured>) = (0..of.len()).filter(part).map(|i| (of[i], measured[i])).unzip();
    let number = Measured::mean(m.iter().copied()).number();
    let function = match m.iter().all(|m| m.may_be(number.value)) {
        true => Function::new(number.words, number.bits, Arc::new(move |_| number.value)),
        false => describe(&x, &m)?,
    };
    Some((function, set))
}

/// What f32 leaves open of a number, with some room.
const LAST_DIGITS: f64 = 1e-6;
/// Fewer values are no function.
const FEWEST: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    fn words(f: impl Fn(f64) -> f64) -> Option<String> {
        let x: Vec<f64> = (0..60).map(|i| 1.2 * f64::sin(f64::from(i) * 1.7) + 0.3).collect();
        let measured: Vec<Measured> = x.iter().map(|x| Measured::new(f(*x), 1e-9)).collect();
        describe(&x, &measured).map(|f| f.of("w"))
    }

    #[test]
    fn functions_are_said_as_what_they_are() {
        assert_eq!(words(f64::abs).as_deref(), Some("|w|"));
        assert_eq!(words(|x| x * x * x).as_deref(), Some("w to the power 3"));
        assert_eq!(words(|x| 2.0 * x.abs().sqrt() + 0.1).as_deref(), Some("0.1 + 2 times the root of |w|"));
        assert_eq!(words(|x| x.min(0.8)).as_deref(), Some("w, at most 0.8"));
        assert_eq!(words(|x| x.max(-0.25)).as_deref(), Some("w, at least -1/4"));
        assert_eq!(
            words(|x| if x.abs() < 0.5 { 0.0 } else { x }).as_deref(),
            Some("w, zero where it is below 1/2 in size")
        );
        assert_eq!(words(|x| (x * 16.0).round_ties_even() / 16.0).as_deref(), Some("w rounded to multiples of 1/16"));
        assert_eq!(words(|x| x / (1.0 + x.abs())).as_deref(), Some("w/(1 + |w|)"));
        assert_eq!(words(|x| x.signum() * x.abs().powf(1.3)).as_deref(), Some("w to the power 1.3, with its sign"));
    }

    #[test]
    fn noise_is_no_function() {
        assert_eq!(words(|x| (x * 12_989.8).sin()), None);
    }
}

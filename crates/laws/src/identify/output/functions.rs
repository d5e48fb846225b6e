//! One function of all values.

use std::sync::Arc;

use ndarray::ArrayD;
use serde_json::Value;

use super::{inside, support_of, wrong_parts};
use crate::case::Case;
use crate::describe::function::describe as describe_function;
use crate::describe::set::Set;
use crate::fit::{dot, factor, least_squares, search};
use crate::identify::subject::Subject;
use crate::law::{Form, Law};
use crate::number::{Measured, between};

/// A function of each value.
#[derive(Clone)]
struct Function {
    pub(super) words: String,
    pub(super) bits: f64,
    pub(super) parameters: Vec<(&'static str, Value)>,
    pub(super) f: Arc<dyn Fn(f64) -> f64 + Send + Sync>,
}

pub(super) fn functions(subject: &Subject, case: &Case<'_>) -> Vec<Law> {
    let parts = wrong_parts(subject, case);
    let whole: Vec<Set> = parts.iter().map(|part| Set::all(part.has.len())).collect();
    let mut laws = Vec::new();
    let is_whole = parts.iter().all(Set::is_all);
    for parts in std::iter::once(&whole).chain((!is_whole).then_some(&parts)) {
        let mask = inside(subject.right.shape(), parts);
        let of = |x: &ArrayD<f64>| x.iter().zip(&mask).filter(|(_, is)| **is).map(|(x, _)| *x).collect::<Vec<f64>>();
        let (right, own) = (of(&subject.right), of(&subject.own));
        let (support, bits) = support_of(&subject.axes, parts);
        for function in functions_of(&right, &own, subject.noise) {
            let words = format!("{} is {}{}", subject.label, function.words, support.said());
            let (f, mask) = (function.f.clone(), mask.clone());
            let is_everywhere = mask.iter().all(|is| *is);
            let made = move |right: &ArrayD<f64>| {
                // Of all values it is one of other steps too.
                if is_everywhere {
                    return Some(right.mapv(|x| f(x)));
                }
                let mut out = right.clone();
                if mask.shape() != right.shape() {
                    return None;
                }
                out.iter_mut().zip(&mask).filter(|(_, is)| **is).for_each(|(x, _)| *x = f(*x));
                Some(out)
            };
            if made(&subject.right).is_some_and(|value| subject.is_near(&value)) {
                let mut law = subject.law(Form::OutputFunction, words, function.bits + bits, made).on(support.clone());
                for (name, value) in function.parameters {
                    law = law.with(name, value);
                }
                laws.push(law);
            }
        }
    }
    laws
}

/// What is taken off where a number wraps around is more than this share of the values' size.
const WRAPS: f64 = 0.1;

/// Functions that bring one list of values to another.
fn functions_of(right: &[f64], own: &[f64], noise: f64) -> Vec<Function> {
    let n = right.len();
    if n < 3 {
        return Vec::new();
    }
    let mut all = Vec::new();
    let mut offer =
        |words: String, bits: f64, parameters: &[(&'static str, f64)], f: Arc<dyn Fn(f64) -> f64 + Send + Sync>| {
            let parameters = parameters.iter().map(|(name, value)| (*name, (*value).into())).collect();
            all.push(Function { words, bits, parameters, f })
        };
    offer("zero".into(), 2.0, &[("scale", 0.0)], Arc::new(|_| 0.0));
    // Of nothing there is nothing more to say.
    if own.iter().all(|own| *own == 0.0) {
        return all;
    }
    offer("the size of the right one".into(), 4.0, &[], Arc::new(f64::abs));
    offer("the right one where that is positive, else zero".into(), 4.0, &[], Arc::new(|x| x.max(0.0)));
    let scale = factor(right, own, noise);
    if let [by] = scale.coefficients[..]
        && by.is_known()
    {
        for number in [by.number(), by.plain()] {
            let value = number.value;
            let words = if value == -1.0 {
                "the right one with the other sign".into()
            } else {
                format!("{} times the right one", number.words)
            };
            offer(words, number.bits, &[("scale", value)], Arc::new(move |x| value * x));
        }
    }
    let ones = vec![1.0; n];
    if let Some(line) = least_squares(&[right, &ones], own, noise)
        && let [a, b] = line.coefficients[..]
        && !b.may_be(0.0)
    {
        for (a, b) in [(a.number(), b.number()), (a.plain(), b.plain())] {
            let (by, plus) = (a.value, b.value);
            let words = match by == 1.0 {
                true => format!("the right one plus {}", b.words),
                false => format!("{} times the right one, plus {}", a.words, b.words),
            };
            offer(words, a.bits + b.bits, &[("scale", by), ("offset", plus)], Arc::new(move |x| by * x + plus));
        }
    }
    // What does not fit is taken off as often as it goes into the number.
    let size = (right.iter().map(|x| x * x).sum::<f64>() / n as f64).sqrt();
    let taken = right.iter().zip(own).map(|(right, own)| (right - own).abs()).filter(|off| *off > WRAPS * size);
    let least_taken = taken.fold(f64::INFINITY, f64::min);
    if least_taken.is_finite() {
        for number in [Measured::new(least_taken, noise * size).number(), Measured::new(least_taken, 0.0).plain()] {
            let m = number.value;
            let half = Measured::new(0.5 * m, 0.0).number().words;
            let around = format!("the right one wrapped around at {half} and -{half}, modulo {}", number.words);
            offer(around, number.bits + 4.0, &[("modulo", m)], Arc::new(move |x| x - m * ((x + 0.5 * m) / m).floor()));
            let from_0 = format!("the right one modulo {}", number.words);
            offer(from_0, number.bits + 4.0, &[("modulo", m)], Arc::new(move |x| x - m * (x / m).floor()));
        }
    }
    let extreme = |f: fn(f64, f64) -> f64, from: f64| own.iter().copied().fold(from, f);
    let (low, high) = (extreme(f64::min, f64::INFINITY), extreme(f64::max, f64::NEG_INFINITY));
    let bound = |x: f64| Measured::new(x, noise * x.abs()).number();
    let (least, most) = (bound(low), bound(high));
    let (l, h) = (least.value, most.value);
    let (below, above) =
        (format!("the right one, at most {}", most.words), format!("the right one, at least {}", least.words));
    offer(below, most.bits + 3.0, &[("max", h)], Arc::new(move |x| x.min(h)));
    offer(above, least.bits + 3.0, &[("min", l)], Arc::new(move |x| x.max(l)));
    let words = format!("the right one, held between {} and {}", least.words, most.words);
    offer(words, least.bits + most.bits + 3.0, &[("min", l), ("max", h)], Arc::new(move |x| x.max(l).min(h)));
    let size = right.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    if size > 0.0 {
        let left = |f: &dyn Fn(f64) -> f64| right.iter().zip(own).map(|(r, o)| (f(*r) - o).powi(2)).sum::<f64>();
        let (cap, _) = search(0.05 * size, 100.0 * size, 61, true, |c| left(&|x| c * (x / c).tanh()));
        for number in [Measured::new(cap, 10.0 * noise * cap).number(), Measured::new(cap, 0.0).plain()] {
            let c = number.value;
            let words = format!("{c} tanh(x/{c}) of the right one", c = number.words);
            offer(words, number.bits + 4.0, &[("cap", c)], Arc::new(move |x| c * (x / c).tanh()));
        }
        let (power, _) = search(0.2, 4.0, 61, true, |p| {
            let by = right.iter().map(|r| r.signum() * r.abs().powf(p)).collect::<Vec<_>>();
            factor(&by, own, noise).left
        });
        let powers: Vec<f64> = right.iter().map(|r| r.signum() * r.abs().powf(power)).collect();
        let by = factor(&powers, own, noise).coefficients[0];
        if (power - 1.0).abs() > 1e-3 && by.is_known() {
            let (p, c) = (Measured::new(power, 30.0 * noise).number(), by.number());
            let (e, by) = (p.value, c.value);
            let words = format!("{} sign(x) |x|^{} of the right one", c.words, p.words);
            offer(
                words,
                p.bits + c.bits + 4.0,
                &[("power", e), ("scale", by)],
                Arc::new(move |x| by * x.signum() * x.abs().powf(e)),
            );
        }
    }
    // The least and the largest size of those that are zero, and of those that are not.
    let ends = |is_zero: bool| {
        let of = right.iter().zip(own).filter(|(r, o)| **r != 0.0 && (**o == 0.0) == is_zero).map(|(r, _)| r.abs());
        of.fold((f64::INFINITY, 0.0f64), |(least, most), x| (least.min(x), most.max(x)))
    };
    let (zero, kept) = (ends(true), ends(false));
    for (side, top, low) in [("below", zero.1, kept.0), ("above", kept.1, zero.0)] {
        if zero.1 > 0.0 && kept.1 > 0.0 && top < low {
            let (t, is_below) = (between(top, low), side == "below");
            let words = format!("the right one, zero where that is {side} {t} in size");
            let is_zero = move |x: f64| if is_below { x.abs() < t } else { x.abs() > t };
            offer(words, 26.0, &[("threshold", t)], Arc::new(move |x| if is_zero(x) { 0.0 } else { x }));
        }
    }
    let step = n.div_ceil(SAMPLED).max(1);
    let sample = |x: &[f64]| x.iter().copied().step_by(step).collect::<Vec<f64>>();
    let (of, wanted) = (sample(right), sample(own));
    let spread = (dot(&wanted, &wanted) / wanted.len().max(1) as f64).sqrt();
    let measured: Vec<Measured> = wanted.iter().map(|o| Measured::new(*o, noise * (o.abs() + spread))).collect();
    if let Some(function) = describe_function(&of, &measured) {
        let words = format!("{} (x: the right one)", function.of("x"));
        let parameters = vec![("function", function.words.into())];
        all.push(Function { words, bits: function.bits + 3.0, parameters, f: function.f });
    }
    all
}

/// Values of a list that functions are looked for on.
const SAMPLED: usize = 2048;

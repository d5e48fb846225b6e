//! Identifies activations: the function, its operand, its constant.

mod compound;
mod functions;

use std::sync::Arc;

use ndarray::ArrayD;

pub(super) use self::functions::gelu_tanh;
use self::functions::{ALONE, APPROXIMATED, FIXED, Family, GATED, Role, families};
use crate::case::{Case, Kind, Place};
use crate::describe::set::Set;
use crate::fit::{ROOM, factor, search};
use crate::identify::after::Offers;
use crate::identify::output::{inside, support_of, wrong_parts};
use crate::identify::subject::Subject;
use crate::law::{Form, Law};
use crate::number::{Measured, Number};

/// Parts of a drawn curve.
const CURVE: u32 = 64;
/// Numbers up to which it is looked what is done behind a function.
const MOST_BEHIND: usize = 1 << 15;
/// Elements that a constant is looked for on; the first look is at fewer.
const SAMPLE: usize = 3000;
const FEW: usize = 400;
/// Elements of one sign that tell a function of these.
const LEAST_OF_A_SIDE: usize = 16;
/// Values of a constant that are looked at first.
const STEPS: usize = 61;
/// Roles in which functions with a constant are tried.
const SEARCHED: usize = 4;

/// Operands of a place; of one operand the second is nothing.
fn operands(place: &Place) -> Option<(&ArrayD<f64>, &ArrayD<f64>)> {
    let first = place.inputs.first()?;
    let second = place.inputs.get(1).unwrap_or(first);
    let fits = first.shape() == place.right.shape() && second.shape() == place.right.shape();
    fits.then_some((first, second))
}

/// The laws of an activation, gated or not.
pub(crate) fn laws(case: &Case<'_>) -> Vec<Law> {
    let first = case.first();
    let Some((g, u)) = operands(first) else { return Vec::new() };
    let roles: &'static [Role] = if case.kind == Kind::Gate { &GATED } else { &ALONE };
    let parts = wrong_parts(&Subject::output(case), case);
    let whole: Vec<Set> = parts.iter().map(|part| Set::all(part.has.len())).collect();
    let mut laws = Vec::new();
    let is_part = parts.iter().any(|part| !part.is_all()) && parts.iter().all(|part| part.bits <= DEAR);
    for parts in std::iter::once(&whole).chain(is_part.then_some(&parts)) {
        let mask = inside(first.own.shape(), parts);
        let all: Vec<[f64; 4]> = ndarray::Zip::from(g).and(u).and(&first.own).and(&first.right).and(&mask).fold(
            Vec::new(),
            |mut all, g, u, own, right, is| {
                if *is {
                    all.push([*g, *u, *own, *right]);
                }
                all
            },
        );
        // Every so many-th, so that no row or channel is left out.
        let step = (all.len() / SAMPLE).max(1) | 1;
        let sample: Vec<[f64; 4]> = all.into_iter().step_by(step).collect();
        let how = How { case, roles, parts, mask, sample, noise: first.noise() };
        laws.extend(how.laws());
        if !laws.is_empty() {
            break;
        }
    }
    laws
}

/// Parts that are dearer to say are no parts.
const DEAR: f64 = 40.0;

struct How<'h> {
    case: &'h Case<'h>,
    roles: &'static [Role],
    parts: &'h [Set],
    mask: ArrayD<bool>,
    /// Gate, up, own, right.
    sample: Vec<[f64; 4]>,
    noise: f64,
}

impl How<'_> {
    fn laws(&self) -> Vec<Law> {
        if self.sample.len() < 8 {
            return Vec::new();
        }
        let own: Vec<f64> = self.sample.iter().map(|row| row[2]).collect();
        let model = self.named();
        let mut laws = Vec::new();
        for role in self.roles {
            let of: Vec<f64> = self.sample.iter().map(|[g, u, ..]| (role.of)(*g, *u)).collect();
            let made = |f: &dyn Fn(f64) -> f64| -> Vec<f64> {
                self.sample.iter().zip(&of).map(|([g, u, ..], x)| (role.out)(f(*x), *g, *u)).collect()
            };
            for (words, f) in FIXED.into_iter().chain(APPROXIMATED) {
                let fit = factor(&made(&f), &own, self.noise);
                let by = fit.coefficients[0];
                if fit.left <= ROOM * self.noise && by.is_known() {
                    let number = by.number();
                    let c = number.value;
                    let times = if c == 1.0 { String::new() } else { format!("{} times ", number.words) };
                    let bits = role.bits + 5.0 + if c == 1.0 { 0.0 } else { number.bits };
                    let law = self.law(role, format!("{times}{} with a(x) = {words}", role.words), bits, &model, f, c);
                    laws.push(law.with("a", words).with("role", role.words).with("scale", c));
                }
            }
        }
        if !laws.is_empty() {
            return laws;
        }
        let (named, made) = families();
        for families in [named, made] {
            laws.extend(self.with_constants(&families, &model));
            if !laws.is_empty() {
                return laws;
            }
        }
        laws.extend(self.by_sign(&model));
        if laws.is_empty() {
            laws.extend(self.compounds(&model));
        }
        if laws.is_empty() && self.parts.iter().all(Set::is_all) && self.case.first().own.len() <= MOST_BEHIND {
            laws.extend(self.and_then(&model));
        }
        laws
    }

    /// One function of what is positive, another one of what is negative.
    fn by_sign(&self, model: &Option<String>) -> Vec<Law> {
        let mut laws = Vec::new();
        for role in self.roles.iter().take(SEARCHED) {
            let side = |is_negative: bool| {
                let of = |[g, u, own, _]: &[f64; 4]| ((role.of)(*g, *u), *g, *u, *own);
                let some: Vec<_> = self.sample.iter().map(of).filter(|(x, ..)| (*x < 0.0) == is_negative).collect();
                let own: Vec<f64> = some.iter().map(|(.., own)| *own).collect();
                if own.len() < LEAST_OF_A_SIDE {
                    return None;
                }
                FIXED.iter().find_map(|&(words, f)| {
                    let made: Vec<f64> = some.iter().map(|(x, g, u, _)| (role.out)(f(*x), *g, *u)).collect();
                    let fit = factor(&made, &own, self.noise);
                    let by = fit.coefficients[0];
                    (fit.left <= ROOM * self.noise && by.is_known()).then(|| (by.number(), words, f))
                })
            };
            let (Some((high, of_high, f)), Some((low, of_low, g))) = (side(false), side(true)) else { continue };
            let times = |by: &Number| if by.value == 1.0 { String::new() } else { format!("{} times ", by.words) };
            let (a, b) = (format!("{}{of_high}", times(&high)), format!("{}{of_low}", times(&low)));
            let words = format!("{} with a(x) = {a} where x is positive, {b} where it is negative", role.words);
            let bits = role.bits + 12.0 + high.bits + low.bits;
            let function = move |x: f64| if x < 0.0 { low.value * g(x) } else { high.value * f(x) };
            laws.push(self.law(role, words, bits, model, function, 1.0).with("role", role.words));
        }
        laws
    }

    /// Two plain functions added, or one over the other.
    fn compounds(&self, model: &Option<String>) -> Vec<Law> {
        let mut laws = Vec::new();
        for role in self.roles.iter().take(SEARCHED) {
            // The output is a line over the function's value in every role.
            let (mut x, mut value, mut weight) = (Vec::new(), Vec::new(), Vec::new());
            for [g, u, own, _] in &self.sample {
                let nothing = (role.out)(0.0, *g, *u);
                let by = (role.out)(1.0, *g, *u) - nothing;
                if by != 0.0 {
                    x.push((role.of)(*g, *u));
                    value.push((own - nothing) / by);
                    weight.push(by);
                }
            }
            for found in compound::found(&x, &value, &weight, self.noise) {
                let words = format!("{} with a(x) = {}", role.words, found.words);
                let a = found.words.clone();
                let law = self.law(role, words, role.bits + found.bits, model, move |x| found.of(x), 1.0);
                laws.push(law.with("a", a).with("role", role.words));
            }
            if !laws.is_empty() {
                break;
            }
        }
        laws
    }

    /// Functions without a constant, and something done behind them.
    fn and_then(&self, model: &Option<String>) -> Vec<Law> {
        let mut offers = Offers::of(self.case);
        let right = model.as_ref().map_or_else(String::new, |model| format!(" (right: {model})"));
        for role in self.roles {
            for (words, f) in FIXED {
                let form = if role.bits == 0.0 { Form::Activation } else { Form::GateRoles };
                let said = format!("the output is {} with a(x) = {words}{right}", role.words);
                offers.offer(form, said, role.bits + 5.0, move |case, at| {
                    let (g, u) = operands(&case.places[at])?;
                    Some(ndarray::Zip::from(g).and(u).map_collect(|g, u| (role.out)(f((role.of)(*g, *u)), *g, *u)))
                });
            }
        }
        offers.laws
    }

    fn with_constants(&self, families: &[Family], model: &Option<String>) -> Vec<Law> {
        let mut laws = Vec::new();
        let few = self.some(FEW);
        for role in self.roles.iter().take(SEARCHED) {
            for family in families {
                let of = |sample: &[[f64; 4]], b: f64| {
                    let (mut rest, mut all) = (0.0, 0.0);
                    for [g, u, own, _] in sample {
                        rest += ((role.out)((family.f)((role.of)(*g, *u), b), *g, *u) - own).powi(2);
                        all += own * own;
                    }
                    (rest / all.max(f64::MIN_POSITIVE)).sqrt()
                };
                let (low, high) = family.range;
                let (at, rest) = search(low, high, STEPS, family.by_size, |b| of(&few, b));
                let left = |b: f64| of(&self.sample, b);
                if rest > SEARCH_ROOM || left(at) > SEARCH_ROOM {
                    continue;
                }
                let at_a_jump = || self.number(self.jump(role, family, &of)?, &left);
                let Some(number) = self.number(at, &left).or_else(at_a_jump) else { continue };
                let b = number.value;
                let said = format!("{} with a(x) = {}", role.words, family.words.replace("{}", &number.words));
                let f = family.f.clone();
                let law = self.law(role, said, role.bits + 8.0 + number.bits, model, move |x| f(x, b), 1.0);
                laws.push(law.with("a", family.words.clone()).with("role", role.words).with("b", b));
            }
        }
        laws
    }

    /// The plainest number near a constant that leaves no more than rounding.
    fn number(&self, at: f64, left: &dyn Fn(f64) -> f64) -> Option<Number> {
        // How far the constant may be off: where the rest is twice what it is, or rounding's.
        let near = (2.0 * left(at)).max(2.0 * self.noise);
        let error = [1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2]
            .into_iter()
            .map(|by| by * at.abs().max(1e-2))
            .find(|by| left(at + by) > near)
            .unwrap_or(1e-2 * at.abs());
        let measured = Measured::new(at, error);
        [measured.number(), Measured::new(at, 0.0).plain()]
            .into_iter()
            .find(|number| left(number.value) <= ROOM * self.noise)
    }

    /// The constant of a function that jumps there: between two elements no value is told from another, so one is tried between each two, on more and
    /// more elements.
    fn jump(&self, role: &Role, family: &Family, of: &dyn Fn(&[[f64; 4]], f64) -> f64) -> Option<f64> {
        let (mut low, mut high) = family.range;
        for count in [FEW / 8, FEW, self.sample.len()] {
            let some = self.some(count);
            let of_element = |[g, u, ..]: &[f64; 4]| {
                let x = (role.of)(*g, *u);
                if family.by_size { x.abs() } else { x }
            };
            let mut at: Vec<f64> = some.iter().map(of_element).filter(|x| low < *x && *x < high).collect();
            at.extend([low, high]);
            at.sort_by(f64::total_cmp);
            let between = at.windows(2).map(|pair| (pair[0], pair[1], of(&some, 0.5 * (pair[0] + pair[1]))));
            let best = between.min_by(|a, b| a.2.total_cmp(&b.2))?;
            if best.2 > SEARCH_ROOM {
                return None;
            }
            (low, high) = (best.0, best.1);
        }
        Some(0.5 * (low + high))
    }

    /// So many elements of the sample, or a few more, from all over it.
    fn some(&self, count: usize) -> Vec<[f64; 4]> {
        self.sample.iter().copied().step_by((self.sample.len() / count.max(1)).max(1)).collect()
    }

    /// The right function, where it has a name.
    fn named(&self) -> Option<String> {
        let right: Vec<f64> = self.sample.iter().map(|row| row[3]).collect();
        for role in self.roles {
            for (words, f) in FIXED {
                let made: Vec<f64> =
                    self.sample.iter().map(|[g, u, ..]| (role.out)(f((role.of)(*g, *u)), *g, *u)).collect();
                let fit = factor(&made, &right, EXACT);
                if fit.left < EXACT && (fit.coefficients[0].value - 1.0).abs() < EXACT {
                    return Some(format!("{} with a(x) = {words}", role.words));
                }
            }
        }
        None
    }

    fn law(
        &self,
        role: &'static Role,
        words: String,
        bits: f64,
        model: &Option<String>,
        f: impl Fn(f64) -> f64 + Send + Sync + 'static,
        by: f64,
    ) -> Law {
        let (support, price) = support_of(&self.case.axes, self.parts);
        let right = model.as_ref().map_or_else(String::new, |model| format!(" (right: {model})"));
        let words = format!("the output is {words}{right}{}", support.said());
        let (mask, f) = (self.mask.clone(), Arc::new(f));
        let data = self.curve(role, |x| by * f(x));
        let law = Law::new(
            if role.bits == 0.0 { Form::Activation } else { Form::GateRoles },
            words,
            bits + price,
            move |case, at| {
                let place = &case.places[at];
                let (g, u) = operands(place)?;
                if mask.shape() != g.shape() {
                    return None;
                }
                let mut out = place.right.clone();
                ndarray::Zip::from(&mut out).and(g).and(u).and(&mask).for_each(|out, g, u, is| {
                    if *is {
                        *out = by * (role.out)(f((role.of)(*g, *u)), *g, *u);
                    }
                });
                Some(out)
            },
        );
        law.on(support).with("right", model.clone()).drawn(data)
    }

    /// The function over what it is applied to.
    fn curve(&self, role: &Role, f: impl Fn(f64) -> f64) -> serde_json::Value {
        let of = || self.sample.iter().map(|[g, u, ..]| (role.of)(*g, *u));
        let (low, high) = (of().fold(f64::INFINITY, f64::min), of().fold(f64::NEG_INFINITY, f64::max));
        let x: Vec<f64> = (0..=CURVE).map(|at| low + (high - low) * f64::from(at) / f64::from(CURVE)).collect();
        let y: Vec<f64> = x.iter().map(|x| f(*x)).collect();
        serde_json::json!({"kind": "curve", "x": x, "y": y})
    }
}

/// What a search may leave before its constant is looked at.
const SEARCH_ROOM: f64 = 0.05;
/// What a right function leaves of right values.
const EXACT: f64 = 1e-6;

//! Activations: which function, of which operand, with which constant?

use std::f64::consts::{FRAC_1_SQRT_2, PI};
use std::sync::Arc;

use ndarray::ArrayD;

use crate::case::{Axis, Case, Kind, Place};
use crate::describe::set::{Set, describe as describe_set};
use crate::fit::{factor, least_squares, search};
use crate::identify::after::Offers;
use crate::law::{Form, Law, Support};
use crate::number::{Measured, Number};

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

fn softplus(x: f64) -> f64 {
    if x > 30.0 { x } else { x.exp().ln_1p() }
}

/// The error function, to the last digits: by its series, and by the continued fraction of its complement.
fn erf(x: f64) -> f64 {
    let size = x.abs();
    let value = if size < 2.5 {
        let (mut term, mut sum) = (size, size);
        for n in 1..80 {
            term *= -size * size / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        2.0 / PI.sqrt() * sum
    } else {
        let mut fraction = 0.0;
        for n in (1..60).rev() {
            fraction = f64::from(n) / 2.0 / (size + fraction);
        }
        1.0 - (-size * size).exp() / PI.sqrt() / (size + fraction)
    };
    value.copysign(x)
}

fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}

/// Functions without a constant.
type Fixed = (&'static str, fn(f64) -> f64);
const FIXED: [Fixed; 39] = [
    ("silu(x)", silu),
    ("gelu(x) by tanh", gelu_tanh),
    ("gelu(x) by erf", |x| 0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2))),
    ("relu(x)", |x| x.max(0.0)),
    ("relu(x)^2", |x| x.max(0.0).powi(2)),
    ("x", |x| x),
    ("1", |_| 1.0),
    ("sigmoid(x)", sigmoid),
    ("tanh(x)", f64::tanh),
    ("x sigmoid(1.702 x)", |x| x * sigmoid(1.702 * x)),
    ("softplus(x)", softplus),
    ("mish(x)", |x| x * softplus(x).tanh()),
    ("hard swish(x)", |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0),
    ("hard sigmoid(x)", |x| (x + 3.0).clamp(0.0, 6.0) / 6.0),
    ("elu(x)", |x| if x < 0.0 { x.exp_m1() } else { x }),
    ("selu(x)", |x| 1.050_700_987_355_480_5 * if x < 0.0 { 1.673_263_242_354_377_2 * x.exp_m1() } else { x }),
    ("relu6(x)", |x| x.clamp(0.0, 6.0)),
    ("x^2", |x| x * x),
    ("x^3", |x| x * x * x),
    ("|x|", f64::abs),
    ("e^x", |x| x.min(50.0).exp()),
    ("x e^x", |x| x * x.min(50.0).exp()),
    ("silu(-x)", |x| silu(-x)),
    ("sin(x)", f64::sin),
    ("x/(1 + |x|)", |x| x / (1.0 + x.abs())),
    ("silu(silu(x))", |x| silu(silu(x))),
    ("silu(x)^2", |x| silu(x).powi(2)),
    ("the slope of silu(x)", |x| sigmoid(x) * (1.0 + x * (1.0 - sigmoid(x)))),
    ("atan(x)", f64::atan),
    ("the sign of x", |x| {
        if x > 0.0 {
            1.0
        } else if x < 0.0 {
            -1.0
        } else {
            0.0
        }
    }),
    ("x/(1 + 2^-x)", |x| x / (1.0 + 2f64.powf(-x))),
    ("log sigmoid(x)", |x| -softplus(-x)),
    ("x - tanh(x)", |x| x - x.tanh()),
    ("x tanh(x)", |x| x * x.tanh()),
    ("e^(-x^2)", |x| (-x * x).exp()),
    ("cos(x)", f64::cos),
    ("x/sqrt(1 + x^2)", |x| x / (1.0 + x * x).sqrt()),
    ("(x + sqrt(x^2 + 4))/2", |x| 0.5 * (x + (x * x + 4.0).sqrt())),
    ("sign(x) log(1 + |x|)", |x| x.abs().ln_1p().copysign(x)),
];

/// Functions with one constant b, and its range; `true`: the range is searched by size.
type OneConstant = (&'static str, fn(f64, f64) -> f64, f64, f64, bool);
const WITH_CONSTANT: [OneConstant; 31] = [
    ("x sigmoid({} x)", |x, b| x * sigmoid(b * x), 0.05, 20.0, true),
    ("x sigmoid(x + {})", |x, b| x * sigmoid(x + b), -4.0, 4.0, false),
    ("silu(x) + {}", |x, b| silu(x) + b, -2.0, 2.0, false),
    ("silu(x + {})", |x, b| silu(x + b), -3.0, 3.0, false),
    ("(x + {}) sigmoid(x)", |x, b| (x + b) * sigmoid(x), -3.0, 3.0, false),
    ("silu({} x)", |x, b| silu(b * x), 0.05, 8.0, true),
    ("silu(x), at most {}", |x, b| silu(x).min(b), 0.05, 20.0, true),
    ("silu(x of at most {})", |x, b| silu(x.min(b)), 0.05, 20.0, true),
    ("silu(x held within {})", |x, b| silu(x.max(-b).min(b)), 0.05, 20.0, true),
    ("silu(x of at least -{})", |x, b| silu(x.max(-b)), 0.05, 20.0, true),
    ("silu(x), zero where x is below -{}", |x, b| if x < -b { 0.0 } else { silu(x) }, 0.01, 20.0, true),
    ("silu(x), but x where that is above {}", |x, b| if x > b { x } else { silu(x) }, 0.01, 20.0, true),
    ("x, {} x where negative", |x, b| if x < 0.0 { b * x } else { x }, -1.0, 1.0, false),
    ("silu(x), {} x where negative", |x, b| if x < 0.0 { b * x } else { silu(x) }, -1.0, 1.0, false),
    ("silu(x), {} times where x is negative", |x, b| if x < 0.0 { b * silu(x) } else { silu(x) }, -2.0, 3.0, false),
    ("silu(x), {} times where x is positive", |x, b| if x > 0.0 { b * silu(x) } else { silu(x) }, -2.0, 3.0, false),
    ("x, {} (e^x - 1) where negative", |x, b| if x < 0.0 { b * x.exp_m1() } else { x }, 0.05, 4.0, true),
    ("{} tanh(x/{})", |x, b| b * (x / b).tanh(), 0.1, 50.0, true),
    ("{} tanh(silu(x)/{})", |x, b| b * (silu(x) / b).tanh(), 0.1, 50.0, true),
    ("x, at least {}", |x, b| x.max(b), -3.0, 3.0, false),
    ("x held within {}", |x, b| x.max(-b).min(b), 0.01, 10.0, true),
    ("x times ({} x + 0.5 within 0 and 1)", |x, b| x * (b * x + 0.5).clamp(0.0, 1.0), 0.02, 2.0, true),
    (
        "gelu by tanh with slope {}",
        |x, b| 0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (b * x + 0.044715 * (b * x).powi(3))).tanh()),
        0.2,
        5.0,
        true,
    ),
    ("sign(silu(x)) |silu(x)|^{}", |x, b| silu(x).signum() * silu(x).abs().powf(b), 0.2, 4.0, true),
    ("x/2 (1 + erf({} x))", |x, b| 0.5 * x * (1.0 + erf(b * x)), 0.1, 5.0, true),
    ("x/2 (1 + tanh({} x))", |x, b| 0.5 * x * (1.0 + (b * x).tanh()), 0.1, 10.0, true),
    ("x/2 (1 + s/(1 + |s|)), s = {} x", |x, b| 0.5 * x * (1.0 + b * x / (1.0 + (b * x).abs())), 0.1, 10.0, true),
    ("x/2 (1 + 2/pi arctan({} x))", |x, b| 0.5 * x * (1.0 + 2.0 / PI * (b * x).atan()), 0.1, 20.0, true),
    ("x sigmoid(x)^{}", |x, b| x * sigmoid(x).powf(b), 0.1, 6.0, true),
    ("silu(x) + {} x", |x, b| silu(x) + b * x, -2.0, 2.0, false),
    ("silu of x rounded to multiples of {}", |x, b| silu((x / b).round_ties_even() * b), 0.001, 0.5, true),
];

/// How an activation and its operands make the output.
struct Role {
    words: &'static str,
    bits: f64,
    /// What the function is applied to.
    of: fn(f64, f64) -> f64,
    /// The output of the function's value and the operands.
    out: fn(f64, f64, f64) -> f64,
}

const GATED: [Role; 12] = [
    Role { words: "a(gate) * up", bits: 0.0, of: |g, _| g, out: |a, _, u| a * u },
    Role { words: "gate * a(up)", bits: 4.0, of: |_, u| u, out: |a, g, _| g * a },
    Role { words: "silu(gate) * a(up)", bits: 5.0, of: |_, u| u, out: |a, g, _| silu(g) * a },
    Role { words: "a(gate)", bits: 4.0, of: |g, _| g, out: |a, _, _| a },
    Role { words: "a(up)", bits: 4.0, of: |_, u| u, out: |a, _, _| a },
    Role { words: "a(gate + up)", bits: 5.0, of: |g, u| g + u, out: |a, _, _| a },
    Role { words: "a(gate * up)", bits: 5.0, of: |g, u| g * u, out: |a, _, _| a },
    Role { words: "a(gate) + up", bits: 4.0, of: |g, _| g, out: |a, _, u| a + u },
    Role { words: "a(gate) * (up + 1)", bits: 5.0, of: |g, _| g, out: |a, _, u| a * (u + 1.0) },
    Role { words: "a(gate) * up + gate", bits: 6.0, of: |g, _| g, out: |a, g, u| a * u + g },
    Role { words: "a(gate) * up + up", bits: 6.0, of: |g, _| g, out: |a, _, u| a * u + u },
    Role { words: "gate + a(up)", bits: 5.0, of: |_, u| u, out: |a, g, _| g + a },
];

const ALONE: [Role; 1] = [Role { words: "a(x)", bits: 0.0, of: |x, _| x, out: |a, _, _| a }];

/// Ways to put a constant to any function.
type Shape = (&'static str, fn(fn(f64) -> f64, f64, f64) -> f64, f64, f64, bool);
const SHAPES: [Shape; 6] = [
    ("f, at most {}", |f, x, b| f(x).min(b), 0.01, 20.0, true),
    ("f, at least {}", |f, x, b| f(x).max(b), -3.0, 3.0, false),
    ("f + {}", |f, x, b| f(x) + b, -2.0, 2.0, false),
    ("f of {} x", |f, x, b| f(b * x), 0.05, 8.0, true),
    ("f of x + {}", |f, x, b| f(x + b), -3.0, 3.0, false),
    ("f, {} times where x is negative", |f, x, b| if x < 0.0 { b * f(x) } else { f(x) }, -2.0, 3.0, false),
];
/// Functions that these are tried with.
const SHAPED: usize = 15;

/// A function with a constant.
struct Family {
    words: String,
    f: Arc<dyn Fn(f64, f64) -> f64 + Send + Sync>,
    range: (f64, f64),
    by_size: bool,
}

fn families() -> (Vec<Family>, Vec<Family>) {
    let of = |(words, f, low, high, by_size): OneConstant| Family {
        words: words.to_owned(),
        f: Arc::new(f),
        range: (low, high),
        by_size,
    };
    let named = WITH_CONSTANT.into_iter().map(of).collect();
    let made = FIXED.iter().take(SHAPED).flat_map(|&(name, f)| {
        SHAPES.into_iter().map(move |(words, shape, low, high, by_size)| Family {
            words: words.replacen('f', name, 1),
            f: Arc::new(move |x, b| shape(f, x, b)),
            range: (low, high),
            by_size,
        })
    });
    (named, made.collect())
}

/// Parts of a drawn curve.
const CURVE: u32 = 64;
/// Numbers up to which it is looked what is done behind a function.
const MOST_BEHIND: usize = 1 << 15;
/// Elements that a constant is looked for on; the first look is at fewer.
const SAMPLE: usize = 3000;
const FEW: usize = 400;
/// Elements of one sign that tell a function of these.
const LEAST_OF_A_SIDE: usize = 16;
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
    let wrong = crate::identify::wrong(first);
    let parts: Vec<Set> = (0..wrong.ndim())
        .map(|axis| {
            let meant: Vec<Option<bool>> =
                wrong.axis_iter(ndarray::Axis(axis)).map(|slice| Some(slice.iter().any(|wrong| *wrong))).collect();
            describe_set(
                &meant,
                case.axes.get(axis).copied().unwrap_or(Axis::Channel),
                case.tokens.as_deref().filter(|_| axis == 0),
            )
        })
        .collect();
    let whole: Vec<Set> = parts.iter().map(|part| Set::all(part.has.len())).collect();
    let mut laws = Vec::new();
    let is_part = parts.iter().any(|part| !part.is_all()) && parts.iter().all(|part| part.bits <= DEAR);
    for parts in std::iter::once(&whole).chain(is_part.then_some(&parts)) {
        let mask = ArrayD::from_shape_fn(wrong.raw_dim(), |at| {
            parts.iter().enumerate().all(|(axis, part)| part.has[at[axis]])
        });
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
            for (words, f) in FIXED {
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
        laws.extend(self.sums(&model));
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
        let few: Vec<[f64; 4]> = self.sample.iter().copied().step_by((self.sample.len() / FEW).max(1)).collect();
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
                let (at, rest) = search(low, high, 61, family.by_size, |b| of(&few, b));
                let left = |b: f64| of(&self.sample, b);
                if rest > SEARCH_ROOM || left(at) > SEARCH_ROOM {
                    continue;
                }
                let rest = left(at);
                // How far the constant may be off: where the rest is twice what it is, or rounding's.
                let near = (2.0 * rest).max(2.0 * self.noise);
                let error = [1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2]
                    .into_iter()
                    .map(|by| by * at.abs().max(1e-2))
                    .find(|by| left(at + by) > near)
                    .unwrap_or(1e-2 * at.abs());
                let measured = Measured::new(at, error);
                for number in [measured.number(), Measured::new(at, 0.0).plain()] {
                    let b = number.value;
                    if left(b) > ROOM * self.noise {
                        continue;
                    }
                    let said = format!("{} with a(x) = {}", role.words, family.words.replace("{}", &number.words));
                    let f = family.f.clone();
                    let law = self.law(role, said, role.bits + 8.0 + number.bits, model, move |x| f(x, b), 1.0);
                    laws.push(law.with("a", family.words.clone()).with("role", role.words).with("b", b));
                    break;
                }
            }
        }
        laws
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
        let (mut support, mut bits) = (Support::default(), bits);
        for (axis, part) in self.case.axes.iter().zip(self.parts) {
            support.add(*axis, part.words.clone());
            bits += part.bits;
        }
        let right = model.as_ref().map_or_else(String::new, |model| format!(" (right: {model})"));
        let words = format!("the output is {words}{right}{}", support.said());
        let (mask, f) = (self.mask.clone(), Arc::new(f));
        let data = self.curve(role, |x| by * f(x));
        let law = Law::new(
            if role.bits == 0.0 { Form::Activation } else { Form::GateRoles },
            words,
            bits,
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

    /// Sums of few terms of gate and up.
    fn sums(&self, model: &Option<String>) -> Vec<Law> {
        type Term = (&'static str, fn(f64, f64) -> f64);
        const TERMS: [Term; 9] = [
            ("silu(gate) * up", |g, u| silu(g) * u),
            ("silu(gate)", |g, _| silu(g)),
            ("gate * up", |g, u| g * u),
            ("up", |_, u| u),
            ("gate", |g, _| g),
            ("relu(gate) * up", |g, u| g.max(0.0) * u),
            ("sigmoid(gate) * up", |g, u| sigmoid(g) * u),
            ("gelu(gate) * up", |g, u| gelu_tanh(g) * u),
            ("1", |_, _| 1.0),
        ];
        let own: Vec<f64> = self.sample.iter().map(|row| row[2]).collect();
        let columns: Vec<Vec<f64>> =
            TERMS.iter().map(|(_, f)| self.sample.iter().map(|[g, u, ..]| f(*g, *u)).collect()).collect();
        let mut laws = Vec::new();
        for a in 0..TERMS.len() {
            for b in a + 1..TERMS.len() {
                for c in std::iter::once(None).chain((b + 1..TERMS.len()).map(Some)) {
                    let set: Vec<usize> = [Some(a), Some(b), c].into_iter().flatten().collect();
                    let of: Vec<&[f64]> = set.iter().map(|&at| columns[at].as_slice()).collect();
                    let Some(fit) = least_squares(&of, &own, self.noise).filter(|fit| fit.left <= ROOM * self.noise)
                    else {
                        continue;
                    };
                    if fit.coefficients.iter().any(|c| c.may_be(0.0)) {
                        continue;
                    }
                    let numbers: Vec<_> = fit.coefficients.iter().map(Measured::number).collect();
                    let said: Vec<String> =
                        set.iter().zip(&numbers).map(|(&at, n)| format!("{} {}", n.words, TERMS[at].0)).collect();
                    let bits = 8.0 + numbers.iter().map(|n| n.bits + 3.0).sum::<f64>();
                    let right = model.as_ref().map_or_else(String::new, |model| format!(" (right: {model})"));
                    let terms: Vec<_> = set.iter().zip(&numbers).map(|(&at, n)| (n.value, TERMS[at].1)).collect();
                    laws.push(Law::new(
                        Form::GateRoles,
                        format!("the output is {}{right}", said.join(" + ")),
                        bits,
                        move |case, at| {
                            let (g, u) = operands(&case.places[at])?;
                            Some(
                                ndarray::Zip::from(g)
                                    .and(u)
                                    .map_collect(|g, u| terms.iter().map(|(c, f)| c * f(*g, *u)).sum()),
                            )
                        },
                    ));
                }
            }
        }
        laws
    }
}

/// Errors of rounding's size that an activation may be left with before the proof.
const ROOM: f64 = 5.0;
/// What a search may leave before its constant is looked at.
const SEARCH_ROOM: f64 = 0.05;
/// What a right function leaves of right values.
const EXACT: f64 = 1e-6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_is_exact() {
        for (x, value) in [
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.4, 0.999_311_486_103_354_9),
            (3.0, 0.999_977_909_503_001_4),
        ] {
            assert!((erf(x) - value).abs() < 1e-13, "{x}: {}", erf(x));
            assert!((erf(-x) + value).abs() < 1e-13);
        }
    }
}

//! The functions that an activation may be, and how it and its operands make the output.

use std::f64::consts::{FRAC_1_SQRT_2, PI};
use std::sync::Arc;

pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub(super) fn silu(x: f64) -> f64 {
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

pub(in crate::identify) fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}

/// Functions without a constant.
pub(super) type Fixed = (&'static str, fn(f64) -> f64);
pub(super) const FIXED: [Fixed; 39] = [
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

/// silu with an exponential or a sigmoid that is only near to the right one.
pub(super) const APPROXIMATED: [Fixed; 21] = [
    ("x sigmoid(x) with e^x as (1 + x/16)^16", silu_by_power::<4>),
    ("x sigmoid(x) with e^x as (1 + x/32)^32", silu_by_power::<5>),
    ("x sigmoid(x) with e^x as (1 + x/64)^64", silu_by_power::<6>),
    ("x sigmoid(x) with e^x as (1 + x/128)^128", silu_by_power::<7>),
    ("x sigmoid(x) with e^x as (1 + x/256)^256", silu_by_power::<8>),
    ("x sigmoid(x) with e^x as (1 + x/512)^512", silu_by_power::<9>),
    ("x sigmoid(x) with e^x as (1 + x/1024)^1024", silu_by_power::<10>),
    ("x times the sigmoid of x cut down to multiples of 1/4", |x| x * sigmoid((4.0 * x).floor() / 4.0)),
    ("x times the sigmoid of x cut down to multiples of 1/8", |x| x * sigmoid((8.0 * x).floor() / 8.0)),
    ("x times the sigmoid of x cut down to multiples of 1/16", |x| x * sigmoid((16.0 * x).floor() / 16.0)),
    ("x times the sigmoid of x cut down to multiples of 1/32", |x| x * sigmoid((32.0 * x).floor() / 32.0)),
    ("x times the sigmoid of x cut down to multiples of 1/64", |x| x * sigmoid((64.0 * x).floor() / 64.0)),
    ("x times the sigmoid of x cut down to multiples of 1/128", |x| x * sigmoid((128.0 * x).floor() / 128.0)),
    ("x times the sigmoid of x cut down to multiples of 1/256", |x| x * sigmoid((256.0 * x).floor() / 256.0)),
    ("x times the sigmoid of x rounded to multiples of 1/4", |x| x * sigmoid((4.0 * x).round() / 4.0)),
    ("x times the sigmoid of x rounded to multiples of 1/8", |x| x * sigmoid((8.0 * x).round() / 8.0)),
    ("x times the sigmoid of x rounded to multiples of 1/16", |x| x * sigmoid((16.0 * x).round() / 16.0)),
    ("x times the sigmoid of x rounded to multiples of 1/32", |x| x * sigmoid((32.0 * x).round() / 32.0)),
    ("x times the sigmoid of x rounded to multiples of 1/64", |x| x * sigmoid((64.0 * x).round() / 64.0)),
    ("x times the sigmoid of x rounded to multiples of 1/128", |x| x * sigmoid((128.0 * x).round() / 128.0)),
    ("x times the sigmoid of x rounded to multiples of 1/256", |x| x * sigmoid((256.0 * x).round() / 256.0)),
];

/// x / (1 + (1 - x / 2^K)^(2^K)), squared K times. In f32, as an engine has it: rounding that is squared often shows.
fn silu_by_power<const K: i32>(x: f64) -> f64 {
    let x = x as f32;
    let power = (0..K).fold(1.0 - x / 2f32.powi(K), |power, _| power * power);
    f64::from(x / (1.0 + power))
}

/// Functions with one constant b, and its range; `true`: the range is searched by size.
type OneConstant = (&'static str, fn(f64, f64) -> f64, f64, f64, bool);
const WITH_CONSTANT: [OneConstant; 33] = [
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
    ("x sigmoid(x), the sigmoid 0 where x is below -{} and 1 above", saturated, 0.05, 20.0, true),
    ("x times (sigmoid(x) of x held within {})", |x, b| x * sigmoid(x.clamp(-b, b)), 0.05, 20.0, true),
    ("silu(x) + {} x", |x, b| silu(x) + b * x, -2.0, 2.0, false),
    ("silu of x rounded to multiples of {}", |x, b| silu((x / b).round_ties_even() * b), 0.001, 0.5, true),
];

/// silu(x) with a sigmoid that is 0 below -b and 1 above b.
fn saturated(x: f64, b: f64) -> f64 {
    if x < -b {
        0.0
    } else if x > b {
        x
    } else {
        silu(x)
    }
}

/// How an activation and its operands make the output.
pub(super) struct Role {
    pub(super) words: &'static str,
    pub(super) bits: f64,
    /// What the function is applied to.
    pub(super) of: fn(f64, f64) -> f64,
    /// The output of the function's value and the operands.
    pub(super) out: fn(f64, f64, f64) -> f64,
}

pub(super) const GATED: [Role; 14] = [
    Role { words: "a(gate) * up", bits: 0.0, of: |g, _| g, out: |a, _, u| a * u },
    Role { words: "gate * a(up)", bits: 4.0, of: |_, u| u, out: |a, g, _| g * a },
    Role { words: "silu(gate) * a(up)", bits: 5.0, of: |_, u| u, out: |a, g, _| silu(g) * a },
    Role { words: "a(gate)", bits: 4.0, of: |g, _| g, out: |a, _, _| a },
    Role { words: "a(up)", bits: 4.0, of: |_, u| u, out: |a, _, _| a },
    Role { words: "a(gate) * gate (the gate stands for up)", bits: 5.0, of: |g, _| g, out: |a, g, _| a * g },
    Role { words: "a(up) * up (up stands for the gate)", bits: 5.0, of: |_, u| u, out: |a, _, u| a * u },
    Role { words: "a(gate + up)", bits: 5.0, of: |g, u| g + u, out: |a, _, _| a },
    Role { words: "a(gate * up)", bits: 5.0, of: |g, u| g * u, out: |a, _, _| a },
    Role { words: "a(gate) + up", bits: 4.0, of: |g, _| g, out: |a, _, u| a + u },
    Role { words: "a(gate) * (up + 1)", bits: 5.0, of: |g, _| g, out: |a, _, u| a * (u + 1.0) },
    Role { words: "a(gate) * up + gate", bits: 6.0, of: |g, _| g, out: |a, g, u| a * u + g },
    Role { words: "a(gate) * up + up", bits: 6.0, of: |g, _| g, out: |a, _, u| a * u + u },
    Role { words: "gate + a(up)", bits: 5.0, of: |_, u| u, out: |a, g, _| g + a },
];

pub(super) const ALONE: [Role; 1] = [Role { words: "a(x)", bits: 0.0, of: |x, _| x, out: |a, _, _| a }];

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
pub(super) struct Family {
    pub(super) words: String,
    pub(super) f: Arc<dyn Fn(f64, f64) -> f64 + Send + Sync>,
    pub(super) range: (f64, f64),
    pub(super) by_size: bool,
}

pub(super) fn families() -> (Vec<Family>, Vec<Family>) {
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

//! Computes functions of one number.

use super::call::{Call, Results, ensure};
use super::special;
use crate::value::dtype::{DType, Kind};
use crate::value::error::KernelError;
use crate::value::tensor::{Tensor, Values};

/// f of every value, as a float.
fn floats(call: &Call<'_>, f: impl Fn(f64) -> f64) -> Results {
    let x = call.tensor(0, "self")?;
    if x.kind() == Kind::Complex {
        return Err(KernelError::Kind { what: "this function", kind: Kind::Complex });
    }
    Ok(vec![Tensor::of(x.shape.clone(), x.to_floats().iter().map(|&x| f(x)).collect::<Vec<_>>())])
}

/// f for floats, g for integers.
fn both(call: &Call<'_>, f: impl Fn(f64) -> f64, g: impl Fn(i64) -> i64) -> Results {
    match &call.tensor(0, "self")?.values {
        Values::Int(x) => {
            Ok(vec![Tensor::of(call.tensor(0, "self")?.shape.clone(), x.iter().map(|&x| g(x)).collect::<Vec<_>>())])
        }
        _ => floats(call, f),
    }
}

/// Whether f holds for each value; integers are converted to floats.
fn truths(call: &Call<'_>, f: impl Fn(f64) -> bool) -> Results {
    let x = call.tensor(0, "self")?;
    let truths = match &x.values {
        Values::Complex(x) => x.iter().map(|x| i64::from(f(x[0]) || f(x[1]))).collect::<Vec<_>>(),
        _ => x.to_floats().iter().map(|&x| i64::from(f(x))).collect(),
    };
    Ok(vec![Tensor::of(x.shape.clone(), truths)])
}

/// -x.
pub(super) fn neg(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    match &x.values {
        Values::Complex(values) => {
            let values: Vec<_> = values.iter().map(|x| [-x[0], -x[1]]).collect();
            Ok(vec![Tensor::of(x.shape.clone(), values)])
        }
        _ => both(call, |x| -x, i64::wrapping_neg),
    }
}

/// |x|; √(re² + im²) for complex numbers.
pub(super) fn abs(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    match &x.values {
        Values::Complex(values) => {
            let values: Vec<_> = values.iter().map(|x| x[0].hypot(x[1])).collect();
            Ok(vec![Tensor::of(x.shape.clone(), values)])
        }
        _ => both(call, f64::abs, i64::wrapping_abs),
    }
}

/// re - i·im.
pub(super) fn conj(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    match &x.values {
        Values::Complex(values) => {
            let values: Vec<_> = values.iter().map(|x| [x[0], -x[1]]).collect();
            Ok(vec![Tensor::of(x.shape.clone(), values)])
        }
        _ => Ok(vec![x.clone().into_owned()]),
    }
}

/// -1, 0 or 1.
pub(super) fn sign(call: &Call<'_>) -> Results {
    both(
        call,
        |x| {
            if x > 0.0 {
                1.0
            } else if x < 0.0 {
                -1.0
            } else {
                0.0
            }
        },
        i64::signum,
    )
}

/// x².
pub(super) fn square(call: &Call<'_>) -> Results {
    both(call, |x| x * x, |x| x.wrapping_mul(x))
}

/// The largest integer that is not greater than x.
pub(super) fn floor(call: &Call<'_>) -> Results {
    both(call, f64::floor, |x| x)
}

/// The smallest integer that is not less than x.
pub(super) fn ceil(call: &Call<'_>) -> Results {
    both(call, f64::ceil, |x| x)
}

/// x rounded towards zero.
pub(super) fn trunc(call: &Call<'_>) -> Results {
    both(call, f64::trunc, |x| x)
}

/// The nearest integer, ties to even; with `decimals`, the nearest multiple of 10^-decimals.
pub(super) fn round(call: &Call<'_>) -> Results {
    let scale = 10f64.powi(call.int(usize::MAX, "decimals")?.unwrap_or(0).clamp(-300, 300) as i32);
    both(call, |x| if scale == 1.0 { x.round_ties_even() } else { (x * scale).round_ties_even() / scale }, |x| x)
}

/// x - trunc(x).
pub(super) fn frac(call: &Call<'_>) -> Results {
    floats(call, f64::fract)
}

/// √x.
pub(super) fn sqrt(call: &Call<'_>) -> Results {
    floats(call, f64::sqrt)
}

/// 1 / √x.
pub(super) fn rsqrt(call: &Call<'_>) -> Results {
    floats(call, |x| x.sqrt().recip())
}

/// 1 / x.
pub(super) fn reciprocal(call: &Call<'_>) -> Results {
    floats(call, f64::recip)
}

/// e^x.
pub(super) fn exp(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    match &x.values {
        Values::Complex(values) => {
            let values = values.iter().map(|x| [x[0].exp() * x[1].cos(), x[0].exp() * x[1].sin()]);
            Ok(vec![Tensor::of(x.shape.clone(), values.collect::<Vec<_>>())])
        }
        _ => floats(call, f64::exp),
    }
}

/// 2^x.
pub(super) fn exp2(call: &Call<'_>) -> Results {
    floats(call, f64::exp2)
}

/// e^x - 1.
pub(super) fn expm1(call: &Call<'_>) -> Results {
    floats(call, f64::exp_m1)
}

/// ln x.
pub(super) fn log(call: &Call<'_>) -> Results {
    floats(call, f64::ln)
}

/// log₂ x.
pub(super) fn log2(call: &Call<'_>) -> Results {
    floats(call, f64::log2)
}

/// log₁₀ x.
pub(super) fn log10(call: &Call<'_>) -> Results {
    floats(call, f64::log10)
}

/// ln(1 + x).
pub(super) fn log1p(call: &Call<'_>) -> Results {
    floats(call, f64::ln_1p)
}

/// cos x.
pub(super) fn cos(call: &Call<'_>) -> Results {
    floats(call, f64::cos)
}

/// sin x.
pub(super) fn sin(call: &Call<'_>) -> Results {
    floats(call, f64::sin)
}

/// tan x.
pub(super) fn tan(call: &Call<'_>) -> Results {
    floats(call, f64::tan)
}

/// tanh x.
pub(super) fn tanh(call: &Call<'_>) -> Results {
    floats(call, f64::tanh)
}

/// 2/√π ∫₀ˣ e^(-t²) dt.
pub(super) fn erf(call: &Call<'_>) -> Results {
    floats(call, libm::erf)
}

/// The angle whose cosine is x.
pub(super) fn acos(call: &Call<'_>) -> Results {
    floats(call, f64::acos)
}

/// The angle whose sine is x.
pub(super) fn asin(call: &Call<'_>) -> Results {
    floats(call, f64::asin)
}

/// The angle whose tangent is x.
pub(super) fn atan(call: &Call<'_>) -> Results {
    floats(call, f64::atan)
}

/// (e^x - e^-x) / 2.
pub(super) fn sinh(call: &Call<'_>) -> Results {
    floats(call, f64::sinh)
}

/// (e^x + e^-x) / 2.
pub(super) fn cosh(call: &Call<'_>) -> Results {
    floats(call, f64::cosh)
}

/// The number whose cosh is x.
pub(super) fn acosh(call: &Call<'_>) -> Results {
    floats(call, f64::acosh)
}

/// The number whose sinh is x.
pub(super) fn asinh(call: &Call<'_>) -> Results {
    floats(call, f64::asinh)
}

/// The number whose tanh is x.
pub(super) fn atanh(call: &Call<'_>) -> Results {
    floats(call, f64::atanh)
}

/// The number whose [`erf`] is x.
pub(super) fn erfinv(call: &Call<'_>) -> Results {
    floats(call, special::erfinv)
}

/// 1 / (1 + e^-x).
pub(super) fn sigmoid(call: &Call<'_>) -> Results {
    floats(call, special::sigmoid)
}

/// ln sigmoid(x) = min(x, 0) - ln(1 + e^-|x|).
pub(super) fn log_sigmoid(call: &Call<'_>) -> Results {
    floats(call, |x| x.min(0.0) - (-x.abs()).exp().ln_1p())
}

/// x · sigmoid(x).
pub(super) fn silu(call: &Call<'_>) -> Results {
    floats(call, firstdiff_core::silu)
}

/// max(x, 0).
pub(super) fn relu(call: &Call<'_>) -> Results {
    both(call, firstdiff_core::relu, |x| x.max(0))
}

/// min(max(x, 0), 6).
pub(super) fn relu6(call: &Call<'_>) -> Results {
    floats(call, |x| clip(x, 0.0, 6.0))
}

/// x clamped to two limits; NaN stays NaN.
fn clip(x: f64, low: f64, high: f64) -> f64 {
    if x < low {
        low
    } else if x > high {
        high
    } else {
        x
    }
}

/// x · Φ(x), or its approximation by tanh.
pub(super) fn gelu(call: &Call<'_>) -> Results {
    match call.text(1, "approximate") {
        None | Some("none") => floats(call, firstdiff_core::gelu_erf),
        Some("tanh") => floats(call, firstdiff_core::gelu_tanh),
        Some(other) => Err(KernelError::Value { name: "approximate", value: other.into() }),
    }
}

/// ln(1 + e^(βx)) / β; x itself where βx is above the threshold.
pub(super) fn softplus(call: &Call<'_>) -> Results {
    let (beta, threshold) = (call.float(1, "beta")?.unwrap_or(1.0), call.float(2, "threshold")?.unwrap_or(20.0));
    floats(call, |x| if x * beta > threshold { x } else { (x * beta).exp().ln_1p() / beta })
}

/// x clamped to `min_val` and `max_val`.
pub(super) fn hardtanh(call: &Call<'_>) -> Results {
    let (low, high) = (call.float(1, "min_val")?.unwrap_or(-1.0), call.float(2, "max_val")?.unwrap_or(1.0));
    floats(call, |x| clip(x, low, high))
}

/// x · relu6(x + 3) / 6.
pub(super) fn hardswish(call: &Call<'_>) -> Results {
    floats(call, |x| x * clip(x + 3.0, 0.0, 6.0) / 6.0)
}

/// relu6(x + 3) / 6.
pub(super) fn hardsigmoid(call: &Call<'_>) -> Results {
    floats(call, |x| clip(x + 3.0, 0.0, 6.0) / 6.0)
}

/// x where it is positive, else slope · x.
pub(super) fn leaky_relu(call: &Call<'_>) -> Results {
    let slope = call.float(1, "negative_slope")?.unwrap_or(0.01);
    floats(call, |x| if x > 0.0 { x } else { x * slope })
}

/// scale · x where x is positive, else scale · α · (e^(x · input_scale) - 1).
pub(super) fn elu(call: &Call<'_>) -> Results {
    let alpha = call.float(1, "alpha")?.unwrap_or(1.0);
    let (scale, input) = (call.float(2, "scale")?.unwrap_or(1.0), call.float(3, "input_scale")?.unwrap_or(1.0));
    floats(call, |x| if x > 0.0 { scale * x } else { scale * alpha * (x * input).exp_m1() })
}

/// [`elu`] with the constants of self-normalising networks (Klambauer et al., 2017).
pub(super) fn selu(call: &Call<'_>) -> Results {
    const ALPHA: f64 = 1.673_263_242_354_377_2;
    const SCALE: f64 = 1.050_700_987_355_480_5;
    floats(call, |x| if x > 0.0 { SCALE * x } else { SCALE * ALPHA * x.exp_m1() })
}

/// x where it is positive, else α · (e^(x/α) - 1).
pub(super) fn celu(call: &Call<'_>) -> Results {
    let alpha = call.float(1, "alpha")?.unwrap_or(1.0);
    floats(call, |x| if x > 0.0 { x } else { alpha * (x / alpha).exp_m1() })
}

/// x · tanh(ln(1 + e^x)).
pub(super) fn mish(call: &Call<'_>) -> Results {
    floats(call, |x| x * special::softplus(x).tanh())
}

/// Whether x is 0.
pub(super) fn logical_not(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    Ok(vec![Tensor::of(x.shape.clone(), x.to_bools().iter().map(|&x| i64::from(!x)).collect::<Vec<_>>())])
}

/// Inverts every bit; negates a boolean.
pub(super) fn bitwise_not(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    if x.dtype == DType::Bool {
        return logical_not(call);
    }
    if x.kind() != Kind::Int {
        return Err(KernelError::Kind { what: "bitwise_not", kind: x.kind() });
    }
    Ok(vec![Tensor::of(x.shape.clone(), x.to_ints().iter().map(|&x| !x).collect::<Vec<_>>())])
}

/// Whether x is NaN.
pub(super) fn isnan(call: &Call<'_>) -> Results {
    truths(call, f64::is_nan)
}

/// Whether x is infinite.
pub(super) fn isinf(call: &Call<'_>) -> Results {
    truths(call, f64::is_infinite)
}

/// Whether x is finite.
pub(super) fn isfinite(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    ensure(x.kind() != Kind::Complex, "isfinite of complex numbers", &x.shape, &[])?;
    truths(call, f64::is_finite)
}

/// Replaces NaN by 0 and infinities by the largest numbers of the type, unless other values are given.
pub(super) fn nan_to_num(call: &Call<'_>) -> Results {
    let largest = match call.tensor(0, "self")?.dtype {
        DType::F32 => f64::from(f32::MAX),
        DType::F16 => 65504.0,
        DType::BF16 => half::bf16::MAX.to_f64(),
        _ => f64::MAX,
    };
    let nan = call.float(1, "nan")?.unwrap_or(0.0);
    let (high, low) = (call.float(2, "posinf")?.unwrap_or(largest), call.float(3, "neginf")?.unwrap_or(-largest));
    both(
        call,
        |x| match x {
            x if x.is_nan() => nan,
            f64::INFINITY => high,
            f64::NEG_INFINITY => low,
            x => x,
        },
        |x| x,
    )
}

//! Computes ggml's elementwise operations of one tensor, or of two, of which the second is repeated.

use super::super::call::{Call, Results};
use super::super::special;
use super::{ensure, float, four, is_given, or_zero, repeated, result_like};
use crate::value::error::KernelError;
use crate::value::tensor::Tensor;

/// f of every pair of values, with the second operand repeated along each axis.
fn binary(call: &Call<'_>, f: impl Fn(f64, f64) -> f64) -> Results {
    let (a, b) = (call.tensor(0, "src0")?, call.tensor(1, "src1")?);
    let fellow = repeated(&b.to_floats(), four(&b.shape)?, four(&a.shape)?)?;
    Ok(result_like(a, a.to_floats().iter().zip(fellow).map(|(&a, b)| f(a, b)).collect()))
}

/// a + b.
pub(super) fn add(call: &Call<'_>) -> Results {
    binary(call, |a, b| a + b)
}

/// a - b.
pub(super) fn sub(call: &Call<'_>) -> Results {
    binary(call, |a, b| a - b)
}

/// a · b.
pub(super) fn mul(call: &Call<'_>) -> Results {
    binary(call, |a, b| a * b)
}

/// a / b.
pub(super) fn div(call: &Call<'_>) -> Results {
    binary(call, |a, b| a / b)
}

/// f of every value.
fn unary(call: &Call<'_>, f: impl Fn(f64) -> f64) -> Results {
    let x = call.tensor(0, "src0")?;
    Ok(result_like(x, x.to_floats().iter().map(|&x| f(x)).collect()))
}

/// scale · x + bias.
pub(super) fn scale(call: &Call<'_>) -> Results {
    let (scale, bias) = (float(call, "scale")?, float(call, "bias")?);
    unary(call, |x| scale * x + bias)
}

/// x clamped to `min` and `max`.
pub(super) fn clamp(call: &Call<'_>) -> Results {
    let (min, max) = (float(call, "min")?, float(call, "max")?);
    unary(call, |x| x.max(min).min(max))
}

/// x where it is positive, else `negative_slope` · x.
pub(super) fn leaky_relu(call: &Call<'_>) -> Results {
    let slope = float(call, "negative_slope")?;
    unary(call, |x| x.max(0.0) + slope * x.min(0.0))
}

/// 1, -1 or 0.
pub(super) fn sgn(call: &Call<'_>) -> Results {
    unary(call, |x| f64::from(i8::from(x > 0.0) - i8::from(x < 0.0)))
}

/// 1 where x is positive, else 0.
pub(super) fn step(call: &Call<'_>) -> Results {
    unary(call, |x| f64::from(u8::from(x > 0.0)))
}

/// x where it is positive, else e^x - 1.
pub(super) fn elu(call: &Call<'_>) -> Results {
    unary(call, |x| if x > 0.0 { x } else { x.exp_m1() })
}

/// x / (1 + e^(-1.702 x)). ggml looks it up in a table, with x rounded to f16.
pub(super) fn gelu_quick(call: &Call<'_>) -> Results {
    unary(call, quick)
}

fn quick(x: f64) -> f64 {
    x * special::sigmoid(1.702 * x)
}

fn swish(x: f64) -> f64 {
    x * special::sigmoid(x)
}

/// (x + 3) / 6 between 0 and 1.
fn ramp(x: f64) -> f64 {
    ((x + 3.0) / 6.0).clamp(0.0, 1.0)
}

/// x · ramp(x).
pub(super) fn hardswish(call: &Call<'_>) -> Results {
    unary(call, |x| x * ramp(x))
}

/// ramp(x): (x + 3) / 6 between 0 and 1.
pub(super) fn hardsigmoid(call: &Call<'_>) -> Results {
    unary(call, ramp)
}

/// e^x - 1.
pub(super) fn expm1(call: &Call<'_>) -> Results {
    unary(call, f64::exp_m1)
}

/// αₚ x² + β x where x is positive, else αₙ (e^min(x, ε) - 1 - x) + β x.
pub(super) fn xielu(call: &Call<'_>) -> Results {
    let (negative, positive) = (float(call, "alpha_n")?, float(call, "alpha_p")?);
    let (beta, eps) = (float(call, "beta")?, float(call, "eps")?);
    unary(call, |x| beta * x + if x > 0.0 { positive * x * x } else { negative * (x.min(eps).exp_m1() - x) })
}

/// The largest integer that is not greater than x.
pub(super) fn floor(call: &Call<'_>) -> Results {
    unary(call, f64::floor)
}

/// The smallest integer that is not less than x.
pub(super) fn ceil(call: &Call<'_>) -> Results {
    unary(call, f64::ceil)
}

/// The nearest integer, halves away from zero.
pub(super) fn round(call: &Call<'_>) -> Results {
    unary(call, f64::round)
}

/// x rounded towards zero.
pub(super) fn trunc(call: &Call<'_>) -> Results {
    unary(call, f64::trunc)
}

/// f(a, b) of gate a and value b: two operands, or the halves of each row, with the gate first unless `swapped`.
fn gated(call: &Call<'_>, f: impl Fn(f64, f64) -> f64) -> Results {
    let x = call.tensor(0, "src0")?;
    if is_given(call, 1) {
        let b = call.tensor(1, "src1")?;
        ensure(b.shape == x.shape, "gates and values", &x.shape, &b.shape)?;
        return Ok(result_like(x, x.to_floats().iter().zip(b.to_floats().iter()).map(|(&a, &b)| f(a, b)).collect()));
    }
    let Some((&width, outer)) = x.shape.split_last().filter(|(width, _)| width.is_multiple_of(2)) else {
        return Err(KernelError::Shape { what: "halves of a row", left: x.shape.clone(), right: vec![2] });
    };
    let (half, values) = (width / 2, x.to_floats());
    let swapped = or_zero(call, "swapped")? != 0;
    let mut out = Vec::with_capacity(values.len() / 2);
    for row in values.chunks_exact(width.max(1)) {
        let (front, back) = row.split_at(half);
        let (gates, values) = if swapped { (back, front) } else { (front, back) };
        out.extend(gates.iter().zip(values).map(|(&a, &b)| f(a, b)));
    }
    Ok(vec![Tensor::of([outer, &[half]].concat(), out)])
}

/// a / (1 + e^(-1.702 a)) · b; ggml looks the gate up in an f16 table.
pub(super) fn geglu_quick(call: &Call<'_>) -> Results {
    gated(call, |a, b| quick(a) * b)
}

/// a / (1 + e^(-α a)) · (b + 1), with a clamped to at most `limit` and b to ± `limit`.
pub(super) fn swiglu_oai(call: &Call<'_>) -> Results {
    let (alpha, limit) = (float(call, "alpha")?, float(call, "limit")?);
    gated(call, |a, b| {
        let a = a.min(limit);
        a * special::sigmoid(alpha * a) * (b.min(limit).max(-limit) + 1.0)
    })
}

/// a / (1 + e^-a) · b, with a clamped to at most `limit` and b to ± `limit`.
pub(super) fn swiglu_clamp(call: &Call<'_>) -> Results {
    let limit = float(call, "limit")?;
    gated(call, |a, b| swish(a.min(limit)) * b.min(limit).max(-limit))
}

//! Computes functions of two or three numbers, broadcast. Two integers give an integer, a complex operand makes all complex, else all are floats.

use super::call::{Call, Results, expanded};
use super::special;
use crate::memory::broadcast_strides;
use crate::value::dtype::Kind;
use crate::value::error::KernelError;
use crate::value::tensor::Tensor;
use crate::value::view::for_each_row;

/// f of every pair of two broadcast tensors, row by row.
pub(super) fn zip<A: Copy, B: Copy, T>(
    (a, a_shape): (&[A], &[usize]),
    (b, b_shape): (&[B], &[usize]),
    shape: &[usize],
    f: impl Fn(A, B) -> T,
) -> Result<Vec<T>, KernelError> {
    let count: usize = shape.iter().product();
    // Equal shapes, or a single number: no strides are needed.
    if a.len() == count && b.len() == count {
        return Ok(a.iter().zip(b).map(|(&x, &y)| f(x, y)).collect());
    }
    if let ([y], true) = (b, a.len() == count) {
        return Ok(a.iter().map(|&x| f(x, *y)).collect());
    }
    let misfit = |from: &[usize]| KernelError::Shape { what: "broadcast", left: from.into(), right: shape.into() };
    let a_strides = broadcast_strides(a_shape, shape).ok_or_else(|| misfit(a_shape))?;
    let b_strides = broadcast_strides(b_shape, shape).ok_or_else(|| misfit(b_shape))?;
    let mut out = Vec::with_capacity(count);
    let (Some(&a_last), Some(&b_last), Some(&extent)) = (a_strides.last(), b_strides.last(), shape.last()) else {
        return Ok(a.iter().zip(b).map(|(&x, &y)| f(x, y)).collect());
    };
    let outer = &shape[..shape.len() - 1];
    let mut starts = Vec::new();
    if extent > 0 {
        starts.reserve(outer.iter().product());
        for_each_row(outer, &a_strides[..outer.len()], 0, |start, stride, n| {
            starts.extend((0..n).map(|i| start + i * stride));
        });
    }
    let mut row = 0;
    for_each_row(outer, &b_strides[..outer.len()], 0, |start, stride, n| {
        for i in 0..if extent > 0 { n } else { 0 } {
            let (from_a, from_b) = (starts[row], start + i * stride);
            row += 1;
            out.extend((0..extent).map(|j| f(a[from_a + j * a_last], b[from_b + j * b_last])));
        }
    });
    Ok(out)
}

/// A function of two complex numbers.
type OfComplex = fn([f64; 2], [f64; 2]) -> [f64; 2];

/// Applies f, g or h, depending on the kind of both operands.
fn arithmetic(
    call: &Call<'_>,
    a: &Tensor<'_>,
    b: &Tensor<'_>,
    f: impl Fn(i64, i64) -> i64,
    g: impl Fn(f64, f64) -> f64,
    h: Option<OfComplex>,
) -> Results {
    let shape = call.broadcast(&a.shape, &b.shape)?;
    match (a.kind().max(b.kind()), h) {
        (Kind::Int, _) => {
            let values = zip((&a.to_ints(), &a.shape), (&b.to_ints(), &b.shape), &shape, f)?;
            Ok(vec![Tensor::of(shape, values)])
        }
        (Kind::Float, _) => float(call, a, b, g),
        (Kind::Complex, Some(h)) => {
            let values = zip((&a.to_complex(), &a.shape), (&b.to_complex(), &b.shape), &shape, h)?;
            Ok(vec![Tensor::of(shape, values)])
        }
        (Kind::Complex, None) => Err(KernelError::Kind { what: "this operation", kind: Kind::Complex }),
    }
}

/// Applies g to both as floats.
fn float(call: &Call<'_>, a: &Tensor<'_>, b: &Tensor<'_>, g: impl Fn(f64, f64) -> f64) -> Results {
    let kind = a.kind().max(b.kind());
    if kind == Kind::Complex {
        return Err(KernelError::Kind { what: "this operation", kind });
    }
    let shape = call.broadcast(&a.shape, &b.shape)?;
    let values = zip((&a.to_floats(), &a.shape), (&b.to_floats(), &b.shape), &shape, g)?;
    Ok(vec![Tensor::of(shape, values)])
}

/// α · b in the kind of b, or as a float if α is one.
fn scaled<'a>(call: &Call<'_>, b: Tensor<'a>, position: usize) -> Result<Tensor<'a>, KernelError> {
    if call.get(position, "alpha").is_none() {
        return Ok(b);
    }
    let alpha = call.operand(position, "alpha")?;
    let product = product(call, &b, &alpha)?;
    product.into_iter().next().ok_or(KernelError::Absent("alpha"))
}

fn product(call: &Call<'_>, a: &Tensor<'_>, b: &Tensor<'_>) -> Results {
    let complex = |x: [f64; 2], y: [f64; 2]| [x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]];
    arithmetic(call, a, b, i64::wrapping_mul, |x, y| x * y, Some(complex))
}

fn sum(call: &Call<'_>, a: &Tensor<'_>, b: &Tensor<'_>) -> Results {
    arithmetic(call, a, b, i64::wrapping_add, |x, y| x + y, Some(|x, y| [x[0] + y[0], x[1] + y[1]]))
}

fn difference(call: &Call<'_>, a: &Tensor<'_>, b: &Tensor<'_>) -> Results {
    arithmetic(call, a, b, i64::wrapping_sub, |x, y| x - y, Some(|x, y| [x[0] - y[0], x[1] - y[1]]))
}

/// a + α · b.
pub(super) fn add(call: &Call<'_>) -> Results {
    sum(call, &call.operand(0, "self")?, &scaled(call, call.operand(1, "other")?, 2)?)
}

/// a - α · b.
pub(super) fn sub(call: &Call<'_>) -> Results {
    difference(call, &call.operand(0, "self")?, &scaled(call, call.operand(1, "other")?, 2)?)
}

/// b - α · a.
pub(super) fn rsub(call: &Call<'_>) -> Results {
    difference(call, &call.operand(1, "other")?, &scaled(call, call.operand(0, "self")?, 2)?)
}

/// a · b.
pub(super) fn mul(call: &Call<'_>) -> Results {
    product(call, &call.operand(0, "self")?, &call.operand(1, "other")?)
}

/// a / b as floats; with `rounding_mode` rounded down or towards zero, exactly for integers.
pub(super) fn div(call: &Call<'_>) -> Results {
    let (a, b) = (call.operand(0, "self")?, call.operand(1, "other")?);
    match call.text(2, "rounding_mode") {
        Some("floor") => floored(call, &a, &b),
        Some("trunc") => {
            divisor(&a, &b)?;
            arithmetic(call, &a, &b, i64::wrapping_div, |x, y| (x / y).trunc(), None)
        }
        Some(other) => Err(KernelError::Value { name: "rounding_mode", value: other.into() }),
        None if a.kind().max(b.kind()) == Kind::Complex => {
            let quotient = |x: [f64; 2], y: [f64; 2]| {
                let norm = y[0] * y[0] + y[1] * y[1];
                [(x[0] * y[0] + x[1] * y[1]) / norm, (x[1] * y[0] - x[0] * y[1]) / norm]
            };
            arithmetic(call, &a, &b, |x, _| x, |x, _| x, Some(quotient))
        }
        None => float(call, &a, &b, |x, y| x / y),
    }
}

/// Refuses integer division by 0.
fn divisor(a: &Tensor<'_>, b: &Tensor<'_>) -> Result<(), KernelError> {
    let is_int = a.kind().max(b.kind()) == Kind::Int;
    match is_int && b.to_ints().contains(&0) {
        true => Err(KernelError::Value { name: "other", value: "0".into() }),
        false => Ok(()),
    }
}

fn floored(call: &Call<'_>, a: &Tensor<'_>, b: &Tensor<'_>) -> Results {
    divisor(a, b)?;
    let ints = |x: i64, y: i64| {
        let quotient = x.wrapping_div(y);
        if x.wrapping_rem(y) != 0 && (x < 0) != (y < 0) { quotient - 1 } else { quotient }
    };
    // From the remainder, as Python does: a quotient just below an integer may have been rounded up to it.
    let floats = |x: f64, y: f64| {
        if y == 0.0 {
            return x / y;
        }
        let rest = x % y;
        let quotient = (x - rest) / y - if rest != 0.0 && (y < 0.0) != (rest < 0.0) { 1.0 } else { 0.0 };
        quotient.round()
    };
    arithmetic(call, a, b, ints, floats, None)
}

/// ⌊a / b⌋.
pub(super) fn floor_divide(call: &Call<'_>) -> Results {
    floored(call, &call.operand(0, "self")?, &call.operand(1, "other")?)
}

/// a - b · ⌊a / b⌋: it has the sign of b.
pub(super) fn remainder(call: &Call<'_>) -> Results {
    let (a, b) = (call.operand(0, "self")?, call.operand(1, "other")?);
    divisor(&a, &b)?;
    let ints = |x: i64, y: i64| {
        let rest = x.wrapping_rem(y);
        if rest != 0 && (rest < 0) != (y < 0) { rest + y } else { rest }
    };
    let floats = |x: f64, y: f64| {
        let rest = x % y;
        if rest != 0.0 && (rest < 0.0) != (y < 0.0) { rest + y } else { rest }
    };
    arithmetic(call, &a, &b, ints, floats, None)
}

/// a - b · trunc(a / b): it has the sign of a.
pub(super) fn fmod(call: &Call<'_>) -> Results {
    let (a, b) = (call.operand(0, "self")?, call.operand(1, "other")?);
    divisor(&a, &b)?;
    arithmetic(call, &a, &b, i64::wrapping_rem, |x, y| x % y, None)
}

/// a^b; squares and cubes as products.
pub(super) fn pow(call: &Call<'_>) -> Results {
    let (a, b) = (call.operand(0, "self")?, call.operand(1, "exponent")?);
    // A negative power of an integer is 0, except for 1 and -1.
    let ints = |x: i64, y: i64| match (u32::try_from(y), x) {
        (Ok(y), _) => x.wrapping_pow(y),
        (Err(_), 1) => 1,
        (Err(_), -1) => {
            if y % 2 == 0 {
                1
            } else {
                -1
            }
        }
        (Err(_), _) => 0,
    };
    let floats = |x: f64, y: f64| match y {
        2.0 => x * x,
        3.0 => x * x * x,
        0.5 => x.sqrt(),
        _ => x.powf(y),
    };
    arithmetic(call, &a, &b, ints, floats, None)
}

/// The angle of the point (b, a).
pub(super) fn atan2(call: &Call<'_>) -> Results {
    float(call, &call.operand(0, "self")?, &call.operand(1, "other")?, f64::atan2)
}

/// The larger; NaN if either is NaN.
pub(super) fn larger(x: f64, y: f64) -> f64 {
    if x.is_nan() || x > y { x } else { y }
}

/// The smaller; NaN if either is NaN.
pub(super) fn smaller(x: f64, y: f64) -> f64 {
    if x.is_nan() || x < y { x } else { y }
}

/// max(a, b).
pub(super) fn maximum(call: &Call<'_>) -> Results {
    arithmetic(call, &call.operand(0, "self")?, &call.operand(1, "other")?, i64::max, larger, None)
}

/// min(a, b).
pub(super) fn minimum(call: &Call<'_>) -> Results {
    arithmetic(call, &call.operand(0, "self")?, &call.operand(1, "other")?, i64::min, smaller, None)
}

fn limited(call: &Call<'_>, low: Option<usize>, high: Option<usize>) -> Results {
    let mut out = vec![call.operand(0, "self")?.into_owned()];
    if let Some(at) = low.filter(|&at| call.get(at, "min").is_some()) {
        out = arithmetic(call, &out[0], &call.operand(at, "min")?, i64::max, larger, None)?;
    }
    if let Some(at) = high.filter(|&at| call.get(at, "max").is_some()) {
        out = arithmetic(call, &out[0], &call.operand(at, "max")?, i64::min, smaller, None)?;
    }
    Ok(out)
}

/// min(max(a, low), high), where either may be absent.
pub(super) fn clamp(call: &Call<'_>) -> Results {
    limited(call, Some(1), Some(2))
}

/// max(a, low).
pub(super) fn clamp_min(call: &Call<'_>) -> Results {
    limited(call, Some(1), None)
}

/// min(a, high).
pub(super) fn clamp_max(call: &Call<'_>) -> Results {
    limited(call, None, Some(1))
}

/// a + w · (b - a).
pub(super) fn lerp(call: &Call<'_>) -> Results {
    let (a, b) = (call.operand(0, "self")?, call.operand(1, "end")?);
    let step = product(call, &difference(call, &b, &a)?[0], &call.operand(2, "weight")?)?;
    sum(call, &a, &step[0])
}

/// a + v · b · c.
pub(super) fn addcmul(call: &Call<'_>) -> Results {
    let mut term = product(call, &call.operand(1, "tensor1")?, &call.operand(2, "tensor2")?)?;
    if call.keyword("value").is_some() {
        term = product(call, &term[0], &call.operand(usize::MAX, "value")?)?;
    }
    sum(call, &call.operand(0, "self")?, &term[0])
}

/// a + v · b / c.
pub(super) fn addcdiv(call: &Call<'_>) -> Results {
    let mut term = float(call, &call.operand(1, "tensor1")?, &call.operand(2, "tensor2")?, |x, y| x / y)?;
    if call.keyword("value").is_some() {
        term = product(call, &term[0], &call.operand(usize::MAX, "value")?)?;
    }
    sum(call, &call.operand(0, "self")?, &term[0])
}

/// ln(e^a + e^b).
pub(super) fn logaddexp(call: &Call<'_>) -> Results {
    float(call, &call.operand(0, "self")?, &call.operand(1, "other")?, |x, y| {
        if x == y && x.is_infinite() { x } else { y + special::softplus(x - y) }
    })
}

/// r · e^(i·θ).
pub(super) fn polar(call: &Call<'_>) -> Results {
    let (r, angle) = (call.operand(0, "abs")?, call.operand(1, "angle")?);
    let shape = call.broadcast(&r.shape, &angle.shape)?;
    let (r, angle) = (
        expanded(&r.to_floats(), &r.shape, &shape)?.into_owned(),
        expanded(&angle.to_floats(), &angle.shape, &shape)?.into_owned(),
    );
    let values: Vec<_> = r.iter().zip(&angle).map(|(r, t)| [r * t.cos(), r * t.sin()]).collect();
    Ok(vec![Tensor::of(shape, values)])
}

/// y\[i,j\] = aᵢ · bⱼ.
pub(super) fn outer(call: &Call<'_>) -> Results {
    let (a, b) = (call.tensor(0, "self")?, call.tensor(1, "vec2")?);
    let column = Tensor { shape: vec![a.len(), 1], ..a.clone() };
    product(call, &column, b)
}

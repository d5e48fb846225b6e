//! Writes elements by index along one axis.

use super::call::{Call, Results, axis, ensure, index as position};
use super::indexing::{along, indices};
use crate::value::dtype::Kind;
use crate::value::error::KernelError;
use crate::value::tensor::{Tensor, Values};
use crate::value::view::contiguous_strides;

/// How an old and a new value are combined.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Put,
    Add,
    Multiply,
    Most,
    Least,
}

/// Puts, adds or multiplies `new` at `places`, in order; a single new value is used for all.
fn written(x: &Tensor<'_>, places: &[usize], new: &Tensor<'_>, how: How) -> Results {
    if new.len() != 1 && new.len() < places.len() {
        return Err(KernelError::Shape {
            what: "the source and its places",
            left: new.shape.clone(),
            right: vec![places.len()],
        });
    }
    fn write_at<T: Copy>(x: &[T], places: &[usize], new: &[T], f: impl Fn(T, T) -> T) -> Vec<T> {
        let mut out = x.to_vec();
        places.iter().zip(new.iter().cycle()).for_each(|(&at, &new)| out[at] = f(out[at], new));
        out
    }
    let values: Values<'static> = match (x.kind(), how) {
        (Kind::Int, How::Put) => write_at(&x.to_ints(), places, &new.to_ints(), |_, b| b).into(),
        (Kind::Int, How::Add) => write_at(&x.to_ints(), places, &new.to_ints(), i64::wrapping_add).into(),
        (Kind::Int, How::Multiply) => write_at(&x.to_ints(), places, &new.to_ints(), i64::wrapping_mul).into(),
        (Kind::Float, How::Put) => write_at(&x.to_floats(), places, &new.to_floats(), |_, b| b).into(),
        (Kind::Float, How::Add) => write_at(&x.to_floats(), places, &new.to_floats(), |a, b| a + b).into(),
        (Kind::Float, How::Multiply) => write_at(&x.to_floats(), places, &new.to_floats(), |a, b| a * b).into(),
        (Kind::Int, How::Most) => write_at(&x.to_ints(), places, &new.to_ints(), i64::max).into(),
        (Kind::Int, How::Least) => write_at(&x.to_ints(), places, &new.to_ints(), i64::min).into(),
        // NaN is kept.
        (Kind::Float, How::Most) => {
            write_at(&x.to_floats(), places, &new.to_floats(), |a, b| if a >= b || a.is_nan() { a } else { b }).into()
        }
        (Kind::Float, How::Least) => {
            write_at(&x.to_floats(), places, &new.to_floats(), |a, b| if a <= b || a.is_nan() { a } else { b }).into()
        }
        (Kind::Complex, How::Put) => write_at(&x.to_complex(), places, &new.to_complex(), |_, b| b).into(),
        (Kind::Complex, How::Add) => {
            write_at(&x.to_complex(), places, &new.to_complex(), |a, b| [a[0] + b[0], a[1] + b[1]]).into()
        }
        (Kind::Complex, How::Multiply | How::Most | How::Least) => {
            return Err(KernelError::Kind { what: "this scatter", kind: Kind::Complex });
        }
    };
    Ok(vec![Tensor::of(x.shape.clone(), values)])
}

/// The axis operand at position 1.
fn dim(call: &Call<'_>, x: &Tensor<'_>) -> Result<usize, KernelError> {
    axis(call.int(1, "dim")?.ok_or(KernelError::Absent("dim"))?, x.shape.len())
}

/// The indices of whole slices along an axis, in the order of a source with that many slices.
fn slices(call: &Call<'_>, x: &Tensor<'_>) -> Result<(Vec<usize>, Vec<usize>), KernelError> {
    let at = dim(call, x)?;
    let ids = indices(call.tensor(2, "index")?)?;
    let extents = if x.shape.is_empty() { vec![1] } else { x.shape.clone() };
    let mut shape = extents.clone();
    shape[at] = ids.len();
    let rows = ids.iter().map(|&i| position(i, extents[at])).collect::<Result<Vec<_>, _>>()?;
    let (stride, inner) = (contiguous_strides(&extents)[at], extents[at + 1..].iter().product::<usize>());
    let outer: usize = extents[..at].iter().product();
    let mut places = Vec::new();
    for block in 0..outer {
        for row in &rows {
            places.extend((0..inner).map(|i| block * extents[at] * inner + row * stride + i));
        }
    }
    Ok((places, shape))
}

/// The source, which must have the shape of the slices.
fn source<'a>(call: &'a Call<'_>, x: &Tensor<'_>, shape: &[usize]) -> Result<Tensor<'a>, KernelError> {
    let source = call.tensor(3, "source")?.view();
    ensure(
        x.shape.is_empty() || source.shape == shape || source.shape.is_empty() && shape == [1],
        "the source",
        &source.shape,
        shape,
    )?;
    Ok(source)
}

/// Adds α times the source's slices at the indices of an axis, in order.
pub(super) fn index_add(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let (places, shape) = slices(call, x)?;
    let mut new = source(call, x, &shape)?;
    if let Some(alpha) = call.float(usize::MAX, "alpha")?.filter(|&alpha| alpha != 1.0) {
        let values: Values<'_> = match new.kind() {
            Kind::Int => new.to_ints().iter().map(|&x| x.wrapping_mul(alpha as i64)).collect::<Vec<_>>().into(),
            Kind::Float => new.to_floats().iter().map(|x| x * alpha).collect::<Vec<_>>().into(),
            Kind::Complex => new.to_complex().iter().map(|x| [x[0] * alpha, x[1] * alpha]).collect::<Vec<_>>().into(),
        };
        new.values = values;
    }
    written(x, &places, &new, How::Add)
}

/// Writes the source's slices at the indices of an axis.
pub(super) fn index_copy(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let (places, shape) = slices(call, x)?;
    written(x, &places, &source(call, x, &shape)?, How::Put)
}

/// Fills the slices at the indices of an axis with one value.
pub(super) fn index_fill(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let value = call.operand(3, "value")?;
    ensure(value.len() == 1, "one value", &value.shape, &[])?;
    written(x, &slices(call, x)?.0, &value, How::Put)
}

/// y\[index\[i,j\],j\] = src\[i,j\] for the first axis, and likewise for others; `src` may be one number.
pub(super) fn scatter(call: &Call<'_>) -> Results {
    let how = match call.text(4, "reduce") {
        None => How::Put,
        Some("add") => How::Add,
        Some("multiply") => How::Multiply,
        Some(other) => return Err(KernelError::Value { name: "reduce", value: other.into() }),
    };
    scattered(call, how)
}

/// The same, with the source added.
pub(super) fn scatter_add(call: &Call<'_>) -> Results {
    scattered(call, How::Add)
}

/// The same, with all values that fall on an element combined by `reduce`; without `include_self` the old value counts only where nothing falls.
pub(super) fn scatter_reduce(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let index = call.tensor(2, "index")?;
    let (how, neutral) = match call.text(4, "reduce") {
        Some("sum" | "mean") => (How::Add, 0.0),
        Some("prod") => (How::Multiply, 1.0),
        Some("amax") => (How::Most, f64::NEG_INFINITY),
        Some("amin") => (How::Least, f64::INFINITY),
        other => return Err(KernelError::Value { name: "reduce", value: other.unwrap_or("nothing").into() }),
    };
    let include = call.flag(5, "include_self", true)?;
    let means = call.text(4, "reduce") == Some("mean");
    if x.kind() != Kind::Float && (means || !include) {
        return Err(KernelError::Kind { what: "this scatter_reduce", kind: x.kind() });
    }
    let places = along(&x.shape, dim(call, x)?, index)?;
    let mut begin = x.view();
    if !include {
        let mut values = x.to_floats().into_owned();
        places.iter().for_each(|&at| values[at] = neutral);
        begin.values = values.into();
    }
    let mut made = scattered_into(call, &begin, how)?;
    if let (true, [sum]) = (means, made.as_mut_slice()) {
        let mut counts = vec![f64::from(u8::from(include)); x.len()];
        places.iter().for_each(|&at| counts[at] += 1.0);
        let mean = |(sum, count): (&f64, &f64)| if *count > 1.0 { sum / count } else { *sum };
        sum.values = sum.to_floats().iter().zip(&counts).map(mean).collect::<Vec<_>>().into();
    }
    Ok(made)
}

/// Fills the diagonal with one value; with `wrap` it restarts in a matrix with more rows than columns.
pub(super) fn fill_diagonal(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let value = call.operand(1, "fill_value")?;
    ensure(value.len() == 1, "one value", &value.shape, &[])?;
    let least = x.shape.iter().copied().min().unwrap_or(0);
    let step: usize = contiguous_strides(&x.shape).iter().sum();
    let wraps = call.flag(2, "wrap", false)? && x.shape.len() == 2;
    let places: Vec<usize> = match (wraps, x.shape.as_slice()) {
        (true, &[rows, columns]) if rows > columns => (0..x.len()).step_by(step.max(1)).collect(),
        _ => (0..least).map(|i| i * step).collect(),
    };
    written(x, &places, &value, How::Put)
}

fn scattered(call: &Call<'_>, how: How) -> Results {
    scattered_into(call, call.tensor(0, "self")?, how)
}

fn scattered_into(call: &Call<'_>, x: &Tensor<'_>, how: How) -> Results {
    let index = call.tensor(2, "index")?;
    let places = along(&x.shape, dim(call, x)?, index)?;
    let new = call.operand(3, "src")?;
    if new.shape.len() != index.shape.len() || new.len() == 1 {
        return written(x, &places, &new, how);
    }
    // The source may be larger: its first elements along each axis are used.
    let fits = new.shape.iter().zip(&index.shape).all(|(source, index)| index <= source);
    ensure(fits || index.is_empty(), "the source and the index", &new.shape, &index.shape)?;
    let at = crate::value::view::offsets(&index.shape, &contiguous_strides(&new.shape));
    let values = crate::value::tensor::each_kind!(&new.values, x => at.iter().map(|&at| x[at]).collect::<Vec<_>>());
    written(x, &places, &Tensor::of(index.shape.clone(), values), how)
}

//! Creates tensors from numbers. The output's view gives the number of elements; nothing larger is created.

use super::call::{Call, Results, size as count_of};
use crate::value::dtype::Kind;
use crate::value::error::KernelError;
use crate::value::tensor::{Tensor, Values};

/// A constant in the output's shape.
fn filled(call: &Call<'_>, value: &Tensor<'_>) -> Results {
    // The single value is broadcast when it is stored.
    let _ = call.output_shape(0)?;
    if value.len() != 1 {
        return Err(KernelError::Shape { what: "one value", left: value.shape.clone(), right: vec![] });
    }
    Ok(vec![Tensor { shape: Vec::new(), ..value.clone() }.into_owned()])
}

/// Zeros; also for memory that PyTorch leaves uninitialised.
pub(super) fn zeros(call: &Call<'_>) -> Results {
    filled(call, &Tensor::of(Vec::new(), vec![0i64]))
}

/// Ones.
pub(super) fn ones(call: &Call<'_>) -> Results {
    filled(call, &Tensor::of(Vec::new(), vec![1i64]))
}

/// A constant: the second operand, after a shape or a tensor.
pub(super) fn full(call: &Call<'_>) -> Results {
    filled(call, &call.operand(1, "fill_value")?)
}

/// A constant: the third operand, after a tensor and a shape.
pub(super) fn full_new(call: &Call<'_>) -> Results {
    filled(call, &call.operand(2, "fill_value")?)
}

/// A number as a tensor without axes.
pub(super) fn scalar_tensor(call: &Call<'_>) -> Results {
    filled(call, &call.operand(0, "s")?)
}

/// start + i · step, up to but not including end.
pub(super) fn arange(call: &Call<'_>) -> Results {
    let is_int = call.output_kind() == Kind::Int;
    let (start, end) = if call.args.len() == 1 { (None, 0) } else { (Some(0), 1) };
    let shape = call.output_shape(0)?;
    let count: usize = shape.iter().product();
    let fits = |found: f64| match found == count as f64 {
        true => Ok(()),
        false => Err(KernelError::Shape {
            what: "arange and its output",
            left: vec![found.max(0.0) as usize],
            right: shape.to_vec(),
        }),
    };
    if call.get(2, "step").is_some() && call.float(2, "step")? == Some(0.0) {
        return Err(KernelError::Value { name: "step", value: "0".into() });
    }
    let number = |at: Option<usize>, otherwise: f64| -> Result<f64, KernelError> {
        Ok(at.map(|at| call.float(at, "start")).transpose()?.flatten().unwrap_or(otherwise))
    };
    let step = call.float(2, "step")?.unwrap_or(1.0);
    let (first, last) = (number(start, 0.0)?, number(Some(end), 0.0)?);
    fits(((last - first) / step).ceil().max(0.0))?;
    if is_int {
        let int = |at: Option<usize>| -> Result<Option<i64>, KernelError> {
            Ok(at.map(|at| call.float(at, "start")).transpose()?.flatten().map(|x| x as i64))
        };
        let step = call.int(2, "step").ok().flatten().unwrap_or(step as i64);
        let first = start.and_then(|at| call.int(at, "start").ok().flatten()).or(int(start)?).unwrap_or(0);
        let values: Vec<i64> = (0..count as i64).map(|i| first.wrapping_add(i.wrapping_mul(step))).collect();
        return Ok(vec![Tensor::of(shape.to_vec(), values)]);
    }
    let values: Vec<f64> = (0..count).map(|i| first + i as f64 * step).collect();
    Ok(vec![Tensor::of(shape.to_vec(), values)])
}

/// Equally spaced numbers from start to end, each computed from the nearer end; a single one is the start.
pub(super) fn linspace(call: &Call<'_>) -> Results {
    let end = |at: usize, name| call.float(at, name)?.ok_or(KernelError::Absent(name));
    let (first, last, shape) = (end(0, "start")?, end(1, "end")?, call.output_shape(0)?.to_vec());
    let count = shape.iter().product::<usize>();
    let step = |steps: usize| (last - first) * (steps as f64 / count.saturating_sub(1).max(1) as f64);
    let value = |i: usize| if 2 * i < count { first + step(i) } else { last - step(count - 1 - i) };
    let values = (0..count).map(value);
    Ok(vec![match call.output_kind() {
        Kind::Int => Tensor::of(shape, values.map(|x| x as i64).collect::<Vec<_>>()),
        _ => Tensor::of(shape, values.collect::<Vec<f64>>()),
    }])
}

/// 1 on the diagonal.
pub(super) fn eye(call: &Call<'_>) -> Results {
    let n = count_of("n", call.int(0, "n")?.ok_or(KernelError::Absent("n"))?)?;
    let m = count_of("m", call.int(1, "m")?.unwrap_or(n as i64))?;
    let shape = call.claim("eye and its output", vec![n, m])?;
    let values: Vec<i64> = (0..n * m).map(|at| i64::from(at / m == at % m)).collect();
    Ok(vec![Tensor::of(shape, values)])
}

/// y\[..,c\] = 1 where x is c, else 0. With `num_classes` -1, one more than the largest.
pub(super) fn one_hot(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let ints = match &x.values {
        Values::Int(ints) => ints,
        _ => return Err(KernelError::Kind { what: "one_hot", kind: x.kind() }),
    };
    let most = ints.iter().copied().max().unwrap_or(-1).saturating_add(1);
    let classes = call.int(1, "num_classes")?.filter(|&n| n != -1).unwrap_or(most);
    let classes = count_of("num_classes", classes)?;
    let mut shape = x.shape.clone();
    shape.push(classes);
    let shape = call.claim("one_hot and its output", shape)?;
    let mut out = vec![0i64; ints.len() * classes];
    for (row, &class) in ints.iter().enumerate() {
        let inside = usize::try_from(class).ok().filter(|&class| class < classes);
        out[row * classes + inside.ok_or(KernelError::Index { index: class, extent: classes })?] = 1;
    }
    Ok(vec![Tensor::of(shape, out)])
}

/// The extents of a tensor, or of one axis.
pub(super) fn size(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let extents: Vec<i64> = x.shape.iter().map(|&extent| extent as i64).collect();
    let extents = match call.int(1, "dim")? {
        Some(at) => {
            let at = super::call::axis(at, x.shape.len())?;
            vec![extents.get(at).copied().ok_or(KernelError::Axis { axis: at as i64, rank: x.shape.len() })?]
        }
        None => extents,
    };
    Ok(vec![Tensor::of(vec![extents.len()], extents)])
}

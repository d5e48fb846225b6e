//! Copies, joins, pads, repeats and rearranges values.

use super::call::{Arg, Call, Results, axis, ensure, expanded, size};
use crate::value::dtype::Kind;
use crate::value::error::KernelError;
use crate::value::tensor::{Tensor, Values, each_kind};
use crate::value::view::contiguous_strides;

/// The tensor itself; it is rounded to the output's type when it is stored.
pub(super) fn unchanged(call: &Call<'_>) -> Results {
    Ok(vec![call.tensor(0, "self")?.clone().into_owned()])
}

/// The tensor itself, because evaluation drops nothing. Training mode is refused.
pub(super) fn dropout(call: &Call<'_>) -> Results {
    match call.flag(2, "train", true)? {
        true => Err(KernelError::Value { name: "train", value: "true".into() }),
        false => unchanged(call),
    }
}

/// The second tensor, broadcast to the first.
pub(super) fn copy(call: &Call<'_>) -> Results {
    let (to, from) = (call.tensor(0, "self")?, call.operand(1, "src")?);
    let values = each_kind!(&from.values, x => expanded(x, &from.shape, &to.shape)?.into_owned());
    Ok(vec![Tensor::of(to.shape.clone(), values)])
}

/// The same values in row-major order, in the output's shape.
pub(super) fn reshape(call: &Call<'_>) -> Results {
    let (x, shape) = (call.tensor(0, "self")?, call.output_shape(0)?);
    ensure(x.len() == shape.iter().product::<usize>(), "a tensor and its new shape", &x.shape, shape)?;
    Ok(vec![Tensor { shape: shape.to_vec(), ..x.clone() }.into_owned()])
}

/// The tensor itself; it is broadcast when it is stored.
pub(super) fn expand(call: &Call<'_>) -> Results {
    unchanged(call)
}

/// Whether the single value is not 0.
pub(super) fn is_nonzero(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    Ok(vec![Tensor::of(x.shape.clone(), x.to_bools().into_iter().map(i64::from).collect::<Vec<_>>())])
}

/// Concatenates tensors along an axis.
pub(super) fn join(parts: &[Tensor<'_>], at: usize) -> Result<Tensor<'static>, KernelError> {
    let Some(first) = parts.first() else { return Err(KernelError::Absent("tensors")) };
    let mut shape = first.shape.clone();
    for part in &parts[1..] {
        let fits = part.shape.len() == shape.len() && (0..shape.len()).all(|i| i == at || part.shape[i] == shape[i]);
        ensure(fits && at < shape.len(), "tensors to be joined", &part.shape, &shape)?;
        shape[at] += part.shape[at];
    }
    if at >= shape.len() {
        return Err(KernelError::Axis { axis: at as i64, rank: shape.len() });
    }
    let outer: usize = shape[..at].iter().product();
    fn joined<T: Copy>(parts: &[(&[T], usize)], outer: usize) -> Vec<T> {
        let mut out = Vec::with_capacity(parts.iter().map(|(x, _)| x.len()).sum());
        for block in 0..outer {
            for (x, width) in parts {
                out.extend_from_slice(&x[block * width..(block + 1) * width]);
            }
        }
        out
    }
    let widths = parts.iter().map(|part| part.shape[at..].iter().product::<usize>());
    let kind = parts.iter().map(Tensor::kind).max().unwrap_or(Kind::Float);
    let values: Values<'static> = match kind {
        Kind::Int => {
            let values: Vec<_> = parts.iter().map(|part| part.to_ints()).collect();
            joined(&values.iter().map(AsRef::as_ref).zip(widths).collect::<Vec<_>>(), outer).into()
        }
        Kind::Float => {
            let values: Vec<_> = parts.iter().map(|part| part.to_floats()).collect();
            joined(&values.iter().map(AsRef::as_ref).zip(widths).collect::<Vec<_>>(), outer).into()
        }
        Kind::Complex => {
            let values: Vec<_> = parts.iter().map(|part| part.to_complex()).collect();
            joined(&values.iter().map(AsRef::as_ref).zip(widths).collect::<Vec<_>>(), outer).into()
        }
    };
    Ok(Tensor::of(shape, values))
}

/// Concatenates tensors along an axis; empty vectors are skipped.
pub(super) fn cat(call: &Call<'_>) -> Results {
    let mut parts = call.tensors(0, "tensors")?;
    if parts.iter().any(|part| part.shape != [0]) {
        parts.retain(|part| part.shape != [0]);
    }
    let rank = parts.first().map_or(0, |part| part.shape.len());
    Ok(vec![join(&parts, axis(call.int(1, "dim")?.unwrap_or(0), rank)?)?])
}

/// Stacks tensors of equal shape along a new axis.
pub(super) fn stack(call: &Call<'_>) -> Results {
    let mut parts = call.tensors(0, "tensors")?;
    let shape = parts.first().map(|part| part.shape.clone()).ok_or(KernelError::Absent("tensors"))?;
    let at = axis(call.int(1, "dim")?.unwrap_or(0), shape.len() + 1)?;
    for part in &mut parts {
        ensure(part.shape == shape, "tensors to be stacked", &part.shape, &shape)?;
        part.shape.insert(at, 1);
    }
    Ok(vec![join(&parts, at)?])
}

/// For each axis, the source index of each element; `None` is filled with `filling`.
fn remap<T: Copy>(x: &[T], shape: &[usize], maps: &[Vec<Option<usize>>], filling: T) -> Vec<T> {
    let strides = contiguous_strides(shape);
    // None where any axis is filled.
    let mut places: Vec<Option<usize>> = vec![Some(0)];
    for (map, stride) in maps.iter().zip(&strides) {
        let next = |place: Option<usize>| map.iter().map(move |i| Some(place? + (*i)? * stride));
        places = places.into_iter().flat_map(next).collect();
    }
    places.into_iter().map(|place| place.map_or(filling, |at| x[at])).collect()
}

fn remapped(x: &Tensor<'_>, maps: &[Vec<Option<usize>>], filling: &Tensor<'_>) -> Tensor<'static> {
    let shape = maps.iter().map(Vec::len).collect();
    let values: Values<'static> = match &x.values {
        Values::Int(v) => remap(v, &x.shape, maps, filling.to_ints().first().copied().unwrap_or(0)).into(),
        Values::Float(v) => remap(v, &x.shape, maps, filling.to_floats().first().copied().unwrap_or(0.0)).into(),
        Values::Complex(v) => {
            remap(v, &x.shape, maps, filling.to_complex().first().copied().unwrap_or_default()).into()
        }
    };
    Tensor::of(shape, values)
}

/// Maps that keep every axis.
fn identity(shape: &[usize]) -> Vec<Vec<Option<usize>>> {
    shape.iter().map(|&extent| (0..extent).map(Some).collect()).collect()
}

fn zero() -> Tensor<'static> {
    Tensor::of(Vec::new(), vec![0i64])
}

/// Selects the slices of an axis at `sources`, which must exist.
pub(super) fn pick_axis(x: &Tensor<'_>, at: usize, sources: &[usize]) -> Tensor<'static> {
    let (outer, inner) = (x.shape[..at].iter().product::<usize>(), x.shape[at + 1..].iter().product::<usize>());
    let block = x.shape[at] * inner;
    let starts = (0..outer).flat_map(|o| sources.iter().map(move |i| o * block + i * inner));
    let values =
        each_kind!(&x.values, v => starts.flat_map(|at| v[at..at + inner].iter().copied()).collect::<Vec<_>>());
    let mut shape = x.shape.clone();
    shape[at] = sources.len();
    Tensor::of(shape, values)
}

/// Pads the last axes, beginning with the last: \[before, after, before, ..\]; negative numbers crop.
pub(super) fn pad(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let list = call.ints(1, "pad")?.ok_or(KernelError::Absent("pad"))?;
    let fail = || KernelError::Value { name: "pad", value: format!("{list:?}") };
    if !list.len().is_multiple_of(2) || list.len() / 2 > x.shape.len() {
        return Err(fail());
    }
    let (mode, value) = match call.name {
        "constant_pad_nd" => ("constant", call.get(2, "value")),
        _ => (call.text(2, "mode").unwrap_or("constant"), call.get(3, "value")),
    };
    let extents = x.shape.iter().enumerate().map(|(at, &extent)| {
        let pair = 2 * (x.shape.len() - 1 - at);
        let (before, after) = (list.get(pair).copied().unwrap_or(0), list.get(pair + 1).copied().unwrap_or(0));
        let total = i64::try_from(extent).ok()?.checked_add(before)?.checked_add(after)?;
        Some((before, usize::try_from(total).ok()?))
    });
    let extents: Vec<(i64, usize)> = extents.collect::<Option<_>>().ok_or_else(fail)?;
    call.claim("pad and its output", extents.iter().map(|(_, extent)| *extent).collect())?;
    let source = |at: i64, extent: i64| -> Result<Option<usize>, KernelError> {
        let inside = (0..extent).contains(&at);
        let other = match mode {
            _ if inside => at,
            "constant" => return Ok(None),
            "replicate" => at.clamp(0, extent - 1),
            "reflect" => {
                if at < 0 {
                    -at
                } else {
                    2 * (extent - 1) - at
                }
            }
            "circular" => {
                if extent > 0 {
                    at.rem_euclid(extent)
                } else {
                    -1
                }
            }
            other => return Err(KernelError::Value { name: "mode", value: other.into() }),
        };
        if (0..extent).contains(&other) { Ok(Some(other as usize)) } else { Err(fail()) }
    };
    let mut maps = Vec::with_capacity(extents.len());
    for (&(before, total), &extent) in extents.iter().zip(&x.shape) {
        maps.push((0..total as i64).map(|i| source(i - before, extent as i64)).collect::<Result<Vec<_>, _>>()?);
    }
    let filling = value.and_then(Arg::as_tensor).map_or_else(zero, Tensor::into_owned);
    Ok(vec![remapped(x, &maps, &filling)])
}

/// Repeats the tensor along each axis; new axes come first.
pub(super) fn repeat(call: &Call<'_>) -> Results {
    let mut x = call.tensor(0, "self")?.view();
    let name = if call.name == "tile" { "dims" } else { "repeats" };
    let mut times = call.ints(1, name)?.ok_or(KernelError::Absent(name))?;
    if call.name == "tile" {
        (times.len()..x.shape.len()).for_each(|_| times.insert(0, 1));
    }
    ensure(times.len() >= x.shape.len(), "repeats", &[times.len()], &x.shape)?;
    (x.shape.len()..times.len()).for_each(|_| x.shape.insert(0, 1));
    let times = times.into_iter().map(|n| size(name, n)).collect::<Result<Vec<_>, _>>()?;
    call.claim("repeat and its output", x.shape.iter().zip(&times).map(|(a, b)| a.saturating_mul(*b)).collect())?;
    let maps: Vec<Vec<_>> =
        x.shape.iter().zip(&times).map(|(&extent, &n)| (0..extent * n).map(|i| Some(i % extent)).collect()).collect();
    Ok(vec![remapped(&x, &maps, &zero())])
}

/// Repeats each element of an axis; without an axis each of all elements. With only counts: repeats their indices.
pub(super) fn repeat_interleave(call: &Call<'_>) -> Results {
    let mut x = call.tensor(0, "self")?.view();
    let alone = call.overload == "Tensor";
    let counts = if alone {
        x.to_ints().into_owned()
    } else {
        call.ints(1, "repeats")?.ok_or(KernelError::Absent("repeats"))?
    };
    let dim = if alone { None } else { call.int(2, "dim")? };
    if alone {
        x = Tensor::of(x.shape.clone(), (0..counts.len() as i64).collect::<Vec<_>>());
    }
    if dim.is_none() {
        x.shape = vec![x.len()];
    }
    let at = axis(dim.unwrap_or(0), x.shape.len())?;
    let extent = x.shape[at..].first().copied().unwrap_or(1);
    let counts = if counts.len() == 1 { vec![counts[0]; extent] } else { counts };
    ensure(counts.len() == extent && at < x.shape.len(), "repeats", &[counts.len()], &x.shape)?;
    let counts = counts.into_iter().map(|n| size("repeats", n)).collect::<Result<Vec<_>, _>>()?;
    let mut shape = x.shape.clone();
    shape[at] = counts.iter().fold(0usize, |sum, n| sum.saturating_add(*n));
    call.claim("repeat_interleave and its output", shape)?;
    let sources: Vec<usize> = counts.iter().enumerate().flat_map(|(i, &n)| std::iter::repeat_n(i, n)).collect();
    Ok(vec![pick_axis(&x, at, &sources)])
}

/// Rotates the elements along axes; without axes along the flattened tensor.
pub(super) fn roll(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let shifts = call.ints(1, "shifts")?.ok_or(KernelError::Absent("shifts"))?;
    let dims = call.ints(2, "dims")?.unwrap_or_default();
    let mut flat = x.view();
    if dims.is_empty() {
        flat.shape = vec![x.len()];
    }
    let dims = if dims.is_empty() { vec![0] } else { dims };
    ensure(dims.len() == shifts.len(), "shifts and dims", &[shifts.len()], &[dims.len()])?;
    let mut maps = identity(&flat.shape);
    for (&shift, &dim) in shifts.iter().zip(&dims) {
        let at = axis(dim, flat.shape.len())?;
        let Some(map) = maps.get_mut(at).filter(|map| !map.is_empty()) else { continue };
        let by = shift.rem_euclid(map.len() as i64) as usize;
        map.rotate_right(by);
    }
    let rolled = remapped(&flat, &maps, &zero());
    Ok(vec![Tensor { shape: x.shape.clone(), ..rolled }])
}

/// Reverses the elements along axes.
pub(super) fn flip(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let mut maps = identity(&x.shape);
    for dim in call.ints(1, "dims")?.unwrap_or_default() {
        let at = axis(dim, x.shape.len())?;
        if let Some(map) = maps.get_mut(at) {
            map.reverse();
        }
    }
    Ok(vec![remapped(x, &maps, &zero())])
}

/// Sets the last two axes to zero where `keep` is false for column - row.
fn triangle(call: &Call<'_>, keep: impl Fn(i64, i64) -> bool) -> Results {
    let x = call.tensor(0, "self")?;
    let [.., rows, columns] = x.shape.as_slice() else {
        return Err(KernelError::Shape { what: "two axes", left: x.shape.clone(), right: vec![] });
    };
    let diagonal = call.int(1, "diagonal")?.unwrap_or(0);
    let inside = |at: usize| keep((at % columns) as i64 - (at / columns % rows) as i64, diagonal);
    let values: Values<'static> = match &x.values {
        Values::Int(v) => {
            v.iter().enumerate().map(|(at, &v)| if inside(at) { v } else { 0 }).collect::<Vec<_>>().into()
        }
        Values::Float(v) => {
            v.iter().enumerate().map(|(at, &v)| if inside(at) { v } else { 0.0 }).collect::<Vec<_>>().into()
        }
        Values::Complex(v) => {
            v.iter().enumerate().map(|(at, &v)| if inside(at) { v } else { [0.0; 2] }).collect::<Vec<_>>().into()
        }
    };
    Ok(vec![Tensor::of(x.shape.clone(), values)])
}

/// The lower triangle, with the diagonal.
pub(super) fn tril(call: &Call<'_>) -> Results {
    triangle(call, |off, diagonal| off <= diagonal)
}

/// The upper triangle, with the diagonal.
pub(super) fn triu(call: &Call<'_>) -> Results {
    triangle(call, |off, diagonal| off >= diagonal)
}

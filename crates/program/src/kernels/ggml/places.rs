//! Copies, selects, repeats and masks values, and creates constants.

use super::super::call::{Call, Results, size};
use super::product::check_index;
use super::{ensure, float, for_each, four, int, offset, or_zero, repeated, result_like};
use crate::value::error::KernelError;
use crate::value::tensor::{Tensor, each_kind};

/// The same values in row-major order, in the output's shape and type.
pub(super) fn copy(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "src0")?.clone().into_owned();
    let shape = call.output_shape(0)?;
    ensure(shape.iter().product::<usize>() == x.len(), "a copy", &x.shape, shape)?;
    Ok(vec![Tensor { shape: shape.to_vec(), ..x }])
}

/// y\[..,i,:\] = a\[..,ids\[..,i\],:\], where the axes before are the same in a and ids.
pub(super) fn get_rows(call: &Call<'_>) -> Results {
    let (a, ids) = (call.tensor(0, "src0")?, call.tensor(1, "src1")?);
    let (from, picked) = (four(&a.shape)?, four(&ids.shape)?);
    let ([a3, a2, rows, width], [one, b3, b2, count]) = (from, picked);
    ensure(one == 1 && [a3, a2] == [b3, b2], "rows and their numbers", &from, &picked)?;
    let ids = ids.to_ints();
    call.room("rows", &[b3, b2, count, width])?;
    let mut starts = Vec::with_capacity(ids.len());
    for (at, &id) in ids.iter().enumerate() {
        starts.push((at / count * rows + check_index(id, rows)?) * width);
    }
    let values = each_kind!(&a.values, x => starts.iter().flat_map(|&start| &x[start..start + width]).copied().collect::<Vec<_>>());
    Ok(vec![Tensor::of(vec![b3, b2, count, width], values)])
}

/// Replaces rows of the third operand, at the row numbers of the second, by those of the first. The row numbers are repeated along further axes.
pub(super) fn set_rows(call: &Call<'_>) -> Results {
    let (rows, ids, into) = (call.tensor(0, "src0")?, call.tensor(1, "src1")?, call.tensor(2, "src2")?);
    let (given, numbers, whole) = (four(&rows.shape)?, four(&ids.shape)?, four(&into.shape)?);
    let ([b3, b2, count, width], [one, c2, c1, listed], [a3, a2, extent, columns]) = (given, numbers, whole);
    ensure([a3, a2, columns] == [b3, b2, width], "rows and where they go", &given, &whole)?;
    ensure(one == 1 && listed == count && c1 * c2 > 0, "rows and their numbers", &given, &numbers)?;
    let (values, ids) = (rows.to_floats(), ids.to_ints());
    let mut out = into.to_floats().into_owned();
    for batch in 0..b3 {
        for head in 0..b2 {
            for row in 0..count {
                let id = ids[(batch % c2 * c1 + head % c1) * count + row];
                let to = offset(whole, [batch, head, check_index(id, extent)?, 0]);
                let from = offset(given, [batch, head, row, 0]);
                out[to..to + width].copy_from_slice(&values[from..from + width]);
            }
        }
    }
    Ok(result_like(into, out))
}

/// The first operand with the second stored over it, at an offset and with strides in elements.
pub(super) fn set(call: &Call<'_>) -> Results {
    let (into, part) = (call.tensor(0, "src0")?, call.tensor(1, "src1")?);
    let shape = four(&part.shape)?;
    let mut strides = [1; 4];
    for (stride, name) in strides.iter_mut().zip(["stride3", "stride2", "stride1"]) {
        *stride = size(name, or_zero(call, name)?)?;
    }
    let offset = size("offset", or_zero(call, "offset")?)?;
    let last = strides
        .iter()
        .zip(shape)
        .try_fold(offset, |at, (&stride, extent)| at.checked_add(extent.saturating_sub(1).checked_mul(stride)?));
    let fits = part.is_empty() || last.is_some_and(|last| last < into.len());
    ensure(fits, "a tensor and what is stored over it", &into.shape, &part.shape)?;
    let mut out = into.to_floats().into_owned();
    let mut values = part.to_floats().into_owned().into_iter();
    for_each(shape, |at| {
        let to = offset + strides.iter().zip(at).map(|(stride, i)| stride * i).sum::<usize>();
        if let Some(value) = values.next() {
            out[to] = value;
        }
    });
    Ok(result_like(into, out))
}

/// y\[t,u,:\] = a\[t,u,:\] + b\[ids\[t,u\],:\].
pub(super) fn add_id(call: &Call<'_>) -> Results {
    let (a, b, ids) = (call.tensor(0, "src0")?, call.tensor(1, "src1")?, call.tensor(2, "src2")?);
    let (shape, biases, numbers) = (four(&a.shape)?, four(&b.shape)?, four(&ids.shape)?);
    let ([one, tokens, used, width], [.., rows, columns]) = (shape, biases);
    ensure(one == 1 && columns == width && biases[0] * biases[1] == 1, "a bias by index", &shape, &biases)?;
    ensure(numbers == [1, 1, tokens, used], "rows and their numbers", &shape, &numbers)?;
    let (b, mut out) = (b.to_floats(), a.to_floats().into_owned());
    for (row, &id) in out.chunks_exact_mut(width.max(1)).zip(ids.to_ints().iter()) {
        let start = check_index(id, rows)? * width;
        row.iter_mut().zip(&b[start..start + width]).for_each(|(y, b)| *y += b);
    }
    Ok(result_like(a, out))
}

/// Repeats the operand along each axis until the output is full.
pub(super) fn repeat(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "src0")?;
    let (from, to) = (four(&x.shape)?, four(call.output_shape(0)?)?);
    let values = each_kind!(&x.values, x => repeated(x, from, to)?);
    Ok(vec![Tensor::of(to.to_vec(), values)])
}

/// A parameter for each axis, slowest first; ggml numbers axes from the fastest.
fn of_axes(call: &Call<'_>, names: [&'static str; 4]) -> Result<[i64; 4], KernelError> {
    let mut out = [0; 4];
    for (axis, name) in names.into_iter().enumerate() {
        out[3 - axis] = int(call, name)?;
    }
    Ok(out)
}

/// Pads each axis before and after with zeros, or, if `circular`, with values from the other end.
pub(super) fn pad(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "src0")?;
    let (from, to) = (four(&x.shape)?, four(call.output_shape(0)?)?);
    let before = of_axes(call, ["before0", "before1", "before2", "before3"])?;
    let after = of_axes(call, ["after0", "after1", "after2", "after3"])?;
    let extent = |axis: usize| (from[axis] as i64).saturating_add(before[axis]).saturating_add(after[axis]);
    let fits = (0..4).all(|axis| from[axis] > 0 && extent(axis) == to[axis] as i64);
    ensure(fits, "a padded tensor", &from, &to)?;
    let circular = or_zero(call, "circular")? != 0;
    let (x, mut out) = (x.to_floats(), Vec::with_capacity(to.iter().product()));
    for_each(to, |at| {
        let source: [i64; 4] = std::array::from_fn(|axis| (at[axis] as i64).wrapping_sub(before[axis]));
        let is_inside = (0..4).all(|axis| (0..from[axis] as i64).contains(&source[axis]));
        let wrapped = std::array::from_fn(|axis| source[axis].rem_euclid(from[axis] as i64) as usize);
        out.push(if is_inside || circular { x[offset(from, wrapped)] } else { 0.0 });
    });
    Ok(vec![Tensor::of(to.to_vec(), out)])
}

/// Rotates every axis by as many elements as its parameter gives.
pub(super) fn roll(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "src0")?;
    let (shape, shifts) = (four(&x.shape)?, of_axes(call, ["shift0", "shift1", "shift2", "shift3"])?);
    let (values, mut out) = (x.to_floats(), Vec::with_capacity(x.len()));
    for_each(shape, |at| {
        let turned = |axis: usize| (at[axis] as i64).wrapping_sub(shifts[axis]).rem_euclid(shape[axis] as i64) as usize;
        out.push(values[offset(shape, std::array::from_fn(turned))]);
    });
    Ok(result_like(x, out))
}

/// A triangle of each matrix, the rest zeros: `kind` 0 upper with diagonal, 1 upper without, 2 lower with, 3 lower without.
pub(super) fn tri(call: &Call<'_>) -> Results {
    let keep: fn(usize, usize) -> bool = match int(call, "kind")? {
        0 => |row, column| column >= row,
        1 => |row, column| column > row,
        2 => |row, column| column <= row,
        3 => |row, column| column < row,
        other => return Err(KernelError::Value { name: "kind", value: other.to_string() }),
    };
    masked(call, |row, column| if keep(row, column) { None } else { Some(0.0) })
}

/// Sets values above the diagonal, shifted right by `n_past`, to -∞.
pub(super) fn diag_mask_inf(call: &Call<'_>) -> Results {
    let past = int(call, "n_past")?;
    masked(call, |row, column| {
        let is_ahead = column as i64 > (row as i64).saturating_add(past);
        is_ahead.then_some(f64::NEG_INFINITY)
    })
}

/// Replaces values of matrices where f gives another one by row and column.
fn masked(call: &Call<'_>, f: impl Fn(usize, usize) -> Option<f64>) -> Results {
    let x = call.tensor(0, "src0")?;
    let [_, _, rows, columns] = four(&x.shape)?;
    let mut out = x.to_floats().into_owned();
    for (at, y) in out.iter_mut().enumerate() {
        *y = f(at / columns % rows, at % columns).unwrap_or(*y);
    }
    Ok(result_like(x, out))
}

/// Diagonal matrices with these rows as diagonals.
pub(super) fn diag(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "src0")?;
    let [outer, heads, one, width] = four(&x.shape)?;
    ensure(one == 1, "a diagonal", &x.shape, &[1, width])?;
    call.room("diagonals", &[outer, heads, width, width])?;
    let mut out = vec![0.0; outer * heads * width * width];
    for (at, &value) in x.to_floats().iter().enumerate() {
        out[at / width * width * width + at % width * (width + 1)] = value;
    }
    Ok(vec![Tensor::of(vec![outer, heads, width, width], out)])
}

/// `value` in every element.
pub(super) fn fill(call: &Call<'_>) -> Results {
    let shape = call.output_shape(0)?;
    Ok(vec![Tensor::of(shape.to_vec(), vec![float(call, "value")?; shape.iter().product()])])
}

/// start + step · i.
pub(super) fn arange(call: &Call<'_>) -> Results {
    let (shape, start, step) = (call.output_shape(0)?, float(call, "start")?, float(call, "step")?);
    let count: usize = shape.iter().product();
    Ok(vec![Tensor::of(shape.to_vec(), (0..count).map(|i| start + step * i as f64).collect::<Vec<_>>())])
}

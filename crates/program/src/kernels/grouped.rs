//! Computes grouped matrix products, with rows sorted by expert, and counts the rows of each expert.

use super::call::{Call, Results, ensure, size};
use super::indexing::indices;
use super::matmul::{matmul, rows_by_rows};
use super::rows::permute;
use crate::value::error::KernelError;
use crate::value::tensor::{Tensor, Values};

/// Counts the values in `bins` equal parts of the range from `min` to `max`, the last one closed; if both are equal, of the range of all values.
pub(super) fn histc(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let bins = size("bins", call.int(1, "bins")?.unwrap_or(100))?;
    let shape = call.claim("histc and its output", vec![bins])?;
    let values = x.to_floats();
    let (mut low, mut high) = (call.float(2, "min")?.unwrap_or(0.0), call.float(3, "max")?.unwrap_or(0.0));
    if low == high && !values.is_empty() {
        low = values.iter().copied().fold(f64::INFINITY, f64::min);
        high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    }
    if low == high {
        (low, high) = (low - 1.0, high + 1.0);
    }
    let mut counts = vec![0.0; bins];
    for &x in values.iter().filter(|&&x| low <= x && x <= high) {
        let part = ((x - low) * bins as f64 / (high - low)) as usize;
        if let Some(count) = counts.get_mut(part.min(bins.saturating_sub(1))) {
            *count += 1.0;
        }
    }
    Ok(vec![Tensor::of(shape, counts)])
}

/// Counts how often each integer from 0 on occurs, or sums its weights; at least `minlength` results.
pub(super) fn bincount(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let ids = indices(x)?;
    let least = size("minlength", call.int(2, "minlength")?.unwrap_or(0))?;
    let ids = ids.iter().map(|&id| size("self", id)).collect::<Result<Vec<_>, _>>()?;
    let count = ids.iter().map(|id| id.saturating_add(1)).max().unwrap_or(0).max(least);
    let shape = call.claim("bincount and its output", vec![count])?;
    let Some(weights) = call.optional(1, "weights")? else {
        let mut counts = vec![0i64; count];
        ids.iter().for_each(|&id| counts[id] += 1);
        return Ok(vec![Tensor::of(shape, counts)]);
    };
    ensure(weights.len() == ids.len(), "weights", &weights.shape, &x.shape)?;
    let mut sums = vec![0.0; count];
    ids.iter().zip(weights.to_floats().iter()).for_each(|(&id, weight)| sums[id] += weight);
    Ok(vec![Tensor::of(shape, sums)])
}

/// y\[r\] = x\[r\] · w\[e\], where e is the group of row r; `offs` gives the end of each group. Rows after the last group are zeros here, and undefined in
/// PyTorch. Without `offs`, one product for each group: x\[e\] · w\[e\].
pub(super) fn grouped_mm(call: &Call<'_>) -> Results {
    let (x, w) = (call.tensor(0, "self")?, call.tensor(1, "mat2")?);
    if call.get(3, "bias").is_some() {
        return Err(KernelError::Value { name: "bias", value: "a tensor".into() });
    }
    let Some(ends) = call.optional(2, "offs")? else { return matmul(call) };
    let (&[rows, inner], &[groups, depth, width]) = (x.shape.as_slice(), w.shape.as_slice()) else {
        return Err(KernelError::Shape {
            what: "rows and groups of weights",
            left: x.shape.clone(),
            right: w.shape.clone(),
        });
    };
    ensure(inner == depth, "rows and groups of weights", &x.shape, &w.shape)?;
    ensure(ends.shape == [groups], "groups", &ends.shape, &[groups])?;
    let shape = call.claim("a grouped product and its output", vec![rows, width])?;
    let (x, w) = (x.to_floats(), w.to_floats());
    let mut y = vec![0.0; rows * width];
    let mut start = 0;
    for (group, &end) in indices(ends)?.iter().enumerate() {
        let end = size("offs", end)?;
        ensure(start <= end && end <= rows, "the end of a group", &[start, end], &[rows])?;
        if start < end {
            let matrix = &w[group * depth * width..(group + 1) * depth * width];
            let columns = permute(matrix, &[depth, width], &[1, 0]);
            let part = rows_by_rows(&x[start * inner..end * inner], &columns, (end - start, width, inner))?;
            y[start * width..end * width].copy_from_slice(&part);
        }
        start = end;
    }
    Ok(vec![Tensor::of(shape, Values::from(y))])
}

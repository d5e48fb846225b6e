//! Computes pooling and unfolding: windows over the last axes, or a division of them into parts.

use super::call::{Call, Results, ensure};
use super::convolution::{Axis, numbers};
use crate::value::dtype::Kind;
use crate::value::error::KernelError;
use crate::value::tensor::Tensor;

/// The batch and channel axes, and the last `rank` axes, of a tensor of floats.
fn planes<'a>(x: &'a Tensor<'_>, rank: usize) -> Result<(&'a [usize], &'a [usize]), KernelError> {
    if x.kind() == Kind::Complex {
        return Err(KernelError::Kind { what: "a window", kind: Kind::Complex });
    }
    let split = x.shape.len().checked_sub(rank).filter(|&lead| lead > 0);
    let split =
        split.ok_or_else(|| KernelError::Shape { what: "channels", left: x.shape.clone(), right: vec![rank] })?;
    Ok(x.shape.split_at(split))
}

/// The windows of a pooling: kernel size, stride (default: kernel size), padding, dilation.
pub(super) fn windows(
    call: &Call<'_>,
    x: &Tensor<'_>,
    extents: &[usize],
    (padding, dilation, ceil): (Option<usize>, Option<usize>, usize),
) -> Result<Vec<Axis>, KernelError> {
    let rank = extents.len();
    let window = numbers(call, 1, "kernel_size", rank, 1)?;
    let stride = match call.ints(2, "stride")?.filter(|list| !list.is_empty()) {
        Some(_) => numbers(call, 2, "stride", rank, 1)?,
        None => window.clone(),
    };
    let padding = padding.map_or(Ok(vec![0; rank]), |at| numbers(call, at, "padding", rank, 0))?;
    let dilation = dilation.map_or(Ok(vec![1; rank]), |at| numbers(call, at, "dilation", rank, 1))?;
    let ceil = call.flag(ceil, "ceil_mode", false)?;
    (0..rank)
        .map(|i| {
            let axis = Axis::new(extents[i], window[i], stride[i], dilation[i], (padding[i], padding[i]));
            if ceil { axis.and_then(|axis| axis.with_part(padding[i])) } else { axis }
        })
        .collect::<Option<_>>()
        .ok_or_else(|| KernelError::Shape {
            what: "the window and the padded input",
            left: x.shape.clone(),
            right: window.clone(),
        })
}

/// The largest value of each window, and its index in its plane; NaN counts as the largest.
pub(super) fn max_pool2d(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let (lead, extents) = planes(x, 2)?;
    let axes = windows(call, x, extents, (Some(3), Some(4), 5))?;
    let (rows, columns) = (axes[0], axes[1]);
    let shape = call.claim("a pooling and its output", [lead, &[rows.count, columns.count]].concat())?;
    let values = x.to_floats();
    let inner = rows.extent * columns.extent;
    let (mut largest, mut places) = (Vec::new(), Vec::new());
    for image in 0..lead.iter().product() {
        for (row, column) in (0..rows.count).flat_map(|row| (0..columns.count).map(move |column| (row, column))) {
            let (mut best, mut place) = (f64::NEG_INFINITY, 0);
            for line in (0..rows.window).filter_map(|u| rows.source(row, u)) {
                for at in (0..columns.window).filter_map(|v| columns.source(column, v)) {
                    let value = values[image * inner + line * columns.extent + at];
                    if value > best || value.is_nan() {
                        (best, place) = (value, line * columns.extent + at);
                    }
                }
            }
            largest.push(best);
            places.push(place as i64);
        }
    }
    Ok(vec![Tensor::of(shape.clone(), largest), Tensor::of(shape, places)])
}

/// The mean of each of n parts of the last axis.
pub(super) fn adaptive_avg_pool1d(call: &Call<'_>) -> Results {
    adaptive(call, 1)
}

/// The mean of each of n · m parts of the last two axes.
pub(super) fn adaptive_avg_pool2d(call: &Call<'_>) -> Results {
    adaptive(call, 2)
}

/// Part i of n of an axis is from ⌊i · extent / n⌋ to ⌈(i + 1) · extent / n⌉.
fn adaptive(call: &Call<'_>, rank: usize) -> Results {
    let x = call.tensor(0, "self")?;
    let (lead, extents) = planes(x, rank)?;
    let given = numbers(call, 1, "output_size", rank, 1)?;
    ensure(!extents.contains(&0), "an extent", extents, &[])?;
    let shape = call.claim("a pooling and its output", [lead, &given].concat())?;
    // In one dimension the height is 1.
    let (height, width) = if rank == 1 { (1, extents[0]) } else { (extents[0], extents[1]) };
    let (lines, places) = if rank == 1 { (1, given[0]) } else { (given[0], given[1]) };
    let part = |at: usize, count: usize, extent: usize| at * extent / count..((at + 1) * extent).div_ceil(count);
    let values = x.to_floats();
    let mut out = Vec::with_capacity(shape.iter().product());
    for image in 0..lead.iter().product() {
        for (line, place) in (0..lines).flat_map(|line| (0..places).map(move |place| (line, place))) {
            let (rows, columns) = (part(line, lines, height), part(place, places, width));
            let count = rows.len() * columns.len();
            let sums = rows.map(|row| &values[(image * height + row) * width..][columns.clone()]);
            out.push(sums.map(|row| row.iter().sum::<f64>()).sum::<f64>() / count as f64);
        }
    }
    Ok(vec![Tensor::of(shape, out)])
}

/// The elements of each window: a column for each position, with all channels concatenated.
pub(super) fn im2col(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let (lead, extents) = planes(x, 2)?;
    let (window, dilation) = (numbers(call, 1, "kernel_size", 2, 1)?, numbers(call, 2, "dilation", 2, 1)?);
    let (padding, stride) = (numbers(call, 3, "padding", 2, 0)?, numbers(call, 4, "stride", 2, 1)?);
    let axis = |i: usize| Axis::new(extents[i], window[i], stride[i], dilation[i], (padding[i], padding[i]));
    let (Some(rows), Some(columns)) = (axis(0), axis(1)) else {
        return Err(KernelError::Shape {
            what: "the window and the padded input",
            left: x.shape.clone(),
            right: window,
        });
    };
    let [batch @ .., channels] = lead else { return Err(KernelError::Absent("channels")) };
    let (positions, inner) = (rows.count * columns.count, rows.extent * columns.extent);
    let depth = channels.saturating_mul(rows.window.saturating_mul(columns.window));
    let shape = call.claim("the windows and their output", [batch, &[depth, positions]].concat())?;
    let values = x.to_floats();
    let mut out = Vec::with_capacity(shape.iter().product());
    for plane in 0..lead.iter().product() {
        for (u, v) in (0..rows.window).flat_map(|u| (0..columns.window).map(move |v| (u, v))) {
            for (row, column) in (0..rows.count).flat_map(|row| (0..columns.count).map(move |column| (row, column))) {
                let at = rows.source(row, u).zip(columns.source(column, v));
                out.push(at.map_or(0.0, |(line, at)| values[plane * inner + line * columns.extent + at]));
            }
        }
    }
    Ok(vec![Tensor::of(shape, out)])
}

/// The mean of each window over the last two axes; padding counts unless `count_include_pad` is false.
pub(super) fn avg_pool2d(call: &Call<'_>) -> Results {
    let x = call.tensor(0, "self")?;
    let [lead @ .., height, width] = x.shape.as_slice() else {
        return Err(KernelError::Shape { what: "two axes", left: x.shape.clone(), right: vec![] });
    };
    let with_padding = call.flag(5, "count_include_pad", true)?;
    let divisor = call.float(6, "divisor_override")?;
    let padding = numbers(call, 3, "padding", 2, 0)?;
    let axes = windows(call, x, &[*height, *width], (Some(3), None, 4))?;
    let (rows, columns) = (axes[0], axes[1]);
    let mut shape = lead.to_vec();
    shape.extend([rows.count, columns.count]);
    let shape = call.claim("a pooling and its output", shape)?;
    let values = x.to_floats();
    let inner = height * width;
    let mut out = Vec::with_capacity(shape.iter().product());
    for image in 0..lead.iter().product() {
        for (row, column) in (0..rows.count).flat_map(|row| (0..columns.count).map(move |column| (row, column))) {
            let lines: Vec<usize> = (0..rows.window).filter_map(|u| rows.source(row, u)).collect();
            let places: Vec<usize> = (0..columns.window).filter_map(|v| columns.source(column, v)).collect();
            let at = lines.iter().flat_map(|line| places.iter().map(move |place| line * width + place));
            let sum: f64 = at.map(|at| values[image * inner + at]).sum();
            let inside = lines.len() * places.len();
            let all = rows.covered(row, padding[0]) * columns.covered(column, padding[1]);
            out.push(sum / divisor.unwrap_or(if with_padding { all as f64 } else { inside as f64 }));
        }
    }
    Ok(vec![Tensor::of(shape, out)])
}

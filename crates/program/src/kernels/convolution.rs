//! Computes convolutions in one to three dimensions.

use super::call::{Call, Results, ensure};
use super::matmul::rows_by_rows;
use crate::value::dtype::Kind;
use crate::value::error::KernelError;
use crate::value::tensor::Tensor;

/// Elements of the unfolded input in memory at a time.
const TILE: usize = 1 << 20;

/// How a window moves along one axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    /// Extent of the input.
    pub(super) extent: usize,
    /// Extent of the window.
    pub(super) window: usize,
    stride: usize,
    dilation: usize,
    /// Zeros before the first element.
    before: usize,
    /// Positions of the window.
    pub(super) count: usize,
}

impl Axis {
    /// An axis with padding before and after; the window must not be empty, and must fit at least once.
    pub(super) fn new(
        extent: usize,
        window: usize,
        stride: usize,
        dilation: usize,
        (before, after): (usize, usize),
    ) -> Option<Axis> {
        let padded = extent.checked_add(before)?.checked_add(after)?;
        let reach = window.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)?;
        let count = padded.checked_sub(reach)?.checked_div(stride)? + 1;
        Some(Axis { extent, window, stride, dilation, before, count })
    }

    /// The same with a last, partial window (`ceil_mode`) if elements are left over, unless that would begin in the padding.
    pub(super) fn with_part(mut self, after: usize) -> Option<Axis> {
        let reach = (self.window - 1) * self.dilation + 1;
        let left = (self.extent + self.before + after).checked_sub(reach)?;
        let begins = self.count.checked_mul(self.stride)?;
        if !left.is_multiple_of(self.stride) && begins < self.extent + self.before {
            self.count += 1;
        }
        Some(self)
    }

    /// How many elements of the window lie in the padded input at a position.
    pub(super) fn covered(&self, position: usize, after: usize) -> usize {
        let padded = self.extent + self.before + after;
        (0..self.window).filter(|at| position * self.stride + at * self.dilation < padded).count()
    }

    /// The input index for element `at` of the window at a position; `None` in the padding.
    pub(super) fn source(&self, position: usize, at: usize) -> Option<usize> {
        (position * self.stride + at * self.dilation).checked_sub(self.before).filter(|&i| i < self.extent)
    }
}

/// `count` numbers; a single one is repeated.
pub(super) fn numbers(
    call: &Call<'_>,
    position: usize,
    name: &'static str,
    count: usize,
    otherwise: usize,
) -> Result<Vec<usize>, KernelError> {
    let list = call.ints(position, name)?.filter(|list| !list.is_empty());
    let list = list.unwrap_or_else(|| vec![otherwise as i64]);
    let fail = || KernelError::Value { name, value: format!("{list:?}") };
    let sizes: Vec<usize> = list.iter().map(|&x| usize::try_from(x).map_err(|_| fail())).collect::<Result<_, _>>()?;
    match sizes.len() {
        1 => Ok(vec![sizes[0]; count]),
        n if n == count => Ok(sizes),
        _ => Err(fail()),
    }
}

/// y\[b,o,p\] = Σ over the channels c of o's group and the window u of x\[b,c,p · stride + u · dilation - padding\] · w\[o,c,u\], + bias\[o\].
pub(super) fn conv1d(call: &Call<'_>) -> Results {
    convolution(call, 1)
}

/// The same in two dimensions.
pub(super) fn conv2d(call: &Call<'_>) -> Results {
    convolution(call, 2)
}

/// The same in three dimensions.
pub(super) fn conv3d(call: &Call<'_>) -> Results {
    convolution(call, 3)
}

fn convolution(call: &Call<'_>, rank: usize) -> Results {
    let (x, w) = (call.tensor(0, "input")?, call.tensor(1, "weight")?);
    let misfit = |what| KernelError::Shape { what, left: x.shape.clone(), right: w.shape.clone() };
    if x.kind().max(w.kind()) != Kind::Float || w.shape.len() != rank + 2 {
        return Err(misfit("weight [out, in, window]"));
    }
    let alone = x.shape.len() == rank + 1;
    let (batch, spatial) = match x.shape.as_slice() {
        [_, spatial @ ..] if alone => (1, spatial),
        [batch, _, spatial @ ..] if spatial.len() == rank => (*batch, spatial),
        _ => return Err(misfit("input [batch, channels, extents]")),
    };
    let channels = x.shape[usize::from(!alone)];
    let (stride, dilation) = (numbers(call, 3, "stride", rank, 1)?, numbers(call, 5, "dilation", rank, 1)?);
    let groups = call.int(6, "groups")?.unwrap_or(1);
    let groups = usize::try_from(groups)
        .ok()
        .filter(|&n| n > 0)
        .ok_or(KernelError::Value { name: "groups", value: groups.to_string() })?;
    let (out, per_group, windows) = (w.shape[0], w.shape[1], &w.shape[2..]);
    ensure(
        Some(channels) == per_group.checked_mul(groups) && out.is_multiple_of(groups),
        "channels and groups",
        &x.shape,
        &w.shape,
    )?;
    let padding: Vec<(usize, usize)> = match call.text(4, "padding") {
        Some("valid") => vec![(0, 0); rank],
        Some("same") => {
            let all = (0..rank).map(|i| dilation[i].saturating_mul(windows[i].saturating_sub(1)));
            all.map(|all| (all / 2, all - all / 2)).collect()
        }
        Some(other) => return Err(KernelError::Value { name: "padding", value: other.into() }),
        None => numbers(call, 4, "padding", rank, 0)?.into_iter().map(|n| (n, n)).collect(),
    };
    let axes: Option<Vec<Axis>> =
        (0..rank).map(|i| Axis::new(spatial[i], windows[i], stride[i], dilation[i], padding[i])).collect();
    let axes = axes.ok_or_else(|| misfit("the window and the padded input"))?;
    let mut shape = if alone { vec![out] } else { vec![batch, out] };
    shape.extend(axes.iter().map(|axis| axis.count));
    let shape = call.claim("a convolution and its output", shape)?;
    let bias = call.optional(2, "bias")?.map(Tensor::to_floats);
    ensure(bias.as_ref().is_none_or(|b| b.len() == out), "bias", &[bias.as_ref().map_or(0, |b| b.len())], &[out])?;
    // Missing dimensions have extent 1.
    let line = Axis { extent: 1, window: 1, stride: 1, dilation: 1, before: 0, count: 1 };
    let axis = |back: usize| rank.checked_sub(back).map_or(line, |at| axes[at]);
    let axes = [axis(3), axis(2), axis(1)];
    let (x, w) = (x.to_floats(), w.to_floats());
    let all = |of: fn(&Axis) -> usize| axes.iter().map(of).product::<usize>();
    let (positions, inner, width) = (all(|a| a.count), all(|a| a.extent), per_group * all(|a| a.window));
    let each = out / groups;
    let mut y = vec![0.0; batch * out * positions];
    let tile = (TILE / width.max(1)).max(1);
    for (b, g) in (0..batch).flat_map(|b| (0..groups).map(move |g| (b, g))) {
        let weights = &w[g * each * width..(g + 1) * each * width];
        let source = &x[(b * channels + g * per_group) * inner..];
        for start in (0..positions).step_by(tile) {
            let end = (start + tile).min(positions);
            let mut unfolded = Vec::with_capacity((end - start) * width);
            for position in start..end {
                unfold(source, per_group, inner, &axes, position, &mut unfolded);
            }
            let part = rows_by_rows(&unfolded, weights, (end - start, each, width))?;
            for (i, values) in part.chunks_exact(each.max(1)).enumerate() {
                for (o, value) in values.iter().enumerate() {
                    let o = g * each + o;
                    y[(b * out + o) * positions + start + i] = value + bias.as_ref().map_or(0.0, |bias| bias[o]);
                }
            }
        }
    }
    Ok(vec![Tensor::of(shape, y)])
}

/// The elements of the window at a position.
fn unfold(x: &[f64], channels: usize, inner: usize, axes: &[Axis; 3], position: usize, out: &mut Vec<f64>) {
    let [planes, rows, columns] = axes;
    let (plane, row) = (position / columns.count / rows.count, position / columns.count % rows.count);
    for (channel, u) in (0..channels).flat_map(|channel| (0..planes.window).map(move |u| (channel, u))) {
        let plane = planes.source(plane, u).map(|plane| plane * rows.extent);
        for v in 0..rows.window {
            let line = plane.and_then(|plane| Some((plane + rows.source(row, v)?) * columns.extent));
            for w in 0..columns.window {
                let at = line.and_then(|line| Some(line + columns.source(position % columns.count, w)?));
                out.push(at.map_or(0.0, |at| x[channel * inner + at]));
            }
        }
    }
}

//! Resizes images by nearest, bilinear or bicubic interpolation.

use super::call::{Call, Results, ensure, size};
use crate::value::dtype::Kind;
use crate::value::error::KernelError;
use crate::value::tensor::Tensor;

/// The input positions for one output position along an axis, each with its weight.
type Sources = Vec<(usize, f64)>;

/// Maps output positions to input positions.
#[derive(Clone, Copy, Debug)]
struct Scale {
    extent: usize,
    align_corners: bool,
    /// Input elements for each output element.
    step: f64,
}

impl Scale {
    fn source(&self, at: usize) -> f64 {
        if self.align_corners { at as f64 * self.step } else { (at as f64 + 0.5) * self.step - 0.5 }
    }

    fn inside(&self, at: f64) -> usize {
        at.clamp(0.0, (self.extent - 1) as f64) as usize
    }
}

/// Nearest neighbour, rounded down.
pub(super) fn nearest(call: &Call<'_>) -> Results {
    resize(call, None, |scale, at| vec![(scale.inside((at as f64 * scale.step).floor()), 1.0)])
}

/// Linear interpolation in each direction.
pub(super) fn bilinear(call: &Call<'_>) -> Results {
    resize(call, Some(2), |scale, at| {
        let place = scale.source(at).max(0.0);
        let low = scale.inside(place.floor());
        let part = place - low as f64;
        vec![(low, 1.0 - part), ((low + 1).min(scale.extent - 1), part)]
    })
}

/// Cubic interpolation in each direction, with Keys' constant -0.75; the border is repeated.
pub(super) fn bicubic(call: &Call<'_>) -> Results {
    let keys = -0.75;
    let near = |x: f64| ((keys + 2.0) * x - (keys + 3.0)) * x * x + 1.0;
    let far = |x: f64| ((keys * x - 5.0 * keys) * x + 8.0 * keys) * x - 4.0 * keys;
    resize(call, Some(2), move |scale, at| {
        let place = scale.source(at);
        let low = place.floor();
        let part = place - low;
        let weights = [far(part + 1.0), near(part), near(1.0 - part), far(2.0 - part)];
        (0..4).map(|i| (scale.inside(low + i as f64 - 1.0), weights[i])).collect()
    })
}

/// Each output over the last two axes is the weighted sum of both axes' sources. `corners`: the position of `align_corners`.
fn resize(call: &Call<'_>, corners: Option<usize>, taps: impl Fn(Scale, usize) -> Sources) -> Results {
    let x = call.tensor(0, "input")?;
    let [lead @ .., height, width] = x.shape.as_slice() else {
        return Err(KernelError::Shape { what: "two axes", left: x.shape.clone(), right: vec![] });
    };
    if x.kind() == Kind::Complex {
        return Err(KernelError::Kind { what: "an image", kind: Kind::Complex });
    }
    ensure(*height > 0 && *width > 0 && !lead.is_empty(), "an image", &x.shape, &[])?;
    let align_corners = corners.map_or(Ok(false), |at| call.flag(at, "align_corners", false))?;
    let after = corners.map_or(2, |at| at + 1);
    // Overload `vec` has a list of both factors, the other has one number for each axis.
    let factors: Vec<Option<f64>> = match call.overload {
        "vec" => match call.get(after, "scale_factors") {
            Some(_) => call.tensors(after, "scale_factors")?.iter().map(|x| x.to_floats().first().copied()).collect(),
            None => vec![None, None],
        },
        _ => vec![call.float(after, "scales_h")?, call.float(after + 1, "scales_w")?],
    };
    ensure(factors.len() == 2, "scale_factors", &[factors.len()], &[2])?;
    let sizes = match call.ints(1, "output_size")? {
        Some(list) => list.iter().map(|&x| size("output_size", x)).collect::<Result<Vec<_>, _>>()?,
        None => {
            let grown = |extent: usize, factor: Option<f64>| (extent as f64 * factor.unwrap_or(1.0)).floor() as usize;
            vec![grown(*height, factors[0]), grown(*width, factors[1])]
        }
    };
    ensure(sizes.len() == 2, "output_size", &sizes, &[2])?;
    let shape = call.claim("an image and its output", [lead, &sizes].concat())?;
    let axis = |extent: usize, count: usize, factor: Option<f64>| -> Vec<Sources> {
        let step = match (align_corners, factor) {
            (true, _) => (extent - 1) as f64 / count.saturating_sub(1).max(1) as f64,
            (false, Some(factor)) if factor > 0.0 => factor.recip(),
            (false, _) => extent as f64 / count.max(1) as f64,
        };
        let step = if align_corners && count < 2 { 0.0 } else { step };
        (0..count).map(|at| taps(Scale { extent, align_corners, step }, at)).collect()
    };
    let (rows, columns) = (axis(*height, sizes[0], factors[0]), axis(*width, sizes[1], factors[1]));
    let values = x.to_floats();
    let mut out: Vec<f64> = Vec::with_capacity(shape.iter().product());
    for image in values.chunks_exact(height * width) {
        for row in &rows {
            for column in &columns {
                let line = |at: usize| column.iter().map(|(c, weight)| image[at * width + c] * weight).sum::<f64>();
                out.push(row.iter().map(|&(at, weight)| line(at) * weight).sum());
            }
        }
    }
    Ok(vec![Tensor::of(shape, out)])
}

//! Finds to how few bits weights and activations are rounded before they are multiplied: the grids that engines use, and rounding to one.

use firstdiff_model::Half;
use ndarray::Array2;
use serde_json::json;

use crate::mistakes::Params;

/// How weights and activations are rounded before they are multiplied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rounding {
    pub(crate) weights: Option<Grid>,
    pub(crate) activations: Option<Grid>,
}

/// The numbers that values are rounded to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Grid {
    pub(crate) bits: i32,
    pub(crate) over: Over,
    pub(crate) kind: Kind,
}

/// What shares a scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Over {
    Tensor,
    Row,
    Group(usize),
}

/// Where the steps lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Around 0: the largest magnitude is so many steps, beyond 2^(bits-1) - 1.
    Symmetric { beyond: f64 },
    /// The same, and the scale is kept in f16, as in ggml's q8_0: values are divided by what is `kept`, or by what it was before.
    Half { kept: bool },
    /// From the least value to the largest.
    Affine,
    /// The same, 0 being a step of its own, and in the range.
    ZeroPoint,
    /// From the value of larger magnitude on, 0 being a step: MLX.
    Edge,
}

/// Scales in f16.
pub(crate) const HALF: [Kind; 2] = [Kind::Half { kept: false }, Kind::Half { kept: true }];

fn in_half(step: f64) -> f64 {
    f64::from(Half::F16.round(step as f32))
}

/// Every grid that weights are rounded to, and none: for products that were recorded, where trying one costs one product.
pub(crate) fn weight_grids() -> impl Iterator<Item = Option<Grid>> {
    let overs = [Over::Tensor, Over::Row, Over::Group(16), Over::Group(32), Over::Group(64), Over::Group(128)];
    let symmetric = [0.0, 0.5, 1.0].map(|beyond| Kind::Symmetric { beyond });
    let kinds = move || symmetric.into_iter().chain(HALF).chain([Kind::Affine, Kind::ZeroPoint, Kind::Edge]);
    let of = move |bits| {
        let grids = move |over| kinds().map(move |kind| Some(Grid { bits, over, kind }));
        overs.into_iter().filter(move |over| bits > 4 || *over != Over::Tensor).flat_map(grids)
    };
    std::iter::once(None).chain([8, 4].into_iter().flat_map(of))
}

/// Every grid that activations are rounded to.
pub(crate) fn activation_grids() -> impl Iterator<Item = Grid> {
    let kinds = [Kind::ZeroPoint, Kind::Symmetric { beyond: 0.0 }];
    let both = move |over| kinds.into_iter().map(move |kind| Grid { bits: 8, over, kind });
    // fbgemm leaves one bit unused.
    let reduced = Grid { bits: 7, over: Over::Tensor, kind: Kind::ZeroPoint };
    [Over::Tensor, Over::Row].into_iter().flat_map(both).chain([reduced])
}

/// The steps that one scale gives.
#[derive(Clone, Copy)]
pub(crate) struct Steps {
    step: f64,
    /// What a step is worth when it is read again.
    worth: f64,
    zero: f64,
    least: f64,
    most: f64,
}

impl Steps {
    /// The nearest step of each value; as they are where there is none.
    pub(crate) fn round(self, x: &mut [f64]) {
        // Above this no f64 has anything behind the point: what is added and taken away again is rounded, ties to even, without a call.
        const WHOLE: f64 = (3u64 << 51) as f64;
        let Steps { step, worth, zero, least, most } = self;
        if step.is_finite() && step != 0.0 {
            // The ends are whole numbers of steps, so what is cut to them first is rounded to the same.
            x.iter_mut().for_each(|x| *x = ((((*x - zero) / step).clamp(least, most) + WHOLE) - WHOLE) * worth + zero);
        }
    }
}

impl Grid {
    /// Rounds \[rows, columns\].
    pub(crate) fn round(self, x: &mut Array2<f64>) {
        match self.over {
            Over::Tensor => {
                let steps = self.steps(x.iter().copied());
                x.iter_mut().for_each(|x| steps.round(std::slice::from_mut(x)));
            }
            Over::Row | Over::Group(_) => {
                for mut row in x.rows_mut() {
                    let mut values = row.to_vec();
                    self.round_row(&mut values);
                    row.iter_mut().zip(values).for_each(|(x, y)| *x = y);
                }
            }
        }
    }

    /// Rounds a row whose scales are its own.
    pub(crate) fn round_row(self, row: &mut [f64]) {
        let size = if let Over::Group(size) = self.over { size } else { row.len().max(1) };
        row.chunks_mut(size).for_each(|part| self.steps(part.iter().copied()).round(part));
    }

    /// The steps of values that share a scale.
    pub(crate) fn steps(self, values: impl Iterator<Item = f64>) -> Steps {
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(x), h.max(x)));
        let levels = f64::from((1 << self.bits) - 1);
        let half = f64::from((1 << (self.bits - 1)) - 1);
        let (step, zero, least, most) = match self.kind {
            Kind::Symmetric { beyond } => (high.max(-low) / (half + beyond), 0.0, -half - 1.0, half),
            Kind::Half { kept } => {
                let step = high.max(-low) / half;
                (if kept { in_half(step) } else { step }, 0.0, -half - 1.0, half)
            }
            Kind::Affine => ((high - low) / levels, low, 0.0, levels),
            Kind::ZeroPoint => {
                let step = (high.max(0.0) - low.min(0.0)) / levels;
                (step, (low.min(0.0) / step).round_ties_even() * step, 0.0, levels)
            }
            Kind::Edge => {
                let (step, edge) =
                    if -low > high { ((high - low) / levels, low) } else { (-(high - low) / levels, high) };
                let steps = (edge / step).round_ties_even();
                if steps == 0.0 { (step, 0.0, 0.0, levels) } else { (edge / steps, edge, 0.0, levels) }
            }
        };
        let worth = if matches!(self.kind, Kind::Half { .. }) { in_half(step) } else { step };
        Steps { step, worth, zero, least, most }
    }

    pub(crate) fn words(self) -> String {
        let over = match self.over {
            Over::Tensor => "a tensor".to_owned(),
            Over::Row => "a row".to_owned(),
            Over::Group(size) => format!("a group of {size}"),
        };
        let kind = match self.kind {
            Kind::Symmetric { .. } => "symmetric",
            Kind::Half { .. } => "symmetric, the scale in f16",
            Kind::Affine | Kind::ZeroPoint | Kind::Edge => "with a minimum",
        };
        format!("{} bits, one scale {over}, {kind}", self.bits)
    }
}

impl Rounding {
    /// `weights rounded to 8 bits, one scale a row, symmetric`.
    pub fn words(self) -> String {
        let weights = self.weights.map(|grid| format!("weights rounded to {}", grid.words()));
        let activations = self.activations.map(|grid| format!("activations rounded to {}", grid.words()));
        weights.into_iter().chain(activations).collect::<Vec<_>>().join("; ")
    }

    /// Whether weights alone are rounded: a model of the rounded weights gives parity.
    pub fn is_of_weights_alone(self) -> bool {
        self.activations.is_none()
    }

    pub(crate) fn params(self) -> Params {
        let weights = self.weights.map(|grid| ("weights", json!(grid.words())));
        let activations = self.activations.map(|grid| ("activations", json!(grid.words())));
        weights.into_iter().chain(activations).collect()
    }
}

/// Fewer kinds of products are no sign of anything.
pub(crate) const KINDS: usize = 3;

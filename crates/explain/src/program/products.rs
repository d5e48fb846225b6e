//! A program's products with weights, as a candidate holds them.

use std::collections::HashMap;
use std::sync::Arc;

use firstdiff_compare::Place;
use firstdiff_model::{Half, Profile};
use firstdiff_program::{Bench, Operand, Program};
use ndarray::{Array2, ArrayD};

use crate::mistakes::rounding::Rounding;
use crate::program::arrays::in_rows;
use crate::program::context::Context;
use crate::program::forms::linear::multiplied;
use crate::program::held::Held;

/// A program's products with weights, of what a candidate holds.
pub(super) struct HeldProducts<'a> {
    pub(super) program: &'a Program,
    pub(super) held: &'a Held,
    pub(super) taps: HashMap<Place, usize>,
    pub(super) exact: Bench<'a>,
    pub(super) profile: Profile,
}

impl HeldProducts<'_> {
    /// What `of` makes of the operation that makes a place's tap, and what the candidate has there, as that operation gives it.
    fn at<T>(&mut self, place: Place, of: impl Fn(&Context<'_>, usize) -> Option<T>) -> Option<(T, ArrayD<f64>)> {
        let tap = *self.taps.get(&place)?;
        let slice = self.held.slice(self.program, tap);
        self.exact.load(&slice).ok()?;
        let own = Arc::new(self.held.recorded(tap)?);
        let context = Context::new(self.program, self.held, &slice, &self.exact, own);
        let op = self.program.taps()[tap].op;
        Some((of(&context, op)?, context.own_as(context.out(op)?)?))
    }

    /// Whether a tap is a product with a matrix of weights.
    pub(super) fn is_product(&self, place: Place) -> bool {
        self.taps.get(&place).is_some_and(|&tap| is_product(self.program, tap))
    }

    /// What was multiplied, and what came of it; `None` where that is not known.
    pub(super) fn product(&mut self, place: Place) -> Option<Product> {
        let ((x, w, bias), own) = self.at(place, multiplied)?;
        Product::new(self.profile, own, in_rows(&x)?, w, bias.map(|bias| bias.iter().copied().collect()))
    }

    /// Of a tap that is looked up in a table of weights, what the candidate has and what is right, \[T,D\].
    pub(super) fn looked_up(&mut self, place: Place) -> Option<[Array2<f64>; 2]> {
        let due = |context: &Context<'_>, op: usize| {
            let is_table = context.base(op) == "embedding" && context.is_weight(context.tensor(op, 0)?);
            context.due().filter(|_| is_table)
        };
        let (due, own) = self.at(place, due)?;
        Some([in_rows(&own)?, in_rows(&due)?])
    }
}

/// Whether a tap is a product with a matrix of weights.
pub(super) fn is_product(program: &Program, tap: usize) -> bool {
    let record = &program.ops()[program.taps()[tap].op];
    let mut views = record.operands.iter().flat_map(Operand::views);
    record.base() != "embedding"
        && views.any(|view| {
            let is_matrix = program.buffers()[view.buffer].shape.iter().filter(|&&extent| extent > 1).count() > 1;
            is_matrix && program.weights().contains_key(&view.buffer)
        })
}

/// Rows of activations, and of the matrix, of which the products are looked at: the last of each.
const ROWS: usize = 32;

const OUTPUTS: usize = 128;

/// A product with weights, part of it, as the candidate recorded it.
pub(crate) struct Product {
    /// All activations, \[T,in\].
    x: Array2<f64>,
    /// The matrix, \[out,in\].
    w: Array2<f64>,
    /// What is added to the columns, where there is a bias.
    bias: Option<Vec<f64>>,
    /// What the candidate recorded, and what is right, \[T,out\].
    pub(super) own: Array2<f64>,
    pub(super) right: Array2<f64>,
    shape: Vec<usize>,
    half: Option<Half>,
}

impl Product {
    /// A matrix, times activations \[T,in\]; `None` where the extents do not fit.
    pub(crate) fn new(
        profile: Profile,
        own: ArrayD<f64>,
        x: Array2<f64>,
        w: Array2<f64>,
        bias: Option<Vec<f64>>,
    ) -> Option<Product> {
        let shape = own.shape().to_vec();
        let own = own.as_standard_layout().into_owned().into_shape_with_order((x.nrows(), w.nrows())).ok()?;
        if x.ncols() != w.ncols() {
            return None;
        }
        let half = match profile {
            Profile::F16 => Some(Half::F16),
            Profile::Bf16 => Some(Half::BF16),
            _ => None,
        };
        let mut product = Product { x, w, bias, right: own.clone(), own, shape, half };
        product.right = product.multiplied(&product.x, &product.w, 0..product.x.nrows(), 0);
        Some(product)
    }

    /// Rows `tokens` of x times rows of w from `from` on, and the bias.
    fn multiplied(&self, x: &Array2<f64>, w: &Array2<f64>, tokens: std::ops::Range<usize>, from: usize) -> Array2<f64> {
        let mut out = x.slice(ndarray::s![tokens, ..]).dot(&w.slice(ndarray::s![from.., ..]).t());
        for mut row in out.rows_mut() {
            for (column, y) in row.iter_mut().enumerate() {
                *y += self.bias.as_ref().map_or(0.0, |bias| bias[from + column]);
                *y = self.half.map_or(*y, |half| f64::from(half.round(*y as f32)));
            }
        }
        out
    }

    /// In the tap's own shape.
    pub(super) fn shaped(&self, x: &Array2<f64>) -> ArrayD<f64> {
        x.clone().into_shape_with_order(self.shape.clone()).unwrap_or_else(|_| x.clone().into_dyn())
    }

    /// The share of the error that this rounding leaves.
    pub(super) fn left_by(&self, rounding: Rounding) -> f64 {
        let (mut x, mut w) = (self.x.clone(), self.w.clone());
        if let Some(grid) = rounding.activations {
            grid.round(&mut x);
        }
        if let Some(grid) = rounding.weights {
            grid.round(&mut w);
        }
        let tokens = self.x.nrows().saturating_sub(ROWS)..self.x.nrows();
        let from = w.nrows().saturating_sub(OUTPUTS);
        let made = self.multiplied(&x, &w, tokens.clone(), from);
        let part = ndarray::s![tokens, from..];
        let (own, right) = (self.own.slice(part), self.right.slice(part));
        let distance = |other: ndarray::ArrayView2<'_, f64>| -> f64 {
            own.iter().zip(other).map(|(own, other)| (own - other).powi(2)).sum()
        };
        distance(made.view()) / distance(right)
    }
}

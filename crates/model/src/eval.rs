//! Evaluates one step on given inputs: reads the weights a tile of rows at a time, and calls core.

use firstdiff_core::{self as core, Mask, OpError};
use ndarray::{
    Array, Array1, Array2, Array3, ArrayD, ArrayView2, ArrayView3, ArrayViewD, ArrayViewMut2, Dimension, Ix3,
};

use crate::error::ModelError;
use crate::matmul::product;
use crate::plan::{Op, Rope, Scores, Step};
use crate::storage::{Half, Real};
use crate::weights::{WeightView, Weights};

/// The tokens for which a step is evaluated.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// Their ids.
    pub tokens: &'a [u32],
    /// The position of the first token: how many came before.
    pub start: usize,
}

/// Runs one step on `inputs`, one for each of `step.reads`.
///
/// The input that [`Step::cached`] names holds all rows so far (S = `chunk.start` + T), the others only those of the chunk. The result depends on nothing
/// else, and not on the number of threads.
///
/// # Errors
/// When the shapes of inputs and weights do not fit the operation, a weight is absent, or a token is not in the vocabulary.
pub fn eval_step<E: Real>(
    step: &Step,
    inputs: &[ArrayViewD<'_, E>],
    chunk: Chunk<'_>,
    weights: &Weights,
) -> Result<ArrayD<E>, ModelError> {
    Evaluation { step, inputs, chunk, weights, half: None }.run()
}

pub(crate) struct Evaluation<'a, E> {
    pub(crate) step: &'a Step,
    pub(crate) inputs: &'a [ArrayViewD<'a, E>],
    pub(crate) chunk: Chunk<'a>,
    pub(crate) weights: &'a Weights,
    /// The type that weights are rounded to before they are used.
    pub(crate) half: Option<Half>,
}

pub(crate) type Out<T> = Result<T, ModelError>;

impl<E: Real> Evaluation<'_, E> {
    pub(crate) fn run(&self) -> Out<ArrayD<E>> {
        match &self.step.op {
            Op::Embedding { scale } => self.embedding(*scale),
            Op::RmsNorm { eps } => self.rms_norm(*eps),
            Op::Linear { heads } => self.linear(self.matrix(0)?, *heads),
            Op::Head => self.linear(self.matrix(0)?, None),
            Op::Rope(rope) => self.rope(rope),
            Op::Qk => self.with_tap(core::qk(self.cube(0)?, self.cube(1)?)),
            Op::Scores(scores) => self.scores(scores),
            Op::Softmax => Ok(core::softmax(self.input(0)?.view())),
            Op::Context => self.with_tap(core::context(self.cube(0)?, self.cube(1)?)),
            Op::Gated { activation } => {
                self.with_tap(core::gated(self.input(0)?.view(), self.input(1)?.view(), *activation))
            }
            Op::Residual { multiplier } => {
                self.with_tap(core::residual(self.input(0)?.view(), self.input(1)?.view(), E::from_f64(*multiplier)))
            }
        }
    }

    /// Returns the result of core, with the tap added to its error.
    pub(crate) fn with_tap<D: Dimension>(&self, out: Result<Array<E, D>, OpError>) -> Out<ArrayD<E>> {
        out.map(Array::into_dyn).map_err(|e| self.error(e))
    }

    /// The position of every token of the chunk.
    pub(crate) fn positions(&self) -> Out<Vec<u32>> {
        let position = |t| u32::try_from(self.chunk.start + t).map_err(|_| self.error("a position beyond u32"));
        (0..self.chunk.tokens.len()).map(position).collect()
    }

    fn rope(&self, rope: &Rope) -> Out<ArrayD<E>> {
        let positions = self.positions()?;
        let (inv_freq, factor) = core::rope_inv_freq(rope.rotary_dim, rope.theta, &rope.scaling);
        self.with_tap(core::rope(self.cube(0)?, &positions, &inv_freq, factor, rope.pairing))
    }

    fn scores(&self, scores: &Scores) -> Out<ArrayD<E>> {
        let mask = Mask { causal: scores.causal, window: scores.window, padding: None };
        self.with_tap(core::scores(self.cube(0)?, E::from_f64(scores.scale), scores.softcap.map(E::from_f64), mask))
    }

    /// Embedding rows, one for each token.
    fn embedding(&self, scale: f64) -> Out<ArrayD<E>> {
        let (matrix, vocab, columns) = self.weight_matrix()?;
        let mut out = Array2::zeros((self.chunk.tokens.len(), columns));
        for (index, (&token, mut row)) in self.chunk.tokens.iter().zip(out.rows_mut()).enumerate() {
            let at = token as usize;
            if at >= vocab {
                return Err(ModelError::Token { index: self.chunk.start + index, token, vocab });
            }
            row.assign(&matrix.rows::<E>(at..at + 1).row(0));
        }
        if scale != 1.0 {
            out.mapv_inplace(|x| x * E::from_f64(scale));
        }
        Ok(out.into_dyn())
    }

    fn rms_norm(&self, eps: f64) -> Out<ArrayD<E>> {
        let x = self.input(0)?;
        let gain = self.vector(0)?;
        let width = x.shape().last().copied().unwrap_or(1);
        let rows = x.len() / width.max(1);
        let flat = x.view().into_shape_with_order((rows, width)).map_err(|e| self.error(e))?;
        let out = core::rms_norm(flat, gain.view(), E::from_f64(eps)).map_err(|e| self.error(e))?;
        out.into_shape_with_order(x.raw_dim()).map_err(|e| self.error(e))
    }

    /// x Wᵀ + b, a tile of rows of W at a time; the tiles are independent of each other.
    pub(crate) fn linear(&self, x: ArrayView2<'_, E>, heads: Option<usize>) -> Out<ArrayD<E>> {
        self.linear_by(x.nrows(), heads, |matrix, columns, out| product(x, matrix, columns, out))
    }

    /// The same with another `product` of rows, which fills \[T,out\] from the matrix and the length of its rows.
    pub(crate) fn linear_by(
        &self,
        tokens: usize,
        heads: Option<usize>,
        product: impl FnOnce(&WeightView<'_>, usize, ArrayViewMut2<'_, E>) -> Result<(), OpError>,
    ) -> Out<ArrayD<E>> {
        let (matrix, rows, columns) = self.weight_matrix()?;
        let bias = if self.step.weights.len() > 1 { Some(self.vector(1)?) } else { None };
        if let Some(bias) = &bias
            && bias.len() != rows
        {
            return Err(self.error(format!("the bias has {} elements, the weight {rows} rows", bias.len())));
        }
        let mut out = Array2::zeros((tokens, rows));
        product(&matrix, columns, out.view_mut()).map_err(|e| self.error(e))?;
        if let Some(bias) = &bias {
            out += bias;
        }
        self.split(out, heads)
    }

    /// Splits \[T,H·d\] into \[T,H,d\], if the step has heads.
    fn split(&self, out: Array2<E>, heads: Option<usize>) -> Out<ArrayD<E>> {
        let Some(heads) = heads else { return Ok(out.into_dyn()) };
        let (tokens, width) = (out.nrows(), out.ncols() / heads.max(1));
        out.into_shape_with_order((tokens, heads, width)).map(Array3::into_dyn).map_err(|e| self.error(e))
    }

    pub(crate) fn error(&self, reason: impl ToString) -> ModelError {
        ModelError::Step { tap: self.step.tap, reason: reason.to_string() }
    }

    pub(crate) fn input(&self, at: usize) -> Out<&ArrayViewD<'_, E>> {
        let count = self.inputs.len();
        self.inputs.get(at).ok_or_else(|| self.error(format!("reads at least {} inputs, {count} were given", at + 1)))
    }

    /// Input `at` as \[T,·\], with all axes but the first merged.
    pub(crate) fn matrix(&self, at: usize) -> Out<ArrayView2<'_, E>> {
        let input = self.input(at)?;
        let rows = input.shape().first().copied().unwrap_or(1);
        let columns: usize = input.shape().iter().skip(1).product();
        input.view().into_shape_with_order((rows, columns)).map_err(|e| self.error(e))
    }

    pub(crate) fn cube(&self, at: usize) -> Out<ArrayView3<'_, E>> {
        let input = self.input(at)?.view();
        let shape = input.shape().to_vec();
        input
            .into_dimensionality::<Ix3>()
            .map_err(|_| self.error(format!("input {at} has shape {shape:?}, not 3 axes")))
    }

    pub(crate) fn weight(&self, at: usize) -> Out<WeightView<'_>> {
        let weight = self.step.weights.get(at).ok_or_else(|| self.error(format!("has no weight {at}")))?;
        Ok(self.weights.view(*weight)?.rounded(self.half))
    }

    pub(crate) fn vector(&self, at: usize) -> Out<Array1<E>> {
        let view = self.weight(at)?;
        match view.shape() {
            [_] => Ok(view.vector()),
            other => Err(self.error(format!("weight {at} has shape {other:?}, not 1 axis"))),
        }
    }

    pub(crate) fn weight_matrix(&self) -> Out<(WeightView<'_>, usize, usize)> {
        let view = self.weight(0)?;
        match *view.shape() {
            [rows, columns] => Ok((view, rows, columns)),
            ref other => Err(self.error(format!("the weight has shape {other:?}, not 2 axes"))),
        }
    }
}

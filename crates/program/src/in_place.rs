//! Computes products and lookups with large weights in place: a product reads a tile of rows at a time, and a lookup only its rows.
//!
//! The results are those of the kernels; only less memory is used.

use firstdiff_model::{Storage, WeightView};
use ndarray::ArrayView2;

use crate::program::Operation;
use crate::value::arithmetic::{Arithmetic, Half};
use crate::value::error::EvaluateError;
use crate::value::operand::Operand;
use crate::value::tensor::Tensor;
use crate::value::view::{View, bare};
use crate::workspace::Workspace;

/// How an operation uses a matrix, and the positions of its operands.
struct MatrixUse {
    is_lookup: bool,
    matrix: usize,
    other: usize,
}

/// The operations that read a matrix by rows.
fn matrix_use(name: &str) -> Option<MatrixUse> {
    let usage = |is_lookup, matrix, other| Some(MatrixUse { is_lookup, matrix, other });
    match name {
        "linear" => usage(false, 1, 0),
        "embedding" => usage(true, 0, 1),
        _ => None,
    }
}

impl Workspace<'_> {
    /// The result of an operation on a stored weight matrix; `None` if a kernel must compute it, because the matrix is no whole weight, written to, or rounded.
    ///
    /// # Errors
    /// When another operand cannot be read.
    pub(crate) fn in_place(&mut self, op: &Operation) -> Result<Option<Tensor<'static>>, EvaluateError> {
        let Some(how) = matrix_use(&op.name).filter(|_| op.scalar.is_none()) else { return Ok(None) };
        let operand = |at: usize| match op.operands.get(at) {
            Some(Operand::View(view)) => Some(view),
            _ => None,
        };
        let (Some(matrix), Some(other)) = (operand(how.matrix), operand(how.other)) else { return Ok(None) };
        if !how.is_lookup && self.rounds_activations(op) {
            return Ok(None);
        }
        let bias = operand(2).filter(|_| !how.is_lookup);
        for view in [Some(other), bias].into_iter().flatten() {
            self.load(view)?;
        }
        let Some(stored) = self.stored(matrix) else { return Ok(None) };
        let (x, &[rows, width]) = (self.read(other), stored.shape()) else { return Ok(None) };
        let mut shape = x.shape().to_vec();
        let mut values: Vec<f64> = if how.is_lookup {
            let ids = x.to_ints();
            if !ids.iter().all(|&id| usize::try_from(id).is_ok_and(|id| id < rows)) {
                return Ok(None);
            }
            shape.push(width);
            ids.iter().flat_map(|&id| stored.rows::<f64>(id as usize..id as usize + 1)).collect()
        } else {
            if width == 0 || shape.pop() != Some(width) {
                return Ok(None);
            }
            shape.push(rows);
            let x = x.to_floats();
            let x = ArrayView2::from_shape((x.len() / width, width), &x).ok();
            let Some(product) = x.and_then(|x| stored.product(x).ok()) else { return Ok(None) };
            product.into_raw_vec_and_offset().0
        };
        if let Some(bias) = bias {
            let bias = self.read(bias);
            if bias.shape() != [rows] {
                return Ok(None);
            }
            let bias = bias.to_floats();
            values.chunks_exact_mut(rows.max(1)).for_each(|row| row.iter_mut().zip(&*bias).for_each(|(y, b)| *y += b));
        }
        Ok(Some(Tensor::of(shape, values)))
    }

    /// A view of all of a weight's matrix, as stored.
    fn stored(&self, view: &View) -> Option<WeightView<'_>> {
        let canonical = &self.program.buffers[view.buffer];
        if self.holds(view.buffer) || view.offset != 0 || !view.is_contiguous() || view.dtype != canonical.dtype {
            return None;
        }
        let stored = self.weights.view(self.program.weights.get(&view.buffer)?)?;
        let is_whole = bare(&view.shape) == bare(stored.shape()) && bare(&canonical.shape) == bare(stored.shape());
        (is_whole && stored.shape().len() == 2 && !self.rounds(view.buffer, stored.storage())).then_some(stored)
    }

    /// Whether values of this storage type are rounded when they are loaded into a buffer.
    fn rounds(&self, buffer: usize, storage: Storage) -> bool {
        let is_kept = match (self.buffer_arithmetic(buffer), storage) {
            (Arithmetic::Half(Half::F16), storage) => storage == Storage::F16,
            (Arithmetic::Half(Half::BF16), storage) => storage == Storage::BF16,
            (_, storage) => matches!(storage, Storage::F32 | Storage::F16 | Storage::BF16 | Storage::Block(_)),
        };
        !is_kept
    }
}

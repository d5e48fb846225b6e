//! Holds the values of buffers, and carries out one operation at a time.

use std::sync::Arc;

use firstdiff_model::{Storage, WeightView, ggml_activations, ggml_minima, keep};
use firstdiff_trace::Cache;
use ndarray::{Array2, ArrayD};

use crate::kernels::{self, Arg, Call, Kernel, base_and_overload};
use crate::memory::Memory;
use crate::program::check;
use crate::program::{Operation, Program};
use crate::value::arithmetic::Arithmetic;
use crate::value::dtype::DType;
use crate::value::error::{EvaluateError, KernelError};
use crate::value::operand::Operand;
use crate::value::scalar::Scalar;
use crate::value::tensor::{Tensor, Values};
use crate::value::view::{View, bare};
use crate::weights::Weights;

/// The largest relative difference between a float that the reference gave to Python and the value computed here; the reference computed in f32.
const SAME_FLOAT: f64 = 1e-4;

/// The place of an operand, with that in a list, and its value.
pub(crate) type Replaced<'r> = ((usize, Option<usize>), Tensor<'r>);

/// The values of a program's buffers. A clone shares memory until it is written to.
#[derive(Clone)]
pub(crate) struct Workspace<'a> {
    pub(crate) program: &'a Program,
    arithmetic: Arithmetic,
    pub(crate) weights: &'a dyn Weights,
    memory: Vec<Option<Arc<Memory>>>,
}

impl<'a> Workspace<'a> {
    /// An empty workspace.
    pub(crate) fn new(program: &'a Program, arithmetic: Arithmetic, weights: &'a dyn Weights) -> Workspace<'a> {
        Workspace { program, arithmetic, weights, memory: vec![None; program.buffers.len()] }
    }

    /// An empty workspace for the same program, with `Wide` arithmetic.
    pub(crate) fn wide(&self) -> Workspace<'a> {
        Workspace::new(self.program, Arithmetic::Wide, self.weights)
    }

    /// Carries out an operation, some operands replaced, and stores its results. `number` identifies it in errors.
    ///
    /// # Errors
    /// When it has no kernel, does not fit its operands, or gives Python another value than in the reference.
    pub(crate) fn execute(
        &mut self,
        number: usize,
        op: &Operation,
        kernel: Option<Kernel>,
        others: Vec<Replaced<'_>>,
    ) -> Result<(), EvaluateError> {
        if let Some(misfit) = self.program.misfits.get(&number) {
            return Err(EvaluateError::Unfollowed { op: number, name: op.name.clone(), misfit: misfit.clone() });
        }
        let Some(kernel) = kernel else {
            return Err(EvaluateError::Opaque { op: number, name: op.name.clone() });
        };
        if let Some(result) = if others.is_empty() { self.in_place(op)? } else { None } {
            return self.store(number, op, vec![result]);
        }
        for view in check::operands(op) {
            self.load(view)?;
        }
        let refuse = |error| refused(number, op, error);
        let mut call = self.call(op);
        for ((place, item), value) in others {
            match (call.args.get_mut(place), item) {
                (Some(Arg::List(list)), Some(item)) if item < list.len() => list[item] = Arg::Tensor(value),
                (Some(operand), None) => *operand = Arg::Tensor(value),
                _ => return Err(refuse(KernelError::Absent("the replaced operand"))),
            }
        }
        if self.rounds_activations(op) {
            self.round_activations(op, &mut call).map_err(refuse)?;
        }
        let results = kernel(&call).map_err(refuse)?;
        if let Some(recorded) = &op.scalar {
            return check_scalars(number, recorded, &results);
        }
        self.store(number, op, results)
    }

    /// Whether an operation rounds its activations: as the storage type of its matrix, or of the K/V cache, requires.
    pub(crate) fn rounds_activations(&self, op: &Operation) -> bool {
        match self.arithmetic {
            Arithmetic::Ggml { cache } => {
                op.base() == "linear" || is_of_ggml(op) || cache != Cache::F32 && multiplies_with_cache(op)
            }
            _ => false,
        }
    }

    /// Rounds what ggml's products multiply as they do.
    fn round_activations(&self, op: &Operation, call: &mut Call<'_>) -> Result<(), KernelError> {
        if let Arithmetic::Ggml { cache } = self.arithmetic
            && multiplies_with_cache(op)
        {
            round_with_cache(op, cache, call);
            return Ok(());
        }
        // The matrix is first where the operation is ggml's own.
        let [matrix, x_at] = if op.name.starts_with("ggml.") { [0, 1] } else { [1, 0] };
        let (Some(Operand::View(view)), Some(Arg::Tensor(x))) = (op.operands.get(matrix), call.args.get(x_at)) else {
            return Ok(());
        };
        let weight = self.program.weights.get(&view.buffer).and_then(|name| self.weights.view(name));
        let storage = match view.dtype {
            DType::F16 => Storage::F16,
            DType::BF16 => Storage::BF16,
            _ => weight.map_or(Storage::F32, |weight| weight.storage()),
        };
        let misfit =
            || KernelError::Shape { what: "rows and blocks", left: x.shape.clone(), right: view.shape.clone() };
        let width = x.shape.last().copied().unwrap_or(1).max(1);
        let rows = x.to_floats().iter().map(|&x| x as f32).collect();
        let rows = Array2::from_shape_vec((x.len() / width, width), rows).map_err(|_| misfit())?;
        let rounded = ggml_activations(rows.view(), storage).map_err(|_| misfit())?;
        let mut values = Tensor::of(x.shape.clone(), floats(&rounded.values));
        if let (Some(excess), Some(minima)) = (rounded.excess, weight.and_then(|weight| minima(&weight, view)))
            && let Some(Arg::Tensor(weight)) = call.args.get_mut(matrix)
        {
            values = widened(&values, &floats(&excess), excess.ncols());
            *weight = widened(weight, &minima, excess.ncols());
        }
        call.args[x_at] = Arg::Tensor(values);
        Ok(())
    }

    /// Stores the results of an operation.
    ///
    /// # Errors
    /// When they do not have the shapes of the operation's outputs.
    pub(crate) fn store(
        &mut self,
        number: usize,
        op: &Operation,
        results: Vec<Tensor<'static>>,
    ) -> Result<(), EvaluateError> {
        if op.outputs.len() > results.len() {
            let (results, outputs) = (results.len(), op.outputs.len());
            return Err(refused(number, op, KernelError::Outputs { results, outputs }));
        }
        for (view, result) in op.outputs.iter().zip(results) {
            let Some(view) = view else { continue };
            // One place is not broadcast to several.
            if op.has_open_shape() && result.shape() != view.shape {
                let (left, right) = (result.shape().to_vec(), view.shape.clone());
                return Err(refused(
                    number,
                    op,
                    KernelError::Shape { what: "the places and their output", left, right },
                ));
            }
            // An output may be part of the buffer of a weight or a constant.
            self.load(view)?;
            self.write(view, result).map_err(|error| refused(number, op, error))?;
        }
        Ok(())
    }

    /// Stores values in a view, rounded to the type of its buffer.
    ///
    /// # Errors
    /// When they cannot be broadcast to it.
    pub(crate) fn write(&mut self, view: &View, values: Tensor<'_>) -> Result<(), KernelError> {
        let arithmetic = self.buffer_arithmetic(view.buffer);
        let (dtype, size) = (self.program.buffers[view.buffer].dtype, self.program.sizes[view.buffer]);
        let memory = self.memory[view.buffer].get_or_insert_with(|| Arc::new(Memory::zeros(dtype, size)));
        Arc::make_mut(memory).write(view, values, arithmetic)
    }

    /// Loads the values of a weight, a constant or an input, if not in memory.
    ///
    /// # Errors
    /// When a weight cannot be read, or has another shape.
    pub(crate) fn load(&mut self, view: &View) -> Result<(), EvaluateError> {
        let buffer = view.buffer;
        if self.memory[buffer].is_some() {
            return Ok(());
        }
        let canonical = &self.program.buffers[buffer];
        let name = self.program.weights.get(&buffer);
        let tensor = match (name, self.program.given.get(&buffer)) {
            (Some(name), _) => self.weights.read(name)?,
            (None, Some(tensor)) => tensor.view(),
            (None, None) => return Ok(()),
        };
        let found = tensor.shape.clone();
        let mismatch = || EvaluateError::WeightShape {
            name: name.cloned().unwrap_or_default(),
            expected: canonical.shape.clone(),
            found: found.clone(),
        };
        if bare(&found) != bare(&canonical.shape) {
            return Err(mismatch());
        }
        let mut memory = Memory::zeros(canonical.dtype, self.program.sizes[buffer]);
        memory.write(canonical, tensor, self.buffer_arithmetic(buffer)).map_err(|_| mismatch())?;
        self.memory[buffer] = Some(Arc::new(memory));
        Ok(())
    }

    /// The values of a view. Every buffer was written before; one that was freed is not read any more.
    pub(crate) fn read(&self, view: &View) -> Tensor<'_> {
        match &self.memory[view.buffer] {
            Some(memory) => memory.read(view),
            None => Memory::zeros(view.dtype, 0)
                .read(&View { shape: vec![0], strides: vec![1], offset: 0, ..view.clone() })
                .into_owned(),
        }
    }

    /// Takes a buffer as another workspace of the program has it.
    pub(crate) fn begin_as(&mut self, buffer: usize, other: &Workspace<'_>) {
        self.memory[buffer] = other.memory[buffer].clone();
    }

    /// Frees a buffer's memory.
    pub(crate) fn free(&mut self, buffer: usize) {
        self.memory[buffer] = None;
    }

    /// Whether a buffer is in memory.
    pub(crate) fn holds(&self, buffer: usize) -> bool {
        self.memory[buffer].is_some()
    }

    /// Number of buffers in memory.
    pub(crate) fn held(&self) -> usize {
        self.memory.iter().flatten().count()
    }

    /// The arithmetic of a buffer: in a 16-bit run, weights and activations have 16 bits, but positions, masks and row statistics do not.
    pub(crate) fn buffer_arithmetic(&self, buffer: usize) -> Arithmetic {
        match self.arithmetic {
            Arithmetic::Half(_) if !self.program.flow.has_16_bits(buffer) => Arithmetic::F32,
            own => own,
        }
    }

    fn call<'s>(&'s self, op: &'s Operation) -> Call<'s> {
        Call { outputs: op.outputs.iter().map(Option::as_ref).collect(), ..call(op, &mut |view| self.read(view)) }
    }
}

/// The value of a view.
type ReadView<'r, 's> = dyn FnMut(&'s View) -> Tensor<'s> + 'r;

/// An operation with the values of what it reads, which `read` gives in the order of [`check::operands`]; without its outputs.
pub(crate) fn call<'s>(op: &'s Operation, read: &mut ReadView<'_, 's>) -> Call<'s> {
    fn argument<'s>(operand: &'s Operand, read: &mut ReadView<'_, 's>) -> Arg<'s> {
        match operand {
            Operand::View(view) => Arg::Tensor(read(view)),
            Operand::Scalar(scalar) => Arg::Scalar(scalar),
            Operand::DType(dtype) => Arg::DType(*dtype),
            Operand::None => Arg::None,
            Operand::List(list) => Arg::List(list.iter().map(|operand| argument(operand, read)).collect()),
        }
    }
    let (name, overload) = base_and_overload(&op.name);
    let args = op.operands.iter().map(|operand| argument(operand, read)).collect();
    let named = op.keywords.iter().map(|(key, operand)| (key.as_str(), argument(operand, read))).collect();
    Call { name, overload, args, named, outputs: Vec::new() }
}

/// The kernel of an operation.
pub(crate) fn kernel(op: &Operation) -> Option<Kernel> {
    kernels::find(&op.name)
}

fn refused(number: usize, op: &Operation, error: KernelError) -> EvaluateError {
    EvaluateError::Kernel { op: number, name: op.name.clone(), error }
}

/// Checks that the values given to Python are the recorded ones.
fn check_scalars(op: usize, recorded: &[Scalar], results: &[Tensor<'_>]) -> Result<(), EvaluateError> {
    let found: Vec<Scalar> = match results.first().map(Tensor::values) {
        Some(Values::Int(x)) => x.iter().map(|&x| Scalar::Int(x)).collect(),
        Some(Values::Float(x)) => x.iter().map(|&x| Scalar::Float(x)).collect(),
        _ => Vec::new(),
    };
    let none = || Scalar::Text("nothing".into());
    for i in 0..recorded.len().max(found.len()) {
        let (recorded, found) =
            (recorded.get(i).cloned().unwrap_or_else(none), found.get(i).cloned().unwrap_or_else(none));
        if !scalars_match(&recorded, &found) {
            return Err(EvaluateError::OtherPath { op, recorded, found });
        }
    }
    Ok(())
}

fn scalars_match(recorded: &Scalar, found: &Scalar) -> bool {
    match (recorded, found) {
        (Scalar::Bool(x), Scalar::Int(y)) => *x == (*y != 0),
        (Scalar::Bool(x), Scalar::Float(y)) => *x == (*y != 0.0),
        (Scalar::Int(x), Scalar::Int(y)) => x == y,
        (Scalar::Int(x), Scalar::Float(y)) => floats_match(*x as f64, *y),
        (Scalar::Float(x), Scalar::Float(y)) => floats_match(*x, *y),
        (Scalar::Float(x), Scalar::Int(y)) => *x == *y as f64,
        _ => false,
    }
}

fn floats_match(x: f64, y: f64) -> bool {
    x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= SAME_FLOAT * x.abs().max(y.abs())
}

fn floats(rows: &Array2<f32>) -> Vec<f64> {
    rows.iter().map(|&x| f64::from(x)).collect()
}

/// The minima of the blocks that a view of a weight reads; `None` where its type has none, or the view is no whole blocks.
fn minima(weight: &WeightView<'_>, view: &View) -> Option<Vec<f64>> {
    let all = ggml_minima(weight).filter(|_| view.is_contiguous())?;
    let block = weight.storage().block_len();
    let (from, len) = (view.offset / block, view.shape.iter().product::<usize>() / block);
    Some(all.get(from..from + len)?.iter().map(|&x| f64::from(x)).collect())
}

/// A tensor whose rows are continued: by `more` numbers each.
fn widened(x: &Tensor<'_>, rows: &[f64], more: usize) -> Tensor<'static> {
    let (width, mut shape) = (x.shape.last().copied().unwrap_or(1).max(1), x.shape.clone());
    if let Some(last) = shape.last_mut() {
        *last += more;
    }
    let values = x.to_floats();
    let rows = values.chunks_exact(width).zip(rows.chunks_exact(more.max(1)));
    Tensor::of(shape, rows.flat_map(|(row, more)| [row, more].concat()).collect::<Vec<f64>>())
}

/// Whether an operation multiplies two activations, as queries with keys and probabilities with values.
fn multiplies_with_cache(op: &Operation) -> bool {
    matches!(op.base(), "matmul" | "bmm") && !is_of_ggml(op)
}

/// Whether ggml itself multiplies, with a matrix or a cache of a known type.
fn is_of_ggml(op: &Operation) -> bool {
    matches!(op.node.as_deref(), Some("MUL_MAT" | "MUL_MAT_ID"))
}

/// Rounds what is multiplied with keys or values, and these, to the type of their cache. Blocks lie along a head: probabilities have none, and keys and values
/// were rounded where they were kept.
fn round_with_cache(op: &Operation, cache: Cache, call: &mut Call<'_>) {
    let is_in_blocks = cache == Cache::Q8_0;
    // Keys stand with their heads as columns.
    let are_keys = matches!(op.operands.get(1), Some(Operand::View(keys)) if keys.strides.last() != Some(&1));
    for place in 0..2 {
        if let Some(Arg::Tensor(x)) = call.args.get_mut(place)
            && (!is_in_blocks || are_keys && place == 0)
            && let Ok(mut rows) = ArrayD::from_shape_vec(x.shape.as_slice(), x.to_floats().into_owned())
        {
            keep(cache, &mut rows);
            *x = Tensor::of(x.shape.clone(), rows.into_raw_vec_and_offset().0);
        }
    }
}

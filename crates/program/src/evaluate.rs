//! Carrying a program out, step by step.

use firstdiff_model::{Storage, ggml_activations};
use ndarray::Array2;

use crate::kernels::{self, Arg, Call, Kernel};
use crate::memory::Memory;
use crate::program::check;
use crate::program::{Operation, Program};
use crate::value::arithmetic::Arithmetic;
use crate::value::dtype::DType;
use crate::value::error::{EvaluateError, KernelError};
use crate::value::operand::{Operand, Scalar};
use crate::value::tensor::{Tensor, Values};
use crate::value::view::View;
use crate::weights::Weights;

/// The value of a tap.
#[derive(Debug)]
pub struct TapValue<'a> {
    /// Name of the tap.
    pub tap: &'a str,
    /// The step.
    pub step: usize,
    /// The operation after which it is read.
    pub op: usize,
    /// Its values, in the tap's own axes.
    pub value: Tensor<'a>,
}

/// Operations within which a weight that is needed again is kept.
const KEPT_FOR: usize = 64;

/// How far apart a float that the reference gave to Python and the value found here may be, relatively: it was computed in f32.
const SAME_FLOAT: f64 = 1e-4;

/// Evaluates a program. A buffer is freed when nothing reads it any more, and a weight soon after it is used.
pub struct Evaluator<'a> {
    program: &'a Program,
    arithmetic: Arithmetic,
    weights: &'a dyn Weights,
    memory: Vec<Option<Memory>>,
    kernels: Vec<Option<Kernel>>,
    /// Indexes of taps, by operation.
    taps: Vec<Vec<usize>>,
    /// Buffers that nothing reads after an operation.
    releases: Vec<Vec<usize>>,
    /// For each operation and each weight that it reads and that can be read anew: the next operation that does.
    next_use: Vec<Vec<(usize, Option<usize>)>>,
    next_op: usize,
    next_step: usize,
}

impl<'a> Evaluator<'a> {
    /// An evaluator before the first step.
    pub fn new(program: &'a Program, arithmetic: Arithmetic, weights: &'a dyn Weights) -> Evaluator<'a> {
        let mut taps = vec![Vec::new(); program.ops.len()];
        program.taps.iter().enumerate().for_each(|(number, tap)| taps[tap.op].push(number));
        let kernels = program.ops.iter().map(|op| kernels::find(&op.name)).collect();
        let memory = program.buffers.iter().map(|_| None).collect();
        Evaluator {
            program,
            arithmetic,
            weights,
            memory,
            kernels,
            taps,
            releases: check::releases(program),
            next_use: next_use(program),
            next_op: 0,
            next_step: 0,
        }
    }

    /// Evaluates the next step, and returns the model's main output. `tap` is given each tap right after its operation.
    ///
    /// Operations between two steps are evaluated with the later one.
    ///
    /// # Errors
    /// When `step` is not the next, an operation has no kernel or does not fit its operands, a weight cannot be read, or the reference took
    /// another path.
    pub fn run_step(
        &mut self,
        step: usize,
        tap: &mut dyn FnMut(TapValue<'_>),
    ) -> Result<Option<Tensor<'static>>, EvaluateError> {
        let program = self.program;
        let Some(record) = program.steps.get(step).filter(|_| step == self.next_step) else {
            return Err(EvaluateError::Step { step, next: self.next_step, count: program.steps.len() });
        };
        while self.next_op < record.ops.end {
            let op = self.next_op;
            self.evaluate(op)?;
            for &number in &self.taps[op] {
                let found = &program.taps[number];
                load(&mut self.memory, program, self.weights, self.arithmetic, &found.view)?;
                let value = read(&self.memory, &found.view);
                tap(TapValue { tap: &found.tap, step, op, value });
            }
            // The output of the step is read after its last operation.
            if op + 1 < record.ops.end {
                self.release(op);
            }
            self.next_op += 1;
        }
        self.next_step += 1;
        let mut output = None;
        if let Some(view) = &record.output {
            load(&mut self.memory, program, self.weights, self.arithmetic, view)?;
            output = Some(read(&self.memory, view).into_owned());
        }
        if let Some(last) = record.ops.end.checked_sub(1).filter(|_| !record.ops.is_empty()) {
            self.release(last);
        }
        Ok(output)
    }

    fn evaluate(&mut self, number: usize) -> Result<(), EvaluateError> {
        let program = self.program;
        let op = &program.ops[number];
        let Some(kernel) = self.kernels[number] else {
            return Err(EvaluateError::Opaque { op: number, name: op.name.clone() });
        };
        for view in check::operands(op) {
            load(&mut self.memory, program, self.weights, self.arithmetic, view)?;
        }
        let fail = |error| EvaluateError::Kernel { op: number, name: op.name.clone(), error };
        let mut call = call(&self.memory, op);
        if self.arithmetic == Arithmetic::Ggml {
            self.round_activations(op, &mut call).map_err(fail)?;
        }
        let results = kernel(&call).map_err(fail)?;
        if let Some(recorded) = &op.scalar {
            return same(number, recorded, &results);
        }
        if op.outputs.len() > results.len() {
            let (results, outputs) = (results.len(), op.outputs.len());
            return Err(fail(KernelError::Outputs { results, outputs }));
        }
        for (view, result) in op.outputs.iter().zip(results) {
            let Some(view) = view else { continue };
            let (dtype, size) = (program.buffers[view.buffer].dtype, program.sizes[view.buffer]);
            // An output may be part of a weight's or a constant's buffer.
            load(&mut self.memory, program, self.weights, self.arithmetic, view)?;
            let memory = self.memory[view.buffer].get_or_insert_with(|| Memory::zeros(dtype, size));
            memory.write(view, result, self.arithmetic).map_err(fail)?;
        }
        Ok(())
    }

    /// The second operand of ggml's products as it is multiplied with the first.
    fn round_activations(&self, op: &Operation, call: &mut Call<'_>) -> Result<(), KernelError> {
        let is_product = matches!(op.name.as_str(), "ggml.MUL_MAT" | "ggml.MUL_MAT_ID");
        let (Some(Operand::View(matrix)), [_, Arg::Tensor(x), ..], true) =
            (op.operands.first(), call.args.as_mut_slice(), is_product)
        else {
            return Ok(());
        };
        let weight = self.program.weights.get(&matrix.buffer).and_then(|name| self.weights.storage(name));
        let storage = match matrix.dtype {
            DType::F16 => Storage::F16,
            DType::BF16 => Storage::BF16,
            _ => weight.unwrap_or(Storage::F32),
        };
        let misfit =
            || KernelError::Shape { what: "rows and blocks", left: x.shape.clone(), right: matrix.shape.clone() };
        let width = x.shape.last().copied().unwrap_or(1).max(1);
        let rows = x.to_floats().iter().map(|&x| x as f32).collect();
        let rows = Array2::from_shape_vec((x.len() / width, width), rows).map_err(|_| misfit())?;
        let rounded = ggml_activations(rows.view(), storage).map_err(|_| misfit())?;
        let values: Vec<f64> = rounded.iter().map(|&x| f64::from(x)).collect();
        *x = Tensor::of(x.shape.clone(), values);
        Ok(())
    }

    fn release(&mut self, op: usize) {
        for &buffer in &self.releases[op] {
            self.memory[buffer] = None;
        }
        for &(buffer, next) in &self.next_use[op] {
            if next.is_none_or(|next| next > op + KEPT_FOR) {
                self.memory[buffer] = None;
            }
        }
    }
}

impl std::fmt::Debug for Evaluator<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let held = self.memory.iter().flatten().count();
        f.debug_struct("Evaluator").field("next_step", &self.next_step).field("held", &held).finish_non_exhaustive()
    }
}

/// Puts the values of a weight, a constant or an input into memory, if they are not there.
fn load(
    memory: &mut [Option<Memory>],
    program: &Program,
    weights: &dyn Weights,
    arithmetic: Arithmetic,
    view: &View,
) -> Result<(), EvaluateError> {
    let buffer = view.buffer;
    if memory[buffer].is_some() {
        return Ok(());
    }
    let canonical = &program.buffers[buffer];
    let name = program.weights.get(&buffer);
    let tensor = match (name, program.given.get(&buffer)) {
        (Some(name), _) => weights.read(name)?,
        (None, Some(tensor)) => tensor.borrowed(),
        (None, None) => return Ok(()),
    };
    let found = tensor.shape.clone();
    let mismatch = || EvaluateError::WeightShape {
        name: name.cloned().unwrap_or_default(),
        expected: canonical.shape.clone(),
        found: found.clone(),
    };
    // A file may list axes of one element in front that the program leaves out.
    let bare = |shape: &[usize]| shape[shape.iter().take_while(|&&extent| extent == 1).count()..].to_vec();
    if bare(&found) != bare(&canonical.shape) {
        return Err(mismatch());
    }
    let mut zeros = Memory::zeros(canonical.dtype, program.sizes[buffer]);
    zeros.write(canonical, tensor, arithmetic).map_err(|_| mismatch())?;
    memory[buffer] = Some(zeros);
    Ok(())
}

/// The values of a view. Every buffer was written before; one that was freed has no reader.
fn read<'a>(memory: &'a [Option<Memory>], view: &View) -> Tensor<'a> {
    match &memory[view.buffer] {
        Some(memory) => memory.read(view),
        None => Memory::zeros(view.dtype, 0)
            .read(&View { shape: vec![0], strides: vec![1], offset: 0, ..view.clone() })
            .into_owned(),
    }
}

fn call<'a>(memory: &'a [Option<Memory>], op: &'a Operation) -> Call<'a> {
    let (base, overload) = op.name.split_once('.').unwrap_or((&op.name, ""));
    Call {
        name: base,
        overload,
        args: op.operands.iter().map(|operand| argument(memory, operand)).collect(),
        named: op.keywords.iter().map(|(key, operand)| (key.as_str(), argument(memory, operand))).collect(),
        outputs: op.outputs.iter().map(Option::as_ref).collect(),
    }
}

fn argument<'a>(memory: &'a [Option<Memory>], operand: &'a Operand) -> Arg<'a> {
    match operand {
        Operand::View(view) => Arg::Tensor(read(memory, view)),
        Operand::Scalar(scalar) => Arg::Scalar(scalar),
        Operand::DType(dtype) => Arg::DType(*dtype),
        Operand::None => Arg::None,
        Operand::List(list) => Arg::List(list.iter().map(|operand| argument(memory, operand)).collect()),
    }
}

/// Whether the reference went on with the values that are found here.
fn same(op: usize, recorded: &[Scalar], results: &[Tensor<'_>]) -> Result<(), EvaluateError> {
    let found: Vec<Scalar> = match results.first().map(Tensor::values) {
        Some(Values::Int(x)) => x.iter().map(|&x| Scalar::Int(x)).collect(),
        Some(Values::Float(x)) => x.iter().map(|&x| Scalar::Float(x)).collect(),
        _ => Vec::new(),
    };
    let none = || Scalar::Text("nothing".into());
    for i in 0..recorded.len().max(found.len()) {
        let (recorded, found) =
            (recorded.get(i).cloned().unwrap_or_else(none), found.get(i).cloned().unwrap_or_else(none));
        if !agree(&recorded, &found) {
            return Err(EvaluateError::OtherPath { op, recorded, found });
        }
    }
    Ok(())
}

fn agree(recorded: &Scalar, found: &Scalar) -> bool {
    match (recorded, found) {
        (Scalar::Bool(x), Scalar::Int(y)) => *x == (*y != 0),
        (Scalar::Bool(x), Scalar::Float(y)) => *x == (*y != 0.0),
        (Scalar::Int(x), Scalar::Int(y)) => x == y,
        (Scalar::Int(x), Scalar::Float(y)) => near(*x as f64, *y),
        (Scalar::Float(x), Scalar::Float(y)) => near(*x, *y),
        (Scalar::Float(x), Scalar::Int(y)) => *x == *y as f64,
        _ => false,
    }
}

fn near(x: f64, y: f64) -> bool {
    x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= SAME_FLOAT * x.abs().max(y.abs())
}

/// For each operation the weights that it reads, and which operation is the next to read each. Weights that are written are left out.
fn next_use(program: &Program) -> Vec<Vec<(usize, Option<usize>)>> {
    let mut plain: Vec<bool> = (0..program.buffers.len()).map(|buffer| program.weights.contains_key(&buffer)).collect();
    program.ops.iter().flat_map(|op| op.outputs.iter().flatten()).for_each(|view| plain[view.buffer] = false);
    let mut later = vec![None; program.buffers.len()];
    let mut out = vec![Vec::new(); program.ops.len()];
    for (number, op) in program.ops.iter().enumerate().rev() {
        for view in check::operands(op).filter(|view| plain[view.buffer]) {
            if later[view.buffer] != Some(number) {
                out[number].push((view.buffer, later[view.buffer]));
                later[view.buffer] = Some(number);
            }
        }
    }
    out
}

//! Defines a recorded program that was read and checked: operations, buffers, weights, steps and taps.

pub(crate) mod check;
pub(crate) mod flow;
mod format;
mod lower;
mod parts;
mod plan;
pub(crate) mod read;
mod stored;
mod work;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::kernels::{self, base_and_overload};
use crate::program::flow::DataFlow;
use crate::value::dtype::DType;
use crate::value::error::{Misfit, ProgramError};
use crate::value::operand::Operand;
use crate::value::scalar::Scalar;
use crate::value::tensor::Tensor;
use crate::value::view::View;
use crate::weights::Weights;

/// Limits on the memory of a program.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most numbers in memory at a time, without weights, and the most numbers of one view.
    pub elements: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { elements: 1 << 32 }
    }
}

/// One operation.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Name of the aten operation, with its overload: `add.Tensor`; of a ggml operation that has no equal there: `ggml.MUL_MAT_ID`.
    pub name: String,
    /// Positional operands, in the order of PyTorch's schema.
    pub operands: Vec<Operand>,
    /// Operands by keyword.
    pub keywords: Vec<(String, Operand)>,
    /// The views that results are stored in; `None` where the operation gave none.
    pub outputs: Vec<Option<View>>,
    /// Indices of the `operands` that are written in place.
    pub written: Vec<usize>,
    /// The value that the operation gave to Python.
    pub scalar: Option<Vec<Scalar>>,
    /// Index of its scope.
    pub scope: Option<usize>,
    /// Line in the scope's file.
    pub line: Option<usize>,
    /// The operation of ggml that it is, or is a part of: `MUL_MAT`.
    pub node: Option<String>,
}

impl Operation {
    /// The name without the overload: `add_` of `add_.Tensor`; of ggml's own the whole name.
    pub fn base(&self) -> &str {
        if self.name.starts_with("ggml.") { &self.name } else { base_and_overload(&self.name).0 }
    }

    /// All views that it reads, in the order of its operands and keywords.
    pub fn reads(&self) -> impl Iterator<Item = &View> {
        check::operands(self)
    }

    /// Whether the extents of its results depend on values, such as the indices where a condition holds.
    pub(crate) fn has_open_shape(&self) -> bool {
        let is_mask = |operand: &Operand| operand.views().iter().any(|view| view.dtype == DType::Bool);
        match self.base() {
            "nonzero" => true,
            "where" => self.operands.len() == 1,
            "index" => self.operands.get(1).is_some_and(is_mask),
            _ => false,
        }
    }

    /// The buffers that it creates; buffers that it only writes into are left out.
    pub(crate) fn created_buffers(&self) -> impl Iterator<Item = usize> {
        let outputs = self.outputs.iter().flatten().map(|view| view.buffer);
        outputs.filter(|_| self.written.is_empty())
    }

    /// All views that it reads, mutable; in the order of [`check::operands`].
    pub(crate) fn operands_mut(&mut self) -> impl Iterator<Item = &mut View> {
        let named = self.keywords.iter_mut().map(|(_, operand)| operand);
        self.operands.iter_mut().chain(named).flat_map(Operand::views_mut)
    }

    /// All of its views, mutable.
    pub(crate) fn views_mut(&mut self) -> impl Iterator<Item = &mut View> {
        let named = self.keywords.iter_mut().map(|(_, operand)| operand);
        let read = self.operands.iter_mut().chain(named).flat_map(Operand::views_mut);
        read.chain(self.outputs.iter_mut().flatten())
    }
}

/// The place in the reference's code where an operation was called.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Path of the module.
    pub module: String,
    /// Functions inside it, outermost first.
    pub functions: Vec<String>,
    /// Index of the file.
    pub file: Option<usize>,
}

/// One forward pass.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its operations.
    pub ops: Range<usize>,
    /// Number of tokens.
    pub tokens: usize,
    /// The model's main output.
    pub output: Option<View>,
}

/// A named value.
#[derive(Clone, Debug)]
pub struct ProgramTap {
    /// Its name.
    pub tap: String,
    /// Its step.
    pub step: usize,
    /// The operation after which it is read.
    pub op: usize,
    /// Its elements, in the tap's own axes.
    pub view: View,
}

/// A recorded program.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) source: String,
    pub(crate) model: String,
    pub(crate) folder: Option<PathBuf>,
    pub(crate) weights: BTreeMap<usize, String>,
    pub(crate) inputs: BTreeMap<usize, String>,
    /// Values of constants and inputs.
    pub(crate) given: HashMap<usize, Tensor<'static>>,
    /// The canonical view of each buffer.
    pub(crate) buffers: Vec<View>,
    /// The size of each buffer in numbers.
    pub(crate) sizes: Vec<usize>,
    pub(crate) ops: Vec<Operation>,
    pub(crate) steps: Vec<Step>,
    pub(crate) taps: Vec<ProgramTap>,
    /// For each operation, the taps that are read after it.
    pub(crate) taps_after: Vec<Vec<usize>>,
    pub(crate) files: Vec<String>,
    pub(crate) scopes: Vec<Scope>,
    pub(crate) flow: DataFlow,
    /// The operations that could not be rewritten for other choices of experts, and why.
    pub(crate) misfits: BTreeMap<usize, Misfit>,
    /// The peak of numbers in memory, without weights.
    pub(crate) needed: u64,
    /// Size of the files beside it, in bytes.
    pub(crate) recorded: u64,
}

/// What a program is made of, before anything is known of how its values flow.
#[derive(Default)]
pub(crate) struct Parts {
    pub(crate) source: String,
    pub(crate) model: String,
    pub(crate) folder: Option<PathBuf>,
    pub(crate) weights: BTreeMap<usize, String>,
    pub(crate) inputs: BTreeMap<usize, String>,
    pub(crate) given: HashMap<usize, Tensor<'static>>,
    pub(crate) buffers: Vec<View>,
    pub(crate) ops: Vec<Operation>,
    pub(crate) steps: Vec<Step>,
    pub(crate) taps: Vec<ProgramTap>,
    pub(crate) files: Vec<String>,
    pub(crate) scopes: Vec<Scope>,
}

impl Parts {
    /// The program, with how its values flow, and the memory that it takes.
    pub(crate) fn program(self) -> Program {
        let Parts { source, model, folder, weights, inputs, given, buffers, ops, steps, taps, files, scopes } = self;
        let sizes = check::sizes(&buffers, &ops, &steps, &taps);
        let taps_after = check::taps_after(&taps, ops.len());
        let flow = DataFlow::analyse(&buffers, &ops, &scopes, &weights, &inputs);
        let (misfits, needed, recorded) = (BTreeMap::new(), 0, 0);
        let mut program = Program {
            source,
            model,
            folder,
            weights,
            inputs,
            given,
            buffers,
            sizes,
            ops,
            steps,
            taps,
            taps_after,
            files,
            scopes,
            flow,
            misfits,
            needed,
            recorded,
        };
        program.needed = check::memory(&program);
        program
    }
}

/// How many numbers any program may hold at a time: 2 GiB.
const BASE_LIMIT: u64 = 1 << 28;

/// How many more for each element of a weight. For a model of 270 M, logits of 4096 tokens take four numbers an element, and are copied once.
const PER_WEIGHT_ELEMENT: u64 = 8;

/// How many more for each byte of the recording.
const PER_BYTE: u64 = 2;

/// Names of inputs that hold positions, distances of positions, or which of them are wanted, in PyTorch and llama.cpp.
const POSITION_INPUTS: [&str; 6] =
    ["position_ids", "cache_position", "inp_pos", "pos_bucket_enc", "pos_bucket_dec", "out_ids"];
/// The name of the input that holds token types.
const TYPE_INPUT: &str = "token_type_ids";

impl Program {
    /// Refuses a program that needs far more memory than the size of its recording and of its weights justifies: a file of a few kilobytes could ask for
    /// all memory of a machine.
    ///
    /// # Errors
    /// When it does.
    pub fn check_memory(&self, weights: &dyn Weights) -> Result<(), ProgramError> {
        let names: BTreeSet<&String> = self.weights.values().collect();
        let elements =
            |name: &&String| weights.view(name).map_or(0, |view| view.shape().iter().product::<usize>() as u64);
        let of_weights = names.iter().map(elements).fold(0, u64::saturating_add).saturating_mul(PER_WEIGHT_ELEMENT);
        let of_files = self.recorded.saturating_mul(PER_BYTE);
        check::within(self.needed, BASE_LIMIT.saturating_add(of_weights).saturating_add(of_files))
    }

    /// The software that recorded it.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The model's class.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The folder of the model's files, if the recording gives it.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Names of the weights, by buffer.
    pub fn weights(&self) -> &BTreeMap<usize, String> {
        &self.weights
    }

    /// Names of the inputs, by buffer.
    pub fn inputs(&self) -> &BTreeMap<usize, String> {
        &self.inputs
    }

    /// Whether a buffer is an input that may hold token ids; inputs named as positions or token types are excluded.
    pub fn is_token_input(&self, buffer: usize) -> bool {
        self.input(buffer).is_some_and(|name| !POSITION_INPUTS.contains(&name) && name != TYPE_INPUT)
    }

    /// Whether a buffer is an input of token types: which of two texts each token is of.
    pub fn is_type_input(&self, buffer: usize) -> bool {
        self.input(buffer) == Some(TYPE_INPUT)
    }

    /// The name of an input.
    fn input(&self, buffer: usize) -> Option<&str> {
        self.inputs.get(&buffer).and_then(|name| name.split('@').next())
    }

    /// The canonical view of each buffer.
    pub fn buffers(&self) -> &[View] {
        &self.buffers
    }

    /// The operations, in order.
    pub fn ops(&self) -> &[Operation] {
        &self.ops
    }

    /// The forward passes, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The taps, in the order of the file.
    pub fn taps(&self) -> &[ProgramTap] {
        &self.taps
    }

    /// Files of the reference's code.
    pub fn files(&self) -> &[String] {
        &self.files
    }

    /// Scopes of the operations.
    pub fn scopes(&self) -> &[Scope] {
        &self.scopes
    }

    /// The value of a one-element view of a constant.
    pub fn constant(&self, view: &View) -> Option<f64> {
        let tensor = self.given.get(&view.buffer).filter(|tensor| tensor.len() == 1 && view.elements() == 1)?;
        (!self.inputs.contains_key(&view.buffer)).then(|| tensor.to_floats()[0])
    }

    /// Whether a buffer depends on both weights and the model's input; positions, masks and tables do not.
    pub fn is_activation(&self, buffer: usize) -> bool {
        self.flow.is_activation(buffer)
    }

    /// Whether a view is a table that depends on no activation, and is no weight: positions, masks.
    pub fn is_table(&self, view: &View) -> bool {
        !self.is_activation(view.buffer) && !self.weights.contains_key(&view.buffer) && view.elements() > 1
    }

    /// The class of an operation: the same line of code, in every layer and step.
    pub fn class(&self, op: usize) -> usize {
        self.flow.class(op)
    }

    /// The operation that wrote a buffer last before `op` reads it; `None` for a weight, a constant or an input.
    pub fn writer(&self, op: usize, buffer: usize) -> Option<usize> {
        self.flow.writer(op, buffer)
    }

    /// The operations that read the output of `op`.
    pub fn readers(&self, op: usize) -> &[usize] {
        self.flow.readers(op)
    }

    /// An operation in words: `linear (modeling_gemma3.py:233)`; for ggml with the name of its node: `MUL_MAT (Qcur-0)`.
    pub fn said(&self, op: usize) -> String {
        let found = &self.ops[op];
        let scope = found.scope.map(|scope| &self.scopes[scope]);
        if let Some(name) = &found.node {
            // A step of a Plan is known by its tap.
            let node = scope.filter(|scope| scope.functions.is_empty());
            return node.map_or_else(|| name.clone(), |node| format!("{name} ({})", node.module));
        }
        let file = scope.and_then(|scope| self.files.get(scope.file?));
        let (base, file) = (found.base(), file.map(|file| file.rsplit('/').next().unwrap_or_default()));
        match (file, found.line) {
            (Some(file), Some(line)) => format!("{base} ({file}:{line})"),
            _ => base.to_owned(),
        }
    }

    /// Whether two operations are one line of code, in whichever modules it runs.
    pub fn is_one_line(&self, a: usize, b: usize) -> bool {
        let line = |op: usize| {
            let found = &self.ops[op];
            Some((self.scopes[found.scope?].file?, found.line?, found.base()))
        };
        self.class(a) == self.class(b) || line(a).is_some_and(|of| line(b) == Some(of))
    }

    /// Whether the line of code of an operation, or its node in a graph, is known: a step of a Plan is in no file.
    pub fn is_placed(&self, op: usize) -> bool {
        let found = &self.ops[op];
        let is_of_a_plan = || found.scope.is_some_and(|scope| !self.scopes[scope].functions.is_empty());
        found.line.is_some() || found.node.is_some() && !is_of_a_plan()
    }

    /// Names of the operations without a kernel, and how often each occurs.
    pub fn unsupported(&self) -> BTreeMap<&str, usize> {
        let mut names = BTreeMap::new();
        for op in self.ops.iter().filter(|op| kernels::find(&op.name).is_none()) {
            *names.entry(op.name.as_str()).or_insert(0) += 1;
        }
        names
    }
}

//! A program as it was read and checked.

pub(crate) mod check;
mod format;
pub(crate) mod read;
mod stored;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::kernels;
use crate::value::operand::{Operand, Scalar};
use crate::value::tensor::Tensor;
use crate::value::view::View;

/// What a program may ask of the machine.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most numbers that are held at a time, weights not counted, and most numbers of one view.
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
    /// Name of the aten operation, with its overload: `add.Tensor`; of ggml's: `ggml.MUL_MAT`.
    pub name: String,
    /// Positional operands, in the order of PyTorch's schema.
    pub operands: Vec<Operand>,
    /// Operands by keyword.
    pub keywords: Vec<(String, Operand)>,
    /// Where results go; `None` where the operation gave none.
    pub outputs: Vec<Option<View>>,
    /// Which of `operands` are written in place.
    pub written: Vec<usize>,
    /// The value that the operation gave to Python.
    pub scalar: Option<Vec<Scalar>>,
    /// Index of its scope.
    pub scope: Option<usize>,
    /// Line in the scope's file.
    pub line: Option<usize>,
}

/// Where in the reference's code an operation was called.
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
    /// The step that it is of.
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
    pub(crate) weights: BTreeMap<usize, String>,
    pub(crate) inputs: BTreeMap<usize, String>,
    /// Values of constants and inputs.
    pub(crate) given: HashMap<usize, Tensor<'static>>,
    /// The canonical view of each buffer.
    pub(crate) buffers: Vec<View>,
    /// How many numbers each buffer holds.
    pub(crate) sizes: Vec<usize>,
    pub(crate) ops: Vec<Operation>,
    pub(crate) steps: Vec<Step>,
    pub(crate) taps: Vec<ProgramTap>,
    pub(crate) files: Vec<String>,
    pub(crate) scopes: Vec<Scope>,
}

impl Program {
    /// What it was recorded with.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Class of the model.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Names of the weights, by buffer.
    pub fn weights(&self) -> &BTreeMap<usize, String> {
        &self.weights
    }

    /// Names of the inputs, by buffer.
    pub fn inputs(&self) -> &BTreeMap<usize, String> {
        &self.inputs
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

    /// Names of the operations that no kernel knows, and how many there are of each.
    pub fn opaque(&self) -> BTreeMap<&str, usize> {
        let mut names = BTreeMap::new();
        for op in self.ops.iter().filter(|op| kernels::find(&op.name).is_none()) {
            *names.entry(op.name.as_str()).or_insert(0) += 1;
        }
        names
    }
}

//! Defines the errors of reading and evaluating a program.

use std::fmt;
use std::path::PathBuf;

use firstdiff_trace::FileError;

use crate::value::dtype::{DType, Kind};
use crate::value::scalar::Scalar;

/// Why a program cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// program.json is not JSON in this format, or far larger in memory than on disk.
    #[error("{}: {reason}", file.display())]
    Json {
        /// The file.
        file: PathBuf,
        /// The error of the parser.
        reason: String,
    },
    /// An unsupported version.
    #[error("version {found} of program.json is not read, only version 1")]
    Version {
        /// The version in the file.
        found: u64,
    },
    /// program.safetensors is invalid.
    #[error("{}: {reason}", file.display())]
    Safetensors {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Something in program.json is invalid.
    #[error("program.json: {place}: {fault}")]
    At {
        /// The place.
        place: JsonPlace,
        /// What is wrong.
        fault: Fault,
    },
}

/// A place in program.json.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonPlace {
    /// The buffer with this number.
    Value(usize),
    /// The entry of `weights`, `constants` or `inputs`.
    Given(&'static str, String),
    /// A part of the operation with this index and name.
    Op(usize, String, String),
    /// The step with this index.
    Step(usize),
    /// The tap with this index.
    Tap(usize),
    /// The scope with this index.
    Scope(usize),
    /// The program as a whole.
    Whole,
    /// All operations.
    Ops,
}

impl fmt::Display for JsonPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JsonPlace::Value(buffer) => write!(f, "values[{buffer}]"),
            JsonPlace::Given(table, key) => write!(f, "{table}: {key}"),
            JsonPlace::Op(op, name, part) => write!(f, "op {op} ({name}), {part}"),
            JsonPlace::Step(step) => write!(f, "steps[{step}]"),
            JsonPlace::Tap(tap) => write!(f, "taps[{tap}]"),
            JsonPlace::Scope(scope) => write!(f, "scopes[{scope}]"),
            JsonPlace::Whole => f.write_str("all buffers"),
            JsonPlace::Ops => f.write_str("all operations"),
        }
    }
}

/// What is wrong at a place in program.json.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A value of another kind than the format requires.
    #[error("not {expected}: {found}")]
    Not {
        /// What the format requires.
        expected: &'static str,
        /// The value, cut short.
        found: String,
    },
    /// An unknown element type.
    #[error("unknown dtype {0:?}")]
    DType(String),
    /// A buffer that does not exist.
    #[error("buffer {number} of {count}")]
    Buffer {
        /// Its number.
        number: i64,
        /// Number of buffers.
        count: usize,
    },
    /// A negative extent, stride or offset.
    #[error("{0} is negative")]
    Negative(i64),
    /// The number of strides differs from that of axes.
    #[error("{axes} axes and {strides} strides")]
    Strides {
        /// Number of axes.
        axes: usize,
        /// Number of strides.
        strides: usize,
    },
    /// A size that overflows.
    #[error("its size overflows")]
    Overflow,
    /// More elements than the limit.
    #[error("{needed} elements, and {limit} are the most")]
    Elements {
        /// Elements that it takes.
        needed: u64,
        /// The limit.
        limit: u64,
    },
    /// More work than its files justify.
    #[error("{needed} numbers to read, write and multiply, and with these weights and files {limit} are the most")]
    Work {
        /// The numbers.
        needed: u64,
        /// The limit.
        limit: u64,
    },
    /// A view in a type that the buffer cannot be viewed as.
    #[error("a buffer of {from} cannot be viewed as {to}")]
    Reinterpreted {
        /// Type of the buffer.
        from: DType,
        /// Type of the view.
        to: DType,
    },
    /// A value that is read before it is written.
    #[error("buffer {0} is read before anything is written to it")]
    Unwritten(usize),
    /// An index of an operand, a scope, a file or a step that does not exist.
    #[error("{what} {index} of {count}")]
    Index {
        /// What it is an index of.
        what: &'static str,
        /// The index.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// In-place operands that do not match the outputs.
    #[error("{written} operands are written in place, and {outputs} outputs repeat them")]
    Outputs {
        /// Operands listed in `w`.
        written: usize,
        /// Outputs.
        outputs: usize,
    },
    /// An operation with a recorded scalar has outputs too.
    #[error("both a recorded scalar and outputs")]
    ScalarAndOutputs,
    /// An invalid range of operations, or one that overlaps the previous step.
    #[error("operations {start}..{end}, where {from} to {count} are left")]
    Range {
        /// First operation.
        start: usize,
        /// The operation after the last.
        end: usize,
        /// First operation after the previous step.
        from: usize,
        /// Number of operations.
        count: usize,
    },
    /// A tap after an operation that is not in its step.
    #[error("operation {op} is not of step {step}, which is {start}..{end}")]
    OutsideStep {
        /// The operation.
        op: usize,
        /// The step.
        step: usize,
        /// First operation of the step.
        start: usize,
        /// The operation after its last.
        end: usize,
    },
    /// An empty name.
    #[error("an empty name")]
    EmptyName,
    /// A duplicate tap in a step.
    #[error("tap {tap} of step {step} is there twice")]
    Duplicate {
        /// The tap.
        tap: String,
        /// The step.
        step: usize,
    },
    /// A buffer whose value is given twice.
    #[error("buffer {0} is given twice")]
    GivenTwice(usize),
    /// program.safetensors lacks its values.
    #[error("program.safetensors does not hold its values")]
    Missing,
    /// program.safetensors has it in another type.
    #[error("program.safetensors holds it as {found}, and it is {expected}")]
    StoredAs {
        /// The type in program.json.
        expected: DType,
        /// The type in the file.
        found: String,
    },
    /// program.safetensors has it in another shape.
    #[error("program.safetensors holds it with shape {found:?}, and it is {expected:?}")]
    StoredShape {
        /// The shape in program.json.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },
}

/// Why a kernel refuses its operands.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// An operand that the operation needs is absent.
    #[error("operand {0} is absent")]
    Absent(&'static str),
    /// An operand of the wrong kind.
    #[error("operand {name} is not {expected}")]
    Sort {
        /// Its name in PyTorch's schema.
        name: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// Values of a kind for which the operation is not defined.
    #[error("{what} is not defined for {kind:?} values")]
    Kind {
        /// The computation.
        what: &'static str,
        /// The kind of the values.
        kind: Kind,
    },
    /// Two shapes that do not match.
    #[error("{what}: {left:?} does not fit {right:?}")]
    Shape {
        /// The rule or computation.
        what: &'static str,
        /// One shape.
        left: Vec<usize>,
        /// The other.
        right: Vec<usize>,
    },
    /// An axis that does not exist.
    #[error("axis {axis} of {rank}")]
    Axis {
        /// The axis as given.
        axis: i64,
        /// Number of axes.
        rank: usize,
    },
    /// An index beyond the axis.
    #[error("index {index} of {extent}")]
    Index {
        /// The index.
        index: i64,
        /// Extent of the axis.
        extent: usize,
    },
    /// A value that the operation does not support.
    #[error("{name} cannot be {value}")]
    Value {
        /// Name of the operand.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// The number of results differs from that of outputs.
    #[error("{results} results, and {outputs} outputs")]
    Outputs {
        /// Results of the kernel.
        results: usize,
        /// Outputs in the program.
        outputs: usize,
    },
}

/// Why a weight tensor cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {reason}")]
pub struct WeightError {
    /// Name of the tensor.
    pub name: String,
    /// What is wrong.
    pub reason: String,
}

/// Why an operation cannot be rewritten for other choices of experts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// An axis of one element in the recording, which may be that of the rows or another one.
    #[error("one row in the recording does not say which axis is that of the rows")]
    One,
    /// A part of an axis whose extent depends on values.
    #[error("it reads a part of the rows, and which part these values ask for is not known")]
    Window,
    /// Axes that are not contiguous, or of another number.
    #[error("how its axes lie for other rows is not known")]
    Axes,
    /// Integers that decide the number of rows, and cannot be computed.
    #[error("the whole numbers that say how many rows there are cannot be computed")]
    Value,
    /// Results whose extents do not follow from those of the operands.
    #[error("how large its result is for other rows is not known")]
    Extents,
    /// An operation without a kernel.
    #[error("there is no kernel for it")]
    Opaque,
    /// A weight that the program does not have.
    #[error("the recording has no weight {0}")]
    Weight(String),
}

/// Why a program cannot be evaluated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluateError {
    /// An operation without a kernel.
    #[error("op {op} ({name}): there is no kernel for it")]
    Opaque {
        /// Its index.
        op: usize,
        /// Its name.
        name: String,
    },
    /// An operation that cannot be rewritten for other experts than were recorded.
    #[error("op {op} ({name}), for other experts than were recorded: {misfit}")]
    Unfollowed {
        /// Its index.
        op: usize,
        /// Its name.
        name: String,
        /// Why.
        misfit: Misfit,
    },
    /// An operation whose operands a kernel refuses.
    #[error("op {op} ({name}): {error}")]
    Kernel {
        /// Its index.
        op: usize,
        /// Its name.
        name: String,
        /// What does not fit.
        error: KernelError,
    },
    /// A change that does not fit the operands of its operation.
    #[error("op {op}: its operands do not suit the other way")]
    Edit {
        /// The operation.
        op: usize,
    },
    /// A value that does not fit a tap.
    #[error("{tap}: {error}")]
    Tap {
        /// Its name.
        tap: String,
        /// What does not fit.
        error: KernelError,
    },
    /// The reference continued with another value than was computed here: it may have run other operations.
    #[error(
        "op {op}: the reference went on with the value {recorded}, and evaluation finds {found}: its path is another one"
    )]
    OtherPath {
        /// The operation.
        op: usize,
        /// The recorded value.
        recorded: Scalar,
        /// The computed value.
        found: Scalar,
    },
    /// A weight that cannot be read.
    #[error("weight {0}")]
    Weight(#[from] WeightError),
    /// A weight whose shape differs from that in the program.
    #[error("weight {name} has shape {found:?}, and the program has {expected:?}")]
    WeightShape {
        /// Its name.
        name: String,
        /// The shape in the program.
        expected: Vec<usize>,
        /// The shape that was read.
        found: Vec<usize>,
    },
    /// A step that does not exist, or is not the next one.
    #[error("step {step} cannot be evaluated: the next of {count} is {next}")]
    Step {
        /// The requested step.
        step: usize,
        /// The next step.
        next: usize,
        /// Number of steps.
        count: usize,
    },
}

/// An error at a place.
pub(crate) fn at_place(place: JsonPlace) -> impl FnOnce(Fault) -> ProgramError {
    move |fault| ProgramError::At { place, fault }
}

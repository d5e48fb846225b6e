//! Why a program is not read, or not evaluated.

use std::fmt;
use std::path::PathBuf;

use firstdiff_trace::FileError;

use crate::value::dtype::{DType, Kind};
use crate::value::operand::Scalar;

/// Why a program is not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// program.json is no JSON of the format, or far larger in memory than on disk.
    #[error("{}: {reason}", file.display())]
    Json {
        /// The file.
        file: PathBuf,
        /// What the parser said.
        reason: String,
    },
    /// A version that is not read.
    #[error("version {found} of program.json is not read, only version 1")]
    Version {
        /// The version that the file says it has.
        found: u64,
    },
    /// program.safetensors is no such file.
    #[error("{}: {reason}", file.display())]
    Safetensors {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Something in program.json cannot be.
    #[error("program.json: {place}: {fault}")]
    At {
        /// Where.
        place: Place,
        /// What is wrong.
        fault: Fault,
    },
}

/// Where in program.json.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The buffer of this number.
    Value(usize),
    /// The entry of `weights`, `constants` or `inputs`.
    Given(&'static str, String),
    /// Something of the operation of this index and name.
    Op(usize, String, String),
    /// The step of this index.
    Step(usize),
    /// The tap of this index.
    Tap(usize),
    /// The scope of this index.
    Scope(usize),
    /// The program as a whole.
    Whole,
    /// All operations.
    Ops,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Value(buffer) => write!(f, "values[{buffer}]"),
            Place::Given(table, key) => write!(f, "{table}: {key}"),
            Place::Op(op, name, part) => write!(f, "op {op} ({name}), {part}"),
            Place::Step(step) => write!(f, "steps[{step}]"),
            Place::Tap(tap) => write!(f, "taps[{tap}]"),
            Place::Scope(scope) => write!(f, "scopes[{scope}]"),
            Place::Whole => f.write_str("all buffers"),
            Place::Ops => f.write_str("all operations"),
        }
    }
}

/// What is wrong at a place of program.json.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Something other than what the format has there.
    #[error("not {expected}: {found}")]
    Not {
        /// What the format has there.
        expected: &'static str,
        /// What stands there, cut short.
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
    /// Not one stride for each axis.
    #[error("{axes} axes and {strides} strides")]
    Strides {
        /// Number of axes.
        axes: usize,
        /// Number of strides.
        strides: usize,
    },
    /// A size that no machine has.
    #[error("its size overflows")]
    Overflow,
    /// More than the caller allows.
    #[error("{needed} elements, and {limit} are the most")]
    Elements {
        /// Elements that it takes.
        needed: u64,
        /// The limit.
        limit: u64,
    },
    /// More work than its files give reason for.
    #[error("{needed} numbers to read, write and multiply, and with these weights and files {limit} are the most")]
    Work {
        /// The numbers.
        needed: u64,
        /// The limit.
        limit: u64,
    },
    /// A view in a type that the buffer cannot be seen as.
    #[error("a buffer of {from} cannot be viewed as {to}")]
    Reinterpreted {
        /// Type of the buffer.
        from: DType,
        /// Type of the view.
        to: DType,
    },
    /// A value is read that nothing has written.
    #[error("buffer {0} is read before anything is written to it")]
    Unwritten(usize),
    /// An index of an operand, a scope, a file or a step that does not exist.
    #[error("{what} {index} of {count}")]
    Index {
        /// Of what it is an index.
        what: &'static str,
        /// The index.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// What is written in place does not match the outputs.
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
    /// A range of operations that is none, or overlaps the previous step.
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
    /// A tap after an operation that is not of its step.
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
    /// A tap that is there twice in a step.
    #[error("tap {tap} of step {step} is there twice")]
    Duplicate {
        /// The tap.
        tap: String,
        /// The step.
        step: usize,
    },
    /// A buffer with two origins.
    #[error("buffer {0} is given twice")]
    GivenTwice(usize),
    /// program.safetensors has no values of it.
    #[error("program.safetensors does not hold its values")]
    Missing,
    /// program.safetensors has it in a type that does not suit.
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
    /// An operand of the wrong sort.
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
    /// Two shapes that do not fit.
    #[error("{what}: {left:?} does not fit {right:?}")]
    Shape {
        /// What is asked.
        what: &'static str,
        /// One shape.
        left: Vec<usize>,
        /// The other.
        right: Vec<usize>,
    },
    /// An axis that does not exist.
    #[error("axis {axis} of {rank}")]
    Axis {
        /// The axis as it was given.
        axis: i64,
        /// Number of axes.
        rank: usize,
    },
    /// An index outside of an axis.
    #[error("index {index} of {extent}")]
    Index {
        /// The index.
        index: i64,
        /// Extent of the axis.
        extent: usize,
    },
    /// A number that the operation does not take.
    #[error("{name} cannot be {value}")]
    Value {
        /// Name of the operand.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// Not as many results as outputs.
    #[error("{results} results, and {outputs} outputs")]
    Outputs {
        /// What the kernel gives.
        results: usize,
        /// What the program has.
        outputs: usize,
    },
}

/// Why the weights do not hold a tensor.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {reason}")]
pub struct WeightError {
    /// Name of the tensor.
    pub name: String,
    /// What is wrong.
    pub reason: String,
}

/// Why an operation is not followed to other choices of experts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// An axis of one element in the recording, which may be that of the rows or another.
    #[error("one row in the recording does not say which axis is that of the rows")]
    One,
    /// A part of an axis whose extent follows from values.
    #[error("it reads a part of the rows, and which part these values ask for is not known")]
    Window,
    /// Axes that do not stand closely, or not as many.
    #[error("how its axes lie for other rows is not known")]
    Axes,
    /// Whole numbers that decide how much there is, and are not known.
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

/// Why a program is not evaluated.
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
    /// An operation that is not known for other choices of experts than were recorded.
    #[error("op {op} ({name}), for other experts than were recorded: {misfit}")]
    Unfollowed {
        /// Its index.
        op: usize,
        /// Its name.
        name: String,
        /// Why.
        misfit: Misfit,
    },
    /// An operation that a kernel refuses.
    #[error("op {op} ({name}): {error}")]
    Kernel {
        /// Its index.
        op: usize,
        /// Its name.
        name: String,
        /// What does not fit.
        error: KernelError,
    },
    /// An operation that cannot be carried out in the other way that was asked for.
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
    /// The reference went on with another value than the one that was found: it may have computed other operations.
    #[error(
        "op {op}: the reference went on with the value {recorded}, and evaluation finds {found}: its path is another one"
    )]
    OtherPath {
        /// The operation.
        op: usize,
        /// The value of the recording.
        recorded: Scalar,
        /// The value that was found.
        found: Scalar,
    },
    /// A weight cannot be had.
    #[error("weight {0}")]
    Weight(#[from] WeightError),
    /// A weight of another shape than the program has.
    #[error("weight {name} has shape {found:?}, and the program has {expected:?}")]
    WeightShape {
        /// Its name.
        name: String,
        /// The shape in the program.
        expected: Vec<usize>,
        /// The shape of what was read.
        found: Vec<usize>,
    },
    /// A step that does not exist, or is not the next.
    #[error("step {step} cannot be evaluated: the next of {count} is {next}")]
    Step {
        /// The step that was asked for.
        step: usize,
        /// The one that comes next.
        next: usize,
        /// Number of steps.
        count: usize,
    },
}

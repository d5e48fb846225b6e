//! Reads, checks and evaluates recorded programs: every operation of a reference run in order, with its operands as strided views of buffers.
//!
//! [`Program::open`] reads `program.json` and `program.safetensors` of a dump folder, and checks everything in them. An [`Evaluator`] carries out the
//! operations step by step, with given weights, and returns the value of each tap.
//!
//! Nothing here depends on a model or a family: an operation is its name in PyTorch's aten library or in ggml, and a table of kernels says what it
//! computes.
//!
//! # Limits
//! Shapes are those of the recording: other tokens are possible, but only the same number of them. If the reference took another path because of a value,
//! evaluation stops with an error. An operation without a kernel is read, but not evaluated.
//!
//! ```
//! use std::path::Path;
//!
//! use firstdiff_program::{Arithmetic, Evaluator, ModelFolder, Program};
//!
//! # let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/programs/forgetting"));
//! let program = Program::open(&folder.join("golden"))?;
//! let weights = ModelFolder::open(&folder.join("model.safetensors"))?;
//! program.check_memory(&weights)?;
//! let mut evaluator = Evaluator::new(&program, Arithmetic::F64, &weights);
//! let mut names = Vec::new();
//! evaluator.run_step(0, &mut |found| names.push(found.tap.to_owned()))?;
//! assert!(names.iter().any(|name| name == "layers.0.mixer_out"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod evaluate;
mod experts;
mod in_place;
mod kernels;
mod memory;
mod program;
mod slice;
mod value;
mod weights;
mod workspace;

pub use evaluate::{Evaluator, TapValue};
pub use kernels::kernel_names;
pub use program::{Limits, Operation, Program, ProgramTap, Scope, Step};
pub use slice::{At, Baseline, Bench, Change, Edit, Instead, OtherOperand, Slice, apply, carry_out};
pub use value::arithmetic::{Arithmetic, Half};
pub use value::dtype::{DType, Kind};
pub use value::error::{EvaluateError, Fault, JsonPlace, KernelError, Misfit, ProgramError, WeightError};
pub use value::operand::Operand;
pub use value::scalar::Scalar;
pub use value::tensor::{Tensor, Values};
pub use value::view::View;
pub use weights::{ModelFolder, Weights};

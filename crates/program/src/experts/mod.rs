//! Rewrites a recorded program for another choice of experts in a mixture of experts.
//!
//! The choice decides how many rows each expert takes, and which experts run at all. In a recording the first is the extent of tensors, the second the
//! presence of operations. [`Program::with_choices`] builds the program for other choices. Integers that follow from the choices are computed. The size of
//! results comes from the kernels, run on operands of the new extents. Views follow the axes that they show, never an extent that happens to be equal. An
//! expert that did not run in the recording is copied from another one of the same layer, with its own weights, if all recorded experts run the same
//! operations. What cannot be followed has no value, with the reason.

mod follow;
mod loops;
mod part;
mod pieces;

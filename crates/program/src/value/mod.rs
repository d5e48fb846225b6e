//! Defines the values of programs: element types, strided views of buffers, operands, tensors, and errors.

pub(crate) mod arithmetic;
pub(crate) mod dtype;
pub(crate) mod error;
pub(crate) mod operand;
pub(crate) mod scalar;
pub(crate) mod tensor;
pub(crate) mod view;

//! What operations compute with: types, strided views of buffers, operands and tensors; and what can be wrong with them.

pub(crate) mod arithmetic;
pub(crate) mod dtype;
pub(crate) mod error;
pub(crate) mod operand;
pub(crate) mod tensor;
pub(crate) mod view;

//! Judges whether two tensors agree: the only verdict function, and its parts.

pub(crate) mod cached;
pub(crate) mod choice;
pub(crate) mod inherited;
pub(crate) mod leak;
pub(crate) mod tensor;

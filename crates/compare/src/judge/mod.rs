//! Do two tensors agree? The one verdict, and all that it allows.

pub(crate) mod choice;
pub(crate) mod inherited;
pub(crate) mod kept;
pub(crate) mod leak;
pub(crate) mod tensor;

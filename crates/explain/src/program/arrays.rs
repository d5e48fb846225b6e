//! Tensors of a program as arrays of numbers, and back.

use firstdiff_program::{DType, Kind, ProgramTap, Tensor, Values};
use ndarray::{ArrayD, IxDyn};

/// Values as the program takes them; `None` where they are not as many. What are no whole numbers stay as they are.
pub(crate) fn tensor(tap: &ProgramTap, values: Vec<f64>) -> Option<Tensor<'static>> {
    let is_whole = || values.iter().all(|&x| x as i64 as f64 == x);
    let (dtype, values) = match tap.view.dtype.kind() {
        Kind::Int if !is_whole() => (DType::F64, Values::from(values)),
        Kind::Int => (tap.view.dtype, Values::from(values.into_iter().map(|x| x as i64).collect::<Vec<_>>())),
        Kind::Float | Kind::Complex => (DType::F64, Values::from(values)),
    };
    Tensor::new(dtype, tap.view.shape.clone(), values)
}

/// Values as the judge takes them.
pub(crate) fn array(tensor: &Tensor<'_>) -> ArrayD<f64> {
    let values = tensor.to_floats().into_owned();
    ArrayD::from_shape_vec(IxDyn(tensor.shape()), values).unwrap_or_default()
}

/// Values as a program has them.
pub(crate) fn floats(values: ArrayD<f64>) -> Option<Tensor<'static>> {
    let shape = values.shape().to_vec();
    Tensor::new(DType::F64, shape, Values::from(values.iter().copied().collect::<Vec<f64>>()))
}

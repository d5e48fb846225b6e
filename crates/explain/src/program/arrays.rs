//! Tensors of a program as arrays of numbers, and back.

use firstdiff_program::{DType, Kind, ProgramTap, Tensor, Values};
use ndarray::{Array2, ArrayD, IxDyn};

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

/// The rows along the last axis, all other axes merged.
pub(crate) fn in_rows(x: &ArrayD<f64>) -> Option<Array2<f64>> {
    let columns = x.shape().last().copied().filter(|&columns| columns > 0)?;
    let rows = x.len() / columns;
    x.as_standard_layout().into_owned().into_shape_with_order((rows, columns)).ok()
}

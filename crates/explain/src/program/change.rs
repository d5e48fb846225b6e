//! Ways to carry out one operation otherwise: with other operands, as another operation, or by a function of what it reads.

use std::sync::Arc;

use firstdiff_program::{Change, DType, Kind, Operand, Operation, OtherOperand, Scalar, Tensor, Values, View};
use ndarray::{ArrayD, Axis};

use crate::program::arrays::{array, floats};

/// A function of one array, or of several.
pub(crate) type Function = fn(&ArrayD<f64>) -> Option<ArrayD<f64>>;

pub(crate) type Compute = fn(&[ArrayD<f64>]) -> Option<ArrayD<f64>>;

/// What some views give.
pub(crate) fn computed(
    views: &[&View],
    compute: impl Fn(&[ArrayD<f64>]) -> Option<ArrayD<f64>> + Send + Sync + 'static,
) -> Change {
    let instead = move |tensors: &[Tensor<'_>]| {
        let arrays: Vec<ArrayD<f64>> = tensors.iter().map(array).collect();
        Some(vec![floats(compute(&arrays)?)?])
    };
    Change::Values(views.iter().copied().cloned().collect(), Arc::new(instead))
}

/// A function of each element of a view, and of any number.
pub(crate) fn each(
    view: &View,
    of: impl Fn(f64, f64) -> f64 + Copy + Send + Sync + 'static,
) -> impl Fn(f64) -> Change + Send + Sync + 'static {
    let view = view.clone();
    move |number| computed(&[&view], move |x| Some(x[0].mapv(|x| of(x, number))))
}

/// A function of one array.
pub(crate) type FunctionOfTensor = Arc<dyn Fn(&ArrayD<f64>) -> Option<ArrayD<f64>> + Send + Sync>;

/// A function of a view in the place of an operand; whole numbers stay what they are.
pub(crate) fn other_operand(place: (usize, Option<usize>), view: &View, function: FunctionOfTensor) -> OtherOperand {
    let value = move |tensors: &[Tensor<'_>]| {
        let read = tensors.first()?;
        let values = function(&array(read))?;
        Some(vec![as_kind(read.dtype(), values)?])
    };
    OtherOperand { place, views: vec![view.clone()], value: Arc::new(value) }
}

/// Values of the kind that a type holds.
fn as_kind(dtype: DType, values: ArrayD<f64>) -> Option<Tensor<'static>> {
    let shape = values.shape().to_vec();
    match dtype.kind() {
        Kind::Int => Tensor::new(dtype, shape, Values::from(values.iter().map(|&x| x as i64).collect::<Vec<_>>())),
        Kind::Float => Tensor::new(dtype, shape, Values::from(values.iter().copied().collect::<Vec<_>>())),
        Kind::Complex => None,
    }
}

/// Places along an axis in another order, by which stands there; zeros where none does.
pub(crate) fn in_order(x: &ArrayD<f64>, axis: Axis, from: &[Option<usize>]) -> ArrayD<f64> {
    let indices: Vec<usize> = from.iter().map(|from| from.unwrap_or(0)).collect();
    let mut value = x.select(axis, &indices);
    for (at, _) in from.iter().enumerate().filter(|(_, from)| from.is_none()) {
        value.index_axis_mut(axis, at).fill(0.0);
    }
    value
}

/// What a view holds.
pub(crate) fn kept(view: &View) -> Change {
    Change::Values(vec![view.clone()], Arc::new(|tensors| Some(vec![tensors[0].clone().into_owned()])))
}

/// The same operation with another operand.
pub(crate) fn with(op: &Operation, place: usize, operand: Operand) -> Change {
    with_all(op, [(place, operand)])
}

/// The same operation with several other operands.
pub(crate) fn with_all(op: &Operation, operands: impl IntoIterator<Item = (usize, Operand)>) -> Change {
    let mut other = op.clone();
    for (place, operand) in operands {
        if let Some(old) = other.operands.get_mut(place) {
            *old = operand;
        }
    }
    Change::Operation(Box::new(other))
}

/// The same operation with another number.
pub(crate) fn with_number(op: &Operation, place: usize, number: f64) -> Change {
    with(op, place, Operand::Scalar(Scalar::Float(number)))
}

/// The same operation with any number.
pub(crate) fn numbers(op: &Operation, place: usize) -> impl Fn(f64) -> Change + Send + Sync + 'static {
    let op = op.clone();
    move |number| with_number(&op, place, number)
}

/// Another operation of the same operands.
pub(crate) fn renamed(op: &Operation, name: &str) -> Change {
    Change::Operation(Box::new(Operation { name: name.into(), ..op.clone() }))
}

/// A function of two arrays, as far as their shapes allow.
pub(crate) fn both(a: &ArrayD<f64>, b: &ArrayD<f64>, f: impl Fn(f64, f64) -> f64) -> Option<ArrayD<f64>> {
    let rank = a.ndim().max(b.ndim());
    let extent = |x: &ArrayD<f64>, axis: usize| (axis + x.ndim()).checked_sub(rank).map_or(1, |axis| x.shape()[axis]);
    let shape: Vec<usize> =
        (0..rank).map(|axis| if extent(a, axis) == 1 { extent(b, axis) } else { extent(a, axis) }).collect();
    let (a, b) = (a.broadcast(shape.as_slice())?, b.broadcast(shape.as_slice())?);
    Some(ndarray::Zip::from(&a).and(&b).map_collect(|&a, &b| f(a, b)))
}

pub(crate) fn plus(a: &ArrayD<f64>, b: &ArrayD<f64>) -> Option<ArrayD<f64>> {
    both(a, b, |a, b| a + b)
}

pub(crate) fn minus(a: &ArrayD<f64>, b: &ArrayD<f64>) -> Option<ArrayD<f64>> {
    both(a, b, |a, b| a - b)
}

pub(crate) fn times(a: &ArrayD<f64>, b: &ArrayD<f64>) -> Option<ArrayD<f64>> {
    both(a, b, |a, b| a * b)
}

pub(crate) fn over(a: &ArrayD<f64>, b: &ArrayD<f64>) -> Option<ArrayD<f64>> {
    both(a, b, |a, b| a / b)
}

/// A named kernel of one operand.
pub(crate) fn function(name: &str, x: &ArrayD<f64>) -> Option<ArrayD<f64>> {
    function_with(name, x, &[])
}

/// The same, told more.
pub(crate) fn function_with(name: &str, x: &ArrayD<f64>, keywords: &[(&str, Scalar)]) -> Option<ArrayD<f64>> {
    firstdiff_program::apply(name, &[&floats(x.clone())?], keywords)?.first().map(array)
}

/// e^x over its sum, along the last axis.
pub(crate) fn softmax(x: &ArrayD<f64>) -> Option<ArrayD<f64>> {
    function_with("softmax", x, &[("dim", Scalar::Int(-1))])
}

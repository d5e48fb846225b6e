//! Holds dense values of a view in row-major order.

use std::borrow::Cow;

use crate::value::dtype::{DType, Kind};

/// Dense values in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub enum Values<'a> {
    /// Integers; booleans are 0 or 1.
    Int(Cow<'a, [i64]>),
    /// Floats.
    Float(Cow<'a, [f64]>),
    /// Real and imaginary parts.
    Complex(Cow<'a, [[f64; 2]]>),
}

/// A dense tensor. The number of values is that of its shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor<'a> {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Values<'a>,
}

/// Evaluates an expression for any kind of values; the result has the same kind.
macro_rules! each_kind {
    ($values:expr, $x:ident => $body:expr) => {
        match $values {
            $crate::value::tensor::Values::Int($x) => $crate::value::tensor::Values::from($body),
            $crate::value::tensor::Values::Float($x) => $crate::value::tensor::Values::from($body),
            $crate::value::tensor::Values::Complex($x) => $crate::value::tensor::Values::from($body),
        }
    };
}
pub(crate) use each_kind;

impl From<Vec<i64>> for Values<'_> {
    fn from(x: Vec<i64>) -> Self {
        Values::Int(x.into())
    }
}

impl From<Vec<f64>> for Values<'_> {
    fn from(x: Vec<f64>) -> Self {
        Values::Float(x.into())
    }
}

impl From<Vec<[f64; 2]>> for Values<'_> {
    fn from(x: Vec<[f64; 2]>) -> Self {
        Values::Complex(x.into())
    }
}

impl Values<'_> {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Values::Int(x) => x.len(),
            Values::Float(x) => x.len(),
            Values::Complex(x) => x.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Values::Int(_) => Kind::Int,
            Values::Float(_) => Kind::Float,
            Values::Complex(_) => Kind::Complex,
        }
    }

    fn into_owned(self) -> Values<'static> {
        each_kind!(self, x => x.into_owned())
    }
}

impl<'a> Tensor<'a> {
    /// A tensor of these values, if their number is that of the shape.
    pub fn new(dtype: DType, shape: Vec<usize>, values: Values<'a>) -> Option<Tensor<'a>> {
        let count = shape.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent));
        (count == Some(values.len()) && dtype.kind() == values.kind()).then_some(Tensor { dtype, shape, values })
    }

    /// Extent of every axis, slowest first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The values.
    pub fn values(&self) -> &Values<'a> {
        &self.values
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The same tensor, owning its values.
    pub fn into_owned(self) -> Tensor<'static> {
        Tensor { dtype: self.dtype, shape: self.shape, values: self.values.into_owned() }
    }

    /// The same values, borrowed.
    pub fn view(&self) -> Tensor<'_> {
        let values = match &self.values {
            Values::Int(x) => Values::Int(Cow::Borrowed(x)),
            Values::Float(x) => Values::Float(Cow::Borrowed(x)),
            Values::Complex(x) => Values::Complex(Cow::Borrowed(x)),
        };
        Tensor { dtype: self.dtype, shape: self.shape.clone(), values }
    }

    /// A tensor that a kernel computed, in the default type of its kind: the output's view decides the stored type.
    pub(crate) fn of(shape: Vec<usize>, values: impl Into<Values<'static>>) -> Tensor<'static> {
        let values = values.into();
        let dtype = match values.kind() {
            Kind::Int => DType::I64,
            Kind::Float => DType::F64,
            Kind::Complex => DType::C128,
        };
        debug_assert_eq!(shape.iter().product::<usize>(), values.len());
        Tensor { dtype, shape, values }
    }

    pub(crate) fn kind(&self) -> Kind {
        self.values.kind()
    }

    /// The values as floats; the real parts of complex numbers.
    pub fn to_floats(&self) -> Cow<'_, [f64]> {
        match &self.values {
            Values::Int(x) => x.iter().map(|&x| x as f64).collect(),
            Values::Float(x) => Cow::Borrowed(x),
            Values::Complex(x) => x.iter().map(|x| x[0]).collect(),
        }
    }

    /// The values as integers; floats are truncated.
    pub(crate) fn to_ints(&self) -> Cow<'_, [i64]> {
        match &self.values {
            Values::Int(x) => Cow::Borrowed(x),
            Values::Float(x) => x.iter().map(|&x| x as i64).collect(),
            Values::Complex(x) => x.iter().map(|x| x[0] as i64).collect(),
        }
    }

    /// The values as complex numbers.
    pub(crate) fn to_complex(&self) -> Cow<'_, [[f64; 2]]> {
        match &self.values {
            Values::Int(x) => x.iter().map(|&x| [x as f64, 0.0]).collect(),
            Values::Float(x) => x.iter().map(|&x| [x, 0.0]).collect(),
            Values::Complex(x) => Cow::Borrowed(x),
        }
    }

    /// Whether each value is non-zero (NaN is).
    pub(crate) fn to_bools(&self) -> Vec<bool> {
        match &self.values {
            Values::Int(x) => x.iter().map(|&x| x != 0).collect(),
            Values::Float(x) => x.iter().map(|&x| x != 0.0).collect(),
            Values::Complex(x) => x.iter().map(|&x| x != [0.0, 0.0]).collect(),
        }
    }
}

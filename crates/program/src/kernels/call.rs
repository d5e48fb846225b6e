//! Defines a kernel call: the operation, its operands, and how a kernel reads them.

use std::borrow::Cow;

use crate::value::dtype::{DType, Kind};
use crate::value::error::KernelError;
use crate::value::scalar::Scalar;
use crate::value::tensor::{Tensor, Values};
use crate::value::view::View;

/// Computes the results of an operation: at least as many as the operation has outputs.
pub(crate) type Kernel = fn(&Call<'_>) -> Result<Vec<Tensor<'static>>, KernelError>;

/// What kernels return.
pub(crate) type Results = Result<Vec<Tensor<'static>>, KernelError>;

/// An operand as a value.
#[derive(Debug)]
pub(crate) enum Arg<'a> {
    Tensor(Tensor<'a>),
    Scalar(&'a Scalar),
    DType(DType),
    None,
    List(Vec<Arg<'a>>),
}

/// An operation with its operands.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    /// Name without overload.
    pub(crate) name: &'a str,
    /// Overload; empty if there is none.
    pub(crate) overload: &'a str,
    pub(crate) args: Vec<Arg<'a>>,
    pub(crate) named: Vec<(&'a str, Arg<'a>)>,
    pub(crate) outputs: Vec<Option<&'a View>>,
}

impl Arg<'_> {
    /// One number.
    fn scalar(&self) -> Option<Scalar> {
        match self {
            Arg::Scalar(scalar) => Some((*scalar).clone()),
            Arg::Tensor(tensor) if tensor.len() == 1 => match &tensor.values {
                Values::Int(x) => Some(Scalar::Int(x[0])),
                Values::Float(x) => Some(Scalar::Float(x[0])),
                Values::Complex(_) => None,
            },
            _ => None,
        }
    }

    /// Number of elements.
    fn len(&self) -> usize {
        match self {
            Arg::Tensor(tensor) => tensor.len(),
            Arg::List(list) => list.iter().map(Arg::len).sum(),
            _ => 0,
        }
    }

    fn int(&self) -> Option<i64> {
        match self.scalar()? {
            Scalar::Int(x) => Some(x),
            Scalar::Bool(x) => Some(x.into()),
            Scalar::Float(x) if x.fract() == 0.0 => Some(x as i64),
            _ => None,
        }
    }

    fn float(&self) -> Option<f64> {
        match self.scalar()? {
            Scalar::Int(x) => Some(x as f64),
            Scalar::Bool(x) => Some(f64::from(u8::from(x))),
            Scalar::Float(x) => Some(x),
            Scalar::Text(_) => None,
        }
    }

    /// A tensor as it is, or a number as a tensor without axes.
    pub(crate) fn as_tensor(&self) -> Option<Tensor<'_>> {
        let (dtype, values) = match self {
            Arg::Tensor(tensor) => return Some(tensor.view()),
            Arg::Scalar(Scalar::Int(x)) => (DType::I64, vec![*x].into()),
            Arg::Scalar(Scalar::Bool(x)) => (DType::Bool, vec![i64::from(*x)].into()),
            Arg::Scalar(Scalar::Float(x)) => (DType::F64, vec![*x].into()),
            _ => return None,
        };
        Some(Tensor { dtype, shape: Vec::new(), values })
    }
}

impl<'a> Call<'a> {
    /// The operand at a position, or with that name; `None` if it is absent or Python's None.
    pub(crate) fn get(&self, position: usize, name: &str) -> Option<&Arg<'a>> {
        let named = || self.named.iter().find(|(key, _)| *key == name).map(|(_, arg)| arg);
        self.args.get(position).or_else(named).filter(|arg| !matches!(arg, Arg::None))
    }

    /// The operand with that name, which has no position.
    pub(crate) fn keyword(&self, name: &str) -> Option<&Arg<'a>> {
        self.get(usize::MAX, name)
    }

    pub(crate) fn tensor(&self, position: usize, name: &'static str) -> Result<&Tensor<'a>, KernelError> {
        match self.get(position, name) {
            Some(Arg::Tensor(tensor)) => Ok(tensor),
            Some(_) => Err(KernelError::Sort { name, expected: "a tensor" }),
            None => Err(KernelError::Absent(name)),
        }
    }

    pub(crate) fn optional(&self, position: usize, name: &'static str) -> Result<Option<&Tensor<'a>>, KernelError> {
        self.get(position, name).map(|_| self.tensor(position, name)).transpose()
    }

    /// A tensor, or a number as one without axes.
    pub(crate) fn operand(&self, position: usize, name: &'static str) -> Result<Tensor<'_>, KernelError> {
        let arg = self.get(position, name).ok_or(KernelError::Absent(name))?;
        arg.as_tensor().ok_or(KernelError::Sort { name, expected: "a tensor or a number" })
    }

    pub(crate) fn int(&self, position: usize, name: &'static str) -> Result<Option<i64>, KernelError> {
        let arg = self.get(position, name);
        arg.map(|arg| arg.int().ok_or(KernelError::Sort { name, expected: "a whole number" })).transpose()
    }

    pub(crate) fn float(&self, position: usize, name: &'static str) -> Result<Option<f64>, KernelError> {
        let arg = self.get(position, name);
        arg.map(|arg| arg.float().ok_or(KernelError::Sort { name, expected: "a number" })).transpose()
    }

    pub(crate) fn flag(&self, position: usize, name: &'static str, otherwise: bool) -> Result<bool, KernelError> {
        Ok(self.int(position, name)?.map_or(otherwise, |x| x != 0))
    }

    pub(crate) fn text(&self, position: usize, name: &'static str) -> Option<&str> {
        match self.get(position, name) {
            Some(Arg::Scalar(Scalar::Text(text))) => Some(text),
            _ => None,
        }
    }

    /// A list of integers, or a single one.
    pub(crate) fn ints(&self, position: usize, name: &'static str) -> Result<Option<Vec<i64>>, KernelError> {
        let fail = KernelError::Sort { name, expected: "a list of whole numbers" };
        match self.get(position, name) {
            None => Ok(None),
            Some(Arg::List(list)) => list.iter().map(Arg::int).collect::<Option<_>>().map(Some).ok_or(fail),
            Some(Arg::Tensor(tensor)) if tensor.kind() == Kind::Int => Ok(Some(tensor.to_ints().into_owned())),
            Some(one) => one.int().map(|x| Some(vec![x])).ok_or(fail),
        }
    }

    pub(crate) fn list(&self, position: usize, name: &'static str) -> Result<&[Arg<'a>], KernelError> {
        match self.get(position, name) {
            Some(Arg::List(list)) => Ok(list),
            Some(_) => Err(KernelError::Sort { name, expected: "a list" }),
            None => Err(KernelError::Absent(name)),
        }
    }

    pub(crate) fn tensors(&self, position: usize, name: &'static str) -> Result<Vec<Tensor<'_>>, KernelError> {
        let list = self.list(position, name)?;
        list.iter()
            .map(|arg| arg.as_tensor().ok_or(KernelError::Sort { name, expected: "a list of tensors" }))
            .collect()
    }

    pub(crate) fn dtype(&self, position: usize, name: &str) -> Option<DType> {
        match self.get(position, name) {
            Some(Arg::DType(dtype)) => Some(*dtype),
            _ => None,
        }
    }

    /// The shape of an output; a kernel computes nothing that would not fit it.
    pub(crate) fn output_shape(&self, number: usize) -> Result<&'a [usize], KernelError> {
        let view = self.outputs.get(number).copied().flatten();
        view.map(|view| view.shape.as_slice())
            .ok_or(KernelError::Outputs { results: number + 1, outputs: self.outputs.len() })
    }

    /// The kind of the first output's values.
    pub(crate) fn output_kind(&self) -> Kind {
        self.outputs.first().copied().flatten().map_or(Kind::Float, |view| view.dtype.kind())
    }

    /// Returns `shape` if it is that of the output: checked before a result is computed whose size the operands do not limit.
    pub(crate) fn claim(&self, what: &'static str, shape: Vec<usize>) -> Result<Vec<usize>, KernelError> {
        ensure(self.output_shape(0)? == shape, what, &shape, self.output_shape(0)?)?;
        Ok(shape)
    }

    /// The broadcast shape of two shapes: an axis of 1 takes the other's extent. Refused if that is far larger than the operation's outputs and operands: no result is.
    pub(crate) fn broadcast(&self, left: &[usize], right: &[usize]) -> Result<Vec<usize>, KernelError> {
        let shape = broadcast(left, right)?;
        self.room("broadcast", &shape)?;
        Ok(shape)
    }

    /// Checks that a tensor of these extents is not too large for the operation.
    pub(crate) fn room(&self, what: &'static str, extents: &[usize]) -> Result<(), KernelError> {
        const SMALL: usize = 1 << 20;
        let needed = extents.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent));
        if needed.is_some_and(|needed| needed <= SMALL) {
            return Ok(());
        }
        let held: usize = self.args.iter().chain(self.named.iter().map(|(_, arg)| arg)).map(Arg::len).sum();
        let outputs: usize = self.outputs.iter().flatten().map(|view| view.elements()).sum();
        let most = held.saturating_add(outputs).saturating_mul(4);
        ensure(needed.is_some_and(|needed| needed <= most), what, extents, &[most])
    }
}

/// `Ok` when `fits`, else the error with both shapes.
pub(crate) fn ensure(fits: bool, what: &'static str, left: &[usize], right: &[usize]) -> Result<(), KernelError> {
    if fits { Ok(()) } else { Err(KernelError::Shape { what, left: left.into(), right: right.into() }) }
}

/// An axis, where a negative number counts from the end.
pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize, KernelError> {
    let count = rank.max(1) as i64;
    let from_start = if axis < 0 { axis.saturating_add(count) } else { axis };
    if (0..count).contains(&from_start) { Ok(from_start as usize) } else { Err(KernelError::Axis { axis, rank }) }
}

/// An index, where a negative number counts from the end.
pub(crate) fn index(index: i64, extent: usize) -> Result<usize, KernelError> {
    let from_start = if index < 0 { index.saturating_add(extent as i64) } else { index };
    let inside = usize::try_from(from_start).ok().filter(|&i| i < extent);
    inside.ok_or(KernelError::Index { index, extent })
}

/// A number that is not negative.
pub(crate) fn size(name: &'static str, x: i64) -> Result<usize, KernelError> {
    usize::try_from(x).map_err(|_| KernelError::Value { name, value: x.to_string() })
}

/// See [`Call::broadcast`].
fn broadcast(left: &[usize], right: &[usize]) -> Result<Vec<usize>, KernelError> {
    let rank = left.len().max(right.len());
    let extent = |shape: &[usize], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |at| shape[at]);
    (0..rank)
        .map(|axis| match (extent(left, axis), extent(right, axis)) {
            (a, b) if a == b => Some(a),
            (1, b) => Some(b),
            (a, 1) => Some(a),
            _ => None,
        })
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| KernelError::Shape { what: "broadcast", left: left.into(), right: right.into() })
}

/// Broadcasts values to a shape.
pub(crate) fn expanded<'a, T: Copy>(x: &'a [T], from: &[usize], to: &[usize]) -> Result<Cow<'a, [T]>, KernelError> {
    if from == to {
        return Ok(Cow::Borrowed(x));
    }
    let strides = crate::memory::broadcast_strides(from, to);
    let strides =
        strides.ok_or_else(|| KernelError::Shape { what: "broadcast", left: from.into(), right: to.into() })?;
    Ok(Cow::Owned(crate::memory::broadcast_strided(x, to, &strides)))
}

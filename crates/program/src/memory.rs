//! Holds the memory of a buffer, and reads and writes strided views of it.

use std::borrow::Cow;

use firstdiff_trace::{F8, to_bf16, to_f16};

use crate::value::arithmetic::{Arithmetic, Half};
use crate::value::dtype::{DType, Kind};
use crate::value::error::KernelError;
use crate::value::tensor::{Tensor, Values};
use crate::value::view::{View, contiguous_strides, for_each_row};

/// The numbers of a buffer; a complex number is two floats.
#[derive(Clone, Debug)]
pub(crate) enum Memory {
    /// For integer types.
    Int(Vec<i64>),
    /// For floats and complex numbers.
    Float(Vec<f64>),
}

impl Memory {
    /// Zeros.
    pub(crate) fn zeros(dtype: DType, size: usize) -> Memory {
        match dtype.kind() {
            Kind::Int => Memory::Int(vec![0; size]),
            _ => Memory::Float(vec![0.0; size]),
        }
    }

    /// Number of numbers.
    pub(crate) fn len(&self) -> usize {
        match self {
            Memory::Int(x) => x.len(),
            Memory::Float(x) => x.len(),
        }
    }

    /// The values of a view, borrowed if they are contiguous.
    pub(crate) fn read(&self, view: &View) -> Tensor<'_> {
        let count = view.elements();
        let range = view.offset..view.offset + count;
        let borrowed = view.is_contiguous() && count > 0;
        let values = match (self, view.dtype.kind()) {
            (Memory::Int(x), _) if borrowed => Values::Int(Cow::Borrowed(&x[range])),
            (Memory::Int(x), _) => Values::Int(Cow::Owned(gather(x, view))),
            (Memory::Float(x), Kind::Complex) => {
                let pairs = x.as_chunks::<2>().0;
                Values::Complex(if borrowed { Cow::Borrowed(&pairs[range]) } else { Cow::Owned(gather(pairs, view)) })
            }
            (Memory::Float(x), _) if borrowed => Values::Float(Cow::Borrowed(&x[range])),
            (Memory::Float(x), _) => Values::Float(Cow::Owned(gather(x, view))),
        };
        Tensor { dtype: view.dtype, shape: view.shape.clone(), values }
    }

    /// Stores values, broadcast to the view and rounded to its type.
    ///
    /// # Errors
    /// When they cannot be broadcast.
    pub(crate) fn write(&mut self, view: &View, tensor: Tensor<'_>, arithmetic: Arithmetic) -> Result<(), KernelError> {
        let strides = broadcast_strides(&tensor.shape, &view.shape).ok_or_else(|| KernelError::Shape {
            what: "the result and its output",
            left: tensor.shape.clone(),
            right: view.shape.clone(),
        })?;
        match self {
            Memory::Int(memory) => {
                let mut values = tensor.to_ints().into_owned();
                if view.dtype == DType::Bool {
                    values = tensor.to_bools().into_iter().map(i64::from).collect();
                }
                wrap(&mut values, view.dtype);
                store(memory, view, values, &strides);
            }
            Memory::Float(memory) if view.dtype.kind() == Kind::Complex => {
                let mut values = match tensor.values {
                    Values::Complex(x) => x.into_owned(),
                    _ => tensor.to_complex().into_owned(),
                };
                round(values.as_flattened_mut(), view.dtype, arithmetic);
                let count = memory.len() / 2;
                store(&mut memory.as_chunks_mut::<2>().0[..count], view, values, &strides);
            }
            Memory::Float(memory) => {
                let mut values = match tensor.values {
                    Values::Float(x) => x.into_owned(),
                    _ => tensor.to_floats().into_owned(),
                };
                round(&mut values, view.dtype, arithmetic);
                if values.len() == memory.len()
                    && view.offset == 0
                    && view.is_contiguous()
                    && tensor.shape == view.shape
                {
                    *memory = values;
                } else {
                    store(memory, view, values, &strides);
                }
            }
        }
        Ok(())
    }
}

/// Rounds floats to a type.
pub(crate) fn round(values: &mut [f64], dtype: DType, arithmetic: Arithmetic) {
    let single = !matches!(arithmetic, Arithmetic::F64 | Arithmetic::Wide);
    let dtype = match (dtype, arithmetic) {
        (DType::F32, Arithmetic::Half(Half::F16)) => DType::F16,
        (DType::F32, Arithmetic::Half(Half::BF16)) => DType::BF16,
        (DType::F16 | DType::BF16, Arithmetic::Wide) => DType::F32,
        (dtype, _) => dtype,
    };
    // PyTorch computes f16 and bf16 in f32, and rounds twice.
    let first = |x: f64| if single { f64::from(x as f32) } else { x };
    match dtype {
        DType::F16 => values.iter_mut().for_each(|x| *x = to_f16(first(*x)).to_f64()),
        DType::BF16 => values.iter_mut().for_each(|x| *x = to_bf16(first(*x)).to_f64()),
        DType::F8E4m3 => values.iter_mut().for_each(|x| *x = F8::E4m3.nearest(first(*x))),
        DType::F8E5m2 => values.iter_mut().for_each(|x| *x = F8::E5m2.nearest(first(*x))),
        DType::F32 | DType::C64 if single => values.iter_mut().for_each(|x| *x = f64::from(*x as f32)),
        // What overflows f32 was infinite in the reference, and masks rely on it.
        DType::F32 | DType::C64 => {
            values.iter_mut().filter(|x| x.abs() > f64::from(f32::MAX)).for_each(|x| {
                if (*x as f32).is_infinite() {
                    *x = f64::from(*x as f32);
                }
            });
        }
        _ => {}
    }
}

/// Wraps integers to a type: keeps the low bits.
pub(crate) fn wrap(values: &mut [i64], dtype: DType) {
    let narrow: fn(i64) -> i64 = match dtype {
        DType::I32 => |x| i64::from(x as i32),
        DType::I16 => |x| i64::from(x as i16),
        DType::I8 => |x| i64::from(x as i8),
        DType::U8 => |x| i64::from(x as u8),
        DType::Bool => |x| i64::from(x != 0),
        _ => return,
    };
    values.iter_mut().for_each(|x| *x = narrow(*x));
}

fn gather<T: Copy>(memory: &[T], view: &View) -> Vec<T> {
    let mut out = Vec::with_capacity(view.elements());
    for_each_row(&view.shape, &view.strides, view.offset, |start, stride, count| match stride {
        0 => out.resize(out.len() + count, memory[start]),
        1 => out.extend_from_slice(&memory[start..start + count]),
        _ => out.extend(memory[start..].iter().step_by(stride).take(count)),
    });
    out
}

fn store<T: Copy>(memory: &mut [T], view: &View, values: Vec<T>, strides: &[usize]) {
    // The rows of source and destination differ, so the values are broadcast first.
    let broadcast = strides != contiguous_strides(&view.shape) && !values.is_empty();
    let values = if broadcast { broadcast_strided(&values, &view.shape, strides) } else { values };
    let mut values = values.into_iter();
    for_each_row(&view.shape, &view.strides, view.offset, |start, stride, count| {
        for (i, value) in (0..count).zip(&mut values) {
            memory[start + i * stride] = value;
        }
    });
}

/// Broadcasts values to a larger shape; `strides` are those of the smaller shape in it.
pub(crate) fn broadcast_strided<T: Copy>(values: &[T], shape: &[usize], strides: &[usize]) -> Vec<T> {
    let mut out = Vec::with_capacity(shape.iter().product());
    for_each_row(shape, strides, 0, |start, stride, count| out.extend((0..count).map(|i| values[start + i * stride])));
    out
}

/// The strides that broadcast dense values of shape `from` to `to`; `None` if that is not possible.
pub(crate) fn broadcast_strides(from: &[usize], to: &[usize]) -> Option<Vec<usize>> {
    // Leading axes of extent 1 may be dropped.
    let extra = from.len().saturating_sub(to.len());
    if from[..extra].iter().any(|&extent| extent != 1) {
        return None;
    }
    let from = &from[extra..];
    let own = contiguous_strides(from);
    let lead = to.len() - from.len();
    let mut strides = vec![0; to.len()];
    for (axis, (&extent, &stride)) in from.iter().zip(&own).enumerate() {
        match (extent, to[lead + axis]) {
            (extent, due) if extent == due => strides[lead + axis] = stride,
            (1, _) => {}
            _ => return None,
        }
    }
    Some(strides)
}

//! Defines the types of floats that can be compared, and widens them.

use std::ops::Range;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// A sequence of floats of one of the types a dump may hold.
#[derive(Debug, Clone, Copy)]
pub enum Values<'a> {
    /// binary32
    F32(&'a [f32]),
    /// binary64
    F64(&'a [f64]),
    /// binary16
    F16(&'a [f16]),
    /// bfloat16
    BF16(&'a [bf16]),
}

impl<'a> Values<'a> {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F64(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::BF16(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value at `index`, widened.
    ///
    /// # Panics
    /// If `index` is out of range.
    pub fn get(&self, index: usize) -> f64 {
        match self {
            Self::F32(values) => values[index].into(),
            Self::F64(values) => values[index],
            Self::F16(values) => values[index].into(),
            Self::BF16(values) => values[index].into(),
        }
    }

    /// The values in `range`.
    ///
    /// # Panics
    /// If `range` is out of range.
    pub fn slice(&self, range: Range<usize>) -> Values<'a> {
        match *self {
            Self::F32(values) => Values::F32(&values[range]),
            Self::F64(values) => Values::F64(&values[range]),
            Self::F16(values) => Values::F16(&values[range]),
            Self::BF16(values) => Values::BF16(&values[range]),
        }
    }

    /// Whether f32 cannot hold every value.
    pub(super) fn needs_f64(&self) -> bool {
        matches!(self, Self::F64(_))
    }

    /// The values in f32, in place or converted into `buffer`; f64 values are rounded.
    pub(super) fn as_f32<'b>(&self, buffer: &'b mut Vec<f32>) -> &'b [f32]
    where
        'a: 'b,
    {
        if let Self::F32(values) = *self {
            return values;
        }
        buffer.resize(self.len(), 0.0);
        match self {
            Self::F16(values) => values.convert_to_f32_slice(buffer),
            Self::BF16(values) => values.convert_to_f32_slice(buffer),
            Self::F64(values) => buffer.iter_mut().zip(*values).for_each(|(to, from)| *to = *from as f32),
            Self::F32(_) => unreachable!("returned above"),
        }
        buffer
    }

    /// The values in f64, in place or converted into `buffer`.
    pub(crate) fn as_f64<'b>(&self, buffer: &'b mut Vec<f64>) -> &'b [f64]
    where
        'a: 'b,
    {
        if let Self::F64(values) = *self {
            return values;
        }
        buffer.resize(self.len(), 0.0);
        match self {
            Self::F16(values) => values.convert_to_f64_slice(buffer),
            Self::BF16(values) => values.convert_to_f64_slice(buffer),
            Self::F32(values) => buffer.iter_mut().zip(*values).for_each(|(to, from)| *to = f64::from(*from)),
            Self::F64(_) => unreachable!("returned above"),
        }
        buffer
    }
}

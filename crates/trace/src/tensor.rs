//! Holds the tensor of a tap: floats, mapped or owned, in their type on disk.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use half::slice::HalfBitsSliceExt;
use half::{bf16, f16};
use memmap2::Mmap;

use crate::element::{DType, byte_len};

/// A tensor's elements in row-major order and in their own type, borrowed from the file if its bytes can be used directly.
#[derive(Clone, Debug)]
pub enum Values<'a> {
    /// Doubles.
    F64(Cow<'a, [f64]>),
    /// Singles.
    F32(Cow<'a, [f32]>),
    /// Halves.
    F16(Cow<'a, [f16]>),
    /// bfloat16.
    BF16(Cow<'a, [bf16]>),
}

impl Values<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Values::F64(v) => v.len(),
            Values::F32(v) => v.len(),
            Values::F16(v) => v.len(),
            Values::BF16(v) => v.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A copy of the elements in `range`.
    ///
    /// # Panics
    /// When it exceeds [`Values::len`].
    pub fn slice(&self, range: Range<usize>) -> Values<'static> {
        match self {
            Values::F64(v) => Values::F64(v[range].to_vec().into()),
            Values::F32(v) => Values::F32(v[range].to_vec().into()),
            Values::F16(v) => Values::F16(v[range].to_vec().into()),
            Values::BF16(v) => Values::BF16(v[range].to_vec().into()),
        }
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        match self {
            Values::F64(_) => DType::F64,
            Values::F32(_) => DType::F32,
            Values::F16(_) => DType::F16,
            Values::BF16(_) => DType::BF16,
        }
    }

    /// The elements' bytes, little-endian.
    pub fn to_le_bytes(&self) -> Vec<u8> {
        fn le<T: Copy, const N: usize>(values: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
            values.iter().flat_map(|&x| bytes(x)).collect()
        }
        match self {
            Values::F64(v) => le(v, f64::to_le_bytes),
            Values::F32(v) => le(v, f32::to_le_bytes),
            Values::F16(v) => le(v, f16::to_le_bytes),
            Values::BF16(v) => le(v, bf16::to_le_bytes),
        }
    }

    /// Element `index`, widened; exact for every type.
    ///
    /// # Panics
    /// When `index` is not below [`Values::len`].
    pub fn get(&self, index: usize) -> f64 {
        match self {
            Values::F64(v) => v[index],
            Values::F32(v) => f64::from(v[index]),
            Values::F16(v) => v[index].to_f64(),
            Values::BF16(v) => v[index].to_f64(),
        }
    }

    /// Every element, widened to f64; exact for every type.
    pub fn to_f64(&self) -> Vec<f64> {
        match self {
            Values::F64(v) => v.to_vec(),
            Values::F32(v) => v.iter().map(|&x| f64::from(x)).collect(),
            Values::F16(v) => v.iter().map(|x| x.to_f64()).collect(),
            Values::BF16(v) => v.iter().map(|x| x.to_f64()).collect(),
        }
    }
}

/// The location of a tensor's bytes.
#[derive(Clone, Debug)]
pub(crate) enum Bytes {
    Mapped(Arc<Mmap>, Range<usize>),
    Owned(Arc<[u8]>, Range<usize>),
    /// A view of memory that may have more or fewer elements than the tensor.
    Strided(Arc<Strided>),
}

/// Memory, and the location of a tensor's elements in it: the first at `offset`, then `strides` elements apart along each axis.
#[derive(Debug)]
pub(crate) struct Strided {
    pub(crate) memory: Bytes,
    pub(crate) offset: usize,
    pub(crate) strides: Vec<usize>,
}

impl Strided {
    /// How many elements of memory a tensor of this shape extends over; `None` where that overflows.
    pub(crate) fn reach(shape: &[usize], offset: usize, strides: &[usize]) -> Option<usize> {
        if shape.contains(&0) {
            return Some(0);
        }
        let mut steps = shape.iter().zip(strides);
        steps
            .try_fold(offset, |at, (extent, stride)| at.checked_add((extent - 1).checked_mul(*stride)?))?
            .checked_add(1)
    }
}

impl Bytes {
    pub(crate) fn get(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map, range) => &map[range.clone()],
            Bytes::Owned(bytes, range) => &bytes[range.clone()],
            Bytes::Strided(view) => view.memory.get(),
        }
    }
}

/// How the bytes of a tensor are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ElementLayout {
    pub(crate) dtype: DType,
    pub(crate) fortran: bool,
    pub(crate) big_endian: bool,
}

/// One recorded tensor. The bytes stay in the mapped file until they are read.
#[derive(Clone, Debug)]
pub struct Tensor {
    shape: Vec<usize>,
    layout: ElementLayout,
    bytes: Bytes,
}

impl Tensor {
    /// The caller has checked that `bytes` has exactly the length of shape and type, or that a strided view stays within its memory.
    pub(crate) fn new(shape: Vec<usize>, layout: ElementLayout, bytes: Bytes) -> Tensor {
        debug_assert!(matches!(bytes, Bytes::Strided(_)) || Some(bytes.get().len()) == byte_len(&shape, layout.dtype));
        Tensor { shape, layout, bytes }
    }

    /// A tensor in memory, with values in row-major order.
    ///
    /// # Errors
    /// Returns the values if their number is not that of `shape`.
    pub fn held(shape: Vec<usize>, values: Values<'_>) -> Result<Tensor, Values<'_>> {
        if byte_len(&shape, values.dtype()) != values.len().checked_mul(values.dtype().size()) {
            return Err(values);
        }
        let layout = ElementLayout { dtype: values.dtype(), fortran: false, big_endian: false };
        let bytes = values.to_le_bytes();
        let range = 0..bytes.len();
        Ok(Tensor::new(shape, layout, Bytes::Owned(bytes.into(), range)))
    }

    /// A tensor of row-major, little-endian bytes; `None` if their number is not that of `shape`.
    pub(crate) fn from_bytes(shape: Vec<usize>, dtype: DType, bytes: Vec<u8>) -> Option<Tensor> {
        let layout = ElementLayout { dtype, fortran: false, big_endian: false };
        let range = 0..bytes.len();
        let fits = byte_len(&shape, dtype) == Some(bytes.len());
        fits.then(|| Tensor::new(shape, layout, Bytes::Owned(bytes.into(), range)))
    }

    /// The same elements in row-major order under another shape; `None` if that has another number of elements.
    pub(crate) fn reshaped(self, shape: Vec<usize>) -> Option<Tensor> {
        if byte_len(&shape, self.layout.dtype) != byte_len(&self.shape, self.layout.dtype) {
            return None;
        }
        match self.strides() {
            Some(_) => Tensor::held(shape, self.values()).ok(),
            None => Some(Tensor { shape, ..self }),
        }
    }

    /// Some of its rows, under a shape whose first axis they are; `None` if their numbers differ, or a row does not exist.
    pub fn rows(&self, rows: &[usize], shape: Vec<usize>) -> Option<Tensor> {
        let width = shape.iter().skip(1).try_fold(self.dtype().size(), |size, extent| size.checked_mul(*extent))?;
        let bytes = self.bytes();
        let row = |&row: &usize| bytes.get(row.checked_mul(width)?..row.checked_add(1)?.checked_mul(width)?);
        let taken: Vec<u8> = rows.iter().map(row).collect::<Option<Vec<_>>>()?.concat();
        Tensor::from_bytes(shape, self.dtype(), taken)
    }

    /// Extent of every axis, slowest first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Element type on disk.
    pub fn dtype(&self) -> DType {
        self.layout.dtype
    }

    /// Offset and strides of the elements in memory, if they are not contiguous.
    fn strides(&self) -> Option<(usize, Cow<'_, [usize]>)> {
        match &self.bytes {
            Bytes::Strided(view) => Some((view.offset, Cow::Borrowed(&view.strides))),
            _ if self.layout.fortran && self.shape.len() > 1 => {
                // With an axis of length 0 nothing is read.
                let before =
                    |axis: usize| self.shape[..axis].iter().fold(1usize, |n, extent| n.saturating_mul(*extent));
                Some((0, Cow::Owned((0..self.shape.len()).map(before).collect())))
            }
            _ => None,
        }
    }

    /// The elements' bytes, row-major and little-endian. Borrows the file unless it is big-endian, column-major or a strided view.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        if self.strides().is_none() && (!self.layout.big_endian || self.layout.dtype.size() == 1) {
            return Cow::Borrowed(self.bytes.get());
        }
        Cow::Owned(self.values().to_le_bytes())
    }

    /// The elements in row-major order. Borrows the file unless it is big-endian, column-major, strided or misaligned.
    pub fn values(&self) -> Values<'_> {
        match self.layout.dtype {
            DType::F64 => Values::F64(self.cow(f64::from_le_bytes)),
            DType::F32 => Values::F32(self.cow(f32::from_le_bytes)),
            DType::F16 => Values::F16(halves(self.cow(u16::from_le_bytes), HalfBitsSliceExt::reinterpret_cast)),
            DType::BF16 => Values::BF16(halves(self.cow(u16::from_le_bytes), HalfBitsSliceExt::reinterpret_cast)),
        }
    }

    fn cow<const N: usize, T: bytemuck::Pod>(&self, from_le: impl Fn([u8; N]) -> T) -> Cow<'_, [T]> {
        let (bytes, strides) = (self.bytes.get(), self.strides());
        let native = cfg!(target_endian = "little") && !self.layout.big_endian;
        if strides.is_none()
            && native
            && let Ok(slice) = bytemuck::try_cast_slice(bytes)
        {
            return Cow::Borrowed(slice);
        }
        let element = |at: usize| {
            let mut raw = [0u8; N];
            raw.copy_from_slice(&bytes[at * N..(at + 1) * N]);
            if self.layout.big_endian {
                raw.reverse();
            }
            from_le(raw)
        };
        Cow::Owned(match strides {
            None => (0..bytes.len() / N).map(element).collect(),
            Some((offset, strides)) => strided_walk(&self.shape, offset, &strides).map(element).collect(),
        })
    }
}

/// Halves by their bits. `half` casts bytes itself only with the derive macros of bytemuck.
fn halves<H: Copy>(bits: Cow<'_, [u16]>, cast: fn(&[u16]) -> &[H]) -> Cow<'_, [H]> {
    match bits {
        Cow::Borrowed(bits) => Cow::Borrowed(cast(bits)),
        Cow::Owned(bits) => Cow::Owned(cast(&bits).to_vec()),
    }
}

/// The memory indices of a strided tensor's elements, in row-major order.
fn strided_walk(shape: &[usize], offset: usize, strides: &[usize]) -> impl Iterator<Item = usize> {
    let count: usize = if shape.contains(&0) { 0 } else { shape.iter().product() };
    let (mut index, mut at) = (vec![0usize; shape.len()], offset);
    (0..count).map(move |_| {
        let here = at;
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                at += strides[axis];
                break;
            }
            index[axis] = 0;
            at -= (shape[axis] - 1) * strides[axis];
        }
        here
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &[usize], layout: ElementLayout, bytes: Vec<u8>) -> Tensor {
        let range = 0..bytes.len();
        Tensor::new(shape.to_vec(), layout, Bytes::Owned(bytes.into(), range))
    }

    #[test]
    fn column_major_is_read_in_row_major_order() {
        // Element (i, j, k) of a 2 x 3 x 4 tensor holds 100 i + 10 j + k; column-major stores i fastest.
        let mut bytes = Vec::new();
        for k in 0..4 {
            for j in 0..3 {
                for i in 0..2 {
                    bytes.extend_from_slice(&((100 * i + 10 * j + k) as f32).to_be_bytes());
                }
            }
        }
        let layout = ElementLayout { dtype: DType::F32, fortran: true, big_endian: true };
        let values = tensor(&[2, 3, 4], layout, bytes).values().to_f64();
        assert_eq!(&values[..6], [0.0, 1.0, 2.0, 3.0, 10.0, 11.0]);
        assert_eq!(values[23], 123.0);
    }

    #[test]
    fn a_view_is_read_where_its_elements_stand() {
        let memory: Vec<u8> = (0..6u8).flat_map(|i| f32::from(i).to_le_bytes()).collect();
        let layout = ElementLayout { dtype: DType::F32, fortran: false, big_endian: false };
        let view = |shape: &[usize], offset: usize, strides: &[usize]| {
            let range = 0..memory.len();
            let memory = Bytes::Owned(memory.clone().into(), range);
            let view = Strided { memory, offset, strides: strides.to_vec() };
            Tensor::new(shape.to_vec(), layout, Bytes::Strided(Arc::new(view)))
        };
        assert_eq!(view(&[3, 2], 0, &[1, 3]).values().to_f64(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(view(&[2, 2], 1, &[0, 2]).values().to_f64(), [1.0, 3.0, 1.0, 3.0]);
        assert_eq!(view(&[2, 1], 1, &[4, 9]).bytes().len(), 8);
        assert_eq!(view(&[2, 2], 1, &[0, 2]).reshaped(vec![4]).unwrap().values().to_f64(), [1.0, 3.0, 1.0, 3.0]);
        assert!(view(&[0, 2], 9, &[1, 1]).values().is_empty());
        assert_eq!(Strided::reach(&[3, 2], 1, &[1, 3]), Some(7));
        assert_eq!(Strided::reach(&[3, 2], 1, &[usize::MAX, 3]), None);
        assert_eq!(Strided::reach(&[3, 0], 9, &[usize::MAX, 3]), Some(0));
    }

    #[test]
    fn half_types_widen_exactly() {
        let layout = ElementLayout { dtype: DType::BF16, fortran: false, big_endian: false };
        let tensor = tensor(&[2], layout, vec![0x80, 0x3f, 0x49, 0x40]);
        let values = tensor.values();
        assert_eq!((values.get(0), values.get(1)), (1.0, 3.140625));
    }

    #[test]
    fn sizes_that_overflow_are_none() {
        assert_eq!(byte_len(&[usize::MAX, 2], DType::F16), None);
        assert_eq!(byte_len(&[1 << 62, 2], DType::F32), None);
        assert_eq!(byte_len(&[0, usize::MAX], DType::F32), Some(0));
        assert_eq!(byte_len(&[], DType::F64), Some(8));
    }
}

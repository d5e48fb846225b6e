//! Writes tensors as .npy: NumPy's header, then the values, row-major and little-endian.

use std::io::{self, Write};

use crate::element::{DType, Element};

/// The first bytes of a .npy.
pub(crate) const MAGIC: &[u8] = b"\x93NUMPY";

/// The values begin at a multiple of this, as in NumPy.
const ALIGNMENT: usize = 64;

/// How many bytes are converted before they are written: few enough for the cache, and enough for few writes.
const CHUNK: usize = 1 << 18;

/// Writes `values`, whose number must be that of `shape`.
pub(crate) fn write_npy<T: Element>(shape: &[usize], values: &[T], out: &mut dyn Write) -> io::Result<()> {
    const { assert!(size_of::<T::Bytes>() == T::DTYPE.size(), "Element::Bytes is not as long as its DTYPE") };
    out.write_all(&header(T::DTYPE, shape)?)?;
    let size = T::DTYPE.size();
    let mut bytes = vec![0; CHUNK.min(size_of::<T::Bytes>() * values.len())];
    for values in values.chunks(CHUNK / size) {
        let bytes = &mut bytes[..size * values.len()];
        for (bytes, value) in bytes.chunks_exact_mut(size).zip(values) {
            bytes.copy_from_slice(value.little_endian().as_ref());
        }
        out.write_all(bytes)?;
    }
    Ok(())
}

/// The bytes before the values, in format 1.0.
fn header(dtype: DType, shape: &[usize]) -> io::Result<Vec<u8>> {
    let descr = match dtype {
        DType::F64 => "<f8",
        DType::F32 => "<f4",
        DType::F16 => "<f2",
        // NumPy has no bfloat16: this is how ml_dtypes' bfloat16 is saved.
        DType::BF16 => "<V2",
    };
    let extents: Vec<String> = shape.iter().map(usize::to_string).collect();
    // A Python tuple of one element ends with a comma.
    let comma = if shape.len() == 1 { "," } else { "" };
    let dictionary =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}{comma}), }}", extents.join(", "));
    // The dictionary follows the magic, two bytes of version and two of length; spaces and a line feed end the header.
    let begin = MAGIC.len() + 4;
    let len = (begin + dictionary.len() + 1).next_multiple_of(ALIGNMENT) - begin;
    let told = u16::try_from(len).map_err(|_| io::Error::other("more axes than the header of a .npy has room for"))?;
    let mut header = [MAGIC, &[1, 0], &told.to_le_bytes()].concat();
    writeln!(header, "{dictionary:<width$}", width = len - 1)?;
    Ok(header)
}

/// The view's elements in row-major order, copied only if they are not.
#[cfg(feature = "ndarray")]
pub(crate) fn row_major<'v, T: Copy, D: ndarray::Dimension>(
    view: &'v ndarray::ArrayView<'_, T, D>,
) -> std::borrow::Cow<'v, [T]> {
    match view.as_slice() {
        Some(slice) => slice.into(),
        None => view.iter().copied().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::ArrayD;
    use ndarray_npy::{ReadDataError, ReadNpyExt, ReadableElement};
    use py_literal::Value;

    /// An element type given by its bits, as an engine with its own types would define it; ndarray-npy reads it back.
    macro_rules! bits {
        ($($name:ident, $bits:ty, $dtype:ident, $descr:literal;)*) => {$(
            #[derive(Clone, Copy, Debug, PartialEq)]
            struct $name($bits);

            impl Element for $name {
                const DTYPE: DType = DType::$dtype;
                type Bytes = [u8; size_of::<$bits>()];

                fn little_endian(self) -> Self::Bytes {
                    self.0.to_le_bytes()
                }
            }

            impl ReadableElement for $name {
                fn read_to_end_exact_vec<R: io::Read>(
                    mut reader: R,
                    descr: &Value,
                    len: usize,
                ) -> Result<Vec<Self>, ReadDataError> {
                    if *descr != Value::String($descr.into()) {
                        return Err(ReadDataError::WrongDescriptor(descr.clone()));
                    }
                    let mut bytes = Vec::new();
                    reader.read_to_end(&mut bytes)?;
                    let (whole, rest) = bytes.as_chunks();
                    assert_eq!((whole.len(), rest.len()), (len, 0));
                    Ok(whole.iter().map(|bytes| $name(<$bits>::from_le_bytes(*bytes))).collect())
                }
            }
        )*};
    }

    bits! {
        Double, u64, F64, "<f8";
        Single, u32, F32, "<f4";
        Half, u16, F16, "<f2";
        Brain, u16, BF16, "<V2";
    }

    const SHAPES: [&[usize]; 9] = [
        &[],
        &[1],
        &[7],
        &[2, 3],
        &[3, 1, 5],
        &[0],
        &[4, 0, 2],
        &[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2],
        // More than one write for the smallest type, and not a whole number of writes.
        &[CHUNK / 2 + 3],
    ];

    fn written<T: Element>(shape: &[usize], values: &[T]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_npy(shape, values, &mut bytes).unwrap();
        bytes
    }

    /// Values with many bit patterns, among them NaNs with payloads, infinities and subnormal numbers.
    fn patterns(shape: &[usize]) -> impl Iterator<Item = u64> {
        let count = crate::element::element_count(shape).unwrap();
        (0..count as u64).map(|i| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(i as u32 % 64))
    }

    fn same<T: Element + ReadableElement + PartialEq + std::fmt::Debug>(of_bits: impl Fn(u64) -> T) {
        for shape in SHAPES {
            let values: Vec<T> = patterns(shape).map(&of_bits).collect();
            let bytes = written(shape, &values);
            let read = ArrayD::<T>::read_npy(&bytes[..]).unwrap();
            assert_eq!((read.shape(), read.is_standard_layout()), (shape, true));
            assert!(read.as_slice().unwrap() == values, "{shape:?} of {}", T::DTYPE);
            let data = bytes.len() - values.len() * T::DTYPE.size();
            assert_eq!((data % ALIGNMENT, bytes[data - 1]), (0, b'\n'), "{shape:?} of {}", T::DTYPE);
        }
    }

    #[test]
    fn ndarray_npy_reads_every_bit() {
        same(Double);
        same(|bits| Single(bits as u32));
        same(|bits| Half(bits as u16));
        same(|bits| Brain(bits as u16));
    }

    #[test]
    fn floats_are_written_as_their_bits() {
        let shape: &[usize] = &[3, 1, 5];
        let f64s: Vec<f64> = patterns(shape).map(f64::from_bits).collect();
        assert_eq!(written(shape, &f64s), written(shape, &patterns(shape).map(Double).collect::<Vec<_>>()));
        let f32s: Vec<f32> = patterns(shape).map(|bits| f32::from_bits(bits as u32)).collect();
        let due: Vec<_> = patterns(shape).map(|bits| Single(bits as u32)).collect();
        assert_eq!(written(shape, &f32s), written(shape, &due));
    }

    #[test]
    #[cfg(feature = "half")]
    fn halves_are_written_as_their_bits() {
        let shape: &[usize] = &[3, 1, 5];
        let bits = || patterns(shape).map(|bits| bits as u16);
        let f16s: Vec<half::f16> = bits().map(half::f16::from_bits).collect();
        assert_eq!(written(shape, &f16s), written(shape, &bits().map(Half).collect::<Vec<_>>()));
        let bf16s: Vec<half::bf16> = bits().map(half::bf16::from_bits).collect();
        assert_eq!(written(shape, &bf16s), written(shape, &bits().map(Brain).collect::<Vec<_>>()));
    }

    #[test]
    fn the_header_is_numpys() {
        for (shape, tuple) in [(&[][..], "()"), (&[7], "(7,)"), (&[2, 3], "(2, 3)")] {
            let header = header(DType::F32, shape).unwrap();
            let dictionary = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {tuple}, }}");
            assert_eq!(header[..10], *b"\x93NUMPY\x01\x00\x76\x00");
            assert_eq!(header[10..], *format!("{dictionary:<117}\n").as_bytes());
        }
        assert!(header(DType::F32, &[1; 30_000]).is_err());
    }

    #[test]
    #[cfg(feature = "ndarray")]
    fn views_are_written_row_major_whatever_their_layout() {
        let whole = ndarray::Array3::from_shape_fn((3, 4, 5), |(i, j, k)| (100 * i + 10 * j + k) as f32);
        for view in [whole.view(), whole.view().reversed_axes(), whole.slice(ndarray::s![..;2, 1.., ..;-1])] {
            let mut bytes = Vec::new();
            f32::write_npy(view, &mut bytes).unwrap();
            let read = ndarray::Array3::<f32>::read_npy(&bytes[..]).unwrap();
            assert_eq!((read.view(), read.is_standard_layout()), (view, true));
        }
    }

    /// The reverse: what ndarray-npy writes, also column-major, is read here.
    #[test]
    #[cfg(feature = "read")]
    fn what_ndarray_npy_writes_is_read() {
        use ndarray_npy::WriteNpyExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npy");
        for shape in SHAPES {
            let values: Vec<f64> = patterns(shape).map(f64::from_bits).collect();
            let array = ArrayD::from_shape_vec(shape, values).unwrap();
            for view in [array.view(), array.t()] {
                view.write_npy(std::fs::File::create(&path).unwrap()).unwrap();
                let tensor = crate::Tensor::open_npy(&path).unwrap();
                let due: Vec<u8> = view.iter().flat_map(|value| value.to_le_bytes()).collect();
                assert_eq!(tensor.shape(), view.shape());
                assert!(tensor.bytes() == due, "{shape:?}");
            }
        }
    }
}

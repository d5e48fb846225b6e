//! Defines the element types of taps, and how an element is written as bytes.

pub(crate) mod write;

use std::fmt;
use std::str::FromStr;

/// The element types a tap can be stored in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE 754 double.
    F64,
    /// IEEE 754 single.
    F32,
    /// IEEE 754 half.
    F16,
    /// bfloat16: the upper half of an f32.
    BF16,
}

impl DType {
    /// Bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            DType::F64 => 8,
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
        }
    }

    /// The name used in dump.json: f64, f32, f16, bf16.
    pub fn name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = String;

    fn from_str(name: &str) -> Result<DType, String> {
        [DType::F64, DType::F32, DType::F16, DType::BF16]
            .into_iter()
            .find(|d| d.name() == name)
            .ok_or_else(|| format!("'{name}' is not one of f64, f32, f16, bf16"))
    }
}

/// An element that can be recorded: f64, f32, with the feature `half` `half::f16` and `half::bf16`, or a type of your own that is stored as one of these.
///
/// ```
/// use firstdiff_trace::{DType, Element};
///
/// /// The bits of a bfloat16.
/// #[derive(Clone, Copy)]
/// struct Brain(u16);
///
/// impl Element for Brain {
///     const DTYPE: DType = DType::BF16;
///     type Bytes = [u8; 2];
///
///     fn little_endian(self) -> [u8; 2] {
///         self.0.to_le_bytes()
///     }
/// }
/// ```
pub trait Element: Copy {
    /// Its type in a dump.
    const DTYPE: DType;

    /// An array of [`DType::size`] bytes.
    type Bytes: AsRef<[u8]>;

    /// Its bytes, the lowest first.
    fn little_endian(self) -> Self::Bytes;

    /// Writes `view` as a .npy, in row-major order.
    ///
    /// # Errors
    /// When `writer` fails.
    #[cfg(feature = "ndarray")]
    fn write_npy<D: ndarray::Dimension>(
        view: ndarray::ArrayView<'_, Self, D>,
        writer: &mut dyn std::io::Write,
    ) -> std::io::Result<()> {
        crate::element::write::write_npy(view.shape(), &crate::element::write::row_major(&view), writer)
    }
}

macro_rules! elements {
    ($($t:ty, $dtype:ident;)*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;
            type Bytes = [u8; size_of::<$t>()];

            #[inline]
            fn little_endian(self) -> Self::Bytes {
                self.to_le_bytes()
            }
        }
    )*};
}

elements! {
    f64, F64;
    f32, F32;
}

#[cfg(feature = "half")]
elements! {
    half::f16, F16;
    half::bf16, BF16;
}

/// Number of elements of this shape; `None` when the product overflows.
pub fn element_count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
}

/// Size of `shape` in bytes; `None` when the product overflows.
pub(crate) fn byte_len(shape: &[usize], dtype: DType) -> Option<usize> {
    let bytes = shape.iter().try_fold(dtype.size(), |n, &d| n.checked_mul(d));
    bytes.filter(|&n| isize::try_from(n).is_ok())
}

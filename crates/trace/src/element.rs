//! Of which types can a tap's elements be, and how are they written? A .npy through ndarray-npy.

use std::fmt;
use std::io::Write;
use std::str::FromStr;

use half::{bf16, f16};
use ndarray::{ArrayView, Dimension};
use ndarray_npy::{WritableElement, WriteDataError, WriteNpyError, WriteNpyExt};
use py_literal::Value;

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
    /// Bytes an element takes.
    pub fn size(self) -> usize {
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

/// An element that can be recorded: f64, f32, [`half::f16`] or [`half::bf16`].
pub trait Element: Copy {
    /// Its type in a dump.
    const DTYPE: DType;

    /// Writes `view` as a .npy, in row-major order.
    ///
    /// # Errors
    /// When `writer` fails.
    fn write_npy<D: Dimension>(view: ArrayView<'_, Self, D>, writer: &mut dyn Write) -> Result<(), WriteNpyError>;
}

/// Two bytes of a type that ndarray-npy does not know: f16, or bf16 when `BRAIN`.
#[derive(Clone, Copy)]
struct TwoBytes<const BRAIN: bool>([u8; 2]);

impl<const BRAIN: bool> WritableElement for TwoBytes<BRAIN> {
    fn type_descriptor() -> Value {
        Value::String(if BRAIN { "<V2" } else { "<f2" }.into())
    }

    fn write<W: Write>(&self, mut writer: W) -> Result<(), WriteDataError> {
        Ok(writer.write_all(&self.0)?)
    }

    fn write_slice<W: Write>(slice: &[Self], mut writer: W) -> Result<(), WriteDataError> {
        let bytes: Vec<u8> = slice.iter().flat_map(|x| x.0).collect();
        Ok(writer.write_all(&bytes)?)
    }
}

macro_rules! elements {
    ($($t:ty, $dtype:ident, $view:ident => $writable:expr;)*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;

            fn write_npy<D: Dimension>($view: ArrayView<'_, $t, D>, writer: &mut dyn Write) -> Result<(), WriteNpyError> {
                // Row-major always: ndarray-npy would write a transposed view as column-major.
                $writable.as_standard_layout().write_npy(writer)
            }
        }
    )*};
}

elements! {
    f64, F64, view => view;
    f32, F32, view => view;
    f16, F16, view => view.mapv(|x| TwoBytes::<false>(x.to_le_bytes()));
    bf16, BF16, view => view.mapv(|x| TwoBytes::<true>(x.to_le_bytes()));
}

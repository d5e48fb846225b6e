//! Defines the element types of buffers.

use std::fmt;

/// Element type of a buffer or a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE 754 double.
    F64,
    /// IEEE 754 single.
    F32,
    /// IEEE 754 half.
    F16,
    /// bfloat16.
    BF16,
    /// 8-bit float with 4 bits of exponent.
    F8E4m3,
    /// 8-bit float with 5 bits of exponent.
    F8E5m2,
    /// Signed, 64 bits.
    I64,
    /// Signed, 32 bits.
    I32,
    /// Signed, 16 bits.
    I16,
    /// Signed, 8 bits.
    I8,
    /// Unsigned, 8 bits.
    U8,
    /// 0 or 1.
    Bool,
    /// Two f32.
    C64,
    /// Two f64.
    C128,
}

/// How values of a type are stored and computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// i64; bool too.
    Int,
    /// f64.
    Float,
    /// Pairs of f64.
    Complex,
}

const NAMES: [(&str, DType); 14] = [
    ("f64", DType::F64),
    ("f32", DType::F32),
    ("f16", DType::F16),
    ("bf16", DType::BF16),
    ("f8_e4m3", DType::F8E4m3),
    ("f8_e5m2", DType::F8E5m2),
    ("i64", DType::I64),
    ("i32", DType::I32),
    ("i16", DType::I16),
    ("i8", DType::I8),
    ("u8", DType::U8),
    ("bool", DType::Bool),
    ("c64", DType::C64),
    ("c128", DType::C128),
];

impl DType {
    /// The type of that name in program.json.
    pub fn from_name(name: &str) -> Option<DType> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype)
    }

    /// Its name in program.json.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, dtype)| *dtype == self).map_or("", |(name, _)| name)
    }

    /// How its values are stored and computed.
    pub fn kind(self) -> Kind {
        match self {
            DType::F64 | DType::F32 | DType::F16 | DType::BF16 | DType::F8E4m3 | DType::F8E5m2 => Kind::Float,
            DType::C64 | DType::C128 => Kind::Complex,
            _ => Kind::Int,
        }
    }

    /// How many numbers one element takes in a buffer's memory.
    pub(crate) fn units(self) -> usize {
        if self.kind() == Kind::Complex { 2 } else { 1 }
    }

    /// Whether a buffer of `self` can be viewed as `other`: complex numbers as their parts, and integers of equal size.
    pub(crate) fn can_be_viewed_as(self, other: DType) -> bool {
        let part = |dtype| match dtype {
            DType::C64 => DType::F32,
            DType::C128 => DType::F64,
            DType::Bool => DType::U8,
            dtype => dtype,
        };
        part(self) == part(other)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

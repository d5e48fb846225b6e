//! Tells where a tensor is in the files of a model.

use std::ops::Range;

use crate::storage::Storage;

/// The bytes of a file: mapped, or decoded into memory.
pub(crate) type Bytes = Box<dyn AsRef<[u8]> + Send + Sync>;

/// The location of one tensor.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Index of its file.
    pub(crate) file: usize,
    /// The element type; `Err` holds the name of one that is not supported.
    pub(crate) storage: Result<Storage, String>,
    /// Extent of every axis, slowest first.
    pub(crate) shape: Vec<usize>,
    /// The tensor's bytes in the file. The format's reader has checked that they match storage and shape.
    pub(crate) bytes: Range<usize>,
    /// Byte order and transposition.
    pub(crate) order: Order,
}

/// Byte order and transposition of a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Order {
    /// Multi-byte numbers begin with the high byte.
    pub(crate) big_endian: bool,
    /// A matrix \[out,in\] that is stored as \[in,out\].
    pub(crate) transposed: bool,
}

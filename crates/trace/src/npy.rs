//! Parses .npy headers, and checks that the file has the size that they declare.

use crate::element::write::MAGIC;
use crate::element::{DType, byte_len};
use crate::meta::AttentionMask;
use crate::tensor::ElementLayout;

/// Why bytes are not a .npy of floats.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NpyError {
    /// No bytes at all.
    #[error("the file is empty")]
    Empty,
    /// Another file type, or raw floats with the ending .npy.
    #[error("not a .npy file: it does not begin with \\x93NUMPY (raw floats without a header?)")]
    Magic,
    /// A format version other than 1, 2 and 3.
    #[error("a .npy of version {0}.{1}; 1.0, 2.0 and 3.0 are known")]
    Version(u8, u8),
    /// The file ends inside its header.
    #[error("the file ends inside its header: {needed} bytes needed, {found} found")]
    HeaderTruncated {
        /// Bytes the header needs.
        needed: usize,
        /// Bytes in the file.
        found: usize,
    },
    /// The header is not a valid dictionary.
    #[error("the header is not a .npy dictionary: {0}")]
    Header(&'static str),
    /// An element type that holds no floats.
    #[error("element type '{0}' is not f64, f32, f16 or bf16")]
    DType(String),
    /// Two-byte elements of unknown type, as NumPy writes bfloat16.
    #[error(
        "two-byte elements of unknown type ('<V2', as NumPy stores bfloat16): say which: dtype in dump.json, or --dtype bf16"
    )]
    Untyped,
    /// dump.json declares another type than the header.
    #[error("the header says {header} where dump.json says {declared}")]
    OtherDType {
        /// Type by the header.
        header: DType,
        /// Type by dump.json.
        declared: DType,
    },
    /// The shape's product overflows.
    #[error("shape {0:?} overflows")]
    Overflow(Vec<usize>),
    /// Fewer or more bytes than the shape needs.
    #[error("shape {shape:?} of {dtype} needs {needed} bytes of data, the file holds {found}")]
    Length {
        /// Shape in the header.
        shape: Vec<usize>,
        /// Element type.
        dtype: DType,
        /// Bytes needed.
        needed: usize,
        /// Bytes found.
        found: usize,
    },
}

/// A header that matches the length of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) shape: Vec<usize>,
    pub(crate) layout: ElementLayout,
    /// Offset of the first element.
    pub(crate) data: usize,
}

/// The largest size of a header; NumPy's own limit.
pub(crate) const HEADER_LIMIT: usize = 10_000 + 12;

/// Reads the header in `start`, the first bytes of a file of `total` bytes ([`HEADER_LIMIT`] of them are enough), and checks that the file is exactly as
/// long as the header declares.
pub(crate) fn read_header(start: &[u8], total: usize, declared: Option<DType>) -> Result<Header, NpyError> {
    let (descr, fortran, shape, data) = read_text(start, total)?;
    let layout = ElementLayout { fortran, ..element_type(&descr, declared)? };
    let needed = byte_len(&shape, layout.dtype).ok_or_else(|| NpyError::Overflow(shape.clone()))?;
    if total - data != needed {
        return Err(NpyError::Length { shape, dtype: layout.dtype, needed, found: total - data });
    }
    Ok(Header { shape, layout, data })
}

/// The largest size of a mask, in bytes.
pub(crate) const MASK_LIMIT: u64 = 16 << 20;

/// Reads a file of integers or floats as a mask, if all of them are 0 or 1.
pub(crate) fn read_mask(file: &[u8]) -> Option<AttentionMask> {
    let (descr, fortran, shape, data) = read_text(file, file.len()).ok()?;
    let (size, one) = match descr.get(1..)? {
        "b1" | "u1" | "i1" => (1, 1),
        "u2" | "i2" => (2, 1),
        "u4" | "i4" => (4, 1),
        "u8" | "i8" => (8, 1),
        "f4" => (4, u64::from(1f32.to_bits())),
        "f8" => (8, 1f64.to_bits()),
        _ => return None,
    };
    let mut bytes = file[data..].to_vec();
    if descr.starts_with('>') {
        bytes.chunks_mut(size).for_each(<[u8]>::reverse);
    }
    AttentionMask::parse_bytes(&shape, &bytes, size, one).filter(|_| !fortran || shape.len() < 2)
}

/// The type, whether the array is column-major, the shape, and the offset of the elements.
fn read_text(start: &[u8], total: usize) -> Result<(String, bool, Vec<usize>, usize), NpyError> {
    if total == 0 {
        return Err(NpyError::Empty);
    }
    if !start.starts_with(MAGIC) {
        return Err(if MAGIC.starts_with(start) {
            NpyError::HeaderTruncated { needed: 10, found: total }
        } else {
            NpyError::Magic
        });
    }
    let truncated = |needed| NpyError::HeaderTruncated { needed, found: total };
    let [major, minor] = start.get(6..8).ok_or(truncated(10))?.try_into().map_err(|_| truncated(10))?;
    let (begin, text_len) = match (major, minor) {
        (1, 0) => {
            let raw = start.get(8..10).ok_or(truncated(10))?;
            (10usize, usize::from(u16::from_le_bytes([raw[0], raw[1]])))
        }
        (2 | 3, 0) => {
            let raw = start.get(8..12).ok_or(truncated(12))?;
            (12, u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]) as usize)
        }
        _ => return Err(NpyError::Version(major, minor)),
    };
    let data = begin.checked_add(text_len).ok_or(NpyError::Header("its length overflows"))?;
    if data > total {
        return Err(truncated(data));
    }
    let text = start.get(begin..data).ok_or(NpyError::Header("longer than 10,000 bytes"))?;
    let text = std::str::from_utf8(text).map_err(|_| NpyError::Header("not UTF-8"))?;
    let (descr, fortran, shape) = parse_dictionary(text)?;
    Ok((descr, fortran, shape, data))
}

fn element_type(descr: &str, declared: Option<DType>) -> Result<ElementLayout, NpyError> {
    let (order, kind) = descr.split_at_checked(1).unwrap_or(("", descr));
    let dtype = match kind {
        "f8" => DType::F64,
        "f4" => DType::F32,
        "f2" => DType::F16,
        "V2" if declared == Some(DType::BF16) => DType::BF16,
        "V2" => return Err(NpyError::Untyped),
        _ => return Err(NpyError::DType(descr.into())),
    };
    let big_endian = match order {
        "<" | "|" => false,
        "=" => cfg!(target_endian = "big"),
        ">" => true,
        _ => return Err(NpyError::DType(descr.into())),
    };
    match declared {
        Some(declared) if declared != dtype => Err(NpyError::OtherDType { header: dtype, declared }),
        _ => Ok(ElementLayout { dtype, fortran: false, big_endian }),
    }
}

/// Parses `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`, with the keys in any order.
fn parse_dictionary(text: &str) -> Result<(String, bool, Vec<usize>), NpyError> {
    let mut rest = text.trim().strip_prefix('{').ok_or(NpyError::Header("no '{'"))?.trim_start();
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    while !rest.starts_with('}') {
        let (key, after) = quoted(rest)?;
        let value = after.trim_start().strip_prefix(':').ok_or(NpyError::Header("no ':' after a key"))?.trim_start();
        rest = match key {
            "descr" => {
                let (text, after) = quoted(value).map_err(|_| NpyError::DType(first_line(value)))?;
                descr = Some(text.to_owned());
                after
            }
            "fortran_order" => {
                let (flag, after) = boolean(value)?;
                fortran = Some(flag);
                after
            }
            "shape" => {
                let (extents, after) = tuple(value)?;
                shape = Some(extents);
                after
            }
            _ => return Err(NpyError::Header("a key other than descr, fortran_order and shape")),
        }
        .trim_start();
        rest = match rest.strip_prefix(',') {
            Some(more) => more.trim_start(),
            None if rest.starts_with('}') => rest,
            None => return Err(NpyError::Header("no ',' between entries")),
        };
    }
    if !rest[1..].trim().is_empty() {
        return Err(NpyError::Header("text after '}'"));
    }
    Ok((
        descr.ok_or(NpyError::Header("no descr"))?,
        fortran.ok_or(NpyError::Header("no fortran_order"))?,
        shape.ok_or(NpyError::Header("no shape"))?,
    ))
}

fn first_line(text: &str) -> String {
    text.chars().take_while(|c| !c.is_control()).take(40).collect()
}

fn quoted(text: &str) -> Result<(&str, &str), NpyError> {
    let mark = text.chars().next().filter(|&c| c == '\'' || c == '"').ok_or(NpyError::Header("no quoted text"))?;
    text[1..].split_once(mark).ok_or(NpyError::Header("a quote is not closed"))
}

fn boolean(text: &str) -> Result<(bool, &str), NpyError> {
    let no = text.strip_prefix("False").map(|rest| (false, rest));
    let yes = || text.strip_prefix("True").map(|rest| (true, rest));
    no.or_else(yes).ok_or(NpyError::Header("fortran_order is neither True nor False"))
}

fn tuple(text: &str) -> Result<(Vec<usize>, &str), NpyError> {
    let err = NpyError::Header("shape is not a tuple of sizes");
    let (inside, rest) = text.strip_prefix('(').and_then(|t| t.split_once(')')).ok_or(err.clone())?;
    let inside = inside.trim();
    let inside = inside.strip_suffix(',').unwrap_or(inside);
    if inside.trim().is_empty() {
        return Ok((Vec::new(), rest));
    }
    let number = |part: &str| {
        let digits = part.trim().trim_end_matches('L');
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| digits.parse::<usize>().ok()).flatten().ok_or(err.clone())
    };
    Ok((inside.split(',').map(number).collect::<Result<_, _>>()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Element;
    use crate::element::write::write_npy;
    use half::bf16;
    use ndarray::arr2;

    fn bytes_of<T: Element>(values: &ndarray::Array2<T>) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_npy(values.shape(), values.as_slice().unwrap(), &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = bytes_of(&arr2(&[[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]]));
        let header = read_header(&bytes, bytes.len(), None).unwrap();
        assert_eq!(header.shape, [2, 3]);
        assert_eq!(header.layout.dtype, DType::F32);
        assert_eq!(bytes.len() - header.data, 24);
    }

    #[test]
    fn bf16_needs_to_be_told() {
        let bytes = bytes_of(&arr2(&[[bf16::ONE]]));
        assert_eq!(read_header(&bytes, bytes.len(), None), Err(NpyError::Untyped));
        assert_eq!(read_header(&bytes, bytes.len(), Some(DType::BF16)).unwrap().layout.dtype, DType::BF16);
    }

    #[test]
    fn bad_headers_say_why() {
        let good = bytes_of(&arr2(&[[1.0f32]]));
        let replaced = |from: &str, to: &str| {
            let text = String::from_utf8_lossy(&good[10..]).replace(from, to).into_bytes();
            let mut bytes = good[..10].to_vec();
            bytes.extend_from_slice(&text[..good.len() - 10]);
            read_header(&bytes, bytes.len(), None).unwrap_err()
        };
        assert_eq!(read_header(b"", 0, None), Err(NpyError::Empty));
        assert_eq!(read_header(b"\0\0\x80\x3f", 4, None), Err(NpyError::Magic));
        assert!(matches!(replaced("(1, 1)", "(9, 9)"), NpyError::Length { needed: 324, found: 4, .. }));
        assert!(matches!(replaced("<f4", "<i4"), NpyError::DType(_)));
        assert!(matches!(replaced("(1, 1)", "(-1,1)"), NpyError::Header(_)));
        assert!(matches!(replaced("False", "Maybe"), NpyError::Header(_)));
        let huge = "(18446744073709551615, 9)";
        let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {huge}}}");
        let mut bytes = b"\x93NUMPY\x01\0".to_vec();
        bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
        assert!(matches!(read_header(&bytes, bytes.len(), None), Err(NpyError::Overflow(_))));
    }

    #[test]
    fn every_truncation_is_refused() {
        let bytes = bytes_of(&arr2(&[[1.0f64, 2.0]]));
        for end in 0..bytes.len() {
            assert!(read_header(&bytes[..end], end, None).is_err(), "{end}");
        }
    }
}

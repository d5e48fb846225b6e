//! Reads raw floats without a header; the element type comes from the file's ending, or is guessed from the bits.

use std::path::Path;

use half::{bf16, f16};

use super::{Imported, stem, whole_item};
use crate::dump::{DumpError, map_file, not_a_dump};
use crate::element::DType;
use crate::tensor::{Bytes, ElementLayout, Tensor};

/// Opens raw little-endian floats as one flat tensor. `dtype` is their type, if known.
///
/// # Errors
/// When the file cannot be read, or its size is no multiple of the element size.
pub(crate) fn open(path: &Path, dtype: Option<DType>) -> Result<Imported, DumpError> {
    let map = map_file(path)?;
    let size = map.len();
    let guessed = dtype.is_none();
    let dtype = dtype.unwrap_or_else(|| guess(&map));
    if size == 0 || !size.is_multiple_of(dtype.size()) {
        return Err(not_a_dump(path, &format!("{size} bytes are no whole number of {dtype} elements")));
    }
    let layout = ElementLayout { dtype, fortran: false, big_endian: false };
    let tensor = Tensor::new(vec![size / dtype.size()], layout, Bytes::Mapped(map, 0..size));
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let notes = guessed.then(|| format!("{name}: no header; read as {} raw {dtype}", size / dtype.size()));
    let items = vec![whole_item(&stem(path), tensor)];
    Ok(Imported { items, notes: notes.into_iter().collect(), ..Imported::default() })
}

/// How many elements are examined.
const SAMPLE: usize = 4096;

/// The type as which `bytes` look like activations.
pub(super) fn guess(bytes: &[u8]) -> DType {
    if !bytes.len().is_multiple_of(4) {
        return guess_16_bit(bytes);
    }
    let words = || bytes.chunks_exact(4).take(SAMPLE);
    let total = words().count().max(1);
    let low = |w: &[u8]| u16::from_le_bytes([w[0], w[1]]);
    // Two 16-bit floats read as one f32 look plausible too, so the low half decides: in an f32 it is noise or zero.
    let zero = words().filter(|w| low(w) == 0).count();
    let sane_low =
        words().filter(|w| low(w) != 0 && (is_plausible(bf16::from_bits(low(w)).to_f64()) || sane_f16(low(w)))).count();
    let sane_high = words().filter(|w| sane_low_or_zero(u16::from_le_bytes([w[2], w[3]]))).count();
    match zero * 2 < total && sane_low * 20 >= (total - zero) * 19 && sane_high * 20 >= total * 19 {
        true => guess_16_bit(bytes),
        false => DType::F32,
    }
}

fn is_plausible(x: f64) -> bool {
    let size = x.abs();
    (1e-9..1e5).contains(&size)
}

/// Whether an f16 has an ordinary size; subnormal values and those above 1000 are rare in activations.
fn sane_f16(bits: u16) -> bool {
    let size = f16::from_bits(bits).to_f64().abs();
    (6e-5..1e3).contains(&size)
}

fn sane_low_or_zero(bits: u16) -> bool {
    bits & 0x7fff == 0 || is_plausible(bf16::from_bits(bits).to_f64()) || sane_f16(bits)
}

/// Decides between f16 and bf16: the type in which magnitudes vary as those of activations do, by a factor of about four.
fn guess_16_bit(bytes: &[u8]) -> DType {
    let bits = || bytes.chunks_exact(2).take(SAMPLE).map(|b| u16::from_le_bytes([b[0], b[1]]));
    let unlike = |scatter: f64| (scatter / USUAL_SCATTER).ln().abs();
    let as_f16 = log_std(bits().map(|b| f16::from_bits(b).to_f64()));
    let as_bf16 = log_std(bits().map(|b| bf16::from_bits(b).to_f64()));
    if unlike(as_f16) < unlike(as_bf16) { DType::F16 } else { DType::BF16 }
}

/// The standard deviation of log2 |x| for normally distributed x is 1.6.
const USUAL_SCATTER: f64 = 1.6;

/// Standard deviation of log2 |x|.
fn log_std(values: impl Iterator<Item = f64>) -> f64 {
    let logs: Vec<f64> = values.filter(|x| x.is_finite() && *x != 0.0).map(|x| x.abs().log2()).collect();
    let count = logs.len().max(1) as f64;
    let mean = logs.iter().sum::<f64>() / count;
    (logs.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / count).sqrt().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nearly normal: sums of twelve numbers of a linear congruential generator.
    fn normal(scale: f64) -> Vec<f64> {
        let mut state = 7u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as f64 / f64::from(1u32 << 31) - 0.5
        };
        (0..2000).map(|_| (0..12).map(|_| next()).sum::<f64>() * scale).collect()
    }

    #[test]
    fn the_bits_tell_the_type() {
        for scale in [0.02, 1.0, 30.0] {
            let values = normal(scale);
            let f32s: Vec<u8> = values.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect();
            let f16s: Vec<u8> = values.iter().flat_map(|&x| f16::from_f64(x).to_le_bytes()).collect();
            let bf16s: Vec<u8> = values.iter().flat_map(|&x| bf16::from_f64(x).to_le_bytes()).collect();
            let rounded: Vec<u8> = values.iter().flat_map(|&x| bf16::from_f64(x).to_f32().to_le_bytes()).collect();
            assert_eq!(guess(&f32s), DType::F32, "{scale}");
            assert_eq!(guess(&f16s), DType::F16, "{scale}");
            assert_eq!(guess(&bf16s), DType::BF16, "{scale}");
            assert_eq!(guess(&rounded), DType::F32, "{scale}");
        }
    }
}

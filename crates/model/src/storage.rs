//! How is a stored element widened to one that arithmetic is done in?

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// The element types a weight can be stored in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// IEEE 754 double.
    F64,
    /// IEEE 754 single.
    F32,
    /// IEEE 754 half.
    F16,
    /// bfloat16: the upper half of an f32.
    BF16,
}

impl Storage {
    /// Bytes of a row of `n` elements; `None` when that overflows.
    pub fn row_bytes(self, n: usize) -> Option<usize> {
        n.checked_mul(match self {
            Storage::F64 => 8,
            Storage::F32 => 4,
            Storage::F16 | Storage::BF16 => 2,
        })
    }

    /// The name in messages: f64, f32, f16, bf16.
    pub fn name(self) -> &'static str {
        match self {
            Storage::F64 => "f64",
            Storage::F32 => "f32",
            Storage::F16 => "f16",
            Storage::BF16 => "bf16",
        }
    }
}

/// A float that a forward pass can be computed in.
pub trait Real: firstdiff_core::Float {
    /// Widens (f64 to f32: rounds) the stored elements of `bytes` into `out`.
    ///
    /// The bytes are little-endian and need no alignment.
    fn widen(storage: Storage, bytes: &[u8], out: &mut [Self]);
}

macro_rules! real {
    ($float:ty, $from_f64:expr, $from_f32:expr, $halves:ident) => {
        impl Real for $float {
            fn widen(storage: Storage, bytes: &[u8], out: &mut [$float]) {
                match storage {
                    Storage::F64 => each(bytes, out, |b| $from_f64(f64::from_le_bytes(b))),
                    Storage::F32 => each(bytes, out, |b| $from_f32(f32::from_le_bytes(b))),
                    Storage::F16 => {
                        blocks(bytes, out, f16::from_le_bytes, |half, out| half.$halves(out));
                    }
                    Storage::BF16 => {
                        blocks(bytes, out, bf16::from_le_bytes, |half, out| half.$halves(out));
                    }
                }
            }
        }
    };
}

real!(f32, |x: f64| x as f32, |x: f32| x, convert_to_f32_slice);
real!(f64, |x: f64| x, f64::from, convert_to_f64_slice);

/// One element after the other.
fn each<const N: usize, E>(bytes: &[u8], out: &mut [E], read: impl Fn([u8; N]) -> E) {
    for (b, o) in bytes.as_chunks::<N>().0.iter().zip(out) {
        *o = read(*b);
    }
}

/// A block at a time, so that the processor's own conversion of halves is used.
fn blocks<H: Copy + Default, E>(bytes: &[u8], out: &mut [E], read: fn([u8; 2]) -> H, widen: fn(&[H], &mut [E])) {
    const BLOCK: usize = 256;
    let mut halves = [H::default(); BLOCK];
    for (bytes, out) in bytes.chunks(2 * BLOCK).zip(out.chunks_mut(BLOCK)) {
        each(bytes, &mut halves, read);
        widen(&halves[..out.len()], out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every 16-bit pattern, read from an odd address, against `half` one element at a time.
    #[test]
    fn every_half_widens_exactly_at_any_alignment() {
        let mut bytes = vec![0u8];
        bytes.extend((0..=u16::MAX).flat_map(u16::to_le_bytes));
        let (mut f32s, mut f64s) = (vec![0f32; 1 << 16], vec![0f64; 1 << 16]);
        for storage in [Storage::F16, Storage::BF16] {
            f32::widen(storage, &bytes[1..], &mut f32s);
            f64::widen(storage, &bytes[1..], &mut f64s);
            for bits in 0..=u16::MAX {
                let expected = match storage {
                    Storage::F16 => f16::from_bits(bits).to_f64(),
                    _ => bf16::from_bits(bits).to_f64(),
                };
                for actual in [f64::from(f32s[usize::from(bits)]), f64s[usize::from(bits)]] {
                    assert!(actual == expected || actual.is_nan() && expected.is_nan(), "{bits:#06x}");
                }
            }
        }
    }

    #[test]
    fn singles_and_doubles() {
        let values = [1.5f64, -0.1, 3e300, f64::INFINITY];
        let bytes: Vec<u8> = [7u8].into_iter().chain(values.iter().flat_map(|x| x.to_le_bytes())).collect();
        let (mut f32s, mut f64s) = ([0f32; 4], [0f64; 4]);
        f64::widen(Storage::F64, &bytes[1..], &mut f64s);
        f32::widen(Storage::F64, &bytes[1..], &mut f32s);
        assert_eq!(f64s, values);
        assert_eq!(f32s, values.map(|x| x as f32));
        let bytes: Vec<u8> = [7u8].into_iter().chain(f32s.iter().flat_map(|x| x.to_le_bytes())).collect();
        f64::widen(Storage::F32, &bytes[1..], &mut f64s);
        assert_eq!(f64s, f32s.map(f64::from));
    }
}

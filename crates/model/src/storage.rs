//! Defines the storage types of weights, and widens stored elements to f32 or f64.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::ggml;

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
    /// A float of 8 bits: four of exponent, three of mantissa.
    E4M3,
    /// A float of 8 bits: five of exponent, two of mantissa.
    E5M2,
    /// A power of two.
    E8M0,
    /// A whole number of 8 bits, from 0.
    U8,
    /// A whole number of 8 bits.
    I8,
    /// A whole number of 16 bits.
    I16,
    /// A whole number of 32 bits.
    I32,
    /// A whole number of 64 bits.
    I64,
    /// Blocks of one of ggml's types.
    Block(ggml::Type),
    /// llama2.c's own format: all elements as 8-bit integers, then an f32 scale for each group of this size.
    Groups(usize),
    /// Codes, with their scales in other tensors.
    Packed(Packing),
}

/// A way to pack weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// The name in messages: AWQ, NVFP4 ...
    pub name: &'static str,
    /// What the codes stand for.
    pub levels: Levels,
    /// Elements of a row that share a scale.
    pub group: usize,
}

/// The levels that codes stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Levels {
    /// So many, as far from each other, about 0.
    Even(u32),
    /// So many, as far from each other, between the least value of a group and the largest.
    Between(u32),
    /// Those of a table of so many.
    Listed(u32),
    /// Floats with so many bits of mantissa.
    Float(u32),
}

impl Storage {
    /// Bytes of `n` elements from the start of a block; `None` when that overflows, or `n` is no whole number of blocks.
    pub fn row_bytes(self, n: usize) -> Option<usize> {
        let (len, bytes) = self.block();
        match self {
            Storage::Groups(group) if group > 0 && n.is_multiple_of(group) => {
                (n / group).checked_mul(4)?.checked_add(n)
            }
            Storage::Groups(_) | Storage::Packed(_) => None,
            _ if n.is_multiple_of(len) => (n / len).checked_mul(bytes),
            _ => None,
        }
    }

    /// Elements and bytes of the smallest part that can be read alone.
    fn block(self) -> (usize, usize) {
        match self {
            Storage::F64 | Storage::I64 => (1, 8),
            Storage::F32 | Storage::I32 => (1, 4),
            Storage::F16 | Storage::BF16 | Storage::I16 => (1, 2),
            Storage::E4M3 | Storage::E5M2 | Storage::E8M0 | Storage::U8 | Storage::I8 | Storage::Packed(_) => (1, 1),
            Storage::Block(kind) => (kind.block_len(), kind.block_bytes()),
            Storage::Groups(group) => (group, group + 4),
        }
    }

    /// The name in messages: f32, bf16, Q4_K ...
    pub fn name(self) -> &'static str {
        match self {
            Storage::F64 => "f64",
            Storage::F32 => "f32",
            Storage::F16 => "f16",
            Storage::BF16 => "bf16",
            Storage::E4M3 => "fp8 (e4m3)",
            Storage::E5M2 => "fp8 (e5m2)",
            Storage::E8M0 => "e8m0",
            Storage::U8 => "u8",
            Storage::I8 => "i8",
            Storage::I16 => "i16",
            Storage::I32 => "i32",
            Storage::I64 => "i64",
            Storage::Block(kind) => kind.name(),
            Storage::Groups(_) => "Q8_0 of llama2.c",
            Storage::Packed(packing) => packing.name,
        }
    }

    /// Elements that share a scale: 1 for plain numbers.
    pub fn block_len(self) -> usize {
        self.block().0
    }

    /// Whether the values are quantised.
    pub fn is_quantised(self) -> bool {
        matches!(self, Storage::Block(_) | Storage::Groups(_) | Storage::Packed(_))
    }

    /// Turns the bytes of whole blocks from big-endian to little-endian, or back.
    pub(crate) fn swap(self, bytes: &mut [u8]) {
        let (_, size) = self.block();
        for block in bytes.chunks_exact_mut(size.max(1)) {
            match self {
                Storage::Block(kind) => {
                    for &(offset, width, count) in kind.words() {
                        block[offset..offset + width * count].chunks_exact_mut(width).for_each(<[u8]>::reverse);
                    }
                }
                // These have one byte order; their readers never call this.
                Storage::Groups(_) | Storage::Packed(_) => {}
                _ => block.reverse(),
            }
        }
    }
}

/// A 16-bit float that values can be rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// IEEE 754 half.
    F16,
    /// bfloat16.
    BF16,
}

impl Half {
    /// The nearest value, ties to even; infinity beyond the range.
    pub fn round(self, x: f32) -> f32 {
        match self {
            Half::F16 => f16::from_f32(x).to_f32(),
            Half::BF16 => bf16::from_f32(x).to_f32(),
        }
    }

    /// The same for each element.
    pub fn round_all(self, x: &mut [f32]) {
        match self {
            Half::F16 => round_all([f16::ZERO; CHUNK], x),
            Half::BF16 => round_all([bf16::ZERO; CHUNK], x),
        }
    }
}

/// How many numbers are rounded together.
const CHUNK: usize = 128;

fn round_all<H>(mut halves: [H; CHUNK], x: &mut [f32])
where
    [H]: HalfFloatSliceExt,
{
    for x in x.chunks_mut(CHUNK) {
        let halves = &mut halves[..x.len()];
        halves.convert_from_f32_slice(x);
        halves.convert_to_f32_slice(x);
    }
}

/// A float type in which a forward pass can be computed.
pub trait Real: firstdiff_core::Float + bytemuck::Pod {
    /// Its own storage type.
    const STORAGE: Storage;

    /// Converts the stored elements of `bytes` into `out`: widened, or rounded from f64 to f32.
    ///
    /// The bytes are little-endian, need no alignment, and are whole blocks.
    ///
    /// # Panics
    /// For [`Storage::Groups`] and [`Storage::Packed`], whose scales are stored apart: see [`WeightView`](crate::WeightView).
    fn widen(storage: Storage, bytes: &[u8], out: &mut [Self]);
}

/// The value of a float of 8 bits: a sign, four bits of exponent, three of mantissa; no infinity.
pub(crate) fn e4m3(x: u8) -> f32 {
    let sign = if x & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from(x >> 3 & 15), f32::from(x & 7));
    sign * match (exponent, x & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    }
}

/// The value of a float of 8 bits: the upper half of an f16.
pub(crate) fn e5m2(x: u8) -> f32 {
    half::f16::from_bits(u16::from(x) << 8).to_f32()
}

/// A power of two, by its exponent; 255 is NaN.
pub(crate) fn e8m0(x: u8) -> f32 {
    match x {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(x) << 23),
    }
}

macro_rules! real {
    ($float:ty, $own:expr, $from_f64:expr, $from_f32:expr, $halves:ident, $blocks:expr) => {
        impl Real for $float {
            const STORAGE: Storage = $own;

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
                    Storage::E4M3 => each(bytes, out, |[b]| $from_f32(e4m3(b))),
                    Storage::E5M2 => each(bytes, out, |[b]| $from_f32(e5m2(b))),
                    Storage::E8M0 => each(bytes, out, |[b]| $from_f32(e8m0(b))),
                    Storage::U8 => each(bytes, out, |[b]| b as $float),
                    Storage::I8 => each(bytes, out, |b| i8::from_le_bytes(b) as $float),
                    Storage::I16 => each(bytes, out, |b| i16::from_le_bytes(b) as $float),
                    Storage::I32 => each(bytes, out, |b| i32::from_le_bytes(b) as $float),
                    Storage::I64 => each(bytes, out, |b| i64::from_le_bytes(b) as $float),
                    Storage::Block(kind) => $blocks(kind, bytes, out),
                    Storage::Groups(_) | Storage::Packed(_) => unreachable!("these are read by their view"),
                }
            }
        }
    };
}

real!(f32, Storage::F32, |x: f64| x as f32, |x: f32| x, convert_to_f32_slice, ggml::Type::dequantise);
real!(f64, Storage::F64, |x: f64| x, f64::from, convert_to_f64_slice, dequantise_wide);

/// Dequantises to f32 as ggml defines it, then widens.
fn dequantise_wide(kind: ggml::Type, bytes: &[u8], out: &mut [f64]) {
    let mut block = vec![0f32; kind.block_len()];
    for (bytes, out) in bytes.chunks_exact(kind.block_bytes()).zip(out.chunks_exact_mut(kind.block_len())) {
        kind.dequantise(bytes, &mut block);
        out.iter_mut().zip(&block).for_each(|(o, &x)| *o = f64::from(x));
    }
}

/// Converts one element after the other.
fn each<const N: usize, E>(bytes: &[u8], out: &mut [E], read: impl Fn([u8; N]) -> E) {
    const LINE: usize = 64;
    for (bytes, out) in bytes.chunks(LINE).zip(out.chunks_mut(LINE / N)) {
        ggml::prefetch_ahead(bytes);
        for (b, o) in bytes.as_chunks::<N>().0.iter().zip(out) {
            *o = read(*b);
        }
    }
}

/// Converts a block at a time, so that the processor's own f16 conversion is used.
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

    /// Reads every 16-bit pattern from an odd address, and compares with `half` one element at a time.
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

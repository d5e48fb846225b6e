//! Dequantises ggml's block types: the sizes of each type, its scales, and the f32 values of its blocks.
//!
//! Source: ggml, ggml-common.h (the blocks) and ggml-quants.c (their values). Values are bit for bit those of PyPI `gguf` and of ggml's own `to_float`: see
//! docs/measured/quants.md.

mod codebook;
mod fp4;
#[cfg(target_arch = "x86_64")]
pub(crate) mod fused;
pub(crate) mod int_dot;
mod k;
mod legacy;
mod ternary;

use firstdiff_simd::{Level, prefetch};

/// One of ggml's block types.
#[allow(missing_docs, reason = "the names are ggml's own")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Q8K,
    IQ1S,
    IQ1M,
    IQ2XXS,
    IQ2XS,
    IQ2S,
    IQ3XXS,
    IQ3S,
    IQ4NL,
    IQ4XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
    Q1_0,
}

/// The properties of a block type.
struct TypeInfo {
    kind: Type,
    /// Its number in files.
    id: u32,
    name: &'static str,
    /// Elements and bytes of a block.
    size: (usize, usize),
    /// (offset, width, count) of the block's multi-byte numbers.
    words: &'static [(usize, usize, usize)],
    scales: Option<Scales>,
}

/// How fine the steps of a type are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scales {
    /// Elements that share a scale.
    pub group: usize,
    /// Number of values that an element can take under one scale.
    pub levels: u32,
    /// Whether each group has a minimum; otherwise the values are centred on 0.
    pub minimum: bool,
}

const fn scales(group: usize, levels: u32, minimum: bool) -> Option<Scales> {
    Some(Scales { group, levels, minimum })
}

macro_rules! types {
    ($($kind:ident $id:literal $name:literal $size:tt $words:tt $scales:expr, $dequantise:expr;)*) => {
        const TYPES: &[TypeInfo] =
            &[$(TypeInfo { kind: Type::$kind, id: $id, name: $name, size: $size, words: &$words, scales: $scales }),*];

        impl Type {
            /// Every type.
            pub const ALL: &'static [Type] = &[$(Type::$kind),*];
        }

        #[inline(always)]
        fn dequantise(kind: Type, bytes: &[u8], out: &mut [f32]) {
            match kind {
                // Written out for each type, so that everything is inlined and compiled for the caller's instruction set.
                $(Type::$kind => {
                    const SIZE: (usize, usize) = $size;
                    let blocks = bytes.as_chunks::<{ SIZE.1 }>().0.iter();
                    for (block, out) in blocks.zip(out.as_chunks_mut::<{ SIZE.0 }>().0) {
                        prefetch_ahead(block);
                        $dequantise(block, out);
                    }
                })*
            }
        }
    };
}

types! {
    Q4_0 2 "Q4_0" (32, 18) [(0, 2, 1)] scales(32, 16, false), legacy::q4_0;
    Q4_1 3 "Q4_1" (32, 20) [(0, 2, 2)] scales(32, 16, true), legacy::q4_1;
    Q5_0 6 "Q5_0" (32, 22) [(0, 2, 1), (2, 4, 1)] scales(32, 32, false), legacy::q5_0;
    Q5_1 7 "Q5_1" (32, 24) [(0, 2, 2), (4, 4, 1)] scales(32, 32, true), legacy::q5_1;
    Q8_0 8 "Q8_0" (32, 34) [(0, 2, 1)] scales(32, 255, false), legacy::q8_0;
    Q8_1 9 "Q8_1" (32, 36) [(0, 2, 2)] scales(32, 255, false), legacy::q8_1;
    Q2K 10 "Q2_K" (256, 84) [(80, 2, 2)] scales(16, 4, true), k::q2_k;
    Q3K 11 "Q3_K" (256, 110) [(108, 2, 1)] scales(16, 8, false), k::q3_k;
    Q4K 12 "Q4_K" (256, 144) [(0, 2, 2)] scales(32, 16, true), k::q4_k;
    Q5K 13 "Q5_K" (256, 176) [(0, 2, 2)] scales(32, 32, true), k::q5_k;
    Q6K 14 "Q6_K" (256, 210) [(208, 2, 1)] scales(16, 64, false), k::q6_k;
    Q8K 15 "Q8_K" (256, 292) [(0, 4, 1), (260, 2, 16)] scales(256, 255, false), k::q8_k;
    IQ2XXS 16 "IQ2_XXS" (256, 66) [(0, 2, 33)] None, codebook::iq2_xxs;
    IQ2XS 17 "IQ2_XS" (256, 74) [(0, 2, 33)] None, codebook::iq2_xs;
    IQ3XXS 18 "IQ3_XXS" (256, 98) [(0, 2, 1)] None, codebook::iq3_xxs;
    IQ1S 19 "IQ1_S" (256, 50) [(0, 2, 1), (34, 2, 8)] None, codebook::iq1_s;
    IQ4NL 20 "IQ4_NL" (32, 18) [(0, 2, 1)] scales(32, 16, false), legacy::iq4_nl;
    IQ3S 21 "IQ3_S" (256, 110) [(0, 2, 1)] None, codebook::iq3_s;
    IQ2S 22 "IQ2_S" (256, 82) [(0, 2, 1)] None, codebook::iq2_s;
    IQ4XS 23 "IQ4_XS" (256, 136) [(0, 2, 2)] scales(32, 16, false), k::iq4_xs;
    IQ1M 29 "IQ1_M" (256, 56) [] None, codebook::iq1_m;
    TQ1_0 34 "TQ1_0" (256, 54) [(52, 2, 1)] scales(256, 3, false), ternary::tq1_0;
    TQ2_0 35 "TQ2_0" (256, 66) [(64, 2, 1)] scales(256, 3, false), ternary::tq2_0;
    MXFP4 39 "MXFP4" (32, 17) [] scales(32, 8, false), fp4::mxfp4;
    NVFP4 40 "NVFP4" (64, 36) [] scales(16, 8, false), fp4::nvfp4;
    Q1_0 41 "Q1_0" (128, 18) [(0, 2, 1)] scales(128, 2, false), ternary::q1_0;
}

impl Type {
    fn info(self) -> &'static TypeInfo {
        TYPES.iter().find(|info| info.kind == self).expect("every type is in the table")
    }

    /// The type with that number in files.
    pub fn from_id(id: u32) -> Option<Type> {
        TYPES.iter().find(|info| info.id == id).map(|info| info.kind)
    }

    /// Its number in files.
    pub fn id(self) -> u32 {
        self.info().id
    }

    /// ggml's name: `Q4_K`.
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// Elements of a block.
    pub fn block_len(self) -> usize {
        self.info().size.0
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.info().size.1
    }

    /// (offset, width, count) of the block's multi-byte numbers, whose bytes are swapped in a big-endian file.
    pub fn words(self) -> &'static [(usize, usize, usize)] {
        self.info().words
    }

    /// How fine the type's steps are; `None` where elements are looked up together in a codebook.
    pub fn scales(self) -> Option<Scales> {
        self.info().scales
    }

    /// Dequantises whole blocks.
    ///
    /// # Panics
    /// When `bytes` does not hold as many blocks as `out`.
    pub fn dequantise(self, bytes: &[u8], out: &mut [f32]) {
        let TypeInfo { size: (len, size), .. } = self.info();
        assert!(
            bytes.len().is_multiple_of(*size) && bytes.len() / size * len == out.len(),
            "{} bytes of {} for {} elements",
            bytes.len(),
            self.name(),
            out.len()
        );
        dequantise_at(Level::best(), self, bytes, out);
    }
}

fn dequantise_at(level: Level, kind: Type, bytes: &[u8], out: &mut [f32]) {
    assert!(level.is_available(), "this processor lacks the instructions of {level:?}");
    match level {
        // SAFETY: the processor has the instructions.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 | Level::Vnni => unsafe { dequantise_avx512(kind, bytes, out) },
        // SAFETY: the processor has the instructions.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { dequantise_avx2(kind, bytes, out) },
        _ => dequantise(kind, bytes, out),
    }
}

/// Prefetches the bytes a page after this block: the hardware prefetcher stops at the end of a page, and half of the dequantising time was spent waiting
/// there.
#[inline(always)]
pub(crate) fn prefetch_ahead(block: &[u8]) {
    for line in (0..block.len()).step_by(64) {
        prefetch(block.as_ptr().wrapping_add(line + 4096));
    }
}

/// The same code, compiled for wider registers. No operations are fused, so no bit changes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl")]
fn dequantise_avx512(kind: Type, bytes: &[u8], out: &mut [f32]) {
    dequantise(kind, bytes, out);
}

/// The same for AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn dequantise_avx2(kind: Type, bytes: &[u8], out: &mut [f32]) {
    dequantise(kind, bytes, out);
}

/// Reads the f16 at `at`. A call of `half` for every block takes longer than the block. Arithmetic on subnormal f32 takes a hundred cycles, and is avoided
/// because common weights have blocks with subnormal scales.
#[inline(always)]
fn f16_at(block: &[u8], at: usize) -> f32 {
    f16(u16_at(block, at))
}

#[inline(always)]
fn f16(bits: u16) -> f32 {
    let bits = u32::from(bits);
    let (sign, rest) = ((bits & 0x8000) << 16, bits & 0x7fff);
    let magnitude = match rest {
        // Subnormal: a multiple of 2^-24.
        ..0x400 => (rest as f32 * f32::from_bits((127 - 24) << 23)).to_bits(),
        0x7c00.. => rest << 13 | 255 << 23,
        // The exponent bias of f32 is larger by 112.
        _ => (rest << 13) + (112 << 23),
    };
    f32::from_bits(magnitude | sign)
}

/// The unsigned little-endian integer at `at`.
#[inline(always)]
fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

#[inline(always)]
fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_at(&bits.to_le_bytes(), 0), half::f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{bits:#06x}");
        }
    }

    #[test]
    fn wider_registers_change_no_bit() {
        let mut state = 1u32;
        for &kind in Type::ALL {
            let next = |_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            };
            let bytes: Vec<u8> = (0..64 * kind.block_bytes()).map(next).collect();
            let run = |level| {
                let mut values = vec![0f32; 64 * kind.block_len()];
                dequantise_at(level, kind, &bytes, &mut values);
                values
            };
            let plain = run(Level::Scalar);
            for level in Level::available() {
                let same =
                    plain.iter().zip(run(level)).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan());
                assert!(same, "{level:?} {}", kind.name());
            }
        }
    }
}

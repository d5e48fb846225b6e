//! Wrong ways to unpack quantised weights: blocks as bytes that are rewritten, so that reading them right gives what reading them wrong would have given; and
//! codes whose scales stand in tensors beside them.

use std::sync::Arc;

use firstdiff_model::ggml::Type;
use firstdiff_model::{Misreading as OfCodes, Storage, WeightView};

use super::Mistake;
use super::stored::{DEQUANT_NIBBLES, DEQUANT_SCALE};

/// A tensor that is unpacked wrongly.
pub(crate) struct Misread {
    pub(crate) mistake: &'static Mistake,
    /// Which way it is.
    pub(crate) kind: &'static str,
    /// All values, in the order of its shape.
    pub(crate) values: Arc<dyn Fn() -> Vec<f32> + Send + Sync>,
}

/// Each wrong way to unpack a tensor.
pub(crate) fn misread(stored: WeightView<'_>) -> Vec<Misread> {
    let Storage::Block(block) = stored.storage() else {
        let read = stored.misread(&OF_CODES.map(|(way, ..)| way));
        let of_codes = OF_CODES.iter().zip(read).filter_map(|((_, mistake, kind), read)| {
            let read = read?;
            Some(Misread { mistake, kind, values: Arc::new(move || read.values()) })
        });
        return of_codes.collect();
    };
    if !stored.is_plain() {
        return Vec::new();
    }
    let (bytes, count) = (Arc::<[u8]>::from(stored.bytes()), stored.len());
    let of_blocks = misreadings(block).map(|way| {
        let bytes = Arc::clone(&bytes);
        let values = move || {
            let (mut bytes, mut read) = (bytes.to_vec(), vec![0f32; count]);
            bytes.chunks_exact_mut(block.block_bytes()).for_each(|bytes| (way.rewrite)(block, bytes));
            block.dequantise(&bytes, &mut read);
            read
        };
        Misread { mistake: way.mistake, kind: way.kind, values: Arc::new(values) }
    });
    of_blocks.collect()
}

/// Wrong ways to unpack codes with scales beside them, in the order in which they are tried.
static OF_CODES: [(OfCodes, &Mistake, &str); 16] = [
    (OfCodes::Exchanged, &DEQUANT_NIBBLES, "low and high nibbles exchanged"),
    (OfCodes::InOrder, &DEQUANT_NIBBLES, "nibbles of a word from the lowest on, not in AWQ's order"),
    (OfCodes::InOrderOfAwq, &DEQUANT_NIBBLES, "nibbles of a word in AWQ's order, not from the lowest on"),
    (OfCodes::Signed, &DEQUANT_NIBBLES, "codes taken for signed numbers"),
    (OfCodes::ZeroUp, &DEQUANT_SCALE, "zero points one too large"),
    (OfCodes::ZeroDown, &DEQUANT_SCALE, "zero points one too small"),
    (OfCodes::NoZero, &DEQUANT_SCALE, "zero points ignored"),
    (OfCodes::MiddleZero, &DEQUANT_SCALE, "the middle of the levels in place of each zero point"),
    (OfCodes::NoScale, &DEQUANT_SCALE, "scales ignored"),
    (OfCodes::FactorAlone, &DEQUANT_SCALE, "scales ignored but for that of the whole tensor"),
    (OfCodes::OverScale, &DEQUANT_SCALE, "divided by the scales"),
    (OfCodes::FirstGroup, &DEQUANT_SCALE, "the scale of each row's first group for all of it"),
    (OfCodes::ScalesTransposed, &DEQUANT_SCALE, "scales read with rows and groups exchanged"),
    (OfCodes::LongerGroups, &DEQUANT_SCALE, "groups twice as long as they are"),
    (OfCodes::Ungrouped, &DEQUANT_SCALE, "g_idx ignored"),
    (OfCodes::NoFactor, &DEQUANT_SCALE, "the scale of the whole tensor ignored"),
];

/// One wrong way to unpack a block.
struct Misreading {
    /// The types whose blocks can be unpacked so.
    types: &'static [Type],
    mistake: &'static Mistake,
    kind: &'static str,
    /// Rewrites one block.
    rewrite: fn(Type, &mut [u8]),
}

/// The wrong ways to unpack blocks of a type.
fn misreadings(kind: Type) -> impl Iterator<Item = &'static Misreading> {
    WAYS.iter().filter(move |way| way.types.contains(&kind))
}

const fn nibbles(types: &'static [Type], kind: &'static str, rewrite: fn(Type, &mut [u8])) -> Misreading {
    Misreading { types, mistake: &DEQUANT_NIBBLES, kind, rewrite }
}

const fn scale(types: &'static [Type], kind: &'static str, rewrite: fn(Type, &mut [u8])) -> Misreading {
    Misreading { types, mistake: &DEQUANT_SCALE, kind, rewrite }
}

/// Types of two elements in a byte.
const OF_NIBBLES: &[Type] =
    &[Type::Q4_0, Type::IQ4NL, Type::Q4_1, Type::Q5_0, Type::Q5_1, Type::Q4K, Type::Q5K, Type::IQ4XS];
/// Types whose fifth bits stand together.
const OF_HIGH_BITS: &[Type] = &[Type::Q5_0, Type::Q5_1];
/// Types of eight parts, whose scales and minima are packed.
const OF_PARTS: &[Type] = &[Type::Q4K, Type::Q5K];

/// Every wrong way, in the order in which they are tried.
static WAYS: [Misreading; 11] = [
    nibbles(OF_NIBBLES, "the two nibbles of a byte taken for neighbours", neighbours),
    nibbles(OF_NIBBLES, "low and high nibbles exchanged", |kind, block| {
        nibbles_in(kind, block).for_each(|run| run.iter_mut().for_each(|byte| *byte = byte.rotate_left(4)));
    }),
    nibbles(OF_HIGH_BITS, "high bits 2j and 2j+1 for elements j and j+16", |kind, block| {
        high_bits(kind, block, |bits, j| (bits >> (2 * j) & 1, bits >> (2 * j + 1) & 1));
    }),
    nibbles(OF_HIGH_BITS, "high bit j for element j+16 too", |kind, block| {
        high_bits(kind, block, |bits, j| (bits >> j & 1, bits >> j & 1));
    }),
    nibbles(&[Type::Q5K], "high bits of the sub-block beside it", |_, block| {
        block[16..48].iter_mut().for_each(|byte| *byte = (*byte & 0x55) << 1 | (*byte & 0xaa) >> 1);
    }),
    scale(OF_PARTS, "sub-blocks 4 to 7 with the scales of 0 to 3", |_, block| {
        packed(block, |scales, minima| [scales, minima].into_iter().for_each(|own| own.copy_within(..4, 4)));
    }),
    scale(OF_PARTS, "sub-blocks 4 to 7 without the high bits of their scales", |_, block| {
        packed(block, |scales, minima| scales[4..].iter_mut().chain(&mut minima[4..]).for_each(|x| *x &= 15));
    }),
    scale(OF_PARTS, "scales and minima exchanged", |_, block| {
        packed(block, |scales, minima| scales.swap_with_slice(minima));
    }),
    scale(&[Type::Q4K, Type::Q5K, Type::Q4_1, Type::Q5_1], "minimum ignored", |_, block| block[2..4].fill(0)),
    scale(&[Type::Q6K], "one scale for two parts of 16", |_, block| {
        block[192..208].chunks_exact_mut(2).for_each(|pair| pair[1] = pair[0]);
    }),
    scale(&[Type::Q6K], "the scale of the part before", |_, block| block[192..208].rotate_right(1)),
];

/// Where the bytes of nibbles begin in a block, how many belong together, and how often.
fn nibbles_of(kind: Type) -> Option<(usize, usize, usize)> {
    Some(match kind {
        Type::Q4_0 | Type::IQ4NL => (2, 16, 1),
        Type::Q4_1 => (4, 16, 1),
        Type::Q5_0 => (6, 16, 1),
        Type::Q5_1 => (8, 16, 1),
        Type::Q4K => (16, 32, 4),
        Type::Q5K => (48, 32, 4),
        Type::IQ4XS => (8, 16, 8),
        _ => return None,
    })
}

fn nibbles_in(kind: Type, block: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
    let (start, run, runs) = nibbles_of(kind).unwrap_or((0, 1, 0));
    block[start..start + run * runs].chunks_exact_mut(run)
}

/// Elements 2j and 2j+1 from byte j, where byte j holds elements j and j + run.
fn neighbours(kind: Type, block: &mut [u8]) {
    for run in nibbles_in(kind, block) {
        let stored = run.to_vec();
        let nibble = |element: usize| stored[element / 2] >> (4 * (element % 2)) & 15;
        let count = run.len();
        run.iter_mut().enumerate().for_each(|(l, byte)| *byte = nibble(l) | nibble(count + l) << 4);
    }
}

/// The fifth bits of Q5_0 and Q5_1: those of elements j and j + 16 as `pick` takes them.
fn high_bits(kind: Type, block: &mut [u8], pick: fn(u32, u32) -> (u32, u32)) {
    let at = if kind == Type::Q5_0 { 2 } else { 4 };
    let bits = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let read = (0..16).fold(0, |read, j| {
        let (low, high) = pick(bits, j);
        read | low << j | high << (j + 16)
    });
    block[at..at + 4].copy_from_slice(&u32::to_le_bytes(read));
}

/// The eight scales and minima of Q4_K and Q5_K, 6 bits each in 12 bytes, changed.
fn packed(block: &mut [u8], change: fn(&mut [u8; 8], &mut [u8; 8])) {
    let s = &mut block[4..16];
    let (mut scales, mut minima) = ([0u8; 8], [0u8; 8]);
    for j in 0..4 {
        (scales[j], minima[j]) = (s[j] & 63, s[j + 4] & 63);
        (scales[j + 4], minima[j + 4]) = (s[j + 8] & 15 | s[j] >> 6 << 4, s[j + 8] >> 4 | s[j + 4] >> 6 << 4);
    }
    change(&mut scales, &mut minima);
    for j in 0..4 {
        (s[j], s[j + 4]) = (scales[j] | scales[j + 4] >> 4 << 6, minima[j] | minima[j + 4] >> 4 << 6);
        s[j + 8] = scales[j + 4] & 15 | minima[j + 4] << 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_misreading_changes_a_block_and_packing_loses_nothing() {
        let block: Vec<u8> = (0..256u32).map(|i| (i * 37 + 11) as u8).collect();
        for &kind in Type::ALL {
            for way in misreadings(kind) {
                let mut read = block[..kind.block_bytes()].to_vec();
                (way.rewrite)(kind, &mut read);
                assert_ne!(read, block[..kind.block_bytes()], "{} {}", kind.name(), way.kind);
            }
        }
        let mut same = block[..144].to_vec();
        packed(&mut same, |_, _| ());
        assert_eq!(same, block[..144]);
    }
}

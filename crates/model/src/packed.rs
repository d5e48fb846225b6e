//! Unpacks weights that checkpoints for Hugging Face pack: codes of few bits, with scales and zero points in tensors beside them.
//!
//! Of row o and column i, in f32: `(level[code(o,i)] - zero(o,g)) * (scale(o,g) * factor)`, where g is the group of i.
//! Each library rounds this once more to the type in which it computes.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use crate::entry::{Bytes, Entry};
use crate::storage::{Levels, Packing, Real};

/// Codes of one number of bits, in words.
#[derive(Clone, Debug)]
pub(crate) struct Codes {
    pub(crate) words: Entry,
    pub(crate) bits: usize,
    /// Bytes of a word.
    pub(crate) word: usize,
    /// How far apart words are along the axis that is packed, and along the other.
    pub(crate) strides: [usize; 2],
    /// In which place of a run each element stands; empty where that is its own.
    pub(crate) order: &'static [usize],
}

/// The scales of a tensor, or its zero points where they are numbers.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    pub(crate) values: Entry,
    /// How far apart they are from one block of rows to the next, and from one group to the next.
    pub(crate) strides: [usize; 2],
    /// Scales that are codes themselves.
    pub(crate) nested: Option<Nested>,
}

/// What codes of scales stand for: `table[code] * scales[n / block] + offset`.
#[derive(Clone, Debug)]
pub(crate) struct Nested {
    pub(crate) table: Entry,
    pub(crate) scales: Entry,
    pub(crate) block: usize,
    pub(crate) offset: f32,
}

/// What is taken off each level.
#[derive(Clone, Debug)]
pub(crate) enum Zero {
    None,
    /// A code, and what is added to it.
    Codes(Codes, f32),
    Numbers(Numbers),
}

/// What is done with a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scaling {
    Times,
    /// It divides.
    Over,
    /// It is left out, but for that of the whole tensor.
    Factor,
    /// It is left out.
    None,
}

/// Which columns share a scale.
#[derive(Clone, Debug)]
pub(crate) enum Groups {
    /// So many beside each other.
    Of(usize),
    /// Those with the same number in this tensor.
    Listed(Entry),
}

/// How rows and columns of the codes stand to the elements of the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// A row is a row.
    Rows,
    /// All elements are one row.
    Flat,
    /// \[E,in,out\] of codes for \[E,out,in\].
    Transposed,
}

/// A packed tensor.
#[derive(Clone, Debug)]
pub(crate) struct Packed {
    pub(crate) packing: Packing,
    pub(crate) shape: Vec<usize>,
    pub(crate) layout: Layout,
    pub(crate) codes: Codes,
    /// Whether codes are packed along the rows, not the columns.
    pub(crate) packed_rows: bool,
    pub(crate) levels: Vec<f32>,
    pub(crate) scales: Numbers,
    pub(crate) scaling: Scaling,
    pub(crate) zero: Zero,
    pub(crate) groups: Groups,
    /// Rows that share a scale, and rows of an expert, each of which begins with scales of its own.
    pub(crate) rows: [usize; 2],
    pub(crate) factor: f32,
}

/// A packed tensor, and the files that hold its parts.
#[derive(Clone, Copy)]
pub(crate) struct PackedView<'a> {
    pub(crate) packed: &'a Packed,
    pub(crate) files: &'a [(PathBuf, Bytes)],
}

impl std::fmt::Debug for PackedView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.packed.fmt(f)
    }
}

impl PackedView<'_> {
    fn bytes(&self, entry: &Entry) -> &[u8] {
        &self.files[entry.file].1.as_ref().as_ref()[entry.bytes.clone()]
    }

    /// Elements `range` of the tensor in the order of its shape.
    pub(crate) fn read<E: Real>(&self, range: Range<usize>, out: &mut [E]) {
        let columns = self.packed.shape.last().copied().unwrap_or(1).max(1);
        let mut buffer = Vec::new();
        match self.packed.layout {
            Layout::Flat => self.segment(0, range, &mut buffer, |at, x| out[at] = E::from_f64(x.into())),
            Layout::Rows => {
                let (mut at, mut filled) = (range.start, 0);
                while at < range.end {
                    let end = (at / columns * columns + columns).min(range.end);
                    let (row, first) = (at / columns, at % columns);
                    let out = &mut out[filled..];
                    self.segment(row, first..first + end - at, &mut buffer, |at, x| out[at] = E::from_f64(x.into()));
                    (filled, at) = (filled + end - at, end);
                }
            }
            Layout::Transposed => {
                let inner = self.packed.shape[1].max(1);
                let (mut at, mut filled) = (range.start, 0);
                while at < range.end {
                    let (expert, column, row) = (at / columns / inner, at / columns % inner, at % columns);
                    // Whole rows of one expert at once, or what of one row is asked.
                    let whole = if row == 0 { ((range.end - at) / columns).min(inner - column) } else { 0 };
                    let (count, rows) = match whole {
                        0 => (1, row..(row + range.end - at).min(columns)),
                        whole => (whole, 0..columns),
                    };
                    let (width, first) = (rows.len(), rows.start);
                    for row in rows {
                        let out = &mut out[filled + row - first..];
                        self.segment(expert * columns + row, column..column + count, &mut buffer, |at, x| {
                            out[at * width] = E::from_f64(x.into());
                        });
                    }
                    (filled, at) = (filled + count * width, at + count * width);
                }
            }
        }
    }

    /// Columns of a row of the codes: each is given to `put` with its number.
    fn segment(&self, row: usize, columns: Range<usize>, buffer: &mut Vec<u32>, mut put: impl FnMut(usize, f32)) {
        let it = self.packed;
        buffer.resize(columns.len(), 0);
        let words = self.bytes(&it.codes.words);
        for (at, code) in columns.clone().zip(&mut *buffer) {
            let (along, other) = if it.packed_rows { (row, at) } else { (at, row) };
            *code = it.codes.code(words, along, other);
        }
        let listed = match &it.groups {
            Groups::Listed(entry) => Some((self.bytes(entry), entry)),
            Groups::Of(_) => None,
        };
        let group = |column: usize| match (&it.groups, listed) {
            (_, Some((bytes, entry))) => number(bytes, entry, column) as usize,
            (Groups::Of(size), _) => column / size,
            (Groups::Listed(_), None) => 0,
        };
        let mut known = (usize::MAX, 0.0, 0.0);
        for (place, (column, code)) in columns.zip(&*buffer).enumerate() {
            let g = group(column);
            if known.0 != g {
                known = (g, self.scale(row, g), self.zero(row, g));
            }
            let level = it.levels.get(*code as usize).copied().unwrap_or(f32::NAN);
            put(place, (level - known.2) * known.1);
        }
    }

    fn scale(&self, row: usize, group: usize) -> f32 {
        let scale = || self.number_of(&self.packed.scales, row, group) * self.packed.factor;
        match self.packed.scaling {
            Scaling::Times => scale(),
            Scaling::Over => scale().recip(),
            Scaling::Factor => self.packed.factor,
            Scaling::None => 1.0,
        }
    }

    fn zero(&self, row: usize, group: usize) -> f32 {
        match &self.packed.zero {
            Zero::None => 0.0,
            Zero::Codes(codes, add) => codes.code(self.bytes(&codes.words), row, group) as f32 + add,
            Zero::Numbers(numbers) => self.number_of(numbers, row, group),
        }
    }

    fn number_of(&self, numbers: &Numbers, row: usize, group: usize) -> f32 {
        let [share, expert] = self.packed.rows;
        let block = row / expert * expert.div_ceil(share) + row % expert / share;
        let at = block * numbers.strides[0] + group * numbers.strides[1];
        let value = number(self.bytes(&numbers.values), &numbers.values, at);
        let Some(nested) = &numbers.nested else { return value };
        let level = number(self.bytes(&nested.table), &nested.table, value as usize);
        level * number(self.bytes(&nested.scales), &nested.scales, at / nested.block) + nested.offset
    }
}

/// A wrong way to unpack a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misreading {
    /// The two codes of a byte are exchanged.
    Exchanged,
    /// Codes of a word are taken from the lowest bits on, where the packing has an order of its own.
    InOrder,
    /// Codes of a word are taken in AWQ's order, where they stand from the lowest bits on.
    InOrderOfAwq,
    /// Codes are taken for signed numbers.
    Signed,
    /// Zero points are one too large, or too small.
    ZeroUp,
    /// The same.
    ZeroDown,
    /// Zero points are left out.
    NoZero,
    /// Each zero point is taken for the middle of the levels.
    MiddleZero,
    /// Scales are left out.
    NoScale,
    /// Scales are left out, but for that of the whole tensor.
    FactorAlone,
    /// Scales divide.
    OverScale,
    /// Each row has the scale of its first group.
    FirstGroup,
    /// Scales are read with rows and groups exchanged.
    ScalesTransposed,
    /// A group has twice as many columns.
    LongerGroups,
    /// The list of groups is ignored.
    Ungrouped,
    /// The scale of the whole tensor is left out.
    NoFactor,
}

/// In which place of a word AWQ puts each of eight columns.
pub(crate) const AWQ_ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
/// The first of two codes is in the high half of its byte.
pub(crate) const HIGH_FIRST: [usize; 2] = [1, 0];
/// The same of AWQ's order.
const AWQ_HIGH_FIRST: [usize; 8] = [1, 5, 0, 4, 3, 7, 2, 6];

impl Packed {
    /// The tensor that is unpacked wrongly; `None` where that is right.
    fn misread(&self, way: Misreading) -> Option<Packed> {
        let it = self.clone();
        let (words, numbers) = (&self.codes, &self.scales);
        let ordered = |order: &'static [usize]| Packed { codes: Codes { order, ..words.clone() }, ..it.clone() };
        let scales = |strides: [usize; 2]| Packed { scales: Numbers { strides, ..numbers.clone() }, ..it.clone() };
        let zero = |more: f32| match &self.zero {
            Zero::Codes(codes, add) => Some(Packed { zero: Zero::Codes(codes.clone(), add + more), ..it.clone() }),
            Zero::Numbers(_) | Zero::None => None,
        };
        let has_zero = !matches!(self.zero, Zero::None);
        let shifted = |by: f32| Packed {
            zero: Zero::None,
            levels: self.levels.iter().map(|level| level - by).collect(),
            ..it.clone()
        };
        let middle = 0.5 * self.levels.len() as f32;
        let is_counted = matches!(self.packing.levels, Levels::Even(_) | Levels::Between(_));
        match way {
            Misreading::Exchanged if words.bits == 4 => match words.order {
                [] => Some(ordered(&HIGH_FIRST)),
                order if order == HIGH_FIRST => Some(ordered(&[])),
                _ => Some(ordered(&AWQ_HIGH_FIRST)),
            },
            Misreading::InOrder if words.order == AWQ_ORDER => Some(ordered(&[])),
            Misreading::InOrderOfAwq if words.order.is_empty() && (words.bits, words.word) == (4, 4) => {
                Some(ordered(&AWQ_ORDER))
            }
            Misreading::Signed if is_counted && words.bits < 8 => {
                let half = self.levels.len() / 2;
                let signed = |code: usize| code as f32 - if code < half { 0.0 } else { 2.0 * half as f32 };
                Some(Packed { levels: (0..self.levels.len()).map(signed).collect(), ..it })
            }
            Misreading::ZeroUp => zero(1.0),
            Misreading::ZeroDown => zero(-1.0),
            Misreading::NoZero if has_zero => Some(shifted(0.0)),
            Misreading::MiddleZero if has_zero && self.levels.first() == Some(&0.0) => Some(shifted(middle)),
            Misreading::NoScale => Some(Packed { scaling: Scaling::None, ..it }),
            Misreading::FactorAlone if self.factor != 1.0 => Some(Packed { scaling: Scaling::Factor, ..it }),
            Misreading::OverScale => Some(Packed { scaling: Scaling::Over, ..it }),
            Misreading::FirstGroup if numbers.strides[1] > 0 => Some(scales([numbers.strides[0], 0])),
            Misreading::ScalesTransposed if numbers.values.shape.len() == 2 && !numbers.strides.contains(&0) => {
                let [rows, groups] = [numbers.values.shape[0], numbers.values.shape[1]];
                // [rows,groups] as [groups,rows], or the other way around.
                let strides = if numbers.strides[1] == 1 { [1, rows] } else { [rows, 1] };
                (rows > 1 && groups > 1).then(|| scales(strides))
            }
            Misreading::LongerGroups => match self.groups {
                Groups::Of(size) if numbers.strides[1] > 0 => Some(Packed { groups: Groups::Of(2 * size), ..it }),
                _ => None,
            },
            Misreading::Ungrouped if matches!(self.groups, Groups::Listed(_)) => {
                Some(Packed { groups: Groups::Of(self.packing.group.max(1)), ..it })
            }
            Misreading::NoFactor if self.factor != 1.0 => Some(Packed { factor: 1.0, ..it }),
            _ => None,
        }
    }

    /// Where its parts are.
    fn entries(&mut self) -> Vec<&mut Entry> {
        let mut all = vec![&mut self.codes.words, &mut self.scales.values];
        if let Some(nested) = &mut self.scales.nested {
            all.extend([&mut nested.table, &mut nested.scales]);
        }
        match &mut self.zero {
            Zero::None => {}
            Zero::Codes(codes, _) => all.push(&mut codes.words),
            Zero::Numbers(numbers) => all.push(&mut numbers.values),
        }
        if let Groups::Listed(entry) = &mut self.groups {
            all.push(entry);
        }
        all
    }
}

/// A packed tensor that is unpacked wrongly, with the bytes of its parts.
pub struct Misread {
    packed: Packed,
    files: Arc<Vec<(PathBuf, Bytes)>>,
}

impl Misread {
    /// All elements in the order of the shape.
    pub fn values(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.packed.shape.iter().product()];
        PackedView { packed: &self.packed, files: &self.files }.read(0..out.len(), &mut out);
        out
    }
}

impl PackedView<'_> {
    /// The tensor unpacked in each of these ways; all have one copy of its bytes.
    pub(crate) fn misread(&self, ways: &[Misreading]) -> Vec<Option<Misread>> {
        let (mut packed, mut files) = (self.packed.clone(), Vec::new());
        for entry in packed.entries() {
            let bytes: Bytes = Box::new(self.bytes(entry).to_vec());
            (entry.file, entry.bytes) = (files.len(), 0..(*bytes).as_ref().len());
            files.push((PathBuf::new(), bytes));
        }
        let files = Arc::new(files);
        let misread = |way: &Misreading| Some(Misread { packed: packed.misread(*way)?, files: Arc::clone(&files) });
        ways.iter().map(misread).collect()
    }
}

impl Codes {
    /// The code of the element at `along` of the axis that is packed, and `other` of the other.
    fn code(&self, bytes: &[u8], along: usize, other: usize) -> u32 {
        let place = match self.order {
            [] => along,
            order => along - along % order.len() + order[along % order.len()],
        };
        let width = 8 * self.word;
        let (word, shift) = (place * self.bits / width, place * self.bits % width);
        let read = |word: usize| -> u64 {
            let at = (word * self.strides[0] + other * self.strides[1]) * self.word;
            match (self.word, bytes.get(at..at + self.word)) {
                (1, Some(byte)) => byte[0].into(),
                (4, Some(word)) => u32::from_le_bytes([word[0], word[1], word[2], word[3]]).into(),
                _ => 0,
            }
        };
        let both = if shift + self.bits > width { read(word) | read(word + 1) << width } else { read(word) };
        (both >> shift & ((1 << self.bits) - 1)) as u32
    }
}

/// A number of a tensor; NaN where it has none there.
fn number(bytes: &[u8], entry: &Entry, at: usize) -> f32 {
    let Some(storage) = entry.storage.as_ref().ok() else { return f32::NAN };
    let Some(size) = storage.row_bytes(1) else { return f32::NAN };
    let mut out = [f32::NAN];
    if let Some(bytes) = bytes.get(at * size..at * size + size) {
        f32::widen(*storage, bytes, &mut out);
    }
    out[0]
}

/// A number of a tensor of a file.
pub(crate) fn number_in(files: &[(PathBuf, Bytes)], entry: &Entry, at: usize) -> f32 {
    number(&files[entry.file].1.as_ref().as_ref()[entry.bytes.clone()], entry, at)
}

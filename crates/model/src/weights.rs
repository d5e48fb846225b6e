//! Holds the tensor table of a model: the names of its tensors, and where their bytes are. Every weight format is read into it.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ndarray::{Array1, Array2};

use crate::entry::{Bytes, Entry, Order};
use crate::error::ModelError;
use crate::packed::{Misread, Misreading, Packed, PackedView};
use crate::plan::WeightRef;
use crate::storage::{Half, Real, Storage};

/// The weights of a model. Bytes stay in the mapped files; they are widened a tile of rows at a time as they are read.
///
/// The reader of a weight format returns this: its files, its tensor table, and its name for each of the Plan's weights.
pub struct Weights {
    files: Vec<(PathBuf, Bytes)>,
    table: HashMap<String, Entry>,
    naming: fn(WeightRef) -> String,
    /// Those of the table whose values are made of several tensors of the files.
    packed: HashMap<String, Packed>,
    /// Names that the table lacks, and the tensor that is used instead.
    stand_ins: HashMap<String, String>,
}

/// One stored tensor.
#[derive(Clone, Copy, Debug)]
pub struct WeightView<'a> {
    storage: Storage,
    shape: &'a [usize],
    bytes: &'a [u8],
    order: Order,
    half: Option<Half>,
    packed: Option<PackedView<'a>>,
}

impl Weights {
    pub(crate) fn new(
        files: Vec<(PathBuf, Bytes)>,
        table: HashMap<String, Entry>,
        naming: fn(WeightRef) -> String,
    ) -> Weights {
        Weights { files, table, naming, packed: HashMap::new(), stand_ins: HashMap::new() }
    }

    /// Puts one packed tensor in the place of its parts.
    pub(crate) fn pack(&mut self, name: String, packed: Packed, parts: &[String]) {
        parts.iter().for_each(|part| _ = self.table.remove(part));
        let (storage, shape) = (Ok(Storage::Packed(packed.packing)), packed.shape.clone());
        self.table.insert(name.clone(), Entry { storage, shape, ..packed.codes.words.clone() });
        self.packed.insert(name, packed);
    }

    /// Where a tensor of the files is.
    pub(crate) fn entry(&self, name: &str) -> Option<&Entry> {
        self.table.get(name)
    }

    /// The files, with their bytes.
    pub(crate) fn files(&self) -> &[(PathBuf, Bytes)] {
        &self.files
    }

    /// Uses the tensor of `other` for `weight` (tied embeddings).
    pub(crate) fn tie(&mut self, weight: WeightRef, other: WeightRef) {
        self.stand_ins.insert((self.naming)(weight), (self.naming)(other));
    }

    /// Marks all matrices with an expected shape as stored \[in,out\], if one that is not square has its expected shape reversed.
    pub(crate) fn transpose_if_reversed(&mut self, expected: impl Fn(&str) -> Option<Vec<usize>>) {
        let reversed = |shape: &[usize]| shape.iter().rev().copied().collect::<Vec<_>>();
        let is = |(name, entry): (&String, &Entry)| {
            expected(name).is_some_and(|shape| shape != entry.shape && reversed(&shape) == entry.shape)
        };
        if !self.table.iter().any(is) {
            return;
        }
        // A tensor with another number of axes than expected is no matrix, whatever the others are.
        let is_matrix = |(name, entry): &(&String, &mut Entry)| entry.shape.len() == 2 && expected(name).is_some();
        for (_, entry) in self.table.iter_mut().filter(is_matrix) {
            entry.shape.reverse();
            entry.order.transposed = true;
        }
    }

    /// The name this format gives to `weight`.
    pub fn name(&self, weight: WeightRef) -> String {
        let name = (self.naming)(weight);
        self.stand_ins.get(&name).cloned().unwrap_or(name)
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// The names of all tensors, in no particular order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.table.keys().map(String::as_str)
    }

    /// Whether the weights hold a tensor for `weight`.
    pub fn holds(&self, weight: WeightRef) -> bool {
        self.table.contains_key(&self.name(weight))
    }

    /// The shape of the tensor for `weight`, if there is one.
    pub fn shape(&self, weight: WeightRef) -> Option<&[usize]> {
        self.table.get(&self.name(weight)).map(|entry| entry.shape.as_slice())
    }

    /// Checks that the tensor for `weight` is present, has the shape `expected`, and can be read.
    ///
    /// # Errors
    /// When one of these is not so.
    pub fn check(&self, weight: WeightRef, expected: &[usize]) -> Result<(), ModelError> {
        let (tensor, expected) = (self.name(weight), expected.to_vec());
        let Some(entry) = self.table.get(&tensor) else {
            return Err(ModelError::Missing { file: self.path(), tensor, expected });
        };
        if entry.shape != expected {
            let (file, actual) = (self.files[entry.file].0.clone(), entry.shape.clone());
            return Err(ModelError::Shape { file, tensor, expected, actual });
        }
        self.entry_view(&tensor, entry).map(drop)
    }

    /// The tensor for `weight`.
    ///
    /// # Errors
    /// When it is absent, or its storage type is not supported.
    pub fn view(&self, weight: WeightRef) -> Result<WeightView<'_>, ModelError> {
        let name = self.name(weight);
        match self.tensor(&name)? {
            Some(view) => Ok(view),
            None => Err(ModelError::Tensor { file: self.path(), tensor: name, reason: "is absent".into() }),
        }
    }

    /// The tensor with that name in the files.
    ///
    /// # Errors
    /// When its storage type is not supported.
    pub fn tensor(&self, name: &str) -> Result<Option<WeightView<'_>>, ModelError> {
        self.table.get(name).map(|entry| self.entry_view(name, entry)).transpose()
    }

    fn entry_view<'a>(&'a self, name: &str, entry: &'a Entry) -> Result<WeightView<'a>, ModelError> {
        let (file, bytes) = &self.files[entry.file];
        let storage = entry.storage.as_ref().map_err(|dtype| ModelError::Tensor {
            file: file.clone(),
            tensor: name.into(),
            reason: format!("{dtype} is no element type that is read"),
        })?;
        let bytes = &bytes.as_ref().as_ref()[entry.bytes.clone()];
        let packed = self.packed.get(name).map(|packed| PackedView { packed, files: &self.files });
        Ok(WeightView { storage: *storage, shape: &entry.shape, bytes, order: entry.order, half: None, packed })
    }

    /// The path of the only file, or the folder of several.
    fn path(&self) -> PathBuf {
        match &self.files[..] {
            [(file, _)] => file.clone(),
            [(file, _), ..] => file.parent().map(Path::to_path_buf).unwrap_or_default(),
            [] => PathBuf::new(),
        }
    }
}

impl std::fmt::Debug for Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files: Vec<_> = self.files.iter().map(|(file, _)| file).collect();
        f.debug_struct("Weights").field("files", &files).field("tensors", &self.table.len()).finish()
    }
}

impl<'a> WeightView<'a> {
    /// How the elements are stored.
    pub fn storage(&self) -> Storage {
        self.storage
    }

    /// Extent of every axis, slowest first.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// The stored bytes, of any alignment.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The same tensor with its bytes replaced; `None` where the number of bytes differs.
    pub fn with_bytes(self, bytes: &'a [u8]) -> Option<WeightView<'a>> {
        (bytes.len() == self.bytes.len() && self.packed.is_none()).then_some(WeightView { bytes, ..self })
    }

    /// The same tensor unpacked wrongly, in each of these ways; `None` where it is not packed, or cannot be unpacked so.
    pub fn misread(&self, ways: &[Misreading]) -> Vec<Option<Misread>> {
        self.packed.map_or_else(Vec::new, |packed| packed.misread(ways))
    }

    /// The same tensor, with values rounded to `half` as they are read.
    pub(crate) fn rounded(self, half: Option<Half>) -> WeightView<'a> {
        WeightView { half, ..self }
    }

    /// Whether the bytes are little-endian, in the order of the shape, and each row independent: then row i is the i-th part of them.
    pub fn is_plain(&self) -> bool {
        let is_whole = matches!(self.storage, Storage::Groups(_) | Storage::Packed(_));
        self.order == Order::default() && self.half.is_none() && !is_whole
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rows `range` of a matrix (\[rows, columns\]), widened.
    ///
    /// # Panics
    /// When the tensor is no matrix, or `range` is outside its rows.
    pub fn rows<E: Real>(&self, range: Range<usize>) -> Array2<E> {
        let &[rows, columns] = self.shape else { panic!("rows of a tensor of shape {:?}", self.shape) };
        assert!(range.start <= range.end && range.end <= rows, "rows {range:?} of {rows}");
        let mut out = Array2::zeros((range.len(), columns));
        self.read_rows(range, out.as_slice_mut().expect("just made"));
        out
    }

    /// Rows `range` of a matrix, widened into `out`.
    pub(crate) fn read_rows<E: Real>(&self, range: Range<usize>, out: &mut [E]) {
        let &[rows, columns] = self.shape else { panic!("rows of a tensor of shape {:?}", self.shape) };
        if !self.order.transposed {
            return self.read(range.start * columns..range.end * columns, out);
        }
        let mut column = vec![E::zero(); rows];
        for i in 0..columns {
            self.read(i * rows..(i + 1) * rows, &mut column);
            column[range.clone()].iter().enumerate().for_each(|(row, &x)| out[row * columns + i] = x);
        }
    }

    /// Elements `range` of the whole tensor in the order of its shape, in f32. The range may begin and end within a row or a block, because the elements
    /// may be viewed in another shape.
    ///
    /// # Panics
    /// When `range` is outside the tensor.
    pub fn elements(&self, range: Range<usize>) -> Vec<f32> {
        assert!(range.start <= range.end && range.end <= self.len(), "elements {range:?} of {}", self.len());
        // The smallest part that can be read alone: a row of a transposed matrix, else a block.
        let unit = if self.order.transposed { self.shape[1] } else { self.storage.block_len() }.max(1);
        let whole = range.start / unit * unit..range.end.next_multiple_of(unit).min(self.len());
        let mut out = match self.order.transposed {
            true => self.rows::<f32>(whole.start / unit..whole.end / unit).into_raw_vec_and_offset().0,
            false => {
                let mut out = vec![0.0; whole.len()];
                self.read(whole.clone(), &mut out);
                out
            }
        };
        out.truncate(range.end - whole.start);
        out.drain(..range.start - whole.start);
        out
    }

    /// All of a vector, widened.
    pub fn vector<E: Real>(&self) -> Array1<E> {
        let mut out = vec![E::zero(); self.len()];
        self.read(0..out.len(), &mut out);
        Array1::from_vec(out)
    }

    /// Elements `range` in storage order, widened. The range must be whole blocks.
    fn read<E: Real>(&self, range: Range<usize>, out: &mut [E]) {
        self.decode(range, out);
        if let Some(half) = self.half {
            out.iter_mut().for_each(|x| *x = E::from_f64(half.round(x.as_f64() as f32).into()));
        }
    }

    fn decode<E: Real>(&self, range: Range<usize>, out: &mut [E]) {
        const BLOCKS: &str = "a row is whole blocks: the reader of the format has checked it";
        if let Some(packed) = self.packed {
            return packed.read(range, out);
        }
        if let Storage::Groups(group) = self.storage {
            let (levels, scales) = self.bytes.split_at(self.len());
            let scale = |at: usize| f32::from_le_bytes(scales.as_chunks::<4>().0[at / group]);
            for (at, out) in range.zip(out) {
                *out = E::from_f64(f64::from(f32::from(levels[at] as i8) * scale(at)));
            }
            return;
        }
        let [start, end] = [range.start, range.end].map(|n| self.storage.row_bytes(n).expect(BLOCKS));
        let bytes = &self.bytes[start..end];
        if self.order.big_endian {
            let mut swapped = bytes.to_vec();
            self.storage.swap(&mut swapped);
            return E::widen(self.storage, &swapped, out);
        }
        E::widen(self.storage, bytes, out);
    }
}

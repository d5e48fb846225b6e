//! Which tensors does a model hold, and where are their bytes? The table that every weight format is read into.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ndarray::{Array1, Array2};

use crate::error::ModelError;
use crate::plan::WeightRef;
use crate::storage::{Real, Storage};

/// The bytes of a file: mapped, or decoded into memory.
pub(crate) type Bytes = Box<dyn AsRef<[u8]> + Send + Sync>;

/// Where one tensor is.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Which of the files.
    pub(crate) file: usize,
    /// The element type; `Err` holds the name of one that cannot be read.
    pub(crate) storage: Result<Storage, String>,
    /// Extent of every axis, slowest first.
    pub(crate) shape: Vec<usize>,
    /// The tensor's bytes in the file. The reader of the format has checked that they suit storage and shape.
    pub(crate) bytes: Range<usize>,
}

/// The weights of a model. Bytes stay in the mapped files; what is read is widened a tile of rows at a time.
///
/// A weight format is a function that returns this: its files, its table of tensors, and the name it gives each of the
/// Plan's weights.
pub struct Weights {
    files: Vec<(PathBuf, Bytes)>,
    table: HashMap<String, Entry>,
    naming: fn(WeightRef) -> String,
    /// Names the table lacks, and the tensor that serves in their stead.
    stand_ins: HashMap<String, String>,
}

/// One stored tensor.
#[derive(Clone, Copy, Debug)]
pub struct WeightView<'a> {
    storage: Storage,
    shape: &'a [usize],
    bytes: &'a [u8],
}

impl Weights {
    pub(crate) fn new(
        files: Vec<(PathBuf, Bytes)>,
        table: HashMap<String, Entry>,
        naming: fn(WeightRef) -> String,
    ) -> Weights {
        Weights { files, table, naming, stand_ins: HashMap::new() }
    }

    /// Serves `weight` from the tensor of `other` (tied embeddings).
    pub(crate) fn tie(&mut self, weight: WeightRef, other: WeightRef) {
        self.stand_ins.insert((self.naming)(weight), (self.naming)(other));
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

    /// The names of all tensors, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.table.keys().map(String::as_str)
    }

    /// Whether the weights hold a tensor for `weight`.
    pub fn holds(&self, weight: WeightRef) -> bool {
        self.table.contains_key(&self.name(weight))
    }

    /// Whether the tensor that serves as `weight` is there, of shape `expected`, and can be read.
    ///
    /// # Errors
    /// When it is not.
    pub fn check(&self, weight: WeightRef, expected: &[usize]) -> Result<(), ModelError> {
        let (tensor, expected) = (self.name(weight), expected.to_vec());
        let Some(entry) = self.table.get(&tensor) else {
            return Err(ModelError::Missing { file: self.whereabouts(), tensor, expected });
        };
        if entry.shape != expected {
            let (file, actual) = (self.files[entry.file].0.clone(), entry.shape.clone());
            return Err(ModelError::Shape { file, tensor, expected, actual });
        }
        self.entry_view(&tensor, entry).map(drop)
    }

    /// The tensor that serves as `weight`.
    ///
    /// # Errors
    /// When it is absent, or stored in a type that cannot be read.
    pub fn view(&self, weight: WeightRef) -> Result<WeightView<'_>, ModelError> {
        let name = self.name(weight);
        match self.tensor(&name)? {
            Some(view) => Ok(view),
            None => Err(ModelError::Tensor { file: self.whereabouts(), tensor: name, reason: "is absent".into() }),
        }
    }

    /// The tensor of that name in the files.
    ///
    /// # Errors
    /// When it is stored in a type that cannot be read.
    pub fn tensor(&self, name: &str) -> Result<Option<WeightView<'_>>, ModelError> {
        self.table.get(name).map(|entry| self.entry_view(name, entry)).transpose()
    }

    fn entry_view<'a>(&'a self, name: &str, entry: &'a Entry) -> Result<WeightView<'a>, ModelError> {
        let (file, bytes) = &self.files[entry.file];
        let storage = entry.storage.as_ref().map_err(|dtype| ModelError::Tensor {
            file: file.clone(),
            tensor: name.into(),
            reason: format!("dtype {dtype} is not one of F64, F32, F16, BF16"),
        })?;
        let bytes = &bytes.as_ref().as_ref()[entry.bytes.clone()];
        Ok(WeightView { storage: *storage, shape: &entry.shape, bytes })
    }

    /// The only file, or the folder of several.
    fn whereabouts(&self) -> PathBuf {
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

    /// The stored bytes, little-endian, of any alignment.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Rows `range` of a matrix (\[rows, columns\]), widened.
    ///
    /// # Panics
    /// When the tensor is no matrix, or `range` is outside its rows.
    pub fn rows<E: Real>(&self, range: Range<usize>) -> Array2<E> {
        let &[rows, columns] = self.shape else { panic!("rows of a tensor of shape {:?}", self.shape) };
        assert!(range.start <= range.end && range.end <= rows, "rows {range:?} of {rows}");
        let stride = self.storage.row_bytes(columns).expect("the reader of the format has checked the size");
        let mut out = vec![E::zero(); range.len() * columns];
        E::widen(self.storage, &self.bytes[range.start * stride..range.end * stride], &mut out);
        Array2::from_shape_vec((range.len(), columns), out).expect("as many as the shape asks")
    }

    /// All of a vector, widened.
    pub fn vector<E: Real>(&self) -> Array1<E> {
        let mut out = vec![E::zero(); self.shape.iter().product()];
        E::widen(self.storage, self.bytes, &mut out);
        Array1::from_vec(out)
    }
}

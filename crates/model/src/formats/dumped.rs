//! Reads the weights that an engine wrote out after loading them: a folder, a .npz or a text file of named tensors.
//!
//! The format does not describe the model: such weights can be compared, not run.

use std::collections::HashMap;
use std::path::Path;

use firstdiff_trace::{DType, Dump, Tap, Tensor};

use super::{Format, Opened};
use crate::entry::{Bytes, Entry, Order};
use crate::error::ModelError;
use crate::file::map;
use crate::names;
use crate::storage::Storage;
use crate::weights::Weights;

/// File endings of raw numbers without a header, and their element types.
const RAW: &[(&str, Storage)] = &[
    ("f32", Storage::F32),
    ("fp32", Storage::F32),
    ("f16", Storage::F16),
    ("bf16", Storage::BF16),
    ("f64", Storage::F64),
    ("raw", Storage::F32),
];

/// Opens every tensor of a folder that is not a tap: .npy (also without a header), raw numbers, text.
pub(crate) fn open_folder(folder: &Path) -> Result<Opened, ModelError> {
    let io = |source| ModelError::Io { file: folder.into(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        if let Ok(name) = entry.map_err(io)?.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort_unstable();
    let mut found = TensorFiles::default();
    for name in names {
        let Some((stem, ending)) = name.rsplit_once('.') else { continue };
        let path = folder.join(&name);
        // Taps, also of decode steps, are not weights.
        let tap = stem.rsplit_once(".step").map_or(stem, |(tap, _)| tap);
        if !path.is_file() || tap.parse::<Tap>().is_ok() {
            continue;
        }
        match RAW.iter().find(|(raw, _)| *raw == ending) {
            Some((_, storage)) => found.raw(&path, stem, *storage)?,
            None if ending == "npy" => found.npy(&path, stem)?,
            None if ending == "txt" => found.text(&path, stem)?,
            None => {}
        }
    }
    let mut opened = found.finish(folder, Format::Dumped)?;
    if folder.join("dump.json").exists() {
        opened.qk_rows = Dump::open(folder).ok().and_then(|dump| dump.meta().qk_rows);
    }
    Ok(opened)
}

/// Opens every tensor of a .npz that is not a tap.
pub(crate) fn open_archive(path: &Path) -> Result<Opened, ModelError> {
    let error = |e: firstdiff_trace::DumpError| ModelError::Format { file: path.into(), reason: e.bare(path) };
    let dump = Dump::open(path).map_err(error)?;
    let mut found = TensorFiles::default();
    for name in dump.unmapped() {
        found.tensor(path, name, &dump.read_unmapped(name).map_err(error)?);
    }
    found.finish(path, Format::Npz)
}

/// Opens one tensor, or its first values, as text: one value a line, optionally after its index.
pub(crate) fn open_text(path: &Path) -> Result<Opened, ModelError> {
    let mut found = TensorFiles::default();
    let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    found.text(path, &stem)?;
    found.finish(path, Format::Text)
}

#[derive(Default)]
struct TensorFiles {
    files: Vec<(std::path::PathBuf, Bytes)>,
    table: HashMap<String, Entry>,
}

impl TensorFiles {
    fn add(&mut self, path: &Path, name: &str, storage: Storage, shape: Vec<usize>, bytes: Bytes) {
        let range = 0..(*bytes).as_ref().len();
        let entry =
            Entry { file: self.files.len(), storage: Ok(storage), shape, bytes: range, order: Order::default() };
        self.files.push((path.into(), bytes));
        self.table.insert(name.into(), entry);
    }

    fn tensor(&mut self, path: &Path, name: &str, tensor: &Tensor) {
        let storage = match tensor.dtype() {
            DType::F64 => Storage::F64,
            DType::F32 => Storage::F32,
            DType::F16 => Storage::F16,
            DType::BF16 => Storage::BF16,
        };
        let bytes: Bytes = match tensor.bytes() {
            std::borrow::Cow::Borrowed(_) => Box::new(OwnedBytes(tensor.clone())),
            std::borrow::Cow::Owned(bytes) => Box::new(bytes),
        };
        self.add(path, name, storage, tensor.shape().to_vec(), bytes);
    }

    fn npy(&mut self, path: &Path, stem: &str) -> Result<(), ModelError> {
        let start = super::first_bytes(path)?;
        if !start.starts_with(b"\x93NUMPY") {
            return self.raw(path, stem, Storage::F32);
        }
        let error = |e: firstdiff_trace::DumpError| ModelError::Format { file: path.into(), reason: e.bare(path) };
        let tensor = Tensor::open_npy(path).map_err(error)?;
        self.tensor(path, stem, &tensor);
        Ok(())
    }

    /// Adds numbers without a header, as one row; the tensor that they are compared with gives the shape.
    fn raw(&mut self, path: &Path, stem: &str, storage: Storage) -> Result<(), ModelError> {
        let bytes = map(path)?;
        let (length, width) = ((*bytes).as_ref().len(), storage.row_bytes(1).unwrap_or(1));
        if !length.is_multiple_of(width) {
            let reason = format!("{length} bytes are no whole number of {} values", storage.name());
            return Err(ModelError::Format { file: path.into(), reason });
        }
        self.add(path, stem, storage, vec![length / width], bytes);
        Ok(())
    }

    /// Adds lines of `v`, `i v`, `i: v` or `[i] = v`.
    fn text(&mut self, path: &Path, stem: &str) -> Result<(), ModelError> {
        let bytes = map(path)?;
        let Ok(text) = std::str::from_utf8((*bytes).as_ref()) else { return Ok(()) };
        let value =
            |line: &str| line.split([' ', '\t', '=', ':', ',']).rfind(|s| !s.is_empty()).and_then(|v| v.parse().ok());
        let mut values = Vec::new();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let Some(value): Option<f64> = value(line) else { return Ok(()) };
            values.extend_from_slice(&(value as f32).to_le_bytes());
        }
        self.add(path, stem, Storage::F32, vec![values.len() / 4], Box::new(values));
        Ok(())
    }

    fn finish(self, path: &Path, format: Format) -> Result<Opened, ModelError> {
        let refuse = |reason: &str| ModelError::Format { file: path.into(), reason: reason.into() };
        if self.table.is_empty() {
            return Err(refuse(
                "holds no weights: no config.json, no model.safetensors, and no tensors under other names than taps",
            ));
        }
        let config = Err(refuse("holds tensors, but no config.json and nothing else that says what the model is"));
        Ok(Opened::new(format, Weights::new(self.files, self.table, names::hugging_face), config))
    }
}

/// A tensor in memory whose bytes are in order, as weight bytes.
struct OwnedBytes(Tensor);

impl AsRef<[u8]> for OwnedBytes {
    fn as_ref(&self) -> &[u8] {
        match self.0.bytes() {
            std::borrow::Cow::Borrowed(bytes) => bytes,
            std::borrow::Cow::Owned(_) => &[],
        }
    }
}

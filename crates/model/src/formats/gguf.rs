//! Reads a GGUF file: its metadata and its tensor table, in versions 2 and 3, either byte order, split or whole.
//!
//! Source: ggml, docs/gguf.md.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use firstdiff_trace::memory_limit;

use crate::entry::{Bytes, Entry, Order};
use crate::error::ModelError;
use crate::file::{Cursor, map};
use crate::ggml;
use crate::names;
use crate::storage::Storage;
use crate::weights::Weights;

/// A metadata value. Of a list of texts only the length is kept.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    /// A list: its length, and its values if they are numbers and few.
    List(u64, Vec<f64>),
}

/// Metadata and weights of a GGUF.
pub(crate) struct Gguf {
    pub(crate) metadata: HashMap<String, Value>,
    pub(crate) weights: Weights,
}

/// The content of one file.
struct FileContent {
    metadata: HashMap<String, Value>,
    tensors: Vec<(String, Entry)>,
}

/// The most axes a ggml tensor can have.
const AXES: u32 = 4;
/// The least bytes of a row in the tensor table, and of a key with its value.
const LEAST_TENSOR: u64 = 8 + 4 + 4 + 8;
const LEAST_KEY: u64 = 8 + 4 + 1;
/// About the memory that a tensor's entry and a key take.
const TENSOR_MEMORY: u64 = 512;
const KEY_MEMORY: u64 = 256;
/// Lists of numbers are kept up to this length, and up to this many numbers in all.
const MAX_LIST: u64 = 4096;
const MAX_ALL_LISTS: u64 = 1 << 20;
/// How deep lists can be nested.
const DEPTH: usize = 4;

/// Maps `path`, and the other files of a split model.
pub(crate) fn open(path: &Path) -> Result<Gguf, ModelError> {
    let format = |file: &Path, reason: String| ModelError::Format { file: file.into(), reason };
    let (bytes, first) = open_file(path, 0)?;
    let count = match first.metadata.get("split.count") {
        None => 1,
        Some(Value::Unsigned(count)) => *count,
        Some(other) => return Err(format(path, format!("split.count is {other:?}"))),
    };
    if count <= 1 {
        return assemble(first.metadata, vec![(path.into(), bytes, first.tensors)]);
    }
    let paths = split_paths(path, count).map_err(|reason| format(path, reason))?;
    let (mut metadata, mut parts) = (None, Vec::new());
    for (number, path) in paths.into_iter().enumerate() {
        let (bytes, part) = open_file(&path, number)?;
        let told = [("split.count", count), ("split.no", number as u64)];
        if let Some((key, _)) = told.iter().find(|(key, n)| part.metadata.get(*key) != Some(&Value::Unsigned(*n))) {
            return Err(format(&path, format!("{key} does not suit its name")));
        }
        metadata.get_or_insert(part.metadata);
        parts.push((path, bytes, part.tensors));
    }
    assemble(metadata.unwrap_or_default(), parts)
}

type FilePart = (PathBuf, Bytes, Vec<(String, Entry)>);

fn assemble(metadata: HashMap<String, Value>, parts: Vec<FilePart>) -> Result<Gguf, ModelError> {
    let (mut files, mut table) = (Vec::new(), HashMap::new());
    for (path, bytes, tensors) in parts {
        for (tensor, entry) in tensors {
            if table.contains_key(&tensor) {
                return Err(ModelError::Tensor { file: path, tensor, reason: "is there twice".into() });
            }
            table.insert(tensor, entry);
        }
        files.push((path, bytes));
    }
    Ok(Gguf { metadata, weights: Weights::new(files, table, names::gguf) })
}

/// The paths of a split model: `x-00001-of-00003.gguf` and so on.
fn split_paths(path: &Path, count: u64) -> Result<Vec<PathBuf>, String> {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let wrong = || format!("is one of {count} files, but its name does not end in -00001-of-{count:05}.gguf");
    let stem = name.strip_suffix(&format!("-of-{count:05}.gguf")).ok_or_else(wrong)?;
    let (stem, number) = stem.rsplit_once('-').ok_or_else(wrong)?;
    if number.len() != 5 || !number.bytes().all(|b| b.is_ascii_digit()) || count > 99_999 {
        return Err(wrong());
    }
    let all = (1..=count).map(|n| path.with_file_name(format!("{stem}-{n:05}-of-{count:05}.gguf"))).collect::<Vec<_>>();
    match all.iter().find(|path| !path.exists()) {
        Some(absent) => Err(format!("is one of {count} files, and {} is absent", absent.display())),
        None => Ok(all),
    }
}

fn open_file(path: &Path, number: usize) -> Result<(Bytes, FileContent), ModelError> {
    let bytes = map(path)?;
    let part = parse((*bytes).as_ref(), number).map_err(|trouble| match trouble {
        GgufError::File(reason) => ModelError::Format { file: path.into(), reason },
        GgufError::Tensor(tensor, reason) => ModelError::Tensor { file: path.into(), tensor, reason },
    })?;
    Ok((bytes, part))
}

/// An error in the file, or in one tensor of it.
#[derive(Debug)]
pub(crate) enum GgufError {
    File(String),
    Tensor(String, String),
}

impl From<String> for GgufError {
    fn from(reason: String) -> GgufError {
        GgufError::File(reason)
    }
}

/// Reads all of `bytes` except the tensor values: the entry point of the fuzzer.
#[doc(hidden)]
pub fn check_gguf(bytes: &[u8]) -> Result<usize, String> {
    match parse(bytes, 0) {
        Ok(part) => Ok(part.tensors.len()),
        Err(GgufError::File(reason)) => Err(reason),
        Err(GgufError::Tensor(tensor, reason)) => Err(format!("{tensor}: {reason}")),
    }
}

fn parse(bytes: &[u8], number: usize) -> Result<FileContent, GgufError> {
    let mut reader = Reader { cursor: Cursor::new(bytes), big_endian: false, kept: 0 };
    let magic = reader.cursor.array::<4>()?;
    if &magic != b"GGUF" {
        return Err(format!("is no GGUF: it begins with '{}'", magic.escape_ascii()).into());
    }
    let version = reader.version()?;
    if !(2..=3).contains(&version) {
        return Err(format!("GGUF version {version} is not read; 2 and 3 are. Convert the file anew").into());
    }
    let (tensors, keys) = (reader.u64()?, reader.u64()?);
    let left = reader.cursor.left() as u64;
    let held = tensors.saturating_mul(TENSOR_MEMORY).saturating_add(keys.saturating_mul(KEY_MEMORY));
    if tensors > left / LEAST_TENSOR || keys > left / LEAST_KEY || held > memory_limit(bytes.len() as u64) {
        return Err(format!("{tensors} tensors and {keys} keys are announced in {left} bytes").into());
    }
    let mut metadata = HashMap::new();
    for _ in 0..keys {
        let key = reader.text()?;
        let value = reader.value().map_err(|reason| format!("metadata {}: {reason}", truncated(&key)))?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(format!("metadata {} is there twice", truncated(&key)).into());
        }
    }
    let alignment = match metadata.get("general.alignment") {
        None => 32,
        Some(Value::Unsigned(n)) if n.is_power_of_two() && *n <= 1 << 20 => *n,
        Some(other) => return Err(format!("general.alignment is {other:?}, not a power of 2").into()),
    };
    let rows = (0..tensors).map(|_| reader.tensor()).collect::<Result<Vec<_>, _>>()?;
    let data = (reader.cursor.at as u64).next_multiple_of(alignment);
    let entries = locate_tensors(rows, data, alignment, bytes.len() as u64, reader.big_endian, number)?;
    Ok(FileContent { metadata, tensors: entries })
}

/// A row of the tensor table.
struct TensorInfo {
    name: String,
    /// Slowest axis first.
    shape: Vec<usize>,
    storage: Result<Storage, String>,
    offset: u64,
}

/// Checks that every tensor lies in the file, has a unique name, and overlaps no other; returns the entries.
fn locate_tensors(
    rows: Vec<TensorInfo>,
    data: u64,
    alignment: u64,
    end: u64,
    big_endian: bool,
    file: usize,
) -> Result<Vec<(String, Entry)>, GgufError> {
    let mut entries: Vec<(String, Entry)> = Vec::with_capacity(rows.len());
    for TensorInfo { name, shape, storage, offset } in rows {
        let trouble = |reason: String| GgufError::Tensor(truncated(&name), reason);
        let count = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let count = count.filter(|&n| n > 0).ok_or_else(|| trouble(format!("has the shape {shape:?}")))?;
        let size = match &storage {
            Ok(storage) => {
                let columns = shape.last().copied().unwrap_or(1);
                let whole = storage.row_bytes(columns).and_then(|row| row.checked_mul(count / columns));
                whole.ok_or_else(|| {
                    trouble(format!("rows of {columns} elements are no whole blocks of {}", storage.name()))
                })?
            }
            Err(_) => 0,
        };
        if !offset.is_multiple_of(alignment) {
            return Err(trouble(format!("begins at byte {offset}, which is no multiple of the alignment {alignment}")));
        }
        let start = data.checked_add(offset);
        let range = start.and_then(|start| Some(start..start.checked_add(size as u64)?)).filter(|r| r.end <= end);
        let Some(range) = range else {
            return Err(trouble(format!(
                "{size} bytes from byte {offset} of the data on are not in the file, of {end} bytes"
            )));
        };
        let bytes = range.start as usize..range.end as usize;
        let order = Order { big_endian, transposed: false };
        entries.push((name, Entry { file, storage, shape, bytes, order }));
    }
    let mut by_place: Vec<&(String, Entry)> = entries.iter().collect();
    by_place.sort_by_key(|(_, entry)| (entry.bytes.start, entry.bytes.end));
    if let Some(pair) = by_place.windows(2).find(|pair| pair[1].1.bytes.start < pair[0].1.bytes.end) {
        return Err(GgufError::Tensor(truncated(&pair[1].0), format!("lies over {}", truncated(&pair[0].0))));
    }
    let mut names: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(GgufError::Tensor(truncated(pair[0]), "is there twice".into())),
        None => Ok(entries),
    }
}

struct Reader<'a> {
    cursor: Cursor<'a>,
    big_endian: bool,
    /// How many list numbers are kept so far.
    kept: u64,
}

type Read<T> = Result<T, String>;

impl Reader<'_> {
    /// Reads the version, whose bytes also show the byte order.
    fn version(&mut self) -> Read<u32> {
        let version = u32::from_le_bytes(self.cursor.array()?);
        self.big_endian = version != 0 && version.trailing_zeros() >= 16;
        Ok(if self.big_endian { version.swap_bytes() } else { version })
    }

    /// Reads N bytes, the low byte first.
    fn number<const N: usize>(&mut self) -> Read<[u8; N]> {
        let mut bytes = self.cursor.array::<N>()?;
        if self.big_endian {
            bytes.reverse();
        }
        Ok(bytes)
    }

    fn u32(&mut self) -> Read<u32> {
        self.number().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Read<u64> {
        self.number().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Read<String> {
        let length = self.u64()?;
        let bytes = self.cursor.read_bytes(length)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| format!("a text before byte {} is not UTF-8", self.cursor.at))
    }

    fn value(&mut self) -> Read<Value> {
        let kind = self.u32()?;
        self.read_value(kind, 0)
    }

    fn read_value(&mut self, kind: u32, depth: usize) -> Read<Value> {
        Ok(match kind {
            0 => Value::Unsigned(self.number::<1>()?[0].into()),
            1 => Value::Signed((self.number::<1>()?[0] as i8).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.number()?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.number()?).into()),
            4 => Value::Unsigned(self.u32()?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.number()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.number()?).into()),
            7 => Value::Bool(self.number::<1>()?[0] != 0),
            8 => Value::Text(self.text()?),
            9 => return self.list(depth),
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.number()?)),
            12 => Value::Float(f64::from_le_bytes(self.number()?)),
            other => return Err(format!("value type {other} is none")),
        })
    }

    /// Reads a list. Long lists and texts are skipped: this crate does not need the vocabulary.
    fn list(&mut self, depth: usize) -> Read<Value> {
        let (kind, length) = (self.u32()?, self.u64()?);
        if depth == DEPTH {
            return Err("lists within lists within lists".into());
        }
        let width = match kind {
            0 | 1 | 7 => Some(1),
            2 | 3 => Some(2),
            4..=6 => Some(4),
            10..=12 => Some(8),
            _ => None,
        };
        let mut kept = Vec::new();
        match width {
            Some(width) if length > MAX_LIST || self.kept + length > MAX_ALL_LISTS => {
                let bytes = length.checked_mul(width).ok_or_else(|| format!("a list of {length} numbers"))?;
                self.cursor.skip(bytes)?;
            }
            // A text or a list takes 8 bytes at least.
            None if length > self.cursor.left() as u64 / 8 => {
                return Err(format!("a list of {length} is announced where {} bytes are left", self.cursor.left()));
            }
            _ => {
                self.kept += if width.is_some() { length } else { 0 };
                for _ in 0..length {
                    match self.read_value(kind, depth + 1)? {
                        Value::Unsigned(n) => kept.push(n as f64),
                        Value::Signed(n) => kept.push(n as f64),
                        Value::Float(x) => kept.push(x),
                        _ => {}
                    }
                }
            }
        }
        Ok(Value::List(length, kept))
    }

    fn tensor(&mut self) -> Result<TensorInfo, GgufError> {
        let name = self.text()?;
        let axes = self.u32()?;
        if axes == 0 || axes > AXES {
            return Err(GgufError::Tensor(truncated(&name), format!("has {axes} axes; ggml has 1 to {AXES}")));
        }
        let mut shape = Vec::new();
        for _ in 0..axes {
            let extent = self.u64()?;
            let fits = usize::try_from(extent).ok().filter(|&n| n > 0 && n <= isize::MAX as usize);
            shape.push(fits.ok_or_else(|| GgufError::Tensor(truncated(&name), format!("has an axis of {extent}")))?);
        }
        // ggml lists the fastest axis first.
        shape.reverse();
        let kind = self.u32()?;
        Ok(TensorInfo { name, shape, storage: storage(kind), offset: self.u64()? })
    }
}

/// The element type with the number `kind`, or the name of an unsupported one.
fn storage(kind: u32) -> Result<Storage, String> {
    match kind {
        0 => Ok(Storage::F32),
        1 => Ok(Storage::F16),
        24 => Ok(Storage::I8),
        25 => Ok(Storage::I16),
        26 => Ok(Storage::I32),
        27 => Ok(Storage::I64),
        28 => Ok(Storage::F64),
        30 => Ok(Storage::BF16),
        other => ggml::Type::from_id(other).map(Storage::Block).ok_or_else(|| format!("ggml type {other}")),
    }
}

/// A name from the file, cut to fit on a line.
fn truncated(name: &str) -> String {
    name.chars().take(80).flat_map(char::escape_debug).collect()
}

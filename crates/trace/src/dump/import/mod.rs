//! Reads tensor files of other programs: raw floats, text, JSON, logs and PyTorch pickles. Each gives a list of tensors with their original names.

mod bracket;
mod headed;
mod json;
mod lines;
mod log;
mod model_conversion;
mod pickle;
mod printed;
mod raw;
mod text;
mod tree;

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use crate::dump::{DumpError, Entry, file_error, not_a_dump};
use crate::element::write::MAGIC;
use crate::element::{DType, element_count};
use crate::file::read_regular;
use crate::meta::{QkRows, Rows};
use crate::tap::Tap;
use crate::tensor::{Tensor, Values};

pub(crate) use model_conversion::add_token_ids;
pub(crate) use printed::Precision;
pub(crate) use raw::open as open_raw;

/// A tensor of another program's file, with the name it has there.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) name: String,
    /// 0 for the prefill, n for the n-th decode step.
    pub(crate) step: u32,
    pub(crate) rows: Option<Rows>,
    /// Which elements it holds, unless all.
    pub(crate) part: Option<KnownElements>,
    /// With how many digits its numbers were printed, unless they are exact.
    pub(crate) printed: Option<Precision>,
    pub(crate) tensor: Tensor,
}

/// Some of the elements of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownElements {
    /// The row-major index of each value in the whole tensor.
    pub elements: Vec<usize>,
    /// The shape of the whole tensor, if known.
    pub shape: Option<Vec<usize>>,
    /// The sum of all elements if the file gives it, and the sum of those in the file.
    pub sum: Option<f64>,
}

impl Item {
    /// A whole tensor of printed numbers.
    fn printed(name: &str, shape: Vec<usize>, values: Vec<f64>) -> Option<Item> {
        let printed = Precision::measure(&values);
        Some(Item { printed, ..Item::whole(name, shape, values)? })
    }

    fn whole(name: &str, shape: Vec<usize>, values: Vec<f64>) -> Option<Item> {
        let tensor = Tensor::held(shape, to_f32_if_exact(values)).ok()?;
        Some(Item { name: name.into(), step: 0, rows: None, part: None, printed: None, tensor })
    }

    fn part(name: &str, part: KnownElements, values: Vec<f64>) -> Option<Item> {
        let shape = vec![values.len()];
        Some(Item { part: Some(part), ..Item::printed(name, shape, values)? })
    }

    fn stepped(self, step: u32) -> Item {
        Item { step, ..self }
    }
}

/// Converts to f32 if every value is exactly an f32, as printed values of an engine are.
fn to_f32_if_exact(values: Vec<f64>) -> Values<'static> {
    let exact = values.iter().all(|&x| x.is_nan() || f64::from(x as f32) == x);
    match exact {
        true => Values::F32(values.iter().map(|&x| x as f32).collect::<Vec<_>>().into()),
        false => Values::F64(values.into()),
    }
}

/// The content of another program's file: its tensors, and what had to be assumed.
#[derive(Debug, Default)]
pub(crate) struct Imported {
    pub(crate) items: Vec<Item>,
    pub(crate) notes: Vec<String>,
    /// The token ids of each sequence, if the file has them.
    pub(crate) tokens: Option<Vec<Vec<i64>>>,
    pub(crate) qk_rows: Option<QkRows>,
    /// Other files that it names, and that were read with it.
    pub(crate) files: Vec<String>,
}

/// The format of a file, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileFormat {
    Raw(Option<DType>),
    Text,
    Json,
    Lines,
    Pickle,
}

fn format(path: &Path) -> Option<FileFormat> {
    let ending = path.extension()?.to_str()?.to_ascii_lowercase();
    Some(match ending.as_str() {
        "f32" | "fp32" | "float32" => FileFormat::Raw(Some(DType::F32)),
        "f64" | "fp64" | "float64" => FileFormat::Raw(Some(DType::F64)),
        "f16" | "fp16" | "float16" => FileFormat::Raw(Some(DType::F16)),
        "bf16" | "bfloat16" => FileFormat::Raw(Some(DType::BF16)),
        "bin" | "raw" | "dat" => FileFormat::Raw(None),
        "txt" | "log" | "out" | "csv" => FileFormat::Text,
        "json" => FileFormat::Json,
        "jsonl" | "ndjson" => FileFormat::Lines,
        "pt" | "pth" => FileFormat::Pickle,
        _ => return None,
    })
}

/// The element type that a file without header looks like, if its name does not give it.
pub(crate) fn guessed_dtype(path: &Path) -> Option<DType> {
    let headless = path.extension().is_some_and(|e| e == "npy");
    if !(headless || format(path) == Some(FileFormat::Raw(None))) || !path.is_file() {
        return None;
    }
    if headless && has_npy_header(path) {
        return None;
    }
    Some(raw::guess(&crate::dump::map_file(path).ok()?))
}

fn has_npy_header(path: &Path) -> bool {
    let mut start = [0; MAGIC.len()];
    let read = crate::dump::open_file(path).is_ok_and(|mut file| file.read_exact(&mut start).is_ok());
    read && start == MAGIC
}

/// Whether the file's name is that of a supported format.
pub(crate) fn is_foreign(path: &Path) -> bool {
    format(path).is_some()
}

/// Reads a file of another program; `dtype` is the element type of raw floats, if the user gives it. A file without tensors gives none, and a note.
///
/// # Errors
/// When the file cannot be read, or begins in a known format but does not continue in it.
pub(crate) fn read(path: &Path, dtype: Option<DType>) -> Result<Imported, DumpError> {
    let name = stem(path);
    match format(path) {
        Some(FileFormat::Raw(told)) => raw::open(path, told.or(dtype)),
        Some(FileFormat::Text) => text_or_log(path, &name),
        Some(FileFormat::Json) => json::read(path, &name),
        Some(FileFormat::Lines) => lines::read(path),
        Some(FileFormat::Pickle) => pickle::read(path),
        None => Err(not_a_dump(path, "not a form of tensors that firstdiff knows")),
    }
}

fn text_or_log(path: &Path, name: &str) -> Result<Imported, DumpError> {
    let text = read_text(path)?;
    if log::is_one(&text) {
        return Ok(log::read(&text));
    }
    let json = text.trim_start().starts_with(['[', '{']).then(|| json::parse_embedded(&text, name)).flatten();
    Ok(json.unwrap_or_else(|| headed::read(&text, name, path)))
}

/// The file name without its last extension.
pub(crate) fn stem(path: &Path) -> String {
    path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The path of a value within a file: the path of its container, and its own key. Long paths are cut, because many values under a few long keys would give
/// names far larger than the file.
fn path_below(path: &str, key: &str) -> String {
    const LONGEST: usize = 1000;
    let mut below = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    let end = (0..=LONGEST.min(below.len())).rev().find(|&end| below.is_char_boundary(end));
    below.truncate(end.unwrap_or(0));
    below
}

/// Reads text that may not be valid UTF-8: logs contain terminal escapes and prompts.
fn read_text(path: &Path) -> Result<String, DumpError> {
    let bytes = read_regular(path, u64::MAX).map_err(file_error)?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
}

/// A .npy, named by its file.
pub(crate) fn whole_item(name: &str, tensor: Tensor) -> Item {
    Item { name: name.into(), step: 0, rows: None, part: None, printed: None, tensor }
}

/// Some elements of a tap, as from a log or a list of first values.
#[derive(Clone, Debug)]
pub struct Partial {
    /// The tap.
    pub tap: Tap,
    /// 0 for the prefill, n for the n-th decode step.
    pub step: u32,
    /// The token positions of the whole tensor, if fewer than all.
    pub rows: Option<Rows>,
    /// The values: the elements that [`KnownElements::elements`] lists, in that order.
    pub values: Arc<[f64]>,
    /// Which elements they are.
    pub part: KnownElements,
    /// With how many digits they were printed.
    pub(crate) printed: Option<Precision>,
}

impl Partial {
    /// Whether both hold the same elements of the same tap, printed with the same precision.
    pub(crate) fn is_same(&self, other: &Partial) -> bool {
        let bits = |part: &Partial| part.values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let key = |part: &Partial| (part.tap, part.step, part.rows.clone(), part.part.clone(), part.precision());
        bits(self) == bits(other) && key(self) == key(other)
    }

    /// How far the original number may be from the printed `value`: half a unit of its last digit.
    pub fn half_unit(&self, value: f64) -> f64 {
        self.printed.map_or(0.0, |printed| printed.half_unit(value))
    }

    /// The precision of the printed numbers in words; `None` where nothing was lost.
    pub fn precision(&self) -> Option<String> {
        self.printed.map(|printed| printed.to_string())
    }

    /// A whole tensor of it, if its elements make one and its digits are precise enough to compute with.
    pub(crate) fn entry(&self) -> Option<Entry> {
        let shape = self.part.shape.clone()?;
        let will_do = self.printed.is_none_or(|printed| printed.suffices(&self.values));
        let tensor = Tensor::held(shape.clone(), to_f32_if_exact(self.values.to_vec())).ok().filter(|_| will_do)?;
        let (dtype, rows) = (tensor.dtype(), self.rows.clone());
        Some(Entry::computed(self.tap, self.step, shape, dtype, rows, move || Ok(tensor.clone())))
    }

    /// A whole tensor, marked as f16, if no element is missing and its digits lost far less than rounding to f16 would.
    pub(crate) fn as_f16(&self) -> Option<Entry> {
        let shape = self.part.shape.clone().filter(|_| self.holds_all())?;
        let tensor = Tensor::held(shape.clone(), to_f32_if_exact(self.values.to_vec())).ok()?;
        let own = tensor.dtype();
        let made = Entry::computed(self.tap, self.step, shape, own, self.rows.clone(), move || Ok(tensor.clone()));
        self.printed?.beats_f16(&self.values).then_some(Entry { dtype: DType::F16, ..made })
    }

    /// A whole f64 tensor, if no element is missing: for callers who slice it and take its precision into account.
    pub fn whole(&self) -> Option<Entry> {
        let shape = self.part.shape.clone().filter(|_| self.holds_all())?;
        let tensor = Tensor::held(shape.clone(), Values::F64(self.values.to_vec().into())).ok()?;
        Some(Entry::computed(self.tap, self.step, shape, DType::F64, self.rows.clone(), move || Ok(tensor.clone())))
    }

    /// Whether it holds all elements of its shape, in order.
    pub(crate) fn holds_all(&self) -> bool {
        let all = self.part.shape.as_deref().and_then(element_count);
        all == Some(self.values.len()) && self.part.elements.iter().copied().eq(0..self.values.len())
    }

    pub(crate) fn from_item(item: Item, tap: Tap) -> Partial {
        let values = item.tensor.values().to_f64();
        let whole = || KnownElements {
            elements: (0..values.len()).collect(),
            shape: Some(item.tensor.shape().to_vec()),
            sum: None,
        };
        let part = item.part.unwrap_or_else(whole);
        Partial { tap, step: item.step, rows: item.rows, values: values.into(), part, printed: item.printed }
    }
}

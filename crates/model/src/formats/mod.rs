//! Detects the format of weights and opens them. Each format has a file whose reader returns an [`Opened`].

mod dumped;
pub(crate) mod gguf;
mod gguf_config;
mod llama2c;
mod minimind;
mod packed;
mod safetensors;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use firstdiff_trace::{QkRows, json_fits, read_regular};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::config::Config;
use crate::error::ModelError;
use crate::family::FAMILIES;
use crate::keys::Keys;
use crate::plan::{Role, WeightRef};
use crate::weights::Weights;

#[doc(hidden)]
pub use gguf::check_gguf;
#[doc(hidden)]
pub use llama2c::check_llama2c;
#[doc(hidden)]
pub use minimind::check_minimind;

/// A format of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A folder with config.json and .safetensors.
    HuggingFace,
    /// .gguf.
    Gguf,
    /// .safetensors without a config.
    Safetensors,
    /// .npz without a config.
    Npz,
    /// A folder of tensors that a program wrote out.
    Dumped,
    /// Numbers as text.
    Text,
    /// A checkpoint of llama2.c.
    Llama2c,
    /// A state dict of MiniMind as JSON.
    MiniMind,
}

impl Format {
    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Format::HuggingFace => "Hugging Face",
            Format::Gguf => "GGUF",
            Format::Safetensors => "safetensors",
            Format::Npz => "npz",
            Format::Dumped => "dumped tensors",
            Format::Text => "text",
            Format::Llama2c => "llama2.c",
            Format::MiniMind => "MiniMind JSON",
        }
    }
}

/// Weights in any format, and the config that their files give.
#[derive(Debug)]
pub struct Opened {
    /// The format.
    pub format: Format,
    /// The tensors.
    pub weights: Weights,
    /// The config, or why the files do not give one that can be run.
    pub config: Result<Config, ModelError>,
    /// The RoPE pairing for which the rows of Q and K are ordered, if the format defines it.
    pub qk_rows: Option<QkRows>,
    /// Number of query heads and key heads, if the file gives them.
    pub heads: Option<(usize, usize)>,
    /// The prompts with which the file was made, if it holds them.
    pub prompts: Vec<Vec<u32>>,
}

impl Opened {
    fn new(format: Format, weights: Weights, config: Result<Config, ModelError>) -> Opened {
        let known = config.as_ref().ok();
        let (qk_rows, heads) = (known.map(|c| c.qk_rows), known.map(|c| (c.dims.heads, c.dims.kv_heads)));
        Opened { format, weights, config, qk_rows, heads, prompts: Vec::new() }
    }
}

/// How files of a format are detected and opened.
struct FormatReader {
    /// Whether `path` is of this format; `start` holds its first bytes (empty for a folder).
    detects: fn(path: &Path, start: &[u8]) -> bool,
    open: fn(&Path) -> Result<Opened, ModelError>,
}

/// Every format; the first match is used.
const READERS: &[FormatReader] = &[
    FormatReader { detects: |path, _| path.is_dir() && is_hugging_face(path), open: hugging_face },
    FormatReader { detects: |path, _| path.is_dir(), open: dumped::open_folder },
    FormatReader { detects: |_, start| start.starts_with(b"GGUF"), open: open_gguf },
    FormatReader { detects: |path, _| has_ending(path, "safetensors"), open: open_safetensors },
    FormatReader { detects: is_pickle, open: reject_pickle },
    FormatReader { detects: |path, _| has_ending(path, "npz"), open: dumped::open_archive },
    FormatReader {
        detects: |path, start| has_ending(path, "json") || start.trim_ascii_start().starts_with(b"{"),
        open: minimind::open,
    },
    FormatReader { detects: |path, _| has_ending(path, "txt"), open: dumped::open_text },
    FormatReader { detects: |path, start| has_ending(path, "bin") || llama2c::has_magic(start), open: llama2c::open },
];

/// Opens the weights at `path` in any format, also those that cannot be run because config or family are missing.
///
/// # Errors
/// When the format is not known, or a file is damaged.
pub fn open(path: &Path) -> Result<Opened, ModelError> {
    let start = first_bytes(path)?;
    match READERS.iter().find(|format| (format.detects)(path, &start)) {
        Some(format) => {
            let opened = (format.open)(path)?;
            let refused = |packing: String| {
                let reason = format!(
                    "its weights are packed by {packing}, which is not read: name a folder that holds them dequantised, as bf16 or f32"
                );
                ModelError::Format { file: path.into(), reason }
            };
            packed::detect_packing(path, &opened.weights).map_or(Ok(opened), |packing| Err(refused(packing)))
        }
        None => {
            let known = "a Hugging Face folder, .gguf, .safetensors, .npz, llama2.c .bin, MiniMind .json, or a folder of dumped tensors";
            let reason = format!("is no format that is known: {known}");
            Err(ModelError::Format { file: path.into(), reason })
        }
    }
}

fn first_bytes(path: &Path) -> Result<Vec<u8>, ModelError> {
    let io = |source| ModelError::Io { file: path.into(), source };
    let meta = std::fs::metadata(path).map_err(io)?;
    let mut start = Vec::new();
    if meta.is_file() {
        File::open(path).map_err(io)?.take(64).read_to_end(&mut start).map_err(io)?;
        if start.is_empty() {
            return Err(ModelError::Format { file: path.into(), reason: "is empty".into() });
        }
    } else if !meta.is_dir() {
        return Err(ModelError::Format { file: path.into(), reason: "is no regular file".into() });
    }
    Ok(start)
}

fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case(ending))
}

fn is_hugging_face(folder: &Path) -> bool {
    ["config.json", safetensors::SINGLE, safetensors::INDEX].iter().any(|name| folder.join(name).exists())
}

fn hugging_face(folder: &Path) -> Result<Opened, ModelError> {
    let file = folder.join("config.json");
    if !file.exists() {
        let weights = packed::unpack(folder, safetensors::open(folder)?)?;
        let config = Err(ModelError::Format { file: folder.into(), reason: "holds no config.json".into() });
        return Ok(Opened::new(Format::HuggingFace, weights, config));
    }
    let map = parse_config(&file, &config_bytes(&file)?);
    let weights = match safetensors::open(folder) {
        Ok(weights) => packed::unpack(folder, weights)?,
        Err(error) => return Err(map.err().unwrap_or(error)),
    };
    // The weights are opened even if the config is unusable.
    let config = map.and_then(|map| {
        let keys = Keys::new(&file, &map);
        let name = keys.text("model_type").and_then(|name| keys.required("model_type", name))?;
        family(&keys, name, &weights)
    });
    let mut opened = Opened::new(Format::HuggingFace, weights, config);
    opened.qk_rows = Some(QkRows::Half);
    Ok(opened)
}

/// Reads the config as the family `name` does.
fn family(keys: &Keys<'_>, name: &str, weights: &Weights) -> Result<Config, ModelError> {
    let Some(family) = FAMILIES.iter().find(|family| family.name == name) else {
        let known: Vec<_> = FAMILIES.iter().map(|family| family.name).collect();
        return Err(keys.error("model_type", format!("'{name:.40}' is not one of {}", known.join(", "))));
    };
    (family.read)(keys, weights)
}

fn config_bytes(file: &Path) -> Result<Vec<u8>, ModelError> {
    /// The largest config.json that is read; the 20,000 class names of a vision model are a megabyte.
    const CONFIG_LIMIT: u64 = 2 << 20;
    read_regular(file, CONFIG_LIMIT).map_err(ModelError::from_file_error)
}

fn parse_config(file: &Path, bytes: &[u8]) -> Result<Map<String, Value>, ModelError> {
    parse_json(bytes).map_err(|reason| ModelError::Format { file: file.into(), reason })
}

/// Parses the JSON file `bytes`, unless a short text would take far more memory.
fn parse_json<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    if !json_fits(bytes, bytes.len() as u64) {
        return Err("holds far more values than that of any model".into());
    }
    serde_json::from_slice(bytes).map_err(|e| e.to_string())
}

fn open_gguf(path: &Path) -> Result<Opened, ModelError> {
    let gguf = gguf::open(path)?;
    let config = gguf_config::config(path, &gguf);
    let (qk_rows, heads) = (gguf_config::qk_rows(&gguf.metadata), gguf_config::heads(path, &gguf.metadata));
    let mut opened = Opened::new(Format::Gguf, gguf.weights, config);
    opened.qk_rows = qk_rows;
    opened.heads = heads;
    Ok(opened)
}

/// Opens one file of tensors, without a config.
fn open_safetensors(path: &Path) -> Result<Opened, ModelError> {
    let weights = packed::unpack(path, safetensors::open_one(path)?)?;
    let reason = "is weights alone; name the folder that holds config.json too".into();
    Ok(Opened::new(Format::Safetensors, weights, Err(ModelError::Format { file: path.into(), reason })))
}

/// Whether this is a zip other than .npz, or a pickle.
fn is_pickle(path: &Path, start: &[u8]) -> bool {
    let zip = start.starts_with(b"PK") && !has_ending(path, "npz");
    let pickle =
        start.first() == Some(&0x80) && (has_ending(path, "bin") || has_ending(path, "pt") || has_ending(path, "pth"));
    zip || pickle || has_ending(path, "pt") || has_ending(path, "pth")
}

fn reject_pickle(path: &Path) -> Result<Opened, ModelError> {
    let reason = "is a PyTorch checkpoint, which is a program; make tensors of it first: \
                  python scripts/convert/torch_to_safetensors.py FILE OUT.safetensors";
    Err(ModelError::Format { file: path.into(), reason: reason.into() })
}

/// Ties embedding and head to one matrix, which files hold under either name.
pub(crate) fn tie(weights: &mut Weights) {
    let embedding = WeightRef { layer: None, role: Role::Embedding };
    let head = WeightRef { layer: None, role: Role::Head };
    if weights.holds(embedding) { weights.tie(head, embedding) } else { weights.tie(embedding, head) }
}

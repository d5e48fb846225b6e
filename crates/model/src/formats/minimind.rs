//! Reads MiniMind's JSON: `config`, and `weights` as base64 with a shape; linear layers either as \[out,in\] or all as \[in,out\].

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use firstdiff_trace::decode_base64;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::safetensors::Pairs;
use super::{Format, Opened, family};
use crate::entry::{Bytes, Entry, Order};
use crate::error::ModelError;
use crate::file::map;
use crate::keys::Keys;
use crate::names;
use crate::plan::{Role, WeightRef};
use crate::storage::Storage;
use crate::weights::Weights;

#[derive(Deserialize)]
struct File<'a> {
    #[serde(default)]
    config: Map<String, Value>,
    #[serde(borrow)]
    weights: Pairs<TensorTree<'a>>,
    #[serde(borrow, default)]
    inputs: Option<Inputs<'a>>,
}

/// The prompts with which the file was made.
#[derive(Deserialize)]
struct Inputs<'a> {
    #[serde(borrow)]
    input_ids: Tensor<'a>,
}

/// A tensor, or the tensors of each layer.
#[derive(Deserialize)]
#[serde(untagged)]
enum TensorTree<'a> {
    #[serde(borrow)]
    Tensor(Tensor<'a>),
    #[serde(borrow)]
    Layers(Vec<Pairs<Tensor<'a>>>),
}

#[derive(Deserialize)]
struct Tensor<'a> {
    shape: Vec<usize>,
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    #[serde(borrow)]
    encoding: Cow<'a, str>,
    #[serde(borrow)]
    data: Cow<'a, str>,
}

pub(crate) fn open(path: &Path) -> Result<Opened, ModelError> {
    let bytes = map(path)?;
    let parsed = parse((*bytes).as_ref());
    let ModelJson { config, files, table, prompts } =
        parsed.map_err(|reason| ModelError::Format { file: path.into(), reason })?;
    let files = files.into_iter().map(|bytes| (path.to_path_buf(), Box::new(bytes) as Bytes)).collect();
    let mut weights = Weights::new(files, table, names::hugging_face);
    let keys = Keys::new(path, &config);
    let config = family(&keys, "minimind", &weights).map(|mut config| {
        // The file holds a head tensor even where it is tied to the embedding.
        config.tied = !weights.holds(WeightRef { layer: None, role: Role::Head });
        config
    });
    if let Ok(config) = &config {
        let linear = |name: &str| names::meaning(name).filter(|weight| is_linear(weight.role));
        weights.transpose_if_reversed(|name| linear(name).map(|weight| config.dims.shape(weight.role)));
    }
    Ok(Opened { prompts, ..Opened::new(Format::MiniMind, weights, config) })
}

/// Reads all of a file: the entry point of the fuzzer.
#[doc(hidden)]
pub fn check_minimind(bytes: &[u8]) -> Result<usize, String> {
    parse(bytes).map(|parsed| parsed.table.len())
}

struct ModelJson {
    config: Map<String, Value>,
    files: Vec<Vec<u8>>,
    table: HashMap<String, Entry>,
    prompts: Vec<Vec<u32>>,
}

fn parse(bytes: &[u8]) -> Result<ModelJson, String> {
    let file: File<'_> = super::parse_json(bytes).map_err(|e| format!("is no MiniMind JSON: {e}"))?;
    let (mut files, mut table) = (Vec::new(), HashMap::new());
    let mut add = |name: String, tensor: &Tensor<'_>| -> Result<(), String> {
        let (storage, bytes) = decode(tensor).map_err(|reason| format!("tensor {name:.80}: {reason}"))?;
        let weight = names::meaning(&name);
        let (shape, range) = (tensor.shape.clone(), 0..bytes.len());
        let entry = Entry { file: files.len(), storage: Ok(storage), shape, bytes: range, order: Order::default() };
        files.push(bytes);
        match table.insert(weight.map_or(name.clone(), names::hugging_face), entry) {
            None => Ok(()),
            Some(_) => Err(format!("tensor {name:.80} is there twice")),
        }
    };
    for (name, node) in &file.weights.0 {
        match node {
            TensorTree::Tensor(tensor) => add(name.clone(), tensor)?,
            TensorTree::Layers(layers) => {
                for (layer, tensors) in layers.iter().enumerate() {
                    for (stem, tensor) in &tensors.0 {
                        add(format!("{name}.{layer}.{stem}"), tensor)?;
                    }
                }
            }
        }
    }
    let prompts = file.inputs.as_ref().and_then(|inputs| token_ids(&inputs.input_ids)).unwrap_or_default();
    Ok(ModelJson { config: file.config, files, table, prompts })
}

/// The token ids of each prompt in a batch. None if they are malformed: they are only a default prompt.
fn token_ids(ids: &Tensor<'_>) -> Option<Vec<Vec<u32>>> {
    let bytes = decode_base64(&ids.data).filter(|_| ids.encoding == "base64")?;
    let ints: Vec<i64> = match &*ids.dtype {
        "int32" => bytes.as_chunks().0.iter().map(|b| i64::from(i32::from_le_bytes(*b))).collect(),
        "int64" => bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
        _ => return None,
    };
    let width = ids.shape.last().copied().filter(|&width| width > 0)?;
    let ints: Vec<u32> = ints.into_iter().map(u32::try_from).collect::<Result<_, _>>().ok()?;
    Some(ints.chunks(width).map(<[u32]>::to_vec).collect())
}

fn is_linear(role: Role) -> bool {
    matches!(role, Role::Q | Role::K | Role::V | Role::AttnOut | Role::Gate | Role::Up | Role::Down)
}

/// Decodes a tensor; its bytes must match its shape.
fn decode(tensor: &Tensor<'_>) -> Result<(Storage, Vec<u8>), String> {
    let storage = match &*tensor.dtype {
        "float64" => Storage::F64,
        "float32" => Storage::F32,
        "float16" => Storage::F16,
        "bfloat16" => Storage::BF16,
        other => return Err(format!("dtype '{other:.40}' is not one of float64, float32, float16, bfloat16")),
    };
    if tensor.encoding != "base64" {
        return Err(format!("encoding '{:.40}' is not base64", tensor.encoding));
    }
    let count = tensor.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let wanted = count.and_then(|count| storage.row_bytes(count));
    let bytes = decode_base64(&tensor.data).ok_or("its data is no base64")?;
    if wanted != Some(bytes.len()) {
        return Err(format!("{} bytes of data for the shape {:?} of {}", bytes.len(), tensor.shape, tensor.dtype));
    }
    Ok((storage, bytes))
}

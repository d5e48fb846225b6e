//! Locates the tensors of a Hugging Face folder: `model.safetensors`, or the shards that its index names.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Component, Path, PathBuf};

use firstdiff_trace::{JSON_LIMIT, json_fits, read_regular};
use safetensors::{Dtype, SafeTensors};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::entry::{Bytes, Entry, Order};
use crate::error::ModelError;
use crate::file::map;
use crate::names;
use crate::storage::Storage;
use crate::weights::Weights;

pub(super) const SINGLE: &str = "model.safetensors";
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// Maps the weights of `folder`. The location of every tensor is checked; no value is read.
pub(super) fn open(folder: &Path) -> Result<Weights, ModelError> {
    let index = folder.join(INDEX);
    match (folder.join(SINGLE).exists(), index.exists()) {
        (true, _) => open_single(folder),
        (false, true) => open_sharded(folder, &index),
        (false, false) => {
            Err(ModelError::Format { file: folder.into(), reason: format!("holds neither {SINGLE} nor {INDEX}") })
        }
    }
}

fn open_single(folder: &Path) -> Result<Weights, ModelError> {
    open_one(&folder.join(SINGLE))
}

/// Maps one .safetensors file.
pub(super) fn open_one(path: &Path) -> Result<Weights, ModelError> {
    let path = path.to_path_buf();
    let (bytes, entries) = open_file(&path, 0)?;
    Ok(Weights::new(vec![(path, bytes)], entries.into_iter().collect(), names::hugging_face))
}

fn open_sharded(folder: &Path, index: &Path) -> Result<Weights, ModelError> {
    let weight_map = read_index(index)?;
    let mut shards: Vec<&str> = weight_map.iter().map(|(_, shard)| shard.as_str()).collect();
    shards.sort_unstable();
    shards.dedup();
    let (mut files, mut table) = (Vec::new(), HashMap::<String, Entry>::new());
    for shard in shards {
        let path = folder.join(shard);
        let (bytes, entries) = open_file(&path, files.len())?;
        for (tensor, entry) in entries {
            if let Some(other) = table.get(&tensor) {
                let (first, _): &(PathBuf, Bytes) = &files[other.file];
                return Err(ModelError::Tensor { file: path, tensor, reason: format!("also in {}", first.display()) });
            }
            table.insert(tensor, entry);
        }
        files.push((path, bytes));
    }
    for (tensor, shard) in weight_map {
        let expected = folder.join(&shard);
        if table.get(&tensor).is_none_or(|entry| files[entry.file].0 != expected) {
            let reason = format!("{INDEX} places it in {shard}, which does not hold it");
            return Err(ModelError::Tensor { file: expected, tensor, reason });
        }
    }
    Ok(Weights::new(files, table, names::hugging_face))
}

/// Reads `weight_map` of the index: (tensor, shard); each shard must be a plain file name.
fn read_index(file: &Path) -> Result<Vec<(String, String)>, ModelError> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: Pairs<String>,
    }
    let format = |reason: String| ModelError::Format { file: file.into(), reason };
    let bytes = read_regular(file, JSON_LIMIT).map_err(ModelError::from_file_error)?;
    let index: Index = super::parse_json(&bytes).map_err(format)?;
    let Pairs(weight_map) = index.weight_map;
    if let Some(twice) = first_duplicate(&weight_map) {
        return Err(format(format!("tensor {twice} is listed twice")));
    }
    for (tensor, shard) in &weight_map {
        if !is_plain_name(shard) {
            return Err(format(format!("tensor {tensor} is placed in '{shard}', which is no plain file name")));
        }
    }
    if weight_map.is_empty() { Err(format("weight_map is empty".into())) } else { Ok(weight_map) }
}

/// Whether `name` stays inside the folder on every system: one component, no separators, no drive.
fn is_plain_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let one = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
    one && !name.contains(['/', '\\', ':', '\0'])
}

/// Maps a .safetensors file and reads the table of its tensors.
fn open_file(file: &Path, number: usize) -> Result<(Bytes, Vec<(String, Entry)>), ModelError> {
    let format = |reason: String| ModelError::Format { file: file.into(), reason };
    let mapped = map(file)?;
    let bytes: &[u8] = (*mapped).as_ref();
    let length = bytes.first_chunk::<8>().and_then(|length| usize::try_from(u64::from_le_bytes(*length)).ok());
    let header = length.and_then(|length| bytes[8..].get(..length)).unwrap_or_default();
    if !json_fits(header, bytes.len() as u64) {
        return Err(format("its header holds far more values than that of any model".into()));
    }
    let (header, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| format(e.to_string()))?;
    let data = 8 + header;
    let names: Pairs<IgnoredAny> = serde_json::from_slice(&bytes[8..data]).map_err(|e| format(e.to_string()))?;
    if let Some(twice) = first_duplicate(&names.0) {
        return Err(format(format!("tensor {twice} is there twice")));
    }
    let entries = metadata.tensors().into_iter().map(|(name, info)| {
        let (start, end) = info.data_offsets;
        let entry = Entry {
            file: number,
            storage: storage(info.dtype),
            shape: info.shape.clone(),
            bytes: data + start..data + end,
            order: Order::default(),
        };
        (name, entry)
    });
    let entries = entries.collect();
    Ok((mapped, entries))
}

fn storage(dtype: Dtype) -> Result<Storage, String> {
    match dtype {
        Dtype::F64 => Ok(Storage::F64),
        Dtype::F32 => Ok(Storage::F32),
        Dtype::F16 => Ok(Storage::F16),
        Dtype::BF16 => Ok(Storage::BF16),
        Dtype::F8_E4M3 => Ok(Storage::E4M3),
        Dtype::F8_E5M2 => Ok(Storage::E5M2),
        Dtype::F8_E8M0 => Ok(Storage::E8M0),
        Dtype::U8 => Ok(Storage::U8),
        Dtype::I8 => Ok(Storage::I8),
        Dtype::I16 => Ok(Storage::I16),
        Dtype::I32 => Ok(Storage::I32),
        Dtype::I64 => Ok(Storage::I64),
        other => Err(format!("{other:?}")),
    }
}

/// The pairs of a JSON object in order, so that duplicate keys can be found.
pub(super) struct Pairs<V>(pub(super) Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Pairs<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect<V>(std::marker::PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Collect<V> {
            type Value = Pairs<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<V>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Collect(std::marker::PhantomData))
    }
}

fn first_duplicate<V>(pairs: &[(String, V)]) -> Option<&str> {
    let mut seen = HashSet::new();
    pairs.iter().map(|(key, _)| key.as_str()).find(|key| !seen.insert(*key))
}

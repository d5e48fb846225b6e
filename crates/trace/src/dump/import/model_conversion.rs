//! Recognises the files of llama.cpp's model-conversion checks: `data/pytorch-MODEL.bin` and `data/llamacpp-MODEL.bin` hold the logits of the last token,
//! with the token ids in a file beside them.

use std::path::Path;

use super::{Imported, stem};
use crate::dump::{DumpError, map_file, not_a_dump};
use crate::meta::{NamedRows, Rows};

/// Names the tensor read from `path`, and adds the token ids, if it is such a file.
///
/// # Errors
/// When the token ids beside it cannot be read.
pub(crate) fn add_token_ids(path: &Path, mut read: Imported) -> Result<Imported, DumpError> {
    let name = stem(path);
    let is_check = ["pytorch-", "llamacpp-"].iter().any(|side| name.starts_with(side));
    // Embeddings are left out: the files do not say whether and how they were pooled.
    let other = ["-tokens", "-prompt", "-embeddings"].iter().any(|part| name.ends_with(part));
    let both = |ending: &str| path.with_extension(ending).is_file();
    let [item] = read.items.as_mut_slice() else { return Ok(read) };
    if !is_check || other || !(both("bin") && both("txt")) || item.part.is_some() {
        return Ok(read);
    }
    let width = item.tensor.shape().iter().product();
    let Some(tensor) = item.tensor.clone().reshaped(vec![1, width]) else { return Ok(read) };
    (item.tensor, item.name, item.rows) = (tensor, "logits".into(), Some(Rows::Named(NamedRows::Last)));
    read.notes.push(format!("{name}: the logits of the last token, as llama.cpp's model-conversion checks write them"));
    let beside = path.with_file_name(format!("{name}-tokens.bin"));
    if beside.is_file() {
        read.tokens = Some(vec![ids(&beside)?]);
    }
    Ok(read)
}

/// Reads token ids, stored as int32.
fn ids(path: &Path) -> Result<Vec<i64>, DumpError> {
    let bytes = map_file(path)?;
    let (words, rest) = bytes.as_chunks::<4>();
    let ids: Vec<i64> = words.iter().map(|word| i64::from(i32::from_le_bytes(*word))).collect();
    if !rest.is_empty() || ids.is_empty() || ids.iter().any(|id| *id < 0) {
        return Err(not_a_dump(path, "not token ids as int32"));
    }
    Ok(ids)
}

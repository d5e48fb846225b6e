//! Opens what lies at a path as a dump: a file, a folder, or files that a pattern names.

use std::fs;
use std::path::Path;

use crate::dump::import;
use crate::dump::open::{
    Contents, OpenOptions, assemble, dump_from_file, file_names, foreign, npy, open_archive, read_meta,
};
use crate::dump::{Dump, DumpError, folder, io_error, not_a_dump};
use crate::file::{JSON_LIMIT, json_fits, read_regular};
use crate::meta::Meta;

impl Dump {
    /// Opens the dump at `path` and checks every header in it.
    ///
    /// # Errors
    /// When there is no dump, or a tensor with the name of a tap is damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<Dump, DumpError> {
        Dump::open_with(path, &OpenOptions::default())
    }

    /// Opens the dump at `path` with options.
    ///
    /// # Errors
    /// As [`Dump::open`].
    pub fn open_with(path: impl AsRef<Path>, reading: &OpenOptions) -> Result<Dump, DumpError> {
        let path = path.as_ref();
        if path.to_string_lossy().contains('*') && !path.exists() {
            return open_pattern(path, reading);
        }
        let kind = fs::metadata(path).map_err(|e| io_error(path, e))?;
        if kind.is_dir() {
            return folder::open(path, reading);
        }
        if !kind.is_file() {
            return Err(not_a_dump(path, "neither a folder nor a file"));
        }
        match path.extension().and_then(|e| e.to_str()) {
            Some("npz" | "safetensors") => open_archive(path, Meta::default(), reading),
            Some("gguf") => Err(not_a_dump(path, "a .gguf holds weights, not taps; dump a run of it first")),
            Some(_) if is_tensor_file(path) => open_file_alone(path, reading),
            _ => Err(not_a_dump(
                path,
                "neither a folder, a .npz, a .safetensors, a pattern with one '*', nor a file of another form (.npy, .f32, .bin, .txt, \
                 .log, .json, .jsonl, .pt)",
            )),
        }
    }
}

fn is_tensor_file(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "npy") || import::is_foreign(path)
}

fn open_pattern(path: &Path, reading: &OpenOptions) -> Result<Dump, DumpError> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let pattern = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
    let Some((before, after)) = pattern.split_once('*').filter(|(_, after)| !after.contains('*')) else {
        return Err(not_a_dump(path, "a pattern has one '*', in the file's name, where the tap's name stands"));
    };
    let mut all = Contents::default();
    for name in file_names(folder)? {
        let Some(stem) = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after)) else { continue };
        let file = folder.join(&name);
        let earlier = all.tensors.len();
        if name.ends_with(".npy") || !import::is_foreign(&file) {
            npy(&file, stem, reading, &mut all)?;
        } else {
            all.extend(foreign(&file, reading)?);
        }
        // The text matched by '*' is the tensor's name, if the file holds one tensor.
        if let [one] = &mut all.tensors[earlier..] {
            one.name = stem.to_owned();
        }
    }
    if all.tensors.is_empty() {
        return Err(not_a_dump(path, all.notes.first().map_or("no file matches the pattern", String::as_str)));
    }
    // A pattern selects files; whether the recording was complete is still in dump.json.
    let json = folder.join("dump.json");
    let mut meta = Meta::default();
    match json.is_file().then(|| read_meta(&json)).transpose() {
        Ok(beside) => meta.incomplete_as(beside.iter()),
        // A dump.json of another program is noted; one that was cut off is an error.
        Err(error) if is_json(&json) => all.notes.push(format!("dump.json: not read: {}", error.bare(&json))),
        Err(error) => return Err(error),
    }
    assemble(path, meta, all, None, reading)
}

fn is_json(path: &Path) -> bool {
    let text = read_regular(path, JSON_LIMIT).unwrap_or_default();
    json_fits(&text, text.len() as u64) && serde_json::from_slice::<serde::de::IgnoredAny>(&text).is_ok()
}

/// Opens one file with one or more tensors.
fn open_file_alone(path: &Path, reading: &OpenOptions) -> Result<Dump, DumpError> {
    let mut all = Contents::default();
    match path.extension().is_some_and(|e| e == "npy") {
        true => npy(path, &import::stem(path), reading, &mut all)?,
        false => all.extend(import::add_token_ids(path, foreign(path, reading)?)?),
    }
    if let (Some(name), [one]) = (&reading.name, all.tensors.as_mut_slice()) {
        one.name.clone_from(name);
    }
    if all.tensors.is_empty() {
        return Err(not_a_dump(path, all.notes.first().map_or("it holds no tensors", String::as_str)));
    }
    dump_from_file(path, all, reading)
}

//! Opens dumps in an object store or on a web server: headers first, each tensor when it is needed.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::dump::archive::Archive;
use crate::dump::open::{
    Contents, OpenOptions, RawTensor, assemble, declared, dump_from_archive, dump_from_file, parse_meta,
    tap_from_file_name,
};
use crate::dump::store::{START, Store, StoredFile};
use crate::dump::{Dump, DumpError, TensorLocation, io_error, not_a_dump};
use crate::file::{JSON_LIMIT, TABLE_LIMIT};
use crate::meta::Meta;
use crate::names::Names;
use crate::npy::NpyError;

impl Dump {
    /// Opens a dump in a store: all .npy files of the folder, or `file`, a .npz, a .safetensors or a .npy in it. `path` is the name of the folder in
    /// messages. Headers are read now, in parallel, and each tensor when it is needed; a .npz is read whole.
    ///
    /// If the store cannot list its files, `dump.json` must list the taps.
    ///
    /// # Errors
    /// When there is no dump, a tensor with the name of a tap is damaged, or the store cannot be reached.
    pub fn open_store(
        path: &Path,
        file: Option<&str>,
        store: &Arc<dyn Store>,
        reading: &OpenOptions,
    ) -> Result<Dump, DumpError> {
        let at = |name: &str| StoredFile::new(store, path, name);
        let mut reading = reading.clone();
        if reading.names.is_none()
            && let Some(text) = at("firstdiff.toml").whole_if_there(TABLE_LIMIT)?
        {
            let text = String::from_utf8_lossy(&text);
            let names = Names::parse(&text, at("firstdiff.toml").path()).map_err(|e| DumpError::Names(Box::new(e)))?;
            reading.names = Some(names);
        }
        let Some(name) = file else { return open_folder(path, store, &reading) };
        match name.rsplit_once('.') {
            Some((_, "npz" | "safetensors")) => open_archive(&at(name), Meta::default(), &reading),
            Some((stem, "npy")) => {
                let file = at(name);
                let stem = reading.name.clone().unwrap_or_else(|| stem.to_owned());
                // Checks that the file exists and is a .npy, whatever its name.
                file.header(reading.dtype)?;
                let found = vec![RawTensor::stored(&stem, TensorLocation::Stored(file.clone()))];
                dump_from_file(file.path(), Contents { tensors: found, ..Contents::default() }, &reading)
            }
            _ => Err(not_a_dump(
                at(name).path(),
                "neither a folder (end its address with /), a .npz, a .safetensors nor a .npy: files of other forms are read where they lie on this machine",
            )),
        }
    }
}

fn open_archive(file: &StoredFile, meta: Meta, reading: &OpenOptions) -> Result<Dump, DumpError> {
    let (archive, ending) = match file.name.ends_with(".npz") {
        true => (Archive::npz_from_bytes(file.path(), file.whole(u64::MAX)?)?, ".npy"),
        false => (Archive::of_stored_safetensors(file.clone())?, ""),
    };
    dump_from_archive(file.path(), archive, ending, meta, reading)
}

fn open_folder(path: &Path, store: &Arc<dyn Store>, reading: &OpenOptions) -> Result<Dump, DumpError> {
    let at = |name: &str| StoredFile::new(store, path, name);
    let json = at("dump.json");
    let said = json.whole_if_there(JSON_LIMIT)?;
    let meta = match &said {
        Some(text) => parse_meta(json.path(), text, text.len() as u64)?,
        None => Meta::default(),
    };
    let names = store.names().map_err(|source| io_error(path, source))?;
    let mut files: Vec<StoredFile> = Vec::new();
    let (mut found, listed) = declared(json.path(), &meta, ".npy", |name| {
        files.push(at(name));
        TensorLocation::Stored(files[files.len() - 1].clone())
    })?;
    if names.is_none() && meta.taps.is_none() {
        return Err(not_a_dump(
            path,
            "the server does not tell which files it has, and there is no dump.json that lists taps: name a .safetensors, a .npz or a .npy in it",
        ));
    }
    let mut notes = Vec::new();
    let (npy, others): (Vec<&str>, Vec<&str>) = names
        .iter()
        .flatten()
        .map(String::as_str)
        .filter(|name| !listed.contains(*name) && !["dump.json", "firstdiff.toml", "program.json"].contains(name))
        .partition(|name| name.ends_with(".npy"));
    let stems: Vec<(&str, StoredFile)> =
        npy.iter().map(|name| (name.strip_suffix(".npy").unwrap_or(name), at(name))).collect();
    files.extend(stems.iter().map(|(_, file)| file.clone()));
    read_starts(store, &files);
    for (stem, file) in stems {
        // As in a local folder: recorders write characters that are not allowed in file names as `%` and two hexadecimal digits.
        found.push(match meta.is_incomplete() || (said.is_some() && stem.contains('%')) {
            true => {
                let untyped = matches!(file.header(None), Err(DumpError::Npy { source: NpyError::Untyped, .. }));
                tap_from_file_name(stem, TensorLocation::Stored(file), untyped)
            }
            false => RawTensor::stored(stem, TensorLocation::Stored(file)),
        });
    }
    if found.is_empty() {
        let archives: Vec<&&str> =
            others.iter().filter(|name| name.ends_with(".npz") || name.ends_with(".safetensors")).collect();
        return match archives.as_slice() {
            [one] => open_archive(&at(one), meta, reading),
            [] => Err(not_a_dump(path, "no .npy files in it, no archive, and no dump.json that lists taps")),
            [first, ..] => {
                Err(not_a_dump(path, &format!("it holds {} archives, {first} ...: name one of them", archives.len())))
            }
        };
    }
    if let ([first, ..], None) = (others.as_slice(), &meta.taps) {
        notes.push(format!("{} files that are no .npy were not read ({first} ...)", others.len()));
    }
    assemble(path, meta, Contents { tensors: found, notes, ..Contents::default() }, None, reading)
}

/// Reads the first bytes of all files at once. A failed read is repeated, and refused, where the file is needed.
fn read_starts(store: &Arc<dyn Store>, files: &[StoredFile]) {
    let wanted: Vec<(String, Range<u64>)> = files.iter().map(|file| (file.name.clone(), 0..START)).collect();
    for (file, piece) in files.iter().zip(store.read(&wanted)) {
        if let Ok(piece) = piece {
            let _ = file.start.set(piece);
        }
    }
}

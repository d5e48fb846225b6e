//! Opens dumps in an object store or on a web server by reading byte ranges: headers first, each tensor when it is needed.

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::dump::archive::Archive;
use crate::dump::open::{
    Contents, OpenOptions, RawTensor, assemble, declared, dump_from_archive, dump_from_file, parse_meta,
    tap_from_file_name,
};
use crate::dump::{Dump, DumpError, TensorLocation, changed, io_error, not_a_dump};
use crate::element::DType;
use crate::file::{JSON_LIMIT, TABLE_LIMIT};
use crate::meta::Meta;
use crate::names::Names;
use crate::npy::{HEADER_LIMIT, Header, NpyError, read_header};
use crate::tensor::Bytes;

/// A folder of files in an object store, or on a web server.
pub trait Store: Debug + Send + Sync {
    /// The names of the files in it, without folders; `None` where the store cannot list them.
    ///
    /// # Errors
    /// When it cannot be reached, or refuses.
    fn names(&self) -> io::Result<Option<Vec<String>>>;

    /// Reads byte ranges of files, in parallel where the store can. A range beyond the end of its file is cut; one that starts there is an error.
    ///
    /// # Errors
    /// For each range: when there is no such file ([`io::ErrorKind::NotFound`]), or the store cannot be reached or refuses.
    fn read(&self, wanted: &[(String, Range<u64>)]) -> Vec<io::Result<Piece>>;
}

/// A range of a file's bytes.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Size of the whole file in bytes.
    pub size: u64,
}

/// One file of a store.
#[derive(Clone, Debug)]
pub(crate) struct StoredFile {
    store: Arc<dyn Store>,
    name: String,
    /// The path for messages.
    path: PathBuf,
    /// Its first bytes, once read.
    start: Arc<OnceLock<Piece>>,
}

/// How many bytes of a .npy are read to get its header; 128 are usual.
const START: u64 = 1024;

impl StoredFile {
    fn new(store: &Arc<dyn Store>, folder: &Path, name: &str) -> StoredFile {
        StoredFile { store: Arc::clone(store), name: name.to_owned(), path: folder.join(name), start: Arc::default() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A range of its bytes, and its size.
    pub(crate) fn piece(&self, range: Range<u64>) -> Result<Piece, DumpError> {
        let wanted = range.end.saturating_sub(range.start);
        let mut read = self.store.read(&[(self.name.clone(), range.clone())]);
        let piece = read.pop().unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()));
        let piece = piece.map_err(|source| io_error(&self.path, source))?;
        match piece.bytes.len() as u64 == wanted.min(piece.size.saturating_sub(range.start)) {
            true => Ok(piece),
            false => Err(io_error(&self.path, io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// All bytes, if at most `limit`.
    pub(crate) fn whole(&self, limit: u64) -> Result<Vec<u8>, DumpError> {
        let piece = self.piece(0..limit)?;
        match piece.size > limit {
            true => Err(not_a_dump(
                &self.path,
                &format!("{} bytes, and {limit} are the most that are read of such a file", piece.size),
            )),
            false => Ok(piece.bytes),
        }
    }

    /// The same for a file that may be absent.
    fn whole_if_there(&self, limit: u64) -> Result<Option<Vec<u8>>, DumpError> {
        match self.whole(limit) {
            Err(DumpError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    /// The header of the .npy.
    pub(crate) fn header(&self, dtype: Option<DType>) -> Result<Header, DumpError> {
        let start = match self.start.get() {
            Some(start) => start.clone(),
            None => self.piece(0..START)?,
        };
        let read = |start: &Piece| {
            let total =
                usize::try_from(start.size).map_err(|_| not_a_dump(&self.path, "too large for this machine"))?;
            read_header(&start.bytes, total, dtype).map_err(|source| DumpError::Npy { path: self.path.clone(), source })
        };
        let longer = |e: &DumpError| matches!(e, DumpError::Npy { source: NpyError::Header(_), .. });
        match read(&start) {
            Err(e) if longer(&e) && start.size > START => read(&self.piece(0..HEADER_LIMIT as u64)?),
            header => header,
        }
    }

    /// The data of the .npy, whose header `known` was read before.
    pub(crate) fn npy(&self, known: &Header) -> Result<Bytes, DumpError> {
        let piece = self.piece(0..u64::MAX)?;
        let header = read_header(&piece.bytes, piece.bytes.len(), Some(known.layout.dtype));
        if header.map_err(|source| DumpError::Npy { path: self.path.clone(), source })? != *known {
            return Err(changed(&self.path));
        }
        let end = piece.bytes.len();
        Ok(Bytes::Owned(piece.bytes.into(), known.data..end))
    }
}

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

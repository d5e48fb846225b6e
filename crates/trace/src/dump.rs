//! Which taps does a dump hold, and where are their bytes? Opening checks everything; reading maps.

use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use crate::archive::Archive;
use crate::join::{Ranks, open_ranks};
use crate::meta::{FORMAT, Meta, Rows, TapMeta, split_stored_name, stored_name};
use crate::npy::{HEADER_LIMIT, Header, NpyError, read_header};
use crate::tap::Tap;
use crate::tensor::{Bytes, DType, Layout, Tensor};

/// Why a dump cannot be read. Every variant names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DumpError {
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The path is none of the forms a dump has.
    #[error("{}: {reason}", path.display())]
    NotADump {
        /// The path as given.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// `dump.json` is not what it should be.
    #[error("{}: {reason}", path.display())]
    Meta {
        /// The file that holds it.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A .npy file or member is not one.
    #[error("{}: {source}", path.display())]
    Npy {
        /// File, with the member's name behind it for an archive.
        path: PathBuf,
        /// What is wrong.
        source: NpyError,
    },
    /// An archive is damaged.
    #[error("{}: {reason}", path.display())]
    Archive {
        /// The archive.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Two tensors claim one tap.
    #[error("{}: {tap} is there twice", path.display())]
    Twice {
        /// The dump.
        path: PathBuf,
        /// The tap's stored name.
        tap: String,
    },
}

/// One tensor of a dump.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The tap.
    pub tap: Tap,
    /// 0 for the prefill, n for the n-th decode step.
    pub step: u32,
    /// Extent of every axis.
    pub shape: Vec<usize>,
    /// Element type on disk.
    pub dtype: DType,
    /// The token positions it holds, where the dump says fewer than all.
    pub rows: Option<Rows>,
    place: Place,
    header: Header,
}

/// Where a tensor's bytes lie.
#[derive(Clone, Debug)]
enum Place {
    File(PathBuf),
    /// A member of the dump's archive.
    Member(String),
    /// Nowhere yet: made of other tensors when it is read.
    Made(Maker),
}

/// How a tensor that lies in no file is made.
#[derive(Clone)]
struct Maker(Arc<dyn Fn() -> Result<Tensor, DumpError> + Send + Sync>);

impl fmt::Debug for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Maker")
    }
}

impl Entry {
    /// A tensor that is made when it is read: cut out of another, joined from several, or held in memory. What `make` returns must
    /// have this shape and type.
    pub fn made(
        tap: Tap,
        step: u32,
        shape: Vec<usize>,
        dtype: DType,
        rows: Option<Rows>,
        make: impl Fn() -> Result<Tensor, DumpError> + Send + Sync + 'static,
    ) -> Entry {
        let layout = Layout { dtype, fortran: false, big_endian: false };
        let header = Header { shape: shape.clone(), layout, data: 0 };
        Entry { tap, step, shape, dtype, rows, place: Place::Made(Maker(Arc::new(make))), header }
    }
}

/// A tensor under the name it was found by, before name and bytes are looked at.
#[derive(Debug)]
struct Found {
    name: String,
    step: u32,
    dtype: Option<DType>,
    shape: Option<Vec<usize>>,
    rows: Option<Rows>,
    place: Place,
}

impl Found {
    fn stored(name: &str, place: Place) -> Found {
        let (name, step) = split_stored_name(name);
        Found { name: name.to_owned(), step, dtype: None, shape: None, rows: None, place }
    }

    fn declared(tap: &TapMeta, place: Place) -> Found {
        let TapMeta { tap: name, step, shape, dtype, rows, .. } = tap.clone();
        Found { name, step, dtype, shape, rows, place }
    }
}

/// A recorded run: which taps it holds, and where it comes from.
///
/// A dump is a folder of .npy files with or without `dump.json`, a .npz, a .safetensors, or a pattern with one `*` where
/// the tap's name stands. Opening reads and checks every header; tensors stay on disk until [`Dump::read`] maps them.
///
/// The files must not be changed while the dump is open.
#[derive(Debug)]
pub struct Dump {
    path: PathBuf,
    meta: Meta,
    entries: Vec<Entry>,
    unnamed: Vec<String>,
    loose: Vec<Found>,
    archive: Option<Archive>,
    ranks: Option<Ranks>,
}

impl Tensor {
    /// Maps one .npy file.
    ///
    /// # Errors
    /// When it is none, or damaged.
    pub fn open_npy(path: impl AsRef<Path>) -> Result<Tensor, DumpError> {
        let path = path.as_ref();
        let map = map_file(path)?;
        let header = read_header(&map[..map.len().min(HEADER_LIMIT)], map.len(), None);
        let Header { shape, layout, data } = header.map_err(|source| DumpError::Npy { path: path.into(), source })?;
        let end = map.len();
        Ok(Tensor::new(shape, layout, Bytes::Mapped(map, data..end)))
    }
}

impl Dump {
    /// Opens the dump at `path` and checks every header in it.
    ///
    /// # Errors
    /// When there is no dump, or a part of it that carries a tap's name is damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<Dump, DumpError> {
        let path = path.as_ref();
        if path.to_string_lossy().contains('*') && !path.exists() {
            return Self::open_pattern(path);
        }
        let kind = fs::metadata(path).map_err(|e| io_error(path, e))?;
        if kind.is_dir() {
            return Self::open_folder(path);
        }
        if !kind.is_file() {
            return Err(not_a_dump(path, "neither a folder nor a file"));
        }
        match path.extension().and_then(|e| e.to_str()) {
            Some("npz") => Self::open_archive(path, Archive::open_npz(path)?, ".npy"),
            Some("safetensors") => Self::open_archive(path, Archive::open_safetensors(path)?, ""),
            Some("npy") => Err(not_a_dump(path, "one .npy is one tensor; name its folder, or a pattern: 'out/*.npy'")),
            Some("gguf") => Err(not_a_dump(path, "a .gguf holds weights, not taps; dump a run of it first")),
            _ => Err(not_a_dump(path, "neither a folder, a .npz, a .safetensors, nor a pattern with one '*'")),
        }
    }

    /// A dump of entries that were made of other dumps' tensors. `path` is where those lie, for people.
    ///
    /// # Errors
    /// When two entries claim one tap of one step.
    pub fn assembled(path: &Path, meta: Meta, mut entries: Vec<Entry>) -> Result<Dump, DumpError> {
        entries.sort_by_key(|e| (e.step, e.tap));
        if let Some(twice) = entries.windows(2).find(|pair| (pair[0].step, pair[0].tap) == (pair[1].step, pair[1].tap))
        {
            return Err(DumpError::Twice {
                path: path.into(),
                tap: stored_name(&twice[0].tap.to_string(), twice[0].step),
            });
        }
        Ok(Dump {
            path: path.into(),
            meta,
            entries,
            unnamed: Vec::new(),
            loose: Vec::new(),
            archive: None,
            ranks: None,
        })
    }

    /// The dump, and of which ranks' it was joined.
    pub(crate) fn with_ranks(self, ranks: Ranks) -> Dump {
        Dump { ranks: Some(ranks), ..self }
    }

    /// The ranks' dumps of which this one was joined, where it was.
    pub fn ranks(&self) -> Option<&Ranks> {
        self.ranks.as_ref()
    }

    fn open_folder(path: &Path) -> Result<Dump, DumpError> {
        match open_ranks(path, Self::open_plain)? {
            Some(joined) => Ok(joined),
            None => Self::open_plain(path),
        }
    }

    fn open_plain(path: &Path) -> Result<Dump, DumpError> {
        let json = path.join("dump.json");
        let meta = if json.exists() { read_meta(&json)? } else { Meta::default() };
        let names = file_names(path)?;
        let (mut found, listed) = declared(&json, &meta, ".npy", |name| Place::File(path.join(name)))?;
        for name in names.iter().filter(|&name| !listed.contains(name)) {
            if let Some(stem) = name.strip_suffix(".npy") {
                found.push(Found::stored(stem, Place::File(path.join(name))));
            }
        }
        if found.is_empty() {
            let model = path.join("config.json").exists();
            let reason = match model {
                true => "a model's folder (config.json), not a dump; make one with `firstdiff dump`",
                false => "no .npy files, and no dump.json that lists taps",
            };
            return Err(not_a_dump(path, reason));
        }
        Self::from_found(path, meta, found, None)
    }

    fn open_pattern(path: &Path) -> Result<Dump, DumpError> {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let pattern = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
        let Some((before, after)) = pattern.split_once('*').filter(|(_, after)| !after.contains('*')) else {
            return Err(not_a_dump(path, "a pattern has one '*', in the file's name, where the tap's name stands"));
        };
        let named = |name: &String| {
            let stem = name.strip_prefix(before)?.strip_suffix(after)?;
            Some(Found::stored(stem, Place::File(folder.join(name))))
        };
        let found: Vec<Found> = file_names(folder)?.iter().filter_map(named).collect();
        if found.is_empty() {
            return Err(not_a_dump(path, "no file matches the pattern"));
        }
        Self::from_found(path, Meta::default(), found, None)
    }

    fn open_archive(path: &Path, archive: Archive, ending: &str) -> Result<Dump, DumpError> {
        let meta = match archive.meta_json()? {
            Some(json) => parse_meta(path, &json)?,
            None => Meta::default(),
        };
        let (mut found, listed) = declared(path, &meta, ending, |name| Place::Member(name.to_owned()))?;
        for name in archive.names().filter(|name| !listed.contains(*name)) {
            if let Some(stem) = name.strip_suffix(ending) {
                found.push(Found::stored(stem, Place::Member(name.to_owned())));
            }
        }
        if found.is_empty() {
            return Err(not_a_dump(path, "it holds no tensors"));
        }
        Self::from_found(path, meta, found, Some(archive))
    }

    fn from_found(path: &Path, meta: Meta, found: Vec<Found>, archive: Option<Archive>) -> Result<Dump, DumpError> {
        let mut dump = Dump {
            path: path.into(),
            meta,
            entries: Vec::new(),
            unnamed: Vec::new(),
            loose: Vec::new(),
            archive,
            ranks: None,
        };
        let mut seen = HashSet::new();
        for entry in found {
            let Ok(tap) = entry.name.parse::<Tap>() else {
                dump.unnamed.push(stored_name(&entry.name, entry.step));
                dump.loose.push(entry);
                continue;
            };
            if !seen.insert((tap, entry.step)) {
                return Err(DumpError::Twice { path: path.into(), tap: stored_name(&entry.name, entry.step) });
            }
            let header = dump.header(&entry)?;
            if let Some(shape) = entry.shape.filter(|shape| *shape != header.shape) {
                let reason = format!("{tap}: shape {shape:?} in dump.json, {:?} in its file", header.shape);
                return Err(DumpError::Meta { path: path.into(), reason });
            }
            let rows = entry.rows.or_else(|| dump.meta.rows.clone());
            let (shape, dtype) = (header.shape.clone(), header.layout.dtype);
            dump.entries.push(Entry { tap, step: entry.step, shape, dtype, rows, place: entry.place, header });
        }
        dump.entries.sort_by_key(|e| (e.step, e.tap));
        dump.unnamed.sort();
        Ok(dump)
    }

    fn header(&self, entry: &Found) -> Result<Header, DumpError> {
        match (&entry.place, &self.archive) {
            (Place::File(path), _) => npy_header(path, entry.dtype),
            (Place::Member(name), Some(archive)) => archive.header(name, entry.dtype),
            (Place::Member(name), None) => Err(not_a_dump(&self.path, &format!("no archive holds {name}"))),
            (Place::Made(_), _) => Err(changed(&self.path)),
        }
    }

    /// Reads a tensor: mapped where it stands in a file of its own or in a .safetensors, unpacked from a .npz.
    ///
    /// # Errors
    /// When the file has changed since the dump was opened, or a .npz member is damaged.
    pub fn read(&self, entry: &Entry) -> Result<Tensor, DumpError> {
        self.tensor(&entry.place, &entry.header)
    }

    fn tensor(&self, place: &Place, known: &Header) -> Result<Tensor, DumpError> {
        let Header { shape, layout, data } = known.clone();
        let bytes = match (place, &self.archive) {
            (Place::Made(Maker(make)), _) => {
                let tensor = make()?;
                let as_promised = *tensor.shape() == shape && tensor.dtype() == layout.dtype;
                return if as_promised { Ok(tensor) } else { Err(changed(&self.path)) };
            }
            (Place::File(path), _) => {
                let map = map_file(path)?;
                let header = read_header(&map[..map.len().min(HEADER_LIMIT)], map.len(), Some(layout.dtype));
                if header.map_err(|source| DumpError::Npy { path: path.clone(), source })? != *known {
                    return Err(changed(path));
                }
                let end = map.len();
                Bytes::Mapped(map, data..end)
            }
            (Place::Member(name), Some(archive)) => archive.bytes(name, known)?,
            (Place::Member(_), None) => return Err(changed(&self.path)),
        };
        Ok(Tensor::new(shape, layout, bytes))
    }

    /// Reads a tensor whose name is no tap: a weight, say. `name` is one of [`Dump::unnamed`].
    ///
    /// # Errors
    /// When there is none of that name, or it is damaged.
    pub fn read_unnamed(&self, name: &str) -> Result<Tensor, DumpError> {
        let mut all = self.loose.iter();
        let Some(found) = all.find(|f| stored_name(&f.name, f.step) == name) else {
            return Err(not_a_dump(&self.path, &format!("it holds no tensor '{}'", name.escape_debug())));
        };
        let header = self.header(found)?;
        self.tensor(&found.place, &header)
    }

    /// The tensor of `tap` in `step`, where there is one.
    pub fn find(&self, tap: Tap, step: u32) -> Option<&Entry> {
        let at = self.entries.binary_search_by_key(&(step, tap), |e| (e.step, e.tap)).ok()?;
        self.entries.get(at)
    }

    /// Where the dump was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the dump says of itself.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The tensors whose names are taps, by step and in forward order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Names of the tensors that are not taps; they were not opened.
    pub fn unnamed(&self) -> &[String] {
        &self.unnamed
    }
}

fn io_error(path: &Path, source: io::Error) -> DumpError {
    DumpError::Io { path: path.into(), source }
}

fn not_a_dump(path: &Path, reason: &str) -> DumpError {
    DumpError::NotADump { path: path.into(), reason: reason.into() }
}

fn changed(path: &Path) -> DumpError {
    DumpError::Archive { path: path.into(), reason: "the file changed while it was read".into() }
}

/// Names of the files in a folder, sorted; names that are not UTF-8 cannot be taps, and are refused where they end in .npy.
fn file_names(folder: &Path) -> Result<Vec<String>, DumpError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(|e| io_error(folder, e))? {
        let name = entry.map_err(|e| io_error(folder, e))?.file_name();
        match name.into_string() {
            Ok(name) => names.push(name),
            Err(name) if name.to_string_lossy().ends_with(".npy") => {
                return Err(not_a_dump(&folder.join(name), "a file name that is not UTF-8"));
            }
            Err(_) => {}
        }
    }
    names.sort();
    Ok(names)
}

/// The taps that dump.json lists, and the files it names for them.
fn declared(
    json: &Path,
    meta: &Meta,
    ending: &str,
    place: impl Fn(&str) -> Place,
) -> Result<(Vec<Found>, HashSet<String>), DumpError> {
    let mut found = Vec::new();
    let mut listed = HashSet::new();
    for tap in meta.taps.iter().flatten() {
        let default = || format!("{}{ending}", stored_name(&tap.tap, tap.step));
        let file = tap.file.clone().unwrap_or_else(default);
        if !is_plain_name(&file) {
            let reason = format!("tap '{}': file '{file}' is not a plain name inside the dump", tap.tap);
            return Err(DumpError::Meta { path: json.into(), reason });
        }
        found.push(Found::declared(tap, place(&file)));
        listed.insert(file);
    }
    Ok((found, listed))
}

fn is_plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let single = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
    single && !name.contains(['/', '\\', '\0', ':'])
}

pub(crate) fn read_meta(path: &Path) -> Result<Meta, DumpError> {
    let mut text = Vec::new();
    open_file(path)?.read_to_end(&mut text).map_err(|e| io_error(path, e))?;
    parse_meta(path, &text)
}

fn parse_meta(path: &Path, json: &[u8]) -> Result<Meta, DumpError> {
    let err = |reason: String| DumpError::Meta { path: path.into(), reason };
    let meta: Meta = serde_json::from_slice(json).map_err(|e| err(format!("not a dump.json: {e}")))?;
    match meta.format {
        Some(format) if format != FORMAT => Err(err(format!("dump format {format}; this firstdiff reads {FORMAT}"))),
        _ => Ok(meta),
    }
}

fn npy_header(path: &Path, declared: Option<DType>) -> Result<Header, DumpError> {
    let file = open_file(path)?;
    let total = file.metadata().map_err(|e| io_error(path, e))?.len();
    let total = usize::try_from(total).map_err(|_| not_a_dump(path, "too large for this machine"))?;
    let mut start = Vec::with_capacity(total.min(1024));
    file.take(HEADER_LIMIT as u64).read_to_end(&mut start).map_err(|e| io_error(path, e))?;
    read_header(&start, total, declared).map_err(|source| DumpError::Npy { path: path.into(), source })
}

/// Opens a regular file: a pipe would never answer, a folder has no bytes.
fn open_file(path: &Path) -> Result<File, DumpError> {
    let kind = fs::metadata(path).map_err(|e| io_error(path, e))?;
    if !kind.is_file() {
        return Err(not_a_dump(path, "not a file"));
    }
    File::open(path).map_err(|e| io_error(path, e))
}

/// Maps a file; an empty one cannot be mapped and is an error.
pub(crate) fn map_file(path: &Path) -> Result<Arc<Mmap>, DumpError> {
    let file = open_file(path)?;
    // SAFETY: the mapping is read only. Another process that shortens the file while it is mapped would end this one;
    // the type's documentation asks that dumps are left alone while they are open.
    let map = unsafe { Mmap::map(&file) }.map_err(|e| io_error(path, e))?;
    Ok(Arc::new(map))
}

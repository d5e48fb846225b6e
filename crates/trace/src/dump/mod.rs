//! Holds an opened dump: its taps, their tensors and its metadata. Tensors are mapped when they are read; `open.rs` opens and checks the files.

pub(crate) mod archive;
pub(crate) mod folder;
pub(crate) mod import;
pub(crate) mod join;
pub(crate) mod open;
pub(crate) mod path;
pub(crate) mod remote;
pub(crate) mod store;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::{fmt, io};

use memmap2::Mmap;

use crate::dump::archive::Archive;
use crate::dump::import::Partial;
use crate::dump::join::Ranks;
use crate::dump::open::{RawTensor, npy_header};
use crate::dump::store::StoredFile;
use crate::element::{DType, element_count};
use crate::file::{FileError, NOT_A_FILE, open_regular};
use crate::meta::{Meta, Rows, split_stored_name, stored_name};
use crate::npy::{HEADER_LIMIT, Header, NpyError, read_header};
use crate::tap::Tap;
use crate::tensor::{Bytes, ElementLayout, Tensor};

/// Why a dump cannot be read. Every variant names the file.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum DumpError {
    /// The file system returned an error.
    #[error("{}: {source}", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The path is not a dump in any known format.
    #[error("{}: {reason}", path.display())]
    NotADump {
        /// The path as given.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// `dump.json` is invalid.
    #[error("{}: {reason}", path.display())]
    Meta {
        /// The file that holds it.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A .npy file or member is invalid.
    #[error("{}: {source}", path.display())]
    Npy {
        /// The file, followed by the member's name for an archive.
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
    /// A file of one tensor, whose name is not a tap.
    #[error(
        "{}: it holds one tensor, '{}', which is the name of no tap: name its folder, a pattern ('out/*.npy'), or the tap in a firstdiff.toml (--map)",
        path.display(),
        name.escape_debug()
    )]
    Unnamed {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        name: String,
    },
    /// A table of names cannot be used.
    #[error(transparent)]
    Names(Box<crate::names::NamesError>),
    /// A tensor has changed since it was judged.
    #[error("{}: {tap} is not what it was when its part was written: judge all parts again", path.display())]
    Stale {
        /// The dump.
        path: PathBuf,
        /// The tap's stored name.
        tap: String,
    },
    /// Two tensors have the name of one tap.
    #[error("{}: {tap} is there twice", path.display())]
    Twice {
        /// The dump.
        path: PathBuf,
        /// The tap's stored name.
        tap: String,
    },
}

impl DumpError {
    /// The error in words, without the path if it is that of `said`, which the caller prints anyway.
    pub fn bare(&self, said: &Path) -> String {
        match self {
            DumpError::Io { path, source } if path == said => source.to_string(),
            DumpError::Npy { path, source } if path == said => source.to_string(),
            DumpError::NotADump { path, reason }
            | DumpError::Meta { path, reason }
            | DumpError::Archive { path, reason }
                if path == said =>
            {
                reason.clone()
            }
            DumpError::Twice { path, tap } if path == said => format!("{tap} is there twice"),
            _ => self.to_string(),
        }
    }
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
    /// The token positions it holds, if the dump gives fewer than all.
    pub rows: Option<Rows>,
    pub(crate) place: TensorLocation,
    pub(crate) header: Header,
}

/// The location of a tensor's bytes.
#[derive(Clone, Debug)]
pub(crate) enum TensorLocation {
    File(PathBuf),
    /// A member of the dump's archive.
    Member(String),
    /// A .npy in a store.
    Stored(StoredFile),
    /// Computed from other tensors when it is read.
    Computed(Compute),
}

/// Computes a tensor that is not in a file.
#[derive(Clone)]
pub(crate) struct Compute(pub(crate) Arc<dyn Fn() -> Result<Tensor, DumpError> + Send + Sync>);

impl fmt::Debug for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Compute")
    }
}

impl Entry {
    /// Whether reading it requests all of it from a server.
    pub fn is_remote(&self) -> bool {
        matches!(self.place, TensorLocation::Stored(_))
    }

    /// An entry whose tensor is computed when it is read: sliced from another, joined from several, or held in memory. The result of `make` must have this
    /// shape and type.
    pub fn computed(
        tap: Tap,
        step: u32,
        shape: Vec<usize>,
        dtype: DType,
        rows: Option<Rows>,
        make: impl Fn() -> Result<Tensor, DumpError> + Send + Sync + 'static,
    ) -> Entry {
        let layout = ElementLayout { dtype, fortran: false, big_endian: false };
        let header = Header { shape: shape.clone(), layout, data: 0 };
        Entry { tap, step, shape, dtype, rows, place: TensorLocation::Computed(Compute(Arc::new(make))), header }
    }
}

/// The tensor names of a run, without steps, and the vocabulary tap each was read as; `None` for names that were kept unchanged.
pub type NameMap = HashMap<String, Option<Tap>>;

/// The names of a run with these taps.
pub fn tap_names(taps: impl IntoIterator<Item = Tap>) -> NameMap {
    taps.into_iter().map(|tap| (tap.to_string(), Some(tap).filter(|tap| !tap.is_open()))).collect()
}

/// A recorded run: its taps and its metadata.
///
/// A dump is a folder of .npy files with or without `dump.json`, a .npz, a .safetensors, a pattern with one `*` in the place of the tap's name, or a file
/// of another program: raw floats, text, JSON, logs, `torch.save`. Opening reads and checks every header; tensors stay on disk until [`Dump::read`] maps
/// them (text, JSON and .pt are held in memory).
///
/// The files must not be changed while the dump is open.
#[derive(Clone, Debug, Default)]
pub struct Dump {
    pub(crate) path: PathBuf,
    pub(crate) meta: Meta,
    pub(crate) entries: Vec<Entry>,
    pub(crate) parts: Vec<Partial>,
    pub(crate) unmapped: Vec<String>,
    pub(crate) loose: Vec<RawTensor>,
    /// The tap that each name was read as.
    pub(crate) name_map: NameMap,
    /// The index of each name in `loose`, built on first use.
    pub(crate) loose_at: OnceLock<HashMap<String, usize>>,
    pub(crate) archive: Option<Arc<Archive>>,
    /// The element type that the caller gives for tensors without one in their header.
    pub(crate) untyped: Option<DType>,
    pub(crate) notes: Vec<String>,
    pub(crate) of_known_names: bool,
    pub(crate) ranks: Option<Arc<Ranks>>,
    pub(crate) doubts: BTreeMap<(u32, Tap), String>,
}

impl Tensor {
    /// Maps one .npy file.
    ///
    /// # Errors
    /// When it is not a .npy, or damaged.
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
    /// A dump of entries computed from other dumps' tensors. `path` is their location, for messages.
    ///
    /// # Errors
    /// When two entries have the same tap and step.
    pub fn assembled(path: &Path, meta: Meta, mut entries: Vec<Entry>) -> Result<Dump, DumpError> {
        entries.sort_by_key(|e| (e.step, e.tap));
        if let Some(twice) = entries.windows(2).find(|pair| (pair[0].step, pair[0].tap) == (pair[1].step, pair[1].tap))
        {
            return Err(DumpError::Twice {
                path: path.into(),
                tap: stored_name(&twice[0].tap.to_string(), twice[0].step),
            });
        }
        Ok(Dump { meta, entries, ..Dump::empty(path) })
    }

    /// A dump of entries computed from this one's tensors, with everything else unchanged.
    ///
    /// # Errors
    /// As [`Dump::assembled`].
    pub fn with_entries(&self, meta: Meta, entries: Vec<Entry>) -> Result<Dump, DumpError> {
        let (unmapped, notes, doubts) = (self.unmapped.clone(), self.notes.clone(), self.doubts.clone());
        let of_known_names = self.of_known_names;
        Ok(Dump { unmapped, notes, doubts, of_known_names, ..Dump::assembled(&self.path, meta, entries)? })
    }

    /// Replaces the tensor of a tap in a step, or adds it.
    pub fn put(&mut self, tap: Tap, step: u32, tensor: Tensor) {
        let (shape, dtype) = (tensor.shape().to_vec(), tensor.dtype());
        let entry = Entry::computed(tap, step, shape, dtype, None, move || Ok(tensor.clone()));
        match self.entries.binary_search_by_key(&(step, tap), |e| (e.step, e.tap)) {
            Ok(at) => self.entries[at] = entry,
            Err(at) => self.entries.insert(at, entry),
        }
    }

    /// Adds tensors whose names are outside the vocabulary, replacing those with the same name and step, and removes the names and steps in `without`.
    pub fn set_open_tensors(&mut self, entries: Vec<Entry>, without: &[(String, u32)]) {
        let mut gone: HashSet<String> = without.iter().map(|(name, step)| stored_name(name, *step)).collect();
        gone.extend(entries.iter().map(|entry| stored_name(&entry.tap.to_string(), entry.step)));
        self.unmapped.retain(|own| !gone.contains(own));
        self.loose.retain(|found| !gone.contains(&stored_name(&found.name, found.step)));
        for entry in entries {
            let name = entry.tap.to_string();
            self.unmapped.push(stored_name(&name, entry.step));
            self.loose.push(RawTensor::computed(&name, entry));
        }
        self.loose_at = OnceLock::new();
    }

    /// Marks a tap of a step as doubtful: it must not pass, whatever the comparison says.
    pub fn doubt(&mut self, tap: Tap, step: u32, reason: String) {
        self.doubts.entry((step, tap)).or_insert(reason);
    }

    /// The doubtful taps and the reasons, by step and tap.
    pub fn doubts(&self) -> &BTreeMap<(u32, Tap), String> {
        &self.doubts
    }

    /// Adds a note about what had to be assumed to read the dump.
    pub fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    pub(crate) fn empty(path: &Path) -> Dump {
        Dump { path: path.into(), ..Dump::default() }
    }

    /// The dump with the rank dumps that it was joined from.
    pub(crate) fn with_ranks(self, ranks: Ranks) -> Dump {
        Dump { ranks: Some(Arc::new(ranks)), ..self }
    }

    /// The rank dumps, if this dump was joined from some.
    pub fn ranks(&self) -> Option<&Ranks> {
        self.ranks.as_deref()
    }

    pub(crate) fn header(&self, entry: &RawTensor) -> Result<Header, DumpError> {
        let as_declared = |known: &&Header| entry.dtype.is_none_or(|dtype| dtype == known.layout.dtype);
        if let Some(known) = entry.header.as_ref().filter(as_declared) {
            return Ok(known.clone());
        }
        let untyped = |e: &DumpError| matches!(e, DumpError::Npy { source: NpyError::Untyped, .. });
        match self.header_as(entry, entry.dtype) {
            Err(e) if untyped(&e) && entry.dtype.is_none() && self.untyped.is_some() => {
                self.header_as(entry, self.untyped)
            }
            header => header,
        }
    }

    fn header_as(&self, entry: &RawTensor, declared: Option<DType>) -> Result<Header, DumpError> {
        match (&entry.place, &self.archive) {
            (TensorLocation::File(path), _) => npy_header(path, declared),
            (TensorLocation::Stored(file), _) => file.header(declared),
            (TensorLocation::Member(name), Some(archive)) => archive.header(name, declared),
            (TensorLocation::Member(name), None) => Err(not_a_dump(&self.path, &format!("no archive holds {name}"))),
            (TensorLocation::Computed(_), _) if let Some((shape, dtype)) = entry.declared_extents() => {
                let layout = ElementLayout { dtype, fortran: false, big_endian: false };
                Ok(Header { shape, layout, data: 0 })
            }
            (TensorLocation::Computed(Compute(make)), _) => {
                let tensor = make()?;
                let layout = ElementLayout { dtype: tensor.dtype(), fortran: false, big_endian: false };
                Ok(Header { shape: tensor.shape().to_vec(), layout, data: 0 })
            }
        }
    }

    /// Reads a tensor: mapped from its own file or from a .safetensors, unpacked from a .npz.
    ///
    /// # Errors
    /// When the file has changed since the dump was opened, or a .npz member is damaged.
    pub fn read(&self, entry: &Entry) -> Result<Tensor, DumpError> {
        let tensor = self.tensor(&entry.place, &entry.header)?;
        if entry.shape == entry.header.shape {
            return Ok(tensor);
        }
        tensor.reshaped(entry.shape.clone()).ok_or_else(|| changed(&self.path))
    }

    /// The dump with new shapes, as `shape` gives them, if the number of elements is the same; the data is unchanged.
    pub fn reshaped(mut self, shape: impl Fn(Tap, u32, &[usize]) -> Option<Vec<usize>>) -> Dump {
        let given =
            |tap, step, own: &[usize]| shape(tap, step, own).filter(|new| element_count(new) == element_count(own));
        for entry in &mut self.entries {
            if let Some(shape) = given(entry.tap, entry.step, &entry.shape) {
                entry.shape = shape;
            }
        }
        for part in &mut self.parts {
            if let Some(shape) = part.part.shape.as_deref().and_then(|own| given(part.tap, part.step, own)) {
                part.part.shape = Some(shape);
            }
        }
        self
    }

    /// The dump with whole tensors for taps that were lists of values without a shape: `shape` gives the extents of a list that is all of its tap.
    pub fn completed(mut self, shape: impl Fn(&Partial) -> Option<Vec<usize>>) -> Dump {
        let (mut parts, mut made) = (Vec::new(), Vec::new());
        for mut part in std::mem::take(&mut self.parts) {
            let listed = part.part.shape.is_none() && part.part.elements.iter().copied().eq(0..part.values.len());
            let shape = shape(&part).filter(|shape| listed && element_count(shape) == Some(part.values.len()));
            let Some(shape) = shape.filter(|_| self.find(part.tap, part.step).is_none()) else {
                parts.push(part);
                continue;
            };
            part.part.shape = Some(shape);
            made.extend(part.entry());
            if part.precision().is_some() {
                parts.push(part);
            }
        }
        self.parts = parts;
        self.entries.extend(made);
        self.entries.sort_by_key(|entry| (entry.step, entry.tap));
        self
    }

    /// The dump with whole tensors for taps that were printed in full, each marked as f16: the tolerance of f16 covers the missing digits. This is done for
    /// all of them or none, and only if each lost far less than f16 would; otherwise errors in a tap that is not readable would be attributed to one that
    /// is. For callers who cannot use the precision of a printed number.
    pub fn printed_as_f16(mut self) -> Dump {
        let printed: Vec<&Partial> =
            self.parts.iter().filter(|part| part.precision().is_some() && part.holds_all()).collect();
        let places: BTreeSet<(Tap, u32)> = printed.iter().map(|part| (part.tap, part.step)).collect();
        let made: Option<Vec<Entry>> = printed.into_iter().map(Partial::as_f16).collect();
        self.entries.retain(|entry| !places.contains(&(entry.tap, entry.step)));
        let Some(made) = made else { return self };
        if let Some(first) = made.first() {
            let word = if made.len() == 1 { "tap is" } else { "taps are" };
            let count = made.len();
            self.notes
                .push(format!("{count} {word} printed with few digits ({} ...): judged as if rounded to f16; what is smaller than f16's rounding cannot be seen in them, unless it has structure, as a factor has", first.tap));
        }
        self.parts.retain(|part| !places.contains(&(part.tap, part.step)));
        self.entries.extend(made);
        self.entries.sort_by_key(|entry| (entry.step, entry.tap));
        self
    }

    /// The dump with the tokens it was fed, if it does not have them: those of the prefill, or of all steps, and of the steps after it. Its own ids are
    /// kept; `Err` has the first index at which the given ids differ from them.
    ///
    /// # Errors
    /// When the dump has other ids.
    pub fn with_tokens(mut self, tokens: &[i64], decode_tokens: &[i64]) -> Result<Dump, usize> {
        if let Some(all) = &self.meta.sequences {
            let named = all.iter().any(|fed| fed.tokens.starts_with(tokens));
            return if named { Ok(self) } else { Err(0) };
        }
        match &self.meta.tokens {
            Some(own) => {
                let prefill = own.len();
                let own = own.iter().chain(self.meta.decode_tokens.iter().flatten());
                let given = || tokens.iter().chain(decode_tokens);
                match own.zip(given()).position(|(own, given)| own != given) {
                    Some(at) => Err(at),
                    // Fewer tokens than the prefill has cannot be the same.
                    None if given().count() < prefill => Err(given().count()),
                    None => Ok(self),
                }
            }
            None => {
                self.meta.tokens = Some(tokens.to_vec());
                let own = self.meta.decode_tokens.take();
                self.meta.decode_tokens = if decode_tokens.is_empty() { own } else { Some(decode_tokens.to_vec()) };
                Ok(self)
            }
        }
    }

    /// The dump with these token ids of its prefill, whatever it says itself.
    pub fn fed(mut self, tokens: &[i64]) -> Dump {
        (self.meta.tokens, self.meta.sequences) = (Some(tokens.to_vec()), None);
        self
    }

    /// The dump with these partly known tensors added.
    pub fn with_parts(mut self, parts: impl IntoIterator<Item = Partial>) -> Dump {
        self.parts.extend(parts);
        self
    }

    pub(crate) fn tensor(&self, place: &TensorLocation, known: &Header) -> Result<Tensor, DumpError> {
        let Header { shape, layout, data } = known.clone();
        let bytes = match (place, &self.archive) {
            (TensorLocation::Computed(Compute(make)), _) => {
                let tensor = make()?;
                let as_promised = *tensor.shape() == shape && tensor.dtype() == layout.dtype;
                return if as_promised { Ok(tensor) } else { Err(changed(&self.path)) };
            }
            (TensorLocation::File(path), _) => {
                let map = map_file(path)?;
                let header = read_header(&map[..map.len().min(HEADER_LIMIT)], map.len(), Some(layout.dtype));
                if header.map_err(|source| DumpError::Npy { path: path.clone(), source })? != *known {
                    return Err(changed(path));
                }
                let end = map.len();
                Bytes::Mapped(map, data..end)
            }
            (TensorLocation::Stored(file), _) => file.npy(known)?,
            (TensorLocation::Member(name), Some(archive)) => archive.bytes(name, known)?,
            (TensorLocation::Member(_), None) => return Err(changed(&self.path)),
        };
        Ok(Tensor::new(shape, layout, bytes))
    }

    /// Reads a tensor whose name is not a tap, such as a weight. `name` is one of [`Dump::unmapped`].
    ///
    /// # Errors
    /// When there is no tensor of that name, or it is damaged.
    pub fn read_unmapped(&self, name: &str) -> Result<Tensor, DumpError> {
        let Some(found) = self.loose(name) else {
            return Err(not_a_dump(&self.path, &format!("it holds no tensor '{}'", name.escape_debug())));
        };
        let header = self.header(found)?;
        self.tensor(&found.place, &header)
    }

    /// Number of elements of a tensor whose name is not a tap; nothing if it cannot be read as floats.
    pub fn unmapped_size(&self, name: &str) -> Option<usize> {
        let found = self.loose(name)?;
        element_count(&self.header(found).ok()?.shape)
    }

    /// Finds the tensor of a tap outside the vocabulary, if the dump holds it whole and in floats.
    fn find_open(&self, tap: Tap, step: u32) -> Option<Entry> {
        let found = self.loose(&stored_name(&tap.to_string(), step)).filter(|found| found.is_whole())?;
        let header = self.header(found).ok()?;
        let (shape, dtype) = (header.shape.clone(), header.layout.dtype);
        Some(Entry { tap, step, shape, dtype, rows: found.rows(&self.meta), place: found.place.clone(), header })
    }

    /// Why the tensor of a tap outside the vocabulary cannot be read, if it is present but unreadable.
    pub fn unreadable(&self, tap: Tap, step: u32) -> Option<String> {
        let found = self.loose(&stored_name(&tap.to_string(), step)).filter(|found| found.is_whole())?;
        self.header(found).err().map(|error| error.to_string())
    }

    /// The whole tensors of all taps: [`Dump::entries`], and those outside the vocabulary.
    pub fn all_entries(&self) -> Vec<Entry> {
        let names = self.unmapped.iter().map(|name| split_stored_name(name));
        let open = names.map(|(name, step)| (Tap::named(name), step)).filter(|(tap, _)| tap.is_open());
        self.entries.iter().cloned().chain(open.filter_map(|(tap, step)| self.find_open(tap, step))).collect()
    }

    /// The taps outside the vocabulary that dump.json has in its list or its graph.
    pub fn open_taps(&self) -> Vec<Entry> {
        let listed = self.meta.taps.iter().flatten().map(|entry| entry.tap.as_str());
        let listed: HashSet<&str> =
            listed.chain(self.meta.graph.iter().flatten().map(|node| node.tap.as_str())).collect();
        let names = self.unmapped.iter().map(|name| split_stored_name(name));
        let taps = names.filter(|(name, _)| listed.contains(name));
        taps.filter_map(|(name, step)| self.find_open(Tap::named(name), step)).collect()
    }

    /// The first tensor with this name among those that are no taps.
    fn loose(&self, name: &str) -> Option<&RawTensor> {
        let at = self.loose_at.get_or_init(|| {
            let mut at = HashMap::new();
            for (index, found) in self.loose.iter().enumerate() {
                at.entry(stored_name(&found.name, found.step)).or_insert(index);
            }
            at
        });
        self.loose.get(*at.get(name)?)
    }

    /// The tensor of `tap` in `step`, if there is one.
    pub fn find(&self, tap: Tap, step: u32) -> Option<&Entry> {
        let at = self.entries.binary_search_by_key(&(step, tap), |e| (e.step, e.tap)).ok()?;
        self.entries.get(at)
    }

    /// The whole tensor of a tap in `step`, in the vocabulary or not, if there is one.
    pub fn entry(&self, tap: Tap, step: u32) -> Option<Entry> {
        self.find(tap, step).cloned().or_else(|| self.find_open(tap, step))
    }

    /// The path from which the dump was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The metadata of the dump.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The tensors whose names are taps, by step and in forward order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The tap that each name was read as: the same names in another run mean the same taps.
    pub fn names_read(&self) -> &NameMap {
        &self.name_map
    }

    /// Names of the tensors that are not taps; they were not opened.
    pub fn unmapped(&self) -> &[String] {
        &self.unmapped
    }

    /// Taps of which only some elements, or only some digits, are known. If the digits are precise enough to compute with, the tap is also one of
    /// [`Dump::entries`].
    pub fn parts(&self) -> &[Partial] {
        &self.parts
    }

    /// The partly known `tap` in `step`, if there is one.
    pub fn find_part(&self, tap: Tap, step: u32) -> Option<&Partial> {
        self.parts.iter().find(|part| (part.tap, part.step) == (tap, step))
    }

    /// Whether names were mapped by a known producer's table; such producers also record much that is no tap.
    pub fn is_of_known_names(&self) -> bool {
        self.of_known_names
    }

    /// What had to be assumed to read the files: element types, names.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

pub(crate) fn io_error(path: &Path, source: io::Error) -> DumpError {
    DumpError::Io { path: path.into(), source }
}

pub(crate) fn not_a_dump(path: &Path, reason: &str) -> DumpError {
    DumpError::NotADump { path: path.into(), reason: reason.into() }
}

pub(crate) fn changed(path: &Path) -> DumpError {
    DumpError::Archive { path: path.into(), reason: "the file changed while it was read".into() }
}

pub(crate) fn file_error(error: FileError) -> DumpError {
    match error {
        FileError::Io { path, source } => DumpError::Io { path, source },
        FileError::NotRegular { path } => not_a_dump(&path, NOT_A_FILE),
        FileError::TooLarge { path, size, limit } => {
            not_a_dump(&path, &format!("{size} bytes, and {limit} are the most that are read of such a file"))
        }
    }
}

/// Opens a regular file: a pipe would block, and a folder has no bytes.
pub(crate) fn open_file(path: &Path) -> Result<File, DumpError> {
    open_regular(path).map(|(file, _)| file).map_err(file_error)
}

/// Maps a file; an empty one cannot be mapped and is an error.
pub(crate) fn map_file(path: &Path) -> Result<Arc<Mmap>, DumpError> {
    let file = open_file(path)?;
    // SAFETY: the mapping is read only. If another process shortens the file while it is mapped, this process would be killed; the documentation of `Dump`
    // therefore asks not to change dumps while they are open.
    let map = unsafe { Mmap::map(&file) }.map_err(|e| io_error(path, e))?;
    Ok(Arc::new(map))
}

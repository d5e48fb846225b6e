//! Which taps does a dump hold, and where are their bytes? OpenOptions maps what opening (open.rs) has checked.

pub(crate) mod archive;
pub(crate) mod folder;
pub(crate) mod import;
pub(crate) mod join;
pub(crate) mod open;
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
use crate::tensor::{Bytes, Layout, Tensor};

/// Why a dump cannot be read. Every variant names the file.
#[derive(thiserror::Error)]
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
    /// A file of one tensor, whose name is that of no tap.
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
    /// A tensor is not the one that was judged before.
    #[error("{}: {tap} is not what it was when its part was written: judge all parts again", path.display())]
    Stale {
        /// The dump.
        path: PathBuf,
        /// The tap's stored name.
        tap: String,
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

impl DumpError {
    /// The error in words, without the file where that is the one that is said anyway.
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
    /// The token positions it holds, where the dump says fewer than all.
    pub rows: Option<Rows>,
    pub(crate) place: TensorLocation,
    pub(crate) header: Header,
}

/// Where a tensor's bytes lie.
#[derive(Clone, Debug)]
pub(crate) enum TensorLocation {
    File(PathBuf),
    /// A member of the dump's archive.
    Member(String),
    /// A .npy that lies elsewhere.
    Stored(StoredFile),
    /// Nowhere yet: made of other tensors when it is read.
    Made(Maker),
}

/// How a tensor that lies in no file is made.
#[derive(Clone)]
pub(crate) struct Maker(pub(crate) Arc<dyn Fn() -> Result<Tensor, DumpError> + Send + Sync>);

impl fmt::Debug for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Maker")
    }
}

impl Entry {
    /// Whether reading it asks a server for all of it.
    pub fn is_remote(&self) -> bool {
        matches!(self.place, TensorLocation::Stored(_))
    }

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
        Entry { tap, step, shape, dtype, rows, place: TensorLocation::Made(Maker(Arc::new(make))), header }
    }
}

/// The names of a run's tensors, without their steps, and the tap of the vocabulary that each was read as; none of those that stay what they are.
pub type NamesRead = HashMap<String, Option<Tap>>;

/// The names of a run whose tensors are these taps.
pub fn names_of(taps: impl IntoIterator<Item = Tap>) -> NamesRead {
    taps.into_iter().map(|tap| (tap.to_string(), Some(tap).filter(|tap| !tap.is_open()))).collect()
}

/// A recorded run: which taps it holds, and where it comes from.
///
/// A dump is a folder of .npy files with or without `dump.json`, a .npz, a .safetensors, a pattern with one `*` where
/// the tap's name stands, or what other programs write: raw floats, text, JSON, logs, `torch.save`'s files. Opening reads and checks every
/// header; tensors stay on disk until [`Dump::read`] maps them (text, JSON and .pt are held).
///
/// The files must not be changed while the dump is open.
#[derive(Debug, Default)]
pub struct Dump {
    pub(crate) path: PathBuf,
    pub(crate) meta: Meta,
    pub(crate) entries: Vec<Entry>,
    pub(crate) parts: Vec<Partial>,
    pub(crate) unmapped: Vec<String>,
    pub(crate) loose: Vec<RawTensor>,
    /// As what each name was read.
    pub(crate) read_as: NamesRead,
    /// Where in `loose` each of the names is, once anybody asks.
    pub(crate) loose_at: OnceLock<HashMap<String, usize>>,
    pub(crate) archive: Option<Archive>,
    /// What elements are of which no header tells the type, as who asks says.
    pub(crate) untyped: Option<DType>,
    pub(crate) notes: Vec<String>,
    pub(crate) of_known_names: bool,
    pub(crate) ranks: Option<Ranks>,
    pub(crate) doubts: BTreeMap<(u32, Tap), String>,
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
        Ok(Dump { meta, entries, ..Dump::empty(path) })
    }

    /// A dump of entries that were cut out of this one's tensors; of all else it says the same.
    ///
    /// # Errors
    /// As [`Dump::assembled`].
    pub fn recut(&self, meta: Meta, entries: Vec<Entry>) -> Result<Dump, DumpError> {
        let (unmapped, notes, doubts) = (self.unmapped.clone(), self.notes.clone(), self.doubts.clone());
        let of_known_names = self.of_known_names;
        Ok(Dump { unmapped, notes, doubts, of_known_names, ..Dump::assembled(&self.path, meta, entries)? })
    }

    /// Puts a tensor in the place of the one that a tap of a step has, or beside the others where it has none.
    pub fn put(&mut self, tap: Tap, step: u32, tensor: Tensor) {
        let (shape, dtype) = (tensor.shape().to_vec(), tensor.dtype());
        let entry = Entry::made(tap, step, shape, dtype, None, move || Ok(tensor.clone()));
        match self.entries.binary_search_by_key(&(step, tap), |e| (e.step, e.tap)) {
            Ok(at) => self.entries[at] = entry,
            Err(at) => self.entries.insert(at, entry),
        }
    }

    /// Puts tensors of names that the vocabulary does not have beside the others, or in the place of those that have these names in their steps, and leaves
    /// those out that are `without`, by name and step.
    pub fn put_open(&mut self, entries: Vec<Entry>, without: &[(String, u32)]) {
        let mut gone: HashSet<String> = without.iter().map(|(name, step)| stored_name(name, *step)).collect();
        gone.extend(entries.iter().map(|entry| stored_name(&entry.tap.to_string(), entry.step)));
        self.unmapped.retain(|own| !gone.contains(own));
        self.loose.retain(|found| !gone.contains(&stored_name(&found.name, found.step)));
        for entry in entries {
            let name = entry.tap.to_string();
            self.unmapped.push(stored_name(&name, entry.step));
            self.loose.push(RawTensor::made(&name, entry));
        }
        self.loose_at = OnceLock::new();
    }

    /// Says why a tap of a step is not to be passed, whatever is compared of it.
    pub fn doubt(&mut self, tap: Tap, step: u32, reason: String) {
        self.doubts.entry((step, tap)).or_insert(reason);
    }

    /// What is not to be passed, and why, by step and tap.
    pub fn doubts(&self) -> &BTreeMap<(u32, Tap), String> {
        &self.doubts
    }

    /// Adds to what had to be assumed to read it.
    pub fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    pub(crate) fn empty(path: &Path) -> Dump {
        Dump { path: path.into(), ..Dump::default() }
    }

    /// The dump, and of which ranks' it was joined.
    pub(crate) fn with_ranks(self, ranks: Ranks) -> Dump {
        Dump { ranks: Some(ranks), ..self }
    }

    /// The ranks' dumps of which this one was joined, where it was.
    pub fn ranks(&self) -> Option<&Ranks> {
        self.ranks.as_ref()
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
            (TensorLocation::Made(_), _) if let Some((shape, dtype)) = entry.declared_extents() => {
                let layout = Layout { dtype, fortran: false, big_endian: false };
                Ok(Header { shape, layout, data: 0 })
            }
            (TensorLocation::Made(Maker(make)), _) => {
                let tensor = make()?;
                let layout = Layout { dtype: tensor.dtype(), fortran: false, big_endian: false };
                Ok(Header { shape: tensor.shape().to_vec(), layout, data: 0 })
            }
        }
    }

    /// Reads a tensor: mapped where it stands in a file of its own or in a .safetensors, unpacked from a .npz.
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

    /// The dump, each of whose tensors has the shape that `shape` gives it for the one it has, of as many elements; the memory stays as it is.
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

    /// The dump, with whole tensors of what came as a list of values without a shape: `shape` gives the extents of such a list where it is all of its tap.
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

    /// The dump, with whole tensors of what was printed whole, each said to be of f16: its rounding hides what the missing digits do. Only where every
    /// one of them lost far less than that, else with none of them: what is read of some would be blamed for what others lack. For those who compute
    /// with tensors and cannot use a printed number's own precision.
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

    /// The dump, told which tokens it was fed, where it does not say so itself: those of the prefill, or of all steps, and of the steps after it.
    /// What it says itself stays; `Err` has the index from which on that is something else.
    ///
    /// # Errors
    /// When the dump's own ids are others.
    pub fn told_tokens(mut self, tokens: &[i64], decode_tokens: &[i64]) -> Result<Dump, usize> {
        if let Some(all) = &self.meta.sequences {
            let named = all.iter().any(|fed| fed.tokens.starts_with(tokens));
            return if named { Ok(self) } else { Err(0) };
        }
        match &self.meta.tokens {
            Some(own) => {
                let prefill = own.len();
                let own = own.iter().chain(self.meta.decode_tokens.iter().flatten());
                let told = || tokens.iter().chain(decode_tokens);
                match own.zip(told()).position(|(own, told)| own != told) {
                    Some(at) => Err(at),
                    // Fewer than the prefill has are other tokens.
                    None if told().count() < prefill => Err(told().count()),
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

    /// The dump, with these tensors that are known in part beside its own.
    pub fn with_parts(mut self, parts: impl IntoIterator<Item = Partial>) -> Dump {
        self.parts.extend(parts);
        self
    }

    pub(crate) fn tensor(&self, place: &TensorLocation, known: &Header) -> Result<Tensor, DumpError> {
        let Header { shape, layout, data } = known.clone();
        let bytes = match (place, &self.archive) {
            (TensorLocation::Made(Maker(make)), _) => {
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

    /// Reads a tensor whose name is no tap: a weight, say. `name` is one of [`Dump::unmapped`].
    ///
    /// # Errors
    /// When there is none of that name, or it is damaged.
    pub fn read_unmapped(&self, name: &str) -> Result<Tensor, DumpError> {
        let Some(found) = self.loose(name) else {
            return Err(not_a_dump(&self.path, &format!("it holds no tensor '{}'", name.escape_debug())));
        };
        let header = self.header(found)?;
        self.tensor(&found.place, &header)
    }

    /// Number of elements of a tensor whose name is no tap; nothing where it cannot be read as floats.
    pub fn unmapped_size(&self, name: &str) -> Option<usize> {
        let found = self.loose(name)?;
        element_count(&self.header(found).ok()?.shape)
    }

    /// The tensor of a tap that the vocabulary does not have, where the dump holds one of that name, whole, of floats.
    fn find_open(&self, tap: Tap, step: u32) -> Option<Entry> {
        let found = self.loose(&stored_name(&tap.to_string(), step)).filter(|found| found.is_whole())?;
        let header = self.header(found).ok()?;
        let (shape, dtype) = (header.shape.clone(), header.layout.dtype);
        Some(Entry { tap, step, shape, dtype, rows: found.rows(&self.meta), place: found.place.clone(), header })
    }

    /// Why a tensor that is there by the name of a tap that the vocabulary does not have cannot be read, where it cannot.
    pub fn unreadable(&self, tap: Tap, step: u32) -> Option<String> {
        let found = self.loose(&stored_name(&tap.to_string(), step)).filter(|found| found.is_whole())?;
        self.header(found).err().map(|error| error.to_string())
    }

    /// Every whole tensor of any tap: [`Dump::entries`], and those of names that the vocabulary does not have.
    pub fn all_entries(&self) -> Vec<Entry> {
        let names = self.unmapped.iter().map(|name| split_stored_name(name));
        let open = names.map(|(name, step)| (Tap::named(name), step)).filter(|(tap, _)| tap.is_open());
        self.entries.iter().cloned().chain(open.filter_map(|(tap, step)| self.find_open(tap, step))).collect()
    }

    /// The taps that the vocabulary does not have: what dump.json lists, or has in its graph.
    pub fn open_taps(&self) -> Vec<Entry> {
        let listed = self.meta.taps.iter().flatten().map(|entry| entry.tap.as_str());
        let listed: HashSet<&str> =
            listed.chain(self.meta.graph.iter().flatten().map(|node| node.tap.as_str())).collect();
        let names = self.unmapped.iter().map(|name| split_stored_name(name));
        let taps = names.filter(|(name, _)| listed.contains(name));
        taps.filter_map(|(name, step)| self.find_open(Tap::named(name), step)).collect()
    }

    /// The first tensor of a name that is no tap.
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

    /// The tensor of `tap` in `step`, where there is one.
    pub fn find(&self, tap: Tap, step: u32) -> Option<&Entry> {
        let at = self.entries.binary_search_by_key(&(step, tap), |e| (e.step, e.tap)).ok()?;
        self.entries.get(at)
    }

    /// The whole tensor of any tap in `step`, of the vocabulary or not, where there is one.
    pub fn entry(&self, tap: Tap, step: u32) -> Option<Entry> {
        self.find(tap, step).cloned().or_else(|| self.find_open(tap, step))
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

    /// As what each name was read: what another run calls so is the same.
    pub fn names_read(&self) -> &NamesRead {
        &self.read_as
    }

    /// Names of the tensors that are not taps; they were not opened.
    pub fn unmapped(&self) -> &[String] {
        &self.unmapped
    }

    /// Taps of which some elements only are known, or only so many digits. Where the digits will do to compute with, a tap is one of
    /// [`Dump::entries`] too.
    pub fn parts(&self) -> &[Partial] {
        &self.parts
    }

    /// What was known of `tap` in `step` in part, where it was.
    pub fn find_part(&self, tap: Tap, step: u32) -> Option<&Partial> {
        self.parts.iter().find(|part| (part.tap, part.step) == (tap, step))
    }

    /// Whether names were read as a known producer has them, who names much that is no tap.
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

/// Opens a regular file: a pipe would never answer, a folder has no bytes.
pub(crate) fn open_file(path: &Path) -> Result<File, DumpError> {
    open_regular(path).map(|(file, _)| file).map_err(file_error)
}

/// Maps a file; an empty one cannot be mapped and is an error.
pub(crate) fn map_file(path: &Path) -> Result<Arc<Mmap>, DumpError> {
    let file = open_file(path)?;
    // SAFETY: the mapping is read only. Another process that shortens the file while it is mapped would end this one;
    // the type's documentation asks that dumps are left alone while they are open.
    let map = unsafe { Mmap::map(&file) }.map_err(|e| io_error(path, e))?;
    Ok(Arc::new(map))
}

//! Assembles a dump from the tensors of its files: names become taps, and what dump.json says is held against the headers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::dump::archive::Archive;
use crate::dump::import::{self, Item, KnownElements, Partial, Precision};
use crate::dump::{Compute, Dump, DumpError, Entry, NameMap, TensorLocation, file_error, io_error, not_a_dump};
use crate::element::{DType, element_count};
use crate::file::{JSON_LIMIT, json_fits, open_regular, read_regular};
use crate::meta::{FORMAT, Meta, NamedRows, QkRows, Rows, TapMeta, name_in_file, split_stored_name, stored_name};
use crate::names::{self, Names, NamesError};
use crate::npy::{HEADER_LIMIT, Header, MASK_LIMIT, NpyError, read_header, read_mask};
use crate::tap::{Site, Tap};
use crate::tensor::Tensor;

/// What the user says about files beyond their content.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// A table of names. Without one, a `firstdiff.toml` in the dump's folder is used.
    pub names: Option<Names>,
    /// The element type of raw floats.
    pub dtype: Option<DType>,
    /// The name, or the tap, of the tensor in a single file.
    pub name: Option<String>,
    /// Whether the tensor of a single file may have a name that is not a tap.
    pub unnamed: bool,
    /// The names of the reference, if this dump is a candidate: equal names mean the same tensor, also where a built-in table maps them to another tap.
    pub reference: Option<Arc<NameMap>>,
}

impl OpenOptions {
    /// The table of names for a dump: the one given, else the firstdiff.toml in its folder, or in the folder of the file.
    pub(crate) fn names_for(&self, path: &Path) -> Result<Option<Names>, DumpError> {
        match (&self.names, own_table(path)) {
            (Some(names), _) => Ok(Some(names.clone())),
            (None, Some(own)) => Ok(Some(Names::open(&own).map_err(|e| DumpError::Names(Box::new(e)))?)),
            (None, None) => Ok(None),
        }
    }
}

/// The path of a dump's firstdiff.toml: in its folder, or in that of the file or pattern.
pub fn own_table(path: &Path) -> Option<PathBuf> {
    let parent = || path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = if path.is_dir() { path } else { parent() };
    Some(folder.join("firstdiff.toml")).filter(|own| own.exists())
}

/// A tensor under its original name, before name and bytes are examined.
#[derive(Clone, Debug)]
pub(crate) struct RawTensor {
    pub(crate) name: String,
    pub(crate) step: u32,
    pub(crate) dtype: Option<DType>,
    shape: Option<Vec<usize>>,
    rows: Option<Rows>,
    pub(crate) place: TensorLocation,
    /// The header of its file, if already read.
    pub(crate) header: Option<Header>,
    part: Option<KnownElements>,
    printed: Option<Precision>,
    /// Whether dump.json lists it.
    is_listed: bool,
}

impl RawTensor {
    pub(crate) fn stored(name: &str, place: TensorLocation) -> RawTensor {
        RawTensor {
            name: name.to_owned(),
            step: 0,
            dtype: None,
            shape: None,
            rows: None,
            place,
            header: None,
            part: None,
            printed: None,
            is_listed: false,
        }
    }

    /// A tensor that is computed when it is read.
    pub(crate) fn computed(name: &str, entry: Entry) -> RawTensor {
        let Entry { step, shape, dtype, rows, place, .. } = entry;
        RawTensor { step, dtype: Some(dtype), shape: Some(shape), rows, ..RawTensor::stored(name, place) }
    }

    /// Shape and type, if both are declared.
    pub(crate) fn declared_extents(&self) -> Option<(Vec<usize>, DType)> {
        self.shape.clone().zip(self.dtype)
    }

    /// The same with this element type.
    pub(crate) fn with_dtype(self, dtype: Option<DType>) -> RawTensor {
        RawTensor { dtype, ..self }
    }

    /// Whether it is a whole tensor with full precision.
    pub(crate) fn is_whole(&self) -> bool {
        self.part.is_none() && self.printed.is_none()
    }

    /// The token positions it holds, if it or its dump declares them.
    pub(crate) fn rows(&self, meta: &Meta) -> Option<Rows> {
        self.rows.clone().or_else(|| meta.rows.clone())
    }

    /// The same, shifted by `step`.
    pub(crate) fn at_step(self, step: u32) -> RawTensor {
        RawTensor { step, ..self }
    }

    fn declared(tap: &TapMeta, place: TensorLocation) -> RawTensor {
        let TapMeta { tap: name, step, shape, dtype, rows, .. } = tap.clone();
        RawTensor { step, dtype, shape, rows, is_listed: true, ..RawTensor::stored(&name, place) }
    }

    /// The tensor as it was in its file.
    fn item(&self, tensor: Tensor) -> Item {
        let RawTensor { name, step, rows, part, printed, .. } = self.clone();
        Item { name, step, rows, part, printed, tensor }
    }

    fn foreign(item: Item) -> RawTensor {
        let Item { name, step, rows, part, printed, tensor } = item;
        let place = TensorLocation::Computed(Compute(Arc::new(move || Ok(tensor.clone()))));
        RawTensor { step, rows, part, printed, ..RawTensor::stored(&name, place) }
    }
}

/// The content found at a path, and what had to be assumed.
#[derive(Default)]
pub(crate) struct Contents {
    pub(crate) tensors: Vec<RawTensor>,
    pub(crate) notes: Vec<String>,
    /// The token ids of each sequence, if a file has them.
    pub(crate) tokens: Option<Vec<Vec<i64>>>,
    pub(crate) qk_rows: Option<QkRows>,
}

impl Contents {
    pub(crate) fn extend(&mut self, read: import::Imported) {
        self.tensors.extend(read.items.into_iter().map(RawTensor::foreign));
        self.notes.extend(read.notes);
        self.tokens = self.tokens.take().or(read.tokens);
        self.qk_rows = self.qk_rows.or(read.qk_rows);
    }
}

/// A .npy, or raw floats with that ending.
pub(crate) fn npy(file: &Path, stem: &str, reading: &OpenOptions, all: &mut Contents) -> Result<(), DumpError> {
    let headless = matches!(npy_header(file, None), Err(DumpError::Npy { source: NpyError::Magic, .. }));
    match headless && fs::metadata(file).is_ok_and(|m| m.len() > 0) {
        true => all.extend(import::open_raw(file, reading.dtype)?),
        false => all.tensors.push(RawTensor::stored(stem, TensorLocation::File(file.into()))),
    }
    Ok(())
}

pub(crate) fn foreign(file: &Path, reading: &OpenOptions) -> Result<import::Imported, DumpError> {
    import::read(file, reading.dtype)
}

/// The dump of one file; a single tensor whose name is not a tap is refused.
pub(crate) fn dump_from_file(path: &Path, all: Contents, reading: &OpenOptions) -> Result<Dump, DumpError> {
    let dump = assemble(path, Meta::default(), all, None, reading)?;
    match (dump.entries.is_empty() && dump.parts.is_empty(), dump.unmapped.as_slice()) {
        (true, [name]) if reading.name.is_none() && !reading.unnamed => {
            Err(DumpError::Unnamed { path: path.into(), name: name.clone() })
        }
        _ => Ok(dump),
    }
}

/// Opens a .npz or a .safetensors; `meta` is used if it has no metadata of its own.
pub(crate) fn open_archive(path: &Path, meta: Meta, reading: &OpenOptions) -> Result<Dump, DumpError> {
    let (archive, ending) = match path.extension().is_some_and(|e| e == "npz") {
        true => (Archive::open_npz(path)?, ".npy"),
        false => (Archive::open_safetensors(path)?, ""),
    };
    dump_from_archive(path, archive, ending, meta, reading)
}

/// The dump of an archive whose members' names have this ending.
pub(crate) fn dump_from_archive(
    path: &Path,
    archive: Archive,
    ending: &str,
    meta: Meta,
    reading: &OpenOptions,
) -> Result<Dump, DumpError> {
    let meta = match archive.meta_json()? {
        Some(json) => parse_meta(path, &json, archive.size())?,
        None => meta,
    };
    let (found, listed) = declared(path, &meta, ending, |name| TensorLocation::Member(name.to_owned()))?;
    let mut all = Contents { tensors: found, ..Contents::default() };
    for name in archive.names().filter(|name| !listed.contains(*name)) {
        if let Some(stem) = name.strip_suffix(ending) {
            all.tensors.push(RawTensor::stored(stem, TensorLocation::Member(name.to_owned())));
        }
    }
    if all.tensors.is_empty() {
        return Err(not_a_dump(path, "it holds no tensors"));
    }
    assemble(path, meta, all, Some(archive), reading)
}

/// The rank of a tensor with the vocabulary's own name.
const VOCABULARY: usize = 1;

/// The priority of a tensor among those that claim the same tap; lower is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    /// A whole tensor beats a part.
    in_part: bool,
    /// 0 for the user's table, then the vocabulary, then the built-in tables in order.
    rank: usize,
}

/// Assigns a tap to every tensor, and reads the headers of those that have one.
pub(crate) fn assemble(
    path: &Path,
    meta: Meta,
    mut all: Contents,
    archive: Option<Archive>,
    reading: &OpenOptions,
) -> Result<Dump, DumpError> {
    let (own, notes) = (reading.names_for(path)?, merge_notes(std::mem::take(&mut all.notes)));
    let own = own.as_ref();
    let mut dump = Dump { meta, archive: archive.map(Arc::new), notes, untyped: reading.dtype, ..Dump::empty(path) };
    dump.notes.extend(dump.meta.decode_differs.map(|differs| format!("{}: {differs}", path.display())));
    dump.meta.qk_rows = dump.meta.qk_rows.or(all.qk_rows);
    if let (None, Some([one])) = (&dump.meta.tokens, all.tokens.as_deref()) {
        dump.meta.tokens = Some(one.clone());
    }
    let from_zero = all.tensors.iter().any(|one| names::split_layer(&one.name).is_some_and(|(layer, _)| layer == 0));
    let mut claims: BTreeMap<(u32, Tap), Vec<(Claim, RawTensor)>> = BTreeMap::new();
    let mut whose: BTreeMap<&str, usize> = BTreeMap::new();
    let renamed = renamed(path, &all.tensors, own, reading.reference.as_deref())?;
    rename(&mut all.tensors, &mut dump.meta, &renamed);
    let streams = Streams::find(&all.tensors, own);
    // Names in the reference, or in the dump's own graph, are open taps, even if a built-in table knows them as another tap.
    let in_graph = dump.meta.graph.iter().flatten().map(|node| &node.tap);
    let in_graph: HashSet<String> = in_graph.chain(renamed.values().map(|(name, _)| name)).cloned().collect();
    let is_open = |found: &RawTensor| {
        let name = split_stored_name(&found.name).0;
        match reading.reference.as_ref().map(|names| names.get(name)) {
            // The user's table for a candidate takes precedence.
            Some(_) if own.is_some_and(|names| names.find(name).is_some()) => false,
            Some(Some(read)) if names::hidden_state_number(name).is_none() => read.is_none(),
            _ => in_graph.contains(name) && name.parse::<Tap>().is_err(),
        }
    };
    let mut listed: HashMap<String, RawTensor> = HashMap::new();
    for found in all.tensors {
        let meant = match is_open(&found) {
            true => None,
            false => meaning(&found, own, from_zero).or_else(|| streams.meaning(&found)),
        };
        dump.name_map.insert(split_stored_name(&found.name).0.to_owned(), meant.as_ref().map(|(tap, ..)| *tap));
        let Some((tap, step, rank, table)) = meant else {
            if found.is_listed {
                dump.check_listed(&found, &mut listed)?;
            }
            dump.unmapped.push(stored_name(&found.name, found.step));
            dump.loose.push(found);
            continue;
        };
        if let Some(table) = table {
            *whose.entry(table).or_default() += 1;
        }
        let claim = Claim { in_part: found.part.is_some(), rank };
        claims.entry((step, tap)).or_default().push((claim, found));
    }
    for ((step, tap), mut claims) in claims {
        claims.sort_by_key(|(claim, _)| *claim);
        let (first, named) = (claims[0].0, claims[0].1.clone());
        for (_, other) in claims.iter().skip(1).filter(|(claim, _)| *claim == first) {
            if other.name == named.name || !dump.same_bits(&named, other) {
                return Err(DumpError::Twice { path: path.into(), tap: stored_name(&tap.to_string(), step) });
            }
            let [other, named] = [other, &named].map(|found| stored_name(&found.name, found.step));
            dump.notes.push(format!("'{}' is the same as '{}'", other.escape_debug(), named.escape_debug()));
        }
        let claims = dump.drop_conflicting(tap, claims);
        let Some(found) = dump.choose(tap, step, claims)? else { continue };
        dump.add_tap(tap, step, found)?;
    }
    dump.of_known_names = whose.keys().any(|table| *table != names::OWN);
    dump.notes.extend(whose.into_iter().filter(|(table, _)| *table != names::OWN).map(|(table, count)| {
        let word = if count == 1 { "name is" } else { "names are" };
        format!("{count} {word} read as {table} has them")
    }));
    if let Some(names) = own {
        dump.notes.push(format!("names by {}", names.origin().display()));
    }
    dump.entries.sort_by_key(|e| (e.step, e.tap));
    dump.unmapped.sort();
    dump.take_mask();
    Ok(dump)
}

/// The name of a tensor beside the taps that is the attention mask.
const MASK: &str = "attention_mask";

/// Prefixes that wrappers add to the names of a model.
const WRAPPERS: [&str; 4] = ["model.", "module.", "_orig_mod.", "base_model.model."];

/// The name without wrapper prefixes, and with `.` as the only separator.
fn unwrapped(name: &str) -> String {
    let bare = WRAPPERS.iter().find_map(|wrapper| name.strip_prefix(wrapper));
    bare.map_or_else(|| name.replace('/', "."), unwrapped)
}

/// New name of an open tap, and what a table adds to its step.
type Renamed = HashMap<String, (String, u32)>;

/// Names to be replaced by those of open taps: by the user's table or, for a candidate, because the reference has the name without wrapper or with other
/// separators.
fn renamed(
    path: &Path,
    found: &[RawTensor],
    own: Option<&Names>,
    reference: Option<&NameMap>,
) -> Result<Renamed, DumpError> {
    let plain: BTreeSet<&str> = found.iter().map(|found| split_stored_name(&found.name).0).collect();
    let mut wrapped: HashMap<String, Option<&str>> = HashMap::new();
    for (name, _) in reference.into_iter().flatten().filter(|(_, read)| read.is_none()) {
        wrapped.entry(unwrapped(name)).and_modify(|one| *one = None).or_insert(Some(name));
    }
    let holds = |tap: Tap| reference.is_some_and(|names| names.values().any(|read| *read == Some(tap)));
    let is_named = |name: &str| reference.is_some_and(|names| names.contains_key(name));
    let mut renamed = Renamed::new();
    for &name in &plain {
        let other = match own.and_then(|names| names.find(name).map(|found| (names, found))) {
            Some((names, (tap, step))) if tap.is_open() => {
                let tap = tap.to_string();
                if reference.is_some() && !is_named(&tap) {
                    let reason = format!("'{tap}' is not a tap of the vocabulary, nor one of what it is judged by");
                    let (path, name) = (names.origin().into(), name.into());
                    return Err(DumpError::Names(Box::new(NamesError::Rule { path, name, reason })));
                }
                Some((tap, step))
            }
            Some(_) => None,
            None if is_named(name) || names::built_in(name).is_some_and(|known| holds(known.tap)) => None,
            None => wrapped.get(&unwrapped(name)).copied().flatten().map(|other| (other.to_owned(), 0)),
        };
        // Names that exist are kept, as the table is often written for the other dump.
        let is_free = |(other, _): &(String, u32)| !plain.contains(other.as_str());
        renamed.extend(other.filter(is_free).map(|other| (name.to_owned(), other)));
    }
    let mut bearers: HashMap<(String, u32), usize> = HashMap::new();
    renamed.values().for_each(|other| *bearers.entry(other.clone()).or_default() += 1);
    let is_in_table = |name: &str| own.is_some_and(|names| names.find(name).is_some());
    if let Some((_, (tap, step))) = renamed.iter().find(|(name, other)| bearers[*other] > 1 && is_in_table(name)) {
        return Err(DumpError::Twice { path: path.into(), tap: stored_name(tap, *step) });
    }
    renamed.retain(|_, other| bearers[other] == 1);
    Ok(renamed)
}

/// Renames tensors, also in the list and the graph of their dump.json.
fn rename(found: &mut [RawTensor], meta: &mut Meta, renamed: &Renamed) {
    for found in found {
        let (name, stored_step) = split_stored_name(&found.name);
        if let Some((other, step)) = renamed.get(name) {
            (found.name, found.step) = (stored_name(other, stored_step), found.step.saturating_add(*step));
        }
    }
    let nodes = meta.graph.iter_mut().flatten().flat_map(|node| std::iter::once(&mut node.tap).chain(&mut node.reads));
    for name in nodes.chain(meta.taps.iter_mut().flatten().map(|tap| &mut tap.tap)) {
        if let Some((other, _)) = renamed.get(name) {
            name.clone_from(other);
        }
    }
}

/// Maps transformers' `hidden_states.N` to taps; N of the last one is needed for that.
struct Streams {
    last: u32,
    /// Whether other names belong to layers after the last hidden state, which then has not passed the final norm.
    goes_on: bool,
}

impl Streams {
    fn find(found: &[RawTensor], own: Option<&Names>) -> Streams {
        let plain = |found: &RawTensor| split_stored_name(&found.name).0.to_owned();
        let last = found.iter().filter_map(|found| names::hidden_state_number(&plain(found))).max().unwrap_or(0);
        let layer = |found: &RawTensor| meaning(found, own, false).and_then(|(tap, ..)| tap.layer);
        Streams { last, goes_on: last > 0 && found.iter().filter_map(layer).any(|layer| layer >= last) }
    }

    /// The tap of the name. The last hidden state has none unless the model goes on: it may have passed the final norm.
    fn meaning(&self, found: &RawTensor) -> Option<Meaning> {
        let (name, step) = split_stored_name(&found.name);
        let tap = match names::hidden_state_number(name)? {
            0 => Tap { layer: None, site: Site::H0 },
            n if n < self.last || self.goes_on => Tap::layer(n - 1, Site::H),
            _ => return None,
        };
        Some((tap, step.checked_add(found.step)?, names::STREAMS_RANK, Some("Hugging Face")))
    }
}

/// Tap, step, priority (lower is better), and the producer whose table has the name.
type Meaning = (Tap, u32, usize, Option<&'static str>);

/// The tap that a name means, with its step, priority, and producer. `layer 1 q` means the second layer only if another name has layer 0.
fn meaning(found: &RawTensor, own: Option<&Names>, from_zero: bool) -> Option<Meaning> {
    // A name with a step too large to count is not a tap.
    let later = |step: u32| step.checked_add(found.step);
    if let Some((tap, step)) = own.and_then(|names| names.find(&found.name)) {
        return Some((tap, later(step)?, 0, None));
    }
    let (name, step) = split_stored_name(&found.name);
    if let Ok(tap) = name.parse::<Tap>() {
        return Some((tap, later(step)?, VOCABULARY, None));
    }
    let layer_name =
        || names::split_layer(&found.name).filter(|_| from_zero).map(|(n, inner)| format!("layers.{n}.{inner}"));
    let known = names::built_in(&found.name).or_else(|| names::built_in(&layer_name()?))?;
    Some((known.tap, later(known.step)?, VOCABULARY + 1 + known.rank, Some(known.whose)))
}

impl Dump {
    /// Checks a tensor that dump.json lists under a name outside the vocabulary as strictly as a vocabulary tap; one without floats is kept as a name only.
    fn check_listed(&self, found: &RawTensor, listed: &mut HashMap<String, RawTensor>) -> Result<(), DumpError> {
        let header = match self.header(found) {
            Err(DumpError::Npy { source: NpyError::DType(_), .. }) => return Ok(()),
            header => header?,
        };
        let name = stored_name(&found.name, found.step);
        self.check_shape(&name, found, &header)?;
        match listed.insert(name.clone(), found.clone()) {
            Some(other) if !self.same_bits(&other, found) => {
                Err(DumpError::Twice { path: self.path.clone(), tap: name })
            }
            _ => Ok(()),
        }
    }

    /// Checks that the shape in dump.json is that of the file.
    fn check_shape(&self, name: &str, found: &RawTensor, header: &Header) -> Result<(), DumpError> {
        let Some(shape) = found.shape.as_ref().filter(|shape| **shape != header.shape) else { return Ok(()) };
        let reason = format!("{}: shape {shape:?} in dump.json, {:?} in its file", name.escape_debug(), header.shape);
        Err(DumpError::Meta { path: self.path.clone(), reason })
    }

    /// Keeps the tensor that has the tap's own name. Tensors that only a built-in table maps to the tap, with other values, are set aside without a tap.
    fn drop_conflicting(&mut self, tap: Tap, claims: Vec<(Claim, RawTensor)>) -> Vec<(Claim, RawTensor)> {
        let (own, others): (Vec<_>, Vec<_>) = claims.into_iter().partition(|(claim, _)| claim.rank <= VOCABULARY);
        let Some((_, named)) = own.iter().find(|(claim, _)| !claim.in_part).cloned() else {
            return own.into_iter().chain(others).collect();
        };
        let is_same =
            |(_, other): &(Claim, RawTensor)| self.starts_with(other, &named) || self.starts_with(&named, other);
        let (same, aside): (Vec<_>, Vec<_>) = others.into_iter().partition(is_same);
        for (_, other) in aside {
            let name = stored_name(&other.name, other.step);
            self.notes.push(format!(
                "'{}' is not {tap}, which is there by its own name, with other values",
                name.escape_debug()
            ));
            self.name_map.insert(split_stored_name(&other.name).0.to_owned(), None);
            self.unmapped.push(name);
            self.loose.push(other);
        }
        own.into_iter().chain(same).collect()
    }

    /// Chooses among tensors that claim a tap by different names: the longest whole one, if the others are its first values (a probe), else the first part.
    /// If two differ, it is an error, except where llama.cpp's table knows that one is computed from the other.
    fn choose(&self, tap: Tap, step: u32, claims: Vec<(Claim, RawTensor)>) -> Result<Option<RawTensor>, DumpError> {
        let (parts, mut whole): (Vec<_>, Vec<_>) = claims.into_iter().partition(|(claim, _)| claim.in_part);
        if whole.len() > 1 {
            let length = |found: &RawTensor| self.header(found).map_or(0, |h| element_count(&h.shape).unwrap_or(0));
            whole.sort_by_key(|(_, found)| Reverse(length(found)));
        }
        let mut whole = whole.into_iter().map(|(_, found)| found);
        let Some(first) = whole.next() else { return Ok(parts.into_iter().next().map(|(_, found)| found)) };
        for other in whole {
            if !self.starts_with(&first, &other) && !names::is_computed_from(&first.name, &other.name) {
                let reason = format!(
                    "'{}' and '{}' both are {} by their names, and differ: take one away, or name them in a firstdiff.toml",
                    first.name.escape_debug(),
                    other.name.escape_debug(),
                    stored_name(&tap.to_string(), step)
                );
                return Err(not_a_dump(&self.path, &reason));
            }
        }
        Ok(Some(first))
    }

    /// Whether the values of `whole` begin with those of `start`, compared as f32, because one may be printed with more digits.
    fn starts_with(&self, whole: &RawTensor, start: &RawTensor) -> bool {
        let (Ok(whole), Ok(start)) = (self.loose_tensor(whole), self.loose_tensor(start)) else { return false };
        let (whole, start) = (whole.values(), start.values());
        let same = |i: usize| (start.get(i) as f32).to_bits() == (whole.get(i) as f32).to_bits();
        !start.is_empty() && start.len() <= whole.len() && (0..start.len()).all(same)
    }

    /// Whether two tensors hold the same values in the same order, whatever their shapes.
    fn same_bits(&self, one: &RawTensor, other: &RawTensor) -> bool {
        let (Ok(one), Ok(other)) = (self.loose_tensor(one), self.loose_tensor(other)) else { return false };
        let (one, other) = (one.values(), other.values());
        one.len() == other.len() && (0..one.len()).all(|i| one.get(i).to_bits() == other.get(i).to_bits())
    }

    /// The names that are not taps, in the order in which they were written, if the file keeps it: if they are not in alphabetical order (numbers compared
    /// by value).
    pub fn unmapped_as_written(&self) -> Option<Vec<String>> {
        let names: Vec<String> = self.loose.iter().map(|found| stored_name(&found.name, found.step)).collect();
        let numbered = names.iter().all(|name| name.starts_with(|c: char| c.is_ascii_digit()));
        (numbered || !names.is_sorted()).then_some(names)
    }

    /// The N of the last `hidden_states.N`, if it is not known whether it has passed the final norm.
    pub fn last_hidden_state(&self) -> Option<u32> {
        self.loose.iter().filter_map(|found| names::hidden_state_number(split_stored_name(&found.name).0)).max()
    }

    /// The tensor of the last `hidden_states.N`, of the prefill.
    pub fn read_last_hidden_state(&self) -> Option<Tensor> {
        let last = self.last_hidden_state()?;
        let is_it = |name: &&String| names::hidden_state_number(name) == Some(last);
        self.read_unmapped(self.unmapped.iter().find(is_it)?).ok()
    }

    /// The dump with the last `hidden_states.N` read as the output of the final norm (`normed`), or of layer N-1. If that tap is already there, it stays a
    /// name without a tap.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn resolve_last_hidden_state(mut self, normed: bool) -> Result<Dump, DumpError> {
        let Some(last) = self.last_hidden_state().filter(|last| *last > 0) else { return Ok(self) };
        let tap = if normed { Tap { layer: None, site: Site::FinalNorm } } else { Tap::layer(last - 1, Site::H) };
        self.loose_at = OnceLock::new();
        for found in std::mem::take(&mut self.loose) {
            let (name, step) = split_stored_name(&found.name);
            let (is_last, step) = (names::hidden_state_number(name) == Some(last), step.saturating_add(found.step));
            if !is_last || self.find(tap, step).is_some() || self.find_part(tap, step).is_some() {
                self.loose.push(found);
                continue;
            }
            let stored = stored_name(&found.name, found.step);
            self.unmapped.retain(|name| *name != stored);
            self.add_tap(tap, step, found)?;
        }
        self.notes.push(format!("hidden_states.{last}, the last one, is read as {tap}"));
        self.entries.sort_by_key(|e| (e.step, e.tap));
        Ok(self)
    }

    /// Uses an attention mask beside the taps as that of dump.json, if a tap of the prefill has as many positions.
    fn take_mask(&mut self) {
        let Some(found) = self.loose(MASK).filter(|_| self.meta.attention_mask.is_none()) else { return };
        let mask = match (&found.place, &self.archive) {
            (TensorLocation::Member(name), Some(archive)) => archive.mask(name),
            (TensorLocation::File(path), _) => read_regular(path, MASK_LIMIT).ok().and_then(|file| read_mask(&file)),
            _ => None,
        };
        let Some((mask, length)) = mask.and_then(|mask| Some((mask.clone(), mask.sequence(0)?.len()))) else { return };
        if self.entries.iter().any(|entry| entry.step == 0 && entry.shape.contains(&length)) {
            self.meta.attention_mask = Some(mask);
            self.unmapped.retain(|name| name != MASK);
            self.loose.retain(|found| found.name != MASK);
            self.loose_at = OnceLock::new();
        }
    }

    /// The name of its tensor, if it holds a single tensor of floats, in the prefill.
    pub fn only_tensor(&self) -> Option<Tap> {
        let loose = self.unmapped.iter().filter(|name| self.unmapped_size(name).is_some());
        let loose = loose.map(|name| split_stored_name(name)).map(|(name, step)| (step, Tap::named(name)));
        let parts = self.parts.iter().map(|part| (part.step, part.tap));
        let held: BTreeSet<_> =
            self.entries.iter().map(|entry| (entry.step, entry.tap)).chain(parts).chain(loose).collect();
        held.first().filter(|(step, _)| held.len() == 1 && *step == 0).map(|(_, tap)| *tap)
    }

    /// The dump with its one tensor that is not a tap renamed to `tap`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn rename_only_tensor(mut self, tap: Tap) -> Result<Dump, DumpError> {
        let is_it = |found: &RawTensor| self.header(found).is_ok_and(|header| element_count(&header.shape).is_some());
        let Some(at) = self.loose.iter().position(is_it) else { return Ok(self) };
        self.loose_at = OnceLock::new();
        let mut found = self.loose.remove(at);
        let stored = stored_name(&found.name, found.step);
        self.unmapped.retain(|name| *name != stored);
        if !tap.is_open() {
            self.add_tap(tap, 0, found)?;
            return Ok(self);
        }
        found.name = tap.to_string();
        if let (false, TensorLocation::Computed(Compute(make))) = (found.is_whole(), &found.place) {
            self.parts.push(Partial::from_item(found.item(make()?), tap));
        }
        self.unmapped.push(found.name.clone());
        self.loose.push(found);
        Ok(self)
    }

    fn loose_tensor(&self, found: &RawTensor) -> Result<Tensor, DumpError> {
        self.tensor(&found.place, &self.header(found)?)
    }

    /// Adds a tensor under its tap.
    fn add_tap(&mut self, tap: Tap, step: u32, found: RawTensor) -> Result<(), DumpError> {
        let rows = found.rows(&self.meta);
        if found.part.is_some() || found.printed.is_some() {
            let TensorLocation::Computed(Compute(make)) = &found.place else { return Ok(()) };
            let part = Partial::from_item(Item { step, rows: rows.clone(), ..found.item(make()?) }, tap);
            let will_do = found.part.is_none() && found.printed.is_some_and(|printed| printed.suffices(&part.values));
            self.parts.push(part);
            if !will_do {
                return Ok(());
            }
        }
        let header = self.header(&found)?;
        self.check_shape(&tap.to_string(), &found, &header)?;
        let (shape, dtype) = (header.shape.clone(), header.layout.dtype);
        let count = match &rows {
            Some(Rows::List(list)) => Some(list.len()),
            Some(Rows::Named(NamedRows::Last)) => Some(1),
            Some(Rows::Named(NamedRows::All)) | None => None,
        };
        // A key/value cache also holds the rows of earlier steps.
        let shows_all = !tap.is_open() && !tap.site.is_attended() && shape.len() >= tap.site.axes().len();
        if let Some(count) = count.filter(|count| shows_all && !shape.contains(count)) {
            self.doubt(tap, step, format!("its shape is {shape:?}, and 'rows' in dump.json is of {count} positions"));
        }
        self.entries.push(Entry { tap, step, shape, dtype, rows, place: found.place, header });
        Ok(())
    }
}

/// Merges notes that differ only in the file name, and removes duplicates.
pub(crate) fn merge_notes(notes: Vec<String>) -> Vec<String> {
    let mut kinds: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for note in notes {
        let Some((file, rest)) = note.split_once(": ") else {
            kinds.insert(note.clone(), (1, note));
            continue;
        };
        let kind: String = rest.chars().filter(|c| !c.is_ascii_digit()).collect();
        let (file, rest) = (file.to_owned(), rest.to_owned());
        kinds.entry(kind).and_modify(|(count, _)| *count += 1).or_insert((1, format!("{file}: {rest}")));
    }
    let said = |(count, first): (usize, String)| match count {
        1 => first,
        2 => format!("{first} (1 file more like it)"),
        _ => format!("{first} ({} files more like it)", count - 1),
    };
    kinds.into_values().map(said).collect()
}

/// A tap known only by its file, as in a recording that was not finished. `untyped`: two bytes an element, of a type that NumPy lacks; firstdiff's
/// recorders write only bf16 in this way.
pub(crate) fn tap_from_file_name(stem: &str, place: TensorLocation, untyped: bool) -> RawTensor {
    let (name, step) = split_stored_name(stem);
    let found = RawTensor::stored(&name_in_file(name), place).at_step(step);
    found.with_dtype(untyped.then_some(DType::BF16))
}

/// Names of the files in a folder, sorted. A .npy whose name is not UTF-8 is refused, because it cannot be a tap; other such files are skipped.
pub(crate) fn file_names(folder: &Path) -> Result<Vec<String>, DumpError> {
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
pub(crate) fn declared(
    json: &Path,
    meta: &Meta,
    ending: &str,
    mut place: impl FnMut(&str) -> TensorLocation,
) -> Result<(Vec<RawTensor>, HashSet<String>), DumpError> {
    let mut found = Vec::new();
    let mut listed = HashSet::new();
    for tap in meta.taps.iter().flatten() {
        let default = || format!("{}{ending}", stored_name(&tap.tap, tap.step));
        let file = tap.file.clone().unwrap_or_else(default);
        if !is_plain_name(&file) {
            let reason = format!("tap '{}': file '{file}' is not a plain name inside the dump", tap.tap);
            return Err(DumpError::Meta { path: json.into(), reason });
        }
        found.push(RawTensor::declared(tap, place(&file)));
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
    let text = read_regular(path, JSON_LIMIT).map_err(file_error)?;
    parse_meta(path, &text, text.len() as u64)
}

/// Parses dump.json; `size` is that of the file it was found in.
pub(crate) fn parse_meta(path: &Path, json: &[u8], size: u64) -> Result<Meta, DumpError> {
    let err = |reason: String| DumpError::Meta { path: path.into(), reason };
    if !json_fits(json, size) {
        return Err(err("not a dump.json: it holds far more values than that of any run".into()));
    }
    let meta = Meta::parse(json).map_err(|e| err(format!("not a dump.json: {e}")))?;
    match meta.format {
        Some(format) if format != FORMAT => Err(err(format!("dump format {format}; this firstdiff reads {FORMAT}"))),
        _ => meta.contradiction().map_or(Ok(meta), |reason| Err(err(reason))),
    }
}

pub(crate) fn npy_header(path: &Path, declared: Option<DType>) -> Result<Header, DumpError> {
    let (file, total) = open_regular(path).map_err(file_error)?;
    let total = usize::try_from(total).map_err(|_| not_a_dump(path, "too large for this machine"))?;
    let mut start = Vec::with_capacity(total.min(HEADER_LIMIT));
    file.take(HEADER_LIMIT as u64).read_to_end(&mut start).map_err(|e| io_error(path, e))?;
    read_header(&start, total, declared).map_err(|source| DumpError::Npy { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_of_several_files_are_said_once() {
        let said = |notes: &[&str]| merge_notes(notes.iter().map(ToString::to_string).collect());
        assert_eq!(said(&["a.npy: 3 NaN", "b.npy: 4 NaN"]), ["a.npy: 3 NaN (1 file more like it)"]);
        assert_eq!(said(&["names by map.toml", "names by map.toml", "cut short"]), ["cut short", "names by map.toml"]);
    }
}

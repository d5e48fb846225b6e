//! What lies at a path? Folders, archives, patterns and single files, of our own form or another's, opened as one dump.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::Read;
use std::path::{Component, Path};

use crate::archive::Archive;
use crate::dump::{Dump, DumpError, Entry, Maker, Place, io_error, not_a_dump, open_file};
use crate::import::{self, Item, Part, Partial, Printed};
use crate::join::open_ranks;
use crate::meta::{FORMAT, Meta, QkRows, Rows, TapMeta, split_stored_name, stored_name};
use crate::names::{self, Names};
use crate::npy::{HEADER_LIMIT, Header, NpyError, read_header};
use crate::tap::Tap;
use crate::tensor::DType;

/// What a person tells about files that do not say it themselves.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// A table of names. Without one, a `firstdiff.toml` in the dump's folder counts.
    pub names: Option<Names>,
    /// The element type of raw floats.
    pub dtype: Option<DType>,
    /// The name, or the tap, of a single file's tensor.
    pub name: Option<String>,
}

/// A tensor under the name it was found by, before name and bytes are looked at.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) step: u32,
    pub(crate) dtype: Option<DType>,
    shape: Option<Vec<usize>>,
    rows: Option<Rows>,
    pub(crate) place: Place,
    part: Option<Part>,
    printed: Option<Printed>,
}

impl Found {
    fn stored(name: &str, place: Place) -> Found {
        Found { name: name.to_owned(), step: 0, dtype: None, shape: None, rows: None, place, part: None, printed: None }
    }

    fn declared(tap: &TapMeta, place: Place) -> Found {
        let TapMeta { tap: name, step, shape, dtype, rows, .. } = tap.clone();
        Found { name, step, dtype, shape, rows, place, part: None, printed: None }
    }

    fn foreign(item: Item) -> Found {
        let Item { name, step, rows, part, printed, tensor } = item;
        let place = Place::Made(Maker(std::sync::Arc::new(move || Ok(tensor.clone()))));
        Found { name, step, dtype: None, shape: None, rows, place, part, printed }
    }
}

/// What was found at a path, and what had to be assumed.
#[derive(Default)]
struct Findings {
    found: Vec<Found>,
    notes: Vec<String>,
    /// The token ids of each sequence, where a file tells them.
    tokens: Option<Vec<Vec<i64>>>,
    qk_rows: Option<QkRows>,
}

impl Findings {
    fn extend(&mut self, read: import::Read) {
        self.found.extend(read.items.into_iter().map(Found::foreign));
        self.notes.extend(read.notes);
        self.tokens = self.tokens.take().or(read.tokens);
        self.qk_rows = self.qk_rows.or(read.qk_rows);
    }
}

impl Dump {
    /// Opens the dump at `path` and checks every header in it.
    ///
    /// # Errors
    /// When there is no dump, or a part of it that carries a tap's name is damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<Dump, DumpError> {
        Dump::open_with(path, &Reading::default())
    }

    /// Opens the dump at `path`, told what its files do not say.
    ///
    /// # Errors
    /// As [`Dump::open`].
    pub fn open_with(path: impl AsRef<Path>, reading: &Reading) -> Result<Dump, DumpError> {
        let path = path.as_ref();
        if path.to_string_lossy().contains('*') && !path.exists() {
            return open_pattern(path, reading);
        }
        let kind = fs::metadata(path).map_err(|e| io_error(path, e))?;
        if kind.is_dir() {
            let dims = folder_names(path, reading)?.map(|names| names.dims().clone()).unwrap_or_default();
            return match open_ranks(path, &dims, |rank| open_folder(rank, reading))? {
                Some(joined) => Ok(joined),
                None => open_folder(path, reading),
            };
        }
        if !kind.is_file() {
            return Err(not_a_dump(path, "neither a folder nor a file"));
        }
        match path.extension().and_then(|e| e.to_str()) {
            Some("npz") => open_archive(path, Archive::open_npz(path)?, ".npy", reading),
            Some("safetensors") => open_archive(path, Archive::open_safetensors(path)?, "", reading),
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

fn open_folder(path: &Path, reading: &Reading) -> Result<Dump, DumpError> {
    let json = path.join("dump.json");
    let meta = if json.exists() { read_meta(&json)? } else { Meta::default() };
    let lists_taps = meta.taps.is_some();
    let names = file_names(path)?;
    let (found, listed) = declared(&json, &meta, ".npy", |name| Place::File(path.join(name)))?;
    let mut all = Findings { found, ..Findings::default() };
    let is_model = path.join("config.json").exists();
    // One engine writes one type: what most files look like is what all are.
    let reading = &Reading { dtype: reading.dtype.or(usual_dtype(path, &names)), ..reading.clone() };
    // What a manifest names has its name there.
    let mut in_manifest = HashSet::new();
    let (manifests, others): (Vec<&String>, Vec<&String>) = names.iter().partition(|name| name.ends_with(".json"));
    for name in manifests.into_iter().chain(others).filter(|&name| !listed.contains(name)) {
        let file = path.join(name);
        if name == "dump.json" || in_manifest.contains(name) {
            continue;
        }
        if let Some(stem) = name.strip_suffix(".npy") {
            npy(&file, stem, reading, &mut all)?;
        } else if !lists_taps && !is_model && import::is_foreign(&file) && file.is_file() {
            // Beside tensors lie other things; what of them cannot be read is said.
            match foreign(&file, reading) {
                Ok(mut read) => {
                    in_manifest.extend(std::mem::take(&mut read.files));
                    all.extend(read);
                }
                Err(error) => all.notes.push(format!("{name}: not read: {}", error.bare(&file))),
            }
        }
    }
    if all.found.is_empty() {
        let reason = match (is_model, all.notes.first()) {
            (true, _) => "a model's folder (config.json), not a dump; make one with `firstdiff dump`".to_owned(),
            (false, Some(note)) => format!("no tensors in it ({note})"),
            (false, None) => "no .npy files or files of another form, and no dump.json that lists taps".to_owned(),
        };
        return Err(not_a_dump(path, &reason));
    }
    let own = folder_names(path, reading)?;
    assemble(path, meta, all, None, own.as_ref())
}

/// The table of names that counts in a folder: the one given, else its own.
fn folder_names(path: &Path, reading: &Reading) -> Result<Option<Names>, DumpError> {
    let own = path.join("firstdiff.toml");
    match &reading.names {
        Some(names) => Ok(Some(names.clone())),
        None if own.exists() => Ok(Some(Names::open(&own).map_err(|e| DumpError::Names(Box::new(e)))?)),
        None => Ok(None),
    }
}

/// A .npy, or raw floats that are called one.
fn npy(file: &Path, stem: &str, reading: &Reading, all: &mut Findings) -> Result<(), DumpError> {
    let headless = matches!(npy_header(file, None), Err(DumpError::Npy { source: NpyError::Magic, .. }));
    match headless && fs::metadata(file).is_ok_and(|m| m.len() > 0) {
        true => all.extend(import::open_raw(file, reading.dtype)?),
        false => all.found.push(Found::stored(stem, Place::File(file.into()))),
    }
    Ok(())
}

/// The type that most files without a header look like, where they look like several.
fn usual_dtype(folder: &Path, names: &[String]) -> Option<DType> {
    let mut counts: BTreeMap<DType, usize> = BTreeMap::new();
    for name in names {
        if let Some(dtype) = import::guessed_dtype(&folder.join(name)) {
            *counts.entry(dtype).or_default() += 1;
        }
    }
    if counts.len() < 2 {
        return None;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(dtype, _)| dtype)
}

fn foreign(file: &Path, reading: &Reading) -> Result<import::Read, DumpError> {
    import::read(file, reading.dtype)
}

fn open_pattern(path: &Path, reading: &Reading) -> Result<Dump, DumpError> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let pattern = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
    let Some((before, after)) = pattern.split_once('*').filter(|(_, after)| !after.contains('*')) else {
        return Err(not_a_dump(path, "a pattern has one '*', in the file's name, where the tap's name stands"));
    };
    let mut all = Findings::default();
    for name in file_names(folder)? {
        let Some(stem) = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after)) else { continue };
        let file = folder.join(&name);
        let earlier = all.found.len();
        if name.ends_with(".npy") || !import::is_foreign(&file) {
            npy(&file, stem, reading, &mut all)?;
        } else {
            all.extend(foreign(&file, reading)?);
        }
        // What stands for the '*' is the name, where the file holds one tensor.
        if let [one] = &mut all.found[earlier..] {
            one.name = stem.to_owned();
        }
    }
    if all.found.is_empty() {
        return Err(not_a_dump(path, all.notes.first().map_or("no file matches the pattern", String::as_str)));
    }
    assemble(path, Meta::default(), all, None, reading.names.as_ref())
}

/// One file of one tensor or more.
fn open_file_alone(path: &Path, reading: &Reading) -> Result<Dump, DumpError> {
    let mut all = Findings::default();
    match path.extension().is_some_and(|e| e == "npy") {
        true => npy(path, &import::stem(path), reading, &mut all)?,
        false => all.extend(foreign(path, reading)?),
    }
    if let (Some(name), [one]) = (&reading.name, all.found.as_mut_slice()) {
        one.name.clone_from(name);
    }
    if all.found.is_empty() {
        return Err(not_a_dump(path, all.notes.first().map_or("it holds no tensors", String::as_str)));
    }
    let dump = assemble(path, Meta::default(), all, None, reading.names.as_ref())?;
    match (dump.entries.is_empty() && dump.parts.is_empty(), dump.unnamed.as_slice()) {
        (true, [name]) => Err(not_a_dump(
            path,
            &format!(
                "it holds one tensor, '{}', which is the name of no tap: name its folder, a pattern ('out/*.npy'), or the tap in a \
                 firstdiff.toml (--map)",
                name.escape_debug()
            ),
        )),
        _ => Ok(dump),
    }
}

fn open_archive(path: &Path, archive: Archive, ending: &str, reading: &Reading) -> Result<Dump, DumpError> {
    let meta = match archive.meta_json()? {
        Some(json) => parse_meta(path, &json)?,
        None => Meta::default(),
    };
    let (found, listed) = declared(path, &meta, ending, |name| Place::Member(name.to_owned()))?;
    let mut all = Findings { found, ..Findings::default() };
    for name in archive.names().filter(|name| !listed.contains(*name)) {
        if let Some(stem) = name.strip_suffix(ending) {
            all.found.push(Found::stored(stem, Place::Member(name.to_owned())));
        }
    }
    if all.found.is_empty() {
        return Err(not_a_dump(path, "it holds no tensors"));
    }
    assemble(path, meta, all, Some(archive), reading.names.as_ref())
}

/// Which of several tensors that claim one tap is it? The lower the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    /// A whole tensor beats a part.
    in_part: bool,
    /// The person's own table, the vocabulary, then the built-in tables in their order.
    rank: usize,
}

/// Gives every tensor its tap, and opens the headers of those that have one.
fn assemble(
    path: &Path,
    meta: Meta,
    all: Findings,
    archive: Option<Archive>,
    own: Option<&Names>,
) -> Result<Dump, DumpError> {
    let mut dump = Dump { meta, archive, notes: folded(all.notes), ..Dump::empty(path) };
    dump.meta.qk_rows = dump.meta.qk_rows.or(all.qk_rows);
    if let (None, Some([one])) = (&dump.meta.tokens, all.tokens.as_deref()) {
        dump.meta.tokens = Some(one.clone());
    }
    let mut claims: BTreeMap<(u32, Tap), Vec<(Claim, Found)>> = BTreeMap::new();
    let mut whose: BTreeMap<&str, usize> = BTreeMap::new();
    for found in all.found {
        let Some((tap, step, rank, table)) = meaning(&found, own) else {
            dump.unnamed.push(stored_name(&found.name, found.step));
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
        if let [(first, _), (second, _), ..] = claims.as_slice()
            && first == second
        {
            return Err(DumpError::Twice { path: path.into(), tap: stored_name(&tap.to_string(), step) });
        }
        dump.unlike(tap, step, &claims)?;
        let Some((_, found)) = claims.into_iter().next() else { continue };
        dump.take(tap, step, found)?;
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
    dump.unnamed.sort();
    Ok(dump)
}

/// The tap that a name means, its step, how sure the meaning is, and whose table says so.
fn meaning(found: &Found, own: Option<&Names>) -> Option<(Tap, u32, usize, Option<&'static str>)> {
    if let Some((tap, step)) = own.and_then(|names| names.find(&found.name)) {
        return Some((tap, step + found.step, 0, None));
    }
    let (name, step) = split_stored_name(&found.name);
    if let Ok(tap) = name.parse::<Tap>() {
        return Some((tap, step + found.step, 1, None));
    }
    let known = names::built_in(&found.name)?;
    Some((known.tap, known.step + found.step, 2 + known.rank, Some(known.whose)))
}

impl Dump {
    /// An error where two whole tensors claim one tap by different names and differ: nobody can say which is meant. llama.cpp's table alone knows
    /// that one of two is made of the other.
    fn unlike(&self, tap: Tap, step: u32, claims: &[(Claim, Found)]) -> Result<(), DumpError> {
        let mut whole = claims.iter().filter(|(claim, _)| !claim.in_part).map(|(_, found)| found);
        let (Some(first), others) = (whole.next(), whole) else { return Ok(()) };
        for other in others {
            let alike = match (self.values(first), self.values(other)) {
                (Ok(a), Ok(b)) => a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()),
                _ => false,
            };
            if !alike && !names::is_made_of(&first.name, &other.name) {
                let reason = format!(
                    "'{}' and '{}' both are {} by their names, and differ: take one away, or name them in a firstdiff.toml",
                    first.name.escape_debug(),
                    other.name.escape_debug(),
                    stored_name(&tap.to_string(), step)
                );
                return Err(not_a_dump(&self.path, &reason));
            }
        }
        Ok(())
    }

    fn values(&self, found: &Found) -> Result<Vec<f64>, DumpError> {
        let header = self.header(found)?;
        Ok(self.tensor(&found.place, &header)?.values().to_f64())
    }

    /// Takes a tensor in under its tap.
    fn take(&mut self, tap: Tap, step: u32, found: Found) -> Result<(), DumpError> {
        let rows = found.rows.clone().or_else(|| self.meta.rows.clone());
        if found.part.is_some() || found.printed.is_some() {
            let Place::Made(Maker(make)) = &found.place else { return Ok(()) };
            let (name, part, printed) = (found.name.clone(), found.part.clone(), found.printed);
            let whole = part.is_none();
            let item = Item { name, step, rows: rows.clone(), part, printed, tensor: make()? };
            let part = Partial::of(item, tap);
            let will_do = whole && printed.is_some_and(|printed| printed.will_do(&part.values));
            self.parts.push(part);
            if !will_do {
                return Ok(());
            }
        }
        let header = self.header(&found)?;
        if let Some(shape) = found.shape.filter(|shape| *shape != header.shape) {
            let reason = format!("{tap}: shape {shape:?} in dump.json, {:?} in its file", header.shape);
            return Err(DumpError::Meta { path: self.path.clone(), reason });
        }
        let (shape, dtype) = (header.shape.clone(), header.layout.dtype);
        self.entries.push(Entry { tap, step, shape, dtype, rows, place: found.place, header });
        Ok(())
    }
}

/// Notes that differ in a file's name alone, said once.
fn folded(notes: Vec<String>) -> Vec<String> {
    let mut kinds: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for note in notes {
        let (file, rest) = note.split_once(": ").unwrap_or((&note, ""));
        let kind: String = rest.chars().filter(|c| !c.is_ascii_digit()).collect();
        let (file, rest) = (file.to_owned(), rest.to_owned());
        kinds.entry(kind).and_modify(|(count, _)| *count += 1).or_insert((1, format!("{file}: {rest}")));
    }
    let said = |(count, first): (usize, String)| match count {
        1 => first,
        _ => format!("{first} ({} files more like it)", count - 1),
    };
    kinds.into_values().map(said).collect()
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

pub(crate) fn npy_header(path: &Path, declared: Option<DType>) -> Result<Header, DumpError> {
    let file = open_file(path)?;
    let total = file.metadata().map_err(|e| io_error(path, e))?.len();
    let total = usize::try_from(total).map_err(|_| not_a_dump(path, "too large for this machine"))?;
    let mut start = Vec::with_capacity(total.min(1024));
    file.take(HEADER_LIMIT as u64).read_to_end(&mut start).map_err(|e| io_error(path, e))?;
    read_header(&start, total, declared).map_err(|source| DumpError::Npy { path: path.into(), source })
}

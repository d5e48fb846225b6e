//! Opens a folder as a dump: tensors, one archive, or a folder for each rank or step.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::dump::join::{lone_rank, merged_tap_list, open_ranks};
use crate::dump::open::{
    Contents, OpenOptions, RawTensor, assemble, declared, file_names, foreign, merge_notes, npy, npy_header,
    open_archive, read_meta, tap_from_file_name,
};
use crate::dump::{Compute, Dump, DumpError, Entry, TensorLocation, import, io_error, not_a_dump};
use crate::element::DType;
use crate::meta::{Meta, stored_name};
use crate::npy::{Header, NpyError};

/// Opens a folder as a dump.
///
/// # Errors
/// As [`Dump::open_with`].
pub(crate) fn open(path: &Path, reading: &OpenOptions) -> Result<Dump, DumpError> {
    let names = reading.names_for(path)?;
    let dims = names.as_ref().map(|names| names.dims().clone()).unwrap_or_default();
    if let Some(joined) = open_ranks(path, &dims, |rank| open_folder(rank, reading))? {
        refuse_other_tensors(path, "ranks", &[], reading)?;
        return Ok(joined);
    }
    match step_folders(path, reading)? {
        Some(steps) => {
            let inner = OpenOptions { names, ..reading.clone() };
            let open = |step: &Path| match step.is_dir() {
                true => open_folder(step, &inner),
                false => open_archive(step, Meta::default(), &inner),
            };
            let steps = steps.into_iter().map(|(step, place)| Ok((step, open(&place)?)));
            merge_steps(path, steps.collect::<Result<_, DumpError>>()?)
        }
        None => lone_rank(path, open_folder(path, reading)?, &dims),
    }
}

fn open_folder(path: &Path, reading: &OpenOptions) -> Result<Dump, DumpError> {
    let json = path.join("dump.json");
    let meta = if json.exists() { read_meta(&json)? } else { Meta::default() };
    let lists_taps = meta.taps.is_some();
    let names = file_names(path)?;
    let (found, listed) = declared(&json, &meta, ".npy", |name| TensorLocation::File(path.join(name)))?;
    let mut all = Contents { tensors: found, ..Contents::default() };
    let is_model = path.join("config.json").exists();
    let mut headers = headers(path, &names);
    // An engine writes one element type, so all files are read as the type that most of them look like.
    let without = names.iter().map(|name| path.join(name)).filter(|file| !headers.contains_key(file));
    let usual = usual_dtype(without).filter(|_| reading.dtype.is_none());
    all.notes.extend(usual.map(|dtype| format!("files without a header: read as raw {dtype}, as most of them look")));
    let reading = &OpenOptions { dtype: reading.dtype.or(usual), ..reading.clone() };
    // Files that a manifest names take their tensor name from it.
    let mut in_manifest = HashSet::new();
    let (manifests, others): (Vec<&String>, Vec<&String>) = names.iter().partition(|name| name.ends_with(".json"));
    for name in manifests.into_iter().chain(others).filter(|&name| !listed.contains(name)) {
        let file = path.join(name);
        if name == "dump.json" || in_manifest.contains(name) {
            continue;
        }
        if let Some(stem) = name.strip_suffix(".npy") {
            let has_header = headers.contains_key(&file);
            // Recorders write characters that are not allowed in file names as `%` and two hexadecimal digits.
            match meta.is_incomplete() || (json.exists() && stem.contains('%')) {
                true => {
                    let untyped = !has_header
                        && matches!(npy_header(&file, None), Err(DumpError::Npy { source: NpyError::Untyped, .. }));
                    all.tensors.push(tap_from_file_name(stem, TensorLocation::File(file), untyped));
                }
                false if has_header => all.tensors.push(RawTensor::stored(stem, TensorLocation::File(file))),
                false => npy(&file, stem, reading, &mut all)?,
            }
        } else if !lists_taps && !is_model && import::is_foreign(&file) && file.is_file() {
            // A folder may also hold other files; a note lists those that cannot be read.
            match foreign(&file, reading) {
                Ok(mut read) => {
                    in_manifest.extend(std::mem::take(&mut read.files));
                    all.extend(read);
                }
                Err(error) => all.notes.push(format!("{name}: not read: {}", error.bare(&file))),
            }
        }
    }
    let archives: Vec<&String> = names.iter().filter(|name| is_archive(name)).collect();
    if let [one] = archives.as_slice()
        && all.tensors.is_empty()
        && !is_model
        && !lists_taps
    {
        let reading = OpenOptions { names: reading.names_for(path)?, ..reading.clone() };
        return open_archive(&path.join(one), meta, &reading);
    }
    if all.tensors.is_empty() {
        let reason = match (is_model, all.notes.first()) {
            _ if archives.len() > 1 => {
                format!("it holds {} archives, {} ...: name one of them", archives.len(), archives[0])
            }
            (true, _) => "a model's folder (config.json), not a dump; make one with `firstdiff dump`".to_owned(),
            (false, Some(note)) => format!("no tensors in it ({note})"),
            (false, None) => no_tensors_error(path),
        };
        return Err(not_a_dump(path, &reason));
    }
    if !lists_taps {
        all.notes.extend(
            archives.iter().map(|name| format!("{name}: not read: an archive beside tensors; name it by itself")),
        );
    }
    for found in &mut all.tensors {
        if let TensorLocation::File(file) = &found.place {
            found.header = headers.remove(file);
        }
    }
    assemble(path, meta, all, None, reading)
}

/// The headers of the .npy files that have a complete one.
fn headers(folder: &Path, names: &[String]) -> HashMap<PathBuf, Header> {
    let files = names.iter().filter(|name| name.ends_with(".npy")).map(|name| folder.join(name));
    files.filter_map(|file| npy_header(&file, None).ok().map(|header| (file, header))).collect()
}

/// The element type that most of the files without header look like, if they look like different types.
fn usual_dtype(files: impl Iterator<Item = PathBuf>) -> Option<DType> {
    let mut counts: BTreeMap<DType, usize> = BTreeMap::new();
    for file in files {
        if let Some(dtype) = import::guessed_dtype(&file) {
            *counts.entry(dtype).or_default() += 1;
        }
    }
    if counts.len() < 2 {
        return None;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(dtype, _)| dtype)
}

fn is_archive(name: &str) -> bool {
    name.ends_with(".npz") || name.ends_with(".safetensors")
}

/// Why a folder without tensors is no dump, with the folders in it, as one of them may be meant.
fn no_tensors_error(path: &Path) -> String {
    let nothing = "no .npy files or files of another form, and no dump.json that lists taps";
    let folders = fs::read_dir(path).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> = folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    match names.as_slice() {
        [] => nothing.to_owned(),
        [one] => format!("{nothing}; it holds a folder '{one}': name that"),
        [first, .., last] => format!(
            "{nothing}; it holds folders, '{first}' to '{last}': name one, or call them step0, step1 ... if each is a step, rank0, rank1 ... if each is a rank"
        ),
    }
}

/// The folders or archives of single steps in `path`, by step, if there are any.
fn step_folders(path: &Path, reading: &OpenOptions) -> Result<Option<Vec<(u32, PathBuf)>>, DumpError> {
    let mut found: BTreeMap<u32, (String, PathBuf)> = BTreeMap::new();
    let mut words = Vec::new();
    for entry in fs::read_dir(path).map_err(|e| io_error(path, e))? {
        let entry = entry.map_err(|e| io_error(path, e))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let stem = name.strip_suffix(".npz").or_else(|| name.strip_suffix(".safetensors"));
        let is_archive = stem.is_some() && entry.path().is_file();
        let stem = if is_archive { stem.unwrap_or(&name) } else { &name };
        let Some((word, step)) = step_number(stem).filter(|_| is_archive || entry.path().is_dir()) else { continue };
        words.push((word, is_archive));
        if let Some((other, _)) = found.insert(step, (name.clone(), entry.path())) {
            return Err(not_a_dump(path, &format!("'{other}' and '{name}' are both step {step}")));
        }
    }
    let Some((&first, (name, _))) = found.first_key_value() else { return Ok(None) };
    let own: Vec<&str> = found.values().map(|(name, _)| name.as_str()).collect();
    refuse_other_tensors(path, "steps", &own, reading)?;
    let whole = found.keys().zip(first..).all(|(step, due)| *step == due);
    if words.iter().any(|word| *word != words[0]) || !whole || first > 1 {
        return Err(not_a_dump(
            path,
            &format!(
                "a folder or an archive for each step, of which some are missing or named otherwise (the first is '{name}'): call them step0, step1 ..."
            ),
        ));
    }
    Ok(Some(found.into_iter().map(|(step, (_, folder))| (step - first, folder)).collect()))
}

/// Refuses tensors beside the folders of a run's steps or ranks.
fn refuse_other_tensors(path: &Path, what: &str, own: &[&str], reading: &OpenOptions) -> Result<(), DumpError> {
    let holds = |name: &&String| {
        let file = path.join(name);
        let is_foreign = || *name != "dump.json" && import::is_foreign(&file) && file.is_file();
        let read = || foreign(&file, reading).is_ok_and(|read| !read.items.is_empty());
        !own.contains(&name.as_str()) && (name.ends_with(".npy") || is_archive(name) || (is_foreign() && read()))
    };
    let Some(beside) = file_names(path)?.into_iter().find(|name| holds(&name)) else { return Ok(()) };
    let beside = beside.escape_debug();
    let said = format!(
        "it holds {what}, and tensors beside them ('{beside}'): which are the run? Name these, or move one or the other away"
    );
    Err(not_a_dump(path, &said))
}

/// 3 for `step3`, `step_3`, `token-3`, `pos3` ...
fn step_number(name: &str) -> Option<(&'static str, u32)> {
    let lower = name.to_ascii_lowercase();
    let words = ["step", "token", "tok", "position", "pos"];
    let (word, rest) = words.into_iter().find_map(|word| Some((word, lower.strip_prefix(word)?)))?;
    let digits = rest.strip_prefix(['_', '-', '.']).unwrap_or(rest);
    let plain = !digits.is_empty() && digits.len() < 8 && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|_| plain).map(|step| (word, step))
}

/// Merges the dumps of the steps of a run into one dump.
fn merge_steps(path: &Path, steps: Vec<(u32, Dump)>) -> Result<Dump, DumpError> {
    let mut dump = Dump { meta: merged_meta(path, &steps)?, ..Dump::empty(path) };
    let mut notes = Vec::new();
    for (step, of_step) in steps {
        let of_step = Arc::new(of_step);
        dump.of_known_names |= of_step.of_known_names;
        dump.name_map.extend(of_step.name_map.clone());
        dump.parts.extend(of_step.parts.iter().cloned().map(|part| import::Partial { step: part.step + step, ..part }));
        for entry in of_step.entries() {
            let (whole, source) = (Arc::clone(&of_step), entry.clone());
            let Entry { tap, shape, dtype, rows, .. } = entry.clone();
            dump.entries.push(Entry::computed(tap, entry.step + step, shape, dtype, rows, move || whole.read(&source)));
        }
        for found in &of_step.loose {
            let (whole, name) = (Arc::clone(&of_step), stored_name(&found.name, found.step));
            let place = TensorLocation::Computed(Compute(Arc::new(move || whole.read_unmapped(&name))));
            dump.unmapped.push(stored_name(&found.name, found.step + step));
            dump.loose.push(RawTensor::stored(&found.name, place).at_step(found.step + step));
        }
        notes.extend(of_step.notes().iter().cloned());
    }
    dump.notes = merge_notes(notes);
    dump.notes.push("a folder or an archive for each step, read as the steps of one run".to_owned());
    dump.entries.sort_by_key(|e| (e.step, e.tap));
    dump.unmapped.sort();
    Ok(dump)
}

/// The metadata of the folder, else of its first step, with the tokens of later steps appended.
fn merged_meta(path: &Path, steps: &[(u32, Dump)]) -> Result<Meta, DumpError> {
    let json = path.join("dump.json");
    let own = json.exists().then(|| read_meta(&json)).transpose()?;
    let mut meta = own.unwrap_or_else(|| steps.first().map_or(Meta::default(), |(_, dump)| dump.meta().clone()));
    meta.taps = merged_tap_list(steps.iter().map(|(step, dump)| (*step, dump.meta())));
    meta.incomplete_as(steps.iter().map(|(_, dump)| dump.meta()));
    let later: Option<Vec<Vec<i64>>> = steps.iter().skip(1).map(|(_, dump)| dump.meta().tokens.clone()).collect();
    if meta.tokens.is_some() && meta.decode_tokens.is_none() {
        meta.decode_tokens = later.filter(|later| !later.is_empty()).map(|later| later.concat());
    }
    Ok(meta)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::Recorder;

    fn h0(folder: &Path, token: i64) {
        let rec = Recorder::create(folder).unwrap();
        rec.tokens(&[token]);
        rec.record("h0", &[1, 2], &[token as f32, 0.5]).unwrap();
        rec.finish().unwrap();
        fs::write(folder.join("other.f32"), 1.5f32.to_le_bytes()).unwrap();
    }

    #[test]
    fn a_folder_for_each_step() {
        for (word, first) in [("step", 0), ("token_", 1), ("Pos-", 0)] {
            let folder = tempfile::tempdir().unwrap();
            (0..12).for_each(|n| h0(&folder.path().join(format!("{word}{}", n + first)), n + 5));
            let dump = Dump::open(folder.path()).unwrap();
            let last = &dump.entries()[11];
            assert_eq!((dump.entries().len(), last.step), (12, 11), "{word}");
            assert_eq!(dump.read(last).unwrap().values().to_f64(), [16.0, 0.5]);
            assert_eq!(dump.meta().tokens, Some(vec![5]));
            assert_eq!(dump.meta().decode_tokens.as_ref().map(Vec::len), Some(11));
        }
    }

    #[test]
    fn an_archive_for_each_step() {
        let folder = tempfile::tempdir().unwrap();
        let archive = |name: &str, value: f32| {
            let bytes = [value, 0.5].map(f32::to_le_bytes).concat();
            let tensor = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![1, 2], &bytes).unwrap();
            safetensors::serialize_to_file([("h0", tensor)], None, &folder.path().join(name)).unwrap();
        };
        (0..3).for_each(|step| archive(&format!("step{step}.safetensors"), step as f32));
        let dump = Dump::open(folder.path()).unwrap();
        assert_eq!(dump.entries().iter().map(|e| e.step).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(dump.read(&dump.entries()[2]).unwrap().values().to_f64(), [2.0, 0.5]);
        archive("more.safetensors", 7.0);
        assert!(Dump::open(folder.path()).unwrap_err().to_string().contains("beside them"));
        fs::remove_file(folder.path().join("more.safetensors")).unwrap();
        fs::remove_file(folder.path().join("step1.safetensors")).unwrap();
        assert!(Dump::open(folder.path()).unwrap_err().to_string().contains("some are missing"));
    }

    #[test]
    fn missing_steps_are_refused_and_other_folders_named() {
        let folder = tempfile::tempdir().unwrap();
        h0(&folder.path().join("step0"), 1);
        h0(&folder.path().join("step2"), 2);
        assert!(Dump::open(folder.path()).unwrap_err().to_string().contains("step0, step1"));
        let folder = tempfile::tempdir().unwrap();
        h0(&folder.path().join("mine"), 1);
        assert!(Dump::open(folder.path()).unwrap_err().to_string().contains("'mine': name that"));
    }

    #[test]
    fn tensors_beside_step_folders_are_refused_and_not_ignored() {
        let folder = tempfile::tempdir().unwrap();
        (0..3).for_each(|n| h0(&folder.path().join(format!("step{n}")), n));
        fs::write(folder.path().join("notes.txt"), "ran on two cores\n").unwrap();
        assert_eq!(Dump::open(folder.path()).unwrap().entries().len(), 3, "a text is no tensor");
        for name in ["h0.npy", "more.npz", "more.safetensors", "h0.f32"] {
            fs::write(folder.path().join(name), [0u8; 64]).unwrap();
            let error = Dump::open(folder.path()).unwrap_err().to_string();
            assert!(error.contains("beside them") && error.contains(name), "{name}: {error}");
            fs::remove_file(folder.path().join(name)).unwrap();
        }
    }

    #[test]
    fn a_folder_of_one_archive() {
        let folder = tempfile::tempdir().unwrap();
        let archive = |name: &str| {
            let tensor =
                safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![1], &[0, 0, 128, 63]).unwrap();
            safetensors::serialize_to_file([("h0", tensor)], None, &folder.path().join(name)).unwrap();
        };
        archive("a.safetensors");
        assert_eq!(Dump::open(folder.path()).unwrap().entries().len(), 1);
        archive("b.safetensors");
        assert!(Dump::open(folder.path()).unwrap_err().to_string().contains("name one of them"));
        h0(&folder.path().join("x"), 1);
        fs::rename(folder.path().join("x/h0.npy"), folder.path().join("h0.npy")).unwrap();
        assert!(Dump::open(folder.path()).unwrap().notes().iter().any(|note| note.contains("beside tensors")));
    }
}

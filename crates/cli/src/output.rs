//! Writes a command's output: into a file completely or not at all, directly into a pipe or a device, and never over what the command reads.

use std::any::TypeId;
use std::fs::{self, Metadata, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use clap::{Arg, ArgMatches, Command};
use firstdiff_compare::Verdict;
use firstdiff_parity::words::one_line;
use firstdiff_program::Program;
use firstdiff_trace::{JSON_LIMIT, Meta, read_regular};

/// The files that a command reads, which its output may not replace.
#[derive(Clone, Debug, Default)]
pub struct Inputs(Vec<PathBuf>);

/// The paths that the command line names, except those to be written.
static ON_THE_COMMAND_LINE: OnceLock<Vec<PathBuf>> = OnceLock::new();
/// The options with a path that is written; every other path is read.
const WRITTEN: [&str; 6] = ["json", "html", "junit", "output", "baseline", "work"];

/// Endings of files that are read in any place, and in a folder whose dump.json lists no taps.
const READ: [&str; 5] = ["npy", "npz", "safetensors", "toml", "gguf"];
const READ_UNLISTED: [&str; 23] = [
    "json", "jsonl", "ndjson", "txt", "log", "out", "csv", "f32", "fp32", "float32", "f64", "fp64", "float64", "f16",
    "fp16", "float16", "bf16", "bfloat16", "bin", "raw", "dat", "pt", "pth",
];
/// Names of files that are read in every folder.
const NAMED: [&str; 4] = ["dump.json", "program.json", "config.json", "model.safetensors.index.json"];
/// A folder of ranks or steps holds folders.
const DEEPEST: usize = 2;

impl Inputs {
    /// The dumps, models, tables and baselines at these paths.
    pub fn new<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Inputs {
        Inputs(paths.into_iter().map(Path::to_path_buf).collect())
    }

    /// All paths on the command line that are not to be written, and the table of names that is read by default.
    pub(crate) fn of_command_line() -> Inputs {
        let named = ON_THE_COMMAND_LINE.get().into_iter().flatten();
        Inputs(named.cloned().chain([PathBuf::from(crate::session::reading::FILE)]).collect())
    }

    /// Stores the paths among the arguments that `command` was given.
    pub(crate) fn keep(command: &Command, given: &ArgMatches) {
        let is_path = |arg: &&Arg| arg.get_value_parser().type_id() == TypeId::of::<PathBuf>();
        let ids = command.get_arguments().filter(is_path).map(|arg| arg.get_id().as_str());
        let values = |id: &str| given.try_get_raw(id).ok().flatten().into_iter().flatten().map(PathBuf::from);
        let read = ids.filter(|id| !WRITTEN.contains(id)).flat_map(|id| values(id).collect::<Vec<_>>());
        ON_THE_COMMAND_LINE.get_or_init(|| read.collect());
    }

    /// Also these, which are read if they exist.
    pub(crate) fn also<'a>(mut self, paths: impl IntoIterator<Item = &'a PathBuf>) -> Inputs {
        self.0.extend(paths.into_iter().cloned());
        self
    }

    /// Refuses an output file that is one of those that are read. Must be called before anything is computed.
    ///
    /// # Errors
    /// When it is one of them.
    pub fn refuse_input_as_output(&self, output: Option<&Path>) -> Result<()> {
        let Some(output) = output.filter(|path| *path != Path::new("-")) else { return Ok(()) };
        let Ok(meta) = fs::metadata(output) else { return Ok(()) };
        if meta.is_dir() {
            bail!("{}: is a folder; name a file to write", output.display());
        }
        let same = |file: &PathBuf| fs::metadata(file).is_ok_and(|other| is_same(output, &meta, file, &other));
        for input in self.0.iter().filter(|_| meta.is_file()) {
            if files(input, 0).iter().any(same) {
                bail!("{}: is read by this command (of {}); write elsewhere", output.display(), input.display());
            }
        }
        Ok(())
    }

    /// The same for several output files, of which no two may be the same: the later would overwrite the earlier.
    ///
    /// # Errors
    /// When one is read, or two are the same.
    pub(crate) fn refuse_inputs_as_outputs<'a>(
        &self,
        outputs: impl IntoIterator<Item = Option<&'a Path>>,
    ) -> Result<()> {
        let mut known: Vec<PathBuf> = Vec::new();
        for path in outputs.into_iter().flatten() {
            self.refuse_input_as_output(Some(path))?;
            let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
            if known.contains(&place) && !is_device(&place) {
                bail!("{}: two outputs would go there", path.display());
            }
            known.push(place);
        }
        Ok(())
    }
}

/// Whether what is written there is not stored.
fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| !meta.is_file() && !meta.is_dir())
}

/// The files at `path` that may be read.
fn files(path: &Path, depth: usize) -> Vec<PathBuf> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let within = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let ending = |file: &Path| file.extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    if path.is_dir() {
        let listed = read_regular(&path.join("dump.json"), JSON_LIMIT).ok();
        let listed = listed.and_then(|text| serde_json::from_slice::<Meta>(&text).ok());
        let lists_taps = listed.is_some_and(|meta| meta.taps.is_some());
        let is_read = |file: &Path| {
            let (name, ending) = (file.file_name().and_then(|name| name.to_str()), ending(file));
            NAMED.contains(&name.unwrap_or_default())
                || READ.contains(&ending.as_str())
                || !lists_taps && READ_UNLISTED.contains(&ending.as_str())
        };
        let (folders, found): (Vec<PathBuf>, Vec<PathBuf>) = within(path).into_iter().partition(|file| file.is_dir());
        let below = folders.iter().filter(|_| depth < DEEPEST).flat_map(|folder| files(folder, depth + 1));
        // The weights of a recorded program are where the program says.
        let program = path.join("program.json").is_file().then(|| Program::open(path).ok()).flatten();
        let weights = program.as_ref().and_then(Program::folder).filter(|_| depth < DEEPEST);
        let weights = weights.map_or_else(Vec::new, |folder| files(folder, depth + 1));
        return found.into_iter().filter(|file| is_read(file)).chain(below).chain(weights).collect();
    }
    let mut found = vec![path.to_path_buf(), folder.join(crate::session::reading::FILE)];
    let file_name = |file: &PathBuf| file.file_name().map(|name| name.to_string_lossy().into_owned());
    if let Some((before, after)) = name.split_once('*').filter(|_| !path.exists()) {
        let fits =
            |file: &PathBuf| file_name(file).is_some_and(|name| name.starts_with(before) && name.ends_with(after));
        found.extend(within(folder).into_iter().filter(fits));
    } else if ending(path) == "gguf" && name.contains("-of-") {
        found.extend(within(folder).into_iter().filter(|file| ending(file) == "gguf"));
    } else if ending(path) == "json" {
        // A manifest, or a tree of modules: the files it names are beside it.
        let named =
            |file: &PathBuf| ending(file) == "safetensors" || READ_UNLISTED[7..].contains(&ending(file).as_str());
        found.extend(within(folder).into_iter().filter(named));
    }
    found
}

#[cfg(unix)]
fn is_same(_: &Path, one: &Metadata, _: &Path, other: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(not(unix))]
fn is_same(one: &Path, _: &Metadata, other: &Path, _: &Metadata) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// Writes a text: into a regular file, or through a link to one, under a temporary name that is then renamed, so that no reader sees half of it; directly
/// into a device or a pipe; `-`, and whatever standard output is, to standard output.
///
/// # Errors
/// When it cannot be written, or the command reads it.
pub fn write(path: &Path, text: &str, inputs: &Inputs) -> Result<()> {
    if path == Path::new("-") || is_standard_output(path) {
        return print(text);
    }
    write_bytes(path, text.as_bytes(), inputs)
}

/// The same for bytes, which are never printed.
///
/// # Errors
/// As [`write`].
pub(crate) fn write_bytes(path: &Path, bytes: &[u8], inputs: &Inputs) -> Result<()> {
    inputs.refuse_input_as_output(Some(path))?;
    let written = match fs::metadata(path) {
        Ok(meta) if meta.is_file() => fs::canonicalize(path).and_then(|file| replace(&file, bytes, Some(meta))),
        Ok(_) => write_through(path, bytes),
        Err(_) => replace(&end_of_link(path), bytes, None),
    };
    written.with_context(|| format!("{}: cannot be written", path.display()))
}

/// The target of a dangling link, else the path itself.
fn end_of_link(path: &Path) -> PathBuf {
    match fs::read_link(path) {
        Ok(end) => path.parent().map_or(end.clone(), |folder| folder.join(&end)),
        Err(_) => path.to_path_buf(),
    }
}

/// Writes a file beside `path`, and renames it to that.
fn replace(path: &Path, bytes: &[u8], old: Option<Metadata>) -> std::io::Result<()> {
    let temporary = temporary(path);
    let written = fs::write(&temporary, bytes)
        .and_then(|()| old.map_or(Ok(()), |old| fs::set_permissions(&temporary, old.permissions())))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Writes into a device or a pipe. A reader that has closed it is no error.
fn write_through(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let written = OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(bytes));
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Whether a path names what standard output already is, as /dev/stdout does: renaming over it, or writing from its start, would lose the rest.
#[cfg(unix)]
fn is_standard_output(path: &Path) -> bool {
    use std::os::fd::AsFd;
    let standard = std::io::stdout().as_fd().try_clone_to_owned().map(fs::File::from);
    let same = |standard: Metadata| fs::metadata(path).is_ok_and(|meta| is_same(path, &meta, path, &standard));
    standard.and_then(|file| file.metadata()).is_ok_and(same)
}

#[cfg(not(unix))]
fn is_standard_output(_: &Path) -> bool {
    false
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    PathBuf::from(name)
}

/// Writes a folder under another name, and renames it: a failure leaves nothing behind.
pub(crate) fn write_folder<T>(path: &Path, write: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let temporary = temporary(path);
    let written = write(&temporary).and_then(|written| {
        fs::rename(&temporary, path).with_context(|| format!("{}: cannot be written", path.display()))?;
        Ok(written)
    });
    if written.is_err() {
        let _ = fs::remove_dir_all(&temporary);
    }
    written
}

/// Parity: everything compared agrees.
pub const PARITY: u8 = 0;

/// Something diverged.
pub const DIVERGED: u8 = 1;

/// Bad usage, bad input, or nothing that can be compared.
pub const UNUSABLE: u8 = 2;

/// Prints an error as one line.
pub fn report_error(error: &anyhow::Error) {
    let text: String = one_line(error).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    // A pipe closed by its reader is no error.
    let _ = writeln!(anstream::stderr(), "firstdiff: error: {text}");
}

/// Prints to standard output; a reader that has closed it is no error.
///
/// # Errors
/// When standard output cannot be written for another reason.
pub fn print(text: &str) -> Result<()> {
    match anstream::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("standard output"),
    }
}

/// The exit code of a verdict.
pub fn exit_code(verdict: &Verdict) -> u8 {
    match verdict {
        Verdict::Parity => PARITY,
        Verdict::Diverged => DIVERGED,
        Verdict::Incomparable(_) => UNUSABLE,
    }
}

/// The same, with an error that names what could not be compared.
pub(crate) fn exit(verdict: &Verdict, what: impl std::fmt::Display) -> Result<u8> {
    match verdict {
        Verdict::Incomparable(reason) => anyhow::bail!("incomparable: {what}: {reason}"),
        _ => Ok(exit_code(verdict)),
    }
}

pub(crate) fn is_stdout(json: Option<&PathBuf>) -> bool {
    json.is_some_and(|path| path == Path::new("-"))
}

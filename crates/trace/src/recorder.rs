//! Records the taps of a running engine into a dump. Turned off, it costs one branch a tap; compiled out, nothing.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::element::write::write_npy;
use crate::element::{Element, byte_len};
use crate::filter::Filter;
use crate::meta::{FORMAT, Meta, Rows, TapMeta, file_name, stored_name};
use crate::tap::Tap;

/// Why a tap could not be recorded.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The name is empty, or too long for a file.
    #[error("'{0}': cannot be the name of a file, which needs 1 to 200 bytes")]
    Name(String),
    /// The number of elements is not that of the shape.
    #[error("{tap}: shape {shape:?} asks for other than the {len} elements given")]
    Shape {
        /// The tap.
        tap: String,
        /// Shape as given.
        shape: Vec<usize>,
        /// Elements as given.
        len: usize,
    },
    /// The tap was already recorded in this step.
    #[error("{0} was already recorded in this step; call `next_step` between decode steps")]
    Twice(String),
    /// The folder already holds a dump.
    #[error("{}: already holds a dump; remove it, or record into another folder", .0.display())]
    Occupied(PathBuf),
    /// Taps, steps or rows were selected, and nothing that was recorded matches.
    #[error("nothing recorded matches {0}")]
    NoneMatched(String),
    /// Some taps could not be recorded; each error was returned at the time. The dump is not complete.
    #[error("{count} could not be recorded, the first: {first}; dump.json says \"complete\": false")]
    Lost {
        /// How many.
        count: usize,
        /// The first error.
        first: String,
    },
    /// An environment variable is invalid.
    #[error("{name}: {reason}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The crate was compiled without the feature `record`.
    #[error("recording is compiled out: firstdiff-trace is built without its feature `record`")]
    CompiledOut,
    /// The file system returned an error.
    #[error("{}: {source}", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// Records named tensors of a running engine into a dump.
///
/// Every tap is written under a temporary name and renamed, so a crash leaves only whole files. A `dump.json` with `"complete": false` is written before
/// the first tap; only [`Recorder::finish`] replaces it with `true`. If the recording ends in another way (a signal, a panic, a dropped recorder, a tap
/// that could not be written), it stays `false`, and such a dump never passes. Any thread may record.
///
/// A name outside the vocabulary is recorded under that name: `firstdiff compare` lists it, and takes a map of names. In the name of its file every byte
/// except ASCII letters, digits, `_`, `-` and `.` is written as `%` and two hexadecimal digits; `dump.json` has the original name.
///
/// Turned off, a call costs a branch and the few stores of `format_args!`: the name is not formatted, and the values are not read. Without the crate's
/// feature `record` (on by default) the call is compiled out.
///
/// ```
/// use firstdiff_trace::Recorder;
/// # let folder = tempfile::tempdir()?;
/// # let out = folder.path().join("dump");
/// let rec = Recorder::create(&out)?;
/// rec.tokens(&[1, 17]);
/// let q = [0.1f32, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8];
/// for layer in 0..1 {
///     rec.record(format_args!("layers.{layer}.q"), &[2, 2, 2], &q)?;
/// }
/// rec.finish()?;
/// # #[cfg(feature = "read")]
/// assert_eq!(firstdiff_trace::Dump::open(&out)?.entries()[0].shape, [2, 2, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Recorder {
    recording: Option<Recording>,
}

#[derive(Debug)]
struct Recording {
    folder: PathBuf,
    filter: Filter,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    meta: Meta,
    step: u32,
    /// Number of tokens fed in steps after the prefill.
    fed: usize,
    /// Whether dump.json is already marked as not complete.
    has_json: bool,
    finished: bool,
    /// How many taps could not be recorded, and the first error.
    failed: Option<(usize, String)>,
}

/// How a recording ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// The engine called `finish`.
    Finished,
    /// The recorder was dropped.
    Dropped,
}

impl Recorder {
    /// A recorder that records nothing.
    pub fn off() -> Recorder {
        Recorder::default()
    }

    /// A recorder into `folder`, which is created.
    ///
    /// # Errors
    /// When the folder cannot be created, or already holds a dump.
    pub fn create(folder: impl AsRef<Path>) -> Result<Recorder, RecordError> {
        if !cfg!(feature = "record") {
            return Err(RecordError::CompiledOut);
        }
        let folder = folder.as_ref().to_owned();
        let io_error = |source| RecordError::Io { path: folder.clone(), source };
        fs::create_dir_all(&folder).map_err(io_error)?;
        for entry in fs::read_dir(&folder).map_err(io_error)? {
            let name = entry.map_err(io_error)?.file_name();
            if name == "dump.json" || Path::new(&name).extension().is_some_and(|e| e == "npy") {
                return Err(RecordError::Occupied(folder));
            }
        }
        let meta = Meta { format: Some(FORMAT), taps: Some(Vec::new()), ..Meta::default() };
        let state = Mutex::new(State { meta, ..State::default() });
        Ok(Recorder { recording: Some(Recording { folder, filter: Filter::default(), state }) })
    }

    /// A recorder into the folder `FIRSTDIFF_DIR`; off if that is not set, or empty.
    ///
    /// It records the taps `FIRSTDIFF_TAPS` (patterns, `layers.*.h,logits`), in the steps `FIRSTDIFF_STEPS` (`0,2-5`), at the token positions
    /// `FIRSTDIFF_ROWS` (`last`, or `0,3,7` within the step); by default all of them. A tap whose shape is not the vocabulary's is recorded whole.
    ///
    /// # Errors
    /// As [`Recorder::create`], and when a variable is not a valid list.
    pub fn from_env() -> Result<Recorder, RecordError> {
        let Some(folder) = std::env::var_os("FIRSTDIFF_DIR").filter(|folder| !folder.is_empty()) else {
            return Ok(Recorder::off());
        };
        let set = |name| std::env::var(name).ok();
        let mut filter = Filter::default();
        if let Some(taps) = set("FIRSTDIFF_TAPS") {
            filter.taps = taps;
        }
        let bad = |name| move |reason| RecordError::Variable { name, reason };
        filter.only_steps(&set("FIRSTDIFF_STEPS").unwrap_or_default()).map_err(bad("FIRSTDIFF_STEPS"))?;
        filter.only_rows(&set("FIRSTDIFF_ROWS").unwrap_or_default()).map_err(bad("FIRSTDIFF_ROWS"))?;
        let mut recorder = Recorder::create(folder)?;
        if let Some(on) = &mut recorder.recording {
            on.filter = filter;
        }
        Ok(recorder)
    }

    /// Records only the taps that match `patterns`, e.g. `layers.*.h,logits`.
    #[must_use]
    pub fn only(mut self, patterns: &str) -> Recorder {
        if let Some(on) = &mut self.recording {
            on.filter.taps = patterns.to_owned();
        }
        self
    }

    /// Whether anything is recorded: for engines that would have to copy a tensor first.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.recording().is_some()
    }

    /// The recording, if there is one. Compiled out there is never one, and the compiler knows.
    #[inline(always)]
    fn recording(&self) -> Option<&Recording> {
        if cfg!(feature = "record") { self.recording.as_ref() } else { None }
    }

    /// Stores the token ids of the prefill in `dump.json`.
    pub fn tokens(&self, tokens: &[i64]) {
        self.describe(|meta| meta.tokens = Some(tokens.to_vec()));
    }

    /// Edits the other fields of `dump.json`: producer, model, precision, row order.
    pub fn describe(&self, edit: impl FnOnce(&mut Meta)) {
        if let Some(on) = self.recording() {
            edit(&mut on.state().meta);
        }
    }

    /// Begins the next decode step, which is fed `token`.
    pub fn next_step(&self, token: i64) {
        self.next_chunk(&[token]);
    }

    /// Begins the next step when it is fed several tokens: another chunk of the prompt.
    pub fn next_chunk(&self, tokens: &[i64]) {
        if let Some(on) = self.recording() {
            let mut state = on.state();
            state.step += 1;
            state.fed = tokens.len();
            state.meta.decode_tokens.get_or_insert_default().extend(tokens);
        }
    }

    /// Records `values`, row-major, as the tap `name` of shape `shape`.
    ///
    /// # Errors
    /// When the lengths differ, the tap was recorded before, the name cannot be that of a file, or writing fails.
    #[inline(always)]
    pub fn record<T: Element>(&self, name: impl Display, shape: &[usize], values: &[T]) -> Result<(), RecordError> {
        match self.recording() {
            Some(on) => on.record(name, shape, values, None),
            None => Ok(()),
        }
    }

    /// Records a tap that holds only the token positions `rows` of the step, as logits often do: `shape` and `values` are those of these rows.
    ///
    /// # Errors
    /// As [`Recorder::record`].
    #[inline(always)]
    pub fn record_rows<T: Element>(
        &self,
        name: impl Display,
        rows: Rows,
        shape: &[usize],
        values: &[T],
    ) -> Result<(), RecordError> {
        match self.recording() {
            Some(on) => on.record(name, shape, values, Some(rows)),
            None => Ok(()),
        }
    }

    /// Records an ndarray view of any layout as the tap `name`.
    ///
    /// # Errors
    /// As [`Recorder::record`].
    #[cfg(feature = "ndarray")]
    #[inline(always)]
    pub fn record_view<T: Element, D: ndarray::Dimension>(
        &self,
        name: impl Display,
        view: ndarray::ArrayView<'_, T, D>,
    ) -> Result<(), RecordError> {
        match self.recording() {
            Some(on) => on.record_view(name, view),
            None => Ok(()),
        }
    }

    /// Finishes the recording: `dump.json` is marked as complete.
    ///
    /// # Errors
    /// When writing fails, when a tap could not be recorded (the dump is then not complete), or when nothing matched the selection: an empty dump would
    /// look like a result.
    pub fn finish(self) -> Result<(), RecordError> {
        let Some(on) = self.recording() else { return Ok(()) };
        on.end(Ending::Finished)?;
        if let Some((count, first)) = on.state().failed.take() {
            return Err(RecordError::Lost { count, first });
        }
        let empty = on.state().meta.taps.as_ref().is_none_or(Vec::is_empty);
        match on.filter.description().filter(|_| empty) {
            Some(asked) => Err(RecordError::NoneMatched(asked)),
            None => Ok(()),
        }
    }
}

impl Recording {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // Kept out of the engine's hot code.
    #[cold]
    #[inline(never)]
    fn record<T: Element>(
        &self,
        name: impl Display,
        shape: &[usize],
        values: &[T],
        held: Option<Rows>,
    ) -> Result<(), RecordError> {
        let name = name.to_string();
        match byte_len(shape, T::DTYPE) == values.len().checked_mul(T::DTYPE.size()) {
            true => self.note_failure(self.write(name, shape, values, held)),
            false => self.note_failure(Err(RecordError::Shape { tap: name, shape: shape.to_vec(), len: values.len() })),
        }
    }

    #[cfg(feature = "ndarray")]
    #[cold]
    #[inline(never)]
    fn record_view<T: Element, D: ndarray::Dimension>(
        &self,
        name: impl Display,
        view: ndarray::ArrayView<'_, T, D>,
    ) -> Result<(), RecordError> {
        let (name, step) = (name.to_string(), self.state().step);
        if !self.filter.selects(&name, step) {
            // Not copied here either if its layout is not row-major.
            return Ok(());
        }
        self.note_failure(self.write(name, view.shape(), &crate::element::write::row_major(&view), None))
    }

    /// Counts a tap that could not be recorded: the dump is then not complete, whatever the engine does about the error.
    fn note_failure(&self, outcome: Result<(), RecordError>) -> Result<(), RecordError> {
        if let Err(error) = &outcome {
            let lost = &mut self.state().failed;
            lost.get_or_insert_with(|| (0, error.to_string())).0 += 1;
        }
        outcome
    }

    /// Writes one tap; `held` are the positions it already holds, if fewer than all.
    fn write<T: Element>(
        &self,
        name: String,
        shape: &[usize],
        values: &[T],
        held: Option<Rows>,
    ) -> Result<(), RecordError> {
        let cut = {
            let state = self.state();
            let prompt = state.meta.tokens.as_ref().map(Vec::len).filter(|_| state.step == 0);
            let tokens = if state.step == 0 { prompt } else { Some(state.fed) };
            let site = name.parse::<Tap>().ok().map(|tap| tap.site).filter(|_| held.is_none());
            site.and_then(|site| self.filter.positions(site, shape, tokens))
        };
        match cut {
            Some((_, rows)) if rows.is_empty() => Ok(()),
            Some((axis, rows)) => {
                let kept = select(values, shape, axis, &rows);
                let mut shape = shape.to_vec();
                shape[axis] = rows.len();
                self.write_rows(name, &shape, &kept, Some(Rows::List(rows)))
            }
            None => self.write_rows(name, shape, values, held),
        }
    }

    fn write_rows<T: Element>(
        &self,
        name: String,
        shape: &[usize],
        values: &[T],
        rows: Option<Rows>,
    ) -> Result<(), RecordError> {
        let entry = TapMeta {
            tap: name,
            step: 0,
            file: None,
            shape: Some(shape.to_vec()),
            dtype: Some(T::DTYPE),
            rows,
            dims: None,
        };
        let Some(file) = self.register(entry)? else { return Ok(()) };
        let written = write_whole(&self.folder.join(&file), |out| write_npy(shape, values, out));
        if written.is_err() {
            // A tap that could not be written must not be listed.
            self.state().meta.taps.get_or_insert_default().retain(|tap| tap.file.as_ref() != Some(&file));
        }
        written
    }

    /// Adds the tap to the list of the current step, once, and returns its file. `None`: it is not selected.
    fn register(&self, entry: TapMeta) -> Result<Option<String>, RecordError> {
        let mut state = self.state();
        let step = state.step;
        if !self.filter.selects(&entry.tap, step) {
            return Ok(None);
        }
        let Some(stem) = file_name(&entry.tap, step) else { return Err(RecordError::Name(entry.tap)) };
        let taps = state.meta.taps.get_or_insert_default();
        if taps.iter().rev().take_while(|t| t.step == step).any(|t| t.tap == entry.tap) {
            return Err(RecordError::Twice(stored_name(&entry.tap, step)));
        }
        if !state.has_json {
            let told = Meta { complete: Some(false), ..state.meta.clone() };
            self.write_json(&told)?;
            state.has_json = true;
        }
        let file = format!("{stem}.npy");
        state.meta.taps.get_or_insert_default().push(TapMeta { step, file: Some(file.clone()), ..entry });
        Ok(Some(file))
    }

    /// Writes `dump.json` with everything recorded. If finished, it is marked complete, unless a tap was lost or the engine marks it as incomplete.
    fn end(&self, end: Ending) -> Result<(), RecordError> {
        let mut state = self.state();
        state.finished = true;
        // Taps that another thread has claimed but not yet written do not count either.
        let folder = &self.folder;
        let written = |tap: &TapMeta| tap.file.as_ref().is_some_and(|file| folder.join(file).exists());
        state.meta.taps.get_or_insert_default().retain(written);
        let whole = state.failed.is_none() && !state.meta.is_incomplete();
        let by_itself = end == Ending::Dropped && whole && !std::thread::panicking();
        state.meta.complete = Some(end == Ending::Finished && whole);
        state.meta.ended_by_itself = by_itself.then_some(true);
        self.write_json(&state.meta)
    }

    fn write_json(&self, meta: &Meta) -> Result<(), RecordError> {
        write_whole(&self.folder.join("dump.json"), |out| {
            serde_json::to_writer_pretty(&mut *out, meta)?;
            out.write_all(b"\n")
        })
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if !self.state().finished {
            // The error cannot be reported here; if this fails, the file written before the first tap still says that the dump is not complete.
            let _ = self.end(Ending::Dropped);
        }
    }
}

/// Of row-major values of a shape, those whose index along `axis` is in `rows`; these must be within range.
fn select<T: Copy>(values: &[T], shape: &[usize], axis: usize, rows: &[usize]) -> Vec<T> {
    if values.is_empty() {
        return Vec::new();
    }
    let inner: usize = shape[axis + 1..].iter().product();
    let blocks = values.chunks(shape[axis] * inner);
    blocks.flat_map(|block| rows.iter().flat_map(move |row| &block[row * inner..][..inner])).copied().collect()
}

/// Writes a file under a temporary name and renames it, so that no reader sees half of it.
fn write_whole(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), RecordError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let written = File::create(&temporary).and_then(|file| {
        let mut out = BufWriter::new(file);
        write(&mut out)?;
        out.flush()?;
        drop(out);
        fs::rename(&temporary, path)
    });
    written.map_err(|source| {
        let _ = fs::remove_file(&temporary);
        RecordError::Io { path: path.into(), source }
    })
}

#[cfg(all(test, feature = "record"))]
mod tests {
    use super::*;

    #[test]
    fn rows_are_selected_along_any_axis() {
        let values: Vec<usize> = (0..24).collect();
        let shape = [2, 3, 4];
        assert_eq!(select(&values, &shape, 0, &[1]), (12..24).collect::<Vec<_>>());
        assert_eq!(select(&values, &shape, 1, &[0, 2]), [0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 20, 21, 22, 23]);
        assert_eq!(select(&values, &shape, 2, &[3]), [3, 7, 11, 15, 19, 23]);
        assert_eq!(select(&values[..0], &[5, 0, usize::MAX], 0, &[4]), [0; 0]);
    }

    #[test]
    fn the_shape_is_held_against_the_values() {
        let folder = tempfile::tempdir().unwrap();
        let rec = Recorder::create(folder.path()).unwrap();
        for shape in [&[2, 3][..], &[5], &[], &[usize::MAX, 2], &[1 << 32, 1 << 32]] {
            let error = rec.record("layers.0.h", shape, &[0f32; 4]).unwrap_err();
            assert!(matches!(error, RecordError::Shape { len: 4, .. }), "{shape:?}: {error}");
        }
        // No elements, and still too large for a reader.
        assert!(matches!(rec.record("h0", &[usize::MAX, 0], &[0f32; 0]), Err(RecordError::Shape { len: 0, .. })));
        rec.record("layers.0.h", &[2, 2], &[0f32; 4]).unwrap();
        rec.record("layers.0.k", &[0, 2], &[0f32; 0]).unwrap();
        assert!(matches!(rec.finish(), Err(RecordError::Lost { count: 6, .. })));
    }
}

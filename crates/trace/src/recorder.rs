//! How does an engine write a dump? A recorder of a few lines; off, it costs one branch a tap.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ndarray::{ArrayView, ArrayViewD, Dimension, IxDyn};
use ndarray_npy::WriteNpyError;

use crate::meta::{FORMAT, Meta, TapMeta, stored_name};
use crate::npy::Element;
use crate::tap::{Tap, TapError};

/// Why a tap could not be recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The name is not of the vocabulary.
    #[error(transparent)]
    Name(#[from] TapError),
    /// The slice does not have as many elements as the shape asks.
    #[error("{tap}: shape {shape:?} asks for other than the {len} elements given")]
    Shape {
        /// The tap.
        tap: Tap,
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
    /// Taps were chosen, and none of those recorded is among them.
    #[error("no recorded tap matches '{0}' (FIRSTDIFF_TAPS)")]
    NoneMatched(String),
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

/// Records named tensors of a running engine into a dump.
///
/// Every tap is written to a temporary name and renamed, so a crash leaves whole files only; `dump.json` follows at
/// [`Recorder::finish`], or when the recorder is dropped. Any thread may record.
///
/// ```
/// use firstdiff_trace::{Dump, Recorder};
/// # let folder = tempfile::tempdir()?;
/// # let out = folder.path().join("dump");
/// let rec = Recorder::create(&out)?;
/// rec.tokens(&[1, 17]);
/// let q = [0.1f32, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8];
/// for layer in 0..1 {
///     rec.record(format_args!("layers.{layer}.q"), &[2, 2, 2], &q)?;
/// }
/// rec.finish()?;
/// assert_eq!(Dump::open(&out)?.entries()[0].shape, [2, 2, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Recorder {
    on: Option<Recording>,
}

#[derive(Debug)]
struct Recording {
    folder: PathBuf,
    taps: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    meta: Meta,
    step: u32,
    finished: bool,
}

impl Recorder {
    /// A recorder that records nothing.
    pub fn off() -> Recorder {
        Recorder::default()
    }

    /// A recorder into `folder`, which is created.
    ///
    /// # Errors
    /// When the folder cannot be made, or already holds a dump.
    pub fn create(folder: impl AsRef<Path>) -> Result<Recorder, RecordError> {
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
        Ok(Recorder { on: Some(Recording { folder, taps: "*".into(), state }) })
    }

    /// A recorder into the folder `FIRSTDIFF_DIR`, of the taps `FIRSTDIFF_TAPS` (patterns; default all); off where
    /// `FIRSTDIFF_DIR` is not set.
    ///
    /// # Errors
    /// As [`Recorder::create`].
    pub fn from_env() -> Result<Recorder, RecordError> {
        let Some(folder) = std::env::var_os("FIRSTDIFF_DIR") else { return Ok(Recorder::off()) };
        let recorder = Recorder::create(folder)?;
        Ok(match std::env::var("FIRSTDIFF_TAPS") {
            Ok(taps) => recorder.only(&taps),
            Err(_) => recorder,
        })
    }

    /// Records only the taps that `patterns` name, e.g. `layers.*.h,logits`.
    #[must_use]
    pub fn only(mut self, patterns: &str) -> Recorder {
        if let Some(on) = &mut self.on {
            on.taps = patterns.to_owned();
        }
        self
    }

    /// Whether anything is recorded: for engines that would have to copy a tensor first.
    pub fn is_on(&self) -> bool {
        self.on.is_some()
    }

    /// Notes the token ids of the prefill.
    pub fn tokens(&self, tokens: &[i64]) {
        self.describe(|meta| meta.tokens = Some(tokens.to_vec()));
    }

    /// Notes anything else `dump.json` can hold: producer, model, precision, row order.
    pub fn describe(&self, edit: impl FnOnce(&mut Meta)) {
        if let Some(on) = &self.on {
            edit(&mut on.state().meta);
        }
    }

    /// Begins the next decode step, which is fed `token`.
    pub fn next_step(&self, token: i64) {
        if let Some(on) = &self.on {
            let mut state = on.state();
            state.step += 1;
            state.meta.decode_tokens.get_or_insert_default().push(token);
        }
    }

    /// Records `values`, row-major, as the tap `name` of shape `shape`.
    ///
    /// # Errors
    /// When the name is no tap, the lengths differ, the tap was recorded before, or the disk refuses.
    pub fn record<T: Element>(&self, name: impl Display, shape: &[usize], values: &[T]) -> Result<(), RecordError> {
        let Some(on) = &self.on else { return Ok(()) };
        let tap: Tap = name.to_string().parse()?;
        let err = || RecordError::Shape { tap, shape: shape.to_vec(), len: values.len() };
        let view = ArrayViewD::from_shape(IxDyn(shape), values).map_err(|_| err())?;
        if view.len() != values.len() {
            return Err(err());
        }
        on.write(tap, view)
    }

    /// Records an ndarray view of any layout as the tap `name`.
    ///
    /// # Errors
    /// As [`Recorder::record`].
    pub fn record_view<T: Element, D: Dimension>(
        &self,
        name: impl Display,
        view: ArrayView<'_, T, D>,
    ) -> Result<(), RecordError> {
        let Some(on) = &self.on else { return Ok(()) };
        on.write(name.to_string().parse()?, view)
    }

    /// Writes `dump.json` and ends the recording.
    ///
    /// # Errors
    /// When the disk refuses, or when nothing matched the taps asked for: an empty dump would say nothing and look like one.
    pub fn finish(self) -> Result<(), RecordError> {
        let Some(on) = &self.on else { return Ok(()) };
        on.write_meta()?;
        let empty = on.state().meta.taps.as_ref().is_none_or(Vec::is_empty);
        match empty && on.taps != "*" {
            true => Err(RecordError::NoneMatched(on.taps.clone())),
            false => Ok(()),
        }
    }
}

impl Recording {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write<T: Element, D: Dimension>(&self, tap: Tap, view: ArrayView<'_, T, D>) -> Result<(), RecordError> {
        if !tap.matches(&self.taps) {
            return Ok(());
        }
        let (name, shape) = (tap.to_string(), view.shape().to_vec());
        let step = self.claim(&name, shape, T::DTYPE)?;
        let file = format!("{}.npy", stored_name(&name, step));
        write_whole(&self.folder.join(file), |out| {
            T::write_npy(view, out).map_err(|e| match e {
                WriteNpyError::Io(e) => e,
                other => io::Error::other(other.to_string()),
            })
        })
    }

    /// Enters the tap into the list of the current step, once.
    fn claim(&self, name: &str, shape: Vec<usize>, dtype: crate::DType) -> Result<u32, RecordError> {
        let mut state = self.state();
        let step = state.step;
        let taps = state.meta.taps.get_or_insert_default();
        if taps.iter().rev().take_while(|t| t.step == step).any(|t| t.tap == name) {
            return Err(RecordError::Twice(stored_name(name, step)));
        }
        let file = Some(format!("{}.npy", stored_name(name, step)));
        taps.push(TapMeta {
            tap: name.into(),
            step,
            file,
            shape: Some(shape),
            dtype: Some(dtype),
            rows: None,
            dims: None,
        });
        Ok(step)
    }

    fn write_meta(&self) -> Result<(), RecordError> {
        let mut state = self.state();
        state.finished = true;
        // A tap that was claimed and could not be written must not be promised.
        let folder = &self.folder;
        let written = |tap: &TapMeta| tap.file.as_ref().is_some_and(|file| folder.join(file).exists());
        state.meta.taps.get_or_insert_default().retain(written);
        write_whole(&self.folder.join("dump.json"), |out| {
            serde_json::to_writer_pretty(&mut *out, &state.meta)?;
            out.write_all(b"\n")
        })
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if !self.state().finished {
            // Nobody is left to tell; a folder without dump.json is a dump too.
            let _ = self.write_meta();
        }
    }
}

/// Writes a file under a temporary name and renames it, so that nobody ever sees half of it.
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

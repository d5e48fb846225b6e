//! Asks an engine for a few taps at a time, and keeps what it has written so far. Shared by `bisect` and `explain --run`.

pub(crate) mod engine;
pub(crate) mod evidence;
pub(crate) mod keeper;
pub(crate) mod kept_runs;
pub(crate) mod render;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use firstdiff_compare::{Extent, Place, Profile, allowed_nmse};
use firstdiff_trace::{DType, Meta, Tap};

use crate::driver::engine::{Engine, EngineFailure, EngineRun, Question};
use crate::driver::evidence::{CollectedTaps, size};
use crate::driver::kept_runs::{KeptRuns, KeptRunsCheck, compared};
use crate::render::screen::Screen;

/// How much two runs of one engine may differ and still be judged, as a share of a tap's tolerance.
const NOISE: f64 = 0.1;

const MARK: &str = "firstdiff-bisect.txt";
const FINISHED: &str = "finished";

/// The engine, and how it is to be run.
#[derive(Clone, Debug)]
pub(crate) struct EngineOptions {
    /// Its command line, for the shell.
    pub(crate) command: String,
    /// Seconds that a run may take.
    pub(crate) timeout: f64,
    /// Folder for the runs.
    pub(crate) work: PathBuf,
    /// Whether runs of an earlier start are ignored.
    pub(crate) fresh: bool,
}

impl EngineOptions {
    /// Refuses an invalid time limit.
    ///
    /// # Errors
    /// When it is not above 0.
    pub(crate) fn check(&self) -> Result<()> {
        if !(self.timeout > 0.0 && self.timeout < 1e9) {
            bail!("--timeout {}: a number of seconds above 0 is asked", self.timeout);
        }
        Ok(())
    }

    /// Makes the work folder, or empties it of what an earlier start left, except for the runs of one that was interrupted.
    ///
    /// # Errors
    /// When it holds something else, or cannot be written.
    pub(crate) fn open_work(&self) -> Result<()> {
        let work = &self.work;
        let strange = work.exists() && !work.join(MARK).exists();
        let holds_any = || std::fs::read_dir(work).map(|mut entries| entries.next().is_some());
        if strange && holds_any().with_context(|| work.display().to_string())? {
            bail!("--work {}: holds something else; name a folder that is new or empty", work.display());
        }
        let runs = work.join("runs");
        std::fs::create_dir_all(work).with_context(|| work.display().to_string())?;
        let mark = work.join(MARK);
        std::fs::write(&mark, "Runs of an engine that firstdiff asked; may be removed.\n")
            .with_context(|| mark.display().to_string())?;
        if self.fresh || work.join(FINISHED).exists() {
            let _ = std::fs::remove_dir_all(&runs);
            let _ = std::fs::remove_file(work.join(FINISHED));
        }
        for folder in ["evidence", "reference"] {
            let _ = std::fs::remove_dir_all(work.join(folder));
        }
        std::fs::create_dir_all(&runs).with_context(|| runs.display().to_string())
    }
}

/// A run as it is reported.
pub(crate) struct RunSummary {
    pub(crate) question: Question,
    pub(crate) why: &'static str,
    pub(crate) kept: bool,
    pub(crate) seconds: f64,
    pub(crate) bytes: u64,
    pub(crate) written: Vec<Place>,
    /// What it shows.
    pub(crate) result: String,
}

impl RunSummary {
    /// A run that wrote these places.
    pub(crate) fn new(run: &EngineRun, question: &Question, why: &'static str, written: Vec<Place>) -> RunSummary {
        let bytes = run.entries.iter().map(size).sum();
        let (kept, seconds) = (run.kept, run.seconds);
        RunSummary { question: question.clone(), why, kept, seconds, bytes, written, result: String::new() }
    }

    /// The requested taps that it did not write.
    pub(crate) fn missing(&self) -> impl Iterator<Item = Tap> + '_ {
        self.question.taps.iter().copied().filter(|tap| !self.written.iter().any(|place| place.tap == *tap))
    }
}

/// An engine, and what it has written so far.
pub(crate) struct Driver {
    pub(crate) engine: Engine,
    pub(crate) evidence: CollectedTaps,
    pub(crate) runs: Vec<RunSummary>,
    /// What was done with the runs of an earlier start.
    pub(crate) kept_runs: Option<KeptRuns>,
    /// Taps that were requested and not written.
    pub(crate) absent: BTreeSet<Tap>,
    /// Folder for all that is written.
    pub(crate) work: PathBuf,
    quiet: bool,
}

/// What was done with the runs of an earlier start.
pub(crate) enum EarlierRuns {
    /// There are none.
    None,
    /// They may be used.
    Usable,
    /// They may not be used.
    Useless(KeptRunsCheck),
    /// The one that was to be repeated failed.
    Failed(EngineFailure),
}

impl Driver {
    /// An engine that has not been asked yet.
    pub(crate) fn new(asking: &EngineOptions, feed: Vec<(&'static str, String)>, quiet: bool) -> Driver {
        let engine = Engine {
            command: asking.command.clone(),
            timeout: Duration::from_secs_f64(asking.timeout),
            runs: asking.work.join("runs"),
            last_seconds: Cell::new(None),
            feed,
        };
        Driver {
            engine,
            evidence: CollectedTaps::default(),
            runs: Vec::new(),
            kept_runs: None,
            absent: BTreeSet::new(),
            work: asking.work.clone(),
            quiet,
        }
    }

    /// Prints, unless the output is for a program.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub(crate) fn print(&self, text: &Screen) -> Result<()> {
        if self.quiet { Ok(()) } else { crate::output::print(text.as_str()) }
    }

    /// Repeats the last run of an earlier start, which is nearest to its answer.
    ///
    /// # Errors
    /// When a folder cannot be read or written.
    pub(crate) fn repeat_last_run(&mut self) -> Result<EarlierRuns> {
        let runs = self.engine.kept_runs();
        let Some(last) = runs.last() else { return Ok(EarlierRuns::None) };
        let mut bytes = 0;
        let looked = self.engine.repeat(last, |kept, again| {
            bytes = again.all_entries().iter().map(size).sum();
            compared(kept, again)
        })?;
        let trust = match looked {
            Ok(trust) => trust,
            Err(EngineFailure::Others(..) | EngineFailure::Silent(..)) => KeptRunsCheck::Otherwise,
            Err(failure) => return Ok(EarlierRuns::Failed(failure)),
        };
        self.evidence.bytes += bytes;
        self.kept_runs = KeptRuns::new(&runs, KeptRunsCheck::Same);
        Ok(match trust {
            KeptRunsCheck::Same => EarlierRuns::Usable,
            other => EarlierRuns::Useless(other),
        })
    }

    /// Starts again without the runs of an earlier start, and notes why.
    ///
    /// # Errors
    /// When the folder of the runs cannot be emptied.
    pub(crate) fn discard(&mut self, why: KeptRunsCheck) -> Result<()> {
        self.engine.remove_earlier_runs()?;
        let bytes = self.evidence.bytes;
        self.evidence = CollectedTaps::default();
        self.evidence.bytes = bytes;
        self.runs.clear();
        if let Some(kept) = &mut self.kept_runs {
            kept.trust = why;
        }
        Ok(())
    }

    /// Whether any run that was used is of an earlier start.
    pub(crate) fn uses_earlier_runs(&self) -> bool {
        self.runs.iter().any(|run| run.kept)
    }

    /// Marks that there is an answer: the bisection was not interrupted, and the next start begins anew.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub(crate) fn finish(&self) -> Result<()> {
        let finished = self.work.join(FINISHED);
        std::fs::write(&finished, "").with_context(|| finished.display().to_string())
    }
}

/// How much two runs of one engine may differ at a tap.
pub(crate) fn noise(profile: Profile, extent: Extent) -> impl Fn(Tap, DType) -> f64 {
    move |tap, dtype| NOISE * allowed_nmse(profile, tap, extent, [dtype; 2])
}

/// The tokens that an engine is given in its environment: the requested ones, else those that a run was fed.
pub(crate) fn engine_tokens(
    tokens: Option<&[u32]>,
    decode_tokens: Option<&[u32]>,
    meta: Option<&Meta>,
) -> Vec<(&'static str, String)> {
    fn text<T: ToString>(ids: &[T]) -> String {
        ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
    let list = |asked: Option<&[u32]>, recorded: Option<&Vec<i64>>| {
        asked.map(text).or_else(|| recorded.map(|ids| text(ids.as_slice())))
    };
    let tokens = list(tokens, meta.and_then(|meta| meta.tokens.as_ref()));
    let decoded = list(decode_tokens, meta.and_then(|meta| meta.decode_tokens.as_ref()));
    [("FIRSTDIFF_TOKENS", tokens), ("FIRSTDIFF_DECODE_TOKENS", decoded)]
        .into_iter()
        .filter_map(|(name, ids)| Some((name, ids?)))
        .collect()
}

//! Runs an engine through the shell for a few taps, watches it, and keeps the run once it is complete.

use std::cell::Cell;
use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use firstdiff_trace::{Dump, DumpError, Entry, NamedRows, OpenOptions, Rows, Tap, tap_names};
use serde_json::{Value, json};

use crate::driver::keeper::Keeper;
use crate::progress::Bar;
use crate::session::incomplete::Incomplete;
use crate::words::{safe, shorten};

/// A step beyond those of any engine.
pub(crate) const ANY_STEP: u32 = u32::MAX;

/// What a run is asked to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) taps: Vec<Tap>,
    /// The first and the last step.
    pub(crate) steps: (u32, u32),
    pub(crate) rows: Rows,
}

impl Question {
    pub(crate) fn taps_text(&self) -> String {
        self.taps.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }

    pub(crate) fn steps_text(&self) -> String {
        let (first, last) = self.steps;
        if last == ANY_STEP {
            return "all".into();
        }
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    }

    /// The question that a kept run answers, parsed from its texts.
    fn parse(fields: &Value) -> Option<Question> {
        let text = |name: &str| fields[name].as_str();
        let taps: Option<Vec<Tap>> = text("taps")?.split(',').map(|tap| tap.parse().ok()).collect();
        let steps = match text("steps")? {
            "all" => (0, ANY_STEP),
            list => {
                let (first, last) = list.split_once('-').unwrap_or((list, list));
                (first.parse().ok()?, last.parse().ok()?)
            }
        };
        Some(Question { taps: taps?, steps, rows: text("rows")?.parse().ok()? })
    }

    pub(crate) fn rows_text(&self) -> String {
        match &self.rows {
            Rows::Named(NamedRows::All) => "all".into(),
            Rows::Named(NamedRows::Last) => "last".into(),
            Rows::List(list) => list.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        }
    }
}

/// Why a run is of no use.
#[derive(Debug)]
pub(crate) enum EngineFailure {
    /// It ended with this status; these were its last lines.
    Status(String, Vec<String>),
    /// It did not end within this many seconds.
    Hung(f64, Vec<String>),
    /// It wrote no dump, and why.
    Silent(String, Vec<String>),
    /// It ended successfully, but left a recording that was not finished.
    Torn(String, Vec<String>),
    /// It wrote these names, none of them requested.
    Others(String, Vec<String>),
}

impl fmt::Display for EngineFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, stderr) = match self {
            EngineFailure::Status(status, said) => (format!("the engine failed: {status}"), said),
            EngineFailure::Hung(seconds, said) => {
                (format!("the engine did not end within {seconds} s and was stopped (--timeout)"), said)
            }
            EngineFailure::Silent(why, said) => (
                format!(
                    "the engine ended well and wrote nothing that can be read into FIRSTDIFF_DIR ({why}): does it have a recorder, \
                     and is it compiled in?"
                ),
                said,
            ),
            EngineFailure::Torn(incomplete, said) => (
                format!("the engine ended well, and {incomplete}: was what records killed behind the shell's back?"),
                said,
            ),
            EngineFailure::Others(asked, wrote) => {
                let wrote: Vec<String> = wrote.iter().map(|name| safe(name)).collect();
                return write!(f, "the engine wrote none of the taps asked for ({asked}), but {}", shorten(&wrote, 6));
            }
        };
        match stderr.is_empty() {
            true => f.write_str(&what),
            false => {
                write!(f, "{what}; its last words: {}", stderr.iter().map(|l| safe(l)).collect::<Vec<_>>().join(" | "))
            }
        }
    }
}

/// A run that an earlier start made and that was not used up.
#[derive(Debug)]
pub(crate) struct KeptRun {
    pub(crate) question: Question,
    pub(crate) folder: PathBuf,
    pub(crate) made: SystemTime,
}

/// A run that ended successfully.
#[derive(Debug)]
pub(crate) struct EngineRun {
    pub(crate) question: Question,
    pub(crate) dump: Dump,
    /// All that it holds of the vocabulary, and the other requested taps.
    pub(crate) entries: Vec<Entry>,
    /// Whether an earlier start made it.
    pub(crate) kept: bool,
    pub(crate) seconds: f64,
}

/// The engine's command, and where its runs are kept.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) command: String,
    pub(crate) timeout: Duration,
    /// The folder with one folder for each run.
    pub(crate) runs: PathBuf,
    /// How many seconds the previous run took.
    pub(crate) last_seconds: Cell<Option<usize>>,
    /// FIRSTDIFF_TOKENS and FIRSTDIFF_DECODE_TOKENS, as far as the tokens are known.
    pub(crate) feed: Vec<(&'static str, String)>,
}

impl Engine {
    /// Runs the engine, or uses the run that an earlier start made for the same question. `turn` numbers repetitions, which are always run.
    ///
    /// # Errors
    /// When the folder cannot be written, or there is no shell.
    pub(crate) fn ask(&self, question: &Question, turn: usize) -> Result<Result<EngineRun, EngineFailure>> {
        let key = self.run_key(question, turn);
        let folder = self.runs.join(format!("{:016x}", fnv(key.as_bytes())));
        if turn == 0
            && fs::read_to_string(folder.join("asked.json")).is_ok_and(|text| text == key)
            && let Ok(dump) = open(&folder.join("dump"), &question.taps)
        {
            return Ok(Ok(EngineRun {
                entries: entries(&dump, question),
                question: question.clone(),
                dump,
                kept: true,
                seconds: 0.0,
            }));
        }
        let making = self.runs.join(format!("{:016x}.{}.tmp", fnv(key.as_bytes()), std::process::id()));
        let seconds = match self.start_run(question, &making)? {
            Ok(seconds) => seconds,
            Err(failure) => {
                let _ = fs::remove_dir_all(&making);
                return Ok(Err(failure));
            }
        };
        fs::write(making.join("asked.json"), key).with_context(|| making.display().to_string())?;
        let _ = fs::remove_dir_all(&folder);
        fs::rename(&making, &folder).with_context(|| folder.display().to_string())?;
        let dump = open(&folder.join("dump"), &question.taps)?;
        Ok(Ok(EngineRun { entries: entries(&dump, question), question: question.clone(), dump, kept: false, seconds }))
    }

    /// Makes a run in a folder of its own, and returns how many seconds it took.
    fn start_run(&self, question: &Question, folder: &Path) -> Result<Result<f64, EngineFailure>> {
        fs::create_dir_all(folder.join("dump")).with_context(|| folder.display().to_string())?;
        let began = Instant::now();
        let outcome = self.run(question, folder)?;
        let seconds = began.elapsed().as_secs_f64();
        self.last_seconds.set(outcome.is_ok().then_some(seconds.ceil() as usize));
        Ok(outcome.and_then(|()| written(question, folder)).map(|()| seconds))
    }

    /// Makes a kept run again and passes it to `look`; it is deleted afterwards.
    ///
    /// # Errors
    /// As [`Engine::ask`], and as `look`.
    pub(crate) fn repeat<T>(
        &self,
        kept: &KeptRun,
        look: impl FnOnce(&Dump, &Dump) -> Result<T>,
    ) -> Result<Result<T, EngineFailure>> {
        let making = self.runs.join(format!("again.{}.tmp", std::process::id()));
        let looked = match self.start_run(&kept.question, &making)? {
            Ok(_) => {
                let [first, again] = [&kept.folder, &making].map(|made| open(&made.join("dump"), &kept.question.taps));
                look(&first?, &again?).map(Ok)
            }
            Err(failure) => Ok(Err(failure)),
        };
        let _ = fs::remove_dir_all(&making);
        looked
    }

    /// The runs that an earlier start made with this command and the same tokens, oldest first.
    pub(crate) fn kept_runs(&self) -> Vec<KeptRun> {
        let folders = fs::read_dir(&self.runs).into_iter().flatten().flatten().map(|entry| entry.path());
        let run = |folder: PathBuf| {
            let text = fs::read_to_string(folder.join("asked.json")).ok()?;
            let question = Question::parse(&serde_json::from_str(&text).ok()?)?;
            let written_at = fs::metadata(folder.join("asked.json")).and_then(|meta| meta.modified()).ok()?;
            let usable = self.run_key(&question, 0) == text && Dump::open(folder.join("dump")).is_ok();
            usable.then_some(KeptRun { question, folder, made: written_at })
        };
        let mut runs: Vec<KeptRun> = folders.filter_map(run).collect();
        runs.sort_by(|a, b| (a.made, &a.folder).cmp(&(b.made, &b.folder)));
        runs
    }

    /// Removes all runs that an earlier start made.
    ///
    /// # Errors
    /// When the folder cannot be emptied.
    pub(crate) fn remove_earlier_runs(&self) -> Result<()> {
        fs::remove_dir_all(&self.runs)
            .and_then(|()| fs::create_dir_all(&self.runs))
            .with_context(|| self.runs.display().to_string())
    }

    /// The identity of a run. The files that the command names are part of it: an engine that was rebuilt is another one.
    fn run_key(&self, question: &Question, turn: usize) -> String {
        let files: Vec<_> = self.command.split_whitespace().filter_map(stamp).collect();
        json!({
            "command": self.command, "files": files, "taps": question.taps_text(), "steps": question.steps_text(),
            "rows": question.rows_text(), "turn": turn, "feed": self.feed,
        })
        .to_string()
    }

    fn run(&self, question: &Question, folder: &Path) -> Result<Result<(), EngineFailure>> {
        let absolute = std::path::absolute(folder.join("dump"))?;
        let environment = |command: &mut Command| {
            command.env("FIRSTDIFF_DIR", absolute).env("FIRSTDIFF_TAPS", question.taps_text());
            command.envs(self.feed.iter().map(|(name, ids)| (name, ids)));
            for (name, text, all) in
                [("FIRSTDIFF_STEPS", question.steps_text(), "all"), ("FIRSTDIFF_ROWS", question.rows_text(), "all")]
            {
                // The engine need not understand a variable that restricts nothing.
                if text == all {
                    command.env_remove(name)
                } else {
                    command.env(name, text)
                };
            }
        };
        let mut keeper = Keeper::start(&self.command, folder, environment).context("the engine cannot be started")?;
        let (began, bar) = (Instant::now(), Bar::with_text());
        let (taps, limit) = (shorten(&names(question), 3), self.timeout.as_secs());
        let what = format!("the engine runs for {taps} (--timeout {limit}), seconds");
        let ended = loop {
            if let Some(status) = keeper.try_status()? {
                break Some(status);
            }
            if began.elapsed() >= self.timeout {
                break None;
            }
            bar.update(&what, began.elapsed().as_secs() as usize, self.last_seconds.get());
            // A fast engine is checked often, a slow one rarely.
            std::thread::sleep((began.elapsed() / 20).clamp(Duration::from_millis(2), Duration::from_millis(100)));
        };
        drop(keeper);
        bar.finish();
        let stderr = last_lines(&folder.join("stderr"));
        Ok(match ended {
            None => Err(EngineFailure::Hung(self.timeout.as_secs_f64(), stderr)),
            Some(status) if !status.success() => Err(EngineFailure::Status(status.to_string(), stderr)),
            Some(_) => Ok(()),
        })
    }
}

/// The requested taps, and every tap of the vocabulary. Which rows an engine writes of other taps that were not requested is unknown.
fn entries(dump: &Dump, question: &Question) -> Vec<Entry> {
    let mut all = dump.all_entries();
    all.retain(|entry| !entry.tap.is_open() || question.taps.contains(&entry.tap));
    all
}

/// The dump of an engine that was asked for some taps: these names are those taps.
pub(crate) fn open<'t>(folder: &Path, taps: impl IntoIterator<Item = &'t Tap>) -> Result<Dump, DumpError> {
    let reference = Some(Arc::new(tap_names(taps.into_iter().copied())));
    Dump::open_with(folder, &OpenOptions { reference, ..OpenOptions::default() })
}

fn names(question: &Question) -> Vec<String> {
    question.taps.iter().map(ToString::to_string).collect()
}

/// Whether a dump was written with something in it that was requested.
fn written(question: &Question, folder: &Path) -> Result<(), EngineFailure> {
    let dump = folder.join("dump");
    let stderr = || last_lines(&folder.join("stderr"));
    if fs::read_dir(&dump).map_or(true, |mut entries| entries.next().is_none()) {
        return Err(EngineFailure::Silent("it is empty".into(), stderr()));
    }
    let opened = match open(&dump, &question.taps) {
        Ok(opened) => opened,
        Err(error) => {
            let error = error.to_string().replace(&*dump.to_string_lossy(), "FIRSTDIFF_DIR");
            return Err(EngineFailure::Silent(error, stderr()));
        }
    };
    // An engine that ended by itself and successfully is done, even without finish().
    if opened.meta().ended_by_itself != Some(true)
        && let Some(incomplete) = Incomplete::find_in(&[("its", &opened)], None).notes().next()
    {
        return Err(EngineFailure::Torn(incomplete.replace(&*dump.to_string_lossy(), "FIRSTDIFF_DIR"), stderr()));
    }
    if opened.all_entries().iter().any(|e| question.taps.contains(&e.tap)) {
        return Ok(());
    }
    let mut wrote: Vec<String> = opened.entries().iter().map(|e| e.tap.to_string()).collect();
    wrote.extend(opened.unmapped().iter().cloned());
    wrote.dedup();
    match wrote.is_empty() {
        true => Err(EngineFailure::Silent("it holds no tensor".into(), stderr())),
        false => Err(EngineFailure::Others(question.taps_text(), wrote)),
    }
}

/// The last few lines of a file, of which only the end is read.
fn last_lines(path: &Path) -> Vec<String> {
    const MOST: usize = 5;
    const LONG: usize = 300;
    const END: u64 = 1 << 14;
    let end = || {
        let mut file = File::open(path)?;
        let from = file.metadata()?.len().saturating_sub(END);
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(END).read_to_end(&mut bytes)?;
        std::io::Result::Ok(bytes)
    };
    let bytes = end().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(MOST)..].iter().map(|line| line.chars().take(LONG).collect()).collect()
}

/// Name, size and time of a file that a word of the command names.
fn stamp(word: &str) -> Option<(String, u64, u128)> {
    let word = word.trim_matches(['\'', '"']);
    let meta = fs::metadata(word).ok().filter(fs::Metadata::is_file)?;
    let time = meta.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some((word.to_owned(), meta.len(), time.as_nanos()))
}

/// FNV-1a: a name that stays the same from one version of Rust to the next.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

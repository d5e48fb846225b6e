//! Asks an engine for more taps (`explain --run`): layer by layer what divides a wrong span, until single operations are wrong or nothing more can be asked.

use std::path::Path;

use anyhow::{Context, Result, bail};
use firstdiff_compare::{CHOICE, Extent, Place, Profile, number};
use firstdiff_trace::{Dump, NamedRows, Rows, Tap};

use crate::driver::engine::{ANY_STEP, EngineFailure, EngineRun, Question};
use crate::driver::evidence::UnrepeatedTap;
use crate::driver::kept_runs::KeptRunsCheck;
use crate::driver::render::{heading, kept_runs_note, nondeterminism_text, run_line, run_result};
use crate::driver::{Driver, EarlierRuns, EngineOptions, RunSummary, engine_tokens, noise};
use crate::report;
use crate::session::arithmetic::precision;
use crate::session::incomplete::Incomplete;
use crate::session::is_recorded;
use crate::session::next_taps::{TapsToRecord, next_taps, outline_taps};
use crate::session::reading::ReadingArgs;
use crate::session::replay::ReplaySession;
use crate::session::source::CandidateArgs;
use crate::session::source::taps_of;

/// The most runs: the ends, the layers, one layer, the other layers of its kind, and the same for a second mistake and a third.
const MOST_RUNS: usize = 10;

/// An engine that was asked for taps, and the dump of all that it wrote.
pub(crate) struct EngineSearch {
    driver: Driver,
    notes: Vec<String>,
    /// The candidate: all that was written.
    pub(crate) candidate: CandidateArgs,
}

/// Asks until single operations are wrong, everything is right, or nothing more can be asked.
///
/// # Errors
/// When the engine fails, does not give the same result twice, or wrote something that cannot be judged.
pub(crate) fn ask(args: &CandidateArgs, asking: &EngineOptions, quiet: bool) -> Result<EngineSearch> {
    asking.check()?;
    if args.reading.sequence.is_some() {
        bail!("--sequence: an engine is asked for a run of one sequence; leave it out with --run");
    }
    let given = args.candidate.as_deref().map(|path| args.reading.open(path)).transpose()?;
    if let Some(dump) = &given
        && let Some(note) = Incomplete::find_in(&[("the candidate", dump)], None).notes().next()
    {
        bail!("{note}: leave it out, and the engine is asked for all");
    }
    let golden = is_recorded(&args.model).then(|| Dump::open(&args.model)).transpose()?;
    let meta = given.as_ref().or(golden.as_ref()).map(Dump::meta);
    let fed = engine_tokens(args.tokens.as_deref(), args.decode_tokens.as_deref(), meta);
    let begin = match &given {
        Some(_) => None,
        None => Some(TapsToRecord { taps: first(&taps_of(&args.model)?), why: "which layers are wrong" }),
    };
    let given = given.map(|dump| {
        let entries = dump.all_entries();
        let question = whole(entries.iter().map(|entry| entry.tap).collect());
        EngineRun { question, dump, entries, kept: true, seconds: 0.0 }
    });
    asking.open_work()?;
    let driver = Driver::new(asking, fed, quiet);
    driver.print(&heading("model", &args.model, &driver))?;
    let evidence = asking.work.join("evidence");
    let mut search = EngineSearch {
        driver,
        notes: Vec::new(),
        candidate: CandidateArgs { candidate: Some(evidence), ..args.clone() },
    };
    // The names that the engine writes are taps, and so are those in the collected dump.
    search.candidate.reading = ReadingArgs { partial: args.reading.partial, ..ReadingArgs::default() };
    match search.driver.repeat_last_run()? {
        EarlierRuns::None => {}
        EarlierRuns::Usable => search.driver.print(&kept_runs_note(&search.driver))?,
        EarlierRuns::Useless(trust) => search.discard(trust)?,
        EarlierRuns::Failed(failure) => bail!("{failure}"),
    }
    let mut wavering = search.search(given.as_ref(), begin.as_ref())?;
    if let Some(found) = wavering.take_if(|_| search.driver.uses_earlier_runs()) {
        search.discard(KeptRunsCheck::Differs(found.place))?;
        wavering = search.search(given.as_ref(), begin.as_ref())?;
    }
    if let Some(found) = wavering {
        let of_given = args.candidate.as_deref().filter(|_| search.driver.runs.len() == 1);
        bail!("{}", of_given.map_or_else(|| nondeterminism_text(&found), |path| other_run(path, &found)));
    }
    Ok(search)
}

/// The message that an engine does not give what a dump of it holds.
fn other_run(candidate: &Path, wavering: &UnrepeatedTap) -> String {
    format!(
        "the engine does not write what {} holds of {} (NMSE {}, max |d| {}): another build, other tokens, or an engine that is not deterministic; leave the \
         dump out, and the engine is asked for all",
        candidate.display(),
        wavering.place,
        number(wavering.nmse),
        number(wavering.max_abs_diff)
    )
}

impl EngineSearch {
    fn discard(&mut self, why: KeptRunsCheck) -> Result<()> {
        self.driver.discard(why)?;
        self.driver.print(&kept_runs_note(&self.driver))
    }

    /// Asks run by run; returns the place where two runs differ, if there is one.
    fn search(&mut self, given: Option<&EngineRun>, begin: Option<&TapsToRecord>) -> Result<Option<UnrepeatedTap>> {
        (self.driver.absent, self.notes) = Default::default();
        if let Some(run) = given {
            let (own, bytes) = (self.extent(run), self.driver.evidence.bytes);
            self.driver.evidence.add_run(run, own, |_, _| 0.0)?;
            // The engine did not write it in this start.
            self.driver.evidence.bytes = bytes;
        }
        let mut wanted = begin.cloned();
        loop {
            if wanted.is_none() {
                let session = self.judged()?;
                wanted = self.next_taps(&session);
            }
            let Some(TapsToRecord { taps, why }) = wanted.take() else { return Ok(None) };
            let question = whole(taps);
            let run = match self.driver.engine.ask(&question, 0)? {
                Ok(run) => run,
                // The engine may not be able to write its other taps: its other runs still show something.
                Err(EngineFailure::Others(..) | EngineFailure::Silent(..))
                    if !self.driver.runs.is_empty() || given.is_some() =>
                {
                    self.driver.absent.extend(&question.taps);
                    continue;
                }
                Err(failure) => bail!("{failure}"),
            };
            let own = self.extent(&run);
            let profile = self.candidate.profile.or(precision(&run.dump).ok().flatten()).unwrap_or(Profile::F32);
            let layers = question.taps.iter().filter_map(|tap| tap.layer).max().map_or(1, |last| last + 1);
            let noise = noise(profile, Extent { layers, positions: own.0 });
            let wavering = self.driver.evidence.add_run(&run, own, noise)?;
            let written = run.entries.iter().map(|entry| Place { step: entry.step, tap: entry.tap }).collect();
            self.driver.runs.push(RunSummary::new(&run, &question, why, written));
            if wavering.is_some() {
                return Ok(wavering);
            }
            let missing: Vec<Tap> = self.driver.runs.last().into_iter().flat_map(RunSummary::missing).collect();
            self.driver.absent.extend(missing);
            let session = self.judged()?;
            let verdict = session.verdict();
            let (count, report) = (self.driver.runs.len(), session.report(&verdict));
            if let Some(last) = self.driver.runs.last_mut() {
                last.result = run_result(last, &report);
                let line = run_line(count, last);
                self.driver.print(&line)?;
            }
            wanted = self.next_taps(&session);
            if wanted.is_none() {
                return Ok(None);
            }
        }
    }

    /// The taps to ask for next.
    fn next_taps(&mut self, session: &ReplaySession) -> Option<TapsToRecord> {
        let wanted = next_taps(&session.replay, &session.input.dump, &self.driver.absent)?;
        if self.driver.runs.len() >= MOST_RUNS {
            self.notes.push(format!("stopped after {MOST_RUNS} runs: more could be asked for (a full dump tells all)"));
            return None;
        }
        Some(wanted)
    }

    /// Positions of the first step, and the last step that counts.
    fn extent(&self, run: &EngineRun) -> (usize, u32) {
        let declared = run.dump.meta().tokens.as_ref().map(Vec::len);
        let whole = |entry: &&firstdiff_trace::Entry| {
            entry.step == 0 && !entry.tap.is_open() && entry.shape.len() == entry.tap.site.axes().len()
        };
        let rows = |entry: &firstdiff_trace::Entry| entry.shape.get(entry.tap.site.position_axis()).copied();
        let shown = || run.entries.iter().filter(whole).filter_map(rows).max();
        let given_tokens = || self.candidate.tokens.as_ref().map(Vec::len);
        (declared.or_else(given_tokens).or_else(shown).unwrap_or(1), ANY_STEP)
    }

    /// Judges all that was written, each operation on its own inputs.
    fn judged(&self) -> Result<ReplaySession> {
        self.driver.evidence.write(&self.driver.work.join("evidence"))?;
        let input = self.candidate.clone().open().with_context(|| "what the engine wrote")?;
        let mut replay = input.source.replayed()?;
        replay.warnings.extend(input.notes());
        Ok(ReplaySession { input, replay, findings: Vec::new() })
    }

    /// Marks that there is an answer.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub(crate) fn finish(&self) -> Result<()> {
        self.driver.finish()
    }

    /// What was asked, as data.
    pub(crate) fn report(&self) -> report::EngineQueries {
        report::EngineQueries {
            engine: self.driver.engine.command.clone(),
            work: self.driver.work.to_string_lossy().into_owned(),
            runs: self.driver.runs.iter().map(crate::driver::render::run_report).collect(),
            kept_runs: self.driver.kept_runs.as_ref().map(crate::driver::kept_runs::KeptRuns::report),
            bytes: self.driver.evidence.bytes,
            not_written: self.driver.absent.iter().map(ToString::to_string).collect(),
            notes: self.notes.clone(),
        }
    }
}

/// The first taps: the output of each layer, and the choice of its router, without which no row of an expert can be read.
fn first(all: &[Tap]) -> Vec<Tap> {
    let choices = all.iter().copied().filter(|tap| tap.is_open() && tap.last_name() == CHOICE);
    outline_taps(all).into_iter().chain(choices).collect()
}

/// All positions and steps of some taps.
fn whole(mut taps: Vec<Tap>) -> Question {
    taps.sort();
    taps.dedup();
    Question { taps, steps: (0, ANY_STEP), rows: Rows::Named(NamedRows::All) }
}

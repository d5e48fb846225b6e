//! `firstdiff bisect REF --run 'ENGINE'`: finds where an engine diverges by asking it for a few taps at a time. Arguments, and the loop over runs.

mod cells;
mod first_run;
mod question;
mod reference;
mod render;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use firstdiff_compare::{
    Aligned, CellsOf, Extent, Graph, Options, Place, Profile, Report, Verdict, Warning, align, compare, number,
};
use firstdiff_model::Cache;
use firstdiff_trace::{Entry, Tap};

use crate::commands::bisect::cells::StepAlignment;
use crate::commands::bisect::question::SearchState;
use crate::commands::bisect::reference::BisectReference;
use crate::driver::engine::{EngineFailure, EngineRun, Question};
use crate::driver::evidence::{CollectedTaps, UnrepeatedTap, size};
use crate::driver::kept_runs::KeptRunsCheck;
use crate::driver::render::{heading, kept_runs_note, nondeterminism_text, run_line, run_result};
use crate::driver::{Driver, EarlierRuns, EngineOptions, RunSummary, engine_tokens, noise};
use crate::output::Inputs;
use crate::session::ByModel;
use crate::session::arithmetic::ProfileChoice;
use crate::session::reading::token;
use crate::session::{Comparison, Session};

pub(crate) const HELP: &str = "Examples:
  firstdiff bisect models/TinyLlama --run './engine tinyllama.gguf --prompt-ids 1,403,407'
  firstdiff bisect golden/llama --run 'python my_engine.py' --timeout 60

The engine is run through the shell, a handful of times. Each time it is told by the environment where to write and what:
  FIRSTDIFF_DIR    a fresh folder; one .npy a tap, and dump.json, as firstdiff's recorders for Rust, C and Python write them
  FIRSTDIFF_TAPS   the taps to write: layers.4.h,layers.9.h,final_norm
  FIRSTDIFF_STEPS  0 is the prompt, n the n-th decode step: 0-3
  FIRSTDIFF_ROWS   token positions within a step: last, or 5,10
  FIRSTDIFF_TOKENS, FIRSTDIFF_DECODE_TOKENS   ids to feed, 1,403,407: --tokens and --decode-tokens, else what REF was fed; for the command to
                   use, as in --run './engine --ids $FIRSTDIFF_TOKENS'
It should feed the same tokens every time, sample greedily or not at all, and exit with 0. What it writes beside what was asked costs bytes
and nothing else. Runs overlap, and what is wrong first is asked for twice: where two differ by more than noise far below the
tolerance, nothing is blamed, and noise is said.

With a MODEL our own forward is the reference, run for the tokens that the engine's dump.json names (or --tokens); with a REF that dump is.
Runs are kept in the work folder until there is an answer, so that an interrupted bisection goes on where it was: one of them is repeated
first, and where it is not the same bit for bit, all are made again.

Exit code 0: parity. 1: diverged. 2: the engine failed, hung, wrote nothing or wavers; or nothing could be compared.";

/// The arguments of `bisect`.
#[derive(Debug, Args)]
pub(crate) struct BisectArgs {
    /// A reference's dump, or a model: a Hugging Face folder, a .gguf, a llama2.c .bin or a MiniMind .json
    #[arg(value_name = "MODEL|REF")]
    reference: PathBuf,
    /// The engine's command line, for the shell
    #[arg(long, value_name = "COMMAND")]
    run: String,
    /// Seconds after which a run that has not ended is stopped, with all it started
    #[arg(long, default_value_t = 600.0, value_name = "SECONDS")]
    timeout: f64,
    /// Folder for the runs; made where it is not there
    #[arg(long, default_value = "firstdiff-bisect", value_name = "DIR")]
    work: PathBuf,
    /// Do not take up an interrupted bisection: run everything again
    #[arg(long)]
    fresh: bool,
    /// In what arithmetic a right engine works: exact, f32, f16, bf16, ggml [default: what its dump.json says, else f32]
    #[arg(long)]
    profile: Option<Profile>,
    /// The type the engine keeps keys and values in: f32, f16, bf16, q8_0, e4m3 [default: what its dump.json says, else f32]
    #[arg(long)]
    cache: Option<Cache>,
    /// Token ids the engine is fed, where its dump.json does not say; passed to it as FIRSTDIFF_TOKENS
    #[arg(long, value_delimiter = ',', value_parser = token::<u32>)]
    tokens: Option<Vec<u32>>,
    /// Token ids of its decode steps, where its dump.json does not say; passed to it as FIRSTDIFF_DECODE_TOKENS
    #[arg(long, value_delimiter = ',', value_parser = token::<u32>)]
    decode_tokens: Option<Vec<u32>>,
    /// Write the result as JSON to this file (- for standard output, instead of the screen)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl BisectArgs {
    fn asking(&self) -> EngineOptions {
        EngineOptions { command: self.run.clone(), timeout: self.timeout, work: self.work.clone(), fresh: self.fresh }
    }
}

/// How a bisection ended.
pub(crate) enum BisectionResult {
    /// A report on all that was seen.
    Answer(Box<Comparison>),
    /// Two runs were not the same.
    Wavers(UnrepeatedTap),
    /// A run failed.
    Failed(EngineFailure),
}

/// Bisects, prints, and returns the exit code.
///
/// # Errors
/// When something cannot be read, the engine does not do what it should, or nothing can be compared.
pub(crate) fn run(args: BisectArgs) -> Result<u8> {
    let asking = args.asking();
    asking.check()?;
    let json = args.json.clone();
    let quiet = json.as_deref() == Some(Path::new("-"));
    let inputs = Inputs::of_command_line();
    inputs.refuse_input_as_output(json.as_deref())?;
    let reference = BisectReference::open(&args.reference, args.work.join("reference"))?;
    asking.open_work()?;
    let mut bisection = EngineBisection::new(args, reference, quiet);
    bisection.print(&heading("reference", &bisection.args.reference, &bisection.driver))?;
    let outcome = bisection.drive()?;
    if !matches!(outcome, BisectionResult::Failed(_)) {
        bisection.driver.finish()?;
    }
    crate::render::json::to_file(json.as_deref(), &render::report(&bisection, &outcome), &inputs)?;
    bisection.print(&render::answer(&bisection, &outcome))?;
    match &outcome {
        BisectionResult::Answer(judged) => match &judged.report.verdict {
            Verdict::Incomparable(reason) => bail!("incomparable: {reason}"),
            verdict => Ok(crate::output::exit_code(verdict)),
        },
        BisectionResult::Wavers(wavering) => bail!("{}", nondeterminism_text(wavering)),
        BisectionResult::Failed(failure) => bail!("{failure}"),
    }
}

/// An engine, its reference, and what is known so far.
pub(crate) struct EngineBisection {
    args: BisectArgs,
    driver: Driver,
    reference: BisectReference,
    layers: u32,
    /// Token positions of the first step, and the last step that is compared.
    tokens: usize,
    last_step: u32,
    /// The same for the engine's own steps, where its chunks differ from the reference's.
    engine_extent: (usize, u32),
    cells: Option<StepAlignment>,
    /// Bytes of a full dump of the same run.
    full: f64,
    choice: ProfileChoice,
    cache: Cache,
    confirmed: BTreeSet<Place>,
    /// What was requested only to be seen twice.
    asked_again: BTreeSet<Place>,
    warnings: Vec<String>,
}

impl EngineBisection {
    fn new(args: BisectArgs, reference: BisectReference, quiet: bool) -> EngineBisection {
        let fed = engine_tokens(args.tokens.as_deref(), args.decode_tokens.as_deref(), reference.meta());
        let layers = reference.extent().0;
        EngineBisection {
            driver: Driver::new(&args.asking(), fed, quiet),
            reference,
            layers,
            tokens: 0,
            last_step: 0,
            engine_extent: (0, 0),
            cells: None,
            full: 0.0,
            choice: ProfileChoice::by_user(args.profile.unwrap_or(Profile::F32)),
            cache: args.cache.unwrap_or_default(),
            confirmed: BTreeSet::new(),
            asked_again: BTreeSet::new(),
            warnings: Vec::new(),
            args,
        }
    }

    fn print(&self, text: &crate::render::screen::Screen) -> Result<()> {
        self.driver.print(text)
    }

    /// Searches; if runs of an earlier start turn out to be of another engine, once more without them.
    fn drive(&mut self) -> Result<BisectionResult> {
        match self.driver.repeat_last_run()? {
            EarlierRuns::None => {}
            EarlierRuns::Usable => self.print(&kept_runs_note(&self.driver))?,
            EarlierRuns::Useless(trust) => self.discard(trust)?,
            EarlierRuns::Failed(failure) => return Ok(BisectionResult::Failed(failure)),
        }
        let outcome = self.search()?;
        let BisectionResult::Wavers(wavering) = &outcome else { return Ok(outcome) };
        if !self.driver.uses_earlier_runs() {
            return Ok(outcome);
        }
        self.discard(KeptRunsCheck::Differs(wavering.place))?;
        self.search()
    }

    /// Starts again without the runs of an earlier start, and says why.
    fn discard(&mut self, why: KeptRunsCheck) -> Result<()> {
        self.driver.discard(why)?;
        self.reference.as_recorded();
        (self.cells, self.confirmed, self.asked_again, self.warnings) = Default::default();
        (self.tokens, self.last_step, self.engine_extent, self.full) = Default::default();
        self.print(&kept_runs_note(&self.driver))
    }

    fn search(&mut self) -> Result<BisectionResult> {
        let first = question::first(&self.reference, self.layers, self.reference.farthest());
        let (mut question, mut why) = (first.clone(), "whether anything is wrong at the end");
        let (mut asked, mut absent) = (Vec::new(), BTreeSet::<Tap>::new());
        let most = question::most_runs(self.layers);
        loop {
            let turn = asked.iter().filter(|q| **q == question).count();
            let put = self.cells.as_ref().map_or_else(|| question.clone(), |cells| cells.question(&question));
            let run = match self.driver.engine.ask(&put, turn)? {
                Ok(run) => run,
                // The engine may not be able to write its other taps: its other runs still show something.
                Err(EngineFailure::Others(..) | EngineFailure::Silent(..)) if asked.len() > 1 => {
                    absent.extend(&question.taps);
                    asked.push(question.clone());
                    match self.next(&mut asked, &mut absent, most, &first)? {
                        Next::Ask(next) => (question, why) = next,
                        Next::Done(judged) => return Ok(BisectionResult::Answer(judged)),
                    }
                    continue;
                }
                Err(failure) => return Ok(BisectionResult::Failed(failure)),
            };
            asked.push(question.clone());
            if self.driver.runs.is_empty() {
                self.configure(&run)?;
            }
            let written = self.written_places(&run);
            absent.extend(question.taps.iter().filter(|tap| !written.iter().any(|p| p.tap == **tap)));
            let wavering =
                self.driver.evidence.add_run(&run, self.engine_extent, noise(self.choice.profile, self.size()))?;
            self.driver.runs.push(RunSummary::new(&run, &put, why, written.into_iter().collect()));
            if let Some(wavering) = wavering.as_ref().filter(|_| self.driver.uses_earlier_runs()) {
                return Ok(BisectionResult::Wavers(wavering.clone()));
            }
            if let Some(wavering) = wavering {
                return Ok(BisectionResult::Wavers(self.repeat_question(&put, &run, wavering, turn)?));
            }
            match self.next(&mut asked, &mut absent, most, &first)? {
                Next::Ask(next) => (question, why) = next,
                Next::Done(judged) => return Ok(BisectionResult::Answer(judged)),
            }
        }
    }

    /// Judges all that was seen, reports the last run, and decides the next question.
    fn next(
        &mut self,
        questions: &mut [Question],
        absent: &mut BTreeSet<Tap>,
        most: usize,
        first: &Question,
    ) -> Result<Next> {
        let (session, report) = self.judged()?;
        self.driver.absent.clone_from(absent);
        let result = self.driver.runs.last().map(|run| run_result(run, &report)).unwrap_or_default();
        let count = self.driver.runs.len();
        if let Some(last) = self.driver.runs.last_mut().filter(|last| last.result.is_empty()) {
            last.result = result;
            let line = run_line(count, last);
            self.print(&line)?;
        }
        let mut confirmed = std::mem::take(&mut self.confirmed);
        let hopeless = matches!(report.verdict, Verdict::Incomparable(_))
            && report.taps.iter().all(|t| t.metrics.is_none())
            && !render::unclear(&report);
        let (next, again) = if hopeless {
            (None, None)
        } else {
            let mut known = SearchState {
                reference: &self.reference,
                evidence: &self.driver.evidence,
                graph: &session.graph,
                report: &report,
                absent,
                confirmed: &mut confirmed,
                layers: self.layers,
                tokens: self.tokens,
                cells: self.cells.as_ref(),
                last_step: self.last_step,
                full: self.full,
                runs_left: most.saturating_sub(questions.len()),
            };
            let again =
                known.repetition().map(|(place, again)| (place, known.repeats_cheaply(&again).then_some(again)));
            (known.next(), again)
        };
        self.confirmed = confirmed;
        let next = next.filter(|(question, _)| !questions.contains(question));
        if questions.len() < most && !hopeless {
            if let Some(next) = next {
                return Ok(Next::Ask(next));
            }
            let second = "whether a second run is the same";
            match again {
                Some((place, Some(ref again))) if self.asked_again.insert(place) => {
                    return Ok(Next::Ask((again.clone(), second)));
                }
                None if !self.driver.evidence.has_repeats() => return Ok(Next::Ask((first.clone(), second))),
                _ => {}
            }
        } else if next.is_some() {
            self.warnings.push(format!("stopped after {most} runs: what is not told apart here a full dump can tell"));
        }
        let once = again.map(|(place, _)| place);
        Ok(Next::Done(Box::new(self.conclude(session, report, once))))
    }

    /// Compares what was seen with the reference.
    fn judged(&mut self) -> Result<(Session, Report)> {
        let candidate = self.driver.evidence.write(&self.args.work.join("evidence"))?;
        let taps: Vec<Tap> = candidate.entries().iter().map(|e| e.tap).collect();
        let reference = self.reference.with_taps(&taps)?;
        let Aligned { reference, candidate, alignment } = match &self.cells {
            Some(_) => align(CellsOf::Both, reference, candidate, None)?,
            None => Aligned { reference, candidate, alignment: None },
        };
        if let Some(cells) = &self.cells
            && alignment.as_ref().is_none_or(|alignment| {
                alignment.cells != cells.alignment.cells || alignment.candidate != cells.alignment.candidate
            })
        {
            bail!("the engine took the tokens in other chunks than in its first run");
        }
        let graph: Graph = self.reference.graph(self.last_step);
        let only = candidate.all_entries().iter().map(|e| Place { step: e.step, tap: e.tap }).collect();
        let cache = self.cache;
        let plain = Options::new(self.choice.profile);
        let options = Options { only: Some(only), allowed: BTreeMap::new(), alignment, cache, ..plain };
        let report = compare(&reference, &candidate, &graph, &options, &mut |_, _| {})?;
        let session = Session::new(reference, candidate, graph, options, &self.choice);
        Ok((session, report))
    }

    /// The answer. `once` is the wrong place, where only one run wrote it: then no cause is stated.
    fn conclude(&mut self, mut session: Session, mut report: Report, once: Option<Place>) -> Comparison {
        report.warnings.retain(|warning| !matches!(warning, Warning::SomePositions { .. }));
        let mut why = None;
        if let (Some(model), Some(first)) = (self.reference.model(), &report.first) {
            let inputs_agree = first.is_bracketed();
            let cause = crate::session::asked::explain_divergence(
                model,
                &session,
                report.taps[first.index].place,
                inputs_agree,
            );
            // A model that judges its own values shows nothing.
            why = cause.filter(|cause| once.is_none() && matches!(cause, ByModel::Cause(_)));
            session.model = Some(model.to_owned());
        }
        if let Some(place) = once {
            self.warnings.push(format!("one run alone wrote {place}: whether the engine is deterministic there is not known, and no cause is stated"));
        }
        if self.driver.evidence.rows_ignored {
            self.warnings
                .push("the engine writes all token positions whatever FIRSTDIFF_ROWS says: that costs bytes".into());
        }
        if self.driver.evidence.taps_ignored {
            self.warnings.push("the engine writes taps that FIRSTDIFF_TAPS does not name: that costs bytes".into());
        }
        if let Some(noise) = &self.driver.evidence.noise {
            self.warnings.push(format!(
                "runs of one command differ by noise: NMSE {} at most, at {}, far below what is allowed (sums in another order, as atomics make them)",
                number(noise.nmse),
                noise.place
            ));
        }
        report.warnings.extend(self.warnings.iter().cloned().map(Warning::Note));
        Comparison { session, report, why, recorder_gives: None }
    }

    fn size(&self) -> Extent {
        Extent { layers: self.layers, positions: self.tokens + self.last_step as usize }
    }

    /// The compared places that a run wrote.
    fn written_places(&self, run: &EngineRun) -> BTreeSet<Place> {
        let places = |entry: &Entry| match &self.cells {
            Some(cells) => cells.written_cells(entry),
            None => vec![Place { step: entry.step, tap: entry.tap }],
        };
        run.entries.iter().flat_map(places).filter(|p| p.step <= self.last_step).collect()
    }

    /// Asks the same question again, to find where two runs begin to differ.
    fn repeat_question(
        &mut self,
        question: &Question,
        run: &EngineRun,
        wavering: UnrepeatedTap,
        turn: usize,
    ) -> Result<UnrepeatedTap> {
        let noise = noise(self.choice.profile, self.size());
        let Ok(again) = self.driver.engine.ask(question, turn + 1)? else { return Ok(wavering) };
        let mut two = CollectedTaps::default();
        two.add_run(run, self.engine_extent, &noise)?;
        let earlier = two.add_run(&again, self.engine_extent, &noise)?;
        self.driver.evidence.bytes += two.bytes - run.entries.iter().map(size).sum::<u64>();
        let reason = "the same question once more".to_owned();
        self.driver.runs.push(RunSummary {
            result: reason,
            ..RunSummary::new(&again, question, "where two runs part", Vec::new())
        });
        Ok(earlier.filter(|earlier| earlier.place < wavering.place).unwrap_or(wavering))
    }
}

enum Next {
    Ask((Question, &'static str)),
    Done(Box<Comparison>),
}

//! `firstdiff bisect REF --run 'ENGINE'`: where does an engine part, asked for a few taps at a time? Arguments, and the runs one by one.

mod cells;
mod engine;
mod evidence;
pub(crate) mod keeper;
mod kept;
mod question;
mod reference;
mod settle;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use firstdiff_compare::{
    Aligned, Extent, Graph, Options, Place, Profile, Report, Verdict, Warning, align, allowed_nmse, compare, number,
};
use firstdiff_model::Cache;
use firstdiff_trace::{Entry, Tap};

use crate::commands::bisect::cells::Cells;
use crate::commands::bisect::engine::{Engine, Failure, Question, Run};
use crate::commands::bisect::evidence::{Evidence, Wavering, size};
use crate::commands::bisect::kept::{KeptRuns, Trust, compared};
use crate::commands::bisect::question::Known;
use crate::commands::bisect::reference::Reference;
use crate::output::Inputs;
use crate::session::arithmetic::Choice;
use crate::session::cause::Why;
use crate::session::reading::token;
use crate::session::{Judged, Session};

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

/// What `bisect` is asked.
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
    /// The type the engine keeps keys and values in: f32, f16, bf16, q8_0 [default: what its dump.json says, else f32]
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

/// A run as it is told of.
pub(crate) struct Told {
    question: Question,
    why: &'static str,
    kept: bool,
    seconds: f64,
    bytes: u64,
    came: Vec<Place>,
    /// What it shows.
    says: String,
}

/// How a bisection ended.
pub(crate) enum Outcome {
    /// With a report on all that was seen.
    Answer(Box<Judged>),
    /// Two runs were not the same.
    Wavers(Wavering),
    /// A run failed.
    Failed(Failure),
}

/// Bisects, prints, and gives the exit code.
///
/// # Errors
/// When something cannot be read, the engine does not do its part, or nothing can be compared.
pub(crate) fn run(args: BisectArgs) -> Result<u8> {
    if !(args.timeout > 0.0 && args.timeout < 1e9) {
        bail!("--timeout {}: a number of seconds above 0 is asked", args.timeout);
    }
    let json = args.json.clone();
    let quiet = json.as_deref() == Some(Path::new("-"));
    let inputs = Inputs::of([args.reference.as_path()]);
    inputs.spare(json.as_deref())?;
    let reference = Reference::open(&args.reference, args.work.join("reference"))?;
    open_work(&args.work, args.fresh)?;
    let mut bisection = Bisection::new(args, reference, quiet);
    bisection.say(&told::heading(&bisection))?;
    let outcome = bisection.drive()?;
    if !matches!(outcome, Outcome::Failed(_)) {
        // What has an answer is not interrupted: the next start begins anew.
        let finished = bisection.args.work.join(FINISHED);
        std::fs::write(&finished, "").with_context(|| finished.display().to_string())?;
    }
    if let Some(path) = &json {
        crate::render::json::to_file(path, &told::report(&bisection, &outcome), &inputs)?;
    }
    bisection.say(&told::answer(&bisection, &outcome))?;
    match &outcome {
        Outcome::Answer(judged) => match &judged.report.verdict {
            Verdict::Incomparable(reason) => bail!("incomparable: {reason}"),
            verdict => Ok(crate::output::exit_code(verdict)),
        },
        Outcome::Wavers(wavering) => bail!("{}", told::wavers(wavering)),
        Outcome::Failed(failure) => bail!("{failure}"),
    }
}

const MARK: &str = "firstdiff-bisect.txt";
const FINISHED: &str = "finished";

/// Of what a tap is allowed to be off, how much two runs of one engine may differ and still be judged.
const NOISE: f64 = 0.1;

/// Makes the work folder, or empties it of what an earlier bisection left, but for the runs of one that was interrupted.
fn open_work(work: &Path, fresh: bool) -> Result<()> {
    let strange = work.exists() && !work.join(MARK).exists();
    let holds_any = || std::fs::read_dir(work).map(|mut entries| entries.next().is_some());
    if strange && holds_any().with_context(|| work.display().to_string())? {
        bail!("--work {}: holds something else; name a folder that is new or empty", work.display());
    }
    let runs = work.join("runs");
    std::fs::create_dir_all(work).with_context(|| work.display().to_string())?;
    let mark = work.join(MARK);
    std::fs::write(&mark, "Runs of `firstdiff bisect`; may be removed.\n")
        .with_context(|| mark.display().to_string())?;
    if fresh || work.join(FINISHED).exists() {
        let _ = std::fs::remove_dir_all(&runs);
        let _ = std::fs::remove_file(work.join(FINISHED));
    }
    for folder in ["evidence", "reference"] {
        let _ = std::fs::remove_dir_all(work.join(folder));
    }
    std::fs::create_dir_all(&runs).with_context(|| runs.display().to_string())
}

/// An engine, its reference, and what is known so far.
pub(crate) struct Bisection {
    args: BisectArgs,
    engine: Engine,
    reference: Reference,
    evidence: Evidence,
    runs: Vec<Told>,
    layers: u32,
    /// Token positions of the first step, and the last step that is compared.
    tokens: usize,
    last_step: u32,
    /// The same of the engine's own steps, where it takes the tokens in other chunks than the reference.
    own: (usize, u32),
    cells: Option<Cells>,
    /// Bytes of a full dump of the same run.
    full: f64,
    choice: Choice,
    cache: Cache,
    confirmed: BTreeSet<Place>,
    /// What was asked for and did not come.
    unwritten: BTreeSet<Tap>,
    /// What was asked for only to be seen twice.
    asked_again: BTreeSet<Place>,
    warnings: Vec<String>,
    /// What became of the runs of an earlier start.
    kept: Option<KeptRuns>,
    quiet: bool,
}

impl Bisection {
    fn new(args: BisectArgs, reference: Reference, quiet: bool) -> Bisection {
        let timeout = Duration::from_secs_f64(args.timeout);
        let engine = Engine {
            command: args.run.clone(),
            timeout,
            runs: args.work.join("runs"),
            feed: settle::feed(&args, &reference),
        };
        let layers = reference.extent().0;
        Bisection {
            engine,
            reference,
            evidence: Evidence::default(),
            runs: Vec::new(),
            layers,
            tokens: 0,
            last_step: 0,
            own: (0, 0),
            cells: None,
            full: 0.0,
            choice: Choice::asked(args.profile.unwrap_or(Profile::F32)),
            cache: args.cache.unwrap_or_default(),
            confirmed: BTreeSet::new(),
            unwritten: BTreeSet::new(),
            asked_again: BTreeSet::new(),
            warnings: Vec::new(),
            kept: None,
            quiet,
            args,
        }
    }

    fn say(&self, text: &crate::render::screen::Screen) -> Result<()> {
        if self.quiet { Ok(()) } else { crate::output::print(text.as_str()) }
    }

    /// Searches; where runs of an earlier start turn out to be of another engine, without them.
    fn drive(&mut self) -> Result<Outcome> {
        if let Some(failure) = self.try_kept()? {
            return Ok(Outcome::Failed(failure));
        }
        let outcome = self.search()?;
        let Outcome::Wavers(wavering) = &outcome else { return Ok(outcome) };
        if self.runs.iter().all(|run| !run.kept) {
            return Ok(outcome);
        }
        self.discard(Trust::Differs(wavering.place))?;
        self.search()
    }

    /// Repeats the last of the runs that an earlier start made, which is nearest to its answer.
    fn try_kept(&mut self) -> Result<Option<Failure>> {
        let runs = self.engine.kept();
        let Some(last) = runs.last() else { return Ok(None) };
        let mut bytes = 0;
        let looked = self.engine.repeat(last, |kept, again| {
            bytes = again.all_entries().iter().map(size).sum();
            compared(kept, again)
        })?;
        let trust = match looked {
            Ok(trust) => trust,
            Err(Failure::Others(..) | Failure::Silent(..)) => Trust::Otherwise,
            Err(failure) => return Ok(Some(failure)),
        };
        self.evidence.bytes += bytes;
        self.kept = KeptRuns::new(&runs, Trust::Same);
        match trust {
            Trust::Same => self.say(&told::kept(self))?,
            other => self.discard(other)?,
        }
        Ok(None)
    }

    /// Begins anew without the runs of an earlier start, and says why.
    fn discard(&mut self, why: Trust) -> Result<()> {
        self.engine.forget()?;
        self.reference.as_recorded();
        let Bisection { evidence, runs, cells, confirmed, asked_again, warnings, kept, .. } = self;
        let bytes = evidence.bytes;
        *evidence = Evidence::default();
        evidence.bytes = bytes;
        (*runs, *cells, *confirmed, *asked_again, *warnings) = Default::default();
        (self.tokens, self.last_step, self.own, self.full) = Default::default();
        if let Some(kept) = kept {
            kept.trust = why;
        }
        self.say(&told::kept(self))
    }

    fn search(&mut self) -> Result<Outcome> {
        let first = question::first(&self.reference, self.layers, self.reference.farthest());
        let (mut question, mut why) = (first.clone(), "whether anything is wrong at the end");
        let (mut asked, mut absent) = (Vec::new(), BTreeSet::<Tap>::new());
        let most = question::most_runs(self.layers);
        loop {
            let turn = asked.iter().filter(|q| **q == question).count();
            let put = self.cells.as_ref().map_or_else(|| question.clone(), |cells| cells.question(&question));
            let run = match self.engine.ask(&put, turn)? {
                Ok(run) => run,
                // What else the engine has it may not know how to write: its other runs still tell something.
                Err(Failure::Others(..) | Failure::Silent(..)) if asked.len() > 1 => {
                    absent.extend(&question.taps);
                    asked.push(question.clone());
                    match self.next(&mut asked, &mut absent, most, &first)? {
                        Next::Ask(next) => (question, why) = next,
                        Next::Done(judged) => return Ok(Outcome::Answer(judged)),
                    }
                    continue;
                }
                Err(failure) => return Ok(Outcome::Failed(failure)),
            };
            asked.push(question.clone());
            if self.runs.is_empty() {
                self.settle(&run)?;
            }
            let came = self.came(&run);
            absent.extend(question.taps.iter().filter(|tap| !came.iter().any(|p| p.tap == **tap)));
            let bytes = run.entries.iter().map(size).sum();
            let (profile, extent) = (self.choice.profile, self.size());
            let noise = |tap, dtype| NOISE * allowed_nmse(profile, tap, extent, [dtype; 2]);
            let wavering = self.evidence.absorb(&run, self.own, noise)?;
            let (kept, seconds, came) = (run.kept, run.seconds, came.into_iter().collect());
            self.runs.push(Told { question: put.clone(), why, kept, seconds, bytes, came, says: String::new() });
            if let Some(wavering) = wavering.as_ref().filter(|_| self.runs.iter().any(|run| run.kept)) {
                return Ok(Outcome::Wavers(wavering.clone()));
            }
            if let Some(wavering) = wavering {
                return Ok(Outcome::Wavers(self.earliest(&put, &run, wavering, turn)?));
            }
            match self.next(&mut asked, &mut absent, most, &first)? {
                Next::Ask(next) => (question, why) = next,
                Next::Done(judged) => return Ok(Outcome::Answer(judged)),
            }
        }
    }

    /// Judges all that was seen, tells of the last run, and decides what to ask.
    fn next(
        &mut self,
        asked: &mut [Question],
        absent: &mut BTreeSet<Tap>,
        most: usize,
        first: &Question,
    ) -> Result<Next> {
        let (session, report) = self.judged()?;
        self.unwritten.clone_from(absent);
        let says = self.runs.last().map(|run| told::says(run, &report)).unwrap_or_default();
        let count = self.runs.len();
        if let Some(last) = self.runs.last_mut().filter(|last| last.says.is_empty()) {
            last.says = says;
            let line = told::run_line(count, last);
            self.say(&line)?;
        }
        let mut confirmed = std::mem::take(&mut self.confirmed);
        let hopeless = matches!(report.verdict, Verdict::Incomparable(_))
            && report.taps.iter().all(|t| t.metrics.is_none())
            && !told::unclear(&report);
        let (next, again) = if hopeless {
            (None, None)
        } else {
            let mut known = Known {
                reference: &self.reference,
                evidence: &self.evidence,
                graph: &session.graph,
                report: &report,
                absent,
                confirmed: &mut confirmed,
                layers: self.layers,
                tokens: self.tokens,
                cells: self.cells.as_ref(),
                last_step: self.last_step,
                full: self.full,
                runs_left: most.saturating_sub(asked.len()),
            };
            let again =
                known.repetition().map(|(place, again)| (place, known.repeats_cheaply(&again).then_some(again)));
            (known.next(), again)
        };
        self.confirmed = confirmed;
        let next = next.filter(|(question, _)| !asked.contains(question));
        if asked.len() < most && !hopeless {
            if let Some(next) = next {
                return Ok(Next::Ask(next));
            }
            let second = "whether a second run is the same";
            match again {
                Some((place, Some(ref again))) if self.asked_again.insert(place) => {
                    return Ok(Next::Ask((again.clone(), second)));
                }
                None if !self.evidence.repeats() => return Ok(Next::Ask((first.clone(), second))),
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
        let candidate = self.evidence.write(&self.args.work.join("evidence"))?;
        let taps: Vec<Tap> = candidate.entries().iter().map(|e| e.tap).collect();
        let reference = self.reference.with(&taps)?;
        let Aligned { reference, candidate, alignment } = match &self.cells {
            Some(_) => align(reference, candidate, None)?,
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
        let session = Session::of(reference, candidate, graph, options, &self.choice);
        Ok((session, report))
    }

    /// The answer. `once` is what is wrong, where one run alone wrote it: no cause is stated of that.
    fn conclude(&mut self, mut session: Session, mut report: Report, once: Option<Place>) -> Judged {
        report.warnings.retain(|warning| !matches!(warning, Warning::SomePositions { .. }));
        let mut why = None;
        if let (Some(model), Some(first)) = (self.reference.model(), &report.first) {
            let inputs_agree = first.is_bracketed();
            let cause = crate::session::cause::beside(model, &session, report.taps[first.index].place, inputs_agree);
            // That the model is right about what it gave itself says nothing.
            why = cause.filter(|cause| once.is_none() && matches!(cause, Why::Cause { .. }));
            session.model = Some(model.to_owned());
        }
        if let Some(place) = once {
            self.warnings.push(format!("one run alone wrote {place}: whether the engine is deterministic there is not known, and no cause is stated"));
        }
        if self.evidence.rows_ignored {
            self.warnings
                .push("the engine writes all token positions whatever FIRSTDIFF_ROWS says: that costs bytes".into());
        }
        if self.evidence.taps_ignored {
            self.warnings.push("the engine writes taps that FIRSTDIFF_TAPS does not name: that costs bytes".into());
        }
        if let Some(noise) = &self.evidence.noise {
            self.warnings.push(format!(
                "runs of one command differ by noise: NMSE {} at most, at {}, far below what is allowed (sums in another order, as atomics make them)",
                number(noise.nmse),
                noise.place
            ));
        }
        report.warnings.extend(self.warnings.iter().cloned().map(Warning::Note));
        Judged { session, report, why }
    }

    fn size(&self) -> Extent {
        Extent { layers: self.layers, positions: self.tokens + self.last_step as usize }
    }

    /// What a run brought, of what is compared.
    fn came(&self, run: &Run) -> BTreeSet<Place> {
        let places = |entry: &Entry| match &self.cells {
            Some(cells) => cells.came(entry),
            None => vec![Place { step: entry.step, tap: entry.tap }],
        };
        run.entries.iter().flat_map(places).filter(|p| p.step <= self.last_step).collect()
    }

    /// The same question once more: where two runs begin to be different.
    fn earliest(&mut self, question: &Question, run: &Run, found: Wavering, turn: usize) -> Result<Wavering> {
        let (profile, extent) = (self.choice.profile, self.size());
        let noise = |tap, dtype| NOISE * allowed_nmse(profile, tap, extent, [dtype; 2]);
        let Ok(again) = self.engine.ask(question, turn + 1)? else { return Ok(found) };
        let mut two = Evidence::default();
        two.absorb(run, self.own, noise)?;
        let earlier = two.absorb(&again, self.own, noise)?;
        let (bytes, came) = (again.entries.iter().map(size).sum(), Vec::new());
        self.evidence.bytes += two.bytes - run.entries.iter().map(size).sum::<u64>();
        let (kept, seconds, says) = (again.kept, again.seconds, "the same question once more".to_owned());
        self.runs.push(Told {
            question: question.clone(),
            why: "where two runs part",
            kept,
            seconds,
            bytes,
            came,
            says,
        });
        Ok(earlier.filter(|earlier| earlier.place < found.place).unwrap_or(found))
    }
}

enum Next {
    Ask((Question, &'static str)),
    Done(Box<Judged>),
}

//! What can be asked on the command line, and what is answered? Arguments, exit codes, and one function a command.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use firstdiff_compare::{Place, Profile, Verdict, one_row_of_several};
use firstdiff_model::{Prompt, TapValues};
use firstdiff_trace::{Cache, NamedRows, Producer, Recorder, Rows, Site, Tap};
use serde_json::json;

use crate::align::AlignArgs;
use crate::arithmetic::as_it_asks;
use crate::baseline::{Baseline, Regression};
use crate::drive::BisectArgs;
use crate::explain::ExplainArgs;
use crate::import::ImportArgs;
use crate::incomplete::Incomplete;
use crate::inspect::InspectArgs;
use crate::output::Inputs;
use crate::reading::{ReadingArgs, TokenArgs, token};
use crate::replay::ReplayArgs;
use crate::screen::{Detail, Screen, render};
use crate::session::{Judged, Session};
use crate::weights::WeightsArgs;
use crate::words::{safe, shorten, taps_in_words};

/// Parity: everything compared agrees.
pub const PARITY: u8 = 0;
/// Something diverged.
pub const DIVERGED: u8 = 1;
/// Bad usage, bad input, or nothing that can be compared.
pub const UNUSABLE: u8 = 2;

/// Finds the first tensor where a transformer implementation departs from its reference.
///
/// A dump is a folder with one .npy a tensor (h0, layers.0.q, ..., logits) with or without a dump.json, a .npz, a .safetensors,
/// or a quoted pattern with one '*' where the tensor's name stands. See the README for how to make one from PyTorch,
/// llama.cpp and Rust.
///
/// Exit code 0: parity. 1: diverged. 2: bad usage, bad input, or incomparable.
#[derive(Debug, Parser)]
#[command(name = "firstdiff", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Where do two runs part? Compares a candidate's dump with a reference's
    #[command(after_help = COMPARE_HELP)]
    Compare(CompareArgs),
    /// Runs a model through the reference forward pass and writes a dump
    #[command(after_help = DUMP_HELP)]
    Dump(DumpArgs),
    /// Which operations are wrong in themselves? Runs each on the candidate's own recorded inputs
    #[command(after_help = crate::replay::HELP)]
    Replay(ReplayArgs),
    /// Why? Which known mistake reproduces the candidate's own numbers
    #[command(after_help = crate::explain::HELP)]
    Explain(ExplainArgs),
    /// Did the weights load right? Compares two weight files of any formats, or a file with what an engine dumped
    #[command(after_help = crate::weights::HELP)]
    Weights(WeightsArgs),
    /// Where does an engine part, without a full dump? Runs it again and again, for a few taps each time
    #[command(after_help = crate::drive::HELP)]
    Bisect(BisectArgs),
    /// What is wrong with a dump by itself? With no reference and no weights; no verdict
    #[command(after_help = crate::inspect::HELP)]
    Inspect(InspectArgs),
    /// Turns other programs' files (raw floats, text, JSON, logs, .pt) into a dump
    #[command(after_help = crate::import::HELP)]
    Import(ImportArgs),
    /// Proposes taps for tensors whose names are not known, by their content
    #[command(after_help = crate::align::HELP)]
    Align(AlignArgs),
    /// For CI: no tap worse than its baseline
    #[command(after_help = GATE_HELP)]
    Gate(GateArgs),
    /// Stands between `bisect` and its engine
    #[command(name = crate::drive::keeper::COMMAND, hide = true)]
    Keep {
        /// Where the engine's output goes
        folder: PathBuf,
        /// Its command line
        #[arg(allow_hyphen_values = true)]
        line: std::ffi::OsString,
    },
}

const COMPARE_HELP: &str = "Examples:
  firstdiff compare golden/llama out/dump
  firstdiff compare golden/llama 'out/*_cpp.npy' --profile bf16
  firstdiff compare golden/llama last.npz --rows last     the candidate holds the last token only
  firstdiff compare mine theirs --tokens 1,403,407        raw floats on both sides, which say nothing of token positions
  firstdiff compare golden/llama out/int8 --noise out/trusted-int8        a quantised engine, beside a second right run
  firstdiff compare out/one-pass out/token-by-token       an engine against itself: its decode path, without a reference
  firstdiff compare golden/llama out/dump --why 'layers.0.q*'             why these taps have their status

A tap is `exact`, within `rounding`, `diverged` (differs though all it reads agrees), `downstream` (differs, and so does something it
reads) or `unchecked`. What is unchecked is neither passed nor blamed. Runs that took the same tokens in other chunks (in one pass,
prefill and steps, token by token) are laid together by token position.

A K/V cache in f16, bf16 or q8_0 is part of the arithmetic: --cache, or `cache` in dump.json. Where neither says, and keys, values or the
products with them show one, it is assumed, and the verdict says so.

--noise REF2 is for engines whose rounding no profile describes (8-bit, 4-bit): REF2 is a second right run, such as the reference model in bf16
or quantised in the same way by an engine you trust. A tap may then be as far from REF as REF2 is, times 4 (NMSE); one factor, a row, a head or a
channel is still no rounding. A tap that REF2 lacks, or where it equals REF, is held to the profile.";

const DUMP_HELP: &str = "Example:
  firstdiff dump models/TinyLlama -o golden --tokens 1,403,407,261 --taps 'layers.*.h,logits'

Families: llama, mistral, qwen2, qwen3, minimind. Profiles: exact (f64), f32, f16 and bf16 as PyTorch rounds, ggml as llama.cpp's
CPU backend does (activations rounded to what each weight type asks).";

const GATE_HELP: &str = "Examples:
  firstdiff gate golden/llama out/dump --baseline parity.baseline --update    once, and when the change is meant
  firstdiff gate golden/llama out/dump --baseline parity.baseline             in CI

The baseline is a text file with one line a tap. A tap fails when it diverged, is missing, is compared at fewer positions, or its
NMSE is more than 4 times its baseline's (and more than a hundredth of what the profile allows: other processors round otherwise).

An engine in another arithmetic, whose error you know and accept, can be held to its own: --update --accept-diverged writes a baseline that
says it is not parity, and of which taps. Later runs fail only where a tap is worse than that, or has another constant factor.";

/// Two dumps and how to judge them.
#[derive(Debug, Args)]
pub struct PairArgs {
    /// The reference's dump
    #[arg(value_name = "REF")]
    pub reference: PathBuf,
    /// The candidate's dump
    #[arg(value_name = "CAND")]
    pub candidate: PathBuf,
    /// In what arithmetic a right candidate works: exact, f32, f16, bf16, ggml [default: what the dumps say, else f32]
    #[arg(long)]
    pub profile: Option<Profile>,
    /// The type in which either side keeps keys and values: f32, f16, bf16, q8_0 [default: what the dumps say, else what they show]
    #[arg(long)]
    pub cache: Option<Cache>,
    /// A second right run, of the candidate's class or precision: a tap may be 4 times as far from REF (NMSE) as that run is
    #[arg(long, value_name = "REF2")]
    pub noise: Option<PathBuf>,
    /// Take order, dependencies and tolerances from this model folder
    #[arg(long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Token positions the candidate holds, or to compare: all, last, or 0,3,7
    #[arg(long)]
    pub rows: Option<Rows>,
    /// How files are read that do not say everything themselves.
    #[command(flatten)]
    pub reading: ReadingArgs,
    /// The tokens that were fed.
    #[command(flatten)]
    pub told: TokenArgs,
}

impl PairArgs {
    /// What is read.
    fn inputs(&self) -> Inputs {
        Inputs::of([self.reference.as_path(), &self.candidate]).and(&self.model).and(&self.reading.files())
    }

    /// Opens both dumps.
    ///
    /// # Errors
    /// When something cannot be read.
    pub fn open(&self) -> Result<Session> {
        self.open_at(self.reading.sequence, self.rows.clone())
    }

    fn open_at(&self, sequence: Option<usize>, rows: Option<Rows>) -> Result<Session> {
        let reading = ReadingArgs { sequence, ..self.reading.clone() };
        let open =
            |other: &Path| Session::open_with(&self.reference, other, self.profile, rows.clone(), &reading, &self.told);
        let mut session = open(&self.candidate)?.with_cache(self.cache);
        if let Some(model) = &self.model {
            session = session.with_model(model)?;
        }
        match &self.noise {
            Some(noise) => session.with_noise(noise, open(noise)?),
            None => Ok(session),
        }
    }

    /// Opens both dumps and compares them; of a batch every sequence, and the first that is not at parity is the answer.
    ///
    /// # Errors
    /// When something cannot be read.
    pub fn judged(&self, prepare: impl Fn(&mut Session) -> Result<()>) -> Result<Judged> {
        let prepared = |mut session: Session| {
            prepare(&mut session)?;
            session.run()
        };
        let run = |session: Session, sequence| {
            let judged = prepared(session)?;
            // What could not be compared may be the last row of the other side's.
            if self.rows.is_some() || !may_be_last_rows(&judged) {
                return Ok(judged);
            }
            let last = prepared(self.open_at(sequence, Some(Rows::Named(NamedRows::Last)))?)?;
            Ok(if are_last_rows(&last) { crate::batch::with_note(last, LAST_ROWS.to_owned()) } else { judged })
        };
        let asked = self.reading.sequence;
        let session = self.open()?;
        let (batch, are_batches) = (session.batch, session.are_batches);
        let mut judged = run(session, asked)?;
        if batch == 1 || asked.is_some() {
            return Ok(judged);
        }
        let another = |index| run(self.open_at(Some(index), self.rows.clone())?, Some(index));
        if are_batches != [true, true] {
            return crate::batch::of_one_prompt(judged, batch, are_batches[0], another);
        }
        let mut shown = 0;
        for index in 1..batch {
            if judged.report.verdict != Verdict::Parity {
                break;
            }
            judged = another(index)?;
            shown = index;
        }
        if judged.report.verdict == Verdict::Diverged
            && let Some((tokens, positions)) = crate::batch::padded(&judged)
        {
            return Ok(crate::batch::undecided(
                judged,
                format!(
                    "a batch of {batch} sequences: sequence {shown} names {tokens} tokens and holds {positions} token positions, and differs, perhaps in its padding \
                     alone: compare the rows of its tokens (--sequence {shown} --rows 0,1,..)"
                ),
            ));
        }
        let rest = match judged.report.verdict {
            Verdict::Parity => "each was compared by itself; all are at parity, the last is shown".to_owned(),
            _ if shown == 0 => "the first is shown; the others were not looked at".to_owned(),
            _ => {
                format!("sequence {shown} is shown; those before it are at parity, those behind it were not looked at")
            }
        };
        judged.report.warnings.push(format!("a batch of {batch} sequences: {rest}").into());
        Ok(judged)
    }
}

const LAST_ROWS: &str =
    "one side holds one row where the other has several: compared as the last token position (--rows last)";

/// Whether single rows were not compared, or with nothing that agrees, which may be the last ones of the other side's several.
fn may_be_last_rows(judged: &Judged) -> bool {
    let [reference, candidate] = judged.session.recorded();
    matches!(judged.report.verdict, Verdict::Incomparable(_)) && one_row_of_several(reference, candidate)
}

/// Whether single rows are the last ones, as what they agree with shows: rows that nothing has come into from other positions are alike wherever a token stands twice.
fn are_last_rows(judged: &Judged) -> bool {
    let by_position = |tap: Tap| tap.site == Site::H0 || (tap.layer == Some(0) && tap.site <= Site::KNorm);
    judged.report.taps.iter().any(|tap| tap.status.agrees() && !by_position(tap.place.tap))
}

#[derive(Debug, Args)]
struct CompareArgs {
    #[command(flatten)]
    pair: PairArgs,
    /// Compare only these taps: patterns with *, separated by commas
    #[arg(long, value_name = "PATTERNS")]
    taps: Option<String>,
    /// Print what each stage of the comparison said of these taps: how a tap was read, aligned, judged, and what changed its status
    #[arg(long, value_name = "PATTERNS")]
    why: Option<String>,
    /// Show every tap on a line of its own
    #[arg(long, short)]
    verbose: bool,
    /// Write the report as JSON to this file (- for standard output, instead of the screen)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A model folder, and what to dump of a run of it.
#[derive(Debug, Args)]
pub struct DumpArgs {
    /// A Hugging Face folder, a .gguf, a llama2.c .bin or a MiniMind .json
    pub model: PathBuf,
    /// Folder to write the dump to; it must not exist
    #[arg(long, short)]
    pub output: PathBuf,
    /// Token ids of the prompt, separated by commas
    #[arg(long, value_delimiter = ',', required = true, value_parser = token::<u32>)]
    pub tokens: Vec<u32>,
    /// Token ids fed one by one after the prompt
    #[arg(long, value_delimiter = ',', value_parser = token::<u32>)]
    pub decode_tokens: Vec<u32>,
    /// Taps to write: patterns with *, separated by commas
    #[arg(long, default_value = "*", value_name = "PATTERNS")]
    pub taps: String,
    /// Arithmetic of the run: exact (f64), f32, f16 and bf16 (as PyTorch), ggml (as llama.cpp)
    #[arg(long, default_value = "f32")]
    pub profile: Profile,
    /// The type keys and values are kept in: f32, f16, bf16, q8_0
    #[arg(long, default_value = "f32")]
    pub cache: Cache,
    /// Write what was done as JSON to this file (- for standard output)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct GateArgs {
    #[command(flatten)]
    pair: PairArgs,
    /// The baseline file
    #[arg(long, value_name = "FILE")]
    baseline: PathBuf,
    /// Write the baseline from this comparison, which must be at parity
    #[arg(long)]
    update: bool,
    /// With --update: write it though the two are not at parity; the engine is then held to what it is now, and that is said each time
    #[arg(long, requires = "update")]
    accept_diverged: bool,
    /// Write the report as JSON to this file (- for standard output, instead of the screen)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command line and gives the exit code. Errors are one line on standard error.
pub fn main() -> u8 {
    let outcome = match Cli::parse().command {
        Command::Compare(args) => run_compare(args),
        Command::Dump(args) => run_dump(args),
        Command::Replay(args) => crate::replay::run(args),
        Command::Explain(args) => crate::explain::run(args),
        Command::Weights(args) => crate::weights::run(args),
        Command::Bisect(args) => crate::drive::run(args),
        Command::Inspect(args) => crate::inspect::run(args),
        Command::Import(args) => crate::import::run(args),
        Command::Align(args) => crate::align::run(args),
        Command::Gate(args) => run_gate(args),
        Command::Keep { folder, line } => return crate::drive::keeper::run(&folder, &line),
    };
    outcome.unwrap_or_else(|error| {
        report_error(&error);
        UNUSABLE
    })
}

/// Prints an error as one line.
pub fn report_error(error: &anyhow::Error) {
    let text: String = one_line(error).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    // A closed pipe on the other side is nobody's fault.
    let _ = writeln!(anstream::stderr(), "firstdiff: error: {text}");
}

/// The chain of causes, each said once: many errors say their source themselves.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text += &format!(": {cause}");
        }
    }
    text
}

/// Prints to standard output; a reader that has gone away is no error.
///
/// # Errors
/// When standard output refuses otherwise.
pub fn print(text: &str) -> Result<()> {
    match anstream::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("standard output"),
    }
}

/// Prints lines of text, none wider than the screen.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_lines(text: &str) -> Result<()> {
    let mut screen = Screen::default();
    text.lines().for_each(|line| screen.line(line));
    print(screen.as_str())
}

/// The exit code of a verdict.
pub fn exit_code(verdict: &Verdict) -> u8 {
    match verdict {
        Verdict::Parity => PARITY,
        Verdict::Diverged => DIVERGED,
        Verdict::Incomparable(_) => UNUSABLE,
    }
}

fn is_stdout(json: Option<&PathBuf>) -> bool {
    json.is_some_and(|path| path == Path::new("-"))
}

fn run_compare(args: CompareArgs) -> Result<u8> {
    let inputs = args.pair.inputs();
    inputs.spare(args.json.as_deref())?;
    let judged = args.pair.judged(|session| match &args.taps {
        Some(patterns) => narrow(session, patterns),
        None => Ok(()),
    })?;
    if let Some(patterns) = args.why.as_deref().filter(|patterns| !crate::why::is_known(&judged.report, patterns)) {
        bail!("--why {patterns}: no tap of either dump matches");
    }
    if let Some(path) = &args.json {
        let mut report = crate::json::report("compare", &judged);
        if let Some(patterns) = &args.why {
            report["why"] = crate::why::json(&judged, patterns);
        }
        crate::json::write(path, &report, &inputs)?;
    }
    if !is_stdout(args.json.as_ref()) {
        let detail = if args.verbose { Detail::Every } else { Detail::Folded };
        let mut screen = render(&judged, detail);
        if let Some(patterns) = &args.why {
            screen.append(&crate::why::render(&judged, patterns));
        }
        print(screen.as_str())?;
    }
    finish(&judged)
}

/// Leaves only the taps that `patterns` name to be looked at.
fn narrow(session: &mut Session, patterns: &str) -> Result<()> {
    let only: std::collections::BTreeSet<Place> =
        session.graph.places().iter().copied().filter(|p| p.tap.matches(patterns)).collect();
    let all: Vec<Tap> = session.graph.places().iter().map(|place| place.tap).collect();
    if let Some(pattern) = matching_none(patterns, &all) {
        bail!("--taps {pattern}: no tap of either dump matches");
    }
    session.options.only = Some(only);
    session.warnings.push(format!("only the taps that match '{patterns}' were looked at"));
    Ok(())
}

/// The first of some patterns that matches none of `taps`.
fn matching_none<'a>(patterns: &'a str, taps: &[Tap]) -> Option<&'a str> {
    patterns.split(',').map(str::trim).find(|pattern| !taps.iter().any(|tap| tap.matches(pattern)))
}

/// The exit code, with the one line that an incomparable pair owes on standard error.
fn finish(judged: &Judged) -> Result<u8> {
    if let Verdict::Incomparable(reason) = &judged.report.verdict {
        bail!(
            "incomparable: {} and {}: {reason}",
            judged.session.reference.path().display(),
            judged.session.candidate.path().display()
        );
    }
    Ok(exit_code(&judged.report.verdict))
}

fn run_gate(args: GateArgs) -> Result<u8> {
    let dumps = args.pair.inputs();
    if args.update {
        dumps.spare(Some(&args.baseline))?;
    }
    let inputs = dumps.clone().and([&args.baseline]);
    inputs.spare(args.json.as_deref())?;
    // A baseline that cannot be read is found before a long comparison.
    let baseline = if args.update { None } else { Some(Baseline::read(&args.baseline)?) };
    let judged = args.pair.judged(|_| Ok(()))?;
    let regressions = baseline.as_ref().map(|b| b.regressions(&judged.report)).unwrap_or_default();
    if let Some(path) = &args.json {
        let held = baseline.as_ref().is_some_and(|b| b.differing() > 0);
        crate::json::write(path, &gate_json(&judged, &regressions, held), &inputs)?;
    }
    let screen = !is_stdout(args.json.as_ref());
    let code = finish(&judged)?;
    if args.update {
        if code != PARITY && !args.accept_diverged {
            print(render(&judged, Detail::Folded).as_str())?;
            bail!(
                "{}: not written, as the two are not at parity (--accept-diverged holds the engine to what it is)",
                args.baseline.display()
            );
        }
        if !Incomplete::of(&judged.session.sides(), None).is_empty() {
            bail!(
                "{}: not written, as a recording is not complete: a baseline is of complete ones",
                args.baseline.display()
            );
        }
        let baseline = Baseline::of(&judged.report)?;
        crate::output::write(&args.baseline, &baseline.to_text(&judged), &dumps)?;
        if screen {
            let differ = match baseline.differing() {
                0 => String::new(),
                count => format!("; not parity: {count} of them differ, and are held to what they are now"),
            };
            let count = taps_in_words(baseline.len());
            let how = as_it_asks(judged.session.loosened);
            print_lines(&format!(
                "gate: baseline of {count} written to {}{how}{differ}\n{}",
                args.baseline.display(),
                note(&judged)
            ))?;
        }
        return Ok(PARITY);
    }
    let held = baseline.as_ref().is_some_and(|b| b.differing() > 0);
    if regressions.is_empty() && (code == PARITY || held) {
        if screen {
            let taps = taps_in_words(baseline.map_or(0, |b| b.len()));
            let (how, path) = (as_it_asks(judged.session.loosened), args.baseline.display());
            let what = if held { "not parity: held to its own baseline, " } else { "" };
            let assumed = judged.session.assumed_cache();
            print_lines(&format!("gate: passed{how}, {what}{taps} no worse than {path}{assumed}\n{}", note(&judged)))?;
        }
        return Ok(PARITY);
    }
    if screen {
        if code != PARITY {
            print(render(&judged, Detail::Folded).as_str())?;
        }
        print_lines(&gate_screen(&regressions))?;
    }
    Ok(DIVERGED)
}

/// That only the candidate asks for such a profile, on a line of its own.
fn note(judged: &Judged) -> String {
    judged.session.loosened.map_or(String::new(), |loosened| format!("note: {}\n", loosened.note()))
}

fn gate_screen(regressions: &[Regression]) -> String {
    let mut text = format!("gate: FAILED, {}\n", taps_in_words(regressions.len()));
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.1e}"));
    for r in regressions.iter().take(10) {
        text +=
            &format!("  {:<26} NMSE was {}, is {}: {}\n", r.place.to_string(), number(r.was), number(r.now), r.reason);
    }
    if regressions.len() > 10 {
        text += &format!("  ... and {} more\n", regressions.len() - 10);
    }
    text
}

/// `held`: whether the baseline is of an engine that was not at parity.
fn gate_json(judged: &Judged, regressions: &[Regression], held: bool) -> serde_json::Value {
    let mut value = crate::json::report("gate", judged);
    let as_good = judged.report.verdict == Verdict::Parity || held && judged.report.verdict == Verdict::Diverged;
    value["passed"] = (regressions.is_empty() && as_good).into();
    value["held_to_own_baseline"] = held.into();
    value["regressions"] = regressions
        .iter()
        .map(|r| json!({"tap": r.place.tap.to_string(), "step": r.place.step, "was": r.was, "now": r.now, "reason": r.reason}))
        .collect();
    value
}

fn run_dump(args: DumpArgs) -> Result<u8> {
    let inputs = Inputs::of([args.model.as_path()]);
    inputs.spare(args.json.as_deref())?;
    let count = dump(&args)?;
    if let Some(path) = &args.json {
        let output = args.output.to_string_lossy();
        let value = json!({"schema": 1, "command": "dump", "output": output, "taps": count});
        crate::json::write(path, &value, &inputs)?;
    }
    if !is_stdout(args.json.as_ref()) {
        print_lines(&format!("{} written to {}\n", taps_in_words(count), args.output.display()))?;
    }
    Ok(PARITY)
}

/// Runs a model and writes the dump, whole or not at all. Gives the number of taps.
///
/// # Errors
/// When the model cannot be read or run, or the output exists.
pub fn dump(args: &DumpArgs) -> Result<usize> {
    let profile = crate::given::arithmetic(args.profile, args.cache);
    let arithmetic = firstdiff_model::Arithmetic { profile, cache: args.cache };
    if args.output.exists() {
        bail!("{}: already exists; remove it, or write elsewhere", args.output.display());
    }
    let model = firstdiff_model::load(&args.model)?;
    if !model.unread.is_empty() {
        let (count, some) = (model.unread.len(), shorten(&model.unread, 3));
        let word = if count == 1 { "tensor of the model is" } else { "tensors of the model are" };
        let _ = writeln!(anstream::stderr(), "firstdiff: note: {count} {word} not used: {}", safe(&some));
    }
    let all: Vec<Tap> = model.plan.steps.iter().map(|step| step.tap).collect();
    if let Some(pattern) = matching_none(&args.taps, &all) {
        bail!("--taps {pattern}: no tap of this model matches");
    }
    crate::output::write_folder(&args.output, |folder| write_dump(args, &model, arithmetic, folder))
}

pub(crate) fn write_dump(
    args: &DumpArgs,
    model: &firstdiff_model::Model,
    arithmetic: firstdiff_model::Arithmetic,
    folder: &Path,
) -> Result<usize> {
    let recorder = Recorder::create(folder)?.only(&args.taps);
    recorder.tokens(&args.tokens.iter().map(|&t| i64::from(t)).collect::<Vec<_>>());
    recorder.describe(|meta| {
        meta.producer = Producer::new("firstdiff", env!("CARGO_PKG_VERSION"));
        meta.model = name(&args.model);
        meta.architecture = Some(model.plan.family.to_string());
        meta.precision = Some(args.profile.name().into());
        meta.cache = (args.cache != Cache::F32).then(|| args.cache.name().into());
        meta.qk_rows = Some(model.qk_rows);
    });
    let prompt = Prompt { tokens: &args.tokens, decode_tokens: &args.decode_tokens };
    let (mut count, mut at) = (0, 0);
    let wanted = |tap: firstdiff_trace::Tap| tap.matches(&args.taps);
    firstdiff_model::run(&model.plan, &model.weights, prompt, arithmetic, wanted, |tap, step, values| {
        while at < step {
            recorder.next_step(i64::from(args.decode_tokens[at as usize]));
            at += 1;
        }
        count += 1;
        match values {
            TapValues::F64(values) => recorder.record_view(tap, values)?,
            TapValues::F32(values) => recorder.record_view(tap, values)?,
        }
        Ok::<(), anyhow::Error>(())
    })?;
    recorder.finish()?;
    Ok(count)
}

/// The model folder's own name, whatever path it was given by.
fn name(model: &Path) -> Option<String> {
    Some(model.canonicalize().ok()?.file_name()?.to_string_lossy().into_owned())
}

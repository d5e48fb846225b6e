//! What can be asked on the command line, and what is answered? Arguments, exit codes, and one function a command.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use firstdiff_compare::{Place, Profile, Verdict};
use firstdiff_model::{Prompt, TapValues};
use firstdiff_trace::{Producer, Recorder, Rows};
use serde_json::json;

use crate::align::AlignArgs;
use crate::baseline::{Baseline, Regression};
use crate::drive::BisectArgs;
use crate::explain::ExplainArgs;
use crate::import::ImportArgs;
use crate::inspect::InspectArgs;
use crate::reading::{ReadingArgs, TokenArgs};
use crate::replay::ReplayArgs;
use crate::screen::{Detail, render};
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
}

const COMPARE_HELP: &str = "Examples:
  firstdiff compare golden/llama out/dump
  firstdiff compare golden/llama 'out/*_cpp.npy' --profile bf16
  firstdiff compare golden/llama last.npz --rows last     the candidate holds the last token only
  firstdiff compare mine theirs --tokens 1,403,407        raw floats on both sides, which say nothing of token positions
  firstdiff compare out/one-pass out/token-by-token       an engine against itself: its decode path, without a reference

A tap is `exact`, within `rounding`, `diverged` (differs though all it reads agrees), `downstream` (differs, and so does something it
reads) or `unchecked`. What is unchecked is neither passed nor blamed. Runs that took the same tokens in other chunks (in one pass,
prefill and steps, token by token) are laid together by token position.";

const DUMP_HELP: &str = "Example:
  firstdiff dump models/TinyLlama -o golden --tokens 1,403,407,261 --taps 'layers.*.h,logits'

Families: llama, mistral, qwen2, qwen3, minimind. Profiles: exact (f64), f32, f16 and bf16 as PyTorch rounds, ggml as llama.cpp's
CPU backend does (activations rounded to what each weight type asks).";

const GATE_HELP: &str = "Examples:
  firstdiff gate golden/llama out/dump --baseline parity.baseline --update    once, and when the change is meant
  firstdiff gate golden/llama out/dump --baseline parity.baseline             in CI

The baseline is a text file with one line a tap. A tap fails when it diverged, is missing, is compared at fewer positions, or its
NMSE is more than 4 times its baseline's (and more than a hundredth of what the profile allows: other processors round otherwise).";

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
    /// Opens both dumps.
    ///
    /// # Errors
    /// When something cannot be read.
    pub fn open(&self) -> Result<Session> {
        self.open_sequence(&self.reading)
    }

    fn open_sequence(&self, reading: &ReadingArgs) -> Result<Session> {
        let session =
            Session::open_with(&self.reference, &self.candidate, self.profile, self.rows.clone(), reading, &self.told)?;
        match &self.model {
            Some(model) => session.with_model(model),
            None => Ok(session),
        }
    }

    /// Opens both dumps and compares them; of a batch every sequence, and the first that is not at parity is the answer.
    ///
    /// # Errors
    /// When something cannot be read.
    pub fn judged(&self, prepare: impl Fn(&mut Session) -> Result<()>) -> Result<Judged> {
        let run = |mut session: Session| {
            prepare(&mut session)?;
            session.run()
        };
        let session = self.open()?;
        let (batch, are_batches) = (session.batch, session.are_batches);
        let mut judged = run(session)?;
        if batch == 1 || self.reading.sequence.is_some() {
            return Ok(judged);
        }
        if are_batches != [true, true] {
            let another =
                |index| run(self.open_sequence(&ReadingArgs { sequence: Some(index), ..self.reading.clone() })?);
            return crate::batch::of_one_prompt(judged, batch, are_batches[0], another);
        }
        let mut shown = 0;
        for index in 1..batch {
            if judged.report.verdict != Verdict::Parity {
                break;
            }
            judged = run(self.open_sequence(&ReadingArgs { sequence: Some(index), ..self.reading.clone() })?)?;
            shown = index;
        }
        let rest = match judged.report.verdict {
            Verdict::Parity => "each was compared by itself; all are at parity, the last is shown".to_owned(),
            _ if shown == 0 => "the first is shown; the others were not looked at".to_owned(),
            _ => {
                format!("sequence {shown} is shown; those before it are at parity, those behind it were not looked at")
            }
        };
        judged.report.warnings.push(format!("a batch of {batch} sequences: {rest}"));
        Ok(judged)
    }
}

#[derive(Debug, Args)]
struct CompareArgs {
    #[command(flatten)]
    pair: PairArgs,
    /// Compare only these taps: patterns with *, separated by commas
    #[arg(long, value_name = "PATTERNS")]
    taps: Option<String>,
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
    #[arg(long, value_delimiter = ',', required = true)]
    pub tokens: Vec<u32>,
    /// Token ids fed one by one after the prompt
    #[arg(long, value_delimiter = ',')]
    pub decode_tokens: Vec<u32>,
    /// Taps to write: patterns with *, separated by commas
    #[arg(long, default_value = "*", value_name = "PATTERNS")]
    pub taps: String,
    /// Arithmetic of the run: exact (f64), f32, f16 and bf16 (as PyTorch), ggml (as llama.cpp)
    #[arg(long, default_value = "f32")]
    pub profile: Profile,
    /// The type keys and values are kept in, for --profile ggml: f32 or f16
    #[arg(long, default_value = "f32", value_parser = crate::given::cache)]
    pub cache: firstdiff_model::Cache,
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
    let judged = args.pair.judged(|session| match &args.taps {
        Some(patterns) => narrow(session, patterns),
        None => Ok(()),
    })?;
    if let Some(path) = &args.json {
        crate::json::write(path, &crate::json::report("compare", &judged))?;
    }
    if !is_stdout(args.json.as_ref()) {
        let detail = if args.verbose { Detail::Every } else { Detail::Folded };
        print(render(&judged, detail).as_str())?;
    }
    finish(&judged)
}

/// Leaves only the taps that `patterns` name to be looked at.
fn narrow(session: &mut Session, patterns: &str) -> Result<()> {
    let only: std::collections::BTreeSet<Place> =
        session.graph.places().iter().copied().filter(|p| p.tap.matches(patterns)).collect();
    if only.is_empty() {
        bail!("--taps {patterns}: no tap of either dump matches");
    }
    session.options.only = Some(only);
    session.warnings.push(format!("only the taps that match '{patterns}' were looked at"));
    Ok(())
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
    // A baseline that cannot be read is found before a long comparison.
    let baseline = if args.update { None } else { Some(Baseline::read(&args.baseline)?) };
    let judged = args.pair.judged(|_| Ok(()))?;
    let regressions = baseline.as_ref().map(|b| b.regressions(&judged.report)).unwrap_or_default();
    if let Some(path) = &args.json {
        crate::json::write(path, &gate_json(&judged, &regressions))?;
    }
    let screen = !is_stdout(args.json.as_ref());
    let code = finish(&judged)?;
    if args.update {
        if code != PARITY {
            print(render(&judged, Detail::Folded).as_str())?;
            bail!("{}: not written, as the two are not at parity", args.baseline.display());
        }
        let baseline = Baseline::of(&judged.report);
        crate::json::write_whole(&args.baseline, &baseline.to_text(&judged))?;
        if screen {
            print(&format!(
                "gate: baseline of {} written to {}\n",
                taps_in_words(baseline.len()),
                args.baseline.display()
            ))?;
        }
        return Ok(PARITY);
    }
    if regressions.is_empty() && code == PARITY {
        if screen {
            let taps = baseline.map_or(0, |b| b.len());
            print(&format!("gate: passed, {} no worse than {}\n", taps_in_words(taps), args.baseline.display()))?;
        }
        return Ok(PARITY);
    }
    if screen {
        if code != PARITY {
            print(render(&judged, Detail::Folded).as_str())?;
        }
        print(&gate_screen(&regressions))?;
    }
    Ok(DIVERGED)
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

fn gate_json(judged: &Judged, regressions: &[Regression]) -> serde_json::Value {
    let mut value = crate::json::report("gate", judged);
    value["passed"] = (regressions.is_empty() && judged.report.verdict == Verdict::Parity).into();
    value["regressions"] = regressions
        .iter()
        .map(|r| json!({"tap": r.place.tap.to_string(), "step": r.place.step, "was": r.was, "now": r.now, "reason": r.reason}))
        .collect();
    value
}

fn run_dump(args: DumpArgs) -> Result<u8> {
    let count = dump(&args)?;
    if let Some(path) = &args.json {
        let output = args.output.to_string_lossy();
        crate::json::write(path, &json!({"schema": 1, "command": "dump", "output": output, "taps": count}))?;
    }
    if !is_stdout(args.json.as_ref()) {
        print(&format!("{} written to {}\n", taps_in_words(count), args.output.display()))?;
    }
    Ok(PARITY)
}

/// Runs a model and writes the dump, whole or not at all. Gives the number of taps.
///
/// # Errors
/// When the model cannot be read or run, or the output exists.
pub fn dump(args: &DumpArgs) -> Result<usize> {
    let profile = crate::given::arithmetic(args.profile, args.cache);
    if args.output.exists() {
        bail!("{}: already exists; remove it, or write elsewhere", args.output.display());
    }
    let model = firstdiff_model::load(&args.model)?;
    if !model.unread.is_empty() {
        let (count, some) = (model.unread.len(), shorten(&model.unread, 3));
        let word = if count == 1 { "tensor of the model is" } else { "tensors of the model are" };
        let _ = writeln!(anstream::stderr(), "firstdiff: note: {count} {word} not used: {}", safe(&some));
    }
    if !model.plan.steps.iter().any(|s| s.tap.matches(&args.taps)) {
        bail!("--taps {}: no tap of this model matches", args.taps);
    }
    crate::json::write_whole_folder(&args.output, |folder| write_dump(args, &model, profile, folder))
}

pub(crate) fn write_dump(
    args: &DumpArgs,
    model: &firstdiff_model::Model,
    profile: firstdiff_model::Profile,
    folder: &Path,
) -> Result<usize> {
    let recorder = Recorder::create(folder)?.only(&args.taps);
    recorder.tokens(&args.tokens.iter().map(|&t| i64::from(t)).collect::<Vec<_>>());
    recorder.describe(|meta| {
        meta.producer = Producer::new("firstdiff", env!("CARGO_PKG_VERSION"));
        meta.model = name(&args.model);
        meta.precision = Some(args.profile.name().into());
        let f16 = args.profile == Profile::Ggml && args.cache == firstdiff_model::Cache::F16;
        meta.cache = f16.then(|| "f16".into());
        meta.qk_rows = Some(model.qk_rows);
    });
    let prompt = Prompt { tokens: &args.tokens, decode_tokens: &args.decode_tokens };
    let (mut count, mut at) = (0, 0);
    let wanted = |tap: firstdiff_trace::Tap| tap.matches(&args.taps);
    firstdiff_model::run(&model.plan, &model.weights, prompt, profile, wanted, |tap, step, values| {
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

//! Defines the command line: one file for each command.

pub(crate) mod align;
pub(crate) mod bisect;
pub(crate) mod ci;
pub(crate) mod compare;
pub(crate) mod completions;
pub mod dump;
pub(crate) mod explain;
pub(crate) mod gate;
pub(crate) mod import;
pub(crate) mod inspect;
pub(crate) mod join;
pub(crate) mod part;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod show;
pub(crate) mod weights;
pub(crate) mod why;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use firstdiff_simd::Level;

use crate::commands::align::AlignArgs;
use crate::commands::bisect::BisectArgs;
use crate::commands::compare::{COMPARE_HELP, CompareArgs, run_compare};
use crate::commands::completions::CompletionsArgs;
use crate::commands::dump::{DUMP_HELP, DumpArgs, run_dump};
use crate::commands::explain::ExplainArgs;
use crate::commands::gate::{GATE_HELP, GateArgs, run_gate};
use crate::commands::import::ImportArgs;
use crate::commands::inspect::InspectArgs;
use crate::commands::join::JoinArgs;
use crate::commands::replay::ReplayArgs;
use crate::commands::report::ReportArgs;
use crate::commands::show::ShowArgs;
use crate::commands::weights::WeightsArgs;
use crate::commands::why::WhyArgs;
use crate::output::{Inputs, UNUSABLE, print, report_error};
use crate::render::screen::Screen;

/// Finds the first tensor where a transformer implementation departs from its reference.
///
/// A dump is a folder with one .npy a tensor (h0, layers.0.q, ..., logits) with or without a dump.json, a .npz, a .safetensors,
/// or a quoted pattern with one '*' where the tensor's name stands. See docs/guide/tutorial.md for how to make one from PyTorch,
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
    /// Makes one report of what several `compare --part` wrote
    #[command(after_help = crate::commands::join::HELP)]
    Join(JoinArgs),
    /// Runs a model through the reference forward pass and writes a dump
    #[command(after_help = DUMP_HELP)]
    Dump(DumpArgs),
    /// Which operations are wrong in themselves? Runs each on the candidate's own recorded inputs
    #[command(after_help = crate::commands::replay::HELP)]
    Replay(ReplayArgs),
    /// Why? Which known mistake reproduces the candidate's own numbers
    #[command(after_help = crate::commands::explain::HELP)]
    Explain(ExplainArgs),
    /// Where, why and what was not checked, as one page: compares, and explains where the model is at hand
    #[command(after_help = crate::commands::report::HELP)]
    Report(ReportArgs),
    /// Did the weights load right? Compares two weight files of any formats, or a file with what an engine dumped
    #[command(after_help = crate::commands::weights::HELP)]
    Weights(WeightsArgs),
    /// Where does an engine part, without a full dump? Runs it again and again, for a few taps each time
    #[command(after_help = crate::commands::bisect::HELP)]
    Bisect(BisectArgs),
    /// What does a dump hold? Shapes, sizes of values, and a map of a tensor
    #[command(after_help = crate::commands::show::HELP)]
    Show(ShowArgs),
    /// What is wrong with a dump by itself? With no reference and no weights; no verdict
    #[command(after_help = crate::commands::inspect::HELP)]
    Inspect(InspectArgs),
    /// Turns other programs' files (raw floats, text, JSON, logs, .pt) into a dump
    #[command(after_help = crate::commands::import::HELP)]
    Import(ImportArgs),
    /// What does an answer's word mean? A cause (rope-pairing) or the form of a measured law (mask.fill), with what to change
    #[command(after_help = crate::commands::why::HELP)]
    Why(WhyArgs),
    /// Proposes taps for tensors whose names are not known, by their content
    #[command(after_help = crate::commands::align::HELP)]
    Align(AlignArgs),
    /// For CI: no tap worse than its baseline
    #[command(after_help = GATE_HELP)]
    Gate(GateArgs),
    /// Prints a script that completes commands and options in a shell
    #[command(after_help = crate::commands::completions::HELP)]
    Completions(CompletionsArgs),
}

/// Runs the command line and returns the exit code. Errors are one line on standard error.
pub fn main() -> u8 {
    if let Some(code) = crate::driver::keeper::run_if_asked(std::env::args_os().skip(1)) {
        return code;
    }
    let mut known = Cli::command();
    let given = known.get_matches_mut();
    if let Some((name, given)) = given.subcommand() {
        known.find_subcommand(name).into_iter().for_each(|command| Inputs::keep(command, given));
    }
    let command = Cli::from_arg_matches(&given).unwrap_or_else(|error| error.exit()).command;
    run(command).unwrap_or_else(|error| {
        report_error(&error);
        UNUSABLE
    })
}

/// Runs one command.
fn run(command: Command) -> Result<u8> {
    // A setting that the kernels would ignore is reported before they run.
    Level::from_env()?;
    match command {
        Command::Compare(args) => run_compare(args),
        Command::Join(args) => crate::commands::join::run(args),
        Command::Dump(args) => run_dump(args),
        Command::Replay(args) => crate::commands::replay::run(args),
        Command::Explain(args) => crate::commands::explain::run(args),
        Command::Report(args) => crate::commands::report::run(args),
        Command::Show(args) => crate::commands::show::run(args),
        Command::Weights(args) => crate::commands::weights::run(args),
        Command::Bisect(args) => crate::commands::bisect::run(args),
        Command::Inspect(args) => crate::commands::inspect::run(args),
        Command::Why(args) => crate::commands::why::run(&args),
        Command::Completions(args) => crate::commands::completions::run(&args),
        Command::Import(args) => crate::commands::import::run(args),
        Command::Align(args) => crate::commands::align::run(args),
        Command::Gate(args) => run_gate(args),
    }
}

/// Prints lines of text, none wider than the screen.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_lines(text: &str) -> Result<()> {
    print(&in_lines(text))
}

/// Lines of text, none wider than the screen.
pub(crate) fn in_lines(text: &str) -> String {
    let mut screen = Screen::default();
    text.lines().for_each(|line| screen.line(line));
    screen.as_str().to_owned()
}

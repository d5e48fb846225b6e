//! `firstdiff compare`: finds where two runs diverge.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Args;
use firstdiff_compare::{JudgedBefore, Share, Verdict};

use crate::commands::ci::{CiArgs, with_unmet};
use crate::commands::part::{narrow, write_part};
use crate::output::{Inputs, exit, is_stdout, print};
use crate::render::compare::render;
use crate::render::gate::unmet_in_words;
use crate::render::html::Page;
use crate::render::screen::{BAD, Detail, paint};
use crate::report::{CiFailure, CiOutcome, Compare};
use crate::session::pair::PairArgs;
use crate::session::{Comparison, Session, TOOLS, Tools};

pub(crate) const COMPARE_HELP: &str = "Examples:
  firstdiff compare golden/llama out/dump
  firstdiff compare golden/llama 'out/*_cpp.npy' --profile bf16
  firstdiff compare golden/llama last.npz --rows last     the candidate holds the last token only
  firstdiff compare mine theirs --tokens 1,403,407        raw floats on both sides, which say nothing of token positions
  firstdiff compare golden/llama out/int8 --noise out/trusted-int8        a quantised engine, beside a second right run
  firstdiff compare out/one-pass out/token-by-token       an engine against itself: its decode path, without a reference
  firstdiff compare golden/llama out/dump --why 'layers.0.q*'             why these taps have their status
  firstdiff compare golden/llama out/dump --html report.html              the same as a page, to look into every tap
  firstdiff compare golden/llama out/dump --part 1/4 -o 1.part            a quarter of the work; `firstdiff join 1.part .. 4.part` is the whole
  firstdiff compare s3://bucket/golden out/dump           elsewhere: s3://, gs://, http://, with the feature `remote`; docs/reference/format.md
  firstdiff compare golden/llama out/dump --require 'layers.*.h,logits' --format github     in CI: these must have been compared

A tap is `exact`, within `rounding`, `diverged` (differs though all it reads agrees), `downstream` (differs, and so does something it
reads) or `unchecked`. What is unchecked is neither passed nor blamed. Runs that took the same tokens in other chunks (in one pass,
prefill and steps, token by token) are aligned by token position and reported per position.

A K/V cache in f16, bf16, q8_0 or e4m3 is part of the arithmetic: --cache, or `cache` in dump.json. Where neither says, and keys, values or the
products with them show one, it is assumed, and the verdict says so.

--noise REF2 is for engines whose rounding no profile describes (8-bit, 4-bit): REF2 is a second right run, such as the reference model in bf16
or quantised in the same way by an engine you trust. A tap may then be as far from REF as REF2 is, times 4 (NMSE); one factor, a row, a head or a
channel is still no rounding. Of a step of fewer than 4 positions the noise is that of the same tap elsewhere, where that is larger, at most 16
times its own. A tap that REF2 lacks, or where it equals REF, is held to the profile.";

#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    #[command(flatten)]
    pair: PairArgs,
    /// Compare only these taps: patterns with *, separated by commas
    #[arg(long, value_name = "PATTERNS")]
    taps: Option<String>,
    #[command(flatten)]
    shown: ShownArgs,
    /// Judge only this share of the taps, such as 2/8, each of about as many bytes, and write what was found: `firstdiff join` makes the whole
    #[arg(long, value_name = "I/N", value_parser = share, requires = "output", conflicts_with_all = SHOWN)]
    part: Option<Share>,
    /// The file that a --part is written to
    #[arg(long, short, value_name = "FILE", requires = "part")]
    output: Option<PathBuf>,
}

/// What is done with a comparison.
#[derive(Debug, Args)]
pub(crate) struct ShownArgs {
    /// Print what each stage of the comparison said of these taps: how a tap was read, aligned, judged, and what changed its status
    #[arg(long, value_name = "PATTERNS")]
    why: Option<String>,
    /// Show every tap on a line of its own
    #[arg(long, short)]
    verbose: bool,
    /// Write the report as JSON to this file (- for standard output, instead of the screen)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as a page to this file: a map of all taps, and of each where in it the error is
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    ci: CiArgs,
}

/// The options of [`ShownArgs`] that do not apply to a part.
const SHOWN: [&str; 8] = ["why", "verbose", "json", "html", "require", "fail_on_unchecked", "format", "junit"];

/// `2/8`.
fn share(text: &str) -> Result<Share, String> {
    let numbers = text.split_once('/').and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
    let share = numbers.map(|(number, of)| Share { number, of });
    share.filter(|share| (1..=share.of).contains(&share.number)).ok_or_else(|| "a share is 1/8 .. 8/8".to_owned())
}

pub(crate) fn run_compare(args: CompareArgs) -> Result<u8> {
    match (args.part, args.output) {
        (Some(share), Some(output)) => write_part(&args.pair, args.taps.as_deref(), share, &output),
        _ => show(&args.pair, args.taps.as_deref(), &args.shown, &[], None),
    }
}

/// Compares, and shows the result. `parts`: files that hold taps `judged` before.
pub(crate) fn show(
    pair: &PairArgs,
    taps: Option<&str>,
    args: &ShownArgs,
    parts: &[PathBuf],
    judged: Option<Arc<JudgedBefore>>,
) -> Result<u8> {
    let inputs = Inputs::of_command_line().also(parts);
    let [junit, summary] = args.ci.files();
    inputs.refuse_inputs_as_outputs([
        args.json.as_deref(),
        args.html.as_deref(),
        junit.as_deref(),
        summary.as_deref(),
    ])?;
    // Only for the session of the parts, which is the first: other sequences, or other rows, have other taps.
    let judged = Cell::new(judged);
    let run = |mut session: Session| {
        session.options.judged = judged.take();
        taps.map_or(Ok(()), |patterns| narrow(&mut session, patterns))?;
        crate::session::run(session)
    };
    let judged = pair.judged(&Tools { run: &run, ..TOOLS })?;
    if let Some(patterns) =
        args.why.as_deref().filter(|patterns| !crate::render::why::is_known(&judged.report, patterns))
    {
        bail!("--why {patterns}: no tap of either dump matches");
    }
    let unmet = args.ci.required_unchecked(&judged.report, pair.rows.is_some())?;
    if args.json.is_some() || args.html.is_some() {
        let mut report = Compare::new("compare", &judged);
        report.required_unchecked = unmet.clone();
        report.why = args.why.as_deref().map(|patterns| crate::render::why::report(&judged, patterns));
        crate::render::json::to_file(args.json.as_deref(), &report, &inputs)?;
        if let Some(path) = &args.html {
            let failed = unmet_in_words(&unmet).into_iter().collect();
            Page { compared: Some((&judged, &report)), failed, ..Page::default() }.to_file(Some(path), &inputs)?;
        }
    }
    let detail = if args.verbose { Detail::Every } else { Detail::Folded };
    let mut screen = render(&judged, detail);
    if let Some(text) = unmet_in_words(&unmet) {
        screen.line(&format!("{} {text}", paint(BAD, "failed:")));
    }
    if let Some(patterns) = &args.why {
        screen.append(&crate::render::why::render(&judged, patterns));
    }
    if !is_stdout(args.json.as_ref()) && !is_stdout(args.html.as_ref()) {
        print(&args.ci.screen_text(screen.as_str()))?;
    }
    let report = &judged.report;
    let unchecked = report.verdict == Verdict::Parity && !unmet.is_empty();
    let concluded = if unchecked { "failed" } else { report.verdict.name() };
    let outcome = CiOutcome { report, concluded, failures: CiFailure::from_report(report, &unmet), held: false };
    args.ci.write_outcome(&outcome, || screen.to_plain(), &inputs)?;
    Ok(with_unmet(finish(&judged)?, &unmet))
}

/// The exit code; prints one line on standard error where the pair is incomparable.
pub(crate) fn finish(judged: &Comparison) -> Result<u8> {
    let [reference, candidate] =
        [&judged.session.reference, &judged.session.candidate].map(|dump| dump.path().display());
    exit(&judged.report.verdict, format_args!("{reference} and {candidate}"))
}

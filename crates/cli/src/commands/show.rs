//! `firstdiff show`: shows what a dump holds.

use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use firstdiff_trace::{Entry, Tap};
use rayon::prelude::*;

use crate::output::{Inputs, PARITY, is_stdout, print};
use crate::report::{Map, NoHead, Show, TensorSummary};
use crate::session::reading::{ReadingArgs, TokenArgs};
use crate::words::{safe, shorten, with_suggestion};

pub(crate) const HELP: &str = "Examples:
  firstdiff show out/dump                        every kind of tensor on a line, layers together
  firstdiff show out/dump 'layers.*.h'           the residual stream, layer by layer
  firstdiff show out/dump layers.0.probs         one tensor: its numbers, and a map of how large its values are
  firstdiff show out/dump layers.0.probs --head 2 --step 1       one head, in the first decode step
  firstdiff show model.npz my_tensor --json -    tensors of any name

A map has token positions downwards and channels (or keys) to the right; each character is the root of the mean square of a few values, from
'.' (small) to '@' (the largest); ' ' is exactly zero and '!' not finite. Nothing here is a verdict: `firstdiff inspect` looks for what no
right engine does, `firstdiff compare` judges. Exit code 0, or 2 for bad input.";

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The dump
    dump: PathBuf,
    /// Show these tensors: patterns with *, separated by commas [default: all, a line for each kind]
    #[arg(value_name = "TAP")]
    taps: Option<String>,
    /// Show this decode step; 0 is the prefill [default: of one tensor the first, else all]
    #[arg(long, value_name = "N")]
    step: Option<u32>,
    /// Map this head alone
    #[arg(long, value_name = "N", requires = "taps")]
    head: Option<usize>,
    #[command(flatten)]
    reading: ReadingArgs,
    #[command(flatten)]
    tokens: TokenArgs,
    /// Show every tensor on a line of its own
    #[arg(long, short)]
    verbose: bool,
    /// Write it as JSON to this file (- for standard output, instead of the screen)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Prints what a dump holds.
///
/// # Errors
/// When it cannot be read, or holds nothing of that name.
pub(crate) fn run(args: ShowArgs) -> Result<u8> {
    let inputs = Inputs::of_command_line();
    inputs.refuse_input_as_output(args.json.as_deref())?;
    let dump = args.reading.asked_sequence(args.tokens.add_tokens(args.reading.open(&args.dump)?)?)?;
    let all = dump.all_entries();
    if all.is_empty() {
        let names: Vec<String> = dump.unmapped().iter().map(|name| safe(name)).collect();
        bail!("{}: no tensor of floats in it: {}", args.dump.display(), shorten(&names, 4));
    }
    let mut requested: Vec<&Entry> = match &args.taps {
        Some(patterns) => all.iter().filter(|entry| entry.tap.matches(patterns)).collect(),
        None => all.iter().collect(),
    };
    if let Some(patterns) = args.taps.as_deref().filter(|_| requested.is_empty()) {
        if let Some(name) = dump.unmapped().iter().find(|name| *name == patterns) {
            bail!("{}: {} is no tensor of floats", args.dump.display(), safe(name));
        }
        bail!("{}: no tensor in it matches {}", args.dump.display(), with_suggestion(patterns));
    }
    let same = |entries: &[&Entry]| entries.iter().all(|entry| entry.tap == entries[0].tap);
    let one: Option<Tap> = (args.taps.is_some() && same(&requested)).then(|| requested[0].tap);
    // For one tensor at several steps, the first is shown in full.
    let step = args.step.or(one.and_then(|_| requested.iter().map(|entry| entry.step).min()));
    let steps: Vec<u32> = requested.iter().map(|entry| entry.step).collect();
    if let Some(step) = step {
        requested.retain(|entry| entry.step == step);
        if requested.is_empty() {
            bail!(
                "--step {step}: none of these tensors is there; the last step is {}",
                steps.iter().max().unwrap_or(&0)
            );
        }
    }
    let bar = crate::progress::Bar::new(&dump);
    let taps: Vec<TensorSummary> =
        requested.par_iter().map(|entry| TensorSummary::read(&dump, entry)).collect::<Result<_, _>>()?;
    bar.finish();
    let map = match requested[..] {
        [entry] => Map::new(entry.tap.site, &dump.read(entry)?, args.head).map_err(|NoHead { head, heads }| {
            anyhow!("--head {head}: in the shape of {} are {heads} heads", entry.tap)
        })?,
        _ if args.head.is_some() => bail!("--head: name one tensor"),
        _ => None,
    };
    let report = Show::new(&dump, all.len(), taps, map);
    crate::render::json::to_file(args.json.as_deref(), &report, &inputs)?;
    if !is_stdout(args.json.as_ref()) {
        let others = steps.len() - requested.len();
        print(
            crate::render::show::screen(&report, args.taps.is_some() || args.verbose, args.verbose, others).as_str(),
        )?;
    }
    Ok(PARITY)
}

//! `firstdiff replay MODEL CAND`: finds operations that are wrong by themselves. Arguments and outputs.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use firstdiff_compare::Verdict;
use firstdiff_explain::explain::Explanation;

use crate::output::{Inputs, is_stdout};
use crate::render::html::Page;
use crate::render::replay::render;
use crate::report::Replay;
use crate::session::asked;
use crate::session::reading::ReadingArgs;
use crate::session::replay::ReplaySession;
use crate::session::source::CandidateArgs;
use crate::session::source::OtherTokens;

pub(crate) const HELP: &str = "Examples:
  firstdiff replay models/TinyLlama out/dump
  firstdiff replay TinyLlama-Q4_K_M.gguf out/dump                    the profile is ggml where dump.json says so
  firstdiff replay model.gguf last.npz --rows last --tokens 1,403,407

Every operation is run on the candidate's own recorded inputs, so one run names every wrong one, whatever came before it. What was not
recorded is computed from the nearest recorded taps before it; the fault then lies in that stretch. No reference run is needed.";

/// The arguments of `replay`.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    pub(crate) candidate: CandidateArgs,
    /// Show every tap on a line of its own
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Write the result as JSON to this file (- for standard output, instead of the screen)
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the result as a page to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// Replays, prints, and returns the exit code.
///
/// # Errors
/// When something cannot be read, or nothing can be judged.
pub(crate) fn run(args: ReplayArgs) -> Result<u8> {
    let (verbose, json) = (args.verbose, args.json.clone());
    let inputs = Inputs::of_command_line();
    inputs.refuse_inputs_as_outputs([json.as_deref(), args.html.as_deref()])?;
    let judge = |candidate_args: CandidateArgs| {
        let input = candidate_args.open()?;
        let Explanation { mut replay, findings, .. } = asked::explain_quickly(&input, 2)?;
        replay.warnings.extend(input.notes());
        Ok(ReplaySession { input, replay, findings })
    };
    let session = run_each_sequence(&args.candidate, judge, |session| session)?;
    let verdict = session.verdict();
    let report = Replay::new(&session, &verdict);
    crate::render::json::to_file(json.as_deref(), &report, &inputs)?;
    Page { replayed: Some(&report), ..Page::default() }.to_file(args.html.as_deref(), &inputs)?;
    if !is_stdout(json.as_ref()) && !is_stdout(args.html.as_ref()) {
        crate::output::print(render(&session, &report, &verdict, verbose).as_str())?;
    }
    crate::output::exit(&verdict, session.input.dump.path().display())
}

/// Judges a candidate; for a batch, every sequence in turn, and the answer is the first that is not right. `session` gives the session of a judgement.
///
/// # Errors
/// When something cannot be read, or nothing can be judged.
pub(crate) fn run_each_sequence<T>(
    args: &CandidateArgs,
    judge: impl Fn(CandidateArgs) -> Result<T>,
    session: impl Fn(&mut T) -> &mut ReplaySession,
) -> Result<T> {
    if args.reading.sequence.is_some() {
        return judge(args.clone());
    }
    let mut of_other_prompts = Vec::new();
    let (count, mut judged) = match judge(args.clone()) {
        Ok(mut judged) => (session(&mut judged).input.sequences, Some(judged)),
        Err(error) => match error.downcast_ref::<OtherTokens>() {
            Some(other) if other.sequences > 1 => {
                of_other_prompts.push("0".to_owned());
                (other.sequences, None)
            }
            _ => return Err(error),
        },
    };
    for index in 1..count {
        if let Some(judged) = judged.take_if(|judged| session(judged).verdict() != Verdict::Parity) {
            return Ok(judged);
        }
        let reading = ReadingArgs { sequence: Some(index), ..args.reading.clone() };
        match judge(CandidateArgs { reading, ..args.clone() }) {
            Ok(next) => judged = Some(next),
            Err(error) if error.is::<OtherTokens>() => of_other_prompts.push(index.to_string()),
            Err(error) => {
                return Err(error).with_context(|| format!(
                    "sequence {index} of a batch of {count}, of which those before it are right (--sequence N judges one)"
                ));
            }
        }
    }
    let Some(mut judged) = judged else {
        bail!("a batch of {count} sequences: none is of the program's prompt; feed both the same tokens");
    };
    if count == 1 {
        return Ok(judged);
    }
    let note = match of_other_prompts.is_empty() {
        true => "those before this one were judged too, and are right".to_owned(),
        false => format!(
            "sequence {} is of another prompt than the program, and was not judged; those that were are right",
            of_other_prompts.join(", ")
        ),
    };
    session(&mut judged).replay.warnings.push(format!("a batch of {count} sequences: {note}"));
    Ok(judged)
}

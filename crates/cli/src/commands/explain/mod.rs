//! `firstdiff explain MODEL CAND`: finds the cause of wrong taps. Arguments and outputs.

mod engine;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use firstdiff_explain::explain::{Effort, Explanation};
use firstdiff_explain::mistakes::{ids, what};

use crate::commands::explain::engine::{EngineSearch, ask};
use crate::commands::replay::run_each_sequence;
use crate::driver::EngineOptions;
use crate::output::{Inputs, is_stdout};
use crate::render::explain::render;
use crate::render::html::Page;
use crate::report::Explain;
use crate::session::asked;
use crate::session::replay::ReplaySession;
use crate::session::source::CandidateArgs;

pub(crate) const HELP: &str = "Examples:
  firstdiff explain models/TinyLlama out/dump
  firstdiff explain model.gguf logits.npz --tokens 1,403,407         the logits alone: the whole model is run under each mistake
  firstdiff explain model.gguf last.npz --rows last --faults 2
  firstdiff explain models/TinyLlama --run './engine tinyllama.gguf' no dump: the engine is run for the few taps that tell

Every operation that replay finds wrong is done again with each known mistake, and a cause is named only when the candidate's own numbers
come out, to rounding. Several mistakes at once are tried where one is not it. Where little was recorded the stretch from the nearest
recorded taps, or from the tokens, is run under each mistake; and `next:` says which taps to record, so that what the operation does instead
can be measured.

With --run the engine is asked for exactly those: first what each layer gives (or, where CAND is named, what that leaves open), then the inside
of the first wrong layer, then the same operations of the other layers that are wrong, until single operations are wrong or nothing more can be
asked; mostly three runs. It is told by FIRSTDIFF_DIR, FIRSTDIFF_TAPS and FIRSTDIFF_TOKENS what to write and where, as `bisect --help` says. It
must feed the same tokens each time. All that it wrote is left as a dump in the folder `evidence` of --work.";

/// The arguments of `explain`.
#[derive(Debug, Args)]
#[command(mut_arg("candidate", |arg| arg.required(false).required_unless_present("run")))]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    candidate: CandidateArgs,
    /// The engine's command line, for the shell: it is run for the taps that the answer needs, and CAND may be left out
    #[arg(long, value_name = "COMMAND")]
    run: Option<String>,
    /// Seconds after which a run that has not ended is stopped, with all it started (with --run)
    #[arg(long, default_value_t = 600.0, value_name = "SECONDS")]
    timeout: f64,
    /// Folder for the runs; made where it is not there (with --run)
    #[arg(long, default_value = "firstdiff-explain", value_name = "DIR")]
    work: PathBuf,
    /// Do not take up an interrupted search: run everything again (with --run)
    #[arg(long)]
    fresh: bool,
    /// How many mistakes at once to try between two recorded taps
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=5))]
    faults: u8,
    /// Seconds for each kind of search in each stretch, of processor time on each thread (single mistakes take four times as long at most). Of a model wider than 1024 it is the clock that counts, and a stretch takes five times as long at most. Not a limit for the whole
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Try these ids of the catalogue only
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    only: Vec<String>,
    /// A reference's dump: whether it is right itself is judged as well
    #[arg(long = "ref", value_name = "REF")]
    reference: Option<PathBuf>,
    /// List all that was tried, with the best residual of each
    #[arg(long, short)]
    verbose: bool,
    /// Write the result as JSON to this file (- for standard output, instead of the screen)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the result as a page to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Explains, prints, and returns the exit code.
///
/// # Errors
/// When something cannot be read, or nothing can be judged.
pub(crate) fn run(args: ExplainArgs) -> Result<u8> {
    for id in &args.only {
        if what(id).is_empty() {
            let stem = id.split('-').next().unwrap_or_default();
            let near: Vec<&str> = ids().into_iter().filter(|known| known.starts_with(stem)).collect();
            let near = if near.is_empty() { ids() } else { near };
            bail!("--only {id}: no such id; there is {}", near.join(", "));
        }
    }
    let inputs = Inputs::of_command_line();
    inputs.refuse_inputs_as_outputs([args.json.as_deref(), args.html.as_deref()])?;
    let effort = Effort {
        only: args.only.clone(),
        faults: usize::from(args.faults),
        seconds: args.seconds,
        ..Effort::default()
    };
    let reference =
        args.reference.as_ref().map(|path| explain_reference(&args.candidate, path, &effort)).transpose()?;
    let quiet = is_stdout(args.json.as_ref()) || is_stdout(args.html.as_ref());
    let search = args.asking().map(|asking| ask(&args.candidate, &asking, quiet)).transpose()?;
    let explained = match &search {
        Some(search) => explained(search.candidate.clone(), &effort)?,
        None => run_each_sequence(&args.candidate, |of| explained(of, &effort), |explained| &mut explained.session)?,
    };
    search.as_ref().map(EngineSearch::finish).transpose()?;
    let verdict = explained.session.verdict();
    let (session, of) = (&explained.session, reference.as_ref().map(|reference| &reference.session));
    let report = Explain {
        asked: search.as_ref().map(EngineSearch::report),
        ..Explain::new(session, &verdict, &explained.not_testable, of)
    };
    crate::render::json::to_file(args.json.as_deref(), &report, &inputs)?;
    Page { explained: Some(&report), ..Page::default() }.to_file(args.html.as_deref(), &inputs)?;
    if !quiet {
        crate::output::print(render(session, &report, &verdict, args.verbose).as_str())?;
    }
    crate::output::exit(&verdict, explained.session.input.dump.path().display())
}

impl ExplainArgs {
    /// The engine to ask, if there is one.
    fn asking(&self) -> Option<EngineOptions> {
        let (work, fresh) = (self.work.clone(), self.fresh);
        self.run.clone().map(|command| EngineOptions { command, timeout: self.timeout, work, fresh })
    }
}

/// A dump that was explained.
pub(crate) struct ExplainedDump {
    pub(crate) session: ReplaySession,
    pub(crate) not_testable: Vec<String>,
}

/// Explains one sequence.
///
/// # Errors
/// When something cannot be read, or nothing can be judged.
pub(crate) fn explained(args: CandidateArgs, effort: &Effort) -> Result<ExplainedDump> {
    let input = args.open()?;
    let Explanation { mut replay, findings, not_testable } = asked::run_search(&input, effort)?;
    replay.warnings.extend(input.notes());
    Ok(ExplainedDump { session: ReplaySession { input, replay, findings }, not_testable })
}

/// The reference, explained like a candidate.
fn explain_reference(args: &CandidateArgs, path: &Path, effort: &Effort) -> Result<ExplainedDump> {
    let candidate = Some(path.to_owned());
    explained(CandidateArgs { candidate, profile: None, cache: None, rows: None, ..args.clone() }, effort)
}

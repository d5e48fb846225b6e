//! `firstdiff report`: writes one page with where, why and what was not checked.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use firstdiff_compare::Verdict;
use firstdiff_explain::explain::Effort;

use crate::commands::compare::finish;
use crate::commands::explain::explained;
use crate::output::{Inputs, is_stdout, print};
use crate::render::html::Page;
use crate::report::{Compare, CompareAndExplain, Explain};
use crate::session::ids;
use crate::session::is_recorded;
use crate::session::pair::PairArgs;
use crate::session::source::CandidateArgs;
use crate::words::one_line;

pub(crate) const HELP: &str = "Examples:
  firstdiff report golden/llama out/dump                             writes report.html
  firstdiff report golden/llama out/dump --model models/TinyLlama -o llama.html
  firstdiff report golden/llama out/dump --noise out/bf16            with the error over the noise of a second right run

The page is one file that asks the network for nothing: it can be kept as an artefact of CI, or sent. Its first screen says what is concluded,
the cause or law with its proof, what was not checked, and what to do next; below stand a map of all taps, the growth of the error along the
residual stream, and of any tap that is chosen, where in it the error is.

The cause is sought where the model is at hand: --model, or a reference that holds its program and finds its weights. What compare, replay and
explain print can be written the same way (--html FILE).

Exit codes are those of compare.";

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    pair: PairArgs,
    /// The file to write (- for standard output)
    #[arg(long, short, default_value = "report.html", value_name = "FILE")]
    output: PathBuf,
    /// Write what the page says as JSON to this file (- for standard output, instead of the last line)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The weights of a recorded program, a folder or a file [default: the folder that the program names]
    #[arg(long, value_name = "MODEL", conflicts_with = "model")]
    weights: Option<PathBuf>,
    /// Seconds for each kind of search for the cause in each stretch; 0 seeks none
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
}

/// Compares, explains where possible, writes the page, and returns the exit code.
///
/// # Errors
/// When something cannot be read, or the page not written.
pub(crate) fn run(args: ReportArgs) -> Result<u8> {
    let inputs = Inputs::of_command_line();
    inputs.refuse_inputs_as_outputs([Some(&*args.output), args.json.as_deref()])?;
    if !args.seconds.is_finite() || args.seconds < 0.0 {
        bail!("--seconds {}: must be 0 or more", args.seconds);
    }
    let judged = args.pair.judged(&crate::session::TOOLS)?;
    let mut compared = Compare::new("report", &judged);
    let is_wanted = judged.report.verdict == Verdict::Diverged && args.seconds > 0.0;
    let model = args.pair.model.as_deref().or_else(|| Some(&*args.pair.reference).filter(|path| is_recorded(path)));
    let explanation = model.filter(|_| is_wanted).map(|model| explanation(&args, model)).transpose();
    let no_cause = explanation.as_ref().err().map(one_line);
    compared.warnings.extend(no_cause.iter().map(|why| format!("no cause was sought: {why}")));
    let explanation = explanation.ok().flatten();
    Page { compared: Some((&judged, &compared)), explained: explanation.as_ref(), ..Page::default() }
        .to_file(Some(&args.output), &inputs)?;
    if let Some(path) = &args.json {
        let both = CompareAndExplain { compare: compared.clone(), explained: explanation, no_cause };
        crate::render::json::to_file(Some(path), &both, &inputs)?;
    }
    if !is_stdout(Some(&args.output)) && !is_stdout(args.json.as_ref()) {
        let first = compared.first_divergence.as_ref();
        let at = first.map_or(String::new(), |first| format!(" first divergence {} ({})", first.place, first.op));
        print(&format!("{}:{at} {}\n", judged.report.verdict.name(), args.output.display()))?;
    }
    finish(&judged)
}

fn explanation(args: &ReportArgs, model: &Path) -> Result<Explain> {
    let pair = &args.pair;
    let candidate_args = CandidateArgs {
        model: model.to_owned(),
        candidate: Some(pair.candidate.clone()),
        profile: pair.profile,
        cache: pair.cache,
        weights: args.weights.clone(),
        tokens: pair.tokens.tokens.as_deref().map(ids).transpose()?,
        decode_tokens: pair.tokens.decode_tokens.as_deref().map(ids).transpose()?,
        rows: pair.rows.clone(),
        reading: pair.reading.clone(),
    };
    let judged = explained(candidate_args, &Effort { seconds: args.seconds, ..Effort::default() })?;
    let verdict = judged.session.verdict();
    Ok(Explain::new(&judged.session, &verdict, &judged.not_testable, None))
}

//! `firstdiff inspect CAND`: checks one dump without a reference.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use firstdiff_compare::{Certainty, inspect};
use firstdiff_trace::Rows;

use crate::output::{DIVERGED, Inputs, PARITY};
use crate::progress::Bar;
use crate::report::Inspect;
use crate::session::incomplete::Incomplete;
use crate::session::is_recorded;
use crate::session::own_program::OwnProgram;
use crate::session::reading::refuse_rows;
use crate::words::{shorten, with_suggestion};

pub(crate) const HELP: &str = "Examples:
  firstdiff inspect out/dump                            before there is a reference, or weights to hand
  firstdiff inspect 'out/*_cpp.npy' --json -
  firstdiff inspect last.npz --rows last                the dump holds the last token only

Looks for what no right engine does: NaN, tensors or tails of exact zeros, uninitialised memory, constant rows, probabilities that do not
sum to 1 or lie behind the query, q_rope that equals q, rows that do not change with position, a residual stream that does not add up, one
buffer under two names. Each line says how sure it is: `certain` (no right engine does this), `likely`, or `note`. Where dump.json names no
architecture, or one that is no plain decoder, what another architecture may do on purpose (no RoPE, no mask, no softmax) is `likely` at most.
Where the dump holds its program (program.json), the operations that read no weights are carried out on the dump's own tensors: what is not
their result is `likely` wrong, and what they do themselves is a `note`.
None is a verdict: a dump without findings may still be wrong everywhere. Exit code 0: nothing certain. 1: something certain. 2: bad input.";

/// The arguments of `inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The dump to look at
    #[arg(value_name = "CAND")]
    pub(crate) candidate: PathBuf,
    /// Token positions the dump holds: all, last, or 0,3,7
    #[arg(long)]
    pub(crate) rows: Option<Rows>,
    #[command(flatten)]
    pub(crate) reading: crate::session::reading::ReadingArgs,
    #[command(flatten)]
    pub(crate) told: crate::session::reading::TokenArgs,
    /// Show every finding on a line of its own
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Write the result as JSON to this file (- for standard output, instead of the screen)
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Inspects, prints, and returns the exit code.
///
/// # Errors
/// When something cannot be read, or the dump holds no tap.
pub(crate) fn run(args: InspectArgs) -> Result<u8> {
    let inputs = Inputs::of_command_line();
    inputs.refuse_input_as_output(args.json.as_deref())?;
    let dump = args.told.add_tokens(args.reading.open(&args.candidate)?)?;
    let dump = args.reading.asked_sequence(dump)?;
    refuse_rows(args.rows.as_ref(), &[&dump])?;
    let dump = firstdiff_compare::with_positions(dump).printed_as_f16();
    if let (true, Some(part)) = (dump.entries().is_empty(), dump.parts().first()) {
        let how = part.precision().map_or("in part".to_owned(), |p| format!("with {p}"));
        bail!(
            "{}: its taps are known {how} only ({} ..): `compare` uses such, inspect needs whole tensors",
            args.candidate.display(),
            part.tap
        );
    }
    if dump.entries().is_empty() && dump.open_taps().is_empty() {
        let names: Vec<String> = dump.unmapped().iter().map(|n| with_suggestion(n)).collect();
        bail!("{}: no tensor in it is named as a tap: {}", args.candidate.display(), shorten(&names, 4));
    }
    let bar = Bar::new(&dump);
    let mut inspection = inspect(&dump, args.rows.as_ref(), &mut |done, total| bar.step(done, total))?;
    bar.finish();
    if is_recorded(&args.candidate) {
        let own = OwnProgram::run(&args.candidate, args.rows.clone(), &args.reading, &args.told, &inspection)?;
        own.apply_to(&mut inspection);
    }
    let report = Inspect::new(&dump, &inspection);
    crate::render::json::to_file(args.json.as_deref(), &report, &inputs)?;
    if args.json.as_deref() != Some(Path::new("-")) {
        crate::output::print(crate::render::inspect::render(&report, &inspection, args.verbose).as_str())?;
    }
    if inspection.count(Certainty::Certain) > 0 {
        return Ok(DIVERGED);
    }
    let incomplete = Incomplete::find_in(&[("the candidate", &dump)], None);
    match incomplete.is_empty() || args.reading.partial {
        true => Ok(PARITY),
        false => bail!("{}: {}", args.candidate.display(), incomplete.why_no_parity()),
    }
}

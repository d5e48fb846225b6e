//! `firstdiff align REF CAND`: proposes taps for tensors of unknown name, and writes them as a table of names with the evidence, to check and keep.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use firstdiff_compare::{Naming, Profile, propose, unnamed};

use crate::commands::print_lines;
use crate::output::{Inputs, PARITY, print};
use crate::progress::Bar;
use crate::render::names::{table, written};
use crate::report::Align;
use crate::session::reading::{ReadingArgs, TokenArgs};
use crate::words::{safe, shorten};

pub(crate) const HELP: &str = "Example:
  firstdiff align golden out -o firstdiff.toml          propose, look at it, then
  firstdiff compare golden out                          compares by it (or --map FILE)

A name is proposed for a tap where the tensor holds the reference's values, in whatever order and layout, and no other tap's values come near;
then for all layers whose names differ in the number alone. Of several names of the same values one is proposed, and the others are shown. What only
its size speaks for, or its words, its layer's number and the order of writing, is a guess: a comment, which counts once you take the # away.
Nothing here is a verdict: compare uses a table only where you give it one.";

/// The arguments of `align`.
#[derive(Debug, Args)]
pub(crate) struct AlignArgs {
    /// The reference's dump, whose names are known
    #[arg(value_name = "REF")]
    reference: PathBuf,
    /// The candidate's dump
    #[arg(value_name = "CAND")]
    candidate: PathBuf,
    /// Write the table to this file; it must not exist [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// In what arithmetic a right candidate works: exact, f32, f16, bf16, ggml
    #[arg(long, default_value = "f32")]
    profile: Profile,
    #[command(flatten)]
    reading: ReadingArgs,
    #[command(flatten)]
    tokens: TokenArgs,
    /// Write the proposals as JSON to this file (- for standard output)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Proposes names, writes the table, and returns the exit code: 0 where every name found its tap or there was none to find, 2 where nothing could be
/// proposed.
///
/// # Errors
/// When something cannot be read or written, or nothing can be proposed.
pub(crate) fn run(args: AlignArgs) -> Result<u8> {
    if let Some(output) = args.output.as_ref().filter(|path| path.is_file() || path.is_dir()) {
        bail!("{}: already exists; remove it, or write elsewhere", output.display());
    }
    let inputs = Inputs::of_command_line();
    inputs.refuse_input_as_output(args.json.as_deref())?;
    let reference = args.tokens.add_tokens(args.reading.open(&args.reference)?)?;
    let candidate = args.tokens.add_tokens(args.reading.open_beside(reference.names_read(), &args.candidate)?)?;
    if unnamed(&reference, &candidate).next().is_none() {
        crate::render::json::to_file(args.json.as_deref(), &Align::new(&Naming::default()), &inputs)?;
        if args.json.as_deref() != Some(Path::new("-")) {
            print_lines(&format!(
                "every tensor of {} has a name that is known: nothing to align\n",
                candidate.path().display()
            ))?;
        }
        return Ok(PARITY);
    }
    let bar = Bar::new(&candidate);
    let naming =
        propose(&reference, &candidate, args.profile, args.reading.sequence.unwrap_or(0), &mut |done, total| {
            bar.step(done, total)
        })?;
    bar.finish();
    crate::render::json::to_file(args.json.as_deref(), &Align::new(&naming), &inputs)?;
    if naming.proposals.is_empty() && naming.aliases.is_empty() {
        bail!(
            "{}: none of its {} unknown names could be given a tap (first {}): are both runs of the same tokens, and is the \
             reference's dump whole?",
            candidate.path().display(),
            naming.unknown.len(),
            safe(&shorten(&naming.unknown, 3))
        );
    }
    let text = table(&naming, &args.reference, &args.candidate);
    match &args.output {
        Some(path) => {
            crate::output::write(path, &text, &inputs)?;
            print(written(&naming, path).as_str())?;
        }
        None if args.json.as_deref() != Some(Path::new("-")) => print(&text)?,
        None => {}
    }
    Ok(PARITY)
}

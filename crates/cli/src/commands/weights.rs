//! `firstdiff weights A B`: compares two files of weights.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use firstdiff_compare::Verdict;
use firstdiff_explain::weights::{Compared, Comparison, Options, Side, State, compare};
use firstdiff_program::{Operand, Program};

use crate::output::Inputs;
use crate::progress::Bar;
use crate::report::Weights;
use crate::session::is_recorded;
use crate::session::source::{program_weights, refuse_weights};

pub(crate) const HELP: &str = "Examples:
  firstdiff weights models/TinyLlama TinyLlama-Q4_K_M.gguf
  firstdiff weights model.gguf out/            what an engine dumped after loading: weights.blk.0.attn_q.npy, w_wq0.f32 ...
  firstdiff weights stories.bin stories.gguf --sample
  firstdiff weights golden model.gguf          a reference's dump with its program, which names its weights and says which of them are read

Formats: Hugging Face folders, .safetensors, .gguf (split or whole), llama2.c .bin, MiniMind .json, .npz, and folders of .npy, raw .f32 or text.
A is taken for right. Names are mapped, Q and K rows brought into one RoPE order, and each tensor's error held against what its element type
must cost. What one file joins and the other does not (qkv_proj, gate_up_proj) is found by names and content. Of an architecture that is not known,
names that mean one part of a block are mapped, and stacked experts, transposed tensors and gains with 1 added are found so too. What no rule maps is listed as not checked. Exit code 0: the same weights. 1: something is wrong. 2: nothing to compare, or bad input.";

/// Two weight files.
#[derive(Debug, Args)]
pub(crate) struct WeightsArgs {
    /// The right weights; or a reference's dump that holds its program
    #[arg(value_name = "A")]
    pub(crate) a: PathBuf,
    /// The weights in question, or what an engine dumped of them
    #[arg(value_name = "B")]
    pub(crate) b: PathBuf,
    /// A reference's dump that holds its program: it says which weights are read
    #[arg(long, value_name = "GOLDEN")]
    pub(crate) program: Option<PathBuf>,
    /// The weights of a recorded program, where A is one [default: the folder that the program names]
    #[arg(long, value_name = "MODEL")]
    pub(crate) weights: Option<PathBuf>,
    /// Look at one tile of rows in 16
    #[arg(long)]
    pub(crate) sample: bool,
    /// Show every tensor on a line of its own
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Write the result as JSON to this file (- for standard output, instead of the screen)
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Compares, prints, and returns the exit code.
///
/// # Errors
/// When something cannot be read, or nothing can be compared.
pub(crate) fn run(args: WeightsArgs) -> Result<u8> {
    let inputs = Inputs::of_command_line();
    inputs.refuse_input_as_output(args.json.as_deref())?;
    let (program, a) = right_weights(&args)?;
    let sides = [Side::open(&a)?, Side::open(&args.b)?];
    let bar = Bar::of_tensors();
    let mut comparison =
        compare(&sides[0], &sides[1], Options { sample: args.sample }, &mut |done, total| bar.step(done, total))?;
    bar.finish();
    let read = program.as_ref().and_then(|program| say_what_is_read(program, &mut comparison));
    let verdict = verdict(&comparison, read.as_deref(), program.is_some());
    let report = Weights::new(&sides, &comparison, &verdict);
    crate::render::json::to_file(args.json.as_deref(), &report, &inputs)?;
    if args.json.as_deref() != Some(Path::new("-")) {
        crate::output::print(crate::render::weights::render(&report, &comparison, &verdict, args.verbose).as_str())?;
    }
    crate::output::exit(&verdict, format_args!("{} and {}", args.a.display(), args.b.display()))
}

/// The program that shows which weights are read, if there is one, and the path of the right weights.
fn right_weights(args: &WeightsArgs) -> Result<(Option<Program>, PathBuf)> {
    let open = |golden: &Path| Program::open(golden).with_context(|| golden.display().to_string());
    match (is_recorded(&args.a), &args.program) {
        (true, Some(_)) => bail!("--program: {} holds a program of its own", args.a.display()),
        (true, None) => {
            let program = open(&args.a)?;
            let path = program_weights(&args.a, args.weights.as_deref(), &program)?;
            Ok((Some(program), path))
        }
        (false, golden) => {
            refuse_weights(&args.a, args.weights.as_deref())?;
            Ok((golden.as_deref().map(open).transpose()?, args.a.clone()))
        }
    }
}

/// Unchecked tensors matter where the program reads them, and nowhere else. Returns the name of the first one that it reads.
fn say_what_is_read(program: &Program, comparison: &mut Comparison) -> Option<String> {
    let mut first = None;
    let mut readers: BTreeMap<&str, usize> = BTreeMap::new();
    for (number, op) in program.ops().iter().enumerate() {
        for view in op.operands.iter().flat_map(Operand::views) {
            if let Some(name) = program.weights().get(&view.buffer) {
                readers.entry(name).or_insert(number);
            }
        }
    }
    for tensor in &mut comparison.tensors {
        let (State::Unchecked(reason), Some(name)) = (&mut tensor.state, &tensor.names[0]) else { continue };
        match readers.get(name.as_str()) {
            Some(&op) => {
                *reason += &format!("; the program reads it: {}", program.said(op));
                first = first.or(Some(name.clone()));
            }
            None => *reason += "; the program does not read it",
        }
    }
    first
}

/// `read`: an unchecked tensor that the program reads; `is_recorded`: whether there is a program that shows this.
fn verdict(comparison: &Comparison, read: Option<&str>, is_recorded: bool) -> Verdict {
    let checked = comparison.count(|s| !matches!(s, State::Unchecked(_)));
    // A tensor that the second file lacks was not expected there.
    let is_open = |tensor: &&Compared| matches!(tensor.state, State::Unchecked(_)) && tensor.names[1].is_some();
    let unchecked = comparison.tensors.iter().filter(is_open).count();
    match (comparison.findings.is_empty(), checked) {
        (true, 0) => Verdict::Incomparable("they share no weight that could be compared".into()),
        (true, _) if let Some(read) = read => Verdict::Incomparable(format!(
            "what could be compared agrees, but not {read}, which the program reads (--verbose lists all)"
        )),
        (true, _) if let (false, Some(name)) = (is_recorded, comparison.unfound.first()) => {
            Verdict::Incomparable(format!(
                "what could be compared agrees, but nothing was found that is made of {}{}: --program says whether it is read (--verbose lists all)",
                name,
                match comparison.unfound.len() {
                    1 => String::new(),
                    count => format!(" and {} more", count - 1),
                }
            ))
        }
        (true, _) if unchecked > checked => Verdict::Incomparable(format!(
            "{checked} tensors agree, and {unchecked} could not be compared: --verbose lists them"
        )),
        (true, _) => Verdict::Parity,
        (false, _) => Verdict::Diverged,
    }
}

//! `firstdiff dump`: runs a model through the reference forward pass, or executes a recorded program, and writes a dump.

mod program;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use firstdiff_compare::Profile;
use firstdiff_model::{Prompt, TapValues};
use firstdiff_trace::{Cache, Producer, Recorder, Tap};

use crate::commands::ci::matching_none;
use crate::commands::print_lines;
use crate::output::{Inputs, PARITY, is_stdout};
use crate::report;
use crate::session::is_recorded;
use crate::session::reading::token;
use crate::session::source::refuse_weights;
use crate::words::{safe, shorten, taps_in_words};

pub(crate) const DUMP_HELP: &str = "Examples:
  firstdiff dump models/TinyLlama -o golden --tokens 1,403,407,261 --taps 'layers.*.h,logits'
  firstdiff dump golden -o golden-exact --profile exact                 a dump with its program, carried out in f64

Families: llama, mistral, qwen2, qwen3, minimind. Profiles: exact (f64), f32, f16 and bf16 as PyTorch rounds, ggml as llama.cpp's
CPU backend does (activations rounded to what each weight type asks).

A dump that holds its program (program.json) is of any architecture, and is carried out as it was recorded: with the same tokens in the same
steps. Its shapes, masks and branches are those of these tokens; others are refused.";

/// A model folder, and what to dump of a run of it.
#[derive(Debug, Args)]
pub struct DumpArgs {
    /// A Hugging Face folder, a .gguf, a llama2.c .bin or a MiniMind .json; or a reference's dump that holds its program
    pub model: PathBuf,
    /// Folder to write the dump to; it must not exist
    #[arg(long, short)]
    pub output: PathBuf,
    /// Token ids of the prompt, separated by commas; of a recorded program they are known
    #[arg(long, value_delimiter = ',', value_parser = token::<u32>)]
    pub tokens: Vec<u32>,
    /// Token ids fed one by one after the prompt
    #[arg(long, value_delimiter = ',', value_parser = token::<u32>)]
    pub decode_tokens: Vec<u32>,
    /// Taps to write: patterns with *, separated by commas
    #[arg(long, default_value = "*", value_name = "PATTERNS")]
    pub taps: String,
    /// Arithmetic of the run: exact (f64), f32, f16 and bf16 (as PyTorch), ggml (as llama.cpp) [default: f32; of a recorded program what its dump says]
    #[arg(long)]
    pub profile: Option<Profile>,
    /// The type keys and values are kept in: f32, f16, bf16, q8_0, e4m3
    #[arg(long, default_value = "f32")]
    pub cache: Cache,
    /// The weights of a recorded program, a folder or a file [default: the folder that the program names]
    #[arg(long, value_name = "MODEL")]
    pub weights: Option<PathBuf>,
    /// Write what was done as JSON to this file (- for standard output)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

pub(crate) fn run_dump(args: DumpArgs) -> Result<u8> {
    let inputs = Inputs::of_command_line();
    inputs.refuse_input_as_output(args.json.as_deref())?;
    let count = dump(&args)?;
    crate::render::json::to_file(args.json.as_deref(), &report::Dump::new(&args.output, count), &inputs)?;
    if !is_stdout(args.json.as_ref()) {
        print_lines(&format!("{} written to {}\n", taps_in_words(count), args.output.display()))?;
    }
    Ok(PARITY)
}

/// Runs a model, or executes a recorded program, and writes the dump, completely or not at all. Returns the number of taps.
///
/// # Errors
/// When the model cannot be read or run, or the output exists.
pub fn dump(args: &DumpArgs) -> Result<usize> {
    if args.output.exists() {
        bail!("{}: already exists; remove it, or write elsewhere", args.output.display());
    }
    if is_recorded(&args.model) {
        return program::dump(args);
    }
    refuse_weights(&args.model, args.weights.as_deref())?;
    if args.tokens.is_empty() {
        bail!("--tokens: {} says nothing of a prompt; name the token ids, as 1,403,407", args.model.display());
    }
    let model = firstdiff_model::load(&args.model)?;
    if !model.unread.is_empty() {
        let (count, some) = (model.unread.len(), shorten(&model.unread, 3));
        let word = if count == 1 { "tensor of the model is" } else { "tensors of the model are" };
        let _ = writeln!(anstream::stderr(), "firstdiff: note: {count} {word} not used: {}", safe(&some));
    }
    let all: Vec<Tap> = model.plan.steps.iter().map(|step| step.tap).collect();
    if let Some(pattern) = matching_none(&args.taps, &all) {
        bail!("--taps {pattern}: no tap of this model matches");
    }
    crate::output::write_folder(&args.output, |folder| write_dump(args, &model, folder))
}

pub(crate) fn write_dump(args: &DumpArgs, model: &firstdiff_model::Model, folder: &Path) -> Result<usize> {
    let named = args.profile.unwrap_or(Profile::F32);
    let profile = firstdiff_explain::program::profile(named, args.cache);
    let arithmetic = firstdiff_model::RunPrecision { profile, cache: args.cache };
    let recorder = Recorder::create(folder)?.only(&args.taps);
    recorder.tokens(&args.tokens.iter().map(|&t| i64::from(t)).collect::<Vec<_>>());
    recorder.describe(|meta| {
        meta.producer = Producer::new("firstdiff", env!("CARGO_PKG_VERSION"));
        meta.model = name(&args.model);
        meta.architecture = Some(model.plan.family.to_string());
        meta.precision = Some(named.name().into());
        meta.cache = (args.cache != Cache::F32).then(|| args.cache.name().into());
        meta.qk_rows = Some(model.qk_rows);
    });
    let prompt = Prompt { tokens: &args.tokens, decode_tokens: &args.decode_tokens };
    let (mut count, mut at) = (0, 0);
    let wanted = |tap: firstdiff_trace::Tap| tap.matches(&args.taps);
    firstdiff_model::run(&model.plan, &model.weights, prompt, arithmetic, wanted, |tap, step, values| {
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

/// The model folder's own name, whatever path leads to it.
pub(crate) fn name(model: &Path) -> Option<String> {
    Some(model.canonicalize().ok()?.file_name()?.to_string_lossy().into_owned())
}

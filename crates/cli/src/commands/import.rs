//! `firstdiff import SOURCE -o DIR`: converts files of other programs into a dump of format 1.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use firstdiff_trace::{Dump, Entry, Names, OpenOptions, Recorder, Rows, Values, element_count};
use ndarray::{ArrayViewD, IxDyn};

use crate::commands::print_lines;
use crate::output::{Inputs, PARITY};
use crate::render::import::summary;
use crate::report::Import;
use crate::session::reading::{ReadingArgs, token};
use crate::words::{shorten, taps_in_words, with_suggestion};

pub(crate) const HELP: &str = "Examples:
  firstdiff import 'out/*_cpp.npy' -o dump --tokens 1,403,407          raw floats that are called .npy
  firstdiff import logits.f32 -o dump --shape 5,512                    one tensor
  firstdiff import hidden.bin -o dump --name layers.3.h --dtype f16 --rows last
  firstdiff import out -o dump --map firstdiff.toml --like golden      names by a table, shapes from a reference

Every command reads such files directly: import is for keeping them. Known: .npy (also raw floats of that name), .npz, .safetensors, raw floats
(.f32 .f16 .bf16 .f64 .bin .raw), text (`v`, `i v`, `i: v`, `[i] = v`, as NumPy and PyTorch print, under headings), JSON (arrays, base64 tensors, manifests of binaries, transformers'
debug trees), JSON lines, logs of llama.cpp's eval callback, torch.save's .pt (SGLang's dumper). Names: the vocabulary's, those of Hugging
Face modules, llama.cpp, TransformerLens, llm.c, candle, celer_infer and RusTorch, and your own table.";

/// The arguments of `import`.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// A file, a folder, or a quoted pattern with one '*'
    source: PathBuf,
    /// Folder to write the dump to; it must not exist
    #[arg(long, short)]
    output: PathBuf,
    /// The tap that a single file holds
    #[arg(long, value_name = "TAP")]
    name: Option<String>,
    /// The shape of a single file's tensor: 5,512
    #[arg(long, value_delimiter = ',')]
    shape: Option<Vec<usize>>,
    /// Take the shapes of flat tensors from this dump, where the sizes are the same
    #[arg(long, value_name = "REF")]
    like: Option<PathBuf>,
    /// Token ids of the prompt
    #[arg(long, value_delimiter = ',', value_parser = token::<i64>)]
    tokens: Option<Vec<i64>>,
    /// Token ids fed one by one after the prompt
    #[arg(long, value_delimiter = ',', value_parser = token::<i64>)]
    decode_tokens: Option<Vec<i64>>,
    /// Token positions that every tap holds: all, last, or 0,3,7
    #[arg(long)]
    rows: Option<Rows>,
    #[command(flatten)]
    reading: ReadingArgs,
    /// Write what was done as JSON to this file (- for standard output)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Imports, reports what was read and what was not, and returns the exit code.
///
/// # Errors
/// When something cannot be read or written, or nothing in it is a tap.
pub(crate) fn run(args: ImportArgs) -> Result<u8> {
    if args.output.exists() {
        bail!("{}: already exists; remove it, or write elsewhere", args.output.display());
    }
    let inputs = Inputs::of_command_line();
    inputs.refuse_input_as_output(args.json.as_deref())?;
    let dump = open(&args)?;
    if dump.entries().is_empty() {
        let names: Vec<String> = dump.unmapped().iter().map(|n| with_suggestion(n)).collect();
        let parts =
            dump.parts().first().map(|part| format!("{} is known in part only: compare the file itself", part.tap));
        let none = format!("no tensor in it is named as a tap: {}", shorten(&names, 4));
        bail!("{}: {}", args.source.display(), parts.unwrap_or(none));
    }
    let like = args.like.as_ref().map(Dump::open).transpose()?;
    crate::output::write_folder(&args.output, |folder| write(&args, &dump, like.as_ref(), folder))?;
    crate::render::json::to_file(args.json.as_deref(), &Import::new(&args.output, &dump), &inputs)?;
    if args.json.as_deref() != Some(std::path::Path::new("-")) {
        print_lines(&summary(&args.output, &dump))?;
    }
    Ok(PARITY)
}

fn open(args: &ImportArgs) -> Result<Dump> {
    let dump = match &args.name {
        None => args.reading.open(&args.source)?,
        Some(name) => {
            let names = args.reading.map.as_deref().map(Names::open).transpose()?;
            let reading =
                OpenOptions { names, dtype: args.reading.dtype, name: Some(name.clone()), ..OpenOptions::default() };
            let dump = Dump::open_with(&args.source, &reading)?;
            let count = dump.entries().len() + dump.unmapped().len();
            if count > 1 {
                bail!("--name {name}: is for a single tensor, and {} holds {count}", args.source.display());
            }
            dump
        }
    };
    args.reading.asked_sequence(dump)
}

fn write(args: &ImportArgs, dump: &Dump, like: Option<&Dump>, folder: &std::path::Path) -> Result<()> {
    let recorder = Recorder::create(folder)?;
    let mut step = 0;
    for entry in dump.entries() {
        while step < entry.step {
            recorder.next_step(0);
            step += 1;
        }
        let shape = shape(args, dump, like, entry)?;
        let tensor = dump.read(entry)?;
        record(&recorder, entry, &shape, &tensor.values())?;
    }
    recorder.describe(|meta| {
        let taps = meta.taps.take();
        *meta = firstdiff_trace::Meta { taps, format: meta.format, ..dump.meta().clone() };
        meta.tokens = args.tokens.clone().or(meta.tokens.take());
        meta.decode_tokens = args.decode_tokens.clone().or(meta.decode_tokens.take());
        meta.rows = args.rows.clone().or(meta.rows.take());
        for (tap, entry) in meta.taps.iter_mut().flatten().zip(dump.entries()) {
            tap.rows = entry.rows.clone().or(args.rows.clone());
        }
    });
    recorder.finish()?;
    Ok(())
}

/// The given shape, else that of the reference, else the stored one.
fn shape(args: &ImportArgs, dump: &Dump, like: Option<&Dump>, entry: &Entry) -> Result<Vec<usize>> {
    if let Some(shape) = &args.shape {
        if dump.entries().len() > 1 {
            bail!(
                "--shape is for a single tensor, and {} holds {}",
                args.source.display(),
                taps_in_words(dump.entries().len())
            );
        }
        if element_count(shape) != element_count(&entry.shape) {
            bail!(
                "--shape {shape:?} asks for other than the {:?} elements of {}",
                element_count(&entry.shape).unwrap_or(0),
                entry.tap
            );
        }
        return Ok(shape.clone());
    }
    let same_tap = like.and_then(|dump| dump.find(entry.tap, entry.step)).filter(|_| entry.shape.len() == 1);
    Ok(same_tap
        .filter(|e| element_count(&e.shape) == element_count(&entry.shape))
        .map_or(entry.shape.clone(), |e| e.shape.clone()))
}

fn record(recorder: &Recorder, entry: &Entry, shape: &[usize], values: &Values<'_>) -> Result<()> {
    match values {
        Values::F64(v) => recorder.record_view(entry.tap, ArrayViewD::from_shape(IxDyn(shape), v)?)?,
        Values::F32(v) => recorder.record_view(entry.tap, ArrayViewD::from_shape(IxDyn(shape), v)?)?,
        Values::F16(v) => recorder.record_view(entry.tap, ArrayViewD::from_shape(IxDyn(shape), v)?)?,
        Values::BF16(v) => recorder.record_view(entry.tap, ArrayViewD::from_shape(IxDyn(shape), v)?)?,
    }
    Ok(())
}

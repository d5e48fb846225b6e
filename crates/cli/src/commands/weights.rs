//! `firstdiff weights A B`: compares two files of weights. Arguments, screen and JSON.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use firstdiff_compare::{Verdict, number};
use firstdiff_explain::weights::{Compared, Comparison, Note, Options, Side, State, compare};
use firstdiff_model::meaning;
use firstdiff_program::{Operand, Program};

use crate::output::Inputs;
use crate::progress::Bar;
use crate::render::screen::{BAD, BOLD, DIM, GOOD, Screen, WARN, paint};
use crate::report::{NotChecked, Weights};
use crate::session::is_recorded;
use crate::session::source::{program_weights, refuse_weights};
use crate::words::{layers_in_short, safe, shorten};

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
        crate::output::print(screen(&args, &report, &comparison, &verdict).as_str())?;
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

fn screen(args: &WeightsArgs, report: &Weights, comparison: &Comparison, verdict: &Verdict) -> Screen {
    let mut screen = Screen::default();
    for (letter, side) in [("A", &report.a), ("B", &report.b)] {
        let what = paint(DIM, &format!("({}, {})", side.format, tensors(side.tensors)));
        screen.line(&format!("weights {letter}  {}  {what}", safe(&side.path)));
    }
    screen.line("");
    if args.verbose {
        comparison.tensors.iter().for_each(|tensor| screen.line(&tensor_line(tensor)));
        screen.line("");
    }
    let another = report.unlike;
    if let Some(unlike) = another {
        screen.line(&format!(
            "{} another model's weights, or untrained ones: {} of {} matrices have nothing in common with A's, and no mistake or law known here makes one of the other",
            paint(BAD, "diverged:"),
            unlike.unlike,
            unlike.of
        ));
    }
    screen.line(&summary(comparison, verdict, another.is_some()));
    let most = if another.is_some() && !args.verbose { OF_ANOTHER } else { usize::MAX };
    for finding in report.findings.iter().take(most) {
        let cause = finding.cause.map_or_else(|| paint(WARN, "cause unknown"), |cause| paint(BAD, cause));
        screen.line(&format!("  {}  {cause}", paint(BOLD, &fold_layers(&finding.tensors))));
        let left = finding.residual_nmse.map(|r| format!(" (leaves NMSE {})", number(r))).unwrap_or_default();
        screen.line(&format!("    {}{left}", safe(&finding.note)));
    }
    if report.findings.len() > most {
        screen.line(&format!("  ... and {} more kinds of differences (-v shows all)", report.findings.len() - most));
    }
    if let Some(next) = report.next {
        screen.line(&format!("next: {next}"));
    }
    for NotChecked { reason, tensors: names } in &report.not_checked {
        let names: Vec<String> = names.iter().map(|name| safe(name)).collect();
        screen.line(&format!(
            "{} {} ({}): {}",
            paint(WARN, "not checked:"),
            tensors(names.len()),
            shorten(&names, 3),
            safe(reason)
        ));
    }
    for side in [&report.a, &report.b].into_iter().filter(|side| !side.doubles.is_empty()) {
        let names: Vec<String> = side.doubles.iter().map(|n| safe(n)).collect();
        screen.line(&format!(
            "{} {}: names of weights that are there already",
            paint(WARN, "not checked:"),
            shorten(&names, 3)
        ));
    }
    for warning in notes(&comparison.warnings) {
        screen.line(&format!("{} {}", paint(WARN, "note:"), safe(&warning)));
    }
    screen
}

/// How many differences are shown where the weights are another model's.
const OF_ANOTHER: usize = 3;

/// `is_said`: the verdict was printed before. `parity: 291 tensors: 290 identical, 1 tied`.
fn summary(comparison: &Comparison, verdict: &Verdict, is_said: bool) -> String {
    let (identical, tied) = (comparison.count(|s| *s == State::Identical), comparison.count(|s| *s == State::Tied));
    let rounded: Vec<&Compared> = comparison.tensors.iter().filter(|t| t.state == State::Rounded).collect();
    let worst = rounded.iter().filter_map(|t| t.nmse).fold(0.0, f64::max);
    let mut kinds: Vec<&str> =
        rounded.iter().flat_map(|t| t.types.into_iter().flatten()).filter(|k| *k != "f32").collect();
    kinds.sort_unstable();
    kinds.dedup();
    let mut parts = Vec::new();
    if identical > 0 {
        parts.push(format!("{identical} identical"));
    }
    if !rounded.is_empty() {
        let kinds_text = if kinds.is_empty() { "rounding".to_owned() } else { kinds.join(" and ") };
        parts.push(format!("{} as near as {kinds_text} allows (worst NMSE {})", rounded.len(), number(worst)));
    }
    if tied > 0 {
        parts.push(format!("{tied} tied"));
    }
    let wrong = comparison.count(|s| *s == State::Wrong);
    if wrong > 0 {
        parts.push(format!("{wrong} wrong"));
    }
    let checked = comparison.count(|s| !matches!(s, State::Unchecked(_)));
    let text = format!("{}: {}", tensors(checked), parts.join(", "));
    match verdict {
        Verdict::Parity => format!("{} {text}", paint(GOOD, "parity:")),
        Verdict::Diverged if is_said => format!("  {text}"),
        Verdict::Diverged => format!("{} {text}", paint(BAD, "diverged:")),
        Verdict::Incomparable(reason) => format!("{} {reason}", paint(WARN, "incomparable:")),
    }
}

fn tensor_line(tensor: &Compared) -> String {
    let (mark, text) = match &tensor.state {
        State::Identical => (paint(GOOD, "ok  "), "identical".to_owned()),
        State::Rounded => (paint(GOOD, "ok  "), measured(tensor)),
        State::Tied => (paint(GOOD, "ok  "), "tied".into()),
        State::Wrong => (paint(BAD, "DIFF"), measured(tensor)),
        State::Unchecked(reason) => (paint(DIM, "?   "), format!("unchecked: {}", safe(reason))),
    };
    let types = tensor.types.map(|t| t.unwrap_or("-")).join(" / ");
    format!("  {mark} {:<48} {} {text}", safe(&tensor.name), paint(DIM, &format!("{types:<13} {:?}", tensor.shape)))
}

fn measured(tensor: &Compared) -> String {
    let part = |name: &str, value: Option<f64>| value.map(|v| format!("{name} {}", number(v)));
    let parts = [part("NMSE", tensor.nmse), part("allowed", tensor.allowed)];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn tensors(count: usize) -> String {
    format!("{count} tensor{}", if count == 1 { "" } else { "s" })
}

/// `model.layers.0-2.self_attn.q_proj.weight, ...`: names of one role folded over their layers.
fn fold_layers(names: &[String]) -> String {
    let mut roles: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let mut rest = Vec::new();
    for name in names {
        match meaning(name).and_then(|w| w.layer) {
            Some(layer) => roles.entry(name.replacen(&format!(".{layer}."), ".{}.", 1)).or_default().push(layer),
            None => rest.push(safe(name)),
        }
    }
    rest.extend(roles.into_iter().map(|(name, layers)| name.replace("{}", &layers_in_short(layers))));
    shorten(&rest, 4)
}

/// Equal notes on several tensors become one.
fn notes(warnings: &[Note]) -> Vec<String> {
    let mut seen: BTreeMap<&str, (usize, &Note)> = BTreeMap::new();
    for note in warnings {
        seen.entry(&note.text).or_insert((0, note)).0 += 1;
    }
    let words = |(text, (count, first)): (&str, (usize, &Note))| match count {
        1 => first.to_string(),
        count => format!("{}: {text}", tensors(count)),
    };
    seen.into_iter().map(words).collect()
}

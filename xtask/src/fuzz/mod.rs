//! Fuzzes the readers: changes valid inputs of every format at random, reads them in this process, and checks for panics, hangs and excessive memory.

mod input;
mod mutate;
mod programs;
mod random;
mod seeds;

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use allocation_counter::measure;
use anyhow::{Context, Result, bail};
use firstdiff::baseline::Baseline;
use firstdiff::{Comparison, Session};
use firstdiff_compare::InReferenceOrder;
use firstdiff_explain::explain::Effort;
use firstdiff_explain::program::{CacheSaidBy, Candidate, Recording, explain};
use firstdiff_explain::weights::{self, Side};
use firstdiff_model::{Cache, Profile};
use firstdiff_program::{Arithmetic, Evaluator, Half, Limits, ModelFolder, Program};
use firstdiff_trace::{Batch, Dump, Names, memory_limit};

use input::{FileContent, Input, Target};
use random::Random;

/// How many inputs, and where.
#[derive(Debug, clap::Args)]
pub(crate) struct FuzzArgs {
    /// How many inputs to read
    #[arg(long, default_value_t = 20_000)]
    inputs: u64,
    /// Stop after so many seconds
    #[arg(long, default_value_t = f64::INFINITY)]
    seconds: f64,
    /// Another number gives other inputs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only forms of which the name holds this
    #[arg(long, default_value = "")]
    form: String,
    /// The folder to write inputs in, best one in memory [default: /dev/shm where it is there, else the temporary folder]
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Keep the inputs that failed in this folder
    #[arg(long)]
    failures: Option<PathBuf>,
}

/// Longest time for an input; one of more than a MiB may take this long for each MiB.
const LONGEST: Duration = Duration::from_secs(1);
/// One input in this many repeats one of its pieces many times.
const INFLATED: usize = 20_000;
/// One zip in this many is changed without correcting its checksums; other files half as often.
const RAW_CHANGE_ODDS: usize = 8;

/// Statistics for one format.
#[derive(Debug, Default)]
struct Tally {
    inputs: u64,
    opened: u64,
    /// The largest share of the allowed memory that was used.
    memory: f64,
    longest: Duration,
}

/// The kinds of failures, and how often each occurred.
#[derive(Debug, Default)]
struct Failures {
    kinds: BTreeMap<String, u64>,
}

thread_local! {
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Reads the inputs and prints the statistics; returns exit code 1 if an input failed.
pub(crate) fn run(args: &FuzzArgs) -> Result<u8> {
    let (tallies, failures, seconds) = drive(args)?;
    let (inputs, opened) = tallies.values().fold((0, 0), |sum, t| (sum.0 + t.inputs, sum.1 + t.opened));
    println!("{:<24} {:>10} {:>10} {:>22} {:>10}", "form", "inputs", "opened", "memory of the allowed", "longest");
    for (form, tally) in &tallies {
        let Tally { inputs, opened, memory, longest } = tally;
        println!("{form:<24} {inputs:>10} {opened:>10} {:>20.1} % {:>7} ms", 100.0 * memory, longest.as_millis());
    }
    println!(
        "{inputs} inputs in {seconds:.0} s, {opened} of them opened: {} failed",
        failures.kinds.values().sum::<u64>()
    );
    for (kind, count) in &failures.kinds {
        println!("  {count} times: {kind}");
    }
    Ok(u8::from(!failures.kinds.is_empty()))
}

fn drive(args: &FuzzArgs) -> Result<(BTreeMap<&'static str, Tally>, Failures, f64)> {
    let seeds = seeds::all().into_iter().chain(programs::all());
    let all: Vec<Input> = seeds.filter(|input| input.form.contains(&args.form)).collect();
    if all.is_empty() {
        bail!("--form {}: no such form", args.form);
    }
    let order: Vec<usize> = (0..all.len()).flat_map(|i| std::iter::repeat_n(i, repeats(all[i].form))).collect();
    let shared = Path::new("/dev/shm");
    let base =
        args.folder.clone().unwrap_or_else(|| if shared.is_dir() { shared.into() } else { std::env::temp_dir() });
    let work = tempfile::Builder::new()
        .prefix("firstdiff-fuzz")
        .tempdir_in(&base)
        .with_context(|| base.display().to_string())?;
    let right = RightWeights::open(work.path())?;
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map_or(String::new(), |l| format!("{}:{}", l.file(), l.line()));
        PANIC.with_borrow_mut(|panic| *panic = format!("panic at {place}: {}", panic_message(info.payload())));
    }));
    let (mut tallies, mut failures) = (BTreeMap::<&'static str, Tally>::new(), Failures::default());
    let began = Instant::now();
    for number in 0..args.inputs {
        if began.elapsed().as_secs_f64() > args.seconds {
            break;
        }
        let seed = &all[order[number as usize % order.len()]];
        let mut random = Random::new(args.seed.wrapping_mul(0x1000_0000_01b3) ^ number);
        let mut input = seed.clone();
        // The first input of each format is read unchanged.
        let changed = number as usize >= order.len();
        if changed {
            mutate::mutate(&mut input, &all, &mut random);
            if random.one_in(INFLATED) {
                mutate::inflate(&mut input, &mut random);
            }
        }
        let files = rendered(&input, changed, &mut random);
        let tally = tallies.entry(input.form).or_default();
        tally.inputs += 1;
        let folder = work.path().join("in");
        if let Some(failure) = read_one(&input, &files, &folder, &right, tally) {
            let kind = format!("{}: {failure}", input.form);
            let count = failures.kinds.entry(kind).or_default();
            *count += 1;
            if let Some(kept) = args.failures.as_ref().filter(|_| *count <= 3) {
                let kept = kept.join(format!("{number}"));
                fs::create_dir_all(&kept)?;
                write(&kept, &files)?;
                fs::write(kept.join("failure.md"), format!("{} opens '{}': {failure}\n", input.form, input.opened))?;
            }
        }
        if number as usize + 1 == order.len() {
            // Valid inputs must open: else nothing after a reader's first check is ever reached.
            let closed: Vec<&str> =
                tallies.iter().filter(|(_, t)| t.opened < t.inputs).map(|(form, _)| *form).collect();
            if !closed.is_empty() {
                bail!("valid inputs were refused: {closed:?}, {:?}", failures.kinds);
            }
        }
    }
    let _ = std::panic::take_hook();
    Ok((tallies, failures, began.elapsed().as_secs_f64()))
}

/// How often a format is read in each round: those of a single small file cost a fifth of the others.
fn repeats(form: &str) -> usize {
    match form {
        "npy" | "gguf" | "llama2.c" | "raw floats" | "names toml" | "baseline" | "safetensors" => 6,
        "weights compared" => 1,
        _ => 2,
    }
}

fn panic_message(payload: &dyn Any) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
    let text: String = text.unwrap_or("?").chars().take(100).collect();
    // Messages that differ in numbers only are the same failure.
    text.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect()
}

/// The files of an input; in some, bytes are changed without adjusting lengths and checksums.
fn rendered(input: &Input, changed: bool, random: &mut Random) -> Vec<(String, Vec<u8>)> {
    let mut render = |part: &input::InputFile| {
        let mut bytes = part.body.render();
        let zip = matches!(part.body, FileContent::Zip(_));
        if changed && random.one_in(if zip { RAW_CHANGE_ODDS } else { 2 * RAW_CHANGE_ODDS }) {
            mutate::change_bytes(&mut bytes, random);
        }
        (part.name.clone(), bytes)
    };
    input.parts.iter().map(&mut render).collect()
}

fn write(folder: &Path, files: &[(String, Vec<u8>)]) -> Result<()> {
    for (name, bytes) in files {
        let path = folder.join(name);
        if let Some(folder) = path.parent().filter(|_| name.contains('/')) {
            fs::create_dir_all(folder)?;
        }
        fs::write(&path, bytes).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Reads one input; returns what it did wrong, if anything.
fn read_one(
    input: &Input,
    files: &[(String, Vec<u8>)],
    folder: &Path,
    right: &RightWeights,
    tally: &mut Tally,
) -> Option<String> {
    if let Err(error) = fs::create_dir_all(folder).map_err(anyhow::Error::from).and_then(|()| write(folder, files)) {
        return Some(format!("cannot be written: {error:#}"));
    }
    let path = if input.opened.is_empty() { folder.to_path_buf() } else { folder.join(input.opened) };
    let began = Instant::now();
    let mut outcome = Ok(false);
    let peak = measure(|| outcome = catch_unwind(AssertUnwindSafe(|| read(input.reader, &path, right)))).bytes_max;
    let mut took = began.elapsed();
    let size: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
    let longest = LONGEST * (size >> 20).max(1) as u32;
    if took > longest && outcome.is_ok() {
        // Measured in processor time, because other work may delay this process.
        let before = processor_time();
        read(input.reader, &path, right);
        took = processor_time().zip(before).map_or(took, |(after, before)| after.saturating_sub(before));
    }
    for (name, _) in files {
        let _ = match name.split_once('/') {
            Some((below, _)) => fs::remove_dir_all(folder.join(below)),
            None => fs::remove_file(folder.join(name)),
        };
    }
    let allowed = memory_limit(size as u64) as f64;
    tally.memory = tally.memory.max(peak as f64 / allowed);
    tally.longest = tally.longest.max(took);
    match outcome {
        Err(_) => return Some(PANIC.with_borrow(Clone::clone)),
        Ok(opened) => tally.opened += u64::from(opened),
    }
    match (peak as f64 > allowed, took > longest) {
        (true, _) => Some(format!("memory: {} times what is allowed", (peak as f64 / allowed).ceil())),
        (_, true) => Some(format!("time: more than {} s", took.as_secs())),
        _ => None,
    }
}

/// The processor time of this thread, if the system reports it.
fn processor_time() -> Option<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// The weights that inputs are compared with.
struct RightWeights(Side);

impl RightWeights {
    fn open(work: &Path) -> Result<RightWeights> {
        let seed = seeds::all().into_iter().find(|input| input.form == seeds::WEIGHTS);
        let seed = seed.context("no weights among the seeds")?;
        fs::create_dir_all(work.join("right"))?;
        let path = work.join("right").join(seed.opened);
        fs::write(&path, seed.parts[0].body.render())?;
        Ok(RightWeights(Side::open(&path)?))
    }
}

/// Reads everything in an input; returns whether it could be opened.
fn read(reader: Target, path: &Path, right: &RightWeights) -> bool {
    match reader {
        Target::Dump => read_dump(path),
        Target::Weights => {
            let _ = firstdiff_model::load(path);
            let Ok(opened) = firstdiff_model::open_weights(path) else { return false };
            for name in opened.weights.names() {
                if let Ok(Some(view)) = opened.weights.tensor(name) {
                    let _ = view.elements(0..view.len().min(1 << 16));
                    let _ = view.elements(view.len() / 3..(view.len() / 2).min(view.len() / 3 + 100));
                }
            }
            true
        }
        Target::Compare => {
            let Ok(side) = Side::open(path) else { return false };
            let options = weights::Options::default();
            let _ = weights::compare(&right.0, &side, options, &mut |_, _| {});
            let _ = weights::compare(&side, &right.0, options, &mut |_, _| {});
            true
        }
        Target::Names => {
            let Ok(names) = Names::open(path) else { return false };
            for name in ["h1_attn_l7", "layer1_out_t3", "last_q", "my.4294967295.k", "x", "layer4294967296_out_t1"] {
                let _ = names.find(name);
            }
            true
        }
        Target::Baseline => Baseline::read(path).is_ok(),
        Target::Program => evaluate(path),
        Target::Recording => evaluate(path) && explained(path).is_ok(),
    }
}

/// Limits for programs here: by default a program may ask for 4 billion numbers, which is not a fault of the reader.
const LIMITS: Limits = Limits { elements: 1 << 16 };

/// Evaluates a program in every arithmetic; returns whether it could be read.
fn evaluate(folder: &Path) -> bool {
    let Ok(program) = Program::open(folder) else { return false };
    let _ = (program.unsupported().len(), (0..program.ops().len()).map(|op| program.said(op).len()).sum::<usize>());
    let Ok(program) = Program::open_within(folder, LIMITS) else { return true };
    let Ok(weights) = ModelFolder::open(folder).or_else(|_| ModelFolder::open(&folder.join("program.safetensors")))
    else {
        return true;
    };
    for arithmetic in
        [Arithmetic::F64, Arithmetic::F32, Arithmetic::Half(Half::BF16), Arithmetic::Ggml { cache: Cache::F16 }]
    {
        let mut evaluator = Evaluator::new(&program, arithmetic, &weights);
        while let Some(tap) = evaluator.next_tap() {
            let _ = evaluator.value(tap).map(|value| value.map(|value| value.to_floats().len()));
        }
    }
    true
}

/// Replays and explains a program's dump against the candidate beside it.
fn explained(folder: &Path) -> Result<()> {
    let program = Program::open_within(folder, LIMITS)?;
    let weights = ModelFolder::open(folder)?;
    let Comparison { session, report, .. } = Session::open(folder, &folder.join("candidate"), None, None)?.run()?;
    let Session { reference, candidate, graph, options, experts, .. } = &session;
    let values = InReferenceOrder::new(reference, candidate, graph, options);
    let (taps, profile, cache) = (&report.taps[..], Profile::F32, (Cache::F32, CacheSaidBy::Nothing));
    let candidate = Candidate {
        dump: candidate,
        recorded: candidate,
        values: &values,
        taps,
        experts,
        padding: &[],
        is_padded: false,
        profile,
        cache,
        are_tokens_known: true,
        is_by_the_reference: true,
    };
    let recording = Recording { program: &program, weights: &weights };
    let effort = Effort { quick: true, ..Effort::default() };
    let _ = explain(&recording, &candidate, &effort, &|_, _, _| {});
    Ok(())
}

fn read_dump(path: &Path) -> bool {
    let Ok(dump) = Dump::open(path) else { return false };
    for entry in dump.entries() {
        if let Ok(tensor) = dump.read(entry) {
            let _ = (tensor.values().len(), tensor.bytes().len());
        }
    }
    for part in dump.parts() {
        let _ = (part.whole(), part.precision(), part.values.first().map(|value| part.half_unit(*value)));
    }
    for name in dump.unmapped() {
        let _ = dump.unmapped_size(name);
        let _ = dump.read_unmapped(name).map(|tensor| tensor.values().len());
    }
    let _ = (Batch::detect(&dump, &|_, _| None).map(|batch| batch.count()), dump.notes().len());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A short run of `cargo xtask fuzz --inputs 10000000`.
    #[test]
    fn no_input_makes_a_reader_panic_hang_or_grow() {
        let args = FuzzArgs {
            inputs: 20_000,
            seconds: f64::INFINITY,
            seed: 7,
            form: String::new(),
            folder: None,
            failures: None,
        };
        let (tallies, failures, _) = drive(&args).unwrap();
        assert!(failures.kinds.is_empty(), "{:?}", failures.kinds);
        // Enough changed inputs must still be readable.
        for (form, tally) in tallies {
            assert!(tally.opened * 50 >= tally.inputs, "{form}: {} of {} opened", tally.opened, tally.inputs);
        }
    }
}

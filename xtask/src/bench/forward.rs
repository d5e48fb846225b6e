//! Measures a forward pass, against PyTorch and llama.cpp in the same run.
//!
//! A TinyLlama shape with random weights. The programs alternate, each run of ours next to one of each other program, so that other load on the machine
//! affects all equally. Also measures `weights` on two files of that size against NumPy, and the memory that a run from Q4_K_M takes beside the mapped
//! file.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use firstdiff_simd::{Level, VARIABLE};

use super::{Seconds, THREADS, binary, build, load, output, watched};

/// Number of tokens, and number of runs of each program for it.
const SIZES: [(usize, usize); 4] = [(1, 15), (14, 9), (128, 5), (512, 3)];

/// The files of a model, and the profiles in which each is run.
const FILES: [(&str, &[&str]); 7] = [
    ("f32", &["f32"]),
    ("f16", &["f32"]),
    ("bf16", &["f32"]),
    ("q4_k_m", &["f32", "ggml"]),
    ("q6_k", &["f32", "ggml"]),
    ("q8_0", &["f32", "ggml"]),
    ("q4_0", &["f32", "ggml"]),
];

/// Creates missing models in `folder`, and measures.
pub(super) fn run(folder: Option<&Path>) -> Result<String> {
    let folder = folder.map_or_else(|| std::env::temp_dir().join("firstdiff-bench"), Path::to_owned);
    models(&folder)?;
    build(&["-p", "firstdiff"])?;
    build(&["-p", "firstdiff-model", "--example", "forward"])?;
    let mut text = format!(
        "Seconds for all logits at T tokens, {THREADS} threads (load before: {}). The programs take turns; seconds are medians, and the ratio is the median of \
         ours to the faster of the others beside it. llama.cpp with weights as they are stored (neither AMX nor repacked).\n\n\
         | weights | arithmetic | T | ours | PyTorch f32 | llama.cpp | ratio |\n|---|---|---|---|---|---|---|\n",
        load()
    );
    for (file, profiles) in FILES {
        let path = folder.join(format!("{file}.gguf"));
        let mut all =
            profiles.iter().map(|profile| Peer::ours(&path, profile, Level::best())).collect::<Result<Vec<_>>>()?;
        all.push(Peer::of_script(&["llama.cpp".as_ref(), path.as_os_str()])?);
        if file == "f32" {
            all.push(Peer::of_script(&["torch".as_ref()])?);
        }
        for (size, runs) in SIZES {
            let seconds = in_turns(&mut all, size, runs)?;
            let (ours, others) = seconds.split_at(profiles.len());
            let medians: Vec<f64> = others.iter().map(|other| median(other.clone())).collect();
            let torch = medians.get(1).map_or("-".to_owned(), |seconds| format!("{seconds:.3}"));
            for (profile, ours) in profiles.iter().zip(ours) {
                let fastest = |run: usize| others.iter().map(|other| other[run]).fold(f64::INFINITY, f64::min);
                let ratio = median(ours.iter().enumerate().map(|(run, own)| own / fastest(run)).collect());
                writeln!(
                    text,
                    "| {file} | {profile} | {size} | {:.3} | {torch} | {:.3} | {ratio:.2} |",
                    median(ours.clone()),
                    medians[0]
                )?;
            }
        }
    }
    text += &levels(&folder)?;
    text += &weights(&folder)?;
    text += &memory(&folder)?;
    Ok(text)
}

/// A program that does one run for each number of tokens on its standard input, and prints the time.
pub(super) struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    fn ours(model: &Path, profile: &str, level: Level) -> Result<Peer> {
        let mut command = Command::new(binary("examples/forward")?);
        command.arg(model).arg(profile).env(VARIABLE, level.name());
        Peer::start(command)
    }

    /// PyTorch or llama.cpp, as scripts/measure/bench_forward.py runs them.
    pub(super) fn of_script(args: &[&std::ffi::OsStr]) -> Result<Peer> {
        Peer::start(script_command(args)?)
    }

    fn start(mut command: Command) -> Result<Peer> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = child.stdin.take().zip(child.stdout.take()).context("no pipes")?;
        Ok(Peer { child, input, output: BufReader::new(output) })
    }

    pub(super) fn seconds(&mut self, size: usize) -> Result<f64> {
        writeln!(self.input, "{size}")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        line.trim().parse().with_context(|| format!("no seconds for {size} tokens: '{}'", line.trim()))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It waits for another number.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The seconds of each program's runs of `size` tokens, alternating; the first run of each, which reads the files, does not count.
fn in_turns(programs: &mut [Peer], size: usize, runs: usize) -> Result<Vec<Vec<f64>>> {
    let mut seconds = vec![Vec::new(); programs.len()];
    for run in 0..=runs {
        for (program, seconds) in programs.iter_mut().zip(&mut seconds) {
            let taken = program.seconds(size)?;
            if run > 0 {
                seconds.push(taken);
            }
        }
    }
    Ok(seconds)
}

pub(super) fn median(seconds: Vec<f64>) -> f64 {
    Seconds(seconds).sorted().median()
}

/// Creates missing models.
pub(super) fn models(folder: &Path) -> Result<()> {
    script(&["make".as_ref(), folder.as_os_str()]).map(|_| ())
}

/// Measures `weights` on two files of the shape, against NumPy code as people write it.
fn weights(folder: &Path) -> Result<String> {
    let (a, b) = (folder.join("f16.gguf"), folder.join("f32.gguf"));
    let once = || -> Result<f64> {
        let start = Instant::now();
        let output = Command::new(binary("firstdiff")?).arg("weights").args([&b, &a]).output()?;
        ensure!(output.status.code() == Some(0), "weights: {}", String::from_utf8_lossy(&output.stdout));
        Ok(start.elapsed().as_secs_f64())
    };
    let best = (0..3).map(|_| once()).collect::<Result<Vec<_>>>()?.into_iter().fold(f64::INFINITY, f64::min);
    let numpy: f64 = script(&["weights".as_ref(), b.as_os_str(), a.as_os_str()])?.trim().parse()?;
    let bytes = (a.metadata()?.len() + b.metadata()?.len()) as f64 / 1e9;
    Ok(format!(
        "\n`firstdiff weights f32.gguf f16.gguf` ({bytes:.1} GB): {best:.2} s, {:.1} GB/s; the NumPy script {numpy:.1} s, {:.1} GB/s: {:.0} times as fast.\n",
        bytes / best,
        bytes / numpy,
        numpy / best
    ))
}

/// The peak memory, without mapped files, of `weights` and of a forward pass.
fn memory(folder: &Path) -> Result<String> {
    let (small, large) = (folder.join("q4_k_m.gguf"), folder.join("f32.gguf"));
    let weights = watched(Command::new(binary("firstdiff")?).arg("weights").args([&large, &small]), &[0, 1])?.memory;
    let run = watched(Command::new(binary("examples/forward")?).arg(&small).args(["ggml", "14"]), &[0])?.memory;
    Ok(format!(
        "\nMemory beside the mapped files: {weights:.0} MiB for `weights f32.gguf q4_k_m.gguf`; {run:.0} MiB for a forward of 14 tokens from q4_k_m.gguf.\n"
    ))
}

/// The forward pass at every instruction level, for one type of each kind of product.
fn levels(folder: &Path) -> Result<String> {
    // The scalar level takes minutes where the others take a second.
    let levels: Vec<Level> = Level::available().into_iter().filter(|level| *level != Level::Scalar).collect();
    // The largest size shows no more than one a quarter of it.
    let sizes = &SIZES[..SIZES.len() - 1];
    let heads: String = sizes.iter().map(|(size, _)| format!(" T = {size} |")).collect();
    let rule = "---|".repeat(sizes.len());
    let mut text = format!(
        "\nWith fewer of the processor's instructions, in seconds, in turns too:\n\n| weights | arithmetic | level |{heads}\n|---|---|---|{rule}\n"
    );
    for (file, profile) in [("f16", "f32"), ("q4_k_m", "ggml"), ("q8_0", "ggml")] {
        let path = folder.join(format!("{file}.gguf"));
        let mut all = levels.iter().map(|&level| Peer::ours(&path, profile, level)).collect::<Result<Vec<_>>>()?;
        let mut cells = vec![String::new(); levels.len()];
        for &(size, runs) in sizes {
            for (seconds, cells) in in_turns(&mut all, size, runs)?.into_iter().zip(&mut cells) {
                write!(cells, " {:.3} |", median(seconds))?;
            }
        }
        for (level, cells) in levels.iter().zip(cells) {
            writeln!(text, "| {file} | {profile} | {} |{cells}", level.name())?;
        }
    }
    Ok(text)
}

fn script_command(args: &[&std::ffi::OsStr]) -> Result<Command> {
    let mut command = Command::new(crate::python());
    command.arg(crate::root()?.join("scripts/measure/bench_forward.py")).args(args).env("FIRSTDIFF_EXTRA_BUFTS", "0");
    Ok(command)
}

/// Runs scripts/measure/bench_forward.py; returns its last line, the result.
fn script(args: &[&std::ffi::OsStr]) -> Result<String> {
    let output = output(&mut script_command(args)?, &[0])?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().last().unwrap_or_default().to_owned())
}

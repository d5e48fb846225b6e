//! Measures the speed of `compare` on two dumps, against a NumPy script as people write it.
//!
//! Bytes count both sides; GB are 10⁹ bytes. Warm: the files are in the page cache; cold: they are not, as after a restart of the machine.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Seconds, THREADS, binary, build, load, output, watched};

const RUNS: usize = 10;
const NUMPY_RUNS: usize = 3;
const COLD_RUNS: usize = 3;
/// Number of taps into which 512 MiB of f32 a side are split.
const TAPS: [usize; 3] = [2, 8, 400];
const COLUMNS: usize = 2048;
const ROWS: usize = 65536;
const HEADER_BYTES: usize = 128;

/// The table, preceded by the metrics on two arrays in memory.
pub(super) fn run() -> Result<String> {
    build(&["-p", "firstdiff"])?;
    let mut text = format!(
        "Two sides of 512 MiB f32, which agree; {THREADS} threads, the whole process, best of {RUNS} runs (median) warm; the script's best of {NUMPY_RUNS}, \
         without the start of Python (load before: {}).\n\n",
        load()
    );
    build(&["-p", "firstdiff-compare", "--example", "metrics"])?;
    let mut kernel = Command::new(binary("examples/metrics")?);
    let kernel = seconds(&output(kernel.env("RAYON_NUM_THREADS", THREADS.to_string()), &[0])?.stdout)?;
    let bytes = (2 * ROWS * COLUMNS * size_of::<f32>()) as f64;
    let rate = |seconds: f64| bytes / seconds / 1e9;
    writeln!(
        text,
        "Metrics of two arrays in memory: {:.1} GB/s ({:.1}).\n",
        rate(kernel.best()),
        rate(kernel.median())
    )?;
    text += "| taps | seconds | GB/s | with --html | NumPy script | times as fast | memory beside the mapped files | cold | reading alone, cold |\n|---|---|---|---|---|---|---|---|---|\n";
    for taps in TAPS {
        let dumps = Dumps::write(taps)?;
        let [one, two] = [1, THREADS].map(|threads| output(&mut dumps.command(threads)?, &[0]));
        ensure!(one?.stdout == two?.stdout, "one thread and two give other reports");
        let warm = Seconds::measure(RUNS, || output(&mut dumps.command(THREADS)?, &[0]));
        let page = dumps.page.display().to_string();
        let with_page = Seconds::measure(RUNS, || output(dumps.command(THREADS)?.args(["--html", &page]), &[0]));
        let memory = watched(&mut dumps.command(THREADS)?, &[0])?.memory;
        let numpy = dumps.numpy()?;
        let cold = dumps.cold(|| dumps.command(THREADS))?;
        let read = dumps.cold(|| dumps.read())?;
        writeln!(
            text,
            "| {taps} | {:.3} ({:.3}) | {:.1} | {:.3} ({:.3}) | {:.2} s | {:.0} | {memory:.1} MiB | {:.2} s, {:.1} GB/s | {:.1} GB/s |",
            warm.best(),
            warm.median(),
            rate(warm.best()),
            with_page.best(),
            with_page.median(),
            numpy.best(),
            numpy.best() / warm.best(),
            cold.best(),
            rate(cold.best()),
            rate(read.best())
        )?;
    }
    Ok(text)
}

/// Two folders of .npy files: dumps without dump.json.
struct Dumps {
    _folder: tempfile::TempDir,
    reference: PathBuf,
    candidate: PathBuf,
    /// Path of the HTML report.
    page: PathBuf,
}

impl Dumps {
    fn write(taps: usize) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let [reference, candidate] = ["reference", "candidate"].map(|side| folder.path().join(side));
        fs::create_dir(&reference)?;
        fs::create_dir(&candidate)?;
        for tap in 0..taps {
            let values = noise(tap as u64 + 2, ROWS / taps * COLUMNS);
            let name = format!("layers.{tap}.h.npy");
            write_npy(&reference.join(&name), &values)?;
            write_npy(&candidate.join(&name), &rounded(&values))?;
        }
        let page = folder.path().join("report.html");
        Ok(Self { _folder: folder, reference, candidate, page })
    }

    /// The command as a user runs it.
    fn command(&self, threads: usize) -> Result<Command> {
        let mut command = Command::new(binary("firstdiff")?);
        command.arg("compare").args([&self.reference, &self.candidate]).args(["--json", "-"]);
        command.env("RAYON_NUM_THREADS", threads.to_string());
        Ok(command)
    }

    /// Only reads every file once.
    fn read(&self) -> Result<Command> {
        let mut command = Command::new("sh");
        command.args(["-c", "cat \"$0\"/*.npy \"$1\"/*.npy > /dev/null"]).args([&self.reference, &self.candidate]);
        Ok(command)
    }

    /// The time for the same files in scripts/measure/bench_numpy.py.
    fn numpy(&self) -> Result<Seconds> {
        let script = crate::root()?.join("scripts/measure/bench_numpy.py");
        let mut command = Command::new(crate::python());
        command.arg(script).args([&self.reference, &self.candidate]).arg(NUMPY_RUNS.to_string());
        seconds(&output(&mut command, &[0])?.stdout)
    }

    /// The time of a command, with the files removed from the page cache before each run.
    fn cold(&self, command: impl Fn() -> Result<Command>) -> Result<Seconds> {
        let mut seconds = Vec::new();
        for _ in 0..COLD_RUNS {
            for path in [&self.reference, &self.candidate] {
                for file in fs::read_dir(path)? {
                    let mut dd = Command::new("dd");
                    dd.arg(format!("if={}", file?.path().display())).args(["iflag=nocache", "count=0", "status=none"]);
                    output(&mut dd, &[0])?;
                }
            }
            let mut command = command()?;
            let taken = Seconds::measure(1, || output(&mut command, &[0]).map(|_| ()));
            seconds.push(taken.best());
        }
        Ok(Seconds(seconds).sorted())
    }
}

/// Parses the output of a program that measures itself.
fn seconds(printed: &[u8]) -> Result<Seconds> {
    let found: serde_json::Value = serde_json::from_slice(printed)?;
    let seconds = found["seconds"].as_array().context("no seconds in its output")?;
    Ok(Seconds(seconds.iter().filter_map(serde_json::Value::as_f64).collect()).sorted())
}

/// A fixed pseudo-random sequence in [-1, 1).
fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// The values with errors the size of f32 rounding.
fn rounded(values: &[f32]) -> Vec<f32> {
    values.iter().enumerate().map(|(i, &x)| if i % 3 == 0 { x * (1.0 + f32::EPSILON) } else { x }).collect()
}

/// Format 1.0: magic, version, a padded header, the elements. Written in one call, as NumPy does: then the page cache holds large pages, and mapping them
/// is cheap.
fn write_npy(path: &Path, values: &[f32]) -> Result<()> {
    let rows = values.len() / COLUMNS;
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {COLUMNS}), }}");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((HEADER_BYTES as u16 - 10).to_le_bytes());
    writeln!(bytes, "{header:<width$}", width = HEADER_BYTES - 11)?;
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    fs::write(path, bytes)?;
    // Flushed to disk, so that later measurements are not slowed by it.
    Ok(fs::File::open(path)?.sync_all()?)
}

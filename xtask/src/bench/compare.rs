//! `cargo xtask bench`: how fast are two dumps compared, and how much faster than the script people write?
//!
//! Every figure is the best of several runs, since whatever else the machine does can only slow one down; the median stands beside it.
//! Bytes are those of both sides; GB are 10⁹ bytes. Everything is warm: in memory, or in the page cache.

use std::fs;
use std::hint::black_box;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use firstdiff_compare::metrics::Metrics;
use firstdiff_trace::{self as trace, Dump};

const THREADS: usize = 2;
const RUNS: usize = 10;
const NUMPY_RUNS: usize = 3;
/// A side is 512 MiB: `TAPS` files of `ROWS` x `COLUMNS` f32.
const TAPS: usize = 16;
const ROWS: usize = 4096;
const COLUMNS: usize = 2048;
const SIDE_BYTES: usize = TAPS * ROWS * COLUMNS * 4;
const HEADER_BYTES: usize = 128;

/// Runs every benchmark and prints its figures.
pub(crate) fn run() -> Result<()> {
    if cfg!(debug_assertions) {
        return in_release();
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(THREADS).build()?;
    println!("{THREADS} threads, two sides of {} MiB f32, best of {RUNS} runs (median)", SIDE_BYTES >> 20);
    if let Ok(load) = fs::read_to_string("/proc/loadavg") {
        println!("load average before: {}", load.split(' ').next().unwrap_or_default());
    }
    pool.install(kernel);
    let dumps = Dumps::write()?;
    let files = pool.install(|| dumps.time_metrics())?;
    files.print("metrics of two dumps, mapped");
    let command = dumps.time_command()?;
    command.print("firstdiff compare, the whole command");
    match numpy_seconds(&dumps)? {
        Ok(numpy) => {
            println!("metrics of two dumps against the NumPy script: {:.1} times as fast", numpy.best() / files.best());
            println!("firstdiff compare against the NumPy script: {:.1} times as fast", numpy.best() / command.best());
        }
        Err(reason) => println!("NumPy script: not measured: {reason}"),
    }
    Ok(())
}

/// Figures of a debug build mean nothing.
fn in_release() -> Result<()> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    for task in [&["build", "--package", "firstdiff"][..], &["run", "--package", "xtask", "--", "bench"]] {
        let status = Command::new(&cargo).arg(task[0]).args(["--quiet", "--release"]).args(&task[1..]).status()?;
        ensure!(status.success(), "cargo {} --release failed", task.join(" "));
    }
    Ok(())
}

/// The metrics over two buffers in memory: what the kernel is capable of.
fn kernel() {
    let reference = noise(1, SIDE_BYTES / 4);
    let candidate = rounded(&reference);
    for (name, candidate) in [("kernel, f32", &candidate), ("kernel, f32, all equal", &reference)] {
        Seconds::of(RUNS, || Metrics::of_f32(&reference, candidate)).print(name);
    }
}

/// Two folders of .npy files, which are dumps without dump.json.
struct Dumps {
    _folder: tempfile::TempDir,
    reference: PathBuf,
    candidate: PathBuf,
}

impl Dumps {
    fn write() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let dumps = Self {
            reference: folder.path().join("reference"),
            candidate: folder.path().join("candidate"),
            _folder: folder,
        };
        fs::create_dir(&dumps.reference)?;
        fs::create_dir(&dumps.candidate)?;
        for tap in 0..TAPS {
            let values = noise(tap as u64 + 2, ROWS * COLUMNS);
            let name = format!("layers.{tap}.h.npy");
            write_npy(&dumps.reference.join(&name), &values)?;
            write_npy(&dumps.candidate.join(&name), &rounded(&values))?;
        }
        Ok(dumps)
    }

    /// Opens, maps and measures every pair of taps, as the NumPy script loads and measures them.
    fn time_metrics(&self) -> Result<Seconds> {
        let all = || -> Result<Vec<Metrics>> {
            let (reference, candidate) = (Dump::open(&self.reference)?, Dump::open(&self.candidate)?);
            let pairs = reference.entries().iter().zip(candidate.entries());
            pairs.map(|(r, c)| f32_metrics(&reference.read(r)?.values(), &candidate.read(c)?.values())).collect()
        };
        ensure!(all()?.len() == TAPS, "the dumps just written hold other taps");
        Ok(Seconds::of(RUNS, all))
    }
}

impl Dumps {
    /// The command as a user runs it, and what it takes of memory that is no mapped file.
    fn time_command(&self) -> Result<Seconds> {
        let command = std::env::current_exe()?.with_file_name("firstdiff");
        let run = |threads: usize| {
            let mut child = Command::new(&command);
            child.arg("compare").args([&self.reference, &self.candidate]).args(["--json", "-"]);
            child.env("RAYON_NUM_THREADS", threads.to_string()).stdout(std::process::Stdio::piped());
            child
        };
        let output = |threads| run(threads).output().context("target/release/firstdiff: cargo build --release first");
        let (one, two) = (output(1)?, output(THREADS)?);
        ensure!(one.status.code() == Some(0), "not at parity: {}", String::from_utf8_lossy(&one.stderr));
        ensure!(one.stdout == two.stdout, "one thread and two give other reports");
        let seconds = Seconds::of(RUNS, || output(THREADS));
        println!("firstdiff compare: the same report byte for byte with 1 and {THREADS} threads");
        let mut child = run(THREADS).spawn()?;
        let mut anonymous = 0;
        // Read aside, so that a full pipe does not stop the child.
        let reader = child
            .stdout
            .take()
            .map(|mut pipe| std::thread::spawn(move || std::io::copy(&mut pipe, &mut std::io::sink())));
        while child.try_wait()?.is_none() {
            let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
            let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
            let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0);
            anonymous = anonymous.max(kib);
        }
        drop(reader);
        println!("firstdiff compare: {:.1} MiB of memory at most beside the mapped files", anonymous as f64 / 1024.0);
        Ok(seconds)
    }
}

fn f32_metrics(reference: &trace::Values<'_>, candidate: &trace::Values<'_>) -> Result<Metrics> {
    match (reference, candidate) {
        (trace::Values::F32(reference), trace::Values::F32(candidate)) => Ok(Metrics::of_f32(reference, candidate)),
        _ => bail!("the dumps just written are not f32"),
    }
}

/// What the same files take in scripts/bench_numpy.py, or why that cannot be said.
fn numpy_seconds(dumps: &Dumps) -> Result<Result<Seconds, String>> {
    let python = std::env::var("FIRSTDIFF_PYTHON").unwrap_or_else(|_| "python3".into());
    match Command::new(&python).args(["-c", "import numpy"]).output() {
        Err(error) => return Ok(Err(format!("{python}: {error}; name a Python with numpy in FIRSTDIFF_PYTHON"))),
        Ok(output) if !output.status.success() => {
            return Ok(Err(format!("{python} has no numpy; name a Python with numpy in FIRSTDIFF_PYTHON")));
        }
        Ok(_) => {}
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/bench_numpy.py");
    let output = Command::new(&python)
        .arg(script)
        .args([&dumps.reference, &dumps.candidate])
        .arg(NUMPY_RUNS.to_string())
        .output()?;
    ensure!(output.status.success(), "bench_numpy.py failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    let text = String::from_utf8(output.stdout)?;
    let list = text
        .split_once("\"seconds\": [")
        .and_then(|(_, rest)| rest.split_once(']'))
        .context("no seconds in its output")?
        .0;
    let seconds = Seconds(list.split(',').map(|number| number.trim().parse()).collect::<Result<_, _>>()?).sorted();
    seconds.print(&format!("NumPy script ({python}, best of {NUMPY_RUNS})"));
    Ok(Ok(seconds))
}

/// The duration of each run, shortest first.
struct Seconds(Vec<f64>);

impl Seconds {
    fn of<T>(runs: usize, mut work: impl FnMut() -> T) -> Self {
        let once = |_| {
            let start = Instant::now();
            black_box(work());
            start.elapsed().as_secs_f64()
        };
        Self((0..runs).map(once).collect()).sorted()
    }

    fn sorted(mut self) -> Self {
        self.0.sort_by(f64::total_cmp);
        self
    }

    fn best(&self) -> f64 {
        self.0[0]
    }

    fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }

    fn print(&self, name: &str) {
        let rate = |seconds| 2.0 * SIDE_BYTES as f64 / seconds / 1e9;
        let (best, median) = (self.best(), self.median());
        println!("{name:<40} {:>7.2} GB/s ({:.2})  {best:.4} s ({median:.4})", rate(best), rate(median));
    }
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

/// The values with an error of the size of f32 rounding.
fn rounded(values: &[f32]) -> Vec<f32> {
    values.iter().enumerate().map(|(i, &x)| if i % 3 == 0 { x * (1.0 + f32::EPSILON) } else { x }).collect()
}

/// Format 1.0: magic, version, a padded header, the elements. Written at once, as NumPy does: the page cache then holds large
/// pages, and a map of them costs little.
fn write_npy(path: &Path, values: &[f32]) -> Result<()> {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({ROWS}, {COLUMNS}), }}");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((HEADER_BYTES as u16 - 10).to_le_bytes());
    writeln!(bytes, "{header:<width$}", width = HEADER_BYTES - 11)?;
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    Ok(fs::write(path, bytes)?)
}

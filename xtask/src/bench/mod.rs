//! Measures speed against the tools people would use instead, in the same run: `cargo xtask bench`. Each part rewrites its section of
//! docs/measured/speed.md.

mod compare;
mod explain;
mod forward;
mod growth;
mod kernels;
mod memory;

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

/// Number of threads for each side of each comparison.
const THREADS: usize = 2;

/// What is measured.
#[derive(clap::Subcommand)]
pub(crate) enum Bench {
    /// Two dumps of 512 MiB in 2, 8 and 400 taps, against a NumPy script; needs Python with NumPy
    Compare,
    /// Products of rows with a matrix at every level of instructions that the processor has
    Kernels,
    /// Time and memory against layers, width and tokens; needs Python with NumPy
    Growth,
    /// `explain` on a model of 1.1 B parameters, from all taps and from logits alone; makes the models first
    Explain {
        /// Where the models are, or are made [default: firstdiff-bench in the temporary folder]
        #[arg(long)]
        folder: Option<PathBuf>,
    },
    /// A forward pass of 1.1 B parameters, against PyTorch and llama.cpp; makes 13 GB of models first
    Forward {
        /// Where the models are, or are made [default: firstdiff-bench in the temporary folder]
        #[arg(long)]
        folder: Option<PathBuf>,
    },
    /// `dump`, `replay`, `explain` and `weights` of 8 B parameters with 3 GiB of memory; makes 21 GB of models first, needs root and Python with NumPy
    Memory {
        /// Where the models are, or are made [default: firstdiff-bench-8b in the temporary folder]
        #[arg(long)]
        folder: Option<PathBuf>,
    },
}

/// Measures, and writes the results.
pub(crate) fn run(bench: &Bench) -> Result<u8> {
    let (part, text) = match bench {
        Bench::Compare => ("compare", compare::run()?),
        Bench::Kernels => ("kernels", kernels::run()?),
        Bench::Growth => ("growth", growth::run()?),
        Bench::Explain { folder } => ("explain", explain::run(folder.as_deref())?),
        Bench::Forward { folder } => ("forward", forward::run(folder.as_deref())?),
        Bench::Memory { folder } => ("memory", memory::run(folder.as_deref())?),
    };
    let path = crate::root()?.join("docs/measured/speed.md");
    let page = std::fs::read_to_string(&path)?;
    crate::docs::write(&path, &with_part(&page, part, &text)?)?;
    Ok(0)
}

/// Replaces the text between the marks of a part.
fn with_part(page: &str, part: &str, text: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- cargo xtask bench {part} -->\n"), "<!-- end of measured part -->");
    let (before, rest) =
        page.split_once(&begin).with_context(|| format!("docs/measured/speed.md has no part '{part}'"))?;
    let (_, after) =
        rest.split_once(end).with_context(|| format!("part '{part}' of docs/measured/speed.md has no end"))?;
    Ok(format!("{before}{begin}{}\n\n{end}{after}", text.trim_end()))
}

/// Other load on the machine: the load average of the last minute, from the kernel.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("?").to_owned()
}

/// Builds the measured programs with optimisation, whatever the profile of this task.
fn build(what: &[&str]) -> Result<()> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let status = Command::new(&cargo).args(["build", "--release", "--quiet", "--locked"]).args(what).status()?;
    ensure!(status.success(), "cargo build --release {} failed", what.join(" "));
    Ok(())
}

/// The path of a file in target/release.
fn binary(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let target = own.parent().and_then(Path::parent).context("xtask stands in no target folder")?;
    Ok(target.join("release").join(name))
}

/// Runs a command that must end with one of these exit codes; returns its output.
fn output(command: &mut Command, codes: &[i32]) -> Result<Output> {
    let output = command.output().with_context(|| format!("{} does not run", command.get_program().display()))?;
    let fine = output.status.code().is_some_and(|code| codes.contains(&code));
    ensure!(fine, "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(output)
}

/// Time and memory of a command.
#[derive(Clone, Copy)]
struct Cost {
    seconds: f64,
    /// Peak memory without mapped files, in MiB.
    memory: f64,
}

/// Runs a command that must end with one of these exit codes, and measures it.
fn watched(command: &mut Command, codes: &[i32]) -> Result<Cost> {
    let start = Instant::now();
    // Its output is discarded, so that a full pipe does not stop it.
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("{command:?} does not run"))?;
    let mut memory = 0.0f64;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        memory = memory.max(line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0.0));
        std::thread::sleep(std::time::Duration::from_millis(1));
    };
    let seconds = start.elapsed().as_secs_f64();
    ensure!(status.code().is_some_and(|code| codes.contains(&code)), "{command:?}: {status}");
    Ok(Cost { seconds, memory: memory / 1024.0 })
}

/// The durations of the runs, shortest first.
struct Seconds(Vec<f64>);

impl Seconds {
    fn measure<T>(runs: usize, mut work: impl FnMut() -> T) -> Self {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_replaced_and_the_rest_stays() {
        let page = "a\n<!-- cargo xtask bench kernels -->\nold\n<!-- end of measured part -->\nb\n";
        let new = with_part(page, "kernels", "new\n").unwrap();
        assert_eq!(new, page.replace("old", "new\n"));
        assert!(with_part(page, "compare", "").is_err());
    }
}

//! How long do the commands take on models larger than memory? scripts/measure/bench_memory.py makes them, and asks.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use super::{binary, build, load};

/// The table of the script.
pub(super) fn run(folder: Option<&Path>) -> Result<String> {
    let folder = folder.map_or_else(|| std::env::temp_dir().join("firstdiff-bench-8b"), Path::to_owned);
    build(&["-p", "firstdiff"])?;
    let before = load();
    let mut script = Command::new(crate::python());
    script
        .arg(crate::root()?.join("scripts/measure/bench_memory.py"))
        .arg(folder)
        .arg("--command")
        .arg(binary("firstdiff")?);
    // Its rows are shown as they come.
    let output = script.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "bench_memory.py: {}", output.status);
    let text = String::from_utf8(output.stdout)?;
    Ok(format!("Load before: {before}. {text}"))
}

//! Measures the commands on models larger than memory; scripts/measure/bench_memory.py creates the models and runs them.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use super::{binary, build, load};

/// Returns the table that the script prints.
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
    // Its progress is shown as it comes.
    let output = script.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "bench_memory.py: {}", output.status);
    let text = String::from_utf8(output.stdout)?;
    Ok(format!("Load before: {before}. {text}"))
}

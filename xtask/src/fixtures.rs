//! Rebuilds every fixture with scripts/goldens/make_fixtures.py, and compares or updates them.

use std::process::Command;

use anyhow::{Context, Result, bail};

pub(crate) fn run(update: bool, skip_llama_cpp: bool) -> Result<u8> {
    let root = crate::root()?;
    let python = crate::python();
    let imports = "import numpy, torch, transformers, safetensors";
    let probe =
        Command::new(&python).args(["-c", imports]).output().with_context(|| format!("{python} does not run"))?;
    if !probe.status.success() {
        bail!(
            "{python} lacks what scripts/requirements.txt lists; install it, or name another Python in FIRSTDIFF_PYTHON"
        );
    }
    let mut command = Command::new(&python);
    command.arg(root.join("scripts/goldens/make_fixtures.py"));
    command.args(if update { None } else { Some("--check") });
    command.args(skip_llama_cpp.then_some("--skip-llama-cpp"));
    let status = command.current_dir(&root).status()?;
    Ok(if status.success() { 0 } else { 1 })
}

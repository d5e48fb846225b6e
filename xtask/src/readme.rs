//! Does README.md show what the command prints? Writes the terminal run between its marks, or compares.

use std::process::Command;

use anyhow::{Context, Result, bail};

const BEGIN: &str = "<!-- terminal run: written by `cargo xtask readme` -->\n";
const END: &str = "<!-- end of terminal run -->";

/// The run that is shown: the first thing a newcomer does.
const ARGS: [&str; 3] = ["compare", "fixtures/golden/llama-torch", "fixtures/faulty/llama-rope-pairing"];

pub(crate) fn run(check: bool) -> Result<u8> {
    let root = crate::root()?;
    let path = root.join("README.md");
    let text = std::fs::read_to_string(&path).context("README.md")?;
    let (before, rest) = text.split_once(BEGIN).context("README.md has no mark where the run begins")?;
    let (_, after) = rest.split_once(END).context("README.md has no mark where the run ends")?;
    let output = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--package", "firstdiff", "--"])
        .args(ARGS)
        .current_dir(&root)
        .output()?;
    if output.status.code() != Some(1) {
        bail!("the run ended with {:?}: {}", output.status.code(), String::from_utf8_lossy(&output.stderr));
    }
    let screen = String::from_utf8(output.stdout)?;
    let shown = format!("{before}{BEGIN}```console\n$ firstdiff {}\n{screen}```\n{END}{after}", ARGS.join(" "));
    if shown == text {
        return Ok(0);
    }
    if check {
        bail!("README.md does not show what the command prints; run `cargo xtask readme`");
    }
    std::fs::write(&path, shown)?;
    Ok(0)
}

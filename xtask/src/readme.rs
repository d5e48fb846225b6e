//! Does README.md show what the command prints? Writes the terminal runs between their marks anew, or compares.

use std::process::Command;

use anyhow::{Context, Result, bail};

const BEGIN: &str = "<!-- terminal run: written by `cargo xtask readme` -->\n";
const END: &str = "<!-- end of terminal run -->";
const PROMPT: &str = "```console\n$ firstdiff ";

/// Runs what stands behind the prompt of every terminal run; all of them find a fault and end with exit code 1.
pub(crate) fn run(check: bool) -> Result<u8> {
    let path = crate::root()?.join("README.md");
    let text = std::fs::read_to_string(&path).context("README.md")?;
    let mut shown = String::new();
    let mut rest = text.as_str();
    while let Some((before, behind)) = rest.split_once(BEGIN) {
        let (old, after) = behind.split_once(END).context("README.md has no mark where a run ends")?;
        let command = old.strip_prefix(PROMPT).and_then(|run| run.lines().next());
        let command = command.context("a terminal run in README.md does not begin with its command")?;
        shown += &format!("{before}{BEGIN}{PROMPT}{command}\n{}```\n{END}", screen(command)?);
        rest = after;
    }
    shown += rest;
    if shown == text {
        return Ok(0);
    }
    if check {
        bail!("README.md does not show what the command prints; run `cargo xtask readme`");
    }
    std::fs::write(&path, shown)?;
    Ok(0)
}

/// What the command prints.
fn screen(arguments: &str) -> Result<String> {
    let output = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--package", "firstdiff", "--"])
        .args(arguments.split_whitespace())
        .env_remove("COLUMNS")
        .current_dir(crate::root()?)
        .output()?;
    if output.status.code() != Some(1) {
        bail!(
            "firstdiff {arguments} ended with {:?}: {}",
            output.status.code(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}

//! Updates the terminal runs in all documents with what the command prints, or compares them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

const BEGIN: &str = "<!-- terminal run: written by `cargo xtask readme` -->\n";
/// For runs that take minutes: only updated on request.
const BEGIN_SLOW: &str = "<!-- slow terminal run: written by `cargo xtask readme --slow` -->\n";
const END: &str = "<!-- end of terminal run -->";
const PROMPT: &str = "```console\n$ firstdiff ";

/// A terminal run in a document.
struct TerminalRun<'a> {
    command: &'a str,
    /// The output below the command now.
    shown: &'a str,
    is_slow: bool,
}

/// Runs the command of every terminal run in every document.
pub(crate) fn run(check: bool, slow: bool) -> Result<u8> {
    let root = crate::root()?;
    let documents = crate::markdown::documents(&root)?;
    let texts: Vec<(PathBuf, String)> =
        documents.into_iter().filter(|(_, text)| text.contains(BEGIN) || text.contains(BEGIN_SLOW)).collect();
    let command = build(&root)?;
    let screen = |run: &TerminalRun<'_>| match run.is_slow && !slow {
        true => Ok(run.shown.to_owned()),
        false => command_output(&root, &command, run.command),
    };
    let write = |(path, text): &(PathBuf, String)| -> Result<Option<String>> {
        let name = path.display();
        let written = rewritten(text, &screen).with_context(|| name.to_string())?;
        if written == *text {
            return Ok(None);
        }
        if !check {
            crate::docs::write(&root.join(path), &written)?;
        }
        Ok(Some(name.to_string()))
    };
    let changed: Vec<Option<String>> = texts.par_iter().map(write).collect::<Result<_>>()?;
    let changed: Vec<String> = changed.into_iter().flatten().collect();
    if check && !changed.is_empty() {
        bail!("not what the command prints: {}; run `cargo xtask readme`", changed.join(", "));
    }
    Ok(0)
}

/// A terminal run with no output yet.
pub(crate) fn unfilled(command: &str) -> String {
    format!("{BEGIN}{PROMPT}{command}\n```\n{END}")
}

/// A document with the outputs that an earlier version of it has for the same commands.
pub(crate) fn keep_outputs(text: &str, earlier: &str) -> Result<String> {
    let mut known = BTreeMap::new();
    rewritten(earlier, |run| {
        known.insert(run.command.to_owned(), run.shown.to_owned());
        Ok(String::new())
    })?;
    rewritten(text, |run| Ok(known.remove(run.command).unwrap_or_default()))
}

/// Replaces the output below each command.
fn rewritten(text: &str, mut screen: impl FnMut(&TerminalRun<'_>) -> Result<String>) -> Result<String> {
    let mut written = String::new();
    let mut rest = text;
    while let Some((at, mark)) = [BEGIN, BEGIN_SLOW].iter().filter_map(|mark| Some((rest.find(mark)?, *mark))).min() {
        let (before, behind) = (&rest[..at], &rest[at + mark.len()..]);
        let (old, after) = behind.split_once(END).context("a terminal run without a mark where it ends")?;
        let run =
            old.strip_prefix(PROMPT).and_then(|run| run.strip_suffix("```\n")).and_then(|run| run.split_once('\n'));
        let (command, shown) = run.context("a terminal run that does not begin with its command")?;
        let shown = screen(&TerminalRun { command, shown, is_slow: mark == BEGIN_SLOW })?;
        written += &format!("{before}{mark}{PROMPT}{command}\n{shown}```\n{END}");
        rest = after;
    }
    Ok(written + rest)
}

/// Builds the command as it is installed: the documents show some hundred runs of it.
pub(crate) fn build(root: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new(env!("CARGO"));
    let status = cargo.args(["build", "--quiet", "--release", "--package", "firstdiff"]).current_dir(root).status()?;
    ensure!(status.success(), "cargo build --release -p firstdiff failed");
    let program = std::env::current_exe()?;
    let profiles = program.parent().and_then(Path::parent).context("this program lies in no folder of Cargo's")?;
    Ok(profiles.join("release/firstdiff"))
}

/// Runs the command and returns its output.
fn command_output(root: &Path, command: &Path, arguments: &str) -> Result<String> {
    let output = Command::new(command)
        .args(arguments.split_whitespace())
        .env_remove("COLUMNS")
        .current_dir(root)
        .output()
        .with_context(|| command.display().to_string())?;
    if !matches!(output.status.code(), Some(0 | 1)) {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("firstdiff {arguments} ended with {:?}: {error}", output.status.code());
    }
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_version_shows_is_carried_over() {
        let earlier =
            format!("old {BEGIN}{PROMPT}why a\nshown\n```\n{END} {BEGIN_SLOW}{PROMPT}why b\nlong\n```\n{END}");
        let text = format!("new {} and {}", unfilled("why c"), unfilled("why a"));
        let written = keep_outputs(&text, &earlier).unwrap();
        assert_eq!(written, text.replace("why a\n", "why a\nshown\n"));
        assert_eq!(rewritten(&earlier, |run| Ok(run.shown.to_owned())).unwrap(), earlier);
        assert!(keep_outputs(&format!("{BEGIN}no command"), "").is_err());
    }
}

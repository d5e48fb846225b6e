//! Runs the installed command `firstdiff` for what this crate cannot do: causes, and pages.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::session::Session;

/// Names the command, where it is not in PATH.
const COMMAND: &str = "FIRSTDIFF_COMMAND";
/// The exit code of a refusal.
const REFUSED: i32 = 2;
/// Seconds for each kind of search for a cause: a test waits for it.
const SECONDS: &str = "10";

/// Writes a page of a comparison, and gives the causes in lines.
pub(crate) fn report(session: &Session, page: &Path) -> Result<String> {
    Ok(causes_in_lines(&ask("report", session, &["--output".as_ref(), page.as_os_str()])?["explained"]))
}

/// The causes in lines.
pub(crate) fn causes(session: &Session) -> Result<String> {
    Ok(causes_in_lines(&ask("explain", session, &[])?))
}

/// The report of the command that [`COMMAND`] names, else of the one in PATH.
fn ask(what: &str, session: &Session, more: &[&OsStr]) -> Result<Value> {
    let named = std::env::var_os(COMMAND).unwrap_or_else(|| "firstdiff".into());
    let [reference, candidate] = session.recorded();
    let mut command = Command::new(named);
    command.args([what, "--json", "-", "--seconds", SECONDS, "--profile", session.options.profile.name()]);
    let output = command.args(more).arg("--").args([reference.path(), candidate.path()]).output();
    let output = output.with_context(|| {
        format!("the command firstdiff is not there: `cargo install firstdiff`, or name it in {COMMAND}")
    })?;
    if output.status.code().is_none_or(|code| code == REFUSED) {
        bail!("firstdiff {what}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).with_context(|| format!("firstdiff {what} wrote no JSON"))
}

/// `cause: ..`, `fix: ..` of each finding; empty where no cause is known.
fn causes_in_lines(explained: &Value) -> String {
    let mut text = String::new();
    for finding in explained["findings"].as_array().into_iter().flatten() {
        let law = &finding["measured"]["words"];
        for (name, value) in
            [("cause", &finding["summary"]), ("", &finding["proof"]), ("law", law), ("fix", &finding["fix"])]
        {
            if let Some(value) = value.as_str() {
                text.push_str(&format!("\n  {name:<6} {value}"));
            }
        }
    }
    text
}

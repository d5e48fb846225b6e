//! Runs the installed command `firstdiff` for what this crate cannot do: causes, and pages.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::session::Session;

/// Names the command, where it is not in PATH.
const COMMAND: &str = "FIRSTDIFF_COMMAND";
/// The exit code of a refusal.
const REFUSED: i32 = 2;
/// Seconds for each kind of search for a cause: a test waits for it.
const SECONDS: &str = "10";

/// The command as it is installed.
pub(crate) struct Command(OsString);

impl Command {
    /// The one that FIRSTDIFF_COMMAND names, else the one in PATH.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn installed() -> Result<Command> {
        let named = std::env::var_os(COMMAND).unwrap_or_else(|| "firstdiff".into());
        let version = std::process::Command::new(&named).arg("--version").output();
        match version {
            Ok(output) if output.status.success() => Ok(Command(named)),
            _ => bail!("the command firstdiff is not there: `cargo install firstdiff`, or name it in {COMMAND}"),
        }
    }

    /// Writes a page of a comparison, and returns the causes as lines.
    pub(crate) fn report(&self, session: &Session, page: &Path) -> Result<String> {
        let answer = self.ask("report", session, &["--output".as_ref(), page.as_os_str()])?;
        Ok(causes(&answer["explained"]))
    }

    /// The causes as lines.
    pub(crate) fn causes(&self, session: &Session) -> Result<String> {
        Ok(causes(&self.ask("explain", session, &[])?))
    }

    fn ask(&self, what: &str, session: &Session, more: &[&std::ffi::OsStr]) -> Result<Value> {
        let [reference, candidate] = session.recorded();
        let mut command = std::process::Command::new(&self.0);
        command.args([what, "--json", "-", "--seconds", SECONDS, "--profile", session.options.profile.name()]);
        let output = command.args(more).arg("--").args([reference.path(), candidate.path()]).output()?;
        if output.status.code().is_none_or(|code| code == REFUSED) {
            bail!("firstdiff {what}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        serde_json::from_slice(&output.stdout).with_context(|| format!("firstdiff {what} wrote no JSON"))
    }
}

/// `cause: ..`, `fix: ..` of each finding; empty where no cause is known.
fn causes(explained: &Value) -> String {
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

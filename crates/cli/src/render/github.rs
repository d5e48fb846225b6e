//! Shows an outcome in a job of GitHub Actions: annotations as commands of its runner, and the screen in the job's summary.

use std::collections::hash_map::RandomState;
use std::fs::OpenOptions;
use std::hash::{BuildHasher, Hasher};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use firstdiff_compare::Verdict;

use crate::report::{CiFailure, CiOutcome};
use crate::words::safe;

/// The commands, a line each; nothing of a run in which nothing failed. Of each kind of failure the first alone: those that follow most often come of it, and
/// the screen lists them.
pub(crate) fn annotations(CiOutcome { report, failures, .. }: &CiOutcome<'_>) -> String {
    let mut text = String::new();
    for (at, CiFailure { place, kind, message }) in failures.iter().enumerate() {
        if failures[..at].iter().any(|other| other.kind == *kind) {
            continue;
        }
        let more = failures[at + 1..].iter().filter(|other| other.kind == *kind).count();
        let more = if more == 0 { String::new() } else { format!(" (and {more} more)") };
        text += &command("error", &format!("firstdiff: {kind}: {place}"), &format!("{message}{more}"));
    }
    if let Verdict::Incomparable(reason) = &report.verdict {
        text += &command("error", "firstdiff: incomparable", reason);
    }
    text
}

/// `::error title=..::..`, as the runner reads it: <https://docs.github.com/actions/reference/workflow-commands-for-github-actions>.
fn command(level: &str, title: &str, message: &str) -> String {
    // Old commands begin with ##[ anywhere in a line.
    let data = |text: &str| safe(text).replace('%', "%25").replace("##[", "## [");
    let property = data(title).replace(':', "%3A").replace(',', "%2C");
    format!("::{level} title={property}::{}\n", data(message))
}

/// The screen between commands that make the runner ignore commands in it, by a word that nobody can guess.
pub(crate) fn without_commands(screen: &str) -> String {
    let word = RandomState::new().build_hasher().finish();
    format!("::stop-commands::firstdiff-{word:016x}\n{screen}::firstdiff-{word:016x}::\n")
}

/// Adds the screen to the summary of the step.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn add_summary(path: &Path, concluded: &str, screen: &str) -> Result<()> {
    let escaped = screen.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let text = format!("### firstdiff: {concluded}\n\n<pre>\n{escaped}</pre>\n\n");
    let written =
        OpenOptions::new().create(true).append(true).open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("{}: cannot be written (GITHUB_STEP_SUMMARY)", path.display()))
}

#[cfg(test)]
mod tests {
    use super::command;

    #[test]
    fn a_foreign_name_starts_no_command_of_its_own() {
        let line = command("error", "a:b,c\n::set-env name=X::", "50 %\r\n::error::x");
        assert_eq!(line.lines().count(), 1);
        assert!(!super::without_commands("").contains("firstdiff-0000000000000000"));
        assert!(line.starts_with("::error title=a%3Ab%2Cc\\n%3A%3Aset-env name=X%3A%3A::50 %25"), "{line}");
    }
}

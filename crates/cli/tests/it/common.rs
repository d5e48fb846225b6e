//! Runs the command in the folder of the fixtures, for all tests of the command.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

pub(crate) fn firstdiff(args: &[&str]) -> Output {
    // Screens as they are without a known width.
    let mut command = Command::new(env!("CARGO_BIN_EXE_firstdiff"));
    command.env_remove("COLUMNS").args(args).current_dir(fixtures()).output().unwrap()
}

#[allow(dead_code, reason = "not every test reads the screen")]
pub(crate) fn screen(args: &[&str]) -> String {
    String::from_utf8(firstdiff(args).stdout).unwrap()
}

/// The words without line breaks and without column spacing.
#[allow(dead_code, reason = "not every test reads the screen")]
pub(crate) fn in_one_line(screen: &str) -> String {
    screen.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The report that a command wrote to standard output; every one that a test reads is checked against docs/reference/schema.
pub(crate) fn parsed(output: &Output) -> Value {
    let read = serde_json::from_slice(&output.stdout);
    let report = read.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    crate::schema::conforms(&report);
    report
}

pub(crate) fn json(args: &[&str]) -> Value {
    parsed(&firstdiff(&[args, &["--json", "-"]].concat()))
}

/// Exit code 2, and one line with every word.
#[track_caller]
pub(crate) fn refused(output: &Output, words: &[&str]) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    for word in words {
        assert!(error.contains(word), "'{word}' is not in: {error}");
    }
}

/// Leaves the taps of a dump that are to be kept.
pub(crate) fn keep_taps(dump: &Path, keep: &dyn Fn(&str) -> bool) {
    let path = dump.join("dump.json");
    let mut meta: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let is_left_out = |tap: &mut Value| !keep(tap["tap"].as_str().unwrap());
    for tap in meta["taps"].as_array_mut().unwrap().extract_if(.., is_left_out) {
        std::fs::remove_file(dump.join(tap["file"].as_str().unwrap())).unwrap();
    }
    std::fs::write(&path, meta.to_string()).unwrap();
}

//! What do the command's tests share? Running it in the folder of the fixtures.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

pub(crate) fn firstdiff(args: &[&str]) -> Output {
    // Screens as they are where nobody says how wide they may be.
    let mut command = Command::new(env!("CARGO_BIN_EXE_firstdiff"));
    command.env_remove("COLUMNS").args(args).current_dir(fixtures()).output().unwrap()
}

#[allow(dead_code, reason = "not every test reads the screen")]
pub(crate) fn screen(args: &[&str]) -> String {
    String::from_utf8(firstdiff(args).stdout).unwrap()
}

/// Words without the breaks between lines, and without what sets columns apart.
#[allow(dead_code, reason = "not every test reads the screen")]
pub(crate) fn in_one_line(screen: &str) -> String {
    screen.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub(crate) fn json(args: &[&str]) -> Value {
    serde_json::from_slice(&firstdiff(&[args, &["--json", "-"]].concat()).stdout).unwrap()
}

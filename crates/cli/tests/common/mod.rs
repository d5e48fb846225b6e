//! What do the command's tests share? Running it in the folder of the fixtures.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

pub(crate) fn firstdiff(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_firstdiff")).args(args).current_dir(fixtures()).output().unwrap()
}

#[allow(dead_code, reason = "not every test reads the screen")]
pub(crate) fn screen(args: &[&str]) -> String {
    String::from_utf8(firstdiff(args).stdout).unwrap()
}

pub(crate) fn json(args: &[&str]) -> Value {
    serde_json::from_slice(&firstdiff(&[args, &["--json", "-"]].concat()).stdout).unwrap()
}

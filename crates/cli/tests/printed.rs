//! Do the commands that compute use what an engine printed as text, and leave what has too few digits for that?

use std::fs;
use std::path::Path;

use firstdiff_trace::Dump;

mod common;
use common::{firstdiff, fixtures, json};

const MODEL: &str = "models/llama";
const TOKENS: &str = "1,17,42,99,3,150,77,17,128,64,5";

/// The prefill of a fixture, a text a tap, each number as `print` has it.
fn printed(folder: &Path, dump: &str, print: impl Fn(f64) -> String) -> String {
    fs::create_dir(folder).unwrap();
    let dump = Dump::open(fixtures().join(dump)).unwrap();
    for entry in dump.entries().iter().filter(|entry| entry.step == 0) {
        let values = dump.read(entry).unwrap().values().to_f64();
        let lines: Vec<String> = values.into_iter().map(&print).collect();
        fs::write(folder.join(format!("{}.txt", entry.tap)), lines.join("\n")).unwrap();
    }
    folder.to_string_lossy().into_owned()
}

#[test]
fn explain_names_the_cause_in_numbers_of_six_digits() {
    let folder = tempfile::tempdir().unwrap();
    let path = printed(&folder.path().join("six"), "faulty/llama-rope-theta.npz", |x| format!("{x:.5e}"));
    let report = json(&["explain", MODEL, &path, "--tokens", TOKENS]);
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 1, "{report}");
    assert_eq!((&findings[0]["cause"], &findings[0]["match"]), (&"rope-theta".into(), &"reproduced".into()));
}

#[test]
fn a_right_run_in_numbers_of_six_digits_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let path = printed(&folder.path().join("six"), "golden/llama-torch", |x| format!("{x:.5e}"));
    for command in ["explain", "replay"] {
        let out = firstdiff(&[command, MODEL, &path, "--tokens", TOKENS]);
        assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stdout));
    }
    assert_eq!(firstdiff(&["inspect", &path, "--tokens", TOKENS]).status.code(), Some(0));
}

#[test]
fn nothing_is_computed_from_three_decimals() {
    let folder = tempfile::tempdir().unwrap();
    let path = printed(&folder.path().join("three"), "golden/llama-torch", |x| format!("{x:.3}"));
    let report = json(&["explain", MODEL, &path, "--tokens", TOKENS]);
    assert_eq!(report["verdict"], "incomparable", "{report}");
}

//! Checks that commands which compute use what an engine printed as text, and ignore tensors with too few digits for that.

use std::fs;
use std::path::Path;

use firstdiff_trace::Dump;

use crate::common::{firstdiff, fixtures, in_one_line, json};

const MODEL: &str = "models/llama";
const TOKENS: &str = "1,17,42,99,3,150,77,17,128,64,5";

/// The prefill of a fixture, one text file a tap, each number formatted by `print`.
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
        let words = in_one_line(&String::from_utf8_lossy(&out.stdout));
        assert_eq!(out.status.code(), Some(0), "{words}");
        assert!(words.contains("smaller than f16's rounding cannot be seen"), "{words}");
    }
    assert_eq!(firstdiff(&["inspect", &path, "--tokens", TOKENS]).status.code(), Some(0));
}

/// For the large taps six decimals are enough to compute with, for the small ones they are not: no operation is blamed for that.
#[test]
fn where_some_taps_have_too_few_digits_none_is_computed_with() {
    let folder = tempfile::tempdir().unwrap();
    for decimals in [4, 5, 6] {
        let path =
            printed(&folder.path().join(decimals.to_string()), "golden/llama-torch", |x| format!("{x:.decimals$}"));
        for command in ["explain", "replay"] {
            let out = firstdiff(&[command, MODEL, &path, "--tokens", TOKENS]);
            assert_ne!(out.status.code(), Some(1), "{}", String::from_utf8_lossy(&out.stdout));
        }
    }
}

#[test]
fn nothing_is_computed_from_three_decimals() {
    let folder = tempfile::tempdir().unwrap();
    let path = printed(&folder.path().join("three"), "golden/llama-torch", |x| format!("{x:.3}"));
    let report = json(&["explain", MODEL, &path, "--tokens", TOKENS]);
    assert_eq!(report["verdict"], "incomparable", "{report}");
}

const DECODED: &str = "23,108,61";

/// All of a fixture, one text file a tap, its steps one behind the other; `change` changes the values of a tap in a step.
fn appended(folder: &Path, print: impl Fn(f64) -> String, change: impl Fn(&str, u32, &mut [f64])) -> String {
    fs::create_dir(folder).unwrap();
    let dump = Dump::open(fixtures().join("golden/llama-torch")).unwrap();
    for entry in dump.entries() {
        let mut values = dump.read(entry).unwrap().values().to_f64();
        change(&entry.tap.to_string(), entry.step, &mut values);
        let lines: String = values.into_iter().map(|x| print(x) + "\n").collect();
        let file = fs::OpenOptions::new().create(true).append(true).open(folder.join(format!("{}.txt", entry.tap)));
        std::io::Write::write_all(&mut file.unwrap(), lines.as_bytes()).unwrap();
    }
    folder.to_string_lossy().into_owned()
}

fn unchecked(report: &serde_json::Value) -> Vec<String> {
    let taps = report["taps"].as_array().unwrap().iter().filter(|tap| tap["status"] == "unchecked");
    taps.map(|tap| tap["tap"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn few_digits_appended_over_the_steps_are_laid_over_positions() {
    let folder = tempfile::tempdir().unwrap();
    let nine = appended(&folder.path().join("nine"), |x| format!("{x:.8e}"), |_, _, _| ());
    let due = unchecked(&json(&["compare", "golden/llama-torch", &nine]));
    let six = appended(&folder.path().join("six"), |x| format!("{x:.5e}"), |_, _, _| ());
    let all = format!("{TOKENS},{DECODED}");
    for told in [&[][..], &["--tokens", &all], &["--tokens", TOKENS, "--decode-tokens", DECODED]] {
        let report = json(&[&["compare", "golden/llama-torch", &six], told].concat());
        assert_eq!(report["verdict"], "parity", "{told:?}: {report}");
        assert_eq!(unchecked(&report), due, "{told:?}");
    }
}

#[test]
fn a_fault_of_one_step_shows_in_few_digits() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = |tap: &str, step: u32, values: &mut [f64]| {
        if tap == "layers.1.ffn_act" && step == 2 {
            values.iter_mut().for_each(|x| *x *= 1.5);
        }
    };
    let path = appended(&folder.path().join("six"), |x| format!("{x:.5e}"), wrong);
    let report = json(&["compare", "golden/llama-torch", &path]);
    assert_eq!(report["verdict"], "diverged", "{report}");
    assert_eq!(report["first_divergence"]["tap"], "layers.1.ffn_act");
}

#[test]
fn padding_behind_the_prompt_is_no_decode_step() {
    let folder = tempfile::tempdir().unwrap();
    let pad =
        |_: &str, step: u32, values: &mut [f64]| values.iter_mut().for_each(|x| *x *= f64::from(u8::from(step == 0)));
    let path = appended(&folder.path().join("six"), |x| format!("{x:.5e}"), pad);
    let report = json(&["compare", "golden/llama-torch", &path]);
    assert_eq!(report["verdict"], "incomparable", "{report}");
}

#[test]
fn what_is_printed_too_coarsely_is_not_called_unrecorded() {
    let folder = tempfile::tempdir().unwrap();
    let path = printed(&folder.path().join("three"), "golden/llama-torch", |x| format!("{x:.3}"));
    let out =
        in_one_line(&String::from_utf8(firstdiff(&["explain", MODEL, &path, "--tokens", TOKENS]).stdout).unwrap());
    assert!(!out.contains("nothing of the model was recorded") && out.contains("%.6e"), "{out}");
}

#[test]
fn one_pass_against_steps_asks_for_the_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let whole = appended(&folder.path().join("whole"), |x| format!("{x:.8e}"), |_, _, _| ());
    let steps = folder.path().join("steps");
    let dump = Dump::open(fixtures().join("golden/llama-torch")).unwrap();
    for entry in dump.entries().iter().filter(|entry| entry.step > 0) {
        let of_step = steps.join(format!("step{:03}", entry.step - 1));
        fs::create_dir_all(&of_step).unwrap();
        let values = dump.read(entry).unwrap().values().to_f64();
        let lines: String = values.into_iter().map(|x| format!("{x:.8e}\n")).collect();
        fs::write(of_step.join(format!("{}.txt", entry.tap)), lines).unwrap();
    }
    let out = firstdiff(&["compare", &whole, &steps.to_string_lossy()]);
    let error = String::from_utf8(out.stderr).unwrap();
    assert!(error.contains("1 step and the candidate 3 steps") && error.contains("--tokens"), "{error}");
}

/// The prefill as JSON lines, with null for values that are not finite, and for one value of a tap.
fn with_nulls(path: &Path, lost: Option<&str>) -> String {
    let dump = Dump::open(fixtures().join("golden/llama-torch")).unwrap();
    let mut lines = String::new();
    for entry in dump.entries().iter().filter(|entry| entry.step == 0) {
        let mut values = dump.read(entry).unwrap().values().to_f64();
        if lost == Some(entry.tap.to_string().as_str()) {
            values[7] = f64::NAN;
        }
        // serde_json writes a number that is not finite as null.
        let line = serde_json::json!({"name": entry.tap.to_string(), "shape": entry.shape, "values": values});
        lines += &format!("{line}\n");
    }
    fs::write(path, lines).unwrap();
    path.to_string_lossy().into_owned()
}

#[test]
fn a_null_is_a_mask_where_the_reference_masks_and_a_fault_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let right = with_nulls(&folder.path().join("right.jsonl"), None);
    let report = json(&["compare", "golden/llama-torch", &right]);
    assert_eq!(report["verdict"], "parity", "{report}");
    assert!(report["warnings"].to_string().contains("null"), "{}", report["warnings"]);
    let wrong = with_nulls(&folder.path().join("wrong.jsonl"), Some("layers.1.ffn_act"));
    let report = json(&["compare", "golden/llama-torch", &wrong]);
    assert_eq!(
        (&report["verdict"], &report["first_divergence"]["tap"]),
        (&"diverged".into(), &"layers.1.ffn_act".into())
    );
}

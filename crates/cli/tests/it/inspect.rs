//! Checks the contract of `firstdiff inspect`: exit codes, JSON keys, and the screen.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn inspect(args: &[&str]) -> Output {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    Command::new(env!("CARGO_BIN_EXE_firstdiff")).arg("inspect").args(args).current_dir(fixtures).output().unwrap()
}

#[test]
fn the_screen() {
    let screen = |name| String::from_utf8(inspect(&[name]).stdout).unwrap();
    insta::assert_snapshot!("inspect", screen("faulty/minimind-mask-omitted.npz"));
    insta::assert_snapshot!("inspect_field", screen("field/celer_infer.npz"));
}

#[test]
fn exit_codes() {
    assert_eq!(inspect(&["golden/llama-torch"]).status.code(), Some(0));
    assert_eq!(inspect(&["faulty/qwen3-rope-omitted.npz"]).status.code(), Some(0), "likely is not certain");
    assert_eq!(inspect(&["faulty/qwen3-softmax-axis.npz"]).status.code(), Some(1));
    for bad in ["nowhere", "models/llama", "ops/linear"] {
        let output = inspect(&[bad]);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{bad}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(bad) && error.trim_end().lines().count() == 1, "{error}");
    }
}

#[test]
fn json_has_the_contracts_keys() {
    let output = inspect(&["faulty/qwen3-softmax-axis.npz", "--json", "-"]);
    let report = crate::common::parsed(&output);
    assert_eq!(
        (&report["schema"], &report["command"], &report["verdict"]),
        (&2.into(), &"inspect".into(), &Value::Null)
    );
    let finding = &report["findings"][0];
    for key in ["tap", "taps", "step", "sure", "what", "detail", "points_to", "rows", "least", "most"] {
        assert!(finding.get(key).is_some(), "{key}: {finding}");
    }
    for key in ["candidate", "unseen", "unmapped", "warnings"] {
        assert!(report.get(key).is_some(), "{key}");
    }
}

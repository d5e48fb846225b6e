//! `replay` and `explain` where a recorded program stands for the model: an architecture that no code here names.

use crate::common::{firstdiff, in_one_line, json};

const GOLDEN: &str = "programs/forgetting/golden";
const WEIGHTS: [&str; 2] = ["--weights", "programs/forgetting/model.safetensors"];

fn of(command: &'static str, candidate: &'static str) -> Vec<&'static str> {
    [&[command, GOLDEN, candidate], &WEIGHTS[..]].concat()
}

#[test]
fn an_operation_that_is_left_out_is_named_by_its_line() {
    let report = json(&of("explain", "programs/forgetting/wrong.npz"));
    assert_eq!(report["verdict"], "diverged");
    let findings = report["findings"].as_array().expect("findings");
    let [finding] = &findings[..] else { panic!("{findings:#?}") };
    assert_eq!(finding["match"], "reproduced");
    assert_eq!(finding["cause"], "operation-omitted");
    let operation = finding["params"]["operation"].as_str().unwrap_or_default();
    assert!(operation.starts_with("softplus (new_architecture.py:"), "{operation}");
    assert_eq!(finding["layers"], serde_json::json!([0, 1, 2]));
}

#[test]
fn every_wrong_operation_is_replayed_on_its_own_inputs() {
    let report = json(&of("replay", "programs/forgetting/wrong.npz"));
    let wrong: Vec<&str> = report["taps"]
        .as_array()
        .expect("taps")
        .iter()
        .filter(|tap| tap["status"] == "diverged")
        .filter_map(|tap| tap["tap"].as_str())
        .collect();
    assert_eq!(wrong, ["layers.0.mixer_out", "layers.1.mixer_out", "layers.2.mixer_out"]);
}

#[test]
fn a_right_engine_is_right() {
    for command in ["replay", "explain"] {
        let report = json(&of(command, "programs/forgetting/right.npz"));
        assert_eq!(report["verdict"], "parity", "{command}");
        assert_eq!(report["architecture"]["family"], "Odd");
    }
}

#[test]
fn a_program_needs_its_weights() {
    let out = firstdiff(&["replay", GOLDEN, "programs/forgetting/right.npz"]);
    assert_eq!(out.status.code(), Some(2));
    let said = in_one_line(&String::from_utf8_lossy(&out.stderr));
    assert!(said.contains("does not say where its weights are: --weights MODEL"), "{said}");
}

//! Checks `compare --why`: what each stage of the comparison decided about a tap.

use serde_json::Value;

use crate::common::{firstdiff, in_one_line, json, screen};

/// The status of a tap, and its stages as (stage, status).
fn stages(candidate: &str, tap: &str) -> (String, Vec<[String; 2]>) {
    let report = json(&["compare", "golden/llama-torch", candidate, "--why", tap]);
    let why = &report["why"][0];
    assert_eq!(why["tap"], tap);
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let stages = why["stages"].as_array().expect("stages");
    (word(&why["status"]), stages.iter().map(|stage| [word(&stage["stage"]), word(&stage["status"])]).collect())
}

#[test]
fn a_layout_that_nothing_confirms_is_taken_back_and_the_log_says_so() {
    let (status, stages) = stages("faulty/llama-qk-row-order.npz", "layers.0.q");
    assert_eq!(status, "diverged");
    assert_eq!(stages, [["tensors", "rounding"], ["layout", "differs"]]);
}

#[test]
fn a_tap_of_one_side_has_one_stage() {
    let (status, stages) = stages("faulty/llama-qk-row-order.npz", "layers.0.q_rope");
    assert_eq!(status, "unchecked");
    assert_eq!(stages, [["tensors", "unchecked"]]);
}

#[test]
fn the_screen_says_what_a_tap_depends_on() {
    let of = |tap| ["compare", "golden/llama-torch", "faulty/llama-rope-pairing", "--why", tap];
    let said = in_one_line(&screen(&of("layers.0.q*")));
    assert!(said.contains("why layers.0.q_rope recorded reference [11, 6, 16] f32"), "{said}");
    assert!(
        said.contains("diverged: it differs, and what was compared of what it depends on agrees: layers.0.q"),
        "{said}"
    );
    assert_eq!(firstdiff(&of("layers.9.q")).status.code(), Some(2));
}

//! Checks that a program of llama.cpp explains what the built-in plan of the same model explains, in the same words.

use serde_json::Value;

use crate::common::{firstdiff, json};

const PROGRAM: [&str; 3] = ["programs/llama-cpp", "--weights", "gguf/qwen2-f32.gguf"];

fn findings(reference: &[&str], candidate: &str) -> Vec<Value> {
    let args = [&["explain", reference[0], candidate][..], &reference[1..]].concat();
    json(&args)["findings"].as_array().expect("findings").clone()
}

#[test]
fn a_program_of_llama_cpp_names_what_the_plan_names() {
    for fault in ["aliasing", "bias-omitted", "embed-scale", "gate-up-swapped", "softmax-base", "weight-swapped"] {
        let candidate = format!("faulty/qwen2-{fault}.npz");
        let causes = |findings: Vec<Value>| -> Vec<(String, Value)> {
            findings.iter().map(|f| (f["cause"].to_string(), f["params"].clone())).collect()
        };
        let (plan, program) = (causes(findings(&["models/qwen2"], &candidate)), causes(findings(&PROGRAM, &candidate)));
        let ids = |causes: &[(String, Value)]| causes.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>();
        assert_eq!(ids(&program), ids(&plan), "{fault}: {program:?} {plan:?}");
        assert_eq!(program[0].0, format!("\"{fault}\""));
    }
}

#[test]
fn a_right_run_of_another_engine_is_at_parity_with_it() {
    let right = firstdiff(&["explain", PROGRAM[0], "golden/qwen2-torch.npz", PROGRAM[1], PROGRAM[2]]);
    let said = String::from_utf8_lossy(&right.stdout);
    assert!(right.status.code() == Some(0) && said.contains("parity"), "{said}");
}

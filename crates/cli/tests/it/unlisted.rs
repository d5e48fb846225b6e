//! Checks that `explain` says mistakes that no entry of the catalogue lists: the program of an architecture that no code here knows is changed,
//! carried out, and explained by the program as it was recorded.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::common::{fixtures, json as answer, keep_taps};

/// A recorded program, its weights, and the tokens that it was fed.
struct Source {
    golden: &'static str,
    weights: &'static str,
    tokens: &'static str,
}

const FORGETTING: Source = Source {
    golden: "programs/forgetting/golden",
    weights: "programs/forgetting/model.safetensors",
    tokens: "7,3,19,42,8,8,31,2,25,11",
};
const ATTENTION: Source = Source {
    golden: "programs/attention/golden",
    weights: "programs/attention/model.safetensors",
    tokens: "7,3,19,22,8,8,31,2,25,11,5,30,17,1,28,9,14,33,4,21,6,35,12,27",
};

fn explained(name: &str, line: u64, change: impl Fn(&mut Value)) -> Vec<Value> {
    FORGETTING.explained(name, line, &[], change)
}

impl Source {
    /// What is said of a run of the program in which each operation of this name and line is changed; of these taps, or of all.
    fn explained(&self, name: &str, line: u64, only: &[&str], change: impl Fn(&mut Value)) -> Vec<Value> {
        let folder = tempfile::tempdir().unwrap();
        let [program, out] = ["program", "out"].map(|name| folder.path().join(name));
        std::fs::create_dir(&program).unwrap();
        for file in std::fs::read_dir(fixtures().join(self.golden)).unwrap().map(Result::unwrap) {
            std::fs::copy(file.path(), program.join(file.file_name())).unwrap();
        }
        let recorded = std::fs::read(fixtures().join(self.golden).join("program.json")).unwrap();
        let mut recorded: Value = serde_json::from_slice(&recorded).unwrap();
        let ops = recorded["ops"].as_array_mut().unwrap();
        let mut changed = 0;
        for op in ops.iter_mut().filter(|op| op["o"] == name && op["l"] == line) {
            change(op);
            changed += 1;
        }
        assert!(changed > 0, "no operation {name} in line {line}");
        std::fs::write(program.join("program.json"), recorded.to_string()).unwrap();
        let [program, out] = [&program, &out].map(|path: &PathBuf| path.to_string_lossy().into_owned());
        answer(&["dump", &program, "-o", &out, "--weights", self.weights, "--tokens", self.tokens]);
        keep_taps(out.as_ref(), &|tap| only.is_empty() || only.contains(&tap));
        let report = answer(&["explain", self.golden, &out, "--weights", self.weights]);
        report["findings"].as_array().expect("findings").clone()
    }
}

/// The one cause, and a parameter of it.
fn one(findings: &[Value], param: &str) -> (String, String) {
    let [finding] = findings else { panic!("{findings:#?}") };
    assert_eq!(finding["match"], "reproduced", "{finding:#?}");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&finding["cause"]), text(&finding["params"][param]))
}

#[test]
fn another_operation_is_said_by_the_line_of_the_reference() {
    let found = explained("mul.Tensor", 57, |op| op["o"] = json!("maximum"));
    assert_eq!(one(&found, "is"), ("operation-differs".into(), "maximum".into()));
}

#[test]
fn another_function_is_said() {
    let found = explained("square", 57, |op| op["o"] = json!("exp"));
    assert_eq!(one(&found, "is"), ("operation-differs".into(), "e^x".into()));
}

#[test]
fn two_tensors_that_are_exchanged_are_said() {
    // What is added up: the distance from key to query, and the other way about.
    let found = explained("sub.Tensor", 47, |op| op["i"].as_array_mut().unwrap().reverse());
    let (cause, _) = one(&found, "tensors");
    assert!(["tensors-exchanged", "sign-flipped", "order-differs"].contains(&cause.as_str()), "{cause}");
}

#[test]
fn a_row_statistic_is_said() {
    let found = explained("mean.dim", 35, |op| op["o"] = json!("amax"));
    assert!(found.iter().all(|finding| finding["params"]["is"] == "the maximum"), "{found:#?}");
}

/// The positions of which the mask is made are those that turn queries and keys.
#[test]
fn a_mask_of_shifted_positions_is_no_rotation() {
    let only = ["h0", "layers.0.h", "layers.1.h", "logits"];
    let found = ATTENTION.explained("add_.Tensor", 380, &only, |op| op["i"][1]["c"] = json!(-1));
    assert_eq!(one(&found, "kind"), ("mask-shifted".into(), "future".into()));
    assert_eq!(found[0]["shown_at"], json!(["layers.0.h", "layers.1.h"]), "{found:#?}");
}

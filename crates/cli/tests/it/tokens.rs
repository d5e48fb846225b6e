//! Checks that inserted, missing and exchanged token ids of a candidate are reported, and that later taps are judged on the ids that it was really fed.

use std::path::Path;

use firstdiff_model::{ModelError, Profile, Prompt, TapValues};
use firstdiff_trace::{Recorder, Tap};
use serde_json::{Value, json};

use crate::common::{firstdiff, fixtures, in_one_line};

/// The golden dump's tokens of the prefill.
const TOKENS: [u32; 11] = [1, 17, 42, 99, 3, 150, 77, 17, 128, 64, 5];
const TAPS: [&str; 4] = ["h0", "layers.0.h", "layers.1.h", "logits"];

/// What the model gives for these tokens, only layer outputs and logits; `change` may change a tap.
fn ran(path: &Path, tokens: &[u32], change: impl Fn(&str, &mut Vec<f32>, &mut Vec<usize>)) -> String {
    let model = firstdiff_model::load(fixtures().join("models/llama")).unwrap();
    let recorder = Recorder::create(path).unwrap();
    let prompt = Prompt { tokens, decode_tokens: &[] };
    let recorded = |tap: Tap| TAPS.contains(&tap.to_string().as_str());
    firstdiff_model::run::<ModelError>(
        &model.plan,
        &model.weights,
        prompt,
        Profile::F32,
        recorded,
        |tap, _, values| {
            let TapValues::F32(values) = values else { unreachable!() };
            let (mut own, mut shape): (Vec<f32>, Vec<usize>) =
                (values.iter().copied().collect(), values.shape().to_vec());
            change(&tap.to_string(), &mut own, &mut shape);
            recorder.record(tap, &shape, &own).unwrap();
            Ok(())
        },
    )
    .unwrap();
    recorder.finish().unwrap();
    path.to_string_lossy().into_owned()
}

fn asked(arguments: &[&str]) -> (i32, Value, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let done = firstdiff(&[arguments, &["--json", &file.path().to_string_lossy()]].concat());
    let report = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap_or(Value::Null);
    (done.status.code().unwrap(), report, in_one_line(&String::from_utf8_lossy(&done.stdout)))
}

fn told() -> String {
    TOKENS.map(|id| id.to_string()).join(",")
}

fn judged(command: &str, candidate: &str) -> (i32, Value, String) {
    let model = fixtures().join("models/llama").to_string_lossy().into_owned();
    let quick: &[&str] = if command == "explain" { &["--faults", "1"] } else { &[] };
    asked(&[&[command, &model, candidate, "--tokens", &told()], quick].concat())
}

fn compared(candidate: &str) -> (i32, Value, String) {
    let golden = fixtures().join("golden/llama-torch").to_string_lossy().into_owned();
    asked(&["compare", &golden, candidate])
}

/// Ids that were fed, and the expected message.
fn cases() -> Vec<(&'static str, Vec<u32>, &'static str)> {
    let with = |at: usize, id: u32| [&TOKENS[..at], &[id], &TOKENS[at..]].concat();
    let without = |at: usize| [&TOKENS[..at], &TOKENS[at + 1..]].concat();
    let mut swapped = TOKENS.to_vec();
    swapped[4] = 29;
    vec![
        ("doubled", with(0, 1), "id 1 more at position 0"),
        ("lost", without(0), "no id 1 (the reference's position 0)"),
        ("inserted", with(6, 17), "id 17 more at position 6"),
        ("once more", with(5, 3), "id 3 more at position 4"),
        ("lost within", without(8), "no id 128 (the reference's position 8)"),
        ("exchanged", swapped, "29"),
    ]
}

#[test]
fn other_ids_are_named_and_what_follows_is_judged_on_them() {
    let folder = tempfile::tempdir().unwrap();
    for (name, ids, words) in cases() {
        let candidate = ran(&folder.path().join(name), &ids, |_, _, _| {});
        let (code, report, screen) = judged("explain", &candidate);
        assert_eq!(code, 1, "{name}: {screen}");
        let findings = report["findings"].as_array().unwrap();
        assert_eq!(findings.len(), 1, "{name}: {screen}");
        assert_eq!((&findings[0]["cause"], &findings[0]["tap"]), (&json!("tokens-differ"), &json!("h0")), "{name}");
        assert_eq!(findings[0]["params"]["tokens"], json!(ids), "{name}");
        assert!(screen.contains(words) && screen.contains("3 taps right"), "{name}: {screen}");
        if !["doubled", "lost within"].contains(&name) {
            continue;
        }
        // An error behind it is found all the same.
        let wrong = ran(&folder.path().join(format!("{name} wrong")), &ids, |tap, values, _| {
            if tap == "layers.1.h" {
                values.iter_mut().for_each(|x| *x *= 1.1);
            }
        });
        let (_, report, screen) = judged("replay", &wrong);
        let taps = report["taps"].as_array().unwrap().iter().filter(|tap| tap["status"] == "diverged");
        let at: Vec<&str> = taps.filter_map(|tap| tap["tap"].as_str()).collect();
        assert_eq!(at, ["h0", "layers.1.h"], "{name}: {screen}");
    }
}

#[test]
fn compare_says_the_ids_where_the_rows_show_them() {
    let folder = tempfile::tempdir().unwrap();
    for (name, ids, words) in cases() {
        let candidate = ran(&folder.path().join(name), &ids, |_, _, _| {});
        let (code, report, screen) = compared(&candidate);
        assert_eq!((code, &report["first_divergence"]["tap"]), (1, &json!("h0")), "{name}: {screen}");
        // Id 29 is nowhere in the reference's prompt: its row may as well be a wrong one.
        if name != "exchanged" {
            assert!(screen.contains(words) && screen.contains("tokens-differ"), "{name}: {screen}");
        } else {
            assert!(!screen.contains("(tokens-differ"), "{name}: {screen}");
        }
    }
    let right = ran(&folder.path().join("right"), &TOKENS, |_, _, _| {});
    let (_, report, screen) = compared(&right);
    assert!(report["verdict"] != json!("diverged") && !screen.contains("was fed"), "{screen}");
}

#[test]
fn what_is_padded_in_front_is_no_id_more() {
    let folder = tempfile::tempdir().unwrap();
    for pad in [0usize, 1] {
        let first = ran(&folder.path().join(format!("pad {pad}")), &[pad as u32], |_, _, _| {});
        let rows = firstdiff_trace::Dump::open(&first).unwrap();
        let padded = ran(&folder.path().join(format!("padded {pad}")), &TOKENS, |tap, values, shape| {
            let row = rows.read(rows.find(tap.parse().unwrap(), 0).unwrap()).unwrap().values().to_f64().to_vec();
            values.splice(0..0, row.into_iter().map(|x| x as f32));
            shape[0] += 1;
        });
        let (code, _, screen) = judged("replay", &padded);
        assert!(code == 0 && !screen.contains("tokens-differ"), "{pad}: {screen}");
        let (_, report, screen) = compared(&padded);
        assert!(report["verdict"] != json!("diverged") && !screen.contains("tokens-differ"), "{pad}: {screen}");
    }
}

/// A dump of only h0, with these rows.
fn h0_alone(path: &Path, tokens: Option<&[i64]>, rows: &[&[f32]]) -> String {
    let recorder = Recorder::create(path).unwrap();
    tokens.iter().for_each(|tokens| recorder.tokens(tokens));
    recorder.record("h0".parse::<Tap>().unwrap(), &[rows.len(), rows[0].len()], &rows.concat()).unwrap();
    recorder.finish().unwrap();
    path.to_string_lossy().into_owned()
}

/// Only the rows of h0 can distinguish padding from a repeated token, and a wrong row from another token's.
#[test]
fn what_the_rows_cannot_tell_is_no_cause() {
    let folder = tempfile::tempdir().unwrap();
    let right = ran(&folder.path().join("right"), &TOKENS, |_, _, _| {});
    let run = firstdiff_trace::Dump::open(&right).unwrap();
    let h0 = run.read(run.find("h0".parse().unwrap(), 0).unwrap()).unwrap().values().to_f64().to_vec();
    let values: Vec<f32> = h0.iter().map(|&x| x as f32).collect();
    let rows: Vec<&[f32]> = values.chunks(values.len() / TOKENS.len()).collect();
    // Padded with the first token's id, once and twice; the same, cut off at the reference's length; at both ends.
    let one = [&rows[..1], &rows[..]].concat();
    let two = [&rows[..1], &one[..]].concat();
    let both = [&rows[4..5], &rows[..], &rows[6..7]].concat();
    for (name, padded) in [("one", &one[..]), ("two", &two), ("cut", &one[..11]), ("both", &both)] {
        let (_, report, screen) = compared(&h0_alone(&folder.path().join(name), None, padded));
        assert!(report["verdict"] != json!("diverged") && !screen.contains("tokens-differ"), "{name}: {screen}");
    }
    // A wrong row where both record the same ids.
    let wrong: Vec<f32> = rows[2].iter().rev().copied().collect();
    let ids = TOKENS.map(i64::from);
    let rows = [&rows[..4], &[&wrong[..]], &rows[5..]].concat();
    let (_, report, screen) = compared(&h0_alone(&folder.path().join("wrong"), Some(&ids), &rows));
    assert_eq!(report["verdict"], json!("diverged"), "{screen}");
    assert!(!screen.contains("tokens-differ"), "{screen}");
}

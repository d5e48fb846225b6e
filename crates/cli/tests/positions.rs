//! Are tokens told on the command line used, and are sequences of other prompts left alone?

use std::fs;
use std::path::Path;

use firstdiff_trace::{Dump, Recorder, Tap};

mod common;
use common::{firstdiff, fixtures, json};

const GOLDEN: &str = "golden/llama-torch";
/// The golden dump's own, its prefill's.
const TOKENS: &str = "1,17,42,99,3,150,77,17,128,64,5";
const TAPS: [(&str, usize); 3] = [("h0", 48), ("layers.0.h", 48), ("logits", 151)];

fn golden(name: &str) -> Vec<f32> {
    let dump = Dump::open(fixtures().join(GOLDEN)).unwrap();
    let tensor = dump.read(dump.find(name.parse().unwrap(), 0).unwrap()).unwrap();
    tensor.values().to_f64().iter().map(|&x| x as f32).collect()
}

/// Raw floats without a header, one file a tap, as C writes them.
fn raw(folder: &Path, change: impl Fn(&str, &mut Vec<f32>)) -> String {
    fs::create_dir(folder).unwrap();
    for (name, _) in TAPS {
        let mut values = golden(name);
        change(name, &mut values);
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        fs::write(folder.join(format!("{name}.f32")), bytes).unwrap();
    }
    folder.to_string_lossy().into_owned()
}

/// The golden prefill as sequence `own` of two; the other is of other tokens, and `change` may change the golden one.
fn batch(folder: &Path, own: usize, with_h0: bool, change: impl Fn(&str, &mut Vec<f32>)) -> String {
    let recorder = Recorder::create(folder).unwrap();
    for (name, width) in TAPS.into_iter().filter(|(name, _)| with_h0 || *name != "h0") {
        let mut right = golden(name);
        let mut other: Vec<f32> = right.clone();
        other.rotate_left(5 * width);
        other.iter_mut().for_each(|x| *x *= -1.0);
        change(name, &mut right);
        let all = if own == 0 { [right, other] } else { [other, right] };
        recorder.record(name.parse::<Tap>().unwrap(), &[2, 11, width], &all.concat()).unwrap();
    }
    recorder.finish().unwrap();
    folder.to_string_lossy().into_owned()
}

#[test]
fn flat_files_on_both_sides_need_the_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let right = raw(&folder.path().join("right"), |_, _| {});
    let near = raw(&folder.path().join("near"), |_, values| values.iter_mut().for_each(|x| *x *= 1.0 + 1e-7));
    let wrong = raw(&folder.path().join("wrong"), |name, values| {
        match name {
            "layers.0.h" => values[3 * 48 + 7] += 0.5,
            "logits" => values[3 * 151..].iter_mut().for_each(|x| *x *= 1.01), // what comes of it
            _ => {}
        }
    });
    for candidate in [&near, &wrong] {
        let output = firstdiff(&["compare", &right, candidate]);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("--tokens"));
    }
    assert_eq!(json(&["compare", &right, &near, "--tokens", TOKENS])["verdict"], "parity");
    let report = json(&["compare", &right, &wrong, "--tokens", TOKENS]);
    assert_eq!(report["first_divergence"]["tap"], "layers.0.h");
    assert_eq!(report["first_divergence"]["max_at"], serde_json::json!([3, 7]));
    let output = firstdiff(&["compare", GOLDEN, &right, "--tokens", "1,17,43"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("from index 2 on"));
}

#[test]
fn a_batch_of_other_prompts_is_compared_where_the_prompt_is_the_references() {
    let folder = tempfile::tempdir().unwrap();
    for own in [0, 1] {
        let right = batch(&folder.path().join(format!("right-{own}")), own, true, |_, _| {});
        let report = json(&["compare", GOLDEN, &right]);
        assert_eq!(report["verdict"], "parity", "{own}: {}", report["first_divergence"]);
        let said = report["warnings"].to_string();
        assert!(said.contains(&format!("sequence {}: another prompt", 1 - own)), "{said}");
        let wrong = batch(&folder.path().join(format!("wrong-{own}")), own, true, |name, values| {
            if name == "logits" {
                values.iter_mut().for_each(|x| *x *= 1.01);
            }
        });
        assert_eq!(json(&["compare", GOLDEN, &wrong])["first_divergence"]["tap"], "logits", "{own}");
        let blind = batch(&folder.path().join(format!("blind-{own}")), own, false, |_, _| {});
        assert_eq!(json(&["compare", GOLDEN, &blind])["verdict"], "incomparable", "{own}");
        assert_eq!(json(&["compare", GOLDEN, &blind, "--sequence", &own.to_string()])["verdict"], "parity");
    }
}

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

/// The golden prefill token by token: a JSON line a tap and position, all its values and no shape.
fn lines(file: &Path, change: impl Fn(Tap, usize, &mut Vec<f32>)) -> String {
    let dump = Dump::open(fixtures().join(GOLDEN)).unwrap();
    let mut lines = String::new();
    for entry in dump.entries().iter().filter(|entry| entry.step == 0) {
        let values = dump.read(entry).unwrap().values().to_f64();
        let axis = entry.tap.site.position_axis();
        let (width, keys) = (entry.shape[axis + 1..].iter().product::<usize>(), axis == 1);
        for t in 0..11 {
            let rows = (0..values.len() / width).filter(|row| row % 11 == t);
            let seen = if keys { t + 1 } else { width };
            let mut row: Vec<f32> = rows.flat_map(|row| &values[row * width..][..seen]).map(|&x| x as f32).collect();
            change(entry.tap, t, &mut row);
            lines += &format!("{{\"step\": {t}, \"tensor\": \"{}\", \"data\": {row:?}}}\n", entry.tap);
        }
    }
    fs::write(file, lines).unwrap();
    file.to_string_lossy().into_owned()
}

#[test]
fn json_lines_of_all_values_need_no_shape() {
    let folder = tempfile::tempdir().unwrap();
    let right = lines(&folder.path().join("right.jsonl"), |_, _, _| {});
    let wrong = lines(&folder.path().join("wrong.jsonl"), |tap, t, row| {
        if tap.to_string() == "layers.1.attn_out" && t == 5 {
            row[3] += 0.5;
        }
    });
    for (file, verdict) in [(&right, "parity"), (&wrong, "diverged")] {
        let report = json(&["compare", GOLDEN, file, "--tokens", TOKENS]);
        assert_eq!(report["verdict"], verdict, "{}", report["reason"]);
        let report = json(&["replay", "models/llama", file, "--tokens", TOKENS]);
        assert_eq!(report["verdict"], verdict, "{}", report["reason"]);
    }
    let report = json(&["compare", GOLDEN, &wrong, "--tokens", TOKENS]);
    assert_eq!(report["first_divergence"]["tap"], "layers.1.attn_out");
}

/// The golden decode steps appended to the prefill's file, without a word of the tokens.
#[test]
fn rows_appended_by_decode_steps_are_no_padding() {
    let folder = tempfile::tempdir().unwrap();
    let dump = Dump::open(fixtures().join(GOLDEN)).unwrap();
    let steps = dump.entries().iter().map(|entry| entry.step).max().unwrap();
    let appended = |fault: f32| {
        move |name: &str, values: &mut Vec<f32>| {
            for step in 1..=steps {
                let tensor = Dump::open(fixtures().join(GOLDEN)).unwrap();
                let tensor = tensor.read(tensor.find(name.parse().unwrap(), step).unwrap()).unwrap();
                let start = values.len();
                values.extend(tensor.values().to_f64().iter().map(|&x| x as f32));
                if name == "layers.0.h" && step == 1 {
                    values[start + 7] += fault;
                }
            }
        }
    };
    let right = raw(&folder.path().join("right"), appended(0.0));
    let wrong = raw(&folder.path().join("wrong"), appended(0.5));
    let report = json(&["compare", GOLDEN, &right]);
    assert_eq!(
        (&report["verdict"], report["laid"]["together"].as_u64()),
        (&"parity".into(), Some(11 + u64::from(steps)))
    );
    let report = json(&["compare", GOLDEN, &wrong]);
    assert_eq!(report["first_divergence"]["tap"], "layers.0.h", "{}", report["reason"]);
    let cut = raw(&folder.path().join("cut"), |name, values| {
        appended(0.0)(name, values);
        let width = TAPS.iter().find(|(tap, _)| *tap == name).unwrap().1;
        values.truncate(values.len() - width);
    });
    assert_eq!(json(&["compare", GOLDEN, &cut])["verdict"], "incomparable");
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

#[test]
fn the_last_row_of_files_that_each_step_overwrote_is_the_last_token_where_all_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let dump = Dump::open(fixtures().join(GOLDEN)).unwrap();
    for entry in dump.entries().iter().filter(|entry| entry.step == 3) {
        let values = dump.read(entry).unwrap().values().to_f64();
        let bytes: Vec<u8> = values.into_iter().flat_map(|x| (x as f32).to_le_bytes()).collect();
        fs::write(folder.path().join(format!("{}.f32", entry.tap)), bytes).unwrap();
    }
    let path = folder.path().to_string_lossy().into_owned();
    let explain = |told: &[&str]| firstdiff(&[&["explain", "models/llama", &path, "--rows", "last"], told].concat());
    let all = format!("{TOKENS},23,108,61");
    assert_eq!(explain(&["--tokens", &all]).status.code(), Some(0));
    let both = explain(&["--tokens", TOKENS, "--decode-tokens", "23,108,61"]);
    let said = String::from_utf8(both.stderr).unwrap();
    assert!(both.status.code() == Some(2) && said.contains("name all in --tokens"), "{said}");
    // Another token at another position than was said: whatever is found, it is found in an orderly way.
    assert_eq!(explain(&["--tokens", TOKENS]).status.code(), Some(1));
}

#[test]
fn a_batch_of_references_is_held_against_one_run() {
    let folder = tempfile::tempdir().unwrap();
    for (own, with_h0) in [(0, true), (1, true), (0, false), (1, false)] {
        let reference = batch(&folder.path().join(format!("{own}-{with_h0}")), own, with_h0, |_, _| {});
        let report = json(&["compare", &reference, GOLDEN]);
        assert_eq!(report["verdict"], "parity", "{own} {with_h0}: {}", report["reason"]);
    }
}

#[test]
fn a_batch_of_which_no_sequence_agrees_and_none_has_an_h0_is_undecided() {
    let folder = tempfile::tempdir().unwrap();
    let fault = |name: &str, values: &mut Vec<f32>| values[7] += if name == "layers.0.h" { 0.5 } else { 0.0 };
    let blind = batch(&folder.path().join("blind"), 0, false, fault);
    let output = firstdiff(&["compare", GOLDEN, &blind]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--sequence"));
    let seen = batch(&folder.path().join("seen"), 0, true, fault);
    assert_eq!(json(&["compare", GOLDEN, &seen])["first_divergence"]["tap"], "layers.0.h");
}

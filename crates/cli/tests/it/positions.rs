//! Checks that tokens given on the command line are used, and that sequences of other prompts are not blamed.

use std::fs;
use std::path::Path;

use firstdiff_trace::{Dump, Recorder, Site, Tap};

use crate::common::{firstdiff, fixtures, json, screen};
use crate::few_numbers::values;

const GOLDEN: &str = "golden/llama-torch";
/// The golden dump's tokens of the prefill.
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

/// The golden prefill as sequence `own` of two; the other has other tokens, and `change` may change the golden one.
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

/// The golden prefill token by token: a JSON line for each tap and position, with all its values and no shape.
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

/// The golden decode steps appended to the prefill's file, without token ids.
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
        (&report["verdict"], report["alignment"]["together"].as_u64()),
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
    // Another token at another position than declared: whatever is found in a moment is reported without a failure.
    assert_eq!(explain(&["--tokens", TOKENS, "--seconds", "2"]).status.code(), Some(1));
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

/// A run of random taps: a name, the extents of one sequence, and the values. T is 5, or 8 where it is padded.
type Taps = Vec<(&'static str, Vec<usize>, Vec<f32>)>;

const T: usize = 5;

fn taps(seed: u64, positions: usize) -> Taps {
    let shapes = [
        ("h0", vec![positions, 48]),
        ("layers.0.q", vec![positions, 6, 16]),
        ("layers.0.k", vec![positions, 2, 16]),
        ("layers.0.probs", vec![6, positions, positions]),
        ("layers.0.context", vec![positions, 96]),
        ("layers.0.h", vec![positions, 48]),
        ("logits", vec![positions, 151]),
    ];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    let tap = |(name, shape): (&'static str, Vec<usize>)| {
        let values = (0..shape.iter().product::<usize>()).map(|_| next()).collect();
        (name, shape, values)
    };
    shapes.into_iter().map(tap).collect()
}

/// Changes a sequence in the way of `kind`.
fn changed(taps: &Taps, kind: &str) -> Taps {
    let change = |(name, shape, values): &(&'static str, Vec<usize>, Vec<f32>)| {
        let by = |x: &f32| match kind {
            "wrong" if matches!(*name, "layers.0.k" | "layers.0.h" | "logits") => 1.3 * x,
            "nan" => f32::NAN,
            "zeros" => 0.0,
            _ => *x,
        };
        (*name, shape.clone(), values.iter().map(by).collect())
    };
    taps.iter().map(change).collect()
}

/// Writes tensors, and the fields of dump.json.
fn written(folder: &Path, tensors: &Taps, says: serde_json::Value) -> String {
    let recorder = Recorder::create(folder).unwrap();
    for (name, shape, values) in tensors {
        recorder.record(name, shape, values).unwrap();
    }
    recorder.finish().unwrap();
    let file = folder.join("dump.json");
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    for (key, value) in says.as_object().unwrap() {
        json[key] = value.clone();
    }
    fs::write(&file, json.to_string()).unwrap();
    folder.to_string_lossy().into_owned()
}

/// Sequences as one batch, of the taps of `only` (all where empty).
fn stacked(sequences: &[Taps], form: &str, only: &[&str]) -> Taps {
    let one = &sequences[0];
    let count = sequences.len();
    let stack = |at: usize| {
        let (name, shape, _) = &one[at];
        let (mut shape, heads) = ([&[count], &shape[..]].concat(), matches!(*name, "layers.0.q" | "layers.0.k"));
        let mut values: Vec<Vec<f32>> = sequences.iter().map(|taps| taps[at].2.clone()).collect();
        match form {
            "merged" if heads => shape = vec![count, shape[1], shape[2] * shape[3]],
            "heads first" if heads => {
                let (t, h, d) = (shape[1], shape[2], shape[3]);
                for values in &mut values {
                    *values = (0..h * t * d).map(|i| values[(i / d % t * h + i / (t * d)) * d + i % d]).collect();
                }
                shape = vec![count, h, t, d];
            }
            "heads of all" if *name == "layers.0.probs" => shape = vec![count * shape[1], shape[2], shape[3]],
            "flat" => shape = vec![shape.iter().product()],
            "rows of all" => shape = [&[count * shape[1]], &shape[2..]].concat(),
            _ => {}
        }
        (*name, shape, values.concat())
    };
    (0..one.len()).map(stack).filter(|(name, ..)| only.is_empty() || only.contains(name)).collect()
}

fn code(args: &[&str]) -> i32 {
    firstdiff(args).status.code().unwrap()
}

const FORMS: [&str; 6] = ["whole", "merged", "heads first", "heads of all", "flat", "rows of all"];
const SETS: [&[&str]; 3] = [&[], &["logits"], &["layers.0.q", "layers.0.k"]];

/// Every form of a batch with one prompt twice, against that prompt: an error in either sequence is never at parity.
#[test]
fn no_sequence_of_a_batch_passes_for_another() {
    let folder = tempfile::tempdir().unwrap();
    let one = taps(1, T);
    let mut number = 0;
    for (form, only) in FORMS.iter().flat_map(|form| SETS.iter().map(move |only| (*form, *only))) {
        let of_set = |taps: &Taps| taps.iter().filter(|(n, ..)| only.is_empty() || only.contains(n)).cloned().collect();
        let at = |number| folder.path().join(format!("{number}"));
        let reference: Taps = of_set(&one);
        let reference = written(&at(number), &reference, serde_json::json!({}));
        number += 1;
        for (kind, index) in [("right", 0), ("wrong", 0), ("wrong", 1), ("nan", 1), ("zeros", 1)] {
            let mut sequences = [one.clone(), one.clone()];
            sequences[index] = changed(&one, kind);
            let batch = written(&at(number), &stacked(&sequences, form, only), serde_json::json!({}));
            number += 1;
            let said = code(&["compare", &reference, &batch]);
            let context = format!("{form} {only:?} {kind} in {index}: {said}");
            match kind {
                // Flat tensors and rows without token ids are undecidable, except where all taps are there, whose keys decide.
                "right" if only.is_empty() || !matches!(form, "flat" | "rows of all") => {
                    assert_eq!(said, 0, "{context}");
                    for sequence in ["0", "1"] {
                        assert_eq!(code(&["compare", &reference, &batch, "--sequence", sequence]), 0, "{context}");
                    }
                }
                "right" => assert_eq!(said, 2, "{context}"),
                _ => assert_ne!(said, 0, "{context}"),
            }
            if kind != "right" && form == "merged" && only.is_empty() {
                let by_itself = |sequence: &str| code(&["compare", &reference, &batch, "--sequence", sequence]);
                assert_eq!(
                    [by_itself("0"), by_itself("1")].map(|code| code == 0),
                    [index == 1, index == 0],
                    "{context}"
                );
            }
        }
    }
}

/// The second sequence has another prompt, by token ids or embeddings.
#[test]
fn another_prompt_is_left_out_only_where_it_is_shown_and_is_no_ruin() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (taps(1, T), taps(2, T));
    let ids = serde_json::json!({"tokens": [[1, 2, 3, 4, 5], [9, 8, 7, 6, 5]]});
    let reference = |name: &str, only: &[&str], says| {
        let taps = one.iter().filter(|(n, ..)| only.is_empty() || only.contains(n)).cloned().collect();
        written(&folder.path().join(name), &taps, says)
    };
    let with_ids = reference("ids", &["logits"], serde_json::json!({"tokens": [1, 2, 3, 4, 5]}));
    let with_h0 = reference("h0", &[], serde_json::json!({}));
    let blind = reference("blind", &["logits"], serde_json::json!({}));
    let mut number = 0;
    for (kind, index) in [("right", 0), ("wrong", 0), ("nan", 1), ("zeros", 1)] {
        let mut sequences = [one.clone(), two.clone()];
        sequences[index] = changed(&sequences[index], kind);
        let mut batch = |only: &[&str], says: &serde_json::Value| {
            number += 1;
            written(&folder.path().join(format!("{number}")), &stacked(&sequences, "merged", only), says.clone())
        };
        let by_ids = batch(&["logits"], &ids);
        let by_h0 = batch(&[], &serde_json::json!({}));
        let unknown = batch(&["logits"], &serde_json::json!({}));
        for (reference, batch) in [(&with_ids, &by_ids), (&with_h0, &by_h0)] {
            let said = code(&["compare", reference, batch]);
            assert_eq!(said == 0, kind == "right", "{kind}: {said}");
        }
        assert_ne!(code(&["compare", &blind, &unknown]), 0, "{kind}: nothing shows another prompt");
    }
}

/// A prompt of 5 in 8 positions: padding only where it is declared.
#[test]
fn positions_that_only_the_candidate_has_are_padding_where_its_tokens_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let one = taps(1, T);
    let fed = serde_json::json!({"tokens": [1, 2, 3, 4, 5]});
    let reference = written(&folder.path().join("reference"), &one, fed.clone());
    let none = serde_json::json!({});
    let of_batch = serde_json::json!({"tokens": [[1, 2, 3, 4, 5], [9, 8, 7, 6, 5, 4, 3, 2]]});
    let longer = serde_json::json!({"tokens": [1, 2, 3, 4, 5, 6, 7, 8]});
    let padded = |taps: &Taps, before: usize| -> Taps {
        let mut noise = taps_of(3, 8);
        for ((name, _, values), (_, shape, right)) in noise.iter_mut().zip(taps) {
            if *name == "layers.0.probs" {
                let at = |h: usize, t: usize, s: usize| (h * 8 + t) * 8 + s;
                for (h, t, s) in (0..6 * 25).map(|i| (i / 25, i / 5 % 5, i % 5)) {
                    values[at(h, t + before, s + before)] = right[(h * 5 + t) * 5 + s];
                }
                // Keys without a token have no probability.
                for (h, t, s) in (0..6 * 40).map(|i| (i / 40, i / 8 % 5, i % 8)) {
                    if !(before..before + 5).contains(&s) {
                        values[at(h, t + before, s)] = 0.0;
                    }
                }
                continue;
            }
            let width: usize = shape[1..].iter().product();
            values[before * width..(before + 5) * width].copy_from_slice(right);
        }
        noise
    };
    let mut number = 0;
    let mut compared = |taps: &Taps, says: &serde_json::Value| {
        number += 1;
        let candidate = written(&folder.path().join(format!("{number}")), taps, says.clone());
        code(&["compare", &reference, &candidate])
    };
    for before in [0, 3] {
        let (right, wrong) = (padded(&one, before), padded(&changed(&one, "wrong"), before));
        assert_eq!(compared(&right, &fed), 0, "{before}");
        assert_eq!(compared(&right, &none), 2, "{before}");
        assert_ne!(compared(&wrong, &fed), 0, "{before}");
        assert_ne!(compared(&wrong, &none), 0, "{before}");
        let batch = |first: &Taps| stacked(&[first.clone(), taps_of(4, 8)], "merged", &[]);
        assert_eq!(compared(&batch(&right), &of_batch), 0, "{before}");
        assert_ne!(compared(&batch(&wrong), &of_batch), 0, "{before}");
        // By h0 the first is the reference's prompt, and the rest is unknown.
        assert_eq!(compared(&batch(&right), &none), 2, "{before}");
    }
    assert_eq!(compared(&padded(&one, 0), &longer), 0, "the same prompt and three tokens more, by their ids");
}

fn taps_of(seed: u64, positions: usize) -> Taps {
    taps(seed, positions)
}

/// The last row of each tap, with or without its axis.
fn last_rows(taps: &Taps, at: usize, axis: bool) -> Taps {
    let row = |(name, shape, values): &(&'static str, Vec<usize>, Vec<f32>)| {
        let width: usize = shape[1..].iter().product();
        let own = if axis { [&[1], &shape[1..]].concat() } else { shape[1..].to_vec() };
        (*name, own, values[at * width..(at + 1) * width].to_vec())
    };
    taps.iter().filter(|(name, ..)| matches!(*name, "layers.0.h" | "logits")).map(row).collect()
}

#[test]
fn the_last_row_against_the_last_row() {
    let folder = tempfile::tempdir().unwrap();
    let one = taps(1, T);
    let (fed, last) = (serde_json::json!({"tokens": [1, 2, 3, 4, 5]}), serde_json::json!({"rows": "last"}));
    let both = serde_json::json!({"tokens": [1, 2, 3, 4, 5], "rows": "last"});
    let near = |taps: &Taps| -> Taps {
        let off = |values: &[f32]| values.iter().enumerate().map(|(i, x)| x * (1.0 + 1e-7 * (i % 3) as f32)).collect();
        taps.iter().map(|(name, shape, values)| (*name, shape.clone(), off(values))).collect()
    };
    for (number, (says, axis)) in
        [(&last, true), (&last, false), (&both, true), (&both, false), (&fed, true)].into_iter().enumerate()
    {
        let at = |name: &str| folder.path().join(format!("{name}-{number}"));
        let reference = written(&at("reference"), &last_rows(&one, 4, axis), says.clone());
        let right = written(&at("right"), &near(&last_rows(&one, 4, axis)), says.clone());
        let wrong = written(&at("wrong"), &changed(&last_rows(&one, 4, axis), "wrong"), says.clone());
        for candidate in [&reference, &right] {
            let report = json(&["compare", &reference, candidate]);
            assert_eq!(report["verdict"], "parity", "{number}: {}", report["reason"]);
            assert!(!report["warnings"].to_string().contains("position 0"), "{number}: {}", report["warnings"]);
        }
        let screen = crate::common::in_one_line(&crate::common::screen(&["compare", &reference, &wrong]));
        let place = if number < 2 { "at the last position" } else { "at position 4" };
        assert!(screen.contains(place) && !screen.contains("position 0"), "{number}: {screen}");
    }
    // Nothing is declared: one row, of a prompt of one token, or the last one.
    let none = serde_json::json!({});
    let reference = written(&folder.path().join("reference"), &last_rows(&one, 4, true), none.clone());
    let report = json(&["compare", &reference, &reference]);
    assert_eq!(report["verdict"], "parity");
    let said = report["warnings"].to_string();
    assert!(said.contains("of a prompt of one token") && !said.contains("position 0"), "{said}");
}

#[test]
fn one_row_of_several_is_the_last_where_it_agrees_so() {
    let folder = tempfile::tempdir().unwrap();
    let one = taps(1, T);
    let none = serde_json::json!({});
    let of = |name: &str, taps: &Taps, says: &serde_json::Value| written(&folder.path().join(name), taps, says.clone());
    let reference = of("reference", &one, &none);
    let logits = |taps: Taps| -> Taps { taps.into_iter().filter(|(name, ..)| *name == "logits").collect() };
    for axis in [true, false] {
        let right = of(&format!("right-{axis}"), &logits(last_rows(&one, 4, axis)), &none);
        let report = json(&["compare", &reference, &right]);
        assert_eq!(report["verdict"], "parity", "{axis}: {}", report["reason"]);
        assert!(report["warnings"].to_string().contains("--rows last"), "{axis}");
        assert_eq!(json(&["compare", &right, &reference])["verdict"], "parity", "{axis}");
        // It is unknown which row they are.
        let wrong = of(&format!("wrong-{axis}"), &logits(changed(&last_rows(&one, 4, axis), "wrong")), &none);
        assert_eq!(code(&["compare", &reference, &wrong]), 2, "{axis}");
        let first = of(&format!("first-{axis}"), &logits(last_rows(&one, 0, axis)), &none);
        assert_eq!(code(&["compare", &reference, &first]), 2, "{axis}");
        // Beside tensors of all positions it is the last row, as llama.cpp writes logits.
        let mixed = |kind: &str| -> Taps {
            let others = one.iter().filter(|(name, ..)| *name != "logits").cloned();
            others.chain(logits(changed(&last_rows(&one, 4, axis), kind))).collect()
        };
        let (right, wrong) =
            (of(&format!("mixed-{axis}"), &mixed("right"), &none), of(&format!("off-{axis}"), &mixed("wrong"), &none));
        let report = json(&["compare", &reference, &right]);
        assert_eq!(report["verdict"], "parity", "{axis}: {}", report["reason"]);
        assert!(report["warnings"].to_string().contains("taken for the last one"), "{axis}");
        let report = json(&["compare", &reference, &wrong]);
        assert_eq!(report["first_divergence"]["tap"], "logits", "{axis}");
        assert_eq!(report["first_divergence"]["max_at"][0], 4, "{axis}");
    }
}

/// The golden logits' last row, with as many tokens as are recorded.
#[test]
fn explain_takes_one_row_of_several_tokens_for_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let says = |tokens: &str| serde_json::json!({"tokens": tokens.split(',').map(|t| t.parse().unwrap()).collect::<Vec<i64>>()});
    for (number, shape) in [vec![151], vec![1, 151]].into_iter().enumerate() {
        let norm = [&shape[..shape.len() - 1], &[48]].concat();
        let last = |name: &str, width: usize| golden(name)[10 * width..].to_vec();
        let taps = vec![("final_norm", norm, last("final_norm", 48)), ("logits", shape, last("logits", 151))];
        let dump = written(&folder.path().join(number.to_string()), &taps, says(TOKENS));
        let report = json(&["explain", "models/llama", &dump]);
        assert_eq!(report["verdict"], "parity", "{}", report["reason"]);
        assert!(report["warnings"].to_string().contains("taken for the last one"), "{}", report["warnings"]);
    }
}

/// Two runs of the golden prompt at once, the second one wrong: commands that judge by a model judge both.
#[test]
fn replay_judges_every_sequence_of_a_batch() {
    let folder = tempfile::tempdir().unwrap();
    let one: Taps = vec![("h0", vec![11, 48], golden("h0")), ("logits", vec![11, 151], golden("logits"))];
    for (kind, due) in [("right", 0), ("wrong", 1), ("nan", 1)] {
        let says = serde_json::json!({"tokens": [ids(), ids()]});
        let dump =
            written(&folder.path().join(kind), &stacked(&[one.clone(), changed(&one, kind)], "whole", &[]), says);
        let said = code(&["replay", "models/llama", &dump]);
        assert_eq!(said == 0, due == 0, "{kind}: {said}");
    }
}

#[test]
fn a_program_judges_every_sequence_of_a_batch_that_has_its_prompt() {
    const GOLDEN: &str = "programs/forgetting/golden";
    let folder = tempfile::tempdir().unwrap();
    let read = |tap: &str| values(&fixtures().join(GOLDEN).join(format!("{tap}.npy")));
    let one: Taps = vec![("h0", vec![10, 24], read("h0")), ("logits", vec![10, 50], read("logits"))];
    let own = [7, 3, 19, 42, 8, 8, 31, 2, 25, 11];
    let other = [5; 10];
    let wrong = |kind: &str| changed(&one, kind);
    let cases = [
        ("right", [one.clone(), wrong("right")], [own, own], 0),
        ("wrong", [one.clone(), wrong("wrong")], [own, own], 1),
        ("nan", [one.clone(), wrong("nan")], [own, own], 1),
        ("other behind", [one.clone(), wrong("wrong")], [own, other], 0),
        ("other before", [wrong("wrong"), one.clone()], [other, own], 0),
        ("other before a wrong one", [one.clone(), wrong("wrong")], [other, own], 1),
        ("others", [one.clone(), one.clone()], [other, other], 2),
    ];
    for (name, sequences, tokens, due) in cases {
        let dump = written(
            &folder.path().join(name),
            &stacked(&sequences, "whole", &[]),
            serde_json::json!({"tokens": tokens}),
        );
        for command in ["replay", "explain"] {
            let weights = "programs/forgetting/model.safetensors";
            let quick: &[&str] = if command == "explain" { &["--seconds", "0"] } else { &[] };
            let args = [&[command, GOLDEN, &dump, "--weights", weights], quick].concat();
            assert_eq!(code(&args), due, "{command}: {name}");
        }
    }
}

fn ids() -> Vec<i64> {
    TOKENS.split(',').map(|id| id.parse().unwrap()).collect()
}

#[test]
fn what_dump_json_contradicts_is_no_parity() {
    let folder = tempfile::tempdir().unwrap();
    let one = taps(1, T);
    let fed = serde_json::json!({"tokens": [1, 2, 3, 4, 5]});
    let reference = written(&folder.path().join("reference"), &one, fed);
    let cases = [
        (serde_json::json!({"tokens": [1, 2, 3, 4, 5, 6, 7]}), "names 7 tokens"),
        (serde_json::json!({"tokens": [1, 2, 9, 4, 5]}), "from position 2 on"),
        (serde_json::json!({"tokens": [1, 2, 9, 4]}), "from position 2 on"),
        (serde_json::json!({"rows": [3, 3, 3, 3, 3]}), "each position once"),
        (serde_json::json!({"rows": [4, 3, 2, 1, 0]}), "each position once"),
        (serde_json::json!({"tokens": [1, 2, 3, 4, 5], "rows": [0, 1, 2, 3, 9]}), "row 9 of 5 tokens"),
        (serde_json::json!({"tokens": "1,2"}), "not a dump.json"),
    ];
    for (number, (says, due)) in cases.into_iter().enumerate() {
        let candidate = written(&folder.path().join(number.to_string()), &one, says.clone());
        let output = firstdiff(&["compare", &reference, &candidate]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{says}: {said}");
        assert!(said.contains(due) && said.contains(&candidate), "{says}: {said}");
    }
    let steps = Recorder::create(folder.path().join("steps")).unwrap();
    steps.tokens(&[1, 2, 3, 4, 5]);
    for step in 0..3 {
        let rows = if step == 0 { T } else { 1 };
        steps.record("layers.0.h".parse::<Tap>().unwrap(), &[rows, 48], &one[5].2[..rows * 48]).unwrap();
        steps.next_step(7 + step);
    }
    steps.finish().unwrap();
    let path = folder.path().join("steps").to_string_lossy().into_owned();
    assert_eq!(code(&["compare", &path, &path]), 0);
    let file = folder.path().join("steps/dump.json");
    let mut says: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    says["decode_tokens"] = serde_json::json!([7]);
    fs::write(&file, says.to_string()).unwrap();
    let output = firstdiff(&["compare", &path, &path]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("decode tokens"));
    assert_eq!(code(&["compare", &reference, &reference, "--tokens", "1,2"]), 2, "fewer than the dump names");
    assert_eq!(code(&["compare", &reference, &reference, "--rows", "3,3"]), 2);
}

/// Two prompts in 8 positions on both sides, as one engine pads them: the difference may be only in the padding.
#[test]
fn a_padded_batch_on_both_sides_is_not_blamed_for_its_padding() {
    let folder = tempfile::tempdir().unwrap();
    let says = serde_json::json!({"tokens": [[1, 2, 3, 4, 5], [9, 8, 7, 6, 5, 4, 3, 2]]});
    let padding = |taps: &Taps| -> Taps {
        let mut taps: Taps = taps.iter().filter(|(name, ..)| *name != "layers.0.probs").cloned().collect();
        taps.iter_mut().for_each(|(_, shape, values)| {
            let width: usize = shape[1..].iter().product();
            values[5 * width..].fill(0.5);
        });
        taps
    };
    let without =
        |taps: &Taps| -> Taps { taps.iter().filter(|(name, ..)| *name != "layers.0.probs").cloned().collect() };
    let (one, two) = (taps(1, 8), taps(2, 8));
    let batch = |name: &str, first: Taps| {
        written(&folder.path().join(name), &stacked(&[first, without(&two)], "merged", &[]), says.clone())
    };
    let (reference, right) = (batch("reference", without(&one)), batch("right", padding(&one)));
    let wrong = batch("wrong", padding(&changed(&one, "wrong")));
    assert_eq!(code(&["compare", &reference, &reference]), 0);
    assert_eq!(code(&["compare", &reference, &right]), 2);
    assert_eq!(code(&["compare", &reference, &wrong]), 2);
    let first = ["--sequence", "0", "--rows", "0,1,2,3,4"];
    assert_eq!(code(&[&["compare", &reference, &right][..], &first].concat()), 0);
    assert_eq!(code(&[&["compare", &reference, &wrong][..], &first].concat()), 1);
}

#[test]
fn explain_blames_no_right_run_of_which_nobody_knows_the_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixtures().join("models/llama").to_string_lossy().into_owned();
    let explained = |name: &str, factor: f32, told: &[&str]| {
        let path = folder.path().join(name);
        let recorder = Recorder::create(&path).unwrap();
        for (tap, width) in TAPS {
            let scale = if tap == "layers.0.h" { factor } else { 1.0 };
            let values: Vec<f32> = golden(tap).iter().map(|x| x * scale).collect();
            recorder.record(tap.parse::<Tap>().unwrap(), &[11, width], &values).unwrap();
        }
        recorder.finish().unwrap();
        let path = path.to_string_lossy();
        let arguments = [&["explain", &model, &path, "--seconds", "0.5", "--faults", "1"], told].concat();
        let done = firstdiff(&arguments);
        (done.status.code(), String::from_utf8_lossy(&done.stdout).into_owned())
    };
    let (code, screen) = explained("right", 1.0, &[]);
    assert_eq!(code, Some(0), "{screen}");
    // What reads no token is judged all the same.
    let (code, screen) = explained("wrong", 1.1, &[]);
    assert!(code == Some(1) && !screen.contains("tokens-differ"), "{screen}");
    let (code, screen) = explained("told", 1.0, &["--tokens", TOKENS]);
    assert_eq!(code, Some(0), "{screen}");
}

/// A run of eight tokens and one decoded token, with `padding` rows of padding in its prefill, and its step's keys `factor` times the right ones.
fn prefilled_and_decoded(folder: &Path, padding: usize, factor: f32) -> String {
    let recorder = Recorder::create(folder).unwrap();
    recorder.tokens(&[3, 1, 4, 1, 5, 9, 2, 6]);
    let rows = |seed, positions, padding: usize, by: f32| {
        for (name, mut shape, mut values) in
            taps(seed, positions).into_iter().filter(|(name, ..)| *name != "layers.0.probs")
        {
            let width: usize = shape[1..].iter().product();
            if name == "layers.0.k" {
                values.iter_mut().for_each(|x| *x *= by);
            }
            shape[0] += padding;
            values.extend(std::iter::repeat_n(0.5, padding * width));
            recorder.record(name.parse::<Tap>().unwrap(), &shape, &values).unwrap();
        }
    };
    let products = |queries: usize, keys: usize| {
        let values: Vec<f32> = (0..6 * queries * keys).map(|i| (i as f32 * 0.7).sin()).collect();
        recorder.record("layers.0.qk".parse::<Tap>().unwrap(), &[6, queries, keys], &values).unwrap();
    };
    rows(11, 8, padding, 1.0);
    products(8, 8);
    recorder.next_step(7);
    rows(12, 1, 0, factor);
    products(1, 9);
    recorder.finish().unwrap();
    folder.to_string_lossy().into_owned()
}

#[test]
fn decode_steps_behind_a_padded_prefill_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, padding, factor| prefilled_and_decoded(&folder.path().join(name), padding, factor);
    let (reference, right, wrong) = (run("reference", 0, 1.0), run("right", 5, 1.0), run("wrong", 5, 1.3));
    let report = json(&["compare", &reference, &right]);
    assert_eq!(report["verdict"], "parity", "{}", report["reason"]);
    assert!(report["taps"].as_array().unwrap().iter().all(|tap| tap["status"] == "exact"), "{}", report["taps"]);
    let report = json(&["compare", &reference, &wrong]);
    let first = &report["first_divergence"];
    assert_eq!((first["tap"].as_str(), first["step"].as_u64()), (Some("layers.0.k"), Some(1)), "{}", report["verdict"]);
}

/// A prompt of 5 before or behind 3 rows of padding, without taps that have an axis of keys; the reference may hold only one row of logits.
fn in_eight(taps: &Taps, before: usize) -> Taps {
    let padded = |(name, shape, values): &(&'static str, Vec<usize>, Vec<f32>)| {
        let width: usize = shape[1..].iter().product();
        let mut all: Vec<f32> = (0..8 * width).map(|i| (i as f32 * 0.37).sin()).collect();
        all[before * width..(before + 5) * width].copy_from_slice(values);
        (*name, [&[8], &shape[1..]].concat(), all)
    };
    taps.iter().filter(|(name, ..)| *name != "layers.0.probs").map(padded).collect()
}

#[test]
fn padding_that_is_told_is_cut_off_where_nothing_agrees() {
    let folder = tempfile::tempdir().unwrap();
    let one = taps(1, T);
    let reference = written(&folder.path().join("reference"), &one, serde_json::json!({"tokens": [1, 2, 3, 4, 5]}));
    let mut number = 0;
    let mut compared = |taps: &Taps, says: serde_json::Value| {
        number += 1;
        let candidate = written(&folder.path().join(format!("{number}")), taps, says);
        let output = firstdiff(&["compare", &reference, &candidate, "--json", "-"]);
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.code().unwrap(), json["first_divergence"]["tap"].as_str().map(str::to_owned))
    };
    // All taps are off, including the first.
    let off: Taps = one
        .iter()
        .map(|(name, shape, values)| (*name, shape.clone(), values.iter().map(|x| x + 0.3).collect()))
        .collect();
    let mask = |before: usize| -> Vec<u8> { (0..8).map(|at| u8::from((before..before + 5).contains(&at))).collect() };
    let first = (1, Some("h0".to_owned()));
    for before in [0, 2, 3] {
        let (right, wrong) = (in_eight(&one, before), in_eight(&off, before));
        let says = serde_json::json!({"tokens": [1, 2, 3, 4, 5], "attention_mask": mask(before)});
        assert_eq!((compared(&right, says.clone()).0, compared(&wrong, says)), (0, first.clone()), "{before}");
        let one_list = serde_json::json!({"tokens": [1, 2, 3, 4, 5], "attention_mask": [mask(before)]});
        assert_eq!(compared(&right, one_list).0, 0, "{before}");
        // A mask that is not that of the run.
        let other = serde_json::json!({"tokens": [1, 2, 3, 4, 5], "attention_mask": mask((before + 1) % 4)});
        assert_ne!(compared(&right, other).0, 0, "{before}");
        for (count, from) in [(9, 0), (7, 0), (8, 4)] {
            let bad: Vec<u8> = (0..count).map(|at| u8::from(at >= from)).collect();
            let says = serde_json::json!({"tokens": [1, 2, 3, 4, 5], "attention_mask": bad});
            assert_eq!(compared(&right, says).0, 2, "{before}: {count} positions, tokens from {from} on");
        }
    }
    for (side, before) in [("left", 3), ("right", 0)] {
        let says = serde_json::json!({"tokens": [1, 2, 3, 4, 5], "padding": side});
        assert_eq!(compared(&in_eight(&one, before), says.clone()).0, 0, "{side}");
        assert_eq!(compared(&in_eight(&off, before), says.clone()), first, "{side}");
        assert_ne!(compared(&in_eight(&one, 3 - before), says).0, 0, "not on the {side}");
        // The side is not declared: with everything off, no other place is nearer.
        assert_eq!(compared(&in_eight(&off, before), serde_json::json!({"tokens": [1, 2, 3, 4, 5]})), first, "{side}");
    }
    let batch = |first: &Taps, ids: [i64; 8]| {
        let says = serde_json::json!({"tokens": [ids, [9, 8, 7, 6, 5, 4, 3, 2]]});
        (stacked(&[first.clone(), in_eight(&taps(4, T), 3)], "merged", &[]), says)
    };
    for (ids, before) in [([0, 0, 0, 1, 2, 3, 4, 5], 3), ([1, 2, 3, 4, 5, 0, 0, 0], 0)] {
        let (right, says) = batch(&in_eight(&one, before), ids);
        assert_eq!(compared(&right, says).0, 0, "{ids:?}");
        let (wrong, says) = batch(&in_eight(&off, before), ids);
        assert_eq!(compared(&wrong, says), first, "{ids:?}");
    }
}

#[test]
fn the_last_row_of_a_padded_prompt_is_the_last_token_s() {
    let folder = tempfile::tempdir().unwrap();
    let one = taps(1, T);
    let last = |taps: &Taps| -> Taps {
        taps.iter()
            .map(|(name, shape, values)| match *name {
                "logits" => (*name, vec![1, 151], values[4 * 151..].to_vec()),
                _ => (*name, shape.clone(), values.clone()),
            })
            .collect()
    };
    let fed = serde_json::json!({"tokens": [1, 2, 3, 4, 5]});
    let only: Taps = last(&one).into_iter().filter(|(name, ..)| *name == "logits").collect();
    for (name, reference) in [("all", last(&one)), ("only", only)] {
        let reference = written(&folder.path().join(name), &reference, fed.clone());
        for before in [0, 3] {
            for (kind, due) in [("right", 0), ("wrong", 1)] {
                let taps = in_eight(&changed(&one, kind), before);
                let path = folder.path().join(format!("{name}{before}{kind}"));
                let json = json(&["compare", &reference, &written(&path, &taps, fed.clone())]);
                let logits =
                    json["taps"].as_array().unwrap().iter().find(|tap| tap["tap"] == "logits").unwrap().clone();
                assert_eq!(json["verdict"], ["parity", "diverged"][due], "{name} {before} {kind}");
                assert_eq!(logits["status"] == "exact", due == 0, "{name} {before} {kind}: {logits}");
                // The number of tokens is unknown: no row is taken for the last.
                let untold: Taps = taps.into_iter().filter(|(name, ..)| *name == "logits").collect();
                let path = folder.path().join(format!("{name}{before}{kind}untold"));
                let candidate = written(&path, &untold, serde_json::json!({}));
                assert_eq!(code(&["compare", &reference, &candidate]), 2, "{name} {before} {kind}");
            }
        }
    }
}

/// A vision model: h0 is computed from patches, no tokens are recorded, and the logits are one row for all positions together.
fn picture(folder: &Path, logits: impl Fn(usize) -> f32, whole: bool) -> String {
    let scores = vec![0.25; 17 * 17];
    let row = |seed: usize, count: usize| (0..count).map(|i| ((i * 37 + seed * 11) % 23) as f32 / 7.0 - 1.5).collect();
    let mut taps: Taps = vec![("logits", vec![1, 10], (0..10).map(logits).collect())];
    if whole {
        taps.extend([
            ("h0", vec![17, 48], row(1, 17 * 48)),
            ("layers.0.scores", vec![1, 17, 17], scores),
            ("layers.0.h", vec![17, 48], row(2, 17 * 48)),
        ]);
    }
    let reads = |tap: &str, reads: &[&str]| serde_json::json!({"tap": tap, "op": "linear", "reads": reads});
    let graph = [
        reads("patches", &[]),
        reads("h0", &["patches"]),
        reads("layers.0.scores", &["h0"]),
        reads("layers.0.h", &["layers.0.scores"]),
        reads("logits", &["layers.0.h"]),
    ];
    written(folder, &taps, if whole { serde_json::json!({"graph": graph}) } else { serde_json::json!({}) })
}

#[test]
fn one_row_of_a_model_without_tokens_is_of_no_position() {
    let folder = tempfile::tempdir().unwrap();
    let right = |i: usize| (i as f32 - 4.0) / 3.0;
    let reference = picture(&folder.path().join("reference"), right, true);
    for whole in [true, false] {
        let same = picture(&folder.path().join(format!("same-{whole}")), right, whole);
        let report = json(&["compare", &reference, &same]);
        assert_eq!(report["verdict"], "parity", "{}", report["reason"]);
        assert!(!report["warnings"].to_string().contains("last"), "{}", report["warnings"]);
        let wrong = |i: usize| right(i) + if i == 3 { 0.5 } else { 0.01 };
        let wrong = picture(&folder.path().join(format!("wrong-{whole}")), wrong, whole);
        let report = json(&["compare", &reference, &wrong]);
        assert_eq!(report["verdict"], "diverged", "{}", report["reason"]);
        assert_eq!(report["first_divergence"]["max_at"], serde_json::json!([0, 3]));
        let screen = screen(&["compare", &reference, &wrong]);
        assert!(screen.contains("at [0, 3]") && !screen.contains("position 16"), "{screen}");
    }
}

#[test]
fn a_row_that_is_nan_beside_right_ones_is_a_divergence() {
    let folder = tempfile::tempdir().unwrap();
    for (name, verdict) in [("one", "diverged"), ("all", "incomparable")] {
        let spoilt = |tap: &str, width: usize| {
            let mut values = golden(tap);
            let rows = if name == "one" { 5..6 } else { 0..11 };
            values[rows.start * width..rows.end * width].fill(f32::NAN);
            values
        };
        let taps = vec![
            ("layers.1.h", vec![11, 48], spoilt("layers.1.h", 48)),
            ("final_norm", vec![11, 48], spoilt("final_norm", 48)),
            ("logits", vec![11, 151], spoilt("logits", 151)),
        ];
        let dump = written(&folder.path().join(name), &taps, serde_json::json!({}));
        let report = json(&["compare", GOLDEN, &dump]);
        assert_eq!(report["verdict"], verdict, "{}", report["reason"]);
    }
}

#[test]
fn a_softmax_that_reads_keys_of_padding_is_not_blamed() {
    let folder = tempfile::tempdir().unwrap();
    let softmax = |scores: &[f32], keys: usize| -> Vec<f32> {
        let row = |row: &[f32]| {
            let sum: f32 = row.iter().map(|x| x.exp()).sum();
            row.iter().map(|x| x.exp() / sum).collect::<Vec<f32>>()
        };
        scores.chunks(keys).flat_map(row).collect()
    };
    let run = |name: &str, padding: usize, fill: f32| {
        let count = padding + 3;
        let score = |query: usize, key: usize| match key.checked_sub(padding) {
            _ if key > query => f32::NEG_INFINITY,
            None => fill,
            Some(key) => 0.3 * (key + 2 * query.saturating_sub(padding)) as f32,
        };
        let scores: Vec<f32> = (0..count).flat_map(|query| (0..count).map(move |key| score(query, key))).collect();
        let mut mask = vec![0; padding];
        mask.extend([1; 3]);
        let shape = vec![1, count, count];
        let probs = softmax(&scores, count);
        let taps = vec![("layers.0.scores", shape.clone(), scores), ("layers.0.probs", shape, probs)];
        let says = if padding == 0 { serde_json::json!({}) } else { serde_json::json!({"attention_mask": mask}) };
        written(&folder.path().join(name), &taps, says)
    };
    let (reference, masked, seen) = (run("reference", 0, 0.0), run("masked", 2, f32::MIN), run("seen", 2, 0.5));
    assert_eq!(json(&["compare", &reference, &masked])["verdict"], "parity");
    let report = json(&["compare", &reference, &seen]);
    assert_eq!(report["verdict"], "diverged", "{}", report["reason"]);
    let between = report["first_divergence"]["unchecked_between"].to_string();
    assert!(between.contains("layers.0.scores"), "{}", report["first_divergence"]);
}

#[test]
fn keys_of_another_stack_are_keys() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, off: f32| {
        let value = |i: usize| (i % 7) as f32 - 2.0 + if i % 6 == 4 { off } else { 0.0 };
        let taps = vec![("decoder.layers.0.scores", vec![4, 6, 6], (0..144).map(value).collect())];
        let node = serde_json::json!({"tap": "decoder.layers.0.scores", "op": "add", "reads": []});
        written(&folder.path().join(name), &taps, serde_json::json!({"graph": [node]}))
    };
    let (reference, wrong) = (run("reference", 0.0), run("wrong", 0.5));
    let screen = screen(&["compare", &reference, &wrong]);
    assert!(screen.contains("keys  ") && !screen.contains("channels"), "{screen}");
    assert!(!screen.contains("order in which"), "one tap has no order: {screen}");
}

/// The golden run with its prompt padded from 11 to 14 positions, behind its tokens, and decode steps that do not see the padding; `change` of each tensor.
fn padded_behind(folder: &Path, change: impl Fn(Tap, u32, &mut Vec<f32>)) -> String {
    let dump = Dump::open(fixtures().join(GOLDEN)).unwrap();
    let recorder = Recorder::create(folder).unwrap();
    recorder.describe(|meta| {
        let own = dump.meta().clone();
        (meta.tokens, meta.precision) = (own.tokens, own.precision);
    });
    for step in 0..=dump.entries().iter().map(|entry| entry.step).max().unwrap() {
        for entry in dump.entries().iter().filter(|entry| entry.step == step) {
            let mut values: Vec<f32> = dump.read(entry).unwrap().values().to_f64().iter().map(|&x| x as f32).collect();
            change(entry.tap, step, &mut values);
            let (axis, mut shape) = (entry.tap.site.position_axis(), entry.shape.clone());
            let fill = if entry.tap.site == Site::Scores { f32::NEG_INFINITY } else { 0.0 };
            // Keys of the padding stand behind those of the prompt, in the rows of what attends.
            if axis == 1 {
                values =
                    values.chunks(shape[2]).flat_map(|row| [&row[..11], &[fill; 3], &row[11..]].concat()).collect();
                shape[2] += 3;
            }
            if step == 0 {
                let width: usize = shape[axis + 1..].iter().product();
                let pad = |rows: &[f32]| [rows, &rows[..3 * width]].concat();
                values = values.chunks(11 * width).flat_map(pad).collect();
                shape[axis] += 3;
            }
            recorder.record(entry.tap, &shape, &values).unwrap();
        }
        if let Some(&token) = dump.meta().decode_tokens.as_ref().unwrap().get(step as usize) {
            recorder.next_step(token);
        }
    }
    recorder.finish().unwrap();
    folder.to_string_lossy().into_owned()
}

/// Nothing names the padding: the other run shows it, and a model as well.
#[test]
fn padding_between_a_prompt_and_its_decode_steps_is_seen_by_the_model_too() {
    let folder = tempfile::tempdir().unwrap();
    let right = padded_behind(&folder.path().join("right"), |_, _, _| {});
    let wrong = padded_behind(&folder.path().join("wrong"), |tap, step, values| {
        if (tap.to_string().as_str(), step) == ("layers.1.context", 2) {
            values.iter_mut().for_each(|x| *x *= 1.01);
        }
    });
    for command in [["compare", GOLDEN], ["replay", "models/llama"], ["explain", "models/llama"]] {
        for (candidate, verdict) in [(&right, "parity"), (&wrong, "diverged")] {
            let report = json(&[&command[..], &[candidate]].concat());
            assert_eq!(report["verdict"], verdict, "{command:?}: {}", report["reason"]);
        }
    }
}

/// One sequence of a batch of two is the golden run, the other of another prompt: a right run of it, or numbers that no model makes.
#[test]
fn a_model_tells_a_sequence_of_another_prompt_from_one_that_was_never_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let other = path("other");
    let tokens = "5,64,128,17,77,150,3,99,42,17,1";
    assert!(firstdiff(&["dump", "models/llama", "-o", &other, "--tokens", tokens]).status.success());
    let (golden, other) = (Dump::open(fixtures().join(GOLDEN)).unwrap(), Dump::open(other).unwrap());
    let two = |name: &str, is_written: bool| {
        let recorder = Recorder::create(path(name)).unwrap();
        for entry in golden.entries().iter().filter(|entry| entry.step == 0) {
            let read = |dump: &Dump| dump.read(dump.find(entry.tap, 0).unwrap()).unwrap().values().to_f64();
            let (ours, theirs) = (read(&golden), read(&other));
            let noise = |at: usize| ((at * 7919 + entry.shape.len() * 31) % 1009) as f64 / 500.0 - 1.0;
            let second = |at: usize| if is_written { theirs[at] } else { noise(at) };
            let all = ours.iter().copied().chain((0..ours.len()).map(second)).map(|x| x as f32);
            let shape = [&[2], &entry.shape[..]].concat();
            recorder.record(entry.tap, &shape, &all.collect::<Vec<_>>()).unwrap();
        }
        recorder.finish().unwrap();
        path(name)
    };
    let (written, unwritten) = (two("written", true), two("unwritten", false));
    let compared = |candidate: &str| json(&["compare", GOLDEN, candidate, "--model", "models/llama"]);
    let right = compared(&written);
    assert_eq!(right["verdict"], "parity", "{}", right["reason"]);
    let wrong = compared(&unwritten);
    assert_eq!(wrong["verdict"], "incomparable");
    assert!(wrong["reason"].as_str().unwrap().contains("no right run"), "{}", wrong["reason"]);
}

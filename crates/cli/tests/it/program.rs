//! Checks `replay` and `explain` where a recorded program replaces the model: an architecture that no code here knows.

use crate::common::{firstdiff, fixtures, in_one_line, json};

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

/// A program has its values of all positions: what a candidate holds of some is held against them, and what reads a wrong one is not judged.
#[test]
fn some_positions_are_judged_by_a_program() {
    for rows in ["last", "1,2"] {
        let judged = |command, candidate| json(&[&of(command, candidate)[..], &["--rows", rows]].concat());
        for command in ["replay", "explain"] {
            let right = judged(command, "programs/forgetting/right.npz");
            assert_eq!(right["verdict"], "parity", "{command} {rows}: {}", right["reason"]);
        }
        let report = judged("replay", "programs/forgetting/wrong.npz");
        let taps = report["taps"].as_array().unwrap();
        let wrong: Vec<_> = taps.iter().filter(|tap| tap["status"] == "diverged").map(|tap| &tap["tap"]).collect();
        assert_eq!(wrong, ["layers.0.mixer_out"], "{rows}");
        // What takes row by row what is made of those is judged, and what mixes rows is not.
        let of = |name: &str| taps.iter().find(|tap| tap["tap"] == name).unwrap();
        assert!(["exact", "rounding"].contains(&of("logits")["status"].as_str().unwrap()), "{rows}");
        let why = of("layers.1.mixer_out")["reason"].as_str().unwrap();
        assert_eq!(why, "layers.0.mixer_out, which it reads, holds some positions only", "{rows}");
        let next = report["next"].as_str().unwrap();
        let parts = "record all token positions of h0, layers.0.attn_norm, layers.0.mixer_in as well";
        assert!(next.contains(parts), "{next}");
        let explained = judged("explain", "programs/forgetting/wrong.npz");
        let [finding] = &explained["findings"].as_array().unwrap()[..] else { panic!("{explained:#}") };
        assert_eq!((&finding["cause"], &finding["match"]), (&"operation-omitted".into(), &"reproduced".into()));
        let left = explained["not_testable"].to_string();
        assert!(!left.contains("\"activation\""), "{left}");
    }
}

/// Multiplies the values of a file in f32 by 2.
fn twice(file: &std::path::Path) {
    let mut npy = std::fs::read(file).unwrap();
    let begin = 10 + usize::from(u16::from_le_bytes([npy[8], npy[9]]));
    for x in npy[begin..].chunks_exact_mut(4) {
        let twice = 2.0 * f32::from_le_bytes(x.try_into().unwrap());
        x.copy_from_slice(&twice.to_le_bytes());
    }
    std::fs::write(file, npy).unwrap();
}

#[test]
fn a_factor_that_is_taken_back_is_no_mistake_and_neither_is_one_that_nothing_was_made_of() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let path = out.to_string_lossy().into_owned();
    let args = [&["dump", GOLDEN, "-o", &path, "--tokens", "7,3,19,42,8,8,31,2,25,11"], &WEIGHTS[..]].concat();
    assert_eq!(json(&args)["taps"], 34);
    // The gate is squared: a tap computed from it is right for its input; no tap is computed from the other one.
    for tap in ["layers.1.ffn_gate", "layers.1.ffn_act", "layers.1.ffn_act", "layers.2.attn_norm"] {
        twice(&out.join(format!("{tap}.npy")));
    }
    let report = json(&["explain", GOLDEN, &path, WEIGHTS[0], WEIGHTS[1]]);
    let findings = report["findings"].as_array().expect("findings");
    let told: Vec<(&str, &serde_json::Value, &serde_json::Value)> =
        findings.iter().map(|f| (f["tap"].as_str().unwrap(), &f["taken_back"], &f["misrecorded"])).collect();
    let none = serde_json::json!([]);
    let (back, due) = (serde_json::json!(["layers.1.ffn_out"]), serde_json::json!(["layers.2.mixer_in"]));
    assert_eq!(told, [("layers.1.ffn_gate", &back, &none), ("layers.2.attn_norm", &none, &due)], "{findings:#?}");
    assert!(findings.iter().all(|f| f["cause"].is_null()), "{findings:#?}");
}

/// Weights of bf16 are no mistake, and a mistake beside them is still found.
#[test]
fn weights_of_16_bits_are_another_arithmetic() {
    let folder = tempfile::tempdir().unwrap();
    let out = with_rounded_weights(folder.path(), &|_, weights| {
        for x in weights {
            let bits = x.to_bits();
            *x = f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000);
        }
    });
    let path = out.to_string_lossy().into_owned();
    let explained = || json(&["explain", GOLDEN, &path, WEIGHTS[0], WEIGHTS[1], "--faults", "1", "--seconds", "3"]);
    let report = explained();
    let findings = report["findings"].as_array().expect("findings");
    let [finding] = &findings[..] else { panic!("{findings:#?}") };
    assert_eq!((&finding["cause"], &finding["params"]["format"]), (&"precision".into(), &"bf16 weights".into()));
    let replayed = firstdiff(&["replay", GOLDEN, &path, WEIGHTS[0], WEIGHTS[1]]);
    let said = in_one_line(&String::from_utf8_lossy(&replayed.stdout));
    assert!(said.contains("diverged: another arithmetic, not a mistake") && !said.contains("wrong in"), "{said}");
    // One more wrong tap.
    twice(&out.join("layers.1.ffn_up.npy"));
    let report = explained();
    let causes: Vec<&serde_json::Value> =
        report["findings"].as_array().expect("findings").iter().map(|finding| &finding["cause"]).collect();
    assert!(causes.len() > 1, "{causes:?}");
}

/// Matrices of few bits are no mistake either, also where some are left as they are; and what is wrong beside them is found.
#[test]
fn weights_of_4_bits_are_another_arithmetic() {
    let folder = tempfile::tempdir().unwrap();
    let out = with_rounded_weights(folder.path(), &|name, weights| {
        let is_rounded = name.ends_with("weight") && !name.starts_with("head") && !name.starts_with("embed");
        for group in weights.chunks_exact_mut(8).filter(|_| is_rounded) {
            let scale = group.iter().fold(0.0f32, |most, x| most.max(x.abs())) / 7.0;
            group.iter_mut().for_each(|x| *x = (*x / scale).round() * scale);
        }
    });
    let path = out.to_string_lossy().into_owned();
    let quick = ["--faults", "1", "--seconds", "3"];
    let explained = || json(&[&["explain", GOLDEN, &path], &WEIGHTS[..], &quick].concat())["findings"].clone();
    let findings = explained();
    let [finding] = &findings.as_array().expect("findings")[..] else { panic!("{findings:#}") };
    let [off, products] = ["off", "products"].map(|count| finding["arithmetic"][count].as_u64().unwrap());
    assert_eq!((off, products, &finding["arithmetic"]["alone"]), (15, 16, &true.into()), "{finding:#}");
    twice(&out.join("layers.1.ffn_act.npy"));
    let findings = explained();
    let taps: Vec<&str> = findings.as_array().unwrap().iter().map(|f| f["tap"].as_str().unwrap()).collect();
    assert_eq!(taps[1..], ["layers.1.ffn_out", "layers.1.ffn_act"], "{findings:#}");
}

/// A run of the program with other weights, in f32.
fn with_rounded_weights(folder: &std::path::Path, round: &dyn Fn(&str, &mut [f32])) -> std::path::PathBuf {
    let mut bytes = std::fs::read(fixtures().join(WEIGHTS[1])).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let names: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    for (name, tensor) in names.as_object().unwrap() {
        let [begin, end] = [0, 1].map(|at| tensor["data_offsets"][at].as_u64().unwrap() as usize);
        let own = &mut bytes[8 + header + begin..8 + header + end];
        let mut values: Vec<f32> = own.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect();
        round(name, &mut values);
        own.copy_from_slice(&values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
    }
    let [weights, out] = ["rounded.safetensors", "out"].map(|name| folder.join(name));
    std::fs::write(&weights, bytes).unwrap();
    let paths = [&weights, &out].map(|path| path.to_string_lossy().into_owned());
    let tokens = "7,3,19,42,8,8,31,2,25,11";
    let made = json(&["dump", GOLDEN, "-o", &paths[1], "--tokens", tokens, "--weights", &paths[0], "--profile", "f32"]);
    assert_eq!(made["taps"], 34);
    out
}

/// What is computed from NaN is NaN, and not wrong by itself.
#[test]
fn nan_is_wrong_where_it_comes_up_alone() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let path = out.to_string_lossy().into_owned();
    let made = json(&["dump", GOLDEN, "-o", &path, WEIGHTS[0], WEIGHTS[1], "--tokens", "7,3,19,42,8,8,31,2,25,11"]);
    assert_eq!(made["taps"], 34);
    for tap in ["1.ffn_act", "1.ffn_out", "1.h", "2.attn_norm", "2.mixer_in", "2.mixer_out", "2.h_attn"] {
        let file = out.join(format!("layers.{tap}.npy"));
        let mut bytes = std::fs::read(&file).unwrap();
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
        std::fs::write(file, bytes).unwrap();
    }
    let report = json(&["replay", GOLDEN, &path, WEIGHTS[0], WEIGHTS[1]]);
    let taps = report["taps"].as_array().expect("taps");
    let of = |status: &str| {
        let of_it = taps.iter().filter(|tap| tap["status"] == status).map(|tap| tap["tap"].as_str().unwrap());
        of_it.collect::<Vec<_>>()
    };
    assert_eq!(of("diverged"), ["layers.1.ffn_act"]);
    // It does not pass either: taps computed from it were not checked.
    let unchecked = of("unchecked");
    assert!(["layers.1.ffn_out", "layers.2.mixer_in"].iter().all(|tap| unchecked.contains(tap)), "{unchecked:?}");
    let report = json(&["explain", GOLDEN, &path, WEIGHTS[0], WEIGHTS[1]]);
    assert_eq!(report["findings"].as_array().map(Vec::len), Some(1), "{report:#?}");
}

#[test]
fn a_program_needs_its_weights() {
    let out = firstdiff(&["replay", GOLDEN, "programs/forgetting/right.npz"]);
    assert_eq!(out.status.code(), Some(2));
    let said = in_one_line(&String::from_utf8_lossy(&out.stderr));
    assert!(said.contains("does not say where its weights are: --weights MODEL"), "{said}");
}

#[test]
fn a_program_is_dumped_in_any_arithmetic() {
    let folder = tempfile::tempdir().unwrap();
    for (profile, precision) in [("exact", "exact"), ("f32", "f32"), ("", "f32"), ("bf16", "bf16")] {
        let out = folder.path().join(format!("of-{profile}")).to_string_lossy().into_owned();
        let asked: &[&str] = if profile.is_empty() { &[] } else { &["--profile", profile] };
        let args =
            [&["dump", GOLDEN, "-o", &out, "--tokens", "7,3,19,42,8,8,31,2,25,11"], &WEIGHTS[..], asked].concat();
        assert_eq!(json(&args)["taps"], 34);
        let report = json(&["compare", GOLDEN, &out]);
        assert_eq!((&report["verdict"], &report["candidate"]["precision"]), (&"parity".into(), &precision.into()));
        assert_eq!(report["not_checked"], serde_json::json!([]), "{profile}");
        // By it, a fault is blamed in the same way as by the recording itself.
        let wrong = json(&["compare", &out, "programs/forgetting/wrong.npz", "--profile", "bf16"]);
        assert_eq!(wrong["first_divergence"]["tap"], "layers.0.mixer_out", "{profile}");
    }
}

#[test]
fn a_program_is_dumped_as_it_was_recorded_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out").to_string_lossy().into_owned();
    let refused = |more: &[&str], due: &str| {
        let args = [&["dump", GOLDEN, "-o", &out], more].concat();
        let output = firstdiff(&args);
        let said = in_one_line(&String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(due), "{said}");
        assert!(!folder.path().join("out").exists());
    };
    let with = |more: &[&'static str]| [&WEIGHTS[..], more].concat();
    refused(&with(&["--tokens", "7,3,20"]), "holds for the tokens that it was recorded with");
    refused(&with(&["--decode-tokens", "4"]), "--decode-tokens: programs/forgetting/golden is a recorded program");
    refused(&with(&["--cache", "f16"]), "has its own caches");
    refused(&with(&["--taps", "layers.9.h"]), "no tap of this program matches");
    refused(&[], "does not say where its weights are: --weights MODEL");
    refused(&["--weights", "models/llama"], "is not in the model's files");
    let of_model = firstdiff(&["dump", "models/llama", "-o", &out, "--tokens", "1", "--weights", "models/llama"]);
    assert!(String::from_utf8_lossy(&of_model.stderr).contains("holds no recorded program"));
    let untold = firstdiff(&["dump", "models/llama", "-o", &out]);
    assert!(String::from_utf8_lossy(&untold.stderr).contains("--tokens: models/llama says nothing of a prompt"));
}

#[test]
fn a_dump_is_inspected_by_its_own_program() {
    let right = json(&["inspect", GOLDEN]);
    assert_eq!((&right["counts"]["certain"], &right["counts"]["likely"]), (&0.into(), &0.into()), "{right:#}");
    let unseen = right["unseen"].as_array().expect("unseen").iter().filter_map(|text| text.as_str());
    assert!(unseen.into_iter().any(|text| text.contains("takes weights")), "{right:#}");
    // A tensor that was recorded too late.
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixtures().join(GOLDEN)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let of = |name: &str| folder.path().join(name);
    std::fs::copy(of("layers.2.ffn_act.npy"), of("layers.1.ffn_act.npy")).unwrap();
    let out = firstdiff(&["inspect", &folder.path().to_string_lossy(), "--json", "-"]);
    assert_eq!(out.status.code(), Some(0), "likely is not certain");
    let report = crate::common::parsed(&out);
    let told: Vec<&serde_json::Value> = report["findings"]
        .as_array()
        .expect("findings")
        .iter()
        .filter(|finding| finding["what"] == "not-its-program")
        .collect();
    let [finding] = &told[..] else { panic!("{told:#?}") };
    assert_eq!((&finding["what"], &finding["tap"]), (&"not-its-program".into(), &"layers.1.ffn_act".into()));
    assert_eq!(finding["taps"], serde_json::json!(["layers.1.ffn_act", "layers.1.ffn_gate", "layers.1.ffn_up"]));
}

#[test]
fn weights_are_found_by_the_program_that_reads_them() {
    let folder = tempfile::tempdir().unwrap();
    let b = fixtures().join(WEIGHTS[1]).to_string_lossy().into_owned();
    let report = json(&[&["weights", GOLDEN, &b], &WEIGHTS[..]].concat());
    assert_eq!((&report["verdict"], &report["not_checked"]), (&"parity".into(), &serde_json::json!([])));
    let refused = |args: &[&str], due: &str| {
        let out = firstdiff(args);
        let said = in_one_line(&String::from_utf8_lossy(&out.stderr));
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(said.contains(due), "{said}");
    };
    refused(&["weights", GOLDEN, &b], "does not say where its weights are: --weights MODEL");
    refused(&["weights", &b, &b, "--weights", &b], "holds no recorded program");
    refused(&["weights", GOLDEN, &b, "--program", GOLDEN], "holds a program of its own");
    refused(&["weights", &b, &b, "--program", &folder.path().to_string_lossy()], "program.json");
}

#[test]
fn a_program_that_asks_for_more_than_its_files_hold_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = firstdiff_trace::Recorder::create(folder.path()).unwrap();
    recorder.tokens(&[1]);
    recorder.record("h0", &[1, 2], &[1.0, 2.0]).unwrap();
    recorder.finish().unwrap();
    let size = 1u64 << 31;
    let program = serde_json::json!({"version": 1, "values": [["f32", [size]]], "ops": [{"o": "zeros", "i": [[{"c": size}]], "y": [0]}],
        "steps": [{"ops": [0, 1], "tokens": 1}]});
    std::fs::write(folder.path().join("program.json"), program.to_string()).unwrap();
    let out = firstdiff(&["inspect", &folder.path().to_string_lossy()]);
    let said = in_one_line(&String::from_utf8_lossy(&out.stderr));
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("2147483648 elements, and"), "{said}");
}

/// Writes a tensor as numpy does.
pub(crate) fn npy(path: &std::path::Path, shape: &[usize], values: &[f32]) {
    let shape: Vec<String> = shape.iter().map(usize::to_string).collect();
    let head = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", shape.join(", "));
    let head = format!("{head:<117}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((head.len() as u16).to_le_bytes());
    bytes.extend(head.into_bytes());
    bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
    std::fs::write(path, bytes).unwrap();
}

/// Rows of two experts in the order of an unstable sort, through a weight that inspect does not read.
fn of_experts(folder: &std::path::Path, activated: f32) {
    of_experts_in(folder, activated, [[3, 1, 2, 0]; 2]);
}

/// The same with the rows of its two taps in different orders. The program has them in the order [1, 3, 0, 2], two for each expert.
fn of_experts_in(folder: &std::path::Path, activated: f32, [experts, act]: [[usize; 4]; 2]) {
    use serde_json::json;
    let program = json!({"version": 1, "constants": [0, 2, 7], "weights": {"1": "w"},
        "values": [["f32", [4, 2]], ["f32", [2, 2]], ["i64", [4]], ["f32", [4, 2]], ["i64", [4]], ["f32", [4, 2]],
            ["f32", [4, 2]], ["f32", [4, 2]], ["f32", [4, 2]], ["f32", [4, 2]], ["i64", [4]]],
        "ops": [
            {"o": "mul.Tensor", "i": [0, {"c": 1.0}], "y": [3]},
            {"o": "sort", "i": [2], "y": [10, 4]},
            {"o": "index.Tensor", "i": [3, [4]], "y": [5]},
            {"o": "linear", "i": [5, 1], "y": [6]},
            {"o": "relu", "i": [6], "y": [9]},
            {"o": "index_add", "i": [7, {"c": 0}, 4, 9], "y": [8]}],
        "steps": [{"ops": [0, 6], "tokens": 4, "output": 8}],
        "taps": [{"tap": "h0", "step": 0, "op": 0, "v": 3}, {"tap": "layers.0.node/experts", "step": 0, "op": 3, "v": 6},
            {"tap": "layers.0.node/act", "step": 0, "op": 4, "v": 9}, {"tap": "layers.0.ffn_out", "step": 0, "op": 5, "v": 8}]});
    std::fs::write(folder.join("program.json"), program.to_string()).unwrap();
    let x = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    let (floats, zeros) = (x.map(f32::to_le_bytes).concat(), [0u8; 32]);
    let ids = [1i64, 0, 1, 0].map(i64::to_le_bytes).concat();
    let place = |dtype: &str, shape: &[usize], at: usize| json!({"dtype": dtype, "shape": shape, "data_offsets": [at, at + 32]});
    let head = json!({"0": place("F32", &[4, 2], 0), "2": place("I64", &[4], 32), "7": place("F32", &[4, 2], 64)});
    let mut head = head.to_string();
    head += &" ".repeat(head.len().next_multiple_of(8) - head.len());
    let stored = [&(head.len() as u64).to_le_bytes()[..], head.as_bytes(), &floats, &ids, &zeros].concat();
    std::fs::write(folder.join("program.safetensors"), stored).unwrap();
    let mut taps = Vec::new();
    let mut tap = |name: &str, values: Vec<f32>| {
        let file = format!("{}.npy", name.replace('/', "_"));
        npy(&folder.join(&file), &[4, 2], &values);
        taps.push(json!({"tap": name, "step": 0, "file": file, "shape": [4, 2], "dtype": "f32"}));
    };
    let of_rows =
        |rows: [usize; 4]| rows.iter().flat_map(|&row| [2.0 * x[2 * row], 2.0 * x[2 * row + 1]]).collect::<Vec<f32>>();
    tap("h0", x.to_vec());
    tap("layers.0.node/experts", of_rows(experts));
    tap("layers.0.node/act", of_rows(act).iter().map(|x| x * activated).collect());
    tap("layers.0.ffn_out", of_rows([0, 1, 2, 3]));
    let dump = json!({"format": 1, "complete": true, "model": "Odd", "precision": "f32", "tokens": [1, 2, 3, 4], "taps": taps});
    std::fs::write(folder.join("dump.json"), dump.to_string()).unwrap();
}

#[test]
fn rows_of_a_sort_have_one_order_within_each_expert() {
    let (reference, model) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    of_experts_in(reference.path(), 1.0, [[1, 3, 0, 2]; 2]);
    let weight = [2.0f32, 0.0, 0.0, 2.0].map(f32::to_le_bytes).concat();
    let mut head = serde_json::json!({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}).to_string();
    head += &" ".repeat(head.len().next_multiple_of(8) - head.len());
    let stored = [&(head.len() as u64).to_le_bytes()[..], head.as_bytes(), &weight].concat();
    std::fs::write(model.path().join("model.safetensors"), stored).unwrap();
    let told = |orders: [[usize; 4]; 2]| -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        of_experts_in(folder.path(), 1.0, orders);
        let [reference, candidate, weights] =
            [reference.path(), folder.path(), model.path()].map(|path| path.to_string_lossy());
        let report = crate::common::parsed(&firstdiff(&[
            "replay",
            &reference,
            &candidate,
            "--weights",
            &weights,
            "--json",
            "-",
        ]));
        let taps = report["taps"].as_array().expect("taps").iter();
        let of_rows = taps.filter(|tap| tap["tap"].as_str().is_some_and(|name| name.contains("node/")));
        let status = |tap: &serde_json::Value| match tap["status"].as_str() {
            Some("exact" | "rounding") => "right".to_owned(),
            other => other.unwrap_or_default().to_owned(),
        };
        of_rows.map(status).collect()
    };
    assert_eq!(told([[1, 3, 0, 2]; 2]), ["right", "right"]);
    // Another order within each expert, the same in all taps.
    assert_eq!(told([[3, 1, 2, 0]; 2]), ["right", "right"]);
    // An order across both experts.
    assert_eq!(told([[0, 2, 1, 3], [1, 3, 0, 2]])[0], "diverged");
    assert_eq!(told([[0, 2, 1, 3]; 2])[0], "diverged");
    // One tap is as in the program, the other is not.
    assert_eq!(told([[1, 3, 0, 2], [3, 1, 0, 2]]), ["right", "diverged"]);
    assert_eq!(told([[3, 1, 0, 2], [1, 3, 0, 2]]), ["unchecked", "right"]);
}

#[test]
fn rows_in_an_order_that_nothing_tells_are_not_judged() {
    let told = |activated: f32| -> Vec<serde_json::Value> {
        let folder = tempfile::tempdir().unwrap();
        of_experts(folder.path(), activated);
        let report = crate::common::parsed(&firstdiff(&["inspect", &folder.path().to_string_lossy(), "--json", "-"]));
        let findings = report["findings"].as_array().expect("findings").iter();
        findings.filter(|finding| finding["what"] == "not-its-program").map(|finding| finding["tap"].clone()).collect()
    };
    assert_eq!(told(1.0), [serde_json::Value::Null; 0]);
    // Only an operation that reads rows in their own order is judged.
    assert_eq!(told(1.5), ["layers.0.node/act"]);
}

/// Writes tensors in f32 as a .safetensors.
fn stored(path: &std::path::Path, name: &str, shape: &[usize], values: &[f32]) {
    tensors(path, &[(name, "F32", shape.to_vec(), values.iter().flat_map(|x| x.to_le_bytes()).collect())]);
}

/// Tensors of any type.
pub(crate) fn tensors(path: &std::path::Path, all: &[(&str, &str, Vec<usize>, Vec<u8>)]) {
    let (mut head, mut bytes) = (serde_json::Map::new(), Vec::new());
    for (name, dtype, shape, values) in all {
        let place = [bytes.len(), bytes.len() + values.len()];
        head.insert((*name).into(), serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": place}));
        bytes.extend(values);
    }
    let mut head = serde_json::Value::Object(head).to_string();
    head += &" ".repeat(head.len().next_multiple_of(8) - head.len());
    std::fs::write(path, [&(head.len() as u64).to_le_bytes()[..], head.as_bytes(), &bytes].concat()).unwrap();
}

/// A stream and a branch whose sum two operations read; the sum is no tap.
fn of_a_sum(folder: &std::path::Path, taps: &[(&str, Vec<f32>)]) {
    use serde_json::json;
    let named = |(name, values): &(&str, Vec<f32>)| {
        let file = format!("{name}.npy");
        npy(&folder.join(&file), &[4, 2], values);
        json!({"tap": name, "step": 0, "file": file, "shape": [4, 2], "dtype": "f32"})
    };
    let taps: Vec<_> = taps.iter().map(named).collect();
    let dump = json!({"format": 1, "complete": true, "model": "Odd", "precision": "f32", "tokens": [1, 2, 3, 4], "taps": taps});
    std::fs::write(folder.join("dump.json"), dump.to_string()).unwrap();
}

#[test]
fn a_cause_agrees_with_all_that_reads_its_operation() {
    use serde_json::json;
    let (x, w) = ([1.0f32, 2.0, 3.0, -4.0, 5.0, 6.0, -7.0, 8.0], [1.0f32, 0.5, -0.25, 2.0]);
    let program = json!({"version": 1, "constants": [0], "weights": {"1": "w"},
        "values": [["f32", [4, 2]], ["f32", [2, 2]], ["f32", [4, 2]], ["f32", [4, 2]], ["f32", [4, 2]], ["f32", [4, 2]], ["f32", [4, 2]]],
        "ops": [{"o": "linear", "i": [0, 1], "y": [2]}, {"o": "linear", "i": [2, 1], "y": [3]},
            {"o": "add.Tensor", "i": [2, 3], "y": [4]}, {"o": "relu", "i": [4], "y": [5]},
            {"o": "mul.Tensor", "i": [4, {"c": 3.0}], "y": [6]}],
        "steps": [{"ops": [0, 5], "tokens": 4, "output": 6}],
        "taps": [{"tap": "h0", "step": 0, "op": 0, "v": 2}, {"tap": "layers.0.attn_out", "step": 0, "op": 1, "v": 3},
            {"tap": "layers.0.ffn_act", "step": 0, "op": 3, "v": 5}, {"tap": "layers.0.h", "step": 0, "op": 4, "v": 6}]});
    let linear = |x: &[f32]| -> Vec<f32> {
        x.chunks(2).flat_map(|x| [x[0] * w[0] + x[1] * w[1], x[0] * w[2] + x[1] * w[3]]).collect()
    };
    let stream = linear(&x);
    let branch = linear(&stream);
    let sum: Vec<f32> = stream.iter().zip(&branch).map(|(a, b)| a + b).collect();
    let run = |folder: &std::path::Path, act: &[f32], out: &[f32]| {
        let act = act.iter().map(|x| x.max(0.0)).collect();
        let out = out.iter().map(|x| 3.0 * x).collect();
        let taps = [("h0", stream.clone()), ("layers.0.attn_out", branch.clone()), ("layers.0.ffn_act", act)];
        of_a_sum(folder, &[&taps[..], &[("layers.0.h", out)]].concat());
    };
    let causes = |out: &[f32]| -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let [golden, own] = ["golden", "own"].map(|name| folder.path().join(name));
        [&golden, &own].into_iter().for_each(|path| std::fs::create_dir(path).unwrap());
        std::fs::write(golden.join("program.json"), program.to_string()).unwrap();
        stored(&golden.join("program.safetensors"), "0", &[4, 2], &x);
        stored(&folder.path().join("w.safetensors"), "w", &[2, 2], &w);
        run(&golden, &sum, &sum);
        run(&own, &branch, out);
        let [golden, own, weights] =
            [golden, own, folder.path().join("w.safetensors")].map(|path| path.to_string_lossy().into_owned());
        let out = firstdiff(&["explain", &golden, &own, "--weights", &weights, "--json", "-"]);
        let report = crate::common::parsed(&out);
        let findings = report["findings"].as_array().expect("findings").iter();
        findings.map(|finding| finding["cause"].as_str().unwrap_or("unknown").to_owned()).collect()
    };
    // The sum is right for its other reader.
    let of_one = causes(&sum);
    assert!(!of_one.iter().any(|cause| cause == "residual-omitted") && of_one.len() == 1, "{of_one:?}");
}

#[test]
fn positions_that_are_indexed_are_looked_up_as_embedded_ones() {
    use serde_json::json;
    let program = json!({"version": 1, "constants": [0], "weights": {"1": "w"},
        "values": [["f32", [4, 2]], ["f32", [8, 2]], ["i64", [4]], ["f32", [4, 2]], ["f32", [4, 2]]],
        "ops": [{"o": "arange.start", "i": [{"c": 0}, {"c": 4}], "y": [2]}, {"o": "index.Tensor", "i": [1, [2]], "y": [3]},
            {"o": "add.Tensor", "i": [0, 3], "y": [4]}],
        "steps": [{"ops": [0, 3], "tokens": 4, "output": 4}], "taps": [{"tap": "h0", "step": 0, "op": 2, "v": 4}]});
    let (x, table) = (numbers(8, 1), numbers(16, 2));
    let folder = tempfile::tempdir().unwrap();
    let [golden, own] = ["golden", "own"].map(|name| folder.path().join(name));
    for (path, offset) in [(&golden, 0), (&own, 2)] {
        std::fs::create_dir(path).unwrap();
        let values = x.iter().zip(&table[2 * offset..]).map(|(x, row)| x + row).collect();
        of_a_sum(path, &[("h0", values)]);
    }
    std::fs::write(golden.join("program.json"), program.to_string()).unwrap();
    stored(&golden.join("program.safetensors"), "0", &[4, 2], &x);
    stored(&folder.path().join("w.safetensors"), "w", &[8, 2], &table);
    let paths = [golden, own, folder.path().join("w.safetensors")].map(|path| path.to_string_lossy().into_owned());
    let report = crate::common::json(&["explain", &paths[0], &paths[1], "--weights", &paths[2]]);
    let finding = &report["findings"][0];
    assert_eq!((&finding["cause"], &finding["params"]["offset"]), (&"position-embedding-offset".into(), &2.into()));
}

/// A candidate of one pass, recorded in chunks of these lengths: each chunk has the keys up to its end.
fn in_chunks((golden, candidate): (&str, &str), lengths: &[usize], to: &std::path::Path) -> String {
    let open = |path: &str| firstdiff_trace::Dump::open(fixtures().join(path)).unwrap();
    let (whole, ids) = (open(candidate), open(golden).meta().tokens.clone().unwrap());
    let recorder = firstdiff_trace::Recorder::create(to).unwrap();
    let (count, mut start) = (ids.len(), 0);
    for length in lengths {
        let chunk = start..start + length;
        match start {
            0 => recorder.tokens(&ids[chunk.clone()]),
            _ => recorder.next_chunk(&ids[chunk.clone()]),
        }
        let open = whole.unmapped().iter().filter_map(|name| whole.entry(firstdiff_trace::Tap::named(name), 0));
        for entry in whole.entries().iter().cloned().chain(open) {
            let values = whole.read(&entry).unwrap().values().to_f64();
            let attends = entry.shape.len() == 3 && entry.shape[1..] == [count, count];
            let (heads, width, kept) = match attends {
                true => (entry.shape[0], count, chunk.end),
                false => (1, values.len() / count, values.len() / count),
            };
            let rows = (0..heads).flat_map(|head| chunk.clone().map(move |row| (head * count + row) * width));
            let own: Vec<f32> = rows.flat_map(|row| values[row..row + kept].iter().map(|&x| x as f32)).collect();
            let shape = match attends {
                true => vec![heads, chunk.len(), kept],
                false => [&[chunk.len()], &entry.shape[1..]].concat(),
            };
            recorder.record(entry.tap, &shape, &own).unwrap();
        }
        start = chunk.end;
    }
    recorder.finish().unwrap();
    to.to_string_lossy().into_owned()
}

#[test]
fn a_candidates_own_chunks_are_joined_into_those_of_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let attention = "programs/attention/golden";
    let cases = [
        (GOLDEN, WEIGHTS[1], "programs/forgetting/right.npz", &[6, 4][..]),
        (GOLDEN, WEIGHTS[1], "programs/forgetting/wrong.npz", &[6, 4]),
        (GOLDEN, WEIGHTS[1], "programs/forgetting/wrong.npz", &[1; 10]),
        (attention, ATTENTION, attention, &[10, 8, 6]),
        (attention, ATTENTION, "programs/attention/cache-e4m3.npz", &[13, 11]),
    ];
    let mut in_one_chunk = std::collections::HashMap::new();
    for (number, (golden, weights, candidate, lengths)) in cases.into_iter().enumerate() {
        let path = in_chunks((golden, candidate), lengths, &folder.path().join(number.to_string()));
        for command in ["replay", "explain"] {
            let said = |candidate: &str| {
                let quick: &[&str] = if command == "explain" { &["--faults", "1"] } else { &[] };
                json(&[&[command, golden, candidate, "--cache", "f32", "--weights", weights], quick].concat())
            };
            let whole = in_one_chunk.entry((command, candidate)).or_insert_with(|| said(candidate)).clone();
            let chunked = said(&path);
            let facts = |report: &serde_json::Value| {
                let findings = report["findings"].as_array().cloned().unwrap_or_default();
                let findings: Vec<_> = findings
                    .iter()
                    .map(|found| [&found["tap"], &found["cause"], &found["match"]].map(Clone::clone))
                    .collect();
                (report["verdict"].clone(), findings)
            };
            assert_eq!(facts(&chunked), facts(&whole), "{command} {candidate} {lengths:?}");
            // Raw products with keys that only a later chunk has are in no chunk.
            let unchecked = |report: &serde_json::Value| {
                let taps = report["taps"].as_array().cloned().unwrap_or_default();
                let open = taps.iter().filter(|tap| tap["status"] == "unchecked").map(|tap| tap["tap"].clone());
                open.filter(|tap| !tap.as_str().unwrap().ends_with(".qk")).collect::<Vec<_>>()
            };
            assert_eq!(unchecked(&chunked), unchecked(&whole), "{command} {candidate} {lengths:?}");
        }
    }
}

/// Raw products of chunks are not joined: to record them again would show nothing.
#[test]
fn what_was_recorded_is_not_to_be_recorded_again() {
    let folder = tempfile::tempdir().unwrap();
    let golden = "programs/attention/golden";
    let own = in_chunks((golden, golden), &[13, 11], &folder.path().join("own"));
    let file = std::path::Path::new(&own).join("layers.0.scores.step1.npy");
    let mut npy = std::fs::read(&file).unwrap();
    let begin = 10 + usize::from(u16::from_le_bytes([npy[8], npy[9]]));
    for (at, x) in npy[begin..].chunks_exact_mut(4).enumerate() {
        let other = f32::from_le_bytes(x.try_into().unwrap()) + ((at * 7919 % 101) as f32 - 50.0) / 50.0;
        x.copy_from_slice(&other.to_le_bytes());
    }
    std::fs::write(&file, npy).unwrap();
    // Nothing was recorded of what reads it.
    let path = std::path::Path::new(&own).join("dump.json");
    let mut meta: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let before = ["h0", "layers.0.attn_norm", "layers.0.v", "layers.0.qk", "layers.0.scores"];
    meta["taps"].as_array_mut().unwrap().retain(|tap| {
        let name = tap["tap"].as_str().unwrap();
        let is_kept = before.contains(&name) || name.starts_with("layers.0.q") || name.starts_with("layers.0.k");
        let file = path.with_file_name(tap["file"].as_str().unwrap());
        if !is_kept {
            std::fs::remove_file(file).unwrap();
        }
        is_kept
    });
    std::fs::write(&path, meta.to_string()).unwrap();
    let report = json(&["explain", golden, &own, "--cache", "f32", "--weights", ATTENTION, "--seconds", "0.5"]);
    let recorded = |name: &serde_json::Value| {
        std::path::Path::new(&own).join(format!("{}.step1.npy", name.as_str().unwrap())).exists()
    };
    let findings = report["findings"].as_array().expect("findings");
    let of_scores =
        findings.iter().find(|finding| finding["tap"] == "layers.0.scores").expect("a finding at the scores");
    assert_eq!(of_scores["span"], serde_json::json!(["layers.0.qk"]), "{of_scores:#}");
    let again = findings.iter().flat_map(|finding| finding["record_next"].as_array().expect("record_next"));
    assert_eq!(again.filter(|name| recorded(name)).count(), 0, "{findings:#?}");
    let next = of_scores["next"].as_str().unwrap_or_default();
    assert!(next.starts_with("the taps in between were recorded, and could not be judged"), "{next}");
}

const ATTENTION: &str = "programs/attention/model.safetensors";

/// The report of a command on a right engine, by a program of PyTorch's attention.
fn by_attention(command: &str, golden: &str, candidate: &str, more: &[&str]) -> serde_json::Value {
    let [golden, candidate] = [golden, candidate].map(|name| format!("programs/attention/{name}"));
    json(&[&[command, &golden, &candidate, "--weights", ATTENTION], more].concat())
}

#[test]
fn what_is_nearer_to_the_exact_value_than_the_references_own_rounding_is_not_wrong() {
    for command in ["replay", "explain"] {
        // Fused attention in bf16 rounds less than the reference, whose scores and probabilities have 16 bits.
        let report = by_attention(command, "golden-bf16", "fused.npz", &[]);
        assert_eq!((&report["verdict"], &report["profile"]), (&"parity".into(), &"bf16".into()), "{report:#}");
        // bf16 is not declared, but its numbers show it.
        let report = by_attention(command, "golden", "fused.npz", &[]);
        assert_eq!((&report["verdict"], &report["profile"]), (&"parity".into(), &"bf16".into()), "{report:#}");
    }
    let report = json(&["compare", "programs/attention/golden", "programs/attention/fused.npz"]);
    assert_eq!(report["verdict"], "parity");
}

#[test]
fn a_cache_rounds_keys_and_values_of_a_program_too() {
    for (candidate, cache) in [("cache-f16.npz", "f16"), ("cache-e4m3.npz", "e4m3")] {
        for command in ["replay", "explain"] {
            for more in [&["--cache", cache][..], &[]] {
                let report = by_attention(command, "golden", candidate, more);
                let found = (&report["verdict"], &report["cache"], &report["cache_is_assumed"]);
                assert_eq!(found, (&"parity".into(), &cache.into(), &more.is_empty().into()), "{command} {report:#}");
            }
            let quick: &[&str] = if command == "explain" { &["--seconds", "0"] } else { &[] };
            let report = by_attention(command, "golden", candidate, &[&["--cache", "f32"], quick].concat());
            assert_eq!(report["verdict"], "diverged", "{command} {cache}");
        }
    }
}

/// A copy of a dump whose program names each operation in `names` by a name without a kernel.
fn without_kernels(golden: &str, names: &[&str], folder: &std::path::Path) -> String {
    edited(golden, folder, |_, op| {
        let name = op["o"].as_str().unwrap().to_owned();
        if names.contains(&name.split('.').next().unwrap()) {
            op["o"] = format!("without_a_kernel::{name}").into();
        }
    })
}

/// A copy of a dump whose program has other operations.
fn edited(golden: &str, folder: &std::path::Path, edit: impl Fn(usize, &mut serde_json::Value)) -> String {
    let out = folder.join("without");
    let _ = std::fs::remove_dir_all(&out);
    std::fs::create_dir(&out).unwrap();
    for entry in std::fs::read_dir(fixtures().join(golden)).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), out.join(entry.file_name())).unwrap();
    }
    let file = out.join("program.json");
    let mut program: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    program["ops"].as_array_mut().unwrap().iter_mut().enumerate().for_each(|(at, op)| edit(at, op));
    std::fs::write(&file, program.to_string()).unwrap();
    out.to_string_lossy().into_owned()
}

/// What is found in a run of the program of PyTorch's attention in which operations are carried out otherwise, in some arithmetic.
fn otherwise(profile: &str, edit: impl Fn(usize, &mut serde_json::Value)) -> Vec<serde_json::Value> {
    let (folder, golden) = (tempfile::tempdir().unwrap(), "programs/attention/golden");
    let other = edited(golden, folder.path(), edit);
    let out = folder.path().join("out").to_string_lossy().into_owned();
    let ids =
        serde_json::from_slice::<serde_json::Value>(&std::fs::read(format!("{other}/dump.json")).unwrap()).unwrap();
    let ids = ids["tokens"].as_array().unwrap().iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    json(&["dump", &other, "-o", &out, "--tokens", &ids, "--weights", ATTENTION, "--profile", profile]);
    let report = json(&["explain", golden, &out, "--weights", ATTENTION]);
    report["findings"].as_array().expect("findings").clone()
}

/// Another epsilon of all norms, which rounding hides behind the first.
#[test]
fn where_a_cause_would_not_show_it_may_be_made_as_well() {
    let findings = otherwise("f16", |_, op| {
        if op["o"] == "add.Tensor" && op["l"] == 66 {
            op["i"][1]["c"] = 1e-5.into();
        }
    });
    let [one] = &findings[..] else { panic!("{findings:#?}") };
    assert_eq!((&one["cause"], &one["params"]["eps"]), (&"norm-eps".into(), &1e-5.into()), "{one:#}");
    assert_eq!(one["place"], "at least layer 0, attn_norm");
    let untold = ["layers.0.ffn_norm", "layers.1.attn_norm", "layers.1.ffn_norm", "final_norm"];
    assert_eq!(one["untold"], serde_json::json!(untold));
    // In f32 all of them show it.
    let findings = otherwise("f32", |_, op| {
        if op["o"] == "add.Tensor" && op["l"] == 66 {
            op["i"][1]["c"] = 1e-5.into();
        }
    });
    assert!(findings.iter().all(|f| f["cause"] == "norm-eps" && f["untold"] == serde_json::json!([])), "{findings:#?}");
    // One norm alone: the others would show it.
    let findings = otherwise("f32", |at, op| {
        if at == 17 {
            op["i"][1]["c"] = 1e-5.into();
        }
    });
    assert_eq!((&findings[0]["place"], &findings[0]["untold"]), (&"layer 0, attn_norm".into(), &serde_json::json!([])));
}

/// A factor that is smaller than a step of bf16 makes a larger one of what is rounded: only the candidate's own arithmetic gives it.
#[test]
fn a_number_beside_rounding_is_the_one_that_leaves_nothing() {
    let scaled = |scale: f64| {
        otherwise("bf16", |_, op| {
            if op["o"] == "mul.Tensor" && op["l"] == 184 {
                op["i"][1]["c"] = scale.into();
            }
        })
    };
    let findings = scaled(0.251);
    let [one] = &findings[..] else { panic!("{findings:#?}") };
    assert_eq!((&one["cause"], &one["params"]["scale"]), (&"score-scale".into(), &0.251.into()), "{one:#}");
    assert_eq!(one["residual_nmse"], 0.0);
    // What is too little to be proved is not ruled out.
    for finding in scaled(0.2505) {
        let ruled_out = finding["ruled_out"].as_array().expect("ids");
        assert!(finding["cause"] == "score-scale" || !ruled_out.contains(&"score-scale".into()), "{finding:#}");
    }
}

/// Each layer scales its products by a number of its own, like an engine that divides by the layer's number.
#[test]
fn a_number_that_differs_by_layer_is_stated_in_each() {
    let findings = otherwise("f32", |at, op| match at {
        39 => op["i"][1]["c"] = 0.2.into(),
        82 => op["i"][1]["c"] = 0.15.into(),
        _ => {}
    });
    let told: Vec<_> = findings.iter().map(|f| (&f["cause"], &f["params"]["scale"], &f["layers"])).collect();
    let (cause, numbers) = ("score-scale".into(), [0.2, 0.15].map(serde_json::Value::from));
    let layers = [serde_json::json!([0]), serde_json::json!([1])];
    assert_eq!(told, [(&cause, &numbers[0], &layers[0]), (&cause, &numbers[1], &layers[1])], "{findings:#?}");
}

fn kernels_of(golden: &str) -> std::collections::BTreeSet<String> {
    let program = std::fs::read(fixtures().join(golden).join("program.json")).unwrap();
    let program: serde_json::Value = serde_json::from_slice(&program).unwrap();
    let names = program["ops"].as_array().unwrap().iter().map(|op| op["o"].as_str().unwrap());
    names.map(|name| name.split('.').next().unwrap().to_owned()).collect()
}

/// Whatever cannot be computed: no other command passes what `compare` finds to differ, and what is right is not blamed.
#[test]
fn no_parity_is_said_where_compare_says_diverged_whichever_kernel_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    // Only the end of a wrong run, and a run with one inner tensor from another run.
    let (ends, within) = (path("ends"), path("within"));
    for (out, taken) in [(&ends, "logits"), (&within, "layers.1.attn_norm")] {
        let tokens = ["--tokens", "7,3,19,42,8,8,31,2,25,11"];
        let taps: &[&str] = if taken == "logits" { &["--taps", "logits"] } else { &[] };
        assert!(firstdiff(&[&["dump", GOLDEN, "-o", out], &tokens[..], taps, &WEIGHTS[..]].concat()).status.success());
        twice(&std::path::Path::new(out).join(format!("{taken}.npy")));
    }
    let forgetting = ["programs/forgetting/right.npz", "programs/forgetting/wrong.npz", &ends, &within];
    let attention = ["programs/attention/cache-e4m3.npz"];
    let pairs = [(GOLDEN, WEIGHTS[1], &forgetting[..]), ("programs/attention/golden", ATTENTION, &attention[..])];
    let (mut diverged, mut said) = (0, std::collections::BTreeMap::new());
    for (golden, weights, candidates) in pairs {
        let code = |command: &str, golden: &str, candidate: &str, more: &[&str]| {
            let args = [&[command, golden, candidate, "--cache", "f32", "--json", "-"], more].concat();
            firstdiff(&args).status.code().unwrap()
        };
        let compared: Vec<i32> = candidates.iter().map(|candidate| code("compare", golden, candidate, &[])).collect();
        let all = kernels_of(golden);
        let every: Vec<&str> = all.iter().map(String::as_str).collect();
        for names in every.iter().map(|name| vec![*name]).chain([every.clone()]) {
            let golden = without_kernels(golden, &names, folder.path());
            let replay = |candidate: &str| code("replay", &golden, candidate, &["--weights", weights]);
            let replayed: Vec<i32> = std::thread::scope(|scope| {
                let runs: Vec<_> = candidates.iter().map(|candidate| scope.spawn(|| replay(candidate))).collect();
                runs.into_iter().map(|run| run.join().unwrap()).collect()
            });
            for ((candidate, &compared), replayed) in candidates.iter().zip(&compared).zip(replayed) {
                diverged += usize::from(compared == 1);
                *said.entry((compared, replayed)).or_insert(0) += 1;
                assert!(compared != 1 || replayed != 0, "{names:?}: {candidate} is passed");
                assert!(compared != 0 || replayed == 0, "{names:?}: {candidate} is accused, {replayed}");
                // Where nothing is wrong, explain has nothing to search for.
                if replayed != 1 && names.len() > 1 {
                    assert_eq!(code("explain", &golden, candidate, &["--weights", weights]), replayed, "{candidate}");
                }
            }
        }
    }
    // Most differences are found by the reference's own value.
    let found = said.get(&(1, 1)).copied().unwrap_or(0);
    assert!(diverged > 40 && 10 * found >= 9 * diverged, "{said:?}");
}

#[test]
fn what_cannot_be_computed_is_held_against_the_reference_and_not_against_itself() {
    let folder = tempfile::tempdir().unwrap();
    let golden = without_kernels(GOLDEN, &["einsum", "bmm", "matmul"], folder.path());
    for command in ["replay", "explain"] {
        let report = json(&[command, &golden, "programs/forgetting/wrong.npz", WEIGHTS[0], WEIGHTS[1]]);
        let wrong = report["taps"].as_array().expect("taps").iter().find(|tap| tap["status"] == "diverged");
        let reason = wrong.and_then(|tap| tap["reason"].as_str()).unwrap_or_default();
        assert!(reason.starts_with("not the reference's own value, though what it reads is"), "{command}: {reason}");
        let right = json(&[command, &golden, "programs/forgetting/right.npz", WEIGHTS[0], WEIGHTS[1]]);
        assert_eq!(right["verdict"], "parity", "{right:#}");
    }
    // The reference alone is no evidence about itself.
    let of_itself =
        json(&["explain", &golden, "programs/forgetting/wrong.npz", "--ref", &golden, WEIGHTS[0], WEIGHTS[1]]);
    assert_eq!(of_itself["reference"]["verdict"], "incomparable", "{of_itself:#}");
}

/// A head of attention as an engine computes it: q and the products have a factor each, and a bias by distance is added beside the mask.
#[derive(Clone, Copy)]
struct Attention {
    of_q: f64,
    scale: f64,
    bias: f64,
    fill: f64,
    /// A factor on k, 1 for none; and whether q times its factor is added to k to make q.
    of_k: f64,
    is_branch: bool,
    /// How many keys each way a query sees, where it sees what follows it.
    each_way: Option<usize>,
}

const TOKENS: usize = 16;
const WIDTH: usize = 8;

/// Numbers without a rule, the same every time.
pub(crate) fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let next = |state: &mut u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some((*state >> 40) as f32 / 8_388_608.0 - 1.0)
    };
    std::iter::repeat_n((), count).scan(seed, |state, ()| next(state)).collect()
}

impl Attention {
    const RIGHT: Attention = Attention {
        of_q: 0.35,
        of_k: 1.0,
        is_branch: false,
        each_way: None,
        scale: 0.5,
        bias: -0.3,
        fill: f32::MIN as f64,
    };

    fn mask(self) -> Vec<f32> {
        let cell = |at: usize| match (at / TOKENS, at % TOKENS) {
            (t, s) if self.each_way.map_or(s > t, |most| t.abs_diff(s) > most) => self.fill as f32,
            (t, s) => (self.bias * t.abs_diff(s) as f64) as f32,
        };
        (0..TOKENS * TOKENS).map(cell).collect()
    }

    /// The taps of a run.
    fn taps(self) -> Vec<(&'static str, Vec<usize>, Vec<f32>)> {
        let (table, ids) = (numbers(TOKENS * WIDTH, 1), TOKENS);
        let linear = |x: &[f32], seed: u64| -> Vec<f32> {
            let w = numbers(WIDTH * WIDTH, seed);
            let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
            x.chunks(WIDTH).flat_map(|x| w.chunks(WIDTH).map(|w| dot(x, w) as f32).collect::<Vec<_>>()).collect()
        };
        let (q, k) = (linear(&table, 2), linear(&table, 3));
        let (mut qk, mut scores, mut probs, mut context) = (vec![], vec![], vec![], vec![]);
        for (t, mask) in self.mask().chunks(TOKENS).enumerate() {
            let row =
                |s: usize| (0..WIDTH).map(|i| f64::from(q[t * WIDTH + i]) * f64::from(k[s * WIDTH + i])).sum::<f64>();
            let beside =
                |s: usize| (0..WIDTH).map(|i| f64::from(k[t * WIDTH + i]) * f64::from(k[s * WIDTH + i])).sum::<f64>();
            let other = |s: usize| if self.is_branch { beside(s) } else { 0.0 };
            let products: Vec<f64> = (0..ids).map(|s| self.of_k * (self.of_q * row(s) + other(s))).collect();
            let masked: Vec<f64> = products.iter().zip(mask).map(|(x, m)| self.scale * x + f64::from(*m)).collect();
            let top = masked.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = masked.iter().map(|x| (x - top).exp()).sum();
            let weights: Vec<f64> = masked.iter().map(|x| (x - top).exp() / sum).collect();
            context.extend(
                (0..WIDTH).map(|i| (0..ids).map(|s| weights[s] * f64::from(k[s * WIDTH + i])).sum::<f64>() as f32),
            );
            qk.extend(products.iter().map(|x| *x as f32));
            scores.extend(masked.iter().map(|x| *x as f32));
            probs.extend(weights.iter().map(|x| *x as f32));
        }
        let (rows, heads, square) = (vec![ids, WIDTH], vec![ids, 1, WIDTH], vec![1, ids, ids]);
        vec![
            ("h0", rows, table),
            ("layers.0.q", heads.clone(), q),
            ("layers.0.k", heads.clone(), k),
            ("layers.0.qk", square.clone(), qk),
            ("layers.0.scores", square.clone(), scores),
            ("layers.0.probs", square, probs),
            ("layers.0.context", heads, context),
        ]
    }

    fn write(self, folder: &std::path::Path) {
        use serde_json::json;
        std::fs::create_dir_all(folder).unwrap();
        let tap = |(name, shape, values): (&str, Vec<usize>, Vec<f32>)| {
            let file = format!("{name}.npy");
            npy(&folder.join(&file), &shape, &values);
            json!({"tap": name, "step": 0, "file": file, "shape": shape, "dtype": "f32"})
        };
        let taps: Vec<_> = self.taps().into_iter().map(tap).collect();
        let tokens: Vec<usize> = (0..TOKENS).collect();
        let dump =
            json!({"format": 1, "complete": true, "model": "Odd", "precision": "f32", "tokens": tokens, "taps": taps});
        std::fs::write(folder.join("dump.json"), dump.to_string()).unwrap();
    }

    /// The right run as PyTorch records it: a line of code for each operation.
    fn program(self, folder: &std::path::Path) {
        use serde_json::json;
        let (t, d) = (TOKENS, WIDTH);
        let rows = json!(["f32", [1, t, d]]);
        let square = json!(["f32", [1, 1, t, t]]);
        let heads = |buffer: usize| json!({"v": [buffer, [t, 1, d], [d, d, 1]]});
        let product = |buffer: usize| json!({"v": [buffer, [1, t, t], [t * t, t, 1]]});
        let mut ops = vec![
            json!({"o": "embedding", "i": [1, 0], "y": [5], "s": 0, "l": 1}),
            json!({"o": "linear", "i": [5, 2], "y": [6], "s": 0, "l": 2}),
            json!({"o": "mul.Tensor", "i": [6, {"c": self.of_q}], "y": [7], "s": 0, "l": 3}),
            json!({"o": "linear", "i": [5, 3], "y": [8], "s": 0, "l": 4}),
        ];
        let mut reads = [7, 8];
        if self.of_k != 1.0 {
            ops.push(json!({"o": "mul.Tensor", "i": [8, {"c": self.of_k}], "y": [14], "s": 0, "l": 10}));
            reads[1] = 14;
        }
        if self.is_branch {
            ops.push(json!({"o": "add.Tensor", "i": [8, 7], "y": [15], "s": 0, "l": 11}));
            reads[0] = 15;
        }
        let [of_q, of_k] = reads;
        ops.extend([
            json!({"o": "matmul", "i": [{"v": [of_q, [1, 1, t, d], [t * d, t * d, d, 1]]}, {"v": [of_k, [1, 1, d, t], [t * d, t * d, 1, d]]}],
                "y": [9], "s": 0, "l": 5}),
            json!({"o": "mul.Tensor", "i": [9, {"c": self.scale}], "y": [10], "s": 0, "l": 6}),
            json!({"o": "add.Tensor", "i": [10, 4], "y": [11], "s": 0, "l": 7}),
            json!({"o": "softmax.int", "i": [11, {"c": -1}, {"t": "f32"}], "y": [12], "s": 0, "l": 8}),
            json!({"o": "matmul", "i": [12, {"v": [8, [1, 1, t, d], [t * d, t * d, d, 1]]}], "y": [13], "s": 0, "l": 9}),
        ]);
        let made = |buffer: usize| ops.iter().position(|op| op["y"][0] == buffer).unwrap();
        let tap = |name: &str, buffer: usize, view: serde_json::Value| json!({"tap": name, "step": 0, "op": made(buffer), "v": view});
        let taps = [
            tap("h0", 5, json!({"v": [5, [t, d], [d, 1]]})),
            tap("layers.0.q", 6, heads(6)),
            tap("layers.0.k", 8, heads(8)),
            tap("layers.0.qk", 9, product(9)),
            tap("layers.0.scores", 11, product(11)),
            tap("layers.0.probs", 12, product(12)),
            tap("layers.0.context", 13, heads(13)),
        ];
        let program = json!({"version": 1, "constants": [4], "inputs": {"0": "input_ids"},
            "weights": {"1": "embed", "2": "q", "3": "k"}, "files": ["odd.py"], "scopes": [["attention", ["forward"], 0]],
            "values": [["i64", [1, t]], ["f32", [t, d]], ["f32", [d, d]], ["f32", [d, d]], square, rows, rows, rows, rows,
                square, square, square, square, ["f32", [1, 1, t, d]], rows, rows],
            "ops": ops, "steps": [{"ops": [0, ops.len()], "tokens": t, "output": 13}], "taps": taps});
        self.write(folder);
        std::fs::write(folder.join("program.json"), program.to_string()).unwrap();
        let bytes = |x: &[f32]| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let ids: Vec<u8> = (0..t as i64).flat_map(i64::to_le_bytes).collect();
        let mask = ("4", "F32", vec![1, 1, t, t], bytes(&self.mask()));
        tensors(&folder.join("program.safetensors"), &[("0", "I64", vec![1, t], ids), mask]);
        let weights = [("embed", 1, t), ("q", 2, d), ("k", 3, d)];
        let weights = weights.map(|(name, seed, rows)| (name, "F32", vec![rows, d], bytes(&numbers(rows * d, seed))));
        tensors(&folder.join("model.safetensors"), &weights);
    }
}

impl Attention {
    /// The same run behind two positions of padding, whose keys are seen, or not; `scores` are recorded or not.
    fn write_padded(self, folder: &std::path::Path, sees: bool, scores: bool) {
        use serde_json::json;
        const PADDING: usize = 2;
        let all = TOKENS + PADDING;
        let taps = self.taps();
        let of = |name: &str| &taps.iter().find(|tap| tap.0 == name).unwrap().2;
        let padded = |name: &str, seed: u64| [&numbers(PADDING * WIDTH, seed)[..], of(name)].concat();
        let (q, k) = (padded("layers.0.q", 11), padded("layers.0.k", 12));
        let (mut qk, mut masked, mut probs, mut context) = (vec![], vec![], vec![], vec![]);
        for t in 0..all {
            let dot =
                |s: usize| (0..WIDTH).map(|i| f64::from(q[t * WIDTH + i]) * f64::from(k[s * WIDTH + i])).sum::<f64>();
            let products: Vec<f64> = (0..all).map(|s| self.of_q * dot(s)).collect();
            let score = |s: usize| match s {
                s if s > t || (s < PADDING && t >= PADDING && !sees) => self.fill,
                s if s < PADDING || t < PADDING => self.scale * products[s],
                s => f64::from(of("layers.0.scores")[(t - PADDING) * TOKENS + s - PADDING]),
            };
            let row: Vec<f64> = (0..all).map(score).collect();
            let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|x| (x - top).exp()).sum();
            let weights: Vec<f64> = row.iter().map(|x| (x - top).exp() / sum).collect();
            context.extend(
                (0..WIDTH).map(|i| (0..all).map(|s| weights[s] * f64::from(k[s * WIDTH + i])).sum::<f64>() as f32),
            );
            qk.extend(products.iter().map(|x| *x as f32));
            masked.extend(row.iter().map(|x| *x as f32));
            probs.extend(weights.iter().map(|x| *x as f32));
        }
        let (heads, square) = (vec![all, 1, WIDTH], vec![1, all, all]);
        let mut taps = vec![
            ("h0", vec![all, WIDTH], padded("h0", 13)),
            ("layers.0.q", heads.clone(), q),
            ("layers.0.k", heads.clone(), k),
            ("layers.0.qk", square.clone(), qk),
            ("layers.0.scores", square.clone(), masked),
            ("layers.0.probs", square, probs),
            ("layers.0.context", heads, context),
        ];
        taps.retain(|tap| scores || tap.0 != "layers.0.scores");
        let _ = std::fs::remove_dir_all(folder);
        std::fs::create_dir_all(folder).unwrap();
        let tap = |(name, shape, values): (&str, Vec<usize>, Vec<f32>)| {
            npy(&folder.join(format!("{name}.npy")), &shape, &values);
            json!({"tap": name, "step": 0, "file": format!("{name}.npy"), "shape": shape, "dtype": "f32"})
        };
        let taps: Vec<_> = taps.into_iter().map(tap).collect();
        let tokens: Vec<usize> = (0..TOKENS).collect();
        let mask: Vec<usize> = (0..all).map(|at| usize::from(at >= PADDING)).collect();
        let dump = json!({"format": 1, "complete": true, "model": "Odd", "precision": "f32", "tokens": tokens,
            "attention_mask": mask, "taps": taps});
        std::fs::write(folder.join("dump.json"), dump.to_string()).unwrap();
    }

    /// The report on a run, by the program in a folder.
    fn explained(self, golden: &std::path::Path) -> serde_json::Value {
        let own = golden.join("own");
        self.write(&own);
        let weights = golden.join("model.safetensors");
        let [golden, own, weights] = [golden, &own, &weights].map(|path| path.to_string_lossy().into_owned());
        json(&["explain", &golden, &own, "--weights", &weights])
    }

    /// The only cause, its parameters, and the fix.
    fn named(self, golden: &std::path::Path) -> (String, serde_json::Value, String) {
        let report = self.explained(golden);
        let [finding] = &report["findings"].as_array().expect("findings")[..] else { panic!("{report:#}") };
        let fix = finding["fix"].as_str().unwrap_or_default().to_owned();
        (finding["cause"].as_str().unwrap_or_default().to_owned(), finding["params"].clone(), fix)
    }
}

/// Unmasked keys of padding are a fault of the scores, and of no tap computed from them.
#[test]
fn keys_of_padding_that_are_seen_are_a_fault_of_the_scores_of_a_program() {
    let golden = tempfile::tempdir().unwrap();
    Attention::RIGHT.program(golden.path());
    let own = golden.path().join("own");
    let weights = golden.path().join("model.safetensors");
    let paths = [golden.path(), &own, &weights].map(|path| path.to_string_lossy().into_owned());
    let run = |command: &str, sees: bool, scores: bool| {
        Attention::RIGHT.write_padded(&own, sees, scores);
        json(&[command, &paths[0], &paths[1], "--weights", &paths[2]])
    };
    let wrong = |report: &serde_json::Value| -> Vec<String> {
        let taps = report["taps"].as_array().expect("taps").iter().filter(|tap| tap["status"] == "diverged");
        taps.map(|tap| tap["tap"].as_str().unwrap().to_owned()).collect()
    };
    let right = run("explain", false, true);
    assert_eq!(right["verdict"], "parity", "{right:#}");
    // Unmasked padding would be seen.
    assert!(right["not_testable"].as_array().is_none_or(|ids| !ids.contains(&"mask-omitted".into())), "{right:#}");
    assert_eq!(wrong(&run("replay", true, true)), ["layers.0.scores"]);
    let report = run("explain", true, true);
    let [finding] = &report["findings"].as_array().expect("findings")[..] else { panic!("{report:#}") };
    assert_eq!((&finding["cause"], &finding["tap"]), (&"mask-omitted".into(), &"layers.0.scores".into()), "{report:#}");
    // Without the scores, nothing is reported about taps computed from the probabilities of these keys.
    assert_eq!(wrong(&run("replay", true, false)), ["layers.0.probs"]);
}

/// A run with another number of experts is reported; nothing that its choice reaches is blamed.
#[test]
fn another_number_of_experts_is_said_and_nothing_behind_it_is_blamed() {
    use serde_json::json;
    let golden = tempfile::tempdir().unwrap();
    let (x, w) = (numbers(24, 21), numbers(16, 22));
    let router = numbers(24, 23);
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let logits: Vec<f32> = x.chunks(4).flat_map(|x| router.chunks(4).map(|w| dot(x, w)).collect::<Vec<_>>()).collect();
    let run = |folder: &std::path::Path, count: usize, recorded: bool| {
        std::fs::create_dir_all(folder).unwrap();
        let (mut topk, mut out) = (Vec::new(), Vec::new());
        for row in logits.chunks(6) {
            let mut order: Vec<usize> = (0..6).collect();
            order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
            topk.extend(order[..count].iter().map(|&expert| expert as f32));
            let values: Vec<f32> = (0..2).map(|at| if at < count { row[order[at]] } else { 0.0 }).collect();
            out.extend(w.chunks(2).map(|w| dot(&values, w)));
        }
        let mut taps = vec![
            ("h0", vec![6, 4], x.clone()),
            ("layers.0.router_logits", vec![6, 6], logits.clone()),
            ("layers.0.router_topk", vec![6, count], topk),
            ("layers.0.ffn_out", vec![6, 8], out),
        ];
        taps.retain(|tap| recorded || tap.0 != "layers.0.router_topk");
        let tap = |(name, shape, values): (&str, Vec<usize>, Vec<f32>)| {
            npy(&folder.join(format!("{name}.npy")), &shape, &values);
            json!({"tap": name, "step": 0, "file": format!("{name}.npy"), "shape": shape, "dtype": "f32"})
        };
        let taps: Vec<_> = taps.into_iter().map(tap).collect();
        let dump = json!({"format": 1, "complete": true, "model": "Odd", "precision": "f32", "tokens": [1, 2, 3, 4, 5, 6], "taps": taps});
        std::fs::write(folder.join("dump.json"), dump.to_string()).unwrap();
    };
    run(golden.path(), 2, true);
    let program = json!({"version": 1, "constants": [0], "weights": {"1": "router", "2": "w"},
        "files": ["odd.py"], "scopes": [["mixture", ["forward"], 0]],
        "values": [["f32", [6, 4]], ["f32", [6, 4]], ["f32", [8, 2]], ["f32", [6, 4]], ["f32", [6, 6]], ["f32", [6, 2]],
            ["i64", [6, 2]], ["f32", [6, 8]]],
        "ops": [
            {"o": "mul.Tensor", "i": [0, {"c": 1.0}], "y": [3], "s": 0, "l": 1},
            {"o": "linear", "i": [3, 1], "y": [4], "s": 0, "l": 2},
            {"o": "topk", "i": [4, {"c": 2}], "y": [5, 6], "s": 0, "l": 3},
            {"o": "linear", "i": [5, 2], "y": [7], "s": 0, "l": 4}],
        "steps": [{"ops": [0, 4], "tokens": 6, "output": 7}],
        "taps": [{"tap": "h0", "step": 0, "op": 0, "v": 3}, {"tap": "layers.0.router_logits", "step": 0, "op": 1, "v": 4},
            {"tap": "layers.0.router_topk", "step": 0, "op": 2, "v": 6}, {"tap": "layers.0.ffn_out", "step": 0, "op": 3, "v": 7}]});
    std::fs::write(golden.path().join("program.json"), program.to_string()).unwrap();
    let bytes = |x: &[f32]| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    tensors(&golden.path().join("program.safetensors"), &[("0", "F32", vec![6, 4], bytes(&x))]);
    let weights = golden.path().join("model.safetensors");
    tensors(&weights, &[("router", "F32", vec![6, 4], bytes(&router)), ("w", "F32", vec![8, 2], bytes(&w))]);
    let own = golden.path().join("own");
    let paths = [golden.path(), &own, &weights].map(|path| path.to_string_lossy().into_owned());
    let explained = |count: usize, recorded: bool| {
        let _ = std::fs::remove_dir_all(&own);
        run(&own, count, recorded);
        json(&["explain", &paths[0], &paths[1], "--weights", &paths[2]])
    };
    assert_eq!(explained(2, true)["verdict"], "parity");
    let report = explained(1, true);
    let [finding] = &report["findings"].as_array().expect("findings")[..] else { panic!("{report:#}") };
    assert_eq!(
        (&finding["cause"], &finding["tap"]),
        (&"router-topk".into(), &"layers.0.router_topk".into()),
        "{report:#}"
    );
    assert_eq!(finding["params"]["experts"], 1);
    let taps = report["taps"].as_array().expect("taps");
    let wrong: Vec<&serde_json::Value> = taps.iter().filter(|t| t["status"] == "diverged").map(|t| &t["tap"]).collect();
    assert_eq!(wrong, ["layers.0.router_topk"], "{report:#}");
    let replayed = firstdiff(&["replay", &paths[0], &paths[1], "--weights", &paths[2]]);
    let said = in_one_line(&String::from_utf8_lossy(&replayed.stdout));
    assert!(said.contains("it chooses 1 of the experts for each token where the reference chooses 2"), "{said}");
    // A choice that was not recorded is not reported.
    let report = explained(1, false);
    assert_eq!(report["routing"], json!([]), "{report:#}");
    assert_eq!(report["findings"][0]["cause"], "router-topk", "{report:#}");
}

/// The scale of the products may be applied before them: on q, or half of it on each of both. It is not the scale where another number is beside it or behind
/// it, or where it belongs to a branch only.
#[test]
fn the_scale_of_the_products_may_stand_before_them() {
    let before = Attention { scale: 1.0, ..Attention::RIGHT };
    let cause = |right: Attention, own: Attention| {
        let folder = tempfile::tempdir().unwrap();
        right.program(folder.path());
        assert_eq!(right.explained(folder.path())["verdict"], "parity");
        own.named(folder.path())
    };
    for (of_q, said) in [(1.0, 1.0), (0.9, 0.9), (-0.35, -0.35)] {
        let (id, params, fix) = cause(before, Attention { of_q, ..before });
        assert_eq!(id, "score-scale", "{of_q}");
        assert!((params["scale"].as_f64().unwrap() - said).abs() < 1e-5, "{params}");
        assert!(fix.ends_with(": 0.35 in mul (odd.py:3)"), "{fix}");
    }
    let both = Attention { of_q: 0.6, of_k: 0.6, ..before };
    assert_eq!(cause(both, Attention { of_q: 1.0, of_k: 1.0, ..both }).0, "score-scale");
    assert_eq!(cause(both, Attention { of_q: 0.36, of_k: 0.36, ..both }).0, "score-scale");
    // One of two numbers, and it is unknown which is the scale.
    let beside = Attention { of_k: 2.0, ..before };
    assert_ne!(cause(beside, Attention { of_q: 0.9, ..beside }).0, "score-scale");
    // A multiplier of the keys, with the scale behind the products.
    let keys = Attention { of_q: 1.0, of_k: 0.7, ..Attention::RIGHT };
    assert_ne!(cause(keys, Attention { of_k: 0.9, ..keys }).0, "score-scale");
    // A factor on what is added to q.
    let branch = Attention { is_branch: true, ..before };
    assert_ne!(cause(branch, Attention { of_q: 0.9, ..branch }).0, "score-scale");
    assert_ne!(cause(branch, Attention { of_q: 1.0, ..branch }).0, "score-scale");
}

/// Operations of llama.cpp have its own names, and those of their nodes.
#[test]
fn an_operation_of_ggml_has_its_own_name_and_its_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let (t, d, golden, own) = (TOKENS, WIDTH, folder.path().join("golden"), folder.path().join("own"));
    let program = serde_json::json!({"version": 1, "constants": [], "inputs": {"1": "inp_tokens"}, "weights": {"0": "embed", "4": "q"},
        "scopes": [["embd", [], null], ["inp_scaled", [], null], ["Qcur-0", [], null]],
        "values": [["f32", [t, d]], ["i32", [t]], ["f32", [t, d]], ["f32", [t, d]], ["f32", [d, d]], ["f32", [t, d]]],
        "ops": [{"o": "ggml.GET_ROWS", "i": [0, 1], "y": [2], "s": 0},
            {"o": "ggml.SCALE", "i": [2], "y": [3], "a": {"scale": {"c": 3.0}, "bias": {"c": 0.0}}, "s": 1},
            {"o": "ggml.MUL_MAT", "i": [4, 3], "y": [5], "s": 2}],
        "steps": [{"ops": [0, 3], "tokens": t, "output": 5}],
        "taps": [{"tap": "h0", "step": 0, "op": 1, "v": 3}, {"tap": "layers.0.q", "step": 0, "op": 2, "v": 5}]});
    let (embed, q) = (numbers(t * d, 1), numbers(d * d, 2));
    let write = |folder: &std::path::Path, scale: f32, twice: f32| {
        std::fs::create_dir_all(folder).unwrap();
        let h0: Vec<f32> = embed.iter().map(|x| scale * x).collect();
        let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let made: Vec<f32> =
            h0.chunks(d).flat_map(|x| q.chunks(d).map(|w| twice * dot(x, w) as f32).collect::<Vec<_>>()).collect();
        npy(&folder.join("h0.npy"), &[t, d], &h0);
        npy(&folder.join("layers.0.q.npy"), &[t, d], &made);
        let tap = |tap: &str| serde_json::json!({"tap": tap, "step": 0, "file": format!("{tap}.npy"), "shape": [t, d], "dtype": "f32"});
        let tokens: Vec<usize> = (0..t).collect();
        let dump = serde_json::json!({"format": 1, "complete": true, "model": "Odd", "precision": "f32", "tokens": tokens,
            "taps": [tap("h0"), tap("layers.0.q")]});
        std::fs::write(folder.join("dump.json"), dump.to_string()).unwrap();
    };
    write(&golden, 3.0, 1.0);
    std::fs::write(golden.join("program.json"), program.to_string()).unwrap();
    let ids: Vec<u8> = (0..t as i32).flat_map(i32::to_le_bytes).collect();
    tensors(&golden.join("program.safetensors"), &[("1", "I32", vec![t], ids)]);
    let weights = golden.join("model.safetensors");
    safetensors(&weights, &[("embed", &[t, d], &embed), ("q", &[d, d], &q)], &[]);
    let [golden, weights] = [&golden, &weights].map(|path| path.to_string_lossy().into_owned());
    let explained = |scale: f32, twice: f32| {
        write(&own, scale, twice);
        json(&["explain", &golden, &own.to_string_lossy(), "--weights", &weights])
    };
    assert_eq!(explained(3.0, 1.0)["verdict"], "parity");
    let report = explained(4.0, 1.0);
    let finding = &report["findings"][0];
    assert_eq!(
        (&finding["cause"], &finding["op"]),
        (&"embed-multiplier".into(), &"SCALE (inp_scaled)".into()),
        "{report:#}"
    );
    let report = explained(3.0, 2.0);
    assert_eq!(report["findings"][0]["op"], "MUL_MAT (Qcur-0)", "{report:#}");
}

/// A factor is named after its operation, and the fix gives the reference's own number and line.
#[test]
fn a_factor_has_the_name_of_its_operation() {
    let folder = tempfile::tempdir().unwrap();
    let right = Attention::RIGHT;
    right.program(folder.path());
    assert_eq!(right.explained(folder.path())["verdict"], "parity");
    let named = |own: Attention| own.named(folder.path());
    // On the way to the products it belongs to q, whatever q becomes.
    let (cause, _, fix) = named(Attention { of_q: 1.0, ..right });
    assert_eq!((&*cause, &*fix), ("operation-omitted", "carry it out: 0.35 in mul (odd.py:3)"));
    let (cause, params, fix) = named(Attention { of_q: 0.9, ..right });
    assert_eq!((&*cause, &params["operation"]), ("number-differs", &"mul (odd.py:3)".into()));
    assert_eq!(fix, "take the reference's own number: 0.35 in mul (odd.py:3)");
    // Between the products and their softmax it is the scale.
    let (cause, _, fix) = named(Attention { scale: 0.8, ..right });
    assert_eq!(cause, "score-scale");
    assert!(fix.ends_with(": 0.5 in mul (odd.py:6)"), "{fix}");
    // A bias is not a mask, and a mask that fills keeps it.
    let (cause, params, _) = named(Attention { bias: 0.0, ..right });
    assert_eq!((&*cause, params["factor"].as_f64()), ("position-bias", Some(0.0)));
    let (cause, params, _) = named(Attention { fill: -1.0, ..right });
    assert_eq!((&*cause, params["fill"].as_f64()), ("mask-fill", Some(-1.0)));
}

/// A window that goes both ways is as long as the config's number says, and nothing is said of causal models alone.
#[test]
fn a_window_of_a_model_that_is_not_causal_has_keys_each_way() {
    let folder = tempfile::tempdir().unwrap();
    let right = Attention { bias: 0.0, each_way: Some(2), ..Attention::RIGHT };
    right.program(folder.path());
    assert_eq!(right.explained(folder.path())["verdict"], "parity");
    for each_way in [1, 3] {
        let (cause, params, fix) = Attention { each_way: Some(each_way), ..right }.named(folder.path());
        assert_eq!((&*cause, &params), ("window-size", &serde_json::json!({"each_way": each_way})));
        assert!(fix.contains("half as many each way"), "{fix}");
    }
    let (cause, _, fix) = Attention { each_way: Some(TOKENS), ..right }.named(folder.path());
    assert_eq!(cause, "mask-omitted");
    assert!(fix.starts_with("hide what the reference hides") && fix.contains("in a causal model"), "{fix}");
}

/// Tensors of f32, and of token ids.
fn safetensors(file: &std::path::Path, floats: &[(&str, &[usize], &[f32])], ids: &[(&str, &[i64])]) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    let mut add = |name: &str, dtype: &str, shape: serde_json::Value, bytes: Vec<u8>| {
        let from = data.len();
        data.extend(bytes);
        let value = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [from, data.len()]});
        header.insert(name.to_owned(), value);
    };
    for (name, shape, values) in floats {
        add(name, "F32", serde_json::json!(shape), values.iter().flat_map(|x| x.to_le_bytes()).collect());
    }
    for (name, ids) in ids {
        add(name, "I64", serde_json::json!([1, ids.len()]), ids.iter().flat_map(|x| x.to_le_bytes()).collect());
    }
    let header = serde_json::Value::Object(header).to_string();
    let out = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::write(file, out).unwrap();
}

#[test]
fn the_row_of_a_position_table_that_was_added_is_looked_up() {
    const WIDTH: usize = 16;
    let folder = tempfile::tempdir().unwrap();
    let noise = |count: usize, seed: f32| -> Vec<f32> {
        (0..count).map(|i| ((i as f32 * 12.9898 + seed).sin() * 43758.547).fract()).collect()
    };
    let (tokens, positions) = (noise(40 * WIDTH, 1.0), noise(64 * WIDTH, 2.0));
    let ids = [1i64, 17, 32, 9, 3, 25, 7, 18, 12];
    let h0 = |row: &dyn Fn(usize) -> usize| -> Vec<f32> {
        let value = |i: usize| {
            let (at, column) = (i / WIDTH, i % WIDTH);
            tokens[ids[at] as usize * WIDTH + column] + positions[row(at) * WIDTH + column]
        };
        (0..ids.len() * WIDTH).map(value).collect()
    };
    let written = |name: &str, values: &[f32]| {
        let recorder = firstdiff_trace::Recorder::create(folder.path().join(name)).unwrap();
        recorder.tokens(&ids);
        recorder.record("h0".parse::<firstdiff_trace::Tap>().unwrap(), &[9, WIDTH], values).unwrap();
        recorder.finish().unwrap();
        folder.path().join(name).to_string_lossy().into_owned()
    };
    let golden = written("golden", &h0(&|at| at));
    let path = |name: &str| std::path::Path::new(&golden).join(name);
    let program = serde_json::json!({
        "version": 1, "source": "torch 2.9.1", "model": "Learned", "weights": {"0": "wte.weight", "1": "wpe.weight"}, "constants": [],
        "inputs": {"2": "input_ids"}, "files": ["learned.py"], "scopes": [["", [], 0]], "steps": [{"ops": [0, 4], "tokens": 9, "output": 6}],
        "taps": [{"tap": "h0", "step": 0, "op": 3, "v": {"v": [6, [9, WIDTH], [WIDTH, 1]]}}],
        "values": [["f32", [40, WIDTH]], ["f32", [64, WIDTH]], ["i64", [1, 9]], ["f32", [1, 9, WIDTH]], ["i64", [9]], ["f32", [1, 9, WIDTH]], ["f32", [1, 9, WIDTH]]],
        "ops": [
            {"o": "embedding", "i": [0, 2], "y": [3], "s": 0, "l": 1}, {"o": "arange.start", "i": [{"c": 0}, {"c": 9}], "y": [4], "s": 0, "l": 2},
            {"o": "embedding", "i": [1, {"v": [4, [1, 9], [9, 1]]}], "y": [5], "s": 0, "l": 3}, {"o": "add.Tensor", "i": [3, 5], "y": [6], "s": 0, "l": 4}
        ]
    });
    std::fs::write(path("program.json"), program.to_string()).unwrap();
    safetensors(&path("program.safetensors"), &[], &[("2", &ids)]);
    let weights = folder.path().join("model.safetensors");
    let tables: [(&str, &[usize], &[f32]); 2] =
        [("wte.weight", &[40, WIDTH], &tokens), ("wpe.weight", &[64, WIDTH], &positions)];
    safetensors(&weights, &tables, &[]);
    let weights = weights.to_string_lossy().into_owned();
    let explained =
        |name: &str, values: Vec<f32>| json(&["explain", &golden, &written(name, &values), "--weights", &weights]);
    // From h0 alone nothing is reported to be right.
    assert_ne!(explained("right", h0(&|at| at))["verdict"], "diverged");
    for by in [1, 3, 7, 40] {
        let report = explained(&format!("off{by}"), h0(&|at| at + by));
        let finding = &report["findings"][0];
        assert_eq!(
            (&finding["cause"], &finding["params"]["offset"]),
            (&"position-embedding-offset".into(), &by.into()),
            "{report}"
        );
    }
    // Rows in no order are not an offset.
    let report = explained("other", h0(&|at| (at * 7 + 5) % 64));
    assert!(report["findings"][0]["cause"].is_null(), "{report}");
}

/// Token types are no token ids, and nothing is said of those.
#[test]
fn other_token_types_are_no_other_tokens() {
    const WIDTH: usize = 16;
    let folder = tempfile::tempdir().unwrap();
    let (words, kinds) = (numbers(40 * WIDTH, 1), numbers(2 * WIDTH, 2));
    let (ids, types) = ([1i64, 17, 32, 9, 3, 25, 7, 18, 12], [0i64, 0, 0, 0, 1, 1, 1, 1, 1]);
    let rows = |table: &[f32], ids: &[i64]| -> Vec<f32> {
        ids.iter().flat_map(|id| table[*id as usize * WIDTH..][..WIDTH].to_vec()).collect()
    };
    let written = |name: &str, types: &[i64], alone: bool| {
        let recorder = firstdiff_trace::Recorder::create(folder.path().join(name)).unwrap();
        recorder.tokens(&ids);
        let (word, kind) = (rows(&words, &ids), rows(&kinds, types));
        let sum: Vec<f32> = word.iter().zip(&kind).map(|(a, b)| a + b).collect();
        for (tap, values) in [("embeddings/token_type_embeddings", &kind), ("h0", &sum)] {
            if !alone || tap == "h0" {
                recorder.record(firstdiff_trace::Tap::named(tap), &[9, WIDTH], values).unwrap();
            }
        }
        recorder.finish().unwrap();
        folder.path().join(name).to_string_lossy().into_owned()
    };
    let golden = written("golden", &types, false);
    let path = |name: &str| std::path::Path::new(&golden).join(name);
    let view = |buffer: usize| serde_json::json!({"v": [buffer, [9, WIDTH], [WIDTH, 1]]});
    let program = serde_json::json!({
        "version": 1, "model": "Typed", "weights": {"0": "words.weight", "1": "types.weight"}, "constants": [],
        "inputs": {"2": "input_ids", "3": "token_type_ids"}, "files": ["typed.py"], "scopes": [["", [], 0]],
        "steps": [{"ops": [0, 3], "tokens": 9, "output": 6}],
        "taps": [{"tap": "embeddings/token_type_embeddings", "step": 0, "op": 1, "v": view(5)}, {"tap": "h0", "step": 0, "op": 2, "v": view(6)}],
        "values": [["f32", [40, WIDTH]], ["f32", [2, WIDTH]], ["i64", [1, 9]], ["i64", [1, 9]], ["f32", [1, 9, WIDTH]], ["f32", [1, 9, WIDTH]], ["f32", [1, 9, WIDTH]]],
        "ops": [{"o": "embedding", "i": [0, 2], "y": [4], "s": 0, "l": 1}, {"o": "embedding", "i": [1, 3], "y": [5], "s": 0, "l": 2},
            {"o": "add.Tensor", "i": [4, 5], "y": [6], "s": 0, "l": 3}]
    });
    std::fs::write(path("program.json"), program.to_string()).unwrap();
    safetensors(&path("program.safetensors"), &[], &[("2", &ids), ("3", &types)]);
    let weights = folder.path().join("model.safetensors");
    let tables: [(&str, &[usize], &[f32]); 2] =
        [("words.weight", &[40, WIDTH], &words), ("types.weight", &[2, WIDTH], &kinds)];
    safetensors(&weights, &tables, &[]);
    let weights = weights.to_string_lossy().into_owned();
    let explained = |name: &str, types: [i64; 9], alone: bool| {
        json(&["explain", &golden, &written(name, &types, alone), "--weights", &weights])
    };
    assert_eq!(explained("right", types, false)["verdict"], "parity");
    for (name, other, alone) in
        [("none", [0; 9], false), ("none in h0", [0; 9], true), ("other", [0, 0, 1, 1, 1, 1, 1, 1, 0], false)]
    {
        let report = explained(name, other, alone);
        let [finding] = &report["findings"].as_array().expect("findings")[..] else { panic!("{report:#}") };
        assert_eq!(finding["cause"], "token-types-differ", "{name}: {finding:#}");
        assert!(finding["fix"].as_str().unwrap().contains("token_type_ids"), "{finding:#}");
        let others = finding["alternatives"].as_array().expect("alternatives");
        assert!(!others.iter().any(|other| other == "tokens-differ"), "{finding:#}");
    }
}

/// Scores of keys that the program has not, of which nothing was made, as the probabilities show.
#[test]
fn keys_that_do_not_exist_are_judged_alike_by_all_commands() {
    let folder = tempfile::tempdir().unwrap();
    let golden = fixtures().join("programs/attention/golden");
    let weights = fixtures().join("programs/attention/model.safetensors");
    let dump = firstdiff_trace::Dump::open(&golden).unwrap();
    type Change = fn(&str, Vec<usize>, Vec<f32>) -> (Vec<usize>, Vec<f32>);
    let codes = |name: &str, change: Change| {
        let own = folder.path().join(name);
        let recorder = firstdiff_trace::Recorder::create(&own).unwrap();
        recorder.tokens(dump.meta().tokens.as_ref().unwrap());
        for entry in dump.entries() {
            let values = dump.read(entry).unwrap().values().to_f64().iter().map(|&x| x as f32).collect();
            let (shape, values) = change(&entry.tap.to_string(), entry.shape.clone(), values);
            recorder.record(entry.tap, &shape, &values).unwrap();
        }
        recorder.finish().unwrap();
        let [golden, own, weights] = [&golden, &own, &weights].map(|path| path.to_string_lossy().into_owned());
        let of = |command: &str| firstdiff(&[command, &golden, &own, "--weights", &weights]).status.code();
        [firstdiff(&["compare", &golden, &own]).status.code(), of("replay"), of("explain")]
    };
    // The probabilities are right: nothing was computed from these scores.
    let unread = |tap: &str, mut shape: Vec<usize>, values: Vec<f32>| {
        let Some(keys) = shape.last_mut().filter(|_| tap.ends_with(".scores")) else { return (shape, values) };
        let wider = values.chunks(*keys).flat_map(|row| [row, &[50.0; 5]].concat()).collect();
        *keys += 5;
        (shape, wider)
    };
    assert_eq!(codes("unread", unread), [Some(0); 3]);
}

/// What is left out up to a tap may be done behind it: that it is not is known where what reads the tap is right.
#[test]
fn an_operation_that_is_left_out_up_to_a_tap_may_be_done_behind_it() {
    use serde_json::json;
    let (x, b) = (numbers(8, 31), numbers(2, 32));
    let program = json!({"version": 1, "constants": [0], "weights": {"1": "b"}, "files": ["odd.py"], "scopes": [["ssm", ["forward"], 0]],
        "values": [["f32", [4, 2]], ["f32", [2]], ["f32", [4, 2]], ["f32", [4, 2]], ["f32", [4, 2]], ["f32", [4, 2]]],
        "ops": [{"o": "mul.Tensor", "i": [0, {"c": 1.0}], "y": [2], "s": 0, "l": 1}, {"o": "add.Tensor", "i": [2, 1], "y": [3], "s": 0, "l": 2},
            {"o": "softplus", "i": [3], "y": [4], "s": 0, "l": 3}, {"o": "mul.Tensor", "i": [4, {"c": 3.0}], "y": [5], "s": 0, "l": 4}],
        "steps": [{"ops": [0, 4], "tokens": 4, "output": 5}],
        "taps": [{"tap": "h0", "step": 0, "op": 0, "v": 2}, {"tap": "layers.0.mixer_dt", "step": 0, "op": 2, "v": 4},
            {"tap": "layers.0.h", "step": 0, "op": 3, "v": 5}]});
    let folder = tempfile::tempdir().unwrap();
    let plus = |x: &[f32], by: f32| -> Vec<f32> { x.iter().zip(b.iter().cycle()).map(|(x, b)| x + by * b).collect() };
    let softplus = |x: Vec<f32>| -> Vec<f32> { x.iter().map(|x| x.exp().ln_1p()).collect() };
    let run = |name: &str, dt: &[f32], h: &[f32]| {
        let path = folder.path().join(name);
        std::fs::create_dir(&path).unwrap();
        let h = h.iter().map(|x| 3.0 * x).collect();
        of_a_sum(&path, &[("h0", x.clone()), ("layers.0.mixer_dt", dt.to_vec()), ("layers.0.h", h)]);
        path
    };
    let right = softplus(plus(&x, 1.0));
    let golden = run("golden", &right, &right);
    std::fs::write(golden.join("program.json"), program.to_string()).unwrap();
    stored(&golden.join("program.safetensors"), "0", &[4, 2], &x);
    let weights = folder.path().join("w.safetensors");
    stored(&weights, "b", &[2], &b);
    let without = softplus(x.clone());
    let note = |name: &str, dt: &[f32], h: &[f32]| -> (serde_json::Value, serde_json::Value) {
        let own = run(name, dt, h);
        let paths = [&golden, &own, &weights].map(|path| path.to_string_lossy().into_owned());
        let report = json(&["explain", &paths[0], &paths[1], "--weights", &paths[2]]);
        (report["findings"][0]["cause"].clone(), report["findings"][0]["note"].clone())
    };
    let (cause, note_of_behind) = note("behind", &without, &plus(&without, 1.0));
    assert_eq!(cause, "operation-omitted");
    assert!(
        note_of_behind.as_str().is_some_and(|note| note.starts_with("seen at layers.0.mixer_dt alone")),
        "{note_of_behind}"
    );
    assert_eq!(note("nowhere", &without, &without), ("operation-omitted".into(), json!(null)));
}

/// A mistake of which a form or a number was not tried is not listed as tried.
#[test]
fn what_was_not_tried_for_want_of_time_is_not_listed_as_tried() {
    let folder = tempfile::tempdir().unwrap();
    let right = Attention::RIGHT;
    right.program(folder.path());
    let own = folder.path().join("own");
    Attention { scale: 0.8, ..right }.write(&own);
    let paths =
        [folder.path(), &own, &folder.path().join("model.safetensors")].map(|path| path.to_string_lossy().into_owned());
    let report = json(&["explain", &paths[0], &paths[1], "--weights", &paths[2], "--seconds", "0"]);
    let finding = &report["findings"][0];
    assert!(finding["cause"].is_null() && finding["untried"].as_u64().unwrap() > 1, "{finding:#}");
    let tried = finding["tried"].as_array().unwrap();
    assert!(tried.iter().all(|tried| tried["cause"] != "score-scale"), "{finding:#}");
}

/// One row of few sums in 16 bits: each may be off by what rounding makes of its terms, however little they add up to, and by no more.
#[test]
fn a_row_of_sums_that_nearly_cancel_is_held_to_its_terms() {
    use serde_json::json;
    // Numbers of bf16, so that the right value is exact but for the sum's own rounding.
    const OUT: usize = 64;
    let x: Vec<f32> = (0..8).map(|i| 1.0 + 0.125 * i as f32).collect();
    let w: Vec<f32> = (0..8 * OUT).map(|i| [1.0, -1.0][i % 2] * [1.0, 1.25, 0.75, 1.5, -1.75][i / 8 % 5]).collect();
    let due: Vec<f32> = w.chunks(8).map(|w| w.iter().zip(&x).map(|(w, x)| w * x).sum()).collect();
    let terms: Vec<f32> =
        w.chunks(8).map(|w| w.iter().zip(&x).map(|(w, x)| (w * x).powi(2)).sum::<f32>().sqrt()).collect();
    let program = json!({"version": 1, "constants": [0], "weights": {"1": "w"}, "files": ["odd.py"], "scopes": [["router", ["forward"], 0]],
        "values": [["bf16", [1, 8]], ["bf16", [OUT, 8]], ["bf16", [1, 8]], ["bf16", [1, OUT]]],
        "ops": [{"o": "mul.Tensor", "i": [0, {"c": 1.0}], "y": [2], "s": 0, "l": 1}, {"o": "linear", "i": [2, 1], "y": [3], "s": 0, "l": 2}],
        "steps": [{"ops": [0, 2], "tokens": 1, "output": 3}],
        "taps": [{"tap": "h0", "step": 0, "op": 0, "v": 2}, {"tap": "layers.0.router_logits", "step": 0, "op": 1, "v": 3}]});
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &std::path::Path, logits: &[f32]| {
        std::fs::create_dir_all(path).unwrap();
        let tap = |(name, values): (&str, &[f32])| {
            npy(&path.join(format!("{name}.npy")), &[1, values.len()], values);
            json!({"tap": name, "step": 0, "file": format!("{name}.npy"), "shape": [1, values.len()], "dtype": "f32"})
        };
        let taps = [("h0", &x[..]), ("layers.0.router_logits", logits)].map(tap);
        let dump =
            json!({"format": 1, "complete": true, "model": "Odd", "precision": "bf16", "tokens": [1], "taps": taps});
        std::fs::write(path.join("dump.json"), dump.to_string()).unwrap();
    };
    write(folder.path(), &due);
    std::fs::write(folder.path().join("program.json"), program.to_string()).unwrap();
    let half =
        |values: &[f32]| values.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect::<Vec<u8>>();
    tensors(&folder.path().join("program.safetensors"), &[("0", "BF16", vec![1, 8], half(&x))]);
    let weights = folder.path().join("model.safetensors");
    tensors(&weights, &[("w", "BF16", vec![OUT, 8], half(&w))]);
    let own = folder.path().join("own");
    let replayed = |logits: &[f32]| {
        write(&own, logits);
        let paths = [folder.path(), &own, &weights].map(|path| path.to_string_lossy().into_owned());
        firstdiff(&["replay", &paths[0], &paths[1], "--weights", &paths[2]]).status.code()
    };
    let code = |times: f32| {
        let sign = |at: usize| if (at * 37 % 101).is_multiple_of(2) { 1.0 } else { -1.0 };
        let off = |(at, (due, terms)): (usize, (&f32, &f32))| due + sign(at) * times * terms / 512.0;
        replayed(&due.iter().zip(&terms).enumerate().map(off).collect::<Vec<f32>>())
    };
    assert_eq!([0.0, 8.0].map(&code), [Some(0), Some(1)]);
    // At the edge nobody can tell; a right run is not accused.
    assert_ne!(code(1.0), Some(1));
    // A factor is none of what rounding does to the terms, however small beside them.
    for factor in [1.03, 0.96] {
        assert_eq!(replayed(&due.iter().map(|x| factor * x).collect::<Vec<f32>>()), Some(1), "{factor}");
    }
}

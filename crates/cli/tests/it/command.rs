//! Checks the command's contract: exit codes, one-line errors, JSON keys, and the screens.

use std::fs;
use std::path::Path;
use std::process::Command;

use firstdiff::trace::{Dump, Meta, Recorder, SequenceTokens};
use serde_json::Value;

use crate::common::{firstdiff, fixtures, in_one_line, json, screen};

/// Exit code 2, nothing on standard output, and one line that holds every word.
#[track_caller]
pub(crate) fn refuses(args: &[&str], words: &[&str]) {
    let output = firstdiff(args);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    for word in words {
        assert!(error.contains(word), "'{word}' is not in: {error}");
    }
}

pub(crate) const GOLDEN: &str = "golden/llama-torch";
pub(crate) const FAULTY: &str = "faulty/llama-rope-pairing";

#[test]
fn the_screens() {
    insta::assert_snapshot!("diverged", screen(&["compare", GOLDEN, FAULTY]));
    insta::assert_snapshot!(
        "range",
        screen(&["compare", "golden/minimind-torch.npz", "faulty/minimind-layer-skipped-layer1.npz"])
    );
    insta::assert_snapshot!("replay", screen(&["replay", "models/llama", FAULTY]));
    insta::assert_snapshot!("explain", screen(&["explain", "models/qwen2", "faulty/qwen2-bias-omitted.npz"]));
    insta::assert_snapshot!("weights", screen(&["weights", "models/llama", "gguf/llama-f16.gguf"]));
    insta::assert_snapshot!("weights_wrong", screen(&["weights", "models/llama", "models/mistral"]));
    insta::assert_snapshot!("decode", screen(&["compare", GOLDEN, "faulty/llama-kv-cache-shift.npz"]));
}

#[test]
fn exit_codes() {
    assert_eq!(firstdiff(&["compare", GOLDEN, GOLDEN]).status.code(), Some(0));
    assert_eq!(firstdiff(&["compare", GOLDEN, "golden/llama-llama-cpp.npz"]).status.code(), Some(0));
    assert_eq!(firstdiff(&["compare", GOLDEN, FAULTY]).status.code(), Some(1));
    assert_eq!(firstdiff(&["compare", GOLDEN]).status.code(), Some(2));
    assert_eq!(firstdiff(&["compare", GOLDEN, FAULTY, "--profile", "f8"]).status.code(), Some(2));
    assert_eq!(firstdiff(&["replay", "models/llama", GOLDEN]).status.code(), Some(0));
    assert_eq!(firstdiff(&["replay", "models/llama", FAULTY]).status.code(), Some(1));
    assert_eq!(firstdiff(&["explain", "models/llama", GOLDEN]).status.code(), Some(0));
    assert_eq!(firstdiff(&["explain", "models/llama", FAULTY]).status.code(), Some(1));
    assert_eq!(firstdiff(&["weights", "models/qwen2", "gguf/qwen2-f32.gguf"]).status.code(), Some(0));
    assert_eq!(firstdiff(&["weights", "models/llama", "models/mistral"]).status.code(), Some(1));
    assert_eq!(firstdiff(&["--help"]).status.code(), Some(0));
}

#[test]
fn what_is_ruled_out_is_so_in_the_forms_that_were_tried() {
    let folder = tempfile::tempdir().unwrap();
    let golden = Dump::open(fixtures().join(GOLDEN)).unwrap();
    let recorder = Recorder::create(folder.path()).unwrap();
    recorder.describe(|meta| *meta = Meta { taps: None, decode_tokens: None, ..golden.meta().clone() });
    for entry in golden.entries().iter().filter(|entry| entry.step == 0) {
        let mut values: Vec<f32> = golden.read(entry).unwrap().values().to_f64().iter().map(|x| *x as f32).collect();
        if entry.tap.to_string() == "logits" {
            // An error that no mistake causes.
            values.iter_mut().enumerate().for_each(|(i, x)| *x += 0.3 * ((i * i % 97) as f32 / 97.0 - 0.5));
        }
        recorder.record(entry.tap, &entry.shape, &values).unwrap();
    }
    recorder.finish().unwrap();
    let out = firstdiff(&["explain", "models/llama", &folder.path().to_string_lossy()]);
    let words = in_one_line(&String::from_utf8_lossy(&out.stdout));
    assert!(words.contains("none of these alone reproduces it, in the forms and places tried here: "), "{words}");
}

#[test]
fn bad_input_is_one_line_and_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    refuses(&["compare", GOLDEN, "nowhere"], &["nowhere"]);
    refuses(&["compare", "models/llama", GOLDEN], &["models/llama", "firstdiff dump"]);
    fs::create_dir(at("raw")).unwrap();
    fs::write(at("raw/h0.npy"), [0u8; 64]).unwrap();
    refuses(&["compare", GOLDEN, &at("raw")], &["h0: shape [16]"]);
    fs::create_dir(at("cut")).unwrap();
    let whole = fs::read(fixtures().join(GOLDEN).join("logits.npy")).unwrap();
    fs::write(at("cut/logits.npy"), &whole[..whole.len() - 1]).unwrap();
    refuses(&["compare", GOLDEN, &at("cut")], &["logits.npy", "bytes"]);
    fs::create_dir(at("other")).unwrap();
    fs::write(at("other/what\u{1b}[31m.npy"), &whole).unwrap();
    refuses(&["compare", GOLDEN, &at("other")], &["share no tap"]);
    refuses(&["dump", "golden/llama-torch", "-o", &at("out"), "--tokens", "1"], &["config.json"]);
    refuses(&["dump", "models/llama", "-o", &at("out"), "--tokens", "1,9999"], &["9999"]);
    refuses(&["dump", "models/llama", "-o", &at("out"), "--tokens", "1", "--taps", "layers.9.*"], &["layers.9"]);
    refuses(&["replay", "golden/llama-torch", GOLDEN], &["config.json"]);
    refuses(&["explain", "models/llama", FAULTY, "--only", "gremlins"], &["--only gremlins", "rope-pairing"]);
    refuses(&["replay", "models/llama", "models/llama"], &["models/llama", "not a dump"]);
    refuses(&["weights", "models/llama", GOLDEN], &["llama-torch", "holds no weights"]);
    refuses(&["weights", "models/llama", "nowhere.gguf"], &["nowhere.gguf"]);
    fs::write(at("cut.gguf"), &fs::read(fixtures().join("gguf/llama-f16.gguf")).unwrap()[..5000]).unwrap();
    refuses(&["weights", "models/llama", &at("cut.gguf")], &["cut.gguf", "are not in the file"]);
    fs::write(at("x.pt"), b"PK\x03\x04").unwrap();
    refuses(&["weights", "models/llama", &at("x.pt")], &["x.pt", "torch_to_safetensors.py"]);
    assert!(!Path::new(&at("out")).exists(), "nothing half-written");
    assert_eq!(
        fs::read_dir(folder.path())
            .unwrap()
            .filter(|e| e.as_ref().unwrap().path().to_string_lossy().ends_with("tmp"))
            .count(),
        0
    );
    refuses(&["gate", GOLDEN, GOLDEN, "--baseline", &at("none")], &["none", "--update"]);
    fs::write(at("bad"), "h0 nonsense\n").unwrap();
    refuses(&["gate", GOLDEN, GOLDEN, "--baseline", &at("bad")], &["bad", "line 1"]);
}

#[test]
fn every_level_of_instructions_gives_the_same_report() {
    let run = |level: &str, args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_firstdiff"));
        command.args(args).env("FIRSTDIFF_SIMD", level).current_dir(fixtures()).output().unwrap()
    };
    for args in [
        &["compare", GOLDEN, FAULTY, "--json", "-"][..],
        &["replay", "models/llama", FAULTY, "--json", "-"],
        &["replay", "gguf/llama-f16.gguf", GOLDEN, "--json", "-"],
    ] {
        let usual = firstdiff(args);
        let plain = run("scalar", args);
        assert_eq!(usual.status.code(), plain.status.code(), "{}", String::from_utf8_lossy(&plain.stderr));
        assert_eq!(usual.stdout, plain.stdout, "{args:?}");
    }
    crate::common::refused(&run("sse9", &["compare", GOLDEN, GOLDEN]), &["FIRSTDIFF_SIMD=sse9", "scalar"]);
}

#[test]
fn json_of_replay_and_weights() {
    let report = json(&["replay", "models/llama", FAULTY]);
    assert_eq!((&report["command"], &report["verdict"]), (&"replay".into(), &"diverged".into()));
    let finding = &report["findings"][0];
    assert_eq!((&finding["tap"], &finding["op"]), (&"layers.0.q_rope".into(), &"rope".into()));
    for key in ["layers", "cause", "params", "match", "residual_nmse", "alternatives", "note"] {
        assert!(finding.get(key).is_some(), "{key}");
    }
    for tap in report["taps"].as_array().unwrap() {
        for key in ["tap", "status", "reason", "nmse", "rmse", "correlation", "max_abs_diff", "max_at", "allowed_nmse"]
        {
            assert!(tap.get(key).is_some(), "{key}");
        }
    }
    let report = json(&["weights", "models/llama", "gguf/llama-f16.gguf"]);
    assert_eq!((&report["command"], &report["verdict"]), (&"weights".into(), &"parity".into()));
    assert_eq!(report["findings"].as_array().map(Vec::len), Some(0));
}

#[test]
fn json_of_explain() {
    let report = json(&["explain", "models/llama", FAULTY]);
    assert_eq!((&report["command"], &report["verdict"]), (&"explain".into(), &"diverged".into()));
    let finding = &report["findings"][0];
    assert_eq!(
        (&finding["tap"], &finding["op"], &finding["cause"], &finding["match"]),
        (&"layers.0.q_rope".into(), &"rope".into(), &"rope-pairing".into(), &"reproduced".into())
    );
    assert_eq!(finding["layers"], serde_json::json!([0, 1]));
    for key in ["params", "residual_nmse", "alternatives", "note"] {
        assert!(finding.get(key).is_some(), "{key}");
    }
    assert!(report["taps"].as_array().is_some_and(|taps| !taps.is_empty()));
}

#[test]
fn json_has_the_contracts_keys() {
    let report = json(&["compare", GOLDEN, FAULTY]);
    assert_eq!((report["schema"].as_u64(), report["command"].as_str()), (Some(2), Some("compare")));
    assert_eq!(report["verdict"], "diverged");
    let first = &report["first_divergence"];
    assert_eq!(
        (&first["tap"], &first["layer"], &first["op"], &first["after"]),
        (&"layers.0.q_rope".into(), &0.into(), &"rope".into(), &"layers.0.q".into())
    );
    for key in ["nmse", "rmse", "correlation", "max_abs_diff"] {
        assert!(first[key].is_f64(), "{key}");
    }
    for tap in report["taps"].as_array().unwrap() {
        for key in ["tap", "status", "reason", "nmse", "rmse", "correlation", "max_abs_diff", "max_at", "allowed_nmse"]
        {
            assert!(tap.get(key).is_some(), "{key}");
        }
        assert!(
            ["exact", "rounding", "diverged", "downstream", "unchecked"].contains(&tap["status"].as_str().unwrap())
        );
    }
    assert!(report["warnings"].is_array());
    let parity = json(&["compare", GOLDEN, GOLDEN]);
    assert_eq!((&parity["verdict"], &parity["first_divergence"]), (&"parity".into(), &Value::Null));
}

#[test]
fn a_dump_of_ours_is_at_parity_with_pytorch() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("dump").to_string_lossy().into_owned();
    let meta: Value = serde_json::from_slice(&fs::read(fixtures().join(GOLDEN).join("dump.json")).unwrap()).unwrap();
    let ids = |key: &str| meta[key].as_array().unwrap().iter().map(Value::to_string).collect::<Vec<_>>().join(",");
    let (tokens, decode) = (ids("tokens"), ids("decode_tokens"));
    let args = ["dump", "models/llama", "-o", &out, "--tokens", &tokens, "--decode-tokens", &decode];
    assert_eq!(firstdiff(&args).status.code(), Some(0));
    let report = json(&["compare", GOLDEN, &out, "--model", "models/llama"]);
    assert_eq!(report["verdict"], "parity", "{}", report["warnings"]);
    let unchecked = report["taps"].as_array().unwrap().iter().filter(|t| t["status"] == "unchecked").count();
    assert_eq!(unchecked, 0);
    refuses(&args, &["already exists"]);
}

#[test]
fn the_model_gives_no_false_alarm() {
    for family in ["llama", "mistral", "qwen2", "qwen3", "minimind"] {
        let found = |name: &str| {
            ["", ".npz", ".safetensors"].map(|e| format!("{name}{e}")).into_iter().find(|n| fixtures().join(n).exists())
        };
        let reference = found(&format!("golden/{family}-torch")).unwrap();
        let right = ["right/{}-numpy", "right/{}-torch-sdpa", "golden/{}-llama-cpp"]
            .map(|name| found(&name.replace("{}", family)));
        for candidate in right.into_iter().flatten() {
            let report = json(&["compare", &reference, &candidate, "--model", &format!("models/{family}")]);
            assert_eq!(report["verdict"], "parity", "{candidate}: {}", report["first_divergence"]["reason"]);
        }
    }
}

#[test]
fn the_model_names_the_tap_of_faulty_candidates_as_well() {
    the_model_names_the_tap(7);
}

#[test]
#[ignore = "slow: cargo test -- --ignored, as .ci/run does"]
fn the_model_names_the_tap_of_every_faulty_candidate_as_well() {
    the_model_names_the_tap(1);
}

/// For one in `every` of the shipped faults.
fn the_model_names_the_tap(every: usize) {
    let index: Value = serde_json::from_slice(&fs::read(fixtures().join("faulty/index.json")).unwrap()).unwrap();
    for case in index.as_array().unwrap().iter().step_by(every) {
        let text = |key: &str| case[key].as_str().unwrap().to_owned();
        let reference = ["", ".npz", ".safetensors"].map(|e| format!("{}{e}", text("reference")));
        let reference = reference.iter().find(|r| fixtures().join(r).exists()).unwrap();
        let report = json(&["compare", reference, &text("file"), "--model", &text("model")]);
        assert_eq!(report["first_divergence"]["tap"], case["first_recorded"]["tap"], "{}", text("file"));
    }
}

#[test]
fn last_rows_alone_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("last");
    let recorder = firstdiff::trace::Recorder::create(&out).unwrap();
    let golden = firstdiff::trace::Dump::open(fixtures().join(GOLDEN)).unwrap();
    let logits = golden.find("logits".parse().unwrap(), 0).unwrap();
    let values = golden.read(logits).unwrap().values().to_f64();
    let vocab = logits.shape[1];
    let mut last: Vec<f32> = values[values.len() - vocab..].iter().map(|&v| v as f32).collect();
    recorder.record("logits", &[vocab], &last).unwrap();
    recorder.finish().unwrap();
    let out = out.to_string_lossy().into_owned();
    // One row that agrees with the last one needs no declaration; one that does not may be any row.
    let report = json(&["compare", GOLDEN, &out]);
    assert!(report["verdict"] == "parity" && report["warnings"].to_string().contains("--rows last"), "{report}");
    assert_eq!(json(&["compare", GOLDEN, &out, "--rows", "last"])["verdict"], "parity");
    fs::remove_dir_all(&out).unwrap();
    last[7] += 1.0;
    let recorder = firstdiff::trace::Recorder::create(&out).unwrap();
    recorder.record("logits", &[vocab], &last).unwrap();
    recorder.finish().unwrap();
    refuses(&["compare", GOLDEN, &out], &["logits", "[151]"]);
    assert_eq!(json(&["compare", GOLDEN, &out, "--rows", "last"])["first_divergence"]["tap"], "logits");
}

#[test]
fn the_gate_holds_its_baseline() {
    let folder = tempfile::tempdir().unwrap();
    let baseline = folder.path().join("parity.baseline").to_string_lossy().into_owned();
    let gate = |candidate: &str, update: bool| {
        let args = ["gate", GOLDEN, candidate, "--baseline", &baseline, "--update"];
        firstdiff(&args[..if update { 6 } else { 5 }]).status.code()
    };
    assert_eq!(gate(FAULTY, true), Some(2), "a diverged run is no baseline");
    assert!(!Path::new(&baseline).exists());
    assert_eq!(gate("right/llama-numpy.npz", true), Some(0));
    assert_eq!(gate("right/llama-numpy.npz", false), Some(0));
    // A run that lacks rows is not compared with what they were.
    let few = ["gate", GOLDEN, "right/llama-numpy.npz", "--baseline", &baseline, "--rows", "last"];
    assert_eq!(firstdiff(&few).status.code(), Some(1), "some positions are not all");
    assert_eq!(gate(FAULTY, false), Some(1));
    assert_eq!(gate("right/llama-torch-sdpa.npz", false), Some(1), "taps that are no longer recorded");
    // The baseline made a hundred times better than it is: the present values are worse.
    let text = fs::read_to_string(&baseline).unwrap();
    fs::write(&baseline, text.replace("e-14", "e-18").replace("e-13", "e-18")).unwrap();
    assert_eq!(gate("right/llama-numpy.npz", false), Some(1));
}

/// The golden run with another precision in its dump.json.
fn declared_as(precision: &str, folder: &Path) -> String {
    let out = folder.join(precision);
    let golden = Dump::open(fixtures().join(GOLDEN)).unwrap();
    let recorder = Recorder::create(&out).unwrap();
    let taps = None;
    recorder.describe(|meta| {
        *meta = Meta { taps, precision: Some(precision.into()), decode_tokens: None, ..golden.meta().clone() }
    });
    recorder.tokens(golden.meta().tokens.as_ref().unwrap());
    for step in 0..=3u32 {
        if let Some(before) = step.checked_sub(1) {
            recorder.next_step(golden.meta().decode_tokens.as_ref().unwrap()[before as usize]);
        }
        for entry in golden.entries().iter().filter(|entry| entry.step == step) {
            let values: Vec<f32> = golden.read(entry).unwrap().values().to_f64().iter().map(|x| *x as f32).collect();
            recorder.record(entry.tap, &entry.shape, &values).unwrap();
        }
    }
    recorder.finish().unwrap();
    out.to_string_lossy().into_owned()
}

#[test]
#[ignore = "slow: cargo test -- --ignored, as .ci/run does"]
fn a_candidate_does_not_loosen_its_own_tolerance_unseen() {
    let folder = tempfile::tempdir().unwrap();
    let loose = declared_as("bf16", folder.path());
    let baseline = folder.path().join("parity.baseline").to_string_lossy().into_owned();
    let work = folder.path().join("work").to_string_lossy().into_owned();
    let engine = format!("cp {loose}/* \"$FIRSTDIFF_DIR\"");
    let commands: [&[&str]; 6] = [
        &["compare", GOLDEN, &loose],
        &["gate", GOLDEN, &loose, "--baseline", &baseline, "--update"],
        &["gate", GOLDEN, &loose, "--baseline", &baseline],
        &["replay", "models/llama", &loose],
        &["explain", "models/llama", &loose],
        &["bisect", GOLDEN, "--run", &engine, "--work", &work, "--fresh"],
    ];
    for args in commands {
        let out = firstdiff(args);
        let words = in_one_line(&String::from_utf8_lossy(&out.stdout));
        assert_eq!(out.status.code(), Some(0), "{args:?}: {words}{}", String::from_utf8_lossy(&out.stderr));
        let mut due = vec!["in bf16, as the candidate's dump.json asks", "pass --profile f32"];
        if args[0] != "gate" {
            due.push("judged as bf16 (the candidate's dump.json alone: its tensors are stored in f32");
            due.push("parity in bf16, as the candidate's dump.json asks:");
        }
        for said in due {
            assert!(words.contains(said), "{args:?}: '{said}' is not in {words}");
        }
        let report = json(args);
        let loosened = &report["profile_loosened"];
        assert_eq!((&loosened["profile"], &loosened["tensors"]), (&"bf16".into(), &"f32".into()), "{args:?}");
        let warned =
            report["warnings"].as_array().unwrap().iter().any(|w| w.as_str().unwrap().contains("--profile f32"));
        assert!(warned, "{args:?}: {}", report["warnings"]);
    }
    // The user's own choice, values of that type, and a reference that declares the same.
    for args in [
        &["compare", GOLDEN, &loose, "--profile", "bf16"][..],
        &["compare", GOLDEN, "right/llama-torch-bf16.npz"],
        &["compare", &loose, &loose],
        &["compare", &loose, GOLDEN],
        &["replay", "models/llama", &loose, "--profile", "bf16"],
        &["replay", "models/llama", "right/llama-torch-bf16.npz"],
    ] {
        let report = json(args);
        assert_eq!((&report["verdict"], &report["profile"]), (&"parity".into(), &"bf16".into()), "{args:?}");
        assert!(report["profile_loosened"].is_null(), "{args:?}: {}", report["profile_loosened"]);
    }
}

#[test]
fn assert_parity_passes_and_fails_with_the_screen() {
    let at = |name: &str| fixtures().join(name);
    firstdiff::assert_parity!(reference: at(GOLDEN), candidate: at("right/llama-numpy.npz"));
    firstdiff::assert_parity!(reference: at(GOLDEN), candidate: at("right/llama-torch-bf16.npz"), profile: "bf16");
    let failure = std::panic::catch_unwind(|| firstdiff::assert_parity!(reference: at(GOLDEN), candidate: at(FAULTY)));
    let failure = failure.unwrap_err();
    let message = failure.downcast_ref::<String>().unwrap();
    assert!(message.contains("first divergence: layers.0.q_rope (rope)"), "{message}");
    assert!(!message.contains('\u{1b}'));
    let nowhere = || firstdiff::assert_parity!(reference: at(GOLDEN), candidate: "nowhere");
    assert!(std::panic::catch_unwind(nowhere).is_err());
}

#[test]
fn check_parity_gives_the_report_and_its_page() {
    let at = |name: &str| fixtures().join(name);
    let check = |candidate: &str| {
        firstdiff::check_parity(firstdiff::Sides { reference: at(GOLDEN), candidate: at(candidate) }, None)
    };
    let right = check("right/llama-numpy.npz").unwrap();
    assert_eq!(right.conclusion.verdict, firstdiff::report::Verdict::Parity);
    let wrong = check(FAULTY).unwrap_err();
    assert_eq!(wrong.report().unwrap().first_divergence.unwrap().tap, "layers.0.q_rope");
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    if with_the_command("command::check_parity_gives_the_report_and_its_page") {
        assert!(wrong.write_html(&page).unwrap());
        assert!(std::fs::read_to_string(&page).unwrap().contains("layers.0.q_rope"));
    }
    let unread = check("nowhere").unwrap_err();
    assert_eq!(format!("{unread:?}"), unread.to_string());
    assert!(unread.report().is_none() && !unread.write_html(&page).unwrap());
}

/// Whether this process has FIRSTDIFF_COMMAND set. If not, runs the test again in a process that has.
fn with_the_command(test: &str) -> bool {
    const NAMED: &str = "FIRSTDIFF_COMMAND";
    if std::env::var_os(NAMED).is_some() {
        return true;
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    let output = again.args([test, "--exact"]).env(NAMED, env!("CARGO_BIN_EXE_firstdiff")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}

#[test]
fn a_test_says_the_cause_where_the_command_and_the_program_are_there() {
    if !with_the_command("command::a_test_says_the_cause_where_the_command_and_the_program_are_there") {
        return;
    }
    let (folder, program) = (tempfile::tempdir().unwrap(), fixtures().join("programs/forgetting"));
    let golden = folder.path();
    for file in std::fs::read_dir(program.join("golden")).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), golden.join(file.file_name())).unwrap();
    }
    // A program names the folder of its weights.
    let text = std::fs::read(golden.join("program.json")).unwrap();
    let mut text: serde_json::Value = serde_json::from_slice(&text).unwrap();
    text["folder"] = program.to_string_lossy().into();
    std::fs::write(golden.join("program.json"), text.to_string()).unwrap();
    let wrong = program.join("wrong.npz");
    let failed = std::panic::catch_unwind(|| firstdiff::assert_parity!(reference: &golden, candidate: &wrong));
    let failure = failed.unwrap_err();
    let message = failure.downcast_ref::<String>().unwrap();
    assert!(message.contains("first divergence: ") && message.contains("\n  cause  "), "{message}");
}

#[test]
fn every_sequence_of_a_batch_is_held_to_its_reference() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for (name, factor) in [("ref", 1.0), ("right", 1.0), ("wrong", 1.5)] {
        let recorder = Recorder::create(path(name)).unwrap();
        recorder.describe(|meta| {
            let fed = |tokens: [i64; 3]| SequenceTokens { tokens: tokens.into(), decode_tokens: None };
            meta.sequences = Some(vec![fed([1, 2, 3]), fed([4, 5, 6])]);
        });
        let right: Vec<f32> = (0..48).map(|i| (i as f32 * 0.7).sin()).collect();
        let own: Vec<f32> = right.iter().enumerate().map(|(i, x)| if i < 24 { *x } else { x * factor }).collect();
        recorder.record("h0", &[2, 3, 8], &right).unwrap();
        recorder.record("logits", &[2, 3, 8], &own).unwrap();
        recorder.finish().unwrap();
    }
    let check = |candidate: &str| {
        firstdiff::check_parity(firstdiff::Sides { reference: path("ref"), candidate: path(candidate) }, None)
    };
    check("right").unwrap();
    check("wrong").unwrap_err();
}

#[test]
fn bisection_finds_the_layer_with_few_looks() {
    let open = |candidate: &str| {
        firstdiff::Session::open(&fixtures().join("golden/minimind-torch.npz"), &fixtures().join(candidate), None, None)
            .unwrap()
    };
    let found = firstdiff::bisect::bisect(&open("faulty/minimind-layer-skipped-layer1.npz")).unwrap();
    let first = found.report.first.as_ref().unwrap();
    assert_eq!(found.report.taps[first.index].place.tap.to_string(), "layers.1.h");
    assert!(found.probes.len() <= 2);
    let right = firstdiff::bisect::bisect(&open("right/minimind-numpy.npz")).unwrap();
    assert_eq!(right.report.verdict, firstdiff::compare::Verdict::Parity);
}

#[test]
fn one_thread_and_two_give_the_same_report() {
    let run = |threads: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_firstdiff"));
        command.args(["compare", GOLDEN, "right/llama-torch-bf16.npz", "--json", "-"]);
        command.env("RAYON_NUM_THREADS", threads).current_dir(fixtures()).output().unwrap().stdout
    };
    assert_eq!(run("1"), run("2"));
}

#[test]
fn logits_alone_leave_every_layer_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for (name, factor) in [("ref", 1.0), ("cand", 1.5)] {
        let recorder = Recorder::create(path(name)).unwrap();
        recorder.tokens(&[1, 2, 3]);
        let values: Vec<f32> = (0..3 * 40u8).map(|i| f32::from(i).sin() * factor).collect();
        recorder.record("logits", &[3, 40], &values).unwrap();
        recorder.finish().unwrap();
    }
    let [reference, candidate] = ["ref", "cand"].map(|name| path(name).to_string_lossy().into_owned());
    let said = in_one_line(&screen(&["compare", &reference, &candidate]));
    let due =
        "not checked in between: h0, the layers (none recorded), final_norm; the fault is in any of these or in head";
    assert!(said.contains(due), "{said}");
    let report = json(&["compare", &reference, &candidate]);
    assert_eq!(report["first_divergence"]["unrecorded_layers"][0]["after"], Value::Null);
}

/// A run of 28 layers and 40 decode steps; `value` gives the factor of a tap in a step.
fn deep_run(folder: &Path, factor: impl Fn(u32, u32, &str) -> f32) {
    const SITES: [&str; 5] = ["q", "v", "context", "h_attn", "h"];
    let recorder = Recorder::create(folder).unwrap();
    recorder.tokens(&[5, 6, 7]);
    let mut seed = 1u32;
    let mut values = |count: usize, factor: f32| -> Vec<f32> {
        (0..count)
            .map(|_| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((seed >> 8) as f32 / 8_388_608.0 - 1.0) * factor
            })
            .collect()
    };
    for step in 0..=40 {
        let rows = if step == 0 { 3 } else { 1 };
        if step > 0 {
            recorder.next_step(i64::from(step));
        }
        recorder.record("h0", &[rows, 8], &values(rows * 8, 1.0)).unwrap();
        for layer in 0..28 {
            for site in SITES {
                let shape: &[usize] = if matches!(site, "q" | "v") { &[rows, 2, 4] } else { &[rows, 8] };
                let values = values(rows * 8, factor(step, layer, site));
                recorder.record(format_args!("layers.{layer}.{site}"), shape, &values).unwrap();
            }
        }
        recorder.record("logits", &[rows, 16], &values(rows * 16, factor(step, 28, "logits"))).unwrap();
    }
    recorder.finish().unwrap();
}

#[test]
#[ignore = "slow: cargo test -- --ignored, as .ci/run does"]
fn a_deep_run_fits_on_a_screen() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    deep_run(&folder.path().join("right"), |_, _, _| 1.0);
    let wrong = |bad: bool| if bad { 1.5 } else { 1.0 };
    // From one layer on; only in every third layer; in the attention of every layer; in every second step; from one step on.
    type Wrong = fn(u32, u32, &str) -> bool;
    let faults: [(&str, Wrong); 5] = [
        ("layer", |_, layer, site| layer > 5 || layer == 5 && site > "h"),
        ("third", |_, layer, site| layer % 3 == 1 && site == "v"),
        ("attention", |_, _, site| site == "context"),
        ("second", |step, layer, _| step % 2 == 1 && layer > 3),
        ("step", |step, layer, site| step > 7 && (layer > 2 || site == "v")),
    ];
    for (name, is_wrong) in faults {
        deep_run(&folder.path().join(name), |step, layer, site| wrong(is_wrong(step, layer, site)));
    }
    for (name, code) in [("right", 0), ("layer", 1), ("third", 1), ("attention", 1), ("second", 1), ("step", 1)] {
        let output = firstdiff(&["compare", &path("right"), &path(name)]);
        let screen = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(code), "{name}");
        assert!(screen.lines().count() <= 50, "{name}: {} lines\n{screen}", screen.lines().count());
        let longest = screen.lines().filter(|line| !line.contains(&path(""))).map(|line| line.chars().count()).max();
        assert!(longest <= Some(80), "{name}: {longest:?}\n{screen}");
    }
}

#[test]
fn names_of_ones_own_are_said_first_and_their_copies_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let values =
        |seed: u8| -> Vec<f32> { (0..48u8).map(|i| f32::from(i).mul_add(0.7, f32::from(seed)).sin()).collect() };
    let dump = |name: &str, tensors: &[(&str, u8)]| -> String {
        let (out, made) = (folder.path().join(name), folder.path().join(format!("{name}-made")));
        let recorder = Recorder::create(&made).unwrap();
        fs::create_dir(&out).unwrap();
        for (at, (tensor, seed)) in tensors.iter().enumerate() {
            recorder.record(format_args!("layers.{at}.h"), &[3, 16], &values(*seed)).unwrap();
            fs::rename(made.join(format!("layers.{at}.h.npy")), out.join(format!("{tensor}.npy"))).unwrap();
        }
        fs::write(out.join("dump.json"), r#"{"tokens": [1, 2, 3]}"#).unwrap();
        out.to_string_lossy().into_owned()
    };
    let reference = dump("ref", &[("layers.0.h_attn", 1), ("layers.0.ffn_out", 2), ("layers.0.h", 3)]);
    let own = dump("own", &[("layers.0.h", 3), ("mine_a", 1), ("mine_b", 2)]);
    let output = firstdiff(&["compare", &reference, &own]);
    let said = in_one_line(&String::from_utf8_lossy(&output.stdout));
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("2 of the candidate's 3 names are unknown"), "{said}");
    assert!(said.contains(&format!("firstdiff align {reference} {own} -o firstdiff.toml")), "{said}");
    // A copy of a compared tap is not an unchecked tap.
    let copies = dump("copies", &[("layers.0.h_attn", 1), ("layers.0.h", 3), ("copy", 3)]);
    assert_eq!(firstdiff(&["compare", &reference, &copies]).status.code(), Some(0));
    let others = dump("others", &[("layers.0.h_attn", 1), ("layers.0.h", 3), ("other", 2)]);
    assert_eq!(firstdiff(&["compare", &reference, &others]).status.code(), Some(2));
}

/// The first taps of a fixture's prefill, as left by a recording that was killed.
fn torn(from: &str, taps: usize, folder: &Path) -> String {
    let dump = Dump::open(fixtures().join(from)).unwrap();
    let out = folder.join(format!("torn-{taps}-{}", from.replace('/', "-")));
    let recorder = Recorder::create(&out).unwrap();
    recorder.describe(|meta| *meta = Meta { taps: None, ..dump.meta().clone() });
    for entry in &dump.entries()[..taps] {
        let values: Vec<f32> = dump.read(entry).unwrap().values().to_f64().iter().map(|x| *x as f32).collect();
        recorder.record(entry.tap, &entry.shape, &values).unwrap();
    }
    std::mem::forget(recorder);
    out.to_string_lossy().into_owned()
}

#[test]
fn a_recording_that_was_not_finished_is_never_at_parity() {
    let folder = tempfile::tempdir().unwrap();
    let candidate = torn(GOLDEN, 10, folder.path());
    let baseline = folder.path().join("baseline").to_string_lossy().into_owned();
    let gate = ["gate", GOLDEN, GOLDEN, "--baseline", &baseline, "--update"];
    assert_eq!(firstdiff(&gate).status.code(), Some(0));
    let pattern = format!("{candidate}/*.npy");
    for (args, ten) in [
        (&["compare", GOLDEN, &candidate][..], "10 of "),
        (&["compare", &candidate, GOLDEN], "10 of "),
        (&["compare", GOLDEN, &pattern], "10 of "),
        (&["gate", GOLDEN, &candidate, "--baseline", &baseline], "10 of "),
        (&["replay", "models/llama", &candidate], "10 of "),
        (&["explain", "models/llama", &candidate], "10 of "),
        (&["inspect", &candidate], "10 taps"),
    ] {
        let output = firstdiff(args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        for words in ["recording is not complete", ten, "are there, the last layers.0.", "--partial"] {
            assert!(error.contains(words), "{args:?}: '{words}' is not in: {error}");
        }
        let report = json(args);
        assert!(report["verdict"] != "parity", "{args:?}");
        // A verdict that was requested all the same states what it covers.
        if args[0] != "gate" {
            let output = firstdiff(&[args, &["--partial"]].concat());
            let said = String::from_utf8(output.stdout).unwrap();
            assert_eq!(output.status.code(), Some(0), "{args:?}: {said}");
            assert!(said.contains("recording is not complete"), "{args:?}: {said}");
        }
    }
    let update = ["gate", GOLDEN, &candidate, "--baseline", &baseline, "--update", "--partial"];
    let error = String::from_utf8(firstdiff(&update).stderr).unwrap();
    assert!(error.contains("a baseline is of complete ones"), "{error}");
}

#[test]
fn a_recording_that_was_not_finished_may_diverge() {
    let folder = tempfile::tempdir().unwrap();
    let candidate = torn(FAULTY, 10, folder.path());
    for args in [&["compare", GOLDEN, &candidate][..], &["replay", "models/llama", &candidate]] {
        let output = firstdiff(args);
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains("layers.0.q_rope") && said.contains("recording is not complete"), "{args:?}: {said}");
    }
}

#[test]
fn what_is_made_of_a_recording_that_was_not_finished_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let candidate = torn(GOLDEN, 10, folder.path());
    assert_eq!(firstdiff(&["import", &candidate, "-o", &at("imported")]).status.code(), Some(0));
    // A folder for each step, and for each rank, one of them killed.
    for (first, second) in [("step0", "step1"), ("rank0", "rank1")] {
        let out = folder.path().join(format!("of-{first}"));
        for (name, from) in [(first, fixtures().join("golden/llama-torch")), (second, candidate.as_str().into())] {
            let dump = Dump::open(from).unwrap();
            let recorder = Recorder::create(out.join(name)).unwrap();
            recorder.describe(|meta| *meta = Meta { taps: None, ..dump.meta().clone() });
            let entry = &dump.entries()[0];
            let values: Vec<f32> = dump.read(entry).unwrap().values().to_f64().iter().map(|x| *x as f32).collect();
            recorder.record(entry.tap, &entry.shape, &values).unwrap();
            recorder.finish().unwrap();
        }
        assert!(Dump::open(&out).unwrap().meta().is_incomplete(), "{first}");
    }
    assert!(Dump::open(at("imported")).unwrap().meta().is_incomplete());
}

#[test]
fn names_that_no_recorder_knows_are_compared_once_they_are_mapped() {
    let folder = tempfile::tempdir().unwrap();
    let dump = Dump::open(fixtures().join(GOLDEN)).unwrap();
    let recorder = Recorder::create(folder.path().join("own")).unwrap();
    recorder.describe(|meta| *meta = Meta { taps: None, decode_tokens: None, ..dump.meta().clone() });
    for tap in ["h0", "layers.0.h", "layers.1.h"] {
        let entry = dump.find(tap.parse().unwrap(), 0).unwrap();
        let values: Vec<f32> = dump.read(entry).unwrap().values().to_f64().iter().map(|x| *x as f32).collect();
        let name = if tap == "h0" { tap.to_owned() } else { format!("block/{tap} (mine)") };
        recorder.record(name, &entry.shape, &values).unwrap();
    }
    recorder.finish().unwrap();
    let own = folder.path().join("own").to_string_lossy().into_owned();
    let report = json(&["compare", GOLDEN, &own]);
    assert_eq!(report["unmapped"], serde_json::json!(["block/layers.0.h (mine)", "block/layers.1.h (mine)"]));
    let map = folder.path().join("map.toml");
    fs::write(&map, "[names]\n\"block/layers.{N}.h (mine)\" = \"layers.{N}.h\"\n").unwrap();
    let report = json(&["compare", GOLDEN, &own, "--map", map.to_str().unwrap()]);
    let agrees =
        |tap: &str| report["taps"].as_array().unwrap().iter().any(|t| t["tap"] == tap && t["status"] == "exact");
    assert!(agrees("layers.0.h") && agrees("layers.1.h"), "{report:#}");
}

#[test]
fn every_word_of_an_answer_is_told() {
    let said = in_one_line(&screen(&["why", "rope-pairing"]));
    for word in ["the rotation pairs other elements", "change rotate the pairs", "where q_rope, k_rope"] {
        assert!(said.contains(word), "{said}");
    }
    assert!(screen(&["why", "rotation.pairing"]).contains("formula"));
    let (all, some) = (screen(&["why"]), screen(&["why", "rope"]));
    assert!(
        all.lines().count() > some.lines().count()
            && some.lines().all(|line| line.starts_with("rope") || line.starts_with(' '))
    );
    for id in firstdiff_explain::mistakes::ids() {
        assert!(all.contains(id), "{id}");
        assert!(screen(&["why", id]).contains("change"), "{id}");
    }
    refuses(&["why", "rope-paring"], &["rope-pairing?"]);
}

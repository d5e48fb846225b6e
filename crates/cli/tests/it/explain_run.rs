//! Checks that `firstdiff explain --run` asks an engine for what its answer needs, and no more. The engine is that of bisect's tests: it copies the requested
//! tensors from a folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::bisect::{fixtures, npy, read, unpack};
use crate::common::{in_one_line, parsed, refused};

struct Bench(tempfile::TempDir);

impl Bench {
    fn new() -> Bench {
        Bench(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// `explain MODEL [CAND] --run` with the engine that copies from `from`.
    fn run(&self, model: &Path, candidate: Option<&Path>, from: &Path, mode: &str, more: &[&str]) -> Output {
        let _ = fs::remove_file(format!("{}.count", from.display()));
        self.again(model, candidate, from, mode, more)
    }

    fn again(&self, model: &Path, candidate: Option<&Path>, from: &Path, mode: &str, more: &[&str]) -> Output {
        let engine = format!("'{}' --exact bisect::engine --nocapture", std::env::current_exe().unwrap().display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_firstdiff"));
        command.arg("explain").arg(model).args(candidate).args(["--run", &engine]);
        command.arg("--work").arg(self.path().join("work")).args(["--seconds", "5"]).args(more);
        command.env_remove("COLUMNS").env("ENGINE_FROM", from).env("ENGINE_MODE", mode).output().unwrap()
    }

    fn json(&self, model: &Path, candidate: Option<&Path>, from: &Path) -> Value {
        parsed(&self.run(model, candidate, from, "", &["--json", "-"]))
    }

    /// A dump of some of the taps that the engine copies.
    fn few(&self, from: &Path, is_held: impl Fn(&str) -> bool) -> PathBuf {
        let out = self.path().join("few");
        fs::create_dir_all(&out).unwrap();
        let mut taps = Vec::new();
        for file in fs::read_dir(from).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            let Some(stem) = name.strip_suffix(".npy") else { continue };
            let (tap, step) = stem.split_once(".step").unwrap_or((stem, "0"));
            if is_held(tap) {
                fs::copy(from.join(&name), out.join(&name)).unwrap();
                taps.push(format!("{{\"tap\": \"{tap}\", \"step\": {step}, \"file\": \"{name}\"}}"));
            }
        }
        let tokens = fs::read_to_string(from.join("tokens.json")).unwrap();
        let text = format!("{{{tokens}, \"precision\": \"f32\", \"taps\": [{}]}}", taps.join(","));
        fs::write(out.join("dump.json"), text).unwrap();
        out
    }
}

fn model() -> PathBuf {
    fixtures().join("models/llama")
}

fn is_outline(tap: &str) -> bool {
    ["h0", "final_norm", "logits"].contains(&tap) || tap.ends_with(".h")
}

/// The taps of each run.
fn asked(report: &Value) -> Vec<Vec<String>> {
    let of = |run: &Value| run["taps"].as_str().unwrap().split(',').map(str::to_owned).collect();
    report["asked"]["runs"].as_array().unwrap().iter().map(of).collect()
}

#[track_caller]
fn cause(report: &Value, id: &str) {
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 1, "{report:#}");
    assert_eq!((&findings[0]["cause"], &findings[0]["match"]), (&id.into(), &"reproduced".into()), "{report:#}");
}

#[test]
fn an_engine_is_asked_for_the_layers_then_for_the_inside_of_one_then_for_the_same_of_the_others() {
    let bench = Bench::new();
    let from = unpack("faulty/llama-rope-pairing", bench.path());
    let report = bench.json(&model(), None, &from);
    cause(&report, "rope-pairing");
    let runs = asked(&report);
    assert_eq!(runs.len(), 3, "{runs:?}");
    assert!(runs[0].iter().all(|tap| is_outline(tap)), "{runs:?}");
    let inside = |tap: &String| tap.starts_with("layers.0.");
    assert!(runs[1].iter().all(inside) && runs[1].contains(&"layers.0.q_rope".into()), "{runs:?}");
    // Their inputs, and nothing else of the other layer.
    assert_eq!(runs[2], ["layers.1.q", "layers.1.k", "layers.1.q_rope", "layers.1.k_rope"].map(str::to_owned));
    // The screen shows the same.
    let screen = in_one_line(&String::from_utf8_lossy(&bench.run(&model(), None, &from, "", &[]).stdout));
    for words in ["run 3", "layers.0.q_rope", "3 runs of the engine", "rope-pairing"] {
        assert!(screen.contains(words), "'{words}' is not in: {screen}");
    }
}

#[test]
fn a_right_engine_is_asked_once() {
    let bench = Bench::new();
    let from = unpack("golden/llama-torch", bench.path());
    let done = bench.run(&model(), None, &from, "", &["--json", "-"]);
    let report = parsed(&done);
    assert_eq!((&report["verdict"], asked(&report).len()), (&"parity".into(), 1), "{report:#}");
    assert_eq!(done.status.code(), Some(0));
}

#[test]
fn beside_a_dump_of_few_taps_only_what_it_leaves_open_is_asked_for() {
    let bench = Bench::new();
    let from = unpack("faulty/llama-rope-pairing", bench.path());
    let few = bench.few(&from, is_outline);
    let report = bench.json(&model(), Some(&few), &from);
    cause(&report, "rope-pairing");
    let runs = asked(&report);
    assert!(runs.len() == 2 && runs[0].contains(&"layers.0.scores".into()), "{runs:?}");
    // The dump of another engine is not mixed with what this one writes.
    let right = unpack("golden/llama-torch", bench.path());
    let output = bench.run(&model(), Some(&few), &right, "", &[]);
    refused(&output, &["the engine does not write what", "few", "layers.0.h"]);
}

#[test]
fn few_taps_say_which_to_record_next() {
    let bench = Bench::new();
    let from = unpack("faulty/llama-rope-pairing", bench.path());
    let explain = |candidate: &Path, only: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_firstdiff"));
        command.arg("explain").arg(model()).arg(candidate).args(["--only", only, "--json", "-"]);
        parsed(&command.output().unwrap())
    };
    // As if the catalogue did not have the mistake.
    let report = explain(&bench.few(&from, is_outline), "embed-scale");
    let finding = &report["findings"][0];
    let next: Vec<&str> = finding["record_next"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(next.contains(&"layers.0.q_rope") && next.iter().all(|tap| tap.starts_with("layers.0.")), "{report:#}");
    assert!(finding["next"].as_str().unwrap().contains("layers.0.q_rope"), "{report:#}");
    // Position 0 hides every rotation.
    let wrong: Vec<u64> = finding["wrong_positions"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    assert!(!wrong.contains(&0) && wrong.contains(&1), "{report:#}");
    fs::remove_dir_all(bench.path().join("few")).unwrap();
    let report = explain(&bench.few(&from, |tap| tap == "logits"), "embed-scale");
    let next = report["findings"][0]["record_next"].clone();
    assert_eq!(next, serde_json::json!(["h0", "layers.0.h", "layers.1.h", "final_norm"]), "{report:#}");
}

#[test]
fn what_an_engine_does_not_write_is_said_and_not_asked_again() {
    let bench = Bench::new();
    let from = unpack("faulty/llama-rope-pairing", bench.path());
    for file in fs::read_dir(&from).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if ["q", "k", "qk", "scores", "q_rope"].iter().any(|site| name.split('.').nth(2) == Some(site)) {
            fs::remove_file(path).unwrap();
        }
    }
    let report = bench.json(&model(), None, &from);
    let not_written = report["asked"]["not_written"].to_string();
    assert!(not_written.contains("layers.0.scores"), "{report:#}");
    let times = |name: &str| asked(&report).iter().flatten().filter(|tap| *tap == name).count();
    assert_eq!((times("layers.0.scores"), times("layers.1.scores")), (1, 0), "{report:#}");
    cause(&report, "rope-pairing");
}

#[test]
fn logits_of_the_last_token_alone_are_taken_as_that() {
    let bench = Bench::new();
    let from = unpack("golden/llama-torch", bench.path());
    let report = parsed(&bench.run(&model(), None, &from, "last-logits", &["--json", "-"]));
    assert_eq!(report["verdict"], "parity", "{report:#}");
    let from = unpack("faulty/llama-rope-pairing", bench.path());
    cause(&parsed(&bench.run(&model(), None, &from, "last-logits", &["--json", "-"])), "rope-pairing");
}

#[test]
fn an_engine_that_wavers_fails_or_writes_nothing_is_not_explained() {
    let bench = Bench::new();
    let from = unpack("faulty/llama-rope-pairing", bench.path());
    let of = |mode: &str, more: &[&str]| bench.run(&model(), None, &from, mode, more);
    refused(&of("wavers", &[]), &["not deterministic", "layers.0.h", "max |d|"]);
    refused(&of("fails", &[]), &["the engine failed", "3", "CUDA error: out of memory"]);
    refused(&of("silent", &[]), &["wrote nothing", "FIRSTDIFF_DIR"]);
    refused(&of("torn", &[]), &["ended well", "not complete"]);
    refused(&of("hangs", &["--timeout", "0.5"]), &["did not end within 0.5 s"]);
    refused(&of("", &["--timeout", "0"]), &["--timeout 0"]);
    refused(&of("", &["--sequence", "1"]), &["--sequence"]);
}

#[test]
fn an_interrupted_search_goes_on() {
    let bench = Bench::new();
    let from = unpack("faulty/llama-rope-pairing", bench.path());
    refused(&bench.run(&model(), None, &from, "fails-late", &[]), &["the engine failed"]);
    let report = parsed(&bench.again(&model(), None, &from, "", &["--json", "-"]));
    cause(&report, "rope-pairing");
    let kept: Vec<bool> = report["asked"]["runs"].as_array().unwrap().iter().map(|run| run["kept"] == true).collect();
    assert_eq!(kept, [true, true, false], "{report:#}");
    // Runs of an engine that was rebuilt are not used.
    refused(&bench.run(&model(), None, &from, "fails-late", &[]), &["the engine failed"]);
    let tap = from.join("layers.0.h.npy");
    let (shape, mut values) = read(&fs::read(&tap).unwrap());
    values.iter_mut().skip(2).step_by(4).for_each(|byte| *byte ^= 1);
    fs::write(&tap, npy(&shape, &values)).unwrap();
    let report = parsed(&bench.again(&model(), None, &from, "", &["--json", "-"]));
    assert_eq!(report["asked"]["kept_runs"]["used"], false, "{report:#}");
    assert!(report["asked"]["runs"].as_array().unwrap().iter().all(|run| run["kept"] == false), "{report:#}");
}

/// A program has taps outside the vocabulary: the engine is asked for these too.
#[test]
fn a_recorded_reference_is_asked_by_its_own_taps() {
    let bench = Bench::new();
    let golden = fixtures().join("programs/forgetting/golden");
    let wrong = unpack("programs/forgetting/wrong.npz", bench.path());
    fs::write(wrong.join("tokens.json"), "\"tokens\": [7, 3, 19, 42, 8, 8, 31, 2, 25, 11]").unwrap();
    let weights = fixtures().join("programs/forgetting/model.safetensors");
    let more = ["--weights", weights.to_str().unwrap(), "--json", "-"];
    let report = parsed(&bench.run(&golden, None, &wrong, "", &more));
    let full = Command::new(env!("CARGO_BIN_EXE_firstdiff"))
        .arg("explain")
        .arg(&golden)
        .arg(fixtures().join("programs/forgetting/wrong.npz"))
        .args(more)
        .output()
        .unwrap();
    let full = parsed(&full);
    let said = |report: &Value| (report["findings"][0]["tap"].clone(), report["findings"][0]["cause"].clone());
    assert_eq!(said(&report), said(&full), "{report:#}");
    assert!(report["asked"]["runs"].as_array().unwrap().len() <= 3, "{report:#}");
}

#[test]
fn a_candidate_is_asked_for_where_no_engine_is() {
    let output = Command::new(env!("CARGO_BIN_EXE_firstdiff")).arg("explain").arg(model()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("CAND"));
}

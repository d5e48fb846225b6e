//! Checks that `firstdiff bisect --run` finds what an engine does wrong, and reports what an engine does not do. The engine is this test's own binary: it
//! copies the requested tensors from a folder, and shares no code with the recorder.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use firstdiff::trace::Dump;
use serde_json::Value;

use crate::common::{parsed, refused};

// ---- the engine ----

/// Run through the shell by the tests below: copies taps of the folder ENGINE_FROM as FIRSTDIFF_* requests.
#[test]
fn engine() {
    let Ok(from) = std::env::var("ENGINE_FROM") else { return };
    let mode = std::env::var("ENGINE_MODE").unwrap_or_default();
    let count = format!("{from}.count");
    let runs = fs::read_to_string(&count).map_or(0, |text| text.len());
    fs::write(&count, "x".repeat(runs + 1)).unwrap();
    match mode.as_str() {
        "fails" => {
            eprintln!("loading\nCUDA error: out of memory");
            std::process::exit(3);
        }
        "fails-late" if runs == 2 => std::process::exit(4),
        "hangs" => {
            let _ = Command::new("sleep").arg("60").spawn();
            std::thread::sleep(Duration::from_secs(60));
        }
        "silent" => return,
        "leaves" | "leaves-and-hangs" => {
            // In a session of its own, with its parent gone.
            let script = format!("setsid sleep 1000 & echo $! > '{from}.left'");
            assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
            if mode != "leaves" {
                std::thread::sleep(Duration::from_secs(60));
            }
        }
        "shouts" => {
            let stderr = fs::OpenOptions::new().append(true).open("/proc/self/fd/2").unwrap();
            stderr.set_len(1 << 42).unwrap();
            (&stderr).write_all(b"\nout of patience\n").unwrap();
            std::process::exit(5);
        }
        _ => {}
    }
    let var = |name: &str| std::env::var(name).unwrap_or_default();
    let out = PathBuf::from(var("FIRSTDIFF_DIR"));
    let (taps, steps) = (var("FIRSTDIFF_TAPS"), var("FIRSTDIFF_STEPS"));
    let rows = if mode == "ignores-rows" { String::new() } else { var("FIRSTDIFF_ROWS") };
    let (first, last) = match steps.split_once('-') {
        Some((first, last)) => (first.parse().unwrap(), last.parse().unwrap()),
        None => steps.parse().map_or((0, u32::MAX), |step| (step, step)),
    };
    let mut entries = Vec::new();
    for file in fs::read_dir(&from).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        let Some(stem) = name.strip_suffix(".npy") else { continue };
        let (tap, step) = stem.split_once(".step").map_or((stem, 0), |(tap, step)| (tap, step.parse::<u32>().unwrap()));
        let wanted = mode == "others" && tap == "h0" || mode != "others" && taps.split(',').any(|wanted| wanted == tap);
        if !wanted || step < first || step > last {
            continue;
        }
        let raw = fs::read(Path::new(&from).join(&name)).unwrap();
        let (shape, mut values) = read(&raw);
        if mode == "wavers" && tap.ends_with(".h") {
            // A high byte of the mantissa.
            values.iter_mut().skip(2).step_by(4).for_each(|byte| *byte ^= runs as u8);
        }
        if tap == "logits" && mode.starts_with("head") {
            let flips = if mode == "head-wavers" { runs as u8 + 1 } else { 0x20 };
            values.iter_mut().skip(2).step_by(4).for_each(|byte| *byte ^= flips);
        }
        if mode == "trembles" && tap.ends_with(".h") {
            values.iter_mut().step_by(4).for_each(|byte| *byte ^= (runs & 1) as u8);
        }
        if mode == "breaks" && ["layers.1.ffn_out", "layers.1.h", "final_norm", "logits"].contains(&tap) && step >= 4 {
            let twice = |x: &[u8]| (2.0 * f32::from_le_bytes(x.try_into().unwrap())).to_le_bytes();
            values = values.chunks(4).flat_map(twice).collect();
        }
        let is_short = mode == "last-logits" && tap == "logits" && step == 0;
        let (shape, values, rows) = cut(tap, shape, values, if is_short { "last" } else { &rows });
        // It does not say which row it is.
        let rows = rows.filter(|_| !is_short);
        fs::write(out.join(&name), npy(&shape, &values)).unwrap();
        let rows = rows.map_or(String::new(), |rows| format!(", \"rows\": {rows:?}"));
        entries.push(format!("{{\"tap\": \"{tap}\", \"step\": {step}, \"file\": \"{name}\"{rows}}}"));
    }
    let mut tokens = fs::read_to_string(Path::new(&from).join("tokens.json")).unwrap();
    if mode == "told" {
        tokens = format!(
            "\"tokens\": [{}], \"decode_tokens\": [{}]",
            var("FIRSTDIFF_TOKENS"),
            var("FIRSTDIFF_DECODE_TOKENS")
        );
    }
    let complete = if mode == "torn" { "\"complete\": false, " } else { "" };
    fs::write(
        out.join("dump.json"),
        format!("{{{complete}{tokens}, \"precision\": \"f32\", \"taps\": [{}]}}", entries.join(",")),
    )
    .unwrap();
}

/// Shape and bytes of a .npy of f32, version 1.
pub(crate) fn read(raw: &[u8]) -> (Vec<usize>, Vec<u8>) {
    let length = 10 + usize::from(u16::from_le_bytes([raw[8], raw[9]]));
    let header = String::from_utf8_lossy(&raw[10..length]).into_owned();
    let shape = header.split_once('(').unwrap().1.split_once(')').unwrap().0;
    (shape.split(',').filter_map(|n| n.trim().parse().ok()).collect(), raw[length..].to_vec())
}

pub(crate) fn npy(shape: &[usize], values: &[u8]) -> Vec<u8> {
    let shape: String = shape.iter().map(|n| format!("{n}, ")).collect();
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}");
    header += &" ".repeat(64 - (11 + header.len()) % 64);
    header += "\n";
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend((header.len() as u16).to_le_bytes());
    out.extend(header.as_bytes());
    out.extend(values);
    out
}

type Cut = (Vec<usize>, Vec<u8>, Option<Vec<usize>>);

fn cut(tap: &str, mut shape: Vec<usize>, values: Vec<u8>, rows: &str) -> Cut {
    let axis = usize::from(["qk", "scores", "probs"].iter().any(|site| tap.ends_with(&format!(".{site}"))));
    let extent = shape[axis];
    let kept: Vec<usize> = match rows {
        "" => (0..extent).collect(),
        "last" => vec![extent - 1],
        list => list.split(',').filter_map(|row| row.parse().ok()).filter(|row| *row < extent).collect(),
    };
    let inner: usize = 4 * shape[axis + 1..].iter().product::<usize>();
    let blocks = values.chunks(extent * inner);
    let values =
        blocks.flat_map(|block| kept.iter().flat_map(move |row| block[row * inner..][..inner].to_vec())).collect();
    shape[axis] = kept.len();
    let said = (kept.len() < extent).then_some(kept);
    (shape, values, said)
}

// ---- what the engine copies ----

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// A fixture as a folder of .npy files, with the tokens of its run.
pub(crate) fn unpack(fixture: &str, folder: &Path) -> PathBuf {
    let dump = Dump::open(fixtures().join(fixture)).unwrap();
    let out = folder.join(Path::new(fixture).file_name().unwrap());
    fs::create_dir_all(&out).unwrap();
    for entry in &dump.all_entries() {
        let values: Vec<u8> =
            dump.read(entry).unwrap().values().to_f64().iter().flat_map(|x| (*x as f32).to_le_bytes()).collect();
        let step = if entry.step == 0 { String::new() } else { format!(".step{}", entry.step) };
        fs::write(out.join(format!("{}{step}.npy", entry.tap)), npy(&entry.shape, &values)).unwrap();
    }
    let ids = |ids: &Option<Vec<i64>>| format!("{:?}", ids.clone().unwrap_or_default());
    let tokens =
        format!("\"tokens\": {}, \"decode_tokens\": {}", ids(&dump.meta().tokens), ids(&dump.meta().decode_tokens));
    fs::write(out.join("tokens.json"), tokens).unwrap();
    out
}

/// The run of a model, with the first tokens at once and the others one by one.
fn in_steps(model: &str, first: usize, folder: &Path) -> PathBuf {
    let out = folder.join(format!("steps-{first}"));
    let ids = Dump::open(fixtures().join("golden/llama-torch")).unwrap().meta().tokens.clone().unwrap();
    let list = |ids: &[i64]| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let mut dump = Command::new(env!("CARGO_BIN_EXE_firstdiff"));
    dump.arg("dump").arg(fixtures().join(model)).arg("-o").arg(&out).args(["--tokens", &list(&ids[..first])]);
    assert!(dump.args(["--decode-tokens", &list(&ids[first..])]).status().unwrap().success());
    out
}

const LAYERS: usize = 22;
const T: usize = 14;
const D: usize = 64;

/// 22 layers of noise: a search depends only on the graph, not on what a model computes. From `wrong` on, every tap of the residual stream and all that reads
/// it is other noise; within its layer, only what comes after it.
fn noise(folder: &Path, wrong: Option<&str>) -> PathBuf {
    let name = wrong.map_or("noise".to_owned(), |tap| format!("noise-{tap}"));
    let out = folder.join(name);
    fs::create_dir_all(&out).unwrap();
    let sites = [
        ("attn_norm", D),
        ("q", D),
        ("k", D / 8),
        ("v", D / 8),
        ("q_rope", D),
        ("k_rope", D / 8),
        ("qk", 0),
        ("scores", 0),
        ("probs", 0),
        ("context", D),
        ("attn_out", D),
        ("h_attn", D),
        ("ffn_norm", D),
        ("ffn_gate", 5 * D / 2),
        ("ffn_up", 5 * D / 2),
        ("ffn_act", 5 * D / 2),
        ("ffn_out", D),
        ("h", D),
    ];
    // The taps that `v`, `ffn_up` and the like do not read.
    let beside = |site: &str, wrong: &str| match wrong {
        "q" | "q_rope" => matches!(site, "k" | "v" | "k_rope"),
        "k" | "k_rope" => matches!(site, "q" | "v" | "q_rope"),
        "v" => matches!(site, "q_rope" | "k_rope" | "qk" | "scores" | "probs"),
        "ffn_gate" => site == "ffn_up",
        _ => false,
    };
    let mut broken = false;
    let mut seed = 1u64;
    let mut put = |tap: String, width: usize, broken: bool| {
        let (heads, width) = if width == 0 { (4, T) } else { (1, width) };
        let shape = match tap.rsplit('.').next().unwrap() {
            "q" | "q_rope" => vec![T, 8, width / 8],
            "k" | "v" | "k_rope" => vec![T, 1, width],
            _ if heads == 4 => vec![4, T, T],
            _ => vec![T, width],
        };
        seed += 1;
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / 16_777_216.0 - 0.5
        };
        let values: Vec<u8> = (0..heads * T * width)
            .flat_map(|_| (next() * if broken { 1.0 + next() } else { 1.0 }).to_le_bytes())
            .collect();
        let values = if broken { values } else { plain(seed, heads * T * width) };
        fs::write(out.join(format!("{tap}.npy")), npy(&shape, &values)).unwrap();
    };
    broken |= wrong == Some("h0");
    put("h0".into(), D, broken);
    for layer in 0..LAYERS {
        for (site, width) in sites {
            let tap = format!("layers.{layer}.{site}");
            broken |= wrong == Some(&tap);
            let spared = wrong
                .and_then(|wrong| wrong.strip_prefix(&format!("layers.{layer}.")))
                .is_some_and(|wrong| beside(site, wrong));
            put(tap, width, broken && !spared);
        }
    }
    broken |= wrong == Some("final_norm");
    put("final_norm".into(), D, broken);
    put("logits".into(), 16 * D, broken || wrong == Some("logits"));
    fs::write(out.join("tokens.json"), format!("\"tokens\": {:?}", (1..=T).collect::<Vec<_>>())).unwrap();
    out
}

fn plain(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 16_777_216.0 - 0.5
    };
    (0..count).flat_map(|_| next().to_le_bytes()).collect()
}

// ---- the command ----

struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Bench {
        Bench { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn run(&self, reference: &Path, from: &Path, mode: &str, more: &[&str]) -> Output {
        let _ = fs::remove_file(format!("{}.count", from.display()));
        self.again(reference, from, mode, more)
    }

    fn again(&self, reference: &Path, from: &Path, mode: &str, more: &[&str]) -> Output {
        self.command(reference, from, mode, more).output().unwrap()
    }

    fn command(&self, reference: &Path, from: &Path, mode: &str, more: &[&str]) -> Command {
        let engine = format!("'{}' --exact bisect::engine --nocapture", std::env::current_exe().unwrap().display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_firstdiff"));
        command
            .arg("bisect")
            .arg(reference)
            .args(["--run", &engine])
            .arg("--work")
            .arg(self.path().join("work"))
            .args(more);
        command.env("ENGINE_FROM", from).env("ENGINE_MODE", mode);
        command
    }

    fn json(&self, reference: &Path, from: &Path, mode: &str) -> Value {
        let output = self.run(reference, from, mode, &["--json", "-"]);
        parsed(&output)
    }
}

#[track_caller]
fn found(report: &Value, tap: &str, step: u64) {
    let first = &report["first_divergence"];
    assert_eq!(
        (&report["verdict"], &first["tap"], &first["step"]),
        (&"diverged".into(), &tap.into(), &step.into()),
        "{report:#}"
    );
    assert_eq!(first["unchecked_between"], Value::Array(Vec::new()), "{tap}");
}

#[test]
fn faults_of_small_models_are_found() {
    let bench = Bench::new();
    for (model, fixture, tap, step) in [
        ("models/llama", "faulty/llama-rope-pairing", "layers.0.q_rope", 0),
        ("golden/llama-torch", "faulty/llama-rope-pairing", "layers.0.q_rope", 0),
        ("models/minimind", "faulty/minimind-mask-omitted.npz", "layers.0.scores", 0),
        ("models/qwen3", "faulty/qwen3-kv-head-map-zero-layer1.npz", "layers.1.qk", 0),
        ("models/qwen2", "faulty/qwen2-bias-omitted.npz", "layers.0.q", 0),
        ("models/llama", "faulty/llama-kv-cache-shift.npz", "layers.0.qk", 1),
    ] {
        let from = unpack(fixture, bench.path());
        let report = bench.json(&fixtures().join(model), &from, "");
        found(&report, tap, step);
    }
}

/// A run of some steps is not one of all steps, and what was requested of some is unknown for the others.
#[test]
fn the_steps_that_were_asked_for_are_said() {
    let bench = Bench::new();
    let from = unpack("faulty/llama-kv-cache-shift.npz", bench.path());
    let output = bench.run(&fixtures().join("models/llama"), &from, "", &[]);
    let screen = String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(screen.contains("all positions, steps 0-2: "), "{screen}");
    assert!(screen.contains("checked at some positions ") && !screen.contains("checked at all"), "{screen}");
}

/// A program has taps outside the vocabulary: the engine is asked for these too, and where it does not know them that is reported.
#[test]
fn between_taps_of_a_program_its_own_are_asked_for() {
    let bench = Bench::new();
    let golden = fixtures().join("programs/forgetting/golden");
    let wrong = unpack("programs/forgetting/wrong.npz", bench.path());
    fs::write(wrong.join("tokens.json"), "\"tokens\": [7, 3, 19, 42, 8, 8, 31, 2, 25, 11]").unwrap();
    // The input of the fault is the reference's.
    fs::copy(golden.join("layers.0.mixer_in.npy"), wrong.join("layers.0.mixer_in.npy")).unwrap();
    let report = bench.json(&golden, &wrong, "");
    found(&report, "layers.0.mixer_out", 0);
    let asked = |run: &Value| run["taps"].as_str().unwrap_or_default().to_owned();
    let all: Vec<String> = report["runs"].as_array().expect("runs").iter().map(asked).collect();
    assert!(all.iter().any(|taps| taps.contains("layers.0.mixer_in")), "{all:?}");
    // Taps that the engine does not write were requested once.
    for tap in ["mixer_in", "mixer_out"] {
        fs::remove_file(wrong.join(format!("layers.0.{tap}.npy"))).unwrap();
    }
    let report = bench.json(&golden, &wrong, "");
    assert_eq!(report["first_divergence"]["tap"], "layers.0.h_attn");
    let all: Vec<String> = report["runs"].as_array().expect("runs").iter().map(asked).collect();
    assert_eq!(all.iter().filter(|taps| taps.contains("layers.0.mixer_out")).count(), 1, "{all:?}");
}

#[test]
fn parity_is_said_with_what_was_looked_at() {
    let bench = Bench::new();
    let from = unpack("golden/llama-torch", bench.path());
    let output = bench.run(&fixtures().join("models/llama"), &from, "", &[]);
    // Lines are broken between words.
    let screen = String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(output.status.code(), Some(0), "{screen}");
    for words in ["parity:", "at all positions", "final_norm", "3 runs", "what was not looked at is not known"] {
        assert!(screen.contains(words), "'{words}' is not in: {screen}");
    }
}

#[test]
#[ignore = "slow: cargo test -- --ignored, as .ci/run does"]
fn twenty_two_layers_take_few_runs_and_bytes() {
    let bench = Bench::new();
    let reference = noise(bench.path(), None);
    for tap in [
        "h0",
        "layers.0.q",
        "layers.4.h_attn",
        "layers.10.scores",
        "layers.13.k_rope",
        "layers.20.ffn_act",
        "layers.21.h",
        "logits",
    ] {
        let from = noise(bench.path(), Some(tap));
        let report = bench.json(&reference, &from, "");
        found(&report, tap, 0);
        let (runs, bytes, full) = (report["runs"].as_array().unwrap().len(), &report["bytes"], &report["full_bytes"]);
        let share = bytes.as_f64().unwrap() / full.as_f64().unwrap();
        assert!(runs <= 8 && share < 0.01, "{tap}: {runs} runs, {share}");
        let report = bench.json(&reference, &from, "ignores-rows");
        let runs = report["runs"].as_array().unwrap().len();
        let share = report["bytes"].as_f64().unwrap() / full.as_f64().unwrap();
        assert!(runs <= 8 && share < 0.05, "{tap}, rows ignored: {runs} runs, {share}");
        assert_eq!(report["verdict"], "diverged");
    }
}

#[test]
fn an_engine_that_wavers_is_not_blamed() {
    let bench = Bench::new();
    let from = unpack("faulty/llama-rope-pairing", bench.path());
    let model = fixtures().join("models/llama");
    refused(&bench.run(&model, &from, "wavers", &[]), &["not deterministic", "layers.0.h", "max |d|"]);
    let report = bench.json(&model, &from, "wavers");
    assert_eq!((&report["verdict"], &report["first_divergence"]), (&"incomparable".into(), &Value::Null));
    assert_eq!(report["nondeterministic"]["tap"], "layers.0.h");
}

#[test]
fn what_is_wrong_first_is_seen_twice() {
    let bench = Bench::new();
    let (from, model) = (unpack("golden/llama-torch", bench.path()), fixtures().join("models/llama"));
    // All but the head is the same every time.
    refused(&bench.run(&model, &from, "head-wavers", &[]), &["not deterministic", "logits", "max |d|"]);
    let report = bench.json(&model, &from, "head-wavers");
    assert_eq!((&report["verdict"], &report["first_divergence"]), (&"incomparable".into(), &Value::Null));
    // A head that is wrong in the same way every time is found.
    found(&bench.json(&model, &from, "head-wrong"), "logits", 0);
}

#[test]
fn noise_far_below_the_tolerance_is_said_and_bisected() {
    let bench = Bench::new();
    let from = unpack("faulty/llama-rope-pairing", bench.path());
    let report = bench.json(&fixtures().join("models/llama"), &from, "trembles");
    found(&report, "layers.0.q_rope", 0);
    assert!(report.to_string().contains("differ by noise: NMSE"), "{report:#}");
    // Nothing is reported for an engine that is the same bit for bit.
    let report = bench.json(&fixtures().join("models/llama"), &from, "");
    assert!(!report.to_string().contains("differ by noise"), "{report:#}");
}

#[test]
fn an_engine_that_takes_other_chunks_is_laid_against_the_reference_by_position() {
    let bench = Bench::new();
    let positions = |report: &Value| report["first_divergence"]["when"].as_str().unwrap_or_default().to_owned();
    // A reference in one pass and steps, an engine token by token, wrong from its fifth token on.
    let golden = fixtures().join("golden/llama-torch");
    let steps = in_steps("models/llama", 1, bench.path());
    let from = unpack(steps.to_str().unwrap(), &bench.path().join("engine"));
    let report = bench.json(&golden, &from, "");
    assert_eq!(report["verdict"], "parity", "{report:#}");
    let report = bench.json(&golden, &from, "breaks");
    found(&report, "layers.1.ffn_out", 4);
    assert!(positions(&report).contains("position 4"), "{report:#}");
    // A reference token by token, or in a prefill and steps, and an engine in one pass. Position 0 hides every rotation.
    let from = unpack("faulty/llama-rope-pairing", bench.path());
    let report = bench.json(&steps, &from, "");
    found(&report, "layers.0.q_rope", 1);
    let report = bench.json(&in_steps("models/llama", 4, bench.path()), &from, "");
    found(&report, "layers.0.q_rope", 0);
    assert!(positions(&report).contains("positions 0-3"), "{report:#}");
    // Other tokens are reported as such, whatever the chunks.
    let other = from.join("tokens.json");
    fs::write(&other, "\"tokens\": [9, 8, 7, 42, 99, 3, 150, 77, 17, 128, 64]").unwrap();
    refused(&bench.run(&golden, &from, "", &[]), &["was fed other tokens"]);
}

#[test]
fn the_tokens_are_told_to_the_engine() {
    let bench = Bench::new();
    let from = unpack("golden/llama-torch", bench.path());
    let golden = fixtures().join("golden/llama-torch");
    assert_eq!(bench.json(&golden, &from, "told")["verdict"], "parity");
    let meta = Dump::open(&golden).unwrap().meta().clone();
    let list = |ids: Option<Vec<i64>>| ids.unwrap().iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let (tokens, decoded) = (list(meta.tokens), list(meta.decode_tokens));
    let asked = ["--tokens", &tokens, "--decode-tokens", &decoded, "--json", "-"];
    let output = bench.run(&fixtures().join("models/llama"), &from, "told", &asked);
    let report = parsed(&output);
    assert_eq!(report["verdict"], "parity", "{report:#}");
    // They are in the dump that remains for `explain`.
    let evidence = Dump::open(bench.path().join("work/evidence")).unwrap();
    assert_eq!(list(evidence.meta().decode_tokens.clone()), decoded);
}

#[test]
fn what_an_engine_does_not_do_is_said_as_that() {
    let bench = Bench::new();
    let from = unpack("golden/llama-torch", bench.path());
    let model = fixtures().join("models/llama");
    refused(&bench.run(&model, &from, "fails", &[]), &["the engine failed", "3", "CUDA error: out of memory"]);
    refused(&bench.run(&model, &from, "silent", &[]), &["wrote nothing", "FIRSTDIFF_DIR"]);
    refused(
        &bench.run(&model, &from, "others", &[]),
        &["none of the taps asked for (layers.1.h,final_norm)", "but h0"],
    );
    let began = Instant::now();
    refused(&bench.run(&model, &from, "hangs", &["--timeout", "0.5"]), &["did not end within 0.5 s"]);
    assert!(began.elapsed() < Duration::from_secs(20), "what it started is stopped too");
    let report = bench.json(&model, &from, "fails");
    assert_eq!((&report["command"], &report["verdict"]), (&"bisect".into(), &"incomparable".into()));
    fs::create_dir(bench.path().join("mine")).unwrap();
    fs::write(bench.path().join("mine/thesis.txt"), "").unwrap();
    let other = bench.path().join("mine");
    let output = bench.run(&model, &from, "", &["--work", other.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(other.join("thesis.txt").exists());
}

#[test]
fn an_interrupted_bisection_goes_on() {
    let bench = Bench::new();
    let from = unpack("faulty/llama-rope-pairing", bench.path());
    let model = fixtures().join("models/llama");
    // Its third run fails; the second start reuses the first two.
    refused(&bench.run(&model, &from, "fails-late", &[]), &["the engine failed"]);
    let output = bench.again(&model, &from, "", &["--json", "-"]);
    let report = parsed(&output);
    found(&report, "layers.0.q_rope", 0);
    let kept: Vec<bool> = report["runs"].as_array().unwrap().iter().map(|run| run["kept"] == true).collect();
    assert_eq!(kept[..3], [true, true, false]);
    // With an answer, the next start begins anew. So does --fresh.
    let report = parsed(&bench.again(&model, &from, "", &["--json", "-"]));
    assert!(report["runs"].as_array().unwrap().iter().all(|run| run["kept"] == false));
    refused(&bench.run(&model, &from, "fails-late", &[]), &["the engine failed"]);
    let report = parsed(&bench.again(&model, &from, "", &["--fresh", "--json", "-"]));
    assert!(report["runs"].as_array().unwrap().iter().all(|run| run["kept"] == false));
}

fn kept(report: &Value) -> Vec<bool> {
    report["runs"].as_array().unwrap().iter().map(|run| run["kept"] == true).collect()
}

#[test]
fn runs_of_an_engine_that_was_built_anew_are_not_used() {
    let bench = Bench::new();
    let (wrong, right) =
        (unpack("faulty/llama-rope-pairing", bench.path()), unpack("golden/llama-torch", bench.path()));
    let model = fixtures().join("models/llama");
    refused(&bench.run(&model, &wrong, "fails-late", &[]), &["the engine failed"]);
    // Nothing in the command shows that it is another engine now.
    let output = bench.again(&model, &right, "", &["--json", "-"]);
    let told = parsed(&output);
    assert_eq!(told["verdict"], "parity", "{told:#}");
    assert_eq!((&told["kept_runs"]["runs"], &told["kept_runs"]["used"]), (&2.into(), &false.into()), "{told:#}");
    assert!(kept(&told).iter().all(|kept| !kept));
    // The reverse: a right engine's runs do not hide what a wrong one does.
    let _ = fs::remove_file(format!("{}.count", right.display()));
    refused(&bench.run(&model, &right, "fails-late", &[]), &["the engine failed"]);
    found(&parsed(&bench.again(&model, &wrong, "", &["--json", "-"])), "layers.0.q_rope", 0);
}

#[test]
fn kept_runs_of_the_same_engine_are_said_with_their_time() {
    let bench = Bench::new();
    let from = unpack("faulty/llama-rope-pairing", bench.path());
    let model = fixtures().join("models/llama");
    refused(&bench.run(&model, &from, "fails-late", &[]), &["the engine failed"]);
    let stdout = bench.again(&model, &from, "", &[]).stdout;
    let screen = String::from_utf8_lossy(&stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    for words in ["2 runs of an earlier start (2", "UTC", "ago) used again", "repeated", "same bit for bit"] {
        assert!(screen.contains(words), "'{words}' is not in: {screen}");
    }
}

#[test]
fn kept_runs_that_do_not_belong_together_are_discarded() {
    let bench = Bench::new();
    let from = unpack("golden/llama-torch", bench.path());
    let model = fixtures().join("models/llama");
    refused(&bench.run(&model, &from, "fails-late", &[]), &["the engine failed"]);
    // The first run is of another engine than the last, and only the last is repeated.
    let runs = bench.path().join("work/runs");
    let made = |run: &Path| fs::metadata(run.join("asked.json")).unwrap().modified().unwrap();
    let first = fs::read_dir(runs).unwrap().map(|run| run.unwrap().path()).min_by_key(|run| made(run)).unwrap();
    let tap = first.join("dump/layers.1.h.npy");
    let (shape, mut values) = read(&fs::read(&tap).unwrap());
    values.iter_mut().skip(2).step_by(4).for_each(|byte| *byte ^= 0x20);
    fs::write(&tap, npy(&shape, &values)).unwrap();
    let told = parsed(&bench.again(&model, &from, "", &["--json", "-"]));
    assert_eq!(told["verdict"], "parity", "{told:#}");
    assert_eq!((&told["kept_runs"]["used"], &told["kept_runs"]["differs_at"]), (&false.into(), &"layers.1.h".into()));
    assert!(kept(&told).iter().all(|kept| !kept));
}

#[test]
fn a_recording_that_was_not_finished_is_no_evidence() {
    let bench = Bench::new();
    let from = unpack("golden/llama-torch", bench.path());
    let model = fixtures().join("models/llama");
    refused(&bench.run(&model, &from, "torn", &[]), &["ended well", "not complete", "\"complete\": false"]);
    // Nor can it be a reference.
    let torn = bench.path().join("torn");
    fs::create_dir(&torn).unwrap();
    fs::copy(from.join("h0.npy"), torn.join("h0.npy")).unwrap();
    fs::write(torn.join("dump.json"), "{\"complete\": false}").unwrap();
    refused(&bench.run(&torn, &from, "", &[]), &["the reference's recording is not complete", "1 tap is there"]);
}

/// Whether a process is running, and has not only not been waited for yet.
#[cfg(target_os = "linux")]
fn runs(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{}/stat", pid.trim()))
        .is_ok_and(|stat| !stat.rsplit_once(") ").unwrap().1.starts_with('Z'))
}

#[test]
#[cfg(target_os = "linux")]
fn nothing_that_an_engine_started_is_left() {
    let bench = Bench::new();
    let from = unpack("golden/llama-torch", bench.path());
    let model = fixtures().join("models/llama");
    let left = format!("{}.left", from.display());
    assert_eq!(bench.run(&model, &from, "leaves", &[]).status.code(), Some(0));
    assert!(!runs(&fs::read_to_string(&left).unwrap()), "of an engine that ended");
    refused(&bench.run(&model, &from, "leaves-and-hangs", &["--timeout", "1"]), &["did not end within"]);
    assert!(!runs(&fs::read_to_string(&left).unwrap()), "of one that was stopped");
    fs::remove_file(&left).unwrap();
    let mut bisection = bench.command(&model, &from, "leaves-and-hangs", &[]).spawn().unwrap();
    let begun = Instant::now();
    let within = |holds: &dyn Fn() -> bool| {
        while !holds() && begun.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(20));
        }
        holds()
    };
    assert!(within(&|| fs::read_to_string(&left).is_ok_and(|pid| runs(&pid))), "it was started");
    bisection.kill().unwrap();
    bisection.wait().unwrap();
    assert!(within(&|| !runs(&fs::read_to_string(&left).unwrap())), "of a bisection that was killed");
}

#[test]
#[cfg(target_os = "linux")]
fn of_what_an_engine_says_no_more_than_the_end_is_read() {
    let bench = Bench::new();
    let from = unpack("golden/llama-torch", bench.path());
    let model = fixtures().join("models/llama");
    refused(&bench.run(&model, &from, "shouts", &[]), &["exit status: 5", "out of patience"]);
}

//! Is the cause that is named the one that was planted? Engines that share no code with the crates, and four real ones.
//!
//! `cargo xtask zoo` asks the same of some thousands of candidates.

use std::collections::BTreeSet;

use std::path::{Path, PathBuf};

use firstdiff_explain::explain::{Effort, Explanation, Match, Options};
use firstdiff_explain::mistakes::{advice, find, ids, what};
use firstdiff_explain::model::explain;
use firstdiff_model::{Profile, load};
use firstdiff_trace::{Dump, Rows, Site, Tap};
use serde_json::Value;

use crate::common::{fixtures, precision};

/// The real engines' artefacts that are not in this repository, where they are at hand.
fn shared() -> Option<PathBuf> {
    let path = fixtures().join("../../shared/field");
    if !path.exists() {
        println!("NOT CHECKED: {} is not there", path.display());
    }
    path.exists().then_some(path)
}

fn run(
    model: &Path,
    dump: &Path,
    profile: Option<Profile>,
    tokens: Option<Vec<u32>>,
    rows: Option<Rows>,
) -> Explanation {
    let dump = Dump::open(dump).unwrap();
    let mut options = Options::declared(&dump, profile.unwrap_or_else(|| precision(&dump))).unwrap();
    if let Some(tokens) = tokens {
        (options.tokens, options.tokens_are_known) = (tokens, true);
    }
    options.rows = rows;
    // What is found is asserted, and not how fast a build for tests finds it.
    let effort = Effort { seconds: 2.0 * Effort::default().seconds, ..Effort::default() };
    explain(&load(model).unwrap(), &dump, &options, &effort, &|_, _, _| {}).unwrap()
}

/// The causes that are stated, each as `id: first tap`, and how many faults are left without one.
fn causes(explanation: &Explanation) -> (Vec<String>, usize) {
    let stated = explanation.findings.iter().filter(|f| f.matched == Match::Reproduced);
    let words = stated.map(|f| format!("{}: {}", f.cause.as_ref().unwrap().id, f.taps[0])).collect();
    (words, explanation.findings.iter().filter(|f| f.matched != Match::Reproduced).count())
}

#[test]
fn planted_mistakes_are_named_and_nothing_else() {
    planted_mistakes_are_named(14);
}

#[test]
#[ignore = "slow: cargo test -- --ignored, as .ci/run does"]
fn every_planted_mistake_is_named_and_nothing_else() {
    planted_mistakes_are_named(1);
}

/// Of one in so many of the shipped faults, that its mistake is named and no other.
fn planted_mistakes_are_named(every: usize) {
    let index = std::fs::read_to_string(fixtures().join("faulty/index.json")).unwrap();
    let index: Vec<Value> = serde_json::from_str(&index).unwrap();
    let mut problems = Vec::new();
    for row in index.iter().step_by(every) {
        let path = |key: &str| fixtures().join(row[key].as_str().unwrap());
        let explanation = run(&path("model"), &path("file"), None, None, None);
        let (stated, open) = causes(&explanation);
        let planted = row["mistake"].as_str().unwrap();
        let named = stated.iter().all(|s| s.split(':').next() == Some(planted)) && !stated.is_empty();
        if !named || open > 0 {
            problems.push(format!("{}: {stated:?}, {open} without a cause", row["file"]));
        }
    }
    println!("{} planted, {} not named", index.len().div_ceil(every), problems.len());
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// What stands in quotes behind each `before` in a script.
fn quoted_behind<'t>(text: &'t str, before: &str) -> BTreeSet<&'t str> {
    text.split(before).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

/// The catalogue, and engines that share no code with it: each mistake is planted, shows where its entry says it is made, and no engine plants another. Of an id no
/// engine here shows, it is said where it is tested.
#[test]
fn every_id_has_words_and_an_engine_that_shows_it() {
    let index = std::fs::read_to_string(fixtures().join("faulty/index.json")).unwrap();
    let index: Vec<Value> = serde_json::from_str(&index).unwrap();
    let planted: BTreeSet<&str> = index.iter().filter_map(|row| row["mistake"].as_str()).collect();
    let script = |name: &str| std::fs::read_to_string(fixtures().join("../scripts").join(name)).unwrap();
    let (engine, faults) = (script("engines/engine_mistakes.py"), script("planted/fixture_faults.py"));
    let in_engine = quoted_behind(&engine, "@mistake(\"");
    let is_fault = |line: &&str| line.starts_with("    ") && line.split_whitespace().nth(3).is_some();
    let faults = faults.split("\"\"\"").nth(3).unwrap().lines().filter(is_fault);
    let listed: BTreeSet<&str> =
        faults.filter_map(|line| line.split_whitespace().nth(1)?.split(['=', '@']).next()).collect();
    assert_eq!(listed, planted, "scripts/planted/fixture_faults.py and fixtures/faulty/index.json");
    // By another arithmetic below; by a real engine below, where its file is at hand; by scripts/suites/test_unpacked.py.
    let elsewhere = ["precision", "dequant-truncated", "dequant-nibbles", "dequant-scale"];
    // What recorded programs alone have is planted in PyTorch's own models.
    let planted_in_programs = fixtures().join("../scripts/planted/program_mistakes");
    let files = std::fs::read_dir(planted_in_programs).unwrap().map(|file| file.unwrap().path());
    let files = files.filter(|file| file.extension().is_some_and(|extension| extension == "py"));
    let mut in_programs = script("suites/test_program_mistakes.py");
    in_programs.extend(files.map(|file| std::fs::read_to_string(file).unwrap()));
    let in_programs: BTreeSet<&str> = in_programs.split(|c: char| !(c.is_alphanumeric() || c == '-')).collect();
    for id in ids().into_iter().filter(|id| find(id).is_some_and(|mistake| mistake.in_programs)) {
        assert!(in_programs.contains(id), "{id} is planted in no recorded architecture");
    }
    for id in ids().into_iter().filter(|id| find(id).is_some_and(|mistake| !mistake.in_programs)) {
        assert!(!what(id).is_empty() && !advice(id).is_empty(), "{id}");
        assert_ne!(planted.contains(id), elsewhere.contains(&id), "{id} is planted nowhere, or is said to be");
        assert_ne!(in_engine.contains(id), elsewhere.contains(&id), "{id} in scripts/engines/engine_mistakes.py");
    }
    for row in &index {
        let (id, tap) = (row["mistake"].as_str().unwrap(), row["first"]["tap"].as_str().unwrap());
        let entry = find(id).unwrap_or_else(|| panic!("{id} is not in the catalogue"));
        let tap: Tap = tap.parse().unwrap();
        assert!(entry.at.contains(&tap.site), "{id} shows at {tap}, where its entry says that it is not made");
    }
    assert!(in_engine.iter().all(|id| find(id).is_some()), "{in_engine:?}");
}

#[test]
fn right_runs_have_no_finding() {
    for folder in ["golden", "right"] {
        for entry in std::fs::read_dir(fixtures().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            // llama.cpp with 16-bit weights: its own arithmetic is tried below.
            if name == "index" || name.contains("llama-cpp-f16") {
                continue;
            }
            let stored = ["llama-bf16-torch", "qwen2-f16-torch"].contains(&name.as_str());
            let model =
                if stored { name.trim_end_matches("-torch") } else { name.split('-').next().unwrap_or_default() };
            let explanation = run(&fixtures().join("models").join(model), &path, None, None, None);
            assert!(explanation.findings.is_empty(), "{name}: {:?}", causes(&explanation));
        }
    }
}

#[test]
fn another_arithmetic_is_no_mistake() {
    let dump = fixtures().join("right/llama-llama-cpp-f16.npz");
    let explanation = run(&fixtures().join("models/llama"), &dump, Some(Profile::F32), None, None);
    let (stated, open) = causes(&explanation);
    assert!(!stated.is_empty() && stated.iter().all(|s| s.starts_with("precision")) && open == 0, "{stated:?}, {open}");
}

#[test]
fn one_token_shows_little_and_that_is_said() {
    let model = load(fixtures().join("models/llama")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let recorder = firstdiff_trace::Recorder::create(folder.path().join("d")).unwrap();
    recorder.tokens(&[5]);
    let prompt = firstdiff_model::Prompt { tokens: &[5], decode_tokens: &[] };
    firstdiff_model::run::<firstdiff_model::ModelError>(
        &model.plan,
        &model.weights,
        prompt,
        Profile::F32,
        |_| true,
        |tap, _, values| {
            if let firstdiff_model::TapValues::F32(x) = values {
                recorder.record_view(tap, x).unwrap();
            }
            Ok(())
        },
    )
    .unwrap();
    recorder.finish().unwrap();
    let explanation = run(&fixtures().join("models/llama"), &folder.path().join("d"), None, Some(vec![5]), None);
    assert!(explanation.findings.is_empty());
    for id in ["rope-pairing", "rope-theta", "mask-omitted", "kv-cache-shift"] {
        assert!(explanation.not_testable.iter().any(|i| i == id), "{id} could not have shown");
    }
}

#[test]
fn field_case_1_two_buffers_alias() {
    let field = fixtures().join("field");
    for dump in ["celer_infer.npz", "celer_infer-logits.npz"] {
        let explanation = run(&field.join("celer_infer.json"), &field.join(dump), None, None, None);
        let due = ["residual-source: layers.0.h_attn", "residual-source: layers.0.h"].map(str::to_owned).to_vec();
        assert_eq!(causes(&explanation), (due, 0), "{dump}");
        let sums: Vec<String> =
            explanation.findings.iter().map(|f| f.cause.as_ref().unwrap().params[0].1.to_string()).collect();
        assert_eq!(sums, ["\"2*stream\"", "\"normed + branch\""], "{dump}");
    }
}

#[test]
fn field_cases_2_and_3_every_matrix_is_read_the_wrong_way_around() {
    let field = fixtures().join("field");
    let explanation = run(&field.join("rustorch.gguf"), &field.join("rustorch.npz"), None, None, None);
    assert_eq!(causes(&explanation), (vec!["weight-transposed: layers.0.q".into()], 0));
    assert_eq!(explanation.findings[0].taps.len(), 14, "q, k, v, o, gate, up and down of both layers");
}

#[test]
#[ignore = "slow: cargo test -- --ignored, as .ci/run does"]
fn field_case_4_four_mistakes_at_once_from_the_logits() {
    let Some(field) = shared() else { return };
    let folder = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(field.join("wasm-chord/out/logits.f32")).unwrap();
    let logits: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let recorder = firstdiff_trace::Recorder::create(folder.path().join("d")).unwrap();
    recorder.record("logits", &[5, 512], &logits).unwrap();
    recorder.finish().unwrap();
    let tokens = vec![1, 403, 407, 261, 378];
    let model = field.join("wasm-chord/stories-untied-q8_0.gguf");
    let (stated, open) = causes(&run(&model, &folder.path().join("d"), None, Some(tokens), None));
    let ids: BTreeSet<&str> = stated.iter().map(|s| s.split(':').next().unwrap()).collect();
    assert_eq!(ids, BTreeSet::from(["dequant-truncated", "norm-eps-outside", "rope-pairing", "weight-transposed"]));
    assert_eq!(open, 0);
}

#[test]
fn field_case_5_three_mistakes_each_by_itself() {
    let Some(field) = shared() else { return };
    let tokens = vec![1, 403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421, 395, 317, 426];
    let field = field.join("llama-orch");
    let explanation = run(&field.join("model-f32.gguf"), &field.join("engine"), None, Some(tokens), None);
    let (stated, open) = causes(&explanation);
    let ids: BTreeSet<&str> = stated.iter().map(|s| s.split(':').next().unwrap()).collect();
    assert_eq!((ids, open), (BTreeSet::from(["bias-omitted", "rope-pairing", "weight-transposed"]), 0));
    let rope = explanation.findings.iter().find(|f| f.cause.as_ref().unwrap().id == "rope-pairing").unwrap();
    assert!(rope.note.as_ref().unwrap().contains("position 0"), "token 0 could not show it");
}

#[test]
fn a_mistake_of_the_cache_is_not_told_from_its_like_by_one_later_step() {
    let dump = Dump::open(fixtures().join("faulty/qwen2-kv-cache-stale-layer1.npz")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    // Of the other decode steps nothing behind the cache is known.
    for (steps, stated) in [(vec![3], false), (vec![2, 3], true), (vec![1], true)] {
        let path = folder.path().join(format!("{steps:?}"));
        let recorder = firstdiff_trace::Recorder::create(&path).unwrap();
        recorder.describe(|meta| *meta = firstdiff_trace::Meta { taps: None, ..dump.meta().clone() });
        for step in 0..=3 {
            let known = |site| step == 0 || steps.contains(&step) || matches!(site, Site::K | Site::V | Site::KRope);
            for entry in dump.entries().iter().filter(|e| e.step == step && known(e.tap.site)) {
                let values: Vec<f32> = dump.read(entry).unwrap().values().to_f64().iter().map(|&x| x as f32).collect();
                recorder.record(entry.tap, &entry.shape, &values).unwrap();
            }
            if let Some(token) = dump.meta().decode_tokens.as_ref().and_then(|ids| ids.get(step as usize)) {
                recorder.next_step(*token);
            }
        }
        recorder.finish().unwrap();
        let explanation = run(&fixtures().join("models/qwen2"), &path, None, None, None);
        let (causes, open) = causes(&explanation);
        assert_eq!(causes.iter().any(|c| c.starts_with("kv-cache-stale")), stated, "{steps:?}: {causes:?}");
        assert!(stated || open > 0);
    }
}

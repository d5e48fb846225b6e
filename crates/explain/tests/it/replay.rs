//! Does a replay find the wrong operation of every faulty engine, and none in any right one? PyTorch's, llama.cpp's and a NumPy engine's dumps.
//!
//! None of them shares code with the crates; scripts/goldens/make_fixtures.py says in index.json where each planted mistake must show.

use std::path::{Path, PathBuf};

use firstdiff_compare::{Place, Status};
use firstdiff_explain::model::replay;
use firstdiff_explain::replay::{Options, Replay};
use firstdiff_model::{Cache, Profile, load};
use firstdiff_trace::{Dump, Site, Tap};

use crate::common::{fixtures, precision};

fn run(model: &Path, dump: &Path, profile: Option<Profile>) -> Replay {
    let forms = ["", ".npz", ".safetensors"].map(|ending| PathBuf::from(format!("{}{ending}", dump.display())));
    let dump = Dump::open(forms.iter().find(|p| p.exists()).unwrap()).unwrap();
    let options = Options::declared(&dump, profile.unwrap_or_else(|| precision(&dump))).unwrap();
    replay(&load(model).unwrap(), &dump, &options, &mut |_, _| {}).unwrap()
}

/// The taps of the wrong operations, in whichever step.
fn wrong(replay: &Replay) -> Vec<String> {
    let wrong = replay.taps.iter().filter(|t| t.report.status == Status::Diverged);
    wrong.map(|t| t.report.place.tap.to_string()).collect()
}

#[test]
fn no_right_run_is_called_wrong() {
    let mut alarms = Vec::new();
    for folder in ["golden", "right"] {
        for entry in std::fs::read_dir(fixtures().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            if name == "index" {
                continue;
            }
            let stored = ["llama-bf16-torch", "qwen2-f16-torch"].contains(&name.as_str());
            let model =
                if stored { name.trim_end_matches("-torch") } else { name.split('-').next().unwrap_or_default() };
            let replay = run(&fixtures().join("models").join(model), &path.with_extension(""), None);
            let (right, bad) = (replay.count(Status::agrees), wrong(&replay));
            println!("{name:<24} {right:>4} right");
            if right < 20 || !bad.is_empty() {
                alarms.push(format!("{name}: {right} right, wrong {bad:?}"));
            }
        }
    }
    assert!(alarms.is_empty(), "{}", alarms.join("\n"));
}

#[test]
fn every_planted_mistake_is_named_where_it_is() {
    let text = std::fs::read_to_string(fixtures().join("faulty/index.json")).unwrap();
    let cases: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let mut missed = Vec::new();
    for case in &cases {
        let (file, tap) = (case["file"].as_str().unwrap(), case["first_recorded"]["tap"].as_str().unwrap());
        let family = file.trim_start_matches("faulty/").split('-').next().unwrap();
        let dump = fixtures().join(file.trim_end_matches(".npz"));
        let wrong = wrong(&run(&fixtures().join("models").join(family), &dump, None));
        if !wrong.iter().any(|found| found == tap) {
            missed.push(format!("{file}: {tap} expected, {wrong:?} found"));
        }
    }
    assert!(missed.is_empty(), "{} of {}:\n{}", missed.len(), cases.len(), missed.join("\n"));
    println!("{} of {} named", cases.len(), cases.len());
}

/// llama.cpp rounds activations to f16 before a product with f16 weights: in its own arithmetic nothing is left.
#[test]
fn llama_cpps_f16_products_come_out_in_its_own_arithmetic() {
    let dump = fixtures().join("right/llama-llama-cpp-f16");
    let replay = run(&fixtures().join("gguf/llama-f16.gguf"), &dump, Some(Profile::Ggml { cache: Cache::F16 }));
    let linear = replay.taps.iter().filter(|t| t.report.op == "linear" && t.through.is_empty());
    let worst = linear.filter_map(|t| t.report.metrics?.nmse()).fold(0.0, f64::max);
    assert!(worst > 0.0 && worst < 1e-12, "{worst:e}");
    assert_eq!(wrong(&replay), [""; 0]);
}

/// The rows in which the scores of a layer are wrong by themselves, where masked places are filled as PyTorch fills them, and those from a query on are half as
/// large again.
fn wrong_scores(from: usize) -> (Status, Vec<usize>) {
    let explanation = crate::again::changed("llama", "golden/llama-torch", &|dump, tap, step, x| {
        let keys = dump.find(tap, step).unwrap().shape.last().copied().unwrap();
        let filled = |(at, score): (usize, f32)| match score {
            score if score < -9000.0 => f32::MIN,
            score if step == 0 && at / keys % 11 >= from => 1.5 * score,
            score => score,
        };
        let is_it = tap == Tap::layer(0, Site::Scores);
        Some(if is_it { x.into_iter().enumerate().map(filled).collect() } else { x })
    });
    let place = Place { tap: Tap::layer(0, Site::Scores), step: 0 };
    let scores = explanation.replay.taps.into_iter().find(|t| t.report.place == place).unwrap();
    (scores.report.status, scores.wrong_rows)
}

#[test]
fn what_fills_masked_places_is_in_no_norm() {
    // The last query has no masked key: its row alone was seen beside those that a fill of -3.4e38 drowns.
    for from in [0, 4] {
        assert_eq!(wrong_scores(from), (Status::Diverged, (from..11).collect()));
    }
    let (status, rows) = wrong_scores(11);
    assert!(status.agrees() && rows.is_empty(), "{status:?} {rows:?}");
}

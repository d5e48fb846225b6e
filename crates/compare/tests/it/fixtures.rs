//! Checks the first divergence on dumps of real engines: right for every faulty fixture, and no false alarm on any right one.
//!
//! The references are PyTorch's; the faulty candidates come from a NumPy engine that shares no code with the crates. index.json, written beside them by
//! scripts/goldens/make_fixtures.py, says where each mistake must show.

use std::path::{Path, PathBuf};

use firstdiff_compare::{Options, Profile, Report, Status, Verdict, compare, graph_of};
use firstdiff_trace::Dump;
use serde_json::Value;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

fn index(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(fixtures().join(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn judged(reference: &str, candidate: &str, profile: Profile) -> Report {
    let open = |name: &str| {
        let path = fixtures().join(name);
        // The index names a dump without its form.
        let forms = ["", ".npz", ".safetensors"].map(|ending| PathBuf::from(format!("{}{ending}", path.display())));
        Dump::open(forms.iter().find(|p| p.exists()).unwrap_or(&path)).unwrap()
    };
    let (left, right) = (open(reference), open(candidate));
    compare(&left, &right, &graph_of(&left, &right), &Options::new(profile), &mut |_, _| {}).unwrap()
}

#[test]
fn the_first_diverging_tap_of_every_faulty_candidate() {
    let mut wrong = Vec::new();
    let cases = index("faulty/index.json");
    let mistakes: std::collections::BTreeSet<&str> = cases.iter().filter_map(|c| c["mistake"].as_str()).collect();
    assert!(mistakes.len() >= 24, "{} different mistakes", mistakes.len());
    for case in &cases {
        let (file, reference) = (case["file"].as_str().unwrap(), case["reference"].as_str().unwrap());
        let report = judged(reference, file, Profile::F32);
        let expected =
            (case["first_recorded"]["tap"].as_str().unwrap(), case["first_recorded"]["step"].as_u64().unwrap());
        let first = report.first.as_ref().map(|f| report.taps[f.index].place);
        let found = first.map(|p| (p.tap.to_string(), u64::from(p.step)));
        if found.as_ref().map(|(tap, step)| (tap.as_str(), *step)) != Some(expected) {
            wrong.push(format!("{file}: {expected:?} expected, {found:?} found"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    println!("{} of {} first taps right, {} different mistakes", cases.len(), cases.len(), mistakes.len());
}

#[test]
fn no_false_alarm_on_right_implementations() {
    let mut alarms = Vec::new();
    let mut cases = index("right/index.json");
    for family in ["llama", "qwen2", "qwen3", "minimind"] {
        let text = format!(
            r#"{{"file": "golden/{family}-llama-cpp", "reference": "golden/{family}-torch", "profile": "f32"}}"#
        );
        cases.push(serde_json::from_str(&text).unwrap());
    }
    for case in cases {
        let (file, reference) =
            (case["file"].as_str().unwrap(), case["reference"].as_str().unwrap().trim_end_matches(".npz"));
        let profile: Profile = case["profile"].as_str().unwrap().parse().unwrap();
        let report = judged(reference, file, profile);
        let worst = report
            .taps
            .iter()
            .filter_map(|t| Some((t.metrics?.nmse()? / t.allowed?, t)))
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let (share, tap) = worst.unwrap();
        let nmse = tap.metrics.unwrap().nmse().unwrap();
        println!(
            "{file:<32} {profile:<5} worst {nmse:.1e} at {}, {:.0} % of what is allowed",
            tap.place,
            100.0 * share
        );
        for tap in report.taps.iter().filter(|t| t.status.differs()) {
            alarms.push(format!("{file}: {} {:?}", tap.place, tap.reason));
        }
        if report.verdict != Verdict::Parity {
            alarms.push(format!("{file}: {:?}", report.verdict));
        }
        assert!(report.count(|s| s != Status::Unchecked) > 5, "{file}");
    }
    assert!(alarms.is_empty(), "{}", alarms.join("\n"));
}

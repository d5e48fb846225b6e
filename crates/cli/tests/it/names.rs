//! Checks that a tensor is identified by the reference's own name, whatever that name means in other programs, and that a table may name any tap of the
//! reference.

use std::path::{Path, PathBuf};

use firstdiff_trace::{GraphNode, Recorder};
use serde_json::Value;

use crate::common::{firstdiff, in_one_line, json, refused};

const T: usize = 9;
const D: usize = 16;
const NAMES: [&str; 9] = [
    "visual.layers.0.h",
    "visual/merger",
    "h0",
    "layers.0.ffn/gate",
    "layers.0.h",
    "layers.1.ffn/gate",
    "layers.1.h",
    "model/norm",
    "logits",
];

fn values(name: &str) -> Vec<f32> {
    let seed = NAMES.iter().position(|own| *own == name).unwrap() as u64;
    let number = |at: u64| (at + 1000 * (seed + 1)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    (0..(T * D) as u64).map(|at| number(at) as f32 / 65536.0 - 128.0).collect()
}

/// A run of all taps, each under the name that `called` gives it, with the tap `wrong` off by a factor.
fn run(folder: &Path, graph: bool, called: impl Fn(&str) -> String, wrong: &str) -> String {
    let rec = Recorder::create(folder).unwrap();
    rec.tokens(&[3; T]);
    for name in NAMES {
        let factor = if name == wrong { 1.5 } else { 1.0 };
        let values: Vec<f32> = values(name).into_iter().map(|x| x * factor).collect();
        rec.record(called(name), &[T, D], &values).unwrap();
    }
    if graph {
        let node = |at: usize| GraphNode {
            tap: called(NAMES[at]),
            op: Some("op".into()),
            reads: NAMES[..at].last().map(|name| called(name)).into_iter().collect(),
        };
        rec.describe(|meta| meta.graph = Some((0..NAMES.len()).map(node).collect()));
    }
    rec.finish().unwrap();
    folder.to_string_lossy().into_owned()
}

struct Case {
    folder: tempfile::TempDir,
}

impl Case {
    fn new() -> Case {
        Case { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn golden(&self, graph: bool) -> String {
        run(&self.path("golden"), graph, str::to_owned, "")
    }

    fn map(&self, text: &str) -> String {
        let path = self.path("map.toml");
        std::fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    }
}

/// Checks that every tensor of both is compared and agrees, or that `first` is the first that does not.
#[track_caller]
fn all_compared(report: &Value, first: Option<&str>) {
    let statuses: Vec<_> = report["taps"].as_array().unwrap().iter().map(|tap| (&tap["tap"], &tap["status"])).collect();
    assert_eq!(statuses.len(), NAMES.len(), "{statuses:?}");
    assert!(statuses.iter().all(|(_, status)| **status != "unchecked"), "{statuses:?}");
    assert_eq!([&report["one_sided"], &report["unmapped"]].map(|names| names.as_array().unwrap().len()), [0, 0]);
    assert_eq!(report["first_divergence"]["tap"].as_str(), first);
}

#[test]
fn what_the_reference_calls_so_is_that_tap() {
    for (ours, theirs) in [(true, false), (false, true), (true, true), (false, false)] {
        let case = Case::new();
        let golden = case.golden(ours);
        let right = run(&case.path("right"), theirs, str::to_owned, "");
        all_compared(&json(&["compare", &golden, &right]), None);
    }
    let case = Case::new();
    let golden = case.golden(true);
    for wrong in ["layers.1.ffn/gate", "model/norm", "visual/merger"] {
        let candidate = run(&case.path(&wrong.replace('/', "-")), false, str::to_owned, wrong);
        all_compared(&json(&["compare", &golden, &candidate]), Some(wrong));
    }
}

#[test]
fn a_wrapper_and_separators_are_no_part_of_a_name() {
    let case = Case::new();
    let golden = case.golden(true);
    let wrapped = |name: &str| match name.starts_with("visual") {
        true => format!("model.{}", name.replace('/', ".")),
        false => name.replace("ffn/", "ffn."),
    };
    for graph in [false, true] {
        let right = run(&case.path(&format!("right-{graph}")), graph, wrapped, "");
        all_compared(&json(&["compare", &golden, &right]), None);
    }
    let wrong = run(&case.path("wrong"), false, wrapped, "visual.layers.0.h");
    all_compared(&json(&["compare", &golden, &wrong]), Some("visual.layers.0.h"));
}

#[test]
fn a_table_may_name_any_tap_of_the_reference() {
    let case = Case::new();
    let golden = case.golden(true);
    let own = |name: &str| match name.split_once(".ffn/") {
        Some((layer, _)) => layer.replace("layers.", "g_"),
        None => name.replace("model/norm", "n").replace("visual/merger", "vm"),
    };
    let candidate = run(&case.path("own"), false, own, "model/norm");
    let map = case.map("\"g_{N}\" = \"layers.{N}.ffn/gate\"\nn = \"model/norm\"\nvm = \"visual/merger\"\n");
    all_compared(&json(&["compare", &golden, &candidate, "--map", &map]), Some("model/norm"));
    let map = case.map("n = \"model/norms\"\n");
    refused(&firstdiff(&["compare", &golden, &candidate, "--map", &map]), &["model/norms", "not a tap", "judged by"]);
    refused(&firstdiff(&["replay", "models/llama", &candidate, "--map", &map]), &["model/norms", "not a tap"]);
    // A name of the table that the candidate does not have is said; a table of which it has none is another engine's.
    let map = case.map("\"g_{N}\" = \"layers.{N}.ffn/gate\"\nn = \"model/norm\"\nx = \"visual/merger\"\n");
    let report = json(&["compare", &golden, &candidate, "--map", &map]);
    let said = report["warnings"].to_string();
    assert!(said.contains("no tensor of the names in it for visual/merger"), "{said}");
    assert_eq!(report["first_divergence"]["tap"], "model/norm");
    let map = case.map("x = \"visual/merger\"\n\"y_{N}\" = \"layers.{N}.ffn/gate\"\n");
    let words = ["has no tensor of any name in it", "visual/merger", "its unknown names are"];
    refused(&firstdiff(&["compare", &golden, &candidate, "--map", &map]), &words);
    let map = case.map("n = \"model/norm\"\nvm = \"model/norm\"\n");
    refused(&firstdiff(&["compare", &golden, &candidate, "--map", &map]), &["model/norm is there twice"]);
}

#[test]
fn open_taps_are_proposed() {
    let case = Case::new();
    let golden = case.golden(true);
    let own = |name: &str| match name.split_once(".ffn/") {
        Some((layer, _)) => layer.replace("layers.", "g_"),
        None => name.replace("model/norm", "n").replace("visual.layers.0.h", "eye"),
    };
    let candidate = run(&case.path("own"), false, own, "");
    let table = case.path("table.toml").to_string_lossy().into_owned();
    assert!(firstdiff(&["align", &golden, &candidate, "-o", &table]).status.success());
    let text = std::fs::read_to_string(&table).unwrap();
    for line in ["\"g_{N}\" = \"layers.{N}.ffn/gate\"", "\"n\" = \"model/norm\"", "\"eye\" = \"visual.layers.0.h\""] {
        assert!(text.lines().any(|own| own.starts_with(line)), "{text}");
    }
    all_compared(&json(&["compare", &golden, &candidate, "--map", &table]), None);
    let known = firstdiff(&["align", &golden, &golden]);
    assert!(in_one_line(&String::from_utf8_lossy(&known.stdout)).contains("nothing to align"));
}

//! Checks that nothing in two dumps is left out of a comparison without a report: folders of ranks and of steps, names outside the vocabulary, wrong lists.

use std::fs;
use std::path::Path;

use firstdiff_compare::{Options, Profile, Report, Status, Verdict, compare, graph_of};
use firstdiff_trace::{Dump, DumpError, Recorder, Tap};

const SCAN: &str = "layers.0.scan";

/// A dump of a few taps, one with a name of its own; every value is `off` from the right one where `wrong` names the tap.
fn written(folder: &Path, wrong: &[&str], cut: Option<usize>) {
    let recorder = Recorder::create(folder).unwrap();
    recorder.tokens(&[1, 2, 3, 4]);
    for (number, name) in ["h0", "layers.0.q", SCAN, "layers.0.h", "logits"].into_iter().enumerate() {
        let off = if wrong.contains(&name) { 1.0 } else { 0.0 };
        let value = |t: usize, i: usize| ((t * 7 + i * 5 + number) % 11) as f32 - 5.0 + off;
        let columns = match cut.filter(|_| name == "layers.0.q") {
            Some(rank) => 4 * rank..4 * rank + 4,
            None => 0..8,
        };
        let shape = if name == "layers.0.q" { vec![4, columns.len() / 4, 4] } else { vec![4, columns.len()] };
        let values: Vec<f32> = (0..4).flat_map(|t| columns.clone().map(move |i| value(t, i))).collect();
        recorder.record(name, &shape, &values).unwrap();
    }
    recorder.finish().unwrap();
}

fn judged(reference: &Path, candidate: &Path) -> Report {
    let (reference, candidate) = (Dump::open(reference).unwrap(), Dump::open(candidate).unwrap());
    let graph = graph_of(&reference, &candidate);
    compare(&reference, &candidate, &graph, &Options::new(Profile::F32), &mut |_, _| {}).unwrap()
}

fn status(report: &Report, name: &str) -> Status {
    report.tap(Tap::named(name), 0).unwrap_or_else(|| panic!("nothing is said of {name}")).status
}

#[test]
fn what_no_rank_joins_is_unchecked_where_both_sides_are_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let side = |name: &str, wrong: &[&str]| {
        let path = folder.path().join(name);
        fs::create_dir(&path).unwrap();
        (0..2).for_each(|rank| written(&path.join(format!("rank{rank}")), wrong, Some(rank)));
        path
    };
    let report = judged(&side("a", &[]), &side("b", &["layers.0.q"]));
    assert_eq!(status(&report, "layers.0.q"), Status::Unchecked);
    assert_eq!((status(&report, SCAN), report.verdict), (Status::Exact, Verdict::Parity));
}

#[test]
fn ranks_that_are_neither_equal_nor_a_sum_are_no_parity() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    written(&path("right"), &[], None);
    for (name, wrong, verdict) in [("equal", &[][..], true), ("unlike", &["layers.0.h"], false)] {
        fs::create_dir(path(name)).unwrap();
        written(&path(name).join("rank0"), &[], None);
        written(&path(name).join("rank1"), wrong, None);
        let report = judged(&path("right"), &path(name));
        assert_eq!(report.verdict == Verdict::Parity, verdict, "{name}: {:?}", report.verdict);
        assert!(report.first.is_none());
    }
}

#[test]
fn names_of_a_run_are_compared_in_folders_of_ranks_and_of_steps() {
    for folders in ["rank", "step"] {
        let folder = tempfile::tempdir().unwrap();
        let side = |name: &str, wrong: &[&str]| {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            (0..2).for_each(|n| written(&path.join(format!("{folders}{n}")), wrong, None));
            path
        };
        let (right, wrong) = (side("a", &[]), side("b", &[SCAN]));
        let report = judged(&right, &wrong);
        assert_eq!((status(&report, SCAN), report.verdict), (Status::Diverged, Verdict::Diverged), "{folders}");
        assert_eq!(judged(&right, &right).verdict, Verdict::Parity, "{folders}");
        // One of several, alone.
        let report = judged(&right.join(format!("{folders}0")), &wrong.join(format!("{folders}0")));
        assert_eq!(status(&report, SCAN), Status::Diverged, "{folders}");
    }
}

#[test]
fn what_ranks_printed_is_compared_where_they_printed_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let side = |name: &str, values: [&str; 2]| {
        let path = folder.path().join(name);
        fs::create_dir(&path).unwrap();
        for (rank, values) in values.into_iter().enumerate() {
            let rank = path.join(format!("rank{rank}"));
            fs::create_dir(&rank).unwrap();
            fs::write(rank.join("layers.0.h.txt"), values).unwrap();
            fs::write(rank.join("h0.txt"), "1.500 2.500 3.500\n0.250 0.500 0.750\n").unwrap();
        }
        path
    };
    let (one, two) = ("0.125 -1.000 2.000\n1.000 0.500 3.000\n", "0.125 -1.000 2.000\n1.000 0.500 9.000\n");
    let right = side("a", [one, one]);
    assert_eq!(judged(&right, &side("b", [two, two])).verdict, Verdict::Diverged);
    assert_eq!(status(&judged(&right, &side("c", [one, two])), "layers.0.h"), Status::Unchecked);
    assert_eq!(judged(&right, &right).verdict, Verdict::Parity);
}

#[test]
fn a_list_that_is_not_true_of_a_name_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let changed = |change: &dyn Fn(&Path, &mut serde_json::Value)| {
        let path = folder.path().join("d");
        if path.exists() {
            fs::remove_dir_all(&path).unwrap();
        }
        written(&path, &[], None);
        let json = path.join("dump.json");
        let mut meta: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
        change(&path, &mut meta);
        fs::write(&json, meta.to_string()).unwrap();
        Dump::open(&path)
    };
    let at = |meta: &serde_json::Value| {
        meta["taps"].as_array().unwrap().iter().position(|tap| tap["tap"] == SCAN).expect("it is listed")
    };
    assert!(changed(&|_, _| {}).is_ok());
    let shape = changed(&|_, meta| {
        let at = at(meta);
        meta["taps"][at]["shape"] = serde_json::json!([8, 4]);
    });
    assert!(matches!(shape, Err(DumpError::Meta { .. })), "{shape:?}");
    let cut = changed(&|path, _| {
        let file = path.join(format!("{SCAN}.npy"));
        let bytes = fs::read(&file).unwrap();
        fs::write(&file, &bytes[..bytes.len() - 4]).unwrap();
    });
    assert!(matches!(cut, Err(DumpError::Npy { .. })), "{cut:?}");
    let twice = changed(&|path, meta| {
        let at = at(meta);
        fs::copy(path.join("h0.npy"), path.join("other.npy")).unwrap();
        let mut other = meta["taps"][at].clone();
        other["file"] = "other.npy".into();
        meta["taps"].as_array_mut().unwrap().push(other);
    });
    assert!(matches!(twice, Err(DumpError::Twice { .. })), "{twice:?}");
}

#[test]
fn a_dump_json_that_was_cut_off_is_refused_beside_steps_and_a_pattern() {
    let folder = tempfile::tempdir().unwrap();
    (0..2).for_each(|n| written(&folder.path().join(format!("step{n}")), &[], None));
    assert!(Dump::open(folder.path()).is_ok());
    fs::write(folder.path().join("dump.json"), r#"{"format": 1, "complete": false"#).unwrap();
    assert!(matches!(Dump::open(folder.path()), Err(DumpError::Meta { .. })));
    let step = folder.path().join("step0");
    let pattern = step.join("*.npy");
    assert!(Dump::open(&pattern).is_ok());
    fs::write(step.join("dump.json"), r#"{"format": 1, "complete": false"#).unwrap();
    assert!(matches!(Dump::open(&pattern), Err(DumpError::Meta { .. })));
    // Another program's file of that name is not a dump.json.
    fs::write(step.join("dump.json"), r#"["something", "else"]"#).unwrap();
    assert!(Dump::open(&pattern).unwrap().notes().iter().any(|note| note.contains("dump.json: not read")));
}

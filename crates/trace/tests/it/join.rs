//! Checks that rank dumps are joined by their notation: cut, summed, replicated, and what cannot be joined.

use std::fs;
use std::path::Path;

use firstdiff_trace::{Dump, Recorder, Share};

/// Writes a rank's dump with these tensors, and `dims` as its table of notations.
fn rank(folder: &Path, name: &str, taps: &[(&str, &[usize], Vec<f32>)], dims: &str) {
    let path = folder.join(name);
    let recorder = Recorder::create(&path).unwrap();
    recorder.tokens(&[1, 2, 3]);
    for (tap, shape, values) in taps {
        recorder.record(tap, shape, values).unwrap();
    }
    recorder.finish().unwrap();
    let json = path.join("dump.json");
    let text = fs::read_to_string(&json).unwrap();
    fs::write(&json, text.replacen('{', &format!("{{\"dims\": {{{dims}}},"), 1)).unwrap();
}

fn values(dump: &Dump, tap: &str) -> Vec<f64> {
    dump.read(dump.find(tap.parse().unwrap(), 0).unwrap()).unwrap().values().to_f64()
}

fn shape(dump: &Dump, tap: &str) -> Vec<usize> {
    dump.find(tap.parse().unwrap(), 0).unwrap().shape.clone()
}

#[test]
fn pieces_are_joined_and_brought_into_the_vocabularys_order() {
    let folder = tempfile::tempdir().unwrap();
    let dims =
        r#""layers.*.q": "H[tp] T d", "layers.*.ffn_up": "T F[tp]", "layers.*.attn_out": "T D partial", "h0": "T D""#;
    for (name, r) in [("rank0", 0.0f32), ("rank1", 100.0)] {
        let q: Vec<f32> = (0..6).map(|i| r + i as f32).collect();
        let taps: [(&str, &[usize], Vec<f32>); 4] = [
            ("h0", &[3, 2], vec![1.0; 6]),
            ("layers.0.q", &[1, 3, 2], q),
            ("layers.0.ffn_up", &[3, 1], vec![r + 1.0, r + 2.0, r + 3.0]),
            ("layers.0.attn_out", &[3, 2], vec![r + 0.5; 6]),
        ];
        rank(folder.path(), name, &taps, dims);
    }
    let dump = Dump::open(folder.path()).unwrap();
    assert_eq!(dump.meta().tokens, Some(vec![1, 2, 3]));
    assert_eq!(shape(&dump, "layers.0.q"), [3, 2, 2]);
    assert_eq!(values(&dump, "layers.0.q"), [0.0, 1.0, 100.0, 101.0, 2.0, 3.0, 102.0, 103.0, 4.0, 5.0, 104.0, 105.0]);
    assert_eq!(values(&dump, "layers.0.ffn_up"), [1.0, 101.0, 2.0, 102.0, 3.0, 103.0]);
    assert_eq!(values(&dump, "layers.0.attn_out"), [101.0; 6]);
    let ranks = dump.ranks().unwrap();
    let how = ranks.joined("layers.0.q".parse().unwrap(), 0).unwrap();
    assert_eq!((how.share, how.axis, &how.bounds[..]), (Share::Sliced(0), 1, &[0, 1, 2][..]));
}

#[test]
fn without_a_notation_only_equal_replicas_are_joined() {
    let folder = tempfile::tempdir().unwrap();
    for (name, r) in [("tp-0", 0.0f32), ("tp-1", 1.0)] {
        rank(folder.path(), name, &[("h0", &[1, 2], vec![5.0, 6.0]), ("logits", &[1, 2], vec![r, 2.0])], "");
    }
    let dump = Dump::open(folder.path()).unwrap();
    assert_eq!(values(&dump, "h0"), [5.0, 6.0]);
    assert!(dump.find("logits".parse().unwrap(), 0).is_none());
    assert!(dump.ranks().unwrap().why_not_joined("logits".parse().unwrap(), 0).unwrap().contains("dims"));
}

#[test]
fn of_replicas_that_differ_the_majority_stands() {
    let folder = tempfile::tempdir().unwrap();
    for (name, x) in [("rank_0", 9.0f32), ("rank_1", 5.0), ("rank_2", 5.0)] {
        rank(folder.path(), name, &[("h0", &[1, 2], vec![x, 6.0])], r#""*": "T D""#);
    }
    let dump = Dump::open(folder.path()).unwrap();
    assert_eq!(values(&dump, "h0"), [5.0, 6.0]);
}

#[test]
fn what_does_not_join_is_refused_or_told() {
    let folder = tempfile::tempdir().unwrap();
    rank(folder.path(), "rank0", &[("h0", &[1, 2], vec![5.0, 6.0])], r#""h0": "T D[tp]""#);
    rank(folder.path(), "rank1", &[("h0", &[2, 1], vec![5.0, 6.0])], "");
    let dump = Dump::open(folder.path()).unwrap();
    assert!(dump.ranks().unwrap().why_not_joined("h0".parse().unwrap(), 0).unwrap().contains("do not join"));
    fs::rename(folder.path().join("rank1"), folder.path().join("rank3")).unwrap();
    assert!(Dump::open(folder.path()).unwrap_err().to_string().contains("rank 1 is not among them"));
    fs::rename(folder.path().join("rank3"), folder.path().join("rank1")).unwrap();
    for bad in ["T D[", "T D[tp] partial", "Q"] {
        let text = format!(r#"{{"dims": {{"h0": "{bad}"}}, "tokens": [1, 2, 3]}}"#);
        fs::write(folder.path().join("rank0/dump.json"), text).unwrap();
        assert!(Dump::open(folder.path()).unwrap_err().to_string().contains("dims"), "{bad}");
    }
}

/// A single rank's dump that is opened alone is recognised by its folder name or its dims.
#[test]
fn a_rank_opened_by_itself_is_no_whole_run() {
    let folder = tempfile::tempdir().unwrap();
    let tap: [(&str, &[usize], Vec<f32>); 2] =
        [("layers.0.attn_out", &[3, 2], vec![0.5; 6]), ("layers.0.h_attn", &[3, 2], vec![1.5; 6])];
    rank(folder.path(), "rank0", &tap, "");
    rank(folder.path(), "mine", &tap, r#""*.attn_out": "T D partial""#);
    rank(folder.path(), "whole", &tap, r#""*": "T D""#);
    let open = |name: &str| Dump::open(folder.path().join(name)).unwrap();
    let out = "layers.0.attn_out".parse().unwrap();
    assert!(!open("rank0").ranks().unwrap().joined(out, 0).unwrap().is_declared);
    assert!(open("mine").ranks().unwrap().why_not_joined(out, 0).unwrap().contains("missing"));
    assert!(open("whole").ranks().is_none());
}

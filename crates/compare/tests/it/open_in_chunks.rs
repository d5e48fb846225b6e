//! Checks that taps outside the vocabulary are compared where the two runs have different chunks, and that the rest counts as not checked.

use std::path::Path;

use firstdiff_compare::{
    Aligned, AxisUnknown, CellsOf, CutError, Options, Profile, Reason, Report, Status, Unaligned, Verdict, align,
    compare, graph_of,
};
use firstdiff_trace::{Dump, GraphNode, Recorder};
use tempfile::tempdir;

const T: usize = 9;
const D: usize = 12;

/// The shape and values of a token's row.
type Rows = dyn Fn(usize) -> Vec<f32>;

fn value(seed: usize, at: usize) -> f32 {
    ((seed * 7919 + at * 104_729 + 13) as f32 * 12.9898).sin()
}

fn row(seed: usize) -> Box<Rows> {
    Box::new(move |t| (0..D).map(|i| value(seed, t * D + i)).collect())
}

/// Taps of a step: by token, by token in the second axis, of no token, and of an expert.
fn record(recorder: &Recorder, tokens: std::ops::Range<usize>, wrong: &str, at: usize) {
    let fault = |name: &str, t: usize, x: f32| if name == wrong && t == at { 1.01 * x } else { x };
    let by_token = |name: &str, seed: usize| -> Vec<f32> {
        let rows = row(seed);
        tokens.clone().flat_map(|t| rows(t).into_iter().map(|x| fault(name, t, x)).collect::<Vec<_>>()).collect()
    };
    let n = tokens.len();
    recorder.record("h0", &[n, D], &by_token("h0", 1)).unwrap();
    recorder.record("layers.0.latent", &[n, D], &by_token("layers.0.latent", 2)).unwrap();
    // [heads, tokens, d]
    let rows = row(3);
    let heads = (0..3).flat_map(|h| tokens.clone().flat_map(move |t| (0..4).map(move |i| (t, h * 4 + i))));
    let values: Vec<f32> = heads.map(|(t, at)| fault("layers.0.turned", t, rows(t)[at])).collect();
    recorder.record("layers.0.turned", &[3, n, 4], &values).unwrap();
    recorder.record("layers.0.state", &[D], &row(4)(tokens.end - 1)).unwrap();
    // An expert takes every second token.
    let sent: Vec<usize> = tokens.clone().filter(|t| t % 2 == 0).collect();
    if !sent.is_empty() {
        let values: Vec<f32> = sent.iter().flat_map(|&t| row(5)(t)).collect();
        recorder.record("layers.0.experts.0.ffn_out", &[sent.len(), D], &values).unwrap();
    }
    recorder.record("layers.0.h", &[n, D], &by_token("layers.0.h", 6)).unwrap();
}

fn write(folder: &Path, chunks: &[usize], wrong: &str, at: usize) -> Dump {
    let recorder = Recorder::create(folder).unwrap();
    let ids: Vec<i64> = (0..T as i64).collect();
    recorder.tokens(&ids[..chunks[0]]);
    let node = |tap: &str, reads: &[&str]| GraphNode {
        tap: tap.into(),
        op: None,
        reads: reads.iter().map(ToString::to_string).collect(),
    };
    let graph = vec![
        node("h0", &[]),
        node("layers.0.latent", &["h0"]),
        node("layers.0.turned", &["layers.0.latent"]),
        node("layers.0.state", &["layers.0.latent"]),
        node("layers.0.experts.0.ffn_out", &["layers.0.latent"]),
        node("layers.0.h", &["h0", "layers.0.turned"]),
    ];
    let mut from = 0;
    for (step, length) in chunks.iter().enumerate() {
        if step > 0 {
            recorder.next_step(ids[from]);
        }
        record(&recorder, from..from + length, wrong, at);
        from += length;
    }
    recorder.describe(|meta| (meta.graph, meta.decode_tokens) = (Some(graph), Some(ids[chunks[0]..].to_vec())));
    recorder.finish().unwrap();
    Dump::open(folder).unwrap()
}

fn judged(ours: &[usize], theirs: &[usize], wrong: &str, at: usize) -> Report {
    let folder = tempdir().unwrap();
    let reference = write(&folder.path().join("ref"), ours, "", 0);
    let candidate = write(&folder.path().join("cand"), theirs, wrong, at);
    let Aligned { reference, candidate, alignment } = align(CellsOf::Both, reference, candidate, None).unwrap();
    let graph = graph_of(&reference, &candidate);
    let options = Options { alignment, ..Options::new(Profile::F32) };
    compare(&reference, &candidate, &graph, &options, &mut |_, _| {}).unwrap()
}

const CHUNKS: [(&[usize], &[usize]); 4] =
    [(&[7, 1, 1], &[3, 4, 1, 1]), (&[T], &[1; T]), (&[4, 5], &[9]), (&[1; T], &[2, 3, 4])];

#[test]
fn a_fault_in_an_open_tap_is_found_in_other_chunks() {
    for (ours, theirs) in CHUNKS {
        for tap in ["layers.0.latent", "layers.0.turned"] {
            for at in [0, 3, T - 1] {
                let report = judged(ours, theirs, tap, at);
                assert_eq!(report.verdict, Verdict::Diverged, "{ours:?} {theirs:?} {tap} {at}");
                let first = &report.taps[report.first.as_ref().unwrap().index];
                assert_eq!(first.place.tap.to_string(), tap);
                let alignment = report.alignment.as_ref().unwrap();
                assert!(alignment.cells[first.place.step as usize].contains(&at), "{ours:?} {theirs:?} {at}");
            }
        }
    }
}

#[test]
fn what_cannot_be_cut_is_counted_and_says_why() {
    for (ours, theirs) in CHUNKS {
        let report = judged(ours, theirs, "", 0);
        assert_eq!(report.verdict, Verdict::Parity, "{ours:?} {theirs:?}");
        assert!(report.unmapped.is_empty(), "{:?}", report.unmapped);
        let alignment = report.alignment.as_ref().unwrap();
        let of = |name: &'static str| report.taps.iter().filter(move |tap| tap.place.tap.to_string() == name);
        for name in ["layers.0.latent", "layers.0.turned"] {
            assert_eq!(of(name).count(), alignment.cells.len(), "{name}");
            assert!(of(name).all(|tap| tap.status.agrees()));
        }
        let why = |name: &'static str, due: AxisUnknown| {
            let mut met = 0;
            for tap in of(name).filter(|tap| !tap.status.agrees()) {
                assert_eq!(tap.status, Status::Unchecked);
                let is_due = matches!(&tap.reason, Some(Reason::Unaligned(Unaligned::NotCut(CutError::Axis { why, .. }))) if *why == due);
                assert!(is_due, "{name}: {:?}", tap.reason);
                met += 1;
            }
            met
        };
        assert!(why("layers.0.state", AxisUnknown::NotOfTokens) > 0, "{ours:?} {theirs:?}");
        assert!(why("layers.0.experts.0.ffn_out", AxisUnknown::OfExpert) > 0, "{ours:?} {theirs:?}");
    }
}

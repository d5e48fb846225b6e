//! Checks that runs of the same tokens in different chunks compare as equal, and that a fault is found at its token position.
//!
//! Synthetic runs, held in memory: each tap of all positions is computed once, and cut into a run's steps by code that is independent of the crate.

use std::path::Path;
use std::sync::Arc;

use crate::synthetic::{T, noise, run, tap};
use firstdiff_compare::{Aligned, CellsOf, Options, Profile, Report, Status, Verdict, align, compare, graph_of};
use firstdiff_trace::{DType, Dump, Entry, Meta, NamedRows, Rows, Site, Tap, Tensor, Values};
use proptest::prelude::*;

/// How a run writes its taps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// In the vocabulary's layout.
    AsStored,
    /// Heads first.
    HeadsFirst,
    /// Heads merged, a batch axis in front.
    Merged,
    /// Keys up to a multiple of 16, masked.
    Padded,
    /// Extents listed fastest first, as ggml does.
    FastestFirst,
}

/// The synthetic run with a causal mask in scores and probs.
fn causal() -> crate::synthetic::Run {
    let mut run = run();
    for (tap, (_, values)) in &mut run {
        let fill = match tap.site {
            Site::Scores => f32::NEG_INFINITY,
            Site::Probs => 0.0,
            _ => continue,
        };
        let future = |at: &usize| at % T > at / T % T;
        (0..values.len()).filter(future).for_each(|at| values[at] = fill);
    }
    run
}

/// One tap of one step: positions `from..to`, and of keys those up to `to`.
fn step_of(tap: Tap, values: &[f32], shape: &[usize], from: usize, to: usize, form: Form) -> (Vec<usize>, Vec<f32>) {
    if form == Form::FastestFirst {
        let (shape, values) = step_of(tap, values, shape, from, to, Form::AsStored);
        return (shape.into_iter().rev().collect(), values);
    }
    if let ['H', 'T', 'S'] = tap.site.axes() {
        let fill = if tap.site == Site::Scores { f32::NEG_INFINITY } else { 0.0 };
        let keys = if form == Form::Padded { 16 } else { to };
        let at = |h: usize, t: usize, s: usize| if s < to { values[(h * T + t) * T + s] } else { fill };
        let all = (0..shape[0]).flat_map(|h| (from..to).flat_map(move |t| (0..keys).map(move |s| (h, t, s))));
        return (vec![shape[0], to - from, keys], all.map(|(h, t, s)| at(h, t, s)).collect());
    }
    let width: usize = shape[1..].iter().product();
    let rows = &values[from * width..to * width];
    let shape = [&[to - from], &shape[1..]].concat();
    match (form, &shape[..]) {
        (Form::HeadsFirst, &[t, heads, d]) => {
            let all = (0..heads).flat_map(|h| (0..t).flat_map(move |t| (0..d).map(move |i| (t * heads + h) * d + i)));
            (vec![heads, t, d], all.map(|at| rows[at]).collect())
        }
        (Form::Merged, _) => (vec![1, to - from, width], rows.to_vec()),
        _ => (shape, rows.to_vec()),
    }
}

/// A dump of a run that took the tokens in these chunks. `named`: whether dump.json says which tokens.
fn dump(run: &crate::synthetic::Run, chunks: &[usize], form: Form, named: bool) -> Dump {
    let mut entries = Vec::new();
    let mut from = 0;
    for (step, &length) in (0u32..).zip(chunks) {
        for (&tap, (shape, values)) in run {
            let (shape, values) = step_of(tap, values, shape, from, from + length, form);
            entries.push(held(tap, step, shape, values, None));
        }
        from += length;
    }
    let ids = |range: std::ops::Range<usize>| named.then(|| range.map(|at| 7 * at as i64 + 1).collect());
    let (tokens, decode_tokens) = (ids(0..chunks[0]), ids(chunks[0]..from));
    Dump::assembled(Path::new("held"), Meta { tokens, decode_tokens, ..Meta::default() }, entries).unwrap()
}

fn held(tap: Tap, step: u32, shape: Vec<usize>, values: Vec<f32>, rows: Option<Rows>) -> Entry {
    let (extents, values) = (shape.clone(), Arc::new(values));
    Entry::computed(tap, step, shape, DType::F32, rows, move || {
        Ok(Tensor::held(extents.clone(), Values::F32(values.to_vec().into())).unwrap())
    })
}

fn judged(reference: Dump, candidate: Dump) -> Report {
    judged_rows(reference, candidate, None)
}

fn judged_rows(reference: Dump, candidate: Dump, rows: Option<Rows>) -> Report {
    judged_in(CellsOf::Both, reference, candidate, rows)
}

fn judged_in(cells: CellsOf, reference: Dump, candidate: Dump, rows: Option<Rows>) -> Report {
    let Aligned { reference, candidate, alignment } = align(cells, reference, candidate, rows.as_ref()).unwrap();
    let graph = graph_of(&reference, &candidate);
    let rows = rows.filter(|_| alignment.is_none());
    let options = Options { alignment, rows, ..Options::new(Profile::F32) };
    compare(&reference, &candidate, &graph, &options, &mut |_, _| {}).unwrap()
}

/// The noise of right rounding.
fn noisy(run: &crate::synthetic::Run) -> crate::synthetic::Run {
    crate::synthetic::noisy(run, 1e-13)
}

const CHUNKS: [&[usize]; 6] = [&[T], &[1; T], &[8, 1, 1, 1], &[4, 4, 3], &[5, 6], &[1, 10]];

#[test]
fn every_chunking_is_at_parity_with_every_other() {
    let (right, candidate) = (causal(), noisy(&causal()));
    for ours in CHUNKS {
        for theirs in CHUNKS {
            for named in [true, false] {
                let report =
                    judged(dump(&right, ours, Form::AsStored, named), dump(&candidate, theirs, Form::AsStored, named));
                assert_eq!(report.verdict, Verdict::Parity, "{ours:?} {theirs:?} {named}: {:?}", report.warnings);
                assert_eq!(report.count(|s| s == Status::Unchecked), 0, "{ours:?} {theirs:?} {named}");
                let alignment =
                    report.alignment.as_ref().map(|alignment| (alignment.common_positions(), alignment.cells.len()));
                let ends =
                    |chunks: &[usize]| (1..=chunks.len()).map(|n| chunks[..n].iter().sum()).collect::<Vec<usize>>();
                let mut all = [ends(ours), ends(theirs)].concat();
                all.sort_unstable();
                all.dedup();
                assert_eq!(alignment, (ours != theirs).then_some((T, all.len())), "{ours:?} {theirs:?}");
            }
        }
    }
}

#[test]
fn the_candidates_steps_are_joined_into_the_references() {
    let (right, candidate) = (causal(), noisy(&causal()));
    let joined = |ours: &[usize], theirs: &[usize], form: Form, candidate: &crate::synthetic::Run| {
        let [ours, theirs] = [dump(&right, ours, Form::AsStored, true), dump(candidate, theirs, form, true)];
        judged_in(CellsOf::Reference, ours, theirs, None)
    };
    let mut wrong = candidate.clone();
    let (shape, values) = wrong.get_mut(&tap("layers.1.v")).unwrap();
    let width = shape[1..].iter().product::<usize>();
    values[9 * width..10 * width].iter_mut().for_each(|x| *x += 0.5);
    for form in [Form::AsStored, Form::HeadsFirst, Form::Merged, Form::Padded] {
        for ours in CHUNKS {
            for theirs in CHUNKS.into_iter().filter(|theirs| *theirs != ours) {
                if form != Form::AsStored && ours != CHUNKS[0] && theirs != CHUNKS[3] {
                    continue;
                }
                let (place, length) =
                    (|report: &Report| report.first.as_ref().map(|first| report.taps[first.index].place), ours.len());
                let report = joined(ours, theirs, form, &candidate);
                let open = report.taps.iter().filter(|tap| !tap.status.agrees());
                let open: Vec<_> = open.map(|tap| (tap.place, tap.reason.clone())).collect();
                // Raw products with keys that only a later step has are recorded nowhere.
                let others: Vec<_> = open.iter().filter(|(place, _)| place.tap.site != Site::Qk).collect();
                assert_eq!((&report.verdict, others), (&Verdict::Parity, vec![]), "{form:?} {ours:?} {theirs:?}");
                assert_eq!(report.alignment.as_ref().map(|alignment| alignment.cells.len()), Some(length));
                let report = joined(ours, theirs, form, &wrong);
                let at = ours
                    .iter()
                    .scan(0, |end, length| {
                        *end += length;
                        Some(*end)
                    })
                    .position(|end| 9 < end);
                let is_at = place(&report).map(|place| (place.tap, place.step as usize));
                assert_eq!(is_at, at.map(|at| (tap("layers.1.v"), at)), "{form:?} {ours:?} {theirs:?}");
            }
        }
    }
    // A run that ends within a step of the reference.
    let report = joined(&[T], &[4, 3], Form::AsStored, &candidate);
    assert!(matches!(report.verdict, Verdict::Incomparable(_)), "{:?}", report.verdict);
    assert!(report.taps.iter().all(|tap| tap.status == Status::Unchecked));
}

#[test]
fn extents_listed_fastest_first_are_no_transposed_tensors() {
    let right = causal();
    let reference = || dump(&right, CHUNKS[2], Form::AsStored, true);
    let report = judged(reference(), dump(&noisy(&right), CHUNKS[0], Form::FastestFirst, true));
    let wrong = report.taps.iter().find(|t| !t.status.agrees()).map(|t| (t.place, t.reason.clone()));
    assert_eq!(report.verdict, Verdict::Parity, "{wrong:?}");
    let mut faulty = noisy(&right);
    faulty.get_mut(&tap("layers.1.attn_out")).unwrap().1.iter_mut().for_each(|x| *x *= 1.2);
    let report = judged(reference(), dump(&faulty, CHUNKS[0], Form::FastestFirst, true));
    assert_eq!(report.taps[report.first.unwrap().index].place.tap, tap("layers.1.attn_out"));
    // The same shape, and really transposed: cut along its other axis.
    let mut entries = Vec::new();
    for (&at, (shape, values)) in &noisy(&right) {
        let (shape, values) = match shape[..] {
            [rows, width] => {
                (vec![width, rows], (0..rows * width).map(|i| values[i % rows * width + i / rows]).collect())
            }
            _ => (shape.clone(), values.clone()),
        };
        entries.push(held(at, 0, shape, values, None));
    }
    let tokens = Some((0..T).map(|at| 7 * at as i64 + 1).collect());
    let transposed = Dump::assembled(Path::new("held"), Meta { tokens, ..Meta::default() }, entries).unwrap();
    let report = judged(reference(), transposed);
    let wrong = report.taps.iter().find(|t| !t.status.agrees()).map(|t| (t.place, t.reason.clone()));
    assert_eq!(report.verdict, Verdict::Parity, "{wrong:?}");
}

#[test]
fn other_shapes_are_cut_where_the_positions_are_certain() {
    let (right, candidate) = (causal(), noisy(&causal()));
    for form in [Form::HeadsFirst, Form::Merged, Form::Padded] {
        for (ours, theirs) in [(CHUNKS[0], CHUNKS[1]), (CHUNKS[1], CHUNKS[0]), (CHUNKS[2], CHUNKS[1])] {
            for (one, other) in [(Form::AsStored, form), (form, Form::AsStored)] {
                let report = judged(dump(&right, ours, one, true), dump(&candidate, theirs, other, true));
                let wrong = report.taps.iter().find(|t| !t.status.agrees()).map(|t| (t.place, t.reason.clone()));
                assert_eq!(report.verdict, Verdict::Parity, "{one:?} {ours:?} {other:?} {theirs:?}: {wrong:?}");
                assert_eq!(wrong, None, "{one:?} {ours:?} {other:?} {theirs:?}");
            }
        }
    }
}

#[test]
fn what_is_masked_in_a_later_step_is_said_with_its_position_in_the_run() {
    let right = causal();
    let mut wrong = right.clone();
    // Every head's query 9 does not see its own key.
    for heads in wrong.get_mut(&tap("layers.0.scores")).unwrap().1.chunks_mut(T * T) {
        heads[9 * T + 9] = f32::NEG_INFINITY;
    }
    for (ours, theirs) in
        [(CHUNKS[2], CHUNKS[2]), (CHUNKS[1], CHUNKS[2]), (CHUNKS[0], CHUNKS[1]), (CHUNKS[0], CHUNKS[0])]
    {
        let report = judged(dump(&right, ours, Form::AsStored, true), dump(&wrong, theirs, Form::AsStored, true));
        let first = &report.taps[report.first.as_ref().unwrap().index];
        let reason = first.why().unwrap();
        assert!(reason.ends_with("first at head 0, position 9, key 9"), "{ours:?} {theirs:?}: {reason}");
    }
}

#[test]
fn a_missing_mask_is_not_cut_away() {
    let right = causal();
    let mut wrong = right.clone();
    for name in ["layers.0.scores", "layers.0.probs"] {
        let open = run().remove(&tap(name)).unwrap();
        wrong.insert(tap(name), open);
    }
    // Each of the two alone must be enough.
    for (left_out, first) in [("", "layers.0.scores"), ("layers.0.scores", "layers.0.probs")] {
        let (mut right, mut wrong) = (right.clone(), wrong.clone());
        if !left_out.is_empty() {
            right.remove(&tap(left_out));
            wrong.remove(&tap(left_out));
        }
        let steps = dump(&right, CHUNKS[1], Form::AsStored, true);
        let report = judged(steps, dump(&wrong, CHUNKS[0], Form::AsStored, true));
        let place = report.first.as_ref().map(|f| report.taps[f.index].place);
        assert_eq!(place.map(|p| (p.tap.to_string(), p.step)), Some((first.to_owned(), 0)));
        // And as the reference.
        let report =
            judged(dump(&wrong, CHUNKS[0], Form::AsStored, true), dump(&right, CHUNKS[1], Form::AsStored, true));
        assert_eq!(report.verdict, Verdict::Diverged);
    }
}

#[test]
fn what_is_not_in_both_is_unchecked() {
    let right = causal();
    for (ours, theirs) in
        [(&[T][..], &[7][..]), (&[8, 1, 1, 1], &[7]), (&[1; T], &[7]), (&[T], &[3, 1, 1]), (&[4], &[T])]
    {
        let both = ours.iter().sum::<usize>().min(theirs.iter().sum());
        let report =
            judged(dump(&right, ours, Form::AsStored, true), dump(&noisy(&right), theirs, Form::AsStored, true));
        assert_eq!(report.verdict, Verdict::Parity, "{ours:?} {theirs:?}");
        let alignment = report.alignment.clone().unwrap();
        assert_eq!(alignment.common_positions(), both);
        for tap in &report.taps {
            let inside = alignment.cells[tap.place.step as usize].end <= both;
            assert_eq!(tap.status.agrees(), inside, "{ours:?} {theirs:?} {}", tap.place);
        }
    }
    // No ids, but attention of the first step sees only its own keys.
    let report = judged(dump(&right, &[T], Form::AsStored, true), dump(&right, &[1; 7], Form::AsStored, false));
    assert_eq!((report.verdict, report.alignment.unwrap().common_positions()), (Verdict::Parity, 7));
    // The logits of each step's last token, undeclared.
    let mut logits = right.clone();
    logits.retain(|tap, _| tap.layer.is_none());
    let report =
        judged(dump(&right, &[8, 1, 1, 1], Form::AsStored, true), dump(&logits, &[1; 4], Form::AsStored, false));
    assert!(matches!(report.verdict, Verdict::Incomparable(_)), "{:?}", report.verdict);
    // It is unknown whether seven rows are the first or the last of eleven.
    let report = judged(dump(&right, &[T], Form::AsStored, true), dump(&logits, &[7], Form::AsStored, false));
    assert!(matches!(report.verdict, Verdict::Incomparable(_)));
}

#[test]
fn other_tokens_are_said_and_not_compared() {
    let right = causal();
    let mut meta = Meta::default();
    for (at, wrong) in [(0, false), (6, false), (6, true)] {
        let mut candidate = noisy(&right);
        if wrong {
            candidate.get_mut(&tap("layers.0.q")).unwrap().1[2 * 96..3 * 96].fill(0.0);
        }
        let ids: Vec<i64> = (0..T as i64).map(|i| if i == at { 99 } else { 7 * i + 1 }).collect();
        (meta.tokens, meta.decode_tokens) = (Some(ids), None);
        let one = dump(&candidate, &[T], Form::AsStored, false);
        let entries = one.entries().to_vec();
        let one = Dump::assembled(Path::new("held"), meta.clone(), entries).unwrap();
        let report = judged(dump(&right, &[1; T], Form::AsStored, true), one);
        match (&report.verdict, wrong) {
            (Verdict::Incomparable(reason), false) => assert!(reason.contains(&format!("position {at}")), "{reason}"),
            (Verdict::Diverged, true) => {}
            other => panic!("{at} {other:?}"),
        }
        let said = report.warnings.iter().any(|w| w.to_string().contains("name different tokens"));
        assert!(said, "{:?}", report.warnings);
        assert!(report.taps.iter().all(|t| (t.status != Status::Unchecked) == ((t.place.step as i64) < at)));
    }
}

#[test]
fn other_tokens_are_not_compared_where_rows_are_in_another_order() {
    const AT: usize = 6;
    let right = causal();
    let mut candidate = noisy(&right);
    // Other tokens have other queries and keys.
    for (tap, (_, values)) in &mut candidate {
        if matches!(tap.site, Site::Q | Site::K | Site::QRope | Site::KRope) {
            let first = values.len() / T * AT;
            values[first..].iter_mut().for_each(|v| *v = 0.9 - *v);
        }
    }
    let ids = |other: usize| (0..T).map(|i| if i >= other { 99 } else { 7 * i as i64 + 1 }).collect::<Vec<i64>>();
    let run = |candidate: &crate::synthetic::Run, ids: Vec<i64>| {
        let entries = dump(candidate, &[T], Form::AsStored, false).entries().to_vec();
        Dump::assembled(Path::new("held"), Meta { tokens: Some(ids), ..Meta::default() }, entries).unwrap()
    };
    for chunks in [&[T][..], &[1; T], &[8, 1, 1, 1]] {
        for candidate in [candidate.clone(), crate::synthetic::in_gguf_rows(&candidate)] {
            let report = judged(dump(&right, chunks, Form::AsStored, true), run(&candidate, ids(AT)));
            assert!(
                matches!(&report.verdict, Verdict::Incomparable(reason) if reason.contains("position 6")),
                "{chunks:?} {:?}",
                report.verdict
            );
            let alignment = report.alignment.clone().unwrap();
            let before = |t: &firstdiff_compare::TapReport| alignment.cells[t.place.step as usize].end <= AT;
            assert!(report.taps.iter().all(|t| t.status.agrees() == before(t)), "{chunks:?}");
            // Fed the same tokens, these are wrong from here on.
            let report = judged(dump(&right, chunks, Form::AsStored, true), run(&candidate, ids(T)));
            assert_eq!(report.verdict, Verdict::Diverged, "{chunks:?}");
        }
    }
}

#[test]
fn rows_are_counted_within_the_step() {
    let right = causal();
    let last = |rows: Rows, kept: &[usize]| {
        let (shape, values) = &right[&tap("layers.0.h")];
        let kept: Vec<f32> = kept.iter().flat_map(|&at| values[at * shape[1]..(at + 1) * shape[1]].to_vec()).collect();
        let count = kept.len() / shape[1];
        let meta = Meta { tokens: Some((0..8).map(|i| 7 * i + 1).collect()), ..Meta::default() };
        let entry = held(tap("layers.0.h"), 0, vec![count, shape[1]], kept, Some(rows));
        Dump::assembled(Path::new("held"), meta, vec![entry]).unwrap()
    };
    for (rows, kept) in [
        (Rows::Named(NamedRows::Last), &[7usize][..]),
        (Rows::List(vec![2, 5]), &[2, 5]),
        (Rows::List(vec![5, 2]), &[5, 2]),
        (Rows::Named(NamedRows::All), &[0, 1, 2, 3, 4, 5, 6, 7]),
    ] {
        for chunks in [&[1; T][..], &[4, 4, 3], &[T]] {
            let report = judged(dump(&right, chunks, Form::AsStored, true), last(rows.clone(), kept));
            assert_eq!(report.verdict, Verdict::Parity, "{rows:?} {chunks:?}");
            let rows: usize = report.taps.iter().filter(|t| t.status.agrees()).map(|t| t.shape[0]).sum();
            assert_eq!(rows, kept.len(), "{kept:?} {chunks:?}");
        }
    }
    // The wrong row under that name is found.
    let report = judged(dump(&right, &[1; T], Form::AsStored, true), last(Rows::List(vec![2, 5]), &[2, 6]));
    let first = report.first.as_ref().map(|f| report.taps[f.index].place.step);
    assert_eq!((report.verdict.name(), first), ("diverged", Some(5)));
    // More rows than were declared.
    let report = judged(dump(&right, &[1; T], Form::AsStored, true), last(Rows::List(vec![2]), &[2, 6]));
    assert!(matches!(report.verdict, Verdict::Incomparable(_)));
}

#[test]
fn the_rows_asked_for_are_those_of_the_candidates_step() {
    let right = causal();
    for wanted in [Rows::Named(NamedRows::Last), Rows::List(vec![3, 10])] {
        let report = judged_rows(
            dump(&right, &[1; T], Form::AsStored, true),
            dump(&noisy(&right), &[T], Form::AsStored, true),
            Some(wanted.clone()),
        );
        let at: Vec<u32> = report.taps.iter().filter(|t| t.status.agrees()).map(|t| t.place.step).collect();
        assert_eq!(report.verdict, Verdict::Parity, "{wanted:?}");
        assert!(at.contains(&10) && !at.contains(&4), "{wanted:?}: {at:?}");
    }
}

#[test]
fn as_many_heads_as_positions_are_not_guessed() {
    let mut square = causal();
    // Six positions and six heads in q; two heads in k and v.
    for (shape, values) in square.values_mut() {
        let width = values.len() / T;
        if shape[0] == T {
            (shape[0], *values) = (6, values[..6 * width].to_vec());
        }
    }
    square.retain(|tap, _| !matches!(tap.site, Site::Qk | Site::Scores | Site::Probs));
    let whole = |run: &crate::synthetic::Run| {
        let entries = run.iter().map(|(&tap, (shape, values))| held(tap, 0, shape.clone(), values.clone(), None));
        let meta = Meta { tokens: Some((0..6).map(|i| 7 * i + 1).collect()), ..Meta::default() };
        Dump::assembled(Path::new("held"), meta, entries.collect()).unwrap()
    };
    let steps = || {
        let mut entries = Vec::new();
        for (&tap, (shape, values)) in &square {
            let width = values.len() / 6;
            for at in 0..6 {
                let row = values[at * width..(at + 1) * width].to_vec();
                entries.push(held(tap, at as u32, [&[1], &shape[1..]].concat(), row, None));
            }
        }
        Dump::assembled(Path::new("held"), Meta::default(), entries).unwrap()
    };
    // k and v, of two heads, show that positions come first.
    assert_eq!(judged(steps(), whole(&square)).count(|s| !s.agrees()), 0);
    let mut alone = square.clone();
    alone.retain(|tap, _| !matches!(tap.site, Site::K | Site::KRope | Site::V));
    let report = judged(steps(), whole(&alone));
    let q = report.tap(tap("layers.0.q"), 3).unwrap();
    assert_eq!(q.status, Status::Unchecked);
    assert!(q.why().unwrap().contains("6 positions from as many heads"), "{:?}", q.reason);
}

#[test]
fn a_step_number_costs_nothing() {
    let right = causal();
    let (shape, values) = &right[&tap("h0")];
    let far = held(tap("h0"), 4_000_000_000, vec![1, shape[1]], values[..shape[1]].to_vec(), None);
    let meta = Meta { tokens: Some(vec![1, 2, 3]), ..Meta::default() };
    let far = Dump::assembled(Path::new("held"), meta, vec![far]).unwrap();
    let report = judged(dump(&right, &[T], Form::AsStored, true), far);
    assert!(matches!(report.verdict, Verdict::Incomparable(_)));
}

/// Chunks of `T` positions.
fn chunking() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(1usize..6, 1..T).prop_map(|parts| {
        let mut left = T;
        let mut chunks: Vec<usize> = Vec::new();
        for part in parts {
            let part = part.min(left);
            left -= part;
            if part > 0 {
                chunks.push(part);
            }
        }
        if left > 0 {
            chunks.push(left);
        }
        chunks
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// A wrong row is found in its cell and in no other; taps that agree are not blamed.
    #[test]
    fn a_fault_is_found_where_it_lies(
        ours in chunking(), theirs in chunking(), which in 0usize..1000, position in 0usize..T, seed in 1u64..1000,
        form in prop_oneof![Just(Form::AsStored), Just(Form::HeadsFirst), Just(Form::Merged), Just(Form::Padded)],
    ) {
        prop_assume!(ours != theirs);
        let right = causal();
        let mut wrong = noisy(&right);
        let taps: Vec<Tap> = right.keys().copied().collect();
        let at = taps[which % taps.len()];
        let (shape, values) = wrong.get_mut(&at).unwrap();
        let mut next = noise(seed);
        let row = |i: usize| if shape.len() == 3 && shape[2] == T && shape[1] == T { i / T % T } else { i * T / (shape.iter().product::<usize>()) };
        for i in (0..values.len()).filter(|&i| row(i) == position) {
            if values[i].is_finite() && values[i] != 0.0 {
                values[i] = (f64::from(values[i]) * (1.0 + 0.3 * next())) as f32;
            }
        }
        let report = judged(dump(&right, &ours, Form::AsStored, true), dump(&wrong, &theirs, form, true));
        prop_assert_eq!(&report.verdict, &Verdict::Diverged);
        for tap in &report.taps {
            let cell = report.alignment.as_ref().unwrap().cells[tap.place.step as usize].clone();
            let due = tap.place.tap == at && cell.contains(&position);
            let layout = tap.status == Status::Unchecked;
            prop_assert_eq!(tap.status.differs(), due, "{} {:?} {:?} {:?}: {:?}", tap.place, cell, ours, theirs, tap.reason);
            prop_assert!(!layout, "{} {:?}", tap.place, tap.reason);
        }
    }
}

/// The run as lists of values without axes, in these chunks.
fn lists(run: &crate::synthetic::Run, chunks: &[usize], named: bool) -> Dump {
    let of = dump(run, chunks, Form::AsStored, named);
    let flat = |entry: &Entry| {
        let values = of.read(entry).unwrap().values().to_f64().iter().map(|x| *x as f32).collect::<Vec<_>>();
        held(entry.tap, entry.step, vec![values.len()], values, None)
    };
    Dump::assembled(Path::new("held"), of.meta().clone(), of.entries().iter().map(flat).collect()).unwrap()
}

#[test]
fn lists_in_chunks_are_laid_at_their_own_positions() {
    let (right, candidate) = (causal(), noisy(&causal()));
    // With the tokens of all steps, each position has an equal part; without them, the smallest step may have one position.
    for (chunks, named) in [(&[7, 2, 2][..], true), (&[9, 2], true), (&[8, 1, 1, 1], true), (&[8, 1, 1, 1], false)] {
        let report = judged(dump(&right, &[T], Form::AsStored, true), lists(&candidate, chunks, named));
        let wrong = report.taps.iter().find(|t| t.status.differs()).map(|t| (t.place, t.reason.clone()));
        assert_eq!(wrong, None, "{chunks:?} {named}");
        let agree = report.count(Status::agrees);
        assert!(agree > 10, "{chunks:?} {named}: {agree} agree; {:?}", report.verdict);
    }
}

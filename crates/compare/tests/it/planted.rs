//! Checks the judge with planted faults of every kind: each must be caught at the right tap and at no other.
//!
//! The dumps are synthetic; faults of real engines are in the fixtures.

use crate::synthetic::{LAYERS, Run, T, judged_as, judged_with, noise, noisy, run, tap, to_adjacent};
use firstdiff_compare::{Change, Options, Profile, Report, Status, Verdict, compare, graph_of};
use firstdiff_trace::{Dump, Meta, NamedRows, Recorder, Rows, Site, Tap};

/// Plants a fault at `at` in a candidate with f32 noise, and checks that it is found there and nowhere else.
#[track_caller]
fn check(at: &str, plant: impl FnOnce(&mut Vec<usize>, &mut Vec<f32>)) -> Report {
    check_in(Profile::F32, 1e-13, at, plant)
}

#[track_caller]
fn check_in(profile: Profile, nmse: f64, at: &str, plant: impl FnOnce(&mut Vec<usize>, &mut Vec<f32>)) -> Report {
    let reference = run();
    let mut candidate = noisy(&reference, nmse);
    let (shape, values) = candidate.get_mut(&tap(at)).unwrap();
    plant(shape, values);
    let report = judged_as(profile, &reference, &candidate);
    assert_eq!(report.verdict, Verdict::Diverged, "{at}");
    let first = report.first.as_ref().map(|f| report.taps[f.index].place.tap.to_string());
    assert_eq!(first.as_deref(), Some(at));
    for other in report.taps.iter().filter(|t| t.place.tap != tap(at)) {
        assert!(other.status.agrees(), "{} is {:?}: {:?}", other.place, other.status, other.reason);
    }
    report
}

fn undone(report: &Report) -> Vec<&Change> {
    report.first.as_ref().unwrap().anatomy.explained_by.iter().map(|u| &u.change).collect()
}

#[test]
fn honest_noise_passes_in_every_profile() {
    for (profile, nmse) in [
        (Profile::F32, 0.0),
        (Profile::F32, 1e-12),
        (Profile::F16, 1.3e-7),
        (Profile::Bf16, 1e-5),
        (Profile::Ggml, 3e-4),
    ] {
        let report = judged_as(profile, &run(), &noisy(&run(), nmse));
        assert_eq!(report.verdict, Verdict::Parity, "{profile} {nmse}");
    }
}

#[test]
fn nan_and_infinities() {
    let report = check("layers.1.q", |_, v| v[100] = f32::NAN);
    assert!(report.tap(tap("layers.1.q"), 0).unwrap().why().unwrap().contains("NaN in the candidate: 1"));
    check("layers.1.ffn_act", |_, v| v[7] = f32::INFINITY);
    check("layers.1.ffn_act", |_, v| v[7] = f32::NEG_INFINITY);
    check("logits", |_, v| v.fill(f32::NAN));
    for profile in Profile::ALL {
        check_in(profile, 0.0, "logits", |_, v| v[3] = f32::NAN);
    }
}

#[test]
fn infinity_of_the_other_sign_and_nan_on_both_sides() {
    for (there, here) in [(f32::INFINITY, f32::NEG_INFINITY), (f32::NAN, f32::NAN), (f32::NAN, 1.0)] {
        let (mut reference, mut candidate) = (run(), run());
        reference.get_mut(&tap("layers.2.q")).unwrap().1[5] = there;
        candidate.get_mut(&tap("layers.2.q")).unwrap().1[5] = here;
        let report = judged_as(Profile::F32, &reference, &candidate);
        assert_eq!(report.verdict, Verdict::Diverged, "{there} {here}");
        assert_eq!(report.taps[report.first.unwrap().index].place.tap, tap("layers.2.q"));
    }
}

#[test]
fn sign_flip() {
    let report = check("layers.0.attn_out", |_, v| v.iter_mut().for_each(|x| *x = -*x));
    assert!(undone(&report)[0].to_string().contains("sign flipped"), "{:?}", undone(&report));
}

#[test]
fn zero_reference_and_zero_candidate() {
    let (mut reference, candidate) = (run(), run());
    reference.get_mut(&tap("layers.1.v")).unwrap().1.fill(0.0);
    let report = judged_as(Profile::Ggml, &reference, &candidate);
    assert_eq!(report.taps[report.first.unwrap().index].place.tap, tap("layers.1.v"));
    assert_eq!(report.taps.iter().find(|t| t.status == Status::Diverged).unwrap().metrics.unwrap().nmse(), None);
    let report = check("layers.1.v", |_, v| v.fill(0.0));
    assert_eq!(undone(&report), [&Change::Zeros]);
    let report = check("layers.1.ffn_up", |_, v| {
        v.chunks_mut(80).for_each(|row| row[53..].fill(0.0));
    });
    assert!(undone(&report).contains(&&Change::ZeroTail(53)));
    let report = check("layers.1.qk", |_, v| v.chunks_mut(T).for_each(|row| row[7..].fill(0.0)));
    assert!(undone(&report).contains(&&Change::ZeroKeys(7)));
    assert!(undone(&report)[0].to_string().contains("key 7"));
}

/// Stores \[H,T,d\] under the shape \[T,H,d\].
fn heads_first(values: &mut [f32]) {
    let old = values.to_vec();
    for (i, x) in values.iter_mut().enumerate() {
        let (head, position, channel) = (i / (T * 16), i / 16 % T, i % 16);
        *x = old[position * 96 + head * 16 + channel];
    }
}

#[test]
fn transposed_axis() {
    let reference = run();
    let mut candidate = noisy(&reference, 1e-13);
    heads_first(&mut candidate.get_mut(&tap("layers.1.q")).unwrap().1);
    // Its reader is right: only the dump's layout differs, and a note says so.
    let report = judged_as(Profile::F32, &reference, &candidate);
    assert_eq!(report.verdict, Verdict::Parity);
    assert!(report.warnings.iter().any(|w| w.to_string().contains("[H,T,d]")), "{:?}", report.warnings);
    // Its reader is wrong: it is the mistake.
    candidate.get_mut(&tap("layers.1.q_rope")).unwrap().1[3] = 9.0;
    let report = judged_as(Profile::F32, &reference, &candidate);
    assert_eq!(report.taps[report.first.as_ref().unwrap().index].place.tap, tap("layers.1.q"));
    assert_eq!(undone(&report), [&Change::AxesPermuted(vec![1, 0, 2])]);
    // The last tap: no later tap can confirm another layout.
    check("logits", |shape, v| {
        let old = v.clone();
        shape.reverse();
        (0..v.len()).for_each(|i| v[i] = old[(i % T) * 151 + i / T]);
    });
}

#[test]
fn padding_is_left_out_and_looked_at() {
    let reference = run();
    let mut candidate = noisy(&reference, 1e-13);
    for (site, fill) in [("qk", 0.3f32), ("scores", f32::NEG_INFINITY), ("probs", 0.0)] {
        let (shape, values) = candidate.get_mut(&tap(&format!("layers.1.{site}"))).unwrap();
        *values = values.chunks(T).flat_map(|row| row.iter().copied().chain([fill; 5])).collect();
        shape[2] = T + 5;
    }
    let report = judged_as(Profile::F32, &reference, &candidate);
    assert_eq!((&report.verdict, report.count(Status::agrees)), (&Verdict::Parity, report.taps.len()));
    assert!(
        report.warnings.iter().any(|w| w.to_string().contains("16 keys, 5 more than the reference has")),
        "{:?}",
        report.warnings
    );
    // A score of a key that does not exist is not rounding, unless its probability shows that nothing read it. A probability of such a key never is, whoever
    // reads it.
    for (site, reader) in [("scores", Some("probs")), ("probs", None)] {
        let mut mistaken = candidate.clone();
        mistaken.get_mut(&tap(&format!("layers.1.{site}"))).unwrap().1[2 * 16 + 13] = 0.01;
        if let Some(reader) = reader {
            let report = judged_as(Profile::F32, &reference, &mistaken);
            assert_eq!(report.verdict, Verdict::Parity, "{site}");
            let mut warnings = report.warnings.iter();
            assert!(warnings.any(|w| w.to_string().contains("differ only where the reference is masked")));
            mistaken.remove(&tap(&format!("layers.1.{reader}")));
        }
        let report = judged_as(Profile::F32, &reference, &mistaken);
        let first = &report.taps[report.first.unwrap().index];
        assert_eq!(first.place.tap, tap(&format!("layers.1.{site}")));
        assert!(first.why().unwrap().contains("key 13"), "{:?}", first.reason);
    }
    // A fault where the reference has values is found as always.
    candidate.get_mut(&tap("layers.1.probs")).unwrap().1[3] = 9.0;
    let report = judged_as(Profile::F32, &reference, &candidate);
    assert_eq!(report.taps[report.first.unwrap().index].place.tap, tap("layers.1.probs"));
}

#[test]
fn repeated_heads_are_equal_or_a_finding() {
    let reference = run();
    let mut candidate = noisy(&reference, 1e-13);
    let (shape, values) = candidate.get_mut(&tap("layers.1.v")).unwrap();
    *values = values.chunks(16).flat_map(|head| [head, head, head].concat()).collect();
    *shape = vec![T, 6, 16];
    let report = judged_as(Profile::F32, &reference, &candidate);
    assert_eq!((&report.verdict, report.count(Status::agrees)), (&Verdict::Parity, report.taps.len()));
    candidate.get_mut(&tap("layers.1.v")).unwrap().1[3 * 96 + 20] += 0.5;
    let report = judged_as(Profile::F32, &reference, &candidate);
    let first = &report.taps[report.first.unwrap().index];
    assert_eq!(first.place.tap, tap("layers.1.v"));
    assert!(first.why().unwrap().contains("copies"), "{:?}", first.reason);
}

#[test]
fn a_constant_tensor_proves_no_layout() {
    let (mut reference, mut candidate) = (run(), run());
    reference.get_mut(&tap("layers.1.v")).unwrap().1.fill(0.5);
    let (shape, values) = candidate.get_mut(&tap("layers.1.v")).unwrap();
    *values = vec![0.5; 16 * 2 * 16];
    shape[0] = 16;
    let report = judged_as(Profile::F32, &reference, &candidate);
    assert_eq!(report.tap(tap("layers.1.v"), 0).unwrap().status, Status::Unchecked);
}

#[test]
fn an_axis_order_that_the_shape_shows_is_undone_where_what_follows_agrees() {
    let reference = run();
    let mut candidate = noisy(&reference, 1e-13);
    let (shape, values) = candidate.get_mut(&tap("layers.1.v")).unwrap();
    let old = values.clone();
    *shape = vec![2, T, 16];
    (0..old.len()).for_each(|i| values[i] = old[(i / 16 % T) * 32 + i / (T * 16) * 16 + i % 16]);
    let report = judged_as(Profile::F32, &reference, &candidate);
    assert_eq!(report.verdict, Verdict::Parity);
    assert!(report.warnings.iter().any(|w| w.to_string().contains("permuted")), "{:?}", report.warnings);
    // The next tap is wrong for another reason: that is the finding, not the layout.
    let mut elsewhere = candidate.clone();
    for at in ["layers.1.probs", "layers.1.context"] {
        elsewhere.get_mut(&tap(at)).unwrap().1[3] = 9.0;
    }
    let report = judged_as(Profile::F32, &reference, &elsewhere);
    assert_eq!(report.taps[report.first.unwrap().index].place.tap, tap("layers.1.probs"));
    // The same with a wrong reader: its own shape shows the order, so it is not blamed, and nothing confirms it.
    candidate.get_mut(&tap("layers.1.context")).unwrap().1[3] = 9.0;
    let report = judged_as(Profile::F32, &reference, &candidate);
    assert_eq!(report.tap(tap("layers.1.v"), 0).unwrap().status, Status::Unchecked);
    let first = report.first.unwrap();
    assert_eq!(report.taps[first.index].place.tap, tap("layers.1.context"));
    assert!(first.unchecked_between.iter().any(|place| place.tap == tap("layers.1.v")));
}

#[test]
fn an_axis_order_at_several_sites_is_the_dumps_own() {
    let reference = run();
    let mut candidate = noisy(&reference, 1e-13);
    for name in ["layers.0.q_rope", "layers.0.k_rope"] {
        let (shape, values) = candidate.get_mut(&tap(name)).unwrap();
        let (old, heads) = (values.clone(), shape[1]);
        *shape = vec![heads, T, 16];
        let from = |i: usize| (i / 16 % T) * heads * 16 + i / (T * 16) * 16 + i % 16;
        (0..old.len()).for_each(|i| values[i] = old[from(i)]);
    }
    // No reader of theirs agrees, and yet they are right.
    candidate.remove(&tap("layers.0.qk"));
    candidate.get_mut(&tap("layers.0.scores")).unwrap().1.iter_mut().for_each(|x| *x *= 2.0);
    let report = judged_as(Profile::F32, &reference, &candidate);
    assert_eq!(report.taps[report.first.as_ref().unwrap().index].place.tap, tap("layers.0.scores"));
    assert!(report.tap(tap("layers.0.q_rope"), 0).unwrap().status.agrees());
}

#[test]
fn keys_that_were_not_compared_clear_no_operation_of_attention() {
    let (reference, mut candidate) = (run(), run());
    candidate.get_mut(&tap("layers.1.qk")).unwrap().1.iter_mut().for_each(|x| *x *= 2.0);
    let last = Options { rows: Some(Rows::Named(NamedRows::Last)), ..Options::new(Profile::F32) };
    let report = judged_with(&last, &reference, &candidate);
    let first = report.first.as_ref().unwrap();
    assert_eq!((report.taps[first.index].place.tap, first.keys_not_compared), (tap("layers.1.qk"), true));
    assert_eq!(report.taps[first.index].max_at().unwrap()[1], T - 1);
    assert!(!judged_as(Profile::F32, &reference, &candidate).first.unwrap().keys_not_compared);
    // An operation that reads only its own token position is blamed as always.
    let mut candidate = run();
    candidate.get_mut(&tap("layers.1.ffn_up")).unwrap().1.iter_mut().for_each(|x| *x *= 2.0);
    assert!(!judged_with(&last, &reference, &candidate).first.unwrap().keys_not_compared);
}

#[test]
fn steps_of_other_tokens_are_not_compared() {
    let folder = tempfile::tempdir().unwrap();
    let dump = |name: &str, steps: &[usize], declared: bool| {
        let recorder = Recorder::create(folder.path().join(name)).unwrap();
        let mut next = noise(5);
        for (step, &tokens) in steps.iter().enumerate() {
            match (step, declared) {
                (0, true) => recorder.tokens(&vec![3; tokens]),
                (0, false) => {}
                _ => recorder.next_step(4),
            }
            for site in [Site::H0, Site::FinalNorm] {
                let values: Vec<f32> = (0..tokens * 8).map(|_| next() as f32).collect();
                recorder.record(Tap { layer: None, site }, &[tokens, 8], &values).unwrap();
            }
        }
        recorder.finish().unwrap();
        Dump::open(folder.path().join(name)).unwrap()
    };
    let verdict = |left: &Dump, right: &Dump| {
        compare(left, right, &graph_of(left, right), &Options::new(Profile::F32), &mut |_, _| {}).unwrap().verdict
    };
    let (whole, single) = (dump("whole", &[3, 1, 1], false), dump("single", &[1, 1, 1, 1, 1], false));
    assert!(matches!(verdict(&whole, &single), Verdict::Incomparable(why) if why.contains("prefill has 3")));
    assert!(matches!(verdict(&single, &whole), Verdict::Incomparable(why) if why.contains("prefill has 1")));
    assert_eq!(verdict(&whole, &dump("again", &[3, 1, 1], true)), Verdict::Parity);
    assert!(matches!(verdict(&dump("declared", &[3, 1], true), &single), Verdict::Incomparable(_)));
}

#[test]
fn next_layers_tensor() {
    let other = run()[&tap("layers.2.ffn_gate")].1.clone();
    let report = check("layers.1.ffn_gate", |_, v| *v = other);
    assert_eq!(undone(&report), [&Change::OtherTap("layers.2.ffn_gate".into())]);
}

#[test]
fn row_shifted_by_one() {
    let report = check("layers.0.h", |_, v| v.rotate_right(48));
    assert!(undone(&report).contains(&&Change::ShiftedRows(1)));
    let report = check("layers.0.h", |_, v| v.rotate_left(48));
    assert!(undone(&report).contains(&&Change::ShiftedRows(-1)));
}

#[test]
fn missing_and_extra_taps_are_unchecked() {
    let (full, mut less) = (run(), run());
    less.remove(&tap("layers.1.q"));
    for (reference, candidate, word) in [(&full, &less, "candidate"), (&less, &full, "reference")] {
        let report = judged_as(Profile::F32, reference, candidate);
        assert_eq!(report.verdict, Verdict::Parity);
        let missing = report.tap(tap("layers.1.q"), 0).unwrap();
        assert_eq!(missing.status, Status::Unchecked);
        assert!(missing.why().unwrap().contains(word));
        assert_eq!(report.count(|s| s == Status::Unchecked), 1);
    }
    // A fault behind the missing tap is a range, and the missing tap is not blamed.
    less.get_mut(&tap("layers.1.q_rope")).unwrap().1[4] = 3.0;
    let report = judged_as(Profile::F32, &full, &less);
    let first = report.first.as_ref().unwrap();
    assert_eq!(report.taps[first.index].place.tap, tap("layers.1.q_rope"));
    assert_eq!(first.after.unwrap().tap, tap("layers.1.attn_norm"));
    assert_eq!(first.unchecked_between[0].tap, tap("layers.1.q"));
}

#[test]
fn a_fault_with_wrong_inputs_is_downstream() {
    let (reference, mut candidate) = (run(), run());
    candidate.get_mut(&tap("layers.0.k")).unwrap().1[0] = 2.0;
    candidate.get_mut(&tap("layers.0.k_rope")).unwrap().1[0] = 2.0;
    candidate.get_mut(&tap("layers.0.ffn_up")).unwrap().1[0] = 2.0;
    let report = judged_as(Profile::F32, &reference, &candidate);
    let status = |name: &str| report.tap(tap(name), 0).unwrap().status;
    assert_eq!(status("layers.0.k"), Status::Diverged);
    assert_eq!(status("layers.0.k_rope"), Status::Downstream);
    assert_eq!(status("layers.0.qk"), Status::Exact);
    assert_eq!(status("layers.0.ffn_up"), Status::Diverged);
}

#[test]
fn structure_below_the_noise() {
    // A constant factor of 1.01 has NMSE 1e-4: less than bf16 may be off late in a deep model.
    for at in ["layers.0.q", "layers.2.h", "logits"] {
        let report = check_in(Profile::Bf16, 8e-6, at, |_, v| v.iter_mut().for_each(|x| *x *= 1.01));
        let factor = report.first.as_ref().unwrap().anatomy.factor.unwrap().0;
        assert!((factor - 1.01).abs() < 1e-3, "{factor}");
    }
    check("layers.0.attn_norm", |_, v| v.iter_mut().for_each(|x| *x *= 1.000_004));
    // One channel at 15 %, in f32 and in bf16.
    for (profile, nmse) in [(Profile::F32, 1e-13), (Profile::Bf16, 8e-6)] {
        check_in(profile, nmse, "layers.1.ffn_norm", |_, v| v.chunks_mut(48).for_each(|row| row[17] *= 1.15));
    }
    // One head at 1 %, where heads have an axis and where they are merged; products, with the noise of two inputs, at 3 %.
    for at in ["layers.0.q", "layers.1.context", "layers.1.qk"] {
        let report = check_in(Profile::Bf16, 8e-6, at, |_, v| {
            let (heads, width) = if at.ends_with("qk") { (1, T * T) } else { (6, 16) };
            let of = |i: usize| if heads == 1 { i / width } else { i / width % heads };
            let factor = if heads == 1 { 1.03 } else { 1.01 };
            (0..v.len()).filter(|&i| of(i) == 2).for_each(|i| v[i] *= factor);
        });
        assert!(report.tap(tap(at), 0).unwrap().why().unwrap().contains("head 2"), "{at}");
    }
    // One position is entirely wrong beside one of a thousand times its size.
    let mut reference = run();
    reference.get_mut(&tap("layers.1.h")).unwrap().1[..48].iter_mut().for_each(|x| *x *= 3e4);
    let mut candidate = noisy(&reference, 8e-6);
    candidate.get_mut(&tap("layers.1.h")).unwrap().1[5 * 48..6 * 48].iter_mut().for_each(|x| *x = -*x);
    let report = judged_as(Profile::Bf16, &reference, &candidate);
    assert_eq!(report.taps[report.first.unwrap().index].place.tap, tap("layers.1.h"));
}

#[test]
fn other_shapes_are_never_a_pass() {
    let (reference, mut candidate) = (run(), run());
    let (shape, values) = candidate.get_mut(&tap("logits")).unwrap();
    shape[1] = 150;
    values.truncate(T * 150);
    let report = judged_as(Profile::F32, &reference, &candidate);
    assert!(matches!(&report.verdict, Verdict::Incomparable(why) if why.contains("logits")), "{:?}", report.verdict);
    // In the middle of a run whose end agrees it is unchecked, and reported.
    let mut candidate = run();
    let (shape, values) = candidate.get_mut(&tap("layers.0.q")).unwrap();
    *shape = vec![5];
    values.truncate(5);
    let report = judged_as(Profile::F32, &reference, &candidate);
    assert_eq!(report.verdict, Verdict::Parity);
    assert_eq!(report.tap(tap("layers.0.q"), 0).unwrap().status, Status::Unchecked);
}

#[test]
fn nothing_in_common_or_only_trifles_is_incomparable() {
    let only = |names: &[&str]| -> Run {
        run().into_iter().filter(|(t, _)| names.contains(&t.to_string().as_str())).collect()
    };
    for (left, right) in [(&["h0"][..], &["logits"][..]), (&["h0"], &["h0"]), (&["h0", "logits"], &["h0"])] {
        let report = judged_as(Profile::F32, &only(left), &only(right));
        assert!(matches!(report.verdict, Verdict::Incomparable(_)), "{left:?} {right:?}");
    }
    // The same with a difference: that can be decided.
    let mut wrong = only(&["h0"]);
    wrong.get_mut(&tap("h0")).unwrap().1[9] = 2.0;
    assert_eq!(judged_as(Profile::F32, &only(&["h0"]), &wrong).verdict, Verdict::Diverged);
    // Constant tensors agree, but show nothing.
    let mut flat = only(&["layers.0.probs"]);
    flat.get_mut(&tap("layers.0.probs")).unwrap().1.fill(1.0);
    assert!(matches!(judged_as(Profile::F32, &flat, &flat).verdict, Verdict::Incomparable(_)));
}

#[test]
fn an_empty_tensor_is_no_agreement() {
    let mut empty = Run::new();
    empty.insert(tap("layers.0.h"), (vec![0, 48], Vec::new()));
    assert!(matches!(judged_as(Profile::F32, &empty, &empty).verdict, Verdict::Incomparable(_)));
}

#[test]
fn the_row_order_of_a_gguf_is_undone_where_it_is_consistent() {
    let reference = run();
    let mut candidate = noisy(&reference, 1e-13);
    let all = ["q", "k", "q_rope", "k_rope"];
    let reorder = |run: &mut Run, sites: &[&str]| {
        for layer in 0..LAYERS {
            for site in sites {
                to_adjacent(&mut run.get_mut(&tap(&format!("layers.{layer}.{site}"))).unwrap().1);
            }
        }
    };
    reorder(&mut candidate, &all);
    let report = judged_as(Profile::F32, &reference, &candidate);
    assert_eq!(report.verdict, Verdict::Parity, "{:?}", report.taps.iter().find(|t| t.status.differs()));
    assert!(
        report.warnings.iter().any(|w| w.to_string().contains("GGUF") && w.to_string().contains("12 taps")),
        "{:?}",
        report.warnings
    );
    // The reverse.
    assert_eq!(judged_as(Profile::F32, &candidate, &reference).verdict, Verdict::Parity);
    // A wrong kernel behind it is blamed itself.
    candidate.get_mut(&tap("layers.1.qk")).unwrap().1[40] = 5.0;
    let report = judged_as(Profile::F32, &reference, &candidate);
    assert_eq!(report.taps[report.first.unwrap().index].place.tap, tap("layers.1.qk"));
    // Rows permuted before RoPE but not after it: not a layout, but qk-row-order.
    let mut mistaken = noisy(&reference, 1e-13);
    reorder(&mut mistaken, &["q"]);
    let report = judged_as(Profile::F32, &reference, &mistaken);
    assert_eq!(report.taps[report.first.as_ref().unwrap().index].place.tap, tap("layers.0.q"));
    assert!(matches!(undone(&report)[0], Change::RowOrder(_)));
}

#[test]
fn different_tokens_and_short_prompts_are_said() {
    let folder = tempfile::tempdir().unwrap();
    let dump = |name: &str, tokens: &[i64]| {
        let recorder = Recorder::create(folder.path().join(name)).unwrap();
        recorder.describe(|meta: &mut Meta| meta.tokens = Some(tokens.to_vec()));
        recorder.record("layers.0.h", &[1, 4], &[1.0f32, 2.0, 3.0, 4.5]).unwrap();
        recorder.finish().unwrap();
        Dump::open(folder.path().join(name)).unwrap()
    };
    let (left, right) = (dump("a", &[1]), dump("b", &[2]));
    let graph = graph_of(&left, &right);
    let report = compare(&left, &right, &graph, &Options::new(Profile::F32), &mut |_, _| {}).unwrap();
    assert!(report.warnings[0].to_string().contains("different tokens"));
    assert!(report.warnings.iter().any(|w| w.to_string().contains("one token")));
}

#[test]
fn layers_that_nobody_recorded_lie_in_between() {
    // The unrecorded layers before the divergence in two runs with these taps: the last layer before a gap, and the first behind it.
    let gaps = |kept: &[&str], spoilt: &str| -> Vec<(Option<u32>, Option<u32>)> {
        let mut reference = run();
        reference.retain(|tap, _| kept.iter().any(|pattern| tap.matches(pattern)));
        let mut candidate = reference.clone();
        candidate.get_mut(&tap(spoilt)).unwrap().1.iter_mut().for_each(|x| *x *= 1.5);
        let first = judged_as(Profile::F32, &reference, &candidate).first.unwrap();
        assert_eq!(first.is_bracketed(), first.unchecked_between.is_empty() && first.unrecorded_layers.is_empty());
        first.unrecorded_layers.iter().map(|missing| (missing.after, missing.before)).collect()
    };
    assert_eq!(gaps(&["logits"], "logits"), [(None, None)]);
    assert_eq!(gaps(&["h0", "final_norm", "logits"], "logits"), []);
    assert_eq!(gaps(&["h0", "final_norm", "logits"], "final_norm"), [(None, None)]);
    assert_eq!(gaps(&["layers.0.*", "layers.2.*"], "layers.2.attn_norm"), [(Some(0), Some(2))]);
    assert_eq!(gaps(&["layers.0.*", "layers.2.*"], "layers.2.q"), []);
    assert_eq!(gaps(&["h0", "layers.2.h", "logits"], "layers.2.h"), [(None, Some(2))]);
    assert_eq!(gaps(&["h0", "layers.1.h", "logits"], "logits"), [(Some(1), None)]);
    assert_eq!(gaps(&["*"], "logits"), []);
}

/// With quantised activations everything is off by about 3e-4: a matrix that is 1.1 times as large exceeds that.
#[test]
#[ignore = "slow: cargo test -- --ignored, as .ci/run does"]
fn a_factor_is_found_in_the_noise_of_quantised_products() {
    for site in ["q", "k", "v", "attn_out", "ffn_gate", "ffn_up", "ffn_out"] {
        for layer in 0..LAYERS {
            check_in(Profile::Ggml, 3e-4, &format!("layers.{layer}.{site}"), |_, v| {
                v.iter_mut().for_each(|x| *x *= 1.1)
            });
        }
    }
    check_in(Profile::Ggml, 3e-4, "logits", |_, v| v.iter_mut().for_each(|x| *x *= 1.1));
}

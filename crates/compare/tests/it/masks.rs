//! Checks that a mask which leaks, or hides too much, is found at any size, and that right engines pass however they mask.

use firstdiff_compare::{Profile, Report, Status, Verdict};
use firstdiff_trace::Site;
use half::{bf16, f16};

use crate::synthetic::{LAYERS, Run, T, judged_in_memory as judged_as, noise, noisy, run, tap};

const HEADS: usize = 6;

/// How a mask changes the score of a query and a key.
type Masking = fn(query: usize, key: usize, score: f64) -> f64;

/// -inf behind the query, as in PyTorch.
fn causal(query: usize, key: usize, score: f64) -> f64 {
    if key > query { f64::NEG_INFINITY } else { score }
}

/// A run whose probabilities are the softmax of its scores, which lie `apart`.
fn attention(apart: f64, masking: impl Fn(usize, usize, f64) -> f64) -> Run {
    let mut run = run();
    for layer in 0..LAYERS {
        let mut next = noise(500 + u64::from(layer));
        let scores: Vec<f64> = (0..HEADS * T * T).map(|i| masking(i / T % T, i % T, apart * next())).collect();
        let at = |site: &str| tap(&format!("layers.{layer}.{site}"));
        run.get_mut(&at("probs")).unwrap().1 = softmax(&scores).into_iter().map(|p| p as f32).collect();
        run.get_mut(&at("scores")).unwrap().1 = scores.into_iter().map(|s| s as f32).collect();
    }
    run
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let row = |row: &[f64]| {
        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|s| (s - top).exp()).sum();
        row.iter().map(|s| (s - top).exp() / sum).collect::<Vec<f64>>()
    };
    scores.chunks(T).flat_map(row).collect()
}

/// The probabilities of every layer, changed.
fn with_probs(mut run: Run, change: impl Fn(usize, f32) -> f32) -> Run {
    for (_, (_, values)) in run.iter_mut().filter(|(tap, _)| tap.site == Site::Probs) {
        values.iter_mut().enumerate().for_each(|(i, p)| *p = change(i, *p));
    }
    run
}

fn without(mut run: Run, sites: &[Site]) -> Run {
    run.retain(|tap, _| !sites.contains(&tap.site));
    run
}

/// The noise of a right engine in this arithmetic.
fn rounded(run: &Run, profile: Profile) -> Run {
    let nmse = match profile {
        Profile::Exact => 0.0,
        Profile::F32 => 1e-13,
        Profile::F16 => 3e-7,
        Profile::Bf16 => 2e-5,
        Profile::Ggml => 3e-4,
    };
    let mut run = noisy(run, nmse);
    // The result of a softmax adds up to 1, however far its scores are off.
    for (_, (_, values)) in run.iter_mut().filter(|(tap, _)| tap.site == Site::Probs) {
        for row in values.chunks_mut(T) {
            let sum: f32 = row.iter().sum();
            row.iter_mut().for_each(|p| *p /= if sum > 0.5 { sum } else { 1.0 });
        }
    }
    run
}

#[track_caller]
fn first(report: &Report) -> (String, String) {
    let first = report.first.as_ref().unwrap_or_else(|| panic!("{:?}", report.verdict));
    let tap = &report.taps[first.index];
    (tap.place.tap.to_string(), tap.why().unwrap_or_default())
}

#[track_caller]
fn is_right(profile: Profile, reference: &Run, candidate: &Run, what: &str) {
    let report = judged_as(profile, reference, candidate);
    let wrong = report.taps.iter().find(|t| t.status.differs());
    assert_eq!(report.verdict, Verdict::Parity, "{what} in {profile}: {wrong:?}");
    assert!(wrong.is_none(), "{what} in {profile}: {wrong:?}");
}

const ALL: [Profile; 4] = [Profile::F32, Profile::F16, Profile::Bf16, Profile::Ggml];

#[test]
fn a_fill_that_leaves_some_leaks_in_every_profile() {
    let reference = attention(3.0, causal);
    for (profile, fill) in [
        (Profile::Bf16, -7.0),
        (Profile::Bf16, -30.0),
        (Profile::F16, -10.0),
        (Profile::F16, -14.0),
        (Profile::F32, -16.0),
        (Profile::F32, -50.0),
        (Profile::Ggml, -7.0),
        (Profile::Ggml, -30.0),
    ] {
        let filled = attention(3.0, |query, key, score| if key > query { fill } else { score });
        let candidate = rounded(&filled, profile);
        let (at, why) = first(&judged_as(profile, &reference, &candidate));
        assert_eq!(at, "layers.0.scores", "{profile} {fill}");
        assert!(why.contains("gives probability where the reference gives none"), "{profile} {fill}: {why}");
        let report = judged_as(profile, &reference, &candidate);
        assert_eq!(report.tap(tap("layers.0.probs"), 0).unwrap().status, Status::Downstream, "{profile} {fill}");
        // Each of the two alone.
        let scores = [Site::Scores];
        let (at, why) =
            first(&judged_as(profile, &without(reference.clone(), &scores), &without(candidate.clone(), &scores)));
        assert_eq!(at, "layers.0.probs", "{profile} {fill}");
        assert!(why.contains("gives probability"), "{profile} {fill}: {why}");
        if profile != Profile::F16 {
            let probs = [Site::Probs, Site::Context, Site::AttnOut];
            let report = judged_as(profile, &without(reference.clone(), &probs), &without(candidate, &probs));
            assert_eq!(first(&report).0, "layers.0.scores", "{profile} {fill}");
        }
    }
}

#[test]
fn every_way_to_mask_is_right_that_leaves_nothing() {
    let reference = attention(3.0, causal);
    for profile in ALL {
        let fills = [-100.0, -1e4, f64::from(f16::MIN), f64::from(f32::MIN), -1e9, f64::NEG_INFINITY];
        let mut right: Vec<(String, Run)> = fills
            .iter()
            .map(|&fill| (format!("{fill}"), attention(3.0, move |q, k, s| if k > q { fill } else { s })))
            .collect();
        for added in [-1e4, -1e9] {
            right.push((format!("+ {added}"), attention(3.0, move |q, k, s| if k > q { s + added } else { s })));
        }
        for (what, run) in &right {
            let candidate = rounded(run, profile);
            is_right(profile, &reference, &candidate, what);
            let probs = [Site::Probs, Site::Context];
            is_right(profile, &without(reference.clone(), &probs), &without(candidate, &probs), what);
        }
    }
}

#[test]
fn what_nobody_reads_is_the_buffers_own() {
    let reference = attention(3.0, causal);
    for profile in ALL {
        for (what, left) in
            [("zeros", (|_, _, _| 0.0) as Masking), ("products", |_, _, s| 0.5 * s), ("7", |_, _, _| 7.0)]
        {
            let mut candidate = reference.clone();
            let unmasked = attention(3.0, |q, k, s| if k > q { left(q, k, s) } else { s });
            for layer in 0..LAYERS {
                let at = tap(&format!("layers.{layer}.scores"));
                candidate.insert(at, unmasked[&at].clone());
            }
            let candidate = rounded(&candidate, profile);
            is_right(profile, &reference, &candidate, what);
            // Where no probabilities were recorded, their readers show that they are right.
            let probs = [Site::Probs];
            let (left, right) = (without(reference.clone(), &probs), without(candidate.clone(), &probs));
            is_right(profile, &left, &right, what);
            let probs = [Site::Probs, Site::Context, Site::AttnOut];
            let report = judged_as(profile, &without(reference.clone(), &probs), &without(candidate, &probs));
            assert_eq!(first(&report).0, "layers.0.scores", "{what} in {profile}");
        }
    }
}

/// NaN never passes, though nothing reads it.
#[test]
fn a_hidden_cell_without_a_number_is_a_difference() {
    let reference = attention(3.0, causal);
    let candidate = attention(3.0, |q, k, s| if k > q { f64::NEG_INFINITY } else { s });
    let mut hidden = candidate.clone();
    hidden.get_mut(&tap("layers.1.scores")).unwrap().1[1] = f32::NAN;
    for profile in ALL {
        assert!(judged_as(profile, &reference, &candidate).first.is_none(), "{profile}");
        assert_eq!(first(&judged_as(profile, &reference, &hidden)).0, "layers.1.scores", "{profile}");
    }
}

#[test]
fn a_window_that_is_too_wide_leaks() {
    let window =
        |width: usize| move |q: usize, k: usize, s: f64| if k > q || k + width <= q { f64::NEG_INFINITY } else { s };
    let reference = attention(3.0, window(4));
    is_right(Profile::F32, &reference, &noisy(&reference, 1e-13), "a window");
    for profile in ALL {
        let report = judged_as(profile, &reference, &rounded(&attention(3.0, window(5)), profile));
        assert_eq!(first(&report).0, "layers.0.scores", "{profile}");
        // However little it leaks: the scores are unknown.
        let little = with_probs(reference.clone(), |i, p| if i % T + 4 == i / T % T { 1e-5 } else { p });
        let (reference, candidate) =
            (without(reference.clone(), &[Site::Scores]), without(rounded(&little, profile), &[Site::Scores]));
        let (at, why) = first(&judged_as(profile, &reference, &candidate));
        assert_eq!(at, "layers.0.probs", "{profile}");
        assert!(why.contains("gives probability"), "{profile}: {why}");
        // And the reverse: it hides what the other sees.
        let (at, why) = first(&judged_as(profile, &candidate, &reference));
        assert_eq!(at, "layers.0.probs", "{profile}");
        assert!(why.contains("gives no probability"), "{profile}: {why}");
    }
}

#[test]
fn underflow_is_no_mask() {
    // Scores so far apart that many visible keys have less than f16 holds; as f16 stores them, and where it has no subnormal numbers.
    let whole = attention(12.0, causal);
    let stored = with_probs(whole.clone(), |_, p| f16::from_f32(p).to_f32());
    let normal = f16::MIN_POSITIVE.to_f32();
    let flushed = with_probs(stored.clone(), |_, p| if p < normal { 0.0 } else { p });
    for (what, short) in [("f16", &stored), ("f16 without subnormal numbers", &flushed)] {
        let zeros = |run: &Run| run[&tap("layers.0.probs")].1.iter().filter(|p| **p == 0.0).count();
        assert!(zeros(short) > zeros(&whole) + 20, "{what}");
        is_right(Profile::F16, short, &whole, what);
        is_right(Profile::F16, &whole, short, what);
        is_right(Profile::Bf16, short, &with_probs(whole.clone(), |_, p| bf16::from_f32(p).to_f32()), what);
        // Behind the query it still is a leak.
        let leaking = with_probs(whole.clone(), |i, p| if i % T > i / T % T { 1e-7 } else { p });
        let (at, why) = first(&judged_as(Profile::F16, short, &leaking));
        assert_eq!(at, "layers.0.probs", "{what}");
        assert!(why.contains("gives probability"), "{what}: {why}");
    }
    // Keys for which e^x is 0 in f32, and small in f64.
    let sharp = attention(60.0, causal);
    let in_f32 = with_probs(sharp.clone(), |_, p| if p < 2e-38 { 0.0 } else { p });
    is_right(Profile::F32, &in_f32, &sharp, "f32");
    is_right(Profile::F32, &sharp, &in_f32, "f32");
}

#[test]
fn padding_on_the_left_is_masked_as_well() {
    let padded = |q: usize, k: usize, s: f64| if k > q || (k < 2 && q >= 2) { f64::NEG_INFINITY } else { s };
    let reference = attention(3.0, padded);
    for profile in ALL {
        is_right(profile, &reference, &rounded(&reference, profile), "padding");
        let seen = attention(3.0, |q, k, s| {
            if k > q {
                f64::NEG_INFINITY
            } else if k < 2 && q >= 2 {
                -9.0
            } else {
                s
            }
        });
        let (at, why) = first(&judged_as(profile, &reference, &rounded(&seen, profile)));
        assert_eq!(at, "layers.0.scores", "{profile}");
        assert!(why.contains("gives probability"), "{profile}: {why}");
    }
}

#[test]
fn what_the_scores_mask_leaks_wherever_it_is() {
    // Two documents in one sequence: such a mask shows not in the places of the zeros, but in the scores.
    let documents = |fill: f64| {
        move |q: usize, k: usize, s: f64| match (k > q, (k < 5) == (q < 5)) {
            (true, _) => f64::NEG_INFINITY,
            (_, true) => s,
            (_, false) => fill,
        }
    };
    let reference = attention(3.0, documents(f64::NEG_INFINITY));
    for profile in ALL {
        is_right(profile, &reference, &rounded(&attention(3.0, documents(-1e4)), profile), "documents");
        let candidate = rounded(&attention(3.0, documents(-14.0)), profile);
        let report = judged_as(profile, &reference, &candidate);
        assert_eq!(first(&report).0, "layers.0.scores", "{profile}");
        let probs = report.tap(tap("layers.0.probs"), 0).unwrap();
        assert_eq!(probs.status, Status::Downstream, "{profile}");
        assert!(probs.why().unwrap().contains("gives probability"), "{profile}: {:?}", probs.reason);
    }
}

#[test]
fn other_experts_may_be_chosen_but_not_more() {
    // Two of eight experts; the rest are 0.
    let with = |chosen: &[(usize, f32)]| {
        let mut run = run();
        let mut probs = vec![0.0; T * 8];
        for row in 0..T {
            (probs[8 * row + row % 8], probs[8 * row + (row + 3) % 8]) = (0.97, 0.03);
        }
        for &(at, p) in chosen {
            probs[at] = p;
        }
        run.insert(tap("layers.0.router_probs"), (vec![T, 8], probs));
        run
    };
    let reference = with(&[]);
    // Another second expert, as rounding may choose.
    is_right(Profile::Bf16, &reference, &with(&[(3, 0.0), (5, 0.03)]), "another expert");
    let (at, why) = first(&judged_as(Profile::Bf16, &reference, &with(&[(5, 1e-3)])));
    assert_eq!(at, "layers.0.router_probs");
    assert!(why.contains("gives probability"), "{why}");
    let (at, why) = first(&judged_as(Profile::Bf16, &reference, &with(&[(3, 0.0)])));
    assert_eq!(at, "layers.0.router_probs");
    assert!(why.contains("gives no probability"), "{why}");
}

#[test]
fn probabilities_that_do_not_add_up_to_one_are_wrong_at_any_size() {
    // Rows from position 6 on times 0.96: an NMSE that f16 may inherit from scores, but that no scores cause.
    let right = attention(4.0, causal);
    let off = with_probs(rounded(&right, Profile::F16), |i, p| if i / T % T >= 6 { 0.96 * p } else { p });
    let report = judged_as(Profile::F16, &right, &off);
    assert_eq!(report.taps[report.first.as_ref().unwrap().index].place.tap, tap("layers.0.probs"));
    // Each rounded by itself: right.
    for (profile, round) in [
        (Profile::F16, (|p| f16::from_f32(p).to_f32()) as fn(f32) -> f32),
        (Profile::Bf16, |p| bf16::from_f32(p).to_f32()),
    ] {
        let report = judged_as(profile, &right, &with_probs(rounded(&right, profile), |_, p| round(p)));
        assert!(report.first.is_none(), "{profile:?}: {:?}", report.first);
    }
}

/// Whatever number stands for a masked key, it enters no norm: only the other scores count.
#[test]
fn masked_cells_are_in_no_norm() {
    for fill in [f64::NEG_INFINITY, f64::from(f32::MIN), -1e9] {
        let reference = attention(3.0, |query, key, score| if key > query { fill } else { score });
        let mut candidate = reference.clone();
        let scores = &mut candidate.get_mut(&tap("layers.1.scores")).unwrap().1;
        let seen: Vec<f64> = scores.iter().map(|x| f64::from(*x)).filter(|x| *x > -100.0).collect();
        scores.iter_mut().filter(|x| **x > -100.0).for_each(|x| *x = *x * 0.5 + 0.25);
        let metrics =
            judged_as(Profile::F32, &reference, &candidate).tap(tap("layers.1.scores"), 0).unwrap().metrics.unwrap();
        let due = seen.iter().map(|x| (0.5 * x - 0.25).powi(2)).sum::<f64>() / seen.len() as f64;
        assert!((metrics.rmse().unwrap() - due.sqrt()).abs() < 1e-6, "{fill}: {:?} for {}", metrics.rmse(), due.sqrt());
        assert!(metrics.correlation().unwrap() > 1.0 - 1e-9, "{fill}: {:?}", metrics.correlation());
        assert_eq!(metrics.compared(), seen.len());
    }
}

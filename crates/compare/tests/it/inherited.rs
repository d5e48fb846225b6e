//! Checks who is blamed for an error: not an operation that only passes it on, but the one that adds it; in between it is inconclusive.

use crate::synthetic::{Run, judged_as, judged_in_memory, noise, noisy, run, tap};
use firstdiff_compare::{Graph, Place, Profile, Status, Verdict};
use firstdiff_trace::Site;

#[test]
fn an_error_that_is_passed_on_blames_nobody() {
    // Rounding that grows from layer to layer, until it is ten times what the table allows.
    let reference = run();
    let grown = |nmse: f64| noisy(&reference, nmse);
    let mut candidate = Run::new();
    for (&at, tensor) in &reference {
        let depth = at.layer.map_or(if at.site == Site::H0 { 0 } else { 3 }, |layer| layer + 1);
        let nmse = 5e-12 * 3f64.powi(depth as i32);
        candidate.insert(at, if depth == 0 { tensor.clone() } else { grown(nmse)[&at].clone() });
    }
    let report = judged_as(Profile::F32, &reference, &candidate);
    assert_eq!(report.verdict, Verdict::Parity, "{:?}", report.taps.iter().find(|t| t.status.differs()));
    assert!(
        report.warnings.iter().any(|w| w.to_string().contains("because their inputs already differ")),
        "{:?}",
        report.warnings
    );
    // A leap is a fault there as elsewhere, and a wrong tap passes on no tolerance.
    for (at, next) in [("layers.2.v", "layers.2.context"), ("layers.2.ffn_gate", "layers.2.ffn_act")] {
        let mut faulty = candidate.clone();
        for (name, nmse) in [(at, 1e-6), (next, 1e-6)] {
            let noise = grown(nmse)[&tap(name)].clone();
            faulty.insert(tap(name), noise);
        }
        let report = judged_as(Profile::F32, &reference, &faulty);
        assert_eq!(report.taps[report.first.as_ref().unwrap().index].place.tap, tap(at));
        assert_eq!(report.tap(tap(next), 0).unwrap().status, Status::Downstream);
    }
}

/// The run with noise of `base` everywhere, and of its own at the taps of `noises`.
fn noisy_at(base: f64, noises: &[(&str, f64)]) -> Run {
    let reference = run();
    let mut candidate = noisy(&reference, base);
    for (name, nmse) in noises {
        let tensor = noisy(&reference, *nmse)[&tap(name)].clone();
        candidate.insert(tap(name), tensor);
    }
    candidate
}

#[test]
fn between_inherited_and_wrong_it_is_unclear() {
    // Five times the most that the head was seen to pass on, at the end: neither a pass nor a blame.
    let candidate = noisy_at(1e-13, &[("final_norm", 4e-11), ("logits", 2.4e-10)]);
    let report = judged_as(Profile::F32, &run(), &candidate);
    assert!(
        matches!(&report.verdict, Verdict::Incomparable(why) if why.contains("inconclusive")),
        "{:?}",
        report.verdict
    );
    // The only tap: neither a pass nor a blame, and not "nothing in common".
    let only = |run: Run| -> Run { run.into_iter().filter(|(at, _)| at.site == Site::Logits).collect() };
    let report = judged_as(Profile::F32, &only(run()), &only(noisy_at(6e-11, &[])));
    assert!(
        matches!(&report.verdict, Verdict::Incomparable(why) if why.starts_with("logits: inconclusive: beyond rounding"))
    );
    // In the middle, with all later taps in order: unchecked.
    let candidate = noisy_at(1e-13, &[("layers.2.ffn_norm", 3e-11), ("layers.2.ffn_gate", 4e-10)]);
    let report = judged_as(Profile::F32, &run(), &candidate);
    assert_eq!(report.verdict, Verdict::Parity);
    assert_eq!(report.tap(tap("layers.2.ffn_gate"), 0).unwrap().status, Status::Unchecked);
    // Two of them, of which one reads the other: more than chance, but undecidable.
    let both = [("layers.2.ffn_norm", 3e-11), ("layers.2.ffn_gate", 4e-10), ("layers.2.ffn_act", 6e-10)];
    let report = judged_as(Profile::F32, &run(), &noisy_at(1e-13, &both));
    let said =
        matches!(&report.verdict, Verdict::Incomparable(why) if why.contains("layers.2.ffn_act, which reads it"));
    assert!(said, "{:?}", report.verdict);
    // Fifty times: wrong.
    let candidate = noisy_at(1e-13, &[("final_norm", 4e-11), ("logits", 2.4e-9)]);
    let report = judged_as(Profile::F32, &run(), &candidate);
    assert_eq!(report.taps[report.first.unwrap().index].place.tap, tap("logits"));
}

/// A classifier reads one row, of its class token: that row may be off by more than all of them together.
#[test]
fn what_reads_one_row_may_have_read_the_one_that_is_furthest_off() {
    let mut reference = run();
    let one_row = |run: &mut Run| {
        let (shape, values) = run.get_mut(&tap("logits")).unwrap();
        values.truncate(shape[1]);
        shape[0] = 1;
    };
    one_row(&mut reference);
    let status = |of_row: f64, of_logits: f64| {
        let mut candidate = noisy(&reference, 1e-6);
        let far = noisy(&reference, of_row)[&tap("final_norm")].clone();
        let (shape, values) = candidate.get_mut(&tap("final_norm")).unwrap();
        values[..shape[1]].copy_from_slice(&far.1[..shape[1]]);
        candidate.insert(tap("logits"), noisy(&reference, of_logits)[&tap("logits")].clone());
        judged_as(Profile::Bf16, &reference, &candidate).tap(tap("logits"), 0).unwrap().status
    };
    assert_eq!(status(3e-3, 1e-2), Status::Unchecked);
    assert_eq!(status(1e-6, 1e-2), Status::Diverged);
    assert_eq!(status(3e-3, 0.3), Status::Diverged);
}

#[test]
fn a_leap_is_seen_below_what_depth_would_allow() {
    // bf16 may be 8e-4 off in layer 2, but not where its input is only 8e-6 off.
    let candidate = noisy_at(8e-6, &[("layers.2.ffn_gate", 6e-4)]);
    let report = judged_as(Profile::Bf16, &run(), &candidate);
    assert_eq!(report.taps[report.first.unwrap().index].place.tap, tap("layers.2.ffn_gate"));
}

#[test]
fn one_key_is_not_lost_in_the_noise() {
    // The products of one query with 60 keys, one of which is wrong: 1 % of the error there could be.
    let shape = vec![6, 1, 60];
    let mut next = noise(9);
    let values: Vec<f32> = (0..360).map(|_| next() as f32).collect();
    let reference: Run = [(tap("layers.0.qk"), (shape, values))].into();
    let mut candidate = noisy(&reference, 8e-6);
    candidate.get_mut(&tap("layers.0.qk")).unwrap().1.chunks_mut(60).for_each(|keys| keys[41] *= 0.9);
    let report = judged_as(Profile::Bf16, &reference, &candidate);
    let found = report.tap(tap("layers.0.qk"), 0).unwrap();
    assert!(found.why().is_some_and(|why| why.contains("key 41")), "{:?}", found.reason);
}

/// The part that is multiplied by a factor.
#[derive(Clone, Copy, Debug)]
enum Part {
    Whole,
    Head,
    Row,
    Channel,
}

/// Factors increasingly far from 1, on one side of it.
const UP: [f64; 11] = [1.001, 1.003, 1.01, 1.02, 1.04, 1.05, 1.06, 1.08, 1.15, 1.4, 4.0];
const DOWN: [f64; 6] = [0.995, 0.97, 0.95, 0.93, 0.8, 0.25];

/// The elements of a tensor of `site` that belong to `part`.
fn belongs(site: Site, shape: &[usize], part: Part, at: usize) -> bool {
    let axis = site.position_axis();
    let width: usize = shape[axis + 1..].iter().product();
    let (row, rows) = (at / width % shape[axis], shape[axis]);
    match part {
        Part::Whole => true,
        Part::Row => row == rows / 2,
        Part::Channel => at % width == width / 2,
        Part::Head if axis == 1 => at / width / rows == 1,
        Part::Head => at % width / (width / if shape.len() == 3 { shape[1] } else { 6 }) == 1,
    }
}

/// Multiplies a part of each tap in turn by growing factors: once one is found, every larger one must be found too. The taps that a tap reads and those that
/// read it have the noise of `profile` too.
fn more_is_never_less(profile: Profile, nmse: f64) {
    let reference = run();
    let candidate = noisy(&reference, nmse);
    let graph = Graph::from_vocabulary(reference.keys().map(|&tap| Place { step: 0, tap }));
    let (mut holes, mut found_at_all, mut cases) = (Vec::new(), 0, 0);
    for (index, place) in graph.places().iter().enumerate().filter(|(_, p)| p.tap.layer.is_none_or(|n| n == 2)) {
        let recorded = |i: usize| reference.contains_key(&graph.places()[i].tap);
        if !recorded(index) {
            continue;
        }
        let mut near = graph.nearest_before(index, recorded).0;
        near.extend(graph.nearest_after(index, recorded).0);
        let near: Vec<_> = near.into_iter().chain([index]).map(|i| graph.places()[i].tap).collect();
        let only =
            |run: &Run| -> Run { run.iter().filter(|(t, _)| near.contains(t)).map(|(t, x)| (*t, x.clone())).collect() };
        let (reference, candidate) = (only(&reference), only(&candidate));
        for part in [Part::Whole, Part::Head, Part::Row, Part::Channel] {
            let (shape, right) = candidate[&place.tap].clone();
            if matches!(part, Part::Head) && shape.len() != 3 && place.tap.site != Site::Context {
                continue;
            }
            for factors in [&UP[..], &DOWN[..]] {
                let mut before = None;
                for &factor in factors {
                    let mut faulty = candidate.clone();
                    let scaled = |(at, x): (usize, &f32)| match belongs(place.tap.site, &shape, part, at) {
                        true => (f64::from(*x) * factor) as f32,
                        false => *x,
                    };
                    faulty.get_mut(&place.tap).unwrap().1 = right.iter().enumerate().map(scaled).collect();
                    let report = judged_in_memory(profile, &reference, &faulty);
                    cases += 1;
                    let diverged = report.verdict == Verdict::Diverged;
                    match (before, diverged) {
                        (None, true) => before = Some(factor),
                        (Some(smaller), false) => {
                            holes.push(format!("{} {part:?} times {factor}, though {smaller} is found", place.tap));
                        }
                        _ => {}
                    }
                }
                found_at_all += usize::from(before.is_some());
            }
        }
    }
    assert!(holes.is_empty(), "{profile} {nmse}: {} of {cases}:\n{}", holes.len(), holes.join("\n"));
    println!("{profile} {nmse}: {cases} cases, {found_at_all} found");
    assert!(found_at_all > 90, "{found_at_all}");
}

#[test]
fn a_larger_factor_is_never_passed_where_a_smaller_one_is_found_in_f32() {
    more_is_never_less(Profile::F32, 4e-12);
}

#[test]
fn a_larger_factor_is_never_passed_where_a_smaller_one_is_found_in_f16() {
    more_is_never_less(Profile::F16, 1.3e-7);
    more_is_never_less(Profile::F16, 2e-6);
}

#[test]
fn a_larger_factor_is_never_passed_where_a_smaller_one_is_found_in_bf16() {
    more_is_never_less(Profile::Bf16, 8e-6);
    more_is_never_less(Profile::Bf16, 1e-4);
}

#[test]
fn a_larger_factor_is_never_passed_where_a_smaller_one_is_found_in_ggml() {
    more_is_never_less(Profile::Ggml, 3e-5);
    more_is_never_less(Profile::Ggml, 7e-4);
}

#[test]
fn scores_inherit_from_the_products_that_the_mask_leaves() {
    // A first position that sees one small product beside large masked ones: the rounding of all of them is large beside that one.
    let (rows, keys) = (crate::synthetic::T, crate::synthetic::T);
    let (mut reference, qk, scores) = (run(), tap("layers.1.qk"), tap("layers.1.scores"));
    let (shape, mut products) = reference[&qk].clone();
    (0..shape[0]).for_each(|head| products[head * rows * keys] = 0.01);
    let masked = |products: &[f32]| -> Vec<f32> {
        let seen = |i: usize| i % keys <= i / keys % rows;
        products.iter().enumerate().map(|(i, x)| if seen(i) { x * 0.25 } else { f32::NEG_INFINITY }).collect()
    };
    let mut next = noise(5);
    let rounded: Vec<f32> = products.iter().map(|x| x + 1e-3 * next() as f32).collect();
    let mut candidate = reference.clone();
    for (run, values) in [(&mut reference, &products), (&mut candidate, &rounded)] {
        run.insert(scores, (shape.clone(), masked(values)));
        run.insert(qk, (shape.clone(), values.clone()));
    }
    let report = judged_in_memory(Profile::F16, &reference, &candidate);
    assert_eq!(report.verdict, Verdict::Parity, "{:?}", report.taps.iter().find(|t| t.status.differs()));
    // The same error in the scores alone is blamed on them.
    let mut faulty = candidate.clone();
    faulty.insert(qk, (shape, products));
    let report = judged_in_memory(Profile::F16, &reference, &faulty);
    assert_eq!(report.taps[report.first.as_ref().unwrap().index].place.tap, scores);
}

/// What most people record: h0, the residual stream after each layer, logits.
fn stream(mut run: Run) -> Run {
    run.retain(|tap, _| matches!(tap.site, Site::H0 | Site::H | Site::Logits));
    run
}

#[test]
fn a_first_token_of_great_size_hides_no_other() {
    let mut reference = stream(run());
    // As in trained models: one channel of the first token, in the whole stream.
    for (_, (_, values)) in reference.iter_mut().filter(|(tap, _)| tap.site == Site::H) {
        values[7] = 1500.0;
    }
    for profile in [Profile::Bf16, Profile::F16] {
        let own = if profile == Profile::Bf16 { 1e-5 } else { 1e-7 };
        let right = noisy(&reference, own);
        let report = judged_as(profile, &reference, &right);
        assert_eq!(report.verdict, Verdict::Parity, "{profile}: {:?}", report.warnings);
        let mut faulty = right.clone();
        let (shape, values) = faulty.get_mut(&tap("layers.1.h")).unwrap();
        let mut next = noise(9);
        values[shape[1]..].iter_mut().for_each(|x| *x += 0.2 * next() as f32);
        let report = judged_as(profile, &reference, &faulty);
        let first = &report.taps[report.first.as_ref().expect("a fault").index];
        assert_eq!(first.place.tap, tap("layers.1.h"));
        let metrics = first.metrics.unwrap();
        assert!(metrics.nmse().unwrap() < 1e-4 && first.balanced.unwrap() > 0.01, "{:?}", first.reason);
        assert!(first.why().unwrap().contains("position 0 is so much larger"), "{:?}", first.reason);
    }
}

#[test]
fn a_position_that_attends_to_what_is_off_is_no_outlier() {
    // Values of one position are 100 times as far off as the others', and so is the context of the position that attends to it.
    let reference = run();
    let off = |run: &mut Run, name: &str, position: usize| {
        let far = noisy(&reference, 4e-2)[&tap(name)].clone();
        let (shape, values) = run.get_mut(&tap(name)).unwrap();
        let width: usize = shape[1..].iter().product();
        let row = position * width..(position + 1) * width;
        values[row.clone()].copy_from_slice(&far.1[row]);
    };
    let mut right = noisy(&reference, 2e-5);
    off(&mut right, "layers.1.v", 4);
    off(&mut right, "layers.1.context", 4);
    // Taps that are inconclusive or wrong themselves are not checked here: only who is blamed for the context.
    let report = judged_in_memory(Profile::Bf16, &reference, &right);
    assert_ne!(report.tap(tap("layers.1.context"), 0).unwrap().status, Status::Diverged);
    let mut faulty = noisy(&reference, 2e-5);
    off(&mut faulty, "layers.1.context", 4);
    let report = judged_in_memory(Profile::Bf16, &reference, &faulty);
    assert_eq!(report.taps[report.first.as_ref().unwrap().index].place.tap, tap("layers.1.context"));
}

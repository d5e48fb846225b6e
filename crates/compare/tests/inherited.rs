//! Whose error is it? What an operation only passes on blames it not; what it adds does; and between the two it is unclear.

mod synthetic;

use firstdiff_compare::{Profile, Status, Verdict};
use firstdiff_trace::Site;
use synthetic::{Run, judged_as, noise, noisy, run, tap};

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
    assert!(report.warnings.iter().any(|w| w.contains("amplifies rounding")), "{:?}", report.warnings);
    // A leap is a fault, there as anywhere; and what is wrong passes nothing on.
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
    // Five times what the head was ever seen to pass on, at the end: no pass, and no blame.
    let candidate = noisy_at(1e-13, &[("final_norm", 4e-11), ("logits", 2.4e-10)]);
    let report = judged_as(Profile::F32, &run(), &candidate);
    assert!(matches!(&report.verdict, Verdict::Incomparable(why) if why.contains("unclear")), "{:?}", report.verdict);
    // All there is: no pass, no blame, and not nothing in common.
    let only = |run: Run| -> Run { run.into_iter().filter(|(at, _)| at.site == Site::Logits).collect() };
    let report = judged_as(Profile::F32, &only(run()), &only(noisy_at(6e-11, &[])));
    assert!(matches!(&report.verdict, Verdict::Incomparable(why) if why.starts_with("logits: more than rounding")));
    // In the middle, with all behind it in order: unchecked.
    let candidate = noisy_at(1e-13, &[("layers.2.ffn_norm", 3e-11), ("layers.2.ffn_gate", 4e-10)]);
    let report = judged_as(Profile::F32, &run(), &candidate);
    assert_eq!(report.verdict, Verdict::Parity);
    assert_eq!(report.tap(tap("layers.2.ffn_gate"), 0).unwrap().status, Status::Unchecked);
    // Fifty times: wrong.
    let candidate = noisy_at(1e-13, &[("final_norm", 4e-11), ("logits", 2.4e-9)]);
    let report = judged_as(Profile::F32, &run(), &candidate);
    assert_eq!(report.taps[report.first.unwrap().index].place.tap, tap("logits"));
}

#[test]
fn a_leap_is_seen_below_what_depth_would_allow() {
    // bf16 may be 8e-4 off in layer 2; not where what it reads is 8e-6 off.
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
    assert!(found.reason.as_ref().is_some_and(|why| why.contains("key 41")), "{:?}", found.reason);
}

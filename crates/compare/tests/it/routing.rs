//! Checks that a router's choice is judged by its scores: never blamed where rounding caused it, and never passed where it did not.

use firstdiff_compare::{Options, Profile, Report, Status, Verdict, compare, graph_of};
use firstdiff_trace::{Dump, GraphNode, Recorder};

const T: usize = 12;
const D: usize = 16;
const E: usize = 6;
const LAYERS: usize = 2;
/// The token whose second and third best experts are almost equal, in layer 0.
const EDGE: usize = 7;

fn noise(seed: usize, at: usize) -> f64 {
    let mut x = (seed as u64 * 1_000_003 + at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// What a candidate does differently from the reference.
#[derive(Clone, Copy, Default)]
struct Otherwise {
    /// Relative rounding of every value.
    rounding: f64,
    /// The scores on the edge are rounded to the other side.
    flips: bool,
    /// A token that is sent to the worst expert instead of its second best, against the scores.
    misroutes: Option<usize>,
    /// The chosen experts in the other order.
    reorders: bool,
    /// The experts' sum for one token of layer 1 is doubled.
    doubles: Option<usize>,
    /// The choice of layer 0 is not a number.
    is_nan: bool,
    hides_scores: bool,
    hides_choice: bool,
    /// The best expert is chosen twice.
    doubled: bool,
}

fn product(x: &[f64], width: usize, seed: usize) -> Vec<f64> {
    let weight = |i: usize, o: usize| noise(seed, o * D + i) / 2.0;
    (0..T * width).map(|at| (0..D).map(|i| x[at / width * D + i] * weight(i, at % width)).sum()).collect()
}

/// Each token goes through the best two of six experts; each token then reads the mean of the results up to its own.
fn run(how: Otherwise) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let mut taps = Vec::new();
    let mut note = |name: String, shape: &[usize], x: &[f64]| {
        let seed = name.len();
        let rounded = x.iter().enumerate().map(|(i, x)| (x * (1.0 + how.rounding * noise(seed + i, i))) as f32);
        taps.push((name, shape.to_vec(), rounded.collect::<Vec<_>>()));
    };
    let mut h: Vec<f64> = (0..T * D).map(|at| noise(1, at)).collect();
    note("h0".into(), &[T, D], &h);
    for layer in 0..LAYERS {
        let name = |inner: &str| format!("layers.{layer}.{inner}");
        let mut scores = product(&h, E, 10 + layer);
        let ranked = |row: &[f64]| {
            let mut order: Vec<usize> = (0..E).collect();
            order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
            order
        };
        if layer == 0 {
            let row = &mut scores[EDGE * E..][..E];
            let order = ranked(row);
            let apart = if how.flips { -1e-6 } else { 1e-6 };
            row[order[2]] = row[order[1]] - apart;
        }
        if !how.hides_scores {
            note(name("router_logits"), &[T, E], &scores);
        }
        let mut chosen = Vec::new();
        for (token, row) in scores.chunks(E).enumerate() {
            let order = ranked(row);
            let second = if how.doubled {
                order[0]
            } else if layer == 0 && how.misroutes == Some(token) {
                order[E - 1]
            } else {
                order[1]
            };
            chosen.extend(if how.reorders { [second, order[0]] } else { [order[0], second] });
        }
        let numbers: Vec<f64> = chosen.iter().map(|&expert| expert as f64).collect();
        let numbers: Vec<f64> = if how.is_nan && layer == 0 { vec![f64::NAN; 2 * T] } else { numbers };
        if !how.hides_choice {
            note(name("router_topk"), &[T, 2], &numbers);
        }
        let experts: Vec<Vec<f64>> = (0..E).map(|expert| product(&h, D, 20 + 10 * layer + expert)).collect();
        let sum = |at: usize| {
            let token = at / D;
            let factor = if layer == 1 && how.doubles == Some(token) { 2.0 } else { 1.0 };
            factor * chosen[2 * token..][..2].iter().map(|&expert| experts[expert][at]).sum::<f64>()
        };
        let out: Vec<f64> = (0..T * D).map(sum).collect();
        note(name("ffn_out"), &[T, D], &out);
        let probs: Vec<f64> =
            (0..T * T).map(|at| if at % T <= at / T { 1.0 / (at / T + 1) as f64 } else { 0.0 }).collect();
        note(name("probs"), &[1, T, T], &probs);
        let mean = |at: usize| (0..=at / D).map(|key| probs[at / D * T + key] * out[key * D + at % D]).sum::<f64>();
        h = (0..T * D).map(|at| h[at] + mean(at)).collect();
        note(name("h"), &[T, D], &h);
    }
    note("logits".into(), &[T, D], &product(&h, D, 99));
    // Expert numbers are never rounded.
    let choices = taps.iter_mut().filter(|(name, ..)| name.ends_with("router_topk"));
    choices.for_each(|(_, _, values)| values.iter_mut().for_each(|x| *x = x.round()));
    taps
}

fn graph() -> Vec<GraphNode> {
    let node = |tap: String, reads: &[String]| GraphNode { tap, op: None, reads: reads.to_vec() };
    let mut nodes = vec![node("h0".into(), &[])];
    let mut stream = "h0".to_owned();
    for layer in 0..LAYERS {
        let name = |inner: &str| format!("layers.{layer}.{inner}");
        nodes.push(node(name("router_logits"), std::slice::from_ref(&stream)));
        nodes.push(node(name("router_topk"), &[name("router_logits")]));
        nodes.push(node(name("ffn_out"), &[stream.clone(), name("router_topk")]));
        nodes.push(node(name("probs"), std::slice::from_ref(&stream)));
        nodes.push(node(name("h"), &[stream, name("probs"), name("ffn_out")]));
        stream = name("h");
    }
    nodes.push(node("logits".into(), &[stream]));
    nodes
}

fn write(how: Otherwise, has_graph: bool) -> (tempfile::TempDir, Dump) {
    let folder = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(folder.path()).unwrap();
    recorder.tokens(&(0..T as i64).collect::<Vec<_>>());
    if has_graph {
        recorder.describe(|meta| meta.graph = Some(graph()));
    }
    for (name, shape, values) in run(how) {
        recorder.record(&name, &shape, &values).unwrap();
    }
    recorder.finish().unwrap();
    let dump = Dump::open(folder.path()).unwrap();
    (folder, dump)
}

fn report(profile: Profile, how: Otherwise) -> Report {
    let (_left, reference) = write(Otherwise::default(), true);
    let (_right, candidate) = write(how, false);
    let graph = graph_of(&reference, &candidate);
    compare(&reference, &candidate, &graph, &Options::new(profile), &mut |_, _| ()).unwrap()
}

fn status(report: &Report, tap: &str) -> Status {
    report.taps.iter().find(|here| here.place.to_string() == tap).unwrap_or_else(|| panic!("{tap}")).status
}

fn first(report: &Report) -> Option<String> {
    Some(report.taps[report.first.as_ref()?.index].place.to_string())
}

const HONEST: Otherwise = Otherwise {
    rounding: 1e-3,
    flips: false,
    misroutes: None,
    reorders: false,
    doubles: None,
    is_nan: false,
    hides_scores: false,
    hides_choice: false,
    doubled: false,
};

#[test]
fn the_same_experts_in_another_order_are_the_same() {
    let report = report(Profile::Bf16, Otherwise { reorders: true, ..HONEST });
    assert_eq!(report.verdict, Verdict::Parity);
    assert_eq!(status(&report, "layers.0.router_topk"), Status::Rounding);
}

#[test]
fn a_choice_that_rounding_made_otherwise_is_neither_blamed_nor_passed() {
    let report = report(Profile::Bf16, Otherwise { flips: true, ..HONEST });
    assert_eq!(first(&report), None);
    let Verdict::Incomparable(reason) = &report.verdict else { panic!("{:?}", report.verdict) };
    assert!(reason.contains("layers.0.router_topk") && reason.contains("token 7"), "{reason}");
    assert_eq!(status(&report, "layers.0.router_topk"), Status::Unchecked);
    // Later taps agree at the tokens before it, and only these are reported.
    let out = report.taps.iter().find(|tap| tap.place.to_string() == "layers.1.h").unwrap();
    assert_eq!((out.status, out.positions.as_deref()), (Status::Rounding, Some(&[0, 1, 2, 3, 4, 5, 6][..])));
}

#[test]
fn a_fault_before_the_token_is_found_behind_the_choice() {
    let report = report(Profile::Bf16, Otherwise { flips: true, doubles: Some(3), ..HONEST });
    assert_eq!(first(&report).as_deref(), Some("layers.1.ffn_out"));
}

#[test]
fn a_fault_at_the_token_is_never_passed() {
    let report = report(Profile::Bf16, Otherwise { flips: true, doubles: Some(EDGE), ..HONEST });
    assert!(matches!(report.verdict, Verdict::Incomparable(_)), "{:?}", report.verdict);
}

#[test]
fn a_choice_against_its_own_scores_is_blamed_in_every_profile() {
    for profile in [Profile::F32, Profile::Bf16, Profile::Ggml] {
        for token in 0..T {
            let rounding = if profile == Profile::F32 { 0.0 } else { HONEST.rounding };
            let how = Otherwise { rounding, misroutes: Some(token), ..HONEST };
            assert_eq!(first(&report(profile, how)).as_deref(), Some("layers.0.router_topk"), "{profile} {token}");
            let how = Otherwise { hides_scores: true, ..how };
            assert_eq!(
                first(&report(profile, how)).as_deref(),
                Some("layers.0.router_topk"),
                "{profile} {token}, no scores"
            );
        }
    }
}

#[test]
fn without_scores_a_choice_on_the_edge_cannot_be_told() {
    let report = report(Profile::Bf16, Otherwise { flips: true, hides_scores: true, ..HONEST });
    assert_eq!(first(&report), None);
    assert!(matches!(report.verdict, Verdict::Incomparable(_)), "{:?}", report.verdict);
}

/// A right engine of 16 bits may send a token elsewhere without recording it.
#[test]
fn a_choice_on_the_edge_that_was_not_recorded_is_neither_blamed_nor_passed() {
    for hides_scores in [false, true] {
        let how = Otherwise { hides_choice: true, hides_scores, ..HONEST };
        // Taps that agree show that the choice is the same.
        assert_eq!(report(Profile::Bf16, how).verdict, Verdict::Parity);
        let flipped = report(Profile::Bf16, Otherwise { flips: true, ..how });
        assert_eq!(first(&flipped), None);
        let Verdict::Incomparable(reason) = &flipped.verdict else { panic!("{:?}", flipped.verdict) };
        assert!(reason.contains("which experts was not recorded"), "{reason}");
        // No rounding of f32 sends it there, and a fault at an earlier token is not caused by rounding.
        let misrouted = report(Profile::F32, Otherwise { rounding: 0.0, misroutes: Some(2), ..how });
        assert_eq!(first(&misrouted).as_deref(), Some("layers.0.ffn_out"));
        let faulty = report(Profile::Bf16, Otherwise { flips: true, doubles: Some(1), ..how });
        assert_eq!(first(&faulty).as_deref(), Some("layers.1.ffn_out"));
    }
}

#[test]
fn one_expert_twice_is_no_choice() {
    let report = report(Profile::Bf16, Otherwise { doubled: true, ..HONEST });
    assert_eq!(first(&report).as_deref(), Some("layers.0.router_topk"));
}

#[test]
fn what_is_no_number_of_an_expert_never_passes() {
    let report = report(Profile::Bf16, Otherwise { is_nan: true, ..HONEST });
    assert_eq!(first(&report).as_deref(), Some("layers.0.router_topk"));
}

/// An expert's rows, one of them perhaps doubled, and the numbers and weights of the two experts of each token, each perhaps in the other order of places.
fn of_experts(
    rows: &[usize],
    [is_swapped, swaps_weights]: [bool; 2],
    doubled: Option<usize>,
) -> (tempfile::TempDir, Dump) {
    let folder = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(folder.path()).unwrap();
    recorder.tokens(&(0..T as i64).collect::<Vec<_>>());
    let value = |at: usize, i: usize| noise(3, at * D + i) as f32 * if doubled == Some(at) { 2.0 } else { 1.0 };
    let values: Vec<f32> =
        rows.iter().flat_map(|&at| (0..D).map(move |i| (at, i))).map(|(at, i)| value(at, i)).collect();
    recorder.record("layers.0.experts.3.up", &[rows.len(), D], &values).unwrap();
    let pairs = |of: [f32; 2], is_swapped: bool| {
        (0..T).flat_map(|_| if is_swapped { [of[1], of[0]] } else { of }).collect::<Vec<f32>>()
    };
    let weights = [0.75, if doubled.is_some() { 0.5 } else { 0.25 }];
    recorder.record("layers.0.router_topk", &[T, 2], &pairs([4.0, 1.0], is_swapped)).unwrap();
    recorder.record("layers.0.router_weights", &[T, 2], &pairs(weights, swaps_weights)).unwrap();
    // All experts together, by place.
    let by_place: Vec<f32> = (0..T).flat_map(|at| [value(at, 0), value(at, 1)]).collect();
    let by_place: Vec<f32> = match swaps_weights {
        true => by_place.chunks(2).flat_map(|pair| [pair[1], pair[0]]).collect(),
        false => by_place,
    };
    recorder.record("layers.0.experts.gate", &[T, 2, 1], &by_place).unwrap();
    recorder.finish().unwrap();
    let dump = Dump::open(folder.path()).unwrap();
    (folder, dump)
}

#[test]
fn what_stands_in_a_free_order_is_not_blamed_and_a_fault_in_it_is() {
    let order: Vec<usize> = (0..T).rev().collect();
    let (_left, reference) = of_experts(&(0..T).collect::<Vec<_>>(), [false; 2], None);
    for doubled in [None, Some(5)] {
        let (_right, candidate) = of_experts(&order, [true; 2], doubled);
        let graph = graph_of(&reference, &candidate);
        let report = compare(&reference, &candidate, &graph, &Options::new(Profile::F32), &mut |_, _| ()).unwrap();
        assert_eq!(status(&report, "layers.0.router_topk"), Status::Rounding);
        let is_right = doubled.is_none();
        let found = status(&report, "layers.0.experts.3.up");
        assert_eq!((found == Status::Unchecked, found.differs()), (is_right, !is_right), "{found:?}");
        // Taps by place are judged in the order of the places.
        for tap in ["layers.0.router_weights", "layers.0.experts.gate"] {
            let found = status(&report, tap);
            assert_eq!((found.agrees(), found.differs()), (is_right, !is_right), "{tap} {found:?}");
        }
    }
}

#[test]
fn weights_that_do_not_follow_their_choice_are_blamed() {
    let rows: Vec<usize> = (0..T).collect();
    let (_left, reference) = of_experts(&rows, [false; 2], None);
    for (swapped, agrees) in [([true, false], false), ([false, true], false), ([true, true], true)] {
        let (_right, candidate) = of_experts(&rows, swapped, None);
        let graph = graph_of(&reference, &candidate);
        let report = compare(&reference, &candidate, &graph, &Options::new(Profile::F32), &mut |_, _| ()).unwrap();
        let found = status(&report, "layers.0.router_weights");
        assert_eq!((found.agrees(), found.differs()), (agrees, !agrees), "{swapped:?} {found:?}");
        assert!(status(&report, "layers.0.router_topk").agrees());
    }
}

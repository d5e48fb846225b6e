//! Checks that taps outside the vocabulary are compared, and blamed exactly where their inputs agree.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use firstdiff_compare::{Certainty, Options, Profile, Report, Status, Verdict, Warning, compare, graph_of, inspect};
use firstdiff_trace::{Dump, DumpError, GraphNode, Recorder, Tap};

const T: usize = 7;
const D: usize = 16;
const LAYERS: usize = 3;

/// Names and values in the order in which they are computed.
type Run = Vec<(String, Vec<f32>)>;

fn noise(seed: usize, at: usize) -> f64 {
    let mut x = (seed as u64 * 1_000_003 + at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// A model of running means: only its stream and its logits are in the vocabulary. `decay` is that of each layer.
fn run(stack: &str, decay: [f64; LAYERS], rounding: f64) -> Run {
    let mut run = Run::new();
    let mut note = |name: String, x: &[f64]| {
        let seed = name.len();
        let rounded = x.iter().enumerate().map(|(i, x)| (x * (1.0 + rounding * noise(seed + i, i))) as f32).collect();
        run.push((name, rounded));
    };
    let product = |x: &[f64], seed: usize| -> Vec<f64> {
        let row = |t: usize, o: usize| (0..D).map(|i| x[t * D + i] * noise(seed, o * D + i)).sum::<f64>() / 4.0;
        (0..T * D).map(|at| row(at / D, at % D)).collect()
    };
    let mut h: Vec<f64> = (0..T * D).map(|at| noise(1, at)).collect();
    note("h0".into(), &h);
    for (layer, decay) in decay.iter().enumerate() {
        let name = |inner: &str| format!("{stack}layers.{layer}.{inner}");
        let x = product(&h, 10 + layer);
        note(name("mixer_in"), &x);
        let mut scan = x.clone();
        (D..T * D).for_each(|at| scan[at] += decay * scan[at - D]);
        note(name("scan"), &scan);
        h.iter_mut().zip(&scan).for_each(|(h, s)| *h += s);
        note(name("h"), &h);
    }
    note("logits".into(), &product(&h, 99));
    run
}

fn graph() -> Vec<GraphNode> {
    let node = |tap: &str, op: &str, reads: &[&str]| GraphNode {
        tap: tap.into(),
        op: Some(op.into()),
        reads: reads.iter().map(ToString::to_string).collect(),
    };
    let mut nodes = vec![node("h0", "embedding", &[])];
    let mut stream = "h0".to_owned();
    for layer in 0..LAYERS {
        let name = |inner: &str| format!("layers.{layer}.{inner}");
        nodes.push(node(&name("mixer_in"), "linear", &[&stream]));
        nodes.push(node(&name("scan"), "selective_scan", &[&name("mixer_in")]));
        nodes.push(node(&name("h"), "residual", &[&stream, &name("scan")]));
        stream = name("h");
    }
    nodes.push(node("logits", "head", &[&stream]));
    nodes
}

#[derive(Clone, Copy, PartialEq)]
enum Told {
    /// Only files.
    Nothing,
    /// dump.json lists the taps as recorded.
    Order,
    /// It also has the graph.
    Graph,
}

fn write(run: &Run, told: Told, folder: &Path) {
    let recorder = Recorder::create(folder).unwrap();
    recorder.tokens(&(0..T as i64).collect::<Vec<_>>());
    if told == Told::Graph {
        recorder.describe(|meta| meta.graph = Some(graph()));
    }
    for (name, values) in run {
        recorder.record(name, &[T, D], values).unwrap();
    }
    recorder.finish().unwrap();
    if told == Told::Nothing {
        fs::remove_file(folder.join("dump.json")).unwrap();
    }
}

fn judged(reference: &Run, candidate: &Run, told: Told) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let [left, right] = [("ref", reference), ("cand", candidate)].map(|(name, run)| {
        write(run, told, &folder.path().join(name));
        Dump::open(folder.path().join(name)).unwrap()
    });
    compare(&left, &right, &graph_of(&left, &right), &Options::new(Profile::F32), &mut |_, _| {}).unwrap()
}

fn diverged(report: &Report) -> Vec<String> {
    report.taps.iter().filter(|t| t.status == Status::Diverged).map(|t| t.place.tap.to_string()).collect()
}

const RIGHT: [f64; LAYERS] = [0.9; LAYERS];

#[test]
fn a_wrong_scan_is_blamed_and_what_reads_it_is_not() {
    for (layer, told) in [(0, Told::Graph), (1, Told::Graph), (2, Told::Graph), (1, Told::Order)] {
        let mut decay = RIGHT;
        decay[layer] = 0.9 + 1e-4;
        let report = judged(&run("", RIGHT, 0.0), &run("", decay, 1e-7), told);
        assert_eq!(diverged(&report), [format!("layers.{layer}.scan")]);
        let first = report.first.unwrap();
        assert_eq!(first.after.unwrap().tap.to_string(), format!("layers.{layer}.mixer_in"));
        assert!(first.unchecked_between.is_empty(), "{:?}", first.unchecked_between);
        assert_eq!((first.inputs_known, first.reads.is_empty()), (told == Told::Graph, told != Told::Graph));
        assert!(report.unmapped.is_empty());
        let due = if told == Told::Graph { "selective_scan" } else { "unknown" };
        assert_eq!(report.taps[first.index].op, due);
    }
}

#[test]
fn right_runs_are_at_parity_however_much_is_told() {
    for told in [Told::Nothing, Told::Order, Told::Graph] {
        for stack in ["", "vision."] {
            let report = judged(&run(stack, RIGHT, 0.0), &run(stack, RIGHT, 1e-7), told);
            assert_eq!(report.verdict, Verdict::Parity, "{:?}", report.warnings);
            assert!(report.taps.iter().all(|tap| tap.status.agrees()) && report.taps.len() == 2 + 3 * LAYERS);
        }
    }
}

#[test]
fn what_no_dump_says_is_a_tap_is_never_blamed_beside_the_vocabulary() {
    let (reference, mut candidate) = (run("", RIGHT, 0.0), run("", RIGHT, 1e-7));
    candidate.iter_mut().find(|(name, _)| name == "layers.1.scan").unwrap().1[5] += 1.0;
    let report = judged(&reference, &candidate, Told::Nothing);
    assert_eq!(report.verdict, Verdict::Parity);
    let scan = report.tap(Tap::named("layers.1.scan"), 0).unwrap();
    assert_eq!(scan.status, Status::Unchecked);
    assert_eq!(diverged(&judged(&reference, &candidate, Told::Order)), ["layers.1.scan"]);
}

#[test]
fn names_of_no_vocabulary_are_compared_alone_and_their_order_is_doubted() {
    let renamed = |run: Run| -> Run {
        let name = |name: String| name.replace("layers.", "blk_").replace("h0", "emb").replace("logits", "out");
        run.into_iter().map(|(old, values)| (name(old), values)).collect()
    };
    let (reference, wrong) = (renamed(run("", RIGHT, 0.0)), renamed(run("", [0.9, 0.8, 0.9], 1e-7)));
    for (told, doubted) in [(Told::Nothing, true), (Told::Order, false)] {
        let report = judged(&reference, &wrong, told);
        assert_eq!(report.verdict, Verdict::Diverged);
        assert_eq!(report.warnings.contains(&Warning::OrderUnknown), doubted);
        assert_eq!(diverged(&report).len(), 1, "{:?}", diverged(&report));
        if told == Told::Order {
            assert_eq!(diverged(&report), ["blk_1.scan"]);
        }
    }
}

#[test]
fn a_fault_of_another_stack_does_not_blame_the_one_that_reads_it() {
    let report = judged(&run("vision.", RIGHT, 0.0), &run("vision.", [0.9, 0.8, 0.9], 1e-7), Told::Order);
    assert_eq!(diverged(&report), ["vision.layers.1.scan"]);
    assert_eq!(report.tap("logits".parse().unwrap(), 0).unwrap().status, Status::Downstream);
}

#[test]
fn other_shapes_and_values_that_are_no_numbers_do_not_pass() {
    let reference = run("", RIGHT, 0.0);
    let mut candidate = reference.clone();
    candidate.iter_mut().find(|(name, _)| name == "layers.2.scan").unwrap().1[3] = f32::NAN;
    assert_eq!(diverged(&judged(&reference, &candidate, Told::Graph)), ["layers.2.scan"]);
    let folder = tempfile::tempdir().unwrap();
    let (left, right) = (folder.path().join("ref"), folder.path().join("cand"));
    for (folder, shape) in [(&left, [T, D]), (&right, [D, T])] {
        let recorder = Recorder::create(folder).unwrap();
        recorder.record("state", &shape, &[0.5f32; T * D]).unwrap();
        recorder.finish().unwrap();
    }
    let (left, right) = (Dump::open(left).unwrap(), Dump::open(right).unwrap());
    let report = compare(&left, &right, &graph_of(&left, &right), &Options::new(Profile::F32), &mut |_, _| {}).unwrap();
    assert!(matches!(report.verdict, Verdict::Incomparable(_)), "{:?}", report.verdict);
}

/// Steps of one tap each, `[T, D]` in every one.
fn steps(values: &[Vec<f32>], folder: &Path) -> Dump {
    let recorder = Recorder::create(folder).unwrap();
    recorder.tokens(&(0..T as i64).collect::<Vec<_>>());
    let node = |tap: &str, reads: &[&str]| GraphNode {
        tap: tap.into(),
        op: None,
        reads: reads.iter().map(ToString::to_string).collect(),
    };
    recorder.describe(|meta| meta.graph = Some(vec![node("layers.0.x", &[]), node("layers.0.state", &["layers.0.x"])]));
    for (step, state) in values.iter().enumerate() {
        if step > 0 {
            recorder.next_step(step as i64);
        }
        recorder.record("layers.0.x", &[T, D], &run("", RIGHT, 0.0)[0].1).unwrap();
        recorder.record("layers.0.state", &[T, D], state).unwrap();
    }
    recorder.finish().unwrap();
    Dump::open(folder).unwrap()
}

#[test]
fn a_state_carries_its_error_into_later_steps() {
    let folder = tempfile::tempdir().unwrap();
    let state = |step: usize, factor: f32| -> Vec<f32> {
        run("", RIGHT, 0.0)[2].1.iter().map(|x| (x + step as f32) * factor).collect()
    };
    let left = steps(&[state(0, 1.0), state(1, 1.0), state(2, 1.0)], &folder.path().join("ref"));
    let right = steps(&[state(0, 1.0), state(1, 1.3), state(2, 1.2)], &folder.path().join("cand"));
    let report = compare(&left, &right, &graph_of(&left, &right), &Options::new(Profile::F32), &mut |_, _| {}).unwrap();
    let status = |step| report.tap(Tap::named("layers.0.state"), step).unwrap().status;
    assert!(status(0).agrees());
    assert_eq!((status(1), status(2)), (Status::Diverged, Status::Downstream));
}

#[test]
fn infinities_on_both_sides_are_no_fault() {
    let mut reference = run("", RIGHT, 0.0);
    let mut candidate = run("", RIGHT, 1e-7);
    for run in [&mut reference, &mut candidate] {
        let scan = run.iter_mut().find(|(name, _)| name == "layers.1.scan").unwrap();
        scan.1[..D].fill(f32::NEG_INFINITY);
        scan.1[3 * D] = f32::INFINITY;
    }
    assert_eq!(judged(&reference, &candidate, Told::Graph).verdict, Verdict::Parity);
    candidate.iter_mut().find(|(name, _)| name == "layers.1.scan").unwrap().1[2] = 1.0;
    assert_eq!(diverged(&judged(&reference, &candidate, Told::Graph)), ["layers.1.scan"]);
}

#[test]
fn a_graph_that_cannot_be_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (graph, due) in [
        (r#"[{"tap": "a", "reads": ["b"]}, {"tap": "b"}]"#, "reads 'b'"),
        (r#"[{"tap": "a", "reads": ["a"]}]"#, "reads 'a'"),
        (r#"[{"tap": "a"}, {"tap": "a"}]"#, "made twice"),
        (r#"[{"tap": 3}]"#, "dump.json"),
    ] {
        let path = folder.path().join(due.replace(' ', "_").replace('\'', ""));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("dump.json"), format!(r#"{{"graph": {graph}, "taps": []}}"#)).unwrap();
        let error: DumpError = Dump::open(&path).unwrap_err();
        assert!(error.to_string().contains(due), "{error}");
    }
}

#[test]
fn inspect_looks_at_them() {
    let mut wrong = run("", RIGHT, 0.0);
    let set = |run: &mut Run, name: &str, value: f32| {
        let at = run.iter().position(|(known, _)| known == name).unwrap();
        run[at].1.fill(value);
    };
    set(&mut wrong, "layers.0.scan", 0.0);
    set(&mut wrong, "layers.1.scan", f32::NAN);
    let folder = tempfile::tempdir().unwrap();
    write(&wrong, Told::Order, &folder.path().join("dump"));
    let dump = Dump::open(folder.path().join("dump")).unwrap();
    let inspection = inspect(&dump, None, &mut |_, _| {}).unwrap();
    let found: BTreeMap<String, (&str, Certainty)> =
        inspection.findings.iter().map(|f| (f.place.tap.to_string(), (f.what, f.sure))).collect();
    assert_eq!(found["layers.0.scan"], ("all-zero", Certainty::Likely));
    assert_eq!(found["layers.1.scan"], ("not-finite", Certainty::Certain));
}

/// A dump of these tensors in this order, all of shape [T,D]; `keep_list`: dump.json lists them.
fn small(tensors: &[(&str, f64)], graph: &[(&str, &[&str])], keep_list: bool, folder: &Path) -> Dump {
    let recorder = Recorder::create(folder).unwrap();
    recorder.tokens(&(0..T as i64).collect::<Vec<_>>());
    let node = |(tap, reads): &(&str, &[&str])| GraphNode {
        tap: (*tap).into(),
        op: Some("op".into()),
        reads: reads.iter().map(ToString::to_string).collect(),
    };
    if !graph.is_empty() {
        recorder.describe(|meta| meta.graph = Some(graph.iter().map(node).collect()));
    }
    for (name, factor) in tensors {
        let values: Vec<f32> = (0..T * D).map(|at| (noise(name.len(), at) * factor) as f32).collect();
        recorder.record(*name, &[T, D], &values).unwrap();
    }
    recorder.finish().unwrap();
    if !keep_list {
        let json = folder.join("dump.json");
        let mut meta: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
        meta.as_object_mut().unwrap().remove("taps");
        fs::write(json, meta.to_string()).unwrap();
    }
    Dump::open(folder).unwrap()
}

fn first_of_small(right: &[(&str, f64)], wrong: &[(&str, f64)], graph: &[(&str, &[&str])], keep_list: bool) -> String {
    let folder = tempfile::tempdir().unwrap();
    let [reference, candidate] = [("right", right), ("wrong", wrong)]
        .map(|(name, tensors)| small(tensors, graph, keep_list, &folder.path().join(name)));
    let graph = graph_of(&reference, &candidate);
    let report = compare(&reference, &candidate, &graph, &Options::new(Profile::F32), &mut |_, _| ()).unwrap();
    assert_eq!(report.verdict, Verdict::Diverged);
    report.taps[report.first.unwrap().index].place.tap.to_string()
}

#[test]
fn what_was_recorded_before_the_decoder_is_blamed_before_it() {
    let names =
        ["embed out", "encoder.layers.0.q", "encoder.out", "h0", "decoder.layers.0.cross.k", "layers.0.h", "logits"];
    let right: Vec<(&str, f64)> = names.iter().map(|name| (*name, 1.0)).collect();
    for wrong_from in 0..3 {
        let wrong: Vec<(&str, f64)> =
            names.iter().enumerate().map(|(at, name)| (*name, if at >= wrong_from { 1.1 } else { 1.0 })).collect();
        assert_eq!(first_of_small(&right, &wrong, &[], true), names[wrong_from]);
    }
}

#[test]
fn a_name_that_its_file_spells_otherwise_is_that_of_the_graph() {
    let graph: [(&str, &[&str]); 3] = [("h0", &[]), ("my scan", &["h0"]), ("logits", &["my scan"])];
    let (right, wrong) =
        ([("h0", 1.0), ("my scan", 1.0), ("logits", 1.0)], [("h0", 1.0), ("my scan", 1.1), ("logits", 1.0)]);
    assert_eq!(first_of_small(&right, &wrong, &graph, false), "my scan");
}

#[test]
fn another_programs_name_takes_no_listed_tap_away() {
    let right = [("h0", 1.0), ("model.layers.0.mlp", 1.0), ("layers.0.scan", 1.0), ("logits", 1.0)];
    let wrong = [("h0", 1.0), ("model.layers.0.mlp", 1.0), ("layers.0.scan", 1.1), ("logits", 1.0)];
    assert_eq!(first_of_small(&right, &wrong, &[], true), "layers.0.scan");
}

#[test]
fn masked_scores_with_a_batch_of_one_in_front_are_masked() {
    let folder = tempfile::tempdir().unwrap();
    let name = Tap::named("encoder.layers.0.scores");
    let of = |file: &str, fill: f32, times: f32| {
        let path = folder.path().join(file);
        let recorder = Recorder::create(&path).unwrap();
        let node = |tap: &str, reads: &[&str]| GraphNode {
            tap: tap.into(),
            op: None,
            reads: reads.iter().map(ToString::to_string).collect(),
        };
        recorder.tokens(&(0..T as i64).collect::<Vec<_>>());
        recorder.describe(|meta| meta.graph = Some(vec![node("h0", &[]), node(&name.to_string(), &["h0"])]));
        let h0: Vec<f32> = (0..T * D).map(|at| noise(1, at) as f32).collect();
        recorder.record("h0".parse::<Tap>().unwrap(), &[T, D], &h0).unwrap();
        let score = |at: usize| if at % T > at / T % T { fill } else { times * noise(4, at) as f32 };
        recorder.record(name, &[1, 2, T, T], &(0..2 * T * T).map(score).collect::<Vec<f32>>()).unwrap();
        recorder.finish().unwrap();
        Dump::open(path).unwrap()
    };
    let reference = of("reference", f32::MIN, 1.0);
    let agrees = |candidate: Dump| {
        let graph = graph_of(&reference, &candidate);
        let report = compare(&reference, &candidate, &graph, &Options::new(Profile::F32), &mut |_, _| ()).unwrap();
        report.taps.iter().find(|tap| tap.place.tap == name).unwrap().status.agrees()
    };
    // Another fill value is the same mask; beside the least number of f32 a fault is found all the same.
    assert!(agrees(of("filled otherwise", -1e9, 1.0)));
    assert!(!agrees(of("scaled", f32::MIN, 1.01)));
}

/// The end of a run under an unknown name, where the reference's own end was not compared.
#[test]
fn an_end_that_only_its_size_tells_is_not_passed() {
    let folder = tempfile::tempdir().unwrap();
    let of = |name: &str, taps: &[&str]| {
        let whole = run("", RIGHT, 0.0);
        let from = |tap: &str| whole.iter().find(|(name, _)| name == tap).map(|(_, values)| values.clone());
        let own = |tap: &&str| ((*tap).to_owned(), from(tap).unwrap_or_else(|| from("layers.0.h").unwrap()));
        let path = folder.path().join(name);
        write(&taps.iter().map(own).collect(), Told::Graph, &path);
        Dump::open(path).unwrap()
    };
    let reference = of("ref", &["layers.0.mixer_in", "layers.0.scan", "layers.1.scan"]);
    let judged = |candidate: &Dump| {
        let graph = graph_of(&reference, candidate);
        compare(&reference, candidate, &graph, &Options::new(Profile::F32), &mut |_, _| {}).unwrap().verdict
    };
    assert_eq!(judged(&of("part", &["layers.0.mixer_in", "layers.0.scan"])), Verdict::Parity);
    let verdict = judged(&of("end", &["layers.0.mixer_in", "layers.0.scan", "out"]));
    assert!(matches!(&verdict, Verdict::Incomparable(why) if why.contains("'out'")), "{verdict:?}");
}

//! Checks that rows of experts are found by the choice of experts, in every form, and nowhere else.

use std::collections::BTreeMap;

use firstdiff_compare::{Options, Profile, Report, Status, Verdict, compare, graph_of, split_experts};
use firstdiff_trace::{Dump, GraphNode, Recorder};

const T: usize = 9;
const D: usize = 10;
const E: usize = 5;
const K: usize = 2;
const LAYERS: usize = 2;

fn noise(seed: usize, at: usize) -> f64 {
    let mut x = (seed as u64 * 1_000_003 + at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// The experts of a token.
fn chosen(layer: usize, token: usize) -> [usize; K] {
    let first = (token * 2 + layer) % E;
    [first, (first + 1 + token % (E - 1)) % E]
}

/// Tokens and places of an expert's rows.
fn rows_of(layer: usize, expert: usize, by_place: bool) -> Vec<(usize, usize)> {
    let all = (0..T * K).map(|at| (at / K, at % K));
    let mut rows: Vec<(usize, usize)> = all.filter(|&(token, place)| chosen(layer, token)[place] == expert).collect();
    if by_place {
        rows.sort_by_key(|&(token, place)| (place, token));
    }
    rows
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Own { by_place: bool },
    OwnOfAll,
    ByExpert,
    ByToken,
    Padded { by_place: bool },
    ByPlace,
    Flat,
    PlacesFirst,
    Sorted { by_place: bool },
}

const FORMS: [Form; 11] = [
    Form::Own { by_place: false },
    Form::Own { by_place: true },
    Form::OwnOfAll,
    Form::ByExpert,
    Form::ByToken,
    Form::Padded { by_place: false },
    Form::Padded { by_place: true },
    Form::ByPlace,
    Form::Flat,
    Form::PlacesFirst,
    Form::Sorted { by_place: false },
];

#[derive(Clone, Copy, Default)]
struct Otherwise {
    /// A matrix of expert 2 of layer 1 is another.
    spoils: bool,
    /// Two rows of layer 0 are exchanged.
    moves: bool,
    hides_choice: bool,
    /// Everything of the experts is wrong.
    is_garbage: bool,
    /// An expert's module has a tap as well.
    has_module: bool,
    /// The first two rows of expert 1 of layer 0 are exchanged: in `ffn_gate`, and in the module.
    exchanges: [bool; 2],
}

/// What an expert computes for a token.
fn row(layer: usize, expert: usize, token: usize, how: Otherwise) -> Vec<f64> {
    let (mut expert_of, mut token_of) = (expert, token);
    if how.moves && layer == 0 {
        let pair = [(chosen(0, 1)[0], 1), (chosen(0, 6)[1], 6)];
        if let Some(at) = pair.iter().position(|&here| here == (expert, token)) {
            (expert_of, token_of) = pair[1 - at];
        }
    }
    let factor = if how.spoils && layer == 1 && expert == 2 { 1.25 } else { 1.0 };
    let seed = 1000 * layer + 100 * expert_of + token_of + if how.is_garbage { 7777 } else { 0 };
    (0..D).map(|at| noise(seed, at) * if at % 3 == 0 { factor } else { 1.0 }).collect()
}

fn write(form: Form, how: Otherwise, has_graph: bool) -> (tempfile::TempDir, Dump) {
    let folder = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(folder.path()).unwrap();
    recorder.tokens(&(0..T as i64).collect::<Vec<_>>());
    let mut nodes = vec![GraphNode { tap: "h0".into(), op: None, reads: Vec::new() }];
    let record = |name: String, shape: &[usize], x: &[f64]| {
        let values: Vec<f32> = x.iter().map(|x| *x as f32).collect();
        recorder.record(&name, shape, &values).unwrap();
    };
    record("h0".into(), &[T, D], &(0..T * D).map(|at| noise(1, at)).collect::<Vec<_>>());
    for layer in 0..LAYERS {
        let name = |inner: &str| format!("layers.{layer}.{inner}");
        let choice: Vec<f64> = (0..T * K).map(|at| chosen(layer, at / K)[at % K] as f64).collect();
        if !how.hides_choice {
            record(name("router_topk"), &[T, K], &choice);
        }
        nodes.push(GraphNode { tap: name("router_topk"), op: None, reads: vec!["h0".into()] });
        let own = |expert: usize, by_place: bool| -> Vec<f64> {
            rows_of(layer, expert, by_place).iter().flat_map(|&(token, _)| row(layer, expert, token, how)).collect()
        };
        let place_at = |count: usize, at: &dyn Fn(usize, usize, usize) -> usize| {
            let mut all: Vec<f64> = (0..count * D).map(|at| noise(555, at)).collect();
            for (expert, token, place) in (0..T * K).map(|at| (chosen(layer, at / K)[at % K], at / K, at % K)) {
                let to = at(expert, token, place) * D;
                all[to..to + D].copy_from_slice(&row(layer, expert, token, how));
            }
            all
        };
        let of_rows = |by_place: bool| -> BTreeMap<(usize, usize), usize> {
            let all = (0..E).flat_map(|expert| rows_of(layer, expert, by_place).into_iter().enumerate());
            all.map(|(at, (token, place))| ((token, place), at)).collect()
        };
        let before = |expert: usize| (0..expert).map(|expert| rows_of(layer, expert, false).len()).sum::<usize>();
        let together = name("experts.ffn_gate");
        match form {
            Form::Own { by_place } => {
                for expert in 0..E {
                    let rows = |which: usize| -> Vec<f64> {
                        let mut rows: Vec<f64> = own(expert, by_place).iter().map(|x| x * (1 + which) as f64).collect();
                        if how.exchanges[which] && (layer, expert) == (0, 1) {
                            rows[..2 * D].rotate_left(D);
                        }
                        rows
                    };
                    let shape = [own(expert, by_place).len() / D, D];
                    record(name(&format!("experts.{expert}.ffn_gate")), &shape, &rows(0));
                    if how.has_module {
                        record(name(&format!("moe.experts.{expert}/act_fn")), &shape, &rows(1));
                    }
                }
            }
            Form::OwnOfAll => {
                for expert in 0..E {
                    let rows: Vec<f64> = (0..T).flat_map(|token| row(layer, expert, token, how)).collect();
                    record(name(&format!("experts.{expert}.ffn_gate")), &[T, D], &rows);
                }
            }
            Form::ByExpert => record(together, &[E, T, D], &place_at(E * T, &|expert, token, _| expert * T + token)),
            Form::ByToken => record(together, &[T, E, D], &place_at(E * T, &|expert, token, _| token * E + expert)),
            Form::Padded { by_place } => {
                let at = of_rows(by_place);
                let all = place_at(E * 7, &|expert, token, place| expert * 7 + at[&(token, place)]);
                record(together, &[E, 7, D], &all);
            }
            Form::ByPlace => record(together, &[T, K, D], &place_at(T * K, &|_, token, place| token * K + place)),
            Form::Flat => record(together, &[T * K, D], &place_at(T * K, &|_, token, place| token * K + place)),
            Form::PlacesFirst => record(together, &[K, T, D], &place_at(T * K, &|_, token, place| place * T + token)),
            Form::Sorted { by_place } => {
                let at = of_rows(by_place);
                let all = place_at(T * K, &|expert, token, place| before(expert) + at[&(token, place)]);
                record(together, &[T * K, D], &all);
            }
        }
        for expert in 0..E {
            let tap = name(&format!("experts.{expert}.ffn_gate"));
            nodes.push(GraphNode { tap: tap.clone(), op: None, reads: vec![name("router_topk")] });
            if how.has_module {
                let module = name(&format!("moe.experts.{expert}/act_fn"));
                nodes.push(GraphNode { tap: module, op: None, reads: vec![tap] });
            }
        }
    }
    if has_graph {
        recorder.describe(|meta| meta.graph = Some(nodes));
    }
    recorder.finish().unwrap();
    let dump = Dump::open(folder.path()).unwrap();
    (folder, dump)
}

fn report(reference: Form, form: Form, how: Otherwise) -> (Report, Vec<String>) {
    let right = Otherwise { has_module: how.has_module, ..Otherwise::default() };
    let (_left, reference) = write(reference, right, true);
    let (_right, mut candidate) = write(form, how, false);
    let rows = split_experts(&reference, &mut candidate).unwrap();
    let graph = graph_of(&reference, &candidate);
    let options = Options { open_rows: rows.undecided(), ..Options::new(Profile::F32) };
    let notes = rows.notes().to_vec();
    (compare(&reference, &candidate, &graph, &options, &mut |_, _| ()).unwrap(), notes)
}

fn judged(report: &Report) -> usize {
    let of_experts = report.taps.iter().filter(|tap| tap.place.to_string().contains("experts"));
    of_experts.filter(|tap| tap.status != Status::Unchecked).count()
}

fn first(report: &Report) -> Option<String> {
    Some(report.taps[report.first.as_ref()?.index].place.to_string())
}

/// The forms in which references hold the rows of their experts.
const REFERENCES: [Form; 3] = [Form::Own { by_place: false }, Form::Own { by_place: true }, Form::OwnOfAll];

#[test]
fn rows_are_read_in_every_form() {
    for reference in REFERENCES {
        for form in FORMS.into_iter().chain([Form::Sorted { by_place: true }]) {
            let (report, notes) = report(reference, form, Otherwise::default());
            assert_eq!(report.verdict, Verdict::Parity, "{reference:?} {form:?} {notes:?}");
            assert_eq!(judged(&report), LAYERS * E, "{reference:?} {form:?} {notes:?}");
        }
    }
}

#[test]
fn a_wrong_expert_is_found_in_every_form() {
    for reference in REFERENCES {
        for form in FORMS.into_iter().chain([Form::Sorted { by_place: true }]) {
            let (report, notes) = report(reference, form, Otherwise { spoils: true, ..Otherwise::default() });
            let at = first(&report);
            assert_eq!(at.as_deref(), Some("layers.1.experts.2.ffn_gate"), "{reference:?} {form:?} {notes:?}");
            let wrong = report.taps.iter().filter(|tap| tap.status == Status::Diverged).count();
            assert_eq!(wrong, 1, "{reference:?} {form:?}");
        }
    }
}

#[test]
fn rows_in_each_other_s_place_do_not_pass() {
    for reference in REFERENCES {
        for form in FORMS {
            let (report, notes) = report(reference, form, Otherwise { moves: true, ..Otherwise::default() });
            assert_eq!(report.verdict, Verdict::Diverged, "{reference:?} {form:?} {notes:?}");
        }
    }
}

#[test]
fn without_the_choice_no_row_of_all_experts_is_read() {
    for form in [Form::ByExpert, Form::Padded { by_place: false }, Form::ByPlace, Form::Sorted { by_place: false }] {
        let how = Otherwise { hides_choice: true, ..Otherwise::default() };
        let (report, notes) = report(Form::Own { by_place: true }, form, how);
        assert_eq!(judged(&report), 0, "{form:?}");
        assert!(notes.iter().any(|note| note.contains("layers.0.experts.ffn_gate")), "{notes:?}");
    }
}

#[test]
fn rows_that_show_no_order_are_refused() {
    let how = Otherwise { is_garbage: true, ..Otherwise::default() };
    let (report, notes) = report(Form::Own { by_place: true }, Form::Flat, how);
    assert_eq!(judged(&report), 0);
    assert!(notes.iter().any(|note| note.contains("layers.0.experts.ffn_gate")), "{notes:?}");
}

#[test]
fn the_output_of_an_experts_module_stands_as_its_other_rows_do() {
    for by_place in [false, true] {
        let how = Otherwise { has_module: true, ..Otherwise::default() };
        let (report, notes) = report(Form::Own { by_place: !by_place }, Form::Own { by_place }, how);
        assert_eq!(report.verdict, Verdict::Parity, "{notes:?}");
        assert_eq!(judged(&report), 2 * LAYERS * E, "{notes:?}");
    }
}

#[test]
fn rows_of_one_expert_in_each_other_s_place_differ_where_its_other_rows_are_right() {
    let (gate, module) = ("layers.0.experts.1.ffn_gate", "layers.0.moe.experts.1/act_fn");
    for by_place in [false, true] {
        for (exchanges, wrong) in [([true, false], gate), ([false, true], module)] {
            let how = Otherwise { has_module: true, exchanges, ..Otherwise::default() };
            let (report, notes) = report(Form::Own { by_place: false }, Form::Own { by_place }, how);
            assert_eq!(first(&report).as_deref(), Some(wrong), "{exchanges:?} {notes:?}");
        }
        // All rows of an expert in an order of its own.
        let how = Otherwise { has_module: true, exchanges: [true, true], ..Otherwise::default() };
        let (report, notes) = report(Form::Own { by_place: false }, Form::Own { by_place }, how);
        assert_eq!(first(&report), None, "{notes:?}");
        let open = report.taps.iter().filter(|tap| tap.status == Status::Unchecked).map(|tap| tap.place.to_string());
        assert_eq!(open.collect::<Vec<_>>(), [gate, module]);
    }
}

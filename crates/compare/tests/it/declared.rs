//! Where both runs say in which order the rows of Q and K are, is the error of what differs measured in that order?

use std::path::Path;
use std::sync::Arc;

use crate::synthetic::{Run, in_gguf_rows, noisy, run, tap};
use firstdiff_compare::{Options, Profile, Report, Status, Verdict, compare, graph_of};
use firstdiff_trace::{DType, Dump, Entry, Meta, QkRows, Tensor, Values};

fn dump(run: &Run, qk_rows: Option<QkRows>) -> Dump {
    let entry = |(&tap, (shape, values)): (_, &(Vec<usize>, Vec<f32>))| {
        let (extents, values) = (shape.clone(), Arc::new(values.clone()));
        Entry::computed(tap, 0, shape.clone(), DType::F32, None, move || {
            Ok(Tensor::held(extents.clone(), Values::F32(values.to_vec().into())).unwrap())
        })
    };
    Dump::assembled(Path::new("held"), Meta { qk_rows, ..Meta::default() }, run.iter().map(entry).collect()).unwrap()
}

fn judged(reference: &Dump, candidate: &Dump) -> Report {
    let graph = graph_of(reference, candidate);
    compare(reference, candidate, &graph, &Options::new(Profile::F32), &mut |_, _| {}).unwrap()
}

fn nmse(report: &Report, name: &str) -> f64 {
    report.tap(tap(name), 0).unwrap().metrics.unwrap().nmse().unwrap()
}

#[test]
fn declared_orders_are_undone_in_what_differs_too() {
    let reference = run();
    // Beyond what f32 allows, everywhere: no tap of Q and K agrees in any order.
    let rough = noisy(&reference, 1e-6);
    let (half, adjacent) = (Some(QkRows::Half), Some(QkRows::Adjacent));
    let plain = judged(&dump(&reference, half), &dump(&rough, half));
    for (ours, theirs) in [(half, adjacent), (adjacent, half)] {
        let of = |run: &Run, rows| if rows == adjacent { in_gguf_rows(run) } else { run.clone() };
        let report = judged(&dump(&of(&reference, ours), ours), &dump(&of(&rough, theirs), theirs));
        assert_eq!(report.verdict, Verdict::Diverged);
        for site in ["q", "k", "q_rope", "k_rope"] {
            let name = format!("layers.1.{site}");
            let (is, due) = (nmse(&report, &name), nmse(&plain, &name));
            assert!((is - due).abs() < 1e-6 * due, "{name}: {is} for {due}");
        }
        assert!(report.warnings.iter().any(|w| w.to_string().contains("12 taps")), "{:?}", report.warnings);
    }
}

#[test]
fn what_agrees_as_it_stands_against_what_is_declared_is_unchecked() {
    let (reference, right) = (run(), noisy(&run(), 1e-13));
    let report = judged(&dump(&reference, Some(QkRows::Half)), &dump(&right, Some(QkRows::Adjacent)));
    for (name, due) in
        [("layers.1.q", Status::Unchecked), ("layers.1.k_rope", Status::Unchecked), ("layers.1.v", Status::Rounding)]
    {
        assert_eq!(report.tap(tap(name), 0).unwrap().status, due, "{name}");
    }
    assert!(report.first.is_none());
}

#[test]
fn an_order_that_nobody_declares_is_not_undone_in_what_differs() {
    let (reference, rough) = (run(), in_gguf_rows(&noisy(&run(), 1e-6)));
    for declared in [None, Some(QkRows::Half)] {
        let report = judged(&dump(&reference, Some(QkRows::Half)), &dump(&rough, declared));
        assert!(nmse(&report, "layers.1.q") > 0.1);
    }
}

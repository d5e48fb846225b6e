//! Is no cause stated that another reading of the dump does without? The order of the rows of Q and K not said, several mistakes that look alike.

use firstdiff_compare::Status;
use firstdiff_explain::explain::{Explanation, Match};
use firstdiff_explain::replay::Replayed;
use firstdiff_trace::{Meta, QkRows, Site, Tap};

use crate::again::{changed, described, reshaped, values};

/// The causes that are stated.
fn causes(explanation: &Explanation) -> Vec<&'static str> {
    let stated = explanation.findings.iter().filter(|f| f.matched == Match::Reproduced);
    stated.map(|f| f.cause.as_ref().unwrap().id).collect()
}

/// Heads of `width` elements with those of the two halves in turn.
fn adjacent(values: &[f32], width: usize) -> Vec<f32> {
    let head = |head: &[f32]| (0..width).map(|i| head[i / 2 + i % 2 * width / 2]).collect::<Vec<f32>>();
    values.chunks(width).flat_map(head).collect()
}

/// Q and K as an engine on GGUF has them, of which it says nothing.
fn in_other_rows(model: &str, dump: &str, width: usize, fault: impl Fn(Site, f32) -> f32) -> Explanation {
    described(model, dump, |meta| meta.qk_rows = None, &|_, tap, _, x| {
        let turned = matches!(tap.site, Site::Q | Site::K | Site::QRope | Site::KRope);
        let x: Vec<f32> = x.into_iter().map(|x| fault(tap.site, x)).collect();
        Some(if turned { adjacent(&x, width) } else { x })
    })
}

#[test]
fn beside_a_fault_in_q_and_k_an_undeclared_order_of_rows_is_no_fault() {
    let biases = in_other_rows("qwen2", "faulty/qwen2-bias-omitted.npz", 8, |_, x| x);
    assert_eq!(causes(&biases), ["bias-omitted"]);
    // Of a factor nothing is in the catalogue: the rotation of what is half as large is half as large.
    let halved = |site, x: f32| if matches!(site, Site::Q | Site::K | Site::QRope | Site::KRope) { 0.5 * x } else { x };
    let scaled = in_other_rows("qwen2", "golden/qwen2-torch.npz", 8, halved);
    assert!(causes(&scaled).iter().all(|id| !["qk-row-order", "rope-pairing"].contains(id)), "{:?}", causes(&scaled));
    let wrong = scaled.findings.iter().flat_map(|f| &f.taps);
    assert!(wrong.clone().any(|t| t.site == Site::Q) && wrong.clone().all(|t| t.site != Site::QRope));
}

#[test]
fn a_wrong_rotation_in_an_undeclared_order_of_rows_is_named() {
    for (model, dump, width, cause) in [
        ("llama", "faulty/llama-rope-pairing", 16, "rope-pairing"),
        ("qwen2", "faulty/qwen2-aliasing.npz", 8, "aliasing"),
    ] {
        let turned = in_other_rows(model, dump, width, |_, x| x);
        assert_eq!(causes(&turned), [cause], "{model}");
    }
}

#[test]
fn rows_that_are_declared_and_wrong_are_named() {
    let declared = changed("llama", "faulty/llama-rope-pairing", &|_, _, _, x| Some(x));
    assert_eq!(causes(&declared), ["rope-pairing"]);
    let undeclared = described("llama", "faulty/llama-rope-pairing", |meta| meta.qk_rows = None, &|_, _, _, x| Some(x));
    assert_eq!(causes(&undeclared), ["rope-pairing"]);
}

/// A right run is none the worse for an order of rows that its dump.json names and it does not have; a fault in it is one all the same.
#[test]
fn an_order_of_rows_that_is_declared_by_mistake_is_no_fault() {
    let misdeclared = |fault: &dyn Fn(Site, Vec<f32>) -> Vec<f32>| {
        let declare = |meta: &mut Meta| meta.qk_rows = Some(QkRows::Adjacent);
        described("llama", "golden/llama-torch", declare, &|_, tap, _, x| Some(fault(tap.site, x)))
    };
    let scaled =
        |site: Site| misdeclared(&|at, x| x.into_iter().map(|x| if at == site { 1.5 * x } else { x }).collect());
    let right = misdeclared(&|_, x| x);
    assert!(right.findings.is_empty(), "{:?}", right.findings);
    let is_of_its_rows = |t: &Replayed| t.reason.as_ref().is_some_and(|why| why.to_string().contains("'qk_rows'"));
    let doubted = right.replay.taps.iter().filter(|t| t.report.status == Status::Unchecked);
    assert!(doubted.clone().all(|t| is_of_its_rows(t) && t.report.place.tap.site.has_rope_rows()));
    assert_eq!(doubted.count(), 32, "q, k, q_rope and k_rope of two layers in four steps");
    for site in [Site::Q, Site::KRope, Site::V, Site::FfnAct] {
        assert!(scaled(site).replay.count(|status| status == Status::Diverged) > 0, "{site:?}");
    }
    // In the order that is declared, what is right stays judged; recorded in the other one, it is doubted, not blamed.
    let turned = |at: Site, x: Vec<f32>| if at.has_rope_rows() { adjacent(&x, 16) } else { x };
    let declared = misdeclared(&turned);
    assert!(declared.findings.is_empty() && declared.replay.count(|status| status == Status::Unchecked) == 0);
    let mixed = misdeclared(&|at, x| if at == Site::Q { x } else { turned(at, x) });
    assert!(mixed.findings.is_empty() && mixed.replay.count(|status| status == Status::Unchecked) == 8);
    // Rotated in other pairs than its rows stand in: a fault, whichever order is declared.
    let declare = |meta: &mut Meta| meta.qk_rows = Some(QkRows::Adjacent);
    let pairing = described("llama", "faulty/llama-rope-pairing", declare, &|_, _, _, x| Some(x));
    assert!(pairing.replay.count(|status| status == Status::Diverged) > 0);
}

/// Scores that are not masked look like a mask left out, until the probabilities are seen; in each layer.
#[test]
fn a_fault_that_shows_in_two_taps_is_one_in_every_layer() {
    let explanation = changed("llama", "golden/llama-torch", &|dump, tap, step, x| {
        let of = |site| values(dump, Tap { site, ..tap }, step);
        let open = |products: Vec<f32>| products.into_iter().map(|x| x * 0.25).collect::<Vec<f32>>();
        match tap.site {
            _ if step > 0 => None,
            Site::Scores => Some(open(of(Site::Qk))),
            Site::Probs => {
                let (scores, masked) = (open(of(Site::Qk)), of(Site::Scores));
                let rows = scores.chunks(11).zip(masked.chunks(11));
                let row = |(row, masked): (&[f32], &[f32])| {
                    let sum: f32 = row.iter().map(|x| x.exp()).sum();
                    row.iter().zip(masked).map(|(x, m)| if m.is_finite() { x.exp() / sum } else { 0.0 }).collect()
                };
                Some(rows.flat_map(|pair| -> Vec<f32> { row(pair) }).collect())
            }
            // The next layer is judged by itself.
            Site::Context if tap.layer == Some(0) => Some(vec![f32::NAN; x.len()]),
            Site::Qk | Site::H0 | Site::QRope | Site::KRope => Some(x),
            _ => None,
        }
    });
    assert_eq!(causes(&explanation), ["mask-after-softmax"]);
    let named = explanation.findings.iter().find(|f| f.matched == Match::Reproduced).unwrap();
    assert_eq!(named.taps.len(), 4, "{:?}", named.taps);
}

/// \[T,H,d\] in another order of its axes: `order[i]` is the axis that comes i-th.
fn moved(values: &[f32], shape: [usize; 3], order: [usize; 3]) -> Vec<f32> {
    let strides = [shape[1] * shape[2], shape[2], 1];
    let extent = |axis: usize| 0..shape[order[axis]];
    let at = |index: [usize; 3]| (0..3).map(|i| index[i] * strides[order[i]]).sum::<usize>();
    let all = extent(0).flat_map(|a| extent(1).flat_map(move |b| extent(2).map(move |c| [a, b, c])));
    all.map(|index| values[at(index)]).collect()
}

/// llama's taps of heads in another order of axes, those of `sites` flat; `fault` changes what was recorded before.
fn in_order(sites: &[Site], order: [usize; 3], fault: impl Fn(Site, Vec<f32>) -> Vec<f32>) -> Explanation {
    let of = |site: Site| sites.contains(&site);
    let change = |_: &_, tap: Tap, step: u32, x: Vec<f32>| {
        let heads = if matches!(tap.site, Site::Q | Site::QRope) { 6 } else { 2 };
        let x = fault(tap.site, x);
        (step == 0).then(|| if of(tap.site) { moved(&x, [11, heads, 16], order) } else { x })
    };
    reshaped("llama", "golden/llama-torch", &change, &|tap, shape| match of(tap.site) {
        true => vec![shape.iter().product()],
        false => shape.to_vec(),
    })
}

const ROPE: &[Site] = &[Site::QRope, Site::KRope];
const HEADS: &[Site] = &[Site::Q, Site::K, Site::V, Site::QRope, Site::KRope];
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [1, 0, 2], [2, 1, 0], [0, 2, 1], [1, 2, 0], [2, 0, 1]];

#[test]
fn a_right_run_is_right_in_every_order_of_axes() {
    for (sites, order) in [ROPE, HEADS].into_iter().flat_map(|sites| ORDERS.map(|order| (sites, order))) {
        let right = in_order(sites, order, |_, x| x);
        assert!(right.findings.is_empty(), "{sites:?} {order:?}: {:?}", right.findings);
        let judged = |t: &&firstdiff_explain::replay::Replayed| sites.contains(&t.report.place.tap.site);
        assert!(right.replay.taps.iter().filter(judged).all(|t| t.report.status.agrees()), "{sites:?} {order:?}");
    }
}

#[test]
fn a_wrong_operation_is_blamed_alone_in_every_order_of_axes() {
    // The elements of each head the other way round: of no layout.
    let reversed = |x: Vec<f32>| x.chunks(16).flat_map(|head| head.iter().rev().copied().collect::<Vec<_>>()).collect();
    for (wrong, order) in [Site::QRope, Site::V].into_iter().flat_map(|site| ORDERS.map(|order| (site, order))) {
        let found = in_order(HEADS, order, |site, x| if site == wrong { reversed(x) } else { x });
        assert!(!found.findings.is_empty(), "{wrong:?} {order:?}");
        for finding in &found.findings {
            let notes = &found.replay.warnings;
            assert!(finding.taps.iter().all(|tap| tap.site == wrong), "{wrong:?} {order:?}: {finding:?} {notes:?}");
        }
    }
}

//! Is it told right and wrong of a few rows, a few taps, one step? The last rows alone, an order of rows nobody says, a fault that ends, odd numbers.

use firstdiff_compare::Status;
use firstdiff_explain::explain::{Effort, Explanation, Match};
use firstdiff_trace::{Dump, Site, Tap};

use crate::again::{again, changed, last_rows, reshaped, values};

const TORCH: &str = "golden/llama-torch";

/// The causes that are stated, and the first step each shows in.
fn causes(explanation: &Explanation) -> Vec<(&'static str, u32)> {
    let stated = explanation.findings.iter().filter(|f| f.matched == Match::Reproduced);
    let first = |f: &firstdiff_explain::explain::Finding| f.shown_at.iter().map(|place| place.step).min().unwrap();
    stated.map(|f| (f.cause.as_ref().unwrap().id, first(f))).collect()
}

fn all(_: &Dump, _: Tap, _: u32, values: Vec<f32>) -> Option<Vec<f32>> {
    Some(values)
}

#[test]
fn last_rows_of_a_right_run_are_right_attention_too() {
    let explanation = last_rows("llama", TORCH, |_| {}, &all);
    assert!(explanation.findings.is_empty(), "{:?}", explanation.findings);
    assert_eq!(explanation.replay.count(|s| s == Status::Unchecked), 0);
}

/// Key/value heads once for each query head that reads them, and merged: of a decode step nothing but the prefill tells them from a cache.
#[test]
fn repeated_heads_of_decode_steps_are_read() {
    let is_kept = |tap: Tap| matches!(tap.site, Site::K | Site::V | Site::KRope);
    let judged = |fault: f32| {
        let repeated = |x: Vec<f32>| x.chunks(16).flat_map(|head| [head; 3].concat()).map(|x| x * fault).collect();
        let change = |_: &Dump, tap: Tap, _: u32, x: Vec<f32>| Some(if is_kept(tap) { repeated(x) } else { x });
        let merged = |tap: Tap, shape: &[usize]| if is_kept(tap) { vec![shape[0], 96] } else { shape.to_vec() };
        reshaped("llama", TORCH, &change, &merged)
    };
    let right = judged(1.0);
    assert!(right.findings.is_empty(), "{:?}", right.findings);
    assert_eq!(right.replay.count(|s| s == Status::Unchecked), 0);
    // In no order of heads anything is like it: it is not judged.
    assert_eq!(judged(1.01).replay.count(|s| s == Status::Unchecked), 24);
}

#[test]
fn last_rows_show_what_is_wrong_in_attention() {
    for (model, dump, cause) in [
        ("llama", "faulty/llama-kv-cache-shift.npz", ("kv-cache-shift", 1)),
        ("llama", "faulty/llama-score-softcap.npz", ("score-softcap", 0)),
        ("minimind", "faulty/minimind-mask-inverted.npz", ("mask-inverted", 0)),
    ] {
        let explanation = last_rows(model, dump, |_| {}, &all);
        assert_eq!(causes(&explanation), [cause], "{:?}", explanation.findings);
    }
}

/// Heads of `width` elements with those of the two halves in turn.
fn adjacent(values: &[f32], width: usize) -> Vec<f32> {
    let head = |head: &[f32]| (0..width).map(|i| head[i / 2 + i % 2 * width / 2]).collect::<Vec<f32>>();
    values.chunks(width).flat_map(head).collect()
}

#[test]
#[ignore = "slow: cargo test -- --ignored, as .ci/run does"]
fn an_undeclared_order_of_a_few_rows_is_found() {
    let rows = |fault: f32| {
        last_rows("llama", TORCH, |meta| meta.qk_rows = None, &move |_, tap, _, x| {
            (tap.site == Site::Q).then(|| adjacent(&x, 16).into_iter().map(|x| x * fault).collect())
        })
    };
    let right = rows(1.0);
    assert!(right.findings.is_empty(), "{:?}", right.findings);
    assert_eq!(right.replay.count(Status::agrees), 8);
    assert!(!rows(1.5).findings.is_empty());
}

#[test]
fn a_fault_of_one_step_is_none_of_the_next() {
    let explanation = changed("llama", TORCH, &|dump, tap, step, x| match (tap.site, tap.layer) {
        _ if step == 0 => None,
        (Site::H, Some(1)) if step == 2 => Some(values(dump, Tap::layer(1, Site::HAttn), step)),
        (Site::H, _) => Some(x),
        _ => None,
    });
    assert!(!explanation.findings.is_empty());
    let places = explanation.findings.iter().flat_map(|f| &f.shown_at);
    assert!(places.clone().all(|place| place.step == 2), "{:?}", explanation.findings);
    assert_eq!(explanation.replay.count(Status::agrees), 5);
}

/// Queries and keys of layer 0 turned by angles of another base.
#[test]
fn a_small_base_is_named_to_all_its_digits() {
    let explanation = changed("qwen2", "golden/qwen2-torch.npz", &|dump, tap, step, x| {
        let before = match tap.site {
            _ if step > 0 || tap.layer != Some(0) => return None,
            Site::QRope => Site::Q,
            Site::KRope => Site::K,
            Site::Q | Site::K => return Some(x),
            _ => return None,
        };
        let x = values(dump, Tap::layer(0, before), 0);
        let heads = x.len() / 11 / 8;
        let turn = |(at, head): (usize, &[f32])| {
            let angle = |i: usize| (at / heads) as f64 / 10f64.sqrt().powf(i as f64 / 4.0);
            let pair = |i: usize| (f64::from(head[i % 4]), f64::from(head[i % 4 + 4]), angle(i % 4));
            let one = |i: usize| match (pair(i), i < 4) {
                ((a, b, w), true) => a * w.cos() - b * w.sin(),
                ((a, b, w), false) => b * w.cos() + a * w.sin(),
            };
            (0..8).map(|i| one(i) as f32).collect::<Vec<f32>>()
        };
        Some(x.chunks(8).enumerate().flat_map(turn).collect())
    });
    assert_eq!(causes(&explanation), [("rope-theta", 0)], "{:?}", explanation.findings);
}

#[test]
fn a_factor_is_named_to_all_its_digits() {
    let explanation = changed("llama", TORCH, &|dump, tap, step, x| match (tap.site, tap.layer) {
        _ if step > 0 => None,
        (Site::HAttn, Some(0)) => {
            let (h, out) =
                (values(dump, Tap { layer: None, site: Site::H0 }, 0), values(dump, Tap::layer(0, Site::AttnOut), 0));
            Some(h.iter().zip(out).map(|(h, o)| h + 0.987_654_3 * o).collect())
        }
        (Site::H0, _) | (Site::AttnOut, Some(0)) => Some(x),
        _ => None,
    });
    assert_eq!(causes(&explanation), [("residual-scale", 0)], "{:?}", explanation.findings);
}

/// Values of the prefill that are keys, seen in the context alone; decode steps read them from the cache, and make no mistake of their own.
#[test]
fn a_fault_of_the_prefill_alone_is_none_of_the_decode_steps() {
    let explanation = changed("qwen2", "golden/qwen2-torch.npz", &|dump, tap, step, x| match (tap.site, tap.layer) {
        (Site::Context, Some(1)) => Some(context_of_keys(dump, step)),
        (Site::AttnNorm | Site::Probs, Some(1)) => Some(x),
        _ => None,
    });
    assert_eq!(causes(&explanation), [("weight-swapped", 0)], "{:?}", explanation.findings);
    let note = explanation.findings[0].note.as_deref().unwrap_or_default();
    assert!(note.starts_with("made in the prefill alone"), "{note}");
}

/// Probabilities of layer 1 times values that are the keys of the prefill, and the decode steps' own values.
fn context_of_keys(dump: &Dump, step: u32) -> Vec<f32> {
    let keys = values(dump, Tap::layer(1, Site::K), 0);
    let own = (1..=step).flat_map(|step| values(dump, Tap::layer(1, Site::V), step));
    let rows: Vec<f32> = keys.into_iter().chain(own).collect();
    let shape = &dump.find(Tap::layer(1, Site::Probs), step).unwrap().shape;
    let (heads, queries, seen) = (shape[0], shape[1], shape[2]);
    let (width, kv_heads) = (8, rows.len() / 8 / seen);
    let probs = values(dump, Tap::layer(1, Site::Probs), step);
    let at = |t: usize, h: usize, i: usize| -> f32 {
        let value = |s: usize| rows[(s * kv_heads + h / (heads / kv_heads)) * width + i];
        (0..seen).map(|s| probs[(h * queries + t) * seen + s] * value(s)).sum()
    };
    let channels = (0..queries).flat_map(|t| (0..heads).flat_map(move |h| (0..width).map(move |i| (t, h, i))));
    channels.map(|(t, h, i)| at(t, h, i)).collect()
}

/// One token, and of it one tap alone: so many numbers of it as its shape has there.
fn of_one_token(tap: &str, own: &dyn Fn(usize) -> f32) -> Explanation {
    let tap: Tap = tap.parse().unwrap();
    let shape = move |found: Tap, shape: &[usize]| match found.site.position_axis() {
        1 => vec![shape[0], 1, 1],
        _ => [&[1], &shape[1..]].concat(),
    };
    let change = move |dump: &Dump, found: Tap, step: u32, _: Vec<f32>| {
        let entry = dump.find(found, step).filter(|_| found == tap && step == 0)?;
        Some((0..shape(found, &entry.shape).iter().product::<usize>()).map(own).collect())
    };
    let say = |meta: &mut firstdiff_trace::Meta| {
        meta.tokens = meta.tokens.take().map(|ids| ids[..1].to_vec());
        meta.decode_tokens = None;
    };
    let effort = Effort { seconds: 1.0, ..Effort::default() };
    again("qwen2", "golden/qwen2-torch.npz", say, &change, false, &shape, &effort)
}

#[test]
fn a_few_numbers_of_something_else_prove_no_cause() {
    for (number, tap) in ["layers.0.qk", "layers.1.qk", "layers.0.k", "layers.1.v", "layers.1.h"].iter().enumerate() {
        for seed in 0..3 {
            let random = |at: usize| {
                let mixed = ((at + 1) * (number + 1) * 2_654_435_761 + seed * 40_503) % 10_007;
                mixed as f32 / 5_003.0 - 1.0
            };
            let explanation = of_one_token(tap, &random);
            assert!(!explanation.findings.is_empty(), "{tap}");
            let open = |m: Match| matches!(m, Match::Unknown | Match::Closest);
            assert!(
                explanation.findings.iter().all(|f| open(f.matched) && f.cause.is_none()),
                "{tap}: {:?}",
                explanation.findings
            );
        }
    }
}

/// One row has one factor, which any free number fits: a norm by the mean of |x| is no factor of the logits.
#[test]
fn the_factor_of_one_row_proves_no_number() {
    let shape = |found: Tap, shape: &[usize]| match found.site {
        Site::Logits => vec![1, shape[1]],
        _ => shape.to_vec(),
    };
    let change = |dump: &Dump, found: Tap, step: u32, _: Vec<f32>| {
        let width = dump.find(found, step)?.shape.last().copied()?;
        let is_it = found.site == Site::Logits && step == 0;
        is_it.then(|| values(dump, found, 0)[..width].iter().map(|x| 1.256_255_4 * x).collect())
    };
    let say = |meta: &mut firstdiff_trace::Meta| {
        meta.tokens = meta.tokens.take().map(|ids| ids[..1].to_vec());
        meta.decode_tokens = None;
    };
    let effort = Effort { seconds: 1.0, ..Effort::default() };
    let explanation = again("qwen2", "golden/qwen2-torch.npz", say, &change, false, &shape, &effort);
    assert!(!explanation.findings.is_empty());
    assert_eq!(causes(&explanation), [], "{:?}", explanation.findings);
}

/// A factor on the way to a sum, of which nothing was recorded, is one of the taps before it as well: values times 1.5 are no factor of the sum's own.
#[test]
fn a_factor_says_the_taps_at_which_it_is_the_same() {
    let explanation = changed("llama", TORCH, &|dump, tap, step, x| match (tap.site, tap.layer) {
        _ if step > 0 => None,
        (Site::HAttn, Some(0)) => {
            let out = values(dump, Tap::layer(0, Site::AttnOut), 0);
            let h = values(dump, Tap { layer: None, site: Site::H0 }, 0);
            Some(h.iter().zip(out).map(|(h, o)| h + 1.5 * o).collect())
        }
        (Site::H0, _) => Some(x),
        _ => None,
    });
    assert_eq!(causes(&explanation), [("residual-scale", 0)], "{:?}", explanation.findings);
    let sites: Vec<Site> = explanation.findings[0].through.iter().map(|tap| tap.site).collect();
    assert_eq!(sites, [Site::V, Site::Probs, Site::Context, Site::AttnOut]);
}

#[test]
fn another_token_of_a_decode_step_is_named() {
    let explanation = changed("llama", TORCH, &|dump, tap, step, x| {
        let width = x.len();
        let other = || values(dump, tap, 0)[5 * width..6 * width].to_vec();
        (tap.site == Site::H0).then(|| if step == 2 { other() } else { x })
    });
    let Some(cause) = explanation.findings.first().and_then(|f| f.cause.as_ref()) else { panic!("no cause") };
    let fed = changed_token();
    assert_eq!((cause.id, cause.params.last()), ("tokens-differ", Some(&("tokens", serde_json::json!([fed])))));
}

/// The prompt's token at position 5.
fn changed_token() -> i64 {
    let dump = Dump::open(crate::common::fixtures().join(TORCH)).unwrap();
    dump.meta().tokens.as_ref().unwrap()[5]
}

//! What is done wrong from the products of queries and keys to the mixed values?

use firstdiff_model::{Op, Scores, Step};
use firstdiff_trace::{Site, Tap};
use ndarray::{ArrayD, Axis, Ix3};
use serde_json::json;

use super::{At, List, Out, QK_NORM_ORDER, Seen, factor, rows, snapped};

/// Below this a score is taken for masked, as compare takes it.
const MASKED: f64 = -9000.0;

/// Right: q · k of the head that h / (H/K) names, over all keys so far.
pub(super) fn products(list: &mut List<'_>) {
    head_maps(list);
    caches(list);
    let [q, k] = list.step.reads[..] else { return };
    let before =
        |rope: Site, norm: Site, plain: Site| list.sibling(rope).and(list.sibling(norm).or(list.sibling(plain)));
    let (plain_q, plain_k) = (before(Site::QRope, Site::QNorm, Site::Q), before(Site::KRope, Site::KNorm, Site::K));
    // What is read was never turned, though it was turned and kept.
    if let (Some(plain_q), Some(plain_k)) = (plain_q, plain_k) {
        list.read("rope-omitted", vec![("reads", json!("q, k"))], &[plain_q, plain_k]);
        list.read("rope-omitted", vec![("reads", json!("q"))], &[plain_q, k]);
        list.read("rope-omitted", vec![("reads", json!("k"))], &[q, plain_k]);
    }
    if let (Some(q_norm), Some(k_norm)) = (list.sibling(Site::QNorm), list.sibling(Site::KNorm)) {
        list.read("qk-norm-order", vec![], &[q_norm, k_norm]).with = QK_NORM_ORDER;
    }
}

/// Which key and value head a query head reads.
fn head_maps(list: &mut List<'_>) {
    let (heads, kv_heads) = (list.model.plan.dims.heads, list.model.plan.dims.kv_heads);
    if kv_heads == 1 || heads == kv_heads {
        return;
    }
    // h % K; 0; h, beyond the last the last
    type Map = fn(usize, usize) -> usize;
    let maps: [(&str, Map); 4] = [
        ("h % K", |h, k| h % k),
        ("0", |_, _| 0),
        ("h / K", |h, k| (h / k).min(k - 1)),
        ("min(h, K-1)", |h, k| h.min(k - 1)),
    ];
    for (name, map) in maps {
        list.add("kv-head-map", vec![("map", json!(name))], move |at| {
            let order: Vec<usize> = (0..heads).map(|h| map(h, kv_heads)).collect();
            at.on(&[at.input(0)?.clone(), at.input(1)?.select(Axis(1), &order)])
        });
    }
}

/// What decoded tokens find in the cache.
fn caches(list: &mut List<'_>) {
    type Order = fn(usize, usize) -> Vec<Option<usize>>;
    // The slots by the rows they hold; None is one never written. `keys` rows in all, `prefill` of them from the prompt.
    let kinds: [(&'static str, &str, Order); 5] = [
        ("kv-cache-stale", "last-one's", |keys, _| (0..keys - 1).map(Some).chain([Some(keys - 2)]).collect()),
        ("kv-cache-stale", "newest missing", |keys, _| (0..keys - 1).map(Some).chain([None]).collect()),
        ("kv-cache-stale", "decoded never written", |keys, prefill| {
            (0..keys).map(|row| (row < prefill).then_some(row)).collect()
        }),
        ("kv-cache-shift", "early", |keys, prefill| {
            (0..keys).filter(|&s| s != prefill - 1).map(Some).chain([None]).collect()
        }),
        ("kv-cache-shift", "late", |keys, prefill| {
            (0..prefill).map(Some).chain([None]).chain((prefill..keys - 1).map(Some)).collect()
        }),
    ];
    for (id, kind, order) in kinds {
        let edit = list.add(id, vec![("kind", json!(kind))], move |at| {
            let keys = at.input(1)?.shape()[0];
            if at.chunk.start < at.prefill || keys < 2 {
                return at.right();
            }
            let order = order(keys, at.prefill);
            let mut held = rows(at.input(1)?, &order.iter().map(|row| row.unwrap_or(0)).collect::<Vec<_>>());
            for (slot, _) in order.iter().enumerate().filter(|(_, row)| row.is_none()) {
                held.index_axis_mut(Axis(0), slot).fill(0.0);
            }
            at.on(&[at.input(0)?.clone(), held])
        });
        edit.with = &[Site::Qk, Site::Context];
    }
}

/// Right: scale · qk, -inf where a key is later than the query, or a window behind it.
pub(super) fn scores(list: &mut List<'_>, right: &Scores) {
    let dims = list.model.plan.dims;
    let (d, model) = (dims.head_dim as f64, dims.hidden as f64);
    // The scale absent, 1/d, 1/√D …
    let scales = [
        ("1", 1.0),
        ("1/d", 1.0 / d),
        ("1/sqrt(D)", 1.0 / model.sqrt()),
        ("sqrt(d)", d.sqrt()),
        ("1/sqrt(H)", 1.0 / (dims.heads as f64).sqrt()),
        ("1/D", 1.0 / model),
        ("1/sqrt(K*d)", 1.0 / ((dims.kv_heads * dims.head_dim) as f64).sqrt()),
        ("1/sqrt(d/2)", (2.0 / d).sqrt()),
    ];
    // Some of these are the same number in a small model.
    let mut known: Vec<(String, f64)> = Vec::new();
    for (name, scale) in scales.into_iter().filter(|(_, scale)| !is_near(*scale, right.scale)) {
        match known.iter_mut().find(|(_, other)| is_near(scale, *other)) {
            Some((names, _)) => *names += &format!(" or {name}"),
            None => known.push((name.to_owned(), scale)),
        }
    }
    for (name, scale) in known {
        list.op("score-scale", vec![("scale", json!(name))], Op::Scores(Scores { scale, ..*right }));
    }
    windows(list, right);
    // Any other factor, to begin a fit from.
    for scale in [1.3 * right.scale, 0.7 * right.scale] {
        let right = *right;
        list.op_with("score-scale", "scale", scale, move |scale| Op::Scores(Scores { scale, ..right }));
    }
    list.op("mask-omitted", vec![], Op::Scores(Scores { causal: false, window: None, ..*right }));
    // One key of the future seen; the token itself not
    masked(list, "mask-shifted", "future", |t, s, seen| seen || s == t + 1, f64::NEG_INFINITY);
    masked(list, "mask-shifted", "past", |t, s, seen| seen && s != t, f64::NEG_INFINITY);
    masked(list, "mask-inverted", "", |_, _, seen| !seen, f64::NEG_INFINITY);
    masked(list, "mask-inverted", "token-seen", |t, s, seen| !seen || s == t, f64::NEG_INFINITY);
    // 0 for -inf; or any other number, to begin a fit from.
    list.add("mask-fill", vec![("fill", json!(0.0)), ("how", json!(Fill::Replaced.name()))], |at| {
        mask(at, |_, _, seen| seen, 0.0)
    });
    filled(list, -8.0, Fill::Replaced);
    filled(list, -8.0, Fill::Added);
    // The queries of a chunk stand at its first keys
    list.add("mask-shifted", vec![("kind", json!("top-left"))], |at| {
        let start = at.chunk.start;
        mask(at, move |t, s, seen| if start == 0 { seen } else { s + start <= t }, f64::NEG_INFINITY)
    });
    for cap in [50.0, 30.0, 20.0] {
        let right = *right;
        list.op_with("score-softcap", "cap", cap, move |cap| Op::Scores(Scores { softcap: Some(cap), ..right }));
    }
    // The mask is multiplied in after the softmax.
    let open = Op::Scores(Scores { causal: false, window: None, ..*right });
    list.op("mask-after-softmax", vec![], open).with = &[Site::Scores, Site::Probs];
}

fn is_near(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 1e-9
}

fn windows(list: &mut List<'_>, right: &Scores) {
    let sizes: Vec<(serde_json::Value, Option<usize>)> = match right.window {
        Some(w) => vec![
            (json!("ignored"), None),
            (json!(w + 1), Some(w + 1)),
            (json!(w.saturating_sub(1).max(1)), Some(w.saturating_sub(1).max(1))),
            (json!(2 * w), Some(2 * w)),
            (json!(w.div_ceil(2)), Some(w.div_ceil(2))),
        ],
        // A window that this layer has not: the config's own, of another layer.
        None => list
            .model
            .plan
            .steps
            .iter()
            .find_map(|s| match s.op {
                Op::Scores(Scores { window: Some(w), .. }) => Some((json!(w), Some(w))),
                _ => None,
            })
            .into_iter()
            .collect(),
    };
    for (name, window) in sizes {
        list.op("window-size", vec![("window", name)], Op::Scores(Scores { window, ..*right }));
    }
}

fn masked(list: &mut List<'_>, id: &'static str, kind: &'static str, seen: fn(usize, usize, bool) -> bool, fill: f64) {
    let params = if kind.is_empty() { vec![] } else { vec![("kind", json!(kind))] };
    list.add(id, params, move |at| mask(at, seen, fill));
}

/// How a masked score is filled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fill {
    /// It is the fill.
    Replaced,
    /// The fill is added to it.
    Added,
}

impl Fill {
    fn name(self) -> &'static str {
        match self {
            Fill::Replaced => "replaced",
            Fill::Added => "added",
        }
    }

    fn of(self, fill: f64, score: f64) -> f64 {
        match self {
            Fill::Replaced => fill,
            Fill::Added => score + fill,
        }
    }
}

/// Masked scores with a number in them that takes part.
fn filled(list: &mut List<'_>, fill: f64, how: Fill) {
    let edit = list.tunable("mask-fill", "fill", fill, move |fill, at| {
        let Op::Scores(right) = &at.step.op else { return None };
        let open = at.doing(Op::Scores(Scores { causal: false, window: None, ..*right }))?;
        Some(at.kept(with_fill(open, right, fill, how)?))
    });
    edit.params.push(("how", json!(how.name())));
}

/// The same where the softmax applies the mask, to scores that were recorded without it.
fn filled_within(list: &mut List<'_>, right: Scores, fill: f64, how: Fill) {
    let edit = list.tunable("mask-fill", "fill", fill, move |fill, at| {
        at.on(&[with_fill(at.input(0)?.clone(), &right, fill, how)?])
    });
    edit.params.push(("how", json!(how.name())));
}

fn with_fill(scores: ArrayD<f64>, right: &Scores, fill: f64, how: Fill) -> Out {
    let mut out = scores.into_dimensionality::<Ix3>().ok()?;
    let (_, tokens, keys) = out.dim();
    for ((_, t, s), x) in out.indexed_iter_mut() {
        if !visible(right, (keys + t).saturating_sub(tokens), s) {
            *x = how.of(fill, *x);
        }
    }
    Some(out.into_dyn())
}

/// The values of `scores` or `probs` at the keys that the mask hides, with their places.
pub(crate) fn hidden_cells(values: &ArrayD<f64>, right: &Scores) -> Vec<([usize; 3], f64)> {
    let Ok(view) = values.view().into_dimensionality::<Ix3>() else { return Vec::new() };
    let (_, tokens, keys) = view.dim();
    let cells = view.indexed_iter().filter(|((_, t, s), _)| !visible(right, (keys + t).saturating_sub(tokens), *s));
    cells.map(|((h, t, s), x)| ([h, t, s], *x)).collect()
}

/// The fills that masked scores show: they are one number, or one number more than the scores without a mask.
fn fills(shown: &[f64], open: &[f64]) -> Vec<(f64, Fill)> {
    let fit = |values: Vec<f64>| {
        let mut values: Vec<f64> = values.into_iter().filter(|x| x.is_finite() && *x > MASKED).collect();
        values.sort_by(f64::total_cmp);
        // Of more than half of the cells.
        (2 * values.len() > shown.len()).then(|| snapped(values[values.len() / 2], 1e-3) + 0.0)
    };
    let replaced = fit(shown.to_vec()).map(|fill| (fill, Fill::Replaced));
    let added = fit(shown.iter().zip(open).map(|(own, open)| own - open).collect());
    // Nothing added is no mask at all.
    let added = added.filter(|fill| fill.abs() > 1e-6).map(|fill| (fill, Fill::Added));
    replaced.into_iter().chain(added).collect()
}

/// The fill that probabilities show: of a hidden key's share of its row, and that of a key that is seen.
fn fills_of(probs: &ArrayD<f64>, open: &ArrayD<f64>, right: &Scores) -> Vec<(f64, Fill)> {
    let (Ok(probs), Ok(open)) = (probs.view().into_dimensionality::<Ix3>(), open.view().into_dimensionality::<Ix3>())
    else {
        return Vec::new();
    };
    if probs.dim() != open.dim() {
        return Vec::new();
    }
    let (_, tokens, keys) = probs.dim();
    let (mut shown, mut bare) = (Vec::new(), Vec::new());
    for ((h, t, s), &p) in probs.indexed_iter() {
        let query = (keys + t).saturating_sub(tokens);
        if visible(right, query, s) || p <= 0.0 {
            continue;
        }
        let largest = (0..keys)
            .filter(|&s| visible(right, query, s))
            .max_by(|&a, &b| probs[[h, t, a]].total_cmp(&probs[[h, t, b]]));
        if let Some(seen) = largest.filter(|&seen| probs[[h, t, seen]] > 0.0) {
            shown.push(p.ln() - probs[[h, t, seen]].ln() + open[[h, t, seen]]);
            bare.push(open[[h, t, s]]);
        }
    }
    fills(&shown, &bare)
}

/// The scores with their masked places filled in the ways that probabilities show which were made of them.
pub(crate) fn filled_as_shown(probs: &ArrayD<f64>, open: &ArrayD<f64>, right: &Scores) -> Vec<ArrayD<f64>> {
    let fills = fills_of(probs, open, right).into_iter();
    fills.filter_map(|(fill, how)| with_fill(open.clone(), right, fill, how)).collect()
}

/// Fills of the scores' mask, as probabilities show them that were made of them; `open` are the scores without a mask.
pub(super) fn fitted_fills(list: &mut List<'_>, right: &Scores, probs: &ArrayD<f64>, open: &ArrayD<f64>) {
    for (fill, how) in fills_of(probs, open, right) {
        filled(list, fill, how);
    }
}

/// The same at the softmax, beside scores that were recorded.
pub(super) fn fitted_softmax(list: &mut List<'_>, seen: &Seen<'_>) {
    let scores = list.sibling(Site::Scores).and_then(|tap| list.model.plan.step(tap));
    let (Some(Op::Scores(right)), [scores]) = (scores.map(|s| s.op.clone()), seen.inputs) else { return };
    for (fill, how) in fills_of(seen.own, scores, &right) {
        filled_within(list, right, fill, how);
    }
}

/// The scaled products, `fill` where query t (its position) does not see key s; `seen` is told whether it should.
fn mask(at: &At<'_>, seen: impl Fn(usize, usize, bool) -> bool, fill: f64) -> Out {
    let Op::Scores(right) = &at.step.op else { return None };
    let open = at.doing(Op::Scores(Scores { causal: false, window: None, ..*right }))?;
    let mut out = open.into_dimensionality::<Ix3>().ok()?;
    let (_, tokens, keys) = out.dim();
    for ((_, t, s), x) in out.indexed_iter_mut() {
        let query = (keys + t).saturating_sub(tokens);
        if !seen(query, s, visible(right, query, s)) {
            *x = fill;
        }
    }
    Some(out.into_dyn())
}

fn capped(scores: &Scores, x: f64) -> f64 {
    scores.softcap.map_or(x, |cap| cap * (x / cap).tanh())
}

/// Whether a query sees a key.
fn visible(scores: &Scores, query: usize, key: usize) -> bool {
    (!scores.causal || key <= query) && scores.window.is_none_or(|w| key + w > query)
}

/// The factor on the products, the fill and the window, as the candidate's scores show them.
pub(super) fn fitted(list: &mut List<'_>, right: &Scores, seen: &Seen<'_>) {
    if let Some(c) = factor(seen.own, seen.right).filter(|c| (c - 1.0).abs() > 1e-9) {
        let scale = snapped(c * right.scale, 1e-6);
        list.op("score-scale", vec![("scale", json!(scale))], Op::Scores(Scores { scale, ..*right }));
    }
    let open = seen.inputs.first().map(|qk| qk.mapv(|x| capped(right, x * right.scale)));
    if let Some(open) = open.filter(|open| open.shape() == seen.own.shape()) {
        let of = |values| hidden_cells(values, right).into_iter().map(|(_, x)| x).collect::<Vec<f64>>();
        for (fill, how) in fills(&of(seen.own), &of(&open)) {
            filled(list, fill, how);
        }
    }
    let Ok(own) = seen.own.clone().into_dimensionality::<Ix3>() else { return };
    let (_, tokens, keys) = own.dim();
    // How many keys the last query sees.
    if let Some(last) = tokens.checked_sub(1) {
        let visible = (0..keys).filter(|&s| own[[0, last, s]].is_finite() && own[[0, last, s]] > MASKED).count();
        let known = list.edits.iter().any(|e| e.id == "window-size" && e.params[0].1 == json!(visible));
        if visible > 0 && visible < keys && !known && Some(visible) != right.window {
            list.op(
                "window-size",
                vec![("window", json!(visible))],
                Op::Scores(Scores { window: Some(visible), ..*right }),
            );
        }
    }
}

/// Right: e^x over the sum of it, over the keys.
pub(super) fn softmax(list: &mut List<'_>) {
    list.add("softmax-axis", vec![], |at| {
        let turned = at.input(0)?.clone().permuted_axes(vec![0, 2, 1]).as_standard_layout().into_owned();
        Some(at.on(&[turned])?.permuted_axes(vec![0, 2, 1]).as_standard_layout().into_owned())
    });
    list.add("softmax-axis", vec![("kind", json!("heads"))], |at| {
        let turned = at.input(0)?.clone().permuted_axes(vec![1, 2, 0]).as_standard_layout().into_owned();
        Some(at.on(&[turned])?.permuted_axes(vec![2, 0, 1]).as_standard_layout().into_owned())
    });
    // 2^x for e^x
    list.add("softmax-base", vec![], |at| at.on(&[at.input(0)?.mapv(|x| x * std::f64::consts::LN_2)]));
    let edit = list.add("mask-after-softmax", vec![], |at| {
        let scores = at.model.plan.step(Tap::layer(at.step.tap.layer?, Site::Scores))?;
        let Op::Scores(right) = &scores.op else { return None };
        let mut out = at.right()?.into_dimensionality::<Ix3>().ok()?;
        let (_, tokens, keys) = out.dim();
        for ((_, t, s), x) in out.indexed_iter_mut() {
            if !visible(right, (keys + t).saturating_sub(tokens), s) {
                *x = 0.0;
            }
        }
        Some(out.into_dyn())
    });
    edit.with = &[Site::Scores, Site::Probs];
    // A sink of score 0 in the denominator
    list.add("sink-omitted", vec![("kind", json!("extra zero"))], |at| {
        let x = at.input(0)?;
        let mut out = x.clone();
        for (mut to, row) in out.rows_mut().into_iter().zip(x.rows()) {
            let top = row.iter().copied().fold(0.0, f64::max);
            let total: f64 = row.iter().map(|x| (x - top).exp()).sum::<f64>() + (-top).exp();
            to.iter_mut().zip(row).for_each(|(y, x)| *y = (x - top).exp() / total);
        }
        Some(at.kept(out))
    });
}

/// Right: Σ probs · v of the head that h / (H/K) names; the heads side by side.
pub(super) fn context(list: &mut List<'_>) {
    head_maps(list);
    caches(list);
    // [H,T,d] taken as [T,H·d]
    list.add("context-layout", vec![], |at| {
        let right = at.right()?;
        let &[tokens, width] = right.shape() else { return None };
        let heads = at.model.plan.dims.heads;
        if tokens == 1 || heads == 1 {
            return None;
        }
        let by_head = right.into_shape_with_order(vec![tokens, heads, width / heads]).ok()?;
        let flat = by_head.permuted_axes(vec![1, 0, 2]).as_standard_layout().into_owned();
        flat.into_shape_with_order(vec![tokens, width]).ok()
    });
    list.add("context-layout", vec![("kind", json!("d-first"))], |at| {
        let right = at.right()?;
        let &[tokens, width] = right.shape() else { return None };
        let heads = at.model.plan.dims.heads;
        let by_head = right.into_shape_with_order(vec![tokens, heads, width / heads]).ok()?;
        let flat = by_head.permuted_axes(vec![0, 2, 1]).as_standard_layout().into_owned();
        flat.into_shape_with_order(vec![tokens, width]).ok()
    });
    // v turned as k is
    list.add("rope-on-v", vec![], |at| {
        let step = at.model.plan.step(Tap::layer(at.step.tap.layer?, Site::KRope))?;
        at.on(&[at.input(0)?.clone(), turned_from_zero(at, step, at.input(1)?)?])
    });
}

/// All rows so far turned by a step of rotation.
fn turned_from_zero(at: &At<'_>, step: &Step, x: &ArrayD<f64>) -> Out {
    let tokens = vec![0; x.shape()[0]];
    let chunk = firstdiff_model::Chunk { tokens: &tokens, start: 0 };
    At { step, inputs: at.inputs, chunk, ..*at }.on(std::slice::from_ref(x))
}

//! What is done wrong from the products of queries and keys to the mixed values?

use firstdiff_model::{Op, Step};
use firstdiff_trace::{Site, Tap};
use ndarray::{ArrayD, Axis, Ix3};
use serde_json::json;

use super::catalogue::{BeginsLater, Mistake};
use super::norm::QK_NORM_ORDER;
use super::param::Param;
use super::rope::{ROPE_OMITTED, ROPE_ON_V};
use super::scores::{MASK_AFTER_SOFTMAX, visible};
use super::{List, Out, StepContext, rows};

/// A mistake of the cache of keys and values.
const CACHE: Mistake = Mistake {
    at: &[Site::Qk, Site::Context],
    made_together: &[Site::Qk, Site::Context],
    begins_later: BeginsLater::WithTokens,
    mixes_tokens: true,
    in_the_cache: true,
    ..Mistake::ORDINARY
};

/// The mistakes of this file.
pub(super) static MISTAKES: &[&Mistake] =
    &[&SOFTMAX_AXIS, &SOFTMAX_BASE, &SINK_OMITTED, &KV_HEAD_MAP, &KV_CACHE_SHIFT, &KV_CACHE_STALE, &CONTEXT_LAYOUT];

pub(crate) static SOFTMAX_AXIS: Mistake = Mistake {
    id: "softmax-axis",
    what: "the softmax runs over another axis",
    fix: "over the keys, for each query and head",
    at: &[Site::Probs],
    params: &[Param::words("kind", &["heads"])],
    begins_later: BeginsLater::InOneOperation,
    mixes_tokens: true,
    ..Mistake::ORDINARY
};
pub(crate) static SOFTMAX_BASE: Mistake = Mistake {
    id: "softmax-base",
    what: "powers of 2 are taken for powers of e",
    fix: "e^x, or 2^(x / ln 2)",
    at: &[Site::Probs],
    begins_later: BeginsLater::InOneOperation,
    ..Mistake::ORDINARY
};
pub(crate) static SINK_OMITTED: Mistake = Mistake {
    id: "sink-omitted",
    what: "the denominator holds a term too many or too few",
    fix: "look at attention sinks",
    at: &[Site::Probs],
    params: &[Param::words("kind", &["extra zero"])],
    ..Mistake::ORDINARY
};
pub(crate) static KV_HEAD_MAP: Mistake = Mistake {
    id: "kv-head-map",
    what: "query heads read other key/value heads",
    fix: "query head h reads head h / (H/K)",
    at: &[Site::Qk, Site::Context],
    params: &[Param::words("map", &["h % K", "0", "h / K", "min(h, K-1)"])],
    begins_later: BeginsLater::InOneOperation,
    ..Mistake::ORDINARY
};
pub(crate) static KV_CACHE_SHIFT: Mistake = Mistake {
    id: "kv-cache-shift",
    what: "keys or values are written to another slot of the cache",
    fix: "position p goes to slot p",
    params: &[Param::words("kind", &["early", "late", "newest first", "prompt late"])],
    ..CACHE
};
pub(crate) static KV_CACHE_STALE: Mistake = Mistake {
    id: "kv-cache-stale",
    what: "the newest token's key or value is not in the cache when it is read",
    fix: "write the cache before the products",
    params: &[Param::words(
        "kind",
        &["last-one's", "newest missing", "decoded never written", "written behind the products"],
    )],
    ..CACHE
};
pub(crate) static CONTEXT_LAYOUT: Mistake = Mistake {
    id: "context-layout",
    what: "heads are merged without the transpose",
    fix: "[H,T,d] becomes [T,H,d] before it is flattened",
    at: &[Site::Context],
    params: &[Param::words("kind", &["d-first"])],
    begins_later: BeginsLater::InOneOperation,
    mixes_tokens: true,
    ..Mistake::ORDINARY
};

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
        list.read(&ROPE_OMITTED, vec![("reads", json!("q, k"))], &[plain_q, plain_k]);
        list.read(&ROPE_OMITTED, vec![("reads", json!("q"))], &[plain_q, k]);
        list.read(&ROPE_OMITTED, vec![("reads", json!("k"))], &[q, plain_k]);
    }
    let norms = [Site::QNorm, Site::KNorm].map(|site| list.model.plan.step(list.sibling(site)?).cloned());
    if let [Some(q_norm), Some(k_norm)] = norms {
        list.add(&QK_NORM_ORDER, vec![], move |at| {
            let [q, k] = at.inputs else { return None };
            at.on(&[at.run(&q_norm, std::slice::from_ref(q))?, at.run(&k_norm, std::slice::from_ref(k))?])
        });
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
        list.add(&KV_HEAD_MAP, vec![("map", json!(name))], move |at| {
            let order: Vec<usize> = (0..heads).map(|h| map(h, kv_heads)).collect();
            at.on(&[at.input(0)?.clone(), at.input(1)?.select(Axis(1), &order)])
        });
    }
}

/// What decoded tokens find in the cache.
fn caches(list: &mut List<'_>) {
    type Order = fn(usize, usize) -> Vec<Option<usize>>;
    // The slots by the rows they hold; None is one never written. `keys` rows in all, `prefill` of them from the prompt.
    let kinds: [(&Mistake, &str, Order); 5] = [
        (&KV_CACHE_STALE, "last-one's", |keys, _| (0..keys - 1).map(Some).chain([Some(keys - 2)]).collect()),
        (&KV_CACHE_STALE, "newest missing", |keys, _| (0..keys - 1).map(Some).chain([None]).collect()),
        (&KV_CACHE_STALE, "decoded never written", |keys, prefill| {
            (0..keys).map(|row| (row < prefill).then_some(row)).collect()
        }),
        (&KV_CACHE_SHIFT, "early", |keys, prefill| {
            (0..keys).filter(|&s| s != prefill - 1).map(Some).chain([None]).collect()
        }),
        (&KV_CACHE_SHIFT, "late", |keys, prefill| {
            (0..prefill).map(Some).chain([None]).chain((prefill..keys - 1).map(Some)).collect()
        }),
    ];
    for (mistake, kind, order) in kinds {
        list.add(mistake, vec![("kind", json!(kind))], move |at| {
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
    }
}

/// Right: e^x over the sum of it, over the keys.
pub(super) fn softmax(list: &mut List<'_>) {
    list.add(&SOFTMAX_AXIS, vec![], |at| {
        let turned = at.input(0)?.clone().permuted_axes(vec![0, 2, 1]).as_standard_layout().into_owned();
        Some(at.on(&[turned])?.permuted_axes(vec![0, 2, 1]).as_standard_layout().into_owned())
    });
    list.add(&SOFTMAX_AXIS, vec![("kind", json!("heads"))], |at| {
        let turned = at.input(0)?.clone().permuted_axes(vec![1, 2, 0]).as_standard_layout().into_owned();
        Some(at.on(&[turned])?.permuted_axes(vec![2, 0, 1]).as_standard_layout().into_owned())
    });
    // 2^x for e^x
    list.add(&SOFTMAX_BASE, vec![], |at| at.on(&[at.input(0)?.mapv(|x| x * std::f64::consts::LN_2)]));
    list.add(&MASK_AFTER_SOFTMAX, vec![], |at| {
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
    // A sink of score 0 in the denominator
    list.add(&SINK_OMITTED, vec![("kind", json!("extra zero"))], |at| {
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
    list.add(&CONTEXT_LAYOUT, vec![], |at| {
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
    list.add(&CONTEXT_LAYOUT, vec![("kind", json!("d-first"))], |at| {
        let right = at.right()?;
        let &[tokens, width] = right.shape() else { return None };
        let heads = at.model.plan.dims.heads;
        let by_head = right.into_shape_with_order(vec![tokens, heads, width / heads]).ok()?;
        let flat = by_head.permuted_axes(vec![0, 2, 1]).as_standard_layout().into_owned();
        flat.into_shape_with_order(vec![tokens, width]).ok()
    });
    // v turned as k is
    list.add(&ROPE_ON_V, vec![], |at| {
        let step = at.model.plan.step(Tap::layer(at.step.tap.layer?, Site::KRope))?;
        at.on(&[at.input(0)?.clone(), turned_from_zero(at, step, at.input(1)?)?])
    });
}

/// All rows so far turned by a step of rotation.
fn turned_from_zero(at: &StepContext<'_>, step: &Step, x: &ArrayD<f64>) -> Out {
    let tokens = vec![0; x.shape()[0]];
    let chunk = firstdiff_model::Chunk { tokens: &tokens, start: 0 };
    StepContext { step, inputs: at.inputs, chunk, ..*at }.on(std::slice::from_ref(x))
}

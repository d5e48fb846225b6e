//! What is done wrong in the scores? Right: scale · qk, capped where the config says, -inf where a key is later than the query, or a window behind it.

use firstdiff_compare::MASKED;
use firstdiff_model::{Op, Scores};
use firstdiff_trace::Site;
use ndarray::{ArrayD, Ix3};
use serde_json::json;

use super::catalogue::{BeginsLater, Mistake};
use super::param::Param;
use super::{List, Out, Scale, Seen, StepContext, snapped};
use crate::tolerance::mistakes::{NO_FILL, PLAIN_FILL, SAME_PARAMETER};

/// A mistake of the mask.
const MASK: Mistake =
    Mistake { at: &[Site::Scores], begins_later: BeginsLater::WithTokens, mixes_tokens: true, ..Mistake::ORDINARY };

/// The mistakes of this file.
pub(super) static MISTAKES: &[&Mistake] = &[
    &SCORE_SCALE,
    &SCORE_SOFTCAP,
    &MASK_OMITTED,
    &MASK_SHIFTED,
    &MASK_INVERTED,
    &MASK_FILL,
    &MASK_AFTER_SOFTMAX,
    &WINDOW_SIZE,
];

pub(crate) static SCORE_SCALE: Mistake = Mistake {
    id: "score-scale",
    what: "the products are scaled by another factor",
    fix: "scale the products of q and k as the reference does",
    at: &[Site::Scores],
    params: &[Param::free("scale").or(&[
        "1",
        "1/d",
        "1/sqrt(D)",
        "sqrt(d)",
        "1/sqrt(H)",
        "1/D",
        "1/sqrt(K*d)",
        "1/sqrt(d/2)",
    ])],
    right_value: |_, step| match &step.op {
        Op::Scores(scores) => Some(scores.scale.to_string()),
        _ => None,
    },
    begins_later: BeginsLater::InOneOperation,
    is_a_factor: true,
    ..Mistake::ORDINARY
};
pub(crate) static SCORE_SOFTCAP: Mistake = Mistake {
    id: "score-softcap",
    what: "the scores are capped otherwise",
    fix: "cap exactly where the reference does, with its number",
    at: &[Site::Scores],
    params: &[Param::free("cap")],
    begins_later: BeginsLater::InOneOperation,
    ..Mistake::ORDINARY
};
pub(crate) static MASK_OMITTED: Mistake = Mistake {
    id: "mask-omitted",
    what: "keys that are to be masked are seen",
    fix: "hide what the reference hides: every key of padding, with a window those beyond it, and in a causal model key s of query t where s > t",
    ..MASK
};
pub(crate) static MASK_SHIFTED: Mistake = Mistake {
    id: "mask-shifted",
    what: "the mask ends at another key",
    fix: "show what the reference shows: in a causal model query t sees keys 0 to t, itself included; in a chunk, t counts from the first position",
    params: &[
        Param::words("kind", &["future", "past", "top-left"]),
        Param::number("by"),
        Param::words("sees", &["the first"]),
    ],
    ..MASK
};
pub(crate) static MASK_INVERTED: Mistake = Mistake {
    id: "mask-inverted",
    what: "the mask's polarity is reversed",
    fix: "hide what the reference hides, and keep the rest: in a causal model hide the future, keep the past",
    params: &[Param::words("kind", &["token-seen"])],
    ..MASK
};
pub(crate) static MASK_FILL: Mistake = Mistake {
    id: "mask-fill",
    what: "hidden scores are filled with a number that takes part",
    fix: "fill with -inf, or with the reference's own number",
    at: &[Site::Scores, Site::Probs],
    params: &[Param::free("fill"), Param::words("how", &["replaced", "added"])],
    ..MASK
};
pub(crate) static MASK_AFTER_SOFTMAX: Mistake = Mistake {
    id: "mask-after-softmax",
    what: "the mask is multiplied in after the softmax",
    fix: "mask before the softmax",
    at: &[Site::Scores, Site::Probs],
    made_together: &[Site::Scores, Site::Probs],
    ..MASK
};
pub(crate) static WINDOW_SIZE: Mistake = Mistake {
    id: "window-size",
    what: "another number of keys is seen",
    fix: "take the window from the config: a query of a causal model sees that many keys, itself included, in others most often half as many each way, in the layers that have it",
    params: &[Param::free("window").or(&["ignored"]), Param::free("each_way")],
    right_value: |_, step| match &step.op {
        Op::Scores(scores) => Some(scores.window.map_or("none here".into(), |window| format!("{window} here"))),
        _ => None,
    },
    ..MASK
};

/// Right: scale · qk, -inf where a key is later than the query, or a window behind it.
pub(super) fn listed(list: &mut List<'_>, right: &Scores) {
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
        list.op(&SCORE_SCALE, vec![("scale", json!(name))], Op::Scores(Scores { scale, ..*right }));
    }
    windows(list, right);
    let scores = *right;
    list.tunable_by(Scale::Whole, &WINDOW_SIZE, "window", 6.0, move |window, at| {
        at.doing(Op::Scores(Scores { window: Some(window.round() as usize), ..scores }))
    });
    // Any other factor, to begin a fit from.
    for scale in [1.3 * right.scale, 0.7 * right.scale] {
        let right = *right;
        list.op_with(&SCORE_SCALE, "scale", scale, move |scale| Op::Scores(Scores { scale, ..right }));
    }
    omitted(list, right);
    // One key of the future seen; the token itself not
    masked(list, &MASK_SHIFTED, "future", |t, s, seen| seen || s == t + 1, f64::NEG_INFINITY);
    masked(list, &MASK_SHIFTED, "past", |t, s, seen| seen && s != t, f64::NEG_INFINITY);
    // Any number of keys of the future, to begin a fit from.
    let edit = list.tunable_by(Scale::Whole, &MASK_SHIFTED, "by", 3.0, |by, at| {
        mask(at, |t, s, seen| seen || s > t && s <= t + by.round() as usize, f64::NEG_INFINITY)
    });
    edit.params.insert(0, ("kind", json!("future")));
    masked(list, &MASK_INVERTED, "", |_, _, seen| !seen, f64::NEG_INFINITY);
    masked(list, &MASK_INVERTED, "token-seen", |t, s, seen| !seen || s == t, f64::NEG_INFINITY);
    // 0 for -inf; or any other number, to begin a fit from.
    list.add(&MASK_FILL, vec![("fill", json!(0.0)), ("how", json!(Fill::Replaced.name()))], |at| {
        mask(at, |_, _, seen| seen, 0.0)
    });
    filled(list, -8.0, Fill::Replaced);
    filled(list, -8.0, Fill::Added);
    // The queries of a chunk stand at its first keys
    list.add(&MASK_SHIFTED, vec![("kind", json!("top-left"))], |at| {
        let start = at.chunk.start;
        mask(at, move |t, s, seen| if start == 0 { seen } else { s + start <= t }, f64::NEG_INFINITY)
    });
    for cap in [50.0, 30.0, 20.0] {
        let right = *right;
        list.op_with(&SCORE_SOFTCAP, "cap", cap, move |cap| Op::Scores(Scores { softcap: Some(cap), ..right }));
    }
    // The mask is multiplied in after the softmax.
    let open = Op::Scores(Scores { causal: false, window: None, ..*right });
    list.op(&MASK_AFTER_SOFTMAX, vec![], open);
}

/// No mask at all.
pub(super) fn omitted(list: &mut List<'_>, right: &Scores) {
    list.op(&MASK_OMITTED, vec![], Op::Scores(Scores { causal: false, window: None, ..*right }));
}

fn is_near(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < SAME_PARAMETER
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
        list.op(&WINDOW_SIZE, vec![("window", name)], Op::Scores(Scores { window, ..*right }));
    }
}

fn masked(
    list: &mut List<'_>,
    mistake: &'static Mistake,
    kind: &'static str,
    seen: fn(usize, usize, bool) -> bool,
    fill: f64,
) {
    let params = if kind.is_empty() { vec![] } else { vec![("kind", json!(kind))] };
    list.add(mistake, params, move |at| mask(at, seen, fill));
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
    let edit = list.tunable(&MASK_FILL, "fill", fill, move |fill, at| {
        let Op::Scores(right) = &at.step.op else { return None };
        let open = at.doing(Op::Scores(Scores { causal: false, window: None, ..*right }))?;
        Some(at.kept(with_fill(open, right, fill, how)?))
    });
    edit.params.push(("how", json!(how.name())));
}

/// The same where the softmax applies the mask, to scores that were recorded without it.
fn filled_within(list: &mut List<'_>, right: Scores, fill: f64, how: Fill) {
    let edit = list.tunable(&MASK_FILL, "fill", fill, move |fill, at| {
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
        (2 * values.len() > shown.len()).then(|| snapped(values[values.len() / 2], PLAIN_FILL) + 0.0)
    };
    let replaced = fit(shown.to_vec()).map(|fill| (fill, Fill::Replaced));
    let added = fit(shown.iter().zip(open).map(|(own, open)| own - open).collect());
    // Nothing added is no mask at all.
    let added = added.filter(|fill| fill.abs() > NO_FILL).map(|fill| (fill, Fill::Added));
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
fn mask(at: &StepContext<'_>, seen: impl Fn(usize, usize, bool) -> bool, fill: f64) -> Out {
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
pub(super) fn visible(scores: &Scores, query: usize, key: usize) -> bool {
    (!scores.causal || key <= query) && scores.window.is_none_or(|w| key + w > query)
}

/// The fill of the mask, as the candidate's scores show it.
pub(super) fn fitted(list: &mut List<'_>, right: &Scores, seen: &Seen<'_>) {
    let open = seen.inputs.first().map(|qk| qk.mapv(|x| capped(right, x * right.scale)));
    if let Some(open) = open.filter(|open| open.shape() == seen.own.shape()) {
        let of = |values| hidden_cells(values, right).into_iter().map(|(_, x)| x).collect::<Vec<f64>>();
        for (fill, how) in fills(&of(seen.own), &of(&open)) {
            filled(list, fill, how);
        }
    }
}

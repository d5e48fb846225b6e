//! Scores of attention: scale, cap, mask, softmax, and which heads read which.

use firstdiff_compare::MASKED;
use std::sync::Arc;

use firstdiff_program::{At, Change, Edit, Operand, Scalar, View};
use firstdiff_trace::F8;
use ndarray::{Array2, ArrayD, Axis};
use serde_json::json;

use super::scale::by_keyword;
use crate::mistakes::attention::{
    CONTEXT_LAYOUT, KV_CACHE_SHIFT, KV_CACHE_STALE, KV_HEAD_MAP, SINK_OMITTED, SOFTMAX_AXIS, SOFTMAX_BASE,
};
use crate::mistakes::head::LOGIT_SOFTCAP;
use crate::mistakes::precision::PRECISION;
use crate::mistakes::recorded::POSITION_BIAS;
use crate::mistakes::rounding::{Grid, Kind, weight_grids};
use crate::mistakes::scores::{
    MASK_AFTER_SOFTMAX, MASK_FILL, MASK_INVERTED, MASK_OMITTED, MASK_SHIFTED, SCORE_SCALE, SCORE_SOFTCAP, WINDOW_SIZE,
};
use crate::mistakes::{Mistake, Params};
use crate::program::arrays::{array, floats, in_rows};
use crate::program::change::{computed, in_order, kept, numbers, plus, softmax, times};
use crate::program::context::Context;
use crate::program::form::Form;
use crate::program::forms::turn::{in_bf16, in_f16};
use crate::tolerance::search::SAME_CAP;

pub(super) fn forms(context: &Context<'_>, op: usize) -> Vec<Form> {
    let of_both = |a: Option<Vec<Form>>, b: Option<Vec<Form>>| Some([a, b].into_iter().flatten().flatten().collect());
    let found = match context.base(op) {
        "tanh" => of_cap(context, op),
        "add" | "where" | "masked_fill" => of_mask(context, op),
        "softmax" | "_softmax" => of_softmax(context, op),
        "cat" => of_both(of_sinks(context, op), of_cache(context, op)),
        "baddbmm" => of_product(context, op),
        "clone" | "reshape" | "contiguous" | "_unsafe_view" => of_both(of_copies(context, op), of_merge(context, op)),
        "repeat_interleave" => of_repeat(context, op),
        _ => None,
    };
    found.unwrap_or_default()
}

/// c tanh(x / c).
fn of_cap(context: &Context<'_>, op: usize) -> Option<Vec<Form>> {
    let x = context.tensor(op, 0)?;
    let before = context.maker(op, x)?;
    let after = context.program.readers(op).iter().copied().find(|&reader| context.base(reader) == "mul");
    let ((first, number), after) = (context.number(before)?, after?);
    // Divided by the cap, or multiplied by one over it.
    let inner: fn(f64) -> f64 = match context.base(before) {
        "div" => |cap| cap,
        "mul" => |cap| 1.0 / cap,
        _ => return None,
    };
    let (second, cap) = context.number(after)?;
    // Another number behind than before is no cap.
    (number != 0.0 && (inner(cap) / number - 1.0).abs() <= SAME_CAP).then_some(())?;
    let mistake = if context.leads_to_probs(op) { &SCORE_SOFTCAP } else { &LOGIT_SOFTCAP };
    let (before_with, after_with) = (numbers(context.op(before), first), numbers(context.op(after), second));
    let any = move |cap: f64| {
        vec![
            Edit { at: At::Op(before), change: before_with(inner(cap)) },
            Edit { at: At::Op(after), change: after_with(cap) },
        ]
    };
    Some(vec![Form::one(mistake, vec![], op, kept(x)).due(cap), Form::any_of(mistake, "cap", cap, any).due(cap)])
}

/// The scores before their mask, the mask, what was added to the mask alone where that is known, and which keys a query sees by it.
#[derive(Clone)]
struct Masked {
    views: Vec<View>,
    sees: fn(f64) -> bool,
    /// What is added to a score that is seen: a mask that is added holds biases as well.
    bias: fn(f64) -> f64,
    /// What is made of the masked scores, where the mask has no operation of its own.
    then: fn(ArrayD<f64>) -> Option<ArrayD<f64>>,
}

impl Masked {
    fn of(context: &Context<'_>, op: usize) -> Option<Masked> {
        let tensors = context.tensors(op);
        let activation = |view: &View| context.is_activation(view);
        let (x, mask, sees): (&View, &View, fn(f64) -> bool) = match (context.base(op), &tensors[..]) {
            ("add", &[(_, x), (_, mask)]) if activation(x) && !activation(mask) => (x, mask, |m| m > MASKED),
            ("add", &[(_, mask), (_, x)]) if activation(x) && !activation(mask) => (x, mask, |m| m > MASKED),
            ("where", &[(0, mask), (1, x), ..]) if activation(x) => (x, mask, |m| m != 0.0),
            ("masked_fill", &[(0, x), (1, mask), ..]) if activation(x) => (x, mask, |m| m == 0.0),
            _ => return None,
        };
        let attends = mask.elements() > 1 && !context.is_weight(mask) && context.leads_to_probs(op);
        let bias = if context.base(op) == "add" { |m: f64| m } else { |_: f64| 0.0 };
        attends.then(|| {
            let biased = bias_of(context, op, mask).filter(|_| context.base(op) == "add");
            let views = [x, mask].into_iter().chain(biased).cloned().collect();
            Masked { views, sees, bias, then: Some }
        })
    }

    fn read(&self) -> Vec<&View> {
        self.views.iter().collect()
    }

    /// How many queries and keys there are, and what is hidden from each query of the first head.
    fn hidden(&self, context: &Context<'_>, op: usize) -> Option<(usize, usize, Array2<bool>)> {
        let table = context.table(op, &self.views[1])?;
        let &[.., queries, keys] = &self.views[0].shape[..] else { return None };
        let all = table.broadcast(self.views[0].shape.as_slice())?;
        let first = all.rows().into_iter().take(queries).flat_map(|row| row.to_vec()).map(|m| !(self.sees)(m));
        Some((queries, keys, Array2::from_shape_vec((queries, keys), first.collect()).ok()?))
    }

    /// How many keys the last query of the first head sees, where that is not all.
    fn window(&self, context: &Context<'_>, op: usize) -> Option<Option<usize>> {
        let (queries, keys, hidden) = self.hidden(context, op)?;
        let seen = hidden.row(queries.checked_sub(1)?).iter().filter(|hidden| !**hidden).count();
        Some((seen < keys).then_some(seen))
    }

    /// A query sees the keys up to its own row of the chunk.
    fn top_left(&self) -> Change {
        computed(&self.read(), |x| {
            let [.., queries, keys] = x[0].shape() else { return None };
            let (queries, keys) = (*queries, *keys);
            let mut out = x[0].clone();
            for (row, mut out) in out.rows_mut().into_iter().enumerate() {
                (row % queries + 1..keys).for_each(|key| out[key] = HIDDEN);
            }
            (queries < keys).then_some(out)
        })
    }

    /// A number is added to what is hidden, in the place of what hides it alone.
    fn added(&self, fill: f64) -> Change {
        let Masked { sees: saw, bias, .. } = *self;
        computed(&self.read(), move |x| {
            let mask = x[1].broadcast(x[0].raw_dim())?;
            let hides = mask.iter().any(|&m| !saw(m));
            let [.., queries, keys] = x[0].shape() else { return None };
            let seen = mask.rows().into_iter().filter_map(|row| row.iter().rposition(|&m| saw(m))).max();
            let (_, held) = first_and_held(*queries, *keys, seen);
            let mut added = mask.mapv(|m| if saw(m) { 0.0 } else { fill });
            added.rows_mut().into_iter().for_each(|mut row| (held..*keys).for_each(|key| row[key] = HIDDEN));
            hides.then(|| plus(&plus(&x[0], &biases(bias, x)?)?, &added))?
        })
    }

    /// What is added beside the mask, slopes by distance, times a factor.
    fn scaled(&self, factor: f64) -> Change {
        computed(&self.read(), move |x| {
            let bias = x[1].mapv(|m| if m > MASKED { factor * m } else { m });
            x[1].iter().any(|m| *m > MASKED && *m != 0.0).then(|| plus(&x[0], &bias))?
        })
    }

    /// The mask where a query at `position` sees a key by `sees`, of what it saw before.
    fn seeing(&self, sees: impl Fn(&dyn Fn(i64) -> bool, i64, i64) -> bool + Send + Sync + 'static) -> Change {
        self.change(HIDDEN, sees)
    }

    /// The same keys seen, and another number in the place of each hidden score.
    fn filled(&self, fill: f64) -> Change {
        self.change(fill, |saw, _, key| saw(key))
    }

    /// The mask where a query at `position` sees a key by `sees`, of what it saw before; and what hidden scores are.
    fn change(
        &self,
        hidden: f64,
        sees: impl Fn(&dyn Fn(i64) -> bool, i64, i64) -> bool + Send + Sync + 'static,
    ) -> Change {
        let Masked { sees: saw, bias, then, .. } = *self;
        computed(&self.read(), move |x| {
            let biased = plus(&x[0], &biases(bias, x)?)?;
            let (x, mask) = (&x[0], x[1].broadcast(x[0].raw_dim())?);
            let [.., queries, keys] = x.shape() else { return None };
            let (queries, keys) = (*queries, *keys);
            let seen = mask.rows().into_iter().filter_map(|row| row.iter().rposition(|&m| saw(m))).max();
            let (first, held) = first_and_held(queries, keys, seen);
            let mut out = biased;
            // One that hides what is hidden is the same mask.
            let mut differs = false;
            for (row, (mut out, mask)) in out.rows_mut().into_iter().zip(mask.rows()).enumerate() {
                // Of a query that stands before all keys it is negative: another sequence's.
                let position = first + (row % queries) as i64;
                let before =
                    |key: i64| usize::try_from(key).ok().and_then(|key| mask.get(key)).is_some_and(|&m| saw(m));
                for key in 0..keys {
                    let is_seen = saw(mask[key]) && key >= held || key < held && sees(&before, position, key as i64);
                    // What is not written yet is no score.
                    let hidden = if key < held { hidden } else { HIDDEN };
                    differs |= is_seen != saw(mask[key]) || !is_seen && hidden != HIDDEN;
                    out[key] = if is_seen { out[key] } else { hidden };
                }
            }
            then(out).filter(|_| differs)
        })
    }
}

/// What a mask was added to, where it is a sum: a score that is no longer hidden has that.
fn bias_of<'c>(context: &'c Context<'_>, op: usize, mask: &View) -> Option<&'c View> {
    let at = context.maker(op, mask).filter(|&at| context.base(at) == "add")?;
    let [(_, a), (_, b)] = context.tensors(at)[..] else { return None };
    let hides = |view: &View| context.table(at, view).is_some_and(|table| table.iter().any(|m| *m <= MASKED));
    match (hides(a), hides(b)) {
        (true, false) => Some(b),
        (false, true) => Some(a),
        _ => None,
    }
}

/// What is added to the scores beside their mask.
fn biases(bias: fn(f64) -> f64, x: &[ArrayD<f64>]) -> Option<ArrayD<f64>> {
    match x.get(2) {
        Some(own) => Some(own.clone()),
        None => Some(x[1].mapv(|m| if m.is_finite() && m > MASKED { bias(m) } else { 0.0 })),
    }
}

/// The position of the first query, and how many keys there are: those of a cache that no query sees are not written yet.
fn first_and_held(queries: usize, keys: usize, seen: Option<usize>) -> (i64, usize) {
    let held = if queries == keys { keys } else { seen.map_or(keys, |last| last + 1) };
    (held as i64 - queries as i64, held)
}

/// Whether an operation hides from each query what follows it; of a single query nothing is known against that.
pub(crate) fn sees_the_past_alone(context: &Context<'_>, op: usize) -> bool {
    Masked::of(context, op).and_then(|masked| masked.hidden(context, op)).is_some_and(|(queries, keys, hidden)| {
        let (first, held) = first_and_held(queries, keys, last_seen(&hidden));
        (0..queries).all(|row| (0..held).all(|key| hidden[[row, key]] || key as i64 <= first + row as i64))
    })
}

/// Of a mask with a window: whether it hides what stands before a query, so that it would be seen if it did not. `None` of a mask without one.
pub(crate) fn window(context: &Context<'_>, op: usize) -> Option<bool> {
    let masked = Masked::of(context, op)?;
    let (queries, keys, hidden) = masked.hidden(context, op)?;
    let (first, held) = first_and_held(queries, keys, last_seen(&hidden));
    let before = |row: usize| (0..held).take_while(move |&key| (key as i64) < first + row as i64);
    let hides = (0..queries).any(|row| before(row).any(|key| hidden[[row, key]]));
    // A distance that no two tokens have.
    let is_far = |at: usize| {
        let shifts = matches!(context.base(at), "add" | "sub" | "rsub" | "tril" | "triu" | "lt" | "le" | "gt" | "ge");
        let operands = context.op(at).operands.iter();
        shifts
            && operands
                .filter_map(|operand| match operand {
                    Operand::Scalar(Scalar::Int(x)) => Some(x.unsigned_abs()),
                    _ => None,
                })
                .any(|x| x >= keys as u64)
    };
    let is_windowed = hides || context.makers(op, &masked.views[1]).into_iter().any(is_far);
    is_windowed.then_some(hides)
}

/// The last key that any query sees.
fn last_seen(hidden: &Array2<bool>) -> Option<usize> {
    hidden.rows().into_iter().filter_map(|row| row.iter().rposition(|hides| !hides)).max()
}

fn of_mask(context: &Context<'_>, op: usize) -> Option<Vec<Form>> {
    let masked = Masked::of(context, op)?;
    // One mask in two operations is one mistake.
    let mut chain: Vec<(usize, Masked)> = Vec::new();
    let mut at = context.origin(op, &masked.views[0]);
    while let Some((before, found)) =
        at.filter(|&at| context.has(at)).and_then(|at| Some((at, Masked::of(context, at)?)))
    {
        at = context.origin(before, &found.views[0]);
        chain.push((before, found));
    }
    let one = |mistake, params, change| {
        let mut edits = vec![Edit { at: At::Op(op), change }];
        edits.extend(chain.iter().map(|(before, found)| Edit { at: At::Op(*before), change: kept(&found.views[0]) }));
        Form::new(mistake, params, edits)
    };
    let due = masked.window(context, op).map(|window| match window {
        None => "none here".to_owned(),
        Some(keys) if sees_the_past_alone(context, op) => format!("{keys} here"),
        Some(keys) => format!("{} each way here", keys.saturating_sub(1)),
    });
    let of_window = |params, change| one(&WINDOW_SIZE, params, change).having(due.clone());
    let ignored = masked.seeing(|saw, position, key| key <= position || saw(key));
    let inverted_but_own = masked.seeing(|saw, position, key| !saw(key) || key == position);
    let mut forms = vec![
        one(&MASK_OMITTED, vec![], masked.seeing(|_, _, _| true)),
        of_window(vec![("window", json!("ignored"))], ignored),
        one(&MASK_INVERTED, vec![], masked.seeing(|saw, _, key| !saw(key))),
        one(&MASK_INVERTED, vec![("kind", json!("token-seen"))], inverted_but_own),
    ];
    for by in 1..=MOST_AHEAD {
        let kinds = |kind: &str| {
            let by = (by > 1).then(|| ("by", json!(by)));
            [("kind", json!(kind))].into_iter().chain(by).collect::<Vec<_>>()
        };
        let future = masked.seeing(move |saw, _, key| (key - by..=key).any(|key| saw(key.max(0))));
        let past = masked.seeing(move |saw, position, key| saw(key) && key <= position - by);
        // Of a query that would see none the first is left.
        let all_but = move |position: i64, key: i64| key <= position - by || key == 0;
        let past_but_first = masked.seeing(move |saw, position, key| saw(key) && all_but(position, key));
        forms.push(one(&MASK_SHIFTED, kinds("future"), future));
        if by <= MOST_SHIFTS {
            forms.push(one(&MASK_SHIFTED, kinds("past"), past));
            let all_but = [kinds("past"), vec![("sees", json!("the first"))]].concat();
            forms.push(one(&MASK_SHIFTED, all_but, past_but_first));
        }
    }
    let looks_ahead = !sees_the_past_alone(context, op);
    // Of queries that see what follows them, a window is as long that way.
    let windows = windows(&masked, looks_ahead, |saw, position| saw(position + 1));
    forms.extend(windows.into_iter().map(|(params, change)| of_window(params, change)));
    forms.push(one(&MASK_SHIFTED, vec![("kind", json!("top-left"))], masked.top_left()));
    for fill in [0.0, -1.0, -10.0, -100.0, -1e3, -1e4] {
        let params = |how: &str| vec![("fill", json!(fill)), ("how", json!(how))];
        forms.push(one(&MASK_FILL, params("replaced"), masked.filled(fill)));
        forms.push(one(&MASK_FILL, params("added"), masked.added(fill)));
    }
    let owned = masked.clone();
    forms.push(Form::any(&MASK_FILL, "fill", -10.0, At::Op(op), move |fill| owned.added(fill)));
    let owned = masked.clone();
    let replaced = Form::any(&MASK_FILL, "fill", -10.0, At::Op(op), move |fill| owned.filled(fill));
    forms.push(replaced.saying(vec![("how", json!("replaced"))]));
    // What is added is more than a mask.
    let table = context.table(op, &masked.views[1]);
    let is_bias = table.is_none_or(|table| table.iter().any(|m| *m > MASKED && *m != 0.0));
    if context.base(op) == "add" && is_bias {
        forms.push(one(&POSITION_BIAS, vec![("factor", json!(0.0))], masked.scaled(0.0)));
        forms.push(Form::any(&POSITION_BIAS, "factor", 1.0, At::Op(op), move |factor| masked.scaled(factor)));
    }
    Some(forms)
}

/// Windows of each length: how many keys a query sees up to itself, or each way where it sees what follows it.
fn windows(
    masked: &Masked,
    looks_ahead: bool,
    sees_next: fn(&dyn Fn(i64) -> bool, i64) -> bool,
) -> Vec<(Params, Change)> {
    let keys = masked.views[0].shape.last().copied().unwrap_or(0).min(MOST_WINDOWS) as i64;
    let form = |window: i64| {
        let change = masked.seeing(move |saw, position, key| match key <= position {
            true => key > position - window,
            false => sees_next(saw, position) && key < position + window,
        });
        let length = if looks_ahead { ("each_way", json!(window - 1)) } else { ("window", json!(window)) };
        (vec![length], change)
    };
    (1..keys).map(form).collect()
}

/// Windows that are tried, and by how many keys a mask may be off.
const MOST_WINDOWS: usize = 64;
const MOST_SHIFTS: i64 = 3;
/// By how many keys a query may see too far.
const MOST_AHEAD: i64 = 8;
/// What hides a score: all that a query sees being hidden, it sees all alike.
const HIDDEN: f64 = -1e38;

fn of_softmax(context: &Context<'_>, op: usize) -> Option<Vec<Form>> {
    let x = context.tensor(op, 0).filter(|_| context.is_attention_softmax(op))?;
    let base = computed(&[x], |x| softmax(&x[0].mapv(|x| x * std::f64::consts::LN_2)));
    let mut forms = vec![Form::one(&SOFTMAX_BASE, vec![], op, base)];
    let rank = x.shape.len();
    for (kind, back) in [("queries", 2), ("heads", 3)].into_iter().filter(|(_, back)| *back <= rank) {
        let change = computed(&[x], move |x| {
            let mut turned = x[0].clone();
            turned.swap_axes(rank - 1, rank - back);
            let mut out = softmax(&turned.as_standard_layout().into_owned())?;
            out.swap_axes(rank - 1, rank - back);
            Some(out)
        });
        forms.push(Form::one(&SOFTMAX_AXIS, vec![("kind", json!(kind))], op, change));
    }
    let extra = computed(&[x], |x| {
        let mut out = softmax(&x[0])?;
        let last = Axis(out.ndim().checked_sub(1)?);
        for (mut row, scores) in out.lanes_mut(last).into_iter().zip(x[0].lanes(last)) {
            let top = scores.iter().copied().fold(0.0f64, f64::max);
            let sum: f64 = (-top).exp() + scores.iter().map(|x| (x - top).exp()).sum::<f64>();
            row.iter_mut().zip(scores).for_each(|(p, x)| *p = (x - top).exp() / sum);
        }
        Some(out)
    });
    forms.push(Form::one(&SINK_OMITTED, vec![("kind", json!("extra zero"))], op, extra));
    forms.push(after_softmax(context, op, x));
    // Where the reference needs no mask, and nothing stands beside the keys.
    let is_sink = |at: usize| of_sinks(context, at).is_some();
    let has_sinks = context.comes_from(op, NEAR, is_sink, &["matmul", "bmm", "baddbmm"]);
    if !has_sinks && !context.ops().any(|at| Masked::of(context, at).is_some()) {
        let unmasked = Masked { views: vec![x.clone(); 2], sees: |_| true, bias: |_| 0.0, then: |x| softmax(&x) };
        // A mask before the scores that were recorded hides in them what it hides.
        let masked = context.origin(op, x).filter(|&at| Masked::of(context, at).is_some());
        let is_one_query = rank > 1 && x.shape[rank - 2] == 1;
        let looks_ahead = masked.map_or(!is_one_query, |at| !sees_the_past_alone(context, at));
        let windows = windows(&unmasked, looks_ahead, |_, _| true);
        forms.extend(windows.into_iter().map(|(params, change)| Form::one(&WINDOW_SIZE, params, op, change)));
        for by in 1..=MOST_SHIFTS {
            let change = unmasked.seeing(move |_, position, key| key <= position - by || key == 0);
            forms.push(Form::one(&MASK_SHIFTED, vec![("kind", json!("past")), ("by", json!(by))], op, change));
        }
    }
    Some(forms)
}

/// Probabilities of all keys, of which those that the mask hides are set to nothing.
fn after_softmax(context: &Context<'_>, op: usize, x: &View) -> Form {
    let masked =
        context.origin(op, x).filter(|&at| context.has(at)).and_then(|at| Some((at, Masked::of(context, at)?)));
    // A mask beside a bias, of which the sum is made, is no mask alone.
    if let Some((at, Masked { views, sees, .. })) = masked
        && let [scores, mask] = &views[..]
    {
        let after = computed(&[x, mask], move |x| {
            let seen = x[1].mapv(|m| if sees(m) { 1.0 } else { 0.0 });
            seen.iter().any(|seen| *seen == 0.0).then(|| times(&softmax(&x[0])?, &seen))?
        });
        let edits = vec![Edit { at: At::Op(at), change: kept(scores) }, Edit { at: At::Op(op), change: after }];
        return Form::new(&MASK_AFTER_SOFTMAX, vec![], edits);
    }
    // Of what comes out as nothing the mask is seen where the candidate has it.
    let own = context.own.clone();
    let after = computed(&[x], move |x| {
        let out = softmax(&x[0])?;
        let seen = own.mapv(|p| if p == 0.0 { 0.0 } else { 1.0 }).into_shape_with_order(out.raw_dim()).ok()?;
        let hides = out.iter().zip(&seen).any(|(p, seen)| *seen == 0.0 && *p > 0.0);
        // Of scores that were masked before it is not the model's mask.
        let is_unmasked = x[0].iter().all(|score| *score > MASKED);
        (hides && is_unmasked && is_of_positions(&seen)).then(|| times(&out, &seen))?
    });
    Form::one(&MASK_AFTER_SOFTMAX, vec![], op, after)
}

/// Operations between what stands beside the keys and their softmax.
const NEAR: usize = 8;

/// Whether what is seen is a mask: the same in all heads, and of each query one run of keys, that never goes back. Nothing else follows from positions alone.
fn is_of_positions(seen: &ArrayD<f64>) -> bool {
    let [.., queries, keys] = *seen.shape() else { return false };
    let run = |row: &[f64]| {
        let (first, last) = (row.iter().position(|x| *x != 0.0)?, row.iter().rposition(|x| *x != 0.0)?);
        row[first..=last].iter().all(|x| *x != 0.0).then_some((first, last))
    };
    let all: Vec<f64> = seen.iter().copied().collect();
    let mut heads = all.chunks((queries * keys).max(1));
    let Some(first) = heads.next() else { return false };
    let runs: Option<Vec<(usize, usize)>> = first.chunks(keys.max(1)).map(run).collect();
    let goes_on = |runs: Vec<(usize, usize)>| runs.windows(2).all(|two| two[0].0 <= two[1].0 && two[0].1 <= two[1].1);
    heads.all(|head| head == first) && runs.is_some_and(goes_on)
}

/// Brings rows to few bits.
type Round = Arc<dyn Fn(&mut Array2<f64>) + Send + Sync>;

/// Keys, or values, of few bits as a product of two activations reads them.
pub(super) fn of_few_bits(context: &Context<'_>, op: usize) -> Vec<Form> {
    let [(_, a), (_, b)] = context.tensors(op)[..] else { return Vec::new() };
    let is_product =
        matches!(context.base(op), "matmul" | "bmm") && context.is_activation(a) && context.is_activation(b);
    let (keys, weighs) = (context.leads_to_probs(op), a.shape.last());
    let from_probs = || context.origin(op, a).is_some_and(|at| context.is_attention_softmax(at));
    if !is_product || weighs.is_none() || !keys && !from_probs() {
        return Vec::new();
    }
    let name = context.op(op).name.clone();
    let tokens = context.tokens(op);
    let form = |word: String, of_past: bool, round: Round| {
        let name = name.clone();
        let change = computed(&[a, b], move |x| {
            // A row for each position.
            let mut rows = x[1].clone();
            let rank = rows.ndim();
            if keys {
                rows.swap_axes(rank.checked_sub(2)?, rank - 1);
            }
            let (count, shape) = (*rows.shape().get(rank.checked_sub(2)?)?, rows.shape().to_vec());
            let mut flat = in_rows(&rows)?;
            let own = flat.clone();
            round(&mut flat);
            let past = count.checked_sub(tokens).filter(|past| !of_past || *past > 0)?;
            if of_past {
                let new = (0..flat.nrows()).filter(|row| row % count >= past);
                new.for_each(|row| flat.row_mut(row).assign(&own.row(row)));
            }
            let mut rounded = flat.into_dyn().into_shape_with_order(shape).ok()?;
            if keys {
                rounded.swap_axes(rank - 2, rank - 1);
            }
            let operands = [floats(x[0].clone())?, floats(rounded.as_standard_layout().into_owned())?];
            firstdiff_program::apply(&name, &operands.each_ref(), &[])?.first().map(array)
        });
        let mut params = vec![("cache", json!(word))];
        params.extend(of_past.then(|| ("of", json!("past"))));
        Form::one(&PRECISION, params, op, change)
    };
    let mut rounds: Vec<(String, Round)> = vec![
        ("f16".into(), Arc::new(|x| x.mapv_inplace(in_f16))),
        ("bf16".into(), Arc::new(|x| x.mapv_inplace(in_bf16))),
        ("f8 e4m3".into(), Arc::new(|x| x.mapv_inplace(|x| F8::E4m3.saturated(x)))),
        ("f8 e5m2".into(), Arc::new(|x| x.mapv_inplace(|x| F8::E5m2.saturated(x)))),
    ];
    let plain = |grid: &Grid| matches!(grid.kind, Kind::Affine) || grid.kind == Kind::Symmetric { beyond: 0.0 };
    for grid in weight_grids().flatten().filter(plain) {
        rounds.push((grid.words(), Arc::new(move |x| grid.round(x))));
    }
    [false, true]
        .into_iter()
        .flat_map(|of_past| rounds.iter().map(move |(word, round)| (word.clone(), of_past, round.clone())))
        .map(|(word, of_past, round)| form(word, of_past, round))
        .collect()
}

/// Keys or values behind those of the steps before.
fn of_cache(context: &Context<'_>, op: usize) -> Option<Vec<Form>> {
    let [past, new] = context.joined(op)?;
    let rank = past.shape.len();
    let before =
        |view: &View| context.maker(op, view).is_some_and(|maker| context.step_of(maker) < context.step_of(op));
    (rank >= 3 && before(past) && !before(new) && context.is_activation(new)).then_some(())?;
    let out = context.out(op)?;
    let axis = (0..rank).find(|&axis| out.shape.get(axis) != past.shape.get(axis))?;
    let along = Axis(axis);
    let before = context.start(context.onset);
    // In the steps from the onset on alone a cache is looked at as each step wrote it.
    let (own, written) = (vec![past, new], written_so_far(context, op));
    let is_begun = context.step_of(op) >= context.onset;
    let kinds = CACHES.into_iter().filter(|(.., begins_later, _)| is_begun || !begins_later);
    let form = |(mistake, kind, begins_later, slots): (&'static Mistake, &str, bool, Slots)| {
        let change = computed(if begins_later { &written } else { &own }, move |x| {
            let all = ndarray::concatenate(along, &x.iter().map(|x| x.view()).collect::<Vec<_>>()).ok()?;
            let rows = all.len_of(along);
            let past = rows - x.last()?.len_of(along);
            let is_there = !begins_later || before <= past && past < rows;
            let held = in_order(&all, along, &is_there.then(|| slots([before, past, rows]))??);
            (!begins_later || held != all).then_some(held)
        });
        let steps = if begins_later { context.onset as u32..u32::MAX } else { 0..u32::MAX };
        Form { steps, ..Form::one(mistake, vec![("kind", json!(kind))], op, change) }
    };
    Some(kinds.map(form).collect())
}

/// The slots of a cache by the rows that they hold, or `None` where none was written. Told how many rows there are before the mistake began, of earlier steps,
/// and in all; nothing where it cannot be made of so many.
type Slots = fn([usize; 3]) -> Option<Vec<Option<usize>>>;

/// Mistakes of a cache: each with its kind, whether it is one of a cache that is right but for the step that reads it, and the slots.
const CACHES: [(&Mistake, &str, bool, Slots); 8] = [
    (&KV_CACHE_STALE, "decoded never written", false, |[_, past, all]| Some(rows_where(all, |row| row < past))),
    (&KV_CACHE_SHIFT, "early", false, |[_, past, all]| {
        let kept = past.checked_sub(all - past)?;
        Some((0..kept).chain(past..all).map(Some).chain((past..all).map(|_| None)).collect())
    }),
    (&KV_CACHE_SHIFT, "newest first", false, |[_, past, all]| Some((past..all).chain(0..past).map(Some).collect())),
    (&KV_CACHE_SHIFT, "prompt late", false, |[_, past, all]| {
        Some([0].into_iter().chain(0..past.checked_sub(1)?).chain(past..all).map(Some).collect())
    }),
    (&KV_CACHE_STALE, "last-one's", true, |[_, past, all]| {
        Some((0..all).map(|row| if row < past { Some(row) } else { row.checked_sub(all - past) }).collect())
    }),
    (&KV_CACHE_STALE, "newest missing", true, |[_, past, all]| Some(rows_where(all, |row| row < past))),
    (&KV_CACHE_STALE, "earlier decoded missing", true, |[before, past, all]| {
        Some(rows_where(all, |row| row < before || row >= past))
    }),
    (&KV_CACHE_SHIFT, "late", true, |[before, _, all]| {
        Some((0..before).map(Some).chain([None]).chain((before..all - 1).map(Some)).collect())
    }),
];

/// Slots that hold their own row where `is_written` holds, and none elsewhere.
fn rows_where(all: usize, is_written: impl Fn(usize) -> bool) -> Vec<Option<usize>> {
    (0..all).map(|row| is_written(row).then_some(row)).collect()
}

/// What stands in the cache behind a step, as each step wrote it: what an earlier one reads otherwise is not what it wrote.
fn written_so_far<'c>(context: &'c Context<'_>, op: usize) -> Vec<&'c View> {
    let of_part = |view: &'c View| -> Vec<&'c View> {
        let maker = context.maker(op, view).filter(|&at| context.base(at) == "cat" && context.has(at));
        let is_whole = |at: &usize| context.out(*at) == Some(view) && context.step_of(*at) > 0;
        maker.filter(is_whole).map_or_else(|| vec![view], |at| written_so_far(context, at))
    };
    context.op(op).operands.first().into_iter().flat_map(Operand::views).flat_map(of_part).collect()
}

/// beta table + alpha q k.
fn of_product(context: &Context<'_>, op: usize) -> Option<Vec<Form>> {
    context.leads_to_probs(op).then_some(())?;
    let scale = by_keyword(context, op, "alpha", &SCORE_SCALE, |right| vec![1.0, right * right]);
    Some(scale.into_iter().chain(by_keyword(context, op, "beta", &POSITION_BIAS, |_| vec![0.0])).collect())
}

/// A learned score that every query has beside its keys.
fn of_sinks(context: &Context<'_>, op: usize) -> Option<Vec<Form>> {
    let [scores, sinks] = context.joined(op)?;
    let from_weight = context.is_weight(sinks) || context.origin(op, sinks).is_none() && !context.is_activation(sinks);
    (from_weight && context.is_activation(scores) && context.leads_to_probs(op)).then_some(())?;
    let change = computed(&[scores, sinks], |x| {
        let last = Axis(x[0].ndim().checked_sub(1)?);
        let none = ArrayD::from_elem(x[1].raw_dim(), f64::NEG_INFINITY);
        ndarray::concatenate(last, &[x[0].view(), none.view()]).ok()
    });
    Some(vec![Form::one(&SINK_OMITTED, vec![], op, change)])
}

/// Key/value heads that several query heads read, as a copy: [.., K, rep, T, d].
fn of_copies(context: &Context<'_>, op: usize) -> Option<Vec<Form>> {
    let view = context.tensor(op, 0)?;
    let axis = view.strides.iter().zip(&view.shape).position(|(stride, extent)| *stride == 0 && *extent > 1)?;
    (axis > 0 && context.is_activation(view)).then_some(())?;
    of_heads(context, op, (view, axis - 1, true), view.shape[axis - 1] * view.shape[axis])
}

/// Each map of so many heads along an axis of a view, behind which another axis may repeat each of them.
fn of_heads(
    context: &Context<'_>,
    op: usize,
    (view, axis, is_repeated): (&View, usize, bool),
    count: usize,
) -> Option<Vec<Form>> {
    let shape = context.out(op).map_or_else(Vec::new, |out| out.shape.clone());
    let form = |(name, map): (&str, HeadMap)| {
        let shape = shape.clone();
        let change = computed(&[view], move |x| {
            let once = if is_repeated { x[0].index_axis(Axis(axis + 1), 0) } else { x[0].view() };
            let heads = once.len_of(Axis(axis)).max(1);
            let read: Vec<usize> = (0..count).map(|head| map(head, heads)).collect();
            once.select(Axis(axis), &read).into_shape_with_order(shape.as_slice()).ok()
        });
        Form::one(&KV_HEAD_MAP, vec![("map", json!(name))], op, change)
    };
    Some(HEAD_MAPS.map(form).to_vec())
}

/// Which of so many heads a query head reads.
type HeadMap = fn(usize, usize) -> usize;
const HEAD_MAPS: [(&str, HeadMap); 4] = [
    ("h % K", |head, heads| head % heads),
    ("0", |_, _| 0),
    ("h / K", |head, heads| (head / heads).min(heads - 1)),
    ("min(h, K-1)", |head, heads| head.min(heads - 1)),
];

/// The same by an operation of its own.
fn of_repeat(context: &Context<'_>, op: usize) -> Option<Vec<Form>> {
    let (view, out) = (context.tensor(op, 0)?, context.out(op)?);
    let axis = (0..view.shape.len()).find(|&axis| out.shape.get(axis) != view.shape.get(axis))?;
    // Tables of a rotation are repeated along their last axis.
    (context.is_activation(view) && axis + 1 < view.shape.len()).then_some(())?;
    of_heads(context, op, (view, axis, false), out.shape[axis])
}

/// Heads that are merged: [T,H,d] of what stands as [H,T,d].
fn of_merge(context: &Context<'_>, op: usize) -> Option<Vec<Form>> {
    let (view, out) = (context.tensor(op, 0)?, context.out(op)?);
    let made = context.origin(op, view).is_some_and(|at| matches!(context.base(at), "matmul" | "bmm"));
    let rank = view.shape.len();
    (made && rank >= 3 && !view.is_contiguous() && context.is_activation(view)).then_some(())?;
    let form = |params, axes: [usize; 2]| {
        let shape = out.shape.clone();
        let change = computed(&[view], move |x| {
            let mut x = x[0].clone();
            x.swap_axes(axes[0], axes[1]);
            x.as_standard_layout().into_owned().into_shape_with_order(shape.as_slice()).ok()
        });
        Form::one(&CONTEXT_LAYOUT, params, op, change)
    };
    Some(vec![form(vec![], [rank - 3, rank - 2]), form(vec![("kind", json!("d-first"))], [rank - 2, rank - 1])])
}

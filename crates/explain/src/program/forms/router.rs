//! Routers of experts: which are chosen, and with what weights.

use firstdiff_program::{At, Change, Operand, Scalar, Tensor, View};
use ndarray::{ArrayD, Axis, Dimension};
use serde_json::json;
use std::sync::Arc;

use crate::mistakes::recorded::{ROUTER_BIAS, ROUTER_NORM, ROUTER_SCALE, ROUTER_TOPK, SHARED_GATE};
use crate::program::arrays::{array, floats};
use crate::program::change::{Function, computed, function, kept, numbers, over, softmax, with};
use crate::program::context::Context;
use crate::program::form::Form;

pub(super) fn forms(context: &Context<'_>, op: usize) -> Vec<Form> {
    let found = match context.base(op) {
        "softmax" | "_softmax" if is_router(context, op) => score(context, op, "sigmoid", |x| function("sigmoid", x)),
        "sigmoid" if is_router(context, op) => score(context, op, "softmax", softmax),
        "add" => of_bias(context, op),
        "div" => of_norm(context, op),
        "topk" => of_choice(context, op),
        "gather" => of_weights(context, op),
        "mul" => Some(of_scale(context, op).into_iter().flatten().chain(of_shared(context, op)).collect()),
        _ => None,
    };
    found.unwrap_or_default()
}

fn is_choice(context: &Context<'_>, op: usize) -> bool {
    context.base(op) == "topk"
}

/// Whether it scores experts: what it gives is chosen from.
fn is_router(context: &Context<'_>, op: usize) -> bool {
    let chooses = |at: usize| is_choice(context, at);
    context.is_read_by(op, chooses) || context.leads_to(op, chooses) || comes_from_choice(context, op)
}

/// Whether what it reads was chosen.
fn comes_from_choice(context: &Context<'_>, op: usize) -> bool {
    let is_chosen = |at: usize| matches!(context.base(at), "topk" | "gather");
    context.comes_from(op, NEAR, is_chosen, &["linear", "matmul", "bmm", "index_add"])
}

/// Operations between a choice and what its weights are used for.
const NEAR: usize = 8;

fn score(context: &Context<'_>, op: usize, kind: &'static str, by: Function) -> Option<Vec<Form>> {
    let x = context.tensor(op, 0)?;
    Some(vec![Form::one(&ROUTER_BIAS, vec![("kind", json!(kind))], op, computed(&[x], move |x| by(&x[0])))])
}

/// A term for each expert that only the choice sees.
fn of_bias(context: &Context<'_>, op: usize) -> Option<Vec<Form>> {
    let [_, (_, x)] = context.one_of_two(op, |view| context.is_weight(view))?;
    context.leads_to(op, |at| is_choice(context, at)).then_some(())?;
    let mut forms = vec![Form::one(&ROUTER_BIAS, vec![("kind", json!("ignored"))], op, kept(x))];
    let reads_scores = |at: &usize| {
        context.base(*at) == "gather" && context.tensor(*at, 0).is_some_and(|view| view.buffer == x.buffer)
    };
    let gather = context.ops().find(reads_scores);
    if let Some((gather, out)) = gather.zip(context.out(op)) {
        let change = with(context.op(gather), 0, Operand::View(out.clone()));
        forms.push(Form::one(&ROUTER_BIAS, vec![("kind", json!("in-weights"))], gather, change));
    }
    Some(forms)
}

/// Weights over their sum.
fn of_norm(context: &Context<'_>, op: usize) -> Option<Vec<Form>> {
    let [(_, x), (_, sum)] = context.tensors(op)[..] else { return None };
    let is_sum = context.origin(op, sum).is_some_and(|at| matches!(context.base(at), "sum" | "add" | "clamp"));
    let is_norm = is_sum && sum.shape.last() == Some(&1) && comes_from_choice(context, op);
    is_norm.then(|| vec![Form::one(&ROUTER_NORM, vec![("kind", json!("not-normalised"))], op, kept(x))])
}

fn over_sum(x: &ArrayD<f64>) -> Option<ArrayD<f64>> {
    let last = Axis(x.ndim().checked_sub(1)?);
    over(x, &x.sum_axis(last).insert_axis(last))
}

/// The chosen scores, and which they are.
fn of_choice(context: &Context<'_>, op: usize) -> Option<Vec<Form>> {
    let (x, out) = (context.tensor(op, 0)?, context.out(op)?);
    // What another choice is made by scores groups of experts. Where the numbers alone are read, weights are gathered by them.
    let reads_values = |reader: usize| context.tensors(reader).iter().any(|(_, view)| view.buffer == out.buffer);
    let is_last = !context.leads_to(op, |at| is_choice(context, at));
    (is_last && context.is_read_by(op, reads_values)).then_some(())?;
    let count = out.shape.last().copied().unwrap_or(0);
    let change = |weigh: Arc<dyn Fn(ArrayD<f64>) -> Option<ArrayD<f64>> + Send + Sync>| {
        let instead = move |tensors: &[Tensor<'_>]| {
            let mut chosen =
                firstdiff_program::apply("topk", &[tensors.first()?], &[("k", Scalar::Int(count as i64))])?;
            let values = chosen.first_mut()?;
            *values = floats(weigh(array(values))?)?;
            Some(chosen)
        };
        Change::Values(vec![x.clone()], Arc::new(instead))
    };
    // What takes no part weighs nothing, behind a function too.
    let is_scored = context.leads_to(op, |at| matches!(context.base(at), "softmax" | "_softmax" | "sigmoid"));
    let none = if is_scored { f64::NEG_INFINITY } else { 0.0 };
    let without = Arc::new(move |values| without_least(values, none));
    Some(vec![
        Form::one(&ROUTER_NORM, vec![("kind", json!("normalised"))], op, change(Arc::new(|values| over_sum(&values)))),
        Form::one(&ROUTER_TOPK, vec![("experts", json!(count.saturating_sub(1)))], op, change(without)),
    ])
}

/// With `none` in the place of the least of each row.
fn without_least(mut values: ArrayD<f64>, none: f64) -> Option<ArrayD<f64>> {
    let last = Axis(values.ndim().checked_sub(1)?);
    if values.len_of(last) < 2 {
        return None;
    }
    for mut row in values.lanes_mut(last) {
        let least = (0..row.len()).min_by(|&a, &b| row[a].total_cmp(&row[b]))?;
        row[least] = none;
    }
    Some(values)
}

/// Scores that are taken by the choice of others.
fn of_weights(context: &Context<'_>, op: usize) -> Option<Vec<Form>> {
    let (x, index) = (context.tensor(op, 0)?, context.tensor(op, 2)?);
    comes_from_choice(context, op).then_some(())?;
    let change = |weigh: fn(ArrayD<f64>) -> Option<ArrayD<f64>>| {
        computed(&[x, index], move |x| {
            let last = x[0].ndim().checked_sub(1)?;
            let mut out = x[1].clone();
            for (at, out) in out.indexed_iter_mut() {
                let mut place: Vec<usize> = at.slice().to_vec();
                place[last] = *out as usize;
                *out = *x[0].get(place.as_slice())?;
            }
            weigh(out)
        })
    };
    let fewer = index.shape.last().map_or(0, |count| count.saturating_sub(1));
    Some(vec![
        Form::one(&ROUTER_NORM, vec![("kind", json!("normalised"))], op, change(|values| over_sum(&values))),
        Form::one(&ROUTER_TOPK, vec![("experts", json!(fewer))], op, change(|values| without_least(values, 0.0))),
    ])
}

fn of_scale(context: &Context<'_>, op: usize) -> Option<Vec<Form>> {
    let (place, factor) = context.number(op).filter(|(_, factor)| *factor != 0.0)?;
    comes_from_choice(context, op).then_some(())?;
    let number = numbers(context.op(op), place);
    Some(vec![
        Form::one(&ROUTER_SCALE, vec![("factor", json!(1.0 / factor))], op, number(1.0)).due(factor),
        Form::any(&ROUTER_SCALE, "factor", 1.0, At::Op(op), move |times| number(times * factor)).due(factor),
    ])
}

/// What all tokens go through, times a gate of its own.
fn of_shared(context: &Context<'_>, op: usize) -> Option<Form> {
    let is_gate = |view: &View| {
        let sigmoid = context.origin(op, view).is_some_and(|at| context.base(at) == "sigmoid");
        sigmoid && view.shape.last() == Some(&1)
    };
    let gated = context.one_of_two(op, is_gate).map(|[_, (_, gated)]| gated);
    let gated = gated.filter(|gated| context.is_projected(op, gated));
    gated.map(|gated| Form::one(&SHARED_GATE, vec![], op, kept(gated)))
}

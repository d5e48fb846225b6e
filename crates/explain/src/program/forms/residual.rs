//! Sums of a stream and a branch, and what the norms behind them read.

use firstdiff_program::{Edit, Operand, View};
use serde_json::json;

use super::{Form, computed, kept, with};
use crate::mistakes::residual::{RESIDUAL_OMITTED, RESIDUAL_PARALLEL, RESIDUAL_SCALE, RESIDUAL_SOURCE};
use crate::program::context::Context;

pub(super) fn forms(context: &Context<'_>, op: usize) -> Vec<Form> {
    match context.base(op) {
        "add" => of_sum(context, op),
        "layer_norm" | "rms_norm" => of_input(context, op),
        _ => Vec::new(),
    }
}

fn of_sum(context: &Context<'_>, op: usize) -> Vec<Form> {
    let [(first, a), (second, b)] = context.tensors(op)[..] else { return Vec::new() };
    let sums = [a, b].iter().all(|view| context.is_activation(view)) && a.shape == b.shape && a.shape.len() <= 3;
    if !sums {
        return Vec::new();
    }
    // The stream is what was there before.
    let made = |view: &View| context.maker(op, view).unwrap_or(0);
    let (stream, branch, place) = if made(a) <= made(b) { (a, b, first) } else { (b, a, second) };
    let source = |sum: &str| vec![("sum", json!(sum))];
    let weighed = |a: f64, b: f64| computed(&[stream, branch], move |x| Some(x[0].mapv(|x| a * x) + x[1].mapv(|x| b * x)));
    let mut forms = vec![
        Form::one(&RESIDUAL_OMITTED, vec![], op, kept(branch)),
        Form::one(&RESIDUAL_SOURCE, source("stream"), op, kept(stream)),
        Form::one(&RESIDUAL_SOURCE, source("2*stream"), op, weighed(2.0, 0.0)),
        Form::one(&RESIDUAL_SOURCE, source("2*branch"), op, weighed(0.0, 2.0)),
    ];
    for (name, view) in like(context, stream, op) {
        let change = with(context.op(op), place, Operand::View(view));
        forms.push(Form::one(&RESIDUAL_SOURCE, source(&format!("{name} + branch")), op, change));
    }
    let owned = [stream.clone(), branch.clone()];
    let by = move |a: fn(f64) -> f64, b: fn(f64) -> f64| {
        let views = owned.clone();
        move |value: f64| {
            let change = computed(&views.each_ref(), move |x| Some(x[0].mapv(|x| a(value) * x) + x[1].mapv(|x| b(value) * x)));
            vec![Edit { op, change }]
        }
    };
    forms.push(Form::any(&RESIDUAL_SCALE, "factor", 1.0, by(|_| 1.0, |x| x)));
    forms.push(Form::any(&RESIDUAL_SCALE, "stream_factor", 1.0, by(|x| x, |_| 1.0)));
    forms
}

/// Other tensors of the same layer that may be taken for one.
fn like(context: &Context<'_>, view: &View, op: usize) -> Vec<(String, View)> {
    let taps = context.program.taps();
    let target = context.slice.target();
    let layer = |tap: usize| context.held.place(tap).tap.layer;
    let mut seen = vec![view.buffer];
    let mut out = Vec::new();
    for tap in 0..taps.len() {
        let found = &taps[tap];
        let near = layer(tap) == layer(target) || layer(tap).map(|layer| layer + 1) == layer(target) || layer(tap).is_none();
        let whole = &context.program.buffers()[found.view.buffer];
        let fits = near && found.step == taps[target].step && found.op < op && whole.shape == view.shape;
        if fits && found.view.elements() == whole.elements() && context.knows(whole) && !seen.contains(&found.view.buffer) {
            seen.push(found.view.buffer);
            out.push((context.held.place(tap).tap.to_string(), whole.clone()));
        }
    }
    out
}

/// A norm of another tensor: of the stream before the attention, where it runs beside it.
fn of_input(context: &Context<'_>, op: usize) -> Vec<Form> {
    let Some(x) = context.tensor(op, 0) else { return Vec::new() };
    let form = |(name, view): (String, View)| {
        let change = with(context.op(op), 0, Operand::View(view));
        Form::one(&RESIDUAL_PARALLEL, vec![("reads", json!(name))], op, change)
    };
    like(context, x, op).into_iter().map(form).collect()
}

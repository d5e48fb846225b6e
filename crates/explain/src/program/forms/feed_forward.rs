//! Activations, and products of a gate with what it lets through.

use firstdiff_program::{At, Scalar, View};
use ndarray::ArrayD;
use serde_json::json;

use crate::mistakes::feed_forward::{ACTIVATION, ACTIVATION_CLAMP, GATE_PRODUCT, GATE_UP_SWAPPED, LIMIT};
use crate::program::change::{Function, computed, each, function, function_with, kept, plus, times, with_number};
use crate::program::context::Context;
use crate::program::form::Form;

/// Activations that models have.
const ACTIVATIONS: [(&str, Function); 13] = [
    ("silu", |x| function("silu", x)),
    ("gelu-erf", |x| function("gelu", x)),
    ("gelu-tanh", gelu_tanh),
    ("relu", |x| Some(x.mapv(|x| x.max(0.0)))),
    ("gelu-quick", |x| Some(gelu_quick(x))),
    ("sigmoid", |x| function("sigmoid", x)),
    ("relu-squared", |x| Some(x.mapv(|x| x.max(0.0).powi(2)))),
    ("none", |x| Some(x.clone())),
    ("tanh", |x| Some(x.mapv(f64::tanh))),
    ("mish", |x| Some(x.mapv(|x| x * x.exp().ln_1p().tanh()))),
    ("elu", |x| Some(x.mapv(|x| if x > 0.0 { x } else { x.exp_m1() }))),
    ("leaky-relu", |x| Some(x.mapv(|x| x.max(0.01 * x)))),
    ("softplus", |x| function("softplus", x)),
];

fn gelu_tanh(x: &ArrayD<f64>) -> Option<ArrayD<f64>> {
    function_with("gelu", x, &[("approximate", Scalar::Text("tanh".into()))])
}

fn gelu_quick(x: &ArrayD<f64>) -> ArrayD<f64> {
    x.mapv(|x| x / (1.0 + (-1.702 * x).exp()))
}

pub(super) fn forms(context: &Context<'_>, op: usize) -> Vec<Form> {
    let mut forms = Vec::new();
    if let Some((x, last)) = activation(context, op) {
        for (name, f) in ACTIVATIONS {
            let change = computed(&[x], move |x| f(&x[0]));
            let form = Form::one(&ACTIVATION, vec![(ACTIVATION.params[0].name, json!(name))], last, change);
            // A tanh among several operations is that of a gelu.
            let own = if last == op { context.base(op) } else { "gelu-tanh" };
            forms.push(form.having(own.to_owned()));
        }
        if let Some(own) = kernel(context, op) {
            let view = x.clone();
            let clamped = move |limit: f64| {
                let own = own.clone();
                computed(&[&view], move |x| acted(&own, &x[0].mapv(|x| x.min(limit))))
            };
            forms.push(Form::any(&ACTIVATION_CLAMP, "limit", 1.0, At::Op(last), clamped));
        }
    }
    match context.base(op) {
        "mul" => forms.extend([of_gate(context, op), of_slope(context, op)].into_iter().flatten().flatten()),
        "add" => forms.extend(of_raised(context, op)),
        "clamp" | "clamp_max" | "clamp_min" => forms.extend(of_limit(context, op).unwrap_or_default()),
        _ => {}
    }
    forms
}

/// The name of an activation's own function.
fn kernel(context: &Context<'_>, op: usize) -> Option<String> {
    let by_tanh = context.op(op).keywords.iter().any(|(key, _)| key == "approximate");
    match context.base(op) {
        "gelu" if by_tanh => Some("gelu-tanh".to_owned()),
        base @ ("gelu" | "silu" | "relu" | "mish") => Some(base.to_owned()),
        _ => None,
    }
}

fn acted(name: &str, x: &ArrayD<f64>) -> Option<ArrayD<f64>> {
    if name == "gelu-tanh" { gelu_tanh(x) } else { function(name, x) }
}

/// What an activation reads, and its last operation: a kernel, or several operations of one module around a tanh.
fn activation<'a>(context: &Context<'a>, op: usize) -> Option<(&'a View, usize)> {
    let x = context.tensor(op, 0).filter(|x| context.is_activation(x))?;
    match context.base(op) {
        "silu" | "gelu" | "relu" | "mish" | "elu" | "leaky_relu" | "hardswish" | "relu6" => Some((x, op)),
        // As a function of its own, that is not a cap.
        "tanh" if context.number(context.maker(op, x)?).is_none_or(|_| context.base(op) != "div") => {
            let call = context.call(op);
            let inside = |at: usize| call.contains(&at);
            let entering = |at: usize| {
                let read = context.activation(at)?;
                context.maker(at, read).is_none_or(|maker| !inside(maker)).then_some(read)
            };
            let last = *call.end();
            let read = call.clone().find_map(entering)?;
            let plain = call.clone().all(|at| matches!(context.base(at), "mul" | "add" | "pow" | "tanh" | "div"));
            (plain && call.clone().count() > 3 && context.has(last) && context.out(last)?.elements() == read.elements())
                .then_some((read, last))
        }
        _ => None,
    }
}

/// Whether what it makes is multiplied with another activation behind at most a few operations on single values.
fn feeds_product(context: &Context<'_>, op: usize) -> bool {
    context.is_read_by(op, |at| {
        let tensors = context.tensors(at);
        context.base(at) == "mul" && tensors.len() == 2 && tensors.iter().all(|(_, view)| context.is_activation(view))
    })
}

/// up + 1.
fn of_raised(context: &Context<'_>, op: usize) -> Option<Form> {
    let x = context.tensor(op, 0).filter(|x| context.is_activation(x))?;
    let raised = context.number(op).is_some_and(|(_, number)| number == 1.0) && feeds_product(context, op);
    raised.then(|| Form::one(&ACTIVATION_CLAMP, vec![("kind", json!("up-without-one"))], op, kept(x)))
}

/// x sigmoid(a x): another a.
fn of_slope(context: &Context<'_>, op: usize) -> Option<Vec<Form>> {
    let (place, slope) = context.number(op)?;
    context.is_read_by(op, |reader| context.base(reader) == "sigmoid").then_some(())?;
    let kinds = [("silu", 1.0), ("gelu-quick", 1.702)].into_iter().filter(|(_, other)| *other != slope);
    let form = |(name, other)| {
        let change = with_number(context.op(op), place, other);
        Form::one(&ACTIVATION, vec![(ACTIVATION.params[0].name, json!(name))], op, change)
    };
    Some(kinds.map(form).collect())
}

/// Values that do not pass a limit.
fn of_limit(context: &Context<'_>, op: usize) -> Option<Vec<Form>> {
    let acts = context.call(op).any(|at| matches!(context.base(at), "sigmoid" | "silu" | "gelu" | "relu"));
    let x = context.tensor(op, 0).filter(|x| acts && context.is_activation(x));
    let x = x?;
    let omitted = Form::one(&ACTIVATION_CLAMP, vec![("kind", json!("not-clamped"))], op, kept(x));
    let clamped = each(x, |x, limit| x.max(-limit.abs()).min(limit.abs()));
    Some(vec![omitted, Form::any(&ACTIVATION_CLAMP, "limit", 1.0, At::Op(op), clamped)])
}

/// gpt-oss: gate and up are clamped, the gate has an activation of its own, and 1 is added to what it lets through.
fn as_gpt_oss(x: &[ArrayD<f64>]) -> Option<ArrayD<f64>> {
    let gate = gelu_quick(&x[0].mapv(|gate| gate.min(LIMIT)));
    times(&gate, &x[1].mapv(|up| up.clamp(-LIMIT, LIMIT) + 1.0))
}

fn of_gate(context: &Context<'_>, op: usize) -> Option<Vec<Form>> {
    let [(_, a), (_, b)] = context.tensors(op)[..] else { return None };
    (context.is_activation(a) && context.is_activation(b)).then_some(())?;
    let gate = |view: &View| {
        let maker = context.gate(op, view)?;
        let name = kernel(context, maker).unwrap_or_else(|| context.base(maker).to_owned());
        Some((name, context.tensor(maker, 0)?))
    };
    let (act, up, (name, gate)) = match (gate(a), gate(b)) {
        (Some(found), None) => (a, b, found),
        (None, Some(found)) => (b, a, found),
        _ => return None,
    };
    // One number for each token is a gate of all that a module gives.
    (context.is_projected(op, up) && act.shape.last() == up.shape.last()).then_some(())?;
    let of_up = name.clone();
    let swapped = computed(&[gate, up], move |x| times(&x[0], &acted(&name, &x[1])?));
    let of = |mistake, kind: &str, change| Form::one(mistake, vec![("kind", json!(kind))], op, change);
    Some(vec![
        Form::one(&GATE_UP_SWAPPED, vec![], op, swapped),
        of(&ACTIVATION_CLAMP, "gpt-oss", computed(&[gate, up], as_gpt_oss)),
        of(&ACTIVATION_CLAMP, "up-plus-one", computed(&[act, up], |x| times(&x[0], &x[1].mapv(|up| up + 1.0)))),
        of(&GATE_PRODUCT, "added", computed(&[act, up], |x| plus(&x[0], &x[1]))),
        of(&GATE_PRODUCT, "ungated", computed(&[up], move |x| acted(&of_up, &x[0]))),
        of(&GATE_PRODUCT, "up-not-applied", kept(act)),
        of(&GATE_PRODUCT, "gate-not-applied", kept(up)),
    ])
}

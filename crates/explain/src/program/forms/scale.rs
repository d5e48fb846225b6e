//! The scale of the products of q and k: a number behind them, or before them on q, on k, or on both.

use std::collections::{BTreeMap, BTreeSet};

use firstdiff_program::{At, Change, Operand, Scalar, View};
use serde_json::json;

use crate::mistakes::Mistake;
use crate::mistakes::scores::{SCORE_SCALE, SCORE_SOFTCAP};
use crate::program::change::{each, numbers, with_number};
use crate::program::context::{Context, number_of};
use crate::program::form::Form;
use crate::tolerance::search::SAME_NUMBER;

pub(super) fn forms(context: &Context<'_>, op: usize) -> Vec<Form> {
    let Some((place, number)) = scaled_by(context, op).filter(|_| !beside_tanh(context, op)) else { return Vec::new() };
    let is_behind = is_of_products(context, op);
    if !is_behind && !is_before_products(context, op) {
        return Vec::new();
    }
    let record = context.op(op);
    let divides = context.base(op) == "div";
    // Whatever the operation, the scale is what the products are multiplied by.
    let number_of = move |scale: f64| if divides { 1.0 / scale } else { scale };
    let scale = number_of(number);
    let mut forms: Vec<Form> = Vec::new();
    let mut known = vec![scale];
    let numbered = [1.0, scale * scale, scale.abs().sqrt()].map(|other| (json!(other), other));
    let named = of_widths(context, op).into_iter().map(|(name, other)| (json!(name), other));
    for (said, other) in numbered.into_iter().chain(named) {
        if known.iter().all(|known| (other - known).abs() > SAME_NUMBER) {
            known.push(other);
            let change = with_number(record, place, number_of(other));
            forms.push(Form::one(&SCORE_SCALE, vec![("scale", said)], op, change).due(number));
        }
    }
    let change = numbers(record, place);
    let any = Form::any(&SCORE_SCALE, "scale", scale, At::Op(op), move |scale| change(number_of(scale)));
    forms.push(any.due(number));
    let x = context.activation(op);
    // Of scores that the reference caps another cap is a number of its own operation.
    let is_capped = || context.leads_to(op, |at| context.base(at) == "tanh" && context.leads_to_probs(at));
    if let Some(x) = x.filter(|_| is_behind && !is_capped()) {
        let capped = each(x, move |x, cap| cap * (scale * x / cap).tanh());
        forms.push(Form::any(&SCORE_SOFTCAP, "cap", 30.0, At::Op(op), capped));
    }
    forms
}

/// Scales by the extents that there are: those of a head, of all heads, of the residual stream.
fn of_widths(context: &Context<'_>, op: usize) -> Vec<(&'static str, f64)> {
    let back = || {
        let mut open = vec![op];
        (0..FAR).find_map(|_| {
            let at = open.pop()?;
            open.extend(activations(context, at).filter_map(|view| context.maker(at, view)));
            is_qk(context, at).then_some(at)
        })
    };
    let Some(product) = product_of(context, op).or_else(back) else { return Vec::new() };
    let tensors = context.tensors(product);
    let Some(shape) = tensors.iter().rev().nth(1).map(|(_, queries)| &queries.shape) else { return Vec::new() };
    let [.., heads, _, width] = shape[..] else { return Vec::new() };
    let tables = (0..context.program.ops().len()).filter(|&at| context.base(at) == "embedding");
    let stream = tables.filter_map(|at| context.tensor(at, 0)?.shape.last().copied()).next();
    let (heads, width) = (heads as f64, width as f64);
    let of_stream = stream.map(|all| all as f64).map(|all| [("1/sqrt(D)", 1.0 / all.sqrt()), ("1/D", 1.0 / all)]);
    let of_head = [("1/d", 1.0 / width), ("sqrt(d)", width.sqrt()), ("1/sqrt(d/2)", (2.0 / width).sqrt())];
    of_head.into_iter().chain(of_stream.into_iter().flatten()).chain([("1/sqrt(H)", 1.0 / heads.sqrt())]).collect()
}

/// Another number that an operation takes by keyword: these, and any.
pub(super) fn by_keyword(
    context: &Context<'_>,
    op: usize,
    key: &str,
    mistake: &'static Mistake,
    others: impl Fn(f64) -> Vec<f64>,
) -> Vec<Form> {
    let (record, name, key) = (context.op(op).clone(), mistake.params[0].name, key.to_owned());
    let told = record.keywords.iter().find(|(known, _)| *known == key);
    let right = told.and_then(|(_, operand)| number_of(operand)).unwrap_or(1.0);
    let change = move |value: f64| {
        let mut other = record.clone();
        other.keywords.retain(|(known, _)| *known != key);
        other.keywords.push((key.clone(), Operand::Scalar(Scalar::Float(value))));
        Change::Operation(Box::new(other))
    };
    let other = |value: f64| Form::one(mistake, vec![(name, json!(value))], op, change(value)).due(right);
    let mut forms: Vec<Form> =
        others(right).into_iter().filter(|value| (value - right).abs() > SAME_NUMBER).map(other).collect();
    forms.push(Form::any(mistake, name, right, At::Op(op), change).due(right));
    forms
}

/// Whether it multiplies two activations.
fn is_qk(context: &Context<'_>, op: usize) -> bool {
    let is_product = matches!(context.base(op), "matmul" | "bmm" | "baddbmm");
    is_product && context.tensors(op).iter().rev().take(2).all(|(_, view)| context.is_activation(view))
}

/// Whether an operation stands between the products of q and k and their softmax: what stands before them scales q or k alone.
pub(super) fn is_of_products(context: &Context<'_>, op: usize) -> bool {
    const ENDS: [&str; 11] =
        ["linear", "addmm", "mm", "matmul", "bmm", "softmax", "_softmax", "layer_norm", "rms_norm", "rsqrt", "cat"];
    context.leads_to_probs(op) && context.comes_from(op, FAR, |at| is_qk(context, at), &ENDS)
}

/// The number that an activation is multiplied by, or divided, and its place.
fn scaled_by(context: &Context<'_>, op: usize) -> Option<(usize, f64)> {
    let scales = matches!(context.base(op), "mul" | "div");
    context.number(op).filter(|(_, number)| scales && *number != 0.0 && context.activation(op).is_some())
}

/// Whether it is the scale of the products before them: the one number of q or of k, or the same of both. Where another stands behind them, that is their scale.
fn is_before_products(context: &Context<'_>, op: usize) -> bool {
    let Some(product) = product_of(context, op) else { return false };
    let is_scale = |at: usize| scaled_by(context, at).is_some_and(|(_, number)| number != 1.0);
    if context.leads_to(product, |at| is_scale(at) && is_of_products(context, at)) {
        return false;
    }
    let sides: Vec<_> =
        context.tensors(product).iter().map(|(_, view)| numbers_before(context, product, view)).collect();
    let all: Vec<(&str, f64)> = sides.iter().flat_map(BTreeMap::values).copied().collect();
    // Where one of the two has a number, a 1 on the other is none.
    let is_one_of_them = is_scale(op) || all.is_empty();
    is_one_of_them && sides.iter().all(|side| side.len() < 2) && all.iter().all(|number| *number == all[0])
}

/// The product of q and k that one of them comes to, with nothing between but what is done to it as a whole: no other branch is added to it, and nothing stands beside it.
fn product_of(context: &Context<'_>, op: usize) -> Option<usize> {
    let class = |at: usize| context.program.class(at);
    let (mut open, mut own, mut classes) = (BTreeSet::from([op]), BTreeSet::new(), BTreeSet::new());
    let mut product = None;
    while let Some(at) = open.pop_first() {
        // What a cache holds came the same way in another step.
        let is_own = |view: &View| {
            context.maker(at, view).is_some_and(|maker| own.contains(&maker) || classes.contains(&class(maker)))
        };
        if at != op && !(passes(context, at) && activations(context, at).all(is_own)) || own.len() > FAR {
            return None;
        }
        own.insert(at);
        classes.insert(class(at));
        let (products, others): (Vec<usize>, Vec<usize>) =
            context.program.readers(at).iter().partition(|&&reader| is_qk(context, reader));
        if products.iter().any(|&found| context.base(found) == "baddbmm" || !context.leads_to_probs(found)) {
            return None;
        }
        product = product.or(products.first().copied());
        open.extend(others);
    }
    product
}

/// The numbers that what a product reads is multiplied by as a whole, since it was projected, by their lines of code.
fn numbers_before<'a>(context: &Context<'a>, product: usize, view: &View) -> BTreeMap<usize, (&'a str, f64)> {
    let mut open: Vec<usize> = context.maker(product, view).into_iter().collect();
    let (mut seen, mut found) = (BTreeSet::new(), BTreeMap::new());
    while let Some(at) = open.pop().filter(|_| seen.len() < FAR) {
        if !seen.insert(at) || !passes(context, at) {
            continue;
        }
        let number = scaled_by(context, at).map(|(_, number)| number).filter(|number| *number != 1.0);
        if let Some(number) = number.filter(|_| product_of(context, at).is_some()) {
            found.insert(context.program.class(at), (context.base(at), number));
        }
        open.extend(activations(context, at).filter_map(|view| context.maker(at, view)));
    }
    found
}

fn activations<'c>(context: &'c Context<'_>, op: usize) -> impl Iterator<Item = &'c View> {
    context.op(op).operands.iter().flat_map(Operand::views).filter(|view| context.is_activation(view))
}

/// Whether it rotates, moves, joins or scales what it reads: whatever that was multiplied by, its result is.
fn passes(context: &Context<'_>, op: usize) -> bool {
    const PASSES: &str = "mul div neg add sub cat stack clone contiguous reshape view _unsafe_view to _to_copy type_as dropout expand repeat repeat_interleave \
                          transpose view_as_complex view_as_real index_copy index_put copy slice_scatter";
    let adds = matches!(context.base(op), "add" | "sub");
    let adds_more = adds && context.tensors(op).iter().any(|(_, view)| !context.is_activation(view));
    !adds_more && PASSES.split_whitespace().any(|passes| passes == context.base(op))
}

/// Operations before one of them, those that make its mask among them.
const FAR: usize = 192;

/// Whether an operation scales what goes into a cap, or comes out of it.
fn beside_tanh(context: &Context<'_>, op: usize) -> bool {
    let is_tanh = |at: usize| context.base(at) == "tanh";
    let before = context.tensors(op).iter().any(|(_, view)| context.maker(op, view).is_some_and(is_tanh));
    before || context.is_read_by(op, is_tanh)
}

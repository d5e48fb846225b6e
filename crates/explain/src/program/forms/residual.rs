//! Sums of a stream and a branch.

use firstdiff_program::{At, Change, View};
use firstdiff_trace::Site;
use serde_json::json;

use super::taps::{BEFORE, reading_kin};
use crate::mistakes::residual::{RESIDUAL_OMITTED, RESIDUAL_SCALE, RESIDUAL_SOURCE};
use crate::program::arrays::array;
use crate::program::change::{both, computed, kept, plus};
use crate::program::context::Context;
use crate::program::form::Form;
use crate::program::forms::turn::is_rotation;

pub(super) fn forms(context: &Context<'_>, op: usize) -> Vec<Form> {
    if context.base(op) == "add" { of_sum(context, op) } else { Vec::new() }
}

fn of_sum(context: &Context<'_>, op: usize) -> Vec<Form> {
    let [(_, a), (_, b)] = context.tensors(op)[..] else { return Vec::new() };
    let sums = [a, b].iter().all(|view| context.is_activation(view)) && a.shape == b.shape && a.shape.len() <= 3;
    // What is summed within an activation is no stream.
    let acts = context.call(op).any(|at| matches!(context.base(at), "tanh" | "sigmoid" | "erf"));
    if !sums || acts || is_rotation(context, op) {
        return Vec::new();
    }
    // In the first layer and step as in all.
    let first = context.first_of(op);
    let carries = |at: usize| context.tensor(first, at).is_some_and(|view| carries_stream(context, first, view, SUMS));
    let (stream, branch) = match [carries(0), carries(1)] {
        [true, false] => (a, b),
        [false, true] => (b, a),
        // Two branches of a parallel block: neither is the stream.
        [false, false] if [a, b].iter().all(|view| context.is_projected(op, view)) => return Vec::new(),
        // The stream is what was there before.
        _ => {
            let made = |at: usize| context.tensor(first, at).and_then(|view| context.maker(first, view)).unwrap_or(0);
            if made(0) <= made(1) { (a, b) } else { (b, a) }
        }
    };
    let source = |sum: &str| vec![("sum", json!(sum))];
    let weighed = |a: f64, b: f64| computed(&[stream, branch], move |x| both(&x[0], &x[1], |x, y| a * x + b * y));
    let mut forms = vec![Form::one(&RESIDUAL_SCALE, vec![("factor", json!(-1.0))], op, weighed(1.0, -1.0))];
    // Of a stream and two branches a sum of two is neither.
    let is_of_three = is_partial(context, op) || context.origin(op, stream).is_some_and(|at| is_partial(context, at));
    if is_stream(context, op) && !is_of_three {
        let sum = |name: &str, change| Form::one(&RESIDUAL_SOURCE, source(name), op, change);
        let sum_of = |name, a: &View, b: &View| sum(name, computed(&[a, b], |x| plus(&x[0], &x[1])));
        forms.extend([
            Form::one(&RESIDUAL_OMITTED, vec![], op, kept(branch)),
            sum("stream", kept(stream)),
            sum("2*stream", weighed(2.0, 0.0)),
            sum("2*branch", weighed(0.0, 2.0)),
        ]);
        // What the sum before this one adds: what came into the layer, and another branch.
        let before = context.origin(op, stream).filter(|&at| context.base(at) == "add" && is_stream(context, at));
        let terms = before.map_or_else(Vec::new, |at| {
            let terms = context.tensors(at).into_iter().filter(|(_, view)| view.shape == stream.shape);
            let mut terms: Vec<&View> = terms.map(|(_, view)| view).collect();
            terms.sort_by_key(|view| context.maker(at, view));
            terms
        });
        let terms = terms.first().zip(terms.last());
        if let Some((input, _)) = terms {
            let kin = Some(reading_kin(&RESIDUAL_SOURCE, BEFORE));
            forms.push(Form { kin, ..sum_of(BEFORE, input, branch) });
        }
        // The norm was written over what it reads.
        forms.extend(normed(context, op, stream, branch).map(|change| sum("normed + branch", change)));
        if let Some((input, other)) = terms {
            forms.push(sum_of("stream + attn_out", stream, other));
            forms.push(sum_of("layer input + attn_out", input, other));
        }
    }
    let owned = [stream.clone(), branch.clone()];
    let by = move |a: fn(f64) -> f64, b: fn(f64) -> f64| {
        let views = owned.clone();
        move |value: f64| computed(&views.each_ref(), move |x| both(&x[0], &x[1], |x, y| a(value) * x + b(value) * y))
    };
    forms.push(Form::any(&RESIDUAL_SCALE, "factor", 1.0, At::Op(op), by(|_| 1.0, |x| x)));
    if !is_of_three {
        forms.push(Form::any(&RESIDUAL_SCALE, "stream_factor", 1.0, At::Op(op), by(|x| x, |_| 1.0)));
    }
    forms
}

/// A branch, and what the first norm behind the stream makes of it: as recorded, or as it is made on the way.
fn normed(context: &Context<'_>, op: usize, stream: &View, branch: &View) -> Option<Change> {
    let (taps, made) = (context.program.taps(), context.maker(op, stream)?);
    let is_it = |tap: &usize| {
        let (at, view) = (taps[*tap].op, &taps[*tap].view);
        made < at && at < op && view.elements() == stream.elements() && context.is_of_norm(at)
    };
    let tap = (0..taps.len()).find(is_it)?;
    let shape = branch.shape.clone();
    match context.held.readable(tap).map(array) {
        Some(held) => {
            let held = held.into_shape_with_order(shape.as_slice()).ok()?;
            Some(computed(&[branch], move |x| plus(&held, &x[0])))
        }
        None if context.has(taps[tap].op) => {
            Some(computed(&[&taps[tap].view.reshaped(&shape)?, branch], |x| plus(&x[0], &x[1])))
        }
        None => None,
    }
}

/// Sums of one layer that a stream passes, at the most: of attention, of the feed-forward part, of experts.
const SUMS: usize = 3;

fn in_stream(context: &Context<'_>, tap: usize) -> bool {
    matches!(context.site(tap), Site::H | Site::HAttn | Site::H0)
}

/// Whether what `op` reads is the residual stream, or the stream with something added to it.
fn carries_stream(context: &Context<'_>, op: usize, view: &View, sums: usize) -> bool {
    let Some(made) = context.origin(op, view) else { return false };
    let taps = context.program.taps();
    if (0..taps.len()).any(|tap| taps[tap].op == made && in_stream(context, tap)) {
        return true;
    }
    sums > 0
        && context.base(made) == "add"
        && context.tensors(made).iter().any(|(_, view)| carries_stream(context, made, view, sums - 1))
}

/// Whether it is a sum that another one is added to at once, as in a parallel block.
fn is_partial(context: &Context<'_>, op: usize) -> bool {
    let (readers, is_sum) = (context.program.readers(op), |at: usize| context.base(at) == "add");
    is_sum(op) && !readers.is_empty() && readers.iter().all(|&reader| is_sum(reader))
}

/// Whether a sum is one of a residual stream: as wide as one, and nothing that the rules have another name for (experts beside a shared one).
fn is_stream(context: &Context<'_>, op: usize) -> bool {
    let taps = context.program.taps();
    let in_stream = |tap: &usize| in_stream(context, *tap);
    let width = |tap: usize| taps[tap].view.shape.last();
    let own = context.out(op).and_then(|out| out.shape.last());
    let mut streams = (0..taps.len()).filter(in_stream).map(width).peekable();
    let is_as_wide = streams.peek().is_none() || streams.any(|width| width == own);
    let is_of_a_module = |tap: usize| context.site(tap).is_open() && context.site(tap).name().contains('/');
    let mut made = (0..taps.len()).filter(|&tap| taps[tap].op == op);
    is_as_wide && made.all(|tap| in_stream(&tap) || is_of_a_module(tap))
}

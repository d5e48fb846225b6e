//! Norms: a reciprocal root of a mean square, or a kernel of that.

use firstdiff_program::{At, Change, Edit, Operand, Operation, ProgramTap, Scalar, View};
use firstdiff_trace::{Site, Tap};
use ndarray::{ArrayD, Axis};
use serde_json::json;

use super::linear::read_as;
use super::{Form, computed, kept, minus, numbers, over, plus, renamed, times, with, with_all, with_number};
use crate::mistakes::head::FINAL_NORM_OMITTED;
use crate::mistakes::linear::BIAS_OMITTED;
use crate::mistakes::norm::{
    EPSILONS, NORM_AXIS, NORM_CENTERED, NORM_EPS, NORM_EPS_OUTSIDE, NORM_OMITTED, NORM_PLUS_ONE, NORM_SUM,
    NORM_WEIGHT_OMITTED, NORM_WEIGHT_TWICE, NORM_WIDTH, NORM_WRONG_WEIGHT,
};
use crate::mistakes::recorded::NORM_NOT_CENTERED;
use crate::mistakes::stored::STORAGE_TYPE;
use crate::mistakes::{Mistake, Params};
use crate::program::context::Context;
use crate::tolerance::search::{EPS_MATTERS, OUTSIDE_MATTERS};

pub(super) fn forms(context: &Context<'_>, op: usize) -> Vec<Form> {
    match context.base(op) {
        "rsqrt" => of_root(context, op),
        "layer_norm" => of_kernel(context, op, 4),
        "rms_norm" => of_kernel(context, op, 3),
        "mul" => of_gain(context, op),
        "add" => of_raised_gain(context, op),
        "sub" => of_mean(context, op),
        _ => Vec::new(),
    }
}

/// A norm that is left out, or made twice: the last one by its own name.
fn omitted(context: &Context<'_>, op: usize) -> &'static Mistake {
    let call = context.call(op);
    let made = |tap: &&ProgramTap| call.contains(&tap.op);
    let mut taps = context.program.taps().iter().filter(made).map(|tap| Tap::named(&tap.tap));
    if taps.any(|tap| tap.last_site() == Site::FinalNorm) { &FINAL_NORM_OMITTED } else { &NORM_OMITTED }
}

fn omitted_kind(context: &Context<'_>, op: usize) -> Params {
    let is_last = omitted(context, op) == &FINAL_NORM_OMITTED;
    is_last.then(|| ("kind", json!("omitted"))).into_iter().collect()
}

/// Another epsilon.
fn of_eps(record: &Operation, op: usize, place: usize, eps: f64) -> Vec<Form> {
    let others = EPSILONS.into_iter().filter(|other| *other != eps);
    let form =
        |other| Form::one(&NORM_EPS, vec![("eps", json!(other))], op, with_number(record, place, other)).due(eps);
    // One of 1e-12 matters to no row: any other is looked for from one that does.
    let any = Form::any(&NORM_EPS, "eps", eps, At::Op(op), numbers(record, place))
        .due(eps)
        .beginning_at(eps.max(EPS_MATTERS));
    others.map(form).chain([any]).collect()
}

/// mean(x²) + eps under a root.
fn of_root(context: &Context<'_>, op: usize) -> Vec<Form> {
    let mut forms = Vec::new();
    let Some(add) = context.tensor(op, 0).and_then(|view| context.maker(op, view)) else { return forms };
    let Some((place, eps)) = context.number(add).filter(|_| context.base(add) == "add") else { return forms };
    let record = context.op(add);
    forms.extend(of_eps(record, add, place, eps));
    let Some(mean) = context.tensor(add, 0) else { return forms };
    let view = mean.clone();
    let outside = move |eps: f64| computed(&[&view], move |x| Some(x[0].mapv(|x| 1.0 / (x.sqrt() + eps))));
    forms.push(Form::one(&NORM_EPS_OUTSIDE, vec![], op, outside(eps)));
    forms.push(Form::any(&NORM_EPS_OUTSIDE, "eps", eps, At::Op(op), outside).beginning_at(OUTSIDE_MATTERS));
    let ones = computed(&[mean], |x| Some(ArrayD::ones(x[0].raw_dim())));
    forms.push(Form::one(omitted(context, op), vec![("kind", json!("gain-only"))], op, ones));
    let Some(at) = context.maker(add, mean).filter(|&at| context.base(at) == "mean") else { return forms };
    let over_all = computed(&[mean], move |x| Some(ArrayD::from_elem(x[0].raw_dim(), x[0].mean()? + eps)));
    forms.push(Form::one(&NORM_AXIS, vec![("kind", json!("whole-tensor"))], add, over_all));
    let Some(squares) = context.tensor(at, 0) else { return forms };
    let over_positions = computed(&[squares], move |x| {
        let axis = Axis(x[0].ndim().checked_sub(2)?);
        Some(x[0].mean_axis(axis)?.insert_axis(axis).mapv(|x| x + eps))
    });
    forms.push(Form::one(&NORM_AXIS, vec![("kind", json!("over-positions"))], add, over_positions));
    if let Some(heads) = heads_axis(context, op, squares) {
        let over_heads = computed(&[squares], move |x| {
            let mean = mean_over(&x[0], &[heads, x[0].ndim().checked_sub(1)?])?.mapv(|x| x + eps);
            let mut shape = x[0].shape().to_vec();
            *shape.last_mut()? = 1;
            Some(mean.broadcast(shape)?.to_owned())
        });
        forms.push(Form::one(&NORM_WIDTH, vec![("kind", json!("all-heads"))], add, over_heads));
    }
    let columns = squares.shape.last().copied().unwrap_or(1) as f64;
    let view = mean.clone();
    let of_width = move |width: f64| computed(&[&view], move |x| Some(x[0].mapv(|x| x * columns / width + eps)));
    forms.push(Form::any(&NORM_WIDTH, "width", columns, At::Op(add), of_width).whole());
    forms.push(Form::one(&NORM_SUM, vec![], at, renamed(context.op(at), "sum.dim_IntList")));
    let Some(square) =
        context.maker(at, squares).filter(|&square| matches!(context.base(square), "pow" | "square" | "mul"))
    else {
        return forms;
    };
    let Some(x) = context.tensor(square, 0) else { return forms };
    // The values that are multiplied by the root are centred too.
    let scaled = context
        .program
        .readers(op)
        .iter()
        .copied()
        .find(|&reader| context.base(reader) == "mul" && context.has(reader));
    if let Some((scaled, root)) = scaled.zip(context.out(op)) {
        let both = vec![
            Edit { at: At::Op(square), change: computed(&[x], move |x| Some(centred(&x[0])?.mapv(|x| x * x))) },
            Edit { at: At::Op(scaled), change: computed(&[x, root], move |x| times(&centred(&x[0])?, &x[1])) },
        ];
        forms.push(Form::new(&NORM_CENTERED, vec![], both));
    }
    let last = *context.call(op).end();
    if context.out(last).is_some_and(|out| out.elements() == x.elements()) && context.has(last) {
        forms.push(Form::one(omitted(context, op), omitted_kind(context, op), last, as_shape(x, context.out(last))));
        let gain = context.call(op).find_map(|at| gain_of(context, at));
        if let (Some(gain), Some(out)) = (gain, context.out(last)) {
            let tap = context.program.taps().iter().position(|tap| tap.op == last && tap.view.buffer == out.buffer);
            let again = |view: &View| computed(&[view, gain], move |x| times(&by_root(&x[0], eps)?, &x[1]));
            let form = |tap: usize| {
                let change = again(&context.program.taps()[tap].view);
                Form::read(omitted(context, op), vec![("kind", json!("twice"))], tap, change)
            };
            forms.extend(tap.map(form));
        }
    }
    forms
}

/// Of \[T,H,d\] or \[H,T,d\] the axis of the heads: those of a position lie together.
fn heads_axis(context: &Context<'_>, op: usize, view: &View) -> Option<usize> {
    let last = view.shape.len().checked_sub(1)?;
    let tokens = context.program.steps().get(context.step_of(op))?.tokens;
    let heads = view.elements().checked_div(tokens * view.shape[last])?;
    let are_heads = |&axis: &usize| heads > 1 && view.shape[axis] == heads;
    (0..last).filter(are_heads).min_by_key(|&axis| view.strides[axis])
}

/// The mean over some axes, which stay with one element.
fn mean_over(x: &ArrayD<f64>, axes: &[usize]) -> Option<ArrayD<f64>> {
    axes.iter().try_fold(x.clone(), |x, &axis| Some(x.mean_axis(Axis(axis))?.insert_axis(Axis(axis))))
}

/// A view's values under another shape.
fn as_shape(view: &View, out: Option<&View>) -> Change {
    let shape = out.map_or_else(Vec::new, |out| out.shape.clone());
    computed(&[view], move |x| x[0].clone().into_shape_with_order(shape.as_slice()).ok())
}

/// A norm that is one operation; `place` is its epsilon's.
fn of_kernel(context: &Context<'_>, op: usize, place: usize) -> Vec<Form> {
    let mut forms = Vec::new();
    let Some(x) = context.tensor(op, 0) else { return forms };
    let record = &with_its_eps(context.op(op), place);
    let eps = match record.operands.get(place) {
        Some(Operand::Scalar(Scalar::Float(eps))) => *eps,
        _ => DEFAULT_EPS,
    };
    if record.keywords.is_empty() {
        forms.extend(of_eps(record, op, place, eps));
    }
    let mut views = vec![x];
    let (gain, bias) = (context.tensor(op, 2), if place == 4 { context.tensor(op, 3) } else { None });
    views.extend(gain.iter().chain(&bias));
    let (has_gain, has_bias) = (gain.is_some(), bias.is_some());
    let weighed = move |normed: ArrayD<f64>, x: &[ArrayD<f64>]| {
        let normed = if has_gain { times(&normed, &x[1])? } else { normed };
        if has_bias { plus(&normed, &x[1 + usize::from(has_gain)]) } else { Some(normed) }
    };
    let centres = place == 4;
    // The values, and the mean of their squares, done otherwise.
    type Root = Box<dyn Fn(&ArrayD<f64>) -> Option<ArrayD<f64>> + Send + Sync>;
    let owned: Vec<View> = views.iter().map(|view| (*view).clone()).collect();
    let rooted = move |root: Root| {
        computed(&owned.iter().collect::<Vec<_>>(), move |x| {
            let of = if centres { centred(&x[0])? } else { x[0].clone() };
            let divisor = root(&of.mapv(|x| x * x))?;
            weighed(over(&of, &divisor)?, x)
        })
    };
    let mean = |x: &ArrayD<f64>| {
        let last = Axis(x.ndim().checked_sub(1)?);
        Some(x.mean_axis(last)?.insert_axis(last))
    };
    let columns = x.shape.last().copied().unwrap_or(1) as f64;
    let one = |mistake: &'static Mistake, params: Params, root: Root| Form::one(mistake, params, op, rooted(root));
    if let Some(heads) = heads_axis(context, op, x) {
        let over_heads =
            move |x: &ArrayD<f64>| Some(mean_over(x, &[heads, x.ndim().checked_sub(1)?])?.mapv(|x| (x + eps).sqrt()));
        forms.push(one(&NORM_WIDTH, vec![("kind", json!("all-heads"))], Box::new(over_heads)));
    }
    let (owned, other) = (rooted.clone(), rooted.clone());
    let outside = move |eps: f64| owned(Box::new(move |x| Some(mean(x)?.mapv(|x| x.sqrt() + eps))));
    forms.push(Form::one(&NORM_EPS_OUTSIDE, vec![], op, outside(eps)));
    forms.push(Form::any(&NORM_EPS_OUTSIDE, "eps", eps, At::Op(op), outside).beginning_at(OUTSIDE_MATTERS));
    forms.push(one(&NORM_SUM, vec![], Box::new(move |x| Some(mean(x)?.mapv(|x| (columns * x + eps).sqrt())))));
    forms.push(one(
        &NORM_AXIS,
        vec![("kind", json!("whole-tensor"))],
        Box::new(move |x| Some(ArrayD::from_elem(vec![1; x.ndim()], (x.mean()? + eps).sqrt()))),
    ));
    let over_positions = computed(&views, move |x| {
        let axis = Axis(x[0].ndim().checked_sub(2)?);
        let mean = |x: &ArrayD<f64>| Some(x.mean_axis(axis)?.insert_axis(axis));
        let of = if centres { minus(&x[0], &mean(&x[0])?)? } else { x[0].clone() };
        let root = mean(&of.mapv(|x| x * x))?.mapv(|x| (x + eps).sqrt());
        weighed(over(&of, &root)?, x)
    });
    forms.push(Form::one(&NORM_AXIS, vec![("kind", json!("over-positions"))], op, over_positions));
    let of_width =
        move |width: f64| other(Box::new(move |x| Some(mean(x)?.mapv(|x| (x * columns / width + eps).sqrt()))));
    forms.push(Form::any(&NORM_WIDTH, "width", columns, At::Op(op), of_width).whole());
    let carried_out = move |x: &[ArrayD<f64>]| {
        let of = if centres { centred(&x[0])? } else { x[0].clone() };
        weighed(by_root(&of, eps)?, x)
    };
    let other = computed(&views, move |x| {
        let of = if centres { x[0].clone() } else { centred(&x[0])? };
        weighed(by_root(&of, eps)?, x)
    });
    let mistake = if centres { &NORM_NOT_CENTERED } else { &NORM_CENTERED };
    forms.push(Form::one(mistake, vec![], op, other));
    if gain.is_some() {
        forms.push(Form::one(&NORM_WEIGHT_OMITTED, vec![], op, with(record, 2, Operand::None)));
    }
    if bias.is_some() {
        forms.push(Form::one(&BIAS_OMITTED, vec![], op, with(record, 3, Operand::None)));
    }
    if let Some(gain) = gain {
        let with_gain = |f: fn(f64) -> f64| {
            computed(&views, move |x| {
                let mut other = x.to_vec();
                other[1].mapv_inplace(f);
                carried_out(&other)
            })
        };
        forms.push(Form::one(&NORM_PLUS_ONE, vec![], op, with_gain(|w| w + 1.0)));
        forms.push(Form::one(&NORM_WEIGHT_TWICE, vec![], op, with_gain(|w| w * w)));
        forms.extend(read_as(|params, bits| Form::one(&STORAGE_TYPE, params, op, with_gain(bits))));
        forms.extend(of_other_gains(context, op, record, gain));
    }
    forms.push(Form::one(omitted(context, op), omitted_kind(context, op), op, kept(x)));
    let twice = computed(&views, move |x| {
        let mut again = x.to_vec();
        again[0] = carried_out(x)?;
        carried_out(&again)
    });
    forms.push(Form::one(omitted(context, op), vec![("kind", json!("twice"))], op, twice));
    forms
}

/// A norm that is one operation, with all operands up to its epsilon.
fn with_its_eps(op: &Operation, place: usize) -> Operation {
    let mut whole = op.clone();
    while whole.operands.len() < place {
        whole.operands.push(Operand::None);
    }
    if whole.operands.len() == place {
        whole.operands.push(Operand::Scalar(Scalar::Float(DEFAULT_EPS)));
    }
    whole
}

/// The gain of another norm, alone and with the bias beside it.
fn of_other_gains(context: &Context<'_>, op: usize, record: &Operation, gain: &View) -> Vec<Form> {
    let bias = if context.base(op) == "layer_norm" { context.tensor(op, 3) } else { None };
    let of = |(name, gain): (String, View)| {
        let form =
            |said: String, change: Change| Form::one(&NORM_WRONG_WEIGHT, vec![("weight", json!(said))], op, change);
        let beside = bias.and_then(|bias| bias_beside(context, &gain, bias)).map(|bias| {
            let both = with_all(record, [(2, Operand::View(gain.clone())), (3, Operand::View(bias))]);
            form(format!("{name}, with its bias"), both)
        });
        [Some(form(name, with(record, 2, Operand::View(gain)))), beside]
    };
    other_gains(context, gain).into_iter().flat_map(of).flatten().collect()
}

/// Epsilon of a kernel that is not told one.
const DEFAULT_EPS: f64 = 1e-5;

/// The bias that stands beside another weight, in place of one.
pub(super) fn bias_beside(context: &Context<'_>, weight: &View, bias: &View) -> Option<View> {
    let last = context.weight(bias)?.rsplit('.').next()?;
    let name = format!("{}.{last}", context.weight(weight)?.rsplit_once('.')?.0);
    let buffer = context.program.weights().iter().find(|(_, known)| **known == name).map(|(&buffer, _)| buffer)?;
    Some(View { buffer, ..bias.clone() })
}

fn centred(x: &ArrayD<f64>) -> Option<ArrayD<f64>> {
    let last = Axis(x.ndim().checked_sub(1)?);
    minus(x, &x.mean_axis(last)?.insert_axis(last))
}

/// x over the root of its mean square.
fn by_root(x: &ArrayD<f64>, eps: f64) -> Option<ArrayD<f64>> {
    let last = Axis(x.ndim().checked_sub(1)?);
    let mean = x.mapv(|x| x * x).mean_axis(last)?.insert_axis(last);
    over(x, &mean.mapv(|mean| (mean + eps).sqrt()))
}

/// Whether a view weighs channels: a vector of weights, or of weights with a number added.
fn is_gain(context: &Context<'_>, op: usize, view: &View) -> bool {
    let wide = view.shape.iter().filter(|&&extent| extent > 1).count() == 1;
    let reads_weight = |at| context.tensors(at).iter().any(|(_, read)| context.is_weight(read));
    let is_of_weight = || context.is_weight(view) || context.origin(op, view).is_some_and(reads_weight);
    wide && !context.is_activation(view) && is_of_weight()
}

/// What a product weighs channels by.
pub(super) fn gain_of<'a>(context: &Context<'a>, op: usize) -> Option<&'a View> {
    let [(_, a), (_, b)] = context.tensors(op)[..] else { return None };
    [a, b].into_iter().find(|view| is_gain(context, op, view)).filter(|_| context.base(op) == "mul")
}

/// A factor for each channel.
fn of_gain(context: &Context<'_>, op: usize) -> Vec<Form> {
    let mut forms = Vec::new();
    let [(_, a), (_, b)] = context.tensors(op)[..] else { return forms };
    let (gain, x, place) = match (is_gain(context, op, a), is_gain(context, op, b)) {
        (true, false) => (a, b, 0),
        (false, true) => (b, a, 1),
        _ => return forms,
    };
    let normed = context.call(op).any(|at| matches!(context.base(at), "rsqrt" | "sqrt" | "std" | "var"));
    if !normed || !context.is_activation(x) {
        return forms;
    }
    let weighed = |mistake: &'static Mistake, params, f: fn(f64) -> f64| {
        Form::one(mistake, params, op, computed(&[x, gain], move |x| times(&x[0], &x[1].mapv(f))))
    };
    forms.push(Form::one(&NORM_WEIGHT_OMITTED, vec![], op, kept(x)));
    forms.push(weighed(&NORM_WEIGHT_TWICE, vec![], |w| w * w));
    if !context.is_weight(gain) {
        forms.push(weighed(&NORM_PLUS_ONE, vec![("kind", json!("missing"))], |w| w - 1.0));
        return forms;
    }
    forms.push(weighed(&NORM_PLUS_ONE, vec![], |w| w + 1.0));
    forms.extend(wrong_gains(context, op, place, gain));
    forms.extend(read_as(|params, bits| weighed(&STORAGE_TYPE, params, bits)));
    forms
}

/// A gain that is stored less 1: others that may be raised in its place.
fn of_raised_gain(context: &Context<'_>, op: usize) -> Vec<Form> {
    let gain = context.tensor(op, 0).filter(|view| context.is_weight(view) && context.number(op).is_some());
    gain.map_or_else(Vec::new, |gain| wrong_gains(context, op, 0, gain))
}

/// Other gains in the place of one.
fn wrong_gains(context: &Context<'_>, op: usize, place: usize, gain: &View) -> Vec<Form> {
    let form = |(name, other): (String, View)| {
        let change = with(context.op(op), place, Operand::View(other));
        Form::one(&NORM_WRONG_WEIGHT, vec![("weight", json!(name))], op, change)
    };
    other_gains(context, gain).into_iter().map(form).collect()
}

/// Other gains of this width, by their names.
fn other_gains(context: &Context<'_>, gain: &View) -> Vec<(String, View)> {
    let own = context.weight(gain).unwrap_or_default();
    let last = |name: &str| name.rsplit('.').next().map(str::to_owned);
    let mut gains = super::linear::beside(context, gain, own);
    let known: Vec<usize> = gains.iter().map(|(_, buffer)| *buffer).collect();
    let others = context.alike(gain).filter(|(name, buffer)| last(name) == last(own) && !known.contains(buffer));
    gains.extend(others.map(|(name, buffer)| (name.to_owned(), buffer)).take(OTHERS));
    gains.into_iter().map(|(name, buffer)| (name, View { buffer, ..gain.clone() })).collect()
}

/// Gains of other layers that are tried.
const OTHERS: usize = 64;

/// x - mean(x), which RMSNorm does not have.
fn of_mean(context: &Context<'_>, op: usize) -> Vec<Form> {
    let [(_, x), (_, mean)] = context.tensors(op)[..] else { return Vec::new() };
    let is_mean = context.maker(op, mean).is_some_and(|maker| context.base(maker) == "mean");
    if !is_mean || !context.is_activation(x) {
        return Vec::new();
    }
    vec![Form::one(&NORM_NOT_CENTERED, vec![], op, kept(x))]
}

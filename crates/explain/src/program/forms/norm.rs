//! Norms: a reciprocal root of a mean square, or a kernel of that.

use firstdiff_program::{At, Change, Edit, Operand, Operation, ProgramTap, Scalar, View};
use firstdiff_trace::{Site, Tap};
use ndarray::{ArrayD, Axis};
use serde_json::json;

use crate::mistakes::head::FINAL_NORM_OMITTED;
use crate::mistakes::linear::BIAS_OMITTED;
use crate::mistakes::norm::{
    EPSILONS, NORM_AXIS, NORM_CENTERED, NORM_EPS, NORM_EPS_OUTSIDE, NORM_OMITTED, NORM_PLUS_ONE, NORM_SUM,
    NORM_WEIGHT_OMITTED, NORM_WEIGHT_TWICE, NORM_WIDTH, NORM_WRONG_WEIGHT,
};
use crate::mistakes::recorded::NORM_NOT_CENTERED;
use crate::mistakes::stored::STORAGE_TYPE;
use crate::mistakes::{Mistake, Params};
use crate::program::change::{computed, kept, minus, numbers, over, plus, times, with, with_all};
use crate::program::context::{Context, number_of};
use crate::program::form::Form;
use crate::program::forms::beside::{beside, bias_beside};
use crate::program::forms::stored::read_as;
use crate::tolerance::search::{EPS_MATTERS, OUTSIDE_MATTERS};

pub(super) fn forms(context: &Context<'_>, op: usize) -> Vec<Form> {
    match context.base(op) {
        "rsqrt" => of_root(context, op),
        "layer_norm" => of_kernel(context, op, 4),
        "rms_norm" => of_kernel(context, op, 3),
        "mul" => of_product(context, op),
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
    let number = numbers(record, place);
    let form = |other| Form::one(&NORM_EPS, vec![("eps", json!(other))], op, number(other)).due(eps);
    let forms: Vec<Form> = others.map(form).collect();
    // One of 1e-12 matters to no row: any other is looked for from one that does.
    let any = Form::any(&NORM_EPS, "eps", eps, At::Op(op), number).due(eps).beginning_at(eps.max(EPS_MATTERS));
    [forms, vec![any]].concat()
}

/// Another mean that a norm takes of its squares. A line more is one more mistake, of norms in one operation and in several.
const MEANS: [(&Mistake, &str, Of); 6] = [
    (&NORM_SUM, "", Of::Row(|row| row.iter().sum())),
    (&NORM_WIDTH, "first-left-out", Of::Row(|row| row.iter().skip(1).sum::<f64>() / row.len() as f64)),
    (&NORM_WIDTH, "last-left-out", Of::Row(|row| row.iter().rev().skip(1).sum::<f64>() / row.len() as f64)),
    (&NORM_AXIS, "whole-tensor", Of::Axes(|rank, _| Some((0..rank).collect()))),
    (&NORM_AXIS, "over-positions", Of::OtherRows(|rank, _| Some(vec![rank.checked_sub(2)?]))),
    (&NORM_WIDTH, "all-heads", Of::Axes(|rank, heads| Some(vec![heads?, rank.checked_sub(1)?]))),
];

/// What a mean is taken of.
#[derive(Clone, Copy)]
enum Of {
    /// A function of each row.
    Row(fn(&[f64]) -> f64),
    /// Each row, as if it were so wide.
    Width(f64),
    /// Axes of so many, of which one may be that of the heads.
    Axes(fn(usize, Option<usize>) -> Option<Vec<usize>>),
    /// The same, where what is taken off first is their mean too.
    OtherRows(fn(usize, Option<usize>) -> Option<Vec<usize>>),
}

impl Of {
    /// The mean, with one element along the axes that it is taken of.
    fn taken(self, x: &ArrayD<f64>, heads: Option<usize>) -> Option<ArrayD<f64>> {
        let last = Axis(x.ndim().checked_sub(1)?);
        match self {
            Of::Row(f) => Some(x.map_axis(last, |row| f(&row.to_vec())).insert_axis(last)),
            Of::Width(width) => Some(x.map_axis(last, |row| row.sum() / width).insert_axis(last)),
            Of::Axes(axes) | Of::OtherRows(axes) => axes(x.ndim(), heads)?
                .into_iter()
                .try_fold(x.clone(), |x, axis| Some(x.mean_axis(Axis(axis))?.insert_axis(Axis(axis)))),
        }
    }
}

/// Other means; `change` is what one makes of the operation `op`, which reads `x` or its squares.
fn of_means(
    context: &Context<'_>,
    op: usize,
    x: &View,
    change: impl Fn(Of) -> Change + Send + Sync + 'static,
) -> Vec<Form> {
    let is_there = |of: Of| match of {
        Of::Axes(axes) | Of::OtherRows(axes) => axes(x.shape.len(), heads_axis(context, op, x)).is_some(),
        Of::Row(_) | Of::Width(_) => true,
    };
    let form = |(mistake, kind, of): (&'static Mistake, &str, Of)| {
        let params = (!kind.is_empty()).then(|| ("kind", json!(kind))).into_iter().collect();
        Form::one(mistake, params, op, change(of))
    };
    let mut forms: Vec<Form> = MEANS.into_iter().filter(|(.., of)| is_there(*of)).map(form).collect();
    let columns = x.shape.last().copied().unwrap_or(1) as f64;
    let of_width = move |width: f64| change(Of::Width(width));
    forms.push(Form::any(&NORM_WIDTH, "width", columns, At::Op(op), of_width).whole());
    forms
}

/// What mean squares become behind the root, with epsilon beside it or without any: `change` is what that makes of the operation `op`.
fn of_divisors(
    context: &Context<'_>,
    op: usize,
    eps: f64,
    change: impl Fn(fn(f64, f64) -> f64, f64) -> Change + Send + Sync + 'static,
) -> [Form; 3] {
    let outside: fn(f64, f64) -> f64 = |mean, eps| mean.sqrt() + eps;
    [
        Form::one(omitted(context, op), vec![("kind", json!("gain-only"))], op, change(|_, _| 1.0, eps)),
        Form::one(&NORM_EPS_OUTSIDE, vec![], op, change(outside, eps)),
        Form::any(&NORM_EPS_OUTSIDE, "eps", eps, At::Op(op), move |eps| change(outside, eps))
            .beginning_at(OUTSIDE_MATTERS),
    ]
}

/// mean(x²) + eps under a root.
fn of_root(context: &Context<'_>, op: usize) -> Vec<Form> {
    let mut forms = Vec::new();
    let Some(add) = context.tensor(op, 0).and_then(|view| context.maker(op, view)) else { return forms };
    let Some((place, eps)) = context.number(add).filter(|_| context.base(add) == "add") else { return forms };
    forms.extend(of_eps(context.op(add), add, place, eps));
    let Some(mean) = context.tensor(add, 0) else { return forms };
    let view = mean.clone();
    forms.extend(of_divisors(context, op, eps, move |divisor, number| {
        computed(&[&view], move |x| Some(x[0].mapv(|mean| 1.0 / divisor(mean, number))))
    }));
    let Some(at) = context.maker(add, mean).filter(|&at| context.base(at) == "mean") else { return forms };
    let Some(squares) = context.tensor(at, 0) else { return forms };
    let (view, heads) = (squares.clone(), heads_axis(context, op, squares));
    forms.extend(of_means(context, at, squares, move |of| {
        computed(&[&view], move |x| {
            let (mean, mut due) = (of.taken(&x[0], heads)?, x[0].shape().to_vec());
            *due.last_mut()? = 1;
            Some(mean.broadcast(due).map(|mean| mean.to_owned()).unwrap_or(mean))
        })
    }));
    let is_square = |&at: &usize| matches!(context.base(at), "pow" | "square" | "mul");
    let Some(square) = context.maker(at, squares).filter(is_square) else { return forms };
    let Some(x) = context.tensor(square, 0) else { return forms };
    // The values that are multiplied by the root are centred too.
    let is_scaled = |reader: &usize| context.base(*reader) == "mul" && context.has(*reader);
    let scaled = context.program.readers(op).iter().copied().find(is_scaled);
    if let Some((scaled, root)) = scaled.zip(context.out(op)) {
        let both = vec![
            Edit { at: At::Op(square), change: computed(&[x], move |x| Some(centred(&x[0])?.mapv(|x| x * x))) },
            Edit { at: At::Op(scaled), change: computed(&[x, root], move |x| times(&centred(&x[0])?, &x[1])) },
        ];
        forms.push(Form::new(&NORM_CENTERED, vec![], both));
    }
    let last = *context.call(op).end();
    if context.out(last).is_some_and(|out| out.elements() == x.elements()) && context.has(last) {
        let read = context.maker(square, x).and_then(|at| centred_by(context, at)).unwrap_or(x);
        forms.push(Form::one(omitted(context, op), omitted_kind(context, op), last, as_shape(read, context.out(last))));
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
    let heads = view.elements().checked_div(context.tokens(op) * view.shape[last])?;
    let are_heads = |&axis: &usize| heads > 1 && view.shape[axis] == heads;
    (0..last).filter(are_heads).min_by_key(|&axis| view.strides[axis])
}

/// A view's values under another shape.
fn as_shape(view: &View, out: Option<&View>) -> Change {
    let shape = out.map_or_else(Vec::new, |out| out.shape.clone());
    computed(&[view], move |x| x[0].clone().into_shape_with_order(shape.as_slice()).ok())
}

/// How a norm that is one operation is carried out: with x, and the gain and the bias that it has.
#[derive(Clone, Copy)]
struct Parts {
    mean: Of,
    heads: Option<usize>,
    /// What rows are divided by, of their mean square and a number.
    divisor: fn(f64, f64) -> f64,
    number: f64,
    gain: fn(f64) -> f64,
    /// Whether the mean is taken off first.
    centres: bool,
    has_gain: bool,
}

impl Parts {
    fn of(self, x: &[ArrayD<f64>]) -> Option<ArrayD<f64>> {
        let of = match (self.centres, self.mean) {
            (true, Of::OtherRows(_)) => minus(&x[0], &self.mean.taken(&x[0], self.heads)?)?,
            (true, _) => centred(&x[0])?,
            (false, _) => x[0].clone(),
        };
        let mean = self.mean.taken(&of.mapv(|x| x * x), self.heads)?;
        let normed = over(&of, &mean.mapv(|mean| (self.divisor)(mean, self.number)))?;
        let normed = if self.has_gain { times(&normed, &x[1].mapv(self.gain))? } else { normed };
        x.get(1 + usize::from(self.has_gain)).map_or(Some(normed.clone()), |bias| plus(&normed, bias))
    }
}

/// A norm that is one operation; `place` is its epsilon's.
fn of_kernel(context: &Context<'_>, op: usize, place: usize) -> Vec<Form> {
    let Some(x) = context.tensor(op, 0) else { return Vec::new() };
    let record = &with_its_eps(context.op(op), place);
    let eps = record.operands.get(place).and_then(number_of).unwrap_or(DEFAULT_EPS);
    let centres = place == 4;
    let (gain, bias) = (context.tensor(op, 2), context.tensor(op, 3).filter(|_| centres));
    let views: Vec<View> = [Some(x), gain, bias].into_iter().flatten().cloned().collect();
    let due = Parts {
        mean: Of::Width(x.shape.last().copied().unwrap_or(1) as f64),
        heads: heads_axis(context, op, x),
        divisor: |mean, eps| (mean + eps).sqrt(),
        number: eps,
        gain: |w| w,
        centres,
        has_gain: gain.is_some(),
    };
    let read: Vec<&View> = views.iter().collect();
    let twice = computed(&read, move |x| due.of(&[&[due.of(x)?], &x[1..]].concat()));
    let mut forms = if record.keywords.is_empty() { of_eps(record, op, place, eps) } else { Vec::new() };
    let owned = views.clone();
    let other = move |parts: Parts| computed(&owned.iter().collect::<Vec<_>>(), move |x| parts.of(x));
    let by = other.clone();
    forms.extend(of_means(context, op, x, move |mean| by(Parts { mean, ..due })));
    let by = other.clone();
    forms.extend(of_divisors(context, op, eps, move |divisor, number| by(Parts { divisor, number, ..due })));
    let mistake = if centres { &NORM_NOT_CENTERED } else { &NORM_CENTERED };
    forms.push(Form::one(mistake, vec![], op, other(Parts { centres: !centres, ..due })));
    forms.extend(bias.map(|_| Form::one(&BIAS_OMITTED, vec![], op, with(record, 3, Operand::None))));
    if let Some(gain) = gain {
        forms.extend(of_gain(context, op, gain, |gain| other(Parts { gain, ..due })));
        forms.extend(of_other_gains(context, op, record, gain));
    }
    forms.push(Form::one(omitted(context, op), omitted_kind(context, op), op, kept(x)));
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

fn centred(x: &ArrayD<f64>) -> Option<ArrayD<f64>> {
    minus(x, &row_mean(x)?)
}

/// x over the root of its mean square.
fn by_root(x: &ArrayD<f64>, eps: f64) -> Option<ArrayD<f64>> {
    over(x, &row_mean(&x.mapv(|x| x * x))?.mapv(|mean| (mean + eps).sqrt()))
}

/// The mean of each row, which stays with one element.
fn row_mean(x: &ArrayD<f64>) -> Option<ArrayD<f64>> {
    let last = Axis(x.ndim().checked_sub(1)?);
    Some(x.mean_axis(last)?.insert_axis(last))
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
fn of_product(context: &Context<'_>, op: usize) -> Vec<Form> {
    let Some([(place, gain), (_, x)]) = context.one_of_two(op, |view| is_gain(context, op, view)) else {
        return Vec::new();
    };
    let is_kernel = |at: usize| matches!(context.base(at), "rms_norm" | "layer_norm");
    let normed = context.call(op).any(|at| matches!(context.base(at), "rsqrt" | "sqrt" | "std" | "var"))
        || context.maker(op, x).is_some_and(is_kernel);
    if !normed || !context.is_activation(x) {
        return Vec::new();
    }
    let mut forms = of_gain(context, op, gain, |f| computed(&[x, gain], move |x| times(&x[0], &x[1].mapv(f))));
    if context.is_weight(gain) {
        forms.extend(wrong_gains(context, op, place, gain));
    }
    forms
}

/// Other functions of a gain: of one as it is stored, or of one that was raised by 1.
fn of_gain(context: &Context<'_>, op: usize, gain: &View, weighed: impl Fn(fn(f64) -> f64) -> Change) -> Vec<Form> {
    let one = |mistake, params, f: fn(f64) -> f64| Form::one(mistake, params, op, weighed(f));
    let mut forms = vec![one(&NORM_WEIGHT_OMITTED, vec![], |_| 1.0), one(&NORM_WEIGHT_TWICE, vec![], |w| w * w)];
    if !context.is_weight(gain) {
        forms.push(one(&NORM_PLUS_ONE, vec![("kind", json!("missing"))], |w| w - 1.0));
        return forms;
    }
    forms.push(one(&NORM_PLUS_ONE, vec![], |w| w + 1.0));
    forms.extend(read_as(|params, bits| one(&STORAGE_TYPE, params, bits)));
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
    let mut gains = beside(context, gain, own);
    let known: Vec<usize> = gains.iter().map(|(_, buffer)| *buffer).collect();
    let others = context.alike(gain).filter(|(name, buffer)| last(name) == last(own) && !known.contains(buffer));
    gains.extend(others.map(|(name, buffer)| (name.to_owned(), buffer)).take(OTHERS));
    gains.into_iter().map(|(name, buffer)| (name, View { buffer, ..gain.clone() })).collect()
}

/// Gains of other layers that are tried.
const OTHERS: usize = 64;

/// x - mean(x), which RMSNorm does not have.
fn of_mean(context: &Context<'_>, op: usize) -> Vec<Form> {
    let form = |x| Form::one(&NORM_NOT_CENTERED, vec![], op, kept(x));
    centred_by(context, op).map(form).into_iter().collect()
}

/// What an operation takes the mean off.
fn centred_by<'a>(context: &Context<'a>, op: usize) -> Option<&'a View> {
    let [(_, x), (_, mean)] = context.tensors(op)[..] else { return None };
    let is_mean = context.maker(op, mean).is_some_and(|maker| context.base(maker) == "mean");
    (is_mean && context.is_activation(x)).then_some(x)
}

//! What may an engine do otherwise? Other ways to carry out operations of a program, found by what stands around them and never by a family's name.

mod attention;
pub(crate) mod embedding;
mod feed_forward;
mod generic;
pub(crate) mod linear;
mod norm;
mod precision;
mod residual;
mod rotation;
mod router;
mod scale;
mod scaling;
mod stored;
mod taps;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use firstdiff_program::{
    At, Change, DType, Edit, Kind, Operand, Operation, OtherOperand, Scalar, Tensor, Values, View,
};
use ndarray::ArrayD;

use crate::explain::Cause;
use crate::mistakes::recorded::NUMBER_DIFFERS;
use crate::mistakes::stored::is_of_the_reader;
use crate::mistakes::{Mistake, Params, Values as ParamValues};
use crate::program::context::Context;
use crate::program::held::{array, floats};

pub(crate) use attention::{sees_the_past_alone, window};
pub(crate) use rotation::is_rotation as turns;
pub(crate) use taps::recorded_before;

/// One way to carry out some operations otherwise.
#[derive(Clone)]
pub(crate) struct Form {
    pub(crate) mistake: &'static Mistake,
    pub(crate) params: Params,
    pub(crate) edits: Vec<Edit>,
    /// Of the operation that it is made in.
    pub(crate) class: usize,
    /// A number that may be any: its name, the right one, and what is done with another.
    pub(crate) tune: Option<Tune>,
    /// The reference's own number, where it has another one.
    pub(crate) due: Option<f64>,
    /// What the reference has, where that is no number.
    pub(crate) has: Option<String>,
    /// What it has in common with others that one line of code does: the tensor that is cut at other places.
    pub(crate) kin: Option<String>,
    /// The steps in which it is made: not in decode steps before it begins, or in the prefill alone.
    pub(crate) steps: Range<u32>,
}

/// A number that may be any.
#[derive(Clone)]
pub(crate) struct Tune {
    pub(crate) name: &'static str,
    pub(crate) right: f64,
    /// The one that the search begins with.
    pub(crate) first: f64,
    pub(crate) with: Arc<dyn Fn(f64) -> Vec<Edit> + Send + Sync>,
    /// Whether it counts something.
    pub(crate) is_whole: bool,
}

impl Form {
    pub(crate) fn new(mistake: &'static Mistake, params: Params, edits: Vec<Edit>) -> Form {
        Form { mistake, params, edits, class: 0, tune: None, due: None, has: None, kin: None, steps: 0..u32::MAX }
    }

    /// A form of one operation.
    pub(crate) fn one(mistake: &'static Mistake, params: Params, op: usize, change: Change) -> Form {
        Form::new(mistake, params, vec![Edit { at: At::Op(op), change }])
    }

    /// A form of what those behind a tap read.
    pub(crate) fn read(mistake: &'static Mistake, params: Params, tap: usize, change: Change) -> Form {
        Form::new(mistake, params, vec![Edit { at: At::Tap(tap), change }])
    }

    /// With a number that may be any, in one place.
    pub(crate) fn any(
        mistake: &'static Mistake,
        name: &'static str,
        right: f64,
        at: At,
        change: impl Fn(f64) -> Change + Send + Sync + 'static,
    ) -> Form {
        Form::any_of(mistake, name, right, move |value| vec![Edit { at, change: change(value) }])
    }

    /// With a number that may be any, in several.
    pub(crate) fn any_of(
        mistake: &'static Mistake,
        name: &'static str,
        right: f64,
        with: impl Fn(f64) -> Vec<Edit> + Send + Sync + 'static,
    ) -> Form {
        let first = if right == 0.0 { 1.0 } else { right };
        let tune = Tune { name, right, first, with: Arc::new(with), is_whole: false };
        Form { tune: Some(tune), ..Form::new(mistake, Vec::new(), Vec::new()) }
    }

    /// With a number that is a whole one.
    pub(crate) fn whole(mut self) -> Form {
        self.tune.iter_mut().for_each(|tune| tune.is_whole = true);
        self
    }

    /// With a number that is looked for from this one on.
    pub(crate) fn beginning_at(mut self, first: f64) -> Form {
        self.tune.iter_mut().for_each(|tune| tune.first = first);
        self
    }

    /// That says more of itself.
    pub(crate) fn saying(self, params: Params) -> Form {
        Form { params, ..self }
    }

    /// In the place of a number of the reference's.
    pub(crate) fn due(self, number: impl Into<Option<f64>>) -> Form {
        Form { due: number.into(), ..self }
    }

    /// With what the reference has, in words.
    pub(crate) fn having(self, words: impl Into<Option<String>>) -> Form {
        Form { has: words.into(), ..self }
    }

    /// What is said of it.
    pub(crate) fn cause(&self) -> Cause {
        Cause { id: self.mistake.id, params: self.params.clone() }
    }

    /// Whether a number of it was read off the candidate.
    pub(crate) fn is_fitted(&self) -> bool {
        let is_free = |name: &str| self.mistake.param(name).is_some_and(|param| param.values == ParamValues::Free);
        self.params.iter().any(|(name, value)| is_free(name) && value.is_number())
    }

    /// What tells it from other forms, wherever it is made: what follows from the shape of a matrix does not.
    pub(crate) fn key(&self) -> String {
        let params = self.params.iter().filter(|(name, _)| !self.mistake.follows_from_shape(name));
        let params = params.map(|(name, value)| format!("{name}={value}"));
        let any = self.tune.iter().map(|tune| tune.name.to_owned());
        format!("{} {}", self.mistake.id, params.chain(any).collect::<Vec<_>>().join(","))
    }

    /// The same form among those of another place, with its number where that may be any; first of the same operation.
    pub(crate) fn among(&self, others: &[Form]) -> Option<Form> {
        let (own, rest): (Vec<&Form>, Vec<&Form>) = others.iter().partition(|other| other.class == self.class);
        let all = || own.iter().chain(&rest);
        let same = all().find(|other| other.key() == self.key()).map(|same| (*same).clone());
        same.or_else(|| all().find_map(|other| other.with_number_of(self)))
    }

    /// The same with the number of another, where they differ in that alone.
    pub(crate) fn with_number_of(&self, other: &Form) -> Option<Form> {
        let tune = self.tune.as_ref().filter(|_| other.mistake == self.mistake)?;
        let is_same = self.params.iter().all(|param| other.params.contains(param));
        let number = other.params.iter().find(|(name, _)| *name == tune.name)?.1.as_f64()?;
        is_same.then(|| self.tuned(number))
    }

    /// The same with a value of its number.
    pub(crate) fn tuned(&self, value: f64) -> Form {
        let Some(tune) = &self.tune else { return self.clone() };
        let params = [&self.params[..], &[(tune.name, serde_json::json!(value))]].concat();
        Form { params, edits: (tune.with)(value), tune: None, ..self.clone() }
    }
}

/// All forms of the operations of a slice, the plainest first. What is one line of code in several layers is done otherwise in all of them.
pub(crate) fn forms(context: &Context<'_>) -> Vec<Form> {
    let groups: [fn(&Context<'_>, usize) -> Vec<Form>; 14] = [
        embedding::forms,
        norm::forms,
        linear::forms,
        stored::forms,
        rotation::forms,
        rotation::of_base,
        scale::forms,
        attention::forms,
        feed_forward::forms,
        router::forms,
        linear::last,
        generic::forms,
        attention::of_few_bits,
        precision::forms,
    ];
    let (mut all, mut known): (Vec<Form>, HashMap<(String, usize), usize>) = Default::default();
    let mut add = |all: &mut Vec<Form>, group: fn(&Context<'_>, usize) -> Vec<Form>| {
        for op in context.ops() {
            for form in group(context, op) {
                let class = context.program.class(op);
                let key = (form.key(), class);
                match known.get(&key) {
                    Some(&at) => join(&mut all[at], form),
                    None => {
                        known.insert(key, all.len());
                        all.push(Form { class, ..form });
                    }
                }
            }
        }
    };
    // What is added says more of a sum than which tap was read for which: it is the same in all layers.
    add(&mut all, residual::forms);
    all.extend([taps::forms(context), rotation::of_taps(context)].concat());
    groups.into_iter().for_each(|group| add(&mut all, group));
    // One number in several places is looked for before others.
    let (numbers, several): (Vec<Form>, Vec<Form>) =
        together(context, &all).into_iter().partition(|form| form.tune.is_some());
    [numbers, all, several, taps::scaled(context)].concat()
}

/// What is made in several places at once: of q and of k, of gate and of up, or with one number of the reference's.
fn together(context: &Context<'_>, all: &[Form]) -> Vec<Form> {
    let mut groups: Vec<(String, Form, usize)> = Vec::new();
    // What is done to all that reads one tensor, to q, k and v, need not be done to what reads another.
    let read = |form: &Form| {
        let op = form.edits.first().filter(|_| form.tune.is_none())?.at.op()?;
        let view = context.tensors(op).into_iter().map(|(_, view)| view).find(|view| context.is_activation(view))?;
        Some(view.buffer)
    };
    // A table that rows are looked up in is read by another line than a matrix, but for what reads the file.
    let looks_up = |form: &Form| {
        let op = form.edits.first().and_then(|edit| edit.at.op());
        op.is_some_and(|op| context.base(op) == "embedding")
    };
    let has_tables = all.iter().any(looks_up);
    let each = |form| {
        let of_one = read(form).map(|buffer| format!(" of {buffer}"));
        let of_the_file = (has_tables && is_of_the_reader(form.mistake)).then(|| " everywhere".to_owned());
        let own = (!looks_up(form)).then(String::new);
        own.into_iter().chain(of_one).chain(of_the_file).map(move |of| (form, of))
    };
    for (form, of) in all.iter().flat_map(each) {
        let is_a_number = form.mistake == &NUMBER_DIFFERS;
        let key = match (&form.tune, form.due) {
            (None, _) if form.edits.iter().all(|edit| edit.at.op().is_some()) => form.key(),
            (Some(_), Some(due)) if is_a_number => format!("{} {due}", form.mistake.id),
            (Some(tune), _) if !is_a_number => format!("{} {}", form.key(), tune.right),
            _ => continue,
        };
        let key = key + &of;
        match groups.iter_mut().find(|(known, ..)| *known == key) {
            Some((_, known, count)) => {
                if is_a_number {
                    said_together(&mut known.params, &form.params);
                }
                join(known, form.clone());
                *count += 1;
            }
            None => groups.push((key, form.clone(), 1)),
        }
    }
    groups.into_iter().filter(|(.., count)| *count > 1).map(|(_, form, _)| form).collect()
}

/// The operations of both, each line once.
fn said_together(known: &mut Params, other: &Params) {
    for ((_, known), (_, other)) in known.iter_mut().zip(other) {
        if let (Some(one), Some(more)) = (known.as_str(), other.as_str())
            && !one.split(", ").any(|line| line == more)
        {
            *known = format!("{one}, {more}").into();
        }
    }
}

/// The same form of another operation.
fn join(known: &mut Form, other: Form) {
    known.edits.extend(other.edits);
    let of_shape = |name: &str| known.mistake.follows_from_shape(name);
    known.params.retain(|param| !of_shape(param.0) || other.params.contains(param));
    if let (Some(tune), Some(more)) = (&mut known.tune, other.tune) {
        let (before, with) = (tune.with.clone(), more.with);
        tune.with = Arc::new(move |value| [before(value), with(value)].concat());
    }
}

/// A function of one array, or of several.
type Function = fn(&ArrayD<f64>) -> Option<ArrayD<f64>>;
type Compute = fn(&[ArrayD<f64>]) -> Option<ArrayD<f64>>;

/// What some views give.
pub(crate) fn computed(
    views: &[&View],
    compute: impl Fn(&[ArrayD<f64>]) -> Option<ArrayD<f64>> + Send + Sync + 'static,
) -> Change {
    let instead = move |tensors: &[Tensor<'_>]| {
        let arrays: Vec<ArrayD<f64>> = tensors.iter().map(array).collect();
        Some(vec![floats(compute(&arrays)?)?])
    };
    Change::Values(views.iter().copied().cloned().collect(), Arc::new(instead))
}

/// A function of one array.
pub(crate) type FunctionOfTensor = Arc<dyn Fn(&ArrayD<f64>) -> Option<ArrayD<f64>> + Send + Sync>;

/// A function of a view in the place of an operand; whole numbers stay what they are.
pub(crate) fn other_operand(place: (usize, Option<usize>), view: &View, function: FunctionOfTensor) -> OtherOperand {
    let value = move |tensors: &[Tensor<'_>]| {
        let read = tensors.first()?;
        let values = function(&array(read))?;
        Some(vec![as_kind(read.dtype(), values)?])
    };
    OtherOperand { place, views: vec![view.clone()], value: Arc::new(value) }
}

/// Values of the kind that a type holds.
fn as_kind(dtype: DType, values: ArrayD<f64>) -> Option<Tensor<'static>> {
    let shape = values.shape().to_vec();
    match dtype.kind() {
        Kind::Int => Tensor::new(dtype, shape, Values::from(values.iter().map(|&x| x as i64).collect::<Vec<_>>())),
        Kind::Float => Tensor::new(dtype, shape, Values::from(values.iter().copied().collect::<Vec<_>>())),
        Kind::Complex => None,
    }
}

/// What a view holds.
pub(crate) fn kept(view: &View) -> Change {
    Change::Values(vec![view.clone()], Arc::new(|tensors| Some(vec![tensors[0].clone().into_owned()])))
}

/// The same operation with another operand.
pub(crate) fn with(op: &Operation, place: usize, operand: Operand) -> Change {
    with_all(op, [(place, operand)])
}

/// The same operation with several other operands.
pub(crate) fn with_all(op: &Operation, operands: impl IntoIterator<Item = (usize, Operand)>) -> Change {
    let mut other = op.clone();
    for (place, operand) in operands {
        if let Some(old) = other.operands.get_mut(place) {
            *old = operand;
        }
    }
    Change::Operation(Box::new(other))
}

/// The same operation with another number.
pub(crate) fn with_number(op: &Operation, place: usize, number: f64) -> Change {
    with(op, place, Operand::Scalar(Scalar::Float(number)))
}

/// The same operation with any number.
pub(crate) fn numbers(op: &Operation, place: usize) -> impl Fn(f64) -> Change + Send + Sync + 'static {
    let op = op.clone();
    move |number| with_number(&op, place, number)
}

/// Another operation of the same operands.
pub(crate) fn renamed(op: &Operation, name: &str) -> Change {
    Change::Operation(Box::new(Operation { name: name.into(), ..op.clone() }))
}

/// A function of two arrays, as far as their shapes allow.
fn both(a: &ArrayD<f64>, b: &ArrayD<f64>, f: impl Fn(f64, f64) -> f64) -> Option<ArrayD<f64>> {
    let rank = a.ndim().max(b.ndim());
    let extent = |x: &ArrayD<f64>, axis: usize| (axis + x.ndim()).checked_sub(rank).map_or(1, |axis| x.shape()[axis]);
    let shape: Vec<usize> =
        (0..rank).map(|axis| if extent(a, axis) == 1 { extent(b, axis) } else { extent(a, axis) }).collect();
    let (a, b) = (a.broadcast(shape.as_slice())?, b.broadcast(shape.as_slice())?);
    Some(ndarray::Zip::from(&a).and(&b).map_collect(|&a, &b| f(a, b)))
}

pub(crate) fn plus(a: &ArrayD<f64>, b: &ArrayD<f64>) -> Option<ArrayD<f64>> {
    both(a, b, |a, b| a + b)
}

pub(crate) fn minus(a: &ArrayD<f64>, b: &ArrayD<f64>) -> Option<ArrayD<f64>> {
    both(a, b, |a, b| a - b)
}

pub(crate) fn times(a: &ArrayD<f64>, b: &ArrayD<f64>) -> Option<ArrayD<f64>> {
    both(a, b, |a, b| a * b)
}

pub(crate) fn over(a: &ArrayD<f64>, b: &ArrayD<f64>) -> Option<ArrayD<f64>> {
    both(a, b, |a, b| a / b)
}

/// A named kernel of one operand.
pub(crate) fn function(name: &str, x: &ArrayD<f64>) -> Option<ArrayD<f64>> {
    function_with(name, x, &[])
}

/// The same, told more.
pub(crate) fn function_with(name: &str, x: &ArrayD<f64>, keywords: &[(&str, Scalar)]) -> Option<ArrayD<f64>> {
    firstdiff_program::apply(name, &[&floats(x.clone())?], keywords)?.first().map(array)
}

/// e^x over its sum, along the last axis.
pub(crate) fn softmax(x: &ArrayD<f64>) -> Option<ArrayD<f64>> {
    function_with("softmax", x, &[("dim", Scalar::Int(-1))])
}

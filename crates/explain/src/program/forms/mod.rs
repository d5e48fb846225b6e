//! Lists what an engine may do otherwise: other ways to carry out operations of a program, found by what stands around them and never by a family's name.

mod attention;
mod beside;
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
mod turn;

use std::collections::HashMap;
use std::sync::Arc;

use crate::mistakes::Params;
use crate::mistakes::recorded::NUMBER_DIFFERS;
use crate::mistakes::stored::is_of_the_reader;
use crate::program::context::Context;
use crate::program::form::Form;

pub(crate) use attention::{sees_the_past_alone, window};
pub(crate) use taps::recorded_before;
pub(crate) use turn::is_rotation as turns;

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
        Some(context.activation(op)?.buffer)
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
    known.has.extend(other.has);
    known.edits.extend(other.edits);
    let of_shape = |name: &str| known.mistake.follows_from_shape(name);
    known.params.retain(|param| !of_shape(param.0) || other.params.contains(param));
    if let (Some(tune), Some(more)) = (&mut known.tune, other.tune) {
        let (before, with) = (tune.with.clone(), more.with);
        tune.with = Arc::new(move |value| [before(value), with(value)].concat());
    }
}

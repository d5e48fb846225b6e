//! Slices that are those of another recorded tensor: a part of the channels of an older buffer, positions that were not written anew.

use ndarray::{ArrayD, ArrayViewD, Axis as Dimension};

use crate::case::Case;
use crate::describe::choice;
use crate::describe::set::describe as describe_set;
use crate::identify::subject::Subject;
use crate::law::{Form, Law};

/// Errors of rounding's size within which two slices are the same.
const ROOM: f64 = 5.0;
/// A part that is dearer to say is none.
const DEAR: f64 = 40.0;

/// Other tensors of the subject's extents at a place, by what they are called.
pub(super) fn others<'a>(
    case: &'a Case<'_>,
    place: usize,
    right: &'a ArrayD<f64>,
) -> impl Iterator<Item = (String, ArrayD<f64>)> + 'a {
    let place = &case.places[place];
    let named = ["the first operand", "the second operand"];
    let inputs = place.inputs.iter().zip(named).map(|(x, name)| (name.to_owned(), x));
    let around = place.around.iter().map(|(name, x)| (name.clone(), x));
    inputs
        .chain(around)
        .filter(|(_, x)| x.len() == right.len() && x.shape().first() == right.shape().first())
        .filter_map(|(name, x)| Some((name, x.to_shape(right.raw_dim()).ok()?.into_owned())))
        .filter(move |(_, x)| x != right)
}

/// The subject with some of its slices from elsewhere.
pub(super) fn laws(subject: &Subject, case: &Case<'_>) -> Vec<Law> {
    let mut laws = Vec::new();
    let size = |x: ArrayViewD<'_, f64>| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    for (name, other) in others(case, case.fitted, &subject.right) {
        for (at, &axis) in subject.axes.iter().enumerate() {
            let along = Dimension(at);
            let count = subject.right.shape()[at];
            let whole = size(subject.own.view()) / (count.max(1) as f64).sqrt();
            let is = |slice: usize, of: &ArrayD<f64>| {
                let (own, of) = (subject.own.index_axis(along, slice), of.index_axis(along, slice));
                let off: f64 = own.iter().zip(&of).map(|(a, b)| (a - b).powi(2)).sum();
                off.sqrt() <= ROOM * subject.noise * size(own).max(whole)
            };
            let from_there = |slice: usize| match (is(slice, &subject.right), is(slice, &other)) {
                (true, false) => Some(Some(false)),
                (false, true) => Some(Some(true)),
                (true, true) => Some(None),
                (false, false) => None,
            };
            let Some(meant) = (0..count).map(from_there).collect::<Option<Vec<_>>>() else { continue };
            let set = describe_set(&meant, axis, case.tokens_of(axis));
            if !meant.contains(&Some(true)) || set.bits > DEAR {
                continue;
            }
            let on = set.words.as_ref().map_or_else(String::new, |on| format!(" in {on}"));
            let words = format!("{} is {name}{on}", subject.label);
            let (known, has) = (name.clone(), set.has.clone());
            let made = move |case: &Case<'_>, place: usize, right: &ArrayD<f64>| {
                let (_, other) = others(case, place, right).find(|(name, _)| *name == known)?;
                let mut out = right.clone();
                (out.shape().get(at) == Some(&has.len())).then_some(())?;
                for slice in (0..has.len()).filter(|&slice| has[slice]) {
                    out.index_axis_mut(along, slice).assign(&other.index_axis(along, slice));
                }
                Some(out)
            };
            let bits = 6.0 + choice(case.first().around.len() + 2) + set.bits;
            let law = subject.law_of_place(Form::OperationInput, words, bits, made);
            laws.push(law.on(Subject::support(axis, set.words)).with("input", name.clone()));
        }
    }
    laws
}

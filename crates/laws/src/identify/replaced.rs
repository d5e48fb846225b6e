//! Slices that are those of another recorded tensor: a part of the channels of an older buffer, positions that were not written anew.

use ndarray::{ArrayD, ArrayViewD, Axis as Dimension};

use crate::case::Case;
use crate::describe::choice;
use crate::describe::set::describe as describe_set;
use crate::fit::ROOM;
use crate::identify::further_off;
use crate::identify::subject::Subject;
use crate::law::{Form, Law};

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

/// The subject with all that lies behind a number of elements, or before it, from elsewhere: a grid that is too small.
fn ends(subject: &Subject, case: &Case<'_>) -> Vec<Law> {
    let wrong = further_off(&subject.right, &subject.own, subject.noise);
    let mut all = wrong.iter().enumerate().filter(|(_, is)| **is).map(|(at, _)| at);
    let Some(first) = all.next() else { return Vec::new() };
    let last = all.last().unwrap_or(first);
    let (count, width) = (subject.right.len(), subject.right.shape().last().copied().unwrap_or(1).max(1));
    let nothing = ("nothing (0)".to_owned(), ArrayD::zeros(subject.right.raw_dim()));
    let mut laws = Vec::new();
    for (name, other) in std::iter::once(nothing.clone()).chain(others(case, case.fitted, &subject.right)) {
        // Where the wrong ones begin is where a block of a kernel begins: an element that is right by chance is no edge.
        let edges = [(first / EDGE * EDGE, true), (last / EDGE * EDGE + EDGE, false)];
        for (edge, is_behind) in edges.into_iter().filter(|(edge, _)| *edge > 0 && *edge < count) {
            let with = move |right: &ArrayD<f64>, other: &ArrayD<f64>| {
                let mut out = right.clone();
                let is = |at: usize| (at >= edge) == is_behind;
                out.iter_mut().zip(other).enumerate().filter(|(at, _)| is(*at)).for_each(|(_, (to, from))| *to = *from);
                out
            };
            if !subject.is_near(&with(&subject.right, &other)) {
                continue;
            }
            let (row, channel) = (edge / width, edge % width);
            let on = match is_behind {
                true => format!("from element {edge} of the whole tensor on (row {row}, channel {channel})"),
                false => format!("before element {edge} of the whole tensor (row {row}, channel {channel})"),
            };
            let (known, empty) = (name.clone(), nothing.0.clone());
            let made = move |case: &Case<'_>, place: usize, right: &ArrayD<f64>| {
                if known == empty {
                    return Some(with(right, &ArrayD::zeros(right.raw_dim())));
                }
                let (_, other) = others(case, place, right).find(|(name, _)| *name == known)?;
                Some(with(right, &other))
            };
            let words = format!("{} is {name} {on}", subject.label);
            let bits = 8.0 + choice(count);
            let law = subject.law_of_place(Form::OperationInput, words, bits, made);
            laws.push(law.with("input", name.clone()).with("element", edge));
        }
    }
    laws
}

/// Elements of which kernels do a whole number.
const EDGE: usize = 4;

/// The subject with some of its slices from elsewhere.
pub(super) fn laws(subject: &Subject, case: &Case<'_>) -> Vec<Law> {
    let mut laws = ends(subject, case);
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

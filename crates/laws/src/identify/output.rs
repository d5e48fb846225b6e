//! Laws that any tensor may follow against the right one: a factor or a term for each slice, slices of other places, a function of each value, rounding.

pub(super) mod biases;
mod boxes;
mod functions;
pub(super) mod roundings;
mod sampler;
mod slices;
mod sources;

use std::sync::Arc;

use ndarray::{ArrayD, Axis as Dimension};

use self::biases::biases;
use self::functions::functions;
use self::roundings::roundings;
use self::slices::scales;
use self::sources::{mixtures, not_cleared, orders, sources};
use crate::case::{Axis, Case};
use crate::describe::set::{Set, describe as describe_set};
use crate::identify::subject::Subject;
use crate::identify::{any_along, cells, further_off};
use crate::law::{Law, Support};

/// The laws of a subject.
pub(crate) fn laws(subject: &Subject, case: &Case<'_>) -> Vec<Law> {
    if subject.right.shape() != subject.own.shape() {
        return Vec::new();
    }
    let mut laws = of_view(subject, case);
    // Heads and their dimensions, as one axis of channels.
    if let [first, Axis::Head, Axis::Dim] = subject.axes[..]
        && let Some(joined) = subject.as_matrix(vec![first, Axis::Channel], |shape| shape.first().copied())
    {
        laws.extend(of_view(&joined, case));
    }
    if case.has_time() {
        laws.extend(orders(subject));
        laws.extend(roundings(subject));
        laws.extend(boxes::boxes(subject, case));
        laws.extend(sampler::laws(subject, case));
        laws.extend(cells::laws(subject));
        laws.extend(on_parts(subject, case));
    }
    laws
}

fn of_view(subject: &Subject, case: &Case<'_>) -> Vec<Law> {
    let mut laws = functions(subject, case);
    for axis in (0..subject.axes.len()).take_while(|_| case.has_time()) {
        laws.extend(scales(subject, case, axis));
        laws.extend(biases(subject, case, axis));
        laws.extend(sources(subject, case, axis));
        laws.extend(mixtures(subject, axis));
        laws.extend(not_cleared(subject, axis));
    }
    laws
}

/// The parts of each axis on which the subject is wrong, where that is told by its slices.
pub(crate) fn wrong_parts(subject: &Subject, case: &Case<'_>) -> Vec<Set> {
    let wrong = further_off(&subject.right, &subject.own, subject.noise);
    let part = |(at, axis): (usize, &Axis)| describe_set(&any_along(&wrong, at), *axis, case.tokens_of(*axis));
    subject.axes.iter().enumerate().map(part).collect()
}

/// Which elements lie in all parts.
pub(crate) fn inside(shape: &[usize], parts: &[Set]) -> ArrayD<bool> {
    ArrayD::from_shape_fn(shape, |at| parts.iter().enumerate().all(|(axis, part)| part.has[at[axis]]))
}

pub(crate) fn support_of(axes: &[Axis], parts: &[Set]) -> (Support, f64) {
    let (mut support, mut bits) = (Support::default(), 0.0);
    for (axis, part) in axes.iter().zip(parts) {
        support.add(*axis, part.words.clone());
        bits += part.bits;
    }
    (support, bits)
}

/// Sources and orders within the wrong slices of one axis.
fn on_parts(subject: &Subject, case: &Case<'_>) -> Vec<Law> {
    let mut laws = Vec::new();
    for (at, part) in wrong_parts(subject, case).into_iter().enumerate() {
        let inside: Vec<usize> = (0..part.has.len()).filter(|&i| part.has[i]).collect();
        if part.is_all() || inside.len() < 2 || part.bits > MOST_OF_A_PART {
            continue;
        }
        let axis = Dimension(at);
        let (indices, right_at, output) = (inside.clone(), subject.right_at.clone(), subject.output.clone());
        let (whole_at, put_at) = (subject.right_at.clone(), inside.clone());
        let inner = Subject {
            bits: subject.bits + part.bits + 2.0,
            is_part: true,
            right: subject.right.select(axis, &inside),
            own: subject.own.select(axis, &inside),
            right_at: Arc::new(move |case, place| {
                let right = right_at(case, place)?;
                indices.iter().all(|&i| i < right.shape()[at]).then(|| right.select(axis, &indices))
            }),
            output: Arc::new(move |case, place, value| {
                let mut whole = whole_at(case, place)?;
                for (from, &to) in put_at.iter().enumerate() {
                    whole.index_axis_mut(axis, to).assign(&value.index_axis(axis, from));
                }
                output(case, place, whole)
            }),
            ..subject.clone()
        };
        let others = (0..subject.axes.len()).filter(|&other| other != at);
        let found = others.flat_map(|other| [sources(&inner, case, other), mixtures(&inner, other)].concat());
        let support = Subject::support(subject.axes[at], part.words.clone());
        let added: Vec<Law> = (0..subject.axes.len())
            .filter(|&other| other != at)
            .flat_map(|other| biases(&inner, case, other))
            .collect();
        let along = not_cleared(&inner, at);
        laws.extend(found.chain(orders(&inner)).chain(added).chain(along).map(|law| {
            let words = format!("{}{}", law.words, support.said());
            Law { words, ..law }.on(support.clone())
        }));
    }
    laws
}

/// A part that is dearer to say is no part.
const MOST_OF_A_PART: f64 = 40.0;

//! Identifies laws of a part of the positions, or of the heads, alone. Each row of such an operation is made of the rows of its operands at the same place.

use std::sync::Arc;

use ndarray::{Array2, ArrayD, Axis as Dimension};

use crate::case::{Axis, Case, Kind, Operation, OtherWeight, Place};
use crate::describe::set::describe as describe_set;
use crate::identify::subject::Subject;
use crate::identify::{DEAR, any_along};
use crate::law::{Law, Support};

/// Whether each row of the output is made of the same rows of the operands.
fn is_by_row(kind: Kind) -> bool {
    matches!(kind, Kind::Norm | Kind::Linear | Kind::Activation | Kind::Gate | Kind::Sum | Kind::Embedding)
}

/// Whether each head of the output is made of the same head of the operands.
fn is_by_head(case: &Case<'_>) -> bool {
    case.kind == Kind::Norm && case.axes.get(1) == Some(&Axis::Head)
}

/// Positions from which laws can be measured; a head has all of them.
const FEWEST: usize = 2;

/// The laws of the wrong positions, and of the wrong heads, as laws of all.
pub(crate) fn laws(case: &Case<'_>, of: &dyn Fn(&Case<'_>) -> Vec<Law>) -> Vec<Law> {
    let mut laws = Vec::new();
    if case.axes.first().is_some_and(|axis| axis.is_position()) && is_by_row(case.kind) {
        laws.extend(along(case, 0, of));
    }
    if is_by_head(case) {
        laws.extend(along(case, 1, of));
    }
    laws
}

/// The laws of the wrong slices along an axis.
fn along(case: &Case<'_>, at: usize, of: &dyn Fn(&Case<'_>) -> Vec<Law>) -> Vec<Law> {
    let (first, axis) = (case.first(), case.axes[at]);
    let wrong = crate::identify::wrong(first);
    let meant = any_along(&wrong, at);
    let set = describe_set(&meant, axis, case.tokens_of(axis));
    let rows: Vec<usize> = (0..meant.len()).filter(|&row| set.has[row]).collect();
    if set.is_all() || set.bits > DEAR || rows.len() < if at == 0 { FEWEST } else { 1 } {
        return Vec::new();
    }
    let operation = Part { of: case.operation, whole: &case.places, rows: &rows, axis: at };
    let Some(part) = part_of(case, &rows, at, &operation) else { return Vec::new() };
    let mut support = Support::default();
    support.add(axis, set.words.clone());
    let subject = Subject::output(case);
    let wrapped = |law: Law| {
        let (inner, rows) = (law.predict.clone(), rows.clone());
        let predict = move |case: &Case<'_>, place: usize| {
            let operation = Part { of: case.operation, whole: &case.places, rows: &rows, axis: at };
            let value = inner(&part_of(case, &rows, at, &operation)?, place)?;
            let mut out = case.places[place].right.clone();
            for (value, row) in value.axis_iter(Dimension(at)).zip(&rows) {
                let mut to = out.index_axis_mut(Dimension(at), *row);
                (to.shape() == value.shape()).then(|| to.assign(&value))?;
            }
            Some(out)
        };
        let words = format!("{}{}", law.words, support.said());
        let mut inside = law.support.clone();
        inside.add(axis, set.words.clone());
        Law { words, bits: law.bits + set.bits + 2.0, predict: Arc::new(predict), ..law }.on(inside)
    };
    of(&part).into_iter().map(wrapped).filter(|law| subject.is_near_by(law, case)).collect()
}

/// These slices of every place; those of `around` as far as they have as many.
fn part_of<'c>(case: &Case<'_>, rows: &[usize], axis: usize, operation: &'c Part<'_>) -> Option<Case<'c>> {
    let count = case.first().right.shape().get(axis).copied()?;
    // A place without rows has no part.
    rows.iter().all(|row| *row < count).then_some(())?;
    let picked = |x: &ArrayD<f64>| (x.shape().get(axis) == Some(&count)).then(|| x.select(Dimension(axis), rows));
    let mut places = Vec::new();
    for place in &case.places {
        let inputs: Option<Vec<ArrayD<f64>>> = place.inputs.iter().map(picked).collect();
        let around = place.around.iter().filter_map(|(name, x)| Some((name.clone(), picked(x)?))).collect();
        let (right, own) = (picked(&place.right)?, picked(&place.own)?);
        places.push(Place { inputs: inputs?, right, own, around, ..*place });
    }
    let tokens = match axis {
        0 => case.tokens.as_ref().and_then(|tokens| rows.iter().map(|row| tokens.get(*row).copied()).collect()),
        _ => case.tokens.clone(),
    };
    Some(Case { tokens, ..case.at(places, operation) })
}

/// The operation on some slices along an axis: the others are what was recorded.
struct Part<'w> {
    of: &'w dyn Operation,
    whole: &'w [Place],
    rows: &'w [usize],
    axis: usize,
}

impl Operation for Part<'_> {
    fn apply(&self, place: usize, inputs: &[ArrayD<f64>]) -> Option<ArrayD<f64>> {
        let mut all = self.whole.get(place)?.inputs.clone();
        for (all, some) in all.iter_mut().zip(inputs) {
            for (row, to) in self.rows.iter().enumerate() {
                let along = Dimension(self.axis);
                (some.ndim() > self.axis && row < some.len_of(along) && *to < all.len_of(along)).then_some(())?;
                let (mut to, from) = (all.index_axis_mut(along, *to), some.index_axis(along, row));
                (to.shape() == from.shape()).then(|| to.assign(&from))?;
            }
        }
        let out = self.of.apply(place, &all)?;
        (out.shape().get(self.axis).is_some_and(|n| self.rows.iter().all(|row| row < n)))
            .then(|| out.select(Dimension(self.axis), self.rows))
    }

    fn agrees(&self, _: usize, _: &ArrayD<f64>) -> bool {
        false
    }

    fn other_weights(&self, place: usize) -> Vec<OtherWeight> {
        self.of.other_weights(place)
    }

    fn other_weight(&self, place: usize, weight: &OtherWeight) -> Option<Array2<f64>> {
        self.of.other_weight(place, weight)
    }

    fn vectors(&self, place: usize, length: usize) -> Vec<(String, Vec<f64>)> {
        self.of.vectors(place, length)
    }
}

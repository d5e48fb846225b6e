//! Where a part of the positions is wrong: the laws of these positions alone. Each row of such an operation is made of the rows of its operands at the same position.

use std::sync::Arc;

use ndarray::{Array2, ArrayD, Axis as Dimension};

use crate::case::{Case, Kind, Operation, Place};
use crate::describe::set::describe as describe_set;
use crate::identify::DEAR;
use crate::identify::subject::Subject;
use crate::law::{Law, Support};

/// Whether each row of the output is made of the same rows of the operands.
fn is_by_row(kind: Kind) -> bool {
    matches!(kind, Kind::Norm | Kind::Linear | Kind::Activation | Kind::Gate | Kind::Sum | Kind::Embedding)
}

/// Positions from which laws can be measured.
const FEWEST: usize = 2;

/// The laws of the wrong positions, as laws of all.
pub(crate) fn laws(case: &Case<'_>, of: &dyn Fn(&Case<'_>) -> Vec<Law>) -> Vec<Law> {
    let first = case.first();
    let Some(axis) = case.axes.first().copied().filter(|axis| axis.is_position() && is_by_row(case.kind)) else {
        return Vec::new();
    };
    let wrong = crate::identify::wrong(first);
    let meant: Vec<Option<bool>> = wrong.outer_iter().map(|row| Some(row.iter().any(|wrong| *wrong))).collect();
    let set = describe_set(&meant, axis, case.tokens_of(axis));
    let rows: Vec<usize> = (0..meant.len()).filter(|&row| set.has[row]).collect();
    if set.is_all() || set.bits > DEAR || rows.len() < FEWEST {
        return Vec::new();
    }
    let operation = Part { of: case.operation, whole: &case.places, rows: &rows };
    let Some(part) = part_of(case, &rows, &operation) else { return Vec::new() };
    let mut support = Support::default();
    support.add(axis, set.words.clone());
    let subject = Subject::output(case);
    let wrapped = |law: Law| {
        let (inner, rows) = (law.predict.clone(), rows.clone());
        let predict = move |case: &Case<'_>, at: usize| {
            let operation = Part { of: case.operation, whole: &case.places, rows: &rows };
            let value = inner(&part_of(case, &rows, &operation)?, at)?;
            let mut out = case.places[at].right.clone();
            for (value, row) in value.outer_iter().zip(&rows) {
                let mut to = out.index_axis_mut(Dimension(0), *row);
                (to.shape() == value.shape()).then(|| to.assign(&value))?;
            }
            Some(out)
        };
        let words = format!("{}{}", law.words, support.said());
        let mut inside = law.support.clone();
        inside.add(axis, set.words.clone());
        Law { words, bits: law.bits + set.bits + 2.0, predict: Arc::new(predict), ..law }.on(inside)
    };
    let is_near = |law: &Law| law.predicted(case, case.fitted).is_some_and(|value| subject.is_near(&value));
    of(&part).into_iter().map(wrapped).filter(is_near).collect()
}

/// These rows of every place; those of `around` as far as they have as many.
fn part_of<'c>(case: &Case<'_>, rows: &[usize], operation: &'c Part<'_>) -> Option<Case<'c>> {
    let count = case.first().right.shape().first().copied()?;
    // A place without rows has no part.
    rows.iter().all(|row| *row < count).then_some(())?;
    let picked = |x: &ArrayD<f64>| (x.shape().first() == Some(&count)).then(|| x.select(Dimension(0), rows));
    let mut places = Vec::new();
    for place in &case.places {
        let inputs: Option<Vec<ArrayD<f64>>> = place.inputs.iter().map(picked).collect();
        let around = place.around.iter().filter_map(|(name, x)| Some((name.clone(), picked(x)?))).collect();
        let (right, own) = (picked(&place.right)?, picked(&place.own)?);
        places.push(Place { layer: place.layer, inputs: inputs?, right, own, tolerance: place.tolerance, around });
    }
    Some(Case {
        kind: case.kind,
        axes: case.axes.clone(),
        places,
        tokens: case.tokens.as_ref().and_then(|tokens| rows.iter().map(|row| tokens.get(*row).copied()).collect()),
        operation,
        fitted: case.fitted,
        begun: case.begun,
    })
}

/// The operation on some rows: the others are what was recorded.
struct Part<'w> {
    of: &'w dyn Operation,
    whole: &'w [Place],
    rows: &'w [usize],
}

impl Operation for Part<'_> {
    fn apply(&self, place: usize, inputs: &[ArrayD<f64>]) -> Option<ArrayD<f64>> {
        let mut all = self.whole.get(place)?.inputs.clone();
        for (all, some) in all.iter_mut().zip(inputs) {
            for (row, to) in self.rows.iter().enumerate() {
                (row < some.shape()[0] && all.shape()[1..] == some.shape()[1..]).then_some(())?;
                all.index_axis_mut(Dimension(0), *to).assign(&some.index_axis(Dimension(0), row));
            }
        }
        let out = self.of.apply(place, &all)?;
        (out.shape().first().is_some_and(|n| self.rows.iter().all(|row| row < n)))
            .then(|| out.select(Dimension(0), self.rows))
    }

    fn agrees(&self, _: usize, _: &ArrayD<f64>) -> bool {
        false
    }

    fn other_weights(&self, place: usize) -> Vec<String> {
        self.of.other_weights(place)
    }

    fn other_weight(&self, place: usize, name: &str) -> Option<Array2<f64>> {
        self.of.other_weight(place, name)
    }

    fn vectors(&self, place: usize, length: usize) -> Vec<(String, Vec<f64>)> {
        self.of.vectors(place, length)
    }
}

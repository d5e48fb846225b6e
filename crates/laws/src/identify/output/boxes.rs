//! Outputs that are wrong in several boxes of rows and channels: tiles that were not computed, or more than once.

use ndarray::{Array2, ArrayD};

use crate::case::Case;
use crate::describe::set::{Set, describe as describe_set};
use crate::fit::{ROOM, factor};
use crate::identify::further_off;
use crate::identify::subject::Subject;
use crate::law::{Form, Law};

/// Kinds of rows, by which of their channels are wrong.
const MOST_KINDS: usize = 4;
/// Boxes that are dearer to say are none.
const DEAR: f64 = 90.0;

/// One factor in all boxes, where they are no product of a set of rows and one of channels.
pub(super) fn boxes(subject: &Subject, case: &Case<'_>) -> Option<Law> {
    let [rows_axis, columns_axis] = subject.axes[..] else { return None };
    let wrong = further_off(&subject.right, &subject.own, subject.noise).into_dimensionality::<ndarray::Ix2>().ok()?;
    let mut kinds: Vec<Vec<bool>> = Vec::new();
    let of: Vec<usize> = wrong
        .rows()
        .into_iter()
        .map(|row| {
            let row = row.to_vec();
            kinds.iter().position(|kind| *kind == row).unwrap_or_else(|| {
                kinds.push(row);
                kinds.len() - 1
            })
        })
        .collect();
    let told = |meant: Vec<bool>, axis| {
        describe_set(&meant.into_iter().map(Some).collect::<Vec<_>>(), axis, case.tokens_of(axis))
    };
    let with = kinds.iter().filter(|kind| kind.contains(&true)).count();
    if kinds.len() > MOST_KINDS || with < 2 {
        return None;
    }
    let (mut all, mut words, mut bits): (Vec<(Set, Set)>, Vec<String>, f64) = (Vec::new(), Vec::new(), 4.0);
    for (number, kind) in kinds.iter().enumerate().filter(|(_, kind)| kind.contains(&true)) {
        let (rows, columns) =
            (told(of.iter().map(|of| *of == number).collect(), rows_axis), told(kind.clone(), columns_axis));
        let said = |set: &Set, name: &str| set.words.clone().unwrap_or_else(|| format!("all {name}s"));
        words.push(format!("{} of {}", said(&columns, columns_axis.name()), said(&rows, rows_axis.name())));
        bits += rows.bits + columns.bits;
        all.push((rows, columns));
    }
    let (right, own): (Vec<f64>, Vec<f64>) = subject
        .right
        .iter()
        .zip(&subject.own)
        .zip(&wrong)
        .filter(|(_, is)| **is)
        .map(|((right, own), _)| (*right, *own))
        .unzip();
    let fit = factor(&right, &own, subject.noise);
    let by = match own.iter().all(|y| *y == 0.0) {
        true => 0.0,
        false => fit.coefficients.first().filter(|_| fit.left <= ROOM * subject.noise)?.number().value,
    };
    if bits > DEAR {
        return None;
    }
    let done = if by == 0.0 { "zero".to_owned() } else { format!("{by} times the right one") };
    let words = format!("{} is {done} in {}", subject.label, words.join(", and in "));
    let made = move |right: &ArrayD<f64>| {
        let mut out: Array2<f64> = right.clone().into_dimensionality().ok()?;
        let fits = |(rows, columns): &(Set, Set)| (rows.has.len(), columns.has.len()) == out.dim();
        all.iter().all(fits).then_some(())?;
        for ((row, column), y) in out.indexed_iter_mut() {
            if all.iter().any(|(rows, columns)| rows.has[row] && columns.has[column]) {
                *y *= by;
            }
        }
        Some(out.into_dyn())
    };
    Some(subject.law(Form::OutputFunction, words, bits + 4.0, made).with("factor", by))
}

//! Slices that stand elsewhere, or are mixed; axes in another order.

use ndarray::{Array2, ArrayD, Axis as Dimension};
use serde_json::json;

use super::slices::{SLICE_ROOM, factors};
use crate::case::Case;
use crate::describe::choice;
use crate::describe::source::describe as describe_source;
use crate::describe::table::describe as describe_table;
use crate::fit::{factor, least_squares};
use crate::identify::subject::{Subject, by_slice, from_rows, rows};
use crate::identify::{first_along, further_off};
use crate::law::{Form, Law};
use crate::number::Measured;

/// Slices that are looked for among all others, at most.
const SOUGHT: usize = 512;

/// Slices of which all are looked for.
const ALL_SOUGHT: usize = 1024;

/// Slices that stand elsewhere.
pub(super) fn sources(subject: &Subject, case: &Case<'_>, axis: usize) -> Vec<Law> {
    let name = subject.axes[axis];
    let (right, own) = (rows(&subject.right, axis), rows(&subject.own, axis));
    let (n, width) = right.dim();
    if width < 3 || n < 2 {
        return Vec::new();
    }
    let of = factors(subject, &right, &own);
    let lengths = |x: &Array2<f64>| x.rows().into_iter().map(|row| row.dot(&row).sqrt()).collect::<Vec<_>>();
    let (length, own_length) = (lengths(&right), lengths(&own));
    let mean = (own_length.iter().map(|x| x * x).sum::<f64>() / n as f64).sqrt();
    let is_own = |i: usize| of.left[i] <= SLICE_ROOM * subject.noise;
    let nothing = |i: usize| own_length[i] <= 1e-9 * mean;
    let mut from: Vec<Option<usize>> = (0..n).map(|i| (is_own(i) && !nothing(i)).then_some(i)).collect();
    let mut by: Vec<Measured> =
        (0..n).map(|i| if nothing(i) { Measured::new(0.0, 0.0) } else { of.numbers[i] }).collect();
    let moved: Vec<usize> = (0..n).filter(|&i| !is_own(i) && !nothing(i)).collect();
    if moved.is_empty() {
        return Vec::new();
    }
    let step = if n > ALL_SOUGHT { moved.len().div_ceil(SOUGHT) } else { 1 };
    let mut rest = 0.0;
    let sought: Vec<usize> = moved.iter().copied().step_by(step).collect();
    for i in &moved {
        by[*i] = Measured::UNKNOWN;
    }
    for &i in &sought {
        let own = own.row(i);
        let share = |j: usize| if length[j] > 0.0 { (right.row(j).dot(&own) / length[j]).abs() } else { 0.0 };
        let Some(best) = (0..n).max_by(|&a, &b| share(a).total_cmp(&share(b))) else { continue };
        let fit = factor(&right.row(best).to_vec(), &own.to_vec(), subject.noise);
        let left = fit.left * own_length[i] / mean;
        if left > 10.0 * SLICE_ROOM * subject.noise {
            return Vec::new();
        }
        rest += left * left;
        (from[i], by[i]) = (Some(best), fit.coefficients[0]);
    }
    if (rest / sought.len().max(1) as f64).sqrt() > SLICE_ROOM * subject.noise {
        return Vec::new();
    }
    let source = describe_source(&from, n, name);
    let Some(table) = describe_table(&by, name, Some(1.0), case.tokens_of(name)) else { return Vec::new() };
    if source.is_itself {
        return Vec::new();
    }
    let times = if table.words == "1" { String::new() } else { format!(", times {}", table.words) };
    let words = format!("{} of each {} i is that of {}{times}", subject.label, name.name(), source.words);
    let bits = source.bits + if table.words == "1" { 0.0 } else { table.bits };
    let (from, values) = (source.from, table.values);
    let made = move |right: &ArrayD<f64>| {
        if right.shape().get(axis) != Some(&from.len()) {
            return None;
        }
        by_slice(&right.select(Dimension(axis), &from), axis, &values, |x, by| x * by)
    };
    let part = source.part.filter(|_| table.words == "1");
    let law = subject.law(Form::OutputSource, words, bits, made).within(name, part);
    vec![law.with("source", source.words).with("by", name.name())]
}

/// Each slice mixed with its neighbours.
pub(super) fn mixtures(subject: &Subject, axis: usize) -> Vec<Law> {
    let name = subject.axes[axis];
    let (right, own) = (rows(&subject.right, axis), rows(&subject.own, axis));
    let (n, width) = right.dim();
    if n < 4 || n * width > 1 << 22 {
        return Vec::new();
    }
    let mut laws = Vec::new();
    for (offsets, called) in
        [(&[0i64, -1][..], "the one before"), (&[0, 1], "the next"), (&[0, -1, 1], "both neighbours")]
    {
        let inner: Vec<usize> = (1..n - 1).collect();
        let column = |by: i64| -> Vec<f64> {
            inner.iter().flat_map(|&i| right.row((i as i64 + by) as usize).to_vec()).collect()
        };
        let columns: Vec<Vec<f64>> = offsets.iter().map(|by| column(*by)).collect();
        let wanted: Vec<f64> = inner.iter().flat_map(|&i| own.row(i).to_vec()).collect();
        let columns: Vec<&[f64]> = columns.iter().map(Vec::as_slice).collect();
        let Some(fit) = least_squares(&columns, &wanted, subject.noise) else { continue };
        if fit.left > SLICE_ROOM * subject.noise || fit.coefficients.iter().any(|c| c.may_be(0.0)) {
            continue;
        }
        let numbers: Vec<_> = fit.coefficients.iter().map(Measured::number).collect();
        let bits: f64 = 8.0 + numbers.iter().map(|number| number.bits).sum::<f64>();
        for (edge, at_edge) in
            ["the end slice again", "nothing", "the other end", "the right one"].into_iter().enumerate()
        {
            let terms: Vec<(f64, i64)> = numbers.iter().zip(offsets).map(|(number, by)| (number.value, *by)).collect();
            let said: Vec<String> = numbers
                .iter()
                .zip(offsets)
                .map(|(number, by)| {
                    format!("{} times [i{}]", number.words, if *by == 0 { String::new() } else { format!("{by:+}") })
                })
                .collect();
            let words = format!(
                "{} of each {} i is mixed with {called}: {} (beyond the ends: {at_edge})",
                subject.label,
                name.name(),
                said.join(" + ")
            );
            let made = move |right: &ArrayD<f64>| {
                let all = rows(right, axis);
                let n = all.nrows() as i64;
                let mut out = Array2::zeros(all.dim());
                for i in 0..n {
                    let beyond = terms.iter().any(|(_, by)| !(0..n).contains(&(i + by)));
                    if edge == 3 && beyond {
                        out.row_mut(i as usize).assign(&all.row(i as usize));
                        continue;
                    }
                    for (c, by) in &terms {
                        let at = i + by;
                        let from = match (0..n).contains(&at) {
                            true => at,
                            false if edge == 1 => continue,
                            false if edge == 2 => at.rem_euclid(n),
                            false => at.clamp(0, n - 1),
                        };
                        out.row_mut(i as usize).scaled_add(*c, &all.row(from as usize));
                    }
                }
                from_rows(out, right.shape(), axis)
            };
            if made(&subject.right).is_some_and(|value| subject.is_near(&value)) {
                let coefficients: Vec<f64> = numbers.iter().map(|number| number.value).collect();
                let law = subject.law(Form::OutputMix, words, bits, made);
                laws.push(
                    law.with("coefficients", json!(coefficients))
                        .with("offsets", json!(offsets))
                        .with("by", name.name()),
                );
            }
        }
    }
    laws
}

/// Each slice with those before it in its block: a sum that is not cleared in between.
pub(super) fn not_cleared(subject: &Subject, axis: usize) -> Option<Law> {
    let name = subject.axes[axis].name();
    let n = subject.right.shape()[axis];
    // From the one before the first that is wrong on, in blocks or all.
    let wrong = further_off(&subject.right, &subject.own, subject.noise);
    let begin = first_along(&wrong, axis).saturating_sub(1);
    let blocks = (1..=10).map(|power| 1 << power).filter(|block| *block < n).map(|block| (0, block));
    let blocks = blocks.chain([(0, n)]).chain((begin > 0).then_some((begin, n)));
    let sums = move |right: &ArrayD<f64>, (begin, block): (usize, usize)| -> Option<ArrayD<f64>> {
        let mut all = rows(right, axis);
        for i in (begin + 1..all.nrows()).filter(|i| i % block != 0) {
            let before = all.row(i - 1).to_owned();
            all.row_mut(i).scaled_add(1.0, &before);
        }
        from_rows(all, right.shape(), axis)
    };
    let is_it = |way: &(usize, usize)| sums(&subject.right, *way).is_some_and(|value| subject.is_near(&value));
    let (begin, block) = blocks.into_iter().filter(|_| n > 1).find(is_it)?;
    let of = match (begin, block == n) {
        (0, true) => format!("all {name}s"),
        (begin, true) => format!("the {name}s from {begin} on"),
        _ => format!("the {name}s of its block of {block}"),
    };
    let words = format!("{} of each {name} has those of {of} before it added: the sum is not cleared", subject.label);
    let bits = 9.0 + if begin > 0 { choice(n) } else { 0.0 };
    let law = subject.law(Form::OutputMix, words, bits, move |right| sums(right, (begin, block)));
    Some(law.with("block", block).with("from", begin).with("by", name))
}

/// The same numbers in another order of axes.
pub(super) fn orders(subject: &Subject) -> Vec<Law> {
    let rank = subject.axes.len();
    let all: &[&[usize]] = match rank {
        2 => &[&[1, 0]],
        3 => &[&[0, 2, 1], &[1, 0, 2], &[1, 2, 0], &[2, 0, 1], &[2, 1, 0]],
        _ => &[],
    };
    let mut laws = Vec::new();
    for &order in all {
        let said = order.iter().map(|&at| subject.axes[at].name()).collect::<Vec<_>>().join(", ");
        for is_read in [false, true] {
            let made = move |right: &ArrayD<f64>| -> Option<ArrayD<f64>> {
                let shape = right.shape().to_vec();
                if is_read {
                    let swapped: Vec<usize> = order.iter().map(|&at| shape[at]).collect();
                    let mut back = vec![0; order.len()];
                    order.iter().enumerate().for_each(|(to, &at)| back[at] = to);
                    let read = right.to_shape(swapped).ok()?.into_owned();
                    return Some(read.permuted_axes(back).as_standard_layout().into_owned());
                }
                let written = right.clone().permuted_axes(order.to_vec()).as_standard_layout().into_owned();
                written.to_shape(shape).ok().map(|x| x.into_owned())
            };
            if !made(&subject.right).is_some_and(|value| subject.is_near(&value)) {
                continue;
            }
            let words = match is_read {
                false => format!("{} is written in the order [{said}], and read as if it were not", subject.label),
                true => format!("{} is read in the order [{said}]", subject.label),
            };
            laws.push(subject.law(Form::OutputAxes, words, 8.0, made).with("order", said.clone()));
        }
    }
    laws
}

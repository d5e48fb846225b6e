//! Rows that something is added to before, and groups of channels that are normed by themselves.

use ndarray::Array2;

use super::divisor::divisor_laws;
use super::{ROOM, Right, matrix, output_of};
use crate::case::Case;
use crate::describe::choice;
use crate::fit::least_squares;
use crate::identify::statistics::{SIGNED, Statistic};
use crate::law::{Form, Law};
use crate::number::Measured;

/// y / w = f (x + a m): a number of each row is added before.
pub(super) fn offsets(case: &Case<'_>, right: &Right, own: &Array2<f64>) -> Vec<Law> {
    let first = case.first();
    let Some(x) = matrix(&first.inputs[0]) else { return Vec::new() };
    let noise = first.noise();
    let (mut slopes, mut offsets) = (Vec::new(), Vec::new());
    for (x, y) in x.rows().into_iter().zip(own.rows()) {
        let (x, y): (Vec<f64>, Vec<f64>) = (x.iter().zip(&right.gain).map(|(x, w)| x * w).collect(), y.to_vec());
        let Some(fit) = least_squares(&[&x, &right.gain], &y, noise) else { return Vec::new() };
        if fit.left > ROOM * noise {
            return Vec::new();
        }
        slopes.push(fit.coefficients[0]);
        offsets.push(fit.coefficients[1]);
    }
    let mut laws = Vec::new();
    let one: Statistic = ("one", |_| 1.0);
    for (called, f) in SIGNED.into_iter().chain([one]) {
        let of: Vec<f64> = x.rows().into_iter().map(|row| f(&row.to_vec())).collect();
        let share: Vec<Measured> = offsets
            .iter()
            .zip(&slopes)
            .zip(&of)
            .map(|((o, s), m)| Measured::new(o.value / (s.value * m), o.error / (s.value * m).abs()))
            .collect();
        let by = Measured::mean(share.iter().copied());
        let number = by.number();
        if !share.iter().all(|m| m.may_be(number.value)) {
            continue;
        }
        let a = number.value;
        let moved = move |x: &Array2<f64>| {
            let mut out = x.clone();
            for mut row in out.rows_mut() {
                let by = a * f(&row.to_vec());
                row.mapv_inplace(|x| x + by);
            }
            out
        };
        let divisors: Vec<Measured> = slopes.iter().map(|s| s.inverse()).collect();
        for is_after in [true, false] {
            let inner = if is_after { moved(&x) } else { x.clone() };
            for divisor in divisor_laws(case, right, &inner, &divisors) {
                let rows = divisor.f.clone();
                let then = divisor.words.clone().map_or_else(String::new, |words| format!("; {words}"));
                let of = if is_after { "" } else { ", which the divisor does not see" };
                let words = format!("{} times the row's {called} is added before{of}{then}", number.words);
                laws.push(Law::new(Form::NormCentre, words, 8.0 + number.bits + divisor.bits, move |case, at| {
                    let place = &case.places[at];
                    output_of(case, at, |right, x| {
                        let mut out = moved(&x);
                        let divisors = rows(place, right, if is_after { &out } else { &x })?;
                        for (mut row, by) in out.rows_mut().into_iter().zip(&divisors) {
                            row.iter_mut().zip(&right.gain).for_each(|(x, gain)| *x = *x / by * gain);
                        }
                        Some(out)
                    })
                }));
            }
        }
    }
    laws
}

/// How channels are grouped: neighbours, or in turn; and whether each group's sum is divided by the number of all.
#[derive(Clone, Copy)]
struct Groups {
    size: usize,
    in_turn: bool,
    over_all: bool,
}

/// Groups of channels, each by its own root mean square.
pub(super) fn groups(case: &Case<'_>, right: &Right, own: &Array2<f64>) -> Vec<Law> {
    let Some(x) = matrix(&case.first().inputs[0]) else { return Vec::new() };
    let width = x.ncols();
    let by_groups = |x: &Array2<f64>, right: &Right, way: Groups| {
        let mut out = right.inner(x);
        let over = if way.over_all { way.size as f64 / x.ncols().max(1) as f64 } else { 1.0 };
        let count = x.ncols() / way.size.max(1);
        for mut row in out.rows_mut() {
            let group_of = |c: usize| if way.in_turn { c % count } else { c / way.size };
            let mut squares = vec![0.0; count];
            row.iter().enumerate().for_each(|(c, x)| squares[group_of(c)] += x * x / way.size as f64);
            for (c, (x, gain)) in row.iter_mut().zip(&right.gain).enumerate() {
                *x *= gain / (squares[group_of(c)] * over + right.epsilon).sqrt();
            }
        }
        out
    };
    let noise = case.first().noise();
    let sizes = (2..width).filter(|size| width.is_multiple_of(*size));
    let ways = sizes.flat_map(|size| {
        [(false, false), (false, true), (true, false), (true, true)].map(|(in_turn, over_all)| Groups {
            size,
            in_turn,
            over_all,
        })
    });
    let fits = |way: &Groups| {
        let due = by_groups(&x, right, *way);
        let left: f64 = due.iter().zip(own).map(|(a, b)| (a - b).powi(2)).sum();
        left.sqrt() <= ROOM * noise * own.iter().map(|y| y * y).sum::<f64>().sqrt()
    };
    ways.filter(fits)
        .map(|way| {
            let of = match way.in_turn {
                true => format!("of channels, each rest of the number mod {},", width / way.size),
                false => format!("each group of {} channels", way.size),
            };
            let by = match way.over_all {
                true => format!("the root of its own sum of squares over all {width}"),
                false => "its own root mean square".to_owned(),
            };
            let words = format!("{of} is divided by {by}");
            let law = Law::new(Form::NormGroups, words, 7.0 + choice(way.size), move |case, at| {
                output_of(case, at, |right, x| Some(by_groups(&x, right, way)))
            });
            law.with("group", way.size)
        })
        .collect()
}

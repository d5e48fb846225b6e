//! Another divisor: a statistic of each row, with a scale and an epsilon.

use std::sync::Arc;

use ndarray::Array2;

use super::channels::channels_weighed;
use super::statistics::statistics;
use super::{Part, Right, Rows, matrix, roots};
use crate::case::{Axis, Case, Place};
use crate::describe::function::describe as describe_function;
use crate::describe::source::{describe as describe_source, only};
use crate::describe::table::describe as describe_table;
use crate::fit::weighed;
use crate::number::Measured;

/// How many rows belong to a position.
fn inside(case: &Case<'_>) -> usize {
    let shape = case.first().right.shape();
    shape[1..shape.len().saturating_sub(1)].iter().product()
}

/// The price of the plainest statistic, the root mean square.
const PLAINEST: f64 = 2.0;
/// What another may cost with its numbers where it gives one number alone.
const OF_ONE_NUMBER: f64 = 16.0;
/// How far an epsilon of one digit may be off the measured one.
const PLAIN_EPSILON: f64 = 1e-3;
/// Statistics that are as plain as this are taken of weighed rows too.
const PLAIN: f64 = 5.0;

pub(super) fn divisor_laws(case: &Case<'_>, right: &Right, inner: &Array2<f64>, own: &[Measured]) -> Vec<Part<Rows>> {
    let due = right.divisor(inner);
    if own.iter().zip(&due).all(|(own, due)| own.may_be(*due)) {
        return vec![Part {
            words: None,
            bits: 0.0,
            f: Arc::new(|_, right, x| Some(right.divisor(x))),
            parameters: Vec::new(),
        }];
    }
    // It is measured of the right rows: where they do not tell it to a plain number, none is said.
    let plain: f64 = format!("{:.0e}", right.epsilon).parse().unwrap_or(0.0);
    let epsilon = match (plain / right.epsilon - 1.0).abs() < PLAIN_EPSILON {
        true => format!(", epsilon {} inside", Measured::new(plain, 0.0).number().words),
        false => String::new(),
    };
    let mut laws: Vec<Part<Rows>> = Vec::new();
    let plain = statistics(inner.ncols(), inside(case));
    let powers =
        [(1.0, "the gain"), (0.5, "the root of the gain"), (-1.0, "1 over the gain"), (2.0, "the square of the gain")];
    let weighed = |(power, called): (f64, &str)| {
        let few = plain.iter().filter(|(_, bits, _)| *bits <= PLAIN);
        let each = few.map(|(words, bits, f)| (format!("{words} of the row times {called}"), bits + 3.0, f.clone()));
        each.map(|of| (of, power)).collect::<Vec<_>>()
    };
    let weighed: Vec<_> = powers.into_iter().flat_map(weighed).collect();
    let all = plain.into_iter().map(|of| (of, 0.0)).chain(weighed);
    let is_one = different(own) == 1;
    for ((words, bits, statistic), power_of_gain) in all {
        let of = statistic(&right.weighed(inner, power_of_gain));
        if of.iter().any(|s| !s.is_finite()) {
            continue;
        }
        for is_inside in [true, false] {
            // S = sqrt(a s^2 + e), or S = a s + e.
            let power = if is_inside { 2 } else { 1 };
            let x: Vec<f64> = of.iter().map(|s| s.powi(power)).collect();
            let y: Vec<Measured> = own.iter().map(|s| s.powi(power)).collect();
            let mut is_found = false;
            for (number, (a, e, price)) in scale_and_epsilon(&x, &y, right.epsilon).into_iter().enumerate() {
                // With the right epsilon and without: both are said where nobody can tell them apart.
                if is_found && number >= WITHOUT_A_NUMBER {
                    break;
                }
                let made = |s: f64| {
                    let inner = a.value * s.powi(power) + e.value;
                    if is_inside { inner.max(0.0).sqrt() } else { inner }
                };
                if !own.iter().zip(&of).all(|(own, s)| own.may_be(made(*s))) {
                    continue;
                }
                is_found = true;
                // Without an epsilon the two are one, which is said without the root.
                if is_inside && e.value == 0.0 {
                    continue;
                }
                // Rows of one size are one number, which many statistics give with a number of their own.
                if is_one && bits > PLAINEST && bits + price > OF_ONE_NUMBER {
                    continue;
                }
                let times = if a.words == "1" { String::new() } else { format!("{} times ", a.words) };
                let plus = if e.value == 0.0 { String::new() } else { format!(" plus {}", e.words) };
                let said = match is_inside && e.value != 0.0 {
                    true => format!("rows are divided by sqrt({times}s^2{plus}), s being {words}"),
                    false => format!("rows are divided by {times}{words}{plus}"),
                };
                let (statistic, a, e) = (statistic.clone(), a.value, e.value);
                laws.push(Part {
                    words: Some(format!("{said} (right: root mean square{epsilon})")),
                    bits: bits + price + if is_inside || e == 0.0 { 0.0 } else { 2.0 },
                    f: Arc::new(move |_, right, x| {
                        let made = |s: f64| {
                            let inner = a * s.powi(power) + e;
                            if is_inside { inner.max(0.0).sqrt() } else { inner }
                        };
                        Some(statistic(&right.weighed(x, power_of_gain)).into_iter().map(made).collect())
                    }),
                    parameters: vec![
                        ("statistic", words.clone().into()),
                        ("scale", a.into()),
                        ("epsilon", e.into()),
                        ("epsilon_inside", is_inside.into()),
                    ],
                });
            }
        }
    }
    // Bounds of the right divisor.
    for (words, is_least) in [("at least", true), ("at most", false)] {
        let bound = own
            .iter()
            .map(|m| m.value)
            .fold(if is_least { f64::INFINITY } else { 0.0 }, if is_least { f64::min } else { f64::max });
        let number = Measured::new(bound, own[0].error).number();
        let b = number.value;
        let made = move |d: f64| if is_least { d.max(b) } else { d.min(b) };
        if own.iter().zip(&due).all(|(own, due)| own.may_be(made(*due))) {
            laws.push(Part::new(
                format!("rows are divided by {words} {}", number.words),
                4.0 + number.bits,
                Arc::new(move |_, right, x| Some(right.divisor(x).into_iter().map(made).collect())),
            ));
        }
    }
    if let Some(function) = describe_function(&due, own) {
        let f = function.f.clone();
        laws.push(Part::new(
            format!("rows are divided by {} (d: the right divisor)", function.of("d")),
            function.bits + 6.0,
            Arc::new(move |_, right, x| Some(right.divisor(x).into_iter().map(|d| f(d)).collect())),
        ));
    }
    laws.extend(of_others(case, right, inner, own));
    laws.extend(by_element(case, right, &due, own));
    laws.extend(two_statistics(case, right, inner, own));
    laws.extend(channels_weighed(case, right, inner, own));
    // Of few rows a number for each is no law: their scale is free.
    if different(own) >= FEWEST_ROWS {
        laws.extend(epsilon_by_row(case, right, inner, own));
        laws.extend(factor_by_row(case, &due, own));
    }
    laws.sort_by(|a, b| a.bits.total_cmp(&b.bits));
    laws.truncate(MOST);
    laws
}

/// A factor of the right divisor, by position.
fn factor_by_row(case: &Case<'_>, due: &[f64], own: &[Measured]) -> Option<Part<Rows>> {
    let ratio: Vec<Measured> =
        own.iter().zip(due).map(|(m, due)| Measured::new(due / m.value, m.error * due / m.value.powi(2))).collect();
    let rank = case.first().right.ndim();
    let (axis, tokens) = if rank == 2 { (Axis::Token, case.tokens_of(Axis::Token)) } else { (Axis::Row, None) };
    let table = describe_table(&ratio, axis, Some(1.0), tokens)?;
    let values = table.values;
    Some(Part::new(
        format!("rows are {} times the right ones", table.words),
        table.bits + 4.0,
        Arc::new(move |_, right, x| {
            let due = right.divisor(x);
            (due.len() == values.len()).then(|| due.iter().zip(&values).map(|(d, by)| d / by).collect())
        }),
    ))
}

/// Rows that are multiplied by an element of the gain each: its index runs along the wrong axis.
fn by_element(case: &Case<'_>, right: &Right, due: &[f64], own: &[Measured]) -> Option<Part<Rows>> {
    type Index = fn(usize, usize) -> usize;
    let inside = inside(case).max(1);
    let indices: [(&str, Index); 3] = [
        ("position t: element t of the gain", |row, inside| row / inside),
        ("head h: element h of the gain", |row, inside| row % inside),
        ("row r, positions by heads: element r of the gain", |row, _| row),
    ];
    let width = right.gain.len();
    let (words, index) = indices.into_iter().take(if inside > 1 { 3 } else { 1 }).find(|(_, index)| {
        let is =
            |(row, (own, due)): (usize, (&Measured, &f64))| own.may_be(due / right.gain[index(row, inside) % width]);
        own.iter().zip(due).enumerate().all(is)
    })?;
    Some(Part::new(
        format!("all channels of a row have one gain, at {words}, modulo {width}"),
        8.0,
        Arc::new(move |_, right, x| {
            let of = |(row, d): (usize, f64)| d / right.gain[index(row, inside) % width];
            (right.gain.len() == width).then(|| right.divisor(x).into_iter().enumerate().map(of).collect())
        }),
    ))
}

/// The divisor of another row, or of another recorded tensor.
fn of_others(case: &Case<'_>, right: &Right, inner: &Array2<f64>, own: &[Measured]) -> Vec<Part<Rows>> {
    let mut laws: Vec<Part<Rows>> = Vec::new();
    let first = case.first();
    let right_input = ("its right input".to_owned(), first.inputs[0].clone());
    let around = first.around.iter().filter(|(_, x)| x.shape() == first.inputs[0].shape());
    for (name, x) in std::iter::once(&right_input).chain(around) {
        let Some(of) = matrix(x) else { continue };
        if own.iter().zip(right.divisor(&right.inner(&of))).all(|(own, due)| own.may_be(due)) {
            let known = name.clone();
            let f: Rows = Arc::new(move |place, right, _| {
                let x = match place.around.iter().find(|(name, _)| *name == known) {
                    Some((_, x)) => x,
                    None => place.inputs.first()?,
                };
                Some(right.divisor(&right.inner(&matrix(x)?)))
            });
            laws.push(Part::new(format!("rows are divided by what {name} would be divided by"), 8.0, f));
        }
    }
    laws.extend(super::channels::of_other_heads(case, right, own));
    // Rows of a head at other positions, and of a position in other heads.
    let due = right.divisor(inner);
    let shape = first.right.shape();
    let inside: usize = shape[1..shape.len() - 1].iter().product();
    let count = shape[0];
    if due.len() != own.len() || due.len() != count * inside || count < 2 {
        return laws;
    }
    let at_positions = |t: usize, from: usize| (0..inside).all(|h| own[t * inside + h].may_be(due[from * inside + h]));
    let at_heads = |h: usize, from: usize| (0..count).all(|t| own[t * inside + h].may_be(due[t * inside + from]));
    let mut offer = |n: usize, axis: Axis, is: &dyn Fn(usize, usize) -> bool, of_positions: bool| {
        let Some(from) = only(n, n, is) else { return };
        let source = describe_source(&from, n, axis);
        if source.is_itself || source.bits > LISTED {
            return;
        }
        let rows = source.from.clone();
        let f: Rows = Arc::new(move |_, right, x| {
            let due = right.divisor(x);
            let row = |i: usize| match of_positions {
                true => rows.get(i / inside).map(|from| from * inside + i % inside),
                false => rows.get(i % inside).map(|from| i / inside * inside + from),
            };
            (0..due.len()).map(|i| due.get(row(i)?).copied()).collect()
        });
        let whose = if of_positions { "position" } else { "head" };
        let said = format!("rows are divided by the divisor of another {whose}: of each, {}", source.words);
        laws.push(Part::new(said, source.bits + 5.0, f));
    };
    offer(count, if inside == 1 { Axis::Token } else { Axis::Row }, &at_positions, true);
    if inside > 1 {
        offer(inside, Axis::Head, &at_heads, false);
    }
    laws
}

/// A list of rows that is dearer is no law.
const LISTED: f64 = 48.0;

/// S = a s1 + b s2, or S^2 = a s1^2 + b s2^2: two statistics of each row, one of them the root mean square.
fn two_statistics(case: &Case<'_>, right: &Right, inner: &Array2<f64>, own: &[Measured]) -> Vec<Part<Rows>> {
    let mut laws: Vec<Part<Rows>> = Vec::new();
    let all: Vec<_> =
        statistics(inner.ncols(), inside(case)).into_iter().filter(|(_, bits, _)| *bits <= KNOWN).collect();
    // Beside the right divisor, or beside it without its epsilon, which may be added to the sum of both.
    type Base = fn(&Right, &Array2<f64>) -> Vec<f64>;
    type Behind = fn(&Right) -> f64;
    let bases: [(&str, &str, Base, Behind); 3] = [
        ("the right divisor", "the right divisor squared", |right, x| right.divisor(x), |_| 0.0),
        ("the root mean square", "the mean square", |_, x| roots(x, 0.0), |_| 0.0),
        ("the root mean square", "the mean square", |_, x| roots(x, 0.0), |right| right.epsilon),
    ];
    let bases = bases.into_iter().take(if right.epsilon > 0.0 { 3 } else { 1 });
    for ((words, bits, statistic), (called, squared, base, behind)) in
        all.into_iter().flat_map(|of| bases.clone().map(move |base| (of.clone(), base)))
    {
        let (due, of) = (base(right, inner), statistic(inner));
        let epsilon = behind(right);
        for power in [1, 2] {
            // An epsilon stands inside the root.
            if power == 1 && epsilon != 0.0 {
                continue;
            }
            let raised = |x: &[f64]| x.iter().map(|x| x.powi(power)).collect::<Vec<f64>>();
            let y: Vec<Measured> = own.iter().map(|s| s.powi(power).plus(-epsilon)).collect();
            let Some(fit) = weighed(&[&raised(&due), &raised(&of)], &y) else { continue };
            let (a, b) = (fit.coefficients[0], fit.coefficients[1]);
            // The right divisor as it is, and a share of the other statistic.
            let beside = y.iter().zip(due.iter().zip(&of)).map(|(y, (due, of))| {
                let of = of.powi(power);
                Measured::new((y.value - due.powi(power)) / of, y.error / of.abs())
            });
            let (whole, share) = (Measured::new(1.0, 0.0).number(), Measured::mean(beside));
            for (a, b) in [
                (whole.clone(), share.number()),
                (whole, share.plain()),
                (a.number(), b.number()),
                (a.plain(), b.plain()),
            ] {
                let (one, other) = (a.value, b.value);
                let made = move |d: f64, s: f64, epsilon: f64| {
                    let sum = one * d.powi(power) + other * s.powi(power) + epsilon;
                    if power == 2 { sum.max(0.0).sqrt() } else { sum }
                };
                if one == 0.0
                    || other == 0.0
                    || !own.iter().zip(due.iter().zip(&of)).all(|(own, (d, s))| own.may_be(made(*d, *s, epsilon)))
                {
                    continue;
                }
                let term = |n: &crate::number::Number, words: &str| {
                    if n.value == 1.0 { words.to_owned() } else { format!("{} times {words}", n.words) }
                };
                let said = match power {
                    1 => format!("rows are divided by {} plus {}", term(&a, called), term(&b, &words)),
                    _ => format!(
                        "rows are divided by the root of {} plus {}{}",
                        term(&a, squared),
                        term(&b, &format!("the square of {words}")),
                        if epsilon == 0.0 { "" } else { " plus the epsilon" }
                    ),
                };
                let statistic = statistic.clone();
                laws.push(Part::new(
                    said,
                    8.0 + bits + a.bits + b.bits,
                    Arc::new(move |_: &Place, right: &Right, x: &Array2<f64>| {
                        let (due, of, epsilon) = (base(right, x), statistic(x), behind(right));
                        Some(due.into_iter().zip(of).map(|(d, s)| made(d, s, epsilon)).collect())
                    }),
                ));
                break;
            }
        }
    }
    laws
}

/// Statistics up to this price are taken together with the right divisor.
const KNOWN: f64 = 7.0;

/// Another epsilon for each row.
fn epsilon_by_row(case: &Case<'_>, right: &Right, inner: &Array2<f64>, own: &[Measured]) -> Option<Part<Rows>> {
    let squares: Vec<f64> = right.divisor(inner).iter().map(|d| d * d - right.epsilon).collect();
    let epsilons: Vec<Measured> = own
        .iter()
        .zip(&squares)
        .map(|(s, square)| Measured::new(s.value * s.value - square, 2.0 * s.value.abs() * s.error))
        .collect();
    let rank = case.first().right.ndim();
    let (axis, tokens) = if rank == 2 { (Axis::Token, case.tokens_of(Axis::Token)) } else { (Axis::Row, None) };
    let table = describe_table(&epsilons, axis, Some(right.epsilon), tokens)
        .filter(|table| table.number.is_none() || table.part.is_some())?;
    let values = table.values;
    Some(Part::new(
        format!("epsilon is {} inside the root", table.words),
        table.bits + 6.0,
        Arc::new(move |_, right, x| {
            let due = right.divisor(x);
            let with = |(d, e): (&f64, &f64)| (d * d - right.epsilon + e).max(0.0).sqrt();
            (due.len() == values.len()).then(|| due.iter().zip(&values).map(with).collect())
        }),
    ))
}

/// Rows of which two numbers, or a table, are told.
pub(super) const FEWEST_ROWS: usize = 4;

/// How many of these numbers are different ones, no more than [`FEWEST_ROWS`] of them counted: equal rows tell no more than one.
pub(super) fn different(all: &[Measured]) -> usize {
    let mut seen: Vec<&Measured> = Vec::new();
    for one in all {
        if !seen.iter().any(|other| one.may_be(other.value)) && seen.len() < FEWEST_ROWS {
            seen.push(one);
        }
    }
    seen.len()
}

/// Laws of a part that are kept.
pub(super) const MOST: usize = 4;

/// How many of these have no number of their own.
const WITHOUT_A_NUMBER: usize = 2;

/// `y = a x + e`, the plainest first: as it is, with the right epsilon, with another, with another scale, with both.
#[allow(clippy::type_complexity)]
fn scale_and_epsilon(
    x: &[f64],
    y: &[Measured],
    epsilon: f64,
) -> Vec<(crate::number::Number, crate::number::Number, f64)> {
    let exact = |value: f64, words: String| crate::number::Number { value, words, bits: 0.0 };
    let (one, nothing) = (exact(1.0, "1".into()), exact(0.0, "0".into()));
    let eps = exact(epsilon, Measured::new(epsilon, 1e-3 * epsilon).number().words);
    let mut all = vec![(one.clone(), nothing.clone(), 0.0), (one.clone(), eps.clone(), 1.0)];
    let off = Measured::mean(y.iter().zip(x).map(|(y, x)| y.plus(-x)));
    if off.is_known() {
        for e in [off.number(), off.plain()] {
            all.push((one.clone(), e.clone(), e.bits));
        }
    }
    for e in [&nothing, &eps] {
        let ratio = Measured::mean(
            y.iter()
                .zip(x)
                .filter(|(_, x)| **x != 0.0)
                .map(|(y, x)| Measured::new((y.value - e.value) / x, y.error / x.abs())),
        );
        if ratio.is_known() {
            for a in [ratio.number(), ratio.plain()] {
                all.push((a.clone(), e.clone(), a.bits + 2.0));
            }
        }
    }
    let ones = vec![1.0; x.len()];
    let both = (different(y) >= FEWEST_ROWS).then(|| weighed(&[x, &ones], y));
    if let Some(fit) = both.flatten() {
        let (a, e) = (fit.coefficients[0], fit.coefficients[1]);
        for (a, e) in [(a.number(), e.number()), (a.plain(), e.plain())] {
            let price = a.bits + e.bits;
            all.push((a, e, price));
        }
    }
    all
}

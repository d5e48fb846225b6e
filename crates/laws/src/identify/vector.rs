//! A vector of the model that is another one than it should be, such as the gain of a norm or the bias of a product: which function, order, part or sum of the
//! model's vectors it is.

use std::sync::Arc;

use crate::case::{Axis, Case};
use crate::describe::choice;
use crate::describe::function::{self, describe as describe_function};
use crate::describe::source::{Source, describe as describe_source};
use crate::describe::table::describe as describe_table;
use crate::fit::{dot, least_squares};
use crate::identify::output::roundings::roundings_of;
use crate::identify::pool::{self, Made};
use crate::number::{Measured, NUMBER};

/// What a vector is called.
pub(super) struct Called {
    pub(super) one: &'static str,
    pub(super) several: &'static str,
    /// What stands for an element of the right one.
    pub(super) symbol: &'static str,
    /// What its elements are where it is left out.
    pub(super) nothing: f64,
}

/// What a measured vector is, in words.
pub(super) struct Said {
    pub(super) words: String,
    /// The same without what its symbols stand for, where it is a function of the right one or another vector.
    pub(super) is: Option<String>,
    pub(super) bits: f64,
    pub(super) made: Made,
}

/// Laws of a vector that are kept.
const MOST: usize = 4;
/// Numbers of a fused vector up to which its parts are tried.
const PARTS: [usize; 4] = [2, 3, 4, 8];

/// A law of each element by itself, where it has a number of its own.
fn with_each(numbers: Vec<f64>, f: fn(f64, f64) -> f64) -> Made {
    Arc::new(move |_, _, right| {
        let all = right.iter().zip(&numbers).map(|(x, number)| f(*x, *number)).collect();
        (right.len() == numbers.len()).then_some(all)
    })
}

/// A law that makes the vector of the right one alone.
fn of_right(f: impl Fn(&[f64]) -> Option<Vec<f64>> + Send + Sync + 'static) -> Made {
    Arc::new(move |_, _, right| f(right))
}

/// Which of the right elements stands at each place, where that can be told of most of them; it gives all that was measured.
pub(super) fn source_of(right: &[f64], measured: &[Measured]) -> Option<Source> {
    let only = |m: &Measured| {
        let mut fits = (0..right.len()).filter(|&c| m.may_be(right[c]));
        let first = fits.next()?;
        fits.next().is_none().then_some(first)
    };
    let from: Vec<Option<usize>> = measured.iter().map(only).collect();
    if from.iter().flatten().count() * 2 <= measured.len() {
        return None;
    }
    let source = describe_source(&from, right.len(), Axis::Channel);
    let fits = measured.iter().zip(&source.from).all(|(m, c)| m.may_be(right[*c]));
    (fits && !source.is_itself && source.bits < NUMBER * measured.len() as f64).then_some(source)
}

/// What a measured vector is beside the right one, the plainest first.
pub(super) fn said(case: &Case<'_>, called: &Called, right: &[f64], measured: &[Measured]) -> Vec<Said> {
    let Called { one, several, symbol, nothing } = *called;
    let n = measured.len();
    let fits = |due: &[f64]| due.len() == n && measured.iter().zip(due).all(|(m, due)| m.may_be(*due));
    let explained = format!(" ({symbol}: the right {one})");
    let mut all: Vec<Said> = Vec::new();
    let mut say = |is: String, end: &str, bits: f64, made: Made| {
        all.push(Said { words: format!("{is}{end}"), is: Some(is), bits, made });
    };
    if fits(&vec![nothing; n]) {
        say(format!("the {one} is left out"), "", 3.0, of_right(move |right| Some(vec![nothing; right.len()])));
    }
    if let Some(function) = describe_function(right, measured) {
        let is = format!("the {one} is {}", function.of(symbol));
        let f = function.f;
        let made = of_right(move |right| Some(right.iter().map(|x| f(*x)).collect()));
        say(is, &explained, function.bits, made);
    }
    let row = |x: &[f64]| ndarray::Array1::from(x.to_vec()).insert_axis(ndarray::Axis(0)).into_dyn();
    for (how, bits, round) in roundings_of() {
        let rounded = move |x: &[f64]| round(&row(x)).map(|x| x.iter().copied().collect::<Vec<f64>>());
        if rounded(right).is_some_and(|x| fits(&x)) {
            say(format!("the {one} is {how}"), "", bits + 2.0, of_right(rounded));
        }
    }
    for (name, vector) in case.operation.vectors(case.fitted, n) {
        for (more, bits, plus) in [("", 8.0, 0.0), ("1 plus ", 10.0, 1.0)] {
            if fits(&vector.iter().map(|v| v + plus).collect::<Vec<_>>()) {
                let known = name.clone();
                let made: Made = Arc::new(move |case, place, right| {
                    let vector = case.operation.vector(place, right.len(), &known)?;
                    Some(vector.into_iter().map(|v| v + plus).collect())
                });
                say(format!("the {one} is {more}{name}"), "", bits, made);
            }
        }
    }
    let mut say = |words: String, bits: f64, made: Made| all.push(Said { words, is: None, bits, made });
    if let Some((function, set)) = function::on_a_part(right, measured, Axis::Channel)
        && let Some(on) = set.words
    {
        let words = format!("the {one} is {} for {on}, else {symbol}{explained}", function.of(symbol));
        let (f, has) = (function.f, set.has);
        let made = of_right(move |right| {
            let some = right.iter().zip(&has).map(|(x, has)| if *has { f(*x) } else { *x });
            (has.len() == right.len()).then(|| some.collect())
        });
        say(words, function.bits + set.bits + 3.0, made);
    }
    for (name, by, other) in with_another(case, right, measured) {
        let words = format!("the {one} is {} {symbol} + {} times {name}{explained}", by.words, other.words);
        let (a, b) = (by.value, other.value);
        let made: Made = Arc::new(move |case, place, right| {
            let vector = case.operation.vector(place, right.len(), &name)?;
            Some(right.iter().zip(vector).map(|(x, v)| a * x + b * v).collect())
        });
        say(words, 8.0 + by.bits + other.bits, made);
    }
    for (name, vector) in case.operation.vectors(case.fitted, n) {
        if fits(&right.iter().zip(&vector).map(|(x, v)| x * v).collect::<Vec<_>>()) {
            let words = format!("the {one} is {symbol} times {name}{explained}");
            let made: Made = Arc::new(move |case, place, right| {
                let vector = case.operation.vector(place, right.len(), &name)?;
                Some(right.iter().zip(vector).map(|(x, v)| x * v).collect())
            });
            say(words, 9.0, made);
        }
    }
    for parts in PARTS {
        for (name, vector) in case.operation.vectors(case.fitted, parts * n) {
            if let Some(part) = (0..parts).find(|part| fits(&vector[part * n..(part + 1) * n])) {
                let words = format!("the {one} is part {} of {parts} of {name}", part + 1);
                let made: Made = Arc::new(move |case, place, _| {
                    Some(case.operation.vector(place, parts * n, &name)?[part * n..(part + 1) * n].to_vec())
                });
                say(words, 8.0 + choice(parts), made);
            }
        }
    }
    type Change = fn(f64, f64) -> f64;
    let over = |(m, x): (&Measured, &f64)| match x.abs() > LEAST {
        true => Measured::new(m.value / x, m.error / x.abs()),
        false => Measured::UNKNOWN,
    };
    let ratios: Vec<Measured> = measured.iter().zip(right).map(over).collect();
    let offs: Vec<Measured> = measured.iter().zip(right).map(|(m, x)| m.plus(-x)).collect();
    let changes: [(&str, Vec<Measured>, f64, f64, Change); 2] =
        [("times", ratios, 1.0, 4.0, |x, by| x * by), ("plus", offs, 0.0, 5.0, |x, by| x + by)];
    for (word, numbers, usual, bits, f) in changes {
        if let Some(table) = describe_table(&numbers, Axis::Channel, Some(usual), None) {
            let words = format!("the {one} is {symbol} {word} {}{explained}", table.words);
            say(words, table.bits + bits, with_each(table.values, f));
        }
    }
    if let Some(source) = source_of(right, measured) {
        let from = source.from;
        let made = of_right(move |right| from.iter().map(|&c| right.get(c).copied()).collect());
        say(format!("the {one} of each channel i is that of {}", source.words), source.bits + 4.0, made);
    }
    if let Some(found) = pool::found(case, right, measured) {
        say(format!("of the {several} {}", found.words), found.bits + 2.0, found.of);
    }
    for (order, is_down) in [("in rising order", false), ("in falling order", true)] {
        let sorted = move |right: &[f64]| {
            let mut sorted = right.to_vec();
            sorted.sort_by(|a, b| if is_down { b.total_cmp(a) } else { a.total_cmp(b) });
            Some(sorted)
        };
        if sorted(right).is_some_and(|sorted| fits(&sorted)) {
            say(format!("the {one} is sorted, {order}"), 6.0, of_right(sorted));
        }
    }
    all.sort_by(|a, b| a.bits.total_cmp(&b.bits));
    all.truncate(MOST);
    all
}

/// Elements that are no larger say nothing of a factor.
const LEAST: f64 = 1e-6;

/// The right vector in some share, and another one of the model in some share.
fn with_another(
    case: &Case<'_>,
    right: &[f64],
    measured: &[Measured],
) -> Vec<(String, crate::number::Number, crate::number::Number)> {
    let values: Vec<f64> = measured.iter().map(|m| m.value).collect();
    let n = values.len().max(1) as f64;
    let each = (measured.iter().map(|m| m.error * m.error).sum::<f64>() / n).sqrt();
    let noise = each / (dot(&values, &values) / n).sqrt().max(f64::MIN_POSITIVE);
    let found = |(name, vector): (String, Vec<f64>)| {
        let fit = least_squares(&[right, &vector], &values, noise)?;
        let [a, b] = fit.coefficients[..] else { return None };
        let fits = |by: f64, other: f64| {
            let due = right.iter().zip(&vector).map(|(x, v)| by * x + other * v);
            other != 0.0 && measured.iter().zip(due).all(|(m, due)| m.may_be(due))
        };
        let tries = [(a.number(), b.number()), (a.plain(), b.plain())];
        tries.into_iter().find(|(a, b)| fits(a.value, b.value)).map(|(a, b)| (name, a, b))
    };
    case.operation.vectors(case.fitted, measured.len()).into_iter().filter_map(found).collect()
}
